//! Answers to the kernel.
//!
//! Invariant: each request that has a reply gets exactly one, also when its [`Reply`] is dropped.

use crate::abi::{self, Attr};
use crate::request::Lock;
use crate::session::Shared;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

/// Bytes that directory entries are aligned to.
const ALIGNED: usize = 8;

/// An object by its name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its number.
    pub node: u64,
    /// Differs where a number is used again.
    pub generation: u64,
    /// How long the kernel believes name and attributes.
    pub valid: Duration,
    /// Its attributes.
    pub attr: Attr,
}

impl Entry {
    fn out(&self) -> abi::EntryOut {
        let (seconds, nanoseconds) = (self.valid.as_secs(), self.valid.subsec_nanos());
        abi::EntryOut {
            node: self.node,
            generation: self.generation,
            entry_valid: seconds,
            attr_valid: seconds,
            entry_valid_nsec: nanoseconds,
            attr_valid_nsec: nanoseconds,
            attr: self.attr,
        }
    }
}

/// Capacity, as statvfs(3) has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Blocks of `block_size`.
    pub blocks: u64,
    /// Those that are free.
    pub free: u64,
    /// Those that users may use.
    pub available: u64,
    /// Objects there may be.
    pub files: u64,
    /// Those that there may be besides.
    pub files_free: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes of the longest name.
    pub name_max: u32,
}

/// Entries of a directory, up to the size that the kernel has room for.
#[derive(Debug)]
pub struct Listing {
    bytes: Vec<u8>,
    most: usize,
}

impl Listing {
    /// An empty one of `size` bytes at most.
    pub fn new(size: u32) -> Listing {
        Listing { bytes: Vec::new(), most: size as usize }
    }

    /// Adds an entry; `offset` is where a listing continues behind it, and `mode` has its kind. Returns whether
    /// it had room: after the first one that has none, no other may be added.
    pub fn add(&mut self, node: u64, offset: u64, mode: u32, name: &[u8]) -> bool {
        self.push(&[], node, offset, mode, name)
    }

    /// As [`add`](Self::add), with attributes.
    pub fn add_plus(&mut self, entry: &Entry, offset: u64, name: &[u8]) -> bool {
        self.push(entry.out().as_bytes(), entry.attr.ino, offset, entry.attr.mode, name)
    }

    fn push(&mut self, before: &[u8], ino: u64, offset: u64, mode: u32, name: &[u8]) -> bool {
        let len = before.len() + size_of::<abi::Dirent>() + name.len();
        let end = self.bytes.len() + len.next_multiple_of(ALIGNED);
        if end > self.most {
            return false;
        }
        let kind = (mode & libc::S_IFMT) >> 12;
        let dirent = abi::Dirent { ino, offset, name_len: name.len() as u32, kind };
        self.bytes.extend_from_slice(before);
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

/// The answer to a request; if it is dropped, the request fails with `EIO`.
pub struct Reply {
    shared: Option<Arc<Shared>>,
    unique: u64,
    interruptible: bool,
}

impl Reply {
    pub(crate) fn new(shared: Arc<Shared>, unique: u64) -> Reply {
        Reply { shared: Some(shared), unique, interruptible: false }
    }

    /// Calls `interrupted` once if the process gives up waiting before the reply is given; it may be called at
    /// once. The reply is still to be given, with `EINTR` if nothing was done.
    pub fn on_interrupt(&mut self, interrupted: impl FnOnce() + Send + 'static) {
        if let Some(shared) = &self.shared {
            self.interruptible = true;
            shared.interrupts.register(self.unique, Box::new(interrupted));
        }
    }

    fn send(&mut self, error: i32, parts: &[&[u8]]) {
        let Some(shared) = self.shared.take() else { return };
        if self.interruptible {
            shared.interrupts.remove(self.unique);
        }
        let len = size_of::<abi::OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = abi::OutHeader { len: len as u32, error: -error, unique: self.unique };
        let mut all = [IoSlice::new(header.as_bytes()), IoSlice::new(&[]), IoSlice::new(&[])];
        for (slice, part) in all[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        if let Err(e) = shared.write(&all[..=parts.len()]) {
            // The process was killed, or the file system is unmounted.
            tracing::debug!("FUSE: the reply to request {} is not taken: {e}", self.unique);
        }
    }

    fn structure(mut self, structure: &(impl IntoBytes + Immutable)) {
        self.send(0, &[structure.as_bytes()]);
    }

    /// An error number of errno(3).
    pub fn error(mut self, errno: i32) {
        self.send(errno, &[]);
    }

    /// It is done.
    pub fn ok(mut self) {
        self.send(0, &[]);
    }

    /// An object.
    pub fn entry(self, entry: &Entry) {
        self.structure(&entry.out());
    }

    /// Attributes, and how long they are believed.
    pub fn attr(self, valid: Duration, attr: &Attr) {
        let (attr_valid, attr_valid_nsec) = (valid.as_secs(), valid.subsec_nanos());
        self.structure(&abi::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: *attr });
    }

    /// An open file or directory, with flags of [`open`](abi::open).
    pub fn opened(self, handle: u64, flags: u32) {
        self.structure(&abi::OpenOut { handle, open_flags: flags, padding: 0 });
    }

    /// A new file, opened.
    pub fn created(self, entry: &Entry, handle: u64, flags: u32) {
        let open = abi::OpenOut { handle, open_flags: flags, padding: 0 };
        self.structure(&abi::CreateOut { entry: entry.out(), open });
    }

    /// What was read.
    pub fn data(mut self, data: &[u8]) {
        self.send(0, &[data]);
    }

    /// Entries of a directory.
    pub fn listing(self, listing: &Listing) {
        self.data(&listing.bytes);
    }

    /// Bytes that were written.
    pub fn written(self, size: u32) {
        self.structure(&abi::WriteOut { size, padding: 0 });
    }

    /// Bytes that an extended attribute has, or their names.
    pub fn size(self, size: u32) {
        self.structure(&abi::GetxattrIn { size, padding: 0 });
    }

    /// A place in a file.
    pub fn offset(self, offset: u64) {
        self.structure(&offset);
    }

    /// Capacity.
    pub fn statistics(self, s: &Statistics) {
        self.structure(&abi::StatfsOut {
            blocks: s.blocks,
            bfree: s.free,
            bavail: s.available,
            files: s.files,
            ffree: s.files_free,
            bsize: s.block_size,
            namelen: s.name_max,
            frsize: s.block_size,
            ..abi::StatfsOut::default()
        });
    }

    /// The lock that is in the way, or one of kind `F_UNLCK`.
    pub fn lock(self, lock: &Lock) {
        let &Lock { start, end, kind, pid, .. } = lock;
        self.structure(&abi::FileLock { start, end, kind: kind.cast_unsigned(), pid });
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(libc::EIO, &[]);
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({})", self.unique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_has_aligned_entries_and_ends_before_its_size() {
        let mut listing = Listing::new(24 + 8 + 24 + 16);
        assert!(listing.add(7, 1, libc::S_IFREG | 0o644, b"a"));
        assert!(listing.add(8, 2, libc::S_IFDIR | 0o755, b"ninebytes"));
        assert!(!listing.add(9, 3, libc::S_IFREG, b""));
        let bytes = &listing.bytes;
        assert_eq!(bytes.len(), 72);
        let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let short = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!((number(0), number(8), short(16), short(20)), (7, 1, 1, 8), "DT_REG");
        assert_eq!(&bytes[24..32], b"a\0\0\0\0\0\0\0");
        assert_eq!((number(32), number(40), short(48), short(52)), (8, 2, 9, 4), "DT_DIR");
        assert_eq!(&bytes[56..65], b"ninebytes");
    }

    #[test]
    fn an_entry_with_attributes_has_them_first() {
        let attr = Attr { ino: 9, mode: libc::S_IFLNK | 0o777, ..Attr::default() };
        let entry = Entry { node: 9, generation: 4, valid: Duration::from_millis(1500), attr };
        let mut listing = Listing::new(128 + 24 + 8);
        assert!(listing.add_plus(&entry, 5, b"link"));
        assert!(!listing.add_plus(&entry, 6, b"link"));
        assert_eq!(listing.bytes[..128], *entry.out().as_bytes());
        let out = entry.out();
        assert_eq!((out.entry_valid, out.entry_valid_nsec), (1, 500_000_000));
        assert_eq!(listing.bytes[128 + 20], 10, "DT_LNK");
    }
}
