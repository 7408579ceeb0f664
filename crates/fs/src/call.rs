//! Calls and replies.

use crate::attributes::{Attributes, Changes};
use longhaul_engine::Buf;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Most bytes of one read or write.
pub const DATA_MAX: usize = 1 << 20;

/// An object of a file system, by a number that stays the same while the object is known to the
/// client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u64);

impl Node {
    /// The top directory.
    pub const ROOT: Node = Node(1);
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// A listing of a directory that is being read, by a number that the client chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u64);

/// A call to a file system. Names have no `/`; offsets and lengths are in bytes.
#[derive(Clone, Debug)]
pub enum Call {
    /// The object of this name: [`Reply::Entry`]. It is known to the client until [`Call::Forget`].
    Lookup {
        /// A directory.
        parent: Node,
        /// Name in it.
        name: Vec<u8>,
    },
    /// The client forgets as many lookups of an object: [`Reply::Done`].
    Forget {
        /// The object.
        node: Node,
        /// Entries of it that the client has got and does not know any more.
        lookups: u64,
    },
    /// [`Reply::Attributes`].
    Attributes {
        /// The object.
        node: Node,
        /// An open file of it, which may have no name any more.
        handle: Option<Handle>,
    },
    /// Changes attributes: [`Reply::Attributes`].
    Change {
        /// The object.
        node: Node,
        /// An open file of it.
        handle: Option<Handle>,
        /// New values.
        changes: Changes,
    },
    /// The target of a symbolic link: [`Reply::Bytes`].
    ReadLink {
        /// The link.
        node: Node,
    },
    /// Makes and opens a regular file: [`Reply::Created`].
    Create {
        /// A directory.
        parent: Node,
        /// Name in it.
        name: Vec<u8>,
        /// Permissions.
        mode: u32,
        /// Flags of open(2).
        flags: u32,
    },
    /// Makes a directory: [`Reply::Entry`].
    MakeDirectory {
        /// A directory.
        parent: Node,
        /// Name in it.
        name: Vec<u8>,
        /// Permissions.
        mode: u32,
    },
    /// Makes a regular file, FIFO, socket or device: [`Reply::Entry`].
    MakeNode {
        /// A directory.
        parent: Node,
        /// Name in it.
        name: Vec<u8>,
        /// Kind and permissions.
        mode: u32,
        /// Device number of a device.
        rdev: u64,
    },
    /// Makes a symbolic link: [`Reply::Entry`].
    MakeSymlink {
        /// A directory.
        parent: Node,
        /// Name in it.
        name: Vec<u8>,
        /// What it points to.
        target: Vec<u8>,
    },
    /// Gives an object a further name: [`Reply::Entry`].
    Link {
        /// The object.
        node: Node,
        /// A directory.
        parent: Node,
        /// Name in it.
        name: Vec<u8>,
    },
    /// Removes a name of anything but a directory, or an empty directory: [`Reply::Done`].
    Remove {
        /// A directory.
        parent: Node,
        /// Name in it.
        name: Vec<u8>,
        /// A directory is removed.
        directory: bool,
    },
    /// Renames: [`Reply::Done`].
    Rename {
        /// The directory of the old name.
        parent: Node,
        /// Old name.
        name: Vec<u8>,
        /// The directory of the new name.
        new_parent: Node,
        /// New name; its object is replaced.
        new_name: Vec<u8>,
        /// Flags of renameat2(2).
        flags: u32,
    },
    /// Opens a regular file: [`Reply::Opened`].
    Open {
        /// The file.
        node: Node,
        /// Flags of open(2).
        flags: u32,
    },
    /// Closes a file: [`Reply::Done`].
    Close {
        /// The file.
        handle: Handle,
    },
    /// Reads: [`Reply::Data`], shorter than asked at the end of the file only.
    Read {
        /// The file.
        handle: Handle,
        /// First byte.
        offset: u64,
        /// Bytes, [`DATA_MAX`] at most.
        len: u32,
    },
    /// Writes, at the end if the file was opened with `O_APPEND`: [`Reply::Written`].
    Write {
        /// The file.
        handle: Handle,
        /// First byte.
        offset: u64,
        /// Content, [`DATA_MAX`] at most.
        data: Buf,
    },
    /// What was written is with the server, as at close(2): [`Reply::Done`], or the error of an
    /// earlier write.
    Flush {
        /// The file.
        handle: Handle,
    },
    /// What was written is durable: [`Reply::Done`], or the error of an earlier write.
    Sync {
        /// The file.
        handle: Handle,
        /// Attributes that are not needed to read it again need not be durable.
        data_only: bool,
    },
    /// Makes the changes of a directory durable: [`Reply::Done`].
    SyncDirectory {
        /// The directory.
        node: Node,
    },
    /// A part of a directory's listing, without `.` and `..`: [`Reply::Listing`]. Its entries count as
    /// looked up.
    ReadDirectory {
        /// The directory.
        node: Node,
        /// The listing.
        stream: Stream,
        /// [`DirectoryEntry::position`] of the last entry before it; 0 at the beginning.
        after: u64,
    },
    /// Ends a listing: [`Reply::Done`].
    CloseDirectory {
        /// The listing.
        stream: Stream,
    },
    /// Capacity: [`Reply::Statistics`].
    Statistics,
    /// The value of an extended attribute: [`Reply::Bytes`].
    GetXattr {
        /// The object.
        node: Node,
        /// Name of the attribute.
        name: Vec<u8>,
    },
    /// Names of extended attributes, each with a zero byte behind it: [`Reply::Bytes`].
    ListXattrs {
        /// The object.
        node: Node,
    },
    /// Sets an extended attribute: [`Reply::Done`].
    SetXattr {
        /// The object.
        node: Node,
        /// Name of the attribute.
        name: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
        /// Flags of setxattr(2).
        flags: u32,
    },
    /// Removes an extended attribute: [`Reply::Done`].
    RemoveXattr {
        /// The object.
        node: Node,
        /// Name of the attribute.
        name: Vec<u8>,
    },
    /// Allocates, or punches a hole: [`Reply::Done`].
    Allocate {
        /// The file.
        handle: Handle,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Mode of fallocate(2).
        mode: u32,
    },
    /// The next data or hole: [`Reply::Offset`].
    Seek {
        /// The file.
        handle: Handle,
        /// Where the search begins.
        offset: u64,
        /// A hole is looked for, else data.
        hole: bool,
    },
}

impl Call {
    /// Whether it makes an object, which belongs to the caller.
    pub fn makes_object(&self) -> bool {
        matches!(
            self,
            Call::Create { .. }
                | Call::MakeDirectory { .. }
                | Call::MakeNode { .. }
                | Call::MakeSymlink { .. }
        )
    }

    /// Whether it needs a file system that can be changed.
    pub fn is_change(&self) -> bool {
        match self {
            Call::Change { .. }
            | Call::Create { .. }
            | Call::MakeDirectory { .. }
            | Call::MakeNode { .. }
            | Call::MakeSymlink { .. }
            | Call::Link { .. }
            | Call::Remove { .. }
            | Call::Rename { .. }
            | Call::Write { .. }
            | Call::SetXattr { .. }
            | Call::RemoveXattr { .. }
            | Call::Allocate { .. } => true,
            Call::Open { flags, .. } => {
                let flags = OFlags::from_bits_retain(*flags);
                flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
            }
            Call::Lookup { .. }
            | Call::Forget { .. }
            | Call::Attributes { .. }
            | Call::ReadLink { .. }
            | Call::Close { .. }
            | Call::Read { .. }
            | Call::Flush { .. }
            | Call::Sync { .. }
            | Call::SyncDirectory { .. }
            | Call::ReadDirectory { .. }
            | Call::CloseDirectory { .. }
            | Call::Statistics
            | Call::GetXattr { .. }
            | Call::ListXattrs { .. }
            | Call::Seek { .. } => false,
        }
    }
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// Where the listing continues behind it.
    pub position: u64,
    /// Attributes of the object.
    pub attributes: Attributes,
}

/// Capacity of a file system, as statvfs(3) has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes of a block, the unit of the next three.
    pub block_size: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks for users without privileges.
    pub available: u64,
    /// All objects.
    pub files: u64,
    /// Objects that can still be made.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub enum Reply {
    /// It was done.
    Done,
    /// An object.
    Entry(Attributes),
    /// Attributes as they are now.
    Attributes(Attributes),
    /// A new file, and its handle.
    Created(Attributes, Handle),
    /// An open file, and its attributes as they are now.
    Opened(Attributes, Handle),
    /// Content of a file.
    Data(Buf),
    /// Number of bytes that were written.
    Written(u32),
    /// Text, or a value.
    Bytes(Vec<u8>),
    /// Entries of a directory, and whether these are the last ones; none only at the end.
    Listing(Vec<DirectoryEntry>, bool),
    /// Capacity.
    Statistics(Statistics),
    /// An offset in bytes.
    Offset(u64),
}

/// Checks the name of an object.
///
/// # Errors
/// `EINVAL` for one that is empty, `.`, `..`, or has `/` or a zero byte; `ENAMETOOLONG` above 255 bytes.
pub fn check_name(name: &[u8]) -> Result<(), Errno> {
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, b'/' | 0)) {
        return Err(Errno::INVAL);
    }
    if name.len() > 255 { Err(Errno::NAMETOOLONG) } else { Ok(()) }
}
