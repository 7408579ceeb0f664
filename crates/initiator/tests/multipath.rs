//! One namespace over two paths, through relays in this process.

mod common;

use common::load::Load;
use common::relay::Relay;
use common::{NQN, backend, export, in_time, pattern, serve, target, until};
use longhaul_block::{BlockDevice, Blocking, WriteFlags};
use longhaul_engine::{Buf, BufMut, Config as EngineConfig, Engine};
use longhaul_initiator::{Error, MultipathDevice, Options, PathState};
use longhaul_target::Target;
use longhaul_wan::{Link, Relay as Link2};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const MIB: u64 = 1 << 20;

fn two(first: impl std::fmt::Display, second: impl std::fmt::Display, nsid: u32) -> String {
    format!("nvme+tcp://{first},{second}/{NQN}?nsid={nsid}")
}

fn open(uri: &str) -> longhaul_initiator::Result<Arc<MultipathDevice>> {
    MultipathDevice::connect_blocking(&uri.parse()?, Options::default())
}

/// A target behind two relays.
fn behind(spec: &str) -> (Target, [Relay; 2], Arc<MultipathDevice>) {
    let (target, uri) = serve(spec);
    let relays = [0, 1].map(|_| Relay::start(target.addresses()[0]));
    let there = target.addresses()[0].to_string();
    let [a, b] = [0, 1].map(|n: usize| relays[n].uri(&there));
    let device = open(&uri.replace(&there, &format!("{a},{b}"))).expect("connected");
    (target, relays, device)
}

fn lost(device: &MultipathDevice) -> usize {
    device.paths().iter().filter(|path| path.state == PathState::Lost).count()
}

#[test]
fn unequal_paths_are_filled_together() {
    let (target, _uri) = serve("mem:64MiB");
    let link = |ms, rate| Link { rate: Some(rate), ..Link::round_trip(Duration::from_millis(ms)) };
    let start = |link| {
        Link2::start("127.0.0.1:0".parse().expect("address"), target.addresses()[0], link).expect("started")
    };
    let relays = [start(link(2, 60_000_000)), start(link(20, 140_000_000))];
    let device = open(&two(relays[0].local_addr(), relays[1].local_addr(), 1)).expect("connected");
    let read = Arc::clone(&device);
    in_time("the load", move || {
        Engine::new(&EngineConfig::default()).expect("engine").block_on(async {
            let io = read.open().await.expect("opened");
            let workers = (0..32u64).map(|n| {
                let io = Rc::clone(&io);
                async move {
                    for _ in 0..2 {
                        io.read(n * MIB, BufMut::zeroed(MIB as usize)).await.expect("read");
                    }
                }
            });
            futures_util::future::join_all(workers).await;
        });
    });
    let [near, far] = [0, 1].map(|n: usize| relays[n].stats().back_bytes as f64);
    // 3 to 7 is what the links carry.
    let share = near / (near + far);
    assert!((0.15..0.5).contains(&share), "{share:.2} over the path that carries 0.3");
}

#[test]
fn a_path_that_is_lost_costs_no_error_and_comes_back() {
    let (_target, relays, device) = behind("mem:32MiB");
    assert_eq!(lost(&device), 0);
    let load = Load::start_on(Arc::<MultipathDevice>::clone(&device), EngineConfig::default());
    load.more(100);
    for round in 0..4 {
        let relay = &relays[round % 2];
        relay.cut();
        until("the path to be lost", || lost(&device) == 1);
        load.more(100);
        relay.restore();
        until("the path to return", || lost(&device) == 0);
        load.more(100);
    }
    load.finish();
    assert_eq!(device.disconnects(), 4);
}

#[test]
fn the_other_path_may_be_lost_meanwhile() {
    let (_target, relays, device) = behind("mem:32MiB");
    let load = Load::start_on(Arc::<MultipathDevice>::clone(&device), EngineConfig::default());
    load.more(100);
    relays[0].cut();
    until("the path to be lost", || lost(&device) == 1);
    relays[1].flap();
    load.more(100);
    relays[0].restore();
    until("both paths to return", || lost(&device) == 0);
    load.more(100);
    load.finish();
}

#[test]
fn a_target_that_confirms_the_end_of_a_path_has_lost_nothing() {
    let (_target, relays, device) = behind("mem:32MiB");
    let (own, shared) = (Arc::clone(&device), relays);
    in_time("the load", move || {
        Engine::new(&EngineConfig::default()).expect("engine").block_on(async {
            let io = own.open().await.expect("opened");
            let before = io.generation();
            let bytes = Buf::copy_of(&pattern(4096, 1));
            io.write(0, bytes, WriteFlags::default()).await.expect("written");
            shared[0].cut();
            io.flush().await.expect("flushed");
            assert_eq!(io.generation(), before, "the other path has confirmed the end of the first");
            assert_eq!(io.away_since(), None);
            shared[1].cut();
            let end = longhaul_engine::now() + common::PATIENCE;
            while io.away_since().is_none() {
                assert!(longhaul_engine::now() < end, "both paths are cut");
                longhaul_engine::sleep(Duration::from_millis(5)).await;
            }
            shared.iter().for_each(Relay::restore);
            let read = io.read(0, BufMut::zeroed(4096)).await.expect("read");
            assert!(read[..] == pattern(4096, 1));
        });
    });
}

#[test]
fn another_namespace_is_no_path() {
    let targets = [target(|_| {}), target(|_| {})];
    targets.iter().for_each(|target| _ = export(target, "mem:1MiB"));
    let [a, b] = [0, 1].map(|n: usize| targets[n].addresses()[0]);
    let e = open(&two(a, b, 1)).expect_err("two namespaces");
    assert!(matches!(e, Error::Refused { .. }), "{e}");
    let text = e.to_string();
    assert!(text.contains(&a.to_string()) && text.contains(&b.to_string()), "{text}");
    assert!(text.contains("there it is namespace 1 with UUID"), "{text}");
}

#[test]
fn an_address_that_cannot_be_reached_is_used_later() {
    let uuid = Uuid::new_v4();
    let disk = backend("mem:1MiB");
    let first = target(|_| {});
    let nsid = first.export(NQN, "disk", Arc::clone(&disk), uuid).expect("exported");
    let relay = Relay::start(first.addresses()[0]);
    relay.cut();
    let there = relay.uri(&first.addresses()[0].to_string());
    let device = open(&two(first.addresses()[0], there, nsid)).expect("one path will do");
    assert_eq!(lost(&device), 1);
    assert!(device.paths()[1].why.is_some());
    let shared: Arc<dyn BlockDevice> = Arc::<MultipathDevice>::clone(&device);
    let io = Blocking::open(shared).expect("opened");
    io.write_at(&pattern(4096, 3), 0).expect("written");
    relay.restore();
    until("the second path", || lost(&device) == 0);
    let mut found = vec![0; 4096];
    io.read_at(&mut found, 0).expect("read");
    assert!(found == pattern(4096, 3));
}

#[test]
fn io_fails_once_all_paths_were_lost_for_the_limit() {
    let (target, uri) = serve("mem:1MiB");
    let there = target.addresses()[0].to_string();
    let relays = [0, 1].map(|_| Relay::start(target.addresses()[0]));
    let both = format!("{},{}", relays[0].uri(&there), relays[1].uri(&there));
    let options = Options { ctrl_loss: Some(Duration::from_millis(300)), ..Options::default() };
    let uri = uri.replace(&there, &both).parse().expect("good");
    let device = MultipathDevice::connect_blocking(&uri, options).expect("connected");
    let io = Blocking::open(Arc::<MultipathDevice>::clone(&device)).expect("opened");
    relays[0].cut();
    io.write_at(&pattern(4096, 1), 0).expect("the other path is there");
    relays[1].cut();
    let e = in_time("a write", move || io.write_at(&pattern(4096, 1), 0)).expect_err("no path");
    assert!(e.to_string().contains("no path for 0.3 s"), "{e}");
    assert!(device.outage().is_some_and(|outage| outage.for_good));
}
