//! Rebuild of a member while users write, and while operations on it are still under way.

mod common;

use common::rig::{SIZE, UNIT, rig};
use common::{Disk, options};
use longhaul_array::{Condition, Layout};
use longhaul_block::{BlockDevice, ZeroFlags};
use longhaul_engine::{now, sleep, spawn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Blocks of a full stripe of three members with parity.
const STRIPE: u64 = 2 * UNIT / 4096;
/// Duration of a slow operation, and a member's timeout.
const SLOW: Duration = Duration::from_secs(60);
/// Interval at which the test looks whether something has begun.
const LOOK: Duration = Duration::from_millis(1);

/// A stripe is read for the new member, and written to it slowly. A write to the same stripe in
/// between waits, and then goes to the new member as well.
#[test]
fn a_write_does_not_come_between_the_read_and_the_write_of_a_rebuild() {
    for (layout, width) in [(Layout::Mirror, 2), (Layout::StripeMirror, 4), (Layout::Parity, 3)] {
        common::simulate(21, async {
            let rig = rig(layout, width, options()).await;
            rig.fill().await;
            let new = Arc::new(Disk::new("new", SIZE, &rig.power));
            rig.array.replace(1, Arc::clone(&new) as _, false).await.expect("replaced");
            // Each operation takes a second from here on.
            new.slow.store(1_000_000, SeqCst);
            let (before, reads) = (new.writes.load(SeqCst), rig.disks[0].reads.load(SeqCst));
            while new.writes.load(SeqCst) == before || rig.disks[0].reads.load(SeqCst) == reads {
                sleep(LOOK).await;
            }
            sleep(Duration::from_millis(100)).await;
            assert!(matches!(rig.condition(1).await, Condition::Rebuilding { .. }));
            rig.fill().await;
            new.slow.store(0, SeqCst);
            rig.array.wait_healthy().await.expect("rebuilt");
            rig.disks[0].unreachable.store(true, SeqCst);
            rig.model.check(&*rig.io).await.unwrap_or_else(|e| panic!("{layout} of {width}: {e}"));
        });
    }
}

/// A member takes a minute for one write and answers others at once: it is marked offline, and must
/// not return before that write has ended, which would overwrite its resync.
#[test]
fn a_member_does_not_return_while_an_old_operation_is_under_way() {
    common::simulate(22, async {
        let rig = rig(Layout::Parity, 3, options()).await;
        rig.fill().await;
        // The region is marked already, so that the next write begins with the data.
        rig.model.write(&*rig.io, 0, STRIPE).await.expect("written");
        let (disk, before) = (Arc::clone(&rig.disks[1]), rig.disks[1].writes.load(SeqCst));
        disk.slow.store(SLOW.as_micros() as u64, SeqCst);
        let (began, rig) = (now(), Rc::new(rig));
        let writer = Rc::clone(&rig);
        let late = spawn(async move { writer.model.write(&*writer.io, 0, STRIPE).await });
        while disk.writes.load(SeqCst) == before {
            sleep(LOOK).await;
        }
        disk.slow.store(0, SeqCst);
        late.await.expect("written without it");
        rig.until(1, Condition::Offline).await;
        sleep(SLOW / 2).await;
        assert!(now() - began < SLOW, "it still owes an answer");
        rig.model.write(&*rig.io, 0, STRIPE).await.expect("written");
        rig.array.wait_healthy().await.expect("rebuilt");
        assert!(now() - began >= SLOW, "it was let in after {:?}", now() - began);
        sleep(SLOW).await;
        rig.disks[0].unreachable.store(true, SeqCst);
        rig.model.check(&*rig.io).await.expect("read");
    });
}

/// A read waits for an unreachable member, whose place another device takes meanwhile: one that had the same place
/// before, with older content that matches the checksums there. The read does not take that content.
#[test]
fn a_read_that_waited_does_not_take_what_another_device_has_in_its_place() {
    for (seed, layout) in [(23, Layout::DoubleParity), (24, Layout::Mirror), (25, Layout::StripeMirror)] {
        common::simulate(seed, async {
            let rig = rig(layout, 5 - usize::from(layout == Layout::StripeMirror), options()).await;
            rig.fill().await;
            rig.io.flush().await.expect("flushed");
            sleep(Duration::from_secs(5)).await;
            let former = Arc::new(rig.disks[1].cut("former", SIZE));
            let wiped = former.open().await.expect("opened");
            wiped.write_zeroes(0, 256 << 10, ZeroFlags::default()).await.expect("wiped");
            rig.fill().await;
            sleep(Duration::from_secs(5)).await;
            let geometry = rig.array.status().await.expect("status").geometry;
            let first = (geometry.end() - geometry.rows * geometry.unit) / 512;
            // What is read around the member is found to be unreadable, and that takes a while.
            let sectors = first..first + UNIT / 512;
            rig.disks[2].bad.lock().unwrap().extend(sectors);
            rig.disks.iter().for_each(|disk| disk.slow.store(1_000_000, SeqCst));
            rig.disks[1].disconnect();
            let blocks = geometry.data_units() as u64 * UNIT / 4096;
            let reads = (0..blocks).map(async |block| rig.model.read(&*rig.io, block, 1).await);
            let replace = async {
                sleep(Duration::from_millis(100)).await;
                rig.disks.iter().for_each(|disk| disk.slow.store(0, SeqCst));
                rig.array.replace(1, Arc::clone(&former) as _, true).await.expect("replaced");
            };
            let (read, ()) = futures_util::join!(futures_util::future::join_all(reads), replace);
            for (block, read) in read.into_iter().enumerate() {
                read.unwrap_or_else(|e| panic!("{layout}: block {block}: {e}"));
            }
        });
    }
}
