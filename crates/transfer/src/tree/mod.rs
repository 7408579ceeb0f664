//! File operations below a directory that path resolution cannot leave.
//!
//! Invariants: every path is resolved beneath the directory's descriptor, and
//! no symbolic link in it is followed (`openat2(2)` with
//! `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`, or component by component with
//! `O_NOFOLLOW` where the kernel has no `openat2`). So neither a hostile name
//! nor a directory that is swapped for a link meanwhile leads outside.

pub(crate) mod case_folding;
pub(crate) mod filter;
pub(crate) mod root;
pub(crate) mod scan;
pub(crate) mod stamps;

use crate::wire::{
    Entry, EntryKind, RelPath, SMALL, Time, XATTR_BYTES_MAX, XATTRS_MAX, Xattr, is_carried, show,
};
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, XattrFlags};
use rustix::io::Errno;
use stamps::{check_set, timestamps};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Directory descriptors that a [`Walker`] caches: entries arrive directory by
/// directory, so a few are enough.
const CACHED_DIRECTORIES: usize = 64;
/// Directory entries read at once, a few MB: sorted by inode, that many save a disk most
/// of its seeks.
const NAMES: usize = 32 << 10;
/// Mode of parent directories that are created before their own entry arrives.
const PARENT_MODE: u32 = 0o700;

/// The access control list with the permissions of an object.
pub(crate) const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The access control list that new objects in a directory inherit.
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// Whether an extended attribute is an access control list.
pub(crate) fn is_access_list(name: &[u8]) -> bool {
    matches!(name, ACCESS_LIST | DEFAULT_LIST)
}

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

/// An existing object.
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

/// The entry of `name` in a directory, without extended attributes.
pub(crate) fn entry_at(at: BorrowedFd<'_>, name: &[u8], path: RelPath) -> io::Result<Option<(Entry, Stat)>> {
    let found = if name.is_empty() {
        rustix::fs::statat(at, c"", AtFlags::EMPTY_PATH)
    } else {
        rustix::fs::statat(at, os(name), AtFlags::SYMLINK_NOFOLLOW)
    };
    let stat = match found {
        Err(Errno::NOENT) => return Ok(None),
        result => result?,
    };
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(at, os(name), Vec::new())?;
            EntryKind::Symlink(target.as_bytes().into())
        }
        other => return Err(io::Error::new(io::ErrorKind::Unsupported, unsupported(other))),
    };
    Ok(Some((entry(&stat, kind, path), stat)))
}

/// Whether `name` in a directory is, or links to, something other than a file or
/// directory.
pub(crate) fn is_special(at: BorrowedFd<'_>, name: &[u8]) -> bool {
    let kind =
        rustix::fs::statat(at, os(name), AtFlags::empty()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    kind.is_ok_and(|kind| !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink))
}

fn unsupported(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "a named pipe is not copied",
        FileType::Socket => "a socket is not copied",
        FileType::CharacterDevice | FileType::BlockDevice => "a device is not copied",
        _ => "an object of this kind is not copied",
    }
}

/// An entry from `stat(2)` data.
pub(crate) fn entry(stat: &Stat, kind: EntryKind, path: RelPath) -> Entry {
    let size = if kind == EntryKind::File { stat.st_size as u64 } else { 0 };
    let ctime = match size > SMALL {
        true => Time { secs: stat.st_ctime, nanos: stat.st_ctime_nsec as u32 },
        false => Time::default(),
    };
    Entry {
        path,
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: Time { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
        ctime,
        size,
        // Blocks are of 512 bytes, whatever the file system's are (`stat(2)`).
        sparse: (stat.st_blocks as u64).saturating_mul(512) < size,
        xattrs: Vec::new(),
    }
}

/// The names in a directory, without `.` and `..`.
///
/// Invariant: at most [`NAMES`] are in memory at once.
#[derive(Debug)]
pub(crate) struct DirectoryNames(Dir);

impl DirectoryNames {
    pub(crate) fn open(directory: BorrowedFd<'_>) -> io::Result<DirectoryNames> {
        Ok(DirectoryNames(Dir::new(readable(directory)?)?))
    }

    /// The next batch of names, sorted by inode number, which is close to their order on
    /// disk; empty at the end.
    pub(crate) fn next_batch(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        while names.len() < NAMES
            && let Some(entry) = self.0.next()
        {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push((entry.ino(), name.to_vec()));
            }
        }
        names.sort_unstable();
        Ok(names.into_iter().map(|(_, name)| name).collect())
    }
}

/// Metadata that is set only with privileges or permission.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MetadataPolicy {
    /// Owner and group, and set-user-ID and set-group-ID bits.
    pub(crate) owner: bool,
    /// Access control lists, among the extended attributes.
    pub(crate) lists: bool,
}

/// Sets metadata on an open file: the owner first, since that clears mode bits; the
/// mtime last. A failure does not keep the rest from being set.
///
/// # Errors
/// The first failure.
pub(crate) fn set_metadata(file: BorrowedFd<'_>, entry: &Entry, keep: MetadataPolicy) -> io::Result<()> {
    let mut first = Ok(());
    let mut done = |what: &dyn fmt::Display, result: Result<(), Errno>| {
        if let (Err(e), Ok(())) = (result, &first) {
            first = Err(io::Error::other(format!("{what} cannot be set: {}", say(&e.into()))));
        }
        result.is_ok()
    };
    let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
    let owner = keep.owner && done(&"the owner", rustix::fs::fchown(file, Some(uid), Some(gid)));
    let mut mode = safe_mode(entry.mode, MetadataPolicy { owner, ..keep });
    for (name, value) in &entry.xattrs {
        let set = rustix::fs::fsetxattr(file, os(name), value, XattrFlags::empty());
        if !done(&format_args!("the attribute {}", show(name)), set) && **name == *ACCESS_LIST {
            // With an access list these bits are its mask, not the permissions of the group.
            mode &= !0o070;
        }
    }
    done(&"the mode", rustix::fs::fchmod(file, Mode::from_raw_mode(mode)));
    if done(&"the time", rustix::fs::futimens(file, &timestamps(entry.mtime))) {
        let set = check_set(entry.mtime, || Ok(rustix::fs::fstat(file)?));
        first = first.and(set);
    }
    first
}

/// Clears set-user-ID and set-group-ID unless the owner is kept: the program would run
/// with the rights of the copying user.
fn safe_mode(mode: u32, keep: MetadataPolicy) -> u32 {
    if keep.owner { mode } else { mode & 0o1777 }
}

/// Sets owner and mtime of a symbolic link.
pub(crate) fn set_link_metadata(
    at: BorrowedFd<'_>,
    name: &[u8],
    entry: &Entry,
    keep: MetadataPolicy,
) -> io::Result<()> {
    if keep.owner {
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        rustix::fs::chownat(at, os(name), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    rustix::fs::utimensat(at, os(name), &timestamps(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)?;
    check_set(entry.mtime, || Ok(rustix::fs::statat(at, os(name), AtFlags::SYMLINK_NOFOLLOW)?))
}

/// The extended attributes of an open file that a copy carries; empty where the file
/// system has no such attributes.
///
/// # Errors
/// They cannot be read, or exceed [`XATTRS_MAX`] or [`XATTR_BYTES_MAX`].
pub(crate) fn xattrs(file: BorrowedFd<'_>) -> io::Result<Vec<Xattr>> {
    let too_many = || {
        let message = format!(
            "too many extended attributes: a copy carries at most {XATTRS_MAX}, of {} KiB in all",
            XATTR_BYTES_MAX >> 10
        );
        Err(io::Error::other(message))
    };
    let mut names = vec![0u8; XATTR_BYTES_MAX];
    let len = match rustix::fs::flistxattr(file, &mut names) {
        Err(Errno::NOTSUP | Errno::BADF) => return Ok(Vec::new()),
        Err(Errno::RANGE | Errno::TOOBIG) => return too_many(),
        result => result?,
    };
    names.truncate(len);
    let (mut all, mut bytes) = (Vec::new(), 0);
    for name in names.split(|b| *b == 0).filter(|name| is_carried(name)) {
        let mut value = vec![0u8; XATTR_BYTES_MAX];
        let len = match rustix::fs::fgetxattr(file, os(name), &mut value) {
            // Removed since it was listed.
            Err(Errno::NODATA) => continue,
            Err(Errno::RANGE | Errno::TOOBIG) => return too_many(),
            result => result?,
        };
        bytes += name.len() + len;
        // The wire format has 16 bits for the length of a value.
        if all.len() == XATTRS_MAX || bytes > XATTR_BYTES_MAX || len > usize::from(u16::MAX) {
            return too_many();
        }
        value.truncate(len);
        all.push((name.into(), value.into_boxed_slice()));
    }
    Ok(all)
}

/// The extended attributes of an open file that are compared with those of an entry.
fn compared(file: BorrowedFd<'_>, keep: MetadataPolicy) -> io::Result<Vec<Xattr>> {
    let mut there = xattrs(file)?;
    there.retain(|(name, _)| keep.lists || !is_access_list(name));
    Ok(there)
}

/// Whether an open file's extended attributes differ from those of an entry.
pub(crate) fn xattrs_differ(file: BorrowedFd<'_>, entry: &Entry, keep: MetadataPolicy) -> io::Result<bool> {
    let (mut there, mut wanted) = (compared(file, keep)?, entry.xattrs.clone());
    there.sort_unstable();
    wanted.sort_unstable();
    Ok(there != wanted)
}

/// Removes the extended attributes that an entry does not have.
pub(crate) fn remove_xattrs(file: BorrowedFd<'_>, entry: &Entry, keep: MetadataPolicy) -> io::Result<()> {
    for (name, _) in compared(file, keep)? {
        if !entry.xattrs.iter().any(|(wanted, _)| *wanted == name) {
            rustix::fs::fremovexattr(file, os(&name))?;
        }
    }
    Ok(())
}

/// Whether an existing object has the mode, and the owner if that is kept, that `entry`
/// would get.
pub(crate) fn has_mode_and_owner(entry: &Entry, there: &Entry, keep: MetadataPolicy) -> bool {
    let owner = !keep.owner || (entry.uid, entry.gid) == (there.uid, there.gid);
    owner && safe_mode(entry.mode, keep) == there.mode
}

/// Opens directories of a tree for one thread, and caches their descriptors.
#[derive(Debug)]
pub(crate) struct Walker {
    tree: Tree,
    known: HashMap<Vec<u8>, Arc<OwnedFd>>,
}

impl Walker {
    pub(crate) fn new(tree: Tree) -> Walker {
        Walker { tree, known: HashMap::new() }
    }

    /// Opens the directory at `path`, creating it if it is missing.
    pub(crate) fn make(&mut self, path: &[u8]) -> io::Result<Arc<OwnedFd>> {
        if let Some(fd) = self.known.get(path) {
            return Ok(Arc::clone(fd));
        }
        let fd = Arc::new(self.tree.make(path)?);
        if self.known.len() >= CACHED_DIRECTORIES {
            self.known.clear();
        }
        self.known.insert(path.to_vec(), Arc::clone(&fd));
        Ok(fd)
    }
}

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

/// The text of a system error, replaced where the system's own text misleads.
pub(crate) fn say(e: &io::Error) -> String {
    match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::LOOP | Errno::XDEV) => "a symbolic link is in the way, and is not followed".into(),
        Some(Errno::NOTDIR) => "something that is not a directory is in the way".into(),
        Some(Errno::NOTEMPTY) => "a directory that is not empty is in the way".into(),
        Some(Errno::NAMETOOLONG) => "the name is too long for the file system".into(),
        Some(Errno::ILSEQ) => "the file system does not accept this name".into(),
        None if e.kind() == io::ErrorKind::NotFound => "No such file or directory".into(),
        _ => {
            let text = e.to_string();
            text.split(" (os error").next().unwrap_or_default().to_owned()
        }
    }
}

/// Whether an error means that a path component is not a directory.
pub(crate) fn is_in_the_way(e: &io::Error) -> bool {
    let other = [Errno::NOTDIR, Errno::LOOP];
    e.raw_os_error().is_some_and(|code| other.contains(&Errno::from_raw_os_error(code)))
}

/// Whether an error means that a non-empty directory has the name.
pub(crate) fn is_not_empty(e: &io::Error) -> bool {
    let full = [Errno::NOTEMPTY, Errno::EXIST];
    e.raw_os_error().is_some_and(|code| full.contains(&Errno::from_raw_os_error(code)))
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

/// Whether an error means that the file system accepts no more data.
pub(crate) fn is_full(e: &io::Error) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS];
    e.raw_os_error().is_some_and(|code| full.contains(&Errno::from_raw_os_error(code)))
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
pub(crate) fn remove_for_directory(at: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
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
