//! Progress of a copy, for the program that shows it.

use crate::guard::lock;
use crate::link::peer_timeout::QUIET;
use crate::queue::Gauge;
use crate::send::read::ReadStats;
use crate::wire::{Counts, Limit, Planned, Scanned, Stage, Trouble, Tuned};
use longhaul_engine::net::TcpInfo;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The most failures kept for the caller to take; further ones are only counted.
const TROUBLES: usize = 100_000;

/// The most dry-run actions kept for a caller that takes them regularly; and for one that
/// has not taken any yet, and may never do so.
const PLANNED: usize = 1 << 20;
const PLANNED_FIRST: usize = 1 << 16;

/// The most notes kept for the caller: it may never take them, and the peer can cause any
/// number of them.
const NOTES: usize = 256;

/// The interval over which the best rate of a path is measured.
const WINDOW: Duration = Duration::from_secs(1);

type GaugeFn = Box<dyn Fn() -> Gauge + Send + Sync>;

/// Progress of a running copy, readable from any thread.
#[derive(Default)]
pub struct Monitor {
    began: OnceLock<Instant>,
    pub(crate) scanned_files: AtomicU64,
    pub(crate) scanned_bytes: AtomicU64,
    pub(crate) scan_done: AtomicBool,
    pub(crate) read: Arc<ReadStats>,
    counts: Mutex<Counts>,
    troubles: Mutex<Vec<Trouble>>,
    planned: Mutex<Vec<Planned>>,
    plans_are_taken: AtomicBool,
    notes: Mutex<Vec<Note>>,
    chosen: Mutex<Vec<Chosen>>,
    carried: Mutex<Throughput>,
    sockets: Mutex<Option<TcpInfo>>,
    peer_limit: Mutex<Option<Limit>>,
    /// The last frame had to wait for the rate limit.
    is_rate_limited: AtomicBool,
    /// How long the peer has been silent, in milliseconds.
    silent: AtomicU64,
    gauges: Mutex<Vec<(Stage, GaugeFn)>>,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Monitor({:?})", self.now())
    }
}

/// Progress of a copy at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Files that the sender's scan found.
    pub scanned_files: u64,
    /// Bytes of content of these files.
    pub scanned_bytes: u64,
    /// Whether the scan is complete, so that these are totals.
    pub scan_done: bool,
    /// Bytes read for sending.
    pub read_bytes: u64,
    /// Objects and bytes written by the receiver.
    pub counts: Counts,
    /// What limits the copy, if it is known.
    pub limit: Option<Limit>,
    /// How long the peer has been silent.
    pub silent: Duration,
    /// Bytes transferred over the network, protocol overhead included.
    pub carried: u64,
    /// The best rate of `carried` over a second so far, in bytes a second: a lower bound of
    /// the path's capacity.
    pub best: Option<f64>,
}

/// A message for the user.
#[derive(Clone, Debug)]
pub enum Note {
    /// Free text.
    Words(String),
    /// A tuner changed a number of threads or connections.
    Tuned {
        /// The stage, the numbers and the reason.
        tuned: Tuned,
        /// Whether it is that of the peer.
        far: bool,
    },
}

/// The number of threads or connections of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The stage; [`Stage::Send`] means connections.
    pub stage: Stage,
    /// Whether it is that of the peer.
    pub far: bool,
    /// Threads, or connections.
    pub number: usize,
    /// The reason, in words.
    pub why: String,
}

/// Transferred bytes, and the best rate over [`WINDOW`].
#[derive(Debug, Default)]
struct Throughput {
    window: VecDeque<(Instant, u64)>,
    bytes: u64,
    best: Option<f64>,
}

impl Throughput {
    fn add(&mut self, at: Instant, bytes: u64) {
        self.bytes = bytes;
        self.window.push_back((at, bytes));
        // Keeps the fewest samples that cover the interval.
        while self.window.get(1).is_some_and(|(second, _)| at.saturating_duration_since(*second) >= WINDOW) {
            self.window.pop_front();
        }
        let Some((began, before)) = self.window.front() else { return };
        let time = at.saturating_duration_since(*began);
        if time >= WINDOW {
            let rate = bytes.saturating_sub(*before) as f64 / time.as_secs_f64();
            self.best = Some(self.best.map_or(rate, |best| best.max(rate)));
        }
    }
}

impl Monitor {
    /// The monitor of a new copy.
    pub fn new() -> Monitor {
        Monitor::default()
    }

    /// When the copy began; `None` before, while ssh may still ask for a password on the
    /// same terminal.
    pub fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    /// Starts the copy's clock.
    pub(crate) fn begin(&self) -> Instant {
        *self.began.get_or_init(Instant::now)
    }

    /// Progress at this moment.
    pub fn now(&self) -> Snapshot {
        let (carried, best) = {
            let carried = lock(&self.carried);
            (carried.bytes, carried.best)
        };
        Snapshot {
            scanned_files: self.scanned_files.load(Relaxed),
            scanned_bytes: self.scanned_bytes.load(Relaxed),
            scan_done: self.scan_done.load(Relaxed),
            read_bytes: self.read.bytes.load(Relaxed),
            counts: *lock(&self.counts),
            limit: self.limit(),
            silent: self.silence(),
            carried,
            best,
        }
    }

    /// Takes the failures since the last call.
    pub fn take_troubles(&self) -> Vec<Trouble> {
        std::mem::take(&mut *lock(&self.troubles))
    }

    /// Takes the dry-run actions since the last call.
    pub fn take_planned(&self) -> Vec<Planned> {
        self.plans_are_taken.store(true, Relaxed);
        std::mem::take(&mut *lock(&self.planned))
    }

    /// Takes the notes since the last call.
    pub fn take_notes(&self) -> Vec<Note> {
        std::mem::take(&mut *lock(&self.notes))
    }

    pub(crate) fn note(&self, note: String) {
        self.keep(Note::Words(note));
    }

    /// The present numbers of threads and connections.
    pub fn chosen(&self) -> Vec<Chosen> {
        lock(&self.chosen).clone()
    }

    /// Sets the number of threads or connections of a stage.
    pub(crate) fn choose(&self, stage: Stage, far: bool, number: usize, why: &str) {
        let mut chosen = lock(&self.chosen);
        let now = Chosen { stage, far, number, why: why.to_owned() };
        match chosen.iter_mut().find(|one| one.stage == stage && one.far == far) {
            Some(one) => *one = now,
            None => chosen.push(now),
        }
    }

    /// Records a change by a tuner of this side, or of the peer.
    pub(crate) fn tuned(&self, tuned: Tuned, far: bool) {
        self.choose(tuned.stage, far, tuned.to.into(), &tuned.why);
        self.keep(Note::Tuned { tuned, far });
    }

    fn keep(&self, note: Note) {
        let mut notes = lock(&self.notes);
        if notes.len() < NOTES {
            notes.push(note);
        }
    }

    /// Records the bytes transferred up to now on all connections.
    pub(crate) fn carried(&self, at: Instant, bytes: u64) {
        lock(&self.carried).add(at, bytes);
    }

    /// `TCP_INFO` of the connections that this side sent on, added up at the end of the
    /// copy.
    pub fn sockets(&self) -> Option<TcpInfo> {
        *lock(&self.sockets)
    }

    pub(crate) fn set_sockets(&self, info: TcpInfo) {
        *lock(&self.sockets) = Some(info);
    }

    pub(crate) fn trouble(&self, trouble: Trouble) {
        let mut troubles = lock(&self.troubles);
        if troubles.len() < TROUBLES {
            troubles.push(trouble);
        }
    }

    pub(crate) fn planned(&self, one: Planned) {
        let mut planned = lock(&self.planned);
        let most = if self.plans_are_taken.load(Relaxed) { PLANNED } else { PLANNED_FIRST };
        if planned.len() < most {
            planned.push(one);
        }
    }

    /// Sets the progress of the peer's scan.
    pub(crate) fn scanned(&self, scanned: Scanned) {
        self.scanned_files.store(scanned.files, Relaxed);
        self.scanned_bytes.store(scanned.bytes, Relaxed);
        self.scan_done.store(scanned.done, Relaxed);
    }

    /// The progress of the scan.
    pub(crate) fn what_is_scanned(&self) -> Scanned {
        Scanned {
            done: self.scan_done.load(Relaxed),
            files: self.scanned_files.load(Relaxed),
            bytes: self.scanned_bytes.load(Relaxed),
        }
    }

    pub(crate) fn set_counts(&self, counts: Counts) {
        *lock(&self.counts) = counts;
    }

    /// Adds the gauge of the queue that `stage` takes from.
    pub(crate) fn watch(&self, stage: Stage, look: impl Fn() -> Gauge + Send + Sync + 'static) {
        lock(&self.gauges).push((stage, Box::new(look)));
    }

    /// Records whether the last frame waited for the rate limit.
    pub(crate) fn rate_limited(&self, waited: bool) {
        self.is_rate_limited.store(waited, Relaxed);
    }

    /// Records how long the peer has been silent.
    pub(crate) fn silent(&self, time: Duration) {
        self.silent.store(time.as_millis().try_into().unwrap_or(u64::MAX), Relaxed);
    }

    fn silence(&self) -> Duration {
        Duration::from_millis(self.silent.load(Relaxed))
    }

    /// What limits the copy: on this side, or on the peer's where this side waits for it.
    fn limit(&self) -> Option<Limit> {
        let far = *lock(&self.peer_limit);
        // With a rate limit at the peer, pauses are expected.
        if self.silence() >= QUIET && far != Some(Limit::Rate) {
            return Some(Limit::Silence);
        }
        match self.limit_here() {
            // A full send queue may mean that the peer cannot write fast enough.
            Some(Limit::Stage(Stage::Send)) => {
                far.filter(|limit| *limit == Limit::Stage(Stage::Write)).or(Some(Limit::Stage(Stage::Send)))
            }
            None => far,
            here => here,
        }
    }

    /// What limits the copy on this side: the rate limit if frames wait for it, else the
    /// last stage whose queue is more than half full, since the stages before it wait and
    /// those behind it idle. With no such queue it is reading while there is work for it,
    /// and else scanning. `None` on a side that only writes: it waits for the peer.
    pub(crate) fn limit_here(&self) -> Option<Limit> {
        let gauges = lock(&self.gauges);
        let full = gauges.iter().rev().find(|(_, look)| look().fill > 0.5).map(|(stage, _)| *stage);
        // In a local copy slow writing may fill all queues.
        if self.is_rate_limited.load(Relaxed) && full != Some(Stage::Write) {
            return Some(Limit::Rate);
        }
        if let Some(stage) = full {
            return Some(Limit::Stage(stage));
        }
        let read = gauges.iter().find(|(stage, _)| *stage == Stage::Read).map(|(_, look)| look());
        let stage = match (read, self.scan_done.load(Relaxed)) {
            (Some(read), _) if !read.empty => Stage::Read,
            (Some(_), true) => Stage::Send,
            (Some(_), false) => Stage::Scan,
            (None, _) => return None,
        };
        Some(Limit::Stage(stage))
    }

    /// Sets the limit that the peer reports.
    pub(crate) fn set_peer_limit(&self, limit: Option<Limit>) {
        *lock(&self.peer_limit) = limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_second_is_kept_among_slow_ones() {
        let (monitor, begin) = (Monitor::new(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        let mut bytes = 0;
        for ms in (0..=5000).step_by(200) {
            bytes += if (2000..3200).contains(&ms) { 200 } else { 20 };
            monitor.carried(at(ms), bytes);
            if ms == 800 {
                assert_eq!(monitor.now().best, None, "less than a second is not enough");
            }
        }
        assert_eq!(monitor.now().best, Some(1000.0));
    }

    #[test]
    fn the_limiting_stage_is_named_on_either_side() {
        let gauge = |fill: f64| Gauge { fill, empty: fill == 0.0, ..Gauge::default() };
        let sending = |read, send, far| {
            let monitor = Monitor::new();
            monitor.watch(Stage::Read, move || gauge(read));
            monitor.watch(Stage::Send, move || gauge(send));
            monitor.set_peer_limit(far);
            monitor.now().limit
        };
        assert_eq!(sending(0.9, 0.9, None), Some(Limit::Stage(Stage::Send)));
        assert_eq!(sending(0.9, 0.9, Some(Limit::Stage(Stage::Write))), Some(Limit::Stage(Stage::Write)));
        assert_eq!(sending(0.1, 0.1, Some(Limit::Stage(Stage::Write))), Some(Limit::Stage(Stage::Read)));
        assert_eq!(sending(0.0, 0.1, None), Some(Limit::Stage(Stage::Scan)));
        let receiving = |write, far| {
            let monitor = Monitor::new();
            monitor.watch(Stage::Write, move || gauge(write));
            monitor.set_peer_limit(far);
            monitor.now().limit
        };
        assert_eq!(receiving(0.9, Some(Limit::Stage(Stage::Send))), Some(Limit::Stage(Stage::Write)));
        assert_eq!(receiving(0.1, Some(Limit::Stage(Stage::Read))), Some(Limit::Stage(Stage::Read)));
    }

    #[test]
    fn a_rate_limit_and_a_silent_peer_are_named() {
        let gauge = |fill: f64| Gauge { fill, empty: fill == 0.0, ..Gauge::default() };
        let monitor = Monitor::new();
        monitor.watch(Stage::Read, move || gauge(0.9));
        monitor.watch(Stage::Send, move || gauge(0.9));
        monitor.rate_limited(true);
        assert_eq!(monitor.now().limit, Some(Limit::Rate));
        monitor.silent(QUIET);
        assert_eq!((monitor.now().limit, monitor.now().silent), (Some(Limit::Silence), QUIET));
        // Pauses of a rate-limited peer are not silence.
        monitor.set_peer_limit(Some(Limit::Rate));
        assert_eq!(monitor.now().limit, Some(Limit::Rate));
        monitor.silent(Duration::ZERO);
        monitor.rate_limited(false);
        assert_eq!(monitor.now().limit, Some(Limit::Stage(Stage::Send)));
    }

    #[test]
    fn the_last_choice_counts() {
        let monitor = Monitor::new();
        monitor.choose(Stage::Read, false, 4, "at first");
        let tuned = |to| Tuned { stage: Stage::Read, from: 4, to, why: "it helps".into() };
        monitor.tuned(tuned(6), false);
        monitor.tuned(tuned(9), true);
        let numbers: Vec<_> = monitor.chosen().iter().map(|one| (one.far, one.number)).collect();
        assert_eq!((numbers, monitor.take_notes().len()), (vec![(false, 6), (true, 9)], 2));
        (0..2 * NOTES as u16).for_each(|number| monitor.tuned(tuned(number), true));
        assert_eq!(monitor.take_notes().len(), NOTES, "notes that are not taken stay bounded");
    }
}
