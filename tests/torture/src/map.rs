//! A file in memory, and memory that direct I/O takes.

#![allow(unsafe_code)]

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, mmap_anonymous, msync, munmap};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};

/// Mapped memory: of a file that is not truncated meanwhile, or anonymous.
///
/// Invariant: `at` is the beginning of `len` bytes, mapped to be read and
/// written, until this is dropped.
#[derive(Debug)]
pub(crate) struct Map {
    at: NonNull<u8>,
    len: usize,
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Map {
    /// Bytes of a file, from a page on; they must be in the file, and stay.
    pub(crate) fn of(file: &File, offset: u64, len: usize) -> io::Result<Map> {
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let at = unsafe { mmap(null_mut(), len, READ_WRITE, MapFlags::SHARED, file, offset) }?;
        Map::new(at.cast(), len)
    }

    /// So many bytes, from a page on, all zero.
    pub(crate) fn zeroed(len: usize) -> io::Result<Map> {
        // SAFETY: as above.
        let at = unsafe { mmap_anonymous(null_mut(), len, READ_WRITE, MapFlags::PRIVATE) }?;
        Map::new(at.cast(), len)
    }

    fn new(at: *mut u8, len: usize) -> io::Result<Map> {
        let at = NonNull::new(at).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        Ok(Map { at, len })
    }

    /// Writes the mapped changes back to the file's disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        // SAFETY: the whole mapping, which lives.
        Ok(unsafe { msync(self.at.as_ptr().cast(), self.len, MsyncFlags::SYNC) }?)
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: see the invariant; no other thread or process uses a mapped
        // file.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Map {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}
