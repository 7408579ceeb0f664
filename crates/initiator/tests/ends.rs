//! How connections end, and what becomes of I/O then.

mod common;

use common::raw::Raw;
use common::{NQN, backend, connect, engines, export, in_time, pattern, read, serve, target, until};
use longhaul_block::{BlockDevice, Blocking, IoError, MemDevice, WriteFlags};
use longhaul_engine::{Buf, BufMut, Config as EngineConfig, Engine, sleep};
use longhaul_initiator::{ControllerEvent, Options};
use longhaul_target::Target;
use longhaul_wire::command::{ReadWrite, Sqe, io as opcode};
use longhaul_wire::completion::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// A connection that is lost is not made again.
fn without_retries(engine: &EngineConfig) -> Options {
    Options { engine: engine.clone(), ctrl_loss: Some(Duration::ZERO), ..Options::default() }
}

/// The target stops while threads write: acknowledged writes are in the file, the rest fails, and
/// nothing hangs.
#[test]
fn a_target_that_stops_under_load_loses_nothing_that_it_acknowledged() {
    const WRITERS: u64 = 4;
    const BLOCK: u64 = 65_536;
    const BLOCKS: u64 = 512;
    for engine in engines() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("disk");
        let target = target(|config| config.engine = engine.clone());
        let uri = export(&target, &format!("file:{},size=128MiB", path.display()));
        let device = connect(&uri, without_retries(&engine)).expect("connected");
        let acknowledged = Arc::new(AtomicU64::new(0));
        let writers: Vec<_> = (0..WRITERS)
            .map(|w| {
                let device: Arc<dyn BlockDevice> = device.clone();
                let (engine, acknowledged) = (engine.clone(), Arc::clone(&acknowledged));
                std::thread::spawn(move || {
                    let disk = Blocking::open_on(device, engine).expect("opened");
                    let mut last = vec![0; BLOCKS as usize];
                    for i in 0.. {
                        let block = i % BLOCKS;
                        let bytes = pattern(BLOCK as usize, w << 40 | i);
                        if let Err(e) = disk.write_at(&bytes, (w * BLOCKS + block) * BLOCK) {
                            assert!(
                                matches!(e, IoError::Unreachable(_) | IoError::Aborted | IoError::Refused(_)),
                                "{e}"
                            );
                            // The one that failed may be there or not.
                            last[block as usize] = u64::MAX;
                            return last;
                        }
                        last[block as usize] = i + 1;
                        acknowledged.fetch_add(1, Ordering::Relaxed);
                    }
                    unreachable!("a range without an end")
                })
            })
            .collect();
        until("some writes", || acknowledged.load(Ordering::Relaxed) > 200);
        assert!(in_time("stop", move || target.stop()), "all is durable");
        let lasts = in_time("the writers", move || {
            writers.into_iter().map(|w| w.join().expect("no panic")).collect::<Vec<_>>()
        });
        let file = std::fs::read(&path).expect("read");
        for (w, last) in (0u64..).zip(lasts) {
            for (block, i) in (0u64..).zip(last) {
                if i == 0 || i == u64::MAX {
                    continue;
                }
                let at = ((w * BLOCKS + block) * BLOCK) as usize;
                let found = &file[at..at + BLOCK as usize];
                assert!(found == pattern(BLOCK as usize, w << 40 | (i - 1)), "writer {w}, block {block}");
            }
        }
    }
}

/// A target that dies without a word.
#[test]
fn a_target_that_is_gone_fails_what_is_under_way() {
    for engine in engines() {
        let target = target(|config| config.engine = engine.clone());
        let uri = export(&target, "mem:8MiB,delay=60s");
        let device = connect(&uri, without_retries(&engine)).expect("connected");
        let mut events = device.events();
        let (begun, wait) = std::sync::mpsc::channel();
        // Kept until its end has been reported.
        let kept = Arc::clone(&device);
        let reader = std::thread::spawn(move || {
            Engine::new(&engine).expect("engine").block_on(async {
                let io = device.open().await.expect("opened");
                // More than the queue has room for.
                let reads: Vec<_> = (0..300).map(|_| io.read(0, BufMut::zeroed(4096))).collect();
                sleep(Duration::from_millis(20)).await;
                begun.send(()).expect("waited for");
                for read in reads {
                    let e = read.await.expect_err("the target has ended");
                    assert!(matches!(e, IoError::Unreachable(_)), "{e}");
                }
                let e = io.read(0, BufMut::zeroed(4096)).await.expect_err("it has not come back");
                assert!(matches!(e, IoError::Unreachable(_)), "{e}");
                device.open().await.map(drop).expect_err("nor has the controller");
            });
        });
        wait.recv().expect("begun");
        drop(target);
        in_time("I/O", move || reader.join().expect("no panic"));
        let event = in_time("the event", move || {
            use futures_util::StreamExt;
            Engine::new(&EngineConfig::default()).expect("engine").block_on(events.next())
        });
        assert!(matches!(event, Some(ControllerEvent::Lost(_))), "{event:?}");
        drop(kept);
    }
}

/// Dropping everything in the middle of I/O: operations under way still end, and then the
/// connections close.
#[test]
fn dropping_a_device_ends_what_was_begun_and_then_the_connections() {
    for engine in engines() {
        let target = target(|config| config.engine = engine.clone());
        let memory: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(32 << 20, 4096).expect("mapped"));
        let nsid = target.export(NQN, "disk", Arc::clone(&memory), Uuid::new_v4()).expect("exported");
        let uri = format!("nvme+tcp://{}/{NQN}?nsid={nsid}", target.addresses()[0]);
        let options = Options { engine: engine.clone(), queue_size: 16, ..Options::default() };
        let device = connect(&uri, options).expect("connected");
        let bytes = pattern(16 << 20, 6);
        let source = Buf::copy_of(&bytes);
        Engine::new(&engine).expect("engine").block_on(async {
            let io = device.open().await.expect("opened");
            for i in 0..64 {
                let part = source.slice(i * 262_144..(i + 1) * 262_144);
                drop(io.write(i as u64 * 262_144, part, WriteFlags::default()));
                drop(io.read(i as u64 * 262_144, BufMut::zeroed(262_144)));
            }
            drop((io, device, source));
            let end = longhaul_engine::now() + common::PATIENCE;
            while target.connections() > 0 {
                assert!(longhaul_engine::now() < end, "the connections stay");
                sleep(Duration::from_millis(5)).await;
            }
        });
        let disk = Blocking::open(memory).expect("opened");
        assert!(read(&disk, 0, bytes.len()).expect("read") == bytes);
        until("the memory to come back", || target.memory_used() == 0);
    }
}

/// The connection that was prepared for the first queue was closed before it is needed (targets do
/// not wait for Connect for ever): another one is made.
#[test]
fn a_queue_is_opened_long_after_the_device() {
    use std::net::{Shutdown, TcpListener, TcpStream};
    // ICReq and no more (NVMe-TCP 1.1, ICReq PDU).
    const UNUSED: u64 = 128;
    let (target, uri) = serve("mem:8MiB");
    let addr = target.addresses()[0];
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let uri = uri.replace(&addr.to_string(), &listener.local_addr().expect("address").to_string());
    // A relay that knows how much each connection has sent.
    let connections = Arc::new(std::sync::Mutex::new(Vec::new()));
    let list = Arc::clone(&connections);
    std::thread::spawn(move || {
        for host in listener.incoming() {
            let (host, far) = (host.expect("accepted"), TcpStream::connect(addr).expect("connected"));
            let sent = Arc::new(AtomicU64::new(0));
            list.lock().expect("lock").push((host.try_clone().expect("cloned"), Arc::clone(&sent)));
            let (mut from, mut to) = (far.try_clone().expect("cloned"), host.try_clone().expect("cloned"));
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || {
                use std::io::{Read, Write};
                let (mut host, mut far, mut bytes) = (host, far, [0; 65_536]);
                while let Ok(n @ 1..) = host.read(&mut bytes) {
                    sent.fetch_add(n as u64, Ordering::SeqCst);
                    if far.write_all(&bytes[..n]).is_err() {
                        break;
                    }
                }
                let _ = far.shutdown(Shutdown::Both);
            });
        }
    });
    let device = connect(&uri, Options::default()).expect("connected");
    let mut cut = 0;
    for (stream, sent) in connections.lock().expect("lock").iter() {
        if sent.load(Ordering::SeqCst) == UNUSED {
            stream.shutdown(Shutdown::Both).expect("cut");
            cut += 1;
        }
    }
    assert_eq!(cut, 1, "the connection for the first queue");
    let disk = Blocking::open(device).expect("opened on another connection");
    disk.write_at(&pattern(4096, 1), 0).expect("written");
    assert!(read(&disk, 0, 4096).expect("read") == pattern(4096, 1));
}

/// A connection without I/O lives on for longer than the keep-alive time-out.
#[test]
fn keep_alive_keeps_an_idle_connection() {
    let (target, uri) = serve("mem:8MiB");
    let device =
        connect(&uri, Options { kato: Duration::from_secs(2), ..Options::default() }).expect("connected");
    let mut events = device.events();
    let disk = Blocking::open(device.clone()).expect("opened");
    let connections = target.connections();
    // Nothing is to happen for several time-outs (the target rounds them up
    // to whole seconds): there is no event to wait for.
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(target.connections(), connections);
    assert!(events.try_recv().is_err(), "nothing was lost");
    disk.write_at(&pattern(4096, 1), 0).expect("written");
    assert!(read(&disk, 0, 4096).expect("read") == pattern(4096, 1));
}

//= test: NVMe Base 2.1, Keep Alive Timer: a controller whose timer expires ends the association
#[test]
fn a_host_that_falls_silent_is_dropped_with_all_its_queues() {
    let (target, _uri) = serve("mem:8MiB");
    let addr = target.addresses()[0];
    let (admin, cntlid) = Raw::admin(addr, NQN, 500);
    let io = Raw::io(addr, NQN, 1, cntlid);
    assert_eq!(target.connections(), 2);
    in_time("the admin queue", move || admin.wait_for_end());
    in_time("the I/O queue", move || io.wait_for_end());
    until("the connections to end", || target.connections() == 0);
}

//= test: NVMe Base 2.1, Abort command: a command that is aborted completes with Command Abort Requested
#[test]
fn abort_aborts() {
    // The target takes as long to stop: a read that was not aborted comes to its end.
    let (target, _uri) = serve("mem:8MiB,delay=10s:ops=read");
    let addr = target.addresses()[0];
    let (mut admin, cntlid) = Raw::admin(addr, NQN, 0);
    let mut io = Raw::io(addr, NQN, 1, cntlid);
    let slow = io.submit_read(ReadWrite::new(0, 1).to_sqe(opcode::READ, 1), 4096);
    let other = io.submit_read(ReadWrite::new(1, 1).to_sqe(opcode::READ, 1), 4096);
    // Something that comes after it has been answered, so it has come itself.
    io.submit(ReadWrite::new(2, 1).to_sqe(opcode::WRITE, 1), Some(vec![3; 4096]));
    assert!(io.completion().1.status().is_success());

    admin.submit(Sqe::abort(1, io.cid(slow)), None);
    let (_, cqe) = admin.completion();
    assert!(cqe.status().is_success());
    assert_eq!(cqe.dw0() & 1, 0, "it was aborted");
    let (slot, cqe) = io.completion();
    let code = |s: Status| (s.sct(), s.sc());
    assert_eq!((slot, code(cqe.status())), (slow, code(Status::ABORT_REQUESTED)));

    // A command that is not there cannot be aborted, and the queue stays usable.
    let missing = 0x7fff;
    assert_ne!(io.cid(other), missing);
    admin.submit(Sqe::abort(1, missing), None);
    let (_, cqe) = admin.completion();
    assert_eq!((cqe.status().is_success(), cqe.dw0() & 1), (true, 1));
    io.submit(ReadWrite::new(2, 1).to_sqe(opcode::WRITE, 1), Some(vec![4; 4096]));
    assert!(io.completion().1.status().is_success());
    drop(io);
    until("only the admin queue to be left", || target.connections() == 1);
}

/// Hosts that come and go in all states leave nothing behind.
#[test]
fn connections_that_break_off_leave_nothing_behind() {
    let (target, uri) = serve("mem:8MiB,delay=50ms");
    let addr = target.addresses()[0];
    for round in 0..20 {
        drop(std::net::TcpStream::connect(addr).expect("connected"));
        drop(Raw::open(addr));
        let (admin, cntlid) = Raw::admin(addr, NQN, 0);
        let mut io = Raw::io(addr, NQN, 1, cntlid);
        for _ in 0..8 {
            io.submit(ReadWrite::new(0, 2).to_sqe(opcode::WRITE, 1), Some(vec![round; 8192]));
            io.submit_read(ReadWrite::new(0, 2).to_sqe(opcode::READ, 1), 8192);
        }
        drop((admin, io));
    }
    until("the connections to end", || target.connections() == 0);
    until("the memory to come back", || target.memory_used() == 0);
    let disk = common::disk(&uri, Options::default());
    assert_eq!(disk.info().size, backend("mem:8MiB").info().size);
    disk.write_at(&[1; 4096], 0).expect("written");
}

/// The sockets of a target that was killed outlive its process for a moment.
#[test]
fn an_address_that_becomes_free_is_taken_over() {
    let predecessor = std::net::TcpListener::bind(common::LISTEN).expect("bound");
    let addr = predecessor.local_addr().expect("address");
    let config = || longhaul_target::Config { listen: vec![addr], ..Default::default() };
    let e = Target::start(config()).map(drop).expect_err("it stays in use");
    assert!(e.to_string().contains("another program listens there"), "{e}");
    let leaves = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        drop(predecessor);
    });
    let target = Target::start(config()).expect("started");
    assert_eq!(target.addresses()[0], addr);
    leaves.join().expect("no panic");
}
