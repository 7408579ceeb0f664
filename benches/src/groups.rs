//! The measurements, a group a file.

pub(crate) mod arrays;
pub(crate) mod attached;
pub(crate) mod far;
pub(crate) mod file;
pub(crate) mod idle;
pub(crate) mod memory;
pub(crate) mod parity;
pub(crate) mod pools;
pub(crate) mod random;
pub(crate) mod security;
pub(crate) mod soak;
pub(crate) mod stream;
pub(crate) mod transfer;

use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// `statfs` types of file systems without a disk.
const IN_MEMORY: [libc::c_long; 2] = [libc::TMPFS_MAGIC as libc::c_long, RAMFS_MAGIC];
const RAMFS_MAGIC: libc::c_long = 0x8584_58f6;

/// Bits per second in Mb/s, from bytes per second.
const MB: f64 = 1e6 / 8.0;

/// Bytes of one write when a file is laid out.
const CHUNK: usize = 1 << 20;

/// A file on the disk without holes, removed with its directory when dropped.
#[derive(Debug)]
struct DiskFile {
    path: PathBuf,
    _dir: TempDir,
}

impl DiskFile {
    fn lay_out(setup: &Setup) -> Result<DiskFile> {
        on_disk(&setup.dir)?;
        let dir = tempfile::Builder::new()
            .prefix("longhaul-benches-")
            .tempdir_in(&setup.dir)
            .with_context(|| format!("cannot make a directory in {}", setup.dir.display()))?;
        let path = dir.path().join("device");
        let mut file = File::create_new(&path)?;
        let mut chunk = vec![0u8; CHUNK];
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..setup.size / CHUNK as u64 {
            // Content that nothing on the way compresses.
            random.fill(&mut chunk);
            file.write_all(&chunk).context("laying out the file to measure with")?;
        }
        file.sync_all()?;
        Ok(DiskFile { path, _dir: dir })
    }

    /// As a back end of the program.
    fn backend(&self) -> String {
        format!("file:{}", self.path.display().to_string().replace(',', ",,"))
    }
}

fn on_disk(dir: &Path) -> Result<()> {
    let name = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes())?;
    // SAFETY: plain numbers, for which zero is a valid value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a string with its end, and room for the result.
    let result = unsafe { libc::statfs(name.as_ptr(), &raw mut stat) };
    ensure!(result == 0, "there is no directory {}; name one with --dir", dir.display());
    let in_memory = IN_MEMORY.contains(&(stat.f_type as libc::c_long));
    ensure!(!in_memory, "{} is in memory; name a directory on a disk with --dir", dir.display());
    Ok(())
}

/// A size as fio and people write block sizes.
fn block_size(bs: u64) -> String {
    if bs >= 1 << 20 { format!("{} MiB", bs >> 20) } else { format!("{} KiB", bs >> 10) }
}

/// The back end of devices in memory.
fn memory_backend(setup: &Setup) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1, "")];
    let (unit, name) =
        units.into_iter().find(|(unit, _)| setup.size.is_multiple_of(*unit)).unwrap_or((1, ""));
    format!("mem:{}{name}", setup.size / unit)
}

/// `--engine KIND` for people: which series this is.
fn subject(setup: &Setup, engine: &str) -> String {
    if setup.engines.len() > 1 { format!(" ({engine})") } else { String::new() }
}

/// The commands of a target and a load, for people to run themselves.
fn commands(setup: &Setup, backend: &str, target: &str, load: &str) -> Vec<String> {
    let shared = format!("--congestion {}", setup.congestion);
    vec![
        format!(
            "{}longhaul target --export bench={backend} --threads 1 {shared}{target}",
            setup.target.prefix()
        ),
        format!("{}longhaul bench URI {load} {shared}", setup.load.prefix()),
    ]
}

/// `--runtime` and `--ramp` as they are.
fn window(setup: &Setup) -> String {
    format!("--runtime {}ms --ramp {}ms", setup.runtime.as_millis(), setup.ramp.as_millis())
}
