//! Existence queries: batches of files, sent to ask the receiver which it needs.
//!
//! Invariant: the queue of batches is closed once the scan has ended and every file that
//! readers examine first was added or given up.

use crate::guard::lock;
use crate::queue::Queue;
use crate::tree::scan::FoundEntry;
use crate::wire::{BATCH_BYTES, BATCH_ENTRIES, Content, Hash};
use std::sync::{Arc, Mutex};

/// The most bytes of content in one query that compares checksums: one writer thread of
/// the receiver answers a query, and all of them are to have work.
const QUERY_CONTENT: u64 = 64 << 20;

/// The files of one query.
pub(crate) type QueryBatch = Vec<(FoundEntry, Content)>;

/// Collects files from several threads into queries.
#[derive(Debug)]
pub(crate) struct QueryBatcher {
    queue: Arc<Queue<QueryBatch>>,
    /// The checksum that files are compared by, if any.
    pub(crate) checksum: Option<Hash>,
    state: Mutex<QueryState>,
}

#[derive(Debug, Default)]
struct QueryState {
    files: QueryBatch,
    /// Their approximate size in a frame, and the size of their content, in bytes.
    frame: usize,
    content: u64,
    /// Files that readers are examining.
    reading: usize,
    ended: bool,
    /// A thread is adding the last batch and closes the queue after it.
    closed: bool,
}

/// The session has ended: no more queries are sent.
#[derive(Debug)]
pub(crate) struct QueryClosed;

impl QueryBatcher {
    pub(crate) fn new(queue: Arc<Queue<QueryBatch>>, checksum: Option<Hash>) -> QueryBatcher {
        QueryBatcher { queue, checksum, state: Mutex::default() }
    }

    fn change<T>(&self, change: impl FnOnce(&mut QueryState) -> T) -> T {
        change(&mut lock(&self.state))
    }

    /// Announces a file that a reader will examine.
    pub(crate) fn begin(&self) {
        self.change(|state| {
            assert!(!state.closed, "a file was announced after the last query");
            state.reading += 1;
        });
    }

    /// Adds a file that a reader has examined; `None` if reading failed.
    pub(crate) fn read(&self, about: Option<(FoundEntry, Content)>) -> Result<(), QueryClosed> {
        let added = about.map_or(Ok(()), |(found, content)| self.add(found, content));
        self.change(|state| state.reading -= 1);
        self.close_if_complete();
        added
    }

    /// Adds a file.
    pub(crate) fn add(&self, found: FoundEntry, content: Content) -> Result<(), QueryClosed> {
        let full = self.change(|state| {
            assert!(!state.closed, "a file was added after the last query");
            state.frame += found.entry.weight();
            state.content += if self.checksum.is_some() { found.entry.size } else { 0 };
            state.files.push((found, content));
            let full = state.files.len() >= BATCH_ENTRIES
                || state.frame >= BATCH_BYTES
                || state.content >= QUERY_CONTENT;
            full.then(|| state.take())
        });
        full.map_or(Ok(()), |about| self.push(about))
    }

    fn push(&self, about: QueryBatch) -> Result<(), QueryClosed> {
        let weight = about.len();
        self.queue.push(about, weight).map_err(|_| QueryClosed)
    }

    /// Ends the scan: no more files follow.
    pub(crate) fn end(&self) {
        self.change(|state| state.ended = true);
        self.close_if_complete();
    }

    /// Closes the queue once all files are in it.
    fn close_if_complete(&self) {
        let last = self.change(|state| {
            // Only one thread closes the queue, after it has pushed the last batch.
            let last = state.ended && state.reading == 0 && !state.closed;
            state.closed |= last;
            last.then(|| state.take())
        });
        if let Some(about) = last {
            if !about.is_empty() {
                // An error means that the session has ended.
                let _ = self.push(about);
            }
            self.queue.close();
        }
    }
}

impl QueryState {
    fn take(&mut self) -> QueryBatch {
        (self.frame, self.content) = (0, 0);
        std::mem::take(&mut self.files)
    }
}
