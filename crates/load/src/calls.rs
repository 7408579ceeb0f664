//! A job of blocking calls through the file-like API, one after another, as of a program that reads
//! or writes a file.
//!
//! An I/O is one call of `bs` bytes: a read is complete when its bytes are in the buffer, a write
//! when the stream has accepted its bytes ([`longhaul_cache::stream`]). The stream decides how much
//! is in flight below. With `verify`, a read must return the content that was accepted last, and
//! after the final flush all of it is read back.

use crate::Job;
use crate::pattern::{Pattern, Rng, mix};
use crate::run::{Counters, Stop};
use crate::stats::{SAMPLE, Times};
use crate::verify::{self, ExpectedContent, GenerationTable, VerifyReport};
use crate::worker::{JobOutcome, Measurement, Region, SCRAMBLE, Usage};
use longhaul_block::IoError;
use longhaul_cache::stream::Stream;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// One job on the calling thread.
pub(crate) struct Calls<'a> {
    pub(crate) job: &'a Job,
    pub(crate) part: Region,
    pub(crate) index: u64,
    pub(crate) run: u64,
    pub(crate) stream: Stream,
    pub(crate) stop: Stop,
    pub(crate) counters: Arc<Counters>,
    pub(crate) start: Instant,
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The device's error in an error of the API.
fn error(e: io::Error) -> IoError {
    let text = e.to_string();
    match e.into_inner().and_then(|inner| inner.downcast::<IoError>().ok()) {
        Some(inner) => *inner,
        None => IoError::Medium(text),
    }
}

impl Calls<'_> {
    fn now(&self) -> u64 {
        ns(self.start.elapsed())
    }

    /// Runs the load.
    pub(crate) fn run(mut self) -> JobOutcome {
        let usage = Usage::now();
        let begin = ns(self.job.ramp);
        let window = (begin, self.job.runtime.map_or(u64::MAX, |time| begin.saturating_add(ns(time))));
        let mut record = Measurement::beginning(begin + ns(SAMPLE), self.job.numjobs);
        let mut content = VerifiedContent::new(self.job, self.part, self.run);
        let mut result = self.calls(window, &mut record, &mut content);
        let ended = self.now();
        if result.is_ok() && (self.job.end_fsync || content.table.is_some()) {
            result = self.stream.flush();
        }
        if result.is_ok() {
            result = self.read_back(&mut content);
        }
        let end = if ended >= window.1 { window.1 } else { record.last.max(window.0) };
        JobOutcome {
            window: Duration::from_nanos(end - window.0.min(end)),
            elapsed: Duration::from_nanos(ended),
            error: result.err().map(error),
            verify: content.report,
            record,
            usage: Usage::now().since(&usage),
            depth: 1,
            advice: None,
        }
    }

    fn calls(
        &mut self,
        window: (u64, u64),
        record: &mut Measurement,
        content: &mut VerifiedContent,
    ) -> io::Result<()> {
        let (job, part) = (self.job, self.part);
        let seed = mix(job.seed) ^ self.index;
        let (mut pattern, mut dice) = (Pattern::new(part.blocks, job.rw.is_random(), seed), Rng::new(seed));
        let mut buf = vec![0u8; job.bs as usize];
        let (mut marks, mut unflushed) = (self.index << 40, 0);
        let mut left = if job.time_based && job.runtime.is_some() { u64::MAX } else { part.blocks };
        let mut begin = self.now();
        while left > 0 && begin < window.1 && !self.stop.is_set() {
            left -= u64::from(left != u64::MAX);
            let write = match (job.rw.reads(), job.rw.writes()) {
                (true, true) => dice.percent() >= job.rwmixread,
                (_, writes) => writes,
            };
            // A seek to the present position costs nothing.
            let block = pattern.next();
            self.stream.seek(SeekFrom::Start(part.offset + block * job.bs))?;
            if write && content.table.is_some() {
                // If a block has had all of its generations, the next one is written.
                let Some(block) = content.stamp(&mut buf, block) else { break };
                self.stream.seek(SeekFrom::Start(part.offset + block * job.bs))?;
                self.stream.write_all(&buf)?;
                content.taken(block);
            } else if write {
                for piece in buf.chunks_mut(SCRAMBLE) {
                    marks += 1;
                    let mark = mix(marks).to_le_bytes();
                    let n = piece.len().min(mark.len());
                    piece[..n].copy_from_slice(&mark[..n]);
                }
                self.stream.write_all(&buf)?;
            } else {
                self.stream.read_exact(&mut buf)?;
                content.check(&buf, block);
            }
            let end = self.now();
            self.counters.count(write, job.bs);
            record.depths[0] += 1;
            record.measure(window, write, job.bs, Times { begin, submitted: None, end });
            unflushed += u32::from(write);
            if job.fdatasync > 0 && unflushed >= job.fdatasync {
                unflushed = 0;
                self.stream.flush()?;
                let flushed = self.now();
                if flushed >= window.0 && flushed < window.1 {
                    record.sync.record(flushed - end);
                }
            }
            begin = self.now();
        }
        Ok(())
    }

    /// Reads back all written blocks in order.
    fn read_back(&mut self, content: &mut VerifiedContent) -> io::Result<()> {
        let Some(blocks) = content.table.as_ref().map(GenerationTable::len) else { return Ok(()) };
        self.counters.verifying.store(true, Relaxed);
        let mut buf = vec![0; self.job.bs as usize];
        for block in (0..blocks).take_while(|_| !self.stop.is_set()) {
            if !content.was_written(block) {
                continue;
            }
            self.stream.seek(SeekFrom::Start(self.part.offset + block * self.job.bs))?;
            self.stream.read_exact(&mut buf)?;
            content.check(&buf, block);
            self.counters.verified.fetch_add(self.job.bs, Relaxed);
        }
        Ok(())
    }
}

/// Content of the job's region, and the faults found in it.
struct VerifiedContent {
    verify: bool,
    offset: u64,
    bs: u64,
    table: Option<GenerationTable>,
    report: VerifyReport,
}

impl VerifiedContent {
    fn new(job: &Job, part: Region, run: u64) -> VerifiedContent {
        let table = (job.verify && job.rw.writes()).then(|| GenerationTable::new(run, part.blocks));
        VerifiedContent {
            verify: job.verify,
            offset: part.offset,
            bs: job.bs,
            table,
            report: VerifyReport::default(),
        }
    }

    /// Puts the next generation of a block into `buf`: which block, since one
    /// that can have no more is passed over.
    fn stamp(&mut self, buf: &mut [u8], block: u64) -> Option<u64> {
        let table = self.table.as_mut()?;
        let (block, generation) = table.begin_write(block)?;
        verify::stamp(buf, self.offset + block * self.bs, table.run(), generation);
        Some(block)
    }

    /// Records an accepted write: later reads of this handle must not be older.
    fn taken(&mut self, block: u64) {
        if let Some(table) = &mut self.table {
            table.end_write(block);
        }
    }

    fn was_written(&self, block: u64) -> bool {
        self.table.as_ref().is_none_or(|table| table.acknowledged(block) > 0)
    }

    fn check(&mut self, buf: &[u8], block: u64) {
        let expect = match &self.table {
            Some(table) => table.expect(block, table.acknowledged(block)),
            None => self.verify.then_some(ExpectedContent::AnyRun),
        };
        if let Some(expect) = expect {
            self.report.add(verify::check(buf, self.offset + block * self.bs, expect));
        }
    }
}
