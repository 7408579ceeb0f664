//! Planning, starting and watching jobs.

use crate::calls::Calls;
use crate::pattern::mix;
use crate::results::{JobResult, Results};
use crate::verify::MAX_BLOCKS;
use crate::worker::{JobOutcome, Region, Worker, part};
use crate::{Job, MAX_IODEPTH, MAX_JOBS, OWN_THREADS_MAX};
use futures_channel::oneshot;
use longhaul_block::{BlockDevice, DeviceInfo, IoError};
use longhaul_cache::stream::Stream;
use longhaul_engine::{BUF_MAX, Config, Handle, Thread};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Interval of progress reports.
pub const TICK: Duration = Duration::from_millis(250);
/// After a stop, I/O in flight is given up if none completes for this long: more than
/// any path and disk take, and short for an operator.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Why a load did not run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option is invalid in general, or for this device.
    #[error("{0}")]
    Option(String),
    /// A device could not be opened.
    #[error("cannot open {device}: {source}")]
    Open {
        /// Name of the device.
        device: String,
        /// The error of opening it.
        source: IoError,
    },
    /// A thread or an engine could not be started.
    #[error("cannot start a job: {0}")]
    Start(#[from] std::io::Error),
    /// A thread ended before its job did.
    #[error("a job's thread ended early")]
    Lost,
    /// The load was stopped, and its I/O does not complete: its connection may be lost.
    #[error("stopped; I/O under way did not end within {} s and was given up", STOP_PATIENCE.as_secs())]
    GivenUp,
}

/// Threads that run the jobs.
#[derive(Clone, Debug)]
pub enum Threads {
    /// Each on an engine thread of its own, up to [`OWN_THREADS_MAX`]; more
    /// share as many as there are processors.
    Own(Config),
    /// On this many engine threads of the load, in turn.
    Shared(Config, usize),
    /// On these engine threads, in turn.
    On(Vec<Handle>),
}

/// Ends a load early. Measurements until then are valid. I/O in flight is completed, or given up if
/// none completes for two seconds ([`BenchError::GivenUp`]).
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A new handle, which has not stopped its load.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Stops the load; it ends soon after.
    pub fn stop(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether it was stopped.
    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Counters of a running job. On its own cache lines, since one thread
/// writes and another reads.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    ios: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
    pub(crate) verified: AtomicU64,
    pub(crate) verifying: AtomicBool,
}

impl Counters {
    /// Only the job's own thread counts, so a store is enough.
    pub(crate) fn count(&self, write: bool, bytes: u64) {
        let add = |to: &AtomicU64, n| to.store(to.load(Relaxed) + n, Relaxed);
        add(&self.ios[usize::from(write)], 1);
        add(&self.bytes[usize::from(write)], bytes);
    }
}

/// Phase of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The ramp, before the window.
    Ramp,
    /// In the window, or in a load without a time.
    Run,
    /// After the window, until I/O in flight is complete.
    Drain,
    /// Reading back written blocks.
    Verify,
}

/// Present rate of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// I/Os per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
}

/// Progress of a running load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Live {
    /// Whether the load ramps, is measured, or ends.
    pub phase: Phase,
    /// Time since the start.
    pub elapsed: Duration,
    /// Time to the end of the window, if there is one.
    pub remaining: Option<Duration>,
    /// Reads since the last report.
    pub read: Rate,
    /// Writes since the last report.
    pub write: Rate,
    /// Bytes done in this phase.
    pub done_bytes: u64,
    /// Bytes of this phase in total, if known.
    pub total_bytes: Option<u64>,
}

/// Runs `job` on each of `devices`, with `numjobs` threads a device, and
/// blocks the caller (which must not be an engine thread) until it is over.
/// `progress` is called every [`TICK`].
///
/// # Errors
/// The job does not fit a device, or could not be started. I/O errors are
/// part of the results.
pub fn run(
    devices: &[Arc<dyn BlockDevice>],
    job: &Job,
    threads: &Threads,
    stop: &Stop,
    progress: &mut dyn FnMut(&Live),
) -> Result<Results, BenchError> {
    let mut parts = Vec::new();
    for device in devices {
        let info = device.info();
        plan(&info, job)?;
        parts.extend((0..job.numjobs).map(|index| (device, part(&info, job, index))));
    }
    if parts.is_empty() {
        return Err(BenchError::Option("no device given".into()));
    }
    let (own, handles) = engines(threads, parts.len())?;
    let (tell, told) = channel();
    let run = run_id(job.seed);
    let mut starts = Vec::new();
    let mut counters = Vec::new();
    for (index, (device, part)) in parts.iter().enumerate() {
        let (start, started) = oneshot::channel();
        let count = Arc::new(Counters::default());
        let setup = WorkerSetup {
            device: Arc::clone(device),
            job: job.clone(),
            part: *part,
            index: index as u64,
            run,
            stop: stop.clone(),
            counters: Arc::clone(&count),
            sharers: sharers(parts.len(), handles.len(), index),
        };
        let tell = tell.clone();
        let handle = handles[index % handles.len()].clone();
        if job.sync {
            // The thread ends once it has reported its end, or the receiver was dropped.
            let name = format!("bench-calls-{index}");
            std::thread::Builder::new().name(name).spawn(move || setup.run_calls(&handle, &tell, started))?;
        } else {
            // The task reports its end over the channel; its handle is not needed.
            drop(handle.spawn(move || setup.run(tell, started)));
        }
        starts.push(start);
        counters.push(count);
    }
    drop(tell);
    let total = job_bytes(job, parts.iter().map(|(_, part)| *part));
    let result = watch(job, starts, &counters, &told, total, (stop, progress));
    if matches!(result, Err(BenchError::GivenUp)) {
        // Threads whose I/O does not complete are not joined.
        std::mem::forget(own);
        return Err(BenchError::GivenUp);
    }
    drop(own);
    let outcomes = result?;
    let jobs =
        parts.iter().zip(outcomes).map(|((device, _), outcome)| JobResult::new(device.info(), outcome));
    Ok(Results::new(job.clone(), jobs.collect()))
}

/// A random number that identifies a run.
fn run_id(seed: u64) -> u64 {
    mix(seed ^ mix(longhaul_engine::wall_time().as_nanos() as u64) ^ u64::from(std::process::id()) << 32)
}

/// Checks that a device can run `job`.
fn plan(info: &DeviceInfo, job: &Job) -> Result<(), BenchError> {
    let wrong = |text: String| Err(BenchError::Option(text));
    let (name, block) = (&info.name, u64::from(info.block_size));
    if job.bs == 0 || !job.bs.is_multiple_of(block) {
        return wrong(format!(
            "bs={} is not a multiple of the logical block of {name}, {block} bytes",
            job.bs
        ));
    }
    let most = u64::from(info.max_io).min(BUF_MAX as u64);
    if job.bs > most {
        return wrong(format!("bs={} is more than the largest request of {name}, {most} bytes", job.bs));
    }
    if job.iodepth == 0 || job.iodepth > MAX_IODEPTH {
        return wrong(format!("iodepth={} is not between 1 and {MAX_IODEPTH}", job.iodepth));
    }
    if job.numjobs == 0 || job.numjobs > MAX_JOBS {
        return wrong(format!("numjobs={} is not between 1 and {MAX_JOBS}", job.numjobs));
    }
    if job.rwmixread > 100 {
        return wrong(format!("rwmixread={} is more than 100 percent", job.rwmixread));
    }
    if job.time_based && job.runtime.is_none() {
        return wrong("time_based needs a runtime".into());
    }
    if !job.offset.is_multiple_of(block) {
        return wrong(format!("offset={} is not a multiple of the logical block, {block} bytes", job.offset));
    }
    if job.rw.trims() && (job.verify || job.sync) {
        let why = if job.verify { "verify needs content" } else { "a file has no call for it" };
        return wrong(format!("rw={} discards: {why}", job.rw));
    }
    if job.rw.trims() && !info.discard {
        return wrong(format!("{name} discards nothing: rw={} cannot be done", job.rw));
    }
    plan_region(info, job)?;
    if job.rw.writes() && info.read_only {
        return wrong(format!("{name} is read-only: rw={} cannot be done", job.rw));
    }
    plan_blocks(info, job)
}

/// Checks that the region of every job is on the device, and that regions do not
/// overlap where that matters.
fn plan_region(info: &DeviceInfo, job: &Job) -> Result<(), BenchError> {
    let wrong = |text: String| Err(BenchError::Option(text));
    let (name, all, block) = (&info.name, info.size, u64::from(info.block_size));
    let (offset, increment) = (job.offset, job.offset_increment);
    let first = if increment > 0 { increment } else { all.saturating_sub(offset) };
    let size = job.size.unwrap_or(first);
    if !increment.is_multiple_of(block) {
        return wrong(format!(
            "offset_increment={increment} is not a multiple of the logical block, {block} bytes"
        ));
    }
    if increment > 0 && size > increment && job.verify && job.rw.writes() {
        return wrong(format!(
            "offset_increment={increment} lets jobs of size={size} write to each other's blocks: \
             verify needs them apart"
        ));
    }
    let others = increment.checked_mul(u64::from(job.numjobs) - 1);
    let end = others.and_then(|others| offset.checked_add(others)).and_then(|last| last.checked_add(size));
    if end.is_none_or(|end| end > all) {
        let jobs = match increment {
            0 => String::new(),
            _ => format!(", offset_increment={increment} and numjobs={}", job.numjobs),
        };
        return wrong(format!(
            "offset={offset} and size={size}{jobs} go past the end of {name}, {all} bytes"
        ));
    }
    Ok(())
}

fn plan_blocks(info: &DeviceInfo, job: &Job) -> Result<(), BenchError> {
    let wrong = |text: String| Err(BenchError::Option(text));
    let blocks = part(info, job, 0).blocks;
    if blocks == 0 {
        return wrong(format!("no block of bs={} fits into a job's part of {}", job.bs, info.name));
    }
    if job.verify && job.rw.writes() {
        let total = blocks.saturating_mul(u64::from(job.numjobs));
        if total > MAX_BLOCKS {
            return wrong(format!(
                "verify keeps track of {MAX_BLOCKS} blocks, not of {total}: use a smaller size or a larger bs"
            ));
        }
        if blocks < u64::from(job.iodepth) {
            return wrong(format!(
                "verify needs as many blocks as iodepth={}: a job has {blocks}",
                job.iodepth
            ));
        }
    }
    Ok(())
}

fn engines(threads: &Threads, jobs: usize) -> Result<(Vec<Thread>, Vec<Handle>), BenchError> {
    match threads {
        Threads::On(handles) if handles.is_empty() => {
            Err(BenchError::Option("no engine thread given".into()))
        }
        Threads::On(handles) => Ok((Vec::new(), handles.clone())),
        Threads::Own(config) | Threads::Shared(config, _) => {
            let start = |n| Thread::start(&format!("bench-{n}"), config.clone());
            let processors = || std::thread::available_parallelism().map_or(1, usize::from);
            let wanted = match threads {
                Threads::Shared(_, threads) => *threads,
                _ if jobs <= OWN_THREADS_MAX => jobs,
                _ => processors().min(OWN_THREADS_MAX),
            };
            let own = (0..wanted.clamp(1, jobs)).map(start).collect::<Result<Vec<_>, _>>()?;
            let handles = own.iter().map(Thread::handle).collect();
            Ok((own, handles))
        }
    }
}

/// Bytes that a load without a time has to do.
fn job_bytes(job: &Job, parts: impl Iterator<Item = Region>) -> Option<u64> {
    let blocks: u64 = parts.map(|part| part.blocks).sum();
    (!job.time_based).then(|| blocks.saturating_mul(job.bs))
}

enum WorkerReport {
    Opened,
    Failed(String, IoError),
    Done(u64, Box<JobOutcome>),
}

struct WorkerSetup {
    device: Arc<dyn BlockDevice>,
    job: Job,
    part: Region,
    index: u64,
    run: u64,
    stop: Stop,
    counters: Arc<Counters>,
    /// Jobs on the same engine thread.
    sharers: u32,
}

/// How many of `jobs` have the thread of job `index`, if they take `threads` in
/// turn.
fn sharers(jobs: usize, threads: usize, index: usize) -> u32 {
    let first = index % threads;
    u32::try_from((jobs - first).div_ceil(threads)).unwrap_or(u32::MAX)
}

impl WorkerSetup {
    /// Runs the job on its engine thread. A send fails only once the receiver was
    /// dropped.
    async fn run(self, tell: Sender<WorkerReport>, started: oneshot::Receiver<Instant>) {
        let io = match self.device.open().await {
            Ok(io) => io,
            Err(e) => {
                let _ = tell.send(WorkerReport::Failed(self.device.info().name, e));
                return;
            }
        };
        if tell.send(WorkerReport::Opened).is_err() {
            return;
        }
        let Ok(start) = started.await else { return };
        let shared = (self.stop, self.counters);
        let worker = Worker::new(&self.job, self.index, self.part, io, self.run, shared, start);
        let mut outcome = Rc::new(worker).run().await;
        // What the thread used, used all of its jobs.
        outcome.usage = outcome.usage.share(self.sharers);
        let _ = tell.send(WorkerReport::Done(self.index, Box::new(outcome)));
    }
}

impl WorkerSetup {
    /// The job, on a thread of its own; its stream lives on the engine thread.
    fn run_calls(self, handle: &Handle, tell: &Sender<WorkerReport>, started: oneshot::Receiver<Instant>) {
        let stream = match Stream::open_on(Arc::clone(&self.device), handle) {
            Ok(stream) => stream,
            Err(e) => {
                let _ = tell.send(WorkerReport::Failed(self.device.info().name, e));
                return;
            }
        };
        if tell.send(WorkerReport::Opened).is_err() {
            return;
        }
        let Ok(Ok(start)) = handle.spawn(move || started).wait() else { return };
        let WorkerSetup { job, part, index, run, stop, counters, .. } = self;
        let outcome = Calls { job: &job, part, index, run, stream, stop, counters, start }.run();
        let _ = tell.send(WorkerReport::Done(index, Box::new(outcome)));
    }
}

/// Starts all jobs at the same moment and waits for them.
fn watch(
    job: &Job,
    starts: Vec<oneshot::Sender<Instant>>,
    counters: &[Arc<Counters>],
    told: &Receiver<WorkerReport>,
    total: Option<u64>,
    (stop, progress): (&Stop, &mut dyn FnMut(&Live)),
) -> Result<Vec<JobOutcome>, BenchError> {
    let mut opened = 0;
    while opened < starts.len() {
        match told.recv_timeout(TICK) {
            Ok(WorkerReport::Opened) => opened += 1,
            Ok(WorkerReport::Failed(device, source)) => return Err(BenchError::Open { device, source }),
            Err(RecvTimeoutError::Timeout) if stop.is_set() => return Err(BenchError::GivenUp),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(WorkerReport::Done(..)) | Err(RecvTimeoutError::Disconnected) => return Err(BenchError::Lost),
        }
    }
    let start = Instant::now();
    let mut outcomes: Vec<Option<JobOutcome>> = starts.iter().map(|_| None).collect();
    for sender in starts {
        sender.send(start).map_err(|_| BenchError::Lost)?;
    }
    let mut view = LiveRates { job, total, start, before: [Rate::default(); 2], seen: Instant::now() };
    let mut next = start + TICK;
    let mut moved = (0, start);
    while outcomes.iter().any(Option::is_none) {
        match told.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(WorkerReport::Done(index, outcome)) => outcomes[index as usize] = Some(*outcome),
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Err(BenchError::Lost),
            Err(RecvTimeoutError::Timeout) => {
                let live = view.look(counters);
                progress(&live);
                next += TICK;
                if live.done_bytes != moved.0 {
                    moved = (live.done_bytes, Instant::now());
                } else if stop.is_set() && moved.1.elapsed() >= STOP_PATIENCE {
                    return Err(BenchError::GivenUp);
                }
            }
        }
    }
    Ok(outcomes.into_iter().flatten().collect())
}

/// Computes rates from counters.
struct LiveRates<'a> {
    job: &'a Job,
    total: Option<u64>,
    start: Instant,
    before: [Rate; 2],
    seen: Instant,
}

impl LiveRates<'_> {
    fn look(&mut self, counters: &[Arc<Counters>]) -> Live {
        let now = Instant::now();
        let seconds = (now - self.seen).as_secs_f64().max(1e-9);
        let sum =
            |f: &dyn Fn(&Counters) -> &AtomicU64| counters.iter().map(|c| f(c).load(Relaxed)).sum::<u64>();
        let mut rates = [Rate::default(); 2];
        let mut bytes_done = 0;
        for (way, rate) in rates.iter_mut().enumerate() {
            let (ios, bytes) = (sum(&|c| &c.ios[way]), sum(&|c| &c.bytes[way]));
            bytes_done += bytes;
            let all = Rate { iops: ios as f64, bytes_per_second: bytes as f64 };
            let before = std::mem::replace(&mut self.before[way], all);
            rate.iops = (all.iops - before.iops) / seconds;
            rate.bytes_per_second = (all.bytes_per_second - before.bytes_per_second) / seconds;
        }
        self.seen = now;
        let elapsed = now - self.start;
        let verifying = counters.iter().all(|c| c.verifying.load(Relaxed));
        let end = self.job.runtime.map(|time| self.job.ramp + time);
        let phase = match end {
            _ if verifying => Phase::Verify,
            _ if elapsed < self.job.ramp => Phase::Ramp,
            Some(end) if elapsed >= end => Phase::Drain,
            _ => Phase::Run,
        };
        let (done_bytes, total_bytes) = match phase {
            Phase::Verify => (sum(&|c| &c.verified), Some(self.before[1].bytes_per_second as u64)),
            _ => (bytes_done, self.total),
        };
        let remaining = end.map(|end| end.saturating_sub(elapsed));
        Live { phase, elapsed, remaining, read: rates[0], write: rates[1], done_bytes, total_bytes }
    }
}
