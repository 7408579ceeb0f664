//! What all disks of a simulation share: the order of events, and the moment
//! at which everything stops.

use crate::random::mix;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Counts what happens on disks, and stops it all at a chosen event.
///
/// Invariants:
/// - after the stop no disk changes and no operation ends, until
///   [`World::resume`];
/// - two runs are the same if their digests are.
#[derive(Clone, Debug, Default)]
pub struct World(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    events: u64,
    stop_at: Option<u64>,
    stopped: bool,
    waiting: Option<Waker>,
    digest: u64,
    /// Tell of every event.
    loud: bool,
}

impl World {
    /// A world that tells of every event on standard error if `loud`.
    #[must_use]
    pub fn new(loud: bool) -> World {
        World(Arc::new(Mutex::new(State { loud, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is about to happen on a disk: whether it may.
    pub(crate) fn event(&self, what: fmt::Arguments<'_>, mark: u64) -> bool {
        let mut state = self.state();
        if state.stopped {
            return false;
        }
        if state.stop_at == Some(state.events) {
            state.stopped = true;
            if state.loud {
                eprintln!("       all stops before: {what}");
            }
            state.waiting.take().into_iter().for_each(Waker::wake);
            return false;
        }
        state.events += 1;
        state.digest = mix(state.digest ^ mark).rotate_left(1);
        if state.loud {
            eprintln!("{:6} {what}", state.events);
        }
        true
    }

    /// Tells of something that is no event.
    pub fn tell(&self, what: fmt::Arguments<'_>) {
        if self.state().loud {
            eprintln!("       {what}");
        }
    }

    /// Stops everything now.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        state.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Stops everything before the event after `events` more.
    pub fn stop_after(&self, events: u64) {
        let mut state = self.state();
        state.stop_at = Some(state.events + events);
    }

    /// Lets events happen again, without end.
    pub fn resume(&self) {
        let mut state = self.state();
        (state.stopped, state.stop_at, state.waiting) = (false, None, None);
    }

    /// Events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.state().events
    }

    /// A number that tells runs apart.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.state().digest
    }

    /// Resolves when everything has stopped.
    pub async fn stopped(&self) {
        std::future::poll_fn(|cx| {
            let mut state = self.state();
            if state.stopped {
                return Poll::Ready(());
            }
            state.waiting = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
