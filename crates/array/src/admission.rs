//! Who may change the array, until it is stopped.
//!
//! Invariants:
//! - what changes members on behalf of a user (a write, zeroes, a flush, what a
//!   read mends) is admitted before it begins, and counts until it has ended;
//! - once the array is being stopped nothing is admitted any more; it is said to
//!   be clean only when nothing that was admitted is under way, no stripe has a
//!   queue, and no task of its own runs.

use crate::core::Core;
use crate::event::Event;
use longhaul_block::{IoError, IoResult};
use std::cell::Cell;
use std::rc::Rc;

/// What is counted.
#[derive(Default)]
pub(crate) struct Admission {
    closed: Cell<bool>,
    under_way: Cell<usize>,
    changed: Event,
}

/// Something that was admitted, until it is dropped.
pub(crate) struct Admitted(Rc<Core>);

impl Drop for Admitted {
    fn drop(&mut self) {
        let admission = &self.0.admission;
        admission.under_way.set(admission.under_way.get() - 1);
        admission.changed.notify();
    }
}

impl Core {
    /// Begins something that may change members, for a user.
    ///
    /// # Errors
    /// The array has halted, or is being stopped.
    pub(crate) fn admit(self: &Rc<Self>) -> IoResult<Admitted> {
        self.check_running()?;
        let admission = &self.admission;
        if admission.closed.get() {
            let name = self.name.borrow();
            return Err(IoError::Unreachable(format!("array {name}: it is being stopped")));
        }
        admission.under_way.set(admission.under_way.get() + 1);
        Ok(Admitted(Rc::clone(self)))
    }

    /// Admits nothing more, and returns when all that was admitted is in place,
    /// or never will be, since the array has halted.
    pub(crate) async fn close(&self) {
        self.admission.closed.set(true);
        let halted = || self.check_running().is_err();
        self.admission.changed.until(|| self.admission.under_way.get() == 0 || halted()).await;
        // What was acknowledged may be in the journal alone.
        for row in self.rows.all() {
            let Some(queue) = self.rows.queue(row) else { continue };
            queue.changed.until(|| self.rows.queue(row).is_none() || halted()).await;
        }
    }

    /// Wakes who waits for the end of what is under way: there may be none.
    pub(crate) fn wake_closing(&self) {
        self.admission.changed.notify();
    }
}
