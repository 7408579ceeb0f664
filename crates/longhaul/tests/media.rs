//! Real media: a file system that fills up, and a block device of the kernel. Both need
//! root, and are skipped with a message elsewhere.

mod common;

use common::{Target, longhaul, text};
use longhaul_block::Blocking;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let out = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if out.status.success() {
        Ok(text(&out.stdout))
    } else {
        Err(format!("{program}: {}", text(&out.stderr)))
    }
}

/// A small file system, unmounted on drop.
struct Mounted(TempDir);

impl Mounted {
    fn tmpfs(size: &str) -> Result<Mounted, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", text(dir.path())])?;
        Ok(Mounted(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", text(self.path())]);
    }
}

/// A block device on a file.
struct Loop {
    device: String,
    backing: PathBuf,
    _dir: TempDir,
}

impl Loop {
    fn new(size: u64) -> Result<Loop, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let backing = dir.path().join("backing");
        fs::File::create(&backing).and_then(|file| file.set_len(size)).map_err(|e| e.to_string())?;
        let device = run("losetup", &["--find", "--show", text(&backing)])?;
        Ok(Loop { device, backing, _dir: dir })
    }

    /// Bytes allocated to the backing file.
    fn allocated(&self) -> u64 {
        fs::metadata(&self.backing).expect("backing file").blocks() * 512
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.device]);
    }
}

/// The value, or `None` with the reason on stderr.
fn need<T>(got: Result<T, String>) -> Option<T> {
    got.map_err(|reason| longhaul_skip::skip!("needs root: {reason}")).ok()
}

#[test]
fn a_full_disk_fails_the_write_that_does_not_fit_and_nothing_else() {
    let Some(disk) = need(Mounted::tmpfs("16m")) else { return };
    let export = format!("x=file:{},size=64MiB", text(&disk.path().join("disk")));
    let target = Target::start(&[&export], &[]);
    let uri = target.uri(0);
    let device = Blocking::open(longhaul_initiator::open(&uri).expect("connected")).expect("opened");
    let block = vec![0x5a; MIB as usize];
    device.write_at(&block, 0).expect("space for one block");

    let ran = longhaul(&["bench", &uri, "--rw", "write", "--bs", "1m", "--size", "64m"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("no space left"), "{}", ran.stderr);

    // Acknowledged data is there, reads are served, and writes are served again
    // once space is free.
    let mut back = vec![0; MIB as usize];
    device.read_at(&mut back, 60 * MIB).expect("reads of blocks that were never written");
    device.write_at(&block, 0).expect("writes to space that is allocated");
    device.discard(MIB, 63 * MIB).expect("discarded");
    device.write_at(&block, 40 * MIB).expect("space is free again");
    device.read_at(&mut back, 40 * MIB).expect("read");
    assert_eq!(back, block);
    drop(device);
    target.stop();
}

#[test]
fn a_data_set_that_does_not_fit_on_its_disk_is_a_clear_error() {
    let Some(disk) = need(Mounted::tmpfs("1m")) else { return };
    let dir = disk.path().join("data");
    let ran = longhaul(&["dataset", "make", "equal", "--scale", "16MiB", text(&dir)]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("bytes free") && ran.stderr.contains(text(&dir)), "{}", ran.stderr);
}

#[test]
fn a_block_device_is_served_and_gives_space_back() {
    let Some(disk) = need(Loop::new(64 * MIB)) else { return };
    let target = Target::start(&[&format!("x=block:{}", disk.device)], &[]);
    let uri = target.uri(0);
    let ran =
        longhaul(&["bench", &uri, "--rw", "randrw", "--bs", "4k", "--iodepth", "16", "--runtime", "300ms"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);

    let device = Blocking::open(longhaul_initiator::open(&uri).expect("connected")).expect("opened");
    assert_eq!(device.info().size, 64 * MIB);
    let block: Vec<u8> = (0..MIB as usize).map(|i| (i % 251) as u8 + 1).collect();
    for at in 0..64 {
        device.write_at(&block, at * MIB).expect("written");
    }
    device.flush().expect("flushed");
    let full = disk.allocated();
    assert!(full >= 64 * MIB, "{full} bytes hold 64 MiB");
    // The data is on the medium, not only in a cache.
    let content = fs::read(&disk.backing).expect("read");
    assert!(content.chunks(MIB as usize).all(|chunk| chunk == block));

    device.discard(32 * MIB, 32 * MIB).expect("discarded");
    device.flush().expect("flushed");
    assert!(disk.allocated() <= full - 31 * MIB, "{} of {full} bytes are left", disk.allocated());
    let mut back = vec![1; MIB as usize];
    device.read_at(&mut back, 40 * MIB).expect("read");
    assert!(back.iter().all(|&b| b == 0), "a hole reads as zeroes");
    device.read_at(&mut back, 31 * MIB).expect("read");
    assert_eq!(back, block);
    drop(device);
    target.stop();
}

#[test]
fn a_block_device_with_a_mounted_file_system_is_refused() {
    let Some(disk) = need(Loop::new(64 * MIB)) else { return };
    let made = run("mke2fs", &["-q", &disk.device]);
    let Some(dir) = need(made.and_then(|_| tempfile::tempdir().map_err(|e| e.to_string()))) else { return };
    let Some(_) = need(run("mount", &[&disk.device, text(dir.path())])) else { return };
    let mounted = Mounted(dir);
    let export = format!("x=block:{}", disk.device);
    let ran = longhaul(&["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--export", &export]);
    drop(mounted);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains(&disk.device) && ran.stderr.contains("mounted"), "{}", ran.stderr);
}
