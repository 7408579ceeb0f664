//! Writing: jobs of the receiving side, done by several threads.
//!
//! Invariants:
//! - content is under a name of this program's own until all of it is written
//!   and its checksums agree; then it appears under its name in one step;
//! - directories get their mode and time last, deepest first, since what is
//!   made in them changes both;
//! - a hard link is made when all files are there.

use crate::asked::Asked;
use crate::filter::Filter;
use crate::fold::{Folded, fold, folds};
use crate::journal::{Journal, file_key, unfinished};
use crate::manifest::Manifest;
use crate::read::read_full;
use crate::session::{Done, Incoming, Job, Violation};
use crate::tree::{self, Keep, Tree, Walker, is_full, say};
use crate::wire::{
    BATCH_ENTRIES, BLOCK, BatchReader, Compare, Content, Counts, Digest, Durability, Entry, HAVE_MAX, Hash,
    Kind, Malformed, Op, Options, RelPath, Trouble, Want,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
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
    /// None where nothing is written.
    pub(crate) journal: Option<Journal>,
    /// The list of what there is, where one is wanted.
    pub(crate) manifest: Option<Manifest>,
    /// The names that came, where some may be one to the file system.
    pub(crate) folded: Option<Folded>,
    /// What is taken at all, where this side has asked for it.
    pub(crate) asked: Option<Asked>,
    /// Something that came and was not asked for.
    unasked: OnceLock<RelPath>,
    files: Mutex<HashMap<u64, Arc<Slot>>>,
    last: Mutex<Last>,
    /// Nothing more can be written.
    full: AtomicBool,
}

/// What is done when everything else is.
#[derive(Debug, Default)]
struct Last {
    /// By where they are.
    directories: BTreeMap<RelPath, Entry>,
    /// By their names as they came.
    links: BTreeMap<RelPath, Entry>,
    /// What these weigh, in bytes.
    bytes: usize,
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
}

/// A large file under way.
#[derive(Debug)]
struct Unfinished {
    file: File,
    directory: Arc<OwnedFd>,
    temporary: Vec<u8>,
    name: Vec<u8>,
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

impl Writer {
    pub(crate) fn new(
        base: Tree,
        rename: Option<Vec<u8>>,
        options: Options,
        filter: Filter,
        journal: Option<Journal>,
        manifest: Option<Manifest>,
    ) -> Writer {
        let (files, last) = (Mutex::default(), Mutex::default());
        let full = AtomicBool::new(false);
        let folded = journal.as_ref().is_some_and(|journal| folds(&base, journal.name()));
        let folded = folded.then(Folded::default);
        let (asked, unasked) = (None, OnceLock::new());
        let writer = Writer {
            folded,
            asked,
            unasked,
            base,
            rename,
            options,
            filter,
            journal,
            manifest,
            files,
            last,
            full,
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

    /// What the sending side may not do and did.
    pub(crate) fn violation(&self) -> Option<Violation> {
        self.unasked.get().map(|path| Violation::Unasked(path.to_string()))
    }

    /// Lets only that in which was asked for.
    fn admit(&self, entry: &Entry) -> io::Result<()> {
        if self.asked.as_ref().is_none_or(|asked| asked.has(entry)) {
            return Ok(());
        }
        // The first one is enough: the session ends with it.
        let _ = self.unasked.set(entry.path.clone());
        Err(io::Error::other("it was not asked for"))
    }

    /// Whether a run before this one was cut off.
    pub(crate) fn resumes(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.resumed)
    }

    /// A way through the tree, for one thread.
    pub(crate) fn walker(&self) -> Walker {
        Walker::new(self.base.clone())
    }

    fn keep(&self) -> Keep {
        Keep { owner: self.options.owner }
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
        self.folded.as_ref().map_or(Ok(()), |folded| folded.take(&placed))?;
        Ok(placed)
    }

    fn trouble(&self, path: &RelPath, (op, e): &Failed) -> Trouble {
        if is_full(e) {
            self.full.store(true, Relaxed);
        }
        Trouble { path: path.clone(), op: *op, message: say(e) }
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
                Done::File(file.number, result.map_err(|e| self.trouble(&file.entry.path, &e)))
            }
            Job::Abandon(file) => {
                if let Some(slot) = lock(&self.files).remove(&file.number)
                    && let Some(open) = lock(&slot).take()
                {
                    // What is left behind is named so that nobody takes it for data.
                    let _ = tree::remove(open.directory.as_fd(), &open.temporary);
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
                    let message = e.to_string();
                    troubles.push(Trouble { path: RelPath::root(), op: Op::Write, message });
                    break;
                }
            };
            if let Err(e) = self.admit(&entry) {
                troubles.push(self.trouble(&entry.path, &(Op::Write, e)));
                break;
            }
            if !self.options.xattrs {
                // Nobody has asked for them.
                entry.xattrs.clear();
            }
            self.note(&entry);
            match self.entry(&entry, &content, data, walker) {
                Ok(()) if entry.kind == Kind::File => {
                    counts.files += 1;
                    counts.bytes += data.len() as u64;
                }
                // Counted when it is made.
                Ok(()) if matches!(entry.kind, Kind::HardLink(_)) => {}
                Ok(()) => counts.others += 1,
                Err(e) => troubles.push(self.trouble(&entry.path, &e)),
            }
        }
        Done::Batch(counts, troubles)
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
    ) -> Result<(), Failed> {
        let write = |e| (Op::Write, e);
        let path = self.place(&entry.path).map_err(write)?;
        if self.options.dry_run {
            return Ok(());
        }
        let (parent, name) = path.split();
        match &entry.kind {
            Kind::Directory => {
                self.directory(&path, walker).map_err(write)?;
                let kept = Entry { path: path.clone(), ..entry.clone() };
                lock(&self.last).keep(path, kept).map_err(|e| (Op::Metadata, e))
            }
            Kind::HardLink(_) => {
                // What it has besides its name is the file's.
                let kept = Entry { xattrs: Vec::new(), ..entry.clone() };
                lock(&self.last).keep(entry.path.clone(), kept).map_err(write)
            }
            Kind::Symlink(target) => {
                let directory = walker.make(parent).map_err(write)?;
                let temporary = unfinished(file_key(entry));
                tree::symlink(directory.as_fd(), target, &temporary).map_err(write)?;
                let done = tree::set_link_metadata(directory.as_fd(), &temporary, entry, self.keep())
                    .map_err(|e| (Op::Metadata, e))
                    .and_then(|()| tree::appear(directory.as_fd(), &temporary, name).map_err(write));
                done.inspect_err(|_| drop(tree::remove(directory.as_fd(), &temporary)))
            }
            Kind::File => {
                match content {
                    Content::Inline { digest, .. } if self.options.hash.of(data) != *digest => {
                        return Err(mismatch());
                    }
                    Content::Inline { .. } | Content::None => {}
                    _ => return Err(write(io::Error::other("a file came without its content"))),
                }
                let directory = walker.make(parent).map_err(write)?;
                let temporary = unfinished(file_key(entry));
                let done = self.small(&directory, &temporary, name, entry, data);
                done.inspect_err(|_| drop(tree::remove(directory.as_fd(), &temporary)))?;
                self.list(&path, || {
                    Ok(if let Content::Inline { digest, .. } = content {
                        *digest
                    } else {
                        Hash::Strong.of(&[])
                    })
                })
            }
        }
    }

    /// A directory, in place of whatever else has its name.
    fn directory(&self, path: &RelPath, walker: &mut Walker) -> io::Result<()> {
        match walker.make(path.as_bytes()) {
            Err(e) if tree::is_in_the_way(&e) => {
                let (parent, name) = path.split();
                tree::remove(walker.make(parent)?.as_fd(), name)?;
                walker.make(path.as_bytes()).map(drop)
            }
            result => result.map(drop),
        }
    }

    fn small(
        &self,
        directory: &OwnedFd,
        temporary: &[u8],
        name: &[u8],
        entry: &Entry,
        data: &[u8],
    ) -> Result<(), Failed> {
        let write = |e| (Op::Write, e);
        let mut file = tree::create(directory.as_fd(), temporary, false).map_err(write)?;
        file.write_all(data).map_err(write)?;
        self.finish(&file, entry)?;
        if self.options.verify {
            let mut again = vec![0; data.len()];
            let read = read_full(&file, &mut again, 0).map_err(|e| (Op::Verify, e))?;
            if read != data.len() || again != data {
                return Err(mismatch());
            }
        }
        tree::appear(directory.as_fd(), temporary, name).map_err(write)
    }

    /// Metadata, and durability where every file has to be.
    fn finish(&self, file: &File, entry: &Entry) -> Result<(), Failed> {
        if !self.options.xattrs && !entry.xattrs.is_empty() {
            return self.finish(file, &Entry { xattrs: Vec::new(), ..entry.clone() });
        }
        tree::set_metadata(file.as_fd(), entry, self.keep()).map_err(|e| (Op::Metadata, e))?;
        if self.options.durability == Durability::File {
            file.sync_data().map_err(|e| (Op::Write, e))?;
        }
        Ok(())
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
        let (parent, name) = path.split();
        let directory = walker.make(parent)?;
        let key = file_key(&file.entry);
        let known = self.journal.as_ref().is_some_and(|journal| journal.known.contains_key(&key));
        let temporary = unfinished(key);
        let opened = tree::create(directory.as_fd(), &temporary, known)?;
        opened.set_len(file.entry.size)?;
        // What a run before has written is in this file, and was looked at.
        let known = self.journal.as_ref().and_then(|journal| journal.known.get(&key));
        let known = known.filter(|_| self.manifest.is_some()).into_iter().flatten();
        let digests = Mutex::new(known.copied().collect());
        let open = Arc::new(Unfinished { file: opened, directory, temporary, name: name.to_vec(), digests });
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
        // Pieces of blocks would make this side remember more than it was sent.
        let whole = file.entry.size.saturating_sub(offset).min(BLOCK as u64);
        if !offset.is_multiple_of(BLOCK as u64) || data.len() as u64 != whole || data.is_empty() {
            return Err((Op::Verify, io::Error::other("a block came that is none")));
        }
        if self.options.hash.of_block(data, offset, file.entry.size) != *digest {
            return Err(mismatch());
        }
        let open = self.open(file, walker).map_err(write)?;
        open.file.write_all_at(data, offset).map_err(write)?;
        if self.options.verify || self.manifest.is_some() {
            lock(&open.digests).insert(offset, *digest);
        }
        match &self.journal {
            Some(journal) => journal.add(file_key(&file.entry), offset, digest).map_err(write),
            None => Ok(()),
        }
    }

    fn complete(&self, file: &Incoming, walker: &mut Walker) -> Result<(), Failed> {
        let write = |e| (Op::Write, e);
        // Of a file of holes, or one that was all there, no block came.
        let open = self.open(file, walker).map_err(write)?;
        let finish = || {
            self.finish(&open.file, &file.entry)?;
            if self.options.verify {
                self.verify(&open)?;
            }
            tree::appear(open.directory.as_fd(), &open.temporary, &open.name).map_err(write)
        };
        finish().inspect_err(|_| drop(tree::remove(open.directory.as_fd(), &open.temporary)))?;
        if let Some(journal) = &self.journal {
            journal.complete(file_key(&file.entry)).map_err(write)?;
        }
        let path = self.place(&file.entry.path).map_err(write)?;
        self.list(&path, || {
            let digests: Vec<_> = std::mem::take(&mut *lock(&open.digests)).into_iter().collect();
            if file.entry.size / BLOCK as u64 > digests.len() as u64 + HOLES {
                return Err(io::Error::other("its holes are too large to be listed in a manifest"));
            }
            Ok(Hash::join(file.entry.size, &digests))
        })
    }

    /// Reads what was written, from the medium as far as the system lets it.
    fn verify(&self, open: &Unfinished) -> Result<(), Failed> {
        let verify = |e: io::Error| (Op::Verify, e);
        open.file.sync_data().map_err(verify)?;
        // A hint: where it is not taken, memory is compared.
        let _ = rustix::fs::fadvise(&open.file, 0, None, rustix::fs::Advice::DontNeed);
        let size = open.file.metadata().map_err(verify)?.len();
        let mut again = vec![0; BLOCK];
        for (offset, digest) in lock(&open.digests).iter() {
            let len = size.saturating_sub(*offset).min(BLOCK as u64) as usize;
            let read = read_full(&open.file, &mut again[..len], *offset).map_err(verify)?;
            if self.options.hash.of_block(&again[..read], *offset, size) != *digest {
                return Err(mismatch());
            }
        }
        Ok(())
    }

    fn ask(&self, number: u32, batch: &[u8]) -> Done {
        let (mut wants, mut same) = (Vec::new(), 0);
        for (index, part) in BatchReader::new(batch).take(BATCH_ENTRIES).enumerate() {
            let Ok((entry, content, _)) = part else { break };
            if self.admit(&entry).is_err() {
                break;
            }
            self.note(&entry);
            if self.is_there(&entry, &content) && self.list_same(&entry, &content).is_ok() {
                same += 1;
            } else {
                wants.push(Want { index: index as u32, have: self.have(&entry) });
            }
        }
        Done::Asked { number, wants, same }
    }

    /// Lists a file that need not be sent; one that cannot be read is sent again.
    fn list_same(&self, entry: &Entry, content: &Content) -> Result<(), Failed> {
        if entry.kind != Kind::File || self.options.dry_run {
            return Ok(());
        }
        let path = self.place(&entry.path).map_err(|e| (Op::Write, e))?;
        self.list(&path, || match (content, self.options.compare) {
            (Content::Asked(Some(digest)), Compare::Checksum) => Ok(*digest),
            _ => Hash::Strong.of_file(&tree::open_file(&self.base, &path)?),
        })
    }

    /// Whether what is there is as good as what would be sent.
    fn is_there(&self, entry: &Entry, content: &Content) -> bool {
        let Ok(path) = self.place(&entry.path) else { return false };
        let Ok(Some(there)) = self.base.look(&path) else { return false };
        // Who sends everything asks only to go on with what was cut off.
        let compare = match self.options.compare {
            Compare::Nothing => Compare::Mtime,
            compare => compare,
        };
        entry.is_same(&there, compare).unwrap_or_else(|| match content {
            Content::Asked(Some(digest)) => {
                let hash =
                    tree::open_file(&self.base, &path).and_then(|file| self.options.hash.of_file(&file));
                hash.is_ok_and(|hash| hash == *digest)
            }
            _ => false,
        })
    }

    /// Blocks that a run before has written, as a bit each; what the journal
    /// says is checked.
    fn have(&self, entry: &Entry) -> Box<[u8]> {
        let key = file_key(entry);
        let known = self.journal.as_ref().and_then(|journal| journal.known.get(&key));
        let (Some(known), Ok(path)) = (known, self.place(&entry.path)) else { return Box::default() };
        let (parent, _) = path.split();
        let temporary = [parent, if parent.is_empty() { b"" } else { b"/" }, &unfinished(key)].concat();
        let Ok(file) = tree::open_own(&self.base, &temporary) else { return Box::default() };
        // As much as there is, whatever size is claimed.
        let last = known.iter().map(|(offset, _)| offset / BLOCK as u64).max().unwrap_or(0);
        let mut have = vec![0u8; (last / 8 + 1).min(HAVE_MAX as u64) as usize];
        let mut data = vec![0; BLOCK];
        let bits = 8 * have.len() as u64;
        for (offset, digest) in known.iter().filter(|(offset, _)| offset / (BLOCK as u64) < bits) {
            let len = entry.size.saturating_sub(*offset).min(BLOCK as u64) as usize;
            let good = offset % BLOCK as u64 == 0
                && read_full(&file, &mut data[..len], *offset).is_ok_and(|read| read == len)
                && self.options.hash.of_block(&data[..len], *offset, entry.size) == *digest;
            let block = (offset / BLOCK as u64) as usize;
            if let Some(byte) = have.get_mut(block / 8).filter(|_| good) {
                *byte |= 1 << (block % 8);
            }
        }
        have.into()
    }

    fn settle(&self, whole: bool) -> Done {
        let (mut counts, mut troubles) = (Counts::default(), Vec::new());
        let Last { directories, links, seen, overflow, .. } = std::mem::take(&mut *lock(&self.last));
        for link in links.values() {
            match self.hard_link(link) {
                Ok(()) => counts.others += 1,
                Err(e) => troubles.push(self.trouble(&link.path, &e)),
            }
        }
        if let Some(manifest) = &self.manifest {
            match manifest.finish(&self.base) {
                Ok(left_out) => troubles.extend(left_out.into_iter().map(|path| {
                    let message = "its name is not UTF-8: the manifest cannot list it".into();
                    Trouble { path, op: Op::Metadata, message }
                })),
                Err(e) => troubles.push(self.trouble(&manifest.path, &(Op::Write, e))),
            }
        }
        if self.options.delete && overflow {
            let message = "there are more names than are remembered: nothing was removed".into();
            troubles.push(Trouble { path: RelPath::root(), op: Op::Delete, message });
        } else if self.options.delete && whole {
            crate::delete::delete(self, &seen, &mut counts, &mut troubles);
        }
        for entry in directories.values().rev() {
            if let Err(e) = self.directory_metadata(entry) {
                troubles.push(self.trouble(&entry.path, &(Op::Metadata, e)));
            }
        }
        if self.options.durability != Durability::None
            && !self.options.dry_run
            && let Err(e) = self.base.sync()
        {
            troubles.push(self.trouble(&RelPath::root(), &(Op::Write, e)));
        }
        if let Some(journal) = &self.journal {
            // Left behind it would only make the next run ask.
            let _ = journal.remove(&self.base);
            // Its removal has changed the time of the directory that it was in.
            if let Some(root) = directories.get(&RelPath::root()) {
                let _ = self.directory_metadata(root);
            }
        }
        Done::Settled(counts, troubles)
    }

    fn directory_metadata(&self, entry: &Entry) -> io::Result<()> {
        let directory = self.base.directory(entry.path.as_bytes())?;
        match tree::readable(directory.as_fd()) {
            Ok(directory) => tree::set_metadata(directory.as_fd(), entry, self.keep()),
            Err(e) => Err(e),
        }
    }

    fn hard_link(&self, entry: &Entry) -> Result<(), Failed> {
        let write = |e| (Op::Write, e);
        let Kind::HardLink(first) = &entry.kind else { return Ok(()) };
        let (first, path) = (self.place(first).map_err(write)?, self.place(&entry.path).map_err(write)?);
        let ((old, from), (parent, name)) = (first.split(), path.split());
        let old = self.base.directory(old).map_err(write)?;
        let directory = self.base.make(parent).map_err(write)?;
        let temporary = unfinished(file_key(entry));
        tree::remove(directory.as_fd(), &temporary).map_err(write)?;
        tree::hard_link(old.as_fd(), from, directory.as_fd(), &temporary).map_err(write)?;
        tree::appear(directory.as_fd(), &temporary, name).map_err(write)?;
        self.list(&path, || Hash::Strong.of_file(&tree::open_file(&self.base, &path)?))?;
        // Where both are the same file already, renaming has done nothing.
        tree::remove(directory.as_fd(), &temporary).map_err(write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Batch, Time};

    fn entry(name: &str, kind: Kind, size: u64) -> Entry {
        let path = RelPath::new(name.as_bytes()).expect("a good name");
        Entry { path, kind, mode: 0o644, uid: 0, gid: 0, mtime: Time::default(), size, xattrs: Vec::new() }
    }

    #[test]
    fn what_comes_again_is_remembered_once_and_all_within_a_bound() {
        let mut last = Last::default();
        let xattrs = || vec![((*b"user.x").into(), vec![1; 60_000].into_boxed_slice())];
        for kind in [Kind::Directory, Kind::HardLink(RelPath::root())] {
            for _ in 0..1000 {
                let entry = Entry { xattrs: xattrs(), ..entry("d", kind.clone(), 0) };
                last.keep(entry.path.clone(), entry).expect("room");
            }
        }
        assert_eq!((last.directories.len(), last.links.len()), (1, 1));
        assert!((120_000..130_000).contains(&last.bytes), "{}", last.bytes);
        last.bytes = LAST_BYTES - 1000;
        let long = Entry { xattrs: xattrs(), ..entry("e", Kind::Directory, 0) };
        assert!(last.keep(long.path.clone(), long).is_err());
        let short = entry("f", Kind::Directory, 0);
        last.keep(short.path.clone(), short).expect("room for that");
    }

    #[test]
    fn of_a_file_of_any_size_what_is_there_is_told() {
        const HUGE: u64 = 4 << 40;
        let dir = tempfile::tempdir().expect("a directory");
        let tree = Tree::open(dir.path()).expect("open");
        let probe = File::create(dir.path().join("probe")).expect("made");
        if probe.set_len(HUGE).is_err() {
            eprintln!("skip: the file system has no files of 4 TiB");
            return;
        }
        let writer = || {
            let journal = Journal::open(&tree, 1).expect("a journal");
            Writer::new(tree.clone(), None, Options::default(), Filter::default(), Some(journal), None)
        };
        let file = Arc::new(Incoming { number: 1, entry: entry("huge", Kind::File, HUGE) });
        let (data, first) = (longhaul_engine::Buf::copy_of(&vec![1; BLOCK]), writer());
        for block in [0, 3, (HUGE / BLOCK as u64) - 1] {
            let (offset, file) = (block * BLOCK as u64, Arc::clone(&file));
            let digest = Hash::Quick.of_block(&data, offset, HUGE);
            let job = Job::Block { file, offset, digest, data: data.clone() };
            let done = first.run(job, &mut first.walker());
            assert!(matches!(done, Done::Block(1, Ok(_))), "{done:?}");
        }
        drop(first);
        let (mut batch, again) = (Batch::default(), writer());
        batch.push(&file.entry, &Content::Asked(None), &[]);
        let Done::Asked { wants, .. } =
            again.run(Job::Ask { number: 0, batch: batch.into_body() }, &mut again.walker())
        else {
            panic!("a question is answered");
        };
        // As much as an answer holds: of the first 512 GiB.
        assert_eq!(wants[0].have.len(), HAVE_MAX);
        assert_eq!((wants[0].have[0], wants[0].have[1]), (0b1001, 0));
    }
}
