//! Waiting for a condition among tasks of one thread.

use std::cell::RefCell;
use std::task::{Poll, Waker};

/// Wakes everybody who waits, so that each looks at its condition again.
#[derive(Default)]
pub(crate) struct Event {
    waiting: RefCell<Vec<Waker>>,
}

impl Event {
    /// Something has changed.
    pub(crate) fn notify(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Resolves when `holds` does.
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
