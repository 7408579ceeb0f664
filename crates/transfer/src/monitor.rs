//! How a copy is getting on, for whoever watches.

use crate::queue::Gauge;
use crate::read::ReadStats;
use crate::silence::QUIET;
use crate::wire::{Counts, Limit, Planned, Scanned, Stage, Trouble, Tuned};
use longhaul_engine::net::TcpInfo;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Troubles that are kept for whoever watches; further ones are counted only.
const TROUBLES: usize = 100_000;

/// Plans that are kept for whoever watches, who takes them several times a second; and
/// for who has not taken any so far, and may never do so.
const PLANNED: usize = 1 << 20;
const PLANNED_FIRST: usize = 1 << 16;

/// Notes that are kept for whoever watches: nobody may, and the far side can have
/// any number of them made.
const NOTES: usize = 256;

/// What a path can carry is told by the best time of this length.
const WINDOW: Duration = Duration::from_secs(1);

type Look = Box<dyn Fn() -> Gauge + Send + Sync>;

/// Where a copy can be watched while it runs, from any thread.
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
    carried: Mutex<Carried>,
    sockets: Mutex<Option<TcpInfo>>,
    far_limit: Mutex<Option<Limit>>,
    /// The last block to be sent had to wait for the rate that was asked for.
    paced: AtomicBool,
    /// For how long the other side has said nothing, in milliseconds.
    silent: AtomicU64,
    gauges: Mutex<Vec<(Stage, Look)>>,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Monitor({:?})", self.now())
    }
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Files that were found, here or by who sends.
    pub scanned_files: u64,
    /// Their bytes.
    pub scanned_bytes: u64,
    /// The scan is complete, so those are totals.
    pub scan_done: bool,
    /// Bytes that were read to be sent.
    pub read_bytes: u64,
    /// What is written.
    pub counts: Counts,
    /// What the rest waits for, if it can be told.
    pub limit: Option<Limit>,
    /// For how long the other side has said nothing.
    pub silent: Duration,
    /// Bytes that have got across, with everything that is not content.
    pub carried: u64,
    /// Bytes a second of the best second so far, of those; what the path can carry
    /// is no less.
    pub best: Option<f64>,
}

/// Something that people should know.
#[derive(Clone, Debug)]
pub enum Note {
    /// In words.
    Words(String),
    /// A number was changed.
    Tuned {
        /// Which, and why.
        tuned: Tuned,
        /// On the far side.
        far: bool,
    },
}

/// How many of something are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Threads of this stage, or connections.
    pub stage: Stage,
    /// On the far side.
    pub far: bool,
    /// So many.
    pub number: usize,
    /// Why.
    pub why: String,
}

/// What got across, of late.
#[derive(Debug, Default)]
struct Carried {
    window: VecDeque<(Instant, u64)>,
    bytes: u64,
    best: Option<f64>,
}

impl Carried {
    fn add(&mut self, at: Instant, bytes: u64) {
        self.bytes = bytes;
        self.window.push_back((at, bytes));
        // The window is the shortest that is no shorter than it is to be.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Monitor {
    /// For a copy that begins.
    pub fn new() -> Monitor {
        Monitor::default()
    }

    /// Since when there is something to watch: before that ssh may still ask somebody
    /// for a password, who takes what time that takes, on the same terminal.
    pub fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    /// The time of the copy begins.
    pub(crate) fn begin(&self) -> Instant {
        *self.began.get_or_init(Instant::now)
    }

    /// How far it is.
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

    /// Objects that could not be copied since this was last called.
    pub fn take_troubles(&self) -> Vec<Trouble> {
        std::mem::take(&mut *lock(&self.troubles))
    }

    /// What would be done, of what was found out since this was last called.
    pub fn take_planned(&self) -> Vec<Planned> {
        self.plans_are_taken.store(true, Relaxed);
        std::mem::take(&mut *lock(&self.planned))
    }

    /// What else people should know, since this was last called.
    pub fn take_notes(&self) -> Vec<Note> {
        std::mem::take(&mut *lock(&self.notes))
    }

    pub(crate) fn note(&self, note: String) {
        self.keep(Note::Words(note));
    }

    /// How many of everything are used at the moment.
    pub fn chosen(&self) -> Vec<Chosen> {
        lock(&self.chosen).clone()
    }

    /// So many are used of something, from now on.
    pub(crate) fn choose(&self, stage: Stage, far: bool, number: usize, why: &str) {
        let mut chosen = lock(&self.chosen);
        let now = Chosen { stage, far, number, why: why.to_owned() };
        match chosen.iter_mut().find(|one| one.stage == stage && one.far == far) {
            Some(one) => *one = now,
            None => chosen.push(now),
        }
    }

    /// A number was changed on this side, or on the far one.
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

    /// So many bytes have got across by now, on all connections.
    pub(crate) fn carried(&self, at: Instant, bytes: u64) {
        lock(&self.carried).add(at, bytes);
    }

    /// What the kernel says of the connections that this side sent on, all as one,
    /// when everything was sent.
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

    /// How much there is, as far as it was found elsewhere.
    pub(crate) fn scanned(&self, scanned: Scanned) {
        self.scanned_files.store(scanned.files, Relaxed);
        self.scanned_bytes.store(scanned.bytes, Relaxed);
        self.scan_done.store(scanned.done, Relaxed);
    }

    /// How much there is, as far as it is known.
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

    /// Adds a queue to look at: `stage` empties it.
    pub(crate) fn watch(&self, stage: Stage, look: impl Fn() -> Gauge + Send + Sync + 'static) {
        lock(&self.gauges).push((stage, Box::new(look)));
    }

    /// Whether what is sent waits for the rate that was asked for.
    pub(crate) fn paces(&self, waited: bool) {
        self.paced.store(waited, Relaxed);
    }

    /// For how long the other side has said nothing.
    pub(crate) fn silent(&self, time: Duration) {
        self.silent.store(time.as_millis().try_into().unwrap_or(u64::MAX), Relaxed);
    }

    fn silence(&self) -> Duration {
        Duration::from_millis(self.silent.load(Relaxed))
    }

    /// What the rest waits for, if it can be told: of this side, or of the far one
    /// where this waits for that.
    fn limit(&self) -> Option<Limit> {
        let far = *lock(&self.far_limit);
        // What is sent slowly, as was asked for, comes slowly.
        if self.silence() >= QUIET && far != Some(Limit::Rate) {
            return Some(Limit::Silence);
        }
        match self.limit_here() {
            // What the network does not take may be what the far side does not.
            Some(Limit::Stage(Stage::Send)) => {
                far.filter(|limit| *limit == Limit::Stage(Stage::Write)).or(Some(Limit::Stage(Stage::Send)))
            }
            None => far,
            here => here,
        }
    }

    /// The rate that was asked for, if what is sent waits for that, or else a stage: the last here whose queue is more than half full limits: all before it
    /// wait, and what is behind it has nothing to do. Where none is full, those that
    /// read do as long as there is something to read, and else those that look for
    /// more. A side that only writes waits for the far one.
    pub(crate) fn limit_here(&self) -> Option<Limit> {
        let gauges = lock(&self.gauges);
        let full = gauges.iter().rev().find(|(_, look)| look().fill > 0.5).map(|(stage, _)| *stage);
        // Where both sides are here, the writing one may be what fills all queues.
        if self.paced.load(Relaxed) && full != Some(Stage::Write) {
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

    /// The far side says what of it the rest waits for.
    pub(crate) fn limit_there(&self, limit: Option<Limit>) {
        *lock(&self.far_limit) = limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_second_is_found_among_slow_ones() {
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
    fn the_stage_that_others_wait_for_is_named_on_either_side() {
        let gauge = |fill: f64| Gauge { fill, empty: fill == 0.0, ..Gauge::default() };
        let sending = |read, send, far| {
            let monitor = Monitor::new();
            monitor.watch(Stage::Read, move || gauge(read));
            monitor.watch(Stage::Send, move || gauge(send));
            monitor.limit_there(far);
            monitor.now().limit
        };
        assert_eq!(sending(0.9, 0.9, None), Some(Limit::Stage(Stage::Send)));
        assert_eq!(sending(0.9, 0.9, Some(Limit::Stage(Stage::Write))), Some(Limit::Stage(Stage::Write)));
        assert_eq!(sending(0.1, 0.1, Some(Limit::Stage(Stage::Write))), Some(Limit::Stage(Stage::Read)));
        assert_eq!(sending(0.0, 0.1, None), Some(Limit::Stage(Stage::Scan)));
        let receiving = |write, far| {
            let monitor = Monitor::new();
            monitor.watch(Stage::Write, move || gauge(write));
            monitor.limit_there(far);
            monitor.now().limit
        };
        assert_eq!(receiving(0.9, Some(Limit::Stage(Stage::Send))), Some(Limit::Stage(Stage::Write)));
        assert_eq!(receiving(0.1, Some(Limit::Stage(Stage::Read))), Some(Limit::Stage(Stage::Read)));
    }

    #[test]
    fn a_rate_that_was_asked_for_and_a_silent_side_are_named() {
        let gauge = |fill: f64| Gauge { fill, empty: fill == 0.0, ..Gauge::default() };
        let monitor = Monitor::new();
        monitor.watch(Stage::Read, move || gauge(0.9));
        monitor.watch(Stage::Send, move || gauge(0.9));
        monitor.paces(true);
        assert_eq!(monitor.now().limit, Some(Limit::Rate));
        monitor.silent(QUIET);
        assert_eq!((monitor.now().limit, monitor.now().silent), (Some(Limit::Silence), QUIET));
        // What comes as slowly as was asked for is not silent.
        monitor.limit_there(Some(Limit::Rate));
        assert_eq!(monitor.now().limit, Some(Limit::Rate));
        monitor.silent(Duration::ZERO);
        monitor.paces(false);
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
        assert_eq!(monitor.take_notes().len(), NOTES, "what nobody takes does not grow");
    }
}
