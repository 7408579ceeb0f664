//! Admission of entries: the names and the metadata that a receiver accepts of its sender.
//!
//! Invariants:
//! - no entry that is not on the allow-list reaches the file system, and the first such
//!   entry ends the session;
//! - `is_whole` is false as soon as part of a batch was not parsed: the names of the
//!   source are then incomplete, and nothing may be deleted.

use super::grant::Withheld;
use crate::receive::allow_list::AllowList;
use crate::session::Violation;
use crate::wire::{Entry, RelPath, Trouble};
use std::borrow::Cow;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Decides which entries of a session are written, and with which attributes.
#[derive(Debug)]
pub(super) struct Admission {
    /// Names that the receiver accepts, if it requested the copy itself (a pull).
    allow_list: Option<AllowList>,
    /// The request asks for extended attributes.
    xattrs: bool,
    /// Metadata that the sender may not set.
    withheld: Withheld,
    /// The first entry received that is not on the allow-list.
    rejected: OnceLock<RelPath>,
    whole: AtomicBool,
}

impl Admission {
    pub(super) fn new(allow_list: Option<AllowList>, xattrs: bool, withheld: Withheld) -> Admission {
        Admission { allow_list, xattrs, withheld, rejected: OnceLock::new(), whole: AtomicBool::new(true) }
    }

    /// Checks an entry against the allow-list.
    ///
    /// # Errors
    /// The entry is not on the list; [`violation`](Self::violation) then ends the session.
    pub(super) fn admit(&self, entry: &Entry) -> io::Result<()> {
        if self.allow_list.as_ref().is_none_or(|list| list.has(entry)) {
            return Ok(());
        }
        // The rest of its batch is not parsed.
        self.leave_out();
        // Only the first rejected entry is kept.
        let _ = self.rejected.set(entry.path.clone());
        Err(io::Error::other("rejected: this side did not request it"))
    }

    /// Records that part of a batch was not parsed.
    pub(super) fn leave_out(&self) {
        self.whole.store(false, Relaxed);
    }

    /// Whether all batches were parsed to their ends.
    pub(super) fn is_whole(&self) -> bool {
        self.whole.load(Relaxed)
    }

    /// The protocol violation that ends the session, if the sender committed one.
    pub(super) fn violation(&self) -> Option<Violation> {
        self.rejected.get().map(|path| Violation::NotRequested(path.to_string()))
    }

    /// The report of withheld metadata for the end of the session.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        self.withheld.trouble()
    }

    /// Removes extended attributes that the request does not ask for, or that are withheld.
    pub(super) fn strip_xattrs(&self, entry: &mut Entry) {
        match self.xattrs {
            true => self.withheld.strip_lists(entry),
            false => entry.xattrs.clear(),
        }
    }

    /// As [`strip_xattrs`](Self::strip_xattrs), for a shared entry.
    pub(super) fn without_xattrs<'a>(&self, entry: &'a Entry) -> Cow<'a, Entry> {
        if entry.xattrs.is_empty() {
            return Cow::Borrowed(entry);
        }
        let mut entry = entry.clone();
        self.strip_xattrs(&mut entry);
        Cow::Owned(entry)
    }
}
