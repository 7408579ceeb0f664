//! Work that waits until all files are written: directories, hard links, and files whose
//! names are still taken.
//!
//! Invariant: `bytes` is the memory of all that is deferred, at most [`DEFERRED_BYTES`].

use super::report::Failure;
use crate::wire::{Digest, Entry, EntryKind, RelPath};
use std::collections::BTreeMap;
use std::io;

/// Memory for directories, hard links and files that are deferred to the end of the
/// session, in bytes: about two million of them with short names.
pub(super) const DEFERRED_BYTES: usize = 512 << 20;

/// The deferred entries of a session.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// By destination path.
    pub(super) directories: BTreeMap<RelPath, Entry>,
    /// By source path.
    pub(super) links: BTreeMap<RelPath, Entry>,
    /// Files and symbolic links whose names are still taken by directories that
    /// `--delete` will empty.
    pub(super) blocked: Vec<DeferredFile>,
    /// Memory of the three above, in bytes.
    pub(super) bytes: usize,
}

/// A complete temporary file or symbolic link that is not renamed to its name yet.
#[derive(Debug)]
pub(super) struct DeferredFile {
    /// Destination path, and the path that the sender knows it by.
    pub(super) path: RelPath,
    pub(super) sent: RelPath,
    pub(super) temporary: Vec<u8>,
    /// Checksum of a file, for the manifest.
    pub(super) digest: Option<Digest>,
    pub(super) is_file: bool,
    pub(super) flaw: Option<Failure>,
}

impl Deferred {
    /// Defers an entry; it replaces an earlier one of the same path.
    ///
    /// # Errors
    /// The memory limit is reached.
    pub(super) fn add(&mut self, path: RelPath, entry: Entry) -> io::Result<()> {
        let weight = |entry: &Entry| entry.weight() + size_of::<RelPath>() + entry.path.as_bytes().len();
        let more = weight(&entry);
        let kept = if entry.kind == EntryKind::Directory { &mut self.directories } else { &mut self.links };
        let less = kept.get(&path).map_or(0, weight);
        if self.bytes - less + more > DEFERRED_BYTES {
            return Err(io::Error::other(
                "too many directories and hard links for one copy: 512 MiB of names are the limit; copy the tree in parts",
            ));
        }
        self.bytes = self.bytes - less + more;
        assert!(self.bytes <= DEFERRED_BYTES, "{} bytes are deferred", self.bytes);
        kept.insert(path, entry);
        Ok(())
    }

    /// Defers a file whose name is taken by a directory.
    ///
    /// # Errors
    /// The memory limit is reached; gives the file back.
    pub(super) fn add_blocked(&mut self, file: DeferredFile) -> Result<(), DeferredFile> {
        let names = file.path.as_bytes().len() + file.sent.as_bytes().len() + file.temporary.len();
        let more = size_of::<DeferredFile>() + names;
        if self.bytes + more > DEFERRED_BYTES {
            return Err(file);
        }
        self.bytes += more;
        self.blocked.push(file);
        Ok(())
    }
}
