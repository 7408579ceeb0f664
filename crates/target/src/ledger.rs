//! Fair shares of a limited resource: bytes of a pool, or turns of a worker.
//!
//! Invariants:
//! - the charges of all hosts together never exceed the limit;
//! - a host holds no more than it leaves free: N hosts with all they can get leave one part of N +
//!   1 to the next one, and a host that holds nothing gets what one command needs as soon as that
//!   much is free;
//! - a connection holds no more than its host may still take: a stalled one leaves something for
//!   the next, such as a new connection of a host that has reconnected;
//! - the hosts of one address together hold three quarters at most, whatever names they give
//!   themselves;
//! - waiting hosts are served in turn, and the requests of a host in order, except for those of
//!   connections that hold too much; a request that is next and finds no room is not overtaken.

use futures_channel::oneshot;
use longhaul_conn::transport::Address;
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// Parts of [`ADDRESS_PARTS`] that the hosts of one address may hold. The rest is for hosts of
/// other addresses, however many names an attacker invents.
const ADDRESS_SHARE: usize = 3;
const ADDRESS_PARTS: usize = 4;

/// Bits of an IPv6 address that a network gives to one machine as a rule.
const IPV6_PREFIX: u32 = 64;

/// Where a connection comes from, as far as limits are concerned: an IPv4
/// address, the first 64 bits of an IPv6 address, or what another transport calls its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin(OriginKind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OriginKind {
    Ip(IpAddr),
    /// A hash of the name: two names with the same one would share their limits, and nothing else.
    Named(u64),
}

impl Origin {
    pub(crate) fn of(addr: IpAddr) -> Origin {
        match addr.to_canonical() {
            IpAddr::V6(ip) => {
                let prefix = u128::from(ip) >> (128 - IPV6_PREFIX) << (128 - IPV6_PREFIX);
                Origin(OriginKind::Ip(Ipv6Addr::from(prefix).into()))
            }
            v4 => Origin(OriginKind::Ip(v4)),
        }
    }

    pub(crate) fn at(address: &Address) -> Origin {
        match address {
            Address::Ip(address) => Origin::of(address.ip()),
            Address::Named(name) => {
                let mut hasher = DefaultHasher::new();
                name.hash(&mut hasher);
                Origin(OriginKind::Named(hasher.finish()))
            }
        }
    }
}

/// A host: its address, and the name that it gives itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub(crate) origin: Origin,
    pub(crate) hostnqn: String,
    pub(crate) hostid: Uuid,
}

/// A resource that hosts share, and how much each of them holds.
pub(crate) struct Ledger {
    limit: usize,
    state: Mutex<LedgerState>,
}

#[derive(Default)]
struct LedgerState {
    used: usize,
    /// For each origin: number of accounts, and the sum of their charges.
    origins: Slab<(usize, usize)>,
    by_origin: HashMap<Origin, usize>,
    accounts: Slab<HostEntry>,
    by_peer: HashMap<Peer, usize>,
    /// Accounts that wait, each once, in the order of their turns.
    line: VecDeque<usize>,
    /// The first of them that may be served waits for room.
    full: bool,
}

/// The charges and waiting requests of one host.
struct HostEntry {
    peer: Peer,
    /// Place of its origin.
    origin: usize,
    /// Handles on the account.
    users: usize,
    held: usize,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    len: usize,
    account: Arc<Account>,
    turn: oneshot::Sender<Charge>,
}

/// A connection's handle on the account of its host.
pub(crate) struct Account {
    ledger: Arc<Ledger>,
    id: usize,
    /// What this connection holds; changed under the ledger's lock only.
    held: AtomicUsize,
}

/// Stands for `len` units that a host holds, until it is dropped.
pub(crate) struct Charge {
    account: Arc<Account>,
    len: usize,
}

enum Verdict {
    /// There is room, and the host may have it.
    Now,
    /// The host may have it once there is room.
    NoRoom,
    /// The connection holds too much already.
    ConnectionBlocked,
    /// The host does.
    HostBlocked,
}

impl LedgerState {
    fn verdict(&self, limit: usize, account: &Account, len: usize) -> Verdict {
        let entry = &self.accounts[account.id];
        let held = account.held.load(Ordering::Relaxed);
        let free = limit - self.used;
        let (_, near) = self.origins[entry.origin];
        let host_full = entry.held > 0 && entry.held + len > free;
        let origin_full = near > 0 && near + len > limit / ADDRESS_PARTS * ADDRESS_SHARE;
        let connection_full = held > 0 && held + len > free.saturating_sub(entry.held);
        match () {
            () if host_full || origin_full => Verdict::HostBlocked,
            () if connection_full => Verdict::ConnectionBlocked,
            () if len > free => Verdict::NoRoom,
            () => Verdict::Now,
        }
    }

    /// Adds to what a connection and its host hold.
    fn add(&mut self, account: &Account, len: usize) {
        self.used += len;
        account.held.fetch_add(len, Ordering::Relaxed);
        let entry = &mut self.accounts[account.id];
        entry.held += len;
        self.origins[entry.origin].1 += len;
    }

    fn subtract(&mut self, account: &Account, len: usize) {
        self.used -= len;
        account.held.fetch_sub(len, Ordering::Relaxed);
        let entry = &mut self.accounts[account.id];
        entry.held -= len;
        self.origins[entry.origin].1 -= len;
    }

    /// The verdict on the next waiting request of a host, and its position; no
    /// verdict if no request waits. Cancelled requests are moved to `gone`.
    fn next_of(&mut self, limit: usize, id: usize, gone: &mut Vec<Waiter>) -> (Option<Verdict>, usize) {
        let mut waiting = std::mem::take(&mut self.accounts[id].waiting);
        let mut found = (None, 0);
        let mut at = 0;
        while at < waiting.len() {
            if waiting[at].turn.is_canceled() {
                gone.extend(waiting.remove(at));
                continue;
            }
            let Waiter { len, ref account, .. } = waiting[at];
            let verdict = self.verdict(limit, account, len);
            let goes_on = matches!(verdict, Verdict::ConnectionBlocked);
            found = (Some(verdict), at);
            if !goes_on {
                break;
            }
            at += 1;
        }
        self.accounts[id].waiting = waiting;
        found
    }

    /// Serves hosts in turn while a request fits. The charges and requests returned must be sent or
    /// dropped after the lock is released, since both may call back into the ledger.
    fn serve(&mut self, limit: usize) -> (Vec<(oneshot::Sender<Charge>, Charge)>, Vec<Waiter>) {
        let (mut served, mut gone) = (Vec::new(), Vec::new());
        let mut blocked = 0;
        self.full = false;
        while blocked < self.line.len() {
            let Some(id) = self.line.pop_front() else { break };
            let (verdict, at) = self.next_of(limit, id, &mut gone);
            match verdict {
                None => {}
                Some(Verdict::Now) => {
                    let waiting = &mut self.accounts[id].waiting;
                    let waiter = waiting.remove(at);
                    if !waiting.is_empty() {
                        self.line.push_back(id);
                    }
                    if let Some(Waiter { len, account, turn }) = waiter {
                        self.add(&account, len);
                        served.push((turn, Charge { account, len }));
                    }
                    blocked = 0;
                }
                Some(Verdict::NoRoom) => {
                    self.line.push_front(id);
                    self.full = true;
                    break;
                }
                Some(Verdict::ConnectionBlocked | Verdict::HostBlocked) => {
                    self.line.push_back(id);
                    blocked += 1;
                }
            }
        }
        (served, gone)
    }
}

impl Ledger {
    pub(crate) fn new(limit: usize) -> Arc<Ledger> {
        Arc::new(Ledger { limit, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, LedgerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection's handle on the account of its host.
    pub(crate) fn account(self: &Arc<Self>, peer: &Peer) -> Arc<Account> {
        let mut state = self.lock();
        let id = match state.by_peer.get(peer) {
            Some(&id) => id,
            None => {
                let LedgerState { origins, by_origin, .. } = &mut *state;
                let origin = *by_origin.entry(peer.origin).or_insert_with(|| origins.insert((0, 0)));
                origins[origin].0 += 1;
                let waiting = VecDeque::new();
                let entry = HostEntry { peer: peer.clone(), origin, users: 0, held: 0, waiting };
                let id = state.accounts.insert(entry);
                state.by_peer.insert(peer.clone(), id);
                id
            }
        };
        state.accounts[id].users += 1;
        Arc::new(Account { ledger: Arc::clone(self), id, held: AtomicUsize::new(0) })
    }
}

impl Account {
    /// `len` units, if the host may have them now and there is room.
    pub(crate) fn try_take(self: &Arc<Self>, len: usize) -> Option<Charge> {
        let mut state = self.ledger.lock();
        let first = !state.full && state.accounts[self.id].waiting.is_empty();
        if !first || !matches!(state.verdict(self.ledger.limit, self, len), Verdict::Now) {
            return None;
        }
        state.add(self, len);
        Some(Charge { account: Arc::clone(self), len })
    }

    /// `len` units (at most the limit), in turn.
    pub(crate) async fn take(self: &Arc<Self>, len: usize) -> Charge {
        let len = len.min(self.ledger.limit);
        loop {
            if let Some(charge) = self.try_take(len) {
                return charge;
            }
            let (turn, come) = oneshot::channel();
            self.wait(Waiter { len, account: Arc::clone(self), turn });
            // The ledger, which this holds, never drops a waiter that lives.
            if let Ok(charge) = come.await {
                return charge;
            }
        }
    }

    fn wait(&self, waiter: Waiter) {
        let mut state = self.ledger.lock();
        let waiting = &mut state.accounts[self.id].waiting;
        waiting.push_back(waiter);
        if waiting.len() == 1 && !state.line.contains(&self.id) {
            state.line.push_back(self.id);
        }
        // Room may have come back between the two locks.
        let after = state.serve(self.ledger.limit);
        drop(state);
        finish(after);
    }
}

/// Notifies the waiters that got their share, and drops those whose receiver was dropped.
fn finish((served, gone): (Vec<(oneshot::Sender<Charge>, Charge)>, Vec<Waiter>)) {
    for (turn, charge) in served {
        // If the receiver was dropped, the charge goes to the next waiter.
        let _ = turn.send(charge);
    }
    drop(gone);
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut state = self.ledger.lock();
        let entry = &mut state.accounts[self.id];
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        // Charges and waiters keep a handle each, so none is left when the last handle is dropped.
        let HostEntry { peer, origin, .. } = state.accounts.remove(self.id);
        state.by_peer.remove(&peer);
        state.line.retain(|&id| id != self.id);
        state.origins[origin].0 -= 1;
        if state.origins[origin].0 == 0 {
            state.origins.remove(origin);
            state.by_origin.remove(&peer.origin);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let ledger = &self.account.ledger;
        let mut state = ledger.lock();
        state.subtract(&self.account, self.len);
        if state.line.is_empty() {
            return;
        }
        let after = state.serve(ledger.limit);
        drop(state);
        finish(after);
    }
}

#[cfg(test)]
mod tests;
