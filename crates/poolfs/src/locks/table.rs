//! What this host has of locks, and the calls that wait.

use crate::bytes::Writer;
use crate::store::{lock, wait};
use longhaul_catalog::Revision;
use longhaul_fs::{FileLock, GivenUp, LockCall, LockDone};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Most threads that make calls at the same time.
const THREADS: usize = 32;
/// How long a thread waits for the next call.
const IDLE: Duration = Duration::from_secs(10);
/// Files of which it is remembered which content the kernel has.
const SEEN: usize = 4096;

/// A lock that is waited for, or tried.
pub(super) struct Waiting {
    pub(super) lock: FileLock,
    pub(super) waits: Option<GivenUp>,
    pub(super) done: LockDone,
}

impl Waiting {
    pub(super) fn has_given_up(&self) -> bool {
        self.waits.as_ref().is_some_and(GivenUp::is_set)
    }
}

/// What is to be done for a file.
pub(super) enum LockStep {
    Call(LockCall, LockDone),
    /// Locks that were waited for are tried again.
    Again(Vec<Waiting>),
    /// The guard may be all that is left in the catalog.
    Sweep,
}

/// What the catalog has of the locks of a file, as of the revision of its guard. At first it is supposed that
/// there are none.
#[derive(Clone, Default)]
pub(super) struct Known {
    pub(super) guard: Option<Revision>,
    /// Value of the guard, if it was read.
    pub(super) stamp: Option<Vec<u8>>,
    /// Revision of what this session has.
    pub(super) own: Option<Revision>,
    /// Those of other sessions; some may have been given up since.
    pub(super) others: Vec<FileLock>,
}

#[derive(Default)]
struct Inode {
    held: Vec<FileLock>,
    known: Known,
    arrived: VecDeque<(LockCall, LockDone)>,
    waiting: Vec<Waiting>,
    /// Those that wait are to be tried again.
    again: bool,
    /// This session has given up all it had, and others may have done so before.
    sweeps: bool,
    /// A thread makes its calls, or will.
    busy: bool,
    /// Changes by other sessions that were reported.
    events: u64,
}

#[derive(Default)]
struct LockTableState {
    inodes: HashMap<u64, Inode>,
    /// Files for which something is to be done.
    queue: VecDeque<u64>,
    threads: usize,
    idle: usize,
    ends: bool,
    watches: bool,
    /// The inode as of which the kernel's pages of a file are.
    seen: HashMap<u64, (u64, u64)>,
    next: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct LockTable {
    state: Mutex<LockTableState>,
    changed: Condvar,
    /// Files of which there are locks.
    locked: AtomicUsize,
    /// What is left of locks of lost hosts was looked for.
    swept: AtomicBool,
}

impl LockTableState {
    /// Something is to be done for a file; whether a thread is to be started for it.
    fn enqueue(&mut self, inode: u64) -> bool {
        let Some(entry) = self.inodes.get_mut(&inode) else { return false };
        if entry.busy {
            return false;
        }
        entry.busy = true;
        self.queue.push_back(inode);
        let is_short = self.idle < self.queue.len() && self.threads < THREADS;
        self.threads += usize::from(is_short);
        is_short
    }

    /// Owners that an owner waits for, by the locks that it waits for on this host.
    fn blockers(&self, owner: u64) -> Vec<u64> {
        let waits = |entry: &'_ Inode| {
            let waiting: Vec<FileLock> = entry.waiting.iter().map(|waiting| waiting.lock).collect();
            let held = entry.held.clone();
            waiting.into_iter().filter(move |lock| lock.owner == owner && !lock.flock).flat_map(move |lock| {
                held.clone().into_iter().filter(move |held| held.conflicts(&lock)).map(|held| held.owner)
            })
        };
        self.inodes.values().filter(|entry| !entry.waiting.is_empty()).flat_map(waits).collect()
    }

    /// Whether an owner that waited for this lock would wait for itself.
    fn is_deadlock(&self, inode: u64, lock: &FileLock) -> bool {
        let Some(entry) = self.inodes.get(&inode).filter(|_| !lock.flock) else { return false };
        let blocking = entry.held.iter().filter(|held| held.conflicts(lock)).map(|held| held.owner);
        let (mut next, mut seen): (Vec<u64>, BTreeSet<u64>) = (blocking.collect(), BTreeSet::new());
        while let Some(owner) = next.pop() {
            if owner == lock.owner {
                return true;
            }
            if seen.insert(owner) {
                next.extend(self.blockers(owner));
            }
        }
        false
    }
}

impl LockTable {
    fn with<T>(&self, body: impl FnOnce(&mut LockTableState) -> T) -> T {
        body(&mut lock(&self.state))
    }

    fn of<T: Default>(&self, inode: u64, body: impl FnOnce(&mut Inode) -> T) -> T {
        self.with(|state| state.inodes.get_mut(&inode).map(body)).unwrap_or_default()
    }

    // ---- calls

    /// A call has arrived; whether a thread is to be started.
    pub(super) fn arrive(&self, inode: u64, call: LockCall, done: LockDone) -> bool {
        let starts = self.with(|state| {
            state.inodes.entry(inode).or_default().arrived.push_back((call, done));
            state.enqueue(inode)
        });
        self.changed.notify_one();
        starts
    }

    /// Those that wait for locks of a file are tried again; whether a thread is to be started.
    pub(super) fn look(&self, inode: u64) -> bool {
        let starts = self.with(|state| {
            let Some(entry) = state.inodes.get_mut(&inode) else { return false };
            entry.again = true;
            state.enqueue(inode)
        });
        self.changed.notify_one();
        starts
    }

    /// As [`look`](Self::look), for all files; how many threads are to be started.
    pub(super) fn look_at_all(&self) -> usize {
        let inodes: Vec<u64> = self.with(|state| state.inodes.keys().copied().collect());
        inodes.into_iter().filter(|inode| self.heard(*inode)).count()
    }

    /// Another session has changed what it has of a file; whether a thread is to be started.
    pub(super) fn heard(&self, inode: u64) -> bool {
        let starts = self.with(|state| {
            let Some(entry) = state.inodes.get_mut(&inode) else { return false };
            entry.events += 1;
            if entry.waiting.is_empty() {
                return false;
            }
            entry.again = true;
            state.enqueue(inode)
        });
        self.changed.notify_one();
        starts
    }

    /// The next file for a thread; `None` if the thread ends.
    pub(super) fn next_inode(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        loop {
            if let Some(inode) = state.queue.pop_front() {
                return Some(inode);
            }
            let mut is_idle = false;
            if !state.ends {
                state.idle += 1;
                let waited = self.changed.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = waited.0;
                state.idle -= 1;
                is_idle = waited.1.timed_out();
            }
            if state.queue.is_empty() && (is_idle || state.ends) {
                state.threads -= 1;
                drop(state);
                self.changed.notify_all();
                return None;
            }
        }
    }

    /// A thread could not be started. The calls that wait fail if no other thread runs.
    pub(super) fn not_started(&self) {
        let unanswered = self.with(|state| {
            state.threads -= 1;
            let inodes = if state.threads == 0 { std::mem::take(&mut state.queue) } else { VecDeque::new() };
            let mut unanswered = Vec::new();
            for inode in inodes {
                if let Some(entry) = state.inodes.get_mut(&inode) {
                    entry.busy = false;
                    unanswered.extend(entry.arrived.drain(..));
                }
            }
            unanswered
        });
        unanswered.into_iter().for_each(|(_, done)| done(Err(longhaul_fs::Errno::NOLCK)));
    }

    /// What is to be done next for a file that a thread works for; `None` if that is all.
    pub(super) fn step(&self, inode: u64) -> Option<LockStep> {
        self.with(|state| {
            let entry = state.inodes.get_mut(&inode)?;
            if let Some((call, done)) = entry.arrived.pop_front() {
                return Some(LockStep::Call(call, done));
            }
            if std::mem::take(&mut entry.again) && !entry.waiting.is_empty() {
                return Some(LockStep::Again(std::mem::take(&mut entry.waiting)));
            }
            let is_unused = entry.held.is_empty() && entry.waiting.is_empty();
            if std::mem::take(&mut entry.sweeps) && is_unused {
                return Some(LockStep::Sweep);
            }
            entry.busy = false;
            if is_unused {
                state.inodes.remove(&inode);
            }
            None
        })
    }

    /// A lock is waited for, unless that is a deadlock: then it is returned. `events` is how many there were
    /// before it was tried.
    pub(super) fn wait(&self, inode: u64, waiting: Waiting, events: u64) -> Option<Waiting> {
        self.with(|state| {
            if state.is_deadlock(inode, &waiting.lock) {
                return Some(waiting);
            }
            let entry = state.inodes.entry(inode).or_default();
            entry.again |= entry.events != events || waiting.has_given_up();
            entry.waiting.push(waiting);
            None
        })
    }

    /// Ends: no thread works for it any more, and those that wait fail.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        state.ends = true;
        self.changed.notify_all();
        while state.threads > 0 {
            state = wait(&self.changed, state);
        }
        let waiting: Vec<Waiting> =
            state.inodes.values_mut().flat_map(|entry| std::mem::take(&mut entry.waiting)).collect();
        drop(state);
        waiting.into_iter().for_each(|waiting| (waiting.done)(Err(longhaul_fs::Errno::IO)));
    }

    // ---- locks

    /// Whether there is anything of a file.
    pub(super) fn knows(&self, inode: u64) -> bool {
        self.with(|state| state.inodes.contains_key(&inode))
    }

    pub(super) fn has_any(&self) -> bool {
        self.locked.load(SeqCst) > 0
    }

    pub(super) fn has_locks_of(&self, inode: u64) -> bool {
        self.of(inode, |entry| !entry.held.is_empty())
    }

    pub(super) fn held(&self, inode: u64) -> Vec<FileLock> {
        self.of(inode, |entry| entry.held.clone())
    }

    pub(super) fn known(&self, inode: u64) -> Known {
        self.of(inode, |entry| entry.known.clone())
    }

    pub(super) fn events(&self, inode: u64) -> u64 {
        self.of(inode, |entry| entry.events)
    }

    /// Notes what was read of a file.
    pub(super) fn note(&self, inode: u64, known: Known) {
        self.of(inode, |entry| entry.known = known);
    }

    /// The session has these locks of a file now.
    pub(super) fn set(&self, inode: u64, held: Vec<FileLock>, known: Known) {
        self.of(inode, |entry| {
            let (before, after) = (entry.held.is_empty(), held.is_empty());
            match (before, after) {
                (true, false) => drop(self.locked.fetch_add(1, SeqCst)),
                (false, true) => drop(self.locked.fetch_sub(1, SeqCst)),
                _ => {}
            }
            (entry.held, entry.known) = (held, known);
        });
    }

    /// Locks were given up: those that wait are tried again.
    pub(super) fn left(&self, inode: u64, held: Vec<FileLock>, known: Known, sweeps: bool) {
        self.set(inode, held, known);
        self.of(inode, |entry| (entry.again, entry.sweeps) = (true, sweeps));
    }

    /// What a transaction that takes a lock is known by.
    pub(super) fn stamp(&self, session: u64) -> Vec<u8> {
        let number = self.with(|state| {
            state.next += 1;
            state.next
        });
        let mut to = Writer::default();
        to.u64(session).u64(number);
        to.end()
    }

    /// The kernel's pages of a file are as of this inode from now on; whether they are already.
    pub(super) fn sees(&self, inode: u64, stamp: (u64, u64)) -> bool {
        self.with(|state| {
            if state.seen.len() >= SEEN {
                state.seen.clear();
            }
            state.seen.insert(inode, stamp) == Some(stamp)
        })
    }

    /// Whether it is to be looked for what lost hosts have left: once, and after each of them.
    pub(crate) fn sweeps(&self) -> bool {
        !self.swept.swap(true, SeqCst)
    }

    /// A host was lost.
    pub(crate) fn sweep_later(&self) {
        self.swept.store(false, SeqCst);
    }

    // ---- the watch

    /// Whether the caller is to watch.
    pub(super) fn begins_to_watch(&self) -> bool {
        self.with(|state| !std::mem::replace(&mut state.watches, true))
    }

    pub(super) fn watch_failed(&self) {
        self.with(|state| state.watches = false);
    }

    pub(super) fn ends(&self) -> bool {
        self.with(|state| state.ends)
    }
}
