//! The pace of background work that goes through all of an array: in batches that take about a second, and
//! with pauses as long as a rate requires, or in favour of users.
//!
//! Invariants:
//! - a batch takes no more than the rate allows in [`BATCH`], but one unit at least;
//! - while users are active, batches take at most half of the time, unless they restore redundancy and the
//!   next loss would lose data.

use crate::core::Core;
use crate::heal::upkeep::pause;
use longhaul_engine::now;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Batches are sized to take between this and twice as long.
const BATCH: Duration = Duration::from_secs(1);

/// Batches of units, rows or other pieces of one size.
pub(crate) struct Pace {
    /// Bytes that a member is read, or written, for a unit.
    unit: u64,
    /// Units of the next batch, unless a rate limits it.
    size: u64,
    /// Requests of users when the last batch ended.
    requests: u64,
    /// When the batch under way began.
    began: Instant,
    /// The work keeps the next loss from losing data.
    restores: bool,
}

impl Core {
    /// The pace of work in units of so many bytes, of which the first batch has `first`.
    pub(crate) fn pace(&self, unit: u64, first: u64, restores: bool) -> Pace {
        Pace { unit, size: first, requests: self.io.requests(), began: now(), restores }
    }
}

impl Pace {
    /// Begins a batch; its units at a rate of so many bytes per second.
    pub(crate) fn begin(&mut self, rate: Option<u64>) -> u64 {
        self.began = now();
        let allowed = |rate: u64| (rate as f64 * BATCH.as_secs_f64() / self.unit as f64) as u64;
        rate.map_or(self.size, |rate| self.size.min(allowed(rate))).max(1)
    }

    /// Ends a batch of so many bytes: sizes the next one by the time that it took, and pauses as long as
    /// the rate requires, or as long as it took if users are active.
    pub(crate) async fn end(&mut self, core: &Rc<Core>, bytes: u64, rate: Option<u64>) {
        let took = now() - self.began;
        self.size = match took {
            took if took < BATCH => self.size.saturating_mul(2),
            took if took > 2 * BATCH => (self.size / 2).max(1),
            _ => self.size,
        };
        let by_rate = rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64).saturating_sub(took)
        });
        let is_busy = core.io.requests() != self.requests;
        self.requests = core.io.requests();
        let is_urgent = self.restores && core.members.inactive() >= core.geometry().redundancy();
        let by_users = if is_busy && !is_urgent { took } else { Duration::ZERO };
        pause(core, by_rate.max(by_users)).await;
    }
}
