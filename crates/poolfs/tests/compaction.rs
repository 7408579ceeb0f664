//! Space in segments of which a part is dead is used again: content moves out of them, while hosts write,
//! while hosts are lost, and whatever transaction is the last one.

mod common;

use common::dying::{Dying, End};
use common::{Calls, ROOT, WRITE, assert_right, memory, pattern};
use longhaul_fs::{Call, Errno, FileSystem, Node, Reply};
use longhaul_poolfs::PoolFs;
use longhaul_poolfs::testing::TestFs;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};

/// Bytes of content of a segment of two data units and parity on three disks.
const ROOM: usize = 512 << 10;

/// A file, and what it has.
struct Known {
    node: Node,
    content: Vec<u8>,
}

fn name(number: usize) -> Vec<u8> {
    format!("file {number}").into_bytes()
}

fn fill(fs: &PoolFs, files: usize, len: usize) -> Vec<Known> {
    let put = |number| {
        let content = pattern(len, number as u64);
        Known { node: fs.put(ROOT, &name(number), &content).expect("written"), content }
    };
    (0..files).map(put).collect()
}

/// Overwrites a small part of a file, and closes it.
fn overwrite(fs: &PoolFs, file: &mut Known, rng: &mut fastrand::Rng) -> Result<(), Errno> {
    let len = rng.usize(1..12_000).min(file.content.len());
    let at = rng.usize(0..=file.content.len() - len);
    let part = pattern(len, rng.u64(..));
    let (_, handle) = fs.open(file.node, WRITE)?;
    fs.write(handle, at as u64, &part)?;
    fs.close(handle)?;
    file.content[at..at + len].copy_from_slice(&part);
    Ok(())
}

fn compare(fs: &PoolFs, files: &[Known]) {
    for (number, file) in files.iter().enumerate() {
        assert!(fs.content(ROOT, &name(number)).expect("read") == file.content, "file {number}");
    }
}

fn free(fs: &PoolFs) -> u64 {
    match fs.wait(Call::Statistics).expect("known") {
        Reply::Statistics(s) => s.free * u64::from(s.block_size),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_file_system_is_overwritten_in_small_parts_for_long() {
    let fs = TestFs::new(memory(), 3, (2, 1), 64).expect("made");
    let mounted = fs.open().expect("mounted");
    // Nine tenths of what there is room for.
    let total = free(&mounted) as usize;
    let mut files = fill(&mounted, total * 9 / 10 / ROOM, ROOM);
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut written, before) = (0, free(&mounted));
    while written < total {
        let file = rng.usize(..files.len());
        overwrite(&mounted, &mut files[file], &mut rng).expect("there is room for what is live");
        // Each overwrite takes blocks for a unit and its parity.
        written += 12_000;
    }
    assert_eq!(free(&mounted), before, "what is dead counts as free");
    compare(&mounted, &files);
    // And what no compaction helps with is refused, with all content as it was.
    let refused = (0..).find_map(|n| mounted.put(ROOT, &name(1000 + n), &pattern(ROOM / 2, 7)).err());
    assert_eq!(refused, Some(Errno::NOSPC));
    assert!(free(&mounted) < 6 * ROOM as u64, "{} bytes are left", free(&mounted));
    compare(&mounted, &files);
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn small_files_are_packed() {
    let fs = TestFs::new(memory(), 3, (2, 1), 24).expect("made");
    let mounted = fs.open().expect("mounted");
    // A block of data and one of parity each, of which a fortieth is content.
    let mut files = fill(&mounted, 1200, 100);
    let used = |fs: &TestFs| fs.check().expect("checked").segments.0;
    mounted.tidy().expect("cleaned");
    let before = used(&fs);
    while mounted.compact().expect("compacted") > 0 {}
    mounted.tidy().expect("cleaned");
    assert!(before >= 12 && used(&fs) <= 3, "{before} segments, then {}", used(&fs));
    compare(&mounted, &files);
    let mut rng = fastrand::Rng::with_seed(2);
    for _ in 0..300 {
        let file = rng.usize(..files.len());
        overwrite(&mounted, &mut files[file], &mut rng).expect("written");
    }
    compare(&mounted, &files);
    fs.disks[1].set_gone(true);
    compare(&mounted, &files);
    drop(mounted);
    assert_right(&fs);
}

/// Files of which every other stripe is dead.
fn half_dead(fs: &PoolFs) -> Vec<Known> {
    let mut files = fill(fs, 6, 700_000);
    for (number, file) in files.iter_mut().enumerate() {
        let (_, handle) = fs.open(file.node, WRITE).expect("opened");
        for at in (0..700_000 - 70_000).step_by(140_000) {
            let part = pattern(70_000, (number + at) as u64);
            fs.write(handle, at as u64, &part).expect("written");
            fs.flush(handle).expect("committed");
            file.content[at..at + 70_000].copy_from_slice(&part);
        }
        fs.close(handle).expect("closed");
    }
    fs.tidy().expect("cleaned");
    files
}

#[test]
fn a_host_that_is_lost_at_any_transaction_of_a_compaction_loses_nothing() {
    let transactions = {
        let fs = TestFs::new(memory(), 3, (2, 1), 64).expect("made");
        half_dead(&fs.open().expect("mounted"));
        let counting = Dying::new(&fs.catalog, 1 << 32, End::Before);
        let mounted = fs.open_by(counting.clone(), &TestFs::options()).expect("mounted");
        assert!(mounted.compact().expect("compacted") > 0);
        (1 << 32) - counting.left()
    };
    assert!(transactions > 6, "only {transactions} transactions");
    for end in [End::Before, End::After, End::AnswerLost] {
        for at in 1..=transactions {
            let fs = TestFs::new(memory(), 3, (2, 1), 64).expect("made");
            let files = half_dead(&fs.open().expect("mounted"));
            let dying = Dying::new(&fs.catalog, at, end);
            let Ok(mounted) = fs.open_by(dying.clone(), &TestFs::options()) else { continue };
            let compacted = mounted.compact();
            assert!(end != End::AnswerLost || compacted.is_ok(), "transaction {at}: {compacted:?}");
            let lease = mounted.lease();
            mounted.lose();
            fs.catalog.revoke(lease).expect("ended");
            for disk in &fs.disks {
                disk.disk.cut_power();
            }
            let mounted = fs.open().expect("mounted");
            compare(&mounted, &files);
            mounted.tidy().expect("cleaned");
            mounted.tidy().expect("cleaned");
            let report = assert_right(&fs);
            assert!(report.left.is_empty(), "{end:?} {at}: {report:?}");
            while mounted.compact().expect("compacted") > 0 {}
            compare(&mounted, &files);
            for number in 0..files.len() {
                mounted.remove(ROOT, &name(number), false).expect("removed");
            }
            drop(mounted);
            assert_eq!(assert_right(&fs).segments.0, 0, "{end:?} {at}: space is lost");
        }
    }
}

#[test]
fn two_hosts_write_and_compact_at_the_same_time() {
    let fs = TestFs::new(memory(), 3, (2, 1), 64).expect("made");
    let hosts = [fs.open().expect("mounted"), fs.open().expect("mounted")];
    let total = free(&hosts[0]) as usize;
    let mut files = fill(&hosts[0], total * 8 / 10 / ROOM, ROOM);
    let others = files.split_off(files.len() / 2);
    let done = AtomicBool::new(false);
    let first = files.len();
    let halves = std::thread::scope(|scope| {
        let write = |host: &PoolFs, mut half: Vec<Known>, seed: u64| {
            let mut rng = fastrand::Rng::with_seed(seed);
            for step in 0..900 {
                let at = rng.usize(..half.len());
                let file = &mut half[at];
                overwrite(host, file, &mut rng).expect("there is room for what is live");
                if step % 20 == 0 {
                    host.tidy().expect("cleaned");
                }
                let (_, handle) = host.open(file.node, 0).expect("opened");
                assert!(host.read(handle, 0, ROOM as u32).expect("read") == file.content);
                host.close(handle).expect("closed");
            }
            half
        };
        // A third one moves what the two others write.
        let third = fs.open().expect("mounted");
        let done = &done;
        let mover = scope.spawn(move || {
            let mut freed = 0;
            while !done.load(Relaxed) {
                freed += third.compact().expect("compacted");
                third.tidy().expect("cleaned");
            }
            freed
        });
        let [one, two] = &hosts;
        let writers = [scope.spawn(move || write(one, files, 1)), scope.spawn(move || write(two, others, 2))];
        let halves = writers.map(|thread| thread.join().expect("no panic"));
        done.store(true, Relaxed);
        assert!(mover.join().expect("no panic") > 0, "nothing was moved");
        halves
    });
    let [one, two] = halves;
    // Each host reads what the other one has written.
    assert_eq!(one.len(), first);
    let all: Vec<Known> = one.into_iter().chain(two).collect();
    hosts.iter().for_each(|host| compare(host, &all));
    drop(hosts);
    let report = assert_right(&fs);
    assert!(report.left.is_empty() && report.sessions.is_empty(), "{report:?}");
}

#[test]
fn a_file_that_is_open_is_read_after_its_content_has_moved() {
    let fs = TestFs::new(memory(), 3, (2, 1), 64).expect("made");
    let (one, two) = (fs.open().expect("mounted"), fs.open().expect("mounted"));
    let files = half_dead(&one);
    let (_, handle) = two.open(files[0].node, 0).expect("opened");
    assert!(two.read(handle, 0, 1000).expect("read") == files[0].content[..1000]);
    while one.compact().expect("compacted") > 0 {}
    // Its former place has other content by now.
    for round in 0..30 {
        one.put(ROOT, b"other", &pattern(ROOM, 1000 + round)).expect("written");
        one.tidy().expect("cleaned");
    }
    assert!(two.read(handle, 0, 700_000).expect("read") == files[0].content);
    two.close(handle).expect("closed");
}

#[test]
fn a_file_in_very_many_pieces_is_gathered() {
    let fs = TestFs::new(memory(), 2, (1, 1), 400).expect("made");
    let mounted = fs.open().expect("mounted");
    let mut content = vec![1; 6 << 20];
    let node = mounted.put(ROOT, b"file", &content).expect("written");
    let chunk = format!("fs/{}/x", fs.uuid).into_bytes();
    let largest = || {
        let all = fs.catalog.range(&chunk, None).expect("read").entries;
        all.iter().map(|entry| entry.value.len()).max().expect("chunks")
    };
    let (mut rng, mut most) = (fastrand::Rng::with_seed(3), 0);
    for round in 0..14 {
        let (_, handle) = mounted.open(node, WRITE).expect("opened");
        for _ in 0..400 {
            let at = rng.usize(..content.len() - 8);
            mounted.write(handle, at as u64, &[round; 8]).expect("written");
            content[at..at + 8].fill(round);
        }
        mounted.close(handle).expect("closed");
        most = most.max(largest());
    }
    assert!(most > 100_000, "{most} bytes at most");
    assert!(largest() < 260_000, "{} bytes", largest());
    assert!(mounted.content(ROOT, b"file").expect("read") == content);
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn a_host_reads_what_it_has_committed_while_content_moves() {
    const BLOCKS: usize = 40;
    const BLOCK: usize = 5000;
    let fs = TestFs::new(memory(), 3, (2, 1), 64).expect("made");
    let mounted = fs.open().expect("mounted");
    let (node, handle) = mounted.create(ROOT, b"file", WRITE).expect("made");
    let block = |version: u32| version.to_be_bytes().repeat(BLOCK / 4);
    for at in 0..BLOCKS {
        // In as many extents, which are in a record of their own.
        mounted.write(handle, (at * BLOCK) as u64, &block(0)).expect("written");
        mounted.flush(handle).expect("committed");
    }
    let committed: Vec<AtomicU32> = (0..BLOCKS).map(|_| AtomicU32::new(0)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (mounted, committed, done) = (&mounted, &committed, &done);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                while !done.load(Relaxed) {
                    // Opened each time, or once.
                    let (_, own) = mounted.open(node.node, 0).expect("opened");
                    for _ in 0..10 {
                        let at = rng.usize(..BLOCKS);
                        let least = committed[at].load(SeqCst);
                        let found = mounted.read(own, (at * BLOCK) as u64, BLOCK as u32).expect("read");
                        let version = u32::from_be_bytes(found[..4].try_into().expect("four bytes"));
                        assert!(version >= least, "block {at} is {version}, and {least} was committed");
                        assert!(
                            found == version.to_be_bytes().repeat(BLOCK / 4),
                            "block {at} is of two versions"
                        );
                    }
                    mounted.close(own).expect("closed");
                }
            });
        }
        scope.spawn(|| {
            while !done.load(Relaxed) {
                mounted.tidy().expect("cleaned");
                mounted.compact().expect("compacted");
            }
        });
        let mut rng = fastrand::Rng::with_seed(9);
        for version in 1..500 {
            let at = rng.usize(..BLOCKS);
            mounted.write(handle, (at * BLOCK) as u64, &block(version)).expect("written");
            mounted.flush(handle).expect("committed");
            committed[at].store(version, SeqCst);
        }
        done.store(true, Relaxed);
    });
    mounted.close(handle).expect("closed");
    drop(mounted);
    assert_right(&fs);
}
