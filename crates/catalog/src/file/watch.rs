//! Watches of a catalog in a file.

use super::{Store, failed};
use crate::Watch;
use crate::error::Result;
use crate::types::{Event, Revision};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest time without a look: leases run out, and their keys vanish, without a change of the file.
const LOOK: Duration = Duration::from_secs(1);

/// How a process learns that a catalog has changed.
pub(super) enum Changes {
    /// The kernel reports writes to the file, of any process.
    File(PathBuf),
    /// Counts changes.
    Memory(Mutex<u64>, Condvar),
}

impl Changes {
    pub(super) fn of_file(path: &Path) -> Changes {
        Changes::File(path.to_owned())
    }

    pub(super) fn in_memory() -> Changes {
        Changes::Memory(Mutex::new(0), Condvar::new())
    }

    pub(super) fn notify(&self) {
        if let Changes::Memory(count, changed) = self {
            *count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            changed.notify_all();
        }
    }
}

/// A watch of a catalog in a file.
pub(super) struct FileWatch {
    store: Arc<Store>,
    prefix: Vec<u8>,
    /// The first revision that has not been returned.
    from: Revision,
    /// Reports writes to the file.
    inotify: Option<OwnedFd>,
    /// Changes in memory that have been looked at.
    seen: u64,
}

impl FileWatch {
    pub(super) fn new(store: Arc<Store>, prefix: &[u8], from: Revision) -> Result<FileWatch> {
        let inotify = match &store.changes {
            Changes::Memory(..) => None,
            Changes::File(path) => {
                let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
                let made = inotify::init(flags).and_then(|fd| {
                    inotify::add_watch(&fd, path, inotify::WatchFlags::MODIFY)?;
                    Ok(fd)
                });
                Some(made.map_err(|e| failed(&store.name, "watch", e))?)
            }
        };
        Ok(FileWatch { store, prefix: prefix.to_vec(), from, inotify, seen: 0 })
    }

    fn look(&mut self) -> Result<Vec<Event>> {
        let (newest, events) = self.store.read(|reading| reading.changes(&self.prefix, self.from))?;
        self.from = self.from.max(newest + 1);
        Ok(events)
    }

    /// Forgets the reports so far: those to come are of changes after the next look.
    fn clear(&mut self) {
        match (&self.inotify, &self.store.changes) {
            (Some(fd), _) => {
                let mut buf = [0; 4096];
                while rustix::io::read(fd, &mut buf).is_ok_and(|n| n > 0) {}
            }
            (None, Changes::Memory(count, _)) => {
                self.seen = *count.lock().unwrap_or_else(PoisonError::into_inner);
            }
            (None, Changes::File(_)) => {}
        }
    }

    /// Waits for a report, for `wait` at most.
    fn wait(&self, wait: Duration) -> Result<()> {
        match (&self.inotify, &self.store.changes) {
            (Some(fd), _) => {
                let wait = Timespec {
                    tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: wait.subsec_nanos().into(),
                };
                match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&wait)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
                    Err(e) => Err(failed(&self.store.name, "watch", e)),
                }
            }
            (None, Changes::Memory(count, changed)) => {
                let count = count.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = changed.wait_timeout_while(count, wait, |count| *count == self.seen);
                Ok(())
            }
            (None, Changes::File(_)) => Ok(()),
        }
    }
}

impl Watch for FileWatch {
    fn next(&mut self, wait: Duration) -> Result<Vec<Event>> {
        let start = Instant::now();
        loop {
            self.clear();
            let events = self.look()?;
            let left = wait.saturating_sub(start.elapsed());
            if !events.is_empty() || left.is_zero() {
                return Ok(events);
            }
            self.wait(left.min(LOOK))?;
        }
    }
}
