//! The sender: a scanner thread, reader threads, and a task for each data connection.
//!
//! Invariants:
//! - entries pass through bounded queues, or wait for the answer to an existence query,
//!   whose number is bounded;
//! - connections end after the readers, and the readers after the scan and the answers
//!   to all queries; a failing thread or task aborts all queues, which ends the others.

pub(crate) mod existence_query;
pub(crate) mod rate_limit;
pub(crate) mod read;

use crate::guard::{OnPanic, Panicked};
use crate::host::ThreadTimes;
use crate::link::peer_timeout::{BEAT, PeerTimeout};
use crate::link::{Link, LinkError, Rx, Tx};
use crate::monitor::Monitor;
use crate::queue::Queue;
use crate::session::{Item, ReceiverMessage, Sender, Violation};
use crate::tree::filter::Filter;
use crate::tree::scan::{FoundEntry, Scan, ScanStart, Visitor};
use crate::tune::gate::Gate;
use crate::tune::{Concurrency, Connections, StageProgress, TunedStage, follow};
use crate::wire::{
    BATCH_ENTRIES, BLOCK, Batch, Compare, Content, Counts, EntryKind, Frame, Options, Refusal, Scanned,
    Stage, Trouble, Tuned,
};
use existence_query::QueryBatcher;
use futures_util::future::{Either, select, try_join_all};
use longhaul_engine::net::TcpInfo;
use longhaul_engine::sync::Notify;
use longhaul_engine::{BufPool, Task, now, spawn};
use rate_limit::RateLimit;
use read::{ReadWork, Reader};
use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Entries that may wait to be read: enough for every thread to fill batches, in a few
/// MB of names.
const FOUND: usize = 16 << 10;
/// Bytes of read data that may wait to be sent: a few blocks for each reader and
/// connection. Data in flight is in the socket buffers, so more would only cost memory.
const READ_AHEAD: usize = 32 * BLOCK;
/// Entries that may wait for their existence query.
const QUERY_QUEUE: usize = 8 * BATCH_ENTRIES;

/// What a session sends, and how.
#[derive(Debug)]
pub(crate) struct SendPlan {
    pub(crate) starts: Vec<ScanStart>,
    pub(crate) filter: Filter,
    pub(crate) recursive: bool,
    /// Device and inode of the destination in a local copy: the scan skips it.
    pub(crate) into: Option<(u64, u64)>,
    pub(crate) options: Options,
    /// Send existence queries first, since files may be up to date at the destination.
    pub(crate) query: bool,
    pub(crate) readers: Concurrency,
    /// Rate limit in bytes a second; 0 for none.
    pub(crate) rate: u64,
    /// Bytes of read data that may wait to be sent [default: [`READ_AHEAD`]].
    pub(crate) read_ahead: Option<usize>,
}

impl SendPlan {
    /// Resumes an interrupted run if `left`; compares content if the receiving machine
    /// rebooted since (`by_content`).
    pub(crate) fn resume(&mut self, left: bool, by_content: bool) {
        self.query |= left;
        if by_content {
            self.options.compare = Compare::Checksum;
        }
    }
}

/// Why a session failed as a whole.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A connection failed, or carried a malformed frame.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The other side violated the protocol.
    #[error("{0}")]
    Violation(#[from] Violation),
    /// The other side refused to continue.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The other side closed the connection early.
    #[error("the other side closed the connection before the copy was complete")]
    Lost,
    /// The other side sent nothing for this long.
    #[error("nothing was received from the other side for {} s: it hangs, or is stopped", .0.as_secs())]
    Silent(std::time::Duration),
    /// This side failed.
    #[error("{0}")]
    Local(String),
    /// The user interrupted the copy.
    #[error("interrupted")]
    Interrupted,
}

impl From<io::Error> for SessionError {
    fn from(e: io::Error) -> SessionError {
        SessionError::Link(e.into())
    }
}

/// The queues between the stages.
struct SendQueues {
    /// Entries for existence queries.
    queries: Arc<Queue<Vec<(FoundEntry, Content)>>>,
    work: Arc<Queue<ReadWork>>,
    items: Arc<Queue<Item>>,
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
    plan: SendPlan,
    links: Vec<Link>,
    streams: Concurrency,
    monitor: Arc<Monitor>,
    patience: PeerTimeout,
) -> Result<Counts, SessionError> {
    let queues = Arc::new(SendQueues {
        queries: Arc::new(Queue::new(QUERY_QUEUE)),
        work: Arc::new(Queue::new(FOUND)),
        items: Arc::new(Queue::new(plan.read_ahead.unwrap_or(READ_AHEAD).max(1))),
        panicked: Panicked::default(),
    });
    let (work, items) = (Arc::clone(&queues.work), Arc::clone(&queues.items));
    monitor.watch(Stage::Read, move || work.gauge());
    monitor.watch(Stage::Send, move || items.gauge());
    let abort = StopReaders(Arc::clone(&queues));
    let (query, dry_run, rate) = (plan.query, plan.options.dry_run, plan.rate);
    if rate > 0 {
        links.iter().for_each(|link| link.tx.limit(rate));
    } else {
        links.iter().for_each(|link| link.tx.pace());
    }
    let readers = plan.readers;
    let gate = threads(plan, &queues, &monitor)?;
    // With a rate limit, more connections cannot help.
    let streams = if rate > 0 { Concurrency::Fixed(streams.streams()) } else { streams };
    let sockets: Vec<_> = links.iter().filter_map(|link| link.tx.stream()).collect();
    let path = Connections { streams: sockets.clone(), sends: true };
    let active = streams.streams().min(links.len());
    monitor.choose(Stage::Read, false, readers.start(), "to begin with");
    monitor.choose(Stage::Send, false, active, "to begin with");
    let session = Rc::new(SendSession {
        sender: RefCell::new(Sender::new(links.len())),
        readers,
        gate,
        streams,
        active: Cell::new(active),
        wake: links.iter().map(|_| Notify::new()).collect(),
        sent: Cell::new(0),
        queues,
        monitor,
        answered: Notify::new(),
        heard_end: Cell::new(false),
        dry_run,
        rate_limit: RateLimit::new(rate),
    });
    let watcher = Arc::clone(&session.monitor);
    let last_received = links.iter().filter_map(|link| link.rx.last_received()).collect();
    let result = match select(
        pin!(session.run(links, path, query)),
        pin!(patience.expires(last_received, || false, |silent| watcher.silent(silent))),
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
    result
}

/// Starts the scanner thread and the reader threads; aborting the queues ends them.
fn threads(
    plan: SendPlan,
    queues: &Arc<SendQueues>,
    monitor: &Arc<Monitor>,
) -> Result<Arc<Gate>, SessionError> {
    let failed = |e: io::Error| SessionError::Local(format!("cannot start a thread: {e}"));
    let (gate, most) = (Arc::new(Gate::new(plan.readers.start())), plan.readers.most());
    let asker = plan.query.then(|| {
        let by_content = plan.options.compare == Compare::Checksum;
        Arc::new(QueryBatcher::new(Arc::clone(&queues.queries), by_content.then_some(plan.options.hash)))
    });
    let reader = Arc::new(Reader {
        asker: asker.clone(),
        work: Arc::clone(&queues.work),
        items: Arc::clone(&queues.items),
        pool: BufPool::new(plan.read_ahead.unwrap_or(READ_AHEAD) + (most + 8) * BLOCK),
        hash: plan.options.hash,
        xattrs: plan.options.xattrs,
        threads: most,
        gate: Arc::clone(&gate),
        next: AtomicU64::new(0),
        stats: Arc::clone(&monitor.read),
    });
    let running = Arc::new(AtomicUsize::new(most));
    for index in 0..most {
        let (reader, running, queues) = (Arc::clone(&reader), Arc::clone(&running), Arc::clone(queues));
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
        std::thread::Builder::new().name("transfer-read".into()).spawn(run).map_err(failed)?;
    }
    let finder = ScanForwarder {
        queues: Arc::clone(queues),
        monitor: Arc::clone(monitor),
        read_first: plan.options.xattrs || plan.options.compare == Compare::Checksum,
        asker,
    };
    let guarded = Arc::clone(queues);
    let run = move || {
        let _times = ThreadTimes;
        let _guard = OnPanic(|| guarded.panic());
        finder.run(&plan)
    };
    std::thread::Builder::new().name("transfer-scan".into()).spawn(run).map_err(failed)?;
    Ok(gate)
}

/// Feeds entries of the scan to the readers or the existence queries.
struct ScanForwarder {
    queues: Arc<SendQueues>,
    monitor: Arc<Monitor>,
    /// Present if files are queried first.
    asker: Option<Arc<QueryBatcher>>,
    /// A query needs a checksum or attributes, which reader threads provide.
    read_first: bool,
}

impl ScanForwarder {
    fn run(mut self, plan: &SendPlan) {
        let (filter, recursive) = (&plan.filter, plan.recursive);
        let mut scan = Scan::new(&mut self, filter, recursive).once(&plan.starts).without(plan.into);
        for start in &plan.starts {
            if !scan.run(start) {
                break;
            }
        }
        self.monitor.scan_done.store(true, Ordering::Relaxed);
        self.queues.items.force(Item::Scanned(self.monitor.what_is_scanned()), 1);
        match &self.asker {
            // The work queue closes when all queries are answered.
            Some(asker) => asker.end(),
            None => self.queues.work.close(),
        }
    }
}

impl Visitor for ScanForwarder {
    fn found(&mut self, found: FoundEntry) -> bool {
        if found.entry.kind == EntryKind::File {
            self.monitor.scanned_files.fetch_add(1, Ordering::Relaxed);
            self.monitor.scanned_bytes.fetch_add(found.entry.size, Ordering::Relaxed);
        }
        let asker = self.asker.as_ref().filter(|_| found.entry.kind == EntryKind::File);
        let Some(asker) = asker else {
            return self.queues.work.push(ReadWork::Found(found, Box::default()), 1).is_ok();
        };
        if self.read_first {
            asker.begin();
            return self.queues.work.push(ReadWork::Query(found), 1).is_ok();
        }
        asker.add(found, Content::Query(None)).is_ok()
    }

    fn trouble(&mut self, trouble: Trouble) {
        // The queue is closed only if the session has failed already.
        let _ = self.queues.items.push(Item::Trouble(trouble), 1);
    }
}

/// State that the tasks of a session share.
struct SendSession {
    sender: RefCell<Sender<FoundEntry>>,
    queues: Arc<SendQueues>,
    monitor: Arc<Monitor>,
    /// Signalled for each answer to a query.
    answered: Notify,
    heard_end: Cell<bool>,
    dry_run: bool,
    rate_limit: RateLimit,
    /// The number of reader threads, and their concurrency gate.
    readers: Concurrency,
    gate: Arc<Gate>,
    /// Data connections: those with an index below `active` carry data, the others wait.
    streams: Concurrency,
    active: Cell<usize>,
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
        let asking: Task<()> = {
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
        asking.cancel().await;
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
            if let Item::Trouble(trouble) = &item {
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
            set: Box::new(|number| self.gate.set(number)),
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
            set: Box::new(|number| self.use_streams(number)),
        };
        let tell = |tuned: Tuned| {
            self.monitor.tuned(tuned.clone(), false);
            self.queues.items.force(Item::Tuned(tuned), 1);
        };
        let (mut sent_limit, mut sent_at, mut scanned) = (None, now(), Scanned::default());
        let look = || {
            let found = self.monitor.what_is_scanned();
            if found != scanned {
                scanned = found;
                self.queues.items.force(Item::Scanned(found), 1);
            }
            let limit = self.monitor.limit_here();
            if limit != sent_limit || now().saturating_duration_since(sent_at) >= BEAT {
                (sent_limit, sent_at) = (limit, now());
                self.queues.items.force(Item::Limit(limit), 1);
            }
        };
        follow(path, vec![readers, streams], &self.monitor, tell, look).await;
    }

    /// Sends existence queries; closes the work queue when all are answered.
    async fn query(&self) {
        while let Some(about) = self.queues.queries.pop_async().await {
            while !self.sender.borrow().may_query() {
                self.answered.notified().await;
            }
            let mut batch = Batch::default();
            let mut found = Vec::with_capacity(about.len());
            for (mut one, content) in about {
                batch.push(&one.entry, &content, &[]);
                // Attributes are read again with the file.
                one.entry.xattrs = Vec::new();
                found.push(one);
            }
            let number = self.sender.borrow_mut().query(found);
            self.queues.items.force(Item::Query { number, batch: batch.into_body() }, 1);
        }
        while !self.sender.borrow().is_answered() {
            self.answered.notified().await;
        }
        self.queues.work.close();
    }

    /// Processes frames of the receiver until it reports completion.
    async fn listen(&self, mut rx: Rx) -> Result<Counts, SessionError> {
        while let Some(frame) = rx.frame().await? {
            let heard = self.sender.borrow_mut().handle(frame)?;
            match heard {
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
                    self.heard_end.set(true);
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
    // Best effort: the peer may be gone.
    let _ = link.tx.send(vec![Frame::Refuse(refusal)]).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;
    use crate::wire::RelPath;

    #[test]
    fn checksums_for_queries_are_computed_by_reader_threads() {
        let dir = tempfile::tempdir().expect("a directory");
        for i in 0..5 {
            std::fs::write(dir.path().join(i.to_string()), "content").expect("written");
        }
        let queues = Arc::new(SendQueues {
            queries: Arc::new(Queue::new(QUERY_QUEUE)),
            work: Arc::new(Queue::new(FOUND)),
            items: Arc::new(Queue::new(READ_AHEAD)),
            panicked: Panicked::default(),
        });
        let options = Options { compare: Compare::Checksum, ..Options::default() };
        let asker = Arc::new(QueryBatcher::new(Arc::clone(&queues.queries), Some(options.hash)));
        let finder = ScanForwarder {
            queues: Arc::clone(&queues),
            monitor: Arc::new(Monitor::new()),
            asker: Some(Arc::clone(&asker)),
            read_first: true,
        };
        let tree = Tree::open(dir.path()).expect("open");
        let plan = SendPlan {
            starts: vec![ScanStart::Tree { tree, path: RelPath::root() }],
            filter: Filter::default(),
            recursive: true,
            options,
            query: true,
            readers: Concurrency::Fixed(1),
            rate: 0,
            read_ahead: None,
            into: None,
        };
        // The scan ends without any reader.
        finder.run(&plan);
        let is_question = |work: &ReadWork| matches!(work, ReadWork::Query(_));
        assert!(matches!(queues.work.pop(), Some(ReadWork::Found(..))), "the directory itself");
        let files: Vec<_> = std::iter::from_fn(|| queues.work.try_pop_if(is_question)).collect();
        assert_eq!((files.len(), queues.queries.is_empty()), (5, true));
        // The query is complete when the last file was read.
        for (i, work) in files.into_iter().enumerate() {
            let ReadWork::Query(found) = work else { panic!("{work:?}") };
            assert!(queues.queries.is_empty());
            let read = (i > 0).then_some((found, Content::Query(None)));
            asker.read(read).expect("the query queue is open");
        }
        assert_eq!(queues.queries.pop().map(|about| about.len()), Some(4), "one could not be read");
        assert!(queues.queries.pop().is_none(), "that was the last");
    }

    #[test]
    fn a_panic_of_a_reader_thread_ends_the_copy() {
        let plan = SendPlan {
            starts: vec![ScanStart::Synthetic(Arc::new(crate::synthetic::Synthetic::Broken))],
            filter: Filter::default(),
            recursive: true,
            options: Options::default(),
            query: false,
            readers: Concurrency::Fixed(2),
            rate: 0,
            read_ahead: None,
            into: None,
        };
        let thread = longhaul_engine::Thread::start("test", Default::default()).expect("an engine");
        let run = || async move {
            let (here, _there) = Link::pair();
            let (monitor, patience) = (Arc::new(Monitor::new()), PeerTimeout::default());
            send(plan, vec![here], Concurrency::Fixed(1), monitor, patience).await
        };
        let result = thread.handle().spawn(run).wait().expect("it ran");
        assert!(matches!(&result, Err(SessionError::Local(why)) if why.contains("panic")), "{result:?}");
    }
}
