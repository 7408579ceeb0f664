//! Every set of kernels that this machine has, against the definition.

mod oracle;

use fastrand::Rng;
use longhaul_parity::{Kernels, Unit, Unrecoverable, Verdict};
use oracle::Units;
use proptest::prelude::*;

/// A stripe with P and Q by the oracle behind its data, and results behind.
#[derive(Debug)]
struct Stripe {
    data: Units,
    p: Vec<u8>,
    q: Vec<u8>,
    /// Where results go.
    out: Units,
    len: usize,
}

fn stripe(count: usize, len: usize, seed: u64) -> Stripe {
    let mut random = Rng::with_seed(seed);
    let mut offsets = |n: usize| (0..n).map(|_| random.usize(..64)).collect::<Vec<_>>();
    let (data, out) = (offsets(count), offsets(2));
    let data = Units::new(&data, len, &mut random);
    let out = Units::new(&out, len, &mut random);
    Stripe { p: oracle::p(&data.all(), len), q: oracle::q(&data.all(), len), data, out, len }
}

impl Stripe {
    fn unit(&self, unit: Unit) -> &[u8] {
        match unit {
            Unit::Data(i) => self.data.get(i),
            Unit::P => &self.p,
            Unit::Q => &self.q,
        }
    }

    fn units(&self) -> Vec<Unit> {
        (0..self.data.all().len()).map(Unit::Data).chain([Unit::P, Unit::Q]).collect()
    }

    /// Runs `recover` without `lost`, and compares the result with the original units.
    fn recovers(&self, kernels: Kernels, lost: &[Unit], wanted: &[Unit]) -> Result<(), TestCaseError> {
        let left = |unit| (!lost.contains(&unit)).then(|| self.unit(unit));
        let data: Vec<_> = (0..self.data.all().len()).map(|i| left(Unit::Data(i))).collect();
        let mut results = vec![vec![0xee; self.len]; wanted.len()];
        let mut targets: Vec<_> =
            wanted.iter().copied().zip(results.iter_mut().map(|r| &mut r[..])).collect();
        kernels.recover(&data, left(Unit::P), left(Unit::Q), &mut targets).unwrap();
        for (unit, result) in wanted.iter().zip(&results) {
            prop_assert!(result == self.unit(*unit), "{kernels:?}: {unit:?} without {lost:?}");
        }
        Ok(())
    }
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![0..200usize, 200..1400usize, Just(512), Just(4096)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn sums(count in 0..=62usize, len in lengths(), seed: u64) {
        for kernels in Kernels::all() {
            let mut s = stripe(count, len, seed);
            let before = s.out.get(1).to_vec();
            kernels.xor(s.out.get_mut(0), &s.data.all());
            prop_assert!(s.out.get(0) == s.p, "{kernels:?}: xor");
            kernels.xor_into(s.out.get_mut(1), &s.data.all());
            prop_assert!(s.out.get(1) == oracle::p(&[&before, &s.p], len), "{kernels:?}: xor_into");
            prop_assert!(s.out.intact());
        }
    }

    #[test]
    fn p_and_q(count in 1..=62usize, len in lengths(), seed: u64) {
        for kernels in Kernels::all() {
            let mut s = stripe(count, len, seed);
            let (p, q) = s.out.two_mut(0, 1);
            kernels.pq(&s.data.all(), p, q);
            prop_assert!(s.out.get(0) == s.p && s.out.get(1) == s.q, "{kernels:?}");
            prop_assert!(s.out.intact());
        }
    }

    #[test]
    fn parity_follows_a_write(count in 1..=62usize, len in lengths(), seed: u64, index: usize) {
        let index = index % count;
        let mut s = stripe(count, len, seed);
        let old = s.data.get(index).to_vec();
        Rng::with_seed(!seed).fill(s.data.get_mut(index));
        let new = s.data.get(index).to_vec();
        let (p, q) = (oracle::p(&s.data.all(), len), oracle::q(&s.data.all(), len));
        let delta = oracle::p(&[&old, &new], len);
        for kernels in Kernels::all() {
            s.out.get_mut(0).copy_from_slice(&s.p);
            s.out.get_mut(1).copy_from_slice(&s.q);
            let (to_p, to_q) = s.out.two_mut(0, 1);
            kernels.update(index, &old, &new, Some(to_p), Some(to_q));
            prop_assert!(s.out.get(0) == p && s.out.get(1) == q, "{kernels:?}");
            kernels.update_by(index, &delta, Some(s.out.get_mut(0)), None);
            kernels.update_by(index, &delta, None, Some(s.out.get_mut(1)));
            prop_assert!(s.out.get(0) == s.p && s.out.get(1) == s.q, "{kernels:?}: and back");
            prop_assert!(s.out.intact());
        }
    }

    #[test]
    fn any_two_units_come_back(count in 1..=62usize, len in 1..600usize, seed: u64, pick: (usize, usize)) {
        let s = stripe(count, len, seed);
        let units = s.units();
        let (x, y) = (units[pick.0 % units.len()], units[pick.1 % units.len()]);
        for kernels in Kernels::all() {
            s.recovers(kernels, &[], &[x, y])?;
            s.recovers(kernels, &[x], &[x])?;
            s.recovers(kernels, &[x, y], &[x, y])?;
            s.recovers(kernels, &[x, y], &[y])?;
            // Available units may be wanted together with lost ones.
            s.recovers(kernels, &[x, y], &units)?;
            // With P alone.
            if x != Unit::Q {
                s.recovers(kernels, &[x, Unit::Q], &[x])?;
            }
        }
    }

    #[test]
    fn checking_names_what_is_wrong(count in 2..=62usize, len in 1..9000usize, seed: u64, pick: (usize, usize)) {
        let mut random = Rng::with_seed(seed);
        for kernels in Kernels::all() {
            let mut s = stripe(count, len, seed);
            let units = s.units();
            prop_assert_eq!(kernels.check(&s.data.all(), &s.p, Some(&s.q)), Verdict::Consistent);
            prop_assert_eq!(kernels.check(&s.data.all(), &s.p, None), Verdict::Consistent);
            let mut damage = |s: &mut Stripe, unit: Unit, at: usize| {
                let unit = match unit {
                    Unit::Data(i) => s.data.get_mut(i),
                    Unit::P => &mut s.p,
                    Unit::Q => &mut s.q,
                };
                unit[at] ^= random.u8(..) | 1;
            };
            let wrong = units[pick.0 % units.len()];
            let (first, second) = (pick.1 % len, pick.1 / len % len);
            damage(&mut s, wrong, first);
            if second != first {
                damage(&mut s, wrong, second);
            }
            prop_assert_eq!(kernels.check(&s.data.all(), &s.p, Some(&s.q)), Verdict::Wrong(wrong));
            let alone = if wrong == Unit::Q { Verdict::Consistent } else { Verdict::Inconsistent };
            prop_assert_eq!(kernels.check(&s.data.all(), &s.p, None), alone);
            // A second unit at another place is more than one culprit.
            let other = units[(pick.0 + 1) % units.len()];
            if let Some(at) = (0..len).find(|at| *at != first && *at != second) {
                damage(&mut s, other, at);
                prop_assert_eq!(kernels.check(&s.data.all(), &s.p, Some(&s.q)), Verdict::Inconsistent);
            }
        }
    }
}

/// Large enough for results to be written past the caches, in all relations
/// of the results' alignments.
#[test]
fn large_results_are_the_same() {
    let len = (2 << 20) + 1234;
    for (at_p, at_q) in [(0, 0), (5, 5), (5, 37), (32, 0)] {
        let mut random = Rng::with_seed(7);
        let data = Units::new(&[0, 3, 64], len, &mut random);
        let mut out = Units::new(&[at_p, at_q, at_p], len, &mut random);
        let (p, q) = (oracle::p(&data.all(), len), oracle::q(&data.all(), len));
        for kernels in Kernels::all() {
            let (to_p, to_q) = out.two_mut(0, 1);
            kernels.pq(&data.all(), to_p, to_q);
            assert!(out.get(0) == p && out.get(1) == q, "{kernels:?}: pq");
            kernels.xor(out.get_mut(2), &data.all());
            assert!(out.get(2) == p, "{kernels:?}: xor");
            kernels.xor_into(out.get_mut(2), &data.all());
            assert!(out.get(2).iter().all(|b| *b == 0), "{kernels:?}: xor_into");
            assert!(out.intact());
        }
    }
}

#[test]
fn too_much_lost_is_refused_and_nothing_written() {
    let unit = [7; 16];
    let mut result = [9; 16];
    for (data, p, q, lost, parity) in [
        (vec![None, None, Some(&unit[..])], Some(&unit[..]), None, 2, 1),
        (vec![None, None, None], Some(&unit[..]), Some(&unit[..]), 3, 2),
        (vec![None, Some(&unit[..])], None, None, 1, 0),
    ] {
        for kernels in Kernels::all() {
            let refused = kernels.recover(&data, p, q, &mut [(Unit::Data(0), &mut result)]);
            assert_eq!(refused, Err(Unrecoverable { lost, parity }));
            assert_eq!(result, [9; 16]);
        }
    }
}

/// The smallest example, computed by hand, that only this generator and polynomial satisfy: 0x80
/// doubled is 0x1d, and doubled again 0x3a.
#[test]
fn known_values() {
    for kernels in Kernels::all() {
        let (mut p, mut q) = ([0; 2], [0; 2]);
        kernels.pq(&[&[0, 1], &[0x80, 2], &[0x80, 4]], &mut p, &mut q);
        assert_eq!((p, q), ([0, 7], [0x1d ^ 0x3a, 1 ^ 4 ^ 16]), "{kernels:?}");
    }
}

#[test]
fn all_sets_have_names_and_the_best_is_among_them() {
    let all = Kernels::all();
    assert_eq!(all[0].name(), "portable");
    assert_eq!(all.last(), Some(&Kernels::best()));
}

#[test]
#[should_panic(expected = "another length")]
fn units_of_different_lengths_are_a_mistake() {
    longhaul_parity::xor(&mut [0; 4], &[&[0; 4], &[0; 5]]);
}
