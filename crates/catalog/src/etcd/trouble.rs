//! The client at members that refuse, keep silent, close connections, and answer what cannot be read.

use super::client::{Client, Fault};
use super::link::Member;
use super::proto::{
    EventType, KeyValue, RANGE, RangeRequest, RangeResponse, TXN, TxnRequest, TxnResponse, WATCH,
    WatchRequest, WatchResponse, WatchedChange,
};
use super::{EtcdCatalog, link, watch};
use crate::{Catalog, Commit, Error, Txn, Watch};
use hyper::{Request, Response};
use prost::Message;
use prost::bytes::Bytes;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for what must come.
const LONG: Duration = Duration::from_secs(120);

/// What a member does with a call.
enum Answer {
    /// Replies, and ends the call well.
    Reply(Vec<u8>),
    /// Replies, and says nothing more.
    Stream(Vec<u8>),
    /// Ends the call with a code of gRPC.
    Status(u32, &'static str),
    /// Closes the connection.
    Close,
    /// Says nothing.
    Silence,
}

/// A call that a member was sent.
struct Seen {
    path: String,
    /// The first message.
    message: Bytes,
    /// The client has nothing more to send.
    whole: bool,
    asks_for_a_leader: bool,
}

/// A member that does what a test says.
struct Fake {
    address: String,
    seen: Receiver<Seen>,
    _runtime: tokio::runtime::Runtime,
}

type Answers = Arc<dyn Fn(usize) -> Answer + Send + Sync>;

impl Fake {
    /// A member that answers its calls by their number.
    fn new(answers: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Fake {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = TcpListener::bind(("127.0.0.2", 0)).expect("bound");
        let address = listener.local_addr().expect("bound").to_string();
        let (sender, seen) = channel();
        runtime.spawn(serve(listener, Arc::new(answers), sender));
        Fake { address, seen, _runtime: runtime }
    }

    /// The next call, which has been made.
    fn next(&self) -> Seen {
        self.seen.recv_timeout(LONG).expect("a call")
    }
}

async fn serve(listener: TcpListener, answers: Answers, seen: Sender<Seen>) {
    listener.set_nonblocking(true).expect("set");
    let listener = tokio::net::TcpListener::from_std(listener).expect("registered");
    let count = Arc::new(Mutex::new(0));
    while let Ok((stream, _)) = listener.accept().await {
        let stream = stream.into_std().expect("a socket");
        let twin = Arc::new(stream.try_clone().expect("a twin"));
        let stream = tokio::net::TcpStream::from_std(stream).expect("registered");
        let (answers, seen, count) = (answers.clone(), seen.clone(), count.clone());
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
            while let Some(Ok((request, respond))) = connection.accept().await {
                let (answers, seen, count, twin) =
                    (answers.clone(), seen.clone(), count.clone(), twin.clone());
                tokio::spawn(async move {
                    let call = read(request).await;
                    let number = {
                        let mut count = count.lock().expect("locked");
                        *count += 1;
                        *count
                    };
                    let answer = answers(number);
                    let _ = seen.send(call.0);
                    reply(respond, answer, &twin);
                    // Until the client ends the call.
                    let mut rest = call.1;
                    while let Some(Ok(_)) = rest.data().await {}
                });
            }
        });
    }
}

async fn read(request: Request<h2::RecvStream>) -> (Seen, h2::RecvStream) {
    let (parts, mut body) = request.into_parts();
    let mut bytes = Vec::new();
    let is_whole = |bytes: &[u8]| {
        bytes.len() >= 5
            && bytes.len() - 5 >= u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize
    };
    while !is_whole(&bytes) {
        let data = body.data().await.expect("a message").expect("a message");
        let _ = body.flow_control().release_capacity(data.len());
        bytes.extend_from_slice(&data);
    }
    let seen = Seen {
        path: parts.uri.path().to_owned(),
        message: Bytes::from(bytes.split_off(5)),
        whole: body.is_end_stream(),
        asks_for_a_leader: parts.headers.get("hasleader").is_some_and(|value| value == "true"),
    };
    (seen, body)
}

fn reply(mut respond: h2::server::SendResponse<Bytes>, answer: Answer, socket: &std::net::TcpStream) {
    let head = || Response::builder().header("content-type", "application/grpc");
    match answer {
        Answer::Reply(bytes) => {
            let mut stream = respond.send_response(head().body(()).expect("a head"), false).expect("sent");
            stream.send_data(bytes.into(), false).expect("sent");
            let end = Response::builder().header("grpc-status", "0").body(()).expect("an end");
            stream.send_trailers(end.headers().clone()).expect("sent");
        }
        Answer::Stream(bytes) => {
            let mut stream = respond.send_response(head().body(()).expect("a head"), false).expect("sent");
            stream.send_data(bytes.into(), false).expect("sent");
            // A stream that is dropped is reset.
            std::mem::forget(stream);
        }
        Answer::Status(code, why) => {
            let head = head().header("grpc-status", code).header("grpc-message", why);
            respond.send_response(head.body(()).expect("a head"), true).expect("sent");
        }
        Answer::Close => socket.shutdown(Shutdown::Both).expect("closed"),
        Answer::Silence => std::mem::forget(respond),
    }
}

/// A message as it is on the wire.
fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).expect("short");
    [&[0][..], &length.to_be_bytes(), &bytes].concat()
}

fn done() -> Answer {
    Answer::Reply(framed(&TxnResponse { succeeded: true, ..TxnResponse::default() }))
}

fn client(fakes: &[&Fake]) -> Client {
    let addresses: Vec<&str> = fakes.iter().map(|fake| &*fake.address).collect();
    Client::new(&addresses).expect("addresses")
}

/// A transaction, which is sent once.
fn once(client: &Client) -> Result<TxnResponse, Fault> {
    client.once(TXN, &TxnRequest::default())
}

/// One attempt at a member of its own.
fn attempt(client: &Client, address: &str) -> Result<TxnResponse, Fault> {
    let member = Member::new(address.to_owned(), format!("http://{address}").parse().expect("an origin"));
    client.wait(member.ask(TXN, TxnRequest::default()))
}

fn lost(result: Result<TxnResponse, Fault>) -> String {
    match result {
        Err(Fault::Lost(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn unsent(result: Result<TxnResponse, Fault>) -> String {
    match result {
        Err(Fault::Unsent(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// An address at which nothing listens.
fn nothing() -> String {
    let listener = TcpListener::bind(("127.0.0.2", 0)).expect("bound");
    listener.local_addr().expect("bound").to_string()
}

#[test]
fn a_refused_connection_is_no_transaction() {
    let (fake, refusing) = (Fake::new(|_| done()), nothing());
    let client = Client::new(&[&refusing, &fake.address]).expect("addresses");
    assert!(unsent(attempt(&client, &refusing)).contains("onnection refused"));
    // The other member has it, once.
    assert!(once(&client).expect("done").succeeded);
    assert_eq!(fake.next().path, TXN);
    assert!(fake.seen.try_recv().is_err());
}

#[test]
fn a_member_that_never_answers_may_have_made_the_transaction() {
    // Connections are made by the kernel.
    let listener = TcpListener::bind(("127.0.0.2", 0)).expect("bound");
    let (fake, address) = (Fake::new(|_| Answer::Silence), listener.local_addr().expect("bound").to_string());
    let client = client(&[&fake]);
    std::thread::scope(|scope| {
        // Without HTTP/2 pings are not answered, and with it the request is not.
        let stopped = scope.spawn(|| attempt(&client, &address));
        let silent = once(&client);
        assert!(lost(silent).ends_with("no answer within 10 s"));
        lost(stopped.join().expect("joined"));
    });
    fake.next();
    assert!(fake.seen.try_recv().is_err(), "it is not sent again");
}

#[test]
fn a_connection_that_closes_in_a_call_may_have_made_the_transaction() {
    let fake = Fake::new(|number| if number == 1 { Answer::Close } else { done() });
    let client = client(&[&fake]);
    lost(once(&client));
    fake.next();
    assert!(fake.seen.try_recv().is_err(), "it is not sent again");
    // What can be repeated is, on a connection of its own.
    assert!(once(&client).expect("done").succeeded);
}

#[test]
fn a_request_for_a_connection_that_was_closed_was_not_sent() {
    let fake = Fake::new(|number| if number == 2 { Answer::Close } else { done() });
    let client = client(&[&fake]);
    let origin = format!("http://{}", fake.address).parse().expect("an origin");
    let member = Member::new(fake.address.clone(), origin);
    client.wait(member.ask::<_, TxnResponse>(TXN, TxnRequest::default())).expect("done");
    let call = client.wait(member.call()).expect("connected");
    lost(client.wait(call.ask(TXN, TxnRequest::default())));
    let why = unsent(client.wait(call.ask(TXN, TxnRequest::default())));
    assert!(why.starts_with(&fake.address), "{why}");
    drop(call);
    client.wait(member.ask::<_, TxnResponse>(TXN, TxnRequest::default())).expect("connected anew");
}

#[test]
fn replies_that_cannot_be_read_are_lost() {
    let replies: [&[u8]; 6] = [
        b"",
        b"\0\0\0",
        b"\0\0\0\0\x05\x10",
        b"\0\0\0\0\x05\xff\xff\xff\xff\xff",
        b"\x07\0\0\0\0",
        // 4 GiB are announced.
        b"\0\xff\xff\xff\xff",
    ];
    for bytes in replies {
        let fake = Fake::new(|_| Answer::Reply(bytes.to_vec()));
        let client = client(&[&fake]);
        lost(once(&client));
        fake.next();
        assert!(fake.seen.try_recv().is_err(), "it is not sent again");
    }
}

#[test]
fn a_server_of_something_else_is_told_from_etcd() {
    for text in
        ["HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "\x15\x03\x01\0\x02\x02\x46\0\0\0\0\0\0\0"]
    {
        let listener = TcpListener::bind(("127.0.0.2", 0)).expect("bound");
        let address = listener.local_addr().expect("bound").to_string();
        let client = Client::new(&[&address]).expect("an address");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("connected");
                stream.write_all(text.as_bytes()).expect("written");
                // Until the client gives up.
                let _ = stream.read_to_end(&mut Vec::new());
            });
            // Whichever comes first, the answer or the request.
            let (Fault::Lost(why) | Fault::Unsent(why)) = attempt(&client, &address).expect_err("no etcd")
            else {
                panic!("etcd has refused nothing")
            };
            assert!(why.ends_with("is this etcd 3.4 or later, without TLS?"), "{why}");
        });
    }
}

#[test]
fn only_what_was_not_proposed_is_sent_again() {
    let fake = Fake::new(|number| match number {
        1 => Answer::Status(14, "etcdserver: no leader"),
        2 => Answer::Status(8, "etcdserver: too many requests"),
        3 => done(),
        4 => Answer::Status(14, "etcdserver: request timed out"),
        _ => done(),
    });
    let client = client(&[&fake]);
    assert!(once(&client).expect("done").succeeded);
    assert!(lost(once(&client)).ends_with("etcdserver: request timed out"));
    let calls = std::iter::from_fn(|| fake.seen.try_recv().ok()).count();
    assert_eq!(calls, 4);
}

#[test]
fn reads_are_repeated_whatever_happened() {
    let fake = Fake::new(|number| match number {
        1 => Answer::Close,
        2 => Answer::Reply(b"\0\0\0\0\x01\xff".to_vec()),
        3 => Answer::Status(14, "etcdserver: leader changed"),
        _ => Answer::Reply(framed(&RangeResponse { more: true, ..RangeResponse::default() })),
    });
    let reply: RangeResponse = client(&[&fake]).repeat(RANGE, &RangeRequest::default()).expect("read");
    assert!(reply.more);
}

#[test]
fn errors_of_a_catalog_say_what_became_of_a_transaction() {
    let fake = Fake::new(|number| match number {
        1 => Answer::Close,
        2 => Answer::Status(5, "etcdserver: requested lease not found"),
        3 => Answer::Status(12, "unknown service etcdserverpb.KV"),
        _ => Answer::Reply(framed(&TxnResponse { succeeded: true, ..TxnResponse::default() })),
    });
    let catalog = EtcdCatalog::new(&[&fake.address], "p/").expect("an address");
    let lease = crate::LeaseId(7);
    let commit = || catalog.commit(&Txn::new().put_leased(b"a", b"1", lease));
    assert!(matches!(commit(), Err(Error::Unknown { .. })));
    assert_eq!(commit(), Err(Error::LeaseExpired(lease)));
    let refused = commit().expect_err("refused").to_string();
    assert!(refused.ends_with("unknown service etcdserverpb.KV; is this etcd 3.4 or later?"), "{refused}");
    assert_eq!(commit(), Ok(Commit::Done(0)));
}

/// A reply to a read that has other operations than were asked for, or keys of others, is no answer.
#[test]
fn a_reply_to_another_question_is_garbled() {
    let kv = KeyValue { key: b"other/a".to_vec(), ..KeyValue::default() };
    let fake = Fake::new(move |number| match number {
        1 => done(),
        _ => Answer::Reply(framed(&RangeResponse { kvs: vec![kv.clone()], ..RangeResponse::default() })),
    });
    let catalog = EtcdCatalog::new(&[&fake.address], "p/").expect("an address");
    for refused in [catalog.get_all(&[b"a".to_vec()]).map(drop), catalog.get(b"a").map(drop)] {
        let why = refused.expect_err("garbled").to_string();
        assert!(why.ends_with("is this etcd 3.4 or later?"), "{why}");
    }
}

/// A host whose member does not even refuse waits for one attempt, with however many calls.
#[test]
fn all_callers_share_an_attempt_to_connect() {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    let any: std::net::SocketAddr = "127.0.0.2:0".parse().expect("an address");
    socket.bind(&any.into()).expect("bound");
    socket.listen(0).expect("listening");
    let address = socket.local_addr().expect("bound").as_socket().expect("an address");
    // With its queue full, the kernel answers no more.
    let _queued: Vec<_> =
        (0..4).map(|_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(100))).collect();
    let address = address.to_string();
    let client = Client::new(&[&address]).expect("an address");
    let member = Member::new(address.clone(), format!("http://{address}").parse().expect("an origin"));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let call = || client.wait(member.ask::<_, TxnResponse>(TXN, TxnRequest::default()));
        let calls: Vec<_> = (0..64).map(|_| scope.spawn(call)).collect();
        for call in calls {
            let why = unsent(call.join().expect("joined"));
            assert!(why.ends_with("no connection within 4 s"), "{why}");
        }
    });
    // One after the other they would take above a minute.
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

fn put(revision: i64) -> Answer {
    let kv = KeyValue {
        key: b"p/w".to_vec(),
        value: b"1".to_vec(),
        mod_revision: revision,
        ..KeyValue::default()
    };
    let event = WatchedChange { r#type: EventType::Put as i32, kv: Some(kv) };
    Answer::Stream(framed(&WatchResponse { events: vec![event], ..WatchResponse::default() }))
}

/// The revision that a watch asks from.
fn from(call: &Seen) -> i64 {
    assert_eq!(call.path, WATCH);
    assert!(call.asks_for_a_leader);
    assert!(!call.whole, "etcd may end a watch whose requests have ended");
    let request = WatchRequest::decode(call.message.clone()).expect("a request");
    let create = request.create_request.expect("a watch");
    assert_eq!((&*create.key, &*create.range_end), (&b"p/w"[..], &b"p/x"[..]));
    create.start_revision
}

fn revisions(watch: &mut dyn Watch) -> Vec<u64> {
    let events = watch.next(LONG).expect("watched");
    events.into_iter().map(|event| event.revision).collect()
}

#[test]
fn a_watch_leaves_a_member_that_goes_silent() {
    let (first, second) = (Fake::new(|_| put(7)), Fake::new(|_| put(9)));
    let client = Arc::new(client(&[&first, &second]));
    let mut watch = watch::start(client, b"p/w".to_vec(), 2, 5);
    assert_eq!(revisions(&mut watch), [7]);
    assert_eq!(from(&first.next()), 5);
    let start = Instant::now();
    assert_eq!(revisions(&mut watch), [9]);
    assert!(start.elapsed() > Duration::from_secs(5), "after a silence");
    assert_eq!(from(&second.next()), 8);
}

#[test]
fn a_watch_outlasts_streams_that_end() {
    let cancelled = || {
        let reply =
            WatchResponse { canceled: true, cancel_reason: "x".to_owned(), ..WatchResponse::default() };
        Answer::Stream(framed(&reply))
    };
    let fake = Fake::new(move |number| match number {
        1 => Answer::Close,
        2 => Answer::Status(14, "etcdserver: no leader"),
        3 => cancelled(),
        4 => Answer::Stream(b"\0\0\0\0\x01\xff".to_vec()),
        5 => put(7),
        _ => Answer::Stream(framed(&WatchResponse { compact_revision: 20, ..WatchResponse::default() })),
    });
    let mut watch = watch::start(Arc::new(client(&[&fake])), b"p/w".to_vec(), 2, 5);
    assert_eq!(revisions(&mut watch), [7]);
    for _ in 0..5 {
        assert_eq!(from(&fake.next()), 5);
    }
    assert_eq!(watch.next(LONG), Err(Error::Compacted { at: 8 }));
    assert_eq!(from(&fake.next()), 8);
    assert!(matches!(watch.next(LONG), Err(Error::Invalid(_))));
}

/// What watches do not take keeps no request of their connections waiting.
#[test]
fn a_watch_that_is_not_read_holds_up_no_request() {
    let reply = |bytes| {
        let kv = KeyValue { key: b"p/w".to_vec(), value: vec![0; bytes], ..KeyValue::default() };
        framed(&WatchResponse {
            events: vec![WatchedChange { r#type: EventType::Put as i32, kv: Some(kv) }],
            ..WatchResponse::default()
        })
    };
    // What waits for its reader, and then more than a stream may have under way.
    let flood =
        [reply(1).repeat(2 * watch::WAITING), reply(1 << 20).repeat(2 * (link::WINDOW >> 20) as usize)]
            .concat();
    let watches = 2 * link::CONNECTIONS;
    let fake =
        Fake::new(move |number| if number <= watches { Answer::Stream(flood.clone()) } else { done() });
    let client = Arc::new(client(&[&fake]));
    let start = || watch::start(Arc::clone(&client), b"p/w".to_vec(), 2, 5);
    let _watches: Vec<_> = (0..watches).map(|_| start()).collect();
    (0..watches).for_each(|_| drop(fake.next()));
    // While the windows fill, and after that.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        assert!(once(&client).expect("done").succeeded);
    }
}

/// The last handle may be dropped while a watch waits for changes, and a watch outlasts its catalog.
#[test]
fn a_watch_ends_with_its_handle() {
    let fake = Fake::new(|_| put(7));
    let catalog = EtcdCatalog::new(&[&fake.address], "p/").expect("an address");
    let mut watch = catalog.watch(b"w", 5).expect("watched");
    drop(catalog);
    assert_eq!(revisions(&mut *watch), [7]);
    assert_eq!(watch.next(Duration::ZERO), Ok(Vec::new()));
}
