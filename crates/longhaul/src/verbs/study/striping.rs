//! The experiment of the Network Storage Manager: a file of 250 MB, striped over
//! 1 to 4 servers, read from their memory; mean of ten runs.

use super::rig::{Rig, Server};
use super::{Experiment, Found, Settings, Usual, Wanted};
use crate::exit::{Failure, Outcome};
use longhaul_bench::record::{Better, Cell, Place, Published};
use longhaul_wan::Conditions;
use std::time::Duration;

const SOURCE: &str = "Network Storage Manager, blocks of 1 MB";
const MOST: usize = 4;
/// Stripe units: as published, and with which its collapse went away.
const UNITS: [(u64, &str); 2] = [(1 << 20, "1 MiB"), (64 << 10, "64 KiB")];
/// Memory that each server has to be read from.
const MEMORY: &str = "disk=mem:256MiB";
/// Round trip of a local network.
const RTT: Duration = Duration::from_micros(200);

/// A transport: its link's rate in bits per second where it can be emulated, and
/// MB/s of 1 to 4 servers.
struct Transport {
    name: &'static str,
    link: Result<u64, &'static str>,
    published: [f64; MOST],
}

const TRANSPORTS: [Transport; 4] = [
    Transport { name: "Fast Ethernet", link: Ok(100_000_000), published: [9.27, 18.0, 26.0, 32.0] },
    Transport { name: "Gigabit Ethernet", link: Ok(1_000_000_000), published: [47.0, 52.0, 63.0, 72.0] },
    Transport {
        name: "IP over InfiniBand",
        link: Err("this machine has no InfiniBand"),
        published: [22.0, 47.0, 63.0, 90.0],
    },
    Transport {
        name: "TCP offload",
        link: Err("this machine has no network card that does TCP itself"),
        published: [67.0, 80.0, 10.0, 5.0],
    },
];

/// What is measured for a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    /// Of each link, in bits per second; nothing on devices that were named.
    rate: Option<u64>,
    servers: usize,
    unit: u64,
}

/// The experiment, and what it is measured on.
#[derive(Default)]
pub(super) struct Striping(Option<Bed>);

struct Bed {
    rate: Option<u64>,
    uris: Vec<String>,
    // In this order: the servers end before their links do.
    _servers: Vec<Server>,
    rig: Rig,
}

impl Bed {
    fn start(rate: Option<u64>, settings: &Settings) -> Result<Bed, Failure> {
        let Some(bits) = rate else {
            return Ok(Bed { rate, uris: settings.targets.clone(), _servers: Vec::new(), rig: Rig::here() });
        };
        let rig = Rig::emulated(MOST, Conditions::new(RTT, Some(bits)))?;
        let (mut servers, mut uris) = (Vec::new(), Vec::new());
        for link in 1..=MOST {
            let (mut command, address) = rig.behind(link)?;
            let listen = format!("{address}:4420");
            command.args(["target", "--discovery", "none", "--listen", &listen, "--export", MEMORY]);
            let server = Server::start(command)?;
            uris.extend(server.ready["exports"][0]["uri"].as_str().map(str::to_owned));
            servers.push(server);
        }
        Ok(Bed { rate, uris, _servers: servers, rig })
    }
}

impl Experiment for Striping {
    type Case = Case;

    fn usual(quick: bool) -> Usual {
        match quick {
            true => Usual { scale: 0.5, runs: 3, runtime: Duration::from_secs(1) },
            false => Usual { scale: 1.0, runs: 10, runtime: Duration::from_secs(10) },
        }
    }

    fn plan(settings: &Settings) -> Vec<Wanted<Case>> {
        let mut all = Vec::new();
        if !settings.targets.is_empty() {
            for servers in 1..=settings.targets.len() {
                for (unit, name) in UNITS {
                    let cells = vec![cell("these devices", servers, name)];
                    all.push(Wanted { cells, how: Ok(Case { rate: None, servers, unit }) });
                }
            }
            return all;
        }
        for transport in &TRANSPORTS {
            for servers in 1..=MOST {
                for (unit, name) in UNITS {
                    let mut cell = cell(transport.name, servers, name);
                    if unit == UNITS[0].0 {
                        cell.published.push(published(transport.published[servers - 1], settings.scale));
                    }
                    let scaled = |rate: u64| Some((rate as f64 * settings.scale) as u64);
                    let how = transport.link.map(|rate| Case { rate: scaled(rate), servers, unit });
                    all.push(Wanted { cells: vec![cell], how: how.map_err(str::to_owned) });
                }
            }
        }
        all
    }

    fn measure(&mut self, case: &Case, settings: &Settings, _: &[Cell], found: &mut Found) -> Outcome {
        if self.0.as_ref().is_none_or(|bed| bed.rate != case.rate) {
            // The old one goes first: both together would be too much.
            self.0 = None;
            self.0 = Some(Bed::start(case.rate, settings)?);
        }
        let Some(bed) = &self.0 else { return Err(Failure::failed("there are no links")) };
        let (unit, runs) = (case.unit.to_string(), settings.runs.to_string());
        let runtime = format!("{}ms", settings.runtime.as_millis());
        let mut args = vec!["bench"];
        args.extend(bed.uris.iter().take(case.servers).map(String::as_str));
        if case.servers > 1 {
            args.extend(["--layout", "stripe", "--stripe-unit", &unit]);
        }
        args.extend([
            "--rw",
            "read",
            "--bs",
            &unit,
            "--ramp",
            "500ms",
            "--runtime",
            &runtime,
            "--runs",
            &runs,
        ]);
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        bed.rig.load(&args, &["read bandwidth"], found)
    }
}

fn cell(transport: &str, servers: usize, unit: &str) -> Cell {
    let mut cell = Cell::new(format!("{transport}, {servers} servers, {unit}"), "B/s", Better::Higher);
    cell.place = Some(Place {
        figure: format!("Reads striped over servers: {transport}"),
        series: format!("blocks of {unit}"),
        x: servers.to_string(),
        x_number: Some(servers as f64),
        x_label: "Servers".into(),
    });
    cell
}

/// A published number of MB/s, at the scale of the links.
fn published(megabytes: f64, scale: f64) -> Published {
    let scaled = if scale < 1.0 { format!("; times {scale}, as the links are") } else { String::new() };
    Published { value: megabytes * 1e6 * scale, source: format!("{SOURCE}{scaled}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(scale: f64, targets: &[&str]) -> Settings {
        let targets = targets.iter().map(|uri| (*uri).to_owned()).collect();
        Settings { quick: false, targets, scale, runs: 1, runtime: Duration::from_secs(1) }
    }

    #[test]
    fn every_published_number_is_wanted() {
        let all = Striping::plan(&settings(1.0, &[]));
        assert_eq!(all.len(), 4 * 4 * 2);
        let published: Vec<f64> =
            all.iter().flat_map(|one| &one.cells[0].published).map(|p| p.value / 1e6).collect();
        let expected: Vec<f64> = TRANSPORTS.iter().flat_map(|transport| transport.published).collect();
        assert_eq!(published, expected);
        let missing = all.iter().filter(|one| one.how.is_err()).count();
        assert_eq!(missing, 2 * 4 * 2, "what needs other hardware is not left out");
        let mut names: Vec<&str> = all.iter().map(|one| one.cells[0].name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len(), "a name is of one number only");
    }

    #[test]
    fn what_was_published_is_scaled_as_the_links_are() {
        let all = Striping::plan(&settings(0.1, &[]));
        let first = &all[0];
        assert!(
            (first.cells[0].published[0].value - 0.927e6).abs() < 1.0
                && first.cells[0].published[0].source.contains("times 0.1")
        );
        assert!(first.how == Ok(Case { rate: Some(10_000_000), servers: 1, unit: 1 << 20 }));
    }

    #[test]
    fn devices_that_are_named_stand_for_themselves() {
        let all = Striping::plan(&settings(1.0, &["a", "b"]));
        assert_eq!(all.len(), 2 * 2);
        assert!(all.iter().all(|one| one.cells[0].published.is_empty()));
    }
}
