//! Frames, and batches of entries in them.

use super::call;
use super::codec::{Fields, Malformed, Put};
use super::codes::Coded;
use super::entry::{Content, Digest, Entry};
use super::hello::{Hello, Refusal, Welcome};
use super::name::RelPath;
use super::{BATCH_BYTES, BATCH_ENTRIES, BODY_MAX, HEAD_MAX, HEADER_LEN};
use longhaul_engine::Buf;
use longhaul_fs::{Call, Errno, Reply};

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Listing the directories of the source.
    Scan,
    /// Reading a file.
    Read,
    /// Reading a file that changed meanwhile.
    Changed,
    /// Writing a file or creating another object.
    Write,
    /// Setting modes, times, owners or attributes.
    Metadata,
    /// Verifying a checksum.
    Verify,
    /// Deleting an object that the source does not have.
    Delete,
    /// Skipping a reserved name, which is no failure. The message is the name, escaped by
    /// [`show`](super::show).
    Skip,
}

impl Op {
    /// Its name in messages and records.
    pub fn name(self) -> &'static str {
        match self {
            Op::Scan => "scan",
            Op::Read => "read",
            Op::Changed => "changed",
            Op::Write => "write",
            Op::Metadata => "metadata",
            Op::Verify => "verify",
            Op::Delete => "delete",
            Op::Skip => "skip",
        }
    }
}

/// The failure of one object; the copy continues with the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Path of the object.
    pub path: RelPath,
    /// The operation that failed.
    pub op: Op,
    /// Why it failed, as a sentence without the path.
    pub message: String,
}

/// An action that a dry run reports for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send its content.
    Send,
    /// Create a directory or link.
    Make,
    /// Set its mode, owner, time or attributes.
    Metadata,
    /// Remove it: the source does not have it.
    Delete,
}

impl Action {
    /// Its name in messages and records.
    pub fn name(self) -> &'static str {
        match self {
            Action::Send => "send",
            Action::Make => "make",
            Action::Metadata => "metadata",
            Action::Delete => "delete",
        }
    }
}

/// An action of a dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Path at the source; of a deletion, at the destination.
    pub path: RelPath,
    /// The action that the copy would take.
    pub action: Action,
}

/// A stage of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Listing the directories of the source.
    Scan,
    /// Reading files of the source.
    Read,
    /// The network, and the peer behind it.
    Send,
    /// Writing files at the destination.
    Write,
}

impl Stage {
    /// Its name in messages and records.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Scan => "scan",
            Stage::Read => "read",
            Stage::Send => "network",
            Stage::Write => "write",
        }
    }
}

/// What limits a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A stage of the pipeline.
    Stage(Stage),
    /// The requested rate limit.
    Rate,
    /// The peer, which is silent.
    Silence,
}

/// The number of a [`Frame::Limit`] that says that nothing limits the copy.
const NO_LIMIT: u8 = 0;

impl Limit {
    /// Its name in messages and records.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Stage(stage) => stage.name(),
            Limit::Rate => "bwlimit",
            Limit::Silence => "other side",
        }
    }
}

/// A change of a number of threads or connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuned {
    /// The stage; [`Stage::Send`] means connections.
    pub stage: Stage,
    /// The number before.
    pub from: u16,
    /// The number now.
    pub to: u16,
    /// The reason, in words.
    pub why: String,
}

/// The end of a file that is sent in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// Number of the file.
    pub file: u64,
    /// Number of blocks sent.
    pub blocks: u32,
    /// Whether the file was read without error or change; else the receiver discards it.
    pub good: bool,
}

/// Objects and bytes of a copy by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of files.
    pub files: u64,
    /// Other objects complete: directories, links.
    pub others: u64,
    /// Bytes of content written.
    pub bytes: u64,
    /// Objects that were up to date.
    pub same: u64,
    /// Queried files that are needed.
    pub wanted: u64,
    /// Number of objects that were removed.
    pub deleted: u64,
    /// Objects that failed.
    pub failed: u64,
    /// Up-to-date files whose mode, owner, time or attributes were changed.
    pub metadata: u64,
    /// Bytes of content that were not sent: of up-to-date files, and of blocks that an
    /// earlier run wrote.
    pub skipped: u64,
}

/// Progress of the scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Number of files.
    pub files: u64,
    /// Sum of their sizes, in bytes.
    pub bytes: u64,
    /// Whether the scan is complete.
    pub done: bool,
}

/// A queried file that the receiver needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Index in the batch of the query.
    pub index: u32,
    /// Bitmap of the blocks that the receiver has, least significant bit first.
    pub have: Box<[u8]>,
}

/// A message of the protocol, on the control or a data connection.
#[derive(Clone, Debug)]
pub enum Frame {
    /// Requests a session.
    Hello(Box<Hello>),
    /// Joins a further connection to a session.
    Join([u8; 16]),
    /// A handshake message; the connection is encrypted after it.
    Secure(Box<[u8]>),
    /// The session is granted.
    Welcome(Welcome),
    /// The session is refused, or ended with an error.
    Refuse(Refusal),
    /// Entries, with content where it is small: a [`Batch`].
    Batch(Buf),
    /// An existence query: entries without content.
    Query {
        /// Number of the query.
        number: u32,
        /// Encoded [`Batch`] of small files.
        batch: Buf,
    },
    /// The answer to a query.
    Wanted {
        /// Number of the query.
        number: u32,
        /// The needed files, in order of the batch.
        wants: Vec<Want>,
    },
    /// A block of a file.
    Block {
        /// Number of the file.
        file: u64,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Checksum of the data.
        digest: Digest,
        /// Content of the block.
        data: Buf,
    },
    /// All blocks of a file were sent, on any stream.
    Close(Close),
    /// An object could not be copied.
    Trouble(Trouble),
    /// An action of a dry run.
    Planned(Planned),
    /// A number of threads or connections of the sending side of this frame changed.
    Tuned(Tuned),
    /// What limits the copy on the side that sends this frame, if it is known.
    Limit(Option<Limit>),
    /// Counts of the receiver so far.
    Progress(Counts),
    /// Progress of the scan.
    Scanned(Scanned),
    /// The last frame of the sender on this connection.
    End {
        /// The source was scanned and read completely, so that other names may be deleted.
        whole: bool,
    },
    /// The copy is complete, and durable as requested.
    Finished(Counts),
    /// A call to the file system of a mount.
    Call {
        /// Number of the call, which its reply has too.
        id: u64,
        /// The call.
        call: Call,
    },
    /// The reply to a call; replies come in any order.
    Reply {
        /// Number of the call.
        id: u64,
        /// The reply, or the error of the file system.
        reply: Result<Reply, Errno>,
    },
}

/// The longest bitmap of one file, in bytes: what a field holds, for its first 512 GiB.
pub(crate) const HAVE_MAX: usize = u16::MAX as usize;
/// The longest bitmaps of all files of an answer together, in bytes, so that the answer
/// fits a frame.
const HAVE_BYTES_MAX: usize = BODY_MAX / 2;

const HELLO: u8 = 1;
const JOIN: u8 = 2;
const WELCOME: u8 = 3;
const REFUSE: u8 = 4;
const BATCH: u8 = 5;
const QUERY: u8 = 6;
const WANTED: u8 = 7;
const BLOCK: u8 = 8;
const CLOSE: u8 = 9;
const TROUBLE: u8 = 10;
const PROGRESS: u8 = 11;
const END: u8 = 12;
const FINISHED: u8 = 13;
const SECURE: u8 = 14;
const TUNED: u8 = 15;
const LIMIT: u8 = 16;
const SCANNED: u8 = 17;
const PLANNED: u8 = 18;
const CALL: u8 = 19;
const REPLY: u8 = 20;

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    kind: u8,
    /// Bytes of the head.
    pub head: usize,
    /// Bytes of the body.
    pub body: usize,
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// The kind is unknown, or a length exceeds the limit of the kind.
    pub fn decode(bytes: [u8; HEADER_LEN]) -> Result<Header, Malformed> {
        let mut from = Fields(&bytes);
        let (kind, zero) = (from.u8()?, from.u8()?);
        let (head, body) = (usize::from(from.u16()?), from.u32()? as usize);
        let bulk = matches!(kind, HELLO | BATCH | QUERY | WANTED | BLOCK | CALL | REPLY);
        let most = if bulk { BODY_MAX } else { 0 };
        let good = (HELLO..=REPLY).contains(&kind) && zero == 0 && head <= HEAD_MAX && body <= most;
        if good { Ok(Header { kind, head, body }) } else { Err(Malformed::Value("header")) }
    }

    /// Whether a connection may begin with a frame of this kind.
    pub(crate) fn begins(&self) -> bool {
        matches!(self.kind, HELLO | JOIN | SECURE)
    }

    /// Whether it is the header of a [`Frame::Secure`].
    pub(crate) fn secures(&self) -> bool {
        self.kind == SECURE
    }
}

impl Counts {
    fn encode(&self, to: &mut Vec<u8>) {
        let Counts { files, others, bytes, same, wanted, deleted, failed, metadata, skipped } = *self;
        let all = [files, others, bytes, same, wanted, deleted, failed, metadata, skipped];
        all.iter().for_each(|n| to.u64(*n));
    }

    fn decode(mut from: Fields<'_>) -> Result<Counts, Malformed> {
        Ok(Counts {
            files: from.u64()?,
            others: from.u64()?,
            bytes: from.u64()?,
            same: from.u64()?,
            wanted: from.u64()?,
            deleted: from.u64()?,
            failed: from.u64()?,
            metadata: from.u64()?,
            skipped: from.u64()?,
        })
    }
}

impl Frame {
    /// Encodes the frame: header and head, and the body that follows them.
    pub fn encode(self) -> (Vec<u8>, Option<Buf>) {
        let mut head = vec![0; HEADER_LEN];
        let mut body = None;
        let kind = match self {
            Frame::Hello(hello) => {
                let mut request = Vec::new();
                hello.encode(&mut head, &mut request);
                body = Some(Buf::copy_of(&request));
                HELLO
            }
            Frame::Join(session) => {
                head.put(&session);
                JOIN
            }
            Frame::Secure(message) => {
                head.put(&message);
                SECURE
            }
            Frame::Welcome(welcome) => {
                welcome.encode(&mut head);
                WELCOME
            }
            Frame::Refuse(refusal) => {
                refusal.encode(&mut head);
                REFUSE
            }
            Frame::Batch(batch) => {
                body = Some(batch);
                BATCH
            }
            Frame::Query { number, batch } => {
                head.u32(number);
                body = Some(batch);
                QUERY
            }
            Frame::Wanted { number, wants } => {
                head.u32(number);
                body = Some(encode_wants(&wants));
                WANTED
            }
            Frame::Block { file, offset, digest, data } => {
                head.u64(file);
                head.u64(offset);
                head.put(&digest.0);
                body = Some(data);
                BLOCK
            }
            Frame::Close(close) => {
                head.u64(close.file);
                head.u32(close.blocks);
                head.u8(close.good.into());
                CLOSE
            }
            Frame::Trouble(trouble) => {
                head.u8(trouble.op.code());
                head.bytes(trouble.path.as_bytes());
                head.words(&trouble.message);
                TROUBLE
            }
            Frame::Planned(planned) => {
                head.u8(planned.action.code());
                head.bytes(planned.path.as_bytes());
                PLANNED
            }
            Frame::Tuned(tuned) => {
                head.u8(tuned.stage.code());
                head.u16(tuned.from);
                head.u16(tuned.to);
                head.words(&tuned.why);
                TUNED
            }
            Frame::Limit(limit) => {
                head.u8(limit.map_or(NO_LIMIT, Limit::code));
                LIMIT
            }
            Frame::Progress(counts) => {
                counts.encode(&mut head);
                PROGRESS
            }
            Frame::Scanned(scanned) => {
                head.u64(scanned.files);
                head.u64(scanned.bytes);
                head.u8(scanned.done.into());
                SCANNED
            }
            Frame::End { whole } => {
                head.u8(whole.into());
                END
            }
            Frame::Finished(counts) => {
                counts.encode(&mut head);
                FINISHED
            }
            Frame::Call { id, call } => {
                head.u64(id);
                body = call::encode_call(call, &mut head);
                CALL
            }
            Frame::Reply { id, reply } => {
                head.u64(id);
                body = call::encode_reply(reply, &mut head);
                REPLY
            }
        };
        let body = body.filter(|body| !body.is_empty());
        let lens = ((head.len() - HEADER_LEN) as u16, body.as_ref().map_or(0, |body| body.len()) as u32);
        head[0] = kind;
        head[2..4].copy_from_slice(&lens.0.to_le_bytes());
        head[4..8].copy_from_slice(&lens.1.to_le_bytes());
        (head, body)
    }

    /// Decodes a frame.
    ///
    /// # Errors
    /// The frame is malformed. Batches are parsed later.
    pub fn decode(header: Header, head: &[u8], body: Buf) -> Result<Frame, Malformed> {
        let mut from = Fields(head);
        if body.len() != header.body {
            return Err(Malformed::Value("body"));
        }
        Ok(match header.kind {
            HELLO => Frame::Hello(Box::new(Hello::decode(from, &body)?)),
            JOIN => Frame::Join(from.array()?),
            SECURE => Frame::Secure(head.into()),
            WELCOME => Frame::Welcome(Welcome::decode(from)?),
            REFUSE => Frame::Refuse(Refusal::decode(from)?),
            BATCH => Frame::Batch(body),
            QUERY => Frame::Query { number: from.u32()?, batch: body },
            WANTED => Frame::Wanted { number: from.u32()?, wants: decode_wants(&body)? },
            BLOCK => {
                let (file, offset) = (from.u64()?, from.u64()?);
                Frame::Block { file, offset, digest: Digest(from.array()?), data: body }
            }
            CLOSE => Frame::Close(Close { file: from.u64()?, blocks: from.u32()?, good: from.u8()? == 1 }),
            TROUBLE => {
                let op = Op::decode_code(&mut from)?;
                Frame::Trouble(Trouble { op, path: RelPath::new(from.bytes()?)?, message: from.words()? })
            }
            PLANNED => {
                let action = Action::decode_code(&mut from)?;
                Frame::Planned(Planned { action, path: RelPath::new(from.bytes()?)? })
            }
            TUNED => {
                let stage = Stage::decode_code(&mut from)?;
                Frame::Tuned(Tuned { stage, from: from.u16()?, to: from.u16()?, why: from.words()? })
            }
            LIMIT => Frame::Limit(match from.u8()? {
                NO_LIMIT => None,
                code => Some(Limit::of_code(code).ok_or(Malformed::Value(Limit::NAME))?),
            }),
            PROGRESS => Frame::Progress(Counts::decode(from)?),
            SCANNED => {
                Frame::Scanned(Scanned { files: from.u64()?, bytes: from.u64()?, done: from.u8()? == 1 })
            }
            END => Frame::End { whole: from.u8()? == 1 },
            FINISHED => Frame::Finished(Counts::decode(from)?),
            CALL => Frame::Call { id: from.u64()?, call: call::decode_call(from, body)? },
            REPLY => Frame::Reply { id: from.u64()?, reply: call::decode_reply(from, body)? },
            _ => return Err(Malformed::Value("kind of frame")),
        })
    }

    /// Bytes of content, its weight in queues.
    pub fn weight(&self) -> usize {
        match self {
            Frame::Batch(body) | Frame::Query { batch: body, .. } | Frame::Block { data: body, .. } => {
                body.len()
            }
            Frame::Reply { reply: Ok(Reply::Data(data)), .. }
            | Frame::Call { call: Call::Write { data, .. }, .. } => data.len(),
            _ => 0,
        }
    }
}

fn encode_wants(wants: &[Want]) -> Buf {
    let mut bytes = Vec::new();
    for want in wants {
        bytes.u32(want.index);
        // Blocks beyond the bitmap are resent.
        let fits = bytes.len() < HAVE_BYTES_MAX;
        bytes.bytes(if fits { &want.have[..want.have.len().min(HAVE_MAX)] } else { &[] });
    }
    Buf::copy_of(&bytes)
}

fn decode_wants(bytes: &[u8]) -> Result<Vec<Want>, Malformed> {
    let mut from = Fields(bytes);
    let mut wants = Vec::new();
    while !from.is_empty() {
        wants.push(Want { index: from.u32()?, have: from.bytes()?.into() });
    }
    Ok(wants)
}

/// Collects entries for a frame.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    entries: usize,
}

impl Batch {
    /// Adds an entry, with its content if that is [`Content::Inline`].
    pub fn push(&mut self, entry: &Entry, content: &Content, data: &[u8]) {
        entry.encode(content, &mut self.bytes);
        self.bytes.put(data);
        self.entries += 1;
    }

    /// Whether the batch should be sent.
    pub fn is_full(&self) -> bool {
        self.entries >= BATCH_ENTRIES || self.bytes.len() >= BATCH_BYTES
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Encodes the batch as the body of a frame.
    pub fn into_body(self) -> Buf {
        Buf::copy_of(&self.bytes)
    }
}

/// Decodes the entries of a batch. Ends at the first malformed entry.
#[derive(Debug)]
pub struct BatchReader<'a>(Fields<'a>);

impl<'a> BatchReader<'a> {
    /// Reads the body of a frame.
    pub fn new(body: &'a [u8]) -> BatchReader<'a> {
        BatchReader(Fields(body))
    }

    fn entry(&mut self) -> Result<(Entry, Content, &'a [u8]), Malformed> {
        let (entry, content) = Entry::decode(&mut self.0)?;
        let data = match content {
            Content::Inline { len, .. } => self.0.take(len as usize)?,
            _ => &[],
        };
        Ok((entry, content, data))
    }
}

impl<'a> Iterator for BatchReader<'a> {
    type Item = Result<(Entry, Content, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = self.entry();
        if entry.is_err() {
            self.0 = Fields(&[]);
        }
        Some(entry)
    }
}
