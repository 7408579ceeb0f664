//! How long many queues to a far target take to be ready.

use super::super::memory_backend;
use super::{client, commands, path_info};
use crate::link::{self, Link};
use crate::program::Target;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_wan::Conditions;
use std::time::Duration;

/// The most round trips that all of it may take.
const CEILING: f64 = 6.0;

const RATE: u64 = 1_000_000_000;
const ROUND_TRIPS: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(15), Duration::from_millis(100)];
const QUEUES: [u64; 2] = [1, 64];

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section =
        Section::new("queues", &["link", "I/O queues", "ready after, ms", "round trips", "≤ 6"]);
    for rtt in ROUND_TRIPS {
        let link = Link::start(Conditions::new(rtt, Some(RATE)), None)?;
        let setup = &link.setup(setup, 1);
        let engine = setup.engines.first().context("no engine to measure with")?;
        let target = Target::start(setup, engine, &memory_backend(setup), &[])?;
        let measured = setup.interleave(&QUEUES, |&queues| link.on_time(|| ready(setup, &target, queues)))?;
        for (queues, seconds) in QUEUES.iter().zip(measured) {
            let seconds = Samples(seconds);
            let trips = Samples::of(&seconds.0, |s| s / rtt.as_secs_f64());
            let name = format!("{}, {}", link::rate(RATE), link::round_trip(rtt));
            section.keep(&format!("{name}, {queues}"), "ready", "seconds", &seconds);
            // Some of a short round trip is the processor's.
            let met = if rtt == ROUND_TRIPS[2] { trips.at_most(CEILING) } else { "–" };
            let cells = [name, queues.to_string(), seconds.show(1e-3, 1), trips.show(1.0, 2), met.into()];
            section.row(cells.to_vec());
        }
    }
    section.notes.push(
        "From the call that connects, TCP included, until the controller and all I/O queues are ready, as \
         `setup_us` in `info --path --json` tells; round trips are those of the link"
            .into(),
    );
    section.commands = commands(setup, RATE, ROUND_TRIPS[2], "", "");
    section.commands.push(client("longhaul info URI --path --connections 64 --json"));
    Ok(section)
}

/// Seconds until `queues` I/O queues are ready.
fn ready(setup: &Setup, target: &Target, queues: u64) -> Result<f64> {
    let summary = path_info(setup, target, &["--connections", &queues.to_string()])?;
    let up = &summary["setup"];
    ensure!(up["queues"].as_u64() == Some(queues), "{queues} queues were asked for: {up}");
    Ok(up["setup_us"].as_f64().context("no setup_us")? / 1e6)
}
