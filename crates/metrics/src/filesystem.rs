//! Metrics of a mounted file system: a directory of another machine, or a file system in a pool.

use crate::families::{FS_CALL_ERRORS, FS_CALL_TIME, FS_CALLS_IN_FLIGHT, FS_READ, FS_TROUBLE, FS_WRITTEN};
use crate::page::Page;
use crate::server::Source;
use longhaul_engine::histogram::BOUNDS;
use longhaul_fs::{CallCounts, CallKind};

/// The metrics of one mount.
pub struct FileSystemSource {
    source: String,
    counts: Box<dyn Fn() -> CallCounts + Send + Sync>,
    trouble: Box<dyn Fn() -> bool + Send + Sync>,
}

impl FileSystemSource {
    /// Of the file system with the name `source`: what `counts` has counted, and whether something is wrong.
    pub fn new(
        source: String,
        counts: impl Fn() -> CallCounts + Send + Sync + 'static,
        trouble: impl Fn() -> bool + Send + Sync + 'static,
    ) -> FileSystemSource {
        FileSystemSource { source, counts: Box::new(counts), trouble: Box::new(trouble) }
    }
}

fn kind(kind: CallKind) -> &'static str {
    match kind {
        CallKind::Read => "read",
        CallKind::Write => "write",
        CallKind::Sync => "sync",
        CallKind::Look => "look",
        CallKind::Change => "change",
    }
}

impl Source for FileSystemSource {
    fn collect(&self, page: &mut Page) {
        let (source, counts) = (self.source.as_str(), (self.counts)());
        page.count(FS_READ, &[source], counts.bytes_read);
        page.count(FS_WRITTEN, &[source], counts.bytes_written);
        page.count(FS_CALLS_IN_FLIGHT, &[source], counts.in_flight);
        for ((of, calls), failed) in CallKind::ALL.into_iter().zip(&counts.calls).zip(counts.failed) {
            let labels = [source, kind(of)];
            page.histogram(FS_CALL_TIME, &labels, &BOUNDS, &calls.buckets, calls.time);
            page.count(FS_CALL_ERRORS, &labels, failed);
        }
        page.count(FS_TROUBLE, &[source], (self.trouble)().into());
    }
}

impl std::fmt::Debug for FileSystemSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileSystemSource({})", self.source)
    }
}
