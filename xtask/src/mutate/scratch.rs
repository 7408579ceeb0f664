//! The copy of the tree that mutations are planted in.
//!
//! It lies under `target/`, as do its builds, and stays between runs: only files that differ are
//! written, so that cargo rebuilds only what they concern.

use crate::repo::Repo;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Seconds that one test run may take. A planted bug may make a test wait for ever; without one,
/// each test of the list ends in a fraction of this.
const LIMIT: u32 = 180;

/// Each build runs one test: optimising the crates that every mutation rebuilds would cost more
/// than it saves. Dependencies are built once, as everywhere.
const PROFILE: [&str; 4] =
    ["--config", "profile.dev.opt-level=0", "--config", "profile.dev.package.\"*\".opt-level=1"];

pub(crate) struct Scratch {
    tree: PathBuf,
    builds: PathBuf,
}

impl Scratch {
    /// Makes the copy what the checkout is.
    pub(crate) fn make(repo: &Repo) -> Result<Scratch> {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repo.root.join("target"), PathBuf::from);
        let home = repo.root.join(target).join("mutate");
        let scratch = Scratch { tree: home.join("tree"), builds: home.join("target") };
        let listed = tracked(&repo.root)?;
        for path in &listed {
            scratch.copy(&repo.root, path).with_context(|| format!("cannot copy {path}"))?;
        }
        scratch.remove_others(&scratch.tree, &listed)?;
        Ok(scratch)
    }

    fn copy(&self, root: &Path, path: &str) -> Result<()> {
        let (from, to) = (root.join(path), self.tree.join(path));
        if !from.is_file() {
            return Ok(());
        }
        let content = fs::read(&from)?;
        if fs::read(&to).is_ok_and(|old| old == content) {
            return Ok(());
        }
        fs::create_dir_all(to.parent().context("no parent")?)?;
        // This keeps the mode: scripts are run by tests.
        fs::copy(&from, &to)?;
        fs::write(&to, content).context("cannot make it newer than its builds")
    }

    /// Files of an earlier copy that the checkout does not have any more: cargo would build them.
    fn remove_others(&self, directory: &Path, listed: &BTreeSet<String>) -> Result<()> {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                self.remove_others(&path, listed)?;
            } else if path
                .strip_prefix(&self.tree)
                .is_ok_and(|name| !listed.contains(&*name.to_string_lossy()))
            {
                fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Writes one file of the copy.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<()> {
        fs::write(self.tree.join(path), text).with_context(|| format!("cannot write {path} of the copy"))
    }

    /// `cargo ARGS` in the copy, ended after [`LIMIT`] with all that it started.
    pub(crate) fn limited_cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", &LIMIT.to_string(), env!("CARGO")]).args(PROFILE).args(args);
        self.at_home(command)
    }

    /// `cargo ARGS` in the copy.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO"));
        command.args(PROFILE).args(args);
        self.at_home(command)
    }

    fn at_home(&self, mut command: Command) -> Command {
        // No debugger looks at these builds.
        command.env("CARGO_TARGET_DIR", &self.builds).env("CARGO_PROFILE_DEV_DEBUG", "0");
        command.env("CARGO_TERM_COLOR", "never").env("CARGO_INCREMENTAL", "1").current_dir(&self.tree);
        // Set by the cargo that runs this program, and not meant for the other.
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "LONGHAUL_SKIPS"] {
            command.env_remove(name);
        }
        command
    }
}

/// Every file that git tracks or would add.
fn tracked(root: &Path) -> Result<BTreeSet<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    let names = String::from_utf8(output.stdout).context("a path that is not UTF-8")?;
    Ok(names.split('\0').filter(|name| root.join(name).is_file()).map(str::to_owned).collect())
}
