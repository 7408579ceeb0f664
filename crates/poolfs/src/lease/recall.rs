//! Leases are taken, asked back, and given back.
//!
//! A session that wants to see or to change a directory whose lease another one has puts a key that says so,
//! and waits until the lease is gone. The holder watches these keys.

use super::{HeldDirectory, LeaseState};
use crate::listing::PAGE;
use crate::schema::{EntryRecord, decode_lease, encode_lease, unreadable};
use crate::session::FsSession;
use crate::store::failed;
use longhaul_catalog::{Commit, Entry, Error as CatalogError, Event, Expect, MAX_OPERATIONS, Revision, Txn};
use longhaul_fs::Errno;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most names of a directory whose lease is taken: all of them are in memory.
const NAMES_MAX: u64 = 20_000;
/// After how long without use a session gives a lease back; and that where it has leases of more directories than
/// these, or of directories with more names.
const IDLE: Duration = Duration::from_secs(10);
const IDLE_OF_MANY: Duration = Duration::from_millis(500);
const HELD_MAX: usize = 4096;
const NAMES_HELD_MAX: usize = 1 << 16;
/// A lease is taken when something is made for the second time within this.
const SOON: Duration = Duration::from_secs(2);
/// How long no lease is taken of a directory that another host has asked back: twice as long each time.
const SHUNNED: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Directories that are remembered for that.
const REMEMBERED: usize = 4096;
/// How often a session asks again: the holder may not have heard of it.
const AGAIN: Duration = Duration::from_secs(2);
/// Leases that one transaction gives back, which expects each of them, and the session; and from how many on that does
/// not wait until nothing is to be written, though no other host asks for one.
const RETURNED: usize = MAX_OPERATIONS - 1;
const RETURNED_EARLY: usize = 64;

impl FsSession {
    // ---- taking

    /// Notes that something is made in a directory without a lease, and takes the lease if that goes on.
    pub(crate) fn consider_lease(&self, directory: u64) -> Result<(), Errno> {
        if !self.leases.takes {
            return Ok(());
        }
        let now = longhaul_engine::now();
        let mut guard = self.leases.lock();
        let state = &mut *guard;
        let before = state.made.insert(directory, now);
        if state.made.len() > REMEMBERED {
            state.made.retain(|_, then| now.duration_since(*then) < SOON);
        }
        let is_shunned = state.shunned.get(&directory).is_some_and(|(until, _)| now < *until);
        if before.is_none_or(|then| now.duration_since(then) > SOON)
            || is_shunned
            || state.held.contains_key(&directory)
            || !state.busy.insert(directory)
        {
            return Ok(());
        }
        drop(guard);
        let taken = self.take_lease(directory);
        let mut guard = self.leases.lock();
        let state = &mut *guard;
        state.busy.remove(&directory);
        let early = state.early.remove(&directory);
        let result = match taken {
            Ok(Some(mut held)) => {
                held.wanted.extend(early.into_iter().flatten());
                state.held.insert(directory, held);
                Ok(())
            }
            Ok(None) => {
                shun(state, directory);
                Ok(())
            }
            Err(e) => Err(e),
        };
        drop(guard);
        self.leases.changed.notify_all();
        result
    }

    /// Takes the lease of a directory; `None` if another session has it, or the directory is too large.
    fn take_lease(&self, directory: u64) -> Result<Option<HeldDirectory>, Errno> {
        let (store, keys) = (&self.store, self.store.keys());
        let key = keys.lease(directory);
        let Some(inode) = store.remembered(directory) else { return Ok(None) };
        if !inode.is_directory() || inode.entries > NAMES_MAX {
            return Ok(None);
        }
        let txn = Txn::new()
            .expect(&keys.session(store.session()), Expect::Present)
            .expect(&keys.inode(directory), Expect::Present)
            .expect(&key, Expect::Absent)
            .put_leased(&key, &encode_lease(store.session()), store.lease());
        let put_at = match store.catalog().commit(&txn) {
            Ok(Commit::Done(at)) => at,
            Ok(Commit::Conflict(_)) => return Ok(None),
            Err(CatalogError::Unknown { .. }) => match self.own_lease(store.get(&key)?.as_ref()) {
                Some(at) => at,
                None => return Ok(None),
            },
            Err(e) => return Err(failed(&e)),
        };
        match self.all_names(directory) {
            Ok(Some(found)) => Ok(Some(HeldDirectory { put_at: Some(put_at), ..found })),
            other => {
                let back = Txn::new().expect(&key, Expect::Modified(put_at)).delete(&key);
                store.catalog().commit(&back).map_err(|e| failed(&e))?;
                other
            }
        }
    }

    /// The revision that a lease was put at, if it is this session's.
    fn own_lease(&self, found: Option<&Entry>) -> Option<Revision> {
        let found = found.filter(|entry| decode_lease(&entry.value) == Some(self.store.session()))?;
        Some(found.modified)
    }

    /// A directory and its names, while others do not change it; `None` if they are too many.
    fn all_names(&self, directory: u64) -> Result<Option<HeldDirectory>, Errno> {
        let (store, keys) = (&self.store, self.store.keys());
        let prefix = keys.entry(directory, b"");
        let (mut names, mut after) = (HashMap::new(), prefix.clone());
        let mut record = None;
        loop {
            let (mut inode, page) = store.page_with(&[keys.inode(directory)], &prefix, &after, PAGE)?;
            if record.is_none() {
                record = store.remember(directory, inode.pop())?;
            }
            let is_last = page.len() < PAGE;
            for entry in page {
                let Some((_, name)) = keys.parse(&entry.key, 1) else { continue };
                let found = EntryRecord::decode(&entry.value);
                names.insert(name.to_vec(), found.ok_or_else(|| unreadable("an entry", &entry.value))?);
                after = entry.key;
            }
            if names.len() as u64 > NAMES_MAX {
                return Ok(None);
            }
            if is_last {
                return Ok(record.map(|record| HeldDirectory::new(record, names)));
            }
        }
    }

    // ---- giving back

    /// The directories whose leases are to be given back now, of those of which nothing waits to be written.
    pub(super) fn to_give_back(&self, state: &LeaseState) -> Vec<u64> {
        let names = || state.held.values().map(|held| held.names.len()).sum::<usize>();
        let is_much = state.held.len() > HELD_MAX || names() > NAMES_HELD_MAX;
        let idle = if is_much { IDLE_OF_MANY } else { IDLE };
        let is_due = |(directory, held): &(&u64, &HeldDirectory)| {
            state.order_of(**directory) <= state.done
                && !state.busy.contains(directory)
                && (!held.wanted.is_empty() || held.used.elapsed() > idle)
        };
        let due = state.held.iter().filter(is_due);
        // Those that others wait for go first.
        let mut due: Vec<(bool, u64)> = due.map(|(number, held)| (held.wanted.is_empty(), *number)).collect();
        due.sort_unstable();
        let is_asked = due.first().is_some_and(|(is_unwanted, _)| !is_unwanted);
        match state.queue.is_empty() || is_asked || due.len() >= RETURNED_EARLY {
            true => due.into_iter().map(|(_, directory)| directory).take(RETURNED).collect(),
            false => Vec::new(),
        }
    }

    /// The revisions that the leases of these directories were put at; none for one that is not this session's any
    /// more, as it was given back by a transaction whose answer was lost.
    fn put_at(&self, directories: &[u64]) -> Result<Vec<(u64, Option<Revision>)>, Errno> {
        let keys = self.store.keys();
        let mut all: Vec<(u64, Option<Revision>)> = {
            let state = self.leases.lock();
            directories
                .iter()
                .map(|number| (*number, state.held.get(number).and_then(|held| held.put_at)))
                .collect()
        };
        let unknown: Vec<Vec<u8>> =
            all.iter().filter(|(_, at)| at.is_none()).map(|(number, _)| keys.lease(*number)).collect();
        if !unknown.is_empty() {
            let found = self.store.get_all(&unknown)?;
            for (number, at) in all.iter_mut().filter(|(_, at)| at.is_none()) {
                let key = keys.lease(*number);
                *at = self.own_lease(found.iter().find(|entry| entry.key == key));
            }
        }
        Ok(all)
    }

    /// Gives back leases of directories that are busy for it.
    pub(super) fn give_back(&self, directories: &[u64]) {
        let is_back = self.put_at(directories).is_ok_and(|put_at| self.end_leases(&put_at));
        let mut guard = self.leases.lock();
        let state = &mut *guard;
        for directory in directories {
            state.busy.remove(directory);
            if !is_back {
                // It may have been given back all the same: the key is read the next time.
                if let Some(held) = state.held.get_mut(directory) {
                    held.put_at = None;
                }
                continue;
            }
            let Some(held) = state.held.remove(directory) else { continue };
            state.new.remove(directory);
            for entry in held.names.values() {
                state.new.remove(&entry.inode);
            }
            if held.wanted.iter().any(|session| *session > 0) {
                shun(state, *directory);
            }
        }
        if !is_back {
            drop(self.leases.wait(guard));
        }
        self.leases.changed.notify_all();
    }

    /// Removes the keys of leases that were put at these revisions; whether they are removed.
    fn end_leases(&self, put_at: &[(u64, Option<Revision>)]) -> bool {
        let keys = self.store.keys();
        let mut txn = Txn::new().expect(&keys.session(self.store.session()), Expect::Present);
        let state = self.leases.lock();
        for (directory, at) in put_at {
            if let Some(at) = at {
                let key = keys.lease(*directory);
                txn = txn.expect(&key, Expect::Modified(*at)).delete(&key);
            }
            let wanted = state.held.get(directory).into_iter().flat_map(|held| &held.wanted);
            for session in wanted.filter(|session| **session > 0) {
                txn = txn.delete(&keys.want(*directory, *session));
            }
        }
        drop(state);
        match self.store.catalog().commit(&txn) {
            Ok(Commit::Done(_)) => true,
            // The session has run out, and with it its leases; or one is given back by an earlier transaction.
            Ok(Commit::Conflict(_)) => {
                let _ = self.store.check_session();
                self.store.has_ended()
            }
            Err(e) => {
                tracing::warn!("leases of directories are given back later: {e}");
                false
            }
        }
    }

    /// Listens to sessions that ask for leases, from a revision on, until the session has ended.
    pub(crate) fn listen_always(self: &Arc<FsSession>, from: Revision) -> std::io::Result<()> {
        let session = Arc::clone(self);
        std::thread::Builder::new().name("longhaul-recall".into()).spawn(move || {
            let mut from = from;
            while !session.is_over() {
                if let Err(e) = session.listen(from) {
                    tracing::debug!("requests for leases are read anew: {e}");
                    std::thread::sleep(super::LOOK);
                }
                // Those that ask meanwhile are found by the range, and ask again.
                match session.store.catalog().range(&session.store.keys().wants(), None) {
                    Ok(found) => {
                        from = found.revision + 1;
                        found.entries.iter().for_each(|entry| session.hear(&entry.key));
                    }
                    Err(e) => tracing::debug!("requests for leases are not heard: {e}"),
                }
            }
        })?;
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.store.has_ended() || self.leases.lock().ends
    }

    fn listen(&self, from: Revision) -> Result<(), CatalogError> {
        let mut watch = self.store.catalog().watch(&self.store.keys().wants(), from)?;
        while !self.is_over() {
            for Event { key, value, .. } in watch.next(super::LOOK)? {
                if value.is_some() {
                    self.hear(&key);
                }
            }
        }
        Ok(())
    }

    /// A session asks for a lease.
    fn hear(&self, key: &[u8]) {
        let Some((numbers, _)) = self.store.keys().parse(key, 2) else { return };
        let (directory, by) = (numbers[0], numbers[1]);
        if by == self.store.session() {
            return;
        }
        let mut guard = self.leases.lock();
        let state = &mut *guard;
        match state.held.get_mut(&directory) {
            Some(held) => drop(held.wanted.insert(by)),
            None if state.busy.contains(&directory) => {
                state.early.entry(directory).or_default().insert(by);
            }
            None => return,
        }
        drop(guard);
        self.leases.changed.notify_all();
    }

    // ---- asking

    /// Waits until no other session has the lease of a directory, which is asked for.
    pub(crate) fn recall(&self, directory: u64) -> Result<(), Errno> {
        let (store, keys) = (&self.store, self.store.keys());
        let (key, want) = (keys.lease(directory), keys.want(directory, store.session()));
        let session = keys.session(store.session());
        let ask = Txn::new().expect(&session, Expect::Present).put_leased(&want, b"", store.lease());
        loop {
            let found = store.catalog().range(&key, None).map_err(|e| failed(&e))?;
            let holder = found.entries.iter().find(|entry| entry.key == key);
            match holder.and_then(|entry| decode_lease(&entry.value)) {
                Some(holder) if holder != store.session() => {}
                _ => return Ok(()),
            }
            let begun = longhaul_engine::now();
            let mut watch = store.catalog().watch(&key, found.revision + 1).map_err(|e| failed(&e))?;
            match store.catalog().commit(&ask) {
                Ok(Commit::Done(_)) | Err(CatalogError::Unknown { .. }) => {}
                Ok(Commit::Conflict(_)) => store.check_session()?,
                Err(e) => return Err(failed(&e)),
            }
            self.wait_for_return(&mut *watch, begun)?;
        }
    }

    /// Waits until a lease has changed, or it is time to ask again.
    fn wait_for_return(&self, watch: &mut dyn longhaul_catalog::Watch, begun: Instant) -> Result<(), Errno> {
        while begun.elapsed() < AGAIN {
            match watch.next(super::LOOK) {
                Ok(events) if events.is_empty() => {}
                // Also when changes were lost: it is looked at anew.
                Ok(_) | Err(CatalogError::Compacted { .. }) => return Ok(()),
                Err(e) => return Err(failed(&e)),
            }
            if self.store.has_ended() {
                return Err(Errno::IO);
            }
        }
        Ok(())
    }
}

/// No lease of a directory is taken for some time.
fn shun(state: &mut LeaseState, directory: u64) {
    let now = longhaul_engine::now();
    if state.shunned.len() > REMEMBERED {
        state.shunned.retain(|_, (until, _)| now < *until);
    }
    let before = state.shunned.get(&directory).filter(|(until, time)| now < *until + *time);
    let time = before.map_or(SHUNNED[0], |(_, time)| (*time * 2).min(SHUNNED[1]));
    state.shunned.insert(directory, (now + time, time));
}
