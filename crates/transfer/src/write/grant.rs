//! What a sender may decide about the owner and the privileges of what is written.
//!
//! Invariants:
//! - with [`Grant::Content`] no object gets an owner, a set-user-ID or set-group-ID bit
//!   or an access control list that a sender has chosen, whatever the request says;
//! - what was asked for and withheld is reported once for the whole copy.

use super::Writer;
use crate::tree::{ACCESS_LIST, is_access_list};
use crate::wire::{Entry, Op, Options, RelPath, Trouble};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a sender may decide about what is written, beyond content, permission bits,
/// times and users' attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Owner, set-user-ID and set-group-ID bits with [`Options::owner`]; access control
    /// lists with [`Options::xattrs`].
    Identity,
    /// Nothing more: all of it belongs to the user that the receiving side runs as, and
    /// runs as the user who starts it.
    #[default]
    Content,
}

/// What is withheld from the sender of one copy.
#[derive(Debug, Default)]
pub(crate) struct Withheld {
    grant: Grant,
    /// The request asks for owners.
    owner: bool,
    /// A list came and was left out.
    lists: AtomicBool,
}

impl Withheld {
    /// Withholds from a request what `grant` does not cover.
    pub(crate) fn new(grant: Grant, options: &mut Options) -> Withheld {
        let owner = options.owner && grant == Grant::Content;
        options.owner &= !owner;
        Withheld { grant, owner, lists: AtomicBool::new(false) }
    }

    /// Whether access control lists are taken.
    pub(super) fn takes_lists(&self) -> bool {
        self.grant == Grant::Identity
    }

    /// Takes the access control lists out of an entry.
    fn trim(&self, entry: &mut Entry) {
        if self.takes_lists() || !entry.xattrs.iter().any(|(name, _)| is_access_list(name)) {
            return;
        }
        self.lists.store(true, Relaxed);
        if entry.xattrs.iter().any(|(name, _)| **name == *ACCESS_LIST) {
            // With a list, these bits are its mask, and not what the group may.
            entry.mode &= !0o070;
        }
        entry.xattrs.retain(|(name, _)| !is_access_list(name));
    }

    /// What is to be reported at the end.
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

impl Writer {
    /// Takes the attributes out of an entry that were not asked for, or are withheld.
    pub(super) fn trim(&self, entry: &mut Entry) {
        match self.options.xattrs {
            true => self.withheld.trim(entry),
            false => entry.xattrs.clear(),
        }
    }

    /// The same of an entry that is shared.
    pub(super) fn trimmed<'a>(&self, entry: &'a Entry) -> Cow<'a, Entry> {
        if entry.xattrs.is_empty() {
            return Cow::Borrowed(entry);
        }
        let mut entry = entry.clone();
        self.trim(&mut entry);
        Cow::Owned(entry)
    }
}
