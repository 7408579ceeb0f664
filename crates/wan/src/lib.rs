//! Emulated long-distance links for people and tests.

#![forbid(unsafe_code)]

pub mod relay;

pub use relay::{Link, Relay, RelayStats};
