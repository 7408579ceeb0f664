//! Both ends at their worst links: real sockets over an emulated network. They
//! need root and `/dev/net/tun`, and say so where they skip.
//!
//! All tests share one client, since the thread that serves admin queues stays
//! in the network namespace of the thread that started it; each has a server and
//! a link of its own, so they run at the same time.

mod common;

use common::events::{drain, until_event};
use common::fake::{self, Fake, Manner};
use common::load::Load;
use common::{NQN, PATIENCE, backend, connect, hold_disk, in_time, pattern, read, until};
use futures_channel::mpsc::UnboundedReceiver;
use longhaul_block::filter::OpKind;
use longhaul_block::{BlockDevice, Blocking, IoError};
use longhaul_engine::Config as EngineConfig;
use longhaul_initiator::path::PathOptions;
use longhaul_initiator::{ControllerEvent, Options, RemoteDevice};
use longhaul_target::{Config, Target};
use longhaul_wan::{Change, Conditions, Error, LinkDirection, Wan, WanPlan};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};
use uuid::Uuid;

const MS: Duration = Duration::from_millis(1);
/// Links, one for each use below.
const LINKS: usize = 10;

/// The network; if it cannot be made, the reason is printed on standard error.
fn wan() -> Option<&'static Wan> {
    static WAN: OnceLock<Result<Wan, String>> = OnceLock::new();
    let start = || {
        let conditions = Conditions::new(10 * MS, Some(200_000_000));
        let plan = WanPlan {
            star: Some(LINKS),
            seed: Some(1),
            ..WanPlan::new(WanPlan::unique_name("i"), conditions)
        };
        match Wan::start(plan) {
            Ok(wan) => Ok(wan),
            Err(Error::Unavailable(why)) => Err(why),
            Err(e) => panic!("{e}"),
        }
    };
    match WAN.get_or_init(start) {
        Ok(wan) => Some(wan),
        Err(why) => {
            longhaul_skip::skip!("{why}");
            None
        }
    }
}

/// A target behind a link, and a load on it.
struct Loaded {
    wan: &'static Wan,
    link: usize,
    load: Load,
    events: UnboundedReceiver<ControllerEvent>,
    _remote: Arc<RemoteDevice>,
    _target: Target,
}

impl Loaded {
    fn start(link: usize, options: Options) -> Option<Loaded> {
        Loaded::on(link, options, backend("mem:32MiB"))
    }

    fn on(link: usize, options: Options, device: Arc<dyn BlockDevice>) -> Option<Loaded> {
        let wan = wan()?;
        let config =
            Config { listen: vec![(wan.server_address(link), 0).into()], threads: 1, ..Config::default() };
        let target = wan.server(link).run(|| Target::start(config)).expect("entered").expect("started");
        let nsid = target.export(NQN, "disk", device, Uuid::from_u128(7)).expect("exported");
        let uri = format!("nvme+tcp://{}/{NQN}?nsid={nsid}", target.addresses()[0]);
        let remote = near(&uri, options);
        let events = remote.events();
        let begin = || Load::start(Arc::clone(&remote), EngineConfig::default());
        let load = wan.client().run(begin).expect("entered");
        load.more(50);
        Some(Loaded { wan, link, load, events, _remote: remote, _target: target })
    }

    fn set(&self, change: &Change) {
        self.wan.set(self.link, change).expect("changed");
    }

    /// Waits until a connection is given up for a reason with `words` in it.
    fn given_up(&mut self, words: &str) {
        until_event(
            words,
            &mut self.events,
            |e| matches!(e, ControllerEvent::Reconnecting { reason, .. } if reason.contains(words)),
        );
    }

    /// I/O continues, all of it; then the content is compared.
    fn finish(mut self) {
        self.load.more(100);
        self.load.finish();
        let lost = drain(&mut self.events).into_iter().find(|e| matches!(e, ControllerEvent::Lost(_)));
        assert_eq!(lost, None);
    }
}

/// A device by a path through the client's namespace.
fn near(uri: &str, options: Options) -> Arc<RemoteDevice> {
    let client = wan().expect("there").client();
    client.run(|| connect(uri, options)).expect("entered").expect("connected")
}

#[test]
fn a_link_that_flaps_every_second_costs_nothing() {
    let Some(loaded) = Loaded::start(1, Options::default()) else { return };
    for _ in 0..10 {
        loaded.set(&Change::cut());
        sleep(500 * MS);
        loaded.set(&Change::restore());
        sleep(500 * MS);
    }
    let there = loaded.wan.statistics().expect("statistics").links[0].there;
    assert!(there.dropped_cut >= 10, "it was under load whenever it was cut: {there:?}");
    loaded.finish();
}

#[test]
fn a_link_that_is_cut_one_way_is_noticed_and_costs_nothing() {
    for direction in [LinkDirection::There, LinkDirection::Back] {
        let Some(mut loaded) = Loaded::start(2, Options::default()) else { return };
        loaded.set(&Change::cut().only(direction));
        loaded.given_up("nothing was acknowledged for ");
        loaded.set(&Change::restore());
        loaded.finish();
    }
}

fn black_hole(bytes: u32, direction: LinkDirection) -> Change {
    Change { black_hole: Some(bytes), ..Change::default() }.only(direction)
}

#[test]
fn large_packets_that_do_not_get_there_are_named() {
    let Some(mut loaded) = Loaded::start(3, Options::default()) else { return };
    loaded.set(&black_hole(1500, LinkDirection::There));
    loaded.given_up("though small packets are: those of 9000 bytes do not get there");
    // It is the same on the next connection.
    loaded.given_up("MTU black hole");
    loaded.set(&black_hole(0, LinkDirection::There));
    loaded.finish();
}

#[test]
fn large_packets_that_do_not_come_back_are_named() {
    let Some(mut loaded) = Loaded::start(4, Options::default()) else { return };
    loaded.set(&black_hole(1500, LinkDirection::Back));
    loaded.given_up("bytes of an answer have not come for ");
    loaded.given_up("did not answer Identify Controller");
    loaded.set(&black_hole(0, LinkDirection::Back));
    loaded.finish();
}

/// Reads hang for as long as in a black hole, but since the device is slow.
#[test]
fn a_slow_device_is_no_black_hole() {
    let gate = hold_disk(32 << 20);
    let Some(mut loaded) = Loaded::on(5, Options::default(), Arc::new(gate.clone()) as _) else { return };
    gate.hold(OpKind::Read, usize::MAX);
    // Until every slot of the load waits, and then for longer than it takes to
    // find a black hole.
    until("all reads to hang", || gate.held() == Load::SLOTS as usize);
    sleep(Duration::from_secs(8));
    assert_eq!(drain(&mut loaded.events), []);
    gate.hold(OpKind::Read, 0);
    gate.release();
    loaded.finish();
}

#[test]
fn duplicates_and_old_segments_cost_nothing() {
    let Some(mut loaded) = Loaded::start(6, Options::default()) else { return };
    loaded.set(&Change {
        reorder: Some(0.02),
        reorder_by: Some(30 * MS),
        duplicate: Some(0.1),
        duplicate_after: Some(200 * MS),
        ..Change::default()
    });
    loaded.load.more(500);
    let link = loaded.wan.statistics().expect("statistics").links[5];
    for way in [link.there, link.back] {
        assert!(way.duplicated > 0 && way.reordered > 0, "{way:?}");
    }
    assert_eq!(drain(&mut loaded.events), [], "no connection is given up");
    loaded.finish();
}

/// A fake target behind a link, and a device on it.
fn fake(link: usize, options: Options, manner: Manner) -> Option<(Fake, Arc<RemoteDevice>, Blocking)> {
    let wan = wan()?;
    let ip = IpAddr::from(wan.server_address(link));
    let fake = wan.server(link).run(|| Fake::start(ip, manner)).expect("entered");
    let remote = near(&fake.uri(), options);
    let open = || Blocking::open_on(Arc::clone(&remote) as _, EngineConfig::default());
    let disk = wan.client().run(open).expect("entered").expect("opened");
    Some((fake, remote, disk))
}

/// Writes on a thread of its own.
fn write_beside(
    disk: &Arc<Blocking>,
    seed: u64,
    offset: u64,
) -> std::thread::JoinHandle<Result<(), IoError>> {
    let disk = Arc::clone(disk);
    std::thread::spawn(move || disk.write_at(&pattern(fake::BLOCK, seed), offset))
}

#[test]
fn a_peer_that_takes_no_more_bytes_is_named_and_left_for_another_connection() {
    let options = Options { io_timeout: Duration::from_secs(1), ..Options::default() };
    let Some((fake, remote, disk)) = fake(7, options, Manner::default()) else { return };
    let mut events = remote.events();
    disk.write_at(&pattern(1 << 20, 1), 0).expect("written");
    fake.change(|manner| manner.deaf = true);
    let writer = std::thread::spawn(move || {
        for i in 2..4 {
            disk.write_at(&pattern(1 << 20, i), i << 20).expect("written");
        }
        disk
    });
    until_event("the deadline", &mut events, |e| {
        let words = "a Write command has not ended for 2 s, nor by Abort";
        matches!(e, ControllerEvent::Reconnecting { reason, .. } if reason.contains(words))
    });
    fake.change(|manner| manner.deaf = false);
    let disk = in_time("the writes", move || writer.join().expect("no fault"));
    for (i, at) in [(1, 0), (2, 2 << 20), (3, 3 << 20)] {
        assert!(read(&disk, at, 1 << 20).expect("read") == pattern(1 << 20, i));
    }
}

/// Whatever is begun, no more is under way than the queue has entries for.
#[test]
fn a_peer_that_answers_no_more_is_not_flooded() {
    let path = PathOptions { connections: Some(1), ..PathOptions::default() };
    let options = Options { queue_size: 8, path, ..Options::default() };
    let Some((fake, _remote, disk)) = fake(7, options, Manner::default()) else { return };
    fake.change(|manner| manner.swallow = u32::MAX);
    let disk = Arc::new(disk);
    let offset = |i: u64| i * fake::BLOCK as u64;
    let writers: Vec<_> = (0..32).map(|i| write_beside(&disk, i, offset(i))).collect();
    until("the queue to be full", || fake.writes().len() == 7);
    sleep(500 * MS);
    assert_eq!(fake.writes().len(), 7, "and no more");
    fake.change(|manner| manner.swallow = 0);
    fake.drop_connections();
    for writer in writers {
        in_time("a write", move || writer.join().expect("no panic")).expect("written");
    }
    for i in 0..32 {
        assert!(read(&disk, offset(i), fake::BLOCK).expect("read") == pattern(fake::BLOCK, i));
    }
}

#[test]
fn completions_of_no_outstanding_command_reach_no_buffer() {
    let options = Options { ctrl_loss: Some(Duration::from_secs(2)), ..Options::default() };
    let Some((fake, _remote, disk)) = fake(8, options, Manner::default()) else { return };
    disk.write_at(&pattern(fake::BLOCK, 1), 0).expect("written");
    fake.change(|manner| manner.wrong_identifiers = true);
    let mut found = vec![0xEE; fake::BLOCK];
    let e = disk.read_at(&mut found, 0).expect_err("it is never answered");
    let text = e.to_string();
    assert!(text.contains("--ctrl-loss-timeout") && text.contains("no outstanding"), "{text}");
    assert!(found == [0xEE; fake::BLOCK], "nothing was placed");
}

#[test]
fn a_namespace_that_is_another_one_gets_nothing() {
    type Case = (&'static str, fn(&mut Manner));
    let cases: [Case; 2] = [
        ("is another one now: it was NGUID 00000000000000000000000000000007, and is NGUID", |m| m.nguid = 8),
        ("has 2097152 bytes now, it had 4194304", |m| m.blocks = 512),
    ];
    for (complaint, change) in cases {
        let Some((fake, _remote, disk)) = fake(8, Options::default(), Manner::default()) else { return };
        disk.write_at(&pattern(fake::BLOCK, 1), 0).expect("written");
        fake.change(change);
        fake.drop_connections();
        let e = disk.write_at(&pattern(fake::BLOCK, 2), 0).expect_err(complaint);
        assert!(matches!(e, IoError::Refused(_)) && e.to_string().contains(complaint), "{e}");
        assert_eq!(fake.writes().len(), 1, "no data was sent there");
        assert!(fake.content(0, fake::BLOCK) == pattern(fake::BLOCK, 1));
    }
}

/// Loses the connection while a write is under way; gives when the write was
/// done again after that.
fn rewritten(link: usize, manner: Manner) -> Option<(Fake, Duration)> {
    let options = Options { kato: Duration::from_secs(1), ..Options::default() };
    let (fake, remote, disk) = fake(link, options, manner)?;
    let (mut events, disk) = (remote.events(), Arc::new(disk));
    disk.write_at(&pattern(fake::BLOCK, 1), 0).expect("written");
    fake.change(|manner| manner.swallow = 1);
    let writer = write_beside(&disk, 2, 0);
    until("the write to arrive", || fake.writes().len() == 2);
    let lost = Instant::now();
    fake.drop_connections();
    common::events::reconnected(&mut events);
    assert!(read(&disk, 0, fake::BLOCK).is_ok(), "reads need not wait");
    assert_eq!(fake.writes().len(), 2, "writes wait");
    in_time("the write", move || writer.join().expect("no panic")).expect("written");
    let writes = fake.writes();
    assert!(writes.len() == 3 && writes[2].1 != writes[1].1, "resent on another controller: {writes:?}");
    assert!(fake.content(0, fake::BLOCK) == pattern(fake::BLOCK, 2));
    Some((fake, writes[2].0 - lost))
}

/// KATO of 1 s, and CQT. The target never reports the end of the old controller.
#[test]
fn without_resets_a_write_waits_until_the_old_controller_must_be_gone() {
    let manner = Manner { ciu: 0, cqt: 700, ..Manner::default() };
    let Some((_fake, waited)) = rewritten(9, manner) else { return };
    assert!(waited >= 1700 * MS, "{waited:?}");
    assert!(waited < PATIENCE / 4, "and no longer: {waited:?}");
}

#[test]
fn a_reset_that_takes_long_is_waited_for() {
    let manner = Manner { resets_in_progress: 8, ..Manner::default() };
    let Some((fake, waited)) = rewritten(10, manner) else { return };
    // It is asked for again every 200 ms.
    assert!(waited >= 1600 * MS, "{waited:?}");
    let (reset, writes) = (fake.reset().expect("it was reset"), fake.writes());
    assert!(reset < writes[2].0, "before the write");
}
