//! A controller that this host is connected to, served on a thread of the
//! process: keep-alive, asynchronous events, and the state that its queues
//! on other threads share.

use crate::error::{Error, Result};
use crate::options::Options;
use crate::queue::{Data, Queue};
use crate::setup::{Admin, Endpoint, Prepared, connect, host_config};
use futures_channel::{mpsc, oneshot};
use futures_util::{FutureExt, StreamExt, future};
use longhaul_block::IoError;
use longhaul_engine::{Handle, Thread, sleep, spawn, timeout};
use longhaul_wire::command::Sqe;
use longhaul_wire::feature::{AsyncEvent, AsyncEventType, NumberOfQueues, fid, notice};
use longhaul_wire::identify::{
    Identifier, IdentifyController, IdentifyNamespace, cns, ctratt, decode_descriptors, decode_nsid_list,
    oaes,
};
use longhaul_wire::log::lid;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Asynchronous Event Requests kept outstanding: one for each kind of notice.
const AER_MAX: u8 = 3;
/// How long to wait for a farewell.
const GOODBYE: Duration = Duration::from_secs(2);

/// What a controller says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Where it is.
    pub address: String,
    /// NQN of its subsystem.
    pub subnqn: String,
    /// Its identifier.
    pub cntlid: u16,
    /// Model.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Firmware revision.
    pub firmware: String,
    /// NVMe version, as "2.1.0".
    pub version: String,
    /// Largest transfer of one command in bytes; none if there is no limit.
    pub max_transfer: Option<u64>,
    /// In-capsule data of an I/O queue, in bytes.
    pub in_capsule: u64,
    /// Entries of a queue at most.
    pub queue_entries: u32,
    /// I/O queues granted.
    pub queues: u16,
    /// Keep-alive time-out in use.
    pub kato: Duration,
    /// It counts any traffic as a sign of life.
    pub traffic_keep_alive: bool,
    /// Header digests in use.
    pub hdr_digest: bool,
    /// Data digests in use.
    pub data_digest: bool,
    /// It has a volatile write cache.
    pub write_cache: bool,
    /// Supported optional NVM commands ([`longhaul_wire::identify::oncs`] bits).
    pub oncs: u16,
    /// Round trip and its variation when it was set up, as TCP saw them.
    pub round_trip: (Duration, Duration),
    /// Congestion control in use on this end.
    pub congestion: String,
}

/// What a namespace is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its identifier.
    pub nsid: u32,
    /// Capacity in bytes.
    pub size: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Optimal write size in bytes, 0 if it does not say.
    pub optimal_io: u32,
    /// It refuses writes.
    pub read_only: bool,
    /// Identity.
    pub uuid: Option<Uuid>,
    /// Identity of 16 bytes, all zero if it has none.
    pub nguid: [u8; 16],
}

/// What can happen to a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerEvent {
    /// A namespace was added, removed or changed (its size, say).
    NamespaceChanged(u32),
    /// Access to namespaces over this path has changed.
    AnaChanged,
    /// The discovery log has changed.
    DiscoveryChanged,
    /// The connection is lost, for this reason.
    Lost(String),
}

/// State that the admin task and the threads of I/O queues share.
pub(crate) struct Controller {
    pub(crate) info: ControllerInfo,
    pub(crate) options: Options,
    pub(crate) endpoint: Endpoint,
    /// As in [`Admin`].
    fabrics_in_capsule: u32,
    state: Mutex<State>,
    traffic: Arc<AtomicBool>,
    /// Ends the admin task when dropped.
    requests: mpsc::UnboundedSender<Request>,
}

#[derive(Default)]
struct State {
    /// I/O queue identifiers in use.
    qids: BTreeSet<u16>,
    /// The last one given out: the next is another one, since the controller
    /// may not have noticed yet that a queue has gone.
    last_qid: u16,
    /// Connections of I/O queues that wait for a thread.
    prepared: Vec<Prepared>,
    /// Why the controller is lost.
    lost: Option<String>,
    /// To tell open queues so.
    watchers: Vec<oneshot::Sender<String>>,
    listeners: Vec<mpsc::UnboundedSender<ControllerEvent>>,
}

/// Asks the admin task.
enum Request {
    Namespace(u32, oneshot::Sender<Result<NamespaceInfo>>),
    Namespaces(oneshot::Sender<Result<Vec<u32>>>),
    Close(oneshot::Sender<()>),
}

/// The thread that serves admin queues, started when it is first needed.
pub(crate) fn service(options: &Options) -> Result<Handle> {
    static SERVICE: OnceLock<std::result::Result<Thread, String>> = OnceLock::new();
    let config = options.engine.clone();
    SERVICE
        .get_or_init(|| Thread::start("longhaul-admin", config).map_err(|e| e.to_string()))
        .as_ref()
        .map(Thread::handle)
        .map_err(|e| Error::Local(format!("cannot start the thread that serves admin queues: {e}")))
}

impl Controller {
    /// Connects to a subsystem; runs on the service thread.
    pub(crate) async fn open(
        endpoint: Endpoint,
        subnqn: String,
        options: Options,
    ) -> Result<Arc<Controller>> {
        let traffic = Arc::new(AtomicBool::new(false));
        // I/O connections are set up beside the admin queue, so that more
        // queues cost no more round trips.
        let config = host_config(&options, options.queue_size, None);
        let prepare = (0..options.queues).map(|_| Prepared::open(&endpoint, &options, config));
        let (admin, prepared) = future::join(
            Admin::open(endpoint.clone(), &options, &subnqn, &traffic),
            future::join_all(prepare),
        )
        .await;
        let (admin, cntlid, cap) = admin?;
        let wanted = NumberOfQueues { submission: NumberOfQueues::MAX, completion: NumberOfQueues::MAX };
        let set_queues = Sqe::set_features(fid::NUMBER_OF_QUEUES, 0, wanted.to_dword(), false);
        let (id, queues) =
            future::join(admin.identify_controller(), admin.command("Set Features (queues)", set_queues, 0))
                .await;
        let id = id?;
        let granted = NumberOfQueues::from_dword(queues?.cqe.dw0());
        let info = describe(&admin, &subnqn, cntlid, &id, cap, granted, &options);
        let (requests, inbox) = mpsc::unbounded();
        let mut state = State::default();
        if options.queue_size <= info.queue_entries.try_into().unwrap_or(u16::MAX) {
            // One that failed is tried again when it is needed.
            state.prepared.extend(prepared.into_iter().filter_map(Result::ok));
        }
        let controller = Arc::new(Controller {
            info,
            options,
            endpoint,
            fabrics_in_capsule: admin.in_capsule,
            state: Mutex::new(state),
            traffic,
            requests,
        });
        serve(admin, &id, inbox, &controller);
        Ok(controller)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Events from now on.
    pub(crate) fn events(&self) -> mpsc::UnboundedReceiver<ControllerEvent> {
        let (tx, rx) = mpsc::unbounded();
        self.lock().listeners.push(tx);
        rx
    }

    fn tell(&self, event: &ControllerEvent) {
        self.lock().listeners.retain(|listener| listener.unbounded_send(event.clone()).is_ok());
    }

    /// Everything on this controller fails from now on.
    fn lose(&self, reason: &str) {
        let watchers = {
            let mut state = self.lock();
            if state.lost.is_some() {
                return;
            }
            state.lost = Some(reason.to_owned());
            state.prepared.clear();
            std::mem::take(&mut state.watchers)
        };
        for watcher in watchers {
            let _ = watcher.send(reason.to_owned());
        }
        self.tell(&ControllerEvent::Lost(reason.to_owned()));
    }

    fn take_qid(&self) -> Result<u16> {
        let mut state = self.lock();
        if let Some(reason) = &state.lost {
            return Err(self.endpoint.unreachable(reason));
        }
        let (last, most) = (state.last_qid, self.info.queues);
        let mut order = (last + 1..=most).chain(1..=last.min(most));
        let qid = order
            .find(|qid| !state.qids.contains(qid))
            .ok_or_else(|| self.endpoint.refused("another I/O queue", format!("it grants {most} in all")))?;
        state.qids.insert(qid);
        state.last_qid = qid;
        Ok(qid)
    }

    fn entries(&self) -> u16 {
        let most = u16::try_from(self.info.queue_entries).unwrap_or(u16::MAX);
        self.options.queue_size.clamp(2, most.max(2))
    }

    /// Connects an I/O queue on the calling engine thread.
    pub(crate) async fn open_queue(self: &Arc<Self>) -> Result<Queue> {
        let qid = self.take_qid()?;
        let lease = Lease { controller: Arc::clone(self), qid };
        let in_capsule = u32::try_from(self.info.in_capsule).unwrap_or(u32::MAX);
        let prepared = self.lock().prepared.pop();
        let early = match prepared {
            Some(prepared) => Some(self.connect_queue(prepared, qid, in_capsule).await),
            None => None,
        };
        let queue = match early {
            // A target does not wait for Connect for ever: one that came too
            // late for the connection that was prepared begins again.
            None | Some(Err(Error::Unreachable { .. })) => {
                let config = host_config(&self.options, self.entries(), Some(in_capsule));
                let fresh = Prepared::open(&self.endpoint, &self.options, config).await?;
                self.connect_queue(fresh, qid, in_capsule).await?
            }
            Some(result) => result?,
        };
        let (tx, lost) = oneshot::channel();
        {
            let mut state = self.lock();
            if let Some(reason) = &state.lost {
                return Err(self.endpoint.unreachable(reason));
            }
            state.watchers.retain(|watcher| !watcher.is_canceled());
            state.watchers.push(tx);
        }
        let weak = queue.downgrade();
        let watch = spawn(async move {
            if let Ok(reason) = lost.await {
                weak.fail(IoError::Unreachable(reason));
            }
        });
        queue.keep((lease, watch));
        Ok(queue)
    }

    async fn connect_queue(&self, prepared: Prepared, qid: u16, in_capsule: u32) -> Result<Queue> {
        let queue = prepared.serve(&self.traffic)?;
        queue.set_in_capsule(in_capsule);
        queue.set_fabrics_in_capsule(self.fabrics_in_capsule);
        let (nqn, sqsize) = (&self.info.subnqn, self.entries() - 1);
        connect(&self.endpoint, &self.options, &queue, nqn, qid, sqsize, Some(self.info.cntlid)).await?;
        Ok(queue)
    }

    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<Result<T>>) -> Request) -> Result<T> {
        let (tx, rx) = oneshot::channel();
        let sent = self.requests.unbounded_send(make(tx)).is_ok();
        let gone = || {
            let reason = self.lock().lost.clone();
            Err(self.endpoint.unreachable(reason.unwrap_or_else(|| "the connection was closed".into())))
        };
        if !sent {
            return gone();
        }
        rx.await.unwrap_or_else(|_| gone())
    }

    /// What a namespace is at this moment.
    pub(crate) async fn namespace(&self, nsid: u32) -> Result<NamespaceInfo> {
        self.ask(|tx| Request::Namespace(nsid, tx)).await
    }

    /// Identifiers of the active namespaces.
    pub(crate) async fn namespaces(&self) -> Result<Vec<u32>> {
        self.ask(Request::Namespaces).await
    }

    /// Shuts the controller down and waits until it has.
    pub(crate) async fn close(&self) {
        let (tx, rx) = oneshot::channel();
        if self.requests.unbounded_send(Request::Close(tx)).is_ok() {
            let _ = rx.await;
        }
    }
}

/// Keeps the controller, and gives a queue identifier back.
struct Lease {
    controller: Arc<Controller>,
    qid: u16,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.controller.lock().qids.remove(&self.qid);
    }
}

fn describe(
    admin: &Admin,
    subnqn: &str,
    cntlid: u16,
    id: &IdentifyController,
    cap: longhaul_wire::fabrics::Cap,
    granted: NumberOfQueues,
    options: &Options,
) -> ControllerInfo {
    let version = id.ver.to_le_bytes();
    let (hdr_digest, data_digest) = admin.queue.digests();
    ControllerInfo {
        address: admin.endpoint.name.clone(),
        subnqn: subnqn.to_owned(),
        cntlid,
        model: id.mn.text().into_owned(),
        serial: id.sn.text().into_owned(),
        firmware: id.fr.text().into_owned(),
        version: format!("{}.{}.{}", u16::from_le_bytes([version[2], version[3]]), version[1], version[0]),
        max_transfer: id.max_transfer(cap.mpsmin() as u32),
        in_capsule: id.in_capsule_len(),
        queue_entries: cap.mqes() as u32 + 1,
        queues: u16::try_from(granted.submission.min(granted.completion)).unwrap_or(u16::MAX),
        kato: if id.kas == 0 { Duration::ZERO } else { options.kato },
        traffic_keep_alive: id.ctratt & ctratt::TRAFFIC_KEEP_ALIVE != 0,
        hdr_digest,
        data_digest,
        write_cache: id.vwc & 1 != 0,
        oncs: id.oncs,
        round_trip: admin.queue.stream().round_trip().unwrap_or_default(),
        congestion: admin.queue.stream().congestion().unwrap_or_default(),
    }
}

/// Starts the tasks of a controller on the service thread. They end when the
/// last [`Controller`] is dropped, or the connection is lost.
fn serve(
    admin: Admin,
    id: &IdentifyController,
    mut inbox: mpsc::UnboundedReceiver<Request>,
    controller: &Arc<Controller>,
) {
    let admin = Rc::new(admin);
    let wanted = id.oaes & (oaes::NAMESPACE_ATTRIBUTE | oaes::ANA_CHANGE | oaes::DISCOVERY_LOG_CHANGE);
    let requests = id.aerl.saturating_add(1).min(AER_MAX);
    let weak = Arc::downgrade(controller);
    let keep_alive = spawn(keep_alive(
        Rc::clone(&admin),
        Arc::clone(controller).info.clone(),
        Arc::clone(&controller.traffic),
    ));
    let events = {
        let (admin, weak) = (Rc::clone(&admin), weak.clone());
        spawn(async move {
            if wanted == 0 {
                return future::pending::<String>().await;
            }
            let set = Sqe::set_features(fid::ASYNC_EVENT_CONFIG, 0, wanted, false);
            if let Err(e) = admin.command("Set Features (events)", set, 0).await {
                tracing::info!("no asynchronous events: {e}");
            }
            let loops = (0..requests).map(|_| watch_events(Rc::clone(&admin), weak.clone()));
            let (reason, ..) = future::select_all(loops.map(Box::pin)).await;
            reason
        })
    };
    spawn(async move {
        let mut lost = future::select(keep_alive, events).map(|e| e.factor_first().0).fuse();
        loop {
            let request = futures_util::select_biased! {
                reason = lost => {
                    if let Some(controller) = weak.upgrade() {
                        controller.lose(&reason);
                    }
                    return;
                }
                request = inbox.next() => request,
            };
            match request {
                Some(Request::Namespace(nsid, reply)) => {
                    let admin = Rc::clone(&admin);
                    spawn(async move { _ = reply.send(namespace_info(&admin, nsid).await) }).detach();
                }
                Some(Request::Namespaces(reply)) => {
                    let admin = Rc::clone(&admin);
                    spawn(async move { _ = reply.send(active_namespaces(&admin).await) }).detach();
                }
                Some(Request::Close(reply)) => {
                    let goodbye = async {
                        admin.shut_down().await;
                        admin.wait_until_down().await;
                    };
                    let _ = timeout(GOODBYE, goodbye).await;
                    if let Some(controller) = weak.upgrade() {
                        controller.lose("it was closed");
                    }
                    let _ = reply.send(());
                    return;
                }
                None => {
                    let _ = timeout(GOODBYE, admin.shut_down()).await;
                    return;
                }
            }
        }
    })
    .detach();
}

/// Sends Keep Alive often enough, and not at all while other traffic shows
/// the controller that this host lives, where it counts that. Returns why the
/// controller is lost.
async fn keep_alive(admin: Rc<Admin>, info: ControllerInfo, traffic: Arc<AtomicBool>) -> String {
    if info.kato.is_zero() {
        return future::pending().await;
    }
    loop {
        // A half, so that one lost beat is not the end.
        sleep(info.kato / 2).await;
        if traffic.swap(false, Ordering::Relaxed) && info.traffic_keep_alive {
            continue;
        }
        let beat = admin.queue.submit(Sqe::keep_alive(), Data::None);
        match timeout(info.kato, beat).await {
            Ok(Ok(done)) if done.cqe.status().is_success() => {}
            Ok(Ok(done)) => return format!("Keep Alive failed: {}", done.cqe.status()),
            Ok(Err(e)) => return e.to_string(),
            Err(_) => return format!("no answer to Keep Alive for {} ms", info.kato.as_millis()),
        }
    }
}

/// Keeps one Asynchronous Event Request outstanding. Returns why it ended.
async fn watch_events(admin: Rc<Admin>, controller: std::sync::Weak<Controller>) -> String {
    loop {
        let done = match admin.queue.submit(Sqe::async_event_request(), Data::None).await {
            Ok(done) => done,
            Err(e) => return e.to_string(),
        };
        let status = done.cqe.status();
        if !status.is_success() {
            tracing::info!("no more asynchronous events: {status}");
            return future::pending().await;
        }
        let event = AsyncEvent::from_dw0(done.cqe.dw0());
        let Some(controller) = controller.upgrade() else { return "closed".into() };
        if let Err(e) = report(&admin, &controller, event).await {
            tracing::warn!("asynchronous event: {e}");
        }
    }
}

/// Finds out what an event is about (reading the log page that it names
/// re-arms it) and tells the listeners.
async fn report(admin: &Admin, controller: &Controller, event: AsyncEvent) -> Result<()> {
    if event.kind != AsyncEventType::Notice {
        tracing::warn!("{}: asynchronous event {event:?}", controller.info.address);
        return Ok(());
    }
    match event.info {
        notice::NAMESPACE_ATTRIBUTE => {
            let log =
                admin.log_page("the changed namespaces", lid::CHANGED_NAMESPACES, u32::MAX, 0, 4096).await?;
            let mut changed: Vec<u32> = decode_nsid_list(&log).collect();
            if changed == [u32::MAX] {
                changed = active_namespaces(admin).await?;
            }
            for nsid in changed {
                controller.tell(&ControllerEvent::NamespaceChanged(nsid));
            }
        }
        notice::ANA_CHANGE => controller.tell(&ControllerEvent::AnaChanged),
        notice::DISCOVERY_LOG_CHANGE => controller.tell(&ControllerEvent::DiscoveryChanged),
        _ => tracing::debug!("{}: notice {event:?}", controller.info.address),
    }
    Ok(())
}

async fn active_namespaces(admin: &Admin) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    loop {
        let after = all.last().copied().unwrap_or(0);
        let page = admin.identify("the namespace list", cns::ACTIVE_NAMESPACES, after).await?;
        let found: Vec<u32> = decode_nsid_list(&page).collect();
        let full = found.len() == longhaul_wire::identify::NSID_LIST_MAX;
        // A list that does not grow would be asked for for ever.
        let grows = found.first().is_some_and(|&first| first > after);
        all.extend(found);
        if !full || !grows {
            return Ok(all);
        }
    }
}

async fn namespace_info(admin: &Admin, nsid: u32) -> Result<NamespaceInfo> {
    let (ns, ids) = future::join(
        admin.identify("Identify Namespace", cns::NAMESPACE, nsid),
        admin.identify("the namespace's identifiers", cns::NAMESPACE_DESCRIPTORS, nsid),
    )
    .await;
    let ns = IdentifyNamespace::decode(&ns?)
        .ok_or_else(|| admin.endpoint.incompatible("Identify Namespace is cut"))?;
    if ns.nsze == 0 {
        return Err(Error::NotFound(format!("{} has no namespace {nsid}", admin.endpoint.name)));
    }
    let format = ns.format().ok_or_else(|| admin.endpoint.incompatible("its LBA format does not exist"))?;
    // 512 bytes is the least that the command set has; 64 KiB is what a
    // block device of any kernel can be.
    if !(9..=16).contains(&format.lbads) || format.metadata != 0 {
        return Err(admin.endpoint.incompatible(format!("LBA format {format:?} is not supported")));
    }
    let block_size = 1u32 << format.lbads;
    let size = ns.nsze.checked_mul(block_size.into());
    let size = size.ok_or_else(|| admin.endpoint.incompatible("its size exceeds 2^64 bytes"))?;
    let uuid = decode_descriptors(&ids.unwrap_or_default()).into_iter().find_map(|id| match id {
        Identifier::Uuid(uuid) => Some(uuid),
        _ => None,
    });
    let hints = ns.nsfeat & longhaul_wire::identify::nsfeat::OPTPERF != 0;
    Ok(NamespaceInfo {
        nsid,
        size,
        block_size,
        optimal_io: if hints { (u32::from(ns.nows) + 1).saturating_mul(block_size) } else { 0 },
        read_only: ns.nsattr & longhaul_wire::identify::nsattr::WRITE_PROTECTED != 0,
        uuid,
        nguid: ns.nguid,
    })
}
