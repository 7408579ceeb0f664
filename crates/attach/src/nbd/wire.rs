//! Numbers and structures of the NBD protocol, as `doc/proto.md` of the NBD
//! project has them: fixed newstyle negotiation, simple and structured
//! replies. All numbers are big endian.

use longhaul_block::IoError;

/// The first 8 bytes of the server: "NBDMAGIC".
pub(super) const INIT: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": precedes an option, and follows the first magic.
pub(super) const OPTION: u64 = 0x4948_4156_454f_5054;
/// Precedes a reply to an option.
pub(super) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST: u32 = 0x2560_9513;
pub(super) const SIMPLE_REPLY: u32 = 0x6744_6698;
pub(super) const STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// Flags of the negotiation: fixed newstyle; no zeroes after `EXPORT_NAME`.
pub(super) const FIXED_NEWSTYLE: u16 = 1;
pub(super) const NO_ZEROES: u16 = 2;

/// Options of the handshake (`NBD_OPT_*`).
pub(super) mod opt {
    pub(in crate::nbd) const EXPORT_NAME: u32 = 1;
    pub(in crate::nbd) const ABORT: u32 = 2;
    pub(in crate::nbd) const LIST: u32 = 3;
    pub(in crate::nbd) const INFO: u32 = 6;
    pub(in crate::nbd) const GO: u32 = 7;
    pub(in crate::nbd) const STRUCTURED_REPLY: u32 = 8;
    pub(in crate::nbd) const LIST_META_CONTEXT: u32 = 9;
    pub(in crate::nbd) const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub(super) mod rep {
    pub(in crate::nbd) const ACK: u32 = 1;
    pub(in crate::nbd) const SERVER: u32 = 2;
    pub(in crate::nbd) const INFO: u32 = 3;
    pub(in crate::nbd) const META_CONTEXT: u32 = 4;
    pub(in crate::nbd) const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub(in crate::nbd) const ERR_INVALID: u32 = 1 << 31 | 3;
    pub(in crate::nbd) const ERR_UNKNOWN: u32 = 1 << 31 | 6;
}

/// Kinds of information about an export.
pub(super) mod info {
    pub(in crate::nbd) const EXPORT: u16 = 0;
    pub(in crate::nbd) const NAME: u16 = 1;
    pub(in crate::nbd) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: features of an export.
pub(super) mod can {
    pub(in crate::nbd) const HAS_FLAGS: u16 = 1;
    pub(in crate::nbd) const READ_ONLY: u16 = 1 << 1;
    pub(in crate::nbd) const FLUSH: u16 = 1 << 2;
    pub(in crate::nbd) const FUA: u16 = 1 << 3;
    pub(in crate::nbd) const TRIM: u16 = 1 << 5;
    pub(in crate::nbd) const WRITE_ZEROES: u16 = 1 << 6;
    pub(in crate::nbd) const DF: u16 = 1 << 7;
    pub(in crate::nbd) const MULTI_CONN: u16 = 1 << 8;
}

/// Commands of the transmission phase (`NBD_CMD_*`).
pub(super) mod cmd {
    pub(in crate::nbd) const READ: u16 = 0;
    pub(in crate::nbd) const WRITE: u16 = 1;
    pub(in crate::nbd) const DISC: u16 = 2;
    pub(in crate::nbd) const FLUSH: u16 = 3;
    pub(in crate::nbd) const TRIM: u16 = 4;
    pub(in crate::nbd) const WRITE_ZEROES: u16 = 6;
    pub(in crate::nbd) const BLOCK_STATUS: u16 = 7;
}

/// The metadata context for allocation, the prefix of names of that namespace, and its number in
/// replies.
pub(super) mod allocation {
    pub(in crate::nbd) const NAME: &[u8] = b"base:allocation";
    pub(in crate::nbd) const NAMESPACE: &[u8] = b"base:";
    pub(in crate::nbd) const ID: u32 = 1;
    /// Neither a hole nor known to read as zeroes, which is always true.
    pub(in crate::nbd) const DATA: u32 = 0;
}

/// Flags of commands.
pub(super) mod flag {
    pub(in crate::nbd) const FUA: u16 = 1;
    pub(in crate::nbd) const NO_HOLE: u16 = 1 << 1;
    pub(in crate::nbd) const DF: u16 = 1 << 2;
    pub(in crate::nbd) const REQ_ONE: u16 = 1 << 3;
}

/// Chunks of a structured reply.
pub(super) mod chunk {
    pub(in crate::nbd) const DONE: u16 = 1;
    pub(in crate::nbd) const OFFSET_DATA: u16 = 1;
    pub(in crate::nbd) const BLOCK_STATUS: u16 = 5;
    pub(in crate::nbd) const ERROR: u16 = 1 << 15 | 1;
}

/// Errors, by the protocol's numbers.
pub(super) mod error {
    pub(in crate::nbd) const EPERM: u32 = 1;
    pub(in crate::nbd) const EIO: u32 = 5;
    pub(in crate::nbd) const EINVAL: u32 = 22;
    pub(in crate::nbd) const ENOSPC: u32 = 28;
    pub(in crate::nbd) const EOVERFLOW: u32 = 75;
    pub(in crate::nbd) const ENOTSUP: u32 = 95;
}

/// The number for an error of a device.
pub(super) fn error_of(e: &IoError) -> u32 {
    match e {
        IoError::OutOfRange { .. } | IoError::NoSpace => error::ENOSPC,
        IoError::Unaligned { .. } => error::EINVAL,
        IoError::ReadOnly => error::EPERM,
        IoError::Unsupported(_) => error::ENOTSUP,
        _ => error::EIO,
    }
}

/// Length of a request in bytes.
pub(super) const REQUEST_LEN: usize = 28;

/// A request without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NbdRequest {
    pub(super) flags: u16,
    pub(super) kind: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl NbdRequest {
    /// Parses a request; `None` if its magic is wrong.
    pub(super) fn parse(bytes: &[u8; REQUEST_LEN]) -> Option<NbdRequest> {
        let mut at = Fields(bytes);
        (at.u32()? == REQUEST).then_some(())?;
        Some(NbdRequest {
            flags: at.u16()?,
            kind: at.u16()?,
            cookie: at.u64()?,
            offset: at.u64()?,
            len: at.u32()?,
        })
    }
}

/// Appends numbers in order.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.number().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.number().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.number().map(u64::from_be_bytes)
    }
}

/// A reply to an option.
pub(super) fn option_reply(option: u32, reply: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OPTION_REPLY.to_be_bytes().to_vec();
    out.extend(option.to_be_bytes());
    out.extend(reply.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

/// A simple reply; the data of a read follows.
pub(super) fn simple(cookie: u64, error: u32) -> Vec<u8> {
    let mut out = SIMPLE_REPLY.to_be_bytes().to_vec();
    out.extend(error.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out
}

/// The header of the only chunk of a structured reply; the data of a read follows.
pub(super) fn structured(cookie: u64, kind: u16, data: &[u8], more: u32) -> Vec<u8> {
    let mut out = STRUCTURED_REPLY.to_be_bytes().to_vec();
    out.extend(chunk::DONE.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend((data.len() as u32 + more).to_be_bytes());
    out.extend(data);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_others_are_not() {
        let mut bytes = [0; REQUEST_LEN];
        assert_eq!(NbdRequest::parse(&bytes), None);
        bytes[..4].copy_from_slice(&REQUEST.to_be_bytes());
        bytes[5] = 1;
        bytes[7] = 6;
        bytes[15] = 9;
        bytes[22] = 1;
        bytes[27] = 8;
        let expected = NbdRequest { flags: 1, kind: 6, cookie: 9, offset: 256, len: 8 };
        assert_eq!(NbdRequest::parse(&bytes), Some(expected));
    }

    #[test]
    fn fields_end_where_the_bytes_do() {
        let mut fields = Fields(&[0, 1, 0, 0, 0, 2, 7]);
        assert_eq!((fields.u16(), fields.u32(), fields.u16()), (Some(1), Some(2), None));
        assert_eq!((fields.bytes(2), fields.bytes(1)), (None, Some(&[7][..])));
    }
}
