//! Bytes that do not compress, from a key and a position.
//!
//! Word `n` of a file is a hash of `n` under the file's key (the finalizer of
//! SplitMix64, with the second half of the key mixed in between its rounds),
//! so any range can be made alone, and words do not wait for one another.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const M1: u64 = 0xBF58_476D_1CE4_E5B9;
const M2: u64 = 0x94D0_49BB_1331_11EB;

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
pub(super) fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(M1);
    z = (z ^ (z >> 27)).wrapping_mul(M2);
    z ^ (z >> 31)
}

/// What the content of one file is made from.
#[derive(Clone, Copy)]
pub(super) struct ContentKey(u64, u64);

impl ContentKey {
    pub(super) fn new(seed: u64, file: u64) -> ContentKey {
        let a = mix(mix(seed) ^ file);
        ContentKey(a, mix(a ^ M1))
    }

    #[inline]
    fn word(self, n: u64) -> u64 {
        let mut z = self.0.wrapping_add(n.wrapping_mul(GOLDEN));
        z = (z ^ (z >> 30)).wrapping_mul(M1) ^ self.1;
        z = (z ^ (z >> 27)).wrapping_mul(M2);
        z ^ (z >> 31)
    }

    /// Fills `buf` with the bytes from `offset` on.
    pub(super) fn fill(self, offset: u64, buf: &mut [u8]) {
        let mut n = offset / 8;
        let head = ((8 - offset % 8) % 8).min(buf.len() as u64) as usize;
        let (head, rest) = buf.split_at_mut(head);
        if !head.is_empty() {
            let from = (offset % 8) as usize;
            head.copy_from_slice(&self.word(n).to_le_bytes()[from..from + head.len()]);
            n += 1;
        }
        let mut words = rest.chunks_exact_mut(8);
        for chunk in &mut words {
            chunk.copy_from_slice(&self.word(n).to_le_bytes());
            n = n.wrapping_add(1);
        }
        let tail = words.into_remainder();
        let len = tail.len();
        tail.copy_from_slice(&self.word(n).to_le_bytes()[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_is_a_part_of_the_whole() {
        let key = ContentKey::new(1, 2);
        let mut whole = vec![0; 4096];
        key.fill(0, &mut whole);
        for (from, to) in [(0, 1), (1, 8), (3, 5), (7, 9), (8, 16), (5, 4096), (4088, 4095), (9, 9)] {
            let mut part = vec![0; to - from];
            key.fill(from as u64, &mut part);
            assert_eq!(part, whole[from..to], "{from}..{to}");
        }
    }

    #[test]
    fn keys_do_not_share_words() {
        let mut seen = std::collections::HashSet::new();
        for (seed, file) in [(0, 0), (0, 1), (1, 0), (1, 1), (u64::MAX, 7)] {
            let key = ContentKey::new(seed, file);
            assert!((0..4096).all(|n| seen.insert(key.word(n))), "a word came twice");
        }
    }
}
