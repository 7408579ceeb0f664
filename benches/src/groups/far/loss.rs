//! Links that lose and reorder, and routers with small queues, against as many
//! plain TCP streams as we opened connections.

use super::super::memory_backend;
use super::{MB, client, commands};
use crate::link::{self, Link};
use crate::program::{self, Load, Target};
use crate::reference::Iperf;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_wan::{Conditions, DirectionConditions, Queue};
use std::time::Duration;

/// The least share of the plain streams that is good enough. Two random
/// processes are compared: the same one twice differs by some percent.
const FLOOR: f64 = 1.0;

const RATE: u64 = 1_000_000_000;
const NEAR: Duration = Duration::from_millis(15);
const FAR: Duration = Duration::from_millis(100);

/// Losses come at random: windows are longer than elsewhere.
const WINDOW: Duration = Duration::from_secs(4);

/// How long the tuner may try connections; plain streams start with all of theirs.
const SETTLING: Duration = Duration::from_secs(8);

struct Case {
    name: &'static str,
    /// The same in words of `longhaul wan`.
    flags: &'static str,
    change: fn(&mut DirectionConditions),
}

const CASES: [Case; 4] = [
    Case { name: "0.1 % loss", flags: "--loss 0.1%", change: |way| way.loss = 0.001 },
    Case { name: "1 % loss", flags: "--loss 1%", change: |way| way.loss = 0.01 },
    Case {
        name: "queue of a tenth",
        flags: "--queue 0.1bdp",
        change: |way| way.queue = Queue::Products(0.1),
    },
    Case {
        name: "1 % overtaken by 1 ms",
        flags: "--reorder 1%",
        change: |way| (way.reorder, way.reorder_by) = (0.01, Duration::from_millis(1)),
    },
];

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "loss",
        &["link", "load", "connections", "Longhaul, Mb/s", "as many iperf3 streams, Mb/s", "ratio", "≥ 1"],
    );
    for (rtt, case) in CASES.iter().map(|case| (NEAR, case)).chain([(FAR, &CASES[0])]) {
        let mut conditions = Conditions::new(rtt, Some(RATE));
        (case.change)(&mut conditions.there);
        (case.change)(&mut conditions.back);
        measure(setup, &Link::start(conditions, None)?, case, &mut section)?;
    }
    section.notes.push(format!(
        "{}, windows of 4 s and 10 round trips after 0.7 s and 30 round trips of load, and 8 s more for longhaul, in which the tuner tries connections; losses, queues and reordering in both directions. Connections: \
         what was chosen by measurement; iperf3 then gets as many streams in the same round",
        link::rate(RATE)
    ));
    let case = &CASES[0];
    section.commands = commands(setup, RATE, NEAR, &format!(" {}", case.flags), "");
    let congestion = &setup.congestion;
    section.commands.extend([
        client(&format!("longhaul bench URI --rw read --bs 1MiB --runtime 4s --ramp 9150ms --congestion {congestion}")),
        client(&format!("iperf3 --client 10.77.1.2 --congestion {congestion} --parallel CONNECTIONS --length 128K --no-delay --reverse")),
    ]);
    Ok(section)
}

fn measure(setup: &Setup, link: &Link, case: &Case, section: &mut Section) -> Result<()> {
    let setup = &Setup { runtime: setup.runtime.max(WINDOW), ..setup.clone() };
    let plain = &link.setup(setup, 1);
    let setup = &Setup { ramp: plain.ramp + SETTLING, ..plain.clone() };
    let engine = setup.engines.first().context("no engine to measure with")?;
    let target = Target::start(setup, engine, &memory_backend(setup), &[])?;
    let iperf =
        Iperf::start(setup)?.context("iperf3 is the reference of this group, and is not installed")?;
    for rw in ["read", "write"] {
        let write = rw == "write";
        let mut columns = [const { Vec::new() }; 3];
        for _ in 0..setup.rounds {
            let load = Load::tuned(rw, 1 << 20);
            let ours =
                link.on_time(|| program::load(setup, engine, &target.uri, &load, Some(&target), &[]))?;
            let many = link.on_time(|| iperf.parallel(plain, write, 128 << 10, ours.connections))?;
            eprintln!(
                "  {} {rw} {}: {:.0} on {} connections, {:.0}",
                case.name,
                link::round_trip(link.rtt()),
                ours.rate / MB,
                ours.connections,
                many / MB
            );
            for (column, value) in columns.iter_mut().zip([f64::from(ours.connections), ours.rate, many]) {
                column.push(value);
            }
        }
        let [connections, ours, many] = columns.map(Samples);
        let name = format!("{}, {}", link::round_trip(link.rtt()), case.name);
        let ratio = ours.ratio(&many);
        for (subject, samples) in [("longhaul", &ours), ("as many streams", &many)] {
            section.keep(&format!("{name}, {rw}"), subject, "bytes/s", samples);
        }
        section.row(vec![
            name,
            rw.into(),
            connections.show(1.0, 0),
            ours.show(MB, 0),
            many.show(MB, 0),
            ratio.show_ratio(),
            ratio.at_least(FLOOR).into(),
        ]);
    }
    Ok(())
}
