//! The PDUs of NVMe/TCP: views, constructors and the checks that need
//! nothing but the common header.
//!
//! Every PDU starts with a [`CommonHeader`]; what follows is, in this order:
//! the rest of the header up to `HLEN`, a header digest, padding up to `PDO`,
//! data, a data digest (NVMe-TCP 1.1, "PDU structure"). Multi-byte fields are
//! little-endian, and the views have no alignment, so they can be laid over
//! any received bytes.

use std::fmt;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::digest::DIGEST_LEN;

mod layout;
pub use layout::{Format, InvalidField, Layout};

/// Bytes of the common header.
pub const COMMON_LEN: usize = 8;
/// Bytes of ICReq and ICResp.
pub const IC_LEN: usize = 128;
/// Bytes of a CapsuleCmd header: the common header and a submission queue entry.
pub const CAPSULE_CMD_LEN: usize = 72;
/// Bytes of a CapsuleResp: the common header and a completion queue entry.
pub const CAPSULE_RESP_LEN: usize = 24;
/// Bytes of the header of H2CData and C2HData, and of R2T.
pub const DATA_LEN: usize = 24;
/// Bytes of the header of H2CTermReq and C2HTermReq.
pub const TERM_REQ_LEN: usize = 24;
/// The most bytes of the offending PDU that a TermReq carries.
pub const TERM_REQ_DATA_MAX: usize = 128;
/// The longest header of any PDU, digest included.
pub const HEADER_MAX: usize = IC_LEN + DIGEST_LEN;
/// The longest header that carries data, digest and the widest padding included.
pub const PDO_MAX: usize = 144;
/// The most data that this implementation puts in one PDU, in bytes, whatever
/// the peer allows: PLEN, which counts header, padding and digests too, has
/// 32 bits.
pub const DATA_MAX: u32 = 1 << 30;
/// The largest value of HPDA and CPDA (0's based, in units of four bytes).
pub const ALIGN_MAX: u8 = 31;
/// The smallest MAXH2CDATA that a controller may ask for, in bytes.
pub const MAXH2CDATA_MIN: u32 = 4096;
/// The one version of the PDU format (PFV) that exists.
pub const PFV_1_0: u16 = 0;
/// Bit of [`IcReq::dgst`] and [`IcResp::dgst`]: header digests.
pub const DGST_HEADER: u8 = 1 << 0;
/// Bit of [`IcReq::dgst`] and [`IcResp::dgst`]: data digests.
pub const DGST_DATA: u8 = 1 << 1;

/// Bits of the FLAGS field.
pub mod flags {
    /// A header digest is there.
    pub const HDGST: u8 = 1 << 0;
    /// A data digest is there.
    pub const DDGST: u8 = 1 << 1;
    /// The last data PDU of a transfer.
    pub const LAST_PDU: u8 = 1 << 2;
    /// C2HData only: the command succeeded and no CapsuleResp follows.
    pub const SUCCESS: u8 = 1 << 3;
}

/// Byte offsets of header fields, as a TermReq names them in FEI.
pub mod field {
    /// Offset of PDU-Type.
    pub const TYPE: u32 = 0;
    /// Offset of FLAGS.
    pub const FLAGS: u32 = 1;
    /// Offset of HLEN.
    pub const HLEN: u32 = 2;
    /// Offset of PDO.
    pub const PDO: u32 = 3;
    /// Offset of PLEN.
    pub const PLEN: u32 = 4;
    /// PFV of ICReq and ICResp.
    pub const PFV: u32 = 8;
    /// HPDA of ICReq, CPDA of ICResp.
    pub const PDA: u32 = 10;
    /// DGST of ICReq and ICResp.
    pub const DGST: u32 = 11;
    /// MAXH2CDATA of ICResp.
    pub const MAXH2CDATA: u32 = 12;
    /// CCCID of data PDUs and R2T; the CID of a CapsuleResp is at 20.
    pub const CCCID: u32 = 8;
    /// TTAG of H2CData and R2T.
    pub const TTAG: u32 = 10;
    /// DATAO of data PDUs, R2TO of R2T.
    pub const OFFSET: u32 = 12;
    /// DATAL of data PDUs, R2TL of R2T.
    pub const LENGTH: u32 = 16;
    /// CID within the completion queue entry of a CapsuleResp.
    pub const RESP_CID: u32 = 20;
}

/// PDU-Type: what a PDU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PduType {
    /// Initialize connection request, by the host.
    IcReq = 0x00,
    /// Initialize connection response, by the controller.
    IcResp = 0x01,
    /// The host ends the connection.
    H2CTermReq = 0x02,
    /// The controller ends the connection.
    C2HTermReq = 0x03,
    /// Command capsule, from the host.
    CapsuleCmd = 0x04,
    /// Response capsule, from the controller.
    CapsuleResp = 0x05,
    /// Data from the host.
    H2CData = 0x06,
    /// Data from the controller.
    C2HData = 0x07,
    /// Ready to transfer: the controller asks for data.
    R2T = 0x09,
}

impl PduType {
    /// The type with this code.
    pub const fn from_code(code: u8) -> Option<PduType> {
        Some(match code {
            0x00 => PduType::IcReq,
            0x01 => PduType::IcResp,
            0x02 => PduType::H2CTermReq,
            0x03 => PduType::C2HTermReq,
            0x04 => PduType::CapsuleCmd,
            0x05 => PduType::CapsuleResp,
            0x06 => PduType::H2CData,
            0x07 => PduType::C2HData,
            0x09 => PduType::R2T,
            _ => return None,
        })
    }

    /// The only valid HLEN of the type.
    pub const fn hlen(self) -> usize {
        match self {
            PduType::IcReq | PduType::IcResp => IC_LEN,
            PduType::CapsuleCmd => CAPSULE_CMD_LEN,
            _ => 24,
        }
    }

    /// Whether only hosts send it.
    pub const fn from_host(self) -> bool {
        matches!(self, PduType::IcReq | PduType::H2CTermReq | PduType::CapsuleCmd | PduType::H2CData)
    }

    /// Whether it can carry digests: all but those that set up and end.
    pub const fn has_digests(self) -> bool {
        (self as u8) >= PduType::CapsuleCmd as u8
    }

    /// Whether it can carry data at PDO.
    pub const fn has_data(self) -> bool {
        matches!(self, PduType::CapsuleCmd | PduType::H2CData | PduType::C2HData)
    }
}

/// Fatal error status of a TermReq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Fes {
    /// A field of the header is invalid; FEI is its byte offset.
    InvalidHeaderField = 0x01,
    /// The PDU was not expected at this point.
    SequenceError = 0x02,
    /// The header digest does not match; FEI is the digest received.
    HeaderDigestError = 0x03,
    /// Data outside of the requested range.
    DataOutOfRange = 0x04,
    /// To the host: more data in a PDU than MAXH2CDATA. To the controller:
    /// more R2Ts than MAXR2T.
    LimitExceeded = 0x05,
    /// A parameter is not supported; FEI is its byte offset.
    UnsupportedParameter = 0x06,
}

impl Fes {
    /// The status with this code.
    pub const fn from_code(code: u16) -> Option<Fes> {
        Some(match code {
            0x01 => Fes::InvalidHeaderField,
            0x02 => Fes::SequenceError,
            0x03 => Fes::HeaderDigestError,
            0x04 => Fes::DataOutOfRange,
            0x05 => Fes::LimitExceeded,
            0x06 => Fes::UnsupportedParameter,
            _ => return None,
        })
    }
}

impl fmt::Display for Fes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fes::InvalidHeaderField => "invalid PDU header field",
            Fes::SequenceError => "PDU sequence error",
            Fes::HeaderDigestError => "header digest error",
            Fes::DataOutOfRange => "data transfer out of range",
            Fes::LimitExceeded => "data transfer or R2T limit exceeded",
            Fes::UnsupportedParameter => "unsupported parameter",
        })
    }
}

/// The first eight bytes of every PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommonHeader {
    /// PDU-Type: a [`PduType`].
    pub pdu_type: u8,
    /// FLAGS: bits of [`flags`].
    pub flags: u8,
    /// HLEN: header length in bytes, without digest.
    pub hlen: u8,
    /// PDO: offset of the data from the start of the PDU, in bytes.
    pub pdo: u8,
    /// PLEN: length of the whole PDU in bytes, digests and padding included.
    pub plen: U32,
}

/// Initialize connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IcReq {
    /// The 8 bytes that all PDUs begin with.
    pub common: CommonHeader,
    /// PFV: version of the PDU format.
    pub pfv: U16,
    /// HPDA: alignment of data towards the host, 0's based, in four bytes.
    pub hpda: u8,
    /// DGST: digests that the host wants.
    pub dgst: u8,
    /// MAXR2T: outstanding R2Ts per command that the host takes, 0's based.
    pub maxr2t: U32,
    reserved: [u8; 112],
}

impl IcReq {
    /// A request in format 1.0.
    pub fn new(hpda: u8, dgst: u8, maxr2t: u32) -> IcReq {
        let common = CommonHeader::bare(PduType::IcReq, IC_LEN as u32);
        IcReq { common, pfv: PFV_1_0.into(), hpda, dgst, maxr2t: maxr2t.into(), reserved: [0; 112] }
    }
}

/// Initialize connection response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IcResp {
    /// The 8 bytes that all PDUs begin with.
    pub common: CommonHeader,
    /// PFV: version of the PDU format.
    pub pfv: U16,
    /// CPDA: alignment of data towards the controller, 0's based, in four bytes.
    pub cpda: u8,
    /// DGST: digests that will be used.
    pub dgst: u8,
    /// MAXH2CDATA: the most data of one H2CData PDU, in bytes.
    pub maxh2cdata: U32,
    reserved: [u8; 112],
}

impl IcResp {
    /// A response in format 1.0.
    pub fn new(cpda: u8, dgst: u8, maxh2cdata: u32) -> IcResp {
        let common = CommonHeader::bare(PduType::IcResp, IC_LEN as u32);
        IcResp { common, pfv: PFV_1_0.into(), cpda, dgst, maxh2cdata: maxh2cdata.into(), reserved: [0; 112] }
    }
}

/// Header of H2CTermReq and C2HTermReq; the start of the offending PDU follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TermReq {
    /// The 8 bytes that all PDUs begin with.
    pub common: CommonHeader,
    /// FES: a [`Fes`].
    pub fes: U16,
    /// FEI: depends on FES.
    pub fei: U32,
    reserved: [u8; 10],
}

impl TermReq {
    /// A request of this type that quotes `quoted` bytes of the offending PDU.
    pub fn new(pdu_type: PduType, fes: Fes, fei: u32, quoted: usize) -> TermReq {
        let plen = (TERM_REQ_LEN + quoted) as u32;
        let mut common = CommonHeader::bare(pdu_type, plen);
        common.hlen = TERM_REQ_LEN as u8;
        TermReq { common, fes: (fes as u16).into(), fei: fei.into(), reserved: [0; 10] }
    }
}

/// Header of a command capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CapsuleCmd {
    /// The 8 bytes that all PDUs begin with.
    pub common: CommonHeader,
    /// The submission queue entry.
    pub sqe: [u8; 64],
}

/// A response capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CapsuleResp {
    /// The 8 bytes that all PDUs begin with.
    pub common: CommonHeader,
    /// The completion queue entry.
    pub cqe: [u8; 16],
}

/// Header of H2CData, C2HData and R2T, which share a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DataPdu {
    /// The 8 bytes that all PDUs begin with.
    pub common: CommonHeader,
    /// CCCID: the command.
    pub cccid: U16,
    /// TTAG: the R2T (H2CData and R2T; reserved in C2HData).
    pub ttag: U16,
    /// DATAO or R2TO: offset within the command's data, in bytes.
    pub offset: U32,
    /// DATAL or R2TL: length in bytes.
    pub length: U32,
    reserved: U32,
}

impl DataPdu {
    /// A header with these fields after `common`.
    pub fn new(common: CommonHeader, cccid: u16, ttag: u16, offset: u32, length: u32) -> DataPdu {
        DataPdu {
            common,
            cccid: cccid.into(),
            ttag: ttag.into(),
            offset: offset.into(),
            length: length.into(),
            reserved: U32::ZERO,
        }
    }
}

#[cfg(test)]
mod tests;
