//! What is on the members: superblock, heartbeat, journal records and checksums, and where each region lies.
//!
//! Nothing here does I/O. Codes on members are explicit numbers, which the tests hold.

pub(crate) mod bytes;
pub(crate) mod geometry;
#[cfg(test)]
mod golden;
pub(crate) mod heartbeat;
pub(crate) mod history;
pub(crate) mod layout;
pub(crate) mod record;
pub(crate) mod section;
pub(crate) mod sums_page;
pub(crate) mod superblock;
