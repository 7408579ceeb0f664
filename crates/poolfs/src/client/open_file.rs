//! An open file of a client.

use longhaul_engine::Buf;
use longhaul_fs::{Call, DATA_MAX, Errno, FileSystem, Handle, Reply};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

/// Pieces of one read or write, each of [`DATA_MAX`] at most, that are under way at a time: 64 MiB fill
/// 10 Gb/s at 50 ms.
const WINDOW: usize = 64;

/// An open file of a [`Client`](crate::Client), for many threads at the same time. It is closed when it is
/// dropped; [`close`](Self::close) has the error of that.
///
/// Offsets and lengths are in bytes.
pub struct OpenFile {
    files: Arc<dyn FileSystem>,
    handle: Handle,
    size: u64,
    /// It was opened to be written.
    writes: bool,
    is_open: bool,
}

/// A reply that is awaited.
struct PendingReply(Receiver<Result<Reply, Errno>>);

impl PendingReply {
    fn wait(self) -> Result<Reply, Errno> {
        self.0.recv().unwrap_or(Err(Errno::IO))
    }
}

/// Cuts `len` bytes from `offset` where offsets are multiples of [`DATA_MAX`], so that no two pieces are of the
/// same stripe: how many bytes the first piece has.
fn first_piece(offset: u64, len: usize) -> usize {
    let max = DATA_MAX as u64;
    // The difference is at most `DATA_MAX`.
    len.min((max - offset % max) as usize)
}

impl OpenFile {
    pub(super) fn new(files: &Arc<dyn FileSystem>, handle: Handle, size: u64, writes: bool) -> OpenFile {
        OpenFile { files: Arc::clone(files), handle, size, writes, is_open: true }
    }

    /// Bytes that the file had when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn start(&self, call: Call) -> PendingReply {
        let (tell, told) = channel();
        self.files.start(call, Box::new(move |result| drop(tell.send(result))));
        PendingReply(told)
    }

    /// Fills `dst` from `offset`, in pieces that are read at the same time. Returns the number of bytes, which is
    /// smaller than `dst` at the end of the file only.
    ///
    /// # Errors
    /// `EIO` for content that cannot be read, and others of the file system.
    pub fn read_at(&self, offset: u64, dst: &mut [u8]) -> Result<usize, Errno> {
        let handle = self.handle;
        let (first, rest) = dst.split_at_mut(first_piece(offset, dst.len()));
        let mut at = offset;
        let mut pieces =
            std::iter::once(first).chain(rest.chunks_mut(DATA_MAX)).filter(|piece| !piece.is_empty());
        let (mut under_way, mut done) = (VecDeque::new(), 0);
        loop {
            while under_way.len() < WINDOW {
                let Some(piece) = pieces.next() else { break };
                // A piece has `DATA_MAX` bytes at most.
                let pending = self.start(Call::Read { handle, offset: at, len: piece.len() as u32 });
                at += piece.len() as u64;
                under_way.push_back((piece, pending));
            }
            let Some((piece, pending)) = under_way.pop_front() else { return Ok(done) };
            let Reply::Data(data) = pending.wait()? else { return Err(Errno::IO) };
            let filled = piece.get_mut(..data.len()).ok_or(Errno::IO)?;
            filled.copy_from_slice(&data);
            done += data.len();
            if data.len() < piece.len() {
                return Ok(done);
            }
        }
    }

    /// Writes `src` at `offset`, in pieces that are written at the same time.
    ///
    /// # Errors
    /// `ENOSPC` if there is no room, `EBADF` for a file that was opened to be read, and others of the file
    /// system. A part may have been written.
    pub fn write_at(&self, offset: u64, src: &[u8]) -> Result<(), Errno> {
        // Of file systems the kernel takes care of that.
        if !self.writes {
            return Err(Errno::BADF);
        }
        let handle = self.handle;
        let (first, rest) = src.split_at(first_piece(offset, src.len()));
        let mut at = offset;
        let mut pieces =
            std::iter::once(first).chain(rest.chunks(DATA_MAX)).filter(|piece| !piece.is_empty());
        let mut under_way = VecDeque::new();
        loop {
            while under_way.len() < WINDOW {
                let Some(piece) = pieces.next() else { break };
                let pending = self.start(Call::Write { handle, offset: at, data: Buf::copy_of(piece) });
                at += piece.len() as u64;
                under_way.push_back(pending);
            }
            let Some(pending) = under_way.pop_front() else { return Ok(()) };
            pending.wait()?;
        }
    }

    /// Waits until what was written is durable.
    ///
    /// # Errors
    /// That of an earlier write, or `EIO` if it is not known.
    pub fn sync(&self) -> Result<(), Errno> {
        self.files.wait(Call::Sync { handle: self.handle, data_only: false }).map(drop)
    }

    /// Closes the file, as close(2) does.
    ///
    /// # Errors
    /// That of an earlier write.
    pub fn close(mut self) -> Result<(), Errno> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Errno> {
        if !std::mem::replace(&mut self.is_open, false) {
            return Ok(());
        }
        let flushed = self.files.wait(Call::Flush { handle: self.handle });
        self.files.wait(Call::Close { handle: self.handle })?;
        flushed.map(drop)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl std::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenFile({} bytes)", self.size)
    }
}
