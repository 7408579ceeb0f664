//! One object of a tree: its path and metadata, and their encoding.

use super::SMALL;
use super::codec::{Fields, Malformed, Put};
use super::name::{PATH_LEN_MAX, RelPath};

/// The most extended attributes of one object that are carried.
pub const XATTRS_MAX: usize = 64;
/// The most bytes of names and values of extended attributes of one object:
/// what ext4 can hold in the worst case, and a small share of a frame.
pub const XATTR_BYTES_MAX: usize = 64 << 10;

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A file of [`Entry::size`] bytes.
    File,
    /// A directory, without its entries.
    Directory,
    /// A symbolic link with this target, which is never followed.
    Symlink(Box<[u8]>),
    /// A hard link to the file of this path.
    HardLink(RelPath),
}

/// A point in time, in seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970; negative before.
    pub secs: i64,
    /// Nanoseconds, below 10⁹.
    pub nanos: u32,
}

/// An extended attribute: name and value.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// One object of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path below the destination.
    pub path: RelPath,
    /// File, directory or link.
    pub kind: EntryKind,
    /// Permission bits (07777).
    pub mode: u32,
    /// Owner's user id.
    pub uid: u32,
    /// Numeric group id.
    pub gid: u32,
    /// Time of the last change of content.
    pub mtime: Time,
    /// Time of the last status change at the source. It cannot be set, so it distinguishes
    /// versions of a large file with equal size and `mtime`. Zero unless the file is
    /// sent in blocks.
    pub ctime: Time,
    /// Bytes of a file, else 0.
    pub size: u64,
    /// Whether a file has holes.
    pub sparse: bool,
    /// Extended attributes, access control lists among them.
    pub xattrs: Vec<Xattr>,
}

/// Where the content of an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No content: not a file, or an empty one.
    None,
    /// Directly behind the entry.
    Inline {
        /// Length in bytes.
        len: u32,
        /// Checksum of the content.
        digest: Digest,
    },
    /// In blocks, under this file number.
    Blocks(u64),
    /// Not sent yet: the entry is part of an existence query, with its checksum if content
    /// is compared.
    Query(Option<Digest>),
}

/// A checksum of content: BLAKE3, or XXH3-128 followed by zeroes, as the request says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Entry {
    /// Appends the entry and the place of its content.
    pub(crate) fn encode(&self, content: &Content, to: &mut Vec<u8>) {
        to.u8(match self.kind {
            EntryKind::File => 0,
            EntryKind::Directory => 1,
            EntryKind::Symlink(_) => 2,
            EntryKind::HardLink(_) => 3,
        });
        to.bytes(self.path.as_bytes());
        to.u16(self.mode as u16);
        to.u32(self.uid);
        to.u32(self.gid);
        to.u64(self.mtime.secs as u64);
        to.u32(self.mtime.nanos);
        to.u64(self.size);
        to.u8(self.sparse.into());
        if self.is_sent_in_blocks() {
            to.u64(self.ctime.secs as u64);
            to.u32(self.ctime.nanos);
        }
        match &self.kind {
            EntryKind::Symlink(target) => to.bytes(target),
            EntryKind::HardLink(path) => to.bytes(path.as_bytes()),
            EntryKind::File | EntryKind::Directory => {}
        }
        // Readers enforce the limit; truncation keeps the encoding valid in any case.
        let carried = &self.xattrs[..self.xattrs.len().min(XATTRS_MAX)];
        to.u8(carried.len() as u8);
        for (name, value) in carried {
            to.bytes(name);
            to.bytes(value);
        }
        match content {
            Content::None => to.u8(0),
            Content::Inline { len, digest } => {
                to.u8(1);
                to.u32(*len);
                to.put(&digest.0);
            }
            Content::Blocks(file) => {
                to.u8(2);
                to.u64(*file);
            }
            Content::Query(None) => to.u8(3),
            Content::Query(Some(digest)) => {
                to.u8(4);
                to.put(&digest.0);
            }
        }
    }

    /// Decodes an entry.
    pub(crate) fn decode(from: &mut Fields<'_>) -> Result<(Entry, Content), Malformed> {
        let kind = from.u8()?;
        let path = RelPath::new(from.bytes()?)?;
        let mode = u32::from(from.u16()?);
        let (uid, gid) = (from.u32()?, from.u32()?);
        let mtime = time(from)?;
        let size = from.u64()?;
        let sparse = from.u8()?;
        let ctime = if kind == 0 && size > SMALL { time(from)? } else { Time::default() };
        let kind = match kind {
            0 => EntryKind::File,
            1 => EntryKind::Directory,
            2 => EntryKind::Symlink(symlink(from.bytes()?)?),
            3 => EntryKind::HardLink(RelPath::new(from.bytes()?)?),
            _ => return Err(Malformed::Value("kind of entry")),
        };
        let sane = mode <= 0o7777 && i64::try_from(size).is_ok() && sparse <= 1;
        if !sane || (path.is_root() && kind != EntryKind::Directory) {
            return Err(Malformed::Value("entry"));
        }
        let xattrs = xattrs(from)?;
        let content = content(from)?;
        let fits = match content {
            Content::Inline { len, .. } => kind == EntryKind::File && u64::from(len) == size,
            Content::Blocks(_) => kind == EntryKind::File,
            Content::None => kind != EntryKind::File || size == 0,
            Content::Query(_) => true,
        };
        if !fits {
            return Err(Malformed::Value("content"));
        }
        let sparse = sparse == 1;
        Ok((Entry { path, kind, mode, uid, gid, mtime, ctime, size, sparse, xattrs }, content))
    }

    /// An entry with default owner and times.
    #[cfg(test)]
    pub(crate) fn plain(name: &str, kind: EntryKind, size: u64) -> Entry {
        let path = RelPath::new(name.as_bytes()).expect("a good name");
        let (mtime, ctime, xattrs) = (Time::default(), Time::default(), Vec::new());
        Entry { path, kind, mode: 0o644, uid: 0, gid: 0, mtime, ctime, size, sparse: false, xattrs }
    }

    fn is_sent_in_blocks(&self) -> bool {
        self.kind == EntryKind::File && self.size > SMALL
    }

    /// Its approximate memory, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let xattrs: usize = self.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        size_of::<Entry>() + self.path.as_bytes().len() + xattrs
    }
}

/// Whether a copy carries an extended attribute: `user.*` and access control lists. Not
/// capabilities, security labels or trusted attributes, which would grant privileges on
/// the receiving machine.
pub(crate) fn is_carried(name: &[u8]) -> bool {
    name.starts_with(b"user.") || matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default")
}

fn time(from: &mut Fields<'_>) -> Result<Time, Malformed> {
    let time = Time { secs: from.u64()? as i64, nanos: from.u32()? };
    if time.nanos < 1_000_000_000 { Ok(time) } else { Err(Malformed::Value("time")) }
}

/// Checks a symbolic link's target. Any path is allowed, since links are never followed
/// here.
fn symlink(target: &[u8]) -> Result<Box<[u8]>, Malformed> {
    let good = !target.is_empty() && target.len() < PATH_LEN_MAX && !target.contains(&0);
    if good { Ok(target.into()) } else { Err(Malformed::Value("symbolic link")) }
}

fn xattrs(from: &mut Fields<'_>) -> Result<Vec<Xattr>, Malformed> {
    let count = usize::from(from.u8()?);
    let mut bytes = 0;
    let mut all = Vec::with_capacity(count.min(XATTRS_MAX));
    for _ in 0..count {
        let (name, value) = (from.bytes()?, from.bytes()?);
        bytes += name.len() + value.len();
        let sane = is_carried(name) && !name.contains(&0);
        if !sane || bytes > XATTR_BYTES_MAX || all.len() == XATTRS_MAX {
            return Err(Malformed::Value("extended attribute"));
        }
        all.push((name.into(), value.into()));
    }
    Ok(all)
}

fn content(from: &mut Fields<'_>) -> Result<Content, Malformed> {
    Ok(match from.u8()? {
        0 => Content::None,
        1 => Content::Inline { len: from.u32()?, digest: Digest(from.array()?) },
        2 => Content::Blocks(from.u64()?),
        3 => Content::Query(None),
        4 => Content::Query(Some(Digest(from.array()?))),
        _ => return Err(Malformed::Value("content")),
    })
}
