//! Experiments, apart from the machines that they run on.
//!
//! `longhaul study`, `longhaul diagnose` and the benchmarks take workloads, published numbers and
//! the model from here; nothing here does I/O.
//!
//! | module | is |
//! |---|---|
//! | [`published`] | what publications say: every statement, with its place |
//! | [`filesystems`], [`striping`] | workloads, devices and transports of two of the experiments |
//! | [`model`] | T = N·t0 + B/R: what a file costs, and which stage of it |
//! | [`mod@line`] | the cells of such a fit |
//! | [`cause`] | what keeps a copy from being faster, and what to do |

#![forbid(unsafe_code)]

pub mod cause;
pub mod filesystems;
pub mod line;
pub mod model;
pub mod published;
pub mod striping;
