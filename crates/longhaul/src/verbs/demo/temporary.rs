//! Temporary directories, removed also if a signal ends the demo.

use crate::exit::{Exit, Failure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Existing directories, which the signal handler removes.
static THERE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A temporary directory, removed on drop.
#[derive(Debug)]
pub(super) struct TemporaryDir(PathBuf);

impl TemporaryDir {
    /// Creates a directory with `name` in its name below that for temporary files.
    pub(super) fn make(name: &str) -> Result<TemporaryDir, Failure> {
        let path = std::env::temp_dir().join(format!("longhaul-{name}-{}", std::process::id()));
        let fail = |e| Failure::failed(format!("cannot make {}: {e}", path.display()));
        let mut there = THERE.lock().unwrap_or_else(PoisonError::into_inner);
        if there.is_empty() {
            remove_on_signal()?;
        }
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
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a thread that removes the directories and exits on a signal.
fn remove_on_signal() -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(Failure::failed)?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            for path in THERE.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                let _ = fs::remove_dir_all(path);
            }
            std::process::exit(Exit::Failed as i32);
        }
    });
    Ok(())
}
