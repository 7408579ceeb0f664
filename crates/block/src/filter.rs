//! Filters: devices that wrap a device.
//!
//! A filter is an [`Around`]: it sees each operation begin, and decides what
//! follows. [`Filtered`] makes a device of it, so filters stack, and a
//! fault is a filter and never an `if` in a back end.
//!
//! Invariants:
//! - an operation that a filter lets through begins below when it is called,
//!   not when its future is first polled;
//! - a filter that has to see an operation end never lends the memory below
//!   (`map_read`, `map_write`), since I/O on lent memory would pass by it.

mod delay;
mod error;
mod rate;
mod readonly;
mod stats;

pub use delay::Delay;
pub use error::{ErrorKind, Errors};
pub use rate::Bound;
pub use readonly::ReadOnly;
pub use stats::{OpStats, Stats, StatsSnapshot};

use crate::{
    Advice, BlockDevice, BlockIo, DeviceInfo, IoFuture, IoResult, Open, Reservations, WriteFlags, ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, Segment};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// The kinds of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// Reads: [`BlockIo::read`].
    Read,
    /// Writes: [`BlockIo::write`].
    Write,
    /// Flushes: [`BlockIo::flush`].
    Flush,
    /// Discards: [`BlockIo::discard`].
    Discard,
    /// Zeroed ranges: [`BlockIo::write_zeroes`].
    WriteZeroes,
}

impl OpKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [OpKind; 5] =
        [OpKind::Read, OpKind::Write, OpKind::Flush, OpKind::Discard, OpKind::WriteZeroes];

    /// Its name in a back-end specification.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Flush => "flush",
            OpKind::Discard => "discard",
            OpKind::WriteZeroes => "zero",
        }
    }
}

/// A set of operation kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSet(u8);

impl OpSet {
    /// All kinds of operations.
    pub const ALL: OpSet = OpSet(0b1_1111);
    /// No kind of operation.
    pub const NONE: OpSet = OpSet(0);

    /// This set and `kind`.
    #[must_use]
    pub const fn with(self, kind: OpKind) -> OpSet {
        OpSet(self.0 | 1 << kind as u8)
    }

    /// Whether `kind` is in it.
    pub const fn has(self, kind: OpKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }
}

/// One operation, as a filter sees it. A flush covers no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The kind of operation.
    pub kind: OpKind,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// What a filter does around each operation.
pub trait Around: Send + Sync + 'static {
    /// Called as `op` begins; `start` begins it on the device below.
    fn around<T: Unpin + 'static>(
        self: &Arc<Self>,
        op: Op,
        start: impl FnOnce() -> IoFuture<T>,
    ) -> IoFuture<T>;

    /// Whether memory of the device below may be lent for `op`. Only a filter
    /// that loses nothing by not seeing the end of the operation says yes.
    fn lends(&self, op: Op) -> bool {
        let _ = op;
        false
    }

    /// Changes what the device says of itself.
    fn describe(&self, info: &mut DeviceInfo) {
        let _ = info;
    }
}

/// A device with a filter around it.
pub struct Filtered<F> {
    inner: Arc<dyn BlockDevice>,
    filter: Arc<F>,
}

impl<F: Around> Filtered<F> {
    /// `filter` around `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>, filter: F) -> Filtered<F> {
        Filtered { inner, filter: Arc::new(filter) }
    }

    /// The filter, to ask it or to change it while it is in use.
    pub fn filter(&self) -> &Arc<F> {
        &self.filter
    }
}

impl<F: Around> BlockDevice for Filtered<F> {
    fn granularity(&self) -> u32 {
        self.inner.granularity()
    }

    fn info(&self) -> DeviceInfo {
        let mut info = self.inner.info();
        self.filter.describe(&mut info);
        info
    }

    fn refresh(&self) -> IoResult<DeviceInfo> {
        let mut info = self.inner.refresh()?;
        self.filter.describe(&mut info);
        Ok(info)
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let inner = self.inner.open().await?;
            Ok(around(inner, Arc::clone(&self.filter)))
        })
    }
}

/// An open device with a filter around it, which others may share.
pub fn around<F: Around>(inner: Rc<dyn BlockIo>, filter: Arc<F>) -> Rc<dyn BlockIo> {
    Rc::new(FilteredIo { inner, filter })
}

struct FilteredIo<F> {
    inner: Rc<dyn BlockIo>,
    filter: Arc<F>,
}

impl<F: Around> BlockIo for FilteredIo<F> {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let op = Op { kind: OpKind::Read, offset, len: dst.len() as u64 };
        self.filter.around(op, || self.inner.read(offset, dst))
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let op = Op { kind: OpKind::Write, offset, len: src.len() as u64 };
        self.filter.around(op, || self.inner.write(offset, src, flags))
    }

    fn flush(&self) -> IoFuture<()> {
        let op = Op { kind: OpKind::Flush, offset: 0, len: 0 };
        self.filter.around(op, || self.inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let op = Op { kind: OpKind::Discard, offset, len };
        self.filter.around(op, || self.inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let op = Op { kind: OpKind::WriteZeroes, offset, len };
        self.filter.around(op, || self.inner.write_zeroes(offset, len, flags))
    }

    fn advice(&self) -> Option<Advice> {
        self.inner.advice()
    }

    fn generation(&self) -> u64 {
        self.inner.generation()
    }

    fn may_forget(&self) -> bool {
        self.inner.may_forget()
    }

    fn away_since(&self) -> Option<Instant> {
        self.inner.away_since()
    }

    fn reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.inner.reservations()
    }

    fn shared_reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.inner.shared_reservations()
    }

    fn map_read(&self, offset: u64, len: usize) -> Option<Segment> {
        let op = Op { kind: OpKind::Read, offset, len: len as u64 };
        if self.filter.lends(op) { self.inner.map_read(offset, len) } else { None }
    }

    fn map_write(&self, offset: u64, len: usize) -> Option<Segment> {
        let op = Op { kind: OpKind::Write, offset, len: len as u64 };
        if self.filter.lends(op) { self.inner.map_write(offset, len) } else { None }
    }
}
