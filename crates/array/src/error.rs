//! Errors of creating and assembling arrays.

use crate::format::layout::LayoutError;
use crate::format::superblock::{MAX_NAME, Unknown};
use longhaul_block::IoError;
use longhaul_block::signature::Content;
use uuid::Uuid;

/// Why an array cannot be created, assembled or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    /// The shape is out of bounds.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The name is empty, too long, or has control characters.
    #[error("'{0}' is not a valid array name: use 1 to {MAX_NAME} bytes without control characters")]
    Name(String),
    /// The device cannot be used.
    #[error("{device}: {source}")]
    Device {
        /// Name of the device, as its `DeviceInfo` gives it.
        device: String,
        /// Error of the device.
        source: IoError,
    },
    /// The device is a member of another array.
    #[error(
        "{device} is a member of array {name} ({array}): --force overwrites it, and all data of that array is lost"
    )]
    Taken {
        /// Name of the device, as its `DeviceInfo` gives it.
        device: String,
        /// Name of the array.
        name: String,
        /// UUID of the array.
        array: Uuid,
    },
    /// The device is a member of an array whose superblock cannot be read.
    #[error(
        "{device} is a member of an array, though its superblock {superblock}: --force overwrites it, \
         and all data of that array is lost"
    )]
    TakenUnknown {
        /// Name of the device, as its `DeviceInfo` gives it.
        device: String,
        /// What is wrong with the superblock.
        superblock: Unknown,
    },
    /// The device has other content.
    #[error("{device} has {content} on it, which would be lost: --force overwrites it")]
    Content {
        /// Name of the device, as its `DeviceInfo` gives it.
        device: String,
        /// What its first blocks show.
        content: Content,
    },
    /// The device has a superblock that this version cannot read.
    #[error(
        "{device} is a member of an array, but its superblock {superblock}: leave it out, if the others \
         are enough"
    )]
    NotUnderstood {
        /// Name of the device, as its `DeviceInfo` gives it.
        device: String,
        /// What is wrong with the superblock.
        superblock: Unknown,
    },
    /// The device has no superblock.
    #[error("{0} is no member of an array")]
    NoMember(String),
    /// Devices of different arrays were given.
    #[error("{device} is a member of another array, {name} ({array})")]
    Foreign {
        /// Name of the device, as its `DeviceInfo` gives it.
        device: String,
        /// Name of its array.
        name: String,
        /// UUID of its array.
        array: Uuid,
    },
    /// The same member was given twice.
    #[error("{device} and {other} are the same member of the array")]
    Double {
        /// Name of one device.
        device: String,
        /// Name of the other device.
        other: String,
    },
    /// The member is smaller than the array needs.
    #[error("{device} has {size} bytes, and a member of this array needs {needs}: has it been made smaller?")]
    TooSmall {
        /// Name of the device, as its `DeviceInfo` gives it.
        device: String,
        /// Its size in bytes.
        size: u64,
        /// The required size in bytes.
        needs: u64,
    },
    /// The members have diverged: each may hold writes that the other lacks.
    #[error(
        "{device} ({own}) and {other} ({others}) were used apart from each other, and both may have data that \
         the other has not: assemble the array without the one that matters less, and give that back with \
         array replace --force"
    )]
    Diverged {
        /// Name of one device.
        device: String,
        /// Name of the other device.
        other: String,
        /// Age of the one's superblock.
        own: String,
        /// Age of the other's superblock.
        others: String,
    },
    /// The device is a member of this array with writes that the running set may lack.
    #[error(
        "{device} is a member of this array, and its superblock ({own}) is not one that this set ({ours}) \
         descends from: it may have data that this set has not. --force overwrites it"
    )]
    Newer {
        /// Name of the device, as its `DeviceInfo` gives it.
        device: String,
        /// Age of its superblock.
        own: String,
        /// Age of the running set's superblock.
        ours: String,
    },
    /// Missing members may have continued without these.
    #[error(
        "array {name} does not begin: {why}. Make those reachable, or, if they are lost for good, begin without \
         them: longhaul array assemble --degraded with the devices that are left. What only the missing ones \
         have is lost then"
    )]
    Outdated {
        /// Name of the array, as its superblocks give it.
        name: String,
        /// Which members are missing, and what they may have.
        why: String,
    },
    /// The device is in use by a running array.
    #[error(
        "{device} is in use at this moment (session {session}): stop the array that it is a member of first"
    )]
    DeviceInUse {
        /// Name of the device, as its `DeviceInfo` gives it.
        device: String,
        /// Session of the heartbeat on it.
        session: Uuid,
    },
    /// Too few members.
    #[error("{0}")]
    TooFew(String),
    /// Another host has assembled the array.
    #[error("the array is in use by another host (session {0}): stop it there first")]
    InUse(Uuid),
    /// The device is reserved by a session that is not known to have ended.
    #[error(
        "{device} is reserved by another host that runs an array (key {key:#x}): stop the array there first. If \
         that host is gone, try again in a moment; create, replace and add-spare take the device with --force"
    )]
    Reserved {
        /// Name of the device, as its `DeviceInfo` gives it.
        device: String,
        /// Reservation key of the other host.
        key: u64,
    },
    /// The device is reserved for another purpose.
    #[error(
        "{device} is reserved by a host that runs no array (key {key:#x}): release it there, or with nvme \
         resv-release"
    )]
    ReservedByOther {
        /// Name of the device, as its `DeviceInfo` gives it.
        device: String,
        /// Reservation key of the other host.
        key: u64,
    },
    /// Another host has taken the array over during the assembly.
    #[error("cannot assemble the array: {0}")]
    TakenOver(String),
    /// The array cannot do this in its present condition; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// I/O failed during the assembly.
    #[error("cannot assemble the array: {0}")]
    Assemble(IoError),
    /// The array, or the thread that it ran on, has ended.
    #[error(transparent)]
    Io(#[from] IoError),
}
