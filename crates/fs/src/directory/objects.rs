//! Objects by path, beneath a directory.

use super::os;
use super::stat::{Identity, identity};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Where an object is.
pub(super) struct Object {
    /// `O_PATH` descriptor of its directory.
    pub(super) parent: OwnedFd,
    /// Its name there; empty for the top, whose descriptor is `parent`.
    pub(super) name: Vec<u8>,
    pub(super) identity: Identity,
}

impl Object {
    /// The top directory.
    pub(super) fn top(root: BorrowedFd<'_>) -> Result<Object, Errno> {
        let parent = rustix::io::fcntl_dupfd_cloexec(root, 0)?;
        let (identity, _) = identity(parent.as_fd(), b"")?;
        Ok(Object { parent, name: Vec::new(), identity })
    }

    /// An `O_PATH` descriptor of the object itself, a symbolic link too.
    pub(super) fn opened(self) -> Result<OwnedFd, Errno> {
        if self.name.is_empty() {
            return Ok(self.parent);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let object = rustix::fs::openat(&self.parent, os(&self.name), flags, Mode::empty())?;
        let (there, _) = identity(object.as_fd(), b"")?;
        if there != self.identity { Err(Errno::STALE) } else { Ok(object) }
    }
}

/// Opens a directory below another, by a path without symbolic links.
pub(super) fn open_directory(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    if path.is_empty() {
        return rustix::io::fcntl_dupfd_cloexec(root, 0);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(root, os(path), flags, Mode::empty(), how) {
        // A component was replaced by a link.
        Err(Errno::LOOP | Errno::XDEV) => Err(Errno::STALE),
        result => result,
    }
}

/// The path by which system calls reach the object of an `O_PATH` descriptor.
pub(super) fn proc_path(object: impl AsFd) -> String {
    format!("/proc/self/fd/{}", object.as_fd().as_raw_fd())
}
