//! The connections of a target, and how many there may be.
//!
//! Invariants:
//! - there are no more than the limit, of one address no more than half of it,
//!   and of one host no more than a quarter;
//! - where there is no room, the oldest connection that has not come to its
//!   Connect gives way to the next: a stranger that opens connections and says
//!   nothing keeps no host out.

use crate::ledger::{Origin, Peer};
use crate::subsystem::{Message, lock};
use futures_channel::mpsc;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The parts of the limit that one address and one host may have: room for a
/// few hosts behind one address, and for several controllers of a large host.
const ADDRESS_PARTS: usize = 2;
const HOST_PARTS: usize = 4;

type Sender = mpsc::UnboundedSender<Message>;

/// The connections of a target.
pub(crate) struct Connections {
    limit: AtomicUsize,
    state: Mutex<TableState>,
}

#[derive(Default)]
struct TableState {
    next: u64,
    /// The oldest first.
    all: BTreeMap<u64, ConnectionEntry>,
    origins: HashMap<Origin, usize>,
    hosts: HashMap<Peer, usize>,
}

struct ConnectionEntry {
    sender: Sender,
    origin: Origin,
    /// The host that it belongs to, from Connect on.
    host: Option<Peer>,
}

/// A connection's place, until it is dropped.
pub(crate) struct ConnectionPlace {
    connections: Arc<Connections>,
    id: u64,
}

fn less<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl TableState {
    fn remove(&mut self, id: u64) -> Option<Sender> {
        let ConnectionEntry { sender, origin, host } = self.all.remove(&id)?;
        less(&mut self.origins, &origin);
        if let Some(host) = host {
            less(&mut self.hosts, &host);
        }
        Some(sender)
    }
}

impl Connections {
    pub(crate) fn new(limit: usize) -> Arc<Connections> {
        Arc::new(Connections { limit: AtomicUsize::new(limit), state: Mutex::default() })
    }

    /// A place for a connection from `origin`, if there is room for it.
    pub(crate) fn enter(self: &Arc<Self>, origin: Origin, sender: Sender) -> Option<ConnectionPlace> {
        let limit = self.limit();
        let mut state = lock(&self.state);
        let crowded = state.origins.get(&origin).is_some_and(|&n| n >= limit.div_ceil(ADDRESS_PARTS));
        if crowded || state.all.len() >= limit {
            let gives_way =
                |entry: &ConnectionEntry| entry.host.is_none() && (!crowded || entry.origin == origin);
            let oldest = state.all.iter().find(|(_, entry)| gives_way(entry)).map(|(&id, _)| id)?;
            if let Some(sender) = state.remove(oldest) {
                let _ = sender.unbounded_send(Message::Close);
            }
        }
        let id = state.next;
        state.next += 1;
        *state.origins.entry(origin).or_default() += 1;
        state.all.insert(id, ConnectionEntry { sender, origin, host: None });
        Some(ConnectionPlace { connections: Arc::clone(self), id })
    }

    /// Connections at this moment.
    pub(crate) fn len(&self) -> usize {
        lock(&self.state).all.len()
    }

    /// Connections that there may be.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// How many there may be from now on. Those that there are stay.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Asks every connection to end once its commands have completed.
    pub(crate) fn drain(&self) {
        for entry in lock(&self.state).all.values() {
            let _ = entry.sender.unbounded_send(Message::Drain);
        }
    }
}

impl ConnectionPlace {
    /// The connection belongs to `host` from now on. Whether that may have
    /// another one.
    pub(crate) fn claim(&self, host: &Peer) -> bool {
        let mut state = lock(&self.connections.state);
        let most = self.connections.limit().div_ceil(HOST_PARTS);
        if state.hosts.get(host).is_some_and(|&n| n >= most) {
            return false;
        }
        // One that had to give way has no place any more, and ends soon.
        let Some(entry) = state.all.get_mut(&self.id) else { return false };
        if entry.host.replace(host.clone()).is_none() {
            *state.hosts.entry(host.clone()).or_default() += 1;
        }
        true
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        lock(&self.connections.state).remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn origin(n: u8) -> Origin {
        Origin::of([10, 0, 0, n].into())
    }

    fn host(n: u8, name: &str) -> Peer {
        Peer { origin: origin(n), hostnqn: name.to_owned(), hostid: Uuid::nil() }
    }

    fn open(all: &Arc<Connections>, n: u8) -> Option<(ConnectionPlace, mpsc::UnboundedReceiver<Message>)> {
        let (sender, inbox) = mpsc::unbounded();
        Some((all.enter(origin(n), sender)?, inbox))
    }

    fn is_closed(inbox: &mut mpsc::UnboundedReceiver<Message>) -> bool {
        matches!(inbox.try_recv(), Ok(Message::Close))
    }

    #[test]
    fn the_oldest_without_connect_gives_way() {
        let all = Connections::new(4);
        let mut strangers: Vec<_> = [1, 2, 3, 4].iter().filter_map(|&n| open(&all, n)).collect();
        assert!(strangers[0].0.claim(&host(1, "a")), "this one has come to its Connect");
        let late = open(&all, 5).expect("room");
        assert_eq!(all.len(), 4);
        let closed: Vec<_> = strangers.iter_mut().map(|(_, inbox)| is_closed(inbox)).collect();
        assert_eq!(closed, [false, true, false, false]);
        assert!(!strangers[1].0.claim(&host(2, "b")), "it has no place any more");
        drop((strangers, late));
        let state = lock(&all.state);
        assert!(state.all.is_empty() && state.origins.is_empty() && state.hosts.is_empty());
    }

    #[test]
    fn nothing_that_is_connected_gives_way() {
        let all = Connections::new(2);
        let (a, b) = (open(&all, 1).expect("room"), open(&all, 2).expect("room"));
        assert!(a.0.claim(&host(1, "a")) && b.0.claim(&host(2, "b")));
        assert!(open(&all, 3).is_none());
        drop(a);
        assert!(open(&all, 3).is_some());
    }

    #[test]
    fn an_address_has_half_and_a_host_a_quarter() {
        let all = Connections::new(8);
        let places: Vec<_> = (0..4).filter_map(|_| open(&all, 1)).collect();
        let claims = |i: usize, name| places[i].0.claim(&host(1, name));
        assert!(claims(0, "a") && claims(1, "a") && !claims(2, "a"));
        assert!(claims(2, "b") && claims(3, "c"));
        assert!(open(&all, 1).is_none(), "half of all");
        assert!(open(&all, 2).is_some());
    }
}
