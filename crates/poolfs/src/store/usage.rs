//! What a transaction changes of the usage of users and groups.

use super::{Draft, Store};
use crate::quota::{Fit, Owner, Usage, UsageChanges, read_for};
use crate::schema::{InodeRecord, unreadable};
use longhaul_catalog::Expect;
use longhaul_fs::Errno;
use std::collections::BTreeMap;

impl Draft<'_> {
    /// Notes what the transaction changes of usage, while that is counted.
    fn note_usage(&mut self) -> Result<(), Errno> {
        let state = self.snapshots.quotas;
        if !state.counts() {
            return Ok(());
        }
        self.read_inodes_before()?;
        let mut of: BTreeMap<Owner, Usage> = BTreeMap::new();
        let mut add = |record: &InodeRecord, sign: fn(Usage) -> Usage| {
            let (owners, usage) = record.usage();
            for owner in owners {
                *of.entry(owner).or_default() += sign(usage);
            }
        };
        for (inode, after) in &self.inodes {
            if let Some(after) = after {
                add(after, |usage| usage);
            }
            if !self.new_inodes.contains(inode)
                && let Some((before, _)) = self.inodes_before.get(inode)
            {
                add(before, |usage| -usage);
            }
        }
        of.retain(|_, usage| !usage.is_zero());
        self.account.usage = UsageChanges { generation: state.generation, of };
        Ok(())
    }

    /// Finds out what the inodes are that are changed and were not read: those of directories that only this
    /// session knows.
    fn read_inodes_before(&mut self) -> Result<(), Errno> {
        let keys = self.keys();
        let mut unread = Vec::new();
        for inode in self.inodes.keys() {
            let is_known = self.new_inodes.contains(inode)
                || self.inodes_before.contains_key(inode)
                || self.seen.get(&keys.inode(*inode)) == Some(&Expect::Absent);
            if is_known {
                continue;
            }
            match self.store.remembered_at(*inode).filter(|_| !self.is_fresh) {
                Some(found) => drop(self.inodes_before.insert(*inode, found)),
                None => unread.push(*inode),
            }
        }
        if unread.is_empty() {
            return Ok(());
        }
        let wanted: Vec<Vec<u8>> = unread.iter().map(|inode| keys.inode(*inode)).collect();
        for entry in self.store.get_all(&wanted)? {
            let record =
                InodeRecord::decode(&entry.value).ok_or_else(|| unreadable("an inode", &entry.value))?;
            if let Some((numbers, _)) = keys.parse(&entry.key, 1) {
                self.inodes_before.insert(numbers[0], (record, entry.modified));
            }
        }
        Ok(())
    }

    /// An object that waited for this transaction is in it.
    pub(crate) fn carries(&mut self, inode: u64) {
        if self.snapshots.quotas.counts() {
            self.carried.push(inode);
        }
    }
}

impl Store {
    /// Reads usage and limits as they are now.
    pub(crate) fn read_quotas(&self) -> Result<(), Errno> {
        let all = read_for(&*self.catalog, &self.keys)?;
        self.quotas.set(&all, self.session);
        Ok(())
    }

    /// Reads usage and limits, if limits hold.
    pub(crate) fn refresh_quotas(&self) -> Result<(), Errno> {
        if self.quotas.limits() { self.read_quotas() } else { Ok(()) }
    }

    /// Notes what a transaction changes of usage. Unless it has to be made `surely`, it is not made if that is more
    /// than an owner may have.
    ///
    /// # Errors
    /// `EDQUOT`.
    pub(super) fn charge(&self, draft: &mut Draft<'_>, number: u64, surely: bool) -> Result<(), Errno> {
        draft.note_usage()?;
        let (of, carried) = (&draft.account.usage.of, &draft.carried);
        if surely {
            self.quotas.begin(number, of, carried, Fit::Over);
            return Ok(());
        }
        if self.quotas.begin(number, of, carried, Fit::Fits) == Fit::Fits {
            return Ok(());
        }
        loop {
            let done = self.reaper.done();
            self.read_quotas()?;
            match self.quotas.begin(number, of, carried, Fit::Unsure) {
                // What was removed may not be free yet.
                Fit::Over if self.reaper.wait_after(done) => {}
                Fit::Over => return Err(Errno::DQUOT),
                Fit::Fits | Fit::Unsure => return Ok(()),
            }
        }
    }
}
