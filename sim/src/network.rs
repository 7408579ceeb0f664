//! A network of simulated hosts, for the initiator and the target as they are.
//!
//! Connections are TCP as programs see it: ordered bytes in bounded buffers,
//! acknowledged, retransmitted with growing timeouts, closed by FIN or RST. What
//! packets meet on their way is up to the seed and to the task that cuts links.
//!
//! Invariants:
//! - a packet that is on its way arrives whatever becomes of its sender; it is
//!   dropped if the way is cut when it is sent, or its receiver has no power;
//! - a host without power sends nothing, and forgets its connections without a
//!   FIN or RST;
//! - nothing here depends on anything but the seed and the order of calls.

mod heads;
mod part;
mod plan;
mod run;
mod sockets;
mod tcp;
mod trouble;
mod wrong;

pub use plan::{Conditions, NetworkPlan, TwoPaths};
pub use run::{NetworkDone, Planted, run_network};
pub use trouble::Counts;

use crate::random::Random;
use crate::world::{Deed, Event as WorldEvent, World};
use longhaul_engine::simulated::{self, Listening, Wire};
use longhaul_engine::{now, sleep_until};
use sockets::{Listener, Socket};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use tcp::{Bounds, End, Packet, Phase, RECEIVES};

/// The number of the network, where disks have theirs.
const NETWORK: u64 = 255;
/// The first port of those that connect.
const EPHEMERAL: u16 = 32768;

/// A network. Clones are the same network.
#[derive(Clone, Debug)]
pub struct Net(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    conditions: Conditions,
    /// Of the ways to and from some hosts.
    others: BTreeMap<IpAddr, Conditions>,
    /// Further addresses of hosts.
    aliases: BTreeMap<IpAddr, IpAddr>,
    random: Random,
    world: World,
    events: BTreeMap<(Instant, u64), Event>,
    next_event: u64,
    /// Both ends of connection n are 2n (which has connected) and 2n + 1.
    ends: BTreeMap<u64, End>,
    next_connection: u64,
    listeners: BTreeMap<SocketAddr, Backlog>,
    /// Hosts without power.
    down: BTreeSet<IpAddr>,
    /// Ways that are cut, from one host to another.
    cuts: BTreeSet<(IpAddr, IpAddr)>,
    /// When the last packet to an end arrives: they keep their order.
    last_arrival: BTreeMap<u64, Instant>,
    /// Of what carries events out.
    carrier: Option<Waker>,
}

/// Connections that wait to be accepted.
#[derive(Debug, Default)]
struct Backlog {
    waiting: VecDeque<u64>,
    waker: Option<Waker>,
}

#[derive(Debug)]
enum Event {
    Arrive { to: u64, from: SocketAddr, at: SocketAddr, packet: Packet },
    Timer { end: u64, number: u64 },
    KeepAlive { end: u64 },
}

impl Net {
    /// A network in which nothing is cut, on the calling thread's simulated
    /// engine: its hosts' sockets are on it from now on.
    #[must_use]
    pub fn new(conditions: Conditions, random: Random, world: &World) -> Net {
        let state = State {
            conditions,
            others: BTreeMap::new(),
            aliases: BTreeMap::new(),
            random,
            world: world.clone(),
            events: BTreeMap::new(),
            next_event: 0,
            ends: BTreeMap::new(),
            next_connection: 0,
            listeners: BTreeMap::new(),
            down: BTreeSet::new(),
            cuts: BTreeSet::new(),
            last_arrival: BTreeMap::new(),
            carrier: None,
        };
        let net = Net(Arc::new(Mutex::new(state)));
        simulated::set_network(std::rc::Rc::new(net.clone()));
        longhaul_engine::spawn(net.clone().carry()).detach();
        net
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out events when their time has come.
    async fn carry(self) {
        loop {
            let next = self.state().events.keys().next().map(|key| key.0);
            let mut due = pin!(async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            });
            poll_fn(|cx| {
                if due.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                let mut state = self.state();
                if state.events.keys().next().map(|key| key.0) != next {
                    return Poll::Ready(());
                }
                state.carrier = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            self.state().happen();
        }
    }

    /// The ways to and from an address have other conditions.
    pub fn set_conditions(&self, address: IpAddr, conditions: Conditions) {
        self.state().others.insert(address, conditions);
    }

    /// A host has another address too.
    pub fn add_address(&self, host: IpAddr, address: IpAddr) {
        self.state().aliases.insert(address, host);
    }

    /// Cuts the way from one host to another, or restores it.
    pub fn cut(&self, from: IpAddr, to: IpAddr, cut: bool) {
        let mut state = self.state();
        let changed = if cut { state.cuts.insert((from, to)) } else { state.cuts.remove(&(from, to)) };
        if changed {
            let what = if cut { "is cut" } else { "is whole again" };
            state.world.tell(format_args!("the way from {from} to {to} {what}"));
        }
    }

    /// Ends every loss of packets from now on.
    pub fn calm(&self) {
        let mut state = self.state();
        state.conditions.loss = 0;
        state.others.values_mut().for_each(|conditions| conditions.loss = 0);
        state.cuts.clear();
    }

    /// A host loses its power, or has it again. Its connections are forgotten.
    pub fn power(&self, host: IpAddr, on: bool) {
        let mut state = self.state();
        state.world.tell(format_args!("{host} has {}power", if on { "" } else { "no " }));
        let aliases = state.aliases.iter().filter(|(_, of)| **of == host).map(|(address, _)| *address);
        let addresses: Vec<_> = aliases.chain([host]).collect();
        if on {
            state.down.retain(|down| !addresses.contains(down));
            return;
        }
        state.down.extend(&addresses);
        state.ends.retain(|_, end| !addresses.contains(&end.local.ip()));
        state.listeners.retain(|addr, _| !addresses.contains(&addr.ip()));
    }

    /// Resets every connection between two hosts, as a middle box does that has forgotten them.
    /// Unless `both`, only the first host notices: packets that it has sent arrive, and are
    /// accepted.
    pub fn reset(&self, one: IpAddr, other: IpAddr, both: bool) {
        let mut state = self.state();
        let whose = if both { "" } else { ", for the first one" };
        state.world.tell(format_args!("connections of {one} and {other} are reset{whose}"));
        let between = |end: &End| {
            let ips = (end.local.ip(), end.remote.ip());
            ips == (one, other) || both && ips == (other, one)
        };
        state
            .ends
            .values_mut()
            .filter(|end| between(end))
            .for_each(|end| end.fail(ErrorKind::ConnectionReset));
        state.ends.retain(|_, end| !end.is_over());
    }

    /// Connections that a host has, of whatever kind.
    #[must_use]
    pub fn connections(&self, host: IpAddr) -> usize {
        self.state().ends.values().filter(|end| end.local.ip() == host).count()
    }
}

impl simulated::Network for Net {
    fn listen(&self, at: IpAddr, addr: SocketAddr) -> io::Result<Arc<dyn Listening>> {
        let mut state = self.state();
        if addr.ip() != at && state.aliases.get(&addr.ip()) != Some(&at) {
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        if state.listeners.contains_key(&addr) {
            return Err(ErrorKind::AddrInUse.into());
        }
        state.listeners.insert(addr, Backlog::default());
        Ok(Arc::new(Listener { net: self.clone(), addr }))
    }

    fn connect(&self, from: IpAddr, to: SocketAddr) -> io::Result<Arc<dyn Wire>> {
        let mut state = self.state();
        let number = state.next_connection;
        state.next_connection += 1;
        let port = EPHEMERAL + (number % u64::from(u16::MAX - EPHEMERAL)) as u16;
        let bounds = state.bounds(from, to.ip());
        let end = End::new(SocketAddr::new(from, port), to, Phase::Connecting, bounds);
        state.ends.insert(2 * number, end);
        state.send(2 * number, vec![Packet::Syn]);
        Ok(Arc::new(Socket { net: self.clone(), id: 2 * number }))
    }
}

impl State {
    /// What packets between two hosts meet.
    fn between(&self, one: IpAddr, other: IpAddr) -> Conditions {
        let of = |address: IpAddr| self.others.get(&address).copied();
        of(one).or_else(|| of(other)).unwrap_or(self.conditions)
    }

    fn bounds(&self, one: IpAddr, other: IpAddr) -> Bounds {
        let conditions = self.between(one, other);
        let Conditions { send_buffer, receive_buffer, segment, delay, jitter, .. } = conditions;
        Bounds { send_buffer, receive_buffer, segment, round_trip: 2 * delay + jitter }
    }

    fn plan(&mut self, at: Instant, event: Event) {
        self.next_event += 1;
        self.events.insert((at, self.next_event), event);
        self.carrier.take().into_iter().for_each(Waker::wake);
    }

    /// Puts packets of an end on their way, and sets its timer.
    fn send(&mut self, id: u64, packets: Vec<Packet>) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        let (from, at) = (end.local, end.remote);
        let timer = end.set_timer().map(|after| (after, end.timer));
        for packet in packets {
            self.carry_off(id ^ 1, from, at, packet);
        }
        if let Some((after, number)) = timer {
            self.plan(now() + after, Event::Timer { end: id, number });
        }
    }

    /// Sends one packet to an end.
    fn carry_off(&mut self, to: u64, from: SocketAddr, at: SocketAddr, packet: Packet) {
        let way = (from.ip(), at.ip());
        if self.down.contains(&way.0) || self.cuts.contains(&way) {
            return;
        }
        let Conditions { delay, jitter, loss, bytes_per_ms, .. } = self.between(way.0, way.1);
        if self.random.below(1_000_000) < u64::from(loss) {
            return;
        }
        let jitter = Duration::from_nanos(self.random.below(jitter.as_nanos() as u64 + 1));
        let takes = Duration::from_micros(packet.len() as u64 * 1000 / bytes_per_ms);
        let arrival = now() + delay + jitter;
        let last = self.last_arrival.get(&to).copied().unwrap_or(arrival);
        let arrival = arrival.max(last) + takes;
        self.last_arrival.insert(to, arrival);
        self.plan(arrival, Event::Arrive { to, from, at, packet });
    }

    /// Carries out what is due.
    fn happen(&mut self) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > now() {
                return;
            }
            match entry.remove() {
                Event::Arrive { to, from, at, packet } => self.arrive(to, from, at, packet),
                Event::Timer { end, number } => self.timer(end, number),
                Event::KeepAlive { end } => self.keep_alive(end),
            }
        }
    }

    fn timer(&mut self, id: u64, number: u64) {
        let State { ends, random, .. } = self;
        let Some(end) = ends.get_mut(&id).filter(|end| end.timer == number) else { return };
        let packets = end.expire(random);
        if end.is_over() {
            self.ends.remove(&id);
        } else {
            self.send(id, packets);
        }
    }

    /// Asks a peer that has been silent whether it is there.
    fn keep_alive(&mut self, id: u64) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        let Some((interval, count)) = end.keep_alive else { return };
        let mut packets = Vec::new();
        if longhaul_engine::since(end.heard) >= interval {
            if end.unanswered >= count {
                end.fail(ErrorKind::TimedOut);
                return;
            }
            end.unanswered += 1;
            packets.push(end.probe());
        }
        self.send(id, packets);
        self.plan(now() + interval, Event::KeepAlive { end: id });
    }

    fn arrive(&mut self, id: u64, from: SocketAddr, at: SocketAddr, packet: Packet) {
        if self.down.contains(&at.ip()) {
            return;
        }
        let event = WorldEvent { deed: Deed::Packet, offset: id, len: packet.len() as u64 };
        let what = match &packet {
            Packet::Data { seq, bytes, fin, ack, .. } => {
                let fin = if *fin { " fin" } else { "" };
                format!("{seq}+{}{fin}, ack {ack}", bytes.len())
            }
            other => format!("{other:?}"),
        };
        if !self.world.event(NETWORK, event, format_args!("{from} > {at}: {what}")) {
            return;
        }
        if matches!(packet, Packet::Syn) && !self.ends.contains_key(&id) && self.listeners.contains_key(&at) {
            let end = End::new(at, from, Phase::Open, self.bounds(from.ip(), at.ip()));
            self.ends.insert(id, end);
        }
        let Some(end) = self.ends.get_mut(&id) else {
            if !matches!(packet, Packet::Rst) {
                self.carry_off(id ^ 1, at, from, Packet::Rst);
            }
            return;
        };
        end.heard = now();
        match packet {
            Packet::Syn => self.send(id, vec![Packet::SynAck]),
            Packet::SynAck => {
                if end.phase == Phase::Connecting {
                    end.connected();
                }
                let ack = end.acknowledgement();
                self.send(id, vec![ack]);
            }
            Packet::Rst => {
                let refused = end.phase == Phase::Connecting;
                end.fail(if refused { ErrorKind::ConnectionRefused } else { ErrorKind::ConnectionReset });
                if end.is_over() {
                    self.ends.remove(&id);
                }
            }
            Packet::Data { seq, bytes, fin, ack, window, asks } => {
                end.acknowledged(ack, window);
                self.data(id, seq, &bytes, fin, asks);
            }
        }
    }

    fn data(&mut self, id: u64, seq: u64, bytes: &[u8], fin: bool, asks: bool) {
        self.offer(id);
        let State { ends, random, .. } = self;
        let Some(end) = ends.get_mut(&id) else { return };
        if end.phase != Phase::Open {
            return;
        }
        // The program has closed its end: data is answered with RST.
        if !end.owned && end.offered && !bytes.is_empty() {
            let (local, remote) = (end.local, end.remote);
            self.ends.remove(&id);
            return self.carry_off(id ^ 1, local, remote, Packet::Rst);
        }
        let brings = !bytes.is_empty() || fin;
        if brings {
            end.arrive(seq, bytes, fin);
        }
        let mut packets = end.transmit(random);
        if packets.is_empty() && (brings || asks) {
            packets.push(end.acknowledgement());
        }
        self.send(id, packets);
        if self.ends.get(&id).is_some_and(End::is_over) {
            self.ends.remove(&id);
        }
    }

    /// Offers an established connection to the tasks that accept.
    fn offer(&mut self, id: u64) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        if id.is_multiple_of(2) || end.offered {
            return;
        }
        let Some(backlog) = self.listeners.get_mut(&end.local) else { return };
        (end.offered, end.owned) = (true, true);
        backlog.waiting.push_back(id);
        backlog.waker.take().into_iter().for_each(Waker::wake);
    }

    /// The program has closed an end.
    fn close(&mut self, id: u64) {
        let State { ends, random, .. } = self;
        let Some(end) = ends.get_mut(&id) else { return };
        end.owned = false;
        end.wake(RECEIVES);
        let (local, remote) = (end.local, end.remote);
        match end.phase {
            Phase::Open if end.abandoned || end.has_unread() => {
                self.ends.remove(&id);
                self.carry_off(id ^ 1, local, remote, Packet::Rst);
            }
            Phase::Open => {
                end.end_writes();
                let packets = end.transmit(random);
                self.send(id, packets);
                if self.ends.get(&id).is_some_and(End::is_over) {
                    self.ends.remove(&id);
                }
            }
            Phase::Connecting | Phase::Failed(_) => {
                self.ends.remove(&id);
            }
        }
    }
}
