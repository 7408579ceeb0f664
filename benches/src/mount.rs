//! File systems that the program has mounted.

use crate::process::Guard;
use crate::setup::Setup;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mount, and the process that serves it.
pub(crate) struct Mount<'s> {
    setup: &'s Setup,
    pub(crate) at: PathBuf,
    process: Guard,
}

impl<'s> Mount<'s> {
    /// Mounts by `command`, which is `longhaul mount` with what is mounted, on a directory that is made.
    pub(crate) fn new(setup: &'s Setup, mut command: Command, at: &Path) -> Result<Mount<'s>> {
        fs::create_dir_all(at)?;
        command.arg(at).args(["--foreground", "--json"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Guard(setup.load.start(&mut command)?);
        process.ready().with_context(|| format!("nothing was mounted on {}", at.display()))?;
        Ok(Mount { setup, at: at.to_owned(), process })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }
}

impl Drop for Mount<'_> {
    /// Unmounts it; the process ends by itself, or is ended next.
    fn drop(&mut self) {
        let mut command = self.setup.load.command(&self.setup.program);
        command.arg("umount").arg(&self.at).stdout(Stdio::null());
        if let Err(e) = command.status() {
            eprintln!("  {}: {e}", self.at.display());
        }
    }
}
