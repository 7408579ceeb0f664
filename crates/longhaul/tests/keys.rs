//! `key`, and `--keys` of targets and hosts.

mod common;

use common::{Ran, Target, longhaul, text};
use longhaul_device::keys;
use serde_json::json;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const HOST: &str = "nqn.2014-08.org.example:host";

fn make(dir: &Path, more: &[&str]) -> Ran {
    longhaul(&[&["key", "make", HOST, "--json", "--keys", text(dir)], more].concat())
}

fn info(target: &Target, more: &[&str]) -> Ran {
    let uri = target.ready["exports"][0]["uri"].as_str().expect("a URI");
    longhaul(&[&["info", uri, "--json", "--hostnqn", HOST], more].concat())
}

#[test]
fn a_host_with_keys_gets_in_and_one_without_is_told_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let made = make(dir.path(), &[]);
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_eq!(made.events()[0]["mutual"], true);
    let target = Target::start(&["a=mem:16MiB"], &["--keys", text(dir.path())]);
    let known = info(&target, &["--keys", text(dir.path())]);
    assert_eq!(known.code, Some(0), "{known:?}");
    let unknown = info(&target, &[]);
    assert_eq!(unknown.code, Some(6), "{unknown:?}");
    assert!(unknown.stderr.contains("longhaul key make") && unknown.stderr.contains("--keys"), "{unknown:?}");
    let uri = target.ready["exports"][0]["uri"].as_str().expect("a URI");
    let stranger = longhaul(&["info", uri, "--hostnqn", "nqn.2014-08.org.example:x"]);
    assert_eq!(stranger.code, Some(6), "{stranger:?}");
    // This host does not believe a target without keys.
    let open = Target::start(&["a=mem:16MiB"], &[]);
    let refused = info(&open, &["--keys", text(dir.path())]);
    assert!(refused.code == Some(6) && refused.stderr.contains("does not prove"), "{refused:?}");
}

#[test]
fn secrets_are_listed_but_not_shown_nor_replaced_by_mistake() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(make(dir.path(), &["--one-way", "--hash", "sha512"]).code, Some(0));
    let secret =
        std::fs::read_to_string(dir.path().join("hosts").join(HOST).join("dhchap_key")).expect("a secret");
    let again = make(dir.path(), &[]);
    assert!(again.code == Some(6) && again.stderr.contains("--force"), "{again:?}");
    let shown = longhaul(&["key", "show", "--json", "--keys", text(dir.path())]);
    assert_eq!(
        shown.events()[0],
        json!({ "event": "key", "host": HOST, "hash": "SHA-512", "mutual": false })
    );
    for ran in [&again, &shown] {
        assert!(!format!("{ran:?}").contains(&secret[15..40]));
    }
    assert_eq!(make(dir.path(), &["--force"]).code, Some(0));
    assert!(keys::read(dir.path()).expect("read")[HOST].controller.is_some());
}

#[test]
fn secrets_that_others_can_read_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(make(dir.path(), &[]).code, Some(0));
    let path = dir.path().join("hosts").join(HOST).join("dhchap_key");
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("changed");
    let ran = longhaul(&[
        "target",
        "--export",
        "a=mem:1MiB",
        "--listen",
        "127.0.0.1:0",
        "--keys",
        text(dir.path()),
    ]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("644") && ran.stderr.contains("chmod 600"), "{ran:?}");
}

/// With keys a space is one that only known hosts manage.
#[test]
fn a_space_beyond_loopback_takes_keys() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(make(&dir.path().join("keys"), &[]).code, Some(0));
    let space = format!("fast=dir:{},size=64MiB", text(&dir.path().join("space")));
    let args = ["target", "--space", &space, "--admin", HOST, "--listen", "0.0.0.0:0"];
    let refused = longhaul(&args);
    assert!(refused.code == Some(2) && refused.stderr.contains("--keys"), "{refused:?}");
    let target = Target::spawn(common::command(
        &[&args[..], &["--json", "--keys", text(&dir.path().join("keys"))]].concat(),
    ));
    assert_eq!(target.ready["event"], "ready");
}
