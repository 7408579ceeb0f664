//! Initiator and controller state machines of NVMe/TCP, without I/O.
//!
//! [`host::HostQueue`] and [`target::TargetQueue`] are the two ends of one
//! connection: bytes and calls in, events and batches of output out. They own
//! no socket, no clock and no payload memory; a driver does.

#![forbid(unsafe_code)]

pub mod host;
pub mod target;
pub mod transport;
