//! Members that are lost, wrong or full, and other bad input.

mod common;

use common::held::{Held, Hold};
use common::{Calls, ROOT, WRITE, assert_right, memory, mount, parity, pattern};
use longhaul_block::IoError;
use longhaul_block::filter::OpKind;
use longhaul_block::testing::{Fault, FaultDisk, FaultRule};
use longhaul_catalog::{Catalog, Txn};
use longhaul_fs::{Call, Changes, Errno, FileSystem, Reply, Stream};
use longhaul_poolfs::testing::TestFs;
use longhaul_poolfs::{Client, PoolFs};
use std::sync::Arc;
use std::sync::mpsc::channel;

#[test]
fn with_a_member_missing_files_are_read_and_written() {
    let fs = TestFs::new(memory(), 6, (4, 2), 64).expect("made");
    let mounted = fs.open().expect("mounted");
    let before = pattern(3_000_000, 1);
    mounted.put(ROOT, b"before", &before).expect("written");
    for gone in [&[0][..], &[0, 3]] {
        for disk in gone {
            fs.disks[*disk].set_gone(true);
        }
        assert!(mounted.content(ROOT, b"before").expect("read") == before);
        let name = format!("{} missing", gone.len()).into_bytes();
        mounted.put(ROOT, &name, &pattern(2_000_000, 2)).expect("written");
        assert!(mounted.content(ROOT, &name).expect("read") == pattern(2_000_000, 2));
        let trouble = mounted.trouble().expect("degraded");
        assert!(trouble.starts_with(&format!("degraded: {} members", gone.len())), "{trouble}");
    }
    fs.disks[5].set_gone(true);
    assert_eq!(mounted.put(ROOT, b"three missing", &pattern(1000, 3)).map(drop), Err(Errno::IO));
    assert!(mounted.trouble().is_some_and(|why| why.starts_with("failed")));
    // What is left of it is a file without content.
    for disk in &fs.disks {
        disk.set_gone(false);
    }
    mounted.find_members();
    assert_eq!(mounted.trouble(), None);
    // Others are missing now than when it was written: narrower stripes are as safe.
    for disk in [1, 2] {
        fs.disks[disk].set_gone(true);
    }
    for name in [&b"1 missing"[..], b"2 missing"] {
        assert!(mounted.content(ROOT, name).expect("read") == pattern(2_000_000, 2));
    }
    drop(mounted);
    // It is mounted with members missing, too.
    let mounted = fs.open().expect("mounted");
    assert!(mounted.content(ROOT, b"before").expect("read") == before);
    drop(mounted);
    fs.disks[0].set_gone(true);
    let error = fs.open().expect_err("three missing").to_string();
    assert!(error.contains("has too few members: 3 of 6 cannot be reached, and 2 may be missing"), "{error}");
    assert_right(&fs);
}

#[test]
fn wrong_bits_are_made_right_from_parity() {
    let fs = parity();
    let mounted = fs.open().expect("mounted");
    let content = pattern(2_500_000, 1);
    mounted.put(ROOT, b"file", &content).expect("written");
    fs.disks[1].disk.inject(FaultRule::new(OpKind::Read, Fault::Flip(100)));
    assert!(mounted.content(ROOT, b"file").expect("read") == content);
    assert_eq!(mounted.trouble(), None, "the member is used all the same");
    // Two wrong units are more than the parity makes up for: that is an error, and never wrong content.
    fs.disks[2].disk.inject(FaultRule::new(OpKind::Read, Fault::Flip(200)));
    assert_eq!(mounted.content(ROOT, b"file"), Err(Errno::IO));
}

#[test]
fn what_members_lose_before_it_is_durable_is_written_again() {
    let fs = parity();
    let mounted = fs.open().expect("mounted");
    let (node, handle) = mounted.create(ROOT, b"file", WRITE).expect("made");
    // Enough for stripes to be written before the file is closed.
    let content = pattern(9 << 20, 1);
    for (index, part) in content.chunks(1 << 20).enumerate() {
        mounted.write(handle, (index as u64) << 20, part).expect("written");
    }
    fs.disks[2].disk.cut_power();
    mounted.wait(Call::Sync { handle, data_only: true }).expect("synced");
    fs.disks[0].set_gone(true);
    assert!(mounted.content(ROOT, b"file").expect("read") == content);
    fs.disks[0].set_gone(false);
    mounted.find_members();
    mounted.close(handle).expect("closed");
    // More than parity makes up for: `fsync` says so.
    let (_, handle) = mounted.open(node.node, WRITE).expect("opened");
    for (index, part) in content.chunks(1 << 20).enumerate() {
        mounted.write(handle, (index as u64) << 20, part).expect("written");
    }
    for disk in &fs.disks[..2] {
        disk.disk.cut_power();
    }
    assert_eq!(mounted.flush(handle), Err(Errno::IO));
    drop(mounted);
    let mounted = fs.open().expect("mounted");
    assert!(mounted.content(ROOT, b"file").expect("the old content") == content);
    drop(mounted);
    assert_right(&fs);
}

/// The target reports what it has lost once, to the flush for one file: what it had of others is lost as well.
#[test]
fn what_a_failed_flush_has_lost_of_other_files_is_written_again() {
    let fs = parity();
    let mounted = Arc::new(fs.open().expect("mounted"));
    let (_, large) = mounted.create(ROOT, b"large", WRITE).expect("made");
    let content = pattern(9 << 20, 1);
    for (index, part) in content.chunks(1 << 20).enumerate() {
        mounted.write(large, (index as u64) << 20, part).expect("written");
    }
    let (_, small) = mounted.create(ROOT, b"small", WRITE).expect("made");
    mounted.write(small, 0, &pattern(300_000, 2)).expect("in memory");
    let disk = &fs.disks[0].disk;
    disk.inject(FaultRule::new(OpKind::Flush, Fault::Error(IoError::NoSpace)).times(1));
    disk.hold(OpKind::Flush, 1);
    let syncing = {
        let mounted = Arc::clone(&mounted);
        std::thread::spawn(move || mounted.sync(small))
    };
    while disk.held() == 0 {
        std::thread::yield_now();
    }
    disk.forget();
    disk.release();
    syncing.join().expect("no panic").expect("written again");
    mounted.sync(large).expect("written again");
    let _ = (mounted.close(small), mounted.close(large));
    assert_eq!(mounted.scrub().expect("read").wrong, 0);
    assert!(mounted.content(ROOT, b"large").expect("read") == content);
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn content_that_a_failed_truncation_has_cut_off_is_reported() {
    let fs = parity();
    let held = Held::new(&fs.catalog, "longhaul-fs", Hold::Open);
    let mounted = fs.open_by(Arc::clone(&held) as Arc<dyn Catalog>, &TestFs::options()).expect("mounted");
    let before = pattern(300_000, 1);
    let file = mounted.put(ROOT, b"file", &before).expect("written");
    let (_, first) = mounted.open(file, WRITE).expect("opened");
    let (_, second) = mounted.open(file, WRITE).expect("opened");
    for size in [100_000, 0] {
        mounted.write(first, 200_000, &pattern(50_000, 2)).expect("in memory");
        held.set(Hold::Fails);
        assert_eq!(mounted.resize(file, size).map(drop), Err(Errno::IO));
        held.set(Hold::Open);
        assert_eq!((mounted.sync(first), mounted.sync(second)), (Err(Errno::IO), Err(Errno::IO)), "{size}");
        assert_eq!((mounted.sync(first), mounted.sync(second)), (Ok(()), Ok(())), "each hears of it once");
        assert!(mounted.content(ROOT, b"file").expect("read") == before);
    }
    // Nothing is lost where nothing was cut off.
    mounted.write(first, 0, &pattern(50_000, 3)).expect("in memory");
    held.set(Hold::Fails);
    assert_eq!(mounted.resize(file, 100_000).map(drop), Err(Errno::IO));
    held.set(Hold::Open);
    assert_eq!(mounted.sync(first), Ok(()));
    assert!(mounted.content(ROOT, b"file").expect("read")[..50_000] == pattern(50_000, 3));
    let _ = (mounted.close(first), mounted.close(second));
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn one_that_waits_for_everything_hears_of_content_that_is_lost_in_any_directory() {
    const SIZE: usize = 100_000;
    let fs = TestFs::new(memory(), 3, (2, 1), 12).expect("made");
    let mounted = Arc::new(mount(&fs, true));
    fill_up(&mounted, SIZE);
    let client = Client::new(Arc::clone(&mounted) as Arc<dyn FileSystem>);
    let one = mounted.make_directory(ROOT, b"one").expect("made").node;
    let other = mounted.make_directory(ROOT, b"other").expect("made").node;
    client.sync().expect("directories need no room at members");
    mounted.put(one, b"file", &pattern(SIZE, 1)).expect("in memory");
    assert_eq!(client.sync(), Err(Errno::NOSPC));
    assert_eq!(client.sync(), Ok(()));
    let sync = |node| mounted.wait(Call::SyncDirectory { node }).map(drop);
    assert_eq!((sync(other), sync(one), sync(one)), (Ok(()), Err(Errno::NOSPC), Ok(())));
    drop((client, mounted));
    assert_right(&fs);
}

/// The device of a member knows of its own life only: another one says nothing of what was written before.
#[test]
fn what_a_member_has_lost_that_was_opened_again_is_written_again() {
    let fs = parity();
    let mounted = Arc::new(fs.open().expect("mounted"));
    mounted.put(ROOT, b"other", &pattern(400_000, 1)).expect("written");
    let (lost, slow) = (&fs.disks[0], &fs.disks[1]);
    slow.disk.hold(OpKind::Write, 1);
    let (_, handle) = mounted.create(ROOT, b"file", WRITE).expect("made");
    mounted.write(handle, 0, &pattern(400_000, 2)).expect("in memory");
    let closing = {
        let mounted = Arc::clone(&mounted);
        std::thread::spawn(move || mounted.close(handle))
    };
    while slow.disk.held() == 0 {
        std::thread::yield_now();
    }
    mounted.scrub().expect("behind what is written to the others");
    lost.disk.cut_power();
    lost.set_gone(true);
    assert!(mounted.scrub().expect("read").missing > 0);
    lost.set_gone(false);
    mounted.find_members();
    assert_eq!(mounted.trouble(), None);
    slow.disk.release();
    closing.join().expect("no panic").expect("durable");
    assert_eq!(mounted.scrub().expect("read").wrong, 0);
    assert!(mounted.content(ROOT, b"file").expect("read") == pattern(400_000, 2));
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn a_full_file_system_says_so_and_keeps_what_it_has() {
    let fs = TestFs::new(memory(), 3, (2, 1), 12).expect("made");
    let mounted = fs.open().expect("mounted");
    let kept = pattern(500_000, 1);
    mounted.put(ROOT, b"kept", &kept).expect("written");
    let statistics = || match mounted.wait(Call::Statistics).expect("known") {
        Reply::Statistics(s) => (s.blocks * u64::from(s.block_size), s.free * u64::from(s.block_size)),
        other => panic!("{other:?}"),
    };
    let (size, free) = statistics();
    // Two segments are kept to make room by moves.
    assert_eq!(size, 10 * (512 << 10));
    assert!(free < size);
    let mut written = 0;
    let full = loop {
        let name = format!("{written}").into_bytes();
        match mounted.put(ROOT, &name, &pattern(400_000, 2)) {
            Ok(_) => written += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(full, Errno::NOSPC);
    assert!(written > 8, "{written} files");
    // What is left is used by smaller ones.
    while mounted.put(ROOT, format!("{written}").as_bytes(), &pattern(30_000, 2)).is_ok() {
        written += 1;
    }
    assert!(statistics().1 < 512 << 10, "{} bytes are free", statistics().1);
    // In place of content nothing is written: it needs room, too.
    let node = mounted.lookup(ROOT, b"kept").expect("there").node;
    let (_, handle) = mounted.open(node, WRITE).expect("opened");
    mounted.write(handle, 0, &pattern(500_000, 3)).expect("in memory");
    assert_eq!(mounted.flush(handle), Err(Errno::NOSPC));
    // The flush may have been the close of a copied descriptor.
    assert_eq!(mounted.sync(handle), Err(Errno::NOSPC));
    mounted.close(handle).expect("the error was reported");
    assert!(mounted.content(ROOT, b"kept").expect("read") == kept);
    for number in 0..=written {
        let name = format!("{number}").into_bytes();
        mounted.remove(ROOT, &name, false).expect("removed");
    }
    // Its segments are free without a wait.
    mounted.put(ROOT, b"new", &pattern(4_000_000, 4)).expect("written");
    assert!(mounted.content(ROOT, b"new").expect("read") == pattern(4_000_000, 4));
    assert!(mounted.content(ROOT, b"kept").expect("read") == kept);
    drop(mounted);
    assert_right(&fs);
}

both! { a_sync_never_misses_content_that_another_call_has_lost_at_that_moment }

/// Fills a file system until no file of this size has room.
fn fill_up(mounted: &PoolFs, size: usize) {
    for number in 0.. {
        let written = mounted.put(ROOT, format!("{number}").as_bytes(), &pattern(size, number));
        match written.and_then(|_| mounted.wait(Call::SyncDirectory { node: ROOT })) {
            Ok(_) => {}
            Err(Errno::NOSPC) => return,
            Err(e) => panic!("{e}"),
        }
    }
}

fn a_sync_never_misses_content_that_another_call_has_lost_at_that_moment(leases: bool) {
    const SIZE: usize = 100_000;
    let fs = TestFs::new(memory(), 3, (2, 1), 12).expect("made");
    let mounted = mount(&fs, leases);
    fill_up(&mounted, SIZE);
    let (file, first) = mounted.create(ROOT, b"file", WRITE).expect("made");
    let (_, second) = mounted.open(file.node, WRITE).expect("opened");
    let node = file.node;
    let mode = Changes { mode: Some(0o600), ..Changes::default() };
    let others = [
        // That of a descriptor which a child has between fork and exec.
        ("flush", Call::Flush { handle: first }),
        ("flush of another", Call::Flush { handle: second }),
        ("sync of another", Call::Sync { handle: second, data_only: true }),
        ("seek", Call::Seek { handle: second, offset: 0, hole: true }),
        ("change", Call::Change { node, handle: Some(second), changes: mode }),
        ("punch", Call::Allocate { handle: second, offset: 0, len: 10, mode: 3 }),
    ];
    let syncs = || Call::Sync { handle: first, data_only: false };
    for round in 0..60 {
        for (name, other) in &others {
            mounted.write(first, 0, &pattern(SIZE, 1)).expect("in memory");
            let (tell, told) = channel();
            let mut calls = vec![(false, other.clone()), (true, syncs())];
            calls.rotate_left(round % 2);
            for (is_sync, call) in calls {
                let tell = tell.clone();
                mounted.start(
                    call,
                    Box::new(move |result| tell.send((is_sync, result.map(drop))).expect("waits")),
                );
            }
            let results = [told.recv().expect("told"), told.recv().expect("told")];
            let sync = results.into_iter().find(|(is_sync, _)| *is_sync).map(|(_, result)| result);
            assert_eq!(sync, Some(Err(Errno::NOSPC)), "{name}, round {round}");
            // All has been heard of.
            let _ = mounted.sync(second);
            assert_eq!((mounted.sync(first), mounted.sync(second)), (Ok(()), Ok(())), "{name}");
        }
    }
    let _ = (mounted.close(first), mounted.close(second));
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn all_names_of_a_large_directory_are_listed_once_while_others_are_removed() {
    let fs = parity();
    let mounted = fs.open().expect("mounted");
    let name = |number: u32| format!("{number:05}").into_bytes();
    for number in 0..2500 {
        mounted.symlink(ROOT, &name(number), b"x").expect("made");
    }
    let (mut after, mut found) = (0, Vec::new());
    loop {
        let list = Call::ReadDirectory { node: ROOT, stream: Stream(u64::from(found.len() as u32)), after };
        let Ok(Reply::Listing(entries, is_last)) = mounted.wait(list) else { panic!("a listing") };
        for entry in &entries {
            after = entry.position;
            found.push(entry.name.clone());
            // As a program does that removes what it lists.
            if found.len() % 2 == 0 {
                mounted.remove(ROOT, &entry.name, false).expect("removed");
            }
        }
        if is_last {
            break;
        }
    }
    assert_eq!(found, (0..2500).map(name).collect::<Vec<_>>());
    assert_eq!(mounted.list(ROOT).expect("listed").len(), 1250);
    assert_eq!(assert_right(&fs).files, 1250);
}

#[test]
fn names_that_cannot_be_are_refused() {
    let fs = parity();
    let mounted = fs.open().expect("mounted");
    for (name, error) in [
        (&[b'x'; 256][..], Errno::NAMETOOLONG),
        (b"", Errno::INVAL),
        (b".", Errno::INVAL),
        (b"..", Errno::INVAL),
        (b"a/b", Errno::INVAL),
        (b"a\0", Errno::INVAL),
    ] {
        assert_eq!(mounted.create(ROOT, name, WRITE).map(drop), Err(error), "{name:?}");
        assert_eq!(mounted.make_directory(ROOT, name).map(drop), Err(error), "{name:?}");
    }
    assert_eq!(mounted.symlink(ROOT, b"l", &[b'x'; 4096]).map(drop), Err(Errno::NAMETOOLONG));
    let file = mounted.put(ROOT, b"file", b"").expect("made");
    assert_eq!(mounted.create(file, b"below", WRITE).map(drop), Err(Errno::NOTDIR));
    assert_eq!(mounted.list(file).map(drop), Err(Errno::NOTDIR));
    assert_eq!(mounted.rename((ROOT, b"file"), (ROOT, b"new"), 8), Err(Errno::INVAL));
    assert_eq!(mounted.open(ROOT, WRITE).map(drop), Err(Errno::ISDIR));
}

#[test]
fn metadata_of_a_later_version_is_refused() {
    let fs = parity();
    let settings = format!("fs/{}/s", fs.uuid).into_bytes();
    let entry = fs.catalog.get(&settings).expect("read").expect("there");
    let later = String::from_utf8(entry.value).expect("text").replace("\"format\":4", "\"format\":7");
    fs.catalog.commit(&Txn::new().put(&settings, later.as_bytes())).expect("changed");
    for error in [fs.open().expect_err("later").to_string(), fs.check().expect_err("later").to_string()] {
        assert!(
            error.contains("it has format 7, and this program knows format 5: use a newer program"),
            "{error}"
        );
    }
    fs.catalog.commit(&Txn::new().delete(&settings)).expect("changed");
    let error = fs.open().expect_err("no metadata").to_string();
    assert!(error.contains("its metadata is missing"), "{error}");
}

#[test]
fn a_check_finds_what_is_wrong() {
    let fs = parity();
    let mounted = fs.open().expect("mounted");
    mounted.put(ROOT, b"file", &pattern(100_000, 1)).expect("written");
    let directory = mounted.make_directory(ROOT, b"directory").expect("made").node;
    mounted.put(directory, b"file", &pattern(100_000, 2)).expect("written");
    drop(mounted);
    assert_right(&fs);
    let all = fs.catalog.range(format!("fs/{}/", fs.uuid).as_bytes(), None).expect("read").entries;
    let prefix = format!("fs/{}/", fs.uuid).len();
    let mut kinds = String::new();
    for entry in all {
        let kind = char::from(entry.key[prefix]);
        if matches!(kind, 's' | 'n' | 'r') {
            continue;
        }
        kinds.push(kind);
        // Each record is needed, and a damaged one is found.
        fs.catalog.commit(&Txn::new().delete(&entry.key)).expect("changed");
        assert_ne!(fs.check().expect("checked").count, 0, "without {kind}");
        fs.catalog
            .commit(&Txn::new().put(&entry.key, &entry.value[..entry.value.len() - 1]))
            .expect("changed");
        assert_ne!(fs.check().expect("checked").count, 0, "with a damaged {kind}");
        fs.catalog.commit(&Txn::new().put(&entry.key, &entry.value)).expect("changed");
        assert_right(&fs);
    }
    assert_eq!(kinds, "dddgiiii");
}

/// Makes bytes of a disk wrong that are in a unit: the first that are not zero.
fn spoil(disk: &FaultDisk, size: u64) {
    let at = disk.content(0..size).iter().position(|byte| *byte != 0).expect("content") as u64;
    disk.inject(FaultRule::new(OpKind::Read, Fault::Flip(0)).within(at..at + 1));
}

#[test]
fn a_scrub_finds_and_repairs_wrong_units() {
    let fs = parity();
    let size = 64 * longhaul_poolfs::testing::SEGMENT;
    let mounted = fs.open().expect("mounted");
    let content = pattern(400_000, 1);
    mounted.put(ROOT, b"file", &content).expect("written");
    for number in 0..20u8 {
        mounted.put(ROOT, &[b'a' + number], &pattern(500, number.into())).expect("written");
    }
    let clean = mounted.scrub().expect("read");
    assert!(clean.stripes > 20 && clean.wrong + clean.missing + clean.lost == 0, "{clean:?}");
    for (index, disk) in fs.disks.iter().enumerate() {
        // Of one stripe one unit is wrong at most: there is one wrong disk at a time.
        match index {
            0 => spoil(&disk.disk, size),
            _ => disk.disk.inject(FaultRule::new(OpKind::Read, Fault::Flip(0)).times(1)),
        }
        let found = mounted.scrub().expect("read");
        assert!(found.wrong == 1 && found.repaired > 0 && found.waiting + found.lost == 0, "{found:?}");
        assert_eq!(mounted.scrub().expect("read").wrong, 0, "it is repaired");
        assert!(mounted.content(ROOT, b"file").expect("read") == content);
    }
    // A read that has met a wrong unit has it repaired, too.
    fs.disks[0].disk.inject(FaultRule::new(OpKind::Read, Fault::Flip(100)).times(1));
    assert!(mounted.content(ROOT, b"file").expect("read") == content);
    assert_eq!(mounted.repair().expect("repaired"), 1);
    assert_eq!(mounted.repair().expect("nothing left"), 0);
    // A member that is missing is no wrong unit, and two wrong units are a loss with its files.
    fs.disks[2].set_gone(true);
    let found = mounted.scrub().expect("read");
    assert!(found.missing > 0 && found.wrong + found.lost == 0, "{found:?}");
    fs.disks[2].set_gone(false);
    mounted.find_members();
    for disk in &fs.disks[..2] {
        disk.disk.inject(FaultRule::new(OpKind::Read, Fault::Flip(9)));
    }
    let found = mounted.scrub().expect("read");
    assert!(found.lost > 0 && found.files.contains(&mounted.lookup(ROOT, b"file").expect("there").node.0));
    fs.disks.iter().for_each(|disk| disk.disk.heal());
    assert!(mounted.content(ROOT, b"file").expect("read") == content, "nothing was written over");
    drop(mounted);
    assert_right(&fs);
}
