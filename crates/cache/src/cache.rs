//! A device for many readers and writers at once, by byte: the layer between a kernel's file system
//! and a path.
//!
//! Invariants:
//! - a write is acknowledged when its bytes are copied; a later operation on them waits until the
//!   device has them;
//! - copied bytes that the device does not have yet are at most what the device advises (and the
//!   memory given allows), plus one write;
//! - unflushed writes of a device that may forget are kept, and resent when its generation has
//!   changed or a flush has failed: before a flush ends, and before a read of them. When they take
//!   a quarter of the memory they are flushed;
//! - a flush ends when all writes acknowledged before it are durable, or with the error of one that
//!   is not: each handle gets the error of each loss once.

use crate::blocks::{around, read};
use crate::losses::{ErrorCursor, LossLog, Losses};
use crate::read_ahead::{CELL, Fill, ReadAhead};
use crate::write_behind::{WriteBehind, WriteUser};
use longhaul_block::{Advice, BlockDevice, BlockIo, DeviceInfo, IoError, IoResult, ZeroFlags};
use longhaul_engine::{Buf, BufMut};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

/// A device open on one engine thread, with read-ahead and write-behind.
pub struct Cache {
    io: Rc<dyn BlockIo>,
    behind: Rc<WriteBehind>,
    parts: Rc<Parts>,
    /// Bytes that may be read ahead.
    ahead_limit: u64,
    /// Bytes of reads that are waited for.
    asked: Cell<u64>,
}

/// What reads and writes share.
struct Parts {
    device: Arc<dyn BlockDevice>,
    ahead: RefCell<ReadAhead>,
    losses: LossLog,
}

impl WriteUser for Parts {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn handle_change(&self, blocks: &Range<u64>) {
        self.ahead.borrow_mut().forget(blocks);
    }

    /// Each handle gets the error.
    fn handle_loss(&self, error: IoError) {
        tracing::error!("{}: acknowledged writes are lost: {error}", self.device.info().name);
        self.losses.add(error);
    }
}

/// A read that is waited for, until it is dropped.
struct AwaitedRead<'a>(&'a Cell<u64>, u64);

impl<'a> AwaitedRead<'a> {
    fn new(all: &'a Cell<u64>, len: u64) -> AwaitedRead<'a> {
        all.set(all.get() + len);
        AwaitedRead(all, len)
    }
}

impl Drop for AwaitedRead<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - self.1);
    }
}

impl Cache {
    /// Opens `device` on the calling engine thread. Read-ahead and write-behind take at most
    /// `memory` bytes; losses are counted in `losses`.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub async fn open(device: Arc<dyn BlockDevice>, memory: u64, losses: Losses) -> IoResult<Cache> {
        let io = device.open().await?;
        let limit = memory / 2;
        let ahead = RefCell::new(ReadAhead::new(limit));
        let parts = Rc::new(Parts { device, ahead, losses: LossLog::new(losses) });
        let behind = WriteBehind::new(Rc::clone(&parts) as Rc<dyn WriteUser>, Rc::clone(&io), limit);
        Ok(Cache { io, behind, parts, ahead_limit: limit, asked: Cell::new(0) })
    }

    fn info(&self) -> DeviceInfo {
        self.parts.device.info()
    }

    /// Reads any bytes of the device.
    ///
    /// # Errors
    /// The bytes are not within the device, or what the device says.
    pub async fn read(&self, offset: u64, len: u64) -> IoResult<Buf> {
        let info = self.info();
        let blocks = around(&info, offset, len)?;
        if len == 0 {
            return Ok(Buf::copy_of(&[]));
        }
        let advice = self.io.advice().unwrap_or(Advice::LOCAL);
        // Readers that fill the path by themselves would only be held up.
        let most = advice.read_ahead.saturating_sub(self.asked.get()).min(self.ahead_limit);
        let mut ahead = self.parts.ahead.borrow_mut().handle_read(&(offset..offset + len), most);
        let _asked = AwaitedRead::new(&self.asked, len);
        let read = async || {
            if let Some(ahead) = ahead.take() {
                self.parts.ahead.borrow_mut().fill(&*self.io, &info, &self.behind.order, offset, ahead);
            }
            self.read_once(&info, offset, len).await
        };
        self.behind.read_settled(blocks, read).await
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

    /// The sources of the parts of a range; begins reads of the parts that have none.
    fn gather(&self, info: &DeviceInfo, bytes: Range<u64>) -> Vec<ReadPart> {
        let mut parts: Vec<ReadPart> = Vec::new();
        let mut ahead = self.parts.ahead.borrow_mut();
        let mut at = bytes.start;
        let mut missing = at;
        while at < bytes.end {
            let cell_end = (at / CELL + 1) * CELL;
            let end = bytes.end.min(cell_end);
            if let Some((begin, fill)) = ahead.take(at, end) {
                if missing < at {
                    parts.push(self.begin_read(info, missing..at));
                }
                parts.push(ReadPart { bytes: at..end, begin, source: Source::Ahead(fill) });
                missing = end;
            }
            at = end;
        }
        if missing < bytes.end {
            parts.push(self.begin_read(info, missing..bytes.end));
        }
        parts
    }

    fn begin_read(&self, info: &DeviceInfo, bytes: Range<u64>) -> ReadPart {
        let block = u64::from(info.block_size);
        let blocks = bytes.start / block * block..bytes.end.div_ceil(block) * block;
        let begin = blocks.start;
        let under_way = read(&*self.io, info, begin, (blocks.end - begin) as usize);
        ReadPart { bytes, begin, source: Source::Device(Box::pin(under_way)) }
    }

    /// Takes bytes to write anywhere; with `fua` they are durable when this
    /// ends. The place among other changes is that of the call.
    pub fn write(&self, offset: u64, bytes: Buf, fua: bool) -> impl Future<Output = IoResult<()>> + use<> {
        self.behind.write(offset, bytes, fua)
    }

    /// Makes bytes read as zeroes; `may_deallocate` gives them back if that is
    /// possible.
    pub fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> impl Future<Output = IoResult<()>> + use<> {
        self.behind.write_zeroes(offset, len, flags)
    }

    /// Discards the whole blocks within a range.
    pub fn discard(&self, offset: u64, len: u64) -> impl Future<Output = IoResult<()>> + use<> {
        self.behind.discard(offset, len)
    }

    /// Waits until all that was acknowledged before is with the device.
    ///
    /// # Errors
    /// Writes are lost, and the handle has not had the error from [`flush`](Self::flush) yet, which still
    /// fails with it.
    pub async fn drain(&self, cursor: &ErrorCursor) -> IoResult<()> {
        self.behind.drained().await;
        self.parts.losses.unseen_loss(cursor)
    }

    /// Waits until all writes acknowledged before are durable.
    ///
    /// # Errors
    /// Writes are lost, and the handle has not had the error yet; or the flush failed: the next one resends
    /// the writes that it left in doubt, or where the device keeps them by itself each handle gets the error.
    pub async fn flush(&self, cursor: &ErrorCursor) -> IoResult<()> {
        self.behind.drained().await;
        let owes = self.info().volatile_cache || self.behind.kept.borrow().bytes() > 0;
        let result = if owes { self.behind.make_durable().await } else { Ok(()) };
        if let Err(e) = &result {
            self.behind.handle_failed_sync(e);
        }
        // Resent writes may be lost as well.
        self.parts.losses.new_loss(cursor)?;
        result
    }
}

/// A part of a read.
struct ReadPart {
    bytes: Range<u64>,
    /// Where its source begins.
    begin: u64,
    source: Source,
}

enum Source {
    Ahead(Fill),
    Device(Pin<Box<dyn Future<Output = IoResult<Buf>>>>),
}

impl ReadPart {
    async fn get(self, cache: &Cache, info: &DeviceInfo) -> IoResult<Buf> {
        let range = (self.bytes.start - self.begin) as usize..(self.bytes.end - self.begin) as usize;
        let buf = match self.source {
            Source::Device(read) => read.await?,
            Source::Ahead(fill) => match fill.await {
                Ok(buf) => buf,
                // A read ahead for another reader has failed: it is retried for this one.
                Err(_) => {
                    cache.parts.ahead.borrow_mut().forget(&self.bytes);
                    let again = cache.begin_read(info, self.bytes.clone());
                    return Box::pin(again.get(cache, info)).await;
                }
            },
        };
        Ok(buf.slice(range))
    }
}

#[cfg(test)]
mod tests;
