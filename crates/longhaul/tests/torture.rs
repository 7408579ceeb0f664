//! File systems on remote devices, under loads that know the expected content: this repository's
//! own kinds of fsx and fsstress, and fio's verification. They need root, FUSE, a loop device,
//! `/dev/net/tun` and (some) fio, and are skipped with the reason otherwise.
//!
//! `LONGHAUL_TORTURE` multiplies the lengths of all of them, and `LONGHAUL_TORTURE_SEED` gives them
//! other seeds.

mod common;

use common::testbed::{FILE_SYSTEMS, Testbed};
use common::{number, text};
use longhaul_torture::fsx::Fsx;
use longhaul_torture::stress::Plan;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Steps of fsx, and changes of each worker.
const STEPS: u64 = 500;
const CHANGES: u64 = 250;
const WORKERS: u64 = 4;

fn length(usual: u64) -> u64 {
    usual * number("LONGHAUL_TORTURE", 1)
}

fn seed() -> u64 {
    number("LONGHAUL_TORTURE_SEED", 1)
}

#[test]
fn one_file_is_what_was_done_to_it() {
    for fs in FILE_SYSTEMS {
        let Some(testbed) = Testbed::new(fs) else { return };
        testbed.mount();
        let mut runs: Vec<Fsx> = Vec::new();
        for n in 0..2 {
            let path = testbed.at().join(format!("file-{n}"));
            let mut fsx = Fsx::new(&path, seed() * 100 + n).expect("a file");
            fsx.run(length(STEPS)).unwrap_or_else(|e| panic!("{fs}: {e:?}"));
            // Both file systems do all there is, so that all is tested.
            assert!(fsx.refused().is_empty(), "{fs}: {:?}", fsx.refused());
            runs.push(fsx);
        }
        let content: Vec<Vec<u8>> = runs.iter().map(|fsx| fsx.content().to_vec()).collect();
        drop(runs);
        testbed.umount();
        testbed.check(fs);
        testbed.mount();
        for (n, content) in content.iter().enumerate() {
            let found = fs::read(testbed.at().join(format!("file-{n}"))).expect("read");
            assert!(found == *content, "{fs}: file-{n} has changed, seed {}", seed());
        }
        testbed.umount();
    }
}

#[test]
fn trees_are_what_was_done_to_them() {
    for fs in FILE_SYSTEMS {
        let Some(testbed) = Testbed::new(fs) else { return };
        testbed.mount();
        let plan = Plan { workers: WORKERS, changes: length(CHANGES), seed: seed() };
        plan.run(&testbed.at()).unwrap_or_else(|e| panic!("{fs}: {e:?}"));
        testbed.umount();
        testbed.check(fs);
        testbed.mount();
        let files = plan.check(&testbed.at()).unwrap_or_else(|e| panic!("{fs}: {e:?}"));
        assert!(files > 100, "{fs}: only {files} files");
        testbed.umount();
    }
}

/// Writes and reads back with checksums; false where there is no fio.
fn fio(path: &Path, more: &[&str]) -> bool {
    let mut fio = Command::new("fio");
    fio.args(["--name=verify", "--ioengine=libaio", "--iodepth=32", "--rw=randwrite"]);
    fio.args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0"]);
    fio.args(["--bsrange=4k-256k", "--size=24m", "--fsync=40"]).args(more);
    let seed = format!("--randseed={}", seed());
    let ran = match fio.arg(seed).arg(format!("--filename={}", path.display())).output() {
        Err(e) => {
            longhaul_skip::skip!("fio: {e}");
            return false;
        }
        Ok(ran) => ran,
    };
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("err= 0"), "{said}");
    true
}

#[test]
fn fio_finds_what_it_wrote_on_the_raw_device() {
    let Some(testbed) = Testbed::new("ext4") else { return };
    let disk = testbed.dir.path().join("raw");
    testbed.good(&["attach", &testbed.uri(), "--at", text(&disk)]);
    for direct in ["--direct=1", "--direct=0"] {
        if !fio(&disk, &[direct, "--offset=8m"]) {
            break;
        }
    }
    testbed.good(&["detach", text(&disk)]);
}

#[test]
fn fio_finds_what_it_wrote_in_files() {
    for fs in FILE_SYSTEMS {
        let Some(testbed) = Testbed::new(fs) else { return };
        testbed.mount();
        for direct in ["--direct=1", "--direct=0"] {
            if !fio(&testbed.at().join("file"), &[direct, "--fallocate=none"]) {
                break;
            }
        }
        testbed.umount();
        testbed.check(fs);
    }
}
