//! File systems on devices that are far away, and how they end: unmounted,
//! stopped, killed, cut off for a while, with a target that restarts. Each ends
//! with a clean check and what was written. They need root, FUSE, a loop device
//! and `/dev/net/tun`, and say so where they skip.

mod common;

use common::{Ran, finish, follow, text, until};
use longhaul_wan::{Change, Conditions, Error, Plan, Wan};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const MS: Duration = Duration::from_millis(1);
const FILE_SYSTEMS: [&str; 2] = ["xfs", "ext4"];
/// XFS takes no less.
const SIZE: &str = "512MiB";

/// A target behind a link, and the place where its device is mounted.
struct Rig {
    wan: Wan,
    dir: TempDir,
    target: Option<Child>,
}

fn skip(why: impl std::fmt::Display) -> Option<Rig> {
    eprintln!("skip: {why}");
    None
}

impl Rig {
    /// Or a reason on standard error why there is none here.
    fn new(fs: &str) -> Option<Rig> {
        for device in ["/dev/fuse", "/dev/loop-control"] {
            if let Err(e) = OpenOptions::new().read(true).write(true).open(device) {
                return skip(format_args!("{device}: {e}"));
            }
        }
        if let Err(e) = Command::new(format!("mkfs.{fs}")).arg("-V").output() {
            return skip(format_args!("mkfs.{fs}: {e}"));
        }
        let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !known.contains(fs) && !Command::new("modprobe").arg(fs).status().is_ok_and(|s| s.success()) {
            return skip(format_args!("this kernel has no {fs}"));
        }
        let conditions = Conditions::new(10 * MS, Some(300_000_000));
        let wan = match Wan::start(Plan { star: Some(1), ..Plan::new(Plan::unique_name("m"), conditions) }) {
            Ok(wan) => wan,
            Err(Error::Unavailable(why)) => return skip(why),
            Err(e) => panic!("{e}"),
        };
        let mut rig = Rig { wan, dir: tempfile::tempdir().expect("directory"), target: None };
        fs::create_dir(rig.at()).expect("made");
        rig.serve();
        rig.good(&["mkfs", "--fs", fs, &rig.uri()]);
        Some(rig)
    }

    fn at(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn uri(&self) -> String {
        format!("nvme+tcp://{}/d", self.wan.server_address(1))
    }

    /// Starts the target, once or again.
    fn serve(&mut self) {
        let listen = format!("{}:4420", self.wan.server_address(1));
        let disk = self.dir.path().join("disk");
        let export =
            format!("d=file:{},size={SIZE},uuid=7d2a1f60-0000-4000-8000-000000000009", disk.display());
        let args = ["target", "--listen", &listen, "--discovery", "none", "--json", "--export", &export];
        let mut command = self.wan.server(1).command(env!("CARGO_BIN_EXE_longhaul"));
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.env("XDG_CONFIG_HOME", "/nonexistent").spawn().expect("started");
        let events = follow(child.stdout.take().expect("a pipe"));
        assert_eq!(events.recv_timeout(common::PATIENCE).expect("an event")["event"], "ready");
        self.target = Some(child);
    }

    fn kill_target(&mut self) {
        if let Some(mut target) = self.target.take() {
            target.kill().expect("killed");
            target.wait().expect("ended");
        }
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.wan.client().command(env!("CARGO_BIN_EXE_longhaul"));
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("XDG_CONFIG_HOME", "/nonexistent").env("XDG_RUNTIME_DIR", self.dir.path());
        finish(command.spawn().expect("started"))
    }

    fn good(&self, args: &[&str]) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
        ran
    }

    /// Mounts the device: the process that serves it.
    fn mount(&self) -> String {
        let ran = self.good(&["mount", &self.uri(), text(&self.at()), "--keep-alive", "1s", "--json"]);
        let ready: Value = ran.events().remove(0);
        assert_eq!(ready["event"], "ready", "{ready}");
        ready["pid"].to_string()
    }

    fn umount(&self) {
        self.good(&["umount", text(&self.at())]);
        self.is_gone();
    }

    fn attached(&self) -> Vec<Value> {
        let mut events = self.good(&["attach", "--list", "--json"]).events();
        events.pop();
        events
    }

    fn is_gone(&self) {
        until("nothing is attached", || self.attached().is_empty());
        assert!(!is_mounted(&self.at()));
    }

    /// Checks the file system on the device, as it is, and then its files.
    fn check(&self, fs: &str, files: &[String]) {
        let disk = self.dir.path().join("checked");
        self.good(&["attach", &self.uri(), "--at", text(&disk)]);
        let mut check = if fs == "xfs" {
            let mut check = Command::new("xfs_repair");
            check.args(["-n", "-f"]).arg(&disk);
            check
        } else {
            let mut check = Command::new("e2fsck");
            check.args(["-f", "-n"]).arg(&disk);
            check
        };
        let said = check.output().expect("started");
        let clean = said.status.success();
        let said =
            String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
        self.good(&["detach", text(&disk)]);
        assert!(clean, "{fs}: {said}");
        self.mount();
        for name in files {
            let content = fs::read(self.at().join(name)).expect(name);
            assert!(content == self::content(name), "{fs}: {name} is not what it was");
        }
        self.umount();
    }

    /// Lets the file system's journal be replayed, as whoever mounts it next
    /// does.
    fn replay(&self) {
        self.mount();
        self.umount();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for attached in self.attached() {
            let _ = Command::new("kill").args(["-KILL", &attached["pid"].to_string()]).status();
        }
        let _ = Command::new("umount").arg("-l").arg(self.at()).output();
        self.kill_target();
    }
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("readable");
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(text(path)))
}

/// The content of a file, made from its name.
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

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("file-{n}")).collect()
}

/// Writes files until it cannot, or `until` that many; those that are durable.
fn writer(dir: PathBuf, count: usize) -> std::thread::JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        names(count).into_iter().take_while(|name| write(&dir, name).is_ok()).collect()
    })
}

#[test]
fn unmounted_it_is_whole() {
    for fs in FILE_SYSTEMS {
        let Some(rig) = Rig::new(fs) else { return };
        rig.mount();
        let files = names(12);
        for name in &files {
            // Without fsync: that is what unmounting is for.
            fs::write(rig.at().join(name), content(name)).expect("written");
        }
        let busy = File::open(rig.at().join(&files[0])).expect("opened");
        let ran = rig.run(&["umount", text(&rig.at())]);
        assert_eq!(ran.code, Some(6), "{}", ran.stderr);
        assert!(ran.stderr.contains("in use"), "{}", ran.stderr);
        drop(busy);
        rig.umount();
        rig.check(fs, &files);
        // Unmounted by others it ends as well.
        rig.mount();
        assert!(Command::new("umount").arg(rig.at()).status().expect("umount").success());
        rig.is_gone();
    }
}

#[test]
fn sigterm_unmounts_it_and_waits_for_its_users() {
    for fs in FILE_SYSTEMS {
        let Some(rig) = Rig::new(fs) else { return };
        let pid = rig.mount();
        let files = names(4);
        for name in &files {
            fs::write(rig.at().join(name), content(name)).expect("written");
        }
        let mut busy = File::options().append(true).open(rig.at().join(&files[0])).expect("opened");
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        until("it is out of sight", || !is_mounted(&rig.at()));
        busy.write_all(b"more").expect("its user keeps it");
        busy.set_len(content(&files[0]).len() as u64).expect("its user keeps it");
        busy.sync_all().expect("durable");
        drop(busy);
        rig.is_gone();
        rig.check(fs, &files);
    }
}

#[test]
fn a_killed_process_loses_nothing_that_was_durable() {
    for fs in FILE_SYSTEMS {
        let Some(rig) = Rig::new(fs) else { return };
        let pid = rig.mount();
        let writing = writer(rig.at(), 1000);
        until("some files are written", || rig.at().join("file-5").exists());
        assert!(Command::new("kill").args(["-KILL", &pid]).status().expect("kill").success());
        let durable = writing.join().expect("no panic");
        assert!(durable.len() >= 4 && durable.len() < 1000, "{}", durable.len());
        until("it is unmounted", || rig.run(&["umount", text(&rig.at())]).code == Some(0));
        rig.is_gone();
        rig.replay();
        rig.check(fs, &durable);
    }
}

#[test]
fn a_link_that_is_cut_and_returns_is_waited_for() {
    for fs in FILE_SYSTEMS {
        let Some(rig) = Rig::new(fs) else { return };
        rig.mount();
        let writing = writer(rig.at(), 30);
        until("some files are written", || rig.at().join("file-3").exists());
        rig.wan.set(1, &Change::cut()).expect("cut");
        std::thread::sleep(Duration::from_secs(4));
        rig.wan.set(1, &Change::restore()).expect("back");
        let durable = writing.join().expect("no panic");
        assert_eq!(durable.len(), 30, "{fs}: I/O failed");
        rig.umount();
        rig.check(fs, &durable);
    }
}

#[test]
fn a_target_that_restarts_is_waited_for() {
    for fs in FILE_SYSTEMS {
        let Some(mut rig) = Rig::new(fs) else { return };
        rig.mount();
        let writing = writer(rig.at(), 30);
        until("some files are written", || rig.at().join("file-3").exists());
        rig.kill_target();
        std::thread::sleep(Duration::from_secs(1));
        rig.serve();
        let durable = writing.join().expect("no panic");
        assert_eq!(durable.len(), 30, "{fs}: I/O failed");
        rig.umount();
        rig.check(fs, &durable);
    }
}

#[test]
fn what_cannot_be_mounted_is_named_and_nothing_is_left() {
    let Some(rig) = Rig::new("ext4") else { return };
    let (at, uri) = (rig.at(), rig.uri());
    let wrong = |args: &[&str], code, words: &str| {
        let ran = rig.run(args);
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
        assert!(rig.attached().is_empty());
    };
    wrong(&["mount", "mem:16MiB", text(&at)], 1, "longhaul mkfs");
    wrong(&["mount", &uri, "/nonexistent/dir"], 2, "/nonexistent");
    wrong(&["mount", &uri, text(&rig.dir.path().join("disk"))], 2, "not a directory");
    wrong(&["mount", &uri, text(&at), "-o", "nonsense"], 1, "mount");
    wrong(&["mkfs", "--fs", "ext4", &uri], 6, "--force");
    wrong(&["mkfs", "--fs", "xfs", "mem:16MiB"], 1, "XFS needs");
    wrong(&["umount", text(&at)], 8, "nothing is attached");
    // A device that is smaller than what is on it.
    let small = rig.dir.path().join("small");
    fs::copy(rig.dir.path().join("disk"), &small).expect("copied");
    File::options().write(true).open(&small).expect("opened").set_len(64 << 20).expect("cut");
    wrong(&["mount", text(&small), text(&at)], 1, "smaller");
    rig.mount();
    let ran = rig.run(&["mount", &uri, text(&at)]);
    assert_eq!(ran.code, Some(6), "{}", ran.stderr);
    let ran = rig.run(&["mkfs", "--fs", "ext4", &uri, "--force"]);
    assert_eq!(ran.code, Some(6), "{}", ran.stderr);
    rig.umount();
}
