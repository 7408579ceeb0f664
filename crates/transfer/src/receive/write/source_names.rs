//! Names of the source, which `--delete` keeps at the destination.
//!
//! Invariant: memory holds at most [`NAMES_MAX`] checksums; with more names the set is
//! incomplete, and nothing may be deleted.

use super::destination_tree::DestinationTree;
use crate::guard::lock;
use crate::wire::RelPath;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// The most source names remembered (1 GiB of memory).
const NAMES_MAX: usize = 32 << 20;

/// The names received so far, as checksums, if the copy deletes.
#[derive(Debug)]
pub(super) struct SourceNames {
    tree: Arc<DestinationTree>,
    names: Option<Mutex<NameSet>>,
}

#[derive(Debug, Default)]
struct NameSet {
    keys: HashSet<u128>,
    /// The source has more than [`NAMES_MAX`] names.
    overflow: bool,
}

impl SourceNames {
    pub(super) fn new(tree: Arc<DestinationTree>, delete: bool) -> SourceNames {
        SourceNames { tree, names: delete.then(Mutex::default) }
    }

    /// Remembers a name of the source.
    pub(super) fn add(&self, path: &RelPath) {
        let Some(names) = &self.names else { return };
        let key = self.tree.folded_key(path);
        let mut names = lock(names);
        if names.keys.len() < NAMES_MAX {
            names.keys.insert(key);
        } else {
            names.overflow = true;
        }
    }

    /// Whether the source has this name, or one that the destination folds to it.
    pub(super) fn has(&self, path: &RelPath) -> bool {
        let key = self.tree.folded_key(path);
        self.names.as_ref().is_none_or(|names| lock(names).keys.contains(&key))
    }

    /// Whether the source has more names than are remembered.
    pub(super) fn overflow(&self) -> bool {
        self.names.as_ref().is_some_and(|names| lock(names).overflow)
    }
}
