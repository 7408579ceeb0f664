//! Everything that is left to chance, from a seed.

/// A generator of random numbers: SplitMix64 (Steele, Lea, Flood, "Fast
/// splittable pseudorandom number generators").
#[derive(Clone, Debug)]
pub struct Random(u64);

/// The finaliser of SplitMix64: spreads every bit over all.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// The numbers of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        // Neighbouring seeds must not give neighbouring streams.
        Random(mix(seed ^ 0x6c6f_6e67_6861_756c))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True in `percent` of all cases.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// One of several, of which there is one at least.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }

    /// An independent generator.
    pub fn fork(&mut self) -> Random {
        Random::new(self.bits())
    }
}
