//! Read-ahead and write-behind over a file system that is far away.
//!
//! - A file that is read in sequence is read ahead in cells of 1 MiB. The window grows each time that
//!   a reader has to wait, so it grows to what the path needs, and ends at the memory that is allowed.
//! - A write is acknowledged when it is in memory. Small writes that follow each other are sent as one.
//!   [`Call::Flush`] (close) and [`Call::Sync`] wait for all of them, and report the first error.
//!   Each handle has it until a [`Call::Sync`] or a write has reported it: a close does not count,
//!   since it may be that of a copied descriptor, also of those that a child has between fork and exec.
//! - Directories that a walk through a tree will list next are listed ahead.
//!
//! Invariants:
//! - a call that could see or overtake a write that is not answered yet waits for it: calls of one
//!   file appear to be executed in the order in which they were made;
//! - what was read ahead of a file is dropped at each change of it through this cache; changes by other
//!   clients are seen by files that are opened later (close-to-open consistency);
//! - neither `below` nor a `done` is called while the state is locked.

mod ahead;
mod behind;
mod listings;
mod locks;

use crate::call::{Call, DATA_MAX, Handle, Node, Reply};
use crate::{Caller, Done, FileSystem, Locks};
use ahead::Ahead;
use behind::Behind;
use listings::WalkListings;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of a cache, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct CachedOptions {
    /// What is read ahead, of all files together.
    pub read_ahead: usize,
    /// Writes that are acknowledged and not answered, of all files together.
    pub write_behind: usize,
    /// The file system below keeps writes that it has answered until a [`Call::Flush`], which it gets.
    pub flushes: bool,
}

impl Default for CachedOptions {
    /// 64 MiB each: 5 Gb/s at 100 ms.
    fn default() -> CachedOptions {
        CachedOptions { read_ahead: 64 << 20, write_behind: 64 << 20, flushes: false }
    }
}

/// A file system with read-ahead and write-behind.
pub struct Cached {
    shared: Arc<Shared>,
}

struct Shared {
    below: Arc<dyn FileSystem>,
    options: CachedOptions,
    state: Mutex<CacheState>,
}

#[derive(Default)]
struct CacheState {
    open: HashMap<Handle, Open>,
    behind: HashMap<Node, Behind>,
    /// Bytes of cells.
    ahead_bytes: usize,
    /// Bytes of writes that are not answered.
    behind_bytes: usize,
    /// Writes that are acknowledged when there is room, with their lengths.
    room: VecDeque<(Done, u32)>,
    listings: WalkListings,
    /// Counts reads, to find the file that was read longest ago.
    clock: u64,
}

/// An open file.
struct Open {
    node: Node,
    appends: bool,
    /// The error of a write, which the next call reports.
    error: Option<Errno>,
    ahead: Ahead,
}

/// What is done once the state is unlocked.
enum CacheStep {
    Start(Call, Done),
    StartFor(Caller, Call, Done),
    Finish(Done, Result<Reply, Errno>),
}

impl Cached {
    /// A cache over `below`, all of whose calls have to come through it.
    pub fn new(below: Arc<dyn FileSystem>, options: CachedOptions) -> Cached {
        Cached { shared: Arc::new(Shared { below, options, state: Mutex::default() }) }
    }
}

impl FileSystem for Cached {
    fn start(&self, call: Call, done: Done) {
        self.shared.start(call, done);
    }

    fn start_for(&self, caller: Caller, call: Call, done: Done) {
        self.shared.start_for(caller, call, done);
    }

    fn refuses_xattr(&self, name: &[u8]) -> bool {
        self.shared.below.refuses_xattr(name)
    }

    fn locks(&self) -> Option<Arc<dyn Locks>> {
        let below = self.shared.below.locks()?;
        Some(Arc::new(locks::CachedLocks { shared: Arc::clone(&self.shared), below }))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, steps: Vec<CacheStep>) {
        for step in steps {
            match step {
                CacheStep::Start(call, done) => self.below.start(call, done),
                CacheStep::StartFor(caller, call, done) => self.below.start_for(caller, call, done),
                CacheStep::Finish(done, result) => done(result),
            }
        }
    }

    fn start(self: &Arc<Self>, call: Call, done: Done) {
        let mut steps = Vec::new();
        let mut state = self.lock();
        match state.file_of(&call) {
            // It waits for writes before it.
            Some(node) if state.must_wait(node, &call) => {
                if let Some(behind) = state.behind.get_mut(&node) {
                    behind.after.push_back((call, done));
                }
                self.pump(&mut state, node, &mut steps);
            }
            _ => self.begin(&mut state, call, done, &mut steps),
        }
        drop(state);
        self.run(steps);
    }

    /// As [`start`](Self::start). The caller owns the object that a call makes; such a call waits for no write.
    fn start_for(self: &Arc<Self>, caller: Caller, call: Call, done: Done) {
        if !call.makes_object() {
            return self.start(call, done);
        }
        let (mut steps, mut state) = (Vec::new(), self.lock());
        self.begin(&mut state, call, done, &mut steps);
        drop(state);
        let by_caller = |step| match step {
            CacheStep::Start(call, done) if call.makes_object() => CacheStep::StartFor(caller, call, done),
            step => step,
        };
        self.run(steps.into_iter().map(by_caller).collect());
    }

    /// Executes a call that nothing has to be waited for.
    fn begin(self: &Arc<Self>, state: &mut CacheState, call: Call, done: Done, steps: &mut Vec<CacheStep>) {
        let done = match &call {
            // Sizes of files that are being written are known here.
            Call::Write { .. } => {
                state.drop_listings(steps);
                done
            }
            call if call.is_change() => {
                state.drop_listings(steps);
                self.changes(done)
            }
            _ => done,
        };
        match call {
            Call::Read { handle, offset, len } => self.read(state, (handle, offset, len), done, steps),
            Call::Write { handle, offset, data } => self.write(state, handle, offset, data, done, steps),
            Call::Flush { handle } => match state.open.get(&handle).and_then(|open| open.error) {
                Some(error) => steps.push(CacheStep::Finish(done, Err(error))),
                None if self.options.flushes => steps.push(CacheStep::Start(call, done)),
                None => steps.push(CacheStep::Finish(done, Ok(Reply::Done))),
            },
            Call::Sync { handle, .. } => {
                match state.open.get_mut(&handle).and_then(|open| open.error.take()) {
                    Some(error) => steps.push(CacheStep::Finish(done, Err(error))),
                    None => steps.push(CacheStep::Start(call, done)),
                }
            }
            Call::Close { handle } => {
                state.close(handle, steps);
                // Nothing depends on the answer.
                steps.push(CacheStep::Start(call, Box::new(|_| {})));
                steps.push(CacheStep::Finish(done, Ok(Reply::Done)));
            }
            Call::Open { flags, .. } => {
                let appends = OFlags::from_bits_retain(flags).contains(OFlags::APPEND);
                steps.push(CacheStep::Start(call, self.opens(appends, self.sized(done))));
            }
            Call::Create { flags, .. } => {
                let appends = OFlags::from_bits_retain(flags).contains(OFlags::APPEND);
                steps.push(CacheStep::Start(call, self.opens(appends, done)));
            }
            Call::Change { node, changes, .. } => {
                if changes.size.is_some() {
                    state.drop_ahead(node, steps);
                    if let Some(behind) = state.behind.get_mut(&node) {
                        behind.end = 0;
                    }
                }
                steps.push(CacheStep::Start(call, self.sized(done)));
            }
            Call::Allocate { handle, .. } => {
                if let Some(node) = state.open.get(&handle).map(|open| open.node) {
                    state.drop_ahead(node, steps);
                }
                steps.push(CacheStep::Start(call, done));
            }
            Call::ReadDirectory { node, stream, after } => {
                self.list(state, (node, stream, after), done, steps);
            }
            Call::Lookup { .. } | Call::Attributes { .. } | Call::Link { .. } => {
                steps.push(CacheStep::Start(call, self.sized(done)));
            }
            call => steps.push(CacheStep::Start(call, done)),
        }
    }

    /// Remembers the handle of a file that is opened.
    fn opens(self: &Arc<Self>, appends: bool, done: Done) -> Done {
        let shared = Arc::clone(self);
        Box::new(move |result| {
            let opened = match &result {
                Ok(Reply::Opened(attributes, handle) | Reply::Created(attributes, handle)) => {
                    Some((*handle, attributes.node))
                }
                _ => None,
            };
            if let Some((handle, node)) = opened {
                let open = Open { node, appends, error: None, ahead: Ahead::default() };
                shared.lock().open.insert(handle, open);
            }
            done(result);
        })
    }

    /// Listings that were requested while the change was under way may be older or newer than it.
    fn changes(self: &Arc<Self>, done: Done) -> Done {
        let shared = Arc::clone(self);
        Box::new(move |result| {
            let mut steps = Vec::new();
            shared.lock().drop_listings(&mut steps);
            done(result);
            shared.run(steps);
        })
    }

    /// Attributes of files that are being written have at least the size that was acknowledged, also if
    /// the server executes the write later.
    fn sized(self: &Arc<Self>, done: Done) -> Done {
        let shared = Arc::clone(self);
        Box::new(move |mut result| {
            let state = shared.lock();
            if !state.behind.is_empty() {
                let end = |node: &Node| state.behind.get(node).map_or(0, |behind| behind.end);
                match &mut result {
                    Ok(
                        Reply::Entry(attributes)
                        | Reply::Attributes(attributes)
                        | Reply::Opened(attributes, _),
                    ) => {
                        attributes.size = attributes.size.max(end(&attributes.node));
                    }
                    Ok(Reply::Listing(entries, _)) => {
                        for entry in entries {
                            entry.attributes.size = entry.attributes.size.max(end(&entry.attributes.node));
                        }
                    }
                    _ => {}
                }
            }
            drop(state);
            done(result);
        })
    }
}

impl CacheState {
    /// The file that a call is about, if its writes concern it.
    fn file_of(&self, call: &Call) -> Option<Node> {
        let of = |handle: &Handle| self.open.get(handle).map(|open| open.node);
        match call {
            Call::Read { handle, .. }
            | Call::Write { handle, .. }
            | Call::Flush { handle }
            | Call::Sync { handle, .. }
            | Call::Close { handle }
            | Call::Allocate { handle, .. }
            | Call::Seek { handle, .. } => of(handle),
            Call::Attributes { node, .. } | Call::Change { node, .. } => Some(*node),
            _ => None,
        }
    }

    /// Whether a call has to wait for earlier ones of its file.
    fn must_wait(&self, node: Node, call: &Call) -> bool {
        let Some(behind) = self.behind.get(&node) else { return false };
        match call {
            Call::Write { handle, offset, data } => {
                let appends = self.open.get(handle).is_some_and(|open| open.appends);
                !behind.after.is_empty() || behind.conflicts(*offset, data.len() as u64, appends)
            }
            _ => !behind.is_drained(),
        }
    }

    /// Forgets a file that is closed.
    fn close(&mut self, handle: Handle, steps: &mut Vec<CacheStep>) {
        let Some(mut open) = self.open.remove(&handle) else { return };
        self.ahead_bytes -= open.ahead.clear();
        for wait in open.ahead.waiting.drain(..) {
            steps.push(CacheStep::Finish(wait.done, Err(Errno::BADF)));
        }
        if !self.open.values().any(|other| other.node == open.node)
            && self.behind.get(&open.node).is_some_and(Behind::is_drained)
        {
            self.behind.remove(&open.node);
        }
    }

    /// Drops what was read ahead of a file. Reads that wait for it are made again.
    fn drop_ahead(&mut self, node: Node, steps: &mut Vec<CacheStep>) {
        for (handle, open) in self.open.iter_mut().filter(|(_, open)| open.node == node) {
            self.ahead_bytes -= open.ahead.clear();
            for wait in open.ahead.waiting.drain(..) {
                let read = Call::Read { handle: *handle, offset: wait.offset, len: wait.len };
                steps.push(CacheStep::Start(read, wait.done));
            }
        }
    }
}

/// Bytes of a cell: of one call below.
const CELL: u64 = DATA_MAX as u64;

#[cfg(test)]
mod tests;
