//! File systems of a pool that are mounted, and etcd as the catalog of the pool.

use super::Site;
use crate::process::Guard;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How long etcd may take until it serves.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes of etcd's data: a million files take more than its default of 2 GiB.
const QUOTA: u64 = 8 << 30;

/// A file system, mounted by a process that has leases.
pub(super) struct Mount<'s> {
    site: &'s Site,
    pub(super) at: PathBuf,
    process: Guard,
}

impl<'s> Mount<'s> {
    /// Mounts the file system `bench/NAME`.
    pub(super) fn new(site: &'s Site, name: &str) -> Result<Mount<'s>> {
        let at = site.home.path().join(name);
        fs::create_dir_all(&at)?;
        let dir = at.to_str().context("a path that is text")?;
        let file_system = format!("fs:bench/{name}");
        let args = ["mount", &file_system, dir, "--close", "lease", "--foreground", "--json"];
        let mut command = site.command(&args);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Guard(site.setup.load.start(&mut command)?);
        process.ready().context("the file system was not mounted")?;
        Ok(Mount { site, at, process })
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }
}

impl Drop for Mount<'_> {
    /// Unmounts it; the process ends by itself, or is ended next.
    fn drop(&mut self) {
        let setup = &self.site.setup;
        let mut command = setup.load.command(&setup.program);
        command.arg("umount").arg(&self.at).stdout(Stdio::null());
        if let Err(e) = command.status() {
            eprintln!("  {}: {e}", self.at.display());
        }
    }
}

/// Makes the pool of all targets, whose catalog is in an etcd beside the first one.
pub(super) fn pool_by_etcd(site: &Site) -> Result<Guard> {
    let etcd = etcd(site)?;
    let catalog = format!("etcd:{}:2379", site.setup.target.address);
    site.run(&[&site.create()[..], &["--catalog", &catalog]].concat())?;
    Ok(etcd)
}

/// Starts etcd beside the first target, and waits until it serves.
fn etcd(site: &Site) -> Result<Guard> {
    let host = site.setup.target.address;
    let (at, peers) = (format!("http://{host}:2379"), format!("http://{host}:2380"));
    let mut command = site.setup.target.command("etcd");
    command.args(["--name", "m", "--data-dir"]).arg(site.home.path().join("etcd"));
    command.args(["--listen-client-urls", &at, "--advertise-client-urls", &at]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("m={peers}"), "--quota-backend-bytes", &QUOTA.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let etcd = Guard(site.setup.target.start(&mut command).context("etcd has the catalog of this group")?);
    let (address, began): (SocketAddr, _) = (format!("{host}:2379").parse()?, Instant::now());
    while !site.setup.load.run(|| TcpStream::connect_timeout(&address, PATIENCE).is_ok())? {
        ensure!(began.elapsed() < PATIENCE, "etcd does not serve within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(etcd)
}
