//! Hard links at the destination between files that are separate at the source.
//!
//! Invariant: of the names of such a file, the first that an existence query names keeps
//! the inode; the files of the others are resent.

use crate::guard::lock;
use crate::wire::RelPath;
use std::collections::HashMap;
use std::sync::Mutex;

/// The most files tracked (400 MB of memory); beyond them, hard links are kept.
const CLAIMS: usize = 8 << 20;

/// Names that keep an inode, as checksums, by device and inode.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<HashMap<(u64, u64), u128>>);

impl Claims {
    /// Claims the file (device and inode) for a name; false if another name has it.
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
