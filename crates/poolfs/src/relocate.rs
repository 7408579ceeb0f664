//! Content of files moves to other places.
//!
//! What is read is written anew where no file refers to, made durable, and put into the maps in place of
//! those extents that still are what was read, by one transaction for each. What was changed meanwhile stays,
//! and its copy is dropped. So a move needs no lock, and a crash leaves the file as it was or as it is.
//!
//! Small parts of many files are packed into common stripes, so that each takes as much room as it has bytes.

use crate::content::{MOVED, PUT_BYTES, SPLIT, by_chunk};
use crate::extent::{Extent, ExtentList};
use crate::node::WrittenStripe;
use crate::runs::Runs;
use crate::schema::{Content, InodeRecord, KeptChunk, decode_extents, encode_extents, unreadable};
use crate::segment::Filler;
use crate::session::FsSession;
use crate::store::Draft;
use crate::stripe::SMALL;
use longhaul_catalog::Revision;
use longhaul_fs::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes that are copied at a time.
pub(crate) const COPIED: u64 = 8 << 20;
/// Runs that one transaction moves: each has an inode and mostly one chunk.
const SWAPPED: usize = 24;
/// How often a copy is written that members lose before it is durable.
const COPIES: usize = 3;

/// What has extents: a file, or what a snapshot has kept of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MapOf {
    pub(crate) inode: u64,
    /// 0 of the file itself.
    pub(crate) snapshot: u64,
}

impl MapOf {
    /// Of the file itself.
    pub(crate) fn file(inode: u64) -> MapOf {
        MapOf { inode, snapshot: 0 }
    }
}

/// An extent, and what has it.
pub(crate) type FileExtent = (MapOf, Extent);

/// Items in parts of at most as many bytes, unless one has more.
pub(crate) fn in_parts(items: &[FileExtent], most: u64) -> impl Iterator<Item = &[FileExtent]> {
    let mut left = items;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let mut is_more = |(_, extent): &FileExtent| {
            bytes += extent.len;
            bytes <= most
        };
        let count = left.iter().take_while(|item| is_more(item)).count().max(1).min(left.len());
        let part = left.split_off(..count)?;
        (!part.is_empty()).then_some(part)
    })
}

/// What a move has done.
#[derive(Default)]
pub(crate) struct Relocated {
    /// Bytes that were moved.
    pub(crate) moved: u64,
    /// What could not be read.
    pub(crate) unread: Vec<FileExtent>,
}

/// Extents of a file that follow each other, and their place in the copy.
struct Run {
    of: MapOf,
    extents: Vec<Extent>,
    at: u64,
}

impl Run {
    fn start(&self) -> u64 {
        self.extents.first().map_or(0, |extent| extent.offset)
    }

    fn len(&self) -> u64 {
        self.extents.last().map_or(0, Extent::end) - self.start()
    }

    /// Its extents at their places in the copy.
    fn in_copy(&self) -> impl Iterator<Item = Extent> {
        let start = self.start();
        self.extents
            .iter()
            .map(move |extent| Extent { offset: self.at + (extent.offset - start), ..extent.clone() })
    }

    /// The parts of the copy that are in place of it.
    fn fresh(&self, copy: &ExtentList) -> ExtentList {
        let start = self.start();
        let back = |extent: Extent| Extent { offset: extent.offset - self.at + start, ..extent };
        copy.lookup(self.at..self.at + self.len()).into_iter().map(back).collect()
    }
}

/// Runs of extents, each once: one that moves within its file as it is looked for may be there twice.
fn runs(items: &[FileExtent]) -> Vec<Run> {
    let mut files: BTreeMap<MapOf, ExtentList> = BTreeMap::new();
    for (of, extent) in items {
        files.entry(*of).or_default().overwrite(extent.clone());
    }
    let mut all: Vec<Run> = Vec::new();
    for (of, list) in files {
        for extent in list.iter() {
            match all.last_mut() {
                Some(run) if run.of == of && run.start() + run.len() == extent.offset => {
                    run.extents.push(extent.clone());
                }
                _ => all.push(Run { of, extents: vec![extent.clone()], at: 0 }),
            }
        }
    }
    all
}

/// Places runs in a copy: where those below `small` bytes end, which follow each other, and where the others do.
fn arrange(runs: &mut [Run], small: u64) -> (u64, u64) {
    let mut at = 0;
    for run in runs.iter_mut().filter(|run| run.len() < small) {
        run.at = at;
        at += run.len();
    }
    let packed = at;
    for run in runs.iter_mut().filter(|run| run.len() >= small) {
        // What has a gap before it is in another stripe.
        run.at = at + 1;
        at = run.at + run.len();
    }
    (packed, at)
}

impl FsSession {
    /// Moves extents of files. The caller sees to it that there are not many more than [`COPIED`] bytes.
    pub(crate) fn relocate(&self, items: &[FileExtent], filler: Filler) -> Result<Relocated, Errno> {
        let mut relocated = Relocated::default();
        let mut runs = runs(items);
        let (packed, size) = arrange(&mut runs, SMALL * self.settings.data as u64);
        let mut bytes = vec![0; usize::try_from(size).map_err(|_| Errno::NOMEM)?];
        let all: ExtentList = runs.iter().flat_map(Run::in_copy).collect();
        if self.read_extents(&all, 0, &mut bytes).is_err() {
            // What can be read is moved all the same.
            runs.retain(|run| {
                let one: ExtentList = run.in_copy().collect();
                let to = &mut bytes[run.at as usize..(run.at + run.len()) as usize];
                let is_read = self.read_extents(&one, run.at, to).is_ok();
                if !is_read {
                    relocated.unread.extend(run.extents.iter().map(|extent| (run.of, extent.clone())));
                }
                is_read
            });
        }
        let mut content = [Runs::default(), Runs::default()];
        for run in &runs {
            content[usize::from(run.at >= packed)]
                .write(run.at, &bytes[run.at as usize..(run.at + run.len()) as usize]);
        }
        drop(bytes);
        let at = self.store.settings_at();
        let written = self.write_durably(&content, filler)?;
        let copy: ExtentList = written.iter().map(|(extent, _)| extent.clone()).collect();
        let mut left: Vec<&[Run]> = runs.chunks(SWAPPED).rev().collect();
        let swapped = loop {
            let Some(batch) = left.pop() else { break Ok(()) };
            match self.swap(batch, &copy, at) {
                Ok(moved) => relocated.moved += moved,
                // A member has moved: another time.
                Err(MOVED) => break Ok(()),
                Err(SPLIT) if batch.len() > 1 => {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    left.extend([second, first]);
                }
                Err(e) => break Err(e),
            }
        };
        written.iter().for_each(|(_, written)| self.segments.committed(written.segment));
        let moved: BTreeSet<u64> = runs.iter().map(|run| run.of.inode).collect();
        for node in moved.into_iter().filter_map(|inode| self.open_node(inode)) {
            match self.refresh(&node) {
                // Another host has removed it: what has moved is of a snapshot.
                Err(Errno::STALE) => {}
                refreshed => refreshed?,
            }
        }
        swapped.map(|()| relocated)
    }

    /// Writes stripes that are durable. They have to be committed or given up.
    pub(crate) fn write_durably(
        &self,
        [packed, whole]: &[Runs; 2],
        filler: Filler,
    ) -> Result<Vec<(Extent, WrittenStripe)>, Errno> {
        for _ in 0..COPIES {
            let mut written = self.write_runs(packed, filler, true)?;
            match self.write_runs(whole, filler, false) {
                Ok(more) => written.extend(more),
                Err(e) => {
                    written.iter().for_each(|(_, written)| self.segments.committed(written.segment));
                    return Err(e);
                }
            }
            if !self.flush_written(written.iter().map(|(_, written)| written)).contains(&false) {
                return Ok(written);
            }
            written.iter().for_each(|(_, written)| self.segments.committed(written.segment));
        }
        Err(Errno::IO)
    }

    /// One transaction: the bytes that it has moved.
    fn swap(&self, runs: &[Run], copy: &ExtentList, at: Revision) -> Result<u64, Errno> {
        let mut files: BTreeMap<MapOf, Vec<&Run>> = BTreeMap::new();
        for run in runs {
            files.entry(run.of).or_default().push(run);
        }
        self.store.look_up(files.keys().filter(|of| of.snapshot == 0).map(|of| of.inode))?;
        self.store.change(|draft| {
            self.expect_members(draft, at)?;
            let (mut moved, mut put) = (0, 0);
            for (of, runs) in &files {
                let old: Vec<Extent> = runs.iter().flat_map(|run| run.extents.iter().cloned()).collect();
                let fresh: ExtentList =
                    runs.iter().flat_map(|run| run.fresh(copy).iter().cloned().collect::<Vec<_>>()).collect();
                moved += match of.snapshot {
                    0 => self.swap_file(draft, of.inode, &old, &fresh, &mut put)?,
                    _ => self.swap_kept(draft, *of, &old, &fresh, &mut put)?,
                };
            }
            match put > PUT_BYTES && runs.len() > 1 {
                true => Err(SPLIT),
                false => Ok(moved),
            }
        })
    }

    /// The part of a transaction that is about one file. Bytes of chunks that it puts are added to `put`.
    fn swap_file(
        &self,
        draft: &mut Draft<'_>,
        number: u64,
        old: &[Extent],
        fresh: &ExtentList,
        put: &mut usize,
    ) -> Result<u64, Errno> {
        let Some(mut inode) = draft.inode(number)? else { return Ok(0) };
        let moved = self.swap_content(draft, number, &mut inode, old, fresh, put)?;
        if moved > 0 {
            draft.put_inode(number, inode);
        }
        Ok(moved)
    }

    /// The same of what a snapshot has kept of a file.
    fn swap_kept(
        &self,
        draft: &mut Draft<'_>,
        of: MapOf,
        old: &[Extent],
        fresh: &ExtentList,
        put: &mut usize,
    ) -> Result<u64, Errno> {
        let chunks: BTreeMap<Vec<u8>, Vec<Extent>> = by_chunk(old)
            .into_iter()
            .map(|(chunk, extents)| (draft.keys().kept_chunk(of.inode, chunk, of.snapshot), extents))
            .collect();
        let keys: Vec<Vec<u8>> = chunks.keys().cloned().collect();
        let mut moved = 0;
        for entry in draft.get_all(&keys)? {
            let mut kept = KeptChunk::decode(&entry.value)
                .ok_or_else(|| unreadable(&format!("what is kept of inode {}", of.inode), &entry.value))?;
            let Some(old) = chunks.get(&entry.key) else { continue };
            let bytes = self.swap_list(draft, &mut kept.extents, old, fresh);
            if bytes > 0 {
                let value = kept.encode();
                *put += value.len();
                draft.put(&entry.key, value);
            }
            moved += bytes;
        }
        Ok(moved)
    }

    fn swap_content(
        &self,
        draft: &mut Draft<'_>,
        number: u64,
        inode: &mut InodeRecord,
        old: &[Extent],
        fresh: &ExtentList,
        put: &mut usize,
    ) -> Result<u64, Errno> {
        if let Content::Inline(list) = &mut inode.content {
            return Ok(self.swap_list(draft, list, old, fresh));
        }
        if inode.content != Content::Chunks {
            return Ok(0);
        }
        let chunks: Vec<(Vec<u8>, Vec<Extent>)> = by_chunk(old)
            .into_iter()
            .map(|(chunk, extents)| (draft.keys().chunk(number, chunk), extents))
            .collect();
        let keys: Vec<Vec<u8>> = chunks.iter().map(|(key, _)| key.clone()).collect();
        let mut moved = 0;
        for entry in draft.get_all(&keys)? {
            let mut list = decode_extents(&entry.value)
                .ok_or_else(|| unreadable(&format!("a chunk of inode {number}"), &entry.value))?;
            let Some((_, old)) = chunks.iter().find(|(key, _)| *key == entry.key) else { continue };
            let bytes = self.swap_list(draft, &mut list, old, fresh);
            if bytes > 0 {
                let value = encode_extents(&list);
                *put += value.len();
                draft.put(&entry.key, value);
            }
            moved += bytes;
        }
        Ok(moved)
    }

    /// Puts the copy in place of what still is as it was read.
    fn swap_list(
        &self,
        draft: &mut Draft<'_>,
        list: &mut ExtentList,
        old: &[Extent],
        fresh: &ExtentList,
    ) -> u64 {
        let mut moved = 0;
        for old in old {
            for now in list.lookup(old.offset..old.end()).into_iter().filter(|now| now.is_part_of(old)) {
                for new in fresh.lookup(now.offset..now.end()) {
                    moved += new.len;
                    draft.account().add(new.stripe.segment(self.settings.segment), new.len);
                    draft.account().free(now.stripe.segment(self.settings.segment), new.len);
                    list.overwrite(new);
                }
            }
        }
        if moved > 0 {
            list.join();
        }
        moved
    }
}
