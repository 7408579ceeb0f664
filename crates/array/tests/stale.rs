//! Members that others have left behind, and members that were rolled back.

mod common;

use common::{Disk, Model, degraded, devices, disks, make, options, simulate, start};
use futures_util::future::{Either, select};
use longhaul_array::{ArrayDevice, ArrayError, Condition, Health, Known, Layout, Memory, assemble_with};
use longhaul_block::{BlockDevice, BlockIo};
use longhaul_engine::{Engine, sleep};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uuid::Uuid;

const UNIT: u64 = 16 << 10;
const SIZE: u64 = 3 << 20;
/// Every layout at the widths at which it may continue without most of its members, and at one at
/// which it may not.
const SHAPES: [(Layout, usize); 12] = [
    (Layout::Mirror, 2),
    (Layout::Mirror, 3),
    (Layout::Mirror, 4),
    (Layout::StripeMirror, 2),
    (Layout::StripeMirror, 4),
    (Layout::Parity, 2),
    (Layout::Parity, 3),
    (Layout::Parity, 4),
    (Layout::DoubleParity, 3),
    (Layout::DoubleParity, 4),
    (Layout::DoubleParity, 5),
    (Layout::Stripe, 2),
];

async fn opened(array: &ArrayDevice) -> (Rc<dyn BlockIo>, Model) {
    (array.open().await.expect("opened"), Model::new(array.info().size))
}

/// Writes every block once.
async fn fill(io: &dyn BlockIo, model: &Model) {
    for first in (0..model.blocks()).step_by(16) {
        model.write(io, first, 16.min(model.blocks() - first)).await.expect("written");
    }
}

#[test]
fn members_left_behind_do_not_start_on_their_own() {
    let (mut refused, mut current) = (0, 0);
    for (layout, width) in SHAPES {
        for left in 1..(1_u32 << width) - 1 {
            simulate(u64::from(left), async {
                let (disks, _power) = disks(width, SIZE);
                make(&disks, layout, UNIT).await;
                let array = start(&disks, options()).await.expect("assembled");
                let (io, model) = opened(&array).await;
                model.write(&*io, 0, 8).await.expect("written");
                let (behind, ahead): (Vec<_>, Vec<_>) =
                    (0..width).partition(|index| left & (1 << index) != 0);
                // If the members do not suffice, a write that needs none of the missing ones may
                // still succeed.
                let redundancy = array.status().await.expect("status").geometry.redundancy();
                let enough = match layout {
                    Layout::StripeMirror => {
                        (0..width).step_by(2).all(|first| ahead.iter().any(|index| index / 2 == first / 2))
                    }
                    _ => behind.len() <= redundancy,
                };
                behind.iter().for_each(|index| disks[*index].unreachable.store(true, SeqCst));
                let went_on = model.write(&*io, 0, 8).await.is_ok() && io.flush().await.is_ok();
                drop(array.stop().await);
                behind.iter().for_each(|index| disks[*index].unreachable.store(false, SeqCst));
                let of = |indices: &[usize]| -> Vec<Arc<Disk>> {
                    indices.iter().map(|index| Arc::clone(&disks[*index])).collect()
                };
                match start(&of(&behind), options()).await {
                    Ok(_) => {
                        assert!(!went_on, "{layout} of {width}: {behind:?} begin, and {ahead:?} are newer");
                        current += 1;
                    }
                    Err(e) => refused += u32::from(matches!(e, ArrayError::Outdated { .. })),
                }
                if went_on && enough {
                    let array =
                        start(&of(&ahead), options()).await.expect("those that have everything begin");
                    let io = array.open().await.expect("opened");
                    model.check(&*io).await.expect("read");
                }
            });
        }
    }
    // Both cases have occurred.
    assert!(refused > 30 && current > 5, "{refused} refused, {current} current");
}

/// Two members: B misses a flushed write, and returns alone.
async fn older_and_newer() -> (Arc<Disk>, Arc<Disk>, Model) {
    let (disks, _power) = disks(2, SIZE);
    make(&disks, Layout::Mirror, UNIT).await;
    let array = start(&disks, options()).await.expect("assembled");
    let (io, model) = opened(&array).await;
    disks[1].unreachable.store(true, SeqCst);
    model.write(&*io, 0, 8).await.expect("written");
    io.flush().await.expect("flushed");
    array.stop().await.expect("stopped");
    disks[1].unreachable.store(false, SeqCst);
    (Arc::clone(&disks[0]), Arc::clone(&disks[1]), model)
}

#[test]
fn a_newer_member_that_returns_halts_the_older_set_and_is_not_written() {
    simulate(2, async {
        let (newer, older, model) = older_and_newer().await;
        let alone = [Arc::clone(&older)];
        let refused = start(&alone, options()).await.expect_err("refused").to_string();
        assert!(refused.contains("members 0 are not there") && refused.contains("--degraded"), "{refused}");
        let array = start(&alone, degraded()).await.expect("a person has said so");
        let before = newer.peek(0, SIZE as usize);
        let device = || Arc::clone(&newer) as Arc<dyn BlockDevice>;
        let replaced = array.replace(0, device(), false).await.expect_err("refused").to_string();
        let added = array.add_spare(device(), false).await.expect_err("refused").to_string();
        for text in [replaced, added] {
            assert!(text.contains("--force overwrites it"), "{text}");
        }
        assert!(array.offer(Arc::clone(&newer) as Arc<dyn BlockDevice>).await.expect("offered"));
        array.wait_healthy().await.expect_err("halted");
        let status = array.status().await.expect("status");
        assert_eq!(status.health, Health::Halted, "{status:?}");
        assert!(status.detail.contains("member 0 (disk0) is back and is"), "{}", status.detail);
        assert_eq!(status.members[0].condition, Condition::Offline, "it is not condemned");
        drop(array.stop().await);
        assert!(newer.peek(0, SIZE as usize) == before, "it was written to");
        // Neither of the two is taken for the successor of the other.
        let both = [Arc::clone(&newer), Arc::clone(&older)];
        let refused = start(&both, options()).await.expect_err("refused").to_string();
        assert!(refused.contains("were used apart from each other"), "{refused}");
        // The array starts without the older one, which is then added by force.
        let array = start(&both[..1], options()).await.expect("assembled");
        let io = array.open().await.expect("opened");
        model.check(&*io).await.expect("flushed data is there");
        let device = || Arc::clone(&older) as Arc<dyn BlockDevice>;
        let refused = array.replace(1, device(), false).await.expect_err("refused").to_string();
        assert!(refused.contains("--force overwrites it"), "{refused}");
        array.replace(1, device(), true).await.expect("replaced");
        array.wait_healthy().await.expect("rebuilt");
        newer.unreachable.store(true, SeqCst);
        model.check(&*io).await.expect("read");
    });
}

/// How the session ends in which an older image of a member is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stopped,
    Crashed,
}

/// Restores a member's older image: from when the array was stopped, or taken while it ran.
fn roll_back(layout: Layout, width: usize, end: End, while_running: bool) -> (Vec<Arc<Disk>>, Model) {
    let (disks, _power) = disks(width, SIZE);
    let model = simulate(3, async {
        make(&disks, layout, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        let (io, model) = opened(&array).await;
        fill(&*io, &model).await;
        sleep(Duration::from_secs(10)).await;
        if while_running {
            disks[1].keep(0, SIZE);
            fill(&*io, &model).await;
        }
        array.stop().await.expect("stopped");
        model
    });
    if !while_running || end == End::Crashed {
        simulate(4, async {
            if !while_running {
                disks[1].keep(0, SIZE);
            }
            let array = start(&disks, options()).await.expect("assembled");
            let io = array.open().await.expect("opened");
            fill(&*io, &model).await;
            io.flush().await.expect("flushed");
            // No region is marked any more.
            sleep(Duration::from_secs(20)).await;
            if end == End::Stopped {
                array.stop().await.expect("stopped");
            }
        });
    }
    model.crashed();
    disks[1].give_back();
    (disks, model)
}

const REDUNDANT: [(Layout, usize); 6] = [
    (Layout::Mirror, 2),
    (Layout::Mirror, 3),
    (Layout::StripeMirror, 4),
    (Layout::Parity, 2),
    (Layout::Parity, 4),
    (Layout::DoubleParity, 4),
];

#[test]
fn a_member_that_was_rolled_back_is_rebuilt() {
    for (layout, width) in REDUNDANT {
        for (end, while_running) in [(End::Stopped, false), (End::Stopped, true), (End::Crashed, false)] {
            let case = format!("{layout} of {width}, {end:?}, image while running: {while_running}");
            let (disks, model) = roll_back(layout, width, end, while_running);
            simulate(5, async {
                let array = start(&disks, options()).await.expect("assembled");
                let io = array.open().await.expect("opened");
                let member = array.status().await.expect("status").members.remove(1);
                assert_ne!(member.condition, Condition::Active, "{case}");
                model.check(&*io).await.expect("read");
                array.wait_healthy().await.expect("rebuilt");
                let report = array.scrub().await.expect("scrubbed");
                assert_eq!(
                    (report.lost, report.repaired, report.disagreeing),
                    (0, 0, 0),
                    "{case}: {report:?}"
                );
                disks[0].unreachable.store(true, SeqCst);
                model.check(&*io).await.unwrap_or_else(|e| panic!("{case}: {e}"));
            });
        }
    }
}

#[test]
fn a_stripe_with_a_member_that_was_rolled_back_is_refused() {
    for end in [End::Stopped, End::Crashed] {
        let (disks, _model) = roll_back(Layout::Stripe, 2, end, false);
        simulate(6, async {
            let refused = start(&disks, options()).await.expect_err("refused").to_string();
            assert!(
                refused.contains("1 (its superblock has generation") && refused.contains("rolled back"),
                "{refused}"
            );
        });
    }
}

/// An image of the same session and generation: heartbeats reveal it.
#[test]
fn after_a_crash_a_member_with_an_old_heartbeat_is_rebuilt() {
    for (layout, width) in REDUNDANT {
        let (disks, _power) = disks(width, SIZE);
        let model = simulate(7, async {
            make(&disks, layout, UNIT).await;
            let array = start(&disks, options()).await.expect("assembled");
            let (io, model) = opened(&array).await;
            sleep(Duration::from_secs(10)).await;
            disks[1].keep(0, SIZE);
            fill(&*io, &model).await;
            io.flush().await.expect("flushed");
            sleep(Duration::from_secs(3600)).await;
            model
        });
        model.crashed();
        disks[1].give_back();
        simulate(8, async {
            let array = start(&disks, options()).await.expect("assembled");
            let member = array.status().await.expect("status").members.remove(1);
            assert_ne!(member.condition, Condition::Active, "{layout} of {width}");
            array.wait_healthy().await.expect("rebuilt");
            disks[0].unreachable.store(true, SeqCst);
            let io = array.open().await.expect("opened");
            model.check(&*io).await.unwrap_or_else(|e| panic!("{layout} of {width}: {e}"));
        });
    }
}

/// All members answer again after an hour, and the machine crashes before the slowest one has
/// confirmed a heartbeat: that one does not count as rolled back.
#[test]
fn after_all_members_have_hung_the_slowest_does_not_count_as_rolled_back() {
    for (layout, width) in REDUNDANT {
        let (disks, _power) = disks(width, SIZE);
        let engine = Engine::simulated(15).expect("engine");
        let (array, model) = engine.block_on(async {
            make(&disks, layout, UNIT).await;
            let array = start(&disks, options()).await.expect("assembled");
            let (io, model) = opened(&array).await;
            fill(&*io, &model).await;
            io.flush().await.expect("flushed");
            (array, model)
        });
        engine.suspend(Duration::from_secs(3600));
        disks[1].silent.store(true, SeqCst);
        engine.block_on(sleep(options().heartbeat * 2));
        drop((array, engine));
        disks[1].silent.store(false, SeqCst);
        simulate(16, async {
            let array = start(&disks, options()).await.expect("assembled");
            let member = array.status().await.expect("status").members.remove(1);
            assert_eq!(member.condition, Condition::Active, "{layout} of {width}: {}", member.reason);
            let io = array.open().await.expect("opened");
            model.check(&*io).await.unwrap_or_else(|e| panic!("{layout} of {width}: {e}"));
        });
    }
}

/// The first heartbeat on a member is there before the superblocks record it, so an image of the
/// moment at which its rebuild was complete has one.
#[test]
fn a_new_member_that_was_rolled_back_to_the_end_of_its_rebuild_is_rebuilt() {
    for (layout, width) in REDUNDANT {
        let (mut disks, power) = disks(width, SIZE);
        let new = Arc::new(Disk::new("new", SIZE, &power));
        let model = simulate(7, async {
            make(&disks, layout, UNIT).await;
            let array = start(&disks, options()).await.expect("assembled");
            let (io, model) = opened(&array).await;
            // In between two heartbeats.
            sleep(options().heartbeat * 5 / 2).await;
            array.replace(1, Arc::clone(&new) as Arc<dyn BlockDevice>, false).await.expect("replaced");
            array.wait_healthy().await.expect("rebuilt");
            new.keep(0, SIZE);
            fill(&*io, &model).await;
            io.flush().await.expect("flushed");
            sleep(Duration::from_secs(3600)).await;
            model
        });
        model.crashed();
        new.give_back();
        disks[1] = new;
        simulate(8, async {
            let array = start(&disks, options()).await.expect("assembled");
            let member = array.status().await.expect("status").members.remove(1);
            assert_ne!(member.condition, Condition::Active, "{layout} of {width}");
            let io = array.open().await.expect("opened");
            model.check(&*io).await.expect("read");
        });
    }
}

#[test]
fn a_member_that_was_rolled_back_while_offline_is_rebuilt() {
    for same_session in [true, false] {
        simulate(9, async {
            let (disks, _power) = disks(3, SIZE);
            make(&disks, Layout::Parity, UNIT).await;
            let mut array = start(&disks, options()).await.expect("assembled");
            let (mut io, model) = opened(&array).await;
            sleep(Duration::from_secs(10)).await;
            disks[1].keep(0, SIZE);
            if !same_session {
                array.stop().await.expect("stopped");
                array = start(&disks, options()).await.expect("assembled");
                io = array.open().await.expect("opened");
            }
            fill(&*io, &model).await;
            // The member has all of that, and none of it is marked any more.
            sleep(Duration::from_secs(20)).await;
            disks[1].unreachable.store(true, SeqCst);
            model.write(&*io, 0, 3).await.expect("written");
            while array.status().await.expect("status").members[1].condition != Condition::Offline {
                sleep(Duration::from_millis(100)).await;
            }
            disks[1].give_back();
            disks[1].unreachable.store(false, SeqCst);
            array.wait_healthy().await.expect("it is back");
            disks[0].unreachable.store(true, SeqCst);
            model.check(&*io).await.expect("read");
        });
    }
}

/// A damaged superblock does not count as an old one.
#[test]
fn a_member_whose_newest_superblock_is_damaged_stays() {
    simulate(10, async {
        let (disks, _power) = disks(3, SIZE);
        make(&disks, Layout::Parity, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        let generation = array.status().await.expect("status").generation;
        array.stop().await.expect("stopped");
        // The stop has written two more.
        disks[1].flip(if generation % 2 == 0 { 0 } else { 64 << 10 } + 200);
        let array = start(&disks, options()).await.expect("assembled");
        assert_eq!(array.status().await.expect("status").health, Health::Healthy);
    });
}

/// Offsets of the superblock copies, and of the generation in a copy.
const COPIES: [u64; 2] = [0, 64 << 10];
const GENERATION: usize = 160;

/// A crash has interrupted the write of the newest superblock, and the next one comes during the
/// assembly, at each of its writes: the intact copy is not overwritten.
#[test]
fn a_member_survives_repeated_interrupted_superblock_writes() {
    let mut crashed = 0;
    for writes in 0..32 {
        let (disks, power) = disks(8, SIZE);
        simulate(12, async {
            make(&disks, Layout::DoubleParity, UNIT).await;
            let array = start(&disks, options()).await.expect("assembled");
            let (io, model) = opened(&array).await;
            model.write(&*io, 0, 8).await.expect("written");
        });
        let generation = |at: u64| {
            let block = disks[0].peek(at, 512);
            u64::from_le_bytes(block[GENERATION..GENERATION + 8].try_into().expect("eight bytes"))
        };
        let newest = COPIES.into_iter().max_by_key(|at| generation(*at)).expect("two");
        disks[0].flip(newest + 200);
        power.light(writes, writes);
        let engine = Engine::simulated(writes).expect("engine");
        engine.block_on(async {
            let starting = pin!(start(&disks, options()));
            crashed += u32::from(matches!(select(starting, pin!(power.lost())).await, Either::Right(_)));
        });
        drop(engine);
        power.restore();
        simulate(13, async {
            let array = start(&disks, options()).await;
            let array = array.unwrap_or_else(|e| panic!("after {writes} writes: {e}"));
            let status = array.status().await.expect("status");
            assert_eq!(status.health, Health::Healthy, "after {writes} writes: {status:?}");
        });
    }
    assert!(crashed > 20, "{crashed} crashes while it was assembled");
}

/// The record of a host, in memory.
#[derive(Default)]
struct Recorded(Arc<Mutex<Option<Known>>>);

impl Memory for Recorded {
    fn recall(&self) -> Option<Known> {
        self.0.lock().unwrap().clone()
    }

    fn keep(&self, known: Known) -> Pin<Box<dyn Future<Output = ()>>> {
        *self.0.lock().unwrap() = Some(known);
        Box::pin(std::future::ready(()))
    }
}

#[test]
fn a_host_does_not_start_with_less_than_it_has_recorded() {
    simulate(11, async {
        let (disks, _power) = disks(3, SIZE);
        make(&disks, Layout::Parity, UNIT).await;
        let recorded = Arc::new(Mutex::new(None));
        let memory = || Some(Arc::new(Recorded(Arc::clone(&recorded))) as Arc<dyn Memory>);
        disks.iter().for_each(|disk| disk.keep(0, SIZE));
        let array = assemble_with(&devices(&disks), options(), Uuid::from_u128(1), memory()).await;
        let array = array.expect("assembled");
        let (io, model) = opened(&array).await;
        model.write(&*io, 0, 8).await.expect("written");
        disks[2].unreachable.store(true, SeqCst);
        model.write(&*io, 0, 8).await.expect("written");
        let known: Known = recorded.lock().unwrap().clone().expect("recorded");
        assert_eq!(known.active.len(), 2, "the loss of a member is recorded before a write relies on it");
        array.stop().await.expect("stopped");
        disks[2].unreachable.store(false, SeqCst);
        // All members are rolled back, and do not know the recorded generation.
        disks.iter().for_each(|disk| disk.give_back());
        let again = assemble_with(&devices(&disks), options(), Uuid::from_u128(2), memory()).await;
        let refused = again.expect_err("refused").to_string();
        assert!(
            refused.contains("this host has last recorded generation") && refused.contains("members 0, 1"),
            "{refused}"
        );
        let again = assemble_with(&devices(&disks), degraded(), Uuid::from_u128(3), memory()).await;
        again.expect("a person has said so");
    });
}

/// A host is suspended, another takes the array over, and the first one resumes. Its monotonic
/// clock has not advanced.
fn takes_over(layout: Layout, stops: bool, still: impl FnOnce(&Engine)) {
    let (disks, _power) = disks(3, SIZE);
    let first = Engine::simulated(12).expect("engine");
    let (array, io) = first.block_on(async {
        make(&disks, layout, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        let (io, model) = opened(&array).await;
        model.write(&*io, 0, 8).await.expect("written");
        io.flush().await.expect("flushed");
        (array, io)
    });
    let others = disks.clone();
    let other = std::thread::spawn(move || {
        simulate(13, async move {
            let array = start(&others, options()).await.expect("taken over");
            let (io, model) = opened(&array).await;
            model.write(&*io, 0, 8).await.expect("written");
            if stops {
                array.stop().await.expect("stopped");
            }
        });
    });
    other.join().expect("the other host");
    let before: Vec<Vec<u8>> = disks.iter().map(|disk| disk.peek(0, SIZE as usize)).collect();
    still(&first);
    first.block_on(async {
        let model = Model::new(array.info().size);
        let failed = model.write(&*io, 0, 8).await.expect_err("it is another's").to_string();
        assert!(failed.contains("has taken it over"), "{failed}");
        assert_eq!(array.status().await.expect("status").health, Health::Halted);
    });
    for (disk, before) in disks.iter().zip(before) {
        assert!(disk.peek(0, SIZE as usize) == before, "{layout}: it was written to (stopped: {stops})");
    }
}

#[test]
fn a_suspended_host_writes_nothing_after_a_takeover() {
    for layout in [Layout::Mirror, Layout::Parity, Layout::Stripe] {
        for stops in [false, true] {
            takes_over(layout, stops, |engine| engine.suspend(Duration::from_secs(60)));
        }
    }
}

#[test]
fn a_paused_machine_whose_wall_clock_jumps_writes_nothing_after_a_takeover() {
    for stops in [false, true] {
        takes_over(Layout::Mirror, stops, |engine| engine.pause(Duration::from_secs(60)));
    }
}

#[test]
fn a_suspended_host_continues_after_a_check_if_nothing_took_over() {
    let (disks, _power) = disks(3, SIZE);
    let engine = Engine::simulated(14).expect("engine");
    let (array, io, model) = engine.block_on(async {
        make(&disks, Layout::Parity, UNIT).await;
        let array = start(&disks, options()).await.expect("assembled");
        let (io, model) = opened(&array).await;
        model.write(&*io, 0, 8).await.expect("written");
        (array, io, model)
    });
    engine.suspend(Duration::from_secs(3600));
    engine.block_on(async {
        model.write(&*io, 0, 8).await.expect("it is still its own");
        assert_eq!(array.status().await.expect("status").health, Health::Healthy);
        model.check(&*io).await.expect("read");
    });
}
