//! Emulated links between namespaces, with the kernel's own TCP. They need
//! root, `/dev/net/tun` and iproute2, and say so where they skip.

mod common;

use common::{MS, content, plan, start, there_and_back};
use longhaul_wan::Change;

#[test]
fn content_arrives_after_a_round_trip() {
    let Some(wan) = start(plan(20 * MS, 1_000_000_000)) else { return };
    let took = there_and_back(&wan, 1, &content(1 << 20));
    assert!(took >= 40 * MS, "{took:?} for a handshake and at least one round trip");
    let stats = wan.statistics().expect("statistics");
    assert!(stats.links[0].there.bytes_out > 1 << 20 && stats.links[0].back.bytes_out > 1 << 20);
}

#[test]
fn content_survives_loss_and_a_small_queue() {
    let Some(wan) = start(plan(4 * MS, 400_000_000)) else { return };
    let change =
        Change { loss: Some(0.01), queue: Some(longhaul_wan::Queue::Bytes(40_000)), ..Change::default() };
    wan.set(1, &change).expect("changed");
    there_and_back(&wan, 1, &content(8 << 20));
    let stats = wan.statistics().expect("statistics");
    eprintln!("{stats:?}");
    assert!(stats.links[0].there.dropped_loss > 0 && stats.links[0].there.dropped_queue > 0);
}
