//! Connections listed in a file, and `mount.longhaul`. The tests need FUSE, those of the second
//! also root and a loop device, and are skipped with a message elsewhere.

mod common;

use common::{Ran, finish, mounts_below, text, unmount_by_others};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

struct Home(TempDir);

impl Home {
    fn new() -> Option<Home> {
        longhaul_skip::can_open(&["/dev/fuse"]).then(|| Home(tempfile::tempdir().expect("directory")))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().expect("there").join(name)
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = common::command(args);
        finish(command.env("XDG_RUNTIME_DIR", self.0.path()).spawn().expect("started"))
    }

    /// Runs a verb of connections with the file of this directory.
    fn all(&self, verb: &str) -> Ran {
        self.run(&[verb, "--json", "--config", text(&self.path("connections.conf"))])
    }

    fn lists(&self, lines: &str) {
        fs::write(self.path("connections.conf"), lines).expect("written");
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for at in mounts_below(&self.path("")) {
            let _ = self.run(&["umount", &at]);
        }
    }
}

#[test]
fn what_is_listed_comes_back_and_goes() {
    let Some(home) = Home::new() else { return };
    let (a, b) = (home.path("a"), home.path("b"));
    home.lists(&format!(
        "# two devices\nattach mem:16MiB --at {} --via fuse\nattach mem:32MiB --at '{}' --via fuse\n",
        a.display(),
        b.display()
    ));
    let summary = |ran: &Ran, code: i32| {
        assert_eq!(ran.code, Some(code), "{ran:?}");
        ran.events().into_iter().rfind(|event| event["event"] == "summary").expect("a summary")
    };
    let listed = summary(&home.all("list"), 0);
    assert_eq!((&listed["attached"], &listed["missing"]), (&0.into(), &2.into()));
    let connected = summary(&home.all("connect-all"), 0);
    assert_eq!((&connected["connected"], &connected["already"]), (&2.into(), &0.into()));
    assert_eq!(
        (fs::metadata(&a).expect("there").len(), fs::metadata(&b).expect("there").len()),
        (16 << 20, 32 << 20)
    );
    // Only the detached one is attached again.
    assert_eq!(home.run(&["detach", text(&a)]).code, Some(0));
    let listed = summary(&home.all("list"), 0);
    assert_eq!((&listed["attached"], &listed["missing"]), (&1.into(), &1.into()));
    let connected = summary(&home.all("connect-all"), 0);
    assert_eq!((&connected["connected"], &connected["already"]), (&1.into(), &1.into()));
    let gone = summary(&home.all("disconnect-all"), 0);
    assert_eq!((&gone["disconnected"], &gone["failed"]), (&2.into(), &0.into()));
    assert!(!a.exists() && !b.exists());
}

#[test]
fn one_that_fails_keeps_no_other_back_and_is_named() {
    let Some(home) = Home::new() else { return };
    let at = home.path("disk");
    home.lists(&format!(
        "attach nvme+tcp://127.0.0.1:1/x --at {}\nattach mem:16MiB --at {} --via fuse\n",
        home.path("away").display(),
        at.display()
    ));
    let ran = home.all("connect-all");
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(
        ran.stderr.contains("connections.conf, line 1: ") && ran.stderr.contains("127.0.0.1:1"),
        "{ran:?}"
    );
    assert!(at.exists());
    home.lists(&format!("attach mem:16MiB --at {}\nnonsense\n", at.display()));
    let ran = home.all("disconnect-all");
    assert!(ran.code == Some(2) && ran.stderr.contains("connections.conf, line 2: "), "{ran:?}");
    assert_eq!(home.run(&["detach", text(&at)]).code, Some(0));
    fs::remove_file(home.path("connections.conf")).expect("removed");
    let ran = home.all("connect-all");
    assert!(ran.code == Some(2) && ran.stderr.contains("does not exist"), "{ran:?}");
}

#[test]
fn mount_finds_the_helper_and_gets_its_own_exit_codes() {
    let Some(home) = Home::new() else { return };
    let helper = home.path("mount.longhaul");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_longhaul"), &helper).expect("linked");
    let call = |args: &[&str]| {
        let mut command = Command::new(&helper);
        command.args(args).env("XDG_CONFIG_HOME", "/nonexistent").env("XDG_RUNTIME_DIR", home.0.path());
        command.env("XDG_STATE_HOME", home.path("state")).stdin(Stdio::null());
        finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started"))
    };
    assert_eq!(call(&["only-a-device"]).code, Some(1));
    assert_eq!(call(&["/nonexistent/disk", "/nonexistent/dir", "-f"]).code, Some(0), "nothing is done");
    let (device, dir) = (format!("file:{},size=64MiB", home.path("image").display()), home.path("dir"));
    fs::create_dir(&dir).expect("made");
    let failed = call(&[&format!("file:{}", home.path("none").display()), text(&dir)]);
    assert!(failed.code == Some(32) && !failed.stderr.is_empty(), "{failed:?}");
    if home.run(&["mkfs", "--fs", "ext4", &device]).code != Some(0)
        || !Path::new("/dev/loop-control").exists()
    {
        longhaul_skip::skip!("needs mkfs.ext4 and a loop device");
        return;
    }
    let mounted = call(&[&device, text(&dir), "-n", "-o", "rw,_netdev,x-systemd.automount,noatime,via=fuse"]);
    if mounted.code == Some(32) && mounted.stderr.contains("needs") {
        longhaul_skip::skip!("{}", mounted.stderr);
        return;
    }
    assert_eq!((mounted.code, mounted.stdout.as_str(), mounted.stderr.as_str()), (Some(0), "", ""));
    let mounts = fs::read_to_string("/proc/self/mounts").expect("read");
    let line = mounts.lines().find(|line| line.contains(text(&dir))).expect("mounted");
    assert!(line.contains(" ext4 ") && line.contains("noatime"), "{line}");
    // The process ends when any program unmounts the file system.
    unmount_by_others(&dir);
}
