//! Memory of the readers: content that is being read, or waits for room in the queue of items.
//!
//! Invariants:
//! - at most `limit` bytes are taken, unless a single share is larger;
//! - a thread that waits holds no share, so those that hold one go on and return it.

use crate::guard::lock;
use std::sync::{Condvar, Mutex, PoisonError};

/// Bytes that the readers of a session may hold.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    taken: Mutex<usize>,
    returned: Condvar,
}

/// What a thread holds of a budget; returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    budget: &'a Budget,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Budget {
        Budget { limit, taken: Mutex::new(0), returned: Condvar::new() }
    }

    /// Takes `bytes`; blocks the thread while others hold too much.
    pub(crate) fn take(&self, bytes: usize) -> Share<'_> {
        let mut taken = lock(&self.taken);
        while *taken > 0 && *taken + bytes > self.limit {
            taken = self.returned.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += bytes;
        Share { budget: self, bytes }
    }
}

impl Share<'_> {
    /// Takes `bytes` more if there is room now.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let mut taken = lock(&self.budget.taken);
        let fits = *taken + bytes <= self.budget.limit;
        if fits {
            *taken += bytes;
            self.bytes += bytes;
        }
        fits
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *lock(&self.budget.taken) -= self.bytes;
        self.budget.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn threads_hold_no_more_than_the_limit_together() {
        let (budget, held, most) = (Budget::new(10), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let _share = budget.take(4);
                        most.fetch_max(held.fetch_add(4, SeqCst) + 4, SeqCst);
                        std::thread::yield_now();
                        held.fetch_sub(4, SeqCst);
                    }
                });
            }
        });
        assert!(most.load(SeqCst) <= 8, "{most:?}");
        assert_eq!(*lock(&budget.taken), 0);
    }

    #[test]
    fn a_share_grows_within_the_limit_and_a_large_one_is_taken_alone() {
        let budget = Budget::new(10);
        let mut share = budget.take(6);
        assert!(share.grow(4) && !share.grow(1));
        drop(share);
        let large = budget.take(100);
        assert_eq!(*lock(&budget.taken), 100);
        drop(large);
        assert_eq!(*lock(&budget.taken), 0);
    }
}
