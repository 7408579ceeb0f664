//! File operations below a directory that path resolution cannot leave.
//!
//! Invariants: every path is resolved beneath the directory's descriptor, and
//! no symbolic link in it is followed (`openat2(2)` with
//! `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`, or component by component with
//! `O_NOFOLLOW` where the kernel has no `openat2`). So neither a hostile name
//! nor a directory that is swapped for a link meanwhile leads outside.

pub(crate) mod case_folding;
mod entries;
mod errors;
pub(crate) mod filter;
mod metadata;
mod names;
mod objects;
pub(crate) mod root;
pub(crate) mod scan;
pub(crate) mod stamps;
mod walker;

pub(crate) use entries::{entry, entry_at, is_special};
pub(crate) use errors::{is_full, is_in_the_way, is_not_empty, say};
pub(crate) use metadata::{
    ACCESS_LIST, MetadataPolicy, has_mode_and_owner, is_access_list, remove_xattrs, set_link_metadata,
    set_metadata, xattrs, xattrs_differ,
};
pub(crate) use names::DirectoryNames;
pub(crate) use objects::{
    create, hard_link, make_writable, open_file, open_own, remove, remove_directory, rename_in, rename_to,
    restore_mode, symlink,
};
pub(crate) use walker::Walker;

use crate::wire::{Entry, RelPath};
use objects::remove_for_directory;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Mode of parent directories that are created before their own entry arrives.
const PARENT_MODE: u32 = 0o700;

/// The root of a tree.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: Arc<OwnedFd>,
    /// Prefix of all paths, if the root itself has a name in the copy.
    name: Option<Arc<[u8]>>,
}

fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Opens a directory below another, by a path without symbolic links.
fn open_beneath(at: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    if path.is_empty() {
        return rustix::io::fcntl_dupfd_cloexec(at, 0);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(at, os(path), flags, Mode::empty(), how) {
        Err(Errno::NOSYS | Errno::PERM) => walk(at, path, |at, name| {
            rustix::fs::openat(at, os(name), flags | OFlags::NOFOLLOW, Mode::empty())
        }),
        result => result,
    }
}

/// A path's directory and its last component.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

fn walk(
    at: BorrowedFd<'_>,
    path: &[u8],
    mut step: impl FnMut(BorrowedFd<'_>, &[u8]) -> Result<OwnedFd, Errno>,
) -> Result<OwnedFd, Errno> {
    let mut here = rustix::io::fcntl_dupfd_cloexec(at, 0)?;
    for name in path.split(|b| *b == b'/') {
        here = step(here.as_fd(), name)?;
    }
    Ok(here)
}

impl Tree {
    /// The tree at `path`. Symbolic links in it are followed, since the local user
    /// chooses roots.
    pub(crate) fn open(path: &Path) -> io::Result<Tree> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Tree { root: Arc::new(rustix::fs::open(path, flags, Mode::empty())?), name: None })
    }

    /// A tree below this one. The path is a peer's: symbolic links in it are followed as
    /// long as they stay beneath this root.
    pub(crate) fn below(&self, path: &[u8]) -> io::Result<Tree> {
        if path.is_empty() {
            return Ok(self.clone());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let root = match rustix::fs::openat2(&*self.root, os(path), flags, Mode::empty(), how) {
            Err(Errno::NOSYS | Errno::PERM) => open_beneath(self.root.as_fd(), path)?,
            result => result?,
        };
        Ok(Tree { root: Arc::new(root), name: None })
    }

    /// The same tree, whose root has the path `name` in the copy.
    pub(crate) fn named(self, name: &[u8]) -> Tree {
        Tree { name: Some(name.into()), ..self }
    }

    /// Strips the name of the root from a path.
    fn inside<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        match self.name.as_deref().and_then(|name| path.strip_prefix(name)) {
            Some([]) => &[],
            Some([b'/', below @ ..]) => below,
            _ => path,
        }
    }

    /// Opens the directory that holds an object; returns it with the object's name in it,
    /// which is empty for the root.
    pub(crate) fn parent<'a>(&self, path: &'a RelPath) -> io::Result<(OwnedFd, &'a [u8])> {
        let (parent, name) = split(self.inside(path.as_bytes()));
        Ok((open_beneath(self.fd(), parent)?, name))
    }

    /// Checks that this user has search permission for the root.
    ///
    /// # Errors
    /// Those of `openat(2)`.
    pub(crate) fn enter(&self) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.fd(), c".", flags, Mode::empty()).map(drop)?)
    }

    /// The root's descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a directory below, without following a link.
    pub(crate) fn directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        Ok(open_beneath(self.fd(), self.inside(path))?)
    }

    /// Opens a directory, creating it and its parents if they are missing.
    pub(crate) fn make(&self, path: &[u8]) -> io::Result<OwnedFd> {
        match open_beneath(self.fd(), path) {
            Err(Errno::NOENT) => {}
            result => return Ok(result?),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(walk(self.fd(), path, |at, name| match rustix::fs::openat(at, os(name), flags, Mode::empty()) {
            Err(Errno::NOENT) => match rustix::fs::mkdirat(at, os(name), Mode::from_raw_mode(PARENT_MODE)) {
                Ok(()) | Err(Errno::EXIST) => rustix::fs::openat(at, os(name), flags, Mode::empty()),
                // Some file systems report an unsupported name as EINVAL.
                Err(Errno::INVAL) => Err(Errno::ILSEQ),
                Err(e) => Err(e),
            },
            result => result,
        })?)
    }

    /// Removes the first component of `path` that is not a directory. A symbolic link is
    /// removed itself, not its target.
    pub(crate) fn clear(&self, path: &[u8]) -> io::Result<()> {
        let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let (parent, name) = split(&path[..end]);
            let at = open_beneath(self.fd(), parent)?;
            let stat = match rustix::fs::statat(&at, os(name), AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Ok(()),
                result => result?,
            };
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                return remove_for_directory(at.as_fd(), name);
            }
        }
        Ok(())
    }

    /// The entry at `path`, if one exists; symbolic links are not followed.
    pub(crate) fn look(&self, path: &RelPath) -> io::Result<Option<Entry>> {
        Ok(self.look_in(path)?.map(|found| found.entry))
    }

    /// As [`look`](Self::look), with `stat(2)` data and the directory that holds it.
    pub(crate) fn look_in(&self, path: &RelPath) -> io::Result<Option<Lookup>> {
        let (directory, name) = match self.parent(path) {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            result => result?,
        };
        let found = entry_at(directory.as_fd(), name, path.clone())?;
        Ok(found.map(|(entry, stat)| Lookup { entry, stat, directory }))
    }

    /// Flushes the tree's file system. `opened` is a descriptor opened before the writes:
    /// `syncfs(2)` reports each write error since then to every descriptor once.
    pub(crate) fn sync(&self, opened: Option<&OwnedFd>) -> io::Result<()> {
        match opened {
            Some(opened) => Ok(rustix::fs::syncfs(opened)?),
            // syncfs(2) refuses O_PATH descriptors.
            None => Ok(rustix::fs::syncfs(readable(self.fd())?)?),
        }
    }
}

/// An object that exists in a tree.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub(crate) entry: Entry,
    pub(crate) stat: Stat,
    /// The directory that holds it.
    pub(crate) directory: OwnedFd,
}

/// Reopens an `O_PATH` directory for reading and `fsync(2)`.
pub(crate) fn readable(directory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, c".", flags, Mode::empty())?)
}
