//! Reads and writes of the array, and the logs on the members that make writes survive a crash.

pub(crate) mod admission;
pub(crate) mod hedge;
pub(crate) mod intent;
pub(crate) mod journal;
pub(crate) mod locks;
pub(crate) mod overlay;
pub(crate) mod plan;
pub(crate) mod read;
pub(crate) mod read_cache;
pub(crate) mod rows;
pub(crate) mod sequential;
pub(crate) mod sums;
pub(crate) mod units;
pub(crate) mod write;
