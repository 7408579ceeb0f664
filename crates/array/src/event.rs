//! A condition that tasks of one thread wait for.

use std::cell::RefCell;
use std::task::{Poll, Waker};

/// Wakes all waiting tasks, each of which evaluates its condition again.
#[derive(Default)]
pub(crate) struct Event {
    waiting: RefCell<Vec<Waker>>,
}

impl Event {
    /// Wakes all waiting tasks.
    pub(crate) fn notify(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Resolves when `holds` returns true.
    pub(crate) async fn until(&self, mut holds: impl FnMut() -> bool) {
        std::future::poll_fn(|cx| {
            if holds() {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
