//! Workloads, content verification and measurement of networks.
//!
//! A [`Job`] says what to do in fio's words, [`run`] does it on
//! [`BlockDevice`](longhaul_block::BlockDevice)s, and [`Results::to_fio`]
//! reports it in fio's JSON layout. [`Repeated`] does it several times and
//! makes the whole document: fio's layout, and a
//! [`Record`](longhaul_results::record::Record) of what the numbers depend on
//! and whether they count.

mod acknowledged;
mod calls;
mod job;
pub mod net;
mod pattern;
mod repeated;
mod results;
mod run;
mod stats;
mod verify;
pub mod watch;
mod worker;

pub use acknowledged::AcknowledgedWrites;
pub use job::{Job, MAX_IODEPTH, MAX_JOBS, OWN_THREADS_MAX, Rw};
pub use repeated::Repeated;
pub use results::{JobResult, Results};
pub use run::{BenchError, Live, Phase, Rate, Stop, TICK, Threads, run};
pub use stats::{DirStats, Latencies, Samples};
pub use verify::{Fault, FaultKind, MAX_BLOCKS, MAX_FAULTS, VerifyReport};
