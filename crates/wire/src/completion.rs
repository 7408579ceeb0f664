//! Completion queue entries (16 bytes) and status codes.

use std::fmt;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use crate::status::Status;

/// Length of a completion queue entry in bytes.
pub const CQE_LEN: usize = 16;

/// A completion queue entry ("Common Completion Queue Entry Layout").
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Cqe {
    dw0: U32,
    dw1: U32,
    sqhd: U16,
    sqid: U16,
    cid: U16,
    status: U16,
}

impl Cqe {
    /// A completion of `cid` with `status`; result dwords and queue fields are 0.
    pub fn new(cid: u16, status: Status) -> Cqe {
        Cqe {
            dw0: 0.into(),
            dw1: 0.into(),
            sqhd: 0.into(),
            sqid: 0.into(),
            cid: cid.into(),
            status: status.to_wire().into(),
        }
    }

    /// Reads an entry from the first 16 bytes; `None` if there are fewer.
    pub fn read(bytes: &[u8]) -> Option<Cqe> {
        Cqe::read_from_prefix(bytes).ok().map(|(cqe, _)| cqe)
    }

    /// The 16 bytes as they go over the wire.
    pub fn to_bytes(&self) -> [u8; CQE_LEN] {
        zerocopy::transmute!(*self)
    }

    /// Dword 0: the command's result.
    pub fn dw0(&self) -> u32 {
        self.dw0.get()
    }

    /// Dword 1, the upper half of the command's result.
    pub fn dw1(&self) -> u32 {
        self.dw1.get()
    }

    /// Dwords 1 and 0 as one number.
    pub fn result(&self) -> u64 {
        u64::from(self.dw1()) << 32 | u64::from(self.dw0())
    }

    /// Submission queue head pointer.
    pub fn sqhd(&self) -> u16 {
        self.sqhd.get()
    }

    /// Submission queue identifier (reserved in Fabrics).
    pub fn sqid(&self) -> u16 {
        self.sqid.get()
    }

    /// CID: the identifier of the command in its queue.
    pub fn cid(&self) -> u16 {
        self.cid.get()
    }

    /// Status field, without the phase tag.
    pub fn status(&self) -> Status {
        Status::from_wire(self.status.get())
    }

    /// The same entry with dwords 0 and 1.
    #[must_use]
    pub fn with_result(mut self, result: u64) -> Cqe {
        self.dw0.set(result as u32);
        self.dw1.set((result >> 32) as u32);
        self
    }

    /// The same entry with this submission queue head pointer (FFFFh where
    /// flow control is off).
    #[must_use]
    pub fn with_sqhd(mut self, sqhd: u16) -> Cqe {
        self.sqhd.set(sqhd);
        self
    }
}

impl fmt::Debug for Cqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Cqe {{ cid: {}, status: {}, result: {:X}h, sqhd: {:X}h }}",
            self.cid(),
            self.status(),
            self.result(),
            self.sqhd()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_sit_at_their_bytes() {
        let bytes: [u8; 16] = std::array::from_fn(|i| i as u8);
        let cqe = Cqe::read(&bytes).expect("16 bytes");
        assert_eq!((cqe.dw0(), cqe.dw1()), (0x0302_0100, 0x0706_0504));
        assert_eq!((cqe.sqhd(), cqe.sqid(), cqe.cid()), (0x0908, 0x0B0A, 0x0D0C));
        assert_eq!(cqe.result(), 0x0706_0504_0302_0100);
        assert_eq!(cqe.to_bytes(), bytes);
        assert!(Cqe::read(&bytes[1..]).is_none());
    }

    #[test]
    fn status_sits_above_the_phase_bit() {
        let cqe = Cqe::new(5, Status::INVALID_FIELD.dnr()).with_result(1 << 32 | 2).with_sqhd(7);
        let expected = [2, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 5, 0, 0x04, 0x80];
        assert_eq!(cqe.to_bytes(), expected);
        assert_eq!(Cqe::read(&expected).expect("16 bytes").status(), Status::INVALID_FIELD.dnr());
    }
}
