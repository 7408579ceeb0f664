//! `longhaul wan` as users and scripts run it. Tests that need root are skipped with a message
//! elsewhere.

mod common;

use common::{Target, command, finish, longhaul, signal, until};
use longhaul_wan::{WanPlan, control, unavailable};
use serde_json::Value;
use std::path::Path;

fn exists(name: &str, end: &str) -> bool {
    Path::new(&format!("/run/netns/{name}-{end}")).exists()
}

/// A name for a path; `None` if this machine cannot emulate one.
fn name() -> Option<String> {
    match unavailable() {
        None => Some(WanPlan::unique_name("l")),
        Some(why) => {
            longhaul_skip::skip!("{why}");
            None
        }
    }
}

/// A running path, which is ended when dropped; the end is tested elsewhere.
struct EmulatedPath {
    process: Target,
    name: String,
}

impl EmulatedPath {
    fn start(more: &[&str]) -> Option<EmulatedPath> {
        let name = name()?;
        let args = ["wan", "--json", "--name", &name, "--via", "tun", "--rtt", "10ms"];
        let process = Target::spawn(command(&[&args[..], more].concat()));
        Some(EmulatedPath { process, name })
    }

    fn is_gone(&self) -> bool {
        !exists(&self.name, "client")
            && !exists(&self.name, "server")
            && !control::socket(&self.name).exists()
    }

    /// The status of the first link.
    fn link(&self) -> Value {
        let ran = longhaul(&["wan", "status", &self.name, "--json"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.events()[0]["paths"][0]["links"][0].clone()
    }
}

#[test]
fn arguments_that_make_no_sense() {
    let fails = |args: &[&str], code: i32, needle: &str| {
        let ran = longhaul(args);
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(needle), "no '{needle}' in {ran:?}");
    };
    fails(&["wan"], 2, "--rtt");
    fails(&["wan", "--rtt", "soon"], 2, "'soon'");
    fails(&["wan", "--rtt", "5min"], 2, "30 s");
    fails(&["wan", "--rtt", "1ms", "--loss", "200%"], 2, "'200%' is not a share");
    fails(&["wan", "--rtt", "1ms", "--queue", "long"], 2, "--queue");
    fails(&["wan", "--rtt", "1ms", "--via", "pigeon"], 2, "'pigeon'");
    fails(&["wan", "--rtt", "1ms", "--star", "0"], 2, "1 to 64");
    fails(&["wan", "--rtt", "1ms", "--name", "a/b"], 2, "'a/b' is no name");
    fails(&["wan", "--rtt", "1ms", "--mtu", "100"], 2, "1280");
    fails(&["wan", "set", "nobody"], 2, "nothing to change");
    fails(&["wan", "set", "nobody", "--cut", "--restore"], 2, "--restore");
    fails(&["wan", "set", "nobody", "--cut"], 5, "no emulated path is called 'nobody'");
    fails(&["wan", "status", "nobody"], 5, "no emulated path is called 'nobody'");
}

#[test]
fn the_status_of_the_command_is_passed_on() {
    let Some(name) = name() else { return };
    let run = |script: &str| longhaul(&["wan", "--rtt", "1ms", "--name", &name, "--", "sh", "-c", script]);
    let ran = run("ip -4 -o addr show wan1; exit 7");
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.stdout.contains("10.77.1.1/24"), "{ran:?}");
    assert_eq!(ran.stdout.lines().count(), 1, "standard output is the command's: {ran:?}");
    assert!(!exists(&name, "client") && !exists(&name, "server"));
    assert_eq!(run("kill -9 $$").code, Some(137));
    assert_eq!(run("exit 0").code, Some(0));
    let ran = longhaul(&["wan", "--rtt", "1ms", "--name", &name, "--", "/nonexistent/program"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("cannot run '/nonexistent/program'"), "{ran:?}");
}

#[test]
fn events_stay_apart_from_what_the_command_prints() {
    let Some(name) = name() else { return };
    let args = ["wan", "--json", "--rtt", "1ms", "--rate", "1Gbit", "--star", "2", "--name", &name, "--"];
    let ran = longhaul(&[&args[..], &["sh", "-c", "echo words; exit 3"]].concat());
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("words\n"), "{ran:?}");
    let events = ran.events();
    let kinds: Vec<_> = events.iter().map(|event| event["event"].as_str().expect("a kind")).collect();
    assert_eq!(kinds, ["ready", "summary"]);
    assert_eq!(events[0]["links"][1]["server"], format!("{name}-server2"));
    assert_eq!(events[0]["links"][1]["server_address"], "10.77.2.2");
    assert_eq!(events[1]["command_exit"], 3);
    assert_eq!(events[1]["links"][0]["there"]["rate"], 1_000_000_000);
}

#[test]
fn a_path_is_changed_from_outside_until_a_signal_ends_it() {
    let Some(mut path) = EmulatedPath::start(&["--rate", "1Gbit", "--star", "2"]) else { return };
    let name = path.name.clone();
    assert_eq!(path.process.ready["links"][0]["round_trip_us"], 10_000);
    let set = |args: &[&str]| {
        let ran = longhaul(&[&["wan", "set", &name], args].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stdout
    };
    assert!(set(&["--cut", "--direction", "back", "--link", "1"]).contains("CUT"));
    let link = path.link();
    assert_eq!((&link["there"]["cut"], &link["back"]["cut"]), (&false.into(), &true.into()));
    assert!(!set(&["--restore", "--rtt", "30ms", "--loss", "0.1%", "--queue", "0.1bdp"]).contains("CUT"));
    let link = path.link();
    assert_eq!((&link["round_trip_us"], &link["back"]["cut"]), (&30_000.into(), &false.into()));
    assert_eq!((&link["there"]["loss"], &link["there"]["queue_bytes"]), (&0.001.into(), &375_000.into()));
    let ran = longhaul(&["wan", "set", &name, "--link", "3", "--cut"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("no link 3"), "{ran:?}");
    let again = longhaul(&["wan", "--rtt", "1ms", "--name", &name]);
    assert!(again.code == Some(1) && again.stderr.contains("exists already"), "{again:?}");
    let all = longhaul(&["wan", "status"]);
    assert!(all.code == Some(0) && all.stdout.contains(&name), "{all:?}");

    signal(&path.process.child, "TERM");
    until("the path ends", || path.is_gone() && !exists(&name, "server2"));
    assert_eq!(path.process.child.wait().expect("waited").code(), Some(0));
}

#[test]
fn nothing_is_left_when_it_is_killed() {
    let Some(mut path) = EmulatedPath::start(&[]) else { return };
    path.process.child.kill().expect("killed");
    path.process.child.wait().expect("waited");
    until("the guard cleans up", || path.is_gone());
}

#[test]
fn a_signal_reaches_the_command() {
    let Some(path) = EmulatedPath::start(&[
        "--",
        "sh",
        "-c",
        "trap 'exit 5' TERM; echo on >&2; while :; do sleep 0.05; done",
    ]) else {
        return;
    };
    signal(&path.process.child, "TERM");
    let mut path = path;
    until("the command ends", || path.is_gone());
    // A shell that had no time to set its trap ends by the signal itself.
    let code = path.process.child.wait().expect("waited").code();
    assert!(matches!(code, Some(5 | 143)), "{code:?}");
}

#[test]
fn the_command_ends_with_a_path_that_is_killed() {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", file.display());
    let Some(mut path) = EmulatedPath::start(&["--", "sh", "-c", &script]) else { return };
    until("the command runs", || file.exists());
    let pid = std::fs::read_to_string(&file).expect("read");
    path.process.child.kill().expect("killed");
    path.process.child.wait().expect("waited");
    let process = format!("/proc/{}/stat", pid.trim());
    // Ended, or a zombie: its parent was killed and cannot reap it.
    until("the command ends", || !std::fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z")));
    until("the guard cleans up", || path.is_gone());
}

#[test]
fn output_of_a_run_that_ends_by_itself() {
    let Some(name) = name() else { return };
    let child = command(&["wan", "--rtt", "4ms", "--via", "tun", "--name", &name, "--", "true"]).spawn();
    let ran = finish(child.expect("started"));
    assert!(ran.stderr.contains("4 ms, no limit of rate"), "{ran:?}");
    assert!(ran.stderr.contains("link 1 there: 0 packets"), "{ran:?}");
    assert!(ran.stderr.contains("% of a core"), "{ran:?}");
}
