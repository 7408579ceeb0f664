//! Several members under rebuild at a time, and data beyond redundancy: it is reported exactly, and
//! never invented.

mod common;

use common::rig::{Rig, SIZE, UNIT, rig};
use common::{Disk, Model, disks, make, options, simulate, start};
use longhaul_array::{BLOCK, Condition, Extent, Geometry, Layout, Options, ScrubReport};
use longhaul_block::{BlockDevice, IoError, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, sleep};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Offset of a member's journal (docs/array-safety.md, "On a member").
const JOURNAL_AT: u64 = 256 << 10;

impl Rig {
    async fn geometry(&self) -> Geometry {
        self.array.status().await.expect("status").geometry
    }

    /// Offset of a row on a member.
    async fn row_at(&self, row: u64) -> u64 {
        let geometry = self.geometry().await;
        geometry.end() - (geometry.rows - row) * geometry.unit
    }

    async fn scrub(&self) -> ScrubReport {
        let report = self.array.scrub().await.expect("scrubbed");
        assert!(report.finished, "{report:?}");
        report
    }

    async fn lost(&self) -> (Vec<(u64, u64)>, u64) {
        let status = self.array.status().await.expect("status");
        (status.lost.iter().map(|Extent { offset, len }| (*offset, *len)).collect(), status.lost_bytes)
    }

    async fn write(&self, at: u64, len: u64, byte: u8) {
        let src = Buf::copy_of(&vec![byte; len as usize]);
        self.io.write(at, src, WriteFlags::default()).await.expect("written");
    }

    async fn read(&self, at: u64) -> Result<u8, IoError> {
        let block = self.io.read(at, BufMut::zeroed(BLOCK as usize)).await?;
        assert!(block.iter().all(|byte| *byte == block[0]), "one write");
        Ok(block[0])
    }

    /// Lets members lose the writes of `write`, together with their checksums.
    async fn lose_writes(&self, members: &[usize], write: impl AsyncFnOnce()) {
        let sums_at = JOURNAL_AT + self.geometry().await.journal;
        // Acknowledged data may be in the journal only for a while.
        sleep(Duration::from_secs(20)).await;
        members.iter().for_each(|member| self.disks[*member].keep(sums_at, SIZE - sums_at));
        write().await;
        sleep(Duration::from_secs(20)).await;
        members.iter().for_each(|member| self.disks[*member].give_back());
    }
}

/// An array of larger disks, so that the rebuild of a member takes about a minute and a half.
async fn slow(layout: Layout, width: usize) -> Rig {
    const LARGE: u64 = 24 << 20;
    let (disks, power) = disks(width, LARGE);
    make(&disks, layout, UNIT).await;
    let idle = Duration::from_millis(100);
    let grace = Duration::from_secs(5);
    let slow = Options { rebuild_rate: Some(256 << 10), intent_idle: idle, spare_grace: grace, ..options() };
    let array = start(&disks, slow).await.expect("assembled");
    let io = array.open().await.expect("opened");
    let model = Model::new(array.info().size);
    Rig { disks, power, array, io, model }
}

fn is_rebuilding(condition: Condition) -> bool {
    matches!(condition, Condition::Rebuilding { partial: false, .. })
}

#[test]
fn a_member_is_resynced_while_another_is_rebuilt() {
    for (seed, layout, width) in
        [(1, Layout::DoubleParity, 4), (2, Layout::Mirror, 3), (3, Layout::StripeMirror, 4)]
    {
        simulate(seed, async {
            let rig = slow(layout, width).await;
            let new = Arc::new(Disk::new("new", 24 << 20, &rig.power));
            rig.array.replace(0, new as Arc<dyn BlockDevice>, false).await.expect("replaced");
            sleep(Duration::from_secs(10)).await;
            rig.disks[2].unreachable.store(true, SeqCst);
            for block in 0..4 {
                rig.model.write(&*rig.io, block * 4, 2).await.expect("written");
            }
            rig.until(2, Condition::Offline).await;
            let before = rig.condition(0).await;
            rig.disks[2].unreachable.store(false, SeqCst);
            sleep(Duration::from_secs(15)).await;
            assert_eq!(rig.condition(2).await, Condition::Active, "{layout}");
            // The other rebuild was overtaken, and keeps its progress.
            let (Condition::Rebuilding { done: before, .. }, Condition::Rebuilding { done, .. }) =
                (before, rig.condition(0).await)
            else {
                panic!("{layout}: {:?}", rig.condition(0).await);
            };
            assert!(before > 0 && done >= before, "{layout}: {before} {done}");
            rig.until(0, Condition::Active).await;
            assert!(rig.array.status().await.expect("status").rebuild.is_none(), "no rebuild has begun");
            rig.model.check(&*rig.io).await.expect("read");
            assert_eq!(rig.scrub().await.wrong, vec![0; width]);
        });
    }
}

#[test]
fn a_spare_is_used_during_a_rebuild_and_the_shortest_rebuild_is_first() {
    simulate(4, async {
        let rig = slow(Layout::DoubleParity, 5).await;
        let disk = |name: &str| Arc::new(Disk::new(name, 24 << 20, &rig.power)) as Arc<dyn BlockDevice>;
        rig.array.add_spare(disk("spare"), false).await.expect("added");
        rig.array.replace(3, disk("new"), false).await.expect("replaced");
        sleep(Duration::from_secs(10)).await;
        rig.disks[1].unreachable.store(true, SeqCst);
        rig.model.write(&*rig.io, 0, 12).await.expect("written");
        rig.until(1, Condition::Offline).await;
        sleep(Duration::from_secs(8)).await;
        let status = rig.array.status().await.expect("status");
        assert!(is_rebuilding(status.members[3].condition), "{status:?}");
        assert_eq!(status.members[1].device.as_deref(), Some("spare"), "{status:?}");
        // It is not begun before the other one is done, although its index is lower.
        let mut done = 0;
        loop {
            let members = rig.array.status().await.expect("status").members;
            let Condition::Rebuilding { done: now, .. } = members[3].condition else { break };
            assert!(now >= done, "progress is kept");
            done = now;
            assert_eq!(members[1].condition, Condition::Rebuilding { done: 0, partial: false });
            sleep(Duration::from_millis(500)).await;
        }
        rig.array.wait_healthy().await.expect("healthy");
        rig.model.check(&*rig.io).await.expect("read");
    });
}

#[test]
fn waiting_for_a_member_does_not_wait_for_others() {
    simulate(5, async {
        let rig = slow(Layout::DoubleParity, 4).await;
        rig.disks[1].unreachable.store(true, SeqCst);
        rig.model.write(&*rig.io, 0, 8).await.expect("written");
        rig.until(1, Condition::Offline).await;
        let new = Arc::new(Disk::new("new", 24 << 20, &rig.power));
        rig.array.replace(0, new as Arc<dyn BlockDevice>, false).await.expect("replaced");
        rig.array.wait_rebuilt(0).await.expect("rebuilt");
        assert_eq!(rig.condition(1).await, Condition::Offline);
        // A member that stays offline is not waited for without end.
        let why = rig.array.wait_rebuilt(1).await.expect_err("offline").to_string();
        assert!(why.contains("member 1 (disk1) is Offline"), "{why}");
        assert!(rig.array.wait_rebuilt(7).await.is_err());
    });
}

#[test]
fn a_member_with_one_unreadable_superblock_returns() {
    for copy in [0, 64 << 10] {
        simulate(6, async {
            let rig = rig(Layout::Parity, 3, options()).await;
            rig.disks[1].unreachable.store(true, SeqCst);
            rig.model.write(&*rig.io, 0, 8).await.expect("written");
            rig.until(1, Condition::Offline).await;
            rig.disks[1].bad.lock().unwrap().insert(copy / 512);
            rig.disks[1].unreachable.store(false, SeqCst);
            rig.until(1, Condition::Active).await;
            rig.scrub().await;
            assert!(rig.disks[1].bad.lock().unwrap().is_empty(), "it was written again");
        });
    }
}

/// The first stripes of three members have parity on the last, the second and the first
/// (left-symmetric).
#[test]
fn losses_are_reported_exactly_until_they_are_written() {
    simulate(7, async {
        let rig = rig(Layout::Parity, 3, options()).await;
        rig.fill().await;
        let stripe = 2 * UNIT;
        // The rebuilt member has data of stripe 6, and parity of stripe 7.
        for (row, block) in [(6, 2), (7, 1)] {
            let at = rig.row_at(row).await + block * BLOCK;
            rig.disks[0].bad.lock().unwrap().insert(at / 512);
        }
        let new = Arc::new(Disk::new("new", SIZE, &rig.power));
        rig.array.replace(1, new as Arc<dyn BlockDevice>, false).await.expect("replaced");
        rig.array.wait_rebuilt(1).await.expect("rebuilt");
        let [both, other, one] =
            [6 * stripe + 2 * BLOCK, 6 * stripe + UNIT + 2 * BLOCK, 7 * stripe + UNIT + BLOCK];
        let lost = (vec![(both, BLOCK), (other, BLOCK), (one, BLOCK)], 3 * BLOCK);
        assert_eq!(rig.lost().await, lost);
        // All other blocks are readable, and a scrub finds the same losses again, none twice.
        for block in 0..rig.model.blocks() {
            let is_lost = lost.0.iter().any(|(at, _)| *at == block * BLOCK);
            if is_lost {
                assert!(rig.read(block * BLOCK).await.is_err());
            } else {
                assert!(rig.model.read(&*rig.io, block, 1).await.expect("read"));
            }
        }
        for _ in 0..2 {
            assert_eq!(rig.scrub().await.lost, 3);
            assert_eq!(rig.lost().await, lost);
        }
        // Written, and zeroed as a whole.
        rig.write(one, BLOCK, 7).await;
        rig.write(both, BLOCK, 8).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(rig.lost().await, (vec![(other, BLOCK)], BLOCK));
        assert_eq!(rig.read(one).await.expect("there"), 7);
        assert_eq!(rig.read(both).await.expect("there"), 8);
        rig.io.write_zeroes(6 * stripe, stripe, ZeroFlags::default()).await.expect("zeroed");
        assert_eq!(rig.lost().await, (vec![], 0));
        assert_eq!((rig.read(both).await.expect("there"), rig.read(other).await.expect("there")), (0, 0));
        assert_eq!((rig.scrub().await.lost, rig.lost().await.1), (0, 0));
    });
}

/// Writes beside or onto a lost block are readable, and lost blocks stay lost: no reconstruction
/// yields other content for them.
#[test]
fn writes_beside_lost_blocks_succeed_and_invent_nothing() {
    for (layout, width) in [(Layout::Parity, 3), (Layout::Parity, 5), (Layout::DoubleParity, 5)] {
        simulate(12, async {
            let rig = rig(layout, width, options()).await;
            rig.fill().await;
            let (row, units) = (2 * width as u64, rig.geometry().await.data_units() as u64);
            let stripe = units * UNIT;
            // The last member has P of this stripe, and the first data or Q.
            let at = rig.row_at(row).await + 2 * BLOCK;
            let bad = if layout == Layout::Parity { vec![0] } else { vec![2, 3] };
            for member in bad {
                rig.disks[member].bad.lock().unwrap().insert(at / 512);
            }
            let new = Arc::new(Disk::new("new", SIZE, &rig.power));
            rig.array.replace(1, new as Arc<dyn BlockDevice>, false).await.expect("replaced");
            rig.array.wait_rebuilt(1).await.expect("rebuilt");
            let (lost, _) = rig.lost().await;
            assert!(lost.len() > 1, "{layout} {lost:?}");
            // One of the lost blocks, and everything around them.
            let (first, last) = (lost[0].0, lost[1].0);
            let is_lost = |at: u64| lost.iter().any(|(lost, _)| *lost == at);
            rig.write(first, BLOCK, 1).await;
            let blocks: Vec<u64> = (0..stripe / BLOCK).map(|block| row * stripe + block * BLOCK).collect();
            for block in blocks.iter().filter(|block| !is_lost(**block)) {
                rig.write(*block, BLOCK, 2).await;
            }
            sleep(Duration::from_secs(10)).await;
            assert_eq!(rig.lost().await.0, lost[1..], "{layout}");
            for round in 0..3 {
                assert_eq!(rig.read(first).await.expect("there"), 1, "{layout}");
                for block in blocks.iter().filter(|block| !is_lost(**block)) {
                    assert_eq!(rig.read(*block).await.expect("there"), 2, "{layout}");
                }
                assert!(rig.read(last).await.is_err(), "{layout}: made up");
                if round == 0 {
                    rig.scrub().await;
                } else if round == 1 {
                    // The member with parity is rebuilt from the readable blocks.
                    let new = Arc::new(Disk::new("p", SIZE, &rig.power));
                    let place = rig.array.replace(width - 1, new as Arc<dyn BlockDevice>, false);
                    place.await.expect("replaced");
                    rig.array.wait_rebuilt(width - 1).await.expect("rebuilt");
                }
            }
            // The remaining lost blocks are written: everything is readable and redundant again.
            for (block, _) in &lost[1..] {
                rig.write(*block, BLOCK, 3).await;
            }
            sleep(Duration::from_secs(10)).await;
            assert_eq!((rig.lost().await.1, rig.scrub().await.lost), (0, 0), "{layout}");
            rig.disks[2].unreachable.store(true, SeqCst);
            for block in &blocks {
                let is = if *block == first { 1 } else { 2 + u8::from(is_lost(*block)) };
                assert_eq!(rig.read(*block).await.expect("there"), is, "{layout}");
            }
        });
    }
}

#[test]
fn content_of_an_offline_member_is_not_lost() {
    simulate(8, async {
        let idle = Options { intent_idle: Duration::from_millis(100), ..options() };
        let rig = rig(Layout::DoubleParity, 4, idle).await;
        rig.fill().await;
        sleep(Duration::from_secs(5)).await;
        // In the first stripe, the members have data, data, Q... and parity last.
        let at = rig.row_at(4).await;
        rig.disks[0].bad.lock().unwrap().insert(at / 512);
        rig.disks[2].unreachable.store(true, SeqCst);
        rig.model.write(&*rig.io, rig.model.blocks() - 8, 8).await.expect("written");
        rig.until(2, Condition::Offline).await;
        let new = Arc::new(Disk::new("new", SIZE, &rig.power));
        rig.array.replace(1, new as Arc<dyn BlockDevice>, false).await.expect("replaced");
        rig.array.wait_rebuilt(1).await.expect("rebuilt");
        assert_eq!(rig.lost().await, (vec![], 0));
        let scrub = rig.scrub().await;
        assert!(scrub.lost == 0 && scrub.waiting > 0, "{scrub:?}");
        rig.disks[2].unreachable.store(false, SeqCst);
        rig.array.wait_healthy().await.expect("healthy");
        assert_eq!((rig.scrub().await.lost, rig.lost().await.1), (0, 0));
        rig.model.check(&*rig.io).await.expect("read");
        let again = rig.scrub().await;
        assert_eq!((again.waiting, again.wrong.iter().sum::<u64>()), (0, 0), "{again:?}");
    });
}

/// A member has lost writes, with their checksums: all of its blocks match, and contradict the
/// others. P and Q, or three copies, identify the member.
#[test]
fn a_member_that_lost_writes_is_identified_by_redundancy() {
    for (layout, width, victim) in [
        // In the first stripe, the members have Q, data, data and P.
        (Layout::DoubleParity, 4, 0),
        (Layout::DoubleParity, 4, 1),
        (Layout::DoubleParity, 4, 2),
        (Layout::DoubleParity, 4, 3),
        (Layout::Mirror, 3, 0),
        (Layout::Mirror, 4, 1),
    ] {
        simulate(9, async {
            let idle = Options { intent_idle: Duration::from_millis(100), ..options() };
            let rig = rig(layout, width, idle).await;
            for unit in 0..rig.geometry().await.stripe() / UNIT {
                rig.write(unit * UNIT, UNIT, 1 + unit as u8).await;
            }
            rig.lose_writes(&[victim], async || {
                for unit in 0..rig.geometry().await.stripe() / UNIT {
                    rig.write(unit * UNIT + BLOCK, BLOCK, 11 + unit as u8).await;
                }
            })
            .await;
            // Everything known about the member was read after the restart.
            let rig = restart(rig).await;
            let scrub = rig.scrub().await;
            let mut wrong = vec![0; width];
            wrong[victim] = 1;
            let found = (scrub.inconsistent, scrub.repaired, scrub.disagreeing, scrub.lost);
            assert_eq!((&scrub.wrong, found), (&wrong, (1, 1, 0, 0)), "{layout} {victim}: {scrub:?}");
            for unit in 0..rig.geometry().await.stripe() / UNIT {
                assert_eq!(rig.read(unit * UNIT + BLOCK).await.expect("read"), 11 + unit as u8, "{layout}");
            }
            sleep(Duration::from_secs(20)).await;
            let again = rig.scrub().await;
            assert_eq!((again.inconsistent, again.disagreeing), (0, 0), "{layout}: {again:?}");
        });
    }
}

/// The same array, with nothing in memory.
async fn restart(rig: Rig) -> Rig {
    let Rig { disks, power, array, io, model } = rig;
    drop(io);
    array.stop().await.expect("stopped");
    let idle = Options { intent_idle: Duration::from_millis(100), ..options() };
    let array = start(&disks, idle).await.expect("assembled");
    let io = array.open().await.expect("opened");
    Rig { disks, power, array, io, model }
}

/// If the wrong block cannot be identified nothing is changed, and the range is reported.
#[test]
fn ambiguous_blocks_are_reported_and_left_alone() {
    for (layout, width, victims, range) in [
        (Layout::Mirror, 2, &[0][..], (BLOCK, BLOCK)),
        (Layout::Mirror, 2, &[1], (BLOCK, BLOCK)),
        (Layout::StripeMirror, 4, &[2], (UNIT + BLOCK, BLOCK)),
        (Layout::Parity, 3, &[0], (0, 2 * UNIT)),
        (Layout::Parity, 3, &[2], (0, 2 * UNIT)),
        (Layout::DoubleParity, 4, &[1, 2], (0, 2 * UNIT)),
        (Layout::Mirror, 4, &[0, 1], (BLOCK, BLOCK)),
    ] {
        simulate(10, async {
            let idle = Options { intent_idle: Duration::from_millis(100), ..options() };
            let rig = rig(layout, width, idle).await;
            let units = rig.geometry().await.stripe() / UNIT;
            for unit in 0..units {
                rig.write(unit * UNIT, UNIT, 1 + unit as u8).await;
            }
            rig.lose_writes(victims, async || {
                for unit in 0..units {
                    rig.write(unit * UNIT + BLOCK, BLOCK, 11 + 7 * unit as u8).await;
                }
            })
            .await;
            let rig = restart(rig).await;
            let at = rig.row_at(0).await;
            let content = || rig.disks.iter().map(|disk| disk.peek(at, UNIT as usize)).collect::<Vec<_>>();
            let before = content();
            for _ in 0..2 {
                let scrub = rig.scrub().await;
                let found = (scrub.disagreeing, scrub.inconsistent, scrub.repaired, scrub.lost);
                assert_eq!(found, (1, 0, 0, 0), "{layout}: {scrub:?}");
                let listed: Vec<(u64, u64)> = scrub.disagreements.iter().map(|e| (e.offset, e.len)).collect();
                assert_eq!(listed, [range], "{layout}");
                assert!(before == content(), "{layout}: something was written");
            }
            // What an operator can do: write the range as a whole, or replace the member at fault.
            if victims.len() > 1 || layout == Layout::StripeMirror {
                rig.write(0, units * UNIT, 9).await;
            } else {
                let new = Arc::new(Disk::new("new", SIZE, &rig.power));
                let place = rig.array.replace(victims[0], new as Arc<dyn BlockDevice>, false);
                place.await.expect("replaced");
                rig.array.wait_rebuilt(victims[0]).await.expect("rebuilt");
                for unit in 0..units {
                    assert_eq!(rig.read(unit * UNIT + BLOCK).await.expect("read"), 11 + 7 * unit as u8);
                }
            }
            sleep(Duration::from_secs(20)).await;
            let scrub = rig.scrub().await;
            assert_eq!((scrub.disagreeing, scrub.unsettled), (0, 0), "{layout}: {scrub:?}");
        });
    }
}

/// Regions with writes under way are not arbitrated.
#[test]
fn a_region_with_writes_under_way_is_not_arbitrated() {
    simulate(11, async {
        let idle = Options { intent_idle: Duration::from_secs(2), ..options() };
        let rig = rig(Layout::Mirror, 2, idle).await;
        rig.write(0, UNIT, 1).await;
        rig.lose_writes(&[1], async || rig.write(BLOCK, BLOCK, 2).await).await;
        let rig = restart(rig).await;
        let writes = async {
            for n in 0..1000 {
                rig.write(UNIT, BLOCK, n as u8).await;
                sleep(Duration::from_millis(20)).await;
            }
        };
        let (scrub, ()) = futures_util::join!(rig.scrub(), writes);
        assert_eq!((scrub.disagreeing, scrub.unsettled, scrub.repaired), (0, 1, 0), "{scrub:?}");
        sleep(Duration::from_secs(5)).await;
        let scrub = rig.scrub().await;
        assert_eq!((scrub.disagreeing, scrub.unsettled), (1, 0), "{scrub:?}");
    });
}
