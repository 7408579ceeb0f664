//! Sizes of files, and holes in them.

use crate::content::{GROUP_CHUNKS, PREPARE, PUT_BYTES, SPLIT, TRIMMED, without_privileges};
use crate::extent::{Extent, ExtentList};
use crate::node::OpenNode;
use crate::schema::{CHUNK, Content, InodeRecord, decode_extents, encode_extents, unreadable};
use crate::session::FsSession;
use crate::store::{Draft, lock};
use longhaul_catalog::Entry;
use longhaul_fs::{Errno, FileKind};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl FsSession {
    /// Changes the size of a file, and other attributes by `change` in the same transaction.
    pub(crate) fn resize(
        &self,
        number: u64,
        node: Option<&OpenNode>,
        size: u64,
        change: impl Fn(&mut InodeRecord),
    ) -> Result<InodeRecord, Errno> {
        if size > i64::MAX as u64 {
            return Err(Errno::FBIG);
        }
        self.settle(number)?;
        let Some(node) = node else { return self.resize_committed(number, size, change) };
        let _one = lock(&node.commits);
        let mut state = node.lock();
        let before = state.dirty.bytes();
        state.dirty.remove(size..u64::MAX);
        let removed = before - state.dirty.bytes();
        self.dirty.fetch_sub(removed, Relaxed);
        let is_cut = removed > 0 || size == 0 && !state.is_clean();
        drop(state);
        let cut = match size {
            0 => {
                self.abandon(node);
                Ok(())
            }
            _ => self.commit_alone(node),
        };
        let resized = cut.and_then(|()| self.resize_committed(number, size, change));
        let mut state = node.lock();
        match &resized {
            Ok(inode) => state.replace(inode.clone()),
            // The file is as long as it was, without what was cut off here already.
            Err(e) if is_cut => state.lose(*e),
            Err(_) => {}
        }
        resized
    }

    fn resize_committed(
        &self,
        number: u64,
        size: u64,
        change: impl Fn(&mut InodeRecord),
    ) -> Result<InodeRecord, Errno> {
        let resized = loop {
            let trims = Cell::new(false);
            let resized = self.store.change(|draft| {
                let mut inode = draft.needed(number)?;
                match inode.kind() {
                    FileKind::Regular => {}
                    FileKind::Directory => return Err(Errno::ISDIR),
                    _ => return Err(Errno::INVAL),
                }
                trims.set(inode.trims);
                if inode.trims {
                    return Err(PREPARE);
                }
                if size < inode.size {
                    self.cut(draft, number, &mut inode, size)?;
                }
                let has_changed = size != inode.size;
                inode.size = size;
                inode.mode = without_privileges(inode.mode);
                if has_changed {
                    inode.modified = self.now();
                }
                inode.changed = self.now();
                change(&mut inode);
                draft.put_inode(number, inode.clone());
                Ok(inode)
            });
            match resized {
                Err(PREPARE) if trims.get() => self.trim(number)?,
                resized => break resized?,
            }
        };
        if resized.trims {
            self.trim(number)?;
        }
        Ok(self.store.inode(number)?.unwrap_or(resized))
    }

    /// Cuts the map of a file at `size`; chunks behind it are trimmed later.
    fn cut(
        &self,
        draft: &mut Draft<'_>,
        number: u64,
        inode: &mut InodeRecord,
        size: u64,
    ) -> Result<(), Errno> {
        match &mut inode.content {
            Content::Inline(list) => {
                let removed = list.remove(size..u64::MAX);
                self.replace(draft, number, inode, &[], &removed)?;
            }
            Content::Chunks => {
                let key = draft.keys().chunk(number, size / CHUNK);
                if !size.is_multiple_of(CHUNK)
                    && let Some(bytes) = draft.get(&key)?
                {
                    let mut list = decode_extents(&bytes).ok_or_else(|| unreadable("a chunk", &bytes))?;
                    let removed = list.remove(size..u64::MAX);
                    draft.put(&key, encode_extents(&list));
                    self.replace(draft, number, inode, &[], &removed)?;
                }
                inode.trims = true;
            }
            Content::None | Content::Link(_) => {}
        }
        Ok(())
    }

    /// Chunks of an inode from `first` on: at most `most`.
    pub(crate) fn chunks_from(
        &self,
        number: u64,
        first: u64,
        most: usize,
    ) -> Result<Vec<(u64, Entry)>, Errno> {
        let keys = self.store.keys();
        let prefix = keys.chunks(number);
        let after = match first.checked_sub(1) {
            Some(before) => keys.chunk(number, before),
            None => prefix.clone(),
        };
        let page = self.store.page(&prefix, &after, most)?;
        let number = |entry: Entry| Some((keys.parse(&entry.key, 2)?.0[1], entry));
        Ok(page.into_iter().filter_map(number).collect())
    }

    /// Removes the chunks of an inode that are behind its end, if it has such.
    pub(crate) fn trim(&self, number: u64) -> Result<(), Errno> {
        let Some(inode) = self.store.inode(number)? else { return Ok(()) };
        let (mut size, mut trims) = (inode.size, inode.trims);
        while trims {
            // What is kept for a snapshot takes as many records again.
            let most = if self.has_snapshots() { TRIMMED / 4 } else { TRIMMED };
            let chunks = self.chunks_from(number, size.div_ceil(CHUNK), most)?;
            let chunks: Vec<Entry> = chunks.into_iter().map(|(_, entry)| entry).collect();
            (size, trims) = self.store.change(|draft| {
                let Some(mut inode) = draft.inode(number)? else { return Ok((0, false)) };
                if !inode.trims || inode.size != size {
                    // What was read is not all that is behind its end, or not behind it.
                    return Ok((inode.size, inode.trims));
                }
                for entry in draft.as_read(&chunks)? {
                    let list =
                        decode_extents(&entry.value).ok_or_else(|| unreadable("a chunk", &entry.value))?;
                    let removed: Vec<Extent> = list.iter().cloned().collect();
                    self.replace(draft, number, &mut inode, &[], &removed)?;
                    draft.delete(&entry.key);
                }
                if chunks.len() < most {
                    inode.trims = false;
                    if inode.size == 0 {
                        inode.content = Content::Inline(ExtentList::default());
                    }
                }
                let left = (inode.size, inode.trims);
                draft.put_inode(number, inode);
                Ok(left)
            })?;
        }
        Ok(())
    }

    /// Makes a range of a file a hole.
    pub(crate) fn punch(&self, node: &OpenNode, range: Range<u64>) -> Result<(), Errno> {
        self.settle(node.inode)?;
        let _one = lock(&node.commits);
        self.commit_alone(node)?;
        let number = node.inode;
        let most = if self.has_snapshots() { GROUP_CHUNKS / 4 } else { GROUP_CHUNKS };
        let (mut first, mut most) = (range.start / CHUNK, most);
        loop {
            let chunks = self.chunks_from(number, first, most)?;
            let is_last = chunks.len() < most;
            let (numbers, within): (Vec<u64>, Vec<Entry>) =
                chunks.into_iter().filter(|(chunk, _)| chunk * CHUNK < range.end).unzip();
            let punched = self.store.change(|draft| {
                let mut inode = draft.needed(number)?;
                let (mut removed, mut put) = (Vec::new(), 0);
                match &mut inode.content {
                    Content::Inline(list) => removed = list.remove(range.clone()),
                    Content::Chunks => {
                        for entry in draft.as_read(&within)? {
                            let mut list = decode_extents(&entry.value)
                                .ok_or_else(|| unreadable("a chunk", &entry.value))?;
                            removed.extend(list.remove(range.clone()));
                            match list.is_empty() {
                                true => draft.delete(&entry.key),
                                false => {
                                    let value = encode_extents(&list);
                                    put += value.len();
                                    draft.put(&entry.key, value);
                                }
                            }
                        }
                    }
                    Content::None | Content::Link(_) => return Err(Errno::NODEV),
                }
                put += self.replace(draft, number, &mut inode, &[], &removed)?;
                if put > PUT_BYTES && within.len() > 1 {
                    return Err(SPLIT);
                }
                inode.touch(self.now());
                draft.put_inode(number, inode);
                Ok(())
            });
            match punched {
                Err(SPLIT) => {
                    most = within.len() / 2;
                    continue;
                }
                punched => punched?,
            }
            match numbers.last() {
                Some(last) if !is_last => first = last + 1,
                _ => break,
            }
        }
        self.refresh(node)
    }
}
