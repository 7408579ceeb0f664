//! Removal of many files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

/// Files that are removed at the same time. On a file system that discards blocks as they become free
/// (ext4 with `discard`), removing a file waits for the device.
const AT_ONCE: usize = 32;

/// Removes a directory with all below it, many files at a time. Symbolic links are not followed.
///
/// # Errors
/// Something in it cannot be removed.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let (found, files) = sync_channel::<PathBuf>(AT_ONCE);
    let files = Mutex::new(files);
    let next = || files.lock().unwrap_or_else(PoisonError::into_inner).recv();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Ok(file) = next() {
                    // What is left is reported below.
                    let _ = fs::remove_file(file);
                }
            });
        }
        find(path, &found);
        drop(found);
    });
    fs::remove_dir_all(path)
}

/// Sends all files below a directory. One that cannot be read is reported when it is removed.
fn find(path: &Path, found: &SyncSender<PathBuf>) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => find(&entry.path(), found),
            // The threads receive until the sender is dropped.
            _ => drop(found.send(entry.path())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_removed_and_links_are_not_followed() {
        let base = tempfile::tempdir().expect("a directory");
        let (tree, other) = (base.path().join("tree"), base.path().join("other"));
        fs::create_dir_all(tree.join("a/b")).expect("made");
        fs::create_dir(&other).expect("made");
        fs::write(other.join("kept"), b"x").expect("written");
        for number in 0..200 {
            fs::write(tree.join("a").join(number.to_string()), b"x").expect("written");
        }
        std::os::unix::fs::symlink(&other, tree.join("a/b/link")).expect("linked");
        remove_tree(&tree).expect("removed");
        assert!(!tree.exists() && other.join("kept").exists());
        assert_eq!(remove_tree(&tree).expect_err("gone").kind(), io::ErrorKind::NotFound);
    }
}
