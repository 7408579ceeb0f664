//! The receiving side of a session.
//!
//! Invariants:
//! - a file is in `files` from its announcement until the job that completes
//!   or abandons it is done; that job is issued once, when the file is closed and
//!   none of its blocks is being written;
//! - after a write failure no further blocks of a file are issued;
//! - `open` counts jobs that are issued and not done; [`WriteJob::Settle`] comes when every
//!   stream has ended, `open` is zero and `files` is empty.

use super::{OPEN_BYTES, OPEN_FILES, OPEN_QUERIES, Violation};
use crate::wire::{
    BatchReader, Close, Content, Counts, Digest, Entry, Frame, Limit, Op, Planned, Scanned, Trouble, Tuned,
    Want,
};
use longhaul_engine::Buf;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Work for the writer threads. Jobs may be done in any order.
#[derive(Debug)]
pub enum WriteJob {
    /// Create these entries, with their content.
    Batch(Buf),
    /// Answer an existence query.
    Query {
        /// Number of the query.
        number: u32,
        /// The entries, without content.
        batch: Buf,
    },
    /// Write a block.
    Block {
        /// The large file that the block belongs to.
        file: Arc<Incoming>,
        /// Offset in bytes.
        offset: u64,
        /// Checksum that the data must have.
        digest: Digest,
        /// Content: [`BLOCK`](crate::wire::BLOCK) bytes, or fewer at the end of the file.
        data: Buf,
    },
    /// All blocks are written: rename the file to its name.
    Complete(Arc<Incoming>),
    /// Discard a file that stays incomplete.
    Abandon(Arc<Incoming>),
    /// All data was received: delete, link, and set metadata of directories.
    Settle {
        /// The source was seen completely, so other names may be deleted.
        whole: bool,
    },
}

/// A file that is received in blocks.
#[derive(Debug)]
pub struct Incoming {
    /// Its number in the session.
    pub number: u64,
    /// Its path and metadata.
    pub entry: Entry,
}

/// Result of a job.
#[derive(Debug)]
pub enum JobResult {
    /// Of a batch: counts, and failures.
    Batch(Counts, Vec<Trouble>),
    /// Of an existence query.
    Query {
        /// Number of the query.
        number: u32,
        /// The entries that are needed.
        wants: Vec<Want>,
        /// Objects that are up to date, and metadata that was changed.
        counts: Counts,
        /// Failures to change metadata.
        troubles: Vec<Trouble>,
    },
    /// Of a block of this file: the bytes written.
    Block(u64, Result<u64, Trouble>),
    /// Of the completion of this file: counts, and failures.
    File(u64, Counts, Vec<Trouble>),
    /// This file was discarded.
    Abandoned(u64),
    /// Of the final job: counts, and failures.
    Settled(Counts, Vec<Trouble>),
}

/// A message of the sender other than data.
#[derive(Debug)]
pub enum SenderNotice {
    /// An object that could not be read.
    Trouble(Trouble),
    /// A changed number of threads or connections.
    Tuned(Tuned),
    /// The limiting stage of the sender.
    Limit(Option<Limit>),
    /// Progress of the scan.
    Scanned(Scanned),
}

#[derive(Debug)]
struct IncomingState {
    file: Arc<Incoming>,
    /// Blocks received, and those of them that are being written.
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
    files: HashMap<u64, IncomingState>,
    /// Memory of the entries in `files`, in bytes.
    bytes: usize,
    jobs: VecDeque<WriteJob>,
    frames: VecDeque<Frame>,
    /// Failures of this side, for its own monitor.
    troubles: Vec<Trouble>,
    open: usize,
    open_queries: usize,
    streams: usize,
    ended: usize,
    whole: bool,
    settled: bool,
    counts: Counts,
    reported: Counts,
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
            open_queries: 0,
            streams,
            ended: 0,
            whole: true,
            settled: false,
            counts: Counts::default(),
            reported: Counts::default(),
        }
    }

    /// Counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether the session is complete, with [`Frame::Finished`] among the frames.
    pub fn is_finished(&self) -> bool {
        self.settled
    }

    /// Whether all streams have ended.
    pub fn has_all(&self) -> bool {
        self.ended == self.streams
    }

    /// Number of jobs that are issued and not done.
    pub fn open(&self) -> usize {
        self.open
    }

    /// The next job.
    pub fn poll_job(&mut self) -> Option<WriteJob> {
        let job = self.jobs.pop_front()?;
        self.open += 1;
        Some(job)
    }

    /// The next frame for the other side.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.frames.pop_front()
    }

    /// Number of frames that wait to be sent. The caller should stop reading while they
    /// are many: a sender could cause failures without ever reading the reports.
    pub fn unsent(&self) -> usize {
        self.frames.len()
    }

    /// Takes the failures of this side since the last call.
    pub fn poll_troubles(&mut self) -> impl Iterator<Item = Trouble> + use<> {
        std::mem::take(&mut self.troubles).into_iter()
    }

    /// Queues a progress report if the counts have changed, or if `anyway`; returns whether
    /// it did. The caller has the clock.
    pub fn report_progress(&mut self, anyway: bool) -> bool {
        let due = (anyway || self.counts != self.reported) && !self.settled;
        if due {
            self.reported = self.counts;
            self.frames.push_back(Frame::Progress(self.counts));
        }
        due
    }

    /// Queues a report of the limiting stage here.
    pub fn limits(&mut self, limit: Option<Limit>) {
        if !self.settled {
            self.frames.push_back(Frame::Limit(limit));
        }
    }

    /// Queues a report of a changed number of threads.
    pub fn tuned(&mut self, tuned: Tuned) {
        if !self.settled {
            self.frames.push_back(Frame::Tuned(tuned));
        }
    }

    /// Queues an action of a dry run.
    pub fn planned(&mut self, planned: Planned) {
        if !self.settled {
            self.frames.push_back(Frame::Planned(planned));
        }
    }

    /// Processes a frame from any stream; returns a message for the monitor.
    ///
    /// # Errors
    /// The sender violated the protocol. The session is over.
    pub fn handle(&mut self, frame: Frame) -> Result<Option<SenderNotice>, Violation> {
        if self.has_all() {
            return Err(Violation::Unexpected("a frame after the last one"));
        }
        match frame {
            Frame::Batch(batch) => self.batch(batch)?,
            Frame::Query { number, batch } => {
                self.open_queries += 1;
                if self.open_queries > OPEN_QUERIES {
                    return Err(Violation::TooMany("existence queries"));
                }
                self.jobs.push_back(WriteJob::Query { number, batch });
            }
            Frame::Block { file, offset, digest, data } => self.block(file, offset, digest, data)?,
            Frame::Close(close) => {
                let state =
                    self.files.get_mut(&close.file).ok_or(Violation::Unexpected("an end of a file"))?;
                if state.closed.replace(close).is_some() {
                    return Err(Violation::Unexpected("a second end of a file"));
                }
                self.complete_if_ready(close.file)?;
            }
            Frame::Trouble(trouble) => {
                self.counts.failed += u64::from(trouble.op != Op::Skip);
                return Ok(Some(SenderNotice::Trouble(trouble)));
            }
            Frame::Tuned(tuned) => return Ok(Some(SenderNotice::Tuned(tuned))),
            Frame::Limit(stage) => return Ok(Some(SenderNotice::Limit(stage))),
            Frame::Scanned(scanned) => return Ok(Some(SenderNotice::Scanned(scanned))),
            Frame::End { whole } => {
                self.ended += 1;
                self.whole &= whole;
                self.settle_if_ready()?;
            }
            _ => return Err(Violation::Unexpected("an answer")),
        }
        Ok(None)
    }

    /// A batch whose first entry is a file in blocks announces that file; any other batch
    /// becomes a job.
    fn batch(&mut self, batch: Buf) -> Result<(), Violation> {
        let (entry, content, _) =
            BatchReader::new(&batch).next().ok_or(Violation::Unexpected("an empty batch"))??;
        let Content::Blocks(number) = content else {
            self.jobs.push_back(WriteJob::Batch(batch));
            return Ok(());
        };
        if let Some(state) = self.files.get(&number) {
            let same = state.file.entry == entry;
            return if same {
                Ok(())
            } else {
                Err(Violation::Unexpected("a second file under the same number"))
            };
        }
        self.bytes += entry.weight();
        if self.files.len() == OPEN_FILES || self.bytes > OPEN_BYTES {
            return Err(Violation::TooMany("files at once"));
        }
        let file = Arc::new(Incoming { number, entry });
        self.files
            .insert(number, IncomingState { file, arrived: 0, writing: 0, closed: None, failed: false });
        Ok(())
    }

    fn block(&mut self, file: u64, offset: u64, digest: Digest, data: Buf) -> Result<(), Violation> {
        let state = self
            .files
            .get_mut(&file)
            .ok_or(Violation::Unexpected("a block of a file that was not announced"))?;
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > state.file.entry.size) {
            return Err(Violation::Unexpected("a block beyond the end of its file"));
        }
        state.arrived = state.arrived.saturating_add(1);
        if !state.failed {
            state.writing += 1;
            self.jobs.push_back(WriteJob::Block { file: Arc::clone(&state.file), offset, digest, data });
        }
        self.complete_if_ready(file)
    }

    /// Issues the final job of a file once all of its blocks are written.
    fn complete_if_ready(&mut self, number: u64) -> Result<(), Violation> {
        let Some(state) = self.files.get(&number) else { return Ok(()) };
        let Some(close) = state.closed else { return Ok(()) };
        if state.arrived > close.blocks {
            return Err(Violation::TooMany("blocks"));
        }
        if state.arrived == close.blocks && state.writing == 0 {
            let file = Arc::clone(&state.file);
            let good = close.good && !state.failed;
            self.jobs.push_back(if good { WriteJob::Complete(file) } else { WriteJob::Abandon(file) });
        }
        Ok(())
    }

    fn settle_if_ready(&mut self) -> Result<(), Violation> {
        if self.ended < self.streams || self.settled {
            return Ok(());
        }
        let complete =
            |state: &IncomingState| state.closed.is_some_and(|close| close.blocks == state.arrived);
        if !self.files.values().all(complete) {
            return Err(Violation::Unexpected("the end of a stream before that of a file"));
        }
        if self.open == 0 && self.jobs.is_empty() && self.files.is_empty() {
            // Write failures do not matter for `whole`: the sender has seen those names.
            self.jobs.push_back(WriteJob::Settle { whole: self.whole });
        }
        Ok(())
    }

    /// Processes the result of a job.
    ///
    /// # Errors
    /// The streams ended before all blocks of a file were received.
    pub fn done(&mut self, done: JobResult) -> Result<(), Violation> {
        assert!(self.open > 0, "a result of a job that was not issued");
        self.open -= 1;
        match done {
            JobResult::Batch(counts, troubles) => self.add(counts, troubles),
            JobResult::Query { number, wants, counts, troubles } => {
                self.open_queries -= 1;
                self.add(counts, troubles);
                self.counts.wanted += wants.len() as u64;
                self.frames.push_back(Frame::Wanted { number, wants });
            }
            JobResult::Block(file, result) => {
                let counts = Counts { bytes: *result.as_ref().unwrap_or(&0), ..Counts::default() };
                let first = self.files.get_mut(&file).is_some_and(|state| {
                    assert!(state.writing > 0, "a result of a block that was not issued");
                    state.writing -= 1;
                    let before = state.failed;
                    state.failed |= result.is_err();
                    state.failed && !before
                });
                // One report for each file, however many of its blocks fail.
                self.add(counts, result.err().filter(|_| first).into_iter().collect());
                self.complete_if_ready(file)?;
            }
            JobResult::File(file, counts, troubles) => {
                self.forget(file);
                self.add(counts, troubles);
            }
            JobResult::Abandoned(file) => self.forget(file),
            JobResult::Settled(counts, troubles) => {
                assert!(self.open == 0 && self.files.is_empty(), "the session settled before its last job");
                self.add(counts, troubles);
                self.settled = true;
                self.frames.push_back(Frame::Finished(self.counts));
            }
        }
        self.settle_if_ready()
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
