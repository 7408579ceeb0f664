//! Measurements over emulated long links. Needs root.

pub(crate) mod capsule;
pub(crate) mod cut;
pub(crate) mod distance;
pub(crate) mod files;
pub(crate) mod latency;
pub(crate) mod loss;
pub(crate) mod paths;
pub(crate) mod queues;
pub(crate) mod share;

use super::MB;
use crate::link;
use crate::program::{self, Target};
use crate::setup::Setup;
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Duration;

/// Rates and round trips of links where nothing else is asked for.
const RATES: [u64; 2] = [1_000_000_000, 2_000_000_000];
const ROUND_TRIPS: [Duration; 7] = [
    Duration::from_micros(150),
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(15),
    Duration::from_millis(45),
    Duration::from_millis(100),
    Duration::from_millis(200),
];

/// What a person runs to have the link and the target of a measurement.
fn commands(setup: &Setup, rate: u64, rtt: Duration, more: &str, target: &str) -> Vec<String> {
    let rtt = link::round_trip(rtt).replace(' ', "");
    vec![
        format!("longhaul wan --rtt {rtt} --rate {}Gbit{more} --name link &", rate as f64 / 1e9),
        format!(
            "ip netns exec link-server longhaul target --insecure --listen 10.77.1.2:4420 --export bench={} --threads 1 \
             --congestion {}{target}",
            super::memory_backend(setup),
            setup.congestion
        ),
    ]
}

/// A load for a person to run on the client's side.
fn client(command: &str) -> String {
    format!("ip netns exec link-client {command}")
}

/// The output of `longhaul info URI --path --json` with these arguments, on the load's side.
fn path_info(setup: &Setup, target: &Target, arguments: &[&str]) -> Result<Value> {
    let mut command = setup.load.command(&setup.program);
    command
        .args(["info", &target.uri, "--path", "--json", "--congestion", &setup.congestion])
        .args(arguments);
    let text = program::finish(&mut command, setup)?;
    let last = text.lines().last().context("info printed nothing")?;
    serde_json::from_str(last).context("info's result")
}
