//! Why attaching did not work.

use longhaul_block::IoError;
use std::io;
use std::path::PathBuf;

/// Why something could not be attached, or not be taken away.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// This machine has no FUSE, or this person may not use it.
    #[error("FUSE cannot be used here: {0}")]
    NoFuse(String),
    /// The kernel does not have a way, or not for this person.
    #[error("the kernel cannot do it here: {0}")]
    NoKernel(String),
    /// There is no free loop device, or none may be used.
    #[error("a loop device cannot be used here: {0}")]
    NoLoop(String),
    /// Something is in the place where the device should appear.
    #[error("{}: {why}", path.display())]
    Path {
        /// Path at which the device should appear.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A program still uses it.
    #[error("{} is in use{}", path.display(), users(by))]
    Busy {
        /// The attached device.
        path: PathBuf,
        /// Who uses it, as far as can be seen.
        by: Vec<String>,
    },
    /// An address to listen on cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// As it was asked for.
        address: String,
        /// Error of the system.
        source: io::Error,
    },
    /// Something that this machine usually does.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The device below.
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

fn users(by: &[String]) -> String {
    if by.is_empty() { String::new() } else { format!(" by {}", by.join(", ")) }
}
