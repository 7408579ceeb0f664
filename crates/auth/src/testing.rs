//! Randomness of tests.

/// Bytes that the seed determines.
pub(crate) fn random(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut random = fastrand::Rng::with_seed(seed);
    move |bytes| random.fill(bytes)
}
