//! The destination of a receiving session: a directory tree, or nothing. Another kind of
//! destination is another variant of [`Destination`].

use super::allow_list::AllowList;
use super::journal::Journal;
use super::manifest::Manifest;
use super::null_sink::{NullSink, is_null_sink};
use super::write::{Grant, Withheld, WriteSpec, Writer};
use crate::session::{JobResult, Violation, WriteJob};
use crate::tree::filter::Filter;
use crate::tree::root::Root;
use crate::tree::{Walker, say};
use crate::wire::{Hash, Planned, Refusal, RefusalKind, Request};
use std::io;
use std::sync::Arc;

/// Carries out the jobs of a receiver.
#[derive(Debug)]
pub(crate) enum Destination {
    /// Writes files below a directory.
    Tree(Box<Writer>),
    /// Verifies data and discards it.
    NullSink(NullSink),
}

impl Destination {
    /// Opens the destination of a session. With `pulls` it accepts only names that the request
    /// lists, since this side made the request. `grant` is the metadata that the sender may
    /// set.
    ///
    /// # Errors
    /// The destination cannot be used.
    pub(crate) fn open(
        root: &Root,
        request: &Request,
        pulls: bool,
        grant: Grant,
    ) -> Result<Arc<Destination>, Refusal> {
        if is_null_sink(&request.destination) {
            return Ok(Arc::new(Destination::NullSink(NullSink { hash: request.options.hash })));
        }
        let listed = !request.manifest.is_empty();
        if listed && request.options.hash != Hash::Strong {
            return Err(Refusal::new(RefusalKind::Protocol, "a manifest takes BLAKE3 as checksum"));
        }
        let filter = Filter::new(&request.filters).map_err(|e| Refusal::new(RefusalKind::Failed, e))?;
        let mut options = request.options;
        let withheld = Withheld::new(grant, &mut options);
        let destination = root.destination(request)?;
        let journal = match options.dry_run {
            true => None,
            false => Some(Journal::open(&destination.base, request.key).map_err(|e| {
                let kind = match e.kind() {
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                        RefusalKind::NotAllowed
                    }
                    io::ErrorKind::WouldBlock => RefusalKind::Busy,
                    _ => RefusalKind::Failed,
                };
                Refusal::new(kind, format_args!("the destination cannot be written to: {}", say(&e)))
            })?),
        };
        let within = destination.rename.as_deref();
        let manifest = || Manifest::begin(&destination.base, within, &request.manifest, request.key);
        let manifest = (listed && !options.dry_run).then(manifest).transpose();
        let named = |e| {
            Refusal::new(RefusalKind::Failed, format_args!("the manifest cannot be written: {}", say(&e)))
        };
        let manifest = manifest.map_err(named)?;
        let allow_list = pulls.then(|| AllowList::new(request, filter.clone()));
        let spec = WriteSpec { destination, options, filter, journal, manifest, allow_list, withheld };
        Ok(Arc::new(Destination::Tree(Box::new(Writer::new(spec)))))
    }

    /// Whether an earlier run of this copy was interrupted.
    pub(crate) fn resumes(&self) -> bool {
        matches!(self, Destination::Tree(writer) if writer.resumes())
    }

    /// Whether the machine rebooted since that run.
    pub(crate) fn by_content(&self) -> bool {
        matches!(self, Destination::Tree(writer) if writer.by_content())
    }

    /// Device and inode of the destination directory.
    pub(crate) fn base(&self) -> Option<(u64, u64)> {
        match self {
            Destination::Tree(writer) => writer.base(),
            Destination::NullSink(_) => None,
        }
    }

    /// Whether a write failed with a full or read-only file system.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Destination::Tree(writer) if writer.is_full())
    }

    /// Why nothing more can be written, after a failure.
    pub(crate) fn failure(&self) -> Option<String> {
        match self {
            Destination::Tree(writer) => writer.failure(),
            Destination::NullSink(_) => None,
        }
    }

    /// The protocol violation that ends the session, if the sender committed one.
    pub(crate) fn violation(&self) -> Option<Violation> {
        match self {
            Destination::Tree(writer) => writer.violation(),
            Destination::NullSink(_) => None,
        }
    }

    /// Takes the dry-run actions recorded since the last call.
    pub(crate) fn take_planned(&self) -> Vec<Planned> {
        match self {
            Destination::Tree(writer) => writer.take_planned(),
            Destination::NullSink(_) => Vec::new(),
        }
    }

    /// A directory cache for one writer thread.
    pub(crate) fn walker(&self) -> Option<Walker> {
        match self {
            Destination::Tree(writer) => Some(writer.walker()),
            Destination::NullSink(_) => None,
        }
    }

    /// Carries out a job; `walker` is this thread's, from [`walker`](Self::walker).
    pub(crate) fn run(&self, job: WriteJob, walker: &mut Option<Walker>) -> JobResult {
        match self {
            Destination::Tree(writer) => writer.run(job, walker.get_or_insert_with(|| writer.walker())),
            Destination::NullSink(nowhere) => nowhere.run(job),
        }
    }
}
