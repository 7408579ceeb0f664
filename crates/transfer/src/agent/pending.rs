//! Connections to an agent that have not sent a valid greeting yet.
//!
//! Invariants:
//! - at most `most` are pending, of these at most [`ADDRESS`] silent ones of one address;
//! - a new connection beyond that evicts the oldest silent one: of its own address if
//!   that has its share, else of the address with the most. So silent connections evict
//!   each other, and not those of other clients;
//! - a connection that has proved the key, or that a session expects, is never evicted;
//!   only its own timeout closes it.

use longhaul_engine::sync::Notify;
use longhaul_engine::{now, sleep};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The most pending connections, if there are enough descriptors.
const MOST: usize = 1024;
/// One in this many descriptors of the process is for pending connections; the others are
/// for sessions and their files.
const SHARE: u64 = 4;
/// The most silent connections of one address: half of all, so that no single address
/// takes all, and eight copies with the most streams may begin there at once.
const ADDRESS: usize = MOST / 2;
/// From this many pending connections on, one is accepted in each [`PACE`]; a quarter of
/// the share of an address, if that is less.
const CROWDED: usize = 128;
/// The most evicted connections that are sent a refusal at a time, or half of the slots
/// if that is less, since each holds a descriptor. Others are closed at once.
const REFUSALS: usize = 64;
/// At this pace it takes a second to fill the share of an address, so that each connection
/// has that long to send its greeting (three round trips on the longest path), however
/// fast others arrive. Until then they wait in the kernel's accept queue.
const PACE: Duration = Duration::from_millis(2);
/// The least time between two log messages about evictions.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The unit that shares are counted by: an IPv4 address, or a /64 network of IPv6, which
/// a single host may own (RFC 4291, section 2.5.1).
fn address(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64))),
        v4 => v4,
    }
}

/// The pending connections of an agent.
#[derive(Clone)]
pub(crate) struct PendingConnections(Rc<RefCell<PendingState>>);

struct PendingState {
    most: usize,
    share: usize,
    next: u64,
    waiting: HashMap<u64, PendingConnection>,
    /// Numbers of silent connections by address, oldest first.
    silent: HashMap<IpAddr, BTreeSet<u64>>,
    /// Evictions since the last log message, and the time of that.
    evicted: u64,
    logged: Option<Instant>,
}

struct PendingConnection {
    address: IpAddr,
    signal: Rc<EvictSignal>,
}

#[derive(Default)]
struct EvictSignal {
    evicted: Cell<bool>,
    notify: Notify,
}

/// The slot of a pending connection; dropping it frees the slot.
pub(crate) struct PendingSlot {
    pending: PendingConnections,
    number: u64,
    signal: Rc<EvictSignal>,
}

impl PendingConnections {
    /// For a process with this limit of descriptors.
    pub(crate) fn new(descriptors: u64) -> PendingConnections {
        let most = usize::try_from(descriptors / SHARE).unwrap_or(MOST).clamp(2, MOST);
        let state = PendingState {
            most,
            share: ADDRESS.min(most / 2),
            next: 0,
            waiting: HashMap::new(),
            silent: HashMap::new(),
            evicted: 0,
            logged: None,
        };
        PendingConnections(Rc::new(RefCell::new(state)))
    }

    /// Number of pending connections.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().waiting.len()
    }

    /// Adds a connection from `peer`, evicting another one if necessary. `None` if all
    /// slots are taken and none can be evicted.
    pub(crate) fn enter(&self, peer: IpAddr) -> Option<PendingSlot> {
        let address = address(peer);
        let mut state = self.0.borrow_mut();
        if state.silent.get(&address).is_some_and(|silent| silent.len() >= state.share) {
            state.evict(Some(address));
        }
        if state.waiting.len() >= state.most && !state.evict(None) {
            state.count_eviction();
            return None;
        }
        let (number, signal) = (state.next, Rc::<EvictSignal>::default());
        state.next += 1;
        state.waiting.insert(number, PendingConnection { address, signal: Rc::clone(&signal) });
        state.silent.entry(address).or_default().insert(number);
        assert!(state.waiting.len() <= state.most, "{} connections are pending", state.waiting.len());
        drop(state);
        Some(PendingSlot { pending: self.clone(), number, signal })
    }

    /// Evicts the oldest silent connection to free its descriptor; returns whether there
    /// was one.
    pub(crate) fn evict(&self) -> bool {
        self.0.borrow_mut().evict(None)
    }

    /// The most evicted connections that are sent a refusal at a time.
    pub(crate) fn refusals(&self) -> usize {
        REFUSALS.min(self.0.borrow().most / 2)
    }

    /// Delays the next accept if many connections are pending.
    pub(crate) async fn pace(&self) {
        let crowded = CROWDED.min(self.0.borrow().share / 4).max(1);
        if self.len() >= crowded {
            sleep(PACE).await;
        }
    }
}

impl PendingState {
    /// Evicts the oldest silent connection of an address, or of the address with the most;
    /// returns whether there was one.
    fn evict(&mut self, address: Option<IpAddr>) -> bool {
        let most = || self.silent.iter().max_by_key(|(_, silent)| silent.len()).map(|(address, _)| *address);
        let Some(address) = address.or_else(most) else { return false };
        let oldest = self.silent.get(&address).and_then(|silent| silent.first()).copied();
        let Some(waiting) = oldest.and_then(|number| self.remove(number)) else { return false };
        waiting.signal.evicted.set(true);
        waiting.signal.notify.notify();
        self.count_eviction();
        true
    }

    fn remove(&mut self, number: u64) -> Option<PendingConnection> {
        let waiting = self.waiting.remove(&number)?;
        self.protect(number, waiting.address);
        Some(waiting)
    }

    /// Removes a connection from the silent ones.
    fn protect(&mut self, number: u64, address: IpAddr) {
        if let Some(silent) = self.silent.get_mut(&address) {
            silent.remove(&number);
            if silent.is_empty() {
                self.silent.remove(&address);
            }
        }
    }

    /// Counts an eviction, and logs the count at intervals.
    fn count_eviction(&mut self) {
        self.evicted += 1;
        let at = now();
        if self.logged.is_some_and(|logged| at.saturating_duration_since(logged) < LOG_INTERVAL) {
            return;
        }
        let (evicted, waiting) = (std::mem::take(&mut self.evicted), self.waiting.len());
        self.logged = Some(at);
        tracing::warn!("{evicted} connections were refused: {waiting} wait for a greeting");
    }
}

impl PendingSlot {
    /// Protects the connection from eviction: it has proved the key, or is expected.
    pub(crate) fn protect(&self) {
        let mut state = self.pending.0.borrow_mut();
        let address = state.waiting.get(&self.number).map(|waiting| waiting.address);
        if let Some(address) = address {
            state.protect(self.number, address);
        }
    }

    /// Resolves when the connection is evicted.
    pub(crate) async fn evicted(&self) {
        while !self.signal.evicted.get() {
            self.signal.notify.notified().await;
        }
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        self.pending.0.borrow_mut().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_engine::{Config, Thread};
    use std::net::Ipv4Addr;

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    /// Runs a test on an engine's thread.
    fn run(test: impl FnOnce() + Send + 'static) {
        let thread = Thread::start("test", Config::default()).expect("an engine");
        thread.handle().spawn(move || async move { test() }).wait().expect("it ran to its end");
    }

    #[test]
    fn silent_connections_evict_only_each_other() {
        run(|| {
            let pending = PendingConnections::new(u64::MAX);
            let known = pending.enter(ip(1)).expect("a place");
            known.protect();
            let other = pending.enter(ip(2)).expect("a place");
            // Beyond the share of the address its oldest connections are evicted.
            let many: Vec<_> = (0..3 * MOST).map(|_| pending.enter(ip(1)).expect("a place")).collect();
            assert_eq!(pending.len(), ADDRESS + 2);
            let left = many.iter().map(|place| place.signal.evicted.get()).collect::<Vec<_>>();
            assert_eq!(left.iter().filter(|left| **left).count(), 3 * MOST - ADDRESS);
            assert!(left.is_sorted_by(|a, b| a >= b), "the oldest first");
            // With all slots taken, the address with the most silent connections loses one.
            let more: Vec<_> = (0..2 * MOST).map(|i| pending.enter(ip(10 + (i % 4) as u8))).collect();
            assert!(more.iter().all(Option::is_some) && pending.len() == MOST);
            assert!(!known.signal.evicted.get() && !other.signal.evicted.get());
            drop((known, other, many, more));
            let state = pending.0.borrow();
            assert!(state.waiting.is_empty() && state.silent.is_empty());
        });
    }

    #[test]
    fn few_descriptors_leave_few_slots_and_all_may_be_protected() {
        run(|| {
            let pending = PendingConnections::new(16);
            let places: Vec<_> = (0..4).map(|i| pending.enter(ip(i)).expect("a place")).collect();
            places.iter().for_each(PendingSlot::protect);
            assert!(pending.enter(ip(9)).is_none(), "all slots are protected");
            assert!(!pending.evict());
            drop(places);
            let _place = pending.enter(ip(9)).expect("a place");
            assert!(pending.evict() && pending.len() == 0);
        });
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let same = |a: &str, b: &str| address(a.parse().expect("good")) == address(b.parse().expect("good"));
        assert!(same("2001:db8::1", "2001:db8::ffff:1") && !same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:192.0.2.1", "192.0.2.1") && !same("192.0.2.1", "192.0.2.2"));
    }
}
