//! Submission queue entries: 64 bytes that carry one command.
//!
//! [`Sqe`] is both the checked view (any 64 bytes are an `Sqe`) and the thing
//! that the builders in this module return. Field positions are those of the
//! figure "Common Command Format" (NVMe Base 2.1); the fields of one command
//! are read with the typed views ([`ReadWrite`], [`GetLogPage`], ...).

mod build;
mod fields;
mod opcode;
mod sgl;

pub use build::DsmRange;
pub use fields::{
    Abort, CrossControllerReset, DatasetManagement, FEATURE_SAVE, Features, GetLogPage, Identify, Prinfo,
    ReadWrite, Select,
};
pub use opcode::{Direction, admin, fctype, io, is_fabrics, opcode_name};
pub use sgl::{Sgl, SglKind};

use std::fmt;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a submission queue entry in bytes.
pub const SQE_LEN: usize = 64;

/// The NSID that stands for every namespace.
pub const NSID_ALL: u32 = 0xFFFF_FFFF;

/// Byte 1 of a command that uses an SGL for its data (PSDT 01b), the only
/// form that message-based transports allow.
pub const FLAGS_SGL: u8 = 0b01 << 6;

/// A submission queue entry.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Sqe {
    /// Opcode (byte 0).
    pub opcode: u8,
    /// FUSE (bits 1:0) and PSDT (bits 7:6) (byte 1).
    pub flags: u8,
    cid: U16,
    nsid: U32,
    cdw2: U32,
    cdw3: U32,
    mptr: U64,
    /// The data pointer as one SGL descriptor (bytes 24 to 39).
    pub sgl: Sgl,
    cdw: [U32; 6],
}

impl Sqe {
    /// A command with nothing set but its opcode and the SGL form of the data
    /// pointer; the SGL is that of a command without data.
    pub fn new(opcode: u8) -> Sqe {
        let mut sqe = Sqe::new_zeroed();
        sqe.opcode = opcode;
        sqe.flags = FLAGS_SGL;
        sqe.sgl = Sgl::none();
        sqe
    }

    /// Reads a command from the first 64 bytes; `None` if there are fewer.
    pub fn read(bytes: &[u8]) -> Option<Sqe> {
        Sqe::read_from_prefix(bytes).ok().map(|(sqe, _)| sqe)
    }

    /// The 64 bytes as they go over the wire.
    pub fn to_bytes(&self) -> [u8; SQE_LEN] {
        zerocopy::transmute!(*self)
    }

    /// CID: the identifier of the command in its queue.
    pub fn cid(&self) -> u16 {
        self.cid.get()
    }

    /// Namespace identifier (not for Fabrics commands, whose type is there).
    pub fn nsid(&self) -> u32 {
        self.nsid.get()
    }

    /// Fabrics command type: byte 4 of a command with opcode 7Fh.
    pub fn fctype(&self) -> u8 {
        self.nsid.get() as u8
    }

    /// FUSE: 00b for a command on its own.
    pub fn fuse(&self) -> u8 {
        self.flags & 0b11
    }

    /// PSDT: 00b PRPs, 01b SGL, 10b SGL with metadata SGL.
    pub fn psdt(&self) -> u8 {
        self.flags >> 6
    }

    /// Command dword 2.
    pub fn cdw2(&self) -> u32 {
        self.cdw2.get()
    }

    /// Command dword 3.
    pub fn cdw3(&self) -> u32 {
        self.cdw3.get()
    }

    /// MPTR: the metadata pointer, which fabrics do not use.
    pub fn mptr(&self) -> u64 {
        self.mptr.get()
    }

    /// Command dword 10.
    pub fn cdw10(&self) -> u32 {
        self.cdw[0].get()
    }

    /// Command dword 11.
    pub fn cdw11(&self) -> u32 {
        self.cdw[1].get()
    }

    /// Command dword 12.
    pub fn cdw12(&self) -> u32 {
        self.cdw[2].get()
    }

    /// Command dword 13.
    pub fn cdw13(&self) -> u32 {
        self.cdw[3].get()
    }

    /// Command dword 14.
    pub fn cdw14(&self) -> u32 {
        self.cdw[4].get()
    }

    /// Command dword 15.
    pub fn cdw15(&self) -> u32 {
        self.cdw[5].get()
    }

    /// The same command under another identifier.
    #[must_use]
    pub fn with_cid(mut self, cid: u16) -> Sqe {
        self.cid.set(cid);
        self
    }

    /// The same command for a namespace.
    #[must_use]
    pub fn with_nsid(mut self, nsid: u32) -> Sqe {
        self.nsid.set(nsid);
        self
    }

    /// The same command with this data pointer.
    #[must_use]
    pub fn with_sgl(mut self, sgl: Sgl) -> Sqe {
        self.sgl = sgl;
        self
    }

    /// The same command with command dword `n` (2, 3, or 10 to 15) set.
    ///
    /// # Panics
    /// If there is no such dword.
    #[must_use]
    pub fn with_cdw(mut self, n: usize, value: u32) -> Sqe {
        match n {
            2 => self.cdw2.set(value),
            3 => self.cdw3.set(value),
            10..=15 => self.cdw[n - 10].set(value),
            _ => panic!("no command dword {n} to set"),
        }
        self
    }
}

impl fmt::Debug for Sqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqe {{ opcode: {:02X}h, cid: {}, ", self.opcode, self.cid())?;
        if is_fabrics(self.opcode) {
            write!(f, "fctype: {:02X}h, ", self.fctype())?;
        } else {
            write!(f, "nsid: {}, ", self.nsid())?;
        }
        write!(f, "sgl: {:?}, cdw10..15: {:X?} }}", self.sgl, self.cdw.map(U32::get))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered() -> [u8; SQE_LEN] {
        std::array::from_fn(|i| i as u8)
    }

    #[test]
    fn fields_sit_at_their_bytes() {
        let sqe = Sqe::read(&numbered()).expect("64 bytes");
        assert_eq!((sqe.opcode, sqe.flags), (0, 1));
        assert_eq!(sqe.cid(), 0x0302);
        assert_eq!(sqe.nsid(), 0x0706_0504);
        assert_eq!(sqe.fctype(), 4);
        assert_eq!((sqe.cdw2(), sqe.cdw3()), (0x0B0A_0908, 0x0F0E_0D0C));
        assert_eq!(sqe.mptr(), 0x1716_1514_1312_1110);
        assert_eq!(sqe.sgl.address(), 0x1F1E_1D1C_1B1A_1918);
        assert_eq!(sqe.sgl.length(), 0x2322_2120);
        assert_eq!(sqe.sgl.identifier(), 39);
        assert_eq!((sqe.cdw10(), sqe.cdw11()), (0x2B2A_2928, 0x2F2E_2D2C));
        assert_eq!((sqe.cdw12(), sqe.cdw13()), (0x3332_3130, 0x3736_3534));
        assert_eq!((sqe.cdw14(), sqe.cdw15()), (0x3B3A_3938, 0x3F3E_3D3C));
        assert_eq!(sqe.to_bytes(), numbered());
    }

    #[test]
    fn setters_touch_their_own_bytes_only() {
        let sqe = Sqe::read(&[0; 64]).expect("64 bytes").with_cid(0xFFFF).with_cdw(12, u32::MAX);
        let bytes = sqe.to_bytes();
        let set: Vec<usize> = (0..64).filter(|&i| bytes[i] != 0).collect();
        assert_eq!(set, [2, 3, 48, 49, 50, 51]);
    }

    #[test]
    fn too_few_bytes_are_no_command() {
        assert!(Sqe::read(&[0; 63]).is_none());
        assert!(Sqe::read(&[0; 65]).is_some());
    }

    #[test]
    fn psdt_and_fuse_are_the_ends_of_byte_1() {
        let mut sqe = Sqe::new(io::READ);
        assert_eq!((sqe.psdt(), sqe.fuse()), (1, 0));
        sqe.flags = 0b1000_0010;
        assert_eq!((sqe.psdt(), sqe.fuse()), (2, 2));
    }
}
