//! Locks of files between hosts: those of flock(2) and fcntl(2).
//!
//! What a session has of a file is one key under its lease, `k` INODE SESSION: it vanishes with the session.
//! Besides there is `k` INODE, which each transaction puts that takes a lock, and expects as it was when the
//! locks of others were read: so of two sessions that take locks which conflict, one reads again. A session
//! deletes it with its own key if no other has any.
//!
//! A lock is given as of the newest content: the transaction expects the inode as this host knows it, and
//! reads it anew if it has changed. Before a lock is given up, what was written is committed.
//!
//! Invariants:
//! - calls about one file are made one after the other, by one thread at a time; no thread waits for a lock;
//! - what [`Inode::held`] has is in the catalog while the session lasts, and nothing more is;
//! - a call that waits has seen a lock that conflicts, and is tried again after each change of such: by this
//!   host, or as a watch reports it that began before the locks were read.

mod ranges;
mod table;

use crate::schema::{InodeRecord, Keys, decode_locks, encode_locks, unreadable};
use crate::session::FsSession;
use crate::store::failed;
use longhaul_catalog::{Commit, Error as CatalogError, Expect, Revision, Txn};
use longhaul_fs::{Attributes, Errno, FileLock, LockCall, LockDone, LockReply, Locks, Node};
use std::sync::Arc;
use std::time::Duration;
pub(crate) use table::LockTable;
use table::{Known, LockStep, Waiting};

/// How often a lock is tried that other sessions get ahead of.
const TRIES: usize = 100;
/// Most locks that a session has of one file: 30 bytes each in one record.
const MOST: usize = 8192;
/// Pause of an unlock that waits for a catalog which is away.
const PAUSE: Duration = Duration::from_millis(200);
/// How often it is looked whether the session is over.
const LOOK: Duration = Duration::from_millis(200);

/// The locks of a mounted file system.
pub(crate) struct PoolLocks(pub(crate) Arc<FsSession>);

/// A lock is had, with attributes if what is cached of the file may be older; or another one is in the way.
type LockAttempt = Result<Option<Attributes>, FileLock>;

impl Locks for PoolLocks {
    fn start(&self, node: Node, call: LockCall, done: LockDone) {
        // Most files that are closed have no locks.
        let closes = matches!(call, LockCall::Flush { .. } | LockCall::Release { .. });
        if closes && !self.0.locks.knows(node.0) {
            return done(Ok(LockReply::Done));
        }
        if self.0.locks.arrive(node.0, call, done) {
            self.spawn();
        }
    }

    fn look(&self, node: Node) {
        if self.0.locks.look(node.0) {
            self.spawn();
        }
    }
}

impl PoolLocks {
    /// Starts a thread that makes the calls which wait for one.
    fn spawn(&self) {
        let session = Arc::clone(&self.0);
        let run = move || {
            while let Some(inode) = session.locks.next_inode() {
                session.work(inode);
            }
        };
        if let Err(e) = std::thread::Builder::new().name("longhaul-locks".into()).spawn(run) {
            tracing::warn!("cannot start a thread: {e}");
            self.0.locks.not_started();
        }
    }
}

impl FsSession {
    /// Refuses I/O of a file of which this host had locks that others may have by now.
    pub(crate) fn check_locks(&self, inode: u64) -> Result<(), Errno> {
        if self.locks.has_any() && !self.store.is_valid() && self.locks.has_locks_of(inode) {
            tracing::error!("inode {inode}: its locks are lost, as the catalog did not hear of this host");
            return Err(Errno::IO);
        }
        Ok(())
    }

    /// Makes the calls about a file.
    fn work(self: &Arc<FsSession>, inode: u64) {
        loop {
            match self.locks.step(inode) {
                None => return,
                Some(LockStep::Call(call, done)) => match call {
                    LockCall::Lock { lock, waits } => self.lock_or_wait(inode, Waiting { lock, waits, done }),
                    LockCall::Test(lock) => done(self.test(inode, &lock).map(LockReply::Conflict)),
                    LockCall::Unlock(lock) => {
                        let rest = |held: &[FileLock]| ranges::without(held, &lock);
                        done(self.give_up(inode, rest).map(|()| LockReply::Done));
                    }
                    LockCall::Flush { owner } => {
                        let ends = |lock: &FileLock| !lock.flock && lock.owner == owner;
                        done(self.give_up(inode, rest_of(ends)).map(|()| LockReply::Done));
                    }
                    LockCall::Release { handle, flock_owner } => {
                        let ends = |lock: &FileLock| {
                            lock.handle == handle || lock.flock && flock_owner == Some(lock.owner)
                        };
                        done(self.give_up(inode, rest_of(ends)).map(|()| LockReply::Done));
                    }
                },
                Some(LockStep::Sweep) => self.sweep_guard(inode),
                Some(LockStep::Again(waiting)) => {
                    waiting.into_iter().for_each(|waiting| self.lock_or_wait(inode, waiting));
                }
            }
        }
    }

    fn lock_or_wait(self: &Arc<FsSession>, inode: u64, waiting: Waiting) {
        if waiting.has_given_up() {
            return (waiting.done)(Err(Errno::INTR));
        }
        let events = self.locks.events(inode);
        let tried = match self.acquire(inode, &waiting.lock) {
            // The existing lock of flock(2) is removed first: or else two that both wait to change a shared one
            // to an exclusive one would wait for each other.
            Ok(Err(_)) if waiting.lock.flock && waiting.waits.is_some() => {
                match self.give_up(inode, |held| ranges::without(held, &waiting.lock)) {
                    Ok(()) => self.acquire(inode, &waiting.lock),
                    Err(e) => Err(e),
                }
            }
            tried => tried,
        };
        match tried {
            Ok(Ok(attributes)) => (waiting.done)(Ok(LockReply::Held(attributes))),
            Err(e) => (waiting.done)(Err(e)),
            Ok(Err(_)) if waiting.waits.is_none() => (waiting.done)(Err(Errno::AGAIN)),
            Ok(Err(_)) => {
                if let Some(waiting) = self.locks.wait(inode, waiting, events) {
                    (waiting.done)(Err(Errno::DEADLK));
                }
            }
        }
    }

    /// Reads what sessions have of a file; from here on a watch reports what others change.
    fn read_locks(self: &Arc<FsSession>, inode: u64) -> Result<Known, Errno> {
        let keys = self.store.keys();
        let guard = keys.lock_guard(inode);
        let found = self.store.catalog().range(&guard, None).map_err(|e| failed(&e))?;
        let mut known = Known::default();
        for entry in found.entries {
            if entry.key == guard {
                known.guard = Some(entry.modified);
                known.stamp = Some(entry.value);
                continue;
            }
            let Some((numbers, _)) = keys.parse(&entry.key, 2) else { continue };
            if numbers[1] == self.store.session() {
                known.own = Some(entry.modified);
                continue;
            }
            let others = decode_locks(&entry.value).ok_or_else(|| unreadable("locks", &entry.value))?;
            known.others.extend(others.into_iter().map(|mut lock| {
                // Numbers of owners and processes are of one host.
                lock.owner = u64::MAX;
                lock.pid = 0;
                lock
            }));
        }
        if !known.others.is_empty() {
            self.watch_locks(found.revision + 1)?;
        }
        self.locks.note(inode, known.clone());
        Ok(known)
    }

    /// The lock that keeps this one from being had.
    fn test(self: &Arc<FsSession>, inode: u64, lock: &FileLock) -> Result<Option<FileLock>, Errno> {
        if let Some(found) = self.locks.held(inode).into_iter().find(|held| held.conflicts(lock)) {
            return Ok(Some(found));
        }
        Ok(conflict(&self.read_locks(inode)?, lock))
    }

    /// Takes a lock, if no other one is in the way.
    fn acquire(self: &Arc<FsSession>, inode: u64, lock: &FileLock) -> Result<LockAttempt, Errno> {
        let (held, mut known) = (self.locks.held(inode), self.locks.known(inode));
        if let Some(conflict) = held.iter().find(|held| held.conflicts(lock)) {
            return Ok(Err(*conflict));
        }
        let wanted = ranges::with(&held, lock);
        if wanted.len() > MOST {
            return Err(Errno::NOLCK);
        }
        if wanted == held && self.store.is_valid() {
            return Ok(Ok(None));
        }
        // What was written under an exclusive lock is seen by those that may share it from now on.
        let shares = |old: &FileLock| old.owner == lock.owner && old.meets(lock) && old.exclusive;
        if !lock.exclusive
            && held.iter().any(shares)
            && let Some(node) = self.open_node(inode)
        {
            self.commit(&node)?;
        }
        self.settle(inode)?;
        let (keys, session) = (self.store.keys(), self.store.session());
        let stamp = self.locks.stamp(session);
        let (guard, own) = (keys.lock_guard(inode), keys.locks_of(inode, session));
        let (mut reads, mut is_old) = (conflict(&known, lock).is_some(), false);
        for attempt in 0..TRIES {
            if reads {
                known = self.read_locks(inode)?;
                if known.stamp.as_ref() == Some(&stamp) {
                    // It was made, and its answer was lost.
                    self.locks.set(inode, wanted, known);
                    return self.revalidate(inode).map(Ok);
                }
                if let Some(conflict) = conflict(&known, lock) {
                    return Ok(Err(conflict));
                }
            }
            reads = true;
            if self.store.has_ended() {
                return Err(Errno::IO);
            }
            let (_, at) = self.newest_inode(inode, is_old)?;
            let expect = |found: Option<Revision>| found.map_or(Expect::Absent, Expect::Modified);
            let txn = Txn::new()
                .expect(&keys.session(session), Expect::Present)
                .expect(&keys.inode(inode), Expect::Modified(at))
                .expect(&guard, expect(known.guard))
                .expect(&own, expect(known.own))
                .put(&guard, &stamp)
                .put_leased(&own, &encode_locks(&wanted), self.store.lease());
            match self.store.catalog().commit(&txn) {
                Ok(Commit::Done(revision)) => {
                    known.guard = Some(revision);
                    known.own = Some(revision);
                    self.locks.set(inode, wanted, known);
                    return self.revalidate(inode).map(Ok);
                }
                Ok(Commit::Conflict(_)) => {
                    is_old = true;
                    if attempt > 0 {
                        self.store.check_session()?;
                    }
                }
                Err(CatalogError::Unknown { .. }) => {}
                Err(e) => return Err(failed(&e)),
            }
        }
        tracing::error!("inode {inode}: others took and gave up locks of it {TRIES} times; try again");
        Err(Errno::IO)
    }

    /// The inode as this host knows it, or as it is now, with the revision that put it.
    fn newest_inode(&self, inode: u64, reads: bool) -> Result<(InodeRecord, Revision), Errno> {
        if !reads && let Some(known) = self.store.remembered_at(inode) {
            return Ok(known);
        }
        let found = self.store.get(&self.store.keys().inode(inode))?.ok_or(Errno::STALE)?;
        let at = found.modified;
        let record = self.store.remember(inode, Some(found))?.ok_or(Errno::STALE)?;
        Ok((record, at))
    }

    /// The file is read as it is since the lock was taken; attributes if what the kernel has of it may be older.
    fn revalidate(&self, inode: u64) -> Result<Option<Attributes>, Errno> {
        let (record, _) = self.newest_inode(inode, false)?;
        if let Some(node) = self.open_node(inode) {
            let mut state = node.lock();
            if state.inode.stamp != record.stamp {
                // Another thread may have committed since it was read.
                state.replace(self.store.newest(inode).unwrap_or_else(|| record.clone()));
            }
        }
        let is_own = record.stamp.0 == self.store.session();
        let is_seen = self.locks.sees(inode, record.stamp);
        Ok((!is_own && !is_seen).then(|| self.shown(inode, &record)))
    }

    /// Leaves the locks that `rest` makes of those that this session has. While the catalog is away that waits,
    /// until the session is over.
    fn give_up(
        self: &Arc<FsSession>,
        inode: u64,
        rest: impl Fn(&[FileLock]) -> Vec<FileLock>,
    ) -> Result<(), Errno> {
        let (held, mut known) = (self.locks.held(inode), self.locks.known(inode));
        let left = rest(&held);
        if left == held {
            return Ok(());
        }
        let written = match self.open_node(inode) {
            Some(node) => self.commit(&node),
            None => Ok(()),
        };
        let (keys, session) = (self.store.keys(), self.store.session());
        let (guard, own) = (keys.lock_guard(inode), keys.locks_of(inode, session));
        let mut sweeps = false;
        let is_over = || self.store.has_ended() || !self.store.is_valid();
        while let Some(at) = known.own.filter(|_| !is_over()) {
            let txn = Txn::new().expect(&own, Expect::Modified(at));
            let txn = match (left.is_empty(), known.guard) {
                (false, _) => txn.put_leased(&own, &encode_locks(&left), self.store.lease()),
                (true, Some(guard_at)) if known.others.is_empty() => {
                    txn.expect(&guard, Expect::Modified(guard_at)).delete(&own).delete(&guard)
                }
                (true, _) => txn.delete(&own),
            };
            match self.store.catalog().commit(&txn) {
                Ok(Commit::Done(revision)) => {
                    known.own = (!left.is_empty()).then_some(revision);
                    if left.is_empty() {
                        sweeps = !known.others.is_empty();
                        known = Known::default();
                    }
                    break;
                }
                // They have ended with the session.
                Err(CatalogError::LeaseExpired(_)) => break,
                // Another session has taken a lock, or it was made and its answer was lost.
                Ok(Commit::Conflict(_)) | Err(CatalogError::Unknown { .. }) => {}
                Err(e) => {
                    tracing::warn!("inode {inode}: a lock is given up later: {e}");
                    std::thread::sleep(PAUSE);
                    continue;
                }
            }
            known = loop {
                match self.read_locks(inode) {
                    Err(_) if !is_over() => std::thread::sleep(PAUSE),
                    Err(_) => break Known::default(),
                    Ok(known) => break known,
                }
            };
            // It is known by the locks that are there.
            if known.own.is_some_and(|now| now != at) && !left.is_empty() {
                break;
            }
        }
        self.locks.left(inode, left, known, sweeps);
        written
    }

    /// Deletes the guard of a file of which no session has locks.
    fn sweep_guard(self: &Arc<FsSession>, inode: u64) {
        let Ok(Known { guard: Some(at), own: None, others, .. }) = self.read_locks(inode) else { return };
        self.locks.note(inode, Known::default());
        if others.is_empty()
            && let Err(e) = self.delete_guard(&self.store.keys().lock_guard(inode), at)
        {
            tracing::debug!("inode {inode}: what is left of its locks is removed later: {e}");
        }
    }

    /// A session that takes a lock meanwhile puts the guard, and it stays.
    fn delete_guard(&self, guard: &[u8], at: Revision) -> Result<(), Errno> {
        let txn = Txn::new().expect(guard, Expect::Modified(at)).delete(guard);
        self.store.catalog().commit(&txn).map(drop).map_err(|e| failed(&e))
    }

    // ---- locks of others

    /// Listens to what others change, from a revision on, unless that is done already.
    fn watch_locks(self: &Arc<FsSession>, from: Revision) -> Result<(), Errno> {
        if !self.locks.begins_to_watch() {
            return Ok(());
        }
        let session = Arc::clone(self);
        let run = move || {
            let mut from = from;
            while !session.locks_are_over() {
                if let Err(e) = session.listen_to_locks(from) {
                    tracing::debug!("locks are watched anew: {e}");
                    std::thread::sleep(LOOK);
                }
                // What changed meanwhile is seen as each one that waits is tried again.
                match session.store.catalog().range(&session.store.keys().settings(), None) {
                    Ok(found) => {
                        from = found.revision + 1;
                        let starts = session.locks.look_at_all();
                        (0..starts).for_each(|_| PoolLocks(Arc::clone(&session)).spawn());
                    }
                    Err(e) => tracing::debug!("locks are not watched: {e}"),
                }
            }
        };
        let started = std::thread::Builder::new().name("longhaul-unlock".into()).spawn(run);
        started.map(drop).map_err(|e| {
            tracing::warn!("cannot start a thread: {e}");
            self.locks.watch_failed();
            Errno::NOLCK
        })
    }

    fn locks_are_over(&self) -> bool {
        self.store.has_ended() || self.locks.ends()
    }

    fn listen_to_locks(self: &Arc<FsSession>, from: Revision) -> Result<(), CatalogError> {
        let keys = self.store.keys();
        let mut watch = self.store.catalog().watch(&keys.all_locks(), from)?;
        while !self.locks_are_over() {
            for event in watch.next(LOOK)? {
                let Some((numbers, _)) = keys.parse(&event.key, 2) else { continue };
                if numbers[1] != self.store.session() && self.locks.heard(numbers[0]) {
                    PoolLocks(Arc::clone(self)).spawn();
                }
            }
        }
        Ok(())
    }

    /// Removes what is left of locks whose sessions are over.
    pub(crate) fn sweep_locks(&self) -> Result<(), Errno> {
        let keys: &Keys = self.store.keys();
        let mut guards: Vec<(Vec<u8>, Revision)> = Vec::new();
        for entry in self.store.range(&keys.all_locks())? {
            match keys.parse(&entry.key, 2) {
                // The guard is before the locks of its inode.
                Some(_) => {
                    let is_its = |(guard, _): &(Vec<u8>, Revision)| entry.key.starts_with(guard);
                    drop(guards.pop_if(|guard| is_its(guard)));
                }
                None => guards.push((entry.key, entry.modified)),
            }
        }
        guards.iter().try_for_each(|(guard, at)| self.delete_guard(guard, *at))
    }
}

/// The locks that do not end.
fn rest_of(ends: impl Fn(&FileLock) -> bool) -> impl Fn(&[FileLock]) -> Vec<FileLock> {
    move |held| held.iter().filter(|lock| !ends(lock)).copied().collect()
}

fn conflict(known: &Known, lock: &FileLock) -> Option<FileLock> {
    known.others.iter().find(|other| other.conflicts(lock)).copied()
}
