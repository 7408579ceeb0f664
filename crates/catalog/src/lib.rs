//! A catalog: keys and values with revisions, which several hosts change together.
//!
//! [`Catalog`] is what the pools need of a store, and no more: transactions of several keys that are
//! conditional on revisions, ranges by prefix as of a revision, watches from a revision, and leases,
//! whose keys vanish when their holder does not keep them. It has three engines:
//!
//! | engine | for | survives |
//! |---|---|---|
//! | [`FileCatalog`] | the processes of one host: one file (`redb`), without a server | a crash at any write |
//! | [`RemoteCatalog`] | several hosts: a [server](server::CatalogServer) of such a file | a restart of the server |
//! | [`EtcdCatalog`] | several hosts: etcd 3.4 or later, by its gRPC API | the loss of a minority of its members |
//!
//! All pass the same tests (`tests/conformance.rs`), so that code above does not know which one it has.
//!
//! ```
//! use longhaul_catalog::{Catalog, Commit, Expect, FileCatalog, Txn};
//!
//! let catalog = FileCatalog::in_memory()?;
//! let first = Txn::new().expect(b"pool/a", Expect::Absent).put(b"pool/a", b"1");
//! assert!(matches!(catalog.commit(&first)?, Commit::Done(_)));
//! assert!(matches!(catalog.commit(&first)?, Commit::Conflict(_)));
//! let found = catalog.range(b"pool/", None)?;
//! assert_eq!(found.entries[0].value, b"1");
//! # Ok::<(), longhaul_catalog::Error>(())
//! ```
//!
//! All calls block; none of them belongs on the data path.

#![forbid(unsafe_code)]

mod clock;
mod error;
mod etcd;
mod file;
mod remote;
mod secure;
pub mod server;
mod spec;
mod types;
pub mod wire;

pub use clock::{Clock, HostClock, ManualClock};
pub use error::{Error, Result};
pub use etcd::EtcdCatalog;
pub use file::{FileCatalog, Options as FileOptions};
pub use remote::{Access, RemoteCatalog};
pub use secure::{Acceptor, Connector, Denial, Denied, Peer, Secure};
pub use spec::CatalogSpec;
pub use types::{
    Commit, Entry, Event, Expect, LeaseId, MAX_CHANGES, MAX_OPERATIONS, MAX_TRANSACTION, Op, Revision,
    Snapshot, Txn,
};

use std::time::Duration;

/// A store of keys and values that several processes or hosts change together.
pub trait Catalog: Send + Sync {
    /// What the catalog is, for messages: a path, or addresses.
    fn name(&self) -> String;

    /// Makes all changes of a transaction if all its expectations hold, and otherwise none.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the transaction may or may not have been made: read again, then decide.
    /// [`Error::LeaseExpired`] if it puts a key under a lease that has run out; nothing is changed then.
    /// [`Error::Invalid`] for a transaction that names a key twice or is too large.
    fn commit(&self, txn: &Txn) -> Result<Commit>;

    /// The entries whose keys begin with `prefix`, sorted by key, all as of one revision: `at`, or
    /// the newest one.
    ///
    /// # Errors
    /// [`Error::Compacted`] if the entries as of `at` are not kept any more.
    fn range(&self, prefix: &[u8], at: Option<Revision>) -> Result<Snapshot>;

    /// Calls `see` with key and value of each entry whose key begins with `prefix`, sorted by key, all as of
    /// the newest revision. As [`range`](Self::range), without a copy of all of them where a store can do that.
    ///
    /// # Errors
    /// The catalog cannot be read.
    fn visit(&self, prefix: &[u8], see: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        self.range(prefix, None)?.entries.iter().for_each(|entry| see(&entry.key, &entry.value));
        Ok(())
    }

    /// The entry of one key, as of now.
    ///
    /// # Errors
    /// The catalog cannot be read.
    fn get(&self, key: &[u8]) -> Result<Option<Entry>>;

    /// The entries of several keys, sorted by key, all as of one revision; those that do not exist are left
    /// out. In one round trip for as many keys as a transaction may have.
    ///
    /// # Errors
    /// The catalog cannot be read.
    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Entry>> {
        let found = keys.iter().filter_map(|key| self.get(key).transpose());
        let mut found = found.collect::<Result<Vec<Entry>>>()?;
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found.dedup_by(|a, b| a.key == b.key);
        Ok(found)
    }

    /// At most `most` entries whose keys begin with `prefix` and are greater than `after`, sorted by key, as
    /// of now. Fewer only if there are no more.
    ///
    /// # Errors
    /// The catalog cannot be read.
    fn page(&self, prefix: &[u8], after: &[u8], most: usize) -> Result<Vec<Entry>> {
        let all = self.range(prefix, None)?.entries;
        Ok(all.into_iter().filter(|entry| *entry.key > *after).take(most).collect())
    }

    /// As [`page`](Self::page), of keys that are not greater than `last`: a store in which a page costs as much as
    /// all keys behind it looks no further.
    ///
    /// # Errors
    /// The catalog cannot be read.
    fn page_until(&self, prefix: &[u8], after: &[u8], last: &[u8], most: usize) -> Result<Vec<Entry>> {
        let mut page = self.page(prefix, after, most)?;
        page.retain(|entry| *entry.key <= *last);
        Ok(page)
    }

    /// As [`get_all`](Self::get_all) and [`page`](Self::page), in one round trip: the page is not older than the
    /// entries of the keys.
    ///
    /// # Errors
    /// The catalog cannot be read.
    fn page_with(
        &self,
        keys: &[Vec<u8>],
        prefix: &[u8],
        after: &[u8],
        most: usize,
    ) -> Result<(Vec<Entry>, Vec<Entry>)> {
        Ok((self.get_all(keys)?, self.page(prefix, after, most)?))
    }

    /// Begins to watch the keys that begin with `prefix`: all changes of revision `from` or later,
    /// in their order.
    ///
    /// # Errors
    /// [`Error::Compacted`], here or from the watch, if changes as of `from` are not kept any more.
    fn watch(&self, prefix: &[u8], from: Revision) -> Result<Box<dyn Watch>>;

    /// Makes a lease that runs out `ttl` after it was made or last kept; a store may round it up, by
    /// seconds.
    ///
    /// # Errors
    /// The catalog cannot be written.
    fn grant(&self, ttl: Duration) -> Result<LeaseId>;

    /// Keeps a lease: it runs out a whole time to live from now, which is returned.
    ///
    /// # Errors
    /// [`Error::LeaseExpired`] if it has run out.
    fn keep(&self, lease: LeaseId) -> Result<Duration>;

    /// Ends a lease, and deletes its keys. One that has run out already is not an error.
    ///
    /// # Errors
    /// The catalog cannot be written.
    fn revoke(&self, lease: LeaseId) -> Result<()>;
}

/// The changes of a part of a catalog, in their order.
pub trait Watch: Send {
    /// Waits until there are changes, for `wait` at most, and returns them: all those of a revision
    /// at once. An empty list means that the time is over.
    ///
    /// # Errors
    /// [`Error::Compacted`] if changes were lost because the watch was too slow: read the range again.
    fn next(&mut self, wait: Duration) -> Result<Vec<Event>>;
}
