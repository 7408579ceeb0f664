//! A [`BlockDevice`](longhaul_block::BlockDevice) as a local device: one file through FUSE, a loop
//! device on it, a file system on that; or an NBD export.
//!
//! A front end turns the requests of its protocol into [`Request`]s and knows nothing of devices;
//! [`Served`] executes them concurrently on an engine thread, through a
//! [`Cache`](longhaul_cache::Cache) that reads ahead and writes behind as fits the path below.

#![deny(unsafe_code)]

mod detach;
mod device;
mod error;
pub mod filesystem;
mod front_end;
pub mod fuse;
pub mod kernel;
mod loopdev;
mod making;
mod mounting;
pub mod nbd;
mod open;
mod served;
mod service;
pub mod users;
mod via;

pub use detach::detach;
pub use error::AttachError;
pub use front_end::FrontEnd;
pub use longhaul_cache::ErrorCursor;
pub use loopdev::{LoopDevice, Shared, keep_out_of_reclaim};
pub use making::{NewFileSystem, hidden_file};
pub use mounting::{MountedFrontEnd, Mounting, no_replay_option};
pub use open::{OpenDevice, OpenOptions};
pub use served::{Request, RequestDone, Requests, Served};
pub use service::{Service, ServiceEvent, ServiceObserver, listen};
pub use via::{FrontEndError, Via, first_available};
