//! Writing a data set to a directory.

use super::DatasetPlan;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Bytes written in one call: large enough for full speed, small enough to
/// stay in the processor's cache between generation and write.
const PIECE: usize = 256 << 10;

/// The most threads; more do not make a local disk faster.
const MAX_THREADS: usize = 8;

/// Progress of writing a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of files that are complete.
    pub files: u64,
    /// Total number of files.
    pub files_total: u64,
    /// Bytes written so far.
    pub bytes: u64,
    /// Bytes of the whole data set.
    pub bytes_total: u64,
}

/// Why a data set was not written. Files written before are kept.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The file system has too little free space.
    #[error(
        "{dir} has {free} bytes free and {needed} are needed: choose a smaller scale or another directory"
    )]
    NoRoom {
        /// Directory of the data set.
        dir: PathBuf,
        /// Bytes that an ordinary user may still write there.
        free: u64,
        /// Bytes of the data set.
        needed: u64,
    },
    /// A system call failed.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Writes the files of `plan` under `dir`, which is created. Files of the same
/// name are overwritten. `progress` is called from several threads, about
/// every 256 KiB.
///
/// # Errors
/// The first error of any thread.
pub fn make(dir: &Path, plan: &DatasetPlan, progress: &(dyn Fn(Progress) + Sync)) -> Result<(), MakeError> {
    let wrong = |path: &Path, source| MakeError::Write { path: path.into(), source };
    fs::create_dir_all(dir).map_err(|e| wrong(dir, e))?;
    check_room(dir, plan.bytes())?;
    make_directories(dir, plan)?;
    let shared = MakeState {
        dir,
        plan,
        progress,
        next: AtomicUsize::new(0),
        files: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        total: plan.bytes(),
        error: Mutex::new(None),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(plan.files.len().max(1)) {
            scope.spawn(|| shared.work());
        }
    });
    match shared.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn check_room(dir: &Path, needed: u64) -> Result<(), MakeError> {
    // If statvfs(3) fails, the writes report the error.
    let Ok(stat) = rustix::fs::statvfs(dir) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if needed > free { Err(MakeError::NoRoom { dir: dir.into(), free, needed }) } else { Ok(()) }
}

/// Creates the directories; neighbours in the list share one, so each is created once.
fn make_directories(dir: &Path, plan: &DatasetPlan) -> Result<(), MakeError> {
    let mut last = None;
    for file in &plan.files {
        let parent = file.path.rsplit_once('/').map(|(parent, _)| parent);
        if let Some(parent) = parent
            && last != Some(parent)
        {
            let path = dir.join(parent);
            fs::create_dir_all(&path).map_err(|source| MakeError::Write { path, source })?;
            last = Some(parent);
        }
    }
    Ok(())
}

struct MakeState<'a> {
    dir: &'a Path,
    plan: &'a DatasetPlan,
    progress: &'a (dyn Fn(Progress) + Sync),
    next: AtomicUsize,
    files: AtomicU64,
    bytes: AtomicU64,
    stop: AtomicBool,
    total: u64,
    error: Mutex<Option<MakeError>>,
}

impl MakeState<'_> {
    fn work(&self) {
        let mut piece = vec![0; PIECE];
        while !self.stop.load(Relaxed) {
            let index = self.next.fetch_add(1, Relaxed);
            let Some(file) = self.plan.files.get(index) else { return };
            let path = self.dir.join(&file.path);
            if let Err(source) = self.write(index, &path, &mut piece) {
                self.stop.store(true, Relaxed);
                let mut error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
                error.get_or_insert(MakeError::Write { path, source });
                return;
            }
            self.files.fetch_add(1, Relaxed);
            self.report();
        }
    }

    fn write(&self, index: usize, path: &Path, piece: &mut [u8]) -> io::Result<()> {
        let size = self.plan.files[index].size;
        let mut file = File::create(path)?;
        let mut done = 0;
        while done < size && !self.stop.load(Relaxed) {
            let n = (size - done).min(PIECE as u64) as usize;
            self.plan.fill(index, done, &mut piece[..n]);
            file.write_all(&piece[..n])?;
            done += n as u64;
            self.bytes.fetch_add(n as u64, Relaxed);
            if done < size {
                self.report();
            }
        }
        Ok(())
    }

    fn report(&self) {
        (self.progress)(Progress {
            files: self.files.load(Relaxed),
            files_total: self.plan.files.len() as u64,
            bytes: self.bytes.load(Relaxed),
            bytes_total: self.total,
        });
    }
}
