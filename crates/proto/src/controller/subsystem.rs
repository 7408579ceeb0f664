//! What a controller knows of its subsystem: plain data, made by the driver.

use super::space::SpaceView;
use longhaul_wire::log::{AnaState, DiscoveryEntry};
use std::collections::BTreeSet;
use std::sync::Arc;
use uuid::Uuid;

/// The page size in which MDTS and other limits count, in bytes: CAP.MPSMIN
/// is 0.
pub const PAGE: u32 = 4096;

/// The most I/O queues of one controller: what Number of Queues can say.
pub const QUEUES_MAX: u16 = 0xFFFF;

/// Which hosts may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostAccess {
    /// Every host may connect.
    #[default]
    Any,
    /// The hosts with these NQNs.
    Only(BTreeSet<String>),
}

impl HostAccess {
    /// Whether the host may connect; a host without a name (an empty one) only
    /// where every host may.
    pub fn allows(&self, hostnqn: &str) -> bool {
        match self {
            HostAccess::Any => true,
            HostAccess::Only(hosts) => hosts.contains(hostnqn),
        }
    }
}

/// A subsystem as its controllers show it. The driver makes a new one when
/// something changes, and notifies the controllers of the change.
#[derive(Clone, Debug)]
pub struct SubsystemView {
    /// The NQN that hosts connect to.
    pub nqn: String,
    /// Serial number: at most 20 ASCII characters.
    pub serial: String,
    /// Model number: at most 40 ASCII characters.
    pub model: String,
    /// Firmware revision: at most 8 ASCII characters.
    pub firmware: String,
    /// The largest data transfer of one command in bytes; rounded down to a
    /// power of two of at least [`PAGE`].
    pub max_transfer: u32,
    /// The largest in-capsule data of I/O queues in bytes, a multiple of 16.
    pub in_capsule: u32,
    /// I/O queues of one controller, at least 1.
    pub max_queues: u16,
    /// Entries of a queue, at least 2.
    pub max_queue_size: u16,
    /// Which hosts may connect.
    pub hosts: HostAccess,
    /// Namespaces, or the discovery log.
    pub content: Content,
}

/// What a subsystem holds.
#[derive(Clone, Debug)]
pub enum Content {
    /// It has namespaces.
    Nvm(NvmContent),
    /// The discovery log.
    Discovery(DiscoveryContent),
}

/// The namespaces of a subsystem.
#[derive(Clone, Debug)]
pub struct NvmContent {
    /// The largest NSID that will ever be in use.
    pub max_nsid: u32,
    /// The namespaces in increasing order of their NSIDs.
    pub namespaces: Vec<NamespaceView>,
    /// Whether asymmetric namespace access is reported; the number of its
    /// changes so far.
    pub ana: Option<u64>,
    /// The space that the namespaces are made in, where the host of the controller may manage it.
    /// Other hosts are shown a subsystem without namespace management.
    pub space: Option<Arc<SpaceView>>,
}

impl NvmContent {
    /// The namespace with this NSID.
    pub fn namespace(&self, nsid: u32) -> Option<&NamespaceView> {
        let at = self.namespaces.binary_search_by_key(&nsid, |ns| ns.nsid).ok()?;
        self.namespaces.get(at)
    }
}

/// What a discovery controller reports.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryContent {
    /// Changes with the records.
    pub generation: u64,
    /// The entries, as this connection should see them.
    pub records: Vec<DiscoveryRecord>,
    /// Hosts that may register; none unless this is a central discovery controller.
    pub registrars: Option<HostAccess>,
}

/// An entry of the discovery log, and the hosts that see it.
#[derive(Clone, Debug)]
pub struct DiscoveryRecord {
    /// The entry (see [`discovery_entry`](super::discovery_entry)).
    pub entry: DiscoveryEntry,
    /// The hosts whose discovery log has it.
    pub hosts: HostAccess,
}

impl SubsystemView {
    /// The largest data transfer in bytes that MDTS can say.
    pub fn mdts_bytes(&self) -> u32 {
        let pages = (self.max_transfer / PAGE).max(1);
        PAGE << pages.ilog2()
    }

    /// The namespaces, if it has any.
    pub fn nvm(&self) -> Option<&NvmContent> {
        match &self.content {
            Content::Nvm(nvm) => Some(nvm),
            Content::Discovery(_) => None,
        }
    }

    /// Whether it is a discovery subsystem.
    pub fn is_discovery(&self) -> bool {
        matches!(self.content, Content::Discovery(_))
    }
}

/// A namespace as a controller shows it: all that the I/O path needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceView {
    /// NSID, 1 at least.
    pub nsid: u32,
    /// Size in logical blocks.
    pub blocks: u64,
    /// Logical block size, 2^n bytes: 9 to 16.
    pub block_shift: u8,
    /// Preferred granularity and alignment of writes and deallocations in
    /// bytes, or 0.
    pub granularity: u32,
    /// Preferred size of writes in bytes, or 0.
    pub optimal_io: u32,
    /// UUID by which hosts recognise the namespace, if it has one.
    pub uuid: Option<Uuid>,
    /// NGUID, or zeroes.
    pub nguid: [u8; 16],
    /// The controller refuses writes.
    pub read_only: bool,
    /// The host of the controller may only read: the controller refuses its writes, and the
    /// reservations that would keep other hosts from writing.
    pub reader: bool,
    /// Acknowledged writes may be lost in a crash until Flush.
    pub volatile_cache: bool,
    /// Deallocation gives space back.
    pub discard: bool,
    /// Deallocated blocks read as zeroes.
    pub discard_zeroes: bool,
    /// Controllers of several hosts may have it at a time.
    pub shared: bool,
    /// Its reservations can persist through a loss of power.
    pub persistent_reservations: bool,
    /// ANA group, 1 at least where ANA is reported.
    pub ana_group: u32,
    /// State of the ANA group.
    pub ana_state: AnaState,
}

impl NamespaceView {
    /// Logical block size in bytes.
    pub fn block_size(&self) -> u32 {
        1 << self.block_shift
    }

    /// Whether the host of the controller can write.
    pub fn is_writable(&self) -> bool {
        !self.read_only && !self.reader
    }

    /// The same, as a host sees it that may only read.
    pub fn for_reader(self) -> NamespaceView {
        NamespaceView { reader: true, persistent_reservations: false, ..self }
    }
}

/// Counts for the SMART / health log page, kept by the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthCounters {
    /// Bytes read (Read, Compare, Verify).
    pub bytes_read: u64,
    /// Bytes written (Write).
    pub bytes_written: u64,
    /// Commands that read (Read, Compare).
    pub reads: u64,
    /// Write commands completed.
    pub writes: u64,
    /// Milliseconds with I/O outstanding.
    pub busy_ms: u64,
    /// Media and data integrity errors.
    pub media_errors: u64,
    /// Seconds since the subsystem began to serve.
    pub uptime_s: u64,
    /// Whether the subsystem did not end in order the last time, as a count.
    pub unsafe_shutdowns: u64,
}

#[cfg(test)]
mod tests {
    use crate::controller::testing;

    #[test]
    fn mdts_is_a_power_of_two_of_pages() {
        let mut view = testing::subsystem();
        for (bytes, mdts) in
            [(0, 4096), (4096, 4096), (8191, 4096), (1 << 20, 1 << 20), ((3 << 20) + 5, 2 << 20)]
        {
            view.max_transfer = bytes;
            assert_eq!(view.mdts_bytes(), mdts, "{bytes}");
        }
    }

    #[test]
    fn namespaces_are_found_by_nsid() {
        let view = testing::subsystem();
        let nvm = view.nvm().expect("namespaces");
        assert_eq!(nvm.namespace(3).map(|ns| ns.nsid), Some(3));
        assert_eq!(nvm.namespace(2), None);
        assert_eq!(nvm.namespace(0), None);
    }
}
