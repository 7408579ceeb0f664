//! Quotas: usage is what the inodes of users and groups have, whatever hosts do, lose, or count meanwhile; and what
//! would be above a limit is refused, and changes nothing. `POOLFS_SEEDS` and `POOLFS_SEED` as for the model.

mod common;

use common::dying::{Dying, End};
use common::{
    Calls, EXCLUSIVE, ROOT, Result, TRUNCATE, WRITE, assert_right, memory, mount, number, parity, pattern,
};
use longhaul_catalog::Txn;
use longhaul_fs::{Call, Changes, Errno, FileSystem, Handle, Node};
use longhaul_poolfs::testing::TestFs;
use longhaul_poolfs::{FsOptions, FsQuota, LimitChange, Limits, Owner, PoolFs, Usage};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// The owners of new files.
const USER: Owner = Owner::User(1);
const GROUP: Owner = Owner::Group(2);
/// A user without a limit.
const OTHER: u32 = 77;

fn chown(fs: &PoolFs, node: Node, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    let changes = Changes { uid, gid, ..Changes::default() };
    fs.wait(Call::Change { node, handle: None, changes }).map(drop)
}

/// What an owner has, as the file system says.
fn used(fs: &TestFs, owner: Owner) -> Usage {
    let all = fs.quotas().expect("listed");
    all.iter().find(|quota| quota.owner == owner).map_or(Usage::default(), |quota| quota.used)
}

/// As [`Calls::put`], of a file that is closed if that fails, too.
fn put(fs: &PoolFs, name: &[u8], content: &[u8]) -> Result<()> {
    let (_, handle) = match fs.lookup(ROOT, name) {
        Ok(found) => fs.open(found.node, TRUNCATE)?,
        Err(_) => fs.create(ROOT, name, WRITE)?,
    };
    let written = fs.write(handle, 0, content).map(drop);
    written.and(fs.close(handle))
}

fn synced(fs: &PoolFs) {
    fs.wait(Call::SyncDirectory { node: ROOT }).expect("synced");
}

fn usage(bytes: i64, files: i64) -> Usage {
    Usage { bytes, files }
}

both! {
    usage_is_what_inodes_have
    what_is_above_a_limit_is_refused_and_changes_nothing
    each_object_counts_once_and_until_it_is_gone
    the_first_quota_counts_while_hosts_write
    threads_of_a_host_never_pass_a_limit
    a_host_that_is_lost_at_any_transaction_leaves_usage_right
}

/// What a random change may be refused with, besides what a quota does.
const USUAL: [Errno; 8] = [
    Errno::NOENT,
    Errno::EXIST,
    Errno::NOTEMPTY,
    Errno::ISDIR,
    Errno::NOTDIR,
    Errno::LOOP,
    Errno::INVAL,
    Errno::PERM,
];

struct Hosts {
    rng: fastrand::Rng,
    open: Vec<(usize, Handle)>,
    refused: usize,
}

impl Hosts {
    fn name(&mut self) -> Vec<u8> {
        format!("n{}", self.rng.u8(0..12)).into_bytes()
    }

    /// One change of any kind, by one of the hosts.
    fn step(&mut self, fs: &TestFs, hosts: &[PoolFs]) {
        let at = self.rng.usize(..hosts.len());
        let (host, name, other) = (&hosts[at], self.name(), self.name());
        let directory = match self.rng.bool() {
            true => ROOT,
            false => host.lookup(ROOT, b"d").expect("there").node,
        };
        let len = [0, 100, 9000, 70_000, 400_000][self.rng.usize(..5)];
        let owner = |rng: &mut fastrand::Rng| rng.bool().then(|| rng.u32(1..4));
        let kind = self.rng.u8(0..100);
        let done = match kind {
            0..25 => host.put(directory, &name, &pattern(len, 1)).map(drop),
            25..35 => host.create(directory, &name, WRITE).map(|(_, handle)| self.open.push((at, handle))),
            35..45 => host.remove(directory, &name, false),
            45..52 => host.rename((directory, &name), (ROOT, &other), 0),
            52..57 => {
                host.lookup(directory, &name).and_then(|found| host.link(found.node, ROOT, &other).map(drop))
            }
            57..62 => host
                .lookup(directory, &name)
                .and_then(|found| host.resize(found.node, self.rng.u64(0..500_000)).map(drop)),
            62..72 => host
                .lookup(directory, &name)
                .and_then(|found| chown(host, found.node, owner(&mut self.rng), owner(&mut self.rng))),
            72..76 => host.make_directory(ROOT, &name).map(drop),
            76..78 => host.symlink(directory, &name, b"there").map(drop),
            78..80 => host.remove(ROOT, &name, true),
            80..88 => match self.open.pop() {
                Some((at, handle)) => {
                    let written = hosts[at].write(handle, self.rng.u64(0..100_000), &pattern(len, 2));
                    let closed = hosts[at].close(handle);
                    match written.map(drop).and(closed) {
                        Err(Errno::STALE) => Ok(()),
                        done => done,
                    }
                }
                None => Ok(()),
            },
            88..91 => host.tidy().and_then(|()| host.compact().map(drop)),
            91..95 => {
                let id = self.rng.u32(1..4);
                let owner = if self.rng.bool() { Owner::User(id) } else { Owner::Group(id) };
                let bytes = self.rng.bool().then(|| self.rng.u64(0..3_000_000));
                let files = self.rng.bool().then(|| self.rng.u64(0..40));
                fs.set_quota(owner, bytes, files).expect("set");
                Ok(())
            }
            95..96 => fs.recount().map(drop).map_err(|e| panic!("{e}")),
            96..98 => {
                let name = format!("s{}", self.rng.u8(0..2));
                if fs.make_snapshot(&name).is_err() {
                    fs.begin_snapshot_removal(&name, false).expect("removed");
                    host.empty_removed().expect("emptied");
                }
                Ok(())
            }
            _ => host.list(directory).map(drop),
        };
        match done {
            Err(Errno::DQUOT) => self.refused += 1,
            Err(e) => assert!(USUAL.contains(&e), "{kind}: {e}"),
            Ok(()) => {}
        }
    }
}

fn usage_is_what_inodes_have(leases: bool) {
    let first = number("POOLFS_SEED", 1);
    let mut refused = 0;
    for seed in first..first + number("POOLFS_SEEDS", 4) {
        println!("seed {seed}");
        let fs = TestFs::new(memory(), 3, (2, 1), 1600).expect("made");
        let mut run = Hosts { rng: fastrand::Rng::with_seed(seed), open: Vec::new(), refused: 0 };
        for _ in 0..2 {
            let hosts = [mount(&fs, leases), mount(&fs, leases)];
            let made = hosts[0].make_directory(ROOT, b"d").map(drop);
            assert!(matches!(made, Ok(()) | Err(Errno::EXIST)));
            fs.set_quota(Owner::User(3), Some(1_500_000), Some(30)).expect("set");
            for step in 0..150 {
                run.step(&fs, &hosts);
                let report = fs.check().expect("checked");
                assert_eq!(report.problems, Vec::<String>::new(), "step {step}");
            }
            run.open.clear();
            drop(hosts);
            assert_right(&fs);
        }
        // A count of all inodes finds the same.
        let before = fs.quotas().expect("listed");
        let is_counted = fs.recount().expect("counted");
        assert!(!is_counted || fs.quotas().expect("listed") == before);
        assert_right(&fs);
        refused += run.refused;
    }
    assert!(refused > 5, "limits were met {refused} times");
}

fn what_is_above_a_limit_is_refused_and_changes_nothing(leases: bool) {
    let fs = parity();
    let mounted = mount(&fs, leases);
    let old = pattern(100_000, 1);
    let node = mounted.put(ROOT, b"old", &old).expect("written");
    mounted.put(ROOT, b"other", &pattern(100_000, 2)).expect("written");
    synced(&mounted);
    let set = fs.set_quota(USER, Some(250_000), Some(5)).expect("set");
    // The top directory is of this user, too.
    let limits = Limits { bytes: Some(250_000), files: Some(5) };
    assert_eq!(set, FsQuota { owner: USER, used: usage(200_000, 3), limits });
    assert_eq!(used(&fs, GROUP), usage(200_000, 3));
    // More than is left in one write is refused at once, or by the close at the latest.
    let (_, handle) = mounted.open(node, WRITE).expect("opened");
    let written = mounted.write(handle, 0, &pattern(200_000, 3)).map(drop);
    let closed = mounted.close(handle);
    assert_eq!(written.and(closed), Err(Errno::DQUOT));
    assert!(mounted.content(ROOT, b"old").expect("read") == old);
    // In small writes, too; and the error is not lost with the first call that reports it.
    let (_, handle) = mounted.open(node, WRITE).expect("opened");
    let parts: Vec<Result<u32>> =
        (0..20).map(|at| mounted.write(handle, at * 10_000, &pattern(10_000, 3))).collect();
    assert!(parts[..10].iter().all(Result::is_ok), "what is there may be overwritten: {parts:?}");
    if parts.iter().all(Result::is_ok) {
        assert_eq!(mounted.flush(handle), Err(Errno::DQUOT));
        assert_eq!(mounted.sync(handle), Err(Errno::DQUOT));
    }
    let _ = mounted.close(handle);
    drop(mounted);
    let mounted = mount(&fs, leases);
    assert!(mounted.lookup(ROOT, b"old").expect("there").size <= 150_000);
    // What is left can be used to the last byte and the last file.
    mounted.put(ROOT, b"old", &old).expect("written");
    mounted.put(ROOT, b"new", &pattern(50_000, 4)).expect("written");
    synced(&mounted);
    assert_eq!(used(&fs, USER), usage(250_000, 4));
    assert_eq!(put(&mounted, b"more", b"x"), Err(Errno::DQUOT));
    // Its name was made, which is the last one.
    assert_eq!(mounted.content(ROOT, b"more"), Ok(Vec::new()));
    assert_eq!(mounted.create(ROOT, b"file", WRITE).map(drop), Err(Errno::DQUOT));
    assert_eq!(mounted.make_directory(ROOT, b"directory").map(drop), Err(Errno::DQUOT));
    assert_eq!(mounted.symlink(ROOT, b"link", b"there").map(drop), Err(Errno::DQUOT));
    mounted.link(node, ROOT, b"name").expect("a name is no file");
    // What needs no more is not refused: the same size, less, none.
    mounted.put(ROOT, b"old", &pattern(100_000, 9)).expect("overwritten");
    fs.set_quota(USER, Some(10), Some(1)).expect("set");
    let (_, handle) = mounted.open(node, WRITE).expect("opened");
    mounted.write(handle, 0, &pattern(100_000, 10)).expect("written");
    mounted.close(handle).expect("as much as before");
    assert!(mounted.content(ROOT, b"old").expect("read") == pattern(100_000, 10));
    mounted.resize(node, 50_000).expect("less");
    // A user without a limit is not concerned, nor is what is given to such a one.
    let given = mounted.lookup(ROOT, b"other").expect("there").node;
    chown(&mounted, given, Some(OTHER), Some(OTHER)).expect("given");
    mounted.put(ROOT, b"other", &pattern(600_000, 5)).expect("written");
    synced(&mounted);
    assert_eq!(used(&fs, Owner::User(OTHER)), usage(600_000, 1));
    assert_eq!(used(&fs, USER), usage(100_000, 4));
    assert_eq!(chown(&mounted, given, Some(1), None), Err(Errno::DQUOT));
    assert_eq!(used(&fs, Owner::User(OTHER)), usage(600_000, 1));
    for name in [&b"old"[..], b"name", b"new", b"more"] {
        mounted.remove(ROOT, name, false).expect("removed");
    }
    synced(&mounted);
    assert_eq!(used(&fs, USER), usage(0, 1));
    // A group has limits as a user has.
    fs.set_quota(USER, None, None).expect("removed");
    fs.set_quota(GROUP, None, Some(2)).expect("set");
    mounted.create(ROOT, b"1", WRITE).expect("made");
    assert_eq!(mounted.create(ROOT, b"2", WRITE).map(drop), Err(Errno::DQUOT));
    fs.set_quota(GROUP, None, None).expect("removed");
    mounted.create(ROOT, b"2", WRITE).expect("made");
    assert_eq!(fs.quotas().expect("listed"), []);
    drop(mounted);
    assert_right(&fs);
}

fn each_object_counts_once_and_until_it_is_gone(leases: bool) {
    let fs = parity();
    let mounted = mount(&fs, leases);
    fs.set_quota(USER, Some(10 << 20), None).expect("set");
    let node = mounted.put(ROOT, b"file", &pattern(100_000, 1)).expect("written");
    mounted.link(node, ROOT, b"again").expect("linked");
    assert_eq!(used(&fs, USER), usage(100_000, 2));
    // It counts while it is open, without a name.
    let (_, handle) = mounted.open(node, WRITE).expect("opened");
    mounted.remove(ROOT, b"file", false).expect("removed");
    mounted.remove(ROOT, b"again", false).expect("removed");
    assert_eq!(used(&fs, USER), usage(100_000, 2));
    mounted.close(handle).expect("closed");
    assert_eq!(used(&fs, USER), usage(0, 1));
    // A large file is removed in parts.
    mounted.put(ROOT, b"large", &pattern(9 << 20, 1)).expect("written");
    let (_, handle) =
        mounted.open(mounted.lookup(ROOT, b"large").expect("there").node, WRITE).expect("opened");
    mounted.write(handle, 20 << 20, b"far").expect("written");
    mounted.close(handle).expect("closed");
    assert_eq!(used(&fs, USER), usage((9 << 20) + 3, 2));
    mounted.put(ROOT, b"small", &pattern(1000, 2)).expect("written");
    mounted.rename((ROOT, b"small"), (ROOT, b"large"), 0).expect("moved over it");
    synced(&mounted);
    assert_eq!(used(&fs, USER), usage(1000, 2));
    // What only snapshots have does not count.
    fs.make_snapshot("s").expect("made");
    mounted.put(ROOT, b"large", &pattern(500, 3)).expect("written");
    synced(&mounted);
    assert_eq!(used(&fs, USER), usage(500, 2));
    // Content that moves, and is compacted, counts where it was.
    mounted.tidy().expect("cleaned");
    mounted.compact().expect("compacted");
    assert_eq!(used(&fs, USER), usage(500, 2));
    drop(mounted);
    assert_right(&fs);
}

fn the_first_quota_counts_while_hosts_write(leases: bool) {
    let fs = TestFs::new(memory(), 3, (2, 1), 1600).expect("made");
    let hosts: Vec<PoolFs> = (0..2).map(|_| mount(&fs, leases)).collect();
    for (at, host) in hosts.iter().enumerate() {
        let directory = host.make_directory(ROOT, format!("{at}").as_bytes()).expect("made").node;
        for number in 0..100 {
            host.put(directory, format!("{number}").as_bytes(), &pattern(1000, 1)).expect("written");
        }
    }
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (at, host) in hosts.iter().enumerate() {
            let ends = &ends;
            scope.spawn(move || {
                let directory = host.lookup(ROOT, format!("{at}").as_bytes()).expect("there").node;
                let mut rng = fastrand::Rng::with_seed(at as u64);
                while !ends.load(SeqCst) {
                    let name = format!("{}", rng.u8(0..150)).into_bytes();
                    match rng.u8(0..3) {
                        0 => drop(host.remove(directory, &name, false)),
                        1 => {
                            if let Ok(found) = host.lookup(directory, &name) {
                                chown(host, found.node, Some(rng.u32(1..4)), None).expect("given");
                            }
                        }
                        _ => drop(
                            host.put(directory, &name, &pattern(rng.usize(0..3000), 2)).expect("written"),
                        ),
                    }
                }
            });
        }
        // Each count is of another revision, and right at once.
        for round in 0..6 {
            if round % 3 == 0 {
                fs.set_quota(USER, None, None).expect("removed");
                fs.set_quota(USER, Some(1 << 30), None).expect("set");
            } else {
                fs.recount().expect("counted");
            }
            assert_right(&fs);
        }
        ends.store(true, SeqCst);
    });
    drop(hosts);
    let before = fs.quotas().expect("listed");
    fs.recount().expect("counted");
    assert_eq!(fs.quotas().expect("listed"), before);
    assert_right(&fs);
}

fn threads_of_a_host_never_pass_a_limit(leases: bool) {
    let fs = parity();
    let mounted = mount(&fs, leases);
    fs.set_quota(USER, None, Some(101)).expect("set");
    let made: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let mounted = &mounted;
                scope.spawn(move || {
                    let mut made = 0;
                    for number in 0..50 {
                        match mounted.put(ROOT, format!("{thread}-{number}").as_bytes(), b"") {
                            Ok(_) => made += 1,
                            Err(e) => assert_eq!(e, Errno::DQUOT),
                        }
                    }
                    made
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("ended")).sum()
    });
    assert!((95..=100).contains(&made), "{made} files");
    // Those that were refused while others were under way fit now.
    for number in made..100 {
        mounted.put(ROOT, format!("left-{number}").as_bytes(), b"").expect("made");
    }
    assert_eq!(mounted.create(ROOT, b"one more", WRITE).map(drop), Err(Errno::DQUOT));
    drop(mounted);
    assert_eq!(used(&fs, USER), usage(0, 101));
    assert_right(&fs);
}

#[test]
fn hosts_pass_a_limit_by_half_of_what_was_left_at_most() {
    let fs = parity();
    fs.set_quota(USER, None, Some(101)).expect("set");
    let hosts = [fs.open().expect("mounted"), fs.open().expect("mounted")];
    let make = |host: usize, number: usize| {
        hosts[host].put(ROOT, format!("{host}-{number}").as_bytes(), b"").map(drop)
    };
    // Both know of nothing: one fills it, and the other takes its half.
    let first = (0..200).take_while(|number| make(0, *number).is_ok()).count();
    assert_eq!(first, 100);
    let second = (0..200).take_while(|number| make(1, *number).is_ok()).count();
    assert!((1..=50).contains(&second), "{second} files more");
    assert_eq!(make(1, 900), Err(Errno::DQUOT));
    // A name that is there is there, for one that has no file left.
    assert_eq!(hosts[1].create(ROOT, b"0-50", EXCLUSIVE).map(drop), Err(Errno::EXIST));
    assert_eq!(hosts[1].put(ROOT, b"0-51", b"content").map(drop), Ok(()));
    for number in 0..10 {
        hosts[0].remove(ROOT, format!("0-{number}").as_bytes(), false).expect("removed");
    }
    for number in 0..second {
        hosts[1].remove(ROOT, format!("1-{number}").as_bytes(), false).expect("removed");
    }
    hosts[0].tidy().expect("cleaned");
    hosts[1].tidy().expect("cleaned");
    let again = (1000..1200).take_while(|number| make(1, *number).is_ok()).count();
    assert_eq!(again, 10);
    hosts[0].tidy().expect("cleaned");
    assert_eq!(make(0, 901), Err(Errno::DQUOT));
    drop(hosts);
    assert_eq!(used(&fs, USER), usage(7, 101));
    assert_right(&fs);
}

/// Changes of all kinds of what users have.
fn change(fs: &PoolFs) -> Result<()> {
    let file = fs.put(ROOT, b"new", &pattern(60_000, 1))?;
    chown(fs, file, Some(3), Some(3))?;
    fs.put(ROOT, b"old", &pattern(20_000, 2))?;
    fs.link(file, ROOT, b"again")?;
    let (_, handle) = fs.open(file, WRITE)?;
    fs.remove(ROOT, b"new", false)?;
    fs.rename((ROOT, b"old"), (ROOT, b"again"), 0)?;
    fs.write(handle, 100_000, &pattern(1000, 3))?;
    fs.close(handle)?;
    fs.make_directory(ROOT, b"directory")?;
    fs.resize(fs.lookup(ROOT, b"again")?.node, 7000)?;
    fs.remove(ROOT, b"large", false)?;
    fs.tidy()
}

fn a_host_that_is_lost_at_any_transaction_leaves_usage_right(leases: bool) {
    for end in [End::Before, End::After, End::AnswerLost] {
        for left in 0.. {
            let fs = parity();
            let prepared = fs.open().expect("mounted");
            prepared.put(ROOT, b"old", &pattern(100_000, 1)).expect("written");
            let large = prepared.put(ROOT, b"large", &pattern(3_000_000, 1)).expect("written");
            let (_, handle) = prepared.open(large, WRITE).expect("opened");
            prepared.write(handle, 17 << 20, b"far").expect("written");
            prepared.close(handle).expect("closed");
            fs.set_quota(USER, Some(5_000_000), Some(50)).expect("set");
            drop(prepared);
            let dying = Dying::new(&fs.catalog, left, end);
            let options = if leases { TestFs::leased() } else { TestFs::options() };
            let options = FsOptions { patience: Duration::from_millis(50), ..options };
            let Ok(host) = fs.open_by(Arc::clone(&dying) as _, &options) else { continue };
            let done = change(&host).and_then(|()| host.wait(Call::SyncDirectory { node: ROOT }).map(drop));
            let lease = host.lease();
            let is_over = !dying.is_dead() && !dying.has_lost_an_answer();
            if end == End::AnswerLost {
                done.expect("an answer that is lost is made up for");
                drop(host);
            } else {
                host.lose();
            }
            fs.catalog.revoke(lease).expect("run out");
            assert_right(&fs);
            let next = fs.open().expect("mounted");
            next.tidy().expect("cleaned");
            next.tidy().expect("cleaned");
            drop(next);
            let report = assert_right(&fs);
            assert_eq!(report.left, Vec::<u64>::new(), "{end:?} {left}");
            let before = fs.quotas().expect("listed");
            fs.recount().expect("counted");
            assert_eq!(fs.quotas().expect("listed"), before, "{end:?} {left}");
            if is_over {
                assert!(left > 10, "{left} transactions");
                break;
            }
        }
    }
}

#[test]
fn a_count_that_ends_at_any_transaction_is_made_again_by_the_next_one() {
    for end in [End::Before, End::After, End::AnswerLost] {
        for left in 0.. {
            let fs = parity();
            let host = fs.open().expect("mounted");
            for number in 0..60u32 {
                let node = host.put(ROOT, format!("{number}").as_bytes(), &pattern(500, 1)).expect("written");
                chown(&host, node, Some(1000 + number), None).expect("given");
            }
            let dying = Dying::new(&fs.catalog, left, end);
            let change = LimitChange { bytes: Some(Some(1000)), files: None };
            let set = fs.set_quota_by(&*dying, Owner::User(1005), change);
            let is_over = !dying.is_dead() && !dying.has_lost_an_answer();
            if end == End::AnswerLost {
                set.as_ref().expect("an answer that is lost is made up for");
            }
            // Hosts go on, and note what they change.
            host.put(ROOT, b"5", &pattern(900, 1)).expect("written");
            host.remove(ROOT, b"6", false).expect("removed");
            if set.is_ok() {
                assert_eq!(host.put(ROOT, b"5", &pattern(1100, 1)), Err(Errno::DQUOT));
                host.put(ROOT, b"5", &pattern(900, 1)).expect("written");
            }
            host.tidy().expect("cleaned");
            assert_right(&fs);
            fs.set_quota(Owner::User(1007), None, Some(10)).expect("set");
            assert_right(&fs);
            assert_eq!(used(&fs, Owner::User(1005)), usage(900, 1));
            assert_eq!(used(&fs, Owner::User(1006)), usage(0, 0));
            let all: BTreeMap<Owner, Limits> =
                fs.quotas().expect("listed").into_iter().map(|one| (one.owner, one.limits)).collect();
            assert_eq!(all[&Owner::User(1007)].files, Some(10));
            if set.is_ok() {
                assert_eq!(all[&Owner::User(1005)].bytes, Some(1000), "{end:?} {left}");
            }
            drop(host);
            assert_right(&fs);
            if is_over {
                assert!(left > 3, "{left} transactions");
                break;
            }
        }
    }
}

#[test]
fn programs_that_do_not_know_quotas_are_refused() {
    let fs = parity();
    let mounted = fs.open().expect("mounted");
    let key = |kind: &str| format!("fs/{}/{kind}", fs.uuid).into_bytes();
    let known = fs.catalog.range(&key("e"), None).expect("read").entries;
    // A program that knows snapshots, and nothing later.
    let mut earlier = known[0].value.clone();
    earlier[8] = 3;
    fs.catalog.commit(&Txn::new().put(&known[0].key, &earlier)).expect("changed");
    fs.make_snapshot("s").expect("made");
    let error = fs.set_quota(USER, Some(1), None).expect_err("refused").to_string();
    assert!(error.contains("earlier program, which does not know quotas, on host"), "{error}");
    assert_eq!(fs.quotas().expect("listed"), []);
    drop(mounted);
    let mounted = fs.open().expect("mounted");
    fs.set_quota(USER, Some(1), None).expect("set");
    let settings = fs.catalog.get(&key("s")).expect("read").expect("there").value;
    assert!(String::from_utf8(settings).expect("text").starts_with("{\"format\":5,"));
    assert_eq!(fs.catalog.get(&key("n")).expect("read").expect("there").value[0], 4);
    fs.make_snapshot("later").expect("made");
    drop(mounted);
    let mounted = fs.open().expect("mounted");
    // Numbers of inodes are taken from the counters.
    mounted.put(ROOT, b"file", b"").expect("made");
    assert_eq!(fs.catalog.get(&key("n")).expect("read").expect("there").value[0], 4);
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn usage_that_is_wrong_is_found_and_counted_anew() {
    let fs = parity();
    let mounted = fs.open().expect("mounted");
    mounted.put(ROOT, b"file", &pattern(5000, 1)).expect("written");
    fs.set_quota(USER, Some(10_000), None).expect("set");
    assert_right(&fs);
    let all = fs.catalog.range(format!("fs/{}/u", fs.uuid).as_bytes(), None).expect("read").entries;
    // The state, a user and a group.
    assert_eq!(all.len(), 3);
    let mut wrong = all[1].value.clone();
    wrong[10] ^= 0x40;
    fs.catalog.commit(&Txn::new().put(&all[1].key, &wrong)).expect("changed");
    let report = fs.check().expect("checked");
    assert_eq!((report.count, report.wrong_usage), (1, 1), "{report:?}");
    assert!(
        report.problems[0].contains("user 1 has 2 files with 5000 bytes, and its usage says"),
        "{report:?}"
    );
    assert!(fs.recount().expect("counted"));
    assert_right(&fs);
    assert_eq!(used(&fs, USER), usage(5000, 2));
    assert_eq!(mounted.put(ROOT, b"more", &pattern(6000, 1)), Err(Errno::DQUOT), "the limit is there yet");
    // One that cannot be read is a problem, and ends no mount.
    fs.catalog.commit(&Txn::new().put(&all[1].key, b"\x01")).expect("changed");
    assert_ne!(fs.check().expect("checked").count, 0);
    let error = fs.quotas().expect_err("damaged").to_string();
    assert!(error.contains("records of quotas of test cannot be read"), "{error}");
}

#[test]
#[ignore = "measures: cargo test -p longhaul-poolfs --test quotas -- --ignored --nocapture"]
fn what_quotas_cost() {
    const FILES: usize = 2000;
    for kind in ["without quotas", "with a limit of another user", "with a limit"] {
        let fs = TestFs::new(memory(), 3, (2, 1), 1600).expect("made");
        let mounted = fs.open().expect("mounted");
        match kind {
            "with a limit of another user" => {
                let _ = fs.set_quota(Owner::User(9), Some(1 << 30), None).expect("set");
            }
            "with a limit" => drop(fs.set_quota(USER, Some(1 << 30), Some(1 << 20)).expect("set")),
            _ => {}
        }
        for round in ["made", "overwritten", "removed"] {
            let begun = longhaul_engine::now();
            for number in 0..FILES {
                let name = format!("{number}").into_bytes();
                match round {
                    "removed" => mounted.remove(ROOT, &name, false).expect("removed"),
                    _ => drop(mounted.put(ROOT, &name, &pattern(1000, 1)).expect("written")),
                }
            }
            println!("{kind}: {FILES} files {round} in {:.2?}", begun.elapsed());
        }
        let begun = longhaul_engine::now();
        mounted.tidy().expect("cleaned");
        println!("{kind}: books made up in {:.2?}", begun.elapsed());
    }
    let fs = TestFs::new(memory(), 3, (2, 1), 1600).expect("made");
    let mounted = mount(&fs, true);
    for number in 0..100_000 {
        mounted
            .create(ROOT, format!("{number}").as_bytes(), WRITE)
            .map(|(_, handle)| mounted.close(handle))
            .expect("made")
            .expect("closed");
    }
    synced(&mounted);
    let begun = longhaul_engine::now();
    fs.set_quota(USER, Some(1 << 30), None).expect("set");
    println!("the first quota of 100,000 files: {:.2?}", begun.elapsed());
}
