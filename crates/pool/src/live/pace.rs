//! The rate of work lately.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time over which a rate is taken: short stalls do not change the time that is left, and a change of
/// the rate is seen in it before long.
const WINDOW: Duration = Duration::from_secs(30);
/// Most samples that are kept.
const SAMPLES_MAX: usize = 64;

/// What was done at some times, oldest first.
#[derive(Debug, Default)]
pub(super) struct Pace(VecDeque<(Instant, u64)>);

impl Pace {
    /// Adds what is done by now, and returns the rate since the oldest sample of the window, in units a
    /// second; `None` for the first one.
    pub(super) fn add(&mut self, now: Instant, done: u64) -> Option<f64> {
        self.0.push_back((now, done));
        // One sample that is older than the window stays, as its beginning.
        while self.0.len() > SAMPLES_MAX
            || self.0.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= WINDOW)
        {
            self.0.pop_front();
        }
        let (from, before) = *self.0.front()?;
        let seconds = now.saturating_duration_since(from).as_secs_f64();
        (seconds > 0.0).then(|| done.saturating_sub(before) as f64 / seconds)
    }

    /// Whether more was done before: the work has begun anew.
    pub(super) fn is_ahead_of(&self, done: u64) -> bool {
        self.0.back().is_some_and(|(_, before)| *before > done)
    }
}
