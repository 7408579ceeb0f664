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
//! - [`MEMORY`] bounds the cache, give or take two stripes.

use crate::ends::Ends;
use crate::event::Event;
use longhaul_engine::Buf;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes cached at most: what readers have in flight on long paths.
const MEMORY: u64 = 32 << 20;
/// Larger stripes are not cached: parts of them are large reads by themselves.
const STRIPE_MAX: u64 = 8 << 20;

pub(crate) struct Kept {
    /// Maximum number of stripes; zero if they are too large.
    limit: usize,
    /// Oldest first.
    stripes: RefCell<VecDeque<(u64, Rc<Stripe>)>>,
    ends: Ends,
}

/// The data of a stripe, or a read of it under way.
#[derive(Default)]
pub(crate) struct Stripe {
    data: RefCell<Option<Vec<Buf>>>,
    ended: Cell<bool>,
    changed: Event,
}

impl Kept {
    pub(crate) fn new(stripe: u64) -> Kept {
        let limit = if stripe <= STRIPE_MAX { (MEMORY / stripe.max(1)).max(2) as usize } else { 0 };
        Kept { limit, stripes: RefCell::default(), ends: Ends::default() }
    }

    /// Whether the cache is in use.
    pub(crate) fn is_open(&self) -> bool {
        self.limit > 0
    }

    /// Records a read; returns whether it begins where another one ended.
    pub(crate) fn goes_on(&self, offset: u64, len: u64) -> bool {
        self.ends.goes_on(offset, len)
    }

    /// The cached stripe and false, or a new one and true, which the caller must read.
    pub(crate) fn stripe(&self, row: u64) -> (Rc<Stripe>, bool) {
        let mut stripes = self.stripes.borrow_mut();
        if let Some((_, stripe)) = stripes.iter().find(|(of, _)| *of == row) {
            return (Rc::clone(stripe), false);
        }
        if stripes.len() >= self.limit {
            stripes.pop_front();
        }
        let stripe = Rc::new(Stripe::default());
        stripes.push_back((row, Rc::clone(&stripe)));
        (stripe, true)
    }

    /// Drops a stripe whose content has changed.
    pub(crate) fn forget(&self, row: u64) {
        self.stripes.borrow_mut().retain(|(of, _)| *of != row);
    }
}

impl Stripe {
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
            let kept = Kept::new(4 << 20);
            let (first, is_new) = kept.stripe(7);
            assert!(is_new);
            let (again, is_new) = kept.stripe(7);
            assert!(!is_new);
            first.end(Some(vec![Buf::copy_of(b"x")]));
            assert_eq!(again.data().await.expect("read")[0][..], b"x"[..]);
            kept.forget(7);
            assert!(kept.stripe(7).1);
            // A failed read is reported to all waiters; the number of stripes is bounded.
            let (failed, _) = kept.stripe(8);
            failed.end(None);
            assert!(failed.data().await.is_none());
            (100..108).for_each(|row| drop(kept.stripe(row)));
            assert_eq!(kept.stripes.borrow().len(), 8);
            assert!(kept.stripe(7).1);
            assert!(!Kept::new(16 << 20).is_open());
        });
    }

    #[test]
    fn who_reads_on_is_known() {
        let kept = Kept::new(4096);
        assert!(!kept.goes_on(0, 10));
        assert!(kept.goes_on(10, 10) && kept.goes_on(20, 5));
        assert!(!kept.goes_on(10, 10));
    }
}
