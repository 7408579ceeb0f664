//! A device that takes less at a time than hosts may transfer (MDTS): reads and
//! writes reach it in pieces of its `max_io`.
//!
//! Invariants:
//! - the whole is done when every piece is, also when one fails: nothing of a
//!   command has an effect after its completion;
//! - of several errors that of the first piece is reported.

use futures_util::future::join_all;
use longhaul_block::{Advice, BlockIo, DeviceInfo, IoError, IoFuture, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, Segment};
use std::rc::Rc;
use std::time::Instant;

struct Pieces {
    io: Rc<dyn BlockIo>,
    /// Bytes of a piece at most.
    most: usize,
}

/// `io`, so that it may be asked for up to `offered` bytes at a time.
pub(crate) fn in_pieces(io: Rc<dyn BlockIo>, info: &DeviceInfo, offered: u32) -> Rc<dyn BlockIo> {
    if info.max_io >= offered {
        return io;
    }
    Rc::new(Pieces { io, most: info.max_io.max(info.block_size) as usize })
}

impl BlockIo for Pieces {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let (mut rest, mut at, mut pieces) = (dst, offset, Vec::new());
        while rest.len() > self.most {
            let tail = rest.split_off(self.most);
            pieces.push(self.io.read(at, std::mem::replace(&mut rest, tail)));
            at += self.most as u64;
        }
        let last = self.io.read(at, rest);
        if pieces.is_empty() {
            return last;
        }
        pieces.push(last);
        IoFuture::new(async move {
            let mut whole: Option<BufMut> = None;
            for piece in join_all(pieces).await {
                let piece = piece?;
                match &mut whole {
                    None => whole = Some(piece),
                    // They were one buffer, so they join, unless the device has
                    // given another one back.
                    Some(whole) => whole.unsplit(piece).map_err(|_| IoError::Aborted)?,
                }
            }
            whole.ok_or(IoError::Aborted)
        })
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        if src.len() <= self.most {
            return self.io.write(offset, src, flags);
        }
        let piece = |start: usize| {
            let end = src.len().min(start + self.most);
            self.io.write(offset + start as u64, src.slice(start..end), flags)
        };
        let pieces: Vec<_> = (0..src.len()).step_by(self.most).map(piece).collect();
        IoFuture::new(async move { join_all(pieces).await.into_iter().collect() })
    }

    fn flush(&self) -> IoFuture<()> {
        self.io.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.io.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.io.write_zeroes(offset, len, flags)
    }

    fn advice(&self) -> Option<Advice> {
        self.io.advice()
    }

    fn generation(&self) -> u64 {
        self.io.generation()
    }

    fn may_forget(&self) -> bool {
        self.io.may_forget()
    }

    fn away_since(&self) -> Option<Instant> {
        self.io.away_since()
    }

    fn map_read(&self, offset: u64, len: usize) -> Option<Segment> {
        self.io.map_read(offset, len)
    }

    fn map_write(&self, offset: u64, len: usize) -> Option<Segment> {
        self.io.map_write(offset, len)
    }
}
