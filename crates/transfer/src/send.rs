//! The sender: a scanner thread, reader threads, and a task for each data connection.
//!
//! Invariants:
//! - entries pass through bounded queues, or wait for the answer to an existence query,
//!   whose number is bounded;
//! - connections end after the readers, and the readers after the scan and the answers
//!   to all queries; a failing thread or task aborts all queues, which ends the others.

pub(crate) mod budget;
pub(crate) mod existence_query;
mod forward;
pub(crate) mod rate_limit;
pub(crate) mod read;
pub(crate) mod spec;
pub(crate) mod synthetic;

use crate::guard::{OnPanic, Panicked};
use crate::host::ThreadTimes;
use crate::link::peer_timeout::{BEAT, PeerTimeout};
use crate::link::{Link, Rx, Tx};
use crate::monitor::Monitor;
use crate::queue::Queue;
use crate::session::error::SessionError;
use crate::session::{ReceiverMessage, Sender, SenderItem};
use crate::tree::scan::FoundEntry;
use crate::tune::gate::Gate;
use crate::tune::service::ServiceTimes;
use crate::tune::workers::Workers;
use crate::tune::{Concurrency, Connections, KnownPaths, StageProgress, TunedStage, WaitingFiles, follow};
use crate::wire::{
    BATCH_ENTRIES, BLOCK, Batch, Compare, Content, Counts, Frame, Refusal, Scanned, Stage, Tuned,
};
use budget::Budget;
use existence_query::QueryBatcher;
use forward::ScanForwarder;
use futures_util::future::{Either, select, try_join_all};
use longhaul_engine::net::TcpInfo;
use longhaul_engine::sync::Notify;
use longhaul_engine::{BufPool, Task, now, spawn, wall_time};
use rate_limit::RateLimit;
use read::{ReadWork, Reader};
use spec::SendSpec;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Entries that may wait to be read: enough for every thread to fill batches, in a few
/// MB of names.
const FOUND: usize = 16 << 10;
/// Bytes of read data that may wait to be sent: a few blocks for each reader and
/// connection. Data in flight is in the socket buffers, so more would only cost memory.
const READ_AHEAD: usize = 32 * BLOCK;
/// Entries that may wait for their existence query.
const QUERY_QUEUE: usize = 8 * BATCH_ENTRIES;

/// The queues between the stages.
struct SendQueues {
    /// Entries for existence queries.
    queries: Arc<Queue<Vec<(FoundEntry, Content)>>>,
    work: Arc<Queue<ReadWork>>,
    items: Arc<Queue<SenderItem>>,
    panicked: Panicked,
}

impl SendQueues {
    fn panic(&self) {
        self.panicked.set();
        self.abort();
    }

    fn abort(&self) {
        self.queries.abort();
        self.work.abort();
        self.items.abort();
    }
}

/// Aborts the queues, and so ends the threads, when the session is dropped.
struct StopReaders(Arc<SendQueues>);

impl Drop for StopReaders {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs the sending side of a session and returns the receiver's counts. All of `links`
/// are used, or as many as improve the rate if `streams` is [`Concurrency::Measured`].
pub(crate) async fn send(
    spec: SendSpec,
    links: Vec<Link>,
    streams: Concurrency,
    monitor: Arc<Monitor>,
    peer_timeout: PeerTimeout,
) -> Result<Counts, SessionError> {
    let queues = Arc::new(SendQueues {
        queries: Arc::new(Queue::new(QUERY_QUEUE)),
        work: Arc::new(Queue::new(FOUND)),
        items: Arc::new(Queue::new(spec.read_ahead.unwrap_or(READ_AHEAD).max(1))),
        panicked: Panicked::default(),
    });
    let (work, items) = (Arc::clone(&queues.work), Arc::clone(&queues.items));
    monitor.watch(Stage::Read, move || work.gauge());
    monitor.watch(Stage::Send, move || items.gauge());
    let abort = StopReaders(Arc::clone(&queues));
    let (query, dry_run, rate) = (spec.query, spec.options.dry_run, spec.rate);
    let known_paths = spec.known_paths.clone();
    if rate > 0 {
        links.iter().for_each(|link| link.tx.limit(rate));
    } else {
        links.iter().for_each(|link| link.tx.pace());
    }
    let readers = spec.readers;
    let service = Arc::new(ServiceTimes::default());
    let workers = threads(spec, &queues, &monitor, &service)?;
    // With a rate limit, more connections cannot help.
    let streams = if rate > 0 { Concurrency::Fixed(streams.streams()) } else { streams };
    let sockets: Vec<_> = links.iter().filter_map(|link| link.tx.stream()).collect();
    let path = Connections { streams: sockets.clone(), sends: true };
    let known = if streams.is_measured() { PathToKeep::new(known_paths, &path) } else { None };
    let earlier = match &known {
        Some(known) => known.earlier().await,
        None => None,
    };
    let active = earlier.unwrap_or(streams.streams()).min(links.len());
    monitor.choose(Stage::Read, false, readers.start(), "to begin with");
    let why =
        if earlier.is_some() { "as many as an earlier copy to this address needed" } else { "to begin with" };
    monitor.choose(Stage::Send, false, active, why);
    let session = Rc::new(SendSession {
        sender: RefCell::new(Sender::new(links.len())),
        readers,
        workers,
        service,
        streams,
        active: Cell::new(active),
        kept: Cell::new(active),
        wake: links.iter().map(|_| Notify::new()).collect(),
        sent: Cell::new(0),
        queues,
        monitor,
        answered: Notify::new(),
        dry_run,
        rate_limit: RateLimit::new(rate),
    });
    let watcher = Arc::clone(&session.monitor);
    let last_received = links.iter().filter_map(|link| link.rx.last_received()).collect();
    let result = match select(
        pin!(session.run(links, path, query)),
        pin!(peer_timeout.expires(last_received, || false, |silent| watcher.silent(silent))),
    )
    .await
    {
        Either::Left((result, _)) => result,
        Either::Right((silent, _)) => Err(SessionError::Silent(silent)),
    };
    let infos: Vec<_> = sockets.iter().filter_map(|socket| socket.info().ok()).collect();
    if !infos.is_empty() {
        watcher.set_sockets(TcpInfo::together(&infos));
    }
    drop(abort);
    if let Some(known) = known.filter(|_| result.is_ok()) {
        known.keep(session.kept.get()).await;
    }
    result
}

/// A path whose number of connections is kept.
struct PathToKeep {
    paths: KnownPaths,
    to: IpAddr,
    round_trip: Duration,
}

impl PathToKeep {
    /// None of a connection that is not TCP's.
    fn new(paths: Option<KnownPaths>, path: &Connections) -> Option<PathToKeep> {
        let round_trip = path.least_round_trip();
        Some(PathToKeep { paths: paths?, to: path.peer()?, round_trip })
    }

    async fn earlier(&self) -> Option<usize> {
        let (paths, to, round_trip, now) = (self.paths.clone(), self.to, self.round_trip, wall_time());
        longhaul_engine::blocking(move || paths.streams(to, round_trip, now)).await
    }

    async fn keep(self, streams: usize) {
        let (PathToKeep { paths, to, round_trip }, now) = (self, wall_time());
        longhaul_engine::blocking(move || paths.keep(to, round_trip, streams, now)).await;
    }
}

/// Starts the scanner thread and the first reader threads; aborting the queues ends them.
fn threads(
    spec: SendSpec,
    queues: &Arc<SendQueues>,
    monitor: &Arc<Monitor>,
    service: &Arc<ServiceTimes>,
) -> Result<Workers, SessionError> {
    let failed = |e: io::Error| SessionError::Local(format!("cannot start a thread: {e}"));
    let (gate, most) = (Arc::new(Gate::new(spec.readers.start())), spec.readers.most());
    let queries = spec.query.then(|| {
        let by_content = spec.options.compare == Compare::Checksum;
        Arc::new(QueryBatcher::new(Arc::clone(&queues.queries), by_content.then_some(spec.options.hash)))
    });
    let reader = Arc::new(Reader {
        queries: queries.clone(),
        work: Arc::clone(&queues.work),
        items: Arc::clone(&queues.items),
        pool: BufPool::new(spec.read_ahead.unwrap_or(READ_AHEAD) + (spec.readers.blocks() + 8) * BLOCK),
        budget: Budget::new((spec.readers.blocks() + 8) * BLOCK),
        service: Arc::clone(service),
        hash: spec.options.hash,
        xattrs: spec.options.xattrs,
        threads: most,
        gate: Arc::clone(&gate),
        next: AtomicU64::new(0),
        stats: Arc::clone(&monitor.read),
    });
    let (running, shared) = (Arc::new(AtomicUsize::new(0)), Arc::clone(queues));
    // A thread that is started after the others have ended finds no work, and ends the items again.
    let start = move |index| {
        let (reader, running, queues) = (Arc::clone(&reader), Arc::clone(&running), Arc::clone(&shared));
        let count = Arc::clone(&running);
        count.fetch_add(1, Ordering::AcqRel);
        let run = move || {
            let _times = ThreadTimes;
            let _guard = OnPanic(|| {
                queues.panic();
                reader.gate.open();
            });
            reader.run(index);
            if running.fetch_sub(1, Ordering::AcqRel) == 1 {
                reader.items.close();
            }
        };
        let thread = std::thread::Builder::new().name("transfer-read".into()).spawn(run);
        // The others still run: the scan has not ended, or they have work.
        thread.map(drop).inspect_err(|_| _ = count.fetch_sub(1, Ordering::AcqRel))
    };
    let workers = Workers::new(gate, start).map_err(failed)?;
    let forwarder = ScanForwarder {
        queues: Arc::clone(queues),
        monitor: Arc::clone(monitor),
        read_first: spec.options.xattrs || spec.options.compare == Compare::Checksum,
        queries,
    };
    let guarded = Arc::clone(queues);
    let run = move || {
        let _times = ThreadTimes;
        let _guard = OnPanic(|| guarded.panic());
        forwarder.run(&spec)
    };
    std::thread::Builder::new().name("transfer-scan".into()).spawn(run).map_err(failed)?;
    Ok(workers)
}

/// State that the tasks of a session share.
struct SendSession {
    sender: RefCell<Sender<FoundEntry>>,
    queues: Arc<SendQueues>,
    monitor: Arc<Monitor>,
    /// Signalled for each answer to a query.
    answered: Notify,
    dry_run: bool,
    rate_limit: RateLimit,
    /// The number of reader threads, the threads, and how long files take them.
    readers: Concurrency,
    workers: Workers,
    service: Arc<ServiceTimes>,
    /// Data connections: those with an index below `active` carry data, the others wait.
    streams: Concurrency,
    active: Cell<usize>,
    /// How many of them their tuner keeps.
    kept: Cell<usize>,
    wake: Vec<Notify>,
    /// Bytes of content written to the sockets.
    sent: Cell<u64>,
}

impl SendSession {
    async fn run(
        self: &Rc<Self>,
        links: Vec<Link>,
        path: Connections,
        query: bool,
    ) -> Result<Counts, SessionError> {
        let (mut sending, mut receiving) = (Vec::new(), Vec::new());
        let tuning: Task<()> = {
            let session = Rc::clone(self);
            spawn(async move { session.tune(path).await })
        };
        for (stream, link) in links.into_iter().enumerate() {
            let session = Rc::clone(self);
            sending.push(spawn(async move { session.stream(stream, link.tx).await }));
            receiving.push(link.rx);
        }
        let querying: Task<()> = {
            let session = Rc::clone(self);
            spawn(async move {
                if query {
                    session.query().await;
                }
            })
        };
        let mut receiving = receiving.into_iter();
        let Some(first) = receiving.next() else { return Err(SessionError::Lost) };
        let listening = {
            let session = Rc::clone(self);
            spawn(async move { session.listen(first).await })
        };
        // Kept open until the end: answers arrive on the first connection only.
        let _others: Vec<Rx> = receiving.collect();
        let sent = try_join_all(sending);
        let counts = match select(sent, listening).await {
            // A local error is the cause, whatever the receiver reports.
            Either::Left((Err(e @ SessionError::Local(_)), _)) => Err(e),
            // The receiver's refusal explains more than the closed connection.
            Either::Left((sent, listening)) => match (sent, listening.await) {
                (_, Ok(counts)) => Ok(counts),
                (_, Err(e @ (SessionError::Refused(_) | SessionError::Violation(_)))) => Err(e),
                (Err(e), _) | (Ok(_), Err(e)) => Err(e),
            },
            Either::Right((result, _)) => result,
        };
        querying.cancel().await;
        tuning.cancel().await;
        counts
    }

    /// Sends items on one connection until there are no more.
    async fn stream(&self, stream: usize, mut tx: Tx) -> Result<Tx, SessionError> {
        loop {
            while stream >= self.active.get() {
                self.wake[stream].notified().await;
            }
            let Some(item) = self.queues.items.pop_async().await else { break };
            if let SenderItem::Trouble(trouble) = &item {
                self.monitor.trouble(trouble.clone());
            }
            let mut frames = Vec::new();
            self.sender.borrow_mut().frames(stream, item, &mut frames);
            let bytes = frames.iter().map(Frame::weight).sum();
            self.monitor.rate_limited(self.rate_limit.wait(bytes).await);
            tx.send(frames).await?;
            self.sent.set(self.sent.get() + bytes as u64);
        }
        self.queues.panicked.check()?;
        // Wakes the idle connections, which have to send their end as well.
        self.use_streams(usize::MAX);
        let end = self.sender.borrow().end(true);
        tx.send(vec![end]).await?;
        Ok(tx)
    }

    fn use_streams(&self, active: usize) {
        self.active.set(if self.active.get() == usize::MAX { usize::MAX } else { active });
        self.wake.iter().for_each(Notify::notify);
    }

    /// Adapts the numbers of reader threads and connections to their throughput.
    async fn tune(&self, path: Connections) {
        let (items, work) = (&self.queues.items, &self.queues.work);
        let (read, sent) = (&self.monitor.read, &self.sent);
        let readers = TunedStage {
            stage: Stage::Read,
            concurrency: self.readers,
            start: self.readers.start(),
            most: self.readers.most(),
            look: Box::new(|| StageProgress {
                files: read.files.load(Ordering::Relaxed),
                bytes: read.bytes.load(Ordering::Relaxed),
                limits: items.gauge().fill < 0.5 && !work.is_empty(),
            }),
            set: Box::new(|number| self.workers.set(number)),
            kept: None,
            files: Some(WaitingFiles {
                service: &self.service,
                // Blocks of a file that is open weigh nothing in the queue.
                waiting: Box::new(|| if items.gauge().fill < 0.5 { work.weight() } else { 0 }),
            }),
        };
        let streams = TunedStage {
            stage: Stage::Send,
            concurrency: self.streams,
            start: self.active.get(),
            most: self.wake.len(),
            look: Box::new(|| StageProgress {
                files: 0,
                bytes: sent.get(),
                limits: items.gauge().fill >= 0.5,
            }),
            set: Box::new(|number| {
                self.use_streams(number);
                number
            }),
            kept: Some(Box::new(|number| self.kept.set(number))),
            files: None,
        };
        let report = |tuned: Tuned| {
            self.monitor.tuned(tuned.clone(), false);
            self.queues.items.force(SenderItem::Tuned(tuned), 1);
        };
        let (mut sent_limit, mut sent_at, mut scanned) = (None, now(), Scanned::default());
        let look = || {
            let found = self.monitor.scan.now();
            if found != scanned {
                scanned = found;
                self.queues.items.force(SenderItem::Scanned(found), 1);
            }
            let limit = self.monitor.limit_here();
            if limit != sent_limit || now().saturating_duration_since(sent_at) >= BEAT {
                (sent_limit, sent_at) = (limit, now());
                self.queues.items.force(SenderItem::Limit(limit), 1);
            }
        };
        follow(path, vec![readers, streams], &self.monitor, report, look).await;
    }

    /// Sends existence queries; closes the work queue when all are answered.
    async fn query(&self) {
        while let Some(about) = self.queues.queries.pop_async().await {
            while !self.sender.borrow().may_query() {
                self.answered.notified().await;
            }
            let mut batch = Batch::default();
            let mut found = Vec::with_capacity(about.len());
            for (mut file, content) in about {
                batch.push(&file.entry, &content, &[]);
                // Attributes are read again with the file.
                file.entry.xattrs = Vec::new();
                found.push(file);
            }
            let number = self.sender.borrow_mut().query(found);
            self.queues.items.force(SenderItem::Query { number, batch: batch.into_body() }, 1);
        }
        while !self.sender.borrow().is_answered() {
            self.answered.notified().await;
        }
        self.queues.work.close();
    }

    /// Processes frames of the receiver until it reports completion.
    async fn listen(&self, mut rx: Rx) -> Result<Counts, SessionError> {
        while let Some(frame) = rx.frame().await? {
            let message = self.sender.borrow_mut().handle(frame)?;
            match message {
                ReceiverMessage::Wanted(wanted) => {
                    for (found, have) in wanted {
                        if !self.dry_run {
                            self.queues.work.force(ReadWork::Found(found, have), 1);
                        }
                    }
                    self.answered.notify();
                }
                ReceiverMessage::Trouble(trouble) => self.monitor.trouble(trouble),
                ReceiverMessage::Planned(planned) => self.monitor.planned(planned),
                ReceiverMessage::Tuned(tuned) => self.monitor.tuned(tuned, true),
                ReceiverMessage::Limit(stage) => self.monitor.set_peer_limit(stage),
                ReceiverMessage::Progress(counts) => self.monitor.set_counts(counts),
                // The scan runs on this side.
                ReceiverMessage::Scanned(_) => {}
                ReceiverMessage::Finished(counts) => {
                    self.monitor.set_counts(counts);
                    return Ok(counts);
                }
                ReceiverMessage::Refused(refusal) => return Err(SessionError::Refused(refusal)),
            }
        }
        Err(SessionError::Lost)
    }
}

/// Sends a refusal, as the last frame of a connection.
pub(crate) async fn refuse(link: &mut Link, refusal: Refusal) {
    // Best effort: the peer may have disconnected.
    let _ = link.tx.send(vec![Frame::Refuse(refusal)]).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::filter::Filter;
    use crate::tree::scan::ScanStart;
    use crate::wire::Options;

    #[test]
    fn a_panic_of_a_reader_thread_ends_the_copy() {
        let spec = SendSpec {
            starts: vec![ScanStart::Synthetic(Arc::new(synthetic::Synthetic::Broken))],
            filter: Filter::default(),
            recursive: true,
            options: Options::default(),
            query: false,
            readers: Concurrency::Fixed(2),
            rate: 0,
            read_ahead: None,
            known_paths: None,
            into: None,
        };
        let thread = longhaul_engine::Thread::start("test", Default::default()).expect("an engine");
        let run = || async move {
            let (here, _there) = Link::pair();
            let (monitor, peer_timeout) = (Arc::new(Monitor::new()), PeerTimeout::default());
            send(spec, vec![here], Concurrency::Fixed(1), monitor, peer_timeout).await
        };
        let result = thread.handle().spawn(run).wait().expect("it ran");
        assert!(matches!(&result, Err(SessionError::Local(why)) if why.contains("panic")), "{result:?}");
    }
}
