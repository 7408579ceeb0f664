//! Operations on one object of a directory: create, open, rename, link, remove.
//!
//! Invariant: no operation follows a symbolic link in the place of the object.

use super::{Directory, File, Inode, Status, Tree, open_beneath, os, split};
use crate::wire::RelPath;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::io;

/// Creates a temporary file under a reserved name. An existing one is continued with
/// `keep_content` if this user owns it and it has no other links, else replaced, so that
/// no file or link planted by another user is written to. Returns whether the existing
/// file was kept.
pub(crate) fn create(at: &Directory, name: &[u8], keep_content: bool) -> io::Result<(File, bool)> {
    if keep_content
        && let Ok(file) = at.open_file(name, true)
        && is_own(&file, &file.status()?)
    {
        return Ok((file, true));
    }
    match at.create_file(name, 0o600) {
        Err(Errno::EXIST) => {
            remove(at, name)?;
            Ok((at.create_file(name, 0o600)?, false))
        }
        result => Ok((result?, false)),
    }
}

/// Whether a regular file is owned by this user and has no other hard link. In a mounted file system files
/// may belong to anyone: all who reach it may write everything.
fn is_own(file: &File, status: &Status) -> bool {
    (file.is_far() || status.uid == rustix::process::geteuid().as_raw())
        && status.links == 1
        && status.kind() == FileType::RegularFile
}

/// Opens an unfinished file of this user for reading.
///
/// # Errors
/// It does not exist, or another user owns or has linked it.
pub(crate) fn open_own(tree: &Tree, path: &[u8]) -> io::Result<File> {
    let (parent, name) = split(path);
    let file = open_beneath(tree.top(), parent)?.open_file(name, false)?;
    if is_own(&file, &file.status()?) { Ok(file) } else { Err(Errno::PERM.into()) }
}

/// Opens a file for reading, without following links.
pub(crate) fn open_file(tree: &Tree, path: &RelPath) -> io::Result<File> {
    // O_NONBLOCK: opening must not hang if a named pipe replaced the file.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let inside = os(tree.inside(path.as_bytes()));
    let opened = tree.top().fd().map(|fd| rustix::fs::openat2(fd, inside, flags, Mode::empty(), how));
    match opened {
        None | Some(Err(Errno::NOSYS | Errno::PERM)) => {
            let (parent, name) = tree.parent(path)?;
            Ok(parent.open_file(name, false)?)
        }
        Some(result) => Ok(File::Os(result?.into())),
    }
}

/// Makes a directory of this user writable; returns its original mode if that was
/// changed.
pub(crate) fn make_writable(directory: &Directory) -> Option<u32> {
    let (status, user) = (directory.status().ok()?, rustix::process::geteuid());
    let (mode, write) = (status.mode & 0o7777, 0o300);
    if status.uid != user.as_raw() || mode & write == write {
        return None;
    }
    directory.set_own_mode(mode | write).ok().map(|()| mode)
}

/// Restores the mode of a directory that [`make_writable`] changed.
pub(crate) fn restore_mode(directory: &Directory, mode: u32) -> io::Result<()> {
    directory.set_own_mode(mode)
}

/// Renames a temporary file to its name, replacing a file, link or empty directory.
pub(crate) fn rename_to(at: &Directory, from: &[u8], to: &[u8]) -> io::Result<()> {
    rename_in(at, from, at, to)
}

/// As [`rename_to`], between two directories of a file system.
pub(crate) fn rename_in(before: &Directory, from: &[u8], at: &Directory, to: &[u8]) -> io::Result<()> {
    match before.rename(from, at, to) {
        Err(Errno::ISDIR) => {
            at.remove(to, true)?;
            Ok(before.rename(from, at, to)?)
        }
        Err(Errno::INVAL) => Err(Errno::ILSEQ.into()),
        result => Ok(result?),
    }
}

/// Removes a file, if it exists.
pub(crate) fn remove(at: &Directory, name: &[u8]) -> io::Result<()> {
    match at.remove(name, false) {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}

/// Removes a file that has the name of a directory, unless another thread has replaced it
/// with the directory meanwhile.
pub(super) fn remove_for_directory(at: &Directory, name: &[u8]) -> io::Result<()> {
    match remove(at, name) {
        Err(e) if e.kind() == io::ErrorKind::IsADirectory => Ok(()),
        result => result,
    }
}

/// Removes an empty directory.
pub(crate) fn remove_directory(at: &Directory, name: &[u8]) -> io::Result<()> {
    Ok(at.remove(name, true)?)
}

/// Creates a symbolic link under a temporary name.
pub(crate) fn symlink(at: &Directory, target: &[u8], name: &[u8]) -> io::Result<()> {
    remove(at, name)?;
    Ok(at.make_symlink(target, name)?)
}

/// Creates a hard link to `from` in directory `old`.
pub(crate) fn hard_link(old: &Directory, from: &[u8], at: &Directory, to: &[u8]) -> io::Result<()> {
    Ok(old.link(from, at, to)?)
}
