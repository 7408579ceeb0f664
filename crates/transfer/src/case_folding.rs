//! Destinations that do not tell upper from lower case: two names of the source
//! may be one there, and the second must not take the place of the first unseen.
//!
//! Invariant: of the names that are one to the file system, the first that came
//! is known, so far as folding by Unicode's lower case finds them out.

use crate::tree::Tree;
use crate::wire::RelPath;
use rustix::fs::AtFlags;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_128;

/// The names that came, 32 bytes each: checksums of what they are folded to, and
/// of what they are.
#[derive(Debug, Default)]
pub(crate) struct FoldedNames(Mutex<HashMap<u128, u128>>);

impl FoldedNames {
    /// Takes a name.
    ///
    /// # Errors
    /// It is another one of those that are the same to the file system.
    pub(crate) fn take(&self, path: &RelPath) -> io::Result<()> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let exact = xxh3_128(path.as_bytes());
        if *names.entry(xxh3_128(&fold(path.as_bytes()))).or_insert(exact) == exact {
            return Ok(());
        }
        Err(io::Error::other(
            "the destination does not tell upper from lower case, and another name of the source is the same there",
        ))
    }
}

/// What names that are one have in common.
pub(crate) fn fold(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(text) => text.to_lowercase().into_bytes(),
        Err(_) => name.to_ascii_lowercase(),
    }
}

/// Whether a tree's file system finds a file that is there, and has lower-case
/// letters in its name, under another.
pub(crate) fn folds(tree: &Tree, name: &[u8]) -> bool {
    let look =
        |name: &[u8]| rustix::fs::statat(tree.fd(), OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW);
    match (look(name), look(&name.to_ascii_uppercase())) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_of_two_names_that_are_one_is_found() {
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
    fn the_first_of_two_files_stays_and_the_second_is_told() {
        use crate::session::{JobResult, WriteJob};
        use crate::wire::{Batch, Content, Entry, EntryKind, Hash, Options};
        let dir = tempfile::tempdir().expect("a directory");
        let tree = Tree::open(dir.path()).expect("open");
        let mut writer =
            crate::write::Writer::new(tree, None, Options::default(), crate::Filter::default(), None, None);
        writer.folded = Some(FoldedNames::default());
        let mut batch = Batch::default();
        for (name, data) in [("File", b"1"), ("file", b"2"), ("other", b"3")] {
            let entry = Entry::plain(name, EntryKind::File, 1);
            batch.push(&entry, &Content::Inline { len: 1, digest: Hash::Quick.of(data) }, data);
        }
        let JobResult::Batch(counts, troubles) =
            writer.run(WriteJob::Batch(batch.into_body()), &mut writer.walker())
        else {
            panic!("a batch is done as one");
        };
        let told: Vec<_> = troubles.iter().map(|trouble| trouble.path.to_string()).collect();
        assert_eq!((counts.files, told), (2, vec!["file".to_owned()]));
        assert_eq!(std::fs::read(dir.path().join("File")).expect("there"), b"1");
        assert!(!dir.path().join("file").exists());
    }

    #[test]
    fn a_file_system_that_tells_them_apart_does_not_fold() {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = Tree::open(dir.path()).expect("open");
        std::fs::write(dir.path().join("name"), "1").expect("written");
        assert!(!folds(&tree, b"name"));
        std::fs::write(dir.path().join("NAME"), "2").expect("written");
        assert!(!folds(&tree, b"name"), "another file");
    }
}
