//! The adaptive spin before sleep.
//!
//! A spinning engine answers in a microsecond instead of the five to ten that a wake-up costs, but
//! it occupies a core, and takes time from other threads that need it. So the budget follows its
//! gain, as in the halt-polling of hypervisors: it doubles when a sleep turns out short (a slightly
//! longer spin would have caught the event), halves when sleeps are long, and drops to zero for a
//! while when a yield in the middle of the spin lets another thread run.

use super::Driver;
use std::time::{Duration, Instant};

/// First budget after none: about the cost of one sleep and wake-up.
const FIRST: Duration = Duration::from_micros(8);
/// A yield that takes longer let another thread run.
const YIELD_TAKEN: Duration = Duration::from_micros(15);
/// How long not to spin on a core that others want.
const PENALTY: Duration = Duration::from_millis(2);
/// Looks at the rings between two looks at the clock.
const LOOKS: u32 = 16;
/// Clock looks between two yields.
const LOOKS_PER_YIELD: u32 = 8;

pub(crate) struct Spin {
    max: Duration,
    budget: Duration,
    not_before: Option<Instant>,
}

impl Spin {
    pub(crate) fn new(max: Duration) -> Spin {
        Spin { max, budget: FIRST.min(max), not_before: None }
    }

    /// Looks for events until the budget that begins at `began` is used up.
    /// Whether there are any (or a timer is due).
    pub(crate) fn wait(
        &mut self,
        driver: &mut Driver,
        began: Instant,
        deadline: Option<Instant>,
        pending: &dyn Fn() -> bool,
    ) -> bool {
        if self.budget.is_zero() {
            return false;
        }
        if let Some(until) = self.not_before {
            if began < until {
                return false;
            }
            self.not_before = None;
        }
        let end = began + self.budget;
        let end = deadline.map_or(end, |d| d.min(end));
        let mut looks = 0;
        loop {
            for _ in 0..LOOKS {
                if driver.peek() || pending() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now >= end {
                return deadline.is_some_and(|d| now >= d);
            }
            looks += 1;
            if looks % LOOKS_PER_YIELD == 0 {
                std::thread::yield_now();
                let after = Instant::now();
                if after - now > YIELD_TAKEN {
                    self.not_before = Some(after + PENALTY);
                    return false;
                }
            }
        }
    }

    /// Learns from a sleep that was not cut short by spinning.
    pub(crate) fn slept(&mut self, slept: Duration) {
        if self.max.is_zero() {
            return;
        }
        self.budget = if slept < self.max {
            (self.budget * 2).max(FIRST).min(self.max)
        } else if self.budget > FIRST {
            self.budget / 2
        } else {
            Duration::ZERO
        };
    }
}
