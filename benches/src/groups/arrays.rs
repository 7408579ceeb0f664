//! Arrays of remote devices, as `longhaul array` makes them. Over emulated
//! links, which need root.

pub(crate) mod heal;
pub(crate) mod redundancy;
pub(crate) mod six;
pub(crate) mod star;

use super::{MB, memory_backend};
use crate::link::{self, Link};
use crate::process::together;
use crate::program::{self, Load, Target};
use crate::reference::Iperf;
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_wan::Conditions;
use std::cell::Cell;
use std::time::Duration;
use tempfile::TempDir;

/// The least load before a window, and round trips on top: TCP on each link
/// has left slow start.
const RAMP: Duration = Duration::from_millis(400);
const RAMP_ROUND_TRIPS: u32 = 30;

/// A target behind each of some links of one client, and what the client
/// knows of arrays of them.
struct Star {
    // Ended before the links are.
    servers: Vec<Server>,
    _home: TempDir,
    /// None where everything is on this host.
    link: Option<Link>,
    /// Windows in which the emulator was late, twice.
    late: Cell<u32>,
    engine: String,
}

struct Server {
    setup: Setup,
    target: Target,
}

impl Star {
    /// `servers` links of these conditions, and a target with so many exports
    /// behind each; windows are as long as `setup` says.
    fn start(setup: &Setup, conditions: Conditions, servers: usize, exports: usize) -> Result<Star> {
        let link = Link::start(conditions, Some(servers))?;
        let setups: Vec<Setup> = (1..=servers)
            .map(|index| Setup {
                ramp: RAMP + RAMP_ROUND_TRIPS * link.rtt(),
                runtime: setup.runtime,
                ..link.setup(setup, index)
            })
            .collect();
        Star::serve(setups, Some(link), exports)
    }

    /// The same on this host, without links.
    fn local(setup: &Setup, servers: usize, exports: usize) -> Result<Star> {
        Star::serve(vec![setup.clone(); servers], None, exports)
    }

    fn serve(setups: Vec<Setup>, link: Option<Link>, exports: usize) -> Result<Star> {
        let home = tempfile::Builder::new().prefix("longhaul-benches-").tempdir()?;
        let engine = setups.first().and_then(|setup| setup.engines.first());
        let engine = engine.context("no engine to measure with")?.clone();
        let serve = |setup: Setup| {
            let setup = Setup { load: setup.load.clone().at_home(home.path()), ..setup };
            let target = Target::start_many(&setup, &engine, &memory_backend(&setup), exports, &[])?;
            Ok(Server { setup, target })
        };
        let servers = setups.into_iter().map(serve).collect::<Result<Vec<_>>>()?;
        Ok(Star { servers, _home: home, link, late: Cell::new(0), engine })
    }

    /// How to measure on it.
    fn setup(&self) -> &Setup {
        &self.servers[0].setup
    }

    /// One export of each server, in order.
    fn uris(&self, export: usize) -> Vec<&str> {
        self.servers.iter().map(|server| server.target.uris[export].as_str()).collect()
    }

    /// Bytes per second of a load that the program tunes itself. Over links, repeated once if the
    /// emulator was late; if it is late again, that is noted.
    fn rate_on_time(&self, device: &str, load: &Load) -> Result<f64> {
        let Some(link) = &self.link else { return self.rate(device, load) };
        let (rate, late) = link.mostly_on_time(|| self.rate(device, load))?;
        self.late.set(self.late.get() + u32::from(late));
        Ok(rate)
    }

    /// What to say of windows that count though the emulator was late.
    fn lateness(&self, place: &str) -> Option<String> {
        let late = self.late.get();
        let count = |n| format!("{n} measurement{}", if n == 1 { "" } else { "s" });
        (late > 0)
            .then(|| format!("{place}: {} counted though the emulator was late twice in a row", count(late)))
    }

    /// Runs `longhaul array` on the client; returns its output.
    fn array(&self, args: &[&str]) -> Result<String> {
        let setup = self.setup();
        let mut command = setup.load.command(&setup.program);
        command.arg("array").args(args).args(["--json", "--congestion", &setup.congestion]);
        program::finish(&mut command, setup).with_context(|| format!("array {}", args.join(" ")))
    }

    /// Makes an array of devices, and returns its device name.
    fn create(&self, name: &str, layout: &str, devices: &[&str], more: &[&str]) -> Result<String> {
        let mut args = vec!["create", name, "--layout", layout];
        args.extend(devices.iter().flat_map(|device| ["--device", device]));
        args.extend(more);
        self.array(&args)?;
        Ok(format!("array:{name}"))
    }

    /// Bytes per second of a load that the program tunes itself.
    fn rate(&self, device: &str, load: &Load) -> Result<f64> {
        Ok(program::load(self.setup(), &self.engine, device, load, None, &[])?.rate)
    }

    /// An iperf3 server behind each link.
    fn iperf(&self) -> Result<Vec<Iperf>> {
        Iperf::start_all(self.servers.iter().map(|server| &server.setup))
    }

    /// Bytes per second of one plain stream over each link at the same time.
    fn plain(&self, iperf: &[Iperf], write: bool) -> Result<f64> {
        let links = iperf.iter().zip(self.servers.iter().map(|server| &server.setup));
        Ok(together(links, |(iperf, setup)| iperf.run(setup, write, 128 << 10))?.iter().sum())
    }
}

/// What a person runs to have a star with an array of all its servers.
fn commands(setup: &Setup, rate: u64, rtt: Duration, servers: usize, layout: &str) -> Vec<String> {
    let (congestion, backend) = (&setup.congestion, memory_backend(setup));
    let devices: Vec<String> =
        (1..=servers).map(|n| format!("--device nvme+tcp://10.77.{n}.2/bench")).collect();
    vec![
        format!(
            "longhaul wan --rtt {} --rate {}Mbit --star {servers} --name link &",
            link::round_trip(rtt).replace(' ', ""),
            rate / 1_000_000
        ),
        format!(
            "ip netns exec link-serverN longhaul target --insecure --listen 10.77.N.2:4420 --export bench={backend} \
             --threads 1 --congestion {congestion} &  # N = 1 to {servers}"
        ),
        client(&format!("longhaul array create scratch --layout {layout} {}", devices.join(" "))),
    ]
}

/// A command for a person to run on the client.
fn client(command: &str) -> String {
    format!("ip netns exec link-client {command}")
}
