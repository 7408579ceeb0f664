//! A directory of keys as one archive of tar, which is kept in memory: what a service manager or the kernel keeps for
//! the program.

use super::{EXPORTS, FILE_MAX, HOSTS};
use crate::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use zeroize::Zeroizing;

/// Most bytes of an archive: as many as systemd passes to a service (systemd.exec(5), "Credentials").
pub(super) const PACKED_MAX: u64 = 1 << 20;

/// The files of an archive, by their paths in the directory.
pub(super) struct Packed {
    /// Where the archive comes from, for messages.
    pub(super) name: String,
    files: BTreeMap<PathBuf, Zeroizing<String>>,
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packed({}, {} files)", self.name, self.files.len())
    }
}

impl Packed {
    /// Reads an archive.
    ///
    /// # Errors
    /// It is no archive of tar, or has something else than files of keys.
    pub(super) fn read(name: String, archive: &[u8]) -> Result<Packed> {
        let wrong = |why: &dyn std::fmt::Display| {
            Error::invalid(format!(
                "cannot read keys: {name}: {why}; it has to be an archive of a directory of keys: 'tar -C DIR -c .'"
            ))
        };
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().map_err(|e| wrong(&e))? {
            let mut entry = entry.map_err(|e| wrong(&e))?;
            let path = entry.path().map_err(|e| wrong(&e))?.into_owned();
            let parts: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
            let is_plain = parts.components().all(|part| matches!(part, Component::Normal(_)));
            match entry.header().entry_type() {
                tar::EntryType::Directory => {}
                tar::EntryType::Regular if is_plain => {
                    // No larger than it may be: a copy of a longer one would be left where the text was before.
                    let mut text = Zeroizing::new(String::with_capacity(FILE_MAX as usize));
                    entry.by_ref().take(FILE_MAX).read_to_string(&mut text).map_err(|e| wrong(&e))?;
                    files.insert(parts, text);
                }
                _ => return Err(wrong(&format_args!("{} is no file of keys", path.display()))),
            }
        }
        if files.is_empty() {
            return Err(wrong(&"it has no files"));
        }
        Ok(Packed { name, files })
    }

    /// The text of a file; none if there is no such file.
    pub(super) fn text(&self, path: &Path) -> Option<&Zeroizing<String>> {
        self.files.get(path)
    }

    /// Whether there are files below a directory.
    pub(super) fn has(&self, dir: &Path) -> bool {
        self.files.keys().any(|path| path != dir && path.starts_with(dir))
    }

    /// Names in a directory.
    fn names(&self, dir: &Path) -> BTreeSet<&Path> {
        let below = self.files.keys().filter_map(|path| path.strip_prefix(dir).ok());
        below.filter_map(|path| path.iter().next().map(Path::new)).collect()
    }

    /// Directories of hosts, of all exports and of single ones.
    pub(super) fn hosts(&self) -> Vec<PathBuf> {
        let exports = Path::new(EXPORTS);
        let of_exports = self.names(exports).into_iter().map(|name| exports.join(name).join(HOSTS));
        let all = std::iter::once(PathBuf::from(HOSTS)).chain(of_exports);
        all.flat_map(|dir| self.names(&dir).into_iter().map(move |name| dir.join(name)).collect::<Vec<_>>())
            .collect()
    }

    /// Exports that have keys of their own.
    pub(super) fn exports(&self) -> Vec<String> {
        self.names(Path::new(EXPORTS)).into_iter().map(|name| name.to_string_lossy().into_owned()).collect()
    }
}
