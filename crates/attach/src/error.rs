//! Errors of attaching and detaching.

use longhaul_block::IoError;
use longhaul_device::{Error, ErrorKind};
use std::io;
use std::path::PathBuf;

/// Why a device could not be attached or detached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// This machine has no FUSE, or this user may not use it.
    #[error("FUSE cannot be used here: {0}")]
    NoFuse(String),
    /// The kernel does not support a way of attaching, or not for this user.
    #[error("the kernel cannot do it here: {0}")]
    NoKernel(String),
    /// No loop device is free or accessible.
    #[error("a loop device cannot be used here: {0}")]
    NoLoop(String),
    /// The path at which the device should appear is taken.
    #[error("{}: {why}", path.display())]
    Path {
        /// Path at which the device should appear.
        path: PathBuf,
        /// Why the device cannot appear there.
        why: String,
    },
    /// A program still uses it.
    #[error("{} is in use{}", path.display(), users(by))]
    Busy {
        /// The attached device.
        path: PathBuf,
        /// The loop devices, mounts and processes that use it, as far as this user can see them.
        by: Vec<String>,
    },
    /// An address to listen on cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address as the user wrote it.
        address: String,
        /// Error of the system.
        source: io::Error,
    },
    /// An operation on this machine failed.
    #[error("{what}: {source}")]
    System {
        /// The operation, and its object.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// An error of the device.
    #[error(transparent)]
    Device(#[from] IoError),
}

impl AttachError {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> AttachError {
        let what = what.into();
        move |source| AttachError::System { what, source }
    }

    pub(crate) fn path(path: impl Into<PathBuf>, why: impl std::fmt::Display) -> AttachError {
        AttachError::Path { path: path.into(), why: why.to_string() }
    }
}

impl From<AttachError> for Error {
    fn from(e: AttachError) -> Error {
        match e {
            AttachError::Device(e) => e.into(),
            AttachError::Path { .. } => Error::new(ErrorKind::Invalid, e),
            AttachError::Busy { .. } => Error::new(ErrorKind::Refused, e),
            e => Error::new(ErrorKind::Failed, e),
        }
    }
}

pub(crate) fn failed(message: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Failed, message)
}

pub(crate) fn invalid(message: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn users(by: &[String]) -> String {
    if by.is_empty() { String::new() } else { format!(" by {}", by.join(", ")) }
}
