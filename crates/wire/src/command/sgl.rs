//! SGL descriptors: where a command's data is.
//!
//! A message-based transport has one descriptor a command: either the data
//! follows in the capsule, or the transport moves it. The other types are
//! known only so that they can be refused by name.

use std::fmt;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An SGL descriptor, 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Sgl {
    address: U64,
    length: U32,
    reserved: [u8; 3],
    identifier: u8,
}

/// What an SGL descriptor describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglKind {
    /// Data Block with an address (00h): host memory, out of a message-based
    /// controller's reach.
    DataBlock,
    /// Data Block with an offset (01h): in the capsule, after the command.
    InCapsule {
        /// Where the data begins, in bytes from the ICDOFF position.
        offset: u64,
    },
    /// Transport SGL Data Block (5Ah): moved by the transport.
    Transport,
    /// Keyed SGL Data Block (4xh): memory-based transports only.
    Keyed,
    /// Bit Bucket (1xh), Segment (2xh), Last Segment (3xh).
    Segment,
    /// A type of descriptor that this crate does not know.
    Unknown,
}

impl Sgl {
    const DATA_BLOCK: u8 = 0x00;
    const IN_CAPSULE: u8 = 0x01;
    const TRANSPORT: u8 = 0x5A;

    /// `length` bytes that the transport moves.
    pub fn transport(length: u32) -> Sgl {
        Sgl::make(0, length, Sgl::TRANSPORT)
    }

    /// `length` bytes in the capsule, `offset` bytes after the command (and
    /// the ICDOFF gap).
    pub fn in_capsule(offset: u64, length: u32) -> Sgl {
        Sgl::make(offset, length, Sgl::IN_CAPSULE)
    }

    /// No data: a transport descriptor of length 0.
    pub fn none() -> Sgl {
        Sgl::transport(0)
    }

    /// A descriptor with this identifier, as a peer may send it.
    pub fn make(address: u64, length: u32, identifier: u8) -> Sgl {
        Sgl { address: address.into(), length: length.into(), reserved: [0; 3], identifier }
    }

    /// Address, or offset; bytes 0 to 7.
    pub fn address(&self) -> u64 {
        self.address.get()
    }

    /// Length of the data in bytes.
    pub fn length(&self) -> u32 {
        self.length.get()
    }

    /// Type (bits 7:4) and subtype (bits 3:0); byte 15.
    pub fn identifier(&self) -> u8 {
        self.identifier
    }

    /// The kind of descriptor.
    pub fn kind(&self) -> SglKind {
        match self.identifier {
            Sgl::DATA_BLOCK => SglKind::DataBlock,
            Sgl::IN_CAPSULE => SglKind::InCapsule { offset: self.address() },
            Sgl::TRANSPORT => SglKind::Transport,
            id => match id >> 4 {
                1..=3 => SglKind::Segment,
                4 => SglKind::Keyed,
                _ => SglKind::Unknown,
            },
        }
    }
}

impl fmt::Debug for Sgl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            SglKind::Transport => write!(f, "Transport({} bytes)", self.length()),
            SglKind::InCapsule { offset } => write!(f, "InCapsule({} bytes at {offset})", self.length()),
            _ => write!(f, "Sgl({:02X}h, {} bytes at {:X}h)", self.identifier, self.length(), self.address()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_each_form() {
        let bytes: [u8; 16] = zerocopy::transmute!(Sgl::transport(0x0102_0304));
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0x5A]);
        let bytes: [u8; 16] = zerocopy::transmute!(Sgl::in_capsule(8, 4096));
        assert_eq!(bytes, [8, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0x01]);
    }

    #[test]
    fn every_identifier_has_a_kind() {
        let count = |kind| (0..=255).filter(|&id| Sgl::make(0, 0, id).kind() == kind).count();
        assert_eq!(count(SglKind::Transport), 1);
        assert_eq!(count(SglKind::InCapsule { offset: 0 }), 1);
        assert_eq!(count(SglKind::DataBlock), 1);
        assert_eq!(count(SglKind::Keyed), 16);
        assert_eq!(count(SglKind::Segment), 48);
    }
}
