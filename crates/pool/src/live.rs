//! Pools and running arrays as they are at this moment, for programs that watch them.
//!
//! A [`Watch`] asks each source on a thread of its own, again and again: a pool (its catalog and all its
//! targets), and the process of this host that runs an array. [`Watch::look`] returns what each has said
//! last, at once: a target that does not answer delays nothing but its own pool.
//!
//! Invariants:
//! - a rate is a difference between two looks over the time between them, by the clock of the process
//!   that counted; counts of another process are never compared;
//! - a source is asked again only when it has answered, so that questions do not pile up.

mod pace;
mod rates;
#[cfg(test)]
mod tests;

pub use rates::{PathNow, WayNow};

use crate::known::KnownPool;
use crate::pool::{Pool, Status};
use crate::remote::Targets;
use longhaul_device::ErrorKind;
use longhaul_device::arrays::{ArrayClient, ArrayRecord, ArrayRequest, PathsReply, running};
use longhaul_initiator::Options;
use pace::Pace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// What a source has said.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    /// What it said last, or why it could not be asked.
    pub last: Result<T, String>,
    /// When it began to be asked for that.
    pub at: Instant,
}

/// A rebuild or resync.
#[derive(Clone, Debug, PartialEq)]
pub struct FillingNow {
    /// Index of the member.
    pub member: usize,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Bytes a second lately; `None` while that is not known.
    pub rate: Option<f64>,
    /// Time until the end at that rate; `None` while nothing is done.
    pub left: Option<Duration>,
}

impl FillingNow {
    /// The share that is done, from 0 to 1.
    pub fn share(&self) -> f64 {
        if self.total == 0 { 1.0 } else { self.done as f64 / self.total as f64 }
    }
}

/// A running array, or a volume of one namespace or a file system that a process has open.
#[derive(Clone, Debug)]
pub struct ArrayNow {
    /// The volume, if it is one of one namespace or a file system.
    pub volume: Option<Uuid>,
    /// It is a file system.
    pub is_fs: bool,
    /// Its name, as it was given when it was made.
    pub name: String,
    /// `stripe`, `mirror`, `stripe+mirror`, `parity`, `double-parity`, or `single`.
    pub layout: String,
    /// Bytes of the array.
    pub size: u64,
    /// `healthy`, `degraded` or `halted`; `unreachable` of one namespace, `failed` of a file system.
    pub health: String,
    /// What is at risk, or why it is halted.
    pub detail: String,
    /// The rebuild under way.
    pub filling: Option<FillingNow>,
    /// The paths to its members.
    pub paths: Vec<PathNow>,
}

impl ArrayNow {
    /// What goes over all paths together.
    pub fn total(&self, way: impl Fn(&PathNow) -> WayNow) -> WayNow {
        WayNow::sum(self.paths.iter().map(way))
    }
}

/// What all sources have said last.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// Pools, by name; none until a pool has been asked for the first time.
    pub pools: BTreeMap<String, Option<Answer<Status>>>,
    /// Arrays that processes of this host run, and volumes of one namespace and file systems that they have open,
    /// by what identifies the array, or the process's use of the volume.
    pub arrays: BTreeMap<Uuid, Answer<ArrayNow>>,
}

/// See the module.
pub struct Watch {
    now: Arc<Mutex<Now>>,
    /// The threads end when it is dropped.
    _ends: Vec<Sender<()>>,
}

impl Watch {
    /// Watches these pools, and all arrays that run on this host, and asks each source once an `interval`.
    /// Targets are reached with these options.
    pub fn start(pools: Vec<KnownPool>, options: &Options, interval: Duration) -> Watch {
        let now = Arc::new(Mutex::new(Now::default()));
        let mut ends = Vec::new();
        for pool in pools {
            lock(&now).pools.insert(pool.name.clone(), None);
            let (end, ended) = channel();
            ends.push(end);
            let (now, options) = (Arc::clone(&now), options.clone());
            std::thread::spawn(move || watch_pool(&pool, &options, interval, &now, &ended));
        }
        let (end, ended) = channel();
        ends.push(end);
        let found = Arc::clone(&now);
        std::thread::spawn(move || find_arrays(interval, &found, &ended));
        Watch { now, _ends: ends }
    }

    /// What each source has said last.
    pub fn look(&self) -> Now {
        lock(&self.now).clone()
    }
}

fn lock(now: &Mutex<Now>) -> MutexGuard<'_, Now> {
    now.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the rest of an interval that began at `from`; false if the watch has ended.
fn is_on(ended: &Receiver<()>, from: Instant, interval: Duration) -> bool {
    let rest = interval.saturating_sub(from.elapsed());
    ended.recv_timeout(rest) == Err(RecvTimeoutError::Timeout)
}

fn watch_pool(
    known: &KnownPool,
    options: &Options,
    interval: Duration,
    now: &Mutex<Now>,
    ended: &Receiver<()>,
) {
    // Connections to targets are kept, and made again after they were lost.
    let mut open: Option<Pool> = None;
    loop {
        let at = Instant::now();
        let mut ask = || -> crate::Result<Status> {
            let pool = match open.take() {
                Some(pool) => pool,
                None => {
                    let targets = Arc::new(Targets::new(options.clone())?);
                    Pool::open(&known.host(targets)?, &known.name)?
                }
            };
            let status = pool.status();
            let is_whole = status.as_ref().is_ok_and(|status| status.targets.iter().all(|t| t.space.is_ok()));
            open = is_whole.then_some(pool);
            status
        };
        let last = ask().map_err(|e| e.to_string());
        lock(now).pools.insert(known.name.clone(), Some(Answer { last, at }));
        if !is_on(ended, at, interval) {
            return;
        }
    }
}

/// Starts a thread for each array that begins to run.
fn find_arrays(interval: Duration, now: &Arc<Mutex<Now>>, ended: &Receiver<()>) {
    let mut asked: BTreeMap<Uuid, (Sender<()>, std::thread::JoinHandle<()>)> = BTreeMap::new();
    loop {
        let at = Instant::now();
        asked.retain(|_, (_, thread)| !thread.is_finished());
        for array in running() {
            asked.entry(array.uuid).or_insert_with(|| {
                let (end, ended) = channel();
                let now = Arc::clone(now);
                (end, std::thread::spawn(move || watch_array(&array, interval, &now, &ended)))
            });
        }
        if !is_on(ended, at, interval) {
            return;
        }
    }
}

/// What is kept of an array between two questions.
#[derive(Default)]
struct ArrayBefore {
    paths: Option<PathsReply>,
    /// The member that is filled, and how fast.
    pace: Option<(usize, Pace)>,
}

fn watch_array(array: &ArrayRecord, interval: Duration, now: &Mutex<Now>, ended: &Receiver<()>) {
    let mut before = ArrayBefore::default();
    loop {
        let at = Instant::now();
        let Some(status) = ArrayClient::ask(array, &ArrayRequest::Status) else { break };
        let Some(paths) = ArrayClient::ask(array, &ArrayRequest::Paths) else { break };
        let last = match (status, paths) {
            (Ok(status), Ok(paths)) => Ok(before.array(&status, serde_json::from_value(paths).ok())),
            // A process of an earlier version runs it.
            (Ok(status), Err(e)) if e.kind() == ErrorKind::Invalid => Ok(before.array(&status, None)),
            (Err(e), _) | (_, Err(e)) => Err(e.to_string()),
        };
        lock(now).arrays.insert(array.uuid, Answer { last, at });
        if !is_on(ended, at, interval) {
            return;
        }
    }
    lock(now).arrays.remove(&array.uuid);
}

impl ArrayBefore {
    /// The array by its replies.
    fn array(&mut self, status: &Value, paths: Option<PathsReply>) -> ArrayNow {
        let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
        let members = status["members"].as_array().cloned().unwrap_or_default();
        let member_of = |device: &str| {
            members
                .iter()
                .find(|member| member["device"] == device)
                .and_then(|member| member["index"].as_u64())
        };
        let rates = paths.as_ref().map(|paths| rates::between(self.paths.as_ref(), paths, member_of));
        self.paths = paths.or_else(|| self.paths.take());
        ArrayNow {
            volume: status["volume"].as_str().and_then(|uuid| uuid.parse().ok()),
            is_fs: status["kind"] == "fs",
            name: text("name"),
            layout: text("layout"),
            size: status["size"].as_u64().unwrap_or(0),
            health: text("health"),
            detail: text("detail"),
            filling: self.filling(&status["filling"], Instant::now()),
            paths: rates.unwrap_or_default(),
        }
    }

    fn filling(&mut self, filling: &Value, at: Instant) -> Option<FillingNow> {
        let number = |field: &str| filling[field].as_u64();
        let Some(((member, done), total)) =
            number("member").zip(number("done_bytes")).zip(number("total_bytes"))
        else {
            self.pace = None;
            return None;
        };
        let member = usize::try_from(member).unwrap_or(usize::MAX);
        let is_same = self.pace.as_ref().is_some_and(|(of, pace)| *of == member && !pace.is_ahead_of(done));
        if !is_same {
            self.pace = Some((member, Pace::default()));
        }
        let rate = self.pace.as_mut().and_then(|(_, pace)| pace.add(at, done));
        let left = rate.filter(|rate| *rate > 0.0).map(|rate| {
            // A year is as good as never.
            Duration::from_secs_f64((total.saturating_sub(done) as f64 / rate).min(365.0 * 86_400.0))
        });
        Some(FillingNow { member, done, total, rate, left })
    }
}
