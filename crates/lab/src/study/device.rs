//! Devices of a study, attached as a file or with a mounted file system, and loads on many
//! files at a time.
//!
//! Invariant: a device is detached or unmounted before the target that serves it ends.

use super::links::{Links, Server};
use super::{Results, Settings};
use crate::filesystems::{DeviceFormat, Load};
use crate::self_exec::program;
use crate::{Error, Outcome};
use longhaul_results::record::Validity;
use rustix::fs::{FallocateFlags, fallocate, syncfs};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Timeout of I/O on a lost connection, so that a study does not hang.
const LOSS_TIMEOUT: &str = "60s";
/// Ramp before a window: a time, plus a number of round trips.
const RAMP: Duration = Duration::from_millis(300);
const RAMP_ROUND_TRIPS: u32 = 30;

/// Why this machine cannot use a format, if so.
pub(super) fn missing(format: DeviceFormat) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let made_by = format!("mkfs.{}", format.name());
    let is_root = rustix::process::geteuid().is_root();
    if !Path::new("/dev/fuse").exists() {
        return Some("this machine has no FUSE (/dev/fuse)".into());
    }
    match format {
        DeviceFormat::Raw => None,
        _ if !is_root => Some("to mount a file system takes root".into()),
        _ if !Path::new("/dev/loop-control").exists() => Some("this machine has no loop devices".into()),
        _ if !std::env::split_paths(&path).any(|dir| dir.join(&made_by).exists()) => {
            Some(format!("{made_by} is not installed"))
        }
        _ => None,
    }
}

/// An attached or mounted device and the process that serves it. Dropping it detaches or unmounts.
pub(super) struct AttachedDevice {
    pub(super) kind: DeviceFormat,
    /// The file of the device, or the mount point.
    pub(super) path: PathBuf,
    server: Server,
}

impl AttachedDevice {
    /// Attaches the devices at `path`, or creates a file system on them and mounts it there
    /// with the options `more`. Several devices are striped. Their content is lost.
    pub(super) fn new(
        links: &Links,
        path: &Path,
        kind: DeviceFormat,
        uris: &[String],
        more: &[&str],
    ) -> Result<AttachedDevice, Error> {
        let command = |verb: &str, options: &[&str]| -> Result<Command, Error> {
            let mut command = links.command()?;
            command.arg(verb).args(["--ctrl-loss-timeout", LOSS_TIMEOUT]).args(options);
            command.args((uris.len() > 1).then_some(["--layout", "stripe"]).into_iter().flatten());
            command.args(uris);
            Ok(command)
        };
        let serve = match kind {
            DeviceFormat::Raw => {
                let mut serve = command("attach", &["--foreground", "--via", "fuse"])?;
                serve.arg("--at").arg(path);
                serve
            }
            DeviceFormat::Ext4 | DeviceFormat::Xfs => {
                links.finish(&mut command("mkfs", &["--force", "--fs", kind.name()])?)?;
                fs::create_dir(path).map_err(Error::failed)?;
                let mut serve = command("mount", &[&["--foreground", "--via", "fuse"], more].concat())?;
                serve.arg(path);
                serve
            }
        };
        Ok(AttachedDevice { kind, path: path.to_owned(), server: Server::start(serve)? })
    }

    /// Connections lost so far.
    fn lost(&self) -> f64 {
        self.server.has_said(longhaul_initiator::CONNECTION_LOST) as f64
    }

    /// Removes all files, and discards their blocks on the device.
    pub(super) fn trim(&self) -> Outcome {
        let failed = |e: rustix::io::Errno| Error::failed(std::io::Error::from(e));
        if self.kind == DeviceFormat::Raw {
            let file = fs::OpenOptions::new().write(true).open(&self.path).map_err(Error::failed)?;
            let size = file.metadata().map_err(Error::failed)?.len();
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            return fallocate(&file, how, 0, size).map_err(failed);
        }
        for entry in fs::read_dir(&self.path).map_err(Error::failed)? {
            let path = entry.map_err(Error::failed)?.path();
            if path.is_file() {
                fs::remove_file(path).map_err(Error::failed)?;
            }
        }
        syncfs(fs::File::open(&self.path).map_err(Error::failed)?).map_err(failed)?;
        let trimmed = Command::new("fstrim").arg(&self.path).stdin(Stdio::null()).output();
        let trimmed = trimmed.map_err(|e| Error::failed(format!("cannot run fstrim: {e}")))?;
        match trimmed.status.success() {
            true => Ok(()),
            false => Err(Error::failed(String::from_utf8_lossy(&trimmed.stderr).trim())),
        }
    }
}

impl Drop for AttachedDevice {
    fn drop(&mut self) {
        let verb = if self.kind == DeviceFormat::Raw { "detach" } else { "umount" };
        let command = program().map(|program| {
            let mut command = Command::new(program);
            command.arg(verb).arg(&self.path);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
        });
        // Dropping `server` ends the process even if this command failed.
        if let (Ok(Ok(_)), false) = (command, self.kind == DeviceFormat::Raw) {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// The command line of a load: `write` says which way, whatever its own is.
fn args(load: &Load, place: &AttachedDevice, write: bool) -> Vec<String> {
    let size = load.size();
    let mut args = vec!["bench".to_owned()];
    if place.kind == DeviceFormat::Raw {
        args.push(place.path.to_string_lossy().into_owned());
        args.extend(["--numjobs".into(), load.files.to_string(), "--offset-increment".into()]);
        args.push(size.to_string());
    } else {
        let dir = place.path.to_string_lossy().replace(',', ",,");
        args.extend((0..load.files).map(|n| format!("file:{dir}/{}.{n},size={size}", load.name)));
    }
    args.extend(["--rw", if write { "write" } else { "read" }, "--group-reporting"].map(str::to_owned));
    args.extend(["--bs".into(), load.bs.to_string(), "--iodepth".into(), load.depth.to_string()]);
    args.extend(["--size".into(), size.to_string()]);
    args
}

/// Writes all files once, so that reads find no holes.
pub(super) fn lay_out(load: &Load, links: &Links, place: &AttachedDevice) -> Outcome {
    let mut args = args(load, place, true);
    args.push("--end-fsync".into());
    links.finish(links.command()?.args(&args)).map(drop)
}

/// Runs the load, and fills the cells of `found`: bandwidth in B/s, mean submission
/// latency and mean completion latency in seconds, and the connections lost if there
/// is a fourth cell. `rate` is the rate of the devices in bits per second, if known.
pub(super) fn run(
    load: &Load,
    (links, rate): (&Links, Option<f64>),
    place: &AttachedDevice,
    settings: &Settings,
    found: &mut Results,
) -> Outcome {
    let before = place.lost();
    let rw = load.rw();
    let numbers =
        ["bandwidth", "submission latency mean", "completion latency mean"].map(|n| format!("{rw} {n}"));
    let mut args = args(load, place, load.write);
    let ms = |time: Duration| format!("{}ms", time.as_millis());
    // All I/Os in flight may complete at once: the window is longer than they take.
    let bytes = load.in_flight();
    let of_devices = rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 * 8.0 / rate));
    let all = links.time_of(bytes).max(of_devices);
    args.extend(["--ramp".into(), ms(RAMP + RAMP_ROUND_TRIPS * links.round_trip() + all)]);
    args.extend(["--runtime".into(), ms(settings.runtime.max(all * 3 / 2))]);
    args.extend(["--runs".into(), settings.runs.to_string()]);
    links.load(&args, &numbers.each_ref().map(String::as_str), found)?;
    if let Some(lost) = found.cells.get_mut(numbers.len()) {
        lost.push(place.lost() - before, &Validity::default());
    }
    Ok(())
}
