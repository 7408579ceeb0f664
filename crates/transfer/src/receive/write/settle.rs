//! The end of a session: deletes, makes hard links, sets metadata of directories, and
//! removes the journal.
//!
//! Invariants:
//! - deferred files get their names after `--delete` has emptied the directories that have
//!   them, and hard links are made after all files;
//! - directories get their metadata last, deepest first, since each earlier step may
//!   change their mtime or need write permission;
//! - the journal is removed only after the data was flushed, if the request says so.

use super::Writer;
use super::comparison::Existing;
use super::deferred::{Deferred, DeferredFile};
use super::delete::DeleteWalk;
use super::report::{Failure, write_failure};
use crate::guard::lock;
use crate::receive::journal::{Journal, unfinished_of};
use crate::receive::manifest::Manifest;
use crate::session::JobResult;
use crate::tree::{self, Directory};
use crate::wire::{Compare, Counts, Durability, Entry, EntryKind, Hash, Op, RelPath, Trouble};
use std::collections::BTreeMap;
use std::io;

impl Writer {
    /// Does the deferred work. `whole` says that the sender saw all of the source.
    pub(super) fn settle(&self, whole: bool) -> JobResult {
        let (mut counts, mut troubles) = (Counts::default(), Vec::new());
        troubles.extend(self.admission.trouble());
        let Deferred { directories, links, blocked, .. } = std::mem::take(&mut *lock(&self.deferred));
        if self.options.delete {
            self.delete(whole, &mut counts, &mut troubles);
        }
        for file in blocked {
            match self.rename_deferred(&file) {
                Ok(()) if file.is_file => counts.files += 1,
                Ok(()) => counts.others += 1,
                Err(e) => troubles.push(self.report.trouble(&file.sent, &e)),
            }
            troubles.extend(file.flaw.map(|flaw| self.report.trouble(&file.sent, &flaw)));
        }
        for link in links.values() {
            match self.hard_link(link) {
                Ok(made) => counts.others += u64::from(made),
                Err(e) => troubles.push(self.report.trouble(&link.path, &e)),
            }
        }
        if let Some(manifest) = &self.manifest {
            match self.finish_manifest(manifest) {
                Ok(left_out) => troubles.extend(left_out.into_iter().map(|path| {
                    let message = "its name is not UTF-8: the manifest cannot list it".into();
                    Trouble { path, op: Op::Metadata, message }
                })),
                Err(e) => troubles.push(self.report.trouble(&manifest.path, &write_failure(e))),
            }
        }
        if self.resumes() {
            self.sweep(directories.keys());
        }
        self.tree.restore_modes();
        // Where it may take round trips, several are set at a time: there no mode keeps from what is deeper.
        let deepest_first = directories.values().rev().collect();
        let set = self
            .tree
            .base
            .helpers()
            .map(deepest_first, |entry| (entry, self.tree.set_directory_metadata(entry)));
        for (entry, result) in set {
            if let Err(e) = result {
                troubles.push(self.report.trouble(&entry.path, &(Op::Metadata, e)));
            }
        }
        if let Err(e) = self.close_journal(whole, &directories) {
            troubles.push(self.report.trouble(&RelPath::root(), &write_failure(e)));
        }
        JobResult::Settled(counts, troubles)
    }

    /// Removes what the source does not have, if its names are all known.
    fn delete(&self, whole: bool, counts: &mut Counts, troubles: &mut Vec<Trouble>) {
        let message = if self.names.overflow() {
            "nothing was removed: the source has more names than --delete supports (32 Mi)"
        } else if !whole || !self.admission.is_whole() {
            "nothing was removed, since not all of the source could be read"
        } else {
            let (tree, names, filter, report) = (&*self.tree, &self.names, &self.filter, &self.report);
            let dry_run = self.options.dry_run;
            return DeleteWalk { tree, names, filter, report, dry_run, counts, troubles }.run();
        };
        troubles.push(Trouble { path: RelPath::root(), op: Op::Delete, message: message.into() });
    }

    /// Renames a deferred file to its name.
    fn rename_deferred(&self, file: &DeferredFile) -> Result<(), Failure> {
        let (parent, name) = file.path.split();
        let directory = self.tree.base.directory(parent).map_err(write_failure)?;
        tree::rename_to(&directory, &file.temporary, name)
            .inspect_err(|_| drop(tree::remove(&directory, &file.temporary)))
            .map_err(write_failure)?;
        match file.digest {
            Some(digest) if file.is_file => self.list(&file.path, || Ok(digest)),
            _ => Ok(()),
        }
    }

    /// Creates a hard link; returns false if it exists already.
    fn hard_link(&self, entry: &Entry) -> Result<bool, Failure> {
        let EntryKind::HardLink(first) = &entry.kind else { return Ok(false) };
        let place = |path| self.tree.place(path).map_err(write_failure);
        let (first, path) = (place(first)?, place(&entry.path)?);
        let base = &self.tree.base;
        let list = || self.list(&path, || Hash::Strong.of_file(&tree::open_file(base, &path)?));
        if self.comparison.is_unchanged(entry, &path) {
            return list().map(|()| false);
        }
        // The first name may hold another file by now, or its copy failed.
        let is_it = |there: &Existing| there.entry.kind == EntryKind::File && there.has_time_of(entry);
        if !matches!(self.options.compare, Compare::Exists | Compare::Size) {
            let there = self.comparison.look(&first).map_err(write_failure)?;
            if !there.as_ref().is_some_and(is_it) {
                let message =
                    format!("cannot link to {first}: that file is missing here, or differs from the source");
                return Err(write_failure(io::Error::other(message)));
            }
        }
        let ((old, from), (parent, name)) = (first.split(), path.split());
        let old = base.directory(old).map_err(write_failure)?;
        let directory = base.make(parent).map_err(write_failure)?;
        let temporary = self.unfinished.temporary(entry);
        let make = |at: &Directory| {
            tree::remove(at, &temporary)?;
            tree::hard_link(&old, from, at, &temporary)
        };
        self.tree.make_in(&directory, parent, make).map_err(write_failure)?;
        tree::rename_to(&directory, &temporary, name)
            .inspect_err(|_| drop(tree::remove(&directory, &temporary)))
            .map_err(write_failure)?;
        list()?;
        // rename(2) leaves both names if they already are the same file.
        tree::remove(&directory, &temporary).map_err(write_failure)?;
        Ok(true)
    }

    /// Renames the manifest to its name; returns the files that it could not list.
    fn finish_manifest(&self, manifest: &Manifest) -> io::Result<Vec<RelPath>> {
        let parent = manifest.path.split().0;
        let base = &self.tree.base;
        let finish = || {
            let directory = base.directory(parent).map_err(|e| match e.kind() {
                io::ErrorKind::NotADirectory | io::ErrorKind::NotFound => io::Error::other(
                    "the manifest needs a directory as destination, and a single file was copied",
                ),
                _ => e,
            })?;
            self.tree.make_in(&directory, parent, |at| manifest.finish(base.top(), at))
        };
        finish().inspect_err(|_| manifest.discard(base.top()))
    }

    /// Removes unfinished files of earlier runs whose source files changed since.
    fn sweep<'a>(&self, directories: impl Iterator<Item = &'a RelPath>) {
        let own = unfinished_of(self.unfinished.key());
        for path in directories.map(RelPath::as_bytes).chain([&b""[..]]) {
            let Ok(directory) = self.tree.base.directory(path) else { continue };
            let Ok(mut names) = tree::DirectoryNames::open(&directory) else { continue };
            let mut old = Vec::new();
            while let Ok(some) = names.next_batch()
                && !some.is_empty()
            {
                old.extend(some.into_iter().map(|it| it.name).filter(|name| name.starts_with(&own)));
            }
            for name in old {
                // Best effort: a leftover file has a reserved name and does no harm.
                let _ = tree::remove(&directory, &name);
            }
        }
    }

    /// Flushes the data if the request says so, and removes the journal of a complete copy.
    ///
    /// # Errors
    /// The flush failed; the next run then compares content.
    fn close_journal(&self, whole: bool, directories: &BTreeMap<RelPath, Entry>) -> io::Result<()> {
        let durable = match self.options.durability {
            Durability::None => Ok(()),
            _ if self.options.dry_run => Ok(()),
            _ => self.tree.sync(),
        };
        if let Some(journal) = &self.journal {
            if durable.is_err() {
                let _ = journal.distrust();
            } else if !self.by_content() || (whole && self.filter.is_empty()) {
                self.remove_journal(journal, directories.get(&RelPath::root()));
                // Where names are written behind, that of the journal is gone only then.
                if durable.is_ok() && self.tree.base.is_far() && self.options.durability != Durability::None {
                    return self.tree.sync();
                }
            }
        }
        durable
    }

    /// Removes the journal, so that the next run does not query what exists. `root` is
    /// the entry of the directory that holds it.
    fn remove_journal(&self, journal: &Journal, root: Option<&Entry>) {
        let (base, mut opened) = (&self.tree.base, None);
        if journal.remove(base).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            opened = tree::make_writable(base.top());
            let _ = journal.remove(base);
        }
        // Removing it changed the mtime of the directory.
        match (root, opened) {
            (Some(root), _) => drop(self.tree.set_directory_metadata(root)),
            (None, Some(mode)) => drop(tree::restore_mode(base.top(), mode)),
            (None, None) => {}
        }
    }
}
