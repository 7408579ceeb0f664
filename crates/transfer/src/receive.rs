//! The receiver: a task for each data connection, and writer threads.
//!
//! Invariants:
//! - connections wait while the job queue is full, so a slow disk exerts back-pressure
//!   through TCP and memory stays bounded; results of jobs never wait;
//! - the writer threads end with the session, also after an error.

pub(crate) mod allow_list;
pub(crate) mod destination;
mod jobs;
pub(crate) mod journal;
pub(crate) mod manifest;
pub(crate) mod null_sink;
pub(crate) mod write;

use crate::guard::OnPanic;
use crate::host::ThreadTimes;
use crate::link::peer_timeout::{BEAT, PeerTimeout};
use crate::link::{Link, LinkError, Rx, Tx};
use crate::monitor::Monitor;
use crate::session::error::SessionError;
use crate::session::{JobResult, Receiver, SenderNotice};
use crate::tune::workers::Workers;
use crate::tune::{Concurrency, Connections, StageProgress, TunedStage, WaitingFiles, follow};
use crate::wire::{Counts, Frame, Limit, Refusal, RefusalKind, Stage, Tuned};
use destination::Destination;
use futures_util::future::{Either, select, try_join_all};
use jobs::{ReceiveQueues, weight};
use longhaul_engine::sync::Notify;
use longhaul_engine::{Task, now, sleep, spawn};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Interval of progress reports to the sender.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Answers that may wait to be sent; beyond them the receiver stops reading. Each is an
/// error report of up to a few KB.
const UNSENT: usize = 4096;
/// Timeout for delivering a refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Aborts the queues, and so ends the threads, when the session is dropped.
struct StopWriters(Arc<ReceiveQueues>);

impl Drop for StopWriters {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs the receiving side of a session and returns its counts. `shares_monitor` is true in a
/// local copy, where both sides share `monitor` and the sender feeds it.
pub(crate) async fn receive(
    destination: Arc<Destination>,
    writers: Concurrency,
    links: Vec<Link>,
    monitor: Arc<Monitor>,
    shares_monitor: bool,
    peer_timeout: PeerTimeout,
) -> Result<Counts, SessionError> {
    let queues = Arc::new(ReceiveQueues::new(writers.start()));
    monitor.choose(Stage::Write, false, writers.start(), "to begin with");
    let abort = StopWriters(Arc::clone(&queues));
    let gauge = Arc::clone(&queues);
    monitor.watch(Stage::Write, move || gauge.gauge());
    let (target, shared) = (Arc::clone(&destination), Arc::clone(&queues));
    let start = move |index| {
        let (destination, queues) = (Arc::clone(&target), Arc::clone(&shared));
        let run = move || {
            let _times = ThreadTimes;
            let _guard = OnPanic(|| queues.panic());
            let mut walker = destination.walker();
            queues.gate.pass(index);
            while let Some(job) = queues.jobs.pop() {
                let service = queues.service.begin();
                let result = destination.run(job, &mut walker);
                queues.service.end(service, files(&result));
                queues.done.force(result, 0);
                queues.gate.pass(index);
            }
        };
        std::thread::Builder::new().name("transfer-write".into()).spawn(run).map(drop)
    };
    let workers = Workers::new(Arc::clone(&queues.gate), start);
    let workers = workers.map_err(|e| SessionError::Local(format!("cannot start a thread: {e}")))?;
    let session = Rc::new(ReceiveSession {
        receiver: RefCell::new(Receiver::new(links.len())),
        queues,
        monitor,
        shares_monitor,
        destination,
        writers,
        workers,
        frames: Notify::new(),
        sending: Cell::new(0),
        send_failed: Cell::new(false),
        room: links.iter().map(|_| Notify::new()).collect(),
        refusal: RefCell::new(None),
        ended: Cell::new(false),
    });
    let result = session.run(links, peer_timeout).await;
    drop(abort);
    result
}

struct ReceiveSession {
    receiver: RefCell<Receiver>,
    queues: Arc<ReceiveQueues>,
    monitor: Arc<Monitor>,
    shares_monitor: bool,
    destination: Arc<Destination>,
    writers: Concurrency,
    workers: Workers,
    /// Signalled when frames may wait to be sent.
    frames: Notify,
    /// Number of frames that are being sent.
    sending: Cell<usize>,
    /// Sending has failed.
    send_failed: Cell<bool>,
    /// For each connection: signalled when answers were sent, so that it may read on.
    room: Vec<Notify>,
    /// The refusal to send last, if the session failed.
    refusal: RefCell<Option<Refusal>>,
    ended: Cell<bool>,
}

impl ReceiveSession {
    async fn run(
        self: &Rc<Self>,
        links: Vec<Link>,
        peer_timeout: PeerTimeout,
    ) -> Result<Counts, SessionError> {
        let last_received = links.iter().filter_map(|link| link.rx.last_received()).collect();
        let (mut receiving, mut sending) = (Vec::new(), Vec::new());
        let sockets =
            links.iter().filter_map(|link| link.tx.stream()).filter(|_| !self.shares_monitor).collect();
        let tuning: Task<()> = {
            let session = Rc::clone(self);
            spawn(async move { session.tune(Connections { streams: sockets, sends: false }).await })
        };
        for (stream, link) in links.into_iter().enumerate() {
            let session = Rc::clone(self);
            receiving.push(spawn(async move { session.stream(stream, link.rx).await }));
            sending.push(link.tx);
        }
        let mut sending = sending.into_iter();
        let Some(first) = sending.next() else { return Err(SessionError::Lost) };
        // Kept open until the end: answers go out on the first connection only.
        let _others: Vec<Tx> = sending.collect();
        let answering = {
            let session = Rc::clone(self);
            spawn(async move {
                let answered = session.answer(first).await;
                // Connections that wait for answers to be sent must not wait any longer.
                session.send_failed.set(answered.is_err());
                session.room.iter().for_each(Notify::notify);
                answered
            })
        };
        let ticking: Task<()> = {
            let session = Rc::clone(self);
            spawn(async move {
                let mut sent = now();
                loop {
                    sleep(PROGRESS_INTERVAL).await;
                    let beat = !session.shares_monitor && now().saturating_duration_since(sent) >= BEAT;
                    if session.receiver.borrow_mut().report_progress(beat) {
                        sent = now();
                    }
                    session.frames.notify();
                }
            })
        };
        let work = {
            let session = Rc::clone(self);
            spawn(async move { session.finish().await })
        };
        // A connection that the sender closed in order is no end of the session.
        let streams = async {
            match try_join_all(receiving).await {
                Ok(_) => std::future::pending().await,
                Err(e) => e,
            }
        };
        let silence = async {
            let busy = || self.receiver.borrow().open() > 0;
            SessionError::Silent(
                peer_timeout
                    .expires(last_received, busy, |silent| {
                        // With all data received, the sender waits for the receiver.
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
        // Best effort: the sender may have disconnected.
        let answered = longhaul_engine::timeout(REFUSAL_TIMEOUT, answering).await;
        ticking.cancel().await;
        tuning.cancel().await;
        worked?;
        match answered {
            Ok(Ok(())) => Ok(self.receiver.borrow().counts()),
            Ok(Err(e)) => Err(e.into()),
            Err(_) => Err(SessionError::Lost),
        }
    }

    /// Receives frames on one connection until the sender ends it.
    async fn stream(&self, stream: usize, mut rx: Rx) -> Result<Rx, SessionError> {
        loop {
            while self.receiver.borrow().unsent() + self.sending.get() > UNSENT {
                if self.send_failed.get() {
                    return Err(SessionError::Lost);
                }
                self.room[stream].notified().await;
            }
            let Some(frame) = rx.frame().await? else { return Err(SessionError::Lost) };
            let last = matches!(frame, Frame::End { .. });
            if let Frame::Refuse(refusal) = frame {
                return Err(SessionError::Refused(refusal));
            }
            let notice = self.receiver.borrow_mut().handle(frame)?;
            if last && self.receiver.borrow().has_all() {
                self.queues.arrived.store(true, Relaxed);
            }
            match notice.filter(|_| !self.shares_monitor) {
                Some(SenderNotice::Trouble(trouble)) => self.monitor.trouble(trouble),
                Some(SenderNotice::Tuned(tuned)) => self.monitor.tuned(tuned, true),
                Some(SenderNotice::Limit(stage)) => self.monitor.set_peer_limit(stage),
                Some(SenderNotice::Scanned(scanned)) => self.monitor.scan.set(scanned),
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

    /// Adapts the number of writer threads to their measured throughput.
    async fn tune(&self, path: Connections) {
        let queues = &self.queues;
        let writers = TunedStage {
            stage: Stage::Write,
            concurrency: self.writers,
            start: self.writers.start(),
            most: self.writers.most(),
            look: Box::new(|| {
                let counts = self.receiver.borrow().counts();
                let limits = queues.jobs.gauge().fill >= 0.5;
                StageProgress { files: counts.files + counts.others, bytes: counts.bytes, limits }
            }),
            set: Box::new(|number| self.workers.set(number)),
            kept: None,
            files: Some(WaitingFiles { service: &queues.service, waiting: Box::new(|| queues.jobs.len()) }),
        };
        let report = |tuned: Tuned| {
            self.monitor.tuned(tuned.clone(), false);
            // In a local copy both sides share the monitor.
            if !self.shares_monitor {
                self.receiver.borrow_mut().tuned(tuned);
                self.frames.notify();
            }
        };
        let mut sent_limit = None;
        let look = || {
            let limit = (queues.gauge().fill >= 0.5).then_some(Stage::Write);
            if limit != sent_limit && !self.shares_monitor {
                sent_limit = limit;
                self.receiver.borrow_mut().limits(limit.map(Limit::Stage));
                self.frames.notify();
            }
        };
        follow(path, vec![writers], &self.monitor, report, look).await;
    }

    /// Processes results of the writer threads until the session is complete.
    async fn finish(&self) -> Result<(), SessionError> {
        while let Some(done) = self.queues.done.pop_async().await {
            let mut receiver = self.receiver.borrow_mut();
            // Sent before the final frame.
            for planned in self.destination.take_planned() {
                if !self.shares_monitor {
                    self.monitor.planned(planned.clone());
                }
                receiver.planned(planned);
            }
            receiver.done(done)?;
            for trouble in receiver.poll_troubles().filter(|_| !self.shares_monitor) {
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
            if let Some(violation) = self.destination.violation() {
                return Err(violation.into());
            }
            if self.destination.is_full() {
                return Err(SessionError::Local(
                    "cannot write to the destination: its file system is full; free space and run the same command again".into(),
                ));
            }
            if let Some(why) = self.destination.failure() {
                return Err(SessionError::Local(format!("cannot write to the destination: {why}")));
            }
            if finished {
                return Ok(());
            }
        }
        Err(self.queues.ended())
    }

    /// Sends frames until the session has ended and all are sent.
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

/// Number of files, or blocks of one, that a job has written.
fn files(result: &JobResult) -> u64 {
    match result {
        JobResult::Batch(counts, _) | JobResult::File(_, counts, _) => counts.files,
        JobResult::Block(_, written) => u64::from(written.is_ok()),
        JobResult::Query { .. } | JobResult::Abandoned(_) | JobResult::Settled(..) => 0,
    }
}

/// The refusal that reports an error to the sender.
fn refusal(e: &SessionError) -> Refusal {
    let kind = match e {
        SessionError::Violation(_) | SessionError::Link(LinkError::Malformed(_)) => RefusalKind::Protocol,
        SessionError::Local(_) => RefusalKind::Storage,
        _ => RefusalKind::Failed,
    };
    Refusal::new(kind, e)
}
