//! Members whose space is full: writes fail with `NoSpace`, the members stay in use, and reads go on; writes
//! succeed again once the members have space.

mod common;

use common::{Model, options, simulate, uuid};
use fastrand::Rng;
use futures_util::future::join_all;
use longhaul_array::{ArrayDevice, Condition, Health, Layout, Shape, assemble_as, create_as};
use longhaul_block::testing::FaultDisk;
use longhaul_block::{BlockDevice, BlockIo, IoError};
use longhaul_engine::{Engine, sleep, timeout};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const SIZE: u64 = 4 << 20;
const UNIT: u64 = 16 << 10;
const LAYOUTS: [(Layout, usize); 6] = [
    (Layout::Stripe, 3),
    (Layout::Mirror, 2),
    (Layout::StripeMirror, 4),
    (Layout::Parity, 3),
    (Layout::Parity, 5),
    (Layout::DoubleParity, 5),
];
const SEEDS: u64 = 12;
/// Writers at the same time, and writes of each.
const WRITERS: u64 = 4;
const WRITES: u64 = 24;
/// Blocks of a write, at most: more than two stripes.
const MOST: u64 = 34;
/// Within which everything ends.
const LIMIT: Duration = Duration::from_secs(900);
/// What is acknowledged is in place by then, if there is space.
const SETTLED: Duration = Duration::from_secs(10);

fn thin_disks(count: usize) -> Vec<FaultDisk> {
    (0..count).map(|n| FaultDisk::with(SIZE, |info| info.name = format!("disk{n}"))).collect()
}

fn devices(disks: &[FaultDisk]) -> Vec<Arc<dyn BlockDevice>> {
    disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn BlockDevice>).collect()
}

async fn make(disks: &[FaultDisk], layout: Layout) {
    let shape = Shape { name: "test".into(), layout, unit: UNIT, force: false };
    let mut random = Rng::with_seed(99);
    create_as(&devices(disks), &[], &shape, || uuid(&mut random)).await.expect("made");
}

async fn start(disks: &[FaultDisk], session: u64) -> (Arc<ArrayDevice>, Rc<dyn BlockIo>) {
    let array = assemble_as(&devices(disks), options(), Uuid::from_u64_pair(7, session)).await;
    let array = array.expect("assembled");
    let io = array.open().await.expect("opened");
    (array, io)
}

/// Writes at random; returns how many were refused.
async fn write(io: &dyn BlockIo, model: &Model, seed: u64, writes: u64) -> u64 {
    let mut random = Rng::with_seed(seed);
    let mut refused = 0;
    for _ in 0..writes {
        let first = random.u64(..model.blocks());
        let count = random.u64(1..=MOST).min(model.blocks() - first);
        match timeout(LIMIT, model.write(io, first, count)).await.expect("it ends") {
            Ok(_) => {}
            Err(IoError::NoSpace) => {
                refused += 1;
                model.failed(first, count);
            }
            Err(e) => panic!("seed {seed}: {e}"),
        }
        if random.u8(..4) == 0 {
            io.flush().await.expect("flushed");
        }
    }
    refused
}

async fn write_all(io: &dyn BlockIo, model: &Model, seed: u64) -> u64 {
    let writers = (0..WRITERS).map(|n| write(io, model, seed * WRITERS + n, WRITES));
    join_all(writers.collect::<Vec<_>>()).await.into_iter().sum()
}

async fn all_are_in_use(array: &ArrayDevice, what: &str) {
    let status = array.status().await.expect("status");
    assert_eq!(status.health, Health::Healthy, "{what}: {status:?}");
    let active = |member: &longhaul_array::MemberStatus| member.condition == Condition::Active;
    assert!(status.members.iter().all(active), "{what}: {status:?}");
}

fn fill(disks: &[FaultDisk], seed: u64, full: bool) {
    // One of them, or all.
    let one = (seed as usize / 2) % disks.len();
    let which = if seed.is_multiple_of(2) { &disks[one..=one] } else { disks };
    which.iter().for_each(|disk| disk.fill(full));
}

#[test]
fn a_writer_is_told_that_a_member_is_full_and_the_members_stay_in_use() {
    for (layout, width) in LAYOUTS {
        for seed in 0..SEEDS {
            let what = format!("{layout} of {width}, seed {seed}");
            simulate(seed, async {
                let disks = thin_disks(width);
                make(&disks, layout).await;
                let (array, io) = start(&disks, 1).await;
                let model = Model::new(array.info().size);
                write(&*io, &model, seed, 3).await;
                fill(&disks, seed, true);
                let refused = write_all(&*io, &model, seed).await;
                assert!(refused > 0, "{what}: there was space for everything");
                timeout(LIMIT, model.check(&*io)).await.expect("it ends").expect("read");
                io.flush().await.expect("flushed");
                all_are_in_use(&array, &what).await;
                fill(&disks, seed, false);
                sleep(SETTLED).await;
                model.check(&*io).await.expect("read");
                if layout != Layout::Stripe {
                    let report = array.scrub().await.expect("scrubbed");
                    assert!(report.finished && report.lost == 0, "{what}: {report:?}");
                    let wrong = report.wrong.iter().sum::<u64>() + report.inconsistent + report.disagreeing;
                    assert_eq!(wrong + report.unsettled, 0, "{what}: {report:?}");
                }
                assert_eq!(write_all(&*io, &model, seed + 100).await, 0, "{what}: there is space");
                model.check(&*io).await.expect("read");
                all_are_in_use(&array, &what).await;
                if layout != Layout::Stripe {
                    // What is left has the content of a member as well.
                    disks[seed as usize % width].disconnect(true);
                    model.check(&*io).await.expect("read without a member");
                }
            });
        }
    }
}

/// The host crashes while a member is full, and the next one finds space.
#[test]
fn what_was_acknowledged_before_a_crash_of_a_full_array_is_there() {
    for (layout, width) in LAYOUTS {
        for seed in 0..SEEDS {
            let disks = thin_disks(width);
            let model = Engine::simulated(seed).expect("engine").block_on(async {
                make(&disks, layout).await;
                let (array, io) = start(&disks, 1).await;
                let model = Model::new(array.info().size);
                write(&*io, &model, seed, 3).await;
                fill(&disks, seed, true);
                write_all(&*io, &model, seed).await;
                model
            });
            model.crashed();
            fill(&disks, seed, false);
            simulate(seed, async {
                let (array, io) = start(&disks, 2).await;
                model.check(&*io).await.expect("read");
                all_are_in_use(&array, &format!("{layout} of {width}, seed {seed}")).await;
                write_all(&*io, &model, seed + 100).await;
                model.check(&*io).await.expect("read");
                array.stop().await.expect("stopped");
            });
        }
    }
}

/// The journal has acknowledged a write that no member has space for.
#[test]
fn an_acknowledged_write_without_space_waits_and_others_are_refused() {
    for (layout, width) in [(Layout::Parity, 4), (Layout::DoubleParity, 5)] {
        for stops in [false, true] {
            simulate(1, async {
                let disks = thin_disks(width);
                make(&disks, layout).await;
                let (array, io) = start(&disks, 1).await;
                let model = Model::new(array.info().size);
                // Checksums of the first stripes.
                model.write(&*io, 0, 4).await.expect("written");
                sleep(SETTLED).await;
                fill(&disks, 1, true);
                model.write(&*io, 40, 1).await.expect("acknowledged by the journal");
                sleep(Duration::from_secs(2)).await;
                model.read(&*io, 40, 1).await.expect("read");
                for first in [41, 0, 100] {
                    let refused = timeout(LIMIT, model.write(&*io, first, 2)).await.expect("it ends");
                    assert_eq!(refused, Err(IoError::NoSpace), "{layout}: {first}");
                    model.failed(first, 2);
                }
                model.check(&*io).await.expect("read");
                all_are_in_use(&array, "in a shortage").await;
                if stops {
                    let stopped = timeout(LIMIT, array.stop()).await.expect("it ends");
                    assert_eq!(stopped, Err(IoError::NoSpace), "{layout}");
                    fill(&disks, 1, false);
                    let (array, io) = start(&disks, 2).await;
                    model.check(&*io).await.expect("read");
                    all_are_in_use(&array, "after the next start").await;
                } else {
                    fill(&disks, 1, false);
                    sleep(SETTLED).await;
                    model.write(&*io, 100, 20).await.expect("there is space");
                    model.check(&*io).await.expect("read");
                    array.stop().await.expect("stopped");
                }
            });
        }
    }
}

/// A member returns that has no space for what was written without it.
#[test]
fn a_member_without_space_is_rebuilt_once_it_has_some() {
    for (layout, width) in
        [(Layout::Mirror, 2), (Layout::StripeMirror, 4), (Layout::Parity, 4), (Layout::DoubleParity, 5)]
    {
        simulate(1, async {
            let disks = thin_disks(width);
            make(&disks, layout).await;
            let (array, io) = start(&disks, 1).await;
            let model = Model::new(array.info().size);
            model.write(&*io, 0, 4).await.expect("written");
            io.flush().await.expect("flushed");
            disks[1].fill(true);
            disks[1].disconnect(true);
            for first in (20..200).step_by(20) {
                model.write(&*io, first, 12).await.expect("the others have space");
            }
            let condition = async || array.status().await.expect("status").members[1].condition;
            assert_eq!(condition().await, Condition::Offline, "{layout}");
            disks[1].disconnect(false);
            sleep(SETTLED).await;
            assert!(
                matches!(condition().await, Condition::Rebuilding { .. }),
                "{layout}: {:?}",
                condition().await
            );
            timeout(LIMIT, model.check(&*io)).await.expect("it ends").expect("read");
            disks[1].fill(false);
            timeout(LIMIT, array.wait_healthy()).await.expect("it ends").expect("healthy");
            disks[0].disconnect(true);
            model.check(&*io).await.expect("read without another member");
        });
    }
}
