//! Descriptors of directories, cached for one thread.
//!
//! Invariant: at most [`CACHED_DIRECTORIES`] are open at once.

use super::{Directory, Tree};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// Directory descriptors that a [`Walker`] caches: entries arrive directory by
/// directory, so a few are enough. 64 threads have 1,024 together.
const CACHED_DIRECTORIES: usize = 16;

/// Opens directories of a tree for one thread, and caches their descriptors.
#[derive(Debug)]
pub(crate) struct Walker {
    tree: Tree,
    known: HashMap<Vec<u8>, Arc<Directory>>,
}

impl Walker {
    pub(crate) fn new(tree: Tree) -> Walker {
        Walker { tree, known: HashMap::new() }
    }

    /// Opens the directory at `path`, creating it if it is missing.
    pub(crate) fn make(&mut self, path: &[u8]) -> io::Result<Arc<Directory>> {
        if let Some(fd) = self.known.get(path) {
            return Ok(Arc::clone(fd));
        }
        let fd = Arc::new(self.tree.make(path)?);
        if self.known.len() >= CACHED_DIRECTORIES {
            self.known.clear();
        }
        self.known.insert(path.to_vec(), Arc::clone(&fd));
        assert!(self.known.len() <= CACHED_DIRECTORIES, "{} directories are open", self.known.len());
        Ok(fd)
    }
}
