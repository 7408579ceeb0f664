//! Frames, and batches of entries in them.

use super::codec::{Fields, Malformed, Put};
use super::entry::{Content, Digest, Entry};
use super::hello::{Hello, Refusal, Welcome};
use super::name::RelPath;
use super::{BATCH_BYTES, BATCH_ENTRIES, BODY_MAX, HEAD_MAX, HEADER_LEN};
use longhaul_engine::Buf;

/// What was done when something went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Looking for files.
    Scan,
    /// Reading a file.
    Read,
    /// The file changed meanwhile.
    Changed,
    /// Writing a file or making another object.
    Write,
    /// Setting modes, times, owners or attributes.
    Metadata,
    /// Comparing what was written with what was sent.
    Verify,
    /// Removing what the source does not have.
    Delete,
    /// Leaving out a name that no copy takes: no failure. The message is the name,
    /// as [`show`](super::show) has it.
    Skip,
}

impl Op {
    const ALL: [Op; 8] =
        [Op::Scan, Op::Read, Op::Changed, Op::Write, Op::Metadata, Op::Verify, Op::Delete, Op::Skip];

    /// A word for it.
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

/// One object that could not be copied. The others go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its name.
    pub path: RelPath,
    /// What was done.
    pub op: Op,
    /// What the system says, in words.
    pub message: String,
}

/// What a run that changes nothing would do with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send its content.
    Send,
    /// Make it: a directory or a link.
    Make,
    /// Set its mode, owner, time or attributes.
    Metadata,
    /// Remove it.
    Delete,
}

impl Action {
    const ALL: [Action; 4] = [Action::Send, Action::Make, Action::Metadata, Action::Delete];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Action::Send => "send",
            Action::Make => "make",
            Action::Metadata => "metadata",
            Action::Delete => "delete",
        }
    }
}

/// Something that would be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// With what, by its name at the source; of what is removed, at the destination.
    pub path: RelPath,
    /// What.
    pub action: Action,
}

/// A stage of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Looking for files.
    Scan,
    /// Reading them.
    Read,
    /// The network, and the side of it that is not here.
    Send,
    /// Writing them.
    Write,
}

impl Stage {
    const ALL: [Stage; 4] = [Stage::Scan, Stage::Read, Stage::Send, Stage::Write];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Scan => "scan",
            Stage::Read => "read",
            Stage::Send => "network",
            Stage::Write => "write",
        }
    }
}

/// What the rest of a copy waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A stage of the pipeline.
    Stage(Stage),
    /// The rate that was asked for.
    Rate,
    /// The other side, which says nothing.
    Silence,
}

impl Limit {
    const ALL: [Limit; 6] = [
        Limit::Stage(Stage::Scan),
        Limit::Stage(Stage::Read),
        Limit::Stage(Stage::Send),
        Limit::Stage(Stage::Write),
        Limit::Rate,
        Limit::Silence,
    ];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Stage(stage) => stage.name(),
            Limit::Rate => "bwlimit",
            Limit::Silence => "other side",
        }
    }
}

/// A side uses another number of threads or connections now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuned {
    /// Threads of this stage, or connections.
    pub stage: Stage,
    /// So many before.
    pub from: u16,
    /// So many now.
    pub to: u16,
    /// Why.
    pub why: String,
}

/// The end of a file that comes in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// Its number.
    pub file: u64,
    /// How many blocks were sent.
    pub blocks: u32,
    /// Whether all is well with them: else what came is not to be used.
    pub good: bool,
}

/// What has been done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files complete.
    pub files: u64,
    /// Other objects complete: directories, links.
    pub others: u64,
    /// Bytes of content written.
    pub bytes: u64,
    /// Objects that were there already.
    pub same: u64,
    /// Objects that were asked about and are wanted.
    pub wanted: u64,
    /// Objects removed.
    pub deleted: u64,
    /// Objects that could not be done.
    pub failed: u64,
    /// Files that were there already, but for a mode, owner, time or attribute.
    pub metadata: u64,
    /// Bytes of content that need not be sent: of files that were there already, and
    /// of what a run before has written.
    pub skipped: u64,
}

/// What was found to be sent, or to be asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// There are no more.
    pub done: bool,
}

/// An answer about an entry that was asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Which one of the batch.
    pub index: u32,
    /// Blocks that are there from a run before, a bit each, the first lowest.
    pub have: Box<[u8]>,
}

/// What travels.
#[derive(Clone, Debug)]
pub enum Frame {
    /// Who connects wants a session.
    Hello(Box<Hello>),
    /// Another connection for a session.
    Join([u8; 16]),
    /// A message of the handshake; behind it the connection is encrypted.
    Secure(Box<[u8]>),
    /// The session is granted.
    Welcome(Welcome),
    /// It is not, or not any more.
    Refuse(Refusal),
    /// Entries, with content where it is small: a [`Batch`].
    Batch(Buf),
    /// Entries without content: which of them are wanted?
    Ask {
        /// Number of the question.
        number: u32,
        /// A [`Batch`].
        batch: Buf,
    },
    /// The answer.
    Wanted {
        /// Number of the question.
        number: u32,
        /// Those that are wanted, in order.
        wants: Vec<Want>,
    },
    /// A block of a file.
    Block {
        /// Number of the file.
        file: u64,
        /// Where in the file.
        offset: u64,
        /// Checksum of the data.
        digest: Digest,
        /// The data.
        data: Buf,
    },
    /// All blocks of a file were sent, on whatever stream.
    Close(Close),
    /// Something could not be copied.
    Trouble(Trouble),
    /// Something would be done, if anything were.
    Planned(Planned),
    /// Who says this uses another number of something now.
    Tuned(Tuned),
    /// What of the side that says this the rest waits for, if anything.
    Limit(Option<Limit>),
    /// How far the receiving side is.
    Progress(Counts),
    /// How much there is to send, as far as it is known.
    Scanned(Scanned),
    /// No more comes on this connection.
    End {
        /// The source saw everything that it was to send: what is not among it
        /// may be deleted.
        whole: bool,
    },
    /// Everything is done, as durable as it was asked for.
    Finished(Counts),
}

/// Bits of blocks of one file that are there already, in bytes: what a field holds,
/// for the first 512 GiB of it.
pub(crate) const HAVE_MAX: usize = u16::MAX as usize;
/// Bits of blocks that are there already, in bytes, of all files of an answer:
/// what leaves room for the rest of it in a frame.
const HAVE_BYTES_MAX: usize = BODY_MAX / 2;

const HELLO: u8 = 1;
const JOIN: u8 = 2;
const WELCOME: u8 = 3;
const REFUSE: u8 = 4;
const BATCH: u8 = 5;
const ASK: u8 = 6;
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
    /// Unknown kind, or lengths beyond the limits of the kind: nothing is to be received.
    pub fn decode(bytes: [u8; HEADER_LEN]) -> Result<Header, Malformed> {
        let mut from = Fields(&bytes);
        let (kind, zero) = (from.u8()?, from.u8()?);
        let (head, body) = (usize::from(from.u16()?), from.u32()? as usize);
        let bulk = matches!(kind, HELLO | BATCH | ASK | WANTED | BLOCK);
        let most = if bulk { BODY_MAX } else { 0 };
        let good = (HELLO..=PLANNED).contains(&kind) && zero == 0 && head <= HEAD_MAX && body <= most;
        if good { Ok(Header { kind, head, body }) } else { Err(Malformed::Value("header")) }
    }

    /// Whether it is that of a frame that a connection may begin with.
    pub(crate) fn begins(&self) -> bool {
        matches!(self.kind, HELLO | JOIN | SECURE)
    }

    /// Whether it is that of a [`Frame::Secure`].
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
    /// The frame as it travels: header and head, and the body behind them.
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
            Frame::Ask { number, batch } => {
                head.u32(number);
                body = Some(batch);
                ASK
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
                head.u8(Op::ALL.iter().position(|op| *op == trouble.op).unwrap_or(0) as u8);
                head.bytes(trouble.path.as_bytes());
                head.words(&trouble.message);
                TROUBLE
            }
            Frame::Planned(planned) => {
                head.u8(Action::ALL.iter().position(|action| *action == planned.action).unwrap_or(0) as u8);
                head.bytes(planned.path.as_bytes());
                PLANNED
            }
            Frame::Tuned(tuned) => {
                head.u8(Stage::ALL.iter().position(|stage| *stage == tuned.stage).unwrap_or(0) as u8);
                head.u16(tuned.from);
                head.u16(tuned.to);
                head.words(&tuned.why);
                TUNED
            }
            Frame::Limit(limit) => {
                let place = limit.and_then(|limit| Limit::ALL.iter().position(|one| *one == limit));
                head.u8(place.map_or(0, |place| place as u8 + 1));
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
        };
        let body = body.filter(|body| !body.is_empty());
        let lens = ((head.len() - HEADER_LEN) as u16, body.as_ref().map_or(0, |body| body.len()) as u32);
        head[0] = kind;
        head[2..4].copy_from_slice(&lens.0.to_le_bytes());
        head[4..8].copy_from_slice(&lens.1.to_le_bytes());
        (head, body)
    }

    /// Puts a frame together from what was received.
    ///
    /// # Errors
    /// It makes no sense. Batches are looked into later.
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
            ASK => Frame::Ask { number: from.u32()?, batch: body },
            WANTED => Frame::Wanted { number: from.u32()?, wants: decode_wants(&body)? },
            BLOCK => {
                let (file, offset) = (from.u64()?, from.u64()?);
                Frame::Block { file, offset, digest: Digest(from.array()?), data: body }
            }
            CLOSE => Frame::Close(Close { file: from.u64()?, blocks: from.u32()?, good: from.u8()? == 1 }),
            TROUBLE => {
                let op = *Op::ALL.get(usize::from(from.u8()?)).ok_or(Malformed::Value("operation"))?;
                Frame::Trouble(Trouble { op, path: RelPath::new(from.bytes()?)?, message: from.words()? })
            }
            PLANNED => {
                let action = *Action::ALL.get(usize::from(from.u8()?)).ok_or(Malformed::Value("action"))?;
                Frame::Planned(Planned { action, path: RelPath::new(from.bytes()?)? })
            }
            TUNED => {
                let stage = *Stage::ALL.get(usize::from(from.u8()?)).ok_or(Malformed::Value("stage"))?;
                Frame::Tuned(Tuned { stage, from: from.u16()?, to: from.u16()?, why: from.words()? })
            }
            LIMIT => Frame::Limit(match from.u8()? {
                0 => None,
                place => {
                    let limit = Limit::ALL.get(usize::from(place) - 1);
                    Some(*limit.ok_or(Malformed::Value("limit"))?)
                }
            }),
            PROGRESS => Frame::Progress(Counts::decode(from)?),
            SCANNED => {
                Frame::Scanned(Scanned { files: from.u64()?, bytes: from.u64()?, done: from.u8()? == 1 })
            }
            END => Frame::End { whole: from.u8()? == 1 },
            FINISHED => Frame::Finished(Counts::decode(from)?),
            _ => return Err(Malformed::Value("kind of frame")),
        })
    }

    /// Bytes of content in it, for what bounds queues.
    pub fn weight(&self) -> usize {
        match self {
            Frame::Batch(body) | Frame::Ask { batch: body, .. } | Frame::Block { data: body, .. } => {
                body.len()
            }
            _ => 0,
        }
    }
}

fn encode_wants(wants: &[Want]) -> Buf {
    let mut bytes = Vec::new();
    for want in wants {
        bytes.u32(want.index);
        // What does not fit is sent again: the rest of a very large file, or of many.
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

/// Entries on their way into a frame.
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

    /// Whether it is time to send it.
    pub fn is_full(&self) -> bool {
        self.entries >= BATCH_ENTRIES || self.bytes.len() >= BATCH_BYTES
    }

    /// How many entries are in it.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The body of a frame.
    pub fn into_body(self) -> Buf {
        Buf::copy_of(&self.bytes)
    }
}

/// Takes a batch apart. Ends at the first entry that makes no sense.
#[derive(Debug)]
pub struct BatchReader<'a>(Fields<'a>);

impl<'a> BatchReader<'a> {
    /// Over the body of a frame.
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
