//! `--audit` of targets, and what peers can do to it.

mod common;

use common::{PATIENCE, Ran, Target, longhaul, signal, text, until};
use longhaul_block::Blocking;
use longhaul_initiator::{Options, RemoteDevice};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const HOST: &str = "nqn.2014-08.org.example:host";
const ADMIN: &str = "nqn.2014-08.org.example:admin";

struct Log {
    dir: tempfile::TempDir,
}

impl Log {
    fn new() -> Log {
        Log { dir: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("audit.json")
    }

    fn target(&self, exports: &[&str], more: &[&str]) -> Target {
        Target::start(exports, &[&["--audit", text(&self.path())], more].concat())
    }

    fn lines(&self) -> Vec<Value> {
        lines(&self.path())
    }
}

/// The lines of a file, each of which is whole.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a log");
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn of<'a>(lines: &'a [Value], event: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == event).collect()
}

fn make_keys(dir: &Path) {
    let made = longhaul(&["key", "make", HOST, "--json", "--keys", text(dir)]);
    assert_eq!(made.code, Some(0), "{made:?}");
}

fn info(uri: &str, more: &[&str]) -> Ran {
    longhaul(&[&["info", uri, "--json", "--hostnqn", HOST], more].concat())
}

/// Connects, and does not try again when the connection is lost.
fn connect(uri: &str, hostnqn: &str) -> Result<Arc<RemoteDevice>, longhaul_initiator::Error> {
    let options =
        Options { hostnqn: hostnqn.to_owned(), ctrl_loss: Some(Duration::ZERO), ..Options::default() };
    RemoteDevice::connect_blocking(&uri.parse().expect("a URI"), options)
}

/// Tries to connect once, as a host that the target refuses.
fn refused(uri: &str, hostnqn: &str) {
    connect(uri, hostnqn).map(drop).expect_err("refused");
}

#[test]
fn hosts_that_connect_and_hosts_that_are_refused_are_told_apart() {
    let log = Log::new();
    let [keys, before, wrong] = ["keys", "before", "wrong"].map(|name| log.dir.path().join(name));
    make_keys(&keys);
    make_keys(&wrong);
    let copied = Command::new("cp").arg("-a").arg(&keys).arg(&before).status().expect("cp");
    assert!(copied.success());
    let target = log.target(&["a=mem:16MiB"], &["--keys", text(&keys)]);
    let uri = target.uri(0);
    assert_eq!(info(&uri, &["--keys", text(&keys)]).code, Some(0));
    assert_eq!(info(&uri, &["--keys", text(&wrong)]).code, Some(6));
    for verb in ["rotate", "retire"] {
        let ran = longhaul(&["key", verb, HOST, "--keys", text(&keys)]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    assert_eq!(info(&uri, &["--keys", text(&before)]).code, Some(6));
    refused(&uri, "nqn.2014-08.org.example:stranger");
    target.stop();

    let all = log.lines();
    assert_eq!((&all[0]["event"], &all[0]["keys"]), (&"started".into(), &true.into()));
    let last = all.last().expect("lines");
    assert_eq!((&last["event"], &last["clean"]), (&"stopped".into(), &true.into()));
    let times: Vec<_> = all.iter().map(|line| line["time"].as_str().expect("a time")).collect();
    assert!(times.is_sorted(), "{times:?}");
    let (connected, ended) = (of(&all, "connected"), of(&all, "disconnected"));
    assert_eq!((connected.len(), ended.len()), (1, 1), "{all:?}");
    assert_eq!((&connected[0]["host"], &connected[0]["generation"]), (&HOST.into(), &1.into()));
    assert_eq!(connected[0]["controller"], ended[0]["controller"]);
    assert!(connected[0]["address"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")));
    let refusals = of(&all, "refused");
    let why: BTreeSet<_> = refusals.iter().map(|line| line["why"].as_str().expect("a reason")).collect();
    assert_eq!(why, ["no_key", "retired_secret", "wrong_secret"].into());
    let retired = refusals.iter().find(|line| line["why"] == "retired_secret").expect("there");
    assert_eq!((&retired["host"], &retired["generation"]), (&HOST.into(), &1.into()));
    let written = std::fs::read_to_string(log.path()).expect("read");
    for dir in [&keys, &before, &wrong] {
        for name in ["dhchap_key", "dhchap_ctrl_key"] {
            let path = dir.join("hosts").join(HOST).join(name);
            let secret = std::fs::read_to_string(&path).expect("a secret");
            assert!(!written.contains(&secret[15..40]), "{}", path.display());
        }
    }
    assert_eq!(std::fs::metadata(log.path()).expect("there").mode() & 0o777, 0o600);
}

#[test]
fn a_thousand_refusals_are_a_few_lines() {
    let log = Log::new();
    let keys = log.dir.path().join("keys");
    make_keys(&keys);
    let target = log.target(&["a=mem:1MiB"], &["--keys", text(&keys)]);
    let uri = target.uri(0);
    for i in 0..1000 {
        refused(&uri, &format!("nqn.2014-08.org.example:{i}"));
    }
    target.stop();
    let all = log.lines();
    let refusals = of(&all, "refused");
    let count: u64 = refusals.iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum();
    assert_eq!(count, 1000, "{refusals:?}");
    // One at once, and one a minute, however slow this machine is.
    assert!(refusals.len() < 20, "{refusals:?}");
    assert_eq!(refusals[0]["host"], "nqn.2014-08.org.example:0");
    assert_eq!(refusals[1]["summed_hosts"].as_array().map(Vec::len), Some(8));
}

#[test]
fn a_name_forges_no_line() {
    let log = Log::new();
    let target = log.target(&["a=mem:1MiB,allow-host=nqn.2014-08.org.example:x"], &[]);
    let uri = target.uri(0);
    let name = "nqn.2014-08.org.example:\"}\n{\"event\":\"connected\",\"host\":\"\u{1b}[31m\u{202e}";
    refused(&uri, name);
    target.stop();
    let all = log.lines();
    let refusals = of(&all, "refused");
    assert_eq!(refusals.len(), 1, "{all:?}");
    assert!(of(&all, "connected").is_empty(), "{all:?}");
    // Either the target does not take such a name for one, or it is there as it was given.
    let host = refusals[0]["host"].as_str().expect("text");
    assert!(host.is_empty() || host == name, "{all:?}");
    assert!(std::fs::read(log.path()).expect("read").iter().all(|b| matches!(b, b'\n' | b' '..=b'~')));
}

#[test]
fn administrators_and_hosts_of_namespaces_are_named() {
    let log = Log::new();
    let space = format!("fast=dir:{},size=64MiB", text(&log.dir.path().join("space")));
    let target = log.target(&[], &["--space", &space, "--admin", ADMIN]);
    let at = target.ready["spaces"][0]["uri"].as_str().expect("a URI").to_owned();
    let done = |args: &[&str]| {
        let ran = longhaul(&[&["ns", "--json"], args, &["--hostnqn", ADMIN]].concat());
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
        ran.events()[0].clone()
    };
    let made = done(&["create", &at, "--size", "16MiB"]);
    // The line is durable before the command was answered.
    let first = log.lines();
    assert_eq!(of(&first, "namespace")[0]["uuid"], made["uuid"]);
    let uri = made["uri"].as_str().expect("a URI").to_owned();
    done(&["attach", &uri, "--host", HOST]);
    done(&["grow", &uri, "--size", "32MiB"]);
    done(&["detach", &uri, "--host", HOST]);
    let full = longhaul(&["ns", "create", &at, "--size", "1GiB", "--hostnqn", ADMIN]);
    assert_eq!(full.code, Some(1), "{full:?}");
    done(&["rm", &uri]);
    target.stop();
    let all = log.lines();
    let changes = of(&all, "namespace");
    let actions: Vec<_> = changes.iter().map(|line| line["action"].as_str().expect("text")).collect();
    assert_eq!(actions, ["create", "attach", "grow", "detach", "create", "delete"], "{changes:?}");
    for (i, change) in changes.iter().enumerate() {
        assert_eq!((&change["by"], &change["space"]), (&ADMIN.into(), &"fast".into()));
        let hosts: &[&str] = if [1, 2, 3].contains(&i) { &[HOST] } else { &[] };
        assert_eq!(change["hosts"], serde_json::json!(hosts), "{change}");
        let failed = i == 4;
        assert_eq!(change["error"].is_string(), failed, "{change}");
        assert_eq!(change["nsid"].is_null(), failed, "{change}");
        assert_eq!(change["uuid"] == made["uuid"], !failed, "{change}");
    }
    let sizes: Vec<_> = changes.iter().map(|line| line["size"].as_u64().expect("a size") >> 20).collect();
    assert_eq!(sizes, [16, 16, 32, 32, 1024, 32]);
}

#[test]
fn a_full_disk_stops_nothing_and_is_told_afterwards() {
    let log = Log::new();
    let said = tempfile::NamedTempFile::new().expect("a file");
    // A limit of the size of files, which fails as a full disk does; blocks of 512 bytes.
    let script = "trap '' XFSZ; ulimit -S -f 4; exec \"$@\"";
    let mut limited = common::command(&[]);
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", common::PROGRAM]);
    command.args(["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json"]);
    command.args(["--export", "a=mem:16MiB", "--audit", text(&log.path())]);
    for (name, value) in limited.stdin(std::process::Stdio::null()).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    let target = Target::spawn_saying(command, said.reopen().expect("opened"));
    let uri = target.uri(0);
    let disk = || Blocking::open(longhaul_initiator::open(&uri).expect("connected")).expect("opened");
    let messages = || std::fs::read_to_string(said.path()).expect("read");
    let mut attempts = 0;
    until("the file is full", || {
        disk().write_at(&[7; 4096], 0).expect("I/O goes on");
        messages().contains("is not written")
    });
    while attempts < 5 {
        disk().write_at(&[7; 4096], 0).expect("I/O goes on");
        attempts += 1;
    }
    assert_eq!(messages().matches("is not written").count(), 1, "{}", messages());
    assert!(std::fs::metadata(log.path()).expect("there").len() <= 2048);
    lines(&log.path());
    let pid = target.child.id().to_string();
    let raised = Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited"]).status();
    assert!(raised.expect("prlimit").success());
    target.stop();
    let all = log.lines();
    let dropped: u64 = all.iter().filter_map(|line| line["dropped"].as_u64()).sum();
    assert!(dropped >= 5, "{all:?}");
    assert_eq!(all.last().expect("lines")["event"], "stopped");
}

#[test]
fn a_log_that_takes_nothing_stops_neither_io_nor_the_end() {
    let said = tempfile::NamedTempFile::new().expect("a file");
    let mut command = common::command(&["target", "--listen", "127.0.0.1:0", "--discovery", "none"]);
    command.args(["--export", "a=mem:16MiB", "--audit", "-"]).stderr(said.reopen().expect("opened"));
    let mut target = common::Running(command.spawn().expect("started"));
    let mut lines = BufReader::new(target.stdout.take().expect("a pipe")).lines();
    let uri = lines.by_ref().map(|line| line.expect("text")).find(|line| line.contains("nqn.2026-11"));
    let uri = uri.expect("a URI").split_whitespace().last().expect("a word").to_owned();
    // From here on nothing is read: more lines than a pipe has room for.
    let hostnqn = format!("{HOST}{}", "x".repeat(180));
    for _ in 0..100 {
        let disk = Blocking::open(connect(&uri, &hostnqn).expect("connected")).expect("opened");
        disk.write_at(&[7; 4096], 0).expect("I/O goes on");
    }
    signal(&target, "TERM");
    assert_eq!(target.end(PATIENCE), Some(Some(0)));
    let said = std::fs::read_to_string(said.path()).expect("read");
    assert!(said.contains("its last lines are missing"), "{said}");
}

#[test]
fn a_renamed_file_is_followed_by_a_new_one() {
    let log = Log::new();
    let target = log.target(&["a=mem:1MiB"], &[]);
    let uri = target.uri(0);
    assert_eq!(info(&uri, &[]).code, Some(0));
    let old = log.dir.path().join("audit.json.1");
    std::fs::rename(log.path(), &old).expect("renamed");
    signal(&target.child, "HUP");
    target.event("reloaded");
    until("the new file", || std::fs::read(log.path()).is_ok_and(|text| text.ends_with(b"\n")));
    assert_eq!(info(&uri, &[]).code, Some(0));
    target.stop();
    let (before, after) = (lines(&old), log.lines());
    assert_eq!((&before[0]["event"], &after[0]["event"]), (&"started".into(), &"reopened".into()));
    assert_eq!(after.last().expect("lines")["event"], "stopped");
    let connects = of(&before, "connected").len() + of(&after, "connected").len();
    assert_eq!((connects, of(&after, "connected").len()), (2, 1));
}

#[test]
fn a_kill_leaves_whole_lines() {
    let log = Log::new();
    let mut target = log.target(&["a=mem:1MiB"], &[]);
    let uri = target.uri(0);
    std::thread::scope(|scope| {
        let connects = scope.spawn(|| {
            // Until the target is gone.
            while connect(&uri, HOST).is_ok() {}
        });
        until("some lines", || of(&log.lines_so_far(), "connected").len() >= 20);
        signal(&target.child, "KILL");
        target.child.end(PATIENCE).expect("killed");
        connects.join().expect("ended");
    });
    let killed = log.lines();
    assert!(of(&killed, "stopped").is_empty());
    let target = log.target(&["a=mem:1MiB"], &[]);
    target.stop();
    let all = log.lines();
    assert_eq!(all[..killed.len()], killed[..]);
    assert_eq!(of(&all, "started").len(), 2);
}

impl Log {
    /// The lines that have ended.
    fn lines_so_far(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path()).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}

#[test]
fn a_target_without_its_log_does_not_start() {
    let log = Log::new();
    let medium = log.dir.path().join("medium");
    let export = format!("a=file:{},size=1MiB", text(&medium));
    let start = |audit: &str, more: &[&str]| {
        let args = ["target", "--listen", "127.0.0.1:0", "--export", &export, "--audit", audit];
        longhaul(&[&args[..], more].concat())
    };
    let json = start("-", &["--json"]);
    assert!(json.code == Some(2) && json.stderr.contains("--json"), "{json:?}");
    let missing = start(text(&log.dir.path().join("none/audit")), &[]);
    assert!(missing.code == Some(1) && missing.stderr.contains("audit log"), "{missing:?}");
    std::fs::write(log.path(), b"").expect("written");
    std::fs::set_permissions(log.path(), std::fs::Permissions::from_mode(0o666)).expect("changed");
    let open = start(text(&log.path()), &[]);
    assert!(open.code == Some(1) && open.stderr.contains("chmod 600"), "{open:?}");
    assert!(!medium.exists(), "nothing was made");
}
