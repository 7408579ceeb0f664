//! A [`BlockDevice`](longhaul_block::BlockDevice) as a local device: one file through FUSE, a loop
//! device on it, a file system on that; or an NBD export.
//!
//! A front end turns the requests of its protocol into [`Request`]s and knows nothing of devices;
//! [`Served`] executes them concurrently on an engine thread, through a
//! [`Cache`](longhaul_cache::Cache) that reads ahead and writes behind as fits the path below.

#![deny(unsafe_code)]

mod device;
mod error;
pub mod filesystem;
pub mod fuse;
pub mod kernel;
mod loopdev;
pub mod nbd;
mod served;
pub mod users;

pub use error::AttachError;
pub use longhaul_cache::ErrorCursor;
pub use loopdev::{LoopDevice, Shared, keep_out_of_reclaim};
pub use served::{Done, Request, Requests, Served};
