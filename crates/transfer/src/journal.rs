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
//! - a journal exists from the beginning of a copy until it was complete;
//! - what is in memory of it is of files that were not complete, and has a bound.

use crate::read::read_full;
use crate::tree::{self, Tree};
use crate::wire::{Digest, Entry};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// How long to wait for a run that is about to end, and how often to look.
const PATIENCE: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(20);

/// Bytes of a record: version of a file, offset, digest, check.
const RECORD: usize = 16 + 8 + 32 + 8;

/// The offset that a record of a file has which is complete: none of a block.
const COMPLETE: u64 = u64::MAX;
/// Blocks that are remembered of a run before: 4 TiB of files that were under way, in
/// 160 MiB of memory. Others are sent again.
const KNOWN: usize = 4 << 20;
/// Records that are not worth being written anew: 64 KiB.
const COMPACT: usize = 1024;
/// Bytes that are read at once.
const READ: usize = 64 << 10;

/// How the first record begins: as no other does, since its check is wrong.
const BOOT: &[u8; 8] = b"lh-boot1";

/// Names a version of a file: path, size and times of change.
pub(crate) type FileKey = u128;

/// The key of a version of a file.
pub(crate) fn file_key(entry: &Entry) -> FileKey {
    let mut bytes = entry.path.as_bytes().to_vec();
    bytes.extend(entry.size.to_le_bytes());
    for time in [entry.mtime, entry.ctime] {
        bytes.extend(time.secs.to_le_bytes());
        bytes.extend(time.nanos.to_le_bytes());
    }
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
        // One of no length is of a machine that was cut off before it was written.
        let (mut file, resumed) = tree::create(tree.fd(), &name, true)?;
        lock(&file)?;
        // A run that ended meanwhile has removed the name of what was locked.
        if rustix::fs::fstat(&file)?.st_nlink == 0 {
            return Journal::open(tree, key);
        }
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
        let record = record_of(key, offset, digest);
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&record)
    }

    /// A file has appeared: another run need not know of its blocks.
    pub(crate) fn complete(&self, key: FileKey) -> io::Result<()> {
        self.add(key, COMPLETE, &Digest::default())
    }

    /// What has appeared may not be on the medium: another run is to look at content.
    pub(crate) fn distrust(&self) -> io::Result<()> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all_at(&[0; RECORD], 0)
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

/// Takes the lock. A run whose other side was killed just now still has it. Where a
/// file system has no locks, there is none to take.
fn lock(file: &File) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if Instant::now() >= end {
            let message = "the same copy to the same place is under way already";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
        }
        std::thread::sleep(AGAIN);
    }
}

fn name(key: u64) -> Vec<u8> {
    [crate::wire::RESERVED, format!("journal-{key:016x}").as_bytes()].concat()
}

/// Reads records, up to the first that is torn, and writes on behind them. Where
/// most are of files that are complete by now, it is written anew without these: a
/// crash meanwhile costs what has to be sent again.
fn read(file: &mut File) -> io::Result<Known> {
    let (mut known, mut live, mut records) = (Known::new(), 0, 0);
    let mut reader = BufReader::with_capacity(READ, &*file);
    let mut record = [0; RECORD];
    while read_whole(&mut reader, &mut record)? {
        records += 1;
        let Some((key, offset, digest)) = parse(&record) else { continue };
        if offset == COMPLETE {
            live -= known.remove(&key).map_or(0, |blocks| blocks.len());
        } else if live < KNOWN {
            known.entry(key).or_default().push((offset, digest));
            live += 1;
        }
    }
    drop(reader);
    if records > 2 * (live + COMPACT) {
        file.seek(SeekFrom::Start(RECORD as u64))?;
        let mut writer = BufWriter::with_capacity(READ, &*file);
        for (key, blocks) in &known {
            for (offset, digest) in blocks {
                writer.write_all(&record_of(*key, *offset, digest))?;
            }
        }
        writer.flush()?;
        drop(writer);
        records = live + 1;
        file.set_len((records * RECORD) as u64)?;
    }
    file.seek(SeekFrom::Start((records * RECORD) as u64))?;
    Ok(known)
}

/// Fills a record; false at the end, also where that is within one.
fn read_whole(from: &mut impl Read, record: &mut [u8; RECORD]) -> io::Result<bool> {
    match from.read_exact(record) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        result => result.map(|()| true),
    }
}

fn record_of(key: FileKey, offset: u64, digest: &Digest) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..16].copy_from_slice(&key.to_le_bytes());
    record[16..24].copy_from_slice(&offset.to_le_bytes());
    record[24..56].copy_from_slice(&digest.0);
    let check = xxh3_64(&record[..56]);
    record[56..].copy_from_slice(&check.to_le_bytes());
    record
}

/// What a record says; none where it is torn, or the one that begins a journal.
fn parse(record: &[u8; RECORD]) -> Option<(FileKey, u64, Digest)> {
    let (key, rest) = record.split_first_chunk::<16>()?;
    let (offset, rest) = rest.split_first_chunk::<8>()?;
    let (digest, check) = rest.split_first_chunk::<32>()?;
    let good = xxh3_64(&record[..RECORD - 8]).to_le_bytes() == check;
    good.then_some((u128::from_le_bytes(*key), u64::from_le_bytes(*offset), Digest(*digest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_complete_is_forgotten_and_its_records_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = Tree::open(dir.path()).expect("open");
        let (block, digest) = (crate::wire::BLOCK as u64, Digest([7; 32]));
        let open = || Journal::open(&tree, 1).expect("opened");
        let (complete, unfinished) = (COMPACT as u64 * 3, 5);
        let journal = open();
        for i in 0..complete {
            journal.add(1, i * block, &digest).expect("added");
        }
        (0..unfinished).for_each(|i| journal.add(2, i * block, &digest).expect("added"));
        journal.complete(1).expect("noted");
        let size = |journal: &Journal| journal.file.lock().expect("lock").metadata().expect("there").len();
        assert_eq!(size(&journal), (1 + complete + unfinished + 1) * RECORD as u64);
        drop(journal);
        for more in 0..3 {
            let journal = open();
            assert!(journal.resumed);
            let known: Vec<_> =
                journal.known.iter().map(|(key, blocks)| (*key, blocks.len() as u64)).collect();
            assert_eq!(known, [(2, unfinished + more)]);
            assert_eq!(size(&journal), (1 + unfinished + more) * RECORD as u64);
            journal.add(2, (unfinished + more) * block, &digest).expect("added");
        }
    }

    #[test]
    fn a_torn_record_is_written_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = Tree::open(dir.path()).expect("open");
        let digest = Digest([7; 32]);
        let journal = Journal::open(&tree, 1).expect("opened");
        journal.add(1, 0, &digest).expect("added");
        journal.file.lock().expect("lock").write_all(&[1; RECORD / 2]).expect("torn");
        drop(journal);
        Journal::open(&tree, 1).expect("opened").add(1, 1 << 20, &digest).expect("added");
        let journal = Journal::open(&tree, 1).expect("opened");
        assert_eq!(journal.known[&1], [(0, digest), (1 << 20, digest)]);
    }

    #[test]
    fn a_journal_that_says_nothing_is_of_a_machine_that_was_cut_off() {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = Tree::open(dir.path()).expect("open");
        let open = || Journal::open(&tree, 1).expect("opened");
        assert!(!open().resumed);
        let journal = open();
        assert!(journal.resumed && !journal.rebooted);
        // It had a name before it had content.
        journal.file.lock().expect("lock").set_len(0).expect("cut");
        drop(journal);
        for _ in 0..2 {
            let journal = open();
            assert!(journal.resumed && journal.rebooted && Journal::left(&tree, 1) == Some(true));
            journal.add(1, 0, &Digest([7; 32])).expect("added");
        }
        open().remove(&tree).expect("removed");
        open().distrust().expect("noted");
        assert!(open().rebooted);
    }
}
