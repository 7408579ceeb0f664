//! Identify Controller (CNS 01h) and its NVM command set part (CNS 06h).

use crate::layout::{Field, layout};
use crate::nqn::NqnField;
use crate::text::Ascii;

layout! {
    /// Identify Controller data structure (CNS 01h). Fields that a fabrics
    /// controller without them leaves at 0 are not here.
    pub struct IdentifyController: 4096 {
        /// PCI vendor ID.
        0 => vid: u16,
        /// PCI subsystem vendor ID.
        2 => ssvid: u16,
        /// SN: serial number, padded with spaces.
        4 => sn: Ascii<20>,
        /// MN: model number, padded with spaces.
        24 => mn: Ascii<40>,
        /// FR: firmware revision, padded with spaces.
        64 => fr: Ascii<8>,
        /// Recommended arbitration burst, 2^n commands.
        72 => rab: u8,
        /// IEEE: the vendor's OUI, little endian.
        73 => ieee: [u8; 3],
        /// [`cmic`] bits.
        76 => cmic: u8,
        /// Largest data transfer, 2^n memory pages of the minimum size; 0 for
        /// no limit.
        77 => mdts: u8,
        /// CNTLID: controller identifier.
        78 => cntlid: u16,
        /// VER: NVMe version, as the VS property has it.
        80 => ver: u32,
        /// RTD3 resume latency in microseconds.
        84 => rtd3r: u32,
        /// RTD3 entry latency in microseconds: bounds the shutdown time.
        88 => rtd3e: u32,
        /// Optional asynchronous events ([`oaes`] bits).
        92 => oaes: u32,
        /// Attributes ([`ctratt`] bits).
        96 => ctratt: u32,
        /// Controller type ([`cntrltype`]).
        111 => cntrltype: u8,
        /// FRU globally unique identifier.
        112 => fguid: [u8; 16],
        /// Command retry delay 1, in units of 100 ms.
        128 => crdt1: u16,
        /// Command retry delay 2.
        130 => crdt2: u16,
        /// Command retry delay 3.
        132 => crdt3: u16,
        /// Controller Instance Uniquifier; 0: Cross-Controller Reset does not
        /// know this controller (NVMe Base 2.3).
        135 => ciu: u8,
        /// Controller Instance Random Number.
        136 => cirn: u64,
        /// Optional admin commands ([`oacs`] bits).
        256 => oacs: u16,
        /// Abort Command Limit, counted from 0.
        258 => acl: u8,
        /// Asynchronous Event Request Limit, counted from 0.
        259 => aerl: u8,
        /// Firmware updates: bit 0 slot 1 read only, bits 3:1 slots.
        260 => frmw: u8,
        /// Log page attributes ([`lpa`] bits).
        261 => lpa: u8,
        /// Error log page entries, counted from 0.
        262 => elpe: u8,
        /// Power states, counted from 0.
        263 => npss: u8,
        /// Admin vendor specific command configuration.
        264 => avscc: u8,
        /// Warning composite temperature in kelvin.
        266 => wctemp: u16,
        /// Critical composite temperature in kelvin.
        268 => cctemp: u16,
        /// Total NVM capacity in bytes.
        280 => tnvmcap: u128,
        /// Unallocated NVM capacity in bytes.
        296 => unvmcap: u128,
        /// Keep Alive granularity in units of 100 ms; 0: not supported.
        320 => kas: u16,
        /// ANA transition time in seconds.
        342 => anatt: u8,
        /// [`anacap`] bits.
        343 => anacap: u8,
        /// Largest ANA group identifier.
        344 => anagrpmax: u32,
        /// Number of ANA groups.
        348 => nanagrpid: u32,
        /// Command Quiesce Time in milliseconds: within it commands of a
        /// controller whose keep-alive timer expired end; 0: not reported.
        386 => cqt: u16,
        /// Submission queue entry sizes: required (3:0) and maximum (7:4).
        512 => sqes: u8,
        /// Completion queue entry sizes.
        513 => cqes: u8,
        /// Most outstanding commands of one queue.
        514 => maxcmd: u16,
        /// Largest valid NSID.
        516 => nn: u32,
        /// Optional NVM commands ([`oncs`] bits).
        520 => oncs: u16,
        /// FUSES: fused operations, bits.
        522 => fuses: u16,
        /// Format NVM attributes.
        524 => fna: u8,
        /// Volatile write cache ([`vwc`] bits).
        525 => vwc: u8,
        /// Atomic write unit normal, in logical blocks, counted from 0.
        526 => awun: u16,
        /// Atomic write unit power fail.
        528 => awupf: u16,
        /// I/O command set vendor specific command configuration.
        530 => icsvscc: u8,
        /// Namespace write protection capabilities.
        531 => nwpc: u8,
        /// Atomic compare and write unit.
        532 => acwu: u16,
        /// SGL support ([`sgls`] bits).
        536 => sgls: u32,
        /// Most namespaces; 0: as `nn` says.
        540 => mnan: u32,
        /// NQN of the subsystem.
        768 => subnqn: NqnField,
        /// I/O queue command capsule size in units of 16 bytes.
        1792 => ioccsz: u32,
        /// I/O queue response capsule size in units of 16 bytes.
        1796 => iorcsz: u32,
        /// In-capsule data offset in units of 16 bytes.
        1800 => icdoff: u16,
        /// Fabrics controller attributes: bit 0, static controllers.
        1802 => fcatt: u8,
        /// Most SGL data block descriptors of a command.
        1803 => msdbd: u8,
        /// Optional fabrics commands ([`ofcs`] bits).
        1804 => ofcs: u16,
        /// Discovery controller type.
        1806 => dctype: u8,
        /// Cross-Controller Reset Limit: how many may be under way; 0: the
        /// command is not supported (NVMe Base 2.3).
        1807 => ccrl: u8,
        /// Power state 0.
        2048 => psd0: PowerState,
    }
}

/// A power state descriptor, 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerState {
    /// Maximum power in units of 10 mW; 0: not reported.
    pub max_power: u16,
}

impl Field for PowerState {
    const LEN: usize = 32;
    fn put(&self, out: &mut [u8]) {
        out[..2].copy_from_slice(&self.max_power.to_le_bytes());
    }
    fn get(bytes: &[u8]) -> Self {
        PowerState { max_power: u16::get(&bytes[..2]) }
    }
}

impl IdentifyController {
    /// Bytes of data that fit into a command capsule of an I/O queue.
    pub fn in_capsule_len(&self) -> u64 {
        (u64::from(self.ioccsz) * 16).saturating_sub(64)
    }

    /// Largest data transfer in bytes, if there is a limit, with the minimum
    /// page size that CAP.MPSMIN gives.
    pub fn max_transfer(&self, mpsmin: u32) -> Option<u64> {
        let shift = 12u32.saturating_add(mpsmin).saturating_add(self.mdts.into());
        (self.mdts != 0).then(|| 1u64.checked_shl(shift).unwrap_or(1 << 63))
    }
}

/// Bits of CMIC.
#[allow(missing_docs)]
pub mod cmic {
    pub const MULTI_PORT: u8 = 1 << 0;
    pub const MULTI_CONTROLLER: u8 = 1 << 1;
    pub const ANA: u8 = 1 << 3;
}

/// Bits of OAES; the same bits of Asynchronous Event Configuration enable
/// the events.
#[allow(missing_docs)]
pub mod oaes {
    pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    pub const ANA_CHANGE: u32 = 1 << 11;
    pub const DISCOVERY_LOG_CHANGE: u32 = 1 << 31;
}

/// Bits of OACS.
#[allow(missing_docs)]
pub mod oacs {
    /// Namespace Management and Namespace Attachment.
    pub const NAMESPACE_MANAGEMENT: u16 = 1 << 3;
}

/// Bits of CTRATT.
#[allow(missing_docs)]
pub mod ctratt {
    pub const HOST_ID_128: u32 = 1 << 0;
    pub const TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
}

/// Types of discovery controllers (DCTYPE).
pub mod dctype {
    /// Not reported.
    pub const NOT_REPORTED: u8 = 0;
    /// It knows its own subsystems.
    pub const DIRECT: u8 = 1;
    /// Others register with it.
    pub const CENTRAL: u8 = 2;
}

/// Values of CNTRLTYPE.
#[allow(missing_docs)]
pub mod cntrltype {
    pub const IO: u8 = 1;
    pub const DISCOVERY: u8 = 2;
    pub const ADMINISTRATIVE: u8 = 3;
}

/// Bits of LPA.
#[allow(missing_docs)]
pub mod lpa {
    pub const SMART_PER_NAMESPACE: u8 = 1 << 0;
    pub const EFFECTS: u8 = 1 << 1;
    pub const EXTENDED: u8 = 1 << 2;
    pub const TELEMETRY: u8 = 1 << 3;
    pub const PERSISTENT_EVENTS: u8 = 1 << 4;
    pub const SUPPORTED_PAGES: u8 = 1 << 5;
}

/// Bits of ANACAP.
#[allow(missing_docs)]
pub mod anacap {
    pub const OPTIMIZED: u8 = 1 << 0;
    pub const NON_OPTIMIZED: u8 = 1 << 1;
    pub const INACCESSIBLE: u8 = 1 << 2;
    pub const PERSISTENT_LOSS: u8 = 1 << 3;
    pub const CHANGE: u8 = 1 << 4;
    pub const FIXED_GROUP: u8 = 1 << 6;
}

/// Bits of ONCS.
#[allow(missing_docs)]
pub mod oncs {
    pub const COMPARE: u16 = 1 << 0;
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    pub const WRITE_ZEROES: u16 = 1 << 3;
    pub const SAVE_SELECT: u16 = 1 << 4;
    pub const RESERVATIONS: u16 = 1 << 5;
    pub const TIMESTAMP: u16 = 1 << 6;
    pub const VERIFY: u16 = 1 << 7;
    pub const COPY: u16 = 1 << 8;
}

/// Bits of VWC.
#[allow(missing_docs)]
pub mod vwc {
    pub const PRESENT: u8 = 1 << 0;
    /// Flush with NSID FFFFFFFFh is refused.
    pub const FLUSH_ALL_REFUSED: u8 = 0b10 << 1;
    /// Flush with NSID FFFFFFFFh flushes every namespace.
    pub const FLUSH_ALL: u8 = 0b11 << 1;
}

/// Bits of SGLS.
#[allow(missing_docs)]
pub mod sgls {
    /// SGLs without alignment or granularity requirement.
    pub const SUPPORTED: u32 = 0b01;
    pub const KEYED: u32 = 1 << 2;
    /// The address of a data block may be an offset (in-capsule data).
    pub const OFFSET: u32 = 1 << 20;
    /// Transport SGL Data Block.
    pub const TRANSPORT: u32 = 1 << 21;
}

/// Bits of OFCS.
#[allow(missing_docs)]
pub mod ofcs {
    pub const DISCONNECT: u16 = 1 << 0;
}

layout! {
    /// Identify Controller data structure of the NVM command set (CNS 06h,
    /// CSI 00h). Sizes are 2^n memory pages of the minimum size; 0: no limit
    /// is reported.
    pub struct NvmController: 4096 {
        /// Verify size limit.
        0 => vsl: u8,
        /// Write Zeroes size limit.
        1 => wzsl: u8,
        /// Write Uncorrectable size limit.
        2 => wusl: u8,
        /// Dataset Management: most ranges.
        3 => dmrl: u8,
        /// Dataset Management: most logical blocks of a range.
        4 => dmrsl: u32,
        /// Dataset Management: most logical blocks in all.
        8 => dmsl: u64,
        /// Admin optional commands of the command set.
        18 => aocs: u16,
        /// Version of the NVM Command Set specification.
        20 => ver: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{check_layout, place};
    use proptest::prelude::*;

    #[test]
    fn layouts_are_consistent() {
        check_layout!(NvmController);
        // A power state keeps two of its 32 bytes, so its layout is checked apart.
        let id = IdentifyController { psd0: PowerState { max_power: 0x0102 }, ..Default::default() };
        assert_eq!(id.encode()[2048..2052], [2, 1, 0, 0]);
        assert_eq!(IdentifyController::decode(&id.encode()), Some(id));
    }

    #[test]
    fn fields_sit_where_the_figure_has_them() {
        let expected = [
            ("sn", (23, 4)),
            ("mn", (63, 24)),
            ("fr", (71, 64)),
            ("cmic", (76, 76)),
            ("mdts", (77, 77)),
            ("cntlid", (79, 78)),
            ("ver", (83, 80)),
            ("oaes", (95, 92)),
            ("ctratt", (99, 96)),
            ("cntrltype", (111, 111)),
            ("crdt1", (129, 128)),
            ("crdt3", (133, 132)),
            ("ciu", (135, 135)),
            ("cirn", (143, 136)),
            ("oacs", (257, 256)),
            ("aerl", (259, 259)),
            ("lpa", (261, 261)),
            ("tnvmcap", (295, 280)),
            ("kas", (321, 320)),
            ("anatt", (342, 342)),
            ("anagrpmax", (347, 344)),
            ("nanagrpid", (351, 348)),
            ("cqt", (387, 386)),
            ("sqes", (512, 512)),
            ("maxcmd", (515, 514)),
            ("nn", (519, 516)),
            ("oncs", (521, 520)),
            ("vwc", (525, 525)),
            ("sgls", (539, 536)),
            ("mnan", (543, 540)),
            ("subnqn", (1023, 768)),
            ("ioccsz", (1795, 1792)),
            ("iorcsz", (1799, 1796)),
            ("icdoff", (1801, 1800)),
            ("msdbd", (1803, 1803)),
            ("ofcs", (1805, 1804)),
            ("dctype", (1806, 1806)),
            ("ccrl", (1807, 1807)),
            ("psd0", (2079, 2048)),
        ];
        for (name, at) in expected {
            assert_eq!(place(IdentifyController::FIELDS, name), at, "{name}");
        }
    }

    #[test]
    fn derived_sizes() {
        let id = IdentifyController { ioccsz: 4 + 65536, mdts: 5, ..Default::default() };
        assert_eq!(id.in_capsule_len(), 1 << 20);
        assert_eq!(id.max_transfer(0), Some(128 << 10));
        let odd = IdentifyController { ioccsz: 1, mdts: 255, ..Default::default() };
        assert_eq!((odd.in_capsule_len(), odd.max_transfer(u32::MAX)), (0, Some(1 << 63)));
        assert_eq!(IdentifyController::default().max_transfer(0), None);
    }

    proptest! {
        #[test]
        fn any_bytes_decode(bytes in proptest::collection::vec(any::<u8>(), 4090..4100)) {
            if let Some(id) = IdentifyController::decode(&bytes) {
                let _ = (id.max_transfer(3), id.in_capsule_len(), id.sn.text().len());
                prop_assert_eq!(IdentifyController::decode(&id.encode()), Some(id));
            } else {
                prop_assert!(bytes.len() < 4096);
            }
        }
    }
}
