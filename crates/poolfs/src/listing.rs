//! Listings of directories, page by page.
//!
//! A position is the number of a page and the place in it, so that it means the same in every listing: a
//! page that was read ahead by one is continued by another.
//!
//! The pages of a listing grow, so that a large directory far away costs few round trips, and a look at the first
//! names of one little.

use crate::schema::{EntryRecord, InodeRecord, unreadable};
use crate::session::FsSession;
use crate::store::lock;
use longhaul_fs::{DirectoryEntry, Errno, Reply};
use std::collections::{HashMap, VecDeque};

/// Entries of the first page: one answer of the catalog.
pub(crate) const PAGE: usize = 1000;
/// Entries of the largest page, which fit into the place of a position.
const PAGE_MAX: usize = 16_000;
/// How many times as many entries the next page has.
const GROWTH: usize = 4;
/// Inodes that are asked for one by one at a time: the catalog divides them as it needs to.
const ASKED: usize = 4096;
/// Bits of a position that are the place in a page.
const PLACE: u32 = 16;
/// Names that are remembered, for programs that go back.
const WHOLE: usize = 1 << 16;
/// Pages of which the last name is remembered.
const LAST: usize = 1 << 16;

/// Pages that were returned.
#[derive(Default)]
pub(crate) struct Pages {
    next: u64,
    whole: VecDeque<(u64, Vec<Vec<u8>>)>,
    /// Names in these.
    names: usize,
    last: HashMap<u64, (usize, Vec<u8>)>,
    order: VecDeque<u64>,
}

impl Pages {
    /// Remembers the names of a page; the positions behind each of them.
    pub(crate) fn add(&mut self, names: Vec<Vec<u8>>) -> Vec<u64> {
        self.next += 1;
        let page = self.next;
        let positions = (1..=names.len() as u64).map(|place| (page << PLACE) + place).collect();
        if let Some(last) = names.last() {
            self.last.insert(page, (names.len(), last.clone()));
            self.order.push_back(page);
            self.names += names.len();
            self.whole.push_back((page, names));
        }
        while self.names > WHOLE
            && let Some((_, names)) = self.whole.pop_front()
        {
            self.names -= names.len();
        }
        if self.order.len() > LAST
            && let Some(old) = self.order.pop_front()
        {
            self.last.remove(&old);
        }
        positions
    }

    /// Entries of the page behind a position.
    pub(crate) fn most(&self, position: u64) -> usize {
        let before = self.last.get(&(position >> PLACE)).map_or(0, |(count, _)| *count);
        (before * GROWTH).clamp(PAGE, PAGE_MAX)
    }

    /// The name at a position; `None` if it is not remembered.
    pub(crate) fn name(&self, position: u64) -> Option<&[u8]> {
        let (page, place) = (position >> PLACE, (position & ((1 << PLACE) - 1)) as usize);
        match self.last.get(&page) {
            Some((count, name)) if *count == place => Some(name),
            _ => {
                let (_, names) = self.whole.iter().find(|(number, _)| *number == page)?;
                Some(names.get(place.checked_sub(1)?)?)
            }
        }
    }
}

impl FsSession {
    /// A page of a directory behind a position.
    pub(crate) fn list(&self, directory: u64, after: u64) -> Result<Reply, Errno> {
        let keys = self.store.keys();
        let prefix = keys.entry(directory, b"");
        let (from, most) = match after {
            0 => (prefix.clone(), PAGE),
            position => {
                let pages = lock(&self.pages);
                let name = pages.name(position).ok_or(Errno::STALE)?;
                (keys.entry(directory, name), pages.most(position))
            }
        };
        let found = loop {
            self.write_out_in(directory)?;
            let (inode, lease) = (keys.inode(directory), keys.lease(directory));
            let with = [inode.clone(), lease.clone()];
            let (mut known, found) = self.store.page_with(&with, &prefix, &from, most)?;
            if self.is_away(&lease, &known) {
                self.recall(directory)?;
                continue;
            }
            let at = known.iter().position(|entry| entry.key == inode).ok_or(Errno::NOENT)?;
            let inode = self.store.remember(directory, Some(known.swap_remove(at)))?;
            if !inode.is_some_and(|inode| inode.is_directory()) {
                return Err(Errno::NOTDIR);
            }
            break found;
        };
        let is_last = found.len() < most;
        let mut named: Vec<(Vec<u8>, u64)> = Vec::with_capacity(found.len());
        for entry in found {
            let record =
                EntryRecord::decode(&entry.value).ok_or_else(|| unreadable("an entry", &entry.value))?;
            let Some((_, name)) = keys.parse(&entry.key, 1) else { continue };
            named.push((name.to_vec(), record.inode));
        }
        let records = self.inodes(named.iter().map(|(_, inode)| *inode).collect())?;
        // An object that was removed in between is left out.
        named.retain(|(_, inode)| records.contains_key(inode));
        let positions = lock(&self.pages).add(named.iter().map(|(name, _)| name.clone()).collect());
        let entries: Vec<DirectoryEntry> = named
            .into_iter()
            .zip(positions)
            .filter_map(|((name, inode), position)| {
                let found = records.get(&inode)?;
                let attributes = self.shown(inode, self.seen(inode).as_ref().unwrap_or(found));
                Some(DirectoryEntry { name, position, attributes })
            })
            .collect();
        if entries.is_empty() && !is_last {
            return self.list(directory, after);
        }
        Ok(Reply::Listing(entries, is_last))
    }

    /// Inodes as they are now: those that were made one after the other in one question.
    fn inodes(&self, mut wanted: Vec<u64>) -> Result<HashMap<u64, InodeRecord>, Errno> {
        let keys = self.store.keys();
        wanted.sort_unstable();
        wanted.dedup();
        let mut records = HashMap::with_capacity(wanted.len());
        let mut add = |entries: Vec<longhaul_catalog::Entry>| {
            for entry in entries {
                let Some((numbers, _)) = keys.parse(&entry.key, 1) else { continue };
                if let Some(record) = self.store.remember(numbers[0], Some(entry))? {
                    records.insert(numbers[0], record);
                }
            }
            Ok::<(), Errno>(())
        };
        let mut at = 0;
        while at < wanted.len() {
            let first = wanted[at];
            // As many as lie close together: at most half of what is returned is not wanted.
            let close = |end: usize| wanted[end - 1] - first < 2 * (end - at) as u64;
            let mut end = (at + PAGE_MAX).min(wanted.len());
            while end > at + ASKED && !close(end) {
                end = at + (end - at) / 2;
            }
            if end > at + 1 && close(end) {
                let found = self.store.inodes(first, wanted[end - 1])?;
                add(found
                    .into_iter()
                    .filter(|entry| {
                        keys.parse(&entry.key, 1)
                            .is_some_and(|(numbers, _)| wanted[at..end].binary_search(&numbers[0]).is_ok())
                    })
                    .collect())?;
            } else {
                end = (at + ASKED).min(wanted.len());
                let asked: Vec<Vec<u8>> = wanted[at..end].iter().map(|inode| keys.inode(*inode)).collect();
                add(self.store.get_all(&asked)?)?;
            }
            at = end;
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_means_one_name() {
        let mut pages = Pages::default();
        let names = |page: usize| -> Vec<Vec<u8>> {
            (0..1000).map(|name| format!("{page} {name:03}").into_bytes()).collect()
        };
        let mut all = Vec::new();
        for page in 0..100 {
            for (position, name) in pages.add(names(page)).into_iter().zip(names(page)) {
                all.push((page, position, name));
            }
        }
        for (page, position, name) in &all {
            let is_kept = *page >= 100 - WHOLE / 1000 || name.ends_with(b"999");
            assert_eq!(pages.name(*position), is_kept.then_some(&name[..]), "{page}");
        }
        let last = all.last().map_or(0, |(_, position, _)| *position);
        assert_eq!((pages.most(0), pages.most(last)), (PAGE, 4 * PAGE));
        assert!(pages.add(Vec::new()).is_empty());
        assert_eq!((pages.name(0), pages.name(u64::MAX)), (None, None));
    }
}
