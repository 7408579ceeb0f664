//! Commands that are refused cost a stranger nothing and the target a command: an address may have
//! some at once, and from then on each takes a turn.
//!
//! Invariants:
//! - a command that is not refused takes no turn, and asks for no time;
//! - while a connection's refused commands are ahead of their turns, nothing is received on it;
//! - a connection has one place in the line of its address, however many commands it sends.

use crate::connection::Connection;
use crate::pace::Pace;
use longhaul_engine::{now, sleep};
use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Refused commands of one connection.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Those that have not had a turn.
    owed: Cell<u64>,
    /// The turns of its address, from the first one on.
    pace: OnceCell<Arc<Pace>>,
}

impl Refusals {
    /// One more was refused.
    pub(crate) fn count(&self) {
        self.owed.set(self.owed.get() + 1);
    }
}

impl Connection {
    /// Holds back further input if more was refused than an address may have at once.
    #[inline]
    pub(crate) fn hold_back_after_refusals(self: &Rc<Self>) {
        let owed = self.refusals.owed.get() + self.shared.queue.borrow_mut().take_refused();
        if owed > 0 {
            self.refusals.owed.set(owed);
            self.pace_refusals();
        }
    }

    #[cold]
    fn pace_refusals(self: &Rc<Self>) {
        if self.shared.held_back.get() {
            return;
        }
        let Refusals { owed, pace } = &self.refusals;
        let pace = pace.get_or_init(|| self.target.refused.of(self.origin(), now()));
        let now = now();
        while owed.get() > 0 && pace.take(now, Duration::ZERO).is_some() {
            owed.set(owed.get() - 1);
        }
        if owed.get() == 0 {
            return;
        }
        self.shared.held_back.set(true);
        let pace = Arc::clone(pace);
        self.spawn(async move |connection| {
            let owed = &connection.refusals.owed;
            while owed.get() > 0 && !connection.shared.is_ending() {
                let wait = pace.take(longhaul_engine::now(), Duration::MAX).unwrap_or_default();
                sleep(wait).await;
                owed.set(owed.get() - 1);
            }
            connection.shared.held_back.set(false);
            connection.shared.resume.notify();
        });
    }
}
