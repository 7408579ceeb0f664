//! Which devices form an array, and which are refused.

mod common;

use common::{Disk, Model, degraded, devices, disks, make, options, simulate, start, uuid};
use fastrand::Rng;
use longhaul_array::{ArrayError, Condition, Health, Layout, Options, Shape, assemble_as, create_as};
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, IoFuture, Open, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, now, sleep, spawn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use uuid::Uuid;

const UNIT: u64 = 16 << 10;
const SIZE: u64 = 3 << 20;

async fn refused(disks: &[Arc<Disk>]) -> String {
    start(disks, options()).await.map(drop).expect_err("refused").to_string()
}

#[test]
fn members_come_in_any_order() {
    simulate(1, async {
        let (mut disks, _power) = disks(5, SIZE);
        make(&disks, Layout::DoubleParity, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        // The values from which a file system derives its layout.
        assert_eq!((array.granularity(), array.info().optimal_io), (UNIT as u32, 3 * UNIT as u32));
        let io = array.open().await.expect("opened");
        let model = Model::new(array.info().size);
        for first in (0..model.blocks() - 7).step_by(7) {
            model.write(&*io, first, 7).await.expect("written");
        }
        array.stop().await.expect("stopped");
        // Two swapped devices keep their index, which the superblock records.
        for order in [[4, 3, 2, 1, 0], [1, 0, 2, 3, 4], [2, 4, 1, 0, 3]] {
            disks = order.map(|i| Arc::clone(&disks[i])).to_vec();
            let array = start(&disks, options()).await.expect("assembled");
            let io = array.open().await.expect("opened");
            model.check(&*io).await.expect("read");
            array.stop().await.expect("stopped");
        }
    });
}

#[test]
fn devices_that_do_not_belong_are_named() {
    simulate(2, async {
        let (ours, power) = disks(3, SIZE);
        make(&ours, Layout::Parity, UNIT).await;
        let blank = Arc::new(Disk::new("blank", SIZE, &power));
        let with = |disk: &Arc<Disk>| [&ours[..2], &[Arc::clone(disk)]].concat();
        assert!(refused(&with(&blank)).await.contains("blank is no member of an array"));
        assert!(refused(&with(&ours[0])).await.contains("disk0 and disk0 are the same member"));
        let small = Arc::new(ours[2].cut("small", SIZE - (64 << 10)));
        let text = refused(&with(&small)).await;
        assert!(text.contains("small has 3080192 bytes") && text.contains("made smaller"), "{text}");
        let text = refused(&ours[..1]).await;
        assert!(
            text.contains("cannot begin without members 1 (not given")
                && text.contains("1 can be missing, not 2"),
            "{text}"
        );
        assert!(refused(&[]).await.contains("no device was given"));
    });
    simulate(3, async {
        let (a, _) = disks(2, SIZE);
        let (b, _) = disks(2, SIZE);
        make(&a, Layout::Mirror, UNIT).await;
        let shape =
            longhaul_array::Shape { name: "other".into(), layout: Layout::Mirror, unit: UNIT, force: false };
        longhaul_array::create(&common::devices(&b), &[], &shape).await.expect("made");
        let text = refused(&[Arc::clone(&a[0]), Arc::clone(&b[1])]).await;
        assert!(text.contains("is a member of another array, other"), "{text}");
    });
}

/// A device with an unreadable superblock is not blank.
#[test]
fn an_unreadable_superblock_is_not_taken_for_blank() {
    // The checksum, and a byte after the version.
    for damage in [1, 40] {
        simulate(20, async {
            let (old, power) = disks(2, SIZE);
            make(&old, Layout::Mirror, UNIT).await;
            [0, 64 << 10].iter().for_each(|at| old[1].flip(at + damage));
            let text = refused(&old).await;
            assert!(text.contains("disk1 is a member of an array, but its superblock is damaged"), "{text}");
            let labels = longhaul_array::survey(&devices(&old)).await;
            assert!(labels[0].is_ok() && matches!(&labels[1], Err(ArrayError::NotUnderstood { .. })));
            start(&old[..1], degraded()).await.expect("the other is enough").stop().await.expect("stopped");
            let blank: Vec<_> =
                (0..2).map(|n| Arc::new(Disk::new(&format!("new{n}"), SIZE, &power))).collect();
            make(&blank, Layout::Mirror, UNIT).await;
            let array = start(&blank, options()).await.expect("assembled");
            let damaged = || Arc::clone(&old[1]) as Arc<dyn BlockDevice>;
            let before = old[1].writes.load(SeqCst);
            let mut random = Rng::with_seed(4);
            let mut shape = Shape { name: "new".into(), layout: Layout::Mirror, unit: UNIT, force: false };
            let other = || Arc::new(Disk::new("other", SIZE, &power)) as Arc<dyn BlockDevice>;
            let created = create_as(&[damaged(), other()], &[], &shape, || uuid(&mut random)).await.map(drop);
            let replaced = array.replace(0, damaged(), false).await;
            let added = array.add_spare(damaged(), false).await;
            for result in [created, replaced, added] {
                let text = result.expect_err("refused").to_string();
                assert!(text.contains("its superblock is damaged: --force overwrites it"), "{text}");
            }
            assert_eq!(old[1].writes.load(SeqCst), before, "it was written to");
            array.add_spare(damaged(), true).await.expect("taken by force");
            array.stop().await.expect("stopped");
            shape.force = true;
            create_as(&[damaged(), other()], &[], &shape, || uuid(&mut random))
                .await
                .expect("taken by force");
        });
    }
}

/// A device with a file system is refused like a member of an array.
#[test]
fn a_device_with_a_file_system_is_taken_by_force_alone() {
    simulate(19, async {
        let (running, power) = disks(2, SIZE);
        make(&running, Layout::Mirror, UNIT).await;
        let array = start(&running, options()).await.expect("assembled");
        let used = Arc::new(Disk::new("used", SIZE, &power));
        let head = Buf::copy_of(&[b"XFSB".as_slice(), &[0; 4092]].concat());
        used.open().await.expect("opened").write(0, head, WriteFlags::default()).await.expect("written");
        let used = || Arc::clone(&used) as Arc<dyn BlockDevice>;
        let other = || Arc::new(Disk::new("other", SIZE, &power)) as Arc<dyn BlockDevice>;
        let mut random = Rng::with_seed(5);
        let mut shape = Shape { name: "new".into(), layout: Layout::Mirror, unit: UNIT, force: false };
        let created = create_as(&[used(), other()], &[], &shape, || uuid(&mut random)).await.map(drop);
        for result in [created, array.replace(0, used(), false).await, array.add_spare(used(), false).await] {
            let text = result.expect_err("refused").to_string();
            assert!(text.contains("an XFS file system") && text.contains("--force"), "{text}");
        }
        shape.force = true;
        create_as(&[used(), other()], &[], &shape, || uuid(&mut random)).await.expect("taken by force");
        array.stop().await.expect("stopped");
    });
}

/// `force` takes members of unused arrays, not of running ones.
#[test]
fn force_does_not_take_a_member_of_a_running_array() {
    simulate(21, async {
        let (old, power) = disks(3, SIZE);
        make(&old, Layout::Parity, UNIT).await;
        let running = start(&old, options()).await.expect("assembled");
        let io = running.open().await.expect("opened");
        let model = Model::new(running.info().size);
        model.write(&*io, 0, 20).await.expect("written");
        let new = |name: &str| Arc::new(Disk::new(name, SIZE, &power));
        let own: Vec<_> = ["a", "b"].map(new).to_vec();
        let shape = Shape { name: "new".into(), layout: Layout::Mirror, unit: UNIT, force: true };
        let mut random = Rng::with_seed(5);
        create_as(&devices(&own), &[], &shape, || uuid(&mut random)).await.expect("made");
        let other = start(&own, options()).await.expect("assembled");
        let member = || Arc::clone(&old[1]) as Arc<dyn BlockDevice>;
        let blank = new("blank") as Arc<dyn BlockDevice>;
        let given = [member(), Arc::clone(&blank)];
        let created = create_as(&given, &[], &shape, || uuid(&mut random)).await.map(drop);
        let as_spare =
            create_as(&devices(&[new("c"), new("d")]), &[member()], &shape, || uuid(&mut random)).await;
        let replaced = other.replace(0, member(), true).await;
        let added = other.add_spare(member(), true).await;
        for result in [created, as_spare.map(drop), replaced, added] {
            let text = result.expect_err("refused").to_string();
            assert!(text.contains("disk1 is in use at this moment"), "{text}");
        }
        sleep(Duration::from_secs(5)).await;
        let status = running.status().await.expect("status");
        assert_eq!(status.health, Health::Healthy, "{status:?}");
        model.check(&*io).await.expect("read");
        assert_eq!(other.status().await.expect("status").health, Health::Healthy);
        // The array is not in use any more.
        running.stop().await.expect("stopped");
        create_as(&given, &[], &shape, || uuid(&mut random)).await.expect("taken");
    });
    // A crashed session does not count as running either.
    let (old, _power) = disks(2, SIZE);
    simulate(22, async {
        make(&old, Layout::Mirror, UNIT).await;
        start(&old, options()).await.expect("assembled");
        sleep(Duration::from_secs(3)).await;
    });
    simulate(23, async {
        let shape = Shape { name: "new".into(), layout: Layout::Mirror, unit: UNIT, force: true };
        let mut random = Rng::with_seed(6);
        create_as(&devices(&old), &[], &shape, || uuid(&mut random)).await.expect("taken");
    });
}

#[test]
fn a_stale_member_is_not_used() {
    simulate(4, async {
        let (disks, _power) = disks(2, SIZE);
        make(&disks, Layout::Mirror, UNIT).await;
        let array = start(&disks[..1], degraded()).await.expect("degraded");
        let io = array.open().await.expect("opened");
        let model = Model::new(array.info().size);
        model.write(&*io, 0, 20).await.expect("written");
        array.stop().await.expect("stopped");
        // Alone it would bring back overwritten content.
        let array = start(&disks, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        assert_eq!(array.status().await.expect("status").members[1].condition, Condition::Offline);
        model.check(&*io).await.expect("read");
        array.wait_healthy().await.expect("caught up");
        disks[0].unreachable.store(true, SeqCst);
        model.check(&*io).await.expect("read");
    });
}

#[test]
fn two_histories_are_never_mixed() {
    simulate(5, async {
        let (disks, _power) = disks(2, SIZE);
        make(&disks, Layout::Mirror, UNIT).await;
        for disk in &disks {
            let array = start(&[Arc::clone(disk)], degraded()).await.expect("degraded");
            array.stop().await.expect("stopped");
        }
        let text = refused(&disks).await;
        assert!(text.contains("were used apart from each other"), "{text}");
    });
}

#[test]
fn one_host_at_a_time() {
    simulate(6, async {
        let (disks, _power) = disks(3, SIZE);
        make(&disks, Layout::Parity, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        assert!(refused(&disks).await.contains("in use by another host"));
        let io = array.open().await.expect("opened");
        let model = Model::new(array.info().size);
        model.write(&*io, 0, 5).await.expect("the first is not disturbed");
        array.stop().await.expect("stopped");
        start(&disks, options()).await.expect("assembled");
    });
    for seed in 10..40 {
        // At the same moment: at most one succeeds.
        simulate(seed, async {
            let (disks, _power) = disks(3, SIZE);
            make(&disks, Layout::Parity, UNIT).await;
            let begin = |wait: u64| {
                let disks = disks.clone();
                spawn(async move {
                    sleep(Duration::from_micros(wait)).await;
                    start(&disks, options()).await.is_ok()
                })
            };
            let (a, b) = (begin(0), begin((seed - 10) * 40));
            let (a, b) = (a.await, b.await);
            assert!(!(a && b), "both have it");
        });
    }
}

#[test]
fn a_host_that_was_taken_over_stops() {
    simulate(7, async {
        let (disks, _power) = disks(2, SIZE);
        make(&disks, Layout::Mirror, UNIT).await;
        // So rarely that the other host assumes that this one has ended.
        let slow = Options { heartbeat: Duration::from_secs(3600), ..options() };
        let first = start(&disks, slow).await.expect("assembled");
        let second = start(&disks, options()).await.expect("taken over");
        sleep(Duration::from_secs(3601)).await;
        let status = first.status().await.expect("status");
        assert!(status.detail.contains("has taken it over"), "{}", status.detail);
        let io = second.open().await.expect("opened");
        Model::new(second.info().size).write(&*io, 0, 4).await.expect("written");
    });
}

/// A disk behind a cable of one host.
struct Cable {
    disk: Arc<Disk>,
    cut: Arc<AtomicBool>,
}

struct CableIo {
    io: Rc<dyn BlockIo>,
    cut: Arc<AtomicBool>,
}

impl BlockDevice for Cable {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async {
            let io: Rc<dyn BlockIo> =
                Rc::new(CableIo { io: self.disk.open().await?, cut: Arc::clone(&self.cut) });
            Ok(io)
        })
    }
}

impl CableIo {
    /// Operations on a cut cable are retried when it is connected again.
    fn pass<T: Unpin + 'static>(
        &self,
        begin: impl FnOnce(&dyn BlockIo) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let (io, cut) = (Rc::clone(&self.io), Arc::clone(&self.cut));
        IoFuture::new(async move {
            while cut.load(SeqCst) {
                sleep(Duration::from_millis(100)).await;
            }
            begin(&*io).await
        })
    }
}

impl BlockIo for CableIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.pass(move |io| io.read(offset, dst))
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        self.pass(move |io| io.write(offset, src, flags))
    }

    fn flush(&self) -> IoFuture<()> {
        self.pass(|io| io.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.pass(move |io| io.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.pass(move |io| io.write_zeroes(offset, len, flags))
    }
}

#[test]
fn a_device_under_two_names_is_refused() {
    simulate(14, async {
        let (disks, _power) = disks(3, SIZE);
        let alias = Cable { disk: Arc::clone(&disks[1]), cut: Arc::default() };
        let given = [devices(&disks), vec![Arc::new(alias) as Arc<dyn BlockDevice>]].concat();
        let shape = Shape { name: "twice".into(), layout: Layout::Parity, unit: UNIT, force: false };
        let mut random = Rng::with_seed(3);
        let refused =
            create_as(&given, &[], &shape, || uuid(&mut random)).await.expect_err("refused").to_string();
        assert!(refused.contains("are the same member"), "{refused}");
        // No superblock is left that would prevent a new array.
        make(&disks, Layout::Parity, UNIT).await;
        start(&disks, options()).await.expect("assembled");
    });
}

#[test]
fn a_host_cut_off_during_a_takeover_writes_nothing() {
    for layout in [Layout::Mirror, Layout::Parity, Layout::Stripe] {
        simulate(9, async {
            let (disks, _power) = disks(3, SIZE);
            make(&disks, layout, UNIT).await;
            let cut = Arc::new(AtomicBool::new(false));
            let cable = |disk: &Arc<Disk>| {
                Arc::new(Cable { disk: Arc::clone(disk), cut: Arc::clone(&cut) }) as Arc<dyn BlockDevice>
            };
            let cables: Vec<_> = disks.iter().map(cable).collect();
            let first = assemble_as(&cables, options(), Uuid::from_u128(9)).await.expect("assembled");
            let io = first.open().await.expect("opened");
            cut.store(true, SeqCst);
            sleep(Duration::from_secs(5)).await;
            let second = start(&disks, options()).await.expect("taken over");
            let late = io.write(0, Buf::copy_of(&[0xEE; 4096]), WriteFlags::default());
            sleep(Duration::from_secs(6)).await;
            cut.store(false, SeqCst);
            let failed = late.await.expect_err("it is another's").to_string();
            assert!(failed.contains("has taken it over"), "{layout}: {failed}");
            sleep(Duration::from_secs(10)).await;
            assert!(disks.iter().all(|disk| disk.find(0, &[0xEE; 4096]).is_none()), "{layout}");
            let status = second.status().await.expect("status");
            assert_eq!(status.health, Health::Healthy, "{layout}: {status:?}");
        });
    }
}

#[test]
fn writes_without_redundancy_run_in_parallel_and_stop_waits_for_them() {
    simulate(8, async {
        let (disks, _power) = disks(3, SIZE);
        make(&disks, Layout::Stripe, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        let delay = Duration::from_millis(20);
        disks.iter().for_each(|disk| disk.slow.store(delay.as_micros() as u64, SeqCst));
        let write = |block: u64| {
            let bytes = Buf::copy_of(&[block as u8 + 1; 4096]);
            io.write(block * 4096, bytes, WriteFlags::default())
        };
        // All writes in one stripe, in the time of one.
        let began = now();
        for write in (0..12).map(write).collect::<Vec<_>>() {
            write.await.expect("written");
        }
        assert!(now() - began < 2 * delay, "{:?}", now() - began);
        let under_way: Vec<_> = (12..24).map(write).collect();
        array.stop().await.expect("stopped");
        for block in 12..24 {
            let disk = &disks[(block / 4 % 3) as usize];
            assert!(disk.find(0, &[block + 1; 4096]).is_some(), "block {block} is not there");
        }
        drop(under_way);
    });
}

/// Range of the heartbeat on a member.
const HEARTBEAT: std::ops::Range<u64> = 128 << 10..(128 << 10) + 4096;

#[test]
fn a_heartbeat_that_stands_still_does_not_block_assembly() {
    for seed in 50..56 {
        let (disks, _power) = disks(3, SIZE);
        simulate(seed, async {
            make(&disks, Layout::Mirror, UNIT).await;
            // Dropped without a stop, like a crash.
            start(&disks, options()).await.expect("assembled");
            sleep(Duration::from_secs(seed % 3 * 3)).await;
        });
        // One member keeps the heartbeat of the crashed session.
        *disks[1].forgets.lock().unwrap() = HEARTBEAT;
        simulate(seed, async {
            let array = start(&disks, options()).await.expect("no other session runs it");
            sleep(Duration::from_secs(30)).await;
            let io = array.open().await.expect("opened");
            Model::new(array.info().size).write(&*io, 0, 4).await.expect("written");
            array.stop().await.expect("stopped");
            // A stopped session has ended as well.
            *disks[0].forgets.lock().unwrap() = HEARTBEAT;
            start(&disks, options()).await.expect("assembled again");
        });
    }
}

#[test]
fn a_recovering_host_owns_the_array() {
    let (disks, _power) = disks(3, 24 << 20);
    simulate(8, async {
        make(&disks, Layout::Mirror, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        let model = Model::new(array.info().size);
        for first in (0..model.blocks() - 1).step_by(100) {
            model.write(&*io, first, 1).await.expect("written");
        }
    });
    simulate(9, async {
        // The recovery takes far longer than a host waits before a takeover.
        disks.iter().for_each(|disk| disk.slow.store(400_000, SeqCst));
        let members = disks.clone();
        let first = spawn(async move {
            let began = longhaul_engine::now();
            start(&members, options()).await.expect("assembled");
            longhaul_engine::now() - began
        });
        sleep(Duration::from_secs(14)).await;
        assert!(refused(&disks).await.contains("in use by another host"));
        let took = first.await;
        assert!(took > Duration::from_secs(20), "the recovery took {took:?} only");
    });
}
