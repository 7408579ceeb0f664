//! What is there already: whether it is as it should be, and what of its metadata
//! is to be changed where its content is not.

use super::{Writer, identity};
use crate::stamps::Stamps;
use crate::tree::{self, Seen};
use crate::wire::{BLOCK, Compare, Entry, Kind, RelPath};
use std::io;
use std::os::fd::AsFd;

/// What became of the metadata of a file that need not be sent.
pub(super) enum Mended {
    /// There was nothing to change.
    Nothing,
    /// It was changed, or would be.
    Done,
    /// It could not be.
    Failed(io::Error),
    /// It has to be sent after all.
    Not,
}

/// Something that is there.
#[derive(Debug)]
pub(super) struct There {
    pub(super) entry: Entry,
    /// If it is a file of several names: its device and inode.
    joined: Option<(u64, u64)>,
    stamps: Stamps,
}

impl There {
    /// Whether its time of change is that of an entry, as the file system keeps it.
    pub(super) fn has_time_of(&self, entry: &Entry) -> bool {
        self.stamps.keeps(entry.mtime, self.entry.mtime)
    }
}

/// Bytes in the blocks of a file of `size` bytes that are there, a bit each.
pub(super) fn present(have: &[u8], size: u64) -> u64 {
    let blocks: u64 = have.iter().map(|byte| u64::from(byte.count_ones())).sum();
    (blocks * BLOCK as u64).min(size)
}

impl Writer {
    /// What is at a place, if anything.
    pub(super) fn look(&self, path: &RelPath) -> io::Result<Option<There>> {
        let Some(Seen { entry, stat, directory }) = self.base.look_in(path)? else { return Ok(None) };
        let joined = (entry.kind == Kind::File && stat.st_nlink > 1).then_some((stat.st_dev, stat.st_ino));
        let (base, may_name) = (self.base.fd(), !self.options.dry_run);
        let stamps = self.file_systems.stamps(stat.st_dev, &directory, base, may_name);
        Ok(Some(There { entry, joined, stamps }))
    }

    /// Whether a file that is as it should be may stay what it is: not if it is another
    /// file of the source too, of which it would get whatever becomes of that.
    pub(super) fn may_stay(&self, entry: &Entry, there: &There) -> bool {
        match there.joined {
            // A name is all that was asked for.
            _ if self.options.compare == Compare::Exists => true,
            Some(file) if entry.kind == Kind::File => self.claims.claim(file, &entry.path),
            _ => true,
        }
    }

    /// Gives a file that need not be sent the metadata that it should have.
    pub(super) fn mend(&self, entry: &Entry, there: &There) -> Mended {
        let same_time = there.has_time_of(entry);
        let there = &there.entry;
        let (compare, keep) = (self.compare(), self.keep());
        // A name is all that was asked for.
        if entry.kind != Kind::File || self.options.compare == Compare::Exists {
            return Mended::Nothing;
        }
        // With the time of the source, another content of the same size would never
        // be found out.
        let mtime = match compare > Compare::Size && !same_time {
            true => entry.mtime,
            false => there.mtime,
        };
        let differs = mtime != there.mtime || !tree::is_as(entry, there, keep);
        if !differs && !self.options.xattrs {
            return Mended::Nothing;
        }
        let open = || tree::open_file(&self.base, &self.place(&entry.path)?);
        let file = match open() {
            Ok(file) => file,
            // A new one can have everything.
            Err(_) => return Mended::Not,
        };
        let set = || -> io::Result<bool> {
            let attributes = self.options.xattrs && tree::xattrs_differ(file.as_fd(), entry, keep)?;
            if !(differs || attributes) || self.options.dry_run {
                return Ok(differs || attributes);
            }
            if attributes {
                tree::remove_xattrs(file.as_fd(), entry, keep)?;
            }
            tree::set_metadata(file.as_fd(), &Entry { mtime, ..entry.clone() }, keep)?;
            Ok(true)
        };
        match set() {
            Ok(false) => Mended::Nothing,
            Ok(true) => Mended::Done,
            Err(e) => Mended::Failed(e),
        }
    }

    /// How files are compared. Who sends everything asks only to go on with what was
    /// cut off.
    pub(super) fn compare(&self) -> Compare {
        match self.options.compare {
            _ if self.by_content() => Compare::Checksum,
            Compare::Nothing => Compare::Mtime,
            compare => compare,
        }
    }

    /// Whether something else than a file is as it should be already, as far as a run
    /// is to tell. It is made again where nobody compares.
    pub(super) fn is_unchanged(&self, entry: &Entry, path: &RelPath) -> bool {
        let compare = self.options.compare;
        if entry.kind == Kind::File {
            return false;
        }
        let look = || self.look(path).ok().flatten();
        let Some(there) = Some(compare).filter(|it| *it != Compare::Nothing).and_then(|_| look()) else {
            return false;
        };
        if compare == Compare::Exists && entry.kind != Kind::Directory {
            return true;
        }
        // What is written below changes the time of the root, the journal first of all.
        let time = path.is_root() || there.has_time_of(entry);
        let there = there.entry;
        match &entry.kind {
            Kind::HardLink(first) => {
                let inode = |path: &RelPath| identity(&tree::open_file(&self.base, path).ok()?).ok();
                self.place(first).is_ok_and(|first| inode(&first).is_some_and(|it| Some(it) == inode(path)))
            }
            Kind::Directory if there.kind == Kind::Directory => {
                let same = || -> io::Result<bool> {
                    let directory = tree::readable(self.base.directory(path.as_bytes())?.as_fd())?;
                    Ok(!tree::xattrs_differ(directory.as_fd(), entry, self.keep())?)
                };
                compare == Compare::Exists
                    || time
                        && tree::is_as(entry, &there, self.keep())
                        && (!self.options.xattrs || same().unwrap_or(false))
            }
            Kind::Symlink(_) => {
                let keep = self.keep();
                let owner = !keep.owner || (entry.uid, entry.gid) == (there.uid, there.gid);
                entry.kind == there.kind && time && owner
            }
            _ => false,
        }
    }
}
