//! Changes that are done behind their callers.
//!
//! Invariants:
//! - a change takes its turn when it is called, and whatever comes later and touches the
//!   same blocks waits for it;
//! - a change that is written behind is acknowledged when its bytes are taken. If it
//!   fails, `user` gets the error;
//! - a change that the device may forget is kept before its turn ends.
//!
//! How kept changes become durable is in [`durable`](crate::durable).

use crate::blocks::{around, read, within, write};
use crate::order::{Order, Turn};
use crate::room::{Load, Room};
use crate::{Change, Unflushed};
use futures_util::FutureExt;
use longhaul_block::{Advice, BlockIo, DeviceInfo, IoError, IoResult, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, spawn};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

/// The user of a [`WriteBehind`].
pub(crate) trait WriteUser {
    /// What the device is at this moment.
    fn info(&self) -> DeviceInfo;

    /// The content of these blocks is about to change: data that was read ahead is stale.
    fn handle_change(&self, blocks: &Range<u64>);

    /// An acknowledged write is lost.
    fn handle_loss(&self, error: IoError);
}

/// Writes to a device behind its user, on one thread.
pub(crate) struct WriteBehind {
    pub(crate) user: Rc<dyn WriteUser>,
    pub(crate) io: Rc<dyn BlockIo>,
    pub(crate) order: Rc<Order>,
    pub(crate) room: Room,
    /// What the device has, and may forget.
    pub(crate) kept: RefCell<Unflushed>,
    /// Tasks that resend kept changes, and wait for changes that were let in.
    pub(crate) resending: Cell<usize>,
    /// Kept changes are being flushed to make room.
    pub(crate) flushing: Cell<bool>,
    /// Number of flushes that have failed.
    pub(crate) failed_flushes: Cell<u64>,
}

impl WriteBehind {
    /// Writes through `io`. When half of `limit` bytes is kept, it is flushed.
    pub(crate) fn new(user: Rc<dyn WriteUser>, io: Rc<dyn BlockIo>, limit: u64) -> Rc<WriteBehind> {
        Rc::new(WriteBehind {
            user,
            io,
            order: Rc::default(),
            room: Room::new(limit),
            kept: RefCell::default(),
            resending: Cell::new(0),
            flushing: Cell::new(false),
            failed_flushes: Cell::new(0),
        })
    }

    pub(crate) fn load(&self) -> Load {
        Load {
            advised: self.io.advice().unwrap_or(Advice::LOCAL).write,
            kept: self.kept.borrow().bytes(),
            resending: self.resending.get() > 0,
        }
    }

    /// Takes bytes to write anywhere; with `fua` they are durable when this
    /// ends. The place among other changes is that of the call.
    pub(crate) fn write(
        self: &Rc<Self>,
        offset: u64,
        bytes: Buf,
        fua: bool,
    ) -> impl Future<Output = IoResult<()>> + use<> {
        let this = Rc::clone(self);
        let turn = this.turn(offset, bytes.len() as u64);
        let (wanted, flags) = (bytes.len() as u64, WriteFlags { fua });
        let what = move |this: Rc<Self>, turn| async move { this.put(turn, offset, bytes, flags).await };
        async move { this.change(turn?, wanted, fua, what).await }
    }

    /// Makes bytes read as zeroes.
    pub(crate) fn write_zeroes(
        self: &Rc<Self>,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> impl Future<Output = IoResult<()>> + use<> {
        let this = Rc::clone(self);
        let turn = this.turn(offset, len);
        let what = move |this: Rc<Self>, turn| async move { this.put_zeroes(turn, offset, len, flags).await };
        async move { this.change(turn?, 0, flags.fua, what).await }
    }

    /// Discards the whole blocks within a range.
    pub(crate) fn discard(
        self: &Rc<Self>,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = IoResult<()>> + use<> {
        let this = Rc::clone(self);
        let turn = this.turn(offset, len);
        let what = move |this: Rc<Self>, turn: Turn| async move {
            turn.begin().await;
            let blocks = within(&this.user.info(), offset, len);
            if blocks.start >= blocks.end {
                return Ok(());
            }
            let epoch = this.epoch();
            this.io.discard(blocks.start, blocks.end - blocks.start).await?;
            this.keep(blocks, Change::Discard, false, epoch);
            Ok(())
        };
        async move { this.change(turn?, 0, false, what).await }
    }

    /// Takes bytes to write and begins at once, however much is under way: its only user
    /// waits [`within_bounds`](Self::within_bounds).
    pub(crate) fn begin_write(self: &Rc<Self>, offset: u64, bytes: Buf) {
        let len = bytes.len() as u64;
        let turn = match self.turn(offset, len) {
            Ok(turn) => turn,
            Err(e) => return self.user.handle_loss(e),
        };
        self.room.take(len);
        let this = Rc::clone(self);
        let mut write = Box::pin(async move {
            let written = this.put(turn, offset, bytes, WriteFlags::default()).await;
            this.end(len, written);
        });
        // The first poll submits it: its user may not wait before it has much more to write.
        if write.as_mut().now_or_never().is_none() {
            spawn(write).detach();
        }
    }

    /// Waits while more is under way than the device advises, or more is kept than the limit.
    pub(crate) async fn within_bounds(&self) {
        poll_fn(
            |cx| if self.room.is_over(&self.load(), cx.waker()) { Poll::Pending } else { Poll::Ready(()) },
        )
        .await;
    }

    /// A place in the order for a change of a range.
    fn turn(&self, offset: u64, len: u64) -> IoResult<Turn> {
        let info = self.user.info();
        if info.read_only {
            return Err(IoError::ReadOnly);
        }
        let blocks = around(&info, offset, len)?;
        self.user.handle_change(&blocks);
        Ok(self.order.change(blocks))
    }

    /// Does a change that takes `bytes` of memory: behind the caller, unless it is
    /// to be durable or has no data to be taken.
    async fn change<F: Future<Output = IoResult<()>> + 'static>(
        self: Rc<Self>,
        turn: Turn,
        bytes: u64,
        wait: bool,
        what: impl FnOnce(Rc<Self>, Turn) -> F + 'static,
    ) -> IoResult<()> {
        let admitted = self.room.admit(bytes, &self.load());
        self.make_room();
        if let Some(admitted) = admitted {
            // The task that freed the memory has reserved it for this change.
            let _ = admitted.await;
        }
        let change = what(Rc::clone(&self), turn);
        if wait || bytes == 0 {
            let result = change.await;
            self.end(bytes, Ok(()));
            return result;
        }
        spawn(async move {
            let result = change.await;
            self.end(bytes, result);
        })
        .detach();
        Ok(())
    }

    /// A change has ended. Its room is free; its error is the user's.
    fn end(self: &Rc<Self>, bytes: u64, result: IoResult<()>) {
        if let Err(e) = result {
            self.user.handle_loss(e);
        }
        self.room.done(bytes, &self.load());
        self.make_room();
    }

    /// Writes in pieces that the device accepts; the rest of the first and the last block is read
    /// first.
    async fn put(&self, turn: Turn, offset: u64, bytes: Buf, flags: WriteFlags) -> IoResult<()> {
        turn.begin().await;
        let info = self.user.info();
        let len = bytes.len() as u64;
        let blocks = around(&info, offset, len)?;
        let whole = if blocks == (offset..offset + len) {
            bytes
        } else {
            self.fill_edges(&info, blocks.clone(), offset, &bytes).await?
        };
        let epoch = self.epoch();
        let written = write(&*self.io, &info, blocks.start, &whole, flags).await;
        self.check_sync(written, flags.fua)?;
        self.keep(blocks, Change::Data(whole), flags.fua, epoch);
        Ok(())
    }

    async fn put_zeroes(&self, turn: Turn, offset: u64, len: u64, flags: ZeroFlags) -> IoResult<()> {
        turn.begin().await;
        let info = self.user.info();
        let Range { start: begin, end } = within(&info, offset, len);
        if begin >= end {
            // Within a block, or two.
            let zeroes = BufMut::zeroed(len as usize).freeze();
            return self.put(turn, offset, zeroes, WriteFlags { fua: flags.fua }).await;
        }
        for (at, size) in [(offset, begin - offset), (end, offset + len - end)] {
            if size > 0 {
                let zeroes = BufMut::zeroed(size as usize).freeze();
                let blocks = around(&info, at, size)?;
                let edge = self.fill_edges(&info, blocks.clone(), at, &zeroes).await?;
                let epoch = self.epoch();
                let written = self.io.write(blocks.start, edge.clone(), WriteFlags { fua: flags.fua }).await;
                self.check_sync(written, flags.fua)?;
                self.keep(blocks, Change::Data(edge), flags.fua, epoch);
            }
        }
        let epoch = self.epoch();
        let zeroed = self.io.write_zeroes(begin, end - begin, flags).await;
        self.check_sync(zeroed, flags.fua)?;
        self.keep(begin..end, Change::Zeroes(flags), flags.fua, epoch);
        Ok(())
    }

    /// Whole blocks with `bytes` at `offset`, and what the device has around them.
    async fn fill_edges(
        &self,
        info: &DeviceInfo,
        blocks: Range<u64>,
        offset: u64,
        bytes: &Buf,
    ) -> IoResult<Buf> {
        let block = info.block_size as usize;
        let mut whole = BufMut::zeroed((blocks.end - blocks.start) as usize);
        let skip = (offset - blocks.start) as usize;
        let end = skip + bytes.len();
        let last = whole.len() - block;
        if skip > 0 {
            let old = read(&*self.io, info, blocks.start, block).await?;
            whole[..block].copy_from_slice(&old);
        }
        if end < whole.len() && (last > 0 || skip == 0) {
            let old = read(&*self.io, info, blocks.start + last as u64, block).await?;
            whole[last..].copy_from_slice(&old);
        }
        // The device may have forgotten changes that were not resent yet.
        self.kept.borrow().overlay(blocks.start, &mut whole);
        whole[skip..end].copy_from_slice(bytes);
        Ok(whole.freeze())
    }
}
