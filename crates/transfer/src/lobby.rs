//! Connections to an agent that have not shown yet what they want.
//!
//! Invariants:
//! - at most `most` wait in all, and [`ADDRESS`] of one address that have shown nothing;
//! - where one more comes, the oldest that has shown nothing leaves: of the same address
//!   if that has its share, else of the address that has most. So connections that say
//!   nothing take the places of each other, and not those of others;
//! - what has shown the key, or is expected, leaves only when its own time is up.

use longhaul_engine::sync::Notify;
use longhaul_engine::{now, sleep};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The most connections that wait, where there are descriptors enough.
const MOST: usize = 1024;
/// Of all descriptors that this process may have, one in so many is for those that wait:
/// the others are for copies, and their files.
const SHARE: u64 = 4;
/// The most of one address that have shown nothing: half of them, so that no address
/// alone takes all, and eight copies of most streams may begin there at once.
const ADDRESS: usize = MOST / 2;
/// From here on connections are taken in no faster than one in [`PACE`]: a quarter of the
/// share of an address, where that is less.
const CROWDED: usize = 128;
/// How many connections that have to leave may take a moment to hear so, at a time: half of
/// the places, where there are few, since each holds a descriptor. The others are closed at once.
const FAREWELLS: usize = 64;
/// At this pace the share of an address is taken in a second, so that a connection has
/// as long to show what it wants, however fast others come: the time of three round
/// trips on the longest path. Until then it waits in the kernel's queue.
const PACE: Duration = Duration::from_millis(2);
/// How often it is said that connections were turned away.
const SAY: Duration = Duration::from_secs(10);

/// What counts as one address: of IPv6 a network of 64 bits, which one host has whole
/// (RFC 4291, section 2.5.1).
fn address(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64))),
        v4 => v4,
    }
}

/// Where connections wait.
#[derive(Clone)]
pub(crate) struct Lobby(Rc<RefCell<State>>);

struct State {
    most: usize,
    share: usize,
    next: u64,
    waiting: HashMap<u64, Waiting>,
    /// Those that have shown nothing, by address, the oldest first.
    silent: HashMap<IpAddr, BTreeSet<u64>>,
    /// Turned away since this was last said, and when that was.
    turned: u64,
    said: Option<Instant>,
}

struct Waiting {
    address: IpAddr,
    signal: Rc<Signal>,
}

#[derive(Default)]
struct Signal {
    left: Cell<bool>,
    notify: Notify,
}

/// The place of a connection that waits; it is free again when this is dropped.
pub(crate) struct Place {
    lobby: Lobby,
    number: u64,
    signal: Rc<Signal>,
}

impl Lobby {
    /// For a process that may have so many descriptors.
    pub(crate) fn new(descriptors: u64) -> Lobby {
        let most = usize::try_from(descriptors / SHARE).unwrap_or(MOST).clamp(2, MOST);
        let state = State {
            most,
            share: ADDRESS.min(most / 2),
            next: 0,
            waiting: HashMap::new(),
            silent: HashMap::new(),
            turned: 0,
            said: None,
        };
        Lobby(Rc::new(RefCell::new(state)))
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().waiting.len()
    }

    /// Takes in a connection from `peer`; another one may have to leave for it. None if
    /// all that wait have shown what they want.
    pub(crate) fn enter(&self, peer: IpAddr) -> Option<Place> {
        let address = address(peer);
        let mut state = self.0.borrow_mut();
        if state.silent.get(&address).is_some_and(|silent| silent.len() >= state.share) {
            state.shed(Some(address));
        }
        if state.waiting.len() >= state.most && !state.shed(None) {
            state.turn_away();
            return None;
        }
        let (number, signal) = (state.next, Rc::<Signal>::default());
        state.next += 1;
        state.waiting.insert(number, Waiting { address, signal: Rc::clone(&signal) });
        state.silent.entry(address).or_default().insert(number);
        drop(state);
        Some(Place { lobby: self.clone(), number, signal })
    }

    /// Has the oldest that has shown nothing leave, to get its descriptor; whether there
    /// was one.
    pub(crate) fn shed(&self) -> bool {
        self.0.borrow_mut().shed(None)
    }

    /// How many connections that have to leave may take a moment to hear so, at a time.
    pub(crate) fn farewells(&self) -> usize {
        FAREWELLS.min(self.0.borrow().most / 2)
    }

    /// Waits before the next connection is taken in, if there are many.
    pub(crate) async fn pace(&self) {
        let crowded = CROWDED.min(self.0.borrow().share / 4).max(1);
        if self.len() >= crowded {
            sleep(PACE).await;
        }
    }
}

impl State {
    /// Has the oldest of an address leave that has shown nothing, or of the address that
    /// has most of those; whether there was one.
    fn shed(&mut self, address: Option<IpAddr>) -> bool {
        let most = || self.silent.iter().max_by_key(|(_, silent)| silent.len()).map(|(address, _)| *address);
        let Some(address) = address.or_else(most) else { return false };
        let oldest = self.silent.get(&address).and_then(|silent| silent.first()).copied();
        let Some(waiting) = oldest.and_then(|number| self.remove(number)) else { return false };
        waiting.signal.left.set(true);
        waiting.signal.notify.notify();
        self.turn_away();
        true
    }

    fn remove(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        self.has_shown(number, waiting.address);
        Some(waiting)
    }

    /// A connection is none any more of those that have shown nothing.
    fn has_shown(&mut self, number: u64, address: IpAddr) {
        if let Some(silent) = self.silent.get_mut(&address) {
            silent.remove(&number);
            if silent.is_empty() {
                self.silent.remove(&address);
            }
        }
    }

    /// Counts a connection that was turned away, and says so now and then.
    fn turn_away(&mut self) {
        self.turned += 1;
        let at = now();
        if self.said.is_some_and(|said| at.saturating_duration_since(said) < SAY) {
            return;
        }
        let (turned, waiting) = (std::mem::take(&mut self.turned), self.waiting.len());
        self.said = Some(at);
        tracing::warn!("{turned} connections were turned away: {waiting} wait for a greeting");
    }
}

impl Place {
    /// The connection has shown that it may be here.
    pub(crate) fn has_shown(&self) {
        let mut state = self.lobby.0.borrow_mut();
        let address = state.waiting.get(&self.number).map(|waiting| waiting.address);
        if let Some(address) = address {
            state.has_shown(self.number, address);
        }
    }

    /// Resolves when the connection has to leave for another.
    pub(crate) async fn left(&self) {
        while !self.signal.left.get() {
            self.signal.notify.notified().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lobby.0.borrow_mut().remove(self.number);
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

    /// Runs on the thread of an engine.
    fn run(test: impl FnOnce() + Send + 'static) {
        let thread = Thread::start("test", Config::default()).expect("an engine");
        thread.handle().spawn(move || async move { test() }).wait().expect("it ran to its end");
    }

    #[test]
    fn who_says_nothing_takes_the_places_of_such_alone() {
        run(|| {
            let lobby = Lobby::new(u64::MAX);
            let known = lobby.enter(ip(1)).expect("a place");
            known.has_shown();
            let other = lobby.enter(ip(2)).expect("a place");
            // One address has as many as it may: its oldest ones leave.
            let many: Vec<_> = (0..3 * MOST).map(|_| lobby.enter(ip(1)).expect("a place")).collect();
            assert_eq!(lobby.len(), ADDRESS + 2);
            let left = many.iter().map(|place| place.signal.left.get()).collect::<Vec<_>>();
            assert_eq!(left.iter().filter(|left| **left).count(), 3 * MOST - ADDRESS);
            assert!(left.is_sorted_by(|a, b| a >= b), "the oldest first");
            // Many addresses together have what there is: that with most gives way.
            let more: Vec<_> = (0..2 * MOST).map(|i| lobby.enter(ip(10 + (i % 4) as u8))).collect();
            assert!(more.iter().all(Option::is_some) && lobby.len() == MOST);
            assert!(!known.signal.left.get() && !other.signal.left.get());
            drop((known, other, many, more));
            let state = lobby.0.borrow();
            assert!(state.waiting.is_empty() && state.silent.is_empty());
        });
    }

    #[test]
    fn few_descriptors_are_few_places_and_all_may_be_taken() {
        run(|| {
            let lobby = Lobby::new(16);
            let places: Vec<_> = (0..4).map(|i| lobby.enter(ip(i)).expect("a place")).collect();
            places.iter().for_each(Place::has_shown);
            assert!(lobby.enter(ip(9)).is_none(), "all of them are those of others");
            assert!(!lobby.shed());
            drop(places);
            let _place = lobby.enter(ip(9)).expect("a place");
            assert!(lobby.shed() && lobby.len() == 0);
        });
    }

    #[test]
    fn a_host_has_one_address() {
        let same = |a: &str, b: &str| address(a.parse().expect("good")) == address(b.parse().expect("good"));
        assert!(same("2001:db8::1", "2001:db8::ffff:1") && !same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:192.0.2.1", "192.0.2.1") && !same("192.0.2.1", "192.0.2.2"));
    }
}
