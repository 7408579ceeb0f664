//! A target in this process, and devices that reach it.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

pub mod channel;
pub mod events;
pub mod fake;
pub mod load;
pub mod raw;
pub mod relay;

use longhaul_block::testing::FaultDisk;
use longhaul_block::{BackendSpec, BlockDevice, Blocking, IoResult, OpenError};
use longhaul_engine::{Config as EngineConfig, Engine, EngineKind};
use longhaul_initiator::{Options, RemoteDevice};
use longhaul_target::{Config, Target};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The subsystem of most tests.
pub const NQN: &str = "nqn.2026-11.io.longhaul:test:disk";
/// Longer than any wait of a test that passes: a hang becomes a failure.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Every engine that this machine has.
pub fn engines() -> Vec<EngineConfig> {
    let has = |kind: &EngineKind| {
        let config = EngineConfig { kind: *kind, ..EngineConfig::default() };
        // A thread has one engine at a time.
        let made = std::thread::spawn(move || Engine::new(&config).map(drop)).join().expect("no panic");
        if let Err(e) = &made {
            longhaul_skip::skip_part!("{kind}: {e}");
        }
        made.is_ok()
    };
    let config = |kind| EngineConfig { kind, ..EngineConfig::default() };
    [EngineKind::Uring, EngineKind::Epoll].into_iter().filter(has).map(config).collect()
}

/// Where targets and relays listen, some of which are started again at the same port. Connections of this
/// machine begin at 127.0.0.1, so that none is given that port meanwhile.
pub const LISTEN: &str = "127.0.0.2:0";

/// A target on a free port of loopback.
pub fn target(change: impl FnOnce(&mut Config)) -> Target {
    let listen = vec![LISTEN.parse().expect("address")];
    let mut config = Config { listen, threads: 2, ..Config::default() };
    change(&mut config);
    Target::start(config).expect("started")
}

/// A disk of `size` bytes that holds operations, without a write cache.
pub fn hold_disk(size: u64) -> FaultDisk {
    FaultDisk::with(size, |info| (info.block_size, info.volatile_cache) = (4096, false))
}

/// A back end by its specification. A target that was dropped releases its back end when its
/// threads end.
pub fn backend(spec: &str) -> Arc<dyn BlockDevice> {
    let spec = BackendSpec::parse(spec).expect("understood");
    let opened = std::cell::OnceCell::new();
    until("the device to be free", || match spec.open() {
        Err(OpenError::InUse(_)) => false,
        result => opened.set(result.expect("opened")).is_ok(),
    });
    opened.into_inner().expect("opened")
}

/// Exports a back end as a namespace of [`NQN`]; how to reach it.
pub fn export(target: &Target, spec: &str) -> String {
    let nsid = target.export(NQN, "disk", backend(spec), Uuid::new_v4()).expect("exported");
    format!("nvme+tcp://{}/{NQN}?nsid={nsid}", target.addresses()[0])
}

/// A target with one back end.
pub fn serve(spec: &str) -> (Target, String) {
    let target = target(|_| {});
    let uri = export(&target, spec);
    (target, uri)
}

/// Connects to `uri` and waits until the controller is ready.
pub fn connect(uri: &str, options: Options) -> longhaul_initiator::Result<Arc<RemoteDevice>> {
    RemoteDevice::connect_blocking(&uri.parse()?, options)
}

/// Connects and opens, with an engine as given.
pub fn disk(uri: &str, options: Options) -> Blocking {
    let engine = options.engine.clone();
    Blocking::open_on(connect(uri, options).expect("connected"), engine).expect("opened")
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Reads a range.
pub fn read(disk: &Blocking, offset: u64, len: usize) -> IoResult<Vec<u8>> {
    let mut bytes = vec![0; len];
    disk.read_at(&mut bytes, offset).map(|()| bytes)
}

/// Waits until `what` holds; fails with its name if it never does.
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `f` on another thread; fails if it does not end.
pub fn in_time<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (tx, rx) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || tx.send(f()));
    match rx.recv_timeout(PATIENCE) {
        Ok(value) => value,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Err(_) => std::panic::resume_unwind(thread.join().expect_err("it panicked")),
    }
}
