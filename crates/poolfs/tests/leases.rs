//! Hosts that take leases on directories: what is made there is acknowledged from memory.

mod common;

use common::dying::{Dying, End};
use common::held::{Held, Hold};
use common::{APPEND, Calls, ROOT, WRITE, assert_right, mount, parity, pattern};
use longhaul_block::IoError;
use longhaul_block::filter::OpKind;
use longhaul_block::testing::{Fault, FaultRule};
use longhaul_fs::{Call, Changes, Errno, FileSystem, Node, Reply, Time, TimeChange};
use longhaul_poolfs::testing::TestFs;
use longhaul_poolfs::{FsOptions, PoolFs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

fn sync(fs: &PoolFs, node: Node) -> common::Result<()> {
    fs.wait(Call::SyncDirectory { node }).map(drop)
}

fn change(fs: &PoolFs, node: Node, changes: Changes) -> common::Result<longhaul_fs::Attributes> {
    match fs.wait(Call::Change { node, handle: None, changes })? {
        Reply::Attributes(attributes) => Ok(attributes),
        other => panic!("{other:?}"),
    }
}

/// Transactions that `fs` has made by this catalog, which counts them from above.
fn used(counting: &Dying, before: &mut u64) -> u64 {
    let left = counting.left();
    std::mem::replace(before, left) - left
}

#[test]
fn files_are_made_without_waiting_and_written_together() {
    let fs = parity();
    let counting = Dying::new(&fs.catalog, 1 << 32, End::Before);
    let mounted = fs.open_by(counting.clone(), &TestFs::leased()).expect("mounted");
    let mut before = counting.left();
    let top = mounted.make_directory(ROOT, b"top").expect("made").node;
    for directory in 0..10u8 {
        let below = mounted.make_directory(top, &[b'd', directory + 1]).expect("made").node;
        for file in 0..50u8 {
            let name = [b'A' + file];
            let content = pattern(usize::from(file) * 40, u64::from(file));
            let node = mounted.put(below, &name, &content).expect("written");
            let time = TimeChange::At(Time { seconds: 1_000_000 + i64::from(file), nanoseconds: 7 });
            let changes = Changes { mode: Some(0o600), modified: Some(time), ..Changes::default() };
            change(&mounted, node, changes).expect("changed");
        }
    }
    sync(&mounted, top).expect("synced");
    let transactions = used(&counting, &mut before);
    assert!(transactions < 40, "{transactions} transactions for 510 objects");
    let report = assert_right(&fs);
    assert_eq!((report.files, report.directories), (500, 12));
    // Small files share stripes.
    let files: u64 = (0..50).map(|file| file * 40).sum::<u64>() * 10;
    assert_eq!(report.bytes, files);
    assert!(report.segments.0 < 4, "{report:?}");
    mounted.lose();
    let other = fs.open().expect("mounted");
    for directory in 0..10u8 {
        let below = other.lookup(other.lookup(ROOT, b"top").expect("there").node, &[b'd', directory + 1]);
        let below = below.expect("there").node;
        let all = other.list(below).expect("listed");
        assert_eq!(all.len(), 50);
        for file in 0..50u8 {
            let attributes = all[&vec![b'A' + file]];
            assert_eq!(attributes.mode & 0o7777, 0o600);
            assert_eq!(attributes.modified, Time { seconds: 1_000_000 + i64::from(file), nanoseconds: 7 });
            let content = pattern(usize::from(file) * 40, u64::from(file));
            assert!(other.content(below, &[b'A' + file]).expect("read") == content);
        }
    }
}

/// Whether the thread that asks executes the call, and its reply.
fn ask(fs: &PoolFs, call: Call) -> (bool, common::Result<Reply>) {
    let (tell, told) = std::sync::mpsc::channel();
    let asks = std::thread::current().id();
    let done = move |result| drop(tell.send((std::thread::current().id() == asks, result)));
    fs.start(call, Box::new(done));
    told.recv().expect("an answer")
}

#[test]
fn what_is_in_memory_is_answered_by_the_thread_that_asks() {
    let fs = parity();
    let mounted = mount(&fs, true);
    let top = mounted.make_directory(ROOT, b"top").expect("made").node;
    mounted.put(top, b"first", b"takes numbers of inodes").expect("written");
    let at_once = |call: Call| {
        let name = format!("{call:?}");
        let (is_at_once, reply) = ask(&mounted, call);
        assert!(is_at_once, "another thread has executed {name}");
        reply
    };
    let lookup = || Call::Lookup { parent: top, name: b"file".to_vec() };
    assert_eq!(at_once(lookup()).map(drop), Err(Errno::NOENT));
    let create =
        || Call::Create { parent: top, name: b"file".to_vec(), mode: 0o644, flags: common::EXCLUSIVE };
    let Ok(Reply::Created(attributes, handle)) = at_once(create()) else { panic!("not made") };
    assert_eq!(at_once(create()).map(drop), Err(Errno::EXIST));
    let data = longhaul_engine::Buf::copy_of(&pattern(4096, 1));
    assert!(matches!(at_once(Call::Write { handle, offset: 0, data }), Ok(Reply::Written(4096))));
    let changes = Changes { mode: Some(0o600), ..Changes::default() };
    at_once(Call::Change { node: attributes.node, handle: None, changes }).expect("changed");
    at_once(Call::Flush { handle }).expect("flushed");
    at_once(Call::Close { handle }).expect("closed");
    let Ok(Reply::Entry(found)) = at_once(lookup()) else { panic!("not there") };
    assert_eq!((found.size, found.mode & 0o7777), (4096, 0o600));
    at_once(Call::MakeDirectory { parent: top, name: b"inner".to_vec(), mode: 0o755 }).expect("made");
    // These need a member, or the catalog.
    let (handle, large) = (mounted.open(found.node, WRITE).expect("opened").1, vec![7; 1 << 20]);
    let data = longhaul_engine::Buf::copy_of(&large);
    assert!(!ask(&mounted, Call::Write { handle, offset: 0, data }).0);
    assert!(!ask(&mounted, Call::Sync { handle, data_only: false }).0);
    mounted.close(handle).expect("closed");
    sync(&mounted, top).expect("synced");
    let other = mount(&fs, false);
    assert!(!ask(&other, lookup()).0, "it has no lease");
    assert!(other.content(top, b"file").expect("read") == large);
    drop((mounted, other));
    assert_right(&fs);
}

/// More inodes than a session remembers are in one transaction.
#[test]
fn what_is_not_remembered_is_written_and_closed_as_well() {
    let fs = parity();
    let options = FsOptions { remembered: 3, ..TestFs::leased() };
    let mounted = Arc::new(fs.open_by(Arc::clone(&fs.catalog), &options).expect("mounted"));
    let top = mounted.make_directory(ROOT, b"top").expect("made").node;
    let (_, open) = mounted.create(top, b"open", common::EXCLUSIVE).expect("made");
    for round in 0..3u64 {
        mounted.write(open, round * 1000, &pattern(1000, round)).expect("written");
        mounted.wait(Call::Flush { handle: open }).expect("flushed");
        for file in 0..20 {
            let name = format!("{round} {file}").into_bytes();
            mounted.put(top, &name, &pattern(500, file)).expect("written");
        }
        let inner = mounted.make_directory(top, format!("d{round}").as_bytes()).expect("made").node;
        mounted.put(inner, b"file", b"content").expect("written");
        sync(&mounted, top).expect("synced");
        // In memory nothing of it waits any more.
        let (tell, told) = std::sync::mpsc::channel();
        let done = move |result| drop(tell.send(result));
        mounted.start(Call::Sync { handle: open, data_only: false }, Box::new(done));
        told.recv_timeout(Duration::from_secs(60))
            .expect("a file whose content is written is synced")
            .expect("synced");
        mounted.rename((top, format!("{round} 1").as_bytes()), (inner, b"moved"), 0).expect("moved");
        mounted.remove(top, format!("{round} 2").as_bytes(), false).expect("removed");
        assert_eq!(mounted.list(top).expect("listed").len() as u64, 1 + (round + 1) * 19);
    }
    mounted.close(open).expect("closed");
    drop(mounted);
    let report = assert_right(&fs);
    assert_eq!((report.files, report.directories), (1 + 3 * 20, 5));
}

#[test]
fn another_host_sees_at_once_what_was_closed() {
    let fs = parity();
    let (one, two) = (mount(&fs, true), mount(&fs, false));
    let top = one.make_directory(ROOT, b"top").expect("made").node;
    for round in 0..20u64 {
        let name = format!("{round}").into_bytes();
        one.put(top, &name, &pattern(5000, round)).expect("written");
        match round % 4 {
            0 => assert!(two.content(top, &name).expect("read") == pattern(5000, round), "round {round}"),
            1 => assert_eq!(two.list(top).expect("listed").len() as u64, round + 1),
            2 => assert_eq!(two.attributes(top), one.attributes(top)),
            _ => {
                assert_eq!(two.create(top, &name, common::EXCLUSIVE).map(drop), Err(Errno::EXIST));
                two.remove(top, &name, false).expect("removed");
                two.put(top, &name, b"two").expect("written");
                assert_eq!(one.content(top, &name), Ok(b"two".to_vec()));
            }
        }
    }
    drop((one, two));
    assert_eq!(assert_right(&fs).files, 20);
}

#[test]
fn a_directory_in_which_another_host_makes_something_is_not_removed() {
    let fs = parity();
    let (one, two) = (mount(&fs, true), mount(&fs, true));
    for round in 0..30u8 {
        let name = [b'd', round + 1];
        let inner = one.make_directory(ROOT, &name).expect("made").node;
        let removed = std::thread::scope(|scope| {
            let made = scope.spawn(|| one.put(inner, b"file", b"content").map(drop));
            let removed = scope.spawn(|| two.remove(ROOT, &name, true));
            let (made, removed) = (made.join().expect("no panic"), removed.join().expect("no panic"));
            assert!(made.is_ok() != removed.is_ok(), "round {round}: {made:?} {removed:?}");
            removed.is_ok()
        });
        if !removed {
            assert_eq!(two.content(inner, b"file"), Ok(b"content".to_vec()));
        }
    }
    drop((one, two));
    assert_right(&fs);
}

#[test]
fn hosts_that_use_one_directory_at_the_same_time_lose_nothing() {
    let fs = parity();
    let hosts: Vec<PoolFs> = (0..3).map(|_| mount(&fs, true)).collect();
    let top = hosts[0].make_directory(ROOT, b"top").expect("made").node;
    std::thread::scope(|scope| {
        for (index, host) in hosts.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..40 {
                    let (name, moved) = (format!("{index} {number}"), format!("{index} moved {number}"));
                    host.put(top, name.as_bytes(), &pattern(3000, number)).expect("written");
                    match number % 4 {
                        0 => host.rename((top, name.as_bytes()), (top, moved.as_bytes()), 0).expect("moved"),
                        1 => host.remove(top, name.as_bytes(), false).expect("removed"),
                        2 => drop(host.lookup(top, format!("{} {number}", (index + 1) % 3).as_bytes())),
                        _ => {}
                    }
                }
            });
        }
    });
    for host in &hosts {
        let all = host.list(top).expect("listed");
        assert_eq!(all.len(), 90);
        for index in 0..3 {
            for number in (0..40).filter(|number| number % 4 != 1) {
                let name = if number % 4 == 0 {
                    format!("{index} moved {number}")
                } else {
                    format!("{index} {number}")
                };
                assert!(host.content(top, name.as_bytes()).expect("read") == pattern(3000, number), "{name}");
            }
        }
    }
    drop(hosts);
    assert_eq!(assert_right(&fs).files, 90);
}

#[test]
fn a_lease_comes_back_while_much_is_made_elsewhere() {
    let fs = parity();
    // Its writes take so long that something waits to be written all the time.
    let slow = Held::new(&fs.catalog, "longhaul-write", Hold::Slow);
    let (one, two) = (fs.open_by(slow, &TestFs::leased()).expect("mounted"), mount(&fs, true));
    let [wanted, busy] =
        ["wanted", "busy"].map(|name| one.make_directory(ROOT, name.as_bytes()).expect("made").node);
    one.put(wanted, b"file", b"content").expect("written");
    sync(&one, wanted).expect("synced");
    let (is_over, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            while !is_over.load(SeqCst) {
                let name = made.fetch_add(1, SeqCst).to_string();
                let (_, handle) = one.create(busy, name.as_bytes(), WRITE).expect("made");
                one.close(handle).expect("closed");
            }
        });
        let begun = Instant::now();
        while made.load(SeqCst) < 2000 {
            assert!(begun.elapsed() < Duration::from_secs(60) && !maker.is_finished(), "nothing is made");
            std::thread::yield_now();
        }
        let (before, begun) = (made.load(SeqCst), Instant::now());
        let (found, end) = (scope.spawn(|| two.content(wanted, b"file")), Duration::from_secs(20));
        while !found.is_finished() && begun.elapsed() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let is_found = found.is_finished();
        is_over.store(true, SeqCst);
        assert!(is_found, "not within {end:?}, in which {} files were made", made.load(SeqCst) - before);
        assert_eq!(found.join().expect("joined").expect("read"), b"content");
    });
    drop((one, two));
    assert_right(&fs);
}

#[test]
fn leases_of_many_names_are_given_back_early() {
    let fs = parity();
    let one = mount(&fs, true);
    let directories: Vec<Node> = (0..5u8)
        .map(|number| {
            let directory = one.make_directory(ROOT, &[b'a' + number]).expect("made").node;
            for file in 0..15_000 {
                let (_, handle) = one.create(directory, format!("{file}").as_bytes(), WRITE).expect("made");
                one.close(handle).expect("closed");
            }
            directory
        })
        .collect();
    let begun = Instant::now();
    // 75,000 names are above what is held without use, and 60,000 are not.
    while one.leased() == directories.len() + 1 {
        assert!(begun.elapsed() < Duration::from_secs(8), "the leases are held");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(one);
    assert_eq!(assert_right(&fs).files, 75_000);
}

#[test]
fn a_host_that_is_lost_holds_nobody_up() {
    let fs = parity();
    let (one, two) = (mount(&fs, true), mount(&fs, true));
    let top = one.make_directory(ROOT, b"top").expect("made").node;
    one.put(top, b"kept", b"kept").expect("written");
    sync(&one, top).expect("synced");
    one.put(top, b"lost", b"lost").expect("written");
    let lease = one.lease();
    one.lose();
    // Its lease runs out while another host waits for it.
    let catalog = Arc::clone(&fs.catalog);
    let found = std::thread::scope(|scope| {
        let found = scope.spawn(|| two.list(top));
        scope.spawn(move || catalog.revoke(lease).expect("ended"));
        found.join().expect("no panic")
    });
    let found = found.expect("listed");
    assert!(found.contains_key(&b"kept"[..]), "{found:?}");
    two.put(top, b"new", b"new").expect("written");
    two.tidy().expect("cleaned");
    two.tidy().expect("cleaned");
    drop(two);
    assert_right(&fs);
}

#[test]
fn a_session_that_has_run_out_says_so() {
    let fs = parity();
    let mounted = mount(&fs, true);
    let top = mounted.make_directory(ROOT, b"top").expect("made").node;
    let (_, handle) = mounted.create(top, b"file", WRITE).expect("made");
    mounted.write(handle, 0, b"content").expect("in memory");
    fs.catalog.revoke(mounted.lease()).expect("ended");
    assert_eq!(mounted.sync(handle), Err(Errno::IO));
    assert_eq!(mounted.create(top, b"late", WRITE).map(drop), Err(Errno::IO));
    assert_eq!(sync(&mounted, top), Err(Errno::IO));
    drop(mounted);
    assert_eq!(assert_right(&fs).files, 0);
}

#[test]
fn content_that_cannot_be_written_is_reported_once_to_each() {
    let fs = parity();
    let mounted = mount(&fs, true);
    let top = mounted.make_directory(ROOT, b"top").expect("made").node;
    let (attributes, first) = mounted.create(top, b"file", WRITE).expect("made");
    let (_, second) = mounted.open(attributes.node, WRITE).expect("opened");
    mounted.write(first, 0, &pattern(1000, 1)).expect("in memory");
    for disk in &fs.disks {
        let error = IoError::Unreachable("cut".into());
        disk.disk.inject(FaultRule::new(OpKind::Write, Fault::Error(error)));
    }
    mounted.flush(first).expect("later");
    // The names are durable, and the content is not.
    assert_eq!(sync(&mounted, top), Err(Errno::IO));
    assert_eq!(sync(&mounted, top), Ok(()));
    for handle in [first, second] {
        assert_eq!(mounted.flush(handle), Err(Errno::IO));
        assert_eq!(mounted.sync(handle), Err(Errno::IO));
        assert_eq!(mounted.flush(handle), Ok(()));
    }
    for disk in &fs.disks {
        disk.disk.heal();
    }
    mounted.find_members();
    mounted.write(second, 0, &pattern(2000, 2)).expect("in memory");
    mounted.sync(second).expect("synced");
    mounted.close(first).expect("closed");
    mounted.close(second).expect("closed");
    drop(mounted);
    let mounted = fs.open().expect("mounted");
    assert_eq!(mounted.content(top, b"file"), Ok(pattern(2000, 2)));
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn content_that_members_lose_is_written_again() {
    let fs = parity();
    let mounted = mount(&fs, true);
    let top = mounted.make_directory(ROOT, b"top").expect("made").node;
    for file in 0..30u8 {
        mounted.put(top, &[b'A' + file], &pattern(20_000, file.into())).expect("written");
    }
    // It is lost between the write and what makes it durable.
    let error = IoError::Unreachable("cut".into());
    fs.disks[1].disk.inject(FaultRule::new(OpKind::Flush, Fault::Error(error)).times(1));
    sync(&mounted, top).expect("synced");
    mounted.lose();
    fs.disks.iter().for_each(|disk| disk.disk.cut_power());
    let mounted = fs.open().expect("mounted");
    for file in 0..30u8 {
        assert!(mounted.content(top, &[b'A' + file]).expect("read") == pattern(20_000, file.into()));
    }
}

#[test]
fn an_open_file_is_read_and_written_while_it_is_written_behind() {
    let fs = parity();
    let mounted = mount(&fs, true);
    let top = mounted.make_directory(ROOT, b"top").expect("made").node;
    let (_, handle) = mounted.create(top, b"log", APPEND).expect("made");
    let mut content = Vec::new();
    for round in 0..200u64 {
        let line = pattern(700, round);
        mounted.write(handle, 0, &line).expect("written");
        content.extend(line);
        match round % 5 {
            0 => mounted.flush(handle).expect("closed"),
            1 => sync(&mounted, top).expect("synced"),
            _ => {}
        }
        assert!(mounted.read(handle, 0, 1 << 20).expect("read") == content, "round {round}");
    }
    mounted.close(handle).expect("closed");
    assert!(mounted.content(top, b"log").expect("read") == content);
    drop(mounted);
    assert!(fs.open().expect("mounted").content(top, b"log").expect("read") == content);
    assert_right(&fs);
}

#[test]
fn memory_is_bounded() {
    let fs = TestFs::new(common::memory(), 3, (2, 1), 400).expect("made");
    let options = FsOptions { memory: 256 << 10, ..TestFs::leased() };
    let mounted = fs.open_by(Arc::clone(&fs.catalog), &options).expect("mounted");
    let top = mounted.make_directory(ROOT, b"top").expect("made").node;
    for file in 0..200u64 {
        mounted.put(top, format!("{file}").as_bytes(), &pattern(30_000, file)).expect("written");
        assert!(mounted.unwritten() <= 400 << 10, "{} bytes in memory", mounted.unwritten());
    }
    for file in 0..200u64 {
        let found = mounted.content(top, format!("{file}").as_bytes()).expect("read");
        assert!(found == pattern(30_000, file));
    }
    drop(mounted);
    assert_right(&fs);
}

#[test]
fn names_come_in_the_order_in_which_they_were_made() {
    // Whatever is there of it at any time is right, also while directories, files and moves are written in
    // several transactions.
    let fs = parity();
    let mounted = mount(&fs, true);
    let watching = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while watching.load(std::sync::atomic::Ordering::Relaxed) {
                assert_right(&fs);
            }
        });
        let mut parents = vec![mounted.make_directory(ROOT, b"top").expect("made").node];
        for round in 0..1500u32 {
            let parent = parents[round as usize % parents.len()];
            let name = format!("{round}").into_bytes();
            if round % 10 == 0 {
                parents.push(mounted.make_directory(parent, &name).expect("made").node);
            } else {
                mounted.put(parent, &name, &pattern(100, round.into())).expect("written");
                let other = parents[round as usize * 7 % parents.len()];
                mounted.rename((parent, &name), (other, format!("m{round}").as_bytes()), 0).expect("moved");
            }
        }
        sync(&mounted, ROOT).expect("synced");
        watching.store(false, std::sync::atomic::Ordering::Relaxed);
    });
    drop(mounted);
    assert_eq!(assert_right(&fs).files, 1350);
}

#[test]
fn a_catalog_that_is_away_for_a_while_loses_nothing() {
    let fs = parity();
    let options = FsOptions { patience: Duration::from_secs(1), ..TestFs::leased() };
    let away = Dying::new(&fs.catalog, u64::MAX - 1, End::Before);
    let mounted = fs.open_by(away.clone(), &options).expect("mounted");
    let top = mounted.make_directory(ROOT, b"top").expect("made").node;
    mounted.put(top, b"before", b"before").expect("written");
    away.set_away(true);
    // What is leased is read and made.
    assert_eq!(mounted.lookup(top, b"none").map(drop), Err(Errno::NOENT));
    assert_eq!(mounted.content(top, b"before"), Ok(b"before".to_vec()));
    let (_, handle) = mounted.create(top, b"during", WRITE).expect("made");
    mounted.write(handle, 0, b"during").expect("in memory");
    assert_eq!(mounted.sync(handle), Err(Errno::IO));
    away.set_away(false);
    mounted.sync(handle).expect("synced");
    mounted.close(handle).expect("closed");
    drop(mounted);
    let mounted = fs.open().expect("mounted");
    assert_eq!(mounted.content(top, b"during"), Ok(b"during".to_vec()));
    drop(mounted);
    assert_right(&fs);
}

/// Whichever transaction of a host it is that the answer is lost of, also that which gives a lease back: the host that
/// has the lease next keeps it, and each sees what the other has made.
#[test]
fn a_lost_answer_ends_no_lease_of_another_host() {
    let mut lost = 0;
    for left in 2..32 {
        let fs = parity();
        let losing = Dying::new(&fs.catalog, left, End::AnswerLost);
        let Ok(one) = fs.open_by(losing.clone(), &TestFs::leased()) else { continue };
        let two = mount(&fs, true);
        let mut made = 0;
        for (host, other) in [(&one, &two), (&two, &one), (&one, &two)] {
            let names: Vec<Vec<u8>> = (0..3).map(|n| format!("file {}", made + n).into_bytes()).collect();
            made += 3;
            let put = names.into_iter().filter(|name| match host.put(ROOT, name, b"content") {
                Ok(_) => true,
                Err(Errno::IO) if losing.has_lost_an_answer() => false,
                Err(e) => panic!("answer {left} is lost: {e}"),
            });
            // All of them are made before the other host asks for the lease.
            for name in put.collect::<Vec<_>>() {
                let found = other.lookup(ROOT, &name);
                let name = String::from_utf8_lossy(&name);
                assert!(found.is_ok(), "answer {left} is lost: {name} is not seen: {:?}", found.err());
            }
        }
        lost += u32::from(losing.has_lost_an_answer());
        drop((one, two));
        assert_right(&fs);
    }
    assert!(lost > 10, "only {lost} answers were lost");
}
