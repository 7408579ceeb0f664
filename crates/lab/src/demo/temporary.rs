//! Temporary directories.

use crate::Error;
use crate::removal::remove_tree;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Those made so far.
static THERE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A temporary directory, removed on drop.
#[derive(Debug)]
pub(super) struct TemporaryDir(PathBuf);

impl TemporaryDir {
    /// Creates a directory with `name` in its name below that for temporary files.
    pub(super) fn make(name: &str) -> Result<TemporaryDir, Error> {
        let path = std::env::temp_dir().join(format!("longhaul-{name}-{}", std::process::id()));
        let fail = |e| Error::failed(format!("cannot make {}: {e}", path.display()));
        let mut there = THERE.lock().unwrap_or_else(PoisonError::into_inner);
        fs::create_dir(&path).map_err(fail)?;
        there.push(path.clone());
        Ok(TemporaryDir(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        let _ = remove_tree(&self.0);
    }
}

/// Removes the temporary directories of this process, for a program that a signal ends.
pub fn remove_temporary() {
    for path in THERE.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let _ = fs::remove_dir_all(path);
    }
}
