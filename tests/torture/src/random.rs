//! Numbers and bytes from a seed.

use std::ops::RangeInclusive;

/// A sequence of numbers that its seed determines (SplitMix64, by Steele,
/// Lea and Flood).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// The next number within a range.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (first, last) = range.into_inner();
        first + self.number() % (last - first + 1)
    }

    /// One of several; there must be one.
    pub fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.within(0..=of.len() as u64 - 1) as usize]
    }

    /// So many bytes, none of them zero: a hole is never taken for data.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.number().to_le_bytes().map(|b| b | 1));
        }
        bytes.truncate(len);
        bytes
    }
}
