//! The ramp of a number of threads: finds within a few service times how many files at once
//! hide the latency of a storage.
//!
//! By Little's law `n` threads that are never idle complete `n / t` files a second, if each
//! takes the time `t`. While a storage answers from a distance, `t` stays and the rate grows in
//! proportion; where a processor or a disk is the limit, `t` grows with the number. So the number
//! is multiplied by [`GROWTH`] as long as the rate follows, as in slow start of TCP, and each try
//! is judged by completions, not by time: it takes about one service time. The first try that
//! the rate does not follow ends the ramp at the best number that was measured, and
//! [`ThreadTuner`](super::threads::ThreadTuner) takes over.
//!
//! Invariants:
//! - the number is between one and the most;
//! - a number is raised only while at least as many files wait as threads are at work;
//! - it is raised at most until one try fails.

use super::service::Served;
use super::threads::CountChange;
use std::time::Duration;

/// Factor of a try: large, so that few tries reach the most, and so that proportional growth and
/// none are far apart even by few completions.
const GROWTH: usize = 4;
/// Mean service time from which more threads are tried. Below it a stage completes thousands of
/// files a second, and processors take much of the time.
const SHORT: Duration = Duration::from_millis(1);
/// The fewest completions that a rate is computed from.
const ENOUGH: u64 = 8;
/// Completions of each thread after which a try has failed. It may succeed before.
const SURE: u64 = 4;
/// A try is over after so many service times of the number before it, with however few
/// completions: where the rate does not grow, each file takes [`GROWTH`] of them.
const LATE: u32 = 2 * GROWTH as u32;
/// The least number is taken whose rate is this share of the best.
const NEAR: f64 = 0.9;

/// The state of the stage in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RampSample {
    pub(crate) served: Served,
    /// Time since the round began.
    pub(crate) elapsed: Duration,
    /// Files that wait for a thread, and that the next stage can take.
    pub(crate) waiting: usize,
}

impl RampSample {
    /// Files and blocks a second since the round began.
    fn completed(&self) -> f64 {
        self.served.units as f64 / self.elapsed.as_secs_f64().max(1e-6)
    }
}

/// What to do; either begins a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RampStep {
    /// Measure this number again.
    Again,
    Change(CountChange),
}

/// A number that was measured.
#[derive(Clone, Copy, Debug)]
struct MeasuredCount {
    number: usize,
    /// Files and blocks a second.
    rate: f64,
    mean: Duration,
}

/// Raises a number of threads while the rate of files grows with it.
#[derive(Debug)]
pub(crate) struct Ramp {
    most: usize,
    now: usize,
    /// The numbers that were tried, in ascending order; without the present one.
    tried: Vec<MeasuredCount>,
    ended: bool,
}

impl Ramp {
    /// Begins with `start` of at most `most`.
    pub(crate) fn new(start: usize, most: usize) -> Ramp {
        let most = most.max(1);
        let now = start.clamp(1, most);
        Ramp { most, now, tried: Vec::new(), ended: now == most }
    }

    /// Number of threads in use.
    pub(crate) fn now(&self) -> usize {
        self.now
    }

    /// Whether it may still raise the number.
    pub(crate) fn is_active(&self) -> bool {
        !self.ended
    }

    /// Whether a raised number is being measured.
    pub(crate) fn is_trying(&self) -> bool {
        !self.ended && !self.tried.is_empty()
    }

    /// Whether numbers above the present one were tried and given up.
    pub(crate) fn has_exceeded(&self) -> bool {
        self.tried.last().is_some_and(|last| last.number > self.now)
    }

    /// Records that the number was changed otherwise.
    pub(crate) fn set(&mut self, number: usize) {
        self.now = number.clamp(1, self.most);
        self.tried.clear();
    }

    /// Records that no more than `number` threads can be started.
    pub(crate) fn bound(&mut self, number: usize) {
        self.most = number.max(1);
        self.set(number);
        self.ended = true;
    }

    /// Takes the present state of a round; returns what begins the next one.
    pub(crate) fn look(&mut self, sample: RampSample) -> Option<RampStep> {
        if self.ended {
            return None;
        }
        let units = sample.served.units;
        // Threads that were added complete a file each within one service time; those that were
        // at work before do so later.
        let needed = ENOUGH.max(self.now as u64 / 2);
        let late = self.tried.last().is_some_and(|last| sample.elapsed > LATE * last.mean);
        if units < needed && !(late && sample.waiting >= self.now) {
            return None;
        }
        let mut this = self.measured(sample.served);
        match self.tried.last().copied() {
            Some(last) if !self.has_followed(last, this, sample, units >= needed) => {
                // The first completions also measure when a thread was started and looked at.
                if !late && units < SURE * self.now as u64 {
                    return None;
                }
                if sample.waiting >= self.now {
                    this.rate = sample.completed();
                }
                self.tried.push(this);
                return Some(self.end(last, this));
            }
            None if this.mean < SHORT => return Some(RampStep::Again),
            _ => {}
        }
        if sample.waiting < self.now {
            // Other stages limit now: the number is enough, and is measured anew when it is not.
            self.tried.clear();
            return Some(RampStep::Again);
        }
        self.tried.push(this);
        if self.now == self.most {
            self.ended = true;
            return Some(RampStep::Again);
        }
        let from = self.now;
        self.now = (GROWTH * from).min(from + sample.waiting).min(self.most);
        let (ms, waiting) = (this.mean.as_secs_f64() * 1e3, sample.waiting);
        let why =
            format!("each takes {ms:.1} ms and {waiting} wait: as many more are tried as may hide that");
        Some(RampStep::Change(CountChange { from, to: self.now, why }))
    }

    /// The measurement of the present number, by Little's law.
    fn measured(&self, Served { units, busy }: Served) -> MeasuredCount {
        let mean = busy.as_secs_f64() / units.max(1) as f64;
        let rate = self.now as f64 / mean.max(1e-9);
        MeasuredCount { number: self.now, rate, mean: Duration::from_secs_f64(mean) }
    }

    /// Whether the rate has grown at least by the square root of what proportional growth from
    /// `last` would be: as far from that as from none.
    fn has_followed(
        &self,
        last: MeasuredCount,
        this: MeasuredCount,
        sample: RampSample,
        enough: bool,
    ) -> bool {
        let mut rate = this.rate;
        if sample.waiting >= self.now {
            // In the queue of a busy disk the first files of a round still take little time, but no
            // more of them are completed. Only the added threads are sure to have completed theirs.
            let added = (self.now - last.number) as f64;
            rate = rate.min(sample.completed() * self.now as f64 / added);
        }
        enough && rate >= last.rate * (self.now as f64 / last.number as f64).sqrt()
    }

    /// Ends at the best number, after the rate did not follow from `last` to `this`.
    fn end(&mut self, last: MeasuredCount, this: MeasuredCount) -> RampStep {
        self.ended = true;
        let best = self.tried.iter().map(|one| one.rate).fold(0.0, f64::max);
        let kept =
            self.tried.iter().find(|one| one.rate >= NEAR * best).map_or(last.number, |one| one.number);
        if kept == self.now {
            return RampStep::Again;
        }
        let percent = (this.rate / last.rate.max(f64::MIN_POSITIVE) - 1.0) * 100.0;
        let why = format!("the rate changed by {percent:+.0} % with {}: back to {kept}", self.now);
        let from = std::mem::replace(&mut self.now, kept);
        RampStep::Change(CountChange { from, to: kept, why })
    }
}
