//! The reading side of a stream.
//!
//! Invariants:
//! - `chunks` are adjacent, in order, and the first one holds or is followed by the next byte to
//!   read;
//! - chunks, complete and under way, are together at most the window and one chunk;
//! - a chunk that failed is reported to the read that needs it, and is read again by the next one.

use super::window::Window;
use longhaul_block::{Advice, BlockIo, DeviceInfo, IoFuture, IoResult};
use longhaul_engine::{BUF_MAX, Buf, BufMut};
use std::collections::VecDeque;
use std::rc::Rc;

enum ChunkState {
    UnderWay(IoFuture<BufMut>),
    Here(Buf),
}

struct StreamChunk {
    offset: u64,
    len: u64,
    state: ChunkState,
}

impl StreamChunk {
    fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// Reads ahead for one reader.
pub(super) struct ReadSide {
    window: Window,
    chunks: VecDeque<StreamChunk>,
}

impl ReadSide {
    pub(super) fn new() -> ReadSide {
        ReadSide { window: Window::default(), chunks: VecDeque::new() }
    }

    /// Drops data that was read ahead: the device may hold other data now.
    pub(super) fn forget(&mut self) {
        self.chunks.clear();
    }

    /// Bytes from `offset` on: at least one, if it is within the device. The
    /// caller means to read `len` bytes there; a sequential reader gets
    /// more, if it is here.
    pub(super) async fn read(
        &mut self,
        io: &Rc<dyn BlockIo>,
        info: &DeviceInfo,
        offset: u64,
        len: u64,
    ) -> IoResult<Buf> {
        if offset >= info.size || len == 0 {
            return Ok(Buf::copy_of(&[]));
        }
        let advice = io.advice().unwrap_or(Advice::LOCAL);
        let len = len.min(info.size - offset);
        let ahead = self.window.handle_read(offset, len, advice.read_ahead);
        self.drop_others(offset);
        self.fill(io, info, &advice, offset, len, ahead);
        let Some(chunk) = self.chunks.front_mut() else { return Ok(Buf::copy_of(&[])) };
        if let ChunkState::UnderWay(read) = &mut chunk.state {
            match read.await {
                Ok(buf) => chunk.state = ChunkState::Here(buf.freeze()),
                Err(e) => {
                    self.chunks.clear();
                    return Err(e);
                }
            }
        }
        let ChunkState::Here(buf) = &chunk.state else { return Ok(Buf::copy_of(&[])) };
        let begin = (offset - chunk.offset) as usize;
        let asked = begin.saturating_add(len as usize);
        let end = if self.window.is_sequential() { buf.len() } else { buf.len().min(asked) };
        let bytes = buf.slice(begin..end);
        self.window.handle_end(chunk.offset + end as u64);
        if end == buf.len() {
            self.chunks.pop_front();
        }
        Ok(bytes)
    }

    /// Drops chunks before `offset`, and all of them if it is in none.
    fn drop_others(&mut self, offset: u64) {
        while self.chunks.front().is_some_and(|chunk| chunk.end() <= offset) {
            self.chunks.pop_front();
        }
        if self.chunks.front().is_some_and(|chunk| chunk.offset > offset) {
            self.chunks.clear();
        }
    }

    /// Begins to read until `ahead` bytes from `offset` on are here or on
    /// their way.
    fn fill(
        &mut self,
        io: &Rc<dyn BlockIo>,
        info: &DeviceInfo,
        advice: &Advice,
        offset: u64,
        len: u64,
        ahead: u64,
    ) {
        let block = u64::from(info.block_size);
        let up = |at: u64| at.div_ceil(block) * block;
        let mut at = self.chunks.back().map_or(offset / block * block, StreamChunk::end);
        let end = up(offset.saturating_add(ahead)).min(info.size);
        // Whole I/Os, so that the window advances in pieces of a useful size; a random reader's I/O
        // is its own range.
        let most = u64::from(info.max_io).min(BUF_MAX as u64) / block * block;
        let piece = up(u64::from(advice.io_size).min(ahead / 4).max(block)).min(most);
        let sequential = self.window.is_sequential();
        while at < end {
            let rest = end - at;
            let size = if sequential { piece.min(info.size - at) } else { rest.min(most) };
            // The tail of a window waits until it is worth an I/O.
            if size > rest && at >= up(offset + len) {
                return;
            }
            let read = io.read(at, BufMut::zeroed(size as usize));
            let state = match read.try_ready() {
                Ok(Ok(buf)) => ChunkState::Here(buf.freeze()),
                Ok(Err(e)) => ChunkState::UnderWay(IoFuture::ready(Err(e))),
                Err(read) => ChunkState::UnderWay(read),
            };
            self.chunks.push_back(StreamChunk { offset: at, len: size, state });
            at += size;
        }
    }
}
