//! One job: `iodepth` slots on one engine thread.
//!
//! Invariants:
//! - each slot has one buffer and at most one I/O in flight, so never more
//!   than `iodepth` are; nothing is allocated per I/O by the load itself;
//! - where the device advises the depth, slots come and go with it, one for
//!   one as I/Os complete; the buffer of one that went waits for the next;
//! - an I/O is counted if it completes within the window, and only then: what
//!   completes during the ramp or after the end was paid for elsewhere;
//! - after the first error no I/O begins.

use crate::pattern::{Pattern, Rng, mix};
use crate::run::{Counters, Stop};
use crate::stats::{DirStats, Latencies, SAMPLE, Times};
use crate::verify::{self, ExpectedContent, GenerationTable, VerifyReport};
use crate::{Job, MAX_IODEPTH, OWN_THREADS_MAX};
use longhaul_block::{Advice, BlockIo, DeviceInfo, IoError, IoResult, WriteFlags};
use longhaul_engine::sync::Notify;
use longhaul_engine::{Buf, BufMut, spawn, yield_now};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// I/Os that are done at once before a slot lets others run.
const BURST: u32 = 64;

/// Distance in bytes of the marks that make buffers differ: the block size of
/// deduplicating devices.
pub(crate) const SCRAMBLE: usize = 4096;

/// The region of the device that a job works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) offset: u64,
    pub(crate) blocks: u64,
}

/// State that the slots of a job share.
pub(crate) struct Worker {
    job: Job,
    part: Region,
    io: Rc<dyn BlockIo>,
    start: Instant,
    /// Nanoseconds from `start`: the window.
    window: (u64, u64),
    pattern: RefCell<Pattern>,
    mix: RefCell<Rng>,
    /// I/Os still to begin.
    left: Cell<u64>,
    stop: Stop,
    counters: Arc<Counters>,
    under_way: Cell<u32>,
    /// Slots at work, and all that ever were.
    slots: Cell<u32>,
    numbered: Cell<u32>,
    /// Buffers of slots that have ended.
    spare: RefCell<Vec<Buffer>>,
    /// The last slot has ended.
    done: Notify,
    /// The most slots that the device has advised.
    deepest: Cell<u32>,
    unflushed: Cell<u32>,
    record: RefCell<Measurement>,
    error: RefCell<Option<IoError>>,
    table: Option<RefCell<GenerationTable>>,
    report: RefCell<VerifyReport>,
}

/// Measurements of a job within the window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurement {
    pub(crate) read: DirStats,
    pub(crate) write: DirStats,
    pub(crate) sync: Latencies,
    /// By powers of two of I/Os under way, the last one 64 and more.
    pub(crate) depths: [u64; 7],
    next_sample: u64,
    /// The last completion within the window.
    pub(crate) last: u64,
}

impl Measurement {
    /// The measurement of one of `jobs` jobs, whose first sample ends at `next_sample`.
    pub(crate) fn beginning(next_sample: u64, jobs: u32) -> Measurement {
        if jobs as usize <= OWN_THREADS_MAX {
            return Measurement { next_sample, ..Measurement::default() };
        }
        Measurement {
            next_sample,
            read: DirStats::of_many(),
            write: DirStats::of_many(),
            ..Measurement::default()
        }
    }

    /// Counts an I/O, if it ended within the window.
    pub(crate) fn measure(&mut self, window: (u64, u64), write: bool, bytes: u64, times: Times) {
        while times.end >= self.next_sample && self.next_sample <= window.1 {
            self.read.sample(SAMPLE.as_secs_f64());
            self.write.sample(SAMPLE.as_secs_f64());
            self.next_sample += SAMPLE.as_nanos() as u64;
        }
        if times.end >= window.0 && times.end < window.1 {
            self.last = times.end;
            let direction = if write { &mut self.write } else { &mut self.read };
            direction.record(bytes, times);
        }
    }
}

#[derive(Clone, Copy)]
struct BlockOp {
    write: bool,
    block: u64,
    generation: u32,
}

/// Buffer of a slot, for writes and reads.
enum Buffer {
    Writable(BufMut),
    Shared(Buf),
}

impl Worker {
    pub(crate) fn new(
        job: &Job,
        index: u64,
        part: Region,
        io: Rc<dyn BlockIo>,
        run: u64,
        (stop, counters): (Stop, Arc<Counters>),
        start: Instant,
    ) -> Worker {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let begin = ns(job.ramp);
        let end = job.runtime.map_or(u64::MAX, |time| begin.saturating_add(ns(time)));
        let seed = mix(job.seed) ^ index;
        let wants_table = job.verify && job.rw.writes();
        let left = if job.time_based && job.runtime.is_some() { u64::MAX } else { part.blocks };
        Worker {
            part,
            io,
            start,
            window: (begin, end),
            pattern: RefCell::new(Pattern::new(part.blocks, job.rw.is_random(), seed)),
            mix: RefCell::new(Rng::new(seed)),
            left: Cell::new(left),
            stop,
            counters,
            under_way: Cell::new(0),
            slots: Cell::new(0),
            numbered: Cell::new(0),
            spare: RefCell::default(),
            done: Notify::new(),
            deepest: Cell::new(0),
            unflushed: Cell::new(0),
            record: RefCell::new(Measurement::beginning(begin + ns(SAMPLE), job.numjobs)),
            error: RefCell::default(),
            table: wants_table.then(|| RefCell::new(GenerationTable::new(run, part.blocks))),
            report: RefCell::default(),
            job: job.clone(),
        }
    }

    /// Runs the load, flushes and reads back as the job says.
    pub(crate) async fn run(self: Rc<Worker>) -> JobOutcome {
        let usage = Usage::now();
        self.fill_up();
        while self.slots.get() > 0 {
            self.done.notified().await;
        }
        let usage = Usage::now().since(&usage);
        let ended = self.now();
        let wants_flush = self.job.end_fsync || self.table.is_some();
        if self.error.borrow().is_none() && wants_flush {
            self.keep_error(self.io.flush().await);
        }
        if self.error.borrow().is_none() && self.table.is_some() {
            self.counters.verifying.store(true, Relaxed);
            let next = Rc::new(Cell::new(0));
            let slots = (0..self.depth()).map(|_| spawn(Rc::clone(&self).read_back(Rc::clone(&next))));
            for slot in slots.collect::<Vec<_>>() {
                slot.await;
            }
        }
        self.outcome(usage, ended)
    }

    fn outcome(&self, usage: Usage, ended: u64) -> JobOutcome {
        let record = self.record.take();
        // A load that ended before the window did was as long as its I/O.
        let end = if ended >= self.window.1 { self.window.1 } else { record.last.max(self.window.0) };
        JobOutcome {
            window: Duration::from_nanos(end - self.window.0.min(end)),
            elapsed: Duration::from_nanos(ended),
            error: self.error.take(),
            verify: self.report.take(),
            record,
            usage,
            depth: self.deepest.get(),
            advice: self.io.advice(),
        }
    }

    fn now(&self) -> u64 {
        // A run of five centuries does not fit.
        self.start.elapsed().as_nanos() as u64
    }

    /// Whether the load begins no further I/O.
    fn is_over(&self, now: u64) -> bool {
        self.left.get() == 0 || now >= self.window.1 || self.stop.is_set() || self.error.borrow().is_some()
    }

    /// The next operation; `None` at the end of the load.
    fn next(&self, now: u64) -> Option<BlockOp> {
        if self.is_over(now) {
            return None;
        }
        let left = self.left.get();
        self.left.set(if left == u64::MAX { left } else { left - 1 });
        let write = match (self.job.rw.reads(), self.job.rw.writes()) {
            (true, true) => self.mix.borrow_mut().percent() >= self.job.rwmixread,
            (_, writes) => writes,
        };
        let block = self.pattern.borrow_mut().next();
        let Some(table) = &self.table else { return Some(BlockOp { write, block, generation: 0 }) };
        if !write {
            return Some(BlockOp { write, block, generation: table.borrow().acknowledged(block) });
        }
        let (block, generation) = table.borrow_mut().begin_write(block)?;
        Some(BlockOp { write, block, generation })
    }

    /// Slots that there should be now.
    fn depth(&self) -> u32 {
        let advice = if self.job.iodepth_auto { self.io.advice() } else { None };
        let Some(advice) = advice else { return self.job.iodepth };
        let bytes = match (self.job.rw.reads(), self.job.rw.writes()) {
            (true, true) => advice.read + advice.write,
            (true, false) => advice.read,
            _ => advice.write,
        };
        // A block is read back only by the job that wrote it.
        let most = if self.table.is_some() { self.part.blocks } else { u64::MAX };
        let depth = advice.depth(bytes, self.job.bs).min(MAX_IODEPTH);
        depth.min(u32::try_from(most).unwrap_or(u32::MAX))
    }

    /// Starts the slots that are missing.
    fn fill_up(self: &Rc<Worker>) {
        let depth = self.depth();
        while self.slots.get() < depth {
            let number = self.numbered.get();
            self.numbered.set(number.wrapping_add(1));
            self.slots.set(self.slots.get() + 1);
            self.deepest.set(self.deepest.get().max(self.slots.get()));
            spawn(Rc::clone(self).slot(number)).detach();
        }
    }

    /// Whether a slot is to end, since fewer are wanted; else starts more, if
    /// more are.
    fn one_too_many(self: &Rc<Worker>) -> bool {
        if !self.job.iodepth_auto {
            return false;
        }
        if self.slots.get() > self.depth() {
            return true;
        }
        if !self.is_over(self.now()) {
            self.fill_up();
        }
        false
    }

    fn address(&self, block: u64) -> u64 {
        self.part.offset + block * self.job.bs
    }

    async fn slot(self: Rc<Worker>, number: u32) {
        let spare = self.spare.borrow_mut().pop();
        let mut buffer = spare.unwrap_or_else(|| Buffer::Writable(self.fresh_buffer(number)));
        let mut marks = u64::from(number) << 40;
        let mut now = self.now();
        let mut burst = 0;
        while !self.one_too_many()
            && let Some(op) = self.next(now)
        {
            let begin = now;
            self.begin();
            let at = self.address(op.block);
            let mut writable = match buffer {
                Buffer::Writable(buf) => buf,
                Buffer::Shared(buf) => buf.try_mut().unwrap_or_else(|_| self.fresh_buffer(number)),
            };
            let (result, submitted);
            if self.job.rw.trims() {
                let under_way = self.io.discard(at, self.job.bs);
                (result, submitted) = self.settle(under_way).await;
                buffer = Buffer::Writable(writable);
            } else if op.write {
                self.fill(&mut writable, at, op, &mut marks);
                let shared = writable.freeze();
                let under_way = self.io.write(at, shared.clone(), WriteFlags::default());
                (result, submitted) = self.settle(under_way).await;
                buffer = Buffer::Shared(shared);
            } else {
                let under_way = self.io.read(at, writable);
                let (read, time) = self.settle(under_way).await;
                let (read, buf) = match read {
                    Ok(buf) => (Ok(()), buf),
                    Err(e) => (Err(e), self.fresh_buffer(number)),
                };
                (result, submitted) = (read, time);
                buffer = Buffer::Writable(buf);
            }
            now = self.now();
            self.complete(op, result, &buffer, Times { begin, submitted, end: now });
            if op.write && self.job.fdatasync > 0 {
                now = self.maybe_flush(now).await;
            }
            burst = if submitted.is_some() { 0 } else { burst + 1 };
            if burst == BURST {
                burst = 0;
                yield_now().await;
                now = self.now();
            }
        }
        self.slots.set(self.slots.get() - 1);
        self.spare.borrow_mut().push(buffer);
        if self.slots.get() == 0 {
            self.done.notify();
        }
    }

    /// The result of an I/O, and the time of its submission if it did not complete at once.
    async fn settle<T: Unpin>(&self, under_way: longhaul_block::IoFuture<T>) -> (IoResult<T>, Option<u64>) {
        match under_way.try_ready() {
            Ok(result) => (result, None),
            Err(under_way) => {
                let submitted = self.now();
                (under_way.await, Some(submitted))
            }
        }
    }

    fn fresh_buffer(&self, number: u32) -> BufMut {
        let mut buf = BufMut::zeroed(self.job.bs as usize);
        let key = mix(self.job.seed) ^ u64::from(number) << 32;
        for (n, word) in buf.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&mix(key ^ n as u64).to_le_bytes());
        }
        buf
    }

    /// Content to write: stamped, or changed enough that no device has seen
    /// it before (as with fio's `scramble_buffers`).
    fn fill(&self, buf: &mut BufMut, at: u64, op: BlockOp, marks: &mut u64) {
        if let Some(table) = &self.table {
            let run = table.borrow().run();
            return verify::stamp(buf, at, run, op.generation);
        }
        for piece in buf.chunks_mut(SCRAMBLE) {
            *marks += 1;
            piece[..8].copy_from_slice(&mix(*marks ^ at).to_le_bytes());
        }
    }

    fn begin(&self) {
        let depth = self.under_way.get() + 1;
        self.under_way.set(depth);
        self.record.borrow_mut().depths[(depth.ilog2() as usize).min(6)] += 1;
    }

    fn complete(&self, op: BlockOp, result: IoResult<()>, buffer: &Buffer, times: Times) {
        self.under_way.set(self.under_way.get() - 1);
        if let Err(e) = result {
            return self.keep_error(Err(e));
        }
        let bytes = self.job.bs;
        self.counters.count(op.write, bytes);
        self.record.borrow_mut().measure(self.window, op.write, bytes, times);
        if !self.job.verify {
            return;
        }
        if op.write {
            if let Some(table) = &self.table {
                table.borrow_mut().end_write(op.block);
            }
        } else if let Buffer::Writable(buf) = buffer {
            let expect = match &self.table {
                Some(table) => table.borrow().expect(op.block, op.generation),
                None => Some(ExpectedContent::AnyRun),
            };
            self.check(op.block, buf, expect);
        }
    }

    async fn maybe_flush(&self, now: u64) -> u64 {
        let unflushed = self.unflushed.get() + 1;
        if unflushed < self.job.fdatasync {
            self.unflushed.set(unflushed);
            return now;
        }
        self.unflushed.set(0);
        let result = self.io.flush().await;
        let end = self.now();
        if result.is_ok() && end >= self.window.0 && end < self.window.1 {
            self.record.borrow_mut().sync.record(end - now);
        }
        self.keep_error(result);
        end
    }

    fn keep_error(&self, result: IoResult<()>) {
        if let Err(e) = result {
            self.error.borrow_mut().get_or_insert(e);
        }
    }

    fn check(&self, block: u64, buf: &[u8], expect: Option<ExpectedContent>) {
        if let Some(expect) = expect {
            self.report.borrow_mut().add(verify::check(buf, self.address(block), expect));
        }
    }

    /// Reads back written blocks, one after another.
    async fn read_back(self: Rc<Worker>, next: Rc<Cell<u64>>) {
        let Some(table) = &self.table else { return };
        let mut buf = BufMut::zeroed(self.job.bs as usize);
        while !self.stop.is_set() && self.error.borrow().is_none() {
            let block = next.get();
            if block == table.borrow().len() {
                return;
            }
            next.set(block + 1);
            let expect = {
                let table = table.borrow();
                table.expect(block, table.acknowledged(block))
            };
            if expect.is_none() {
                continue;
            }
            match self.io.read(self.address(block), buf).await {
                Ok(back) => {
                    self.check(block, &back, expect);
                    self.counters.verified.fetch_add(self.job.bs, Relaxed);
                    buf = back;
                }
                Err(e) => return self.keep_error(Err(e)),
            }
        }
    }
}

/// Result of a job.
#[derive(Debug)]
pub(crate) struct JobOutcome {
    pub(crate) record: Measurement,
    /// Actual length of the window.
    pub(crate) window: Duration,
    /// From the start to the last completion.
    pub(crate) elapsed: Duration,
    pub(crate) error: Option<IoError>,
    pub(crate) verify: VerifyReport,
    pub(crate) usage: Usage,
    /// The most I/Os in flight.
    pub(crate) depth: u32,
    /// Last advice of the device.
    pub(crate) advice: Option<Advice>,
}

/// Processor time, context switches and page faults of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    pub(crate) switches: u64,
    pub(crate) major_faults: u64,
    pub(crate) minor_faults: u64,
}

impl Usage {
    pub(crate) fn now() -> Usage {
        // SAFETY: plain numbers, for which zero is a valid value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: fills the structure; zeroes stay if it cannot.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
        let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
        Usage {
            user: time(usage.ru_utime),
            system: time(usage.ru_stime),
            switches: (usage.ru_nvcsw + usage.ru_nivcsw) as u64,
            major_faults: usage.ru_majflt as u64,
            minor_faults: usage.ru_minflt as u64,
        }
    }

    /// The share of one of `n` jobs on the thread.
    pub(crate) fn share(self, n: u32) -> Usage {
        let part = |count: u64| count / u64::from(n.max(1));
        Usage {
            user: self.user / n.max(1),
            system: self.system / n.max(1),
            switches: part(self.switches),
            major_faults: part(self.major_faults),
            minor_faults: part(self.minor_faults),
        }
    }

    pub(crate) fn since(&self, before: &Usage) -> Usage {
        Usage {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
            switches: self.switches - before.switches,
            major_faults: self.major_faults - before.major_faults,
            minor_faults: self.minor_faults - before.minor_faults,
        }
    }
}

/// Which part of `info`'s device job `index` of `job.numjobs` works on.
pub(crate) fn part(info: &DeviceInfo, job: &Job, index: u32) -> Region {
    let offset = job.offset.saturating_add(job.offset_increment.saturating_mul(index.into()));
    if job.offset_increment > 0 {
        return Region { offset, blocks: job.size.unwrap_or(job.offset_increment) / job.bs };
    }
    let size = job.size.unwrap_or_else(|| info.size.saturating_sub(job.offset));
    let blocks = size / job.bs;
    if !job.verify || !job.rw.writes() {
        return Region { offset, blocks };
    }
    let share = blocks / u64::from(job.numjobs);
    Region { offset: job.offset + u64::from(index) * share * job.bs, blocks: share }
}
