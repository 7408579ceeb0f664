//! Properties: the registers of a controller, read and written with Property
//! Get and Property Set.

use crate::command::Sqe;
use std::fmt;

/// Offsets of the properties that fabrics controllers have.
pub mod offset {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Controller Configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Controller Status, 4 bytes.
    pub const CSTS: u32 = 0x1C;
    /// NVM Subsystem Reset, 4 bytes (optional).
    pub const NSSR: u32 = 0x20;
    /// Controller Ready Timeouts, 4 bytes.
    pub const CRTO: u32 = 0x68;
}

/// The fields of Property Get and Property Set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property {
    /// ATTRIB bits 2:0, byte 40: 0 for 4 bytes, 1 for 8 bytes.
    pub size_code: u8,
    /// Offset of the property; bytes 47:44.
    pub offset: u32,
    /// Property Set: the value; bytes 55:48.
    pub value: u64,
}

impl Property {
    /// Reads the fields.
    pub fn of(sqe: &Sqe) -> Property {
        Property {
            size_code: sqe.cdw10() as u8 & 0b111,
            offset: sqe.cdw11(),
            value: u64::from(sqe.cdw13()) << 32 | u64::from(sqe.cdw12()),
        }
    }
}

/// A version number: major, minor, tertiary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32);

impl Version {
    /// NVM Express Base Specification 2.1.
    pub const V2_1: Version = Version::new(2, 1, 0);

    /// A version from its parts, as in 2.1.0.
    pub const fn new(major: u16, minor: u8, tertiary: u8) -> Version {
        Version((major as u32) << 16 | (minor as u32) << 8 | tertiary as u32)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 16, self.0 >> 8 & 0xFF)?;
        match self.0 & 0xFF {
            0 => Ok(()),
            tertiary => write!(f, ".{tertiary}"),
        }
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! bits {
    ($(#[$meta:meta])* $name:ident($raw:ty) {
        $($(#[$field_meta:meta])* $get:ident, $with:ident: $high:literal, $low:literal;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name(pub $raw);

        impl $name {
            $(
                $(#[$field_meta])*
                pub const fn $get(self) -> $raw {
                    self.0 >> $low & (<$raw>::MAX >> (<$raw>::BITS - 1 - ($high - $low)))
                }

                #[doc = concat!("The same value with another `", stringify!($get), "`, cut to its bits.")]
                #[must_use]
                pub const fn $with(self, value: $raw) -> $name {
                    let mask = <$raw>::MAX >> (<$raw>::BITS - 1 - ($high - $low));
                    $name(self.0 & !(mask << $low) | (value & mask) << $low)
                }
            )*
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($get), &self.$get()))*.finish()
            }
        }
    };
}

bits! {
    /// CAP: controller capabilities.
    Cap(u64) {
        /// Maximum Queue Entries Supported, counted from 0.
        mqes, with_mqes: 15, 0;
        /// Contiguous Queues Required (always 1 in Fabrics).
        cqr, with_cqr: 16, 16;
        /// Arbitration mechanisms besides round robin.
        ams, with_ams: 18, 17;
        /// Longest time to become ready or not ready, in units of 500 ms.
        timeout, with_timeout: 31, 24;
        /// Doorbell stride (0 in Fabrics).
        dstrd, with_dstrd: 35, 32;
        /// NVM Subsystem Reset supported.
        nssrs, with_nssrs: 36, 36;
        /// Command sets: bit 0 NVM, bit 6 I/O command sets, bit 7 none.
        css, with_css: 44, 37;
        /// Minimum memory page size, 2^(12 + MPSMIN) bytes.
        mpsmin, with_mpsmin: 51, 48;
        /// Maximum memory page size, 2^(12 + MPSMAX) bytes.
        mpsmax, with_mpsmax: 55, 52;
        /// Ready modes: bit 0 with media, bit 1 independent of media.
        crms, with_crms: 60, 59;
    }
}

bits! {
    /// CC: controller configuration.
    Cc(u32) {
        /// EN: the host enables the controller.
        en, with_en: 0, 0;
        /// Command set selected: 000b NVM, 110b all, 111b admin only.
        css, with_css: 6, 4;
        /// Memory page size, 2^(12 + MPS) bytes.
        mps, with_mps: 10, 7;
        /// AMS: arbitration mechanism, 0 for round robin.
        ams, with_ams: 13, 11;
        /// SHN: shutdown notification, 0 for none.
        shn, with_shn: 15, 14;
        /// I/O submission queue entry size, as a power of two.
        iosqes, with_iosqes: 19, 16;
        /// I/O completion queue entry size, as a power of two.
        iocqes, with_iocqes: 23, 20;
        /// Ready independent of media.
        crime, with_crime: 24, 24;
    }
}

bits! {
    /// CSTS: controller status.
    Csts(u32) {
        /// RDY: the controller processes commands.
        rdy, with_rdy: 0, 0;
        /// Controller fatal status.
        cfs, with_cfs: 1, 1;
        /// Shutdown status ([`ShutdownStatus`]).
        shst, with_shst: 3, 2;
        /// NVM subsystem reset occurred.
        nssro, with_nssro: 4, 4;
        /// PP: the controller has paused processing.
        pp, with_pp: 5, 5;
        /// ST: the shutdown is one of the subsystem.
        st, with_st: 6, 6;
    }
}

bits! {
    /// Controller Ready Timeouts, in units of 500 ms.
    Crto(u32) {
        /// Ready with media.
        crwmt, with_crwmt: 15, 0;
        /// Ready independent of media.
        crimt, with_crimt: 31, 16;
    }
}

impl Cap {
    /// CSS: the NVM command set.
    pub const CSS_NVM: u64 = 1 << 0;
    /// CSS: I/O command sets chosen by identifier.
    pub const CSS_IO_SETS: u64 = 1 << 6;
    /// CRMS: ready with media.
    pub const CRMS_WITH_MEDIA: u64 = 1 << 0;
}

impl Cc {
    /// CSS: the NVM command set.
    pub const CSS_NVM: u32 = 0b000;
    /// CSS: all command sets supported.
    pub const CSS_ALL: u32 = 0b110;
    /// CSS: the admin command set only.
    pub const CSS_ADMIN: u32 = 0b111;

    /// The shutdown that is asked for.
    pub fn shutdown(self) -> Option<Shutdown> {
        match self.shn() {
            1 => Some(Shutdown::Normal),
            2 => Some(Shutdown::Abrupt),
            _ => None,
        }
    }
}

/// What CC.SHN asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// A normal shutdown.
    Normal,
    /// An abrupt shutdown.
    Abrupt,
}

/// CSTS.SHST: progress of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownStatus {
    /// No shutdown was asked for.
    Normal = 0,
    /// The shutdown is under way.
    Occurring = 1,
    /// The shutdown is complete.
    Complete = 2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_sit_where_they_should() {
        let cap = Cap(0)
            .with_mqes(0x7F)
            .with_cqr(1)
            .with_timeout(0x0F)
            .with_css(Cap::CSS_NVM | Cap::CSS_IO_SETS)
            .with_crms(Cap::CRMS_WITH_MEDIA);
        assert_eq!(cap.0, 0x7F | 1 << 16 | 0xF << 24 | 1 << 37 | 1 << 43 | 1 << 59);
        assert_eq!((cap.mqes(), cap.css(), cap.mpsmax()), (0x7F, 0x41, 0));
        // What a Linux host writes to enable a controller.
        let cc = Cc(0x0046_0001);
        assert_eq!((cc.en(), cc.css(), cc.mps(), cc.iosqes(), cc.iocqes()), (1, 0, 0, 6, 4));
        assert_eq!(cc.shutdown(), None);
        assert_eq!(Cc(0x0046_4001).shutdown(), Some(Shutdown::Normal));
        assert_eq!(Cc(0x0046_8000).shutdown(), Some(Shutdown::Abrupt));
        assert_eq!(Csts(0).with_rdy(1).with_shst(2).0, 0b1001);
    }

    #[test]
    fn a_field_is_cut_to_its_bits() {
        assert_eq!(Cc(u32::MAX).with_css(0).0, 0xFFFF_FF8F);
        assert_eq!(Cc(0).with_css(u32::MAX).0, 0x70);
        assert_eq!(Cap(u64::MAX).with_mqes(0).0, 0xFFFF_FFFF_FFFF_0000);
    }

    #[test]
    fn property_fields() {
        let sqe = Sqe::property_set(offset::CC, false, 0x1_0000_0002);
        assert_eq!(Property::of(&sqe), Property { size_code: 0, offset: 0x14, value: 0x1_0000_0002 });
        assert_eq!(Property::of(&Sqe::property_get(0, true)).size_code, 1);
    }

    #[test]
    fn versions() {
        assert_eq!((Version::V2_1.0, Version::V2_1.to_string()), (0x0002_0100, "2.1".to_owned()));
        assert_eq!(Version::new(1, 4, 1).to_string(), "1.4.1");
    }
}
