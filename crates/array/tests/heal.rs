//! Members that fail, return, corrupt data and are replaced.

mod common;

use common::rig::{SIZE, UNIT, rig};
use common::{Disk, Model, devices, disks, make, options, simulate, start, uuid};
use fastrand::Rng;
use longhaul_array::{BLOCK, Condition, Extent, Health, Layout, Options, Shape, create_as};
use longhaul_block::{BlockDevice, IoError};
use longhaul_engine::{BufMut, sleep};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

#[test]
fn a_member_lost_under_load_causes_no_error() {
    for (seed, layout) in [(1, Layout::Parity), (2, Layout::Mirror), (3, Layout::DoubleParity)] {
        for silent in [false, true] {
            simulate(seed, async {
                let rig = rig(layout, 4, options()).await;
                rig.write_some(seed, 20).await;
                if silent { &rig.disks[1].silent } else { &rig.disks[1].unreachable }.store(true, SeqCst);
                rig.write_some(seed + 1, 40).await;
                rig.model.check(&*rig.io).await.expect("read");
                assert_eq!(rig.condition(1).await, Condition::Offline, "{layout}");
                let status = rig.array.status().await.expect("status");
                assert_eq!(status.health, Health::Degraded);
            });
        }
    }
}

#[test]
fn a_short_absence_is_resynced_from_the_bitmap_alone() {
    for layout in [Layout::Parity, Layout::Mirror, Layout::StripeMirror] {
        simulate(7, async {
            let idle = Options { intent_idle: Duration::from_millis(100), ..options() };
            let rig = rig(layout, 4, idle).await;
            rig.fill().await;
            sleep(Duration::from_secs(5)).await;
            assert_eq!(rig.array.status().await.expect("status").marked_regions.0, 0, "all is idle");
            rig.disks[2].unreachable.store(true, SeqCst);
            for block in 0..6 {
                rig.model.write(&*rig.io, block, 1).await.expect("written");
            }
            rig.until(2, Condition::Offline).await;
            let before: u64 = rig.disks.iter().map(|disk| disk.read_bytes.load(SeqCst)).sum();
            rig.disks[2].unreachable.store(false, SeqCst);
            rig.until(2, Condition::Active).await;
            let read = rig.disks.iter().map(|disk| disk.read_bytes.load(SeqCst)).sum::<u64>() - before;
            let region = rig.array.status().await.expect("status").geometry.region;
            assert!(read < 5 * region, "{layout}: {read} bytes read for a region of {region}");
            rig.model.check(&*rig.io).await.expect("read");
            // The member is complete, so the others may fail.
            rig.disks[3].unreachable.store(true, SeqCst);
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

#[test]
fn a_spare_replaces_a_member_and_is_rebuilt_under_load() {
    for (seed, layout) in [(11, Layout::Parity), (12, Layout::DoubleParity), (13, Layout::Mirror)] {
        simulate(seed, async {
            let grace = Options { spare_grace: Duration::from_secs(30), ..options() };
            let rig = rig(layout, 4, grace).await;
            rig.fill().await;
            let spare = Arc::new(Disk::new("spare", SIZE, &rig.power));
            rig.array.add_spare(Arc::clone(&spare) as Arc<dyn BlockDevice>, false).await.expect("added");
            rig.disks[0].unreachable.store(true, SeqCst);
            rig.write_some(seed, 30).await;
            sleep(Duration::from_secs(20)).await;
            assert_eq!(rig.condition(0).await, Condition::Offline, "still within its grace");
            for round in 0..200 {
                rig.write_some(seed + round, 4).await;
                sleep(Duration::from_millis(100)).await;
            }
            rig.until(0, Condition::Active).await;
            let status = rig.array.status().await.expect("status");
            assert_eq!((status.health, status.spares.len()), (Health::Healthy, 0));
            assert_eq!(status.members[0].device.as_deref(), Some("spare"));
            // The rebuilt content is right without the help of another member.
            rig.disks[1].unreachable.store(true, SeqCst);
            rig.model.check(&*rig.io).await.expect("read");
            // The replaced device is not accepted as a member any more.
            rig.array.stop().await.expect("stopped");
            rig.disks.iter().for_each(|disk| disk.unreachable.store(false, SeqCst));
            let refused = start(&rig.disks, options()).await.expect_err("refused").to_string();
            assert!(refused.contains("disk0 (it was replaced) is no member"), "{refused}");
        });
    }
}

#[test]
fn a_rebuild_continues_where_a_crash_has_interrupted_it() {
    let (mut disks, power) = disks(4, 24 << 20);
    let spare = Arc::new(Disk::new("spare", 24 << 20, &power));
    let model = simulate(21, async {
        make(&disks, Layout::Parity, UNIT).await;
        let slow = Options { rebuild_rate: Some(1 << 20), ..options() };
        let array = start(&disks, slow).await.expect("assembled");
        let io = array.open().await.expect("opened");
        let model = Model::new(array.info().size);
        for first in (0..model.blocks()).step_by(180) {
            model.write(&*io, first, 12.min(model.blocks() - first)).await.expect("written");
        }
        array.replace(3, Arc::clone(&spare) as Arc<dyn BlockDevice>, false).await.expect("replaced");
        sleep(Duration::from_secs(12)).await;
        let status = array.status().await.expect("status");
        let Condition::Rebuilding { done, partial: false } = status.members[3].condition else {
            panic!("{:?}", status.members[3]);
        };
        assert!(done > 0 && done < status.geometry.rows, "{done}");
        let progress = status.rebuild.expect("under way");
        assert!(progress.rate() < 1.2 * f64::from(1 << 20), "{}", progress.rate());
        model
    });
    disks[3] = spare;
    simulate(22, async {
        let before: u64 = disks[3].writes.load(SeqCst);
        let array = start(&disks, options()).await.expect("assembled");
        array.wait_healthy().await.expect("healthy");
        let rows = array.status().await.expect("status").geometry.rows;
        let writes = disks[3].writes.load(SeqCst) - before;
        assert!(writes < 2 * rows * 3 / 4, "{writes} writes for {rows} stripes: it began again");
        let io = array.open().await.expect("opened");
        model.check(&*io).await.expect("read");
        disks[0].unreachable.store(true, SeqCst);
        model.check(&*io).await.expect("read");
    });
}

#[test]
fn corruption_is_found_on_read_reported_and_repaired() {
    for layout in [Layout::Parity, Layout::DoubleParity, Layout::Mirror, Layout::StripeMirror] {
        simulate(31, async {
            let rig = rig(layout, 4, options()).await;
            rig.fill().await;
            let geometry = rig.array.status().await.expect("status").geometry;
            let data_at = geometry.end() - geometry.rows * geometry.unit;
            // Find the block on the member by its content.
            let block = rig.io.read(5 * BLOCK, BufMut::zeroed(BLOCK as usize)).await.expect("read");
            let find = |m: usize| rig.disks[m].find(data_at, &block[..64]).map(|at| (m, at));
            let (member, at) = (0..4).find_map(find).expect("it is somewhere");
            rig.disks[member].flip(at + 100);
            let repaired = async || {
                let status = rig.array.status().await.expect("status");
                (status.members[member].counts.mismatches, status.members[member].counts.repaired)
            };
            let scrub = rig.array.scrub().await.expect("scrubbed");
            assert!(scrub.finished);
            assert_eq!((scrub.wrong[member], scrub.repaired, scrub.lost), (1, 1, 0), "{layout} {scrub:?}");
            assert_eq!(repaired().await, (1, 1));
            rig.model.check(&*rig.io).await.expect("read");
            let again = rig.array.scrub().await.expect("scrubbed");
            assert_eq!((again.wrong.iter().sum::<u64>(), again.inconsistent), (0, 0));
        });
    }
}

/// Flips a byte in every block of a member's data, and lets reads repair them.
#[test]
fn reads_repair_wrong_blocks() {
    for layout in [Layout::Parity, Layout::Mirror] {
        simulate(32, async {
            let rig = rig(layout, 3, options()).await;
            rig.fill().await;
            let geometry = rig.array.status().await.expect("status").geometry;
            let data_at = geometry.end() - geometry.rows * geometry.unit;
            for block in 0..geometry.rows * geometry.unit / BLOCK {
                rig.disks[1].flip(data_at + block * BLOCK + 7);
            }
            rig.model.check(&*rig.io).await.expect("read");
            let status = rig.array.status().await.expect("status");
            let counts: Vec<_> = status.members.iter().map(|member| member.counts).collect();
            assert!(counts[1].repaired > 0 && counts[0].mismatches == 0, "{layout}: {counts:?}");
            let scrub = rig.array.scrub().await.expect("scrubbed");
            assert_eq!(scrub.lost, 0);
            rig.disks[0].unreachable.store(true, SeqCst);
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

#[test]
fn unreadable_sectors_are_repaired_and_losses_reported() {
    simulate(41, async {
        let rig = rig(Layout::Parity, 3, options()).await;
        rig.fill().await;
        let geometry = rig.array.status().await.expect("status").geometry;
        let data_at = geometry.end() - geometry.rows * geometry.unit;
        // A read repairs this one.
        rig.disks[0].bad.lock().unwrap().insert((data_at + 4096) / 512);
        rig.model.check(&*rig.io).await.expect("read");
        let scrub = rig.array.scrub().await.expect("scrubbed");
        assert_eq!(scrub.lost, 0);
        assert!(rig.disks[0].bad.lock().unwrap().is_empty(), "it was written again");
        // This one is met by a rebuild and lost, together with the rebuilt member's unit.
        let row = 6;
        rig.disks[0].bad.lock().unwrap().insert((data_at + row * UNIT + 2 * BLOCK) / 512);
        let new = Arc::new(Disk::new("new", SIZE, &rig.power));
        rig.array.replace(1, new as Arc<dyn BlockDevice>, false).await.expect("replaced");
        rig.array.wait_healthy().await.expect("rebuilt");
        let status = rig.array.status().await.expect("status");
        let lost = [row * 2 * UNIT, (row * 2 + 1) * UNIT].map(|unit| unit + 2 * BLOCK);
        assert_eq!(status.lost, lost.map(|offset| Extent { offset, len: BLOCK }));
        for offset in lost {
            let read = rig.io.read(offset, BufMut::zeroed(BLOCK as usize)).await.map(drop);
            assert!(matches!(read, Err(IoError::Medium(_))), "{read:?}");
        }
        // All other blocks are readable.
        for block in (0..rig.model.blocks()).filter(|block| !lost.contains(&(block * BLOCK))) {
            rig.model.read(&*rig.io, block, 1).await.expect("read");
        }
    });
}

#[test]
fn more_losses_than_redundancy_halt_the_array_and_lose_nothing() {
    let (disks, _power) = disks(4, SIZE);
    let model = simulate(51, async {
        make(&disks, Layout::Parity, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        let model = Model::new(array.info().size);
        for first in (0..240).step_by(3) {
            model.write(&*io, first, 3).await.expect("written");
        }
        disks[0].unreachable.store(true, SeqCst);
        // A full stripe, which uses all members, so that the loss is noticed.
        model.write(&*io, 0, 12).await.expect("degraded");
        disks[1].unreachable.store(true, SeqCst);
        let mut failed = None;
        for first in 0..40 {
            failed = failed.or(model.write(&*io, first * 2, 2).await.err());
        }
        let failed = failed.expect("it cannot write").to_string();
        assert!(failed.contains("more than the redundancy"), "{failed}");
        assert_eq!(array.status().await.expect("status").health, Health::Halted);
        model
    });
    model.crashed();
    disks.iter().for_each(|disk| disk.unreachable.store(false, SeqCst));
    simulate(52, async {
        let without = [&disks[0], &disks[2], &disks[3]].map(Arc::clone);
        let refused = start(&without, options()).await.expect_err("refused").to_string();
        assert!(refused.contains("cannot begin without members 0 (was offline"), "{refused}");
        let array = start(&disks, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        model.check(&*io).await.expect("read");
        array.wait_healthy().await.expect("healthy");
        model.check(&*io).await.expect("read");
    });
}

#[test]
fn a_late_read_is_hedged() {
    for layout in [Layout::Parity, Layout::Mirror] {
        simulate(61, async {
            let rig = rig(layout, 4, Options { hedge_percent: 100, ..options() }).await;
            rig.fill().await;
            rig.model.check(&*rig.io).await.expect("read");
            rig.disks[1].slow.store(2_000_000, SeqCst);
            let began = longhaul_engine::now();
            rig.model.check(&*rig.io).await.expect("read");
            let took = longhaul_engine::now() - began;
            let status = rig.array.status().await.expect("status");
            assert!(status.counts.hedges_won > 0 || layout == Layout::Mirror, "{:?}", status.counts);
            assert!(took < Duration::from_secs(60), "{took:?}");
            assert!(status.members.iter().all(|m| m.condition == Condition::Active), "slow is not lost");
        });
    }
}

#[test]
fn discarded_ranges_stay_discarded_through_a_rebuild() {
    simulate(71, async {
        let rig = rig(Layout::Parity, 4, options()).await;
        rig.fill().await;
        rig.io.discard(0, rig.array.info().size).await.expect("discarded");
        let new = Arc::new(Disk::new("new", SIZE, &rig.power));
        rig.array.replace(2, Arc::clone(&new) as Arc<dyn BlockDevice>, false).await.expect("replaced");
        rig.array.wait_healthy().await.expect("rebuilt");
        let read = rig.io.read(0, BufMut::zeroed(1 << 20)).await.expect("read");
        assert!(read.iter().all(|byte| *byte == 0));
        assert!(new.zeroed.load(SeqCst) > 2 << 20, "{} bytes were zeroed", new.zeroed.load(SeqCst));
    });
}

#[test]
fn names_and_shapes_are_checked_before_anything_is_written() {
    simulate(81, async {
        let (disks, _power) = disks(3, SIZE);
        let shape =
            |name: &str, unit| Shape { name: name.into(), layout: Layout::Parity, unit, force: false };
        let mut random = Rng::with_seed(1);
        let refused = create_as(&devices(&disks), &[], &shape("", UNIT), || uuid(&mut random))
            .await
            .expect_err("refused");
        assert!(refused.to_string().contains("is not a valid array name"), "{refused}");
        let refused = create_as(&devices(&disks), &[], &shape("a", 5000), || uuid(&mut random))
            .await
            .expect_err("refused");
        assert!(refused.to_string().contains("not a power of two"), "{refused}");
        let twice = [devices(&disks), devices(&disks[..1])].concat();
        let refused =
            create_as(&twice, &[], &shape("a", UNIT), || uuid(&mut random)).await.expect_err("refused");
        assert!(refused.to_string().contains("are the same member"), "{refused}");
        assert!(disks.iter().all(|disk| disk.writes.load(SeqCst) == 0));
        make(&disks, Layout::Parity, UNIT).await;
        let refused = create_as(&devices(&disks), &[], &shape("a", UNIT), || uuid(&mut random))
            .await
            .expect_err("refused");
        assert!(refused.to_string().contains("is a member of array test"), "{refused}");
    });
}

#[test]
fn a_stop_waits_for_acknowledged_writes_to_be_in_place() {
    for seed in 90..110 {
        let (disks, _power) = disks(4, SIZE);
        let model = simulate(seed, async {
            make(&disks, Layout::Parity, UNIT).await;
            let array = start(&disks, options()).await.expect("assembled");
            let io = array.open().await.expect("opened");
            let model = Model::new(array.info().size);
            let mut random = Rng::with_seed(seed);
            for _ in 0..30 {
                let first = random.u64(..60);
                model.write(&*io, first, 1 + random.u64(..3)).await.expect("written");
            }
            array.stop().await.expect("stopped");
            model
        });
        simulate(seed, async {
            let without = disks[1..].to_vec();
            let array = start(&without, options()).await.expect("assembled");
            model.check(&*array.open().await.expect("opened")).await.expect("read");
        });
    }
}

#[test]
fn sequential_writes_make_whole_stripes_and_random_ones_do_not_wait() {
    simulate(95, async {
        let rig = rig(Layout::Parity, 4, options()).await;
        let full = async || rig.array.status().await.expect("status").counts.full_writes;
        let blocks = 600;
        // Each write continues the one before, a dozen at a time, in order.
        for first in (0..blocks - 35).step_by(36) {
            let writes = (first..first + 36).step_by(3).map(async |at| {
                sleep(Duration::from_micros((at - first) * 100)).await;
                rig.model.write(&*rig.io, at, 3).await
            });
            for done in futures_util::future::join_all(writes).await {
                assert!(done.expect("written"));
            }
        }
        let stripes = blocks / 12;
        assert!(full().await >= stripes * 3 / 4, "{} of {stripes} were written whole", full().await);
        rig.model.check(&*rig.io).await.expect("read");
        // With one write at a time, waiting would be in vain.
        let began = longhaul_engine::now();
        for first in 0..100 {
            rig.model.write(&*rig.io, first, 1).await.expect("written");
        }
        let each = (longhaul_engine::now() - began) / 100;
        assert!(each < Duration::from_millis(2), "{each:?}");
    });
}

#[test]
fn an_error_counts_only_against_the_device_that_it_comes_from() {
    for (seed, layout) in [(101, Layout::Parity), (102, Layout::Mirror), (103, Layout::DoubleParity)] {
        simulate(seed, async {
            let rig = rig(layout, 4, options()).await;
            rig.fill().await;
            // Operations under way on the old device fail late.
            rig.disks[1].silent.store(true, SeqCst);
            let late = rig.io.write(0, longhaul_engine::Buf::copy_of(&[0; 192 << 10]), Default::default());
            sleep(Duration::from_secs(2)).await;
            let new = Arc::new(Disk::new("new", SIZE, &rig.power));
            rig.array.replace(1, new as Arc<dyn BlockDevice>, false).await.expect("replaced");
            late.await.expect("written");
            sleep(Duration::from_secs(20)).await;
            let status = rig.array.status().await.expect("status");
            let member = &status.members[1];
            assert_eq!(
                (member.device.as_deref(), member.condition),
                (Some("new"), Condition::Active),
                "{layout}"
            );
        });
    }
}

#[test]
fn sequential_reads_of_a_degraded_array_read_nothing_twice() {
    simulate(41, async {
        let rig = rig(Layout::Parity, 4, options()).await;
        let blocks = rig.model.blocks();
        for first in (0..blocks).step_by(12) {
            rig.model.write(&*rig.io, first, 12.min(blocks - first)).await.expect("written");
        }
        rig.disks[1].unreachable.store(true, SeqCst);
        rig.model.check(&*rig.io).await.expect("read");
        let bytes = || rig.disks.iter().map(|disk| disk.read_bytes.load(SeqCst)).sum::<u64>();
        let before = bytes();
        for block in 0..blocks {
            rig.model.read(&*rig.io, block, 1).await.expect("read");
        }
        // Piece by piece, half as much again would be read.
        let (read, size) = (bytes() - before, blocks * BLOCK);
        assert!(read < size + size / 8, "{read} of {size}");
        // The cache is never older than the last write.
        for block in blocks - 9..blocks {
            rig.model.write(&*rig.io, block, 1).await.expect("written");
            rig.model.read(&*rig.io, block - 1, 1).await.expect("read");
            rig.model.read(&*rig.io, block, 1).await.expect("read");
        }
    });
}
