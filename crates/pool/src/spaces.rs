//! What a pool asks of targets.

use crate::label::Label;
use crate::record::VolumeRecord;
use uuid::Uuid;

/// A space of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its identity, which it keeps at another address, such as the NQN of its subsystem.
    pub id: String,
    /// All bytes of it.
    pub capacity: u64,
    /// Bytes that namespaces can still be made of.
    pub free: u64,
}

/// A namespace of a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its identity, which is never used again.
    pub uuid: Uuid,
    /// Size in bytes.
    pub size: u64,
    /// What it is a part of; none for one that no pool made, and the reason for one that cannot be
    /// read.
    pub label: Option<Result<Label, String>>,
}

/// Why a target did not do as asked. After any of these but [`Full`](Self::Full) and
/// [`Refused`](Self::Refused) it may have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    /// There is no room.
    #[error("{0}")]
    Full(String),
    /// This host may not do that there.
    #[error("{0}")]
    Refused(String),
    /// It cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// Makes and removes namespaces at targets, and arrays over them. Each change is durable when the call
/// returns.
pub trait Spaces: Send + Sync {
    /// The space at an address.
    ///
    /// # Errors
    /// It cannot be reached, or does not let this host manage it.
    fn space(&self, address: &str) -> Result<Space, SpaceError>;

    /// All its namespaces, with their labels.
    ///
    /// # Errors
    /// As for [`Self::space`].
    fn list(&self, address: &str) -> Result<Vec<Namespace>, SpaceError>;

    /// Makes a namespace that reads as zeroes, and returns its UUID. Its label is written with it,
    /// in one step.
    ///
    /// # Errors
    /// [`SpaceError::Full`], or as for [`Self::space`].
    fn make(&self, address: &str, size: u64, label: &Label) -> Result<Uuid, SpaceError>;

    /// Removes a namespace. One that does not exist is not an error.
    ///
    /// # Errors
    /// As for [`Self::space`].
    fn remove(&self, address: &str, namespace: Uuid) -> Result<(), SpaceError>;

    /// Puts another label in place of that of a namespace.
    ///
    /// # Errors
    /// As for [`Self::space`].
    fn relabel(&self, address: &str, namespace: Uuid, label: &Label) -> Result<(), SpaceError>;

    /// Makes the array of a volume, whose members are at these addresses, and returns its UUID.
    ///
    /// # Errors
    /// A member cannot be reached, or written.
    fn format(&self, volume: &VolumeRecord, members: &[(String, Uuid)]) -> Result<Uuid, SpaceError>;

    /// The array whose superblock is on a namespace.
    ///
    /// # Errors
    /// The namespace cannot be read.
    fn array_on(&self, address: &str, namespace: Uuid) -> Result<Option<Uuid>, SpaceError>;
}
