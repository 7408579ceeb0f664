//! Members that are lost for good and replaced, members that move, and growth, while hosts write.

mod common;

use common::dying::{Dying, End};
use common::held::{Held, Hold};
use common::{Calls, ROOT, assert_right, memory, pattern, until};
use longhaul_block::filter::OpKind;
use longhaul_catalog::Catalog;
use longhaul_fs::Errno;
use longhaul_poolfs::PoolFs;
use longhaul_poolfs::testing::TestFs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Disks of all file systems here.
const SEGMENTS: u32 = 64;

fn name(number: u64) -> Vec<u8> {
    format!("file {number}").into_bytes()
}

fn put(fs: &PoolFs, numbers: std::ops::Range<u64>) {
    for number in numbers {
        fs.put(ROOT, &name(number), &pattern(90_000 * number as usize % 700_000 + 100, number))
            .expect("written");
    }
}

fn compare(fs: &PoolFs, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let expected = pattern(90_000 * number as usize % 700_000 + 100, number);
        assert!(fs.content(ROOT, &name(number)).expect("read") == expected, "file {number}");
    }
}

#[test]
fn a_member_that_is_lost_is_replaced_while_hosts_write() {
    let fs = TestFs::new(memory(), 3, (2, 1), SEGMENTS).expect("made");
    let (one, two) = (fs.open().expect("mounted"), fs.open().expect("mounted"));
    put(&one, 0..12);
    fs.disks[1].set_gone(true);
    put(&two, 12..16);
    let (uuid, disk) = fs.add_disk(SEGMENTS);
    one.place_member(1, uuid, false).expect("placed");
    assert!(one.trouble().is_some_and(|why| why.contains("is filled")), "{:?}", one.trouble());
    put(&one, 16..20);
    assert!(disk.disk.counts().flushes > 0, "what is new goes there at once");
    // A host that has not heard of it.
    put(&two, 20..24);
    compare(&two, 0..24);
    let done = AtomicBool::new(false);
    let filled = std::thread::scope(|scope| {
        scope.spawn(|| put(&two, 24..30));
        // The other host gives up the segments that it has and does not use.
        scope.spawn(|| {
            while !done.load(Relaxed) {
                two.tidy().expect("cleaned");
            }
        });
        let filled = one.fill(1);
        done.store(true, Relaxed);
        filled.expect("filled")
    });
    assert!(filled.bytes > 500_000 && filled.lost == 0, "{filled:?}");
    two.tidy().expect("cleaned");
    assert_eq!((one.trouble(), two.trouble()), (None, None));
    // Each stripe has its unit there now: another member may be missing.
    let scrubbed = two.scrub().expect("read");
    assert_eq!((scrubbed.wrong, scrubbed.missing, scrubbed.lost), (0, 0, 0), "{scrubbed:?}");
    for gone in [0, 2] {
        fs.disks[gone].set_gone(true);
        compare(&one, 0..30);
        compare(&two, 0..30);
        fs.disks[gone].set_gone(false);
        [&one, &two].into_iter().for_each(PoolFs::find_members);
    }
    drop((one, two));
    assert_right(&fs);
    let again = fs.open().expect("mounted");
    assert_eq!(again.trouble(), None);
    compare(&again, 0..30);
}

/// It finds that out when too few members are where it knows them.
#[test]
fn a_host_that_has_not_heard_of_a_member_at_another_place_reads_it_there() {
    let fs = TestFs::new(memory(), 3, (2, 1), SEGMENTS).expect("made");
    let (one, two) = (fs.open().expect("mounted"), fs.open().expect("mounted"));
    put(&one, 0..12);
    fs.make_snapshot("s").expect("made");
    let snapshot = fs.open_snapshot("s").expect("mounted");
    fs.disks[1].set_gone(true);
    let (uuid, _) = fs.add_disk(SEGMENTS);
    one.place_member(1, uuid, false).expect("placed");
    one.fill(1).expect("filled");
    fs.disks[0].set_gone(true);
    for host in [&two, &snapshot] {
        compare(host, 0..12);
    }
    // A part is read to be written with what is new.
    fs.disks[0].set_gone(false);
    [&one, &two].into_iter().for_each(PoolFs::find_members);
    let (uuid, _) = fs.add_disk(SEGMENTS);
    one.place_member(0, uuid, false).expect("placed");
    one.fill(0).expect("filled");
    fs.disks[0].set_gone(true);
    fs.disks[2].set_gone(true);
    put(&two, 5..6);
    compare(&two, 0..12);
    compare(&snapshot, 0..12);
    for host in [&two, &snapshot] {
        assert!(
            host.trouble().is_some_and(|why| why.contains("1 members are missing")),
            "{:?}",
            host.trouble()
        );
    }
    fs.disks[2].set_gone(false);
    [&one, &two, &snapshot].into_iter().for_each(PoolFs::find_members);
    drop((one, two, snapshot));
    assert_right(&fs);
}

/// A file system of three members, of which one was replaced by the first of two mounts without the second one having
/// heard of it, which has its calls to the catalog made by `held`.
fn replaced(held: fn(&Arc<dyn Catalog>) -> Arc<Held>) -> (TestFs, Arc<Held>, PoolFs) {
    let fs = TestFs::new(memory(), 3, (2, 1), SEGMENTS).expect("made");
    let held = held(&fs.catalog);
    let one = fs.open().expect("mounted");
    let two = fs.open_by(Arc::clone(&held) as Arc<dyn Catalog>, &TestFs::options()).expect("mounted");
    put(&one, 0..12);
    fs.disks[1].set_gone(true);
    compare(&two, 0..12);
    let (uuid, _) = fs.add_disk(SEGMENTS);
    one.place_member(1, uuid, false).expect("placed");
    one.fill(1).expect("filled");
    (fs, held, two)
}

/// A read began when a member was missing, and is waited for when that one is at another place.
#[test]
fn what_failed_before_a_member_was_opened_again_does_not_take_it_out_of_use() {
    let (fs, _, two) = replaced(|catalog| Held::new(catalog, "none", Hold::Open));
    fs.disks[0].disk.hold(OpKind::Read, 1);
    std::thread::scope(|scope| {
        // A file of several stripes.
        let read = scope.spawn(|| compare(&two, 7..8));
        until("the read waits for the other member", || fs.disks[0].disk.held() == 1);
        two.tidy().expect("followed");
        assert_eq!(two.trouble(), None);
        fs.disks[0].set_gone(true);
        fs.disks[0].disk.release();
        read.join().expect("read");
    });
    assert!(two.trouble().is_some_and(|why| why.contains("1 members are missing")), "{:?}", two.trouble());
}

#[test]
fn a_scrub_looks_for_units_where_members_are_by_then() {
    let (_, _, two) = replaced(|catalog| Held::new(catalog, "none", Hold::Open));
    let scrubbed = two.scrub().expect("read");
    assert_eq!((scrubbed.wrong, scrubbed.missing, scrubbed.lost), (0, 0, 0), "{scrubbed:?}");
}

/// Two threads find out at the same time that a member is at another place.
#[test]
fn a_write_goes_on_at_the_place_that_another_thread_has_heard_of() {
    let (fs, held, two) = replaced(|catalog| Held::new(catalog, "longhaul-fs", Hold::Open));
    fs.disks[0].disk.hold(OpKind::Write, 1);
    std::thread::scope(|scope| {
        let written = scope.spawn(|| put(&two, 12..13));
        until("a member is written to", || fs.disks[0].disk.held() == 1);
        held.set(Hold::Waits);
        fs.disks[0].set_gone(true);
        fs.disks[0].disk.release();
        until("the write looks for members elsewhere", || held.waiting() == 1);
        two.tidy().expect("followed");
        held.set(Hold::Open);
        written.join().expect("written");
    });
    compare(&two, 0..13);
}

/// Also when nothing is read.
#[test]
fn a_snapshot_that_is_mounted_follows_members() {
    let fs = TestFs::new(memory(), 3, (2, 1), SEGMENTS).expect("made");
    let one = fs.open().expect("mounted");
    put(&one, 0..3);
    fs.make_snapshot("s").expect("made");
    let snapshot = fs.open_snapshot("s").expect("mounted");
    fs.disks[1].set_gone(true);
    compare(&snapshot, 0..3);
    assert!(snapshot.trouble().is_some());
    let (uuid, _) = fs.add_disk(SEGMENTS);
    one.place_member(1, uuid, false).expect("placed");
    one.fill(1).expect("filled");
    snapshot.tidy().expect("looked");
    assert_eq!(snapshot.trouble(), None);
}

#[test]
fn a_member_moves_without_redundancy() {
    let fs = TestFs::new(memory(), 3, (3, 0), SEGMENTS).expect("made");
    let (one, two) = (fs.open().expect("mounted"), fs.open().expect("mounted"));
    put(&one, 0..12);
    let (uuid, disk) = fs.add_disk(SEGMENTS);
    one.place_member(2, uuid, true).expect("placed");
    put(&one, 12..16);
    put(&two, 16..20);
    for host in [&one, &two] {
        compare(host, 0..20);
        assert_eq!(host.trouble(), None, "nothing is missing while it moves");
        host.tidy().expect("cleaned");
    }
    // The new disk loses what was not durable, while it is filled.
    disk.disk.cut_power();
    // What the other host does not use it gives up.
    two.tidy().expect("cleaned");
    one.fill(2).expect("filled");
    two.tidy().expect("cleaned");
    fs.disks[2].set_gone(true);
    compare(&one, 0..20);
    compare(&two, 0..20);
    put(&two, 20..24);
    compare(&one, 20..24);
    drop((one, two));
    compare(&fs.open().expect("mounted"), 0..24);
    assert_right(&fs);
}

#[test]
fn units_that_cannot_be_moved_are_kept_where_they_are() {
    let fs = TestFs::new(memory(), 3, (3, 0), SEGMENTS).expect("made");
    let mounted = fs.open().expect("mounted");
    put(&mounted, 0..6);
    let (uuid, _) = fs.add_disk(SEGMENTS);
    mounted.place_member(0, uuid, true).expect("placed");
    fs.disks[0].set_gone(true);
    assert_eq!(mounted.fill(0), Err(Errno::IO));
    fs.disks[0].set_gone(false);
    mounted.find_members();
    compare(&mounted, 0..6);
    mounted.fill(0).expect("filled");
    fs.disks[0].set_gone(true);
    compare(&mounted, 0..6);
}

/// The transactions of a replacement.
fn replace(fs: &PoolFs, uuid: uuid::Uuid, moves: bool) -> Result<(), Errno> {
    fs.place_member(1, uuid, moves)?;
    fs.fill(1).map(drop)
}

#[test]
fn a_host_that_is_lost_at_any_transaction_of_a_move_loses_nothing() {
    for moves in [false, true] {
        let begin = || {
            let fs = TestFs::new(memory(), 3, (2, 1), SEGMENTS).expect("made");
            put(&fs.open().expect("mounted"), 0..8);
            fs.disks[1].set_gone(!moves);
            let (uuid, disk) = fs.add_disk(SEGMENTS);
            (fs, uuid, disk)
        };
        let transactions = {
            let (fs, uuid, _) = begin();
            let counting = Dying::new(&fs.catalog, 1 << 32, End::Before);
            let mounted = fs.open_by(counting.clone(), &TestFs::options()).expect("mounted");
            replace(&mounted, uuid, moves).expect("replaced");
            (1 << 32) - counting.left()
        };
        assert!(transactions > 6, "only {transactions} transactions");
        for end in [End::Before, End::After, End::AnswerLost] {
            for at in 1..=transactions {
                let (fs, uuid, disk) = begin();
                let dying = Dying::new(&fs.catalog, at, end);
                let Ok(mounted) = fs.open_by(dying.clone(), &TestFs::options()) else { continue };
                let replaced = replace(&mounted, uuid, moves);
                assert!(end != End::AnswerLost || replaced.is_ok(), "transaction {at}: {replaced:?}");
                let lease = mounted.lease();
                mounted.lose();
                fs.catalog.revoke(lease).expect("ended");
                disk.disk.cut_power();
                let mounted = fs.open().expect("mounted");
                compare(&mounted, 0..8);
                mounted.tidy().expect("cleaned");
                mounted.tidy().expect("cleaned");
                replace(&mounted, uuid, moves).expect("replaced");
                fs.disks[1].set_gone(true);
                fs.disks[0].set_gone(true);
                compare(&mounted, 0..8);
                drop(mounted);
                assert_right(&fs);
            }
        }
    }
}

#[test]
fn a_full_file_system_grows_while_two_hosts_use_it() {
    let mut fs = TestFs::new(memory(), 3, (2, 1), 12).expect("made");
    for index in 0..3 {
        fs.disks[index] = fs.add_disk(SEGMENTS).1;
    }
    let (one, two) = (fs.open().expect("mounted"), fs.open().expect("mounted"));
    let full = (0..).find_map(|n| one.put(ROOT, &name(n), &pattern(400_000, n)).err());
    assert_eq!(full, Some(Errno::NOSPC));
    one.grow(SEGMENTS).expect("grown");
    for n in 100..120 {
        one.put(ROOT, &name(n), &pattern(400_000, n)).expect("there is room");
    }
    // The other host hears of it when it has no room.
    for n in 120..135 {
        two.put(ROOT, &name(n), &pattern(400_000, n)).expect("there is room");
    }
    for n in 100..135 {
        assert!(two.content(ROOT, &name(n)).expect("read") == pattern(400_000, n));
    }
    one.grow(12).expect("it has that");
    drop((one, two));
    assert_eq!(assert_right(&fs).segments.1, SEGMENTS);
}
