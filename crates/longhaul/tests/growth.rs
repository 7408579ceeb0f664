//! Volumes that grow while they are attached and mounted: what is on this host follows. The tests are skipped
//! with a message where FUSE, root, loop devices or file systems are missing.

mod common;

use common::site::{ADMIN, Site};
use common::{Ran, command, finish, mounts_below, text, until};
use std::fs::{self, File, OpenOptions};
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// Targets, and what this host has attached below their directory: of a test that fails it is taken away.
struct Attached(Site);

impl Deref for Attached {
    type Target = Site;
    fn deref(&self) -> &Site {
        &self.0
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let left = mounts_below(self.directory.path());
        for at in &left {
            for verb in ["umount", "detach"] {
                drop(end(self, verb, Path::new(at)));
            }
            let _ = Command::new("umount").args(["--lazy", "--quiet", at]).status();
        }
        assert!(std::thread::panicking() || left.is_empty(), "left behind: {left:?}");
    }
}

/// Runs the program as the host that uses the volumes.
fn run(site: &Site, args: &[&str]) -> Ran {
    let mut command = command(&[args, &["--hostnqn", ADMIN]].concat());
    command.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    finish(command.spawn().expect("started"))
}

fn good(site: &Site, args: &[&str]) -> Ran {
    let ran = run(site, args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    ran
}

/// Ends the attachment at a path. These verbs know no host NQN.
fn end(site: &Site, verb: &str, at: &Path) -> Ran {
    let mut command = command(&[verb, text(at)]);
    command.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    finish(command.spawn().expect("started"))
}

fn detach(site: &Site, verb: &str, at: &Path) {
    let ran = end(site, verb, at);
    assert_eq!(ran.code, Some(0), "{verb}: {}", ran.stderr);
}

/// A site with the pool `p` and the volumes `p/v` of an array and `p/s` of one namespace.
fn site(size: &str) -> Attached {
    let site = Attached(Site::new(3));
    site.create();
    site.done(&["volume", "create", "p/v", "--size", size, "--layout", "parity"]);
    site.done(&["volume", "create", "p/s", "--size", size, "--layout", "single"]);
    site
}

#[test]
fn an_attached_file_has_the_size_of_its_volume() {
    if !longhaul_skip::can_open(&["/dev/fuse"]) {
        return;
    }
    let site = site("48MiB");
    for name in ["v", "s"] {
        let (at, volume) = (site.path(name), format!("p/{name}"));
        good(&site, &["attach", &format!("volume:{volume}"), "--via", "fuse", "--at", text(&at)]);
        // Open since before: programs that use it see it grow.
        let file = OpenOptions::new().read(true).write(true).open(&at).expect("opened");
        let before = file.metadata().expect("known").len();
        assert!((48 * MIB..60 * MIB).contains(&before), "{name}: {before}");
        site.done(&["volume", "resize", &volume, "--size", "80MiB"]);
        until("the file to have the new size", || file.metadata().expect("known").len() >= 80 * MIB);
        file.write_all_at(&[7; 4096], 79 * MIB).expect("written in what is new");
        file.sync_all().expect("durable");
        let mut read = [0; 4096];
        file.read_exact_at(&mut read, 79 * MIB).expect("read");
        assert_eq!(read, [7; 4096]);
        drop(file);
        // The record is written after the file has grown.
        until("the list to have the new size", || {
            let listed = good(&site, &["attach", "--list", "--json"]).events();
            listed[0]["size"].as_u64().is_some_and(|size| size >= 80 * MIB)
        });
        detach(&site, "detach", &at);
    }
}

#[test]
fn a_mounted_file_system_can_grow_with_its_volume() {
    if !longhaul_skip::can_open(&["/dev/fuse"]) {
        return;
    }
    if let Err(e) = File::open("/dev/loop-control") {
        return longhaul_skip::skip!("needs loop devices: {e}");
    }
    if !is_root() {
        return longhaul_skip::skip!("needs root, to mount");
    }
    for program in ["mkfs.xfs", "xfs_growfs"] {
        if let Err(e) = Command::new(program).arg("-V").output() {
            return longhaul_skip::skip!("{program}: {e}");
        }
    }
    let site = Attached(Site::new(3));
    site.create();
    let (at, device) = (site.path("mnt"), "volume:p/v");
    // XFS takes no less.
    let made = ["volume", "create", "p/v", "--size", "320MiB", "--layout", "parity", "--thin", "--fs", "xfs"];
    site.done(&made);
    fs::create_dir(&at).expect("made");
    let ready = good(&site, &["mount", device, text(&at), "--via", "fuse", "--json"]).events();
    let block = ready[0]["loop"].as_str().expect("a loop device").to_owned();
    fs::write(at.join("before"), "there").expect("written");
    let (loop_before, room_before) = (block_size(&block), room(&at));
    site.done(&["volume", "resize", "p/v", "--size", "400MiB"]);
    until("the loop device to have the new size", || block_size(&block) >= 400 * MIB);
    assert!(loop_before < 340 * MIB, "{loop_before}");
    let grown = Command::new("xfs_growfs").arg(&at).output().expect("run");
    assert!(grown.status.success(), "{}", String::from_utf8_lossy(&grown.stderr));
    let more = room(&at) - room_before;
    assert!(more > 70 * MIB, "{more} more bytes");
    fs::write(at.join("after"), vec![5; 8 << 20]).expect("written");
    detach(&site, "umount", &at);
    let again = good(&site, &["mount", device, text(&at), "--via", "fuse", "--json"]).events();
    assert!(again[0]["size"].as_u64().is_some_and(|size| size >= 400 * MIB), "{again:?}");
    assert_eq!(fs::read_to_string(at.join("before")).expect("read"), "there");
    assert!(fs::read(at.join("after")).expect("read").iter().all(|byte| *byte == 5));
    detach(&site, "umount", &at);
}

/// Bytes of the file system at a path.
fn room(at: &Path) -> u64 {
    let stat = rustix::fs::statvfs(at).expect("mounted");
    stat.f_blocks * stat.f_frsize
}

/// Bytes of a block device.
fn block_size(device: &str) -> u64 {
    let name = Path::new(device).file_name().expect("a name").to_str().expect("text");
    let sectors = fs::read_to_string(format!("/sys/block/{name}/size")).expect("read");
    sectors.trim().parse::<u64>().expect("a number") * 512
}

fn is_root() -> bool {
    longhaul_engine::procfs::Process::own()
        .status("Uid")
        .is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0"))
}

#[test]
fn a_client_of_nbd_sees_the_size_of_its_connection() {
    let site = site("48MiB");
    let socket = site.path("nbd");
    let mut serve =
        command(&["nbd", "--export", "v=volume:p/v", "--unix", text(&socket), "--json", "--hostnqn", ADMIN]);
    serve.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
    let served = common::Target::spawn(serve);
    let size = || nbd_size(&socket, "v");
    let before = size();
    assert!((48 * MIB..60 * MIB).contains(&before), "{before}");
    site.done(&["volume", "resize", "p/v", "--size", "80MiB"]);
    until("a new client to see the new size", || size() >= 80 * MIB);
    served.stop();
}

/// The size that an NBD server gives a client that asks for an export (NBD_OPT_EXPORT_NAME).
fn nbd_size(socket: &Path, export: &str) -> u64 {
    use std::io::{Read, Write};
    let mut socket = std::os::unix::net::UnixStream::connect(socket).expect("connected");
    let mut hello = [0; 18];
    socket.read_exact(&mut hello).expect("a greeting");
    let mut asked = 3u32.to_be_bytes().to_vec();
    asked.extend(b"IHAVEOPT");
    asked.extend(1u32.to_be_bytes());
    asked.extend((export.len() as u32).to_be_bytes());
    asked.extend(export.as_bytes());
    socket.write_all(&asked).expect("sent");
    let mut size = [0; 8];
    socket.read_exact(&mut size).expect("a size");
    u64::from_be_bytes(size)
}
