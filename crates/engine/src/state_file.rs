//! Small files that are replaced as a whole: records, settings, results.
//!
//! Invariants:
//! - after a crash at any step the file has its old content or the new one, whole: the new content
//!   is durable under another name before the rename;
//! - once [`replace`] or [`remove`] has returned, a crash does not bring the old content back: the
//!   directory is made durable after the rename, or the removal.
//!
//! A crash may leave the file with the other name behind: it is that of the file with
//! `.new-PID-NUMBER` at the end.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Replaces a file, or makes it; its directory exists. Blocks until it is durable. Of several calls at
/// a time, each content is whole, and one of them is the last.
///
/// # Errors
/// Of the file system. The old content stays, except if the directory could not be made durable:
/// then a crash may bring it back.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_by(&mut FileSystem, path, content)
}

/// Removes a file; a missing one is no error. Blocks until the removal is durable.
///
/// # Errors
/// Of the file system.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => FileSystem.sync_directory(parent(path)?),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// The steps of a replacement. One interface, so that a test can end it at each of them.
trait ReplaceSteps {
    /// Writes a whole new file.
    fn write(&mut self, path: &Path, content: &[u8]) -> io::Result<File>;
    /// Makes the content of a file durable.
    fn sync_file(&mut self, file: &File) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&mut self, directory: &Path) -> io::Result<()>;
    /// Removes an incomplete file.
    fn discard(&mut self, path: &Path);
}

fn replace_by(steps: &mut impl ReplaceSteps, path: &Path, content: &[u8]) -> io::Result<()> {
    let (directory, new) = (parent(path)?, new_name(path));
    let renamed = steps.write(&new, content).and_then(|file| {
        steps.sync_file(&file)?;
        steps.rename(&new, path)
    });
    if let Err(e) = renamed {
        steps.discard(&new);
        return Err(e);
    }
    steps.sync_directory(directory)
}

/// The directory of a file; `.` for a bare name.
fn parent(path: &Path) -> io::Result<&Path> {
    let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

/// A name in the directory of `path` that no other call uses.
fn new_name(path: &Path) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut name = OsString::from(path);
    name.push(format!(".new-{}-{number}", std::process::id()));
    name.into()
}

struct FileSystem;

impl ReplaceSteps for FileSystem {
    fn write(&mut self, path: &Path, content: &[u8]) -> io::Result<File> {
        let mut file = File::create(path)?;
        file.write_all(content)?;
        Ok(file)
    }

    fn sync_file(&mut self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_directory(&mut self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn discard(&mut self, path: &Path) {
        // An incomplete file is of no use; an error in removing it is ignored.
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file system, which records the steps and ends at one of them. Where the machine has
    /// crashed nothing is cleaned up.
    struct EndsAt {
        step: usize,
        is_crash: bool,
        steps: Vec<&'static str>,
    }

    impl EndsAt {
        fn next(&mut self, name: &'static str) -> io::Result<()> {
            if self.steps.len() == self.step {
                return Err(io::Error::other(name));
            }
            self.steps.push(name);
            Ok(())
        }
    }

    impl ReplaceSteps for EndsAt {
        fn write(&mut self, path: &Path, content: &[u8]) -> io::Result<File> {
            if let Err(e) = self.next("write") {
                // It ends half-way.
                FileSystem.write(path, &content[..content.len() / 2])?;
                return Err(e);
            }
            FileSystem.write(path, content)
        }

        fn sync_file(&mut self, file: &File) -> io::Result<()> {
            self.next("sync file")?;
            FileSystem.sync_file(file)
        }

        fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
            self.next("rename")?;
            FileSystem.rename(from, to)
        }

        fn sync_directory(&mut self, directory: &Path) -> io::Result<()> {
            self.next("sync directory")?;
            FileSystem.sync_directory(directory)
        }

        fn discard(&mut self, path: &Path) {
            if !self.is_crash {
                FileSystem.discard(path);
            }
        }
    }

    const STEPS: [&str; 4] = ["write", "sync file", "rename", "sync directory"];

    #[test]
    fn content_is_durable_before_the_name_and_the_name_before_the_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("record.json");
        let mut all = EndsAt { step: usize::MAX, is_crash: false, steps: Vec::new() };
        replace_by(&mut all, &path, b"content").expect("replaced");
        assert_eq!(all.steps, STEPS);
        assert_eq!(std::fs::read(&path).expect("read"), b"content");
    }

    #[test]
    fn a_crash_at_any_step_leaves_the_old_content_or_the_new_one() {
        for (step, name) in STEPS.iter().enumerate() {
            for is_crash in [true, false] {
                let dir = tempfile::tempdir().expect("a directory");
                let path = dir.path().join("record.json");
                replace(&path, b"old").expect("written");
                let mut some = EndsAt { step, is_crash, steps: Vec::new() };
                let e = replace_by(&mut some, &path, b"new content").expect_err("ended");
                assert_eq!((e.to_string().as_str(), &some.steps[..]), (*name, &STEPS[..step]));
                let expected: &[u8] = if *name == "sync directory" { b"new content" } else { b"old" };
                assert_eq!(std::fs::read(&path).expect("read"), expected, "ended at: {name}");
                let files = std::fs::read_dir(dir.path()).expect("read").count();
                let is_left = is_crash && ["write", "sync file", "rename"].contains(name);
                assert_eq!(files, if is_left { 2 } else { 1 }, "ended at: {name}");
                // The next replacement is not hindered by what was left.
                replace(&path, b"next").expect("written");
                assert_eq!(std::fs::read(&path).expect("read"), b"next");
            }
        }
    }

    #[test]
    fn a_removal_of_a_missing_file_is_no_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("record.json");
        remove(&path).expect("nothing to remove");
        replace(&path, b"x").expect("written");
        remove(&path).expect("removed");
        assert!(!path.exists());
        assert!(replace(Path::new("/"), b"x").is_err());
    }
}
