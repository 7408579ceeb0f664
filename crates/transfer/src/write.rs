//! Writing: jobs of the receiving side, done by several threads.
//!
//! Invariants:
//! - content is under a name of this program's own until all of it is written
//!   and its checksums agree; then it appears under its name in one step;
//! - directories get their mode and time last, deepest first, since what is
//!   made in them changes both;
//! - a hard link is made when all files are there;
//! - a file whose metadata cannot be set appears all the same, and is told.

mod claims;
mod grant;
mod same;
mod sparse;
#[cfg(test)]
mod tests;

use crate::asked::Asked;
use crate::filter::Filter;
use crate::fold::{Folded, fold, folds};
use crate::journal::{FileKey, Journal, file_key, unfinished, unfinished_of};
use crate::manifest::Manifest;
use crate::read::read_full;
use crate::session::{Done, Incoming, Job, Violation};
use crate::stamps::{FileSystems, USUAL, unkept};
use crate::tree::{self, Keep, Tree, Walker, is_full, say};
use crate::wire::{
    Action, BATCH_ENTRIES, BLOCK, BatchReader, Compare, Content, Counts, Digest, Durability, Entry, HAVE_MAX,
    Hash, Kind, Malformed, Op, Options, Planned, RelPath, Time, Trouble, Want,
};
use claims::Claims;
pub(crate) use grant::{Grant, Withheld};
use same::{Mended, There, present};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Blocks that a file may not have and be listed in a manifest all the same: zeroes
/// have to be hashed like anything else, and a size is cheap to claim. 1 TiB.
const HOLES: u64 = 1 << 20;

/// What is remembered of directories and hard links until the end, in bytes: about
/// two million of them with short names.
const LAST_BYTES: usize = 512 << 20;

/// Names that are remembered where others are to be removed: 1 GiB of them.
const SEEN: usize = 32 << 20;

/// What the threads share.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) base: Tree,
    /// What the first component becomes, where a thing takes the place that was
    /// named rather than going into it.
    pub(crate) rename: Option<Vec<u8>>,
    pub(crate) options: Options,
    pub(crate) filter: Filter,
    /// The directory it all goes into, opened before anything was written.
    medium: Option<OwnedFd>,
    /// None where nothing is written.
    pub(crate) journal: Option<Journal>,
    /// The list of what there is, where one is wanted.
    pub(crate) manifest: Option<Manifest>,
    /// The names that came, where some may be one to the file system.
    pub(crate) folded: Option<Folded>,
    /// What is taken at all, where this side has asked for it.
    pub(crate) asked: Option<Asked>,
    /// What the sending side may not decide.
    pub(crate) withheld: Withheld,
    /// Something that came and was not asked for.
    unasked: OnceLock<RelPath>,
    /// The file systems that it goes to.
    file_systems: FileSystems,
    claims: Claims,
    files: Mutex<HashMap<u64, Arc<Slot>>>,
    /// Unfinished files of a run before, of which the other side was told that
    /// blocks need not be sent.
    declared: Mutex<HashMap<FileKey, Declared>>,
    last: Mutex<Last>,
    /// What would be done, where nothing is to be.
    planned: Mutex<Vec<Planned>>,
    /// Nothing more can be written.
    full: AtomicBool,
    /// What came made no sense in part, so not all names that were sent are known.
    torn: AtomicBool,
}

/// Which file it is, as it is: see [`identity`].
type Identity = (u64, u64, i64, u64);

/// An unfinished file as it was looked at.
#[derive(Debug)]
struct Declared {
    file: Identity,
    /// Blocks that were read and are what they should be.
    blocks: Vec<(u64, Digest)>,
}

/// What became of an object that came.
#[derive(Debug)]
enum Outcome {
    /// It is there.
    There,
    /// It will be when everything else is done, and is counted then.
    Later,
    /// It is there, but not all of its metadata.
    Flawed(Failed),
}

impl From<Option<Failed>> for Outcome {
    fn from(flaw: Option<Failed>) -> Outcome {
        flaw.map_or(Outcome::There, Outcome::Flawed)
    }
}

/// What is done when everything else is.
#[derive(Debug, Default)]
struct Last {
    /// By where they are.
    directories: BTreeMap<RelPath, Entry>,
    /// By their names as they came.
    links: BTreeMap<RelPath, Entry>,
    /// Files and links in whose place are directories that are to be emptied.
    late: Vec<Late>,
    /// What these weigh, in bytes.
    bytes: usize,
    /// Directories that may be written to for now, and their modes before: of those
    /// only that were there.
    opened: Vec<(Vec<u8>, u32)>,
    /// Names that came, where others are to be removed.
    seen: HashSet<u128>,
    /// There were more names than are remembered.
    overflow: bool,
}

impl Last {
    /// Keeps an entry; of those with the same name, what came last.
    fn keep(&mut self, path: RelPath, entry: Entry) -> io::Result<()> {
        let weight = |entry: &Entry| entry.weight() + size_of::<RelPath>() + entry.path.as_bytes().len();
        let more = weight(&entry);
        let kept = if entry.kind == Kind::Directory { &mut self.directories } else { &mut self.links };
        let less = kept.get(&path).map_or(0, weight);
        if self.bytes - less + more > LAST_BYTES {
            return Err(io::Error::other("there are more directories and hard links than are remembered"));
        }
        self.bytes = self.bytes - less + more;
        kept.insert(path, entry);
        Ok(())
    }

    /// Keeps what has to wait, if there is room for it.
    fn wait(&mut self, late: Late) -> Result<(), Late> {
        let names = late.path.as_bytes().len() + late.sent.as_bytes().len() + late.temporary.len();
        let more = size_of::<Late>() + names;
        if self.bytes + more > LAST_BYTES {
            return Err(late);
        }
        self.bytes += more;
        self.late.push(late);
        Ok(())
    }
}

/// Something complete that cannot appear yet.
#[derive(Debug)]
struct Late {
    /// Where it goes, and what it was sent as.
    path: RelPath,
    sent: RelPath,
    temporary: Vec<u8>,
    /// Of a file: its checksum, where a list wants it.
    digest: Option<Digest>,
    is_file: bool,
    flaw: Option<Failed>,
}

/// A large file under way.
#[derive(Debug)]
struct Unfinished {
    file: File,
    directory: Arc<OwnedFd>,
    temporary: Vec<u8>,
    path: RelPath,
    /// Nothing was written to it before this run.
    fresh: bool,
    /// Checksums of the blocks, where somebody asks for them.
    digests: Mutex<BTreeMap<u64, Digest>>,
}

/// Where a large file is found once somebody has opened it.
type Slot = Mutex<Option<Arc<Unfinished>>>;

/// What went wrong, and at what.
type Failed = (Op, io::Error);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn mismatch() -> Failed {
    (Op::Verify, io::Error::other("the content is not what was sent"))
}

/// Which file it is, as it is: device, inode, and when anything of it last changed,
/// since the number of an inode is given again.
fn identity(file: &File) -> io::Result<Identity> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec as u64))
}

/// Brings a file to its medium and out of memory, so that what is read next comes
/// from there. The latter is a hint: where it is not taken, memory is compared.
fn forget(file: &File) -> io::Result<()> {
    file.sync_data()?;
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    Ok(())
}

/// BLAKE3 of a file that came in blocks.
fn digest(open: &Unfinished, size: u64) -> io::Result<Digest> {
    let digests: Vec<_> = std::mem::take(&mut *lock(&open.digests)).into_iter().collect();
    if size / BLOCK as u64 > digests.len() as u64 + HOLES {
        return Err(io::Error::other("its holes are too large to be listed in a manifest"));
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
        let (files, declared, last, planned) =
            (Mutex::default(), Mutex::default(), Mutex::default(), Mutex::default());
        let (full, torn) = (AtomicBool::new(false), AtomicBool::new(false));
        let folded = journal.as_ref().is_some_and(|journal| folds(&base, journal.name()));
        let folded = folded.then(Folded::default);
        let (asked, unasked, withheld) = (None, OnceLock::new(), Withheld::default());
        let medium = tree::readable(base.fd()).ok();
        let writer = Writer {
            base,
            medium,
            rename,
            options,
            filter,
            journal,
            manifest,
            folded,
            asked,
            withheld,
            unasked,
            file_systems: FileSystems::default(),
            claims: Claims::default(),
            files,
            declared,
            last,
            planned,
            full,
            torn,
        };
        if let Some(manifest) = &writer.manifest {
            // It is none of what the source does not have.
            let key = writer.seen_key(&manifest.path);
            lock(&writer.last).seen.insert(key);
        }
        writer
    }

    /// What a name is known by among those that came.
    pub(crate) fn seen_key(&self, path: &RelPath) -> u128 {
        match &self.folded {
            // A file that is there may be spelled otherwise.
            Some(_) => xxhash_rust::xxh3::xxh3_128(&fold(path.as_bytes())),
            None => xxhash_rust::xxh3::xxh3_128(path.as_bytes()),
        }
    }

    /// Lists a file that is there.
    fn list(&self, path: &RelPath, digest: impl FnOnce() -> io::Result<Digest>) -> Result<(), Failed> {
        match &self.manifest {
            Some(manifest) => digest().and_then(|d| manifest.add(path, &d)).map_err(|e| (Op::Write, e)),
            None => Ok(()),
        }
    }

    /// Whether something failed that makes it useless to go on.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    /// Says what would be done, where nothing is.
    pub(crate) fn plan(&self, path: &RelPath, action: Action) {
        if self.options.dry_run {
            lock(&self.planned).push(Planned { path: path.clone(), action });
        }
    }

    /// What was said of that since this was last called.
    pub(crate) fn take_planned(&self) -> Vec<Planned> {
        std::mem::take(&mut *lock(&self.planned))
    }

    /// What the sending side may not do and did.
    pub(crate) fn violation(&self) -> Option<Violation> {
        self.unasked.get().map(|path| Violation::Unasked(path.to_string()))
    }

    /// Lets only that in which was asked for.
    fn admit(&self, entry: &Entry) -> io::Result<()> {
        if self.asked.as_ref().is_none_or(|asked| asked.has(entry)) {
            return Ok(());
        }
        // What comes with it is not looked into: nothing is removed for not being there.
        self.torn.store(true, Relaxed);
        // The first one is enough: the session ends with it.
        let _ = self.unasked.set(entry.path.clone());
        Err(io::Error::other("it was not asked for"))
    }

    /// Whether a run before this one was cut off.
    pub(crate) fn resumes(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.resumed)
    }

    /// Whether that was before the machine was started anew, so that only content
    /// tells what is there.
    pub(crate) fn by_content(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.rebooted)
    }

    /// A way through the tree, for one thread.
    pub(crate) fn walker(&self) -> Walker {
        Walker::new(self.base.clone())
    }

    /// The name of the unfinished file of an entry.
    fn unfinished(&self, entry: &Entry) -> Vec<u8> {
        unfinished(self.key(), file_key(entry))
    }

    /// That of the copy.
    fn key(&self) -> u64 {
        self.journal.as_ref().map_or(0, |journal| journal.key)
    }

    fn keep(&self) -> Keep {
        Keep { owner: self.options.owner, lists: self.withheld.takes_lists() }
    }

    /// Where something goes.
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
            return Err(io::Error::other("the manifest of this copy has this name: give it another"));
        }
        self.folded.as_ref().map_or(Ok(()), |folded| folded.take(&placed))?;
        Ok(placed)
    }

    /// Whether the list of this copy goes there, or on the way to it.
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

    fn trouble(&self, path: &RelPath, (op, e): &Failed) -> Trouble {
        // What has no room for an attribute may have it for content.
        if *op == Op::Write && is_full(e) {
            self.full.store(true, Relaxed);
        }
        Trouble { path: path.clone(), op: *op, message: say(e) }
    }

    /// A directory, made if need be. What is none in its place, or on the way to it,
    /// goes, since that of the source is one: its own entry may be on its way still. A mode that lets nobody write is put aside.
    fn parent(&self, path: &[u8], walker: &mut Walker) -> io::Result<Arc<OwnedFd>> {
        match walker.make(path) {
            // What there is under a name is to stay, where names are all that counts.
            Err(e) if tree::is_in_the_way(&e) && self.options.compare != Compare::Exists => {
                match self.base.clear(path) {
                    Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                        self.open_way(path);
                        self.base.clear(path)?;
                    }
                    result => result?,
                }
                walker.make(path)
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                // Another thread may just have changed the mode: it is tried again.
                self.open_way(path);
                walker.make(path)
            }
            result => result,
        }
    }

    /// Lets this user write in the deepest directory of a path that is there.
    fn open_way(&self, path: &[u8]) {
        let slashes = path.iter().enumerate().rev().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        let mut ways = std::iter::once(path.len()).chain(slashes).chain([0]).map(|end| &path[..end]);
        let found = ways.find_map(|way| Some((way, self.base.directory(way).ok()?)));
        if let Some((way, directory)) = found {
            self.open_up(directory.as_fd(), way);
        }
    }

    /// Lets this user write in a directory until everything is done; whether that
    /// has changed anything.
    pub(crate) fn open_up(&self, directory: BorrowedFd<'_>, path: &[u8]) -> bool {
        let before = tree::open_up(directory);
        lock(&self.last).opened.extend(before.map(|mode| (path.to_vec(), mode)));
        before.is_some()
    }

    /// Makes something in a directory, even in one that lets nobody write.
    fn make_in<T>(
        &self,
        directory: &OwnedFd,
        path: &[u8],
        make: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        match make(directory.as_fd()) {
            // Another thread may just have changed the mode.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.open_up(directory.as_fd(), path);
                make(directory.as_fd())
            }
            result => result,
        }
    }

    /// Does a job.
    pub(crate) fn run(&self, job: Job, walker: &mut Walker) -> Done {
        match job {
            Job::Batch(body) => self.batch(&body, walker),
            Job::Ask { number, batch } => self.ask(number, &batch),
            Job::Block { file, offset, digest, data } => {
                let result = self.block(&file, offset, &digest, &data, walker);
                let result = result.map(|()| data.len() as u64);
                Done::Block(file.number, result.map_err(|e| self.trouble(&file.entry.path, &e)))
            }
            Job::Complete(file) => {
                let result = self.complete(&file, walker);
                lock(&self.files).remove(&file.number);
                let (mut counts, mut troubles) = (Counts::default(), Vec::new());
                self.count(&file.entry, result, &mut counts, &mut troubles);
                Done::File(file.number, counts, troubles)
            }
            Job::Abandon(file) => {
                if let Some(slot) = lock(&self.files).remove(&file.number)
                    && let Some(open) = lock(&slot).take()
                {
                    // What is left behind is named so that nobody takes it for data.
                    let _ = self.discard(&open);
                }
                Done::Abandoned(file.number)
            }
            Job::Settle { whole } => self.settle(whole),
        }
    }

    fn batch(&self, body: &[u8], walker: &mut Walker) -> Done {
        let (mut counts, mut troubles) = (Counts::default(), Vec::new());
        for (index, part) in BatchReader::new(body).enumerate() {
            let part = if index < BATCH_ENTRIES { part } else { Err(Malformed::Value("number of entries")) };
            let (mut entry, content, data) = match part {
                Ok(part) => part,
                Err(e) => {
                    self.torn.store(true, Relaxed);
                    let message = e.to_string();
                    troubles.push(Trouble { path: RelPath::root(), op: Op::Write, message });
                    break;
                }
            };
            if let Err(e) = self.admit(&entry) {
                troubles.push(self.trouble(&entry.path, &(Op::Write, e)));
                break;
            }
            self.trim(&mut entry);
            self.note(&entry);
            let result = self.entry(&entry, &content, data, walker);
            counts.bytes += if result.is_ok() { data.len() as u64 } else { 0 };
            self.count(&entry, result, &mut counts, &mut troubles);
        }
        Done::Batch(counts, troubles)
    }

    /// Counts what became of an entry.
    fn count(
        &self,
        entry: &Entry,
        result: Result<Outcome, Failed>,
        counts: &mut Counts,
        troubles: &mut Vec<Trouble>,
    ) {
        match result {
            Ok(Outcome::Later) => return,
            Ok(Outcome::There) => {}
            Ok(Outcome::Flawed(flaw)) => troubles.push(self.trouble(&entry.path, &flaw)),
            Err(e) => return troubles.push(self.trouble(&entry.path, &e)),
        }
        match entry.kind {
            Kind::File => counts.files += 1,
            _ => counts.others += 1,
        }
    }

    /// Remembers that a name came.
    fn note(&self, entry: &Entry) {
        if self.options.delete {
            let key = self.seen_key(&entry.path);
            let mut last = lock(&self.last);
            if last.seen.len() < SEEN {
                last.seen.insert(key);
            } else {
                last.overflow = true;
            }
        }
    }

    fn entry(
        &self,
        entry: &Entry,
        content: &Content,
        data: &[u8],
        walker: &mut Walker,
    ) -> Result<Outcome, Failed> {
        let write = |e| (Op::Write, e);
        let path = self.place(&entry.path).map_err(write)?;
        let unchanged = self.is_unchanged(entry, &path);
        if self.options.dry_run {
            if unchanged {
                return Ok(Outcome::Later);
            }
            self.plan(&entry.path, Action::Make);
            return Ok(Outcome::There);
        }
        let (parent, _) = path.split();
        match &entry.kind {
            Kind::Directory => {
                let directory = self.parent(path.as_bytes(), walker).map_err(write)?;
                // What is made in it changes its time: it is set again in any case.
                let mtime = self.kept(&directory, entry.mtime);
                let kept = Entry { path: path.clone(), mtime, ..entry.clone() };
                Ok(match lock(&self.last).keep(path, kept) {
                    Err(e) => Outcome::Flawed((Op::Metadata, e)),
                    Ok(()) if unchanged => Outcome::Later,
                    Ok(()) if mtime.secs.abs_diff(entry.mtime.secs) > 2 => {
                        Outcome::Flawed((Op::Metadata, unkept(entry.mtime, mtime)))
                    }
                    Ok(()) => Outcome::There,
                })
            }
            Kind::HardLink(_) => {
                // What it has besides its name is the file's.
                let kept = Entry { xattrs: Vec::new(), ..entry.clone() };
                lock(&self.last).keep(entry.path.clone(), kept).map_err(write)?;
                Ok(Outcome::Later)
            }
            Kind::Symlink(_) if unchanged => Ok(Outcome::Later),
            Kind::Symlink(target) => {
                let directory = self.parent(parent, walker).map_err(write)?;
                let temporary = self.unfinished(entry);
                let make = |at: BorrowedFd<'_>| tree::symlink(at, target, &temporary);
                self.make_in(&directory, parent, make).map_err(write)?;
                let set = tree::set_link_metadata(directory.as_fd(), &temporary, entry, self.keep());
                let flaw = set.err().map(|e| (Op::Metadata, e));
                let sent = entry.path.clone();
                self.appear(&directory, Late { path, sent, temporary, digest: None, is_file: false, flaw })
            }
            Kind::File => {
                match content {
                    Content::Inline { digest, .. } if self.options.hash.of(data) != *digest => {
                        return Err(mismatch());
                    }
                    Content::Inline { .. } | Content::None => {}
                    _ => return Err(write(io::Error::other("a file came without its content"))),
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
                self.appear(&directory, Late { path, sent, temporary, digest, is_file: true, flaw })
            }
        }
    }

    /// A time as the file system of a directory keeps it, where that may be another one.
    fn kept(&self, directory: &OwnedFd, time: Time) -> Time {
        if USUAL.contains(&time.secs) {
            return time;
        }
        let device = rustix::fs::fstat(directory).map_or(0, |stat| stat.st_dev);
        let (base, may_name) = (self.base.fd(), !self.options.dry_run);
        self.file_systems.stamps(device, directory, base, may_name).kept(time)
    }

    /// Lets something appear that is complete, and lists it. Where a directory is in
    /// its place, and what the source does not have goes, it waits for that.
    fn appear(&self, directory: &OwnedFd, late: Late) -> Result<Outcome, Failed> {
        match tree::appear(directory.as_fd(), &late.temporary, late.path.split().1) {
            Err(e) if self.options.delete && tree::is_not_empty(&e) => {
                lock(&self.last)
                    .wait(late)
                    .inspect_err(|late| drop(tree::remove(directory.as_fd(), &late.temporary)))
                    .map_err(|_| (Op::Write, e))?;
                return Ok(Outcome::Later);
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

    /// Lets something appear that had to wait.
    fn appear_late(&self, late: &Late) -> Result<(), Failed> {
        let write = |e| (Op::Write, e);
        let (parent, name) = late.path.split();
        let directory = self.base.directory(parent).map_err(write)?;
        tree::appear(directory.as_fd(), &late.temporary, name)
            .inspect_err(|_| drop(tree::remove(directory.as_fd(), &late.temporary)))
            .map_err(write)?;
        match late.digest {
            Some(digest) if late.is_file => self.list(&late.path, || Ok(digest)),
            _ => Ok(()),
        }
    }

    /// Writes a small file under a name of this program's own; what of its metadata
    /// could not be set.
    fn small(
        &self,
        directory: &OwnedFd,
        parent: &[u8],
        temporary: &[u8],
        entry: &Entry,
        data: &[u8],
    ) -> Result<Option<Failed>, Failed> {
        let write = |e| (Op::Write, e);
        let make = |at: BorrowedFd<'_>| tree::create(at, temporary, false);
        let (file, _) = self.make_in(directory, parent, make).map_err(write)?;
        if entry.sparse {
            file.set_len(data.len() as u64).map_err(write)?;
        }
        sparse::write(&file, entry, data, 0, true).map_err(write)?;
        let flaw = self.finish(&file, entry)?;
        if self.options.verify {
            forget(&file).map_err(write)?;
            let mut again = vec![0; data.len()];
            let read = read_full(&file, &mut again, 0).map_err(write)?;
            if read != data.len() || again != data {
                return Err(mismatch());
            }
        }
        Ok(flaw)
    }

    /// Metadata, and durability where every file has to be; what of the former could
    /// not be set.
    fn finish(&self, file: &File, entry: &Entry) -> Result<Option<Failed>, Failed> {
        let set = tree::set_metadata(file.as_fd(), &self.trimmed(entry), self.keep());
        if self.options.durability == Durability::File {
            file.sync_data().map_err(|e| (Op::Write, e))?;
        }
        Ok(set.err().map(|e| (Op::Metadata, e)))
    }

    /// Removes an unfinished file.
    fn discard(&self, open: &Unfinished) -> io::Result<()> {
        let remove = |at: BorrowedFd<'_>| tree::remove(at, &open.temporary);
        self.make_in(&open.directory, open.path.split().0, remove)
    }

    /// The file that is under way for this one, opened by whoever comes first.
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
            // The blocks that were declared will not come.
            Some(declared) if !(kept && identity(&opened)? == declared) => Err(io::Error::other(
                "what a run before had written of it has gone meanwhile: run the same command again",
            )),
            _ => opened.set_len(file.entry.size),
        };
        // Nothing else knows of it: it would stay for good.
        sized.inspect_err(|_| drop(tree::remove(directory.as_fd(), &temporary)))?;
        // What a run before has written is in this file, and was looked at.
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
    ) -> Result<(), Failed> {
        let write = |e| (Op::Write, e);
        // Whatever becomes of it, the source has it.
        self.note(&file.entry);
        // Pieces of blocks would make this side remember more than it was sent.
        let whole = file.entry.size.saturating_sub(offset).min(BLOCK as u64);
        if !offset.is_multiple_of(BLOCK as u64) || data.len() as u64 != whole || data.is_empty() {
            return Err((Op::Verify, io::Error::other("a block came that is none")));
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

    fn complete(&self, file: &Incoming, walker: &mut Walker) -> Result<Outcome, Failed> {
        // Of a file of holes, or one that was all there, no block came.
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
        let late = Late { path, sent, temporary, digest, is_file: true, flaw: flaw.or(unlisted) };
        let outcome = self.appear(&open.directory, late)?;
        if let (Some(journal), Outcome::There | Outcome::Flawed(_)) = (&self.journal, &outcome) {
            journal.complete(file_key(&file.entry)).map_err(|e| (Op::Write, e))?;
        }
        Ok(outcome)
    }

    /// Reads what was written, from the medium as far as the system lets it.
    fn verify(&self, open: &Unfinished) -> Result<(), Failed> {
        // What cannot be read is no mismatch.
        let failed = |e: io::Error| (Op::Write, e);
        forget(&open.file).map_err(failed)?;
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

    fn ask(&self, number: u32, batch: &[u8]) -> Done {
        let (mut wants, mut counts, mut troubles) = (Vec::new(), Counts::default(), Vec::new());
        for (index, part) in BatchReader::new(batch).enumerate() {
            let (true, Ok((mut entry, content, _))) = (index < BATCH_ENTRIES, part) else {
                self.torn.store(true, Relaxed);
                break;
            };
            if self.admit(&entry).is_err() {
                break;
            }
            self.trim(&mut entry);
            self.note(&entry);
            if self.manifest.is_some()
                && let Err(e) = self.place(&entry.path)
            {
                // It would come for nothing.
                troubles.push(self.trouble(&entry.path, &(Op::Write, e)));
                continue;
            }
            let there = self.there(&entry, &content).filter(|it| self.may_stay(&entry, it));
            let there =
                there.filter(|it| it.entry.kind != Kind::File || self.list_same(&entry, &content).is_ok());
            let mended = there.map_or(Mended::Not, |there| self.mend(&entry, &there));
            match mended {
                Mended::Not => {
                    let have = self.have(&entry);
                    counts.skipped += present(&have, entry.size);
                    wants.push(Want { index: index as u32, have });
                    self.plan(&entry.path, Action::Send);
                    continue;
                }
                Mended::Nothing => {}
                Mended::Done => {
                    counts.metadata += 1;
                    self.plan(&entry.path, Action::Metadata);
                }
                Mended::Failed(e) => troubles.push(self.trouble(&entry.path, &(Op::Metadata, e))),
            }
            counts.same += 1;
            counts.skipped += entry.size;
        }
        Done::Asked { number, wants, counts, troubles }
    }

    /// Lists a file that need not be sent; one that cannot be read is sent again.
    fn list_same(&self, entry: &Entry, content: &Content) -> Result<(), Failed> {
        if entry.kind != Kind::File || self.options.dry_run {
            return Ok(());
        }
        let path = self.place(&entry.path).map_err(|e| (Op::Write, e))?;
        self.list(&path, || match (content, self.compare()) {
            (Content::Asked(Some(digest)), Compare::Checksum) => Ok(*digest),
            _ => Hash::Strong.of_file(&tree::open_file(&self.base, &path)?),
        })
    }

    /// What is there, if it is as good as what would be sent.
    fn there(&self, entry: &Entry, content: &Content) -> Option<There> {
        let path = self.place(&entry.path).ok()?;
        let there = self.look(&path).ok()??;
        // What the machine may have lost is only what a run before can have made.
        let made = || entry.size == there.entry.size && there.has_time_of(entry);
        if self.options.compare == Compare::Exists && !(self.by_content() && made()) {
            return Some(there);
        }
        let compare = self.compare();
        let same_time = compare == Compare::Mtime && there.has_time_of(entry);
        let same = entry.is_same(&there.entry, compare, same_time).unwrap_or_else(|| match content {
            Content::Asked(Some(digest)) => {
                let hash =
                    tree::open_file(&self.base, &path).and_then(|file| self.options.hash.of_file(&file));
                hash.is_ok_and(|hash| hash == *digest)
            }
            _ => false,
        });
        same.then_some(there)
    }

    /// Blocks that a run before has written, as a bit each; what the journal
    /// says is checked.
    fn have(&self, entry: &Entry) -> Box<[u8]> {
        let key = file_key(entry);
        let known = self.journal.as_ref().and_then(|journal| journal.known.get(&key));
        let (Some(known), Ok(path)) = (known, self.place(&entry.path)) else { return Box::default() };
        let (parent, _) = path.split();
        let temporary = self.unfinished(entry);
        let temporary = [parent, if parent.is_empty() { b"" } else { b"/" }, &temporary].concat();
        let Ok(file) = tree::open_own(&self.base, &temporary) else { return Box::default() };
        // As much as there is, whatever size is claimed.
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
            // Nobody asks for them.
            blocks = Vec::new();
        }
        lock(&self.declared).insert(key, Declared { file, blocks });
        have.into()
    }

    fn settle(&self, whole: bool) -> Done {
        let (mut counts, mut troubles) = (Counts::default(), Vec::new());
        troubles.extend(self.withheld.trouble());
        let Last { directories, links, late, mut opened, seen, overflow, .. } =
            std::mem::take(&mut *lock(&self.last));
        if self.options.delete && overflow {
            let message = "there are more names than are remembered: nothing was removed".into();
            troubles.push(Trouble { path: RelPath::root(), op: Op::Delete, message });
        } else if self.options.delete && whole && !self.torn.load(Relaxed) {
            crate::delete::delete(self, &seen, &mut counts, &mut troubles);
        } else if self.options.delete {
            let message = "nothing was removed, since not all of the source could be read".into();
            troubles.push(Trouble { path: RelPath::root(), op: Op::Delete, message });
        }
        for late in late {
            match self.appear_late(&late) {
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
        opened.append(&mut lock(&self.last).opened);
        opened.sort_unstable_by(|a, b| b.cmp(a));
        for (path, mode) in opened {
            // Where it was of those that came, it gets its mode below.
            let _ = self.base.directory(&path).map(|it| tree::close_again(it.as_fd(), mode));
        }
        for entry in directories.values().rev() {
            if let Err(e) = self.directory_metadata(entry) {
                troubles.push(self.trouble(&entry.path, &(Op::Metadata, e)));
            }
        }
        let durable = match self.options.durability {
            Durability::None => Ok(()),
            _ if self.options.dry_run => Ok(()),
            _ => self.base.sync(self.medium.as_ref()),
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
        Done::Settled(counts, troubles)
    }

    /// Lets the list appear; the files that are not in it.
    fn finish_manifest(&self, manifest: &Manifest) -> io::Result<Vec<RelPath>> {
        let parent = manifest.path.split().0;
        let finish = || {
            let directory = self.base.directory(parent).map_err(|e| match e.kind() {
                io::ErrorKind::NotADirectory | io::ErrorKind::NotFound => {
                    io::Error::other("the manifest needs a directory to be in, and what was copied is none")
                }
                _ => e,
            })?;
            self.make_in(&directory, parent, |at| manifest.finish(self.base.fd(), at))
        };
        finish().inspect_err(|_| manifest.discard(self.base.fd()))
    }

    /// Removes the journal: left behind it would only make the next run ask. `root` is
    /// what the directory that it is in should be.
    fn remove_journal(&self, journal: &Journal, root: Option<&Entry>) {
        let mut opened = None;
        if journal.remove(&self.base).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            opened = tree::open_up(self.base.fd());
            let _ = journal.remove(&self.base);
        }
        // Its removal has changed the time of the directory.
        match (root, opened) {
            (Some(root), _) => drop(self.directory_metadata(root)),
            (None, Some(mode)) => drop(tree::close_again(self.base.fd(), mode)),
            (None, None) => {}
        }
    }

    /// Removes what runs before have left of files that have changed since.
    fn sweep<'a>(&self, directories: impl Iterator<Item = &'a RelPath>) {
        let ours = unfinished_of(self.key());
        for path in directories.map(RelPath::as_bytes).chain([&b""[..]]) {
            let Ok(directory) = self.base.directory(path) else { continue };
            let Ok(mut names) = tree::Names::open(directory.as_fd()) else { continue };
            let mut old = Vec::new();
            while let Ok(some) = names.some()
                && !some.is_empty()
            {
                old.extend(some.into_iter().filter(|name| name.starts_with(&ours)));
            }
            for name in old {
                // It is in nobody's way.
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

    /// Makes another name of a file; whether it was none already.
    fn hard_link(&self, entry: &Entry) -> Result<bool, Failed> {
        let write = |e| (Op::Write, e);
        let Kind::HardLink(first) = &entry.kind else { return Ok(false) };
        let (first, path) = (self.place(first).map_err(write)?, self.place(&entry.path).map_err(write)?);
        let list = || self.list(&path, || Hash::Strong.of_file(&tree::open_file(&self.base, &path)?));
        if self.is_unchanged(entry, &path) {
            return list().map(|()| false);
        }
        // Another file has that name by now, or the copy of this one has failed.
        let is_it = |there: &There| there.entry.kind == Kind::File && there.has_time_of(entry);
        if !matches!(self.options.compare, Compare::Exists | Compare::Size) {
            let there = self.look(&first).map_err(write)?;
            if !there.as_ref().is_some_and(is_it) {
                let message =
                    format!("{first}, the same file at the source, is not here as it was found there");
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
        tree::appear(directory.as_fd(), &temporary, name)
            .inspect_err(|_| drop(tree::remove(directory.as_fd(), &temporary)))
            .map_err(write)?;
        list()?;
        // Where both are the same file already, renaming has done nothing.
        tree::remove(directory.as_fd(), &temporary).map_err(write)?;
        Ok(true)
    }
}
