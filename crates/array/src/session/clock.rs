//! Time stamps that remain valid across suspension of the machine.
//!
//! The monotonic clock, and with it every timer, stops while the machine is suspended, and all
//! clocks except the wall clock may stop while a virtual machine is paused. Another host may have
//! taken the array over meanwhile.

use longhaul_engine::{boot_time, now, wall_time};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// A point in time on three clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    at: Instant,
    boot: Duration,
    wall: Duration,
}

impl Stamp {
    /// The current time.
    pub(crate) fn now() -> Stamp {
        Stamp { at: now(), boot: boot_time(), wall: wall_time() }
    }

    /// Upper bound of the time since: by the clock that has advanced most. A wall clock that was
    /// set forward makes the stamp look older than it is, which costs one more check of a
    /// heartbeat.
    pub(crate) fn age(&self) -> Duration {
        let wall = wall_time().saturating_sub(self.wall);
        boot_time().saturating_sub(self.boot).max(wall)
    }

    /// Upper bound of the time that the machine has been suspended since.
    pub(crate) fn gap(&self) -> Duration {
        self.age().saturating_sub(now().saturating_duration_since(self.at))
    }

    /// Time from an earlier stamp to this one, by the clock that stops while the machine is suspended.
    pub(crate) fn since(&self, earlier: &Stamp) -> Duration {
        self.at.saturating_duration_since(earlier.at)
    }

    /// Whether it is not before another stamp.
    pub(crate) fn is_after(&self, other: &Stamp) -> bool {
        self.at >= other.at && self.boot >= other.boot
    }
}

/// Time of a session for its heartbeats. After a crash a member whose heartbeat is much older than
/// the others' counts as rolled back. The time is therefore held back to that of the slowest member
/// in use: when all members hang, the first one that answers must not get an hour ahead of the
/// others.
///
/// Invariants: `elapsed` and `limit` never fall, and `elapsed` exceeds `limit` at no time.
pub(crate) struct SessionClock {
    began: Stamp,
    /// Time in the last heartbeat.
    elapsed: Cell<Duration>,
    /// No member in use may fall further behind than an up-to-date one may be.
    limit: Cell<Duration>,
}

impl SessionClock {
    /// A clock that starts now.
    pub(crate) fn new() -> SessionClock {
        SessionClock { began: Stamp::now(), elapsed: Cell::default(), limit: Cell::default() }
    }

    /// Allows the time to advance to `limit`.
    pub(crate) fn allow(&self, limit: Duration) {
        self.limit.set(limit.max(self.limit.get()));
    }

    /// The time for the next heartbeat.
    pub(crate) fn advance(&self) -> Duration {
        let elapsed = self.began.age().min(self.limit.get()).max(self.elapsed.get());
        debug_assert!(elapsed <= self.limit.get(), "the time is ahead of what the slowest member allows");
        self.elapsed.set(elapsed);
        elapsed
    }
}
