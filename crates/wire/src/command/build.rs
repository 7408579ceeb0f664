//! Builders: the commands that an initiator sends. The caller adds the
//! command identifier, and the SGL where there is data.

use super::{Direction, FEATURE_SAVE, Prinfo, ReadWrite, Sgl, Sqe, admin, fctype, io};
use crate::fabrics::auth::Authentication;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One range of Dataset Management, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DsmRange {
    attributes: U32,
    blocks: U32,
    slba: U64,
}

impl DsmRange {
    /// Bytes of one range.
    pub const LEN: usize = 16;

    /// `blocks` logical blocks from `slba`, without attributes.
    pub fn new(slba: u64, blocks: u32) -> DsmRange {
        DsmRange { attributes: 0.into(), blocks: blocks.into(), slba: slba.into() }
    }

    /// First logical block.
    pub fn slba(&self) -> u64 {
        self.slba.get()
    }

    /// Logical blocks (counted from 1: zero is no block).
    pub fn blocks(&self) -> u32 {
        self.blocks.get()
    }

    /// Context attributes: hints that may be ignored.
    pub fn attributes(&self) -> u32 {
        self.attributes.get()
    }
}

impl ReadWrite {
    /// `blocks` logical blocks (1 to 65,536) from `slba`, no flag set.
    pub fn new(slba: u64, blocks: u32) -> ReadWrite {
        ReadWrite {
            slba,
            blocks,
            fua: false,
            limited_retry: false,
            prinfo: Prinfo(0),
            storage_tag_check: false,
            deallocate: false,
            namespace_zeroes: false,
            directive: 0,
        }
    }

    /// The command with this opcode. The length field of its SGL is 0.
    ///
    /// # Panics
    /// If `blocks` is not within 1 to 65,536.
    pub fn to_sqe(&self, opcode: u8, nsid: u32) -> Sqe {
        assert!((1..=1 << 16).contains(&self.blocks), "{} blocks in one command", self.blocks);
        let cdw12 = (self.blocks - 1)
            | u32::from(self.directive & 0xF) << 20
            | u32::from(self.namespace_zeroes) << 23
            | u32::from(self.storage_tag_check) << 24
            | u32::from(self.deallocate) << 25
            | u32::from(self.prinfo.0 & 0xF) << 26
            | u32::from(self.fua) << 30
            | u32::from(self.limited_retry) << 31;
        Sqe::new(opcode)
            .with_nsid(nsid)
            .with_cdw(10, self.slba as u32)
            .with_cdw(11, (self.slba >> 32) as u32)
            .with_cdw(12, cdw12)
    }
}

impl Sqe {
    fn fabrics(fctype: u8) -> Sqe {
        Sqe::new(admin::FABRICS).with_nsid(fctype.into())
    }

    /// Connect. `sqsize` counts from 0; `kato_ms` is the Keep Alive Timeout
    /// in milliseconds (0: none); the 1,024 bytes of
    /// [`ConnectData`](crate::fabrics::ConnectData) go with it.
    pub fn connect(qid: u16, sqsize: u16, cattr: u8, kato_ms: u32) -> Sqe {
        Sqe::fabrics(fctype::CONNECT)
            .with_cdw(10, u32::from(qid) << 16)
            .with_cdw(11, u32::from(sqsize) | u32::from(cattr) << 16)
            .with_cdw(12, kato_ms)
    }

    /// Authentication Send (`fctype::AUTHENTICATION_SEND`) or Receive of `len` bytes.
    pub fn authentication(fctype: u8, len: u32) -> Sqe {
        let [cdw10, cdw11] = Authentication::with_length(len).dwords();
        Sqe::fabrics(fctype).with_cdw(10, cdw10).with_cdw(11, cdw11).with_sgl(Sgl::transport(len))
    }

    /// Property Get of 4 bytes, or 8 if `wide`.
    pub fn property_get(offset: u32, wide: bool) -> Sqe {
        Sqe::fabrics(fctype::PROPERTY_GET).with_cdw(10, wide.into()).with_cdw(11, offset)
    }

    /// Property Set of 4 bytes, or 8 if `wide`.
    pub fn property_set(offset: u32, wide: bool, value: u64) -> Sqe {
        Sqe::fabrics(fctype::PROPERTY_SET)
            .with_cdw(10, wide.into())
            .with_cdw(11, offset)
            .with_cdw(12, value as u32)
            .with_cdw(13, (value >> 32) as u32)
    }

    /// Disconnect of the I/O queue that it is sent on.
    pub fn disconnect() -> Sqe {
        Sqe::fabrics(fctype::DISCONNECT)
    }

    /// Identify; the answer is 4,096 bytes.
    pub fn identify(cns: u8, nsid: u32, csi: u8) -> Sqe {
        Sqe::new(admin::IDENTIFY)
            .with_nsid(nsid)
            .with_cdw(10, cns.into())
            .with_cdw(11, u32::from(csi) << 24)
            .with_sgl(Sgl::transport(4096))
    }

    /// Get Log Page of `len` bytes (a multiple of 4, at least 4) from `offset`.
    ///
    /// # Panics
    /// If `len` is not such a length.
    pub fn get_log_page(lid: u8, nsid: u32, offset: u64, len: u32, rae: bool) -> Sqe {
        assert!(len >= 4 && len.is_multiple_of(4), "log pages are read in units of 4 bytes, not {len}");
        let numd = len / 4 - 1;
        Sqe::new(admin::GET_LOG_PAGE)
            .with_nsid(nsid)
            .with_cdw(10, u32::from(lid) | u32::from(rae) << 15 | numd << 16)
            .with_cdw(11, numd >> 16)
            .with_cdw(12, offset as u32)
            .with_cdw(13, (offset >> 32) as u32)
            .with_sgl(Sgl::transport(len))
    }

    /// Set Features with the value in dword 11.
    pub fn set_features(fid: u8, nsid: u32, value: u32, save: bool) -> Sqe {
        let save = if save { FEATURE_SAVE } else { 0 };
        Sqe::new(admin::SET_FEATURES).with_nsid(nsid).with_cdw(10, u32::from(fid) | save).with_cdw(11, value)
    }

    /// Get Features; `sel` is 0 current, 1 default, 2 saved, 3 supported.
    pub fn get_features(fid: u8, nsid: u32, sel: u8) -> Sqe {
        let cdw10 = u32::from(fid) | u32::from(sel & 0b111) << 8;
        Sqe::new(admin::GET_FEATURES).with_nsid(nsid).with_cdw(10, cdw10)
    }

    /// Asynchronous Event Request.
    pub fn async_event_request() -> Sqe {
        Sqe::new(admin::ASYNC_EVENT_REQUEST)
    }

    /// Keep Alive, an admin command without data.
    pub fn keep_alive() -> Sqe {
        Sqe::new(admin::KEEP_ALIVE)
    }

    /// Abort of command `cid` on queue `sqid`.
    pub fn abort(sqid: u16, cid: u16) -> Sqe {
        Sqe::new(admin::ABORT).with_cdw(10, u32::from(sqid) | u32::from(cid) << 16)
    }

    /// Cross-Controller Reset: `ciu` and `cirn` are what the impacted
    /// controller `icid` has said in its Identify Controller.
    pub fn cross_controller_reset(icid: u16, ciu: u8, cirn: u64) -> Sqe {
        Sqe::new(admin::CROSS_CONTROLLER_RESET)
            .with_cdw(10, u32::from(icid) | u32::from(ciu) << 16)
            .with_cdw(12, cirn as u32)
            .with_cdw(13, (cirn >> 32) as u32)
    }

    /// Flush of namespace `nsid`; FFFFFFFFh for all.
    pub fn flush(nsid: u32) -> Sqe {
        Sqe::new(io::FLUSH).with_nsid(nsid)
    }

    /// Dataset Management that deallocates `ranges` ranges (1 to 256), whose list ([`DsmRange`]) is
    /// the command's data.
    ///
    /// # Panics
    /// If there are not 1 to 256 ranges.
    pub fn deallocate(nsid: u32, ranges: usize) -> Sqe {
        assert!((1..=256).contains(&ranges), "{ranges} ranges in one command");
        Sqe::new(io::DATASET_MANAGEMENT)
            .with_nsid(nsid)
            .with_cdw(10, ranges as u32 - 1)
            .with_cdw(11, 1 << 2)
            .with_sgl(Sgl::transport((ranges * DsmRange::LEN) as u32))
    }

    /// Reservation Report of the extended structure, as far as `len` bytes.
    ///
    /// # Panics
    /// If `len` is no whole number of dwords, or 0.
    pub fn reservation_report(nsid: u32, len: u32) -> Sqe {
        assert!(len >= 4 && len.is_multiple_of(4), "{len} bytes of a report");
        Sqe::new(io::RESERVATION_REPORT)
            .with_nsid(nsid)
            .with_cdw(10, len / 4 - 1)
            .with_cdw(11, 1)
            .with_sgl(Sgl::transport(len))
    }

    /// The direction of the command's data, if its SGL says that it has any.
    pub fn direction(&self) -> Direction {
        if self.opcode == admin::FABRICS { Direction::of(self.fctype()) } else { Direction::of(self.opcode) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Abort, CrossControllerReset, DatasetManagement, Features, GetLogPage, Identify, Select,
    };
    use super::*;

    #[test]
    fn connect_bytes() {
        let bytes = Sqe::connect(0x0102, 0x0304, 0b100, 0x0506_0708).with_cid(9).to_bytes();
        assert_eq!(bytes[..8], [0x7F, 0x40, 9, 0, 1, 0, 0, 0]);
        // RECFMT 41:40, QID 43:42, SQSIZE 45:44, CATTR 46, KATO 51:48.
        assert_eq!(bytes[40..52], [0, 0, 2, 1, 4, 3, 4, 0, 8, 7, 6, 5]);
    }

    #[test]
    fn property_bytes() {
        let bytes = Sqe::property_set(0x14, false, 0x0046_0001).to_bytes();
        assert_eq!((bytes[4], bytes[40]), (0, 0));
        assert_eq!(bytes[44..56], [0x14, 0, 0, 0, 1, 0, 0x46, 0, 0, 0, 0, 0]);
        let bytes = Sqe::property_get(0, true).to_bytes();
        assert_eq!((bytes[4], bytes[40]), (4, 1));
    }

    #[test]
    fn read_write_round_trip_and_bits() {
        let all = ReadWrite {
            slba: 0x0102_0304_0506_0708,
            blocks: 0x1_0000,
            fua: true,
            limited_retry: true,
            prinfo: Prinfo(0b1010),
            storage_tag_check: true,
            deallocate: true,
            namespace_zeroes: true,
            directive: 0b1000,
        };
        assert_eq!(ReadWrite::of(&all.to_sqe(io::WRITE_ZEROES, 1)), all);
        let fua = ReadWrite { fua: true, ..ReadWrite::new(7, 8) }.to_sqe(io::WRITE, 3);
        assert_eq!((fua.nsid(), fua.cdw10(), fua.cdw11(), fua.cdw12()), (3, 7, 0, 0x4000_0007));
        let deac = ReadWrite { deallocate: true, ..ReadWrite::new(0, 1) }.to_sqe(io::WRITE_ZEROES, 1);
        assert_eq!(deac.cdw12(), 0x0200_0000);
    }

    #[test]
    fn log_page_round_trip() {
        let sqe = Sqe::get_log_page(0x70, 0, 0x1_0000_0010, 0x8_0000, true);
        assert_eq!((sqe.cdw10(), sqe.cdw11()), (0xFFFF_8070, 1));
        let log = GetLogPage::of(&sqe);
        assert_eq!((log.lid, log.rae, log.len, log.offset), (0x70, true, 0x8_0000, 0x1_0000_0010));
        let most = GetLogPage::of(&Sqe::new(2).with_cdw(10, u32::MAX).with_cdw(11, u32::MAX));
        assert_eq!(most.len, 1 << 34, "the largest NUMD does not wrap");
    }

    #[test]
    fn the_other_builders_are_read_back() {
        let sqe = Sqe::identify(5, 7, 2);
        assert_eq!(Identify::of(&sqe), Identify { cns: 5, cntid: 0, cnssid: 0, csi: 2 });
        assert_eq!((sqe.nsid(), sqe.sgl.length()), (7, 4096));
        assert_eq!(Abort::of(&Sqe::abort(3, 0xABCD)), Abort { sqid: 3, cid: 0xABCD });
        let reset = Sqe::cross_controller_reset(0xABCD, 0x12, 0x0102_0304_0506_0708);
        assert_eq!((reset.cdw10(), reset.cdw12(), reset.cdw13()), (0x0012_ABCD, 0x0506_0708, 0x0102_0304));
        let fields = CrossControllerReset { icid: 0xABCD, ciu: 0x12, cirn: 0x0102_0304_0506_0708 };
        assert_eq!(CrossControllerReset::of(&reset), fields);
        let set = Features::of(&Sqe::set_features(7, 0, 0, true));
        assert!(set.save && set.fid == 7);
        assert_eq!(Features::of(&Sqe::get_features(0x0F, 0, 3)).select, Select::Supported);
        let dsm = DatasetManagement::of(&Sqe::deallocate(1, 256));
        assert_eq!((dsm.ranges, dsm.deallocate), (256, true));
    }
}
