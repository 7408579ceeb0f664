//! Directories and open files of a tree: of this machine by their descriptors, or of a file system that is
//! reached by calls.
//!
//! Invariant: no operation follows a symbolic link in the place of an object.

use super::mounted::{MountedDirectory, MountedFile};
use super::os;
use super::stamps::timestamps;
use crate::wire::Time;
use longhaul_engine::{Buf, LockedFile};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Uid, XattrFlags};
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// What stat(2) tells of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// Identifies the file system, and the object in it.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Type and permissions.
    pub(crate) mode: u32,
    /// Number of names.
    pub(crate) links: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Allocated units of 512 bytes, whatever the file system's blocks are (stat(2)).
    pub(crate) blocks: u64,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
}

impl Status {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// Identifies the object.
    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

impl From<Stat> for Status {
    #[allow(clippy::unnecessary_cast, reason = "its fields have other widths on other machines")]
    fn from(stat: Stat) -> Status {
        Status {
            device: stat.st_dev,
            inode: stat.st_ino,
            mode: stat.st_mode,
            links: stat.st_nlink as u64,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            modified: Time { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
            changed: Time { secs: stat.st_ctime, nanos: stat.st_ctime_nsec as u32 },
        }
    }
}

/// Metadata to set; `None` leaves what there is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NewMetadata {
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) mode: Option<u32>,
    pub(crate) modified: Option<Time>,
}

/// An open file or directory, for its metadata.
pub(crate) trait Inode {
    fn status(&self) -> io::Result<Status>;

    /// Sets metadata, by one call where the file system takes all of it in one.
    fn set(&self, new: NewMetadata) -> Result<(), Errno>;

    /// Whether [`set`](Self::set) takes a round trip, so that all of it is to be set by one call.
    fn is_far(&self) -> bool;

    /// The names of extended attributes into `names`, each with a zero byte behind it; their length.
    fn xattr_names(&self, names: &mut [u8]) -> Result<usize, Errno>;

    /// The value of an extended attribute into `value`; its length.
    fn xattr(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno>;

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<(), Errno>;

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno>;
}

impl Inode for BorrowedFd<'_> {
    fn status(&self) -> io::Result<Status> {
        Ok(rustix::fs::fstat(self)?.into())
    }

    fn set(&self, new: NewMetadata) -> Result<(), Errno> {
        if let Some((uid, gid)) = new.owner {
            rustix::fs::fchown(self, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        if let Some(mode) = new.mode {
            rustix::fs::fchmod(self, Mode::from_raw_mode(mode))?;
        }
        new.modified.map_or(Ok(()), |time| rustix::fs::futimens(self, &timestamps(time)))
    }

    fn is_far(&self) -> bool {
        false
    }

    fn xattr_names(&self, names: &mut [u8]) -> Result<usize, Errno> {
        rustix::fs::flistxattr(self, names)
    }

    fn xattr(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
        rustix::fs::fgetxattr(self, os(name), value)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        rustix::fs::fsetxattr(self, os(name), value, XattrFlags::empty())
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        rustix::fs::fremovexattr(self, os(name))
    }
}

/// Defines [`Inode`] by that of the variants.
macro_rules! inode_of_variants {
    ($type:ty) => {
        impl Inode for $type {
            fn status(&self) -> io::Result<Status> {
                match self {
                    Self::Os(fd) => fd.as_fd().status(),
                    Self::Mounted(object) => object.status(),
                }
            }

            fn set(&self, new: NewMetadata) -> Result<(), Errno> {
                match self {
                    Self::Os(fd) => fd.as_fd().set(new),
                    Self::Mounted(object) => object.set(new),
                }
            }

            fn is_far(&self) -> bool {
                matches!(self, Self::Mounted(_))
            }

            fn xattr_names(&self, names: &mut [u8]) -> Result<usize, Errno> {
                match self {
                    Self::Os(fd) => fd.as_fd().xattr_names(names),
                    Self::Mounted(object) => object.xattr_names(names),
                }
            }

            fn xattr(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
                match self {
                    Self::Os(fd) => fd.as_fd().xattr(name, value),
                    Self::Mounted(object) => object.xattr(name, value),
                }
            }

            fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
                match self {
                    Self::Os(fd) => fd.as_fd().set_xattr(name, value),
                    Self::Mounted(object) => object.set_xattr(name, value),
                }
            }

            fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
                match self {
                    Self::Os(fd) => fd.as_fd().remove_xattr(name),
                    Self::Mounted(object) => object.remove_xattr(name),
                }
            }
        }
    };
}

/// A directory. Names are of one component; an empty one is the directory itself where that is said.
#[derive(Debug)]
pub(crate) enum Directory {
    /// A descriptor.
    Os(OwnedFd),
    Mounted(MountedDirectory),
}

inode_of_variants!(Directory);

impl Directory {
    /// Device and inode.
    pub(crate) fn identity(&self) -> io::Result<(u64, u64)> {
        match self {
            Directory::Os(_) => Ok(self.status()?.identity()),
            Directory::Mounted(directory) => Ok(directory.identity()),
        }
    }

    /// The status of a name, or of the directory for an empty one.
    pub(crate) fn look(&self, name: &[u8]) -> io::Result<Status> {
        match self {
            Directory::Os(fd) if name.is_empty() => {
                Ok(rustix::fs::statat(fd, c"", AtFlags::EMPTY_PATH)?.into())
            }
            Directory::Os(fd) => Ok(rustix::fs::statat(fd, os(name), AtFlags::SYMLINK_NOFOLLOW)?.into()),
            Directory::Mounted(directory) => Ok(directory.look(name)?),
        }
    }

    /// As [`look`](Self::look); a symbolic link of this machine is followed.
    pub(crate) fn look_behind(&self, name: &[u8]) -> io::Result<Status> {
        match self {
            Directory::Os(fd) => Ok(rustix::fs::statat(fd, os(name), AtFlags::empty())?.into()),
            Directory::Mounted(_) => self.look(name),
        }
    }

    pub(crate) fn read_link(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Directory::Os(fd) => Ok(rustix::fs::readlinkat(fd, os(name), Vec::new())?.into_bytes()),
            Directory::Mounted(directory) => Ok(directory.read_link(name)?),
        }
    }

    /// Opens a directory of this name.
    pub(crate) fn open_directory(&self, name: &[u8]) -> Result<Directory, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match self {
            Directory::Os(fd) => Ok(Directory::Os(rustix::fs::openat(fd, os(name), flags, Mode::empty())?)),
            Directory::Mounted(directory) => Ok(Directory::Mounted(directory.open_directory(name)?)),
        }
    }

    pub(crate) fn make_directory(&self, name: &[u8], mode: u32) -> Result<(), Errno> {
        match self {
            Directory::Os(fd) => rustix::fs::mkdirat(fd, os(name), Mode::from_raw_mode(mode)),
            Directory::Mounted(directory) => directory.make_directory(name, mode),
        }
    }

    /// Opens a file. O_NONBLOCK keeps the call from hanging on a named pipe.
    pub(crate) fn open_file(&self, name: &[u8], writes: bool) -> Result<File, Errno> {
        let access = if writes { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        match self {
            Directory::Os(fd) => Ok(File::Os(rustix::fs::openat(fd, os(name), flags, Mode::empty())?.into())),
            Directory::Mounted(directory) => Ok(File::Mounted(directory.open_file(name, access)?)),
        }
    }

    /// Makes a file that does not exist yet, and opens it to read and to write.
    pub(crate) fn create_file(&self, name: &[u8], mode: u32) -> Result<File, Errno> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
        match self {
            Directory::Os(fd) => {
                let mode = Mode::from_raw_mode(mode);
                Ok(File::Os(rustix::fs::openat(fd, os(name), flags, mode)?.into()))
            }
            Directory::Mounted(directory) => Ok(File::Mounted(directory.create_file(name, mode)?)),
        }
    }

    pub(crate) fn make_symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Errno> {
        match self {
            Directory::Os(fd) => rustix::fs::symlinkat(os(target), fd, os(name)),
            Directory::Mounted(directory) => directory.make_symlink(target, name),
        }
    }

    /// Gives the object `from` here the name `to` in another directory as well.
    pub(crate) fn link(&self, from: &[u8], at: &Directory, to: &[u8]) -> Result<(), Errno> {
        match (self, at) {
            (Directory::Os(fd), Directory::Os(at)) => {
                rustix::fs::linkat(fd, os(from), at, os(to), AtFlags::empty())
            }
            (Directory::Mounted(directory), Directory::Mounted(at)) => directory.link(from, at, to),
            _ => Err(Errno::XDEV),
        }
    }

    pub(crate) fn rename(&self, from: &[u8], at: &Directory, to: &[u8]) -> Result<(), Errno> {
        match (self, at) {
            (Directory::Os(fd), Directory::Os(at)) => rustix::fs::renameat(fd, os(from), at, os(to)),
            (Directory::Mounted(directory), Directory::Mounted(at)) => directory.rename(from, at, to),
            _ => Err(Errno::XDEV),
        }
    }

    pub(crate) fn remove(&self, name: &[u8], is_directory: bool) -> Result<(), Errno> {
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match self {
            Directory::Os(fd) => rustix::fs::unlinkat(fd, os(name), flags),
            Directory::Mounted(directory) => directory.remove(name, is_directory),
        }
    }

    /// Sets owner and mtime of a name, which may be a symbolic link.
    pub(crate) fn set_named(&self, name: &[u8], new: NewMetadata) -> io::Result<()> {
        match self {
            Directory::Os(fd) => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                if let Some((uid, gid)) = new.owner {
                    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                    rustix::fs::chownat(fd, os(name), Some(uid), Some(gid), flags)?;
                }
                let set = |time| rustix::fs::utimensat(fd, os(name), &timestamps(time), flags);
                Ok(new.modified.map_or(Ok(()), set)?)
            }
            Directory::Mounted(directory) => Ok(directory.set_named(name, new)?),
        }
    }

    /// Sets the mode of this directory, also where it is open for paths only.
    pub(crate) fn set_own_mode(&self, mode: u32) -> io::Result<()> {
        match self {
            Directory::Os(fd) => {
                Ok(rustix::fs::chmodat(fd, c".", Mode::from_raw_mode(mode), AtFlags::empty())?)
            }
            Directory::Mounted(directory) => {
                Ok(directory.set(NewMetadata { mode: Some(mode), ..NewMetadata::default() })?)
            }
        }
    }

    /// The directory, open for reading, listing and fsync(2).
    pub(crate) fn readable(&self) -> io::Result<Directory> {
        match self {
            Directory::Os(fd) => Ok(Directory::Os(open_readable(fd.as_fd())?)),
            Directory::Mounted(directory) => Ok(Directory::Mounted(directory.clone())),
        }
    }

    /// Another handle of it.
    pub(crate) fn again(&self) -> Result<Directory, Errno> {
        match self {
            Directory::Os(fd) => Ok(Directory::Os(rustix::io::fcntl_dupfd_cloexec(fd, 0)?)),
            Directory::Mounted(directory) => Ok(Directory::Mounted(directory.clone())),
        }
    }

    /// The descriptor of a directory of this machine.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Directory::Os(fd) => Some(fd.as_fd()),
            Directory::Mounted(_) => None,
        }
    }
}

/// Reopens an `O_PATH` directory for reading and fsync(2).
pub(super) fn open_readable(directory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, c".", flags, Mode::empty())?)
}

/// An open file.
#[derive(Debug)]
pub(crate) enum File {
    /// A descriptor.
    Os(std::fs::File),
    Mounted(MountedFile),
}

inode_of_variants!(File);

impl File {
    /// The status at a time since it was opened.
    pub(crate) fn recent_status(&self) -> io::Result<Status> {
        match self {
            File::Os(_) => self.status(),
            File::Mounted(file) => Ok(file.opened_status()),
        }
    }

    /// Reads into `buf`; returns how much, which is short at the end of the file, or anywhere.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            File::Os(file) => file.read_at(buf, offset),
            File::Mounted(file) => Ok(file.read_at(buf, offset)?),
        }
    }

    pub(crate) fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        match self {
            File::Os(file) => file.write_all_at(data, offset),
            File::Mounted(file) => Ok(file.write_buffer_at(&Buf::copy_of(data), offset)?),
        }
    }

    /// The same of a buffer, which is not copied on its way to a file system that is not mounted.
    pub(crate) fn write_buffer_at(&self, data: &Buf, offset: u64) -> io::Result<()> {
        match self {
            File::Os(file) => file.write_all_at(data, offset),
            File::Mounted(file) => Ok(file.write_buffer_at(data, offset)?),
        }
    }

    pub(crate) fn set_len(&self, size: u64) -> io::Result<()> {
        match self {
            File::Os(file) => file.set_len(size),
            File::Mounted(file) => Ok(file.set_len(size)?),
        }
    }

    /// The content is durable.
    pub(crate) fn sync_data(&self) -> io::Result<()> {
        match self {
            File::Os(file) => file.sync_data(),
            File::Mounted(file) => Ok(file.sync()?),
        }
    }

    /// The content is with the file system, which has room for it. Nothing is written after it; the file gets
    /// `mode`.
    pub(crate) fn end(&self, mode: u32) -> io::Result<()> {
        match self {
            // write(2) has reported it.
            File::Os(_) => Ok(()),
            File::Mounted(file) => Ok(file.end(mode)?),
        }
    }

    /// The file, to lock it; the lock ends when what is returned is dropped.
    pub(crate) fn own_lock(&self) -> io::Result<LockedFile> {
        match self {
            File::Os(file) => Ok(file.try_clone()?.into()),
            File::Mounted(_) => Err(Errno::OPNOTSUPP.into()),
        }
    }

    /// What was written so far is found after this process was killed.
    pub(crate) fn keep(&self) -> io::Result<()> {
        match self {
            File::Os(_) => Ok(()),
            File::Mounted(file) => Ok(file.sync()?),
        }
    }

    /// Reads that follow are of the medium, as far as the kernel drops its cache.
    pub(crate) fn drop_cache(&self) {
        if let File::Os(file) = self {
            // Advisory: where it has no effect, the cache is compared.
            let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }

    /// Frees the content of a range, which reads as zeroes.
    pub(crate) fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match self {
            File::Os(file) => rustix::fs::fallocate(file, how, offset, len),
            File::Mounted(file) => file.allocate(how, offset, len),
        }
    }

    /// Where the next data begins; `ENXIO` if there is none.
    pub(crate) fn next_data(&self, offset: u64) -> Result<u64, Errno> {
        match self {
            File::Os(file) => rustix::fs::seek(file, SeekFrom::Data(offset)),
            File::Mounted(file) => file.next_data(offset),
        }
    }
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> File {
        File::Os(file)
    }
}

/// A file that is read and written from a position on.
#[derive(Debug)]
pub(crate) struct Cursor<F> {
    pub(crate) file: F,
    pub(crate) at: u64,
}

impl<F: std::borrow::Borrow<File>> Read for Cursor<F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.borrow().read_at(buf, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl<F: std::borrow::Borrow<File>> Write for Cursor<F> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.file.borrow().write_all_at(data, self.at)?;
        self.at += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
