//! Why devices do not make an array.

use crate::layout::LayoutError;
use crate::superblock::{MAX_NAME, Unknown};
use longhaul_block::IoError;
use longhaul_block::signature::Content;
use uuid::Uuid;

/// Why there is no array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    /// The shape is out of bounds.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A name is too long, or empty.
    #[error("'{0}' is no name for an array: it has 1 to {MAX_NAME} bytes, and no control characters")]
    Name(String),
    /// A device cannot be used at all.
    #[error("{device}: {source}")]
    Device {
        /// Its name.
        device: String,
        /// Why.
        source: IoError,
    },
    /// A device is in an array already.
    #[error(
        "{device} is a member of array {name} ({array}): --force takes it away, and all that array's data with it"
    )]
    Taken {
        /// Its name.
        device: String,
        /// Name of the array.
        name: String,
        /// UUID of the array.
        array: Uuid,
    },
    /// A device is in some array, of which nothing more is known.
    #[error(
        "{device} is a member of an array, though its superblock {superblock}: --force takes it away, \
         and all that array's data with it"
    )]
    TakenUnknown {
        /// Its name.
        device: String,
        /// What is wrong with its superblock.
        superblock: Unknown,
    },
    /// A device has something on it.
    #[error("{device} has {content} on it, which would be lost: --force overwrites it")]
    Content {
        /// Its name.
        device: String,
        /// What is on it.
        content: Content,
    },
    /// A device has a superblock that is not understood.
    #[error(
        "{device} is a member of an array, but its superblock {superblock}: leave it out, if the others \
         are enough"
    )]
    NotUnderstood {
        /// Its name.
        device: String,
        /// What is wrong with its superblock.
        superblock: Unknown,
    },
    /// A device has no superblock.
    #[error("{0} is no member of an array")]
    NoMember(String),
    /// Devices of different arrays were given.
    #[error("{device} is a member of another array, {name} ({array})")]
    Foreign {
        /// Its name.
        device: String,
        /// Name of its array.
        name: String,
        /// UUID of its array.
        array: Uuid,
    },
    /// The same member was given twice.
    #[error("{device} and {other} are the same member of the array")]
    Double {
        /// One.
        device: String,
        /// The other.
        other: String,
    },
    /// A member is smaller than the array needs.
    #[error("{device} has {size} bytes, and a member of this array needs {needs}: has it been made smaller?")]
    TooSmall {
        /// Its name.
        device: String,
        /// Its size in bytes.
        size: u64,
        /// What it needs in bytes.
        needs: u64,
    },
    /// Members have gone different ways.
    #[error(
        "{device} ({own}) and {other} ({others}) were used apart from each other, and both may have data that \
         the other has not: assemble the array without the one that matters less, and give that back with \
         array replace --force"
    )]
    Diverged {
        /// One.
        device: String,
        /// The other.
        other: String,
        /// How new the superblock of the one is.
        own: String,
        /// How new that of the other is.
        others: String,
    },
    /// A device is a member of this array that has what the running set has not.
    #[error(
        "{device} is a member of this array, and its superblock ({own}) is not one that this set ({ours}) \
         descends from: it may have data that this set has not. --force overwrites it"
    )]
    Newer {
        /// Its name.
        device: String,
        /// How new its superblock is.
        own: String,
        /// How new that of the running set is.
        ours: String,
    },
    /// Other members may have gone on without these.
    #[error(
        "array {name} does not begin: {why}. Make those reachable, or, if they are lost for good, begin without \
         them: longhaul array assemble --degraded with the devices that are left. What only the missing ones \
         have is lost then"
    )]
    Outdated {
        /// Name of the array.
        name: String,
        /// What is missing, and what it may have.
        why: String,
    },
    /// A device is used by whoever runs the array that it is a member of.
    #[error(
        "{device} is in use at this moment (session {session}): stop the array that it is a member of first"
    )]
    DeviceInUse {
        /// Its name.
        device: String,
        /// Who says so on it.
        session: Uuid,
    },
    /// Too few members.
    #[error("{0}")]
    TooFew(String),
    /// Somebody else has assembled it.
    #[error("the array is in use by another host (session {0}): stop it there first")]
    InUse(Uuid),
    /// The array does not do that as it is now; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// I/O failed while it was assembled.
    #[error("cannot assemble the array: {0}")]
    Assemble(IoError),
    /// The array, or the thread that it ran on, has ended.
    #[error(transparent)]
    Io(#[from] IoError),
}
