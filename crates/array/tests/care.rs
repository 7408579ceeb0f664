//! What an array does with its members on its own: log repair, cache loss, spares, periodic scrubs.

mod common;

use common::rig::{Rig, SIZE, UNIT, rig};
use common::{Disk, Model, Power, devices, disks, make, options, simulate, start, uuid};
use fastrand::Rng;
use longhaul_array::{BLOCK, Condition, Health, Layout, Options, Shape, create_as};
use longhaul_block::{Advice, BlockDevice};
use longhaul_engine::{BufMut, sleep};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Makes a member's metadata unreadable: superblock (except for one copy), heartbeat, bitmap,
/// journal, checksums.
fn damage(disk: &Disk, data_at: u64) {
    let mut bad = disk.bad.lock().unwrap();
    let journal_and_sums = 256 << 10..data_at - UNIT + BLOCK;
    for range in [64 << 10..68 << 10, 128 << 10..132 << 10, 192 << 10..196 << 10, journal_and_sums] {
        bad.extend(range.step_by(512).map(|at| at / 512));
    }
}

#[test]
fn a_member_with_damaged_logs_stays_active() {
    for (seed, layout) in [(111, Layout::Parity), (112, Layout::Mirror), (113, Layout::DoubleParity)] {
        let (disks, _power) = disks(4, SIZE);
        let (model, data_at) = simulate(seed, async {
            make(&disks, layout, UNIT).await;
            let array = start(&disks, options()).await.expect("assembled");
            let io = array.open().await.expect("opened");
            let model = Model::new(array.info().size);
            let mut random = Rng::with_seed(seed);
            for _ in 0..40 {
                let first = random.u64(..model.blocks() - 14);
                model.write(&*io, first, 1 + random.u64(..14)).await.expect("written");
            }
            let geometry = array.status().await.expect("status").geometry;
            (model, geometry.end() - geometry.rows * geometry.unit)
        });
        // The array is not stopped, so that the next assembly needs the logs, and one member's are
        // unreadable.
        damage(&disks[1], data_at);
        simulate(seed, async {
            let array = start(&disks, options()).await.expect("assembled");
            let io = array.open().await.expect("opened");
            let active = async || {
                let status = array.status().await.expect("status");
                assert!(
                    status.members.iter().all(|m| m.condition == Condition::Active),
                    "{layout} {status:?}"
                );
            };
            active().await;
            let marked = array.status().await.expect("status").marked_regions;
            assert!(marked.0 <= marked.1, "{marked:?}");
            model.check(&*io).await.expect("read");
            let scrub = array.scrub().await.expect("scrubbed");
            assert!(scrub.finished && scrub.lost == 0, "{scrub:?}");
            assert_eq!(disks[1].bad.lock().unwrap().len(), 0, "{layout}: all is written again");
            active().await;
            disks[0].unreachable.store(true, SeqCst);
            model.check(&*io).await.expect("read");
        });
    }
}

#[test]
fn scrub_repairs_metadata_of_members() {
    for layout in [Layout::Parity, Layout::Mirror] {
        simulate(121, async {
            let rig = rig(layout, 4, options()).await;
            rig.fill().await;
            let geometry = rig.array.status().await.expect("status").geometry;
            let data_at = geometry.end() - geometry.rows * geometry.unit;
            // Damage superblocks, bitmap and checksums without the array's knowledge.
            let sums_at = data_at - geometry.unit;
            for at in [0, 64 << 10, 192 << 10, sums_at] {
                rig.disks[2].flip(at + 40);
            }
            damage(&rig.disks[3], data_at);
            let scrub = rig.array.scrub().await.expect("scrubbed");
            assert!(scrub.own >= 4 && scrub.lost == 0 && scrub.finished, "{layout} {scrub:?}");
            sleep(Duration::from_secs(5)).await;
            assert_eq!(rig.disks[3].bad.lock().unwrap().len(), 0, "{layout}");
            let again = rig.array.scrub().await.expect("scrubbed");
            assert_eq!(
                (again.own, again.wrong.iter().sum::<u64>(), again.lost),
                (0, 0, 0),
                "{layout} {again:?}"
            );
            let status = rig.array.status().await.expect("status");
            assert_eq!(status.health, Health::Healthy, "{status:?}");
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

#[test]
fn a_device_of_another_array_loses_its_old_superblocks() {
    let (disks, power) = disks(3, SIZE);
    let (other, _power) = common::disks(2, SIZE);
    let mut random = Rng::with_seed(7);
    simulate(131, async {
        make(&disks, Layout::Parity, UNIT).await;
        let shape = Shape { name: "old".into(), layout: Layout::Mirror, unit: UNIT, force: false };
        create_as(&devices(&other), &[], &shape, || uuid(&mut random)).await.expect("made");
        // The superblocks of the other array get a newer generation than this array's.
        for _ in 0..20 {
            start(&other, options()).await.expect("assembled").stop().await.expect("stopped");
        }
        let array = start(&disks, options()).await.expect("assembled");
        let device = Arc::clone(&other[0]) as Arc<dyn BlockDevice>;
        assert!(array.replace(2, Arc::clone(&device), false).await.is_err(), "not without force");
        array.replace(2, device, true).await.expect("replaced");
    });
    power.restore();
    simulate(132, async {
        let members = [Arc::clone(&disks[0]), Arc::clone(&disks[1]), Arc::clone(&other[0])];
        start(&members, options()).await.expect("assembled").wait_healthy().await.expect("healthy");
    });
}

/// An array of disks with volatile caches.
async fn cached(layout: Layout, options: Options) -> Rig {
    let power = Arc::new(Power::default());
    let disk = |n: usize| Arc::new(Disk::with_cache(&format!("disk{n}"), SIZE, &power, true));
    let disks: Vec<_> = (0..4).map(disk).collect();
    make(&disks, layout, UNIT).await;
    let array = start(&disks, options).await.expect("assembled");
    let io = array.open().await.expect("opened");
    let model = Model::new(array.info().size);
    Rig { disks, power, array, io, model }
}

#[test]
fn writes_lost_with_a_cache_are_repaired_before_a_flush_ends() {
    let layouts = [Layout::Parity, Layout::Mirror, Layout::DoubleParity, Layout::StripeMirror];
    for (seed, layout) in (140..148).zip(layouts.into_iter().cycle()) {
        simulate(seed, async {
            // Even without memory for checksums.
            let small = Options { sums_memory: 0, ..options() };
            let rig = cached(layout, small).await;
            rig.write_some(seed, 30).await;
            rig.io.flush().await.expect("flushed");
            rig.write_some(seed + 1, 30).await;
            rig.disks[1].lose_cache();
            rig.write_some(seed + 2, (seed - 140) / 4 * 5).await;
            rig.io.flush().await.expect("flushed");
            rig.until(1, Condition::Active).await;
            // The member is complete, so another one may fail.
            rig.disks[0].unreachable.store(true, SeqCst);
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

/// Nothing is flushed: a caller that waits for a healthy array relies on its redundancy.
#[test]
fn an_array_is_healthy_only_when_no_member_may_have_lost_writes() {
    for (seed, layout) in (152..).zip([Layout::Parity, Layout::Mirror, Layout::DoubleParity]) {
        simulate(seed, async {
            let rig = cached(layout, options()).await;
            rig.write_some(seed, 30).await;
            rig.disks[1].lose_cache();
            rig.array.wait_healthy().await.expect("healthy");
            // The member is complete, so another one may fail.
            rig.disks[0].unreachable.store(true, SeqCst);
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

#[test]
fn a_reconnection_without_loss_takes_no_member_offline() {
    for layout in [Layout::Parity, Layout::Mirror] {
        simulate(151, async {
            let rig = cached(layout, options()).await;
            rig.write_some(1, 20).await;
            let load = async {
                for seed in 0..40 {
                    rig.write_some(seed, 2).await;
                    if seed % 8 == 0 {
                        for disk in &rig.disks {
                            disk.generation.fetch_add(1, SeqCst);
                        }
                    }
                }
            };
            let flushes = async {
                for _ in 0..10 {
                    rig.io.flush().await.expect("flushed");
                    sleep(Duration::from_millis(7)).await;
                }
            };
            futures_util::future::join(load, flushes).await;
            rig.io.flush().await.expect("flushed");
            let status = rig.array.status().await.expect("status");
            assert!(status.members.iter().all(|m| m.condition == Condition::Active), "{status:?}");
            // No member was lost in between: the only publications are those of the start.
            assert!(status.generation < 4, "{}", status.generation);
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

#[test]
fn a_rebuild_continues_after_the_member_was_offline() {
    for (seed, layout) in [(161, Layout::Parity), (162, Layout::Mirror), (163, Layout::DoubleParity)] {
        simulate(seed, async {
            let (disks, power) = disks(4, 24 << 20);
            make(&disks, layout, UNIT).await;
            let slow = Options { rebuild_rate: Some(1 << 20), ..options() };
            let array = start(&disks, slow).await.expect("assembled");
            let io = array.open().await.expect("opened");
            let rig = Rig { model: Model::new(array.info().size), disks, power, array, io };
            for first in (0..rig.model.blocks() - 12).step_by(90) {
                rig.model.write(&*rig.io, first, 12).await.expect("written");
            }
            let new = Arc::new(Disk::new("new", 24 << 20, &rig.power));
            rig.array.replace(1, Arc::clone(&new) as Arc<dyn BlockDevice>, false).await.expect("replaced");
            sleep(Duration::from_secs(12)).await;
            new.unreachable.store(true, SeqCst);
            for block in 0..40 {
                rig.model.write(&*rig.io, block, 3).await.expect("written");
            }
            rig.until(1, Condition::Offline).await;
            let before = new.writes.load(SeqCst);
            new.unreachable.store(false, SeqCst);
            rig.array.set_rebuild_rate(None).await.expect("set");
            for block in 0..40 {
                rig.model.write(&*rig.io, block, 2).await.expect("written");
            }
            rig.until(1, Condition::Active).await;
            let (writes, status) =
                (new.writes.load(SeqCst) - before, rig.array.status().await.expect("status"));
            let all = 2 * status.geometry.rows;
            assert!(writes < all * 3 / 4, "{writes} of {all}: it began again");
            rig.disks[2].unreachable.store(true, SeqCst);
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

#[test]
fn reads_in_flight_are_bounded_by_what_the_paths_hold() {
    for (layout, width) in
        [(Layout::Parity, 3), (Layout::Parity, 6), (Layout::Stripe, 4), (Layout::Mirror, 2)]
    {
        simulate(171, async {
            let rig = rig(layout, width, options()).await;
            rig.fill().await;
            let window = 1u64 << 20;
            let advice =
                longhaul_block::Advice { read: window / width as u64, ..longhaul_block::Advice::LOCAL };
            rig.disks.iter().for_each(|disk| *disk.advice.lock().unwrap() = Some(advice));
            // Checksums are in memory from here on.
            rig.model.check(&*rig.io).await.expect("read");
            let most = &rig.power.reading_most;
            for size in [16 << 10, 64 << 10, 1 << 20] {
                most.store(0, SeqCst);
                let count = rig.array.info().size / size;
                let reads = (0..count).map(|n| rig.io.read(n * size, BufMut::zeroed(size as usize)));
                for read in futures_util::future::join_all(reads).await {
                    read.expect("read");
                }
                let most = most.load(SeqCst);
                assert!(most <= window * 5 / 4 + 8 * BLOCK, "{layout} {width}: {most} bytes of {size}");
                assert!(most >= window * 3 / 4, "{layout} {width}: {most} bytes of {size}");
            }
            if layout == Layout::Stripe {
                return;
            }
            most.store(0, SeqCst);
            let new = Arc::new(Disk::new("new", SIZE, &rig.power));
            *new.advice.lock().unwrap() = Some(advice);
            rig.array.replace(1, new as Arc<dyn BlockDevice>, false).await.expect("replaced");
            rig.array.wait_healthy().await.expect("rebuilt");
            rig.array.scrub().await.expect("scrubbed");
            let most = most.load(SeqCst);
            assert!(most <= window * 5 / 4 + (1 << 20), "{layout} {width}: {most} bytes in the background");
        });
    }
}

#[test]
fn scrubs_run_at_their_interval_and_rate() {
    simulate(181, async {
        let every = Duration::from_secs(3600);
        let calm = Options { scrub_every: Some(every), scrub_rate: Some(1 << 20), ..options() };
        let rig = rig(Layout::Parity, 4, calm).await;
        rig.fill().await;
        let geometry = rig.array.status().await.expect("status").geometry;
        let data_at = geometry.end() - geometry.rows * geometry.unit;
        rig.disks[2].flip(data_at + 5 * BLOCK);
        sleep(every - Duration::from_secs(60)).await;
        assert!(rig.array.status().await.expect("status").scrub.is_none(), "not yet");
        sleep(Duration::from_secs(120)).await;
        let scrub = rig.array.status().await.expect("status").scrub.expect("scrubbed");
        assert_eq!((scrub.finished, scrub.wrong[2], scrub.repaired), (true, 1, 1), "{scrub:?}");
        let rate = (geometry.rows * geometry.unit) as f64 / scrub.elapsed.as_secs_f64();
        assert!(rate < 1.3 * f64::from(1 << 20), "{rate} bytes per second");
    });
}

#[test]
fn members_unreachable_at_the_start_are_attached_later() {
    simulate(191, async {
        let (disks, power) = disks(4, SIZE);
        make(&disks, Layout::Parity, UNIT).await;
        let spare = Arc::new(Disk::new("spare", SIZE, &power));
        let array = start(&disks, options()).await.expect("assembled");
        array.add_spare(Arc::clone(&spare) as Arc<dyn BlockDevice>, false).await.expect("added");
        array.stop().await.expect("stopped");
        let patient = Options { spare_grace: Duration::from_secs(3600), ..options() };
        let array = start(&disks[..3], patient).await.expect("degraded");
        let io = array.open().await.expect("opened");
        let model = Model::new(array.info().size);
        model.write(&*io, 0, 100).await.expect("written");
        let status = array.status().await.expect("status");
        assert!(status.detail.ends_with("no spare is left"), "{}", status.detail);
        let offer = async |disk: &Arc<Disk>| array.offer(Arc::clone(disk) as Arc<dyn BlockDevice>).await;
        let other = Arc::new(Disk::new("other", SIZE, &power));
        let refused = offer(&other).await.expect_err("refused").to_string();
        assert!(refused.contains("other is no member"), "{refused}");
        assert_eq!(offer(&disks[0]).await, Ok(false), "it is there");
        assert_eq!(offer(&disks[3]).await, Ok(true));
        // The superblocks still list it as a spare.
        assert_eq!(offer(&spare).await, Ok(true));
        array.wait_healthy().await.expect("healthy");
        assert_eq!(array.status().await.expect("status").spares, ["spare"]);
        disks[0].unreachable.store(true, SeqCst);
        model.check(&*io).await.expect("read");
    });
}

#[test]
fn an_unusable_spare_is_kept_and_the_next_one_used() {
    simulate(195, async {
        let now = Options { spare_grace: Duration::ZERO, ..options() };
        let rig = rig(Layout::Mirror, 2, now).await;
        rig.fill().await;
        let spares = ["a", "b"].map(|name| Arc::new(Disk::new(name, SIZE, &rig.power)));
        for spare in &spares {
            rig.array.add_spare(Arc::clone(spare) as Arc<dyn BlockDevice>, false).await.expect("added");
        }
        spares[1].unreachable.store(true, SeqCst);
        rig.disks[0].worn.store(true, SeqCst);
        rig.write_some(1, 5).await;
        rig.until(0, Condition::Active).await;
        let status = rig.array.status().await.expect("status");
        assert_eq!(
            (status.members[0].device.as_deref(), &status.spares[..]),
            (Some("a"), &["b".to_owned()][..])
        );
        // The other spare replaces the member when that fails and the spare is usable.
        spares[0].worn.store(true, SeqCst);
        rig.write_some(2, 5).await;
        sleep(Duration::from_secs(10)).await;
        assert_eq!(rig.condition(0).await, Condition::Failed);
        spares[1].unreachable.store(false, SeqCst);
        rig.until(0, Condition::Active).await;
        rig.disks[1].unreachable.store(true, SeqCst);
        rig.model.check(&*rig.io).await.expect("read");
    });
}

#[test]
fn paths_to_remote_devices_are_measured() {
    simulate(161, async {
        let (disks, power) = disks(3, SIZE);
        let measured = async || longhaul_array::measure(&devices(&disks)).await.expect("read");
        assert_eq!(measured().await, None, "on this host");
        for (n, disk) in disks.iter().enumerate() {
            let read = (n as u64 + 1) << 20;
            *disk.advice.lock().unwrap() = Some(Advice { read, io_size: 64 << 10, ..Advice::LOCAL });
        }
        assert_eq!(measured().await, None, "next door");
        disks.iter().for_each(|disk| disk.slow.store(20_000, SeqCst));
        let began = longhaul_engine::now();
        assert_eq!(measured().await, Some(1 << 20), "what the one holds that holds least");
        assert!(longhaul_engine::now() - began < Duration::from_secs(1));
        assert_eq!(power.reading_most.load(SeqCst), 6 << 20, "all of them are filled");
        assert!(disks.iter().all(|disk| disk.writes.load(SeqCst) == 0));
    });
}
