//! Input and output of the tuner.

use super::sockets::{Limit, Sockets};
use std::time::Duration;

/// The two directions of a path, as an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoDirection {
    /// From the far side to here.
    Read,
    /// From here to the far side.
    Write,
}

/// What a plan must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in flight at most, a direction.
    pub in_flight: u64,
    /// Connections at most.
    pub connections: u16,
}

/// The measurements of a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// When the round ended, from any fixed moment.
    pub now: Duration,
    /// Each direction, by [`IoDirection`].
    pub ways: [WaySample; 2],
    /// Smoothed round trip of the connections, the least one of them.
    pub rtt: Option<Duration>,
    /// The least time that a command took, from submission to completion.
    pub latency_min: Option<Duration>,
    /// What the sockets say.
    pub sockets: Sockets,
    /// Connections in use.
    pub connections: u16,
}

/// One direction in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaySample {
    /// Bytes of commands that were completed.
    pub completed: u64,
    /// Bytes that TCP has moved, where the kernel counts them: completions come in
    /// steps of a command, which is several rounds of a slow path.
    pub moved: Option<u64>,
    /// Bytes in flight, on average over completions.
    pub in_flight: u64,
    /// Segments were lost (or came in another order).
    pub lost: bool,
    /// There was nothing in flight for a moment, and then something again.
    pub begun: bool,
    /// The far side asked for data before it took it (R2T): such a command takes
    /// two round trips.
    pub asked: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathPlan {
    /// Bytes to keep in flight, by [`IoDirection`].
    pub in_flight: [u64; 2],
    /// Connections to spread them over.
    pub connections: u16,
    /// Bytes per second that each direction was seen to carry, by [`IoDirection`]; 0
    /// if it was not used.
    pub rate: [f64; 2],
    /// The same on average over all the time for which the path has been full, up to 256
    /// rounds: no more than it carries.
    pub carried: [f64; 2],
    /// The least round trip.
    pub rtt: Duration,
    /// Whether each direction is at its end: more in flight brings no more.
    pub full: [bool; 2],
    /// What kept one connection from filling the path.
    pub limit: Option<Limit>,
    /// Nothing is being tried at the moment: longer measuring changes it only
    /// if the path changes.
    pub settled: bool,
}
