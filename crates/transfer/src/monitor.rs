//! How a copy is getting on, for whoever watches.

use crate::queue::Gauge;
use crate::read::ReadStats;
use crate::wire::{Counts, Trouble};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Troubles that are kept for whoever watches; further ones are counted only.
const TROUBLES: usize = 100_000;

/// A stage of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Looking for files.
    Scan,
    /// Reading them.
    Read,
    /// The network, and the side of it that is not here.
    Send,
    /// Writing them.
    Write,
}

impl Stage {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Scan => "scan",
            Stage::Read => "read",
            Stage::Send => "network",
            Stage::Write => "write",
        }
    }
}

type Look = Box<dyn Fn() -> Gauge + Send + Sync>;

/// Where a copy can be watched while it runs, from any thread.
#[derive(Default)]
pub struct Monitor {
    pub(crate) scanned_files: AtomicU64,
    pub(crate) scanned_bytes: AtomicU64,
    pub(crate) scan_done: AtomicBool,
    pub(crate) read: Arc<ReadStats>,
    counts: Mutex<Counts>,
    troubles: Mutex<Vec<Trouble>>,
    notes: Mutex<Vec<String>>,
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
    /// Files that were found; zero where the scan runs elsewhere.
    pub scanned_files: u64,
    /// Their bytes.
    pub scanned_bytes: u64,
    /// The scan is complete, so those are totals.
    pub scan_done: bool,
    /// Bytes that were read to be sent.
    pub read_bytes: u64,
    /// What is written.
    pub counts: Counts,
    /// The stage that the others wait for, if one can be told.
    pub limit: Option<Stage>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Monitor {
    /// For a copy that begins.
    pub fn new() -> Monitor {
        Monitor::default()
    }

    /// How far it is.
    pub fn now(&self) -> Snapshot {
        Snapshot {
            scanned_files: self.scanned_files.load(Relaxed),
            scanned_bytes: self.scanned_bytes.load(Relaxed),
            scan_done: self.scan_done.load(Relaxed),
            read_bytes: self.read.bytes.load(Relaxed),
            counts: *lock(&self.counts),
            limit: self.limit(),
        }
    }

    /// Objects that could not be copied since this was last called.
    pub fn take_troubles(&self) -> Vec<Trouble> {
        std::mem::take(&mut *lock(&self.troubles))
    }

    /// What else people should know, since this was last called.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.notes))
    }

    pub(crate) fn note(&self, note: String) {
        lock(&self.notes).push(note);
    }

    pub(crate) fn trouble(&self, trouble: Trouble) {
        let mut troubles = lock(&self.troubles);
        if troubles.len() < TROUBLES {
            troubles.push(trouble);
        }
    }

    pub(crate) fn set_counts(&self, counts: Counts) {
        *lock(&self.counts) = counts;
    }

    /// Adds a queue to look at: `stage` empties it.
    pub(crate) fn watch(&self, stage: Stage, look: impl Fn() -> Gauge + Send + Sync + 'static) {
        lock(&self.gauges).push((stage, Box::new(look)));
    }

    /// The last stage whose queue is more than half full limits: all before it
    /// wait, and what is behind it has nothing to do. Where none is full, it is
    /// the first.
    fn limit(&self) -> Option<Stage> {
        let gauges = lock(&self.gauges);
        let full = gauges.iter().rev().find(|(_, look)| look().fill > 0.5);
        full.map(|(stage, _)| *stage).or(gauges.first().map(|_| Stage::Scan))
    }
}
