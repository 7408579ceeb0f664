//! Of two halves of an array at most one continues: the one with the witness.

mod common;

use common::{Disk, Model, Power, devices, disks, options, simulate, start, uuid};
use fastrand::Rng;
use futures_util::future::join_all;
use longhaul_array::{
    ArrayDevice, BLOCK, Condition, Health, Layout, Options, Shape, WITNESS_SIZE, create_witnessed,
};
use longhaul_block::{BlockDevice, BlockIo, WriteFlags};
use longhaul_engine::{Buf, BufMut, sleep, spawn, timeout};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const UNIT: u64 = 16 << 10;
const SIZE: u64 = 3 << 20;
/// Offset of the heartbeat: superblocks are before it.
const HEARTBEAT: usize = 128 << 10;
/// Several timeouts of a member, and less than a member that is needed is waited for.
const SOON: Duration = Duration::from_secs(180);
/// Layouts of which a half suffices.
const HALVES: [(Layout, usize); 4] =
    [(Layout::Mirror, 2), (Layout::StripeMirror, 4), (Layout::Parity, 2), (Layout::DoubleParity, 4)];

struct Rig {
    disks: Vec<Arc<Disk>>,
    witness: Arc<Disk>,
}

impl Rig {
    async fn new(layout: Layout, width: usize) -> Rig {
        let (disks, power): (_, Arc<Power>) = disks(width, SIZE);
        let witness = Arc::new(Disk::new("witness", WITNESS_SIZE, &power));
        let shape = Shape { name: "test".into(), layout, unit: UNIT, force: false };
        let mut random = Rng::with_seed(5);
        let device = Arc::clone(&witness) as Arc<dyn BlockDevice>;
        let made = create_witnessed(&devices(&disks), &[], Some(&device), &shape, || uuid(&mut random)).await;
        made.expect("made");
        Rig { disks, witness }
    }

    /// Every second disk, from this one on.
    fn half(&self, from: usize) -> Vec<Arc<Disk>> {
        self.disks.iter().skip(from).step_by(2).cloned().collect()
    }

    /// The same, and the witness.
    fn with(&self, from: usize) -> Vec<Arc<Disk>> {
        [&self.half(from)[..], &[Arc::clone(&self.witness)]].concat()
    }

    fn all(&self) -> Vec<Arc<Disk>> {
        [&self.disks[..], &[Arc::clone(&self.witness)]].concat()
    }
}

async fn opened(array: &ArrayDevice) -> (Rc<dyn BlockIo>, Model) {
    (array.open().await.expect("opened"), Model::new(array.info().size))
}

fn reach(disks: &[Arc<Disk>], reach: bool) {
    disks.iter().for_each(|disk| disk.unreachable.store(!reach, SeqCst));
}

#[test]
fn the_half_that_the_witness_records_continues_and_the_other_does_not() {
    for (layout, width) in HALVES {
        simulate(1, async {
            let rig = Rig::new(layout, width).await;
            let array = start(&rig.all(), options()).await.expect("assembled");
            let (io, model) = opened(&array).await;
            model.write(&*io, 0, 8).await.expect("written");
            reach(&rig.half(1), false);
            model.write(&*io, 0, 8).await.expect("written");
            array.stop().await.expect("stopped");
            reach(&rig.half(1), true);
            let refused = start(&rig.with(1), options()).await.expect_err("refused").to_string();
            assert!(
                refused.contains("was offline, and misses what was written since"),
                "{layout}: {refused}"
            );
            start(&rig.half(1), options()).await.map(drop).expect_err("without the witness no one knows");
            let array = start(&rig.with(0), options()).await.expect("the other half is current");
            let io = array.open().await.expect("opened");
            model.check(&*io).await.expect("read");
            array.stop().await.expect("stopped");
            let array = start(&rig.all(), options()).await.expect("assembled");
            array.wait_healthy().await.expect("rebuilt");
        });
    }
}

#[test]
fn a_half_that_was_not_left_behind_starts_with_the_witness() {
    for (layout, width) in HALVES {
        simulate(2, async {
            let rig = Rig::new(layout, width).await;
            let array = start(&rig.all(), options()).await.expect("assembled");
            let (io, model) = opened(&array).await;
            model.write(&*io, 0, 8).await.expect("written");
            array.stop().await.expect("stopped");
            let refused = start(&rig.half(1), options()).await.expect_err("refused").to_string();
            assert!(
                refused.contains("the witness, which would show it, cannot be read"),
                "{layout}: {refused}"
            );
            let array = start(&rig.with(1), options()).await.expect("assembled");
            let io = array.open().await.expect("opened");
            model.check(&*io).await.expect("read");
        });
    }
}

#[test]
fn a_host_that_loses_half_of_the_array_and_the_witness_halts_and_the_other_continues() {
    for (layout, width) in HALVES {
        let (rig, model) = simulate(3, async {
            let rig = Rig::new(layout, width).await;
            let array = start(&rig.all(), options()).await.expect("assembled");
            let (io, model) = opened(&array).await;
            model.write(&*io, 0, 8).await.expect("written");
            io.flush().await.expect("flushed");
            // Its own half is reachable from this host only, from here on.
            let before: Vec<_> = rig.half(0).iter().map(|disk| disk.peek(0, HEARTBEAT)).collect();
            reach(&rig.with(1), false);
            let failed = model.write(&*io, 0, 8).await.expect_err("nothing is acknowledged").to_string();
            assert!(failed.contains("the witness cannot record that"), "{layout}: {failed}");
            assert_eq!(array.status().await.expect("status").health, Health::Halted);
            // With more members, the loss of the first one is recorded without the witness.
            for (disk, before) in rig.half(0).iter().zip(before).filter(|_| width == 2) {
                assert!(disk.peek(0, HEARTBEAT) == before, "{layout}: its superblock was written");
            }
            reach(&rig.with(1), true);
            (rig, model)
        });
        model.crashed();
        simulate(4, async {
            let other = start(&rig.with(1), options()).await.expect("the other half has the witness");
            let io = other.open().await.expect("opened");
            model.check(&*io).await.expect("read");
            model.write(&*io, 0, 8).await.expect("written");
            other.stop().await.expect("stopped");
            // The first half has acknowledged nothing since: it is resynced.
            let all = start(&rig.all(), options()).await.expect("assembled");
            all.wait_healthy().await.expect("rebuilt");
            let io = all.open().await.expect("opened");
            reach(&rig.half(1), false);
            model.check(&*io).await.expect("read");
        });
    }
}

/// Heartbeats end with the halt, so that all members fall silent, as if the host were the one that is cut
/// off: no request waits for as long as that would take.
#[test]
fn requests_end_soon_after_the_halt_of_a_host_that_gets_no_answers() {
    for seed in 0..24 {
        simulate(seed, async {
            let rig = Rig::new(Layout::DoubleParity, 3).await;
            let array = start(&rig.all(), Options::default()).await.expect("assembled");
            let (io, model) = opened(&array).await;
            model.write(&*io, 0, 64).await.expect("written");
            io.flush().await.expect("flushed");
            let mut random = Rng::with_seed(seed);
            let silent = [&rig.disks[1..], &[Arc::clone(&rig.witness)]].concat();
            silent.iter().for_each(|disk| disk.silent.store(true, SeqCst));
            let requests = (0..32).map(|n| {
                let (after, at) = (Duration::from_millis(random.u64(0..20_000)), random.u64(0..24) * BLOCK);
                let io = Rc::clone(&io);
                async move {
                    sleep(after).await;
                    if n % 2 == 0 {
                        let data = Buf::copy_of(&[7; BLOCK as usize]);
                        let written = timeout(SOON, io.write(at, data, WriteFlags::default())).await;
                        written.expect("a write ends").expect_err("the witness has recorded nothing");
                    } else {
                        // From the member that answers, or not at all.
                        let read = timeout(SOON, io.read(at, BufMut::zeroed(BLOCK as usize))).await;
                        drop(read.expect("a read ends"));
                    }
                }
            });
            join_all(requests).await;
            assert_eq!(array.status().await.expect("status").health, Health::Halted);
        });
    }
}

#[test]
fn of_two_hosts_with_a_half_each_at_most_one_continues() {
    let mut one = 0;
    for seed in 10..40 {
        simulate(seed, async {
            let rig = Rig::new(Layout::Mirror, 2).await;
            let begin = |from: usize, wait: u64| {
                let devices = rig.with(from);
                spawn(async move {
                    sleep(Duration::from_millis(wait)).await;
                    start(&devices, options()).await.ok()
                })
            };
            let (a, b) = (begin(0, 0), begin(1, (seed - 10) * 40));
            let (a, b) = (a.await, b.await);
            assert!(a.is_none() || b.is_none(), "seed {seed}: both have it");
            one += u32::from(a.is_some() || b.is_some());
        });
    }
    assert!(one > 10, "{one} of 30 had it");
}

#[test]
fn an_array_without_its_witness_continues_while_nothing_else_is_missing() {
    simulate(5, async {
        let rig = Rig::new(Layout::Mirror, 2).await;
        let array = start(&rig.disks, options()).await.expect("assembled without its witness");
        let (io, model) = opened(&array).await;
        model.write(&*io, 0, 8).await.expect("written");
        let device = Arc::clone(&rig.witness) as Arc<dyn BlockDevice>;
        assert!(array.offer(device).await.expect("it is back"));
        reach(&rig.half(1), false);
        model.write(&*io, 0, 8).await.expect("the witness records what is missing");
        let status = array.status().await.expect("status");
        assert_eq!(status.members[1].condition, Condition::Offline, "{status:?}");
        // That is recorded: the witness fails again, and nothing else does.
        reach(&[Arc::clone(&rig.witness)], false);
        model.write(&*io, 8, 8).await.expect("written");
        array.stop().await.expect("stopped");
    });
}
