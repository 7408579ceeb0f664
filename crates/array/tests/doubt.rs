//! Reconstructions that do not match what was written must not be returned.

mod common;

use common::{Disk, cached, disks, make, options, simulate, start};
use longhaul_array::{ArrayDevice, BLOCK, Condition, Geometry, Layout, Options};
use longhaul_block::{BlockDevice, BlockIo, WriteFlags};
use longhaul_engine::{Buf, BufMut, sleep};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const UNIT: u64 = 16 << 10;
const SIZE: u64 = 3 << 20;
/// Offset of a member's journal (docs/array-safety.md, "On a member").
const JOURNAL_AT: u64 = 256 << 10;

async fn open(disks: &[Arc<Disk>], options: Options) -> (Arc<ArrayDevice>, Rc<dyn BlockIo>) {
    let array = start(disks, options).await.expect("assembled");
    let io = array.open().await.expect("opened");
    (array, io)
}

async fn geometry(array: &ArrayDevice) -> Geometry {
    array.status().await.expect("status").geometry
}

async fn write(io: &Rc<dyn BlockIo>, at: u64, len: u64, byte: u8) {
    let src = Buf::copy_of(&vec![byte; len as usize]);
    io.write(at, src, WriteFlags::default()).await.expect("written");
}

async fn until(array: &ArrayDevice, member: usize, condition: Condition) {
    for _ in 0..10_000 {
        if array.status().await.expect("status").members[member].condition == condition {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("member {member} has not become {condition:?}");
}

/// A member has old content with old checksums, which goes unnoticed until a reconstruction needs
/// it: the result does not match the checksum of the reconstructed unit. (With double parity there
/// are several ways to reconstruct.)
#[test]
fn a_reconstruction_that_contradicts_a_checksum_is_not_returned() {
    simulate(1, async {
        let (disks, _power) = disks(4, SIZE);
        make(&disks, Layout::Parity, UNIT).await;
        let (array, io) = open(&disks, options()).await;
        let geometry = geometry(&array).await;
        let stripe = geometry.stripe();
        for byte in [1, 2] {
            for unit in 0..stripe / UNIT {
                // Different content in each unit: equal units would hide errors.
                write(&io, unit * UNIT, UNIT, byte << (2 * unit)).await;
            }
            io.flush().await.expect("flushed");
            array.scrub().await.expect("scrubbed");
            if byte == 1 {
                // The second unit is on the second member (left-symmetric: parity of the first
                // stripe is on the last).
                let sums_at = JOURNAL_AT + geometry.journal;
                disks[1].keep(sums_at, SIZE - sums_at);
            }
        }
        array.stop().await.expect("stopped");
        disks[1].give_back();
        // The first member's unit does not match its checksum either.
        let at = geometry.end() - geometry.rows * UNIT;
        assert_eq!(disks[0].peek(at, 4), [2; 4], "the first unit is there");
        disks[0].flip(at);

        let (_array, io) = open(&disks, options()).await;
        let read = async |at| io.read(at, BufMut::zeroed(BLOCK as usize)).await;
        read(0).await.expect_err("no member has the content");
        assert_eq!(read(BLOCK).await.expect("right")[..], [2; BLOCK as usize]);
        // A write beside it does not make it right either.
        let beside = io.write(2 * UNIT, Buf::copy_of(&[9; BLOCK as usize]), WriteFlags::default());
        assert!(beside.await.is_err() || read(0).await.is_err());
    });
    simulate(2, async {
        // A scrub finds the same, and reports the block as lost.
        let (disks, _power) = disks(4, SIZE);
        make(&disks, Layout::Parity, UNIT).await;
        let (array, io) = open(&disks, options()).await;
        let geometry = geometry(&array).await;
        let sums_at = JOURNAL_AT + geometry.journal;
        write(&io, 0, UNIT, 1).await;
        write(&io, UNIT, UNIT, 1).await;
        io.flush().await.expect("flushed");
        array.scrub().await.expect("scrubbed");
        disks[1].keep(sums_at, SIZE - sums_at);
        write(&io, UNIT, UNIT, 2).await;
        array.stop().await.expect("stopped");
        disks[1].give_back();
        disks[0].flip(geometry.end() - geometry.rows * UNIT);
        let (array, io) = open(&disks, options()).await;
        let report = array.scrub().await.expect("scrubbed");
        assert_eq!((report.lost, report.wrong[0]), (1, 1));
        io.read(0, BufMut::zeroed(BLOCK as usize)).await.expect_err("no member has the content");
    });
}

/// After a crash, the journal must not restore content from before the absence of a member that has
/// returned.
#[test]
fn a_replay_restores_nothing_from_before_a_member_was_offline() {
    let (disks, _power) = disks(3, SIZE);
    // Parity of the first stripe is on the last member.
    let offline = 2;
    let idle = Options { intent_idle: Duration::from_millis(100), ..options() };
    simulate(3, async {
        make(&disks, Layout::Parity, UNIT).await;
        let (array, io) = open(&disks, idle.clone()).await;
        write(&io, 0, BLOCK, 1).await;
        sleep(Duration::from_secs(1)).await;
        disks[offline].unreachable.store(true, SeqCst);
        write(&io, 0, BLOCK, 2).await;
        until(&array, offline, Condition::Offline).await;
        disks[offline].unreachable.store(false, SeqCst);
        until(&array, offline, Condition::Active).await;
        sleep(Duration::from_secs(10)).await;
        assert_eq!(array.status().await.expect("status").marked_regions.0, 0, "nothing is marked");
        // The host crashes here.
    });
    simulate(4, async {
        let (_array, io) = open(&disks, idle.clone()).await;
        disks[0].unreachable.store(true, SeqCst);
        let back = io.read(0, BufMut::zeroed(BLOCK as usize)).await.expect("reconstructed");
        assert_eq!(back[..], [2; BLOCK as usize]);
    });
}

/// Without checksums the array cannot tell what a reconnected member has lost: its users see a new
/// generation, and can resend their unflushed writes.
#[test]
fn a_stripe_reports_that_a_member_may_have_lost_its_cache() {
    simulate(1, async {
        for (layout, tells) in [(Layout::Stripe, true), (Layout::Parity, false)] {
            let disks = cached(3);
            make(&disks, layout, UNIT).await;
            let (_array, io) = open(&disks, options()).await;
            assert_eq!(io.may_forget(), tells, "{layout}");
            write(&io, 0, BLOCK, 1).await;
            io.flush().await.expect("flushed");
            let before = io.generation();
            write(&io, 0, BLOCK, 2).await;
            assert_eq!(io.generation(), before, "{layout}: nothing has happened");
            disks[0].lose_cache();
            io.flush().await.expect("flushed");
            assert_eq!(io.generation() != before, tells, "{layout}");
        }
    });
}
