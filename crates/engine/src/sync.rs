//! Signals between tasks of one thread.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A condition that one task waits for and others signal. A signal given
/// while no task waits is kept (once).
#[derive(Debug, Default)]
pub struct Notify {
    set: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl Notify {
    /// Without a signal.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wakes the waiting task, or the next one that waits.
    pub fn notify(&self) {
        self.set.set(true);
        if let Some(waiter) = self.waiter.borrow_mut().take() {
            waiter.wake();
        }
    }

    /// Resolves once there is a signal, and takes it.
    pub fn notified(&self) -> Notified<'_> {
        Notified { notify: self }
    }
}

/// What [`Notify::notified`] returns.
#[derive(Debug)]
pub struct Notified<'a> {
    notify: &'a Notify,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.notify.set.replace(false) {
            return Poll::Ready(());
        }
        let mut waiter = self.notify.waiter.borrow_mut();
        match waiter.as_mut() {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waiter = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}
