//! Makes acknowledged changes durable on a device that may forget them.
//!
//! Invariants:
//! - unflushed changes of such a device are kept, and resent when its generation has changed or a
//!   flush has failed: before a flush ends, and before a read of them;
//! - a flush covers the changes that were kept when it began only if the device has the same
//!   generation before and after it, and no other flush has failed meanwhile;
//! - a resend takes its turn among the other changes, and resends only changes that are still kept
//!   then: it undoes no later change.

use crate::blocks::write;
use crate::order::{ALL, Turn};
use crate::write_behind::WriteBehind;
use crate::{Change, Epoch};
use futures_util::future::join_all;
use longhaul_block::{IoError, IoResult, WriteFlags};
use longhaul_engine::spawn;
use std::ops::Range;
use std::rc::Rc;

/// Changes that are resent at a time: each one has to be compared with all that wait.
const RESEND_MAX: usize = 256;

impl WriteBehind {
    /// The present epoch of the device.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch { generation: self.io.generation(), failed_flushes: self.failed_flushes.get() }
    }

    /// The device has a change, whose turn it still is: it is kept until it is
    /// durable, where the device may forget it until then.
    pub(crate) fn keep(&self, blocks: Range<u64>, change: Change, durable: bool, epoch: Epoch) {
        if !self.io.may_forget() || !self.user.info().volatile_cache {
            return;
        }
        let mut kept = self.kept.borrow_mut();
        if durable { kept.forget(&blocks) } else { kept.note(blocks, change, epoch) }
    }

    /// Waits until the device has all changes that were called before.
    pub(crate) fn drained(&self) -> impl Future<Output = ()> {
        self.order.settled(ALL)
    }

    /// Reads what the device has of `blocks`, including all changes that were called before.
    /// `read` is called again if the device may have forgotten something meanwhile.
    pub(crate) async fn read_settled<T>(
        &self,
        blocks: Range<u64>,
        mut read: impl AsyncFnMut() -> IoResult<T>,
    ) -> IoResult<T> {
        loop {
            self.order.settled(blocks.clone()).await;
            let epoch = self.epoch();
            // Whether the device owes something here that it may forget.
            let (owes, forgot) = {
                let kept = self.kept.borrow();
                let owes = kept.touches(&blocks);
                (owes, owes && kept.is_stale(&blocks, epoch))
            };
            if forgot {
                self.resend().await;
                continue;
            }
            let result = read().await;
            if !owes || self.epoch() == epoch {
                return result;
            }
        }
    }

    /// Flushes the device; if it has forgotten changes, resends them first.
    ///
    /// # Errors
    /// Those of the flush; the kept changes have to be resent before the next one, or [given
    /// up](Self::give_up).
    pub(crate) async fn make_durable(&self) -> IoResult<()> {
        loop {
            let epoch = self.resend().await;
            let mark = self.kept.borrow().mark();
            if let Err(e) = self.io.flush().await {
                // It may have lost changes that came after it began, too, and other flushes under way may
                // succeed without them.
                self.failed_flushes.set(self.failed_flushes.get() + 1);
                return Err(e);
            }
            if epoch == self.epoch() {
                self.kept.borrow_mut().flushed(mark);
                self.room.let_in(&self.load());
                return Ok(());
            }
        }
    }

    /// A flush or a durable change has failed. A device that keeps by itself what it has not made durable
    /// reports that once, and nothing is resent to it: changes of all handles may be lost.
    pub(crate) fn handle_failed_sync(&self, e: &IoError) {
        let keeps_by_itself = self.user.info().volatile_cache && !self.io.may_forget();
        if e.is_loss() && keeps_by_itself {
            self.user.handle_loss(e.clone());
        }
    }

    /// The result of a change. One that is to be `durable` may fail for what others have written.
    pub(crate) fn check_sync(&self, result: IoResult<()>, durable: bool) -> IoResult<()> {
        result.inspect_err(|e| {
            if durable {
                self.handle_failed_sync(e);
            }
        })
    }

    /// Reports kept changes as lost: they are not resent any more.
    pub(crate) fn give_up(&self) {
        let mut kept = self.kept.borrow_mut();
        let mark = kept.mark();
        kept.flushed(mark);
    }

    /// Resends what the device may have forgotten; returns the epoch of the device
    /// that has everything.
    async fn resend(&self) -> Epoch {
        loop {
            let epoch = self.epoch();
            let forgotten = self.kept.borrow().stale(&ALL, epoch, self.load().advised, RESEND_MAX);
            if forgotten.is_empty() {
                return epoch;
            }
            let changes: Vec<_> = forgotten
                .into_iter()
                .map(|(range, _)| {
                    // Data that was read ahead may be older than the change.
                    self.user.handle_change(&range);
                    self.resend_range(self.order.change(range.clone()), range)
                })
                .collect();
            self.resending.set(self.resending.get() + 1);
            // Those that this waits for may wait for room.
            self.room.let_in(&self.load());
            let failed = join_all(changes).await.into_iter().flatten().next();
            self.resending.set(self.resending.get() - 1);
            if let Some(e) = failed {
                self.user.handle_loss(e);
            }
        }
    }

    /// When its turn has come, resends the kept changes of a range that were not resent meanwhile.
    /// Returns the error by which some of them are lost.
    async fn resend_range(&self, turn: Turn, range: Range<u64>) -> Option<IoError> {
        turn.begin().await;
        let (info, epoch) = (self.user.info(), self.epoch());
        let forgotten = self.kept.borrow().stale(&range, epoch, u64::MAX, usize::MAX);
        let mut failed = None;
        for (range, change) in forgotten {
            let len = range.end - range.start;
            let result = match &change {
                Change::Data(buf) => write(&*self.io, &info, range.start, buf, WriteFlags::default()).await,
                Change::Zeroes(flags) => self.io.write_zeroes(range.start, len, *flags).await,
                Change::Discard => self.io.discard(range.start, len).await,
            };
            match result {
                Ok(()) => self.kept.borrow_mut().note(range, change, epoch),
                Err(e) => {
                    self.kept.borrow_mut().forget(&range);
                    failed.get_or_insert(e);
                }
            }
        }
        failed
    }

    fn needs_flush(&self) -> bool {
        self.room.needs_flush(self.kept.borrow().bytes())
    }

    /// Flushes kept changes in a task of its own, if other changes need the room.
    pub(crate) fn make_room(self: &Rc<Self>) {
        if !self.needs_flush() || self.flushing.replace(true) {
            return;
        }
        let this = Rc::clone(self);
        spawn(async move {
            while this.needs_flush() {
                if let Err(e) = this.make_durable().await {
                    // No call asked for this flush, so its error is the user's.
                    this.give_up();
                    this.user.handle_loss(e);
                    this.room.let_in(&this.load());
                }
            }
            this.flushing.set(false);
        })
        .detach();
    }
}
