//! Emulated long-distance links for people and tests.
//!
//! Two of them, for two purposes:
//!
//! - [`Wan`]: real TCP over an emulated path, between network namespaces. It
//!   needs root and `/dev/net/tun`; windows, loss, queues and cuts are those
//!   of the kernel's own TCP.
//! - [`Relay`]: an ideal long link inside this process; it needs no privileges.

#![deny(unsafe_code)]

mod arena;
pub mod conditions;
pub mod control;
mod error;
mod flow;
mod guard;
mod model;
mod mover;
mod netem;
mod netns;
mod packet;
pub mod relay;
mod setup;
mod statistics;
#[allow(unsafe_code)]
mod sys;
mod wan;

pub use conditions::{Change, Conditions, DirectionConditions, LinkDirection, Queue};
pub use error::Error;
pub use netns::Namespace;
pub use relay::{Link, Relay, RelayStats};
pub use statistics::{DirectionStatistics, Lateness, LinkStatistics, Statistics};
pub use wan::{MAX_LINKS, MAX_NAME, Via, Wan, WanPlan, unavailable};
