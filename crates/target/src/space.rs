//! Capacity in which hosts make namespaces.

mod block;
mod dir;
mod files;
mod lazy;
mod manage;
mod record;
mod spec;

pub use block::{BlockSpace, BlockSpaceOptions};
pub use dir::DirSpace;
pub(crate) use manage::{Managed, SpaceChange};
pub use spec::{SpaceSpec, check_name};

use crate::store::ReservationStore;
use longhaul_block::BlockDevice;
pub use longhaul_proto::controller::NewNamespace;
pub use longhaul_wire::management::NamespaceLabel;
use std::sync::Arc;
use uuid::Uuid;

/// Where the reservations of a namespace with this UUID persist.
pub type ReservationStores = Arc<dyn Fn(Uuid) -> Arc<dyn ReservationStore> + Send + Sync>;

/// A namespace of a space, as the space has it.
#[derive(Clone)]
pub struct SpaceNamespace {
    /// Namespace identifier, from 1.
    pub nsid: u32,
    /// Its identity, given when it was made.
    pub uuid: Uuid,
    /// Several hosts may have it at a time.
    pub shared: bool,
    /// The hosts that it is attached to, and its purpose.
    pub label: NamespaceLabel,
    /// The content.
    pub device: Arc<dyn BlockDevice>,
}

/// Capacity of a space in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceCapacity {
    /// All of it.
    pub total: u64,
    /// What no namespace has taken.
    pub unallocated: u64,
}

/// Why a space is not changed.
#[derive(Debug, thiserror::Error)]
pub enum SpaceError {
    /// There is not as much capacity.
    #[error("{0}")]
    Full(String),
    /// There is no such namespace.
    #[error("there is no namespace {0}")]
    NotFound(u32),
    /// What was asked for cannot be.
    #[error("{0}")]
    Invalid(String),
    /// Namespaces of this space share no blocks.
    #[error("{0}")]
    NoClones(String),
    /// The medium failed. The text names it.
    #[error("{0}")]
    Medium(String),
}

/// Capacity in which namespaces are made. The methods block for as long as a medium takes. A change
/// is durable when the method returns, and after a crash it has been made wholly or not at all.
pub trait Space: Send + Sync {
    /// Its namespaces.
    fn namespaces(&self) -> Vec<SpaceNamespace>;

    /// Its capacity.
    ///
    /// # Errors
    /// The medium cannot be asked.
    fn capacity(&self) -> Result<SpaceCapacity, SpaceError>;

    /// Makes a namespace that reads as zeroes. `nsid` is not in use.
    ///
    /// # Errors
    /// [`SpaceError::Full`], or the medium failed.
    fn create(&self, nsid: u32, new: &NewNamespace) -> Result<SpaceNamespace, SpaceError>;

    /// Removes a namespace and its content. I/O that is under way ends as it may.
    ///
    /// # Errors
    /// There is no such namespace, or the medium failed.
    fn delete(&self, nsid: u32) -> Result<(), SpaceError>;

    /// Replaces the label of a namespace.
    ///
    /// # Errors
    /// There is no such namespace, or the medium failed.
    fn set_label(&self, nsid: u32, label: &NamespaceLabel) -> Result<(), SpaceError>;

    /// Makes a namespace larger: to `size` bytes.
    ///
    /// # Errors
    /// [`SpaceError::Full`], a smaller size, there is no such namespace, or the medium failed.
    fn grow(&self, nsid: u32, size: u64) -> Result<(), SpaceError>;

    /// Makes a namespace, `nsid`, with the content that `source` has at one moment: what was written to
    /// that before the call, and not what is written after it. It is thin. `nsid` is not in use.
    ///
    /// # Errors
    /// [`SpaceError::NoClones`], there is no such namespace, or the medium failed.
    fn clone_of(&self, source: u32, nsid: u32, label: &NamespaceLabel) -> Result<SpaceNamespace, SpaceError>;

    /// Tries to clone something, and leaves nothing.
    ///
    /// # Errors
    /// [`SpaceError::NoClones`] with the reason, or the medium failed.
    fn check_clones(&self) -> Result<(), SpaceError>;
}
