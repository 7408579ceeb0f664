//! Entries of existing objects, from their status and the targets of symbolic links.

use super::{Directory, Status};
use crate::wire::{Entry, EntryKind, RelPath, SMALL, Time};
use rustix::fs::FileType;
use std::io;

/// The entry of `name` in a directory, without extended attributes.
pub(crate) fn entry_at(at: &Directory, name: &[u8], path: RelPath) -> io::Result<Option<(Entry, Status)>> {
    let status = match at.look(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => result?,
    };
    entry_of(at, name, path, status, None).map(Some)
}

/// As [`entry_at`], of an object whose status is known, and of a symbolic link perhaps its target.
pub(crate) fn entry_of(
    at: &Directory,
    name: &[u8],
    path: RelPath,
    status: Status,
    target: Option<Vec<u8>>,
) -> io::Result<(Entry, Status)> {
    let kind = match status.kind() {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => {
            let target = target.map_or_else(|| at.read_link(name), Ok)?;
            EntryKind::Symlink(target.into())
        }
        other => return Err(io::Error::new(io::ErrorKind::Unsupported, unsupported(other))),
    };
    Ok((entry(&status, kind, path), status))
}

/// Whether `name` in a directory is, or links to, something other than a file or
/// directory.
pub(crate) fn is_special(at: &Directory, name: &[u8]) -> bool {
    let kind = at.look_behind(name).map(|status| status.kind());
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

/// An entry from the status of an object.
pub(crate) fn entry(status: &Status, kind: EntryKind, path: RelPath) -> Entry {
    let size = if kind == EntryKind::File { status.size } else { 0 };
    let ctime = if size > SMALL { status.changed } else { Time::default() };
    Entry {
        path,
        kind,
        mode: status.mode & 0o7777,
        uid: status.uid,
        gid: status.gid,
        mtime: status.modified,
        ctime,
        size,
        sparse: status.blocks.saturating_mul(512) < size,
        xattrs: Vec::new(),
    }
}
