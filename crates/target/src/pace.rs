//! How often the hosts of one address may ask for what costs more than its bytes: admin
//! commands, new connections, and commands that are refused.
//!
//! Invariants:
//! - an address has a burst at once, and from then on a steady rate;
//! - turns are given in the order in which they are asked for, and the wait is known at once;
//! - other addresses wait for none of it.

use crate::ledger::Origin;
use crate::subsystem::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A burst, and the time between two turns from then on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) burst: u32,
    pub(crate) interval: Duration,
}

/// Admin commands of an address. A host needs some tens to connect; at this rate they take a few
/// hundredths of a processor.
pub(crate) const ADMIN: Rate = Rate { burst: 2000, interval: Duration::from_micros(500) };

/// Commands of an address that are refused. A host has a few when it finds out what there is, and a
/// queue or more of them when a namespace is taken away.
pub(crate) const REFUSED: Rate = Rate { burst: 2000, interval: Duration::from_micros(500) };

/// Messages of an authentication, each of which costs some milliseconds of a processor. A host has two for
/// each of its queues.
pub(crate) const AUTHENTICATIONS: Rate = Rate { burst: 512, interval: Duration::from_millis(20) };

/// Connections of an address: all that it may have by default at once.
pub(crate) const CONNECTIONS: Rate = Rate { burst: 2048, interval: Duration::from_millis(2) };

/// The turns of one address.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: Rate,
    /// When the turns that were given end, at the steady rate.
    end: Mutex<Option<Instant>>,
}

impl Pace {
    fn new(rate: Rate) -> Pace {
        Pace { rate, end: Mutex::default() }
    }

    /// Takes the next turn if it comes no later than `most` from now; how long to wait for it.
    pub(crate) fn take(&self, now: Instant, most: Duration) -> Option<Duration> {
        let mut end = lock(&self.end);
        let from = end.unwrap_or(now).max(now);
        let ahead = from.saturating_duration_since(now);
        let wait = ahead.saturating_sub(self.rate.interval * self.rate.burst.saturating_sub(1));
        if wait > most {
            return None;
        }
        *end = Some(from + self.rate.interval);
        Some(wait)
    }

    /// Whether turns that were given are not over.
    fn is_behind(&self, now: Instant) -> bool {
        lock(&self.end).is_some_and(|end| end > now)
    }
}

/// The turns of all addresses.
#[derive(Debug)]
pub(crate) struct Paces {
    rate: Rate,
    all: Mutex<HashMap<Origin, Arc<Pace>>>,
}

impl Paces {
    pub(crate) fn new(rate: Rate) -> Paces {
        Paces { rate, all: Mutex::default() }
    }

    /// The turns of `origin`.
    pub(crate) fn of(&self, origin: Origin, now: Instant) -> Arc<Pace> {
        let mut all = lock(&self.all);
        if let Some(pace) = all.get(&origin) {
            return Arc::clone(pace);
        }
        // Addresses without connections whose pace has caught up are equal to new ones, and
        // removed.
        all.retain(|_, pace| Arc::strong_count(pace) > 1 || pace.is_behind(now));
        let pace = Arc::new(Pace::new(self.rate));
        all.insert(origin, Arc::clone(&pace));
        pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { burst: 3, interval: Duration::from_millis(10) };

    fn origin(n: u8) -> Origin {
        Origin::of([10, 0, 0, n].into())
    }

    #[test]
    fn a_burst_and_then_a_steady_rate() {
        let (pace, start) = (Pace::new(RATE), Instant::now());
        let take = |at, most| pace.take(start + Duration::from_millis(at), Duration::from_millis(most));
        let waits = [0; 6].map(|at| take(at, 30).map(|wait| wait.as_millis()));
        assert_eq!(waits, [Some(0), Some(0), Some(0), Some(10), Some(20), Some(30)]);
        assert_eq!(take(0, 30), None, "too long a line");
        // A refused request has taken no turn.
        assert_eq!(take(10, 30), Some(Duration::from_millis(30)));
        assert_eq!(take(1000, 0), Some(Duration::ZERO), "a rest gives the burst back");
    }

    #[test]
    fn addresses_have_turns_of_their_own_and_are_forgotten() {
        let (paces, start) = (Paces::new(RATE), Instant::now());
        let (a, b) = (paces.of(origin(1), start), paces.of(origin(2), start));
        assert!((0..5).all(|_| a.take(start, Duration::MAX).is_some()));
        assert_eq!(b.take(start, Duration::ZERO), Some(Duration::ZERO));
        drop((a, b));
        // The first is behind, and the second is not from soon on.
        drop(paces.of(origin(3), start + Duration::from_millis(20)));
        assert_eq!(lock(&paces.all).len(), 2);
        assert_eq!(paces.of(origin(1), start).take(start, Duration::ZERO), None);
    }
}
