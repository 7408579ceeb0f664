//! The metadata of a file system: optimistic transactions on the catalog.
//!
//! A change is a function that reads records and puts others, in a [`Draft`]. It is committed on the
//! condition that everything that it has read is still as it was, and made again if that is not so.
//!
//! Invariants:
//! - each transaction expects that the session is there: nothing is changed by a session that has run out;
//! - each transaction puts an inode with a stamp of its own, by which it is found out whether one was made
//!   whose answer was lost; or else it may be made twice;
//! - a function that was given records that may be old (see [`Draft::inode`]) is called again with new ones
//!   before its error counts.

use crate::schema::{Account, CountersRecord, InodeRecord, Keys, decode_lease, unreadable};
use longhaul_catalog::{Catalog, Commit, Entry, Error as CatalogError, Expect, LeaseId, Revision, Txn};
use longhaul_fs::Errno;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a change is made again that others get ahead of.
const TRIES: u32 = 200;
/// Numbers of inodes that a session takes at a time, at first and later: what is not used of them is lost.
const NUMBERS: [u64; 2] = [1024, 1 << 16];
/// Pause of a change that has to be made while the catalog is away.
const PAUSE: Duration = Duration::from_millis(200);

/// Inodes that a transaction has put.
pub(crate) type InodesPut = HashMap<u64, InodeRecord>;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module.
pub(crate) struct Store {
    catalog: Arc<dyn Catalog>,
    keys: Keys,
    session: u64,
    lease: LeaseId,
    /// Number of the next transaction.
    next: AtomicU64,
    /// Set once the session has run out.
    ended: AtomicBool,
    inodes: Mutex<HashMap<u64, (InodeRecord, Revision)>>,
    /// How many are remembered.
    most_inodes: usize,
    /// The next one, the one behind the last, and how many are taken next.
    numbers: Mutex<(u64, u64, u64)>,
    /// Until when the lease lasts as far as this host knows.
    valid: Mutex<Instant>,
    /// Revision of the settings that this session follows.
    settings_at: AtomicU64,
}

/// `EIO`, and why in the log.
pub(crate) fn failed(e: &CatalogError) -> Errno {
    tracing::error!("{e}");
    Errno::IO
}

impl Store {
    /// The metadata, as the session `session` with this lease changes it.
    /// It was granted at `valid` less its time to live.
    pub(crate) fn new(
        catalog: Arc<dyn Catalog>,
        keys: Keys,
        session: u64,
        (lease, valid): (LeaseId, Instant),
        settings_at: Revision,
        most_inodes: usize,
    ) -> Store {
        Store {
            catalog,
            keys,
            session,
            lease,
            next: AtomicU64::new(1),
            ended: AtomicBool::new(false),
            inodes: Mutex::default(),
            most_inodes,
            numbers: Mutex::new((0, 0, NUMBERS[0])),
            valid: Mutex::new(valid),
            settings_at: AtomicU64::new(settings_at),
        }
    }

    /// Whether the lease lasts by the clock of this host: then no other host has what it protects.
    pub(crate) fn is_valid(&self) -> bool {
        longhaul_engine::now() < *lock(&self.valid)
    }

    /// The lease was kept until then, at least.
    pub(crate) fn kept(&self, until: Instant) {
        *lock(&self.valid) = until;
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Revision of the settings that this session follows.
    pub(crate) fn settings_at(&self) -> Revision {
        self.settings_at.load(SeqCst)
    }

    pub(crate) fn set_settings_at(&self, at: Revision) {
        self.settings_at.store(at, SeqCst);
    }

    pub(crate) fn session(&self) -> u64 {
        self.session
    }

    pub(crate) fn lease(&self) -> LeaseId {
        self.lease
    }

    pub(crate) fn catalog(&self) -> &Arc<dyn Catalog> {
        &self.catalog
    }

    /// Whether the session has run out.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// The session has run out, or is given up.
    pub(crate) fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Entry>, Errno> {
        self.catalog.get(key).map_err(|e| failed(&e))
    }

    /// The entries of these keys that there are.
    pub(crate) fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Entry>, Errno> {
        self.catalog.get_all(keys).map_err(|e| failed(&e))
    }

    pub(crate) fn range(&self, prefix: &[u8]) -> Result<Vec<Entry>, Errno> {
        Ok(self.catalog.range(prefix, None).map_err(|e| failed(&e))?.entries)
    }

    /// At most `most` entries whose keys begin with `prefix` and are behind `after`.
    pub(crate) fn page(&self, prefix: &[u8], after: &[u8], most: usize) -> Result<Vec<Entry>, Errno> {
        self.catalog.page(prefix, after, most).map_err(|e| failed(&e))
    }

    /// The entries of some keys, and a page that is not older.
    pub(crate) fn page_with(
        &self,
        keys: &[Vec<u8>],
        prefix: &[u8],
        after: &[u8],
        most: usize,
    ) -> Result<(Vec<Entry>, Vec<Entry>), Errno> {
        self.catalog.page_with(keys, prefix, after, most).map_err(|e| failed(&e))
    }

    /// Whether a record says that another session has the lease of a directory.
    pub(crate) fn is_of_another(&self, lease: &Entry) -> bool {
        decode_lease(&lease.value) != Some(self.session)
    }

    /// An inode as it was when it was read or put last.
    pub(crate) fn remembered(&self, inode: u64) -> Option<InodeRecord> {
        lock(&self.inodes).get(&inode).map(|(record, _)| record.clone())
    }

    /// As [`remembered`](Self::remembered), with the revision that put it.
    pub(crate) fn remembered_at(&self, inode: u64) -> Option<(InodeRecord, Revision)> {
        lock(&self.inodes).get(&inode).cloned()
    }

    /// An inode as it is now.
    pub(crate) fn inode(&self, inode: u64) -> Result<Option<InodeRecord>, Errno> {
        let found = self.get(&self.keys.inode(inode))?;
        self.remember(inode, found)
    }

    /// Remembers what was read of an inode.
    pub(crate) fn remember(&self, inode: u64, found: Option<Entry>) -> Result<Option<InodeRecord>, Errno> {
        let Some(entry) = found else {
            lock(&self.inodes).remove(&inode);
            return Ok(None);
        };
        let record = InodeRecord::decode(&entry.value)
            .ok_or_else(|| unreadable(&format!("inode {inode}"), &entry.value))?;
        self.put_remembered(inode, record.clone(), entry.modified);
        Ok(Some(record))
    }

    /// Reads inodes as they are now, for a change that is about them.
    pub(crate) fn look_up(&self, inodes: impl Iterator<Item = u64>) -> Result<(), Errno> {
        let inodes: Vec<u64> = inodes.collect();
        let keys: Vec<Vec<u8>> = inodes.iter().map(|inode| self.keys.inode(*inode)).collect();
        let mut found = self.get_all(&keys)?;
        for (inode, key) in inodes.into_iter().zip(keys) {
            let at = found.iter().position(|entry| entry.key == key);
            self.remember(inode, at.map(|at| found.swap_remove(at)))?;
        }
        Ok(())
    }

    fn put_remembered(&self, inode: u64, record: InodeRecord, at: Revision) {
        let mut inodes = lock(&self.inodes);
        if inodes.len() >= self.most_inodes {
            inodes.clear();
        }
        // Several threads may have read it, one after the other.
        match inodes.get(&inode) {
            Some((_, newer)) if *newer > at => {}
            _ => {
                inodes.insert(inode, (record, at));
            }
        }
    }

    /// The newest record of an inode that this session has read or put, if it is remembered.
    pub(crate) fn newest(&self, inode: u64) -> Option<InodeRecord> {
        lock(&self.inodes).get(&inode).map(|(record, _)| record.clone())
    }

    /// Forgets what is remembered of an inode.
    pub(crate) fn forget(&self, inode: u64) {
        lock(&self.inodes).remove(&inode);
    }

    /// The number of a new inode, if no transaction is needed for it.
    pub(crate) fn number_at_hand(&self) -> Option<u64> {
        // Another thread may have it locked for a transaction.
        let mut numbers = self.numbers.try_lock().ok()?;
        if numbers.0 == numbers.1 {
            return None;
        }
        numbers.0 += 1;
        Some(numbers.0 - 1)
    }

    /// The number of a new inode.
    pub(crate) fn new_number(&self) -> Result<u64, Errno> {
        let mut numbers = lock(&self.numbers);
        if numbers.0 == numbers.1 {
            let (key, count) = (self.keys.counters(), numbers.2);
            (numbers.0, numbers.1) = self.change(|draft| {
                let bytes = draft.get(&key)?.ok_or(Errno::IO)?;
                let mut counters =
                    CountersRecord::decode(&bytes).ok_or_else(|| unreadable("the counters", &bytes))?;
                let first = counters.inode;
                counters.inode += count;
                draft.put(&key, counters.encode());
                Ok((first, first + count))
            })?;
            numbers.2 = (count * 4).min(NUMBERS[1]);
        }
        numbers.0 += 1;
        Ok(numbers.0 - 1)
    }

    /// Makes a change; `body` may be called several times.
    pub(crate) fn change<T>(&self, body: impl FnMut(&mut Draft<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        Ok(self.change_by(body, false)?.0)
    }

    /// As [`change`](Self::change). While the catalog is away, it is waited for until the session has ended:
    /// so it is known whether the change was made. Also returns the inodes that it has put, as they are in the
    /// catalog: what is remembered may be forgotten at any time.
    pub(crate) fn change_surely<T>(
        &self,
        body: impl FnMut(&mut Draft<'_>) -> Result<T, Errno>,
    ) -> Result<(T, InodesPut), Errno> {
        self.change_by(body, true)
    }

    fn change_by<T>(
        &self,
        mut body: impl FnMut(&mut Draft<'_>) -> Result<T, Errno>,
        surely: bool,
    ) -> Result<(T, InodesPut), Errno> {
        for attempt in 0..TRIES {
            if self.has_ended() {
                return Err(Errno::IO);
            }
            let mut draft = Draft::new(self, attempt > 0);
            let value = match body(&mut draft) {
                Ok(value) => value,
                // It was decided on what may be old.
                Err(_) if draft.has_guessed => continue,
                Err(e) => return Err(e),
            };
            if draft.is_empty() {
                return Ok((value, InodesPut::new()));
            }
            if let Some(put) = self.commit(draft, surely)? {
                return Ok((value, put));
            }
            self.check_session()?;
            if attempt > 2 {
                // Others change the same all the time: one of us waits.
                std::thread::sleep(Duration::from_micros(fastrand::u64(
                    0..1000 * u64::from(attempt.min(20)),
                )));
            }
        }
        tracing::error!("file system: others changed the same {TRIES} times; try again");
        Err(Errno::IO)
    }

    /// The inodes that it has put, if it was made; `None` if others were ahead of it.
    fn commit(&self, draft: Draft<'_>, surely: bool) -> Result<Option<InodesPut>, Errno> {
        let number = self.next.fetch_add(1, Relaxed);
        let stamp = (self.session, number);
        let Draft { mut seen, mut changes, leased, inodes, account, .. } = draft;
        let mut put = Vec::new();
        for (inode, record) in inodes {
            let key = self.keys.inode(inode);
            match record {
                None => {
                    self.forget(inode);
                    changes.insert(key, None);
                }
                Some(mut record) => {
                    record.stamp = stamp;
                    changes.insert(key, Some(record.encode()));
                    put.push((inode, record));
                }
            }
        }
        if !account.0.is_empty() {
            changes.insert(self.keys.account(self.session, number), Some(account.encode()));
        }
        seen.insert(self.keys.session(self.session), Expect::Present);
        let txn = seen.iter().fold(Txn::new(), |txn, (key, expect)| txn.expect(key, *expect));
        let txn = changes.iter().fold(txn, |txn, (key, value)| match value {
            Some(value) => txn.put(key, value),
            None => txn.delete(key),
        });
        let txn = leased.iter().fold(txn, |txn, (key, value)| txn.put_leased(key, value, self.lease));
        let mut is_unknown = false;
        let done = loop {
            let has_conflict = match self.catalog.commit(&txn) {
                Ok(Commit::Done(revision)) => break Some(revision),
                Ok(Commit::Conflict(_)) if !is_unknown => break None,
                // It may be with the one whose answer was lost.
                Ok(Commit::Conflict(_)) => true,
                Err(CatalogError::Unknown { .. }) => false,
                Err(CatalogError::Unreachable { .. } | CatalogError::Busy { .. })
                    if surely && !self.has_ended() =>
                {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(e) => return Err(failed(&e)),
            };
            is_unknown = true;
            // The newest one: others have had the least time to change it.
            let Some((inode, _)) = put.last() else { break None };
            let found = loop {
                match self.get(&self.keys.inode(*inode)) {
                    Err(_) if surely && !self.has_ended() => std::thread::sleep(PAUSE),
                    found => break found?,
                }
            };
            // If it is not there it may still come: then the next one conflicts.
            match found {
                Some(found)
                    if InodeRecord::decode(&found.value).is_some_and(|found| found.stamp == stamp) =>
                {
                    break Some(found.modified);
                }
                _ if has_conflict => break None,
                _ => {}
            }
        };
        match done {
            Some(revision) => {
                for (inode, record) in &put {
                    self.put_remembered(*inode, record.clone(), revision);
                }
                Ok(Some(put.into_iter().collect()))
            }
            None => {
                put.iter().for_each(|(inode, _)| self.forget(*inode));
                Ok(None)
            }
        }
    }

    /// Refuses to go on once the session has run out.
    pub(crate) fn check_session(&self) -> Result<(), Errno> {
        if self.get(&self.keys.session(self.session))?.is_none() {
            if !self.ended.swap(true, Relaxed) {
                tracing::error!(
                    "the session of this mount has run out, as the catalog did not hear of it for long: \
                     unmount it, and mount it again"
                );
            }
            return Err(Errno::IO);
        }
        Ok(())
    }
}

/// A change that is being made up.
pub(crate) struct Draft<'s> {
    store: &'s Store,
    /// Nothing that is remembered is used.
    is_fresh: bool,
    /// Something that is remembered was used, or supposed.
    has_guessed: bool,
    seen: BTreeMap<Vec<u8>, Expect>,
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Keys that vanish with the session.
    leased: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Inodes that are put, or deleted.
    inodes: BTreeMap<u64, Option<InodeRecord>>,
    account: Account,
}

impl<'s> Draft<'s> {
    fn new(store: &'s Store, is_fresh: bool) -> Draft<'s> {
        Draft {
            store,
            is_fresh,
            has_guessed: false,
            seen: BTreeMap::new(),
            changes: BTreeMap::new(),
            leased: BTreeMap::new(),
            inodes: BTreeMap::new(),
            account: Account::default(),
        }
    }

    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.inodes.is_empty() && self.account.0.is_empty()
    }

    pub(crate) fn keys(&self) -> &'s Keys {
        &self.store.keys
    }

    pub(crate) fn session(&self) -> u64 {
        self.store.session
    }

    /// The value of a key, which has to be the same when the change is committed.
    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        if let Some(changed) = self.changes.get(key) {
            return Ok(changed.clone());
        }
        let found = self.store.get(key)?;
        self.note(key, found.as_ref());
        Ok(found.map(|entry| entry.value))
    }

    /// The entries of these keys, as by [`get`](Self::get); none of them is changed by this draft yet.
    pub(crate) fn get_all(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Entry>, Errno> {
        let found = self.store.get_all(keys)?;
        for key in keys {
            self.note(key, found.iter().find(|entry| entry.key == *key));
        }
        Ok(found)
    }

    fn note(&mut self, key: &[u8], found: Option<&Entry>) {
        let expect = found.map_or(Expect::Absent, |entry| Expect::Modified(entry.modified));
        self.seen.entry(key.to_vec()).or_insert(expect);
    }

    /// The settings have to be of this revision when the change is committed: members are where they were when
    /// what it adds was written.
    pub(crate) fn expect_settings(&mut self, at: Revision) {
        self.seen.insert(self.store.keys.settings(), Expect::Modified(at));
    }

    /// Whether it is made up anew, as others were ahead of it.
    pub(crate) fn is_again(&self) -> bool {
        self.is_fresh
    }

    /// Supposes that there is no such key, unless it is known better; whether that is so.
    pub(crate) fn suppose_absent(&mut self, key: &[u8]) -> Result<bool, Errno> {
        if self.is_fresh || self.changes.contains_key(key) {
            return Ok(self.get(key)?.is_none());
        }
        self.seen.entry(key.to_vec()).or_insert(Expect::Absent);
        Ok(true)
    }

    pub(crate) fn put(&mut self, key: &[u8], value: Vec<u8>) {
        self.changes.insert(key.to_vec(), Some(value));
    }

    /// Puts a key that vanishes with the session.
    pub(crate) fn put_leased(&mut self, key: &[u8], value: Vec<u8>) {
        self.leased.insert(key.to_vec(), value);
    }

    /// No other session has the lease of a directory when the change is committed.
    ///
    /// # Errors
    /// `EAGAIN` if another one has it now.
    pub(crate) fn unleased(&mut self, directory: u64) -> Result<(), Errno> {
        let key = self.store.keys.lease(directory);
        let lease = if self.is_fresh { self.store.get(&key)? } else { None };
        match lease {
            Some(lease) if self.store.is_of_another(&lease) => return Err(Errno::AGAIN),
            // It is of this session, whose record is expected.
            Some(_) => {}
            None => {
                self.seen.entry(key).or_insert(Expect::Absent);
            }
        }
        Ok(())
    }

    /// There is no such inode when the change is committed.
    pub(crate) fn expect_no_inode(&mut self, inode: u64) {
        self.seen.insert(self.store.keys.inode(inode), Expect::Absent);
    }

    pub(crate) fn delete(&mut self, key: &[u8]) {
        self.changes.insert(key.to_vec(), None);
    }

    /// An inode, maybe as it was some time ago; it has to be the same when the change is committed.
    pub(crate) fn inode(&mut self, inode: u64) -> Result<Option<InodeRecord>, Errno> {
        if let Some(changed) = self.inodes.get(&inode) {
            return Ok(changed.clone());
        }
        let key = self.store.keys.inode(inode);
        if !self.is_fresh
            && let Some((record, at)) = lock(&self.store.inodes).get(&inode).cloned()
        {
            self.has_guessed = true;
            self.seen.entry(key).or_insert(Expect::Modified(at));
            return Ok(Some(record));
        }
        let found = self.store.get(&key)?;
        self.note(&key, found.as_ref());
        self.store.remember(inode, found)
    }

    /// An inode as it is now, which may be another one when the change is committed.
    pub(crate) fn look(&mut self, inode: u64) -> Result<Option<InodeRecord>, Errno> {
        match self.inodes.get(&inode) {
            Some(changed) => Ok(changed.clone()),
            None => self.store.inode(inode),
        }
    }

    /// As [`inode`](Self::inode), for one that has to be there.
    pub(crate) fn needed(&mut self, inode: u64) -> Result<InodeRecord, Errno> {
        self.inode(inode)?.ok_or(Errno::STALE)
    }

    pub(crate) fn put_inode(&mut self, inode: u64, record: InodeRecord) {
        self.inodes.insert(inode, Some(record));
    }

    pub(crate) fn delete_inode(&mut self, inode: u64) {
        self.inodes.insert(inode, None);
    }

    /// Bytes of extents that are added to segments and freed there.
    pub(crate) fn account(&mut self) -> &mut Account {
        &mut self.account
    }
}
