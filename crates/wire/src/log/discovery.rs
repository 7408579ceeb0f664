//! Discovery log page (70h): a header and entries of 1,024 bytes each.

use crate::layout::{Field, layout};
use crate::nqn::NqnField;
use crate::text::Ascii;

/// Length of the header in bytes.
pub const DISCOVERY_HEADER_LEN: usize = DiscoveryHeader::LEN;

/// Length of an entry in bytes.
pub const DISCOVERY_ENTRY_LEN: usize = DiscoveryEntry::LEN;

/// CNTLID of an entry whose subsystem makes controllers on demand.
pub const PORT_CNTLID_DYNAMIC: u16 = 0xFFFF;

/// Transport types (TRTYPE).
#[allow(missing_docs)]
pub mod trtype {
    pub const RDMA: u8 = 1;
    pub const FIBRE_CHANNEL: u8 = 2;
    pub const TCP: u8 = 3;
    pub const LOOP: u8 = 254;
}

/// Address families (ADRFAM).
#[allow(missing_docs)]
pub mod adrfam {
    pub const IPV4: u8 = 1;
    pub const IPV6: u8 = 2;
    pub const INTRA_HOST: u8 = 254;
}

/// Bits of TREQ.
pub mod treq {
    /// Secure channel: not specified.
    pub const SECURE_UNSPECIFIED: u8 = 0b00;
    /// Secure channel: required.
    pub const SECURE_REQUIRED: u8 = 0b01;
    /// Secure channel: not required.
    pub const SECURE_NOT_REQUIRED: u8 = 0b10;
    /// Submission queue flow control may be disabled.
    pub const NO_FLOW_CONTROL: u8 = 1 << 2;
}

/// Bits of EFLAGS.
pub mod eflags {
    /// Another entry with the same information is returned by another port.
    pub const DUPLICATE: u16 = 1 << 0;
    /// Explicit persistent connections to this discovery controller.
    pub const PERSISTENT: u16 = 1 << 1;
}

/// Transport specific addresses of TCP: the security type, byte 0.
pub mod tsas {
    /// The transport is not secured.
    pub const NONE: u8 = 0;
    /// TLS 1.3 with a pre-shared key.
    pub const TLS_1_3: u8 = 2;
}

/// What an entry leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubsystemType {
    /// Another discovery subsystem (1).
    Referral,
    /// A subsystem with namespaces (2).
    Nvm,
    /// The discovery subsystem that was asked (3).
    CurrentDiscovery,
    /// A reserved value.
    Reserved(u8),
}

impl Field for SubsystemType {
    const LEN: usize = 1;
    fn put(&self, out: &mut [u8]) {
        out[0] = match *self {
            SubsystemType::Referral => 1,
            SubsystemType::Nvm => 2,
            SubsystemType::CurrentDiscovery => 3,
            SubsystemType::Reserved(code) => code,
        };
    }
    fn get(bytes: &[u8]) -> Self {
        match bytes[0] {
            1 => SubsystemType::Referral,
            2 => SubsystemType::Nvm,
            3 => SubsystemType::CurrentDiscovery,
            other => SubsystemType::Reserved(other),
        }
    }
}

layout! {
    /// Header of the discovery log page.
    pub struct DiscoveryHeader: 1024 {
        /// Generation counter: changes with the content.
        0 => genctr: u64,
        /// Number of entries.
        8 => numrec: u64,
        /// Record format: 0.
        16 => recfmt: u16,
    }
}

layout! {
    /// Entry of the discovery log page.
    pub struct DiscoveryEntry: 1024 {
        /// Transport type ([`trtype`]).
        0 => trtype: u8,
        /// Address family ([`adrfam`]).
        1 => adrfam: u8,
        /// The kind of subsystem at that address.
        2 => subtype: SubsystemType,
        /// Transport requirements ([`treq`] bits).
        3 => treq: u8,
        /// Port of the subsystem.
        4 => portid: u16,
        /// Controller to connect to; FFFFh: any.
        6 => cntlid: u16,
        /// Largest admin submission queue, counted from 1.
        8 => asqsz: u16,
        /// [`eflags`] bits.
        10 => eflags: u16,
        /// Transport service identifier: the TCP port.
        32 => trsvcid: Ascii<32>,
        /// NQN of the subsystem.
        256 => subnqn: NqnField,
        /// Transport address: the IP address.
        512 => traddr: Ascii<256>,
        /// Transport specific addresses: the security type ([`tsas`]).
        768 => tsas: u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{check_layout, place};

    #[test]
    fn layouts_are_consistent() {
        check_layout!(DiscoveryHeader, DiscoveryEntry);
        for (name, at) in [
            ("subtype", (2, 2)),
            ("treq", (3, 3)),
            ("portid", (5, 4)),
            ("cntlid", (7, 6)),
            ("asqsz", (9, 8)),
            ("eflags", (11, 10)),
            ("trsvcid", (63, 32)),
            ("subnqn", (511, 256)),
            ("traddr", (767, 512)),
            ("tsas", (768, 768)),
        ] {
            assert_eq!(place(DiscoveryEntry::FIELDS, name), at, "{name}");
        }
        assert_eq!(place(DiscoveryHeader::FIELDS, "recfmt"), (17, 16));
    }

    #[test]
    fn an_entry_reads_back() {
        let entry = DiscoveryEntry {
            trtype: trtype::TCP,
            adrfam: adrfam::IPV4,
            subtype: SubsystemType::Nvm,
            trsvcid: Ascii::new("4420"),
            subnqn: crate::nqn::to_field("nqn.2014-08.org.example:a"),
            traddr: Ascii::new("127.0.0.1"),
            ..Default::default()
        };
        let bytes = entry.encode();
        assert_eq!(&bytes[32..37], b"4420 ");
        let read = DiscoveryEntry::decode(&bytes).expect("long enough");
        assert_eq!((read.traddr.text(), read.subtype), ("127.0.0.1".into(), SubsystemType::Nvm));
    }
}
