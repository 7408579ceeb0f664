//! Identify Namespace: NVM command set (CNS 00h), its extension (CNS 05h) and
//! what holds for every command set (CNS 08h).

use crate::layout::{Field, layout};

/// LBA formats that the structure has room for.
const FORMATS: usize = 64;

/// An LBA format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LbaFormat {
    /// Metadata of a logical block in bytes.
    pub metadata: u16,
    /// Size of a logical block, 2^n bytes.
    pub lbads: u8,
    /// Relative performance, 0 the best.
    pub rp: u8,
}

impl Field for LbaFormat {
    const LEN: usize = 4;
    fn put(&self, out: &mut [u8]) {
        let [low, high] = self.metadata.to_le_bytes();
        out.copy_from_slice(&[low, high, self.lbads, self.rp & 0b11]);
    }
    fn get(bytes: &[u8]) -> Self {
        LbaFormat { metadata: u16::get(&bytes[..2]), lbads: bytes[2], rp: bytes[3] & 0b11 }
    }
}

impl Field for [LbaFormat; FORMATS] {
    const LEN: usize = 4 * FORMATS;
    fn put(&self, out: &mut [u8]) {
        for (format, slot) in self.iter().zip(out.chunks_exact_mut(4)) {
            format.put(slot);
        }
    }
    fn get(bytes: &[u8]) -> Self {
        std::array::from_fn(|i| LbaFormat::get(&bytes[4 * i..4 * i + 4]))
    }
}

layout! {
    /// Identify Namespace data structure of the NVM command set (CNS 00h).
    /// Sizes are in logical blocks.
    pub struct IdentifyNamespace: 4096 {
        /// NSZE: size in logical blocks.
        0 => nsze: u64,
        /// NCAP: capacity in logical blocks.
        8 => ncap: u64,
        /// NUSE: logical blocks in use.
        16 => nuse: u64,
        /// [`nsfeat`] bits.
        24 => nsfeat: u8,
        /// LBA formats, counted from 0.
        25 => nlbaf: u8,
        /// LBA format in use: bits 3:0, and 6:5 above them.
        26 => flbas: u8,
        /// MC: metadata capabilities, bits.
        27 => mc: u8,
        /// DPC: protection capabilities, bits.
        28 => dpc: u8,
        /// DPS: protection settings, bits.
        29 => dps: u8,
        /// [`nmic`] bits.
        30 => nmic: u8,
        /// RESCAP: reservation capabilities, bits.
        31 => rescap: u8,
        /// FPI: progress of a format in percent left, bit 7 if supported.
        32 => fpi: u8,
        /// [`dlfeat`] bits.
        33 => dlfeat: u8,
        /// Atomic write unit normal, counted from 0.
        34 => nawun: u16,
        /// Atomic write unit power fail.
        36 => nawupf: u16,
        /// Atomic compare and write unit.
        38 => nacwu: u16,
        /// Optimal I/O boundary.
        46 => noiob: u16,
        /// NVM capacity in bytes.
        48 => nvmcap: u128,
        /// Preferred write granularity, counted from 0.
        64 => npwg: u16,
        /// Preferred write alignment, counted from 0.
        66 => npwa: u16,
        /// Preferred deallocate granularity, counted from 0.
        68 => npdg: u16,
        /// Preferred deallocate alignment, counted from 0.
        70 => npda: u16,
        /// Optimal write size, counted from 0.
        72 => nows: u16,
        /// ANAGRPID: ANA group, 0 for none.
        92 => anagrpid: u32,
        /// [`nsattr`] bits.
        99 => nsattr: u8,
        /// NVMSETID: NVM set, 0 for none.
        100 => nvmsetid: u16,
        /// ENDGID: endurance group, 0 for none.
        102 => endgid: u16,
        /// Namespace globally unique identifier.
        104 => nguid: [u8; 16],
        /// IEEE extended unique identifier.
        120 => eui64: [u8; 8],
        /// LBAF: formats of logical blocks, by number.
        128 => lbaf: [LbaFormat; FORMATS],
    }
}

impl IdentifyNamespace {
    /// The LBA format in use, if the structure names one that it has.
    pub fn format(&self) -> Option<LbaFormat> {
        let index = usize::from(self.flbas & 0xF | (self.flbas >> 5 & 0b11) << 4);
        (index <= usize::from(self.nlbaf)).then(|| self.lbaf.get(index).copied()).flatten()
    }
}

/// Bits of NSFEAT.
#[allow(missing_docs)]
pub mod nsfeat {
    /// NSZE may exceed NCAP.
    pub const THIN: u8 = 1 << 0;
    /// NPWG, NPWA, NPDG, NPDA and NOWS are defined (OPTPERF 01b).
    pub const OPTPERF: u8 = 1 << 4;
    /// CNS 08h only: the namespace does not use a volatile write cache.
    pub const NO_WRITE_CACHE: u8 = 1 << 5;
}

/// Bits of NMIC.
#[allow(missing_docs)]
pub mod nmic {
    pub const SHARED: u8 = 1 << 0;
}

/// Bits of DLFEAT.
#[allow(missing_docs)]
pub mod dlfeat {
    /// Deallocated blocks read as zeroes.
    pub const READS_ZERO: u8 = 0b001;
    /// Write Zeroes takes the Deallocate bit.
    pub const WRITE_ZEROES_DEAC: u8 = 1 << 3;
}

/// Bits of NSATTR.
#[allow(missing_docs)]
pub mod nsattr {
    pub const WRITE_PROTECTED: u8 = 1 << 0;
}

/// Bits of RESCAP.
pub mod rescap {
    /// Reservations can outlast a loss of power.
    pub const PERSISTS: u8 = 1 << 0;
    /// There is the type Write Exclusive.
    pub const WRITE_EXCLUSIVE: u8 = 1 << 1;
    /// There is the type Write Exclusive - All Registrants.
    pub const WRITE_EXCLUSIVE_ALL: u8 = 1 << 5;
}

/// Bits of NSTAT.
#[allow(missing_docs)]
pub mod nstat {
    pub const READY: u8 = 1 << 0;
}

layout! {
    /// I/O Command Set Independent Identify Namespace data structure
    /// (CNS 08h).
    pub struct IndependentNamespace: 4096 {
        /// [`nsfeat`] bits (not the same bits as in CNS 00h).
        0 => nsfeat: u8,
        /// [`nmic`] bits.
        1 => nmic: u8,
        /// RESCAP: reservation capabilities, bits.
        2 => rescap: u8,
        /// FPI: progress of a format in percent left, bit 7 if supported.
        3 => fpi: u8,
        /// ANAGRPID: ANA group, 0 for none.
        4 => anagrpid: u32,
        /// [`nsattr`] bits.
        8 => nsattr: u8,
        /// NVMSETID: NVM set, 0 for none.
        10 => nvmsetid: u16,
        /// ENDGID: endurance group, 0 for none.
        12 => endgid: u16,
        /// [`nstat`] bits.
        14 => nstat: u8,
    }
}

layout! {
    /// NVM command set extension of Identify Namespace (CNS 05h, CSI 00h).
    pub struct NvmNamespace: 4096 {
        /// Logical block storage tag mask.
        0 => lbstm: u64,
        /// Protection information capabilities.
        8 => pic: u8,
        /// Preferred deallocate granularity, large.
        268 => npdgl: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{check_layout, place};
    use proptest::prelude::*;

    #[test]
    fn layouts_are_consistent() {
        check_layout!(IndependentNamespace, NvmNamespace);
        let expected = [
            ("nsfeat", (24, 24)),
            ("nlbaf", (25, 25)),
            ("flbas", (26, 26)),
            ("nmic", (30, 30)),
            ("dlfeat", (33, 33)),
            ("noiob", (47, 46)),
            ("nvmcap", (63, 48)),
            ("npwg", (65, 64)),
            ("npwa", (67, 66)),
            ("npdg", (69, 68)),
            ("npda", (71, 70)),
            ("nows", (73, 72)),
            ("anagrpid", (95, 92)),
            ("nsattr", (99, 99)),
            ("nguid", (119, 104)),
            ("eui64", (127, 120)),
            ("lbaf", (383, 128)),
        ];
        for (name, at) in expected {
            assert_eq!(place(IdentifyNamespace::FIELDS, name), at, "{name}");
        }
    }

    #[test]
    fn the_format_in_use() {
        let mut ns = IdentifyNamespace { nlbaf: 20, flbas: 0b0010_0001, ..Default::default() };
        ns.lbaf[17] = LbaFormat { metadata: 0, lbads: 12, rp: 1 };
        assert_eq!(ns.encode()[128 + 68..128 + 72], [0, 0, 12, 1]);
        assert_eq!(ns.format(), Some(ns.lbaf[17]));
        ns.nlbaf = 16;
        assert_eq!(ns.format(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_decode(bytes in proptest::collection::vec(any::<u8>(), 4096)) {
            let ns = IdentifyNamespace::decode(&bytes).expect("long enough");
            let _ = ns.format();
            prop_assert_eq!(IdentifyNamespace::decode(&ns.encode()), Some(ns));
        }
    }
}
