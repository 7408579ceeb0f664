//! Owners, privileges and access control lists of written files: what a sender may set.
//!
//! Invariants:
//! - with [`Grant::Content`] no object gets an owner, a set-user-ID or set-group-ID bit
//!   or an access control list that a sender has chosen, whatever the request says;
//! - the session reports once what the request asked for and the receiver withheld.

use crate::tree::{ACCESS_LIST, is_access_list};
use crate::wire::{Entry, Op, Options, RelPath, Trouble};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Metadata that a sender may set beyond permission bits, times and `user.*` attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Owner, set-user-ID and set-group-ID bits with [`Options::owner`]; access control
    /// lists with [`Options::xattrs`].
    FileIdentity,
    /// Nothing more: files belong to the user that the receiver runs as, and a program
    /// among them gains no privileges when it is executed.
    #[default]
    Content,
}

/// Metadata that one session withholds from its sender.
#[derive(Debug, Default)]
pub(crate) struct Withheld {
    grant: Grant,
    /// The request asks for owners, and does not get them.
    owner: bool,
    /// An access control list was received and left out.
    lists: AtomicBool,
}

impl Withheld {
    /// Clears options of a request that `grant` does not cover.
    pub(crate) fn new(grant: Grant, options: &mut Options) -> Withheld {
        let owner = options.owner && grant == Grant::Content;
        options.owner &= !owner;
        Withheld { grant, owner, lists: AtomicBool::new(false) }
    }

    /// Whether access control lists are set.
    pub(super) fn takes_lists(&self) -> bool {
        self.grant == Grant::FileIdentity
    }

    /// Removes access control lists from an entry.
    pub(super) fn strip_lists(&self, entry: &mut Entry) {
        if self.takes_lists() || !entry.xattrs.iter().any(|(name, _)| is_access_list(name)) {
            return;
        }
        self.lists.store(true, Relaxed);
        if entry.xattrs.iter().any(|(name, _)| **name == *ACCESS_LIST) {
            // With an access list these bits are its mask, not the permissions of the group.
            entry.mode &= !0o070;
        }
        entry.xattrs.retain(|(name, _)| !is_access_list(name));
    }

    /// The report for the end of the session, if anything was withheld.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        let what = match (self.owner, self.lists.load(Relaxed)) {
            (true, true) => "owners, set-user-ID and set-group-ID bits and access control lists are",
            (true, false) => "owners and set-user-ID and set-group-ID bits are",
            (false, true) => "access control lists are",
            (false, false) => return None,
        };
        let message = format!(
            "{what} not set: the agent takes them only if it is started with --allow-owner; the files \
             belong to the user that it runs as"
        );
        Some(Trouble { path: RelPath::root(), op: Op::Metadata, message })
    }
}
