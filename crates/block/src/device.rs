//! The `BlockDevice` interface.

use crate::{Advice, Reservations};
use longhaul_engine::{Buf, BufMut, Segment};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;
use uuid::Uuid;

/// Properties of a device. All sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name for people: a path, or a URI.
    pub name: String,
    /// Capacity; a multiple of `block_size`.
    pub size: u64,
    /// Logical block size: a power of two, 512 at least. Offsets and lengths
    /// of all I/O are multiples of it.
    pub block_size: u32,
    /// The largest transfer of one operation, a multiple of `block_size`. Callers split larger
    /// ones.
    pub max_io: u32,
    /// The preferred size and alignment of I/O, or 0.
    pub optimal_io: u32,
    /// Writes are refused with [`IoError::ReadOnly`].
    pub read_only: bool,
    /// Acknowledged writes may be lost in a crash until [`BlockIo::flush`].
    pub volatile_cache: bool,
    /// Discard gives space back.
    pub discard: bool,
    /// Globally unique identity, where the device has one.
    pub uuid: Option<Uuid>,
}

impl DeviceInfo {
    /// Checks that `offset..offset + len` is aligned and within the device.
    pub fn check(&self, offset: u64, len: u64) -> IoResult<()> {
        let mask = u64::from(self.block_size) - 1;
        if offset & mask != 0 || len & mask != 0 {
            return Err(IoError::Unaligned { offset, len, block_size: self.block_size });
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(IoError::OutOfRange { offset, len, size: self.size }),
        }
    }
}

/// How a write is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Force unit access: the data is on the medium when the write completes.
    pub fua: bool,
}

/// How zeroes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroFlags {
    /// As in [`WriteFlags`].
    pub fua: bool,
    /// The device may give the space back (it must read as zeroes all the same).
    pub may_deallocate: bool,
}

/// Why I/O failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// Past the end of the device.
    #[error("{len} bytes at {offset} are past the end of the device ({size} bytes)")]
    OutOfRange {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// Not a whole number of logical blocks.
    #[error("{len} bytes at {offset} are not whole blocks of {block_size} bytes")]
    Unaligned {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Logical block size in bytes.
        block_size: u32,
    },
    /// The device cannot be written to.
    #[error("the device is read-only")]
    ReadOnly,
    /// The medium below is full.
    #[error("no space left below the device")]
    NoSpace,
    /// The device does not know this operation.
    #[error("the device does not support {0}")]
    Unsupported(&'static str),
    /// The medium failed.
    #[error("I/O error: {0}")]
    Medium(String),
    /// Data arrived that does not match its checksum.
    #[error("checksum mismatch: {0}")]
    Integrity(String),
    /// The operation was aborted before it was done.
    #[error("aborted")]
    Aborted,
    /// The far side refused, with an NVMe status.
    #[error("refused by the device: {0}")]
    Refused(String),
    /// Another host has reserved the device, and this one may not do this to it.
    #[error("another host has reserved the device")]
    Reserved,
    /// The far side is out of reach.
    #[error("connection lost: {0}")]
    Unreachable(String),
    /// The device does no I/O, though nothing is wrong with a connection: an array has halted,
    /// a member is offline, the device was closed. Says which device and why.
    #[error("{0}")]
    Offline(String),
}

impl IoError {
    /// Whether the device could not be asked, so that the error says nothing about its content.
    pub fn is_out_of_reach(&self) -> bool {
        matches!(self, IoError::Unreachable(_) | IoError::Offline(_))
    }

    /// Whether a flush, or a durable write, with this error may have lost what was written before. A device reports that
    /// once. After any other error it still has those writes, and the next flush covers them.
    pub fn is_loss(&self) -> bool {
        match self {
            IoError::Aborted
            | IoError::Unreachable(_)
            | IoError::Offline(_)
            | IoError::Unsupported(_)
            | IoError::ReadOnly
            | IoError::OutOfRange { .. }
            | IoError::Unaligned { .. } => false,
            IoError::NoSpace
            | IoError::Medium(_)
            | IoError::Integrity(_)
            | IoError::Refused(_)
            | IoError::Reserved => true,
        }
    }
}

impl From<std::io::Error> for IoError {
    fn from(e: std::io::Error) -> IoError {
        match e.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => IoError::NoSpace,
            std::io::ErrorKind::ReadOnlyFilesystem => IoError::ReadOnly,
            _ => IoError::Medium(e.to_string()),
        }
    }
}

/// Result of an I/O operation.
pub type IoResult<T> = Result<T, IoError>;

/// An I/O operation under way. An operation begins when its method is called, not when this is
/// first polled, and runs to its end if this is dropped.
pub struct IoFuture<T>(FutureState<T>);

enum FutureState<T> {
    Ready(Option<IoResult<T>>),
    Boxed(Pin<Box<dyn Future<Output = IoResult<T>>>>),
}

impl<T> IoFuture<T> {
    /// An operation that is done already.
    pub fn ready(result: IoResult<T>) -> IoFuture<T> {
        IoFuture(FutureState::Ready(Some(result)))
    }

    /// An operation that ends when `future` does.
    pub fn new(future: impl Future<Output = IoResult<T>> + 'static) -> IoFuture<T> {
        IoFuture(FutureState::Boxed(Box::pin(future)))
    }

    /// The result, if the operation has completed already: saves a caller the bookkeeping of an
    /// operation under way.
    pub fn try_ready(self) -> Result<IoResult<T>, IoFuture<T>> {
        match self.0 {
            FutureState::Ready(Some(result)) => Ok(result),
            state => Err(IoFuture(state)),
        }
    }
}

impl<T: Unpin> Future for IoFuture<T> {
    type Output = IoResult<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<T>> {
        match &mut self.0 {
            FutureState::Ready(result) => Poll::Ready(result.take().expect("polled after it was done")),
            FutureState::Boxed(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for IoFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            FutureState::Ready(_) => "IoFuture(done)",
            FutureState::Boxed(_) => "IoFuture(under way)",
        })
    }
}

/// What [`BlockDevice::open`] returns.
pub type Open<'a> = Pin<Box<dyn Future<Output = IoResult<Rc<dyn BlockIo>>> + 'a>>;

/// A device of fixed-size blocks, shared by threads.
pub trait BlockDevice: Send + Sync {
    /// The device's properties at this moment (its size may change).
    fn info(&self) -> DeviceInfo;

    /// Preferred size and alignment, in bytes, of writes to one part of the device: of an array its
    /// stripe unit, where [`DeviceInfo::optimal_io`] is a whole stripe. 0 if only the block size
    /// matters.
    fn granularity(&self) -> u32 {
        0
    }

    /// Reads the size of the device below again (a file may have grown), and returns the properties
    /// as they are now.
    fn refresh(&self) -> IoResult<DeviceInfo> {
        Ok(self.info())
    }

    /// Opens it for I/O on the calling engine thread.
    fn open(&self) -> Open<'_>;
}

/// A device opened on one engine thread.
///
/// Operations may be executed concurrently and in any order; a caller that needs an order waits.
/// Offsets and lengths are in bytes, whole blocks of [`DeviceInfo::block_size`], and at most
/// [`DeviceInfo::max_io`] for read and write.
pub trait BlockIo {
    /// Fills `dst` from `offset` and gives it back.
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut>;

    /// Writes `src` at `offset`.
    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()>;

    /// Makes every write that completed before the call durable.
    fn flush(&self) -> IoFuture<()>;

    /// Discards a range. Later reads return either the old content or zeroes, always the same.
    fn discard(&self, offset: u64, len: u64) -> IoFuture<()>;

    /// Makes the range read as zeroes.
    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()>;

    /// The amount of I/O to keep in flight, if the device knows: a remote device measures its path.
    /// It may change at any time.
    fn advice(&self) -> Option<Advice> {
        None
    }

    /// Changes whenever the device may have lost writes that it acknowledged but had not flushed,
    /// without an error: a remote device was reconnected, and its power may have failed. A caller
    /// that depends on such writes compares the generation before and after each flush.
    fn generation(&self) -> u64 {
        0
    }

    /// Whether [`generation`](Self::generation) may ever change: if not, its
    /// users need not keep unflushed writes. `longhaul_cache::Unflushed` keeps
    /// them.
    fn may_forget(&self) -> bool {
        true
    }

    /// Since when the device has been unreachable, if it is; its operations wait for a reconnect. A
    /// caller that has the data elsewhere too need not wait.
    fn away_since(&self) -> Option<Instant> {
        None
    }

    /// The reservation commands of the device, if it has them and keeps reservations through a
    /// restart: several hosts reach it, and one of them is to be the only one that changes it.
    fn reservations(&self) -> Option<Rc<dyn Reservations>> {
        None
    }

    /// The commands of the reservation that all registered hosts hold, if the device has it: several hosts
    /// change the device, and one that is lost is kept out.
    fn shared_reservations(&self) -> Option<Rc<dyn Reservations>> {
        None
    }

    /// The device's own memory behind the range, for I/O without a copy, if
    /// it has such memory. The range has been checked by the caller.
    fn map_read(&self, offset: u64, len: usize) -> Option<Segment> {
        let _ = (offset, len);
        None
    }

    /// As [`map_read`](Self::map_read), for the kernel to write to.
    fn map_write(&self, offset: u64, len: usize) -> Option<Segment> {
        let _ = (offset, len);
        None
    }
}

/// Reads a range of an open device, in pieces as large as it takes, all at the same time.
///
/// # Errors
/// Those of [`BlockIo::read`].
pub async fn read_range(io: &dyn BlockIo, info: &DeviceInfo, offset: u64, len: u64) -> IoResult<Vec<u8>> {
    let piece = u64::from(info.max_io).max(u64::from(info.block_size));
    let starts = (0..len).step_by(piece as usize);
    let reads: Vec<_> = starts
        .map(|start| io.read(offset + start, BufMut::zeroed(piece.min(len - start) as usize)))
        .collect();
    let mut all = Vec::with_capacity(len as usize);
    for part in futures_util::future::try_join_all(reads).await? {
        all.extend_from_slice(&part);
    }
    Ok(all)
}
