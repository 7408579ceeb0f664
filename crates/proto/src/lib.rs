//! Initiator and controller state machines of NVMe/TCP, without I/O.
//!
//! [`host::HostQueue`] and [`target::TargetQueue`] are the two ends of one
//! connection: bytes and calls in, events and batches of output out. They own
//! no socket, no clock and no payload memory; a driver does.
//! With the feature `pair` there is `pair::Pair`, which joins both ends in memory
//! with virtual time, for tests.

#![forbid(unsafe_code)]

pub mod controller;
pub mod host;
#[cfg(any(test, feature = "pair"))]
pub mod pair;
pub mod reservation;
pub mod target;
pub mod transport;
