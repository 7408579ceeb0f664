//! The order of blocks.
//!
//! Invariant: a pass of `n` steps visits each of `n` blocks exactly once, in
//! random order as in sequential order. fio keeps a bitmap for that; here the
//! order is a keyed permutation of the block numbers, which needs no memory
//! and no search for free blocks towards the end of a pass.

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Visits blocks, pass after pass.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    blocks: u64,
    step: u64,
    pass: u64,
    seed: u64,
    random: Option<Permutation>,
}

impl Pattern {
    /// For `blocks` blocks, at least one.
    pub(crate) fn new(blocks: u64, random: bool, seed: u64) -> Pattern {
        assert!(blocks > 0, "a pattern has a block");
        let random = random.then(|| Permutation::new(blocks, seed));
        Pattern { blocks, step: 0, pass: 0, seed, random }
    }

    /// The next block.
    pub(crate) fn next(&mut self) -> u64 {
        if self.step == self.blocks {
            self.step = 0;
            self.pass += 1;
            if let Some(permutation) = &mut self.random {
                *permutation = Permutation::new(self.blocks, self.seed ^ mix(self.pass));
            }
        }
        let step = self.step;
        self.step += 1;
        match &mut self.random {
            Some(permutation) => permutation.next(),
            None => step,
        }
    }
}

/// Walks the numbers below a power of two in a keyed order and leaves out
/// those that are too large: at most half of them.
#[derive(Clone, Debug)]
struct Permutation {
    blocks: u64,
    mask: u64,
    shift: u32,
    counter: u64,
    keys: [u64; 5],
}

impl Permutation {
    fn new(blocks: u64, seed: u64) -> Permutation {
        let bits = 64 - (blocks - 1).leading_zeros();
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        let key = |n| mix(mix(seed) ^ n);
        // Multiplication by an odd number can be undone.
        let keys = [key(0), key(1) | 1, key(2), key(3) | 1, key(4) | 1];
        Permutation { blocks, mask, shift: bits.div_ceil(2).max(1), counter: 0, keys }
    }

    fn next(&mut self) -> u64 {
        loop {
            let [a, b, c, d, e] = self.keys;
            // Each step maps the numbers within the mask one to one.
            let mut x = self.counter.wrapping_add(a) & self.mask;
            x = x.wrapping_mul(b) & self.mask;
            x ^= x >> self.shift;
            x = x.wrapping_add(c).wrapping_mul(d) & self.mask;
            x ^= x >> self.shift;
            x = x.wrapping_mul(e) & self.mask;
            x ^= x >> self.shift;
            self.counter = self.counter.wrapping_add(1);
            if x < self.blocks {
                return x;
            }
        }
    }
}

/// A stream of random numbers, for the mix of directions.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(mix(seed))
    }

    /// A number from 0 to 99.
    pub(crate) fn percent(&mut self) -> u8 {
        self.0 = self.0.wrapping_add(1);
        ((u128::from(mix(self.0)) * 100) >> 64) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_visits_every_block_once() {
        for blocks in [1, 2, 3, 5, 8, 100, 1023, 1024, 1025, 10_000] {
            for random in [false, true] {
                let mut pattern = Pattern::new(blocks, random, 7);
                for pass in 0..3 {
                    let mut seen: Vec<u64> = (0..blocks).map(|_| pattern.next()).collect();
                    seen.sort_unstable();
                    assert!(seen.into_iter().eq(0..blocks), "{blocks} blocks, pass {pass}");
                }
            }
        }
    }

    #[test]
    fn random_orders_differ_by_seed_and_pass_and_have_no_runs() {
        const BLOCKS: u64 = 4096;
        let mut pattern = Pattern::new(BLOCKS, true, 1);
        let mut pass = || (0..BLOCKS).map(|_| pattern.next()).collect::<Vec<_>>();
        let (first, second) = (pass(), pass());
        assert_ne!(first, second);
        let mut other = Pattern::new(BLOCKS, true, 2);
        assert_ne!(first, (0..BLOCKS).map(|_| other.next()).collect::<Vec<_>>());
        // Of all pairs of neighbours in a fair shuffle about one is in order.
        let runs = first.windows(2).filter(|w| w[1] == w[0] + 1).count();
        assert!(runs < 10, "{runs} neighbours in order");
        // A fair shuffle moves forward half of the time.
        let rises = first.windows(2).filter(|w| w[1] > w[0]).count();
        assert!((1900..2200).contains(&rises), "{rises} of 4095 steps rise");
        // The mean distance of two random blocks is a third of the range.
        let far: u64 = first.windows(2).map(|w| w[0].abs_diff(w[1])).sum::<u64>() / (BLOCKS - 1);
        assert!((1280..1450).contains(&far), "mean distance {far}");
    }

    #[test]
    fn the_mix_keeps_its_share() {
        let mut rng = Rng::new(3);
        let reads = (0..100_000).filter(|_| rng.percent() < 70).count();
        assert!((69_000..71_000).contains(&reads), "{reads}");
        assert!((0..1000).all(|_| rng.percent() < 100));
    }
}
