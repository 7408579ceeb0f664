//! The writing side of a stream.
//!
//! Invariants:
//! - `tail` is the end of the written data, and not under way yet: at most an I/O of the size that
//!   the device advises, which ends at a block boundary;
//! - the first error is kept until a call returns it, and returned once;
//! - bytes under way are at most what the device advises, and one I/O; kept bytes are at most the
//!   given limit ([`KEPT`]), plus the bytes under way.

use super::StreamUser;
use crate::write_behind::WriteBehind;
use longhaul_block::{Advice, BlockIo, IoError, IoResult};
use longhaul_engine::{BUF_MAX, BufMut};
use std::rc::Rc;

/// Bytes that are kept until they are durable. At half of them a flush begins, while the writer
/// continues with the other half.
pub(super) const KEPT: u64 = 64 << 20;

/// Bytes that were taken and are not under way yet.
struct Tail {
    offset: u64,
    buf: BufMut,
    /// Bytes of `buf` that are the stream's.
    len: usize,
}

/// Coalesces writes, and writes them behind.
pub(super) struct WriteSide {
    pub(super) behind: Rc<WriteBehind>,
    user: Rc<StreamUser>,
    tail: Option<Tail>,
    /// Something was written since the last flush.
    dirty: bool,
}

impl WriteSide {
    pub(super) fn new(user: Rc<StreamUser>, io: Rc<dyn BlockIo>, kept: u64) -> WriteSide {
        let behind = WriteBehind::new(Rc::clone(&user) as _, io, kept);
        WriteSide { behind, user, tail: None, dirty: false }
    }

    /// Whether something is not with the device yet.
    pub(super) fn is_pending(&self) -> bool {
        self.tail.is_some() || !self.behind.room.is_idle()
    }

    /// Takes bytes at `offset`; how many. Waits while as much is under way as
    /// the device advises. An error is that of earlier bytes: of these, none
    /// were taken.
    pub(super) async fn write(&mut self, offset: u64, bytes: &[u8]) -> IoResult<usize> {
        if let Some(e) = self.user.take_error() {
            return Err(e);
        }
        if bytes.is_empty() {
            return Ok(0);
        }
        let size = self.user.info.size;
        if offset >= size {
            return Err(IoError::OutOfRange { offset, len: bytes.len() as u64, size });
        }
        if self.tail.as_ref().is_some_and(|tail| tail.next() != offset) {
            self.push().await;
        }
        let room = self.tail_size(offset);
        let tail = self.tail.get_or_insert_with(|| Tail { offset, buf: BufMut::zeroed(room), len: 0 });
        let n = bytes.len().min(tail.buf.len() - tail.len);
        tail.buf[tail.len..tail.len + n].copy_from_slice(&bytes[..n]);
        tail.len += n;
        self.dirty = true;
        if tail.len == tail.buf.len() {
            self.push().await;
        }
        Ok(n)
    }

    /// Bytes of a tail that begins at `offset`.
    fn tail_size(&self, offset: u64) -> usize {
        let info = &self.user.info;
        let advice = self.behind.io.advice().unwrap_or(Advice::LOCAL);
        let block = info.block_size as usize;
        let most = (info.max_io as usize).min(BUF_MAX);
        let size = (advice.io_size as usize).clamp(block, most) / block * block;
        let skip = (offset % u64::from(info.block_size)) as usize;
        size.min((info.size - (offset - skip as u64)) as usize) - skip
    }

    /// Hands the tail over, and waits while more is under way than the device advises.
    async fn push(&mut self) {
        let Some(mut tail) = self.tail.take() else { return };
        tail.buf.truncate(tail.len);
        self.behind.begin_write(tail.offset, tail.buf.freeze());
        self.behind.within_bounds().await;
    }

    /// Waits until the device has everything: reads see it then.
    pub(super) async fn drain(&mut self) -> IoResult<()> {
        self.push().await;
        self.behind.drained().await;
        self.user.take_error().map_or(Ok(()), Err)
    }

    /// Waits until everything is durable.
    pub(super) async fn flush(&mut self) -> IoResult<()> {
        self.drain().await?;
        if self.dirty {
            if let Err(e) = self.behind.make_durable().await {
                // It is reported, and not tried again.
                self.behind.give_up();
                return Err(e);
            }
            self.dirty = false;
        }
        // Resent writes may be lost as well.
        self.user.take_error().map_or(Ok(()), Err)
    }
}

impl Tail {
    /// The byte behind it.
    fn next(&self) -> u64 {
        self.offset + self.len as u64
    }
}
