//! Hosts and targets that prove their identity to each other.

mod common;

use common::relay::Relay;
use common::{NQN, connect, export, pattern, target};
use longhaul_auth::{HashFunction, HostKey, KeySource, Secret};
use longhaul_block::{BlockDevice, WriteFlags};
use longhaul_engine::{Buf, BufMut, Engine};
use longhaul_initiator::{ControllerEvent, Error, Options, PathOptions};
use longhaul_target::{DhGroup, Keys, Target};
use std::collections::BTreeMap;
use std::sync::Arc;

const HOST: &str = "nqn.2026-11.io.longhaul:test:known";
const QUEUES: u16 = 4;

fn secret(seed: u64) -> Secret {
    let mut random = fastrand::Rng::with_seed(seed);
    Secret::generate(HashFunction::Sha384, &mut |bytes| random.fill(bytes))
}

fn key() -> HostKey {
    HostKey { secret: secret(1), controller: Some(secret(2)) }
}

fn guarded() -> Target {
    target(|config| config.keys = Some(Keys::new(Arc::new(BTreeMap::from([(HOST.to_owned(), key())])))))
}

fn options(key: Option<HostKey>) -> Options {
    let path = PathOptions { connections: Some(QUEUES), ..PathOptions::default() };
    let keys = key.map(|key| -> Arc<dyn KeySource> { Arc::new(BTreeMap::from([(HOST.to_owned(), key)])) });
    Options { hostnqn: HOST.into(), keys, path, ..Options::default() }
}

/// Writes and reads back through every queue.
async fn works(device: &dyn BlockDevice, seed: u64) {
    const BLOCK: usize = 65_536;
    let io = device.open().await.expect("opened");
    for n in 0..64 {
        let content = pattern(BLOCK, seed + n);
        io.write(n * BLOCK as u64, Buf::copy_of(&content), WriteFlags::default()).await.expect("written");
        let found = io.read(n * BLOCK as u64, BufMut::zeroed(BLOCK)).await.expect("read");
        assert!(found[..] == content);
    }
}

#[test]
fn both_are_authenticated_also_when_they_reconnect() {
    for key in [key(), HostKey { controller: None, ..key() }] {
        let target = guarded();
        let relay = Relay::start(target.addresses()[0]);
        let uri = relay.uri(&export(&target, "mem:32MiB"));
        let mutual = key.controller.is_some();
        let device = connect(&uri, options(Some(key))).expect("connected");
        let mut events = device.events();
        let engine = Engine::new(&Default::default()).expect("engine");
        engine.block_on(works(&*device, 1));
        // Two round trips for each message and its answer, and one for the last word.
        let more = if mutual { 5 } else { 4 };
        assert_eq!(device.set_up().round_trips, 4 + more);
        relay.flap();
        engine.block_on(works(&*device, 100));
        let told = std::iter::from_fn(|| events.try_recv().ok()).collect::<Vec<_>>();
        let reconnected = |event: &ControllerEvent| matches!(event, ControllerEvent::Reconnected { .. });
        assert!(told.iter().any(reconnected), "{told:?}");
    }
}

#[test]
fn a_host_that_is_not_believed_is_told_why() {
    let target = guarded();
    let uri = export(&target, "mem:32MiB");
    let refused = |options: Options| match connect(&uri, options) {
        Err(Error::Refused { reason, .. }) => reason,
        other => panic!("{:?}", other.err()),
    };
    let other = HostKey { secret: secret(9), ..key() };
    assert_eq!(refused(options(Some(other))), "the secret is another one");
    // The target does not know what it is to prove.
    let other = HostKey { controller: Some(secret(9)), ..key() };
    assert_eq!(refused(options(Some(other))), "the secret is another one");
    assert!(refused(options(None)).contains("longhaul key make"));
    // By the target, whatever it knows itself.
    let unknown = Options { hostnqn: "nqn.2026-11.io.longhaul:test:x".into(), ..options(Some(key())) };
    assert!(refused(unknown).contains("not allowed"));
}

/// An attacker that answers in place of a target with keys has none.
#[test]
fn a_target_that_proves_nothing_is_refused_where_a_proof_is_wanted() {
    let open = target(|_| {});
    let uri = export(&open, "mem:32MiB");
    let result = connect(&uri, options(Some(key())));
    assert!(matches!(&result, Err(Error::Refused { reason, .. }) if reason.contains("does not prove")));
    // One's own secret alone is no such wish.
    connect(&uri, options(Some(HostKey { controller: None, ..key() }))).expect("connected");
}

/// Without a group, secrets could be tried out against what was recorded.
#[test]
fn a_host_offers_no_exchange_without_a_group() {
    let target = target(|config| {
        let mut keys = Keys::new(Arc::new(BTreeMap::from([(HOST.to_owned(), key())])));
        keys.groups = vec![DhGroup::Null];
        config.keys = Some(keys);
    });
    let uri = export(&target, "mem:32MiB");
    let result = connect(&uri, options(Some(key())));
    assert!(
        matches!(&result, Err(Error::Refused { reason, .. }) if reason.contains("group")),
        "{:?}",
        result.err()
    );
    assert!(uri.contains(NQN));
}
