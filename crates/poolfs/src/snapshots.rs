//! Snapshots: what the file system was at one revision of the catalog is kept where it is changed afterwards.
//!
//! A snapshot is a record, and its revision is that in which the record was put: a record that was put at that
//! revision or earlier is as it was then. The first transaction that changes one later keeps what it was, in a
//! record of its own. Of a file, its attributes are kept so, and of its content only the extents that are
//! replaced, by the places where they were: so each extent is in one record, of the file or of a snapshot.
//!
//! What a snapshot has is the first of: what the earliest snapshot from it on has kept, and what is there now if
//! that is not newer. So what several snapshots have in common is kept once.
//!
//! | step | a crash after it leaves |
//! |---|---|
//! | making: the record of the snapshot is put, and the count of changes | a snapshot |
//! | removing: the record says so, and the count of changes is put | a snapshot that is being removed |
//! | what it has kept goes to the one before it, or is removed | the same, with less |
//! | its record is removed | nothing |
//!
//! Invariants:
//! - each transaction expects the count of changes as it was when the transaction was made up: so it knows all
//!   snapshots;
//! - nothing is kept for a snapshot that is being removed, and what it has kept counts until it is gone;
//! - those that are being removed are emptied in their order.

use crate::content::{FRAGMENTED, MOVED as MOVED_MEMBERS, PUT_BYTES, SPLIT, by_chunk};
use crate::extent::{Extent, ExtentList};
use crate::programs::{known, refuse_earlier};
use crate::quota::QuotaState;
use crate::runs::Runs;
use crate::schema::{
    Content, CountersRecord, InodeRecord, KeptChunk, Keys, SnapshotRecord, decode_extents, decode_kept,
    decode_snapshot_changes, encode_kept, encode_snapshot_changes, range_of, unreadable,
};
use crate::segment::Filler;
use crate::session::{FsSession, now};
use crate::settings::FsSettings;
use crate::store::{Draft, Store, failed, lock, pages};
use longhaul_catalog::{Catalog, Commit, Entry, Error as CatalogError, Expect, Revision, Txn};
use longhaul_device::{Error, ErrorKind, Reason, Result};
use longhaul_fs::{Errno, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use uuid::Uuid;

/// Most snapshots of a file system, with those that are being removed.
pub(crate) const SNAPSHOTS_MAX: usize = 500;
/// Kept records that one transaction of a removal moves or removes.
const MOVED: usize = 40;
/// Kept chunks of one: they may be large.
const MOVED_CHUNKS: usize = 24;
/// How often a transaction is tried that other hosts get ahead of.
const TRIES: usize = 100;
/// Kept chunks that are read at a time.
const PAGE: usize = 64;

/// A snapshot with its number, which rises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Numbered {
    pub(crate) number: u64,
    /// The revision that it is as of.
    pub(crate) at: Revision,
    pub(crate) record: SnapshotRecord,
}

/// All snapshots as of some moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshots {
    /// The count of changes as it was read.
    pub(crate) seen: Expect,
    changes: u64,
    /// By number.
    pub(crate) all: Vec<Numbered>,
    /// Whether usage is counted: a change of that counts as one of the snapshots.
    pub(crate) quotas: QuotaState,
}

impl Default for Snapshots {
    /// None, as of a time before the first one.
    fn default() -> Snapshots {
        Snapshots { seen: Expect::Absent, changes: 1, all: Vec::new(), quotas: QuotaState::default() }
    }
}

impl Snapshots {
    /// Of the entries of the count and of quotas, and those of snapshots, which are not older. `None` if one cannot
    /// be read.
    fn of(keys: &Keys, found: &[Entry], entries: &[Entry]) -> Option<Snapshots> {
        let of = |key: Vec<u8>| found.iter().find(|entry| entry.key == key);
        let Some(changes) = of(keys.snapshot_changes()) else { return Some(Snapshots::default()) };
        let quotas = of(keys.quotas()).map(|entry| &entry.value[..]);
        let one = |entry: &Entry| {
            let record = SnapshotRecord::decode(&entry.value)?;
            let at = if record.at == 0 { entry.modified } else { record.at };
            Some(Numbered { number: keys.parse(&entry.key, 1)?.0[0], at, record })
        };
        Some(Snapshots {
            seen: Expect::Modified(changes.modified),
            changes: decode_snapshot_changes(&changes.value)?,
            all: entries.iter().map(one).collect::<Option<_>>()?,
            quotas: QuotaState::of(quotas)?,
        })
    }

    /// Reads them.
    pub(crate) fn read(catalog: &dyn Catalog, keys: &Keys) -> longhaul_catalog::Result<Option<Snapshots>> {
        let (prefix, counts) = (keys.snapshots(), [keys.snapshot_changes(), keys.quotas()]);
        let (found, entries) = catalog.page_with(&counts, &prefix, &prefix, 2 * SNAPSHOTS_MAX)?;
        Ok(Snapshots::of(keys, &found, &entries))
    }

    /// The count of changes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// The one for which changes keep what was there.
    pub(crate) fn latest(&self) -> Option<&Numbered> {
        self.all.iter().rfind(|one| !one.record.is_removed)
    }

    /// Those that are being removed and were made after the latest one: what they have kept is of it, where that
    /// has kept nothing.
    fn later(&self) -> impl Iterator<Item = u64> {
        let latest = self.latest().map(|one| one.number);
        self.all.iter().map(|one| one.number).filter(move |number| Some(*number) > latest)
    }

    /// Up to where changes of a file are noted that has this size in a snapshot.
    fn end_of_changes(&self, snapshot: u64, size: u64) -> u64 {
        let is_first = self.all.first().is_none_or(|first| first.number >= snapshot);
        if is_first { size } else { u64::MAX }
    }

    /// The first one that is being removed, and the one before it that is not.
    fn to_empty(&self) -> Option<(&Numbered, Option<&Numbered>)> {
        let at = self.all.iter().position(|one| one.record.is_removed)?;
        Some((&self.all[at], self.all[..at].last()))
    }

    /// The snapshot of this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Numbered> {
        self.all.iter().find(|one| one.record.name == name && !one.record.is_removed)
    }
}

/// An inode without its content, which is kept apart.
fn without_content(record: &InodeRecord) -> InodeRecord {
    let content = match &record.content {
        Content::Inline(_) | Content::Chunks => Content::Chunks,
        other => other.clone(),
    };
    InodeRecord { content, ..record.clone() }
}

/// The record that is kept of one which was put at revision `put`. Also of a file without a name: in an earlier
/// snapshot it may have one.
pub(crate) fn kept_inode(put: Revision, record: &InodeRecord) -> Vec<u8> {
    encode_kept(put, &without_content(record).encode())
}

impl Store {
    /// The size that a file had when the latest snapshot was made; `None` if it was not there.
    fn size_in_latest(&self, draft: &mut Draft<'_>, number: u64) -> std::result::Result<Option<u64>, Errno> {
        let snapshots = draft.snapshots();
        let Some(latest) = snapshots.latest() else { return Ok(None) };
        match draft.inode_before(number) {
            Some(None) => return Ok(None),
            Some(Some((record, put))) if *put <= latest.at => return Ok(Some(record.size)),
            _ => {}
        }
        if let Some(size) = self.remembered_size(snapshots.changes, number) {
            return Ok(size);
        }
        // It was changed since. What it was is kept, also by one that is being removed.
        let key = self.keys().inode(number);
        let wanted = [latest.number].into_iter().chain(snapshots.later());
        let wanted: Vec<Vec<u8>> = wanted.map(|snapshot| self.keys().kept(&key, snapshot)).collect();
        let size = match self.get_all(&wanted)?.first() {
            None => None,
            Some(entry) => {
                let read = decode_kept(&entry.value)
                    .and_then(|(put, value)| Some((put, InodeRecord::decode(&value)?)));
                let (put, record) = read.ok_or_else(|| unreadable("a kept inode", &entry.value))?;
                (put <= latest.at).then_some(record.size)
            }
        };
        self.remember_size(snapshots.changes, number, size);
        Ok(size)
    }
}

/// What is kept of a chunk of an inode.
fn kept_chunk(inode: u64, value: &[u8]) -> std::result::Result<KeptChunk, Errno> {
    KeptChunk::decode(value).ok_or_else(|| unreadable(&format!("what is kept of inode {inode}"), value))
}

/// The parts of extents within a range.
fn within(extents: &[Extent], range: Range<u64>) -> Vec<Extent> {
    let one = |extent: &Extent| [extent.clone()].into_iter().collect::<ExtentList>().lookup(range.clone());
    extents.iter().flat_map(one).collect()
}

/// Sorted ranges, of which those that touch are one.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let touches = last.end >= next.start;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    ranges
}

impl FsSession {
    /// Part of a transaction in which a file gets the extents `added` and has those `removed` no more: what the
    /// latest snapshot has of them is kept, and the rest is freed. Bytes of records that it puts.
    pub(crate) fn replace(
        &self,
        draft: &mut Draft<'_>,
        number: u64,
        inode: &mut InodeRecord,
        added: &[Extent],
        removed: &[Extent],
    ) -> std::result::Result<usize, Errno> {
        let gone: u64 = removed.iter().map(|extent| extent.len).sum();
        inode.stored = inode.stored.saturating_sub(gone);
        let snapshots = draft.snapshots();
        let latest = snapshots.latest().map(|latest| latest.number);
        let size = match removed.is_empty() && added.is_empty() {
            true => None,
            false => self.store.size_in_latest(draft, number)?,
        };
        let (Some(latest), Some(size)) = (latest, size) else {
            self.free_all(draft, removed);
            return Ok(0);
        };
        // What is behind its end is not of the snapshot, and may have been a hole of an earlier one in which the
        // file was longer.
        self.free_all(draft, &within(removed, size..u64::MAX));
        let end = snapshots.end_of_changes(latest, size);
        let mut changed: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
        let all: Vec<Extent> = added.iter().chain(removed).cloned().collect();
        for (chunk, extents) in by_chunk(&within(&all, 0..end)) {
            changed.entry(chunk).or_default().extend(extents.iter().map(|one| one.offset..one.end()));
        }
        let removed = by_chunk(&within(removed, 0..size));
        let later: Vec<u64> = snapshots.later().collect();
        let of = draft.keys();
        let keys = |chunk: u64| {
            [latest]
                .iter()
                .chain(&later)
                .map(|snapshot| of.kept_chunk(number, chunk, *snapshot))
                .collect::<Vec<_>>()
        };
        let wanted: Vec<Vec<u8>> = changed.keys().flat_map(|chunk| keys(*chunk)).collect();
        let mut known: BTreeMap<Vec<u8>, KeptChunk> = BTreeMap::new();
        for (key, value) in draft.values(&wanted)? {
            known.insert(key, kept_chunk(number, &value)?);
        }
        let mut put = 0;
        for (chunk, ranges) in changed {
            let mut kept: Vec<KeptChunk> =
                keys(chunk).iter().map(|key| known.remove(key).unwrap_or_default()).collect();
            let mut own = kept.remove(0);
            let before = own.changed.clone();
            let removed = removed.get(&chunk).map_or(&[][..], |extents| extents);
            let freed = own.keep(&joined(ranges), removed, &kept);
            self.free_all(draft, &freed);
            if own.changed != before {
                let value = own.encode();
                put += value.len();
                if value.len() >= FRAGMENTED {
                    lock(&self.large_kept).insert((number, chunk, latest));
                }
                draft.put(&draft.keys().kept_chunk(number, chunk, latest), value);
            }
        }
        Ok(put)
    }

    /// What is kept of chunks in very many pieces is written anew as a whole: its record would become too large.
    pub(crate) fn gather_kept(&self) {
        for (inode, chunk, snapshot) in std::mem::take(&mut *lock(&self.large_kept)) {
            if let Err(e) = self.gather_kept_chunk(inode, chunk, snapshot) {
                tracing::debug!("what is kept of inode {inode} stays in many pieces: {e}");
            }
        }
    }

    fn gather_kept_chunk(&self, inode: u64, chunk: u64, snapshot: u64) -> std::result::Result<(), Errno> {
        let Some(size) = self.store.change(|draft| self.store.size_in_latest(draft, inode))? else {
            return Ok(());
        };
        let (keys, whole) = (self.store.keys(), range_of(chunk));
        let range = whole.start..size.clamp(whole.start, whole.end);
        let (file, key) = (keys.chunk(inode, chunk), keys.kept_chunk(inode, chunk, snapshot));
        let at = self.store.settings_at();
        // What the file has now is read first: what is changed after that is kept.
        let mut list = match self.store.inode(inode)?.map(|inode| inode.content) {
            Some(Content::Inline(list)) => list,
            Some(Content::Chunks) => self.store.get(&file)?.map_or(Ok(ExtentList::default()), |entry| {
                decode_extents(&entry.value).ok_or_else(|| unreadable("a chunk", &entry.value))
            })?,
            _ => ExtentList::default(),
        };
        let Some(kept) = self.store.get(&key)? else { return Ok(()) };
        kept_chunk(inode, &kept.value)?.lay_over(&mut list);
        let list: ExtentList = list.lookup(range.clone()).into_iter().collect();
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.read_extents(&list, range.start, &mut bytes).map_err(|_| Errno::IO)?;
        let mut content = [Runs::default(), Runs::default()];
        for extent in list.iter() {
            let within = (extent.offset - range.start) as usize..(extent.end() - range.start) as usize;
            content[1].write(extent.offset, &bytes[within]);
        }
        drop(bytes);
        let written = self.write_durably(&content, Filler::Writes)?;
        let fresh: ExtentList = written.iter().map(|(extent, _)| extent.clone()).collect();
        let put = self.store.change(|draft| {
            self.expect_members(draft, at)?;
            let snapshots = draft.snapshots();
            let is_latest = snapshots.latest().is_some_and(|latest| latest.number == snapshot);
            let (true, None, Some(value)) = (is_latest, snapshots.later().next(), draft.get(&key)?) else {
                return Ok(());
            };
            let old: Vec<Extent> = kept_chunk(inode, &value)?.extents.iter().cloned().collect();
            self.free_all(draft, &old);
            for extent in fresh.iter() {
                draft.account().add(extent.stripe.segment(self.settings.segment), extent.len);
            }
            let changed = vec![whole.clone()];
            draft.put(&key, KeptChunk { changed, extents: fresh.clone() }.encode());
            Ok(())
        });
        written.iter().for_each(|(_, written)| self.segments.committed(written.segment));
        match put {
            // A member has moved: another time.
            Err(MOVED_MEMBERS) => Ok(()),
            put => put,
        }
    }

    fn free_all(&self, draft: &mut Draft<'_>, extents: &[Extent]) {
        for extent in extents {
            draft.account().free(extent.stripe.segment(self.settings.segment), extent.len);
        }
    }

    /// Whether transactions keep what they change.
    pub(crate) fn has_snapshots(&self) -> bool {
        self.store.snapshots().latest().is_some()
    }

    /// Empties snapshots that are being removed, as far as there are such.
    pub(crate) fn empty_removed(&self) -> std::result::Result<(), Errno> {
        loop {
            self.store.read_snapshots()?;
            let snapshots = self.store.snapshots();
            let Some((removed, before)) = snapshots.to_empty() else { return Ok(()) };
            self.empty_records(removed, before)?;
            self.empty_chunks(removed, before)?;
            let key = self.store.keys().snapshot(removed.number);
            self.store.change(|draft| {
                if draft.get(&key)?.is_some() {
                    draft.delete(&key);
                    draft.count_snapshot_change();
                }
                Ok(())
            })?;
        }
    }

    /// Moves the kept records of a snapshot to the one before it if they are of that too, and removes others.
    fn empty_records(&self, removed: &Numbered, before: Option<&Numbered>) -> std::result::Result<(), Errno> {
        let (keys, prefix) = (self.store.keys(), self.store.keys().all_kept());
        for page in pages(prefix.clone(), |after| self.store.page(&prefix, after, 20 * MOVED)) {
            let of: Vec<(Vec<u8>, Vec<u8>)> = page?
                .into_iter()
                .filter_map(|entry| {
                    let (key, snapshot) = keys.kept_of(&entry.key)?;
                    (snapshot == removed.number).then_some((entry.key, key))
                })
                .collect();
            for part in of.chunks(MOVED) {
                self.store.change(|draft| {
                    let to = |key: &[u8]| before.map(|before| keys.kept(key, before.number));
                    let wanted: Vec<Vec<u8>> =
                        part.iter().flat_map(|(from, key)| [Some(from.clone()), to(key)]).flatten().collect();
                    let found: BTreeMap<Vec<u8>, Vec<u8>> =
                        draft.get_all(&wanted)?.into_iter().map(|entry| (entry.key, entry.value)).collect();
                    for (from, key) in part {
                        let Some(value) = found.get(from) else { continue };
                        let (put, _) =
                            decode_kept(value).ok_or_else(|| unreadable("a kept record", value))?;
                        if let (Some(to), Some(before)) = (to(key), before)
                            && put <= before.at
                            && !found.contains_key(&to)
                        {
                            draft.put(&to, value.clone());
                        }
                        draft.delete(from);
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// The same of kept chunks: content that is of no snapshot any more is freed.
    fn empty_chunks(&self, removed: &Numbered, before: Option<&Numbered>) -> std::result::Result<(), Errno> {
        let (keys, prefix) = (self.store.keys(), self.store.keys().all_kept_chunks());
        for page in pages(prefix.clone(), |after| self.store.page(&prefix, after, PAGE)) {
            let of: Vec<(u64, u64, Vec<u8>)> = page?
                .into_iter()
                .filter_map(|entry| {
                    let (numbers, _) = keys.parse(&entry.key, 3)?;
                    (numbers[2] == removed.number).then_some((numbers[0], numbers[1], entry.key))
                })
                .collect();
            for part in of.chunks(MOVED_CHUNKS) {
                match self.empty_some(part, before) {
                    Err(SPLIT) => {
                        part.iter().try_for_each(|one| self.empty_some(std::slice::from_ref(one), before))?
                    }
                    emptied => emptied?,
                }
            }
        }
        Ok(())
    }

    /// One transaction of that: inodes, chunks, and the keys of what is kept of them.
    fn empty_some(
        &self,
        part: &[(u64, u64, Vec<u8>)],
        before: Option<&Numbered>,
    ) -> std::result::Result<(), Errno> {
        let keys = self.store.keys();
        let to = |inode: u64, chunk: u64| {
            before.map(|before| {
                // Records are moved first: so one is there if the file was, as it has changed since.
                let record = keys.kept(&keys.inode(inode), before.number);
                (keys.kept_chunk(inode, chunk, before.number), record)
            })
        };
        self.store.change(|draft| {
            let snapshots = draft.snapshots();
            let mut wanted = BTreeSet::new();
            for (inode, chunk, from) in part {
                wanted.insert(from.clone());
                wanted.extend(to(*inode, *chunk).into_iter().flat_map(|(to, record)| [to, record]));
            }
            let wanted: Vec<Vec<u8>> = wanted.into_iter().collect();
            let found: BTreeMap<Vec<u8>, Vec<u8>> =
                draft.get_all(&wanted)?.into_iter().map(|entry| (entry.key, entry.value)).collect();
            let mut put = 0;
            for (inode, chunk, from) in part {
                let Some(value) = found.get(from) else { continue };
                let from_kept = kept_chunk(*inode, value)?;
                let extents: Vec<Extent> = from_kept.extents.iter().cloned().collect();
                draft.delete(from);
                let record = to(*inode, *chunk).and_then(|(to, record)| Some((to, found.get(&record)?)));
                let Some((to, record)) = record else {
                    self.free_all(draft, &extents);
                    continue;
                };
                let size = decode_kept(record)
                    .and_then(|(_, record)| InodeRecord::decode(&record))
                    .ok_or_else(|| unreadable("a kept inode", record))?
                    .size;
                self.free_all(draft, &within(&extents, size..u64::MAX));
                let end = before.map_or(size, |before| snapshots.end_of_changes(before.number, size));
                let ranges = from_kept.changed.iter().map(|range| range.start..range.end.min(end));
                let mut kept =
                    found.get(&to).map(|value| kept_chunk(*inode, value)).transpose()?.unwrap_or_default();
                let freed = kept.keep(&joined(ranges.collect()), &within(&extents, 0..size), &[]);
                self.free_all(draft, &freed);
                if !kept.changed.is_empty() {
                    let value = kept.encode();
                    put += value.len();
                    draft.put(&to, value);
                }
            }
            if put > PUT_BYTES && part.len() > 1 { Err(SPLIT) } else { Ok(()) }
        })
    }
}

/// A snapshot of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsSnapshot {
    /// Its name.
    pub name: String,
    /// When it was made, by the clock of the host that did it: since the epoch.
    pub made: Time,
    /// The revision of the catalog that it is as of.
    pub revision: u64,
    /// Bytes of content that are freed when it alone is removed.
    pub held: u64,
    /// It is being removed: what it holds is freed in parts.
    pub is_removed: bool,
    /// Hosts that have it mounted.
    pub mounts: Vec<String>,
}

fn of_catalog(e: CatalogError) -> Error {
    longhaul_pool::Error::from(e).into()
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::Refused, why)
}

/// Snapshots of a file system of the catalog, called `name`.
pub(crate) struct FsSnapshots<'c> {
    pub(crate) catalog: &'c dyn Catalog,
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
}

impl FsSnapshots<'_> {
    fn keys(&self) -> Keys {
        Keys::new(self.uuid)
    }

    fn damaged(&self) -> Error {
        let why = format!("records of {} cannot be read: run 'longhaul fs check'", self.name);
        Error::new(ErrorKind::Failed, why)
    }

    pub(crate) fn read(&self) -> Result<Snapshots> {
        Snapshots::read(self.catalog, &self.keys()).map_err(of_catalog)?.ok_or_else(|| self.damaged())
    }

    fn too_busy(&self) -> Error {
        let why = format!("{}: others changed it {TRIES} times: try again", self.name);
        Error::new(ErrorKind::Failed, why)
    }

    fn missing(&self, snapshot: &str) -> Error {
        let why = format!("file system {} has no snapshot called {snapshot}", self.name);
        Error::new(ErrorKind::Failed, why).because(Some(Reason::NotFound))
    }

    /// The snapshot of this name.
    pub(crate) fn find(&self, snapshot: &str) -> Result<Numbered> {
        self.read()?.named(snapshot).cloned().ok_or_else(|| self.missing(snapshot))
    }

    /// Makes one: it is as of the revision in which this is done.
    pub(crate) fn make(&self, snapshot: &str) -> Result<Numbered> {
        let (keys, uuid) = (self.keys(), Uuid::new_v4());
        for _ in 0..TRIES {
            let fixed = [keys.counters(), keys.settings()];
            let fixed = self.catalog.get_all(&fixed).map_err(of_catalog)?;
            let entry = |key: &[u8]| fixed.iter().find(|entry| entry.key == key);
            let (Some(counters), Some(settings)) = (entry(&keys.counters()), entry(&keys.settings())) else {
                return Err(Error::new(ErrorKind::Failed, format!("{} has no metadata", self.name)));
            };
            let all = self.read()?;
            if let Some(found) = all.named(snapshot) {
                // An earlier try whose answer was lost.
                return match found.record.uuid == uuid {
                    true => Ok(found.clone()),
                    false => Err(refused(format!("{}@{snapshot} is there already", self.name))),
                };
            }
            if all.all.len() >= SNAPSHOTS_MAX {
                let why = format!("{} has {SNAPSHOTS_MAX} snapshots, and may have no more", self.name);
                return Err(refused(format!("{why}: remove some")));
            }
            let record =
                SnapshotRecord { name: snapshot.to_owned(), uuid, made: now(), at: 0, is_removed: false };
            let mut txn = Txn::new()
                .expect(&keys.snapshot_changes(), all.seen)
                .expect(&keys.settings(), Expect::Modified(settings.modified))
                .put(&keys.snapshot_changes(), &encode_snapshot_changes(all.changes + 1))
                .put(&keys.snapshot(all.changes), &record.encode());
            let mut settings = FsSettings::decode(&self.name, &settings.value)?;
            if settings.format < FsSettings::FORMAT_SNAPSHOTS {
                let mut count = CountersRecord::decode(&counters.value).ok_or_else(|| self.damaged())?;
                // A session that begins meanwhile changes the counters.
                refuse_earlier(
                    self.catalog,
                    self.uuid,
                    &self.name,
                    FsSettings::FORMAT_SNAPSHOTS,
                    "snapshots",
                )?;
                settings.format = FsSettings::FORMAT_SNAPSHOTS;
                count.raise(CountersRecord::SNAPSHOTS);
                txn = txn
                    .expect(&keys.counters(), Expect::Modified(counters.modified))
                    .put(&keys.counters(), &count.encode())
                    .put(&keys.settings(), &settings.encode());
            }
            match self.catalog.commit(&txn) {
                Ok(Commit::Done(at)) => return Ok(Numbered { number: all.changes, at, record }),
                Ok(Commit::Conflict(_)) | Err(CatalogError::Unknown { .. }) => {}
                Err(e) => return Err(of_catalog(e)),
            }
        }
        Err(self.too_busy())
    }

    /// Hosts that have snapshots mounted, by the number of the snapshot.
    fn mounts(&self) -> Result<BTreeMap<u64, Vec<String>>> {
        let (keys, mut mounts) = (self.keys(), BTreeMap::<u64, Vec<String>>::new());
        for (session, (_, snapshot)) in
            known(self.catalog, &keys).map_err(of_catalog)?.into_iter().filter(|(_, (_, one))| *one > 0)
        {
            let found = self.catalog.get(&keys.session(session)).map_err(of_catalog)?;
            if let Some(host) = found.and_then(|entry| crate::schema::decode_session(&entry.value)) {
                mounts.entry(snapshot).or_default().push(host);
            }
        }
        Ok(mounts)
    }

    /// Begins to remove one, which a host that has it mounted cannot read any more: only with `force` then.
    pub(crate) fn begin_removal(&self, snapshot: &str, force: bool) -> Result<()> {
        let keys = self.keys();
        let mut number = None;
        for _ in 0..TRIES {
            let all = self.read()?;
            let found =
                all.named(snapshot).filter(|found| number.is_none_or(|number| found.number == number));
            let Some(found) = found else {
                return match number {
                    // An earlier try whose answer was lost.
                    Some(_) => Ok(()),
                    None => Err(self.missing(snapshot)),
                };
            };
            number = Some(found.number);
            let mounts = self.mounts()?.remove(&found.number).unwrap_or_default();
            if !mounts.is_empty() && !force {
                let why = format!(
                    "{}@{snapshot} is not removed: it is mounted on {}; unmount it, or give --force",
                    self.name,
                    mounts.join(", ")
                );
                return Err(refused(why).because(Some(Reason::InUse)));
            }
            let record = SnapshotRecord { at: found.at, is_removed: true, ..found.record.clone() };
            let txn = Txn::new()
                .expect(&keys.snapshot_changes(), all.seen)
                .put(&keys.snapshot_changes(), &encode_snapshot_changes(all.changes + 1))
                .put(&keys.snapshot(found.number), &record.encode());
            match self.catalog.commit(&txn) {
                Ok(Commit::Done(_)) => return Ok(()),
                Ok(Commit::Conflict(_)) | Err(CatalogError::Unknown { .. }) => {}
                Err(e) => return Err(of_catalog(e)),
            }
        }
        Err(self.too_busy())
    }

    /// By inode and snapshot, when the inode was put that is kept, and its size.
    fn kept_sizes(&self) -> Result<BTreeMap<(u64, u64), (u64, u64)>> {
        let (keys, mut sizes) = (self.keys(), BTreeMap::new());
        let prefix = keys.kept_range(&keys.inodes());
        for page in pages(prefix.clone(), |after| self.catalog.page(&prefix, after, 1000)) {
            for entry in page.map_err(of_catalog)? {
                let read = || {
                    let (key, snapshot) = keys.kept_of(&entry.key)?;
                    let (put, value) = decode_kept(&entry.value)?;
                    Some(((keys.parse(&key, 1)?.0[0], snapshot), (put, InodeRecord::decode(&value)?.size)))
                };
                let (of, size) = read().ok_or_else(|| self.damaged())?;
                sizes.insert(of, size);
            }
        }
        Ok(sizes)
    }

    /// All of them, with what they hold: all that is kept is read.
    pub(crate) fn list(&self) -> Result<Vec<FsSnapshot>> {
        let (keys, mut mounts, all) = (self.keys(), self.mounts()?, self.read()?);
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        let (prefix, mut chunk) = (keys.all_kept_chunks(), (0, 0, BTreeMap::new()));
        let sizes = self.kept_sizes()?;
        let mut count = |(inode, _, kept): &(u64, u64, BTreeMap<u64, KeptChunk>)| {
            for (at, one) in all.all.iter().enumerate() {
                let Some(own) = kept.get(&one.number) else { continue };
                let extents: Vec<Extent> = own.extents.iter().cloned().collect();
                // The size that it had in the snapshot before, if it was there.
                let size = at.checked_sub(1).map_or(0, |at| {
                    let (before, mut of) = (&all.all[at], sizes.range((*inode, all.all[at].number)..));
                    let first = of.next().filter(|((number, _), _)| number == inode);
                    first.filter(|(_, (put, _))| *put <= before.at).map_or(0, |(_, (_, size))| *size)
                });
                let mut before = at
                    .checked_sub(1)
                    .and_then(|at| kept.get(&all.all[at].number))
                    .cloned()
                    .unwrap_or_default();
                let ranges = own.changed.iter().map(|range| range.start..range.end.min(size));
                let freed = before.keep(&joined(ranges.collect()), &within(&extents, 0..size), &[]);
                let behind = within(&extents, size..u64::MAX);
                *held.entry(one.number).or_default() +=
                    freed.iter().chain(&behind).map(|extent| extent.len).sum::<u64>();
            }
        };
        for page in pages(prefix.clone(), |after| self.catalog.page(&prefix, after, PAGE)) {
            for entry in page.map_err(of_catalog)? {
                let kept = KeptChunk::decode(&entry.value).ok_or_else(|| self.damaged())?;
                let (numbers, _) = keys.parse(&entry.key, 3).ok_or_else(|| self.damaged())?;
                if (chunk.0, chunk.1) != (numbers[0], numbers[1]) {
                    count(&chunk);
                    chunk = (numbers[0], numbers[1], BTreeMap::new());
                }
                chunk.2.insert(numbers[2], kept);
            }
        }
        count(&chunk);
        let shown = |one: Numbered| FsSnapshot {
            held: held.get(&one.number).copied().unwrap_or(0),
            mounts: mounts.remove(&one.number).unwrap_or_default(),
            made: one.record.made,
            revision: one.at,
            is_removed: one.record.is_removed,
            name: one.record.name,
        };
        Ok(all.all.into_iter().map(shown).collect())
    }
}

/// Bytes of content that only snapshots of a file system have.
///
/// # Errors
/// The catalog cannot be read, or a record is damaged.
pub fn kept(catalog: &dyn Catalog, uuid: Uuid) -> Result<u64> {
    let prefix = Keys::new(uuid).all_kept_chunks();
    let mut bytes = 0;
    for page in pages(prefix.clone(), |after| catalog.page(&prefix, after, PAGE)) {
        for entry in page.map_err(of_catalog)? {
            let kept = KeptChunk::decode(&entry.value).ok_or_else(|| {
                Error::new(
                    ErrorKind::Failed,
                    "a record of a snapshot cannot be read: run 'longhaul fs check'",
                )
            })?;
            bytes += kept.extents.iter().map(|extent| extent.len).sum::<u64>();
        }
    }
    Ok(bytes)
}

/// The count of changes for the next transaction that changes the snapshots.
pub(crate) fn next_change(snapshots: &Snapshots) -> Vec<u8> {
    encode_snapshot_changes(snapshots.changes + 1)
}

/// Reads the snapshots for a session.
pub(crate) fn read_for(catalog: &dyn Catalog, keys: &Keys) -> std::result::Result<Snapshots, Errno> {
    let found = Snapshots::read(catalog, keys).map_err(|e| failed(&e))?;
    found.ok_or_else(|| unreadable("the record of a snapshot", b""))
}

/// A page of kept chunks, with all that is kept of each of them: the removal of a snapshot moves that to another.
pub(crate) fn kept_page(
    catalog: &dyn Catalog,
    prefix: &[u8],
    after: &[u8],
    most: usize,
) -> longhaul_catalog::Result<Vec<Entry>> {
    let mut page = catalog.page(prefix, after, most)?;
    if page.len() < most {
        return Ok(page);
    }
    // The number of the snapshot is last.
    let chunk = |entry: &Entry| entry.key[..entry.key.len().saturating_sub(8)].to_vec();
    let Some(last) = page.last().map(chunk) else { return Ok(page) };
    page.retain(|entry| chunk(entry) != last);
    match page.is_empty() {
        true => catalog.page(&last, after, 2 * SNAPSHOTS_MAX),
        false => Ok(page),
    }
}
