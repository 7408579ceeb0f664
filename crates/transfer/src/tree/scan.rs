//! The scan of the sources.
//!
//! Invariants: a directory comes before its entries; symbolic links are reported, never
//! followed; an object that cannot be examined is reported and skipped. Memory grows with
//! the directories that wait to be listed and with hard-linked files, not with all files.

use super::filter::Filter;
use super::{Directory, DirectoryNames, ListedName, Tree, say};
use crate::send::synthetic::{self, Synthetic};
use crate::tree;
use crate::wire::{Digest, Entry, EntryKind, Hash, NameError, Op, RelPath, Trouble, Xattr};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

/// The most parent directories of listed files that are remembered so as not to be sent
/// twice: 32 bytes each.
const PARENTS: usize = 1 << 20;

/// The most names remembered to detect equal names in several sources (528 MiB). Beyond
/// them, the last object of a name overwrites the others.
const NAMES: usize = 14 << 20;

/// Directories of a file system that is far away whose listings are begun at a time.
const LISTED: usize = 32;

/// Source number of directories, which sources may share; sources count from 1.
const DIRECTORY: usize = 0;

/// An entry that the scan found.
#[derive(Clone, Debug)]
pub(crate) struct FoundEntry {
    pub(crate) origin: Origin,
    pub(crate) entry: Entry,
}

/// The source of an entry's content.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// The tree that [`Entry::path`] is in.
    Tree(Tree),
    /// A synthetic source, and the index of the file in it.
    Synthetic(Arc<Synthetic>, usize),
}

impl FoundEntry {
    /// The checksum of a file's content.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn digest(&self, hash: Hash) -> io::Result<Digest> {
        match &self.origin {
            Origin::Tree(tree) => hash.of_file(&tree::open_file(tree, &self.entry.path)?),
            Origin::Synthetic(source, index) => synthetic::digest(source, *index, hash),
        }
    }

    /// The extended attributes of a file; none for a synthetic source.
    ///
    /// # Errors
    /// The file cannot be read, or has too many of them.
    pub(crate) fn xattrs(&self) -> io::Result<Vec<Xattr>> {
        match &self.origin {
            Origin::Tree(tree) => tree::xattrs(&tree::open_file(tree, &self.entry.path)?),
            Origin::Synthetic(..) => Ok(Vec::new()),
        }
    }
}

/// A source to scan.
#[derive(Clone, Debug)]
pub(crate) enum ScanStart {
    /// An object in a tree, or the tree itself.
    Tree {
        tree: Tree,
        path: RelPath,
    },
    /// Listed files below a source, with their parent directories.
    Listed {
        tree: Tree,
        /// Path of the source.
        named: RelPath,
        /// Paths below it; the list is shared between sources.
        files: Arc<[RelPath]>,
    },
    Synthetic(Arc<Synthetic>),
    /// A missing source among others.
    Missing {
        path: RelPath,
        why: String,
    },
}

/// Receives the results of a scan.
pub(crate) trait Visitor {
    /// Takes an entry; returns whether to continue.
    fn found(&mut self, found: FoundEntry) -> bool;

    /// Reports an object that cannot be examined; the scan skips it.
    fn trouble(&mut self, trouble: Trouble);
}

/// A directory whose listing has begun.
struct Listing {
    directory: Directory,
    names: DirectoryNames,
    /// The first names.
    some: Vec<ListedName>,
}

impl Listing {
    fn begin(tree: &Tree, path: &RelPath) -> io::Result<Listing> {
        let directory = tree.directory(path.as_bytes())?;
        let mut names = DirectoryNames::open(&directory)?;
        let some = names.next_batch()?;
        Ok(Listing { directory, names, some })
    }
}

/// A scan of several sources.
pub(crate) struct Scan<'a, V> {
    visitor: &'a mut V,
    filter: &'a Filter,
    recursive: bool,
    /// First paths of hard-linked files, by device and inode.
    linked: HashMap<(u64, u64), RelPath>,
    /// Parent directories that were sent, as checksums of their paths.
    parents: HashSet<u128>,
    /// Number of the source of each path, by the path's checksum, if sources may share
    /// paths; [`DIRECTORY`] for directories.
    names: Option<HashMap<u128, usize>>,
    /// Device and inode of the destination in a local copy.
    into: Option<(u64, u64)>,
    /// Number of the present source.
    source: usize,
    stopped: bool,
}

impl<'a, V: Visitor> Scan<'a, V> {
    pub(crate) fn new(visitor: &'a mut V, filter: &'a Filter, recursive: bool) -> Scan<'a, V> {
        let (linked, parents) = (HashMap::new(), HashSet::new());
        Scan {
            visitor,
            filter,
            recursive,
            linked,
            parents,
            names: None,
            into: None,
            source: 0,
            stopped: false,
        }
    }

    /// Skips the destination directory.
    pub(crate) fn without(mut self, into: Option<(u64, u64)>) -> Self {
        self.into = into;
        self
    }

    /// Reports each path once if several of the sources may have it, up to [`NAMES`] paths.
    pub(crate) fn once(mut self, starts: &[ScanStart]) -> Self {
        let named = |start: &ScanStart| match start {
            ScanStart::Tree { path, .. } => !path.is_root(),
            ScanStart::Missing { .. } => true,
            ScanStart::Listed { .. } | ScanStart::Synthetic(_) => false,
        };
        let several = match starts {
            [ScanStart::Listed { files, .. }] => files.len() > 1,
            _ => starts.len() > 1,
        };
        self.names = (several && !starts.iter().all(named)).then(HashMap::new);
        self
    }

    /// Scans a source; returns whether the visitor wants more.
    pub(crate) fn run(&mut self, start: &ScanStart) -> bool {
        self.source += 1;
        match start {
            ScanStart::Tree { tree, path } => self.tree(tree, path),
            ScanStart::Listed { tree, named, files } => {
                for file in files.iter() {
                    if self.stopped {
                        break;
                    }
                    match named.join(file.as_bytes()) {
                        Ok(path) => {
                            self.parents(tree, named, &path);
                            self.tree(tree, &path);
                        }
                        Err(e) => self.trouble(file, &io::Error::other(e)),
                    }
                }
            }
            ScanStart::Synthetic(source) => self.synthetic(source),
            ScanStart::Missing { path, .. } if !self.filter.takes(path) => {}
            ScanStart::Missing { path, why } => self.trouble(path, &io::Error::other(why.clone())),
        }
        !self.stopped
    }

    fn tree(&mut self, tree: &Tree, start: &RelPath) {
        let mut directories = Vec::new();
        let first = tree
            .parent(start)
            .map(|(at, name)| (at, ListedName { name: name.to_vec(), listed: None }))
            .and_then(|(at, name)| self.visit(tree, &at, name, start.clone(), &mut directories));
        match first {
            Ok(true) => {}
            Ok(false) => self.trouble(start, &io::ErrorKind::NotFound.into()),
            Err(e) => self.trouble(start, &e),
        }
        if !self.recursive && !directories.is_empty() {
            return self.trouble(start, &io::Error::other("it is a directory: copy it with -r"));
        }
        while !directories.is_empty() && !self.stopped {
            // Where a listing takes a round trip, several are begun at a time.
            let first = directories.len().saturating_sub(if tree.is_far() { LISTED } else { 1 });
            let some: Vec<RelPath> = directories.drain(first..).rev().collect();
            let begun = tree.helpers().map(some, |path| {
                let listing = Listing::begin(tree, &path);
                (path, listing)
            });
            for (path, listing) in begun {
                let listed = listing.and_then(|listing| self.list(tree, &path, listing, &mut directories));
                if let Err(e) = listed {
                    self.trouble(&path, &e);
                }
            }
        }
    }

    /// Reports the parent directories of a listed file, from its source down.
    fn parents(&mut self, tree: &Tree, named: &RelPath, path: &RelPath) {
        let bytes = path.as_bytes();
        let ends = bytes.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        for end in std::iter::once(0).chain(ends).filter(|end| *end >= named.as_bytes().len()) {
            let Ok(parent) = RelPath::new(&bytes[..end]) else { continue };
            if self.parents.len() == PARENTS {
                // Sending a directory twice does no harm.
                self.parents.clear();
            }
            if parent == *path || !self.parents.insert(xxhash_rust::xxh3::xxh3_128(parent.as_bytes())) {
                continue;
            }
            // A missing parent is reported for the listed file.
            if let Ok(Some(entry)) = tree.look(&parent)
                && entry.kind == EntryKind::Directory
            {
                self.stopped |= !self.visitor.found(FoundEntry { origin: Origin::Tree(tree.clone()), entry });
            }
        }
    }

    fn synthetic(&mut self, source: &Arc<Synthetic>) {
        for entry in source.directories() {
            self.stopped |=
                !self.visitor.found(FoundEntry { origin: Origin::Synthetic(Arc::clone(source), 0), entry });
        }
        for (index, entry) in (0..source.len()).map_while(|index| Some((index, source.entry(index)?))) {
            if self.stopped {
                break;
            }
            if self.filter.takes(&entry.path) {
                self.found(FoundEntry { origin: Origin::Synthetic(Arc::clone(source), index), entry });
            }
        }
    }

    fn list(
        &mut self,
        tree: &Tree,
        path: &RelPath,
        Listing { directory, mut names, mut some }: Listing,
        directories: &mut Vec<RelPath>,
    ) -> io::Result<()> {
        while !some.is_empty() && !self.stopped {
            for name in some {
                self.name(tree, &directory, path, name, directories);
            }
            some = names.next_batch()?;
        }
        Ok(())
    }

    /// Examines one name of a directory listing.
    fn name(
        &mut self,
        tree: &Tree,
        at: &Directory,
        path: &RelPath,
        name: ListedName,
        directories: &mut Vec<RelPath>,
    ) {
        if self.stopped {
            return;
        }
        // Filters come first: they may exclude an object that cannot be copied.
        if !self.filter.takes_name(path.as_bytes(), &name.name) {
            return;
        }
        match path.join(&name.name) {
            Ok(path) => {
                // A file that was deleted since the listing is no failure.
                if let Err(e) = self.visit(tree, at, name, path.clone(), directories) {
                    self.trouble(&path, &e);
                }
            }
            // An unfinished file of a copy to this directory is not data.
            Err(NameError::Reserved(name)) => {
                self.visitor.trouble(Trouble { path: path.clone(), op: Op::Skip, message: name });
            }
            Err(e) => self.trouble(path, &io::Error::other(e)),
        }
    }

    /// Examines one object; returns whether it exists.
    fn visit(
        &mut self,
        tree: &Tree,
        at: &Directory,
        ListedName { name, listed }: ListedName,
        path: RelPath,
        directories: &mut Vec<RelPath>,
    ) -> io::Result<bool> {
        if !self.filter.takes(&path) {
            return Ok(true);
        }
        let found = match listed {
            Some(listed) => Some(tree::entry_of(at, &name, path, listed.status, listed.target)?),
            None => tree::entry_at(at, &name, path)?,
        };
        let Some((mut entry, status)) = found else { return Ok(false) };
        let is_directory = entry.kind == EntryKind::Directory;
        if is_directory && self.recursive && self.into == Some(status.identity()) {
            return Err(io::Error::other("the copy goes into it: a directory is not copied into itself"));
        }
        if !self.is_new(&entry) {
            return Ok(true);
        }
        if is_directory {
            directories.push(entry.path.clone());
            if !self.recursive {
                return Ok(true);
            }
        }
        if entry.kind == EntryKind::File && status.links > 1 {
            self.link(status.identity(), &mut entry);
        }
        self.report(FoundEntry { origin: Origin::Tree(tree.clone()), entry });
        Ok(true)
    }

    /// Reports an entry unless its path was reported before.
    fn found(&mut self, found: FoundEntry) {
        if self.is_new(&found.entry) {
            self.report(found);
        }
    }

    fn report(&mut self, found: FoundEntry) {
        self.stopped |= !self.visitor.found(found);
    }

    /// Whether the path of an entry is new. Directories of equal paths are merged.
    fn is_new(&mut self, entry: &Entry) -> bool {
        let Some(names) = &mut self.names else { return true };
        let source = if entry.kind == EntryKind::Directory { DIRECTORY } else { self.source };
        let key = xxhash_rust::xxh3::xxh3_128(entry.path.as_bytes());
        match names.get(&key).copied() {
            None => {
                if names.len() < NAMES {
                    names.insert(key, source);
                }
                true
            }
            Some(DIRECTORY) if source == DIRECTORY => true,
            // The same file again, listed twice for example.
            Some(before) if before == source => false,
            Some(_) => {
                let e = io::Error::other(
                    "another source has something of this name: will not overwrite just-created",
                );
                self.trouble(&entry.path, &e);
                false
            }
        }
    }

    /// Turns a further name of a file into a hard link to its first.
    fn link(&mut self, file: (u64, u64), entry: &mut Entry) {
        let first = self.linked.entry(file).or_insert_with(|| entry.path.clone());
        if *first != entry.path {
            entry.kind = EntryKind::HardLink(first.clone());
            entry.size = 0;
        }
    }

    fn trouble(&mut self, path: &RelPath, e: &io::Error) {
        self.visitor.trouble(Trouble { path: path.clone(), op: Op::Scan, message: say(e) });
    }
}
