//! One object of a tree: its name and its metadata, as it travels.

use super::SMALL;
use super::codec::{Fields, Malformed, Put};
use super::name::{PATH_LEN_MAX, RelPath};

/// The most extended attributes of one object that are carried.
pub const XATTRS_MAX: usize = 64;
/// The most bytes of names and values of extended attributes of one object:
/// what ext4 can hold in the worst case, and a small share of a frame.
pub const XATTR_BYTES_MAX: usize = 64 << 10;

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file of [`Entry::size`] bytes.
    File,
    /// A directory.
    Directory,
    /// A symbolic link with this target, which is never followed.
    Symlink(Box<[u8]>),
    /// Another name of a file that comes under this path.
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
    /// Where it goes, below the destination.
    pub path: RelPath,
    /// What it is.
    pub kind: Kind,
    /// Permission bits (07777).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// When the content last changed.
    pub mtime: Time,
    /// When anything of it last changed at the source (`ctime`), which nobody can set:
    /// tells versions of a large file apart that are of one size and `mtime`. Zero of
    /// what does not come in blocks.
    pub ctime: Time,
    /// Bytes of a file, else 0.
    pub size: u64,
    /// Whether a file has holes: zeroes in it that take no space.
    pub sparse: bool,
    /// Extended attributes, access control lists among them.
    pub xattrs: Vec<Xattr>,
}

/// Where the content of an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// It has none, or an empty one.
    None,
    /// Right behind the entry: this many bytes, with this checksum.
    Inline {
        /// Bytes.
        len: u32,
        /// Checksum of the content.
        digest: Digest,
    },
    /// It comes in blocks, under this number.
    Blocks(u64),
    /// Not sent until the other side says that it wants it.
    Asked(Option<Digest>),
}

/// A checksum of content: XXH3-128 or BLAKE3, as the session agreed; the
/// former has zeroes behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Entry {
    /// Appends the entry, and where its content is.
    pub(crate) fn encode(&self, content: &Content, to: &mut Vec<u8>) {
        to.u8(match self.kind {
            Kind::File => 0,
            Kind::Directory => 1,
            Kind::Symlink(_) => 2,
            Kind::HardLink(_) => 3,
        });
        to.bytes(self.path.as_bytes());
        to.u16(self.mode as u16);
        to.u32(self.uid);
        to.u32(self.gid);
        to.u64(self.mtime.secs as u64);
        to.u32(self.mtime.nanos);
        to.u64(self.size);
        to.u8(self.sparse.into());
        if self.comes_in_blocks() {
            to.u64(self.ctime.secs as u64);
            to.u32(self.ctime.nanos);
        }
        match &self.kind {
            Kind::Symlink(target) => to.bytes(target),
            Kind::HardLink(path) => to.bytes(path.as_bytes()),
            Kind::File | Kind::Directory => {}
        }
        // Who reads them sees to it that there are no more.
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
            Content::Asked(None) => to.u8(3),
            Content::Asked(Some(digest)) => {
                to.u8(4);
                to.put(&digest.0);
            }
        }
    }

    /// Takes an entry from the front.
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
            0 => Kind::File,
            1 => Kind::Directory,
            2 => Kind::Symlink(symlink(from.bytes()?)?),
            3 => Kind::HardLink(RelPath::new(from.bytes()?)?),
            _ => return Err(Malformed::Value("kind of entry")),
        };
        let sane = mode <= 0o7777 && i64::try_from(size).is_ok() && sparse <= 1;
        if !sane || (path.is_root() && kind != Kind::Directory) {
            return Err(Malformed::Value("entry"));
        }
        let xattrs = xattrs(from)?;
        let content = content(from)?;
        let fits = match content {
            Content::Inline { len, .. } => kind == Kind::File && u64::from(len) == size,
            Content::Blocks(_) => kind == Kind::File,
            Content::None => kind != Kind::File || size == 0,
            Content::Asked(_) => true,
        };
        if !fits {
            return Err(Malformed::Value("content"));
        }
        let sparse = sparse == 1;
        Ok((Entry { path, kind, mode, uid, gid, mtime, ctime, size, sparse, xattrs }, content))
    }

    /// One of no particular owner and time.
    #[cfg(test)]
    pub(crate) fn plain(name: &str, kind: Kind, size: u64) -> Entry {
        let path = RelPath::new(name.as_bytes()).expect("a good name");
        let (mtime, ctime, xattrs) = (Time::default(), Time::default(), Vec::new());
        Entry { path, kind, mode: 0o644, uid: 0, gid: 0, mtime, ctime, size, sparse: false, xattrs }
    }

    fn comes_in_blocks(&self) -> bool {
        self.kind == Kind::File && self.size > SMALL
    }

    /// About how much memory it takes, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let xattrs: usize = self.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        size_of::<Entry>() + self.path.as_bytes().len() + xattrs
    }
}

/// Whether an extended attribute travels: what users set, and access control lists.
/// Not what the system keeps for itself (capabilities, security labels, trusted
/// attributes), which is another's elsewhere, and would be power over it.
pub(crate) fn is_carried(name: &[u8]) -> bool {
    name.starts_with(b"user.") || matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default")
}

fn time(from: &mut Fields<'_>) -> Result<Time, Malformed> {
    let time = Time { secs: from.u64()? as i64, nanos: from.u32()? };
    if time.nanos < 1_000_000_000 { Ok(time) } else { Err(Malformed::Value("time")) }
}

/// A target may be anything that a symbolic link can hold: it is never
/// followed here.
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
        3 => Content::Asked(None),
        4 => Content::Asked(Some(Digest(from.array()?))),
        _ => return Err(Malformed::Value("content")),
    })
}
