//! A file that is open here: what was written to it and is not in its map yet.
//!
//! What a byte of it is, the newest first: `dirty`, the `batches` that are being written to the members,
//! the newest first, `pending`, and the extents of the inode or its chunks.
//!
//! Invariant: content leaves all of them at once with its commit, with its removal by a program, or with a
//! [loss](NodeState::lose).

use crate::extent::{Extent, ExtentList, Stripe};
use crate::runs::Runs;
use crate::schema::InodeRecord;
use crate::store::{lock, wait};
use longhaul_fs::{Errno, Time};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Identifies a stripe while it is in memory.
pub(crate) type StripeKey = *const Stripe;

/// Content that is being written to the members.
pub(crate) struct Batch {
    pub(crate) number: u64,
    pub(crate) runs: Runs,
    /// It is there, or has failed, and waits for those that were begun before it.
    pub(crate) is_written: AtomicBool,
}

impl Batch {
    pub(crate) fn new(number: u64, runs: Runs) -> Arc<Batch> {
        Arc::new(Batch { number, runs, is_written: AtomicBool::new(false) })
    }
}

/// A stripe that was written and is in no map yet.
#[derive(Clone, Debug)]
pub(crate) struct WrittenStripe {
    pub(crate) segment: u32,
    /// The generation of each of its members when it was written.
    pub(crate) generations: Vec<(u8, u64)>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct NodeState {
    /// Descriptors of this mount.
    pub(crate) handles: usize,
    /// The inode as it was when the file was opened, or committed last.
    pub(crate) inode: InodeRecord,
    /// Its chunks that were read since.
    pub(crate) chunks: HashMap<u64, Arc<ExtentList>>,
    /// Rises when the inode is another one: chunks that were read before are not of it.
    pub(crate) changes: u64,
    pub(crate) dirty: Runs,
    /// The oldest first.
    pub(crate) batches: VecDeque<Arc<Batch>>,
    pub(crate) next_batch: u64,
    pub(crate) pending: ExtentList,
    /// The stripes of `pending`, and of what is being committed.
    pub(crate) written: HashMap<usize, WrittenStripe>,
    /// Stripes that are being committed.
    pub(crate) committing: HashSet<usize>,
    /// When content was changed that is not committed.
    pub(crate) modified: Option<Time>,
    /// Size of the file that what is written at its end follows, while that is not committed.
    pub(crate) append_base: Option<u64>,
    /// Appending waits for a commit.
    pub(crate) holds_appends: bool,
    /// The last commit failed, as an owner may have no more: the next write tries it again first.
    pub(crate) is_over_quota: bool,
    /// How often content was lost that had been written here, and why it was the last time.
    pub(crate) losses: (u64, Option<Errno>),
}

/// A stripe as a key of tables.
pub(crate) fn key_of(stripe: &Arc<Stripe>) -> usize {
    let key: StripeKey = Arc::as_ptr(stripe);
    key.addr()
}

impl NodeState {
    /// Size of the file as programs of this host see it.
    pub(crate) fn size(&self) -> u64 {
        let batches = self.batches.iter().map(|batch| batch.runs.end()).max().unwrap_or(0);
        self.inode.size.max(self.dirty.end()).max(batches).max(self.pending.end())
    }

    /// Bytes that a write of this range adds to the file, together with what is not committed: those behind the end
    /// of what is. Of what is being written to the members only if `counts_batches`.
    pub(crate) fn unsaved_with(&self, range: &Range<u64>, counts_batches: bool) -> u64 {
        let in_memory = |runs: &Runs| -> Vec<Range<u64>> {
            runs.iter().map(|(at, bytes)| at..at + bytes.len() as u64).collect()
        };
        let mut all = in_memory(&self.dirty);
        all.push(range.clone());
        for batch in self.batches.iter().filter(|_| counts_batches) {
            all.extend(in_memory(&batch.runs));
        }
        // What is being committed counts there.
        if self.committing.is_empty() {
            all.extend(self.pending.iter().map(|extent| extent.offset..extent.end()));
        }
        all.sort_unstable_by_key(|range| range.start);
        // What is written over is there once.
        let (mut bytes, mut end) = (0, self.inode.size);
        for range in all {
            bytes += range.end.saturating_sub(range.start.max(end));
            end = end.max(range.end);
        }
        bytes
    }

    /// The inode is this one from now on, and what was read of its chunks does not count.
    pub(crate) fn replace(&mut self, inode: InodeRecord) {
        self.chunks.clear();
        self.inode = inode;
        self.changes += 1;
    }

    /// Content that was written is lost. The caller removes it from the state while it has this lock: a call that
    /// finds everything committed later finds the loss as well, and each descriptor has to report it.
    pub(crate) fn lose(&mut self, why: Errno) {
        self.losses = (self.losses.0 + 1, Some(why));
    }

    /// Whether everything is committed.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
            && self.batches.is_empty()
            && self.pending.is_empty()
            && self.committing.is_empty()
            && self.modified.is_none()
    }

    /// Notes extents of stripes that were written; returns the segments of stripes that no byte is left of.
    pub(crate) fn add_pending(&mut self, extents: Vec<(Extent, WrittenStripe)>) -> Vec<u32> {
        let mut removed = Vec::new();
        for (extent, written) in extents {
            self.written.insert(key_of(&extent.stripe), written);
            removed.extend(self.pending.overwrite(extent));
        }
        self.given_up(&removed)
    }

    /// Of extents that were removed from `pending`, the segments of stripes that no byte is left of.
    pub(crate) fn given_up(&mut self, removed: &[Extent]) -> Vec<u32> {
        if removed.is_empty() {
            return Vec::new();
        }
        let left: HashSet<usize> = self.pending.iter().map(|extent| key_of(&extent.stripe)).collect();
        let gone: HashSet<usize> = removed
            .iter()
            .map(|extent| key_of(&extent.stripe))
            .filter(|key| !left.contains(key) && !self.committing.contains(key))
            .collect();
        gone.into_iter().filter_map(|key| Some(self.written.remove(&key)?.segment)).collect()
    }
}

/// An open file.
#[derive(Default)]
pub(crate) struct OpenNode {
    pub(crate) inode: u64,
    state: Mutex<NodeState>,
    pub(crate) changed: Condvar,
    /// One commit, or change of the size, at a time.
    pub(crate) commits: Mutex<()>,
}

impl OpenNode {
    pub(crate) fn new(inode: u64, record: InodeRecord) -> OpenNode {
        let state = NodeState { inode: record, ..NodeState::default() };
        OpenNode { inode, state: Mutex::new(state), ..OpenNode::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, NodeState> {
        lock(&self.state)
    }

    /// Waits until another thread has changed the state.
    pub(crate) fn wait<'n>(&self, state: MutexGuard<'n, NodeState>) -> MutexGuard<'n, NodeState> {
        wait(&self.changed, state)
    }
}
