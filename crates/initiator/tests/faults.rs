//! Far sides that misbehave or are slow: named, survived, or left alone.

mod common;

use common::raw::{HOSTID, HOSTNQN, Raw};
use common::relay::{Relay, Way};
use common::{NQN, backend, connect, engines, hold_disk, in_time, pattern, read, target, until};
use futures_channel::mpsc::UnboundedReceiver;
use longhaul_block::filter::OpKind;
use longhaul_block::{BlockDevice, BlockIo, Blocking, IoError, WriteFlags};
use longhaul_engine::{Buf, BufMut, Config as EngineConfig, Engine, spawn};
use longhaul_initiator::{ControllerEvent, Options, RemoteDevice};
use longhaul_target::Target;
use longhaul_wire::command::{CrossControllerReset, ReadWrite, Sqe, io as opcode};
use longhaul_wire::completion::Status;
use longhaul_wire::identify::{IdentifyController, cns};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const BLOCK: usize = 16_384;

fn behind(device: &Arc<dyn BlockDevice>, options: Options) -> (Target, Relay, Arc<RemoteDevice>) {
    let target = target(|config| config.engine = options.engine.clone());
    let nsid = target.export(NQN, "disk", Arc::clone(device), Uuid::from_u128(7)).expect("exported");
    let relay = Relay::start(target.addresses()[0]);
    let uri = format!("nvme+tcp://{}/{NQN}?nsid={nsid}", target.addresses()[0]);
    let remote = connect(&relay.uri(&uri), options).expect("connected");
    (target, relay, remote)
}

fn with(engine: &EngineConfig) -> Options {
    Options { engine: engine.clone(), ..Options::default() }
}

fn open(remote: &Arc<RemoteDevice>, engine: &EngineConfig) -> Blocking {
    Blocking::open_on(Arc::clone(remote) as _, engine.clone()).expect("opened")
}

/// Reasons for which connections were given up so far.
fn reasons(events: &mut UnboundedReceiver<ControllerEvent>) -> Vec<String> {
    let all = std::iter::from_fn(|| events.try_recv().ok());
    all.filter_map(|event| match event {
        ControllerEvent::Reconnecting { reason, .. } | ControllerEvent::Lost(reason) => Some(reason),
        _ => None,
    })
    .collect()
}

/// Packets to the target arrive, those from it do not: I/O waits, and the silence is noticed.
#[test]
fn a_link_that_is_one_way_only_is_noticed() {
    for engine in engines() {
        for (forward, back) in [(false, true), (true, false), (true, true)] {
            let options = Options { kato: Duration::from_millis(500), ..with(&engine) };
            let (_target, relay, remote) = behind(&backend("mem:8MiB"), options);
            let mut events = remote.events();
            let disk = open(&remote, &engine);
            disk.write_at(&pattern(BLOCK, 1), 0).expect("written");
            relay.hold(forward, back);
            let writer = std::thread::spawn(move || {
                disk.write_at(&pattern(BLOCK, 2), 0).expect("written");
                read(&disk, 0, BLOCK).expect("read")
            });
            let seen = std::cell::RefCell::new((&mut events, Vec::new()));
            until("the silence to be noticed", || {
                let (events, all) = &mut *seen.borrow_mut();
                all.extend(reasons(events));
                !all.is_empty()
            });
            let first = seen.into_inner().1.remove(0);
            assert!(first.contains("no answer to Keep Alive for 500 ms"), "{first}");
            relay.hold(false, false);
            let found = in_time("the write", move || writer.join().expect("no fault"));
            assert!(found == pattern(BLOCK, 2));
        }
    }
}

/// A device that takes several time-outs to answer is slow, and no more.
#[test]
fn a_far_side_that_is_slow_is_left_alone() {
    for engine in engines() {
        let gate = hold_disk(8 << 20);
        let options = Options { kato: Duration::from_secs(2), ..with(&engine) };
        let (target, relay, remote) = behind(&(Arc::new(gate.clone()) as _), options);
        let mut events = remote.events();
        let disk = open(&remote, &engine);
        let (connections, accepted) = (target.connections(), relay.accepted());
        gate.hold(OpKind::Read, 1);
        let reader = std::thread::spawn(move || read(&disk, 0, BLOCK).expect("read"));
        until("the device to hold it", || gate.held() == 1);
        // Nothing is to happen for several time-outs: there is no event.
        std::thread::sleep(Duration::from_secs(7));
        assert_eq!(reasons(&mut events), Vec::<String>::new());
        assert_eq!((target.connections(), relay.accepted()), (connections, accepted));
        gate.release();
        in_time("the read", move || reader.join().expect("no fault"));
    }
}

/// Completions with identifiers of no outstanding command end the connection, and
/// each next one too. The reason is named, and retries slow down.
#[test]
fn wrong_command_identifiers_end_the_connection_and_the_reason_is_named() {
    for engine in engines() {
        let options = Options { ctrl_loss: Some(Duration::from_secs(3)), ..with(&engine) };
        let (_target, relay, remote) = behind(&backend("mem:8MiB"), options);
        let mut events = remote.events();
        let disk = open(&remote, &engine);
        let before = relay.accepted();
        let mut flushes = BTreeMap::new();
        relay.tamper(Some(Box::new(move |connection, way, bytes| {
            // CapsuleCmd (4) with a Flush, then CapsuleResp (5): its command
            // identifier is in bytes 12 and 13 of the completion behind the
            // common header of 8.
            if way == Way::Forward && bytes.len() >= 72 && bytes[0] == 4 {
                flushes.insert(connection, bytes[8] == opcode::FLUSH);
            }
            if way == Way::Back && bytes[0] == 5 && flushes.get(&connection) == Some(&true) {
                bytes[20] ^= 0x55;
            }
        })));
        let e = in_time("the end", move || disk.flush().expect_err("it never gets through"));
        assert!(matches!(e, IoError::Unreachable(_)), "{e}");
        let text = e.to_string();
        assert!(text.contains("--ctrl-loss-timeout") && text.contains("response to no outstanding"), "{e}");
        let all = reasons(&mut events);
        assert!(all.iter().any(|r| r.contains("in a row have ended before any I/O was done")), "{all:?}");
        // Two connections for each try: at 50, 200, 400, 800, 1600 ms and so
        // on there are less than ten in three seconds.
        assert!(relay.accepted() - before <= 24, "{} connections", relay.accepted() - before);
    }
}

/// The second answer to a command is one to no command.
#[test]
fn bytes_that_come_twice_end_the_connection_and_io_goes_on() {
    for engine in engines() {
        let (_target, relay, remote) = behind(&backend("mem:8MiB"), with(&engine));
        let mut events = remote.events();
        let disk = open(&remote, &engine);
        // An answer is turned into a copy of the one before.
        let mut last: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        let mut once = true;
        relay.tamper(Some(Box::new(move |connection, way, bytes| {
            if way == Way::Back && bytes.len() == 24 && bytes[0] == 5 {
                if let Some(earlier) = last.get(&connection)
                    && std::mem::take(&mut once)
                {
                    bytes.copy_from_slice(earlier);
                }
                last.insert(connection, bytes.to_vec());
            }
        })));
        for i in 0..4 {
            disk.write_at(&pattern(BLOCK, i), i * BLOCK as u64).expect("written");
        }
        for i in 0..4 {
            assert!(read(&disk, i * BLOCK as u64, BLOCK).expect("read") == pattern(BLOCK, i));
        }
        let all = reasons(&mut events);
        assert!(all.iter().any(|r| r.contains("response to no outstanding command")), "{all:?}");
    }
}

/// A command that a device has lost is aborted and tried again.
#[test]
fn a_command_that_is_late_is_aborted_and_tried_again() {
    for engine in engines() {
        let gate = hold_disk(8 << 20);
        let options = Options { io_timeout: Duration::from_secs(2), ..with(&engine) };
        let (_target, _relay, remote) = behind(&(Arc::new(gate.clone()) as _), options);
        let mut events = remote.events();
        let disk = open(&remote, &engine);
        disk.write_at(&pattern(BLOCK, 1), 0).expect("written");
        gate.hold(OpKind::Read, 1);
        let found = in_time("the read", move || read(&disk, 0, BLOCK).expect("read"));
        assert!(found == pattern(BLOCK, 1) && gate.held() == 1);
        assert_eq!(reasons(&mut events), Vec::<String>::new(), "the connection stays");
        gate.release();
    }
}

/// Time that a command has spent on a connection that is lost does not count on
/// the next one.
#[test]
fn the_time_of_a_command_begins_anew_on_every_connection() {
    for engine in engines() {
        let gate = hold_disk(8 << 20);
        let (_target, relay, remote) = behind(&(Arc::new(gate.clone()) as _), with(&engine));
        let mut events = remote.events();
        let disk = Arc::new(open(&remote, &engine));
        gate.hold(OpKind::Read, usize::MAX);
        let begin = |at| {
            let disk = Arc::clone(&disk);
            std::thread::spawn(move || read(&disk, at, BLOCK).expect("read"))
        };
        // A connection in use is looked at every quarter of a second, and so
        // gets on in years.
        let first = begin(0);
        until("the first read", || gate.held() == 1);
        std::thread::sleep(Duration::from_millis(1500));
        gate.release();
        in_time("the first read", move || first.join().expect("no fault"));
        // Nothing is ahead of this one: its time begins.
        let second = begin(1 << 20);
        until("the second read", || gate.held() == 1);
        std::thread::sleep(Duration::from_millis(500));
        relay.flap();
        until("it to be on another connection", || gate.held() >= 2);
        // For several looks. (On a busy machine it may take several connections.)
        std::thread::sleep(Duration::from_secs(1));
        let all = reasons(&mut events);
        assert!(
            !all.is_empty() && !all.iter().any(|r| r.contains("has not ended")),
            "it is not late: {all:?}"
        );
        // It is still looked after.
        relay.flap();
        until("it to be on a third one", || gate.held() >= 3);
        gate.hold(OpKind::Read, 0);
        gate.release();
        in_time("the second read", move || second.join().expect("no fault"));
    }
}

/// One that cannot be aborted, since a device is busy with it, costs the
/// connection; its end is waited for, and nothing fails.
#[test]
fn a_command_that_does_not_end_makes_the_connection_anew() {
    for engine in engines() {
        let gate = hold_disk(8 << 20);
        let options = Options { io_timeout: Duration::from_millis(500), ..with(&engine) };
        let (_target, _relay, remote) = behind(&(Arc::new(gate.clone()) as _), options);
        let mut events = remote.events();
        let disk = open(&remote, &engine);
        gate.hold(OpKind::Write, 1);
        let writer = std::thread::spawn(move || {
            disk.write_at(&pattern(BLOCK, 1), 0).expect("written");
            read(&disk, 0, BLOCK).expect("read")
        });
        let seen = std::cell::RefCell::new((&mut events, Vec::new()));
        until("another connection", || {
            let (events, all) = &mut *seen.borrow_mut();
            all.extend(reasons(events));
            !all.is_empty()
        });
        let first = seen.into_inner().1.remove(0);
        assert!(first.contains("a Write command has not ended for 1 s, nor by Abort"), "{first}");
        gate.release();
        assert!(in_time("the write", move || writer.join().expect("no fault")) == pattern(BLOCK, 1));
    }
}

#[test]
fn operations_can_be_aborted_and_the_rest_goes_on() {
    for engine in engines() {
        let gate = hold_disk(32 << 20);
        let options = Options { queue_size: 8, ..with(&engine) };
        let (_target, relay, remote) = behind(&(Arc::new(gate.clone()) as _), options);
        let kept = Arc::clone(&remote);
        gate.hold(OpKind::Read, 64);
        let held = gate.clone();
        in_time("the operations", move || {
            Engine::new(&engine).expect("engine").block_on(async {
                let io = kept.open_io().await.expect("opened");
                // More than the queue has room for, in parts.
                let (reads, abort) = io.abortable(|io| {
                    (0..8).map(|i| io.read(i << 21, BufMut::zeroed(2 << 20))).collect::<Vec<_>>()
                });
                let write = io.write(0, Buf::copy_of(&pattern(BLOCK, 1)), WriteFlags::default());
                while held.held() == 0 {
                    longhaul_engine::sleep(Duration::from_millis(1)).await;
                }
                let aborting = spawn(async move { abort.abort().await });
                for read in reads {
                    assert_eq!(read.await.map(drop), Err(IoError::Aborted));
                }
                aborting.await;
                write.await.expect("the others are not concerned");
                // A dropped read disturbs no other command.
                drop(io.read(0, BufMut::zeroed(BLOCK)));
                held.hold(OpKind::Read, 0);
                let found = io.read(0, BufMut::zeroed(BLOCK)).await.expect("read");
                assert!(found[..] == pattern(BLOCK, 1));

                // Without a connection no Abort has to be sent.
                relay.cut();
                let (read, abort) = io.abortable(|io| io.read(0, BufMut::zeroed(BLOCK)));
                abort.abort().await;
                assert_eq!(read.await.map(drop), Err(IoError::Aborted));
                relay.restore();
                io.read(0, BufMut::zeroed(BLOCK)).await.expect("read");
            });
        });
        gate.release();
    }
}

/// Lanes of an unreachable target stall no others: another device on the same
/// threads continues at full speed.
#[test]
fn a_device_that_is_cut_off_stalls_no_other() {
    for engine in engines() {
        let (_one, cut, first) = behind(&backend("mem:8MiB"), with(&engine));
        let (_two, _relay, second) = behind(&backend("mem:8MiB"), with(&engine));
        in_time("the I/O", move || {
            Engine::new(&engine).expect("engine").block_on(async {
                let (dead, alive) =
                    (first.open().await.expect("opened"), second.open().await.expect("opened"));
                cut.cut();
                let waits = dead.read(0, BufMut::zeroed(BLOCK));
                for i in 0..500 {
                    alive.read(i % 64 * 4096, BufMut::zeroed(4096)).await.expect("read");
                }
                cut.restore();
                waits.await.expect("read");
            });
        });
    }
}

fn identify(admin: &mut Raw) -> IdentifyController {
    let slot = admin.submit_read(Sqe::identify(cns::CONTROLLER, 0, 0), 4096);
    assert!(admin.completion().1.status().is_success());
    IdentifyController::decode(admin.data(slot)).expect("whole")
}

//= test: NVMe Base 2.3, Cross-Controller Reset command
#[test]
fn a_host_ends_its_own_controllers_and_no_others() {
    let gate = hold_disk(8 << 20);
    let target = target(|_| {});
    target.export(NQN, "disk", Arc::new(gate.clone()) as _, Uuid::from_u128(7)).expect("exported");
    let addr = target.addresses()[0];
    let (mut old, old_id) = Raw::admin(addr, NQN, 0);
    let id = identify(&mut old);
    let mut io = Raw::io(addr, NQN, 1, old_id);
    gate.hold(OpKind::Write, 1);
    io.submit(ReadWrite::new(0, 1).to_sqe(opcode::WRITE, 1), Some(vec![9; 4096]));
    until("the device to hold the write", || gate.held() == 1);

    let reset = |admin: &mut Raw, sqe: Sqe| {
        admin.submit(sqe, None);
        let (_, cqe) = admin.completion();
        (cqe.status(), cqe.dw0())
    };
    let whole = Sqe::cross_controller_reset(old_id, id.ciu, id.cirn);
    // Of another host: the same name, or the same identifier, is not enough.
    for host in [(HOSTNQN, Uuid::from_u128(8)), ("nqn.2026-11.io.longhaul:test:other", HOSTID)] {
        let (mut stranger, _) = Raw::admin_of(addr, NQN, 0, host);
        let (status, _) = reset(&mut stranger, whole);
        assert!(status.is(Status::INVALID_FIELD), "{status}");
    }
    let (mut new, _) = Raw::admin(addr, NQN, 0);
    // Another instance: it does not exist, and this one stays.
    for other in [(id.ciu ^ 1, id.cirn), (id.ciu, !id.cirn)] {
        let (status, done) = reset(&mut new, Sqe::cross_controller_reset(old_id, other.0, other.1));
        assert!(status.is_success() && done == CrossControllerReset::DONE);
    }
    old.submit(Sqe::keep_alive(), None);
    assert!(old.completion().1.status().is_success(), "it lives");

    new.submit(whole, None);
    in_time("the old queues", move || {
        io.wait_for_end();
        old.wait_for_end();
    });
    // The device is busy with the write: the reset is not done.
    new.submit(Sqe::keep_alive(), None);
    let (first, _) = new.completion();
    gate.release();
    let (second, cqe) = new.completion();
    assert!(first != second && cqe.status().is_success());
    assert_eq!(cqe.dw0(), CrossControllerReset::DONE);
    let below = Blocking::open(Arc::new(gate.clone()) as _).expect("opened");
    assert_eq!(read(&below, 0, 4096).expect("read"), [9; 4096], "it has ended");
    until("only the new controllers to be left", || target.connections() == 1);
}
