//! Other sides that say nothing any more.
//!
//! Invariants:
//! - each side of a copy says something every [`BEAT`] at least, also while it only
//!   reads, or looks for files, so who is silent for longer than [`PATIENCE`] hangs,
//!   or wants to hold a place;
//! - who has work of the other side's still to do waits for itself, and not for it.

use longhaul_engine::{now, sleep};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long the other side of a copy may be silent.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// How long where others are turned away meanwhile: three times as long as it is
/// silent that works.
pub(crate) const CROWDED: Duration = Duration::from_secs(60);
/// How often a side says something though nothing has changed.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// How long a side that says nothing is not the reason why a copy stands still: what it
/// says has a way to go, and machines are busy at times.
pub(crate) const QUIET: Duration = Duration::from_secs(3);
/// How often is looked, at most.
const LOOK: Duration = Duration::from_secs(1);

/// When something last came on a connection.
#[derive(Clone, Debug)]
pub(crate) struct Pulse(Rc<Cell<Instant>>);

impl Pulse {
    pub(crate) fn new() -> Pulse {
        Pulse(Rc::new(Cell::new(now())))
    }

    /// Something came.
    pub(crate) fn beat(&self) {
        self.0.set(now());
    }
}

/// How long a copy waits for the other side; it may change meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Patience(Rc<Cell<Duration>>);

impl Default for Patience {
    fn default() -> Patience {
        Patience::new(PATIENCE)
    }
}

impl Patience {
    pub(crate) fn new(patience: Duration) -> Patience {
        Patience(Rc::new(Cell::new(patience)))
    }

    pub(crate) fn set(&self, patience: Duration) {
        self.0.set(patience);
    }

    pub(crate) fn get(&self) -> Duration {
        self.0.get()
    }

    /// Resolves when none of `pulses` has beaten for so long, though this side was
    /// not `busy`; how long that was. Never, where there are none. Until then `tell`
    /// hears how long it is.
    pub(crate) async fn ends(
        &self,
        pulses: Vec<Pulse>,
        busy: impl Fn() -> bool,
        tell: impl Fn(Duration),
    ) -> Duration {
        let mut last = now();
        loop {
            let limit = self.get();
            let at = now();
            let heard = pulses.iter().map(|pulse| pulse.0.get()).max();
            last = if busy() || pulses.is_empty() { at } else { last.max(heard.unwrap_or(at)) };
            let silent = at.saturating_duration_since(last);
            tell(silent);
            if silent >= limit {
                return silent;
            }
            sleep((limit - silent).min(LOOK)).await;
        }
    }
}
