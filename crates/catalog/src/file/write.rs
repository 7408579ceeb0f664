//! Transactions on the file.

use super::tables::{
    COUNTERS, DONE, ENTRIES, FORMAT, GRANTED, HISTORY, HistoryRow, IDENTITY, LEASED, LEASES, LeaseRow,
    OLDEST, REVISION, Row, VERSION, is_over,
};
use super::{Store, failed};
use crate::error::{Error, Result};
use crate::types::{Commit, Expect, LeaseId, Op, Txn};
use crate::wire::Token;
use redb::{ReadableTable, Table, WriteTransaction};
use std::time::Duration;

/// The tables, for writing. All changes of one transaction have one revision, but for those of a
/// [`batch`](super::FileCatalog::batch), in which each change has its own. Leases that were due come before the
/// others, in the first one.
pub(super) struct Writing<'t> {
    store: &'t Store,
    counters: Table<'t, &'static str, u64>,
    entries: Table<'t, &'static [u8], Row>,
    history: Table<'t, (u64, u32), HistoryRow>,
    leases: Table<'t, u64, LeaseRow>,
    leased: Table<'t, (u64, &'static [u8]), ()>,
    done: Table<'t, (u64, u64), u64>,
    /// The newest revision before this transaction.
    revision: u64,
    /// Changes of entries of this revision so far, whether there are any of the transaction, and whether
    /// anything was written.
    changes: u32,
    changed: bool,
    wrote: bool,
}

impl<'t> Writing<'t> {
    pub(super) fn open(txn: &'t WriteTransaction, store: &'t Store) -> Result<Writing<'t>> {
        let failed = |e: redb::TableError| failed(&store.name, "write", e);
        let mut writing = Writing {
            store,
            counters: txn.open_table(COUNTERS).map_err(failed)?,
            entries: txn.open_table(ENTRIES).map_err(failed)?,
            history: txn.open_table(HISTORY).map_err(failed)?,
            leases: txn.open_table(LEASES).map_err(failed)?,
            leased: txn.open_table(LEASED).map_err(failed)?,
            done: txn.open_table(DONE).map_err(failed)?,
            revision: 0,
            changes: 0,
            changed: false,
            wrote: false,
        };
        writing.revision = writing.counter(REVISION)?;
        Ok(writing)
    }

    fn failed(&self, e: redb::StorageError) -> Error {
        failed(&self.store.name, "write", e)
    }

    pub(super) fn dirty(&self) -> bool {
        self.wrote
    }

    fn counter(&self, name: &str) -> Result<u64> {
        let found = self.counters.get(name).map_err(|e| self.failed(e))?;
        Ok(found.map_or(0, |value| value.value()))
    }

    fn count(&mut self, name: &str, value: u64) -> Result<()> {
        let store = self.store;
        self.wrote = true;
        self.counters.insert(name, value).map_err(|e| failed(&store.name, "write", e))?;
        Ok(())
    }

    /// The revision of what has been changed so far.
    fn now(&self) -> u64 {
        self.revision + u64::from(self.changes > 0)
    }

    /// What follows has a revision of its own.
    pub(super) fn next(&mut self) {
        self.revision = self.now();
        self.changes = 0;
    }

    /// Makes the tables of a new file, and refuses those of another version.
    pub(super) fn format(&mut self) -> Result<()> {
        match self.counter(VERSION)? {
            0 => {
                // As etcd's: the empty catalog is revision 1.
                self.count(REVISION, 1)?;
                self.count(OLDEST, 1)?;
                self.count(VERSION, FORMAT)
            }
            FORMAT => Ok(()),
            other => {
                let why = format!("its version is {other}, and this program knows version {FORMAT}");
                Err(failed(&self.store.name, "open", why))
            }
        }
    }

    /// Changes one key.
    fn change(&mut self, key: &[u8], op: &Op) -> Result<()> {
        let before = self.entries.get(key).map_err(|e| self.failed(e))?;
        let before = before.map(|row| {
            let (created, modified, lease, value) = row.value();
            (created, modified, lease, value.to_vec())
        });
        if before.is_none() && matches!(op, Op::Delete) {
            return Ok(());
        }
        let revision = self.revision + 1;
        let store = self.store;
        let failed = |e: redb::StorageError| failed(&store.name, "write", e);
        if let Some((_, _, lease, _)) = before
            && lease > 0
        {
            self.leased.remove((lease, key)).map_err(failed)?;
        }
        let created = before.as_ref().map_or(revision, |before| before.0);
        let value = match op {
            Op::Delete => {
                self.entries.remove(key).map_err(failed)?;
                None
            }
            Op::Put { value, lease } => {
                let lease = lease.map_or(0, |lease| lease.0);
                if lease > 0 {
                    self.leased.insert((lease, key), ()).map_err(failed)?;
                }
                self.entries.insert(key, (created, revision, lease, value.as_slice())).map_err(failed)?;
                Some(value.as_slice())
            }
        };
        let before = before.as_ref().map(|(c, m, l, value)| (*c, *m, *l, value.as_slice()));
        self.history.insert((revision, self.changes), (key, value, before)).map_err(failed)?;
        self.changes += 1;
        self.changed = true;
        self.count(REVISION, revision)
    }

    pub(super) fn commit(&mut self, txn: &Txn) -> Result<Commit> {
        for (key, expect) in &txn.expectations {
            let found = self.entries.get(key.as_slice()).map_err(|e| self.failed(e))?;
            let modified = found.map(|row| row.value().1);
            let holds = match expect {
                Expect::Absent => modified.is_none(),
                Expect::Present => modified.is_some(),
                Expect::Modified(revision) => modified == Some(*revision),
            };
            if !holds {
                return Ok(Commit::Conflict(self.now()));
            }
        }
        for (_, op) in &txn.changes {
            if let Op::Put { lease: Some(lease), .. } = op {
                self.lease(*lease)?;
            }
        }
        for (key, op) in &txn.changes {
            self.change(key, op)?;
        }
        Ok(Commit::Done(self.now()))
    }

    /// As [`commit`](Self::commit), for a transaction that may have been made already: then it is answered as it
    /// was.
    pub(super) fn commit_once(&mut self, txn: &Txn, token: &Token) -> Result<Commit> {
        let at = (token.client, token.number);
        let before = self.done.get(at).map_err(|e| self.failed(e))?.map(|row| row.value());
        if let Some(revision) = before {
            return Ok(Commit::Done(revision));
        }
        let commit = self.commit(txn)?;
        let mut answered = Vec::new();
        for row in
            self.done.range((token.client, 0)..(token.client, token.answered)).map_err(|e| self.failed(e))?
        {
            answered.push(row.map_err(|e| self.failed(e))?.0.value());
        }
        let store = self.store;
        let failed = |e: redb::StorageError| failed(&store.name, "write", e);
        // One that had no effect has none if it is made again.
        if self.changes > 0
            && let Commit::Done(revision) = commit
        {
            for at in answered {
                self.done.remove(at).map_err(failed)?;
            }
            self.done.insert(at, revision).map_err(failed)?;
        }
        Ok(commit)
    }

    /// Forgets the transactions of clients that have not been heard of for as many revisions as are kept.
    fn forget_done(&mut self) -> Result<()> {
        let oldest = self.now().saturating_sub(self.store.options.keep);
        let mut gone = Vec::new();
        for row in self.done.iter().map_err(|e| self.failed(e))? {
            let (at, revision) = row.map_err(|e| self.failed(e))?;
            if revision.value() < oldest {
                gone.push(at.value());
            }
        }
        let store = self.store;
        for at in gone {
            self.wrote = true;
            self.done.remove(at).map_err(|e| failed(&store.name, "write", e))?;
        }
        Ok(())
    }

    /// Gives all leases their whole time again, and the catalog an identity if it has none.
    pub(super) fn serve(&mut self, identity: u64) -> Result<()> {
        let mut leases = Vec::new();
        for row in self.leases.iter().map_err(|e| self.failed(e))? {
            let (id, row) = row.map_err(|e| self.failed(e))?;
            leases.push((LeaseId(id.value()), row.value().0));
        }
        leases.into_iter().try_for_each(|(lease, ttl)| self.set_lease(lease, ttl))?;
        self.forget_done()?;
        if self.counter(IDENTITY)? == 0 {
            self.count(IDENTITY, identity)?;
        }
        Ok(())
    }

    /// Time to live of a lease, in milliseconds.
    fn lease(&self, lease: LeaseId) -> Result<u64> {
        let found = self.leases.get(lease.0).map_err(|e| self.failed(e))?;
        found.map(|row| row.value().0).ok_or(Error::LeaseExpired(lease))
    }

    fn set_lease(&mut self, lease: LeaseId, ttl: u64) -> Result<()> {
        let clock = &self.store.options.clock;
        let end = u64::try_from(clock.now().as_millis()).unwrap_or(u64::MAX).saturating_add(ttl);
        let boot = clock.boot();
        let store = self.store;
        self.wrote = true;
        let row = (ttl, end, boot.as_str());
        self.leases.insert(lease.0, row).map_err(|e| failed(&store.name, "write", e))?;
        Ok(())
    }

    pub(super) fn grant(&mut self, ttl: Duration) -> Result<LeaseId> {
        let lease = LeaseId(self.counter(GRANTED)? + 1);
        self.count(GRANTED, lease.0)?;
        self.set_lease(lease, u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))?;
        Ok(lease)
    }

    pub(super) fn keep(&mut self, lease: LeaseId) -> Result<Duration> {
        let ttl = self.lease(lease)?;
        self.set_lease(lease, ttl)?;
        Ok(Duration::from_millis(ttl))
    }

    pub(super) fn revoke(&mut self, lease: LeaseId) -> Result<()> {
        let mut keys = Vec::new();
        for row in self.leased.range((lease.0, &[][..])..).map_err(|e| self.failed(e))? {
            let (at, _) = row.map_err(|e| self.failed(e))?;
            let (of, key) = at.value();
            if of != lease.0 {
                break;
            }
            keys.push(key.to_vec());
        }
        for key in keys {
            self.change(&key, &Op::Delete)?;
        }
        let store = self.store;
        let removed = self.leases.remove(lease.0).map_err(|e| failed(&store.name, "write", e))?;
        self.wrote |= removed.is_some();
        Ok(())
    }

    /// Ends the leases that have run out.
    pub(super) fn expire(&mut self) -> Result<()> {
        let mut over = Vec::new();
        for row in self.leases.iter().map_err(|e| self.failed(e))? {
            let (id, row) = row.map_err(|e| self.failed(e))?;
            if is_over(row.value(), &*self.store.options.clock) {
                over.push(LeaseId(id.value()));
            }
        }
        over.into_iter().try_for_each(|lease| self.revoke(lease))
    }

    /// Forgets the history that is not to be kept.
    pub(super) fn compact(&mut self) -> Result<()> {
        let oldest = self.now().saturating_sub(self.store.options.keep);
        if !self.changed || oldest <= self.counter(OLDEST)? {
            return Ok(());
        }
        let mut gone = Vec::new();
        for row in self.history.range(..(oldest, 0)).map_err(|e| self.failed(e))? {
            gone.push(row.map_err(|e| self.failed(e))?.0.value());
        }
        let store = self.store;
        for at in gone {
            self.history.remove(at).map_err(|e| failed(&store.name, "write", e))?;
        }
        self.count(OLDEST, oldest)
    }
}
