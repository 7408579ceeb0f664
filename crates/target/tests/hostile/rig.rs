//! A target under attack, and witnesses: hosts that use it meanwhile.

use crate::client::{BLOCK, Client, Host, NQN, PATIENCE};
use longhaul_block::{BackendSpec, BlockDevice};
use longhaul_engine::{Config as EngineConfig, EngineKind};
use longhaul_target::{Config, Patience, ReservationStore, Target};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Blocks of each namespace that belong to the witnesses.
const WITNESS_LBA: u64 = 2048;
/// Namespaces: memory, and a file.
pub const MEM: u32 = 1;
pub const FILE: u32 = 2;
/// Blocks of a namespace.
pub const BLOCKS: u64 = (16 << 20) / BLOCK as u64;

/// Of a target whose time limits are waited for: hundreds of times as long as a flawless host takes,
/// and in all a fifth of the defaults.
pub const SHORT: Patience = Patience {
    connect: Duration::from_secs(4),
    enable: Duration::from_secs(8),
    data: Duration::from_secs(4),
    data_rate: 8 << 10,
    stall: Duration::from_secs(8),
    stall_bytes: 64 << 10,
};

pub struct Rig {
    target: Target,
    pub addr: SocketAddr,
    witnesses: Vec<Witness>,
    memory: usize,
    _dir: tempfile::TempDir,
}

impl Rig {
    /// A target on this engine, or `None` where the engine is not available.
    pub fn new(kind: EngineKind, change: impl FnOnce(&mut Config)) -> Option<Rig> {
        let mut config = Config {
            listen: vec!["127.0.0.1:0".parse().expect("address")],
            threads: 2,
            engine: EngineConfig { kind, ..EngineConfig::default() },
            ..Config::default()
        };
        change(&mut config);
        let memory = config.memory;
        let target = match Target::start(config) {
            Ok(target) => target,
            Err(e) => {
                longhaul_skip::skip!("{kind}: {e}");
                return None;
            }
        };
        let dir = tempfile::tempdir().expect("directory");
        let file = format!("file:{},size=16MiB,block=4096", dir.path().join("disk").display());
        for (nsid, spec) in [(MEM, "mem:16MiB,block=4096"), (FILE, &file)] {
            let device = BackendSpec::parse(spec).expect("understood").open().expect("opened");
            assert_eq!(u64::from(device.info().block_size), BLOCK as u64);
            assert_eq!(
                target.export(NQN, "disk", device, Uuid::from_u128(nsid.into())).expect("exported"),
                nsid
            );
        }
        let addr = target.addresses()[0];
        let start = |(nsid, device)| Witness::start(addr, nsid, device);
        let witnesses = [(MEM, "memory"), (FILE, "the file")].map(start).into();
        Some(Rig { target, addr, witnesses, memory, _dir: dir })
    }

    /// One more namespace.
    pub fn export(&self, device: Arc<dyn BlockDevice>) -> u32 {
        self.target.export(NQN, "disk", device, Uuid::new_v4()).expect("exported")
    }

    /// One more namespace, whose reservations can persist.
    pub fn export_persistent(
        &self,
        device: Arc<dyn BlockDevice>,
        store: Arc<dyn ReservationStore>,
    ) -> Result<u32, longhaul_target::Error> {
        self.target.export_persistent(NQN, "disk", device, Uuid::new_v4(), store)
    }

    pub fn remove(&self, nsid: u32) {
        assert!(self.target.remove_namespace(NQN, nsid));
    }

    /// A controller of its own, with a queue of 32.
    pub fn host(&self) -> Host {
        Host::new(self.addr, 32, 0)
    }

    /// Others go on, and the memory of the target is within its bound.
    pub fn check(&self) {
        self.witnesses.iter().for_each(Witness::round);
        assert!(self.target.memory_used() <= self.memory, "memory within its bound");
    }

    pub fn connections(&self) -> usize {
        self.target.connections()
    }

    pub fn memory_used(&self) -> usize {
        self.target.memory_used()
    }

    /// Waits until the target has noticed that all but `n` connections (besides those of the
    /// witnesses) have ended; it reports nothing when it does.
    pub fn wait_for_connections(&self, n: usize) {
        let all = n + 2 * self.witnesses.len();
        until("the end of connections", || self.target.connections() == all);
    }

    /// In the end nothing is left of it all.
    pub fn finish(mut self) {
        self.check();
        let addr = self.addr;
        self.witnesses.drain(..).for_each(Witness::stop);
        let mut host = Host::new(addr, 32, 3);
        host.verify(MEM, 0, 1000);
        host.verify(FILE, 0, 2000);
        drop(host);
        until("the end of connections", || self.target.connections() == 0);
        until("memory given back", || self.target.memory_used() == 0);
        assert!(self.target.stop(), "everything is durable");
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Pause of a witness after a round that no check waits for: tests that wait for a time limit need
/// others that go on, not others that take the processor.
const PAUSE: Duration = Duration::from_millis(5);

/// A host that writes and verifies all the while, on connections that live
/// from beginning to end.
struct Witness {
    /// The device behind its namespace.
    device: &'static str,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    rounds: Mutex<Rounds>,
    /// A check waits for a round, or the witness is to stop.
    asked: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct Rounds {
    done: u64,
    /// How many some check waits for.
    wanted: u64,
    stop: bool,
}

impl Witness {
    fn start(addr: SocketAddr, nsid: u32, device: &'static str) -> Witness {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut host = Host::new(addr, 8, 0);
            for seed in 0.. {
                host.verify(nsid, WITNESS_LBA + seed % 64 * 8, seed);
                let mut rounds = theirs.rounds.lock().expect("lock");
                rounds.done += 1;
                theirs.done.notify_all();
                let idle = |rounds: &mut Rounds| rounds.wanted <= rounds.done && !rounds.stop;
                let (rounds, _) = theirs.asked.wait_timeout_while(rounds, PAUSE, idle).expect("lock");
                if rounds.stop {
                    return;
                }
            }
        });
        Witness { device, shared, thread }
    }

    /// Waits until a whole round was begun and ended from now on.
    fn round(&self) {
        let mut rounds = self.shared.rounds.lock().expect("lock");
        let until = rounds.done + 2;
        rounds.wanted = rounds.wanted.max(until);
        self.shared.asked.notify_all();
        let waited = self.shared.done.wait_timeout_while(rounds, PATIENCE, |rounds| rounds.done < until);
        let timed_out = waited.map(|(_, time)| time.timed_out()).expect("lock");
        assert!(!timed_out && !self.thread.is_finished(), "others do not go on with {}", self.device);
    }

    fn stop(self) {
        self.shared.rounds.lock().expect("lock").stop = true;
        self.shared.asked.notify_all();
        self.thread.join().expect("every round was verified");
    }
}

/// Sends `bytes` on a new connection and passes the peer's answers to `judge`.
pub fn attack(rig: &Rig, mut client: Client, bytes: &[u8], judge: impl FnOnce(&mut Client)) {
    client.send(bytes);
    judge(&mut client);
    rig.check();
}
