//! Measures and fills a path: how much to keep in flight, on how many connections.
//!
//! [`Tuner`] decides and does no I/O; `pool` measures for it and carries out its plans, for each
//! thread that has opened a device.

mod direction;
mod meter;
mod options;
mod pool;
mod share;
mod sockets;
mod traffic;
mod tuner;
#[cfg(test)]
mod tuner_tests;
mod types;

pub use direction::FLOOR;
pub use options::{PathOptions, PathReport};
pub(crate) use pool::{ConnectionPool, Reports};
pub(crate) use share::Sharer;
pub use sockets::{Buffer, Limit, SocketLimit, Sockets};
pub use traffic::{Traffic, WayTraffic};
pub use tuner::Tuner;
pub use types::{IoDirection, Limits, PathPlan, Sample, WaySample};
