//! The side that sends: a scanning thread, reading threads, and a task for each
//! stream.
//!
//! Invariants:
//! - what is found goes through bounded queues, or was asked about and so is
//!   bounded by the questions that may be open;
//! - the streams end when the readers have, the readers when the scan has and
//!   every question is answered; whoever fails aborts all queues, and so ends
//!   everybody.

use crate::ask::Asker;
use crate::filter::Filter;
use crate::gate::Gate;
use crate::guard::{OnPanic, Panicked};
use crate::host::Remembered;
use crate::link::{Link, LinkError, Rx, Tx};
use crate::monitor::Monitor;
use crate::pace::Pace;
use crate::queue::Queue;
use crate::read::{Reader, Work};
use crate::scan::{Found, Scan, Start, Visitor};
use crate::session::{Heard, Item, Sender, Violation};
use crate::silence::{BEAT, Patience};
use crate::tune::{Concurrency, Path, Progress, Tuning, follow};
use crate::wire::{
    BATCH_ENTRIES, BLOCK, Batch, Compare, Content, Counts, Frame, Kind, Options, Refusal, Scanned, Stage,
    Trouble, Tuned,
};
use futures_util::future::{Either, select, try_join_all};
use longhaul_engine::net::TcpInfo;
use longhaul_engine::sync::Notify;
use longhaul_engine::{BufPool, Task, now, spawn};
use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Entries that were found and wait to be read: enough for every thread to fill
/// batches, and a few MB of names.
const FOUND: usize = 16 << 10;
/// Bytes that were read and wait to be sent: a few blocks for each reader and
/// stream. More would only be memory, since what is on its way is with TCP.
const READ_AHEAD: usize = 32 * BLOCK;
/// Questions that wait to be put, in entries.
const TO_ASK: usize = 8 * BATCH_ENTRIES;

/// What to send, and how.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) starts: Vec<Start>,
    pub(crate) filter: Filter,
    pub(crate) recursive: bool,
    /// The directory that everything goes into, where that is on this machine: by
    /// device and inode.
    pub(crate) into: Option<(u64, u64)>,
    pub(crate) options: Options,
    /// Ask before sending: something may be there already.
    pub(crate) ask: bool,
    pub(crate) readers: Concurrency,
    /// The most bytes a second; 0 for no bound.
    pub(crate) rate: u64,
    /// Bytes that were read and may wait to be sent [default: [`READ_AHEAD`]].
    pub(crate) ahead: Option<usize>,
}

impl Plan {
    /// Takes up what a run before has left, if one has; by content, if the machine
    /// that has it was started anew since.
    pub(crate) fn resume(&mut self, left: bool, by_content: bool) {
        self.ask |= left;
        if by_content {
            self.options.compare = Compare::Checksum;
        }
    }
}

/// Why a session failed as a whole.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A connection was lost or makes no sense.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The other side breaks the protocol.
    #[error("{0}")]
    Violation(#[from] Violation),
    /// The other side gives up.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The other side closed the connection early.
    #[error("the other side closed the connection before all was done")]
    Lost,
    /// The other side hangs.
    #[error("nothing came from the other side for {} s: it hangs, or does not want to go on", .0.as_secs())]
    Silent(std::time::Duration),
    /// This side cannot go on.
    #[error("{0}")]
    Local(String),
    /// Somebody wanted it.
    #[error("interrupted")]
    Interrupted,
}

impl From<io::Error> for SessionError {
    fn from(e: io::Error) -> SessionError {
        SessionError::Link(e.into())
    }
}

/// The queues between the stages.
struct Queues {
    /// Entries to ask about.
    ask: Arc<Queue<Vec<(Found, Content)>>>,
    work: Arc<Queue<Work>>,
    items: Arc<Queue<Item>>,
    panicked: Panicked,
}

impl Queues {
    fn panic(&self) {
        self.panicked.set();
        self.abort();
    }

    fn abort(&self) {
        self.ask.abort();
        self.work.abort();
        self.items.abort();
    }
}

/// Ends the threads when the session is dropped, however that comes about.
struct Abort(Arc<Queues>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends everything; what the other side has made of it. All of `links` are used
/// or, if `streams` is measured, as many as help.
pub(crate) async fn send(
    plan: Plan,
    links: Vec<Link>,
    streams: Concurrency,
    monitor: Arc<Monitor>,
    patience: Patience,
) -> Result<Counts, SessionError> {
    let queues = Arc::new(Queues {
        ask: Arc::new(Queue::new(TO_ASK)),
        work: Arc::new(Queue::new(FOUND)),
        items: Arc::new(Queue::new(plan.ahead.unwrap_or(READ_AHEAD).max(1))),
        panicked: Panicked::default(),
    });
    let (work, items) = (Arc::clone(&queues.work), Arc::clone(&queues.items));
    monitor.watch(Stage::Read, move || work.gauge());
    monitor.watch(Stage::Send, move || items.gauge());
    let abort = Abort(Arc::clone(&queues));
    let (ask, dry_run, rate) = (plan.ask, plan.options.dry_run, plan.rate);
    if rate > 0 {
        links.iter().for_each(|link| link.tx.limit(rate));
    } else {
        links.iter().for_each(|link| link.tx.pace());
    }
    let readers = plan.readers;
    let gate = threads(plan, &queues, &monitor)?;
    // A limit of the rate is none of the connections'.
    let streams = if rate > 0 { Concurrency::Fixed(streams.streams()) } else { streams };
    let sockets: Vec<_> = links.iter().filter_map(|link| link.tx.stream()).collect();
    let path = Path { streams: sockets.clone(), sends: true };
    let active = streams.streams().min(links.len());
    monitor.choose(Stage::Read, false, readers.start(), "to begin with");
    monitor.choose(Stage::Send, false, active, "to begin with");
    let session = Rc::new(Session {
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
        pace: Pace::new(rate),
    });
    let told = Arc::clone(&session.monitor);
    let pulses = links.iter().filter_map(|link| link.rx.pulse()).collect();
    let result = match select(
        pin!(session.run(links, path, ask)),
        pin!(patience.ends(pulses, || false, |silent| told.silent(silent))),
    )
    .await
    {
        Either::Left((result, _)) => result,
        Either::Right((silent, _)) => Err(SessionError::Silent(silent)),
    };
    let infos: Vec<_> = sockets.iter().filter_map(|socket| socket.info().ok()).collect();
    if !infos.is_empty() {
        told.set_sockets(TcpInfo::together(&infos));
    }
    drop(abort);
    result
}

/// Starts the scanning thread and the reading ones. They end with the queues.
fn threads(plan: Plan, queues: &Arc<Queues>, monitor: &Arc<Monitor>) -> Result<Arc<Gate>, SessionError> {
    let failed = |e: io::Error| SessionError::Local(format!("cannot start a thread: {e}"));
    let (gate, most) = (Arc::new(Gate::new(plan.readers.start())), plan.readers.most());
    let asker = plan.ask.then(|| {
        let by_content = plan.options.compare == Compare::Checksum;
        Arc::new(Asker::new(Arc::clone(&queues.ask), by_content.then_some(plan.options.hash)))
    });
    let reader = Arc::new(Reader {
        asker: asker.clone(),
        work: Arc::clone(&queues.work),
        items: Arc::clone(&queues.items),
        pool: BufPool::new(plan.ahead.unwrap_or(READ_AHEAD) + (most + 8) * BLOCK),
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
            let _times = Remembered;
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
    let finder = Finder {
        queues: Arc::clone(queues),
        monitor: Arc::clone(monitor),
        read_first: plan.options.xattrs || plan.options.compare == Compare::Checksum,
        asker,
    };
    let guarded = Arc::clone(queues);
    let run = move || {
        let _times = Remembered;
        let _guard = OnPanic(|| guarded.panic());
        finder.run(&plan)
    };
    std::thread::Builder::new().name("transfer-scan".into()).spawn(run).map_err(failed)?;
    Ok(gate)
}

/// Hands on what the scan finds.
struct Finder {
    queues: Arc<Queues>,
    monitor: Arc<Monitor>,
    /// Files are asked about first.
    asker: Option<Arc<Asker>>,
    /// Something has to be read of them to ask: readers do that.
    read_first: bool,
}

impl Finder {
    fn run(mut self, plan: &Plan) {
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
            // The work ends when all is answered.
            Some(asker) => asker.end(),
            None => self.queues.work.close(),
        }
    }
}

impl Visitor for Finder {
    fn found(&mut self, found: Found) -> bool {
        if found.entry.kind == Kind::File {
            self.monitor.scanned_files.fetch_add(1, Ordering::Relaxed);
            self.monitor.scanned_bytes.fetch_add(found.entry.size, Ordering::Relaxed);
        }
        let asker = self.asker.as_ref().filter(|_| found.entry.kind == Kind::File);
        let Some(asker) = asker else {
            return self.queues.work.push(Work::Found(found, Box::default()), 1).is_ok();
        };
        if self.read_first {
            asker.begin();
            return self.queues.work.push(Work::Ask(found), 1).is_ok();
        }
        asker.add(found, Content::Asked(None)).is_ok()
    }

    fn trouble(&mut self, trouble: Trouble) {
        // If nobody takes it, nobody is there to be told.
        let _ = self.queues.items.push(Item::Trouble(trouble), 1);
    }
}

/// The tasks of a session.
struct Session {
    sender: RefCell<Sender<Found>>,
    queues: Arc<Queues>,
    monitor: Arc<Monitor>,
    /// An answer came.
    answered: Notify,
    heard_end: Cell<bool>,
    dry_run: bool,
    pace: Pace,
    /// The reading threads.
    readers: Concurrency,
    gate: Arc<Gate>,
    /// The connections: those below `active` carry data, and the others wait.
    streams: Concurrency,
    active: Cell<usize>,
    wake: Vec<Notify>,
    /// Bytes of content that were handed to the network.
    sent: Cell<u64>,
}

impl Session {
    async fn run(self: &Rc<Self>, links: Vec<Link>, path: Path, ask: bool) -> Result<Counts, SessionError> {
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
                if ask {
                    session.ask().await;
                }
            })
        };
        let mut receiving = receiving.into_iter();
        let Some(first) = receiving.next() else { return Err(SessionError::Lost) };
        let listening = {
            let session = Rc::clone(self);
            spawn(async move { session.listen(first).await })
        };
        // The sockets stay open until all is done, though nothing comes on them.
        let _others: Vec<Rx> = receiving.collect();
        let sent = try_join_all(sending);
        let counts = match select(sent, listening).await {
            // Of what is wrong here the other side knows nothing.
            Either::Left((Err(e @ SessionError::Local(_)), _)) => Err(e),
            // What it said is a better reason than that it closed.
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

    /// Sends items on one stream until there are no more.
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
            self.monitor.paces(self.pace.wait(bytes).await);
            tx.send(frames).await?;
            self.sent.set(self.sent.get() + bytes as u64);
        }
        self.queues.panicked.check()?;
        // The others are to say so on theirs, too.
        self.use_streams(usize::MAX);
        let end = self.sender.borrow().end(true);
        tx.send(vec![end]).await?;
        Ok(tx)
    }

    fn use_streams(&self, active: usize) {
        self.active.set(if self.active.get() == usize::MAX { usize::MAX } else { active });
        self.wake.iter().for_each(Notify::notify);
    }

    /// Lets the numbers of readers and of streams follow what they bring.
    async fn tune(&self, path: Path) {
        let (items, work) = (&self.queues.items, &self.queues.work);
        let (read, sent) = (&self.monitor.read, &self.sent);
        let readers = Tuning {
            stage: Stage::Read,
            concurrency: self.readers,
            start: self.readers.start(),
            most: self.readers.most(),
            look: Box::new(|| Progress {
                files: read.files.load(Ordering::Relaxed),
                bytes: read.bytes.load(Ordering::Relaxed),
                limits: items.gauge().fill < 0.5 && !work.is_empty(),
            }),
            set: Box::new(|number| self.gate.set(number)),
        };
        let streams = Tuning {
            stage: Stage::Send,
            concurrency: self.streams,
            start: self.active.get(),
            most: self.wake.len(),
            look: Box::new(|| Progress { files: 0, bytes: sent.get(), limits: items.gauge().fill >= 0.5 }),
            set: Box::new(|number| self.use_streams(number)),
        };
        let tell = |tuned: Tuned| {
            self.monitor.tuned(tuned.clone(), false);
            self.queues.items.force(Item::Tuned(tuned), 1);
        };
        let (mut told, mut said, mut scanned) = (None, now(), Scanned::default());
        let look = || {
            let found = self.monitor.what_is_scanned();
            if found != scanned {
                scanned = found;
                self.queues.items.force(Item::Scanned(found), 1);
            }
            let limit = self.monitor.limit_here();
            if limit != told || now().saturating_duration_since(said) >= BEAT {
                (told, said) = (limit, now());
                self.queues.items.force(Item::Limit(limit), 1);
            }
        };
        follow(path, vec![readers, streams], &self.monitor, tell, look).await;
    }

    /// Puts questions; when all are put and answered, there is no more work.
    async fn ask(&self) {
        while let Some(about) = self.queues.ask.pop_async().await {
            while !self.sender.borrow().may_ask() {
                self.answered.notified().await;
            }
            let mut batch = Batch::default();
            let mut found = Vec::with_capacity(about.len());
            for (mut one, content) in about {
                batch.push(&one.entry, &content, &[]);
                // They are read again with the file.
                one.entry.xattrs = Vec::new();
                found.push(one);
            }
            let number = self.sender.borrow_mut().ask(found);
            self.queues.items.force(Item::Ask { number, batch: batch.into_body() }, 1);
        }
        while !self.sender.borrow().is_answered() {
            self.answered.notified().await;
        }
        self.queues.work.close();
    }

    /// Hears what the other side says, until it says that all is done.
    async fn listen(&self, mut rx: Rx) -> Result<Counts, SessionError> {
        while let Some(frame) = rx.frame().await? {
            let heard = self.sender.borrow_mut().handle(frame)?;
            match heard {
                Heard::Wanted(wanted) => {
                    for (found, have) in wanted {
                        if !self.dry_run {
                            self.queues.work.force(Work::Found(found, have), 1);
                        }
                    }
                    self.answered.notify();
                }
                Heard::Trouble(trouble) => self.monitor.trouble(trouble),
                Heard::Planned(planned) => self.monitor.planned(planned),
                Heard::Tuned(tuned) => self.monitor.tuned(tuned, true),
                Heard::Limit(stage) => self.monitor.limit_there(stage),
                Heard::Progress(counts) => self.monitor.set_counts(counts),
                // It is found here.
                Heard::Scanned(_) => {}
                Heard::Finished(counts) => {
                    self.heard_end.set(true);
                    self.monitor.set_counts(counts);
                    return Ok(counts);
                }
                Heard::Refused(refusal) => return Err(SessionError::Refused(refusal)),
            }
        }
        Err(SessionError::Lost)
    }
}

/// Says why there will be no session, to whoever is at the other end.
pub(crate) async fn refuse(link: &mut Link, refusal: Refusal) {
    // Who has gone need not be told.
    let _ = link.tx.send(vec![Frame::Refuse(refusal)]).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;
    use crate::wire::RelPath;

    #[test]
    fn what_is_compared_by_content_is_read_by_the_readers() {
        let dir = tempfile::tempdir().expect("a directory");
        for i in 0..5 {
            std::fs::write(dir.path().join(i.to_string()), "content").expect("written");
        }
        let queues = Arc::new(Queues {
            ask: Arc::new(Queue::new(TO_ASK)),
            work: Arc::new(Queue::new(FOUND)),
            items: Arc::new(Queue::new(READ_AHEAD)),
            panicked: Panicked::default(),
        });
        let options = Options { compare: Compare::Checksum, ..Options::default() };
        let asker = Arc::new(Asker::new(Arc::clone(&queues.ask), Some(options.hash)));
        let finder = Finder {
            queues: Arc::clone(&queues),
            monitor: Arc::new(Monitor::new()),
            asker: Some(Arc::clone(&asker)),
            read_first: true,
        };
        let tree = Tree::open(dir.path()).expect("open");
        let plan = Plan {
            starts: vec![Start::Tree { tree, path: RelPath::root() }],
            filter: Filter::default(),
            recursive: true,
            options,
            ask: true,
            readers: Concurrency::Fixed(1),
            rate: 0,
            ahead: None,
            into: None,
        };
        // The scan ends though nobody reads.
        finder.run(&plan);
        let is_question = |work: &Work| matches!(work, Work::Ask(_));
        assert!(matches!(queues.work.pop(), Some(Work::Found(..))), "the directory itself");
        let files: Vec<_> = std::iter::from_fn(|| queues.work.try_pop_if(is_question)).collect();
        assert_eq!((files.len(), queues.ask.is_empty()), (5, true));
        // The question is put when the last of them was read.
        for (i, work) in files.into_iter().enumerate() {
            let Work::Ask(found) = work else { panic!("{work:?}") };
            assert!(queues.ask.is_empty());
            let read = (i > 0).then_some((found, Content::Asked(None)));
            asker.read(read).expect("somebody asks");
        }
        assert_eq!(queues.ask.pop().map(|about| about.len()), Some(4), "one could not be read");
        assert!(queues.ask.pop().is_none(), "that was the last");
    }

    #[test]
    fn a_thread_that_panics_ends_the_copy() {
        let plan = Plan {
            starts: vec![Start::Made(Arc::new(crate::made::Made::Broken))],
            filter: Filter::default(),
            recursive: true,
            options: Options::default(),
            ask: false,
            readers: Concurrency::Fixed(2),
            rate: 0,
            ahead: None,
            into: None,
        };
        let thread = longhaul_engine::Thread::start("test", Default::default()).expect("an engine");
        let run = || async move {
            let (here, _there) = Link::pair();
            let (monitor, patience) = (Arc::new(Monitor::new()), Patience::default());
            send(plan, vec![here], Concurrency::Fixed(1), monitor, patience).await
        };
        let result = thread.handle().spawn(run).wait().expect("it ran");
        assert!(matches!(&result, Err(SessionError::Local(why)) if why.contains("panic")), "{result:?}");
    }
}
