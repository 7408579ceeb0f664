//! Structures and numbers of `include/uapi/linux/fuse.h`, by its names without `fuse_`.
//!
//! All are in the byte order of the machine, and padded so that they have the same form in programs of 32 and
//! 64 bits.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `FUSE_KERNEL_VERSION`.
pub(crate) const MAJOR: u32 = 7;
/// The version that is spoken, if the kernel knows it: that of Linux 6.9.
pub(crate) const MINOR: u32 = 40;
/// The oldest version that is accepted: that of Linux 5.4.
pub(crate) const MINOR_LEAST: u32 = 31;
/// `FUSE_ROOT_ID`: the node of what is mounted.
pub const ROOT: u64 = 1;

/// Declares structures of the protocol.
macro_rules! structures {
    ($($(#[$doc:meta])* $vis:vis struct $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        $vis struct $name { $($(#[$field_doc])* $vis $field: $type,)* }
    )*};
}

structures! {
    pub(crate) struct InHeader {
        len: u32,
        opcode: u32,
        unique: u64,
        node: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        padding: u16,
    }

    pub(crate) struct OutHeader {
        len: u32,
        /// A negative error number, or the code of a notification.
        error: i32,
        unique: u64,
    }

    /// Attributes of an object (`struct fuse_attr`).
    pub struct Attr {
        /// Its number, as stat(2) shows it.
        ino: u64,
        /// Bytes.
        size: u64,
        /// Blocks of 512 bytes.
        blocks: u64,
        /// Time of the last access: seconds since 1970, negative ones in two's complement.
        atime: u64,
        /// Time of the last change of the content.
        mtime: u64,
        /// Time of the last change of the attributes.
        ctime: u64,
        /// Nanoseconds of `atime`.
        atimensec: u32,
        /// Nanoseconds of `mtime`.
        mtimensec: u32,
        /// Nanoseconds of `ctime`.
        ctimensec: u32,
        /// Kind and permissions, as `st_mode`.
        mode: u32,
        /// Names.
        nlink: u32,
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Number of a device.
        rdev: u32,
        /// Bytes of an efficient I/O.
        blksize: u32,
        /// `FUSE_ATTR_…`: none is used.
        flags: u32,
    }

    pub(crate) struct InitIn {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
    }

    pub(crate) struct InitOut {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        unused: [u32; 7],
    }

    pub(crate) struct EntryOut {
        node: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }

    pub(crate) struct AttrOut {
        attr_valid: u64,
        attr_valid_nsec: u32,
        dummy: u32,
        attr: Attr,
    }

    pub(crate) struct ForgetOne {
        node: u64,
        lookups: u64,
    }

    pub(crate) struct BatchForgetIn {
        count: u32,
        dummy: u32,
    }

    pub(crate) struct GetattrIn {
        flags: u32,
        dummy: u32,
        handle: u64,
    }

    pub(crate) struct SetattrIn {
        valid: u32,
        padding: u32,
        handle: u64,
        size: u64,
        lock_owner: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }

    pub(crate) struct MknodIn {
        mode: u32,
        rdev: u32,
        umask: u32,
        padding: u32,
    }

    pub(crate) struct MkdirIn {
        mode: u32,
        umask: u32,
    }

    pub(crate) struct Rename2In {
        new_parent: u64,
        flags: u32,
        padding: u32,
    }

    pub(crate) struct OpenIn {
        flags: u32,
        open_flags: u32,
    }

    pub(crate) struct CreateIn {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }

    pub(crate) struct OpenOut {
        handle: u64,
        open_flags: u32,
        padding: u32,
    }

    pub(crate) struct CreateOut {
        entry: EntryOut,
        open: OpenOut,
    }

    pub(crate) struct ReleaseIn {
        handle: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    }

    pub(crate) struct FlushIn {
        handle: u64,
        unused: u32,
        padding: u32,
        lock_owner: u64,
    }

    /// Of reads, writes and listings.
    pub(crate) struct IoIn {
        handle: u64,
        offset: u64,
        size: u32,
        io_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }

    pub(crate) struct WriteOut {
        size: u32,
        padding: u32,
    }

    pub(crate) struct StatfsOut {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }

    pub(crate) struct FsyncIn {
        handle: u64,
        flags: u32,
        padding: u32,
    }

    /// As it is without `FUSE_SETXATTR_EXT`.
    pub(crate) struct SetxattrIn {
        size: u32,
        flags: u32,
    }

    pub(crate) struct GetxattrIn {
        size: u32,
        padding: u32,
    }

    pub(crate) struct FileLock {
        start: u64,
        end: u64,
        kind: u32,
        pid: u32,
    }

    pub(crate) struct LkIn {
        handle: u64,
        owner: u64,
        lock: FileLock,
        flags: u32,
        padding: u32,
    }

    pub(crate) struct AccessIn {
        mask: u32,
        padding: u32,
    }

    pub(crate) struct FallocateIn {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
        padding: u32,
    }

    pub(crate) struct LseekIn {
        handle: u64,
        offset: u64,
        whence: u32,
        padding: u32,
    }

    pub(crate) struct Dirent {
        ino: u64,
        offset: u64,
        name_len: u32,
        kind: u32,
    }

    pub(crate) struct NotifyInvalInode {
        node: u64,
        offset: i64,
        len: i64,
    }
}

impl Attr {
    /// Of an object whose times are all the same: seconds since 1970, negative ones in two's complement, and
    /// nanoseconds.
    pub fn as_of(seconds: u64, nanoseconds: u32) -> Attr {
        Attr {
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atimensec: nanoseconds,
            mtimensec: nanoseconds,
            ctimensec: nanoseconds,
            ..Attr::default()
        }
    }
}

/// Numbers of requests (`enum fuse_opcode`).
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
}

/// `FUSE_NOTIFY_INVAL_INODE` of `enum fuse_notify_code`.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;

/// Bits of `fuse_setattr_in.valid` (`FATTR_…`).
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const HANDLE: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
}

/// `FUSE_GETATTR_FH`: the handle is valid.
pub(crate) const GETATTR_FH: u32 = 1 << 0;
/// `FUSE_RELEASE_FLOCK_UNLOCK`: the flock(2) locks of the owner end.
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// `FUSE_LK_FLOCK`: the lock is one of flock(2).
pub(crate) const LK_FLOCK: u32 = 1 << 0;
/// `FUSE_FSYNC_FDATASYNC`.
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;

/// Answers to an open (`FOPEN_…`).
pub mod open {
    /// Reads and writes do not use the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// The pages that the kernel has of the file stay valid.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// Several direct writes at the same time.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// What kernel and server agree on (`FUSE_…` of the INIT request).
pub mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    /// The server keeps the locks of fcntl(2).
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    /// The server keeps the locks of flock(2).
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// The kernel drops pages of a file whose size or time has changed.
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    /// Listings with attributes.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// Several requests of one direct I/O at the same time.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Several lookups and listings of a directory at the same time.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    /// The kernel keeps the targets of symbolic links.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// The server removes set-user-ID bits and capabilities of what is written.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    /// Files with direct I/O can be mapped into memory.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes as the header has them, with a C compiler on x86-64.
    #[test]
    fn structures_have_the_sizes_of_the_header() {
        let sizes = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<Attr>(), 88),
            (size_of::<InitIn>(), 16),
            (size_of::<InitOut>(), 64),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttrOut>(), 104),
            (size_of::<ForgetOne>(), 16),
            (size_of::<BatchForgetIn>(), 8),
            (size_of::<GetattrIn>(), 16),
            (size_of::<SetattrIn>(), 88),
            (size_of::<MknodIn>(), 16),
            (size_of::<MkdirIn>(), 8),
            (size_of::<Rename2In>(), 16),
            (size_of::<OpenIn>(), 8),
            (size_of::<CreateIn>(), 16),
            (size_of::<OpenOut>(), 16),
            (size_of::<CreateOut>(), 144),
            (size_of::<ReleaseIn>(), 24),
            (size_of::<FlushIn>(), 24),
            (size_of::<IoIn>(), 40),
            (size_of::<WriteOut>(), 8),
            (size_of::<StatfsOut>(), 80),
            (size_of::<FsyncIn>(), 16),
            (size_of::<SetxattrIn>(), 8),
            (size_of::<GetxattrIn>(), 8),
            (size_of::<FileLock>(), 24),
            (size_of::<LkIn>(), 48),
            (size_of::<AccessIn>(), 8),
            (size_of::<FallocateIn>(), 32),
            (size_of::<LseekIn>(), 24),
            (size_of::<Dirent>(), 24),
            (size_of::<NotifyInvalInode>(), 24),
        ];
        for (at, (is, should)) in sizes.into_iter().enumerate() {
            assert_eq!(is, should, "structure {at}");
        }
    }
}
