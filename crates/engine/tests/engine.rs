//! Both drivers, on real sockets, files and timers.

use futures_channel::mpsc::{UnboundedSender, unbounded};
use futures_util::StreamExt;
use longhaul_engine::net::{SocketOptions, TcpListener, TcpStream};
use longhaul_engine::{
    Buf, BufMut, BufPool, Config, Engine, EngineKind, Memory, RecvMsg, SendMsg, Thread, fs::File, sleep,
    spawn, sync::Notify, timeout, yield_now,
};
use std::cell::Cell;
use std::net::Shutdown;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs `test` on every driver that this machine grants.
fn on_each_driver(test: impl Fn(&Engine)) {
    for kind in [EngineKind::Epoll, EngineKind::Uring] {
        let config = Config { kind, ..Config::default() };
        match Engine::new(&config) {
            Ok(engine) => test(&engine),
            Err(e) => longhaul_skip::skip_part!("{kind}: {e}"),
        }
    }
}

async fn pair() -> (TcpStream, TcpStream) {
    let options = SocketOptions::default();
    let listener = TcpListener::bind("127.0.0.1:0".parse().expect("address")).expect("bind");
    let addr = listener.local_addr().expect("address");
    let client = TcpStream::connect(addr, &options).await.expect("connect");
    let (server, _) = listener.accept().await.expect("accept");
    (client, TcpStream::from_std(server, &options).expect("adopt"))
}

#[test]
fn tasks_timers_and_signals() {
    on_each_driver(|engine| {
        let began = Instant::now();
        let got = engine.block_on(async {
            let notify = Rc::new(Notify::new());
            let signaller = Rc::clone(&notify);
            spawn(async move {
                sleep(Duration::from_millis(5)).await;
                signaller.notify();
            })
            .detach();
            notify.notified().await;
            let late = timeout(Duration::from_millis(2), std::future::pending::<()>()).await;
            assert!(late.is_err());
            spawn(async { 42 }).await
        });
        assert_eq!(got, 42);
        assert!(began.elapsed() >= Duration::from_millis(7));
    });
}

#[test]
fn payload_goes_to_its_memory_and_the_rest_to_staging() {
    on_each_driver(|engine| {
        engine.block_on(async {
            let (client, server) = pair().await;
            let payload: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
            let mut msg = SendMsg::new();
            msg.begin(b"headtail".to_vec());
            msg.push_bytes(0, 4);
            msg.push(Buf::copy_of(&payload).segment());
            msg.push_bytes(4, 4);
            let sender = spawn(async move {
                let (result, msg) = client.send(msg).await;
                result.expect("sent");
                assert!(msg.is_empty());
                client
            });
            let mut recv = RecvMsg::new(64);
            recv.set_staging_limit(4);
            let (n, back) = server.recv(recv).await;
            recv = back;
            assert_eq!((n.expect("received"), recv.staged()), (4, &b"head"[..]));
            let mut memory = Memory::Buf(BufMut::zeroed(payload.len()));
            let mut done = 0;
            while done < payload.len() {
                recv.set_direct(memory, done, payload.len() - done);
                recv.set_staging_limit(64);
                let (n, back) = server.recv(recv).await;
                assert!(n.expect("received") > 0);
                recv = back;
                let staged = recv.staged().len();
                let (mem, got) = recv.take_direct().expect("set above");
                memory = mem;
                done += got;
                assert_eq!(recv.received(), got + staged);
            }
            assert!(memory.bytes() == Some(&payload[..]));
            let client = sender.await;
            client.shutdown(Shutdown::Write).expect("shutdown");
            recv.set_staging_limit(64);
            let mut rest = recv.staged().to_vec();
            loop {
                let (n, back) = server.recv(recv).await;
                recv = back;
                if n.expect("received") == 0 {
                    break;
                }
                rest.extend_from_slice(recv.staged());
            }
            assert_eq!(rest, b"tail");
        });
    });
}

#[test]
fn what_is_discarded_is_counted_and_what_follows_is_received() {
    on_each_driver(|engine| {
        engine.block_on(async {
            let (client, server) = pair().await;
            let mut msg = SendMsg::new();
            msg.begin(Vec::new());
            msg.push(Buf::copy_of(&[7; 100_000]).segment());
            msg.push(Buf::copy_of(b"rest").segment());
            let sender = spawn(async move {
                let (result, _) = client.send(msg).await;
                result.map(|()| client)
            });
            let mut left = 100_000;
            while left > 0 {
                let n = server.discard(left).await.expect("discarded");
                assert!(n > 0 && n <= left as usize, "{n} of {left}");
                left -= n as u32;
            }
            let (n, msg) = server.recv(RecvMsg::new(64)).await;
            assert_eq!((n.expect("received"), msg.staged()), (4, &b"rest"[..]));
            drop(sender.await.expect("sent"));
            assert_eq!(server.discard(64).await.expect("the end"), 0);
        });
    });
}

#[test]
fn a_task_whose_data_is_always_there_lets_others_and_timers_run() {
    const BYTES: u32 = 20_000;
    on_each_driver(|engine| {
        engine.block_on(async {
            let (client, server) = pair().await;
            let mut msg = SendMsg::new();
            msg.begin(Vec::new());
            msg.push(Buf::copy_of(&[7; BYTES as usize]).segment());
            client.send(msg).await.0.expect("sent");
            let ran = Rc::new(Cell::new(0));
            let other = Rc::clone(&ran);
            let _other = spawn(async move {
                loop {
                    other.set(other.get() + 1);
                    yield_now().await;
                }
            });
            let fired = Rc::new(Cell::new(false));
            let timer = Rc::clone(&fired);
            let _timer = spawn(async move {
                sleep(Duration::from_micros(1)).await;
                timer.set(true);
            });
            for _ in 0..BYTES {
                assert_eq!(server.discard(1).await.expect("there"), 1);
            }
            assert!(ran.get() > BYTES / 100 && fired.get(), "{} turns, timer: {}", ran.get(), fired.get());
        });
    });
}

#[test]
fn a_dropped_receive_is_cancelled_and_loses_no_memory() {
    on_each_driver(|engine| {
        engine.block_on(async {
            let (client, server) = pair().await;
            for _ in 0..100 {
                let wait = server.recv(RecvMsg::new(4096));
                assert!(timeout(Duration::from_micros(200), wait).await.is_err());
            }
            let mut msg = SendMsg::new();
            msg.begin(b"x".to_vec());
            msg.push_bytes(0, 1);
            client.send(msg).await.0.expect("sent");
            let (n, msg) = server.recv(RecvMsg::new(16)).await;
            assert_eq!((n.expect("received"), msg.staged()), (1, &b"x"[..]));
        });
    });
}

/// An operation on a socket that is begun and dropped, with the socket, in one
/// round: it is queued, and has not reached the kernel.
async fn begin_and_drop(what: &str, socket: std::net::TcpStream) {
    let stream = TcpStream::from_std(socket, &SocketOptions::default()).expect("adopt");
    let mut message = SendMsg::new();
    message.begin(b"stray".to_vec());
    message.push_bytes(0, 5);
    match what {
        "recv" => drop(futures_util::poll!(Box::pin(stream.recv(RecvMsg::new(64))))),
        "discard" => drop(futures_util::poll!(Box::pin(stream.discard(64)))),
        "send" => drop(futures_util::poll!(Box::pin(stream.send(message)))),
        other => unreachable!("{other}"),
    }
}

#[test]
fn an_operation_of_a_closed_socket_never_reaches_the_next_one() {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    on_each_driver(|engine| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let addr = listener.local_addr().expect("address");
        let pair = || {
            let client = std::net::TcpStream::connect(addr).expect("connected");
            let (server, _) = listener.accept().expect("accepted");
            (client, server)
        };
        // Other tests of this process may take the number first: often enough.
        for round in 0..20 {
            let what = ["recv", "discard", "send"][round % 3];
            engine.block_on(async {
                let (old, _peer) = pair();
                let number = old.as_raw_fd();
                begin_and_drop(what, old).await;
                // Still in that round: nothing has been submitted.
                let (mut next, mut peer) = pair();
                peer.write_all(b"bytes of the next connection").expect("written");
                let mut there = [0; 28];
                while next.peek(&mut there).expect("looked") < there.len() {}
                sleep(Duration::from_millis(1)).await;
                let same = next.as_raw_fd() == number;
                next.set_read_timeout(Some(Duration::from_secs(10))).expect("time limit");
                next.read_exact(&mut there)
                    .unwrap_or_else(|e| panic!("{what} took bytes: {e} (same: {same})"));
                assert_eq!(&there, b"bytes of the next connection", "{what}");
                drop(next);
                let mut sent = Vec::new();
                peer.read_to_end(&mut sent).expect("the end");
                assert!(sent.is_empty(), "{what}: {} bytes of another connection were sent", sent.len());
            });
        }
    });
}

#[test]
fn memory_of_an_operation_that_ended_unseen_is_given_back() {
    on_each_driver(|engine| {
        engine.block_on(async {
            let (client, server) = pair().await;
            let pool = BufPool::new(1 << 20);
            let mut message = SendMsg::new();
            message.begin(b"x".to_vec());
            message.push_bytes(0, 1);
            client.send(message).await.0.expect("sent");
            let mut receive = RecvMsg::new(64);
            receive.set_direct(Memory::Buf(pool.try_alloc(4096).expect("memory")), 0, 4096);
            let mut waiting = Box::pin(server.recv(receive));
            drop(futures_util::poll!(&mut waiting));
            // It is done by now, and was not looked at again.
            sleep(Duration::from_millis(5)).await;
            drop(waiting);
            sleep(Duration::from_millis(1)).await;
            assert_eq!(pool.used(), 0, "its memory is back");
        });
    });
}

#[test]
fn an_engine_ends_with_operations_under_way() {
    on_each_driver(|engine| {
        engine.block_on(async {
            let (client, server) = pair().await;
            spawn(async move {
                let _client = client;
                server.recv(RecvMsg::new(4096)).await.0.expect("never");
            })
            .detach();
            sleep(Duration::from_millis(1)).await;
        });
    });
}

#[test]
fn an_engine_ends_every_task_that_it_has() {
    struct Told(Rc<std::cell::Cell<u32>>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let ended = Rc::new(std::cell::Cell::new(0));
    let engine = Engine::new(&Config::default()).expect("engine");
    engine.block_on(async {
        for _ in 0..10 {
            let told = Told(Rc::clone(&ended));
            // It waits for what only itself could signal.
            spawn(async move {
                let _told = told;
                Notify::new().notified().await;
            })
            .detach();
        }
        sleep(Duration::from_millis(1)).await;
    });
    assert_eq!(ended.get(), 0);
    drop(engine);
    assert_eq!(ended.get(), 10);
}

/// Another thread may wake tasks at the very moment that their engine ends: it
/// is the engine that ends them all the same.
#[test]
fn an_engine_ends_tasks_that_others_are_waking() {
    /// Has every task woken while the engine is ending.
    struct Last(Vec<UnboundedSender<()>>);
    impl Drop for Last {
        fn drop(&mut self) {
            let senders = std::mem::take(&mut self.0);
            let waking = move || senders.iter().for_each(|sender| _ = sender.unbounded_send(()));
            std::thread::spawn(waking).join().expect("no panic");
        }
    }
    for kind in [EngineKind::Epoll, EngineKind::Uring] {
        let Ok(engine) = Engine::new(&Config { kind, ..Config::default() }) else { continue };
        let held = Arc::new(());
        let senders = engine.block_on(async {
            let senders = (0..10).map(|_| {
                let (sender, mut inbox) = unbounded();
                let held = Arc::clone(&held);
                spawn(async move {
                    while inbox.next().await.is_some() {}
                    drop(held);
                })
                .detach();
                sender
            });
            let senders = senders.collect();
            sleep(Duration::from_millis(1)).await;
            senders
        });
        // A job that is never run.
        let last = Last(senders);
        let _never = engine.handle().spawn(move || async move { drop(last) });
        drop(engine);
        assert_eq!(Arc::strong_count(&held), 1, "a task was left with its references");
    }
}

/// Bytes that the kernel takes for a peer that does not read.
async fn taken(limit: Option<u32>) -> usize {
    const PIECE: usize = 16 << 10;
    let (client, _server) = pair().await;
    if let Some(bytes) = limit {
        client.limit_unsent(bytes).expect("limited");
    }
    let mut taken = 0;
    loop {
        let mut msg = SendMsg::new();
        msg.begin(vec![0; PIECE]);
        msg.push_bytes(0, PIECE);
        match timeout(Duration::from_millis(300), client.send(msg)).await {
            Ok((sent, _)) => sent.expect("sent"),
            Err(_) => return taken,
        }
        taken += PIECE;
    }
}

#[test]
fn the_kernel_takes_no_more_than_the_limit_beyond_the_window() {
    on_each_driver(|engine| {
        let (free, limited) = engine.block_on(async { (taken(None).await, taken(Some(32 << 10)).await) });
        assert!(2 * limited < free, "{limited} B taken with a limit of 32 KiB, {free} B without");
    });
}

#[test]
fn connection_refused_is_an_error() {
    on_each_driver(|engine| {
        engine.block_on(async {
            let free = TcpListener::bind("127.0.0.1:0".parse().expect("address")).expect("bind");
            let addr = free.local_addr().expect("address");
            drop(free);
            let e = TcpStream::connect(addr, &SocketOptions::default()).await.expect_err("refused");
            assert_eq!(e.kind(), std::io::ErrorKind::ConnectionRefused);
        });
    });
}

#[test]
fn files_read_write_and_sync() {
    on_each_driver(|engine| {
        engine.block_on(async {
            let file = File::from(tempfile::tempfile().expect("temporary file"));
            let data: Vec<u8> = (0..300_000u32).map(|i| (i * 7) as u8).collect();
            file.write_at(Buf::copy_of(&data), 4096, true).await.expect("written");
            file.sync_data().await.expect("synced");
            let (n, buf) = file.read_at(BufMut::zeroed(data.len() + 10), 4096).await;
            assert_eq!(n.expect("read"), data.len());
            assert!(buf[..data.len()] == data[..]);
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            if file.fallocate(mode, 4096, 4096).await.is_ok() {
                let (_, buf) = file.read_at(BufMut::zeroed(4096), 4096).await;
                assert!(buf.iter().all(|&b| b == 0));
            }
        });
    });
}

#[test]
fn other_threads_reach_an_engine() {
    for kind in [EngineKind::Epoll, EngineKind::Auto] {
        let thread = Thread::start("test-engine", Config { kind, ..Config::default() }).expect("thread");
        let handle = thread.handle();
        // Long enough for the engine to sleep in between.
        for i in 0..200u64 {
            let got = handle.spawn(move || async move { i + 1 }).wait();
            assert_eq!(got, Ok(i + 1));
        }
        let slow = handle.spawn(|| async {
            sleep(Duration::from_millis(3)).await;
            7
        });
        assert_eq!(slow.wait(), Ok(7));
        drop(thread);
        assert!(handle.spawn(|| async {}).wait().is_err());
    }
}

/// Processor time of this process, by the kernel's count.
fn cpu_time() -> Duration {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is writable.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut ts) };
    assert_eq!(rc, 0);
    Duration::new(ts.tv_sec as u64, ts.tv_nsec as u32)
}

#[test]
fn an_idle_engine_sleeps() {
    on_each_driver(|engine| {
        let used = engine.block_on(async {
            let began = cpu_time();
            for _ in 0..5 {
                sleep(Duration::from_millis(40)).await;
            }
            cpu_time() - began
        });
        assert!(used < Duration::from_millis(10), "{used:?} of processor time in 200 ms of idling");
    });
}

/// Policy and niceness of the calling thread, as the kernel has them.
fn scheduling() -> (i64, i64) {
    // SAFETY: neither call involves memory. The system call returns 20 less the niceness.
    unsafe {
        (libc::syscall(libc::SYS_sched_getscheduler, 0), 20 - libc::syscall(libc::SYS_getpriority, 0, 0))
    }
}

/// Threads inherit a real-time policy, which niceness does not matter to.
#[test]
fn a_thread_in_the_background_steps_back_from_a_real_time_policy() {
    let other = i64::from(libc::SCHED_OTHER);
    let starter = std::thread::spawn(move || {
        let priority: libc::c_int = 1;
        // SAFETY: the kernel reads one integer; about the calling thread alone.
        let rc =
            unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_RR, &raw const priority) };
        if rc != 0 {
            longhaul_skip::skip_part!("this process may not have a real-time policy");
        }
        let (policy, nice) = scheduling();
        let of = |thread: &Thread| thread.handle().spawn(|| async { scheduling() }).wait();
        let plain = Thread::start("test-plain", Config::default()).expect("thread");
        assert_eq!(of(&plain), Ok((policy, nice)), "inherited");
        let background = Thread::background("test-behind", Config::default()).expect("thread");
        assert_eq!(of(&background), Ok((other, (nice + 10).min(19))));
    });
    starter.join().expect("judged");
}
