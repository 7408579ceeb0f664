//! Rates and times to go of live lines, which are right from the first moment on or not shown.
//!
//! Invariants:
//! - a rate is that of the last [`WINDOW`], and there is none in the first [`FIRST`];
//! - a time to go is shown while the rate is steady only: TCP's slow start and a stalled path
//!   have none.

use crate::exit::Failure;
use crate::output::Output;
use crate::screen;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What a rate is of: long enough for several round trips and for bursts of the disk.
const WINDOW: Duration = Duration::from_secs(3);
/// Before that, what was done says nothing of the rate: the connections are starting.
const FIRST: Duration = Duration::from_secs(1);
/// What a time to go is from: short changes do not move it.
const LONG: Duration = Duration::from_secs(30);
/// How much work has to be known before there is a time to go.
const ENOUGH: Duration = Duration::from_secs(2);
/// A rate is steady if those of the older and the newer half of [`LONG`] differ by no more
/// than this factor.
const STEADY: f64 = 1.5;
/// Looks that are closer together than this are one, which bounds their number.
const APART: Duration = Duration::from_millis(100);

/// How fast something goes: fed with how much is done, again and again.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// What was done when; the first is the beginning, or [`LONG`] ago.
    looks: VecDeque<(Instant, u64)>,
}

impl Pace {
    /// At `now`, `done` of it was done before.
    pub(crate) fn new(now: Instant, done: u64) -> Pace {
        Pace { looks: VecDeque::from([(now, done)]) }
    }

    /// At `now`, `done` is done; `false` if that is too soon after the look before to count.
    pub(crate) fn look(&mut self, now: Instant, done: u64) -> bool {
        if self.looks.back().is_some_and(|(at, _)| now.saturating_duration_since(*at) < APART) {
            return false;
        }
        self.looks.push_back((now, done));
        // The window begins at a look: one that is older than it stays.
        while self.looks.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= LONG) {
            self.looks.pop_front();
        }
        true
    }

    /// Units a second in the last [`WINDOW`].
    pub(crate) fn rate(&self) -> Option<f64> {
        let (now, _) = *self.looks.back()?;
        let (from, _) = *self.looks.front()?;
        (now.duration_since(from) >= FIRST).then(|| self.between(now.checked_sub(WINDOW), Some(now)))
    }

    /// The time that `left` units take, at the steady rate so far.
    pub(crate) fn left(&self, left: u64) -> Option<Duration> {
        let ((from, first), (now, last)) = (*self.looks.front()?, *self.looks.back()?);
        let time = now.duration_since(from);
        if time < ENOUGH {
            return None;
        }
        let middle = Some(from + time / 2);
        let halves = [self.between(None, middle), self.between(middle, Some(now))];
        let rate = last.saturating_sub(first) as f64 / time.as_secs_f64();
        let (least, most) = (halves[0].min(halves[1]), halves[0].max(halves[1]));
        let steady = least > 0.0 && most <= STEADY * least;
        steady.then(|| Duration::from_secs_f64((left as f64 / rate).min(1e9)))
    }

    /// Units a second between the last look at or before `from`, or the first of all, and
    /// the last one at or before `to`.
    fn between(&self, from: Option<Instant>, to: Option<Instant>) -> f64 {
        let at = |when: Option<Instant>| {
            let looks = self.looks.iter().rev();
            let found = when.and_then(|when| looks.clone().find(|(at, _)| *at <= when));
            found.or(self.looks.front()).copied()
        };
        let (Some((from, before)), Some((to, done))) = (at(from), at(to)) else { return 0.0 };
        match to.saturating_duration_since(from).as_secs_f64() {
            0.0 => 0.0,
            seconds => done.saturating_sub(before) as f64 / seconds,
        }
    }
}

/// A time to go for people; empty if it is not known.
pub(crate) fn eta(left: Option<Duration>) -> String {
    let Some(left) = left else { return String::new() };
    let seconds = left.as_secs_f64().round() as u64;
    match seconds {
        0..120 => format!(" ETA {seconds} s"),
        120..7200 => format!(" ETA {} min", (seconds + 30) / 60),
        _ => format!(" ETA {} h", (seconds + 1800) / 3600),
    }
}

/// A bar with a rate and a time to go; hidden where there is no terminal.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    pace: Pace,
    total: u64,
    /// How a rate of bytes is written.
    format: fn(f64) -> String,
}

impl Bar {
    /// Of `total` bytes of work with this name; `format` writes bytes a second.
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

    /// So many bytes are done in all; `more` is said behind the rate.
    pub(crate) fn set(&mut self, done: u64, more: impl FnOnce() -> String) {
        if !self.pace.look(Instant::now(), done) {
            return;
        }
        let rate = self.pace.rate().map(|rate| format!(" {}", (self.format)(rate)));
        let eta = eta(self.pace.left(self.total.saturating_sub(done)));
        self.bar.set_message(format!("{}{eta}{}", rate.unwrap_or_default(), more()));
        self.bar.set_position(done);
    }

    /// Takes it from the screen.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Feeds a pace five times a second with what `done` says of the time in seconds.
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
        // Long ago does not count: twice as fast for the last half minute.
        let faster = |at: f64| steady(at) + steady((at - 100.0).max(0.0));
        assert_eq!(fed(140.0, faster).left(100 * MIB).map(|left| left.as_secs_f64().round()), Some(5.0));
    }

    #[test]
    fn looks_are_bounded_in_number() {
        let began = Instant::now();
        let mut pace = Pace::new(began, 0);
        for tick in 0..100_000 {
            pace.look(began + Duration::from_millis(tick), tick);
        }
        assert!(pace.looks.len() <= 302, "{}", pace.looks.len());
        assert_eq!(pace.rate().map(f64::round), Some(1000.0));
    }

    #[test]
    fn times_are_written_for_people() {
        let said = |seconds| eta(Some(Duration::from_secs(seconds)));
        assert_eq!((said(0), said(119), eta(None)), (" ETA 0 s".into(), " ETA 119 s".into(), String::new()));
        assert_eq!((said(1290), said(7300)), (" ETA 22 min".into(), " ETA 2 h".into()));
    }
}
