//! Read-ahead of one open file.

use super::{CELL, CacheState, CacheStep, Shared};
use crate::Done;
use crate::call::{Call, Handle, Reply};
use longhaul_engine::{Buf, BufMut};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How far a read may be from where the last one ended and still follow it, in bytes: the kernel reads
/// ahead itself, with several calls at a time.
const SLACK: u64 = 4 * CELL;

/// Factor by which the window grows when a reader waits: a path of 100 ms and 10 Gb/s is full after four
/// round trips.
const GROWTH: u64 = 4;

/// What was read ahead of a file.
#[derive(Default)]
pub(super) struct Ahead {
    cells: BTreeMap<u64, Cell>,
    /// Where the last read in sequence ended.
    next: u64,
    /// Cells to read beyond a read; 0 if reads do not follow each other.
    window: u64,
    /// End of the file, if a cell showed it.
    end: Option<u64>,
    /// Rises when all cells are dropped: what was under way then is not kept.
    epoch: u64,
    /// When it was read last.
    used: u64,
    pub(super) waiting: Vec<Waiting>,
}

enum Cell {
    UnderWay,
    /// Its content, and how many bytes of that readers had.
    Here(Buf, usize),
}

/// A read that waits for cells.
pub(super) struct Waiting {
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) done: Done,
}

impl Ahead {
    /// Drops all cells; returns their bytes.
    pub(super) fn clear(&mut self) -> usize {
        let bytes = self.cells.len() * CELL as usize;
        self.cells.clear();
        self.epoch += 1;
        self.end = None;
        bytes
    }

    /// The first cell that a read in sequence may still want: the kernel's reads overtake each other.
    fn behind(&self) -> u64 {
        (self.next / CELL).saturating_sub(SLACK / CELL)
    }

    /// Drops cells that `keep` refuses, by number and whether readers had all of it, unless they are under way;
    /// returns their bytes.
    fn retain(&mut self, keep: impl Fn(u64, bool) -> bool) -> usize {
        let before = self.cells.len();
        self.cells.retain(|index, cell| match cell {
            Cell::UnderWay => true,
            Cell::Here(data, read) => keep(*index, *read >= data.len()),
        });
        (before - self.cells.len()) * CELL as usize
    }

    /// Drops cells of which readers had all, or that none in sequence will want; returns their bytes.
    fn drop_read(&mut self) -> usize {
        let (now, behind) = (self.next / CELL, self.behind());
        self.retain(|index, is_read| index >= now || (index >= behind && !is_read))
    }

    /// A reader had this range.
    fn count_read(&mut self, offset: u64, len: u32) {
        let end = offset + u64::from(len);
        for (index, cell) in self.cells.range_mut(offset / CELL..end.div_ceil(CELL)) {
            if let Cell::Here(_, read) = cell {
                *read += (end.min((index + 1) * CELL) - offset.max(index * CELL)) as usize;
            }
        }
    }

    /// The content of a range, as far as the file goes; `None` if a cell of it is not here.
    fn content(&self, offset: u64, len: u32) -> Option<Buf> {
        let end = offset + u64::from(len);
        let cell = |index: u64| match self.cells.get(&index) {
            Some(Cell::Here(data, _)) => Some(data),
            _ => None,
        };
        let first = cell(offset / CELL)?;
        let from = ((offset % CELL) as usize).min(first.len());
        if end <= (offset / CELL + 1) * CELL || (first.len() as u64) < CELL {
            let to = first.len().min(from + len as usize);
            return Some(first.slice(from..to));
        }
        let mut all = BufMut::zeroed(len as usize);
        let mut filled = 0;
        for index in offset / CELL..=(end - 1) / CELL {
            let data = cell(index)?;
            let from = if filled == 0 { from } else { 0 };
            let part = (data.len() - from.min(data.len())).min(len as usize - filled);
            all[filled..filled + part].copy_from_slice(&data[from..from + part]);
            filled += part;
            if (data.len() as u64) < CELL {
                break;
            }
        }
        all.truncate(filled);
        Some(all.freeze())
    }
}

impl Shared {
    /// Reads a range of a file that has no write under way.
    pub(super) fn read(
        self: &Arc<Self>,
        state: &mut CacheState,
        (handle, offset, len): (Handle, u64, u32),
        done: Done,
        steps: &mut Vec<CacheStep>,
    ) {
        if len == 0 {
            return steps.push(CacheStep::Finish(done, Ok(Reply::Data(Buf::copy_of(&[])))));
        }
        let exact = Call::Read { handle, offset, len };
        state.clock += 1;
        let clock = state.clock;
        let Some(open) = state.open.get_mut(&handle) else {
            return steps.push(CacheStep::Start(exact, done));
        };
        let ahead = &mut open.ahead;
        ahead.used = clock;
        let end = offset.saturating_add(len.into());
        match ahead.content(offset, len) {
            Some(content) if content.len() == len as usize => {
                ahead.next = ahead.next.max(end);
                ahead.count_read(offset, len);
                steps.push(CacheStep::Finish(done, Ok(Reply::Data(content))));
                return self.fetch(state, handle, (end - 1) / CELL, steps);
            }
            // The file may have grown since: its end is read anew.
            Some(_) => return steps.push(CacheStep::Start(exact, done)),
            None => {}
        }
        if offset > ahead.next.saturating_add(SLACK) || ahead.next > offset.saturating_add(SLACK) {
            (ahead.next, ahead.window) = (end, 0);
            state.ahead_bytes -= ahead.retain(|_, _| false);
            return steps.push(CacheStep::Start(exact, done));
        }
        ahead.next = ahead.next.max(end);
        // A reader waits: the window is too small for the path.
        let most = (self.options.read_ahead as u64 / CELL).max(1);
        ahead.window = (ahead.window * GROWTH).clamp(1, most);
        ahead.waiting.push(Waiting { offset, len, done });
        let (first, last) = (offset / CELL, (end - 1) / CELL);
        for index in first..=last {
            self.fetch_cell(state, handle, index, steps);
        }
        self.fetch(state, handle, last, steps);
    }

    /// Reads ahead of cell `last`, and drops what was read.
    fn fetch(
        self: &Arc<Self>,
        state: &mut CacheState,
        handle: Handle,
        last: u64,
        steps: &mut Vec<CacheStep>,
    ) {
        let Some(open) = state.open.get_mut(&handle) else { return };
        let ahead = &mut open.ahead;
        let behind = ahead.behind();
        let dropped = ahead.retain(|index, _| index >= behind);
        let (window, end) = (ahead.window, ahead.end);
        // A read that was overtaken wants nothing that later ones had.
        let last = last.max(ahead.next.saturating_sub(1) / CELL);
        state.ahead_bytes -= dropped;
        for index in last + 1..=last.saturating_add(window) {
            if end.is_some_and(|end| index * CELL >= end) || !state.make_room(self.options.read_ahead, handle)
            {
                break;
            }
            self.fetch_cell(state, handle, index, steps);
        }
    }

    fn fetch_cell(
        self: &Arc<Self>,
        state: &mut CacheState,
        handle: Handle,
        index: u64,
        steps: &mut Vec<CacheStep>,
    ) {
        let Some(open) = state.open.get_mut(&handle) else { return };
        if open.ahead.cells.contains_key(&index) {
            return;
        }
        open.ahead.cells.insert(index, Cell::UnderWay);
        state.ahead_bytes += CELL as usize;
        let (shared, epoch) = (Arc::clone(self), open.ahead.epoch);
        let read = Call::Read { handle, offset: index * CELL, len: CELL as u32 };
        steps.push(CacheStep::Start(
            read,
            Box::new(move |result| shared.arrived(handle, index, epoch, result)),
        ));
    }

    /// A cell has come, or failed.
    fn arrived(self: &Arc<Self>, handle: Handle, index: u64, epoch: u64, result: Result<Reply, Errno>) {
        let mut steps = Vec::new();
        let mut state = self.lock();
        if let Some(open) = state.open.get_mut(&handle).filter(|open| open.ahead.epoch == epoch) {
            let ahead = &mut open.ahead;
            let mut freed = 0;
            match result {
                Ok(Reply::Data(data)) => {
                    if (data.len() as u64) < CELL {
                        let end = index * CELL + data.len() as u64;
                        ahead.end = Some(ahead.end.map_or(end, |known| known.min(end)));
                    }
                    ahead.cells.insert(index, Cell::Here(data, 0));
                }
                // Readers of this cell get the error of their own read.
                _ => freed = ahead.cells.remove(&index).map_or(0, |_| CELL as usize),
            }
            for wait in std::mem::take(&mut ahead.waiting) {
                let cells = wait.offset / CELL..=(wait.offset + u64::from(wait.len) - 1) / CELL;
                match ahead.content(wait.offset, wait.len) {
                    Some(content) => {
                        ahead.count_read(wait.offset, wait.len);
                        steps.push(CacheStep::Finish(wait.done, Ok(Reply::Data(content))));
                    }
                    None if cells.clone().all(|index| ahead.cells.contains_key(&index)) => {
                        ahead.waiting.push(wait)
                    }
                    None => {
                        let exact = Call::Read { handle, offset: wait.offset, len: wait.len };
                        steps.push(CacheStep::Start(exact, wait.done));
                    }
                }
            }
            state.ahead_bytes -= freed;
        }
        drop(state);
        self.run(steps);
    }
}

impl CacheState {
    /// Whether there is memory for a cell of `handle`: what it has read is dropped first, and then what
    /// other files have ahead that were read longer ago.
    fn make_room(&mut self, limit: usize, handle: Handle) -> bool {
        if self.ahead_bytes + CELL as usize > limit
            && let Some(open) = self.open.get_mut(&handle)
        {
            self.ahead_bytes -= open.ahead.drop_read();
        }
        while self.ahead_bytes + CELL as usize > limit {
            let has_cells = |ahead: &Ahead| ahead.cells.values().any(|cell| matches!(cell, Cell::Here(..)));
            let idle = self
                .open
                .iter_mut()
                .filter(|(other, open)| {
                    **other != handle && has_cells(&open.ahead) && open.ahead.waiting.is_empty()
                })
                .min_by_key(|(_, open)| open.ahead.used);
            let Some((_, open)) = idle else { return false };
            self.ahead_bytes -= open.ahead.retain(|_, _| false);
        }
        true
    }
}
