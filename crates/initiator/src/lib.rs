//! The NVMe/TCP initiator: controllers and queues; a remote namespace as a
//! block device.
//!
//! [`RemoteDevice::connect`] brings a controller up; its admin queue is
//! served by one thread of the process. Each engine thread that opens the
//! device gets an I/O queue, a connection, of its own, so that nothing on the
//! data path is shared. ([`open`] is the short way for code without an
//! engine.)

#![forbid(unsafe_code)]

mod controller;
mod device;
mod discover;
mod error;
mod options;
mod queue;
mod setup;
mod uri;

pub use controller::{ControllerEvent, ControllerInfo, NamespaceInfo};
pub use device::RemoteDevice;
pub use discover::{Discovery, Record, discover};
pub use error::{Error, Result};
pub use options::Options;
pub use uri::{DISCOVERY_PORT, IO_PORT, SCHEME, Uri, UriError, UriOptions, parse_authority};

use std::sync::Arc;

/// Connects to the namespace that `uri` names, with default options; for
/// code that runs on no engine.
///
/// # Errors
/// Each way in which it can fail is an [`Error`] of its own.
pub fn open(uri: &str) -> Result<Arc<RemoteDevice>> {
    RemoteDevice::connect_blocking(&uri.parse()?, Options::default())
}
