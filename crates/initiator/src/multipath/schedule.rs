//! Decides which path a request takes: the one on which it is expected to complete first.
//!
//! A path that is kept busy delivers all that is in flight on it at its rate; one that is not delivers
//! after a round trip. So a request completes after the longer one of both times. Each path takes no
//! more than fills it (the *window*, which the tuner of the path measures); what is beyond waits, and
//! is assigned as paths get room. So unequal paths are filled in proportion to what each carries, and
//! no request is bound early to a path that turns out to be slow, or that is lost.
//!
//! A request may wait for a path although another one has room: if it completes sooner on the first
//! one nevertheless, for the other has a long round trip.
//!
//! Calculations only: no time passes and no I/O is done here.

use longhaul_wire::log::AnaState;
use std::fmt;
use std::time::Duration;

/// What a path can be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathState {
    /// The target serves the namespace best over it. Targets that report no such state serve it
    /// equally over all paths.
    Optimized,
    /// It works, and is used while no path is optimized.
    NonOptimized,
    /// There is a connection, and the target does not serve the namespace over it now: another one
    /// does, or one of them is about to.
    Inaccessible,
    /// There is no connection; it is being connected to again.
    Lost,
}

impl PathState {
    /// That of a connected path whose target reports this.
    pub(crate) fn of(access: AnaState) -> PathState {
        match access {
            AnaState::Optimized => PathState::Optimized,
            AnaState::NonOptimized => PathState::NonOptimized,
            //= NVMe Base 2.1, Asymmetric Namespace Access: in a change of state, as without access, no command is sent
            AnaState::Inaccessible | AnaState::Change | AnaState::PersistentLoss | AnaState::Reserved(_) => {
                PathState::Inaccessible
            }
        }
    }

    /// Whether it can carry I/O.
    pub fn is_usable(self) -> bool {
        self <= PathState::NonOptimized
    }
}

impl fmt::Display for PathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathState::Optimized => "optimized",
            PathState::NonOptimized => "non-optimized",
            PathState::Inaccessible => "inaccessible",
            PathState::Lost => "lost",
        })
    }
}

/// Bytes in flight on a path that has not been measured: one I/O of the usual size.
const FIRST_WINDOW: u64 = 1 << 20;
/// Bytes that a path that has not been measured is expected to deliver in a round trip.
const FIRST_RATE_BYTES: f64 = (512u64 << 10) as f64;
/// A rate that more in flight may still raise is taken for this multiple of it.
const RISING: f64 = 2.0;
/// Silence that is no sign of trouble: this time, and so many times what was expected.
const SILENCE_MIN: Duration = Duration::from_millis(100);
const SILENCE_TIMES: u32 = 2;

/// One direction of a path at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathLoad {
    pub(crate) state: PathState,
    /// Bytes in flight.
    pub(crate) in_flight: u64,
    /// Bytes of requests that wait for this path, ahead of the one that is assigned now.
    pub(crate) ahead: u64,
    /// Bytes that fill it.
    pub(crate) window: u64,
    /// Bytes per second that it was seen to deliver; 0: not measured.
    pub(crate) rate: f64,
    /// It delivers no more if more is in flight.
    pub(crate) full: bool,
    /// The least round trip.
    pub(crate) round_trip: Duration,
    /// Time for which nothing has completed although something is in flight.
    pub(crate) silent: Duration,
}

impl PathLoad {
    /// Bytes per second that it is expected to deliver.
    fn expected_rate(&self) -> f64 {
        if self.full && self.rate > 0.0 {
            return self.rate;
        }
        let first = FIRST_RATE_BYTES / self.round_trip.as_secs_f64().max(1e-6);
        if self.rate > 0.0 { self.rate * RISING } else { first }
    }

    /// Time until a request of `bytes` is expected to complete.
    fn expected(&self, bytes: u64) -> Duration {
        let rate = self.expected_rate().max(1.0);
        let time = |bytes: u64| Duration::try_from_secs_f64(bytes as f64 / rate).unwrap_or(Duration::MAX);
        let busy = time(self.in_flight.saturating_add(self.ahead).saturating_add(bytes));
        let expected = busy.max(self.round_trip.saturating_add(time(bytes)));
        let quiet = time(self.in_flight).max(self.round_trip);
        let trouble = self.silent > quiet.saturating_mul(SILENCE_TIMES).saturating_add(SILENCE_MIN);
        if trouble { expected.saturating_add(self.silent) } else { expected }
    }

    /// Whether a request can be sent now.
    pub(crate) fn has_room(&self) -> bool {
        let window = if self.rate > 0.0 { self.window } else { self.window.min(FIRST_WINDOW) };
        // A whole request fills what is left: with large ones, less would leave the path idle.
        self.state.is_usable() && self.in_flight < window.max(1)
    }
}

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Send it on this path.
    Send(usize),
    /// Let it wait for this path.
    Wait(usize),
    /// No path can be used.
    None,
}

/// Chooses for a request of `bytes`. The caller adds them to `in_flight` or `ahead` of the path.
pub(crate) fn choose(paths: &[PathLoad], bytes: u64) -> Choice {
    let Some(best) = paths.iter().map(|path| path.state).min().filter(|state| state.is_usable()) else {
        return Choice::None;
    };
    let usable = paths.iter().enumerate().filter(|(_, path)| path.state == best);
    // Of two that are as fast, the one with less to do.
    let key = |path: &PathLoad| {
        let work = path.in_flight.saturating_add(path.ahead) as f64 / path.expected_rate().max(1.0);
        (path.expected(bytes), Duration::try_from_secs_f64(work).unwrap_or(Duration::MAX))
    };
    match usable.min_by_key(|(_, path)| key(path)) {
        Some((number, path)) if path.has_room() => Choice::Send(number),
        Some((number, _)) => Choice::Wait(number),
        None => Choice::None,
    }
}

/// Chooses for a request that the path `from` has refused: another one, if any can be used.
pub(crate) fn choose_again(states: &[PathState], from: usize) -> Option<usize> {
    let usable = (0..states.len()).filter(|&number| states[number].is_usable());
    usable.min_by_key(|&number| (number == from, states[number]))
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
