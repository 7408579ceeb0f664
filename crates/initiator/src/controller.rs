//! A controller that this host is connected to, over as many associations
//! ([`Session`]) as that takes: the state that the task which keeps it
//! connected and the threads of I/O queues share.
//!
//! Invariants:
//! - there is a session exactly while the phase is `Up`, and its epoch is that
//!   of no other;
//! - once the phase is `Over` it stays so;
//! - changes are let through in an epoch once every session in `unfenced` has
//!   ended for sure; a session that could have carried commands is in there
//!   from its loss until then. Where only another path has said that it has
//!   ended, the next session of this path asks again (`fenced_elsewhere`).

use crate::access;
use crate::error::{self, Error, Result};
use crate::fence::FencedBy;
use crate::info::{ControllerEvent, ControllerInfo, NamespaceInfo, SetUp, Which};
use crate::options::Options;
use crate::session::Session;
use crate::setup::Endpoint;
use crate::supervise::{First, supervise};
use futures_channel::{mpsc, oneshot};
use futures_util::FutureExt;
use longhaul_block::IoError;
use longhaul_engine::{Handle, Thread, now, spawn};
use longhaul_wire::log::AnaState;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What a controller is reached by.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) transport: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) subnqn: String,
    pub(crate) options: Options,
    /// It is one of several paths: the state of access matters.
    pub(crate) is_path: bool,
}

/// The paths of a device, as one of them sees them.
pub(crate) trait Paths: Send + Sync {
    /// The target of this path takes the namespace over; before anything is sent to it.
    fn taken_over(&self);
}

/// See the module.
pub(crate) struct Controller {
    pub(crate) settings: Arc<Settings>,
    state: Mutex<ControllerState>,
    /// ANA state of the namespace, as on the wire: that of the session, or of the last one.
    access: AtomicU8,
    paths: OnceLock<Box<dyn Paths>>,
    /// Ends the task that keeps it connected when dropped.
    requests: mpsc::UnboundedSender<Request>,
}

struct ControllerState {
    phase: ControllerPhase,
    /// Of the session, or of the last one.
    epoch: u64,
    info: Arc<ControllerInfo>,
    /// Changes may go in this epoch.
    open: bool,
    unfenced: Vec<Arc<Session>>,
    /// Sessions that have ended according to another path, which may lead to another target.
    fenced_elsewhere: Vec<Arc<Session>>,
    /// Whether I/O can be sent, and since when that is so.
    usable: (bool, Instant),
    /// The state of access is what a refused command says, until it has been read.
    refused: bool,
    /// How often the namespace has become accessible over this path that was not.
    takeovers: u64,
    /// The namespace that must stay the same, as it is now.
    namespace: NamespaceInfo,
    set_up: SetUp,
    /// How often a session was lost.
    disconnects: u64,
    /// How many lost sessions the target did not confirm to have ended: it may have been restarted, and
    /// have lost what was not flushed.
    unconfirmed: u64,
    /// Key of this host's registration, if it has one.
    registered: Option<u64>,
    /// Why the last attempt to reconnect was made.
    reason: String,
    /// I/O queues that want a connection.
    io_queues: usize,
    /// Notified of every change of the fields above.
    watchers: Vec<oneshot::Sender<()>>,
    listeners: Vec<mpsc::UnboundedSender<ControllerEvent>>,
}

/// Why there is no connection to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// In words: to which address, for how long, and why.
    pub why: String,
    /// It is not tried again, and all I/O fails. Else I/O waits.
    pub for_good: bool,
}

enum ControllerPhase {
    Up(Arc<Session>),
    /// No session since this time; another one is being made.
    Down(Instant),
    Over(IoError),
}

/// Asks the task that keeps the controller connected.
pub(crate) enum Request {
    Namespace(u32, oneshot::Sender<Result<NamespaceInfo>>),
    Namespaces(oneshot::Sender<Result<Vec<u32>>>),
    /// A connection of the session is lost, for this reason.
    Lost(u64, String),
    /// Is the far side still there? And if so, does more than a packet come
    /// from it at a time?
    Probe {
        epoch: u64,
        large: bool,
    },
    /// Abort a command of a queue.
    Abort {
        epoch: u64,
        qid: u16,
        cid: u16,
        reply: oneshot::Sender<bool>,
    },
    /// End a lost session of another path; replies once nothing of it can have an effect any more.
    Fence(Arc<Session>, oneshot::Sender<FencedBy>),
    /// Read the state of access again; replies when it is known.
    Access(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

/// The thread that serves admin queues, started when it is first needed.
pub(crate) fn service(options: &Options) -> Result<Handle> {
    // A simulated host has no threads.
    if longhaul_engine::simulated::is_simulated() {
        return Ok(longhaul_engine::handle());
    }
    static SERVICE: OnceLock<std::result::Result<Thread, String>> = OnceLock::new();
    let config = options.engine.clone();
    SERVICE
        .get_or_init(|| Thread::start("longhaul-admin", config).map_err(|e| e.to_string()))
        .as_ref()
        .map(Thread::handle)
        .map_err(|e| Error::Local(format!("cannot start the thread that serves admin queues: {e}")))
}

impl Controller {
    /// Connects to a subsystem for the sake of a namespace; runs on the
    /// service thread.
    pub(crate) async fn open(
        endpoint: Endpoint,
        settings: Settings,
        which: Which,
    ) -> Result<Arc<Controller>> {
        let settings = Arc::new(settings);
        let first = First::open(endpoint, &settings, which).await?;
        let session = Arc::clone(&first.session);
        let (requests, inbox) = mpsc::unbounded();
        let state = ControllerState {
            info: Arc::clone(&session.info),
            epoch: session.epoch,
            phase: ControllerPhase::Up(session),
            open: true,
            unfenced: Vec::new(),
            fenced_elsewhere: Vec::new(),
            usable: (access::is_usable(first.access), now()),
            refused: false,
            takeovers: 0,
            namespace: first.namespace.clone(),
            set_up: first.set_up,
            disconnects: 0,
            unconfirmed: 0,
            registered: None,
            reason: String::new(),
            io_queues: 0,
            watchers: Vec::new(),
            listeners: Vec::new(),
        };
        let (state, access) = (Mutex::new(state), AtomicU8::new(first.access.code()));
        let paths = OnceLock::new();
        let controller = Arc::new(Controller { settings, state, access, paths, requests });
        spawn(supervise(Arc::downgrade(&controller), first, inbox)).detach();
        Ok(controller)
    }

    fn lock(&self) -> MutexGuard<'_, ControllerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the tasks that wait for a change.
    fn change<T>(&self, f: impl FnOnce(&mut ControllerState) -> T) -> T {
        let mut state = self.lock();
        let result = f(&mut state);
        let usable = matches!(state.phase, ControllerPhase::Up(_)) && access::is_usable(self.access());
        if usable != state.usable.0 {
            state.usable = (usable, now());
        }
        let watchers = std::mem::take(&mut state.watchers);
        drop(state);
        for watcher in watchers {
            let _ = watcher.send(());
        }
        result
    }

    /// Waits until `f` finds something in the state.
    async fn find<T>(&self, mut f: impl FnMut(&ControllerState) -> Option<T>) -> T {
        loop {
            let changed = {
                let mut state = self.lock();
                if let Some(found) = f(&state) {
                    return found;
                }
                let (tx, rx) = oneshot::channel();
                state.watchers.retain(|watcher| !watcher.is_canceled());
                state.watchers.push(tx);
                rx
            };
            let _ = changed.await;
        }
    }

    /// The session, as soon as there is one.
    pub(crate) async fn session(&self) -> std::result::Result<Arc<Session>, IoError> {
        self.find(|state| match &state.phase {
            ControllerPhase::Up(session) => Some(Ok(Arc::clone(session))),
            ControllerPhase::Over(e) => Some(Err(e.clone())),
            ControllerPhase::Down(_) => None,
        })
        .await
    }

    /// Waits for the end of the session `epoch`.
    pub(crate) async fn ended(&self, epoch: u64) {
        self.find(|state| (!state.is_up(epoch)).then_some(())).await;
    }

    /// Waits until changes may go in this epoch.
    pub(crate) async fn open_for(&self, epoch: u64) {
        self.find(|state| (state.open && state.is_up(epoch)).then_some(())).await;
    }

    /// Whether changes may go in this epoch.
    pub(crate) fn is_open_for(&self, epoch: u64) -> bool {
        let state = self.lock();
        state.open && state.is_up(epoch)
    }

    /// Nothing of `session` can have any effect any more, as its own path knows. What it has written may
    /// be lost: the target may have been restarted.
    pub(crate) fn fenced(&self, session: &Arc<Session>) {
        self.change(|state| {
            state.is_fenced(session, false);
            state.fenced_elsewhere.retain(|other| !Arc::ptr_eq(other, session));
        });
    }

    /// The same, as another path says.
    pub(crate) fn fenced_by_other(&self, session: &Arc<Session>, by: FencedBy) {
        self.change(|state| {
            if state.is_fenced(session, by == FencedBy::Target) {
                state.fenced_elsewhere.push(Arc::clone(session));
            }
        });
    }

    /// It is one of several paths.
    pub(crate) fn set_paths(&self, paths: Box<dyn Paths>) {
        _ = self.paths.set(paths);
    }

    /// Has those that wait for a change look again.
    pub(crate) fn wake(&self) {
        self.change(|_| ());
    }

    /// Waits until I/O can be sent, and `holds`.
    pub(crate) async fn usable_and(&self, holds: impl Fn() -> bool) {
        self.find(|state| (state.usable.0 && holds()).then_some(())).await;
    }

    /// The ANA state of the namespace, as this path has it.
    pub(crate) fn access(&self) -> AnaState {
        AnaState::from_code(self.access.load(Ordering::Acquire))
    }

    /// The state of access in this epoch has been read.
    pub(crate) fn set_access(&self, epoch: u64, access: AnaState) {
        self.change(|state| {
            if state.is_up(epoch) {
                self.store_access(state, access);
            }
        });
    }

    fn store_access(&self, state: &mut ControllerState, access: AnaState) {
        // That a command was refused does not show that the state has changed.
        let doubtful = std::mem::take(&mut state.refused);
        if access::is_usable(access) && !access::is_usable(self.access()) && !doubtful {
            state.takeovers += 1;
            self.paths.get().inspect(|paths| paths.taken_over());
        }
        self.access.store(access.code(), Ordering::Release);
    }

    /// The target has refused a command since it gives no access: no further one is sent before the
    /// state has been read again.
    pub(crate) fn is_refused_access(&self) {
        let news = self.change(|state| {
            let news = access::is_usable(self.access());
            if news {
                state.refused = true;
                self.access.store(AnaState::Change.code(), Ordering::Release);
            }
            news
        });
        if news {
            let (reply, _) = oneshot::channel();
            let _ = self.requests.unbounded_send(Request::Access(reply));
        }
    }

    /// Reads the state of access again. Ends when it is known, or the session is lost.
    pub(crate) async fn read_access(&self) {
        let (reply, answer) = oneshot::channel();
        if self.requests.unbounded_send(Request::Access(reply)).is_ok() {
            let _ = answer.await;
        }
    }

    /// The session, if I/O can be sent over it.
    pub(crate) fn usable_session(&self) -> Option<Arc<Session>> {
        let state = self.lock();
        match &state.phase {
            ControllerPhase::Up(session) if state.usable.0 => Some(Arc::clone(session)),
            _ => None,
        }
    }

    /// Since when I/O can be sent.
    pub(crate) fn usable_since(&self) -> Option<Instant> {
        let (usable, since) = self.lock().usable;
        usable.then_some(since)
    }

    /// Waits until I/O can not be sent.
    pub(crate) async fn unusable(&self) {
        self.find(|state| (!state.usable.0).then_some(())).await;
    }

    /// Waits until the namespace has become accessible more than `seen` times; returns how often.
    pub(crate) async fn taken_over(&self, seen: u64) -> u64 {
        self.find(|state| (state.takeovers > seen).then_some(state.takeovers)).await
    }

    /// How many lost sessions the target did not confirm to have ended.
    pub(crate) fn unconfirmed(&self) -> u64 {
        self.lock().unconfirmed
    }

    /// A lost session that may still have effects, as soon as there is one.
    pub(crate) async fn next_unfenced(&self) -> Arc<Session> {
        self.find(|state| state.unfenced.first().map(Arc::clone)).await
    }

    /// Waits until this session can have no effect any more.
    pub(crate) async fn is_fenced(&self, session: &Arc<Session>) {
        let of = |state: &ControllerState| state.unfenced.iter().all(|other| !Arc::ptr_eq(other, session));
        self.find(|state| of(state).then_some(())).await;
    }

    /// Whether there is no session, and nothing of an earlier one can have an effect any more.
    pub(crate) fn is_away_and_fenced(&self) -> bool {
        let state = self.lock();
        !matches!(state.phase, ControllerPhase::Up(_)) && state.unfenced.is_empty()
    }

    /// Waits until that is so.
    pub(crate) async fn away_and_fenced(&self) {
        let of = |state: &ControllerState| {
            !matches!(state.phase, ControllerPhase::Up(_)) && state.unfenced.is_empty()
        };
        self.find(|state| of(state).then_some(())).await;
    }

    /// Has the session of this path end a lost session of another path. `None` if this path is lost
    /// before it has. A target confirms that it was not restarted only over a path that could be used
    /// all the time since before the loss; one that has taken the namespace over was not.
    pub(crate) async fn fence(&self, lost: &Arc<Session>) -> Option<FencedBy> {
        let session = self.session().await.ok()?;
        let used = self.usable_since().filter(|since| lost.ended_at().is_some_and(|at| *since < at));
        let (reply, answer) = oneshot::channel();
        self.requests.unbounded_send(Request::Fence(Arc::clone(lost), reply)).ok()?;
        futures_util::select_biased! {
            answer = answer.fuse() => answer.ok().map(|by| match used.is_some() && self.usable_since() == used {
                true => by,
                false => FencedBy::Time,
            }),
            () = std::pin::pin!(self.ended(session.epoch).fuse()) => None,
        }
    }

    /// Changes may go from now on.
    pub(crate) fn open_for_changes(&self, epoch: u64) {
        self.change(|state| state.open |= state.epoch == epoch);
    }

    /// A session is up. What I/O may be under way to must still be there.
    pub(crate) fn up(
        &self,
        session: &Arc<Session>,
        namespace: NamespaceInfo,
        access: AnaState,
    ) -> std::result::Result<Vec<ControllerEvent>, String> {
        self.change(|state| {
            let mut events = Vec::new();
            if let Some(conflict) = state.namespace.conflict(&namespace) {
                return Err(conflict);
            }
            if state.namespace != namespace {
                events.push(ControllerEvent::NamespaceChanged(namespace.nsid));
            }
            state.namespace = namespace;
            state.epoch = session.epoch;
            state.open = state.unfenced.is_empty() && state.fenced_elsewhere.is_empty();
            self.store_access(state, access);
            state.info = Arc::clone(&session.info);
            state.phase = ControllerPhase::Up(Arc::clone(session));
            Ok(events)
        })
    }

    /// The session is lost.
    pub(crate) fn down(&self, session: &Arc<Session>) {
        let fence = self.settings.options.fencing && session.was_used();
        self.change(|state| {
            state.phase = ControllerPhase::Down(now());
            state.disconnects += 1;
            state.open = false;
            if fence {
                state.unfenced.push(Arc::clone(session));
            } else {
                state.unconfirmed += u64::from(session.was_used());
            }
        });
    }

    /// There will be no session any more.
    pub(crate) fn over(&self, reason: IoError) {
        let text = error::reason(&reason);
        let ended = self.change(|state| {
            if matches!(state.phase, ControllerPhase::Over(_)) {
                return false;
            }
            if let ControllerPhase::Up(session) =
                std::mem::replace(&mut state.phase, ControllerPhase::Over(reason))
            {
                session.end(&text);
            }
            true
        });
        if ended {
            self.tell(&ControllerEvent::Lost(text));
        }
    }

    /// Sessions that may still have effects, or of which only another path has said that they have
    /// none.
    pub(crate) fn to_fence(&self) -> Vec<Arc<Session>> {
        let state = self.lock();
        state.unfenced.iter().chain(&state.fenced_elsewhere).cloned().collect()
    }

    /// I/O queues that want a connection.
    pub(crate) fn io_queues(&self) -> usize {
        self.lock().io_queues
    }

    /// An I/O queue is opened.
    pub(crate) fn enter(&self) {
        self.lock().io_queues += 1;
    }

    /// An I/O queue is closed.
    pub(crate) fn leave(&self) {
        self.lock().io_queues -= 1;
    }

    /// What the controller is.
    pub(crate) fn info(&self) -> Arc<ControllerInfo> {
        Arc::clone(&self.lock().info)
    }

    /// The namespace that must stay the same over all sessions.
    pub(crate) fn set_namespace(&self, namespace: NamespaceInfo) {
        self.lock().namespace = namespace;
    }

    /// The same, as it is now.
    pub(crate) fn namespace_now(&self) -> NamespaceInfo {
        self.lock().namespace.clone()
    }

    /// How it was set up.
    pub(crate) fn set_up(&self) -> SetUp {
        self.lock().set_up
    }

    /// Time passed before it was connected to.
    pub(crate) fn began_earlier(&self, by: Duration, round_trips: u32) {
        let set_up = &mut self.lock().set_up;
        set_up.controller += by;
        set_up.total += by;
        set_up.round_trips += round_trips;
    }

    /// A queue that a thread has asked for when it opened the namespace is
    /// ready, so long after it did.
    pub(crate) fn queue_is_ready(&self, after: Duration, round_trips: u32) {
        let mut state = self.lock();
        let set_up = &mut state.set_up;
        set_up.queues = set_up.queues.saturating_add(1);
        set_up.total = set_up.total.max(set_up.controller + after);
        set_up.queue_round_trips = set_up.queue_round_trips.max(round_trips);
    }

    /// Events from now on.
    pub(crate) fn events(&self) -> mpsc::UnboundedReceiver<ControllerEvent> {
        let (tx, rx) = mpsc::unbounded();
        self.lock().listeners.push(tx);
        rx
    }

    /// How often the controller was lost and had to be connected to again.
    pub(crate) fn disconnects(&self) -> u64 {
        self.lock().disconnects
    }

    /// Records the key that this host has registered with, or that its registration ends.
    pub(crate) fn set_registered(&self, key: Option<u64>) {
        self.lock().registered = key;
    }

    /// The key that this host has registered with.
    pub(crate) fn registered(&self) -> Option<u64> {
        self.lock().registered
    }

    /// Since when no I/O can be sent; nothing while it can, and once the path is lost for good.
    pub(crate) fn unusable_since(&self) -> Option<Instant> {
        let state = self.lock();
        let over = matches!(state.phase, ControllerPhase::Over(_));
        (!over && !state.usable.0).then_some(state.usable.1)
    }

    /// Why no I/O can be sent; nothing while it can.
    pub(crate) fn unusable_why(&self) -> Option<Outage> {
        if let Some(outage) = self.outage() {
            return Some(outage);
        }
        let since = self.unusable_since()?;
        let seconds = longhaul_engine::now().saturating_duration_since(since).as_secs();
        let why = format!("{} has not served the namespace for {seconds} s", self.info().address);
        Some(Outage { why, for_good: false })
    }

    /// Since when it is lost, and being connected to again.
    pub(crate) fn away_since(&self) -> Option<Instant> {
        match self.lock().phase {
            ControllerPhase::Down(since) => Some(since),
            ControllerPhase::Up(_) | ControllerPhase::Over(_) => None,
        }
    }

    /// Why the controller is disconnected; nothing while it is connected.
    pub(crate) fn outage(&self) -> Option<Outage> {
        let state = self.lock();
        match &state.phase {
            ControllerPhase::Up(_) => None,
            ControllerPhase::Over(e) => Some(Outage { why: e.to_string(), for_good: true }),
            ControllerPhase::Down(since) => {
                let seconds = longhaul_engine::now().saturating_duration_since(*since).as_secs();
                let address = &state.info.address;
                let why = format!("no connection to {address} for {seconds} s: {}", state.reason);
                Some(Outage { why, for_good: false })
            }
        }
    }

    /// An attempt to reconnect is made, for this reason.
    pub(crate) fn set_reason(&self, reason: &str) {
        reason.clone_into(&mut self.lock().reason);
    }

    pub(crate) fn tell(&self, event: &ControllerEvent) {
        self.lock().listeners.retain(|listener| listener.unbounded_send(event.clone()).is_ok());
    }

    fn gone(&self) -> Error {
        let reason = match &self.lock().phase {
            ControllerPhase::Over(e) => error::reason(e),
            _ => "the connection was closed".into(),
        };
        Error::Unreachable { addr: self.info().address.clone(), reason, connect: None }
    }

    /// Fails once the controller is lost for good.
    pub(crate) fn check(&self) -> Result<()> {
        let over = matches!(self.lock().phase, ControllerPhase::Over(_));
        if over { Err(self.gone()) } else { Ok(()) }
    }

    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<Result<T>>) -> Request) -> Result<T> {
        let (tx, rx) = oneshot::channel();
        if self.requests.unbounded_send(make(tx)).is_err() {
            return Err(self.gone());
        }
        rx.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// What a namespace is at this moment.
    pub(crate) async fn namespace(&self, nsid: u32) -> Result<NamespaceInfo> {
        self.ask(|tx| Request::Namespace(nsid, tx)).await
    }

    /// Identifiers of the active namespaces.
    pub(crate) async fn namespaces(&self) -> Result<Vec<u32>> {
        self.ask(Request::Namespaces).await
    }

    /// Says that a connection of a session is lost.
    pub(crate) fn lost(&self, epoch: u64, reason: String) {
        let _ = self.requests.unbounded_send(Request::Lost(epoch, reason));
    }

    /// Asks whether the far side is still there, and, if `large`, whether more
    /// than a packet comes from it; if not, the session ends.
    pub(crate) fn probe(&self, epoch: u64, large: bool) {
        let _ = self.requests.unbounded_send(Request::Probe { epoch, large });
    }

    /// Has a command aborted. Whether it was: if so, it completes with a
    /// status that says so.
    pub(crate) async fn abort(&self, epoch: u64, qid: u16, cid: u16) -> bool {
        let (reply, answer) = oneshot::channel();
        let _ = self.requests.unbounded_send(Request::Abort { epoch, qid, cid, reply });
        answer.await.unwrap_or(false)
    }

    /// Ends everything, since the namespace has changed its identity.
    pub(crate) async fn give_up(&self, reason: &str) {
        self.over(IoError::Refused(format!("{}: {reason}", self.info().address)));
        self.close().await;
    }

    /// Ends everything, since another host has ended the registration of this one.
    pub(crate) fn preempted(&self) {
        self.over(IoError::Reserved);
        let (reply, _) = oneshot::channel();
        // The task that keeps it connected may have ended.
        let _ = self.requests.unbounded_send(Request::Close(reply));
    }

    /// Shuts the controller down and waits until it has.
    pub(crate) async fn close(&self) {
        let (tx, rx) = oneshot::channel();
        if self.requests.unbounded_send(Request::Close(tx)).is_ok() {
            let _ = rx.await;
        }
    }
}

impl ControllerState {
    /// A session has ended: whether that was not known. Unless `confirmed`, what it has written may
    /// be lost.
    fn is_fenced(&mut self, session: &Arc<Session>, confirmed: bool) -> bool {
        let before = self.unfenced.len();
        self.unfenced.retain(|other| !Arc::ptr_eq(other, session));
        let new = self.unfenced.len() < before;
        self.unconfirmed += u64::from(new && !confirmed);
        new
    }

    fn is_up(&self, epoch: u64) -> bool {
        self.epoch == epoch && matches!(self.phase, ControllerPhase::Up(_))
    }
}
