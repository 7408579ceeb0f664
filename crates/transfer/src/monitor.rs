//! Progress of a copy, for the program that shows it.

mod limits;
mod reports;

use crate::guard::lock;
use crate::queue::Gauge;
use crate::send::read::ReadStats;
use crate::wire::{Counts, Limit, Planned, Scanned, Stage, Trouble, Tuned};
use futures_util::task::AtomicWaker;
use limits::Limits;
use longhaul_engine::net::TcpInfo;
use reports::Reports;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

/// The interval over which the best rate of a path is measured.
const WINDOW: Duration = Duration::from_secs(1);

/// Progress of a running copy, readable from any thread.
#[derive(Default)]
pub struct Monitor {
    began: OnceLock<Instant>,
    pub(crate) scan: ScanProgress,
    pub(crate) read: Arc<ReadStats>,
    counts: Mutex<Counts>,
    reports: Reports,
    chosen: Mutex<Vec<Chosen>>,
    carried: Mutex<Throughput>,
    sockets: Mutex<Option<TcpInfo>>,
    limits: Limits,
    cancelled: AtomicBool,
    waiter: AtomicWaker,
}

/// Progress of the scan, by the scanner thread or by the peer's reports.
#[derive(Debug, Default)]
pub(crate) struct ScanProgress {
    files: AtomicU64,
    bytes: AtomicU64,
    done: AtomicBool,
}

impl ScanProgress {
    /// Counts a file of `size` bytes.
    pub(crate) fn add(&self, size: u64) {
        self.files.fetch_add(1, Relaxed);
        self.bytes.fetch_add(size, Relaxed);
    }

    /// Records the end of the scan.
    pub(crate) fn end(&self) {
        self.done.store(true, Relaxed);
    }

    /// Sets the progress of the peer's scan.
    pub(crate) fn set(&self, scanned: Scanned) {
        self.files.store(scanned.files, Relaxed);
        self.bytes.store(scanned.bytes, Relaxed);
        self.done.store(scanned.done, Relaxed);
    }

    /// Files and bytes found until now.
    pub(crate) fn now(&self) -> Scanned {
        Scanned {
            done: self.done.load(Relaxed),
            files: self.files.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }
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
    /// A note for people, as a sentence.
    Words(String),
    /// A tuner changed a number of threads or connections.
    Tuned {
        /// The stage, the numbers and the reason.
        tuned: Tuned,
        /// Whether the file is on the peer's side.
        far: bool,
    },
}

/// The number of threads or connections of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The stage; [`Stage::Send`] means connections.
    pub stage: Stage,
    /// Whether the file is on the peer's side.
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

    /// Ends the copy, also one that begins later; it returns [`CopyError::Cancelled`](crate::CopyError::Cancelled).
    pub fn cancel(&self) {
        self.cancelled.store(true, SeqCst);
        self.waiter.wake();
    }

    /// Waits until the copy is cancelled.
    pub(crate) async fn cancelled(&self) {
        poll_fn(|cx| {
            self.waiter.register(cx.waker());
            if self.cancelled.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
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
        let scanned = self.scan.now();
        Snapshot {
            scanned_files: scanned.files,
            scanned_bytes: scanned.bytes,
            scan_done: scanned.done,
            read_bytes: self.read.bytes.load(Relaxed),
            counts: *lock(&self.counts),
            limit: self.limits.now(scanned.done),
            silent: self.limits.silence(),
            carried,
            best,
        }
    }

    /// Takes the failures since the last call.
    pub fn take_troubles(&self) -> Vec<Trouble> {
        self.reports.take_troubles()
    }

    /// Takes the dry-run actions since the last call.
    pub fn take_planned(&self) -> Vec<Planned> {
        self.reports.take_planned()
    }

    /// Takes the notes since the last call.
    pub fn take_notes(&self) -> Vec<Note> {
        self.reports.take_notes()
    }

    /// Notes something that its user is to know.
    pub fn note(&self, note: String) {
        self.reports.note(Note::Words(note));
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
        self.reports.note(Note::Tuned { tuned, far });
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
        self.reports.trouble(trouble);
    }

    pub(crate) fn planned(&self, planned: Planned) {
        self.reports.planned(planned);
    }

    pub(crate) fn set_counts(&self, counts: Counts) {
        *lock(&self.counts) = counts;
    }

    /// Adds the gauge of the queue that `stage` takes from.
    pub(crate) fn watch(&self, stage: Stage, look: impl Fn() -> Gauge + Send + Sync + 'static) {
        self.limits.watch(stage, look);
    }

    /// Records whether the last frame waited for the rate limit.
    pub(crate) fn rate_limited(&self, waited: bool) {
        self.limits.rate_limited(waited);
    }

    /// Records how long the peer has been silent.
    pub(crate) fn silent(&self, time: Duration) {
        self.limits.silent(time);
    }

    /// Sets the limit that the peer reports.
    pub(crate) fn set_peer_limit(&self, limit: Option<Limit>) {
        self.limits.set_peer(limit);
    }

    /// What limits the copy on this side; `None` on a side that only writes.
    pub(crate) fn limit_here(&self) -> Option<Limit> {
        self.limits.here(self.scan.now().done)
    }
}

#[cfg(test)]
mod tests {
    use super::reports::NOTES;
    use super::*;
    use crate::link::peer_timeout::QUIET;

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
