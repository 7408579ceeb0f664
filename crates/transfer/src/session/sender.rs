//! The sending side of a session.
//!
//! Invariants:
//! - a stream's `announced` holds the files that are announced on it and not yet
//!   closed, so it does not grow with the number of files;
//! - `queries` holds an existence query from when it is sent until it is answered.

use super::{OPEN_QUERIES, Violation};
use crate::wire::{
    Batch, Close, Content, Counts, Digest, Entry, Frame, Limit, Op, Planned, Refusal, Scanned, Trouble,
    Tuned, Want,
};
use longhaul_engine::Buf;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A file that is sent in blocks.
#[derive(Debug)]
pub struct Outgoing {
    /// Its number in the session.
    pub number: u64,
    /// Its path and metadata.
    pub entry: Entry,
}

/// A unit of work for the connections: each is sent on one stream, whichever is free.
#[derive(Debug)]
pub enum SenderItem {
    /// Entries with all their content: the body of a [`Frame::Batch`].
    Batch(Buf),
    /// A block of a file.
    Block {
        /// The large file that the block belongs to.
        file: Arc<Outgoing>,
        /// Offset in bytes.
        offset: u64,
        /// Checksum of the data.
        digest: Digest,
        /// Content: [`BLOCK`](crate::wire::BLOCK) bytes, or fewer at the end of the file.
        data: Buf,
    },
    /// The end of a file: all of its blocks were queued.
    Close {
        /// The large file that the block belongs to.
        file: Arc<Outgoing>,
        /// Number of blocks sent.
        blocks: u32,
        /// Whether the file did not change while it was read.
        good: bool,
    },
    /// An existence query: entries whose files may be up to date at the destination.
    Query {
        /// Its number, from [`Sender::query`].
        number: u32,
        /// The entries, without content.
        batch: Buf,
    },
    /// An object that could not be read.
    Trouble(Trouble),
    /// A changed number of threads or connections.
    Tuned(Tuned),
    /// The limiting stage on this side.
    Limit(Option<Limit>),
    /// Progress of the scan.
    Scanned(Scanned),
}

/// A file that the receiver needs, and a bitmap of the blocks that it has already.
pub type WantedFile<T> = (T, Box<[u8]>);

/// A message of the receiver.
#[derive(Debug)]
pub enum ReceiverMessage<T> {
    /// The files of a query that the receiver needs.
    Wanted(Vec<WantedFile<T>>),
    /// An object that could not be written.
    Trouble(Trouble),
    /// An action of a dry run.
    Planned(Planned),
    /// A changed number of threads.
    Tuned(Tuned),
    /// The limiting stage of the receiver.
    Limit(Option<Limit>),
    /// Counts of all objects written until now.
    Progress(Counts),
    /// Progress of its scan, in a third-party copy.
    Scanned(Scanned),
    /// The copy is complete.
    Finished(Counts),
    /// The receiver ended the session.
    Refused(Refusal),
}

/// The sending half of a session over several streams. `T` is the caller's handle of a
/// queried file, which [`ReceiverMessage::Wanted`] gives back.
///
/// Call [`frames`](Self::frames) for each [`SenderItem`] and send what it returns on
/// that stream, in order; when there are no more items, [`end`](Self::end) on
/// each stream. Give every frame that arrives to [`handle`](Self::handle).
#[derive(Debug)]
pub struct Sender<T> {
    announced: Vec<HashSet<u64>>,
    queries: HashMap<u32, Vec<T>>,
    next: u32,
    troubles: u64,
}

impl<T> Sender<T> {
    /// For a session of `streams` streams.
    pub fn new(streams: usize) -> Sender<T> {
        Sender { announced: vec![HashSet::new(); streams], queries: HashMap::new(), next: 0, troubles: 0 }
    }

    /// Whether another query may be sent.
    pub fn may_query(&self) -> bool {
        self.queries.len() < OPEN_QUERIES
    }

    /// Whether all queries are answered.
    pub fn is_answered(&self) -> bool {
        self.queries.is_empty()
    }

    /// Number of objects that could not be read.
    pub fn troubles(&self) -> u64 {
        self.troubles
    }

    /// Registers the files of a query; returns its number.
    pub fn query(&mut self, about: Vec<T>) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.queries.insert(number, about);
        number
    }

    /// Appends the frames to send on `stream` for an item.
    pub fn frames(&mut self, stream: usize, item: SenderItem, out: &mut Vec<Frame>) {
        match item {
            SenderItem::Batch(batch) => out.push(Frame::Batch(batch)),
            SenderItem::Block { file, offset, digest, data } => {
                self.announce(stream, &file, out);
                out.push(Frame::Block { file: file.number, offset, digest, data });
            }
            SenderItem::Close { file, blocks, good } => {
                self.announce(stream, &file, out);
                for announced in &mut self.announced {
                    announced.remove(&file.number);
                }
                out.push(Frame::Close(Close { file: file.number, blocks, good }));
            }
            SenderItem::Query { number, batch } => out.push(Frame::Query { number, batch }),
            SenderItem::Trouble(trouble) => {
                // A skipped reserved name is no failure: `--delete` still works.
                self.troubles += u64::from(trouble.op != Op::Skip);
                out.push(Frame::Trouble(trouble));
            }
            SenderItem::Tuned(tuned) => out.push(Frame::Tuned(tuned)),
            SenderItem::Limit(stage) => out.push(Frame::Limit(stage)),
            SenderItem::Scanned(scanned) => out.push(Frame::Scanned(scanned)),
        }
    }

    fn announce(&mut self, stream: usize, file: &Outgoing, out: &mut Vec<Frame>) {
        if self.announced[stream].insert(file.number) {
            let mut batch = Batch::default();
            batch.push(&file.entry, &Content::Blocks(file.number), &[]);
            out.push(Frame::Batch(batch.into_body()));
        }
    }

    /// The last frame of a stream. `scanned` says that the scan covered the whole source.
    pub fn end(&self, scanned: bool) -> Frame {
        Frame::End { whole: scanned && self.troubles == 0 }
    }

    /// Processes a frame of the receiver.
    ///
    /// # Errors
    /// A receiver does not send such a frame, or it answers no open query.
    pub fn handle(&mut self, frame: Frame) -> Result<ReceiverMessage<T>, Violation> {
        Ok(match frame {
            Frame::Wanted { number, wants } => ReceiverMessage::Wanted(self.wanted(number, wants)?),
            Frame::Trouble(trouble) => ReceiverMessage::Trouble(trouble),
            Frame::Planned(planned) => ReceiverMessage::Planned(planned),
            Frame::Tuned(tuned) => ReceiverMessage::Tuned(tuned),
            Frame::Limit(stage) => ReceiverMessage::Limit(stage),
            Frame::Progress(counts) => ReceiverMessage::Progress(counts),
            Frame::Scanned(scanned) => ReceiverMessage::Scanned(scanned),
            Frame::Finished(counts) => ReceiverMessage::Finished(counts),
            Frame::Refuse(refusal) => ReceiverMessage::Refused(refusal),
            _ => return Err(Violation::Unexpected("data")),
        })
    }

    fn wanted(&mut self, number: u32, wants: Vec<Want>) -> Result<Vec<WantedFile<T>>, Violation> {
        let queried = self.queries.remove(&number).ok_or(Violation::Unexpected("an answer"))?;
        let mut wants = wants.into_iter().peekable();
        let mut wanted = Vec::new();
        for (index, about) in queried.into_iter().enumerate() {
            if let Some(want) = wants.next_if(|want| want.index as usize == index) {
                wanted.push((about, want.have));
            }
        }
        match wants.next() {
            Some(_) => Err(Violation::Unexpected("an answer out of order")),
            None => Ok(wanted),
        }
    }
}
