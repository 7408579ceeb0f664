//! A device at a distance that is a local one.

use super::{SIZE, Site};
use crate::process::Guard;
use crate::program::finish;
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_lab::filesystems::DeviceFormat;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file or a directory, and the process that serves it; it is taken away
/// when dropped.
pub(super) struct Place {
    pub(super) kind: DeviceFormat,
    /// The file that is the device, or where the file system is.
    pub(super) path: PathBuf,
    log: PathBuf,
    setup: Setup,
    _process: Guard,
}

impl Place {
    /// Makes a file system on devices of a site (as a stripe, if there are
    /// several) and mounts it with `more`; or attaches them, if it is to be raw.
    pub(super) fn new(
        site: &Site,
        name: &str,
        kind: DeviceFormat,
        uris: &[String],
        more: &[&str],
    ) -> Result<Place> {
        let path = site.home.path().join(name);
        let log = site.home.path().join(format!("{name}.log"));
        let mut using: Vec<&str> = vec!["--congestion", &site.setup.congestion, "--engine", &site.engine];
        if uris.len() > 1 {
            using.extend(["--layout", "stripe"]);
        }
        // Devices come last, and the directory behind them.
        let command = |verb: &str, options: &[&str]| {
            let mut command = site.setup.load.command(&site.setup.program);
            command.arg(verb).args(&using).arg("--json").args(options).args(uris);
            command
        };
        let mut serve = if kind == DeviceFormat::Raw {
            let mut serve = command("attach", &["--foreground", "--via", "fuse"]);
            serve.arg("--at").arg(&path);
            serve
        } else {
            finish(&mut command("mkfs", &["--force", "--fs", kind.name()]), &site.setup)?;
            fs::create_dir(&path)?;
            let mut serve = command("mount", &[&["--foreground", "--via", "fuse"], more].concat());
            serve.arg(&path);
            serve
        };
        serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut process = Guard(site.setup.load.start(&mut serve)?);
        let said = || format!("{name}: {}", fs::read_to_string(&log).unwrap_or_default());
        process.ready().with_context(said)?;
        Ok(Place { kind, path, log, setup: site.setup.clone(), _process: process })
    }

    /// How often a connection was lost so far.
    pub(super) fn disconnects(&self) -> Result<f64> {
        Ok(fs::read_to_string(&self.log)?.matches(longhaul_initiator::CONNECTION_LOST).count() as f64)
    }

    /// Takes all files away, and gives their space back to the target.
    pub(super) fn trim(&self) -> Result<()> {
        if self.kind == DeviceFormat::Raw {
            let mut command = Command::new("fallocate");
            command.args(["--punch-hole", "--offset", "0", "--length", &SIZE.to_string()]).arg(&self.path);
            return run(&mut command);
        }
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::remove_file(entry.path())?;
            }
        }
        self.sync()?;
        run(Command::new("fstrim").arg(&self.path))
    }

    /// Makes all of it durable, at once: a file after the other takes round trips for each.
    pub(super) fn sync(&self) -> Result<()> {
        match self.kind {
            DeviceFormat::Raw => run(Command::new("sync").arg(&self.path)),
            DeviceFormat::Ext4 | DeviceFormat::Xfs => sync(&self.path),
        }
    }
}

/// Has a file system write all that it has.
pub(super) fn sync(path: &Path) -> Result<()> {
    run(Command::new("sync").arg("--file-system").arg(path))
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ran = command.output().with_context(|| format!("cannot run {name}"))?;
    ensure!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr).trim());
    Ok(())
}

impl Drop for Place {
    fn drop(&mut self) {
        let verb = if self.kind == DeviceFormat::Raw { "detach" } else { "umount" };
        let mut command = self.setup.load.command(&self.setup.program);
        command.arg(verb).arg(&self.path).stdout(Stdio::null());
        // The process itself is ended next, if this did not.
        if let Err(e) = command.status() {
            eprintln!("  {}: {e}", self.path.display());
        }
    }
}
