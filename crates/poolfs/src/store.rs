//! The metadata of a file system: optimistic transactions on the catalog.
//!
//! A change is a function that reads records and puts others, in a [`Draft`]. It is committed on the
//! condition that everything that it has read is still as it was, and made again if that is not so.
//!
//! Invariants:
//! - each transaction expects that the session is there: nothing is changed by a session that has run out;
//! - each transaction puts an inode with a stamp of its own, by which it is found out whether one was made
//!   whose answer was lost; or else it may be made twice;
//! - each transaction expects that the snapshots are those which it knows, and keeps what they have of what it
//!   changes; and that the state of quotas and limits is the one which it knows (`usage`);
//! - a function that was given records that may be old (see [`Draft::inode`]) is called again with new ones
//!   before its error counts.

mod usage;

use crate::quota::QuotaTable;
use crate::reaper::Reaper;
use crate::schema::{Account, CountersRecord, InodeRecord, Keys, decode_lease, encode_kept, unreadable};
use crate::snapshots::{self, Snapshots};
use longhaul_catalog::{Catalog, Commit, Entry, Error as CatalogError, Expect, LeaseId, Revision, Txn};
use longhaul_fs::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a change is made again that others get ahead of.
const TRIES: u32 = 200;
/// Numbers of inodes that a session takes at a time, at first and later: what is not used of them is lost.
pub(crate) const NUMBERS: [u64; 2] = [1024, 1 << 16];
/// Pause of a change that has to be made while the catalog is away.
const PAUSE: Duration = Duration::from_millis(200);

/// Inodes that a transaction has put.
pub(crate) type InodesPut = HashMap<u64, InodeRecord>;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until another thread notifies.
pub(crate) fn wait<'m, T>(changed: &Condvar, guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// The record of a session, which is there until it has run out.
pub(crate) struct SessionRecord {
    catalog: Arc<dyn Catalog>,
    key: Vec<u8>,
    /// Set once the session has run out, or is given up.
    ended: AtomicBool,
}

impl SessionRecord {
    pub(crate) fn new(catalog: Arc<dyn Catalog>, keys: &Keys, session: u64) -> SessionRecord {
        SessionRecord { catalog, key: keys.session(session), ended: AtomicBool::new(false) }
    }

    /// Whether the session has run out, as far as it was found out.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    /// The session has run out, which is in the log once, with what shows it.
    pub(crate) fn run_out(&self, sign: &str) {
        if !self.ended.swap(true, Relaxed) {
            tracing::error!(
                "the session of this mount has run out, as the catalog did not hear of it for long{sign}: \
                 unmount it, and mount it again"
            );
        }
    }

    /// Whether the session is there still; otherwise it has ended here, and `sign` is in the log.
    pub(crate) fn is_there(&self, sign: &str) -> longhaul_catalog::Result<bool> {
        let is_there = !self.has_ended() && self.catalog.get(&self.key)?.is_some();
        if !is_there {
            self.run_out(sign);
        }
        Ok(is_there)
    }
}

/// See the module.
pub(crate) struct Store {
    catalog: Arc<dyn Catalog>,
    keys: Keys,
    session: u64,
    record: Arc<SessionRecord>,
    lease: LeaseId,
    /// Number of the next transaction.
    next: AtomicU64,
    inodes: Mutex<HashMap<u64, (InodeRecord, Revision)>>,
    /// How many are remembered.
    most_inodes: usize,
    /// The next one, the one behind the last, and how many are taken next.
    numbers: Mutex<(u64, u64, u64)>,
    /// Until when the lease lasts as far as this host knows.
    valid: Mutex<Instant>,
    /// Revision of the settings that this session follows.
    settings_at: AtomicU64,
    /// As they were read last.
    snapshots: Mutex<Arc<Snapshots>>,
    /// Sizes that files had when the latest snapshot was made, as of a count of changes of the snapshots; none of
    /// those that were not there.
    sizes: Mutex<(u64, HashMap<u64, Option<u64>>)>,
    /// What is known of the usage of users and groups that have limits.
    quotas: QuotaTable,
    /// Files that are being freed: what is refused for want of quota waits for them.
    pub(crate) reaper: Reaper,
}

/// Pages of entries, each read behind the last key of the one before, and the first one behind `after`.
pub(crate) fn pages<E>(
    after: Vec<u8>,
    mut read: impl FnMut(&[u8]) -> Result<Vec<Entry>, E>,
) -> impl Iterator<Item = Result<Vec<Entry>, E>> {
    let mut next = Some(after);
    std::iter::from_fn(move || match read(&next.take()?) {
        Ok(page) => {
            next = Some(page.last()?.key.clone());
            Some(Ok(page))
        }
        Err(e) => Some(Err(e)),
    })
}

/// `EIO`, and why in the log.
pub(crate) fn failed(e: &CatalogError) -> Errno {
    tracing::error!("{e}");
    Errno::IO
}

impl Store {
    /// The metadata, as the session `session` with this lease changes it. The first inodes that it makes have these
    /// `numbers`. The lease was granted at `valid` less its time to live.
    pub(crate) fn new(
        catalog: Arc<dyn Catalog>,
        keys: Keys,
        (session, numbers): (u64, Range<u64>),
        (lease, valid): (LeaseId, Instant),
        settings_at: Revision,
        most_inodes: usize,
    ) -> Store {
        Store {
            record: Arc::new(SessionRecord::new(Arc::clone(&catalog), &keys, session)),
            catalog,
            keys,
            session,
            lease,
            next: AtomicU64::new(1),
            inodes: Mutex::default(),
            most_inodes,
            numbers: Mutex::new((numbers.start, numbers.end, NUMBERS[0])),
            valid: Mutex::new(valid),
            settings_at: AtomicU64::new(settings_at),
            snapshots: Mutex::default(),
            sizes: Mutex::default(),
            quotas: QuotaTable::default(),
            reaper: Reaper::default(),
        }
    }

    /// The snapshots as they were read last.
    pub(crate) fn snapshots(&self) -> Arc<Snapshots> {
        Arc::clone(&lock(&self.snapshots))
    }

    /// Reads the snapshots as they are now.
    pub(crate) fn read_snapshots(&self) -> Result<(), Errno> {
        let now = snapshots::read_for(&*self.catalog, &self.keys)?;
        // A change of the state of quotas, or of a limit, counts as one of the snapshots.
        if now.quotas.counts() && now.seen != self.snapshots().seen
            || self.quotas.limits() && !now.quotas.counts()
        {
            self.read_quotas()?;
        }
        *lock(&self.snapshots) = Arc::new(now);
        Ok(())
    }

    /// What is known of the usage of users and groups that have limits.
    pub(crate) fn quotas(&self) -> &QuotaTable {
        &self.quotas
    }

    /// The size that a file had in the latest snapshot, if that is remembered.
    pub(crate) fn remembered_size(&self, changes: u64, inode: u64) -> Option<Option<u64>> {
        let sizes = lock(&self.sizes);
        if sizes.0 == changes { sizes.1.get(&inode).copied() } else { None }
    }

    pub(crate) fn remember_size(&self, changes: u64, inode: u64, size: Option<u64>) {
        let mut sizes = lock(&self.sizes);
        if sizes.0 != changes || sizes.1.len() >= self.most_inodes {
            *sizes = (changes, HashMap::new());
        }
        sizes.1.insert(inode, size);
    }

    /// Whether the lease lasts by the clock of this host: then no other host has what it protects.
    pub(crate) fn is_valid(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// How long the lease lasts yet, by the clock of this host.
    pub(crate) fn valid_for(&self) -> Duration {
        lock(&self.valid).saturating_duration_since(longhaul_engine::now())
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

    /// The record of the session.
    pub(crate) fn record(&self) -> &Arc<SessionRecord> {
        &self.record
    }

    /// Whether the session has run out.
    pub(crate) fn has_ended(&self) -> bool {
        self.record.has_ended()
    }

    /// The session has run out, or is given up.
    pub(crate) fn end(&self) {
        self.record.end();
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

    /// The entries of these inodes and of those between them, which are one after the other.
    pub(crate) fn inodes(&self, first: u64, last: u64) -> Result<Vec<Entry>, Errno> {
        let keys = &self.keys;
        let most = (last - first + 1) as usize;
        self.catalog
            .page_until(&keys.inodes(), &keys.inode(first - 1), &keys.inode(last), most)
            .map_err(|e| failed(&e))
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
        // The snapshots may be others than this session knows: of what is not committed that makes no difference.
        let mut is_behind = false;
        for attempt in 0..TRIES {
            if self.has_ended() {
                return Err(Errno::IO);
            }
            if is_behind {
                match self.read_snapshots() {
                    Err(_) if surely && !self.has_ended() => {
                        std::thread::sleep(PAUSE);
                        continue;
                    }
                    read => read?,
                }
                is_behind = false;
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
            let number = self.next.fetch_add(1, Relaxed);
            match self.charge(&mut draft, number, surely) {
                // It may fail for another reason: it was decided on what may be old, or supposed.
                Err(Errno::DQUOT) if !draft.is_fresh => continue,
                charged => charged?,
            }
            if let Some(put) = self.commit(draft, number, surely)? {
                return Ok((value, put));
            }
            is_behind = true;
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
    fn commit(&self, draft: Draft<'_>, number: u64, surely: bool) -> Result<Option<InodesPut>, Errno> {
        let counts = draft.snapshots.quotas.counts();
        let made = self.commit_as(draft, number, surely);
        if counts {
            self.quotas.end(number, made.as_ref().map_or(None, |made| made.as_ref().map(|(_, at)| *at)));
        }
        Ok(made?.map(|(put, _)| put))
    }

    /// As [`commit`](Self::commit), with the revision.
    fn commit_as(
        &self,
        mut draft: Draft<'_>,
        number: u64,
        surely: bool,
    ) -> Result<Option<(InodesPut, Revision)>, Errno> {
        draft.keep()?;
        draft.seen.insert(self.keys.snapshot_changes(), draft.snapshots.seen);
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
        if !account.is_empty() {
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
                Ok(Some((put.into_iter().collect(), revision)))
            }
            None => {
                put.iter().for_each(|(inode, _)| self.forget(*inode));
                Ok(None)
            }
        }
    }

    /// Refuses to go on once the session has run out.
    pub(crate) fn check_session(&self) -> Result<(), Errno> {
        match self.record.is_there("") {
            Ok(true) => Ok(()),
            Ok(false) => Err(Errno::IO),
            Err(e) => Err(failed(&e)),
        }
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
    /// With the state of quotas.
    snapshots: Arc<Snapshots>,
    /// Records of names and attributes that the latest snapshot has, as they were read.
    before: BTreeMap<Vec<u8>, (Revision, Vec<u8>)>,
    /// Inodes as they were read.
    inodes_before: BTreeMap<u64, (InodeRecord, Revision)>,
    /// Keys and inodes of which it is known that they are not there before.
    new: BTreeSet<Vec<u8>>,
    new_inodes: BTreeSet<u64>,
    /// Objects that waited for it in memory.
    carried: Vec<u64>,
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
            snapshots: store.snapshots(),
            before: BTreeMap::new(),
            inodes_before: BTreeMap::new(),
            new: BTreeSet::new(),
            new_inodes: BTreeSet::new(),
            carried: Vec::new(),
        }
    }

    /// The snapshots that it knows.
    pub(crate) fn snapshots(&self) -> Arc<Snapshots> {
        Arc::clone(&self.snapshots)
    }

    /// This transaction changes the snapshots.
    pub(crate) fn count_snapshot_change(&mut self) {
        let next = snapshots::next_change(&self.snapshots);
        self.changes.insert(self.store.keys.snapshot_changes(), Some(next));
    }

    /// An inode as it is before this transaction, and when it was put: the inner one is `None` if it is new, the
    /// outer one if that is not known.
    #[allow(clippy::option_option, reason = "unknown, absent, and there")]
    pub(crate) fn inode_before(&self, inode: u64) -> Option<Option<&(InodeRecord, Revision)>> {
        if self.new_inodes.contains(&inode)
            || self.seen.get(&self.store.keys.inode(inode)) == Some(&Expect::Absent)
        {
            return Some(None);
        }
        self.inodes_before.get(&inode).map(Some)
    }

    /// The values of these keys that there are, as by [`get`](Self::get).
    pub(crate) fn values(&mut self, keys: &[Vec<u8>]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Errno> {
        let (mut found, mut left) = (BTreeMap::new(), Vec::new());
        for key in keys {
            match self.changes.get(key) {
                Some(changed) => found.extend(changed.clone().map(|value| (key.clone(), value))),
                None => left.push(key.clone()),
            }
        }
        if !left.is_empty() {
            found.extend(self.get_all(&left)?.into_iter().map(|entry| (entry.key, entry.value)));
        }
        Ok(found)
    }

    /// Keeps what the latest snapshot has of what this transaction changes.
    fn keep(&mut self) -> Result<(), Errno> {
        let Some((latest, at)) = self.snapshots.latest().map(|latest| (latest.number, latest.at)) else {
            return Ok(());
        };
        let keys = &self.store.keys;
        let (mut kept, mut unread) = (Vec::new(), Vec::new());
        for inode in self.inodes.keys().filter(|inode| !self.new_inodes.contains(inode)) {
            let key = keys.inode(*inode);
            match (self.inodes_before.get(inode), self.seen.get(&key)) {
                (Some((record, put)), _) => {
                    if *put <= at {
                        kept.push((key, snapshots::kept_inode(*put, record)));
                    }
                }
                (None, Some(Expect::Absent)) => {}
                (None, _) => unread.push(key),
            }
        }
        let is_kept = |key: &&Vec<u8>| matches!(keys.kind(key), b'd' | b'a') && !self.new.contains(*key);
        for key in self.changes.keys().filter(is_kept) {
            match (self.before.get(key), self.seen.get(key)) {
                (Some((put, value)), _) => kept.push((key.clone(), encode_kept(*put, value))),
                // It is new since the snapshot.
                (None, Some(_)) => {}
                (None, None) => unread.push(key.clone()),
            }
        }
        // What it does not expect no other session changes, or as this one does.
        for entry in if unread.is_empty() { Vec::new() } else { self.store.get_all(&unread)? } {
            if entry.modified > at {
                continue;
            }
            let value = match keys.kind(&entry.key) {
                b'i' => {
                    let record = InodeRecord::decode(&entry.value)
                        .ok_or_else(|| unreadable("an inode", &entry.value))?;
                    snapshots::kept_inode(entry.modified, &record)
                }
                _ => encode_kept(entry.modified, &entry.value),
            };
            kept.push((entry.key, value));
        }
        for (key, value) in kept {
            self.changes.insert(keys.kept(&key, latest), Some(value));
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.leased.is_empty() && self.inodes.is_empty() && self.account.is_empty()
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

    /// Entries that were read before this transaction: as they were then, or, if the transaction is made again, as they
    /// are now.
    pub(crate) fn as_read(&mut self, entries: &[Entry]) -> Result<Vec<Entry>, Errno> {
        if self.is_fresh {
            let keys: Vec<Vec<u8>> = entries.iter().map(|entry| entry.key.clone()).collect();
            return self.get_all(&keys);
        }
        for entry in entries {
            self.note(&entry.key, Some(entry));
        }
        Ok(entries.to_vec())
    }

    fn note(&mut self, key: &[u8], found: Option<&Entry>) {
        let expect = found.map_or(Expect::Absent, |entry| Expect::Modified(entry.modified));
        self.seen.entry(key.to_vec()).or_insert(expect);
        if let (Some(entry), Some(latest)) = (found, self.snapshots.latest())
            && entry.modified <= latest.at
            && matches!(self.store.keys.kind(key), b'd' | b'a')
        {
            self.before.entry(key.to_vec()).or_insert_with(|| (entry.modified, entry.value.clone()));
        }
    }

    fn note_inode(&mut self, inode: u64, record: &InodeRecord, put: Revision) {
        if self.snapshots.latest().is_some() || self.snapshots.quotas.counts() {
            self.inodes_before.entry(inode).or_insert_with(|| (record.clone(), put));
        }
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

    /// Puts a key that is not there before.
    pub(crate) fn put_new(&mut self, key: &[u8], value: Vec<u8>) {
        // One that this transaction deletes was there.
        if !self.changes.contains_key(key) {
            self.new.insert(key.to_vec());
        }
        self.put(key, value);
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
        self.new.remove(key);
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
            self.note_inode(inode, &record, at);
            return Ok(Some(record));
        }
        let found = self.store.get(&key)?;
        self.note(&key, found.as_ref());
        let put = found.as_ref().map(|entry| entry.modified);
        let record = self.store.remember(inode, found)?;
        if let (Some(record), Some(put)) = (&record, put) {
            self.note_inode(inode, record, put);
        }
        Ok(record)
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

    /// Puts an inode that is not there before.
    pub(crate) fn put_new_inode(&mut self, inode: u64, record: InodeRecord) {
        self.new_inodes.insert(inode);
        self.put_inode(inode, record);
    }

    pub(crate) fn delete_inode(&mut self, inode: u64) {
        self.inodes.insert(inode, None);
    }

    /// Bytes of extents that are added to segments and freed there.
    pub(crate) fn account(&mut self) -> &mut Account {
        &mut self.account
    }
}
