//! The target: listeners, threads, and the table of subsystems.

use crate::accept::{Incoming, accept};
use crate::access::Access;
use crate::admin::flush_all;
use crate::config::{Config, TransportListener};
use crate::connections::Connections;
use crate::generated::GeneratedPsks;
use crate::memory::Memory;
use crate::observer::{Hosts, Incidents, Observer};
use crate::pace::{self, Paces};
use crate::quiet::Quiet;
use crate::rates::RateLimits;
use crate::registry::Registry;
use crate::space::{Managed, ReservationStores, Space};
use crate::store::Writer;
use crate::subsystem::{Message, Subsystem, lock, view_of};
use crate::tls::TlsPolicy;
use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_channel::oneshot;
use longhaul_conn::transport::{Address, Transport};
use longhaul_engine::net::{FreeListener, TcpListener};
use longhaul_engine::{Handle, Registrar, Registration, Thread};
use longhaul_proto::controller::{
    Content, DiscoveryContent, DiscoveryRecord, DiscoveryTarget, SubsystemView, discovery_entry,
};
use longhaul_proto::target::ENTRIES_BEFORE_CONNECT;
use longhaul_wire::Ascii;
use longhaul_wire::log::{DiscoveryEntry, adrfam, treq, trtype, tsas};
use longhaul_wire::nqn::{DISCOVERY_NQN, Nqn};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// How long the target waits for its connections at the end.
const STOP: Duration = Duration::from_secs(15);
const STOP_LOOK: Duration = Duration::from_millis(10);

/// Why a target cannot carry out a request of its user.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting makes no sense.
    #[error("{0}")]
    Config(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {source}{}", hint(.addr, .source))]
    Listen {
        /// The address that cannot be listened on.
        addr: Address,
        /// The error of the system.
        source: io::Error,
    },
    /// A listening socket does not say where it listens.
    #[error("cannot tell the address of a listening socket: {0}")]
    Socket(io::Error),
    /// An engine thread cannot be started.
    #[error("cannot start an engine thread: {0}")]
    Thread(io::Error),
    /// A subsystem or namespace cannot be added.
    #[error("{0}")]
    Export(String),
    /// A medium, or a file of the state directory, cannot be used.
    #[error("cannot use {}: {why}", .path.display())]
    State {
        /// The file or device.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another medium is in the place of the one that an export served last.
    #[error("{0}")]
    OtherMedium(String),
}

fn hint(addr: &Address, e: &io::Error) -> &'static str {
    match (addr, e.kind()) {
        (Address::Ip(_), io::ErrorKind::AddrInUse) => {
            ": another program listens there; choose another port with --listen"
        }
        (Address::Ip(_), io::ErrorKind::PermissionDenied) => {
            ": ports below 1024 need privileges; choose a higher one"
        }
        (Address::Ip(_), io::ErrorKind::AddrNotAvailable) => ": it is not an address of this machine",
        (Address::Named(_), io::ErrorKind::AddrInUse) => {
            ": another program listens there; choose another path with --listen"
        }
        (Address::Named(_), io::ErrorKind::PermissionDenied) => {
            ": this user may not make files in its directory; choose another one with --listen"
        }
        (Address::Named(_), io::ErrorKind::NotFound) => ": its directory is not there: make it first",
        _ => "",
    }
}

/// Messages that strangers can cause.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    /// Of connections that cannot be had.
    pub(crate) accept: Quiet,
    /// Of connections that break the protocol, or are refused.
    pub(crate) refuse: Quiet,
    /// Of hosts that take too long.
    pub(crate) late: Quiet,
}

/// What all threads of a target share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) memory: Memory,
    /// The engine of long commands.
    pub(crate) long: Handle,
    pub(crate) access: Access,
    pub(crate) subsystems: RwLock<BTreeMap<String, Arc<Subsystem>>>,
    pub(crate) discovery: Arc<Subsystem>,
    /// What has registered with the discovery controller.
    pub(crate) registry: Registry,
    /// Receive a notice at each change of what this target itself serves.
    watchers: Mutex<Vec<UnboundedSender<()>>>,
    /// Changes with what the discovery log shows.
    generation: AtomicU64,
    /// Addresses of the I/O listeners, and those of discovery alone.
    listening: Mutex<Vec<SocketAddr>>,
    pub(crate) connections: Arc<Connections>,
    /// New connections, and admin commands, of each address.
    pub(crate) arrivals: Paces,
    pub(crate) admin: Paces,
    /// Messages of authentications, of each address.
    pub(crate) authentications: Paces,
    /// PSKs that hosts have made by authenticating.
    pub(crate) generated: Arc<GeneratedPsks>,
    /// Turns of commands that are refused.
    pub(crate) refused: Paces,
    pub(crate) quiet: Kinds,
    /// What happens seldom.
    pub(crate) incidents: Incidents,
    /// What is counted of hosts.
    pub(crate) hosts: Hosts,
    /// What limits hosts.
    pub(crate) rates: RateLimits,
    /// Listeners that accept connections.
    pub(crate) accepting: AtomicUsize,
    stopping: AtomicBool,
}

impl Shared {
    pub(crate) fn subsystem(&self, nqn: &str) -> Option<Arc<Subsystem>> {
        if nqn == DISCOVERY_NQN {
            return Some(Arc::clone(&self.discovery));
        }
        self.subsystems.read().unwrap_or_else(PoisonError::into_inner).get(nqn).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Subsystem>> {
        self.subsystems.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The discovery subsystem as a connection to `local` sees it: a listener
    /// on every address is shown with the address that the host has used.
    pub(crate) fn discovery_view(&self, local: &Address) -> Arc<SubsystemView> {
        let lists = self.access.lists();
        let hosts = lists.of(DISCOVERY_NQN).read.clone();
        let mut view = view_of(DISCOVERY_NQN, self.discovery.serial(), &self.config, hosts);
        let mut records = Vec::new();
        let mut add = |nqn: &str, target, addr: &Address, port_id| {
            let entry = entry_at(nqn, target, addr, port_id);
            let hosts = lists.of(nqn).read.clone();
            records.push(DiscoveryRecord { entry: with_security(entry, self.tls_at(addr)), hosts });
        };
        let ports: Vec<_> = (1u16..).zip(lock(&self.listening).clone()).collect();
        let is_local = |addr: &SocketAddr| local.socket().is_some_and(|local| local.port() == addr.port());
        let port_of_local = ports.iter().find(|(_, addr)| is_local(addr)).map_or(0, |(id, _)| *id);
        add(DISCOVERY_NQN, DiscoveryTarget::ThisDiscovery, local, port_of_local);
        for subsystem in self.all() {
            // Another transport leads to this target where it is asked, and it alone is known to reach it.
            if local.socket().is_none() {
                add(&subsystem.nqn, DiscoveryTarget::Nvm, local, port_of_local);
                continue;
            }
            for &(port_id, addr) in &ports {
                let ip = local.ip().filter(|_| addr.ip().is_unspecified()).unwrap_or(addr.ip());
                add(&subsystem.nqn, DiscoveryTarget::Nvm, &SocketAddr::new(ip, addr.port()).into(), port_id);
            }
        }
        records.extend(self.registry.records(|nqn| lists.of(nqn).read.clone()));
        let generation = self.generation.load(Ordering::Acquire);
        let registrars = self.config.registrars.clone();
        view.content = Content::Discovery(DiscoveryContent { generation, records, registrars });
        Arc::new(view)
    }

    /// See [`Target::registration`].
    fn registration(&self) -> Vec<DiscoveryEntry> {
        let ports: Vec<_> = (1u16..).zip(lock(&self.listening).clone()).collect();
        let mut entries = Vec::new();
        for subsystem in self.all() {
            for &(port_id, addr) in &ports {
                let entry = discovery_entry(
                    &subsystem.nqn,
                    DiscoveryTarget::Nvm,
                    addr,
                    port_id,
                    ENTRIES_BEFORE_CONNECT,
                );
                let entry = with_security(entry, self.tls_at(&addr.into()));
                let traddr = if addr.ip().is_unspecified() { Ascii::new("") } else { entry.traddr };
                entries.push(DiscoveryEntry { traddr, ..entry });
            }
        }
        entries
    }

    /// Whether connections to this address of the target use TLS.
    pub(crate) fn tls_at(&self, local: &Address) -> TlsPolicy {
        let is_io = |local: SocketAddr| lock(&self.listening).iter().any(|io| io.port() == local.port());
        match (self.config.tls, local.socket()) {
            // The discovery controller answers without a proof, and tells a host what that needs to know.
            (TlsPolicy::Required, Some(local)) if !is_io(local) => TlsPolicy::Allowed,
            (policy, _) => policy,
        }
    }

    /// Notifies the hosts that asked for it that the discovery log has changed, and those that register
    /// what this target serves.
    pub(crate) fn discovery_changed(&self) {
        lock(&self.watchers).retain(|watcher| watcher.unbounded_send(()).is_ok());
        self.generation.fetch_add(1, Ordering::Release);
        for link in self.discovery.links() {
            lock(&link.controller).discovery_changed();
            link.send(0, Message::Events);
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}

/// A running target. Dropping it closes every connection at once;
/// [`stop`](Target::stop) lets commands under way end first.
pub struct Target {
    pub(crate) shared: Arc<Shared>,
    pub(crate) threads: Vec<Thread>,
    /// Works on long commands.
    _long: Thread,
    addresses: Vec<SocketAddr>,
    own_addresses: Vec<Address>,
    discovery: Option<SocketAddr>,
    /// Their end lets the tasks end that accept connections on sockets of another program.
    accepting: Vec<oneshot::Sender<()>>,
    /// Makes reservations durable.
    pub(crate) writer: Writer,
    pub(crate) observer: Observer,
}

/// The entry of a subsystem at an address.
fn entry_at(nqn: &str, target: DiscoveryTarget, addr: &Address, port_id: u16) -> DiscoveryEntry {
    let anywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let at = addr.socket().unwrap_or(anywhere);
    let entry = discovery_entry(nqn, target, at, port_id, ENTRIES_BEFORE_CONNECT);
    match addr {
        Address::Ip(_) => entry,
        //= NVMe Base 2.1, Discovery Log Page Entry: TRTYPE and ADRFAM of FEh are a transport within the host
        Address::Named(name) => DiscoveryEntry {
            trtype: trtype::LOOP,
            adrfam: adrfam::INTRA_HOST,
            traddr: Ascii::new(name),
            trsvcid: Ascii::new(""),
            ..entry
        },
    }
}

/// The entry of an address with this policy.
fn with_security(entry: DiscoveryEntry, policy: TlsPolicy) -> DiscoveryEntry {
    match policy {
        TlsPolicy::Off => entry,
        //= NVMe-TCP 1.1, Transport Specific Address Subtype: SECTYPE says which security a port has
        TlsPolicy::Allowed => DiscoveryEntry { tsas: tsas::TLS_1_3, ..entry },
        TlsPolicy::Concatenated | TlsPolicy::Required => {
            let treq = entry.treq | treq::SECURE_REQUIRED;
            DiscoveryEntry { tsas: tsas::TLS_1_3, treq, ..entry }
        }
    }
}

fn listen(addr: SocketAddr) -> Result<FreeListener, Error> {
    TcpListener::bind_free(addr).map_err(|source| Error::Listen { addr: addr.into(), source })
}

/// Passes memory on to a transport that wants to know it.
struct Registers(Arc<dyn Transport>);

impl Registrar for Registers {
    fn register(&self, memory: NonNull<[u8]>) -> Option<Registration> {
        self.0.register(memory)
    }
}

fn registrars(config: &Config) -> Vec<Arc<dyn Registrar>> {
    let all = config.transports.iter().map(|at| Arc::new(Registers(Arc::clone(&at.transport))) as _);
    all.collect()
}

/// Listens on another transport than TCP, at the first thread.
fn listen_own(
    at: &TransportListener,
    shared: Arc<Shared>,
    threads: Vec<Handle>,
    turn: Arc<AtomicUsize>,
) -> Result<Address, Error> {
    let TransportListener { transport, address } = at.clone();
    let (tell, told) = std::sync::mpsc::channel();
    threads[0].clone().spawn(move || async move {
        match transport.listen(&address) {
            Ok(listener) => {
                let _ = tell.send(Ok(listener.address()));
                accept(shared, (Incoming::Own(listener), None), threads, turn).await;
            }
            Err(e) => _ = tell.send(Err(e)),
        }
    });
    let failed = |source| Error::Listen { addr: Address::named(at.address.as_str()), source };
    told.recv().unwrap_or_else(|_| Err(io::Error::other("the thread has ended"))).map_err(failed)
}

impl Target {
    /// Starts threads and listeners.
    ///
    /// # Errors
    /// A setting makes no sense, an address cannot be listened on, or the
    /// engine that is asked for is not to be had.
    pub fn start(config: Config) -> Result<Target, Error> {
        Target::start_on(config, Vec::new())
    }

    /// As [`start`](Self::start), on listening sockets of another program, if there are some: in place of
    /// [`Config::listen`]. At its end the target accepts nothing more on them, so that connections wait for
    /// the program that takes them next.
    ///
    /// # Errors
    /// As `start`; or the address of a socket is not to be had.
    pub fn start_on(mut config: Config, given: Vec<std::net::TcpListener>) -> Result<Target, Error> {
        let held: Vec<FreeListener> = given.into_iter().map(FreeListener::from).collect();
        if !held.is_empty() {
            config.listen = local_addresses(&held).map_err(Error::Socket)?;
        }
        config.check().map_err(Error::Config)?;
        let mut listeners = match held.is_empty() {
            true => config.listen.iter().copied().map(listen).collect::<Result<Vec<_>, _>>()?,
            false => Vec::new(),
        };
        let addresses = match held.is_empty() {
            true => local_addresses(&listeners).map_err(Error::Socket)?,
            false => config.listen.clone(),
        };
        let mut discovery = None;
        if let Some(addr) = config.discovery.filter(|addr| !config.listen.contains(addr)) {
            match listen(addr) {
                Ok(listener) => {
                    discovery = listener.local_addr().ok();
                    listeners.push(listener);
                }
                Err(e) => tracing::warn!("{e}; discovery is served on the I/O port"),
            }
        }
        let long = Thread::background("target-long", config.engine.clone()).map_err(Error::Thread)?;
        let access = Access::new(config.hosts.clone());
        let hosts = access.of(DISCOVERY_NQN);
        let shared = Arc::new(Shared {
            long: long.handle(),
            memory: Memory::new(config.memory, &registrars(&config)),
            discovery: Arc::new(Subsystem::new(DISCOVERY_NQN.into(), String::new(), &config, hosts)),
            registry: Registry::default(),
            watchers: Mutex::default(),
            access,
            subsystems: RwLock::default(),
            generation: AtomicU64::new(1),
            listening: Mutex::new(addresses.clone()),
            connections: Connections::new(config.max_connections.min(crate::accept::raise_descriptors())),
            arrivals: Paces::new(pace::CONNECTIONS),
            admin: Paces::new(pace::ADMIN),
            authentications: Paces::new(pace::AUTHENTICATIONS),
            generated: Arc::new(GeneratedPsks::new(config.patience.enable)),
            refused: Paces::new(pace::REFUSED),
            quiet: Kinds::default(),
            incidents: Incidents::default(),
            hosts: Hosts::default(),
            rates: RateLimits::new(config.host_rates.clone()),
            accepting: AtomicUsize::new(0),
            config,
            stopping: AtomicBool::new(false),
        });
        let name = |i| format!("target-{i}");
        let threads = (0..shared.config.threads)
            .map(|i| Thread::start(&name(i), shared.config.engine.clone()))
            .collect::<io::Result<Vec<_>>>()
            .map_err(Error::Thread)?;
        let handles: Vec<_> = threads.iter().map(Thread::handle).collect();
        let turn = Arc::new(AtomicUsize::new(0));
        let named = handles.iter().cloned().enumerate().map(|(i, handle)| (name(i), handle));
        let count = held.len() + listeners.len() + shared.config.transports.len();
        let observer = Observer::new(&shared, count, named.collect());
        let mut accepting = Vec::new();
        let own = listeners.into_iter().map(|listener| (listener, None));
        let held = held.into_iter().map(|listener| {
            let (until_stop, stopped) = oneshot::channel();
            accepting.push(until_stop);
            (listener, Some(stopped))
        });
        for (listener, stopped) in own.chain(held) {
            let (shared, all, turn) = (Arc::clone(&shared), handles.clone(), Arc::clone(&turn));
            handles[0].spawn(move || async move {
                match TcpListener::from_std(listener) {
                    Ok(listener) => accept(shared, (Incoming::Tcp(listener), stopped), all, turn).await,
                    Err(e) => tracing::error!("listener: {e}"),
                }
            });
        }
        let mut own_addresses = Vec::new();
        for at in &shared.config.transports {
            let (shared, all, turn) = (Arc::clone(&shared), handles.clone(), Arc::clone(&turn));
            own_addresses.push(listen_own(at, shared, all, turn)?);
        }
        let watched = Arc::downgrade(&shared);
        handles[0].spawn(move || crate::sizes::watch(watched));
        let writer = Writer::start().map_err(Error::Thread)?;
        Ok(Target {
            shared,
            threads,
            _long: long,
            addresses,
            own_addresses,
            discovery,
            accepting,
            writer,
            observer,
        })
    }

    /// The addresses of the I/O listeners.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The addresses of the listeners of other transports, in the order of [`Config::transports`].
    pub fn transport_addresses(&self) -> &[Address] {
        &self.own_addresses
    }

    /// The address of the discovery listener, if there is one.
    pub fn discovery_address(&self) -> Option<SocketAddr> {
        self.discovery
    }

    /// A notice for each change of what [`registration`](Self::registration) gives.
    pub fn watch_registration(&self) -> UnboundedReceiver<()> {
        let (notices, changes) = unbounded();
        lock(&self.shared.watchers).push(notices);
        changes
    }

    /// Gives what this target serves while it runs, for registration with a central discovery controller: each
    /// subsystem at each address. An entry of a listener on every address has none: that controller knows by
    /// which it is reached.
    pub fn registration(&self) -> impl Fn() -> Vec<DiscoveryEntry> + Send + 'static {
        let shared = Arc::downgrade(&self.shared);
        move || shared.upgrade().map_or_else(Vec::new, |shared| shared.registration())
    }

    /// Serves a space as the subsystem `nqn`; `name` is what people call it. `admins`, NQNs of hosts,
    /// make and remove its namespaces, and each namespace is seen by the hosts that it is attached to
    /// and no other. Reservations that hosts make persistent are in `stores`.
    ///
    /// # Errors
    /// The NQN is not one, or it has namespaces already, or a namespace's reservations cannot be read
    /// (see [`export_persistent`](Self::export_persistent)).
    pub fn add_space(
        &self,
        nqn: &str,
        name: &str,
        space: Arc<dyn Space>,
        admins: BTreeSet<String>,
        stores: ReservationStores,
    ) -> Result<(), Error> {
        Nqn::new(nqn).map_err(|e| Error::Export(format!("NQN '{nqn}': {e}")))?;
        let _one = self.shared.access.order();
        let managed = Managed::new(name, space, admins, stores, self.writer.clone());
        let (config, hosts) = (&self.shared.config, self.shared.access.of(nqn));
        let subsystem =
            Arc::new(Subsystem::with_space(nqn.to_owned(), name.to_owned(), config, hosts, Some(managed)));
        subsystem.restore().map_err(|e| Error::Export(format!("space {name}: {e}")))?;
        {
            let mut all = self.shared.subsystems.write().unwrap_or_else(PoisonError::into_inner);
            if all.contains_key(nqn) {
                return Err(Error::Export(format!("space {name}: {nqn} is served already")));
            }
            all.insert(nqn.to_owned(), subsystem);
        }
        self.shared.discovery_changed();
        Ok(())
    }

    /// Reads the size of every device again, and notifies hosts of changes. Returns those:
    /// subsystem, namespace, and the device as it is now.
    pub fn refresh(&self) -> Vec<(String, u32, longhaul_block::DeviceInfo)> {
        for subsystem in self.shared.exporting() {
            for namespace in subsystem.namespaces().clone().into_values() {
                if let Err(e) = namespace.device.refresh() {
                    tracing::warn!("{}: {e}", namespace.device.info().name);
                }
            }
        }
        self.shared.announce_sizes()
    }

    /// Connections at this moment.
    pub fn connections(&self) -> usize {
        self.shared.connections.len()
    }

    /// Bytes of I/O buffers handed out at this moment.
    pub fn memory_used(&self) -> usize {
        self.shared.memory.used()
    }

    /// Takes no new connections, lets commands under way end, closes, and
    /// makes everything durable. Whether all of it is.
    pub fn stop(mut self) -> bool {
        if !self.accepting.is_empty() {
            self.accepting.clear();
            // The tasks have met their end when this one is done; what they have accepted is drained.
            let _ = self.threads[0].handle().spawn(|| async {}).wait();
        }
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.connections.drain();
        let shared = Arc::clone(&self.shared);
        let flushed = self.threads[0].handle().spawn(move || async move {
            let end = longhaul_engine::now() + STOP;
            while shared.connections.len() > 0 && longhaul_engine::now() < end {
                longhaul_engine::sleep(STOP_LOOK).await;
            }
            let mut clean = true;
            for subsystem in shared.all() {
                clean &= flush_all(&subsystem, None).await.is_empty();
            }
            clean
        });
        flushed.wait().unwrap_or(false)
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target({:?})", self.addresses)
    }
}

fn local_addresses(listeners: &[FreeListener]) -> io::Result<Vec<SocketAddr>> {
    listeners.iter().map(FreeListener::local_addr).collect()
}

/// Whether an address is one that only this machine reaches.
pub fn is_loopback(addr: &SocketAddr) -> bool {
    match addr.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback(),
    }
}
