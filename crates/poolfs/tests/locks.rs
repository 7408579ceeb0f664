//! Locks of hosts that share a file system.

mod common;

use common::counting::Counting;
use common::{Calls, ROOT, Result, WRITE, mount, parity};
use longhaul_catalog::Catalog;
use longhaul_fs::{Errno, FileLock, FileSystem as _, GivenUp, Handle, LockCall, LockReply, Locks, Node};
use longhaul_poolfs::PoolFs;
use longhaul_poolfs::testing::TestFs;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// More than any call takes that does not wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// One host, with its locks.
struct Host {
    fs: PoolFs,
    locks: Arc<dyn Locks>,
}

impl Host {
    fn new(fs: &TestFs) -> Host {
        Host::of(mount(fs, false))
    }

    fn of(fs: PoolFs) -> Host {
        let locks = fs.locks().expect("it has locks");
        Host { fs, locks }
    }

    fn start(&self, node: Node, call: LockCall) -> Receiver<Result<LockReply>> {
        let (tell, told) = channel();
        self.locks.start(node, call, Box::new(move |result| drop(tell.send(result))));
        told
    }

    fn call(&self, node: Node, call: LockCall) -> Result<LockReply> {
        self.start(node, call).recv_timeout(PATIENCE).expect("an answer")
    }

    fn lock(&self, node: Node, lock: FileLock) -> Result<()> {
        self.call(node, LockCall::Lock { lock, waits: None }).map(drop)
    }

    fn wait(&self, node: Node, lock: FileLock) -> (Receiver<Result<LockReply>>, GivenUp) {
        let given_up = GivenUp::default();
        (self.start(node, LockCall::Lock { lock, waits: Some(given_up.clone()) }), given_up)
    }

    fn unlock(&self, node: Node, lock: FileLock) {
        self.call(node, LockCall::Unlock(lock)).expect("given up");
    }
}

fn flock(owner: u64, exclusive: bool) -> FileLock {
    FileLock {
        owner,
        handle: Handle(owner),
        flock: true,
        exclusive,
        start: 0,
        end: i64::MAX.cast_unsigned(),
        pid: 1,
    }
}

fn posix(owner: u64, exclusive: bool, start: u64, end: u64) -> FileLock {
    FileLock { flock: false, start, end, ..flock(owner, exclusive) }
}

fn is_had(waits: &Receiver<Result<LockReply>>) {
    let held = waits.recv_timeout(PATIENCE).expect("an answer");
    assert!(matches!(held, Ok(LockReply::Held(_))), "{held:?}");
}

fn still_waits(waits: &Receiver<Result<LockReply>>) {
    assert!(waits.recv_timeout(Duration::from_millis(50)).is_err(), "it waits");
}

/// The keys of locks in the catalog.
fn keys(fs: &TestFs) -> usize {
    let prefix = format!("fs/{}/k", fs.uuid).into_bytes();
    fs.catalog.range(&prefix, None).expect("read").entries.len()
}

/// Nothing is left in the catalog, once that was removed which no program waits for.
fn is_swept(fs: &TestFs) {
    let prefix = format!("fs/{}/k", fs.uuid).into_bytes();
    let mut found = fs.catalog.range(&prefix, None).expect("read");
    while !found.entries.is_empty() {
        let mut watch = fs.catalog.watch(&prefix, found.revision + 1).expect("watched");
        assert!(!watch.next(PATIENCE).expect("watched").is_empty(), "{} keys are left", found.entries.len());
        found = fs.catalog.range(&prefix, None).expect("read");
    }
}

/// A file system, two hosts, and a file that both have open.
fn two_hosts() -> (TestFs, [Host; 2], Node) {
    let fs = parity();
    let hosts = [Host::new(&fs), Host::new(&fs)];
    let (file, _) = hosts[0].fs.create(ROOT, b"file", WRITE).expect("made");
    hosts[1].fs.lookup(ROOT, b"file").expect("there");
    (fs, hosts, file.node)
}

#[test]
fn exclusive_excludes_shared_shares_and_both_kinds_are_apart() {
    let (fs, [a, b], file) = two_hosts();
    a.lock(file, flock(1, true)).expect("had");
    for other in [flock(1, true), flock(2, false)] {
        assert_eq!(
            b.lock(file, other),
            Err(Errno::AGAIN),
            "owners of two hosts are two, whatever their numbers"
        );
    }
    assert_eq!(a.lock(file, flock(2, false)), Err(Errno::AGAIN), "two of one host");
    b.lock(file, posix(1, true, 0, 9)).expect("fcntl is apart from flock");
    a.lock(file, flock(1, false)).expect("downgraded");
    b.lock(file, flock(2, false)).expect("shared");
    assert_eq!(a.lock(file, flock(1, true)), Err(Errno::AGAIN), "it is shared");
    b.unlock(file, flock(2, false));
    a.lock(file, flock(1, true)).expect("upgraded");
    a.unlock(file, flock(1, true));
    b.unlock(file, posix(1, true, 0, 9));
    is_swept(&fs);
    assert_eq!(fs.check().expect("checked").problems, Vec::<String>::new());
}

#[test]
fn a_wait_ends_with_the_unlock_of_the_other_host_or_by_an_interrupt() {
    let (fs, [a, b], file) = two_hosts();
    a.lock(file, flock(1, true)).expect("had");
    let (waits, _) = b.wait(file, flock(2, true));
    let (gives_up, given_up) = b.wait(file, flock(3, true));
    still_waits(&waits);
    given_up.set();
    b.locks.look(file);
    assert_eq!(gives_up.recv_timeout(PATIENCE).expect("an answer").map(drop), Err(Errno::INTR));
    still_waits(&waits);
    a.unlock(file, flock(1, true));
    is_had(&waits);
    assert_eq!(a.lock(file, flock(1, false)), Err(Errno::AGAIN));
    // One that has given up before it is tried gets nothing.
    let given_up = GivenUp::default();
    given_up.set();
    let late = LockCall::Lock { lock: flock(9, false), waits: Some(given_up) };
    assert_eq!(a.call(file, late).map(drop), Err(Errno::INTR));
    b.call(file, LockCall::Release { handle: Handle(2), flock_owner: Some(2) }).expect("closed");
    a.lock(file, flock(1, true)).expect("free");
    a.call(file, LockCall::Release { handle: Handle(1), flock_owner: Some(1) }).expect("closed");
    is_swept(&fs);
}

#[test]
fn two_that_share_and_wait_for_an_exclusive_lock_get_it_one_after_the_other() {
    let (_fs, [a, b], file) = two_hosts();
    a.lock(file, flock(1, false)).expect("had");
    b.lock(file, flock(2, false)).expect("had");
    let (first, _) = a.wait(file, flock(1, true));
    let (second, _) = b.wait(file, flock(2, true));
    // Either may be first.
    let first_is_had = first.recv_timeout(Duration::from_secs(2)).is_ok();
    let (holder, owner, other) = if first_is_had { (&a, 1, &second) } else { (&b, 2, &first) };
    if !first_is_had {
        is_had(&second);
    }
    holder.unlock(file, flock(owner, true));
    is_had(other);
}

#[test]
fn ranges_of_fcntl_split_and_end_with_a_close() {
    let (fs, [a, b], file) = two_hosts();
    a.lock(file, posix(1, true, 0, 99)).expect("had");
    a.unlock(file, posix(1, true, 40, 59));
    b.lock(file, posix(1, true, 40, 59)).expect("the hole is free");
    assert_eq!(b.lock(file, posix(1, true, 59, 60)), Err(Errno::AGAIN));
    let LockReply::Conflict(Some(found)) =
        b.call(file, LockCall::Test(posix(1, false, 50, 200))).expect("told")
    else {
        panic!("a lock is in the way")
    };
    assert_eq!((found.start, found.end, found.exclusive, found.pid), (60, 99, true, 0));
    let (waits, _) = b.wait(file, posix(1, true, 0, 10));
    still_waits(&waits);
    a.call(file, LockCall::Flush { owner: 1 }).expect("closed");
    is_had(&waits);
    b.call(file, LockCall::Flush { owner: 1 }).expect("closed");
    is_swept(&fs);
}

#[test]
fn a_deadlock_of_one_host_is_refused() {
    let (_fs, [a, _b], file) = two_hosts();
    let (other, _) = a.fs.create(ROOT, b"other", WRITE).expect("made");
    a.lock(file, posix(1, true, 0, 0)).expect("had");
    a.lock(other.node, posix(2, true, 0, 0)).expect("had");
    let (waits, _) = a.wait(file, posix(2, true, 0, 0));
    still_waits(&waits);
    let (refused, _) = a.wait(other.node, posix(1, true, 0, 0));
    let refused = refused.recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(refused.map(drop), Err(Errno::DEADLK));
    a.unlock(file, posix(1, true, 0, 0));
    is_had(&waits);
}

#[test]
fn locks_of_a_lost_host_end_with_its_lease_and_it_reads_and_writes_no_more() {
    let (fs, [a, b], file) = two_hosts();
    let (_, handle) = a.fs.open(file, WRITE).expect("opened");
    a.lock(file, flock(1, true)).expect("had");
    let (waits, _) = b.wait(file, flock(2, true));
    still_waits(&waits);
    fs.catalog.revoke(a.fs.lease()).expect("as if it had run out");
    is_had(&waits);
    assert_eq!(a.lock(file, posix(3, true, 0, 0)), Err(Errno::IO), "its session is over");
    a.fs.write(handle, 0, b"late").expect("in memory");
    a.fs.sync(handle).expect_err("nothing of it is committed");
    b.unlock(file, flock(2, true));
    a.fs.lose();
    let left = keys(&fs);
    assert!(left <= 1, "no lock is left: {left}");
}

#[test]
fn a_host_whose_lease_has_run_out_by_its_clock_has_no_io_under_locks() {
    let (_fs, [a, b], file) = two_hosts();
    let (_, handle) = a.fs.open(file, WRITE).expect("opened");
    a.fs.write(handle, 0, b"content").expect("written");
    a.fs.sync(handle).expect("durable");
    a.lock(file, flock(1, false)).expect("had");
    assert_eq!(a.fs.read(handle, 0, 7).expect("it has the lock"), b"content");
    a.fs.outlive_lease();
    assert_eq!(a.fs.read(handle, 0, 7), Err(Errno::IO));
    assert_eq!(a.fs.write(handle, 0, b"changed"), Err(Errno::IO));
    let (_, other) = a.fs.create(ROOT, b"other", WRITE).expect("made");
    a.fs.write(other, 0, b"without locks").expect("written");
    let (_, handle) = b.fs.open(file, 0).expect("opened");
    assert_eq!(b.fs.read(handle, 0, 7).expect("another host"), b"content");
}

#[test]
fn a_counter_under_locks_of_two_hosts_loses_nothing() {
    const EACH: u64 = 100;
    let (fs, hosts, file) = two_hosts();
    let count = |host: &Host, owner: u64| {
        let (_, handle) = host.fs.open(file, WRITE).expect("opened");
        for _ in 0..EACH {
            let (waits, _) = host.wait(file, flock(owner, true));
            is_had(&waits);
            let before = host.fs.read(handle, 0, 8).expect("read");
            let before = before.try_into().map_or(0, u64::from_be_bytes);
            host.fs.write(handle, 0, &(before + 1).to_be_bytes()).expect("written");
            host.unlock(file, flock(owner, true));
        }
        host.fs.close(handle).expect("closed");
    };
    let count = &count;
    std::thread::scope(|scope| {
        for host in &hosts {
            // Two programs of each host.
            for owner in [1, 2] {
                scope.spawn(move || count(host, owner));
            }
        }
    });
    let (_, handle) = hosts[0].fs.open(file, 0).expect("opened");
    let found = hosts[0].fs.read(handle, 0, 8).expect("read");
    assert_eq!(u64::from_be_bytes(found.try_into().expect("8 bytes")), 4 * EACH);
    is_swept(&fs);
}

/// Random locks of two hosts with two owners each, against a map of bytes: what is had and refused is that of
/// one host.
#[test]
fn random_locks_of_two_hosts_are_those_of_a_map_of_bytes() {
    const BYTES: u64 = 12;
    let (_fs, hosts, file) = two_hosts();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut model = std::collections::BTreeMap::<(usize, u64, u64), bool>::new();
    for step in 0..400 {
        let (at, owner, start) = (rng.usize(..2), rng.u64(1..3), rng.u64(..BYTES));
        let lock = posix(owner, rng.bool(), start, rng.u64(start..BYTES));
        if rng.u8(..3) == 0 {
            hosts[at].unlock(file, lock);
            for byte in lock.start..=lock.end {
                model.remove(&(at, owner, byte));
            }
            continue;
        }
        let is_free = model.iter().all(|(&(host, of, byte), exclusive)| {
            (host, of) == (at, owner)
                || !(lock.start..=lock.end).contains(&byte)
                || !(*exclusive || lock.exclusive)
        });
        let LockReply::Conflict(found) = hosts[at].call(file, LockCall::Test(lock)).expect("told") else {
            panic!("step {step}: no answer")
        };
        assert_eq!(found.is_none(), is_free, "step {step}: {lock:?}");
        let wanted = if is_free { Ok(()) } else { Err(Errno::AGAIN) };
        assert_eq!(hosts[at].lock(file, lock), wanted, "step {step}: {lock:?}");
        if is_free {
            for byte in lock.start..=lock.end {
                model.insert((at, owner, byte), lock.exclusive);
            }
        }
    }
}

#[test]
fn a_lock_of_a_file_that_one_host_uses_is_a_round_trip_and_its_unlock_another() {
    let fs = parity();
    let catalog = Counting::new(&fs.catalog);
    let a =
        Host::of(fs.open_by(Arc::clone(&catalog) as Arc<dyn Catalog>, &TestFs::options()).expect("opened"));
    let b = Host::new(&fs);
    let (file, handle) = a.fs.create(ROOT, b"file", WRITE).expect("made");
    catalog.take();
    for lock in [flock(1, true), posix(1, false, 5, 9)] {
        a.lock(file.node, lock).expect("had");
        assert_eq!(catalog.take(), 1, "a lock");
        a.lock(file.node, lock).expect("had already");
        assert_eq!(catalog.take(), 0, "the same lock");
        a.unlock(file.node, lock);
        assert_eq!(catalog.take(), 1, "an unlock");
        a.call(file.node, LockCall::Flush { owner: 1 }).expect("closed");
        assert_eq!(catalog.take(), 0, "a close without locks");
    }
    a.lock(file.node, flock(1, true)).expect("had");
    a.fs.write(handle, 0, b"one").expect("written");
    a.unlock(file.node, flock(1, true));
    // The first content needs a segment besides.
    catalog.take();
    a.lock(file.node, flock(1, true)).expect("had");
    a.fs.write(handle, 0, b"two").expect("written");
    a.unlock(file.node, flock(1, true));
    assert_eq!(catalog.take(), 3, "a lock, a commit, an unlock");
    let (_, other) = b.fs.open(file.node, WRITE).expect("opened");
    b.lock(file.node, flock(1, true)).expect("had");
    b.fs.write(other, 0, b"six").expect("written");
    b.unlock(file.node, flock(1, true));
    a.lock(file.node, flock(1, true)).expect("had");
    assert_eq!(catalog.take(), 4, "a try, the locks, the file, and the lock");
    assert_eq!(a.fs.read(handle, 0, 3).expect("read"), b"six");
}
