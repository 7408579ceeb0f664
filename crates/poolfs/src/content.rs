//! Content of files: reading, writing, and the transactions that make it visible.
//!
//! Content is never written in place. What was written stays in memory until there are whole stripes of it,
//! or a `close` or `fsync`; stripes go to places that no file refers to; and they are in the file once a
//! transaction has put its new map, after the members were flushed. So a crash leaves the old content or the
//! new one, and a file has no half of a write that was confirmed.

mod commit;
mod read;
mod size;
mod write;

use crate::extent::{Extent, ExtentList};
use crate::schema::{CHUNK, range_of};
use longhaul_fs::Errno;
use std::collections::BTreeMap;

/// Bytes that are gathered before whole stripes of them are written: some stripes at a time.
const GATHERED: usize = 8 << 20;
/// Batches of a file that are being written at a time, or as many as half of the memory has room for.
const BATCHES: usize = 4;
/// Chunks that one transaction changes, and extents that it adds: far below the limits of catalogs.
const GROUP_CHUNKS: usize = 32;
const GROUP_EXTENTS: usize = 2048;
/// Extents that wait for a commit, at most about.
const PENDING_MAX: usize = 2048;
/// Chunks that are read at a time.
const CHUNKS_AHEAD: u64 = 8;
/// Chunks that one transaction removes.
const TRIMMED: usize = 48;
/// How often a commit is made again: members lose what was written, or others append.
const COMMITS: usize = 50;

/// Bytes of chunks that one transaction puts, at most about: below what catalogs take.
pub(crate) const PUT_BYTES: usize = 600 << 10;
/// A chunk with as many bytes of extents is written anew, which makes a few of them.
pub(crate) const FRAGMENTED: usize = 256 << 10;

/// A change of the map has to be prepared first: never seen by callers.
const PREPARE: Errno = Errno::AGAIN;
/// Members have moved since content was written: never seen by callers.
pub(crate) const MOVED: Errno = Errno::XDEV;
/// A transaction would be too large: it is made in parts. Never seen by callers.
pub(crate) const SPLIT: Errno = Errno::MSGSIZE;

/// The bits that a write removes: set-user-ID, and set-group-ID of what a group may execute.
pub(crate) fn without_privileges(mode: u32) -> u32 {
    let group = if mode & 0o10 != 0 { 0o2000 } else { 0 };
    mode & !(0o4000 | group)
}

/// Extents by chunk.
pub(crate) fn by_chunk(extents: &[Extent]) -> BTreeMap<u64, Vec<Extent>> {
    let mut chunks: BTreeMap<u64, Vec<Extent>> = BTreeMap::new();
    for extent in extents {
        let list: ExtentList = [extent.clone()].into_iter().collect();
        for chunk in extent.offset / CHUNK..=(extent.end() - 1) / CHUNK {
            chunks.entry(chunk).or_default().extend(list.lookup(range_of(chunk)));
        }
    }
    chunks
}
