//! Rows that a member under rebuild or resync holds beyond its progress.
//!
//! Invariants:
//! - `missed` is set while the member is in resync: of the regions in it the member holds only the
//!   rows below its progress;
//! - a row in `ahead` was written to the member under the stripe lock, and every write to the row
//!   since then reaches the member; none of them is below the progress of the rebuild.

use std::cell::RefCell;
use std::collections::BTreeSet;

#[derive(Default)]
pub(crate) struct HeldRows {
    /// Regions that the member has missed, if it is in resync.
    missed: RefCell<Option<BTreeSet<u64>>>,
    /// Rows that were rebuilt ahead of the progress.
    ahead: RefCell<BTreeSet<u64>>,
}

impl HeldRows {
    /// Starts a resync of these regions.
    pub(crate) fn begin_resync(&self, regions: impl IntoIterator<Item = u64>) {
        *self.missed.borrow_mut() = Some(regions.into_iter().collect());
    }

    /// Whether the member may have missed writes to a region; true if that is unknown.
    pub(crate) fn missed(&self, region: u64) -> bool {
        self.missed.borrow().as_ref().is_none_or(|missed| missed.contains(&region))
    }

    /// The regions to resync, in order.
    pub(crate) fn missed_regions(&self) -> Vec<u64> {
        self.missed.borrow().iter().flatten().copied().collect()
    }

    /// Forgets everything: the rebuild or resync has ended.
    pub(crate) fn clear(&self) {
        self.missed.borrow_mut().take();
        self.ahead.borrow_mut().clear();
    }

    /// Marks a row as rebuilt; the caller holds the stripe lock.
    pub(crate) fn mark(&self, row: u64) {
        self.ahead.borrow_mut().insert(row);
    }

    pub(crate) fn is_marked(&self, row: u64) -> bool {
        self.ahead.borrow().contains(&row)
    }

    /// Removes the marks of rows from `row` on.
    pub(crate) fn unmark_from(&self, row: u64) {
        drop(self.ahead.borrow_mut().split_off(&row));
    }

    /// Removes the marks of rows below the progress `done`, which imply them.
    pub(crate) fn unmark_below(&self, done: u64) {
        let mut ahead = self.ahead.borrow_mut();
        *ahead = ahead.split_off(&done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_removed_on_the_side_that_is_named() {
        let rows = HeldRows::default();
        (0..10).for_each(|row| rows.mark(row));
        rows.unmark_below(3);
        rows.unmark_from(7);
        let marked: Vec<u64> = (0..10).filter(|row| rows.is_marked(*row)).collect();
        assert_eq!(marked, [3, 4, 5, 6]);
        assert!(rows.missed(1), "unknown");
        rows.begin_resync([4, 2]);
        assert_eq!((rows.missed(1), rows.missed(2), rows.missed_regions()), (false, true, vec![2, 4]));
        rows.clear();
        assert!(rows.missed(1) && !rows.is_marked(5));
    }
}
