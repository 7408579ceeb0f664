//! Directories of other machines as local ones: `longhaul mount HOST:PATH DIR`. The tests need FUSE, and
//! are skipped with a message elsewhere.

mod common;

use common::ssh::fake_ssh;
use common::{Ran, Target, agent, finish, has_ended, mounts_below, text, until};
use longhaul_torture::fsx::Fsx;
use longhaul_torture::stress::Plan;
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// An agent of a directory, and a place to mount it at.
struct Far {
    dir: TempDir,
    agent: Option<Target>,
    uri: String,
}

impl Far {
    /// `None`, with the reason on standard error, where FUSE is missing.
    fn new(more: &[&str]) -> Option<Far> {
        if !longhaul_skip::can_open(&["/dev/fuse"]) {
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["there", "here"] {
            fs::create_dir(dir.path().join(name)).expect("made");
        }
        let (agent, uri) = agent(&dir.path().join("there"), more);
        Some(Far { dir, agent: Some(agent), uri })
    }

    /// What the agent serves.
    fn there(&self) -> PathBuf {
        self.dir.path().join("there")
    }

    /// Where it is mounted.
    fn here(&self) -> PathBuf {
        self.dir.path().join("here")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = common::command(args);
        command.env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        finish(self.command(args).spawn().expect("started"))
    }

    /// Mounts a directory, and returns the `ready` event.
    fn mount(&self, source: &str, more: &[&str]) -> Value {
        let here = self.here();
        let ran = self.run(&[&["mount", source, text(&here), "--json"], more].concat());
        assert_eq!(ran.code, Some(0), "{source}: {}", ran.stderr);
        ran.events().remove(0)
    }

    fn umount(&self) {
        let ran = self.run(&["umount", text(&self.here())]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let here = self.here();
        if !mounts_below(self.dir.path()).is_empty() {
            self.run(&["umount", "--lazy", text(&here)]);
        }
        let left = mounts_below(self.dir.path());
        assert!(std::thread::panicking() || left.is_empty(), "still mounted: {left:?}");
    }
}

#[test]
fn files_are_those_of_the_other_machine() {
    let Some(far) = Far::new(&[]) else { return };
    let (there, here) = (far.there(), far.here());
    fs::create_dir_all(there.join("a/b")).expect("made");
    fs::write(there.join("a/b/read"), vec![7; 3 << 20]).expect("written");
    let ready = far.mount(&far.uri, &[]);
    assert_eq!((&ready["via"], &ready["read_only"]), (&"agent".into(), &false.into()));
    assert!(fs::read(here.join("a/b/read")).expect("read") == vec![7; 3 << 20]);
    fs::write(here.join("a/written"), b"content").expect("written");
    assert_eq!(fs::read(there.join("a/written")).expect("with close, it is there"), b"content");
    fs::set_permissions(here.join("a/written"), fs::Permissions::from_mode(0o640)).expect("set");
    assert_eq!(fs::metadata(there.join("a/written")).expect("there").mode() & 0o777, 0o640);
    symlink("a/written", here.join("link")).expect("linked");
    assert_eq!(fs::read(here.join("link")).expect("followed"), b"content");
    fs::hard_link(here.join("a/written"), here.join("hard")).expect("linked");
    let inode = |name: &str| fs::metadata(here.join(name)).expect("there").ino();
    assert_eq!(inode("hard"), inode("a/written"));
    fs::rename(here.join("a"), here.join("c")).expect("renamed");
    assert!(there.join("c/b/read").exists());
    // Open and removed, a file is still there for its user.
    let mut open = File::open(here.join("hard")).expect("opened");
    fs::remove_file(here.join("hard")).expect("removed");
    fs::remove_file(here.join("c/written")).expect("removed");
    let mut content = String::new();
    open.read_to_string(&mut content).expect("read");
    assert_eq!(content, "content");
    drop(open);
    assert_eq!(fs::remove_dir(here.join("c")).expect_err("not empty").kind(), ErrorKind::DirectoryNotEmpty);
    assert_eq!(fs::read(here.join("missing")).expect_err("missing").kind(), ErrorKind::NotFound);
    // Changes on the other side are seen after the second for which names are kept.
    fs::write(there.join("new"), b"from there").expect("written");
    until("it is seen", || fs::read(here.join("new")).is_ok_and(|content| content == b"from there"));
    let listed = far.run(&["attach", "--list", "--json"]).events();
    assert_eq!((&listed[0]["via"], &listed[0]["health"]), (&"agent".into(), &"healthy".into()), "{listed:?}");
    let pid = ready["pid"].to_string();
    far.umount();
    until("the process has ended", || has_ended(&pid));
    assert_eq!(fs::read_dir(&here).expect("a directory").count(), 0);
}

#[test]
fn all_names_of_a_large_directory_are_listed_once() {
    let Some(far) = Far::new(&["--read-only"]) else { return };
    let names = 12_000;
    for name in 0..names {
        fs::write(far.there().join(format!("{name:05}")), b"").expect("written");
    }
    far.mount(&far.uri, &[]);
    for _ in 0..2 {
        let entries = fs::read_dir(far.here()).expect("opened").map(|entry| entry.expect("read").file_name());
        let mut found: Vec<_> = entries.collect();
        found.sort_unstable();
        assert_eq!(found.len(), names);
        found.dedup();
        assert_eq!(found.len(), names, "names came twice");
    }
    far.umount();
}

#[test]
fn content_survives_torture() {
    let Some(far) = Far::new(&[]) else { return };
    far.mount(&far.uri, &[]);
    for seed in 1..=2 {
        let path = far.here().join(format!("file-{seed}"));
        let mut fsx = Fsx::new(&path, seed).expect("a file");
        fsx.run(400).unwrap_or_else(|e| panic!("{e:?}"));
        assert!(
            fs::read(far.there().join(format!("file-{seed}"))).expect("read") == fsx.content(),
            "seed {seed}"
        );
    }
    let plan = Plan { workers: 4, changes: 150, seed: 3 };
    plan.run(&far.here()).unwrap_or_else(|e| panic!("{e:?}"));
    far.umount();
    let files = plan.check(&far.there()).unwrap_or_else(|e| panic!("{e:?}"));
    assert!(files > 50, "only {files} files");
}

#[test]
fn appending_from_two_mounts_loses_nothing() {
    let Some(far) = Far::new(&[]) else { return };
    let other = far.dir.path().join("other");
    fs::create_dir(&other).expect("made");
    far.mount(&far.uri, &[]);
    let ran = far.run(&["mount", &far.uri, text(&other)]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let append = |dir: &Path, word: &'static str| {
        let path = dir.join("log");
        std::thread::spawn(move || {
            for line in 0..200 {
                let mut file = OpenOptions::new().append(true).create(true).open(&path).expect("opened");
                file.write_all(format!("{word} {line:03}\n").as_bytes()).expect("written");
            }
        })
    };
    for thread in [append(&far.here(), "one"), append(&other, "two")] {
        thread.join().expect("no panic");
    }
    let log = fs::read_to_string(far.there().join("log")).expect("read");
    for word in ["one", "two"] {
        let lines: Vec<&str> = log.lines().filter(|line| line.starts_with(word)).collect();
        let expected: Vec<String> = (0..200).map(|line| format!("{word} {line:03}")).collect();
        assert_eq!(lines, expected);
    }
    assert_eq!(far.run(&["umount", text(&other)]).code, Some(0));
    far.umount();
}

#[test]
fn a_vanished_agent_fails_calls_and_the_mount_can_be_removed() {
    let Some(mut far) = Far::new(&[]) else { return };
    fs::write(far.there().join("file"), b"content").expect("written");
    far.mount(&far.uri, &[]);
    let file = OpenOptions::new().write(true).open(far.here().join("file")).expect("opened");
    drop(far.agent.take());
    until("calls fail", || fs::read_dir(far.here()).is_err());
    let error = file.write_at(b"x", 0).and_then(|_| file.sync_all()).expect_err("the agent is gone");
    assert_eq!(error.raw_os_error(), Some(5), "EIO");
    drop(file);
    until("it is shown", || {
        let listed = far.run(&["attach", "--list", "--json"]).events();
        listed[0]["health"] == "disconnected"
    });
    far.umount();
}

#[test]
fn what_cannot_be_mounted_is_refused_with_the_reason() {
    let Some(far) = Far::new(&["--read-only"]) else { return };
    fs::write(far.there().join("file"), b"content").expect("written");
    let here = far.here();
    let refused = |source: &str, code: i32, part: &str| {
        let ran = far.run(&["mount", source, text(&here)]);
        assert_eq!(ran.code, Some(code), "{source}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{source}: {}", ran.stderr);
    };
    refused(&format!("{}missing", far.uri), 1, "missing: ");
    refused(&format!("{}file", far.uri), 1, "file: ");
    refused(&format!("{}../..", far.uri), 6, "leads out");
    refused("lh://127.0.0.1:1/", 5, "connection refused");
    refused("lh://", 2, "is not of the form");
    // A read-only agent, which says so at the first change.
    far.mount(&far.uri, &[]);
    let error = fs::write(here.join("new"), b"x").expect_err("read-only");
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    let ran = far.run(&["mount", &far.uri, text(&here)]);
    assert!(ran.stderr.contains("mounted already"), "{}", ran.stderr);
    far.umount();
    // And one that is mounted so.
    let ready = far.mount(&far.uri, &["--read-only"]);
    assert_eq!(ready["read_only"], true);
    assert_eq!(fs::read(here.join("file")).expect("read"), b"content");
    assert_eq!(
        fs::remove_file(here.join("file")).expect_err("read-only").kind(),
        ErrorKind::ReadOnlyFilesystem
    );
    far.umount();
}

#[test]
fn ssh_starts_the_agent() {
    let Some(far) = Far::new(&[]) else { return };
    fs::write(far.there().join("file"), b"content").expect("written");
    let ssh = fake_ssh(far.dir.path(), "localhost", "127.0.0.1");
    let program = env!("CARGO_BIN_EXE_longhaul");
    let options = ["--ssh", text(&ssh), "--remote-program", program];
    far.mount("far:there", &options);
    assert_eq!(fs::read(far.here().join("file")).expect("read"), b"content");
    fs::write(far.here().join("new"), b"new").expect("written");
    far.umount();
    assert_eq!(fs::read(far.there().join("new")).expect("read"), b"new");
}
