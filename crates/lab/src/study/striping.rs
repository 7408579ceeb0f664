//! The experiment of the Network Storage Manager: a file of 250 MB, striped over
//! 1 to 4 servers, read from their memory; mean of ten runs. The publication does not
//! say how many ports the client had: here each server has a link of its own, or all
//! share one port of the client, where their answers collide (incast).

use super::links::{Links, Server, serve_at};
use super::{Defaults, Experiment, PlanEntry, Results, Settings, result};
use crate::striping::{GIGABIT_ETHERNET, SERVERS, TRANSPORTS, Transport, UNITS};
use crate::{Error, Outcome};
use longhaul_results::record::{Better, Cell, Place, Question};
use longhaul_wan::Conditions;
use std::time::Duration;

/// Export of each server: a RAM disk.
const MEMORY: &str = "disk=mem:256MiB";
/// Round trip of a local network.
const RTT: Duration = Duration::from_micros(200);

/// Whether the plan has this transport with these ports. A transport that cannot be emulated is
/// listed once, and `--quick` leaves the shared port of the slower one out.
fn has(transport: &Transport, ports: Ports, quick: bool) -> bool {
    ports == Ports::Each || transport.link.is_ok_and(|rate| !quick || rate >= GIGABIT_ETHERNET)
}

/// The stripe units of a transport; with `--quick`, the slower one has only that of the published
/// values.
fn units(transport: &Transport, quick: bool) -> &'static [(u64, &'static str)] {
    let is_slow = transport.link.is_ok_and(|rate| rate < GIGABIT_ETHERNET);
    if quick && is_slow { &UNITS[..1] } else { &UNITS }
}

/// Buffer of the client's switch port in bytes, as of a small switch: four blocks of 1 MiB
/// that arrive at once do not fit.
const PORT_BUFFER: u64 = 512 << 10;

/// How many ports the client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ports {
    /// One for each server.
    Each,
    /// One, which all servers share.
    One,
}

impl Ports {
    const ALL: [Ports; 2] = [Ports::Each, Ports::One];

    /// Suffix of cell names.
    fn name(self) -> &'static str {
        match self {
            Ports::Each => "",
            Ports::One => ", one client port",
        }
    }
}

/// Parameters of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StripingMeasurement {
    ports: Ports,
    /// Rate of each link in bits per second; `None` on devices of `--target`.
    rate: Option<u64>,
    servers: usize,
    unit: u64,
}

/// The experiment and its testbed.
#[derive(Default)]
pub(super) struct Striping(Option<StripingTestbed>);

struct StripingTestbed {
    key: (Option<u64>, Ports),
    uris: Vec<String>,
    // Fields are dropped in order: the servers end before their links are removed.
    _servers: Vec<Server>,
    links: Links,
}

impl StripingTestbed {
    fn start(key: (Option<u64>, Ports), settings: &Settings) -> Result<StripingTestbed, Error> {
        let (Some(bits), ports) = key else {
            return Ok(StripingTestbed {
                key,
                uris: settings.targets.clone(),
                _servers: Vec::new(),
                links: Links::here(),
            });
        };
        let conditions = Conditions::new(RTT, Some(bits));
        let links = match ports {
            Ports::Each => Links::emulated(SERVERS, conditions)?,
            Ports::One => Links::behind_a_port(conditions, PORT_BUFFER)?,
        };
        let (mut servers, mut uris) = (Vec::new(), Vec::new());
        for server in 1..=SERVERS {
            let (link, port) = match ports {
                Ports::Each => (server, 4420),
                Ports::One => (1, 4419 + server),
            };
            let (mut command, address) = links.behind(link)?;
            serve_at(&mut command, &format!("{address}:{port}"));
            command.args(["--export", MEMORY]);
            let server = Server::start(command)?;
            uris.extend(server.uris());
            servers.push(server);
        }
        Ok(StripingTestbed { key, uris, _servers: servers, links })
    }
}

impl Experiment for Striping {
    type Measurement = StripingMeasurement;

    fn usual(quick: bool) -> Defaults {
        match quick {
            true => Defaults { scale: 0.5, runs: 2, runtime: Duration::from_secs(1) },
            false => Defaults { scale: 1.0, runs: 10, runtime: Duration::from_secs(10) },
        }
    }

    fn plan(settings: &Settings) -> Vec<PlanEntry<StripingMeasurement>> {
        let mut all = Vec::new();
        if !settings.targets.is_empty() {
            for servers in 1..=settings.targets.len() {
                for (unit, name) in UNITS {
                    let cells = cells("these devices", Ports::Each, servers, name);
                    all.push(PlanEntry {
                        cells,
                        how: Ok(StripingMeasurement { ports: Ports::Each, rate: None, servers, unit }),
                    });
                }
            }
            return all;
        }
        for transport in &TRANSPORTS {
            for ports in Ports::ALL.into_iter().filter(|ports| has(transport, *ports, settings.quick)) {
                for servers in 1..=SERVERS {
                    for unit in units(transport, settings.quick) {
                        all.push(wanted(transport, ports, servers, *unit, settings));
                    }
                }
            }
        }
        all
    }

    fn questions(settings: &Settings) -> Vec<Question> {
        if !settings.targets.is_empty() {
            return settings.targets.get(1).map_or_else(Vec::new, |_| {
                let title = format!("{} devices, against one", settings.targets.len());
                let question = Question::new(title, None);
                vec![more(("these devices", Ports::Each), &UNITS, settings.targets.len(), question)]
            });
        }
        let mut all = Vec::new();
        for transport in TRANSPORTS.iter().filter(|transport| transport.link.is_ok()) {
            for ports in Ports::ALL.into_iter().filter(|ports| has(transport, *ports, settings.quick)) {
                let title = format!("Four servers, against one: {}{}", transport.name, ports.name());
                let question = Question::new(title, transport.growth).in_summary();
                all.push(more((transport.name, ports), units(transport, settings.quick), SERVERS, question));
            }
        }
        all
    }

    fn measure(
        &mut self,
        case: &StripingMeasurement,
        settings: &Settings,
        _: &[Cell],
        found: &mut Results,
    ) -> Outcome {
        let key = (case.rate, case.ports);
        if self.0.as_ref().is_none_or(|testbed| testbed.key != key) {
            // Dropped before the new one starts, so that they do not compete for memory and processors.
            self.0 = None;
            self.0 = Some(StripingTestbed::start(key, settings)?);
        }
        let Some(testbed) = &self.0 else { return Err(Error::failed("there are no links")) };
        let (unit, runs) = (case.unit.to_string(), settings.runs.to_string());
        let runtime = format!("{}ms", settings.runtime.as_millis());
        let mut args = vec!["bench"];
        args.extend(testbed.uris.iter().take(case.servers).map(String::as_str));
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
        testbed.links.load(&args, &["read bandwidth", "CPU"], found)?;
        if case.ports == Ports::One {
            result::count_with_losses(&mut found.cells);
        }
        Ok(())
    }
}

/// The name of a cell.
fn name_of(transport: &str, ports: Ports, servers: usize, unit: &str) -> String {
    format!("{transport}{}, {servers} servers, {unit}", ports.name())
}

/// Adds to `question` the pairs of `servers` servers and one, for each stripe unit.
fn more(
    (transport, ports): (&str, Ports),
    units: &[(u64, &str)],
    servers: usize,
    question: Question,
) -> Question {
    units.iter().fold(question, |question, (_, unit)| {
        let of = |servers| name_of(transport, ports, servers, unit);
        question.pair(format!("blocks of {unit}"), of(servers), of(1))
    })
}

/// The cells of throughput, and of the reader's processor time.
fn cells(transport: &str, ports: Ports, servers: usize, unit: &str) -> Vec<Cell> {
    let name = name_of(transport, ports, servers, unit);
    let place = |what: &str| Place {
        figure: format!("{what}: {transport}{}", ports.name()),
        series: format!("blocks of {unit}"),
        x: servers.to_string(),
        x_number: Some(servers as f64),
        x_label: "Servers".into(),
    };
    let mut rate = Cell::new(name.clone(), "B/s", Better::Higher);
    rate.place = Some(place("Reads striped over servers"));
    let mut cpu = Cell::new(format!("{name}: processors"), "s/GiB", Better::Lower);
    cpu.place = Some(place("Processor time of the reader"));
    vec![rate, cpu]
}

/// The plan entry of a transport.
fn wanted(
    transport: &Transport,
    ports: Ports,
    servers: usize,
    (unit, name): (u64, &str),
    settings: &Settings,
) -> PlanEntry<StripingMeasurement> {
    let mut cells = cells(transport.name, ports, servers, name);
    let scale = settings.scale;
    if unit == UNITS[0].0 {
        let why = if scale < 1.0 { format!("times {scale}, as the links are") } else { String::new() };
        cells[0].published.push(transport.published[servers - 1].scaled(scale, &why));
    }
    cells[0].cite(transport.found(servers, unit));
    let scaled = |rate: u64| Some((rate as f64 * scale) as u64);
    let how = transport.link.map(|rate| StripingMeasurement { ports, rate: scaled(rate), servers, unit });
    PlanEntry { cells, how: how.map_err(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::tests;

    fn settings(scale: f64, targets: &[&str]) -> Settings {
        Settings { scale, ..tests::settings(false, targets) }
    }

    #[test]
    fn every_published_number_is_wanted() {
        let all = Striping::plan(&settings(1.0, &[]));
        assert_eq!(all.len(), (4 + 2) * 4 * 3);
        let one =
            all.iter().filter(|one| one.how.as_ref().is_ok_and(|case| case.ports == Ports::One)).count();
        assert_eq!(one, 2 * 4 * 3, "all servers at one port, too");
        tests::assert_cited::<Striping>(&settings(1.0, &[]));
        let published: Vec<f64> =
            all.iter().flat_map(|one| &one.cells[0].published).map(|published| published.value).collect();
        let expected: Vec<f64> = {
            let of = |transport: &Transport| transport.published.map(|one| one.value());
            let both = |transport: &Transport| if transport.link.is_ok() { 2 } else { 1 };
            TRANSPORTS.iter().flat_map(|one| of(one).repeat(both(one))).collect()
        };
        assert_eq!(published, expected);
        let missing = all.iter().filter(|one| one.how.is_err()).count();
        assert_eq!(missing, 2 * 4 * 3, "cells that need other hardware are listed");
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
        let case =
            StripingMeasurement { ports: Ports::Each, rate: Some(10_000_000), servers: 1, unit: 1 << 20 };
        assert!(first.how == Ok(case));
    }

    #[test]
    fn devices_that_are_named_stand_for_themselves() {
        let all = Striping::plan(&settings(1.0, &["a", "b"]));
        assert_eq!(all.len(), 2 * 3);
        assert!(all.iter().all(|one| one.cells[0].published.is_empty()));
    }
}
