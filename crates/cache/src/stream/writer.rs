//! The writing side of a stream.
//!
//! Invariants:
//! - `tail` is next to nothing that is under way: a block is written by one
//!   operation at a time, so none can overtake another;
//! - the first error is kept until a call returns it, and returned once;
//! - bytes under way are at most what the device advises, and one chunk;
//! - what a device that may forget has and was not flushed is kept, and sent
//!   again when its generation has changed. It is at most [`KEPT`], and a chunk:
//!   it is flushed on the way.

use crate::{Change, Unflushed};
use longhaul_block::{Advice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, WriteFlags};
use longhaul_engine::{BUF_MAX, Buf, BufMut};
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes that are kept until they are durable; when it is half of them they are
/// flushed, while the other half goes on.
const KEPT: u64 = 64 << 20;

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
    bytes: Buf,
    generation: u64,
}

/// Coalesces and writes behind.
pub(super) struct WriteSide {
    tail: Option<Tail>,
    under_way: VecDeque<UnderWay>,
    bytes: u64,
    error: Option<IoError>,
    /// Something was written since the last flush.
    dirty: bool,
    /// What the device has, and may forget.
    kept: Unflushed,
    /// A flush on the way, of what was kept until a mark, and the generation
    /// that it is of.
    flushing: Option<(IoFuture<()>, u64, u64)>,
}

impl WriteSide {
    pub(super) fn new() -> WriteSide {
        WriteSide {
            tail: None,
            under_way: VecDeque::new(),
            bytes: 0,
            error: None,
            dirty: false,
            kept: Unflushed::default(),
            flushing: None,
        }
    }

    /// Whether something is not with the device yet.
    pub(super) fn is_pending(&self) -> bool {
        self.tail.is_some() || !self.under_way.is_empty()
    }

    /// The error that no call has returned yet.
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
        if let Err(e) = fill_edges(io, info, &mut tail, begin, &self.kept).await {
            self.error.get_or_insert(e);
            return;
        }
        let (bytes, generation) = (tail.buf.freeze(), io.generation());
        let write = io.write(begin, bytes.clone(), WriteFlags::default());
        self.bytes += len as u64;
        self.under_way.push_back(UnderWay { offset: begin, len: len as u64, write, bytes, generation });
        let most = io.advice().unwrap_or(Advice::LOCAL).write;
        while self.bytes > most {
            self.settle_first().await;
        }
        if let Err(e) = self.bound(io, info).await {
            self.error.get_or_insert(e);
        }
    }

    /// Sees to it that no more is kept than may be.
    async fn bound(&mut self, io: &Rc<dyn BlockIo>, info: &DeviceInfo) -> IoResult<()> {
        if !info.volatile_cache || !io.may_forget() {
            self.kept.flushed(u64::MAX);
            return Ok(());
        }
        if self.kept.bytes() > KEPT / 2 && self.flushing.is_none() {
            if self.has_forgotten(io) {
                return self.make_durable(io, info).await;
            }
            self.flushing = Some((io.flush(), self.kept.mark(), io.generation()));
        }
        if self.kept.bytes() <= KEPT {
            return Ok(());
        }
        let Some((flush, mark, generation)) = self.flushing.take() else { return Ok(()) };
        let flushed = flush.await;
        if flushed.is_ok() && io.generation() != generation {
            return self.make_durable(io, info).await;
        }
        // Or told to be lost.
        self.kept.flushed(mark);
        flushed
    }

    /// Whether the device may have forgotten something.
    pub(super) fn has_forgotten(&self, io: &Rc<dyn BlockIo>) -> bool {
        self.kept.is_stale(&(0..u64::MAX), io.generation())
    }

    /// Whether the device has something that it may forget.
    pub(super) fn owes(&self) -> bool {
        self.kept.bytes() > 0
    }

    /// Sends again what the device may have forgotten: of which of its
    /// generations it has everything now.
    pub(super) async fn send_again(&mut self, io: &Rc<dyn BlockIo>, info: &DeviceInfo) -> u64 {
        // What is on its way may be on top of it.
        self.settle().await;
        loop {
            let generation = io.generation();
            let most = io.advice().unwrap_or(Advice::LOCAL).write;
            let forgotten = self.kept.stale(&(0..u64::MAX), generation, most, usize::MAX);
            if forgotten.is_empty() {
                return generation;
            }
            let begin = |(range, change): (std::ops::Range<u64>, Change)| {
                let Change::Data(bytes) = change else { unreachable!("streams only write") };
                let max = info.max_io as usize;
                let piece = |at: usize| bytes.slice(at..bytes.len().min(at + max));
                let write = |at: usize| io.write(range.start + at as u64, piece(at), WriteFlags::default());
                let writes: Vec<_> = (0..bytes.len()).step_by(max).map(write).collect();
                (range, bytes, writes)
            };
            let begun: Vec<_> = forgotten.into_iter().map(begin).collect();
            for (range, bytes, writes) in begun {
                let mut result = Ok(());
                for write in writes {
                    result = result.and(write.await);
                }
                match result {
                    Ok(()) => self.kept.note(range, Change::Data(bytes), generation),
                    Err(e) => {
                        self.kept.forget(&range);
                        self.error.get_or_insert(e);
                    }
                }
            }
        }
    }

    /// Makes durable what the device has.
    async fn make_durable(&mut self, io: &Rc<dyn BlockIo>, info: &DeviceInfo) -> IoResult<()> {
        // This one is of all that that one is of.
        self.flushing = None;
        loop {
            let generation = self.send_again(io, info).await;
            let flushed = io.flush().await;
            let mark = self.kept.mark();
            if flushed.is_err() {
                // It is told, and not tried again.
                self.kept.flushed(mark);
                return flushed;
            }
            if io.generation() == generation {
                self.kept.flushed(mark);
                return Ok(());
            }
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
        let Some(done) = self.under_way.pop_front() else { return };
        match result {
            Ok(()) => {
                let range = done.offset..done.offset + done.len;
                self.kept.note(range, Change::Data(done.bytes), done.generation);
            }
            Err(e) => drop(self.error.get_or_insert(e)),
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
            self.make_durable(io, info).await?;
            self.dirty = false;
        }
        // What was sent again may be lost as well.
        self.error.take().map_or(Ok(()), Err)
    }
}

impl Tail {
    /// The byte behind it.
    fn next(&self) -> u64 {
        self.offset + (self.end - self.skip) as u64
    }
}

/// Reads what of the first and last block the stream did not write.
///
/// What is `kept` counts, since the device may have forgotten it.
async fn fill_edges(
    io: &Rc<dyn BlockIo>,
    info: &DeviceInfo,
    tail: &mut Tail,
    begin: u64,
    kept: &Unflushed,
) -> IoResult<()> {
    let block = info.block_size as usize;
    let last = tail.buf.len() - block;
    let mut read = None;
    if tail.skip > 0 {
        let mut old = io.read(begin, BufMut::zeroed(block)).await?;
        kept.overlay(begin, &mut old);
        tail.buf[..tail.skip].copy_from_slice(&old[..tail.skip]);
        read = Some((0, old));
    }
    if tail.end < tail.buf.len() {
        let old = match read {
            Some((at, old)) if at == last => old,
            _ => {
                let mut old = io.read(begin + last as u64, BufMut::zeroed(block)).await?;
                kept.overlay(begin + last as u64, &mut old);
                old
            }
        };
        let from = tail.end - last;
        tail.buf[tail.end..].copy_from_slice(&old[from..]);
    }
    Ok(())
}
