//! Hosts that share a file system through a real etcd: leases that are asked back, a leader that is killed, and an
//! etcd that is away. Skipped where etcd is not installed.

#[path = "../../catalog/tests/common/mod.rs"]
mod catalog;
mod common;

use catalog::Etcd;
use common::{Calls, ROOT, WRITE, assert_right, mount, pattern};
use longhaul_fs::{Call, Errno, FileSystem, Node};
use longhaul_poolfs::testing::TestFs;
use longhaul_poolfs::{FsOptions, PoolFs};
use std::sync::Arc;
use std::time::Duration;

fn file_system(etcd: &Etcd) -> TestFs {
    TestFs::new(Arc::new(etcd.catalog("longhaul/")), 3, (2, 1), 64).expect("made")
}

fn sync(fs: &PoolFs, node: Node) -> common::Result<()> {
    fs.wait(Call::SyncDirectory { node }).map(drop)
}

#[test]
fn two_mounts_see_what_the_other_has_closed() {
    let Some(etcd) = Etcd::start(1) else { return longhaul_skip::skip!("etcd is not installed") };
    let fs = file_system(&etcd);
    let (one, two) = (mount(&fs, true), mount(&fs, true));
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
    assert_eq!(assert_right(&fs).files, 412);
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
    assert_eq!(two.list(top).expect("listed").len(), 300);
    two.put(top, b"two", b"two").expect("written");
    assert_eq!(one.content(top, b"two"), Ok(b"two".to_vec()));
    for file in 0..300u64 {
        let found = two.content(top, format!("{file}").as_bytes()).expect("read");
        assert!(found == pattern(2000, file), "{file}");
    }
    drop((one, two));
    let report = assert_right(&fs);
    assert_eq!((report.files, report.left), (301, Vec::new()));
}

#[test]
fn without_etcd_what_is_leased_is_read_and_what_waits_fails_in_time() {
    let Some(mut etcd) = Etcd::start(1) else { return longhaul_skip::skip!("etcd is not installed") };
    let fs = file_system(&etcd);
    let options = FsOptions { patience: Duration::from_secs(2), ..TestFs::leased() };
    let mounted = fs.open_by(Arc::clone(&fs.catalog), &options).expect("mounted");
    let top = mounted.make_directory(ROOT, b"top").expect("made").node;
    mounted.put(top, b"kept", &pattern(5000, 1)).expect("written");
    sync(&mounted, top).expect("synced");
    etcd.kill_leader();
    assert_eq!(mounted.lookup(top, b"none").map(drop), Err(Errno::NOENT));
    assert!(mounted.content(top, b"kept").expect("leased") == pattern(5000, 1));
    let (_, handle) = mounted.create(top, b"lost", WRITE).expect("in memory");
    mounted.write(handle, 0, b"lost").expect("in memory");
    assert_eq!(mounted.sync(handle), Err(Errno::IO));
    // It is unmounted all the same.
    drop(mounted);
}
