//! What clients may do with an agent that root starts.

mod common;

use common::{Target, command, finish, longhaul, text};
use longhaul_engine::procfs::Process;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;

/// The ID of the unprivileged user, which need not have a name.
const UID_NOBODY: u32 = 65_534;

/// Whether this runs as root; prints why a test is skipped if not.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skip: only root can start an agent as root");
    }
    is_root
}

/// A directory that every user may enter, with `source/shell`, a program of root's that
/// runs as root, and `root`, which every user may write to.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    };
    for name in ["source", "root"] {
        fs::create_dir(dir.path().join(name)).expect("made");
    }
    fs::write(dir.path().join("source/shell"), "#!/bin/sh\nid -u\n").expect("written");
    mode(dir.path(), 0o755);
    mode(&dir.path().join("source/shell"), 0o6755);
    mode(&dir.path().join("root"), 0o777);
    dir
}

/// Starts an agent, and pushes the program to it as the user `nobody`, with every option
/// that a client may ask for; the exit status.
fn push_as_nobody(dir: &Path, more: &[&str], key: &[&str]) -> (Target, Option<i32>) {
    let root = dir.join("root");
    let args = ["agent", "--listen", "127.0.0.1:0", "--json", "--root", text(&root)];
    let agent = Target::spawn(command(&[&args[..], more, key].concat()));
    let to = agent.ready["uri"].as_str().expect("a URI").to_owned();
    let from = dir.join("source/shell");
    let mut client = command(&[&["cp", "--owner", "-X", text(&from), &to][..], key].concat());
    // The user `nobody` may have no access to the current directory.
    client.uid(UID_NOBODY).gid(UID_NOBODY).current_dir("/");
    let code = finish(client.spawn().expect("started")).code;
    (agent, code)
}

#[test]
fn an_agent_of_root_is_not_open_to_every_local_user() {
    if !is_root() {
        return;
    }
    let dir = place();
    let root = dir.path().join("root");
    let start = |more: &[&str]| {
        let args = ["agent", "--listen", "127.0.0.1:0", "--root", text(&root)];
        longhaul(&[&args[..], more].concat())
    };
    for more in [&[][..], &["--read-only"], &["--allow-owner"], &["--insecure", "--allow-owner"]] {
        let ran = start(more);
        assert_eq!(ran.code, Some(2), "{more:?}: {ran:?}");
    }
    assert!(start(&[]).stderr.contains("--key-file"));
    assert_eq!(start(&["--insecure", "--user", "no-such-user"]).code, Some(2));
}

#[test]
fn an_unprivileged_client_creates_no_setuid_root_program() {
    if !is_root() {
        return;
    }
    let shell = |dir: &Path| fs::symlink_metadata(dir.join("root/shell")).expect("it is there");
    // The agent runs as `nobody` itself, and keeps no owners.
    let dir = place();
    let (agent, code) = push_as_nobody(dir.path(), &["--insecure"], &[]);
    let meta = shell(dir.path());
    assert_eq!((code, meta.uid(), meta.mode() & 0o7777), (Some(3), UID_NOBODY, 0o755));
    let field = |name: &str| {
        let value = Process::of(agent.child.id()).status(name).expect("a line");
        value.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let ids = [UID_NOBODY.to_string().as_str(); 4].join(" ");
    assert_eq!(field("Uid"), ids, "real, effective, saved and of the file system");
    let rights = u64::from_str_radix(&field("CapEff"), 16).expect("a mask");
    assert_eq!(rights, 0, "no capability is left");
    // The agent keeps running as root, and keeps no owners all the same.
    let dir = place();
    let (_agent, code) = push_as_nobody(dir.path(), &["--insecure", "--user", "root"], &[]);
    let meta = shell(dir.path());
    assert_eq!((code, meta.uid(), meta.mode() & 0o7777), (Some(3), 0, 0o755));
    // A client with the key of an agent that keeps owners may set them.
    let dir = place();
    let key = dir.path().join("key");
    fs::write(&key, format!("{}\n", "5a".repeat(32))).expect("written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("set");
    std::os::unix::fs::chown(&key, Some(UID_NOBODY), Some(UID_NOBODY)).expect("given");
    let (_agent, code) = push_as_nobody(dir.path(), &["--allow-owner"], &["--key-file", text(&key)]);
    let meta = shell(dir.path());
    assert_eq!((code, meta.uid(), meta.mode() & 0o7777), (Some(0), 0, 0o6755));
}

#[test]
fn an_agent_that_may_not_enter_its_directory_says_so_at_once() {
    if !is_root() {
        return;
    }
    let dir = place();
    fs::set_permissions(dir.path().join("root"), fs::Permissions::from_mode(0o700)).expect("set");
    let root = dir.path().join("root");
    let args = ["agent", "--listen", "127.0.0.1:0", "--insecure", "--root", text(&root)];
    let ran = longhaul(&args);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("nobody") && ran.stderr.contains("--user"), "{ran:?}");
}
