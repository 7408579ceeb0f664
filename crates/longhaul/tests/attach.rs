//! Devices as local files: `longhaul attach` and `detach`. The tests need FUSE, and are
//! skipped with a message elsewhere.

mod common;

use common::{
    LEAVE_MOUNTS, Ran, Target, finish, has_ended, kill_and_wait, mounts_below, signal, text,
    unmount_by_others, until,
};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A directory for files and for the program's runtime state.
struct Home(TempDir);

impl Home {
    /// `None`, with the reason on standard error, where FUSE is missing.
    fn new() -> Option<Home> {
        longhaul_skip::can_open(&["/dev/fuse"]).then(|| Home(tempfile::tempdir().expect("directory")))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = common::command(args);
        command.env("XDG_RUNTIME_DIR", self.0.path());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        finish(self.command(args).spawn().expect("started"))
    }

    /// Runs the program, and expects success.
    fn good(&self, args: &[&str]) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
        ran
    }

    /// Attaches a device in the background, and returns the ID of the process.
    fn attach(&self, uri: &str, at: &Path, more: &[&str]) -> String {
        let args = [&["attach", uri, "--at", text(at), "--json"], more].concat();
        let ran = self.good(&args);
        let ready = ran.events().remove(0);
        assert_eq!((&ready["event"], &ready["path"]), (&"ready".into(), &text(at).into()), "{ready}");
        ready["pid"].to_string()
    }

    /// Attaches in the foreground.
    fn foreground(&self, devices: &[&str], at: &Path) -> Target {
        Target::spawn(
            self.command(&[&["attach"], devices, &["--at", text(at), "--foreground", "--json"]].concat()),
        )
    }

    fn attached(&self) -> Vec<Value> {
        let mut events = self.good(&["attach", "--list", "--json"]).events();
        assert_eq!(events.pop().expect("a summary")["event"], "summary");
        events
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for attached in self.attached() {
            kill_and_wait(&attached["pid"].to_string());
            let path = attached["path"].as_str().expect("a path");
            until("it is cleared", || self.run(&["detach", path]).code == Some(0));
        }
        let left = mounts_below(self.0.path());
        assert!(std::thread::panicking() || left.is_empty(), "left behind: {left:?}");
    }
}

fn kill(how: &str, pid: &str) {
    assert!(Command::new("kill").args([how, pid]).status().expect("kill").success());
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i / 512 * 31 + i + seed) % 251) as u8).collect()
}

fn writer(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("opened")
}

fn mem() -> Target {
    Target::start(&["d=mem:64MiB"], &[])
}

#[test]
fn a_device_is_a_file_and_keeps_what_is_written() {
    let Some(home) = Home::new() else { return };
    let dir = tempfile::tempdir().expect("directory");
    let backing = dir.path().join("backing");
    let target = Target::start(&[&format!("d=file:{},size=64MiB", backing.display())], &[]);
    let at = home.path("disk");
    home.attach(&target.uri(0), &at, &[]);
    assert_eq!(fs::metadata(&at).expect("there").len(), 64 * MIB);

    let content = pattern(5 * MIB as usize + 777, 1);
    let file = writer(&at);
    file.write_all_at(&content, 4096 + 33).expect("written");
    let mut back = vec![0; content.len()];
    file.read_exact_at(&mut back, 4096 + 33).expect("read");
    assert!(back == content);
    file.sync_all().expect("durable");
    let kept = fs::read(&backing).expect("read");
    assert!(kept[4096 + 33..][..content.len()] == content);

    // A punched hole reads as zeroes, and frees space at the target.
    let before = fs::metadata(&backing).expect("there").blocks();
    let punched = Command::new("fallocate")
        .args(["--punch-hole", "--offset", "1MiB", "--length", "4MiB", text(&at)])
        .status();
    assert!(punched.expect("fallocate of util-linux").success());
    file.sync_all().expect("durable");
    file.read_exact_at(&mut back[..4 * MIB as usize], MIB).expect("read");
    assert!(back[..4 * MIB as usize].iter().all(|&b| b == 0));
    assert!(fs::metadata(&backing).expect("there").blocks() < before - 3 * MIB / 512);

    // Reads end and writes fail at the end of the device.
    assert_eq!(file.read_at(&mut [0; 16], 64 * MIB).expect("read"), 0);
    let full = file.write_at(&[0; 16], 64 * MIB).expect_err("past the end");
    assert_eq!(full.raw_os_error(), Some(28), "{full}");
    drop(file);
    home.good(&["detach", text(&at)]);
    assert!(!at.exists() && home.attached().is_empty());
    target.stop();
}

#[test]
fn a_device_in_use_is_not_detached_and_its_user_is_named() {
    let Some(home) = Home::new() else { return };
    let target = mem();
    let at = home.path("disk");
    let pid = home.attach(&target.uri(0), &at, &[]);
    let file = writer(&at);
    let ran = home.run(&["detach", text(&at)]);
    assert_eq!(ran.code, Some(6), "{}", ran.stderr);
    assert!(ran.stderr.contains(&std::process::id().to_string()), "{}", ran.stderr);
    file.write_all_at(&pattern(8192, 2), 0).expect("it is still there");

    // After SIGTERM the file is unlinked, and the process waits for its user.
    kill("-TERM", &pid);
    until("it is out of sight", || !at.exists());
    let mut back = vec![0; 8192];
    file.read_exact_at(&mut back, 0).expect("its user keeps it");
    assert_eq!(back, pattern(8192, 2));
    drop(file);
    until("its end", || has_ended(&pid));
    target.stop();
}

#[test]
fn sigterm_ends_it_with_everything_written() {
    let Some(home) = Home::new() else { return };
    let target = mem();
    let (at, again) = (home.path("disk"), home.path("again"));
    let pid = home.attach(&target.uri(0), &at, &[]);
    writer(&at).write_all_at(&pattern(MIB as usize, 3), 5 * MIB).expect("written");
    kill("-TERM", &pid);
    until("its end", || has_ended(&pid));
    assert!(!at.exists() && home.attached().is_empty());

    home.attach(&target.uri(0), &again, &[]);
    let mut back = vec![0; MIB as usize];
    writer(&again).read_exact_at(&mut back, 5 * MIB).expect("read");
    assert!(back == pattern(MIB as usize, 3));
    // The attachment ends also when another process unmounts the file.
    unmount_by_others(&again);
    until("its record is gone", || home.attached().is_empty());
    target.stop();
}

#[test]
fn what_a_killed_process_leaves_is_named_and_cleared() {
    let Some(home) = Home::new() else { return };
    let target = mem();
    let at = home.path("disk");
    let pid = home.attach(&target.uri(0), &at, &[]);
    let file = writer(&at);
    file.write_all_at(&pattern(8192, 4), 0).expect("written");
    file.sync_all().expect("durable");
    kill("-KILL", &pid);
    until("its end", || has_ended(&pid));
    assert!(file.write_at(&[0; 4096], 0).is_err(), "no process serves the write");
    drop(file);
    // The kernel releases the lock of the record shortly after the process has ended.
    until("its lock is free", || home.attached()[0]["served"] == false);
    let ran = home.run(&["attach", &target.uri(0), "--at", text(&at)]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("longhaul detach"), "{}", ran.stderr);
    home.good(&["detach", text(&at)]);
    assert!(!at.exists() && home.attached().is_empty());

    home.attach(&target.uri(0), &at, &[]);
    assert_eq!(fs::read(&at).expect("read")[..8192], pattern(8192, 4));
    home.good(&["detach", text(&at)]);
    target.stop();
}

#[test]
fn what_the_kernel_does_not_know_to_be_dead_is_cleared_as_well() {
    let Some(home) = Home::new() else { return };
    let at = home.path("disk");
    let pid = home.attach("mem:64MiB", &at, &[]);
    // The copied record has no lock, as just after a SIGKILL, while the file
    // still answers, as it may then.
    let other = tempfile::tempdir().expect("directory");
    let (from, to) = (home.path("longhaul"), other.path().join("longhaul"));
    fs::create_dir(&to).expect("made");
    for entry in fs::read_dir(from).expect("there").flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().ends_with(".json") {
            fs::copy(entry.path(), to.join(name)).expect("copied");
        }
    }
    let mut detach = home.command(&["detach", text(&at)]);
    let ran = finish(detach.env("XDG_RUNTIME_DIR", other.path()).spawn().expect("started"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(mounts_below(&at).is_empty(), "it was forgotten, and is still there");
    until("its end", || has_ended(&pid));
}

#[test]
fn a_write_that_is_to_be_durable_tells_of_its_own_loss() {
    let Some(home) = Home::new() else { return };
    let at = home.path("disk");
    home.attach("mem:16MiB,error=1:ops=write", &at, &[]);
    let file = writer(&at);
    file.write_all_at(&[1; 4096], 0).expect("taken");
    // A close reports the loss, and may be that of a copy: a child has one between fork and exec, and does
    // not look at the result.
    drop(file.try_clone().expect("copied"));
    file.sync_all().expect_err("lost");
    file.sync_all().expect("reported once");
    drop(file);
    for flag in [rustix::fs::OFlags::DSYNC, rustix::fs::OFlags::SYNC] {
        let file = OpenOptions::new().write(true).custom_flags(flag.bits() as i32).open(&at).expect("opened");
        file.write_all_at(&[1; 4096], 0).expect_err("it cannot be durable");
    }
    home.run(&["detach", text(&at)]);
}

#[test]
fn only_readers_share_a_device() {
    let Some(home) = Home::new() else { return };
    let target = mem();
    let (one, two) = (home.path("one"), home.path("two"));
    home.attach(&target.uri(0), &one, &[]);
    let uri = target.uri(0);
    for more in [&[][..], &["--read-only"]] {
        let args = [&["attach", &uri, "--at", text(&two)], more].concat();
        let ran = home.run(&args);
        assert_eq!(ran.code, Some(6), "{}", ran.stderr);
        assert!(ran.stderr.contains(text(&one)), "{}", ran.stderr);
        assert!(!two.exists(), "nothing half attached is left behind");
    }
    home.good(&["detach", text(&one)]);
    home.attach(&target.uri(0), &one, &["--read-only"]);
    home.attach(&target.uri(0), &two, &["--read-only"]);
    assert!(OpenOptions::new().write(true).open(&two).is_err());
    assert_eq!(fs::read(&two).expect("read").len() as u64, 64 * MIB);
    assert_eq!(home.attached().len(), 2);
    target.stop();
}

#[test]
fn what_cannot_be_attached_is_named() {
    let Some(home) = Home::new() else { return };
    let (full, dir) = (home.path("full"), home.path("dir"));
    fs::write(&full, "content").expect("written");
    fs::create_dir(&dir).expect("made");
    let wrong = |args: &[&str], code, words: &str| {
        let ran = home.run(args);
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
    };
    wrong(&["attach", "mem:1MiB", "--at", text(&full)], 2, "a file that is not empty");
    wrong(&["attach", "mem:1MiB", "--at", text(&dir)], 2, "a directory");
    wrong(&["attach", "mem:1MiB", "--at", "/nonexistent/x"], 2, "/nonexistent");
    wrong(&["attach", "mem:1MiB", "mem:1MiB", "--at", text(&home.path("x"))], 2, "--layout");
    wrong(&["attach", "mem:1MiB"], 2, "--at");
    wrong(&["attach", "nvme+tcp://127.0.0.1:1/x", "--at", text(&home.path("x"))], 5, "refused");
    wrong(&["detach", text(&home.path("x"))], 1, "nothing is attached");
    assert_eq!(fs::read(&full).expect("read"), b"content");
    assert!(!home.path("x").exists() && home.attached().is_empty());
}

#[test]
fn several_devices_are_one_and_it_can_stay_in_the_foreground() {
    let Some(home) = Home::new() else { return };
    let at = home.path("disk");
    let mut attached = home.foreground(&["mem:8MiB", "mem:8MiB", "--layout", "stripe"], &at);
    assert_eq!(attached.ready["size"], 16 * MIB);
    let content = pattern(3 * MIB as usize, 5);
    let file = writer(&at);
    file.write_all_at(&content, 0).expect("written");
    let mut back = vec![0; content.len()];
    file.read_exact_at(&mut back, 0).expect("read");
    assert!(back == content);
    drop(file);
    signal(&attached.child, "INT");
    assert_eq!(attached.event("summary")["clean"], true);
    assert!(attached.child.wait().expect("ended").success() && !at.exists());
}

#[test]
fn a_second_signal_ends_it_in_use_with_what_was_acknowledged() {
    let Some(home) = Home::new() else { return };
    let dir = tempfile::tempdir().expect("directory");
    let backing = dir.path().join("backing");
    let target = Target::start(&[&format!("d=file:{},size=64MiB", backing.display())], &[]);
    let at = home.path("disk");
    let mut attached = home.foreground(&[&target.uri(0)], &at);
    let file = writer(&at);
    signal(&attached.child, "TERM");
    assert!(attached.event("waiting")["users"].is_array());
    file.write_all_at(&pattern(MIB as usize, 6), 3 * MIB).expect("its user keeps it");
    signal(&attached.child, "TERM");
    assert_eq!(attached.event("summary")["clean"], false);
    assert_eq!(attached.child.wait().expect("ended").code(), Some(3));
    assert!(file.read_at(&mut [0; 512], 0).is_err(), "no process serves the read");
    assert!(
        fs::read(&backing).expect("read")[3 * MIB as usize..][..MIB as usize] == pattern(MIB as usize, 6)
    );
    target.stop();
}

#[test]
fn a_device_that_shrinks_is_reported_and_keeps_its_content() {
    let Some(home) = Home::new() else { return };
    let dir = tempfile::tempdir().expect("directory");
    let backing = dir.path().join("backing");
    let target = Target::start(&[&format!("d=file:{},size=64MiB", backing.display())], &[]);
    let at = home.path("disk");
    let attached = home.foreground(&[&target.uri(0)], &at);
    let file = writer(&at);
    file.write_all_at(&pattern(8192, 7), 4096).expect("written");
    file.sync_all().expect("durable");
    File::options().write(true).open(&backing).expect("opened").set_len(32 * MIB).expect("cut");
    signal(&target.child, "HUP");
    assert_eq!(attached.event("resized")["size"], 32 * MIB);
    let listed = home.good(&["attach", "--list", "--json"]).events();
    assert_eq!(listed[0]["size"], 32 * MIB, "{listed:?}");
    let full = file.write_at(&[1; 4096], 40 * MIB).expect_err("past the end");
    assert_eq!(full.raw_os_error(), Some(28), "{full}");
    let mut back = vec![0; 8192];
    file.read_exact_at(&mut back, 4096).expect("read");
    assert_eq!(back, pattern(8192, 7));
    drop(file);
    home.good(&["detach", text(&at)]);
    target.event("reloaded");
    assert_eq!(target.event("resized")["size"], 32 * MIB);
    target.stop();
}

/// Kernel interfaces: the name for `--via`, the device file that exists if the kernel has it, how to load it.
const KERNEL_WAYS: [(&str, &str, &str); 3] = [
    ("nvme", "/dev/nvme-fabrics", "modprobe nvme-tcp"),
    ("nbd", "/dev/nbd0", "modprobe nbd"),
    ("ublk", "/dev/ublk-control", "modprobe ublk_drv"),
];

#[test]
fn a_way_that_the_kernel_has_makes_a_block_device_and_one_that_it_has_not_is_named() {
    let Some(home) = Home::new() else { return };
    let target = mem();
    let uri = target.uri(0);
    for (way, control, hint) in KERNEL_WAYS {
        let at = home.path(way);
        if let Err(e) = OpenOptions::new().read(true).write(true).open(control) {
            longhaul_skip::skip_part!("{way} itself: {control}: {e}");
            let ran = home.run(&["attach", &uri, "--at", text(&at), "--via", way]);
            assert_eq!(ran.code, Some(1), "{}", ran.stderr);
            let named = ran.stderr.contains(hint) || ran.stderr.contains("only root");
            assert!(named && ran.stderr.contains(control), "{}", ran.stderr);
            assert!(fs::symlink_metadata(&at).is_err() && home.attached().is_empty(), "something is left");
            continue;
        }
        home.attach(&uri, &at, &["--via", way]);
        let file = writer(&at);
        file.write_all_at(&pattern(MIB as usize, 8), 4096).expect("written");
        let ran = home.run(&["detach", text(&at)]);
        assert_eq!(ran.code, Some(6), "in use: {}", ran.stderr);
        drop(file);
        home.good(&["detach", text(&at)]);
        assert!(fs::symlink_metadata(&at).is_err() && home.attached().is_empty());
        // The data is on the device, with any interface.
        home.attach(&uri, &at, &[]);
        let mut back = vec![0; MIB as usize];
        writer(&at).read_exact_at(&mut back, 4096).expect("read");
        assert!(back == pattern(MIB as usize, 8), "{way}");
        home.good(&["detach", text(&at)]);
    }
    target.stop();
}

/// What an unprivileged user does; `$1` is the program, `$2` the directory.
const UNPRIVILEGED: &str = r#"
cd "$2"
"$1" attach mem:64MiB --at disk
head -c 3000000 /dev/urandom > content
dd if=content of=disk bs=128k conv=notrunc,fsync status=none
cmp -n 3000000 content disk
exec 3< disk
if "$1" detach disk 2> said; then exit 40; fi
grep -q 'in use by' said
exec 3<&-
"$1" detach disk
test ! -e disk
# A file system can be made, and not be mounted: why is said in one line, and nothing is left.
"$1" mkfs --fs ext4 file:image,size=64MiB
mkdir dir
if "$1" mount file:image dir 2> said; then exit 41; fi
test "$(cat said)" = 'longhaul: longhaul mount needs root, to mount a file system: run it with sudo' || { cat said >&2; exit 42; }
test -z "$("$1" attach --list)"
echo whole
"#;

#[test]
fn an_unprivileged_user_attaches_through_the_helper() {
    let Some(home) = Home::new() else { return };
    let dir = tempfile::tempdir().expect("directory");
    let device = dir.path().join("fuse");
    // In this mount namespace every user may use FUSE.
    let everybody = "mknod -m 666 \"$3\" c 10 229 && mount --bind \"$3\" /dev/fuse && chown 65534 \"$2\" && \
        exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -ec \"$0\" sh \"$1\" \"$2\"";
    let everybody = format!("{LEAVE_MOUNTS}\n{everybody}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &everybody, UNPRIVILEGED]);
    command.args([Path::new(env!("CARGO_BIN_EXE_longhaul")), dir.path(), &device]);
    command.env("XDG_CONFIG_HOME", "/nonexistent").env("XDG_RUNTIME_DIR", dir.path());
    let ran = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("unshare"));
    let reasons =
        ["unshare: ", "mknod: ", "mount: ", "setpriv: ", "Permission denied", "fusermount3: No such"];
    if let Some(reason) = reasons.iter().find(|reason| ran.code != Some(0) && ran.stderr.contains(**reason)) {
        longhaul_skip::skip!(
            "needs root, fuse3 and a program that everybody may run: {reason}: {}",
            ran.stderr
        );
        return;
    }
    assert!(ran.code == Some(0) && ran.stdout.ends_with("whole\n"), "{ran:?}");
    drop(home);
}

#[test]
fn fio_finds_what_it_has_written() {
    let Some(home) = Home::new() else { return };
    let target = mem();
    let at = home.path("disk");
    home.attach(&target.uri(0), &at, &[]);
    let load = ["--rw=randwrite", "--bsrange=4k-256k", "--size=64m", "--iodepth=16", "--direct=1"];
    let checks =
        ["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0", "--fsync=50"];
    let mut fio = Command::new("fio");
    fio.args(["--name=verify", "--ioengine=libaio"]).args(load).args(checks);
    let Ok(ran) = fio.arg(format!("--filename={}", at.display())).output() else {
        longhaul_skip::skip!("fio is not installed");
        return;
    };
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    home.good(&["detach", text(&at)]);
    target.stop();
}

/// Largest relative difference of fio and `bench`.
const APART: f64 = 0.10;
/// How far fio may be below the rate limit of the device: further below, the
/// processors limit the rate, and the comparison means nothing.
const BELOW: f64 = 0.05;
/// Valid rounds that are compared, and the most rounds in all.
const COUNTED: usize = 3;
const ROUNDS: usize = 12;

/// Read rate in bytes per second, from the output of fio or `bench`.
fn rate(out: &[u8]) -> f64 {
    let result: Value = serde_json::from_slice(out).expect("fio's JSON");
    result["jobs"][0]["read"]["bw_bytes"].as_f64().expect("a rate")
}

/// Median of the values; the upper one of an even number.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[test]
fn fio_and_bench_measure_the_same_on_the_same_device() {
    let Some(home) = Home::new() else { return };
    if let Err(e) = Command::new("fio").arg("--version").output() {
        longhaul_skip::skip!("fio: {e}");
        return;
    }
    for (bs, limit) in [("4k", 2e6), ("16k", 4e6)] {
        let target = Target::start(&[&format!("d=mem:4GiB,rate={}bit", limit * 8.0)], &[]);
        let at = home.path("disk");
        home.attach(&target.uri(0), &at, &[]);
        let mut ratios = Vec::new();
        for _ in 0..ROUNDS {
            let mut fio = Command::new("fio");
            fio.args(["--name=raw", "--ioengine=libaio", "--rw=randread", "--direct=1", "--iodepth=32"]);
            fio.args(["--time_based", "--runtime=1", "--ramp_time=500ms", "--output-format=json"]);
            fio.args([format!("--bs={bs}"), format!("--filename={}", at.display())]);
            let ran = fio.output().expect("started");
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
            let theirs = rate(&ran.stdout);
            let load =
                ["--rw", "randread", "--bs", bs, "--iodepth", "32", "--runtime", "1s", "--ramp", "500ms"];
            let ran = home.good(&[&["bench", text(&at), "--json"], &load[..]].concat());
            let ours = rate(ran.stdout.as_bytes());
            let counts = theirs >= limit * (1.0 - BELOW);
            let not = if counts { "" } else { ", which does not count" };
            eprintln!("{bs}: bench {ours:.0} B/s, fio {theirs:.0} B/s{not}: {:.3}", ours / theirs);
            ratios.extend(counts.then_some(ours / theirs));
            if ratios.len() >= COUNTED && (median(ratios.clone()) - 1.0).abs() <= APART {
                break;
            }
        }
        if ratios.len() < COUNTED {
            longhaul_skip::skip_part!(
                "this machine is too busy: fio does not get {limit} B/s from a device that has them"
            );
        } else {
            let ratio = median(ratios.clone());
            assert!((ratio - 1.0).abs() <= APART, "{bs}: bench measures of what fio does {ratios:.3?}");
        }
        home.good(&["detach", text(&at)]);
        target.stop();
    }
}

#[test]
fn mkfs_overwrites_nothing_unasked_and_nothing_in_vain() {
    let Some(home) = Home::new() else { return };
    let disk = home.path("image");
    let size = 64 * MIB;
    let device = format!("file:{},size=64MiB", disk.display());
    let mkfs = ["mkfs", "--fs", "ext4", &device];
    for (what, at, magic) in [
        ("ISO 9660", 32769, b"CD001".as_slice()),
        ("btrfs", 65536 + 64, b"_BHRfS_M".as_slice()),
        ("md 1.0", size - 8192, &[0xfc, 0x4e, 0x2b, 0xa9][..]),
    ] {
        let _ = fs::remove_file(&disk);
        let file = File::create_new(&disk).expect("made");
        file.set_len(size).expect("sized");
        file.write_all_at(magic, at).expect("written");
        let is_there = || fs::read(&disk).expect("read")[at as usize..].starts_with(magic);
        let ran = home.run(&mkfs);
        assert_eq!(ran.code, Some(6), "{what}: {}", ran.stderr);
        assert!(ran.stderr.contains("--force") && is_there(), "{what}: {}", ran.stderr);
        // With `--force`, but without `mkfs.ext4`.
        let mut forced = home.command(&[&mkfs[..], &["--force"]].concat());
        let ran = finish(forced.env("PATH", "/nonexistent").spawn().expect("started"));
        assert_eq!(ran.code, Some(1), "{what}: {}", ran.stderr);
        assert!(ran.stderr.contains("e2fsprogs") && is_there(), "{what}: {}", ran.stderr);
        if Command::new("mkfs.ext4").arg("-V").output().is_ok() {
            home.good(&[&mkfs[..], &["--force"]].concat());
            assert!(!is_there(), "{what}: the old signature is still there");
        }
    }
    if Command::new("mkfs.xfs").arg("-V").output().is_ok() {
        // XFS labels have at most twelve characters.
        let (disk, magic) = (home.path("labelled"), b"what is there already");
        fs::write(&disk, magic).expect("written");
        let device = format!("file:{},size=320MiB", disk.display());
        let ran = home.run(&["mkfs", "--fs", "xfs", "--force", "--label", "thirteen-long", &device]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(fs::read(&disk).expect("read").starts_with(magic), "{}", ran.stderr);
    }
}

#[test]
fn the_mount_line_of_mkfs_says_how_devices_are_joined() {
    let Some(home) = Home::new() else { return };
    if Command::new("mkfs.ext4").arg("-V").output().is_err() {
        longhaul_skip::skip!("needs mkfs.ext4");
        return;
    }
    let devices = ["a", "b"].map(|name| format!("file:{},size=64MiB", home.path(name).display()));
    let ran = home.good(&["mkfs", "--json", "--fs", "ext4", "--layout", "stripe", &devices[0], &devices[1]]);
    let summary = ran.events().pop().expect("a summary");
    let line = summary["mount"].as_str().expect("a line");
    let options = "longhaul mount --layout stripe --stripe-unit 262144 ";
    assert!(line.starts_with(options) && line.ends_with(" DIR"), "{line}");
    // The printed command is valid.
    let dir = home.path("dir");
    let words = line.split(' ').skip(1).map(|word| if word == "DIR" { text(&dir) } else { word });
    home.good(&words.chain(["--show-config"]).collect::<Vec<_>>());
}

#[test]
fn mkfs_that_is_interrupted_leaves_nothing() {
    let Some(home) = Home::new() else { return };
    if Command::new("mkfs.xfs").arg("-V").output().is_err() {
        longhaul_skip::skip!("needs mkfs.xfs");
        return;
    }
    // At this rate writing the log takes a minute.
    let device = format!("file:{},size=512MiB,rate=8Mbit", home.path("image").display());
    let start = |before: &[String]| {
        let child = home.command(&["mkfs", "--force", "--fs", "xfs", &device]).spawn().expect("started");
        let is_there = |at: Vec<String>| at.len() == 1 && at != before;
        until("it is under way", || is_there(mounts_below(home.0.path())));
        child
    };
    // The mount that a killed run leaves is removed by the next one.
    let mut killed = start(&[]);
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    let left = mounts_below(home.0.path());
    assert_eq!(left.len(), 1);
    let child = start(&left);
    signal(&child, "INT");
    let ran = finish(child);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("interrupted"), "{}", ran.stderr);
    let hidden = fs::read_dir(home.path("longhaul")).expect("there").flatten();
    assert_eq!(hidden.filter(|e| e.file_name().to_string_lossy().starts_with("mkfs-")).count(), 0);
}

/// Runs the program with only these devices in `/dev`, or returns the reason why that is not
/// possible.
fn with_devices(home: &Home, devices: &[(&str, &str)], args: &[&str]) -> Result<Ran, String> {
    let dev = tempfile::tempdir().expect("directory");
    for (name, number) in devices {
        let made =
            Command::new("mknod").arg(dev.path().join(name)).args(["c"]).args(number.split(' ')).output();
        let made = made.map_err(|e| format!("mknod: {e}"))?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into_owned());
        }
    }
    let mut command = Command::new("unshare");
    let script = format!("{LEAVE_MOUNTS}\nmount --bind \"$0\" /dev && exec \"$@\"");
    command.args(["--mount", "sh", "-c", &script]).arg(dev.path());
    command.arg(env!("CARGO_BIN_EXE_longhaul")).args(args).stdin(Stdio::null());
    command.env("XDG_CONFIG_HOME", "/nonexistent").env("XDG_RUNTIME_DIR", home.0.path());
    let started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let ran = finish(started.map_err(|e| format!("unshare: {e}"))?);
    let reason = ["unshare: ", "mount: /dev", "sh: "].iter().any(|why| ran.stderr.starts_with(why));
    if reason { Err(ran.stderr) } else { Ok(ran) }
}

#[test]
fn without_fuse_or_loop_devices_that_is_said_and_nothing_is_left() {
    let Some(home) = Home::new() else { return };
    let (at, disk) = (home.path("disk"), home.path("image"));
    let device = format!("file:{},size=64MiB", disk.display());
    let null = ("null", "1 3");
    let wrong =
        |devices: &[(&str, &str)], args: &[&str], words: &[&str]| match with_devices(&home, devices, args) {
            Err(why) => longhaul_skip::skip_part!("needs root: {why}"),
            Ok(ran) => {
                assert_eq!(ran.code, Some(1), "{args:?}: {}", ran.stderr);
                assert!(!ran.stderr.contains("ublk") && ran.stderr.lines().count() == 1, "{}", ran.stderr);
                for word in words {
                    assert!(ran.stderr.contains(word), "{args:?}: no {word}: {}", ran.stderr);
                }
                assert!(home.attached().is_empty() && mounts_below(home.0.path()).is_empty());
                assert!(fs::symlink_metadata(&at).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound));
            }
        };
    wrong(
        &[null],
        &["attach", "mem:16MiB", "--at", text(&at), "--via", "fuse"],
        &["/dev/fuse", "modprobe fuse"],
    );
    // One cause and its remedy, of the interface that works nearly everywhere.
    wrong(&[null], &["attach", "mem:16MiB", "--at", text(&at)], &["/dev/fuse", "modprobe fuse"]);
    fs::write(&disk, pattern(64 * MIB as usize, 3)).expect("written");
    wrong(&[null], &["mkfs", "--fs", "ext4", "--force", &device], &["/dev/fuse"]);
    assert!(
        fs::read(&disk).expect("read") == pattern(64 * MIB as usize, 3),
        "nothing was made, and it is gone"
    );
    if home.run(&["mkfs", "--fs", "ext4", "--force", &device]).code != Some(0) {
        longhaul_skip::skip_part!("needs mkfs.ext4");
        return;
    }
    let dir = home.path("dir");
    fs::create_dir(&dir).expect("made");
    let fuse = ("fuse", "10 229");
    wrong(&[null, fuse], &["mount", &device, text(&dir)], &["loop device", "modprobe loop"]);
}

#[test]
fn the_best_way_is_taken_and_said() {
    let Some(home) = Home::new() else { return };
    let at = home.path("disk");
    let ready = home.good(&["attach", "mem:16MiB", "--at", text(&at), "--json"]).events().remove(0);
    if Path::new("/dev/ublk-control").exists() {
        longhaul_skip::skip!("this machine has ublk: {ready}");
        return;
    }
    assert_eq!(ready["via"], "fuse");
    let why = ready["passed_over"][0].as_str().expect("a reason");
    assert!(why.starts_with("ublk: ") && why.contains("/dev/ublk-control"), "{why}");
    assert_eq!(home.attached()[0]["via"], "fuse");
    home.good(&["detach", text(&at)]);
    let ran = home.good(&["attach", "mem:16MiB", "--at", text(&at)]);
    assert!(ran.stdout.ends_with("(16 MiB, via fuse)\n"), "{}", ran.stdout);
    assert_eq!(ran.stderr, "", "there is nothing to do about it");
    home.good(&["detach", text(&at)]);
    let ran = home.good(&["attach", "mem:16MiB", "-v", "--at", text(&at)]);
    assert!(ran.stderr.contains("not by ublk: "), "{}", ran.stderr);
    home.good(&["detach", text(&at)]);
    // Options that need a file, and `--via=fuse`, exclude block devices.
    for more in [["--allow-other", "--foreground"], ["--via=fuse", "--foreground"]] {
        let mut args = vec!["attach", "mem:16MiB", "--json", "--at", text(&at)];
        args.extend(more);
        let attached = Target::spawn(home.command(&args));
        assert_eq!(attached.ready["passed_over"], Value::Array(Vec::new()), "{more:?}");
        home.good(&["detach", text(&at)]);
    }
}
