//! Threads of which only some are to work.
//!
//! Invariant: a thread that [`pass`](Gate::pass) lets through had a number below
//! what is active, or the gate was open.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Holds threads back whose number is not below what is active.
#[derive(Debug)]
pub(crate) struct Gate {
    active: Mutex<usize>,
    changed: Condvar,
}

impl Gate {
    /// Lets the first `active` through.
    pub(crate) fn new(active: usize) -> Gate {
        Gate { active: Mutex::new(active), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until thread `index` may work.
    pub(crate) fn pass(&self, index: usize) {
        let mut active = self.lock();
        while index >= *active {
            active = self.changed.wait(active).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How many are let through.
    pub(crate) fn active(&self) -> usize {
        *self.lock()
    }

    /// Lets so many through from now on; who is at work goes on until it comes
    /// again. An open gate stays open.
    pub(crate) fn set(&self, active: usize) {
        let mut now = self.lock();
        if *now != usize::MAX {
            *now = active;
        }
        self.changed.notify_all();
    }

    /// Lets everybody through: there is nothing more to hold back for.
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
    fn threads_pass_when_they_are_wanted_and_all_at_the_end() {
        let gate = Arc::new(Gate::new(1));
        let (told, heard) = channel();
        let threads: Vec<_> = (0..4)
            .map(|index| {
                let (gate, told) = (Arc::clone(&gate), told.clone());
                std::thread::spawn(move || {
                    gate.pass(index);
                    told.send(index).expect("heard");
                })
            })
            .collect();
        let next = || heard.recv().expect("told");
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
