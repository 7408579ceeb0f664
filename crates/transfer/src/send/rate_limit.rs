//! Rate limit over all connections of a session together.
//!
//! Invariant: the bytes passed since any moment are at most the rate times the time since
//! then, plus one burst, plus one frame for each connection.

use longhaul_engine::{now, sleep_until};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The greatest burst after an idle time, as a time at the rate.
const BURST: Duration = Duration::from_millis(100);

/// Delays sends to a rate.
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// Bytes a second; 0 for no bound.
    rate: u64,
    /// When the bytes passed so far have used up their share of the rate.
    paid: Cell<Option<Instant>>,
}

impl RateLimit {
    /// A limit of `rate` bytes a second; 0 for none.
    pub(crate) fn new(rate: u64) -> RateLimit {
        RateLimit { rate, paid: Cell::new(None) }
    }

    /// Waits until `bytes` may be sent; returns whether it had to wait, so that the rate
    /// limits the copy.
    pub(crate) async fn wait(&self, bytes: usize) -> bool {
        let at = self.reserve(now(), bytes);
        if let Some(at) = at {
            sleep_until(at).await;
        }
        at.is_some()
    }

    /// Reserves `bytes`; returns when they may be sent, or `None` for at once.
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
    fn at_most_the_rate_and_a_burst_pass() {
        let (pace, begin) = (RateLimit::new(1_000_000), Instant::now());
        let ms = Duration::from_millis;
        // Four streams at once: each 100 kB takes 100 ms of the line.
        let at: Vec<_> = (0..4).map(|_| pace.reserve(begin, 100_000)).collect();
        assert_eq!(at, [None, Some(begin + ms(100)), Some(begin + ms(200)), Some(begin + ms(300))]);
        // After a pause of 10 s, only the burst is made up for.
        let later = begin + ms(10_000);
        assert_eq!(pace.reserve(later, 100_000), None);
        assert_eq!(pace.reserve(later, 100_000), None);
        assert_eq!(pace.reserve(later, 100_000), Some(later + ms(100)));
        assert_eq!(RateLimit::new(0).reserve(begin, 1 << 30), None);
    }
}
