//! A regular file or a local block device as a device.
//!
//! Invariants:
//! - a file is locked (flock), exclusively, or shared if read-only: no other process serves a file
//!   through this crate that is open for writing here;
//! - an existing file is never made shorter;
//! - direct I/O is only ever given memory, offsets and lengths with the alignment that the file
//!   system requires; other memory is copied;
//! - a flush succeeds only if no other one, and no durable write, has failed since it began;
//! - an operation that has begun runs to its end, also if its future is dropped.

mod going;
mod open;
mod syncs;

pub(crate) use going::begin;
pub(crate) use open::size_of;
pub use open::{FileOptions, OpenError};

use crate::{BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, LockedFile, fs, spawn};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use syncs::Syncs;

/// Zeroes are written in pieces of this many bytes where the file system has
/// no faster way: large enough for full speed, small beside any memory limit.
const ZERO_PIECE: usize = 1 << 20;

/// A file or a block device.
pub struct FileDevice {
    inner: Arc<FileInner>,
}

struct FileInner {
    /// Everything but the size, which may change.
    info: DeviceInfo,
    size: AtomicU64,
    /// Holds the lock, and is used for queries.
    file: LockedFile,
    io: fs::File,
    is_block: bool,
    /// Alignment in bytes that direct I/O requires of memory; 1 if I/O is buffered.
    memory_align: usize,
    syncs: Syncs,
}

impl FileDevice {
    /// Opens a regular file, and creates or grows it where `options.size`
    /// says so.
    ///
    /// # Errors
    /// Each names the file and what to do.
    pub fn open_file(path: &Path, options: &FileOptions) -> Result<FileDevice, OpenError> {
        open::open(path, options, false)
    }

    /// Opens a block device of this machine.
    ///
    /// # Errors
    /// Each names the device and what to do.
    pub fn open_block(path: &Path, options: &FileOptions) -> Result<FileDevice, OpenError> {
        open::open(path, options, true)
    }

    /// Whether I/O passes by the page cache.
    pub fn is_direct(&self) -> bool {
        self.inner.memory_align > 1
    }
}

impl FileInner {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { size: self.size.load(Relaxed), ..self.info.clone() }
    }

    fn check(&self, offset: u64, len: u64) -> IoResult<()> {
        // The size alone changes, so the clone of a name is spared.
        let size = self.size.load(Relaxed);
        match offset.checked_add(len) {
            Some(end) if end <= size => self.info.check(offset, len).or_else(|e| match e {
                IoError::OutOfRange { .. } => Ok(()),
                e => Err(e),
            }),
            _ => Err(IoError::OutOfRange { offset, len, size }),
        }
    }

    fn check_write(&self, offset: u64, len: u64) -> IoResult<()> {
        if self.info.read_only { Err(IoError::ReadOnly) } else { self.check(offset, len) }
    }

    fn is_aligned(&self, at: *const u8) -> bool {
        at.addr().is_multiple_of(self.memory_align)
    }

    /// Reads into memory of any alignment.
    async fn read(&self, offset: u64, dst: BufMut) -> IoResult<BufMut> {
        let (result, dst) = if self.is_aligned(dst.as_ptr()) {
            self.io.read_at(dst, offset).await
        } else {
            let (result, copy) = self.io.read_at(BufMut::zeroed(dst.len()), offset).await;
            let mut dst = dst;
            dst.copy_from_slice(&copy);
            (result, dst)
        };
        let n = result?;
        if n < dst.len() {
            let at = offset + n as u64;
            return Err(IoError::Medium(format!("{} ends at {at}: was it made shorter?", self.info.name)));
        }
        Ok(dst)
    }

    async fn write(&self, offset: u64, src: Buf, durable: bool) -> IoResult<()> {
        let src = if self.is_aligned(src.as_ptr()) { src } else { Buf::copy_of(&src) };
        let write = self.io.write_at(src, offset, durable);
        match durable {
            false => Ok(write.await?),
            true if self.memory_align > 1 => self.syncs.write(write).await,
            // Another sync may get the error of writing its pages.
            true => self.syncs.sync(write).await,
        }
    }

    async fn flush(&self) -> IoResult<()> {
        self.syncs.sync(self.io.sync_data()).await
    }

    /// Makes a range read as zeroes.
    async fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoResult<()> {
        let how = if flags.may_deallocate {
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE
        } else {
            libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE
        };
        match self.io.fallocate(how, offset, len).await {
            Err(e) if is_unsupported(&e) => self.write_zeroes(offset, len).await?,
            result => result?,
        }
        if flags.fua {
            self.flush().await?;
        }
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64) -> IoResult<()> {
        let zeroes = BufMut::zeroed(ZERO_PIECE.min(usize::try_from(len).unwrap_or(ZERO_PIECE))).freeze();
        let mut done = 0;
        while done < len {
            let n = (len - done).min(zeroes.len() as u64);
            self.io.write_at(zeroes.slice(0..n as usize), offset + done, false).await?;
            done += n;
        }
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        let result = if self.is_block {
            let file = self.io.clone();
            longhaul_engine::blocking(move || {
                let range = [offset, len];
                // SAFETY: the request reads two 64-bit numbers from `range`.
                let rc = unsafe { libc::ioctl(file.as_raw_fd(), open::BLKDISCARD, range.as_ptr()) };
                if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
            })
            .await
        } else {
            let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            self.io.fallocate(how, offset, len).await
        };
        match result {
            // A discard is a hint: where it cannot be taken, content stays.
            Err(e) if is_unsupported(&e) => Ok(()),
            result => Ok(result?),
        }
    }
}

fn is_unsupported(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY))
}

impl BlockDevice for FileDevice {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn refresh(&self) -> IoResult<DeviceInfo> {
        let size = open::size_of(&self.inner.file, self.inner.is_block)?;
        let block = u64::from(self.inner.info.block_size);
        self.inner.size.store(size / block * block, Relaxed);
        Ok(self.inner.info())
    }

    fn open(&self) -> Open<'_> {
        let io: Rc<dyn BlockIo> = Rc::new(FileIo { inner: Arc::clone(&self.inner) });
        Box::pin(std::future::ready(Ok(io)))
    }
}

struct FileIo {
    inner: Arc<FileInner>,
}

impl FileIo {
    fn start<T, F>(&self, checked: IoResult<()>, f: impl FnOnce(Arc<FileInner>) -> F) -> IoFuture<T>
    where
        T: Unpin + 'static,
        F: Future<Output = IoResult<T>> + 'static,
    {
        match checked {
            Ok(()) => begin(f(Arc::clone(&self.inner)), |rest| spawn(rest).detach()),
            Err(e) => IoFuture::ready(Err(e)),
        }
    }
}

impl BlockIo for FileIo {
    fn may_forget(&self) -> bool {
        // Unflushed data is lost only in a crash of this machine, which ends this process too.
        false
    }

    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        let checked = self.inner.check(offset, dst.len() as u64);
        self.start(checked, |inner| async move { inner.read(offset, dst).await })
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let checked = self.inner.check_write(offset, src.len() as u64);
        self.start(checked, |inner| async move { inner.write(offset, src, flags.fua).await })
    }

    fn flush(&self) -> IoFuture<()> {
        self.start(Ok(()), |inner| async move { inner.flush().await })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let checked = self.inner.check_write(offset, len);
        if len == 0 {
            return IoFuture::ready(checked);
        }
        self.start(checked, |inner| async move { inner.discard(offset, len).await })
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let checked = self.inner.check_write(offset, len);
        if len == 0 {
            return IoFuture::ready(checked);
        }
        self.start(checked, |inner| async move { inner.zero(offset, len, flags).await })
    }
}

#[cfg(test)]
mod tests;
