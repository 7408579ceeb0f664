//! Locks on stripes, and a memory budget.
//!
//! Invariants:
//! - a stripe has one `exclusive` holder, or any number of `shared` ones, never both;
//! - locks are granted first come, first served, so that no waiter starves;
//! - a stripe that is neither held nor waited for is not in `rows`;
//! - `used` is the sum of the permits that are held: each returns its bytes once.

use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

#[derive(Default)]
pub(crate) struct RowLocks {
    rows: RefCell<HashMap<u64, RowLock>>,
}

#[derive(Default)]
struct RowLock {
    shared: usize,
    exclusive: bool,
    waiting: VecDeque<LockWaiter>,
}

struct LockWaiter {
    exclusive: bool,
    grant: oneshot::Sender<RowGuard>,
}

/// Holds a stripe until it is dropped.
pub(crate) struct RowGuard {
    locks: Rc<RowLocks>,
    row: u64,
    exclusive: bool,
}

impl RowLocks {
    /// Takes the exclusive lock.
    pub(crate) async fn exclusive(self: &Rc<Self>, row: u64) -> RowGuard {
        self.lock(row, true).await
    }

    /// Takes a shared lock.
    pub(crate) async fn shared(self: &Rc<Self>, row: u64) -> RowGuard {
        self.lock(row, false).await
    }

    async fn lock(self: &Rc<Self>, row: u64, exclusive: bool) -> RowGuard {
        let granted = {
            let mut rows = self.rows.borrow_mut();
            let lock = rows.entry(row).or_default();
            let free = if exclusive { lock.shared == 0 } else { true };
            if free && !lock.exclusive && lock.waiting.is_empty() {
                lock.hold(exclusive);
                return RowGuard { locks: Rc::clone(self), row, exclusive };
            }
            let (grant, granted) = oneshot::channel();
            lock.waiting.push_back(LockWaiter { exclusive, grant });
            granted
        };
        match granted.await {
            Ok(guard) => guard,
            Err(_) => unreachable!("a waiter is granted the lock, or is dropped"),
        }
    }
}

impl RowLock {
    fn hold(&mut self, exclusive: bool) {
        assert!(
            !self.exclusive && (!exclusive || self.shared == 0),
            "a lock is granted beside an exclusive one"
        );
        if exclusive {
            self.exclusive = true;
        } else {
            self.shared += 1;
        }
    }
}

impl Drop for RowGuard {
    fn drop(&mut self) {
        let mut grants = Vec::new();
        {
            let mut rows = self.locks.rows.borrow_mut();
            let Some(lock) = rows.get_mut(&self.row) else { return };
            if self.exclusive {
                lock.exclusive = false;
            } else {
                assert!(lock.shared > 0, "a shared lock is released twice");
                lock.shared -= 1;
            }
            while let Some(next) = lock.waiting.front() {
                let free = if next.exclusive { lock.shared == 0 } else { true };
                if !free || lock.exclusive {
                    break;
                }
                let exclusive = next.exclusive;
                let Some(next) = lock.waiting.pop_front() else { break };
                lock.hold(exclusive);
                grants.push((next.grant, exclusive));
            }
            if lock.shared == 0 && !lock.exclusive && lock.waiting.is_empty() {
                rows.remove(&self.row);
            }
        }
        // If the waiter was dropped, so is the guard here, which passes the lock on.
        for (grant, exclusive) in grants {
            drop(grant.send(RowGuard { locks: Rc::clone(&self.locks), row: self.row, exclusive }));
        }
    }
}

/// A limit on bytes in use, granted first come, first served.
pub(crate) struct MemoryBudget {
    limit: usize,
    state: RefCell<MemoryBudgetState>,
}

#[derive(Default)]
struct MemoryBudgetState {
    used: usize,
    waiting: VecDeque<(usize, oneshot::Sender<Permit>)>,
}

/// Bytes taken from the budget, returned on drop.
pub(crate) struct Permit {
    budget: Rc<MemoryBudget>,
    bytes: usize,
}

impl MemoryBudget {
    pub(crate) fn new(limit: usize) -> MemoryBudget {
        MemoryBudget { limit, state: RefCell::default() }
    }

    #[cfg(test)]
    fn used(&self) -> usize {
        self.state.borrow().used
    }

    /// Takes bytes once they are available. A request above the limit is granted when nothing else
    /// is in use.
    pub(crate) async fn take(self: &Rc<Self>, bytes: usize) -> Permit {
        let granted = {
            let mut state = self.state.borrow_mut();
            if state.waiting.is_empty() && (state.used == 0 || state.used + bytes <= self.limit) {
                state.used += bytes;
                return Permit { budget: Rc::clone(self), bytes };
            }
            let (grant, granted) = oneshot::channel();
            state.waiting.push_back((bytes, grant));
            granted
        };
        match granted.await {
            Ok(permit) => permit,
            Err(_) => unreachable!("a waiter is granted memory, or is dropped"),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut grants = Vec::new();
        {
            let mut state = self.budget.state.borrow_mut();
            assert!(self.bytes <= state.used, "a permit returns more bytes than are in use");
            state.used -= self.bytes;
            while let Some((bytes, _)) = state.waiting.front() {
                if state.used > 0 && state.used + bytes > self.budget.limit {
                    break;
                }
                let Some((bytes, grant)) = state.waiting.pop_front() else { break };
                state.used += bytes;
                grants.push((grant, bytes));
            }
        }
        for (grant, bytes) in grants {
            drop(grant.send(Permit { budget: Rc::clone(&self.budget), bytes }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;
    use futures_util::future::{join_all, poll_immediate};

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        run(async {
            let locks = Rc::new(RowLocks::default());
            let (a, b) = (locks.shared(1).await, locks.shared(1).await);
            let mut writer = Box::pin(locks.exclusive(1));
            assert!(poll_immediate(&mut writer).await.is_none());
            // First come, first served: a late reader waits for the writer.
            let mut late = Box::pin(locks.shared(1));
            assert!(poll_immediate(&mut late).await.is_none());
            drop((a, b));
            let held = writer.await;
            assert!(poll_immediate(&mut late).await.is_none());
            drop(held);
            drop(late.await);
            assert!(locks.rows.borrow().is_empty());
        });
    }

    #[test]
    fn a_dropped_waiter_does_not_block_others() {
        run(async {
            let locks = Rc::new(RowLocks::default());
            let held = locks.exclusive(1).await;
            let mut dropped = Box::pin(locks.exclusive(1));
            assert!(poll_immediate(&mut dropped).await.is_none());
            let mut next = Box::pin(locks.exclusive(1));
            assert!(poll_immediate(&mut next).await.is_none());
            drop(dropped);
            drop(held);
            drop(next.await);
            assert!(locks.rows.borrow().is_empty());
        });
    }

    #[test]
    fn a_budget_is_exceeded_only_by_a_single_request() {
        run(async {
            let budget = Rc::new(MemoryBudget::new(100));
            let big = budget.take(500).await;
            let mut rest: Vec<_> = (0..3).map(|_| Box::pin(budget.take(60))).collect();
            assert!(poll_immediate(&mut rest[0]).await.is_none());
            drop(big);
            let first = rest.remove(0).await;
            assert_eq!(budget.used(), 60);
            assert!(poll_immediate(&mut rest[0]).await.is_none());
            drop(first);
            drop(rest.remove(0).await);
            drop(join_all(rest).await);
            assert_eq!(budget.used(), 0);
        });
    }
}
