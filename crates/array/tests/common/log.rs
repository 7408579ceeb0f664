//! Disks that log the operations of an array in order, and decode them: the formats are those of
//! docs/array-safety.md, read without the code that writes them.

use super::Disk;
use super::disk::go;
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, IoFuture, IoResult, Open, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Offsets of the two copies of the superblock, the write-intent bitmap, and the journal.
const SUPER_AT: [u64; 2] = [0, 64 << 10];
pub const INTENT_AT: u64 = 192 << 10;
pub const JOURNAL_AT: u64 = 256 << 10;
/// Bytes of a superblock before its member entries, and of one entry.
const ENTRIES_AT: usize = 178;
const ENTRY: usize = 44;
/// Bytes of the head of a journal record.
const RECORD_HEAD: u64 = 4096;

#[derive(Clone, Debug)]
pub enum Action {
    Write { bytes: Buf, fua: bool },
    Zero { len: u64 },
    Flush,
}

/// An operation of a member. Moments count the beginnings and ends of all operations.
#[derive(Clone, Debug)]
pub struct Op {
    pub member: usize,
    pub offset: u64,
    pub act: Action,
    pub begun: u64,
    /// When it succeeded, if it has.
    pub ended: Option<u64>,
}

/// The head of a journal record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bytes ever written to the journal before it, and up to its end.
    pub pos: u64,
    pub end: u64,
    pub tail: u64,
    pub row: u64,
    pub kind: RecordKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    Data,
    Commit,
    Mark,
}

/// Condition of a member according to a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedCondition {
    Active,
    /// Offline or failed.
    Missing,
    /// Has the rows below this.
    Rebuilding(u64),
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(word)
}

impl Op {
    pub fn has_ended_before(&self, moment: u64) -> bool {
        self.ended.is_some_and(|ended| ended < moment)
    }

    /// The journal record that begins with this write, if any.
    pub fn record(&self) -> Option<Record> {
        let Action::Write { bytes, .. } = &self.act else { return None };
        if self.offset < JOURNAL_AT || bytes.len() < RECORD_HEAD as usize || &bytes[4..12] != b"LHJOURNL" {
            return None;
        }
        let kind = match number::<2>(bytes, 76) {
            1 => RecordKind::Data,
            2 => RecordKind::Commit,
            3 => RecordKind::Mark,
            other => panic!("a record of kind {other}"),
        };
        let (pos, tail, row) = (number::<8>(bytes, 44), number::<8>(bytes, 60), number::<8>(bytes, 68));
        Some(Record { pos, end: pos + RECORD_HEAD + number::<4>(bytes, 84), tail, row, kind })
    }

    /// The condition of `member` in the superblock that this write contains, if any.
    pub fn condition_of(&self, member: usize) -> Option<RecordedCondition> {
        let Action::Write { bytes, .. } = &self.act else { return None };
        if !SUPER_AT.contains(&self.offset) || &bytes[4..12] != b"LHARRAY\0" {
            return None;
        }
        let at = ENTRIES_AT + member * ENTRY + 16;
        Some(match number::<2>(bytes, at) {
            1 => RecordedCondition::Active,
            2 | 3 => RecordedCondition::Missing,
            4 => RecordedCondition::Rebuilding(number::<8>(bytes, at + 4)),
            other => panic!("condition {other}"),
        })
    }

    /// The rows that it changes, if data begins at `data_at` and units have `unit` bytes.
    pub fn rows(&self, data_at: u64, unit: u64) -> Option<Range<u64>> {
        let len = match &self.act {
            Action::Write { bytes, .. } => bytes.len() as u64,
            Action::Zero { len } => *len,
            Action::Flush => return None,
        };
        let first = self.offset.checked_sub(data_at)?;
        Some(first / unit..(first + len).div_ceil(unit))
    }
}

/// The operations of all members of an array.
#[derive(Default)]
pub struct Log {
    ops: Mutex<(u64, Vec<Op>)>,
}

impl Log {
    /// A new moment, later than all operations so far.
    pub fn now(&self) -> u64 {
        let mut log = self.ops.lock().unwrap();
        log.0 += 1;
        log.0
    }

    /// The operations that began at `from` or later.
    pub fn since(&self, from: u64) -> Vec<Op> {
        self.ops.lock().unwrap().1.iter().filter(|op| op.begun >= from).cloned().collect()
    }

    fn begin(&self, member: usize, offset: u64, act: Action) -> usize {
        let begun = self.now();
        let mut log = self.ops.lock().unwrap();
        log.1.push(Op { member, offset, act, begun, ended: None });
        log.1.len() - 1
    }

    fn end<T>(&self, op: usize, result: &IoResult<T>) {
        let now = self.now();
        if result.is_ok() {
            self.ops.lock().unwrap().1[op].ended = Some(now);
        }
    }
}

/// Whether a flush of its member lies wholly between the end of `change` and `moment`.
pub fn is_flushed(ops: &[Op], change: &Op, moment: u64) -> bool {
    if let Action::Write { fua: true, .. } = change.act {
        return change.has_ended_before(moment);
    }
    let Some(ended) = change.ended else { return false };
    ops.iter().any(|op| {
        let is_flush = op.member == change.member && matches!(op.act, Action::Flush);
        is_flush && op.begun > ended && op.has_ended_before(moment)
    })
}

/// A disk that logs its operations.
pub struct LoggedDisk {
    pub disk: Arc<Disk>,
    pub member: usize,
    pub log: Arc<Log>,
}

/// The disks in order, as members that log their operations.
pub fn logged(disks: &[Arc<Disk>], log: &Arc<Log>) -> Vec<Arc<dyn BlockDevice>> {
    let logged = |(member, disk): (usize, &Arc<Disk>)| {
        Arc::new(LoggedDisk { disk: Arc::clone(disk), member, log: Arc::clone(log) }) as Arc<dyn BlockDevice>
    };
    disks.iter().enumerate().map(logged).collect()
}

impl BlockDevice for LoggedDisk {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let io = self.disk.open().await?;
            Ok(Rc::new(LoggedIo { io, member: self.member, log: Arc::clone(&self.log) }) as Rc<dyn BlockIo>)
        })
    }
}

struct LoggedIo {
    io: Rc<dyn BlockIo>,
    member: usize,
    log: Arc<Log>,
}

impl LoggedIo {
    /// Logs an operation and its end, also if the caller drops the future.
    fn note(&self, offset: u64, act: Action, operation: IoFuture<()>) -> IoFuture<()> {
        let (log, op) = (Arc::clone(&self.log), self.log.begin(self.member, offset, act));
        go(async move {
            let result = operation.await;
            log.end(op, &result);
            result
        })
    }
}

impl BlockIo for LoggedIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.io.read(offset, dst)
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let act = Action::Write { bytes: src.clone(), fua: flags.fua };
        self.note(offset, act, self.io.write(offset, src, flags))
    }

    fn flush(&self) -> IoFuture<()> {
        self.note(0, Action::Flush, self.io.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.io.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.note(offset, Action::Zero { len }, self.io.write_zeroes(offset, len, flags))
    }

    fn advice(&self) -> Option<longhaul_block::Advice> {
        self.io.advice()
    }

    fn generation(&self) -> u64 {
        self.io.generation()
    }

    fn away_since(&self) -> Option<Instant> {
        self.io.away_since()
    }
}
