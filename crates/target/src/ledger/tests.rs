use super::*;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn peer(address: u8, name: &str) -> Peer {
    let origin = Origin::of(IpAddr::from([10, 0, 0, address]));
    Peer { origin, hostnqn: name.to_owned(), hostid: Uuid::nil() }
}

/// Takes `len` units as often as it can, on one connection.
fn all(account: &Arc<Account>, len: usize) -> Vec<Charge> {
    std::iter::from_fn(|| account.try_take(len)).collect()
}

/// Takes `len` units as often as it can, on many connections.
fn all_of_host(ledger: &Arc<Ledger>, peer: &Peer, len: usize) -> Vec<Charge> {
    (0..50).flat_map(|_| all(&ledger.account(peer), len)).collect()
}

#[test]
fn a_host_takes_half_and_the_next_half_of_the_rest() {
    let ledger = Ledger::new(96);
    let taken: Vec<_> = (1..=3).map(|n| all_of_host(&ledger, &peer(n, "host"), 1)).collect();
    assert_eq!(taken.iter().map(Vec::len).collect::<Vec<_>>(), [48, 24, 12]);
    // However many connections a host has, they have one account.
    assert!(ledger.account(&peer(1, "host")).try_take(1).is_none());
}

#[test]
fn a_connection_that_takes_all_it_can_leaves_something_for_its_host() {
    let ledger = Ledger::new(96);
    let [stalled, next] = [1, 1].map(|n| ledger.account(&peer(n, "host")));
    let held = all(&stalled, 1);
    assert_eq!(held.len(), 32, "a third");
    // A request of the stalled connection that waits keeps no other waiting.
    let mut waits = pin!(stalled.take(1));
    assert!(poll(waits.as_mut()).is_pending());
    let more = all(&next, 2);
    assert_eq!(more.len(), 0, "requests that wait come first");
    let mut of_next = pin!(next.take(2));
    assert!(poll(of_next.as_mut()).is_ready());
    drop(held);
    assert!(poll(waits.as_mut()).is_ready());
}

#[test]
fn a_host_that_holds_nothing_gets_what_one_command_needs() {
    let ledger = Ledger::new(96);
    let other = ledger.account(&peer(2, "b"));
    let _held = all_of_host(&ledger, &peer(1, "a"), 1);
    assert!(other.try_take(48).is_some(), "all that is left");
}

#[test]
fn names_do_not_multiply_what_an_address_gets() {
    let ledger = Ledger::new(96);
    let many: Vec<_> = (0..200).map(|n| ledger.account(&peer(1, &format!("host {n}")))).collect();
    let held: Vec<_> = many.iter().flat_map(|host| host.try_take(1)).collect();
    assert_eq!(held.len(), 72, "three quarters");
    assert!(ledger.account(&peer(2, "another")).try_take(24).is_some(), "the rest is there for others");
}

#[test]
fn an_ipv6_network_is_one_origin_and_ipv4_is_ipv4() {
    let of = |text: &str| Origin::of(text.parse().expect("an address"));
    assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::9"));
    assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
}

#[test]
fn hosts_are_served_in_turn_and_large_requests_are_not_overtaken() {
    let ledger = Ledger::new(8);
    let [a, b, c] = [1, 2, 3].map(|n| ledger.account(&peer(n, "host")));
    let first = a.try_take(6).expect("it holds nothing");
    let mut more_of_a = pin!(a.take(1));
    let mut large_of_b = pin!(b.take(4));
    assert!(poll(more_of_a.as_mut()).is_pending() && poll(large_of_b.as_mut()).is_pending());
    assert!(c.try_take(1).is_none(), "nothing overtakes what waits for room only");
    drop(first);
    let Poll::Ready(of_a) = poll(more_of_a.as_mut()) else { panic!("its turn") };
    let Poll::Ready(of_b) = poll(large_of_b.as_mut()) else { panic!("its turn") };
    assert!(c.try_take(1).is_some());
    drop((of_a, of_b));
    assert_eq!(ledger.lock().used, 0);
}

#[test]
fn a_host_that_is_blocked_is_in_no_way_of_others() {
    let ledger = Ledger::new(8);
    let (a, b) = (ledger.account(&peer(1, "host")), ledger.account(&peer(2, "host")));
    let held = all_of_host(&ledger, &peer(1, "host"), 1);
    let mut waits: Vec<_> = (0..100).map(|_| Box::pin(a.take(1))).collect();
    assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
    assert_eq!(all_of_host(&ledger, &peer(2, "host"), 1).len(), 2, "half of what is left");
    assert!(b.try_take(1).is_some());
    drop(held);
    let served = waits.iter_mut().filter_map(|wait| match poll(wait.as_mut()) {
        Poll::Ready(charge) => Some(charge),
        Poll::Pending => None,
    });
    assert_eq!(served.collect::<Vec<_>>().len(), 3, "its share, and no more");
}

#[test]
fn the_charge_of_a_cancelled_wait_goes_to_the_next() {
    let ledger = Ledger::new(4);
    let (a, b) = (ledger.account(&peer(1, "host")), ledger.account(&peer(2, "host")));
    let all_of_it = a.try_take(4).expect("it holds nothing");
    {
        let mut gone = pin!(b.take(2));
        assert!(poll(gone.as_mut()).is_pending());
    }
    let mut next = pin!(b.take(3));
    assert!(poll(next.as_mut()).is_pending());
    drop(all_of_it);
    assert!(poll(next.as_mut()).is_ready());
}

#[test]
fn accounts_end_with_their_last_handle() {
    let ledger = Ledger::new(4);
    let account = ledger.account(&peer(1, "host"));
    let charge = ledger.account(&peer(1, "host")).try_take(1);
    drop(account);
    assert_eq!(ledger.lock().accounts.len(), 1, "a charge keeps it");
    drop(charge);
    let state = ledger.lock();
    assert!(state.accounts.is_empty() && state.by_peer.is_empty() && state.origins.is_empty());
}
