//! File systems in pools: `longhaul fs`, and `longhaul mount fs:POOL/NAME`, over targets that run as programs.
//! What mounts needs FUSE, and is skipped with a message elsewhere.

mod common;
#[path = "fs/linux.rs"]
mod linux;
#[path = "fs/namespaces.rs"]
mod namespaces;
#[path = "fs/users.rs"]
mod users;

use common::site::{ADMIN, Site};
use common::{PATIENCE, Ran, Running, finish, kill_and_wait, mounts_below, text, until};
use longhaul_torture::fsx::Fsx;
use longhaul_torture::stress::Plan;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A pool with a file system, and places to mount it at.
struct Shared {
    site: Site,
}

impl Shared {
    fn new(targets: usize, args: &[&str]) -> Shared {
        let site = Site::new(targets);
        site.create();
        let made = site.last(&[&["fs", "create", "p/f"], args].concat());
        assert_eq!((&made["name"], &made["hosts"]), (&json!("fs:p/f"), &json!([ADMIN])));
        Shared { site }
    }

    /// `None`, with the reason on standard error, where FUSE is missing.
    fn with_fuse(targets: usize, args: &[&str]) -> Option<Shared> {
        longhaul_skip::can_open(&["/dev/fuse"]).then(|| Shared::new(targets, args))
    }

    fn at(&self, name: &str) -> PathBuf {
        let at = self.site.path(name);
        fs::create_dir_all(&at).expect("made");
        at
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = common::command(args);
        command.env("XDG_STATE_HOME", self.site.path("host")).env("XDG_RUNTIME_DIR", self.site.path("host"));
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        finish(self.command(args).spawn().expect("started"))
    }

    fn mount(&self, at: &str) -> Value {
        self.mount_with(at, &[])
    }

    fn mount_with(&self, at: &str, args: &[&str]) -> Value {
        let at = self.at(at);
        let mount = ["mount", "fs:p/f", text(&at), "--json", "--hostnqn", ADMIN];
        let ran = self.run(&[&mount[..], args].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.events().remove(0)
    }

    fn umount(&self, at: &str) {
        let ran = self.run(&["umount", text(&self.at(at))]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }

    /// Where its members are.
    fn members(&self) -> Vec<String> {
        let status = self.site.run(&["fs", "status", "p/f"]).events().remove(0);
        let members = status["members"].as_array().expect("members").iter();
        members.map(|member| member["uri"].as_str().unwrap_or("missing").to_owned()).collect()
    }

    /// Prints what the mounts have logged.
    fn show_logs(&self) {
        for entry in fs::read_dir(self.site.path("host/longhaul")).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|end| end == "log") {
                let log = fs::read_to_string(entry.path()).unwrap_or_default();
                eprintln!("{}:\n{log}", entry.file_name().display());
            }
        }
    }

    /// The metadata has no problem.
    fn check(&self) -> Value {
        let checked = self.site.last(&["fs", "check", "p/f"]);
        assert_eq!(checked["problems"], 0, "{checked}");
        checked
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
        for mounted in mounts_below(self.site.directory.path()) {
            self.run(&["umount", "--lazy", &mounted]);
        }
    }
}

#[test]
fn a_file_system_is_made_listed_and_removed() {
    let shared = Shared::new(4, &["--size", "64MiB", "--layout", "parity"]);
    let site = &shared.site;
    let listed = site.done(&["fs", "ls"]);
    assert_eq!((&listed[0]["name"], &listed[0]["layout"]), (&json!("fs:p/f"), &json!("parity")));
    assert_eq!((&listed[0]["width"], &listed[1]["file_systems"]), (&json!(4), &json!(1)));
    let status = site.last(&["fs", "status", "p/f"]);
    assert_eq!((&status["health"], &status["size"]), (&json!("healthy"), &status["free"]));
    assert!(status["size"].as_u64().expect("a size") >= 64 << 20);
    assert_eq!((status["members"].as_array().expect("members").len(), &status["mounts"]), (4, &json!([])));
    assert_eq!(shared.check()["directories"], 1);
    // It is no device, and no volume may have its name.
    assert!(
        site.refused(1, &["fs", "create", "p/f", "--size", "1MiB", "--layout", "mirror"]).contains("already")
    );
    assert!(
        site.refused(1, &["volume", "create", "p/f", "--size", "1MiB", "--layout", "single"])
            .contains("already")
    );
    assert!(site.refused(6, &["volume", "rm", "p/f"]).contains("longhaul fs rm p/f"));
    assert!(
        site.refused(2, &["bench", "volume:p/f", "--rw", "read", "--size", "1m"])
            .contains("longhaul mount fs:p/f")
    );
    assert!(
        site.refused(6, &["volume", "resize", "p/f", "--size", "1GiB"]).contains("longhaul fs resize p/f")
    );
    assert!(site.refused(1, &["fs", "status", "p/x"]).contains("no file system called x"));
    assert!(
        site.refused(2, &["fs", "create", "p/x", "--size", "1MiB", "--layout", "stripe+mirror"])
            .contains("cannot have")
    );
    let grown = site.last(&["fs", "resize", "p/f", "--size", "96MiB"]);
    assert_eq!((&grown["before"], &grown["size"]), (&json!(64 << 20), &json!(96 << 20)));
    let status = site.last(&["fs", "status", "p/f"]);
    assert!(status["size"].as_u64().expect("a size") >= 96 << 20, "{status}");
    assert_eq!(site.last(&["fs", "scrub", "p/f"])["wrong"], 0);
    assert_eq!(site.last(&["fs", "rm", "p/f"])["names"], json!(["fs:p/f"]));
    assert_eq!(site.last(&["fs", "ls"])["file_systems"], 0);
    assert_eq!((site.files(), &site.last(&["pool", "status", "p"])["used"]), (0, &json!(0)));
    site.done(&["pool", "destroy", "p"]);
}

#[test]
fn files_of_a_mounted_file_system_are_as_those_of_any_other() {
    let Some(shared) = Shared::with_fuse(4, &["--size", "128MiB", "--layout", "parity"]) else { return };
    let ready = shared.mount("here");
    assert_eq!((&ready["via"], &ready["source"]), (&json!("pool"), &json!("fs:p/f")));
    let here = shared.at("here");
    fs::create_dir_all(here.join("a/b")).expect("made");
    let content: Vec<u8> = (0..3 << 20).map(|at: u32| (at % 251) as u8).collect();
    fs::write(here.join("a/b/large"), &content).expect("written");
    assert!(fs::read(here.join("a/b/large")).expect("read") == content);
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    fs::write(here.join(odd), b"odd").expect("written");
    symlink("a/b/large", here.join("link")).expect("linked");
    assert_eq!(fs::metadata(here.join("link")).expect("followed").len(), 3 << 20);
    fs::hard_link(here.join(odd), here.join("hard")).expect("linked");
    assert_eq!(fs::metadata(here.join("hard")).expect("there").nlink(), 2);
    fs::rename(here.join("a"), here.join("c")).expect("renamed");
    let mut open = File::open(here.join("hard")).expect("opened");
    fs::remove_file(here.join("hard")).expect("removed");
    fs::remove_file(here.join(odd)).expect("removed");
    let mut found = String::new();
    open.read_to_string(&mut found).expect("read");
    assert_eq!(found, "odd");
    drop(open);
    assert_eq!(fs::remove_dir(here.join("c")).expect_err("not empty").kind(), ErrorKind::DirectoryNotEmpty);
    assert!(shared.site.refused(6, &["fs", "rm", "p/f"]).contains("it is mounted on"));
    assert_eq!(shared.site.last(&["fs", "status", "p/f"])["mounts"].as_array().expect("mounts").len(), 1);
    shared.umount("here");
    shared.check();
    assert_eq!(fs::read_dir(&here).expect("a directory").count(), 0);
    shared.mount("here");
    assert!(fs::read(here.join("c/b/large")).expect("read") == content);
    shared.umount("here");
    assert_eq!(shared.site.last(&["fs", "status", "p/f"])["mounts"], json!([]));
}

/// `ls -l` asks each object for these, unless the first answer is that the file system has none.
#[test]
fn extended_attributes_that_nothing_checks_are_refused() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    use rustix::io::Errno;
    let Some(shared) = Shared::with_fuse(4, &["--size", "64MiB", "--layout", "parity"]) else { return };
    shared.mount("here");
    let file = shared.at("here").join("file");
    fs::write(&file, b"1").expect("written");
    let get = |name: &str| getxattr(&file, name, &mut vec![0; 64]);
    let set = |name: &str| setxattr(&file, name, b"value", XattrFlags::empty());
    for name in ["system.posix_acl_access", "security.selinux"] {
        // A host with SELinux answers for its labels itself.
        if name == "security.selinux" && std::path::Path::new("/sys/fs/selinux/enforce").exists() {
            continue;
        }
        for _ in 0..2 {
            assert_eq!(get(name), Err(Errno::OPNOTSUPP), "{name}");
            assert!(matches!(set(name), Err(Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL)), "{name}");
            // Of an object with attributes, and without.
            set("user.one").expect("set");
        }
    }
    assert_eq!((get("user.one"), get("user.none")), (Ok(5), Err(Errno::NODATA)));
    shared.umount("here");
}

#[test]
fn content_survives_torture() {
    let Some(shared) = Shared::with_fuse(4, &["--size", "256MiB", "--layout", "parity"]) else { return };
    shared.mount("here");
    let here = shared.at("here");
    let mut contents = Vec::new();
    for seed in 1..=2 {
        let mut fsx = Fsx::new(&here.join(format!("file-{seed}")), seed).expect("a file");
        fsx.run(300).unwrap_or_else(|e| panic!("{e:?}"));
        contents.push(fsx.content().to_vec());
    }
    let plan = Plan { workers: 4, changes: 100, seed: 3 };
    plan.run(&here).unwrap_or_else(|e| panic!("{e:?}"));
    shared.umount("here");
    shared.check();
    shared.mount("here");
    for (seed, content) in (1..=2).zip(contents) {
        assert!(fs::read(here.join(format!("file-{seed}"))).expect("read") == content, "seed {seed}");
        fs::remove_file(here.join(format!("file-{seed}"))).expect("removed");
    }
    let files = plan.check(&here).unwrap_or_else(|e| panic!("{e:?}"));
    assert!(files > 30, "only {files} files");
    shared.umount("here");
}

#[test]
fn a_lost_target_is_made_up_for() {
    let Some(mut shared) = Shared::with_fuse(4, &["--size", "64MiB", "--layout", "parity"]) else { return };
    shared.mount("here");
    let here = shared.at("here");
    let content = vec![7; 5 << 20];
    fs::write(here.join("before"), &content).expect("written");
    let at = shared.site.kill(1);
    shared.umount("here");
    shared.mount("here");
    assert!(fs::read(here.join("before")).expect("read") == content);
    fs::write(here.join("after"), &content).expect("written");
    let status = shared.site.run(&["fs", "status", "p/f"]);
    assert_eq!((status.code, &status.events()[0]["health"]), (Some(3), &json!("degraded")));
    until("the mount says so", || {
        let listed = shared.run(&["attach", "--list", "--json"]).events();
        listed[0]["health"] == "degraded"
    });
    shared.site.restart(1, &at);
    until("the member is used again", || {
        let listed = shared.run(&["attach", "--list", "--json"]).events();
        listed[0]["health"] == "healthy"
    });
    for name in ["before", "after"] {
        assert!(fs::read(here.join(name)).expect("read") == content, "{name}");
    }
    shared.umount("here");
    shared.check();
}

#[test]
fn a_tree_that_is_made_under_leases_is_there_for_another_mount() {
    let Some(shared) = Shared::with_fuse(3, &["--size", "64MiB", "--layout", "mirror"]) else { return };
    shared.mount_with("one", &["--close", "lease"]);
    shared.mount("two");
    let (one, two) = (shared.at("one"), shared.at("two"));
    let content = |directory: u8, file: u8| vec![directory ^ file; 3000 + usize::from(file)];
    for directory in 0..5u8 {
        let to = one.join(format!("top/d{directory}"));
        fs::create_dir_all(&to).expect("made");
        for file in 0..40u8 {
            let name = to.join(format!("f{file}"));
            fs::write(to.join("part"), content(directory, file)).expect("written");
            fs::rename(to.join("part"), &name).expect("moved");
            fs::set_permissions(&name, std::os::unix::fs::PermissionsExt::from_mode(0o640)).expect("changed");
        }
        symlink("f1", to.join("link")).expect("linked");
        // It looks at once: what was closed is there.
        let seen = two.join(format!("top/d{directory}"));
        assert_eq!(fs::read_dir(&seen).expect("listed").count(), 41);
        assert!(fs::read(seen.join("f39")).expect("read") == content(directory, 39));
    }
    File::open(one.join("top")).expect("opened").sync_all().expect("durable");
    shared.check();
    let plan = Plan { workers: 4, changes: 100, seed: 5 };
    plan.run(&one).unwrap_or_else(|e| panic!("{e:?}"));
    shared.umount("one");
    shared.check();
    plan.check(&two).unwrap_or_else(|e| panic!("{e:?}"));
    for directory in 0..5u8 {
        for file in 0..40u8 {
            let name = two.join(format!("top/d{directory}/f{file}"));
            assert!(fs::read(&name).expect("read") == content(directory, file), "{}", name.display());
            assert_eq!(fs::metadata(&name).expect("there").mode() & 0o7777, 0o640);
        }
    }
    shared.umount("two");
    shared.check();
}

#[test]
fn two_mounts_read_what_the_other_has_closed() {
    let Some(shared) = Shared::with_fuse(3, &["--size", "64MiB", "--layout", "mirror"]) else { return };
    shared.mount("one");
    shared.mount("two");
    let (one, two) = (shared.at("one"), shared.at("two"));
    for round in 0..10u8 {
        fs::write(one.join("file"), vec![round; 10_000 + usize::from(round)]).expect("written");
        until("its name is seen", || two.join("file").exists());
        let found = fs::read(two.join("file")).expect("read");
        assert!(found == vec![round; 10_000 + usize::from(round)], "round {round}");
    }
    let append = |dir: &PathBuf, word: &'static str| {
        let path = dir.join("log");
        std::thread::spawn(move || {
            for line in 0..30 {
                let mut file = OpenOptions::new().append(true).create(true).open(&path).expect("opened");
                file.write_all(format!("{word} {line:03}\n").as_bytes()).expect("written");
            }
        })
    };
    fs::write(one.join("log"), b"").expect("made");
    for thread in [append(&one, "one"), append(&two, "two")] {
        thread.join().expect("no panic");
    }
    let log = fs::read_to_string(one.join("log")).expect("read");
    for word in ["one", "two"] {
        let lines: Vec<&str> = log.lines().filter(|line| line.starts_with(word)).collect();
        let expected: Vec<String> = (0..30).map(|line| format!("{word} {line:03}")).collect();
        assert_eq!(lines, expected);
    }
    shared.umount("one");
    shared.umount("two");
    shared.check();
}

/// The former session is registered with the targets until its lease has run out, and is in the way of nothing. What it
/// had is used again then, without another minute.
#[test]
fn after_a_kill_the_same_host_mounts_again_and_takes_over() {
    let Some(mut shared) = Shared::with_fuse(3, &["--size", "64MiB", "--layout", "parity"]) else { return };
    let (at, killed) = (shared.at("killed"), shared.mount("killed"));
    fs::write(at.join("file"), vec![1; 300_000]).expect("written");
    kill_and_wait(&killed["pid"].as_u64().expect("a process").to_string());
    shared.run(&["umount", "--lazy", text(&at)]);
    let begun = Instant::now();
    shared.mount("again");
    let again = shared.at("again");
    fs::write(again.join("at once"), vec![2; 300_000]).expect("written");
    let mounts =
        |shared: &Shared| shared.site.last(&["fs", "status", "p/f"])["mounts"].as_array().map(Vec::len);
    assert_eq!(mounts(&shared), Some(2), "its lease lasts");
    // A target keeps its registrations over a restart.
    let at = shared.site.kill(0);
    shared.site.restart(0, &at);
    fs::write(again.join("after a restart"), vec![3; 3 << 20]).expect("written");
    until("its lease has run out", || mounts(&shared) == Some(1));
    until("it is taken over", || shared.check()["left"] == 0);
    assert!(begun.elapsed() < Duration::from_secs(75), "{:?}: a lease is 30 s", begun.elapsed());
    let status = shared.site.last(&["fs", "status", "p/f"]);
    assert_eq!((&status["fencing"], &status["health"]), (&json!("at the targets"), &json!("healthy")));
    assert_eq!(fs::read(again.join("file")).expect("read"), vec![1; 300_000]);
    shared.umount("again");
    shared.check();
}

/// A mount whose program is stopped (SIGSTOP) under load for longer than its lease lasts, and goes on when another mount
/// has used all that it had: what it sends then changes nothing.
#[test]
fn a_mount_that_was_stopped_and_goes_on_changes_nothing() {
    let Some(shared) = Shared::with_fuse(3, &["--size", "64MiB", "--layout", "parity"]) else { return };
    let (ready, stopped) = (shared.mount("stopped"), shared.at("stopped"));
    shared.mount("other");
    let other = shared.at("other");
    fs::write(stopped.join("before"), vec![1; 300_000]).expect("written");
    // Another process writes: this one would wait with what it had open there.
    let load = "while dd if=/dev/zero of=\"$1\" bs=64k count=32 conv=notrunc,fsync; do :; done";
    let mut writer = Command::new("sh");
    writer.args(["-c", load, "sh", text(&stopped.join("load"))]).stderr(Stdio::null());
    let mut writer = Running(writer.spawn().expect("sh"));
    until("the load has begun", || fs::metadata(other.join("load")).is_ok_and(|load| load.len() == 32 << 16));

    let mut stop = Stopped::new(&ready);
    // In a transaction of the catalog's file it would hold up all others.
    while is_locked(&shared.site.path("host/longhaul/catalog")) {
        drop(stop);
        stop = Stopped::new(&ready);
    }
    let mounts = || shared.site.last(&["fs", "status", "p/f"])["mounts"].as_array().map(Vec::len);
    until("its lease has run out", || mounts() == Some(1));
    until("it is taken over", || shared.check()["left"] == 0);
    assert_eq!(fs::read(other.join("before")).expect("read"), vec![1; 300_000]);
    let content = |n: u8| vec![n; 1 << 20];
    let mut files = 0;
    for n in 2.. {
        let name = other.join(format!("file {n}"));
        let written = File::create(&name).and_then(|mut file| {
            file.write_all(&content(n))?;
            file.sync_all()
        });
        match written {
            Ok(()) => files = n,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::StorageFull, "{e}");
                fs::remove_file(name).expect("removed");
                break;
            }
        }
    }
    assert!(files > 20, "only {files} of them fit");

    drop(stop);
    assert!(writer.end(PATIENCE).is_some(), "the load goes on, though the session has run out");
    let failed = fs::write(stopped.join("after"), b"late").expect_err("its session has run out");
    assert_eq!(failed.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{failed}");
    shared.umount("stopped");
    assert!(!other.join("after").exists());
    shared.umount("other");
    // What is read is what the targets have, and no memory of a mount.
    shared.mount("other");
    for n in 2..=files {
        let read = fs::read(other.join(format!("file {n}"))).expect("read");
        let wrong: Vec<usize> = (0..read.len()).filter(|at| read[*at] != n).collect();
        let (first, last) = (wrong.first(), wrong.last());
        let values: std::collections::BTreeSet<u8> = wrong.iter().map(|at| read[*at]).collect();
        let len = read.len();
        assert!(
            wrong.is_empty() && len == 1 << 20,
            "file {n} of {files} has {len} bytes; {} are wrong, from {first:?} to {last:?}: {values:?}",
            wrong.len()
        );
    }
    assert_eq!(fs::read(other.join("before")).expect("read"), vec![1; 300_000]);
    shared.umount("other");
    shared.check();
    assert_eq!(shared.site.last(&["fs", "scrub", "p/f"])["wrong"], 0);
}

/// Whether a process holds up those that use a catalog in a file, for longer than a transaction takes: it has the lock
/// of its writers, or one on its header.
fn is_locked(catalog: &Path) -> bool {
    // What redb locks for other reasons is behind the lock of writers.
    const WRITERS: u64 = 1 << 62;
    let inode = format!(":{}", fs::metadata(catalog).expect("a catalog").ino());
    let holds_up = |lock: &str| {
        let fields: Vec<&str> = lock.split_whitespace().collect();
        matches!(fields[..], [_, "OFDLCK", _, _, _, file, start, _]
            if file.ends_with(&inode) && start.parse().is_ok_and(|start: u64| start <= WRITERS))
    };
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        if !fs::read_to_string("/proc/locks").expect("read").lines().any(holds_up) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// A process that is stopped until this is dropped.
struct Stopped(rustix::process::Pid);

impl Stopped {
    fn new(ready: &Value) -> Stopped {
        let pid = ready["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(rustix::process::Pid::from_raw).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have been killed.
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

#[test]
fn what_cannot_be_mounted_is_refused_with_the_reason() {
    let Some(shared) = Shared::with_fuse(3, &["--size", "32MiB", "--layout", "stripe"]) else { return };
    let here = shared.at("here");
    let refused = |name: &str, more: &[&str], code: i32, part: &str| {
        let ran = shared.run(&[&["mount", name, text(&here)], more].concat());
        assert_eq!(ran.code, Some(code), "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{name}: {}", ran.stderr);
    };
    let own = ["--hostnqn", ADMIN];
    refused("fs:p/x", &own, 1, "no file system called x in pool p");
    refused("fs:q/f", &own, 2, "no pool q is known");
    refused("fs:p", &own, 2, "the form is POOL/NAME");
    refused("fs:p/f", &["--hostnqn", "nqn.2014-08.org.example:other"], 6, "is not for this host");
    shared.mount("here");
    refused("fs:p/f", &own, 6, "mounted already");
    let file = File::create(here.join("file")).expect("made");
    file.write_at(b"x", 0).expect("written");
    drop(file);
    shared.umount("here");
}

#[test]
fn a_lost_target_is_replaced_and_a_member_moves_while_it_is_mounted() {
    let Some(mut shared) = Shared::with_fuse(5, &["--size", "48MiB", "--layout", "parity", "--width", "3"])
    else {
        return;
    };
    shared.mount("here");
    let here = shared.at("here");
    let content: Vec<u8> = (0..5 << 20).map(|at: u32| (at % 241) as u8).collect();
    fs::write(here.join("before"), &content).expect("written");
    let at = shared.members();
    let lost = (0..5).find(|n| at[1].contains(&shared.site.addr(*n))).expect("the target of member 1");
    shared.site.kill(lost);
    let repaired = shared.site.run(&["volume", "repair", "p/f"]);
    assert!(matches!(repaired.code, Some(0 | 3)), "{repaired:?}");
    let after = shared.members();
    assert_ne!(after[1], at[1]);
    assert_eq!((&after[0], &after[2]), (&at[0], &at[2]));
    assert_eq!(shared.site.last(&["fs", "status", "p/f"])["health"], "healthy");
    fs::write(here.join("after"), &content).expect("written");
    // Another member may be missing by now.
    let moved = (0..5).find(|n| *n != lost && after[0].contains(&shared.site.addr(*n))).expect("member 0");
    shared.site.kill(moved);
    for name in ["before", "after"] {
        assert!(fs::read(here.join(name)).expect("read") == content, "{name}");
    }
    shared.umount("here");
    shared.check();
}

/// No command is given, and nothing is read or written when the target is lost. Two mounts may do it.
#[test]
fn a_target_that_is_lost_for_good_is_replaced_by_itself() {
    let Some(mut shared) = Shared::with_fuse(4, &["--size", "48MiB", "--layout", "parity", "--width", "3"])
    else {
        return;
    };
    let after = ["--replace-after", "6s"];
    shared.mount_with("one", &after);
    shared.mount_with("two", &["--replace-after", "0s"]);
    shared.mount_with("three", &after);
    let one = shared.at("one");
    let content: Vec<u8> = (0..5 << 20).map(|at: u32| (at % 241) as u8).collect();
    fs::write(one.join("before"), &content).expect("written");
    let before = shared.members();
    let lost = (0..4).find(|n| before[1].contains(&shared.site.addr(*n))).expect("the target of member 1");
    let at = shared.site.kill(lost);
    // Soon, and not for good.
    shared.site.restart(lost, &at);
    fs::write(one.join("between"), &content).expect("written");
    assert_eq!(shared.members(), before);

    shared.site.kill(lost);
    let status = || shared.site.run(&["fs", "status", "p/f"]).events().remove(0);
    until("another target has the member", || status()["health"] == "healthy");
    let after = shared.members();
    assert_ne!(after[1], before[1]);
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    shared.umount("one");
    shared.umount("three");
    // The loss of another target is made up for with the new member.
    let second = (0..4).find(|n| *n != lost && after[0].contains(&shared.site.addr(*n))).expect("member 0");
    shared.site.kill(second);
    for name in ["before", "between"] {
        assert!(fs::read(shared.at("two").join(name)).expect("read") == content, "{name}");
    }
    shared.umount("two");
    shared.check();
}

#[test]
fn what_goes_over_the_paths_of_a_file_system_is_seen() {
    let Some(mut shared) = Shared::with_fuse(3, &["--size", "64MiB", "--layout", "parity"]) else { return };
    let top = |shared: &Shared, args: &[&str]| {
        let ran = shared.run(&[args, &["--json", "--interval", "300ms", "--count", "3"]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.events().remove(2)["arrays"].take()
    };
    assert_eq!(top(&shared, &["fs", "top"]), json!([]), "nothing is mounted");
    shared.mount("here");
    let (here, done) = (shared.at("here"), AtomicBool::new(false));
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(SeqCst) {
                let mut file = File::create(here.join("file")).expect("made");
                file.write_all(&[7; 1 << 20]).and_then(|()| file.sync_all()).expect("written");
            }
        });
        let mut seen = Value::Null;
        let is_busy = |seen: &Value| {
            let paths = seen["paths"].as_array().cloned().unwrap_or_default();
            let rate = |path: &Value| path["write"]["bits_per_second"].as_f64().unwrap_or(0.0);
            paths.len() == 3 && paths.iter().all(|path| rate(path) > 0.0)
        };
        let begun = Instant::now();
        while !is_busy(&seen) && begun.elapsed() < PATIENCE {
            seen = top(&shared, &["fs", "top", "p/f"])[0].take();
        }
        done.store(true, SeqCst);
        seen
    });
    assert_eq!(
        (&seen["device"], &seen["health"], &seen["layout"]),
        (&json!("fs:p/f"), &json!("healthy"), &json!("parity")),
        "{seen}"
    );
    let mut members: Vec<_> =
        seen["paths"].as_array().expect("paths").iter().map(|path| path["member"].clone()).collect();
    members.sort_by_key(Value::as_u64);
    assert_eq!(members, [0, 1, 2], "{seen}");
    // It is among all that runs here, and not among what is of another name.
    assert_eq!(top(&shared, &["top", "p", "--hostnqn", ADMIN])[0]["device"], "fs:p/f");
    assert_eq!(top(&shared, &["fs", "top", "p/other"]), json!([]));
    let lines = shared.run(&["fs", "top", "--count", "1"]).stdout;
    assert!(lines.contains("fs      p/f                  healthy"), "{lines}");

    shared.site.kill(1);
    fs::write(shared.at("here").join("more"), [8; 100_000]).expect("written");
    let now = top(&shared, &["fs", "top"])[0].take();
    assert_eq!(now["health"], "degraded", "{now}");
    assert!(now["detail"].as_str().is_some_and(|why| why.contains("1 members are missing")), "{now}");
    shared.umount("here");
    assert_eq!(top(&shared, &["fs", "top"]), json!([]));
}

#[test]
fn snapshots_are_of_one_moment_and_are_read_while_another_mount_writes() {
    const FILES: usize = 4;
    const LEN: usize = 300_000;
    let Some(shared) = Shared::with_fuse(3, &["--size", "256MiB", "--layout", "parity"]) else { return };
    shared.mount("one");
    let (one, site) = (shared.at("one"), &shared.site);
    let block = |version: u64| version.to_be_bytes().repeat(LEN / 8);
    let put = |file: usize, version: u64| {
        let mut to = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(one.join(format!("{file}")))
            .expect("opened");
        to.write_all(&block(version)).expect("written");
        to.sync_all().expect("synced");
    };
    (0..FILES).for_each(|file| put(file, 0));
    let version_of = |path: PathBuf| {
        let content = fs::read(&path).expect("read");
        let version = u64::from_be_bytes(content[..8].try_into().expect("eight bytes"));
        assert!(content == block(version), "{} is of two versions", path.display());
        version
    };
    let (done, synced) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Each version of a file is durable before that of the next one.
        scope.spawn(|| {
            for version in 1.. {
                (0..FILES).for_each(|file| put(file, version));
                synced.store(version, SeqCst);
                if done.load(SeqCst) {
                    return;
                }
            }
        });
        let mut seen: Vec<(String, Vec<u64>)> = Vec::new();
        for round in 0..3 {
            let least = synced.load(SeqCst);
            until("two versions are written", || synced.load(SeqCst) >= least + 2);
            let (name, least) = (format!("p/f@s{round}"), synced.load(SeqCst));
            let made = site.last(&["fs", "snapshot", &name]);
            let most = synced.load(SeqCst) + 1;
            assert_eq!(made["name"], json!(format!("fs:{name}")));
            let dir = shared.at(&format!("s{round}"));
            let mount = ["mount", &format!("fs:{name}"), text(&dir), "--json", "--hostnqn", ADMIN];
            let ran = shared.run(&mount);
            assert_eq!(ran.code, Some(0), "{}", ran.stderr);
            assert_eq!(ran.events()[0]["read_only"], true);
            let versions: Vec<u64> = (0..FILES).map(|file| version_of(dir.join(format!("{file}")))).collect();
            assert!(versions.iter().all(|version| (least..=most).contains(version)), "{least}: {versions:?}");
            assert!(versions.windows(2).all(|pair| pair[0] >= pair[1]), "{versions:?}");
            assert!(versions[0] - versions[FILES - 1] <= 1, "{versions:?}");
            let refused = File::create(dir.join("new")).expect_err("read-only");
            assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
            seen.push((format!("s{round}"), versions));
            // Those that were made before have what they had.
            for (name, versions) in &seen {
                for (file, version) in versions.iter().enumerate() {
                    assert_eq!(version_of(shared.at(name).join(format!("{file}"))), *version, "{name}");
                }
            }
        }
        // A copy needs no mount.
        let copied = shared.at("copy");
        let ran = shared.run(&["cp", "fs:p/f@s1/2", text(&copied), "--hostnqn", ADMIN]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert_eq!(version_of(copied.join("2")), seen[1].1[2]);
        done.store(true, SeqCst);
    });
    assert!(site.refused(6, &["fs", "rm", "p/f@s0"]).contains("it is mounted on"));
    assert!(site.refused(6, &["fs", "snapshot", "p/f@s0"]).contains("is there already"));
    assert!(site.refused(2, &["fs", "snapshot", "p/f"]).contains("POOL/NAME@SNAPSHOT"));
    assert!(site.refused(1, &["fs", "rm", "p/f@x"]).contains("no snapshot called x"));
    assert_eq!(shared.check()["snapshots"], 3);
    (0..3).for_each(|round| shared.umount(&format!("s{round}")));
    let listed = site.done(&["fs", "snapshots", "p/f"]);
    assert_eq!((listed.len(), &listed[0]["name"]), (4, &json!("fs:p/f@s0")));
    // Each file has been written whole since: so the last snapshot alone has all that it has.
    let kept = listed[3]["kept"].as_u64().expect("bytes");
    assert!(kept >= (FILES * LEN) as u64, "{listed:?}");
    let free = || site.last(&["fs", "status", "p/f"])["free"].as_u64().expect("bytes");
    let before = free();
    site.done(&["fs", "rm", "p/f@s0", "p/f@s1", "p/f@s2"]);
    assert_eq!(free() - before, kept, "what they held is free");
    assert_eq!(shared.check()["snapshots"], 0);
    let last = synced.load(SeqCst);
    assert!((0..FILES).all(|file| version_of(one.join(format!("{file}"))) >= last));
    shared.umount("one");
    shared.check();
}

#[test]
fn quotas_are_set_and_shown() {
    let shared = Shared::new(3, &["--size", "64MiB", "--layout", "parity"]);
    let site = &shared.site;
    let shown = site.last(&["fs", "quota", "show", "p/f"]);
    assert_eq!((&shown["counted"], &shown["owners"]), (&json!(false), &json!(0)));
    // What is asked for is said, and nothing is counted for it.
    let set = |code: i32, args: &[&str]| site.refused(code, &[&["fs", "quota", "set", "p/f"], args].concat());
    assert!(
        set(2, &["--user", "no-such-user", "--size", "1MiB"])
            .contains("knows no user called no-such-user: give its UID")
    );
    assert!(
        set(2, &["--group", "no-such-group", "--files", "1"])
            .contains("knows no group called no-such-group: give its GID")
    );
    assert!(set(2, &["--user=-1", "--files", "1"]).contains("knows no user called -1"));
    assert!(set(2, &["--user", "5", "--files=-1"]).contains("it is a number of files, or none"));
    assert!(set(2, &["--user", "5", "--files", "18446744073709551615"]).contains("is the most"));
    assert!(set(2, &["--user", "5", "--size", "lots"]).contains("lots"));
    assert!(set(2, &["--user", "5", "--group", "5", "--files", "1"]).contains("--group"));
    assert!(set(2, &["--files", "1"]).contains("--user or --group"));
    assert!(set(2, &["--user", "5"]).contains("--size, --files, or both"));
    assert!(site.refused(1, &["fs", "quota", "show", "p/x"]).contains("no file system called x"));
    assert_eq!(
        site.last(&["fs", "quota", "set", "p/f", "--user", "5", "--size", "none"])["limit"],
        Value::Null
    );
    assert_eq!(site.last(&["fs", "quota", "show", "p/f"])["counted"], false);
    let set = site.last(&["fs", "quota", "set", "p/f", "--user", "root", "--size", "1GiB", "--files", "7"]);
    assert_eq!((&set["kind"], &set["id"], &set["owner"]), (&json!("user"), &json!(0), &json!("root")));
    assert_eq!((&set["limit"], &set["files_limit"]), (&json!(1 << 30), &json!(7)));
    // One that is not named stays.
    let set = site.last(&["fs", "quota", "set", "p/f", "--user", "0", "--size", "0"]);
    assert_eq!((&set["limit"], &set["files_limit"]), (&Value::Null, &json!(7)));
    site.last(&["fs", "quota", "set", "p/f", "--group", "4000000000", "--size", "1"]);
    let listed = site.done(&["fs", "quota", "show", "p/f", "--group", "4000000000"]);
    assert_eq!((listed.len(), &listed[0]["event"], &listed[0]["owner"]), (2, &json!("quota"), &Value::Null));
    assert_eq!((&listed[0]["used"], &listed[0]["limit"]), (&json!(0), &json!(1)));
    assert_eq!((&listed[1]["counted"], &listed[1]["limited"]), (&json!(true), &json!(1)));
    // For people, in columns.
    let ran = shared.run(&["fs", "quota", "show", "p/f", "--user", "root", "--hostnqn", ADMIN]);
    assert!(ran.stdout.starts_with("user  root ") && ran.stdout.contains("files of 7\n"), "{}", ran.stdout);
    let checked = site.last(&["fs", "check", "p/f", "--repair"]);
    assert_eq!((&checked["problems"], &checked["recounted"]), (&json!(0), &json!(false)));
}

#[test]
fn quotas_hold_on_mounts_that_are_there_already() {
    let Some(shared) = Shared::with_fuse(3, &["--size", "64MiB", "--layout", "parity"]) else { return };
    let site = &shared.site;
    shared.mount("one");
    shared.mount_with("two", &["--close", "lease"]);
    let (one, two) = (shared.at("one"), shared.at("two"));
    fs::write(one.join("old"), vec![1; 1 << 20]).expect("written");
    let owner = fs::metadata(one.join("old")).expect("there");
    let (uid, gid) = (owner.uid().to_string(), owner.gid().to_string());
    let set = site.last(&["fs", "quota", "set", "p/f", "--user", &uid, "--size", "2MiB", "--files", "5"]);
    assert_eq!((&set["used"], &set["files"]), (&json!(1 << 20), &json!(2)));
    let written = |path: PathBuf, len: usize| -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        file.write_all(&vec![2; len])?;
        file.sync_all()
    };
    for (number, dir) in [&one, &two].into_iter().enumerate() {
        let error = written(dir.join("old"), 5 << 20).expect_err("above the limit");
        assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "mount {number}");
        let error = written(dir.join(format!("new{number}")), 3 << 20).expect_err("above the limit");
        assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "mount {number}");
    }
    // A directory is the last one that fits.
    fs::create_dir(two.join("directory")).expect("made");
    let error = fs::create_dir(two.join("more")).expect_err("one too many");
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    fs::remove_file(two.join("new0")).expect("removed");
    fs::create_dir(two.join("more")).expect("made");
    File::open(&two).and_then(|directory| directory.sync_all()).expect("synced");
    let listed = site.done(&["fs", "quota", "show", "p/f", "--group", &gid]);
    assert_eq!((&listed[0]["files"], &listed[0]["limit"]), (&json!(5), &Value::Null));
    site.last(&["fs", "quota", "set", "p/f", "--user", &uid, "--size", "none", "--files", "none"]);
    written(one.join("new1"), 3 << 20).expect("no limit");
    shared.check();
    shared.umount("one");
    shared.umount("two");
    shared.check();
    assert_eq!(site.last(&["fs", "quota", "show", "p/f"])["counted"], false);
}

#[test]
fn a_snapshot_whose_making_or_removal_is_killed_is_whole_or_gone() {
    let shared = Shared::new(3, &["--size", "64MiB", "--layout", "parity"]);
    let site = &shared.site;
    let from = shared.at("from");
    let fill = |seed: u8| {
        for file in 0..30u8 {
            fs::write(from.join(format!("{file}")), vec![seed ^ file; 40_000]).expect("written");
        }
        let ran = shared.run(&["sync", text(&from), "fs:p/f/data", "--hostnqn", ADMIN]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    };
    let killed = |args: &[&str], after: u64| {
        let mut child = shared.command(&[args, &["--hostnqn", ADMIN]].concat()).spawn().expect("started");
        // At any step: how long each takes is not known.
        std::thread::sleep(Duration::from_millis(after));
        child.kill().expect("killed");
        child.wait().expect("ended");
    };
    fill(0);
    site.done(&["fs", "snapshot", "p/f@kept"]);
    for round in 0..8u8 {
        let name = format!("p/f@k{round}");
        killed(&["fs", "snapshot", &name], u64::from(round) * 12);
        shared.check();
        let made = site.done(&["fs", "snapshots", "p/f"]);
        if !made.iter().any(|one| one["name"] == json!(format!("fs:{name}"))) {
            site.done(&["fs", "snapshot", &name]);
        }
        fill(round + 1);
        killed(&["fs", "rm", &name], u64::from(round) * 25);
        shared.check();
        let left = site.done(&["fs", "snapshots", "p/f"]);
        if left
            .iter()
            .any(|one| one["name"] == json!(format!("fs:{name}")) && one["removing"] == json!(false))
        {
            site.done(&["fs", "rm", &name]);
        }
    }
    let back = shared.at("back");
    let ran = shared.run(&["sync", "fs:p/f@kept/data", text(&back), "--hostnqn", ADMIN]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for file in 0..30u8 {
        assert!(fs::read(back.join(format!("{file}"))).expect("there") == vec![file; 40_000]);
    }
    // The last removal finishes those that were begun.
    site.done(&["fs", "rm", "p/f@kept"]);
    let checked = shared.check();
    assert_eq!((&checked["snapshots"], &checked["kept"]), (&json!(0), &json!(0)));
    assert_eq!(site.done(&["fs", "snapshots", "p/f"]).len(), 1);
}
