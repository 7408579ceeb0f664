//! Time that the reads of a member take.
//!
//! Invariants:
//! - `mean` is zero only before the first sample;
//! - a sample far above `mean` is an outage and changes nothing.

use std::cell::Cell;
use std::time::Duration;

/// A latency sample that exceeds four means by more than this is an outage, and says nothing about
/// the path.
const OUTAGE: Duration = Duration::from_secs(2);
/// Weight of a latency sample in the mean, as a power of two.
const MEAN_SHIFT: u32 = 3;

/// Weighted means over the last reads.
#[derive(Default)]
pub(crate) struct ReadLatency {
    mean: Cell<Duration>,
    /// Mean deviation from `mean`.
    deviation: Cell<Duration>,
}

impl ReadLatency {
    /// Mean time of a read; zero before the first sample.
    pub(crate) fn mean(&self) -> Duration {
        self.mean.get()
    }

    /// Time after which a read is late; `None` before the first sample.
    pub(crate) fn late_after(&self) -> Option<Duration> {
        let mean = self.mean.get();
        // A round trip may double without a fault.
        (!mean.is_zero()).then(|| (mean * 2).max(mean + 4 * self.deviation.get()) + Duration::from_millis(1))
    }

    /// Adds the time of a read.
    pub(crate) fn sample(&self, time: Duration) {
        let mean = self.mean.get();
        if mean.is_zero() {
            self.mean.set(time);
            return;
        }
        if time > mean * 4 + OUTAGE {
            return;
        }
        let difference = time.abs_diff(mean);
        let blend = |old: Duration, new: Duration| old - old / (1 << MEAN_SHIFT) + new / (1 << MEAN_SHIFT);
        self.mean.set(blend(mean, time));
        self.deviation.set(blend(self.deviation.get(), difference));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_does_not_change_the_mean() {
        let (latency, ms) = (ReadLatency::default(), Duration::from_millis);
        assert_eq!(latency.late_after(), None);
        latency.sample(ms(10));
        assert_eq!((latency.mean(), latency.late_after()), (ms(10), Some(ms(21))));
        latency.sample(ms(5000));
        assert_eq!(latency.mean(), ms(10), "an outage");
        latency.sample(ms(18));
        assert_eq!((latency.mean(), latency.late_after()), (ms(11), Some(ms(23))));
    }
}
