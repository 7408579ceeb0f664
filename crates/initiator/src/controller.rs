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
//!   from its loss until then.

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
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What a controller is reached by.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) subnqn: String,
    pub(crate) options: Options,
}

/// See the module.
pub(crate) struct Controller {
    pub(crate) settings: Arc<Settings>,
    state: Mutex<ControllerState>,
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
        let controller = Arc::new(Controller { settings, state: Mutex::new(state), requests });
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

    /// Nothing of `session` can have any effect any more.
    pub(crate) fn fenced(&self, session: &Arc<Session>, by: FencedBy) {
        self.change(|state| {
            let before = state.unfenced.len();
            state.unfenced.retain(|other| !Arc::ptr_eq(other, session));
            state.unconfirmed += u64::from(state.unfenced.len() < before && by == FencedBy::Time);
        });
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

    /// Waits until there is no session.
    pub(crate) async fn away(&self) {
        self.find(|state| (!matches!(state.phase, ControllerPhase::Up(_))).then_some(())).await;
    }

    /// Has the session of this path end a lost session of another path. `None` if this path is lost
    /// before it has.
    pub(crate) async fn fence(&self, lost: &Arc<Session>) -> Option<FencedBy> {
        let session = self.session().await.ok()?;
        let (reply, answer) = oneshot::channel();
        self.requests.unbounded_send(Request::Fence(Arc::clone(lost), reply)).ok()?;
        futures_util::select_biased! {
            answer = answer.fuse() => answer.ok(),
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
            state.open = state.unfenced.is_empty();
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

    /// Sessions that may still have effects.
    pub(crate) fn unfenced(&self) -> Vec<Arc<Session>> {
        self.lock().unfenced.clone()
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
    fn is_up(&self, epoch: u64) -> bool {
        self.epoch == epoch && matches!(self.phase, ControllerPhase::Up(_))
    }
}
