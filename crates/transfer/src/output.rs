//! Where a session's data goes.

use crate::session::{JobResult, Violation, WriteJob};
use crate::synthetic::NullSink;
use crate::tree::Walker;
use crate::wire::Planned;
use crate::write::Writer;

/// What does the jobs of a receiving side.
#[derive(Debug)]
pub(crate) enum Output {
    /// Files below a directory.
    Tree(Box<Writer>),
    /// Checked, and thrown away.
    NullSink(NullSink),
}

impl Output {
    /// Whether a run before this one was cut off.
    pub(crate) fn resumes(&self) -> bool {
        matches!(self, Output::Tree(writer) if writer.resumes())
    }

    /// Whether that was before the machine was started anew.
    pub(crate) fn by_content(&self) -> bool {
        matches!(self, Output::Tree(writer) if writer.by_content())
    }

    /// The directory that everything goes into, by device and inode.
    pub(crate) fn base(&self) -> Option<(u64, u64)> {
        match self {
            Output::Tree(writer) => {
                let stat = rustix::fs::fstat(writer.base.fd()).ok()?;
                Some((stat.st_dev, stat.st_ino))
            }
            Output::NullSink(_) => None,
        }
    }

    /// Whether something failed that makes it useless to go on.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Output::Tree(writer) if writer.is_full())
    }

    /// What the sending side may not do and did.
    pub(crate) fn violation(&self) -> Option<Violation> {
        match self {
            Output::Tree(writer) => writer.violation(),
            Output::NullSink(_) => None,
        }
    }

    /// What would be done, of what was found out since this was last called.
    pub(crate) fn take_planned(&self) -> Vec<Planned> {
        match self {
            Output::Tree(writer) => writer.take_planned(),
            Output::NullSink(_) => Vec::new(),
        }
    }

    /// A way through the tree, for one thread.
    pub(crate) fn walker(&self) -> Option<Walker> {
        match self {
            Output::Tree(writer) => Some(writer.walker()),
            Output::NullSink(_) => None,
        }
    }

    /// Does a job; `walker` is what [`walker`](Self::walker) gave to this thread.
    pub(crate) fn run(&self, job: WriteJob, walker: &mut Option<Walker>) -> JobResult {
        match self {
            Output::Tree(writer) => writer.run(job, walker.get_or_insert_with(|| writer.walker())),
            Output::NullSink(nowhere) => nowhere.run(job),
        }
    }
}
