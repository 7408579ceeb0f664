//! Arrays that grow while they are used: what was there stays, what is added reads as zeroes, and a
//! power cut at any write leaves the old size or the new one.

mod common;

use common::rig::{Rig, SIZE, UNIT, rig};
use common::{Disk, LAYOUTS, Model, disks, make, options, simulate, start};
use futures_util::future::{join, select};
use longhaul_array::{Condition, Health, Layout};
use longhaul_block::{BlockDevice, IoError};
use longhaul_engine::{BufMut, Thread};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

impl Rig {
    fn enlarge(&self, size: u64) {
        self.disks.iter().for_each(|disk| disk.grow(size));
    }

    /// Grows the members and the array; the model follows.
    async fn grow(&self, size: u64) -> (u64, u64) {
        self.enlarge(size);
        let (before, after) = self.array.grow().await.expect("grown");
        self.model.grow(after);
        (before, after)
    }

    /// Whether all is there, on a handle from before, with checksums and parity that are right.
    async fn check(&self) {
        self.model.check(&*self.io).await.expect("read");
        if self.array.status().await.expect("status").geometry.redundancy() > 0 {
            let report = self.array.scrub().await.expect("scrubbed");
            assert!(report.finished && report.repaired == 0 && report.lost == 0, "{report:?}");
        }
    }

    async fn restart(&mut self) {
        self.array.stop().await.expect("stopped");
        self.array = start(&self.disks, options()).await.expect("assembled");
        self.io = self.array.open().await.expect("opened");
        assert_eq!(self.array.info().size / longhaul_array::BLOCK, self.model.blocks());
    }
}

#[test]
fn an_array_in_use_grows_and_keeps_what_it_has() {
    for (layout, width) in LAYOUTS {
        simulate(1, async {
            let mut rig = rig(layout, width, options()).await;
            rig.fill().await;
            let old = rig.array.info().size;
            let past = rig.io.read(old, BufMut::zeroed(4096)).await.expect_err("past the end");
            assert!(matches!(past, IoError::OutOfRange { .. }), "{past}");
            rig.enlarge(5 * SIZE / 2);
            // Writes go on meanwhile.
            let ((), grown) = join(rig.write_some(3, 60), rig.array.grow()).await;
            let (before, after) = grown.expect("grown");
            rig.model.grow(after);
            assert_eq!((before, rig.array.info().size), (old, after), "{layout}");
            assert!(after > 2 * before && after < 4 * before, "{layout}: {before} to {after}");
            rig.check().await;
            rig.fill().await;
            rig.check().await;
            rig.restart().await;
            rig.check().await;
            // Into the room that the second section has, and behind it.
            for size in [3 * SIZE, 9 * SIZE] {
                let (before, after) = rig.grow(size).await;
                assert!(after > before, "{layout}");
                rig.check().await;
                rig.write_some(size, 60).await;
                rig.restart().await;
                rig.check().await;
            }
            assert_eq!(rig.grow(9 * SIZE).await.0, rig.array.info().size, "{layout}: nothing is added");
        });
    }
}

#[test]
fn members_of_an_array_that_has_grown_are_replaced_and_return() {
    simulate(2, async {
        let mut rig = rig(Layout::Parity, 4, options()).await;
        rig.grow(3 * SIZE).await;
        rig.fill().await;
        let new = Arc::new(Disk::new("new", 3 * SIZE, &rig.power));
        rig.array.replace(1, Arc::clone(&new) as Arc<dyn BlockDevice>, false).await.expect("replaced");
        rig.array.wait_healthy().await.expect("rebuilt");
        rig.disks[1] = new;
        rig.check().await;
        // The new member has no old checksums where the array grows next.
        rig.grow(4 * SIZE).await;
        rig.check().await;
        rig.disks[2].unreachable.store(true, SeqCst);
        rig.until(2, Condition::Offline).await;
        rig.fill().await;
        let small = Arc::new(Disk::new("small", 3 * SIZE, &rig.power));
        let refused =
            rig.array.replace(2, small as Arc<dyn BlockDevice>, false).await.expect_err("too small");
        assert!(refused.to_string().contains("needs"), "{refused}");
        rig.disks[2].unreachable.store(false, SeqCst);
        rig.array.wait_healthy().await.expect("resynced");
        rig.check().await;
        rig.restart().await;
        rig.check().await;
    });
}

#[test]
fn an_array_does_not_grow_without_all_that_must() {
    simulate(3, async {
        let rig = rig(Layout::Parity, 4, options()).await;
        rig.fill().await;
        let spare = Arc::new(Disk::new("spare", SIZE, &rig.power));
        rig.array.add_spare(Arc::clone(&spare) as Arc<dyn BlockDevice>, false).await.expect("added");
        // One member is as it was.
        rig.disks[1..].iter().for_each(|disk| disk.grow(2 * SIZE));
        let size = rig.array.info().size;
        assert_eq!(rig.array.grow().await.expect("no change"), (size, size));
        rig.disks[0].grow(2 * SIZE);
        let refused = rig.array.grow().await.expect_err("its spare").to_string();
        assert!(refused.contains("spare has") && refused.contains("larger"), "{refused}");
        spare.grow(2 * SIZE);
        rig.disks[2].unreachable.store(true, SeqCst);
        rig.until(2, Condition::Offline).await;
        let refused = rig.array.grow().await.expect_err("a member").to_string();
        assert!(refused.contains("member 2 is missing"), "{refused}");
        assert_eq!(rig.array.info().size, size);
        rig.disks[2].unreachable.store(false, SeqCst);
        rig.array.wait_healthy().await.expect("resynced");
        rig.grow(2 * SIZE).await;
        rig.check().await;
        assert_eq!(rig.array.status().await.expect("status").health, Health::Healthy);
    });
}

/// Cuts the power at write number `step` of the growth. Returns whether there were so many.
fn crash_at(layout: Layout, width: usize, step: u64, seen: &mut [bool; 2]) -> bool {
    let (disks, power) = disks(width, SIZE);
    let model = simulate(step, async {
        make(&disks, layout, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        let model = Model::new(array.info().size);
        model.write(&*io, 1, 20).await.expect("written");
        array.stop().await.expect("stopped");
        model
    });
    let old = model.blocks();
    let engine = longhaul_engine::Engine::simulated(step).expect("engine");
    let grown = engine.block_on(async {
        let array = start(&disks, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        disks.iter().for_each(|disk| disk.grow(2 * SIZE));
        power.light(step, step);
        let work = pin!(async {
            let grown = array.grow().await.expect("grown").1;
            model.grow(grown);
            model.write(&*io, old - 1, 3).await.expect("written");
            io.flush().await.expect("flushed");
        });
        select(work, pin!(power.lost())).await;
        model.blocks() > old
    });
    let crashed = power.is_off();
    power.off.store(true, SeqCst);
    drop(engine);
    power.restore();
    model.crashed();
    simulate(step + 1, async {
        let array = start(&disks, options()).await.expect("assembled after a crash");
        let size = array.info().size;
        assert!(!grown || size / longhaul_array::BLOCK == model.blocks(), "the size that users had is gone");
        seen[usize::from(size / longhaul_array::BLOCK > old)] = true;
        model.grow(size);
        let io = array.open().await.expect("opened");
        model.check(&*io).await.expect("checked after a crash");
        if layout != Layout::Stripe {
            let report = array.scrub().await.expect("scrubbed");
            assert!(report.finished && report.lost == 0 && report.repaired == 0, "{report:?}");
        }
        // It grows if it has not.
        let (_, size) = array.grow().await.expect("grown");
        assert!(size / longhaul_array::BLOCK > old);
        model.grow(size);
        model.check(&*io).await.expect("checked");
        array.stop().await.expect("stopped");
    });
    crashed
}

#[test]
fn a_power_cut_leaves_the_old_size_or_the_new_one() {
    for (layout, width) in LAYOUTS {
        let mut seen = [false; 2];
        let steps = (0..).take_while(|step| crash_at(layout, width, *step, &mut seen)).count();
        assert!(steps >= 2 * width && seen == [true, true], "{layout}: {steps} steps, {seen:?}");
    }
}

/// Growth that a member's loss interrupts, at each of its writes.
#[test]
fn a_member_that_is_lost_meanwhile_leaves_one_size() {
    for step in 0..24 {
        simulate(step, async {
            let rig = rig(Layout::Parity, 4, options()).await;
            rig.fill().await;
            let old = rig.array.info().size;
            rig.enlarge(2 * SIZE);
            let writes = rig.disks[1].writes.load(SeqCst);
            let disk = &rig.disks[1];
            let cut = async {
                while disk.writes.load(SeqCst) < writes + step / 4 {
                    longhaul_engine::sleep(std::time::Duration::from_micros(20)).await;
                }
                disk.unreachable.store(true, SeqCst);
            };
            let grow = async { rig.array.grow().await };
            let (grown, ()) = join(grow, cut).await;
            let size = rig.array.info().size;
            assert!(grown.is_err() == (size == old), "{grown:?}: {old} to {size}");
            rig.model.grow(size);
            rig.model.check(&*rig.io).await.expect("degraded or not");
            rig.write_some(step, 20).await;
            rig.disks[1].unreachable.store(false, SeqCst);
            rig.array.wait_healthy().await.expect("resynced");
            rig.check().await;
        });
    }
}

#[test]
fn handles_of_other_threads_have_the_new_size() {
    let (disks, _) = disks(3, SIZE);
    let home = Thread::start("array", Default::default()).expect("thread");
    let given = disks.clone();
    let array = home.handle().spawn(move || async move {
        make(&given, Layout::Parity, UNIT).await;
        start(&given, options()).await.expect("assembled")
    });
    let array = array.wait().expect("ran");
    let other = longhaul_engine::Engine::new(&Default::default()).expect("engine");
    other.block_on(async {
        let io = array.open().await.expect("opened");
        disks.iter().for_each(|disk| disk.grow(2 * SIZE));
        let (old, new) = array.grow().await.expect("grown");
        let (result, at) = (io.read(new - 4096, BufMut::zeroed(4096)).await, new - 4096);
        assert!(at >= old && result.expect("read").iter().all(|byte| *byte == 0));
        array.stop().await.expect("stopped");
    });
}
