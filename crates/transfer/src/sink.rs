//! The side that receives: a task for each stream, and writing threads.
//!
//! Invariants:
//! - streams wait for room in the queue of jobs, so a slow disk holds TCP back
//!   and memory stays bounded; finished jobs never wait;
//! - the threads end with the session, however it ends.

use crate::gate::Gate;
use crate::guard::{OnPanic, Panicked};
use crate::host::Remembered;
use crate::link::{Link, LinkError, Rx, Tx};
use crate::monitor::Monitor;
use crate::output::Output;
use crate::queue::{Gauge, Queue};
use crate::session::{Done, Job, OPEN_FILES, Receiver, Told};
use crate::silence::{BEAT, Patience};
use crate::source::SessionError;
use crate::tune::{Concurrency, Path, Progress, Tuning, follow};
use crate::wire::{Counts, Frame, Limit, Refusal, RefusalKind, Stage, Tuned};
use futures_util::future::{Either, select, try_join_all};
use longhaul_engine::sync::Notify;
use longhaul_engine::{Task, now, sleep, spawn};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Bytes that were received and wait to be written.
const WRITE_BEHIND: usize = 32 << 20;
/// What a job without content weighs, so that many of them fill the queue too.
const JOB: usize = 1 << 10;
/// What many small files weigh: they are work by their number, and few bytes are many.
/// No more than a block, which would find room before them again and again.
const BATCH: usize = 1 << 20;
const FOR_EACH_BYTE: usize = 64;
/// What a question weighs: at most 64 are open, and one may ask for the checksums of
/// much.
const ASKED: usize = 1 << 20;
/// What the end of a file weighs besides: files of holes alone have nothing else, and are
/// under way until it is done.
const END: usize = 3 << 10;
const _: () = assert!(WRITE_BEHIND / (JOB + END) <= OPEN_FILES / 2, "a queue of ends is no violation");
/// How often the sending side is told how far this one is.
const TELL: Duration = Duration::from_millis(100);
/// Answers that wait to be sent before no more is received: each is a line or a few
/// KB about something that failed.
const UNSENT: usize = 4096;
/// How long a refusal may take to get through.
const FAREWELL: Duration = Duration::from_secs(5);

/// The queues between tasks and threads.
struct Queues {
    jobs: Queue<Job>,
    done: Queue<Done>,
    /// Which of the threads work.
    gate: Gate,
    /// All has been received.
    arrived: AtomicBool,
    panicked: Panicked,
}

impl Queues {
    fn panic(&self) {
        self.panicked.set();
        self.abort();
    }

    fn abort(&self) {
        self.jobs.abort();
        self.done.abort();
        self.gate.open();
    }

    /// Why the queues give out nothing any more.
    fn ended(&self) -> SessionError {
        self.panicked.check().err().unwrap_or(SessionError::Lost)
    }

    /// How far others wait for what is written: those at the other end do for all of it
    /// once nothing more is to come.
    fn gauge(&self) -> Gauge {
        let gauge = self.jobs.gauge();
        if self.arrived.load(Relaxed) { Gauge { fill: 1.0, empty: false, ..gauge } } else { gauge }
    }
}

struct Abort(Arc<Queues>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Receives everything; what was made of it. Where the sending side has the same
/// monitor, that one tells what it hears, and this side does not.
pub(crate) async fn receive(
    writer: Arc<Output>,
    writers: Concurrency,
    links: Vec<Link>,
    monitor: Arc<Monitor>,
    tell: bool,
    patience: Patience,
) -> Result<Counts, SessionError> {
    let gate = Gate::new(writers.start());
    let (arrived, panicked) = (AtomicBool::new(false), Panicked::default());
    let queues = Arc::new(Queues {
        jobs: Queue::new(WRITE_BEHIND),
        done: Queue::new(usize::MAX),
        gate,
        arrived,
        panicked,
    });
    monitor.choose(Stage::Write, false, writers.start(), "to begin with");
    let abort = Abort(Arc::clone(&queues));
    let gauge = Arc::clone(&queues);
    monitor.watch(Stage::Write, move || gauge.gauge());
    for index in 0..writers.most() {
        let (writer, queues) = (Arc::clone(&writer), Arc::clone(&queues));
        let run = move || {
            let _times = Remembered;
            let _guard = OnPanic(|| queues.panic());
            let mut walker = writer.walker();
            queues.gate.pass(index);
            while let Some(job) = queues.jobs.pop() {
                queues.done.force(writer.run(job, &mut walker), 0);
                queues.gate.pass(index);
            }
        };
        let thread = std::thread::Builder::new().name("transfer-write".into()).spawn(run);
        thread.map_err(|e| SessionError::Local(format!("cannot start a thread: {e}")))?;
    }
    let session = Rc::new(Session {
        receiver: RefCell::new(Receiver::new(links.len())),
        queues,
        monitor,
        tell,
        writer,
        writers,
        frames: Notify::new(),
        sending: Cell::new(0),
        deaf: Cell::new(false),
        room: links.iter().map(|_| Notify::new()).collect(),
        refusal: RefCell::new(None),
        ended: Cell::new(false),
    });
    let result = session.run(links, patience).await;
    drop(abort);
    result
}

struct Session {
    receiver: RefCell<Receiver>,
    queues: Arc<Queues>,
    monitor: Arc<Monitor>,
    tell: bool,
    writer: Arc<Output>,
    writers: Concurrency,
    /// There may be frames to send.
    frames: Notify,
    /// Frames that are being sent.
    sending: Cell<usize>,
    /// They cannot be.
    deaf: Cell<bool>,
    /// For each stream: there may be room for what it brings about.
    room: Vec<Notify>,
    /// The last thing to say, if it is not that all is done.
    refusal: RefCell<Option<Refusal>>,
    ended: Cell<bool>,
}

impl Session {
    async fn run(self: &Rc<Self>, links: Vec<Link>, patience: Patience) -> Result<Counts, SessionError> {
        let pulses = links.iter().filter_map(|link| link.rx.pulse()).collect();
        let (mut receiving, mut sending) = (Vec::new(), Vec::new());
        let sockets = links.iter().filter_map(|link| link.tx.stream()).filter(|_| self.tell).collect();
        let tuning: Task<()> = {
            let session = Rc::clone(self);
            spawn(async move { session.tune(Path { streams: sockets, sends: false }).await })
        };
        for (stream, link) in links.into_iter().enumerate() {
            let session = Rc::clone(self);
            receiving.push(spawn(async move { session.stream(stream, link.rx).await }));
            sending.push(link.tx);
        }
        let mut sending = sending.into_iter();
        let Some(first) = sending.next() else { return Err(SessionError::Lost) };
        // Open until all is done, though nothing goes out on them.
        let _others: Vec<Tx> = sending.collect();
        let answering = {
            let session = Rc::clone(self);
            spawn(async move {
                let told = session.answer(first).await;
                // Nobody hears an answer any more: who waits to give some need not.
                session.deaf.set(told.is_err());
                session.room.iter().for_each(Notify::notify);
                told
            })
        };
        let ticking: Task<()> = {
            let session = Rc::clone(self);
            spawn(async move {
                let mut said = now();
                loop {
                    sleep(TELL).await;
                    let beat = session.tell && now().saturating_duration_since(said) >= BEAT;
                    if session.receiver.borrow_mut().tell(beat) {
                        said = now();
                    }
                    session.frames.notify();
                }
            })
        };
        let work = {
            let session = Rc::clone(self);
            spawn(async move { session.finish().await })
        };
        // A stream ends well when the sender has ended it; the work goes on.
        let streams = async {
            match try_join_all(receiving).await {
                Ok(_) => std::future::pending().await,
                Err(e) => e,
            }
        };
        let silence = async {
            let busy = || self.receiver.borrow().open() > 0;
            SessionError::Silent(
                patience
                    .ends(pulses, busy, |silent| {
                        // Once all has come, the sender waits for this side.
                        let all = self.queues.arrived.load(Relaxed);
                        self.monitor.silent(if all { Duration::ZERO } else { silent });
                    })
                    .await,
            )
        };
        let failed = select(Box::pin(streams), Box::pin(silence));
        let worked = match select(failed, work).await {
            Either::Left((e, _)) => Err(e.factor_first().0),
            Either::Right((result, _)) => result,
        };
        if let Err(e) = &worked {
            *self.refusal.borrow_mut() = Some(refusal(e));
        }
        self.ended.set(true);
        self.frames.notify();
        // Whoever has gone does not hear it.
        let told = longhaul_engine::timeout(FAREWELL, answering).await;
        ticking.cancel().await;
        tuning.cancel().await;
        worked?;
        match told {
            Ok(Ok(())) => Ok(self.receiver.borrow().counts()),
            Ok(Err(e)) => Err(e.into()),
            Err(_) => Err(SessionError::Lost),
        }
    }

    /// Takes what comes on one stream, until the sender ends it.
    async fn stream(&self, stream: usize, mut rx: Rx) -> Result<Rx, SessionError> {
        loop {
            while self.receiver.borrow().unsent() + self.sending.get() > UNSENT {
                if self.deaf.get() {
                    return Err(SessionError::Lost);
                }
                self.room[stream].notified().await;
            }
            let Some(frame) = rx.frame().await? else { return Err(SessionError::Lost) };
            let last = matches!(frame, Frame::End { .. });
            if let Frame::Refuse(refusal) = frame {
                return Err(SessionError::Refused(refusal));
            }
            let told = self.receiver.borrow_mut().handle(frame)?;
            if last && self.receiver.borrow().has_all() {
                self.queues.arrived.store(true, Relaxed);
            }
            match told.filter(|_| self.tell) {
                Some(Told::Trouble(trouble)) => self.monitor.trouble(trouble),
                Some(Told::Tuned(tuned)) => self.monitor.tuned(tuned, true),
                Some(Told::Limit(stage)) => self.monitor.limit_there(stage),
                Some(Told::Scanned(scanned)) => self.monitor.scanned(scanned),
                None => {}
            }
            loop {
                let Some(job) = self.receiver.borrow_mut().poll_job() else { break };
                let weight = weight(&job);
                self.queues.jobs.push_async(job, weight).await.map_err(|_| self.queues.ended())?;
            }
            if last {
                return Ok(rx);
            }
        }
    }

    /// Lets the number of writers follow what they bring.
    async fn tune(&self, path: Path) {
        let queues = &self.queues;
        let writers = Tuning {
            stage: Stage::Write,
            concurrency: self.writers,
            start: self.writers.start(),
            most: self.writers.most(),
            look: Box::new(|| {
                let counts = self.receiver.borrow().counts();
                let limits = queues.jobs.gauge().fill >= 0.5;
                Progress { files: counts.files + counts.others, bytes: counts.bytes, limits }
            }),
            set: Box::new(|number| queues.gate.set(number)),
        };
        let tell = |tuned: Tuned| {
            self.monitor.tuned(tuned.clone(), false);
            // Where both sides are here, they have one monitor.
            if self.tell {
                self.receiver.borrow_mut().tuned(tuned);
                self.frames.notify();
            }
        };
        let mut told = None;
        let look = || {
            let limit = (queues.gauge().fill >= 0.5).then_some(Stage::Write);
            if limit != told && self.tell {
                told = limit;
                self.receiver.borrow_mut().limits(limit.map(Limit::Stage));
                self.frames.notify();
            }
        };
        follow(path, vec![writers], &self.monitor, tell, look).await;
    }

    /// Takes what the threads have done, until all is.
    async fn finish(&self) -> Result<(), SessionError> {
        while let Some(done) = self.queues.done.pop_async().await {
            let mut receiver = self.receiver.borrow_mut();
            // Before the last word.
            for planned in self.writer.take_planned() {
                if self.tell {
                    self.monitor.planned(planned.clone());
                }
                receiver.planned(planned);
            }
            receiver.done(done)?;
            for trouble in receiver.poll_troubles().filter(|_| self.tell) {
                self.monitor.trouble(trouble);
            }
            self.monitor.set_counts(receiver.counts());
            while let Some(job) = receiver.poll_job() {
                let weight = weight(&job);
                self.queues.jobs.force(job, weight);
            }
            let finished = receiver.is_finished();
            drop(receiver);
            self.frames.notify();
            if let Some(violation) = self.writer.violation() {
                return Err(violation.into());
            }
            if self.writer.is_full() {
                return Err(SessionError::Local(
                    "the destination takes no more: its file system is full".into(),
                ));
            }
            if finished {
                return Ok(());
            }
        }
        Err(self.queues.ended())
    }

    /// Sends answers until all are sent.
    async fn answer(&self, mut tx: Tx) -> Result<(), LinkError> {
        loop {
            let mut frames = Vec::new();
            while let Some(frame) = self.receiver.borrow_mut().poll_frame() {
                frames.push(frame);
            }
            let ended = self.ended.get();
            if ended {
                frames.extend(self.refusal.borrow_mut().take().map(Frame::Refuse));
            }
            if !frames.is_empty() {
                self.sending.set(frames.len());
                tx.send(frames).await?;
                self.sending.set(0);
                self.room.iter().for_each(Notify::notify);
            } else if ended {
                return Ok(());
            } else {
                self.frames.notified().await;
            }
        }
    }
}

fn weight(job: &Job) -> usize {
    JOB + match job {
        Job::Batch(body) => (FOR_EACH_BYTE * body.len()).min(BATCH).max(body.len()),
        Job::Ask { .. } => ASKED,
        Job::Block { data, .. } => data.len(),
        Job::Complete(_) | Job::Abandon(_) => END,
        Job::Settle { .. } => 0,
    }
}

/// What to tell the other side about the end of a session.
fn refusal(e: &SessionError) -> Refusal {
    let kind = match e {
        SessionError::Violation(_) | SessionError::Link(LinkError::Malformed(_)) => RefusalKind::Protocol,
        SessionError::Local(_) => RefusalKind::Storage,
        _ => RefusalKind::Failed,
    };
    Refusal::new(kind, e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Batch, Content, Entry, Kind};

    fn queues() -> Queues {
        let gate = Gate::new(1);
        let (arrived, panicked) = (AtomicBool::new(false), Panicked::default());
        Queues { jobs: Queue::new(WRITE_BEHIND), done: Queue::new(usize::MAX), gate, arrived, panicked }
    }

    #[test]
    fn files_without_content_that_wait_are_seen_to_limit() {
        let queues = queues();
        let batch = || {
            let mut batch = Batch::default();
            while !batch.is_full() {
                let entry = Entry::plain("some/directory/file", Kind::File, 0);
                batch.push(&entry, &Content::None, &[]);
            }
            Job::Batch(batch.into_body())
        };
        // Each of a thousand files.
        for _ in 0..16 {
            let job = batch();
            let weight = weight(&job);
            queues.jobs.force(job, weight);
        }
        assert!(queues.gauge().fill >= 0.5, "{:?}", queues.gauge());
    }

    #[test]
    fn when_all_has_come_it_is_what_is_written_that_others_wait_for() {
        let queues = queues();
        assert_eq!(queues.gauge().fill, 0.0);
        queues.arrived.store(true, Relaxed);
        assert_eq!(queues.gauge().fill, 1.0);
        let monitor = Monitor::new();
        monitor.watch(Stage::Read, || Gauge { empty: true, ..Gauge::default() });
        monitor.scanned(crate::wire::Scanned { done: true, ..Default::default() });
        assert_eq!(monitor.limit_here(), Some(Limit::Stage(Stage::Send)));
        monitor.watch(Stage::Write, move || queues.gauge());
        assert_eq!(monitor.limit_here(), Some(Limit::Stage(Stage::Write)));
    }

    #[test]
    fn a_thread_that_panics_is_heard_of() {
        let queues = Arc::new(queues());
        let thread = Arc::clone(&queues);
        let run = move || {
            let _guard = OnPanic(|| thread.panic());
            panic!("as the test wants it");
        };
        std::thread::spawn(run).join().expect_err("it panicked");
        assert!(queues.done.pop().is_none(), "nobody waits for more");
        assert!(matches!(queues.ended(), SessionError::Local(why) if why.contains("panic")));
    }
}
