//! The receiver's journal of a copy, from which a later run resumes it.
//!
//! The journal is a file in the destination, with a record for each written block of a
//! large file and its checksum. Records are verified against the unfinished file, so
//! torn records and blocks lost in a crash do no harm, and the journal need not be
//! flushed.
//!
//! Invariants:
//! - a running copy holds the journal's lock, so that two runs of the same copy exclude
//!   each other;
//! - the journal exists from the beginning of a copy until it is complete;
//! - memory holds records of incomplete files only, up to [`KNOWN`].

use crate::guard::lock;
use crate::send::read::read_full;
use crate::tree::{self, Cursor, File, Inode, Tree};
use crate::wire::{Digest, Entry};
use longhaul_engine::LockedFile;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::TryLockError;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// How long to wait for the lock of a run that is about to end, and the retry interval.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// Bytes of a record: file key, offset, digest, check.
const RECORD: usize = 16 + 8 + 32 + 8;

/// The offset in the record that marks a file as complete.
const COMPLETE: u64 = u64::MAX;
/// The most blocks of an earlier run kept in memory: 4 TiB of unfinished files, in 160 MiB.
/// Others are resent.
const KNOWN: usize = 4 << 20;
/// Obsolete records (64 KiB) that do not justify a compaction.
const COMPACT: usize = 1024;
/// Buffer size in bytes.
const READ: usize = 64 << 10;

/// Magic of the first record, which has no valid check and so is no block record.
const BOOT: &[u8; 8] = b"lh-boot1";

/// Identifies a version of a file: a hash of its path, size, mtime and ctime.
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

/// Name of the unfinished file for a version of a file in the copy with the key `copy`.
/// Includes the key, so that copies of the same file do not collide.
pub(crate) fn unfinished(copy: u64, key: FileKey) -> Vec<u8> {
    [&unfinished_of(copy)[..], format!("{key:032x}").as_bytes()].concat()
}

/// Prefix of the names of all unfinished files of a copy.
pub(crate) fn unfinished_of(copy: u64) -> Vec<u8> {
    [crate::wire::RESERVED, format!("{copy:016x}-").as_bytes()].concat()
}

/// Blocks that an earlier run wrote, by file: offset and checksum.
pub(crate) type Known = HashMap<FileKey, Vec<(u64, Digest)>>;

/// The journal of one copy.
#[derive(Debug)]
pub(crate) struct Journal {
    /// The file, and where the next record is written.
    file: Mutex<Cursor<Arc<File>>>,
    _lock: LockedFile,
    name: Vec<u8>,
    /// Key of the copy.
    pub(crate) key: u64,
    /// Blocks of unfinished files of an earlier run.
    pub(crate) known: Known,
    /// Whether there was an interrupted run.
    pub(crate) resumed: bool,
    /// Whether the machine rebooted since that run, so that its complete files may have
    /// lost content that was not flushed.
    pub(crate) rebooted: bool,
}

impl Journal {
    /// Opens or creates the journal of the copy with this key in `tree`.
    ///
    /// # Errors
    /// Another copy holds it, or it cannot be written.
    pub(crate) fn open(tree: &Tree, key: u64) -> io::Result<Journal> {
        let name = name(key);
        // A run takes a lock that is not the file's own before it opens the file.
        let early = tree.early_lock(&format!("copy-{key:016x}"))?;
        if let Some(early) = &early {
            lock_file(early)?;
        }
        // An empty journal was created just before a crash of the machine.
        let (file, resumed) = tree::create(tree.top(), &name, true)?;
        let locked = match early {
            Some(early) => early,
            None => {
                let own = file.own_lock()?;
                lock_file(&own)?;
                // A run that ended meanwhile has unlinked the file that is locked now.
                if file.status()?.links == 0 {
                    drop(own);
                    return Journal::open(tree, key);
                }
                own
            }
        };
        let header = header(tree);
        let rebooted = resumed && is_of_another_boot(&file, &header);
        let mut file = Cursor { file: Arc::new(file), at: 0 };
        let known = read(&mut file)?;
        if !resumed {
            file.write_all(&header)?;
            // The header marks the journal as valid, however early this run ends. Without it the next run compares the
            // content of what is there.
            if tree.is_far() {
                keep_behind(&file.file)?;
            }
        }
        Ok(Journal { file: Mutex::new(file), _lock: locked, name, key, known, resumed, rebooted })
    }

    /// Its file name, which exists in the tree.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Whether an interrupted run of the copy with this key left a journal in `tree`.
    pub(crate) fn exists(tree: &Tree, key: u64) -> bool {
        Journal::interrupted(tree, key).is_some()
    }

    /// Looks for the journal of an interrupted run; if there is one, returns whether the
    /// machine rebooted since.
    pub(crate) fn interrupted(tree: &Tree, key: u64) -> Option<bool> {
        // A RelPath cannot hold a reserved name.
        tree::open_own(tree, &name(key)).ok().map(|file| is_of_another_boot(&file, &header(tree)))
    }

    /// Records a written block.
    pub(crate) fn add(&self, key: FileKey, offset: u64, digest: &Digest) -> io::Result<()> {
        let record = record_of(key, offset, digest);
        lock(&self.file).write_all(&record)
    }

    /// Records that a file is complete; its block records are obsolete.
    pub(crate) fn complete(&self, key: FileKey) -> io::Result<()> {
        self.add(key, COMPLETE, &Digest::default())
    }

    /// Invalidates the header after a failed flush, so that the next run compares content.
    pub(crate) fn distrust(&self) -> io::Result<()> {
        let file = lock(&self.file);
        file.file.write_all_at(&[0; RECORD], 0)
    }

    /// The records so far will soon be found after this process was killed. Nothing waits for that: without them the
    /// next run sends more. Others are added meanwhile.
    pub(crate) fn keep(&self) -> io::Result<()> {
        let file = Arc::clone(&lock(&self.file).file);
        keep_behind(&file)
    }

    /// Removes the journal of a complete copy.
    pub(crate) fn remove(&self, tree: &Tree) -> io::Result<()> {
        tree::remove(tree.top(), &self.name)
    }
}

fn keep_behind(file: &Arc<File>) -> io::Result<()> {
    let file = Arc::clone(file);
    let keep = move || {
        if let Err(e) = file.keep() {
            tracing::debug!("an interrupted copy would begin further back: its journal is not kept: {e}");
        }
    };
    std::thread::Builder::new().name("transfer-journal".into()).spawn(keep).map(drop)
}

/// The first record, which identifies the present boot of the machine that may lose what is not flushed.
fn header(tree: &Tree) -> [u8; RECORD] {
    let mut header = [0; RECORD];
    header[..BOOT.len()].copy_from_slice(BOOT);
    // Without a boot id all boots look the same.
    let boot = match tree.outlives_boots() {
        true => Vec::new(),
        false => std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
    };
    header[16..32].copy_from_slice(&xxh3_128(&boot).to_le_bytes());
    header
}

/// Whether a journal is from an earlier boot of the machine, or has no valid header.
fn is_of_another_boot(file: &File, header: &[u8; RECORD]) -> bool {
    let mut first = [0; RECORD];
    !read_full(file, &mut first, 0).is_ok_and(|read| read == RECORD && first == *header)
}

/// Takes the lock; retries, since a run whose peer was killed just now still holds it. A
/// file system without locks is accepted.
fn lock_file(file: &LockedFile) -> io::Result<()> {
    let end = Instant::now() + LOCK_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(e)) => match Errno::from_io_error(&e) {
                Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => return Ok(()),
                Some(Errno::INTR) => {}
                _ => return Err(e),
            },
        }
        if Instant::now() >= end {
            let message = "the same copy is already running";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
        }
        std::thread::sleep(LOCK_RETRY);
    }
}

fn name(key: u64) -> Vec<u8> {
    [crate::wire::RESERVED, format!("journal-{key:016x}").as_bytes()].concat()
}

/// Reads all records, and positions the file behind the last whole one. If most records
/// are obsolete, compacts the file in place: a crash meanwhile only causes blocks to be
/// resent.
fn read(file: &mut Cursor<Arc<File>>) -> io::Result<Known> {
    let (mut known, mut live, mut records) = (Known::new(), 0, 0);
    let mut reader = BufReader::with_capacity(READ, Cursor { file: &*file.file, at: 0 });
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
    assert!(live <= KNOWN, "{live} blocks of unfinished files in memory");
    if records > 2 * (live + COMPACT) {
        let mut writer = BufWriter::with_capacity(READ, Cursor { file: &*file.file, at: RECORD as u64 });
        for (key, blocks) in &known {
            for (offset, digest) in blocks {
                writer.write_all(&record_of(*key, *offset, digest))?;
            }
        }
        writer.flush()?;
        drop(writer);
        records = live + 1;
        file.file.set_len((records * RECORD) as u64)?;
    }
    file.at = (records * RECORD) as u64;
    Ok(known)
}

/// Reads a record; false at the end of the file, also within a torn record.
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

/// Decodes a block record; `None` for a torn record and for the header.
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
    fn records_of_complete_files_are_compacted() {
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
        let size = |journal: &Journal| journal.file.lock().expect("lock").file.status().expect("there").size;
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
    fn a_torn_record_is_overwritten() {
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
    fn an_empty_or_invalidated_journal_counts_as_of_an_earlier_boot() {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = Tree::open(dir.path()).expect("open");
        let open = || Journal::open(&tree, 1).expect("opened");
        assert!(!open().resumed);
        let journal = open();
        assert!(journal.resumed && !journal.rebooted);
        // The crash came before the header was written.
        journal.file.lock().expect("lock").file.set_len(0).expect("cut");
        drop(journal);
        for _ in 0..2 {
            let journal = open();
            assert!(journal.resumed && journal.rebooted && Journal::interrupted(&tree, 1) == Some(true));
            journal.add(1, 0, &Digest([7; 32])).expect("added");
        }
        open().remove(&tree).expect("removed");
        open().distrust().expect("noted");
        assert!(open().rebooted);
    }
}
