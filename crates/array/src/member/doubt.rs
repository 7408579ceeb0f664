//! Whether a member may have lost writes that it had not flushed.
//!
//! Invariants:
//! - `settled` never exceeds `raised`;
//! - a member is in doubt as long as they differ: no flush of it counts.

use std::cell::Cell;

/// Number of times that a member may have lost unflushed writes, and how many of those have been
/// verified.
#[derive(Default)]
pub(crate) struct CacheDoubt {
    raised: Cell<u64>,
    settled: Cell<u64>,
}

impl CacheDoubt {
    /// Number of times that the member may have lost unflushed writes.
    pub(crate) fn raised(&self) -> u64 {
        self.raised.get()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.raised.get() != self.settled.get()
    }

    pub(crate) fn raise(&self) {
        self.raised.set(self.raised.get() + 1);
    }

    /// Settles the doubts up to this number.
    pub(crate) fn settle(&self, raised: u64) {
        assert!(raised <= self.raised.get(), "doubt {raised} is settled before it is raised");
        self.settled.set(raised);
    }
}
