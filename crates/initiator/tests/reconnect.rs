//! I/O outlives connections: no operation fails, no data is lost or misplaced.

mod common;

use common::events::{drain, reconnected, until_event};
use common::load::Load;
use common::relay::{Relay, Way};
use common::{NQN, backend, connect, engines, hold_disk, in_time, pattern, read, target, until};
use longhaul_block::filter::OpKind;
use longhaul_block::{BlockDevice, Blocking, IoError, WriteFlags};
use longhaul_engine::{Buf, BufMut, Config as EngineConfig, Engine};
use longhaul_initiator::{ControllerEvent, Options, RemoteDevice};
use longhaul_target::{Config, Target};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uuid::Uuid;

const BLOCK: usize = 16_384;

/// A target with `device`, that has one identity over all its lives.
fn serve(device: &Arc<dyn BlockDevice>, change: impl FnOnce(&mut Config)) -> (Target, String) {
    let target = target(change);
    let nsid = target.export(NQN, "disk", Arc::clone(device), Uuid::from_u128(7)).expect("exported");
    let uri = format!("nvme+tcp://{}/{NQN}?nsid={nsid}", target.addresses()[0]);
    (target, uri)
}

/// Through a relay.
fn behind(device: &Arc<dyn BlockDevice>, options: Options) -> (Target, Relay, Arc<RemoteDevice>) {
    let (target, uri) = serve(device, |config| config.engine = options.engine.clone());
    let relay = Relay::start(target.addresses()[0]);
    let remote = connect(&relay.uri(&uri), options).expect("connected");
    (target, relay, remote)
}

fn with(engine: &EngineConfig) -> Options {
    Options { engine: engine.clone(), ..Options::default() }
}

#[test]
fn a_link_that_is_cut_under_load_costs_nothing() {
    for engine in engines() {
        let (_target, relay, remote) = behind(&backend("mem:32MiB"), with(&engine));
        let mut events = remote.events();
        let load = Load::start(Arc::clone(&remote), engine.clone());
        for _ in 0..5 {
            load.more(200);
            relay.cut();
            until_event("an attempt", &mut events, |e| {
                matches!(e, ControllerEvent::Reconnecting { attempt: 2, .. })
            });
            relay.restore();
            reconnected(&mut events);
        }
        load.more(200);
        load.finish();
        assert!(!drain(&mut events).iter().any(|e| matches!(e, ControllerEvent::Lost(_))));
    }
}

/// Each connection lives for a moment only; work is done all the same.
#[test]
fn a_link_that_flaps_costs_nothing() {
    for engine in engines() {
        let (_target, relay, remote) = behind(&backend("mem:32MiB"), with(&engine));
        let load = Load::start(Arc::clone(&remote), engine.clone());
        for _ in 0..20 {
            load.more(20);
            relay.flap();
        }
        load.finish();
    }
}

/// With every digest, and commands that take R2Ts.
#[test]
fn a_target_that_is_restarted_costs_nothing() {
    for engine in engines() {
        let dir = tempfile::tempdir().expect("directory");
        let spec = format!("file:{},size=32MiB", dir.path().join("disk").display());
        let options = Options { hdr_digest: true, data_digest: true, ..with(&engine) };
        let (first, uri) = serve(&backend(&spec), |config| config.engine = engine.clone());
        let relay = Relay::start(first.addresses()[0]);
        let remote = connect(&relay.uri(&uri), options).expect("connected");
        let load = Load::start(Arc::clone(&remote), engine.clone());
        let mut target = Some(first);
        for life in 0..4u32 {
            load.more(100);
            let old = target.take().expect("a target");
            // In order, and not.
            if life % 2 == 0 {
                assert!(in_time("the target to stop", move || old.stop()));
            } else {
                drop(old);
            }
            let (next, _) = serve(&backend(&spec), |config| {
                config.engine = engine.clone();
                config.in_capsule = if life % 2 == 0 { 4096 } else { 1 << 20 };
            });
            relay.lead_to(next.addresses()[0]);
            target = Some(next);
        }
        load.more(100);
        load.finish();
    }
}

#[test]
fn a_connection_that_does_not_come_back_fails_io_when_the_time_is_over() {
    for engine in engines() {
        let options = Options { ctrl_loss: Some(Duration::from_millis(300)), ..with(&engine) };
        let (_target, relay, remote) = behind(&backend("mem:8MiB"), options);
        let mut events = remote.events();
        let disk = Blocking::open_on(Arc::clone(&remote) as _, engine.clone()).expect("opened");
        disk.write_at(&pattern(BLOCK, 1), 0).expect("written");
        relay.cut();
        for _ in 0..2 {
            // The first waits, the second does not.
            let e = read(&disk, 0, BLOCK).expect_err("it has not come back");
            assert!(matches!(e, IoError::Unreachable(_)), "{e}");
            assert!(e.to_string().contains("0.3 s (the limit that --ctrl-loss-timeout sets)"), "{e}");
        }
        until_event("the end", &mut events, |e| matches!(e, ControllerEvent::Lost(_)));
        relay.restore();
        read(&disk, 0, BLOCK).expect_err("it is lost for good");
    }
}

/// The hazard: an old write that a device was slow with lands after a newer
/// one. Without fencing it does, so the test can fail.
#[test]
fn a_stale_write_never_lands_after_a_newer_one() {
    for engine in engines() {
        for fencing in [false, true] {
            let gate = hold_disk(8 << 20);
            let device: Arc<dyn BlockDevice> = Arc::new(gate.clone()) as _;
            let options = Options { fencing, ..with(&engine) };
            let (_target, relay, remote) = behind(&device, options);
            let mut events = remote.events();
            let disk = Blocking::open_on(Arc::clone(&remote) as _, engine.clone()).expect("opened");
            let reader = Blocking::open_on(Arc::clone(&remote) as _, engine.clone()).expect("opened");

            gate.hold(OpKind::Write, 1);
            let (old, new) = (pattern(BLOCK, 1), pattern(BLOCK, 2));
            let written = Arc::new(AtomicBool::new(false));
            let writer = {
                let (old, new, written) = (old.clone(), new.clone(), Arc::clone(&written));
                std::thread::spawn(move || {
                    disk.write_at(&old, 0).expect("written");
                    disk.write_at(&new, 0).expect("written");
                    written.store(true, Ordering::SeqCst);
                    disk
                })
            };
            until("the device to hold the write", || gate.held() == 1);
            relay.flap();
            reconnected(&mut events);
            // Reads need not wait.
            read(&reader, 1 << 20, BLOCK).expect("read");
            if !fencing {
                until("both writes to be acknowledged", || written.load(Ordering::SeqCst));
            } else {
                assert!(!written.load(Ordering::SeqCst), "the old one may still land");
            }
            gate.release();
            let disk = in_time("the writes", move || writer.join().expect("no panic"));
            let check = || read(&disk, 0, BLOCK).expect("read");
            if fencing {
                assert!(check() == new, "the newer write stays");
            } else {
                until("the stale write to land", || check() == old);
            }
        }
    }
}

/// A target that cannot reset other controllers: writes wait until the old one has certainly ended,
/// reads do not.
#[test]
fn writes_to_a_target_without_resets_wait_for_the_old_controller() {
    /// Places in Identify Controller.
    const CIU: usize = 135;
    const CCRL: usize = 1807;
    const MN: usize = 24;
    const MODEL: &[u8] = b"Longhaul NVMe/TCP target";
    for engine in engines() {
        let gate = hold_disk(8 << 20);
        let device: Arc<dyn BlockDevice> = Arc::new(gate.clone()) as _;
        let (target, uri) = serve(&device, |config| config.engine = engine.clone());
        let relay = Relay::start(target.addresses()[0]);
        relay.tamper(Some(Box::new(|_, way, bytes| {
            let model = bytes.windows(MODEL.len()).position(|part| part == MODEL);
            if let Some(at) = model.filter(|_| way == Way::Back).and_then(|at| at.checked_sub(MN)) {
                bytes[at + CIU..at + CIU + 9].fill(0);
                bytes[at + CCRL] = 0;
            }
        })));
        let remote = connect(&relay.uri(&uri), with(&engine)).expect("connected");
        assert!(!remote.controller().resets_others);
        let mut events = remote.events();
        let disk = Blocking::open_on(Arc::clone(&remote) as _, engine.clone()).expect("opened");
        let reader = Blocking::open_on(Arc::clone(&remote) as _, engine.clone()).expect("opened");
        gate.hold(OpKind::Write, 1);
        let written = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&written);
        let writer = std::thread::spawn(move || {
            for i in 1..=2 {
                disk.write_at(&pattern(BLOCK, i), 0).expect("written");
            }
            done.store(true, Ordering::SeqCst);
            disk
        });
        until("the device to hold the write", || gate.held() == 1);
        relay.flap();
        reconnected(&mut events);
        read(&reader, 1 << 20, BLOCK).expect("reads need not wait");
        assert!(!written.load(Ordering::SeqCst));
        gate.release();
        let disk = in_time("the writes", move || writer.join().expect("no panic"));
        assert!(read(&disk, 0, BLOCK).expect("read") == pattern(BLOCK, 2));
    }
}

#[test]
fn limits_that_shrink_are_kept_to() {
    for engine in engines() {
        let gate = hold_disk(32 << 20);
        let device: Arc<dyn BlockDevice> = Arc::new(gate.clone()) as _;
        let (first, uri) = serve(&device, |config| {
            config.engine = engine.clone();
            config.in_capsule = 4 << 20;
        });
        let relay = Relay::start(first.addresses()[0]);
        let options = Options { max_transfer: 4 << 20, queue_size: 256, ..with(&engine) };
        let remote = connect(&relay.uri(&uri), options).expect("connected");
        assert_eq!(remote.controller().max_transfer, Some(4 << 20));
        let mut events = remote.events();
        gate.hold(OpKind::Write, 8);
        let kept = Arc::clone(&remote);
        let config = engine.clone();
        let (begun, wait) = std::sync::mpsc::channel();
        let io = std::thread::spawn(move || {
            Engine::new(&config).expect("engine").block_on(async {
                let io = kept.open().await.expect("opened");
                let bytes = |i| Buf::copy_of(&pattern(4 << 20, i));
                let writes: Vec<_> =
                    (0..8).map(|i| io.write(i * (4 << 20), bytes(i), WriteFlags { fua: true })).collect();
                longhaul_engine::yield_now().await;
                begun.send(()).expect("waited for");
                for write in writes {
                    write.await.expect("written");
                }
                for i in 0..8 {
                    let found = io.read(i * (4 << 20), BufMut::zeroed(4 << 20)).await.expect("read");
                    assert!(found[..] == pattern(4 << 20, i), "{i}");
                }
            });
        });
        wait.recv().expect("begun");
        until("the device to hold a write", || gate.held() > 0);
        relay.cut();
        gate.hold(OpKind::Write, 0);
        gate.release();
        drop(first);
        let (_second, _) = serve(&device, |config| {
            config.engine = engine.clone();
            config.in_capsule = 8192;
            config.max_queue_size = 16;
            config.max_queues = 1;
        });
        relay.lead_to(_second.addresses()[0]);
        relay.restore();
        in_time("the I/O", move || io.join().expect("no fault"));
        reconnected(&mut events);
        let now = remote.controller();
        assert_eq!((now.max_transfer, now.queue_entries, now.queues), (Some(1 << 20), 16, 1));
    }
}

/// A namespace under the same number, at the same place.
#[test]
fn a_namespace_that_has_become_another_gets_nothing() {
    let cases: [(&str, u128, &str); 4] = [
        ("mem:16MiB", 8, "is another one now"),
        ("mem:8MiB", 7, "has 8388608 bytes now, it had 16777216"),
        ("mem:16MiB,block=512", 7, "has blocks of 512 bytes now"),
        ("mem:32MiB", 7, ""),
    ];
    for engine in engines() {
        for (spec, uuid, complaint) in cases {
            let (first, relay, remote) = behind(&backend("mem:16MiB"), with(&engine));
            let mut events = remote.events();
            let disk = Blocking::open_on(Arc::clone(&remote) as _, engine.clone()).expect("opened");
            disk.write_at(&pattern(BLOCK, 1), 0).expect("written");
            relay.cut();
            drop(first);
            let other = backend(spec);
            let second = target(|config| config.engine = engine.clone());
            second.export(NQN, "disk", Arc::clone(&other), Uuid::from_u128(uuid)).expect("exported");
            relay.lead_to(second.addresses()[0]);
            relay.restore();
            let result = disk.write_at(&pattern(BLOCK, 2), 0);
            let below = Blocking::open(other).expect("opened");
            if complaint.is_empty() {
                result.expect("a larger one is no other");
                assert!(read(&below, 0, BLOCK).expect("read") == pattern(BLOCK, 2));
                assert_eq!(remote.info().size, 32 << 20);
                until_event("the new size", &mut events, |e| *e == ControllerEvent::NamespaceChanged(1));
            } else {
                let e = result.expect_err(complaint);
                assert!(matches!(e, IoError::Refused(_)) && e.to_string().contains(complaint), "{e}");
                assert_eq!(
                    read(&below, 0, BLOCK).expect("read"),
                    vec![0; BLOCK],
                    "no data was written there"
                );
                until_event("the end", &mut events, |e| matches!(e, ControllerEvent::Lost(_)));
            }
        }
    }
}

/// Events are armed again on the new connection.
#[test]
fn a_namespace_that_grows_later_is_seen() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk");
    let (target, relay, remote) =
        behind(&backend(&format!("file:{},size=8MiB", path.display())), Options::default());
    let mut events = remote.events();
    relay.flap();
    reconnected(&mut events);
    std::fs::OpenOptions::new().write(true).open(&path).expect("opened").set_len(16 << 20).expect("grown");
    until("the new size", || {
        target.refresh();
        remote.info().size == 16 << 20
    });
}
