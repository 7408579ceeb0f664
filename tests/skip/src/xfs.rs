//! A file system whose files share blocks.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// An empty XFS made with `reflink=1`, in a file, mounted until this is dropped.
#[derive(Debug)]
pub struct Xfs {
    at: TempDir,
    _image: TempDir,
}

fn run(program: &str, args: &[&OsStr]) -> Result<(), String> {
    let ran = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    let why = || format!("{program}: {}", String::from_utf8_lossy(&ran.stderr));
    if ran.status.success() { Ok(()) } else { Err(why()) }
}

impl Xfs {
    /// One of `bytes`, 300 MiB at least. `None`, with the reason on standard error, where it cannot be made or
    /// mounted: that takes root, a loop device and mkfs.xfs.
    ///
    /// # Panics
    /// If there is no room for temporary files.
    pub fn mounted(bytes: u64) -> Option<Xfs> {
        let directory = || tempfile::tempdir().expect("a directory");
        let (at, image) = (directory(), directory());
        let file = image.path().join("xfs");
        File::create(&file).and_then(|file| file.set_len(bytes)).expect("a file");
        let (make, mount) = (["-q", "-m", "reflink=1"].map(OsStr::new), ["-o", "loop"].map(OsStr::new));
        let mounted = run("mkfs.xfs", &[&make[..], &[file.as_ref()]].concat())
            .and_then(|()| run("mount", &[&mount[..], &[file.as_ref(), at.path().as_ref()]].concat()));
        match mounted {
            Ok(()) => Some(Xfs { at, _image: image }),
            Err(why) => {
                crate::skip!("{why}");
                None
            }
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.at.path()
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        // Of processes that a test has not ended something is left, which it has reported.
        let _ = Command::new("umount").arg("--lazy").arg(self.at.path()).status();
    }
}
