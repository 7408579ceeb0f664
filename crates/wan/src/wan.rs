//! An emulated path: one client, and a server behind each of its links.

use crate::Error;
use crate::conditions::{Change, Conditions, Direction};
use crate::guard::Guard;
use crate::mover::{Mover, Route};
use crate::netns::Namespace;
use crate::setup::{self, End};
use crate::statistics::{LinkStatistics, Statistics};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Links of one path at most: their numbers are part of addresses.
pub const MAX_LINKS: usize = 64;

/// Longest name of a path, so that what is made of it fits everywhere.
pub const MAX_NAME: usize = 40;

/// What to make.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Begins the names of its namespaces: `NAME-client` and `NAME-server`, or
    /// `NAME-server1` and so on.
    pub name: String,
    /// What each link is like in the beginning.
    pub conditions: Conditions,
    /// Servers, each behind a link of its own; none stands for a plain link.
    pub star: Option<usize>,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// How far TCP's buffers may grow in its namespaces, in bytes; `None`
    /// leaves the settings of the machine.
    pub tcp_buffers: Option<u64>,
    /// Bytes of packets under way at most, all links together.
    pub memory: usize,
    /// Decides loss, jitter, reordering and duplicates; `None` for another one
    /// each time.
    pub seed: Option<u64>,
}

impl Plan {
    /// One link of these conditions.
    pub fn new(name: impl Into<String>, conditions: Conditions) -> Plan {
        Plan {
            name: name.into(),
            conditions,
            star: None,
            mtu: 9000,
            tcp_buffers: Some(256 << 20),
            memory: 1 << 30,
            seed: None,
        }
    }

    /// A name that no other process or test has.
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

/// Emulated links at work. Dropping it takes everything down; a guard process
/// does so if this one is killed.
///
/// Links are numbered from 1, as their addresses are.
#[derive(Debug)]
pub struct Wan {
    name: String,
    // Dropped in this order: first the packets stop, then the namespaces go.
    mover: Mover,
    links: Vec<LinkState>,
    client: Namespace,
    guard: Mutex<Guard>,
}

#[derive(Debug)]
struct LinkState {
    server: Namespace,
    conditions: Mutex<Conditions>,
    /// What devices had dropped when the statistics began, there and back.
    drops: Mutex<[u64; 2]>,
}

impl Wan {
    /// Makes namespaces and links.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there can be none (a test skips then),
    /// [`Error::Exists`] if a name is taken, or what else failed. Nothing is
    /// left behind.
    pub fn start(plan: Plan) -> Result<Wan, Error> {
        plan.check()?;
        if let Some(why) = setup::unavailable() {
            return Err(Error::Unavailable(why));
        }
        let mut guard = Guard::start(&plan.name)?;
        let mut make = |name: String| {
            guard.netns(&name)?;
            let opened = Namespace::open(&name).map_err(Error::system(format!("namespace {name}")));
            opened.and_then(|ns| setup::prepare(&ns, plan.tcp_buffers).map(|()| ns))
        };
        let client = make(format!("{}-client", plan.name))?;
        let (mut links, mut routes) = (Vec::new(), Vec::new());
        for index in 1..=plan.star.unwrap_or(1) {
            let server = make(plan.server_name(index))?;
            let near = Arc::new(setup::attach(&client, index, End::Client, plan.mtu)?);
            let far = Arc::new(setup::attach(&server, index, End::Server, plan.mtu)?);
            let Conditions { there, back } = plan.conditions.clone();
            routes.push(Route { from: Arc::clone(&near), to: Arc::clone(&far), way: there });
            routes.push(Route { from: far, to: near, way: back });
            let conditions = Mutex::new(plan.conditions.clone());
            links.push(LinkState { server, conditions, drops: Mutex::default() });
        }
        let seed = plan.seed.unwrap_or_else(clock_seed);
        let mover = Mover::start(routes, plan.memory, seed)?;
        Ok(Wan { name: plan.name, mover, links, client, guard: Mutex::new(guard) })
    }

    /// The name of the plan.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Links, which is servers.
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
    /// There is no such link.
    pub fn server(&self, link: usize) -> &Namespace {
        &self.links[link - 1].server
    }

    /// The address of the server behind a link.
    pub fn server_address(&self, link: usize) -> Ipv4Addr {
        setup::address(link, End::Server)
    }

    /// The address that the client has on a link.
    pub fn client_address(&self, link: usize) -> Ipv4Addr {
        setup::address(link, End::Client)
    }

    fn link(&self, link: usize) -> Result<&LinkState, Error> {
        link.checked_sub(1).and_then(|i| self.links.get(i)).ok_or(Error::NoLink(link))
    }

    /// What a link is like now.
    ///
    /// # Errors
    /// There is no such link.
    pub fn conditions(&self, link: usize) -> Result<Conditions, Error> {
        Ok(lock(&self.link(link)?.conditions).clone())
    }

    /// Changes a link. The change holds when this returns.
    ///
    /// # Errors
    /// There is no such link, or it would make no sense; nothing changes then.
    pub fn set(&self, link: usize, change: &Change) -> Result<(), Error> {
        let state = self.link(link)?;
        // Held meanwhile: changes happen in one order.
        let mut conditions = lock(&state.conditions);
        let next = conditions.with(change)?;
        let flow = 2 * (link - 1);
        if change.direction != Some(Direction::Back) {
            self.mover.set(flow, next.there.clone())?;
        }
        if change.direction != Some(Direction::There) {
            self.mover.set(flow + 1, next.back.clone())?;
        }
        *conditions = next;
        Ok(())
    }

    /// Changes all links.
    ///
    /// # Errors
    /// It would make no sense for one of them; those before it have changed.
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

    /// The same, and counts from nothing again.
    ///
    /// # Errors
    /// As there.
    pub fn take_statistics(&self) -> Result<Statistics, Error> {
        self.collect(true)
    }

    fn collect(&self, reset: bool) -> Result<Statistics, Error> {
        let report = self.mover.report(reset)?;
        let mut links = Vec::new();
        for (i, flows) in report.flows.chunks_exact(2).enumerate() {
            let mut link = LinkStatistics { there: flows[0], back: flows[1] };
            let state = &self.links[i];
            let now = [&self.client, &state.server].map(|ns| setup::device_drops(ns, i + 1));
            let mut before = lock(&state.drops);
            link.there.dropped_device = now[0].saturating_sub(before[0]);
            link.back.dropped_device = now[1].saturating_sub(before[1]);
            if reset {
                *before = now;
            }
            links.push(link);
        }
        let (elapsed, cpu, memory, real_time) = (report.elapsed, report.cpu, report.memory, report.real_time);
        Ok(Statistics { links, elapsed, cpu, memory, real_time })
    }

    /// Has a file removed with the rest, also if this process is killed.
    ///
    /// # Errors
    /// The guard is gone.
    pub fn remove_at_end(&self, path: &Path) -> Result<(), Error> {
        lock(&self.guard).file(&path.to_string_lossy())
    }
}

/// A lock whose holder panicked guards nothing that could be half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn clock_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64)
}
