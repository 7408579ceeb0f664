//! What scripts rely on: exit statuses, events, and file names that are escaped without ambiguity.

mod common;

use common::{agent, command, follow, longhaul, signal, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

#[test]
fn every_end_is_an_event() {
    let cases: [(&[&str], &str); 6] = [
        (&["frobnicate"], "unrecognized subcommand 'frobnicate'"),
        (&["bench", "mem:1MiB", "--rw", "sideways"], "'sideways'"),
        (&["target"], "--export <NAME=BACKEND>"),
        (&["info", "http://h/nqn"], "does not begin with nvme+tcp://"),
        (&["cp", "a"], "<SRC>..."),
        (&["bench", "--compare", "a.json"], "2 values"),
    ];
    for (args, needle) in cases {
        let ran = longhaul(&[args, &["--json"]].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        let events = ran.events();
        assert_eq!(events.len(), 1, "{ran:?}");
        let (event, message) = (&events[0], events[0]["message"].as_str().unwrap_or_default());
        assert_eq!((&event["event"], &event["exit"]), (&"error".into(), &2.into()), "{ran:?}");
        assert!(message.contains(needle) && !message.starts_with("error:"), "no '{needle}' in {message}");
        assert!(ran.stderr.contains(needle), "standard error has it as well: {ran:?}");
    }
    // Options after `--` belong to the command.
    let ran = longhaul(&["wan", "--rtt", "soon", "--", "longhaul", "--json"]);
    assert!(ran.code == Some(2) && ran.stdout.is_empty(), "{ran:?}");
    for args in [&["completions", "bash"][..], &["man"]] {
        let ran = longhaul(&[args, &["--json"]].concat());
        assert_eq!((ran.code, &ran.events()[0]["event"]), (Some(0), &"summary".into()), "{args:?}");
    }
}

#[test]
fn excluded_files_are_not_opened_and_names_are_escaped() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    fs::create_dir_all(path("s/d")).expect("made");
    fs::write(path("s/a"), "1").expect("written");
    fs::write(path("s/d/.longhaul-old"), "2").expect("written");
    let made = Command::new("mkfifo").arg(path("s/pipe")).status().expect("mkfifo");
    assert!(made.success());
    let _socket = UnixListener::bind(path("s/socket")).expect("bound");
    let cp = |to: &str, more: &[&str]| longhaul(&[&["cp", "-r", "--json", &path("s"), to], more].concat());
    let ran = cp(&path("all"), &[]);
    assert!(ran.code == Some(3) && ran.stderr.contains("s/pipe: a named pipe is not copied"), "{ran:?}");
    let ran = cp(&path("some"), &["--exclude", "pipe", "--exclude", "/s/socket"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // What no copy takes is named, and is no failure.
    let skipped: Vec<_> = ran.events().into_iter().filter(|event| event["event"] == "skipped").collect();
    assert!(skipped.len() == 1 && skipped[0]["path"] == "s/d/.longhaul-old", "{ran:?}");
    assert!(ran.stderr.contains("s/d/.longhaul-old: left out"), "{ran:?}");
    let ran = cp(&path("less"), &["--exclude", "pipe", "--exclude", "socket", "--exclude", ".longhaul-*"]);
    assert!(ran.code == Some(0) && !ran.stderr.contains(".longhaul-old"), "{ran:?}");
    // Sources that are named are left out in the same way; one that is missing, too.
    let ran = longhaul(&[
        "cp",
        &path("s/a"),
        &path("s/pipe"),
        &path("s/gone"),
        &path("some"),
        "--exclude",
        "pipe",
        "--exclude",
        "gone",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");

    let odd = dir.path().join("odd");
    fs::create_dir(&odd).expect("made");
    for name in ["a\\nb", "a\nb", "a\\\\nb"] {
        fs::write(odd.join(name), "1").expect("written");
    }
    let ran = longhaul(&["sync", "--dry-run", text(&odd), &path("none")]);
    let mut lines: Vec<_> = ran.stdout.lines().filter(|line| line.starts_with("would send ")).collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 3, "{ran:?}");
    assert!(lines.contains(&"would send a\\nb") && lines.contains(&"would send a\\\\nb"), "{ran:?}");
}

#[test]
fn sync_removes_nothing_that_it_cannot_look_at_but_may_leave_that_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    fs::create_dir_all(path("s")).expect("made");
    fs::create_dir_all(path("t")).expect("made");
    fs::write(path("t/old"), "1").expect("written");
    let made = Command::new("mkfifo").arg(path("s/pipe")).status().expect("mkfifo");
    assert!(made.success());
    let sync = |more: &[&str]| longhaul(&[&["sync", "--delete", &path("s"), &path("t")], more].concat());
    assert_eq!(sync(&[]).code, Some(3));
    assert!(dir.path().join("t/old").exists());
    let ran = sync(&["--exclude", "pipe"]);
    assert!(ran.code == Some(0) && !dir.path().join("t/old").exists(), "{ran:?}");
}

#[test]
fn the_limit_that_holds_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("set");
    let limits = |args: &[&str], stop: Option<&std::process::Child>, needle: &str| {
        let mut child = command(args).spawn().expect("started");
        let events = follow(child.stdout.take().expect("a pipe"));
        let mut found = false;
        while let Ok(event) = events.recv_timeout(common::PATIENCE) {
            if event["event"] != "progress" {
                continue;
            }
            if event["bytes"].as_u64() > Some(0)
                && let Some(stopped) = stop
            {
                signal(stopped, "STOP");
            }
            found = event["limit"] == needle;
            if found {
                break;
            }
        }
        child.kill().expect("killed");
        child.wait().expect("waited");
        if let Some(stopped) = stop {
            signal(stopped, "CONT");
        }
        assert!(found, "no limit '{needle}' was reported for {args:?}");
    };
    let (agent, uri) = agent(dir.path(), &[]);
    let to = format!("{uri}x");
    limits(&["cp", "zero:1GiB", &to, "--bwlimit", "80Mbit", "--json"], None, "bwlimit");
    // The same on the sender's side of a download.
    let from = format!("{uri}zero:1GiB");
    limits(&["cp", &from, "null:", "--bwlimit", "80Mbit", "--json"], None, "bwlimit");
    limits(&["cp", "zero:64GiB", &format!("{uri}null:"), "--json"], Some(&agent.child), "other side");
}
