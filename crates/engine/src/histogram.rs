//! How long things took, counted by powers of ten: what metrics show as a histogram.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets of a histogram of times: from a memory device of this machine to a disk
/// that hangs, three in each decade.
pub const BOUNDS: [Duration; 18] = [
    Duration::from_micros(10),
    Duration::from_micros(20),
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(200),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// How many took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeCounts {
    /// Those up to each of [`BOUNDS`], and not up to the one before; the last ones took longer.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// The times of all of them, added up.
    pub time: Duration,
}

impl TimeCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds those of others.
    pub fn add(&mut self, other: &TimeCounts) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(sum, more)| *sum += more);
        self.time += other.time;
    }
}

/// Counts how long things take that many threads do. (Where a counter has one writer, as on the data path of a
/// target, it is counted without locked instructions.)
#[derive(Debug, Default)]
pub struct Times {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Times {
    /// One has taken so long.
    pub fn record(&self, time: Duration) {
        self.buckets[BOUNDS.partition_point(|bound| *bound < time)].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// What was recorded.
    pub fn read(&self) -> TimeCounts {
        TimeCounts {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Relaxed)),
            time: Duration::from_nanos(self.nanoseconds.load(Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_it_does_not_exceed() {
        let times = Times::default();
        let (first, last) = (BOUNDS[0], BOUNDS[BOUNDS.len() - 1]);
        let nanosecond = Duration::from_nanos(1);
        for time in [Duration::ZERO, first, first + nanosecond, last, last + nanosecond] {
            times.record(time);
        }
        let counts = times.read();
        assert_eq!((counts.buckets[0], counts.buckets[1]), (2, 1));
        assert_eq!(counts.buckets[BOUNDS.len() - 1..], [1, 1]);
        assert_eq!((counts.total(), counts.time), (5, first * 2 + last * 2 + nanosecond * 2));
        let mut sum = counts;
        sum.add(&counts);
        assert_eq!((sum.total(), sum.time), (10, counts.time * 2));
    }
}
