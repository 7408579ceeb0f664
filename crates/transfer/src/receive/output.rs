//! The output of a receiving session: a directory tree, or nothing.

use super::write::Writer;
use crate::session::{JobResult, Violation, WriteJob};
use crate::synthetic::NullSink;
use crate::tree::Walker;
use crate::wire::Planned;

/// Carries out the jobs of a receiver.
#[derive(Debug)]
pub(crate) enum Output {
    /// Writes files below a directory.
    Tree(Box<Writer>),
    /// Verifies data and discards it.
    NullSink(NullSink),
}

impl Output {
    /// Whether an earlier run of this copy was interrupted.
    pub(crate) fn resumes(&self) -> bool {
        matches!(self, Output::Tree(writer) if writer.resumes())
    }

    /// Whether the machine rebooted since that run.
    pub(crate) fn by_content(&self) -> bool {
        matches!(self, Output::Tree(writer) if writer.by_content())
    }

    /// Device and inode of the destination directory.
    pub(crate) fn base(&self) -> Option<(u64, u64)> {
        match self {
            Output::Tree(writer) => {
                let stat = rustix::fs::fstat(writer.base.fd()).ok()?;
                Some((stat.st_dev, stat.st_ino))
            }
            Output::NullSink(_) => None,
        }
    }

    /// Whether a write failed with a full or read-only file system.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Output::Tree(writer) if writer.is_full())
    }

    /// The protocol violation that ends the session, if the sender committed one.
    pub(crate) fn violation(&self) -> Option<Violation> {
        match self {
            Output::Tree(writer) => writer.violation(),
            Output::NullSink(_) => None,
        }
    }

    /// Takes the dry-run actions recorded since the last call.
    pub(crate) fn take_planned(&self) -> Vec<Planned> {
        match self {
            Output::Tree(writer) => writer.take_planned(),
            Output::NullSink(_) => Vec::new(),
        }
    }

    /// A directory cache for one writer thread.
    pub(crate) fn walker(&self) -> Option<Walker> {
        match self {
            Output::Tree(writer) => Some(writer.walker()),
            Output::NullSink(_) => None,
        }
    }

    /// Carries out a job; `walker` is this thread's, from [`walker`](Self::walker).
    pub(crate) fn run(&self, job: WriteJob, walker: &mut Option<Walker>) -> JobResult {
        match self {
            Output::Tree(writer) => writer.run(job, walker.get_or_insert_with(|| writer.walker())),
            Output::NullSink(nowhere) => nowhere.run(job),
        }
    }
}
