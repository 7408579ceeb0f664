//! Verbs that write to a device refuse content that they find there.

mod common;

use common::{command, finish, longhaul, text};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const SIZE: u64 = 16 << 20;

/// Signatures of formats: name, offset and bytes.
const KINDS: [(&str, u64, &[u8]); 4] = [
    ("XFS", 0, b"XFSB"),
    ("LVM", 512, b"LABELONE"),
    ("GPT", 512, b"EFI PART"),
    ("md array", SIZE - 8192, b"\xfc\x4e\x2b\xa9"),
];

struct Testbed(TempDir);

impl Testbed {
    fn new() -> Testbed {
        Testbed(tempfile::tempdir().expect("a directory"))
    }

    fn disk(&self, name: &str, content: Option<(u64, &[u8])>) -> PathBuf {
        let path = self.0.path().join(name);
        let file = fs::File::create(&path).expect("made");
        file.set_len(SIZE).expect("sized");
        if let Some((at, bytes)) = content {
            file.write_all_at(bytes, at).expect("written");
        }
        path
    }

    fn array(&self, args: &[&str]) -> common::Ran {
        let mut command = command(&[&["array"], args].concat());
        command.env("XDG_STATE_HOME", self.0.path()).env("XDG_RUNTIME_DIR", self.0.path());
        finish(command.spawn().expect("started"))
    }
}

fn refused(ran: &common::Ran, disk: &Path, kind: &str) {
    assert_eq!(ran.code, Some(6), "{}", ran.stderr);
    for part in [text(disk), kind, "--force"] {
        assert!(ran.stderr.contains(part), "'{part}' is not in {}", ran.stderr);
    }
}

#[test]
fn an_array_takes_no_device_with_content_without_force() {
    let testbed = Testbed::new();
    let (a, b) = (testbed.disk("a", None), testbed.disk("b", None));
    let create = |name: &str, disk: &Path, force: &[&str]| {
        let args = ["create", name, "--layout", "mirror", "--device", text(&a), "--device", text(disk)];
        testbed.array(&[&args[..], force].concat())
    };
    for (kind, at, bytes) in KINDS {
        let disk = testbed.disk("used", Some((at, bytes)));
        let before = fs::read(&disk).expect("read");
        refused(&create("x", &disk, &[]), &disk, kind);
        assert!(fs::read(&disk).expect("read") == before, "{kind}: nothing was written");
    }
    assert_eq!(create("x", &b, &[]).code, Some(0));

    // The same for devices that join the array later.
    let disk = testbed.disk("used", Some((0, b"XFSB")));
    refused(&testbed.array(&["add-spare", "x", "--device", text(&disk)]), &disk, "XFS");
    refused(&testbed.array(&["replace", "x", "--member", "1", "--device", text(&disk)]), &disk, "XFS");
    assert!(fs::read(&disk).expect("read").starts_with(b"XFSB"), "nothing was written");
    let forced = testbed.array(&["add-spare", "x", "--device", text(&disk), "--force"]);
    assert_eq!(forced.code, Some(0), "{}", forced.stderr);
}

#[test]
fn a_load_that_writes_takes_no_device_with_a_signature_without_force() {
    let testbed = Testbed::new();
    let bench = |disk: &Path, rw: &str, force: &[&str]| {
        let args = ["bench", text(disk), "--rw", rw, "--bs", "64k", "--size", "1m"];
        longhaul(&[&args[..], force].concat())
    };
    for (kind, at, bytes) in KINDS {
        let disk = testbed.disk("used", Some((at, bytes)));
        let before = fs::read(&disk).expect("read");
        refused(&bench(&disk, "randwrite", &[]), &disk, kind);
        assert!(fs::read(&disk).expect("read") == before, "{kind}: nothing was written");
        assert_eq!(bench(&disk, "read", &[]).code, Some(0), "{kind}: reading harms nothing");
    }
    let disk = testbed.disk("used", Some((0, b"XFSB")));
    assert_eq!(bench(&disk, "write", &["--force"]).code, Some(0));
    // The data of an earlier load is not refused.
    assert_eq!(bench(&disk, "randrw", &[]).code, Some(0));
    let member = testbed.array(&[
        "create",
        "x",
        "--layout",
        "mirror",
        "--device",
        text(&testbed.disk("a", None)),
        "--device",
        text(&testbed.disk("b", None)),
    ]);
    assert_eq!(member.code, Some(0), "{}", member.stderr);
    let disk = testbed.0.path().join("a");
    refused(&bench(&disk, "write", &[]), &disk, "Longhaul array");
    // A member of an array is not attached alone either.
    let at = testbed.0.path().join("at");
    let attached = longhaul(&["attach", text(&disk), "--at", text(&at), "--foreground", "--via", "fuse"]);
    refused(&attached, &disk, "member of an array");
}
