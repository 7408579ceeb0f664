//! Little-endian fields of on-disk structures.

use uuid::Uuid;

/// Writes consecutive fields.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Writer<'a> {
        Writer { out, at: 0 }
    }

    /// # Panics
    /// Past the end: the structures of this crate have fixed sizes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    pub(crate) fn u16(&mut self, n: u16) -> &mut Self {
        self.bytes(&n.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, n: u32) -> &mut Self {
        self.bytes(&n.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, n: u64) -> &mut Self {
        self.bytes(&n.to_le_bytes())
    }

    pub(crate) fn uuid(&mut self, uuid: Uuid) -> &mut Self {
        self.bytes(uuid.as_bytes())
    }
}

/// Reads consecutive fields; `None` past the end.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn uuid(&mut self) -> Option<Uuid> {
        self.array().map(Uuid::from_bytes)
    }
}

/// Stores the CRC-32C of the block from byte 4 in its first four bytes.
pub(crate) fn seal(block: &mut [u8]) {
    let sum = crc_fast::crc32_iscsi(&block[4..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
}

/// The content behind the checksum, if that matches.
pub(crate) fn open(block: &[u8]) -> Option<&[u8]> {
    let (sum, rest) = block.split_at_checked(4)?;
    (sum == crc_fast::crc32_iscsi(rest).to_le_bytes()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_back_and_never_past_the_end() {
        let mut block = [0; 64];
        Writer::new(&mut block[4..]).u16(7).u32(8).u64(9).uuid(Uuid::from_u128(10)).bytes(b"end");
        seal(&mut block);
        let mut reader = Reader::new(open(&block).expect("sealed"));
        assert_eq!((reader.u16(), reader.u32(), reader.u64()), (Some(7), Some(8), Some(9)));
        assert_eq!((reader.uuid(), reader.bytes(3)), (Some(Uuid::from_u128(10)), Some(&b"end"[..])));
        assert_eq!(reader.bytes(64), None);
        block[63] ^= 1;
        assert_eq!(open(&block), None);
        assert_eq!(open(&[1, 2, 3]), None);
    }
}
