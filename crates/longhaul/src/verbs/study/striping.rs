//! The experiment of the Network Storage Manager: a file of 250 MB, striped over
//! 1 to 4 servers, read from their memory; mean of ten runs.

use super::rig::Rig;
use super::{Settings, Wanted, Work};
use crate::exit::Failure;
use longhaul_bench::record::{Better, Cell, Place, Published};
use std::time::Duration;

const SOURCE: &str = "Network Storage Manager, blocks of 1 MB";
const MOST: usize = 4;
/// Stripe units: as published, and with which its collapse went away.
const UNITS: [(u64, &str); 2] = [(1 << 20, "1 MiB"), (64 << 10, "64 KiB")];
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
    pub(super) rate: Option<u64>,
    servers: usize,
    unit: u64,
}

/// All numbers of the study.
pub(super) fn plan(settings: &Settings) -> Vec<Wanted> {
    let mut all = Vec::new();
    if !settings.targets.is_empty() {
        for servers in 1..=settings.targets.len() {
            for (unit, name) in UNITS {
                let cell = cell("these devices", servers, name);
                all.push(Wanted { cell, work: Work::Stripe(Case { rate: None, servers, unit }) });
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
                let work = match transport.link {
                    Ok(rate) => {
                        let rate = (rate as f64 * settings.scale) as u64;
                        Work::Stripe(Case { rate: Some(rate), servers, unit })
                    }
                    Err(why) => Work::NotAvailable(why.into()),
                };
                all.push(Wanted { cell, work });
            }
        }
    }
    all
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

/// Measures a number, on a rig that is made or kept.
pub(super) fn measure(
    case: &Case,
    settings: &Settings,
    rig: &mut Option<Rig>,
    cell: &mut Cell,
) -> Result<(), Failure> {
    if rig.as_ref().is_none_or(|rig| rig.rate() != case.rate) {
        // The old one goes first: both together would be too much.
        *rig = None;
        *rig = Some(match case.rate {
            Some(rate) => Rig::emulated(MOST, rate, RTT)?,
            None => Rig::named(&settings.targets),
        });
    }
    let Some(rig) = rig else { return Err(Failure::failed("there are no links")) };
    let (unit, runs) = (case.unit.to_string(), settings.runs.to_string());
    let runtime = format!("{}ms", settings.runtime.as_millis());
    let mut args = vec!["bench"];
    args.extend(rig.uris().iter().take(case.servers).map(String::as_str));
    if case.servers > 1 {
        args.extend(["--layout", "stripe", "--stripe-unit", &unit]);
    }
    args.extend(["--rw", "read", "--bs", &unit, "--ramp", "500ms", "--runtime", &runtime, "--runs", &runs]);
    rig.bench(&args, "read bandwidth", cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(scale: f64, targets: &[&str]) -> Settings {
        let targets = targets.iter().map(|uri| (*uri).to_owned()).collect();
        Settings { targets, scale, runs: 1, runtime: Duration::from_secs(1) }
    }

    #[test]
    fn every_published_number_is_wanted() {
        let all = plan(&settings(1.0, &[]));
        assert_eq!(all.len(), 4 * 4 * 2);
        let published: Vec<f64> =
            all.iter().flat_map(|one| &one.cell.published).map(|p| p.value / 1e6).collect();
        let expected: Vec<f64> = TRANSPORTS.iter().flat_map(|transport| transport.published).collect();
        assert_eq!(published, expected);
        let missing = all.iter().filter(|one| matches!(one.work, Work::NotAvailable(_))).count();
        assert_eq!(missing, 2 * 4 * 2, "what needs other hardware is not left out");
        let mut names: Vec<&str> = all.iter().map(|one| one.cell.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len(), "a name is of one number only");
    }

    #[test]
    fn what_was_published_is_scaled_as_the_links_are() {
        let all = plan(&settings(0.1, &[]));
        let first = &all[0];
        assert!(
            (first.cell.published[0].value - 0.927e6).abs() < 1.0
                && first.cell.published[0].source.contains("times 0.1")
        );
        assert!(matches!(first.work, Work::Stripe(Case { rate: Some(10_000_000), servers: 1, .. })));
    }

    #[test]
    fn devices_that_are_named_stand_for_themselves() {
        let all = plan(&settings(1.0, &["a", "b"]));
        assert_eq!(all.len(), 2 * 2);
        assert!(all.iter().all(|one| one.cell.published.is_empty()));
    }
}
