//! A device for many readers and writers at once, byte by byte: what stands
//! between a kernel's file system and a path.
//!
//! Invariants:
//! - a write is acknowledged when its bytes are taken; whatever comes later
//!   sees them, since it waits for the device to have them;
//! - bytes that were taken and are not with the device are at most what the
//!   device advises (and the memory given allows), and one write;
//! - a flush ends when all that was acknowledged before it is durable, or with
//!   the error of what is not: each handle is told once of each loss.

use crate::ahead::{Ahead, most_ahead, read};
use crate::order::{Order, Turn};
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

/// A device open on one engine thread.
pub(crate) struct Disk {
    device: Arc<dyn BlockDevice>,
    io: Rc<dyn BlockIo>,
    order: Rc<Order>,
    ahead: RefCell<Ahead>,
    behind: Behind,
    /// Bytes that may be read ahead.
    ahead_limit: u64,
}

/// What is written behind.
struct Behind {
    limit: u64,
    bytes: Cell<u64>,
    count: Cell<usize>,
    /// Writes that wait to be taken, in their order.
    waiting: RefCell<VecDeque<(u64, oneshot::Sender<()>)>>,
    /// Losses so far, and the last of them.
    lost: Losses,
    error: RefCell<Option<IoError>>,
}

/// Counts writes that were acknowledged and failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses(Arc<AtomicU64>);

impl Losses {
    /// A handle from now on: it is told of losses that come.
    pub(crate) fn handle(&self) -> Told {
        Told(AtomicU64::new(self.0.load(Relaxed)))
    }
}

/// Losses that one handle was told of.
#[derive(Debug)]
pub struct Told(AtomicU64);

impl Disk {
    /// Opens `device` on the calling thread, with so much memory.
    pub(crate) async fn open(device: Arc<dyn BlockDevice>, memory: u64, lost: Losses) -> IoResult<Disk> {
        let io = device.open().await?;
        let limit = memory / 2;
        let behind = Behind {
            limit,
            bytes: Cell::new(0),
            count: Cell::new(0),
            waiting: RefCell::default(),
            lost,
            error: RefCell::new(None),
        };
        Ok(Disk {
            device,
            io,
            order: Rc::default(),
            ahead: RefCell::new(Ahead::new(limit)),
            behind,
            ahead_limit: limit,
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
    pub(crate) async fn read(&self, offset: u64, len: u64) -> IoResult<Buf> {
        let info = self.device.info();
        let blocks = self.blocks(&info, offset, len)?;
        if len == 0 {
            return Ok(Buf::copy_of(&[]));
        }
        let ahead = {
            let most = most_ahead(&*self.io, self.ahead_limit);
            self.ahead.borrow_mut().handle_read(&(offset..offset + len), most)
        };
        self.order.settled(blocks.clone()).await;
        if let Some(ahead) = ahead {
            self.ahead.borrow_mut().fill(&*self.io, &info, &self.order, offset, ahead);
        }
        let parts = self.gather(&info, offset..offset + len);
        let mut whole: Option<BufMut> = None;
        let mut done = 0;
        for part in parts {
            let bytes = part.get(self, &info).await?;
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
            let cell_end = (at / crate::ahead::CELL + 1) * crate::ahead::CELL;
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
    pub(crate) fn write(
        self: &Rc<Self>,
        offset: u64,
        bytes: Buf,
        fua: bool,
    ) -> impl Future<Output = IoResult<()>> + use<> {
        let this = Rc::clone(self);
        let turn = this.change(offset, bytes.len() as u64);
        let (wanted, flags) = (bytes.len() as u64, WriteFlags { fua });
        let what = move |disk: Rc<Disk>, turn| async move { disk.put(turn, offset, bytes, flags).await };
        async move { this.do_behind(turn?, wanted, fua, what).await }
    }

    /// Makes bytes read as zeroes; `may_deallocate` gives them back if that is
    /// possible.
    pub(crate) fn write_zeroes(
        self: &Rc<Self>,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> impl Future<Output = IoResult<()>> + use<> {
        let this = Rc::clone(self);
        let turn = this.change(offset, len);
        let what = move |disk: Rc<Disk>, turn| async move { disk.put_zeroes(turn, offset, len, flags).await };
        async move { this.do_behind(turn?, 0, flags.fua, what).await }
    }

    /// Tells the device that whole blocks within a range are not needed.
    pub(crate) fn discard(
        self: &Rc<Self>,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = IoResult<()>> + use<> {
        let this = Rc::clone(self);
        let turn = this.change(offset, len);
        let what = move |disk: Rc<Disk>, turn: Turn| async move {
            turn.begin().await;
            let block = u64::from(disk.device.info().block_size);
            let (begin, end) = (offset.div_ceil(block) * block, (offset + len) / block * block);
            if begin < end { disk.io.discard(begin, end - begin).await } else { Ok(()) }
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
        what: impl FnOnce(Rc<Disk>, Turn) -> F + 'static,
    ) -> IoResult<()> {
        self.behind.admit(bytes, self.io.advice()).await;
        let change = what(Rc::clone(&self), turn);
        if wait || bytes == 0 {
            let result = change.await;
            self.behind.done(bytes, self.io.advice());
            return result;
        }
        spawn(async move {
            if let Err(e) = change.await {
                tracing::error!("{}: what was written is lost: {e}", self.device.info().name);
                self.behind.lost.0.fetch_add(1, Relaxed);
                *self.behind.error.borrow_mut() = Some(e);
            }
            self.behind.done(bytes, self.io.advice());
        })
        .detach();
        Ok(())
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
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < whole.len() {
            let size = (whole.len() - done).min(info.max_io as usize);
            let piece = whole.slice(done..done + size);
            pieces.push(self.io.write(blocks.start + done as u64, piece, flags));
            done += size;
        }
        // All of them, also when one fails: what comes after this change must
        // not meet what is left of it.
        join_all(pieces).await.into_iter().collect()
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
                self.io.write(blocks.start, edge, WriteFlags { fua: flags.fua }).await?;
            }
        }
        self.io.write_zeroes(begin, end - begin, flags).await
    }

    /// Waits until all that was acknowledged before is with the device.
    pub(crate) async fn drain(&self, told: &Told) -> IoResult<()> {
        self.order.settled(0..u64::MAX).await;
        let lost = self.behind.lost.0.load(Relaxed);
        if told.0.swap(lost, Relaxed) == lost {
            return Ok(());
        }
        Err(self.behind.error.borrow().clone().unwrap_or(IoError::Aborted))
    }

    /// Waits until all that was acknowledged before is durable.
    pub(crate) async fn flush(&self, told: &Told) -> IoResult<()> {
        self.drain(told).await?;
        if self.device.info().volatile_cache {
            self.io.flush().await?;
        }
        Ok(())
    }
}

impl Behind {
    fn has_room(&self, bytes: u64, advice: Option<Advice>) -> bool {
        let most = advice.unwrap_or(Advice::LOCAL).write.min(self.limit);
        let count = self.count.get();
        count == 0 || count < BEHIND_MAX && self.bytes.get().saturating_add(bytes) <= most
    }

    /// Waits for room, first come first served.
    async fn admit(&self, bytes: u64, advice: Option<Advice>) {
        let waits = {
            let mut waiting = self.waiting.borrow_mut();
            if waiting.is_empty() && self.has_room(bytes, advice) {
                None
            } else {
                let (tell, told) = oneshot::channel();
                waiting.push_back((bytes, tell));
                Some(told)
            }
        };
        match waits {
            None => self.take(bytes),
            // Whoever made room has taken it for this one.
            Some(told) => drop(told.await),
        }
    }

    fn take(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
        self.count.set(self.count.get() + 1);
    }

    /// A change is done: its room is another's.
    fn done(&self, bytes: u64, advice: Option<Advice>) {
        self.bytes.set(self.bytes.get() - bytes);
        self.count.set(self.count.get() - 1);
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
    Ahead(crate::ahead::Fill),
    Device(std::pin::Pin<Box<dyn Future<Output = IoResult<Buf>>>>),
}

impl Part {
    async fn get(self, disk: &Disk, info: &DeviceInfo) -> IoResult<Buf> {
        let range = (self.bytes.start - self.begin) as usize..(self.bytes.end - self.begin) as usize;
        let buf = match self.source {
            Source::Device(read) => read.await?,
            Source::Ahead(fill) => match fill.await {
                Ok(buf) => buf,
                // What was read for another is tried again for this one.
                Err(_) => {
                    disk.ahead.borrow_mut().forget(&self.bytes);
                    let again = disk.begin_read(info, self.bytes.clone());
                    return Box::pin(again.get(disk, info)).await;
                }
            },
        };
        Ok(buf.slice(range))
    }
}
