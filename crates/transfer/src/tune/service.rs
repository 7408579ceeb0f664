//! Service times of the threads of a stage: how long a file, or a block of a large one, takes
//! the thread that works on it, without what it waits for other stages.
//!
//! Invariant: a round counts only what began in it, so it says nothing about an earlier number
//! of threads.

use crate::guard::lock;
use longhaul_engine::now;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The sums of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// Files and blocks completed.
    pub(crate) units: u64,
    /// Their service times, added up.
    pub(crate) busy: Duration,
}

/// The service times of a stage, which its threads record and its tuner reads.
#[derive(Debug, Default)]
pub(crate) struct ServiceTimes {
    round: AtomicU64,
    served: Mutex<Served>,
}

/// A service that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Service {
    round: u64,
    began: Instant,
}

impl ServiceTimes {
    /// Begins a service.
    pub(crate) fn begin(&self) -> Service {
        Service { round: self.round.load(Relaxed), began: now() }
    }

    /// Ends a service of so many files or blocks.
    pub(crate) fn end(&self, service: Service, units: u64) {
        let busy = now().saturating_duration_since(service.began);
        let mut served = lock(&self.served);
        if units > 0 && service.round == self.round.load(Relaxed) {
            served.units += units;
            served.busy += busy;
        }
    }

    /// Begins a round.
    pub(crate) fn restart(&self) {
        let mut served = lock(&self.served);
        self.round.fetch_add(1, Relaxed);
        *served = Served::default();
    }

    /// The sums of this round.
    pub(crate) fn served(&self) -> Served {
        *lock(&self.served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_counts_what_began_in_it() {
        let times = ServiceTimes::default();
        let before = times.begin();
        times.end(before, 2);
        assert_eq!(times.served().units, 2);
        let across = times.begin();
        times.restart();
        times.end(across, 1);
        assert_eq!(times.served(), Served::default());
        times.end(times.begin(), 0);
        assert_eq!(times.served(), Served::default(), "a directory takes no time of a file");
        times.end(times.begin(), 3);
        assert_eq!(times.served().units, 3);
    }
}
