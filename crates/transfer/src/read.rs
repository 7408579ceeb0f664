//! Reading: small files into batches, large ones in blocks by several threads.
//!
//! Invariants:
//! - a block of a large file is claimed once; the thread that returns the last
//!   one closes the file, after it has looked whether the file is still what it
//!   was when it was opened;
//! - a small file is sent only if it did not change while it was read.
//!
//! Threads take blocks of the file at hand and then the next file, so the first
//! blocks of the next files are read while those of the present one wait to be
//! sent: the queue behind is what bounds it.

use crate::ask::Asker;
use crate::gate::Gate;
use crate::made::Made;
use crate::queue::Queue;
use crate::scan::{Found, Origin};
use crate::session::{Item, Outgoing};
use crate::tree::{self, say};
use crate::wire::{BLOCK, Batch, Content, Entry, Hash, Kind, Op, SMALL, Trouble, Xattr};
use longhaul_engine::{BufMut, BufPool};
use rustix::fs::{SeekFrom, Stat};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// How often a small file that changes is read again.
const ATTEMPTS: usize = 3;

/// Something to read.
#[derive(Debug)]
pub(crate) enum Work {
    /// An object, and the blocks of it that need not be sent, a bit each.
    Found(Found, Box<[u8]>),
    /// A file that another thread has begun with.
    Help(Arc<Large>),
    /// A file to be asked about, once it is known what of.
    Ask(Found),
}

impl Work {
    fn is_small(&self) -> bool {
        matches!(self, Work::Found(found, _) if found.entry.size <= SMALL)
    }
}

/// A large file that is being read.
#[derive(Debug)]
pub(crate) struct Large {
    content: Readable,
    outgoing: Arc<Outgoing>,
    have: Box<[u8]>,
    state: Mutex<State>,
}

/// Where the content of a large file is.
#[derive(Debug)]
enum Readable {
    /// In a file that was like this when it was opened.
    File(File, Stat),
    Made(Arc<Made>, usize),
}

impl Readable {
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Readable::File(file, _) => read_full(file, buf, offset),
            Readable::Made(made, index) => Ok(made.read(*index, buf, offset)),
        }
    }

    /// Whether it may not be what was read.
    fn has_changed(&self) -> bool {
        match self {
            Readable::File(file, before) => !rustix::fs::fstat(file).is_ok_and(|now| is_same(before, &now)),
            Readable::Made(..) => false,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// Where the next block begins.
    next: u64,
    /// Blocks claimed and not yet handed over, and a share of who began.
    busy: usize,
    exhausted: bool,
    blocks: u32,
    bad: bool,
}

/// What the threads share.
pub(crate) struct Reader {
    pub(crate) work: Arc<Queue<Work>>,
    pub(crate) asker: Option<Arc<Asker>>,
    pub(crate) items: Arc<Queue<Item>>,
    pub(crate) pool: BufPool,
    pub(crate) hash: Hash,
    pub(crate) xattrs: bool,
    /// How many threads there are, and which of them work.
    pub(crate) threads: usize,
    pub(crate) gate: Arc<Gate>,
    pub(crate) next: AtomicU64,
    pub(crate) stats: Arc<ReadStats>,
}

/// What was read so far.
#[derive(Debug, Default)]
pub(crate) struct ReadStats {
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// A small file as it was read.
enum Small {
    Whole(Entry, Content),
    Large(File, Stat),
    Trouble(Op, String),
}

/// The other end has gone.
struct Gone;

impl Reader {
    /// What thread `index` does, until there is no more work.
    pub(crate) fn run(&self, index: usize) {
        self.gate.pass(index);
        while let Some(work) = self.work.pop() {
            let done = match work {
                work if work.is_small() => self.batch(work, index),
                Work::Found(found, have) => self.large(found, have, index),
                Work::Help(large) => self.blocks(&large, index),
                Work::Ask(found) => self.ask(found),
            };
            if done.is_err() {
                // Nobody wants more.
                self.work.abort();
            }
            self.gate.pass(index);
        }
        // The others are to see that there is no more, too.
        self.gate.open();
    }

    fn send(&self, item: Item, weight: usize) -> Result<(), Gone> {
        self.items.push(item, weight).map_err(|_| Gone)
    }

    fn trouble(&self, entry: &Entry, op: Op, message: String) -> Result<(), Gone> {
        self.send(Item::Trouble(Trouble { path: entry.path.clone(), op, message }), 1)
    }

    /// Reads what a question about a file says of it.
    fn ask(&self, mut found: Found) -> Result<(), Gone> {
        let Some(asker) = &self.asker else { return Ok(()) };
        let read = || -> io::Result<(Vec<Xattr>, Content)> {
            let digest = asker.checksum.map(|hash| found.digest(hash)).transpose()?;
            if digest.is_some() {
                self.stats.bytes.fetch_add(found.entry.size, Relaxed);
            }
            Ok((if self.xattrs { found.xattrs()? } else { Vec::new() }, Content::Asked(digest)))
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
        asker.read(about).map_err(|_| Gone)
    }

    /// Reads small files, as many as there are now and one frame takes.
    fn batch(&self, first: Work, index: usize) -> Result<(), Gone> {
        let (mut batch, mut data) = (Batch::default(), Vec::new());
        let mut next = Some(first);
        while let Some(Work::Found(found, have)) = next {
            match self.small(&found, &mut data) {
                Small::Whole(entry, content) => {
                    self.stats.files.fetch_add(u64::from(entry.kind == Kind::File), Relaxed);
                    self.stats.bytes.fetch_add(data.len() as u64, Relaxed);
                    batch.push(&entry, &content, &data);
                }
                Small::Large(file, stat) => self.begin(file, stat, found.entry, have, index)?,
                Small::Trouble(op, message) => self.trouble(&found.entry, op, message)?,
            }
            next = if batch.is_full() { None } else { self.work.try_pop_if(Work::is_small) };
        }
        if batch.is_empty() {
            return Ok(());
        }
        let body = batch.into_body();
        let weight = body.len();
        self.send(Item::Batch(body), weight)
    }

    /// Reads an object that goes into a batch; its content into `data`.
    fn small(&self, found: &Found, data: &mut Vec<u8>) -> Small {
        data.clear();
        let mut entry = found.entry.clone();
        if !matches!(entry.kind, Kind::File | Kind::Directory)
            || entry.kind == Kind::Directory && !self.xattrs
        {
            return Small::Whole(entry, Content::None);
        }
        let read = || -> io::Result<Small> {
            let tree = match &found.origin {
                Origin::Tree(tree) => tree,
                Origin::Made(..) if entry.kind == Kind::Directory => {
                    return Ok(Small::Whole(entry, Content::None));
                }
                Origin::Made(made, index) => {
                    data.resize(entry.size as usize, 0);
                    made.read(*index, data, 0);
                    let content = self.inline(data);
                    return Ok(Small::Whole(entry, content));
                }
            };
            if entry.kind == Kind::Directory {
                let directory = tree.directory(entry.path.as_bytes())?;
                entry.xattrs = tree::xattrs(tree::readable(directory.as_fd())?.as_fd())?;
                return Ok(Small::Whole(entry, Content::None));
            }
            let file = tree::open_file(tree, &entry.path)?;
            for _ in 0..ATTEMPTS {
                let before = rustix::fs::fstat(&file)?;
                if before.st_size as u64 > SMALL {
                    return Ok(Small::Large(file, before));
                }
                data.resize(before.st_size as usize, 0);
                let len = read_full(&file, data, 0)?;
                let untold = data.is_empty() && read_full(&file, &mut [0], 0)? > 0;
                if len == data.len() && is_same(&before, &rustix::fs::fstat(&file)?) {
                    if untold {
                        return Ok(Small::Trouble(Op::Read, UNTOLD.into()));
                    }
                    entry = tree::entry(&before, Kind::File, entry.path);
                    if self.xattrs {
                        entry.xattrs = tree::xattrs(file.as_fd())?;
                    }
                    let content = self.inline(data);
                    return Ok(Small::Whole(entry, content));
                }
            }
            Ok(Small::Trouble(Op::Changed, CHANGED.into()))
        };
        read().unwrap_or_else(|e| {
            data.clear();
            Small::Trouble(Op::Read, say(&e))
        })
    }

    fn inline(&self, data: &[u8]) -> Content {
        match data.len() {
            0 => Content::None,
            len => Content::Inline { len: len as u32, digest: self.hash.of(data) },
        }
    }

    fn large(&self, found: Found, have: Box<[u8]>, index: usize) -> Result<(), Gone> {
        let tree = match found.origin {
            Origin::Tree(tree) => tree,
            Origin::Made(made, file) => {
                return self.share(Readable::Made(made, file), found.entry, have, index);
            }
        };
        let opened = tree::open_file(&tree, &found.entry.path)
            .and_then(|file| rustix::fs::fstat(&file).map(|stat| (file, stat)).map_err(Into::into));
        match opened {
            Ok((file, stat)) => self.begin(file, stat, found.entry, have, index),
            Err(e) => self.trouble(&found.entry, Op::Read, say(&e)),
        }
    }

    /// Begins with a large file.
    fn begin(
        &self,
        file: File,
        stat: Stat,
        mut entry: Entry,
        have: Box<[u8]>,
        index: usize,
    ) -> Result<(), Gone> {
        // What the other side has is of the file as it was when it was asked.
        let known = (entry.size, entry.mtime, entry.ctime);
        entry = tree::entry(&stat, Kind::File, entry.path);
        let have = if known == (entry.size, entry.mtime, entry.ctime) { have } else { Box::default() };
        if self.xattrs {
            match tree::xattrs(file.as_fd()) {
                Ok(xattrs) => entry.xattrs = xattrs,
                Err(e) => return self.trouble(&entry, Op::Read, say(&e)),
            }
        }
        self.share(Readable::File(file, stat), entry, have, index)
    }

    /// Reads a large file, and calls others to help.
    fn share(&self, content: Readable, entry: Entry, have: Box<[u8]>, index: usize) -> Result<(), Gone> {
        // Those that do not work now may later.
        let helpers = (self.threads - 1).min((entry.size / BLOCK as u64) as usize);
        let number = self.next.fetch_add(1, Relaxed);
        let large = Arc::new(Large {
            content,
            outgoing: Arc::new(Outgoing { number, entry }),
            have,
            // This thread's own share, so that a file of which nothing is sent is
            // closed as well.
            state: Mutex::new(State { busy: 1, ..State::default() }),
        });
        for _ in 0..helpers {
            self.work.force(Work::Help(Arc::clone(&large)), 0);
        }
        self.blocks(&large, index)?;
        self.leave(&large, false)
    }

    /// Reads blocks of a file until none is left, or this thread is not to work.
    fn blocks(&self, large: &Arc<Large>, index: usize) -> Result<(), Gone> {
        while let Some(offset) = large.claim() {
            let len = (large.outgoing.entry.size - offset).min(BLOCK as u64) as usize;
            let mut data = self.pool.try_alloc(len).unwrap_or_else(|| BufMut::zeroed(len));
            data.truncate(len);
            match large.content.read(&mut data, offset) {
                Ok(read) if read == len => {
                    self.stats.bytes.fetch_add(len as u64, Relaxed);
                    let digest = self.hash.of_block(&data, offset, large.outgoing.entry.size);
                    let (file, data) = (Arc::clone(&large.outgoing), data.freeze());
                    self.send(Item::Block { file, offset, digest, data }, len)?;
                    self.leave(large, true)?;
                }
                Ok(_) => {
                    self.spoil(large, Op::Changed, CHANGED.into())?;
                }
                Err(e) => self.spoil(large, Op::Read, say(&e))?,
            }
            if index >= self.gate.active() {
                self.work.force(Work::Help(Arc::clone(large)), 0);
                break;
            }
        }
        Ok(())
    }

    /// Gives a file up: no more of it is read, and what was sent is of no use.
    fn spoil(&self, large: &Arc<Large>, op: Op, message: String) -> Result<(), Gone> {
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

    /// A claimed block was handed over, or not; the last one closes the file.
    fn leave(&self, large: &Arc<Large>, sent: bool) -> Result<(), Gone> {
        let (blocks, bad) = {
            let mut state = large.lock();
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
        self.send(Item::Close { file, blocks, good: !bad && !changed }, 1)
    }
}

const CHANGED: &str = "it changed while it was read";
const UNTOLD: &str = "it says that it is empty, and is not, as files of /proc do: its content is not copied";

impl Large {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a block: where it begins.
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

    /// Goes on to the next block that is to be sent; whether there is none.
    fn is_exhausted(&self, state: &mut State) -> bool {
        while !state.exhausted {
            if self.outgoing.entry.sparse
                && let Readable::File(file, _) = &self.content
            {
                match rustix::fs::seek(file, SeekFrom::Data(state.next)) {
                    Ok(data) => state.next = state.next.max(data - data % BLOCK as u64),
                    Err(rustix::io::Errno::NXIO) => state.exhausted = true,
                    // Not every file system knows of holes.
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

/// Whether a file is as it was: `ctime` also tells of writes that set `mtime`
/// back.
fn is_same(before: &Stat, after: &Stat) -> bool {
    let key = |s: &Stat| (s.st_size, s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec);
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
