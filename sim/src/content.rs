//! Content that identifies its writer and its place.

use crate::random::mix;

/// Bytes that carry a mark of their own: the smallest piece that any disk
/// writes as a whole.
pub const SECTOR: usize = 512;

/// The number of the write that a sector comes from; 0 is no write, all zeroes.
pub type Writer = u32;

/// The writer number of a sector of zeroes.
pub const NO_WRITER: Writer = 0;

/// Word `index` of what `writer` writes to sector `sector`.
fn word(writer: Writer, sector: u64, index: u64) -> u64 {
    mix((u64::from(writer) << 40) ^ (sector << 8) ^ index)
}

/// Fills whole sectors, the first being `sector` of the device.
pub fn fill(bytes: &mut [u8], sector: u64, writer: Writer) {
    for (number, bytes) in (sector..).zip(bytes.chunks_exact_mut(SECTOR)) {
        if writer == NO_WRITER {
            bytes.fill(0);
            continue;
        }
        let (words, _) = bytes.as_chunks_mut::<8>();
        words[0] = u64::from(writer).to_le_bytes();
        for (index, word_bytes) in (1..).zip(&mut words[1..]) {
            *word_bytes = word(writer, number, index).to_le_bytes();
        }
    }
}

/// The writer of this sector, if it is whole and in its place.
#[must_use]
pub fn writer(bytes: &[u8], sector: u64) -> Option<Writer> {
    let (words, _) = bytes.as_chunks::<8>();
    let first = u64::from_le_bytes(*words.first()?);
    if first == 0 {
        return bytes.iter().all(|b| *b == 0).then_some(NO_WRITER);
    }
    let writer = Writer::try_from(first).ok()?;
    let whole = (1..).zip(&words[1..]).all(|(i, w)| u64::from_le_bytes(*w) == word(writer, sector, i));
    whole.then_some(writer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_knows_its_writer_and_its_place() {
        let mut bytes = vec![0; 2 * SECTOR];
        assert_eq!(writer(&bytes[..SECTOR], 5), Some(NO_WRITER));
        fill(&mut bytes, 7, 42);
        assert_eq!(writer(&bytes[SECTOR..], 8), Some(42));
        assert_eq!(writer(&bytes[SECTOR..], 7), None, "in another place");
        for bit in [0, 33, 64, 4095] {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(writer(&bytes[..SECTOR], 7), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
