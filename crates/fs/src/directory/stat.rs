//! Attributes from statx(2).

use super::objects::proc_path;
use super::os;
use crate::attributes::{Attributes, Time};
use crate::call::Node;
use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// What tells an object from all others, also from one that got its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    device: (u32, u32),
    pub(super) inode: u64,
    /// When it was made, in nanoseconds; 0 where the file system does not keep that.
    birth: i128,
}

impl Identity {
    /// Whether both are on one file system.
    pub(super) fn is_beside(&self, other: &Identity) -> bool {
        self.device == other.device
    }
}

/// Identity and attributes of the object `name` in a directory, or of the object itself if the name is
/// empty. A symbolic link is not followed.
pub(super) fn identity(at: BorrowedFd<'_>, name: &[u8]) -> Result<(Identity, Statx), Errno> {
    let flags = if name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = rustix::fs::statx(at, os(name), flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    let has_birth = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    let birth = i128::from(stat.stx_btime.tv_sec) * 1_000_000_000 + i128::from(stat.stx_btime.tv_nsec);
    let identity = Identity {
        device: (stat.stx_dev_major, stat.stx_dev_minor),
        inode: stat.stx_ino,
        birth: if has_birth { birth } else { 0 },
    };
    Ok((identity, stat))
}

/// Whether an object has no extended attributes; false where that cannot be found out. The name is as
/// for [`identity`].
pub(super) fn is_plain(at: BorrowedFd<'_>, name: &[u8]) -> bool {
    let mut path = proc_path(at).into_bytes();
    let mut none: [u8; 0] = [];
    let found = if name.is_empty() {
        rustix::fs::listxattr(os(&path), &mut none[..])
    } else {
        path.push(b'/');
        path.extend_from_slice(name);
        rustix::fs::llistxattr(os(&path), &mut none[..])
    };
    // Where there are none at all, none can be set.
    matches!(found, Ok(0) | Err(Errno::OPNOTSUPP))
}

/// The attributes of a node.
pub(super) fn attributes(node: Node, identity: &Identity, stat: &Statx, is_plain: bool) -> Attributes {
    let time = |t: &StatxTimestamp| Time { seconds: t.tv_sec, nanoseconds: t.tv_nsec };
    Attributes {
        node,
        generation: identity.birth as u64,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        accessed: time(&stat.stx_atime),
        modified: time(&stat.stx_mtime),
        changed: time(&stat.stx_ctime),
        mode: stat.stx_mode.into(),
        links: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        block_size: stat.stx_blksize,
        is_plain,
    }
}
