//! Looking for what there is to copy.
//!
//! Invariants: a directory comes before what is in it; symbolic links are
//! found, never followed; what cannot be looked at is told and left out, and
//! the rest goes on. Memory grows with the directories that are known and not
//! looked into yet, and with files of several names, not with all files.

use crate::filter::Filter;
use crate::made::{self, Made};
use crate::tree::{self, Tree, say};
use crate::wire::{Digest, Entry, Hash, Kind, NameError, Op, RelPath, Trouble, Xattr};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Directories on the way to what was listed that are remembered, so as not to be
/// sent again: 32 bytes each.
const WAYS: usize = 1 << 20;

/// Names that are remembered where several places may have the same: 528 MiB of
/// them. Of more, what comes last under a name is what there is of it.
const NAMES: usize = 14 << 20;

/// Stands for all places that a directory is in: they are counted from 1 on.
const DIRECTORY: usize = 0;

/// Something that was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) origin: Origin,
    /// What it is.
    pub(crate) entry: Entry,
}

/// Where content comes from.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// The tree that [`Entry::path`] is in.
    Tree(Tree),
    /// It is made: one of these files.
    Made(Arc<Made>, usize),
}

impl Found {
    /// The checksum of a file.
    pub(crate) fn digest(&self, hash: Hash) -> io::Result<Digest> {
        match &self.origin {
            Origin::Tree(tree) => hash.of_file(&tree::open_file(tree, &self.entry.path)?),
            Origin::Made(made, index) => made::digest(made, *index, hash),
        }
    }
}

impl Found {
    /// The extended attributes of a file.
    pub(crate) fn xattrs(&self) -> io::Result<Vec<Xattr>> {
        match &self.origin {
            Origin::Tree(tree) => tree::xattrs(tree::open_file(tree, &self.entry.path)?.as_fd()),
            Origin::Made(..) => Ok(Vec::new()),
        }
    }
}

/// Where a scan begins.
#[derive(Clone, Debug)]
pub(crate) enum Start {
    /// Something in a tree, or the tree itself.
    Tree {
        tree: Tree,
        path: RelPath,
    },
    /// Something further below what was named, of which nothing else is wanted
    /// but the directories on the way.
    Listed {
        tree: Tree,
        /// What was named.
        named: RelPath,
        /// Paths below it. Many places may have the same list: it is there once.
        files: Arc<[RelPath]>,
    },
    Made(Arc<Made>),
    /// One of several that is not there.
    Missing {
        path: RelPath,
        why: String,
    },
}

/// What is called while scanning.
pub(crate) trait Visitor {
    /// Something was found; whether to go on.
    fn found(&mut self, found: Found) -> bool;

    /// Something could not be looked at.
    fn trouble(&mut self, trouble: Trouble);
}

/// A scan over several places.
pub(crate) struct Scan<'a, V> {
    visitor: &'a mut V,
    filter: &'a Filter,
    recursive: bool,
    /// First names of files that have several, by device and inode.
    linked: HashMap<(u64, u64), RelPath>,
    /// Directories on the way to what was listed, by the checksum of their names.
    ways: HashSet<u128>,
    /// What was found of which of the places, by the checksum of names, where several
    /// places may have the same; directories are nobody's.
    names: Option<HashMap<u128, usize>>,
    /// The directory that everything goes into, where that is on this machine: by
    /// device and inode.
    into: Option<(u64, u64)>,
    /// Which of the places it is at.
    place: usize,
    stopped: bool,
}

impl<'a, V: Visitor> Scan<'a, V> {
    pub(crate) fn new(visitor: &'a mut V, filter: &'a Filter, recursive: bool) -> Scan<'a, V> {
        let (linked, ways) = (HashMap::new(), HashSet::new());
        Scan { visitor, filter, recursive, linked, ways, names: None, into: None, place: 0, stopped: false }
    }

    /// Leaves out the directory that everything goes into.
    pub(crate) fn without(mut self, into: Option<(u64, u64)>) -> Self {
        self.into = into;
        self
    }

    /// For places of which some may have the same names: each is found once, as far as
    /// names are remembered.
    pub(crate) fn once(mut self, starts: &[Start]) -> Self {
        let named = |start: &Start| match start {
            Start::Tree { path, .. } => !path.is_root(),
            Start::Missing { .. } => true,
            Start::Listed { .. } | Start::Made(_) => false,
        };
        let several = match starts {
            [Start::Listed { files, .. }] => files.len() > 1,
            _ => starts.len() > 1,
        };
        self.names = (several && !starts.iter().all(named)).then(HashMap::new);
        self
    }

    /// Scans from `start`; whether the visitor wants more.
    pub(crate) fn run(&mut self, start: &Start) -> bool {
        self.place += 1;
        match start {
            Start::Tree { tree, path } => self.tree(tree, path),
            Start::Listed { tree, named, files } => {
                for file in files.iter() {
                    if self.stopped {
                        break;
                    }
                    match named.join(file.as_bytes()) {
                        Ok(path) => {
                            self.way(tree, named, &path);
                            self.tree(tree, &path);
                        }
                        Err(e) => self.trouble(file, &io::Error::other(e)),
                    }
                }
            }
            Start::Made(made) => self.made(made),
            Start::Missing { path, .. } if !self.filter.takes(path) => {}
            Start::Missing { path, why } => self.trouble(path, &io::Error::other(why.clone())),
        }
        !self.stopped
    }

    fn tree(&mut self, tree: &Tree, start: &RelPath) {
        let mut directories = Vec::new();
        let first = tree
            .parent(start)
            .and_then(|(fd, name)| self.visit(tree, fd.as_fd(), name, start.clone(), &mut directories));
        match first {
            Ok(true) => {}
            Ok(false) => self.trouble(start, &io::ErrorKind::NotFound.into()),
            Err(e) => self.trouble(start, &e),
        }
        if !self.recursive && !directories.is_empty() {
            return self.trouble(start, &io::Error::other("it is a directory: copy it with -r"));
        }
        while let Some(path) = directories.pop()
            && !self.stopped
        {
            if let Err(e) = self.list(tree, &path, &mut directories) {
                self.trouble(&path, &e);
            }
        }
    }

    /// The directories from what was named to what was listed below it.
    fn way(&mut self, tree: &Tree, named: &RelPath, path: &RelPath) {
        let bytes = path.as_bytes();
        let ends = bytes.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        for end in std::iter::once(0).chain(ends).filter(|end| *end >= named.as_bytes().len()) {
            let Ok(way) = RelPath::new(&bytes[..end]) else { continue };
            if self.ways.len() == WAYS {
                // A directory that comes again does no harm.
                self.ways.clear();
            }
            if way == *path || !self.ways.insert(xxhash_rust::xxh3::xxh3_128(way.as_bytes())) {
                continue;
            }
            // What is missing is told of what was listed.
            if let Ok(Some(entry)) = tree.look(&way)
                && entry.kind == Kind::Directory
            {
                self.stopped |= !self.visitor.found(Found { origin: Origin::Tree(tree.clone()), entry });
            }
        }
    }

    fn made(&mut self, made: &Arc<Made>) {
        for entry in made.directories() {
            self.stopped |= !self.visitor.found(Found { origin: Origin::Made(Arc::clone(made), 0), entry });
        }
        for (index, entry) in (0..made.len()).map_while(|index| Some((index, made.entry(index)?))) {
            if self.stopped {
                break;
            }
            if self.filter.takes(&entry.path) {
                self.found(Found { origin: Origin::Made(Arc::clone(made), index), entry });
            }
        }
    }

    fn list(&mut self, tree: &Tree, path: &RelPath, directories: &mut Vec<RelPath>) -> io::Result<()> {
        let directory = tree.directory(path.as_bytes())?;
        let mut names = tree::Names::open(directory.as_fd())?;
        loop {
            let some = names.some()?;
            if some.is_empty() || self.stopped {
                return Ok(());
            }
            for name in some {
                self.name(tree, directory.as_fd(), path, &name, directories);
            }
        }
    }

    /// Looks at one name in a directory.
    fn name(
        &mut self,
        tree: &Tree,
        at: BorrowedFd<'_>,
        path: &RelPath,
        name: &[u8],
        directories: &mut Vec<RelPath>,
    ) {
        if self.stopped {
            return;
        }
        // Before anything is asked about it: what is left out may be what cannot be copied.
        if !self.filter.takes_name(path.as_bytes(), name) {
            return;
        }
        match path.join(name) {
            Ok(path) => {
                // What is gone since the names were read is no trouble.
                if let Err(e) = self.visit(tree, at, name, path.clone(), directories) {
                    self.trouble(&path, &e);
                }
            }
            // Left by a copy to this place: not part of the data.
            Err(NameError::Reserved(name)) => {
                self.visitor.trouble(Trouble { path: path.clone(), op: Op::Skip, message: name });
            }
            Err(e) => self.trouble(path, &io::Error::other(e)),
        }
    }

    /// Looks at one name; whether it is there.
    fn visit(
        &mut self,
        tree: &Tree,
        at: BorrowedFd<'_>,
        name: &[u8],
        path: RelPath,
        directories: &mut Vec<RelPath>,
    ) -> io::Result<bool> {
        if !self.filter.takes(&path) {
            return Ok(true);
        }
        let Some((mut entry, stat)) = tree::entry_at(at, name, path)? else { return Ok(false) };
        let is_directory = entry.kind == Kind::Directory;
        if is_directory && self.recursive && self.into == Some((stat.st_dev, stat.st_ino)) {
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
        if entry.kind == Kind::File && stat.st_nlink > 1 {
            self.link((stat.st_dev, stat.st_ino), &mut entry);
        }
        self.hand_on(Found { origin: Origin::Tree(tree.clone()), entry });
        Ok(true)
    }

    /// Hands on what was found, if nothing else was under its name.
    fn found(&mut self, found: Found) {
        if self.is_new(&found.entry) {
            self.hand_on(found);
        }
    }

    fn hand_on(&mut self, found: Found) {
        self.stopped |= !self.visitor.found(found);
    }

    /// Whether nothing else was found under the name of something. Directories of one
    /// name are one directory.
    fn is_new(&mut self, entry: &Entry) -> bool {
        let Some(names) = &mut self.names else { return true };
        let place = if entry.kind == Kind::Directory { DIRECTORY } else { self.place };
        let key = xxhash_rust::xxh3::xxh3_128(entry.path.as_bytes());
        match names.get(&key).copied() {
            None => {
                if names.len() < NAMES {
                    names.insert(key, place);
                }
                true
            }
            Some(DIRECTORY) if place == DIRECTORY => true,
            // Listed twice, say: it is the same.
            Some(before) if before == place => false,
            Some(_) => {
                let e = io::Error::other(
                    "another source has something of this name: will not overwrite just-created",
                );
                self.trouble(&entry.path, &e);
                false
            }
        }
    }

    /// Makes a further name of a file a link to the first.
    fn link(&mut self, file: (u64, u64), entry: &mut Entry) {
        let first = self.linked.entry(file).or_insert_with(|| entry.path.clone());
        if *first != entry.path {
            entry.kind = Kind::HardLink(first.clone());
            entry.size = 0;
        }
    }

    fn trouble(&mut self, path: &RelPath, e: &io::Error) {
        self.visitor.trouble(Trouble { path: path.clone(), op: Op::Scan, message: say(e) });
    }
}
