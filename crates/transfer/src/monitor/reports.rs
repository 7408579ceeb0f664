//! Failures, dry-run actions and notes that wait for the caller to take them.
//!
//! Invariant: each list has a limit, since the caller may never take it and the peer can
//! cause any number of entries.

use super::Note;
use crate::guard::lock;
use crate::wire::{Planned, Trouble};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The most failures kept for the caller; further ones are only counted.
const TROUBLES: usize = 100_000;

/// The most dry-run actions kept for a caller that takes them regularly; and for one that
/// has not taken any yet, and may never do so.
const PLANNED: usize = 1 << 20;
const PLANNED_FIRST: usize = 1 << 16;

/// The most notes kept for the caller.
pub(super) const NOTES: usize = 256;

/// The reports of a copy to its caller.
#[derive(Default)]
pub(super) struct Reports {
    troubles: Mutex<Vec<Trouble>>,
    planned: Mutex<Vec<Planned>>,
    planned_are_taken: AtomicBool,
    notes: Mutex<Vec<Note>>,
}

/// Adds an entry to a list of at most `most`.
fn push<T>(list: &Mutex<Vec<T>>, entry: T, most: usize) {
    let mut list = lock(list);
    if list.len() < most {
        list.push(entry);
    }
}

impl Reports {
    pub(super) fn trouble(&self, trouble: Trouble) {
        push(&self.troubles, trouble, TROUBLES);
    }

    pub(super) fn planned(&self, planned: Planned) {
        let most = if self.planned_are_taken.load(Relaxed) { PLANNED } else { PLANNED_FIRST };
        push(&self.planned, planned, most);
    }

    pub(super) fn note(&self, note: Note) {
        push(&self.notes, note, NOTES);
    }

    pub(super) fn take_troubles(&self) -> Vec<Trouble> {
        std::mem::take(&mut *lock(&self.troubles))
    }

    pub(super) fn take_planned(&self) -> Vec<Planned> {
        self.planned_are_taken.store(true, Relaxed);
        std::mem::take(&mut *lock(&self.planned))
    }

    pub(super) fn take_notes(&self) -> Vec<Note> {
        std::mem::take(&mut *lock(&self.notes))
    }
}
