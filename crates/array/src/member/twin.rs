//! The I/O of a member that moves to another device: what is written goes to both.
//!
//! Invariants:
//! - reads are answered by the old device until [`Twin::switch`], and by the new one after that;
//! - what is written to the old device while it is copied is written to the new one too, in the same
//!   order where ranges overlap: a range is copied, or written, under its turn in `turns`;
//! - superblocks and heartbeats go to the device that is the member, and are not copied;
//! - an error or a delay of the new device ends the move and nothing else: the member keeps the old one;
//! - `under_way` counts the operations on the new device that have not ended, also after a time-out.

use crate::assembly::create::zero;
use crate::event::Event;
use crate::format::geometry::{BLOCK, HEARTBEAT_AT};
use futures_util::future::{Either, select};
use futures_util::join;
use longhaul_block::{Advice, BlockIo, IoError, IoFuture, IoResult, Reservations, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, spawn, timeout};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// End of the superblocks and of the heartbeat, which each device has for itself: what is copied
/// begins here.
pub(crate) const COPIED_FROM: u64 = HEARTBEAT_AT + BLOCK;

/// Turns of operations on ranges of a member: one that overlaps an earlier one waits for its end.
#[derive(Default)]
struct Turns {
    next: Cell<u64>,
    queue: RefCell<Vec<(u64, Range<u64>)>>,
    changed: Event,
}

/// A turn, which ends when this is dropped.
pub(crate) struct MirrorTurn {
    turns: Rc<Turns>,
    number: u64,
}

impl Turns {
    /// Takes a place behind everything that has one.
    fn queue(self: &Rc<Self>, range: Range<u64>) -> MirrorTurn {
        let number = self.next.get();
        self.next.set(number + 1);
        self.queue.borrow_mut().push((number, range));
        MirrorTurn { turns: Rc::clone(self), number }
    }

    /// Whether no earlier operation overlaps this one.
    fn has_come(&self, number: u64) -> bool {
        let queue = self.queue.borrow();
        let Some(at) = queue.iter().position(|(own, _)| *own == number) else { return true };
        let own = &queue[at].1;
        !queue[..at].iter().any(|(_, other)| other.start < own.end && own.start < other.end)
    }

    fn is_idle(&self) -> bool {
        self.queue.borrow().is_empty()
    }
}

impl MirrorTurn {
    /// Waits until it has come.
    async fn come(self) -> MirrorTurn {
        self.turns.changed.until(|| self.turns.has_come(self.number)).await;
        self
    }
}

impl Drop for MirrorTurn {
    fn drop(&mut self) {
        self.turns.queue.borrow_mut().retain(|(number, _)| *number != self.number);
        self.turns.changed.notify();
    }
}

/// How far a move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Both devices are written.
    Copying,
    /// The new device is the member.
    Moved,
    /// The old device stays the member, and the new one is not used any more.
    Dropped,
}

/// The two devices of a member that moves.
pub(crate) struct Twin {
    old: Rc<dyn BlockIo>,
    new: Rc<dyn BlockIo>,
    /// Largest transfer of the new device.
    new_max: usize,
    /// Generation of the new device when the move began: see [`BlockIo::generation`].
    generation: u64,
    /// How long an operation of the new device may take.
    limit: Duration,
    stage: Cell<Stage>,
    /// Notified when the new device is dropped.
    dropped: Event,
    /// Why the new device was dropped.
    why: RefCell<Option<IoError>>,
    turns: Rc<Turns>,
    under_way: Rc<Cell<usize>>,
}

impl Twin {
    /// A member on `old` that moves to `new`, whose operations may take `limit` each.
    pub(crate) fn new(old: Rc<dyn BlockIo>, new: Rc<dyn BlockIo>, new_max: u32, limit: Duration) -> Rc<Twin> {
        let generation = new.generation();
        let stage = Cell::new(Stage::Copying);
        let new_max = new_max as usize;
        let (why, turns, under_way, dropped) = Default::default();
        Rc::new(Twin { old, new, new_max, generation, limit, stage, dropped, why, turns, under_way })
    }

    /// Both devices as one.
    pub(crate) fn io(self: &Rc<Self>) -> Rc<dyn BlockIo> {
        Rc::new(TwinIo(Rc::clone(self)))
    }

    /// The old device alone.
    pub(crate) fn old(&self) -> &Rc<dyn BlockIo> {
        &self.old
    }

    /// The new device alone.
    pub(crate) fn new_io(&self) -> &Rc<dyn BlockIo> {
        &self.new
    }

    /// Why the new device cannot become the member, if so.
    pub(crate) fn broken(&self) -> Option<IoError> {
        if self.new.generation() != self.generation {
            let why = "it was reconnected, and may have lost what was not flushed";
            return Some(IoError::Unreachable(why.to_owned()));
        }
        self.why.borrow().clone()
    }

    /// Ends the move: the old device stays the member.
    pub(crate) fn drop_new(&self, why: IoError) {
        if self.stage.get() == Stage::Copying {
            self.stage.set(Stage::Dropped);
            self.why.borrow_mut().get_or_insert(why);
            self.dropped.notify();
        }
    }

    /// The new device is the member from now on. The caller holds the turn of
    /// the whole member.
    pub(crate) fn switch(&self) {
        assert_eq!(self.stage.get(), Stage::Copying, "a move ends once");
        self.stage.set(Stage::Moved);
    }

    /// Operations on the new device that have not ended.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.get()
    }

    /// Takes the turn of a range, after all that was begun there.
    pub(crate) async fn turn(&self, range: Range<u64>) -> MirrorTurn {
        self.turns.queue(range).come().await
    }

    /// Runs an operation of the new device, within its limit, and while that may become the member.
    ///
    /// # Errors
    /// Its own, or that it has not ended in time: it may end later.
    pub(crate) async fn in_time(
        &self,
        operation: impl Future<Output = IoResult<()>> + 'static,
    ) -> IoResult<()> {
        let under_way = Rc::clone(&self.under_way);
        under_way.set(under_way.get() + 1);
        let mut task = spawn(async move {
            let result = operation.await;
            under_way.set(under_way.get() - 1);
            result
        });
        let dropped = pin!(self.dropped.until(|| self.stage.get() == Stage::Dropped));
        match timeout(self.limit, select(&mut task, dropped)).await {
            Ok(Either::Left((result, _))) => result,
            Ok(Either::Right(_)) => {
                task.detach();
                Err(IoError::Aborted)
            }
            Err(_) => {
                task.detach();
                let limit = self.limit.as_secs_f64();
                Err(IoError::Unreachable(format!("the device did not answer in {limit:.1} s")))
            }
        }
    }

    /// Writes to the new device, however large.
    fn write_new(
        &self,
        offset: u64,
        src: &Buf,
        flags: WriteFlags,
    ) -> impl Future<Output = IoResult<()>> + 'static {
        let write = |start: usize| {
            let end = src.len().min(start + self.new_max);
            self.new.write(offset + start as u64, src.slice(start..end), flags)
        };
        let parts: Vec<IoFuture<()>> = (0..src.len()).step_by(self.new_max).map(write).collect();
        async move {
            for part in parts {
                part.await?;
            }
            Ok(())
        }
    }

    fn zero_new(&self, offset: u64, len: u64) -> impl Future<Output = IoResult<()>> + 'static {
        let new = Rc::clone(&self.new);
        async move { zero(&new, offset, offset + len).await }
    }

    /// Copies what was read to the new device. The caller holds the turn of the range.
    ///
    /// # Errors
    /// Those of the new device, which is dropped.
    pub(crate) async fn copy(&self, offset: u64, bytes: BufMut) -> IoResult<()> {
        let len = bytes.len() as u64;
        let result = if bytes.iter().all(|byte| *byte == 0) {
            self.in_time(self.zero_new(offset, len)).await
        } else {
            self.in_time(self.write_new(offset, &bytes.freeze(), WriteFlags::default())).await
        };
        result.inspect_err(|e| self.drop_new(e.clone()))
    }

    /// Does to the new device what is done to the old one, whose result alone counts.
    async fn both(
        &self,
        old: IoFuture<()>,
        new: impl Future<Output = IoResult<()>> + 'static,
    ) -> IoResult<()> {
        let (result, copied) = join!(old, self.in_time(new));
        if let Err(e) = copied {
            self.drop_new(e);
        }
        result
    }
}

/// See [`Twin`]. An operation begins when it is first polled, which the member does at once; its place
/// among others it has from the call on.
struct TwinIo(Rc<Twin>);

impl TwinIo {
    /// The device that is the member.
    fn current(&self) -> &Rc<dyn BlockIo> {
        match self.0.stage.get() {
            Stage::Moved => &self.0.new,
            Stage::Copying | Stage::Dropped => &self.0.old,
        }
    }

    /// Whether an operation at `offset` concerns one device only.
    fn is_alone(&self, offset: u64) -> bool {
        offset < COPIED_FROM || (self.0.stage.get() != Stage::Copying && self.0.turns.is_idle())
    }
}

impl BlockIo for TwinIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.current().read(offset, dst)
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        if self.is_alone(offset) {
            return self.current().write(offset, src, flags);
        }
        let twin = Rc::clone(&self.0);
        let turn = twin.turns.queue(offset..offset + src.len() as u64);
        IoFuture::new(async move {
            let _turn = turn.come().await;
            match twin.stage.get() {
                Stage::Copying => {
                    let new = twin.write_new(offset, &src, flags);
                    twin.both(twin.old.write(offset, src, flags), new).await
                }
                Stage::Moved => twin.write_new(offset, &src, flags).await,
                Stage::Dropped => twin.old.write(offset, src, flags).await,
            }
        })
    }

    fn flush(&self) -> IoFuture<()> {
        match self.0.stage.get() {
            Stage::Copying => {
                let (twin, old, new) = (Rc::clone(&self.0), self.0.old.flush(), self.0.new.flush());
                IoFuture::new(async move { twin.both(old, new).await })
            }
            Stage::Moved | Stage::Dropped => self.current().flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        match self.0.stage.get() {
            // The two might differ then.
            Stage::Copying => IoFuture::ready(Err(IoError::Unsupported("discard while it moves"))),
            Stage::Moved | Stage::Dropped => self.current().discard(offset, len),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        if self.is_alone(offset) {
            return self.current().write_zeroes(offset, len, flags);
        }
        let twin = Rc::clone(&self.0);
        let turn = twin.turns.queue(offset..offset + len);
        IoFuture::new(async move {
            let _turn = turn.come().await;
            match twin.stage.get() {
                Stage::Copying => {
                    let new = twin.zero_new(offset, len);
                    twin.both(twin.old.write_zeroes(offset, len, flags), new).await
                }
                Stage::Moved => twin.new.write_zeroes(offset, len, flags).await,
                Stage::Dropped => twin.old.write_zeroes(offset, len, flags).await,
            }
        })
    }

    fn advice(&self) -> Option<Advice> {
        self.current().advice()
    }

    fn generation(&self) -> u64 {
        self.current().generation()
    }

    fn may_forget(&self) -> bool {
        self.current().may_forget()
    }

    fn away_since(&self) -> Option<Instant> {
        self.current().away_since()
    }

    fn reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.current().reservations()
    }
}
