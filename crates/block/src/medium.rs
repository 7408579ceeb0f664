//! The identity of a medium: a UUID that is made once and kept with the file or device.
//!
//! A regular file carries its UUID in an extended attribute, together with facts about the file
//! that a copy does not share (inode number, time of birth) and about the machine. Where a file
//! system has no extended attributes, and for block devices, the UUID is in a registry: a
//! directory of this machine with one small file for each medium, named by what identifies it.
//!
//! Invariants:
//! - a UUID is random, made once for a medium, and never a function of how the medium is named;
//! - a record that does not fit the medium which carries it belongs to another one: the medium
//!   was copied or moved, and counts as one without identity;
//! - looking changes nothing; only [`Medium::keep`] writes.

mod attribute;
mod hardware;
mod key;

pub use hardware::Hardware;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// A regular file or block device, and its identity as far as it is known.
#[derive(Debug)]
pub struct Medium {
    file: File,
    is_block: bool,
    size: u64,
    /// Device and inode number for a file, device number for a block device.
    node: (u64, u64),
    /// What a record of this medium is bound to.
    facts: Facts,
    /// Where a registry would keep it; `None` if nothing identifies the medium.
    entry: Option<PathBuf>,
    found: RecordMatch,
}

/// Facts about a medium that differ in any copy of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    /// Inode number on its file system.
    inode: u64,
    /// Time of birth in nanoseconds since 1970; 0 where the file system keeps none.
    born: u128,
    /// Board and network addresses of the machine.
    hardware: Hardware,
}

/// The result of comparing a medium with its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordMatch {
    Nothing,
    Own(Uuid),
    Foreign(Uuid),
}

/// What identifies a file or block device and no copy of it, for a record on the device itself; `None` if
/// nothing does that lasts.
///
/// # Errors
/// The file cannot be asked for its metadata.
pub fn lasting_identity(file: &File) -> io::Result<Option<String>> {
    Ok(key::lasting(&file.metadata()?))
}

impl Medium {
    /// Examines the file or block device at `path`; `None` if there is none, or a directory, say,
    /// which no back end opens. `registry` is the directory for media that cannot carry their
    /// record (it need not exist), `hardware` identifies this machine.
    ///
    /// # Errors
    /// The file cannot be opened for reading, or its attributes cannot be read.
    pub fn at(path: &Path, registry: &Path, hardware: &Hardware) -> io::Result<Option<Medium>> {
        // Without O_NONBLOCK the open of a FIFO would wait for its other end.
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = match opened {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let meta = file.metadata()?;
        let is_block = meta.file_type().is_block_device();
        if !is_block && !meta.is_file() {
            return Ok(None);
        }
        let born = meta.created().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let facts = Facts {
            inode: meta.ino(),
            born: born.map_or(0, |time| time.as_nanos()),
            hardware: hardware.clone(),
        };
        let key =
            if is_block { key::of_block(meta.rdev()) } else { key::of_file(path, facts.inode, facts.born) };
        let mut medium = Medium {
            size: if is_block { crate::file::size_of(&file, true)? } else { meta.len() },
            node: if is_block { (u64::MAX, meta.rdev()) } else { (meta.dev(), meta.ino()) },
            entry: key.map(|key| registry.join(key::file_name(&key))),
            file,
            is_block,
            facts,
            found: RecordMatch::Nothing,
        };
        medium.found = medium.look()?;
        Ok(Some(medium))
    }

    /// The UUID that was made for this medium, if one was.
    pub fn uuid(&self) -> Option<Uuid> {
        match self.found {
            RecordMatch::Own(uuid) => Some(uuid),
            RecordMatch::Nothing | RecordMatch::Foreign(_) => None,
        }
    }

    /// The UUID in a record that was made for another file, or on another machine: this one is a
    /// copy of that file, or that file was moved here.
    pub fn foreign(&self) -> Option<Uuid> {
        match self.found {
            RecordMatch::Foreign(uuid) => Some(uuid),
            RecordMatch::Nothing | RecordMatch::Own(_) => None,
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the medium is certainly without content: a file of which no part is allocated.
    pub fn is_empty(&self) -> bool {
        if self.is_block {
            return false;
        }
        // SAFETY: plain system call on an open file; the offset of this descriptor is not used.
        let data = unsafe { libc::lseek(self.file.as_raw_fd(), 0, libc::SEEK_DATA) };
        data < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO)
    }

    /// Whether both are the same file or device.
    pub fn is_same(&self, other: &Medium) -> bool {
        self.node == other.node
    }

    /// Makes `uuid` the identity of this medium.
    ///
    /// # Errors
    /// It can be kept neither with the file nor in the registry.
    pub fn keep(&mut self, uuid: Uuid) -> io::Result<()> {
        if self.found == RecordMatch::Own(uuid) {
            return Ok(());
        }
        let kept_with_file = !self.is_block && attribute::write(&self.file, &self.facts, uuid).is_ok();
        if !kept_with_file {
            let Some(entry) = &self.entry else {
                return Err(io::Error::other("the device has nothing that identifies it"));
            };
            key::write(entry, uuid)?;
        }
        self.found = RecordMatch::Own(uuid);
        Ok(())
    }

    fn look(&self) -> io::Result<RecordMatch> {
        if !self.is_block
            && let Some((uuid, facts)) = attribute::read(&self.file)?
        {
            return Ok(if facts.fits(&self.facts) {
                RecordMatch::Own(uuid)
            } else {
                RecordMatch::Foreign(uuid)
            });
        }
        let known = self.entry.as_deref().map(key::read).transpose()?.flatten();
        Ok(known.map_or(RecordMatch::Nothing, RecordMatch::Own))
    }
}

impl Facts {
    /// Whether a record with these facts was made for the medium that has the `other` ones.
    fn fits(&self, other: &Facts) -> bool {
        self.inode == other.inode
            && self.born == other.born
            && !self.hardware.is_another_machine(&other.hardware)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(name: &str) -> Hardware {
        Hardware::of([name])
    }

    fn at(path: &Path, hardware: &Hardware) -> Medium {
        let registry = path.with_file_name("registry");
        Medium::at(path, &registry, hardware).expect("looked at").expect("there")
    }

    #[test]
    fn an_identity_stays_with_its_file_and_does_not_go_to_a_copy() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, copy) = (dir.path().join("disk"), dir.path().join("copy"));
        fs::write(&path, "content").expect("written");
        let here = machine("a");
        let mut medium = at(&path, &here);
        assert_eq!((medium.uuid(), medium.foreign()), (None, None));
        let uuid = Uuid::new_v4();
        medium.keep(uuid).expect("kept");

        // Another name, another size: the same medium.
        fs::rename(&path, &copy).expect("renamed");
        fs::rename(&copy, &path).expect("renamed");
        File::options().write(true).open(&path).and_then(|file| file.set_len(1 << 20)).expect("grown");
        let again = at(&dir.path().join(".").join("disk"), &here);
        assert_eq!(again.uuid(), Some(uuid));
        assert!(again.is_same(&medium));

        // A copy with all attributes is another medium, and says whose record it carries.
        let copied = std::process::Command::new("cp").arg("-a").args([&path, &copy]).status();
        assert!(copied.expect("cp").success());
        let other = at(&copy, &here);
        assert_eq!(other.uuid(), None);
        assert!(!other.is_same(&medium));
    }

    #[test]
    fn a_record_of_another_machine_is_foreign() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("disk");
        fs::write(&path, "content").expect("written");
        let uuid = Uuid::new_v4();
        at(&path, &machine("a")).keep(uuid).expect("kept");
        if attribute::read(&File::open(&path).expect("opened")).expect("read").is_none() {
            longhaul_skip::skip!("needs a file system with user extended attributes for temporary files");
            return;
        }
        let clone = at(&path, &machine("b"));
        assert_eq!((clone.uuid(), clone.foreign()), (None, Some(uuid)));
        // A machine of which nothing is known cannot be distinguished from another.
        assert_eq!(at(&path, &Hardware::default()).uuid(), Some(uuid));
    }

    #[test]
    fn a_registry_keeps_what_a_file_cannot_carry() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("disk");
        fs::write(&path, "content").expect("written");
        let (one, two) = (key::of_file(&path, 1, 1), key::of_file(&path, 1, 2));
        let entry =
            |key: Option<String>| dir.path().join("registry").join(key::file_name(&key.expect("a key")));
        let uuid = Uuid::new_v4();
        key::write(&entry(one.clone()), uuid).expect("written");
        assert_eq!(key::read(&entry(one)).expect("read"), Some(uuid));
        assert_eq!(key::read(&entry(two)).expect("read"), None);
    }

    #[test]
    fn a_file_without_data_is_empty_whatever_its_size() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("disk");
        File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("made");
        assert!(at(&path, &machine("a")).is_empty());
        fs::write(&path, "content").expect("written");
        assert!(!at(&path, &machine("a")).is_empty());
        let missing = Medium::at(&dir.path().join("none"), dir.path(), &machine("a")).expect("looked");
        assert!(missing.is_none());
    }
}
