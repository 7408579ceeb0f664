//! Seeded simulation of arrays, of hosts and targets on a network, and of pools: disks, links, targets
//! and hosts that are slow, crash, lie and leave under the code that users run, judged by models that
//! know nothing of it.
//!
//! A seed is a [`Plan`] and every choice in it: [`run`] does the same again
//! and again. Time is virtual, so that a day passes in no time.

#![forbid(unsafe_code)]

pub mod content;
mod disk;
mod hosts;
mod load;
mod medium;
pub mod model;
pub mod network;
mod outcome;
mod plan;
pub mod pools;
mod random;
mod repair;
mod run;
pub mod subject;
mod trouble;
mod world;

pub use disk::{Disk, Fault, Make, Snapshot};
pub use hosts::run_hosts;
pub use outcome::{Failure, Replay};
pub use plan::{Plan, Theme};
pub use random::Random;
pub use run::{Done, run};
pub use world::World;
