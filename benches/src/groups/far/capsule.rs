//! Writes that bring their data in the capsule against writes whose data the
//! target asks for (R2T), over the round trip.

use super::super::{block_size, memory_backend};
use super::{MB, RATES, ROUND_TRIPS, client, commands};
use crate::link::{self, Link};
use crate::program::{self, Load, Target};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_wan::Conditions;

const SIZES: [u64; 2] = [128 << 10, 1 << 20];

/// What the targets take in a capsule: all of these sizes, or none.
const IN_CAPSULE: [&str; 2] = ["1MiB", "4KiB"];

/// The rate at which the curve is taken, in bits per second: the last one of
/// the list, where a wasted round trip costs most.
fn rate(setup: &Setup) -> Result<u64> {
    setup.rates(&RATES).last().copied().context("no rate to measure at")
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "capsule",
        &[
            "link",
            "write",
            "one at a time, in capsule, round trips",
            "by R2T, round trips",
            "one at a time, in capsule, Mb/s",
            "by R2T, Mb/s",
            "tuned, in capsule, Mb/s",
            "tuned, by R2T, Mb/s",
        ],
    );
    let rate = rate(setup)?;
    for &rtt in setup.round_trips(&ROUND_TRIPS) {
        let link = Link::start(Conditions::new(rtt, Some(rate)), None)?;
        measure(setup, &link, rate, &mut section)?;
    }
    section.notes.push(
        "One at a time: `--iodepth 1`, with the time of a write in round trips of the link; it holds the \
         transmission of the data, too, and TCP's slow start again after each pause. Tuned: no depth given"
            .into(),
    );
    if let Some(&rtt) = setup.round_trips(&ROUND_TRIPS).first() {
        section.commands = commands(setup, rate, rtt, "", " --in-capsule 4KiB");
        let load = "longhaul bench URI --rw write --bs 1MiB --runtime 2s --ramp 700ms";
        section.commands.push(client(&format!("{load} --iodepth 1 --congestion {}", setup.congestion)));
    }
    Ok(section)
}

fn measure(setup: &Setup, link: &Link, rate: u64, section: &mut Section) -> Result<()> {
    let setup = &link.setup(setup, 1);
    let engine = setup.engines.first().context("no engine to measure with")?;
    let start = |size| Target::start(setup, engine, &memory_backend(setup), &["--in-capsule", size]);
    let targets = IN_CAPSULE.map(start);
    let targets = targets.into_iter().collect::<Result<Vec<_>>>()?;
    for bs in SIZES {
        let subjects = [(0, Some(1)), (1, Some(1)), (0, None), (1, None)];
        let measured = setup.interleave(&subjects, |&(target, iodepth)| {
            let load = Load { iodepth, ..Load::tuned("write", bs) };
            let target: &Target = &targets[target];
            link.on_time(|| program::load(setup, engine, &target.uri, &load, Some(target), &[]))
        })?;
        let case = format!("{}, {}", link::rate(rate), link::round_trip(link.rtt()));
        let rates: Vec<Samples> = measured.iter().map(|m| Samples::of(m, |m| m.rate)).collect();
        let trips = |i: usize| Samples::of(&measured[i], |m| m.latency / link.rtt().as_secs_f64());
        for (i, what) in
            ["depth 1, in capsule", "depth 1, R2T", "tuned, in capsule", "tuned, R2T"].iter().enumerate()
        {
            section.keep(&format!("{case}, {}", block_size(bs)), what, "bytes/s", &rates[i]);
            eprintln!("  {case}, {}, {what}: {}", block_size(bs), rates[i].show(MB, 0));
        }
        let [once, twice] = [trips(0).show(1.0, 2), trips(1).show(1.0, 2)];
        let mut cells = vec![case, block_size(bs), once, twice];
        cells.extend(rates.iter().map(|r| r.show(MB, 0)));
        section.row(cells);
    }
    Ok(())
}
