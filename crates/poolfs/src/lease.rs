//! Leases on directories: what is made in one is acknowledged from memory.
//!
//! While a session has the lease of a directory, which is a key under the lease of the session, no other host
//! changes the directory or looks into it before it has asked for the lease back. So names and files that are
//! made there are acknowledged at once, and a thread writes them to the catalog later, many in a transaction, in
//! the order in which they were made (`write`).
//!
//! Invariants:
//! - what is `new` was made in a directory while its lease was had, and it is still had: no other host knows it;
//! - a directory that is `new` is `held`;
//! - what was written to the catalog is what was made first, and directories there count what they have there;
//! - a lease is given back when nothing in its directory waits to be written, and by a transaction that expects the key
//!   as this session has put it: one whose answer is lost, or that is made later, is not to end the lease of the next
//!   session;
//! - an operation that is not made in memory has its directories for itself: they are `busy`.
//!
//! Locks are taken in this order: the state of the leases, the nodes, the state of a node, the handles.

mod made;
mod recall;
mod write;

use crate::schema::{EntryRecord, InodeRecord};
use crate::session::FsSession;
use crate::store::lock;
use longhaul_catalog::Revision;
use longhaul_fs::Errno;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Objects that wait to be written, after which the next one waits.
const WAITING_MAX: usize = 16 << 10;
/// Most directories for each of which lost content is recorded.
const LOST_MAX: usize = 4096;
/// How often it is looked whether the session has ended meanwhile, and whether something is due.
const LOOK: Duration = Duration::from_millis(250);

/// What a call does that cannot be answered from memory yet: [`Waits`] or [`AtOnce`].
pub(crate) trait Patience: Copy {
    /// How such a call fails.
    type Error: From<Errno>;

    /// Something has to be waited for.
    ///
    /// # Errors
    /// [`AtOnceError::WouldWait`] of a call that does not wait.
    fn wait(self) -> Result<(), Self::Error>;
}

/// The call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits;

impl Patience for Waits {
    type Error = Errno;

    fn wait(self) -> Result<(), Errno> {
        Ok(())
    }
}

/// The call fails if it would have to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtOnce;

impl Patience for AtOnce {
    type Error = AtOnceError;

    fn wait(self) -> Result<(), AtOnceError> {
        Err(AtOnceError::WouldWait)
    }
}

/// Why a call was not carried out at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtOnceError {
    /// It would have to wait: it has changed nothing, and one that waits may succeed.
    WouldWait,
    /// It fails, as one that waits would.
    Failed(Errno),
}

impl From<Errno> for AtOnceError {
    fn from(e: Errno) -> AtOnceError {
        AtOnceError::Failed(e)
    }
}

/// A directory whose lease this session has.
pub(super) struct HeldDirectory {
    /// All of its names.
    names: HashMap<Vec<u8>, EntryRecord>,
    /// As programs of this host see it.
    record: InodeRecord,
    /// Entries and links that it has in the catalog.
    counted: (u64, u32),
    /// Place in the order of the last change that waits, or waited.
    order: u64,
    /// Sessions that have asked for the lease.
    wanted: BTreeSet<u64>,
    used: Instant,
    /// The revision that its key was put at; `None` if that is to be read.
    put_at: Option<Revision>,
}

impl HeldDirectory {
    fn new(record: InodeRecord, names: HashMap<Vec<u8>, EntryRecord>) -> HeldDirectory {
        HeldDirectory {
            put_at: None,
            names,
            counted: (record.entries, record.links),
            record,
            order: 0,
            wanted: BTreeSet::new(),
            used: longhaul_engine::now(),
        }
    }
}

/// An object that was made under the lease of its directory.
struct NewObject {
    directory: u64,
    name: Vec<u8>,
    /// As programs of this host see it; of a directory, that is in [`HeldDirectory`].
    record: InodeRecord,
    /// Place in the order of its last change.
    order: u64,
    /// The name that it has in the catalog, or will have when what is under way is there.
    written: Option<(u64, Vec<u8>)>,
    /// Content that is in memory is to be written: it was closed.
    is_closed: bool,
    /// Content of it is being written.
    is_under_way: bool,
}

#[derive(Default)]
struct LeaseState {
    held: HashMap<u64, HeldDirectory>,
    new: HashMap<u64, NewObject>,
    /// Places in the order, and objects; of an object that has a later place this one is void.
    queue: VecDeque<(u64, u64)>,
    /// The last place that was given out, that is being written, and that is written.
    last: u64,
    taken: u64,
    done: u64,
    /// When the first one that waits came.
    oldest: Option<Instant>,
    /// Something waits for all to be written.
    is_urgent: bool,
    busy: HashSet<u64>,
    /// Directories in which content of a file was lost: the next one to ask whether all is durable hears of it,
    /// also when the lease was given back meanwhile. At most [`LOST_MAX`].
    lost: HashMap<u64, Errno>,
    /// How often content was lost anywhere, why it was the last time, and of how many times the next one that asks
    /// for all directories need not hear.
    losses: (u64, Option<Errno>),
    heard: u64,
    /// Sessions that ask for leases which are being taken.
    early: HashMap<u64, BTreeSet<u64>>,
    /// When something was made last in directories without a lease.
    made: HashMap<u64, Instant>,
    /// Directories that others use too: until when no lease of them is taken, and for how long the next time.
    shunned: HashMap<u64, (Instant, Duration)>,
    ends: bool,
}

impl LeaseState {
    /// Content of a file in a directory was lost.
    fn lose(&mut self, directory: u64, e: Errno) {
        self.losses = (self.losses.0 + 1, Some(e));
        if self.lost.len() < LOST_MAX || self.lost.contains_key(&directory) {
            self.lost.insert(directory, e);
        }
    }

    /// Why content of a file in a directory was lost, or of one anywhere for the top directory, if none that asked
    /// for that directory before has heard of it.
    fn hear(&mut self, directory: u64) -> Option<Errno> {
        let here = self.lost.remove(&directory);
        if directory != crate::session::ROOT {
            return here;
        }
        let is_new = std::mem::replace(&mut self.heard, self.losses.0) < self.losses.0;
        if is_new { self.losses.1 } else { None }
    }

    /// A change of an object is to be written.
    fn enqueue(&mut self, number: u64) {
        let Some(object) = self.new.get_mut(&number) else { return };
        if object.order <= self.taken || object.order == 0 {
            self.last += 1;
            object.order = self.last;
            self.queue.push_back((self.last, number));
        }
        let (order, directory) = (object.order, object.directory);
        if let Some(directory) = self.held.get_mut(&directory) {
            directory.order = directory.order.max(order);
        }
        self.oldest.get_or_insert_with(longhaul_engine::now);
    }

    /// Place in the order of the last change of an object, or in a directory.
    fn order_of(&self, number: u64) -> u64 {
        let new = self.new.get(&number).map_or(0, |object| object.order);
        new.max(self.held.get(&number).map_or(0, |held| held.order))
    }

    /// An object as programs of this host see it, if that is known without the catalog.
    fn seen(&self, number: u64) -> Option<&InodeRecord> {
        match (self.held.get(&number), self.new.get(&number)) {
            (Some(held), Some(_)) => Some(&held.record),
            (Some(held), None) => (held.order > self.done).then_some(&held.record),
            (None, new) => new.map(|object| &object.record),
        }
    }

    fn seen_mut(&mut self, number: u64) -> Option<&mut InodeRecord> {
        match self.held.get_mut(&number) {
            Some(held) => Some(&mut held.record),
            None => self.new.get_mut(&number).map(|object| &mut object.record),
        }
    }
}

/// See the module.
pub(crate) struct Leases {
    state: Mutex<LeaseState>,
    changed: Condvar,
    /// This session takes leases.
    takes: bool,
    /// How long an operation waits for a catalog that is away.
    patience: Duration,
}

impl Leases {
    pub(crate) fn new(takes: bool, patience: Duration) -> Leases {
        Leases { state: Mutex::default(), changed: Condvar::new(), takes, patience }
    }

    pub(crate) fn takes(&self) -> bool {
        self.takes
    }

    fn lock(&self) -> MutexGuard<'_, LeaseState> {
        lock(&self.state)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, LeaseState>) -> MutexGuard<'s, LeaseState> {
        self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Something was made that is to be written: the thread that writes is woken if that is due, and looks for
    /// itself otherwise.
    fn made(&self, state: MutexGuard<'_, LeaseState>) {
        let is_due = state.is_urgent || state.queue.len() >= write::MANY;
        drop(state);
        if is_due {
            self.changed.notify_all();
        }
    }

    /// The thread that writes ends.
    pub(crate) fn end(&self) {
        self.lock().ends = true;
        self.changed.notify_all();
    }

    /// Directories whose lease this session has.
    pub(crate) fn held(&self) -> usize {
        self.lock().held.len()
    }

    /// Whether this session has the lease of a directory.
    pub(crate) fn holds(&self, directory: u64) -> bool {
        self.takes && self.lock().held.contains_key(&directory)
    }
}

/// Directories that an operation has for itself.
pub(crate) struct Exclusive<'s> {
    session: &'s FsSession,
    directories: Vec<u64>,
}

impl Exclusive<'_> {
    /// A directory has got a name, or lost it.
    pub(crate) fn named(&self, directory: u64, name: &[u8], entry: Option<EntryRecord>) {
        let mut state = self.session.leases.lock();
        let Some(held) = state.held.get_mut(&directory) else { return };
        match entry {
            Some(entry) => held.names.insert(name.to_vec(), entry),
            None => held.names.remove(name),
        };
    }

    /// A directory was made: its lease was taken with it.
    pub(crate) fn made(&self, number: u64, record: &InodeRecord) {
        let mut state = self.session.leases.lock();
        state.held.insert(number, HeldDirectory::new(record.clone(), HashMap::new()));
    }

    /// A directory was removed.
    pub(crate) fn removed(&self, number: u64) {
        let mut state = self.session.leases.lock();
        state.held.remove(&number);
        state.new.remove(&number);
    }

    pub(crate) fn has(&self, directory: u64) -> bool {
        self.directories.contains(&directory)
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        if !self.session.leases.takes {
            return;
        }
        let mut state = self.session.leases.lock();
        for directory in &self.directories {
            state.busy.remove(directory);
            let Some(held) = state.held.get_mut(directory) else { continue };
            match self.session.store.remembered(*directory) {
                Some(record) => (held.counted, held.record) = ((record.entries, record.links), record),
                // It is read anew.
                None => drop(held.wanted.insert(0)),
            }
        }
        self.session.leases.changed.notify_all();
    }
}

impl FsSession {
    /// Waits until an operation has these directories for itself, and what was made in memory is in the
    /// catalog; `objects` and what the names stand for are not new any more.
    fn begin_exclusive(
        &self,
        directories: &[u64],
        names: &[(u64, &[u8])],
        objects: &[u64],
    ) -> Result<Exclusive<'_>, Errno> {
        let exclusive = |directories| Exclusive { session: self, directories };
        if !self.leases.takes {
            return Ok(exclusive(Vec::new()));
        }
        let mut state = self.leases.lock();
        while directories.iter().any(|directory| state.busy.contains(directory)) {
            if self.store.has_ended() {
                return Err(Errno::IO);
            }
            state = self.leases.wait(state);
        }
        state.busy.extend(directories);
        drop(state);
        // From here on they are given back by its drop.
        let exclusive = exclusive(directories.to_vec());
        self.write_out()?;
        directories.iter().chain(objects).try_for_each(|number| self.settle(*number))?;
        let mut state = self.leases.lock();
        let named: Vec<u64> = names
            .iter()
            .filter_map(|(directory, name)| Some(state.held.get(directory)?.names.get(*name)?.inode))
            .collect();
        for number in named {
            state.new.remove(&number);
        }
        Ok(exclusive)
    }

    /// An operation in the catalog that changes these directories, which it has for itself. It is made again
    /// each time that another host has the lease of one of those that `concerns` finds, after that was given
    /// back.
    pub(crate) fn exclusively<T>(
        &self,
        names: &[(u64, &[u8])],
        objects: &[u64],
        concerns: impl Fn() -> Result<Vec<u64>, Errno>,
        mut operation: impl FnMut(&Exclusive<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            let mut directories: Vec<u64> = match self.leases.takes {
                true => concerns()?,
                false => Vec::new(),
            };
            directories.sort_unstable();
            directories.dedup();
            let exclusive = self.begin_exclusive(&directories, names, objects)?;
            let result = operation(&exclusive);
            if result.as_ref().err() == Some(&Errno::IO) {
                // It is not known what was made of it: the directories are read anew.
                let mut state = self.leases.lock();
                for directory in &directories {
                    if let Some(held) = state.held.get_mut(directory) {
                        held.wanted.insert(0);
                    }
                }
            }
            drop(exclusive);
            match result {
                Err(Errno::AGAIN) => concerns()?.into_iter().try_for_each(|number| self.recall(number))?,
                result => return result,
            }
        }
    }

    /// Waits until all that was made in memory is in the catalog.
    pub(crate) fn write_out(&self) -> Result<(), Errno> {
        if !self.leases.takes {
            return Ok(());
        }
        let mut state = self.leases.lock();
        let (all, begun) = (state.last, longhaul_engine::now());
        loop {
            // What waited then is lost, and does not wait any more.
            if self.store.has_ended() {
                return Err(Errno::IO);
            }
            if state.done >= all {
                return Ok(());
            }
            if state.ends {
                return Err(Errno::IO);
            }
            if begun.elapsed() > self.leases.patience {
                tracing::error!(
                    "the catalog does not answer: {} new files and names are in memory yet",
                    state.queue.len()
                );
                return Err(Errno::IO);
            }
            state.is_urgent = true;
            self.leases.changed.notify_all();
            state = self.leases.wait(state);
        }
    }

    /// A directory was changed in the catalog by this host.
    pub(crate) fn refresh_held(&self, number: u64) {
        if !self.leases.takes {
            return;
        }
        let mut state = self.leases.lock();
        let Some(held) = state.held.get_mut(&number) else { return };
        match self.store.remembered(number) {
            Some(record) => {
                let InodeRecord { entries, links, .. } = held.record;
                held.record = InodeRecord { entries, links, ..record };
            }
            // It is read anew.
            None => drop(held.wanted.insert(0)),
        }
    }

    /// As [`write_out`](Self::write_out), if this directory or something in it waits for that.
    pub(crate) fn write_out_in(&self, directory: u64) -> Result<(), Errno> {
        if !self.leases.takes {
            return Ok(());
        }
        let state = self.leases.lock();
        let waits = state.order_of(directory) > state.done;
        drop(state);
        if waits { self.write_out() } else { Ok(()) }
    }

    /// An object is about to be changed in the catalog: what was made in memory before that is written first.
    /// The object is not new any more.
    pub(crate) fn settle(&self, number: u64) -> Result<(), Errno> {
        if !self.leases.takes {
            return Ok(());
        }
        loop {
            self.write_out()?;
            let mut state = self.leases.lock();
            if state.order_of(number) <= state.done {
                state.new.remove(&number);
                return Ok(());
            }
        }
    }
}
