//! What a catalog server bears, and what its clients see of its restarts.

mod common;

use common::Server;
use longhaul_catalog::server::Limits;
use longhaul_catalog::wire::{
    Change, Hello, LENGTH, MAX_FRAME, Question, Reply, Request, Token, VERSION, split,
};
use longhaul_catalog::{
    Access, Catalog, Commit, Error, Expect, FileCatalog, FileOptions, ManualClock, RemoteCatalog, Txn,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(120);

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Limits that are reached soon.
fn strict() -> Limits {
    let second = Duration::from_secs(1);
    Limits {
        connections: 200,
        strangers: 50,
        greeting: second,
        progress: second,
        silence: LONG,
        ..Limits::default()
    }
}

/// A connection by hand.
struct Raw {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Raw {
    fn connect(server: &Server) -> Raw {
        let stream = TcpStream::connect(server.address).expect("connected");
        stream.set_read_timeout(Some(LONG)).expect("set");
        Raw { stream, input: Vec::new() }
    }

    /// One that was let in.
    fn open(server: &Server) -> Raw {
        let mut raw = Raw::connect(server);
        let mut hello = Vec::new();
        Hello { version: VERSION, host: "raw".into() }.encode(&mut hello);
        raw.stream.write_all(&hello).expect("sent");
        assert!(matches!(raw.next(), Some((0, Reply::Welcome { .. }))));
        raw
    }

    fn send(&mut self, id: u64, request: &Request) {
        let mut frame = Vec::new();
        request.encode(id, &mut frame);
        self.stream.write_all(&frame).expect("sent");
    }

    /// The next answer; `None` once the server has closed the connection.
    fn next(&mut self) -> Option<(u64, Reply)> {
        let mut buffer = [0; 65536];
        loop {
            if let Some((frame, length)) = split(&self.input, MAX_FRAME).expect("a frame") {
                let reply = Reply::decode(frame).expect("an answer");
                self.input.drain(..length);
                return Some(reply);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(n) => self.input.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn is_closed(&mut self) -> bool {
        while let Some((_, reply)) = self.next() {
            assert!(matches!(reply, Reply::Refused { .. }), "{reply:?}");
        }
        true
    }
}

fn put(catalog: &dyn Catalog, key: &[u8]) {
    assert!(catalog.commit(&Txn::new().put(key, b"1")).expect("committed").is_done());
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_no_client_is_refused_and_others_are_served() {
    let dir = directory();
    let server = Server::start_with(&dir.path().join("c"), FileOptions::default(), strict());
    let catalog = server.catalog();
    put(&catalog, b"before");
    let mut rng = fastrand::Rng::with_seed(3);
    let garbage: Vec<u8> = (0..5000).map(|_| rng.u8(..)).collect();
    let whole = |length: u32| [&length.to_be_bytes()[..], &[0; 64]].concat();
    for first in [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        garbage,
        vec![0; 4096],
        whole(u32::MAX),
        whole(MAX_FRAME as u32 + 1),
        whole(8),
        b"\x16\x03\x01\x02\x00\x01".to_vec(),
    ] {
        let mut raw = Raw::connect(&server);
        raw.stream.write_all(&first).expect("sent");
        assert!(raw.is_closed(), "{first:?}");
    }
    // A frame behind the first one that is too long, malformed, or half.
    for then in [whole(u32::MAX), whole(60), [&[0, 0, 1, 0][..], &[1; 20]].concat()] {
        let mut raw = Raw::open(&server);
        raw.stream.write_all(&then).expect("sent");
        assert_eq!(raw.next(), None);
    }
    // One that says nothing, and one that says half of it.
    let mut silent = Raw::connect(&server);
    let mut half = Raw::connect(&server);
    half.stream.write_all(&[0, 0, 0]).expect("sent");
    assert!(silent.is_closed() && half.is_closed());
    put(&catalog, b"after");
    let seen = server.seen.0.lock().expect("locked").join("\n");
    assert!(seen.contains("Protocol") && seen.contains("Late") && seen.contains("NoTls"), "{seen}");
}

#[test]
fn a_client_of_another_version_is_refused_and_told_both() {
    let dir = directory();
    let server = Server::start(&dir.path().join("c"));
    let mut raw = Raw::connect(&server);
    let mut hello = Vec::new();
    Hello { version: VERSION + 1, host: "newer".into() }.encode(&mut hello);
    raw.stream.write_all(&hello).expect("sent");
    match raw.next() {
        Some((0, Reply::Refused { version, why })) => {
            assert_eq!(version, VERSION);
            for version in [VERSION, VERSION + 1] {
                assert!(why.contains(&format!("version {version}")), "{why}");
            }
        }
        other => panic!("{other:?}"),
    }
    // The other way round: a server of a later version, whose refusal has more fields.
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    let newer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accepted");
        let mut refused = Vec::new();
        Reply::Refused { version: VERSION + 1, why: "no".into() }.encode(0, &mut refused);
        refused.push(7);
        refused[LENGTH - 1] += 1;
        let _ = stream.read(&mut [0; 1024]).expect("received");
        stream.write_all(&refused).expect("sent");
        let _ = stream.read(&mut [0; 1024]);
    });
    let catalog = RemoteCatalog::new(&[address], Access::default()).expect("an address");
    let error = catalog.get(b"k").expect_err("refused");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    for version in [VERSION, VERSION + 1] {
        assert!(error.to_string().contains(&format!("version {version}")), "{error}");
    }
    newer.join().expect("joined");
}

#[test]
fn a_thousand_connections_that_say_nothing_keep_no_client_out() {
    let dir = directory();
    let server = Server::start_with(
        &dir.path().join("c"),
        FileOptions::default(),
        Limits { greeting: LONG, ..strict() },
    );
    let idle: Vec<Raw> = (0..1000).map(|_| Raw::connect(&server)).collect();
    let catalog = server.catalog();
    put(&catalog, b"k");
    assert_eq!(idle.len(), 1000);
    // Clients that were let in stay.
    let mut raw = Raw::open(&server);
    let more: Vec<Raw> = (0..200).map(|_| Raw::connect(&server)).collect();
    raw.send(1, &Request::Ping);
    assert_eq!(raw.next(), Some((1, Reply::Pong)));
    drop((idle, more));
}

/// It sends questions and takes no answer: the server holds a bounded part of them, and ends it in time.
#[test]
fn a_client_that_does_not_receive_is_bounded_and_ends() {
    let dir = directory();
    let server = Server::start_with(&dir.path().join("c"), FileOptions::default(), strict());
    let catalog = server.catalog();
    for i in 0..8u8 {
        let value = vec![i; 1_000_000];
        assert!(catalog.commit(&Txn::new().put(&[b'v', i], &value)).expect("committed").is_done());
    }
    let mut greedy = Raw::open(&server);
    greedy.stream.set_write_timeout(Some(LONG)).expect("set");
    let part = longhaul_catalog::wire::KeyRange { prefix: b"v".to_vec(), after: None, most: None, at: None };
    let question = Request::Read(Question { part: Some(part), ..Question::default() });
    // Gigabytes of answers.
    let sent = (1..2000).take_while(|id| {
        let mut frame = Vec::new();
        question.encode(*id, &mut frame);
        greedy.stream.write_all(&frame).is_ok()
    });
    assert!(sent.count() > 1);
    put(&catalog, b"k");
    until("the greedy client is ended", || {
        server.seen.0.lock().expect("locked").contains(&"disconnected raw".to_owned())
    });
    put(&catalog, b"l");
}

#[test]
fn many_requests_are_under_way_on_one_connection() {
    let dir = directory();
    let server = Server::start(&dir.path().join("c"));
    let mut raw = Raw::open(&server);
    for id in 1..=1000 {
        let txn = Txn::new().put(format!("k{id:04}").as_bytes(), b"v");
        raw.send(id, &Request::Change(Change::Commit(txn, None)));
    }
    let mut revisions: Vec<u64> = (0..1000)
        .map(|_| match raw.next() {
            Some((_, Reply::Committed(Commit::Done(revision)))) => revision,
            other => panic!("{other:?}"),
        })
        .collect();
    revisions.sort_unstable();
    revisions.dedup();
    assert_eq!(revisions.len(), 1000, "each has a revision of its own");
    let counts = server.running().counts();
    let batches = counts.batches.load(std::sync::atomic::Ordering::Relaxed);
    assert!(batches < 1000, "{batches} transactions of the file");
}

#[test]
fn a_transaction_that_is_sent_again_is_made_once() {
    let dir = directory();
    let mut server = Server::start(&dir.path().join("c"));
    let commit = |server: &Server, number, answered, txn: Txn| {
        let mut raw = Raw::open(server);
        let token = Token { client: 5, number, answered };
        raw.send(1, &Request::Change(Change::Commit(txn, Some(token))));
        raw.next().expect("an answer").1
    };
    let make = || Txn::new().expect(b"k", Expect::Absent).put(b"k", b"1");
    let first = commit(&server, 1, 1, make());
    assert!(matches!(first, Reply::Committed(Commit::Done(_))), "{first:?}");
    assert_eq!(commit(&server, 1, 1, make()), first);
    // Also by the server that follows it.
    server.restart();
    assert_eq!(commit(&server, 1, 1, make()), first);
    // Another one has the answer that it deserves.
    assert!(matches!(commit(&server, 2, 1, make()), Reply::Committed(Commit::Conflict(_))));
    assert!(matches!(commit(&server, 3, 3, Txn::new().put(b"l", b"")), Reply::Committed(Commit::Done(_))));
    // What the client has an answer to is forgotten.
    assert!(matches!(commit(&server, 1, 1, make()), Reply::Committed(Commit::Conflict(_))));
}

#[test]
fn leases_have_their_whole_time_again_after_a_restart() {
    let dir = directory();
    let clock = Arc::new(ManualClock::new());
    let options = FileOptions { clock: clock.clone(), ..FileOptions::default() };
    let path = dir.path().join("c");
    let mut server = Server::start_with(&path, options, Limits::default());
    let catalog = server.catalog();
    let ttl = Duration::from_secs(30);
    let lease = catalog.grant(ttl).expect("granted");
    assert!(catalog.commit(&Txn::new().put_leased(b"held", b"", lease)).expect("committed").is_done());
    // It ran out while there was no server, and its host has started again.
    for restart in [&|| clock.advance(ttl * 2) as (), &|| clock.reboot()] as [&dyn Fn(); 2] {
        server.stop();
        restart();
        server.restart();
        assert!(catalog.get(b"held").expect("read").is_some());
        assert_eq!(catalog.keep(lease), Ok(ttl));
    }
    clock.advance(ttl + Duration::from_millis(1));
    until("the end of the lease", || catalog.get(b"held").expect("read").is_none());
    assert_eq!(catalog.keep(lease), Err(Error::LeaseExpired(lease)));
}

#[test]
fn a_watch_goes_on_after_a_restart_and_misses_nothing() {
    let dir = directory();
    let path = dir.path().join("c");
    let mut server = Server::start(&path);
    let catalog = server.catalog();
    put(&catalog, b"w/0");
    let mut watch = catalog.watch(b"w/", 1).expect("watched");
    let mut seen: Vec<Vec<u8>> = Vec::new();
    let mut take = |count: usize| {
        while seen.len() < count {
            let events = watch.next(LONG).expect("watched");
            assert!(!events.is_empty(), "{} of {count}", seen.len());
            seen.extend(events.into_iter().map(|event| event.key));
        }
        seen.clone()
    };
    take(1);
    server.stop();
    // A process of the same host, by the file.
    put(&FileCatalog::open(&path).expect("opened"), b"w/1");
    server.restart();
    put(&catalog, b"w/2");
    put(&FileCatalog::open(&path).expect("opened"), b"w/3");
    let expected: Vec<_> = (0..4).map(|i| format!("w/{i}").into_bytes()).collect();
    assert_eq!(take(4), expected);
}

/// More events than a watch may have in memory at either end: it is read from the file where it is behind.
#[test]
fn a_watch_that_is_slow_misses_nothing() {
    let dir = directory();
    let server = Server::start(&dir.path().join("c"));
    let catalog = server.catalog();
    let mut watch = catalog.watch(b"s/", 1).expect("watched");
    let value = vec![7; 2000];
    let key = |round: u64, i: u64| format!("s/{round:02}/{i:03}").into_bytes();
    for round in 0..40 {
        let txn = (0..400).fold(Txn::new(), |txn, i| txn.put(&key(round, i), &value));
        assert!(catalog.commit(&txn).expect("committed").is_done());
    }
    let mut seen = Vec::new();
    while seen.len() < 16_000 {
        let events = watch.next(LONG).expect("watched");
        assert!(!events.is_empty(), "{}", seen.len());
        seen.extend(events.into_iter().map(|event| event.key));
    }
    let expected: Vec<_> = (0..40).flat_map(|round| (0..400).map(move |i| key(round, i))).collect();
    assert_eq!(seen, expected);
}

/// A relay that cuts connections after some bytes: a walk goes on, as of the revision that it has begun with.
#[test]
fn a_walk_goes_on_over_connections_that_are_cut() {
    let dir = directory();
    let server = Server::start(&dir.path().join("c"));
    let direct = server.catalog();
    for round in 0..50 {
        let txn =
            (0..200).fold(Txn::new(), |txn, i| txn.put(format!("k/{round:02}/{i:03}").as_bytes(), &[1; 500]));
        assert!(direct.commit(&txn).expect("committed").is_done());
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    let to = server.address;
    std::thread::spawn(move || {
        for (n, client) in listener.incoming().enumerate() {
            let client = client.expect("accepted");
            let mut from = TcpStream::connect(to).expect("connected");
            let (mut up, mut down) = (client.try_clone().expect("cloned"), client);
            let mut server = from.try_clone().expect("cloned");
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut up, &mut server);
                let _ = server.shutdown(Shutdown::Both);
            });
            // The first ones are cut.
            let most = if n < 4 { 1_000_000 } else { u64::MAX };
            let _ = std::io::copy(&mut (&mut from).take(most), &mut down);
            let _ = down.shutdown(Shutdown::Both);
        }
    });
    let catalog = RemoteCatalog::new(&[address], Access::default()).expect("an address");
    let mut seen = Vec::new();
    let mut is_changed = false;
    catalog
        .visit(b"k/", &mut |key, value| {
            if !std::mem::replace(&mut is_changed, true) {
                let txn = Txn::new().delete(b"k/49/199").put(b"k/49/1990", b"late").put(b"k/48/000", b"late");
                assert!(direct.commit(&txn).expect("committed").is_done());
            }
            assert_eq!(value, [1; 500]);
            seen.push(key.to_vec());
        })
        .expect("read");
    let expected: Vec<_> = (0..50)
        .flat_map(|round| (0..200).map(move |i| format!("k/{round:02}/{i:03}").into_bytes()))
        .collect();
    assert_eq!(seen, expected);
    assert!(server.seen.0.lock().expect("locked").len() > 4, "it was cut");
}

#[test]
fn without_a_server_calls_end_in_time_and_another_catalog_is_not_taken_for_it() {
    let dir = directory();
    let mut server = Server::start(&dir.path().join("c"));
    let catalog = server.catalog();
    put(&catalog, b"k");
    server.stop();
    let began = Instant::now();
    assert!(matches!(catalog.get(b"k"), Err(Error::Unreachable { .. })));
    assert!(began.elapsed() < LONG);
    let other = Server::start(&dir.path().join("other"));
    let addresses = [server.address.to_string(), other.address.to_string()];
    let several = RemoteCatalog::new(&addresses, Access::default()).expect("addresses");
    put(&several, b"of the other");
    drop(other);
    server.restart();
    assert!(matches!(several.get(b"k"), Err(Error::Refused { .. })));
}
