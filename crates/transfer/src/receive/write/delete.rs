//! `--delete`: removes objects that the source does not have.
//!
//! Invariant: an object is kept if the source has its name, if the filter excludes it, if
//! its name is reserved, or if it is a directory that holds such an object.

use super::destination_tree::DestinationTree;
use super::report::Report;
use super::source_names::SourceNames;
use crate::tree::filter::Filter;
use crate::tree::{self, Directory, ListedName, say};
use crate::wire::{Action, Counts, EntryKind, NameError, Op, RelPath, Trouble};
use std::io;

/// All names of a directory. They are read before any is removed, since removing entries
/// during readdir(3) may skip others.
fn all(directory: &Directory) -> io::Result<Vec<ListedName>> {
    let (mut names, mut all) = (tree::DirectoryNames::open(directory)?, Vec::new());
    loop {
        let some = names.next_batch()?;
        if some.is_empty() {
            return Ok(all);
        }
        all.extend(some);
    }
}

/// One walk through the destination that removes what the source does not have.
pub(super) struct DeleteWalk<'a> {
    pub(super) tree: &'a DestinationTree,
    pub(super) names: &'a SourceNames,
    pub(super) filter: &'a Filter,
    pub(super) report: &'a Report,
    pub(super) dry_run: bool,
    pub(super) counts: &'a mut Counts,
    pub(super) troubles: &'a mut Vec<Trouble>,
}

impl DeleteWalk<'_> {
    /// Walks through the whole tree.
    pub(super) fn run(mut self) {
        self.list(&RelPath::root(), false);
    }

    /// Removes objects in a directory, all of them if `doomed`; returns whether it is empty
    /// then.
    fn list(&mut self, path: &RelPath, doomed: bool) -> bool {
        let base = &self.tree.base;
        let directory = match base.directory(path.as_bytes()) {
            Ok(directory) => directory,
            Err(e) => return self.failed(path, &e),
        };
        let names = match all(&directory) {
            Ok(names) => names,
            Err(e) => return self.failed(path, &e),
        };
        let mut empty = true;
        for ListedName { name, listed } in names {
            let below = match path.join(&name) {
                Ok(below) => below,
                Err(NameError::Reserved(_)) => {
                    empty = false;
                    continue;
                }
                Err(e) => {
                    empty = self.failed(path, &io::Error::other(e));
                    continue;
                }
            };
            if !self.filter.takes(&below) {
                empty = false;
                continue;
            }
            let found = match listed {
                Some(it) => tree::entry_of(&directory, &name, below.clone(), it.status, it.target)
                    .map(|(entry, _)| Some(entry)),
                None => base.look(&below),
            };
            let kind = match found {
                Ok(Some(entry)) => entry.kind,
                Ok(None) => continue,
                // Devices and the like are never copied; they are removed like files.
                Err(e) if e.kind() == io::ErrorKind::Unsupported => EntryKind::File,
                Err(e) => {
                    empty = self.failed(&below, &e);
                    continue;
                }
            };
            let removed = self.object(&directory, &name, &below, &kind, doomed);
            empty &= removed;
        }
        empty
    }

    /// Removes an object unless the source has it; returns whether it was removed.
    fn object(
        &mut self,
        at: &Directory,
        name: &[u8],
        path: &RelPath,
        kind: &EntryKind,
        doomed: bool,
    ) -> bool {
        let known = !doomed && self.names.has(path);
        let is_directory = *kind == EntryKind::Directory;
        let empty = !is_directory || self.list(path, !known);
        if known || !empty {
            return false;
        }
        let remove = || match (self.dry_run, is_directory) {
            (true, _) => Ok(()),
            (false, true) => tree::remove_directory(at, name),
            (false, false) => tree::remove(at, name),
        };
        let removed = match remove() {
            Err(e)
                if e.kind() == io::ErrorKind::PermissionDenied
                    && self.tree.make_writable(at, path.split().0) =>
            {
                remove()
            }
            result => result,
        };
        match removed {
            Ok(()) => {
                self.counts.deleted += 1;
                self.report.plan(path, Action::Delete);
                true
            }
            Err(e) => self.failed(path, &e),
        }
    }

    fn failed(&mut self, path: &RelPath, e: &io::Error) -> bool {
        self.troubles.push(Trouble { path: path.clone(), op: Op::Delete, message: say(e) });
        false
    }
}
