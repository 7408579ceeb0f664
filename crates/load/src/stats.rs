//! Latencies and rates of one direction.
//!
//! Invariant: memory does not grow with the number of I/Os. A histogram has
//! [`DIGITS`] significant digits from 1 ns to [`LONGEST`], or [`DIGITS_FEW`]
//! where there are many of them, and is allocated with the first latency;
//! moments are exact.

use hdrhistogram::Histogram;
use std::fmt;
use std::time::Duration;

/// The longest latency that is resolved, in nanoseconds: an hour. Longer ones count
/// as this long (the exact maximum is kept beside).
const LONGEST: u64 = 3_600_000_000_000;

/// Significant digits: 270 KiB a histogram.
const DIGITS: u8 = 3;
/// The same where thousands are kept: 25 KiB a histogram, and still finer than
/// fio's.
const DIGITS_FEW: u8 = 2;

/// Length of one sample of bandwidth and IOPS: as in fio.
pub(crate) const SAMPLE: Duration = Duration::from_millis(500);

/// Latencies in nanoseconds.
#[derive(Clone)]
pub struct Latencies {
    histogram: Option<Box<Histogram<u64>>>,
    digits: u8,
    sum: u128,
    squares: u128,
    min: u64,
    max: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { histogram: None, digits: DIGITS, sum: 0, squares: 0, min: u64::MAX, max: 0 }
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, mean, max) = (self.min(), self.mean(), self.max());
        write!(f, "{} latencies: min {min}, mean {mean:.0}, max {max} ns", self.count())
    }
}

/// A histogram of so many digits.
#[cold]
fn histogram(digits: u8) -> Box<Histogram<u64>> {
    Box::new(Histogram::new_with_bounds(1, LONGEST, digits).expect("constant bounds are valid"))
}

impl Latencies {
    /// Latencies of one of many.
    fn of_many() -> Latencies {
        Latencies { digits: DIGITS_FEW, ..Latencies::default() }
    }

    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        let digits = self.digits;
        self.histogram.get_or_insert_with(|| histogram(digits)).saturating_record(ns);
        self.sum += u128::from(ns);
        self.squares += u128::from(ns) * u128::from(ns);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    pub(crate) fn merge(&mut self, other: &Latencies) {
        let digits = self.digits;
        if let Some(other) = &other.histogram {
            let ours = self.histogram.get_or_insert_with(|| histogram(digits));
            ours.add(&**other).expect("both have the same bounds");
        }
        self.sum += other.sum;
        self.squares += other.squares;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Number of latencies.
    pub fn count(&self) -> u64 {
        self.histogram.as_ref().map_or(0, |histogram| histogram.len())
    }

    /// The shortest; 0 without any.
    pub fn min(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.min }
    }

    /// The longest, in ns; 0 without any.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean, in ns; 0 without any.
    pub fn mean(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum as f64 / self.count() as f64 }
    }

    /// The standard deviation of the sample.
    pub fn stddev(&self) -> f64 {
        let n = u128::from(self.count());
        if n < 2 {
            return 0.0;
        }
        // n·Σx² − (Σx)² is never negative; where it does not fit, the mean of
        // the squares is exact enough.
        let spread = match (n.checked_mul(self.squares), self.sum.checked_mul(self.sum)) {
            (Some(a), Some(b)) => a.saturating_sub(b) as f64 / n as f64,
            _ => (self.squares as f64 - self.sum as f64 * self.mean()).max(0.0),
        };
        (spread / (n - 1) as f64).sqrt()
    }

    /// The latency that `percent` of all do not exceed, within 0.1 % (1 % where
    /// there are more jobs than [`OWN_THREADS_MAX`](crate::OWN_THREADS_MAX)).
    pub fn percentile(&self, percent: f64) -> u64 {
        let value = self.histogram.as_ref().map_or(0, |histogram| histogram.value_at_percentile(percent));
        value.min(self.max)
    }

    /// How many are at least `from` and below `to`, within 0.1 %.
    pub(crate) fn count_between(&self, from: u64, to: u64) -> u64 {
        let Some(histogram) = &self.histogram else { return 0 };
        histogram
            .iter_recorded()
            .filter(|step| (from..to).contains(&step.value_iterated_to()))
            .map(|step| step.count_at_value())
            .sum()
    }
}

/// Minimum, maximum, mean and deviation of samples, as they come (Welford).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Samples {
    /// Number of values.
    pub count: u64,
    /// Smallest sample, in the unit of the samples.
    pub min: f64,
    /// Largest sample, in the unit of the samples.
    pub max: f64,
    /// Mean of the samples.
    pub mean: f64,
    squares: f64,
}

impl Samples {
    pub(crate) fn push(&mut self, value: f64) {
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = if self.count == 0 { value } else { self.max.max(value) };
        self.count += 1;
        let off = value - self.mean;
        self.mean += off / self.count as f64;
        self.squares += off * (value - self.mean);
    }

    /// The standard deviation of the sample.
    pub fn stddev(&self) -> f64 {
        if self.count < 2 { 0.0 } else { (self.squares / (self.count - 1) as f64).sqrt() }
    }

    /// Two jobs at the same time: means and extremes add up, as in fio's
    /// group reporting.
    fn add_parallel(&mut self, other: &Samples) {
        if self.count == 0 || other.count == 0 {
            if self.count == 0 {
                *self = *other;
            }
            return;
        }
        let (a, b) = (self.stddev(), other.stddev());
        self.count = self.count.min(other.count);
        self.min += other.min;
        self.max += other.max;
        self.mean += other.mean;
        self.squares = (a * a + b * b) * self.count.saturating_sub(1) as f64;
    }
}

/// One direction of one job within the window.
#[derive(Clone, Debug, Default)]
pub struct DirStats {
    /// Number of I/Os that completed within the window.
    pub ios: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// From the call to its return. I/Os that were done when the call
    /// returned have none, as with fio's synchronous engines.
    pub slat: Latencies,
    /// From the return of the call to completion.
    pub clat: Latencies,
    /// From the call to completion.
    pub lat: Latencies,
    /// Bandwidth in bytes per second, a sample every 500 ms.
    pub bw: Samples,
    /// I/Os per second, likewise.
    pub iops: Samples,
    sampled: (u64, u64),
}

/// The times of one I/O in nanoseconds on the job's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Time of the call.
    pub(crate) begin: u64,
    /// Time at which the call returned, if the I/O was not complete then.
    pub(crate) submitted: Option<u64>,
    /// Time of completion.
    pub(crate) end: u64,
}

impl DirStats {
    /// Those of one of many jobs, which take less memory.
    pub(crate) fn of_many() -> DirStats {
        let [slat, clat, lat] = std::array::from_fn(|_| Latencies::of_many());
        DirStats { slat, clat, lat, ..DirStats::default() }
    }

    #[inline]
    pub(crate) fn record(&mut self, bytes: u64, times: Times) {
        self.ios += 1;
        self.bytes += bytes;
        let lat = times.end.saturating_sub(times.begin);
        self.lat.record(lat);
        match times.submitted {
            Some(submitted) => {
                self.slat.record(submitted.saturating_sub(times.begin));
                self.clat.record(times.end.saturating_sub(submitted));
            }
            None => self.clat.record(lat),
        }
    }

    /// Ends a sample of `seconds`.
    pub(crate) fn sample(&mut self, seconds: f64) {
        let (ios, bytes) = (self.ios - self.sampled.0, self.bytes - self.sampled.1);
        self.sampled = (self.ios, self.bytes);
        self.bw.push(bytes as f64 / seconds);
        self.iops.push(ios as f64 / seconds);
    }

    /// Adds a job that ran at the same time.
    pub(crate) fn merge(&mut self, other: &DirStats) {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.slat.merge(&other.slat);
        self.clat.merge(&other.clat);
        self.lat.merge(&other.lat);
        self.bw.add_parallel(&other.bw);
        self.iops.add_parallel(&other.iops);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_exact_and_percentiles_close() {
        let mut all = Latencies::default();
        (1..=1000u64).for_each(|n| all.record(n * 1000));
        assert_eq!((all.count(), all.min(), all.max(), all.mean()), (1000, 1000, 1_000_000, 500_500.0));
        // Deviation of 1..=n, times a thousand: sqrt(n(n+1)/12).
        assert!((all.stddev() - (1000.0f64 * 1001.0 / 12.0).sqrt() * 1000.0).abs() < 1e-3);
        for (percent, value) in [(50.0, 500_000.0), (99.0, 990_000.0), (99.99, 1_000_000.0)] {
            let found = all.percentile(percent) as f64;
            assert!((found / value - 1.0).abs() < 0.002, "{percent}%: {found}");
        }
        assert_eq!(all.count_between(0, u64::MAX), 1000);
        assert!(all.count_between(100_000, 200_000).abs_diff(100) <= 1);
    }

    #[test]
    fn empty_and_extreme_latencies_are_recorded() {
        let mut all = Latencies::default();
        assert_eq!(
            (all.min(), all.max(), all.mean(), all.stddev(), all.percentile(50.0)),
            (0, 0, 0.0, 0.0, 0)
        );
        all.record(0);
        all.record(u64::MAX);
        assert_eq!((all.count(), all.min(), all.max()), (2, 0, u64::MAX));
    }

    #[test]
    fn merged_latencies_are_those_of_both() {
        let (mut a, mut b, mut both) = (Latencies::default(), Latencies::default(), Latencies::default());
        for n in 0..500u64 {
            a.record(n * 7);
            b.record(n * n);
            both.record(n * 7);
            both.record(n * n);
        }
        a.merge(&b);
        assert_eq!(
            (a.count(), a.min(), a.max(), a.mean()),
            (both.count(), both.min(), both.max(), both.mean())
        );
        assert_eq!(a.percentile(90.0), both.percentile(90.0));
    }

    #[test]
    fn samples_have_the_deviation_of_the_book() {
        let mut samples = Samples::default();
        [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter().for_each(|v| samples.push(v));
        assert_eq!((samples.count, samples.min, samples.max, samples.mean), (8, 2.0, 9.0, 5.0));
        assert!((samples.stddev() - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
    }
}
