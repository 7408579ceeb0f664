//! Cache of whole stripes for sequential reads of a degraded array.
//!
//! Reconstructing a part of a missing unit takes the same part of all other members. A reader that
//! requests a stripe piece by piece would cause most of it to be read twice: the stripe is read
//! once as a whole instead, and cached until it has been read to its end.
//!
//! Invariants:
//! - a stripe is read under its lock, and is dropped when a write to it is in place, before the
//!   write is acknowledged: what is cached when a read begins is never older than writes
//!   acknowledged before;
//! - `stripes` holds at most `limit` stripes: about [`MEMORY`] bytes.

use crate::event::Event;
use longhaul_cache::SequentialDetector;
use longhaul_engine::Buf;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes cached at most: what readers have in flight on long paths.
const MEMORY: u64 = 32 << 20;
/// Larger stripes are not cached: parts of them are large reads by themselves.
const STRIPE_MAX: u64 = 8 << 20;

pub(crate) struct ReadCache {
    /// Maximum number of stripes; zero if they are too large.
    limit: usize,
    /// Row and content of each stripe, the oldest first.
    stripes: RefCell<VecDeque<(u64, Rc<CachedStripe>)>>,
    ends: RefCell<SequentialDetector>,
}

/// The data of a stripe, or a read of it under way.
#[derive(Default)]
pub(crate) struct CachedStripe {
    data: RefCell<Option<Vec<Buf>>>,
    ended: Cell<bool>,
    changed: Event,
}

impl ReadCache {
    pub(crate) fn new(stripe: u64) -> ReadCache {
        let limit = if stripe <= STRIPE_MAX { (MEMORY / stripe.max(1)).max(2) as usize } else { 0 };
        ReadCache { limit, stripes: RefCell::default(), ends: RefCell::default() }
    }

    /// Whether the cache is in use.
    pub(crate) fn is_open(&self) -> bool {
        self.limit > 0
    }

    /// Records a read; returns whether it begins where another one ended.
    pub(crate) fn is_sequential(&self, offset: u64, len: u64) -> bool {
        self.ends.borrow_mut().record(&(offset..offset + len)).is_some()
    }

    /// The cached stripe and false, or a new one and true, which the caller must read.
    pub(crate) fn stripe(&self, row: u64) -> (Rc<CachedStripe>, bool) {
        let mut stripes = self.stripes.borrow_mut();
        if let Some((_, stripe)) = stripes.iter().find(|(of, _)| *of == row) {
            return (Rc::clone(stripe), false);
        }
        if stripes.len() >= self.limit {
            stripes.pop_front();
        }
        let stripe = Rc::new(CachedStripe::default());
        stripes.push_back((row, Rc::clone(&stripe)));
        (stripe, true)
    }

    /// Drops a stripe whose content has changed.
    pub(crate) fn forget(&self, row: u64) {
        self.stripes.borrow_mut().retain(|(of, _)| *of != row);
    }
}

impl CachedStripe {
    /// Ends the read: with the data, or `None` if it failed.
    pub(crate) fn end(&self, data: Option<Vec<Buf>>) {
        *self.data.borrow_mut() = data;
        self.ended.set(true);
        self.changed.notify();
    }

    /// The data units once they are read; `None` if that failed.
    pub(crate) async fn data(&self) -> Option<Vec<Buf>> {
        self.changed.until(|| self.ended.get()).await;
        self.data.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    #[test]
    fn a_stripe_is_read_once_and_forgotten_when_it_changes() {
        run(async {
            let cache = ReadCache::new(4 << 20);
            let (first, is_new) = cache.stripe(7);
            assert!(is_new);
            let (again, is_new) = cache.stripe(7);
            assert!(!is_new);
            first.end(Some(vec![Buf::copy_of(b"x")]));
            assert_eq!(again.data().await.expect("read")[0][..], b"x"[..]);
            cache.forget(7);
            assert!(cache.stripe(7).1);
            // A failed read is reported to all waiters; the number of stripes is bounded.
            let (failed, _) = cache.stripe(8);
            failed.end(None);
            assert!(failed.data().await.is_none());
            (100..108).for_each(|row| drop(cache.stripe(row)));
            assert_eq!(cache.stripes.borrow().len(), 8);
            assert!(cache.stripe(7).1);
            assert!(!ReadCache::new(16 << 20).is_open());
        });
    }

    #[test]
    fn sequential_reads_are_detected() {
        let cache = ReadCache::new(4096);
        assert!(!cache.is_sequential(0, 10));
        assert!(cache.is_sequential(10, 10) && cache.is_sequential(20, 5));
        assert!(!cache.is_sequential(10, 10));
    }
}
