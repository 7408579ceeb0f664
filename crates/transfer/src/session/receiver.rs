//! The side that gets the data.
//!
//! Invariants:
//! - a file is in `files` from its announcement until the job that completes
//!   or abandons it is done; that job is given out once, when the file is
//!   closed and none of its blocks is under way;
//! - after a failure a file's blocks are no longer given out;
//! - `open` counts jobs given out and not done; [`Job::Settle`] comes when every
//!   stream has ended, `open` is zero and `files` is empty.

use super::{OPEN_BYTES, OPEN_FILES, QUESTIONS, Violation};
use crate::wire::{
    BatchReader, Close, Content, Counts, Digest, Entry, Frame, Limit, Op, Planned, Scanned, Trouble, Tuned,
    Want,
};
use longhaul_engine::Buf;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Work for whoever writes. Jobs may be done in any order.
#[derive(Debug)]
pub enum Job {
    /// Make these entries, content included.
    Batch(Buf),
    /// Say which of these are wanted.
    Ask {
        /// Number of the question.
        number: u32,
        /// The entries, without content.
        batch: Buf,
    },
    /// Write a block.
    Block {
        /// The file.
        file: Arc<Incoming>,
        /// Where in it.
        offset: u64,
        /// Checksum that the data must have.
        digest: Digest,
        /// The data.
        data: Buf,
    },
    /// All blocks are written: let the file appear.
    Complete(Arc<Incoming>),
    /// The file is not to appear.
    Abandon(Arc<Incoming>),
    /// Everything came: do what has to be last.
    Settle {
        /// What did not come may be deleted.
        whole: bool,
    },
}

/// A file that comes in blocks.
#[derive(Debug)]
pub struct Incoming {
    /// Its number in the session.
    pub number: u64,
    /// What it is to become.
    pub entry: Entry,
}

/// What became of a job.
#[derive(Debug)]
pub enum Done {
    /// Of a batch, or of settling: what was done, and what failed.
    Batch(Counts, Vec<Trouble>),
    /// Of a question.
    Asked {
        /// Number of the question.
        number: u32,
        /// What is wanted.
        wants: Vec<Want>,
        /// What is there already, and what was changed of it.
        counts: Counts,
        /// What could not be changed.
        troubles: Vec<Trouble>,
    },
    /// Of a block: how many bytes were written.
    Block(u64, Result<u64, Trouble>),
    /// Of the end of a file: what was done, and what failed.
    File(u64, Counts, Vec<Trouble>),
    /// A file that was not to appear is gone.
    Abandoned(u64),
    /// Everything is settled.
    Settled(Counts, Vec<Trouble>),
}

/// What the sending side said besides data.
#[derive(Debug)]
pub enum Told {
    /// Something could not be read.
    Trouble(Trouble),
    /// It uses another number of something.
    Tuned(Tuned),
    /// Which stage there the others wait for.
    Limit(Option<Limit>),
    /// How much there is.
    Scanned(Scanned),
}

#[derive(Debug)]
struct State {
    file: Arc<Incoming>,
    /// Blocks that arrived, and those of them that are under way to the disk.
    arrived: u32,
    writing: u32,
    closed: Option<Close>,
    failed: bool,
}

/// The receiving half of a session.
///
/// Give every frame that arrives to [`handle`](Self::handle) and every finished
/// job to [`done`](Self::done); after either, take jobs with
/// [`poll_job`](Self::poll_job) and what is to be sent on the first stream with
/// [`poll_frame`](Self::poll_frame).
#[derive(Debug)]
pub struct Receiver {
    files: HashMap<u64, State>,
    /// What the entries in `files` weigh.
    bytes: usize,
    jobs: VecDeque<Job>,
    frames: VecDeque<Frame>,
    /// Of this side, for people on it.
    troubles: Vec<Trouble>,
    open: usize,
    questions: usize,
    streams: usize,
    ended: usize,
    whole: bool,
    settled: bool,
    counts: Counts,
    told: Counts,
}

impl Receiver {
    /// For a session of `streams` streams.
    pub fn new(streams: usize) -> Receiver {
        Receiver {
            files: HashMap::new(),
            bytes: 0,
            jobs: VecDeque::new(),
            frames: VecDeque::new(),
            troubles: Vec::new(),
            open: 0,
            questions: 0,
            streams,
            ended: 0,
            whole: true,
            settled: false,
            counts: Counts::default(),
            told: Counts::default(),
        }
    }

    /// What has been done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether everything is done, and [`Frame::Finished`] among the frames.
    pub fn is_finished(&self) -> bool {
        self.settled
    }

    /// Whether nothing more is to come.
    pub fn has_all(&self) -> bool {
        self.ended == self.streams
    }

    /// Jobs that are given out and not done.
    pub fn open(&self) -> usize {
        self.open
    }

    /// The next job.
    pub fn poll_job(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front()?;
        self.open += 1;
        Some(job)
    }

    /// The next frame for the other side.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.frames.pop_front()
    }

    /// Frames that wait to be sent. Whoever feeds this stops while they are many: the
    /// other side may send much that fails, and hear nothing of it.
    pub fn unsent(&self) -> usize {
        self.frames.len()
    }

    /// What this side could not write since this was last called.
    pub fn poll_troubles(&mut self) -> impl Iterator<Item = Trouble> + use<> {
        std::mem::take(&mut self.troubles).into_iter()
    }

    /// Says how far it is, if that has changed, or `anyway`; whether it did. For
    /// whoever has a clock.
    pub fn tell(&mut self, anyway: bool) -> bool {
        let tells = (anyway || self.counts != self.told) && !self.settled;
        if tells {
            self.told = self.counts;
            self.frames.push_back(Frame::Progress(self.counts));
        }
        tells
    }

    /// Tells the other side what the rest waits for here.
    pub fn limits(&mut self, limit: Option<Limit>) {
        if !self.settled {
            self.frames.push_back(Frame::Limit(limit));
        }
    }

    /// Tells the other side how many threads there are now.
    pub fn tuned(&mut self, tuned: Tuned) {
        if !self.settled {
            self.frames.push_back(Frame::Tuned(tuned));
        }
    }

    /// Tells the other side what would be done.
    pub fn planned(&mut self, planned: Planned) {
        if !self.settled {
            self.frames.push_back(Frame::Planned(planned));
        }
    }

    /// Takes a frame, from whichever stream. What people should know of comes
    /// back.
    ///
    /// # Errors
    /// The sending side breaks the protocol. The session is over.
    pub fn handle(&mut self, frame: Frame) -> Result<Option<Told>, Violation> {
        if self.has_all() {
            return Err(Violation::Unexpected("a frame behind the last"));
        }
        match frame {
            Frame::Batch(batch) => self.batch(batch)?,
            Frame::Ask { number, batch } => {
                self.questions += 1;
                if self.questions > QUESTIONS {
                    return Err(Violation::TooMany("questions"));
                }
                self.jobs.push_back(Job::Ask { number, batch });
            }
            Frame::Block { file, offset, digest, data } => self.block(file, offset, digest, data)?,
            Frame::Close(close) => {
                let state =
                    self.files.get_mut(&close.file).ok_or(Violation::Unexpected("an end of a file"))?;
                if state.closed.replace(close).is_some() {
                    return Err(Violation::Unexpected("a second end of a file"));
                }
                self.look(close.file)?;
            }
            Frame::Trouble(trouble) => {
                self.counts.failed += u64::from(trouble.op != Op::Skip);
                return Ok(Some(Told::Trouble(trouble)));
            }
            Frame::Tuned(tuned) => return Ok(Some(Told::Tuned(tuned))),
            Frame::Limit(stage) => return Ok(Some(Told::Limit(stage))),
            Frame::Scanned(scanned) => return Ok(Some(Told::Scanned(scanned))),
            Frame::End { whole } => {
                self.ended += 1;
                self.whole &= whole;
                self.look_for_the_end()?;
            }
            _ => return Err(Violation::Unexpected("an answer")),
        }
        Ok(None)
    }

    /// A batch with files that come in blocks is an announcement, of that file
    /// alone; any other is a job as it is.
    fn batch(&mut self, batch: Buf) -> Result<(), Violation> {
        let (entry, content, _) =
            BatchReader::new(&batch).next().ok_or(Violation::Unexpected("an empty batch"))??;
        let Content::Blocks(number) = content else {
            self.jobs.push_back(Job::Batch(batch));
            return Ok(());
        };
        if let Some(state) = self.files.get(&number) {
            let same = state.file.entry == entry;
            return if same { Ok(()) } else { Err(Violation::Unexpected("another file under a number")) };
        }
        self.bytes += entry.weight();
        if self.files.len() == OPEN_FILES || self.bytes > OPEN_BYTES {
            return Err(Violation::TooMany("files at once"));
        }
        let file = Arc::new(Incoming { number, entry });
        self.files.insert(number, State { file, arrived: 0, writing: 0, closed: None, failed: false });
        Ok(())
    }

    fn block(&mut self, file: u64, offset: u64, digest: Digest, data: Buf) -> Result<(), Violation> {
        let state = self.files.get_mut(&file).ok_or(Violation::Unexpected("a block of no file"))?;
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > state.file.entry.size) {
            return Err(Violation::Unexpected("a block behind the end of its file"));
        }
        state.arrived = state.arrived.saturating_add(1);
        if !state.failed {
            state.writing += 1;
            self.jobs.push_back(Job::Block { file: Arc::clone(&state.file), offset, digest, data });
        }
        self.look(file)
    }

    /// Completes a file when all of it is there.
    fn look(&mut self, number: u64) -> Result<(), Violation> {
        let Some(state) = self.files.get(&number) else { return Ok(()) };
        let Some(close) = state.closed else { return Ok(()) };
        if state.arrived > close.blocks {
            return Err(Violation::TooMany("blocks"));
        }
        if state.arrived == close.blocks && state.writing == 0 {
            let file = Arc::clone(&state.file);
            let good = close.good && !state.failed;
            self.jobs.push_back(if good { Job::Complete(file) } else { Job::Abandon(file) });
        }
        Ok(())
    }

    fn look_for_the_end(&mut self) -> Result<(), Violation> {
        if self.ended < self.streams || self.settled {
            return Ok(());
        }
        let complete = |state: &State| state.closed.is_some_and(|close| close.blocks == state.arrived);
        if !self.files.values().all(complete) {
            return Err(Violation::Unexpected("its end before that of a file"));
        }
        if self.open == 0 && self.jobs.is_empty() && self.files.is_empty() {
            // What failed on this side was seen on the other all the same.
            self.jobs.push_back(Job::Settle { whole: self.whole });
        }
        Ok(())
    }

    /// Takes what became of a job.
    ///
    /// # Errors
    /// The sending side had ended before all was there.
    pub fn done(&mut self, done: Done) -> Result<(), Violation> {
        self.open -= 1;
        match done {
            Done::Batch(counts, troubles) => self.add(counts, troubles),
            Done::Asked { number, wants, counts, troubles } => {
                self.questions -= 1;
                self.add(counts, troubles);
                self.counts.wanted += wants.len() as u64;
                self.frames.push_back(Frame::Wanted { number, wants });
            }
            Done::Block(file, result) => {
                let counts = Counts { bytes: *result.as_ref().unwrap_or(&0), ..Counts::default() };
                let first = self.files.get_mut(&file).is_some_and(|state| {
                    state.writing -= 1;
                    let before = state.failed;
                    state.failed |= result.is_err();
                    state.failed && !before
                });
                // One line for a file, however many of its blocks failed.
                self.add(counts, result.err().filter(|_| first).into_iter().collect());
                self.look(file)?;
            }
            Done::File(file, counts, troubles) => {
                self.forget(file);
                self.add(counts, troubles);
            }
            Done::Abandoned(file) => self.forget(file),
            Done::Settled(counts, troubles) => {
                self.add(counts, troubles);
                self.settled = true;
                self.frames.push_back(Frame::Finished(self.counts));
            }
        }
        self.look_for_the_end()
    }

    fn forget(&mut self, file: u64) {
        if let Some(state) = self.files.remove(&file) {
            self.bytes -= state.file.entry.weight();
        }
    }

    fn add(&mut self, more: Counts, troubles: Vec<Trouble>) {
        let counts = &mut self.counts;
        counts.files += more.files;
        counts.others += more.others;
        counts.bytes += more.bytes;
        counts.same += more.same;
        counts.deleted += more.deleted;
        counts.metadata += more.metadata;
        counts.skipped += more.skipped;
        counts.failed += troubles.len() as u64;
        self.troubles.extend_from_slice(&troubles);
        self.frames.extend(troubles.into_iter().map(Frame::Trouble));
    }
}
