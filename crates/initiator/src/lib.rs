//! The NVMe/TCP initiator: controllers and queues; a remote namespace as a
//! block device.

#![forbid(unsafe_code)]

mod uri;

pub use uri::{DISCOVERY_PORT, IO_PORT, SCHEME, Uri, UriError, UriOptions, parse_authority};
