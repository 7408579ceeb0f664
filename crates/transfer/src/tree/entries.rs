//! Entries of existing objects, from `stat(2)` and `readlinkat(2)`.

use super::os;
use crate::wire::{Entry, EntryKind, RelPath, SMALL, Time};
use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;

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
