//! Files of several names at the destination that are several files at the source.
//!
//! Invariant: of all names that one file has here and that are files of their own at the
//! source, the first that is asked about keeps it; the others get a file of their own.

use super::lock;
use crate::wire::RelPath;
use std::collections::HashMap;
use std::sync::Mutex;

/// Files that are remembered: 400 MB of them. What comes behind that stays as it is.
const CLAIMS: usize = 8 << 20;

/// Which name has which file of several names.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<HashMap<(u64, u64), u128>>);

impl Claims {
    /// Whether the file (device and inode) may stay under this name.
    pub(super) fn claim(&self, file: (u64, u64), path: &RelPath) -> bool {
        let name = xxhash_rust::xxh3::xxh3_128(path.as_bytes());
        let mut claims = lock(&self.0);
        match claims.get(&file) {
            Some(first) => *first == name,
            None => {
                if claims.len() < CLAIMS {
                    claims.insert(file, name);
                }
                true
            }
        }
    }
}
