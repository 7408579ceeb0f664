//! Two targets that serve one namespace in turn, and a host that has a path to each (ANA).

mod common;

use common::load::Load;
use common::relay::Relay;
use common::{NQN, backend, in_time, pattern, target, until};
use longhaul_block::{
    BlockDevice, BlockIo, Blocking, DeviceInfo, IoError, IoFuture, IoResult, Open, WriteFlags, ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, Config as EngineConfig, Engine};
use longhaul_initiator::{MultipathDevice, Options, PathState};
use longhaul_target::{StandbyDevice, Target};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use uuid::Uuid;

const SIZE: &str = "mem:32MiB";

/// The device that both targets serve, as one of them has it: what it does once the other one is the
/// owner is refused, as by an array that was taken over.
#[derive(Clone)]
struct Owned {
    below: Arc<dyn BlockDevice>,
    owner: Arc<Mutex<usize>>,
    number: usize,
}

struct OwnedIo {
    below: Rc<dyn BlockIo>,
    of: Owned,
}

impl Owned {
    /// Does what memory does at once, unless another target is the owner.
    fn begin<T: Unpin + 'static>(&self, begin: impl FnOnce() -> IoFuture<T>) -> IoFuture<T> {
        let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        if *owner != self.number {
            return IoFuture::ready(Err(IoError::Offline("another host has taken it over".into())));
        }
        begin()
    }
}

impl BlockDevice for Owned {
    fn info(&self) -> DeviceInfo {
        self.below.info()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let below = self.below.open().await?;
            Ok(Rc::new(OwnedIo { below, of: self.clone() }) as Rc<dyn BlockIo>)
        })
    }
}

impl BlockIo for OwnedIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.of.begin(|| self.below.read(offset, dst))
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        self.of.begin(|| self.below.write(offset, src, flags))
    }

    fn flush(&self) -> IoFuture<()> {
        self.of.begin(|| self.below.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.of.begin(|| self.below.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.of.begin(|| self.below.write_zeroes(offset, len, flags))
    }
}

/// Two targets, of which neither serves the namespace at first.
struct Heads {
    targets: [Target; 2],
    relays: [Relay; 2],
    devices: [Owned; 2],
    nsid: u32,
    uuid: Uuid,
}

impl Heads {
    fn new() -> Heads {
        let (below, owner, uuid) = (backend(SIZE), Arc::new(Mutex::new(0)), Uuid::new_v4());
        let targets = [0, 1].map(|_| target(|_| {}));
        let relays = [0, 1].map(|n: usize| Relay::start(targets[n].addresses()[0]));
        let devices =
            [0, 1].map(|number| Owned { below: Arc::clone(&below), owner: Arc::clone(&owner), number });
        let add = |target: &Target| target.export_standby(NQN, "disk", standby(&*below), uuid);
        let nsids = [0, 1].map(|n: usize| add(&targets[n]).expect("exported"));
        assert_eq!(nsids[0], nsids[1]);
        Heads { targets, relays, devices, nsid: nsids[0], uuid }
    }

    fn uri(&self) -> String {
        let [a, b] = [0, 1].map(|n: usize| self.relays[n].uri(&self.targets[n].addresses()[0].to_string()));
        format!("nvme+tcp://{a},{b}/{NQN}?nsid={}", self.nsid)
    }

    fn connect(&self, options: Options) -> Arc<MultipathDevice> {
        MultipathDevice::connect_blocking(&self.uri().parse().expect("good"), options).expect("connected")
    }

    /// A target takes the device over, which the other one notices later, if ever.
    fn take_over(&self, number: usize) {
        *self.devices[number].owner.lock().expect("no panic") = number;
        let at = (self.nsid, self.uuid);
        assert!(self.targets[number].serve(NQN, at, Arc::new(self.devices[number].clone())));
    }

    fn stand_by(&self, number: usize) {
        let device = standby(&*self.devices[number].below);
        assert!(self.targets[number].stand_by(NQN, (self.nsid, self.uuid), device));
    }
}

fn standby(device: &dyn BlockDevice) -> StandbyDevice {
    StandbyDevice { info: device.info(), granularity: 0 }
}

fn states(device: &MultipathDevice) -> [PathState; 2] {
    let paths = device.paths();
    [paths[0].state, paths[1].state]
}

fn with_loss(limit: Duration) -> Options {
    Options { ctrl_loss: Some(limit), ..Options::default() }
}

fn start(device: &Arc<MultipathDevice>) -> Load {
    Load::start_on(Arc::<MultipathDevice>::clone(device), EngineConfig::default())
}

fn opened(device: &Arc<MultipathDevice>) -> Blocking {
    Blocking::open(Arc::<MultipathDevice>::clone(device)).expect("opened")
}

//= test: NVMe Base 2.1, Asymmetric Namespace Access
#[test]
fn requests_follow_the_target_that_serves_the_namespace() {
    use PathState::{Inaccessible, Optimized};
    let heads = Heads::new();
    heads.take_over(0);
    let device = heads.connect(Options::default());
    assert_eq!(states(&device), [Optimized, Inaccessible]);
    let load = start(&device);
    load.more(100);
    for round in 1..=6 {
        let (old, new) = ((round + 1) % 2, round % 2);
        if round <= 3 {
            // The old one says so first, and commands wait.
            heads.stand_by(old);
            until("no path", || states(&device) == [Inaccessible; 2]);
            assert!(device.outage().is_some_and(|outage| !outage.for_good));
            heads.take_over(new);
        } else {
            // The old one fails commands, and says later why; in one round it does not for long.
            heads.take_over(new);
            if round == 4 {
                load.more(20);
            }
            heads.stand_by(old);
        }
        load.more(100);
        until("the states", || {
            let states = states(&device);
            (states[old], states[new]) == (Inaccessible, Optimized)
        });
        assert_eq!(device.outage(), None);
    }
    load.finish();
    assert_eq!(device.disconnects(), 0);
}

#[test]
fn a_target_that_dies_is_replaced_without_an_error() {
    let heads = Heads::new();
    heads.take_over(0);
    let device = heads.connect(Options::default());
    let load = start(&device);
    for round in 0..4 {
        let (old, new) = (round % 2, (round + 1) % 2);
        load.more(100);
        heads.relays[old].cut();
        until("the path to be lost", || states(&device)[old] == PathState::Lost);
        heads.take_over(new);
        load.more(100);
        // It is started again.
        heads.stand_by(old);
        heads.relays[old].restore();
        until("the path to return", || states(&device)[old] == PathState::Inaccessible);
    }
    load.more(100);
    load.finish();
    assert_eq!(device.disconnects(), 4);
}

/// A change of a lost path is not sent to a target that has not taken over; and what the old target
/// had acknowledged may be lost.
#[test]
fn changes_of_a_lost_target_wait_for_the_takeover() {
    let heads = Heads::new();
    heads.take_over(0);
    let device = heads.connect(Options::default());
    let (own, shared) = (Arc::clone(&device), Arc::new(heads));
    let heads = Arc::clone(&shared);
    in_time("the load", move || {
        Engine::new(&EngineConfig::default()).expect("engine").block_on(async {
            let io = own.open().await.expect("opened");
            let write = |seed| io.write(0, Buf::copy_of(&pattern(4096, seed)), WriteFlags::default());
            write(1).await.expect("written");
            let before = io.generation();
            // What is sent now has no answer.
            heads.relays[0].hold(false, true);
            let resent = write(2);
            heads.relays[0].cut();
            while states(&own)[0] != PathState::Lost {
                longhaul_engine::sleep(Duration::from_millis(5)).await;
            }
            heads.take_over(1);
            resent.await.expect("sent to the other target");
            io.flush().await.expect("flushed");
            assert_ne!(io.generation(), before, "the other target does not know what was lost");
            let read = io.read(0, BufMut::zeroed(4096)).await.expect("read");
            assert!(read[..] == pattern(4096, 2));
            assert_eq!(io.away_since(), None);
        });
    });
    drop(shared);
}

/// A target that is paused keeps its connections. Once another one has taken the namespace over, its
/// requests do not wait for the keep-alive timeout.
#[test]
fn a_paused_target_that_was_overtaken_is_given_up() {
    let heads = Heads::new();
    heads.take_over(0);
    let device = heads.connect(Options { kato: Duration::from_secs(3600), ..Options::default() });
    let load = start(&device);
    load.more(100);
    heads.relays[0].hold(true, true);
    heads.take_over(1);
    load.more(100);
    assert_eq!(states(&device), [PathState::Lost, PathState::Optimized]);
    // It goes on: what it had received is refused.
    heads.relays[0].hold(false, false);
    heads.stand_by(0);
    until("the path to return", || states(&device)[0] == PathState::Inaccessible);
    load.more(100);
    load.finish();
}

#[test]
fn io_fails_once_no_target_served_the_namespace_for_the_limit() {
    let heads = Heads::new();
    let device = heads.connect(with_loss(Duration::from_millis(300)));
    let io = opened(&device);
    let e = in_time("a write", move || io.write_at(&pattern(4096, 1), 0)).expect_err("no target serves it");
    let text = e.to_string();
    assert!(text.contains("no path for 0.3 s") && text.contains("has not served the namespace"), "{text}");
    assert!(device.outage().is_some_and(|outage| outage.for_good));
}

#[test]
fn requests_wait_for_the_first_target_to_serve_the_namespace() {
    let heads = Heads::new();
    let device = heads.connect(Options::default());
    let (tx, rx) = std::sync::mpsc::channel::<IoResult<()>>();
    let io = opened(&device);
    let writer = std::thread::spawn(move || tx.send(io.write_at(&pattern(4096, 1), 0)).expect("received"));
    assert!(rx.recv_timeout(Duration::from_millis(200)).is_err(), "no target serves it");
    heads.take_over(1);
    rx.recv_timeout(common::PATIENCE).expect("in time").expect("written");
    writer.join().expect("no panic");
}

/// A target that says that it serves the namespace, but cannot: the host reports the error in the end.
#[test]
fn a_command_that_every_path_refuses_fails_in_the_end() {
    let heads = Heads::new();
    heads.take_over(0);
    *heads.devices[0].owner.lock().expect("no panic") = 7;
    let device = heads.connect(Options::default());
    let io = opened(&device);
    let e = in_time("a write", move || io.write_at(&pattern(4096, 1), 0)).expect_err("refused");
    assert!(matches!(e, IoError::Unreachable(_)), "{e}");
}
