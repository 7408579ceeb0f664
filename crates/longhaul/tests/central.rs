//! A central discovery controller, and targets that register with it.

mod common;

use common::{LISTEN, Ran, Target, longhaul, signal, text, until};
use std::path::Path;

const DTN1: &str = "nqn.2014-08.org.example:dtn1";
const DTN2: &str = "nqn.2014-08.org.example:dtn2";

/// A target that registers as `hostnqn` with a central discovery controller.
fn registered(central: &Target, hostnqn: &str, export: &str, more: &[&str]) -> Target {
    let at = central.addr();
    Target::start(&[export], &[&["--register", &at, "--hostnqn", hostnqn], more].concat())
}

fn discover(central: &Target) -> Ran {
    longhaul(&["discover", &central.addr(), "--json"])
}

/// The names of the subsystems that are listed, and where.
fn listed(central: &Target) -> Vec<(String, String)> {
    let ran = discover(central);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let events = ran.events();
    let records = events.iter().filter(|event| event["subtype"] == "nvme subsystem");
    let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut all: Vec<_> = records
        .map(|record| {
            let nqn = word(&record["subnqn"]);
            let name = nqn.rsplit(':').next().unwrap_or_default().to_owned();
            (name, format!("{}:{}", word(&record["traddr"]), word(&record["trsvcid"])))
        })
        .collect();
    all.sort();
    all
}

fn lists(central: &Target, expected: &[(&str, &Target)]) {
    let expected: Vec<_> =
        expected.iter().map(|(name, target)| ((*name).to_owned(), target.addr())).collect();
    until(&format!("{expected:?}"), || listed(central) == expected);
}

#[test]
fn what_targets_serve_is_listed_while_they_serve_it() {
    let central = Target::start(&[], &["--registrar", "*"]);
    assert_eq!(listed(&central), []);
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("longhaul/config.toml");
    std::fs::create_dir(dir.path().join("longhaul")).expect("made");
    let write = |exports: &str| {
        std::fs::write(&config, format!("[target]\nexport = [{exports}]\n")).expect("written")
    };
    write("\"a=mem:1MiB\"");
    let at = central.addr();
    let args =
        ["target", "--listen", LISTEN, "--discovery", "none", "--json", "--register", &at, "--hostnqn", DTN1];
    let mut command = common::command(&args);
    command.env("XDG_CONFIG_HOME", dir.path());
    let one = Target::spawn(command);
    lists(&central, &[("a", &one)]);
    let mut two = registered(&central, DTN2, "b=mem:1MiB", &[]);
    lists(&central, &[("a", &one), ("b", &two)]);
    // A host connects to what it has found.
    let found = discover(&central).events();
    let uri = found.iter().find_map(|event| event["uri"].as_str().filter(|uri| uri.ends_with(":b")));
    let info = longhaul(&["info", uri.expect("a URI"), "--json"]);
    assert_eq!(info.code, Some(0), "{info:?}");
    // What is added is listed too.
    write("\"a=mem:1MiB\", \"c=mem:1MiB\"");
    signal(&one.child, "HUP");
    while one.next()["event"] != "reloaded" {}
    lists(&central, &[("a", &one), ("b", &two), ("c", &one)]);
    // What is killed is not, nor is what stops.
    two.child.kill().expect("killed");
    lists(&central, &[("a", &one), ("c", &one)]);
    one.stop();
    assert_eq!(listed(&central), []);
}

#[test]
fn a_target_registers_again_after_the_discovery_controller_was_away() {
    let central = Target::start(&[], &["--registrar", DTN1]);
    let at = central.addr();
    let target = registered(&central, DTN1, "a=mem:1MiB", &[]);
    lists(&central, &[("a", &target)]);
    central.stop();
    let mut again = longhaul_again(&at);
    lists(&again, &[("a", &target)]);
    again.child.kill().expect("killed");
    target.stop();
}

/// A central discovery controller at the address of one that has ended.
fn longhaul_again(at: &str) -> Target {
    let args = ["target", "--listen", at, "--discovery", "none", "--json", "--registrar", DTN1];
    Target::spawn(common::command(&args))
}

#[test]
fn who_is_no_registrar_is_refused_and_says_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("audit");
    let central = Target::start(&[], &["--registrar", DTN1, "--audit", text(&log)]);
    let stranger = registered(&central, DTN2, "b=mem:1MiB", &[]);
    let allowed = registered(&central, DTN1, "a=mem:1MiB", &[]);
    lists(&central, &[("a", &allowed)]);
    until("the refusal in the audit log", || {
        let lines = std::fs::read_to_string(&log).unwrap_or_default();
        lines.lines().any(|line| line.contains("not_registrar") && line.contains(DTN2))
    });
    // A discovery controller that is no central one.
    let refused = registered(&stranger, DTN1, "c=mem:1MiB", &[]);
    assert_eq!(listed(&stranger).len(), 1);
    refused.stop();
    stranger.stop();
}

fn key(dir: &Path, host: &str) {
    let made = longhaul(&["key", "make", host, "--keys", text(dir)]);
    assert_eq!(made.code, Some(0), "{made:?}");
}

#[test]
fn a_registrar_proves_who_it_is_where_there_are_keys() {
    let dir = tempfile::tempdir().expect("a directory");
    let (keys, others) = (dir.path().join("keys"), dir.path().join("others"));
    key(&keys, DTN1);
    key(&keys, "nqn.2014-08.org.example:reader");
    key(&others, DTN1);
    let central = Target::start(&[], &["--registrar", DTN1, "--keys", text(&keys)]);
    // Its name alone is not enough, nor is another secret.
    let at = central.addr();
    let named = Target::start(&["x=mem:1MiB"], &["--register", &at, "--hostnqn", DTN1]);
    let wrong = registered(&central, DTN1, "y=mem:1MiB", &["--keys", text(&others)]);
    let right = registered(&central, DTN1, "a=mem:1MiB", &["--keys", text(&keys)]);
    lists(&central, &[("a", &right)]);
    for target in [named, wrong] {
        target.stop();
    }
    assert_eq!(listed(&central).len(), 1, "read without a proof");
}

#[test]
fn every_host_is_no_registrar_where_there_are_keys() {
    let dir = tempfile::tempdir().expect("a directory");
    key(dir.path(), DTN1);
    let args = ["target", "--listen", "127.0.0.1:0", "--registrar", "*", "--keys", text(dir.path())];
    let refused = longhaul(&args);
    assert!(refused.code == Some(2) && refused.stderr.contains("name the hosts"), "{refused:?}");
}
