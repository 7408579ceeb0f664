//! Several connections to one namespace, and what a device advises.

mod common;

use common::relay::Relay;
use common::{NQN, connect, export, hold_disk, in_time, pattern, serve, target, until};
use longhaul_block::filter::OpKind;
use longhaul_block::{BlockDevice, WriteFlags};
use longhaul_cache::stream::Stream;
use longhaul_engine::{Buf, BufMut, Engine};
use longhaul_initiator::{Options, PathOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const MIB: u64 = 1 << 20;

#[test]
fn what_is_set_by_hand_is_advised_and_used() {
    let (target, uri) = serve("mem:32MiB");
    let device = connect(&format!("{uri}&in_flight=3MiB&connections=4&io_size=64k&read_ahead=1MiB"), {
        Options::default()
    });
    let device = device.expect("connected");
    Engine::new(&Default::default()).expect("engine").block_on(async {
        let io = device.open().await.expect("opened");
        let end = longhaul_engine::now() + common::PATIENCE;
        // Connections are opened behind the first one.
        let advice = loop {
            let advice = io.advice().expect("a remote device has advice");
            if advice.commands > 3 * 1023 {
                break advice;
            }
            assert!(longhaul_engine::now() < end, "{advice:?}");
            longhaul_engine::sleep(Duration::from_millis(1)).await;
        };
        assert_eq!((advice.read, advice.write), (3 * MIB, 3 * MIB));
        assert_eq!((advice.io_size, advice.read_ahead), (64 << 10, MIB));
        let content = pattern(8 << 20, 1);
        let write = |at: usize| {
            let part = Buf::copy_of(&content[at..at + (1 << 20)]);
            io.write(at as u64, part, WriteFlags::default())
        };
        let writes: Vec<_> = (0..8).map(|n| write(n << 20)).collect();
        for write in writes {
            write.await.expect("written");
        }
        for at in (0..8u64).map(|n| n * MIB) {
            let read = io.read(at, BufMut::zeroed(1 << 20)).await.expect("read");
            assert!(read[..] == content[at as usize..][..1 << 20]);
        }
    });
    let report = device.path();
    assert!(report.is_none_or(|report| report.plan.connections == 4), "{report:?}");
    drop(device);
    drop(target);
}

#[test]
fn a_path_is_reported_once_there_was_io() {
    let (_target, uri) = serve("mem:32MiB");
    let device = connect(&uri, Options::default()).expect("connected");
    assert_eq!(device.path(), None);
    let shared = device.clone();
    let mut stream = Stream::open(shared).expect("opened");
    let mut part = vec![0; 128 << 10];
    let end = std::time::Instant::now() + common::PATIENCE;
    let report = loop {
        if stream.read(&mut part).expect("read") == 0 {
            stream.seek(SeekFrom::Start(0)).expect("sought");
        }
        if let Some(report) = device.path().filter(|report| report.rate() > 0.0) {
            break report;
        }
        assert!(std::time::Instant::now() < end, "no report");
    };
    assert!(report.plan.rtt > Duration::ZERO && report.plan.rtt < common::PATIENCE);
    assert!(report.sentence().contains("this path"), "{}", report.sentence());
}

/// A stream over several connections that are cut while it writes and reads:
/// nothing is lost, nothing fails.
#[test]
fn a_stream_over_four_connections_outlives_them() {
    let target = target(|_| {});
    let uri = export(&target, "mem:64MiB");
    let relay = Relay::start(target.addresses()[0]);
    let uri = relay.uri(&uri);
    let path = PathOptions { connections: Some(4), ..PathOptions::default() };
    let device = connect(&uri, Options { path, ..Options::default() }).expect("connected");
    let mut stream = Stream::open(device).expect("opened");
    let content = pattern(48 << 20, 2);
    for (n, part) in content.chunks(1 << 20).enumerate() {
        if n % 16 == 7 {
            relay.flap();
        }
        stream.write_all(part).expect("written");
    }
    stream.flush().expect("flushed");
    stream.seek(SeekFrom::Start(0)).expect("sought");
    let mut read = vec![0; content.len()];
    for (n, part) in read.chunks_mut(1 << 20).enumerate() {
        if n % 16 == 9 {
            relay.flap();
        }
        stream.read_exact(part).expect("read");
    }
    assert!(read == content);
}

/// The target has restarted and grants fewer queues than before: operations of the others continue
/// on those that are left.
#[test]
fn fewer_queues_than_before_do_all_the_work() {
    let gate = hold_disk(32 << 20);
    let device: Arc<dyn BlockDevice> = Arc::new(gate.clone()) as _;
    let serve = |queues| {
        let target = target(|config| config.max_queues = queues);
        target.export(NQN, "disk", Arc::clone(&device), Uuid::from_u128(7)).expect("exported");
        target
    };
    let first = serve(8);
    let relay = Relay::start(first.addresses()[0]);
    let uri = relay.uri(&format!("nvme+tcp://{}/{NQN}?nsid=1", first.addresses()[0]));
    let path = PathOptions { connections: Some(4), ..PathOptions::default() };
    let remote = connect(&uri, Options { path, ..Options::default() }).expect("connected");
    gate.hold(OpKind::Write, 16);
    let kept = Arc::clone(&remote);
    let (begun, wait) = std::sync::mpsc::channel();
    let io = std::thread::spawn(move || {
        Engine::new(&Default::default()).expect("engine").block_on(async {
            let io = kept.open().await.expect("opened");
            let end = longhaul_engine::now() + common::PATIENCE;
            while io.advice().expect("advice").commands <= 3 * 1023 {
                assert!(longhaul_engine::now() < end, "four connections");
                longhaul_engine::sleep(Duration::from_millis(1)).await;
            }
            let bytes = |i| Buf::copy_of(&pattern(1 << 20, i));
            let writes: Vec<_> =
                (0..16).map(|i| io.write(i * MIB, bytes(i), WriteFlags::default())).collect();
            longhaul_engine::yield_now().await;
            begun.send(()).expect("waited for");
            for write in writes {
                write.await.expect("written");
            }
            for i in 0..16 {
                let found = io.read(i * MIB, BufMut::zeroed(1 << 20)).await.expect("read");
                assert!(found[..] == pattern(1 << 20, i), "{i}");
            }
        });
    });
    wait.recv().expect("begun");
    until("the device to hold a write", || gate.held() > 0);
    relay.cut();
    gate.hold(OpKind::Write, 0);
    gate.release();
    drop(first);
    let second = serve(1);
    relay.lead_to(second.addresses()[0]);
    relay.restore();
    in_time("the I/O", move || io.join().expect("no fault"));
    assert_eq!(remote.controller().queues, 1);
}
