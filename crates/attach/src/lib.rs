//! A [`BlockDevice`](longhaul_block::BlockDevice) as a local device: one file
//! through FUSE, a loop device on it, a file system on that; or an NBD export.
//!
//! A front end turns what its protocol asks into [`Request`]s and knows
//! nothing of devices; [`Served`] does them on an engine thread, all at the
//! same time, with read-ahead and write-behind that fit the path below.

#![deny(unsafe_code)]

mod ahead;
mod device;
mod disk;
mod error;
pub mod filesystem;
pub mod fuse;
pub mod kernel;
mod loopdev;
pub mod nbd;
mod order;
mod served;
pub mod users;

pub use disk::ErrorCursor;
pub use error::AttachError;
pub use loopdev::{LoopDevice, Shared, keep_out_of_reclaim};
pub use served::{Done, Request, Requests, Served};
