//! Concurrency gate: bounds how many of a pool of threads work at once.
//!
//! Invariant: [`pass`](Gate::pass) returns to a thread only if its index is below the
//! active number, or the gate is open.

use crate::guard::lock;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Blocks threads whose index is not below the active number.
#[derive(Debug)]
pub(crate) struct Gate {
    active: Mutex<usize>,
    changed: Condvar,
}

impl Gate {
    /// A gate that passes threads with an index below `active`.
    pub(crate) fn new(active: usize) -> Gate {
        Gate { active: Mutex::new(active), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        lock(&self.active)
    }

    /// Waits until thread `index` may work.
    pub(crate) fn pass(&self, index: usize) {
        let mut active = self.lock();
        while index >= *active {
            active = self.changed.wait(active).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Number of threads that pass; `usize::MAX` once the gate is open.
    pub(crate) fn active(&self) -> usize {
        *self.lock()
    }

    /// Sets the number of threads that pass; a thread that works is blocked at its next
    /// [`pass`](Gate::pass). An open gate stays open.
    pub(crate) fn set(&self, active: usize) {
        let mut now = self.lock();
        if *now != usize::MAX {
            *now = active;
        }
        self.changed.notify_all();
    }

    /// Opens the gate to all threads for good, so that they can end.
    pub(crate) fn open(&self) {
        *self.lock() = usize::MAX;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    #[test]
    fn threads_pass_up_to_the_active_number_and_all_once_open() {
        let gate = Arc::new(Gate::new(1));
        let (passed, received) = channel();
        let threads: Vec<_> = (0..4)
            .map(|index| {
                let (gate, passed) = (Arc::clone(&gate), passed.clone());
                std::thread::spawn(move || {
                    gate.pass(index);
                    passed.send(index).expect("received");
                })
            })
            .collect();
        let next = || received.recv().expect("passed");
        assert_eq!(next(), 0);
        gate.set(2);
        assert_eq!(next(), 1);
        gate.open();
        gate.set(1);
        let mut last = [next(), next()];
        last.sort_unstable();
        assert_eq!(last, [2, 3]);
        threads.into_iter().for_each(|thread| thread.join().expect("joined"));
    }
}
