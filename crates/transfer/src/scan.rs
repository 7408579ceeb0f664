//! Looking for what there is to copy.
//!
//! Invariants: a directory comes before what is in it; symbolic links are
//! found, never followed; what cannot be looked at is told and left out, and
//! the rest goes on. Memory grows with the directories that are known and not
//! looked into yet, and with files of several names, not with all files.

use crate::filter::Filter;
use crate::tree::{self, Tree, say};
use crate::wire::{Entry, Kind, NameError, Op, RelPath, Trouble};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Something that was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The tree that [`Entry::path`] is in.
    pub(crate) tree: Tree,
    /// What it is.
    pub(crate) entry: Entry,
}

/// Where a scan begins: something in a tree, or the tree itself.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) tree: Tree,
    pub(crate) path: RelPath,
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
    stopped: bool,
}

impl<'a, V: Visitor> Scan<'a, V> {
    pub(crate) fn new(visitor: &'a mut V, filter: &'a Filter, recursive: bool) -> Scan<'a, V> {
        Scan { visitor, filter, recursive, linked: HashMap::new(), stopped: false }
    }

    /// Scans from `start`; whether the visitor wants more.
    pub(crate) fn run(&mut self, start: &Start) -> bool {
        let mut directories = Vec::new();
        let (parent, name) = start.path.split();
        let opened = start.tree.directory(parent);
        let first =
            opened.and_then(|fd| self.visit(start, fd.as_fd(), name, start.path.clone(), &mut directories));
        match first {
            Ok(true) => {}
            Ok(false) => self.trouble(&start.path, &io::ErrorKind::NotFound.into()),
            Err(e) => self.trouble(&start.path, &e),
        }
        if !self.recursive && !directories.is_empty() {
            self.trouble(&start.path, &io::Error::other("it is a directory: copy it with -r"));
            return !self.stopped;
        }
        while let Some(path) = directories.pop()
            && !self.stopped
        {
            if let Err(e) = self.list(start, &path, &mut directories) {
                self.trouble(&path, &e);
            }
        }
        !self.stopped
    }

    fn list(&mut self, start: &Start, path: &RelPath, directories: &mut Vec<RelPath>) -> io::Result<()> {
        let directory = start.tree.directory(path.as_bytes())?;
        for name in tree::names(directory.as_fd())? {
            if self.stopped {
                break;
            }
            match path.join(&name) {
                Ok(path) => {
                    // What is gone since the names were read is no trouble.
                    if let Err(e) = self.visit(start, directory.as_fd(), &name, path.clone(), directories) {
                        self.trouble(&path, &e);
                    }
                }
                // Left by a copy to this place: not part of the data.
                Err(NameError::Reserved(_)) => {}
                Err(e) => self.trouble(path, &io::Error::other(e)),
            }
        }
        Ok(())
    }

    /// Looks at one name; whether it is there.
    fn visit(
        &mut self,
        start: &Start,
        at: BorrowedFd<'_>,
        name: &[u8],
        path: RelPath,
        directories: &mut Vec<RelPath>,
    ) -> io::Result<bool> {
        let Some((mut entry, stat)) = tree::entry_at(at, name, path)? else { return Ok(false) };
        let is_directory = entry.kind == Kind::Directory;
        if !self.filter.takes(&entry.path) {
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
        self.stopped |= !self.visitor.found(Found { tree: start.tree.clone(), entry });
        Ok(true)
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
