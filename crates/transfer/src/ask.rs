//! Files to ask about, on their way into questions.
//!
//! Invariant: the queue of questions is closed when the scan has ended and every
//! file that readers look into first was added or given up.

use crate::queue::Queue;
use crate::scan::Found;
use crate::wire::{BATCH_BYTES, BATCH_ENTRIES, Content, Hash};
use std::sync::{Arc, Mutex, PoisonError};

/// The other side reads as much for one question before it turns to the next, where
/// content decides: few enough that all its threads have something to read.
const QUESTION: u64 = 64 << 20;

/// What a question is about.
pub(crate) type About = Vec<(Found, Content)>;

/// Puts questions together, for several threads.
#[derive(Debug)]
pub(crate) struct Asker {
    queue: Arc<Queue<About>>,
    /// Files are compared by this checksum.
    pub(crate) checksum: Option<Hash>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    about: About,
    /// Their size in a frame, about, and that of their content.
    frame: usize,
    content: u64,
    /// Files that readers look into.
    reading: usize,
    ended: bool,
    /// Somebody adds the last of them and closes the queue.
    closed: bool,
}

/// Nobody asks any more.
#[derive(Debug)]
pub(crate) struct Gone;

impl Asker {
    pub(crate) fn new(queue: Arc<Queue<About>>, checksum: Option<Hash>) -> Asker {
        Asker { queue, checksum, state: Mutex::default() }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A reader will look into a file.
    pub(crate) fn begin(&self) {
        self.change(|state| state.reading += 1);
    }

    /// A reader has looked into a file; there is nothing to ask if it could not.
    pub(crate) fn read(&self, about: Option<(Found, Content)>) -> Result<(), Gone> {
        let added = about.map_or(Ok(()), |(found, content)| self.add(found, content));
        self.change(|state| state.reading -= 1);
        self.look();
        added
    }

    /// Adds a file.
    pub(crate) fn add(&self, found: Found, content: Content) -> Result<(), Gone> {
        let full = self.change(|state| {
            state.frame += found.entry.weight();
            state.content += if self.checksum.is_some() { found.entry.size } else { 0 };
            state.about.push((found, content));
            let full =
                state.about.len() >= BATCH_ENTRIES || state.frame >= BATCH_BYTES || state.content >= QUESTION;
            full.then(|| state.take())
        });
        full.map_or(Ok(()), |about| self.push(about))
    }

    fn push(&self, about: About) -> Result<(), Gone> {
        let weight = about.len();
        self.queue.push(about, weight).map_err(|_| Gone)
    }

    /// No more files are found.
    pub(crate) fn end(&self) {
        self.change(|state| state.ended = true);
        self.look();
    }

    /// Closes the queue when all is in it.
    fn look(&self) {
        let last = self.change(|state| {
            // Whoever comes second must not close before the first has added.
            let last = state.ended && state.reading == 0 && !state.closed;
            state.closed |= last;
            last.then(|| state.take())
        });
        if let Some(about) = last {
            if !about.is_empty() {
                // If nobody asks, nobody waits for the answer.
                let _ = self.push(about);
            }
            self.queue.close();
        }
    }
}

impl State {
    fn take(&mut self) -> About {
        (self.frame, self.content) = (0, 0);
        std::mem::take(&mut self.about)
    }
}
