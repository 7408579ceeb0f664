//! When to try again.
//!
//! Invariants:
//! - the first attempt after a connection that has worked is made at once;
//! - so is one after another that was waited for longer than this would wait: a
//!   path that is back is not to be missed by sleeping;
//! - the time limit counts from the loss of the last connection that has
//!   worked: one that dies before any work is done does not count.

use longhaul_engine::now;
use std::time::{Duration, Instant};

/// The second attempt comes after this time, each later one after twice as
/// much.
const FIRST: Duration = Duration::from_millis(50);
/// The longest wait between attempts while the target is unreachable: a
/// fraction of the second within which I/O must resume once the link is back.
const LAST: Duration = Duration::from_millis(200);
/// The longest wait before another connection while they die without having
/// done any work.
const LAST_USELESS: Duration = Duration::from_secs(10);

/// The time without a connection.
#[derive(Debug)]
pub(crate) struct Backoff {
    since: Instant,
    /// Attempts since then.
    attempts: u32,
    /// Connections in a row that have died without having done any work.
    useless: u32,
    /// What the next attempt waits for.
    wait: Duration,
    /// When the last attempt began.
    last: Option<Instant>,
}

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff { since: now(), attempts: 0, useless: 0, wait: Duration::ZERO, last: None }
    }

    /// A connection is lost; `worked` says whether it carried any I/O.
    pub(crate) fn begin(&mut self, worked: bool) {
        if worked {
            *self = Backoff::new();
            return;
        }
        if self.useless == 0 {
            self.since = now();
        }
        self.useless += 1;
        (self.attempts, self.last) = (0, None);
        self.wait = match self.useless {
            // It may just have been idle.
            1 => Duration::ZERO,
            n => doubled(FIRST, n, LAST_USELESS),
        };
    }

    /// Begins an attempt: returns its number, and the delay before it, a random time between half
    /// and all of the present maximum, so that hosts that have lost the same target do not
    /// reconnect at the same time.
    pub(crate) fn attempt(&mut self) -> (u32, Duration) {
        self.attempts += 1;
        let wait = std::mem::replace(&mut self.wait, Duration::ZERO);
        let wait = match self.attempts {
            1 => wait,
            n => wait.max(doubled(FIRST, n - 2, LAST)),
        };
        let spent = self.last.map_or(Duration::ZERO, |last| now().saturating_duration_since(last));
        let wait = wait.mul_f64(0.5 + jitter() / 2.0).saturating_sub(spent);
        self.last = Some(now() + wait);
        (self.attempts, wait)
    }

    /// Connections in a row that were of no use.
    pub(crate) fn useless(&self) -> u32 {
        self.useless
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    pub(crate) fn since(&self) -> Instant {
        self.since
    }
}

fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    first.saturating_mul(1 << times.min(16)).min(most)
}

/// From 0 to 1.
fn jitter() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    if let Some(bits) = longhaul_engine::simulated::random() {
        return bits as f64 / u64::MAX as f64;
    }
    RandomState::new().hash_one(now()) as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits before attempts that fail at once.
    fn waits(outage: &mut Backoff, n: usize) -> Vec<u128> {
        let attempt = |_| {
            outage.last = None;
            outage.attempt().1.as_millis()
        };
        (0..n).map(attempt).collect()
    }

    #[test]
    fn a_wait_for_an_answer_counts_as_backoff() {
        let mut outage = Backoff::new();
        outage.begin(true);
        outage.attempts = 10;
        outage.last = now().checked_sub(LAST / 4);
        let wait = outage.attempt().1;
        assert!((LAST / 8..=LAST * 3 / 4).contains(&wait), "{wait:?}");
        outage.last = now().checked_sub(LAST);
        assert_eq!(outage.attempt().1, Duration::ZERO);
    }

    #[test]
    fn the_first_attempt_is_at_once_and_later_ones_are_never_far_apart() {
        let mut outage = Backoff::new();
        outage.begin(true);
        let waits = waits(&mut outage, 50);
        assert_eq!(waits[0], 0);
        for (i, most) in [(1, 50), (2, 100), (3, 200), (4, 200), (49, 200)] {
            assert!((most / 2..=most).contains(&waits[i]), "{i}: {} ms", waits[i]);
        }
        assert_eq!(outage.attempts(), 50);
    }

    #[test]
    fn connections_of_no_use_are_made_ever_more_seldom() {
        let mut outage = Backoff::new();
        outage.begin(true);
        let since = outage.since();
        let mut first = Vec::new();
        for _ in 0..12 {
            outage.begin(false);
            first.push(waits(&mut outage, 1)[0]);
        }
        assert!(first[0] == 0 && first[1] >= 100 && first[11] >= 5000 && first[11] <= 10_000, "{first:?}");
        assert_eq!((outage.useless(), outage.attempts()), (12, 1));
        assert!(outage.since() >= since);
        let begun = outage.since();
        outage.begin(false);
        assert_eq!(outage.since(), begun, "the limit counts from the first of them");
        outage.begin(true);
        assert_eq!((outage.useless(), waits(&mut outage, 1)[0]), (0, 0));
    }

    #[test]
    fn hosts_do_not_come_at_the_same_time() {
        let all: std::collections::BTreeSet<_> = (0..100).map(|_| jitter().to_bits()).collect();
        assert!(all.len() > 90 && all.iter().all(|&j| (0.0..=1.0).contains(&f64::from_bits(j))));
    }
}
