//! How a path is measured and filled: what to keep in flight, on how many
//! connections.

mod sockets;
mod tuner;
#[cfg(test)]
mod tuner_tests;

pub use sockets::{Buffer, Limit, SocketLimit, Sockets};
pub use tuner::{FLOOR, Limits, Plan, Sample, Tuner, Way, WaySample};
