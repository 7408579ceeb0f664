//! Turns: of the threads that stand for hosts one runs at a time, from one call to its next.
//!
//! Invariants:
//! - the next thread is chosen when none runs, among all that have not ended: so the choice depends on
//!   the seed and not on the scheduler of the system;
//! - a thread that panics ends, so that the others go on.

use crate::random::Random;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    /// It computes, or has not come to its first call.
    Running,
    /// It waits for its turn, which it gets after this many turns of others at the earliest, if these
    /// have any left.
    Waiting(u64),
    Ended,
}

struct TurnState {
    threads: Vec<ThreadState>,
    random: Random,
}

/// Turns of threads, which are known by their numbers.
pub(super) struct Turns {
    state: Mutex<TurnState>,
    changed: Condvar,
}

/// A thread that takes turns, until this is dropped.
pub(super) struct TurnTaker<'a> {
    turns: &'a Turns,
    thread: usize,
}

impl Turns {
    pub(super) fn new(threads: usize, random: Random) -> Turns {
        let threads = vec![ThreadState::Running; threads];
        Turns { state: Mutex::new(TurnState { threads, random }), changed: Condvar::new() }
    }

    /// The calling thread is this one.
    pub(super) fn take(&self, thread: usize) -> TurnTaker<'_> {
        TurnTaker { turns: self, thread }
    }

    /// Gives the turn away, and returns at the next one, after `pause` turns of others if there are any.
    pub(super) fn pass(&self, thread: usize, pause: u64) {
        let mut state = self.lock();
        state.threads[thread] = ThreadState::Waiting(pause);
        self.choose(&mut state);
        while state.threads[thread] != ThreadState::Running {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the next thread, unless one runs.
    fn choose(&self, state: &mut TurnState) {
        if state.threads.contains(&ThreadState::Running) {
            return;
        }
        let waiting = |pause: u64| {
            let of = |(thread, state): (usize, &ThreadState)| match state {
                ThreadState::Waiting(left) if *left <= pause => Some(thread),
                _ => None,
            };
            state.threads.iter().enumerate().filter_map(of).collect::<Vec<usize>>()
        };
        let mut ready = waiting(0);
        if ready.is_empty() {
            let left = state.threads.iter().filter_map(|state| match state {
                ThreadState::Waiting(left) => Some(*left),
                _ => None,
            });
            let Some(least) = left.min() else { return };
            ready = waiting(least);
        }
        let next = state.random.pick(&ready);
        for state in &mut state.threads {
            if let ThreadState::Waiting(left) = state {
                *left = left.saturating_sub(1);
            }
        }
        state.threads[next] = ThreadState::Running;
        self.changed.notify_all();
    }
}

impl Drop for TurnTaker<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.threads[self.thread] = ThreadState::Ended;
        self.turns.choose(&mut state);
    }
}
