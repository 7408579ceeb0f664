//! Operations on one object of a directory: create, open, rename, link, remove.
//!
//! Invariant: no operation follows a symbolic link in the place of the object.

use super::{Tree, open_beneath, os, split};
use crate::wire::RelPath;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

/// Creates a temporary file under a reserved name. An existing one is continued with
/// `keep_content` if this user owns it and it has no other links, else replaced, so that
/// no file or link planted by another user is written to. Returns whether the existing
/// file was kept.
pub(crate) fn create(at: BorrowedFd<'_>, name: &[u8], keep_content: bool) -> io::Result<(File, bool)> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if keep_content
        && let Ok(fd) = rustix::fs::openat(at, os(name), flags | OFlags::NONBLOCK, Mode::empty())
        && is_own(&rustix::fs::fstat(&fd)?)
    {
        return Ok((fd.into(), true));
    }
    let (flags, mode) = (flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o600));
    match rustix::fs::openat(at, os(name), flags, mode) {
        Err(Errno::EXIST) => {
            remove(at, name)?;
            Ok((rustix::fs::openat(at, os(name), flags, mode)?.into(), false))
        }
        result => Ok((result?.into(), false)),
    }
}

/// Whether a regular file is owned by this user and has no other hard link.
fn is_own(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1
        && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Opens an unfinished file of this user for reading.
///
/// # Errors
/// It does not exist, or another user owns or has linked it.
pub(crate) fn open_own(tree: &Tree, path: &[u8]) -> io::Result<File> {
    let (parent, name) = split(path);
    let parent = open_beneath(tree.fd(), parent)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat(parent, os(name), flags, Mode::empty())?;
    if is_own(&rustix::fs::fstat(&file)?) { Ok(file.into()) } else { Err(Errno::PERM.into()) }
}

/// Opens a file for reading, without following links.
pub(crate) fn open_file(tree: &Tree, path: &RelPath) -> io::Result<File> {
    // O_NONBLOCK: opening must not hang if a named pipe replaced the file.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(tree.fd(), os(tree.inside(path.as_bytes())), flags, Mode::empty(), how) {
        Err(Errno::NOSYS | Errno::PERM) => {
            let (parent, name) = tree.parent(path)?;
            Ok(rustix::fs::openat(parent, os(name), flags, Mode::empty())?.into())
        }
        result => Ok(result?.into()),
    }
}

/// Makes a directory of this user writable; returns its original mode if that was
/// changed.
pub(crate) fn make_writable(directory: BorrowedFd<'_>) -> Option<u32> {
    let (stat, user) = (rustix::fs::fstat(directory).ok()?, rustix::process::geteuid());
    let (mode, write) = (stat.st_mode & 0o7777, 0o300);
    if stat.st_uid != user.as_raw() || mode & write == write {
        return None;
    }
    let opened = Mode::from_raw_mode(mode | write);
    rustix::fs::chmodat(directory, c".", opened, AtFlags::empty()).ok().map(|()| mode)
}

/// Restores the mode of a directory that [`make_writable`] changed.
pub(crate) fn restore_mode(directory: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::chmodat(directory, c".", Mode::from_raw_mode(mode), AtFlags::empty())?)
}

/// Renames a temporary file to its name, replacing a file, link or empty directory.
pub(crate) fn rename_to(at: BorrowedFd<'_>, from: &[u8], to: &[u8]) -> io::Result<()> {
    rename_in(at, from, at, to)
}

/// As [`rename_to`], between two directories of a file system.
pub(crate) fn rename_in(
    before: BorrowedFd<'_>,
    from: &[u8],
    at: BorrowedFd<'_>,
    to: &[u8],
) -> io::Result<()> {
    match rustix::fs::renameat(before, os(from), at, os(to)) {
        Err(Errno::ISDIR) => {
            rustix::fs::unlinkat(at, os(to), AtFlags::REMOVEDIR)?;
            Ok(rustix::fs::renameat(before, os(from), at, os(to))?)
        }
        Err(Errno::INVAL) => Err(Errno::ILSEQ.into()),
        result => Ok(result?),
    }
}

/// Removes a file, if it exists.
pub(crate) fn remove(at: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match rustix::fs::unlinkat(at, os(name), AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}

/// Removes a file that has the name of a directory, unless another thread has replaced it
/// with the directory meanwhile.
pub(super) fn remove_for_directory(at: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match remove(at, name) {
        Err(e) if e.kind() == io::ErrorKind::IsADirectory => Ok(()),
        result => result,
    }
}

/// Removes an empty directory.
pub(crate) fn remove_directory(at: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(at, os(name), AtFlags::REMOVEDIR)?)
}

/// Creates a symbolic link under a temporary name.
pub(crate) fn symlink(at: BorrowedFd<'_>, target: &[u8], name: &[u8]) -> io::Result<()> {
    remove(at, name)?;
    Ok(rustix::fs::symlinkat(os(target), at, os(name))?)
}

/// Creates a hard link to `from` in directory `old`.
pub(crate) fn hard_link(old: BorrowedFd<'_>, from: &[u8], at: BorrowedFd<'_>, to: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::linkat(old, os(from), at, os(to), AtFlags::empty())?)
}
