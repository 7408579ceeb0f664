//! The order in which an array changes its members: each rule matters only if a crash meets another
//! fault at the worst moment, so the order itself is checked, on members with a volatile cache.

mod common;

use common::log::{
    Action, INTENT_AT, Log, LoggedDisk, Op, Record, RecordKind, RecordedCondition, is_flushed, logged,
};
use common::rig::UNIT;
use common::{Disk, Model, cached, make, options, simulate, start};
use futures_util::future::join;
use longhaul_array::{ArrayDevice, Condition, Geometry, Layout, Options, assemble_as};
use longhaul_block::{BlockDevice, BlockIo, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, sleep};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use uuid::Uuid;

/// Bytes of a page of the write-intent bitmap before its bits.
const INTENT_HEAD: u64 = 32;

/// An array of four members that log their operations.
struct Rig {
    disks: Vec<Arc<Disk>>,
    log: Arc<Log>,
    array: Arc<ArrayDevice>,
    io: Rc<dyn BlockIo>,
    model: Model,
    geometry: Geometry,
}

async fn rig(layout: Layout, options: Options) -> Rig {
    let disks = cached(4);
    make(&disks, layout, UNIT).await;
    let log = Arc::new(Log::default());
    let array = assemble_as(&logged(&disks, &log), options, Uuid::from_u128(8)).await.expect("assembled");
    let io = array.open().await.expect("opened");
    let model = Model::new(array.info().size);
    let geometry = array.status().await.expect("status").geometry;
    Rig { disks, log, array, io, model, geometry }
}

impl Rig {
    fn blocks(&self) -> u64 {
        self.geometry.stripe() / 4096
    }

    fn data_at(&self) -> u64 {
        self.geometry.end() - self.geometry.rows * self.geometry.unit
    }

    /// Writes a block of each of these stripes, one after another.
    async fn write_parts(&self, rows: std::ops::Range<u64>) {
        for row in rows {
            self.model.write(&*self.io, row * self.blocks(), 1).await.expect("written");
        }
    }

    async fn until(&self, member: usize, condition: Condition) {
        for _ in 0..10_000 {
            if self.array.status().await.expect("status").members[member].condition == condition {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("member {member} is not {condition:?}");
    }
}

/// Records by position, with the members that hold them durably before `moment`.
fn durable_copies(ops: &[Op], moment: u64) -> BTreeMap<u64, (Record, BTreeSet<usize>)> {
    let mut records = BTreeMap::<u64, (Record, BTreeSet<usize>)>::new();
    for op in ops {
        let Some(record) = op.record() else { continue };
        let copies = &mut records.entry(record.pos).or_insert((record, BTreeSet::new())).1;
        if is_flushed(ops, op, moment) {
            copies.insert(op.member);
        }
    }
    records
}

#[test]
fn a_record_is_on_one_member_more_than_can_be_lost_before_its_write_ends() {
    for layout in [Layout::Parity, Layout::DoubleParity] {
        simulate(81, async {
            let rig = rig(layout, options()).await;
            for row in 0..8 {
                let from = rig.log.now();
                rig.write_parts(row..row + 1).await;
                let records = durable_copies(&rig.log.since(from), rig.log.now());
                let mut data =
                    records.values().filter(|(record, _)| record.kind == RecordKind::Data).peekable();
                assert!(data.peek().is_some(), "{layout}: a part of a stripe goes to the journal first");
                for (record, copies) in data {
                    assert_eq!(copies.len(), rig.geometry.redundancy() + 1, "{layout}: {record:?}");
                }
            }
            sleep(Duration::from_secs(1)).await;
            for (record, copies) in durable_copies(&rig.log.since(0), rig.log.now()).values() {
                assert!(copies.len() > rig.geometry.redundancy(), "{layout}: {record:?} on {copies:?}");
            }
        });
    }
}

/// The first record whose tail is behind another record while the stripe of that one was changed in
/// a volatile cache only. Each stripe has one partial write.
fn leaves_too_early(rig: &Rig, ops: &[Op]) -> Option<String> {
    let records: Vec<(&Op, Record)> = ops.iter().filter_map(|op| Some((op, op.record()?))).collect();
    let changes = |row: u64| {
        let of = move |op: &&Op| op.rows(rig.data_at(), UNIT).is_some_and(|rows| rows.contains(&row));
        ops.iter().filter(of)
    };
    for (op, record) in &records {
        let left = records.iter().map(|(_, left)| left);
        for left in left.filter(|left| left.kind != RecordKind::Mark && left.pos < record.tail) {
            let mut changes = changes(left.row).peekable();
            if changes.peek().is_none() {
                return Some(format!("{record:?} leaves {left:?}, which is nowhere else"));
            }
            if let Some(change) = changes.find(|change| !is_flushed(ops, change, op.begun)) {
                let (member, at) = (change.member, change.offset);
                return Some(format!("{record:?} leaves {left:?}: {at} of member {member} is not flushed"));
            }
        }
    }
    None
}

#[test]
fn the_journal_keeps_records_that_are_in_place_in_a_cache_only() {
    for layout in [Layout::Parity, Layout::DoubleParity] {
        simulate(82, async {
            let rig = rig(layout, options()).await;
            rig.write_parts(0..4).await;
            // Until all of it is in place; shorter than the interval of automatic flushes.
            sleep(Duration::from_secs(1)).await;
            rig.write_parts(4..8).await;
            sleep(Duration::from_secs(1)).await;
            assert_eq!(leaves_too_early(&rig, &rig.log.since(0)), None, "{layout}");
            rig.io.flush().await.expect("flushed");
            rig.write_parts(8..12).await;
            let ops = rig.log.since(0);
            assert_eq!(leaves_too_early(&rig, &ops), None, "{layout}");
            let first = ops.iter().find_map(Op::record).expect("a record");
            let left = ops.iter().filter_map(Op::record).any(|record| record.tail > first.pos);
            assert!(left, "{layout}: the journal drops flushed writes");
        });
    }
}

#[test]
fn no_record_from_before_a_member_was_offline_is_replayed_after_its_return() {
    for layout in [Layout::Parity, Layout::DoubleParity] {
        simulate(83, async {
            let rig = rig(layout, options()).await;
            rig.model.write(&*rig.io, 0, 6 * rig.blocks()).await.expect("whole stripes");
            rig.write_parts(0..4).await;
            rig.disks[2].unreachable.store(true, SeqCst);
            rig.write_parts(0..6).await;
            rig.until(2, Condition::Offline).await;
            let back = rig.log.now();
            rig.disks[2].unreachable.store(false, SeqCst);
            rig.until(2, Condition::Active).await;
            let ops = rig.log.since(0);
            let written = ops.iter().filter_map(Op::record).filter(|record| record.kind != RecordKind::Mark);
            let end = written.map(|record| record.end).max().expect("records");
            let is_active =
                |op: &&Op| op.begun > back && op.condition_of(2) == Some(RecordedCondition::Active);
            let active = ops.iter().find(is_active).expect("the superblock says so").begun;
            let records = durable_copies(&ops, active);
            let passed = records.values().filter(|(_, copies)| copies.len() > rig.geometry.redundancy());
            let tail = passed.map(|(record, _)| record.tail).max().expect("records");
            assert!(tail >= end, "{layout}: the journal begins at {tail}, and has records up to {end}");
        });
    }
}

#[test]
fn a_loss_is_published_on_all_others_before_the_write_that_the_member_missed_ends() {
    for layout in [Layout::Mirror, Layout::StripeMirror, Layout::Parity, Layout::DoubleParity] {
        simulate(84, async {
            let rig = rig(layout, options()).await;
            let stripe = rig.blocks();
            // The region is marked from here on: otherwise the write of a bitmap page would find
            // the loss first.
            rig.model.write(&*rig.io, 0, stripe).await.expect("a whole stripe");
            rig.disks[1].unreachable.store(true, SeqCst);
            let from = rig.log.now();
            rig.model.write(&*rig.io, 0, stripe).await.expect("a whole stripe");
            let (ops, acknowledged) = (rig.log.since(from), rig.log.now());
            let missed = |op: &Op| op.member == 1 && op.rows(rig.data_at(), UNIT).is_some();
            assert!(ops.iter().any(missed), "{layout}: the write concerns the member");
            for member in [0, 2, 3] {
                let said = ops.iter().any(|op| {
                    let is_recorded =
                        op.member == member && op.condition_of(1) == Some(RecordedCondition::Missing);
                    is_recorded && is_flushed(&ops, op, acknowledged)
                });
                assert!(said, "{layout}: member {member} does not record durably that member 1 is missing");
            }
        });
    }
}

#[test]
fn no_intent_bit_is_cleared_before_a_member_has_what_it_missed() {
    for layout in [Layout::Mirror, Layout::StripeMirror, Layout::Parity, Layout::DoubleParity] {
        simulate(85, async {
            let idle = Duration::from_millis(100);
            let slow = Options { intent_idle: idle, rebuild_rate: Some(64 << 10), ..options() };
            let rig = rig(layout, slow).await;
            let written = 20 * rig.blocks();
            rig.model.write(&*rig.io, 0, written).await.expect("written");
            let bits = |member: usize| rig.disks[member].peek(INTENT_AT + INTENT_HEAD, 8);
            let is_idle = || (0..4).all(|member| bits(member) == [0; 8]);
            while !is_idle() {
                sleep(idle).await;
            }
            rig.disks[2].unreachable.store(true, SeqCst);
            rig.model.write(&*rig.io, 0, written).await.expect("written");
            rig.until(2, Condition::Offline).await;
            let missed = bits(0);
            assert_ne!(missed, [0; 8], "{layout}");
            // Many times the interval after which the bit of a region is cleared if no member is
            // offline.
            sleep(Duration::from_secs(60)).await;
            assert!([0, 1, 3].map(bits).iter().all(|bits| *bits == missed), "{layout}: while it is offline");
            rig.disks[2].unreachable.store(false, SeqCst);
            let mut looks = 0;
            loop {
                let found = [0, 1, 3].map(bits);
                let condition = rig.array.status().await.expect("status").members[2].condition;
                if condition == Condition::Active {
                    break;
                }
                assert!(found.iter().all(|bits| *bits == missed), "{layout}: while it is {condition:?}");
                looks += u64::from(matches!(condition, Condition::Rebuilding { partial: true, .. }));
                sleep(idle).await;
            }
            assert!(looks > 10, "{layout}: it was seen catching up {looks} times");
            while !is_idle() {
                sleep(idle).await;
            }
            // The member is complete, so another one may fail.
            rig.disks[3].unreachable.store(true, SeqCst);
            rig.model.check(&*rig.io).await.expect("read");
        });
    }
}

#[test]
fn rebuild_progress_is_flushed_before_it_is_published() {
    for layout in [Layout::Mirror, Layout::Parity, Layout::DoubleParity] {
        simulate(86, async {
            let slow = Options { rebuild_rate: Some(512 << 10), ..options() };
            let rig = rig(layout, slow).await;
            for first in (0..rig.model.blocks()).step_by(rig.blocks() as usize) {
                let count = rig.blocks().min(rig.model.blocks() - first);
                rig.model.write(&*rig.io, first, count).await.expect("written");
            }
            rig.io.flush().await.expect("flushed");
            let from = rig.log.now();
            let disk = cached(1).remove(0);
            let spare = LoggedDisk { disk, member: 3, log: Arc::clone(&rig.log) };
            rig.array.replace(3, Arc::new(spare), false).await.expect("replaced");
            rig.until(3, Condition::Active).await;
            let ops = rig.log.since(from);
            let (mut steps, mut given) = (BTreeSet::new(), 0);
            for said in &ops {
                let done = match said.condition_of(3) {
                    Some(RecordedCondition::Rebuilding(done)) => done,
                    Some(RecordedCondition::Active) if steps.iter().any(|done| *done > 0) => {
                        rig.geometry.rows
                    }
                    _ => continue,
                };
                steps.insert(done);
                for op in ops.iter().filter(|op| op.member == 3 && op.begun < said.begun) {
                    let Some(rows) = op.rows(rig.data_at(), UNIT) else { continue };
                    if rows.start < done {
                        given += 1;
                        let flushed = is_flushed(&ops, op, said.begun);
                        assert!(flushed, "{layout}: {done} stripes are done, and {rows:?} not flushed");
                    }
                }
            }
            assert!(steps.len() > 2 && given > 0, "{layout}: {steps:?} in {given} writes");
            assert!(steps.contains(&rig.geometry.rows), "{layout}: {steps:?}");
        });
    }
}

#[test]
fn no_intent_bit_is_cleared_before_what_was_written_is_flushed() {
    for layout in [Layout::Mirror, Layout::StripeMirror, Layout::Parity, Layout::DoubleParity] {
        simulate(87, async {
            let idle = Duration::from_millis(100);
            let rig = rig(layout, Options { intent_idle: idle, ..options() }).await;
            rig.model.write(&*rig.io, 0, 20 * rig.blocks()).await.expect("whole stripes");
            rig.write_parts(30..40).await;
            while rig.array.status().await.expect("status").marked_regions.0 > 0 {
                sleep(idle).await;
            }
            let ops = rig.log.since(0);
            let (mut before, mut cleared) = ([0; 4], 0);
            for op in ops.iter().filter(|op| op.offset == INTENT_AT) {
                let Action::Write { bytes, .. } = &op.act else { continue };
                let bits = u64::from_le_bytes(bytes[32..40].try_into().expect("eight bytes"));
                let removed = before[op.member] & !bits;
                before[op.member] = bits;
                for region in (0..64).filter(|region| removed & 1 << region != 0) {
                    cleared += 1;
                    let rows = region * rig.geometry.region / UNIT..(region + 1) * rig.geometry.region / UNIT;
                    let of = |change: &&Op| {
                        let changed = change.rows(rig.data_at(), UNIT);
                        change.begun < op.begun
                            && changed
                                .is_some_and(|changed| changed.start < rows.end && rows.start < changed.end)
                    };
                    let lost = ops.iter().filter(of).find(|change| !is_flushed(&ops, change, op.begun));
                    assert!(lost.is_none(), "{layout}: region {region} is clear, and {lost:?} not flushed");
                }
            }
            assert!(cleared > 0, "{layout}");
        });
    }
}

#[test]
fn a_write_with_fua_is_durable_when_it_ends() {
    for layout in [Layout::Stripe, Layout::Mirror, Layout::Parity, Layout::DoubleParity] {
        simulate(88, async {
            let rig = rig(layout, options()).await;
            let stripe = rig.geometry.stripe();
            let judge = |from: u64| {
                let (ops, ended) = (rig.log.since(from), rig.log.now());
                let changes = ops.iter().filter(|op| op.rows(rig.data_at(), UNIT).is_some()).count();
                let lost =
                    ops.iter().find(|op| !matches!(op.act, Action::Flush) && !is_flushed(&ops, op, ended));
                assert!(changes >= 4 && lost.is_none(), "{layout}: {changes} changes, {lost:?} not flushed");
            };
            let from = rig.log.now();
            let bytes = Buf::copy_of(&vec![7; stripe as usize]);
            rig.io.write(0, bytes, WriteFlags { fua: true }).await.expect("a whole stripe");
            judge(from);
            let from = rig.log.now();
            let zeroes = ZeroFlags { fua: true, may_deallocate: true };
            rig.io.write_zeroes(stripe, stripe, zeroes).await.expect("zeroes of a whole stripe");
            judge(from);
        });
    }
}

/// Writes under way during a flush are not durable after it.
#[test]
fn the_journal_keeps_records_put_in_place_during_a_flush() {
    for layout in [Layout::Parity, Layout::DoubleParity] {
        simulate(89, async {
            let rig = rig(layout, options()).await;
            // In-place writes of one member end early, and flushes of another late.
            rig.disks[3].slow.store(3_000, SeqCst);
            for row in (0..32).step_by(4) {
                let flushes = async {
                    for _ in 0..4 {
                        rig.io.flush().await.expect("flushed");
                    }
                };
                join(rig.write_parts(row..row + 4), flushes).await;
            }
            let ops = rig.log.since(0);
            assert_eq!(leaves_too_early(&rig, &ops), None, "{layout}");
            let left = ops.iter().filter_map(Op::record).any(|record| record.tail > 0);
            assert!(left, "{layout}: the journal drops flushed writes");
        });
    }
}

#[test]
fn a_replay_does_not_undo_a_full_stripe_write() {
    for layout in [Layout::Parity, Layout::DoubleParity] {
        for zero in [false, true] {
            let (disks, model) = simulate(90, async {
                let rig = rig(layout, options()).await;
                rig.write_parts(0..6).await;
                sleep(Duration::from_secs(1)).await;
                let (blocks, io) = (6 * rig.blocks(), &*rig.io);
                let changed = if zero {
                    rig.model.zero(io, 0, blocks).await
                } else {
                    rig.model.write(io, 0, blocks).await
                };
                assert!(changed.expect("whole stripes"));
                rig.io.flush().await.expect("flushed");
                (rig.disks, rig.model)
            });
            // The host has crashed: the array was not stopped.
            simulate(91, async {
                let array = start(&disks, options()).await.expect("assembled");
                let io = array.open().await.expect("opened");
                model.check(&*io).await.expect("read");
            });
        }
    }
}
