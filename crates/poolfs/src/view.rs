//! A snapshot as if it were the file system: the records of files and names as they were.
//!
//! What a key had is looked up first as it is now, and then in what the snapshots have kept: a record is kept in
//! the transaction that changes it, so what is there in neither was not there.

use crate::extent::ExtentList;
use crate::schema::{
    Content, InodeRecord, KeptChunk, Keys, SnapshotRecord, decode_extents, decode_kept, encode_extents,
    range_of,
};
use crate::snapshots::{Numbered, SNAPSHOTS_MAX, kept_page};
use crate::store::pages;
use longhaul_catalog::{Catalog, Commit, Entry, Error, LeaseId, Result, Revision, Snapshot, Txn, Watch};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Kept records that are read at a time: more than there are of one key.
const PAGE: usize = 2 * SNAPSHOTS_MAX;
/// Kept chunks that are read at a time.
const CHUNKS: usize = 64;

/// The catalog with a file system in it as it was when a snapshot was made.
pub(crate) struct SnapshotCatalog {
    below: Arc<dyn Catalog>,
    keys: Keys,
    number: u64,
    at: Revision,
    name: String,
}

/// Records of a page.
#[derive(Default)]
struct Page {
    /// What the snapshot has; `None` of what is there and was not.
    found: BTreeMap<Vec<u8>, Option<Entry>>,
    /// There is nothing behind it.
    is_last: bool,
}

impl SnapshotCatalog {
    pub(crate) fn new(below: Arc<dyn Catalog>, keys: Keys, snapshot: &Numbered) -> SnapshotCatalog {
        SnapshotCatalog {
            below,
            keys,
            number: snapshot.number,
            at: snapshot.at,
            name: snapshot.record.name.clone(),
        }
    }

    fn damaged(&self, what: &str) -> Error {
        Error::Failed {
            catalog: self.below.name(),
            attempted: "read",
            why: format!("{what} of snapshot {} is damaged: run 'longhaul fs check'", self.name),
        }
    }

    /// Refuses what was read after the snapshot was removed.
    fn check(&self) -> Result<()> {
        let found = self.below.get(&self.keys.snapshot(self.number))?;
        match found.and_then(|entry| SnapshotRecord::decode(&entry.value)) {
            Some(record) if !record.is_removed => Ok(()),
            _ => Err(Error::Failed {
                catalog: self.below.name(),
                attempted: "read",
                why: format!("snapshot {} was removed: unmount it", self.name),
            }),
        }
    }

    /// A kept record as an entry of `key`; `None` if it was put after the snapshot was made.
    fn entry(&self, key: &[u8], kept: &Entry) -> Result<Option<Entry>> {
        let (put, value) = decode_kept(&kept.value).ok_or_else(|| self.damaged("a record"))?;
        let entry = Entry { key: key.to_vec(), value, created: put, modified: put, lease: None };
        Ok((put <= self.at).then_some(entry))
    }

    /// What is kept of these keys.
    fn kept(&self, wanted: &BTreeSet<Vec<u8>>) -> Result<Vec<Entry>> {
        let (mut left, mut all) = (wanted.clone(), Vec::new());
        while let Some(first) = left.first().cloned() {
            let after = self.keys.kept(&first, self.number - 1);
            let (prefix, most) = match left.len() {
                1 => (self.keys.kept_prefix(&first), 1),
                _ => (self.keys.all_kept(), PAGE),
            };
            let page = self.below.page(&prefix, &after, most)?;
            let is_last = page.len() < most;
            let mut last = first;
            for entry in page {
                let (key, snapshot) = self.keys.kept_of(&entry.key).ok_or_else(|| self.damaged("a key"))?;
                if snapshot >= self.number && left.remove(&key) {
                    all.extend(self.entry(&key, &entry)?);
                }
                last = key;
            }
            match is_last {
                true => left.clear(),
                false => left.retain(|key| *key >= last),
            }
            if most == 1 {
                break;
            }
        }
        Ok(all)
    }

    /// Chunks of files, by their keys. Their inodes and chunks as they are now are read first.
    fn chunks(&self, wanted: &[Vec<u8>]) -> Result<Vec<Entry>> {
        let mut files: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for key in wanted {
            let (numbers, _) = self.keys.parse(key, 2).ok_or_else(|| self.damaged("a key"))?;
            files.entry(numbers[0]).or_default().insert(numbers[1]);
        }
        let inodes = files.keys().map(|inode| self.keys.inode(*inode));
        let asked: Vec<Vec<u8>> = wanted.iter().cloned().chain(inodes).collect();
        let now: BTreeMap<Vec<u8>, Entry> =
            self.below.get_all(&asked)?.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        let mut all = Vec::new();
        for (inode, chunks) in &files {
            let content = match now.get(&self.keys.inode(*inode)) {
                Some(entry) => {
                    InodeRecord::decode(&entry.value).ok_or_else(|| self.damaged("an inode"))?.content
                }
                None => Content::None,
            };
            let mut lists: BTreeMap<u64, ExtentList> = BTreeMap::new();
            for chunk in chunks {
                let list = match &content {
                    Content::Inline(list) => list.lookup(range_of(*chunk)).into_iter().collect(),
                    Content::Chunks => match now.get(&self.keys.chunk(*inode, *chunk)) {
                        Some(entry) => decode_extents(&entry.value).ok_or_else(|| self.damaged("a chunk"))?,
                        None => ExtentList::default(),
                    },
                    Content::None | Content::Link(_) => ExtentList::default(),
                };
                lists.insert(*chunk, list);
            }
            self.lay_over(*inode, &mut lists)?;
            all.extend(lists.into_iter().filter(|(_, list)| !list.is_empty()).map(|(chunk, list)| Entry {
                key: self.keys.chunk(*inode, chunk),
                value: encode_extents(&list),
                created: self.at,
                modified: self.at,
                lease: None,
            }));
        }
        Ok(all)
    }

    /// Puts what was kept of chunks in place of what they have now.
    fn lay_over(&self, inode: u64, lists: &mut BTreeMap<u64, ExtentList>) -> Result<()> {
        let (Some((first, _)), Some((last, _))) = (lists.first_key_value(), lists.last_key_value()) else {
            return Ok(());
        };
        let (last, prefix) = (*last, self.keys.kept_chunks(inode));
        let after = self.keys.kept_chunk(inode, *first, self.number - 1);
        let mut kept: BTreeMap<u64, Vec<KeptChunk>> = BTreeMap::new();
        'all: for page in pages(after, |after| kept_page(&*self.below, &prefix, after, CHUNKS)) {
            for entry in page? {
                let (numbers, _) = self.keys.parse(&entry.key, 3).ok_or_else(|| self.damaged("a key"))?;
                if numbers[1] > last {
                    break 'all;
                }
                if numbers[2] >= self.number && lists.contains_key(&numbers[1]) {
                    let one = KeptChunk::decode(&entry.value).ok_or_else(|| self.damaged("a chunk"))?;
                    kept.entry(numbers[1]).or_default().push(one);
                }
            }
        }
        for (chunk, kept) in kept {
            // The earliest one is last: it has what this snapshot had.
            let list = lists.entry(chunk).or_default();
            kept.iter().rev().for_each(|one| one.lay_over(list));
        }
        Ok(())
    }

    /// The next records of names or attributes behind a key.
    fn records(&self, prefix: &[u8], after: &[u8], most: usize) -> Result<Page> {
        let now = self.below.page(prefix, after, most)?;
        let range = self.keys.kept_range(prefix);
        let from = if after == prefix { range.clone() } else { self.keys.kept(after, u64::MAX) };
        let kept = self.below.page(&range, &from, PAGE)?;
        let now_ends = (now.len() == most).then(|| now.last().map(|entry| entry.key.clone())).flatten();
        // Of the last key there may be more.
        let kept_ends = match kept.last() {
            Some(last) if kept.len() == PAGE => {
                Some(self.keys.kept_of(&last.key).ok_or_else(|| self.damaged("a key"))?.0)
            }
            _ => None,
        };
        let is_within = |key: &Vec<u8>| {
            now_ends.as_ref().is_none_or(|end| key <= end) && kept_ends.as_ref().is_none_or(|end| key < end)
        };
        let mut page = Page { is_last: now_ends.is_none() && kept_ends.is_none(), ..Page::default() };
        for entry in now {
            if is_within(&entry.key) {
                page.found.insert(entry.key.clone(), (entry.modified <= self.at).then_some(entry));
            }
        }
        let mut known = BTreeSet::new();
        for entry in kept {
            let (key, snapshot) = self.keys.kept_of(&entry.key).ok_or_else(|| self.damaged("a key"))?;
            if !is_within(&key) {
                break;
            }
            if snapshot >= self.number && known.insert(key.clone()) {
                let had = self.entry(&key, &entry)?;
                page.found.insert(key, had);
            } else {
                page.found.entry(key).or_insert(None);
            }
        }
        Ok(page)
    }

    /// A page of the chunks of a file.
    fn chunk_page(&self, prefix: &[u8], after: &[u8], most: usize) -> Result<Page> {
        let (numbers, _) = self.keys.parse(prefix, 1).ok_or_else(|| self.damaged("a key"))?;
        let inode = numbers[0];
        let first = match self.keys.parse(after, 2) {
            Some((numbers, _)) => numbers[1].saturating_add(1),
            None => 0,
        };
        let mut page = Page { is_last: true, ..Page::default() };
        let mut chunks = BTreeSet::new();
        let mut last = u64::MAX;
        let number = |entry: &Entry| self.keys.parse(&entry.key, 2).map(|(numbers, _)| numbers[1]);
        let now = self.below.get(&self.keys.inode(inode))?;
        let content = now.and_then(|entry| InodeRecord::decode(&entry.value)).map(|inode| inode.content);
        if let Some(Content::Inline(list)) = &content {
            chunks.extend(
                list.iter().flat_map(|one| {
                    one.offset / crate::schema::CHUNK..=(one.end() - 1) / crate::schema::CHUNK
                }),
            );
        }
        // It may have got chunks since.
        let now = self.below.page(prefix, after, most)?;
        if now.len() == most {
            last = now.last().and_then(number).unwrap_or(last);
        }
        chunks.extend(now.iter().filter_map(number));
        let range = self.keys.kept_chunks(inode);
        let from = match first.checked_sub(1) {
            Some(before) => self.keys.kept_chunk(inode, before, u64::MAX),
            None => range.clone(),
        };
        let kept = self.below.page(&range, &from, PAGE)?;
        if kept.len() == PAGE {
            last = last.min(kept.last().and_then(number).unwrap_or(last));
        }
        chunks.extend(kept.iter().filter_map(number));
        page.is_last = last == u64::MAX;
        chunks.retain(|chunk| (first..=last).contains(chunk));
        let mut keys: Vec<Vec<u8>> = chunks.iter().map(|chunk| self.keys.chunk(inode, *chunk)).collect();
        if keys.len() > most.max(CHUNKS) {
            keys.truncate(most.max(CHUNKS));
            page.is_last = false;
        }
        page.found.extend(keys.iter().map(|key| (key.clone(), None)));
        for entry in self.chunks(&keys)? {
            page.found.insert(entry.key.clone(), Some(entry));
        }
        Ok(page)
    }
}

impl Catalog for SnapshotCatalog {
    fn name(&self) -> String {
        self.below.name()
    }

    fn commit(&self, txn: &Txn) -> Result<Commit> {
        self.below.commit(txn)
    }

    fn range(&self, prefix: &[u8], at: Option<Revision>) -> Result<Snapshot> {
        self.below.range(prefix, at)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        Ok(self.get_all(&[key.to_vec()])?.pop())
    }

    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Entry>> {
        let (mut plain, mut chunks, mut left) = (Vec::new(), Vec::new(), BTreeSet::new());
        for key in keys {
            match self.keys.kind(key) {
                // Nothing of it is leased.
                b'l' => {}
                b'x' => chunks.push(key.clone()),
                kind => {
                    plain.push(key.clone());
                    if matches!(kind, b'i' | b'd' | b'a') {
                        left.insert(key.clone());
                    }
                }
            }
        }
        let mut all = self.below.get_all(&plain)?;
        all.retain(|entry| {
            let is_as_it_was = entry.modified <= self.at || !left.contains(&entry.key);
            if is_as_it_was {
                left.remove(&entry.key);
            }
            is_as_it_was
        });
        let is_looked_up = !left.is_empty() || !chunks.is_empty();
        all.extend(self.kept(&left)?);
        all.extend(self.chunks(&chunks)?);
        if is_looked_up {
            self.check()?;
        }
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all.dedup_by(|a, b| a.key == b.key);
        Ok(all)
    }

    fn page(&self, prefix: &[u8], after: &[u8], most: usize) -> Result<Vec<Entry>> {
        let kind = self.keys.kind(prefix);
        if !matches!(kind, b'i' | b'd' | b'a' | b'x') {
            return self.below.page(prefix, after, most);
        }
        let (mut all, mut after) = (Vec::new(), after.to_vec());
        loop {
            let page = match kind {
                b'x' => self.chunk_page(prefix, &after, most)?,
                _ => self.records(prefix, &after, most)?,
            };
            let last = page.found.last_key_value().map(|(key, _)| key.clone());
            all.extend(page.found.into_values().flatten());
            match last {
                Some(last) if !page.is_last && all.len() < most => after = last,
                _ => break,
            }
        }
        all.truncate(most);
        self.check()?;
        Ok(all)
    }

    fn watch(&self, prefix: &[u8], from: Revision) -> Result<Box<dyn Watch>> {
        self.below.watch(prefix, from)
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId> {
        self.below.grant(ttl)
    }

    fn keep(&self, lease: LeaseId) -> Result<Duration> {
        self.below.keep(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.below.revoke(lease)
    }
}
