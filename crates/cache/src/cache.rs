//! A device for many readers and writers at once, byte by byte: what stands
//! between a kernel's file system and a path.
//!
//! Invariants:
//! - a write is acknowledged when its bytes are taken; whatever comes later
//!   sees them, since it waits for the device to have them;
//! - bytes that were taken and are not with the device are at most what the
//!   device advises (and the memory given allows), and one write;
//! - unflushed writes of a device that may forget are kept, and resent when its
//!   generation has changed: before a flush ends, and before a read of them.
//!   When they take a quarter of the memory they are flushed;
//! - a flush ends when all that was acknowledged before it is durable, or with
//!   the error of what is not: each handle gets the error of each loss once.

use crate::blocks::read;
use crate::order::{Order, Turn};
use crate::read_ahead::{self, ReadAhead};
use crate::{Change, Unflushed};
use futures_channel::oneshot;
use futures_util::future::join_all;
use longhaul_block::{Advice, BlockDevice, BlockIo, DeviceInfo, IoError, IoResult, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, spawn};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Operations that are written behind at a time: what waits has to be looked
/// through for each one that comes.
const BEHIND_MAX: usize = 1024;
/// Changes that are sent again at a time, for the same reason.
const AGAIN_MAX: usize = 256;
/// All of a device.
const ALL: Range<u64> = 0..u64::MAX;

/// A device open on one engine thread.
pub struct Cache {
    device: Arc<dyn BlockDevice>,
    io: Rc<dyn BlockIo>,
    order: Rc<Order>,
    ahead: RefCell<ReadAhead>,
    behind: Behind,
    /// Bytes that may be read ahead.
    ahead_limit: u64,
    /// Bytes of reads that are waited for.
    asked: Cell<u64>,
}

/// A read that is waited for, until it is dropped.
struct Asked<'a>(&'a Cell<u64>, u64);

impl<'a> Asked<'a> {
    fn new(all: &'a Cell<u64>, len: u64) -> Asked<'a> {
        all.set(all.get() + len);
        Asked(all, len)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - self.1);
    }
}

/// What is written behind.
struct Behind {
    limit: u64,
    bytes: Cell<u64>,
    count: Cell<usize>,
    /// Writes that wait to be taken, in their order.
    waiting: RefCell<VecDeque<(u64, oneshot::Sender<()>)>>,
    /// What the device has, and may forget.
    kept: RefCell<Unflushed>,
    /// Tasks that resend it, and wait for writes that were let in.
    again: Cell<usize>,
    /// It is being flushed to make room.
    flushing: Cell<bool>,
    /// Losses so far, and the last of them.
    lost: Losses,
    error: RefCell<Option<IoError>>,
}

/// Number of acknowledged writes of a device that failed.
#[derive(Clone, Debug, Default)]
pub struct Losses(Arc<AtomicU64>);

impl Losses {
    /// A new handle: it gets the errors of later losses.
    pub fn handle(&self) -> ErrorCursor {
        ErrorCursor(AtomicU64::new(self.0.load(Relaxed)))
    }
}

/// Number of losses whose error one handle has got.
#[derive(Debug)]
pub struct ErrorCursor(AtomicU64);

impl Cache {
    /// Opens `device` on the calling engine thread. What is read ahead and written
    /// behind takes at most `memory` bytes; losses are counted in `lost`.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub async fn open(device: Arc<dyn BlockDevice>, memory: u64, lost: Losses) -> IoResult<Cache> {
        let io = device.open().await?;
        let limit = memory / 2;
        let behind = Behind {
            limit,
            bytes: Cell::new(0),
            count: Cell::new(0),
            waiting: RefCell::default(),
            kept: RefCell::default(),
            again: Cell::new(0),
            flushing: Cell::new(false),
            lost,
            error: RefCell::new(None),
        };
        Ok(Cache {
            device,
            io,
            order: Rc::default(),
            ahead: RefCell::new(ReadAhead::new(limit)),
            behind,
            ahead_limit: limit,
            asked: Cell::new(0),
        })
    }

    /// Whole blocks around a range, which must be within the device.
    fn blocks(&self, info: &DeviceInfo, offset: u64, len: u64) -> IoResult<Range<u64>> {
        let end = offset.checked_add(len).filter(|&end| end <= info.size);
        let end = end.ok_or(IoError::OutOfRange { offset, len, size: info.size })?;
        let block = u64::from(info.block_size);
        Ok(offset / block * block..end.div_ceil(block) * block)
    }

    /// Reads any bytes of the device.
    pub async fn read(&self, offset: u64, len: u64) -> IoResult<Buf> {
        let info = self.device.info();
        let blocks = self.blocks(&info, offset, len)?;
        if len == 0 {
            return Ok(Buf::copy_of(&[]));
        }
        let advice = self.io.advice().unwrap_or(Advice::LOCAL);
        // Readers that fill the path by themselves would only be held up.
        let most = advice.read_ahead.saturating_sub(self.asked.get()).min(self.ahead_limit);
        let mut ahead = self.ahead.borrow_mut().handle_read(&(offset..offset + len), most);
        let _asked = Asked::new(&self.asked, len);
        loop {
            self.order.settled(blocks.clone()).await;
            let generation = self.io.generation();
            // Whether the device owes something here that it may forget.
            let (owes, forgot) = {
                let kept = self.behind.kept.borrow();
                (kept.touches(&blocks), kept.is_stale(&blocks, generation))
            };
            if forgot {
                self.send_again().await;
                continue;
            }
            if let Some(ahead) = ahead.take() {
                self.ahead.borrow_mut().fill(&*self.io, &info, &self.order, offset, ahead);
            }
            let result = self.read_once(&info, offset, len).await;
            if !owes || self.io.generation() == generation {
                return result;
            }
        }
    }

    async fn read_once(&self, info: &DeviceInfo, offset: u64, len: u64) -> IoResult<Buf> {
        let parts = self.gather(info, offset..offset + len);
        let mut whole: Option<BufMut> = None;
        let mut done = 0;
        for part in parts {
            let bytes = part.get(self, info).await?;
            if bytes.len() as u64 == len {
                return Ok(bytes);
            }
            let whole = whole.get_or_insert_with(|| BufMut::zeroed(len as usize));
            whole[done..done + bytes.len()].copy_from_slice(&bytes);
            done += bytes.len();
        }
        Ok(whole.unwrap_or_else(|| BufMut::zeroed(0)).freeze())
    }

    /// Where the parts of a range come from; reads of what is nowhere begin.
    fn gather(&self, info: &DeviceInfo, bytes: Range<u64>) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut ahead = self.ahead.borrow_mut();
        let mut at = bytes.start;
        let mut missing = at;
        while at < bytes.end {
            let cell_end = (at / read_ahead::CELL + 1) * read_ahead::CELL;
            let end = bytes.end.min(cell_end);
            if let Some((begin, fill)) = ahead.take(at, end) {
                if missing < at {
                    parts.push(self.begin_read(info, missing..at));
                }
                parts.push(Part { bytes: at..end, begin, source: Source::Ahead(fill) });
                missing = end;
            }
            at = end;
        }
        if missing < bytes.end {
            parts.push(self.begin_read(info, missing..bytes.end));
        }
        parts
    }

    fn begin_read(&self, info: &DeviceInfo, bytes: Range<u64>) -> Part {
        let block = u64::from(info.block_size);
        let blocks = bytes.start / block * block..bytes.end.div_ceil(block) * block;
        let begin = blocks.start;
        let under_way = read(&*self.io, info, begin, (blocks.end - begin) as usize);
        Part { bytes, begin, source: Source::Device(Box::pin(under_way)) }
    }

    /// Takes bytes to write anywhere; with `fua` they are durable when this
    /// ends. The place among other changes is that of the call.
    pub fn write(
        self: &Rc<Self>,
        offset: u64,
        bytes: Buf,
        fua: bool,
    ) -> impl Future<Output = IoResult<()>> + use<> {
        let this = Rc::clone(self);
        let turn = this.change(offset, bytes.len() as u64);
        let (wanted, flags) = (bytes.len() as u64, WriteFlags { fua });
        let what = move |cache: Rc<Cache>, turn| async move { cache.put(turn, offset, bytes, flags).await };
        async move { this.do_behind(turn?, wanted, fua, what).await }
    }

    /// Makes bytes read as zeroes; `may_deallocate` gives them back if that is
    /// possible.
    pub fn write_zeroes(
        self: &Rc<Self>,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> impl Future<Output = IoResult<()>> + use<> {
        let this = Rc::clone(self);
        let turn = this.change(offset, len);
        let what =
            move |cache: Rc<Cache>, turn| async move { cache.put_zeroes(turn, offset, len, flags).await };
        async move { this.do_behind(turn?, 0, flags.fua, what).await }
    }

    /// Tells the device that whole blocks within a range are not needed.
    pub fn discard(self: &Rc<Self>, offset: u64, len: u64) -> impl Future<Output = IoResult<()>> + use<> {
        let this = Rc::clone(self);
        let turn = this.change(offset, len);
        let what = move |cache: Rc<Cache>, turn: Turn| async move {
            turn.begin().await;
            let block = u64::from(cache.device.info().block_size);
            let (begin, end) = (offset.div_ceil(block) * block, (offset + len) / block * block);
            if begin >= end {
                return Ok(());
            }
            let generation = cache.io.generation();
            cache.io.discard(begin, end - begin).await?;
            cache.keep(begin..end, Change::Discard, false, generation);
            Ok(())
        };
        async move { this.do_behind(turn?, 0, false, what).await }
    }

    /// A place in the order for a change of a range.
    fn change(&self, offset: u64, len: u64) -> IoResult<Turn> {
        let info = self.device.info();
        if info.read_only {
            return Err(IoError::ReadOnly);
        }
        let blocks = self.blocks(&info, offset, len)?;
        self.ahead.borrow_mut().forget(&blocks);
        Ok(self.order.change(blocks))
    }

    /// Does a change that takes `bytes` of memory: behind the caller's back,
    /// or not, if it is to be durable or has no data to be taken.
    async fn do_behind<F: Future<Output = IoResult<()>> + 'static>(
        self: Rc<Self>,
        turn: Turn,
        bytes: u64,
        wait: bool,
        what: impl FnOnce(Rc<Cache>, Turn) -> F + 'static,
    ) -> IoResult<()> {
        let admitted = self.behind.admit(bytes, self.io.advice());
        self.make_room();
        if let Some(admitted) = admitted {
            // The task that freed the memory has reserved it for this change.
            let _ = admitted.await;
        }
        let change = what(Rc::clone(&self), turn);
        if wait || bytes == 0 {
            let result = change.await;
            self.behind.done(bytes, self.io.advice());
            self.make_room();
            return result;
        }
        spawn(async move {
            if let Err(e) = change.await {
                self.lose(e);
            }
            self.behind.done(bytes, self.io.advice());
            self.make_room();
        })
        .detach();
        Ok(())
    }

    /// An acknowledged write is lost: each handle gets the error.
    fn lose(&self, e: IoError) {
        tracing::error!("{}: what was written is lost: {e}", self.device.info().name);
        self.behind.lost.0.fetch_add(1, Relaxed);
        *self.behind.error.borrow_mut() = Some(e);
    }

    /// Writes in pieces that the device takes; what of the first and the last
    /// block is not written is read first.
    async fn put(&self, turn: Turn, offset: u64, bytes: Buf, flags: WriteFlags) -> IoResult<()> {
        turn.begin().await;
        let info = self.device.info();
        let len = bytes.len() as u64;
        let blocks = self.blocks(&info, offset, len)?;
        let whole = if blocks == (offset..offset + len) {
            bytes
        } else {
            self.fill_edges(&info, blocks.clone(), offset, &bytes).await?
        };
        let generation = self.io.generation();
        self.put_blocks(&info, blocks.start, &whole, flags).await?;
        self.keep(blocks, Change::Data(whole), flags.fua, generation);
        Ok(())
    }

    /// Writes whole blocks.
    async fn put_blocks(
        &self,
        info: &DeviceInfo,
        offset: u64,
        whole: &Buf,
        flags: WriteFlags,
    ) -> IoResult<()> {
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < whole.len() {
            let size = (whole.len() - done).min(info.max_io as usize);
            let piece = whole.slice(done..done + size);
            pieces.push(self.io.write(offset + done as u64, piece, flags));
            done += size;
        }
        // All of them, also when one fails: what comes after this change must
        // not meet what is left of it.
        join_all(pieces).await.into_iter().collect()
    }

    /// The device has a change, whose turn it still is: it is kept until it is
    /// durable, where the device may forget it until then.
    fn keep(&self, blocks: Range<u64>, change: Change, durable: bool, generation: u64) {
        if !self.io.may_forget() || !self.device.info().volatile_cache {
            return;
        }
        let mut kept = self.behind.kept.borrow_mut();
        if durable { kept.forget(&blocks) } else { kept.note(blocks, change, generation) }
    }

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
        // The device may have forgotten what is not sent again yet.
        self.behind.kept.borrow().overlay(blocks.start, &mut whole);
        whole[skip..end].copy_from_slice(bytes);
        Ok(whole.freeze())
    }

    async fn put_zeroes(&self, turn: Turn, offset: u64, len: u64, flags: ZeroFlags) -> IoResult<()> {
        turn.begin().await;
        let info = self.device.info();
        let block = u64::from(info.block_size);
        let (begin, end) = (offset.div_ceil(block) * block, (offset + len) / block * block);
        if begin >= end {
            // Within a block, or two.
            let zeroes = BufMut::zeroed(len as usize).freeze();
            return self.put(turn, offset, zeroes, WriteFlags { fua: flags.fua }).await;
        }
        for (at, size) in [(offset, begin - offset), (end, offset + len - end)] {
            if size > 0 {
                let zeroes = BufMut::zeroed(size as usize).freeze();
                let blocks = self.blocks(&info, at, size)?;
                let edge = self.fill_edges(&info, blocks.clone(), at, &zeroes).await?;
                let generation = self.io.generation();
                self.io.write(blocks.start, edge.clone(), WriteFlags { fua: flags.fua }).await?;
                self.keep(blocks, Change::Data(edge), flags.fua, generation);
            }
        }
        let generation = self.io.generation();
        self.io.write_zeroes(begin, end - begin, flags).await?;
        self.keep(begin..end, Change::Zeroes(flags), flags.fua, generation);
        Ok(())
    }

    /// Waits until all that was acknowledged before is with the device.
    pub async fn drain(&self, cursor: &ErrorCursor) -> IoResult<()> {
        self.order.settled(ALL).await;
        self.new_loss(cursor)
    }

    /// The error of the losses that this handle has not seen yet.
    fn new_loss(&self, cursor: &ErrorCursor) -> IoResult<()> {
        let lost = self.behind.lost.0.load(Relaxed);
        if cursor.0.swap(lost, Relaxed) == lost {
            return Ok(());
        }
        Err(self.behind.error.borrow().clone().unwrap_or(IoError::Aborted))
    }

    /// Waits until all that was acknowledged before is durable.
    pub async fn flush(&self, cursor: &ErrorCursor) -> IoResult<()> {
        self.order.settled(ALL).await;
        let owes = self.device.info().volatile_cache || self.behind.kept.borrow().bytes() > 0;
        let result = if owes { self.make_durable().await } else { Ok(()) };
        // What is sent again may be lost as well.
        self.new_loss(cursor)?;
        result
    }

    /// Flushes the device: when it has forgotten what it had, after that was
    /// sent again.
    async fn make_durable(&self) -> IoResult<()> {
        loop {
            let generation = self.send_again().await;
            let mark = self.behind.kept.borrow().mark();
            if let Err(e) = self.io.flush().await {
                self.behind.kept.borrow_mut().doubt(mark);
                return Err(e);
            }
            if self.io.generation() == generation {
                self.behind.kept.borrow_mut().flushed(mark);
                self.behind.let_in(self.io.advice());
                return Ok(());
            }
        }
    }

    /// Sends again what the device may have forgotten: of which of its
    /// generations it has everything now.
    async fn send_again(&self) -> u64 {
        loop {
            let generation = self.io.generation();
            let most = self.io.advice().unwrap_or(Advice::LOCAL).write;
            let forgotten = self.behind.kept.borrow().stale(&ALL, generation, most, AGAIN_MAX);
            if forgotten.is_empty() {
                return generation;
            }
            let changes: Vec<_> = forgotten
                .into_iter()
                .map(|(range, _)| {
                    // What was read ahead may be from before.
                    self.ahead.borrow_mut().forget(&range);
                    self.again(self.order.change(range.clone()), range)
                })
                .collect();
            self.behind.again.set(self.behind.again.get() + 1);
            // Those that this waits for may wait for room.
            self.behind.let_in(self.io.advice());
            let failed = join_all(changes).await.into_iter().flatten().next();
            self.behind.again.set(self.behind.again.get() - 1);
            if let Some(e) = failed {
                self.lose(e);
            }
        }
    }

    /// Sends again what is kept of a range when its turn has come, and was not
    /// sent again meanwhile. Why some of it is lost, if it is.
    async fn again(&self, turn: Turn, range: Range<u64>) -> Option<IoError> {
        turn.begin().await;
        let (info, generation) = (self.device.info(), self.io.generation());
        let forgotten = self.behind.kept.borrow().stale(&range, generation, u64::MAX, usize::MAX);
        let mut failed = None;
        for (range, change) in forgotten {
            let len = range.end - range.start;
            let result = match &change {
                Change::Data(buf) => self.put_blocks(&info, range.start, buf, WriteFlags::default()).await,
                Change::Zeroes(flags) => self.io.write_zeroes(range.start, len, *flags).await,
                Change::Discard => self.io.discard(range.start, len).await,
            };
            match result {
                Ok(()) => self.behind.kept.borrow_mut().note(range, change, generation),
                Err(e) => {
                    self.behind.kept.borrow_mut().forget(&range);
                    failed.get_or_insert(e);
                }
            }
        }
        failed
    }

    /// Flushes what is kept behind everybody's back, if writes need the room.
    fn make_room(self: &Rc<Self>) {
        if !self.behind.needs_flush() || self.behind.flushing.replace(true) {
            return;
        }
        let this = Rc::clone(self);
        spawn(async move {
            while this.behind.needs_flush() {
                if let Err(e) = this.make_durable().await {
                    // No handle asked for this flush, so each handle gets its error.
                    let mark = this.behind.kept.borrow().mark();
                    this.behind.kept.borrow_mut().flushed(mark);
                    this.lose(e);
                    this.behind.let_in(this.io.advice());
                }
            }
            this.behind.flushing.set(false);
        })
        .detach();
    }
}

impl Behind {
    fn has_room(&self, bytes: u64, advice: Option<Advice>) -> bool {
        let most = advice.unwrap_or(Advice::LOCAL).write.min(self.limit);
        let (count, kept) = (self.count.get(), self.kept.borrow().bytes());
        if count == 0 {
            // A change larger than the limit is let in alone; and a resend with
            // a later turn waits for this one.
            return kept == 0 || self.again.get() > 0 || kept.saturating_add(bytes) <= self.limit;
        }
        let taken = self.bytes.get().saturating_add(bytes);
        count < BEHIND_MAX && taken <= most && taken.saturating_add(kept) <= self.limit
    }

    /// Whether what is kept has to go before more can come.
    fn needs_flush(&self) -> bool {
        let kept = self.kept.borrow().bytes();
        let alone = self.count.get() == 0;
        let full = |bytes: u64| kept > 0 && kept.saturating_add(bytes) > self.limit;
        kept > self.limit / 2 || alone && self.waiting.borrow().front().is_some_and(|(bytes, _)| full(*bytes))
    }

    /// Reserves memory for a change, first come first served; if it is full,
    /// returns what to wait for.
    fn admit(&self, bytes: u64, advice: Option<Advice>) -> Option<oneshot::Receiver<()>> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() && self.has_room(bytes, advice) {
            self.take(bytes);
            return None;
        }
        let (tell, told) = oneshot::channel();
        waiting.push_back((bytes, tell));
        Some(told)
    }

    fn take(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
        self.count.set(self.count.get() + 1);
    }

    /// A change is done: its room is another's.
    fn done(&self, bytes: u64, advice: Option<Advice>) {
        self.bytes.set(self.bytes.get() - bytes);
        self.count.set(self.count.get() - 1);
        self.let_in(advice);
    }

    /// Lets in those for whom there is room.
    fn let_in(&self, advice: Option<Advice>) {
        let mut waiting = self.waiting.borrow_mut();
        while waiting.front().is_some_and(|(bytes, _)| self.has_room(*bytes, advice)) {
            let Some((bytes, tell)) = waiting.pop_front() else { return };
            self.take(bytes);
            if tell.send(()).is_err() {
                self.bytes.set(self.bytes.get() - bytes);
                self.count.set(self.count.get() - 1);
            }
        }
    }
}

/// A part of a read.
struct Part {
    bytes: Range<u64>,
    /// Where its source begins.
    begin: u64,
    source: Source,
}

enum Source {
    Ahead(read_ahead::Fill),
    Device(std::pin::Pin<Box<dyn Future<Output = IoResult<Buf>>>>),
}

impl Part {
    async fn get(self, cache: &Cache, info: &DeviceInfo) -> IoResult<Buf> {
        let range = (self.bytes.start - self.begin) as usize..(self.bytes.end - self.begin) as usize;
        let buf = match self.source {
            Source::Device(read) => read.await?,
            Source::Ahead(fill) => match fill.await {
                Ok(buf) => buf,
                // What was read for another is tried again for this one.
                Err(_) => {
                    cache.ahead.borrow_mut().forget(&self.bytes);
                    let again = cache.begin_read(info, self.bytes.clone());
                    return Box::pin(again.get(cache, info)).await;
                }
            },
        };
        Ok(buf.slice(range))
    }
}
