//! File operations below a directory that path resolution cannot leave.
//!
//! Invariants: every path is resolved beneath the directory's descriptor, and
//! no symbolic link in it is followed (`openat2(2)` with
//! `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`, or component by component with
//! `O_NOFOLLOW` where the kernel has no `openat2`). So neither a hostile name
//! nor a directory that is swapped for a link meanwhile leads outside.
//!
//! The directory is one of this machine, or of a file system that is reached by calls (`mounted`), where
//! paths are resolved component by component.

pub(crate) mod case_folding;
mod entries;
mod errors;
pub(crate) mod filter;
mod metadata;
mod mounted;
mod names;
mod object;
mod objects;
pub(crate) mod root;
pub(crate) mod scan;
pub(crate) mod stamps;
mod walker;

pub(crate) use entries::{entry, entry_at, entry_of, is_special};
pub(crate) use errors::{is_full, is_in_the_way, is_not_empty, say};
pub(crate) use metadata::{
    ACCESS_LIST, MetadataPolicy, has_mode_and_owner, is_access_list, remove_xattrs, set_link_metadata,
    set_metadata, xattrs, xattrs_differ,
};
pub use mounted::MountedFs;
pub(crate) use names::{DirectoryNames, ListedName};
pub(crate) use object::{Cursor, Directory, File, Inode, NewMetadata, Status};
pub(crate) use objects::{
    create, hard_link, make_writable, open_file, open_own, remove, remove_directory, rename_in, rename_to,
    restore_mode, symlink,
};
pub(crate) use walker::Walker;

use crate::parallel::{Helpers, NO_HELPERS};
use crate::wire::{Entry, RelPath};
use longhaul_engine::LockedFile;
use objects::remove_for_directory;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Mode of parent directories that are created before their own entry arrives.
const PARENT_MODE: u32 = 0o700;

/// The root of a tree.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: Arc<Directory>,
    /// Prefix of all paths, if the root itself has a name in the copy.
    name: Option<Arc<[u8]>>,
}

fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Opens a directory below another, by a path without symbolic links.
fn open_beneath(at: &Directory, path: &[u8]) -> Result<Directory, Errno> {
    if path.is_empty() {
        return at.again();
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let opened = at.fd().map(|fd| rustix::fs::openat2(fd, os(path), flags, Mode::empty(), how));
    match opened {
        None | Some(Err(Errno::NOSYS | Errno::PERM)) => walk(at, path, Directory::open_directory),
        Some(result) => result.map(Directory::Os),
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
    at: &Directory,
    path: &[u8],
    mut step: impl FnMut(&Directory, &[u8]) -> Result<Directory, Errno>,
) -> Result<Directory, Errno> {
    let mut here = at.again()?;
    for name in path.split(|b| *b == b'/') {
        here = step(&here, name)?;
    }
    Ok(here)
}

impl Tree {
    /// The tree at `path`. Symbolic links in it are followed, since the local user
    /// chooses roots.
    pub(crate) fn open(path: &Path) -> io::Result<Tree> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Directory::Os(rustix::fs::open(path, flags, Mode::empty())?);
        Ok(Tree { root: Arc::new(root), name: None })
    }

    /// The tree of all of a mounted file system.
    pub(crate) fn mounted(fs: &MountedFs) -> Tree {
        Tree { root: Arc::new(Directory::Mounted(fs.root())), name: None }
    }

    /// The file system, unless that is of this machine.
    fn fs(&self) -> Option<&MountedFs> {
        match &*self.root {
            Directory::Os(_) => None,
            Directory::Mounted(directory) => Some(directory.fs()),
        }
    }

    /// Why nothing of it can be used any more.
    pub(crate) fn failure(&self) -> Option<String> {
        self.fs().and_then(MountedFs::failure)
    }

    /// Threads for steps of many objects, where each step may take round trips.
    pub(crate) fn helpers(&self) -> &Helpers {
        self.fs().map_or(&NO_HELPERS, MountedFs::helpers)
    }

    /// Whether each step may take round trips, and what was written may be in memory of this process yet.
    pub(crate) fn is_far(&self) -> bool {
        self.fs().is_some()
    }

    /// Whether files keep their content if this machine crashes: names and content appear in the order in
    /// which they were made.
    pub(crate) fn outlives_boots(&self) -> bool {
        self.fs().is_some()
    }

    /// Whether it is known that names which differ are of different files.
    pub(crate) fn tells_names_apart(&self) -> bool {
        self.fs().is_some()
    }

    /// The file to lock in place of one of this tree, whose files have no locks.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn early_lock(&self, name: &str) -> io::Result<Option<LockedFile>> {
        self.fs().map(|fs| fs.lock_file(name)).transpose()
    }

    /// A tree below this one. The path is a peer's: symbolic links in it are followed as
    /// long as they stay beneath this root.
    pub(crate) fn below(&self, path: &[u8]) -> io::Result<Tree> {
        if path.is_empty() {
            return Ok(self.clone());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let opened = self.root.fd().map(|fd| rustix::fs::openat2(fd, os(path), flags, Mode::empty(), how));
        let root = match opened {
            None | Some(Err(Errno::NOSYS | Errno::PERM)) => open_beneath(&self.root, path)?,
            Some(result) => Directory::Os(result?),
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
    pub(crate) fn parent<'a>(&self, path: &'a RelPath) -> io::Result<(Directory, &'a [u8])> {
        let (parent, name) = split(self.inside(path.as_bytes()));
        Ok((open_beneath(self.top(), parent)?, name))
    }

    /// Checks that this user has search permission for the root.
    ///
    /// # Errors
    /// Those of `openat(2)`.
    pub(crate) fn enter(&self) -> io::Result<()> {
        Ok(self.top().open_directory(b".").map(drop)?)
    }

    /// The directory of the root.
    pub(crate) fn top(&self) -> &Directory {
        &self.root
    }

    /// Opens a directory below, without following a link.
    pub(crate) fn directory(&self, path: &[u8]) -> io::Result<Directory> {
        Ok(open_beneath(self.top(), self.inside(path))?)
    }

    /// Opens a directory, creating it and its parents if they are missing.
    pub(crate) fn make(&self, path: &[u8]) -> io::Result<Directory> {
        match open_beneath(self.top(), path) {
            Err(Errno::NOENT) => {}
            result => return Ok(result?),
        }
        Ok(walk(self.top(), path, |at, name| match at.open_directory(name) {
            Err(Errno::NOENT) => match at.make_directory(name, PARENT_MODE) {
                Ok(()) | Err(Errno::EXIST) => at.open_directory(name),
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
            let at = open_beneath(self.top(), parent)?;
            let status = match at.look(name) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                result => result?,
            };
            if status.kind() != FileType::Directory {
                return remove_for_directory(&at, name);
            }
        }
        Ok(())
    }

    /// The entry at `path`, if one exists; symbolic links are not followed.
    pub(crate) fn look(&self, path: &RelPath) -> io::Result<Option<Entry>> {
        Ok(self.look_in(path)?.map(|found| found.entry))
    }

    /// As [`look`](Self::look), with its status and the directory that holds it.
    pub(crate) fn look_in(&self, path: &RelPath) -> io::Result<Option<Lookup>> {
        let (directory, name) = match self.parent(path) {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            result => result?,
        };
        let found = entry_at(&directory, name, path.clone())?;
        Ok(found.map(|(entry, status)| Lookup { entry, status, directory }))
    }

    /// Flushes the tree's file system. `opened` is a descriptor opened before the writes:
    /// `syncfs(2)` reports each write error since then to every descriptor once.
    pub(crate) fn sync(&self, opened: Option<&Directory>) -> io::Result<()> {
        if let Some(fs) = self.fs() {
            return fs.sync();
        }
        // syncfs(2) refuses O_PATH descriptors.
        let own = if opened.is_none() { Some(self.top().readable()?) } else { None };
        let opened = opened.or(own.as_ref()).and_then(Directory::fd);
        opened.map_or(Ok(()), |fd| Ok(rustix::fs::syncfs(fd)?))
    }
}

/// An object that exists in a tree.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub(crate) entry: Entry,
    pub(crate) status: Status,
    /// The directory that holds it.
    pub(crate) directory: Directory,
}
