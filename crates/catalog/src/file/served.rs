//! What a server needs of a catalog in a file: many changes in one transaction of redb, and reads that go on where
//! they were.

use super::tables::{IDENTITY, Reading};
use super::{FileCatalog, Store};
use crate::error::{Error, Result};
use crate::types::{Commit, Entry, Event, LeaseId, Revision, Snapshot};
use crate::wire::Change;
use std::ops::Bound;
use std::time::Duration;

/// How a [`Change`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    Committed(Commit),
    Granted(LeaseId),
    Kept(Duration),
    Revoked,
}

/// A number that tells a catalog from others. It keeps no secret.
pub(super) fn draw() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let drawn = RandomState::new().build_hasher().finish();
    drawn.max(1)
}

impl FileCatalog {
    /// Makes changes in their order, in one transaction of redb, which waits for the disk once: none of them is
    /// made if this is an error. Each has a result of its own, and a revision if it changes an entry.
    pub(crate) fn batch(&self, changes: &[Change]) -> Result<Vec<Result<Changed>>> {
        self.store.write(|writing| {
            let mut results = Vec::with_capacity(changes.len());
            for change in changes {
                let result = match change {
                    Change::Commit(txn, token) => txn.check().and_then(|()| {
                        let commit = match token {
                            Some(token) => writing.commit_once(txn, token),
                            None => writing.commit(txn),
                        };
                        commit.map(Changed::Committed)
                    }),
                    Change::Grant(ttl) => writing.grant(*ttl).map(Changed::Granted),
                    Change::Keep(lease) => writing.keep(*lease).map(Changed::Kept),
                    Change::Revoke(lease) => writing.revoke(*lease).map(|()| Changed::Revoked),
                };
                match result {
                    // An error of the disk ends the whole transaction. Refusals come before the first change.
                    Err(e @ Error::Failed { .. }) => return Err(e),
                    result => results.push(result),
                }
                writing.next();
            }
            Ok(results)
        })
    }

    /// The number that tells it from others, once it was opened to be served.
    pub(crate) fn identity(&self) -> Result<u64> {
        self.store.read(|reading| reading.counter(IDENTITY))
    }

    /// The newest state, which stays as it is.
    pub(crate) fn snapshot(&self) -> Result<FileSnapshot> {
        let reading = self.store.read_whole()?;
        Ok(FileSnapshot { revision: reading.revision()?, reading })
    }

    /// The changes of `from` and later, some `most` bytes of them, and the revision up to which these are all.
    pub(crate) fn changes(
        &self,
        prefix: &[u8],
        from: Revision,
        most: usize,
    ) -> Result<(Revision, Vec<Event>)> {
        self.store.read(|reading| reading.some_changes(prefix, from, most))
    }

    /// The newest revision.
    pub(crate) fn revision(&self) -> Result<Revision> {
        self.store.read(|reading| reading.revision())
    }
}

impl Store {
    /// The newest state without keys of leases that are due.
    fn read_whole(&self) -> Result<Reading> {
        let reading = self.reading()?;
        if !reading.is_due(&*self.options.clock)? {
            return Ok(reading);
        }
        self.write(|_| Ok(()))?;
        self.reading()
    }
}

/// A state of a catalog.
pub(crate) struct FileSnapshot {
    reading: Reading,
    revision: Revision,
}

impl FileSnapshot {
    /// The revision that it is of.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        self.reading.get(key)
    }

    /// Calls `see` with the entries of this prefix from a key on, until it says false. Whether it did.
    pub(crate) fn walk(
        &self,
        prefix: &[u8],
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<bool> {
        self.reading.walk(prefix, from, see)
    }

    /// The entries as of an older revision.
    pub(crate) fn range(&self, prefix: &[u8], at: Option<Revision>) -> Result<Snapshot> {
        self.reading.range(prefix, at)
    }
}
