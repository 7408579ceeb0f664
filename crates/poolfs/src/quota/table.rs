//! What a session knows of the usage of owners that have limits.
//!
//! That is: what was read last, what transactions of this session have changed that are not in it, and what is made
//! in memory alone. Other hosts may have added meanwhile: so it is read anew before a change is refused, before this
//! host takes more than half of what was left when it was read, and whenever the books are made up.

use crate::quota::{AllQuotas, Limits, Owner, Phase, Usage};
use crate::store::lock;
use longhaul_catalog::Revision;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};

/// Transactions of this session after which usage is read anew.
const MINE_MAX: usize = 4096;

/// Whether a change fits below a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fit {
    Fits,
    /// Other hosts may have taken what is left.
    Unsure,
    Over,
}

/// What was made in memory, and is in no transaction yet.
#[derive(Clone, Copy, Debug)]
struct WaitingUsage {
    owners: [Owner; 2],
    usage: Usage,
}

/// A transaction of this session that is not in what was read.
struct Mine {
    of: BTreeMap<Owner, Usage>,
    /// What waited for it, by inode.
    waited: Vec<(u64, WaitingUsage)>,
    /// The revision that it has made.
    done: Option<Revision>,
}

#[derive(Default)]
struct Limited {
    limits: Limits,
    read: Usage,
    mine: Usage,
    waiting: Usage,
}

impl Limited {
    fn now(&self) -> Usage {
        self.read + self.mine + self.waiting
    }

    fn fit(&self, change: Usage) -> Fit {
        let (now, read) = (self.now(), self.read);
        let one = |limit: Option<u64>, now: i64, read: i64, change: i64| {
            let Some(limit) = limit.filter(|_| change > 0) else { return Fit::Fits };
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let left = limit.saturating_sub(now).saturating_sub(change);
            match left {
                ..0 => Fit::Over,
                _ if left < limit.saturating_sub(read) / 2 => Fit::Unsure,
                _ => Fit::Fits,
            }
        };
        let bytes = one(self.limits.bytes, now.bytes, read.bytes, change.bytes);
        bytes.max(one(self.limits.files, now.files, read.files, change.files))
    }
}

#[derive(Default)]
struct TableState {
    at: Revision,
    limited: HashMap<Owner, Limited>,
    /// By number.
    mine: BTreeMap<u64, Mine>,
    /// By inode.
    waiting: HashMap<u64, WaitingUsage>,
}

impl TableState {
    fn add_mine(&mut self, of: &BTreeMap<Owner, Usage>, sign: fn(Usage) -> Usage) {
        for (owner, usage) in of {
            if let Some(limited) = self.limited.get_mut(owner) {
                limited.mine += sign(*usage);
            }
        }
    }

    fn add_waiting(&mut self, owners: [Owner; 2], usage: Usage) {
        for owner in owners {
            if let Some(limited) = self.limited.get_mut(&owner) {
                limited.waiting += usage;
            }
        }
    }

    fn fit(&self, of: impl Iterator<Item = (Owner, Usage)>) -> Fit {
        let fits = of.filter_map(|(owner, change)| Some(self.limited.get(&owner)?.fit(change)));
        fits.max().unwrap_or(Fit::Fits)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct QuotaTable {
    state: Mutex<TableState>,
    limits: AtomicBool,
}

impl QuotaTable {
    fn lock(&self) -> MutexGuard<'_, TableState> {
        lock(&self.state)
    }

    /// Whether an owner has a limit that holds.
    pub(crate) fn limits(&self) -> bool {
        self.limits.load(SeqCst)
    }

    /// This was read. Transactions of `session` are of this one.
    pub(crate) fn set(&self, all: &AllQuotas, session: u64) {
        let mut guard = self.lock();
        let state = &mut *guard;
        if all.at < state.at {
            return;
        }
        state.at = all.at;
        let own = all.accounts.iter().filter(|((of, _), _)| *of == session).map(|((_, number), _)| *number);
        let own: BTreeSet<u64> = own.collect();
        let is_read =
            |number: &u64, mine: &Mine| own.contains(number) || mine.done.is_some_and(|at| at <= all.at);
        state.mine.retain(|number, mine| !is_read(number, mine));
        state.limited.clear();
        if all.state.phase == Phase::On {
            let usage = all.usage();
            for (owner, record) in all.records.iter().filter(|(_, record)| !record.limits.are_none()) {
                let read = usage.get(owner).copied().unwrap_or_default();
                let limited = Limited { limits: record.limits, read, ..Limited::default() };
                state.limited.insert(*owner, limited);
            }
        }
        if state.limited.is_empty() {
            // What is made while no limit holds does not count here.
            state.mine.clear();
            state.waiting.clear();
        }
        for mine in state.mine.values() {
            for (owner, usage) in &mine.of {
                if let Some(limited) = state.limited.get_mut(owner) {
                    limited.mine += *usage;
                }
            }
        }
        for WaitingUsage { owners, usage } in state.waiting.values() {
            for owner in owners {
                if let Some(limited) = state.limited.get_mut(owner) {
                    limited.waiting += *usage;
                }
            }
        }
        self.limits.store(!state.limited.is_empty(), SeqCst);
    }

    /// A transaction of this session is going to be made that changes usage so; what `waited` is in it. Nothing is
    /// changed here if it does not fit, and `most` says what fits.
    pub(crate) fn begin(&self, number: u64, of: &BTreeMap<Owner, Usage>, waited: &[u64], most: Fit) -> Fit {
        if !self.limits() {
            return Fit::Fits;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        let changes = || of.iter().map(|(owner, usage)| (*owner, *usage));
        if !waited.iter().any(|inode| state.waiting.contains_key(inode))
            && !changes().any(|(owner, _)| state.limited.contains_key(&owner))
        {
            return Fit::Fits;
        }
        let fit = match state.mine.len() >= MINE_MAX {
            true => state.fit(changes()).max(Fit::Unsure),
            false => state.fit(changes()),
        };
        if fit > most {
            return fit;
        }
        let waited: Vec<(u64, WaitingUsage)> =
            waited.iter().filter_map(|inode| Some((*inode, state.waiting.remove(inode)?))).collect();
        for (_, waiting) in &waited {
            state.add_waiting(waiting.owners, -waiting.usage);
        }
        state.add_mine(of, |usage| usage);
        state.mine.insert(number, Mine { of: of.clone(), waited, done: None });
        Fit::Fits
    }

    /// The transaction was made with this revision, or was not made.
    pub(crate) fn end(&self, number: u64, done: Option<Revision>) {
        if !self.limits() && self.lock().mine.is_empty() {
            return;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        let read = state.at;
        match (state.mine.get_mut(&number), done) {
            (Some(mine), Some(at)) if at > read => mine.done = Some(at),
            (Some(_), done) => {
                let Some(mine) = state.mine.remove(&number) else { return };
                state.add_mine(&mine.of, |usage| -usage);
                for (inode, waiting) in mine.waited.into_iter().filter(|_| done.is_none()) {
                    state.add_waiting(waiting.owners, waiting.usage);
                    state.waiting.insert(inode, waiting);
                }
            }
            (None, _) => {}
        }
    }

    /// An object of these owners takes as much, and is in memory alone. False, and nothing is changed, if that may
    /// not fit.
    pub(crate) fn wait(&self, inode: u64, owners: [Owner; 2], usage: Usage) -> bool {
        if !self.limits() {
            return true;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        if !owners.iter().any(|owner| state.limited.contains_key(owner)) {
            return true;
        }
        let before = state.waiting.get(&inode).map_or(Usage::default(), |waiting| waiting.usage);
        let more =
            Usage { bytes: (usage.bytes - before.bytes).max(0), files: (usage.files - before.files).max(0) };
        if state.fit(owners.into_iter().map(|owner| (owner, more))) != Fit::Fits {
            return false;
        }
        state.add_waiting(owners, more);
        state.waiting.insert(inode, WaitingUsage { owners, usage: before + more });
        true
    }

    /// An object that was in memory alone is not there any more.
    pub(crate) fn forget(&self, inode: u64) {
        if !self.limits() {
            return;
        }
        let mut state = self.lock();
        if let Some(waiting) = state.waiting.remove(&inode) {
            state.add_waiting(waiting.owners, -waiting.usage);
        }
    }

    /// Bytes of content that these owners may still add, if one of them has such a limit; what waits of this inode
    /// counts as if it did not.
    pub(crate) fn left(&self, owners: [Owner; 2], inode: u64) -> Option<u64> {
        if !self.limits() {
            return None;
        }
        let state = self.lock();
        let waits = state.waiting.get(&inode).map_or(0, |waiting| waiting.usage.bytes);
        let left = |owner: Owner| {
            let limited = state.limited.get(&owner)?;
            let limit = i64::try_from(limited.limits.bytes?).unwrap_or(i64::MAX);
            Some(limit.saturating_sub(limited.now().bytes).saturating_add(waits).max(0).cast_unsigned())
        };
        owners.into_iter().filter_map(left).min()
    }
}
