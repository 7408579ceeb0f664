//! The task that keeps a controller connected: it serves the admin queue of a
//! session, and when that is lost, makes another one.

use crate::access::AccessLog;
use crate::backoff::Backoff;
use crate::call::Data;
use crate::controller::{Controller, Request, Settings};
use crate::error::{Error, Result};
use crate::events::{Subscription, watch_events};
use crate::fence;
use crate::info::{
    ControllerEvent, NamespaceInfo, SetUp, Which, active_namespaces, describe, find_namespace, namespace_info,
};
use crate::keep_alive::{Probe, keep_alive};
use crate::prepared::Pool;
use crate::queue::Signs;
use crate::session::Session;
use crate::setup::{Admin, Endpoint, concatenate, host_config};
use futures_channel::{mpsc, oneshot};
use futures_util::{FutureExt, StreamExt, future};
use longhaul_block::IoError;
use longhaul_engine::{now, since, sleep, sleep_until, spawn, timeout};
use longhaul_wire::command::Sqe;
use longhaul_wire::feature::{NumberOfQueues, fid};
use longhaul_wire::identify::{IdentifyController, NvmController, cns};
use longhaul_wire::log::AnaState;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long to wait for a farewell.
const GOODBYE: Duration = Duration::from_secs(2);
/// How long a step of connecting again may take at first, beside
/// [`PATIENCE_ROUND_TRIPS`]; twice as long after every one that took longer. A
/// connection whose link was cut in the middle of it is not waited for.
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_ROUND_TRIPS: u32 = 8;
/// How long a look at the name may take before the last addresses are used.
const RESOLVE: Duration = Duration::from_millis(500);
/// A session of this age counts as useful, even if it did no I/O.
const OF_AGE: Duration = Duration::from_secs(30);
/// Connections that are made beside the admin queue, at most; the others are
/// made when their threads ask.
const PREPARED_MAX: usize = 64;
/// How long they are kept for threads to ask for them: a target that has not
/// seen Connect ends them by itself sooner or later.
const PREPARED_FOR: Duration = Duration::from_secs(5);
/// The most sessions that may still have effects before another one may carry I/O: bounds the state
/// kept of them.
const UNFENCED_MAX: usize = 16;

/// A session with its admin queue.
pub(crate) struct First {
    pub(crate) session: Arc<Session>,
    pub(crate) namespace: NamespaceInfo,
    pub(crate) set_up: SetUp,
    /// ANA state of the namespace.
    pub(crate) access: AnaState,
    admin: Rc<Admin>,
    id: IdentifyController,
}

/// The facts known when a session is made.
#[derive(Clone)]
struct Wanted {
    epoch: u64,
    namespace: Which,
    unfenced: Vec<Arc<Session>>,
    io_queues: usize,
}

/// A new session, and the answers to the commands sent during its setup.
struct Made {
    first: First,
    resets: Vec<fence::Reset>,
}

impl First {
    /// Makes the first session.
    pub(crate) async fn open(endpoint: Endpoint, settings: &Settings, namespace: Which) -> Result<First> {
        let path = &settings.options.path;
        let io_queues = settings.options.queues.max(path.connections.unwrap_or(0)).into();
        let wanted = Wanted { epoch: 1, namespace, unfenced: Vec::new(), io_queues };
        let hasty = Cell::new(false);
        let made = match make(endpoint.clone(), settings, wanted.clone(), &hasty).await {
            // It may be a target that fails on early commands instead of refusing them.
            Err(Error::Unreachable { .. }) if hasty.get() => {
                let endpoint = Endpoint { careful: true, ..endpoint };
                make(endpoint, settings, wanted, &hasty).await
            }
            made => made,
        };
        made.map(|made| made.first)
    }
}

/// Makes a session. Commands that do not depend on earlier answers are sent at the same time.
/// `hasty` is set if the connection was lost while that was so.
async fn make(endpoint: Endpoint, settings: &Settings, wanted: Wanted, hasty: &Cell<bool>) -> Result<Made> {
    let Settings { options, subnqn, .. } = settings;
    let signs = Signs::default();
    let begun = now();
    let (endpoint, before) = concatenate(endpoint, options, subnqn).await?;
    // I/O connections are set up beside the admin queue, so that more queues
    // cost no more round trips.
    //= NVMe-TCP 1.1, connection establishment: ICReq and ICResp belong to a connection, whatever queue it becomes
    let config = host_config(options, options.queue_size, None);
    let prepared = Pool::begin(wanted.io_queues.min(PREPARED_MAX), &endpoint, options, subnqn, config);
    let (mut admin, cntlid) = Admin::open(endpoint.clone(), options, subnqn, &signs).await?;
    let most = NumberOfQueues { submission: NumberOfQueues::MAX, completion: NumberOfQueues::MAX };
    //= NVMe Base 2.1, Number of Queues feature: it is set before any I/O queue is created
    let set_queues = Sqe::set_features(fid::NUMBER_OF_QUEUES, 0, most.to_dword(), false);
    let answers = admin.enable_and(async || {
        let (id, nvm, queues, namespace) = future::join4(
            admin.identify_controller(),
            // A controller that does not know of it has no such limits.
            admin.identify("the command set's limits", cns::CS_CONTROLLER, 0),
            admin.command("Set Features (queues)", set_queues, 0),
            find_namespace(&admin, wanted.namespace, subnqn),
        )
        .await;
        let nvm = nvm.ok().and_then(|bytes| NvmController::decode(&bytes));
        Ok(((id?, nvm), queues?, namespace?))
    });
    let (cap, ((id, nvm), queues, namespace)) = answers.await.inspect_err(|e| {
        hasty.set(!endpoint.careful && matches!(e, Error::Unreachable { .. }));
    })?;
    let resets = fence::begin(&admin, wanted.unfenced);
    admin.timeout = options.connect_timeout;
    let granted = NumberOfQueues::from_dword(queues.cqe.dw0());
    let info = describe(&admin, subnqn, cntlid, (&id, nvm), cap, granted, options);
    prepared.keep(info.queues.into());
    let access = match AccessLog::of(&id).filter(|_| settings.is_path) {
        Some(log) => log.read_first(&admin, namespace.nsid).await?,
        None => AnaState::Optimized,
    };
    let (capsule, round_trips) = (admin.in_capsule, admin.round_trips.get() + before);
    let session = Session::new(wanted.epoch, endpoint, options.clone(), &id, info, capsule, signs, prepared);
    let set_up = SetUp { controller: since(begun), total: since(begun), round_trips, ..SetUp::default() };
    let (session, admin) = (Arc::new(session), Rc::new(admin));
    let first = First { session, namespace, set_up, access, admin, id };
    Ok(Made { first, resets })
}

/// Why a session is not served any more.
enum Ended {
    Lost(String),
    Closed(oneshot::Sender<()>),
    /// The last user of the controller dropped it.
    Dropped,
}

/// Keeps a controller connected until its last user drops it, it is closed, or
/// it is lost for good.
pub(crate) async fn supervise(
    weak: Weak<Controller>,
    mut first: First,
    mut inbox: mpsc::UnboundedReceiver<Request>,
) {
    let mut outage = Backoff::new();
    let mut resets = Vec::new();
    let mut later = Vec::new();
    loop {
        let begun = now();
        let ended = serve(&weak, &first, resets, later, &mut inbox).await;
        let reason = match ended {
            Ended::Lost(reason) => reason,
            Ended::Closed(reply) => {
                goodbye(&first.admin).await;
                over(&weak, IoError::Unreachable("it was closed".into()));
                let _ = reply.send(());
                return;
            }
            Ended::Dropped => {
                let _ = timeout(GOODBYE, first.admin.shut_down()).await;
                return;
            }
        };
        let session = &first.session;
        session.end(&reason);
        first.admin.queue.abandon(IoError::Unreachable(reason.clone()));
        let worked = session.signs.work.load(Ordering::Relaxed) || since(begun) > OF_AGE;
        outage.begin(worked);
        let Some(controller) = weak.upgrade() else { return };
        controller.down(session);
        let settings = Arc::clone(&controller.settings);
        drop(controller);
        match reconnect(&weak, &settings, &first.session, reason, &mut outage, &mut inbox).await {
            Some((made, requests)) => (first, resets, later) = (made.first, made.resets, requests),
            None => return,
        }
    }
}

fn over(weak: &Weak<Controller>, reason: IoError) {
    if let Some(controller) = weak.upgrade() {
        controller.over(reason);
    }
}

async fn goodbye(admin: &Admin) {
    let all = async {
        admin.shut_down().await;
        admin.wait_until_down().await;
    };
    let _ = timeout(GOODBYE, all).await;
}

/// Serves the admin queue until the session ends.
async fn serve(
    weak: &Weak<Controller>,
    first: &First,
    resets: Vec<fence::Reset>,
    later: Vec<Request>,
    inbox: &mut mpsc::UnboundedReceiver<Request>,
) -> Ended {
    let First { session, admin, id, .. } = first;
    let probe = Rc::new(Probe::default());
    let beat = spawn(keep_alive(Rc::clone(admin), Arc::clone(session), Rc::clone(&probe)));
    let subscription = Subscription::new(id, session.epoch);
    let events = spawn(watch_events(Rc::clone(admin), weak.clone(), subscription));
    let mut lost = future::select(beat, events).map(|e| e.factor_first().0).fuse();
    let options = weak.upgrade().map(|controller| controller.settings.options.clone());
    let _fence = options.filter(|_| !resets.is_empty()).map(|options| {
        let place = (session.epoch, session.info.cntlid);
        spawn(fence::complete(weak.clone(), Rc::clone(admin), options, place, resets))
    });
    let unclaimed = Arc::clone(session);
    let _unclaimed = spawn(async move {
        sleep(PREPARED_FOR).await;
        unclaimed.release_prepared();
    });
    let (aborts, wanted) = mpsc::unbounded();
    let _aborts = spawn(abort_all(Rc::clone(admin), usize::from(id.acl) + 1, wanted));
    for request in later {
        answer(admin, request);
    }
    loop {
        let request = futures_util::select_biased! {
            reason = lost => return Ended::Lost(reason),
            request = inbox.next() => request,
        };
        match request {
            None => return Ended::Dropped,
            Some(Request::Close(reply)) => return Ended::Closed(reply),
            Some(Request::Lost(epoch, reason)) if epoch == session.epoch => return Ended::Lost(reason),
            Some(Request::Probe { epoch, large }) if epoch == session.epoch => probe.ask(large),
            Some(Request::Abort { epoch, qid, cid, reply }) if epoch == session.epoch => {
                let _ = aborts.unbounded_send((qid, cid, reply));
            }
            Some(Request::Access(reply)) => {
                let (admin, weak) = (Rc::clone(admin), weak.clone());
                spawn(async move {
                    subscription.read_access(&admin, &weak).await;
                    let _ = reply.send(());
                })
                .detach();
            }
            Some(request) => answer(admin, request),
        }
    }
}

/// Answers the requests that any session can answer.
fn answer(admin: &Rc<Admin>, request: Request) {
    let admin = Rc::clone(admin);
    match request {
        Request::Namespace(nsid, reply) => {
            spawn(async move { _ = reply.send(namespace_info(&admin, nsid).await) }).detach();
        }
        Request::Namespaces(reply) => {
            spawn(async move { _ = reply.send(active_namespaces(&admin).await) }).detach();
        }
        Request::Fence(lost, reply) => spawn(fence::for_other_path(admin, lost, reply)).detach(),
        // Of an earlier session.
        Request::Lost(..)
        | Request::Probe { .. }
        | Request::Abort { .. }
        | Request::Close(_)
        | Request::Access(_) => {}
    }
}

/// Aborts commands, no more at a time than the controller takes.
async fn abort_all(
    admin: Rc<Admin>,
    limit: usize,
    wanted: mpsc::UnboundedReceiver<(u16, u16, oneshot::Sender<bool>)>,
) {
    let one = |(qid, cid, reply): (u16, u16, oneshot::Sender<bool>)| {
        let admin = Rc::clone(&admin);
        async move { _ = reply.send(abort(&admin, qid, cid).await) }
    };
    wanted.for_each_concurrent(limit, one).await;
}

/// Whether the command was aborted.
async fn abort(admin: &Admin, qid: u16, cid: u16) -> bool {
    //= NVMe Base 2.1, Abort command: bit 0 of dword 0 is cleared if the command was aborted
    match admin.queue.submit(Sqe::abort(qid, cid), Data::None).await {
        Ok(done) => done.cqe.status().is_success() && done.cqe.dw0() & 1 == 0,
        Err(_) => false,
    }
}

/// Reconnects until there is a session again, for as long as the retry policy allows. Returns it,
/// and the answers to the commands sent during its setup.
async fn reconnect(
    weak: &Weak<Controller>,
    settings: &Settings,
    old: &Arc<Session>,
    lost: String,
    outage: &mut Backoff,
    inbox: &mut mpsc::UnboundedReceiver<Request>,
) -> Option<(Made, Vec<Request>)> {
    let mut later = Vec::new();
    let patience = PATIENCE + old.info.round_trip.0 * PATIENCE_ROUND_TRIPS;
    let mut endpoint = Endpoint { again: true, patience, ..old.endpoint.clone() };
    let mut reason = lost.clone();
    let begun = now();
    let deadline = settings.options.ctrl_loss.map(|limit| outage.since() + limit);
    loop {
        if deadline.is_some_and(|at| at <= now()) {
            over(weak, given_up(settings, old, &reason));
            return None;
        }
        let (number, wait) = outage.attempt();
        report(weak, old, &reason, number, outage.useless(), wait);
        let attempt = async {
            sleep(wait).await;
            attempt(weak, settings, &mut endpoint, old.epoch + 1).await
        };
        let mut attempt = Box::pin(attempt.fuse());
        let mut expired = std::pin::pin!(until(deadline).fuse());
        let made = loop {
            let request = futures_util::select_biased! {
                made = attempt => break made,
                () = expired => break Err(Error::Local(reason.clone())),
                request = inbox.next() => request,
            };
            match request {
                None => return None,
                Some(Request::Close(reply)) => {
                    over(weak, IoError::Unreachable("it was closed".into()));
                    let _ = reply.send(());
                    return None;
                }
                Some(request @ (Request::Namespace(..) | Request::Namespaces(_))) => later.push(request),
                // The path that asks notices that this one is lost.
                Some(
                    Request::Lost(..)
                    | Request::Probe { .. }
                    | Request::Abort { .. }
                    | Request::Fence(..)
                    | Request::Access(_),
                ) => {}
            }
        };
        drop(attempt);
        match made {
            Ok(made) => {
                let controller = weak.upgrade()?;
                let First { session, namespace, access, .. } = &made.first;
                let published = controller.up(session, namespace.clone(), *access);
                let events = match published {
                    Ok(events) => events,
                    Err(conflict) => {
                        made.first.admin.shut_down().await;
                        let address = &old.info.address;
                        controller.over(IoError::Refused(format!("{address}: {conflict}")));
                        return None;
                    }
                };
                let (attempts, after) = (outage.attempts(), since(begun));
                let address = &made.first.session.info.address;
                tracing::warn!("{address}: reconnected after {:.1} s ({lost})", after.as_secs_f64());
                controller.tell(&ControllerEvent::Reconnected { reason: lost, attempts, after });
                events.iter().for_each(|event| controller.tell(event));
                return Some((made, later));
            }
            Err(e) => {
                if matches!(e, Error::TimedOut { .. }) {
                    endpoint.patience = endpoint.patience.saturating_mul(2);
                }
                reason = e.to_string();
            }
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => sleep_until(at).await,
        None => future::pending().await,
    }
}

/// One attempt, at the addresses that the name has now.
async fn attempt(
    weak: &Weak<Controller>,
    settings: &Settings,
    endpoint: &mut Endpoint,
    epoch: u64,
) -> Result<Made> {
    let resolve = Endpoint::find(&settings.transport, &settings.host, settings.port, &settings.options);
    if let Ok(Ok(found)) = timeout(RESOLVE, resolve).await {
        endpoint.addrs = found.addrs;
    }
    let gone = || Error::Local("its last user has dropped the controller".into());
    let wanted = {
        let controller = weak.upgrade().ok_or_else(gone)?;
        Wanted {
            epoch,
            namespace: Which::Nsid(controller.namespace_now().nsid),
            unfenced: controller.to_fence(),
            io_queues: controller.io_queues(),
        }
    };
    let mut made = make(endpoint.clone(), settings, wanted, &Cell::new(false)).await?;
    if made.resets.len() >= UNFENCED_MAX {
        let resets = std::mem::take(&mut made.resets);
        let admin = Rc::clone(&made.first.admin);
        let place = (epoch, made.first.session.info.cntlid);
        fence::complete(weak.clone(), admin, settings.options.clone(), place, resets).await;
    }
    Ok(made)
}

/// Text of the log before the first attempt to reconnect: it is logged once for each disconnect,
/// and programs that read the log of another process count it.
pub const CONNECTION_LOST: &str = "connection lost, attempt 1 to reconnect";

/// Logs an attempt: every one at first, then ever fewer.
fn report(weak: &Weak<Controller>, old: &Session, reason: &str, attempt: u32, useless: u32, wait: Duration) {
    let address = &old.info.address;
    if let Some(controller) = weak.upgrade() {
        controller.set_reason(reason);
    }
    if !attempt.is_power_of_two() {
        return tracing::debug!("{address}: attempt {attempt} to reconnect: {reason}");
    }
    let useless = match useless {
        0 | 1 => String::new(),
        n => format!("; {n} connections in a row have ended before any I/O was done"),
    };
    let reason = format!("{reason}{useless}");
    let wait = if wait.is_zero() { String::new() } else { format!(" in {} ms", wait.as_millis()) };
    let lost = CONNECTION_LOST.replace('1', &attempt.to_string());
    tracing::warn!("{address}: {lost}{wait}: {reason}");
    if let Some(controller) = weak.upgrade() {
        controller.tell(&ControllerEvent::Reconnecting { reason, attempt });
    }
}

fn given_up(settings: &Settings, old: &Session, reason: &str) -> IoError {
    let address = &old.info.address;
    match settings.options.ctrl_loss {
        Some(limit) if !limit.is_zero() => IoError::Unreachable(format!(
            "no connection to {address} for {} s (the limit that --ctrl-loss-timeout sets): {reason}",
            limit.as_secs_f64()
        )),
        _ => IoError::Unreachable(format!("{address}: {reason}")),
    }
}
