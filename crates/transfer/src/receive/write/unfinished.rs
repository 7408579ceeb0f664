//! Large files that are written in blocks, each under a temporary name until it is
//! complete.
//!
//! Invariants:
//! - a file is in `files` from its first job until it is complete or abandoned, and one
//!   writer thread opens it;
//! - a block in `declared` was read back and verified, and counts only in the very file
//!   that was verified;
//! - only whole, aligned blocks are written, so that the state kept for each never exceeds
//!   what was sent.

use super::admission::Admission;
use super::comparison::{FileIdentity, identity};
use super::destination_tree::DestinationTree;
use super::report::{Failure, mismatch, write_failure};
use super::sparse;
use crate::guard::lock;
use crate::receive::journal::{FileKey, Journal, file_key, unfinished};
use crate::send::read::read_full;
use crate::session::Incoming;
use crate::tree::{self, Directory, File, Inode, Walker};
use crate::wire::{BLOCK, Digest, Entry, HAVE_MAX, Hash, Op, Options, RelPath};
use longhaul_engine::{Buf, now};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The most blocks of holes in a file that a manifest lists (1 TiB): holes are hashed
/// as zeroes, and a sender can claim any size without sending a byte.
const HOLES: u64 = 1 << 20;

/// How often what was written is kept: see [`UnfinishedFiles::keep_some`]. An interruption costs what is sent
/// within that time.
const KEEP: Duration = Duration::from_secs(2);

/// A large file that is being written in blocks.
#[derive(Debug)]
pub(super) struct Unfinished {
    file: File,
    pub(super) directory: Arc<Directory>,
    pub(super) temporary: Vec<u8>,
    /// Path of the entry below the destination.
    pub(super) path: RelPath,
    /// The file was created by this run, so it reads as zeroes.
    fresh: bool,
    /// Checksums of blocks by offset, kept for `--verify` and the manifest.
    digests: Mutex<BTreeMap<u64, Digest>>,
}

impl Unfinished {
    /// BLAKE3 checksum of the file, from the checksums of its blocks.
    fn digest(&self, size: u64) -> io::Result<Digest> {
        let digests: Vec<_> = std::mem::take(&mut *lock(&self.digests)).into_iter().collect();
        if size / BLOCK as u64 > digests.len() as u64 + HOLES {
            return Err(io::Error::other("the manifest cannot list it: its holes add up to more than 1 TiB"));
        }
        Ok(Hash::join(size, &digests))
    }
}

/// A large file, opened by the first writer thread that needs it.
type UnfinishedSlot = Mutex<Option<Arc<Unfinished>>>;

/// An unfinished file whose blocks the receiver offered to keep.
#[derive(Debug)]
struct DeclaredBlocks {
    file: FileIdentity,
    /// Offsets and checksums of blocks that were read back and verified.
    blocks: Vec<(u64, Digest)>,
}

/// A large file whose content is complete, under its temporary name.
pub(super) struct FinishedFile {
    pub(super) open: Arc<Unfinished>,
    /// BLAKE3 checksum, for the manifest.
    pub(super) digest: Option<Digest>,
    /// Failure to set metadata, or to list the file in the manifest.
    pub(super) flaw: Option<Failure>,
}

/// The large files of a session.
#[derive(Debug)]
pub(super) struct UnfinishedFiles {
    tree: Arc<DestinationTree>,
    admission: Arc<Admission>,
    options: Options,
    /// The session writes a manifest.
    lists: bool,
    /// `None` in a dry run.
    journal: Option<Arc<Journal>>,
    files: Mutex<HashMap<u64, Arc<UnfinishedSlot>>>,
    /// Unfinished files of an earlier run whose blocks the sender skips.
    declared: Mutex<HashMap<FileKey, DeclaredBlocks>>,
    /// When what was written was kept last: see [`keep_some`](Self::keep_some).
    kept: Mutex<Instant>,
}

impl UnfinishedFiles {
    pub(super) fn new(
        tree: Arc<DestinationTree>,
        admission: Arc<Admission>,
        options: Options,
        lists: bool,
        journal: Option<Arc<Journal>>,
    ) -> UnfinishedFiles {
        let (files, declared, kept) = (Mutex::default(), Mutex::default(), Mutex::new(now()));
        UnfinishedFiles { tree, admission, options, lists, journal, files, declared, kept }
    }

    /// The temporary name of an entry.
    pub(super) fn temporary(&self, entry: &Entry) -> Vec<u8> {
        unfinished(self.key(), file_key(entry))
    }

    /// The key of the copy, 0 in a dry run.
    pub(super) fn key(&self) -> u64 {
        self.journal.as_ref().map_or(0, |journal| journal.key)
    }

    /// The unfinished file of a large file; the first writer thread opens it.
    fn open(&self, file: &Incoming, walker: &mut Walker) -> io::Result<Arc<Unfinished>> {
        let slot = Arc::clone(lock(&self.files).entry(file.number).or_default());
        let mut slot = lock(&slot);
        if let Some(open) = &*slot {
            return Ok(Arc::clone(open));
        }
        self.admission.admit(&file.entry)?;
        let path = self.tree.place(&file.entry.path)?;
        let (parent, _) = path.split();
        let directory = self.tree.directory(parent, walker)?;
        let temporary = self.temporary(&file.entry);
        let key = file_key(&file.entry);
        let declared = lock(&self.declared).get(&key).map(|declared| declared.file);
        let make = |at: &Directory| tree::create(at, &temporary, declared.is_some());
        let (opened, kept) = self.tree.make_in(&directory, parent, make)?;
        let sized = match declared {
            // The sender skips the declared blocks, so the file cannot be completed without them.
            Some(declared) if !(kept && identity(&opened)? == declared) => Err(io::Error::other(
                "the blocks that an earlier run wrote were removed or changed meanwhile: run the same command again",
            )),
            // Each byte of it is written, and all round trips until then are saved.
            _ if !kept && !file.entry.sparse && self.tree.base.is_far() => Ok(()),
            _ => opened.set_len(file.entry.size),
        };
        // No later job knows the temporary file, so it is removed here.
        sized.inspect_err(|_| drop(tree::remove(&directory, &temporary)))?;
        // The blocks of the earlier run are in this file, and were verified.
        let blocks = lock(&self.declared).remove(&key).map(|declared| declared.blocks);
        let digests = Mutex::new(blocks.into_iter().flatten().collect());
        let fresh = !kept;
        let open = Arc::new(Unfinished { file: opened, directory, temporary, path, fresh, digests });
        *slot = Some(Arc::clone(&open));
        Ok(open)
    }

    /// Writes a block, and records it in the journal.
    pub(super) fn write(
        &self,
        file: &Incoming,
        offset: u64,
        digest: &Digest,
        data: &Buf,
        walker: &mut Walker,
    ) -> Result<(), Failure> {
        let whole = file.entry.size.saturating_sub(offset).min(BLOCK as u64);
        if !offset.is_multiple_of(BLOCK as u64) || data.len() as u64 != whole || data.is_empty() {
            return Err((
                Op::Verify,
                io::Error::other("malformed block: its offset or length is not that of a whole block"),
            ));
        }
        if self.options.hash.of_block(data, offset, file.entry.size) != *digest {
            return Err(mismatch());
        }
        let open = self.open(file, walker).map_err(write_failure)?;
        sparse::write_buffer(&open.file, &file.entry, data, offset, open.fresh).map_err(write_failure)?;
        if self.options.verify || self.lists {
            lock(&open.digests).insert(offset, *digest);
        }
        match &self.journal {
            Some(journal) => journal.add(file_key(&file.entry), offset, digest).map_err(write_failure)?,
            None => return Ok(()),
        }
        self.keep_some().map_err(write_failure)
    }

    /// From time to time, makes what was written so far outlive this process, where that takes more than the
    /// writes: a file system that is reached by calls keeps them in memory.
    fn keep_some(&self) -> io::Result<()> {
        let (Some(journal), true) = (&self.journal, self.tree.base.is_far()) else { return Ok(()) };
        // One thread does it; the others go on.
        let Ok(mut kept) = self.kept.try_lock() else { return Ok(()) };
        if kept.elapsed() < KEEP {
            return Ok(());
        }
        let slots: Vec<_> = lock(&self.files).values().cloned().collect();
        // One that is being opened has nothing yet.
        let open = slots.iter().filter_map(|slot| slot.try_lock().ok()?.clone()).collect();
        // A file that cannot be kept fails when it is written to or finished, and others go on.
        self.tree.base.helpers().map(open, |open: Arc<Unfinished>| drop(open.file.keep()));
        journal.keep()?;
        *kept = now();
        Ok(())
    }

    /// Sets the metadata of a file whose blocks are all written, and verifies it if the
    /// request says so.
    pub(super) fn finish(&self, file: &Incoming, walker: &mut Walker) -> Result<FinishedFile, Failure> {
        // Without any block (all holes, or all kept from an earlier run) it is not open yet.
        let open = self.open(file, walker).map_err(write_failure)?;
        let finish = || {
            let entry = self.admission.without_xattrs(&file.entry);
            let flaw = self.tree.set_file_metadata(&open.file, &entry)?;
            if self.options.verify {
                self.verify(&open)?;
            }
            Ok(flaw)
        };
        let flaw = finish().inspect_err(|_| drop(self.discard(&open)))?;
        let (digest, unlisted) = match self.lists.then(|| open.digest(file.entry.size)) {
            None => (None, None),
            Some(Ok(digest)) => (Some(digest), None),
            Some(Err(e)) => (None, Some(write_failure(e))),
        };
        Ok(FinishedFile { open, digest, flaw: flaw.or(unlisted) })
    }

    /// Records that a file has its final name.
    pub(super) fn complete(&self, file: &Incoming) -> Result<(), Failure> {
        match &self.journal {
            Some(journal) => journal.complete(file_key(&file.entry)).map_err(write_failure),
            None => Ok(()),
        }
    }

    /// Forgets a file, which no later job names.
    pub(super) fn forget(&self, file: &Incoming) {
        // The lock ends with this statement. The file is closed after it: on some file systems close waits
        // until the content is written back, and other writer threads need the lock.
        let slot = lock(&self.files).remove(&file.number);
        drop(slot);
    }

    /// Discards a file that stays incomplete.
    pub(super) fn abandon(&self, file: &Incoming) {
        let slot = lock(&self.files).remove(&file.number);
        let open = slot.and_then(|slot| lock(&slot).take());
        if let Some(open) = open {
            // A temporary file left behind has a reserved name, so no copy takes it for data.
            let _ = self.discard(&open);
        }
    }

    /// Removes the temporary file.
    fn discard(&self, open: &Unfinished) -> io::Result<()> {
        let remove = |at: &Directory| tree::remove(at, &open.temporary);
        self.tree.make_in(&open.directory, open.path.split().0, remove)
    }

    /// Reads the file back and compares its checksums, from the device if the kernel
    /// drops it from the page cache.
    fn verify(&self, open: &Unfinished) -> Result<(), Failure> {
        // A read error is reported as a write failure, not as a mismatch.
        flush_and_drop_cache(&open.file).map_err(write_failure)?;
        let size = open.file.status().map_err(write_failure)?.size;
        let mut read_back = vec![0; BLOCK];
        for (offset, digest) in lock(&open.digests).iter() {
            let len = size.saturating_sub(*offset).min(BLOCK as u64) as usize;
            let read = read_full(&open.file, &mut read_back[..len], *offset).map_err(write_failure)?;
            if self.options.hash.of_block(&read_back[..read], *offset, size) != *digest {
                return Err(mismatch());
            }
        }
        Ok(())
    }

    /// Bitmap of the blocks that an earlier run wrote; the journal's records are verified
    /// against the unfinished file.
    pub(super) fn have(&self, entry: &Entry) -> Box<[u8]> {
        let key = file_key(entry);
        let known = self.journal.as_ref().and_then(|journal| journal.known.get(&key));
        let (Some(known), Ok(path)) = (known, self.tree.place(&entry.path)) else { return Box::default() };
        let (parent, _) = path.split();
        let temporary = self.temporary(entry);
        let temporary = [parent, if parent.is_empty() { b"" } else { b"/" }, &temporary].concat();
        let Ok(file) = tree::open_own(&self.tree.base, &temporary) else { return Box::default() };
        // Sized by the journal, not by the size that the sender claims.
        let last = known.iter().map(|(offset, _)| offset / BLOCK as u64).max().unwrap_or(0);
        let mut have = vec![0u8; (last / 8 + 1).min(HAVE_MAX as u64) as usize];
        let mut blocks = Vec::new();
        let bits = 8 * have.len() as u64;
        let claimed = known.iter().filter(|(offset, _)| offset / (BLOCK as u64) < bits).collect();
        let read = self.tree.base.helpers().map(claimed, |known: &(u64, Digest)| {
            let (offset, digest) = known;
            let len = entry.size.saturating_sub(*offset).min(BLOCK as u64) as usize;
            let mut data = vec![0; len];
            let good = offset % BLOCK as u64 == 0
                && read_full(&file, &mut data, *offset).is_ok_and(|read| read == len)
                && self.options.hash.of_block(&data, *offset, entry.size) == *digest;
            (known, good)
        });
        for ((offset, digest), good) in read {
            let block = (offset / BLOCK as u64) as usize;
            if let Some(byte) = have.get_mut(block / 8).filter(|_| good) {
                *byte |= 1 << (block % 8);
                blocks.push((*offset, *digest));
            }
        }
        let Some(file) = identity(&file).ok().filter(|_| !blocks.is_empty()) else { return Box::default() };
        if !self.lists && !self.options.verify {
            // Only --verify and the manifest use the checksums.
            blocks = Vec::new();
        }
        lock(&self.declared).insert(key, DeclaredBlocks { file, blocks });
        have.into()
    }
}

/// Flushes a file to the device and drops it from the page cache, so that it is read
/// back from the device. Dropping is advisory: where it has no effect, the page cache is
/// compared.
pub(super) fn flush_and_drop_cache(file: &File) -> io::Result<()> {
    file.sync_data()?;
    file.drop_cache();
    Ok(())
}
