use super::control::{Answer, Opening, Say};
use super::*;
use crate::Stop;
use crate::watch::Watch;
use longhaul_engine::{Config, EngineKind};
use std::io::{Read, Write};
use std::net::TcpStream;

fn server(kind: EngineKind) -> Server {
    let engine = Config { kind, ..Config::default() };
    Server::start(ServerConfig { listen: "127.0.0.1:0".parse().expect("address"), engine }).expect("listens")
}

fn short() -> NetPlan {
    NetPlan { ramp_ms: 50, time_ms: 200, interval_ms: 50, ..NetPlan::default() }
}

fn measured(kind: EngineKind, plan: &NetPlan) -> client::Measured {
    let server = server(kind);
    let engine = Config { kind, ..Config::default() };
    measure(server.address(), plan, &engine, &Stop::new(), &mut |_, _| {}).expect("measured")
}

#[test]
fn bytes_arrive_both_ways_on_all_streams() {
    for kind in [EngineKind::Auto, EngineKind::Epoll] {
        for (way, discard) in
            [(NetDirection::Send, false), (NetDirection::Receive, true), (NetDirection::Both, false)]
        {
            let plan = NetPlan { way, streams: 3, discard, ..short() };
            let seen = measured(kind, &plan);
            for (half, expected) in [(&seen.there, way.sends()), (&seen.here, way.receives())] {
                assert_eq!(half.received.len(), if expected { 3 } else { 0 }, "{kind} {way:?}");
                for stream in &half.received {
                    assert_eq!(stream.intervals.len(), 5, "{kind} {way:?}: {stream:?}");
                    let all: u64 = stream.intervals.iter().sum();
                    assert!(all >= stream.bytes, "the ramp is in the intervals only");
                    // In the whole run: a busy machine may keep the processor from one stream for as
                    // long as the window.
                    assert!(all > 0, "{kind} {way:?}: {stream:?}");
                }
                let window: u64 = half.received.iter().map(|stream| stream.bytes).sum();
                assert_eq!(window > 0, expected, "{kind} {way:?}: {:?}", half.received);
            }
            let sent: Vec<_> = seen.here.sent.iter().chain(&seen.there.sent).collect();
            assert_eq!(sent.len(), plan.connections());
            for stream in sent {
                assert!(
                    !stream.looks.is_empty() && !stream.congestion.is_empty(),
                    "{kind} {way:?}: {stream:?}"
                );
                assert!(stream.looks.iter().all(|look| look.cwnd > 0 && look.rtt_us > 0.0));
            }
            assert!(seen.round_trip.is_some() && seen.there.host.kernel.starts_with("Linux"));
        }
    }
}

#[test]
fn a_document_has_rates_and_time_series() {
    let plan = NetPlan { way: NetDirection::Both, time_ms: 1000, ..short() };
    let mut runs = NetRuns::new(plan.clone(), "there");
    let watch = Watch::start();
    let seen = measured(EngineKind::Auto, &plan);
    let bits = seen.rates(&plan);
    runs.push(seen, &watch.end(), &crate::watch::Expect::default());
    let document = runs.document();
    let record = document.longhaul.expect("a record");
    assert_eq!((record.kind.as_str(), record.hosts.len(), record.runs.len()), ("netbench", 2, 1));
    let names: Vec<&str> = record.cells.iter().map(|cell| cell.name.as_str()).collect();
    assert!(names.starts_with(&["throughput to server", "retransmissions to server"]), "{names:?}");
    let value = |at: usize| {
        record.cells[at].samples.first().or(record.cells[at].left_out.first().map(|l| &l.value)).copied()
    };
    assert_eq!([value(0), value(2)], bits);
    let streams: std::collections::BTreeSet<&str> =
        record.runs[0].tcp.iter().map(|look| look.stream.as_str()).collect();
    assert_eq!(streams.into_iter().collect::<Vec<_>>(), ["from server 1", "to server 1"]);
    assert_eq!(record.runs[0].tcp.len(), 2 * 21);
    assert!(document.jobs[0].read.bw_bytes > 0 && document.jobs[0].write.bw_bytes > 0);
}

#[test]
fn plans_beyond_the_limits_are_refused_on_both_ends() {
    let bad = [
        NetPlan { streams: 0, ..short() },
        NetPlan { streams: STREAMS_MAX + 1, ..short() },
        NetPlan { block: 1, ..short() },
        NetPlan { block: BLOCK.1 + 1, ..short() },
        NetPlan { time_ms: 0, ..short() },
        NetPlan { time_ms: u64::MAX, ..short() },
        NetPlan { ramp_ms: u64::MAX, ..short() },
        NetPlan { interval_ms: 0, ..short() },
        NetPlan { congestion: Some("../../x".into()), ..short() },
    ];
    let server = server(EngineKind::Auto);
    for plan in bad {
        assert!(plan.check().is_err(), "{plan:?}");
        let result = measure(server.address(), &plan, &Config::default(), &Stop::new(), &mut |_, _| {});
        assert!(matches!(result, Err(NetError::Plan(_))), "{result:?}");
        let control = TcpStream::connect(server.address()).expect("connected");
        control::say(&control, &Opening::Control { version: VERSION, token: 1, plan }).expect("said");
        let answer = control::hear::<Answer>(&control, 1 << 16, SET_UP).expect("heard");
        assert!(matches!(answer, Some(Answer::Refused { .. })), "{answer:?}");
    }
}

#[test]
fn invalid_and_silent_clients_do_not_disturb_the_server() {
    let server = server(EngineKind::Auto);
    let connect = || TcpStream::connect(server.address()).expect("connected");
    // Says nothing, says too much, says something else, is of no measurement.
    let silent = connect();
    let mut endless = connect();
    let _ = endless.write_all(&vec![b'x'; 2 * control::LINE_MAX]);
    let mut other = connect();
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("said");
    let mut stray = connect();
    control::say(&stray, &Opening::Stream { token: 9, index: 0, client_sends: true }).expect("said");
    for peer in [&mut other, &mut stray] {
        peer.set_read_timeout(Some(SET_UP)).expect("set");
        assert!(matches!(peer.read(&mut [0; 16]), Ok(0) | Err(_)), "nothing is said to it");
    }
    // A client of another version gets a refusal that says so.
    let old = connect();
    control::say(&old, &Opening::Control { version: 99, token: 1, plan: short() }).expect("said");
    match control::hear::<Answer>(&old, 1 << 16, SET_UP).expect("heard") {
        Some(Answer::Refused { reason }) => assert!(reason.contains("version 1, not 99"), "{reason}"),
        answer => panic!("{answer:?}"),
    }
    // A valid client is served meanwhile.
    let seen = measure(server.address(), &short(), &Config::default(), &Stop::new(), &mut |_, _| {});
    assert!(seen.expect("measured").there.received[0].bytes > 0);
    drop(silent);
}

#[test]
fn the_server_measures_for_one_client_until_it_leaves() {
    let server = server(EngineKind::Auto);
    let first = TcpStream::connect(server.address()).expect("connected");
    control::say(&first, &Opening::Control { version: VERSION, token: 5, plan: short() }).expect("said");
    let accepted = control::hear::<Answer>(&first, 1 << 20, SET_UP).expect("heard");
    assert!(matches!(accepted, Some(Answer::Accepted { .. })));
    let second = measure(server.address(), &short(), &Config::default(), &Stop::new(), &mut |_, _| {});
    assert!(matches!(second, Err(NetError::Refused { .. })), "{second:?}");
    // The client disconnects in the middle of the stream.
    let stream = TcpStream::connect(server.address()).expect("connected");
    control::say(&stream, &Opening::Stream { token: 5, index: 0, client_sends: true }).expect("said");
    let ready = control::hear::<Answer>(&first, 1 << 20, SET_UP).expect("heard");
    assert_eq!(ready, Some(Answer::Ready));
    control::say(&first, &Say::Go).expect("said");
    drop((first, stream));
    let until = std::time::Instant::now() + SET_UP;
    loop {
        match measure(server.address(), &short(), &Config::default(), &Stop::new(), &mut |_, _| {}) {
            Ok(_) => break,
            Err(NetError::Refused { .. }) if std::time::Instant::now() < until => {
                std::thread::yield_now();
            }
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn an_unreachable_server_is_named_in_the_error() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("address");
    let result = measure(address, &short(), &Config::default(), &Stop::new(), &mut |_, _| {});
    let said = result.expect_err("nothing listens there").to_string();
    assert!(said.contains(&address.to_string()) && said.contains("refused"), "{said}");
    let stop = Stop::new();
    stop.stop();
    let server = server(EngineKind::Auto);
    let result = measure(server.address(), &short(), &Config::default(), &stop, &mut |_, _| {});
    assert!(matches!(result, Err(NetError::Stopped)), "{result:?}");
}
