//! Which files have content in given segments: all maps are read, page by page.
//!
//! A segment has no list of its extents in the catalog. To find them costs one pass over the maps, about 70 kB
//! for a gigabyte of files, for as many segments as are wanted at a time; a list would cost a key more for
//! each file and chunk, in every transaction that writes content.
//!
//! Invariant: a segment that was released gets no extents any more, so a pass that begins after that misses
//! none that stay. What a file has moved from its inode to its chunks meanwhile is found there, and what was
//! replaced in what the snapshots have kept. All that they have of a chunk is read at once, since the removal of
//! one moves it to another.

use crate::extent::ExtentList;
use crate::relocate::{FileExtent, MapOf};
use crate::schema::{Content, InodeRecord, KeptChunk, decode_extents, unreadable};
use crate::session::FsSession;
use crate::snapshots::kept_page;
use crate::store::{failed, pages};
use longhaul_fs::Errno;

/// Inodes, and chunks, that are read at a time.
const INODES: usize = 4000;
const CHUNKS: usize = 64;

impl FsSession {
    /// Calls `see` with the extents of each file, of a large one by chunks, until it says false.
    pub(crate) fn scan(
        &self,
        see: &mut dyn FnMut(MapOf, &ExtentList) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        let keys = self.store.keys();
        let prefix = keys.inodes();
        for page in pages(prefix.clone(), |after| self.store.page(&prefix, after, INODES)) {
            for entry in page? {
                let Some(number) = keys.parse(&entry.key, 1).map(|(numbers, _)| numbers[0]) else { continue };
                let inode = InodeRecord::decode(&entry.value)
                    .ok_or_else(|| unreadable(&format!("inode {number}"), &entry.value))?;
                if let Content::Inline(list) = &inode.content
                    && !see(MapOf::file(number), list)?
                {
                    return Ok(());
                }
            }
        }
        let prefix = keys.all_chunks();
        for page in pages(prefix.clone(), |after| self.store.page(&prefix, after, CHUNKS)) {
            for entry in page? {
                let Some((numbers, _)) = keys.parse(&entry.key, 2) else { continue };
                let list = decode_extents(&entry.value).ok_or_else(|| {
                    unreadable(&format!("chunk {} of inode {}", numbers[1], numbers[0]), &entry.value)
                })?;
                if !see(MapOf::file(numbers[0]), &list)? {
                    return Ok(());
                }
            }
        }
        self.scan_kept(see)
    }

    /// The part of that which snapshots have kept.
    fn scan_kept(&self, see: &mut dyn FnMut(MapOf, &ExtentList) -> Result<bool, Errno>) -> Result<(), Errno> {
        let keys = self.store.keys();
        let prefix = keys.all_kept_chunks();
        let catalog = &**self.store.catalog();
        for page in pages(prefix.clone(), |after| kept_page(catalog, &prefix, after, CHUNKS)) {
            for entry in page.map_err(|e| failed(&e))? {
                let Some((numbers, _)) = keys.parse(&entry.key, 3) else { continue };
                let of = MapOf { inode: numbers[0], snapshot: numbers[2] };
                let kept = KeptChunk::decode(&entry.value).ok_or_else(|| {
                    unreadable(&format!("what is kept of inode {}", of.inode), &entry.value)
                })?;
                if !see(of, &kept.extents)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The extents that are in segments which `wanted` names, each with what has it, in no certain order.
    pub(crate) fn extents_in(&self, wanted: &dyn Fn(u32) -> bool) -> Result<Vec<FileExtent>, Errno> {
        let mut found = Vec::new();
        self.scan(&mut |of, list| {
            let within = list.iter().filter(|extent| wanted(extent.stripe.segment(self.settings.segment)));
            found.extend(within.map(|extent| (of, extent.clone())));
            Ok(true)
        })?;
        Ok(found)
    }
}
