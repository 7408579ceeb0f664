//! Listing of a directory, in batches.

use super::Directory;
use super::mounted::{ListedStatus, MountedListing};
use super::object::open_readable;
use rustix::fs::Dir;
use std::io;

/// Directory entries read at once, a few MB: sorted by inode, that many save a disk most
/// of its seeks.
const NAMES: usize = 32 << 10;

/// A name in a directory.
#[derive(Debug)]
pub(crate) struct ListedName {
    pub(crate) name: Vec<u8>,
    /// What the listing said of its object, if it did.
    pub(crate) listed: Option<ListedStatus>,
}

/// The names in a directory, without `.` and `..`.
///
/// Invariant: at most [`NAMES`] are in memory at once.
#[derive(Debug)]
pub(crate) enum DirectoryNames {
    /// Of a directory of this machine.
    Os(Dir),
    Mounted(MountedListing),
}

impl DirectoryNames {
    pub(crate) fn open(directory: &Directory) -> io::Result<DirectoryNames> {
        Ok(match directory {
            Directory::Os(fd) => DirectoryNames::Os(Dir::new(open_readable(std::os::fd::AsFd::as_fd(fd))?)?),
            Directory::Mounted(directory) => DirectoryNames::Mounted(directory.list()),
        })
    }

    /// The next batch of names; empty at the end. Those of this machine are sorted by inode number, which is
    /// close to their order on disk.
    pub(crate) fn next_batch(&mut self) -> io::Result<Vec<ListedName>> {
        let dir = match self {
            DirectoryNames::Os(dir) => dir,
            DirectoryNames::Mounted(listing) => {
                let some = listing.next()?.into_iter();
                return Ok(some.map(|(name, listed)| ListedName { name, listed: Some(listed) }).collect());
            }
        };
        let mut names = Vec::new();
        while names.len() < NAMES
            && let Some(entry) = dir.next()
        {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push((entry.ino(), name.to_vec()));
            }
        }
        assert!(names.len() <= NAMES, "{} names in memory", names.len());
        names.sort_unstable();
        Ok(names.into_iter().map(|(_, name)| ListedName { name, listed: None }).collect())
    }
}
