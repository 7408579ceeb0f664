//! Timeout for a silent peer, above TCP.
//!
//! Invariants:
//! - each side of a copy sends a frame every [`BEAT`] at least, also while it only scans
//!   or reads, so a peer that is silent for longer than [`PATIENCE`] hangs, or holds a
//!   session on purpose;
//! - while a side has work of its own to do, the peer may rightly be silent, and no time
//!   counts.

use longhaul_engine::{now, sleep};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long the other side of a copy may be silent.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// The timeout while an agent refuses clients because all sessions are in use: three
/// times the longest silence of a working peer.
pub(crate) const CROWDED: Duration = Duration::from_secs(60);
/// Interval of frames that a side sends although nothing has changed.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// Silence up to this long is not reported as the limit of a copy: round trips and busy
/// machines explain it.
pub(crate) const QUIET: Duration = Duration::from_secs(3);
/// Longest interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The time at which data was last received on a connection.
#[derive(Clone, Debug)]
pub(crate) struct LastReceived(Rc<Cell<Instant>>);

impl LastReceived {
    pub(crate) fn new() -> LastReceived {
        LastReceived(Rc::new(Cell::new(now())))
    }

    /// Sets it to now.
    pub(crate) fn update(&self) {
        self.0.set(now());
    }
}

/// The timeout of a copy for its peer; it may change while the copy runs.
#[derive(Clone, Debug)]
pub(crate) struct PeerTimeout(Rc<Cell<Duration>>);

impl Default for PeerTimeout {
    fn default() -> PeerTimeout {
        PeerTimeout::new(PATIENCE)
    }
}

impl PeerTimeout {
    pub(crate) fn new(patience: Duration) -> PeerTimeout {
        PeerTimeout(Rc::new(Cell::new(patience)))
    }

    pub(crate) fn set(&self, patience: Duration) {
        self.0.set(patience);
    }

    pub(crate) fn get(&self) -> Duration {
        self.0.get()
    }

    /// Resolves with the length of the silence once no connection has received data for
    /// the timeout while this side was not `busy`; never if there are no connections.
    /// Reports the silence so far to `report` at each check.
    pub(crate) async fn expires(
        &self,
        connections: Vec<LastReceived>,
        busy: impl Fn() -> bool,
        report: impl Fn(Duration),
    ) -> Duration {
        let mut last = now();
        loop {
            let limit = self.get();
            let at = now();
            let received = connections.iter().map(|connection| connection.0.get()).max();
            last = if busy() || connections.is_empty() { at } else { last.max(received.unwrap_or(at)) };
            let silent = at.saturating_duration_since(last);
            report(silent);
            if silent >= limit {
                return silent;
            }
            sleep((limit - silent).min(CHECK_INTERVAL)).await;
        }
    }
}
