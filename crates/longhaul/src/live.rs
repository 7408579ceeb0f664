//! Rates and remaining times of progress lines. Until they can be estimated they are not shown.
//!
//! Invariants:
//! - a rate is that of the last [`RATE_WINDOW`], and is unknown in the first [`RATE_DELAY`];
//! - a remaining time is known only while the rate is steady: not in TCP's slow start, nor on a
//!   stalled path.

use crate::exit::Failure;
use crate::output::Output;
use crate::screen;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Window of the rate: several round trips, and longer than bursts of a disk.
const RATE_WINDOW: Duration = Duration::from_secs(3);
/// Time after the start without a rate, while the connections are in slow start.
const RATE_DELAY: Duration = Duration::from_secs(1);
/// Window of the remaining time, which short changes of the rate do not affect.
const ETA_WINDOW: Duration = Duration::from_secs(30);
/// Time after the start without a remaining time.
const ETA_DELAY: Duration = Duration::from_secs(2);
/// A rate is steady if those of the older and the newer half of [`ETA_WINDOW`] differ by no more
/// than this factor.
const STEADY_FACTOR: f64 = 1.5;
/// Shortest time between samples, which bounds their number.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Estimates rate and remaining time from samples of the work done.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// Times and work done; from the start, or the last sample older than [`ETA_WINDOW`].
    samples: VecDeque<(Instant, u64)>,
}

impl Pace {
    /// An estimator that starts at `now`, when `done` units are done already.
    pub(crate) fn new(now: Instant, done: u64) -> Pace {
        Pace { samples: VecDeque::from([(now, done)]) }
    }

    /// Adds a sample; `false` if it was ignored, less than [`SAMPLE_INTERVAL`] after the last one.
    pub(crate) fn look(&mut self, now: Instant, done: u64) -> bool {
        if self.samples.back().is_some_and(|(at, _)| now.saturating_duration_since(*at) < SAMPLE_INTERVAL) {
            return false;
        }
        self.samples.push_back((now, done));
        // One sample older than the window stays, as its beginning.
        while self.samples.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= ETA_WINDOW) {
            self.samples.pop_front();
        }
        true
    }

    /// Units a second in the last [`RATE_WINDOW`]; `None` in the first [`RATE_DELAY`].
    pub(crate) fn rate(&self) -> Option<f64> {
        let (now, _) = *self.samples.back()?;
        let (from, _) = *self.samples.front()?;
        (now.duration_since(from) >= RATE_DELAY)
            .then(|| self.between(now.checked_sub(RATE_WINDOW), Some(now)))
    }

    /// The time that `left` more units take; `None` while the rate is not steady.
    pub(crate) fn left(&self, left: u64) -> Option<Duration> {
        let ((from, first), (now, last)) = (*self.samples.front()?, *self.samples.back()?);
        let time = now.duration_since(from);
        if time < ETA_DELAY {
            return None;
        }
        let middle = Some(from + time / 2);
        let halves = [self.between(None, middle), self.between(middle, Some(now))];
        let rate = last.saturating_sub(first) as f64 / time.as_secs_f64();
        let (least, most) = (halves[0].min(halves[1]), halves[0].max(halves[1]));
        let steady = least > 0.0 && most <= STEADY_FACTOR * least;
        steady.then(|| Duration::from_secs_f64((left as f64 / rate).min(1e9)))
    }

    /// Units a second between the last samples at or before `from` and `to`; the first sample
    /// where all are later.
    fn between(&self, from: Option<Instant>, to: Option<Instant>) -> f64 {
        let at = |when: Option<Instant>| {
            let newest_first = self.samples.iter().rev();
            let found = when.and_then(|when| newest_first.clone().find(|(at, _)| *at <= when));
            found.or(self.samples.front()).copied()
        };
        let (Some((from, before)), Some((to, done))) = (at(from), at(to)) else { return 0.0 };
        match to.saturating_duration_since(from).as_secs_f64() {
            0.0 => 0.0,
            seconds => done.saturating_sub(before) as f64 / seconds,
        }
    }
}

/// A remaining time as text; empty if it is unknown.
pub(crate) fn eta(left: Option<Duration>) -> String {
    let Some(left) = left else { return String::new() };
    let seconds = left.as_secs_f64().round() as u64;
    match seconds {
        0..120 => format!(" ETA {seconds} s"),
        120..7200 => format!(" ETA {} min", (seconds + 30) / 60),
        _ => format!(" ETA {} h", (seconds + 1800) / 3600),
    }
}

/// A progress bar with a rate and a remaining time; hidden where stderr is not a terminal.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    pace: Pace,
    total: u64,
    /// Formats a rate in bytes a second.
    format: fn(f64) -> String,
}

impl Bar {
    /// A bar of `total` bytes; `name` precedes it, and `format` formats a rate in bytes a second.
    pub(crate) fn new(
        output: Output,
        name: &'static str,
        total: u64,
        format: fn(f64) -> String,
    ) -> Result<Bar, Failure> {
        let bar = if output.is_live() { screen::add(ProgressBar::new(total)) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{prefix}{bar:24} {bytes}/{total_bytes}{msg}");
        bar.set_style(style.map_err(Failure::failed)?);
        bar.set_prefix(name);
        Ok(Bar { bar, pace: Pace::new(Instant::now(), 0), total, format })
    }

    /// Sets the number of bytes done; `more` is appended to the rate.
    pub(crate) fn set(&mut self, done: u64, more: impl FnOnce() -> String) {
        if !self.pace.look(Instant::now(), done) {
            return;
        }
        let rate = self.pace.rate().map(|rate| format!(" {}", (self.format)(rate)));
        let eta = eta(self.pace.left(self.total.saturating_sub(done)));
        self.bar.set_message(format!("{}{eta}{}", rate.unwrap_or_default(), more()));
        self.bar.set_position(done);
    }

    /// Clears the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Adds five samples a second: `done` gives the bytes done at a time in seconds.
    fn fed(seconds: f64, done: impl Fn(f64) -> f64) -> Pace {
        let began = Instant::now();
        let mut pace = Pace::new(began, 0);
        for tick in 1..=(seconds * 5.0) as u32 {
            let at = f64::from(tick) / 5.0;
            pace.look(began + Duration::from_secs_f64(at), done(at) as u64);
        }
        pace
    }

    #[test]
    fn a_slow_start_has_neither_an_absurd_rate_nor_an_absurd_eta() {
        // Slow start: 0.5 MiB in the first second, 100 MiB/s from then on.
        let done = |at: f64| (0.5 * at.min(1.0) + 100.0 * (at - 1.0).max(0.0)) * MIB as f64;
        assert_eq!(fed(0.8, done).rate(), None);
        for seconds in [1.0, 1.2, 1.6, 2.0, 2.4] {
            let pace = fed(seconds, done);
            assert_eq!(pace.left(200 * MIB), None, "at {seconds} s");
        }
        let late = fed(6.0, done);
        assert_eq!(late.rate().map(|rate| (rate / MIB as f64).round()), Some(100.0));
        let left = late.left(200 * MIB).expect("steady").as_secs_f64();
        assert!((1.9..2.6).contains(&left), "{left} s");
    }

    #[test]
    fn a_steady_rate_has_an_eta_and_a_stalled_one_has_none() {
        let steady = |at: f64| 10.0 * at * MIB as f64;
        assert_eq!(fed(1.8, steady).left(100 * MIB), None, "too early");
        let left = fed(2.0, steady).left(100 * MIB).expect("steady");
        assert_eq!(left.as_secs_f64().round(), 10.0);
        let stalled = |at: f64| steady(at.min(2.0));
        assert_eq!(fed(8.0, stalled).left(100 * MIB), None);
        assert_eq!(fed(8.0, stalled).rate(), Some(0.0), "the window has moved on");
        // Only the window counts: the rate has doubled for longer than that.
        let faster = |at: f64| steady(at) + steady((at - 100.0).max(0.0));
        assert_eq!(fed(140.0, faster).left(100 * MIB).map(|left| left.as_secs_f64().round()), Some(5.0));
    }

    #[test]
    fn the_number_of_samples_is_bounded() {
        let began = Instant::now();
        let mut pace = Pace::new(began, 0);
        for tick in 0..100_000 {
            pace.look(began + Duration::from_millis(tick), tick);
        }
        assert!(pace.samples.len() <= 302, "{}", pace.samples.len());
        assert_eq!(pace.rate().map(f64::round), Some(1000.0));
    }

    #[test]
    fn times_are_written_for_people() {
        let text = |seconds| eta(Some(Duration::from_secs(seconds)));
        assert_eq!((text(0), text(119), eta(None)), (" ETA 0 s".into(), " ETA 119 s".into(), String::new()));
        assert_eq!((text(1290), text(7300)), (" ETA 22 min".into(), " ETA 2 h".into()));
    }
}
