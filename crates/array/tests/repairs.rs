//! Repairs are durable before anything depends on them: what was wrong at rest on a member, and was repaired
//! from the others, is right when the others leave and all power fails after that.

mod common;

use common::{options, simulate, uuid};
use fastrand::Rng;
use futures_util::future::join_all;
use longhaul_array::{
    ArrayDevice, BLOCK, Condition, Geometry, Layout, Options, Shape, assemble_as, create_as,
};
use longhaul_block::filter::OpKind;
use longhaul_block::testing::{Fault, FaultDisk, FaultRule};
use longhaul_block::{BlockDevice, BlockIo, WriteFlags};
use longhaul_engine::{Buf, BufMut, Engine, sleep};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const SIZE: u64 = 4 << 20;
const UNIT: u64 = 16 << 10;
/// Blocks that are written, which are those of two stripes at least.
const BLOCKS: u64 = 32;
/// The member with what is wrong.
const HURT: usize = 0;
const LAYOUTS: [(Layout, usize); 5] = [
    (Layout::Mirror, 2),
    (Layout::Mirror, 3),
    (Layout::StripeMirror, 4),
    (Layout::Parity, 3),
    (Layout::DoubleParity, 5),
];

/// When all power fails, after the repair.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    /// While as many members are offline as the array can do without.
    Away,
    /// When they have returned, and are in resync.
    Resync,
}

fn devices(disks: &[FaultDisk]) -> Vec<Arc<dyn BlockDevice>> {
    disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn BlockDevice>).collect()
}

async fn make(layout: Layout, width: usize) -> Vec<FaultDisk> {
    let disk = |n| FaultDisk::with(SIZE, |info| info.name = format!("disk{n}"));
    let disks: Vec<FaultDisk> = (0..width).map(disk).collect();
    let shape = Shape { name: "test".into(), layout, unit: UNIT, force: false };
    let mut random = Rng::with_seed(99);
    create_as(&devices(&disks), &[], &shape, || uuid(&mut random)).await.expect("made");
    disks
}

async fn start(disks: &[FaultDisk], session: u64, options: Options) -> (Arc<ArrayDevice>, Rc<dyn BlockIo>) {
    let array = assemble_as(&devices(disks), options, Uuid::from_u64_pair(7, session)).await;
    let array = array.expect("assembled");
    let io = array.open().await.expect("opened");
    (array, io)
}

fn content(block: u64, version: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (block as u8).wrapping_mul(7) ^ version.wrapping_mul(51) ^ at as u8).collect()
}

async fn write(io: &dyn BlockIo, block: u64, version: u8) {
    let bytes = Buf::copy_of(&content(block, version));
    io.write(block * BLOCK, bytes, WriteFlags::default()).await.expect("written");
}

/// Reads and compares all that was written.
async fn check(io: &dyn BlockIo, what: &str) {
    for block in 0..BLOCKS {
        let read = io.read(block * BLOCK, BufMut::zeroed(BLOCK as usize)).await;
        let read = read.unwrap_or_else(|e| panic!("{what}: block {block}: {e}"));
        assert!(read[..] == content(block, 1)[..], "{what}: block {block} has another content");
    }
}

async fn geometry(array: &ArrayDevice) -> Geometry {
    array.status().await.expect("status").geometry
}

/// Where data begins on a member.
fn data_at(geometry: &Geometry) -> u64 {
    geometry.end() - geometry.rows * geometry.unit
}

/// Where checksums begin on a member.
fn sums_at(geometry: &Geometry) -> u64 {
    (256 << 10) + geometry.journal
}

/// An array with content that is durable everywhere, and no region that is marked.
async fn filled(disks: &[FaultDisk]) -> (Arc<ArrayDevice>, Rc<dyn BlockIo>) {
    let (array, io) = start(disks, 1, options()).await;
    for block in 0..BLOCKS {
        write(&*io, block, 1).await;
    }
    io.flush().await.expect("flushed");
    while array.status().await.expect("status").marked_regions.0 > 0 {
        sleep(Duration::from_millis(200)).await;
    }
    (array, io)
}

/// Changes a byte of a member at rest.
async fn damage(disk: &FaultDisk, at: u64) {
    let io = disk.open().await.expect("opened");
    let sector = at / 512 * 512;
    let mut bytes = disk.content(sector..sector + 512);
    bytes[(at - sector) as usize] ^= 0x40;
    io.write(sector, Buf::copy_of(&bytes), WriteFlags { fua: true }).await.expect("written");
}

/// As many members leave as the array can do without, all but the hurt one first.
async fn others_leave(disks: &[FaultDisk], array: &ArrayDevice, io: &dyn BlockIo, moment: Moment) {
    // So slow that the power fails before a resync ends.
    array.set_rebuild_rate(Some(1)).await.expect("set");
    let geometry = geometry(array).await;
    // Of stripes of mirrors one of each pair; the hurt one is in the first pair.
    let away: Vec<usize> = match geometry.layout {
        Layout::StripeMirror => (0..geometry.width / 2).map(|pair| 2 * pair + 1).collect(),
        _ => (1..=geometry.redundancy()).collect(),
    };
    away.iter().for_each(|member| disks[*member].disconnect(true));
    // The loss is noticed, and the regions that they miss are marked. What is written is what was there.
    join_all((0..BLOCKS).filter(|block| block % 5 == 3).map(|block| write(io, block, 1))).await;
    let is = async |member: usize| array.status().await.expect("status").members[member].condition;
    for member in &away {
        while is(*member).await != Condition::Offline {
            sleep(Duration::from_millis(20)).await;
        }
    }
    if moment == Moment::Resync {
        away.iter().for_each(|member| disks[*member].disconnect(false));
        for member in &away {
            while !matches!(is(*member).await, Condition::Rebuilding { .. }) {
                sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

/// All power fails, and the array starts again with all of its members.
fn power_fails(disks: &[FaultDisk], what: &str) {
    for disk in disks {
        disk.disconnect(false);
        disk.forget();
    }
    simulate(2, async {
        let (array, io) = start(disks, 2, options()).await;
        check(&*io, what).await;
        array.wait_healthy().await.expect("healthy");
        check(&*io, what).await;
        let scrub = array.scrub().await.expect("scrubbed");
        assert!(scrub.finished && scrub.lost + scrub.disagreeing == 0, "{what}: {scrub:?}");
        check(&*io, what).await;
    });
}

/// Lets `repaired` damage a member at rest and have that repaired, and fails all power after that.
fn survives(what: &str, repaired: impl AsyncFn(&FaultDisk, &ArrayDevice, &dyn BlockIo)) {
    for (layout, width) in LAYOUTS {
        for moment in [Moment::Away, Moment::Resync] {
            let what = format!("{what}, {layout} of {width}, power fails {moment:?}");
            let disks = Engine::simulated(1).expect("engine").block_on(async {
                let disks = make(layout, width).await;
                let (array, io) = filled(&disks).await;
                repaired(&disks[HURT], &array, &*io).await;
                others_leave(&disks, &array, &*io, moment).await;
                disks
            });
            power_fails(&disks, &what);
        }
    }
}

/// A byte of each block of the first stripes of a member.
async fn places(array: &ArrayDevice) -> Vec<u64> {
    let data_at = data_at(&geometry(array).await);
    (0..2 * UNIT / BLOCK).map(|block| data_at + block * BLOCK + 9).collect()
}

#[test]
fn what_a_scrub_repairs() {
    survives("a scrub", async |disk, array, _| {
        for at in places(array).await {
            damage(disk, at).await;
        }
        let scrub = array.scrub().await.expect("scrubbed");
        assert!(scrub.finished && scrub.repaired > 0 && scrub.lost == 0, "{scrub:?}");
    });
}

#[test]
fn what_reads_repair() {
    survives("reads", async |disk, array, io| {
        let places = places(array).await;
        for at in &places {
            damage(disk, *at).await;
        }
        let byte = |at: u64| disk.content(at..at + 1)[0];
        let wrong: Vec<(u64, u8)> = places.iter().map(|at| (*at, byte(*at))).collect();
        check(io, "before").await;
        let left: Vec<u64> = wrong.iter().filter(|(at, was)| byte(*at) == *was).map(|(at, _)| *at).collect();
        assert!(left.len() < places.len(), "nothing is repaired");
        // What no read has met, such as parity and other copies, is right again by itself.
        for at in left {
            damage(disk, at).await;
        }
    });
}

/// A member has lost writes that it had acknowledged, and the others outvote it.
#[test]
fn what_is_outvoted() {
    for (layout, width) in [(Layout::Mirror, 3), (Layout::DoubleParity, 5)] {
        for moment in [Moment::Away, Moment::Resync] {
            let what = format!("outvoted, {layout} of {width}, power fails {moment:?}");
            let disks = Engine::simulated(1).expect("engine").block_on(async {
                let disks = make(layout, width).await;
                let (array, io) = start(&disks, 3, options()).await;
                for block in 0..BLOCKS {
                    write(&*io, block, 0).await;
                }
                io.flush().await.expect("flushed");
                array.stop().await.expect("stopped");
                let (array, io) = start(&disks, 4, options()).await;
                let geometry = geometry(&array).await;
                // Data and checksums; what the array records of itself is written.
                let lost = FaultRule::new(OpKind::Write, Fault::Lose);
                let sums = sums_at(&geometry)..geometry.end();
                disks[HURT].inject(lost.within(sums));
                for block in 0..BLOCKS {
                    write(&*io, block, 1).await;
                }
                io.flush().await.expect("flushed");
                array.stop().await.expect("stopped");
                disks[HURT].heal();
                let (array, io) = start(&disks, 5, options()).await;
                let scrub = array.scrub().await.expect("scrubbed");
                assert!(scrub.finished && scrub.inconsistent > 0 && scrub.disagreeing == 0, "{scrub:?}");
                others_leave(&disks, &array, &*io, moment).await;
                disks
            });
            power_fails(&disks, &what);
        }
    }
}
