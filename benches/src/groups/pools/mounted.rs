//! File systems of a pool that are mounted, and etcd as the catalog of the pool.

use super::Site;
use crate::mount::Mount;
use crate::process::Guard;
use anyhow::{Context, Result, ensure};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How long etcd may take until it serves.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes of etcd's data: a million files take more than its default of 2 GiB.
const QUOTA: u64 = 8 << 30;

/// Mounts the file system `bench/NAME`, with leases.
pub(super) fn mount<'s>(site: &'s Site, name: &str) -> Result<Mount<'s>> {
    let command = site.command(&["mount", &format!("fs:bench/{name}"), "--close", "lease"]);
    Mount::new(&site.setup, command, &site.home.path().join(name))
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
