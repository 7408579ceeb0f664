//! Subsystems, their namespaces and controllers, shared by all threads.
//!
//! Invariants:
//! - a namespace identifier names the same device for as long as the namespace exists;
//! - `generation` grows after every change of the view: a thread that reads a generation and then
//!   the view gets the view of that generation or a later one;
//! - a controller is in `controllers` while its admin queue exists and no other controller has
//!   reset it, and after that in `departing` for as long as any of its commands may still change a
//!   namespace;
//! - an identifier belongs to one controller of both.

use crate::access::HostRights;
use crate::attendance::{Attendance, Presence};
use crate::config::Config;
use crate::counts::AllCounters;
use crate::durable::{Failures, HostKey, Written};
use crate::reserved::Reserved;
use crate::space::Managed;
use futures_channel::{mpsc, oneshot};
use longhaul_block::BlockDevice;
use longhaul_engine::{now, since};
use longhaul_proto::controller::{
    Content, Controller, HealthCounters, HostAccess, Instance, NamespaceView, NvmContent, OtherReset,
    SubsystemView, Traffic,
};
use longhaul_proto::reservation::{HostId, Notice};
use longhaul_wire::command::CrossControllerReset;
use longhaul_wire::fabrics::CNTLID_MAX;
use longhaul_wire::log::AnaState;
use longhaul_wire::management::{LabelError, NamespaceLabel};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The largest namespace identifier that a subsystem ever gives out.
pub const NSID_MAX: u32 = 1024;

/// A device exported as a namespace.
#[derive(Clone)]
pub struct Namespace {
    /// The device that the namespace serves.
    pub device: Arc<dyn BlockDevice>,
    /// Globally unique identity of the namespace.
    pub uuid: Uuid,
    /// Flushes of it that have failed.
    pub(crate) failures: Arc<Failures>,
    /// The hosts that have reserved it.
    pub(crate) reserved: Arc<Reserved>,
    /// How it belongs to a space, if it does.
    pub(crate) made: Option<Arc<ManagedNamespace>>,
    /// Whether this target serves it, or another one does.
    pub(crate) ana: AnaState,
    /// Commands to it.
    pub(crate) counters: Arc<AllCounters>,
    /// Queues that have its device open, and commands that the device is busy with.
    pub(crate) users: Arc<Attendance>,
}

/// What is known of a namespace that was made by a command.
#[derive(Debug)]
pub(crate) struct ManagedNamespace {
    /// Several hosts may have it at a time.
    pub(crate) shared: bool,
    /// For which hosts, and for what.
    pub(crate) label: NamespaceLabel,
    /// The label as bytes, without the zeroes at its end.
    pub(crate) encoded: Arc<[u8]>,
    /// A host has opened it: there may be something to flush.
    pub(crate) opened: Arc<AtomicBool>,
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Namespace({}, {})", self.device.info().name, self.uuid)
    }
}

impl ManagedNamespace {
    pub(crate) fn new(
        shared: bool,
        label: NamespaceLabel,
        opened: Arc<AtomicBool>,
    ) -> Result<ManagedNamespace, LabelError> {
        let bytes = label.encode()?;
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Ok(ManagedNamespace { shared, encoded: bytes[..used].into(), label, opened })
    }
}

impl Namespace {
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        uuid: Uuid,
        reserved: Arc<Reserved>,
        made: Option<Arc<ManagedNamespace>>,
    ) -> Namespace {
        let (failures, counters, users) = Default::default();
        Namespace { device, uuid, failures, reserved, made, ana: AnaState::Optimized, counters, users }
    }

    /// The same, in another state of access.
    pub(crate) fn with_state(self, ana: AnaState) -> Namespace {
        Namespace { ana, ..self }
    }

    /// Whether this target serves it.
    pub(crate) fn is_accessible(&self) -> bool {
        self.ana == AnaState::Optimized
    }

    /// Whether the host may see it.
    pub(crate) fn is_for(&self, hostnqn: &str) -> bool {
        self.made.as_ref().is_none_or(|made| made.label.hosts.iter().any(|host| host == hostnqn))
    }

    /// Whether a host may have written to it.
    pub(crate) fn was_opened(&self) -> bool {
        self.made.as_ref().is_none_or(|made| made.opened.load(Ordering::SeqCst))
    }

    /// A host opens it.
    pub(crate) fn opened(&self) {
        if let Some(made) = &self.made {
            made.opened.store(true, Ordering::SeqCst);
        }
    }

    /// What the protocol says about it.
    pub(crate) fn view(&self, nsid: u32) -> NamespaceView {
        let info = self.device.info();
        NamespaceView {
            nsid,
            blocks: info.size / u64::from(info.block_size),
            block_shift: info.block_size.ilog2() as u8,
            granularity: self.device.granularity().max(info.block_size).max(PREFERRED_GRANULARITY),
            optimal_io: info.optimal_io,
            uuid: Some(self.uuid),
            nguid: self.uuid.into_bytes(),
            read_only: info.read_only,
            volatile_cache: info.volatile_cache,
            discard: info.discard,
            discard_zeroes: info.discard,
            reader: false,
            shared: self.made.as_ref().is_none_or(|made| made.shared),
            persistent_reservations: self.reserved.can_persist(),
            // Access changes for one export at a time, and for a space as a whole.
            ana_group: if self.made.is_some() { 1 } else { nsid },
            ana_state: self.ana,
        }
    }
}

/// Whether a subsystem takes new controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Open,
    /// Not until it is decided whether a change is made.
    Closed,
    /// The subsystem was removed.
    Removed,
}

/// Why a controller is not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// Its host is not allowed.
    Host,
    /// Later, perhaps.
    Busy,
    /// The subsystem was removed.
    Removed,
}

/// Granularity of writes and discards that files and drives like: a page.
const PREFERRED_GRANULARITY: u32 = 4096;

/// A subsystem: a name, and the namespaces behind it.
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    pub(crate) name: String,
    serial: String,
    /// The view without namespaces; held while the view is made anew.
    base: Mutex<SubsystemView>,
    namespaces: Mutex<BTreeMap<u32, Namespace>>,
    /// Hosts that may write. Changed while `controllers` is held.
    writers: Mutex<HostAccess>,
    view: RwLock<Arc<SubsystemView>>,
    generation: AtomicU64,
    /// Number of changes of ANA states so far.
    access_changes: AtomicU64,
    /// The space that its namespaces are made in, if it is one.
    pub(crate) managed: Option<Managed>,
    pub(crate) controllers: Mutex<BTreeMap<u16, Arc<Link>>>,
    /// Changed while `controllers` is held.
    door: Mutex<Door>,
    departing: Mutex<BTreeMap<u16, Arc<Link>>>,
    last_cntlid: Mutex<u16>,
    /// Other targets serve it too, at this time or at another one.
    is_shared: AtomicBool,
    since: Instant,
}

impl Subsystem {
    pub(crate) fn new(nqn: String, name: String, config: &Config, hosts: HostRights) -> Subsystem {
        Subsystem::with_space(nqn, name, config, hosts, None)
    }

    pub(crate) fn with_space(
        nqn: String,
        name: String,
        config: &Config,
        hosts: HostRights,
        managed: Option<Managed>,
    ) -> Subsystem {
        let serial =
            Uuid::new_v5(&Uuid::NAMESPACE_OID, nqn.as_bytes()).simple().to_string()[..SERIAL].to_owned();
        let base = view_of(&nqn, &serial, config, hosts.read);
        Subsystem {
            nqn,
            name,
            serial,
            view: RwLock::new(Arc::new(base.clone())),
            base: Mutex::new(base),
            door: Mutex::new(Door::Open),
            namespaces: Mutex::default(),
            writers: Mutex::new(hosts.write),
            generation: AtomicU64::new(1),
            access_changes: AtomicU64::new(0),
            managed,
            controllers: Mutex::default(),
            departing: Mutex::default(),
            last_cntlid: Mutex::default(),
            is_shared: AtomicBool::new(false),
            since: now(),
        }
    }

    pub(crate) fn serial(&self) -> &str {
        &self.serial
    }

    pub(crate) fn namespaces(&self) -> MutexGuard<'_, BTreeMap<u32, Namespace>> {
        lock(&self.namespaces)
    }

    pub(crate) fn namespace(&self, nsid: u32) -> Option<Namespace> {
        self.namespaces().get(&nsid).cloned()
    }

    /// The namespaces as the protocol shows them.
    pub(crate) fn view(&self) -> Arc<SubsystemView> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The namespaces as the protocol shows them to the host of a controller.
    pub(crate) fn view_for(&self, link: &Link) -> Arc<SubsystemView> {
        if self.managed.is_none() && !link.is_reader() {
            return self.view();
        }
        let generation = self.generation();
        let mut shown = lock(&link.shown);
        if let Some((of, view)) = &*shown
            && *of == generation
        {
            return Arc::clone(view);
        }
        let mut view = SubsystemView::clone(&self.view());
        if let Content::Nvm(content) = &mut view.content {
            if let Some(managed) = &self.managed {
                let namespaces = self.namespaces().clone();
                let visible = namespaces.iter().filter(|(_, ns)| ns.is_for(&link.hostnqn));
                *content = NvmContent {
                    max_nsid: managed.max_nsid(),
                    namespaces: visible.map(|(&nsid, ns)| ns.view(nsid)).collect(),
                    ana: Some(0),
                    space: managed.view_for(&link.hostnqn, &namespaces),
                };
            }
            if link.is_reader() {
                content.space = None;
                content.namespaces = content.namespaces.drain(..).map(NamespaceView::for_reader).collect();
            }
        }
        let view = Arc::new(view);
        *shown = Some((generation, Arc::clone(&view)));
        view
    }

    /// Rebuilds the view after a change, and notifies every controller of the namespaces concerned.
    pub(crate) fn changed(&self, nsids: &[u32]) {
        self.show();
        for link in self.links() {
            link.tell(nsids);
        }
    }

    /// Rebuilds the view.
    fn show(&self) {
        let base = lock(&self.base);
        let views = self.namespaces().iter().map(|(&nsid, ns)| ns.view(nsid)).collect();
        let mut view = base.clone();
        let ana = Some(self.access_changes.load(Ordering::Acquire));
        let content = NvmContent { max_nsid: NSID_MAX, namespaces: views, ana, space: None };
        view.content = Content::Nvm(content);
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Has all I/O queues open their devices anew: a queue that takes a command before its message does so
    /// by the generation.
    pub(crate) fn reopen_all(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        self.reopen();
    }

    /// Has the I/O queues of all controllers close what they have open.
    pub(crate) fn reopen(&self) {
        for link in self.links().iter().chain(self.departing().values()) {
            link.refresh_io();
        }
    }

    /// Adds the next namespace, and notifies hosts. Its identifier is the lowest that is not in use; `None`
    /// without one.
    pub(crate) fn add_next(&self, namespace: Namespace) -> Option<u32> {
        let nsid = {
            let mut namespaces = self.namespaces();
            let nsid = (1..=NSID_MAX).find(|nsid| !namespaces.contains_key(nsid))?;
            namespaces.insert(nsid, namespace);
            nsid
        };
        self.changed(&[nsid]);
        Some(nsid)
    }

    /// Takes namespaces out: hosts are notified, their queues close what they have open, and commands to
    /// them are refused from now on. Commands under way complete. Returns those that existed.
    pub(crate) fn withdraw(&self, nsids: &[u32]) -> Vec<Namespace> {
        let gone: Vec<(u32, Namespace)> = {
            let mut namespaces = self.namespaces();
            nsids.iter().filter_map(|nsid| Some((*nsid, namespaces.remove(nsid)?))).collect()
        };
        let nsids: Vec<u32> = gone.iter().map(|(nsid, _)| *nsid).collect();
        if !nsids.is_empty() {
            self.changed(&nsids);
            self.reopen();
            self.links().iter().for_each(|link| link.forget(&nsids));
        }
        gone.into_iter().map(|(_, namespace)| namespace).collect()
    }

    /// Counts a change of an ANA state; [`changed`](Self::changed) shows it.
    pub(crate) fn count_access_change(&self) {
        self.access_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Other targets serve this subsystem too: the next controller identifier is any, so that they
    /// give out others.
    pub(crate) fn share(&self) {
        if !self.is_shared.swap(true, Ordering::SeqCst) {
            *lock(&self.last_cntlid) = (crate::admin::random() % u64::from(CNTLID_MAX)) as u16;
        }
    }

    /// The same for a space: tells the controllers of those hosts, and closes what queues have open
    /// of namespaces that they see no more.
    pub(crate) fn space_changed(&self, nsids: &[u32], hosts: &BTreeSet<String>) {
        self.generation.fetch_add(1, Ordering::Release);
        for link in self.links() {
            if hosts.contains(&link.hostnqn) {
                link.tell(nsids);
                link.refresh_io();
            }
        }
        for link in self.departing().values().filter(|link| hosts.contains(&link.hostnqn)) {
            link.refresh_io();
        }
    }

    /// What hosts may do from now on. A controller of a host that may write now sees its namespaces anew;
    /// those of hosts that may not any more are the caller's to end.
    pub(crate) fn set_hosts(&self, hosts: &HostRights) {
        {
            let mut base = lock(&self.base);
            base.hosts = hosts.read.clone();
            let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
            *view = Arc::new(SubsystemView { hosts: hosts.read.clone(), ..(**view).clone() });
        }
        let promoted: Vec<Arc<Link>> = {
            let controllers = lock(&self.controllers);
            *lock(&self.writers) = hosts.write.clone();
            let writes = |link: &&Arc<Link>| hosts.write.allows(&link.hostnqn);
            controllers.values().filter(writes).filter(|link| link.set_reader(false)).cloned().collect()
        };
        if promoted.is_empty() {
            return;
        }
        self.generation.fetch_add(1, Ordering::Release);
        let nsids: Vec<u32> = self.namespaces().keys().copied().collect();
        for link in promoted {
            link.tell(&nsids);
            link.refresh_io();
        }
    }

    /// Adds a controller, unless the subsystem has none at this moment, or for this host.
    pub(crate) fn admit(&self, link: &Arc<Link>) -> Result<(), NotAdmitted> {
        let mut controllers = lock(&self.controllers);
        match *lock(&self.door) {
            Door::Open if lock(&self.base).hosts.allows(&link.hostnqn) => {}
            // The list has changed since its Connect was checked.
            Door::Open => return Err(NotAdmitted::Host),
            Door::Closed => return Err(NotAdmitted::Busy),
            Door::Removed => return Err(NotAdmitted::Removed),
        }
        link.set_reader(!lock(&self.writers).allows(&link.hostnqn));
        controllers.insert(link.cntlid, Arc::clone(link));
        Ok(())
    }

    /// Whether controllers are added from now on.
    pub(crate) fn set_door(&self, door: Door) {
        let _order = lock(&self.controllers);
        *lock(&self.door) = door;
    }

    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        lock(&self.controllers).values().cloned().collect()
    }

    /// A controller identifier that is not in use, and not the one given
    /// out last: a host that is slow to notice must not meet a stranger.
    pub(crate) fn free_cntlid(&self) -> Option<u16> {
        let controllers = lock(&self.controllers);
        let departing = self.departing();
        let mut last = lock(&self.last_cntlid);
        let mut order = (*last + 1..=CNTLID_MAX).chain(1..=*last);
        let cntlid = order.find(|id| !controllers.contains_key(id) && !departing.contains_key(id))?;
        *last = cntlid;
        Some(cntlid)
    }

    /// Controllers that have ended, except for commands that a device is still executing.
    fn departing(&self) -> MutexGuard<'_, BTreeMap<u16, Arc<Link>>> {
        let mut departing = lock(&self.departing);
        departing.retain(|_, link| link.is_present());
        departing
    }

    /// Whether a controller has ended, except for commands that a device is still executing.
    pub(crate) fn is_departing(&self, cntlid: u16) -> bool {
        self.departing().contains_key(&cntlid)
    }

    /// The controller takes no more commands, and is not found by its
    /// identifier any more.
    pub(crate) fn depart(&self, link: &Arc<Link>) {
        link.leave_written();
        let mut controllers = lock(&self.controllers);
        let mut departing = self.departing();
        if controllers.get(&link.cntlid).is_some_and(|found| Arc::ptr_eq(found, link)) {
            controllers.remove(&link.cntlid);
            departing.insert(link.cntlid, Arc::clone(link));
        }
    }

    /// Ends the instance of a controller that `fields` names, at the request
    /// of a host, and waits until nothing of it is left.
    pub(crate) async fn reset_other(
        &self,
        fields: CrossControllerReset,
        (hostnqn, hostid): (String, Uuid),
    ) -> OtherReset {
        let found = {
            let controllers = lock(&self.controllers);
            let departing = self.departing();
            controllers.get(&fields.icid).or_else(|| departing.get(&fields.icid)).cloned()
        };
        let Some(link) = found else { return self.unknown_instance() };
        {
            let mut controller = lock(&link.controller);
            if controller.instance() != Some(Instance { ciu: fields.ciu, cirn: fields.cirn }) {
                return self.unknown_instance();
            }
            if (controller.hostnqn(), controller.hostid()) != (hostnqn.as_str(), hostid) {
                return OtherReset::NotYours;
            }
            // No queue is added to it from here on.
            controller.fail();
        }
        tracing::info!("controller {} is reset by its host through another one", fields.icid);
        self.depart(&link);
        drop(link.close_io());
        link.send(0, Message::Close);
        match longhaul_engine::timeout(RESET_WAIT, link.absence()).await {
            Ok(()) => OtherReset::Done,
            Err(_) => OtherReset::InProgress,
        }
    }

    /// What is known of an instance of a controller that is not here (any more).
    fn unknown_instance(&self) -> OtherReset {
        // It may be one of another target, and have an effect until this one serves what that one did.
        let elsewhere = self.is_shared.load(Ordering::SeqCst)
            && self.namespaces().values().any(|namespace| !namespace.is_accessible());
        if elsewhere { OtherReset::Unknown } else { OtherReset::Done }
    }

    /// Notifies hosts of changes to a reservation.
    pub(crate) fn notify_reservation(&self, nsid: u32, notices: &[(HostId, Notice)]) {
        if notices.is_empty() {
            return;
        }
        for link in self.links() {
            let mut controller = lock(&link.controller);
            let host = controller.hostid().into_bytes();
            let mut notified = false;
            for (_, notice) in notices.iter().filter(|(to, _)| *to == host) {
                controller.reservation_notice(nsid, *notice);
                notified = true;
            }
            drop(controller);
            if notified {
                link.send(0, Message::Events);
            }
        }
    }

    /// Ends the I/O queues of these hosts; returns once nothing of them can change a namespace any
    /// more. The hosts reconnect.
    pub(crate) async fn end_io_of(&self, hosts: &[HostId]) {
        let mut all = self.links();
        all.extend(self.departing().values().cloned());
        let of_them = |link: &Arc<Link>| hosts.contains(&lock(&link.controller).hostid().into_bytes());
        let ending: Vec<_> = all.iter().filter(|link| of_them(link)).map(|link| link.close_io()).collect();
        for ended in ending {
            ended.await;
        }
    }

    pub(crate) fn health(&self) -> HealthCounters {
        let mut sum = HealthCounters { uptime_s: since(self.since).as_secs(), ..HealthCounters::default() };
        for link in self.links() {
            let h = &link.health;
            sum.bytes_read += h.bytes_read.load(Ordering::Relaxed);
            sum.bytes_written += h.bytes_written.load(Ordering::Relaxed);
            sum.reads += h.reads.load(Ordering::Relaxed);
            sum.writes += h.writes.load(Ordering::Relaxed);
            sum.media_errors += h.media_errors.load(Ordering::Relaxed);
        }
        sum
    }
}

/// How long a Cross-Controller Reset waits for commands that a device is busy
/// with before it says so; the host asks again. Shorter than hosts wait for an
/// admin command.
const RESET_WAIT: Duration = Duration::from_secs(20);

/// Characters of a serial number.
const SERIAL: usize = 20;

/// What all subsystems of a target say alike.
pub(crate) fn view_of(nqn: &str, serial: &str, config: &Config, hosts: HostAccess) -> SubsystemView {
    SubsystemView {
        nqn: nqn.to_owned(),
        serial: serial.to_owned(),
        model: "Longhaul NVMe/TCP target".into(),
        firmware: env!("CARGO_PKG_VERSION").into(),
        max_transfer: config.max_transfer(),
        in_capsule: config.in_capsule,
        max_queues: config.max_queues,
        max_queue_size: config.max_queue_size,
        hosts,
        content: Content::Nvm(NvmContent {
            max_nsid: NSID_MAX,
            namespaces: Vec::new(),
            ana: Some(0),
            space: None,
        }),
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A controller and the connections of its queues.
pub(crate) struct Link {
    pub(crate) cntlid: u16,
    /// NQN of its host.
    pub(crate) hostnqn: String,
    /// Its admin queue uses TLS.
    pub(crate) is_secure: bool,
    /// Its host may only read.
    reader: AtomicBool,
    /// What its host sees of a space, or may only read, and the generation that it is of.
    shown: Mutex<Option<(u64, Arc<SubsystemView>)>>,
    pub(crate) controller: Mutex<Controller>,
    pub(crate) traffic: Traffic,
    /// Its connections by queue identifier; the admin queue is 0.
    queues: Mutex<BTreeMap<u16, mpsc::UnboundedSender<Message>>>,
    present: Arc<Attendance>,
    pub(crate) health: Health,
    /// Every write is to be durable: the host has switched the cache off.
    pub(crate) write_through: AtomicBool,
    host: HostKey,
    /// The controller's writes to each namespace since its last flush.
    written: Mutex<WrittenByNsid>,
}

#[derive(Default)]
struct WrittenByNsid {
    all: BTreeMap<u32, Arc<Written>>,
    /// The controller has ended, though commands of it may be under way.
    has_left: bool,
}

/// Counts of one controller.
#[derive(Debug, Default)]
pub(crate) struct Health {
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) media_errors: AtomicU64,
}

/// A request of another thread to one connection.
pub(crate) enum Message {
    /// Abort this command; the reply says whether it was aborted.
    Abort { cid: u16, reply: oneshot::Sender<bool> },
    /// The controller has events to report (to the admin queue).
    Events,
    /// Namespaces have changed (to an I/O queue).
    Refresh,
    /// Ask the kernel about the connection.
    Measure,
    /// Let commands under way end, then close.
    Drain,
    /// Close the connection now.
    Close,
}

impl Link {
    pub(crate) fn new(cntlid: u16, controller: Controller, is_secure: bool) -> Link {
        Link {
            cntlid,
            hostnqn: controller.hostnqn().to_owned(),
            host: Arc::new((controller.hostid().into_bytes(), controller.hostnqn().to_owned())),
            is_secure,
            reader: AtomicBool::new(false),
            shown: Mutex::default(),
            traffic: controller.traffic(),
            controller: Mutex::new(controller),
            queues: Mutex::default(),
            present: Arc::default(),
            health: Health::default(),
            write_through: AtomicBool::new(false),
            written: Mutex::default(),
        }
    }

    /// Whether its host may only read.
    pub(crate) fn is_reader(&self) -> bool {
        self.reader.load(Ordering::Acquire)
    }

    /// Returns whether that is a change.
    fn set_reader(&self, reader: bool) -> bool {
        self.reader.swap(reader, Ordering::AcqRel) != reader
    }

    /// What the controller has written to a namespace since its last flush,
    /// on all of its queues.
    pub(crate) fn written(&self, nsid: u32, namespace: &Namespace) -> Arc<Written> {
        let mut by_nsid = lock(&self.written);
        let found = by_nsid.all.get(&nsid).filter(|written| written.is_of(&namespace.failures)).cloned();
        found.unwrap_or_else(|| {
            let new = Arc::new(Written::new(&namespace.failures, Some(&self.host)));
            if by_nsid.has_left {
                new.leave();
            }
            by_nsid.all.insert(nsid, Arc::clone(&new));
            new
        })
    }

    /// What it has written and not flushed is left to the host's next flush on another controller.
    fn leave_written(&self) {
        let mut by_nsid = lock(&self.written);
        by_nsid.has_left = true;
        by_nsid.all.values().for_each(|written| written.leave());
    }

    /// Tells its host which namespaces have changed.
    fn tell(&self, nsids: &[u32]) {
        lock(&self.controller).namespaces_changed(nsids.iter().copied());
        self.send(0, Message::Events);
    }

    /// Tells its host that the ANA state of a namespace has changed, and closes what queues have open.
    pub(crate) fn tell_access(&self) {
        lock(&self.controller).ana_changed();
        self.send(0, Message::Events);
        self.refresh_io();
    }

    /// Has its I/O queues look at the namespaces anew.
    fn refresh_io(&self) {
        for (_, queue) in lock(&self.queues).range(1..) {
            let _ = queue.unbounded_send(Message::Refresh);
        }
    }

    /// Forgets what it has written to namespaces that are gone.
    pub(crate) fn forget(&self, nsids: &[u32]) {
        lock(&self.written).all.retain(|nsid, _| !nsids.contains(nsid));
    }

    pub(crate) fn add_queue(&self, qid: u16, sender: mpsc::UnboundedSender<Message>) {
        lock(&self.queues).insert(qid, sender);
    }

    pub(crate) fn remove_queue(&self, qid: u16) {
        lock(&self.controller).queue_closed(qid);
        lock(&self.queues).remove(&qid);
    }

    /// Something of the controller can change namespaces until the result is
    /// dropped.
    pub(crate) fn enter(&self) -> Presence {
        self.present.enter()
    }

    fn is_present(&self) -> bool {
        self.present.is_present()
    }

    /// Ends once nothing of the controller can change namespaces any more.
    pub(crate) fn absence(&self) -> impl Future<Output = ()> + use<> {
        self.present.absence()
    }

    /// Sends to one queue, if it lives.
    pub(crate) fn send(&self, qid: u16, message: Message) -> bool {
        lock(&self.queues).get(&qid).is_some_and(|queue| queue.unbounded_send(message).is_ok())
    }

    /// Has the I/O queues take no more commands, complete those under way, and end; completes when the last
    /// one has ended and devices have finished its commands.
    pub(crate) fn drain_io(&self) -> impl Future<Output = ()> + use<> {
        for (_, queue) in lock(&self.queues).range(1..) {
            let _ = queue.unbounded_send(Message::Drain);
        }
        self.absence()
    }

    /// Closes the I/O queues; the future completes when the last one has ended and devices have
    /// finished its commands.
    pub(crate) fn close_io(&self) -> impl Future<Output = ()> + use<> {
        for (_, queue) in lock(&self.queues).range(1..) {
            let _ = queue.unbounded_send(Message::Close);
        }
        self.absence()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_block::{DeviceInfo, MemDevice, Open};

    struct Coarse(MemDevice);

    impl BlockDevice for Coarse {
        fn info(&self) -> DeviceInfo {
            DeviceInfo { optimal_io: 768 << 10, ..self.0.info() }
        }

        fn granularity(&self) -> u32 {
            256 << 10
        }

        fn open(&self) -> Open<'_> {
            self.0.open()
        }
    }

    #[test]
    fn hosts_are_told_of_units_and_stripes() {
        let memory = || MemDevice::new(8 << 20, 4096).expect("mapped");
        let view = |device: Arc<dyn BlockDevice>| {
            let view = Namespace::new(device, Uuid::nil(), Arc::default(), None).view(1);
            (view.granularity, view.optimal_io)
        };
        assert_eq!(view(Arc::new(Coarse(memory()))), (256 << 10, 768 << 10));
        assert_eq!(view(Arc::new(memory())), (4096, 0));
    }
}
