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
//! | [`diagnose`] | finds the bottleneck of a copy, by copies with other stages left out |
//! | [`copy_record`] | the result of a copy |
//! | [`device_load`] | loads on named devices, repeated |
//! | [`demo`] | a demonstration on one machine, beside plain TCP and scp |
//! | [`emulated`] | whether the emulated link that a process runs behind kept its promises |
//! | [`slowfs`] | a directory with planted delays and faults, for studies and tests |
//! | [`mod@tune`] | settings of a host for long paths, and their old values |
//! | [`self_exec`] | runs of the calling program, and their results |
//!
//! Only `study`, `device_load`, `diagnose`, `demo`, `emulated`, `slowfs`, `tune` and `self_exec` do I/O.

#![forbid(unsafe_code)]

pub mod cause;
pub mod copy_record;
pub mod demo;
pub mod device_load;
pub mod diagnose;
pub mod emulated;
mod error;
pub mod filesystems;
pub mod line;
pub mod model;
pub mod published;
mod removal;
pub mod self_exec;
pub mod slowfs;
pub mod striping;
pub mod study;
pub mod tune;

pub use error::Error;
use error::Outcome;
