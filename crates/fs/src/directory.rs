//! A directory of this machine as a file system.
//!
//! Invariants:
//! - no call reaches an object outside the directory: paths are resolved beneath its descriptor,
//!   and symbolic links are not followed, but returned to the client (`openat2(2)` with
//!   `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`);
//! - a call reaches the object that its number was given for, or fails with `ESTALE`: the
//!   object of the remembered name is compared by device, inode and time of birth;
//! - only regular files are opened.

mod listing;
mod nodes;
mod objects;
mod stat;

use crate::call::{Call, DATA_MAX, Handle, Node, Reply, Statistics, check_name};
use crate::{Attributes, Changes, Done, FileKind, FileSystem, TimeChange};
use listing::Listings;
use longhaul_engine::{Buf, BufMut};
use nodes::{NodePlace, Nodes};
use objects::{Object, proc_path};
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, XattrFlags,
};
use rustix::io::Errno;
use stat::{attributes, identity, is_plain};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Flags of open(2) that a client may choose; others concern its own side.
const OPEN_FLAGS: OFlags = OFlags::ACCMODE
    .union(OFlags::APPEND)
    .union(OFlags::TRUNC)
    .union(OFlags::EXCL)
    .union(OFlags::DSYNC)
    .union(OFlags::SYNC);
/// Longest value of an extended attribute in bytes (xattr(7)).
const XATTR_MAX: usize = 64 << 10;

/// A directory of this machine, with all below it.
pub struct Directory {
    root: OwnedFd,
    read_only: bool,
    nodes: Mutex<Nodes>,
    files: Mutex<HashMap<Handle, Arc<OwnedFd>>>,
    next: AtomicU64,
    listings: Listings,
}

fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Directory {
    /// The file system whose top is the directory `root`, a descriptor that may be `O_PATH`. With
    /// `read_only`, changes are refused with `EROFS`.
    ///
    /// # Errors
    /// The directory has no attributes that can be read.
    pub fn new(root: OwnedFd, read_only: bool) -> Result<Directory, Errno> {
        let (top, _) = identity(root.as_fd(), b"")?;
        Ok(Directory {
            nodes: Mutex::new(Nodes::new(top)),
            root,
            read_only,
            files: Mutex::default(),
            next: AtomicU64::new(1),
            listings: Listings::default(),
        })
    }

    /// Executes a call. The calling thread waits for the file system of this machine.
    ///
    /// # Errors
    /// Those of the system call; `ESTALE` for an object whose name belongs to another one now.
    pub fn execute(&self, call: Call) -> Result<Reply, Errno> {
        if self.read_only && call.is_change() {
            return Err(Errno::ROFS);
        }
        match call {
            Call::Lookup { parent, name } => {
                let parent_fd = self.directory(parent)?;
                self.entry(parent, parent_fd.as_fd(), &name)
            }
            Call::Forget { node, lookups } => {
                lock(&self.nodes).forget(node, lookups);
                Ok(Reply::Done)
            }
            Call::Attributes { node, handle } => self.attributes(node, handle).map(Reply::Attributes),
            Call::Change { node, handle, changes } => {
                self.change(node, handle, &changes)?;
                self.attributes(node, handle).map(Reply::Attributes)
            }
            Call::ReadLink { node } => {
                let object = self.object(node)?;
                let target = rustix::fs::readlinkat(&object.parent, os(&object.name), Vec::new())?;
                Ok(Reply::Bytes(target.into_bytes()))
            }
            Call::Create { parent, name, mode, flags } => self.create(parent, &name, mode, flags),
            Call::MakeDirectory { parent, name, mode } => {
                self.make(parent, &name, |at, name| rustix::fs::mkdirat(at, name, permissions(mode)))
            }
            Call::MakeNode { parent, name, mode, rdev } => self.make(parent, &name, |at, name| {
                let kind = rustix::fs::FileType::from_raw_mode(mode);
                rustix::fs::mknodat(at, name, kind, permissions(mode), rdev)
            }),
            Call::MakeSymlink { parent, name, target } => {
                self.make(parent, &name, |at, name| rustix::fs::symlinkat(os(&target), at, name))
            }
            Call::Link { node, parent, name } => {
                let from = self.object(node)?;
                self.make(parent, &name, |at, name| {
                    rustix::fs::linkat(&from.parent, os(&from.name), at, name, AtFlags::empty())
                })
            }
            Call::Remove { parent, name, directory } => {
                check_name(&name)?;
                let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                rustix::fs::unlinkat(self.directory(parent)?, os(&name), flags)?;
                Ok(Reply::Done)
            }
            Call::Rename { parent, name, new_parent, new_name, flags } => {
                self.rename(parent, &name, new_parent, &new_name, flags)
            }
            Call::Open { node, flags } => self.open(node, flags),
            Call::Close { handle } => {
                // The lock ends with this statement. Closing a file may wait until its content is written back.
                let file = lock(&self.files).remove(&handle);
                drop(file);
                Ok(Reply::Done)
            }
            Call::Read { handle, offset, len } => {
                let mut data = BufMut::zeroed((len as usize).min(DATA_MAX));
                let read = self.read(handle, offset, &mut data)?;
                data.truncate(read);
                Ok(Reply::Data(data.freeze()))
            }
            Call::Write { handle, offset, data } => self.write(handle, offset, &data),
            Call::Flush { handle } => self.file(handle).map(|_| Reply::Done),
            Call::Sync { handle, data_only } => {
                let file = self.file(handle)?;
                if data_only {
                    rustix::fs::fdatasync(&*file)?
                } else {
                    rustix::fs::fsync(&*file)?
                }
                Ok(Reply::Done)
            }
            Call::SyncDirectory { node } => {
                let directory = self.directory(node)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::fsync(rustix::fs::openat(directory, c".", flags, Mode::empty())?)?;
                Ok(Reply::Done)
            }
            Call::ReadDirectory { node, stream, after } => self.list(node, stream, after),
            Call::CloseDirectory { stream } => {
                self.listings.close(stream);
                Ok(Reply::Done)
            }
            Call::Statistics => self.statistics(),
            Call::GetXattr { node, name } => {
                let object = self.object(node)?.opened()?;
                let mut value = vec![0; XATTR_MAX];
                let len = rustix::fs::getxattr(proc_path(&object), os(&name), &mut value[..])?;
                value.truncate(len);
                Ok(Reply::Bytes(value))
            }
            Call::ListXattrs { node } => {
                let object = self.object(node)?.opened()?;
                let mut names = vec![0; XATTR_MAX];
                let len = rustix::fs::listxattr(proc_path(&object), &mut names[..])?;
                names.truncate(len);
                Ok(Reply::Bytes(names))
            }
            Call::SetXattr { node, name, value, flags } => {
                let object = self.object(node)?.opened()?;
                let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
                rustix::fs::setxattr(proc_path(&object), os(&name), &value, flags)?;
                Ok(Reply::Done)
            }
            Call::RemoveXattr { node, name } => {
                let object = self.object(node)?.opened()?;
                rustix::fs::removexattr(proc_path(&object), os(&name))?;
                Ok(Reply::Done)
            }
            Call::Allocate { handle, offset, len, mode } => {
                let mode = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
                rustix::fs::fallocate(&*self.file(handle)?, mode, offset, len)?;
                Ok(Reply::Done)
            }
            Call::Seek { handle, offset, hole } => {
                let to = if hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) };
                Ok(Reply::Offset(rustix::fs::seek(&*self.file(handle)?, to)?))
            }
        }
    }

    /// Number of objects that the client knows.
    pub fn known(&self) -> usize {
        lock(&self.nodes).len()
    }

    /// Reads into memory of the caller; returns the number of bytes, fewer at the end of the file only.
    ///
    /// # Errors
    /// Those of pread(2); `EBADF` for an unknown handle.
    pub fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<usize, Errno> {
        let file = self.file(handle)?;
        let mut done = 0;
        while done < to.len() {
            match rustix::io::pread(&*file, &mut to[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write(&self, handle: Handle, offset: u64, data: &Buf) -> Result<Reply, Errno> {
        let file = self.file(handle)?;
        let mut done = 0;
        while done < data.len() {
            // With O_APPEND the kernel writes at the end, whatever the offset.
            match rustix::io::pwrite(&*file, &data[done..], offset + done as u64) {
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Reply::Written(done as u32))
    }

    fn file(&self, handle: Handle) -> Result<Arc<OwnedFd>, Errno> {
        lock(&self.files).get(&handle).cloned().ok_or(Errno::BADF)
    }

    /// The object, checked to be the one that its number was given for.
    fn object(&self, node: Node) -> Result<Object, Errno> {
        let places = lock(&self.nodes).places(node)?;
        let Some(places) = places else { return Object::top(self.root.as_fd()) };
        // An object with several names may have lost the newest.
        let mut failed = Errno::STALE;
        for NodePlace { directory, name, identity: known } in places {
            let parent = match objects::open_directory(self.root.as_fd(), &directory) {
                Ok(parent) => parent,
                Err(e) => {
                    failed = e;
                    continue;
                }
            };
            match identity(parent.as_fd(), &name) {
                Ok((there, _)) if there == known => return Ok(Object { parent, name, identity: known }),
                Ok(_) => failed = Errno::STALE,
                Err(e) => failed = e,
            }
        }
        Err(failed)
    }

    /// An `O_PATH` descriptor of a directory.
    fn directory(&self, node: Node) -> Result<OwnedFd, Errno> {
        let directory = self.object(node)?.opened()?;
        let (_, stat) = identity(directory.as_fd(), b"")?;
        match FileKind::of_mode(stat.stx_mode.into()) {
            Some(FileKind::Directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Looks up a name, and counts the lookup.
    fn entry(&self, parent: Node, at: BorrowedFd<'_>, name: &[u8]) -> Result<Reply, Errno> {
        self.look(parent, at, name).map(Reply::Entry)
    }

    fn look(&self, parent: Node, at: BorrowedFd<'_>, name: &[u8]) -> Result<Attributes, Errno> {
        check_name(name)?;
        let (identity, stat) = identity(at, name)?;
        let node = lock(&self.nodes).found(parent, name, identity)?;
        Ok(attributes(node, &identity, &stat, is_plain(at, name)))
    }

    fn attributes(&self, node: Node, handle: Option<Handle>) -> Result<Attributes, Errno> {
        if let Some(handle) = handle {
            let file = self.file(handle)?;
            let (identity, stat) = identity(file.as_fd(), b"")?;
            return Ok(attributes(node, &identity, &stat, is_plain(file.as_fd(), b"")));
        }
        let object = self.object(node)?;
        let (there, stat) = identity(object.parent.as_fd(), &object.name)?;
        if there != object.identity {
            return Err(Errno::STALE);
        }
        Ok(attributes(node, &there, &stat, is_plain(object.parent.as_fd(), &object.name)))
    }

    /// Makes an object, and looks it up.
    fn make(
        &self,
        parent: Node,
        name: &[u8],
        make: impl FnOnce(BorrowedFd<'_>, &OsStr) -> Result<(), Errno>,
    ) -> Result<Reply, Errno> {
        check_name(name)?;
        let at = self.directory(parent)?;
        make(at.as_fd(), os(name))?;
        self.entry(parent, at.as_fd(), name)
    }

    fn create(&self, parent: Node, name: &[u8], mode: u32, flags: u32) -> Result<Reply, Errno> {
        check_name(name)?;
        let at = self.directory(parent)?;
        let flags = open_flags(flags) | OFlags::CREATE;
        let file = rustix::fs::openat(&at, os(name), flags, permissions(mode))?;
        let (identity, stat) = identity(file.as_fd(), b"")?;
        if FileKind::of_mode(stat.stx_mode.into()) != Some(FileKind::Regular) {
            return Err(Errno::NXIO);
        }
        let node = lock(&self.nodes).found(parent, name, identity)?;
        let is_plain = is_plain(file.as_fd(), b"");
        Ok(Reply::Created(attributes(node, &identity, &stat, is_plain), self.keep(file)))
    }

    fn open(&self, node: Node, flags: u32) -> Result<Reply, Errno> {
        let object = self.object(node)?;
        let flags = open_flags(flags).difference(OFlags::EXCL);
        let file = rustix::fs::openat(&object.parent, os(&object.name), flags, Mode::empty())?;
        let (there, stat) = identity(file.as_fd(), b"")?;
        if there != object.identity {
            return Err(Errno::STALE);
        }
        if FileKind::of_mode(stat.stx_mode.into()) != Some(FileKind::Regular) {
            return Err(Errno::NXIO);
        }
        let attributes = attributes(node, &there, &stat, is_plain(file.as_fd(), b""));
        Ok(Reply::Opened(attributes, self.keep(file)))
    }

    fn keep(&self, file: OwnedFd) -> Handle {
        let handle = Handle(self.next.fetch_add(1, Relaxed));
        lock(&self.files).insert(handle, Arc::new(file));
        handle
    }

    fn change(&self, node: Node, handle: Option<Handle>, changes: &Changes) -> Result<(), Errno> {
        let object = match handle {
            Some(handle) => rustix::io::fcntl_dupfd_cloexec(&*self.file(handle)?, 0)?,
            None => self.object(node)?.opened()?,
        };
        // By the path of the descriptor, which is of the object itself, a link or not.
        let path = proc_path(&object);
        if let Some(size) = changes.size {
            // A descriptor that was opened for writing works whatever the permissions are now.
            match handle {
                Some(_) => rustix::fs::ftruncate(&object, size)?,
                None => {
                    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    rustix::fs::ftruncate(rustix::fs::open(&path, flags, Mode::empty())?, size)?;
                }
            }
        }
        if changes.uid.is_some() || changes.gid.is_some() {
            let (uid, gid) =
                (changes.uid.map(rustix::fs::Uid::from_raw), changes.gid.map(rustix::fs::Gid::from_raw));
            rustix::fs::chownat(&object, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = changes.mode {
            rustix::fs::chmod(&path, permissions(mode))?;
        }
        if changes.accessed.is_some() || changes.modified.is_some() {
            let times =
                Timestamps { last_access: time(changes.accessed), last_modification: time(changes.modified) };
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, AtFlags::empty())?;
        }
        Ok(())
    }

    fn rename(
        &self,
        parent: Node,
        name: &[u8],
        new_parent: Node,
        new_name: &[u8],
        flags: u32,
    ) -> Result<Reply, Errno> {
        check_name(name)?;
        check_name(new_name)?;
        let (from, to) = (self.directory(parent)?, self.directory(new_parent)?);
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let exchanged = flags.contains(RenameFlags::EXCHANGE);
        rustix::fs::renameat_with(&from, os(name), &to, os(new_name), flags)?;
        let mut moves = vec![((parent, name), (new_parent, to.as_fd(), new_name))];
        if exchanged {
            moves.push(((new_parent, new_name), (parent, from.as_fd(), name)));
        }
        for (before, (parent, at, name)) in moves {
            // If it is gone again already, the next call for it fails by itself.
            if let Ok((identity, _)) = identity(at, name) {
                lock(&self.nodes).renamed(before, parent, name, identity);
            }
        }
        Ok(Reply::Done)
    }

    fn statistics(&self) -> Result<Reply, Errno> {
        let stat = rustix::fs::fstatvfs(&self.root)?;
        Ok(Reply::Statistics(Statistics {
            block_size: u32::try_from(stat.f_frsize).unwrap_or(4096),
            blocks: stat.f_blocks,
            free: stat.f_bfree,
            available: stat.f_bavail,
            files: stat.f_files,
            files_free: stat.f_ffree,
            name_max: u32::try_from(stat.f_namemax).unwrap_or(255),
        }))
    }
}

impl FileSystem for Directory {
    /// Executes the call on the calling thread.
    fn start(&self, call: Call, done: Done) {
        done(self.execute(call));
    }
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory")
            .field("root", &self.root)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

/// Flags to open a file with; without waiting for the other end of a FIFO.
fn open_flags(flags: u32) -> OFlags {
    OFlags::from_bits_retain(flags).intersection(OPEN_FLAGS)
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

fn time(change: Option<TimeChange>) -> Timespec {
    match change {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeChange::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(TimeChange::At(time)) => Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
    }
}
