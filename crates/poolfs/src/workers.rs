//! A mounted file system, whose calls are executed by threads.

use crate::locks::PoolLocks;
use crate::members::{MemberStatus, OpenMember};
use crate::session::{FsOptions, FsSession};
use crate::show::Showing;
use crate::store::{lock, wait};
use longhaul_catalog::Catalog;
use longhaul_device::{Error, ErrorKind, Result};
use longhaul_fs::{Answer, Call, Caller, Done, Errno, FileSystem, Locks};
use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex};
use uuid::Uuid;

/// Most threads: calls that wait at the same time for a catalog or members that are far away. As many cells of
/// 1 MiB are read ahead at a time.
const THREADS: usize = 128;

#[derive(Default)]
struct Queue {
    calls: VecDeque<(Option<Caller>, Call, Answer)>,
    threads: usize,
    idle: usize,
    ends: bool,
}

struct Workers {
    session: Arc<FsSession>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// A file system that this host has mounted.
pub struct PoolFs {
    workers: Arc<Workers>,
    /// They end the threads that keep the lease and clean.
    threads: Option<(Sender<()>, Option<Sender<()>>)>,
    /// What programs see of it.
    shown: Option<Showing>,
}

impl Workers {
    fn run(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let (caller, call, answer) = loop {
                if let Some(next) = queue.calls.pop_front() {
                    break next;
                }
                if queue.ends {
                    queue.threads -= 1;
                    drop(queue);
                    self.changed.notify_all();
                    return;
                }
                queue.idle += 1;
                queue = wait(&self.changed, queue);
                queue.idle -= 1;
            };
            drop(queue);
            answer.give(self.session.execute(caller, call));
        }
    }
}

impl PoolFs {
    /// Opens the file system `uuid` of a catalog on its members, each with its name for messages.
    ///
    /// # Errors
    /// It has no metadata of a version that this program knows, too few members can be reached, or the catalog
    /// cannot be changed.
    pub fn open(
        catalog: Arc<dyn Catalog>,
        uuid: Uuid,
        members: Vec<(String, OpenMember)>,
        options: &FsOptions,
    ) -> Result<PoolFs> {
        let (session, at) = FsSession::open(catalog, uuid, members, options)?;
        let is_snapshot = session.is_snapshot;
        let session = Arc::new(session);
        let failed = |e: std::io::Error| Error::new(ErrorKind::Failed, format!("cannot start a thread: {e}"));
        let keeper = session.keep(options.ttl).map_err(failed)?;
        if options.leases && !is_snapshot {
            session.listen_always(at + 1).and_then(|()| session.write_always()).map_err(failed)?;
        }
        let cleaner = match options.tidy.is_zero() {
            true => None,
            false => Some(session.clean_always(options.tidy).map_err(failed)?),
        };
        if cleaner.is_some() && !is_snapshot {
            session.reap_always();
        }
        if !is_snapshot {
            session.take_ahead_always().map_err(failed)?;
        }
        let workers = Workers { session, queue: Mutex::default(), changed: Condvar::new() };
        Ok(PoolFs { workers: Arc::new(workers), threads: Some((keeper, cleaner)), shown: None })
    }

    pub(crate) fn session(&self) -> &Arc<FsSession> {
        &self.workers.session
    }

    /// Its members, as they are now.
    pub fn members(&self) -> Vec<MemberStatus> {
        self.workers.session.members.status()
    }

    /// What is wrong with it, as `CONDITION: DETAIL`; `None` if nothing is.
    pub fn trouble(&self) -> Option<String> {
        self.workers.session.trouble()
    }

    /// Is shown by `longhaul top` from now on.
    pub(crate) fn show(&mut self, shown: Showing) {
        self.shown = Some(shown);
    }

    fn stop(&mut self) {
        lock(&self.workers.queue).ends = true;
        self.workers.changed.notify_all();
        let mut queue = lock(&self.workers.queue);
        while queue.threads > 0 {
            queue = wait(&self.workers.changed, queue);
        }
    }

    /// Ends as a host does that is lost: nothing is committed, and the session runs out by itself.
    pub(crate) fn crash(mut self) {
        self.stop();
        self.workers.session.store.end();
        self.workers.session.store.reaper.end();
        self.workers.session.segments.end_ahead();
        self.workers.session.locks.end();
        self.threads = None;
    }
}

impl FileSystem for PoolFs {
    fn refuses_xattr(&self, name: &[u8]) -> bool {
        crate::calls::refuses_xattr(name)
    }

    fn locks(&self) -> Option<Arc<dyn Locks>> {
        // What never changes is locked on this host alone.
        let session = &self.workers.session;
        (!session.is_snapshot).then(|| Arc::new(PoolLocks(Arc::clone(session))) as Arc<dyn Locks>)
    }

    fn start(&self, call: Call, done: Done) {
        self.begin(None, call, Answer::new(done));
    }

    fn start_for(&self, caller: Caller, call: Call, done: Done) {
        self.begin(Some(caller), call, Answer::new(done));
    }
}

impl PoolFs {
    fn begin(&self, caller: Option<Caller>, call: Call, answer: Answer) {
        if self.workers.session.is_snapshot && call.is_change() {
            return answer.give(Err(Errno::ROFS));
        }
        // Two changes of threads cost more than such a call.
        if let Some(result) = self.workers.session.at_once(caller, &call) {
            return answer.give(result);
        }
        let mut queue = lock(&self.workers.queue);
        if queue.ends {
            drop(queue);
            return answer.give(Err(Errno::IO));
        }
        queue.calls.push_back((caller, call, answer));
        let is_short = queue.idle < queue.calls.len() && queue.threads < THREADS;
        if is_short {
            queue.threads += 1;
        }
        drop(queue);
        if !is_short {
            return self.workers.changed.notify_one();
        }
        let workers = Arc::clone(&self.workers);
        let started = std::thread::Builder::new().name("longhaul-fs".into()).spawn(move || workers.run());
        if let Err(e) = started {
            let mut queue = lock(&self.workers.queue);
            queue.threads -= 1;
            tracing::warn!("cannot start a thread: {e}");
            // Without any, nothing would answer.
            let unanswered =
                if queue.threads == 0 { std::mem::take(&mut queue.calls) } else { VecDeque::new() };
            drop(queue);
            unanswered.into_iter().for_each(|(.., answer)| answer.give(Err(Errno::AGAIN)));
        }
    }
}

impl Drop for PoolFs {
    /// Ends the session: what was written is committed.
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            self.stop();
            self.workers.session.locks.end();
            self.workers.session.end();
            drop(threads);
        }
    }
}

impl std::fmt::Debug for PoolFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolFs").field("members", &self.members()).finish_non_exhaustive()
    }
}
