//! A mount frees the content of large files after the calls that removed them have returned. A write that needs the
//! room or the quota waits for that, and another host frees what a lost one has left.

mod common;

use common::held::{Held, Hold};
use common::{Calls, ROOT, WRITE, assert_right, parity, pattern, until};
use longhaul_catalog::Catalog;
use longhaul_fs::{Call, Errno, FileSystem};
use longhaul_poolfs::testing::TestFs;
use longhaul_poolfs::{FsOptions, Owner, PoolFs};
use std::sync::Arc;
use std::time::Duration;

/// The threads that free.
const REAPERS: &str = "longhaul-reap";
/// Bytes of a part of the map of a file, which is a record of its own.
const CHUNK: u64 = 16 << 20;

both! {
    removals_and_closes_do_not_wait
    room_that_is_freed_is_waited_for
    quota_that_is_freed_is_waited_for
    what_a_lost_host_has_removed_is_freed_by_another
    what_could_not_be_freed_is_tried_again
    an_unmount_leaves_nothing
}

/// A host that cleans now and then, and the calls to its catalog.
fn mounted(fs: &TestFs, leases: bool, hold: Hold, tidy: Duration) -> (Arc<Held>, PoolFs) {
    let held = Held::new(&fs.catalog, REAPERS, hold);
    let usual = if leases { TestFs::leased() } else { TestFs::options() };
    let options = FsOptions { tidy, ..usual };
    let mounted = fs.open_by(Arc::clone(&held) as Arc<dyn Catalog>, &options).expect("mounted");
    (held, mounted)
}

/// For hosts that clean at no time.
const NEVER: Duration = Duration::from_secs(3600);

/// Makes a file of some bytes in each of as many parts.
fn make(fs: &PoolFs, name: &[u8], chunks: u64) {
    let (_, handle) = fs.create(ROOT, name, WRITE).expect("made");
    for chunk in 0..chunks {
        fs.write(handle, chunk * CHUNK, &pattern(4096, chunk)).expect("written");
    }
    fs.close(handle).expect("closed");
}

/// Bytes of content that inodes have, with those of removed files that are not freed yet.
fn used(fs: &TestFs) -> i64 {
    let all = fs.quotas().expect("listed");
    all.iter().find(|quota| quota.owner == Owner::User(1)).map_or(0, |quota| quota.used.bytes)
}

/// A file system that counts what its users have.
fn counted() -> TestFs {
    let fs = parity();
    fs.set_quota(Owner::User(1), None, Some(1_000_000)).expect("set");
    fs
}

fn removals_and_closes_do_not_wait(leases: bool) {
    let fs = counted();
    let (held, mounted) = mounted(&fs, leases, Hold::Waits, NEVER);
    for name in ["removed", "covered", "still in"].map(str::as_bytes) {
        make(&mounted, name, 100);
    }
    make(&mounted, b"new", 1);
    // Removed, replaced by a rename, and closed after it was removed: each returns while nothing can be freed.
    mounted.remove(ROOT, b"removed", false).expect("removed");
    mounted.rename((ROOT, b"new"), (ROOT, b"covered"), 0).expect("renamed");
    let (_, handle) =
        mounted.open(mounted.lookup(ROOT, b"still in").expect("there").node, WRITE).expect("opened");
    mounted.remove(ROOT, b"still in", false).expect("removed");
    assert_eq!(mounted.read(handle, CHUNK, 4096).expect("read"), pattern(4096, 1));
    mounted.close(handle).expect("closed");
    mounted.wait(Call::SyncDirectory { node: ROOT }).expect("synced");
    let names: Vec<Vec<u8>> = mounted.list(ROOT).expect("listed").into_keys().collect();
    assert_eq!(names, [b"covered"]);
    assert_eq!(used(&fs), 301 * 4096, "nothing is freed yet");
    held.set(Hold::Open);
    until("all is freed", || used(&fs) == 4096);
    assert_right(&fs);
}

fn room_that_is_freed_is_waited_for(leases: bool) {
    let fs = parity();
    let (_, mounted) = mounted(&fs, leases, Hold::Slow, NEVER);
    let fill = |name: &[u8]| -> Result<u64, Errno> {
        let (_, handle) = mounted.create(ROOT, name, WRITE)?;
        let mut done = 0;
        let written = loop {
            // One part of the map for each MiB: what frees it has much to do.
            let at = done * CHUNK;
            match mounted.write(handle, at, &pattern(1 << 20, done)).and_then(|_| mounted.sync(handle)) {
                Ok(()) => done += 1,
                Err(Errno::NOSPC) => break Ok(done),
                Err(e) => break Err(e),
            }
        };
        // What did not fit is reported, and is not there.
        let _ = mounted.close(handle);
        written
    };
    let most = fill(b"first").expect("filled");
    assert!(most > 10, "{most} MiB");
    for round in 0..3 {
        let (old, new): (&[u8], &[u8]) =
            if round % 2 == 0 { (b"first", b"second") } else { (b"second", b"first") };
        mounted.remove(ROOT, old, false).expect("removed");
        let again = fill(new).expect("filled");
        assert!(again >= most - 1, "{again} of {most} MiB in round {round}");
    }
    assert_right(&fs);
}

fn quota_that_is_freed_is_waited_for(leases: bool) {
    let fs = parity();
    let (_, mounted) = mounted(&fs, leases, Hold::Slow, NEVER);
    fs.set_quota(Owner::User(1), Some(100 * 4096), None).expect("set");
    for round in 0..3 {
        // It has all that its owner may have.
        make(&mounted, b"file", 100);
        let (_, handle) = mounted.create(ROOT, b"other", WRITE).expect("made");
        let written = mounted.write(handle, 0, &[1; 4096]).and_then(|_| mounted.sync(handle));
        assert_eq!(written, Err(Errno::DQUOT), "round {round}");
        let _ = mounted.close(handle);
        mounted.remove(ROOT, b"other", false).expect("removed");
        mounted.remove(ROOT, b"file", false).expect("removed");
    }
    // The number of files, too: the top directory is the other one.
    fs.set_quota(Owner::User(1), None, Some(2)).expect("set");
    for _ in 0..3 {
        make(&mounted, b"file", 100);
        mounted.remove(ROOT, b"file", false).expect("removed");
    }
    drop(mounted);
    assert_right(&fs);
}

fn what_a_lost_host_has_removed_is_freed_by_another(leases: bool) {
    let fs = counted();
    let (held, lost) = mounted(&fs, leases, Hold::Waits, NEVER);
    for name in [b"a", b"b"] {
        make(&lost, name, 100);
        lost.remove(ROOT, name, false).expect("removed");
    }
    assert_eq!(used(&fs), 200 * 4096);
    held.set(Hold::Fails);
    let lease = lost.lease();
    lost.lose();
    fs.catalog.revoke(lease).expect("run out");
    let other = fs.open().expect("mounted");
    // Its first look says that the session is over, and the second one takes over.
    other.tidy().expect("cleaned");
    other.tidy().expect("cleaned");
    let report = assert_right(&fs);
    assert!(report.left.is_empty(), "{report:?}");
    assert_eq!(used(&fs), 0);
}

fn what_could_not_be_freed_is_tried_again(leases: bool) {
    let fs = counted();
    let (held, mounted) = mounted(&fs, leases, Hold::Fails, Duration::from_millis(20));
    make(&mounted, b"file", 100);
    mounted.remove(ROOT, b"file", false).expect("removed");
    mounted.wait(Call::SyncDirectory { node: ROOT }).expect("synced");
    assert_eq!(used(&fs), 100 * 4096);
    held.set(Hold::Open);
    until("it is freed", || used(&fs) == 0);
    assert_right(&fs);
}

fn an_unmount_leaves_nothing(leases: bool) {
    let fs = counted();
    let (_, mounted) = mounted(&fs, leases, Hold::Slow, NEVER);
    for name in [b"a", b"b", b"c", b"d", b"e", b"f"] {
        make(&mounted, name, 100);
        mounted.remove(ROOT, name, false).expect("removed");
    }
    drop(mounted);
    let report = assert_right(&fs);
    assert!(report.left.is_empty(), "{report:?}");
    assert_eq!((report.segments.0, used(&fs)), (0, 0));
}
