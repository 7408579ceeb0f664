//! What is there already: whether it is as it should be, and what of its metadata
//! is to be changed where its content is not.

use super::{Writer, identity};
use crate::tree;
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

/// Bytes in the blocks of a file of `size` bytes that are there, a bit each.
pub(super) fn present(have: &[u8], size: u64) -> u64 {
    let blocks: u64 = have.iter().map(|byte| u64::from(byte.count_ones())).sum();
    (blocks * BLOCK as u64).min(size)
}

impl Writer {
    /// Gives a file that need not be sent the metadata that it should have.
    pub(super) fn mend(&self, entry: &Entry, there: &Entry) -> Mended {
        let (compare, keep) = (self.compare(), self.keep());
        // A name is all that was asked for.
        if entry.kind != Kind::File || self.options.compare == Compare::Exists {
            return Mended::Nothing;
        }
        // With the time of the source, another content of the same size would never
        // be found out.
        let mtime = match compare > Compare::Size && !entry.mtime.is_kept_as(there.mtime) {
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
        let look = || self.base.look(path).ok().flatten();
        let Some(there) = Some(compare).filter(|it| *it != Compare::Nothing).and_then(|_| look()) else {
            return false;
        };
        if compare == Compare::Exists && entry.kind != Kind::Directory {
            return true;
        }
        // What is written below changes the time of the root, the journal first of all.
        let time = path.is_root() || entry.mtime.is_kept_as(there.mtime);
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
