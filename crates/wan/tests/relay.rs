//! The relay between plain blocking sockets.

use longhaul_engine::{Config, EngineKind};
use longhaul_wan::{Link, Relay};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A server that answers each connection with `serve`, until the test ends.
fn server(serve: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind(any()).expect("bound");
    let addr = listener.local_addr().expect("address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    addr
}

fn echo(mut stream: TcpStream) {
    let mut out = stream.try_clone().expect("cloned");
    // Ends with the connection, whichever way that ends.
    let _ = std::io::copy(&mut stream, &mut out);
    let _ = stream.shutdown(Shutdown::Write);
}

fn link(delay: Duration) -> Link {
    Link { delay, rate: None, memory: 32 << 20 }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

#[test]
fn bytes_are_late_by_the_delay_each_way_and_the_handshake_once() {
    const DELAY: Duration = Duration::from_millis(10);
    for kind in [EngineKind::Auto, EngineKind::Epoll] {
        let config = Config { kind, ..Config::default() };
        let relay = Relay::start_with(&config, any(), server(echo), link(DELAY)).expect("started");
        let begin = Instant::now();
        let mut stream = TcpStream::connect(relay.local_addr()).expect("connected");
        let mut turn = || {
            stream.write_all(b"x").expect("sent");
            stream.read_exact(&mut [0]).expect("received");
        };
        turn();
        assert!(begin.elapsed() >= 4 * DELAY, "{:?} for handshake and one turn", begin.elapsed());
        for _ in 0..3 {
            let begin = Instant::now();
            turn();
            assert!(begin.elapsed() >= 2 * DELAY, "{:?} for one turn", begin.elapsed());
        }
        let stats = relay.stats();
        assert_eq!((stats.connections, stats.forward_bytes, stats.back_bytes), (1, 4, 4));
    }
}

#[test]
fn content_arrives_whole_in_order_and_in_flight_together() {
    const DELAY: Duration = Duration::from_millis(20);
    let relay = Relay::start(any(), server(echo), link(DELAY)).expect("started");
    let sent = noise(24 << 20, 1);
    let mut out = TcpStream::connect(relay.local_addr()).expect("connected");
    let mut back = out.try_clone().expect("cloned");
    let copy = sent.clone();
    let writer = thread::spawn(move || {
        out.write_all(&copy).expect("sent");
        out.shutdown(Shutdown::Write).expect("shut down");
    });
    let mut received = Vec::new();
    back.read_to_end(&mut received).expect("received");
    writer.join().expect("sent");
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    assert_eq!(relay.stats().forward_bytes, 24 << 20);
}

#[test]
fn one_side_may_close_and_the_other_go_on() {
    // Reads to the end before it answers: works only if the end comes through
    // while the other direction stays open.
    fn count(mut stream: TcpStream) {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("received");
        stream.write_all(all.len().to_string().as_bytes()).expect("sent");
    }
    let relay = Relay::start(any(), server(count), link(Duration::from_millis(5))).expect("started");
    let mut stream = TcpStream::connect(relay.local_addr()).expect("connected");
    stream.write_all(&noise(100_000, 2)).expect("sent");
    stream.shutdown(Shutdown::Write).expect("shut down");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("received");
    assert_eq!(answer, "100000");
}

#[test]
fn many_connections_share_the_relay() {
    let relay = Relay::start(any(), server(echo), link(Duration::from_millis(3))).expect("started");
    let addr = relay.local_addr();
    let clients: Vec<_> = (0..64u64)
        .map(|n| {
            thread::spawn(move || {
                let sent = noise(200_000, n);
                let mut stream = TcpStream::connect(addr).expect("connected");
                let mut out = stream.try_clone().expect("cloned");
                let copy = sent.clone();
                let writer = thread::spawn(move || {
                    out.write_all(&copy).expect("sent");
                    out.shutdown(Shutdown::Write).expect("shut down");
                });
                let mut received = Vec::new();
                stream.read_to_end(&mut received).expect("received");
                writer.join().expect("sent");
                assert!(received == sent, "client {n}");
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("served"));
    assert_eq!(relay.stats().connections, 64);
}

#[test]
fn a_receiver_that_does_not_read_holds_back_only_its_sender() {
    fn never_read(stream: TcpStream) {
        thread::park();
        drop(stream);
    }
    // One relay has one target, so the first byte selects the server's behaviour.
    fn first_byte(mut stream: TcpStream) {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("received");
        if byte[0] == b'p' { never_read(stream) } else { echo(stream) }
    }
    let relay = Relay::start(any(), server(first_byte), link(Duration::from_millis(1))).expect("started");
    let mut stuck = TcpStream::connect(relay.local_addr()).expect("connected");
    stuck.write_all(b"p").expect("sent");
    stuck.set_write_timeout(Some(Duration::from_millis(200))).expect("set");
    let piece = vec![0; 1 << 20];
    let mut taken = 0usize;
    while let Ok(n) = stuck.write(&piece) {
        taken += n;
        assert!(taken < 512 << 20, "the sender is not held back");
    }
    let mut other = TcpStream::connect(relay.local_addr()).expect("connected");
    other.write_all(b"e").expect("sent");
    let sent = noise(4 << 20, 3);
    let mut out = other.try_clone().expect("cloned");
    let copy = sent.clone();
    let writer = thread::spawn(move || out.write_all(&copy).expect("sent"));
    let mut received = vec![0; sent.len()];
    other.read_exact(&mut received).expect("received");
    writer.join().expect("sent");
    assert!(received == sent);
}

#[test]
fn a_limit_of_rate_holds_for_all_connections_together() {
    // 2 × 250 kB at 40 Mb/s take 100 ms, together.
    let slow = Link { rate: Some(40_000_000), ..link(Duration::ZERO) };
    fn sink(mut stream: TcpStream) {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("received");
        stream.write_all(b"k").expect("sent");
    }
    let relay = Relay::start(any(), server(sink), slow).expect("started");
    let begin = Instant::now();
    let addr = relay.local_addr();
    let clients = [1, 2].map(|n| {
        thread::spawn(move || {
            let mut stream = TcpStream::connect(addr).expect("connected");
            stream.write_all(&noise(250_000, n)).expect("sent");
            stream.shutdown(Shutdown::Write).expect("shut down");
            stream.read_exact(&mut [0]).expect("received");
        })
    });
    clients.into_iter().for_each(|client| client.join().expect("sent"));
    assert!(begin.elapsed() >= Duration::from_millis(100), "{:?}", begin.elapsed());
}

#[test]
fn an_unreachable_target_closes_the_connection() {
    let nowhere = TcpListener::bind(any()).expect("bound").local_addr().expect("address");
    let relay = Relay::start(any(), nowhere, link(Duration::from_millis(1))).expect("started");
    let mut stream = TcpStream::connect(relay.local_addr()).expect("connected");
    let mut rest = Vec::new();
    // Closed or reset, but not left waiting.
    let ended = stream.read_to_end(&mut rest);
    assert!(rest.is_empty() && ended.map_or(true, |n| n == 0));
    drop(relay);
    assert!(Relay::start(any(), nowhere, link(Duration::ZERO)).is_ok());
}

#[test]
fn dropping_the_relay_closes_its_connections() {
    let relay = Relay::start(any(), server(echo), link(Duration::from_millis(1))).expect("started");
    let addr = relay.local_addr();
    let mut stream = TcpStream::connect(addr).expect("connected");
    stream.write_all(b"x").expect("sent");
    stream.read_exact(&mut [0]).expect("received");
    drop(relay);
    let ended = stream.read(&mut [0]);
    assert!(ended.map_or(true, |n| n == 0));
    assert!(TcpStream::connect(addr).is_err());
}
