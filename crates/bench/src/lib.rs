//! Workloads, content verification and one result schema (fio's).
//!
//! A [`Job`] says what to do in fio's words, [`run`] does it on
//! [`BlockDevice`](longhaul_block::BlockDevice)s, and [`Results::to_fio`]
//! tells of it in fio's JSON layout.

mod calls;
mod job;
mod pattern;
mod results;
mod run;
pub mod schema;
mod stats;
mod verify;
mod worker;

pub use job::{Job, MAX_IODEPTH, MAX_JOBS, OWN_THREADS_MAX, Rw};
pub use results::{JobResult, Results};
pub use run::{BenchError, Live, Phase, Rate, Stop, TICK, Threads, run};
pub use stats::{DirStats, Latencies, Samples};
pub use verify::{Fault, FaultKind, MAX_BLOCKS, MAX_FAULTS, VerifyReport};
