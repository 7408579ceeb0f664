//! The verbs of the command line, one module for each, and modules that several of them share.

pub(crate) mod agent;
pub(crate) mod array;
pub(crate) mod attach;
pub(crate) mod bench;
pub(crate) mod connections;
pub(crate) mod cp;
pub(crate) mod ctl;
pub(crate) mod dataset;
pub(crate) mod demo;
pub(crate) mod diagnose;
pub(crate) mod discover;
pub(crate) mod fs;
pub(crate) mod hostnqn;
pub(crate) mod info;
pub(crate) mod key;
pub(crate) mod meta;
pub(crate) mod netbench;
pub(crate) mod ns;
pub(crate) mod pool;
pub(crate) mod report;
pub(crate) mod study;
pub(crate) mod target;
pub(crate) mod top;
pub(crate) mod tune;
pub(crate) mod volume;
pub(crate) mod wan;
