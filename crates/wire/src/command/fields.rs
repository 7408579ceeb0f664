//! Typed views of the command dwords of one command.

use super::Sqe;

/// Set Features, dword 10: keep the value over a reset (bit 31).
pub const FEATURE_SAVE: u32 = 1 << 31;

fn u64_of(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Protection information bits of an I/O command (dword 12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prinfo(pub u8);

/// Read, Write, Compare, Verify and Write Zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadWrite {
    /// First logical block.
    pub slba: u64,
    /// Logical blocks, counted from 1 (the field on the wire counts from 0).
    pub blocks: u32,
    /// Force Unit Access.
    pub fua: bool,
    /// LR: the controller limits its retries.
    pub limited_retry: bool,
    /// PRINFO, bits 29:26 of dword 12.
    pub prinfo: Prinfo,
    /// Storage Tag Check, bit 24 of dword 12.
    pub storage_tag_check: bool,
    /// Write Zeroes: Deallocate, bit 25 of dword 12.
    pub deallocate: bool,
    /// Write Zeroes: Namespace Zeroes, bit 23 of dword 12.
    pub namespace_zeroes: bool,
    /// Write: Directive Type, bits 23:20 of dword 12.
    pub directive: u8,
}

impl ReadWrite {
    /// Reads the fields.
    pub fn of(sqe: &Sqe) -> ReadWrite {
        let cdw12 = sqe.cdw12();
        ReadWrite {
            slba: u64_of(sqe.cdw10(), sqe.cdw11()),
            blocks: (cdw12 & 0xFFFF) + 1,
            fua: cdw12 & 1 << 30 != 0,
            limited_retry: cdw12 & 1 << 31 != 0,
            prinfo: Prinfo((cdw12 >> 26 & 0xF) as u8),
            storage_tag_check: cdw12 & 1 << 24 != 0,
            deallocate: cdw12 & 1 << 25 != 0,
            namespace_zeroes: cdw12 & 1 << 23 != 0,
            directive: (cdw12 >> 20 & 0xF) as u8,
        }
    }
}

/// Fields of a Dataset Management command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// Ranges, counted from 1.
    pub ranges: u16,
    /// AD: the ranges may be deallocated.
    pub deallocate: bool,
}

impl DatasetManagement {
    /// Reads the fields.
    pub fn of(sqe: &Sqe) -> DatasetManagement {
        DatasetManagement { ranges: (sqe.cdw10() & 0xFF) as u16 + 1, deallocate: sqe.cdw11() & 1 << 2 != 0 }
    }
}

/// Fields of an Identify command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// Which data structure.
    pub cns: u8,
    /// CNTID: the controller that the structure is of.
    pub cntid: u16,
    /// CNS specific identifier.
    pub cnssid: u16,
    /// Command set identifier.
    pub csi: u8,
}

impl Identify {
    /// Reads the fields.
    pub fn of(sqe: &Sqe) -> Identify {
        Identify {
            cns: sqe.cdw10() as u8,
            cntid: (sqe.cdw10() >> 16) as u16,
            cnssid: sqe.cdw11() as u16,
            csi: (sqe.cdw11() >> 24) as u8,
        }
    }
}

/// Get Log Page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Log page identifier.
    pub lid: u8,
    /// Log specific parameter (7 bits).
    pub lsp: u8,
    /// Retain Asynchronous Event.
    pub rae: bool,
    /// Bytes to transfer: 4 × (NUMD + 1).
    pub len: u64,
    /// Log specific identifier.
    pub lsi: u16,
    /// Where to begin: a byte offset, or an index if `index_offset`.
    pub offset: u64,
    /// Offset Type: the offset is an index.
    pub index_offset: bool,
    /// UUID index, 0 for none.
    pub uuid_index: u8,
    /// Command set identifier.
    pub csi: u8,
}

impl GetLogPage {
    /// Reads the fields.
    pub fn of(sqe: &Sqe) -> GetLogPage {
        let (cdw10, cdw11, cdw14) = (sqe.cdw10(), sqe.cdw11(), sqe.cdw14());
        let numd = u64::from(cdw10 >> 16) | u64::from(cdw11 & 0xFFFF) << 16;
        GetLogPage {
            lid: cdw10 as u8,
            lsp: (cdw10 >> 8 & 0x7F) as u8,
            rae: cdw10 & 1 << 15 != 0,
            len: (numd + 1) * 4,
            lsi: (cdw11 >> 16) as u16,
            offset: u64_of(sqe.cdw12(), sqe.cdw13()),
            index_offset: cdw14 & 1 << 23 != 0,
            uuid_index: (cdw14 & 0x7F) as u8,
            csi: (cdw14 >> 24) as u8,
        }
    }
}

/// Which value Get Features asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// The value in force.
    Current,
    /// The value after a reset, if none was saved.
    Default,
    /// The value that was saved.
    Saved,
    /// Whether the feature can be saved and changed, and its scope.
    Supported,
    /// A value of SEL that means nothing.
    Reserved,
}

/// Get Features and Set Features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// FID: the feature, as [`crate::feature::fid`] lists them.
    pub fid: u8,
    /// Get Features: which value.
    pub select: Select,
    /// Set Features: save.
    pub save: bool,
}

impl Features {
    /// Reads the fields.
    pub fn of(sqe: &Sqe) -> Features {
        let select = match sqe.cdw10() >> 8 & 0b111 {
            0 => Select::Current,
            1 => Select::Default,
            2 => Select::Saved,
            3 => Select::Supported,
            _ => Select::Reserved,
        };
        Features { fid: sqe.cdw10() as u8, select, save: sqe.cdw10() & FEATURE_SAVE != 0 }
    }
}

/// Fields of an Abort command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Queue of the command to abort.
    pub sqid: u16,
    /// Identifier of the command to abort.
    pub cid: u16,
}

impl Abort {
    /// Reads the fields.
    pub fn of(sqe: &Sqe) -> Abort {
        Abort { sqid: sqe.cdw10() as u16, cid: (sqe.cdw10() >> 16) as u16 }
    }
}

/// Cross-Controller Reset: ends another controller of the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossControllerReset {
    /// Identifier of the impacted controller.
    pub icid: u16,
    /// Its Controller Instance Uniquifier.
    pub ciu: u8,
    /// Its Controller Instance Random Number.
    pub cirn: u64,
}

impl CrossControllerReset {
    /// Bit 0 of dword 0 of the completion: the reset is done already.
    pub const DONE: u32 = 1;

    /// Reads the fields.
    pub fn of(sqe: &Sqe) -> CrossControllerReset {
        CrossControllerReset {
            icid: sqe.cdw10() as u16,
            ciu: (sqe.cdw10() >> 16) as u8,
            cirn: u64_of(sqe.cdw12(), sqe.cdw13()),
        }
    }
}
