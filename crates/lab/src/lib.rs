//! Published experiments, and what is learned from them.
//!
//! | module | is |
//! |---|---|
//! | [`published`] | what publications say: every statement, with its place |
//! | [`filesystems`], [`striping`] | workloads, devices and transports of two of the experiments |
//! | [`study`] | the experiments, run again |
//! | [`model`] | T = N·t0 + B/R: what a file costs, and which stage of it |
//! | [`mod@line`] | the cells of such a fit |
//! | [`cause`] | what keeps a copy from being faster, and what to do |
//! | [`emulated`] | whether the emulated link that a process runs behind kept its promises |
//! | [`slowfs`] | a directory with planted delays and faults, for studies and tests |
//! | [`self_exec`] | runs of the calling program, and their results |
//!
//! Only `study`, `emulated`, `slowfs` and `self_exec` do I/O.

#![forbid(unsafe_code)]

pub mod cause;
pub mod emulated;
mod error;
pub mod filesystems;
pub mod line;
pub mod model;
pub mod published;
pub mod self_exec;
pub mod slowfs;
pub mod striping;
pub mod study;

pub use error::Error;
use error::Outcome;
