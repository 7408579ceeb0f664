//! Incarnations of a member: the time from when a device is attached until it goes offline or is
//! replaced.
//!
//! Invariants:
//! - `number` rises with each incarnation, and no number comes back: an error that names an earlier
//!   one does not count against the present device;
//! - `end` belongs to the incarnation of `number`: replacing it wakes all operations that wait for
//!   the member.

use futures_channel::oneshot;
use futures_util::future::{FutureExt, Shared};
use std::cell::{Cell, RefCell};

pub(crate) struct Incarnation {
    number: Cell<u64>,
    end: RefCell<IncarnationEnd>,
}

/// Lifetime of an incarnation: dropping it wakes all operations that wait for the member.
struct IncarnationEnd {
    _until: oneshot::Sender<()>,
    over: Shared<oneshot::Receiver<()>>,
}

impl IncarnationEnd {
    fn new() -> IncarnationEnd {
        let (until, over) = oneshot::channel();
        IncarnationEnd { _until: until, over: over.shared() }
    }
}

impl Incarnation {
    /// No incarnation has this number.
    pub(crate) const NONE: u64 = u64::MAX;

    pub(crate) fn new() -> Incarnation {
        Incarnation { number: Cell::new(0), end: RefCell::new(IncarnationEnd::new()) }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number.get()
    }

    /// Ends this incarnation and begins the next one.
    pub(crate) fn renew(&self) {
        self.number.set(self.number.get() + 1);
        // Dropped while not borrowed, since it wakes other tasks.
        drop(self.end.replace(IncarnationEnd::new()));
    }

    /// Resolves when the incarnation ends.
    pub(crate) fn over(&self) -> Shared<oneshot::Receiver<()>> {
        self.end.borrow().over.clone()
    }
}
