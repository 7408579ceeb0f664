//! Reading files.

use crate::content::CHUNKS_AHEAD;
use crate::extent::{Extent, ExtentList};
use crate::node::{NodeState, OpenNode};
use crate::schema::{CHUNK, Content, decode_extents, unreadable};
use crate::session::FsSession;
use crate::stripe::{StripeRead, buffer};
use longhaul_block::IoResult;
use longhaul_engine::Buf;
use longhaul_fs::Errno;
use std::ops::Range;
use std::sync::Arc;

impl FsSession {
    /// Bytes of a file, fewer at its end only.
    pub(crate) fn read(&self, node: &OpenNode, offset: u64, len: usize) -> Result<Buf, Errno> {
        let mut tries = 0;
        loop {
            let before = node.lock().inode.stamp;
            match self.try_read(node, offset, len) {
                Err(Errno::IO) if tries < 3 => self.refresh(node)?,
                result => return result,
            }
            // The content may have been replaced, or moved, and its place used again, by this host too: then it is
            // read anew. Another thread may have found that out.
            if tries > 0 && node.lock().inode.stamp == before {
                return Err(Errno::IO);
            }
            tries += 1;
        }
    }

    /// Reads the inode of a file anew.
    pub(crate) fn refresh(&self, node: &OpenNode) -> Result<(), Errno> {
        let found = self.store.inode(node.inode)?.ok_or(Errno::STALE)?;
        let mut state = node.lock();
        // Chunks are not of the stamp of the inode if this host has changed others since; and another thread may
        // have committed since it was read.
        state.replace(self.store.newest(node.inode).unwrap_or(found));
        Ok(())
    }

    /// The extents of the committed content within a range, or the chunks that have to be read first.
    fn committed(state: &NodeState, range: Range<u64>) -> Result<ExtentList, Vec<u64>> {
        match &state.inode.content {
            Content::Inline(list) => Ok(list.lookup(range).into_iter().collect()),
            Content::Chunks => {
                let end = range.end.min(state.inode.size).max(range.start);
                if range.start == end {
                    return Ok(ExtentList::default());
                }
                let chunks = range.start / CHUNK..=(end - 1) / CHUNK;
                let missing: Vec<u64> =
                    chunks.clone().filter(|chunk| !state.chunks.contains_key(chunk)).collect();
                if !missing.is_empty() {
                    return Err(missing);
                }
                let lists = chunks.filter_map(|chunk| state.chunks.get(&chunk));
                Ok(lists.flat_map(|list| list.lookup(range.start..end)).collect())
            }
            Content::None | Content::Link(_) => Ok(ExtentList::default()),
        }
    }

    /// Reads chunks of a file, and some behind them.
    fn fetch_chunks(&self, node: &OpenNode, missing: &[u64]) -> Result<(), Errno> {
        let last = missing.last().copied().unwrap_or(0);
        let wanted: Vec<u64> =
            missing.iter().copied().chain(last + 1..last + CHUNKS_AHEAD).take(64).collect();
        let keys: Vec<Vec<u8>> =
            wanted.iter().map(|chunk| self.store.keys().chunk(node.inode, *chunk)).collect();
        let before = node.lock().changes;
        let found = self.store.get_all(&keys)?;
        let mut state = node.lock();
        if state.changes != before {
            // They may be older than the inode: the caller looks again.
            return Ok(());
        }
        for (chunk, key) in wanted.iter().zip(&keys) {
            let list = match found.iter().find(|entry| entry.key == *key) {
                Some(entry) => decode_extents(&entry.value).ok_or_else(|| {
                    unreadable(&format!("chunk {chunk} of inode {}", node.inode), &entry.value)
                })?,
                None => ExtentList::default(),
            };
            state.chunks.entry(*chunk).or_insert_with(|| Arc::new(list));
        }
        Ok(())
    }

    fn try_read(&self, node: &OpenNode, offset: u64, len: usize) -> Result<Buf, Errno> {
        let (map, overlay, end) = loop {
            let state = node.lock();
            let end = offset.saturating_add(len as u64).min(state.size());
            if offset >= end {
                return Ok(Buf::copy_of(&[]));
            }
            let mut map = match FsSession::committed(&state, offset..end) {
                Ok(map) => map,
                Err(missing) => {
                    drop(state);
                    self.fetch_chunks(node, &missing)?;
                    continue;
                }
            };
            // Bytes that were behind the end when it was committed are not content.
            map.remove(state.inode.size..u64::MAX);
            for extent in state.pending.lookup(offset..end) {
                map.overwrite(extent);
            }
            let mut overlay: Vec<(u64, Vec<u8>)> = Vec::new();
            let newest = state.batches.iter().map(|batch| &batch.runs).chain([&state.dirty]);
            for (at, bytes) in newest.flat_map(|runs| runs.within(offset..end)) {
                map.remove(at..at + bytes.len() as u64);
                overlay.push((at, bytes.to_vec()));
            }
            break (map, overlay, end);
        };
        // Holes are zeroes, whatever the buffer had.
        let mut to = buffer(&self.replies, (end - offset) as usize);
        to.fill(0);
        let wrong = self.read_extents(&map, offset, &mut to).map_err(|_| Errno::IO)?;
        // A scrub repairs those of snapshots.
        if !self.is_snapshot {
            self.note_wrong(node.inode, wrong);
        }
        for (at, bytes) in overlay {
            let at = (at - offset) as usize;
            to[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(to.freeze())
    }

    /// Reads extents to the memory of a part of the file that begins at `offset`. Those of stripes with a wrong
    /// unit, for which the others have made up.
    pub(crate) fn read_extents(&self, map: &ExtentList, offset: u64, to: &mut [u8]) -> IoResult<Vec<Extent>> {
        let before = self.store.settings_at();
        match self.try_read_extents(map, offset, to) {
            // Members may have moved without this host having heard of it.
            Err(_) if self.have_moved_since(before) => self.try_read_extents(map, offset, to),
            result => result,
        }
    }

    fn try_read_extents(&self, map: &ExtentList, offset: u64, to: &mut [u8]) -> IoResult<Vec<Extent>> {
        let under_way: Vec<(&Extent, StripeRead)> = map
            .iter()
            .map(|extent| {
                let range = extent.skip..extent.skip + extent.len;
                (extent, StripeRead::start(&self.members, &extent.stripe, range))
            })
            .collect();
        let mut wrong = Vec::new();
        for (extent, read) in under_way {
            let at = (extent.offset - offset) as usize;
            if read.finish(&self.members, &mut to[at..at + extent.len as usize])? {
                wrong.push(extent.clone());
            }
        }
        Ok(wrong)
    }

    /// The next byte at `offset` or behind it that is data, or a hole.
    pub(crate) fn seek(&self, node: &Arc<OpenNode>, offset: u64, hole: bool) -> Result<u64, Errno> {
        self.commit(node)?;
        let size = node.lock().size();
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let (mut at, mut chunk) = (offset, offset / CHUNK);
        while at < size {
            let state = node.lock();
            let end =
                if state.inode.content == Content::Chunks { ((chunk + 1) * CHUNK).min(size) } else { size };
            let list = match FsSession::committed(&state, at..end) {
                Ok(list) => list,
                Err(missing) => {
                    drop(state);
                    // Holes may have many chunks that are not there.
                    let next = self.chunks_from(node.inode, missing[0], 1)?.first().map(|(chunk, _)| *chunk);
                    match next {
                        Some(next) if next == missing[0] => self.fetch_chunks(node, &missing)?,
                        _ if hole => return Ok(at),
                        Some(next) => (at, chunk) = (next * CHUNK, next),
                        None => return Err(Errno::NXIO),
                    }
                    continue;
                }
            };
            drop(state);
            for extent in list.iter() {
                match (hole, extent.offset > at) {
                    (false, _) => return Ok(extent.offset.max(at)),
                    (true, true) => return Ok(at),
                    (true, false) => at = extent.end(),
                }
            }
            if at < end {
                if hole {
                    return Ok(at);
                }
                at = end;
            }
            chunk = at / CHUNK;
        }
        // The end of a file is a hole.
        if hole { Ok(size) } else { Err(Errno::NXIO) }
    }
}
