//! A connection's access to buffers: one of its requests at a time asks its host's account for a
//! charge, then the pool for memory.
//!
//! Invariants:
//! - a connection has one request in its host's queue, so that the connections of a host take
//!   turns, however many commands each has;
//! - within a connection, requests are served in order;
//! - a buffer is requested only with a charge, so the pool is never empty for longer than it takes
//!   to return released buffers.

use crate::ledger::{Account, Charge, Ledger, Peer};
use futures_channel::oneshot;
use longhaul_engine::{BufMut, BufPool, Registrar};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// A part of the target's memory.
#[derive(Clone)]
pub(crate) struct MemoryPart {
    pub(crate) pool: BufPool,
    pub(crate) ledger: Arc<Ledger>,
}

impl MemoryPart {
    /// A part of the memory with this many bytes.
    #[cfg(test)]
    pub(crate) fn new(bytes: usize) -> MemoryPart {
        MemoryPart::registered(bytes, &[])
    }

    /// The same, registered with the transports that need that.
    pub(crate) fn registered(bytes: usize, registrars: &[Arc<dyn Registrar>]) -> MemoryPart {
        let pool = BufPool::registered(bytes, registrars.to_vec());
        MemoryPart { ledger: Ledger::new(bytes), pool }
    }

    pub(crate) fn share(&self, peer: &Peer) -> Rc<Share> {
        Rc::new(Share { turns: Turns::new(self.ledger.account(peer)), pool: self.pool.clone() })
    }
}

/// One connection's requests to its host's account.
pub(crate) struct Turns {
    account: Arc<Account>,
    /// A request is in the host's queue.
    busy: Cell<bool>,
    waiting: RefCell<VecDeque<oneshot::Sender<Pass>>>,
}

/// The right to be the connection's one request.
struct Pass(Rc<Turns>);

impl Turns {
    pub(crate) fn new(account: Arc<Account>) -> Rc<Turns> {
        Rc::new(Turns { account, busy: Cell::new(false), waiting: RefCell::default() })
    }

    fn try_take(&self, len: usize) -> Option<Charge> {
        if self.busy.get() { None } else { self.account.try_take(len) }
    }

    /// A charge of `len` units, in turn.
    pub(crate) async fn take(self: Rc<Self>, len: usize) -> Charge {
        if let Some(charge) = self.try_take(len) {
            return charge;
        }
        let _pass = self.pass().await;
        self.account.take(len).await
    }

    async fn pass(self: &Rc<Self>) -> Pass {
        if !self.busy.replace(true) {
            return Pass(Rc::clone(self));
        }
        let (sender, come) = oneshot::channel();
        self.waiting.borrow_mut().push_back(sender);
        match come.await {
            Ok(pass) => pass,
            // A sender is dropped only with the queue, which this holds.
            Err(_) => Pass(Rc::clone(self)),
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        loop {
            let next = self.0.waiting.borrow_mut().pop_front();
            let Some(next) = next else { break };
            if !next.is_canceled() {
                // Receivers are on this thread: it is still there.
                let _ = next.send(Pass(Rc::clone(&self.0)));
                return;
            }
        }
        self.0.busy.set(false);
    }
}

/// One connection's share of a part of the memory.
pub(crate) struct Share {
    turns: Rc<Turns>,
    pool: BufPool,
}

impl Share {
    /// A buffer of `len` bytes, if the share allows and the pool has it now.
    pub(crate) fn try_alloc(&self, len: usize) -> Option<(BufMut, Charge)> {
        let charge = self.turns.try_take(BufPool::footprint(len))?;
        Some((self.pool.try_alloc(len)?, charge))
    }

    /// A buffer of `len` bytes, once it can be had.
    pub(crate) async fn alloc(self: Rc<Self>, len: usize) -> (BufMut, Charge) {
        let charge = Rc::clone(&self.turns).take(BufPool::footprint(len)).await;
        (self.pool.alloc(len).await, charge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Origin;
    use longhaul_engine::BUF_MAX;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};
    use uuid::Uuid;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn share(part: &MemoryPart) -> Rc<Share> {
        let origin = Origin::of([10, 0, 0, 1].into());
        part.share(&Peer { origin, hostnqn: "host".into(), hostid: Uuid::nil() })
    }

    #[test]
    fn connections_of_a_host_take_turns() {
        let part = MemoryPart::new(BUF_MAX);
        let (deep, other) = (share(&part), share(&part));
        let held = deep.try_alloc(BUF_MAX / 2).expect("the host holds nothing");
        let mut deep_waits: Vec<_> = (0..4).map(|_| Box::pin(Rc::clone(&deep).alloc(BUF_MAX / 2))).collect();
        assert!(deep_waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
        let mut waits = pin!(Rc::clone(&other).alloc(BUF_MAX / 2));
        assert!(poll(waits.as_mut()).is_pending());
        drop(held);
        let Poll::Ready(first) = poll(deep_waits[0].as_mut()) else { panic!("first come") };
        // The second request of the deep queue comes behind the other's first.
        assert!(poll(deep_waits[1].as_mut()).is_pending());
        drop(first);
        let Poll::Ready(second) = poll(waits.as_mut()) else { panic!("the other's turn") };
        assert!(poll(deep_waits[1].as_mut()).is_pending());
        drop(second);
        assert!(poll(deep_waits[1].as_mut()).is_ready());
    }

    #[test]
    fn a_request_that_was_given_up_is_passed_over() {
        let part = MemoryPart::new(BUF_MAX);
        let share = share(&part);
        let first = share.try_alloc(BUF_MAX / 2).expect("room");
        let mut ahead = pin!(Rc::clone(&share).alloc(BUF_MAX));
        assert!(poll(ahead.as_mut()).is_pending());
        {
            let mut gone = pin!(Rc::clone(&share).alloc(2));
            assert!(poll(gone.as_mut()).is_pending());
        }
        let mut next = pin!(Rc::clone(&share).alloc(3));
        assert!(poll(next.as_mut()).is_pending());
        drop(first);
        let Poll::Ready(all) = poll(ahead.as_mut()) else { panic!("room") };
        assert!(poll(next.as_mut()).is_pending(), "one at a time");
        drop(all);
        let Poll::Ready(next) = poll(next.as_mut()) else { panic!("served") };
        drop(next);
        assert_eq!(part.pool.used(), 0);
    }
}
