//! Snapshots have what was there when they were made, whatever is changed, moved, removed or lost afterwards; and
//! what they held is free again once they are removed. `POOLFS_SEEDS` and `POOLFS_SEED` as for the model.

mod common;

use common::counting::Counting;
use common::dying::{Dying, End};
use common::model::Model;
use common::{Calls, ROOT, TRUNCATE, WRITE, assert_right, memory, mount, number, pattern, until};
use longhaul_block::filter::OpKind;
use longhaul_block::testing::{Fault, FaultRule};
use longhaul_catalog::{Expect, FileCatalog, Txn};
use longhaul_fs::{Call, Errno, FileSystem, Node, Reply};
use longhaul_poolfs::testing::TestFs;
use longhaul_poolfs::{FsOptions, PoolFs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Bytes of content of a segment of two data units and parity on three disks.
const ROOM: usize = 512 << 10;

fn free(fs: &PoolFs) -> u64 {
    match fs.wait(Call::Statistics).expect("known") {
        Reply::Statistics(s) => s.free * u64::from(s.block_size),
        other => panic!("{other:?}"),
    }
}

fn parity(segments: u32) -> TestFs {
    TestFs::new(memory(), 3, (2, 1), segments).expect("made")
}

fn compare(fs: &TestFs, name: &str, model: &Model) {
    let snapshot = fs.open_snapshot(name).expect("opened");
    model.compare(&snapshot);
}

both! { snapshots_have_what_was_there }

fn snapshots_have_what_was_there(leases: bool) {
    let first = number("POOLFS_SEED", 1);
    for seed in first..first + number("POOLFS_SEEDS", 4) {
        println!("seed {seed}");
        let fs = parity(1600);
        let mut model = Model::new(seed);
        let mut snapshots: BTreeMap<String, Model> = BTreeMap::new();
        for round in 0..4 {
            let mounted = mount(&fs, leases);
            for step in 0..200 {
                model.step(&mounted);
                match model.rng.u8(0..100) {
                    0..4 if snapshots.len() < 5 => {
                        model.sync_all(&mounted);
                        let name = format!("{round}-{step}");
                        fs.make_snapshot(&name).expect("made");
                        snapshots.insert(name, model.copy());
                    }
                    4..6 if !snapshots.is_empty() => {
                        let at = model.rng.usize(..snapshots.len());
                        let name = snapshots.keys().nth(at).expect("there").clone();
                        snapshots.remove(&name);
                        fs.begin_snapshot_removal(&name, false).expect("removed");
                        // What is done meanwhile sees one that is half removed.
                        for _ in 0..model.rng.usize(0..6) {
                            model.step(&mounted);
                        }
                        if model.rng.bool() {
                            assert_right(&fs);
                        }
                        mounted.empty_removed().expect("emptied");
                    }
                    6..8 => {
                        mounted.tidy().expect("cleaned");
                        mounted.compact().expect("compacted");
                    }
                    8..10 => {
                        mounted.tidy().expect("cleaned");
                        assert_right(&fs);
                        for (name, model) in &snapshots {
                            compare(&fs, name, model);
                        }
                    }
                    _ => {}
                }
            }
            model.close_all(&mounted);
            model.compare(&mounted);
            drop(mounted);
            for disk in &fs.disks {
                disk.disk.cut_power();
            }
            let report = assert_right(&fs);
            assert_eq!(report.snapshots, snapshots.len() as u64);
            for (name, model) in &snapshots {
                compare(&fs, name, model);
            }
        }
        let mounted = mount(&fs, leases);
        for name in snapshots.keys() {
            fs.begin_snapshot_removal(name, false).expect("removed");
        }
        mounted.empty_removed().expect("emptied");
        model.compare(&mounted);
        drop(mounted);
        let report = assert_right(&fs);
        assert_eq!((report.snapshots, report.kept), (0, 0));
        for kind in ["p", "y", "t"] {
            let left = fs.catalog.range(format!("fs/{}/{kind}", fs.uuid).as_bytes(), None).expect("read");
            assert_eq!(left.entries.len(), 0, "records {kind} are left");
        }
    }
}

/// Overwrites a part of a file, and closes it.
fn overwrite(fs: &PoolFs, name: &[u8], at: u64, part: &[u8]) -> Result<(), Errno> {
    let node = fs.lookup(ROOT, name)?.node;
    let (_, handle) = fs.open(node, WRITE)?;
    fs.write(handle, at, part)?;
    fs.close(handle)
}

#[test]
fn what_snapshots_share_is_held_once_and_freed_with_the_last() {
    let fs = parity(64);
    let mounted = fs.open().expect("mounted");
    let before = free(&mounted);
    let content = pattern(4 * ROOM, 1);
    mounted.put(ROOT, b"file", &content).expect("written");
    mounted.put(ROOT, b"other", &pattern(ROOM, 2)).expect("written");
    let used = before - free(&mounted);
    fs.make_snapshot("one").expect("made");
    fs.make_snapshot("two").expect("made");
    assert_eq!(before - free(&mounted), used, "a snapshot takes no room");
    // A part goes, which both have, and a part of what is new, which the third one has.
    let mut third = content.clone();
    third[..ROOM].copy_from_slice(&pattern(ROOM, 3));
    overwrite(&mounted, b"file", 0, &third[..ROOM]).expect("written");
    fs.make_snapshot("three").expect("made");
    mounted.remove(ROOT, b"file", false).expect("removed");
    let held = |name: &str| {
        let all = fs.snapshots().expect("listed");
        all.into_iter().find(|one| one.name == name).map(|one| one.held)
    };
    assert_eq!(before - free(&mounted), used + ROOM as u64, "each byte is kept once");
    assert_eq!(fs.check().expect("checked").kept, 5 * ROOM as u64);
    let contents = |name: &str| fs.open_snapshot(name).expect("opened").content(ROOT, b"file").expect("read");
    assert!(contents("one") == content && contents("two") == content && contents("three") == third);
    // The first two hold nothing that the other one has not; the third alone has what was written last.
    assert_eq!([held("one"), held("two"), held("three")], [Some(0), Some(0), Some(ROOM as u64)]);
    for (name, freed) in [("two", 0), ("three", ROOM), ("one", 4 * ROOM)] {
        let (free_before, shown) = (free(&mounted), held(name));
        assert_eq!(shown, Some(freed as u64), "{name}");
        fs.begin_snapshot_removal(name, false).expect("removed");
        assert_eq!(fs.open_snapshot(name).err().map(|e| e.to_string().contains("no snapshot")), Some(true));
        mounted.empty_removed().expect("emptied");
        assert_eq!(free(&mounted) - free_before, freed as u64, "{name}");
        assert_right(&fs);
        if name != "one" {
            assert!(contents("one") == content);
        }
    }
    mounted.remove(ROOT, b"other", false).expect("removed");
    assert_eq!(free(&mounted), before);
    drop(mounted);
    assert_eq!(assert_right(&fs).segments.0, 0, "space is lost");
}

/// A lost host has left much that a mount of the file system would tidy up.
#[test]
fn a_mounted_snapshot_tidies_nothing_up() {
    let fs = parity(64);
    let lost = fs.open().expect("mounted");
    lost.put(ROOT, b"file", &pattern(ROOM, 1)).expect("written");
    fs.make_snapshot("one").expect("made");
    overwrite(&lost, b"file", 0, &pattern(ROOM / 2, 2)).expect("written");
    let lease = lost.lease();
    lost.lose();
    fs.catalog.revoke(lease).expect("revoked");
    let revision = || fs.catalog.range(b"", None).expect("read").revision;
    let open = |snapshot: Option<&str>| {
        let catalog = Counting::new(&fs.catalog);
        let (tidy, snapshot) = (Duration::from_millis(1), snapshot.map(str::to_owned));
        let options = FsOptions { tidy, snapshot, settle: Duration::ZERO, ..TestFs::options() };
        let mounted = fs.open_by(Arc::clone(&catalog) as _, &options).expect("mounted");
        (mounted, catalog)
    };
    let (snapshot, catalog) = open(Some("one"));
    let (before, mut looked) = (revision(), 0);
    until("it looks where its members are", || {
        looked += catalog.take();
        looked > 20
    });
    assert_eq!(revision(), before);
    assert!(snapshot.content(ROOT, b"file").expect("read") == pattern(ROOM, 1));
    // What it has left alone, this does not.
    let (_mounted, _) = open(None);
    let before = revision();
    until("it tidies up", || revision() > before);
}

#[test]
fn what_was_a_hole_in_an_earlier_snapshot_stays_one() {
    let fs = parity(64);
    let mounted = fs.open().expect("mounted");
    let node = mounted.put(ROOT, b"file", &pattern(300_000, 1)).expect("written");
    mounted.resize(node, 1_000_000).expect("longer");
    fs.make_snapshot("long").expect("made");
    mounted.resize(node, 200_000).expect("shorter");
    fs.make_snapshot("short").expect("made");
    overwrite(&mounted, b"file", 500_000, &pattern(300_000, 2)).expect("written");
    let mut long = pattern(300_000, 1);
    let short = long[..200_000].to_vec();
    long.resize(1_000_000, 0);
    let content = |name: &str| fs.open_snapshot(name).expect("opened").content(ROOT, b"file").expect("read");
    assert!(content("long") == long && content("short") == short);
    assert_right(&fs);
    fs.begin_snapshot_removal("short", false).expect("removed");
    assert!(content("long") == long);
    mounted.empty_removed().expect("emptied");
    assert!(content("long") == long);
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn a_file_that_lost_its_name_between_two_snapshots_is_in_the_first() {
    let fs = parity(64);
    let mounted = fs.open().expect("mounted");
    let node = mounted.put(ROOT, b"file", &pattern(300_000, 1)).expect("written");
    fs.make_snapshot("one").expect("made");
    let (_, handle) = mounted.open(node, 0).expect("opened");
    mounted.remove(ROOT, b"file", false).expect("removed");
    fs.make_snapshot("two").expect("made");
    mounted.close(handle).expect("closed");
    let content = || fs.open_snapshot("one").expect("opened").content(ROOT, b"file").expect("read");
    assert!(content() == pattern(300_000, 1));
    assert_eq!(fs.open_snapshot("two").expect("opened").list(ROOT).expect("listed").len(), 0);
    assert_right(&fs);
    fs.begin_snapshot_removal("two", false).expect("removed");
    mounted.empty_removed().expect("emptied");
    assert!(content() == pattern(300_000, 1));
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn a_snapshot_cannot_be_changed() {
    let fs = parity(64);
    let mounted = fs.open().expect("mounted");
    mounted.put(ROOT, b"file", b"content").expect("written");
    fs.make_snapshot("s").expect("made");
    assert!(fs.make_snapshot("s").expect_err("there").to_string().contains("is there already"));
    let snapshot = fs.open_snapshot("s").expect("opened");
    let node = snapshot.lookup(ROOT, b"file").expect("there").node;
    let refused = Some(Errno::ROFS);
    assert_eq!(snapshot.open(node, WRITE).err(), refused);
    assert_eq!(snapshot.open(node, TRUNCATE).err(), refused);
    assert_eq!(snapshot.create(ROOT, b"new", WRITE).err(), refused);
    assert_eq!(snapshot.remove(ROOT, b"file", false).err(), refused);
    assert_eq!(snapshot.make_directory(ROOT, b"new").err(), refused);
    assert_eq!(snapshot.resize(node, 0).err(), refused);
    assert_eq!(snapshot.rename((ROOT, b"file"), (ROOT, b"new"), 0).err(), refused);
    let xattr = Call::SetXattr { node, name: b"user.a".to_vec(), value: vec![1], flags: 0 };
    assert_eq!(snapshot.wait(xattr).err(), refused);
    // And it cannot be removed while it is mounted, unless that is forced.
    let error = fs.begin_snapshot_removal("s", false).expect_err("mounted").to_string();
    assert!(error.contains("it is mounted on host"), "{error}");
    assert_eq!(fs.snapshots().expect("listed")[0].mounts, ["host"]);
    mounted.put(ROOT, b"file", b"changed").expect("written");
    assert_eq!(snapshot.content(ROOT, b"file").expect("read"), b"content");
    fs.begin_snapshot_removal("s", true).expect("removed");
    assert_eq!(snapshot.content(ROOT, b"file").err(), Some(Errno::IO), "never what is there now");
    drop(snapshot);
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn programs_that_do_not_know_snapshots_are_refused() {
    let fs = parity(64);
    let mounted = fs.open().expect("mounted");
    mounted.put(ROOT, b"file", b"content").expect("written");
    let key = |kind: &str| format!("fs/{}/{kind}", fs.uuid).into_bytes();
    let known = fs.catalog.range(&key("e"), None).expect("read").entries;
    assert_eq!(known.len(), 1);
    // The session of an earlier program has no such record.
    fs.catalog.commit(&Txn::new().delete(&known[0].key)).expect("deleted");
    let error = fs.make_snapshot("s").expect_err("refused").to_string();
    assert!(error.contains("earlier program") && error.contains("on host"), "{error}");
    assert_eq!(fs.snapshots().expect("listed"), []);
    drop(mounted);
    let mounted = fs.open().expect("mounted");
    fs.make_snapshot("s").expect("made");
    // What earlier programs read first has a version that they do not know: of settings, and of the counters by
    // which sessions begin.
    let settings = fs.catalog.get(&key("s")).expect("read").expect("there").value;
    assert!(String::from_utf8(settings).expect("text").starts_with("{\"format\":3,"));
    assert_eq!(fs.catalog.get(&key("n")).expect("read").expect("there").value[0], 2);
    drop(mounted);
    let mounted = fs.open().expect("mounted");
    assert_eq!(mounted.content(ROOT, b"file").expect("read"), b"content");
    for number in 0..1100 {
        mounted.put(ROOT, format!("{number}").as_bytes(), b"").expect("made");
    }
    assert_eq!(fs.catalog.get(&key("n")).expect("read").expect("there").value[0], 2);
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn what_a_snapshot_has_of_a_file_that_another_host_removed_while_it_is_open_here_moves() {
    let fs = parity(64);
    let (here, there) = (fs.open().expect("mounted"), fs.open().expect("mounted"));
    let node = here.put(ROOT, b"file", &pattern(30_000, 1)).expect("written");
    here.put(ROOT, b"dead", &pattern(ROOM - 100_000, 2)).expect("written");
    // What follows is in the next segment.
    here.put(ROOT, b"more", &pattern(ROOM, 3)).expect("written");
    here.remove(ROOT, b"dead", false).expect("removed");
    fs.make_snapshot("s").expect("made");
    let (_, handle) = here.open(node, WRITE).expect("opened");
    there.remove(ROOT, b"file", false).expect("removed");
    there.tidy().expect("cleaned");
    here.tidy().expect("cleaned");
    here.compact().expect("compacted");
    let _ = here.close(handle);
    let snapshot = fs.open_snapshot("s").expect("opened");
    assert!(snapshot.content(ROOT, b"file").expect("read") == pattern(30_000, 1));
    drop((here, there, snapshot));
    assert_right(&fs);
}

/// Changes of all kinds, of what a snapshot has and of what is new.
fn change(fs: &PoolFs) -> Result<(), Errno> {
    overwrite(fs, b"large", 100_000, &pattern(300_000, 50))?;
    overwrite(fs, b"large", 150_000, &pattern(300_000, 51))?;
    overwrite(fs, b"small", 10, b"other")?;
    let large = fs.lookup(ROOT, b"large")?.node;
    fs.resize(large, 17 << 20)?;
    fs.resize(large, 200_000)?;
    overwrite(fs, b"large", 180_000, &pattern(100_000, 52))?;
    fs.rename((ROOT, b"small"), (ROOT, b"moved"), 0)?;
    let directory = fs.lookup(ROOT, b"directory")?.node;
    fs.remove(directory, b"inner", false)?;
    fs.remove(ROOT, b"directory", true)?;
    fs.put(ROOT, b"small", b"another one")?;
    let node = fs.lookup(ROOT, b"moved")?.node;
    fs.wait(Call::RemoveXattr { node, name: b"user.a".to_vec() })?;
    fs.tidy()?;
    fs.compact()?;
    fs.remove(ROOT, b"large", false)
}

fn prepare(fs: &PoolFs) {
    fs.put(ROOT, b"large", &pattern(17 << 20, 1)).expect("written");
    let node = fs.put(ROOT, b"small", &pattern(5000, 2)).expect("written");
    fs.wait(Call::SetXattr { node, name: b"user.a".to_vec(), value: vec![7], flags: 0 }).expect("set");
    let directory = fs.make_directory(ROOT, b"directory").expect("made").node;
    fs.put(directory, b"inner", &pattern(70_000, 3)).expect("written");
}

fn assert_prepared(fs: &PoolFs) {
    assert_eq!(fs.list(ROOT).expect("listed").len(), 3);
    assert!(fs.content(ROOT, b"large").expect("read") == pattern(17 << 20, 1));
    assert!(fs.content(ROOT, b"small").expect("read") == pattern(5000, 2));
    let node = fs.lookup(ROOT, b"small").expect("there").node;
    match fs.wait(Call::GetXattr { node, name: b"user.a".to_vec() }).expect("there") {
        Reply::Bytes(value) => assert_eq!(value, [7]),
        other => panic!("{other:?}"),
    }
    let directory = fs.lookup(ROOT, b"directory").expect("there").node;
    assert!(fs.content(directory, b"inner").expect("read") == pattern(70_000, 3));
}

/// Takes over what lost hosts leave, and looks at everything.
fn assert_recovered(fs: &TestFs, snapshot: &str, what: &str) {
    for disk in &fs.disks {
        disk.disk.cut_power();
    }
    let mounted = fs.open().expect("mounted");
    mounted.tidy().expect("cleaned");
    mounted.tidy().expect("cleaned");
    assert_right(fs);
    assert_prepared(&fs.open_snapshot(snapshot).expect(what));
    while mounted.compact().expect("compacted") > 0 {}
    assert_prepared(&fs.open_snapshot(snapshot).expect(what));
}

#[test]
fn a_host_that_is_lost_at_any_transaction_after_a_snapshot_leaves_it_as_it_was() {
    let transactions = {
        let fs = parity(160);
        prepare(&fs.open().expect("mounted"));
        fs.make_snapshot("s").expect("made");
        let counting = Dying::new(&fs.catalog, 1 << 32, End::Before);
        let mounted = fs.open_by(counting.clone(), &TestFs::options()).expect("mounted");
        change(&mounted).expect("changed");
        (1 << 32) - counting.left()
    };
    assert!(transactions > 20, "only {transactions} transactions");
    for end in [End::Before, End::After, End::AnswerLost] {
        for at in 1..=transactions {
            let fs = parity(160);
            prepare(&fs.open().expect("mounted"));
            fs.make_snapshot("s").expect("made");
            let dying = Dying::new(&fs.catalog, at, end);
            let Ok(mounted) = fs.open_by(dying.clone(), &TestFs::options()) else { continue };
            let changed = change(&mounted);
            assert!(end != End::AnswerLost || changed.is_ok(), "transaction {at}: {changed:?}");
            let lease = mounted.lease();
            mounted.lose();
            fs.catalog.revoke(lease).expect("ended");
            assert_recovered(&fs, "s", &format!("{end:?} {at}"));
        }
    }
}

#[test]
fn a_host_that_is_lost_at_any_transaction_of_a_removal_leaves_the_others() {
    let prepared = || {
        let fs = parity(160);
        let mounted = fs.open().expect("mounted");
        let first = free(&mounted);
        prepare(&mounted);
        fs.make_snapshot("s").expect("made");
        overwrite(&mounted, b"large", 1000, &pattern(50_000, 60)).expect("written");
        fs.make_snapshot("gone").expect("made");
        change(&mounted).expect("changed");
        fs.make_snapshot("last").expect("made");
        mounted.put(ROOT, b"small", b"again").expect("written");
        (fs, first)
    };
    let remove = |fs: &TestFs, catalog: Arc<Dying>| {
        let lost = |_| Errno::IO;
        let mut below = fs.clone();
        below.catalog = catalog.clone();
        below.begin_snapshot_removal("gone", false).map_err(lost)?;
        let mounted = fs.open_by(catalog, &TestFs::options()).map_err(lost)?;
        let emptied = mounted.empty_removed();
        let lease = mounted.lease();
        match emptied {
            Ok(()) => drop(mounted),
            Err(_) => mounted.lose(),
        }
        fs.catalog.revoke(lease).expect("ended");
        emptied
    };
    let transactions = {
        let (fs, _) = prepared();
        let counting = Dying::new(&fs.catalog, 1 << 32, End::Before);
        remove(&fs, counting.clone()).expect("removed");
        (1 << 32) - counting.left()
    };
    assert!(transactions > 3, "only {transactions} transactions");
    for end in [End::Before, End::After, End::AnswerLost] {
        for at in 0..=transactions {
            let (fs, first) = prepared();
            let removed = remove(&fs, Dying::new(&fs.catalog, at, end));
            let what = format!("{end:?} {at}: {removed:?}");
            assert!(end != End::AnswerLost || removed.is_ok(), "{what}");
            assert_recovered(&fs, "s", &what);
            // Another host goes on.
            let mounted = fs.open().expect("mounted");
            let left: Vec<String> = fs
                .snapshots()
                .expect("listed")
                .iter()
                .filter(|one| !one.is_removed)
                .map(|one| one.name.clone())
                .collect();
            assert!(left.contains(&"s".to_owned()) && left.contains(&"last".to_owned()), "{what}: {left:?}");
            for name in &left {
                fs.begin_snapshot_removal(name, false).expect("removed");
            }
            mounted.empty_removed().expect("emptied");
            mounted.remove(ROOT, b"small", false).expect("removed");
            mounted.remove(ROOT, b"moved", false).expect("removed");
            mounted.tidy().expect("cleaned");
            assert_eq!(free(&mounted), first, "{what}");
            drop(mounted);
            assert_eq!(assert_right(&fs).segments.0, 0, "{what}: space is lost");
        }
    }
}

#[test]
fn making_a_snapshot_is_one_step() {
    for end in [End::Before, End::After, End::AnswerLost] {
        let fs = parity(160);
        let mounted = fs.open().expect("mounted");
        prepare(&mounted);
        let mut below = fs.clone();
        below.catalog = Dying::new(&fs.catalog, 0, end);
        let made = below.make_snapshot("s");
        assert_eq!(made.is_ok(), end == End::AnswerLost, "{end:?}: {made:?}");
        let all = fs.snapshots().expect("listed");
        assert_eq!(all.len(), usize::from(end != End::Before), "{end:?}");
        if end == End::Before {
            fs.make_snapshot("s").expect("made");
        }
        change(&mounted).expect("changed");
        assert_prepared(&fs.open_snapshot("s").expect("opened"));
        drop(mounted);
        assert_right(&fs);
    }
}

#[test]
fn a_snapshot_is_of_one_moment_of_all_hosts() {
    const FILES: usize = 6;
    const LEN: usize = 40_000;
    let fs = parity(400);
    let block = |version: u64| version.to_be_bytes().repeat(LEN / 8);
    let mounted = fs.open().expect("mounted");
    for file in 0..FILES {
        mounted.put(ROOT, format!("{file}").as_bytes(), &block(0)).expect("written");
    }
    let (done, synced) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Two hosts write the files in turns: each version of one after that of the one before it.
        let (done, synced, fs) = (&done, &synced, &fs);
        let writer = scope.spawn(move || {
            let hosts = [fs.open().expect("mounted"), fs.open().expect("mounted")];
            let mut version = 0;
            while !done.load(SeqCst) {
                version += 1;
                for file in 0..FILES {
                    let host = &hosts[file % 2];
                    overwrite(host, format!("{file}").as_bytes(), 0, &block(version)).expect("written");
                }
                synced.store(version, SeqCst);
                hosts[0].tidy().expect("cleaned");
            }
            version
        });
        let mover = scope.spawn(move || {
            let host = fs.open().expect("mounted");
            while !done.load(SeqCst) {
                host.tidy().expect("cleaned");
                host.compact().expect("compacted");
            }
        });
        let mut seen = Vec::new();
        for round in 0..12 {
            let least = synced.load(SeqCst);
            while synced.load(SeqCst) < least + 3 {
                std::thread::yield_now();
            }
            let (name, least) = (format!("s{round}"), synced.load(SeqCst));
            fs.make_snapshot(&name).expect("made");
            let most = synced.load(SeqCst) + 1;
            let read = || {
                let snapshot = fs.open_snapshot(&name).expect("opened");
                let version = |file: usize| {
                    let content = snapshot.content(ROOT, format!("{file}").as_bytes()).expect("read");
                    let version = u64::from_be_bytes(content[..8].try_into().expect("eight bytes"));
                    assert!(content == block(version), "{name}: file {file} is of two versions");
                    version
                };
                (0..FILES).map(version).collect::<Vec<_>>()
            };
            let versions = read();
            assert!(versions.iter().all(|version| (least..=most).contains(version)), "{least}: {versions:?}");
            assert!(versions.windows(2).all(|pair| pair[0] >= pair[1]), "{name}: {versions:?}");
            assert!(versions[0] - versions[FILES - 1] <= 1, "{name}: {versions:?}");
            seen.push((name.clone(), versions.clone()));
            for (name, versions) in &seen {
                let snapshot = fs.open_snapshot(name).expect("opened");
                for (file, version) in versions.iter().enumerate() {
                    let content = snapshot.content(ROOT, format!("{file}").as_bytes()).expect("read");
                    assert!(content == block(*version), "{name}: file {file}");
                }
            }
            if seen.len() > 4 {
                let (name, _) = seen.remove(round % 3);
                fs.begin_snapshot_removal(&name, false).expect("removed");
                mounted.empty_removed().expect("emptied");
            }
        }
        done.store(true, SeqCst);
        assert!(writer.join().expect("no panic") > 12);
        mover.join().expect("no panic");
    });
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn what_snapshots_have_is_scrubbed_and_moves_with_members() {
    let fs = parity(64);
    let mounted = fs.open().expect("mounted");
    let content = pattern(3 * ROOM, 1);
    mounted.put(ROOT, b"file", &content).expect("written");
    fs.make_snapshot("s").expect("made");
    mounted.put(ROOT, b"file", b"new").expect("written");
    mounted.tidy().expect("cleaned");
    let read = || fs.open_snapshot("s").expect("opened").content(ROOT, b"file").expect("read");
    // Bytes of a member are wrong.
    let spoil = || fs.disks[0].disk.inject(FaultRule::new(OpKind::Read, Fault::Flip(0)).times(3));
    spoil();
    assert!(read() == content);
    fs.disks[0].disk.heal();
    spoil();
    let report = mounted.scrub().expect("scrubbed");
    assert!(report.wrong > 0 && report.repaired > 0 && report.lost == 0, "{report:?}");
    assert_eq!(mounted.scrub().expect("scrubbed").wrong, 0);
    assert_right(&fs);
    // A member is lost, and made again from the others; then another one is lost.
    let (to, _) = fs.add_disk(64);
    fs.disks[1].set_gone(true);
    mounted.find_members();
    mounted.place_member(1, to, false).expect("placed");
    let filled = mounted.fill(1).expect("filled");
    assert!(filled.bytes > 0 && filled.lost == 0, "{filled:?}");
    fs.disks[2].set_gone(true);
    mounted.find_members();
    assert!(read() == content, "what the snapshot has was made again on the new member");
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn a_file_that_is_changed_in_very_many_places_after_a_snapshot_can_be_written() {
    let fs = TestFs::new(memory(), 2, (1, 1), 400).expect("made");
    let mounted = fs.open().expect("mounted");
    let content = pattern(6 << 20, 9);
    let node = mounted.put(ROOT, b"file", &content).expect("written");
    fs.make_snapshot("s").expect("made");
    let mut now = content.clone();
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 0..30 {
        let (_, handle) = mounted.open(node, WRITE).expect("opened");
        for _ in 0..1000 {
            let at = rng.usize(..now.len() - 8);
            mounted.write(handle, at as u64, &[round; 8]).expect("written");
            now[at..at + 8].fill(round);
        }
        mounted.close(handle).expect("closed");
    }
    assert!(mounted.content(ROOT, b"file").expect("read") == now);
    assert!(fs.open_snapshot("s").expect("opened").content(ROOT, b"file").expect("read") == content);
    let prefix = format!("fs/{}/y", fs.uuid).into_bytes();
    let kept = fs.catalog.range(&prefix, None).expect("read").entries;
    assert!(kept.iter().all(|entry| entry.value.len() < 600 << 10), "{}", kept[0].value.len());
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn names_and_listings_of_a_snapshot_are_complete_over_many_pages() {
    let fs = parity(64);
    let mounted = fs.open_by(Arc::clone(&fs.catalog), &TestFs::leased()).expect("mounted");
    let directory = mounted.make_directory(ROOT, b"many").expect("made").node;
    let name = |number: usize| format!("{number:05}").into_bytes();
    let make = |from: usize, to: usize| {
        for number in from..to {
            mounted.put(directory, &name(number), b"").expect("made");
        }
        mounted.wait(Call::SyncDirectory { node: directory }).expect("synced");
    };
    make(0, 2500);
    fs.make_snapshot("one").expect("made");
    make(2500, 5000);
    for number in (0..5000).step_by(2) {
        mounted.remove(directory, &name(number), false).expect("removed");
    }
    fs.make_snapshot("two").expect("made");
    for number in (1..5000).step_by(2) {
        mounted.rename((directory, &name(number)), (directory, &name(number + 10_000)), 0).expect("moved");
    }
    let names = |fs: &PoolFs| fs.list(Node(directory.0)).expect("listed").into_keys().collect::<Vec<_>>();
    assert_eq!(names(&fs.open_snapshot("one").expect("opened")), (0..2500).map(name).collect::<Vec<_>>());
    let odd = (1..5000).step_by(2).map(name).collect::<Vec<_>>();
    assert_eq!(names(&fs.open_snapshot("two").expect("opened")), odd);
    fs.begin_snapshot_removal("two", false).expect("removed");
    mounted.empty_removed().expect("emptied");
    assert_eq!(names(&fs.open_snapshot("one").expect("opened")), (0..2500).map(name).collect::<Vec<_>>());
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn a_transaction_that_does_not_know_a_snapshot_is_not_made() {
    let fs = parity(64);
    let mounted = fs.open().expect("mounted");
    mounted.put(ROOT, b"file", b"content").expect("written");
    fs.make_snapshot("s").expect("made");
    // What it expects is there: the count of changes, of which this is another one.
    let key = format!("fs/{}/v", fs.uuid).into_bytes();
    let before = fs.catalog.get(&key).expect("read").expect("there");
    mounted.put(ROOT, b"file", b"other").expect("written");
    let txn = Txn::new().expect(&key, Expect::Modified(before.modified)).put(&key, &before.value);
    fs.catalog.commit(&txn).expect("put");
    mounted.put(ROOT, b"file", b"and another").expect("the session reads the snapshots again");
    assert_eq!(fs.open_snapshot("s").expect("opened").content(ROOT, b"file").expect("read"), b"content");
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn a_check_finds_what_is_wrong_with_snapshots() {
    let fs = parity(160);
    let mounted = fs.open().expect("mounted");
    prepare(&mounted);
    fs.make_snapshot("one").expect("made");
    change(&mounted).expect("changed");
    fs.make_snapshot("two").expect("made");
    mounted.put(ROOT, b"small", b"changed").expect("written");
    drop(mounted);
    assert_eq!(assert_right(&fs).snapshots, 2);
    let prefix = format!("fs/{}/", fs.uuid).into_bytes();
    let mut kinds = BTreeMap::new();
    for entry in fs.catalog.range(&prefix, None).expect("read").entries {
        let kind = char::from(entry.key[prefix.len()]);
        if !matches!(kind, 'p' | 'y') {
            continue;
        }
        *kinds.entry(kind).or_insert(0) += 1;
        // Each record is needed, and a damaged one is found.
        fs.catalog.commit(&Txn::new().delete(&entry.key)).expect("changed");
        assert_ne!(fs.check().expect("checked").count, 0, "without {:?}", entry.key);
        let cut = &entry.value[..entry.value.len() - 1];
        fs.catalog.commit(&Txn::new().put(&entry.key, cut)).expect("changed");
        assert_ne!(fs.check().expect("checked").count, 0, "with a damaged {:?}", entry.key);
        fs.catalog.commit(&Txn::new().put(&entry.key, &entry.value)).expect("changed");
        assert_right(&fs);
    }
    assert!(kinds[&'p'] > 6 && kinds[&'y'] > 2, "{kinds:?}");
}

/// `cargo test -p longhaul-poolfs --test snapshots -- --ignored --nocapture` prints what is in the documentation.
#[test]
#[ignore = "measures"]
fn what_a_snapshot_of_many_files_costs() {
    const FILES: usize = 100_000;
    let directory = tempfile::tempdir().expect("a directory");
    let catalog = FileCatalog::open(&directory.path().join("catalog")).expect("opened");
    let fs = TestFs::new(Arc::new(catalog), 3, (2, 1), 2000).expect("made");
    let mounted = fs.open_by(Arc::clone(&fs.catalog), &TestFs::leased()).expect("mounted");
    let top = mounted.make_directory(ROOT, b"many").expect("made").node;
    let name = |number: usize| format!("{number:06}").into_bytes();
    let files: Vec<Node> =
        (0..FILES).map(|number| mounted.put(top, &name(number), b"content").expect("made")).collect();
    mounted.wait(Call::SyncDirectory { node: top }).expect("synced");
    drop(mounted);
    // Each file is durable when it is closed.
    let mounted = fs.open().expect("mounted");
    let timed = |what: &str, call: &mut dyn FnMut()| {
        let begun = std::time::Instant::now();
        call();
        println!("{what}: {:.3} s", begun.elapsed().as_secs_f64());
    };
    let change = |files: &[Node]| {
        for node in files {
            let (_, handle) = mounted.open(*node, WRITE).expect("opened");
            mounted.write(handle, 0, b"changed").expect("written");
            mounted.close(handle).expect("closed");
        }
    };
    timed("1,000 files overwritten without a snapshot", &mut || change(&files[..1000]));
    timed("a snapshot of 100,000 files", &mut || {
        fs.make_snapshot("s").expect("made");
    });
    timed("1,000 files overwritten for the first time after it", &mut || change(&files[1000..2000]));
    timed("the same again", &mut || change(&files[1000..2000]));
    timed("the snapshot listed with its 100,000 names", &mut || {
        let snapshot = fs.open_snapshot("s").expect("opened");
        assert_eq!(snapshot.list(top).expect("listed").len(), FILES);
    });
    let kept = |kind: &str| {
        let all = fs.catalog.range(format!("fs/{}/{kind}", fs.uuid).as_bytes(), None).expect("read").entries;
        let bytes: usize = all.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
        println!("records {kind}: {} of {bytes} bytes", all.len());
    };
    kept("p");
    kept("y");
    fs.begin_snapshot_removal("s", false).expect("removed");
    timed("its removal", &mut || mounted.empty_removed().expect("emptied"));
}
