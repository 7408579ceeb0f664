//! The beginning of a session: the request, and its grant or refusal.

use super::codec::{Fields, Malformed, Put};
use super::codes::Coded;
use super::entry::{Digest, Entry};
use super::{BLOCK, BODY_MAX};
use crate::link::noise::Key;
use blake3::hazmat::{HasherExt as _, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};

/// Version of the protocol.
pub const VERSION: u16 = 4;
/// The first bytes of a connection.
const MAGIC: [u8; 8] = *b"longhaul";

/// Bytes hashed at a time: they fit a processor's cache.
const HASH_PIECE: usize = 256 << 10;

/// Direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// The client sends to the agent.
    Push,
    /// The agent sends to the client.
    Pull,
    /// The agent sends to another agent (third-party copy); see [`Request::onward`].
    Onward,
    /// Both: the client mounts the directory [`Request::destination`], and sends [`Frame::Call`](super::Frame::Call)s.
    Mount,
}

/// Checksum of content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hash {
    /// XXH3-128: detects accidental corruption.
    #[default]
    Quick,
    /// BLAKE3: cryptographic, detects deliberate changes too.
    Strong,
}

impl Hash {
    /// The checksum of `content`.
    pub fn of(self, content: &[u8]) -> Digest {
        match self {
            Hash::Quick => {
                let mut digest = Digest::default();
                digest.0[..16].copy_from_slice(&xxhash_rust::xxh3::xxh3_128(content).to_le_bytes());
                digest
            }
            Hash::Strong => Digest(*blake3::hash(content).as_bytes()),
        }
    }

    /// The checksum of the block of a file of `size` bytes that begins at
    /// `offset`. With BLAKE3 it is the block's chaining value, from which that of
    /// the whole file follows ([`Hash::join`]).
    pub(crate) fn of_block(self, content: &[u8], offset: u64, size: u64) -> Digest {
        // Only an aligned block has a chaining value; a peer may send anything.
        let aligned = offset.is_multiple_of(BLOCK as u64) && content.len() <= BLOCK;
        if self == Hash::Quick || size <= BLOCK as u64 || !aligned || content.is_empty() {
            return self.of(content);
        }
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(offset).update(content);
        Digest(hasher.finalize_non_root())
    }

    /// BLAKE3 of a file of `size` bytes, from the checksums of its blocks sorted by offset;
    /// missing blocks are holes.
    pub(crate) fn join(size: u64, blocks: &[(u64, Digest)]) -> Digest {
        let value = |offset: u64| {
            let known = blocks.binary_search_by_key(&offset, |(at, _)| *at);
            known.map(|at| blocks[at].1).unwrap_or_else(|_| {
                let len = (size - offset).min(BLOCK as u64) as usize;
                Hash::Strong.of_block(&vec![0; len], offset, size)
            })
        };
        if size <= BLOCK as u64 {
            return if size == 0 { Hash::Strong.of(&[]) } else { value(0) };
        }
        // BLAKE3 §2.1: the left subtree is the largest full one.
        fn tree(offset: u64, len: u64, value: &impl Fn(u64) -> Digest) -> [u8; 32] {
            if len <= BLOCK as u64 {
                return value(offset).0;
            }
            let left = left_subtree_len(len);
            let (one, other) = (tree(offset, left, value), tree(offset + left, len - left, value));
            merge_subtrees_non_root(&one, &other, Mode::Hash)
        }
        let left = left_subtree_len(size);
        let (one, other) = (tree(0, left, &value), tree(left, size - left, &value));
        Digest(*merge_subtrees_root(&one, &other, Mode::Hash).as_bytes())
    }

    /// The checksum of a whole file.
    ///
    /// # Errors
    /// Reading fails.
    pub(crate) fn of_file(self, file: &crate::tree::File) -> std::io::Result<Digest> {
        self.of_pieces(|buf, offset| crate::send::read::read_full(file, buf, offset))
    }

    /// The checksum of the data from `read`, up to the first buffer that it does not fill.
    pub(crate) fn of_pieces(
        self,
        read: impl Fn(&mut [u8], u64) -> std::io::Result<usize>,
    ) -> std::io::Result<Digest> {
        let mut buf = vec![0; HASH_PIECE];
        let (mut quick, mut strong) = (xxhash_rust::xxh3::Xxh3::new(), blake3::Hasher::new());
        let mut offset = 0;
        loop {
            let len = read(&mut buf, offset)?;
            match self {
                Hash::Quick => quick.update(&buf[..len]),
                Hash::Strong => drop(strong.update(&buf[..len])),
            }
            offset += len as u64;
            if len < buf.len() {
                break;
            }
        }
        let mut digest = Digest::default();
        match self {
            Hash::Quick => digest.0[..16].copy_from_slice(&quick.digest128().to_le_bytes()),
            Hash::Strong => digest.0 = *strong.finalize().as_bytes(),
        }
        Ok(digest)
    }
}

/// Which existing files of the destination count as up to date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compare {
    /// None: everything is sent, without existence queries.
    #[default]
    Nothing,
    /// Those whose name exists.
    Exists,
    /// Those of the same size.
    Size,
    /// Those of the same size and mtime.
    Mtime,
    /// Those of the same content.
    Checksum,
}

/// When written data is flushed to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Never: the kernel writes it back at some time.
    None,
    /// Once, before the copy is reported complete.
    #[default]
    End,
    /// Each file, before it gets its name.
    File,
}

/// Options of the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Checksum of content.
    pub hash: Hash,
    /// Which existing files count as up to date.
    pub compare: Compare,
    /// When data is flushed.
    pub durability: Durability,
    /// Set owner and group (needs privileges).
    pub owner: bool,
    /// Delete objects that the source does not have.
    pub delete: bool,
    /// Report actions, and write nothing.
    pub dry_run: bool,
    /// Read files back after writing, and compare checksums.
    pub verify: bool,
    /// Copy extended attributes and access control lists.
    pub xattrs: bool,
}

/// How sources are placed at the destination path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Into the destination if it is a directory, else in its place.
    #[default]
    Guess,
    /// Into the destination, which is created if it is missing.
    Into,
    /// The content of the source's directory becomes that of the destination.
    Contents,
}

/// The request of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Destination path of the receiver, as typed.
    pub destination: Vec<u8>,
    /// How sources are placed there.
    pub place: Placement,
    /// Paths to send, as the sender knows them. Empty if the client sends.
    pub sources: Vec<Vec<u8>>,
    /// Key of the copy: a run resumes an interrupted one of the same key.
    pub key: u64,
    /// Options of the receiver.
    pub options: Options,
    /// Include and exclude rules; see [`crate::Filter`].
    pub filters: Vec<String>,
    /// Whether directories are descended into.
    pub recursive: bool,
    /// Send only these paths below each source; empty for all.
    pub files: Vec<Vec<u8>>,
    /// Rate limit of the sender in bytes a second; 0 for none.
    pub rate: u64,
    /// The sender uses as many of the streams as improve the rate, not all.
    pub tune_streams: bool,
    /// The destination agent of a third-party copy.
    pub onward: Option<Onward>,
    /// Name of the manifest below the destination, which lists each file with its BLAKE3
    /// checksum; empty for none.
    pub manifest: Vec<u8>,
    /// TCP congestion control of the sender, by the kernel's name; empty for its default.
    pub congestion: String,
}

/// The destination agent of a third-party copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Onward {
    /// Host name or IP address.
    pub host: String,
    /// TCP port of the other agent.
    pub port: u16,
    /// Number of data connections, unless it is tuned.
    pub streams: u16,
    /// Its pre-shared key.
    pub key: Option<Key>,
}

impl Onward {
    fn encode(&self, to: &mut Vec<u8>) {
        to.bytes(self.host.as_bytes());
        to.u16(self.port);
        to.u16(self.streams);
        to.u8(self.key.is_some().into());
        self.key.iter().for_each(|key| to.put(&key.bytes()));
    }

    fn decode(from: &mut Fields<'_>) -> Result<Onward, Malformed> {
        let (host, port, streams) = (from.text()?, from.u16()?, from.u16()?);
        let key = if bool::decode_code(from)? { Some(Key::from_bytes(from.array()?)) } else { None };
        Ok(Onward { host, port, streams, key })
    }
}

/// The first frame of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Oldest protocol version of the client.
    pub oldest: u16,
    /// Newest protocol version of the client.
    pub newest: u16,
    /// Random id from the client; further connections join by it.
    pub session: [u8; 16],
    /// Number of connections, this one included.
    pub streams: u16,
    /// Direction of the data.
    pub direction: CopyDirection,
    /// What the client asks this agent to send or receive.
    pub request: Request,
}

/// The answer that grants a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The protocol version to use.
    pub version: u16,
    /// An interrupted run is resumed: send existence queries first.
    pub resume: bool,
    /// The receiving machine rebooted since that run: compare content.
    pub by_content: bool,
    /// TCP congestion control of the agent; empty if unknown.
    pub congestion: String,
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The request is not permitted.
    NotAllowed,
    /// No common protocol version.
    Version,
    /// A path does not exist, or is of the wrong kind.
    NoSuchPath,
    /// Too many sessions, or the same copy is running.
    Busy,
    /// A protocol violation.
    Protocol,
    /// A storage error of the receiver, such as a full file system.
    Storage,
    /// The destination agent cannot be reached.
    Unreachable,
    /// Any other reason, which the message says.
    Failed,
    /// The destination agent did not answer in time.
    TimedOut,
}

/// The refusal to begin or continue a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind, which decides the exit status.
    pub kind: RefusalKind,
    /// The message for the user.
    pub message: String,
}

impl Refusal {
    /// A refusal that says `message`.
    pub fn new(kind: RefusalKind, message: impl ToString) -> Refusal {
        Refusal { kind, message: message.to_string() }
    }

    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        to.u8(self.kind.code());
        to.words(&self.message);
    }

    pub(crate) fn decode(mut from: Fields<'_>) -> Result<Refusal, Malformed> {
        let kind = RefusalKind::of_code(from.u8()?).unwrap_or(RefusalKind::Failed);
        Ok(Refusal { kind, message: from.words()? })
    }
}

impl Options {
    fn encode(self, to: &mut Vec<u8>) {
        to.u8(self.hash.code());
        to.u8(self.compare.code());
        to.u8(self.durability.code());
        for flag in [self.owner, self.delete, self.dry_run, self.verify, self.xattrs] {
            to.u8(flag.into());
        }
    }

    fn decode(from: &mut Fields<'_>) -> Result<Options, Malformed> {
        Ok(Options {
            hash: Hash::decode_code(from)?,
            compare: Compare::decode_code(from)?,
            durability: Durability::decode_code(from)?,
            owner: bool::decode_code(from)?,
            delete: bool::decode_code(from)?,
            dry_run: bool::decode_code(from)?,
            verify: bool::decode_code(from)?,
            xattrs: bool::decode_code(from)?,
        })
    }
}

impl Request {
    fn encode(&self, to: &mut Vec<u8>) {
        to.bytes(&self.destination);
        to.u8(self.place.code());
        to.u64(self.key);
        self.options.encode(to);
        to.u8(self.recursive.into());
        to.u16(self.sources.len() as u16);
        self.sources.iter().for_each(|source| to.bytes(source));
        to.u16(self.filters.len() as u16);
        self.filters.iter().for_each(|filter| to.bytes(filter.as_bytes()));
        to.u32(self.files.len() as u32);
        self.files.iter().for_each(|file| to.bytes(file));
        to.u64(self.rate);
        to.u8(self.tune_streams.into());
        to.u8(self.onward.is_some().into());
        self.onward.iter().for_each(|onward| onward.encode(to));
        to.bytes(&self.manifest);
        to.bytes(self.congestion.as_bytes());
    }

    /// Whether its encoding fits a frame.
    pub(crate) fn fits(&self) -> bool {
        let mut body = Vec::new();
        self.encode(&mut body);
        body.len() <= BODY_MAX
    }

    fn decode(from: &mut Fields<'_>) -> Result<Request, Malformed> {
        Ok(Request {
            destination: from.bytes()?.to_vec(),
            place: Placement::decode_code(from)?,
            key: from.u64()?,
            options: Options::decode(from)?,
            recursive: bool::decode_code(from)?,
            sources: (0..from.u16()?).map(|_| from.bytes().map(<[u8]>::to_vec)).collect::<Result<_, _>>()?,
            filters: (0..from.u16()?).map(|_| from.text()).collect::<Result<_, _>>()?,
            files: (0..from.u32()?).map(|_| from.bytes().map(<[u8]>::to_vec)).collect::<Result<_, _>>()?,
            rate: from.u64()?,
            tune_streams: bool::decode_code(from)?,
            onward: if bool::decode_code(from)? { Some(Onward::decode(from)?) } else { None },
            manifest: from.bytes()?.to_vec(),
            congestion: from.text()?,
        })
    }
}

impl Hello {
    /// Chooses the protocol version.
    ///
    /// # Errors
    /// There is no common version.
    pub fn negotiate(&self) -> Result<u16, Refusal> {
        if (self.oldest..=self.newest).contains(&VERSION) {
            return Ok(VERSION);
        }
        let (oldest, newest) = (self.oldest, self.newest);
        let message = format!(
            "this side speaks version {VERSION} of the transfer protocol, the other {oldest} to {newest}: \
             use releases that are closer to each other"
        );
        Err(Refusal::new(RefusalKind::Version, message))
    }

    pub(crate) fn encode(&self, head: &mut Vec<u8>, body: &mut Vec<u8>) {
        head.put(&MAGIC);
        head.u16(self.oldest);
        head.u16(self.newest);
        head.put(&self.session);
        head.u16(self.streams);
        head.u8(self.direction.code());
        self.request.encode(body);
    }

    /// Decodes a greeting. The body is not parsed unless there is a common version, so that
    /// a refusal can be sent to any client.
    pub(crate) fn decode(mut head: Fields<'_>, body: &[u8]) -> Result<Hello, Malformed> {
        if head.array()? != MAGIC {
            return Err(Malformed::Value("beginning"));
        }
        let (oldest, newest) = (head.u16()?, head.u16()?);
        let session = head.array()?;
        let streams = head.u16()?;
        let direction = CopyDirection::decode_code(&mut head)?;
        let mut hello = Hello { oldest, newest, session, streams, direction, request: Request::default() };
        if hello.negotiate().is_ok() {
            let mut body = Fields(body);
            hello.request = Request::decode(&mut body)?;
            body.end()?;
        }
        Ok(hello)
    }
}

impl Welcome {
    pub(crate) fn encode(self, to: &mut Vec<u8>) {
        to.u16(self.version);
        to.u8(self.resume.into());
        to.u8(self.by_content.into());
        to.bytes(self.congestion.as_bytes());
    }

    pub(crate) fn decode(mut from: Fields<'_>) -> Result<Welcome, Malformed> {
        Ok(Welcome {
            version: from.u16()?,
            resume: bool::decode_code(&mut from)?,
            by_content: bool::decode_code(&mut from)?,
            congestion: from.words()?,
        })
    }
}

impl Entry {
    /// Whether the existing entry `other` is up to date by `compare`; `None` if content has
    /// to be compared. `same_time` says whether the mtimes are equal at the granularity of
    /// the destination's file system.
    pub fn is_same(&self, other: &Entry, compare: Compare, same_time: bool) -> Option<bool> {
        use super::EntryKind::File;
        if std::mem::discriminant(&self.kind) != std::mem::discriminant(&other.kind) {
            return Some(false);
        }
        if self.kind != File {
            return Some(self.kind == other.kind && compare != Compare::Nothing);
        }
        match compare {
            Compare::Nothing => Some(false),
            Compare::Exists => Some(true),
            Compare::Size => Some(self.size == other.size),
            Compare::Mtime => Some(self.size == other.size && same_time),
            Compare::Checksum if self.size != other.size => Some(false),
            Compare::Checksum => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_file_follows_from_those_of_its_blocks() {
        let noise = |len: usize| -> Vec<u8> { (0..len as u64).map(|i| ((i * i) >> 7) as u8).collect() };
        for len in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK, 5 * BLOCK + 77] {
            let mut data = noise(len);
            // The third block is a hole.
            let hole = 2 * BLOCK..(3 * BLOCK).min(len).max(2 * BLOCK);
            if let Some(part) = data.get_mut(hole) {
                part.fill(0);
            }
            let blocks: Vec<_> = data
                .chunks(BLOCK)
                .enumerate()
                .filter(|(i, _)| *i != 2)
                .map(|(i, block)| ((i * BLOCK) as u64, block))
                .map(|(at, block)| (at, Hash::Strong.of_block(block, at, len as u64)))
                .collect();
            assert_eq!(Hash::join(len as u64, &blocks), Hash::Strong.of(&data), "{len} bytes");
        }
    }

    #[test]
    fn control_characters_of_a_peers_text_are_escaped() {
        let sent = |message: &str| {
            let mut bytes = Vec::new();
            Refusal::new(RefusalKind::Busy, message).encode(&mut bytes);
            Refusal::decode(Fields(&bytes)).expect("a refusal").message
        };
        assert_eq!(sent("später"), "später");
        assert_eq!(sent("\x1b[2J\nlonghaul: done"), "\\x1b[2J\\nlonghaul: done");
    }

    #[test]
    fn escaped_text_of_a_peer_still_fits_a_frame() {
        // Escaped, it is four times as long as it came.
        let long = Refusal::new(RefusalKind::Busy, super::super::show(&[1; 5000]));
        let (head, _) = super::super::Frame::Refuse(long).encode();
        let header = super::super::Header::decode(*head.first_chunk().expect("a header"));
        assert!(header.is_ok(), "{} bytes of head", head.len());
    }

    #[test]
    fn a_block_is_bound_to_its_place() {
        let block = vec![1; BLOCK];
        let at = |offset| Hash::Strong.of_block(&block, offset, 4 * BLOCK as u64);
        assert_ne!(at(0), at(BLOCK as u64));
    }
}
