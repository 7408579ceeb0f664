//! Administrative operations that would do harm are refused, and change nothing.

mod common;

use common::rig::{Rig, SIZE, rig};
use common::{Disk, options, simulate, start};
use longhaul_array::{ArrayError, Condition, Health, Layout, MAX_SPARES};
use longhaul_block::filter::OpKind;
use longhaul_block::testing::{Fault, FaultDisk, FaultRule};
use longhaul_block::{BlockDevice, DeviceInfo, IoError};
use longhaul_engine::{sleep, timeout};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

impl Rig {
    fn blank(&self, name: &str) -> Arc<Disk> {
        Arc::new(Disk::new(name, SIZE, &self.power))
    }

    async fn refused(&self, index: usize, device: Arc<dyn BlockDevice>) -> String {
        let replace = self.array.replace(index, device, true);
        timeout(Duration::from_secs(60), replace).await.expect("ends").expect_err("refused").to_string()
    }

    /// The array is running, with all its content.
    async fn is_well(&self, health: Health) {
        let status = self.array.status().await.expect("status");
        assert_eq!(status.health, health, "{status:?}");
        self.write_some(9, 10).await;
        self.model.check(&*self.io).await.expect("read");
    }
}

#[test]
fn a_member_that_is_needed_is_not_replaced() {
    let cases = [(Layout::Stripe, 3, None), (Layout::Mirror, 2, Some(1)), (Layout::Parity, 4, Some(2))];
    for (layout, width, missing) in cases {
        simulate(1, async {
            let rig = rig(layout, width, options()).await;
            rig.fill().await;
            if let Some(missing) = missing {
                rig.disks[missing].unreachable.store(true, SeqCst);
                rig.until(missing, Condition::Offline).await;
            }
            let new = rig.blank("new");
            let why = rig.refused(0, Arc::clone(&new) as Arc<dyn BlockDevice>).await;
            assert!(why.contains("data would be lost without member 0"), "{layout}: {why}");
            assert_eq!(new.writes.load(SeqCst), 0, "{layout}: it was written to");
            let health = if missing.is_some() { Health::Degraded } else { Health::Healthy };
            rig.is_well(health).await;
            // A missing member can be replaced.
            if let Some(missing) = missing {
                rig.array.replace(missing, new as Arc<dyn BlockDevice>, false).await.expect("replaced");
                rig.array.wait_healthy().await.expect("healthy");
                rig.is_well(Health::Healthy).await;
            }
        });
    }
}

/// A disk with what `change` makes of its description.
fn disk(name: &str, change: impl FnOnce(&mut DeviceInfo)) -> FaultDisk {
    FaultDisk::with(SIZE, |info| {
        info.name = name.into();
        change(info);
    })
}

/// A disk on which all operations of these kinds fail.
fn failing(name: &str, kinds: &[OpKind], why: &str) -> FaultDisk {
    let disk = disk(name, |_| {});
    for kind in kinds {
        disk.inject(FaultRule::new(*kind, Fault::Error(IoError::Medium(why.into()))));
    }
    disk
}

#[test]
fn a_member_stays_if_its_replacement_is_unusable() {
    simulate(2, async {
        let rig = rig(Layout::Parity, 3, options()).await;
        rig.fill().await;
        let useless = [
            (failing("worn", &[OpKind::Write, OpKind::WriteZeroes], "worn out"), "worn out"),
            (failing("forgetful", &[OpKind::Flush], "it cannot be made durable"), "cannot be made durable"),
            (disk("sealed", |info| info.read_only = true), "read-only"),
            (disk("coarse", |info| info.block_size = 8192), "4096 bytes or less"),
        ];
        for (device, why) in useless {
            let said = rig.refused(1, Arc::new(device.clone())).await;
            assert!(said.contains(why) && said.contains(&device.info().name), "{why}: {said}");
            assert_eq!(rig.condition(1).await, Condition::Active, "{why}");
        }
        for spare in
            [disk("sealed", |info| info.read_only = true), disk("coarse", |info| info.block_size = 8192)]
        {
            let spare = rig.array.add_spare(Arc::new(spare), false).await.expect_err("refused");
            assert!(matches!(spare, ArrayError::Device { .. }), "{spare}");
        }
        rig.is_well(Health::Healthy).await;
    });
}

#[test]
fn a_halted_array_changes_no_member() {
    simulate(3, async {
        let rig = rig(Layout::Parity, 4, options()).await;
        rig.fill().await;
        for disk in &rig.disks[2..] {
            disk.worn.store(true, SeqCst);
        }
        // The first write may still be acknowledged, from the journals of the others.
        while rig.model.write(&*rig.io, 0, 3).await.is_ok() {}
        rig.disks.iter().for_each(|disk| disk.worn.store(false, SeqCst));
        sleep(Duration::from_secs(5)).await;
        let writes = || rig.disks.iter().map(|disk| disk.writes.load(SeqCst)).collect::<Vec<_>>();
        let before = writes();
        let new = rig.blank("new");
        let halted = rig.array.status().await.expect("status").detail;
        let replaced = rig.refused(2, Arc::clone(&new) as Arc<dyn BlockDevice>).await;
        let added = rig.array.add_spare(Arc::clone(&new) as Arc<dyn BlockDevice>, true).await;
        let added = added.expect_err("refused").to_string();
        assert!(replaced.contains(&halted) && added.contains(&halted), "{replaced}; {added}");
        sleep(Duration::from_secs(5)).await;
        assert_eq!((before, 0), (writes(), new.writes.load(SeqCst)));
    });
}

#[test]
fn a_spare_that_cannot_be_written_is_not_added() {
    simulate(4, async {
        let rig = rig(Layout::Parity, 3, options()).await;
        let worn = rig.blank("worn");
        worn.worn.store(true, SeqCst);
        let added = rig.array.add_spare(Arc::clone(&worn) as Arc<dyn BlockDevice>, false).await;
        assert!(added.expect_err("refused").to_string().contains("worn out"));
        assert_eq!(rig.array.status().await.expect("status").spares, Vec::<String>::new());
        worn.worn.store(false, SeqCst);
        rig.array.add_spare(Arc::clone(&worn) as Arc<dyn BlockDevice>, false).await.expect("added");
        rig.array.stop().await.expect("stopped");
        let all = [&rig.disks[..], &[worn]].concat();
        let array = start(&all, options()).await.expect("assembled");
        assert_eq!(array.status().await.expect("status").spares, ["worn"]);
    });
}

#[test]
fn an_unreachable_spare_can_be_added_again() {
    simulate(5, async {
        let rig = rig(Layout::Parity, 3, options()).await;
        let spares: Vec<_> = (0..MAX_SPARES).map(|n| rig.blank(&format!("spare{n}"))).collect();
        let as_device = |disk: &Arc<Disk>| Arc::clone(disk) as Arc<dyn BlockDevice>;
        for spare in &spares {
            rig.array.add_spare(as_device(spare), false).await.expect("added");
        }
        let more = rig.array.add_spare(as_device(&rig.blank("more")), false).await;
        assert!(more.expect_err("refused").to_string().contains("16 spares already"));
        rig.array.stop().await.expect("stopped");
        let array = start(&rig.disks, options()).await.expect("assembled");
        let named = async || array.status().await.expect("status").spares;
        assert_eq!(named().await, Vec::<String>::new());
        array.add_spare(as_device(&spares[3]), false).await.expect("let in");
        let twice = array.add_spare(as_device(&spares[3]), false).await;
        assert!(matches!(twice, Err(ArrayError::Double { .. })), "{twice:?}");
        // The new spare takes the entry of an unreachable one.
        let more = rig.blank("more");
        array.add_spare(as_device(&more), false).await.expect("added");
        assert_eq!(named().await, ["spare3", "more"]);
        array.stop().await.expect("stopped");
        let all = [&rig.disks[..], &spares[3..4], &[more]].concat();
        let array = start(&all, options()).await.expect("assembled");
        assert_eq!(array.status().await.expect("status").spares, ["spare3", "more"]);
    });
}

/// Spares are available throughout: a replacement uses none of them.
#[test]
fn a_replacement_uses_no_spare() {
    for seed in 20..40 {
        simulate(seed, async {
            let rig = rig(Layout::Parity, 3, options()).await;
            rig.fill().await;
            let spare = rig.blank("spare");
            rig.array.add_spare(Arc::clone(&spare) as Arc<dyn BlockDevice>, false).await.expect("added");
            let new = rig.blank("new");
            // Slow enough for the array to look for spares meanwhile.
            new.slow.store(400_000, SeqCst);
            rig.array.replace(1, Arc::clone(&new) as Arc<dyn BlockDevice>, false).await.expect("replaced");
            new.slow.store(0, SeqCst);
            rig.array.wait_healthy().await.expect("healthy");
            let status = rig.array.status().await.expect("status");
            assert_eq!(status.members[1].device.as_deref(), Some("new"), "{status:?}");
            assert_eq!(status.spares, ["spare"], "{status:?}");
            rig.is_well(Health::Healthy).await;
        });
    }
}
