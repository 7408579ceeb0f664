//! The generated files: out of the page cache, and looked up.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Threads that evict files from the page cache, since opening a file may take long.
const FORGETTING: usize = 16;

/// Flushes files, and evicts them from the page cache, so that a copy reads from the storage.
/// Failures are ignored: the files stay cached.
pub(super) fn forget(dir: &Path) {
    let files: Vec<PathBuf> = walk(dir).collect();
    std::thread::scope(|scope| {
        for share in files.chunks(files.len().div_ceil(FORGETTING).max(1)) {
            scope.spawn(move || {
                for file in share.iter().filter_map(|path| fs::File::open(path).ok()) {
                    let _ = file.sync_data();
                    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                }
            });
        }
    });
}

/// The files below a directory.
fn walk(dir: &Path) -> Box<dyn Iterator<Item = PathBuf>> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    Box::new(entries.flat_map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => walk(&entry.path()),
        _ => Box::new(std::iter::once(entry.path())),
    }))
}

/// Mean seconds of a `stat` of a file below `dir`.
pub(super) fn lookup(dir: &Path) -> Option<f64> {
    let files: Vec<PathBuf> = walk(dir).collect();
    let began = Instant::now();
    let known = files.iter().filter(|path| path.symlink_metadata().is_ok()).count();
    (known > 0).then(|| began.elapsed().as_secs_f64() / known as f64)
}
