//! The order of changes: which change waits for which.
//!
//! An acknowledged write that the device does not have yet must look as if it were done: a later
//! operation on the same bytes waits for it.
//!
//! Invariants:
//! - changes take their turn in the order of arrival, whatever else they wait for;
//! - a change begins when no earlier one that overlaps it is left, so of two on the same bytes the
//!   later one wins;
//! - reads and barriers wait for changes, and nothing waits for them, so there is no deadlock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// All of a device.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;

/// Changes under way, on one thread.
#[derive(Default)]
pub(crate) struct Order(RefCell<OrderState>);

#[derive(Default)]
struct OrderState {
    next: u64,
    changes: BTreeMap<u64, PendingChange>,
}

struct PendingChange {
    bytes: Range<u64>,
    /// Tasks that wait for its end.
    waiters: Vec<Waker>,
}

impl Order {
    /// A change of `bytes` takes its turn.
    pub(crate) fn change(self: &Rc<Self>, bytes: Range<u64>) -> Turn {
        let mut inner = self.0.borrow_mut();
        let id = inner.next;
        inner.next += 1;
        inner.changes.insert(id, PendingChange { bytes: bytes.clone(), waiters: Vec::new() });
        Turn { order: Rc::clone(self), id, bytes }
    }

    /// Whether a change of any of `bytes` is under way.
    pub(crate) fn touches(&self, bytes: &Range<u64>) -> bool {
        self.0.borrow().changes.values().any(|change| overlap(&change.bytes, bytes))
    }

    /// Waits for the changes of `bytes` that came before now.
    pub(crate) fn settled(&self, bytes: Range<u64>) -> impl Future<Output = ()> {
        let before = self.0.borrow().next;
        async move { self.wait(before, &bytes).await }
    }

    /// Waits until no change before `id` overlaps `bytes`.
    async fn wait(&self, id: u64, bytes: &Range<u64>) {
        poll_fn(|cx| {
            let mut inner = self.0.borrow_mut();
            if inner.changes.is_empty() {
                return Poll::Ready(());
            }
            // Of several, the last one is likely to end last.
            let last = inner.changes.range_mut(..id).rev().find(|(_, change)| overlap(&change.bytes, bytes));
            match last {
                None => Poll::Ready(()),
                Some((_, change)) => {
                    change.waiters.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// A change's place in the order; it ends when this is dropped.
pub(crate) struct Turn {
    order: Rc<Order>,
    id: u64,
    bytes: Range<u64>,
}

impl Turn {
    /// Waits until it may begin.
    pub(crate) async fn begin(&self) {
        self.order.wait(self.id, &self.bytes).await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let gone = self.order.0.borrow_mut().changes.remove(&self.id);
        for waker in gone.into_iter().flat_map(|change| change.waiters) {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn what_overlaps_waits_and_what_does_not_goes_on() {
        let order = Rc::new(Order::default());
        let first = order.change(0..8192);
        let beside = order.change(8192..12288);
        let second = order.change(4096..12288);
        let third = order.change(0..4096);
        assert!(first.begin().now_or_never().is_some());
        assert!(beside.begin().now_or_never().is_some());
        assert!(second.begin().now_or_never().is_none());
        assert!(third.begin().now_or_never().is_none());
        drop(first);
        // The one beside it is still there.
        assert!(second.begin().now_or_never().is_none());
        assert!(third.begin().now_or_never().is_some());
        drop(beside);
        assert!(second.begin().now_or_never().is_some());
    }

    #[test]
    fn reads_and_barriers_wait_for_what_came_before_them_only() {
        let order = Rc::new(Order::default());
        let change = order.change(0..4096);
        let mut read = std::pin::pin!(order.settled(2048..4096));
        let mut elsewhere = std::pin::pin!(order.settled(4096..8192));
        let mut barrier = std::pin::pin!(order.settled(0..u64::MAX));
        assert!(order.touches(&(0..1)) && !order.touches(&(4096..8192)));
        assert!((&mut elsewhere).now_or_never().is_some());
        assert!((&mut read).now_or_never().is_none());
        assert!((&mut barrier).now_or_never().is_none());
        let _later = order.change(0..4096);
        drop(change);
        assert!(read.now_or_never().is_some());
        assert!(barrier.now_or_never().is_some());
    }
}
