//! The writing side of a stream.
//!
//! Invariants:
//! - `tail` is next to nothing that is under way: a block is written by one
//!   operation at a time, so none can overtake another;
//! - the first error is kept until it is told, and told once;
//! - bytes under way are at most what the device advises, and one chunk.

use crate::{Advice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, WriteFlags};
use longhaul_engine::{BUF_MAX, BufMut};
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes that are not with the device yet.
struct Tail {
    /// First byte; within a block if the stream began there.
    offset: u64,
    /// From the beginning of its block on.
    buf: BufMut,
    /// Bytes of `buf` before the stream's own, and its end.
    skip: usize,
    end: usize,
}

struct UnderWay {
    offset: u64,
    len: u64,
    write: IoFuture<()>,
}

/// Coalesces and writes behind.
pub(super) struct WriteSide {
    tail: Option<Tail>,
    under_way: VecDeque<UnderWay>,
    bytes: u64,
    error: Option<IoError>,
    /// Something was written since the last flush.
    dirty: bool,
}

impl WriteSide {
    pub(super) fn new() -> WriteSide {
        WriteSide { tail: None, under_way: VecDeque::new(), bytes: 0, error: None, dirty: false }
    }

    /// Whether something is not with the device yet.
    pub(super) fn is_pending(&self) -> bool {
        self.tail.is_some() || !self.under_way.is_empty()
    }

    /// The error that nobody was told of.
    pub(super) fn take_error(&mut self) -> Option<IoError> {
        self.error.take()
    }

    /// Takes bytes at `offset`; how many. Waits while as much is under way as
    /// the device advises. An error is that of earlier bytes: of these, none
    /// were taken.
    pub(super) async fn write(
        &mut self,
        io: &Rc<dyn BlockIo>,
        info: &DeviceInfo,
        offset: u64,
        bytes: &[u8],
    ) -> IoResult<usize> {
        if let Some(e) = self.error.take() {
            return Err(e);
        }
        if bytes.is_empty() {
            return Ok(0);
        }
        if offset >= info.size {
            return Err(IoError::OutOfRange { offset, len: bytes.len() as u64, size: info.size });
        }
        if self.tail.as_ref().is_some_and(|tail| tail.next() != offset) {
            self.push(io, info).await;
        }
        let block = info.block_size as usize;
        let tail = match &mut self.tail {
            Some(tail) => tail,
            None => {
                let advice = io.advice().unwrap_or(Advice::LOCAL);
                let most = (info.max_io as usize).min(BUF_MAX);
                let size = (advice.io_size as usize).clamp(block, most) / block * block;
                let skip = (offset % u64::from(info.block_size)) as usize;
                let size = size.min((info.size - (offset - skip as u64)) as usize);
                self.tail.insert(Tail { offset, buf: BufMut::zeroed(size), skip, end: skip })
            }
        };
        let n = bytes.len().min(tail.buf.len() - tail.end);
        tail.buf[tail.end..tail.end + n].copy_from_slice(&bytes[..n]);
        tail.end += n;
        self.dirty = true;
        if tail.end == tail.buf.len() {
            self.push(io, info).await;
        }
        Ok(n)
    }

    /// Hands the tail to the device: what of its blocks was not written is
    /// read first.
    async fn push(&mut self, io: &Rc<dyn BlockIo>, info: &DeviceInfo) {
        let Some(mut tail) = self.tail.take() else { return };
        let block = info.block_size as usize;
        let begin = tail.offset - tail.skip as u64;
        let len = tail.end.div_ceil(block) * block;
        // Its first block may be the last one of what went before.
        if self.overlaps(begin, len as u64) {
            self.settle().await;
        }
        tail.buf.truncate(len);
        if let Err(e) = fill_edges(io, info, &mut tail, begin).await {
            self.error.get_or_insert(e);
            return;
        }
        let write = io.write(begin, tail.buf.freeze(), WriteFlags::default());
        self.bytes += len as u64;
        self.under_way.push_back(UnderWay { offset: begin, len: len as u64, write });
        let most = io.advice().unwrap_or(Advice::LOCAL).write;
        while self.bytes > most {
            self.settle_first().await;
        }
    }

    fn overlaps(&self, offset: u64, len: u64) -> bool {
        self.under_way.iter().any(|w| w.offset < offset + len && offset < w.offset + w.len)
    }

    /// Waits for the oldest write.
    async fn settle_first(&mut self) {
        let Some(first) = self.under_way.front_mut() else { return };
        let result = (&mut first.write).await;
        self.bytes -= first.len;
        self.under_way.pop_front();
        if let Err(e) = result {
            self.error.get_or_insert(e);
        }
    }

    async fn settle(&mut self) {
        while !self.under_way.is_empty() {
            self.settle_first().await;
        }
    }

    /// Waits until the device has everything: reads see it then.
    pub(super) async fn drain(&mut self, io: &Rc<dyn BlockIo>, info: &DeviceInfo) -> IoResult<()> {
        self.push(io, info).await;
        self.settle().await;
        self.error.take().map_or(Ok(()), Err)
    }

    /// Waits until everything is durable.
    pub(super) async fn flush(&mut self, io: &Rc<dyn BlockIo>, info: &DeviceInfo) -> IoResult<()> {
        self.drain(io, info).await?;
        if self.dirty {
            io.flush().await?;
            self.dirty = false;
        }
        Ok(())
    }
}

impl Tail {
    /// The byte behind it.
    fn next(&self) -> u64 {
        self.offset + (self.end - self.skip) as u64
    }
}

/// Reads what of the first and last block the stream did not write.
async fn fill_edges(io: &Rc<dyn BlockIo>, info: &DeviceInfo, tail: &mut Tail, begin: u64) -> IoResult<()> {
    let block = info.block_size as usize;
    let last = tail.buf.len() - block;
    let mut read = None;
    if tail.skip > 0 {
        let old = io.read(begin, BufMut::zeroed(block)).await?;
        tail.buf[..tail.skip].copy_from_slice(&old[..tail.skip]);
        read = Some((0, old));
    }
    if tail.end < tail.buf.len() {
        let old = match read {
            Some((at, old)) if at == last => old,
            _ => io.read(begin + last as u64, BufMut::zeroed(block)).await?,
        };
        let from = tail.end - last;
        tail.buf[tail.end..].copy_from_slice(&old[from..]);
    }
    Ok(())
}
