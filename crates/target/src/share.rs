//! A connection's share of the memory for data that its peer takes or sends
//! when it likes.
//!
//! Invariants:
//! - a connection holds no more than it leaves free, so that one which never
//!   takes what it asked for does not stop the others;
//! - a connection that holds nothing may have whatever one command needs, so
//!   that each goes on;
//! - within a connection, who comes first is served first.

use futures_channel::oneshot;
use longhaul_engine::{BufMut, BufPool};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// What one connection may have of a pool.
pub(crate) struct Share {
    pool: BufPool,
    /// Bytes that charges stand for.
    held: Cell<usize>,
    waiting: RefCell<VecDeque<Waiter>>,
}

struct Waiter {
    len: usize,
    /// Its turn has come: with a buffer, or to wait for one with everybody.
    turn: oneshot::Sender<(Option<BufMut>, Charge)>,
}

/// Stands for `len` bytes that are held, until it is dropped.
pub(crate) struct Charge {
    share: Rc<Share>,
    len: usize,
}

impl Share {
    pub(crate) fn new(pool: BufPool) -> Rc<Share> {
        Rc::new(Share { pool, held: Cell::new(0), waiting: RefCell::default() })
    }

    fn charge(self: &Rc<Self>, len: usize) -> Charge {
        self.held.set(self.held.get() + len);
        Charge { share: Rc::clone(self), len }
    }

    /// A buffer of `len` bytes, if the share allows and the pool has it now.
    pub(crate) fn try_alloc(self: &Rc<Self>, len: usize) -> Option<(BufMut, Charge)> {
        if self.waiting.borrow().is_empty() { self.get(len) } else { None }
    }

    fn get(self: &Rc<Self>, len: usize) -> Option<(BufMut, Charge)> {
        let held = self.held.get();
        let free = self.pool.limit().saturating_sub(self.pool.used());
        if held > 0 && held + len > free {
            return None;
        }
        let buf = self.pool.try_alloc(len)?;
        Some((buf, self.charge(len)))
    }

    /// A buffer of `len` bytes, once it can be had. Only a connection that
    /// holds nothing waits at the pool itself, where it would be in the way
    /// of others.
    pub(crate) async fn alloc(self: Rc<Self>, len: usize) -> (BufMut, Charge) {
        if let Some(got) = self.try_alloc(len) {
            return got;
        }
        let (buf, charge) = if self.held.get() == 0 && self.waiting.borrow().is_empty() {
            (None, self.charge(len))
        } else {
            let (turn, come) = oneshot::channel();
            self.waiting.borrow_mut().push_back(Waiter { len, turn });
            // The share, which this holds, never drops who waits.
            come.await.unwrap_or_else(|_| (None, self.charge(len)))
        };
        match buf {
            Some(buf) => (buf, charge),
            None => (self.pool.alloc(len).await, charge),
        }
    }

    /// Serves those who wait while there is room. Room that others give back
    /// is noticed with the next charge of this connection, of which there is
    /// one as long as somebody waits.
    fn serve(self: &Rc<Self>) {
        loop {
            let Some(len) = self.waiting.borrow().front().map(|waiter| waiter.len) else { return };
            let turn = match self.get(len) {
                Some((buf, charge)) => (Some(buf), charge),
                None if self.held.get() == 0 => (None, self.charge(len)),
                None => return,
            };
            let waiter = self.waiting.borrow_mut().pop_front();
            if let Some(waiter) = waiter {
                // Who has gone gives it back at once, which serves the next.
                let _ = waiter.turn.send(turn);
            }
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.share.held.set(self.share.held.get() - self.len);
        self.share.serve();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_engine::BUF_MAX;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn no_connection_takes_all_and_each_takes_something() {
        let pool = BufPool::new(BUF_MAX);
        let (greedy, other) = (Share::new(pool.clone()), Share::new(pool.clone()));
        let held: Vec<_> = std::iter::from_fn(|| greedy.try_alloc(BUF_MAX / 8)).collect();
        assert_eq!(held.len(), 4, "half, and half is left");
        let most = other.try_alloc(BUF_MAX / 2).expect("a connection that holds nothing");
        assert!(other.try_alloc(1).is_none(), "it holds more than is left");
        drop(most);
        let _some = other.try_alloc(BUF_MAX / 8).expect("room");
        assert!(other.try_alloc(BUF_MAX / 8).is_some(), "and more while there is room");
    }

    #[test]
    fn who_waits_is_served_in_order() {
        let pool = BufPool::new(BUF_MAX);
        let share = Share::new(pool.clone());
        let first = share.try_alloc(BUF_MAX).expect("holds nothing");
        let mut second = pin!(Rc::clone(&share).alloc(BUF_MAX));
        let mut third = pin!(Rc::clone(&share).alloc(1));
        assert!(poll(second.as_mut()).is_pending() && poll(third.as_mut()).is_pending());
        drop(first);
        let Poll::Ready(second) = poll(second.as_mut()) else { panic!("served") };
        assert!(poll(third.as_mut()).is_pending() && share.try_alloc(0).is_none(), "one at a time");
        drop(second);
        let Poll::Ready(third) = poll(third.as_mut()) else { panic!("served") };
        drop(third);
        assert_eq!((share.held.get(), pool.used()), (0, 0));
    }

    #[test]
    fn only_who_holds_nothing_waits_at_the_pool() {
        let pool = BufPool::new(BUF_MAX);
        let (greedy, other) = (Share::new(pool.clone()), Share::new(pool.clone()));
        let rest = pool.try_alloc(BUF_MAX / 2).expect("room");
        let first = greedy.try_alloc(BUF_MAX / 4).expect("holds nothing");
        let mut more = pin!(Rc::clone(&greedy).alloc(BUF_MAX / 2));
        assert!(poll(more.as_mut()).is_pending());
        assert!(other.try_alloc(1).is_some(), "it is in nobody's way");
        drop(first);
        assert!(poll(more.as_mut()).is_ready(), "there is room for its first");
        drop(rest);
    }

    #[test]
    fn who_gave_up_is_passed_over() {
        let pool = BufPool::new(BUF_MAX);
        let share = Share::new(pool.clone());
        let first = share.try_alloc(BUF_MAX).expect("holds nothing");
        {
            let mut gone = pin!(Rc::clone(&share).alloc(2));
            assert!(poll(gone.as_mut()).is_pending());
        }
        let mut next = pin!(Rc::clone(&share).alloc(3));
        assert!(poll(next.as_mut()).is_pending());
        drop(first);
        assert!(poll(next.as_mut()).is_ready());
    }
}
