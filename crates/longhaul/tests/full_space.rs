//! A space whose file system is full, under a thin volume with parity: the volume reports that to its writer,
//! nothing that was acknowledged is lost, and writes go on once there is space. It needs root, to mount small file systems.

mod common;

use common::site::{ADMIN, Site};
use common::{Target, command, connect, text, until};
use longhaul_block::{Blocking, IoError};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
/// Bytes of the small file system, and what is left there before the volume is written to.
const SMALL: u64 = 48 * MIB;
const LEFT: u64 = 6 * MIB;
/// Bytes of a write: a part of a stripe unit.
const BLOCK: usize = 64 << 10;

/// A small file system that is mounted until this is dropped.
struct Small(PathBuf);

impl Small {
    /// `None`, with the reason on standard error, where it cannot be made or mounted.
    fn mounted(kind: &str, at: &Path) -> Option<Small> {
        fs::create_dir(at).expect("made");
        let run = |program: &str, args: &[&str]| {
            let ran = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
            let why = || format!("{program}: {}", String::from_utf8_lossy(&ran.stderr));
            if ran.status.success() { Ok(()) } else { Err(why()) }
        };
        let image = at.with_extension("img");
        let mounted = if kind == "tmpfs" {
            run("mount", &["-t", "tmpfs", "-o", &format!("size={SMALL}"), "tmpfs", text(at)])
        } else {
            File::create(&image).and_then(|file| file.set_len(SMALL)).expect("a file");
            run(&format!("mkfs.{kind}"), &["-q", text(&image)])
                .and_then(|()| run("mount", &["-o", "loop", text(&image), text(at)]))
        };
        match mounted {
            Ok(()) => Some(Small(at.to_owned())),
            Err(why) => {
                longhaul_skip::skip!("{kind}: {why}");
                None
            }
        }
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.0).expect("mounted");
        stat.f_bavail * stat.f_frsize
    }

    /// Others take what is free, but for `left` bytes.
    fn take_all_but(&self, left: u64) {
        let mut file = File::create(self.ballast()).expect("a file");
        while self.free() > left {
            let some = (self.free() - left).min(MIB);
            file.write_all(&vec![1; some as usize]).expect("written");
            file.sync_all().expect("durable");
        }
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn content(block: usize) -> Vec<u8> {
    (0..BLOCK).map(|at| (at / 512) as u8 ^ (block as u8).wrapping_mul(37) ^ 0x5A).collect()
}

/// Reads the blocks that were acknowledged, and compares them.
fn verify(device: &Blocking, blocks: &[usize]) {
    for block in blocks {
        let mut read = vec![0; BLOCK];
        device.read_at(&mut read, (block * BLOCK) as u64).expect("read");
        assert!(read == content(*block), "block {block} has another content");
    }
}

/// Serves the volume from the host that manages the pool.
fn head(site: &Site) -> Target {
    let args = ["target", "--json", "--discovery", "none", "--threads", "1", "--listen", "127.0.0.1:0"];
    let mut command = command(&[&args[..], &["--export", "x=volume:p/v", "--hostnqn", ADMIN]].concat());
    command.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    Target::spawn(command)
}

fn a_full_space_loses_nothing(kind: &str) {
    let mut site = Site::new(0);
    let Some(small) = Small::mounted(kind, &site.path("small")) else { return };
    fs::create_dir(small.0.join("space")).expect("made");
    symlink(small.0.join("space"), site.path("space0")).expect("a link");
    for number in 0..4 {
        let target = site.serve(number, "127.0.0.1:0");
        site.targets.push(Some(target));
    }
    site.create();
    let shape = ["--size", "72MiB", "--layout", "parity", "--width", "4", "--thin"];
    site.done(&[&["volume", "create", "p/v"], &shape[..]].concat());
    let before = site.last(&["volume", "info", "p/v"]);
    small.take_all_but(LEFT);

    // A writer fills it, and gets the error.
    let served = head(&site);
    let device = connect(&served.uri(0)).expect("connected");
    let (mut acknowledged, mut refused) = (Vec::new(), None);
    for block in 0..72 * MIB as usize / BLOCK {
        match device.write_at(&content(block), (block * BLOCK) as u64) {
            Ok(()) => acknowledged.push(block),
            Err(e) => {
                refused = Some((block, e));
                break;
            }
        }
    }
    let (refused, why) = refused.expect("the space was not full");
    assert_eq!(why, IoError::NoSpace, "{kind}: block {refused}");
    assert!(why.to_string().contains("space"), "{why}");
    assert!(acknowledged.len() > 16, "{kind}: {} writes", acknowledged.len());
    // Each further write is refused or taken as a whole.
    let mut taken = acknowledged.clone();
    for block in refused..refused + 64 {
        match device.write_at(&content(block), (block * BLOCK) as u64) {
            Ok(()) => taken.push(block),
            Err(e) => assert_eq!(e, IoError::NoSpace, "{kind}: block {block}"),
        }
    }
    verify(&device, &taken);

    // Catalog and labels are as they were, and all members are in use.
    let info = |site: &Site| site.last(&["volume", "info", "p/v"]);
    let now = info(&site);
    assert_eq!(now["health"], json!("healthy"), "{kind}: {now}");
    for field in ["uuid", "size", "members"] {
        assert_eq!(now[field], before[field], "{kind}: {field}");
    }
    let status = site.last(&["pool", "status", "p"]);
    assert_eq!((&status["volumes"], &status["pending"]), (&json!(1), &json!([])), "{status}");

    // The target of the full space is killed, and starts again there.
    let address = site.kill(0);
    verify(&device, &taken);
    site.restart(0, &address);
    // It may have no space for what was written meanwhile, and waits for it.
    verify(&device, &taken);
    let failed = |site: &Site| info(site)["health"] == json!("halted");
    assert!(!failed(&site), "{kind}: {}", info(&site));
    assert_eq!(site.last(&["pool", "status", "p"])["pending"], json!([]));

    // There is space again.
    fs::remove_file(small.ballast()).expect("removed");
    until("a write", || device.write_at(&content(refused), (refused * BLOCK) as u64).is_ok());
    taken.push(refused);
    for block in refused + 64..refused + 128 {
        device.write_at(&content(block), (block * BLOCK) as u64).expect("there is space");
        taken.push(block);
    }
    device.flush().expect("flushed");
    verify(&device, &taken);
    until("the member to be whole", || info(&site)["health"] == json!("healthy"));
    verify(&device, &taken);
    drop(device);
    served.stop();
    let served = head(&site);
    verify(&connect(&served.uri(0)).expect("connected"), &taken);
    served.stop();
    site.done(&["volume", "rm", "p/v"]);
    assert_eq!(site.files(), 0);
    site.targets.clear();
}

#[test]
fn a_full_tmpfs_loses_nothing() {
    a_full_space_loses_nothing("tmpfs");
}

#[test]
fn a_full_ext4_loses_nothing() {
    a_full_space_loses_nothing("ext4");
}
