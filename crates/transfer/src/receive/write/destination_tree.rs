//! The destination tree: the path of each entry in it, and the directories that hold them.
//!
//! Invariants:
//! - two names of the source never get the same path where the file system folds case, and
//!   no entry gets the path of the manifest;
//! - a directory that was made writable for the copy is in `opened` with its original mode
//!   until [`DestinationTree::restore_modes`].

use super::report::{Failure, write_failure};
use crate::guard::lock;
use crate::tree::case_folding::{FoldedNames, fold};
use crate::tree::root::DestinationRoot;
use crate::tree::stamps::{FileSystems, Stamps, USUAL};
use crate::tree::{self, Directory, File, Inode, MetadataPolicy, Tree, Walker};
use crate::wire::{Compare, Durability, Entry, Op, Options, RelPath, Time};
use std::io;
use std::sync::{Arc, Mutex};
use xxhash_rust::xxh3::xxh3_128;

/// The destination of a session.
#[derive(Debug)]
pub(super) struct DestinationTree {
    pub(super) base: Tree,
    /// Replaces the first path component if the source is copied *as* the destination
    /// rather than *into* it.
    rename: Option<Vec<u8>>,
    options: Options,
    /// Metadata that entries get from the source.
    pub(super) policy: MetadataPolicy,
    /// Path of the manifest, which no entry may have.
    manifest: Option<RelPath>,
    /// Names received so far, if the destination folds case.
    folded: Option<FoldedNames>,
    /// Timestamp granularity of each file system of the destination.
    file_systems: FileSystems,
    /// Existing directories made writable for the copy, with their original modes.
    opened: Mutex<Vec<(Vec<u8>, u32)>>,
    /// The destination directory, opened before the first write so that `syncfs(2)`
    /// reports every write error since.
    sync_root: Option<Directory>,
}

impl DestinationTree {
    pub(super) fn new(
        DestinationRoot { base, rename }: DestinationRoot,
        options: Options,
        policy: MetadataPolicy,
        manifest: Option<RelPath>,
        folded: Option<FoldedNames>,
    ) -> DestinationTree {
        let sync_root = base.top().readable().ok();
        let (file_systems, opened) = (FileSystems::default(), Mutex::default());
        DestinationTree { base, rename, options, policy, manifest, folded, file_systems, opened, sync_root }
    }

    /// Maps the path of an entry to its path below the destination.
    ///
    /// # Errors
    /// The manifest has this name, or another name of the source folds to it.
    pub(super) fn place(&self, path: &RelPath) -> io::Result<RelPath> {
        let placed = match &self.rename {
            None => path.clone(),
            Some(name) => {
                let (_, below) = path.split_first();
                let placed = if below.is_empty() { name.clone() } else { [name, &b"/"[..], below].concat() };
                RelPath::new(&placed).map_err(io::Error::other)?
            }
        };
        if self.is_manifest(&placed) {
            return Err(io::Error::other(
                "this is the name of the manifest: choose another name with --manifest",
            ));
        }
        self.folded.as_ref().map_or(Ok(()), |folded| folded.take(&placed))?;
        Ok(placed)
    }

    /// Whether a destination path is that of the manifest, or below it.
    fn is_manifest(&self, placed: &RelPath) -> bool {
        self.manifest.as_ref().is_some_and(|manifest| {
            let below = |path: &[u8], of: &[u8]| {
                path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
            };
            let (placed, manifest) = (placed.as_bytes(), manifest.as_bytes());
            match &self.folded {
                Some(_) => below(&fold(placed), &fold(manifest)),
                None => below(placed, manifest),
            }
        })
    }

    /// Checksum of a name, the same for all spellings that the destination folds.
    pub(super) fn folded_key(&self, path: &RelPath) -> u128 {
        match &self.folded {
            // An existing file may be spelled in another case.
            Some(_) => xxh3_128(&fold(path.as_bytes())),
            None => xxh3_128(path.as_bytes()),
        }
    }

    /// A directory cache for one writer thread.
    pub(super) fn walker(&self) -> Walker {
        Walker::new(self.base.clone())
    }

    /// Opens a directory, creating it and its parents. Anything else in their place is
    /// removed, because the source has directories there (their entries may arrive
    /// later). Directories without write permission are made writable for the copy.
    pub(super) fn directory(&self, path: &[u8], walker: &mut Walker) -> io::Result<Arc<Directory>> {
        match walker.make(path) {
            // `Compare::Exists` keeps every existing name.
            Err(e) if tree::is_in_the_way(&e) && self.options.compare != Compare::Exists => {
                match self.base.clear(path) {
                    Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                        self.make_parent_writable(path);
                        self.base.clear(path)?;
                    }
                    result => result?,
                }
                walker.make(path)
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                // Retried in any case: another thread may have changed the mode meanwhile.
                self.make_parent_writable(path);
                walker.make(path)
            }
            result => result,
        }
    }

    /// Makes the deepest existing directory of a path writable for this user.
    fn make_parent_writable(&self, path: &[u8]) {
        let slashes = path.iter().enumerate().rev().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        let mut prefixes = std::iter::once(path.len()).chain(slashes).chain([0]).map(|end| &path[..end]);
        let found = prefixes.find_map(|prefix| Some((prefix, self.base.directory(prefix).ok()?)));
        if let Some((prefix, directory)) = found {
            self.make_writable(&directory, prefix);
        }
    }

    /// Makes a directory writable for this user until the end of the session; returns
    /// whether its mode changed.
    pub(super) fn make_writable(&self, directory: &Directory, path: &[u8]) -> bool {
        let before = tree::make_writable(directory);
        lock(&self.opened).extend(before.map(|mode| (path.to_vec(), mode)));
        before.is_some()
    }

    /// Restores the modes of directories that were made writable, deepest first.
    pub(super) fn restore_modes(&self) {
        let mut opened = std::mem::take(&mut *lock(&self.opened));
        opened.sort_unstable_by(|a, b| b.cmp(a));
        for (path, mode) in opened {
            // A directory that is part of the copy gets its final mode later.
            let _ = self.base.directory(&path).map(|it| tree::restore_mode(&it, mode));
        }
    }

    /// Creates something in a directory, which is made writable first if that fails with
    /// `EACCES`.
    pub(super) fn make_in<T>(
        &self,
        directory: &Directory,
        path: &[u8],
        make: impl Fn(&Directory) -> io::Result<T>,
    ) -> io::Result<T> {
        match make(directory) {
            // Retried in any case: another thread may have changed the mode meanwhile.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.make_writable(directory, path);
                make(directory)
            }
            result => result,
        }
    }

    /// The timestamps that the file system with the number `device` stores; a directory on
    /// it serves for the probe.
    pub(super) fn stamps(&self, device: u64, directory: &Directory) -> Stamps {
        let may_create = !self.options.dry_run;
        self.file_systems.stamps(device, directory, self.base.top(), may_create)
    }

    /// An mtime as the file system of a directory stores it.
    pub(super) fn kept(&self, directory: &Directory, time: Time) -> Time {
        if USUAL.contains(&time.secs) {
            return time;
        }
        let device = directory.status().map_or(0, |status| status.device);
        self.stamps(device, directory).kept(time)
    }

    /// Sets the metadata of a complete file, and flushes the file if each is to be durable;
    /// returns a failure to set metadata.
    pub(super) fn set_file_metadata(&self, file: &File, entry: &Entry) -> Result<Option<Failure>, Failure> {
        file.end(entry.mode).map_err(write_failure)?;
        let set = tree::set_metadata(file, entry, self.policy);
        if self.options.durability == Durability::File {
            file.sync_data().map_err(write_failure)?;
        }
        Ok(set.err().map(|e| (Op::Metadata, e)))
    }

    /// Sets the metadata of a directory.
    pub(super) fn set_directory_metadata(&self, entry: &Entry) -> io::Result<()> {
        let directory = self.base.directory(entry.path.as_bytes())?;
        tree::set_metadata(&directory.readable()?, entry, self.policy)
    }

    /// Flushes the destination's file system.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.base.sync(self.sync_root.as_ref())
    }
}
