//! Devices as files: a position, reads and writes of any length at any byte.
//!
//! [`StreamReader`] and [`StreamWriter`] are for code that blocks, and are
//! `std::io::Read`, `Write` and `Seek`; [`Stream`] is both in one. On an
//! engine thread, [`AsyncStream`] is the same. They keep in flight what the
//! device advises ([`BlockIo::advice`]): so a program that reads 128 KiB at a
//! time gets the whole of a long path.
//!
//! # Reading
//!
//! Sequential reads are detected as the kernel does it, and read ahead in a
//! window that doubles up to [`Advice::read_ahead`](longhaul_block::Advice). Reads at
//! random places bring the blocks that they ask for and nothing else.
//!
//! # Writing
//!
//! Writes are coalesced into I/Os of the size that the device advises, and done
//! behind the writer.
//!
//! - **`write` returns** when the bytes are taken: they are neither durable
//!   nor certain to become so. It waits while as many are under way as the
//!   device advises.
//! - **`flush` returns** when everything that was written through this handle
//!   is durable, as after `fsync` on a file, or with an error. A device that
//!   has lost its power meanwhile gets again what it had not made durable:
//!   up to 64 MiB of that are kept.
//! - **Errors** of earlier writes come from the next `write`, `seek`, `read`
//!   or `flush`, whichever is first: the first one, once. A `write` that fails
//!   has taken nothing. What failed is not tried again: after an error, what
//!   was written since the last good `flush` may be on the device or not.
//! - **Drop** hands everything over and, for the blocking kinds, waits until
//!   the device has it; it does not make it durable. An error that no call has
//!   returned by then is logged as an error. A caller that needs it calls `flush`.
//! - **A handle reads what it has written**: reads wait for its own writes.
//!   Other handles see them after `flush`.
//! - A write that begins or ends within a block reads that block first; two
//!   handles that write to one block at a time must not be.

mod blocking;
mod reader;
#[cfg(test)]
mod tests;
mod window;
mod writer;

pub use blocking::{Stream, StreamReader, StreamWriter};

use crate::order::ALL;
use crate::write_behind::WriteUser;
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, IoError, IoResult};
use longhaul_engine::{Buf, spawn};
use reader::ReadSide;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use writer::{KEPT, WriteSide};

/// A device as a file, on an engine thread. See the [module](self) for what
/// reading and writing mean.
pub struct AsyncStream {
    /// Only a stream that is being dropped has none.
    inner: Option<StreamInner>,
    position: u64,
    /// Bytes at `position` that were read already.
    here: Option<Buf>,
}

struct StreamInner {
    user: Rc<StreamUser>,
    reads: ReadSide,
    writes: WriteSide,
}

/// What the stream's reads learn from its writes.
struct StreamUser {
    info: DeviceInfo,
    /// Data that was read ahead may be older than a change.
    changed: Cell<bool>,
    /// The first error that no call has returned yet.
    error: RefCell<Option<IoError>>,
}

impl StreamUser {
    /// The error that no call has returned yet.
    fn take_error(&self) -> Option<IoError> {
        self.error.borrow_mut().take()
    }
}

impl WriteUser for StreamUser {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn handle_change(&self, _blocks: &Range<u64>) {
        self.changed.set(true);
    }

    fn handle_loss(&self, error: IoError) {
        self.error.borrow_mut().get_or_insert(error);
    }
}

impl StreamInner {
    /// Hands over pending writes and logs the error that no call has returned.
    async fn finish(mut self) {
        let drained = self.writes.drain().await;
        if let Some(e) = drained.err().or_else(|| self.user.take_error()) {
            tracing::error!("{}: writes of a stream are lost: {e}", self.user.info.name);
        }
    }
}

impl AsyncStream {
    /// Opens `device` on the calling engine thread.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub async fn open(device: &dyn BlockDevice) -> IoResult<AsyncStream> {
        Ok(AsyncStream::new(device.open().await?, device.info()))
    }

    /// A stream over an open device.
    pub fn new(io: Rc<dyn BlockIo>, info: DeviceInfo) -> AsyncStream {
        AsyncStream::keeping(io, info, KEPT)
    }

    /// A stream that keeps at most `kept` bytes until they are durable.
    fn keeping(io: Rc<dyn BlockIo>, info: DeviceInfo, kept: u64) -> AsyncStream {
        let user = Rc::new(StreamUser { info, changed: Cell::new(false), error: RefCell::default() });
        let (reads, writes) = (ReadSide::new(), WriteSide::new(Rc::clone(&user), io, kept));
        AsyncStream { inner: Some(StreamInner { user, reads, writes }), position: 0, here: None }
    }

    fn inner(&mut self) -> &mut StreamInner {
        self.inner.as_mut().expect("only drop takes it")
    }

    /// Where the next byte is read or written.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Size of the device in bytes.
    pub fn size(&self) -> u64 {
        self.inner.as_ref().map_or(0, |inner| inner.user.info.size)
    }

    /// Sets the position, which may be past the end: reads there return nothing, and writes fail.
    pub fn seek(&mut self, position: u64) {
        if position != self.position {
            self.here = None;
            self.position = position;
        }
    }

    /// The bytes at the position, without a copy: empty at the end of the device, otherwise at most
    /// `len` bytes, unless more were read together. The position stays; see
    /// [`consume`](Self::consume).
    ///
    /// # Errors
    /// Those of this read, and of earlier writes.
    pub async fn fill(&mut self, len: usize) -> IoResult<Buf> {
        if let Some(here) = &self.here {
            return Ok(here.clone());
        }
        let position = self.position;
        let StreamInner { user, reads, writes } = self.inner();
        if writes.is_pending() {
            writes.drain().await?;
        }
        if let Some(e) = user.take_error() {
            return Err(e);
        }
        let read = async || {
            if user.changed.take() {
                reads.forget();
            }
            reads.read(&writes.behind.io, &user.info, position, len as u64).await
        };
        let bytes = writes.behind.read_settled(ALL, read).await;
        // Resent writes may be lost as well.
        if let Some(e) = user.take_error() {
            return Err(e);
        }
        let bytes = bytes?;
        if !bytes.is_empty() {
            self.here = Some(bytes.clone());
        }
        Ok(bytes)
    }

    /// Advances the position by `len` bytes of those that [`fill`](Self::fill) gave.
    pub fn consume(&mut self, len: usize) {
        self.position += len as u64;
        self.here = self.here.take().filter(|here| here.len() > len).map(|here| here.slice(len..here.len()));
    }

    /// Reads at least a byte unless at the end of the device; returns the number of bytes.
    ///
    /// # Errors
    /// Those of [`fill`](Self::fill).
    pub async fn read(&mut self, dst: &mut [u8]) -> IoResult<usize> {
        if dst.is_empty() {
            return Ok(0);
        }
        let bytes = self.fill(dst.len()).await?;
        let n = bytes.len().min(dst.len());
        dst[..n].copy_from_slice(&bytes[..n]);
        self.consume(n);
        Ok(n)
    }

    /// Takes bytes to write at the position, at least one; how many.
    ///
    /// # Errors
    /// The position is past the end, or earlier writes failed.
    pub async fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        let position = self.position;
        self.here = None;
        let StreamInner { reads, writes, .. } = self.inner();
        // Data that was read ahead may be written now.
        reads.forget();
        let n = writes.write(position, bytes).await?;
        self.position += n as u64;
        Ok(n)
    }

    /// Takes all of `bytes`.
    ///
    /// # Errors
    /// As [`write`](Self::write); a part may have been taken.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> IoResult<()> {
        while !bytes.is_empty() {
            let n = self.write(bytes).await?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Waits until all that was written is durable.
    ///
    /// # Errors
    /// Earlier writes failed, or the flush did.
    pub async fn flush(&mut self) -> IoResult<()> {
        self.inner().writes.flush().await
    }

    /// Hands everything over to the device and waits until it has it; an
    /// error is logged. As drop does, but it can be awaited.
    pub async fn close(mut self) {
        if let Some(inner) = self.inner.take() {
            inner.finish().await;
        }
    }
}

impl Drop for AsyncStream {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            if inner.writes.is_pending() {
                spawn(inner.finish()).detach();
            } else if let Some(e) = inner.user.take_error() {
                tracing::error!("{}: writes of a stream are lost: {e}", inner.user.info.name);
            }
        }
    }
}

impl std::fmt::Debug for AsyncStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AsyncStream(at {} of {})", self.position, self.size())
    }
}
