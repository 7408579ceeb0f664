//! Destinations that fold case: two names of the source may be the same file there, and
//! the second must not silently overwrite the first.
//!
//! Invariant: of the names that the file system folds to one, only the first is accepted,
//! as far as folding to Unicode lower case detects them.

use super::Tree;
use crate::guard::lock;
use crate::wire::RelPath;
use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use xxhash_rust::xxh3::xxh3_128;

/// Names received so far, 32 bytes each: checksum of the exact name by that of the folded
/// name.
#[derive(Debug, Default)]
pub(crate) struct FoldedNames(Mutex<HashMap<u128, u128>>);

impl FoldedNames {
    /// Accepts a destination path, and remembers it.
    ///
    /// # Errors
    /// Another name that folds to the same one was accepted before.
    pub(crate) fn take(&self, path: &RelPath) -> io::Result<()> {
        let mut names = lock(&self.0);
        let exact = xxh3_128(path.as_bytes());
        if *names.entry(xxh3_128(&fold(path.as_bytes()))).or_insert(exact) == exact {
            return Ok(());
        }
        Err(io::Error::other(
            "the destination does not distinguish upper and lower case, and another name of the source is the same there",
        ))
    }
}

/// A name in folded form.
pub(crate) fn fold(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(text) => text.to_lowercase().into_bytes(),
        Err(_) => name.to_ascii_lowercase(),
    }
}

/// Whether a tree's file system folds case: the existing file `name`, which has lower-case
/// letters, is also found in upper case.
pub(crate) fn folds(tree: &Tree, name: &[u8]) -> bool {
    if tree.tells_names_apart() {
        return false;
    }
    let look = |name: &[u8]| tree.top().look(name);
    match (look(name), look(&name.to_ascii_uppercase())) {
        (Ok(one), Ok(other)) => one.identity() == other.identity(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_of_two_names_that_fold_to_one_is_refused() {
        let folded = FoldedNames::default();
        let take = |name: &[u8]| folded.take(&RelPath::new(name).expect("a good name"));
        for good in ["a/File", "a/file2", "b/File", "\u{c4}rger", "a/File"] {
            assert!(take(good.as_bytes()).is_ok(), "{good}");
        }
        for bad in ["a/FILE", "A/file2", "\u{e4}rger"] {
            assert!(take(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(take(b"\xffX").is_ok() && take(b"\xffx").is_err());
    }

    #[test]
    fn a_case_sensitive_file_system_does_not_fold() {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = Tree::open(dir.path()).expect("open");
        std::fs::write(dir.path().join("name"), "1").expect("written");
        assert!(!folds(&tree, b"name"));
        std::fs::write(dir.path().join("NAME"), "2").expect("written");
        assert!(!folds(&tree, b"name"), "another file");
    }
}
