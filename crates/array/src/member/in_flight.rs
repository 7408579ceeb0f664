//! Operations under way on a device.
//!
//! Invariants:
//! - an operation is in `under_way` until the device completes it, also after a timeout;
//! - `unreachable` is set as soon as an operation finds the member unreachable, before it is marked
//!   offline: results of other operations from then on prove nothing, since the member may have
//!   lost power in between.

use crate::event::Event;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Operations under way on the current or last device of a member.
#[derive(Default)]
pub(crate) struct InFlight {
    next: Cell<u64>,
    under_way: RefCell<BTreeSet<u64>>,
    changed: Event,
    /// The incarnation in which an operation has found the member unreachable.
    unreachable: Cell<Option<u64>>,
}

/// An operation under way; it ends when this is dropped.
pub(crate) struct InFlightOperation {
    in_flight: Rc<InFlight>,
    number: u64,
}

impl InFlight {
    /// Operations that have not completed, including those that have timed out.
    pub(crate) fn len(&self) -> usize {
        self.under_way.borrow().len()
    }

    pub(crate) fn begin(self: &Rc<InFlight>) -> InFlightOperation {
        let number = self.next.get();
        self.next.set(number + 1);
        self.under_way.borrow_mut().insert(number);
        InFlightOperation { in_flight: Rc::clone(self), number }
    }

    /// Records that an operation has found the member unreachable.
    pub(crate) fn record_unreachable(&self, incarnation: u64) {
        self.unreachable.set(Some(incarnation));
    }

    pub(crate) fn clear_unreachable(&self) {
        self.unreachable.set(None);
    }

    pub(crate) fn was_unreachable(&self, incarnation: u64) -> bool {
        self.unreachable.get() == Some(incarnation)
    }

    /// Resolves when all operations that began before this call have ended.
    pub(crate) async fn until_completed(&self) {
        let next = self.next.get();
        let answered = || self.under_way.borrow().first().is_none_or(|number| *number >= next);
        self.changed.until(answered).await;
    }
}

impl InFlightOperation {
    pub(crate) fn record_unreachable(&self, incarnation: u64) {
        self.in_flight.record_unreachable(incarnation);
    }
}

impl Drop for InFlightOperation {
    fn drop(&mut self) {
        self.in_flight.under_way.borrow_mut().remove(&self.number);
        self.in_flight.changed.notify();
    }
}
