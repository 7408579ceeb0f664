//! Attributes of an object.

use crate::call::Node;
use rustix::fs::FileType;

/// A point in time: seconds since 1970, and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds, below a billion.
    pub nanoseconds: u32,
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// The kind in the mode of stat(2).
    pub fn of_mode(mode: u32) -> Option<FileKind> {
        Some(match FileType::from_raw_mode(mode) {
            FileType::RegularFile => FileKind::Regular,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            FileType::CharacterDevice => FileKind::CharDevice,
            FileType::BlockDevice => FileKind::BlockDevice,
            FileType::Unknown => return None,
        })
    }
}

/// Attributes of an object, as stat(2) has them. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The object.
    pub node: Node,
    /// Tells objects apart that had the same number one after the other.
    pub generation: u64,
    /// Size of the content.
    pub size: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of content or attributes.
    pub changed: Time,
    /// Kind and permissions, as in `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device.
    pub rdev: u64,
    /// Preferred size of I/O.
    pub block_size: u32,
    /// It is known to have no extended attributes, access control lists included: programs ask for them
    /// with each listing.
    pub is_plain: bool,
}

impl Attributes {
    /// The kind of the object; a regular file if the mode has none.
    pub fn kind(&self) -> FileKind {
        FileKind::of_mode(self.mode).unwrap_or(FileKind::Regular)
    }
}

/// A new time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    /// The time at which the change is made.
    Now,
    /// This time.
    At(Time),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Permissions, set-ID and sticky bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of the content in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<TimeChange>,
    /// Last change of the content.
    pub modified: Option<TimeChange>,
}
