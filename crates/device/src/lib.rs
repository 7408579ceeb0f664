//! Opens any device by its name, and keeps what a user of this host knows of devices: directories
//! for records and sockets, and the list of attached devices.

#![forbid(unsafe_code)]

pub mod attached;
mod error;
pub mod runtime;
pub mod state;
mod user;

pub use error::{Error, ErrorKind, Result};
pub use user::User;
