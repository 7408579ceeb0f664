//! A catalog that counts round trips.

use longhaul_catalog::{Catalog, Commit, Entry, LeaseId, Result, Revision, Snapshot, Txn, Watch};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Counts reads and transactions: leases and watches do not depend on what a host does.
pub struct Counting {
    catalog: Arc<dyn Catalog>,
    calls: AtomicUsize,
}

impl Counting {
    /// A host's view of a catalog.
    pub fn new(catalog: &Arc<dyn Catalog>) -> Arc<Counting> {
        Arc::new(Counting { catalog: Arc::clone(catalog), calls: AtomicUsize::new(0) })
    }

    fn counted(&self) -> &dyn Catalog {
        self.calls.fetch_add(1, SeqCst);
        &*self.catalog
    }

    /// Round trips since the last time.
    pub fn take(&self) -> usize {
        self.calls.swap(0, SeqCst)
    }
}

impl Catalog for Counting {
    fn name(&self) -> String {
        self.catalog.name()
    }

    fn commit(&self, txn: &Txn) -> Result<Commit> {
        self.counted().commit(txn)
    }

    fn range(&self, prefix: &[u8], at: Option<Revision>) -> Result<Snapshot> {
        self.counted().range(prefix, at)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        self.counted().get(key)
    }

    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Entry>> {
        self.counted().get_all(keys)
    }

    fn page(&self, prefix: &[u8], after: &[u8], most: usize) -> Result<Vec<Entry>> {
        self.counted().page(prefix, after, most)
    }

    fn page_with(
        &self,
        keys: &[Vec<u8>],
        prefix: &[u8],
        after: &[u8],
        most: usize,
    ) -> Result<(Vec<Entry>, Vec<Entry>)> {
        self.counted().page_with(keys, prefix, after, most)
    }

    fn watch(&self, prefix: &[u8], from: Revision) -> Result<Box<dyn Watch>> {
        self.catalog.watch(prefix, from)
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId> {
        self.catalog.grant(ttl)
    }

    fn keep(&self, lease: LeaseId) -> Result<Duration> {
        self.catalog.keep(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.catalog.revoke(lease)
    }
}
