//! The server of metrics: what it answers, and to whom, whatever others do.

mod reader;

use longhaul_block::{BlockDevice, DeviceInfo, IoError, MemDevice, Open, WriteFlags};
use longhaul_initiator::{Options, RemoteDevice};
use longhaul_metrics::{Bound, Server, TargetSource};
use longhaul_target::{Config, Target};
use reader::read;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use uuid::Uuid;

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

fn server() -> Server {
    Bound::bind(loopback()).expect("bound").start("a test begins").expect("started")
}

/// What comes for these bytes, until the end.
fn send(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    // The server may have closed it before it has all.
    let _ = stream.write_all(request);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let answer = send(address, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    (status.unwrap_or_else(|| panic!("{head}")), body.to_owned())
}

#[test]
fn requests_are_answered_with_the_status_that_suits_them() {
    let server = server();
    let at = server.address();
    assert_eq!(get(at, "/readyz"), (503, "a test begins\n".into()));
    server.set_ready();
    assert_eq!(get(at, "/readyz"), (200, "ok\n".into()));
    assert_eq!(get(at, "/healthz?verbose"), (200, "ok\n".into()));
    assert_eq!(get(at, "/metric").0, 404);
    let status = |request: &[u8]| send(at, request).split("\r\n").next().unwrap_or_default().to_owned();
    let post = send(at, b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
    assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("\r\nAllow: GET, HEAD\r\n"), "{post}");
    assert_eq!(status(b"DELETE /x HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
    assert_eq!(status(b"nonsense\r\n\r\n"), "HTTP/1.1 400 Bad Request");
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    assert_eq!(status(long.as_bytes()), "HTTP/1.1 431 Request Header Fields Too Large");
    let head = send(at, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    let (_, text) = get(at, "/metrics");
    let page = read(&text, false).unwrap_or_else(|why| panic!("{why}\n{text}"));
    assert_eq!(page.all("longhaul_build_info", &[]), [1.0]);
    assert!(page.one("process_resident_memory_bytes", &[]) > 1e5);
    let open =
        send(at, b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0\r\n\r\n");
    let (head, text) = open.split_once("\r\n\r\n").expect("headers");
    assert!(
        head.contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    read(text, true).unwrap_or_else(|why| panic!("{why}\n{text}"));
    drop(server);
    assert!(TcpStream::connect(at).is_err(), "nothing listens any more");
}

#[test]
fn peers_that_say_nothing_keep_no_scrape_out() {
    let server = server();
    // More than there is room for, in the middle of a request, and some that never take the answer.
    let mut silent = Vec::new();
    for n in 0..100 {
        let mut stream = TcpStream::connect(server.address()).expect("connected");
        let request: &[u8] = if n % 2 == 0 { b"GET /met" } else { b"GET /metrics HTTP/1.1\r\n\r\n" };
        // It may have had to give way already.
        let _ = stream.write_all(request);
        silent.push(stream);
    }
    // One may meet the threads of those that give way.
    let answered = (0..1000).any(|_| !send(server.address(), b"GET /healthz HTTP/1.1\r\n\r\n").is_empty());
    assert!(answered);
}

#[test]
fn an_address_in_use_is_named() {
    let server = server();
    let error = Bound::bind(server.address()).expect_err("it is in use").to_string();
    assert!(
        error.contains(&server.address().to_string()) && error.contains("choose another port"),
        "{error}"
    );
    let far = Bound::bind("192.0.2.1:1".parse().expect("an address")).expect_err("far away").to_string();
    assert!(far.contains("192.0.2.1:1") && far.contains("not an address of this machine"), "{far}");
}

/// A device whose opening holds up the thread that opens it.
struct Stuck {
    memory: MemDevice,
    entered: Mutex<Sender<()>>,
    released: Mutex<Receiver<()>>,
}

impl BlockDevice for Stuck {
    fn info(&self) -> DeviceInfo {
        self.memory.info()
    }

    fn open(&self) -> Open<'_> {
        let _ = self.entered.lock().expect("no panic").send(());
        // Ends when the test drops the other end.
        let _ = self.released.lock().expect("no panic").recv();
        Box::pin(std::future::ready(Err(IoError::Offline("stuck".into()))))
    }
}

#[test]
fn a_scrape_is_answered_while_the_data_path_stalls() {
    let config = Config { listen: vec![loopback()], threads: 1, statistics: true, ..Config::default() };
    let target = Target::start(config).expect("started");
    let (entered, has_entered) = channel();
    let (release, released) = channel();
    let memory = MemDevice::new(1 << 20, 4096).expect("mapped");
    let device = Arc::new(Stuck { memory, entered: Mutex::new(entered), released: Mutex::new(released) });
    let nqn = "nqn.2014-08.org.example:stuck";
    target.export(nqn, "stuck", device, Uuid::from_u128(1)).expect("exported");
    let server = server();
    server.add(Arc::new(TargetSource::new(target.observer())));
    server.set_ready();
    let at = server.address();
    assert_eq!(get(at, "/healthz"), (200, "ok\n".into()));
    let uri = format!("nvme+tcp://{}/{nqn}", target.addresses()[0]).parse().expect("a URI");
    let remote = RemoteDevice::connect_blocking(&uri, Options::default()).expect("connected");
    let engine =
        longhaul_engine::Thread::start("reader", longhaul_engine::Config::default()).expect("a thread");
    let read_once = engine.handle().spawn(move || async move {
        let io = remote.open().await?;
        io.read(0, longhaul_engine::BufMut::zeroed(4096)).await.map(drop)
    });
    has_entered.recv().expect("the device is opened");
    let (status, why) = get(at, "/healthz");
    assert!(status == 503 && why.contains("target-0"), "{status} {why}");
    let (status, text) = get(at, "/metrics");
    let page = read(&text, false).unwrap_or_else(|why| panic!("{why}\n{text}"));
    assert_eq!((status, page.one("longhaul_stalled_threads", &[])), (200, 1.0));
    drop(release);
    assert!(matches!(read_once.wait(), Ok(Err(_))));
    assert_eq!(get(at, "/healthz"), (200, "ok\n".into()));
    assert_eq!(get(at, "/readyz"), (200, "ok\n".into()));
    assert!(!target.stop(), "its device cannot be flushed");
    assert_eq!(get(at, "/readyz"), (503, "the target has ended\n".into()));
}

#[test]
fn commands_at_any_depth_are_counted_once_each() {
    let config = Config { listen: vec![loopback()], threads: 2, statistics: true, ..Config::default() };
    let target = Target::start(config).expect("started");
    let nqn = "nqn.2014-08.org.example:counted";
    let memory = Arc::new(MemDevice::new(1 << 20, 4096).expect("mapped"));
    target.export(nqn, "counted", memory, Uuid::from_u128(2)).expect("exported");
    let server = server();
    server.add(Arc::new(TargetSource::new(target.observer())));
    let uri = format!("nvme+tcp://{}/{nqn}", target.addresses()[0]).parse().expect("a URI");
    let remote = RemoteDevice::connect_blocking(&uri, Options::default()).expect("connected");
    let engine =
        longhaul_engine::Thread::start("load", longhaul_engine::Config::default()).expect("a thread");
    let done = engine.handle().spawn(move || async move {
        let io = remote.open().await.expect("opened");
        // Each round is submitted at once.
        for depth in [1, 3, 32] {
            let mut reads = Vec::new();
            let mut writes = Vec::new();
            for n in 0..depth {
                reads.push(io.read(n * 4096, longhaul_engine::BufMut::zeroed(4096)));
                let data = longhaul_engine::BufMut::zeroed(8192).freeze();
                writes.push(io.write(n * 8192, data, WriteFlags::default()));
            }
            for read in reads {
                read.await.expect("read");
            }
            for write in writes {
                write.await.expect("written");
            }
        }
        io.flush().await.expect("flushed");
    });
    done.wait().expect("the load has ended");
    let (_, text) = get(server.address(), "/metrics");
    let page = read(&text, false).unwrap_or_else(|why| panic!("{why}\n{text}"));
    let here = ("subsystem", nqn);
    let count = |operation| {
        page.one("longhaul_target_command_duration_seconds_count", &[here, ("operation", operation)])
    };
    assert_eq!((count("read"), count("write")), (36.0, 36.0));
    assert_eq!(page.one("longhaul_target_read_bytes_total", &[here]), 36.0 * 4096.0);
    assert_eq!(page.one("longhaul_target_written_bytes_total", &[here]), 36.0 * 8192.0);
    assert_eq!(page.all("longhaul_target_command_errors_total", &[here]), [0.0; 4]);
    assert_eq!(page.one("longhaul_target_commands_in_flight", &[here]), 0.0);
    assert!(target.stop());
}
