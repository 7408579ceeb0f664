//! Admission control: which operations may change the array until it stops.
//!
//! Invariants:
//! - an operation that changes members on behalf of a user (a write, zeroes, a flush, the repair
//!   after a read) is admitted before it begins, and counts in `under_way` until it has ended;
//! - once `closed` is set nothing more is admitted; the array is marked clean only when no
//!   admitted operation is under way, no stripe has a queue, and no background task runs.

use crate::core::Core;
use crate::event::Event;
use longhaul_block::{IoError, IoResult};
use std::cell::Cell;
use std::rc::Rc;

/// Admitted operations under way.
#[derive(Default)]
pub(crate) struct Admission {
    closed: Cell<bool>,
    under_way: Cell<usize>,
    changed: Event,
}

impl Admission {
    /// Wakes [`Core::close`] after a halt: the operations that it waits for may never end.
    pub(crate) fn wake(&self) {
        self.changed.notify();
    }
}

/// An admitted operation; it ends when this is dropped.
pub(crate) struct Admitted(Rc<Core>);

impl Drop for Admitted {
    fn drop(&mut self) {
        let admission = &self.0.io.admission;
        assert!(admission.under_way.get() > 0, "more operations have ended than were admitted");
        admission.under_way.set(admission.under_way.get() - 1);
        admission.changed.notify();
    }
}

impl Core {
    /// Admits an operation that may change members.
    ///
    /// # Errors
    /// The array has halted, or is stopping.
    pub(crate) fn admit(self: &Rc<Self>) -> IoResult<Admitted> {
        self.check_running()?;
        let admission = &self.io.admission;
        if admission.closed.get() {
            let name = &self.name;
            return Err(IoError::Offline(format!("array {name}: it is being stopped")));
        }
        admission.under_way.set(admission.under_way.get() + 1);
        Ok(Admitted(Rc::clone(self)))
    }

    /// Admits nothing more, and returns when all admitted operations have ended and their writes
    /// are in place, or the array has halted.
    pub(crate) async fn close(&self) {
        self.io.admission.closed.set(true);
        let halted = || self.check_running().is_err();
        self.io.admission.changed.until(|| self.io.admission.under_way.get() == 0 || halted()).await;
        // Acknowledged data may be in the journal only.
        for row in self.io.rows.all() {
            let Some(queue) = self.io.rows.queue(row) else { continue };
            queue.changed.until(|| self.io.rows.queue(row).is_none() || halted()).await;
        }
    }
}
