//! The events that `--json` prints: each is one line of JSON on standard output.
//!
//! Each event is declared here once, as the structure that is printed: its name in `rename`, its
//! fields with their meaning, and their units as type names below. `cargo xtask events` makes
//! the pages below docs/events/ of these declarations: a page for each module, whose header says
//! the verbs.

mod array;
mod attach;
mod audit;
mod bench;
mod copy;
mod ctl;
mod demo;
mod diagnose;
mod fs;
mod general;
mod info;
mod key;
mod namespaces;
mod pool;
mod study;
mod target;
mod top;
mod tune;
mod volume;
mod wan;

pub(crate) use array::*;
pub(crate) use attach::*;
pub(crate) use audit::*;
pub(crate) use bench::*;
pub(crate) use copy::*;
pub(crate) use ctl::*;
pub(crate) use demo::*;
pub(crate) use diagnose::*;
pub(crate) use fs::*;
pub(crate) use general::*;
pub(crate) use info::*;
pub(crate) use key::*;
pub(crate) use namespaces::*;
pub(crate) use pool::*;
pub(crate) use study::*;
pub(crate) use target::*;
pub(crate) use top::*;
pub(crate) use tune::*;
pub(crate) use volume::*;
pub(crate) use wan::*;

use std::time::Duration;

/// B
pub(crate) type Bytes = u64;
/// b/s
pub(crate) type BitsPerSecond = f64;
/// B/s
pub(crate) type BytesPerSecond = f64;
/// s
pub(crate) type Seconds = f64;
/// ms
pub(crate) type Millis = f64;
/// µs
pub(crate) type Micros = u64;
/// share, 0 to 1
pub(crate) type Share = f64;

/// A duration in whole microseconds, the unit of each round trip.
pub(crate) fn micros(time: Duration) -> Micros {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
