//! Properties of controllers and namespaces, and events of a controller.

use crate::error::{Error, Result};
use crate::options::Options;
use crate::setup::Admin;
use futures_util::future;
use longhaul_engine::net::TcpStream;
use longhaul_wire::fabrics::Cap;
use longhaul_wire::feature::NumberOfQueues;
use longhaul_wire::identify::{
    Identifier, IdentifyController, IdentifyNamespace, NvmController, cns, ctratt, decode_descriptors,
    decode_nsid_list,
};
use std::time::Duration;
use uuid::Uuid;

/// What a controller says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Where it is.
    pub address: String,
    /// NQN of its subsystem.
    pub subnqn: String,
    /// Controller identifier (CNTLID).
    pub cntlid: u16,
    /// Model number (MN), without padding.
    pub model: String,
    /// Serial number (SN), without padding.
    pub serial: String,
    /// Firmware revision (FR), without padding.
    pub firmware: String,
    /// NVMe version, as "2.1.0".
    pub version: String,
    /// Largest transfer of one command in bytes; none if there is no limit.
    pub max_transfer: Option<u64>,
    /// In-capsule data of an I/O queue, in bytes.
    pub in_capsule: u64,
    /// Entries of a queue at most.
    pub queue_entries: u32,
    /// I/O queues granted.
    pub queues: u16,
    /// Keep-alive time-out in use.
    pub kato: Duration,
    /// It counts any traffic as a sign of life.
    pub traffic_keep_alive: bool,
    /// It can end what an earlier connection has left behind
    /// (Cross-Controller Reset).
    pub resets_others: bool,
    /// Header digests in use.
    pub hdr_digest: bool,
    /// Data digests in use.
    pub data_digest: bool,
    /// Its connections are encrypted with TLS.
    pub tls: bool,
    /// It has a volatile write cache.
    pub write_cache: bool,
    /// Supported optional NVM commands ([`longhaul_wire::identify::oncs`] bits).
    pub oncs: u16,
    /// Bytes that one Write Zeroes covers at most (WZSL), if there is a limit.
    pub max_zeroes: Option<u64>,
    /// Round trip and its variation when it was set up, as TCP saw them.
    pub round_trip: (Duration, Duration),
    /// Congestion control in use on this end.
    pub congestion: String,
}

/// What a namespace is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Namespace identifier, from 1.
    pub nsid: u32,
    /// Capacity in bytes.
    pub size: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Optimal write size in bytes, 0 if it does not say.
    pub optimal_io: u32,
    /// It refuses writes.
    pub read_only: bool,
    /// Reservation capabilities (RESCAP), as bits.
    pub rescap: u8,
    /// UUID, if the namespace reports one.
    pub uuid: Option<Uuid>,
    /// Identity of 16 bytes, all zero if it has none.
    pub nguid: [u8; 16],
    /// Identity of 8 bytes, all zero if it has none.
    pub eui64: [u8; 8],
}

impl NamespaceInfo {
    /// The identifier by which it is recognised.
    pub(crate) fn identity(&self) -> String {
        match self.uuid {
            Some(uuid) => format!("UUID {uuid}"),
            None if self.nguid != [0; 16] => format!("NGUID {:032x}", u128::from_be_bytes(self.nguid)),
            None => format!("EUI64 {:016x}", u64::from_be_bytes(self.eui64)),
        }
    }

    /// Why `now` cannot stand for this namespace, to which I/O may be under
    /// way.
    pub(crate) fn replaced(&self, now: &NamespaceInfo) -> Option<String> {
        let nsid = self.nsid;
        if (self.uuid, self.nguid, self.eui64) != (now.uuid, now.nguid, now.eui64) {
            let (was, is) = (self.identity(), now.identity());
            return Some(format!("namespace {nsid} is another one now: it was {was}, and is {is}"));
        }
        if self.block_size != now.block_size {
            let (was, is) = (self.block_size, now.block_size);
            return Some(format!("namespace {nsid} has blocks of {is} bytes now, it had blocks of {was}"));
        }
        None
    }

    /// The same after an outage, when writes are to be resent: the size must not have decreased
    /// either.
    pub(crate) fn conflict(&self, now: &NamespaceInfo) -> Option<String> {
        if let Some(replaced) = self.replaced(now) {
            return Some(replaced);
        }
        let nsid = self.nsid;
        if self.size > now.size {
            let (was, is) = (self.size, now.size);
            return Some(format!("namespace {nsid} has {is} bytes now, it had {was}"));
        }
        None
    }
}

/// How a device was set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetUp {
    /// From the call until the controller was ready and the namespace known.
    pub controller: Duration,
    /// The same until every I/O queue was ready that was asked for at once;
    /// what the caller did between connecting and opening is not counted.
    pub total: Duration,
    /// Round trips one after another that `controller` is made of, TCP's own
    /// included.
    pub round_trips: u32,
    /// The same for the I/O queues, from when they were asked for.
    pub queue_round_trips: u32,
    /// Number of I/O queues that were opened at once.
    pub queues: u16,
}

/// An event of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerEvent {
    /// A namespace was added, removed or changed (its size, say).
    NamespaceChanged(u32),
    /// Access to namespaces over this path has changed.
    AnaChanged,
    /// The discovery log has changed.
    DiscoveryChanged,
    /// The connection is lost, and attempts to connect again are under way.
    /// I/O waits.
    Reconnecting {
        /// Why it was lost, or the last attempt failed.
        reason: String,
        /// The attempt, from 1. Not every later one is reported.
        attempt: u32,
    },
    /// There is a connection again; I/O continues.
    Reconnected {
        /// Why the last one was lost.
        reason: String,
        /// Attempts that it took.
        attempts: u32,
        /// Time without a connection.
        after: Duration,
    },
    /// The connection is lost for good, for this reason.
    Lost(String),
}

/// A limit of the NVM command set in bytes: 2^n memory pages, 0 for none.
fn size_limit(n: u8, cap: Cap) -> Option<u64> {
    let shift = PAGE_SHIFT + cap.mpsmin() as u32 + u32::from(n);
    // A limit that overflows can never be exceeded: the controller has no limit.
    (n > 0 && shift < u64::BITS).then(|| 1 << shift)
}

/// The smallest memory page has 2^12 bytes: CAP.MPSMIN counts from there.
const PAGE_SHIFT: u32 = 12;

pub(crate) fn describe(
    admin: &Admin,
    subnqn: &str,
    cntlid: u16,
    (id, nvm): (&IdentifyController, Option<NvmController>),
    cap: Cap,
    granted: NumberOfQueues,
    options: &Options,
) -> ControllerInfo {
    let version = id.ver.to_le_bytes();
    let (hdr_digest, data_digest) = admin.queue.digests();
    ControllerInfo {
        address: admin.endpoint.name.clone(),
        subnqn: subnqn.to_owned(),
        cntlid,
        model: id.mn.text().into_owned(),
        serial: id.sn.text().into_owned(),
        firmware: id.fr.text().into_owned(),
        version: format!("{}.{}.{}", u16::from_le_bytes([version[2], version[3]]), version[1], version[0]),
        max_transfer: id.max_transfer(cap.mpsmin() as u32),
        in_capsule: id.in_capsule_len(),
        queue_entries: cap.mqes() as u32 + 1,
        queues: u16::try_from(granted.submission.min(granted.completion)).unwrap_or(u16::MAX),
        kato: if id.kas == 0 { Duration::ZERO } else { options.kato },
        traffic_keep_alive: id.ctratt & ctratt::TRAFFIC_KEEP_ALIVE != 0,
        resets_others: id.ccrl != 0 && id.ciu != 0,
        hdr_digest,
        data_digest,
        tls: admin.queue.is_secure(),
        write_cache: id.vwc & 1 != 0,
        oncs: id.oncs,
        max_zeroes: nvm.and_then(|nvm| size_limit(nvm.wzsl, cap)),
        round_trip: admin.queue.channel().round_trip().unwrap_or_default(),
        congestion: admin.queue.channel().tcp().and_then(TcpStream::congestion).unwrap_or_default(),
    }
}

pub(crate) async fn active_namespaces(admin: &Admin) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    loop {
        let after = all.last().copied().unwrap_or(0);
        let page = admin.identify("the namespace list", cns::ACTIVE_NAMESPACES, after).await?;
        let found: Vec<u32> = decode_nsid_list(&page).collect();
        let full = found.len() == longhaul_wire::identify::NSID_LIST_MAX;
        // A list that does not grow would be asked for for ever.
        let grows = found.first().is_some_and(|&first| first > after);
        all.extend(found);
        if !full || !grows {
            return Ok(all);
        }
    }
}

/// Which namespace is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Nsid(u32),
    /// The only one that there is.
    Only,
}

/// The namespace that is meant.
pub(crate) async fn find_namespace(admin: &Admin, which: Which, subnqn: &str) -> Result<NamespaceInfo> {
    // Most subsystems that have one call it 1: what that is, is asked together
    // with whether it is.
    const USUAL: u32 = 1;
    let name = &admin.endpoint.name;
    let there = |result: Result<NamespaceInfo>, nsid| {
        result.map_err(|e| match e {
            // Invalid Namespace or Format and the like: the namespace does not exist.
            Error::Refused { reason, .. } => {
                Error::NotFound(format!("{name} has no namespace {nsid} in {subnqn} ({reason})"))
            }
            e => e,
        })
    };
    let nsid = match which {
        Which::Nsid(nsid) => return there(namespace_info(admin, nsid).await, nsid),
        Which::Only => {
            let (all, usual) = future::join(active_namespaces(admin), namespace_info(admin, USUAL)).await;
            match all?[..] {
                [USUAL] => return there(usual, USUAL),
                [nsid] => nsid,
                [] => return Err(Error::NotFound(format!("{subnqn} at {name} has no namespace"))),
                ref all => {
                    let all: Vec<_> = all.iter().map(u32::to_string).collect();
                    let all = all.join(", ");
                    return Err(Error::NotFound(format!(
                        "{subnqn} at {name} has namespaces {all}: choose one with ?nsid=N"
                    )));
                }
            }
        }
    };
    admin.round_trip();
    there(namespace_info(admin, nsid).await, nsid)
}

pub(crate) async fn namespace_info(admin: &Admin, nsid: u32) -> Result<NamespaceInfo> {
    let (ns, ids) = future::join(
        admin.identify("Identify Namespace", cns::NAMESPACE, nsid),
        admin.identify("the namespace's identifiers", cns::NAMESPACE_DESCRIPTORS, nsid),
    )
    .await;
    let ns = IdentifyNamespace::decode(&ns?)
        .ok_or_else(|| admin.endpoint.incompatible("Identify Namespace is cut"))?;
    if ns.nsze == 0 {
        return Err(Error::NotFound(format!("{} has no namespace {nsid}", admin.endpoint.name)));
    }
    let format = ns.format().ok_or_else(|| admin.endpoint.incompatible("its LBA format does not exist"))?;
    // 512 bytes is the least that the command set has; 64 KiB is what a
    // block device of any kernel can be.
    if !(9..=16).contains(&format.lbads) || format.metadata != 0 {
        return Err(admin.endpoint.incompatible(format!("LBA format {format:?} is not supported")));
    }
    let block_size = 1u32 << format.lbads;
    let size = ns.nsze.checked_mul(block_size.into());
    let size = size.ok_or_else(|| admin.endpoint.incompatible("its size exceeds 2^64 bytes"))?;
    // Targets without descriptors refuse the command; what fails for another
    // reason must not be taken for a namespace without identity.
    let ids = match ids {
        Err(Error::Refused { .. }) => Vec::new(),
        ids => decode_descriptors(&ids?),
    };
    let uuid = ids.into_iter().find_map(|id| match id {
        Identifier::Uuid(uuid) => Some(uuid),
        _ => None,
    });
    let hints = ns.nsfeat & longhaul_wire::identify::nsfeat::OPTPERF != 0;
    Ok(NamespaceInfo {
        nsid,
        size,
        block_size,
        optimal_io: if hints { (u32::from(ns.nows) + 1).saturating_mul(block_size) } else { 0 },
        read_only: ns.nsattr & longhaul_wire::identify::nsattr::WRITE_PROTECTED != 0,
        rescap: ns.rescap,
        uuid,
        nguid: ns.nguid,
        eui64: ns.eui64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_differs_in_any_identity_is_another_one() {
        let was = NamespaceInfo {
            nsid: 1,
            size: 1 << 20,
            block_size: 512,
            optimal_io: 0,
            read_only: false,
            rescap: 0,
            uuid: Some(Uuid::from_u128(1)),
            nguid: [1; 16],
            eui64: [1; 8],
        };
        assert_eq!(was.replaced(&was), None);
        assert_eq!(was.conflict(&NamespaceInfo { size: 2 << 20, ..was.clone() }), None, "it may grow");
        let others = [
            NamespaceInfo { uuid: Some(Uuid::from_u128(2)), ..was.clone() },
            NamespaceInfo { uuid: None, ..was.clone() },
            NamespaceInfo { nguid: [2; 16], ..was.clone() },
            NamespaceInfo { eui64: [2; 8], ..was.clone() },
            NamespaceInfo { block_size: 4096, ..was.clone() },
        ];
        for other in others {
            assert!(was.replaced(&other).is_some(), "{other:?}");
            assert!(was.conflict(&other).is_some(), "{other:?}");
        }
        assert!(was.conflict(&NamespaceInfo { size: 1 << 19, ..was.clone() }).is_some(), "it shrank");
    }
}
