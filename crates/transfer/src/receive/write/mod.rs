//! Writing: the receiver's writer threads carry out the jobs of a session.
//!
//! Invariants:
//! - content is written to a temporary file with a reserved name and renamed to its
//!   final name once it is complete and its checksums match;
//! - directories get their mode and mtime last, deepest first, since creating
//!   entries in a directory changes its mtime, and needs write permission;
//! - hard links are made after all files;
//! - a file whose metadata cannot be set is kept, and the failure is reported.

mod claims;
mod grant;
mod same;
mod sparse;
#[cfg(test)]
mod tests;

use crate::receive::allow_list::AllowList;
use crate::receive::journal::{FileKey, Journal, file_key, unfinished, unfinished_of};
use crate::receive::manifest::Manifest;
use crate::send::read::read_full;
use crate::session::{Incoming, JobResult, Violation, WriteJob};
use crate::tree::case_folding::{FoldedNames, fold, folds};
use crate::tree::filter::Filter;
use crate::tree::stamps::{FileSystems, USUAL, unkept};
use crate::tree::{self, MetadataPolicy, Tree, Walker, is_full, say};
use crate::wire::{
    Action, BATCH_ENTRIES, BLOCK, BatchReader, Compare, Content, Counts, Digest, Durability, Entry,
    EntryKind, HAVE_MAX, Hash, Malformed, Op, Options, Planned, RelPath, Time, Trouble, Want,
};
use claims::Claims;
pub(crate) use grant::{Grant, Withheld};
use same::{Existing, MetadataUpdate, present};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The most blocks of holes in a file that a manifest lists (1 TiB): holes are hashed
/// as zeroes, and a sender can claim any size without sending a byte.
const HOLES: u64 = 1 << 20;

/// Memory for directories, hard links and files that are deferred to the end of the
/// session, in bytes: about two million of them with short names.
const DEFERRED_BYTES: usize = 512 << 20;

/// The most source names remembered for `--delete` (1 GiB of memory).
const SEEN: usize = 32 << 20;

/// State that all writer threads of a session share.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) base: Tree,
    /// Replaces the first path component if the source is copied *as* the destination
    /// rather than *into* it.
    pub(crate) rename: Option<Vec<u8>>,
    pub(crate) options: Options,
    pub(crate) filter: Filter,
    /// The destination directory, opened before the first write so that `syncfs(2)`
    /// reports every write error since.
    sync_root: Option<OwnedFd>,
    /// `None` in a dry run.
    pub(crate) journal: Option<Journal>,
    /// The manifest, if the request asks for one.
    pub(crate) manifest: Option<Manifest>,
    /// Names received so far, if the destination folds case.
    pub(crate) folded: Option<FoldedNames>,
    /// Names that the receiver accepts, if it requested the copy itself (a pull).
    pub(crate) allow_list: Option<AllowList>,
    /// Metadata that the sender may not set.
    pub(crate) withheld: Withheld,
    /// The first entry received that is not on the allow-list.
    rejected: OnceLock<RelPath>,
    /// Timestamp granularity of each file system of the destination.
    file_systems: FileSystems,
    claims: Claims,
    files: Mutex<HashMap<u64, Arc<UnfinishedSlot>>>,
    /// Unfinished files of an earlier run whose blocks the sender skips.
    declared: Mutex<HashMap<FileKey, DeclaredBlocks>>,
    deferred: Mutex<Deferred>,
    /// Actions of a dry run that are not reported yet.
    planned: Mutex<Vec<Planned>>,
    /// The file system is full: further writes are pointless.
    full: AtomicBool,
    /// A batch was malformed, so the set of names of the source is incomplete and
    /// nothing may be deleted.
    malformed: AtomicBool,
}

/// Device, inode, and seconds and nanoseconds of `ctime`: see [`identity`].
type FileIdentity = (u64, u64, i64, u64);

/// An unfinished file whose blocks the receiver offered to keep.
#[derive(Debug)]
struct DeclaredBlocks {
    file: FileIdentity,
    /// Offsets and checksums of blocks that were read back and verified.
    blocks: Vec<(u64, Digest)>,
}

/// Result of writing one entry.
#[derive(Debug)]
enum Outcome {
    /// The object is in place.
    Complete,
    /// The object is made, and counted, at the end of the session.
    Deferred,
    /// The object is in place; setting some of its metadata failed.
    Flawed(Failure),
}

impl From<Option<Failure>> for Outcome {
    fn from(flaw: Option<Failure>) -> Outcome {
        flaw.map_or(Outcome::Complete, Outcome::Flawed)
    }
}

/// Work that waits until all files are written.
#[derive(Debug, Default)]
struct Deferred {
    /// By destination path.
    directories: BTreeMap<RelPath, Entry>,
    /// By source path.
    links: BTreeMap<RelPath, Entry>,
    /// Files and symbolic links whose names are still taken by directories that
    /// `--delete` will empty.
    blocked: Vec<DeferredFile>,
    /// Memory of the three above, in bytes.
    bytes: usize,
    /// Existing directories made writable for the copy, with their original modes.
    opened: Vec<(Vec<u8>, u32)>,
    /// Checksums of the names of the source, with `--delete`.
    seen: HashSet<u128>,
    /// The source has more than [`SEEN`] names.
    overflow: bool,
}

impl Deferred {
    /// Defers an entry; it replaces an earlier one of the same path.
    fn add(&mut self, path: RelPath, entry: Entry) -> io::Result<()> {
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
        kept.insert(path, entry);
        Ok(())
    }

    /// Defers a file whose name is taken by a directory.
    ///
    /// # Errors
    /// The memory limit is reached; gives the file back.
    fn add_blocked(&mut self, late: DeferredFile) -> Result<(), DeferredFile> {
        let names = late.path.as_bytes().len() + late.sent.as_bytes().len() + late.temporary.len();
        let more = size_of::<DeferredFile>() + names;
        if self.bytes + more > DEFERRED_BYTES {
            return Err(late);
        }
        self.bytes += more;
        self.blocked.push(late);
        Ok(())
    }
}

/// A complete temporary file or symbolic link that is not renamed to its name yet.
#[derive(Debug)]
struct DeferredFile {
    /// Destination path, and the path that the sender knows it by.
    path: RelPath,
    sent: RelPath,
    temporary: Vec<u8>,
    /// Checksum of a file, for the manifest.
    digest: Option<Digest>,
    is_file: bool,
    flaw: Option<Failure>,
}

/// A large file that is being written in blocks.
#[derive(Debug)]
struct Unfinished {
    file: File,
    directory: Arc<OwnedFd>,
    temporary: Vec<u8>,
    path: RelPath,
    /// The file was created by this run, so it reads as zeroes.
    fresh: bool,
    /// Checksums of blocks by offset, kept for `--verify` and the manifest.
    digests: Mutex<BTreeMap<u64, Digest>>,
}

/// A large file, opened by the first writer thread that needs it.
type UnfinishedSlot = Mutex<Option<Arc<Unfinished>>>;

/// The operation that failed, and its error.
type Failure = (Op, io::Error);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn mismatch() -> Failure {
    (Op::Verify, io::Error::other("the checksum of the content does not match what was sent"))
}

/// Identifies a file in its present state; `ctime` is included because inode numbers
/// are reused.
fn identity(file: &File) -> io::Result<FileIdentity> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec as u64))
}

/// Flushes a file to the device and drops it from the page cache, so that it is read
/// back from the device. Dropping is advisory: where it has no effect, the page cache is
/// compared.
fn flush_and_drop_cache(file: &File) -> io::Result<()> {
    file.sync_data()?;
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    Ok(())
}

/// BLAKE3 checksum of a file, from the checksums of its blocks.
fn digest(open: &Unfinished, size: u64) -> io::Result<Digest> {
    let digests: Vec<_> = std::mem::take(&mut *lock(&open.digests)).into_iter().collect();
    if size / BLOCK as u64 > digests.len() as u64 + HOLES {
        return Err(io::Error::other("the manifest cannot list it: its holes add up to more than 1 TiB"));
    }
    Ok(Hash::join(size, &digests))
}

impl Writer {
    pub(crate) fn new(
        base: Tree,
        rename: Option<Vec<u8>>,
        options: Options,
        filter: Filter,
        journal: Option<Journal>,
        manifest: Option<Manifest>,
    ) -> Writer {
        let (files, declared, deferred, planned) =
            (Mutex::default(), Mutex::default(), Mutex::default(), Mutex::default());
        let (full, malformed) = (AtomicBool::new(false), AtomicBool::new(false));
        let folded = journal.as_ref().is_some_and(|journal| folds(&base, journal.name()));
        let folded = folded.then(FoldedNames::default);
        let (allow_list, rejected, withheld) = (None, OnceLock::new(), Withheld::default());
        let sync_root = tree::readable(base.fd()).ok();
        let writer = Writer {
            base,
            sync_root,
            rename,
            options,
            filter,
            journal,
            manifest,
            folded,
            allow_list,
            withheld,
            rejected,
            file_systems: FileSystems::default(),
            claims: Claims::default(),
            files,
            declared,
            deferred,
            planned,
            full,
            malformed,
        };
        if let Some(manifest) = &writer.manifest {
            // `--delete` must not remove the manifest, which the source does not have.
            let key = writer.seen_key(&manifest.path);
            lock(&writer.deferred).seen.insert(key);
        }
        writer
    }

    /// Checksum of a name, the same for all spellings that the destination folds.
    pub(crate) fn seen_key(&self, path: &RelPath) -> u128 {
        match &self.folded {
            // An existing file may be spelled in another case.
            Some(_) => xxhash_rust::xxh3::xxh3_128(&fold(path.as_bytes())),
            None => xxhash_rust::xxh3::xxh3_128(path.as_bytes()),
        }
    }

    /// Adds a file to the manifest, if there is one.
    fn list(&self, path: &RelPath, digest: impl FnOnce() -> io::Result<Digest>) -> Result<(), Failure> {
        match &self.manifest {
            Some(manifest) => digest().and_then(|d| manifest.add(path, &d)).map_err(|e| (Op::Write, e)),
            None => Ok(()),
        }
    }

    /// Whether a write failed with a full or read-only file system.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    /// Records an action in a dry run.
    pub(crate) fn plan(&self, path: &RelPath, action: Action) {
        if self.options.dry_run {
            lock(&self.planned).push(Planned { path: path.clone(), action });
        }
    }

    /// Takes the actions recorded since the last call.
    pub(crate) fn take_planned(&self) -> Vec<Planned> {
        std::mem::take(&mut *lock(&self.planned))
    }

    /// The protocol violation that ends the session, if the sender committed one.
    pub(crate) fn violation(&self) -> Option<Violation> {
        self.rejected.get().map(|path| Violation::NotRequested(path.to_string()))
    }

    /// Rejects an entry that is not on the allow-list.
    fn admit(&self, entry: &Entry) -> io::Result<()> {
        if self.allow_list.as_ref().is_none_or(|list| list.has(entry)) {
            return Ok(());
        }
        // The rest of its batch is not parsed, so `--delete` cannot know all names.
        self.malformed.store(true, Relaxed);
        // The first rejected entry ends the session.
        let _ = self.rejected.set(entry.path.clone());
        Err(io::Error::other("rejected: this side did not request it"))
    }

    /// Whether an earlier run of this copy was interrupted.
    pub(crate) fn resumes(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.resumed)
    }

    /// Whether the machine rebooted since that run: files may have lost content that
    /// was not flushed, so they are compared by checksum.
    pub(crate) fn by_content(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.rebooted)
    }

    /// A directory cache for one writer thread.
    pub(crate) fn walker(&self) -> Walker {
        Walker::new(self.base.clone())
    }

    /// The name of the unfinished file of an entry.
    fn unfinished(&self, entry: &Entry) -> Vec<u8> {
        unfinished(self.key(), file_key(entry))
    }

    /// The key of the copy, 0 in a dry run.
    fn key(&self) -> u64 {
        self.journal.as_ref().map_or(0, |journal| journal.key)
    }

    fn keep(&self) -> MetadataPolicy {
        MetadataPolicy { owner: self.options.owner, lists: self.withheld.takes_lists() }
    }

    /// Maps the path of an entry to its path below the destination.
    ///
    /// # Errors
    /// The manifest has this name, or another name of the source folds to it.
    fn place(&self, path: &RelPath) -> io::Result<RelPath> {
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
            let (placed, manifest) = (placed.as_bytes(), manifest.path.as_bytes());
            match &self.folded {
                Some(_) => below(&fold(placed), &fold(manifest)),
                None => below(placed, manifest),
            }
        })
    }

    fn trouble(&self, path: &RelPath, (op, e): &Failure) -> Trouble {
        // ENOSPC for an attribute does not mean that the file system is full.
        if *op == Op::Write && is_full(e) {
            self.full.store(true, Relaxed);
        }
        Trouble { path: path.clone(), op: *op, message: say(e) }
    }

    /// Opens a directory, creating it and its parents. Anything else in their place is
    /// removed, because the source has directories there (their entries may arrive
    /// later). Directories without write permission are made writable for the copy.
    fn parent(&self, path: &[u8], walker: &mut Walker) -> io::Result<Arc<OwnedFd>> {
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
            self.make_writable(directory.as_fd(), prefix);
        }
    }

    /// Makes a directory writable for this user until the end of the session; returns
    /// whether its mode changed.
    pub(crate) fn make_writable(&self, directory: BorrowedFd<'_>, path: &[u8]) -> bool {
        let before = tree::make_writable(directory);
        lock(&self.deferred).opened.extend(before.map(|mode| (path.to_vec(), mode)));
        before.is_some()
    }

    /// Creates something in a directory, which is made writable first if that fails with
    /// `EACCES`.
    fn make_in<T>(
        &self,
        directory: &OwnedFd,
        path: &[u8],
        make: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        match make(directory.as_fd()) {
            // Retried in any case: another thread may have changed the mode meanwhile.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.make_writable(directory.as_fd(), path);
                make(directory.as_fd())
            }
            result => result,
        }
    }

    /// Carries out one job.
    pub(crate) fn run(&self, job: WriteJob, walker: &mut Walker) -> JobResult {
        match job {
            WriteJob::Batch(body) => self.batch(&body, walker),
            WriteJob::Query { number, batch } => self.answer_query(number, &batch),
            WriteJob::Block { file, offset, digest, data } => {
                let result = self.block(&file, offset, &digest, &data, walker);
                let result = result.map(|()| data.len() as u64);
                JobResult::Block(file.number, result.map_err(|e| self.trouble(&file.entry.path, &e)))
            }
            WriteJob::Complete(file) => {
                let result = self.complete(&file, walker);
                lock(&self.files).remove(&file.number);
                let (mut counts, mut troubles) = (Counts::default(), Vec::new());
                self.count(&file.entry, result, &mut counts, &mut troubles);
                JobResult::File(file.number, counts, troubles)
            }
            WriteJob::Abandon(file) => {
                if let Some(slot) = lock(&self.files).remove(&file.number)
                    && let Some(open) = lock(&slot).take()
                {
                    // A temporary file left behind has a reserved name, so no copy takes it for data.
                    let _ = self.discard(&open);
                }
                JobResult::Abandoned(file.number)
            }
            WriteJob::Settle { whole } => self.settle(whole),
        }
    }

    fn batch(&self, body: &[u8], walker: &mut Walker) -> JobResult {
        let (mut counts, mut troubles) = (Counts::default(), Vec::new());
        for (index, part) in BatchReader::new(body).enumerate() {
            let part = if index < BATCH_ENTRIES { part } else { Err(Malformed::Value("number of entries")) };
            let (mut entry, content, data) = match part {
                Ok(part) => part,
                Err(e) => {
                    self.malformed.store(true, Relaxed);
                    let message = e.to_string();
                    troubles.push(Trouble { path: RelPath::root(), op: Op::Write, message });
                    break;
                }
            };
            if let Err(e) = self.admit(&entry) {
                troubles.push(self.trouble(&entry.path, &(Op::Write, e)));
                break;
            }
            self.strip_xattrs(&mut entry);
            self.note(&entry);
            let result = self.entry(&entry, &content, data, walker);
            counts.bytes += if result.is_ok() { data.len() as u64 } else { 0 };
            self.count(&entry, result, &mut counts, &mut troubles);
        }
        JobResult::Batch(counts, troubles)
    }

    /// Adds the outcome of an entry to the counts, or to the failures.
    fn count(
        &self,
        entry: &Entry,
        result: Result<Outcome, Failure>,
        counts: &mut Counts,
        troubles: &mut Vec<Trouble>,
    ) {
        match result {
            Ok(Outcome::Deferred) => return,
            Ok(Outcome::Complete) => {}
            Ok(Outcome::Flawed(flaw)) => troubles.push(self.trouble(&entry.path, &flaw)),
            Err(e) => return troubles.push(self.trouble(&entry.path, &e)),
        }
        match entry.kind {
            EntryKind::File => counts.files += 1,
            _ => counts.others += 1,
        }
    }

    /// Remembers a name of the source for `--delete`.
    fn note(&self, entry: &Entry) {
        if self.options.delete {
            let key = self.seen_key(&entry.path);
            let mut deferred = lock(&self.deferred);
            if deferred.seen.len() < SEEN {
                deferred.seen.insert(key);
            } else {
                deferred.overflow = true;
            }
        }
    }

    fn entry(
        &self,
        entry: &Entry,
        content: &Content,
        data: &[u8],
        walker: &mut Walker,
    ) -> Result<Outcome, Failure> {
        let write = |e| (Op::Write, e);
        let path = self.place(&entry.path).map_err(write)?;
        let unchanged = self.is_unchanged(entry, &path);
        if self.options.dry_run {
            if unchanged {
                return Ok(Outcome::Deferred);
            }
            self.plan(&entry.path, Action::Make);
            return Ok(Outcome::Complete);
        }
        let (parent, _) = path.split();
        match &entry.kind {
            EntryKind::Directory => {
                let directory = self.parent(path.as_bytes(), walker).map_err(write)?;
                // Entries created in it change its mtime, which is set at the end in any case.
                let mtime = self.kept(&directory, entry.mtime);
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
            EntryKind::HardLink(_) => {
                // Extended attributes belong to the inode, and come with the first name.
                let kept = Entry { xattrs: Vec::new(), ..entry.clone() };
                lock(&self.deferred).add(entry.path.clone(), kept).map_err(write)?;
                Ok(Outcome::Deferred)
            }
            EntryKind::Symlink(_) if unchanged => Ok(Outcome::Deferred),
            EntryKind::Symlink(target) => {
                let directory = self.parent(parent, walker).map_err(write)?;
                let temporary = self.unfinished(entry);
                let make = |at: BorrowedFd<'_>| tree::symlink(at, target, &temporary);
                self.make_in(&directory, parent, make).map_err(write)?;
                let set = tree::set_link_metadata(directory.as_fd(), &temporary, entry, self.keep());
                let flaw = set.err().map(|e| (Op::Metadata, e));
                let sent = entry.path.clone();
                self.rename_to_final(
                    &directory,
                    DeferredFile { path, sent, temporary, digest: None, is_file: false, flaw },
                )
            }
            EntryKind::File => {
                match content {
                    Content::Inline { digest, .. } if self.options.hash.of(data) != *digest => {
                        return Err(mismatch());
                    }
                    Content::Inline { .. } | Content::None => {}
                    _ => return Err(write(io::Error::other("malformed entry: a file without content"))),
                }
                let directory = self.parent(parent, walker).map_err(write)?;
                let temporary = self.unfinished(entry);
                let filled = self.small(&directory, parent, &temporary, entry, data);
                let flaw = filled.inspect_err(|_| drop(tree::remove(directory.as_fd(), &temporary)))?;
                let digest = match content {
                    Content::Inline { digest, .. } => *digest,
                    _ => Hash::Strong.of(&[]),
                };
                let (sent, digest) = (entry.path.clone(), Some(digest));
                self.rename_to_final(
                    &directory,
                    DeferredFile { path, sent, temporary, digest, is_file: true, flaw },
                )
            }
        }
    }

    /// An mtime as the file system of a directory stores it.
    fn kept(&self, directory: &OwnedFd, time: Time) -> Time {
        if USUAL.contains(&time.secs) {
            return time;
        }
        let device = rustix::fs::fstat(directory).map_or(0, |stat| stat.st_dev);
        let (base, may_name) = (self.base.fd(), !self.options.dry_run);
        self.file_systems.stamps(device, directory, base, may_name).kept(time)
    }

    /// Renames a complete temporary file to its name and adds it to the manifest. If a
    /// non-empty directory has the name, and `--delete` may remove it, the rename is
    /// deferred.
    fn rename_to_final(&self, directory: &OwnedFd, late: DeferredFile) -> Result<Outcome, Failure> {
        match tree::rename_to(directory.as_fd(), &late.temporary, late.path.split().1) {
            Err(e) if self.options.delete && tree::is_not_empty(&e) => {
                lock(&self.deferred)
                    .add_blocked(late)
                    .inspect_err(|late| drop(tree::remove(directory.as_fd(), &late.temporary)))
                    .map_err(|_| (Op::Write, e))?;
                return Ok(Outcome::Deferred);
            }
            result => result
                .inspect_err(|_| drop(tree::remove(directory.as_fd(), &late.temporary)))
                .map_err(|e| (Op::Write, e))?,
        }
        if let (true, Some(digest)) = (late.is_file, late.digest) {
            self.list(&late.path, || Ok(digest))?;
        }
        Ok(late.flaw.into())
    }

    /// Renames a deferred file to its name.
    fn rename_deferred(&self, late: &DeferredFile) -> Result<(), Failure> {
        let write = |e| (Op::Write, e);
        let (parent, name) = late.path.split();
        let directory = self.base.directory(parent).map_err(write)?;
        tree::rename_to(directory.as_fd(), &late.temporary, name)
            .inspect_err(|_| drop(tree::remove(directory.as_fd(), &late.temporary)))
            .map_err(write)?;
        match late.digest {
            Some(digest) if late.is_file => self.list(&late.path, || Ok(digest)),
            _ => Ok(()),
        }
    }

    /// Writes a small file to a temporary file; returns a failure to set metadata.
    fn small(
        &self,
        directory: &OwnedFd,
        parent: &[u8],
        temporary: &[u8],
        entry: &Entry,
        data: &[u8],
    ) -> Result<Option<Failure>, Failure> {
        let write = |e| (Op::Write, e);
        let make = |at: BorrowedFd<'_>| tree::create(at, temporary, false);
        let (file, _) = self.make_in(directory, parent, make).map_err(write)?;
        if entry.sparse {
            file.set_len(data.len() as u64).map_err(write)?;
        }
        sparse::write(&file, entry, data, 0, true).map_err(write)?;
        let flaw = self.finish(&file, entry)?;
        if self.options.verify {
            flush_and_drop_cache(&file).map_err(write)?;
            let mut again = vec![0; data.len()];
            let read = read_full(&file, &mut again, 0).map_err(write)?;
            if read != data.len() || again != data {
                return Err(mismatch());
            }
        }
        Ok(flaw)
    }

    /// Sets metadata, and flushes the file if each is to be durable; returns a failure
    /// to set metadata.
    fn finish(&self, file: &File, entry: &Entry) -> Result<Option<Failure>, Failure> {
        let set = tree::set_metadata(file.as_fd(), &self.without_xattrs(entry), self.keep());
        if self.options.durability == Durability::File {
            file.sync_data().map_err(|e| (Op::Write, e))?;
        }
        Ok(set.err().map(|e| (Op::Metadata, e)))
    }

    /// Removes the temporary file of an unfinished file.
    fn discard(&self, open: &Unfinished) -> io::Result<()> {
        let remove = |at: BorrowedFd<'_>| tree::remove(at, &open.temporary);
        self.make_in(&open.directory, open.path.split().0, remove)
    }

    /// The unfinished file of a large file; the first writer thread opens it.
    fn open(&self, file: &Incoming, walker: &mut Walker) -> io::Result<Arc<Unfinished>> {
        let slot = Arc::clone(lock(&self.files).entry(file.number).or_default());
        let mut slot = lock(&slot);
        if let Some(open) = &*slot {
            return Ok(Arc::clone(open));
        }
        self.admit(&file.entry)?;
        self.note(&file.entry);
        let path = self.place(&file.entry.path)?;
        let (parent, _) = path.split();
        let directory = self.parent(parent, walker)?;
        let temporary = self.unfinished(&file.entry);
        let key = file_key(&file.entry);
        let declared = lock(&self.declared).get(&key).map(|declared| declared.file);
        let make = |at: BorrowedFd<'_>| tree::create(at, &temporary, declared.is_some());
        let (opened, kept) = self.make_in(&directory, parent, make)?;
        let sized = match declared {
            // The sender skips the declared blocks, so the file cannot be completed without them.
            Some(declared) if !(kept && identity(&opened)? == declared) => Err(io::Error::other(
                "the blocks that an earlier run wrote were removed or changed meanwhile: run the same command again",
            )),
            _ => opened.set_len(file.entry.size),
        };
        // No later job knows the temporary file, so it is removed here.
        sized.inspect_err(|_| drop(tree::remove(directory.as_fd(), &temporary)))?;
        // The blocks of the earlier run are in this file, and were verified.
        let blocks = lock(&self.declared).remove(&key).map(|declared| declared.blocks);
        let digests = Mutex::new(blocks.into_iter().flatten().collect());
        let fresh = !kept;
        let open = Arc::new(Unfinished { file: opened, directory, temporary, path, fresh, digests });
        *slot = Some(Arc::clone(&open));
        Ok(open)
    }

    fn block(
        &self,
        file: &Incoming,
        offset: u64,
        digest: &Digest,
        data: &[u8],
        walker: &mut Walker,
    ) -> Result<(), Failure> {
        let write = |e| (Op::Write, e);
        // Even if the write fails, the source has this name.
        self.note(&file.entry);
        // Only whole, aligned blocks: the state kept for each must not exceed what was sent.
        let whole = file.entry.size.saturating_sub(offset).min(BLOCK as u64);
        if !offset.is_multiple_of(BLOCK as u64) || data.len() as u64 != whole || data.is_empty() {
            return Err((
                Op::Verify,
                io::Error::other("malformed block: its offset or length is not that of a whole block"),
            ));
        }
        if self.options.hash.of_block(data, offset, file.entry.size) != *digest {
            return Err(mismatch());
        }
        let open = self.open(file, walker).map_err(write)?;
        sparse::write(&open.file, &file.entry, data, offset, open.fresh).map_err(write)?;
        if self.options.verify || self.manifest.is_some() {
            lock(&open.digests).insert(offset, *digest);
        }
        match &self.journal {
            Some(journal) => journal.add(file_key(&file.entry), offset, digest).map_err(write),
            None => Ok(()),
        }
    }

    fn complete(&self, file: &Incoming, walker: &mut Walker) -> Result<Outcome, Failure> {
        // Without any block (all holes, or all kept from an earlier run) it is not open yet.
        let open = self.open(file, walker).map_err(|e| (Op::Write, e))?;
        let finish = || {
            let flaw = self.finish(&open.file, &file.entry)?;
            if self.options.verify {
                self.verify(&open)?;
            }
            Ok(flaw)
        };
        let flaw = finish().inspect_err(|_| drop(self.discard(&open)))?;
        let (digest, unlisted) = match self.manifest.as_ref().map(|_| digest(&open, file.entry.size)) {
            None => (None, None),
            Some(Ok(digest)) => (Some(digest), None),
            Some(Err(e)) => (None, Some((Op::Write, e))),
        };
        let (path, sent, temporary) = (open.path.clone(), file.entry.path.clone(), open.temporary.clone());
        let late = DeferredFile { path, sent, temporary, digest, is_file: true, flaw: flaw.or(unlisted) };
        let outcome = self.rename_to_final(&open.directory, late)?;
        if let (Some(journal), Outcome::Complete | Outcome::Flawed(_)) = (&self.journal, &outcome) {
            journal.complete(file_key(&file.entry)).map_err(|e| (Op::Write, e))?;
        }
        Ok(outcome)
    }

    /// Reads the file back and compares its checksums, from the device if the kernel
    /// drops it from the page cache.
    fn verify(&self, open: &Unfinished) -> Result<(), Failure> {
        // A read error is reported as a write failure, not as a mismatch.
        let failed = |e: io::Error| (Op::Write, e);
        flush_and_drop_cache(&open.file).map_err(failed)?;
        let size = open.file.metadata().map_err(failed)?.len();
        let mut again = vec![0; BLOCK];
        for (offset, digest) in lock(&open.digests).iter() {
            let len = size.saturating_sub(*offset).min(BLOCK as u64) as usize;
            let read = read_full(&open.file, &mut again[..len], *offset).map_err(failed)?;
            if self.options.hash.of_block(&again[..read], *offset, size) != *digest {
                return Err(mismatch());
            }
        }
        Ok(())
    }

    fn answer_query(&self, number: u32, batch: &[u8]) -> JobResult {
        let (mut wants, mut counts, mut troubles) = (Vec::new(), Counts::default(), Vec::new());
        for (index, part) in BatchReader::new(batch).enumerate() {
            let (true, Ok((mut entry, content, _))) = (index < BATCH_ENTRIES, part) else {
                self.malformed.store(true, Relaxed);
                break;
            };
            if self.admit(&entry).is_err() {
                break;
            }
            self.strip_xattrs(&mut entry);
            self.note(&entry);
            if self.manifest.is_some()
                && let Err(e) = self.place(&entry.path)
            {
                // Without a usable destination path the content need not be sent.
                troubles.push(self.trouble(&entry.path, &(Op::Write, e)));
                continue;
            }
            let there = self.existing(&entry, &content).filter(|it| self.may_stay(&entry, it));
            let there = there
                .filter(|it| it.entry.kind != EntryKind::File || self.list_same(&entry, &content).is_ok());
            let update = there.map_or(MetadataUpdate::Resend, |there| self.update_metadata(&entry, &there));
            match update {
                MetadataUpdate::Resend => {
                    let have = self.have(&entry);
                    counts.skipped += present(&have, entry.size);
                    wants.push(Want { index: index as u32, have });
                    self.plan(&entry.path, Action::Send);
                    continue;
                }
                MetadataUpdate::Unchanged => {}
                MetadataUpdate::Changed => {
                    counts.metadata += 1;
                    self.plan(&entry.path, Action::Metadata);
                }
                MetadataUpdate::Failed(e) => troubles.push(self.trouble(&entry.path, &(Op::Metadata, e))),
            }
            counts.same += 1;
            counts.skipped += entry.size;
        }
        JobResult::Query { number, wants, counts, troubles }
    }

    /// Adds a file that need not be sent to the manifest.
    ///
    /// # Errors
    /// The file cannot be read; the caller then has it sent.
    fn list_same(&self, entry: &Entry, content: &Content) -> Result<(), Failure> {
        if entry.kind != EntryKind::File || self.options.dry_run {
            return Ok(());
        }
        let path = self.place(&entry.path).map_err(|e| (Op::Write, e))?;
        self.list(&path, || match (content, self.compare()) {
            (Content::Query(Some(digest)), Compare::Checksum) => Ok(*digest),
            _ => Hash::Strong.of_file(&tree::open_file(&self.base, &path)?),
        })
    }

    /// The existing object, if the request's comparison finds it up to date.
    fn existing(&self, entry: &Entry, content: &Content) -> Option<Existing> {
        let path = self.place(&entry.path).ok()?;
        let there = self.look(&path).ok()??;
        // After a reboot, a name alone does not count for files that the earlier run may have written.
        let may_be_ours = || entry.size == there.entry.size && there.has_time_of(entry);
        if self.options.compare == Compare::Exists && !(self.by_content() && may_be_ours()) {
            return Some(there);
        }
        let compare = self.compare();
        let same_time = compare == Compare::Mtime && there.has_time_of(entry);
        let same = entry.is_same(&there.entry, compare, same_time).unwrap_or_else(|| match content {
            Content::Query(Some(digest)) => {
                let hash =
                    tree::open_file(&self.base, &path).and_then(|file| self.options.hash.of_file(&file));
                hash.is_ok_and(|hash| hash == *digest)
            }
            _ => false,
        });
        same.then_some(there)
    }

    /// Bitmap of the blocks that an earlier run wrote; the journal's records are verified
    /// against the unfinished file.
    fn have(&self, entry: &Entry) -> Box<[u8]> {
        let key = file_key(entry);
        let known = self.journal.as_ref().and_then(|journal| journal.known.get(&key));
        let (Some(known), Ok(path)) = (known, self.place(&entry.path)) else { return Box::default() };
        let (parent, _) = path.split();
        let temporary = self.unfinished(entry);
        let temporary = [parent, if parent.is_empty() { b"" } else { b"/" }, &temporary].concat();
        let Ok(file) = tree::open_own(&self.base, &temporary) else { return Box::default() };
        // Sized by the journal, not by the size that the sender claims.
        let last = known.iter().map(|(offset, _)| offset / BLOCK as u64).max().unwrap_or(0);
        let mut have = vec![0u8; (last / 8 + 1).min(HAVE_MAX as u64) as usize];
        let (mut data, mut blocks) = (vec![0; BLOCK], Vec::new());
        let bits = 8 * have.len() as u64;
        for (offset, digest) in known.iter().filter(|(offset, _)| offset / (BLOCK as u64) < bits) {
            let len = entry.size.saturating_sub(*offset).min(BLOCK as u64) as usize;
            let good = offset % BLOCK as u64 == 0
                && read_full(&file, &mut data[..len], *offset).is_ok_and(|read| read == len)
                && self.options.hash.of_block(&data[..len], *offset, entry.size) == *digest;
            let block = (offset / BLOCK as u64) as usize;
            if let Some(byte) = have.get_mut(block / 8).filter(|_| good) {
                *byte |= 1 << (block % 8);
                blocks.push((*offset, *digest));
            }
        }
        let Some(file) = identity(&file).ok().filter(|_| !blocks.is_empty()) else { return Box::default() };
        if self.manifest.is_none() && !self.options.verify {
            // Only --verify and the manifest use the checksums.
            blocks = Vec::new();
        }
        lock(&self.declared).insert(key, DeclaredBlocks { file, blocks });
        have.into()
    }

    fn settle(&self, whole: bool) -> JobResult {
        let (mut counts, mut troubles) = (Counts::default(), Vec::new());
        troubles.extend(self.withheld.trouble());
        let Deferred { directories, links, blocked, mut opened, seen, overflow, .. } =
            std::mem::take(&mut *lock(&self.deferred));
        if self.options.delete && overflow {
            let message =
                "nothing was removed: the source has more names than --delete supports (32 Mi)".into();
            troubles.push(Trouble { path: RelPath::root(), op: Op::Delete, message });
        } else if self.options.delete && whole && !self.malformed.load(Relaxed) {
            crate::receive::delete::delete(self, &seen, &mut counts, &mut troubles);
        } else if self.options.delete {
            let message = "nothing was removed, since not all of the source could be read".into();
            troubles.push(Trouble { path: RelPath::root(), op: Op::Delete, message });
        }
        for late in blocked {
            match self.rename_deferred(&late) {
                Ok(()) if late.is_file => counts.files += 1,
                Ok(()) => counts.others += 1,
                Err(e) => troubles.push(self.trouble(&late.sent, &e)),
            }
            troubles.extend(late.flaw.map(|flaw| self.trouble(&late.sent, &flaw)));
        }
        for link in links.values() {
            match self.hard_link(link) {
                Ok(made) => counts.others += u64::from(made),
                Err(e) => troubles.push(self.trouble(&link.path, &e)),
            }
        }
        if let Some(manifest) = &self.manifest {
            match self.finish_manifest(manifest) {
                Ok(left_out) => troubles.extend(left_out.into_iter().map(|path| {
                    let message = "its name is not UTF-8: the manifest cannot list it".into();
                    Trouble { path, op: Op::Metadata, message }
                })),
                Err(e) => troubles.push(self.trouble(&manifest.path, &(Op::Write, e))),
            }
        }
        if self.resumes() {
            self.sweep(directories.keys());
        }
        opened.append(&mut lock(&self.deferred).opened);
        opened.sort_unstable_by(|a, b| b.cmp(a));
        for (path, mode) in opened {
            // A directory that is part of the copy gets its final mode below.
            let _ = self.base.directory(&path).map(|it| tree::restore_mode(it.as_fd(), mode));
        }
        for entry in directories.values().rev() {
            if let Err(e) = self.directory_metadata(entry) {
                troubles.push(self.trouble(&entry.path, &(Op::Metadata, e)));
            }
        }
        let durable = match self.options.durability {
            Durability::None => Ok(()),
            _ if self.options.dry_run => Ok(()),
            _ => self.base.sync(self.sync_root.as_ref()),
        };
        if let Some(journal) = &self.journal {
            if durable.is_err() {
                let _ = journal.distrust();
            } else if !self.by_content() || (whole && self.filter.is_empty()) {
                self.remove_journal(journal, directories.get(&RelPath::root()));
            }
        }
        if let Err(e) = durable {
            troubles.push(self.trouble(&RelPath::root(), &(Op::Write, e)));
        }
        JobResult::Settled(counts, troubles)
    }

    /// Renames the manifest to its name; returns the files that it could not list.
    fn finish_manifest(&self, manifest: &Manifest) -> io::Result<Vec<RelPath>> {
        let parent = manifest.path.split().0;
        let finish = || {
            let directory = self.base.directory(parent).map_err(|e| match e.kind() {
                io::ErrorKind::NotADirectory | io::ErrorKind::NotFound => io::Error::other(
                    "the manifest needs a directory as destination, and a single file was copied",
                ),
                _ => e,
            })?;
            self.make_in(&directory, parent, |at| manifest.finish(self.base.fd(), at))
        };
        finish().inspect_err(|_| manifest.discard(self.base.fd()))
    }

    /// Removes the journal, so that the next run does not query what exists. `root` is
    /// the entry of the directory that holds it.
    fn remove_journal(&self, journal: &Journal, root: Option<&Entry>) {
        let mut opened = None;
        if journal.remove(&self.base).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            opened = tree::make_writable(self.base.fd());
            let _ = journal.remove(&self.base);
        }
        // Removing it changed the mtime of the directory.
        match (root, opened) {
            (Some(root), _) => drop(self.directory_metadata(root)),
            (None, Some(mode)) => drop(tree::restore_mode(self.base.fd(), mode)),
            (None, None) => {}
        }
    }

    /// Removes unfinished files of earlier runs whose source files changed since.
    fn sweep<'a>(&self, directories: impl Iterator<Item = &'a RelPath>) {
        let ours = unfinished_of(self.key());
        for path in directories.map(RelPath::as_bytes).chain([&b""[..]]) {
            let Ok(directory) = self.base.directory(path) else { continue };
            let Ok(mut names) = tree::DirectoryNames::open(directory.as_fd()) else { continue };
            let mut old = Vec::new();
            while let Ok(some) = names.next_batch()
                && !some.is_empty()
            {
                old.extend(some.into_iter().filter(|name| name.starts_with(&ours)));
            }
            for name in old {
                // Best effort: a leftover file has a reserved name and does no harm.
                let _ = tree::remove(directory.as_fd(), &name);
            }
        }
    }

    fn directory_metadata(&self, entry: &Entry) -> io::Result<()> {
        let directory = self.base.directory(entry.path.as_bytes())?;
        match tree::readable(directory.as_fd()) {
            Ok(directory) => tree::set_metadata(directory.as_fd(), entry, self.keep()),
            Err(e) => Err(e),
        }
    }

    /// Creates a hard link; returns false if it exists already.
    fn hard_link(&self, entry: &Entry) -> Result<bool, Failure> {
        let write = |e| (Op::Write, e);
        let EntryKind::HardLink(first) = &entry.kind else { return Ok(false) };
        let (first, path) = (self.place(first).map_err(write)?, self.place(&entry.path).map_err(write)?);
        let list = || self.list(&path, || Hash::Strong.of_file(&tree::open_file(&self.base, &path)?));
        if self.is_unchanged(entry, &path) {
            return list().map(|()| false);
        }
        // The first name may hold another file by now, or its copy failed.
        let is_it = |there: &Existing| there.entry.kind == EntryKind::File && there.has_time_of(entry);
        if !matches!(self.options.compare, Compare::Exists | Compare::Size) {
            let there = self.look(&first).map_err(write)?;
            if !there.as_ref().is_some_and(is_it) {
                let message =
                    format!("cannot link to {first}: that file is missing here, or differs from the source");
                return Err(write(io::Error::other(message)));
            }
        }
        let ((old, from), (parent, name)) = (first.split(), path.split());
        let old = self.base.directory(old).map_err(write)?;
        let directory = self.base.make(parent).map_err(write)?;
        let temporary = self.unfinished(entry);
        let make = |at: BorrowedFd<'_>| {
            tree::remove(at, &temporary)?;
            tree::hard_link(old.as_fd(), from, at, &temporary)
        };
        self.make_in(&directory, parent, make).map_err(write)?;
        tree::rename_to(directory.as_fd(), &temporary, name)
            .inspect_err(|_| drop(tree::remove(directory.as_fd(), &temporary)))
            .map_err(write)?;
        list()?;
        // rename(2) leaves both names if they already are the same file.
        tree::remove(directory.as_fd(), &temporary).map_err(write)?;
        Ok(true)
    }
}
