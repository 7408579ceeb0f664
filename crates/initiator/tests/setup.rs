//! Many queues at once, and targets that give fewer than were asked for.

mod common;

use common::relay::{Relay, Way};
use common::{NQN, connect, export, in_time, pattern, read, target, until};
use longhaul_block::{BlockDevice, BlockIo, Blocking, WriteFlags};
use longhaul_engine::{Buf, BufMut, Engine};
use longhaul_initiator::{ControllerEvent, Error, Options, PathOptions, RemoteDevice};
use longhaul_target::Config;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Queues that are asked for.
const QUEUES: u16 = 64;
/// TCP, ICReq, Connect, and one for everything that is asked of the admin
/// queue.
const ROUND_TRIPS: u32 = 4;

fn options(connections: u16) -> Options {
    let path = PathOptions { connections: Some(connections), ..PathOptions::default() };
    Options { path, ..Options::default() }
}

fn on_an_engine<T>(work: impl AsyncFnOnce() -> T) -> T {
    Engine::new(&Default::default()).expect("engine").block_on(work())
}

async fn queues_ready(device: &RemoteDevice, n: u16) {
    let end = longhaul_engine::now() + common::PATIENCE;
    while device.set_up().queues < n {
        assert!(longhaul_engine::now() < end, "{:?}", device.set_up());
        longhaul_engine::sleep(Duration::from_millis(1)).await;
    }
}

/// Writes and reads back, on every connection that there is.
async fn works(io: &Rc<dyn BlockIo>) {
    const BLOCK: usize = 65_536;
    let blocks = 4 * u64::from(QUEUES);
    let content = pattern(BLOCK, 5);
    let write = |n: u64| io.write(n * BLOCK as u64, Buf::copy_of(&content), WriteFlags::default());
    let writes: Vec<_> = (0..blocks).map(write).collect();
    for write in writes {
        write.await.expect("written");
    }
    let reads: Vec<_> = (0..blocks).map(|n| io.read(n * BLOCK as u64, BufMut::zeroed(BLOCK))).collect();
    for read in reads {
        assert!(read.await.expect("read")[..] == content);
    }
}

#[test]
fn sixty_four_queues_take_no_more_round_trips_than_one() {
    let target = target(|_| {});
    let uri = export(&target, "mem:32MiB");
    let relay = Relay::start(target.addresses()[0]);
    for uri in [relay.uri(&uri), relay.uri(uri.split('?').next().expect("a URI"))] {
        let before = relay.accepted();
        let device = connect(&uri, options(QUEUES)).expect("connected");
        on_an_engine(async || {
            let io = device.open().await.expect("opened");
            queues_ready(&device, QUEUES).await;
            works(&io).await;
        });
        let set_up = device.set_up();
        assert_eq!((set_up.round_trips, set_up.queue_round_trips, set_up.queues), (ROUND_TRIPS, 1, QUEUES));
        assert!(set_up.controller <= set_up.total);
        assert_eq!(relay.accepted() - before, usize::from(QUEUES) + 1, "one for each, and none in vain");
    }
}

/// The discovery controller is asked first, and that is counted as well.
#[test]
fn a_short_name_costs_the_round_trips_of_discovery() {
    let target = target(|_| {});
    let uri = export(&target, "mem:32MiB").replace(NQN, "disk");
    let device = connect(&uri, Options::default()).expect("connected");
    // TCP, ICReq, Connect, all that readies it, its records, whether they still hold.
    assert_eq!(device.set_up().round_trips, 6 + ROUND_TRIPS);
}

#[test]
fn a_target_that_grants_four_queues_gets_four() {
    let target = target(|config| config.max_queues = 4);
    let uri = export(&target, "mem:32MiB");
    let device = connect(&uri, options(QUEUES)).expect("connected");
    on_an_engine(async || {
        let io = device.open().await.expect("opened");
        queues_ready(&device, 4).await;
        works(&io).await;
    });
    let set_up = device.set_up();
    assert_eq!((set_up.round_trips, set_up.queue_round_trips, set_up.queues), (ROUND_TRIPS, 1, 4));
    // Those that were begun for the others are closed.
    until("one connection for each queue, and the admin queue's", || target.connections() <= 5);
}

#[test]
fn a_target_with_small_queues_gets_small_queues() {
    let target = target(|config: &mut Config| config.max_queue_size = 8);
    let uri = export(&target, "mem:32MiB");
    let device = connect(&uri, options(8)).expect("connected");
    on_an_engine(async || {
        let io = device.open().await.expect("opened");
        queues_ready(&device, 8).await;
        works(&io).await;
    });
    assert_eq!(device.set_up().queue_round_trips, 1);
}

/// The other features work; the session is unaffected.
#[test]
fn a_target_that_takes_no_more_connections_does_not_lose_those_it_has() {
    let target = target(|_| {});
    let relay = Relay::start(target.addresses()[0]);
    relay.limit(33);
    let uri = relay.uri(&export(&target, "mem:32MiB"));
    let device = connect(&uri, options(QUEUES)).expect("connected");
    let mut events = device.events();
    on_an_engine(async || {
        let io = device.open().await.expect("opened");
        queues_ready(&device, 32).await;
        works(&io).await;
        // Longer than it tries to get the others.
        longhaul_engine::sleep(Duration::from_secs(2)).await;
        works(&io).await;
    });
    assert_eq!(device.set_up().queues, 32);
    assert!(events.try_recv().is_err(), "nothing has happened to the controller");
}

/// It has come back, and takes fewer connections than there were.
#[test]
fn a_target_that_takes_fewer_connections_than_before_is_used_as_it_is() {
    let target = target(|_| {});
    let relay = Relay::start(target.addresses()[0]);
    let uri = relay.uri(&export(&target, "mem:32MiB"));
    let device = connect(&uri, options(16)).expect("connected");
    let mut events = device.events();
    let mut lost = 0;
    on_an_engine(async || {
        let io = device.open().await.expect("opened");
        queues_ready(&device, 16).await;
        relay.limit(5);
        relay.flap();
        for _ in 0..3 {
            works(&io).await;
            longhaul_engine::sleep(Duration::from_secs(1)).await;
        }
    });
    while let Ok(event) = events.try_recv() {
        lost += usize::from(matches!(event, ControllerEvent::Reconnected { .. }));
    }
    assert_eq!(lost, 1, "it does not reconnect for a feature that the target lacks");
}

/// The only connection is not taken, while the controller is there: an error
/// that says so, and soon.
#[test]
fn a_target_with_no_connection_left_is_named() {
    let target = target(|_| {});
    let relay = Relay::start(target.addresses()[0]);
    relay.limit(1);
    let uri = relay.uri(&export(&target, "mem:1MiB"));
    let options = Options { queues: 0, ..Options::default() };
    let device = connect(&uri, options).expect("connected");
    let failed = on_an_engine(async || device.open_io().await.err());
    assert!(
        matches!(&failed, Some(Error::Refused { what, .. }) if what == "another connection"),
        "{failed:?}"
    );
}

/// The target disconnects in each of the steps: an error, no hang; and a new connection succeeds as
/// soon as it is back.
#[test]
fn a_target_that_dies_in_the_middle_of_it() {
    let target = target(|_| {});
    let uri = export(&target, "mem:32MiB");
    // ICResp of nine connections, Connect, and some 12 KB of answers.
    for bytes_back in [0, 100, 128, 600, 1152, 1176, 1300, 5000, 9000, 12_000] {
        let relay = Arc::new(Relay::start(target.addresses()[0]));
        let (tell, told) = std::sync::mpsc::channel();
        let mut left: usize = bytes_back;
        relay.tamper(Some(Box::new(move |_, way, bytes| {
            if way == Way::Back {
                let live = left.min(bytes.len());
                left -= live;
                if live < bytes.len() {
                    // No later byte is valid.
                    bytes[live..].fill(0xFF);
                    let _ = tell.send(());
                }
            }
        })));
        let end = Arc::clone(&relay);
        let killer = std::thread::spawn(move || told.recv().is_ok().then(|| end.cut()));
        let (relayed, options) = (relay.uri(&uri), Options { ctrl_loss: Some(Duration::ZERO), ..options(8) });
        let failed = in_time("connecting and opening", move || {
            let device = connect(&relayed, options)?;
            on_an_engine(async || device.open_io().await.map(drop))
        });
        assert!(failed.is_err(), "with {bytes_back} bytes of answers");
        killer.join().expect("no panic").expect("it was cut");
        relay.tamper(None);
        relay.restore();
        let device = connect(&relay.uri(&uri), Options::default()).expect("it is back");
        let disk = Blocking::open(device).expect("opened");
        read(&disk, 0, 4096).expect("read");
    }
}

/// Capsules without data: their headers and queue entries, in bytes.
const CAPSULE: usize = 72;

/// Whether these are the capsules that enable the controller, with others
/// behind them.
fn is_hasty(way: Way, bytes: &[u8]) -> bool {
    const CAPSULE_CMD: u8 = 4;
    const PROPERTY_GET: u8 = 4;
    way == Way::Forward
        && bytes.len() > 3 * CAPSULE
        && (bytes[0], bytes[8], bytes[12]) == (CAPSULE_CMD, 0x7F, PROPERTY_GET)
}

/// It loses its footing when something is asked before the controller is known
/// to be ready: then nothing is.
#[test]
fn a_target_that_cannot_stand_haste_is_asked_slowly() {
    let target = target(|_| {});
    let relay = Relay::start(target.addresses()[0]);
    let uri = relay.uri(&export(&target, "mem:1MiB"));
    let hasty = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&hasty);
    relay.tamper(Some(Box::new(move |_, way, bytes| {
        if is_hasty(way, bytes) {
            seen.fetch_add(1, Ordering::SeqCst);
            bytes.fill(0xFF);
        }
    })));
    let device = connect(&uri, Options { queues: 0, ..Options::default() }).expect("connected, if slowly");
    assert_eq!(hasty.load(Ordering::SeqCst), 1);
    assert_eq!(device.set_up().round_trips, ROUND_TRIPS + 1);
}

/// A command before the controller is ready is refused, and sent again later.
//= test: NVMe Base 2.1, CC.EN
#[test]
fn what_was_asked_too_early_is_asked_again() {
    let target = target(|_| {});
    let relay = Relay::start(target.addresses()[0]);
    let uri = relay.uri(&export(&target, "mem:1MiB"));
    let hasty = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&hasty);
    // What enables it comes last.
    relay.tamper(Some(Box::new(move |_, way, bytes| {
        if is_hasty(way, bytes) {
            seen.fetch_add(1, Ordering::SeqCst);
            bytes.rotate_left(3 * CAPSULE);
        }
    })));
    for uri in [&uri, uri.split('?').next().expect("a URI")] {
        hasty.store(0, Ordering::SeqCst);
        let device = connect(uri, Options { queues: 0, ..Options::default() }).expect("connected");
        assert_eq!(hasty.load(Ordering::SeqCst), 1);
        assert_eq!(device.set_up().round_trips, ROUND_TRIPS + 1);
        assert!(device.namespace().uuid.is_some() && device.controller().queues > 1, "nothing is missing");
    }
}
