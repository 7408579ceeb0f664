//! The side that has the data.
//!
//! Invariants:
//! - a stream's `announced` holds the files that are announced on it and not
//!   closed on any stream, so it does not grow with the number of files;
//! - a question is in `asked` from when it is put until it is answered.

use super::{QUESTIONS, Violation};
use crate::wire::{
    Batch, Close, Content, Counts, Digest, Entry, Frame, Limit, Op, Planned, Refusal, Scanned, Trouble,
    Tuned, Want,
};
use longhaul_engine::Buf;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A file that goes in blocks.
#[derive(Debug)]
pub struct Outgoing {
    /// Its number in the session.
    pub number: u64,
    /// What it is.
    pub entry: Entry,
}

/// Something that was read and is to be sent, on whichever stream.
#[derive(Debug)]
pub enum Item {
    /// Entries with all their content: the body of a [`Frame::Batch`].
    Batch(Buf),
    /// A block of a file.
    Block {
        /// Which file.
        file: Arc<Outgoing>,
        /// Where in it.
        offset: u64,
        /// Checksum of the data.
        digest: Digest,
        /// The data.
        data: Buf,
    },
    /// All blocks of a file have been handed over.
    Close {
        /// Which file.
        file: Arc<Outgoing>,
        /// How many blocks.
        blocks: u32,
        /// Whether the file is what was read.
        good: bool,
    },
    /// Which of these are wanted?
    Ask {
        /// Number of the question, from [`Sender::ask`].
        number: u32,
        /// The entries, without content.
        batch: Buf,
    },
    /// Something could not be read.
    Trouble(Trouble),
    /// Something to know.
    Tuned(Tuned),
    /// Which stage here the others wait for.
    Limit(Option<Limit>),
    /// How much there is.
    Scanned(Scanned),
}

/// A file that is wanted, and the blocks of it that are there already, a bit each.
pub type Wanted<T> = (T, Box<[u8]>);

/// What the receiving side said.
#[derive(Debug)]
pub enum Heard<T> {
    /// These are wanted.
    Wanted(Vec<Wanted<T>>),
    /// Something could not be written.
    Trouble(Trouble),
    /// Something would be done.
    Planned(Planned),
    /// It uses another number of threads.
    Tuned(Tuned),
    /// Which stage there the others wait for.
    Limit(Option<Limit>),
    /// How far it is.
    Progress(Counts),
    /// How much there is, where it sends to another.
    Scanned(Scanned),
    /// All is done.
    Finished(Counts),
    /// It gives up.
    Refused(Refusal),
}

/// The sending half of a session over several streams. `T` is what the owner
/// wants back of a file that was asked about.
///
/// Call [`frames`](Self::frames) for each [`Item`] and send what it returns on
/// that stream, in order; when there are no more items, [`end`](Self::end) on
/// each stream. Give every frame that arrives to [`handle`](Self::handle).
#[derive(Debug)]
pub struct Sender<T> {
    announced: Vec<HashSet<u64>>,
    asked: HashMap<u32, Vec<T>>,
    next: u32,
    troubles: u64,
}

impl<T> Sender<T> {
    /// For a session of `streams` streams.
    pub fn new(streams: usize) -> Sender<T> {
        Sender { announced: vec![HashSet::new(); streams], asked: HashMap::new(), next: 0, troubles: 0 }
    }

    /// Whether another question may be put.
    pub fn may_ask(&self) -> bool {
        self.asked.len() < QUESTIONS
    }

    /// Whether all questions are answered.
    pub fn is_answered(&self) -> bool {
        self.asked.is_empty()
    }

    /// Objects that could not be read.
    pub fn troubles(&self) -> u64 {
        self.troubles
    }

    /// Remembers what is asked about; the number to ask it under.
    pub fn ask(&mut self, about: Vec<T>) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.asked.insert(number, about);
        number
    }

    /// What to send on `stream` for an item.
    pub fn frames(&mut self, stream: usize, item: Item, out: &mut Vec<Frame>) {
        match item {
            Item::Batch(batch) => out.push(Frame::Batch(batch)),
            Item::Block { file, offset, digest, data } => {
                self.announce(stream, &file, out);
                out.push(Frame::Block { file: file.number, offset, digest, data });
            }
            Item::Close { file, blocks, good } => {
                self.announce(stream, &file, out);
                for announced in &mut self.announced {
                    announced.remove(&file.number);
                }
                out.push(Frame::Close(Close { file: file.number, blocks, good }));
            }
            Item::Ask { number, batch } => out.push(Frame::Ask { number, batch }),
            Item::Trouble(trouble) => {
                // What no copy takes does not keep what is at the destination.
                self.troubles += u64::from(trouble.op != Op::Skip);
                out.push(Frame::Trouble(trouble));
            }
            Item::Tuned(tuned) => out.push(Frame::Tuned(tuned)),
            Item::Limit(stage) => out.push(Frame::Limit(stage)),
            Item::Scanned(scanned) => out.push(Frame::Scanned(scanned)),
        }
    }

    fn announce(&mut self, stream: usize, file: &Outgoing, out: &mut Vec<Frame>) {
        if self.announced[stream].insert(file.number) {
            let mut batch = Batch::default();
            batch.push(&file.entry, &Content::Blocks(file.number), &[]);
            out.push(Frame::Batch(batch.into_body()));
        }
    }

    /// The last frame of a stream. `scanned` says that the whole source was
    /// seen.
    pub fn end(&self, scanned: bool) -> Frame {
        Frame::End { whole: scanned && self.troubles == 0 }
    }

    /// What an arriving frame means.
    ///
    /// # Errors
    /// It is none that a receiving side sends, or answers what was not asked.
    pub fn handle(&mut self, frame: Frame) -> Result<Heard<T>, Violation> {
        Ok(match frame {
            Frame::Wanted { number, wants } => Heard::Wanted(self.wanted(number, wants)?),
            Frame::Trouble(trouble) => Heard::Trouble(trouble),
            Frame::Planned(planned) => Heard::Planned(planned),
            Frame::Tuned(tuned) => Heard::Tuned(tuned),
            Frame::Limit(stage) => Heard::Limit(stage),
            Frame::Progress(counts) => Heard::Progress(counts),
            Frame::Scanned(scanned) => Heard::Scanned(scanned),
            Frame::Finished(counts) => Heard::Finished(counts),
            Frame::Refuse(refusal) => Heard::Refused(refusal),
            _ => return Err(Violation::Unexpected("data")),
        })
    }

    fn wanted(&mut self, number: u32, wants: Vec<Want>) -> Result<Vec<Wanted<T>>, Violation> {
        let asked = self.asked.remove(&number).ok_or(Violation::Unexpected("an answer"))?;
        let mut wants = wants.into_iter().peekable();
        let mut wanted = Vec::new();
        for (index, about) in asked.into_iter().enumerate() {
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
