//! Disks that fail on request, and a model of the content of an array.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test file uses a part of it")]

pub mod disk;
pub mod log;
pub mod model;
pub mod rig;

pub use disk::{Disk, Power};
pub use model::Model;

use fastrand::Rng;
use longhaul_array::{ArrayDevice, ArrayError, Layout, Options, Shape, assemble_as, create_as};
use longhaul_block::BlockDevice;
use longhaul_block::testing::FaultDisk;
use longhaul_engine::Engine;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Layouts with their numbers of members.
pub const LAYOUTS: [(Layout, usize); 5] = [
    (Layout::Stripe, 3),
    (Layout::Mirror, 2),
    (Layout::StripeMirror, 4),
    (Layout::Parity, 4),
    (Layout::DoubleParity, 5),
];

/// A UUID that the seed of `random` determines.
pub fn uuid(random: &mut Rng) -> Uuid {
    Uuid::from_u64_pair(random.u64(..), random.u64(..))
}

/// Runs in virtual time, in an order that the seed determines.
pub fn simulate<T>(seed: u64, future: impl Future<Output = T>) -> T {
    Engine::simulated(seed).expect("engine").block_on(future)
}

pub fn devices(disks: &[Arc<Disk>]) -> Vec<Arc<dyn BlockDevice>> {
    disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn BlockDevice>).collect()
}

/// Disks of one size, on one power supply.
pub fn disks(count: usize, size: u64) -> (Vec<Arc<Disk>>, Arc<Power>) {
    let power = Arc::new(Power::default());
    ((0..count).map(|n| Arc::new(Disk::new(&format!("disk{n}"), size, &power))).collect(), power)
}

/// The same with volatile caches, each on a power supply of its own.
pub fn cached(count: usize) -> Vec<Arc<Disk>> {
    let disk = |n: usize| Disk::with_cache(&format!("disk{n}"), 3 << 20, &Arc::default(), true);
    (0..count).map(|n| Arc::new(disk(n))).collect()
}

/// Disks that hosts share.
pub fn shared(count: usize, size: u64) -> Vec<FaultDisk> {
    (0..count).map(|n| FaultDisk::with(size, |info| info.name = format!("disk{n}"))).collect()
}

/// Shared disks as this host sees them, with reservations; `None`: without.
pub fn seen_by(disks: &[FaultDisk], host: Option<u64>) -> Vec<Arc<dyn BlockDevice>> {
    let device = |disk: &FaultDisk| host.map_or_else(|| disk.clone(), |host| disk.for_host(host));
    disks.iter().map(|disk| Arc::new(device(disk)) as Arc<dyn BlockDevice>).collect()
}

pub async fn make(disks: &[Arc<Disk>], layout: Layout, unit: u64) -> Uuid {
    let shape = Shape { name: "test".into(), layout, unit, force: false };
    let mut random = Rng::with_seed(99);
    create_as(&devices(disks), &[], &shape, || uuid(&mut random)).await.expect("made")
}

pub async fn start(disks: &[Arc<Disk>], options: Options) -> Result<Arc<ArrayDevice>, ArrayError> {
    static SESSIONS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let session = SESSIONS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    assemble_as(&devices(disks), options, Uuid::from_u64_pair(7, session)).await
}

/// Options for virtual time.
pub fn options() -> Options {
    Options { member_timeout: Duration::from_secs(5), ..Options::default() }
}

/// Options for an operator who knows that the missing members are lost or hold no newer data.
pub fn degraded() -> Options {
    Options { degraded: true, ..options() }
}
