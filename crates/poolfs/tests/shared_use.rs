//! Several hosts at one file system.

mod common;

use common::{APPEND, Calls, EXCLUSIVE, ROOT, WRITE, assert_right, mount, parity, pattern};
use longhaul_fs::{Errno, Node};
use longhaul_poolfs::PoolFs;

both! {
    what_one_host_has_closed_another_one_reads_when_it_opens
    content_that_is_replaced_and_whose_place_is_used_again_is_not_read
    of_hosts_that_make_one_name_one_makes_it
    what_two_hosts_append_is_all_there
    directories_that_hosts_move_at_the_same_time_stay_a_tree
    many_threads_of_two_hosts_use_one_directory
}

fn what_one_host_has_closed_another_one_reads_when_it_opens(leases: bool) {
    let fs = parity();
    let (one, two) = (mount(&fs, leases), mount(&fs, leases));
    for round in 0..20 {
        let content = pattern(1 + round * 40_000, round as u64);
        let node = one.put(ROOT, b"file", &content).expect("written");
        assert!(two.content(ROOT, b"file").expect("read") == content, "round {round}");
        // It is the same file, also while it is open there.
        let (_, handle) = two.open(node, WRITE).expect("opened");
        assert!(two.read(handle, 0, 1 << 20).expect("read") == content[..content.len().min(1 << 20)]);
        one.put(ROOT, b"file", &pattern(3000, 99)).expect("written");
        let (_, again) = two.open(node, WRITE).expect("opened");
        assert_eq!(two.read(again, 0, 1 << 20).expect("read"), pattern(3000, 99));
        two.close(again).expect("closed");
        two.close(handle).expect("closed");
        for host in [&one, &two] {
            host.tidy().expect("cleaned");
        }
        assert_right(&fs);
    }
}

fn content_that_is_replaced_and_whose_place_is_used_again_is_not_read(leases: bool) {
    let fs = parity();
    let (one, two) = (mount(&fs, leases), mount(&fs, leases));
    let node = one.put(ROOT, b"file", &pattern(300_000, 1)).expect("written");
    let (_, handle) = two.open(node, 0).expect("opened");
    one.remove(ROOT, b"file", false).expect("removed");
    for round in 0..60 {
        let name = format!("{round}").into_bytes();
        one.put(ROOT, &name, &pattern(400_000, 100 + round)).expect("written");
        one.tidy().expect("cleaned");
        one.remove(ROOT, &name, false).expect("removed");
    }
    one.tidy().expect("cleaned");
    match two.read(handle, 0, 300_000) {
        Ok(found) => assert!(found == pattern(300_000, 1), "content of another file"),
        Err(e) => assert_eq!(e, Errno::STALE),
    }
    assert_eq!(two.attributes(node), Err(Errno::STALE));
    let _ = two.close(handle);
}

fn of_hosts_that_make_one_name_one_makes_it(leases: bool) {
    let fs = parity();
    let hosts: Vec<PoolFs> = (0..3).map(|_| mount(&fs, leases)).collect();
    let made: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let make = |host: &PoolFs| -> Vec<u32> {
            (0..60)
                .filter(|number| match host.create(ROOT, format!("{number}").as_bytes(), EXCLUSIVE) {
                    Ok((_, handle)) => {
                        host.close(handle).expect("closed");
                        true
                    }
                    Err(e) => {
                        assert_eq!(e, Errno::EXIST);
                        false
                    }
                })
                .collect()
        };
        let threads: Vec<_> = hosts.iter().map(|host| scope.spawn(move || make(host))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut all: Vec<u32> = made.concat();
    all.sort_unstable();
    assert_eq!(all, (0..60).collect::<Vec<_>>());
    assert_eq!(assert_right(&fs).files, 60);
}

fn what_two_hosts_append_is_all_there(leases: bool) {
    let fs = parity();
    let hosts = [mount(&fs, leases), mount(&fs, leases)];
    let (node, handle) = hosts[0].create(ROOT, b"log", WRITE).expect("made");
    hosts[0].close(handle).expect("closed");
    std::thread::scope(|scope| {
        for (index, host) in hosts.iter().enumerate() {
            scope.spawn(move || {
                let (_, handle) = host.open(node.node, APPEND).expect("opened");
                for line in 0..60 {
                    let text = format!("host {index} line {line:03}\n");
                    host.write(handle, 0, text.as_bytes()).expect("written");
                    host.sync(handle).expect("synced");
                }
                host.close(handle).expect("closed");
            });
        }
    });
    let log = String::from_utf8(hosts[0].content(ROOT, b"log").expect("read")).expect("text");
    for index in 0..2 {
        let own: Vec<&str> = log.lines().filter(|line| line.starts_with(&format!("host {index}"))).collect();
        let expected: Vec<String> = (0..60).map(|line| format!("host {index} line {line:03}")).collect();
        assert_eq!(own, expected);
    }
    assert_right(&fs);
}

fn directories_that_hosts_move_at_the_same_time_stay_a_tree(leases: bool) {
    let fs = parity();
    let hosts: Vec<PoolFs> = (0..3).map(|_| mount(&fs, leases)).collect();
    let directories: Vec<Node> = (0..6)
        .map(|n| hosts[0].make_directory(ROOT, format!("d{n}").as_bytes()).expect("made").node)
        .collect();
    std::thread::scope(|scope| {
        for (seed, host) in hosts.iter().enumerate() {
            let directories = &directories;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed as u64);
                let all: Vec<Node> = directories.iter().copied().chain([ROOT]).collect();
                for _ in 0..60 {
                    let name = format!("d{}", rng.u8(0..6)).into_bytes();
                    let (from, to) = (all[rng.usize(..7)], all[rng.usize(..7)]);
                    // Most are not there, or would be below themselves.
                    let _ = host.rename((from, &name), (to, &name), 0);
                }
            });
        }
    });
    let report = assert_right(&fs);
    assert_eq!(report.directories, 7);
}

fn many_threads_of_two_hosts_use_one_directory(leases: bool) {
    let fs = parity();
    let hosts = [mount(&fs, leases), mount(&fs, leases)];
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let host = &hosts[thread as usize % 2];
            scope.spawn(move || {
                for number in 0..25 {
                    let name = format!("{thread} {number}").into_bytes();
                    host.put(ROOT, &name, &pattern(10_000, thread)).expect("written");
                    if number % 3 == 0 {
                        host.remove(ROOT, &name, false).expect("removed");
                    }
                }
            });
        }
    });
    for thread in 0..6u64 {
        let host = &hosts[1 - thread as usize % 2];
        assert_eq!(host.content(ROOT, format!("{thread} 1").as_bytes()), Ok(pattern(10_000, thread)));
    }
    assert_eq!(hosts[0].list(ROOT).expect("listed").len(), 6 * 16);
    drop(hosts);
    assert_eq!(assert_right(&fs).files, 96);
}

#[test]
fn a_host_whose_session_has_run_out_changes_nothing_and_leaves_nothing() {
    let fs = parity();
    let (one, two) = (fs.open().expect("mounted"), fs.open().expect("mounted"));
    one.put(ROOT, b"kept", &pattern(200_000, 1)).expect("written");
    let (attributes, handle) = one.create(ROOT, b"unlinked", WRITE).expect("made");
    one.write(handle, 0, &pattern(50_000, 2)).expect("written");
    one.flush(handle).expect("committed");
    two.remove(ROOT, b"unlinked", false).expect("removed");
    // Removed by the host that has it open, it is there for its users.
    let (_, open) = one.create(ROOT, b"orphan", WRITE).expect("made");
    one.write(open, 0, &pattern(70_000, 3)).expect("written");
    one.flush(open).expect("committed");
    one.remove(ROOT, b"orphan", false).expect("removed");
    assert_eq!(one.read(open, 0, 70_000).expect("read"), pattern(70_000, 3));
    fs.catalog.revoke(one.lease()).expect("ended");
    one.write(handle, 0, b"late").expect("in memory");
    assert_eq!(one.flush(handle), Err(Errno::IO));
    assert_eq!(one.make_directory(ROOT, b"late").map(drop), Err(Errno::IO));
    assert!(one.trouble().is_some_and(|why| why.contains("run out")));
    assert_eq!(two.attributes(attributes.node), Err(Errno::STALE));
    two.tidy().expect("cleaned");
    two.tidy().expect("cleaned");
    let report = assert_right(&fs);
    assert_eq!((report.files, report.left), (1, Vec::new()));
    assert_eq!(two.content(ROOT, b"kept"), Ok(pattern(200_000, 1)));
    one.lose();
}
