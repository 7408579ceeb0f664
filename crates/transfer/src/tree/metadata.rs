//! Metadata of objects: owner, mode, times, and extended attributes with the access control
//! lists among them.
//!
//! Invariant: a set-user-ID or set-group-ID bit is set only together with the owner that
//! the policy takes from the source.

use super::stamps::check_set;
use super::{Directory, Inode, NewMetadata, say};
use crate::wire::{Entry, XATTR_BYTES_MAX, XATTRS_MAX, Xattr, is_carried, show};
use rustix::io::Errno;
use std::fmt;
use std::io;

/// The access control list with the permissions of an object.
pub(crate) const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The access control list that new objects in a directory inherit.
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// Whether an extended attribute is an access control list.
pub(crate) fn is_access_list(name: &[u8]) -> bool {
    matches!(name, ACCESS_LIST | DEFAULT_LIST)
}

/// Metadata that is set only with privileges or permission.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MetadataPolicy {
    /// Owner and group, and set-user-ID and set-group-ID bits.
    pub(crate) owner: bool,
    /// Access control lists, among the extended attributes.
    pub(crate) lists: bool,
}

/// Sets metadata on an open file: the owner first, since that clears mode bits; the
/// mtime last. A failure does not keep the rest from being set.
///
/// # Errors
/// The first failure.
pub(crate) fn set_metadata(file: &impl Inode, entry: &Entry, keep: MetadataPolicy) -> io::Result<()> {
    let mut first = Ok(());
    let mut done = |what: &dyn fmt::Display, result: Result<(), Errno>| {
        if let (Err(e), Ok(())) = (result, &first) {
            first = Err(io::Error::other(format!("{what} cannot be set: {}", say(&e.into()))));
        }
        result.is_ok()
    };
    let none = NewMetadata::default();
    // Where each call takes a round trip, the owner is set with the rest. It does not clear mode bits there.
    let is_far = file.is_far();
    let new_owner = keep.owner.then_some((entry.uid, entry.gid));
    let owner = match is_far {
        true => keep.owner,
        false => keep.owner && done(&"the owner", file.set(NewMetadata { owner: new_owner, ..none })),
    };
    let mut mode = safe_mode(entry.mode, MetadataPolicy { owner, ..keep });
    for (name, value) in &entry.xattrs {
        let set = file.set_xattr(name, value);
        if !done(&format_args!("the attribute {}", show(name)), set) && **name == *ACCESS_LIST {
            // With an access list these bits are its mask, not the permissions of the group.
            mode &= !0o070;
        }
    }
    let (mode, modified) = (Some(mode), Some(entry.mtime));
    let set = match is_far {
        true => {
            let all = NewMetadata { owner: new_owner, mode, modified };
            done(&"owner, mode and time", file.set(all))
        }
        false => {
            done(&"the mode", file.set(NewMetadata { mode, ..none }));
            done(&"the time", file.set(NewMetadata { modified, ..none }))
        }
    };
    if set {
        let set = check_set(entry.mtime, || file.status());
        first = first.and(set);
    }
    first
}

/// Clears set-user-ID and set-group-ID unless the owner is kept: the program would run
/// with the rights of the copying user.
fn safe_mode(mode: u32, keep: MetadataPolicy) -> u32 {
    if keep.owner { mode } else { mode & 0o1777 }
}

/// Sets owner and mtime of a symbolic link.
pub(crate) fn set_link_metadata(
    at: &Directory,
    name: &[u8],
    entry: &Entry,
    keep: MetadataPolicy,
) -> io::Result<()> {
    let owner = keep.owner.then_some((entry.uid, entry.gid));
    at.set_named(name, NewMetadata { owner, mode: None, modified: Some(entry.mtime) })?;
    check_set(entry.mtime, || at.look(name))
}

/// The extended attributes of an open file that a copy carries; empty where the file
/// system has no such attributes.
///
/// # Errors
/// They cannot be read, or exceed [`XATTRS_MAX`] or [`XATTR_BYTES_MAX`].
pub(crate) fn xattrs(file: &impl Inode) -> io::Result<Vec<Xattr>> {
    let too_many = || {
        let message = format!(
            "too many extended attributes: a copy carries at most {XATTRS_MAX}, of {} KiB in all",
            XATTR_BYTES_MAX >> 10
        );
        Err(io::Error::other(message))
    };
    let mut names = vec![0u8; XATTR_BYTES_MAX];
    let len = match file.xattr_names(&mut names) {
        Err(Errno::NOTSUP | Errno::BADF) => return Ok(Vec::new()),
        Err(Errno::RANGE | Errno::TOOBIG) => return too_many(),
        result => result?,
    };
    names.truncate(len);
    let (mut all, mut bytes) = (Vec::new(), 0);
    for name in names.split(|b| *b == 0).filter(|name| is_carried(name)) {
        let mut value = vec![0u8; XATTR_BYTES_MAX];
        let len = match file.xattr(name, &mut value) {
            // Removed since it was listed.
            Err(Errno::NODATA) => continue,
            Err(Errno::RANGE | Errno::TOOBIG) => return too_many(),
            result => result?,
        };
        bytes += name.len() + len;
        // The wire format has 16 bits for the length of a value.
        if all.len() == XATTRS_MAX || bytes > XATTR_BYTES_MAX || len > usize::from(u16::MAX) {
            return too_many();
        }
        value.truncate(len);
        all.push((name.into(), value.into_boxed_slice()));
    }
    Ok(all)
}

/// The extended attributes of an open file that are compared with those of an entry.
fn compared(file: &impl Inode, keep: MetadataPolicy) -> io::Result<Vec<Xattr>> {
    let mut there = xattrs(file)?;
    there.retain(|(name, _)| keep.lists || !is_access_list(name));
    Ok(there)
}

/// Whether an open file's extended attributes differ from those of an entry.
pub(crate) fn xattrs_differ(file: &impl Inode, entry: &Entry, keep: MetadataPolicy) -> io::Result<bool> {
    let (mut there, mut wanted) = (compared(file, keep)?, entry.xattrs.clone());
    there.sort_unstable();
    wanted.sort_unstable();
    Ok(there != wanted)
}

/// Removes the extended attributes that an entry does not have.
pub(crate) fn remove_xattrs(file: &impl Inode, entry: &Entry, keep: MetadataPolicy) -> io::Result<()> {
    for (name, _) in compared(file, keep)? {
        if !entry.xattrs.iter().any(|(wanted, _)| *wanted == name) {
            file.remove_xattr(&name)?;
        }
    }
    Ok(())
}

/// Whether an existing object has the mode, and the owner if that is kept, that `entry`
/// would get.
pub(crate) fn has_mode_and_owner(entry: &Entry, there: &Entry, keep: MetadataPolicy) -> bool {
    let owner = !keep.owner || (entry.uid, entry.gid) == (there.uid, there.gid);
    owner && safe_mode(entry.mode, keep) == there.mode
}
