//! `target --space` and `ns`.

mod common;

use common::{PATIENCE, Ran, Target, longhaul, signal, text};
use longhaul_block::Blocking;
use std::path::Path;

const ADMIN: &str = "nqn.2014-08.org.example:admin";
const HOST: &str = "nqn.2014-08.org.example:host";

fn serve(directory: &Path, more: &[&str]) -> (Target, String) {
    let space = format!("fast=dir:{},size=64MiB", text(directory));
    let target = Target::start(&[], &[&["--space", &space, "--admin", ADMIN], more].concat());
    let uri = target.ready["spaces"][0]["uri"].as_str().expect("a URI").to_owned();
    (target, uri)
}

/// Runs `ns` as the administrator.
fn ns(args: &[&str]) -> Ran {
    longhaul(&[&["ns", "--json"], args, &["--hostnqn", ADMIN]].concat())
}

fn done(args: &[&str]) -> Vec<serde_json::Value> {
    let ran = ns(args);
    assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    ran.events()
}

#[test]
fn a_namespace_is_made_used_and_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("space");
    let (target, space) = serve(&path, &[]);
    let made =
        done(&["create", &space, "--size", "16MiB", "--host", HOST, "--job", "4711", "--lifetime", "1h"]);
    assert_eq!((made.len(), &made[0]["event"], &made[0]["nsid"]), (1, &"summary".into(), &1.into()));
    let uri = made[0]["uri"].as_str().expect("a URI").to_owned();
    assert_eq!(uri, format!("{space}?nsid=1"));
    let as_host = format!("{uri}&hostnqn={HOST}");
    let disk = Blocking::open(longhaul_initiator::open(&as_host).expect("attached")).expect("opened");
    disk.write_at(&[7; 4096], 0).expect("written");
    drop(disk);

    let listed = done(&["ls", &space]);
    let one = &listed[0];
    assert_eq!(
        (&one["uuid"], &one["hosts"], &one["job"]),
        (&made[0]["uuid"], &[HOST].as_slice().into(), &"4711".into())
    );
    assert!(one["expiry"].as_u64().is_some_and(|expiry| expiry > 1_600_000_000), "{one}");
    assert_eq!(listed[1]["unallocated"], 48 << 20, "{listed:?}");
    let full = ns(&["create", &space, "--size", "49MiB"]);
    assert!(full.code == Some(1) && full.stderr.contains("no room"), "{full:?}");

    assert_eq!(done(&["grow", &uri, "--size", "32MiB"])[0]["size"], 32 << 20);
    assert_eq!(done(&["detach", &uri, "--host", HOST])[0]["hosts"], serde_json::json!([]));
    longhaul_initiator::open(&as_host).expect_err("it is detached");
    assert_eq!(done(&["attach", &uri, "--host", HOST])[0]["hosts"], serde_json::json!([HOST]));
    assert_eq!(done(&["rm", &uri])[0]["nsids"], serde_json::json!([1]));
    let missing = ns(&["rm", &uri]);
    assert!(missing.code == Some(1) && missing.stderr.contains("has no namespace 1"), "{missing:?}");
    let left: Vec<_> =
        std::fs::read_dir(&path).expect("readable").map(|one| one.expect("read").file_name()).collect();
    assert_eq!(left, ["longhaul-space"]);
    target.stop();
}

#[test]
fn a_target_that_is_killed_serves_its_namespaces_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("space");
    let (mut target, space) = serve(&path, &[]);
    let made = done(&["create", &space, "--size", "1MiB", "--thin", "--host", HOST]);
    signal(&target.child, "KILL");
    target.child.end(PATIENCE).expect("killed");
    let (target, space) = serve(&path, &[]);
    assert_eq!(target.ready["spaces"][0]["namespaces"], 1);
    let listed = done(&["ls", &space]);
    assert_eq!((&listed[0]["uuid"], &listed[0]["nsid"]), (&made[0]["uuid"], &made[0]["nsid"]));
    let refused = longhaul(&["ns", "ls", &space, "--hostnqn", HOST]);
    assert!(refused.code == Some(6) && refused.stderr.contains("--admin"), "{refused:?}");
    target.stop();
}

#[test]
fn a_space_that_any_machine_could_manage_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let space = format!("fast=dir:{}", text(&directory.path().join("space")));
    let beyond = ["target", "--listen", "0.0.0.0:0", "--space", &space, "--admin", ADMIN];
    let ran = longhaul(&beyond);
    assert!(ran.code == Some(2) && ran.stderr.contains("--insecure"), "{ran:?}");
    assert!(!directory.path().join("space").exists(), "nothing was made");
    let ran = longhaul(&["target", "--listen", "127.0.0.1:0", "--space", &space]);
    assert!(ran.code == Some(2) && ran.stderr.contains("--admin"), "{ran:?}");
    std::fs::write(directory.path().join("other"), b"").expect("written");
    let taken = format!("fast=dir:{}", text(directory.path()));
    let ran = longhaul(&["target", "--listen", "127.0.0.1:0", "--space", &taken, "--admin", ADMIN]);
    assert!(ran.code == Some(6) && ran.stderr.contains("empty directory"), "{ran:?}");
}
