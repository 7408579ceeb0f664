//! Reads and writes of the array, and the logs on the members that make writes survive a crash.
//!
//! Invariants:
//! - a stripe is changed only under its exclusive lock in `locks`, by a request in `admission` or a
//!   background task;
//! - `requests` rises with each request of a user: background tasks see in it whether users are
//!   active.

pub(crate) mod admission;
pub(crate) mod flush;
pub(crate) mod hedge;
pub(crate) mod intent;
pub(crate) mod journal;
pub(crate) mod locks;
pub(crate) mod overlay;
pub(crate) mod plan;
pub(crate) mod read;
pub(crate) mod read_cache;
pub(crate) mod refused;
pub(crate) mod rows;
pub(crate) mod sums;
pub(crate) mod units;
pub(crate) mod window;
pub(crate) mod write;

use crate::format::geometry::Geometry;
use crate::options::Options;
use admission::Admission;
use hedge::HedgeBudget;
use locks::{MemoryBudget, RowLocks};
use read_cache::ReadCache;
use refused::Shortage;
use rows::StripeQueues;
use std::cell::Cell;
use std::rc::Rc;
use window::ReadWindow;

/// Counts since the array was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Stripe writes of a whole stripe, without reading.
    pub full_writes: u64,
    /// Read-modify-writes, in parts of stripes.
    pub modify_writes: u64,
    /// Reconstruct-writes, in parts of stripes.
    pub reconstruct_writes: u64,
    /// Writes that needed the content of a missing unit, in parts of stripes.
    pub degraded_writes: u64,
    /// Reads that were reconstructed, in parts of stripes.
    pub reconstructed: u64,
    /// Hedged reads in which the reconstruction came first.
    pub hedges_won: u64,
}

/// Requests under way, and what they share.
pub(crate) struct IoState {
    pub(crate) locks: Rc<RowLocks>,
    pub(crate) rows: StripeQueues,
    pub(crate) read_cache: ReadCache,
    pub(crate) hedges: HedgeBudget,
    pub(crate) budget: Rc<MemoryBudget>,
    pub(crate) window: Rc<ReadWindow>,
    pub(crate) admission: Admission,
    pub(crate) shortage: Rc<Shortage>,
    counts: Cell<Counts>,
    requests: Cell<u64>,
}

impl IoState {
    pub(crate) fn new(geometry: &Geometry, options: &Options) -> IoState {
        IoState {
            locks: Rc::default(),
            rows: StripeQueues::default(),
            read_cache: ReadCache::new(geometry.stripe()),
            hedges: HedgeBudget::new(options.hedge_percent),
            budget: Rc::new(MemoryBudget::new(options.memory)),
            window: Rc::default(),
            admission: Admission::default(),
            shortage: Rc::default(),
            counts: Cell::default(),
            requests: Cell::default(),
        }
    }

    /// Counts since the array was started.
    pub(crate) fn counts(&self) -> Counts {
        self.counts.get()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Counts a read or write of a user.
    pub(crate) fn begin_request(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    /// Reads and writes of users that have begun since the array was started.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.get()
    }
}
