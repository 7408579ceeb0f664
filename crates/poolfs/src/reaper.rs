//! Threads that free the content of large files after the calls that removed them have returned: it takes two round
//! trips for each 768 MiB.
//!
//! Such a file has no name, and a record with the number of the session that frees it: when that session is
//! lost, another one goes on.

use crate::session::FsSession;
use crate::store::{lock, wait};
use longhaul_fs::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

/// Files that are freed at a time.
const THREADS: usize = 4;
/// Most files that wait: with more, calls that remove files free them themselves.
const WAITING_MAX: usize = 1024;

#[derive(Default)]
struct Reaping {
    waiting: VecDeque<u64>,
    /// Those that could not be freed: they are tried again with the next cleaning.
    failed: Vec<u64>,
    /// Those that are freed now.
    busy: usize,
    /// Files so far, whether they could be freed or not.
    done: u64,
    threads: usize,
    ends: bool,
}

/// Inodes whose content is to be freed. See the module.
#[derive(Default)]
pub(crate) struct Reaper {
    state: Mutex<Reaping>,
    changed: Condvar,
}

impl Reaper {
    /// Takes an inode over; false if the caller is to free it.
    fn take_over(&self, number: u64) -> bool {
        let mut state = lock(&self.state);
        let takes = state.threads > 0 && !state.ends && state.waiting.len() < WAITING_MAX;
        if takes {
            state.waiting.push_back(number);
            self.changed.notify_all();
        }
        takes
    }

    /// Number of files that the threads have finished with.
    pub(crate) fn done(&self) -> u64 {
        lock(&self.state).done
    }

    /// Waits until [`done`](Self::done) is above `seen`; returns false if no file is left to free.
    pub(crate) fn wait_after(&self, seen: u64) -> bool {
        let mut state = lock(&self.state);
        while state.done == seen {
            if state.busy == 0 && state.waiting.is_empty() {
                return false;
            }
            state = wait(&self.changed, state);
        }
        true
    }

    /// Tries again what could not be freed.
    pub(crate) fn retry(&self) {
        let mut state = lock(&self.state);
        let Reaping { waiting, failed, .. } = &mut *state;
        waiting.extend(failed.drain(..));
        self.changed.notify_all();
    }

    /// Ends its threads, once all that waits is freed.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        state.ends = true;
        self.changed.notify_all();
        while state.threads > 0 {
            state = wait(&self.changed, state);
        }
    }

    /// Frees files until the end.
    fn run(&self, session: &FsSession) {
        let mut state = lock(&self.state);
        loop {
            if session.store.has_ended() && !state.waiting.is_empty() {
                // They are of another session now.
                state.waiting.clear();
                self.changed.notify_all();
            }
            let Some(number) = state.waiting.pop_front() else {
                if state.ends {
                    break;
                }
                state = wait(&self.changed, state);
                continue;
            };
            state.busy += 1;
            drop(state);
            let reaped = session.reap(number);
            state = lock(&self.state);
            if let Err(e) = reaped {
                tracing::debug!("what inode {number} had is freed later: {e}");
                state.failed.push(number);
            }
            state.busy -= 1;
            state.done += 1;
            self.changed.notify_all();
        }
        state.threads -= 1;
        self.changed.notify_all();
    }
}

impl FsSession {
    /// Frees an object without a name and its content, behind the caller if that works.
    pub(crate) fn reap_behind(&self, number: u64) -> Result<(), Errno> {
        if self.store.reaper.take_over(number) { Ok(()) } else { self.reap(number) }
    }

    /// Frees what is removed by threads of its own, until the session ends.
    pub(crate) fn reap_always(self: &Arc<FsSession>) {
        for _ in 0..THREADS {
            let session = Arc::clone(self);
            lock(&self.store.reaper.state).threads += 1;
            let thread = std::thread::Builder::new().name("longhaul-reap".into());
            if let Err(e) = thread.spawn(move || session.store.reaper.run(&session)) {
                lock(&self.store.reaper.state).threads -= 1;
                tracing::warn!("cannot start a thread: {e}");
            }
        }
    }
}
