//! Devices attached on this host by one user. The process that serves one keeps a record of it.
//!
//! Invariants:
//! - the process that serves an attachment locks its record, and only that process writes it:
//!   an unlocked record was left by a process that was killed;
//! - the process that attaches a device locks the device, exclusively unless it is read-only,
//!   so that no two processes of this host write to one device.

mod control;
mod lock;

pub use control::{DetachRequest, DetachServer, request_detach};
pub use lock::DeviceLock;

use crate::error::{Error, ErrorKind, Result};
use crate::runtime;
use longhaul_engine::LockedFile;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// An attached device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The file that appears, or the directory that the file system is mounted at.
    pub path: PathBuf,
    /// Device names as given on the command line.
    pub devices: Vec<String>,
    /// The front end, such as `fuse`; with `+loop` or `+mount` for a mounted file system.
    pub via: String,
    /// Size of the device in bytes.
    pub size: u64,
    /// All writes are refused.
    pub read_only: bool,
    /// The process that serves it.
    pub pid: u32,
    /// The last fault of the devices that the serving process saw, as `WORD: details`.
    pub trouble: Option<String>,
}

/// A path in the runtime directory, the same for the same `key` in all processes.
fn runtime_file(kind: &str, key: &str, extension: &str) -> PathBuf {
    let id = Uuid::new_v5(&Uuid::NAMESPACE_URL, key.as_bytes());
    runtime::directory().join(format!("{kind}-{}.{extension}", id.simple()))
}

/// The log of the process that serves the attachment at `path`.
pub fn log_of(path: &Path) -> PathBuf {
    runtime_file("attach", &path.to_string_lossy(), "log")
}

/// The control socket of the process that serves the attachment at `path`.
fn socket_of(path: &Path) -> PathBuf {
    runtime_file("attach", &path.to_string_lossy(), "sock")
}

fn record_of(path: &Path) -> PathBuf {
    runtime_file("attach", &path.to_string_lossy(), "json")
}

/// The absolute path of a file that need not exist. Only its parent directory is looked up:
/// a file system that is mounted at `path` may not respond.
///
/// # Errors
/// The path names no file, or its parent directory does not exist.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    let wrong = |e: &dyn std::fmt::Display| Error::invalid(format!("{}: {e}", path.display()));
    let name = path.file_name().ok_or_else(|| wrong(&"not the name of a file"))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(parent.canonicalize().map_err(|e| wrong(&e))?.join(name))
}

/// Where a record is written before it gets its name.
fn new_of(record: &Path) -> PathBuf {
    record.with_extension("new")
}

fn open(path: &Path) -> Result<LockedFile> {
    runtime::make()?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).map_err(|e| Error::failed(format!("{}: {e}", path.display())))?;
    Ok(file.into())
}

/// Opens and locks a file; `None` while another process has the lock. The last holder may have
/// removed the file between open and lock, so the lock counts only if the name still has that inode.
fn lock_exclusively(path: &Path) -> Result<Option<LockedFile>> {
    loop {
        let file = open(path)?;
        if file.try_lock().is_err() {
            return Ok(None);
        }
        if has_name(&file, path) {
            return Ok(Some(file));
        }
    }
}

/// Whether the file is the one at this path, and neither removed nor replaced.
fn has_name(file: &File, path: &Path) -> bool {
    let inode = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(file), Ok(named)) => inode(file) == inode(named),
        _ => false,
    }
}

/// The locked record of an attachment that this process serves; removed on drop.
#[derive(Debug)]
pub struct HeldRecord {
    record: PathBuf,
    file: LockedFile,
}

impl HeldRecord {
    /// Replaces the content of the record.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, record: &Attachment) -> Result<()> {
        let text = json!({
            "path": record.path, "devices": record.devices, "via": record.via, "size": record.size,
            "read_only": record.read_only, "pid": record.pid, "trouble": record.trouble,
        });
        // A reader finds the old record or the new one, whole, under the name: each in a file of its
        // own, locked before it gets the name.
        let new = new_of(&self.record);
        let replaced = || -> std::io::Result<LockedFile> {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            let mut file = LockedFile::from(file);
            file.try_lock()?;
            file.write_all(format!("{text}\n").as_bytes())?;
            std::fs::rename(&new, &self.record)?;
            Ok(file)
        };
        self.file =
            replaced().map_err(|e| Error::failed(format!("cannot write {}: {e}", self.record.display())))?;
        Ok(())
    }
}

impl Attachment {
    /// `healthy`, or the first word of the fault.
    pub fn health(&self) -> &str {
        self.trouble.as_deref().map_or("healthy", |why| why.split(':').next().unwrap_or_default())
    }

    /// Creates and locks the record, until the returned handle is dropped.
    ///
    /// # Errors
    /// Another process serves an attachment at this path ([`ErrorKind::Refused`]), or the file cannot
    /// be written.
    pub fn hold(&self) -> Result<HeldRecord> {
        let record = record_of(&self.path);
        let Some(file) = lock_exclusively(&record)? else {
            let why = format!("{}: something is attached there already", self.path.display());
            return Err(Error::new(ErrorKind::Refused, why));
        };
        let mut held = HeldRecord { record, file };
        held.write(self)?;
        Ok(held)
    }

    fn parse(text: &str) -> Option<Attachment> {
        let value: Value = serde_json::from_str(text).ok()?;
        let devices = value["devices"].as_array()?.iter().map(|name| name.as_str().map(str::to_owned));
        Some(Attachment {
            path: value["path"].as_str()?.into(),
            devices: devices.collect::<Option<_>>()?,
            via: value["via"].as_str()?.to_owned(),
            size: value["size"].as_u64()?,
            read_only: value["read_only"].as_bool()?,
            pid: value["pid"].as_u64()?.try_into().ok()?,
            trouble: value["trouble"].as_str().map(str::to_owned),
        })
    }

    fn read(path: &Path) -> Option<(Attachment, bool)> {
        loop {
            let mut file = LockedFile::from(File::open(path).ok()?);
            // The serving process holds the lock exclusively.
            let lives = file.try_lock_shared().is_err();
            let mut text = String::new();
            file.read_to_string(&mut text).ok()?;
            if lives || has_name(&file, path) {
                return Some((Attachment::parse(&text)?, lives));
            }
        }
    }

    /// All attachments of this user, and whether a process still serves each.
    pub fn all() -> Vec<(Attachment, bool)> {
        let entries = std::fs::read_dir(runtime::directory()).into_iter().flatten().flatten();
        let named = |path: &Path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.starts_with("attach-") && name.ends_with(".json")
        };
        let mut all: Vec<_> = entries
            .map(|entry| entry.path())
            .filter(|path| named(path))
            .filter_map(|path| Attachment::read(&path))
            .collect();
        all.sort_by(|a, b| a.0.path.cmp(&b.0.path));
        all
    }

    /// The attachment at `path`, and whether a process still serves it.
    pub fn find(path: &Path) -> Option<(Attachment, bool)> {
        Attachment::read(&record_of(path))
    }

    /// Removes the files that a killed process left.
    pub fn forget(path: &Path) {
        let record = record_of(path);
        for file in [new_of(&record), record, socket_of(path), log_of(path)] {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Drop for HeldRecord {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_records_are_parsed_and_others_rejected() {
        let text = r#"{"path":"/x","devices":["mem:1GiB"],"via":"fuse","size":5,"read_only":true,"pid":7}"#;
        let record = Attachment::parse(text).expect("a record");
        assert_eq!((record.path.as_path(), record.size, record.pid), (Path::new("/x"), 5, 7));
        assert!(record.read_only);
        for text in
            ["", "{}", r#"{"path":"/x","devices":[1],"via":"fuse","size":5,"read_only":true,"pid":7}"#]
        {
            assert_eq!(Attachment::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_lock_is_held_on_the_inode_that_has_the_name() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("record");
        let stop = std::sync::atomic::AtomicBool::new(false);
        // Each holder removes the file when it ends, as `HeldRecord` does.
        let holder = || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                if let Some(file) = lock_exclusively(&path).expect("opened") {
                    std::fs::remove_file(&path).expect("ours alone");
                    drop(file);
                }
            }
        };
        std::thread::scope(|scope| {
            let threads = [scope.spawn(holder), scope.spawn(holder), scope.spawn(holder)];
            std::thread::sleep(std::time::Duration::from_millis(300));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            for thread in threads {
                thread.join().expect("no holder removed the file of another one");
            }
        });
    }

    #[test]
    fn a_record_that_is_rewritten_is_there_at_all_times() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("attach-x.json");
        let file = lock_exclusively(&path).expect("opened").expect("locked");
        let mut held = HeldRecord { record: path.clone(), file };
        let text = r#"{"path":"/x","devices":["mem:1GiB"],"via":"fuse","size":5,"read_only":true,"pid":7}"#;
        let mut record = Attachment::parse(text).expect("a record");
        held.write(&record).expect("written");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..2000 {
                    record.trouble = (round % 2 == 0).then(|| format!("{round}: a fault with some text"));
                    held.write(&record).expect("written");
                }
                held
            });
            while !writer.is_finished() {
                let (found, lives) = Attachment::read(&path).expect("a whole record");
                assert!(lives && found.pid == 7, "{found:?}");
            }
            assert!(!new_of(&path).exists());
            drop(writer.join().expect("written"));
        });
        assert_eq!(Attachment::read(&path), None, "removed with its holder");
    }

    #[test]
    fn paths_are_made_absolute_without_being_looked_up() {
        let dir = tempfile::tempdir().expect("directory");
        let real = dir.path().canonicalize().expect("there");
        assert_eq!(absolute(&dir.path().join("disk")).expect("a path"), real.join("disk"));
        assert!(absolute(Path::new("/")).is_err());
        assert!(absolute(Path::new("/nonexistent/disk")).is_err());
    }
}
