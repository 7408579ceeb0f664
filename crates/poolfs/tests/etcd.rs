//! Hosts that share a file system through a real etcd, and through a catalog server: leases that are asked back, a
//! leader that is killed, a server that starts again, and an engine that is away. Skipped where etcd is not installed.

#[path = "../../catalog/tests/common/mod.rs"]
mod catalog;
mod common;

use catalog::{Etcd, Server};
use common::{Calls, ROOT, WRITE, assert_right, mount, pattern};
use longhaul_catalog::Catalog;
use longhaul_fs::{Call, Errno, FileSystem, Node};
use longhaul_poolfs::testing::TestFs;
use longhaul_poolfs::{FsOptions, Owner, PoolFs};
use std::sync::Arc;
use std::time::Duration;

fn on(catalog: Arc<dyn Catalog>) -> TestFs {
    TestFs::new(catalog, 3, (2, 1), 64).expect("made")
}

fn file_system(etcd: &Etcd) -> TestFs {
    on(Arc::new(etcd.catalog("longhaul/")))
}

/// A server, its directory, and a file system in it.
fn served() -> (tempfile::TempDir, Server, TestFs) {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::start(&dir.path().join("catalog"));
    let fs = on(Arc::new(server.catalog()));
    (dir, server, fs)
}

/// 300 files that `one` has made in `top` are seen by `two`, and what `two` makes by `one`; then both leave.
fn all_are_there(fs: &TestFs, top: Node, one: PoolFs, two: PoolFs) {
    assert_eq!(two.list(top).expect("listed").len(), 300);
    two.put(top, b"two", b"two").expect("written");
    assert_eq!(one.content(top, b"two"), Ok(b"two".to_vec()));
    for file in 0..300u64 {
        let found = two.content(top, format!("{file}").as_bytes()).expect("read");
        assert!(found == pattern(2000, file), "{file}");
    }
    drop((one, two));
    let report = assert_right(fs);
    assert_eq!((report.files, report.left), (301, Vec::new()));
}

fn sync(fs: &PoolFs, node: Node) -> common::Result<()> {
    fs.wait(Call::SyncDirectory { node }).map(drop)
}

#[test]
fn two_mounts_see_what_the_other_has_closed() {
    let Some(etcd) = Etcd::start(1) else { return longhaul_skip::skip!("etcd is not installed") };
    see_what_the_other_has_closed(&file_system(&etcd));
}

#[test]
fn two_mounts_at_a_server_see_what_the_other_has_closed() {
    let (_dir, server, fs) = served();
    // Connections of their own, as other hosts have them.
    let other = fs.open_by(Arc::new(server.catalog()), &TestFs::leased()).expect("mounted");
    other.make_directory(ROOT, b"other").expect("made");
    drop(other);
    see_what_the_other_has_closed(&fs);
}

fn see_what_the_other_has_closed(fs: &TestFs) {
    let (one, two) = (mount(fs, true), mount(fs, true));
    let top = one.make_directory(ROOT, b"top").expect("made").node;
    // More than one transaction of etcd may have without others within it.
    for file in 0..400u64 {
        one.put(top, format!("{file}").as_bytes(), &pattern(900, file)).expect("written");
    }
    assert_eq!(two.list(top).expect("listed").len(), 400);
    for round in 0..6u64 {
        let name = format!("round {round}").into_bytes();
        let (here, there) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        here.put(top, &name, &pattern(10_000, round)).expect("written");
        here.put(top, &[&name[..], b" more"].concat(), &pattern(100, round)).expect("written");
        assert!(there.content(top, &name).expect("read") == pattern(10_000, round), "round {round}");
        assert_eq!(there.attributes(top), here.attributes(top));
    }
    drop((one, two));
    assert_eq!(assert_right(fs).files, 412);
}

#[test]
fn quotas_and_snapshots_hold_by_etcd() {
    let Some(etcd) = Etcd::start(1) else { return longhaul_skip::skip!("etcd is not installed") };
    quotas_and_snapshots_hold(&file_system(&etcd));
}

#[test]
fn quotas_and_snapshots_hold_by_a_server() {
    let (_dir, _server, fs) = served();
    quotas_and_snapshots_hold(&fs);
}

/// Two hosts have a limit together, and a snapshot keeps what one of them writes over.
fn quotas_and_snapshots_hold(fs: &TestFs) {
    let user = Owner::User(1);
    fs.set_quota(user, Some(1_000_000), None).expect("set");
    let (one, two) = (mount(fs, true), mount(fs, false));
    let first = pattern(700_000, 1);
    one.put(ROOT, b"kept", &first).expect("written");
    sync(&one, ROOT).expect("synced");
    assert_eq!(two.put(ROOT, b"other", &pattern(700_000, 2)).map(drop), Err(Errno::DQUOT));
    fs.make_snapshot("before").expect("made");
    // What the snapshot alone has is of no user.
    let second = pattern(700_000, 3);
    one.put(ROOT, b"kept", &second).expect("written over");
    sync(&one, ROOT).expect("synced");
    let snapshot = fs.open_snapshot("before").expect("opened");
    assert!(snapshot.content(ROOT, b"kept").expect("read") == first);
    assert!(two.content(ROOT, b"kept").expect("read") == second);
    drop(snapshot);
    two.remove(ROOT, b"kept", false).expect("removed");
    two.put(ROOT, b"other", &second).expect("there is room for it now");
    fs.begin_snapshot_removal("before", false).expect("begun");
    one.empty_removed().expect("freed");
    drop((one, two));
    let report = assert_right(fs);
    assert_eq!((report.snapshots, report.kept, report.bytes), (0, 0, 700_000), "{report:?}");
    let used =
        fs.quotas().expect("listed").into_iter().find(|quota| quota.owner == user).map(|quota| quota.used);
    assert_eq!(used.map(|used| used.bytes), Some(700_000));
}

#[test]
fn what_is_made_while_a_server_starts_again_is_there_once() {
    let (_dir, mut server, fs) = served();
    let one = fs.open_by(Arc::new(server.catalog()), &TestFs::leased()).expect("mounted");
    let two = fs.open_by(Arc::new(server.catalog()), &TestFs::leased()).expect("mounted");
    let top = one.make_directory(ROOT, b"top").expect("made").node;
    let make = |from: u64| {
        for file in from..from + 150 {
            one.put(top, format!("{file}").as_bytes(), &pattern(2000, file)).expect("written");
        }
    };
    make(0);
    std::thread::scope(|scope| {
        scope.spawn(|| make(150));
        for _ in 0..3 {
            server.restart();
            sync(&one, top).expect("synced");
        }
    });
    sync(&one, top).expect("synced");
    all_are_there(&fs, top, one, two);
}

#[test]
fn files_that_are_known_already_are_written_and_renamed_many_at_a_time() {
    let Some(etcd) = Etcd::start(1) else { return longhaul_skip::skip!("etcd is not installed") };
    let fs = file_system(&etcd);
    let options = FsOptions { patience: Duration::from_secs(20), ..TestFs::leased() };
    let mounted = fs.open_by(Arc::clone(&fs.catalog), &options).expect("mounted");
    let top = mounted.make_directory(ROOT, b"top").expect("made").node;
    let temporary = |file: u64| format!(".{file}").into_bytes();
    let mut handles = Vec::new();
    for file in 0..200 {
        let (_, handle) = mounted.create(top, &temporary(file), WRITE).expect("made");
        mounted.write(handle, 0, &pattern(900, file)).expect("written");
        mounted.flush(handle).expect("flushed");
        handles.push(handle);
    }
    sync(&mounted, top).expect("all are in the catalog");
    // Each of these is expected as it is there, and a transaction has as many as etcd takes.
    for (file, handle) in (0..200).zip(handles) {
        mounted.write(handle, 900, &pattern(100, file + 1000)).expect("written");
        mounted.close(handle).expect("closed");
        let (name, new_name) = (temporary(file), format!("{file}").into_bytes());
        let rename = Call::Rename { parent: top, name, new_parent: top, new_name, flags: 0 };
        mounted.wait(rename).expect("renamed");
    }
    sync(&mounted, top).expect("they are written");
    for file in 0..200 {
        let whole = [pattern(900, file), pattern(100, file + 1000)].concat();
        assert!(mounted.content(top, format!("{file}").as_bytes()).expect("read") == whole, "{file}");
    }
    drop(mounted);
    assert_eq!(assert_right(&fs).files, 200);
}

#[test]
fn what_is_made_while_the_leader_is_killed_is_there_once() {
    let Some(mut etcd) = Etcd::start(3) else { return longhaul_skip::skip!("etcd is not installed") };
    let fs = file_system(&etcd);
    let (one, two) = (mount(&fs, true), mount(&fs, true));
    let top = one.make_directory(ROOT, b"top").expect("made").node;
    let make = |from: u64| {
        for file in from..from + 150 {
            one.put(top, format!("{file}").as_bytes(), &pattern(2000, file)).expect("written");
        }
    };
    make(0);
    std::thread::scope(|scope| {
        scope.spawn(|| make(150));
        etcd.kill_leader();
    });
    sync(&one, top).expect("synced");
    // The other host asks the new leader, and hears of what comes after.
    all_are_there(&fs, top, one, two);
}

#[test]
fn without_etcd_what_is_leased_is_read_and_what_waits_fails_in_time() {
    let Some(mut etcd) = Etcd::start(1) else { return longhaul_skip::skip!("etcd is not installed") };
    let fs = file_system(&etcd);
    what_is_leased_is_read_without(&fs, || _ = etcd.kill_leader());
}

#[test]
fn without_its_server_what_is_leased_is_read_and_what_waits_fails_in_time() {
    let (_dir, mut server, fs) = served();
    what_is_leased_is_read_without(&fs, || server.stop());
}

fn what_is_leased_is_read_without(fs: &TestFs, end: impl FnOnce()) {
    let options = FsOptions { patience: Duration::from_secs(2), ..TestFs::leased() };
    let mounted = fs.open_by(Arc::clone(&fs.catalog), &options).expect("mounted");
    let top = mounted.make_directory(ROOT, b"top").expect("made").node;
    mounted.put(top, b"kept", &pattern(5000, 1)).expect("written");
    sync(&mounted, top).expect("synced");
    end();
    assert_eq!(mounted.lookup(top, b"none").map(drop), Err(Errno::NOENT));
    assert!(mounted.content(top, b"kept").expect("leased") == pattern(5000, 1));
    let (_, handle) = mounted.create(top, b"lost", WRITE).expect("in memory");
    mounted.write(handle, 0, b"lost").expect("in memory");
    assert_eq!(mounted.sync(handle), Err(Errno::IO));
    // It is unmounted all the same.
    drop(mounted);
}
