//! Pools: from nothing to a volume in use, jobs, many volumes, a volume with two paths of which one is cut, trees of
//! files, one large file, large files of many clients, a million files, and heads that are killed.

pub(crate) mod clients;
pub(crate) mod cut_path;
pub(crate) mod first_volume;
pub(crate) mod heads;
pub(crate) mod jobs;
pub(crate) mod large_file;
pub(crate) mod many_files;
mod mounted;
pub(crate) mod trees;
pub(crate) mod volumes;

use crate::link::Link;
use crate::process::Guard;
use crate::program;
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_wan::Conditions;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The host that manages the pool, and uses its volumes.
const ADMIN: &str = "nqn.2014-08.org.example:admin";
/// Targets, each behind a link of its own.
const TARGETS: usize = 6;
const RATE: u64 = 1_000_000_000;
const RTT: Duration = Duration::from_millis(15);
/// The port of a target, or of the first one of an address.
const PORT: u16 = 4420;

/// Targets with a space each, behind links of one client.
struct Site {
    // Ended before the links are.
    _targets: Vec<Guard>,
    /// The addresses of the targets.
    addresses: Vec<String>,
    setup: Setup,
    home: TempDir,
    link: Link,
}

impl Site {
    fn start(setup: &Setup) -> Result<Site> {
        Site::at(setup, RTT)
    }

    /// As [`start`](Self::start), with another round trip.
    fn at(setup: &Setup, rtt: Duration) -> Result<Site> {
        let link = Link::start(Conditions::new(rtt, Some(RATE)), Some(TARGETS))?;
        Site::star(setup, link, TARGETS)
    }

    /// So many targets, each behind a link of its own.
    fn star(setup: &Setup, link: Link, count: usize) -> Result<Site> {
        let places: Vec<_> = (1..=count).map(|index| (link.setup(setup, index), PORT)).collect();
        Site::with(link, places)
    }

    /// So many targets, all behind one link: the client's port.
    fn behind_one(setup: &Setup, link: Link, count: usize) -> Result<Site> {
        let places = (PORT..).take(count).map(|port| (link.setup(setup, 1), port)).collect();
        Site::with(link, places)
    }

    /// So many targets beside the client, by its loopback.
    fn local(setup: &Setup, count: usize) -> Result<Site> {
        let link = Link::start(Conditions::new(Duration::ZERO, None), None)?;
        let near = link.setup(setup, 1);
        let near = Setup { target: near.load.itself(), load: near.load.itself(), ..near };
        let places = (PORT..).take(count).map(|port| (near.clone(), port)).collect();
        Site::with(link, places)
    }

    /// Targets at these places, with these ports.
    fn with(link: Link, places: Vec<(Setup, u16)>) -> Result<Site> {
        let setup = places.first().context("a site without targets")?.0.clone();
        let home = tempfile::Builder::new().prefix("longhaul-benches-").tempdir_in(&setup.dir)?;
        let (mut targets, mut addresses) = (Vec::new(), Vec::new());
        for (number, (setup, port)) in (1..).zip(places) {
            let mut target = Guard(setup.target.start(&mut space(&setup, home.path(), number, port))?);
            let ready = target.ready().context("a target did not start")?;
            let address = ready["listen"][0].as_str().context("a target without an address")?;
            addresses.push(format!("{address},domain={number}"));
            targets.push(target);
        }
        let load = setup.load.clone().at_home(home.path());
        Ok(Site { _targets: targets, addresses, setup: Setup { load, ..setup }, home, link })
    }

    /// The program on the client, as the host that manages the pool.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.setup.load.command(&self.setup.program);
        command.args(args).args(["--hostnqn", ADMIN]);
        command.env("XDG_CONFIG_HOME", self.home.path());
        command
    }

    /// Runs it to its end; the seconds that it took.
    fn run(&self, args: &[&str]) -> Result<f64> {
        let began = Instant::now();
        let ran = program::finish(&mut self.command(args), &self.setup);
        ran.with_context(|| format!("longhaul {}", args.join(" ")))?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// The arguments that make the pool of all targets.
    fn create(&self) -> Vec<&str> {
        let targets = self.addresses.iter().flat_map(|address| ["--target", address.as_str()]);
        ["pool", "create", "bench"].into_iter().chain(targets).collect()
    }
}

/// A target with a space in a directory.
fn space(setup: &Setup, home: &Path, number: usize, port: u16) -> Command {
    let space = format!("fast=dir:{},size=8GiB", home.join(format!("space{number}")).display());
    let mut command = setup.target.command(&setup.program);
    command
        .args(["target", "--json", "--discovery", "none", "--insecure", "--threads", "1"])
        .args(["--listen", &format!("{}:{port}", setup.target.address), "--congestion", &setup.congestion])
        .args(["--space", &space, "--admin", ADMIN])
        .env("XDG_STATE_HOME", home.join(format!("state{number}")))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// What people type to have the targets.
fn target_commands() -> Vec<String> {
    vec![
        format!("longhaul wan --rtt 15ms --rate 1Gbit --star {TARGETS} --name link &"),
        format!(
            "ip netns exec link-server1 longhaul target --insecure --listen 10.77.1.2:4420 \
             --space fast=dir:/srv/1,size=8GiB --admin {ADMIN}  # and so on"
        ),
    ]
}
