//! `--delete`: removes objects that the source does not have.

use super::write::Writer;
use crate::tree::{self, say};
use crate::wire::{Action, Counts, EntryKind, NameError, Op, RelPath, Trouble};
use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;

/// Removes objects below the writer's base whose names are not in `seen`. Objects that the
/// filter excludes and unfinished files are kept.
pub(crate) fn delete(
    writer: &Writer,
    seen: &HashSet<u128>,
    counts: &mut Counts,
    troubles: &mut Vec<Trouble>,
) {
    DeleteWalk { writer, seen, counts, troubles }.list(&RelPath::root(), false);
}

/// All names of a directory. They are read before any is removed, since removing entries
/// during readdir(3) may skip others.
fn all(directory: std::os::fd::BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    let (mut names, mut all) = (tree::DirectoryNames::open(directory)?, Vec::new());
    loop {
        let some = names.next_batch()?;
        if some.is_empty() {
            return Ok(all);
        }
        all.extend(some);
    }
}

struct DeleteWalk<'a> {
    writer: &'a Writer,
    seen: &'a HashSet<u128>,
    counts: &'a mut Counts,
    troubles: &'a mut Vec<Trouble>,
}

impl DeleteWalk<'_> {
    /// Removes objects in a directory, all of them if `doomed`; returns whether it is empty
    /// then.
    fn list(&mut self, path: &RelPath, doomed: bool) -> bool {
        let base = &self.writer.base;
        let directory = match base.directory(path.as_bytes()) {
            Ok(directory) => directory,
            Err(e) => return self.failed(path, &e),
        };
        let names = match all(directory.as_fd()) {
            Ok(names) => names,
            Err(e) => return self.failed(path, &e),
        };
        let mut empty = true;
        for name in names {
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
            if !self.writer.filter.takes(&below) {
                empty = false;
                continue;
            }
            let kind = match base.look(&below) {
                Ok(Some(entry)) => entry.kind,
                Ok(None) => continue,
                // Devices and the like are never copied; they are removed like files.
                Err(e) if e.kind() == io::ErrorKind::Unsupported => EntryKind::File,
                Err(e) => {
                    empty = self.failed(&below, &e);
                    continue;
                }
            };
            let gone = self.object(directory.as_fd(), &name, &below, &kind, doomed);
            empty &= gone;
        }
        empty
    }

    fn object(
        &mut self,
        at: std::os::fd::BorrowedFd<'_>,
        name: &[u8],
        path: &RelPath,
        kind: &EntryKind,
        doomed: bool,
    ) -> bool {
        let known = !doomed && self.seen.contains(&self.writer.seen_key(path));
        let is_directory = *kind == EntryKind::Directory;
        let empty = !is_directory || self.list(path, !known);
        if known || !empty {
            return false;
        }
        let remove = || match (self.writer.options.dry_run, is_directory) {
            (true, _) => Ok(()),
            (false, true) => tree::remove_directory(at, name),
            (false, false) => tree::remove(at, name),
        };
        let removed = match remove() {
            Err(e)
                if e.kind() == io::ErrorKind::PermissionDenied
                    && self.writer.make_writable(at, path.split().0) =>
            {
                remove()
            }
            result => result,
        };
        match removed {
            Ok(()) => {
                self.counts.deleted += 1;
                self.writer.plan(path, Action::Delete);
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
