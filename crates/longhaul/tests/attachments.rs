//! Attachments that follow each other, share a device or are read-only, and attachments
//! over a link. The tests are skipped with a message where their needs are missing.

mod common;

use common::testbed::{FILE_SYSTEMS, Testbed};
use common::{Ran, Target, finish, text, until};
use longhaul_engine::procfs::Process;
use longhaul_wan::Change;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A directory for files and for the program's state.
struct Home(TempDir);

impl Home {
    fn new() -> Option<Home> {
        longhaul_skip::can_open(&["/dev/fuse"]).then(|| Home(tempfile::tempdir().expect("directory")))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn at_home(&self, mut command: Command) -> Ran {
        command.env("XDG_RUNTIME_DIR", self.0.path()).env("XDG_STATE_HOME", self.path("state"));
        finish(command.spawn().expect("started"))
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.at_home(common::command(args))
    }

    fn good(&self, args: &[&str]) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
        ran
    }

    /// Makes an array of two devices.
    fn array(&self, [a, b]: [&str; 2]) {
        self.good(&["array", "create", "x", "--layout", "mirror", "--device", a, "--device", b]);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for attached in self.run(&["attach", "--list", "--json"]).events() {
            if let Some(path) = attached["path"].as_str() {
                let _ = Command::new("kill").args(["-KILL", &attached["pid"].to_string()]).status();
                until("it is cleared", || self.run(&["detach", path]).code == Some(0));
            }
        }
    }
}

#[test]
fn devices_behind_a_double_dash_are_attached_by_one_process() {
    let Some(home) = Home::new() else { return };
    let at = home.path("disk");
    // A timeout, in case the process starts itself again and again.
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "60", env!("CARGO_BIN_EXE_longhaul"), "attach", "--via", "fuse", "--at"]);
    command.args([text(&at), "--", "mem:8MiB"]).env("XDG_CONFIG_HOME", "/nonexistent");
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    let ran = home.at_home(command);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(fs::metadata(&at).expect("there").len(), 8 << 20);
    home.good(&["detach", text(&at)]);
}

#[test]
fn what_was_detached_can_be_attached_again_at_once() {
    let Some(home) = Home::new() else { return };
    let members = ["a", "b"].map(|name| format!("file:{},size=32MiB", home.path(name).display()));
    home.array(members.each_ref().map(String::as_str));
    let at = home.path("disk");
    for n in 0..10 {
        let ran = home.run(&["attach", "array:x", "--via", "fuse", "--at", text(&at)]);
        assert_eq!(ran.code, Some(0), "{n}: {}", ran.stderr);
        home.good(&["detach", text(&at)]);
    }
}

#[test]
fn members_of_an_attached_array_are_not_attached() {
    let Some(home) = Home::new() else { return };
    let target = Target::start(&["a=mem:32MiB", "b=mem:32MiB"], &[]);
    let members = [target.uri(0), target.uri(1)];
    home.array(members.each_ref().map(String::as_str));
    let (whole, part) = (home.path("whole"), home.path("part"));
    home.good(&["attach", "array:x", "--via", "fuse", "--at", text(&whole)]);
    let member = ["attach", &members[1], "--via", "fuse", "--at", text(&part)];
    for more in [&[][..], &["--read-only"]] {
        let ran = home.run(&[&member, more].concat());
        assert_eq!(ran.code, Some(6), "{}", ran.stderr);
        assert!(ran.stderr.contains(text(&whole)), "{}", ran.stderr);
    }
    home.good(&["detach", text(&whole)]);
    let ran = home.run(&member);
    assert!(ran.code == Some(6) && ran.stderr.contains("--force"), "{}", ran.stderr);
    home.good(&[&member[..], &["--force"]].concat());
    let ran = home.run(&["attach", "array:x", "--via", "fuse", "--at", text(&whole)]);
    assert_eq!(ran.code, Some(6), "{}", ran.stderr);
    assert!(ran.stderr.contains("a member of array:x"), "{}", ran.stderr);
    home.good(&["detach", text(&part)]);
    target.stop();
}

#[test]
fn a_fuse_server_does_not_wait_for_memory_that_it_would_free() {
    let Some(home) = Home::new() else { return };
    let effective = Process::own().status("CapEff").expect("capabilities");
    if u64::from_str_radix(&effective, 16).expect("a number") & 1 << 24 == 0 {
        longhaul_skip::skip!("needs CAP_SYS_RESOURCE");
        return;
    }
    let at = home.path("disk");
    let ran = home.good(&["attach", "mem:8MiB", "--via", "fuse", "--at", text(&at), "--json"]);
    let pid = ran.events()[0]["pid"].to_string();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).expect("threads").flatten() {
        let stat = fs::read_to_string(thread.path().join("stat")).expect("read");
        // Fields after the name: state, five numbers, flags, which have PF_MEMALLOC_NOIO.
        let behind = stat.rsplit(") ").next().unwrap_or_default();
        let flags: u64 = behind.split(' ').nth(6).and_then(|flags| flags.parse().ok()).expect("flags");
        // The signal thread was started before the flag was set, and does no I/O.
        let is_signals = stat.contains("(longhaul-sig)");
        assert!(is_signals || flags & 0x0008_0000 != 0, "{stat}");
    }
    home.good(&["detach", text(&at)]);
}

#[test]
fn a_file_system_is_mounted_twice_to_be_read_also_with_a_journal_to_replay() {
    for fs in FILE_SYSTEMS {
        let Some(testbed) = Testbed::new(fs) else { return };
        let pid = testbed.mount();
        let mut file = File::create(testbed.at().join("file")).expect("created");
        file.write_all(b"content").and_then(|()| file.sync_all()).expect("durable");
        drop(file);
        // The journal is not replayed.
        assert!(Command::new("kill").args(["-KILL", &pid]).status().expect("kill").success());
        until("it is unmounted", || testbed.run(&["umount", text(&testbed.at())]).code == Some(0));
        let mount = |at: &str| {
            testbed
                .good(&["mount", &testbed.uri(), at, "--read-only", "--via", "fuse", "--json"])
                .events()
                .remove(0)
        };
        let other = testbed.dir.path().join("other");
        fs::create_dir(&other).expect("made");
        let ready = mount(text(&testbed.at()));
        assert_eq!(ready["journal_left"], true, "{ready}");
        testbed.good(&["umount", text(&testbed.at())]);

        testbed.replay();
        for at in [&testbed.at(), &other] {
            let ready = mount(text(at));
            assert_eq!(ready["journal_left"], false, "{ready}");
            assert_eq!(fs::read(at.join("file")).expect("read"), b"content");
        }
        for at in [&testbed.at(), &other] {
            testbed.good(&["umount", text(at)]);
        }
    }
}

/// Throughput of `dd` in bits per second.
fn dd(args: &[&str]) -> f64 {
    let began = Instant::now();
    let ran = Command::new("dd").args(["bs=128k", "count=400", "status=none"]).args(args).output();
    let ran = ran.expect("dd");
    assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    400.0 * 131_072.0 * 8.0 / began.elapsed().as_secs_f64()
}

#[test]
fn one_dd_gets_most_of_the_link_in_bounded_memory() {
    const RATE: u64 = 100_000_000;
    let Some(testbed) = Testbed::new("ext4") else { return };
    let path = Change { rtt: Some(Duration::from_millis(15)), rate: Some(RATE), ..Change::default() };
    testbed.wan.set(1, &path).expect("set");
    let disk = testbed.dir.path().join("disk-here");
    let args =
        ["attach", &testbed.uri(), "--at", text(&disk), "--via", "fuse", "--memory", "64MiB", "--json"];
    let pid = testbed.good(&args).events()[0]["pid"].to_string();
    let written = dd(&["if=/dev/zero", &format!("of={}", disk.display()), "conv=notrunc,fsync"]);
    let read = dd(&[&format!("if={}", disk.display()), "of=/dev/null"]);
    // Half of the rate, since the machine may be busy. The throughput of an idle machine is
    // in docs/performance/file-systems.md.
    for (what, rate) in [("written", written), ("read", read)] {
        assert!(rate >= 0.5 * RATE as f64, "{what} with {:.1} Mb/s", rate / 1e6);
    }
    let peak = Process::of(pid.parse().expect("a number")).peak_resident().expect("a peak") >> 10;
    // The limit, the requests that the kernel may have in flight, and the program itself.
    assert!(peak <= (64 + 128 + 64) << 10, "{peak} KiB");
    testbed.good(&["detach", text(&disk)]);
}

#[test]
fn a_file_system_has_the_shape_of_the_array_that_it_is_on() {
    for fs in FILE_SYSTEMS {
        // Skips where file systems cannot be created and mounted.
        let Some(_) = Testbed::new(fs) else { return };
        let Some(home) = Home::new() else { return };
        let members =
            [0, 1, 2, 3].map(|n| format!("file:{},size=256MiB", home.path(&n.to_string()).display()));
        let mut args = vec!["array", "create", "x", "--layout", "stripe", "--stripe-unit", "64k"];
        args.extend(members.iter().flat_map(|member| ["--device", member]));
        home.good(&args);
        home.good(&["mkfs", "--fs", fs, "array:x"]);
        let at = home.path("mnt");
        fs::create_dir(&at).expect("made");
        let ready = home.good(&["mount", "array:x", text(&at), "--via", "fuse", "--json"]).events().remove(0);
        let device = ready["device"].as_str().expect("a device").to_owned();
        let (program, args, wanted) = match fs {
            "xfs" => ("xfs_info", vec![text(&at)], ["sunit=16 ", "swidth=64 blks"]),
            _ => ("tune2fs", vec!["-l", &device], ["RAID stride: 16", "RAID stripe width: 64"]),
        };
        let said = Command::new(program).args(args).output().expect(program);
        let said = String::from_utf8_lossy(&said.stdout);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        for wanted in wanted {
            assert!(said.contains(wanted), "{fs}: no '{wanted}' in: {said}");
        }
        home.good(&["umount", text(&at)]);
        // `stat` reports the stripe as the block size of the file.
        let disk = home.path("disk");
        let args = ["attach", "array:x", "--at", text(&disk), "--via", "fuse", "--json"];
        assert_eq!(home.good(&args).events()[0]["optimal_io"], 256 << 10);
        assert_eq!(fs::metadata(&disk).expect("there").blksize(), 256 << 10);
        home.good(&["detach", text(&disk)]);
    }
}

#[test]
fn a_link_that_stays_cut_fails_and_what_was_durable_is_there_after_another_mount() {
    for fs in FILE_SYSTEMS {
        let Some(testbed) = Testbed::new(fs) else { return };
        let (uri, at) = (testbed.uri(), testbed.at());
        let patience = ["--keep-alive", "1s", "--ctrl-loss-timeout", "3s", "--via", "fuse"];
        testbed.good(&[&["mount", &uri, text(&at)], &patience[..]].concat());
        let write = |name: &str| {
            let mut file = File::create(at.join(name))?;
            file.write_all(name.as_bytes())?;
            file.sync_all()
        };
        write("before").expect("durable");
        testbed.wan.set(1, &Change::cut()).expect("cut");
        let failed = write("meanwhile").expect_err("the link is cut");
        // I/O error, or a file system that has become read-only.
        assert!(matches!(failed.raw_os_error(), Some(5 | 30)), "{fs}: {failed}");
        testbed.wan.set(1, &Change::restore()).expect("back");
        // `umount` may fail, since writes were lost, but unmounts.
        testbed.run(&["umount", text(&at)]);
        testbed.is_gone();
        testbed.replay();
        testbed.check(fs);
        testbed.mount();
        assert_eq!(fs::read(at.join("before")).expect("read"), b"before");
        testbed.umount();
    }
}
