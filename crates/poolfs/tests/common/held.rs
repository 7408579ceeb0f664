//! A catalog that holds the calls of one thread of a host, or refuses them.

use longhaul_catalog::{Catalog, Commit, Entry, Error, LeaseId, Result, Revision, Snapshot, Txn, Watch};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What becomes of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// They are executed.
    Open,
    /// They wait.
    Waits,
    /// They fail, those that have waited as well.
    Fails,
    /// Each takes a while.
    Slow,
}

/// See the module.
pub struct Held {
    below: Arc<dyn Catalog>,
    thread: &'static str,
    hold: Mutex<Hold>,
    waiting: AtomicUsize,
    changed: Condvar,
}

impl Held {
    /// The catalog `below`, of which threads of this name are held.
    pub fn new(below: &Arc<dyn Catalog>, thread: &'static str, hold: Hold) -> Arc<Held> {
        let (waiting, changed) = (AtomicUsize::new(0), Condvar::new());
        Arc::new(Held { below: Arc::clone(below), thread, hold: Mutex::new(hold), waiting, changed })
    }

    /// Calls that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, Hold> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it, also for those that wait.
    pub fn set(&self, hold: Hold) {
        *self.lock() = hold;
        self.changed.notify_all();
    }

    fn passed<T>(&self, call: impl FnOnce(&dyn Catalog) -> Result<T>) -> Result<T> {
        if std::thread::current().name() == Some(self.thread) {
            let mut hold = self.lock();
            self.waiting.fetch_add(1, SeqCst);
            while *hold == Hold::Waits {
                hold = self.changed.wait(hold).unwrap_or_else(PoisonError::into_inner);
            }
            self.waiting.fetch_sub(1, SeqCst);
            let now = *hold;
            drop(hold);
            match now {
                Hold::Fails => {
                    return Err(Error::Unreachable { catalog: "held".into(), why: "by the test".into() });
                }
                // The distance of a catalog that is far away.
                Hold::Slow => std::thread::sleep(Duration::from_millis(5)),
                Hold::Open | Hold::Waits => {}
            }
        }
        call(&*self.below)
    }
}

impl Catalog for Held {
    fn name(&self) -> String {
        "held".into()
    }

    fn commit(&self, txn: &Txn) -> Result<Commit> {
        self.passed(|below| below.commit(txn))
    }

    fn range(&self, prefix: &[u8], at: Option<Revision>) -> Result<Snapshot> {
        self.passed(|below| below.range(prefix, at))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        self.passed(|below| below.get(key))
    }

    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Entry>> {
        self.passed(|below| below.get_all(keys))
    }

    fn page(&self, prefix: &[u8], after: &[u8], most: usize) -> Result<Vec<Entry>> {
        self.passed(|below| below.page(prefix, after, most))
    }

    fn watch(&self, prefix: &[u8], from: Revision) -> Result<Box<dyn Watch>> {
        self.below.watch(prefix, from)
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId> {
        self.below.grant(ttl)
    }

    fn keep(&self, lease: LeaseId) -> Result<Duration> {
        self.below.keep(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.below.revoke(lease)
    }
}
