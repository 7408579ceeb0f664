//! Reading: reader threads put small files into batches, and read large ones in blocks.
//!
//! Invariants:
//! - a block of a large file is claimed by one thread; the thread that returns the last
//!   one closes the file, after checking that it did not change since it was opened;
//! - a small file is sent only if it did not change while it was read.
//!
//! Threads take blocks of the present file first and then the next file, so files
//! overlap; the bounded queue of items limits how far.

use super::budget::Budget;
use super::existence_query::QueryBatcher;
use crate::guard::lock;
use crate::queue::Queue;
use crate::send::synthetic::Synthetic;
use crate::session::{Outgoing, SenderItem};
use crate::tree::scan::{FoundEntry, Origin};
use crate::tree::{self, File, Inode, Status, say};
use crate::tune::gate::Gate;
use crate::tune::service::ServiceTimes;
use crate::wire::{BLOCK, Batch, Content, Entry, EntryKind, Hash, Op, SMALL, Trouble, Xattr};
use longhaul_engine::{BufMut, BufPool, now};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Age at which a batch is sent before it is full, so that the writers work while slow files are
/// read: far above what a batch of files out of memory takes.
const BATCH_AGE: Duration = Duration::from_millis(10);
/// How often a small file that changes is read again.
const ATTEMPTS: usize = 3;

/// Something to read.
#[derive(Debug)]
pub(crate) enum ReadWork {
    /// An object to send, and a bitmap of its blocks that the receiver has.
    Found(FoundEntry, Box<[u8]>),
    /// A large file that another thread has opened.
    Help(Arc<LargeFile>),
    /// A file whose query needs a checksum or attributes first.
    Query(FoundEntry),
}

impl ReadWork {
    fn is_small(&self) -> bool {
        matches!(self, ReadWork::Found(found, _) if found.entry.size <= SMALL)
    }

    /// Bytes of content, for a small file.
    fn small_bytes(&self) -> usize {
        match self {
            ReadWork::Found(found, _) => found.entry.size.min(SMALL) as usize,
            ReadWork::Help(_) | ReadWork::Query(_) => 0,
        }
    }
}

/// A large file that is being read.
#[derive(Debug)]
pub(crate) struct LargeFile {
    content: LargeContent,
    outgoing: Arc<Outgoing>,
    have: Box<[u8]>,
    state: Mutex<ReadState>,
}

/// Where the content of a large file is.
#[derive(Debug)]
enum LargeContent {
    /// A file, with its status when it was opened.
    File(File, Status),
    Synthetic(Arc<Synthetic>, usize),
}

impl LargeContent {
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            LargeContent::File(file, _) => read_full(file, buf, offset),
            LargeContent::Synthetic(source, index) => Ok(source.read(*index, buf, offset)),
        }
    }

    /// Whether the file may have changed since it was opened.
    fn has_changed(&self) -> bool {
        match self {
            LargeContent::File(file, before) => !file.status().is_ok_and(|now| is_same(before, &now)),
            LargeContent::Synthetic(..) => false,
        }
    }
}

#[derive(Debug, Default)]
struct ReadState {
    /// Offset of the next block.
    next: u64,
    /// Blocks claimed and not queued yet, plus one while the opening thread works.
    busy: usize,
    exhausted: bool,
    blocks: u32,
    bad: bool,
}

/// State that all reader threads of a session share.
pub(crate) struct Reader {
    pub(crate) work: Arc<Queue<ReadWork>>,
    pub(crate) queries: Option<Arc<QueryBatcher>>,
    pub(crate) items: Arc<Queue<SenderItem>>,
    pub(crate) pool: BufPool,
    /// Bounds what all threads hold, however many they are.
    pub(crate) budget: Budget,
    pub(crate) service: Arc<ServiceTimes>,
    pub(crate) hash: Hash,
    pub(crate) xattrs: bool,
    /// The most threads, and their concurrency gate.
    pub(crate) threads: usize,
    pub(crate) gate: Arc<Gate>,
    pub(crate) next: AtomicU64,
    pub(crate) stats: Arc<ReadStats>,
}

/// Files and bytes read so far.
#[derive(Debug, Default)]
pub(crate) struct ReadStats {
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// A small file as it was read.
enum SmallFile {
    Whole(Entry, Content),
    TooLarge(File, Status),
    Trouble(Op, String),
}

/// The session has ended: its queues are closed.
struct SenderGone;

impl Reader {
    /// Runs reader thread `index` until there is no more work.
    pub(crate) fn run(&self, index: usize) {
        self.gate.pass(index);
        // The thread that opens a large file wants help afterwards: in a file system that is far away it takes
        // round trips, and the scan has ended by then.
        while let Some((work, held)) = self.work.pop_held() {
            let done = match work {
                work if work.is_small() => self.batch(work, index),
                ReadWork::Found(found, have) => self.large(found, have, index),
                ReadWork::Help(large) => self.blocks(&large, index),
                ReadWork::Query(found) => self.examine(found),
            };
            if done.is_err() {
                // The session has ended.
                self.work.abort();
            }
            drop(held);
            self.gate.pass(index);
        }
        // Lets the blocked threads end as well.
        self.gate.open();
    }

    fn send(&self, item: SenderItem, weight: usize) -> Result<(), SenderGone> {
        self.items.push(item, weight).map_err(|_| SenderGone)
    }

    fn trouble(&self, entry: &Entry, op: Op, message: String) -> Result<(), SenderGone> {
        self.send(SenderItem::Trouble(Trouble { path: entry.path.clone(), op, message }), 1)
    }

    /// Reads the checksum and attributes of a file for its existence query.
    fn examine(&self, mut found: FoundEntry) -> Result<(), SenderGone> {
        let Some(queries) = &self.queries else { return Ok(()) };
        let read = || -> io::Result<(Vec<Xattr>, Content)> {
            let digest = queries.checksum.map(|hash| found.digest(hash)).transpose()?;
            if digest.is_some() {
                self.stats.bytes.fetch_add(found.entry.size, Relaxed);
            }
            Ok((if self.xattrs { found.xattrs()? } else { Vec::new() }, Content::Query(digest)))
        };
        let about = match read() {
            Ok((xattrs, content)) => {
                found.entry.xattrs = xattrs;
                Some((found, content))
            }
            Err(e) => {
                self.trouble(&found.entry, Op::Read, say(&e))?;
                None
            }
        };
        queries.read(about).map_err(|_| SenderGone)
    }

    /// Reads the small files that are queued now into one batch, up to its limits of size and age.
    fn batch(&self, first: ReadWork, index: usize) -> Result<(), SenderGone> {
        let (mut batch, mut data) = (Batch::default(), Vec::new());
        let (began, mut share) = (now(), self.budget.take(first.small_bytes()));
        let (mut next, mut grown) = (Some(first), None);
        while let Some(ReadWork::Found(found, have)) = next {
            let service = self.service.begin();
            let small = self.small(&found, &mut data);
            self.service.end(service, u64::from(found.entry.kind == EntryKind::File));
            match small {
                SmallFile::Whole(entry, content) => {
                    self.stats.files.fetch_add(u64::from(entry.kind == EntryKind::File), Relaxed);
                    self.stats.bytes.fetch_add(data.len() as u64, Relaxed);
                    batch.push(&entry, &content, &data);
                }
                SmallFile::TooLarge(file, stat) => {
                    grown = Some((file, stat, found.entry, have));
                    break;
                }
                SmallFile::Trouble(op, message) => self.trouble(&found.entry, op, message)?,
            }
            let ends = batch.is_full() || now().saturating_duration_since(began) >= BATCH_AGE;
            let fits = |work: &ReadWork| work.is_small() && share.grow(work.small_bytes());
            next = if ends { None } else { self.work.try_pop_if(fits) };
        }
        if !batch.is_empty() {
            let body = batch.into_body();
            let weight = body.len();
            self.send(SenderItem::Batch(body), weight)?;
        }
        // Its blocks take shares of their own, and a thread that waits for one holds none.
        drop(share);
        match grown {
            Some((file, stat, entry, have)) => self.begin(file, stat, entry, have, index),
            None => Ok(()),
        }
    }

    /// Reads an object for a batch, with its content into `data`.
    fn small(&self, found: &FoundEntry, data: &mut Vec<u8>) -> SmallFile {
        data.clear();
        let mut entry = found.entry.clone();
        if !matches!(entry.kind, EntryKind::File | EntryKind::Directory)
            || entry.kind == EntryKind::Directory && !self.xattrs
        {
            return SmallFile::Whole(entry, Content::None);
        }
        let read = || -> io::Result<SmallFile> {
            let tree = match &found.origin {
                Origin::Tree(tree) => tree,
                Origin::Synthetic(..) if entry.kind == EntryKind::Directory => {
                    return Ok(SmallFile::Whole(entry, Content::None));
                }
                Origin::Synthetic(source, index) => {
                    data.resize(entry.size as usize, 0);
                    source.read(*index, data, 0);
                    let content = self.inline(data);
                    return Ok(SmallFile::Whole(entry, content));
                }
            };
            if entry.kind == EntryKind::Directory {
                let directory = tree.directory(entry.path.as_bytes())?;
                entry.xattrs = tree::xattrs(&directory.readable()?)?;
                return Ok(SmallFile::Whole(entry, Content::None));
            }
            let file = tree::open_file(tree, &entry.path)?;
            for attempt in 0..ATTEMPTS {
                let before = if attempt == 0 { file.recent_status()? } else { file.status()? };
                if before.size > SMALL {
                    return Ok(SmallFile::TooLarge(file, before));
                }
                data.resize(before.size as usize, 0);
                let len = read_full(&file, data, 0)?;
                let hides_content = data.is_empty() && read_full(&file, &mut [0], 0)? > 0;
                if len == data.len() && is_same(&before, &file.status()?) {
                    if hides_content {
                        return Ok(SmallFile::Trouble(Op::Read, HIDES_CONTENT.into()));
                    }
                    entry = tree::entry(&before, EntryKind::File, entry.path);
                    if self.xattrs {
                        entry.xattrs = tree::xattrs(&file)?;
                    }
                    let content = self.inline(data);
                    return Ok(SmallFile::Whole(entry, content));
                }
            }
            Ok(SmallFile::Trouble(Op::Changed, CHANGED.into()))
        };
        read().unwrap_or_else(|e| {
            data.clear();
            SmallFile::Trouble(Op::Read, say(&e))
        })
    }

    fn inline(&self, data: &[u8]) -> Content {
        match data.len() {
            0 => Content::None,
            len => Content::Inline { len: len as u32, digest: self.hash.of(data) },
        }
    }

    fn large(&self, found: FoundEntry, have: Box<[u8]>, index: usize) -> Result<(), SenderGone> {
        let tree = match found.origin {
            Origin::Tree(tree) => tree,
            Origin::Synthetic(source, file) => {
                return self.share(LargeContent::Synthetic(source, file), found.entry, have, index);
            }
        };
        let service = self.service.begin();
        let opened = tree::open_file(&tree, &found.entry.path)
            .and_then(|file| file.recent_status().map(|status| (file, status)));
        self.service.end(service, 1);
        match opened {
            Ok((file, stat)) => self.begin(file, stat, found.entry, have, index),
            Err(e) => self.trouble(&found.entry, Op::Read, say(&e)),
        }
    }

    /// Starts an opened large file.
    fn begin(
        &self,
        file: File,
        status: Status,
        mut entry: Entry,
        have: Box<[u8]>,
        index: usize,
    ) -> Result<(), SenderGone> {
        // The receiver's blocks are of the version that the query named.
        let known = (entry.size, entry.mtime, entry.ctime);
        entry = tree::entry(&status, EntryKind::File, entry.path);
        let have = if known == (entry.size, entry.mtime, entry.ctime) { have } else { Box::default() };
        if self.xattrs {
            match tree::xattrs(&file) {
                Ok(xattrs) => entry.xattrs = xattrs,
                Err(e) => return self.trouble(&entry, Op::Read, say(&e)),
            }
        }
        self.share(LargeContent::File(file, status), entry, have, index)
    }

    /// Reads a large file together with other threads.
    fn share(
        &self,
        content: LargeContent,
        entry: Entry,
        have: Box<[u8]>,
        index: usize,
    ) -> Result<(), SenderGone> {
        // Counts blocked threads too: the gate may admit them later.
        let helpers = (self.threads - 1).min((entry.size / BLOCK as u64) as usize);
        let number = self.next.fetch_add(1, Relaxed);
        let large = Arc::new(LargeFile {
            content,
            outgoing: Arc::new(Outgoing { number, entry }),
            have,
            // Counts this thread, so that a file without blocks to send is closed too.
            state: Mutex::new(ReadState { busy: 1, ..ReadState::default() }),
        });
        for _ in 0..helpers {
            self.work.force(ReadWork::Help(Arc::clone(&large)), 0);
        }
        self.blocks(&large, index)?;
        self.leave(&large, false)
    }

    /// Reads blocks of a file until none is left, or the gate stops this thread.
    fn blocks(&self, large: &Arc<LargeFile>, index: usize) -> Result<(), SenderGone> {
        while let Some(offset) = large.claim() {
            let len = (large.outgoing.entry.size - offset).min(BLOCK as u64) as usize;
            let _share = self.budget.take(len);
            let mut data = self.pool.try_alloc(len).unwrap_or_else(|| BufMut::zeroed(len));
            data.truncate(len);
            let service = self.service.begin();
            let read = large.content.read(&mut data, offset);
            self.service.end(service, 1);
            match read {
                Ok(read) if read == len => {
                    self.stats.bytes.fetch_add(len as u64, Relaxed);
                    let digest = self.hash.of_block(&data, offset, large.outgoing.entry.size);
                    let (file, data) = (Arc::clone(&large.outgoing), data.freeze());
                    self.send(SenderItem::Block { file, offset, digest, data }, len)?;
                    self.leave(large, true)?;
                }
                Ok(_) => {
                    self.spoil(large, Op::Changed, CHANGED.into())?;
                }
                Err(e) => self.spoil(large, Op::Read, say(&e))?,
            }
            if index >= self.gate.active() {
                self.work.force(ReadWork::Help(Arc::clone(large)), 0);
                break;
            }
        }
        Ok(())
    }

    /// Fails a file: reading stops, and the receiver discards what was sent.
    fn spoil(&self, large: &Arc<LargeFile>, op: Op, message: String) -> Result<(), SenderGone> {
        let first = {
            let mut state = large.lock();
            state.exhausted = true;
            !std::mem::replace(&mut state.bad, true)
        };
        if first {
            self.trouble(&large.outgoing.entry, op, message)?;
        }
        self.leave(large, false)
    }

    /// Returns a claimed block, `sent` or not; the last one closes the file.
    fn leave(&self, large: &Arc<LargeFile>, sent: bool) -> Result<(), SenderGone> {
        let (blocks, bad) = {
            let mut state = large.lock();
            assert!(state.busy > 0, "a block was returned twice");
            state.busy -= 1;
            state.blocks += u32::from(sent);
            if state.busy > 0 || !large.is_exhausted(&mut state) {
                return Ok(());
            }
            (state.blocks, state.bad)
        };
        let changed = !bad && large.content.has_changed();
        if changed {
            self.trouble(&large.outgoing.entry, Op::Changed, CHANGED.into())?;
        }
        self.stats.files.fetch_add(1, Relaxed);
        let file = Arc::clone(&large.outgoing);
        self.send(SenderItem::Close { file, blocks, good: !bad && !changed }, 1)
    }
}

const CHANGED: &str = "it changed while it was read";
const HIDES_CONTENT: &str = "its size is reported as 0 but it has content, as files of /proc do: not copied";

impl LargeFile {
    fn lock(&self) -> std::sync::MutexGuard<'_, ReadState> {
        lock(&self.state)
    }

    /// Claims a block; returns its offset.
    fn claim(&self) -> Option<u64> {
        let mut state = self.lock();
        if self.is_exhausted(&mut state) {
            return None;
        }
        let offset = state.next;
        state.next = offset + BLOCK as u64;
        state.busy += 1;
        Some(offset)
    }

    /// Advances to the next block to send; returns true at the end of the file.
    fn is_exhausted(&self, state: &mut ReadState) -> bool {
        while !state.exhausted {
            if self.outgoing.entry.sparse
                && let LargeContent::File(file, _) = &self.content
            {
                match file.next_data(state.next) {
                    Ok(data) => state.next = state.next.max(data - data % BLOCK as u64),
                    Err(rustix::io::Errno::NXIO) => state.exhausted = true,
                    // Without SEEK_DATA support, holes are read as zeroes.
                    Err(_) => {}
                }
            }
            state.exhausted |= state.next >= self.outgoing.entry.size;
            let block = state.next / BLOCK as u64;
            let byte = usize::try_from(block / 8).ok().and_then(|at| self.have.get(at));
            if state.exhausted || byte.is_none_or(|byte| byte >> (block % 8) & 1 == 0) {
                break;
            }
            state.next += BLOCK as u64;
        }
        state.exhausted
    }
}

/// Whether a file is unchanged. `ctime` also reveals writes after which `mtime` was set
/// back.
fn is_same(before: &Status, after: &Status) -> bool {
    let key = |status: &Status| (status.size, status.modified, status.changed);
    key(before) == key(after)
}

/// Reads until `buf` is full or the file ends.
pub(crate) fn read_full(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
