//! The one module that uses `fuser`: its calls become [`Request`]s.

use super::tuning;
use crate::served::{Request, Requests};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyStatfs, ReplyWrite, WriteFlags,
};
use longhaul_block::{IoError, ZeroFlags};
use longhaul_cache::ErrorCursor;
use longhaul_engine::Buf;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Time for which the kernel may cache attributes: the size may change.
const ATTRIBUTES: Duration = Duration::from_secs(1);
/// The one file of the mount, which is the device.
struct File {
    requests: Arc<dyn Requests>,
    handles: Mutex<HashMap<u64, Arc<ErrorCursor>>>,
    next: AtomicU64,
    mode: u16,
    owner: (u32, u32),
    began: SystemTime,
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
    let file = File { requests, handles, next, mode, owner, began: SystemTime::now() };
    let (acl, config) = tuning::session(allow_other);
    let session = fuser::Session::from_fd(file, device, acl, config)?;
    std::thread::Builder::new().name("longhaul-fuse".into()).spawn(move || {
        let result = session.run();
        ended();
        result
    })
}

fn errno(e: &IoError) -> Errno {
    Errno::from_i32(match e {
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
    })
}

impl File {
    fn attributes(&self) -> FileAttr {
        let info = self.requests.info();
        FileAttr {
            ino: INodeNo::ROOT,
            size: info.size,
            blocks: info.size / 512,
            atime: self.began,
            mtime: self.began,
            ctime: self.began,
            crtime: self.began,
            kind: FileType::RegularFile,
            perm: self.mode,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: info.optimal_io.max(info.block_size),
            flags: 0,
        }
    }

    fn handle(&self, fh: FileHandle) -> Arc<ErrorCursor> {
        let handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        handles.get(&fh.0).cloned().unwrap_or_else(|| self.requests.handle())
    }

    /// Starts a request whose reply has no data.
    fn start(&self, request: Request, reply: ReplyEmpty) {
        let done = move |result: Result<Buf, IoError>| match result {
            Ok(_) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        };
        self.requests.start(request, Box::new(done));
    }
}

impl Filesystem for File {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        tuning::negotiate(config, &[InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP]);
        Ok(())
    }

    fn getattr(&self, _: &fuser::Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES, &self.attributes());
    }

    /// A device keeps its size: `O_TRUNC`, as of a shell's redirection, changes nothing, as on a
    /// block device.
    fn setattr(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _size: Option<u64>,
        _: Option<fuser::TimeOrNow>,
        _: Option<fuser::TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::from_i32(libc::EPERM));
        }
        reply.attr(&ATTRIBUTES, &self.attributes());
    }

    /// Without the page cache: read-ahead and write-behind follow the path here.
    fn open(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let fh = self.next.fetch_add(1, Relaxed);
        let handle = self.requests.handle();
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).insert(fh, handle);
        reply.opened(FileHandle(fh), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn release(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).remove(&fh.0);
        reply.ok();
    }

    fn read(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = u64::from(size).min(self.requests.info().size.saturating_sub(offset));
        if len == 0 {
            return reply.data(&[]);
        }
        let done = move |result: Result<Buf, IoError>| match result {
            Ok(bytes) => reply.data(&bytes),
            // The range was checked against the size before.
            Err(IoError::OutOfRange { .. }) => reply.error(Errno::from_i32(libc::EIO)),
            Err(e) => reply.error(errno(&e)),
        };
        self.requests.start(Request::Read { offset, len }, Box::new(done));
    }

    fn write(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        open: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // As with a block device: a write is cut off at the end, and fails with no space beyond it.
        let room = self.requests.info().size.saturating_sub(offset);
        let taken = data.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if taken == 0 && !data.is_empty() {
            return reply.error(Errno::from_i32(libc::ENOSPC));
        }
        let done = move |result: Result<Buf, IoError>| match result {
            Ok(_) => reply.written(taken as u32),
            Err(e) => reply.error(errno(&e)),
        };
        let data = Buf::copy_of(&data[..taken]);
        // The kernel does not make direct writes durable.
        let fua = open.0 & (libc::O_DSYNC | libc::O_SYNC) != 0;
        self.requests.start(Request::Write { offset, data, fua }, Box::new(done));
    }

    /// Called at each `close`: a program that does not call `fsync` gets the error of a lost write
    /// here, as on NFS. Its next `fsync` fails all the same: the `close` may have been that of a
    /// copied descriptor, also of the copies that a child has between fork and exec.
    fn flush(&self, _: &fuser::Request, _: INodeNo, fh: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.start(Request::Drain(self.handle(fh)), reply);
    }

    fn fsync(&self, _: &fuser::Request, _: INodeNo, fh: FileHandle, _: bool, reply: ReplyEmpty) {
        self.start(Request::Flush(self.handle(fh)), reply);
    }

    /// A hole must read as zeroes, which a discard does not promise; a device that can deallocates
    /// the range.
    fn fallocate(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let end = offset.checked_add(length).filter(|&end| end <= self.requests.info().size);
        let known = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        let may_deallocate = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
        let zeroes = may_deallocate || mode & libc::FALLOC_FL_ZERO_RANGE != 0;
        match (end, mode & !known) {
            (None, _) => reply.error(Errno::from_i32(libc::ENOSPC)),
            (_, 0) if zeroes => {
                let flags = ZeroFlags { may_deallocate, fua: false };
                self.start(Request::Zero { offset, len: length, flags }, reply);
            }
            // All of a device's space is allocated.
            (_, 0) => reply.ok(),
            _ => reply.error(Errno::from_i32(libc::EOPNOTSUPP)),
        }
    }

    fn statfs(&self, _: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        let info = self.requests.info();
        let block = info.block_size;
        reply.statfs(info.size / u64::from(block), 0, 0, 1, 0, block, 255, block);
    }
}
