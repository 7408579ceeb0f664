//! Emulated links between namespaces, with the kernel's own TCP. They need
//! root, `/dev/net/tun` and iproute2, and say so where they skip.

mod common;

use common::{
    LIMIT, MS, bounded, connect, content, datagrams, exchange, listen, plan, start, there_and_back,
};
use longhaul_wan::{Change, Error, LinkDirection, Queue, Statistics, Via, Wan, WanPlan};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

fn statistics(wan: &Wan) -> Statistics {
    let statistics = wan.statistics().expect("statistics");
    // Without real-time priority, other programs may delay it.
    assert!(statistics.lost_here() == 0 || !statistics.real_time, "it keeps up: {statistics:?}");
    statistics
}

#[test]
fn content_arrives_after_a_round_trip() {
    let Some(wan) = start(plan(20 * MS, 1_000_000_000)) else { return };
    let took = there_and_back(&wan, 1, &content(1 << 20));
    assert!(took >= 40 * MS, "{took:?} for a handshake and at least one round trip");
    let link = statistics(&wan).links[0];
    assert!(link.there.bytes_out > 1 << 20 && link.back.bytes_out > 1 << 20, "{link:?}");
    // The last acknowledgements are still on their way.
    assert!(link.there.packets_in >= link.there.packets_out + link.there.dropped());
}

#[test]
fn content_survives_loss_a_small_queue_reordering_and_duplicates() {
    let Some(wan) = start(WanPlan { seed: Some(1), ..plan(4 * MS, 400_000_000) }) else { return };
    let change = Change {
        loss: Some(0.01),
        queue: Some(Queue::Bytes(40_000)),
        reorder: Some(0.01),
        reorder_by: Some(2 * MS),
        duplicate: Some(0.01),
        duplicate_after: Some(20 * MS),
        ..Change::default()
    };
    wan.set(1, &change).expect("changed");
    there_and_back(&wan, 1, &content(8 << 20));
    let there = statistics(&wan).links[0].there;
    assert!(there.dropped_loss > 0 && there.dropped_queue > 0, "{there:?}");
    assert!(there.reordered > 0 && there.duplicated > 0, "{there:?}");
}

#[test]
fn small_packets_and_ipv6_are_cut_as_well() {
    let Some(wan) = start(WanPlan { mtu: 1500, ..plan(2 * MS, 0) }) else { return };
    let change = Change { loss: Some(0.005), ..Change::default() };
    wan.set_all(&change).expect("changed");
    there_and_back(&wan, 1, &content(4 << 20));
    if !Path::new("/proc/sys/net/ipv6").exists() {
        return longhaul_skip::skip_part!("this kernel has no IPv6");
    }
    let listener = listen(&wan, 1, wan.server_address6(1).into());
    exchange(&wan, &listener, &content(4 << 20));
    let there = statistics(&wan).links[0].there;
    assert!(there.dropped_loss > 0, "{there:?}");
    // Mostly of the size that the MTU allows, although they came by the dozen.
    assert!(there.bytes_in / there.packets_in <= 1500, "{there:?}");
}

#[test]
fn a_connection_outlives_a_cut_and_loses_nothing() {
    let Some(wan) = start(plan(4 * MS, 0)) else { return };
    let listener = listen(&wan, 1, wan.server_address(1).into());
    let mut near = connect(&wan, &listener);
    let mut far = bounded(listener.accept().expect("accepted").0);
    near.set_nodelay(true).expect("no waiting for acknowledgements");
    let mut byte = [0];
    for (i, direction) in
        [Some(LinkDirection::Back), None, Some(LinkDirection::There)].into_iter().enumerate()
    {
        wan.set(1, &Change { direction, ..Change::cut() }).expect("cut");
        let cut = statistics(&wan).links[0].there.dropped_cut;
        near.write_all(&[i as u8]).expect("sent");
        if direction != Some(LinkDirection::Back) {
            // It was sent, and was not let through: there is nothing else to wait for.
            let begun = Instant::now();
            while statistics(&wan).links[0].there.dropped_cut == cut {
                assert!(begun.elapsed() < LIMIT, "nothing was stopped at the cut");
                std::thread::sleep(MS);
            }
            far.set_read_timeout(Some(50 * MS)).expect("time limit");
            let early = far.read(&mut byte);
            assert!(early.is_err(), "{direction:?} is cut, and yet there is {early:?}");
            wan.set(1, &Change::restore()).expect("restored");
            far.set_read_timeout(Some(LIMIT)).expect("time limit");
        }
        far.read_exact(&mut byte).expect("arrives after all");
        assert_eq!(byte, [i as u8]);
        wan.set(1, &Change::restore()).expect("restored");
    }
}

#[test]
fn a_round_trip_changes_while_it_is_in_use() {
    let Some(wan) = start(plan(2 * MS, 0)) else { return };
    let (client, server) = datagrams(&wan, 1);
    let round_trip = || {
        let (begin, mut buf) = (Instant::now(), [0; 8]);
        client.send(&[1; 8]).expect("sent");
        server.recv(&mut buf).expect("received");
        server.send(&buf).expect("returned");
        client.recv(&mut buf).expect("came back");
        begin.elapsed()
    };
    assert!(round_trip() >= 2 * MS - MS / 10);
    wan.set(1, &Change::rtt(40 * MS)).expect("changed");
    assert!(round_trip() >= 39 * MS);
    wan.set(1, &Change::rtt(60 * MS).only(LinkDirection::Back)).expect("changed");
    assert_eq!(wan.conditions(1).expect("conditions").rtt(), 50 * MS);
    assert!(round_trip() >= 49 * MS);
}

#[test]
fn a_black_hole_swallows_large_packets_only() {
    let Some(wan) = start(plan(2 * MS, 0)) else { return };
    wan.set(1, &Change { black_hole: Some(1500), ..Change::default() }).expect("changed");
    let (client, server) = datagrams(&wan, 1);
    for len in [5000, 1473, 1472] {
        client.send(&vec![7; len]).expect("sent");
    }
    let mut buf = [0; 9000];
    assert_eq!(server.recv(&mut buf).expect("received"), 1472, "28 bytes of headers make 1500");
    assert_eq!(statistics(&wan).links[0].there.dropped_black_hole, 2);
}

#[test]
fn old_packets_come_again_behind_new_ones() {
    let Some(wan) = start(plan(2 * MS, 0)) else { return };
    let (client, server) = datagrams(&wan, 1);
    wan.set(1, &Change { duplicate: Some(1.0), duplicate_after: Some(3000 * MS), ..Change::default() })
        .expect("changed");
    client.send(b"old").expect("sent");
    wan.set(
        1,
        &Change {
            duplicate: Some(0.0),
            reorder: Some(1.0),
            reorder_by: Some(1000 * MS),
            ..Change::default()
        },
    )
    .expect("changed");
    client.send(b"held").expect("sent");
    wan.set(1, &Change { reorder: Some(0.0), ..Change::default() }).expect("changed");
    client.send(b"new").expect("sent");
    let mut buf = [0; 100];
    let mut next = || {
        let len = server.recv(&mut buf).expect("received");
        String::from_utf8_lossy(&buf[..len]).into_owned()
    };
    assert_eq!([next(), next(), next(), next()], ["old", "new", "held", "old"]);
}

#[test]
fn the_rate_bounds_what_passes() {
    let Some(wan) = start(plan(2 * MS, 50_000_000)) else { return };
    let data = content(4 << 20);
    let took = there_and_back(&wan, 1, &data);
    let link = statistics(&wan).links[0];
    // Each way takes as long as its bytes at the rate, one after the other.
    let least = (link.there.bytes_out + link.back.bytes_out) as f64 * 8.0 / 50e6 * 0.9;
    assert!(took.as_secs_f64() >= least, "{took:?} for {link:?}");
}

#[test]
fn each_server_of_a_star_has_a_link_of_its_own() {
    let Some(wan) = start(WanPlan { star: Some(3), ..plan(2 * MS, 0) }) else { return };
    assert_eq!(wan.links(), 3);
    assert!(wan.server(3).name().ends_with("-server3"));
    wan.set(2, &Change::cut()).expect("cut");
    let data = content(1 << 20);
    there_and_back(&wan, 1, &data);
    there_and_back(&wan, 3, &data);
    wan.set(2, &Change::restore()).expect("restored");
    let first = wan.take_statistics().expect("statistics");
    let bytes: Vec<_> = first.links.iter().map(|link| link.there.bytes_out > 1 << 20).collect();
    assert_eq!(bytes, [true, false, true]);
    there_and_back(&wan, 2, &data);
    let second = wan.statistics().expect("statistics");
    let bytes: Vec<_> = second.links.iter().map(|link| link.there.bytes_out > 1 << 20).collect();
    assert_eq!(bytes, [false, true, false], "counted from nothing again");
    assert!(matches!(wan.set(4, &Change::cut()), Err(Error::NoLink(4))));
    assert!(matches!(wan.set(0, &Change::cut()), Err(Error::NoLink(0))));
}

#[test]
fn commands_run_within() {
    let Some(wan) = start(plan(2 * MS, 0)) else { return };
    let run = |namespace: &longhaul_wan::Namespace| {
        let output = namespace.command("ip").args(["-4", "-o", "addr"]).output().expect("ip");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(run(wan.client()).contains("10.77.1.1/24"));
    assert!(run(wan.server(1)).contains("10.77.1.2/24"));
}

#[test]
fn names_that_exist_are_refused_and_left_alone() {
    let Some(first) = start(plan(2 * MS, 0)) else { return };
    let name = first.name().to_owned();
    let again = Wan::start(WanPlan { name: name.clone(), ..plan(2 * MS, 0) });
    assert!(matches!(&again, Err(Error::Exists { .. })), "{again:?}");
    there_and_back(&first, 1, b"still there");
    drop(first);
    for end in ["client", "server"] {
        assert!(!Path::new(&format!("/run/netns/{name}-{end}")).exists(), "{end} is left behind");
    }
    start(WanPlan { name, ..plan(2 * MS, 0) }).expect("the name is free again");
}

#[test]
fn a_failed_setup_removes_what_it_made() {
    if let Some(why) = longhaul_wan::unavailable() {
        return longhaul_skip::skip!("{why}");
    }
    // The last name that it comes to is taken.
    let other = WanPlan::unique_name("t");
    let ip = |verb: &str| Command::new("ip").args(["netns", verb, &format!("{other}-server2")]).status();
    assert!(ip("add").expect("ip").success());
    let failed = Wan::start(WanPlan { name: other.clone(), star: Some(2), ..plan(2 * MS, 0) });
    assert!(matches!(failed, Err(Error::Exists { .. })));
    let exists = |end: &str| Path::new(&format!("/run/netns/{other}-{end}")).exists();
    let left = [exists("client"), exists("server1"), exists("server2")];
    let removed =
        std::process::Command::new("ip").args(["netns", "del", &format!("{other}-server2")]).status();
    assert!(removed.expect("ip").success());
    assert_eq!(left, [false, false, true]);
}

#[test]
fn netem_does_the_same_where_the_kernel_has_it() {
    let wan = match Wan::start(WanPlan { via: Via::Netem, ..plan(20 * MS, 1_000_000_000) }) {
        Ok(wan) => wan,
        Err(Error::Unavailable(why)) => return longhaul_skip::skip!("{why}"),
        Err(e) => panic!("{e}"),
    };
    assert_eq!(wan.via(), Via::Netem);
    let took = there_and_back(&wan, 1, &content(1 << 20));
    assert!(took >= 40 * MS, "{took:?} for a handshake and at least one round trip");
    let link = wan.take_statistics().expect("statistics").links[0];
    assert!(link.there.bytes_out > 1 << 20 && link.back.bytes_out > 1 << 20, "{link:?}");
    wan.set(1, &Change { rate: Some(0), ..Change::rtt(60 * MS) }).expect("changed");
    assert!(there_and_back(&wan, 1, b"x") >= 120 * MS);
    let unknown = wan.set(1, &Change { black_hole: Some(1500), ..Change::default() });
    assert!(matches!(unknown, Err(Error::Invalid(_))), "{unknown:?}");
}
