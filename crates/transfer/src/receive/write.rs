//! The writer: the receiver's writer threads carry out the jobs of a session.
//!
//! | part | owns |
//! |---|---|
//! | `admission` | the names and metadata that the receiver accepts of its sender |
//! | `destination_tree` | the path of each entry, and the directories that hold them |
//! | `comparison` | existing objects, and whether they are up to date |
//! | `unfinished` | large files that are written in blocks |
//! | `deferred`, `settle` | work for the end of the session |
//! | `source_names`, `delete` | what `--delete` keeps and removes |
//! | `report` | failures, and actions of a dry run |
//!
//! Invariants:
//! - content is written to a temporary file with a reserved name and renamed to its
//!   final name once it is complete and its checksums match;
//! - a file whose metadata cannot be set is kept, and the failure is reported.

mod admission;
mod claims;
mod comparison;
mod deferred;
mod delete;
mod destination_tree;
mod grant;
mod report;
mod settle;
mod source_names;
mod sparse;
#[cfg(test)]
mod tests;
mod unfinished;

pub(crate) use grant::{Grant, Withheld};

use super::allow_list::AllowList;
use super::journal::Journal;
use super::manifest::Manifest;
use crate::guard::lock;
use crate::send::read::read_full;
use crate::session::{Incoming, JobResult, Violation, WriteJob};
use crate::tree::case_folding::{FoldedNames, folds};
use crate::tree::filter::Filter;
use crate::tree::root::DestinationRoot;
use crate::tree::stamps::unkept;
use crate::tree::{self, Directory, MetadataPolicy, Walker};
use crate::wire::{
    Action, BATCH_ENTRIES, BatchReader, Compare, Content, Counts, Digest, Entry, EntryKind, Hash, Malformed,
    Op, Options, Planned, RelPath, Trouble, Want,
};
use admission::Admission;
use comparison::{Comparison, MetadataUpdate, present};
use deferred::{Deferred, DeferredFile};
use destination_tree::DestinationTree;
use report::{Failure, Outcome, Report, mismatch, write_failure};
use source_names::SourceNames;
use std::io;
use std::sync::{Arc, Mutex};
use unfinished::{FinishedFile, UnfinishedFiles, flush_and_drop_cache};

/// What a session writes, and where.
#[derive(Debug)]
pub(crate) struct WriteSpec {
    pub(crate) destination: DestinationRoot,
    pub(crate) options: Options,
    pub(crate) filter: Filter,
    /// `None` in a dry run.
    pub(crate) journal: Option<Journal>,
    /// The manifest, if the request asks for one.
    pub(crate) manifest: Option<Manifest>,
    /// Names that the receiver accepts, if it requested the copy itself (a pull).
    pub(crate) allow_list: Option<AllowList>,
    /// Metadata that the sender may not set.
    pub(crate) withheld: Withheld,
}

/// What an existence query gets for an entry.
enum QueryAnswer {
    /// The sender sends it, but for the blocks in this bitmap.
    Want(Box<[u8]>),
    /// The destination cannot have it.
    Unusable(io::Error),
    /// It is up to date, and its metadata was updated.
    Same(MetadataUpdate),
}

/// State that all writer threads of a session share.
#[derive(Debug)]
pub(crate) struct Writer {
    options: Options,
    filter: Filter,
    journal: Option<Arc<Journal>>,
    manifest: Option<Manifest>,
    admission: Arc<Admission>,
    tree: Arc<DestinationTree>,
    comparison: Comparison,
    unfinished: UnfinishedFiles,
    deferred: Mutex<Deferred>,
    names: SourceNames,
    report: Report,
}

impl Writer {
    pub(crate) fn new(spec: WriteSpec) -> Writer {
        let journal = spec.journal.as_ref();
        let folds = journal.is_some_and(|journal| folds(&spec.destination.base, journal.name()));
        Writer::folding(spec, folds.then(FoldedNames::default))
    }

    /// A writer to a destination that folds case if there are `folded` names.
    fn folding(spec: WriteSpec, folded: Option<FoldedNames>) -> Writer {
        let WriteSpec { destination, options, filter, journal, manifest, allow_list, withheld } = spec;
        let journal = journal.map(Arc::new);
        let policy = MetadataPolicy { owner: options.owner, lists: withheld.takes_lists() };
        let listed = manifest.as_ref().map(|manifest| manifest.path.clone());
        let tree = Arc::new(DestinationTree::new(destination, options, policy, listed, folded));
        let admission = Arc::new(Admission::new(allow_list, options.xattrs, withheld));
        let by_content = journal.as_ref().is_some_and(|journal| journal.rebooted);
        let names = SourceNames::new(Arc::clone(&tree), options.delete);
        if let Some(manifest) = &manifest {
            // `--delete` must not remove the manifest, which the source does not have.
            names.add(&manifest.path);
        }
        Writer {
            comparison: Comparison::new(Arc::clone(&tree), options, by_content),
            unfinished: UnfinishedFiles::new(
                Arc::clone(&tree),
                Arc::clone(&admission),
                options,
                manifest.is_some(),
                journal.clone(),
            ),
            deferred: Mutex::default(),
            report: Report::new(options.dry_run),
            options,
            filter,
            journal,
            manifest,
            admission,
            tree,
            names,
        }
    }

    /// Device and inode of the destination directory.
    pub(crate) fn base(&self) -> Option<(u64, u64)> {
        self.tree.base.top().identity().ok()
    }

    /// Whether a write failed with a full or read-only file system.
    pub(crate) fn is_full(&self) -> bool {
        self.report.is_full()
    }

    /// Why nothing more can be written, after a failure.
    pub(crate) fn failure(&self) -> Option<String> {
        if self.report.is_broken() { self.tree.base.failure() } else { None }
    }

    /// Takes the dry-run actions recorded since the last call.
    pub(crate) fn take_planned(&self) -> Vec<Planned> {
        self.report.take_planned()
    }

    /// The protocol violation that ends the session, if the sender committed one.
    pub(crate) fn violation(&self) -> Option<Violation> {
        self.admission.violation()
    }

    /// Whether an earlier run of this copy was interrupted.
    pub(crate) fn resumes(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.resumed)
    }

    /// Whether the machine rebooted since that run: files may have lost content that
    /// was not flushed, so they are compared by checksum.
    pub(crate) fn by_content(&self) -> bool {
        self.comparison.by_content
    }

    /// A directory cache for one writer thread.
    pub(crate) fn walker(&self) -> Walker {
        self.tree.walker()
    }

    /// Carries out one job.
    pub(crate) fn run(&self, job: WriteJob, walker: &mut Walker) -> JobResult {
        match job {
            WriteJob::Batch(body) => self.batch(&body, walker),
            WriteJob::Query { number, batch } => self.answer_query(number, &batch),
            WriteJob::Block { file, offset, digest, data } => {
                // Even if the write fails, the source has this name.
                self.names.add(&file.entry.path);
                let result = self.unfinished.write(&file, offset, &digest, &data, walker);
                let result = result.map(|()| data.len() as u64);
                JobResult::Block(file.number, result.map_err(|e| self.report.trouble(&file.entry.path, &e)))
            }
            WriteJob::Complete(file) => {
                self.names.add(&file.entry.path);
                let result = self.complete(&file, walker);
                self.unfinished.forget(&file);
                let (mut counts, mut troubles) = (Counts::default(), Vec::new());
                self.report.count(&file.entry, result, &mut counts, &mut troubles);
                JobResult::File(file.number, counts, troubles)
            }
            WriteJob::Abandon(file) => {
                self.unfinished.abandon(&file);
                JobResult::Abandoned(file.number)
            }
            WriteJob::Settle { whole } => self.settle(whole),
        }
    }

    /// Adds a file to the manifest, if there is one.
    fn list(&self, path: &RelPath, digest: impl FnOnce() -> io::Result<Digest>) -> Result<(), Failure> {
        match &self.manifest {
            Some(manifest) => digest().and_then(|d| manifest.add(path, &d)).map_err(write_failure),
            None => Ok(()),
        }
    }

    fn batch(&self, body: &[u8], walker: &mut Walker) -> JobResult {
        let (mut counts, mut troubles, mut parts) = (Counts::default(), Vec::new(), Vec::new());
        for (index, part) in BatchReader::new(body).enumerate() {
            let part = if index < BATCH_ENTRIES { part } else { Err(Malformed::Value("number of entries")) };
            let (mut entry, content, data) = match part {
                Ok(part) => part,
                Err(e) => {
                    self.admission.leave_out();
                    let message = e.to_string();
                    troubles.push(Trouble { path: RelPath::root(), op: Op::Write, message });
                    break;
                }
            };
            if let Err(e) = self.admission.admit(&entry) {
                troubles.push(self.report.trouble(&entry.path, &write_failure(e)));
                break;
            }
            self.admission.strip_xattrs(&mut entry);
            self.names.add(&entry.path);
            if self.tree.base.is_far() {
                parts.push((entry, content, data));
                continue;
            }
            let result = self.entry(&entry, &content, data, walker);
            counts.bytes += if result.is_ok() { data.len() as u64 } else { 0 };
            self.report.count(&entry, result, &mut counts, &mut troubles);
        }
        // Where each step may take a round trip, several entries are written at a time. Directories that
        // other entries are in are made by whichever comes first.
        let written = self.tree.base.helpers().map(parts, |(entry, content, data)| {
            let result = self.entry(&entry, &content, data, &mut self.walker());
            (entry, data.len() as u64, result)
        });
        for (entry, len, result) in written {
            counts.bytes += if result.is_ok() { len } else { 0 };
            self.report.count(&entry, result, &mut counts, &mut troubles);
        }
        JobResult::Batch(counts, troubles)
    }

    fn entry(
        &self,
        entry: &Entry,
        content: &Content,
        data: &[u8],
        walker: &mut Walker,
    ) -> Result<Outcome, Failure> {
        let path = self.tree.place(&entry.path).map_err(write_failure)?;
        let unchanged = self.comparison.is_unchanged(entry, &path);
        if self.options.dry_run {
            if unchanged {
                return Ok(Outcome::Deferred);
            }
            self.report.plan(&entry.path, Action::Make);
            return Ok(Outcome::Complete);
        }
        match &entry.kind {
            EntryKind::Directory => self.directory(entry, path, unchanged, walker),
            EntryKind::HardLink(_) => {
                // Extended attributes belong to the inode, and come with the first name.
                let kept = Entry { xattrs: Vec::new(), ..entry.clone() };
                lock(&self.deferred).add(entry.path.clone(), kept).map_err(write_failure)?;
                Ok(Outcome::Deferred)
            }
            EntryKind::Symlink(_) if unchanged => Ok(Outcome::Deferred),
            EntryKind::Symlink(target) => self.symlink(entry, path, target, walker),
            EntryKind::File => self.file(entry, path, content, data, walker),
        }
    }

    /// Creates a directory, and defers its metadata.
    fn directory(
        &self,
        entry: &Entry,
        path: RelPath,
        unchanged: bool,
        walker: &mut Walker,
    ) -> Result<Outcome, Failure> {
        let directory = self.tree.directory(path.as_bytes(), walker).map_err(write_failure)?;
        // Entries created in it change its mtime, which is set at the end in any case.
        let mtime = self.tree.kept(&directory, entry.mtime);
        let kept = Entry { path: path.clone(), mtime, ..entry.clone() };
        Ok(match lock(&self.deferred).add(path, kept) {
            Err(e) => Outcome::Flawed((Op::Metadata, e)),
            Ok(()) if unchanged => Outcome::Deferred,
            Ok(()) if mtime.secs.abs_diff(entry.mtime.secs) > 2 => {
                Outcome::Flawed((Op::Metadata, unkept(entry.mtime, mtime)))
            }
            Ok(()) => Outcome::Complete,
        })
    }

    fn symlink(
        &self,
        entry: &Entry,
        path: RelPath,
        target: &[u8],
        walker: &mut Walker,
    ) -> Result<Outcome, Failure> {
        let parent = path.split().0;
        let directory = self.tree.directory(parent, walker).map_err(write_failure)?;
        let temporary = self.unfinished.temporary(entry);
        let make = |at: &Directory| tree::symlink(at, target, &temporary);
        self.tree.make_in(&directory, parent, make).map_err(write_failure)?;
        let set = tree::set_link_metadata(&directory, &temporary, entry, self.tree.policy);
        let flaw = set.err().map(|e| (Op::Metadata, e));
        let sent = entry.path.clone();
        let link = DeferredFile { path, sent, temporary, digest: None, is_file: false, flaw };
        self.rename_to_final(&directory, link)
    }

    /// Writes a small file, whose content is in the batch.
    fn file(
        &self,
        entry: &Entry,
        path: RelPath,
        content: &Content,
        data: &[u8],
        walker: &mut Walker,
    ) -> Result<Outcome, Failure> {
        let digest = match content {
            Content::Inline { digest, .. } if self.options.hash.of(data) != *digest => {
                return Err(mismatch());
            }
            Content::Inline { digest, .. } => *digest,
            Content::None => Hash::Strong.of(&[]),
            _ => return Err(write_failure(io::Error::other("malformed entry: a file without content"))),
        };
        let parent = path.split().0;
        let directory = self.tree.directory(parent, walker).map_err(write_failure)?;
        let temporary = self.unfinished.temporary(entry);
        let filled = self.fill(&directory, parent, &temporary, entry, data);
        let flaw = filled.inspect_err(|_| drop(tree::remove(&directory, &temporary)))?;
        let (sent, digest) = (entry.path.clone(), Some(digest));
        self.rename_to_final(&directory, DeferredFile { path, sent, temporary, digest, is_file: true, flaw })
    }

    /// Writes the content and metadata of a small file to a temporary file; returns a
    /// failure to set metadata.
    fn fill(
        &self,
        directory: &Directory,
        parent: &[u8],
        temporary: &[u8],
        entry: &Entry,
        data: &[u8],
    ) -> Result<Option<Failure>, Failure> {
        let make = |at: &Directory| tree::create(at, temporary, false);
        let (file, _) = self.tree.make_in(directory, parent, make).map_err(write_failure)?;
        if entry.sparse {
            file.set_len(data.len() as u64).map_err(write_failure)?;
        }
        sparse::write(&file, entry, data, 0, true).map_err(write_failure)?;
        let flaw = self.tree.set_file_metadata(&file, entry)?;
        if self.options.verify {
            flush_and_drop_cache(&file).map_err(write_failure)?;
            let mut read_back = vec![0; data.len()];
            let read = read_full(&file, &mut read_back, 0).map_err(write_failure)?;
            if read != data.len() || read_back != data {
                return Err(mismatch());
            }
        }
        Ok(flaw)
    }

    /// Completes a large file.
    fn complete(&self, file: &Incoming, walker: &mut Walker) -> Result<Outcome, Failure> {
        let FinishedFile { open, digest, flaw } = self.unfinished.finish(file, walker)?;
        let (path, sent, temporary) = (open.path.clone(), file.entry.path.clone(), open.temporary.clone());
        let late = DeferredFile { path, sent, temporary, digest, is_file: true, flaw };
        let outcome = self.rename_to_final(&open.directory, late)?;
        if !matches!(outcome, Outcome::Deferred) {
            self.unfinished.complete(file)?;
        }
        Ok(outcome)
    }

    /// Renames a complete temporary file to its name and adds it to the manifest. If a
    /// non-empty directory has the name, and `--delete` may remove it, the rename is
    /// deferred.
    fn rename_to_final(&self, directory: &Directory, file: DeferredFile) -> Result<Outcome, Failure> {
        match tree::rename_to(directory, &file.temporary, file.path.split().1) {
            Err(e) if self.options.delete && tree::is_not_empty(&e) => {
                lock(&self.deferred)
                    .add_blocked(file)
                    .inspect_err(|file| drop(tree::remove(directory, &file.temporary)))
                    .map_err(|_| write_failure(e))?;
                return Ok(Outcome::Deferred);
            }
            result => result
                .inspect_err(|_| drop(tree::remove(directory, &file.temporary)))
                .map_err(write_failure)?,
        }
        if let (true, Some(digest)) = (file.is_file, file.digest) {
            self.list(&file.path, || Ok(digest))?;
        }
        Ok(file.flaw.into())
    }

    /// Answers an existence query: the entries that the sender has to send.
    fn answer_query(&self, number: u32, batch: &[u8]) -> JobResult {
        let mut asked = Vec::new();
        for (index, part) in BatchReader::new(batch).enumerate() {
            let (true, Ok((mut entry, content, _))) = (index < BATCH_ENTRIES, part) else {
                self.admission.leave_out();
                break;
            };
            if self.admission.admit(&entry).is_err() {
                break;
            }
            self.admission.strip_xattrs(&mut entry);
            self.names.add(&entry.path);
            asked.push((index as u32, entry, content));
        }
        let (mut wants, mut counts, mut troubles) = (Vec::new(), Counts::default(), Vec::new());
        let answers = self.tree.base.helpers().map(asked, |(index, entry, content)| {
            let answer = self.answer(&entry, &content);
            (index, entry, answer)
        });
        for (index, entry, answer) in answers {
            match answer {
                QueryAnswer::Want(have) => {
                    counts.skipped += present(&have, entry.size);
                    wants.push(Want { index, have });
                    self.report.plan(&entry.path, Action::Send);
                    continue;
                }
                // Without a usable destination path the content need not be sent.
                QueryAnswer::Unusable(e) => {
                    troubles.push(self.report.trouble(&entry.path, &write_failure(e)));
                    continue;
                }
                QueryAnswer::Same(MetadataUpdate::Changed) => {
                    counts.metadata += 1;
                    self.report.plan(&entry.path, Action::Metadata);
                }
                QueryAnswer::Same(MetadataUpdate::Failed(e)) => {
                    troubles.push(self.report.trouble(&entry.path, &(Op::Metadata, e)));
                }
                QueryAnswer::Same(MetadataUpdate::Unchanged | MetadataUpdate::Resend) => {}
            }
            counts.same += 1;
            counts.skipped += entry.size;
        }
        JobResult::Query { number, wants, counts, troubles }
    }

    /// Answers for one entry of an existence query.
    fn answer(&self, entry: &Entry, content: &Content) -> QueryAnswer {
        if self.manifest.is_some()
            && let Err(e) = self.tree.place(&entry.path)
        {
            return QueryAnswer::Unusable(e);
        }
        let there = self.comparison.up_to_date(entry, content);
        let there =
            there.filter(|it| it.entry.kind != EntryKind::File || self.list_same(entry, content).is_ok());
        match there.map(|there| self.comparison.update_metadata(entry, &there)) {
            None | Some(MetadataUpdate::Resend) => QueryAnswer::Want(self.unfinished.have(entry)),
            Some(update) => QueryAnswer::Same(update),
        }
    }

    /// Adds a file that need not be sent to the manifest.
    ///
    /// # Errors
    /// The file cannot be read; the caller then has it sent.
    fn list_same(&self, entry: &Entry, content: &Content) -> Result<(), Failure> {
        if entry.kind != EntryKind::File || self.options.dry_run {
            return Ok(());
        }
        let path = self.tree.place(&entry.path).map_err(write_failure)?;
        self.list(&path, || match (content, self.comparison.method()) {
            (Content::Query(Some(digest)), Compare::Checksum) => Ok(*digest),
            _ => Hash::Strong.of_file(&tree::open_file(&self.tree.base, &path)?),
        })
    }
}
