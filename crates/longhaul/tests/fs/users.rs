//! A file system that is mounted for many users: each has its own rights.

use crate::Shared;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

/// A shell of a user with this number, and a group with the next one.
fn as_user(uid: u32, script: &str, at: &Path) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).current_dir(at).uid(uid).gid(uid + 1);
    shell.output().expect("started")
}

/// It succeeds, and prints this.
#[track_caller]
fn says(uid: u32, script: &str, at: &Path, expected: &str) {
    let done = as_user(uid, script, at);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(said.trim(), expected, "{script}");
}

/// It is refused.
#[track_caller]
fn is_refused(uid: u32, script: &str, at: &Path) {
    let done = as_user(uid, script, at);
    let said = String::from_utf8_lossy(&done.stderr).to_lowercase();
    assert!(!done.status.success(), "{script}");
    assert!(said.contains("permission denied") || said.contains("not permitted"), "{script}: {said}");
}

#[test]
fn what_each_user_makes_is_its_own_and_it_may_do_what_modes_let_it() {
    for close in ["wait", "lease"] {
        let Some(shared) = Shared::with_fuse(3, &["--size", "64MiB", "--layout", "parity"]) else { return };
        if !rustix::process::geteuid().is_root() {
            return longhaul_skip::skip!("needs root, to be several users");
        }
        // Users pass through it.
        let directory = shared.site.directory.path();
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("changed");
        shared.mount_with("here", &["--allow-other", "--close", close]);
        let here = shared.at("here");
        // The user who made the file system owns the top directory.
        is_refused(1001, "touch mine", &here);
        fs::create_dir(here.join("open")).expect("made");
        fs::set_permissions(here.join("open"), fs::Permissions::from_mode(0o1777)).expect("changed");
        let open = here.join("open");
        says(
            1001,
            "umask 077; echo one > one; mkdir dir; ln -s one link; mkfifo fifo; cat one",
            &open,
            "one",
        );
        for name in ["one", "dir", "link", "fifo"] {
            let status = fs::symlink_metadata(open.join(name)).expect("there");
            assert_eq!((status.uid(), status.gid()), (1001, 1002), "{name}");
        }
        is_refused(1003, "cat one", &open);
        is_refused(1003, "ls dir", &open);
        is_refused(1003, "chmod 666 one", &open);
        // The directory is sticky.
        is_refused(1003, "rm -f one", &open);
        is_refused(1003, "mv one two", &open);
        is_refused(1001, "chown 1003 one", &open);
        says(1001, "chmod 644 one; stat -c %a one", &open, "644");
        says(1003, "cat one", &open, "one");
        is_refused(1003, "echo two > one", &open);
        // A write by another user clears the set-user-ID bit of a program.
        says(1001, "cp one program; chmod 4777 program; stat -c %a program", &open, "4777");
        says(1003, "echo more >> program; stat -c %a program", &open, "777");
        says(1001, "mkdir shared; chmod 2777 shared; stat -c %a shared", &open, "2777");
        says(
            1003,
            "touch shared/file; mkdir shared/dir; stat -c %u:%g shared/file shared/dir | xargs",
            &open,
            "1003:1002 1003:1002",
        );
        // As it was made, also on the next mount.
        shared.umount("here");
        shared.check();
        shared.mount("here");
        let status = fs::metadata(open.join("one")).expect("there");
        assert_eq!((status.uid(), status.gid(), status.mode() & 0o7777), (1001, 1002, 0o644));
        shared.umount("here");
    }
}
