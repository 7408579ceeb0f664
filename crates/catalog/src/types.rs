//! What goes into a catalog and comes out of it.

use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::fmt;

/// Number of a state of the catalog: it rises by one with each transaction that changes anything.
pub type Revision = u64;

/// Most expectations of one transaction: etcd's default limit.
pub const MAX_OPERATIONS: usize = 128;
/// Most changes of one transaction: etcd's limit holds for each list of a transaction, and a transaction may
/// have others within it.
pub const MAX_CHANGES: usize = 2048;
/// Most bytes of keys and values in one transaction: below etcd's default limit of 1.5 MiB for a
/// request, which also counts the prefix of each key and some bytes for each operation.
pub const MAX_TRANSACTION: usize = 1 << 20;

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Any bytes but none.
    pub key: Vec<u8>,
    /// Any bytes.
    pub value: Vec<u8>,
    /// Revision of the transaction that made the key.
    pub created: Revision,
    /// Revision of the transaction that last put it.
    pub modified: Revision,
    /// The lease that the key vanishes with.
    pub lease: Option<LeaseId>,
}

/// Entries as of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// That revision. A watch from the next one on misses nothing.
    pub revision: Revision,
    /// Sorted by key.
    pub entries: Vec<Entry>,
}

/// Identifies a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// What a transaction expects of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It does not exist.
    Absent,
    /// It exists.
    Present,
    /// It exists and was last put by the transaction of this revision.
    Modified(Revision),
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The key gets this value, and this lease instead of the one it had.
    Put {
        /// Its new value.
        value: Vec<u8>,
        /// The lease that it vanishes with.
        lease: Option<LeaseId>,
    },
    /// The key is deleted; one that does not exist is left as it is.
    Delete,
}

/// A transaction: changes that are made together, if all expectations hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    pub(crate) expectations: Vec<(Vec<u8>, Expect)>,
    pub(crate) changes: Vec<(Vec<u8>, Op)>,
}

impl Txn {
    /// A transaction without expectations and changes.
    pub fn new() -> Txn {
        Txn::default()
    }

    /// Bytes of keys and values, which may be [`MAX_TRANSACTION`] at most.
    pub fn bytes(&self) -> usize {
        let put = |op: &Op| if let Op::Put { value, .. } = op { value.len() } else { 0 };
        let changed = self.changes.iter().map(|(key, op)| key.len() + put(op)).sum::<usize>();
        changed + self.expectations.iter().map(|(key, _)| key.len()).sum::<usize>()
    }

    /// Adds an expectation.
    #[must_use]
    pub fn expect(mut self, key: &[u8], expect: Expect) -> Txn {
        self.expectations.push((key.to_vec(), expect));
        self
    }

    /// Adds a put without a lease.
    #[must_use]
    pub fn put(self, key: &[u8], value: &[u8]) -> Txn {
        self.change(key, Op::Put { value: value.to_vec(), lease: None })
    }

    /// Adds a put of a key that vanishes with a lease.
    #[must_use]
    pub fn put_leased(self, key: &[u8], value: &[u8], lease: LeaseId) -> Txn {
        self.change(key, Op::Put { value: value.to_vec(), lease: Some(lease) })
    }

    /// Adds a deletion.
    #[must_use]
    pub fn delete(self, key: &[u8]) -> Txn {
        self.change(key, Op::Delete)
    }

    fn change(mut self, key: &[u8], op: Op) -> Txn {
        self.changes.push((key.to_vec(), op));
        self
    }

    /// Refuses what one of the engines could not do.
    pub(crate) fn check(&self) -> Result<()> {
        let (expected, changed) = (self.expectations.len(), self.changes.len());
        if expected > MAX_OPERATIONS || changed > MAX_CHANGES {
            let most = format!("above {MAX_OPERATIONS} and {MAX_CHANGES}");
            return Err(Error::Invalid(format!("{expected} expectations and {changed} changes, {most}")));
        }
        let bytes = self.bytes();
        if bytes > MAX_TRANSACTION {
            return Err(Error::Invalid(format!("{bytes} bytes, above {MAX_TRANSACTION}")));
        }
        let keys = self.changes.iter().map(|(key, _)| key);
        if keys.clone().chain(self.expectations.iter().map(|(key, _)| key)).any(Vec::is_empty) {
            return Err(Error::Invalid("an empty key".to_owned()));
        }
        let mut seen = BTreeSet::new();
        match keys.into_iter().find(|key| !seen.insert(*key)) {
            None => Ok(()),
            Some(twice) => {
                Err(Error::Invalid(format!("two changes of the key '{}'", String::from_utf8_lossy(twice))))
            }
        }
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// All changes were made; the catalog is at this revision.
    Done(Revision),
    /// An expectation did not hold as of this revision: nothing was changed.
    Conflict(Revision),
}

impl Commit {
    /// Whether the changes were made.
    pub fn is_done(self) -> bool {
        matches!(self, Commit::Done(_))
    }
}

/// A change of a key, from a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Revision of the transaction that made it.
    pub revision: Revision,
    /// The key.
    pub key: Vec<u8>,
    /// Its value; `None` if the key was deleted.
    pub value: Option<Vec<u8>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_has_bounds() {
        let invalid = |txn: Txn, part: &str| match txn.check() {
            Err(Error::Invalid(why)) => assert!(why.contains(part), "{why}"),
            other => panic!("{other:?}"),
        };
        invalid(Txn::new().put(b"a", b"1").delete(b"a"), "two changes of the key 'a'");
        invalid(Txn::new().put(b"", b"1"), "an empty key");
        invalid(Txn::new().expect(b"", Expect::Absent), "an empty key");
        invalid(Txn::new().put(b"a", &vec![0; MAX_TRANSACTION]), "1048577 bytes");
        let many = |n: usize| (0..n).fold(Txn::new(), |txn, i| txn.put(i.to_string().as_bytes(), b""));
        assert!(many(MAX_CHANGES).check().is_ok());
        invalid(many(MAX_CHANGES + 1), "0 expectations and 2049 changes");
        let key = |i: usize| i.to_string().into_bytes();
        let many = |n: usize| (0..n).fold(Txn::new(), |txn, i| txn.expect(&key(i), Expect::Absent));
        assert!(many(MAX_OPERATIONS).check().is_ok());
        invalid(many(MAX_OPERATIONS + 1), "129 expectations");
        let both = Txn::new().expect(b"a", Expect::Present).expect(b"a", Expect::Modified(1)).delete(b"a");
        assert!(both.check().is_ok());
    }
}
