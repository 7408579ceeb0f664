//! A limit of the rate, over all streams of a session together.
//!
//! Invariant: what was let through since any moment is at most the rate times
//! the time since then, and one burst, and one frame for each stream.

use longhaul_engine::{now, sleep_until};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time that was not used can be made up for, so much at most.
const BURST: Duration = Duration::from_millis(100);

/// Lets bytes through at a rate.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes a second; 0 for no bound.
    rate: u64,
    /// When what was let through so far is paid for.
    paid: Cell<Option<Instant>>,
}

impl Pace {
    /// At most `rate` bytes a second, or as many as there are if that is 0.
    pub(crate) fn new(rate: u64) -> Pace {
        Pace { rate, paid: Cell::new(None) }
    }

    /// Waits until `bytes` may go; whether that was to be waited for, so that the rate
    /// is what bounds the copy.
    pub(crate) async fn wait(&self, bytes: usize) -> bool {
        let at = self.reserve(now(), bytes);
        if let Some(at) = at {
            sleep_until(at).await;
        }
        at.is_some()
    }

    /// When `bytes` may go, if not at once; they count as gone.
    fn reserve(&self, now: Instant, bytes: usize) -> Option<Instant> {
        if self.rate == 0 || bytes == 0 {
            return None;
        }
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let at = self.paid.get().map_or(now, |paid| paid.max(earliest));
        self.paid.set(Some(at + Duration::from_secs_f64(bytes as f64 / self.rate as f64)));
        (at > now).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_goes_than_the_rate_and_a_burst() {
        let (pace, begin) = (Pace::new(1_000_000), Instant::now());
        let ms = Duration::from_millis;
        // Four streams at once: each 100 kB takes 100 ms of the line.
        let at: Vec<_> = (0..4).map(|_| pace.reserve(begin, 100_000)).collect();
        assert_eq!(at, [None, Some(begin + ms(100)), Some(begin + ms(200)), Some(begin + ms(300))]);
        // After a pause of 10 s, only the burst is made up for.
        let later = begin + ms(10_000);
        assert_eq!(pace.reserve(later, 100_000), None);
        assert_eq!(pace.reserve(later, 100_000), None);
        assert_eq!(pace.reserve(later, 100_000), Some(later + ms(100)));
        assert_eq!(Pace::new(0).reserve(begin, 1 << 30), None);
    }
}
