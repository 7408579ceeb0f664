//! What all disks of a simulation share: the order of events, and the moment
//! at which everything stops.

use crate::random::mix;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A step of an operation on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Read,
    Write,
    Flush,
    Zero,
    /// A reservation command.
    Reserve,
    /// A packet of a network arrives, at the end of that number.
    Packet,
}

/// An event on a disk, or in a network: its kind, and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) deed: Deed,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Event {
    /// A number that distinguishes events in the digest of a world.
    fn mark(self) -> u64 {
        let kind = match self.deed {
            Deed::Read => 1,
            Deed::Write => 2,
            Deed::Flush => 3,
            Deed::Zero => 4,
            Deed::Packet => 5,
            Deed::Reserve => 6,
        };
        kind << 48 ^ self.offset << 20 ^ self.len
    }
}

/// Events before which a crash is of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A superblock is written (docs/array-safety.md, "On a member").
    Superblock,
    /// A range is zeroed.
    Zero,
}

/// Where the copies of a superblock are on a member.
const SUPERBLOCKS: [u64; 2] = [0, 64 << 10];

impl Moment {
    fn is_at(self, event: Event) -> bool {
        match self {
            Moment::Superblock => event.deed == Deed::Write && SUPERBLOCKS.contains(&event.offset),
            Moment::Zero => event.deed == Deed::Zero,
        }
    }
}

/// Counts the events of disks, and stops them all at a chosen event.
///
/// Invariants:
/// - after the stop no disk changes and no operation ends, until [`World::resume`];
/// - two runs are the same if their digests are.
#[derive(Clone, Debug, Default)]
pub struct World(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    events: u64,
    stop_at: Option<u64>,
    /// Stop before so many more of these.
    stop_before: Option<(Moment, u64)>,
    stopped: bool,
    waiting: Option<Waker>,
    digest: u64,
    /// Print every event.
    loud: bool,
}

impl World {
    /// A world that prints every event on standard error if `loud`.
    #[must_use]
    pub fn new(loud: bool) -> World {
        World(Arc::new(Mutex::new(State { loud, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is about to happen on a disk: whether it may.
    pub(crate) fn event(&self, disk: u64, event: Event, what: fmt::Arguments<'_>) -> bool {
        let mut state = self.state();
        if state.stopped {
            return false;
        }
        if let Some((_, count)) = state.stop_before.as_mut().filter(|(moment, _)| moment.is_at(event)) {
            *count = count.saturating_sub(1);
        }
        if state.stop_at == Some(state.events) || state.stop_before.is_some_and(|(_, count)| count == 0) {
            state.stopped = true;
            if state.loud {
                eprintln!("       all stops before: {what}");
            }
            state.waiting.take().into_iter().for_each(Waker::wake);
            return false;
        }
        state.events += 1;
        state.digest = mix(state.digest ^ event.mark() ^ disk << 56).rotate_left(1);
        if state.loud {
            eprintln!("{:6} {what}", state.events);
        }
        true
    }

    /// Prints a line that is not an event, if the world is loud.
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

    /// Stops everything before the event of this kind after `count` more.
    pub(crate) fn stop_before(&self, moment: Moment, count: u64) {
        self.state().stop_before = Some((moment, count + 1));
    }

    /// Lets events happen again, without end.
    pub fn resume(&self) {
        let mut state = self.state();
        (state.stopped, state.stop_at, state.stop_before, state.waiting) = (false, None, None, None);
    }

    /// Events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.state().events
    }

    /// A number that distinguishes runs.
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
