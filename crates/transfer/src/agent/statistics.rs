//! Counts the sessions of an agent, for programs that watch it.
//!
//! Invariants:
//! - counts never fall: what a session has moved is kept when it ends.

use crate::guard::lock;
use crate::monitor::Monitor;
use crate::wire::CopyDirection;
use longhaul_engine::Handle;
use std::fmt;
use std::sync::{Arc, Mutex};

/// Sessions of one direction, since the start of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Sessions under way.
    pub open: usize,
    /// Sessions that came to their end.
    pub done: u64,
    /// Sessions that failed, or were interrupted.
    pub failed: u64,
    /// Files that were written, here or at the other side.
    pub files: u64,
    /// Bytes of content: written here, or read here and sent. Of mounted directories they are not counted.
    pub bytes: u64,
}

impl SessionCounts {
    fn add(&mut self, direction: CopyDirection, monitor: &Monitor) {
        let now = monitor.now();
        self.files += now.counts.files;
        self.bytes += match direction {
            CopyDirection::Push => now.counts.bytes,
            CopyDirection::Pull | CopyDirection::Onward | CopyDirection::Mount => now.read_bytes,
        };
    }
}

/// All directions, in the order of [`AgentObserver::sessions`].
const DIRECTIONS: [CopyDirection; 4] =
    [CopyDirection::Push, CopyDirection::Pull, CopyDirection::Onward, CopyDirection::Mount];

fn index(direction: CopyDirection) -> usize {
    DIRECTIONS.iter().position(|one| *one == direction).unwrap_or_default()
}

#[derive(Default)]
struct Sessions {
    past: [SessionCounts; DIRECTIONS.len()],
    open: Vec<(CopyDirection, Arc<Monitor>)>,
}

/// The sessions of an agent.
#[derive(Clone, Default)]
pub(super) struct Statistics(Arc<Mutex<Sessions>>);

impl fmt::Debug for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Statistics({:?})", self.sessions())
    }
}

impl Statistics {
    /// A session begins; it has failed if it is dropped before it is [`done`](CountedSession::done).
    pub(super) fn begin(&self, direction: CopyDirection, monitor: &Arc<Monitor>) -> CountedSession {
        lock(&self.0).open.push((direction, Arc::clone(monitor)));
        CountedSession { statistics: self.clone(), monitor: Arc::clone(monitor), is_done: false }
    }

    fn sessions(&self) -> [SessionCounts; DIRECTIONS.len()] {
        let sessions = lock(&self.0);
        let mut counts = sessions.past;
        for (direction, monitor) in &sessions.open {
            let of = &mut counts[index(*direction)];
            of.open += 1;
            of.add(*direction, monitor);
        }
        counts
    }
}

/// A session that is counted.
pub(super) struct CountedSession {
    statistics: Statistics,
    monitor: Arc<Monitor>,
    is_done: bool,
}

impl CountedSession {
    /// It came to its end.
    pub(super) fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for CountedSession {
    fn drop(&mut self) {
        let mut sessions = lock(&self.statistics.0);
        let Some(at) = sessions.open.iter().position(|(_, open)| Arc::ptr_eq(open, &self.monitor)) else {
            return;
        };
        let (direction, monitor) = sessions.open.swap_remove(at);
        let of = &mut sessions.past[index(direction)];
        of.add(direction, &monitor);
        *(if self.is_done { &mut of.done } else { &mut of.failed }) += 1;
    }
}

/// Watches an agent.
#[derive(Clone, Debug)]
pub struct AgentObserver {
    pub(super) statistics: Statistics,
    pub(super) thread: Handle,
}

impl AgentObserver {
    /// Sessions by their direction.
    pub fn sessions(&self) -> [(CopyDirection, SessionCounts); DIRECTIONS.len()] {
        let counts = self.statistics.sessions();
        std::array::from_fn(|i| (DIRECTIONS[i], counts[i]))
    }

    /// The engine of the thread that serves connections.
    pub fn thread(&self) -> Handle {
        self.thread.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_session_moved_stays_when_it_has_ended() {
        let statistics = Statistics::default();
        let monitor = || Arc::new(Monitor::new());
        let one = statistics.begin(CopyDirection::Pull, &monitor());
        let other = statistics.begin(CopyDirection::Pull, &monitor());
        one.monitor.read.bytes.store(7, std::sync::atomic::Ordering::Relaxed);
        let pulls = || statistics.sessions()[index(CopyDirection::Pull)];
        assert_eq!(pulls(), SessionCounts { open: 2, bytes: 7, ..SessionCounts::default() });
        one.done();
        drop(other);
        assert_eq!(pulls(), SessionCounts { done: 1, failed: 1, bytes: 7, ..SessionCounts::default() });
        assert!(lock(&statistics.0).open.is_empty(), "nothing grows with sessions that end");
    }
}
