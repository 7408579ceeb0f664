//! What a member was asked, and has not answered yet.
//!
//! Invariants:
//! - an absence is known here from the moment when an operation tells of it,
//!   which is before anybody has acted upon it: what other operations say after
//!   that counts for nothing, since the member may have lost its power in between.

use crate::event::Event;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Operations of one device in a member's place.
#[derive(Default)]
pub(crate) struct Asked {
    next: Cell<u64>,
    under_way: RefCell<BTreeSet<u64>>,
    changed: Event,
    /// The incarnation of which an operation has told that it is absent.
    absent: Cell<Option<u64>>,
}

/// An operation under way.
pub(crate) struct Question {
    asked: Rc<Asked>,
    number: u64,
}

impl Asked {
    /// Operations that have not ended, given up ones among them.
    pub(crate) fn len(&self) -> usize {
        self.under_way.borrow().len()
    }

    pub(crate) fn begin(self: &Rc<Asked>) -> Question {
        let number = self.next.get();
        self.next.set(number + 1);
        self.under_way.borrow_mut().insert(number);
        Question { asked: Rc::clone(self), number }
    }

    /// An operation has told that the member is absent.
    pub(crate) fn tell_absence(&self, incarnation: u64) {
        self.absent.set(Some(incarnation));
    }

    pub(crate) fn forget_absence(&self) {
        self.absent.set(None);
    }

    pub(crate) fn is_absent(&self, incarnation: u64) -> bool {
        self.absent.get() == Some(incarnation)
    }

    /// Resolves when everything has ended that was begun before.
    pub(crate) async fn until_answered(&self) {
        let next = self.next.get();
        let answered = || self.under_way.borrow().first().is_none_or(|number| *number >= next);
        self.changed.until(answered).await;
    }
}

impl Question {
    pub(crate) fn tell_absence(&self, incarnation: u64) {
        self.asked.tell_absence(incarnation);
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.asked.under_way.borrow_mut().remove(&self.number);
        self.asked.changed.notify();
    }
}
