//! A catalog that a host cannot reach any more from some transaction on.

use longhaul_catalog::{Catalog, Commit, Entry, Error, LeaseId, Result, Revision, Snapshot, Txn, Watch};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// How the last transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is not made.
    Before,
    /// It is made, and its host does not hear of it.
    After,
    /// Its answer is lost, and the host lives on.
    AnswerLost,
}

/// See the module.
pub struct Dying {
    below: Arc<dyn Catalog>,
    left: AtomicU64,
    end: End,
    away: AtomicBool,
}

impl Dying {
    /// The catalog `below`, which ends at the transaction after `left` others.
    pub fn new(below: &Arc<dyn Catalog>, left: u64, end: End) -> Arc<Dying> {
        Arc::new(Dying {
            below: Arc::clone(below),
            left: AtomicU64::new(left),
            end,
            away: AtomicBool::new(false),
        })
    }

    /// Whether it has ended.
    pub fn is_dead(&self) -> bool {
        self.away.load(SeqCst) || self.end != End::AnswerLost && self.left.load(SeqCst) == u64::MAX
    }

    /// Takes the catalog away from the host, or gives it back.
    pub fn set_away(&self, is_away: bool) {
        self.away.store(is_away, SeqCst);
    }

    /// Whether its host did not hear of a transaction, and lives on.
    pub fn has_lost_an_answer(&self) -> bool {
        self.end == End::AnswerLost && self.left() == u64::MAX
    }

    /// Transactions that are left.
    pub fn left(&self) -> u64 {
        self.left.load(SeqCst)
    }

    fn live<T>(&self, call: impl FnOnce(&dyn Catalog) -> Result<T>) -> Result<T> {
        match self.is_dead() {
            true => Err(Error::Unreachable { catalog: "dying".into(), why: "it is dead".into() }),
            false => call(&*self.below),
        }
    }
}

impl Catalog for Dying {
    fn name(&self) -> String {
        "dying".into()
    }

    fn commit(&self, txn: &Txn) -> Result<Commit> {
        if self.is_dead() {
            return self.live(|below| below.commit(txn));
        }
        let before = self.left.load(SeqCst);
        if before == u64::MAX {
            return self.below.commit(txn);
        }
        self.left.store(before.wrapping_sub(1), SeqCst);
        if before > 0 {
            return self.below.commit(txn);
        }
        if self.end != End::Before {
            self.below.commit(txn)?;
        }
        let why = "the answer is lost".to_owned();
        Err(Error::Unknown { catalog: "dying".into(), why })
    }

    fn range(&self, prefix: &[u8], at: Option<Revision>) -> Result<Snapshot> {
        self.live(|below| below.range(prefix, at))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        self.live(|below| below.get(key))
    }

    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Entry>> {
        self.live(|below| below.get_all(keys))
    }

    fn page(&self, prefix: &[u8], after: &[u8], most: usize) -> Result<Vec<Entry>> {
        self.live(|below| below.page(prefix, after, most))
    }

    fn watch(&self, prefix: &[u8], from: Revision) -> Result<Box<dyn Watch>> {
        self.live(|below| below.watch(prefix, from))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId> {
        self.live(|below| below.grant(ttl))
    }

    fn keep(&self, lease: LeaseId) -> Result<Duration> {
        self.live(|below| below.keep(lease))
    }

    fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.live(|below| below.revoke(lease))
    }
}
