//! Existing objects at the destination: whether they are up to date, and updates of
//! metadata where the content need not be sent.
//!
//! Invariant: of the names that are hard links to one inode here and separate files at the
//! source, only the first in `claims` counts as up to date.

use super::claims::Claims;
use super::destination_tree::DestinationTree;
use crate::tree::stamps::Stamps;
use crate::tree::{self, File, Inode, Lookup};
use crate::wire::{BLOCK, Compare, Content, Entry, EntryKind, Options, RelPath};
use std::io;
use std::sync::Arc;

/// Result of updating the metadata of a file whose content is up to date.
pub(super) enum MetadataUpdate {
    /// The metadata was up to date.
    Unchanged,
    /// It was changed, or would be in a dry run.
    Changed,
    /// It could not be set.
    Failed(io::Error),
    /// The file cannot be opened: the sender resends it.
    Resend,
}

/// An object that exists at the destination.
#[derive(Debug)]
pub(super) struct Existing {
    pub(super) entry: Entry,
    /// Device and inode of a file with more than one hard link.
    linked: Option<(u64, u64)>,
    stamps: Stamps,
}

impl Existing {
    /// Whether its mtime equals that of an entry, at the granularity of the file system.
    pub(super) fn has_time_of(&self, entry: &Entry) -> bool {
        self.stamps.keeps(entry.mtime, self.entry.mtime)
    }
}

/// Device, inode, and seconds and nanoseconds of `ctime`: see [`identity`].
pub(super) type FileIdentity = (u64, u64, i64, u64);

/// Identifies a file in its present state; `ctime` is included because inode numbers
/// are reused.
pub(super) fn identity(file: &File) -> io::Result<FileIdentity> {
    let status = file.status()?;
    Ok((status.device, status.inode, status.changed.secs, status.changed.nanos.into()))
}

/// Bytes of a file of `size` bytes that the bitmap `have` marks as present.
pub(super) fn present(have: &[u8], size: u64) -> u64 {
    let blocks: u64 = have.iter().map(|byte| u64::from(byte.count_ones())).sum();
    (blocks * BLOCK as u64).min(size)
}

/// Compares entries with the objects that exist.
#[derive(Debug)]
pub(super) struct Comparison {
    tree: Arc<DestinationTree>,
    options: Options,
    /// The machine rebooted since an earlier run of this copy, so its files may have lost
    /// content that was not flushed.
    pub(super) by_content: bool,
    claims: Claims,
}

impl Comparison {
    pub(super) fn new(tree: Arc<DestinationTree>, options: Options, by_content: bool) -> Comparison {
        Comparison { tree, options, by_content, claims: Claims::default() }
    }

    /// The object at a destination path, if one exists.
    pub(super) fn look(&self, path: &RelPath) -> io::Result<Option<Existing>> {
        let Some(Lookup { entry, status, directory }) = self.tree.base.look_in(path)? else {
            return Ok(None);
        };
        let linked = (entry.kind == EntryKind::File && status.links > 1).then_some(status.identity());
        let stamps = self.tree.stamps(status.device, &directory);
        Ok(Some(Existing { entry, linked, stamps }))
    }

    /// The existing object of an entry that an existence query names, if the request's
    /// comparison finds it up to date and it may be kept.
    pub(super) fn up_to_date(&self, entry: &Entry, content: &Content) -> Option<Existing> {
        self.same(entry, content).filter(|there| self.may_stay(entry, there))
    }

    fn same(&self, entry: &Entry, content: &Content) -> Option<Existing> {
        let path = self.tree.place(&entry.path).ok()?;
        let there = self.look(&path).ok()??;
        // After a reboot, a name alone does not count for files that the earlier run may have written.
        let may_be_ours = || entry.size == there.entry.size && there.has_time_of(entry);
        if self.options.compare == Compare::Exists && !(self.by_content && may_be_ours()) {
            return Some(there);
        }
        let compare = self.method();
        let same_time = compare == Compare::Mtime && there.has_time_of(entry);
        let same = entry.is_same(&there.entry, compare, same_time).unwrap_or_else(|| match content {
            Content::Query(Some(digest)) => {
                let hash =
                    tree::open_file(&self.tree.base, &path).and_then(|file| self.options.hash.of_file(&file));
                hash.is_ok_and(|hash| hash == *digest)
            }
            _ => false,
        });
        same.then_some(there)
    }

    /// Whether an up-to-date file may be kept. It may not if it is a hard link to the
    /// destination of another source file: later changes of one would change both.
    fn may_stay(&self, entry: &Entry, there: &Existing) -> bool {
        match there.linked {
            // `Compare::Exists` keeps every existing object.
            _ if self.options.compare == Compare::Exists => true,
            Some(file) if entry.kind == EntryKind::File => self.claims.claim(file, &entry.path),
            _ => true,
        }
    }

    /// Sets the metadata of a file whose content is up to date.
    pub(super) fn update_metadata(&self, entry: &Entry, there: &Existing) -> MetadataUpdate {
        let same_time = there.has_time_of(entry);
        let there = &there.entry;
        let (compare, policy) = (self.method(), self.tree.policy);
        // `Compare::Exists` keeps every existing object.
        if entry.kind != EntryKind::File || self.options.compare == Compare::Exists {
            return MetadataUpdate::Unchanged;
        }
        // After a comparison by size alone the mtime stays: with the mtime of the source,
        // different content of the same size would never be detected.
        let mtime = match compare > Compare::Size && !same_time {
            true => entry.mtime,
            false => there.mtime,
        };
        let differs = mtime != there.mtime || !tree::has_mode_and_owner(entry, there, policy);
        if !differs && !self.options.xattrs {
            return MetadataUpdate::Unchanged;
        }
        let open = || tree::open_file(&self.tree.base, &self.tree.place(&entry.path)?);
        let file = match open() {
            Ok(file) => file,
            // A new file can get all of the metadata.
            Err(_) => return MetadataUpdate::Resend,
        };
        let set = || -> io::Result<bool> {
            let attributes = self.options.xattrs && tree::xattrs_differ(&file, entry, policy)?;
            if !(differs || attributes) || self.options.dry_run {
                return Ok(differs || attributes);
            }
            if attributes {
                tree::remove_xattrs(&file, entry, policy)?;
            }
            tree::set_metadata(&file, &Entry { mtime, ..entry.clone() }, policy)?;
            Ok(true)
        };
        match set() {
            Ok(false) => MetadataUpdate::Unchanged,
            Ok(true) => MetadataUpdate::Changed,
            Err(e) => MetadataUpdate::Failed(e),
        }
    }

    /// How files are compared. `Compare::Nothing` gets here only when a copy resumes,
    /// and then files that the interrupted run completed are found by mtime.
    pub(super) fn method(&self) -> Compare {
        match self.options.compare {
            _ if self.by_content => Compare::Checksum,
            Compare::Nothing => Compare::Mtime,
            compare => compare,
        }
    }

    /// Whether a directory or link exists with the metadata of the entry; never with
    /// `Compare::Nothing`, which replaces every object.
    pub(super) fn is_unchanged(&self, entry: &Entry, path: &RelPath) -> bool {
        let (compare, policy) = (self.options.compare, self.tree.policy);
        if entry.kind == EntryKind::File {
            return false;
        }
        let look = || self.look(path).ok().flatten();
        let Some(there) = Some(compare).filter(|it| *it != Compare::Nothing).and_then(|_| look()) else {
            return false;
        };
        if compare == Compare::Exists && entry.kind != EntryKind::Directory {
            return true;
        }
        // Creating the journal changes the mtime of the root.
        let time = path.is_root() || there.has_time_of(entry);
        let there = there.entry;
        let base = &self.tree.base;
        match &entry.kind {
            EntryKind::HardLink(first) => {
                let inode = |path: &RelPath| identity(&tree::open_file(base, path).ok()?).ok();
                let first = self.tree.place(first);
                first.is_ok_and(|first| inode(&first).is_some_and(|it| Some(it) == inode(path)))
            }
            EntryKind::Directory if there.kind == EntryKind::Directory => {
                let same = || -> io::Result<bool> {
                    let directory = base.directory(path.as_bytes())?.readable()?;
                    Ok(!tree::xattrs_differ(&directory, entry, policy)?)
                };
                compare == Compare::Exists
                    || time
                        && tree::has_mode_and_owner(entry, &there, policy)
                        && (!self.options.xattrs || same().unwrap_or(false))
            }
            EntryKind::Symlink(_) => {
                let owner = !policy.owner || (entry.uid, entry.gid) == (there.uid, there.gid);
                entry.kind == there.kind && time && owner
            }
            _ => false,
        }
    }
}
