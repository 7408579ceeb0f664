//! What a space does to its directory. One interface, so that tests can end it at every step.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Steps that change a directory. Each is made wholly or fails; it is durable only as its
/// documentation says.
pub(super) trait Files: Send + Sync {
    /// Makes a file of `len` bytes that reads as zeroes. Its content is durable; its name is after
    /// [`sync`](Self::sync). If `reserve`, its space is taken now.
    fn make(&self, path: &Path, len: u64, reserve: bool) -> io::Result<()>;

    /// The same for a file that gets longer.
    fn extend(&self, path: &Path, len: u64, reserve: bool) -> io::Result<()>;

    /// Makes a file that shares the blocks of another one, and so has the content that it has at this
    /// moment, all at once. Its content is durable; its name is after [`sync`](Self::sync).
    fn share(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes a file shorter. Not durable.
    fn cut(&self, path: &Path, len: u64) -> io::Result<()>;

    /// Writes a whole file. Its content is durable; its name is after [`sync`](Self::sync).
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Gives a file another name, in place of the file that has it. Durable after
    /// [`sync`](Self::sync).
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. Durable after [`sync`](Self::sync).
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    fn sync(&self, directory: &Path) -> io::Result<()>;
}

/// The file system.
pub(super) struct FileSystem;

fn set_len(file: &File, len: u64, reserve: bool) -> io::Result<()> {
    if reserve {
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, len)?;
    }
    file.set_len(len)?;
    file.sync_all()
}

impl Files for FileSystem {
    fn make(&self, path: &Path, len: u64, reserve: bool) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        set_len(&file, len, reserve)
    }

    fn extend(&self, path: &Path, len: u64, reserve: bool) -> io::Result<()> {
        set_len(&OpenOptions::new().write(true).open(path)?, len, reserve)
    }

    fn share(&self, from: &Path, to: &Path) -> io::Result<()> {
        let from = File::open(from)?;
        let to = OpenOptions::new().write(true).create_new(true).open(to)?;
        rustix::fs::ioctl_ficlone(&to, &from)?;
        to.sync_all()
    }

    fn cut(&self, path: &Path, len: u64) -> io::Result<()> {
        OpenOptions::new().write(true).open(path)?.set_len(len)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
}
