//! What the receiving side remembers of a copy, so that another run can go on.
//!
//! The journal is a file beside what is copied: a record for each block of a
//! large file that was written, with the block's checksum. What a record says is
//! not believed but checked against the unfinished file, so neither a torn
//! record nor blocks that a crash took back do harm, and nothing has to be
//! synchronised.
//!
//! Invariants:
//! - while a copy runs it holds the journal's lock, so that two copies to the
//!   same place with the same key exclude each other;
//! - a journal exists from the beginning of a copy until it was complete.

use crate::read::read_full;
use crate::tree::{self, Tree};
use crate::wire::{Digest, Entry};
use rustix::fs::FlockOperation;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// How long to wait for a run that is about to end, and how often to look.
const PATIENCE: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(20);

/// Bytes of a record: version of a file, offset, digest, check.
const RECORD: usize = 16 + 8 + 32 + 8;

/// How the first record begins: as no other does, since its check is wrong.
const BOOT: &[u8; 8] = b"lh-boot1";

/// Names a version of a file: path, size and time of change.
pub(crate) type FileKey = u128;

/// The key of a version of a file.
pub(crate) fn file_key(entry: &Entry) -> FileKey {
    let mut bytes = entry.path.as_bytes().to_vec();
    bytes.extend(entry.size.to_le_bytes());
    bytes.extend(entry.mtime.secs.to_le_bytes());
    bytes.extend(entry.mtime.nanos.to_le_bytes());
    xxh3_128(&bytes)
}

/// Name of the unfinished file of a version of a file, in the copy with the key
/// `copy`: another copy of the same files has names of its own.
pub(crate) fn unfinished(copy: u64, key: FileKey) -> Vec<u8> {
    [&unfinished_of(copy)[..], format!("{key:032x}").as_bytes()].concat()
}

/// How the names of all unfinished files of a copy begin.
pub(crate) fn unfinished_of(copy: u64) -> Vec<u8> {
    [crate::wire::RESERVED, format!("{copy:016x}-").as_bytes()].concat()
}

/// Blocks of files that a run before has written: where, and their checksums.
pub(crate) type Known = HashMap<FileKey, Vec<(u64, Digest)>>;

/// The journal of one copy.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Mutex<File>,
    name: Vec<u8>,
    /// That of the copy.
    pub(crate) key: u64,
    /// What a run before has left.
    pub(crate) known: Known,
    /// Whether there was one.
    pub(crate) resumed: bool,
    /// Whether that was before the machine was started anew: what had appeared may
    /// never have got from memory to the medium.
    pub(crate) rebooted: bool,
}

impl Journal {
    /// Opens the journal of the copy with this key in `tree`, or begins one.
    ///
    /// # Errors
    /// Another copy holds it, or it cannot be written.
    pub(crate) fn open(tree: &Tree, key: u64) -> io::Result<Journal> {
        let name = name(key);
        let (mut file, _) = tree::create(tree.fd(), &name, true)?;
        lock(&file)?;
        // A run that ended meanwhile has removed the name of what was locked.
        if rustix::fs::fstat(&file)?.st_nlink == 0 {
            return Journal::open(tree, key);
        }
        let resumed = file.metadata()?.len() > 0;
        let rebooted = resumed && is_of_another_boot(&file);
        let known = read(&mut file)?;
        if !resumed {
            // Something to be found by, however early this run ends.
            file.write_all(&header())?;
        }
        Ok(Journal { file: Mutex::new(file), name, key, known, resumed, rebooted })
    }

    /// What it is called: a name that exists in the tree.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Whether the copy with this key was cut off in `tree`.
    pub(crate) fn exists(tree: &Tree, key: u64) -> bool {
        Journal::left(tree, key).is_some()
    }

    /// If the copy with this key was cut off in `tree`: whether that was before the
    /// machine was started anew.
    pub(crate) fn left(tree: &Tree, key: u64) -> Option<bool> {
        // A name of this program's own is none that may travel, so not a RelPath.
        tree::open_own(tree, &name(key)).ok().map(|file| is_of_another_boot(&file))
    }

    /// Remembers a block that was written.
    pub(crate) fn add(&self, key: FileKey, offset: u64, digest: &Digest) -> io::Result<()> {
        let mut record = [0; RECORD];
        record[..16].copy_from_slice(&key.to_le_bytes());
        record[16..24].copy_from_slice(&offset.to_le_bytes());
        record[24..56].copy_from_slice(&digest.0);
        let check = xxh3_64(&record[..56]);
        record[56..].copy_from_slice(&check.to_le_bytes());
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&record)
    }

    /// Everything is done: there is nothing to go on with.
    pub(crate) fn remove(&self, tree: &Tree) -> io::Result<()> {
        tree::remove(tree.fd().as_fd(), &self.name)
    }
}

/// The first record: of no file, but of the time since the machine was started.
fn header() -> [u8; RECORD] {
    let mut header = [0; RECORD];
    header[..BOOT.len()].copy_from_slice(BOOT);
    // A kernel that does not say is taken for always the same.
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    header[16..32].copy_from_slice(&xxh3_128(&boot).to_le_bytes());
    header
}

/// Whether a journal was begun before the machine was started anew. One that does
/// not say may have been.
fn is_of_another_boot(file: &File) -> bool {
    let mut first = [0; RECORD];
    !read_full(file, &mut first, 0).is_ok_and(|read| read == RECORD && first == header())
}

/// Takes the lock. A run whose other side was killed just now still has it.
fn lock(file: &File) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    while rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= end {
            let message = "the same copy to the same place is under way already";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
        }
        std::thread::sleep(AGAIN);
    }
    Ok(())
}

fn name(key: u64) -> Vec<u8> {
    [crate::wire::RESERVED, format!("journal-{key:016x}").as_bytes()].concat()
}

/// Reads records up to the first that is torn, and cuts the file there.
fn read(file: &mut File) -> io::Result<Known> {
    let mut known = Known::new();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    for record in bytes.chunks_exact(RECORD) {
        let (content, check) = record.split_at(RECORD - 8);
        if xxh3_64(content).to_le_bytes() != check {
            continue;
        }
        let (key, rest) = content.split_at(16);
        let (offset, digest) = rest.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0u128, |n, b| n << 8 | u128::from(*b));
        let mut whole = Digest::default();
        whole.0.copy_from_slice(digest);
        known.entry(number(key)).or_default().push((number(offset) as u64, whole));
    }
    file.seek(SeekFrom::Start((bytes.len() - bytes.len() % RECORD) as u64))?;
    Ok(known)
}
