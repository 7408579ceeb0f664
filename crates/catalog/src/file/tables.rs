//! The tables of the file, and reading them.

use super::failed;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::types::{Entry, Event, LeaseId, Revision, Snapshot};
use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// An entry: revision that made it, revision that put it, lease (zero for none), value.
pub(super) type Row = (u64, u64, u64, &'static [u8]);
/// A change: key, value put (`None` for a deletion), and the entry before it.
pub(super) type HistoryRow = (&'static [u8], Option<&'static [u8]>, Option<Row>);
/// A lease: time to live and end, in milliseconds, and the start of the host that the end counts from.
pub(super) type LeaseRow = (u64, u64, &'static str);

/// Counters, by the names below.
pub(super) const COUNTERS: TableDefinition<&str, u64> = TableDefinition::new("counters");
/// Entries by key.
pub(super) const ENTRIES: TableDefinition<&[u8], Row> = TableDefinition::new("entries");
/// Changes by revision, and their number within it.
pub(super) const HISTORY: TableDefinition<(u64, u32), HistoryRow> = TableDefinition::new("history");
/// Leases by identifier.
pub(super) const LEASES: TableDefinition<u64, LeaseRow> = TableDefinition::new("leases");
/// The keys of each lease.
pub(super) const LEASED: TableDefinition<(u64, &[u8]), ()> = TableDefinition::new("leased");

/// The transactions of clients of a server that were made, by client and number, each with its revision. Of a
/// client those that it has no answer to are needed.
pub(super) const DONE: TableDefinition<(u64, u64), u64> = TableDefinition::new("done");

/// Version of these tables.
pub(super) const FORMAT: u64 = 1;
/// Counter: the version.
pub(super) const VERSION: &str = "version";
/// Counter: the newest revision.
pub(super) const REVISION: &str = "revision";
/// Counter: the oldest revision whose state can still be read.
pub(super) const OLDEST: &str = "oldest";
/// Counter, of a catalog that was served: a number that tells it from others.
pub(super) const IDENTITY: &str = "identity";
/// Counter: leases granted.
pub(super) const GRANTED: &str = "granted";

/// Whether a lease has run out.
pub(super) fn is_over((_, end, boot): (u64, u64, &str), clock: &dyn Clock) -> bool {
    boot != clock.boot() || u128::from(end) <= clock.now().as_millis()
}

/// The tables, for reading.
pub(super) struct Reading {
    name: String,
    counters: ReadOnlyTable<&'static str, u64>,
    entries: ReadOnlyTable<&'static [u8], Row>,
    history: ReadOnlyTable<(u64, u32), HistoryRow>,
    leases: ReadOnlyTable<u64, LeaseRow>,
}

fn entry(key: &[u8], (created, modified, lease, value): (u64, u64, u64, &[u8])) -> Entry {
    let lease = (lease > 0).then_some(LeaseId(lease));
    Entry { key: key.to_vec(), value: value.to_vec(), created, modified, lease }
}

impl Reading {
    pub(super) fn open(txn: &ReadTransaction, name: &str) -> Result<Reading> {
        let failed = |e: redb::TableError| failed(name, "read", e);
        Ok(Reading {
            name: name.to_owned(),
            counters: txn.open_table(COUNTERS).map_err(failed)?,
            entries: txn.open_table(ENTRIES).map_err(failed)?,
            history: txn.open_table(HISTORY).map_err(failed)?,
            leases: txn.open_table(LEASES).map_err(failed)?,
        })
    }

    fn failed(&self, e: redb::StorageError) -> Error {
        failed(&self.name, "read", e)
    }

    pub(super) fn counter(&self, name: &str) -> Result<u64> {
        let found = self.counters.get(name).map_err(|e| self.failed(e))?;
        Ok(found.map_or(0, |value| value.value()))
    }

    /// Whether there is a lease that has run out.
    pub(super) fn is_due(&self, clock: &dyn Clock) -> Result<bool> {
        for row in self.leases.iter().map_err(|e| self.failed(e))? {
            if is_over(row.map_err(|e| self.failed(e))?.1.value(), clock) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn lease_count(&self) -> Result<usize> {
        let count = self.leases.len().map_err(|e| self.failed(e))?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        let found = self.entries.get(key).map_err(|e| self.failed(e))?;
        Ok(found.map(|row| entry(key, row.value())))
    }

    /// The entries of these keys.
    pub(super) fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Entry>> {
        let keys: BTreeSet<&Vec<u8>> = keys.iter().collect();
        keys.into_iter().filter_map(|key| self.get(key).transpose()).collect()
    }

    /// At most `most` entries with this prefix, behind `after`.
    pub(super) fn page(&self, prefix: &[u8], after: &[u8], most: usize) -> Result<Vec<Entry>> {
        let from = (Bound::Excluded(after.max(prefix)), Bound::Unbounded);
        let from = if after < prefix { (Bound::Included(prefix), Bound::Unbounded) } else { from };
        let mut found = Vec::new();
        for row in self.entries.range::<&[u8]>(from).map_err(|e| self.failed(e))?.take(most) {
            let (key, row) = row.map_err(|e| self.failed(e))?;
            if !key.value().starts_with(prefix) {
                break;
            }
            found.push(entry(key.value(), row.value()));
        }
        Ok(found)
    }

    /// Refuses a revision whose later changes are not all kept.
    pub(super) fn check_kept(&self, at: Revision) -> Result<()> {
        let (at, oldest) = (at.max(1), self.counter(OLDEST)?);
        if at < oldest { Err(Error::Compacted { at }) } else { Ok(()) }
    }

    /// Calls `see` with the newest entries.
    pub(super) fn visit(&self, prefix: &[u8], see: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        for row in self.entries.range::<&[u8]>(prefix..).map_err(|e| self.failed(e))? {
            let (key, row) = row.map_err(|e| self.failed(e))?;
            if !key.value().starts_with(prefix) {
                break;
            }
            see(key.value(), row.value().3);
        }
        Ok(())
    }

    /// Whether the tables are those of this version.
    pub(super) fn is_known(&self) -> Result<bool> {
        Ok(self.counter(VERSION)? == FORMAT)
    }

    /// The newest entries, from which the changes since `at` are undone, the newest first.
    pub(super) fn range(&self, prefix: &[u8], at: Option<Revision>) -> Result<Snapshot> {
        let newest = self.counter(REVISION)?;
        let revision = at.unwrap_or(newest);
        self.check_kept(revision)?;
        if revision > newest {
            return Err(Error::Invalid(format!("revision {revision} is to come; the newest is {newest}")));
        }
        let mut found = Vec::new();
        for row in self.entries.range::<&[u8]>(prefix..).map_err(|e| self.failed(e))? {
            let (key, row) = row.map_err(|e| self.failed(e))?;
            if !key.value().starts_with(prefix) {
                break;
            }
            found.push(entry(key.value(), row.value()));
        }
        if revision == newest {
            return Ok(Snapshot { revision, entries: found });
        }
        let mut entries: BTreeMap<_, _> = found.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        let later = self.history.range((revision + 1, 0)..).map_err(|e| self.failed(e))?;
        for change in later.rev() {
            let change = change.map_err(|e| self.failed(e))?.1;
            let (key, _, before) = change.value();
            if key.starts_with(prefix) {
                match before {
                    None => entries.remove(key),
                    Some(row) => entries.insert(key.to_vec(), entry(key, row)),
                };
            }
        }
        Ok(Snapshot { revision, entries: entries.into_values().collect() })
    }

    /// Calls `see` with the entries of this prefix from a key on, until it says false. Whether it did.
    pub(super) fn walk(
        &self,
        prefix: &[u8],
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<bool> {
        let from = match from {
            Bound::Included(key) | Bound::Excluded(key) if key < prefix => Bound::Included(prefix),
            Bound::Unbounded => Bound::Included(prefix),
            from => from,
        };
        for row in self.entries.range::<&[u8]>((from, Bound::Unbounded)).map_err(|e| self.failed(e))? {
            let (key, row) = row.map_err(|e| self.failed(e))?;
            if !key.value().starts_with(prefix) {
                break;
            }
            if !see(entry(key.value(), row.value())) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The revision of the newest state.
    pub(super) fn revision(&self) -> Result<Revision> {
        self.counter(REVISION)
    }

    /// The newest revision, and the changes of `from` and later.
    pub(super) fn changes(&self, prefix: &[u8], from: Revision) -> Result<(Revision, Vec<Event>)> {
        self.some_changes(prefix, from, usize::MAX)
    }

    /// The changes of `from` and later, of whole revisions, until they have `most` bytes of keys and values, and
    /// the revision up to which these are all.
    pub(super) fn some_changes(
        &self,
        prefix: &[u8],
        from: Revision,
        most: usize,
    ) -> Result<(Revision, Vec<Event>)> {
        self.check_kept(from)?;
        let (mut events, mut bytes) = (Vec::<Event>::new(), 0);
        for change in self.history.range((from, 0)..).map_err(|e| self.failed(e))? {
            let (at, change) = change.map_err(|e| self.failed(e))?;
            let revision = at.value().0;
            if bytes >= most
                && let Some(last) = events.last()
                && revision > last.revision
            {
                return Ok((revision - 1, events));
            }
            let (key, value, _) = change.value();
            if key.starts_with(prefix) {
                bytes += key.len() + value.map_or(0, <[u8]>::len);
                let value = value.map(<[u8]>::to_vec);
                events.push(Event { revision, key: key.to_vec(), value });
            }
        }
        Ok((self.counter(REVISION)?, events))
    }
}
