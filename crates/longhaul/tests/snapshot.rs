//! Snapshots of volumes at targets that run as programs.

mod common;

use common::site::{ADMIN, Site};
use common::{PATIENCE, Running, command, until};
use serde_json::json;

/// The program with the state of the host that manages the pool.
fn start(site: &Site, args: &[&str]) -> Running {
    let mut command = command(&[&["--json"], args, &["--hostnqn", ADMIN]].concat());
    command.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    Running(command.spawn().expect("started"))
}

fn load<'a>(device: &'a str, rw: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let args = ["bench", device, "--rw", rw, "--bs", "64k", "--size", "32m", "--verify", "crc32c"];
    [&args[..], more].concat()
}

/// Writes all blocks of a volume, or verifies that each is whole.
fn bench(site: &Site, device: &str, rw: &str) {
    let ran = site.run(&load(device, rw, &[]));
    assert_eq!(ran.code, Some(0), "{rw} {device}: {ran:?}");
}

#[test]
fn a_snapshot_under_a_load_is_whole_and_lives_on_without_its_source() {
    let Some(xfs) = longhaul_skip::Xfs::mounted(1 << 30) else { return };
    let mut site = Site::below(xfs.path(), 4);
    site.create();
    for (name, layout, width) in [("v", "parity", "3"), ("m", "mirror", "2"), ("s", "single", "1")] {
        let (volume, device) = (format!("p/{name}"), format!("volume:p/{name}"));
        let shape = ["--size", "48MiB", "--layout", layout, "--width", width];
        site.done(&[&["volume", "create", &volume], &shape[..]].concat());
        bench(&site, &device, "write");
        let more = ["--iodepth", "4", "--time_based", "--runtime", "60s"];
        let mut writes = start(&site, &load(&device, "randwrite", &more));
        let info = || site.last(&["volume", "info", &volume]);
        until("the load to run", || layout == "single" || info()["health"] == json!("healthy"));
        for number in 0..3 {
            let to = format!("{name}{number}");
            let made = site.last(&["volume", "snapshot", &volume, &to]);
            assert_eq!((&made["of"], &made["device"]), (&json!(device), &json!(format!("volume:p/{to}"))));
            let held = made["held_seconds"].as_f64().expect("a number");
            assert!(held < 15.0 && (held > 0.0) == (layout != "single"), "{made}");
        }
        common::signal(&writes, "INT");
        writes.end(PATIENCE).expect("ends");
        let first = format!("p/{name}0");
        let shown = site.last(&["volume", "info", &first]);
        assert_eq!((&shown["snapshot_of"]["name"], &shown["thin"]), (&json!(name), &json!(true)));
        for number in 0..3 {
            bench(&site, &format!("volume:p/{name}{number}"), "read");
        }
        // Neither changes the other one.
        bench(&site, &format!("volume:{first}"), "write");
        bench(&site, &device, "read");
        let listed = site.done(&["volume", "ls", "p"]);
        let of = listed.iter().filter(|volume| volume["snapshot_of"] == json!(name)).count();
        assert_eq!(of, 3, "{listed:?}");
        site.done(&["volume", "rm", &volume]);
        bench(&site, &format!("volume:p/{name}2"), "read");
        for number in 0..3 {
            site.done(&["volume", "rm", &format!("p/{name}{number}")]);
        }
        assert_eq!(site.files(), 0);
    }
    // A target that is away is one member less, which can be missing, and no snapshot without it.
    site.done(&["volume", "create", "p/v", "--size", "48MiB", "--layout", "parity", "--width", "4"]);
    let lost = site.kill(1);
    let refused = site.refused(6, &["volume", "snapshot", "p/v", "w"]);
    assert!(refused.contains("is missing: wait for it"), "{refused}");
    site.restart(1, &lost);
    site.done(&["volume", "snapshot", "p/v", "w"]);
    let status = site.last(&["pool", "status", "p"]);
    assert_eq!((&status["volumes"], &status["pending"]), (&json!(2), &json!([])), "{status}");
}

#[test]
fn where_files_share_no_blocks_a_snapshot_is_refused_with_a_sentence() {
    let site = Site::new(3);
    site.create();
    site.done(&["volume", "create", "p/v", "--size", "48MiB", "--layout", "parity"]);
    let files = site.files();
    let ran = site.run(&["volume", "snapshot", "p/v", "w"]);
    if ran.code == Some(0) {
        return longhaul_skip::skip!("files share blocks in {}", site.directory.path().display());
    }
    assert_eq!(ran.code, Some(6), "{ran:?}");
    for part in ["cannot clone a namespace at target", "does not clone namespaces", "reflink=1"] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    assert_eq!(site.files(), files);
    assert_eq!(site.last(&["pool", "status", "p"])["pending"], json!([]));
    assert_eq!(site.last(&["volume", "ls", "p"])["volumes"], 1);
}
