//! A directory as a space: a file for each namespace, and a record beside it.
//!
//! | file | is |
//! |---|---|
//! | `longhaul-space` | marks the directory; locked by the target that serves it |
//! | `UUID.data` | content of a namespace |
//! | `UUID.record` | its record: there is a namespace exactly where there is one |
//! | `UUID.data.new` | content of a namespace that is being made, or what a clone is tried on |
//! | `UUID.data.old` | content of a namespace that is being removed |
//! | `UUID.record.new` | a record that is being written |
//!
//! Invariants, at every step and so after a crash at any of them:
//! - a record is whole: it is written under another name first;
//! - a namespace is made when its record has its name, and removed when its content has the name
//!   `.data.old`;
//! - the next start completes or removes the files of a change that a crash has ended; content without
//!   a record under its final name, which no crash leaves, is not touched.

use super::files::{FileSystem, Files};
use super::lazy::LazyFile;
use super::record::NamespaceRecord;
use super::{Space, SpaceCapacity, SpaceError, SpaceNamespace};
use longhaul_block::DeviceInfo;
use longhaul_engine::{BUF_MAX, LockedFile};
use longhaul_proto::controller::NewNamespace;
use longhaul_wire::management::NamespaceLabel;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// Bytes that it is tried on whether files share blocks: a block of any file system.
const PROBE: usize = 64 << 10;

const MARK: &str = "longhaul-space";
const DATA: &str = "data";
const DATA_NEW: &str = "data.new";
const DATA_OLD: &str = "data.old";
const RECORD: &str = "record";
const RECORD_NEW: &str = "record.new";

/// See the module.
pub struct DirSpace {
    directory: PathBuf,
    /// Bytes that namespaces may take, if not all of the file system.
    quota: Option<u64>,
    files: Box<dyn Files>,
    namespaces: Mutex<BTreeMap<u32, DirNamespace>>,
    /// Keeps other targets out.
    _mark: LockedFile,
}

#[derive(Clone)]
struct DirNamespace {
    record: NamespaceRecord,
    file: LazyFile,
}

impl DirNamespace {
    fn shown(&self) -> SpaceNamespace {
        let NamespaceRecord { nsid, uuid, shared, .. } = self.record;
        let device = Arc::new(self.file.clone());
        SpaceNamespace { nsid, uuid, shared, label: self.record.label(), device }
    }
}

fn medium(path: &Path, what: &str, e: &io::Error) -> SpaceError {
    let text = format!("{}: cannot {what}: {e}", path.display());
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            SpaceError::Full(text)
        }
        io::ErrorKind::Unsupported => SpaceError::Invalid(format!(
            "{text}: this file system cannot reserve space; make the namespace thin"
        )),
        _ => SpaceError::Medium(text),
    }
}

impl DirSpace {
    /// Opens a directory as a space, and makes it one if it is empty or does not exist. `quota`: bytes
    /// that its namespaces may take.
    ///
    /// # Errors
    /// It has other files in it, another target serves it, or it cannot be read or written.
    pub fn open(directory: &Path, quota: Option<u64>) -> Result<DirSpace, SpaceError> {
        DirSpace::open_with(directory, quota, Box::new(FileSystem))
    }

    fn open_with(
        directory: &Path,
        quota: Option<u64>,
        files: Box<dyn Files>,
    ) -> Result<DirSpace, SpaceError> {
        let fail = |what: &'static str| move |e: io::Error| medium(directory, what, &e);
        std::fs::create_dir_all(directory).map_err(fail("create the directory"))?;
        let mark = directory.join(MARK);
        if !mark.exists() {
            let mut inside = std::fs::read_dir(directory).map_err(fail("read the directory"))?;
            if inside.next().is_some() {
                return Err(SpaceError::Invalid(format!(
                    "{} has other files in it and is no space yet: give an empty directory",
                    directory.display()
                )));
            }
        }
        let mark = OpenOptions::new().create(true).truncate(false).write(true).open(&mark);
        let mark = LockedFile::from(mark.map_err(fail("create the file longhaul-space in it"))?);
        match mark.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let directory = directory.display();
                return Err(SpaceError::Invalid(format!("{directory} is served by another target")));
            }
            Err(TryLockError::Error(e)) => {
                tracing::warn!("{}: cannot be locked against other targets: {e}", directory.display());
            }
        }
        let space = DirSpace {
            directory: directory.to_owned(),
            quota,
            files,
            namespaces: Mutex::default(),
            _mark: mark,
        };
        space.recover()?;
        Ok(space)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, DirNamespace>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, uuid: Uuid, extension: &str) -> PathBuf {
        self.directory.join(format!("{uuid}.{extension}"))
    }

    fn sync(&self) -> Result<(), SpaceError> {
        self.files.sync(&self.directory).map_err(|e| medium(&self.directory, "make it durable", &e))
    }

    /// Completes or removes the files of changes that a crash has ended, and reads the records.
    fn recover(&self) -> Result<(), SpaceError> {
        let mut found: BTreeMap<Uuid, Vec<String>> = BTreeMap::new();
        let fail = |e: io::Error| medium(&self.directory, "read the directory", &e);
        for entry in std::fs::read_dir(&self.directory).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            let Some((uuid, extension)) = parse_name(&name) else {
                if name != MARK {
                    tracing::warn!("{}: {name:?} is no file of a space", self.directory.display());
                }
                continue;
            };
            found.entry(uuid).or_default().push(extension.to_owned());
        }
        for (uuid, extensions) in found {
            let has = |extension: &str| extensions.iter().any(|one| one == extension);
            if has(RECORD_NEW) {
                self.remove(uuid, RECORD_NEW)?;
            }
            if has(DATA_OLD) {
                if has(RECORD) {
                    self.remove(uuid, RECORD)?;
                    self.sync()?;
                }
                self.remove(uuid, DATA_OLD)?;
                continue;
            }
            if has(DATA_NEW) && !has(RECORD) {
                self.remove(uuid, DATA_NEW)?;
                continue;
            }
            if has(DATA_NEW) {
                self.rename(uuid, DATA_NEW, DATA)?;
                self.sync()?;
            }
            if has(RECORD) {
                self.restore(uuid)?;
            } else if has(DATA) {
                let path = self.path(uuid, DATA);
                tracing::warn!("{}: content without a record is not served", path.display());
            }
        }
        Ok(())
    }

    /// Takes up a namespace that has a record.
    fn restore(&self, uuid: Uuid) -> Result<(), SpaceError> {
        let path = self.path(uuid, RECORD);
        let bytes = std::fs::read(&path).map_err(|e| medium(&path, "read it", &e))?;
        let other = |nsid| self.lock().get(&nsid).map(|other| other.record.uuid);
        let sound = NamespaceRecord::decode(&bytes).and_then(|record| match other(record.nsid) {
            _ if record.uuid != uuid => Err(format!("it is of the namespace {}", record.uuid)),
            Some(other) => Err(format!("namespace {} is {other} already", record.nsid)),
            None => Ok(record),
        });
        let record = match sound {
            Ok(record) => record,
            Err(e) => {
                // The others are served: their hosts are not to suffer.
                tracing::error!("{}: {e}; the namespace is not served", path.display());
                return Ok(());
            }
        };
        // Only a crash while it grew has left more than the record says.
        let data = self.path(uuid, DATA);
        match std::fs::metadata(&data) {
            Ok(meta) if meta.len() > record.size => {
                self.files.cut(&data, record.size).map_err(|e| medium(&data, "make it shorter", &e))?;
            }
            Ok(meta) if meta.len() == record.size => {}
            Ok(meta) => tracing::error!("{}: has {} bytes of {}", data.display(), meta.len(), record.size),
            Err(e) => tracing::error!("{}: {e}", data.display()),
        }
        self.insert(record);
        Ok(())
    }

    fn insert(&self, record: NamespaceRecord) -> DirNamespace {
        let path = self.path(record.uuid, DATA);
        let info = DeviceInfo {
            name: path.display().to_string(),
            size: record.size,
            block_size: record.block_size,
            max_io: BUF_MAX as u32,
            optimal_io: 0,
            read_only: false,
            volatile_cache: true,
            discard: true,
            uuid: Some(record.uuid),
        };
        let entry = DirNamespace { file: LazyFile::new(path, info), record };
        self.lock().insert(entry.record.nsid, entry.clone());
        entry
    }

    fn remove(&self, uuid: Uuid, extension: &str) -> Result<(), SpaceError> {
        let path = self.path(uuid, extension);
        self.files.remove(&path).map_err(|e| medium(&path, "remove it", &e))
    }

    fn rename(&self, uuid: Uuid, from: &str, to: &str) -> Result<(), SpaceError> {
        let (from, to) = (self.path(uuid, from), self.path(uuid, to));
        self.files.rename(&from, &to).map_err(|e| medium(&from, "rename it", &e))
    }

    /// Replaces the record of a namespace.
    fn write(&self, record: &NamespaceRecord) -> Result<(), SpaceError> {
        let path = self.path(record.uuid, RECORD_NEW);
        let bytes = record.encode().map_err(SpaceError::Invalid)?;
        let written = self.files.write(&path, &bytes).map_err(|e| medium(&path, "write it", &e));
        let written = written.and_then(|()| self.rename(record.uuid, RECORD_NEW, RECORD));
        if written.is_err() {
            // Else the next start removes it.
            let _ = self.files.remove(&path);
        }
        written?;
        self.sync()
    }

    /// The steps that make a namespace, with the content of the file `of`.
    fn make(&self, record: &NamespaceRecord, of: Option<&Path>) -> Result<(), SpaceError> {
        let path = self.path(record.uuid, DATA_NEW);
        match of {
            None => {
                let made = self.files.make(&path, record.size, !record.thin);
                made.map_err(|e| medium(&path, &format!("make a file of {} bytes", record.size), &e))?;
            }
            Some(of) => self.share(of, &path)?,
        }
        self.sync()?;
        self.write(record)?;
        self.rename(record.uuid, DATA_NEW, DATA)?;
        self.sync()
    }

    /// Makes a file that shares the blocks of another one.
    fn share(&self, from: &Path, to: &Path) -> Result<(), SpaceError> {
        self.files.share(from, to).map_err(|e| match e.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::INVAL) => {
                let directory = self.directory.display();
                SpaceError::NoClones(format!(
                    "{directory}: the files of its file system share no blocks ({e})"
                ))
            }
            _ => medium(to, "make a clone", &e),
        })
    }

    /// Removes the files of a namespace that [`make`](Self::make) could not complete. If that fails
    /// too, the next start removes them, or serves a namespace that it finds whole.
    fn unmake(&self, uuid: Uuid) {
        for extension in [RECORD, DATA_NEW, DATA] {
            let _ = self.files.remove(&self.path(uuid, extension));
        }
        let _ = self.files.sync(&self.directory);
    }

    /// Makes a namespace of this record.
    fn add(&self, record: NamespaceRecord, of: Option<&Path>) -> Result<SpaceNamespace, SpaceError> {
        if let Err(e) = self.make(&record, of) {
            self.unmake(record.uuid);
            return Err(e);
        }
        Ok(self.insert(record).shown())
    }

    fn entry(&self, nsid: u32) -> Result<DirNamespace, SpaceError> {
        self.lock().get(&nsid).cloned().ok_or(SpaceError::NotFound(nsid))
    }

    /// Fails unless `size` bytes are free.
    fn check_room(&self, size: u64) -> Result<(), SpaceError> {
        let SpaceCapacity { unallocated, .. } = self.capacity()?;
        if size > unallocated {
            return Err(SpaceError::Full(format!(
                "{}: {size} bytes are asked for, and {unallocated} are free",
                self.directory.display()
            )));
        }
        Ok(())
    }
}

/// `UUID.EXTENSION`, with an extension that files of a space have.
fn parse_name(name: &OsStr) -> Option<(Uuid, &str)> {
    let (uuid, extension) = name.to_str()?.split_once('.')?;
    let known = [DATA, DATA_NEW, DATA_OLD, RECORD, RECORD_NEW].contains(&extension);
    // In its usual form, of which there is one for each UUID.
    let parsed = Uuid::try_parse(uuid).ok().filter(|parsed| parsed.to_string() == uuid)?;
    known.then_some((parsed, extension))
}

impl Space for DirSpace {
    fn namespaces(&self) -> Vec<SpaceNamespace> {
        self.lock().values().map(DirNamespace::shown).collect()
    }

    fn capacity(&self) -> Result<SpaceCapacity, SpaceError> {
        let stat = rustix::fs::statvfs(&self.directory);
        let stat = stat.map_err(|e| medium(&self.directory, "ask for its capacity", &e.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        let (total, free) = (bytes(stat.f_blocks), bytes(stat.f_bavail));
        let Some(quota) = self.quota else { return Ok(SpaceCapacity { total, unallocated: free }) };
        let entries: Vec<NamespaceRecord> = self.lock().values().map(|entry| entry.record.clone()).collect();
        let taken = entries.iter().map(|record| match record.thin {
            false => record.size,
            // One that is being removed takes nothing.
            true => std::fs::metadata(self.path(record.uuid, DATA)).map_or(0, |meta| meta.blocks() * 512),
        });
        let taken = taken.fold(0u64, u64::saturating_add);
        Ok(SpaceCapacity { total: quota.min(total), unallocated: quota.saturating_sub(taken).min(free) })
    }

    fn create(&self, nsid: u32, new: &NewNamespace) -> Result<SpaceNamespace, SpaceError> {
        if self.lock().contains_key(&nsid) {
            return Err(SpaceError::Invalid(format!("there is a namespace {nsid} already")));
        }
        let record = NamespaceRecord::new(nsid, Uuid::new_v4(), new);
        if !record.thin {
            self.check_room(record.size)?;
        }
        self.add(record, None)
    }

    fn delete(&self, nsid: u32) -> Result<(), SpaceError> {
        let DirNamespace { record, file } = self.entry(nsid)?;
        file.remove();
        let uuid = record.uuid;
        if let Err(e) = self.rename(uuid, DATA, DATA_OLD) {
            let gone = !self.path(uuid, DATA).exists();
            if !gone {
                file.restore();
                return Err(e);
            }
            tracing::warn!("{e}: its content is gone already");
        }
        self.lock().remove(&nsid);
        // From here on the namespace is removed; the next start completes steps that fail.
        let rest = || {
            self.sync()?;
            self.remove(uuid, RECORD)?;
            self.sync()?;
            self.remove(uuid, DATA_OLD)
        };
        rest().or_else(|e| match self.path(uuid, DATA_OLD).exists() {
            true => Err(e),
            false => Ok(()),
        })
    }

    fn set_label(&self, nsid: u32, label: &NamespaceLabel) -> Result<(), SpaceError> {
        let DirNamespace { record, .. } = self.entry(nsid)?;
        let record = record.with_label(label);
        self.write(&record)?;
        if let Some(entry) = self.lock().get_mut(&nsid) {
            entry.record = record;
        }
        Ok(())
    }

    fn grow(&self, nsid: u32, size: u64) -> Result<(), SpaceError> {
        let DirNamespace { record, file } = self.entry(nsid)?;
        let block = u64::from(record.block_size);
        if size < record.size || !size.is_multiple_of(block) {
            return Err(SpaceError::Invalid(format!(
                "namespace {nsid} has {} bytes in blocks of {block}: {size} is no larger size",
                record.size
            )));
        }
        if !record.thin {
            self.check_room(size - record.size)?;
        }
        let path = self.path(record.uuid, DATA);
        let grown = record.with_size(size);
        if let Err(e) = self.files.extend(&path, size, !record.thin) {
            // The record has the old length: the next start cuts the rest at the latest.
            let _ = self.files.cut(&path, record.size);
            return Err(medium(&path, "make it longer", &e));
        }
        self.write(&grown)?;
        if let Some(entry) = self.lock().get_mut(&nsid) {
            entry.record = grown;
        }
        file.grown(size).map_err(|e| SpaceError::Medium(e.to_string()))
    }

    fn clone_of(&self, source: u32, nsid: u32, label: &NamespaceLabel) -> Result<SpaceNamespace, SpaceError> {
        let DirNamespace { record, .. } = self.entry(source)?;
        if self.lock().contains_key(&nsid) {
            return Err(SpaceError::Invalid(format!("there is a namespace {nsid} already")));
        }
        let of = self.path(record.uuid, DATA);
        self.add(record.cloned_as(nsid, Uuid::new_v4(), label), Some(&of))
    }

    fn check_clones(&self) -> Result<(), SpaceError> {
        // What a crash leaves of them, the next start removes.
        let [from, to] = [(); 2].map(|()| self.path(Uuid::new_v4(), DATA_NEW));
        let written = self.files.write(&from, &[1; PROBE]).map_err(|e| medium(&from, "write it", &e));
        let tried = written.and_then(|()| self.share(&from, &to));
        for path in [&from, &to] {
            match self.files.remove(path) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => tracing::warn!("{}: cannot remove it: {e}", path.display()),
            }
        }
        tried
    }
}

impl std::fmt::Debug for DirSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirSpace({})", self.directory.display())
    }
}

#[cfg(test)]
mod tests;
