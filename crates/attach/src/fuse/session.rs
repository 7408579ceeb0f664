//! A device as a file: requests of the kernel become [`Request`]s.

use super::tuning;
use crate::served::{Request, Requests};
use longhaul_block::{IoError, ZeroFlags};
use longhaul_cache::ErrorCursor;
use longhaul_engine::Buf;
use longhaul_fuse::{Attr, Operation, Reply, Server, Session, Statistics, abi};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time for which the kernel may cache attributes: the size may change.
const ATTRIBUTES: Duration = Duration::from_secs(1);

/// The one file of the mount, which is the device.
struct File {
    requests: Arc<dyn Requests>,
    handles: Mutex<HashMap<u64, Arc<ErrorCursor>>>,
    next: AtomicU64,
    mode: u32,
    owner: (u32, u32),
    began: Duration,
}

/// Answers the kernel until the file is unmounted, and calls `ended` then.
///
/// # Errors
/// The kernel's version of the protocol is not supported, or no thread can be started.
pub(super) fn start(
    requests: Arc<dyn Requests>,
    device: OwnedFd,
    allow_other: bool,
    ended: Box<dyn FnOnce() + Send>,
) -> io::Result<std::thread::JoinHandle<io::Result<()>>> {
    let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mode = match (requests.info().read_only, allow_other) {
        (true, false) => 0o400,
        (true, true) => 0o444,
        (false, false) => 0o600,
        (false, true) => 0o666,
    };
    let (handles, next) = (Mutex::default(), AtomicU64::new(1));
    let file = File { requests, handles, next, mode, owner, began: longhaul_engine::wall_time() };
    let wishes = abi::init::ASYNC_DIO | abi::init::DIRECT_IO_ALLOW_MMAP;
    let session = Session::new(device, Arc::new(file), tuning::options(wishes))?;
    std::thread::Builder::new().name("longhaul-fuse".into()).spawn(move || {
        let result = session.run();
        ended();
        result
    })
}

fn errno(e: &IoError) -> i32 {
    match e {
        IoError::OutOfRange { .. } | IoError::NoSpace => libc::ENOSPC,
        IoError::Unaligned { .. } => libc::EINVAL,
        IoError::ReadOnly => libc::EROFS,
        IoError::Unsupported(_) => libc::EOPNOTSUPP,
        // As the kernel reports a reservation conflict.
        IoError::Reserved => libc::EBADE,
        IoError::Refused(_)
        | IoError::Unreachable(_)
        | IoError::Offline(_)
        | IoError::Medium(_)
        | IoError::Integrity(_)
        | IoError::Aborted => libc::EIO,
    }
}

impl File {
    fn attributes(&self) -> Attr {
        let info = self.requests.info();
        Attr {
            ino: abi::ROOT,
            size: info.size,
            blocks: info.size / 512,
            mode: libc::S_IFREG | self.mode,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            blksize: info.optimal_io.max(info.block_size),
            ..Attr::as_of(self.began.as_secs(), self.began.subsec_nanos())
        }
    }

    fn handle(&self, handle: u64) -> Arc<ErrorCursor> {
        let handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        handles.get(&handle).cloned().unwrap_or_else(|| self.requests.handle())
    }

    /// Starts a request whose reply has no data.
    fn start(&self, request: Request, reply: Reply) {
        let done = move |result: Result<Buf, IoError>| match result {
            Ok(_) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        };
        self.requests.start(request, Box::new(done));
    }

    /// Without the page cache: read-ahead and write-behind follow the path here.
    fn open(&self, reply: Reply) {
        let number = self.next.fetch_add(1, Relaxed);
        let handle = self.requests.handle();
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).insert(number, handle);
        reply.opened(number, abi::open::DIRECT_IO | abi::open::PARALLEL_DIRECT_WRITES);
    }

    fn read(&self, offset: u64, size: u32, reply: Reply) {
        let len = u64::from(size).min(self.requests.info().size.saturating_sub(offset));
        if len == 0 {
            return reply.data(&[]);
        }
        let done = move |result: Result<Buf, IoError>| match result {
            Ok(bytes) => reply.data(&bytes),
            // The range was checked against the size before.
            Err(IoError::OutOfRange { .. }) => reply.error(libc::EIO),
            Err(e) => reply.error(errno(&e)),
        };
        self.requests.start(Request::Read { offset, len }, Box::new(done));
    }

    fn write(&self, offset: u64, data: &[u8], flags: u32, reply: Reply) {
        // As with a block device: a write is cut off at the end, and fails with no space beyond it.
        let room = self.requests.info().size.saturating_sub(offset);
        let taken = data.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if taken == 0 && !data.is_empty() {
            return reply.error(libc::ENOSPC);
        }
        let done = move |result: Result<Buf, IoError>| match result {
            Ok(_) => reply.written(taken as u32),
            Err(e) => reply.error(errno(&e)),
        };
        let data = Buf::copy_of(&data[..taken]);
        // The kernel does not make direct writes durable.
        let fua = flags.cast_signed() & (libc::O_DSYNC | libc::O_SYNC) != 0;
        self.requests.start(Request::Write { offset, data, fua }, Box::new(done));
    }

    /// A hole must read as zeroes, which a discard does not promise; a device that can deallocates
    /// the range.
    fn allocate(&self, offset: u64, length: u64, mode: i32, reply: Reply) {
        let end = offset.checked_add(length).filter(|&end| end <= self.requests.info().size);
        let known = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        let may_deallocate = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
        let zeroes = may_deallocate || mode & libc::FALLOC_FL_ZERO_RANGE != 0;
        match (end, mode & !known) {
            (None, _) => reply.error(libc::ENOSPC),
            (_, 0) if zeroes => {
                let flags = ZeroFlags { may_deallocate, fua: false };
                self.start(Request::Zero { offset, len: length, flags }, reply);
            }
            // All of a device's space is allocated.
            (_, 0) => reply.ok(),
            _ => reply.error(libc::EOPNOTSUPP),
        }
    }

    fn statistics(&self) -> Statistics {
        let info = self.requests.info();
        let block_size = info.block_size;
        Statistics {
            blocks: info.size / u64::from(block_size),
            files: 1,
            block_size,
            name_max: 255,
            ..Statistics::default()
        }
    }
}

impl Server for File {
    fn request(&self, request: longhaul_fuse::Request<'_>, reply: Reply) {
        match request.operation {
            Operation::GetAttr { .. } => reply.attr(ATTRIBUTES, &self.attributes()),
            Operation::SetAttr(new) if new.mode.is_some() || new.uid.is_some() || new.gid.is_some() => {
                reply.error(libc::EPERM);
            }
            // A device keeps its size: `O_TRUNC`, as of a shell's redirection, changes nothing, as on a
            // block device.
            Operation::SetAttr(_) => reply.attr(ATTRIBUTES, &self.attributes()),
            Operation::Open { .. } => self.open(reply),
            Operation::Release(release) => {
                self.handles.lock().unwrap_or_else(PoisonError::into_inner).remove(&release.handle);
                reply.ok();
            }
            Operation::Read { offset, size, .. } => self.read(offset, size, reply),
            Operation::Write { offset, data, flags, .. } => self.write(offset, data, flags, reply),
            // At each `close`: a program that does not call `fsync` gets the error of a lost write
            // here, as on NFS. Its next `fsync` fails all the same: the `close` may have been that of a
            // copied descriptor, also of the copies that a child has between fork and exec.
            Operation::Flush { handle, .. } => self.start(Request::Drain(self.handle(handle)), reply),
            Operation::Sync { handle, .. } => self.start(Request::Flush(self.handle(handle)), reply),
            Operation::Allocate { offset, len, mode, .. } => {
                self.allocate(offset, len, mode.cast_signed(), reply);
            }
            Operation::Statistics => reply.statistics(&self.statistics()),
            _ => reply.error(libc::ENOSYS),
        }
    }
}
