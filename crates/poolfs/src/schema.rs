//! Keys and records of a file system in the catalog.
//!
//! All keys begin with `fs/UUID/`; numbers in keys are 8 bytes, big-endian, so that a range lists a directory
//! in the order of its names and the content of a file in the order of its bytes.
//!
//! | key | value |
//! |---|---|
//! | `s` | settings of the file system, as JSON |
//! | `n` | the next numbers of inodes and sessions |
//! | `i` INODE | an inode, with the extents of its content while they are few |
//! | `d` DIRECTORY NAME | the inode that the name stands for |
//! | `x` INODE CHUNK | extents of [`CHUNK`] bytes of a file |
//! | `a` INODE | extended attributes |
//! | `g` SEGMENT | a segment that is not free |
//! | `c` SESSION | a session, under its lease |
//! | `q` SESSION NUMBER | what a transaction of the session has added to segments and freed there, and has changed of usage |
//! | `o` INODE | an inode without a name, and the session that removed the last one |
//! | `f` MEMBER | the segments before this one have their units at the place where the member is now |
//! | `r` | moves of directories, which are made one after the other |
//! | `l` DIRECTORY | the session that has the lease of a directory, under its lease |
//! | `w` DIRECTORY SESSION | a session that asks for that lease, under its own |
//! | `k` INODE | the transaction that has taken a lock of the file last: session and number |
//! | `k` INODE SESSION | the locks that a session has of the file, under its lease |
//! | `e` SESSION | what the program of a session knows, and the snapshot that it has mounted, under its lease |
//! | `m` SESSION | the members of which a session has found that they have no reservations, under its lease |
//! | `v` | counts changes of the snapshots; each transaction expects it |
//! | `t` SNAPSHOT | a snapshot |
//! | `p` KIND … SNAPSHOT | the record `i`, `d` or `a` of that key as it was when the snapshot was made |
//! | `y` INODE CHUNK SNAPSHOT | extents that a file had in [`CHUNK`] bytes when the snapshot was made |
//! | `u` | whether the usage of users and groups is counted, and since when |
//! | `u` KIND ID | usage and limits of a user or a group |
//!
//! Each value but the first begins with the version of its form; the settings are in `settings`.

use crate::bytes::{Reader, Writer};
use crate::extent::{Extent, ExtentList};
use crate::quota::{Owner, Usage, UsageChanges};
use longhaul_fs::{Attributes, Errno, FileKind, FileLock, Handle, Node, Time};
use std::collections::BTreeMap;
use std::ops::Range;
use uuid::Uuid;

/// Version of the settings and of all records.
pub(crate) const FORMAT: u8 = 1;
/// Bytes of a file whose extents are in one record.
pub(crate) const CHUNK: u64 = 16 << 20;

/// The bytes of a file that a chunk has.
pub(crate) fn range_of(chunk: u64) -> Range<u64> {
    chunk.saturating_mul(CHUNK)..chunk.saturating_add(1).saturating_mul(CHUNK)
}

/// Version of the account of a transaction that has changed the usage of users and groups.
const ACCOUNT_USAGE: u8 = 2;
/// Most extents that an inode has in its own record: a kilobyte or two.
pub(crate) const INLINE: usize = 24;
/// Most bytes of extended attributes of an inode.
pub(crate) const XATTRS_MAX: usize = 64 << 10;
/// Preferred size of I/O.
const IO_SIZE: u32 = 1 << 17;

/// Keys of one file system.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: Vec<u8>,
}

impl Keys {
    pub(crate) fn new(uuid: Uuid) -> Keys {
        Keys { prefix: format!("fs/{uuid}/").into_bytes() }
    }

    /// What all of them begin with.
    pub(crate) fn all(&self) -> &[u8] {
        &self.prefix
    }

    fn key(&self, kind: u8, numbers: &[u64], name: &[u8]) -> Vec<u8> {
        let mut key = self.prefix.clone();
        key.push(kind);
        key.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
        key.extend(name);
        key
    }

    pub(crate) fn settings(&self) -> Vec<u8> {
        self.key(b's', &[], b"")
    }

    pub(crate) fn counters(&self) -> Vec<u8> {
        self.key(b'n', &[], b"")
    }

    pub(crate) fn inode(&self, inode: u64) -> Vec<u8> {
        self.key(b'i', &[inode], b"")
    }

    pub(crate) fn inodes(&self) -> Vec<u8> {
        self.key(b'i', &[], b"")
    }

    pub(crate) fn entry(&self, directory: u64, name: &[u8]) -> Vec<u8> {
        self.key(b'd', &[directory], name)
    }

    pub(crate) fn chunk(&self, inode: u64, chunk: u64) -> Vec<u8> {
        self.key(b'x', &[inode, chunk], b"")
    }

    /// What the keys of the chunks of an inode begin with.
    pub(crate) fn chunks(&self, inode: u64) -> Vec<u8> {
        self.key(b'x', &[inode], b"")
    }

    /// What the keys of all chunks begin with.
    pub(crate) fn all_chunks(&self) -> Vec<u8> {
        self.key(b'x', &[], b"")
    }

    pub(crate) fn xattrs(&self, inode: u64) -> Vec<u8> {
        self.key(b'a', &[inode], b"")
    }

    pub(crate) fn segment(&self, segment: u32) -> Vec<u8> {
        self.key(b'g', &[segment.into()], b"")
    }

    pub(crate) fn segments(&self) -> Vec<u8> {
        self.key(b'g', &[], b"")
    }

    pub(crate) fn session(&self, session: u64) -> Vec<u8> {
        self.key(b'c', &[session], b"")
    }

    pub(crate) fn sessions(&self) -> Vec<u8> {
        self.key(b'c', &[], b"")
    }

    pub(crate) fn account(&self, session: u64, number: u64) -> Vec<u8> {
        self.key(b'q', &[session, number], b"")
    }

    pub(crate) fn accounts(&self) -> Vec<u8> {
        self.key(b'q', &[], b"")
    }

    pub(crate) fn orphan(&self, inode: u64) -> Vec<u8> {
        self.key(b'o', &[inode], b"")
    }

    pub(crate) fn orphans(&self) -> Vec<u8> {
        self.key(b'o', &[], b"")
    }

    pub(crate) fn lease(&self, directory: u64) -> Vec<u8> {
        self.key(b'l', &[directory], b"")
    }

    pub(crate) fn want(&self, directory: u64, session: u64) -> Vec<u8> {
        self.key(b'w', &[directory, session], b"")
    }

    pub(crate) fn wants(&self) -> Vec<u8> {
        self.key(b'w', &[], b"")
    }

    pub(crate) fn lock_guard(&self, inode: u64) -> Vec<u8> {
        self.key(b'k', &[inode], b"")
    }

    pub(crate) fn locks_of(&self, inode: u64, session: u64) -> Vec<u8> {
        self.key(b'k', &[inode, session], b"")
    }

    pub(crate) fn all_locks(&self) -> Vec<u8> {
        self.key(b'k', &[], b"")
    }

    /// How far the filling of a member has come.
    pub(crate) fn filled(&self, member: u64) -> Vec<u8> {
        self.key(b'f', &[member], b"")
    }

    pub(crate) fn moves(&self) -> Vec<u8> {
        self.key(b'r', &[], b"")
    }

    /// What the program of a session knows.
    pub(crate) fn knows(&self, session: u64) -> Vec<u8> {
        self.key(b'e', &[session], b"")
    }

    pub(crate) fn all_known(&self) -> Vec<u8> {
        self.key(b'e', &[], b"")
    }

    /// Members that cannot be fenced.
    pub(crate) fn unfenced(&self, session: u64) -> Vec<u8> {
        self.key(b'm', &[session], b"")
    }

    pub(crate) fn all_unfenced(&self) -> Vec<u8> {
        self.key(b'm', &[], b"")
    }

    /// Counts changes of the snapshots.
    pub(crate) fn snapshot_changes(&self) -> Vec<u8> {
        self.key(b'v', &[], b"")
    }

    pub(crate) fn snapshot(&self, snapshot: u64) -> Vec<u8> {
        self.key(b't', &[snapshot], b"")
    }

    pub(crate) fn snapshots(&self) -> Vec<u8> {
        self.key(b't', &[], b"")
    }

    /// The state of quotas; what their keys begin with.
    pub(crate) fn quotas(&self) -> Vec<u8> {
        self.key(b'u', &[], b"")
    }

    /// Usage and limits of a user or a group.
    pub(crate) fn quota(&self, owner: Owner) -> Vec<u8> {
        let (kind, id) = owner.numbers();
        self.key(b'u', &[kind, id], b"")
    }

    /// The kind of a key of this file system; 0 of others.
    pub(crate) fn kind(&self, key: &[u8]) -> u8 {
        key.strip_prefix(&self.prefix[..]).and_then(|rest| rest.first()).copied().unwrap_or(0)
    }

    /// Where the record of `key` is as it was when a snapshot was made. Those of a key are in the order of the
    /// snapshots, and those of different keys in the order of the keys.
    pub(crate) fn kept(&self, key: &[u8], snapshot: u64) -> Vec<u8> {
        [&self.kept_prefix(key)[..], &snapshot.to_be_bytes()].concat()
    }

    /// What the keys of [`kept`](Self::kept) records of one key begin with.
    pub(crate) fn kept_prefix(&self, key: &[u8]) -> Vec<u8> {
        let mut kept = self.kept_range(key);
        // No name has such a byte: so none begins another one.
        if self.kind(key) == b'd' {
            kept.push(0);
        }
        kept
    }

    /// What the keys of kept records of all keys that begin with `prefix` begin with.
    pub(crate) fn kept_range(&self, prefix: &[u8]) -> Vec<u8> {
        let mut kept = self.prefix.clone();
        kept.push(b'p');
        kept.extend(&prefix[self.prefix.len()..]);
        kept
    }

    /// What the keys of all kept records begin with.
    pub(crate) fn all_kept(&self) -> Vec<u8> {
        self.key(b'p', &[], b"")
    }

    /// The key that a kept record is of, and the snapshot.
    pub(crate) fn kept_of(&self, kept: &[u8]) -> Option<(Vec<u8>, u64)> {
        let rest = kept.strip_prefix(&self.prefix[..])?.strip_prefix(b"p")?;
        let (rest, snapshot) = rest.split_last_chunk::<8>()?;
        let rest = if rest.first() == Some(&b'd') { rest.strip_suffix(&[0])? } else { rest };
        Some(([&self.prefix[..], rest].concat(), u64::from_be_bytes(*snapshot)))
    }

    /// Extents of a chunk of a file that it had when a snapshot was made.
    pub(crate) fn kept_chunk(&self, inode: u64, chunk: u64, snapshot: u64) -> Vec<u8> {
        self.key(b'y', &[inode, chunk, snapshot], b"")
    }

    pub(crate) fn kept_chunks(&self, inode: u64) -> Vec<u8> {
        self.key(b'y', &[inode], b"")
    }

    pub(crate) fn all_kept_chunks(&self) -> Vec<u8> {
        self.key(b'y', &[], b"")
    }

    /// The numbers of a key of this file system, and the name behind the first `count` of them.
    pub(crate) fn parse<'k>(&self, key: &'k [u8], count: usize) -> Option<(Vec<u64>, &'k [u8])> {
        let mut reader = Reader(key.get(self.prefix.len() + 1..)?);
        let numbers = (0..count).map(|_| reader.u64()).collect::<Option<Vec<_>>>()?;
        Some((numbers, reader.0))
    }
}

/// A record that cannot be read, of a later version or damaged: `EIO`, and why in the log.
pub(crate) fn unreadable(what: &str, bytes: &[u8]) -> Errno {
    match bytes.first() {
        Some(&format) if format != FORMAT => tracing::error!(
            "{what} has format {format}, and this program knows format {FORMAT}: use a newer program"
        ),
        _ => tracing::error!("{what} is damaged: run 'longhaul fs check'"),
    }
    Errno::IO
}

pub(crate) fn writer() -> Writer {
    let mut writer = Writer::default();
    writer.u8(FORMAT);
    writer
}

fn reader(bytes: &[u8]) -> Option<Reader<'_>> {
    let mut reader = Reader(bytes);
    (reader.u8()? == FORMAT).then_some(reader)
}

/// Reads the whole of a record.
pub(crate) fn whole<'b, T>(bytes: &'b [u8], read: impl FnOnce(&mut Reader<'b>) -> Option<T>) -> Option<T> {
    let mut reader = reader(bytes)?;
    let value = read(&mut reader)?;
    reader.is_at_end().then_some(value)
}

/// What an inode has besides its attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing: of directories, FIFOs, sockets and devices.
    #[default]
    None,
    /// The target of a symbolic link.
    Link(Vec<u8>),
    /// All extents of a file.
    Inline(ExtentList),
    /// The extents are in chunks.
    Chunks,
}

/// An inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InodeRecord {
    /// Kind and permissions, as in `st_mode`.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Names; of a directory, two and its directories.
    pub(crate) links: u32,
    /// Bytes.
    pub(crate) size: u64,
    /// Bytes of all extents.
    pub(crate) stored: u64,
    pub(crate) rdev: u64,
    pub(crate) accessed: Time,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    /// Of a directory, the one that it is in.
    pub(crate) parent: u64,
    /// Entries of a directory.
    pub(crate) entries: u64,
    /// The transaction that put it: session and number.
    pub(crate) stamp: (u64, u64),
    pub(crate) has_xattrs: bool,
    /// Chunks behind its end are still to be removed.
    pub(crate) trims: bool,
    pub(crate) content: Content,
}

impl InodeRecord {
    /// A new object of this kind and these permissions, without a name.
    pub(crate) fn new(mode: u32, owner: (u32, u32), now: Time) -> InodeRecord {
        let kind = FileKind::of_mode(mode).unwrap_or(FileKind::Regular);
        InodeRecord {
            mode,
            uid: owner.0,
            gid: owner.1,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            accessed: now,
            modified: now,
            changed: now,
            content: match kind {
                FileKind::Regular => Content::Inline(ExtentList::default()),
                _ => Content::None,
            },
            ..InodeRecord::default()
        }
    }

    pub(crate) fn kind(&self) -> FileKind {
        FileKind::of_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// Whom it counts for, and what.
    pub(crate) fn usage(&self) -> ([Owner; 2], Usage) {
        let bytes = i64::try_from(self.stored).unwrap_or(i64::MAX);
        (Owner::both(self.uid, self.gid), Usage { bytes, files: 1 })
    }

    /// Its content or its entries have changed.
    pub(crate) fn touch(&mut self, now: Time) {
        self.modified = now;
        self.changed = now;
    }

    pub(crate) fn attributes(&self, inode: u64) -> Attributes {
        let size = match &self.content {
            Content::Link(target) => target.len() as u64,
            _ if self.is_directory() => IO_SIZE.into(),
            _ => self.size,
        };
        Attributes {
            node: Node(inode),
            generation: 0,
            size,
            blocks: self.stored.div_ceil(512),
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            block_size: IO_SIZE,
            is_plain: !self.has_xattrs,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = writer();
        to.u32(self.mode).u32(self.uid).u32(self.gid).u32(self.links);
        to.u64(self.size).u64(self.stored).u64(self.rdev);
        for time in [self.accessed, self.modified, self.changed] {
            to.u64(time.seconds.cast_unsigned()).u32(time.nanoseconds);
        }
        to.u64(self.parent).u64(self.entries).u64(self.stamp.0).u64(self.stamp.1);
        to.u8(u8::from(self.has_xattrs)).u8(u8::from(self.trims));
        match &self.content {
            Content::None => {
                to.u8(0);
            }
            Content::Link(target) => {
                to.u8(1).bytes(target);
            }
            Content::Inline(list) => list.write(to.u8(2)),
            Content::Chunks => {
                to.u8(3);
            }
        }
        to.end()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<InodeRecord> {
        let time = |from: &mut Reader<'_>| {
            Some(Time { seconds: from.u64()?.cast_signed(), nanoseconds: from.u32()? })
        };
        whole(bytes, |from| {
            let (mode, uid, gid, links) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
            let (size, stored, rdev) = (from.u64()?, from.u64()?, from.u64()?);
            let (accessed, modified, changed) = (time(from)?, time(from)?, time(from)?);
            let (parent, entries, stamp) = (from.u64()?, from.u64()?, (from.u64()?, from.u64()?));
            let (has_xattrs, trims) = (from.u8()? != 0, from.u8()? != 0);
            let content = match from.u8()? {
                0 => Content::None,
                1 => Content::Link(from.bytes()?.to_vec()),
                2 => Content::Inline(ExtentList::read(from)?),
                3 => Content::Chunks,
                _ => return None,
            };
            Some(InodeRecord {
                mode,
                uid,
                gid,
                links,
                size,
                stored,
                rdev,
                accessed,
                modified,
                changed,
                parent,
                entries,
                stamp,
                has_xattrs,
                trims,
                content,
            })
        })
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryRecord {
    pub(crate) inode: u64,
    /// The kind of the inode, as in `st_mode`.
    pub(crate) kind: u32,
}

/// The part of a mode that says the kind.
const KIND_MASK: u32 = 0o170_000;

impl EntryRecord {
    pub(crate) fn new(inode: u64, mode: u32) -> EntryRecord {
        EntryRecord { inode, kind: mode & KIND_MASK }
    }

    pub(crate) fn is_directory(&self) -> bool {
        FileKind::of_mode(self.kind) == Some(FileKind::Directory)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = writer();
        to.u64(self.inode).u32(self.kind);
        to.end()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<EntryRecord> {
        whole(bytes, |from| Some(EntryRecord { inode: from.u64()?, kind: from.u32()? }))
    }
}

pub(crate) fn encode_extents(list: &ExtentList) -> Vec<u8> {
    let mut to = writer();
    list.write(&mut to);
    to.end()
}

pub(crate) fn decode_extents(bytes: &[u8]) -> Option<ExtentList> {
    whole(bytes, ExtentList::read)
}

/// Numbers that are given out next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountersRecord {
    pub(crate) inode: u64,
    pub(crate) session: u64,
    /// Only programs that know it begin sessions.
    pub(crate) version: u8,
}

impl CountersRecord {
    /// Every program begins sessions.
    pub(crate) const FIRST: u8 = FORMAT;
    /// Those that know snapshots.
    pub(crate) const SNAPSHOTS: u8 = 2;
    /// Those that know snapshots, and register their sessions with the members.
    pub(crate) const FENCES: u8 = 3;
    /// Those that know that, and quotas.
    pub(crate) const QUOTAS: u8 = 4;

    /// Only programs that know this version begin sessions from now on.
    pub(crate) fn raise(&mut self, version: u8) {
        self.version = self.version.max(version);
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u8(self.version);
        to.u64(self.inode).u64(self.session);
        to.end()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<CountersRecord> {
        let mut from = Reader(bytes);
        let version = from.u8()?;
        let counters = CountersRecord { inode: from.u64()?, session: from.u64()?, version };
        let is_known = (CountersRecord::FIRST..=CountersRecord::QUOTAS).contains(&version);
        (is_known && from.is_at_end()).then_some(counters)
    }
}

/// What the program of a session knows: the latest format of settings, and the snapshot that it has mounted, 0
/// if none.
pub(crate) fn encode_knows(format: u64, snapshot: u64) -> Vec<u8> {
    let mut to = writer();
    to.u64(format).u64(snapshot);
    to.end()
}

pub(crate) fn decode_knows(bytes: &[u8]) -> Option<(u64, u64)> {
    whole(bytes, |from| Some((from.u64()?, from.u64()?)))
}

/// Names of the members of which a session has found that they have no reservations.
pub(crate) fn encode_unfenced(names: &[String]) -> Vec<u8> {
    let mut to = writer();
    to.u32(names.len() as u32);
    for name in names {
        to.bytes(name.as_bytes());
    }
    to.end()
}

pub(crate) fn decode_unfenced(bytes: &[u8]) -> Option<Vec<String>> {
    whole(bytes, |from| {
        (0..from.u32()?).map(|_| Some(String::from_utf8_lossy(from.bytes()?).into_owned())).collect()
    })
}

/// How often the snapshots were changed: also the number of the next one.
pub(crate) fn encode_snapshot_changes(count: u64) -> Vec<u8> {
    encode_orphan(count)
}

pub(crate) fn decode_snapshot_changes(bytes: &[u8]) -> Option<u64> {
    decode_orphan(bytes)
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotRecord {
    pub(crate) name: String,
    /// Identifies it among all.
    pub(crate) uuid: Uuid,
    /// When it was made.
    pub(crate) made: Time,
    /// The revision that it is as of; 0 if that is the one in which this record was put.
    pub(crate) at: u64,
    /// What it alone has is removed.
    pub(crate) is_removed: bool,
}

impl SnapshotRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = writer();
        to.bytes(self.name.as_bytes()).bytes(self.uuid.as_bytes());
        to.u64(self.made.seconds.cast_unsigned()).u32(self.made.nanoseconds);
        to.u64(self.at).u8(u8::from(self.is_removed));
        to.end()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<SnapshotRecord> {
        whole(bytes, |from| {
            Some(SnapshotRecord {
                name: String::from_utf8(from.bytes()?.to_vec()).ok()?,
                uuid: Uuid::from_slice(from.bytes()?).ok()?,
                made: Time { seconds: from.u64()?.cast_signed(), nanoseconds: from.u32()? },
                at: from.u64()?,
                is_removed: from.u8()? != 0,
            })
        })
    }
}

/// A record as it was when a snapshot was made, and the revision in which it was put.
pub(crate) fn encode_kept(put: u64, value: &[u8]) -> Vec<u8> {
    let mut to = writer();
    to.u64(put).bytes(value);
    to.end()
}

pub(crate) fn decode_kept(bytes: &[u8]) -> Option<(u64, Vec<u8>)> {
    whole(bytes, |from| Some((from.u64()?, from.bytes()?.to_vec())))
}

/// What a file had in a chunk when a snapshot was made, where that was changed since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptChunk {
    /// Where it was changed: sorted, and apart from each other.
    pub(crate) changed: Vec<Range<u64>>,
    /// What was there. The rest of what was changed was a hole.
    pub(crate) extents: ExtentList,
}

/// The parts of `ranges` that are in none of `known`, which are sorted.
fn without(ranges: &[Range<u64>], known: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for range in ranges {
        let mut at = range.start;
        for known in known.iter().filter(|known| known.end > range.start && known.start < range.end) {
            if at < known.start {
                left.push(at..known.start);
            }
            at = at.max(known.end);
        }
        if at < range.end {
            left.push(at..range.end);
        }
    }
    left
}

impl KeptChunk {
    /// Content in these ranges is changed: what it was is kept, unless it is known already, here or in one of
    /// `others`. What was `removed` there and is not kept is returned.
    pub(crate) fn keep(
        &mut self,
        ranges: &[Range<u64>],
        removed: &[Extent],
        others: &[KeptChunk],
    ) -> Vec<Extent> {
        let mut new = without(ranges, &self.changed);
        for other in others {
            new = without(&new, &other.changed);
        }
        self.changed.extend(new.iter().cloned());
        self.changed.sort_unstable_by_key(|range| range.start);
        self.changed.dedup_by(|next, last| {
            let touches = last.end >= next.start;
            if touches {
                last.end = last.end.max(next.end);
            }
            touches
        });
        let mut freed = Vec::new();
        for extent in removed {
            let mut left: ExtentList = [extent.clone()].into_iter().collect();
            for part in new.iter().flat_map(|range| left.remove(range.clone())).collect::<Vec<_>>() {
                self.extents.overwrite(part);
            }
            freed.extend(left.iter().cloned());
        }
        freed
    }

    /// Puts what it has in place of what is in `list`.
    pub(crate) fn lay_over(&self, list: &mut ExtentList) {
        for range in &self.changed {
            list.remove(range.clone());
        }
        for extent in self.extents.iter() {
            list.overwrite(extent.clone());
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = writer();
        to.u32(self.changed.len() as u32);
        for range in &self.changed {
            to.u64(range.start).u64(range.end);
        }
        self.extents.write(&mut to);
        to.end()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<KeptChunk> {
        whole(bytes, |from| {
            let count = from.u32()?;
            let changed = (0..count).map(|_| Some(from.u64()?..from.u64()?)).collect::<Option<Vec<_>>>()?;
            let is_sorted = changed.iter().all(|range| range.start < range.end)
                && changed.windows(2).all(|pair| pair[0].end < pair[1].start);
            let kept = KeptChunk { changed, extents: ExtentList::read(from)? };
            is_sorted.then_some(kept)
        })
    }
}

/// A segment that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRecord {
    /// The session that writes to it; none any more if it is 0: no extents are added then.
    pub(crate) session: u64,
    /// Bytes of extents that were added.
    pub(crate) added: u64,
    /// Bytes of these that no file has any more.
    pub(crate) freed: u64,
}

impl SegmentRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = writer();
        to.u64(self.session).u64(self.added).u64(self.freed);
        to.end()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<SegmentRecord> {
        whole(bytes, |from| {
            Some(SegmentRecord { session: from.u64()?, added: from.u64()?, freed: from.u64()? })
        })
    }
}

/// What a transaction has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// Bytes added to and freed in segments.
    pub(crate) segments: BTreeMap<u32, (u64, u64)>,
    /// Changes of the usage of users and groups, while that is counted.
    pub(crate) usage: UsageChanges,
}

impl Account {
    pub(crate) fn add(&mut self, segment: u32, bytes: u64) {
        self.segments.entry(segment).or_default().0 += bytes;
    }

    pub(crate) fn free(&mut self, segment: u32, bytes: u64) {
        self.segments.entry(segment).or_default().1 += bytes;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.usage.is_empty()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u8(if self.usage.is_empty() { FORMAT } else { ACCOUNT_USAGE });
        to.u32(self.segments.len() as u32);
        for (segment, (added, freed)) in &self.segments {
            to.u32(*segment).u64(*added).u64(*freed);
        }
        if !self.usage.is_empty() {
            self.usage.write(&mut to);
        }
        to.end()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Account> {
        let mut from = Reader(bytes);
        let has_usage = match from.u8()? {
            FORMAT => false,
            ACCOUNT_USAGE => true,
            _ => return None,
        };
        let one = |from: &mut Reader<'_>| Some((from.u32()?, (from.u64()?, from.u64()?)));
        let segments = (0..from.u32()?).map(|_| one(&mut from)).collect::<Option<_>>()?;
        let usage = if has_usage { UsageChanges::read(&mut from)? } else { UsageChanges::default() };
        from.is_at_end().then_some(Account { segments, usage })
    }
}

/// A session: the host that it is on.
pub(crate) fn encode_session(host: &str) -> Vec<u8> {
    let mut to = writer();
    to.bytes(host.as_bytes());
    to.end()
}

pub(crate) fn decode_session(bytes: &[u8]) -> Option<String> {
    whole(bytes, |from| Some(String::from_utf8_lossy(from.bytes()?).into_owned()))
}

/// An inode without a name: the session that removed the last one.
pub(crate) fn encode_orphan(session: u64) -> Vec<u8> {
    let mut to = writer();
    to.u64(session);
    to.end()
}

pub(crate) fn decode_orphan(bytes: &[u8]) -> Option<u64> {
    whole(bytes, |from| from.u64())
}

/// The lease of a directory: the session that has it.
pub(crate) fn encode_lease(session: u64) -> Vec<u8> {
    encode_orphan(session)
}

pub(crate) fn decode_lease(bytes: &[u8]) -> Option<u64> {
    decode_orphan(bytes)
}

/// The locks that a session has of a file.
pub(crate) fn encode_locks(locks: &[FileLock]) -> Vec<u8> {
    let mut to = writer();
    for lock in locks {
        to.u64(lock.owner).u64(lock.start).u64(lock.end).u32(lock.pid);
        to.u8(u8::from(lock.flock)).u8(u8::from(lock.exclusive));
    }
    to.end()
}

pub(crate) fn decode_locks(bytes: &[u8]) -> Option<Vec<FileLock>> {
    whole(bytes, |from| {
        let mut locks = Vec::new();
        while !from.is_at_end() {
            let (owner, start, end, pid) = (from.u64()?, from.u64()?, from.u64()?, from.u32()?);
            let (flock, exclusive) = (from.u8()? != 0, from.u8()? != 0);
            locks.push(FileLock { owner, handle: Handle(0), flock, exclusive, start, end, pid });
        }
        Some(locks)
    })
}

/// How far the filling of a member has come: the next segment.
pub(crate) fn encode_filled(segment: u32) -> Vec<u8> {
    let mut to = writer();
    to.u32(segment);
    to.end()
}

pub(crate) fn decode_filled(bytes: &[u8]) -> Option<u32> {
    whole(bytes, |from| from.u32())
}

/// Extended attributes by name.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn encode_xattrs(all: &Xattrs) -> Vec<u8> {
    let mut to = writer();
    to.u32(all.len() as u32);
    for (name, value) in all {
        to.bytes(name).bytes(value);
    }
    to.end()
}

pub(crate) fn decode_xattrs(bytes: &[u8]) -> Option<Xattrs> {
    whole(bytes, |from| {
        (0..from.u32()?).map(|_| Some((from.bytes()?.to_vec(), from.bytes()?.to_vec()))).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::{Stripe, StripeUnit};
    use std::sync::Arc;

    fn inode() -> InodeRecord {
        let unit = |member| StripeUnit { member, block: 258, sum: 0x0102_0304 };
        let stripe = Arc::new(Stripe { unit: 4096, data: 1, units: vec![unit(2), unit(0)] });
        let extent = Extent { offset: 1, len: 2, skip: 3, stripe };
        InodeRecord {
            size: 3,
            stored: 2,
            stamp: (5, 6),
            has_xattrs: true,
            content: Content::Inline([extent].into_iter().collect()),
            ..InodeRecord::new(0o100_644, (1000, 100), Time { seconds: -1, nanoseconds: 7 })
        }
    }

    #[test]
    fn the_form_of_records_is_fixed() {
        let record = inode();
        let bytes = record.encode();
        assert_eq!(InodeRecord::decode(&bytes), Some(record));
        assert_eq!(crc_fast::crc32_iscsi(&bytes), 4_001_009_487, "the bytes that other hosts know");
        for cut in 0..bytes.len() {
            assert_eq!(InodeRecord::decode(&bytes[..cut]), None);
        }
        assert_eq!(InodeRecord::decode(&[&bytes[..], &[0]].concat()), None);
        let entry = EntryRecord::new(0x0102, 0o40_755);
        assert_eq!(entry.encode(), [1, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0x40, 0]);
        assert!(EntryRecord::decode(&entry.encode()).is_some_and(|entry| entry.is_directory()));
        let segment = SegmentRecord { session: 1, added: 2, freed: 3 };
        assert_eq!(SegmentRecord::decode(&segment.encode()), Some(segment));
        let mut account = Account::default();
        account.add(7, 8);
        account.free(9, 10);
        assert_eq!(Account::decode(&account.encode()), Some(account));
        let xattrs: Xattrs = [(b"user.a".to_vec(), b"1".to_vec())].into();
        assert_eq!(decode_xattrs(&encode_xattrs(&xattrs)), Some(xattrs));
        assert_eq!(decode_session(&encode_session("host")), Some("host".to_owned()));
        assert_eq!(decode_orphan(&encode_orphan(4)), Some(4));
        let names = ["one".to_owned(), "two".to_owned()];
        assert_eq!(decode_unfenced(&encode_unfenced(&names)), Some(names.to_vec()));
    }

    #[test]
    fn keys_list_names_in_their_order() {
        let keys = Keys::new(Uuid::nil());
        let name = [0xff, b'a'];
        let key = keys.entry(258, &name);
        assert_eq!(
            key,
            [b"fs/00000000-0000-0000-0000-000000000000/d\0\0\0\0\0\0\x01\x02", &name[..]].concat()
        );
        assert_eq!(keys.parse(&key, 1), Some((vec![258], &name[..])));
        assert!(keys.entry(258, b"\xff\xff") < keys.entry(259, b""));
        assert!(keys.chunk(1, 255) < keys.chunk(1, 256));
    }
}
