//! A target behind an emulated link, and a mount point for its device.
//! It needs root, FUSE, a loop device and `/dev/net/tun`.

use super::{Ran, Target, emulated, finish, kill_and_wait, mounts_below, signal, text, until};
use longhaul_engine::procfs::mounts;
use longhaul_wan::{Conditions, Wan, WanPlan};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

const MS: Duration = Duration::from_millis(1);
/// File systems of the devices.
pub const FILE_SYSTEMS: [&str; 2] = ["xfs", "ext4"];
/// XFS takes no less.
const SIZE: &str = "512MiB";

/// Testbeds at a time, however many tests run: a program that another test starts has the open files
/// of all tests until it is executed, and a file system with open files is in use.
const AT_ONCE: usize = 2;
static IN_USE: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// The turn of one testbed.
struct Turn;

impl Turn {
    fn wait() -> Turn {
        let in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let in_use = FREED.wait_while(in_use, |in_use| *in_use == AT_ONCE);
        *in_use.unwrap_or_else(PoisonError::into_inner) += 1;
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *IN_USE.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        FREED.notify_one();
    }
}

/// A target behind a link, and a mount point for its device.
pub struct Testbed {
    pub wan: Wan,
    pub dir: TempDir,
    target: Option<Target>,
    /// Ends after all else.
    _turn: Turn,
}

fn skip(why: impl std::fmt::Display) -> Option<Testbed> {
    longhaul_skip::skip!("{why}");
    None
}

impl Testbed {
    /// `None`, with the reason on standard error, where FUSE, loop devices or the link are missing.
    pub fn new(fs: &str) -> Option<Testbed> {
        if !longhaul_skip::can_open(&["/dev/fuse", "/dev/loop-control"]) {
            return None;
        }
        if let Err(e) = Command::new(format!("mkfs.{fs}")).arg("-V").output() {
            return skip(format_args!("mkfs.{fs}: {e}"));
        }
        let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !known.contains(fs) && !Command::new("modprobe").arg(fs).status().is_ok_and(|s| s.success()) {
            return skip(format_args!("this kernel has no {fs}"));
        }
        let turn = Turn::wait();
        let conditions = Conditions::new(10 * MS, Some(300_000_000));
        let wan = emulated(WanPlan { star: Some(1), ..WanPlan::new(WanPlan::unique_name("m"), conditions) })?;
        let mut testbed =
            Testbed { wan, dir: tempfile::tempdir().expect("directory"), target: None, _turn: turn };
        fs::create_dir(testbed.at()).expect("made");
        testbed.serve();
        testbed.good(&["mkfs", "--fs", fs, &testbed.uri()]);
        Some(testbed)
    }

    /// Where the device is mounted.
    pub fn at(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// URI of the device that the target exports.
    pub fn uri(&self) -> String {
        format!("nvme+tcp://{}/d", self.wan.server_address(1))
    }

    /// Starts the target, also after it ended.
    pub fn serve(&mut self) {
        let listen = format!("{}:4420", self.wan.server_address(1));
        let disk = self.dir.path().join("disk");
        let export =
            format!("d=file:{},size={SIZE},uuid=7d2a1f60-0000-4000-8000-000000000009", disk.display());
        let args = [
            "target",
            "--insecure",
            "--listen",
            &listen,
            "--discovery",
            "none",
            "--json",
            "--export",
            &export,
        ];
        let mut command = self.wan.server(1).command(env!("CARGO_BIN_EXE_longhaul"));
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        command.env("XDG_CONFIG_HOME", "/nonexistent");
        self.target = Some(Target::spawn(command));
    }

    /// Kills the target, as in a crash.
    pub fn kill_target(&mut self) {
        self.target = None;
    }

    /// Truncates the exported file to `size` bytes, and makes the target look at it again (SIGHUP).
    pub fn shrink(&self, size: u64) {
        let disk = OpenOptions::new().write(true).open(self.dir.path().join("disk")).expect("opened");
        disk.set_len(size).expect("cut");
        signal(&self.target.as_ref().expect("a target").child, "HUP");
    }

    /// Runs the program on this side of the link.
    pub fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.wan.client().command(env!("CARGO_BIN_EXE_longhaul"));
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("XDG_CONFIG_HOME", "/nonexistent").env("XDG_RUNTIME_DIR", self.dir.path());
        finish(command.spawn().expect("started"))
    }

    /// Runs the program on this side of the link, and expects success.
    pub fn good(&self, args: &[&str]) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
        ran
    }

    /// Mounts the device, and returns the `ready` event.
    pub fn mounted(&self) -> Value {
        let ran = self.good(&["mount", &self.uri(), text(&self.at()), "--keep-alive", "1s", "--json"]);
        let ready: Value = ran.events().remove(0);
        assert_eq!(ready["event"], "ready", "{ready}");
        ready
    }

    /// Mounts the device, and returns the ID of the process that serves it.
    pub fn mount(&self) -> String {
        self.mounted()["pid"].to_string()
    }

    /// Unmounts the device, and expects that no attachment is left.
    pub fn umount(&self) {
        self.good(&["umount", text(&self.at())]);
        self.is_gone();
    }

    /// The list of attachments.
    pub fn attached(&self) -> Vec<Value> {
        let mut events = self.good(&["attach", "--list", "--json"]).events();
        events.pop();
        events
    }

    /// Waits until nothing is attached.
    pub fn is_gone(&self) {
        until("nothing is attached", || self.attached().is_empty());
        assert!(!is_mounted(&self.at()));
    }

    /// Checks the file system on the device, as it is.
    pub fn check(&self, fs: &str) {
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
    }

    /// Mounts and unmounts the file system, which replays its journal.
    pub fn replay(&self) {
        self.mount();
        self.umount();
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for attached in self.attached() {
            kill_and_wait(&attached["pid"].to_string());
        }
        self.kill_target();
        // A test that failed may leave mounts, whose device no process serves any more.
        for at in mounts_below(self.dir.path()) {
            let _ = Command::new("umount").arg("-l").arg(at).output();
        }
        let left = mounts_below(self.dir.path());
        assert!(std::thread::panicking() || left.is_empty(), "left behind: {left:?}");
    }
}

/// Whether something is mounted there.
pub fn is_mounted(path: &Path) -> bool {
    mounts().iter().any(|mount| mount.at == path)
}
