//! The journal: records parity updates before stripes change in place (closes the write hole).
//!
//! Records follow each other in a ring with the same shape on every member; each is written to one
//! member more than the array can lose. A *data* record holds new data and is written while old
//! data is read; once it is durable the write is acknowledged. A *commit* holds the new parity;
//! once it is durable the stripe is changed in place. So at any moment a stripe in place is
//! consistent, or a commit contains its new content, and the loss of a member does not change that.
//!
//! Invariants:
//! - a partial write changes a stripe in place only after its commit is durable;
//! - records of a stripe are replayed from the oldest one still in the ring, so that none restores
//!   what a later write has changed: a stripe with records in the window is written by way of the
//!   journal;
//! - space is reused only after a durable record has moved `durable_tail` beyond it, and everything
//!   before that is in place and durable: `head` is at most `size` ahead of `durable_tail`;
//! - a data record is appended only together with bytes in `reserved` for its commit, so that
//!   commits never wait for each other;
//! - `entries` is in the order of `pos` and `seq`, and `rows` counts its records by row;
//! - space is granted first come, first served: a small record that overtook a large one of its
//!   stripe would pin the tail until the large one is in place, which itself waits for space.

pub(crate) mod scan;

use crate::core::Core;
use crate::event::Event;
use crate::format::geometry::{BLOCK, JOURNAL_AT};
use crate::format::record::{HEAD, JournalRecord, Piece, RecordKind};
use crate::without::Mechanism;
use futures_util::future::join_all;
use longhaul_block::{IoError, IoResult};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use uuid::Uuid;

/// Space kept for marks, which free space for other records.
const MARKS: u64 = 4 * HEAD;

/// A record in the window, oldest first.
struct WindowEntry {
    pos: u64,
    len: u64,
    seq: u64,
    row: u64,
    step: RecordState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordState {
    /// Not in place yet.
    Open,
    /// In place, but possibly only in a member's volatile cache.
    Applied,
    /// In place and durable.
    Done,
}

#[derive(Default)]
struct JournalState {
    epoch: u64,
    epoch_start: u64,
    /// Position of the next record.
    head: u64,
    /// The tail according to the last durable record.
    durable_tail: u64,
    next_seq: u64,
    /// Bytes reserved for commits.
    reserved: u64,
    entries: VecDeque<WindowEntry>,
    /// Records in the window, by row.
    rows: HashMap<u64, usize>,
}

pub(crate) struct Journal {
    array: Uuid,
    size: u64,
    state: RefCell<JournalState>,
    marking: Cell<bool>,
    /// Rows that are being changed by way of the journal, in one part or more.
    holders: RefCell<HashMap<u64, RowUpdates>>,
    /// Turns that wait for space, in order.
    turns: RefCell<VecDeque<u64>>,
    next_turn: Cell<u64>,
    /// A block of the ring that is being rewritten.
    clearing: Cell<Option<u64>>,
    changed: Event,
}

/// A ticket in the order in which space is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn(u64);

/// Parts of a row under way, and how many of them wait for space.
#[derive(Default)]
struct RowUpdates {
    parts: usize,
    waiting: usize,
}

/// A part of a row under way; it ends when this is dropped.
pub(crate) struct RowUpdate<'a> {
    journal: &'a Journal,
    row: u64,
}

impl Drop for RowUpdate<'_> {
    fn drop(&mut self) {
        let mut holders = self.journal.holders.borrow_mut();
        if let Some(holder) = holders.get_mut(&self.row) {
            holder.parts -= 1;
            if holder.parts == 0 {
                holders.remove(&self.row);
            }
        }
        drop(holders);
        self.journal.changed.notify();
    }
}

/// A durable data record, and the bytes reserved for its commit.
pub(crate) struct DurableRecord {
    pub(crate) seq: u64,
    room: u64,
}

impl JournalState {
    fn tail(&self) -> u64 {
        let open = self.entries.iter().find(|entry| entry.step != RecordState::Done);
        open.map_or(self.head, |entry| entry.pos)
    }

    fn free(&self, size: u64) -> u64 {
        size.saturating_sub(self.head - self.durable_tail + self.reserved)
    }

    /// Allocates a record at the head.
    fn take(&mut self, kind: RecordKind, row: u64, len: u64) -> JournalRecord {
        let (pos, seq, tail) = (self.head, self.next_seq, self.tail());
        debug_assert!(self.entries.back().is_none_or(|last| last.pos + last.len <= pos && last.seq < seq));
        self.head += len;
        self.next_seq += 1;
        let step = if kind == RecordKind::Mark { RecordState::Done } else { RecordState::Open };
        self.entries.push_back(WindowEntry { pos, len, seq, row, step });
        *self.rows.entry(row).or_default() += 1;
        let (epoch, epoch_start) = (self.epoch, self.epoch_start);
        JournalRecord {
            kind,
            epoch,
            epoch_start,
            pos,
            seq,
            tail,
            row,
            covers: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// Advances the tail to that of a durable record.
    fn begin_at(&mut self, tail: u64) {
        self.durable_tail = self.durable_tail.max(tail);
        while let Some(first) = self.entries.front() {
            if first.pos + first.len > self.durable_tail || first.step != RecordState::Done {
                break;
            }
            if let Some(count) = self.rows.get_mut(&first.row) {
                *count -= 1;
                if *count == 0 {
                    self.rows.remove(&first.row);
                }
            }
            self.entries.pop_front();
        }
    }
}

/// The row of records that belong to none.
const NO_ROW: u64 = u64::MAX;

impl Journal {
    pub(crate) fn new(array: Uuid, size: u64) -> Journal {
        Journal {
            array,
            size,
            state: RefCell::default(),
            marking: Cell::new(false),
            holders: RefCell::default(),
            turns: RefCell::default(),
            next_turn: Cell::new(0),
            clearing: Cell::new(None),
            changed: Event::default(),
        }
    }

    /// Maximum data bytes of one record.
    pub(crate) fn piece_max(&self) -> u64 {
        self.size / 16
    }

    /// Whether a replay after a crash may write to a row.
    pub(crate) fn has_row(&self, row: u64) -> bool {
        self.state.borrow().rows.contains_key(&row)
    }

    /// Bytes of the window.
    pub(crate) fn used(&self) -> u64 {
        let state = self.state.borrow();
        state.head - state.durable_tail
    }

    /// Takes the next ticket for space, for a call of [`log`](Self::log), which must follow.
    pub(crate) fn turn(&self) -> Turn {
        let turn = self.next_turn.get();
        self.next_turn.set(turn + 1);
        self.turns.borrow_mut().push_back(turn);
        Turn(turn)
    }

    fn is_first(&self, turn: Turn) -> bool {
        self.turns.borrow().front() == Some(&turn.0)
    }

    /// Appends new data of a row whose commit will take `parity` bytes; returns once it is durable.
    pub(crate) async fn log(
        &self,
        core: &Rc<Core>,
        turn: Turn,
        row: u64,
        pieces: Vec<Piece>,
        parity: u64,
    ) -> IoResult<DurableRecord> {
        let len = HEAD + pieces.iter().map(|piece| piece.bytes.len() as u64).sum::<u64>();
        let room = HEAD + parity;
        self.wait_for(core, turn, len + room, false).await?;
        let mut record = {
            let mut state = self.state.borrow_mut();
            state.reserved += room;
            state.take(RecordKind::Data, row, len)
        };
        record.pieces = pieces;
        let logged = DurableRecord { seq: record.seq, room };
        match self.append(core, &record).await {
            Ok(()) => Ok(logged),
            Err(e) => {
                self.forget(logged);
                Err(e)
            }
        }
    }

    /// Begins to change a part of a row; the caller holds its lock.
    pub(crate) fn part(&self, row: u64) -> RowUpdate<'_> {
        self.holders.borrow_mut().entry(row).or_default().parts += 1;
        RowUpdate { journal: self, row }
    }

    /// Appends a commit that covers data records; returns once it is durable. Returns the sequence
    /// numbers for [`applied`](Self::applied).
    pub(crate) async fn commit(
        &self,
        core: &Rc<Core>,
        part: &RowUpdate<'_>,
        covers: Vec<DurableRecord>,
        pieces: Vec<Piece>,
    ) -> IoResult<Vec<u64>> {
        let row = part.row;
        let len = HEAD + pieces.iter().map(|piece| piece.bytes.len() as u64).sum::<u64>();
        let room: u64 = covers.iter().map(|logged| logged.room).sum();
        if len > room {
            let waits = |change: fn(usize) -> usize| {
                if let Some(holder) = self.holders.borrow_mut().get_mut(&row) {
                    holder.waiting = change(holder.waiting);
                }
            };
            waits(|waiting| waiting + 1);
            self.changed.notify();
            // What is acknowledged waits for as long as it takes.
            let is_patient = !covers.is_empty();
            let result = self.wait_for(core, self.turn(), len - room, is_patient).await;
            waits(|waiting| waiting - 1);
            result?;
        }
        let mut record = {
            let mut state = self.state.borrow_mut();
            assert!(room <= state.reserved, "a commit takes more space than is reserved");
            state.reserved -= room;
            state.take(RecordKind::Commit, row, len)
        };
        self.changed.notify();
        record.pieces = pieces;
        record.covers = covers.iter().map(|logged| logged.seq).collect();
        self.append(core, &record).await?;
        Ok(record.covers.iter().copied().chain([record.seq]).collect())
    }

    /// Whether all parts of a row that are under way wait for space, so that nothing is written to
    /// it meanwhile.
    pub(crate) fn is_waiting(&self, row: u64) -> bool {
        self.holders.borrow().get(&row).is_some_and(|holder| holder.waiting == holder.parts)
    }

    /// Returns when all parts of a row wait for space.
    pub(crate) async fn until_waiting(&self, row: u64) {
        self.changed.until(|| self.is_waiting(row)).await;
    }

    /// Releases the reservation of a data record that was never durable. The record counts as done,
    /// and leaves the window when those before it have.
    fn forget(&self, logged: DurableRecord) {
        self.state.borrow_mut().reserved -= logged.room;
        self.applied(&[logged.seq], true);
    }

    /// Marks records as in place: durably, or up to the next flush.
    pub(crate) fn applied(&self, seqs: &[u64], durably: bool) {
        let step = if durably { RecordState::Done } else { RecordState::Applied };
        let mut state = self.state.borrow_mut();
        for entry in state.entries.iter_mut().filter(|entry| seqs.contains(&entry.seq)) {
            entry.step = step;
        }
        drop(state);
        self.changed.notify();
    }

    /// Records that a flush which begins now makes durable.
    pub(crate) fn flush_begins(&self) -> Vec<u64> {
        let state = self.state.borrow();
        state
            .entries
            .iter()
            .filter(|entry| entry.step == RecordState::Applied)
            .map(|entry| entry.seq)
            .collect()
    }

    /// Whether space is short and a flush would free some.
    pub(crate) fn wants_flush(&self) -> bool {
        let state = self.state.borrow();
        state.head - state.durable_tail > self.size / 2
            && state.entries.iter().any(|entry| entry.step == RecordState::Applied)
    }

    /// Returns when `turn` is first and `len` bytes are free; the caller must take them before it
    /// awaits anything else.
    async fn wait_for(&self, core: &Rc<Core>, turn: Turn, len: u64, is_patient: bool) -> IoResult<()> {
        let result = self.wait_in_turn(core, turn, len, is_patient).await;
        self.turns.borrow_mut().retain(|waiting| *waiting != turn.0);
        self.changed.notify();
        result
    }

    async fn wait_in_turn(&self, core: &Rc<Core>, turn: Turn, len: u64, is_patient: bool) -> IoResult<()> {
        if len + MARKS > self.size {
            return Err(IoError::Medium(format!("{len} bytes do not fit into the journal")));
        }
        let is_short = || !is_patient && core.io.shortage.is_any();
        self.changed.until(|| self.is_first(turn) || core.check_running().is_err() || is_short()).await;
        loop {
            core.check_running()?;
            let (free, tail_moved) = {
                let state = self.state.borrow();
                (state.free(self.size), state.tail() > state.durable_tail)
            };
            if free >= len + MARKS && self.is_first(turn) {
                return Ok(());
            }
            if is_short() {
                // The space of the journal is not free before that of the members is.
                return Err(IoError::NoSpace);
            }
            if self.wants_flush() && !tail_moved {
                core.flush_members().await?;
                continue;
            }
            if tail_moved && !self.marking.get() {
                self.mark(core).await?;
                continue;
            }
            let before = self.progress();
            let is_over = || core.check_running().is_err() || is_short();
            self.changed.until(|| self.progress() != before || is_over()).await;
        }
    }

    fn progress(&self) -> (u64, u64, u64, bool) {
        let state = self.state.borrow();
        (state.tail(), state.durable_tail, state.reserved, self.marking.get())
    }

    /// Records the current tail durably.
    pub(crate) async fn mark(&self, core: &Rc<Core>) -> IoResult<()> {
        self.marking.set(true);
        let record = self.state.borrow_mut().take(RecordKind::Mark, NO_ROW, HEAD);
        let result = self.append(core, &record).await;
        self.marking.set(false);
        self.changed.notify();
        result
    }

    /// Returns when no record from before the call can be replayed any more.
    pub(crate) async fn pass(&self, core: &Rc<Core>) -> IoResult<()> {
        if self.size == 0 || core.lacks(Mechanism::Pass) {
            return Ok(());
        }
        let end = self.state.borrow().head;
        let any = |step: RecordState| {
            let state = self.state.borrow();
            state.entries.iter().any(|entry| entry.pos < end && entry.step == step)
        };
        self.changed.until(|| !any(RecordState::Open) || core.check_running().is_err()).await;
        if any(RecordState::Applied) {
            core.flush_members().await?;
        }
        while self.state.borrow().durable_tail < end {
            core.check_running()?;
            self.changed.until(|| !self.marking.get()).await;
            self.mark(core).await?;
        }
        Ok(())
    }

    /// Rewrites unreadable blocks of a member's ring that no record of the window occupies. Returns
    /// their number.
    pub(crate) async fn clear(&self, core: &Rc<Core>, member: usize, blocks: &[u64]) -> IoResult<u64> {
        let zeroes = longhaul_engine::BufMut::zeroed(BLOCK as usize).freeze();
        let mut cleared = 0;
        for block in blocks {
            self.changed.until(|| self.clearing.get().is_none()).await;
            let place = &core.members[member];
            if self.is_in_window(*block) || !place.is_usable() {
                continue;
            }
            self.clearing.set(Some(*block));
            let result = place.write_durably(JOURNAL_AT + block, zeroes.clone()).await;
            self.clearing.set(None);
            self.changed.notify();
            match result {
                Ok(()) => cleared += 1,
                Err(e) => core.lose(member, &e).await?,
            }
        }
        Ok(cleared)
    }

    fn is_in_window(&self, block: u64) -> bool {
        let state = self.state.borrow();
        let ahead = (block + self.size - state.durable_tail % self.size) % self.size;
        ahead < state.head - state.durable_tail
    }

    /// Writes a record to one member more than the array can lose.
    async fn append(&self, core: &Rc<Core>, record: &JournalRecord) -> IoResult<()> {
        let bytes = record.encode(self.array);
        {
            let state = self.state.borrow();
            let window = state.head - state.durable_tail;
            assert!(window <= self.size, "the journal would overwrite records that a replay needs");
        }
        let at = record.pos % self.size;
        let first = (self.size - at).min(bytes.len() as u64) as usize;
        let copies = core.geometry().redundancy() + 1;
        let is_clear = |block: u64| (block + self.size - at) % self.size >= record.len();
        self.changed.until(|| self.clearing.get().is_none_or(is_clear)).await;
        loop {
            let usable: Vec<usize> = core.members.iter().filter(|m| m.is_usable()).map(|m| m.index).collect();
            // Skip unreachable members if enough others are reachable.
            let disconnected = core.members.disconnected();
            let there: Vec<usize> =
                usable.iter().copied().filter(|index| !disconnected.contains(index)).collect();
            let usable = if there.len() >= copies { there } else { usable };
            if usable.is_empty() {
                return Err(core.lost_too_many());
            }
            // Rotated, to spread the load over the members.
            let start = record.seq as usize % usable.len();
            let chosen = usable.iter().cycle().skip(start).take(copies.min(usable.len()));
            let writes = chosen.map(|index| {
                let member = &core.members[*index];
                let (head, rest) = (bytes.slice(0..first), bytes.slice(first..bytes.len()));
                async move {
                    let head = member.write_durably(JOURNAL_AT + at, head);
                    if rest.is_empty() {
                        return (*index, head.await);
                    }
                    let (a, b) = futures_util::join!(head, member.write_durably(JOURNAL_AT, rest));
                    (*index, a.and(b))
                }
            });
            let mut failed = false;
            for (index, result) in join_all(writes).await {
                if let Err(e) = result {
                    failed = true;
                    core.lose(index, &e).await?;
                }
            }
            if !failed {
                break;
            }
        }
        self.state.borrow_mut().begin_at(record.tail);
        self.changed.notify();
        Ok(())
    }

    /// Wakes tasks that wait for space, after a halt or in a shortage.
    pub(crate) fn wake(&self) {
        self.changed.notify();
    }
}
