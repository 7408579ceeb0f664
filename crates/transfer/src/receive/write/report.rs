//! Results of written entries: counts, failures, and the actions of a dry run.

use crate::guard::lock;
use crate::tree::{is_full, say};
use crate::wire::{Action, Counts, Entry, EntryKind, Op, Planned, RelPath, Trouble};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The operation that failed, and its error.
pub(super) type Failure = (Op, io::Error);

/// A failure to write.
pub(super) fn write_failure(e: io::Error) -> Failure {
    (Op::Write, e)
}

/// Content whose checksum differs from that of its frame.
pub(super) fn mismatch() -> Failure {
    (Op::Verify, io::Error::other("the checksum of the content does not match what was sent"))
}

/// Result of writing one entry.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The object is in place.
    Complete,
    /// The object is made, and counted, at the end of the session.
    Deferred,
    /// The object is in place; setting some of its metadata failed.
    Flawed(Failure),
}

impl From<Option<Failure>> for Outcome {
    fn from(flaw: Option<Failure>) -> Outcome {
        flaw.map_or(Outcome::Complete, Outcome::Flawed)
    }
}

/// Collects what the writer threads of a session report beside their counts.
#[derive(Debug)]
pub(super) struct Report {
    dry_run: bool,
    /// Actions of a dry run that are not reported yet.
    planned: Mutex<Vec<Planned>>,
    /// The file system is full: further writes are pointless.
    full: AtomicBool,
    /// An operation failed with `EIO`.
    broken: AtomicBool,
}

impl Report {
    pub(super) fn new(dry_run: bool) -> Report {
        Report {
            dry_run,
            planned: Mutex::default(),
            full: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        }
    }

    /// Records an action, in a dry run.
    pub(super) fn plan(&self, path: &RelPath, action: Action) {
        if self.dry_run {
            lock(&self.planned).push(Planned { path: path.clone(), action });
        }
    }

    /// Takes the actions recorded since the last call.
    pub(super) fn take_planned(&self) -> Vec<Planned> {
        std::mem::take(&mut *lock(&self.planned))
    }

    /// Whether a write failed with a full or read-only file system.
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    /// Whether an operation failed with `EIO`, as all of them do after the end of a file system.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    /// The report of a failure to the sender.
    pub(super) fn trouble(&self, path: &RelPath, (op, e): &Failure) -> Trouble {
        // ENOSPC for an attribute does not mean that the file system is full.
        if *op == Op::Write && is_full(e) {
            self.full.store(true, Relaxed);
        }
        if e.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) {
            self.broken.store(true, Relaxed);
        }
        Trouble { path: path.clone(), op: *op, message: say(e) }
    }

    /// Adds the outcome of an entry to the counts, or to the failures.
    pub(super) fn count(
        &self,
        entry: &Entry,
        result: Result<Outcome, Failure>,
        counts: &mut Counts,
        troubles: &mut Vec<Trouble>,
    ) {
        match result {
            Ok(Outcome::Deferred) => return,
            Ok(Outcome::Complete) => {}
            Ok(Outcome::Flawed(flaw)) => troubles.push(self.trouble(&entry.path, &flaw)),
            Err(e) => return troubles.push(self.trouble(&entry.path, &e)),
        }
        match entry.kind {
            EntryKind::File => counts.files += 1,
            _ => counts.others += 1,
        }
    }
}
