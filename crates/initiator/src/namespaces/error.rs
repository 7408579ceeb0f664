//! Why namespaces cannot be managed.

use super::LabelError;
use crate::error::Error;
use longhaul_wire::completion::Status;

/// Result of managing namespaces.
pub type ManagementResult<T> = std::result::Result<T, ManagementError>;

/// Why a command that manages namespaces failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ManagementError {
    /// The space has less free capacity than was asked for.
    #[error("{addr} has no room for {what}: free capacity there, or ask for less")]
    Full {
        /// Address and port.
        addr: String,
        /// What was asked.
        what: &'static str,
    },
    /// The space has as many namespaces as it can have.
    #[error("{addr} has as many namespaces as it can have: remove some there")]
    TooMany {
        /// Address and port.
        addr: String,
    },
    /// There is no such namespace.
    #[error("{addr} has no namespace {nsid}")]
    NotFound {
        /// Address and port.
        addr: String,
        /// Namespace identifier.
        nsid: u32,
    },
    /// It is attached already.
    #[error("namespace {nsid} of {addr} is attached already")]
    AlreadyAttached {
        /// Address and port.
        addr: String,
        /// Namespace identifier.
        nsid: u32,
    },
    /// It is not attached.
    #[error("namespace {nsid} of {addr} is not attached to that host")]
    NotAttached {
        /// Address and port.
        addr: String,
        /// Namespace identifier.
        nsid: u32,
    },
    /// The subsystem has no space, or this host is not one of its administrators.
    #[error(
        "{addr} does not let {hostnqn} manage namespaces: start 'longhaul target' there with --space and \
         --admin {hostnqn}"
    )]
    NotPermitted {
        /// Address and port.
        addr: String,
        /// NQN of this host.
        hostnqn: String,
    },
    /// Its namespaces cannot be cloned.
    #[error(
        "{addr} does not clone namespaces: {why}. Its space has to be a directory (dir:) of a file system whose \
         files share blocks, such as XFS made with reflink=1, or Btrfs"
    )]
    NoClones {
        /// Address and port.
        addr: String,
        /// What is missing.
        why: &'static str,
    },
    /// Any other status.
    #[error("{addr} refused {what}: {status}")]
    Refused {
        /// Address and port.
        addr: String,
        /// What was asked.
        what: &'static str,
        /// The status of the completion.
        status: Status,
    },
    /// A label cannot be sent, or was not understood.
    #[error("label of a namespace: {0}")]
    Label(#[from] LabelError),
    /// The size is no whole number of blocks, or the block size is not one that namespaces have.
    #[error("a namespace cannot have {size} bytes in blocks of {block_size}: blocks have 512 or 4096 bytes")]
    Size {
        /// Size in bytes.
        size: u64,
        /// Block size in bytes.
        block_size: u32,
    },
    /// The target cannot be reached, or breaks the protocol. Whether the command was carried out is
    /// not known.
    #[error(transparent)]
    Connection(#[from] Error),
}
