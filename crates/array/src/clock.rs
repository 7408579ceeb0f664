//! Moments that a suspended machine does not lose.
//!
//! The monotonic clock, and with it every timer, stands still while the machine is
//! suspended, and all of its clocks but the wall clock may stand still while a
//! virtual machine is paused. Another host may have taken the array over meanwhile.

use longhaul_engine::{boot_time, now, wall_time};
use std::time::{Duration, Instant};

/// A moment, by all clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    at: Instant,
    boot: Duration,
    wall: Duration,
}

impl Stamp {
    /// This moment.
    pub(crate) fn now() -> Stamp {
        Stamp { at: now(), boot: boot_time(), wall: wall_time() }
    }

    /// How long ago it was at most: by the clock that has advanced most. A wall clock
    /// that was set forward makes it look older than it is, which costs a look.
    pub(crate) fn age(&self) -> Duration {
        let wall = wall_time().saturating_sub(self.wall);
        boot_time().saturating_sub(self.boot).max(wall)
    }

    /// How long the machine may have stood still since.
    pub(crate) fn gap(&self) -> Duration {
        self.age().saturating_sub(now().saturating_duration_since(self.at))
    }

    /// Whether it is not before another moment.
    pub(crate) fn is_after(&self, other: &Stamp) -> bool {
        self.at >= other.at && self.boot >= other.boot
    }
}
