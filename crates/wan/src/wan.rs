//! An emulated path: one client, and a server behind each of its links.

use crate::Error;
use crate::conditions::{Change, Conditions, DirectionConditions, LinkDirection};
use crate::guard::Guard;
use crate::mover::{Mover, Route};
use crate::netem;
use crate::netns::Namespace;
use crate::setup::{self, LinkEnd};
use crate::statistics::{DirectionStatistics, LinkStatistics, Statistics};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The most links of one path: their numbers are part of addresses.
pub const MAX_LINKS: usize = 64;

/// Longest name of a path, in bytes: names of devices and sockets are derived from it.
pub const MAX_NAME: usize = 40;

/// How packets are carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// By this process, between TUN devices: all of [`DirectionConditions`], on any kernel.
    #[default]
    Tun,
    /// By the kernel's netem, between virtual Ethernet devices.
    Netem,
    /// By netem if the kernel has it and it supports the conditions; else by TUN.
    Auto,
}

impl std::str::FromStr for Via {
    type Err = String;

    fn from_str(text: &str) -> Result<Via, String> {
        match text {
            "tun" => Ok(Via::Tun),
            "netem" => Ok(Via::Netem),
            "auto" => Ok(Via::Auto),
            _ => Err(format!("'{text}' is neither auto nor tun nor netem")),
        }
    }
}

impl std::fmt::Display for Via {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Via::Tun => "tun",
            Via::Netem => "netem",
            Via::Auto => "auto",
        })
    }
}

/// The reason why this machine, or this user, cannot have emulated links with TUN
/// devices, for which a test is skipped; `None` if it probably can. Creates nothing.
pub fn unavailable() -> Option<String> {
    setup::without_namespaces().or_else(setup::without_tun)
}

/// Specification of an emulated path.
#[derive(Clone, Debug)]
pub struct WanPlan {
    /// Prefix of the names of its namespaces: `NAME-client` and `NAME-server`, or
    /// `NAME-server1` and so on.
    pub name: String,
    /// Initial conditions of each link.
    pub conditions: Conditions,
    /// Servers, each behind a link of its own; none stands for a plain link.
    pub star: Option<usize>,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// Upper limit of TCP buffers in its namespaces, in bytes; `None` keeps the
    /// settings of the machine.
    pub tcp_buffers: Option<u64>,
    /// The most bytes of packets in flight, all links together.
    pub memory: usize,
    /// Seed of loss, jitter, reordering and duplicates; `None` for a random one.
    pub seed: Option<u64>,
    /// How packets are carried.
    pub via: Via,
}

impl WanPlan {
    /// A path of one link with these conditions.
    pub fn new(name: impl Into<String>, conditions: Conditions) -> WanPlan {
        WanPlan {
            name: name.into(),
            conditions,
            star: None,
            mtu: 9000,
            tcp_buffers: Some(256 << 20),
            memory: 1 << 30,
            seed: None,
            via: Via::Tun,
        }
    }

    /// A name that no other process or test uses.
    pub fn unique_name(prefix: &str) -> String {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        format!("{prefix}-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed))
    }

    fn check(&self) -> Result<(), Error> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if self.name.is_empty() || self.name.len() > MAX_NAME || !self.name.chars().all(good) {
            return Err(Error::Invalid(format!(
                "'{}' is no name: up to {MAX_NAME} letters, digits, '-' and '_' make one",
                self.name
            )));
        }
        if !(1..=MAX_LINKS).contains(&self.star.unwrap_or(1)) {
            return Err(Error::Invalid(format!("a star has 1 to {MAX_LINKS} servers")));
        }
        if !(1280..=65_000).contains(&self.mtu) {
            return Err(Error::Invalid("the MTU is between 1280 and 65000 bytes".into()));
        }
        if self.tcp_buffers.is_some_and(|max| !(131_072..=i32::MAX as u64).contains(&max)) {
            return Err(Error::Invalid("TCP's buffers are between 128 KiB and 2 GiB".into()));
        }
        self.conditions.check()
    }

    fn server_name(&self, index: usize) -> String {
        match self.star {
            None => format!("{}-server", self.name),
            Some(_) => format!("{}-server{index}", self.name),
        }
    }
}

/// Running emulated links. Dropping it removes them; a guard process removes them if
/// this process is killed.
///
/// Links are numbered from 1, as their addresses are.
#[derive(Debug)]
pub struct Wan {
    name: String,
    // Dropped in this order: first the packets stop, then the namespaces go.
    carrier: Carrier,
    links: Vec<LinkState>,
    client: Namespace,
    guard: Mutex<Guard>,
}

#[derive(Debug)]
struct LinkState {
    server: Namespace,
    conditions: Mutex<Conditions>,
    /// Counters of the kernel when the statistics began: drops of the devices, or all
    /// counters with netem. For both directions.
    before: Mutex<[DirectionStatistics; 2]>,
}

#[derive(Debug)]
enum Carrier {
    Tun(Mover),
    /// Time at which the statistics began.
    Netem(Vec<netem::NetemLink>, Mutex<Instant>),
}

/// Creates the namespaces and devices of a path.
struct Builder {
    plan: WanPlan,
    guard: Guard,
}

impl Builder {
    fn namespace(&mut self, name: &str) -> Result<Namespace, Error> {
        self.guard.netns(name)?;
        let namespace = Namespace::open(name).map_err(Error::system(format!("namespace {name}")))?;
        setup::prepare(&namespace, self.plan.tcp_buffers)?;
        Ok(namespace)
    }

    /// Chooses how packets are carried; a namespace to try netem in exists by now.
    fn choose(&self, client: &Namespace) -> Result<Via, Error> {
        let unsupported = netem::unsupported(&self.plan.conditions);
        match self.plan.via {
            Via::Tun => Ok(Via::Tun),
            Via::Auto if unsupported.is_none() && netem::works(client) => Ok(Via::Netem),
            Via::Auto => Ok(Via::Tun),
            Via::Netem => match unsupported {
                Some(what) => Err(without(what)),
                None if netem::works(client) => Ok(Via::Netem),
                None => Err(Error::Unavailable("this kernel has no netem (sch_netem)".into())),
            },
        }
    }

    fn netem(&mut self, client: &Namespace, servers: &[Namespace]) -> Result<Carrier, Error> {
        let middle = self.namespace(&format!("{}-net", self.plan.name))?;
        let (mtu, conditions) = (self.plan.mtu, &self.plan.conditions);
        let link = |(i, server)| netem::NetemLink::make(&middle, [client, server], i, mtu, conditions);
        let links = (1..).zip(servers).map(link).collect::<Result<_, _>>()?;
        Ok(Carrier::Netem(links, Mutex::new(Instant::now())))
    }

    fn tun(&self, client: &Namespace, servers: &[Namespace]) -> Result<Carrier, Error> {
        if let Some(why) = setup::without_tun() {
            return Err(Error::Unavailable(why));
        }
        let mut routes = Vec::new();
        for (index, server) in (1..).zip(servers) {
            let near = Arc::new(setup::attach(client, index, LinkEnd::Client, self.plan.mtu)?);
            let far = Arc::new(setup::attach(server, index, LinkEnd::Server, self.plan.mtu)?);
            let Conditions { there, back } = self.plan.conditions.clone();
            routes.push(Route { from: Arc::clone(&near), to: Arc::clone(&far), way: there });
            routes.push(Route { from: far, to: near, way: back });
        }
        let seed = self.plan.seed.unwrap_or_else(clock_seed);
        Mover::start(routes, self.plan.memory, seed).map(Carrier::Tun)
    }
}

impl Wan {
    /// Creates namespaces and links.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where links cannot be emulated (a test skips then),
    /// [`Error::Exists`] if the name is in use, or the step that failed. Nothing is
    /// left behind.
    pub fn start(plan: WanPlan) -> Result<Wan, Error> {
        plan.check()?;
        if let Some(why) = setup::without_namespaces() {
            return Err(Error::Unavailable(why));
        }
        let guard = Guard::start(&plan.name)?;
        let mut builder = Builder { plan, guard };
        let client = builder.namespace(&format!("{}-client", builder.plan.name))?;
        let count = builder.plan.star.unwrap_or(1);
        let server = |i| builder.namespace(&builder.plan.server_name(i));
        let servers = (1..=count).map(server).collect::<Result<Vec<_>, _>>()?;
        let carrier = match builder.choose(&client)? {
            Via::Netem => builder.netem(&client, &servers)?,
            _ => builder.tun(&client, &servers)?,
        };
        let Builder { plan, guard } = builder;
        let state = |server| {
            let conditions = Mutex::new(plan.conditions.clone());
            LinkState { server, conditions, before: Mutex::default() }
        };
        let links = servers.into_iter().map(state).collect();
        Ok(Wan { name: plan.name, carrier, links, client, guard: Mutex::new(guard) })
    }

    /// How packets are carried: by TUN or netem.
    pub fn via(&self) -> Via {
        match self.carrier {
            Carrier::Tun(_) => Via::Tun,
            Carrier::Netem(..) => Via::Netem,
        }
    }

    /// Name of the path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of links, each with its server.
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// The namespace of the client.
    pub fn client(&self) -> &Namespace {
        &self.client
    }

    /// The namespace of the server behind a link.
    ///
    /// # Panics
    /// No link has this number.
    pub fn server(&self, link: usize) -> &Namespace {
        &self.links[link - 1].server
    }

    /// The address of the server behind a link.
    pub fn server_address(&self, link: usize) -> Ipv4Addr {
        setup::address(link, LinkEnd::Server)
    }

    /// The address that the client has on a link.
    pub fn client_address(&self, link: usize) -> Ipv4Addr {
        setup::address(link, LinkEnd::Client)
    }

    /// The IPv6 address of the server behind a link, where the kernel has IPv6.
    pub fn server_address6(&self, link: usize) -> Ipv6Addr {
        setup::address6(link, LinkEnd::Server)
    }

    fn link(&self, link: usize) -> Result<&LinkState, Error> {
        link.checked_sub(1).and_then(|i| self.links.get(i)).ok_or(Error::NoLink(link))
    }

    /// Present conditions of a link.
    ///
    /// # Errors
    /// No link has this number.
    pub fn conditions(&self, link: usize) -> Result<Conditions, Error> {
        Ok(lock(&self.link(link)?.conditions).clone())
    }

    /// Changes a link; the change is in effect when this returns.
    ///
    /// # Errors
    /// No link has this number, or the conditions are invalid; nothing changes then.
    pub fn set(&self, link: usize, change: &Change) -> Result<(), Error> {
        let state = self.link(link)?;
        // The lock is held meanwhile: changes happen in one order.
        let mut conditions = lock(&state.conditions);
        let next = conditions.with(change)?;
        if matches!(self.carrier, Carrier::Netem(..)) {
            netem::unsupported(&next).map_or(Ok(()), |what| Err(without(what)))?;
        }
        if change.direction != Some(LinkDirection::Back) {
            self.carry(link, LinkDirection::There, &conditions.there, &next.there)?;
            conditions.there = next.there;
        }
        if change.direction != Some(LinkDirection::There) {
            self.carry(link, LinkDirection::Back, &conditions.back, &next.back)?;
            conditions.back = next.back;
        }
        Ok(())
    }

    fn carry(
        &self,
        link: usize,
        direction: LinkDirection,
        before: &DirectionConditions,
        way: &DirectionConditions,
    ) -> Result<(), Error> {
        let there = direction == LinkDirection::There;
        match &self.carrier {
            Carrier::Tun(mover) => mover.set(2 * (link - 1) + usize::from(!there), way.clone()),
            Carrier::Netem(links, _) => links[link - 1].set(there, Some(before), way),
        }
    }

    /// Changes all links.
    ///
    /// # Errors
    /// The conditions are invalid for one of them; those before it have changed.
    pub fn set_all(&self, change: &Change) -> Result<(), Error> {
        (1..=self.links.len()).try_for_each(|link| self.set(link, change))
    }

    /// Counters since the start, or since the last reset.
    ///
    /// # Errors
    /// The emulator has stopped.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        self.collect(false)
    }

    /// As [`statistics`](Self::statistics), and sets the counters to zero.
    ///
    /// # Errors
    /// The emulator has stopped.
    pub fn take_statistics(&self) -> Result<Statistics, Error> {
        self.collect(true)
    }

    fn collect(&self, reset: bool) -> Result<Statistics, Error> {
        match &self.carrier {
            Carrier::Tun(mover) => self.collect_tun(mover, reset),
            Carrier::Netem(links, since) => self.collect_netem(links, since, reset),
        }
    }

    fn collect_tun(&self, mover: &Mover, reset: bool) -> Result<Statistics, Error> {
        let report = mover.report(reset)?;
        let mut links = Vec::new();
        for (i, flows) in report.flows.chunks_exact(2).enumerate() {
            let state = &self.links[i];
            // The mover counts from its reset, the devices from their making.
            let drops = [&self.client, &state.server].map(|ns| setup::device_drops(ns, i + 1));
            let devices =
                drops.map(|n| DirectionStatistics { dropped_device: n, ..DirectionStatistics::default() });
            let [there, back] = state.since(devices, reset).map(|way| way.dropped_device);
            links.push(LinkStatistics {
                there: DirectionStatistics { dropped_device: there, ..flows[0] },
                back: DirectionStatistics { dropped_device: back, ..flows[1] },
            });
        }
        let (elapsed, cpu, memory, real_time) = (report.elapsed, report.cpu, report.memory, report.real_time);
        Ok(Statistics { links, elapsed, cpu, memory, real_time })
    }

    fn collect_netem(
        &self,
        links: &[netem::NetemLink],
        since: &Mutex<Instant>,
        reset: bool,
    ) -> Result<Statistics, Error> {
        let mut since = lock(since);
        let mut statistics = Statistics { elapsed: since.elapsed(), ..Statistics::default() };
        for (link, state) in links.iter().zip(&self.links) {
            let [there, back] = state.since([link.statistics(true)?, link.statistics(false)?], reset);
            statistics.links.push(LinkStatistics { there, back });
        }
        if reset {
            *since = Instant::now();
        }
        Ok(statistics)
    }

    /// Registers a file to be removed with the links, also if this process is killed.
    ///
    /// # Errors
    /// The guard has ended.
    pub fn remove_at_end(&self, path: &Path) -> Result<(), Error> {
        lock(&self.guard).file(&path.to_string_lossy())
    }
}

impl LinkState {
    /// Counters since the last reset, from those since the start.
    fn since(&self, now: [DirectionStatistics; 2], reset: bool) -> [DirectionStatistics; 2] {
        let mut before = lock(&self.before);
        let difference = [now[0].since(&before[0]), now[1].since(&before[1])];
        if reset {
            *before = now;
        }
        difference
    }
}

fn without(what: &str) -> Error {
    Error::Invalid(format!("the kernel's netem does not have {what}: use TUN (--via tun)"))
}

/// Locks a mutex, also after a panic: no change under it is done in two steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn clock_seed() -> u64 {
    longhaul_engine::wall_time().as_nanos() as u64
}
