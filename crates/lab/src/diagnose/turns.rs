//! Interleaved runs, so that a drift of the machine affects all that is compared.

use crate::Error;
use crate::cause::{ConcurrencyRun, Sweep};

/// Numbers of threads and of connections in the sweep of concurrency.
const TRIED: [u16; 3] = [1, 4, 16];
/// Copies are compared by the best of this many runs, since other load on a machine only
/// adds time.
pub(super) const BEST_OF: usize = 2;

/// Times of interleaved runs of each of `kinds`, so that a drift of the machine affects all.
pub(super) fn in_turn<T, const N: usize>(
    rounds: usize,
    kinds: &[T; N],
    mut run: impl FnMut(&T) -> Result<f64, Error>,
) -> Result<[Vec<f64>; N], Error> {
    let mut times = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for (kind, times) in kinds.iter().zip(&mut times) {
            times.push(run(kind)?);
        }
    }
    Ok(times)
}

pub(super) fn quickest(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

pub(super) fn slowest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

pub(super) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Interleaved runs with the current value and with those of [`TRIED`].
pub(super) fn sweep(now: u16, mut run: impl FnMut(u16) -> Result<f64, Error>) -> Result<Sweep, Error> {
    let mut values = TRIED.to_vec();
    if !values.contains(&now) {
        values.push(now);
    }
    let mut times = vec![Vec::new(); values.len()];
    for _ in 0..BEST_OF {
        for (value, times) in values.iter().zip(&mut times) {
            times.push(run(*value)?);
        }
    }
    let tried = values.into_iter().zip(times).map(|(value, times)| ConcurrencyRun {
        value: value.into(),
        seconds: quickest(&times),
        slowest: slowest(&times),
    });
    Ok(Sweep { now: now.into(), tried: tried.collect() })
}

pub(super) fn small(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_in_all_kinds_alike() {
        // The times rise from run to run, for all kinds alike.
        let mut clock = 10.0;
        let mut run = |_: &&str| {
            clock += 1.0;
            Ok(clock)
        };
        let [a, b] = in_turn(3, &["a", "b"], &mut run).expect("no failure");
        assert_eq!((a.clone(), b.clone()), (vec![11.0, 13.0, 15.0], vec![12.0, 14.0, 16.0]));
        assert!((median(b) / median(a) - 1.0).abs() < 0.1);
        let swept = sweep(4, |_| run(&"")).expect("no failure");
        assert!(swept.gain().is_none(), "{swept:?}");
        // If the current value ran last, the drift would make the others look faster.
        let swept = sweep(32, |value| Ok(if value == 32 { 2.0 } else { 1.0 })).expect("no failure");
        assert_eq!(swept.gain().map(|(best, _)| best.value), Some(1));
    }
}
