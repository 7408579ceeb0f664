//! Read-ahead for many readers at once.
//!
//! A file has one reader, an attached device has as many as its file system: reads of several files
//! arrive interleaved, and those of one a little out of order, since the kernel has several under
//! way. So a [`SequentialDetector`] distinguishes the readers, and data is kept in *cells*, pieces
//! of the device on a fixed grid that all readers share.
//!
//! Invariants:
//! - a cell holds the device's content: it is begun only while no change of its bytes is under way,
//!   and dropped when one arrives;
//! - cells, complete or not, take at most the bytes that they were given;
//! - random reads read only their own bytes: read-ahead begins when a second read has followed the
//!   first;
//! - all readers together have no more read-ahead than one alone would have: what fills the path
//!   for one fills it for many.

use crate::blocks::read;
use crate::order::Order;
use crate::sequential::SequentialDetector;
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared};
use longhaul_block::{BlockIo, DeviceInfo, IoResult};
use longhaul_engine::Buf;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a cell: enough for the costs of a command not to matter, and a
/// small part of what fills a long path.
pub(crate) const CELL: u64 = 256 << 10;
/// Readers that are distinguished; a file system that reads more files at once
/// fills the path without read-ahead.
const READERS: usize = 32;
/// How far reads of one reader may be out of order, in bytes: what a kernel
/// keeps under way for one.
const DISORDER: u64 = 4 << 20;
/// Bytes that a reader may have skipped, as a multiple of a read, while it is
/// read ahead of: its other reads cover them soon, and a reader whose gaps stay is
/// not sequential.
const SKIPPED: u64 = 32;
/// The read-ahead of a reader is at most this many times the bytes that it has read: two of many
/// random reads follow each other by chance now and then, and files end.
const READ_TIMES: u64 = 2;
/// A reader counts as active if one of so many reads was its own.
const RECENT: u64 = 8 * READERS as u64;

/// A cell's content, here or on its way.
pub(crate) type Fill = Shared<LocalBoxFuture<'static, IoResult<Buf>>>;

struct Cell {
    fill: Fill,
    len: u64,
    /// Bytes of it that were asked for so far.
    used: u64,
    /// Number of the read that used it last.
    touched: u64,
}

/// Readers and cells of a device, on one thread.
pub(crate) struct ReadAhead {
    readers: SequentialDetector,
    cells: BTreeMap<u64, Cell>,
    bytes: u64,
    /// The most that cells may take.
    limit: u64,
    /// Number of reads so far.
    reads: u64,
}

impl ReadAhead {
    /// Takes at most `limit` bytes of memory.
    pub(crate) fn new(limit: u64) -> ReadAhead {
        let readers = SequentialDetector::new(READERS, DISORDER);
        ReadAhead { readers, cells: BTreeMap::new(), bytes: 0, limit, reads: 0 }
    }

    /// A read of `bytes` is about to be done: how many bytes from its
    /// beginning on should be here or on their way, if it is sequential. All
    /// readers together have `most` ahead of them.
    pub(crate) fn handle_read(&mut self, bytes: &Range<u64>, most: u64) -> Option<u64> {
        self.reads += 1;
        let len = bytes.end - bytes.start;
        let share = most / self.readers.active(RECENT).max(1) as u64;
        let reader = self.readers.record(bytes)?;
        // A late read lies behind the data read ahead.
        if reader.advanced == 0 || reader.skipped > len.saturating_mul(SKIPPED) {
            return None;
        }
        let window = reader.bytes.saturating_mul(READ_TIMES).min(share);
        if window == 0 {
            return None;
        }
        Some(reader.next - bytes.start.min(reader.next) + window)
    }

    /// Begins to fill the cells from `offset` on, `ahead` bytes far, that are
    /// not there and may be.
    pub(crate) fn fill(
        &mut self,
        io: &dyn BlockIo,
        info: &DeviceInfo,
        order: &Order,
        offset: u64,
        ahead: u64,
    ) {
        let end = offset.saturating_add(ahead.min(self.limit)).min(info.size);
        for index in offset / CELL..end.div_ceil(CELL) {
            let at = index * CELL;
            let len = CELL.min(info.size - at);
            if self.cells.contains_key(&index) {
                continue;
            }
            // The last one waits until it is worth an I/O.
            if end < at + len && at > offset {
                return;
            }
            if order.touches(&(at..at + len)) {
                continue;
            }
            if !self.make_room(len, offset / CELL..index) {
                return;
            }
            let fill = read(io, info, at, len as usize).boxed_local().shared();
            self.bytes += len;
            self.cells.insert(index, Cell { fill, len, used: 0, touched: self.reads });
        }
    }

    /// Drops the cells that were unused for longest, except those of `wanted` and those under way,
    /// which would keep their memory.
    fn make_room(&mut self, len: u64, wanted: Range<u64>) -> bool {
        while self.bytes + len > self.limit {
            let here = |cell: &Cell| cell.fill.peek().is_some();
            let oldest = self.cells.iter().filter(|(index, cell)| !wanted.contains(index) && here(cell));
            let Some(index) = oldest.min_by_key(|(_, cell)| cell.touched).map(|(&index, _)| index) else {
                return false;
            };
            self.remove(index);
        }
        true
    }

    fn remove(&mut self, index: u64) {
        if let Some(cell) = self.cells.remove(&index) {
            self.bytes -= cell.len;
        }
    }

    /// The cell with the byte at `offset`, if there is one, and where it
    /// begins. `end` is how far the read uses it: a cell that is used to its end
    /// is dropped, since the kernel's page cache above has its bytes.
    pub(crate) fn take(&mut self, offset: u64, end: u64) -> Option<(u64, Fill)> {
        let index = offset / CELL;
        let begin = index * CELL;
        let cell = self.cells.get_mut(&index)?;
        cell.touched = self.reads;
        cell.used += end.min(begin + cell.len) - offset;
        let (fill, all) = (cell.fill.clone(), cell.used >= cell.len);
        if all {
            self.remove(index);
        }
        Some((begin, fill))
    }

    /// Drops cells that are about to change.
    pub(crate) fn forget(&mut self, bytes: &Range<u64>) {
        if bytes.is_empty() {
            return;
        }
        let indices = bytes.start / CELL..bytes.end.div_ceil(CELL);
        let gone: Vec<u64> = self.cells.range(indices).map(|(&index, _)| index).collect();
        for index in gone {
            self.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1024;

    fn at(offset: u64, len: u64) -> Range<u64> {
        offset * K..(offset + len) * K
    }

    #[test]
    fn a_second_read_that_follows_makes_a_reader_sequential_and_its_window_grows() {
        let mut ahead = ReadAhead::new(64 << 20);
        let most = 8 << 20;
        assert_eq!(ahead.handle_read(&at(1000, 128), most), None);
        assert_eq!(ahead.handle_read(&at(1128, 128), most), Some(128 * K + (512 << 10)));
        assert_eq!(ahead.handle_read(&at(1256, 128), most), Some(128 * K + (768 << 10)));
        for n in 3..40 {
            let window = (2 * (n + 1) * 128 * K).min(most);
            assert_eq!(ahead.handle_read(&at(1000 + n * 128, 128), most), Some(128 * K + window), "{n}");
        }
        // Others fill the path by themselves, and then no more.
        assert_eq!(ahead.handle_read(&at(1000 + 40 * 128, 128), 0), None);
        assert_eq!(ahead.handle_read(&at(1000 + 41 * 128, 128), most), Some(128 * K + most));
    }

    #[test]
    fn many_readers_share_what_one_has_ahead() {
        let mut ahead = ReadAhead::new(64 << 20);
        let (most, readers, mut last) = (8 << 20, 16, 0);
        for n in 0..32 {
            last = (0..readers)
                .filter_map(|reader| ahead.handle_read(&at((reader << 20) + n * 64, 64), most))
                .map(|bytes| bytes - 64 * K)
                .sum();
        }
        assert_eq!(last, most, "as much as is to be under way");
        // The others have ended.
        for n in 32..1000 {
            last = ahead.handle_read(&at(n * 64, 64), most).map_or(0, |bytes| bytes - 64 * K);
        }
        assert_eq!(last, most);
    }

    #[test]
    fn reads_a_little_out_of_order_are_those_of_one_reader() {
        let mut ahead = ReadAhead::new(64 << 20);
        let most = 8 << 20;
        ahead.handle_read(&at(0, 128), most);
        ahead.handle_read(&at(128, 128), most);
        assert!(ahead.handle_read(&at(384, 128), most).is_some());
        assert_eq!(ahead.handle_read(&at(256, 128), most), None, "nothing more");
        // One reader, which continues at the end of its farthest read.
        assert_eq!(ahead.readers.active(RECENT), 1);
        assert!(ahead.handle_read(&at(512, 128), most).is_some());
    }

    #[test]
    fn random_reads_near_a_reader_are_not_taken_for_it() {
        let mut ahead = ReadAhead::new(64 << 20);
        let most = 8 << 20;
        ahead.handle_read(&at(0, 128), most);
        ahead.handle_read(&at(128, 128), most);
        for n in 0..500 {
            assert_eq!(ahead.handle_read(&at(n * 7919 % 4001 / 8 * 8 + 500, 4), most), None, "{n}");
        }
    }

    #[test]
    fn random_reads_of_a_small_place_bring_little_more_than_they_ask_for() {
        let (most, mut random) = (8 << 20, 1u64);
        for (len, blocks) in [(4, 16384), (16, 4096), (64, 4096)] {
            let (mut ahead, mut asked, mut more) = (ReadAhead::new(64 << 20), 0, 0);
            for _ in 0..100_000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let bytes = at((random >> 33) % blocks * len, len);
                asked += len * K;
                more += ahead.handle_read(&bytes, most).map_or(0, |bytes| bytes - len * K);
            }
            assert!(more < asked / 3, "{len} KiB of {blocks}: {}", more as f64 / asked as f64);
        }
    }

    #[test]
    fn readers_are_told_apart_and_random_reads_make_none() {
        let mut ahead = ReadAhead::new(64 << 20);
        let most = 8 << 20;
        for base in [0, 1 << 20, 2 << 20] {
            assert_eq!(ahead.handle_read(&at(base, 64), most), None);
        }
        for base in [0, 1 << 20, 2 << 20] {
            assert!(ahead.handle_read(&at(base + 64, 64), most).is_some());
        }
        for n in 0..1000 {
            assert_eq!(ahead.handle_read(&at((n * 7919 % 1000 + 5000) * 1024, 4), most), None);
        }
        assert_eq!(ahead.readers.active(RECENT), 0);
    }
}
