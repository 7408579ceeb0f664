//! Checks whether parity matches the data, and finds the wrong unit otherwise.

use crate::field::{ORDER, logarithm};
use crate::kernels::{Kernels, MAX_DATA};
use crate::recover::Unit;

/// Bytes that are checked at a time: P and Q of them stand on the stack.
const CHUNK: usize = 4096;

/// What P and Q say about a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Parity is that of the data.
    Consistent,
    /// This unit alone, changed, makes all the others consistent. It takes P
    /// and Q to know.
    Wrong(Unit),
    /// Parity does not match the data, and no single unit explains it (or Q, which would identify
    /// it, is missing).
    Inconsistent,
}

/// See [`crate::check`].
pub(crate) fn check(kernels: Kernels, data: &[&[u8]], p: &[u8], q: Option<&[u8]>) -> Verdict {
    assert!(data.len() <= MAX_DATA, "{} data units: Q covers {MAX_DATA} at most", data.len());
    for (i, unit) in data.iter().copied().chain(q).enumerate() {
        assert_eq!(unit.len(), p.len(), "unit {i} is of another length");
    }
    let (mut sum, mut weighted) = ([0; CHUNK], [0; CHUNK]);
    let mut suspect = None;
    for start in (0..p.len()).step_by(CHUNK) {
        let range = start..p.len().min(start + CHUNK);
        let slices: Vec<&[u8]> = data.iter().map(|unit| &unit[range.clone()]).collect();
        let sum = &mut sum[..range.len()];
        let Some(q) = q else {
            kernels.xor(sum, &slices);
            if *sum != p[range] {
                return Verdict::Inconsistent;
            }
            continue;
        };
        let weighted = &mut weighted[..range.len()];
        kernels.pq(&slices, sum, weighted);
        let (p, q) = (&p[range.clone()], &q[range]);
        if *sum == *p && *weighted == *q {
            continue;
        }
        for (s, t) in sum.iter().zip(p).map(|(a, b)| a ^ b).zip(weighted.iter().zip(q).map(|(a, b)| a ^ b)) {
            let unit = match (s, t) {
                (0, 0) => continue,
                (_, 0) => Some(Unit::P),
                (0, _) => Some(Unit::Q),
                _ => wrong_data(s, t).filter(|index| *index < data.len()).map(Unit::Data),
            };
            if unit.is_none() || *suspect.get_or_insert(unit) != unit {
                return Verdict::Inconsistent;
            }
        }
    }
    suspect.flatten().map_or(Verdict::Consistent, Verdict::Wrong)
}

/// The index of the data unit that alone gives these syndromes: a change d of
/// unit z gives d in P and 2^z * d in Q, so z is the logarithm of the ratio
/// (Anvin, section 4).
fn wrong_data(s: u8, t: u8) -> Option<usize> {
    Some((logarithm(t)? + ORDER - logarithm(s)?) % ORDER)
}
