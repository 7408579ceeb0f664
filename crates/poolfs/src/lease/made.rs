//! Calls that are answered from memory, for what is in directories whose lease this session has.
//!
//! Each returns `None` for what is not: then the catalog is asked.

use super::{HeldDirectory, LeaseState, NewObject, Patience, WAITING_MAX, Waits};
use crate::node::OpenNode;
use crate::quota::Usage;
use crate::schema::{EntryRecord, InodeRecord};
use crate::session::FsSession;
use crate::store::lock;
use longhaul_fs::Errno;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};

/// Content of a file that is written behind; `close` waits for larger ones.
const LARGE: usize = 8 << 20;
/// Parts that such content may be in.
const PARTS: usize = 16;

impl FsSession {
    /// The leases, once no operation has the directory for itself; `None` if its lease is not had.
    fn leased<P: Patience>(
        &self,
        directory: u64,
        changes: bool,
        patience: P,
    ) -> Result<Option<MutexGuard<'_, LeaseState>>, P::Error> {
        if !self.leases.takes {
            return Ok(None);
        }
        let (mut state, begun) = (self.leases.lock(), longhaul_engine::now());
        loop {
            let waits = state.queue.len() >= WAITING_MAX || self.dirty.load(Relaxed) > self.memory;
            let Some(held) = state.held.get_mut(&directory) else { return Ok(None) };
            held.used = longhaul_engine::now();
            let is_recalled = !held.wanted.is_empty();
            let is_free = !is_recalled && !state.busy.contains(&directory);
            if self.store.has_ended() {
                return Err(Errno::IO.into());
            }
            // Otherwise others may have taken it already.
            let is_valid = self.store.is_valid();
            if is_free && is_valid && !(changes && waits) {
                return Ok(Some(state));
            }
            patience.wait()?;
            if begun.elapsed() > self.leases.patience {
                tracing::error!("the catalog does not answer, and what was changed here waits for it");
                return Err(Errno::IO.into());
            }
            state.is_urgent |= waits || is_recalled;
            self.leases.changed.notify_all();
            state = self.leases.wait(state);
        }
    }

    /// The leases, if an object is new; once no operation has its directory for itself.
    fn new_object<P: Patience>(
        &self,
        number: u64,
        patience: P,
    ) -> Result<Option<MutexGuard<'_, LeaseState>>, P::Error> {
        if !self.leases.takes {
            return Ok(None);
        }
        let mut state = self.leases.lock();
        loop {
            let Some(object) = state.new.get(&number) else { return Ok(None) };
            if self.store.has_ended() {
                return Err(Errno::IO.into());
            }
            let (directory, busy) = (object.directory, &state.busy);
            if !busy.contains(&directory) && !busy.contains(&number) {
                return Ok(Some(state));
            }
            patience.wait()?;
            state = self.leases.wait(state);
        }
    }

    /// The object of a name.
    pub(crate) fn lookup_leased<P: Patience>(
        &self,
        directory: u64,
        name: &[u8],
        patience: P,
    ) -> Result<Option<(u64, Option<InodeRecord>)>, P::Error> {
        let Some(state) = self.leased(directory, false, patience)? else { return Ok(None) };
        let entry = state.held.get(&directory).and_then(|held| held.names.get(name)).ok_or(Errno::NOENT)?;
        Ok(Some((entry.inode, state.seen(entry.inode).cloned())))
    }

    /// An object as programs of this host see it, if that is in memory.
    pub(crate) fn seen(&self, number: u64) -> Option<InodeRecord> {
        if !self.leases.takes || self.store.has_ended() {
            return None;
        }
        self.leases.lock().seen(number).cloned()
    }

    /// Makes an object. `is_taken` says whether the name is there if the lease is had.
    pub(crate) fn make_leased<P: Patience>(
        &self,
        directory: u64,
        name: &[u8],
        inode: impl FnOnce(&InodeRecord) -> InodeRecord,
        patience: P,
    ) -> Result<Option<(u64, InodeRecord)>, P::Error> {
        if !self.leases.holds(directory) {
            return Ok(None);
        }
        let number = match self.store.number_at_hand() {
            Some(number) => number,
            None => {
                patience.wait()?;
                self.store.new_number()?
            }
        };
        let Some(mut guard) = self.leased(directory, true, patience)? else { return Ok(None) };
        let state = &mut *guard;
        let Some(held) = state.held.get_mut(&directory) else { return Ok(None) };
        if held.names.contains_key(name) {
            return Err(Errno::EXIST.into());
        }
        let record = inode(&held.record);
        let (owners, usage) = record.usage();
        // It may be more than an owner may have: the catalog is asked.
        if !self.store.quotas().wait(number, owners, usage) {
            return Ok(None);
        }
        held.record.touch(record.modified);
        held.record.entries += 1;
        held.record.links += u32::from(record.is_directory());
        held.names.insert(name.to_vec(), EntryRecord::new(number, record.mode));
        if record.is_directory() {
            state.held.insert(number, HeldDirectory::new(record.clone(), HashMap::new()));
        }
        let object = NewObject {
            directory,
            name: name.to_vec(),
            record: record.clone(),
            order: 0,
            written: None,
            is_closed: false,
            is_under_way: false,
        };
        state.new.insert(number, object);
        state.enqueue(number);
        self.leases.made(guard);
        Ok(Some((number, record)))
    }

    /// Changes attributes of an object.
    pub(crate) fn change_leased<P: Patience>(
        &self,
        number: u64,
        change: impl FnOnce(&mut InodeRecord),
        sets_modified: bool,
        patience: P,
    ) -> Result<Option<InodeRecord>, P::Error> {
        let Some(mut state) = self.new_object(number, patience)? else { return Ok(None) };
        let Some(record) = state.seen_mut(number) else { return Ok(None) };
        let mut changed = record.clone();
        change(&mut changed);
        // Another owner may have no room for it: the catalog is asked.
        if (changed.uid, changed.gid) != (record.uid, record.gid) && self.store.quotas().limits() {
            return Ok(None);
        }
        *record = changed;
        let record = record.clone();
        state.enqueue(number);
        if sets_modified && let Some(node) = self.open_node(number) {
            // A time that is set is not overtaken by that of a write before it.
            node.lock().modified = None;
        }
        Ok(Some(record))
    }

    /// Opens a file.
    pub(crate) fn open_leased<P: Patience>(
        &self,
        number: u64,
        appends: bool,
        patience: P,
    ) -> Result<Option<(u64, InodeRecord)>, P::Error> {
        let Some(state) = self.new_object(number, patience)? else { return Ok(None) };
        let Some(record) = state.seen(number).cloned() else { return Ok(None) };
        match record.kind() {
            longhaul_fs::FileKind::Regular => {}
            longhaul_fs::FileKind::Directory => return Err(Errno::ISDIR.into()),
            longhaul_fs::FileKind::Symlink => return Err(Errno::LOOP.into()),
            _ => return Err(Errno::NXIO.into()),
        }
        let (handle, _) = self.open_handle(number, record.clone(), appends, false);
        Ok(Some((handle, record)))
    }

    /// What was written to a file is to be written to the catalog soon. False if that has to be waited for: it
    /// is not new, or too large.
    pub(crate) fn close_leased<P: Patience>(
        &self,
        node: &Arc<OpenNode>,
        patience: P,
    ) -> Result<bool, P::Error> {
        let Some(mut guard) = self.new_object(node.inode, patience)? else { return Ok(false) };
        let state = &mut *guard;
        let Some(object) = state.new.get_mut(&node.inode) else { return Ok(false) };
        let of_node = node.lock();
        if !of_node.pending.is_empty()
            || of_node.dirty.bytes() > LARGE
            || of_node.dirty.iter().count() > PARTS
            || !of_node.batches.is_empty() && !object.is_under_way
        {
            return Ok(false);
        }
        if of_node.dirty.is_empty() {
            return Ok(true);
        }
        let content = of_node.dirty.bytes() as i64;
        drop(of_node);
        // What it takes the place of counts too, until it is written.
        let (owners, usage) = object.record.usage();
        let files = if object.written.is_none() { usage.files } else { 0 };
        if !self.store.quotas().wait(node.inode, owners, Usage { bytes: content, files }) {
            return Ok(false);
        }
        object.record.mode = crate::content::without_privileges(object.record.mode);
        object.is_closed = true;
        state.enqueue(node.inode);
        self.leases.made(guard);
        Ok(true)
    }

    /// Ends a descriptor of a new file, whose content is written or will be. False if it is not new.
    pub(crate) fn release_leased(&self, node: &Arc<OpenNode>, handle: u64) -> bool {
        if !self.leases.takes {
            return false;
        }
        let state = self.leases.lock();
        if !state.new.contains_key(&node.inode) {
            return false;
        }
        let mut nodes = lock(&self.nodes);
        let mut of_node = node.lock();
        of_node.handles -= 1;
        // Otherwise the thread that writes the content forgets the node.
        let is_forgotten = of_node.handles == 0 && of_node.is_clean();
        drop(of_node);
        if is_forgotten {
            nodes.remove(&node.inode);
        }
        drop(nodes);
        lock(&self.handles).remove(&handle);
        true
    }

    /// Removes the name of an object that no transaction has yet, and that is not open.
    pub(crate) fn remove_leased(&self, directory: u64, name: &[u8]) -> Result<bool, Errno> {
        let Some(mut guard) = self.leased(directory, true, Waits)? else { return Ok(false) };
        let state = &mut *guard;
        let Some(held) = state.held.get_mut(&directory) else { return Ok(false) };
        let entry = *held.names.get(name).ok_or(Errno::NOENT)?;
        if entry.is_directory() {
            return Ok(false);
        }
        let Some(object) = state.new.get(&entry.inode) else { return Ok(false) };
        if object.written.is_some() {
            return Ok(false);
        }
        if let Some(node) = self.open_node(entry.inode) {
            let of_node = node.lock();
            if of_node.handles > 0 || !of_node.batches.is_empty() || !of_node.pending.is_empty() {
                return Ok(false);
            }
            drop(of_node);
            self.abandon(&node);
            lock(&self.nodes).remove(&entry.inode);
        }
        state.new.remove(&entry.inode);
        self.store.quotas().forget(entry.inode);
        held.names.remove(name);
        held.record.touch(self.now());
        held.record.entries -= 1;
        Ok(true)
    }

    /// Gives a new object that is no directory another name, which is free.
    pub(crate) fn rename_leased(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> Result<bool, Errno> {
        let Some(mut guard) = self.leased(from.0, true, Waits)? else { return Ok(false) };
        let state = &mut *guard;
        // Not waited for while the first one may be taken away: the other way does that.
        let is_free = |held: &HeldDirectory| held.wanted.is_empty();
        if state.busy.contains(&to.0) || !state.held.get(&to.0).is_some_and(is_free) {
            return Ok(false);
        }
        let entry = |state: &LeaseState, (directory, name): (u64, &[u8])| {
            state.held.get(&directory).and_then(|held| held.names.get(name)).copied()
        };
        let moved = entry(state, from).ok_or(Errno::NOENT)?;
        if moved.is_directory() || entry(state, to).is_some() {
            return Ok(false);
        }
        let Some(object) = state.new.get_mut(&moved.inode) else { return Ok(false) };
        let name = (from.0, from.1.to_vec());
        // One move is written at a time, so that names of others never come before it.
        if object.written.as_ref().is_some_and(|written| *written != name) {
            return Ok(false);
        }
        let now = self.now();
        (object.directory, object.name) = (to.0, to.1.to_vec());
        object.record.parent = to.0;
        object.record.changed = now;
        // It follows what made the name free, and what made the directory.
        object.order = 0;
        state.enqueue(moved.inode);
        let order = state.last;
        if let Some(held) = state.held.get_mut(&from.0) {
            held.names.remove(from.1);
            held.record.touch(now);
            held.record.entries -= 1;
            held.order = order;
        }
        if let Some(held) = state.held.get_mut(&to.0) {
            held.names.insert(to.1.to_vec(), moved);
            held.record.touch(now);
            held.record.entries += 1;
        }
        self.leases.made(guard);
        Ok(true)
    }
}
