//! Published experiments, their repetition, and the models learned from them.
//!
//! | module | is |
//! |---|---|
//! | [`published`] | every published statement that is cited, with its place |
//! | [`filesystems`], [`striping`] | workloads, devices and transports of two of the experiments |
//! | [`study`] | the experiments, run again |
//! | [`model`] | T = N·t0 + B/R: the cost of a file, and of each stage |
//! | [`mod@line`] | the cells of such a fit |
//! | [`cause`] | the cause that keeps a copy from being faster, and the remedy |
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
