//! File systems on remote devices: unmounted, stopped, killed, cut off for a while, with a
//! target that restarts. Each ends with a clean check and the durable files. The tests need
//! root, FUSE, a loop device and `/dev/net/tun`, and are skipped with a message elsewhere.

mod common;

use common::testbed::{FILE_SYSTEMS, Testbed, is_mounted};
use common::{has_ended, kill_and_wait, text, unmount_by_others, until};
use longhaul_wan::Change;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The content of a file, computed from its name.
fn content(name: &str) -> Vec<u8> {
    let seed = name.bytes().fold(7usize, |n, b| n.wrapping_mul(31).wrapping_add(usize::from(b)));
    (0..300_000 + seed % 900_000).map(|i| ((i / 512 * 31 + i + seed) % 251) as u8).collect()
}

/// Writes a file, and makes it durable.
fn write(dir: &Path, name: &str) -> std::io::Result<()> {
    let mut file = File::create(dir.join(name))?;
    file.write_all(&content(name))?;
    file.sync_all()
}

/// Checks the file system on the device, as it is, and then its files.
fn check(testbed: &Testbed, fs: &str, files: &[String]) {
    testbed.check(fs);
    testbed.mount();
    for name in files {
        let found = fs::read(testbed.at().join(name)).expect(name);
        assert!(found == content(name), "{fs}: {name} has changed");
    }
    testbed.umount();
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("file-{n}")).collect()
}

/// Writes up to `until` files, or until an error, and returns the names of durable ones.
fn writer(dir: PathBuf, count: usize) -> std::thread::JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        names(count).into_iter().take_while(|name| write(&dir, name).is_ok()).collect()
    })
}

#[test]
fn a_thousand_writers_have_their_turn_on_a_loop_device() {
    let Some(testbed) = Testbed::new("xfs") else { return };
    let ready = testbed.mounted();
    let Some(device) = ready["loop"].as_str().map(PathBuf::from) else {
        longhaul_skip::skip!("mounted through {}, which is no loop device", ready["via"]);
        return;
    };
    let queue = Path::new("/sys/block").join(device.file_name().expect("a name")).join("queue");
    let scheduler = || fs::read_to_string(queue.join("scheduler")).expect("the scheduler");
    let waiting = || fs::read_to_string(queue.join("nr_requests")).expect("a number");
    let writable = fs::OpenOptions::new().write(true).open(queue.join("scheduler")).is_ok();
    if !writable || !scheduler().contains("mq-deadline") {
        longhaul_skip::skip!("the kernel has only {}, or does not let it be chosen", scheduler().trim());
        return;
    }
    assert!(scheduler().contains("[mq-deadline]"), "{}", scheduler());
    assert_eq!(waiting().trim(), "1024");
    testbed.umount();
}

#[test]
fn unmounted_it_is_whole() {
    for fs in FILE_SYSTEMS {
        let Some(testbed) = Testbed::new(fs) else { return };
        testbed.mount();
        let files = names(12);
        for name in &files {
            // Without fsync, since unmounting flushes.
            fs::write(testbed.at().join(name), content(name)).expect("written");
        }
        let busy = File::open(testbed.at().join(&files[0])).expect("opened");
        let ran = testbed.run(&["umount", text(&testbed.at())]);
        assert_eq!(ran.code, Some(6), "{}", ran.stderr);
        assert!(ran.stderr.contains("in use"), "{}", ran.stderr);
        drop(busy);
        testbed.umount();
        check(&testbed, fs, &files);
        // The process ends also when another one unmounts.
        testbed.mount();
        unmount_by_others(&testbed.at());
        testbed.is_gone();
    }
}

#[test]
fn sigterm_unmounts_it_and_waits_for_its_users() {
    for fs in FILE_SYSTEMS {
        let Some(testbed) = Testbed::new(fs) else { return };
        let pid = testbed.mount();
        let files = names(4);
        for name in &files {
            fs::write(testbed.at().join(name), content(name)).expect("written");
        }
        let mut busy = File::options().append(true).open(testbed.at().join(&files[0])).expect("opened");
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        until("it is out of sight", || !is_mounted(&testbed.at()));
        busy.write_all(b"more").expect("its user keeps it");
        busy.set_len(content(&files[0]).len() as u64).expect("its user keeps it");
        busy.sync_all().expect("durable");
        drop(busy);
        testbed.is_gone();
        check(&testbed, fs, &files);
    }
}

#[test]
fn unmounted_lazily_by_others_its_users_keep_it() {
    for fs in FILE_SYSTEMS {
        let Some(testbed) = Testbed::new(fs) else { return };
        testbed.mount();
        let name = names(1).remove(0);
        let mut file = File::create(testbed.at().join(&name)).expect("made");
        assert!(Command::new("umount").arg("-l").arg(testbed.at()).status().expect("umount").success());
        let ran = testbed.run(&["umount", text(&testbed.at())]);
        assert_eq!(ran.code, Some(6), "{fs}: {}", ran.stderr);
        assert!(ran.stderr.contains("in use"), "{}", ran.stderr);
        file.write_all(&content(&name)).expect("its user keeps it");
        file.sync_all().expect("durable");
        drop(file);
        testbed.is_gone();
        check(&testbed, fs, &[name]);
    }
}

#[test]
fn what_is_written_to_be_durable_outlives_its_process() {
    let Some(testbed) = Testbed::new("ext4") else { return };
    let at = testbed.dir.path().join("raw");
    for flag in [rustix::fs::OFlags::DSYNC, rustix::fs::OFlags::SYNC] {
        let ran = testbed.good(&["attach", &testbed.uri(), "--at", text(&at), "--json"]);
        let pid = ran.events().remove(0)["pid"].to_string();
        let file = File::options().write(true).custom_flags(flag.bits() as i32).open(&at).expect("opened");
        let content: Vec<u8> = (0..4 << 20).map(|i: u32| (i / 512 * 31 + i + flag.bits()) as u8).collect();
        file.write_all_at(&content, 32 << 20).expect("written");
        testbed.wan.set(1, &Change::cut()).expect("cut");
        kill_and_wait(&pid);
        testbed.wan.set(1, &Change::restore()).expect("back");
        let kept = fs::read(testbed.dir.path().join("disk")).expect("read");
        assert!(kept[32 << 20..][..content.len()] == content, "{flag:?}");
        drop(file);
        testbed.good(&["detach", text(&at)]);
    }
}

#[test]
fn what_is_mounted_elsewhere_as_well_ends_with_that() {
    let Some(testbed) = Testbed::new("ext4") else { return };
    let pid = testbed.mount();
    let other = testbed.dir.path().join("other");
    fs::create_dir(&other).expect("made");
    let bind = Command::new("mount").arg("--bind").args([&testbed.at(), &other]).status();
    assert!(bind.expect("mount").success());
    let files = names(3);
    write(&other, &files[0]).expect("written");
    for name in &files[1..] {
        // The first unmount detaches the mount lazily.
        let ran = testbed.run(&["umount", text(&testbed.at())]);
        assert_eq!(ran.code, Some(6), "{}", ran.stderr);
        assert!(ran.stderr.contains("elsewhere") && !is_mounted(&testbed.at()), "{}", ran.stderr);
        write(&other, name).expect("its users keep it");
    }
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    let ran = testbed.run(&["umount", text(&testbed.at())]);
    assert_eq!(ran.code, Some(6), "it does not end by a signal: {}", ran.stderr);
    write(&other, &files[0]).expect("its users keep it");
    unmount_by_others(&other);
    testbed.is_gone();
    check(&testbed, "ext4", &files);
}

#[test]
fn a_third_signal_ends_it_though_the_link_is_cut() {
    for fs in FILE_SYSTEMS {
        let Some(testbed) = Testbed::new(fs) else { return };
        let pid = testbed.mount();
        let files = names(2);
        for name in &files {
            write(&testbed.at(), name).expect("written");
        }
        fs::write(testbed.at().join("lost"), content("lost")).expect("in the page cache");
        testbed.wan.set(1, &Change::cut()).expect("cut");
        until("its end", || {
            let _ = Command::new("kill").args(["-TERM", &pid]).output();
            has_ended(&pid)
        });
        testbed.wan.set(1, &Change::restore()).expect("back");
        until("it is unmounted", || testbed.run(&["umount", text(&testbed.at())]).code == Some(0));
        testbed.is_gone();
        testbed.replay();
        check(&testbed, fs, &files);
    }
}

#[test]
fn a_device_that_shrinks_under_a_file_system_is_reported() {
    for fs in FILE_SYSTEMS {
        let Some(testbed) = Testbed::new(fs) else { return };
        testbed.mount();
        let name = names(1).remove(0);
        write(&testbed.at(), &name).expect("written");
        // The part that is cut off is still empty.
        testbed.shrink(508 << 20);
        let logs = || fs::read_dir(testbed.dir.path().join("longhaul")).expect("there").flatten();
        let text_of = |entry: fs::DirEntry| fs::read_to_string(entry.path()).unwrap_or_default();
        until("the log has it", || logs().any(|entry| text_of(entry).contains("has shrunk")));
        assert!(fs::read(testbed.at().join(&name)).expect("read") == content(&name));
        testbed.umount();
        let ran = testbed.run(&["mount", &testbed.uri(), text(&testbed.at())]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("has become smaller"), "{}", ran.stderr);
        testbed.is_gone();
    }
}

#[test]
fn a_killed_process_loses_nothing_that_was_durable() {
    for fs in FILE_SYSTEMS {
        let Some(testbed) = Testbed::new(fs) else { return };
        let pid = testbed.mount();
        let writing = writer(testbed.at(), 1000);
        until("some files are written", || testbed.at().join("file-5").exists());
        assert!(Command::new("kill").args(["-KILL", &pid]).status().expect("kill").success());
        let durable = writing.join().expect("no panic");
        assert!(durable.len() >= 4 && durable.len() < 1000, "{}", durable.len());
        until("it is unmounted", || testbed.run(&["umount", text(&testbed.at())]).code == Some(0));
        testbed.is_gone();
        testbed.replay();
        check(&testbed, fs, &durable);
    }
}

#[test]
fn a_link_that_is_cut_and_returns_is_waited_for() {
    for fs in FILE_SYSTEMS {
        let Some(testbed) = Testbed::new(fs) else { return };
        testbed.mount();
        let writing = writer(testbed.at(), 30);
        until("some files are written", || testbed.at().join("file-3").exists());
        testbed.wan.set(1, &Change::cut()).expect("cut");
        std::thread::sleep(Duration::from_secs(4));
        testbed.wan.set(1, &Change::restore()).expect("back");
        let durable = writing.join().expect("no panic");
        assert_eq!(durable.len(), 30, "{fs}: I/O failed");
        testbed.umount();
        check(&testbed, fs, &durable);
    }
}

#[test]
fn a_target_that_restarts_is_waited_for() {
    for fs in FILE_SYSTEMS {
        let Some(mut testbed) = Testbed::new(fs) else { return };
        testbed.mount();
        let writing = writer(testbed.at(), 30);
        until("some files are written", || testbed.at().join("file-3").exists());
        testbed.kill_target();
        std::thread::sleep(Duration::from_secs(1));
        testbed.serve();
        let durable = writing.join().expect("no panic");
        assert_eq!(durable.len(), 30, "{fs}: I/O failed");
        testbed.umount();
        check(&testbed, fs, &durable);
    }
}

#[test]
fn a_mount_whose_recovery_finds_no_room_is_refused() {
    for fs in FILE_SYSTEMS {
        let Some(mut testbed) = Testbed::new(fs) else { return };
        let pid = testbed.mount();
        let files = names(6);
        for name in &files {
            write(&testbed.at(), name).expect("written");
        }
        // The journal has the durable files, and has to be replayed.
        assert!(Command::new("kill").args(["-KILL", &pid]).status().expect("kill").success());
        until("it is unmounted", || testbed.run(&["umount", text(&testbed.at())]).code == Some(0));
        testbed.is_gone();
        testbed.kill_target();
        let disk = testbed.dir.path().join("disk");
        let full = format!("file:{},error=1:ops=write+zero:kind=nospace", disk.display());
        let ran = testbed.run(&["mount", &full, text(&testbed.at()), "--via", "fuse"]);
        assert_eq!(ran.code, Some(1), "{fs}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("no space left"), "{fs}: the cause is named: {}", ran.stderr);
        assert!(!is_mounted(&testbed.at()), "{fs}: it is not left there");
        testbed.is_gone();
        // With free space again nothing is lost.
        testbed.serve();
        testbed.replay();
        check(&testbed, fs, &files);
    }
}

#[test]
fn what_cannot_be_mounted_is_named_and_nothing_is_left() {
    let Some(testbed) = Testbed::new("ext4") else { return };
    let (at, uri) = (testbed.at(), testbed.uri());
    let wrong = |args: &[&str], code, words: &str| {
        let ran = testbed.run(args);
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
        assert!(testbed.attached().is_empty());
    };
    wrong(&["mount", "mem:16MiB", text(&at)], 1, "longhaul mkfs");
    wrong(&["mount", &uri, "/nonexistent/dir"], 2, "/nonexistent");
    wrong(&["mount", &uri, text(&testbed.dir.path().join("disk"))], 2, "not a directory");
    wrong(&["mount", &uri, text(&at), "-o", "nonsense"], 1, "mount");
    wrong(&["mkfs", "--fs", "ext4", &uri], 6, "--force");
    wrong(&["mkfs", "--fs", "xfs", "mem:16MiB"], 1, "XFS needs");
    wrong(&["umount", text(&at)], 1, "nothing is attached");
    // A device that is smaller than its file system.
    let small = testbed.dir.path().join("small");
    fs::copy(testbed.dir.path().join("disk"), &small).expect("copied");
    File::options().write(true).open(&small).expect("opened").set_len(64 << 20).expect("cut");
    wrong(&["mount", text(&small), text(&at)], 1, "smaller");
    testbed.mount();
    let ran = testbed.run(&["mount", &uri, text(&at)]);
    assert_eq!(ran.code, Some(6), "{}", ran.stderr);
    let ran = testbed.run(&["mkfs", "--fs", "ext4", &uri, "--force"]);
    assert_eq!(ran.code, Some(6), "{}", ran.stderr);
    testbed.umount();
}

/// With a dead target, the list reports an unreachable device, `umount` fails with the reason,
/// and `umount --lazy` detaches the file system.
#[test]
fn a_dead_device_is_named_and_unmounted_lazily() {
    let Some(mut testbed) = Testbed::new("ext4") else { return };
    let (uri, at) = (testbed.uri(), testbed.at());
    testbed.good(&["mount", &uri, text(&at), "--via", "fuse", "--keep-alive", "1s"]);
    assert_eq!(testbed.attached()[0]["health"], "healthy");
    write(&at, "durable").expect("written");
    testbed.kill_target();
    until("the health is unreachable", || testbed.attached()[0]["health"] == "unreachable");
    let why = testbed.attached()[0]["trouble"].as_str().expect("a reason").to_owned();
    assert!(why.contains("no connection to") && why.contains(":4420 for"), "{why}");
    let ran = testbed.run(&["umount", text(&at)]);
    let named = ran.stderr.contains("no connection to") && ran.stderr.contains("--lazy");
    assert!(ran.code == Some(5) && named, "{ran:?}");
    assert!(is_mounted(&at), "nothing was done");
    testbed.good(&["umount", "--lazy", text(&at)]);
    assert!(!is_mounted(&at));
    // The process writes everything back and ends once its device is reachable again.
    testbed.serve();
    testbed.is_gone();
    check(&testbed, "ext4", &["durable".to_owned()]);
}
