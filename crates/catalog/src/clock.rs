//! The clock that leases of a file run by.

use rustix::time::{ClockId, clock_gettime};
use std::sync::Mutex;
use std::time::Duration;

/// A clock that no setting of the wall clock moves.
pub trait Clock: Send + Sync {
    /// Time since the host started, also while it was suspended.
    fn now(&self) -> Duration;
    /// Identifies the start of the host: leases of an earlier one have run out, since their holders
    /// ended with it.
    fn boot(&self) -> String;
}

/// The clock of this host.
#[derive(Clone, Debug)]
pub struct HostClock {
    boot: String,
}

impl HostClock {
    /// The clock of this host.
    pub fn new() -> HostClock {
        // Without it, leases run out by time alone.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        HostClock { boot: boot.trim().to_owned() }
    }
}

impl Default for HostClock {
    fn default() -> HostClock {
        HostClock::new()
    }
}

impl Clock for HostClock {
    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
    }

    fn boot(&self) -> String {
        self.boot.clone()
    }
}

/// A clock that is moved by hand, for tests.
#[derive(Debug, Default)]
pub struct ManualClock {
    state: Mutex<(Duration, u64)>,
}

impl ManualClock {
    /// A clock at zero.
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Moves the clock forward.
    pub fn advance(&self, time: Duration) {
        self.state.lock().unwrap_or_else(|e| e.into_inner()).0 += time;
    }

    /// Starts the host again.
    pub fn reboot(&self) {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        *state = (Duration::ZERO, state.1 + 1);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        self.state.lock().unwrap_or_else(|e| e.into_inner()).0
    }

    fn boot(&self) -> String {
        self.state.lock().unwrap_or_else(|e| e.into_inner()).1.to_string()
    }
}
