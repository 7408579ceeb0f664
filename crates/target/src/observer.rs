//! What a program that watches a target can see of it.
//!
//! Invariants:
//! - looking waits for no thread of the target; a connection is asked again only when it has answered, so
//!   that questions do not pile up;
//! - the number of hosts that are counted apart is bounded.

use crate::counts::{AllCounters, CommandCounts};
use crate::subsystem::{Link, Message, Subsystem, lock};
use crate::target::{Shared, Target};
use futures_channel::mpsc;
use longhaul_conn::Channel;
use longhaul_engine::Handle;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use uuid::Uuid;

/// Hosts that are counted apart: the first ones that connect, since a later one may have made its name up.
/// More are counted as one.
pub const HOSTS_MAX: usize = 128;

/// What happens seldom, at any thread.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    pub(crate) accepted: AtomicU64,
    pub(crate) too_often: AtomicU64,
    pub(crate) too_many: AtomicU64,
    pub(crate) connect_refused: AtomicU64,
    pub(crate) authentication: AtomicU64,
    pub(crate) header_digest: AtomicU64,
    pub(crate) data_digest: AtomicU64,
    pub(crate) protocol: AtomicU64,
    pub(crate) late: AtomicU64,
}

/// CommandCounts one more.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What happened at a target since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IncidentCounts {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that were refused because their address connects too often.
    pub too_often: u64,
    /// Connections that were refused because there are too many.
    pub too_many: u64,
    /// Connect commands that were refused.
    pub connect_refused: u64,
    /// Authentications that failed, hosts without a key included.
    pub authentication: u64,
    /// PDUs whose header did not match its digest.
    pub header_digest: u64,
    /// Commands whose data did not match its digest.
    pub data_digest: u64,
    /// Connections that ended because their peer broke the protocol; wrong header digests are not in it.
    pub protocol: u64,
    /// Connections that were ended because their host was silent or took too long.
    pub late: u64,
}

/// What the kernel knows of one connection, as of the last time that it was asked.
#[derive(Debug)]
pub(crate) struct Wire {
    retransmissions: AtomicU64,
    round_trip_ns: AtomicU64,
    is_asked: AtomicBool,
    is_over: AtomicBool,
    sender: mpsc::UnboundedSender<Message>,
}

impl Wire {
    /// Asks the kernel, on the thread of the connection.
    pub(crate) fn measure(&self, channel: &Channel) {
        if let Ok(info) = channel.info() {
            self.retransmissions.store(info.retransmissions.into(), Ordering::Relaxed);
            let round_trip = u64::try_from(info.rtt.as_nanos()).unwrap_or(u64::MAX);
            self.round_trip_ns.store(round_trip, Ordering::Relaxed);
        }
        self.is_asked.store(false, Ordering::Release);
    }

    /// The connection has ended.
    pub(crate) fn end(&self, channel: &Channel) {
        self.measure(channel);
        self.is_over.store(true, Ordering::Release);
    }

    /// Has its thread ask the kernel, for the next look.
    fn ask(&self) {
        if !self.is_asked.swap(true, Ordering::AcqRel) {
            let _ = self.sender.unbounded_send(Message::Measure);
        }
    }
}

/// What is counted of one host.
#[derive(Debug, Default)]
pub(crate) struct Host {
    pub(crate) commands: AllCounters,
    wires: Mutex<Wires>,
}

#[derive(Debug, Default)]
struct Wires {
    past_retransmissions: u64,
    open: Vec<Arc<Wire>>,
}

impl Wires {
    fn fold(&mut self) {
        let past = &mut self.past_retransmissions;
        self.open.retain(|wire| {
            let is_over = wire.is_over.load(Ordering::Acquire);
            if is_over {
                *past += wire.retransmissions.load(Ordering::Relaxed);
            }
            !is_over
        });
    }
}

impl Host {
    /// A connection belongs to it.
    pub(crate) fn connect(&self, sender: mpsc::UnboundedSender<Message>) -> Arc<Wire> {
        let wire = Arc::new(Wire {
            retransmissions: AtomicU64::new(0),
            round_trip_ns: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            sender,
        });
        let mut wires = lock(&self.wires);
        wires.fold();
        wires.open.push(Arc::clone(&wire));
        wire
    }

    fn statistics(&self, hostnqn: Option<&str>) -> HostStatistics {
        let mut wires = lock(&self.wires);
        wires.fold();
        wires.open.iter().for_each(|wire| wire.ask());
        let retransmissions = |wire: &Arc<Wire>| wire.retransmissions.load(Ordering::Relaxed);
        let round_trips = wires.open.iter().map(|wire| wire.round_trip_ns.load(Ordering::Relaxed));
        HostStatistics {
            hostnqn: hostnqn.map(str::to_owned),
            counts: self.commands.sum(),
            connections: wires.open.len(),
            retransmissions: wires.past_retransmissions + wires.open.iter().map(retransmissions).sum::<u64>(),
            round_trip: round_trips.filter(|time| *time > 0).min().map(Duration::from_nanos),
        }
    }
}

/// The hosts that have connected.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    named: Mutex<BTreeMap<String, Arc<Host>>>,
    others: Arc<Host>,
}

impl Hosts {
    pub(crate) fn of(&self, hostnqn: &str) -> Arc<Host> {
        let mut named = lock(&self.named);
        if let Some(host) = named.get(hostnqn) {
            return Arc::clone(host);
        }
        if named.len() >= HOSTS_MAX {
            return Arc::clone(&self.others);
        }
        Arc::clone(named.entry(hostnqn.to_owned()).or_default())
    }

    fn statistics(&self) -> Vec<HostStatistics> {
        let named = lock(&self.named).clone();
        let mut all: Vec<_> = named.iter().map(|(hostnqn, host)| host.statistics(Some(hostnqn))).collect();
        if named.len() >= HOSTS_MAX {
            all.push(self.others.statistics(None));
        }
        all
    }
}

/// A namespace at a moment.
#[derive(Clone, Debug)]
pub struct NamespaceStatistics {
    /// NQN of its subsystem.
    pub nqn: String,
    /// What people call the subsystem.
    pub name: String,
    /// Namespace identifier.
    pub nsid: u32,
    /// Its UUID.
    pub uuid: Uuid,
    /// Bytes.
    pub size: u64,
    /// This target serves it, and not another one.
    pub is_accessible: bool,
    /// Commands since it is served.
    pub counts: CommandCounts,
}

/// A host at a moment.
#[derive(Clone, Debug)]
pub struct HostStatistics {
    /// Its NQN; `None` for all hosts after the first [`HOSTS_MAX`] together.
    pub hostnqn: Option<String>,
    /// Its commands to namespaces since the start of the target.
    pub counts: CommandCounts,
    /// Its connections.
    pub connections: usize,
    /// Segments that were retransmitted to it, as of the look before.
    pub retransmissions: u64,
    /// The smoothed round trip to it, the least of its connections; `None` before that was measured.
    pub round_trip: Option<Duration>,
}

/// A controller at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerStatus {
    /// NQN of its subsystem.
    pub nqn: String,
    /// Its identifier.
    pub cntlid: u16,
    /// NQN of its host.
    pub hostnqn: String,
    /// Its host may only read.
    pub reader: bool,
    /// Bytes that the host has read.
    pub bytes_read: u64,
    /// Bytes that the host has written.
    pub bytes_written: u64,
}

/// A target at a moment.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Namespaces, by subsystem and identifier.
    pub namespaces: Vec<NamespaceStatistics>,
    /// Hosts, by NQN.
    pub hosts: Vec<HostStatistics>,
    /// Controllers of each subsystem, by its NQN.
    pub controllers: Vec<(String, usize)>,
    /// Connections.
    pub connections: usize,
    /// Connections that there may be.
    pub connections_max: usize,
    /// Bytes of I/O buffers that are handed out.
    pub memory_used: usize,
    /// The bound of the target's memory, in bytes.
    pub memory_max: usize,
    /// What happened since the start.
    pub incidents: IncidentCounts,
}

/// Watches a target, and does not keep it running.
#[derive(Clone)]
pub struct Observer {
    shared: Weak<Shared>,
    listeners: usize,
    threads: Arc<[(String, Handle)]>,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl Observer {
    pub(crate) fn new(shared: &Arc<Shared>, listeners: usize, threads: Vec<(String, Handle)>) -> Observer {
        Observer { shared: Arc::downgrade(shared), listeners, threads: threads.into() }
    }

    /// The names and engines of the threads that serve connections; none if the target has ended.
    pub fn threads(&self) -> Vec<(String, Handle)> {
        if self.shared.strong_count() == 0 { Vec::new() } else { self.threads.to_vec() }
    }

    /// Whether every listener accepts connections.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn check_listeners(&self) -> Result<(), String> {
        let Some(shared) = self.shared.upgrade() else { return Err("the target has ended".into()) };
        if shared.is_stopping() {
            return Err("the target is stopping".into());
        }
        let accepting = shared.accepting.load(Ordering::Acquire);
        if accepting < self.listeners {
            return Err(format!("{accepting} of {} listeners accept connections", self.listeners));
        }
        Ok(())
    }

    /// The controllers of namespaces; none if the target has ended.
    pub fn controllers(&self) -> Vec<ControllerStatus> {
        let subsystems = self.shared.upgrade().map(|shared| shared.all()).unwrap_or_default();
        let of = |subsystem: &Arc<Subsystem>| {
            let status = |link: &Arc<Link>| ControllerStatus {
                nqn: subsystem.nqn.clone(),
                cntlid: link.cntlid,
                hostnqn: link.hostnqn.clone(),
                reader: link.is_reader(),
                bytes_read: link.health.bytes_read.load(Ordering::Relaxed),
                bytes_written: link.health.bytes_written.load(Ordering::Relaxed),
            };
            subsystem.links().iter().map(status).collect::<Vec<_>>()
        };
        subsystems.iter().flat_map(of).collect()
    }

    /// What the target has counted; `None` if it has ended. Commands are counted if
    /// [`Config::statistics`](crate::Config::statistics) was set.
    pub fn statistics(&self) -> Option<Statistics> {
        let shared = self.shared.upgrade()?;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let i = &shared.incidents;
        let incidents = IncidentCounts {
            accepted: get(&i.accepted),
            too_often: get(&i.too_often),
            too_many: get(&i.too_many),
            connect_refused: get(&i.connect_refused),
            authentication: get(&i.authentication),
            header_digest: get(&i.header_digest),
            data_digest: get(&i.data_digest),
            protocol: get(&i.protocol),
            late: get(&i.late),
        };
        let (mut namespaces, mut controllers) = (Vec::new(), Vec::new());
        for subsystem in shared.all() {
            controllers.push((subsystem.nqn.clone(), lock(&subsystem.controllers).len()));
            let served = subsystem.namespaces().clone();
            namespaces.extend(served.into_iter().map(|(nsid, namespace)| NamespaceStatistics {
                nqn: subsystem.nqn.clone(),
                name: subsystem.name.clone(),
                nsid,
                uuid: namespace.uuid,
                size: namespace.device.info().size,
                is_accessible: namespace.is_accessible(),
                counts: namespace.counters.sum(),
            }));
        }
        Some(Statistics {
            namespaces,
            hosts: shared.hosts.statistics(),
            controllers,
            connections: shared.connections.len(),
            connections_max: shared.connections.limit(),
            memory_used: shared.memory.used(),
            memory_max: shared.config.memory,
            incidents,
        })
    }
}

impl Target {
    /// A handle that watches the target.
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_beyond_the_limit_are_counted_as_one() {
        let hosts = Hosts::default();
        for i in 0..HOSTS_MAX {
            hosts.of(&format!("nqn.2014-08.org.example:{i}"));
        }
        let (_, one) = (hosts.of("another"), hosts.of("one more"));
        let (sender, mut inbox) = mpsc::unbounded();
        let _wire = one.connect(sender);
        let all = hosts.statistics();
        assert_eq!(all.len(), HOSTS_MAX + 1);
        let others = all.last().expect("the others");
        assert_eq!((others.hostnqn.as_deref(), others.connections), (None, 1));
        hosts.statistics();
        assert!(matches!(inbox.try_recv(), Ok(Message::Measure)));
        assert!(inbox.try_recv().is_err(), "it has not answered the first question");
    }
}
