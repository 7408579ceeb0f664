//! A catalog in one file, which all processes of a host share.
//!
//! Each transaction takes redb's lock on the file and releases it: no server is needed, and a process
//! that is killed holds nothing up, since the kernel releases its locks. Transactions take
//! milliseconds, so that waiting for the lock costs less than a server that has to be started.
//!
//! Invariants:
//! - a process that only reads opens the file for that alone, and waits for no disk: it is opened for
//!   writing by its first change, or when it has to be made or repaired;
//! - the revision, entries, history and leases change in the same transaction of redb;
//! - the newest [`Options::keep`] revisions can be read as of, and watched from;
//! - an entry under a lease that has run out is deleted before anything else is read or written.

mod served;
mod tables;
mod watch;
mod write;

use crate::clock::{Clock, HostClock};
use crate::error::{Error, Result};
use crate::types::{Commit, Entry, LeaseId, Revision, Snapshot, Txn};
use crate::{Catalog, Watch};
use redb::{
    ConcurrencyMode, Database, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, TransactionError,
};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tables::Reading;
use watch::{Changes, FileWatch};
use write::Writing;

pub(crate) use served::{Changed, FileSnapshot};

/// Bytes of the file that redb keeps in memory: the entries of some 10,000 volumes.
const CACHE: usize = 16 << 20;
/// Revisions that are kept unless told otherwise.
const KEEP: u64 = 10_000;
/// Longest wait for another process: above what a full disk's slowest flush takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// First and longest interval at which a held file is tried again.
const RETRY: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(20)];

/// How a file is opened.
#[derive(Clone)]
pub struct Options {
    /// The clock of leases.
    pub clock: Arc<dyn Clock>,
    /// Revisions that are kept.
    pub keep: u64,
    /// The catalog is served to holders of leases on other hosts, which outlive this process and this host: each
    /// lease gets its whole time again when the file is opened.
    pub renew: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { clock: Arc::new(HostClock::new()), keep: KEEP, renew: false }
    }
}

/// A catalog in one file of this host, or in memory.
pub struct FileCatalog {
    store: Arc<Store>,
}

/// What a catalog and its watches share.
struct Store {
    name: String,
    /// Where it is; none in memory.
    path: Option<PathBuf>,
    /// The file, for reading. None if it is open for writing from the start.
    reader: Option<ReadOnlyDatabase>,
    writer: OnceLock<Database>,
    /// Held while the file is opened for writing.
    opening: Mutex<()>,
    options: Options,
    changes: Changes,
}

impl FileCatalog {
    /// Opens the catalog in the file `path`, which is made if it does not exist. Other processes of
    /// this host may have it open; processes of other hosts must not, over a network file system.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a catalog of a version that this program knows.
    pub fn open(path: &Path) -> Result<FileCatalog> {
        FileCatalog::open_with(path, Options::default())
    }

    /// As [`Self::open`], with options.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_with(path: &Path, options: Options) -> Result<FileCatalog> {
        let mut store = Store {
            name: path.display().to_string(),
            path: Some(path.to_owned()),
            reader: None,
            writer: OnceLock::new(),
            opening: Mutex::default(),
            options,
            changes: Changes::of_file(path),
        };
        if store.options.renew {
            // Before any lease is found to have run out.
            store.transact(false, |writing| {
                writing.format()?;
                writing.serve(served::draw())
            })?;
            return Ok(FileCatalog { store: Arc::new(store) });
        }
        // A file that is not there, or that a killed process has left, is opened for writing.
        if let Ok(reader) = builder().open_read_only(path) {
            let txn = reader.begin_read().map_err(|e| failed(&store.name, "read", e))?;
            if Reading::open(&txn, &store.name).is_ok_and(|reading| reading.is_known() == Ok(true)) {
                store.reader = Some(reader);
                return Ok(FileCatalog { store: Arc::new(store) });
            }
        }
        store.write(|writing| writing.format())?;
        Ok(FileCatalog { store: Arc::new(store) })
    }

    /// An empty catalog in memory, which ends with it.
    ///
    /// # Errors
    /// Memory cannot be had.
    pub fn in_memory() -> Result<FileCatalog> {
        FileCatalog::in_memory_with(Options::default())
    }

    /// As [`Self::in_memory`], with options.
    ///
    /// # Errors
    /// As for [`Self::in_memory`].
    pub fn in_memory_with(options: Options) -> Result<FileCatalog> {
        let name = "in memory".to_owned();
        let mut builder = Database::builder();
        let db = builder.set_cache_size(CACHE).create_with_backend(redb::backends::InMemoryBackend::new());
        let db = db.map_err(|e| failed(&name, "open", e))?;
        let store = Store {
            name,
            path: None,
            reader: None,
            writer: OnceLock::from(db),
            opening: Mutex::default(),
            options,
            changes: Changes::in_memory(),
        };
        store.write(|writing| writing.format())?;
        Ok(FileCatalog { store: Arc::new(store) })
    }

    /// Number of leases that have not run out.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn leases(&self) -> Result<usize> {
        self.store.read(|reading| reading.lease_count())
    }
}

fn failed(catalog: &str, attempted: &'static str, why: impl ToString) -> Error {
    Error::Failed { catalog: catalog.to_owned(), attempted, why: why.to_string() }
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE).set_concurrency_mode(ConcurrencyMode::MultiWriter);
    builder
}

impl Store {
    /// The file, open for writing.
    fn writer(&self) -> Result<&Database> {
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = self.writer.get() {
            return Ok(writer);
        }
        let path = self.path.as_deref().unwrap_or(Path::new(""));
        let opened = builder().create(path).map_err(|e| failed(&self.name, "open", e))?;
        Ok(self.writer.get_or_init(|| opened))
    }

    /// Begins a transaction of redb, once no other process is in one.
    fn begin(&self) -> Result<redb::WriteTransaction> {
        let (start, mut pause, db) = (Instant::now(), RETRY[0], self.writer()?);
        loop {
            match db.try_begin_write() {
                Ok(txn) => return Ok(txn),
                Err(TransactionError::WouldBlock) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(RETRY[1]);
                }
                Err(TransactionError::WouldBlock) => {
                    return Err(Error::Busy { catalog: self.name.clone(), seconds: PATIENCE.as_secs() });
                }
                Err(e) => return Err(failed(&self.name, "write", e)),
            }
        }
    }

    /// Runs `change` in a transaction, after the end of the leases that are due.
    fn write<T>(&self, change: impl FnOnce(&mut Writing) -> Result<T>) -> Result<T> {
        self.transact(true, change)
    }

    fn transact<T>(&self, expires: bool, change: impl FnOnce(&mut Writing) -> Result<T>) -> Result<T> {
        let txn = self.begin()?;
        let (dirty, result) = {
            let mut writing = Writing::open(&txn, self)?;
            if expires {
                writing.expire()?;
            }
            let result = change(&mut writing);
            // An error of the disk ends the transaction here. Refusals come before the first change,
            // and leave what the leases did.
            if let Err(Error::Failed { .. }) = result {
                return result;
            }
            writing.compact()?;
            (writing.dirty(), result)
        };
        if dirty {
            txn.commit().map_err(|e| failed(&self.name, "write", e))?;
            self.changes.notify();
        } else {
            txn.abort().map_err(|e| failed(&self.name, "write", e))?;
        }
        result
    }

    /// Runs `read` on the newest state without keys of leases that are due.
    fn read<T>(&self, read: impl Fn(&Reading) -> Result<T>) -> Result<T> {
        let mut reading = self.reading()?;
        if reading.is_due(&*self.options.clock)? {
            self.write(|_| Ok(()))?;
            reading = self.reading()?;
        }
        read(&reading)
    }

    fn reading(&self) -> Result<Reading> {
        let txn = match (self.writer.get(), &self.reader) {
            (None, Some(reader)) => reader.begin_read(),
            _ => self.writer()?.begin_read(),
        };
        let txn: ReadTransaction = txn.map_err(|e| failed(&self.name, "read", e))?;
        Reading::open(&txn, &self.name)
    }
}

impl Catalog for FileCatalog {
    fn name(&self) -> String {
        self.store.name.clone()
    }

    fn commit(&self, txn: &Txn) -> Result<Commit> {
        txn.check()?;
        self.store.write(|writing| writing.commit(txn))
    }

    fn range(&self, prefix: &[u8], at: Option<Revision>) -> Result<Snapshot> {
        self.store.read(|reading| reading.range(prefix, at))
    }

    fn visit(&self, prefix: &[u8], see: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let see = RefCell::new(see);
        self.store.read(|reading| reading.visit(prefix, &mut **see.borrow_mut()))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        self.store.read(|reading| reading.get(key))
    }

    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Entry>> {
        self.store.read(|reading| reading.get_all(keys))
    }

    fn page(&self, prefix: &[u8], after: &[u8], most: usize) -> Result<Vec<Entry>> {
        self.store.read(|reading| reading.page(prefix, after, most))
    }

    fn watch(&self, prefix: &[u8], from: Revision) -> Result<Box<dyn Watch>> {
        self.store.read(|reading| reading.check_kept(from))?;
        Ok(Box::new(FileWatch::new(Arc::clone(&self.store), prefix, from)?))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId> {
        self.store.write(|writing| writing.grant(ttl))
    }

    fn keep(&self, lease: LeaseId) -> Result<Duration> {
        self.store.write(|writing| writing.keep(lease))
    }

    fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.store.write(|writing| writing.revoke(lease))
    }
}
