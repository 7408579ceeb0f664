//! Listing of a directory, in batches.

use super::readable;
use rustix::fs::Dir;
use std::io;
use std::os::fd::BorrowedFd;

/// Directory entries read at once, a few MB: sorted by inode, that many save a disk most
/// of its seeks.
const NAMES: usize = 32 << 10;

/// The names in a directory, without `.` and `..`.
///
/// Invariant: at most [`NAMES`] are in memory at once.
#[derive(Debug)]
pub(crate) struct DirectoryNames(Dir);

impl DirectoryNames {
    pub(crate) fn open(directory: BorrowedFd<'_>) -> io::Result<DirectoryNames> {
        Ok(DirectoryNames(Dir::new(readable(directory)?)?))
    }

    /// The next batch of names, sorted by inode number, which is close to their order on
    /// disk; empty at the end.
    pub(crate) fn next_batch(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        while names.len() < NAMES
            && let Some(entry) = self.0.next()
        {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push((entry.ino(), name.to_vec()));
            }
        }
        assert!(names.len() <= NAMES, "{} names in memory", names.len());
        names.sort_unstable();
        Ok(names.into_iter().map(|(_, name)| name).collect())
    }
}
