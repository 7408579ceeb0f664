//! 4 KiB reads, one at a time: the time beyond the round trip of the link.

use super::super::memory_backend;
use super::{RATES, ROUND_TRIPS, client, commands};
use crate::link::{self, Link};
use crate::program::{self, Load, Target};
use crate::reference::{Memory, Wait, ping_pong};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_wan::Conditions;
use std::time::Duration;

/// The most that may be added, in seconds.
const CEILING: f64 = 100e-6;

const BS: u64 = 4096;
/// Seconds of the unit in the table.
const MICRO: f64 = 1e-6;

#[derive(Clone, Copy)]
enum Subject {
    Ours,
    /// A bare request and response over the same link.
    Bare,
    /// The same over loopback, with a pause of the round trip before each request: the part of the
    /// time that is due to the machine, and not to the link.
    Loopback,
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "latency",
        &[
            "link",
            "mean of a read, ms",
            "beyond the round trip, µs",
            "≤ 100 µs",
            "bare request and response, beyond the round trip, µs",
            "of longhaul beyond it, µs",
            "≤ 100 µs",
            "the same exchange over loopback, after as long a pause, µs",
        ],
    );
    let memory = Memory::new(setup.size)?;
    for &rate in setup.rates(&RATES) {
        for &rtt in setup.round_trips(&ROUND_TRIPS) {
            let link = Link::start(Conditions::new(rtt, Some(rate)), None)?;
            measure(setup, &link, rate, &memory, &mut section)?;
        }
    }
    section.notes.push(
        "A read of 4 KiB is on the wire for 34 µs at 1 Gb/s and for 17 µs at 2 Gb/s, which is part of what is \
         beyond the round trip. Bare request and response: 72 bytes there and 24 + 4096 bytes back, each side \
         asleep until bytes come. Over an emulated link each exchange wakes six sleepers (target, load, and the \
         emulator twice each way), over loopback two: after a pause of 100 ms every one of them finds cold caches"
            .into(),
    );
    if let (Some(&rate), Some(&rtt)) = (setup.rates(&RATES).first(), setup.round_trips(&ROUND_TRIPS).first())
    {
        section.commands = commands(setup, rate, rtt, "", "");
        let load = "longhaul bench URI --rw randread --bs 4KiB --iodepth 1 --runtime 1s --ramp 300ms";
        section.commands.push(client(&format!("{load} --congestion {}", setup.congestion)));
    }
    Ok(section)
}

fn measure(setup: &Setup, link: &Link, rate: u64, memory: &Memory, section: &mut Section) -> Result<()> {
    // Nothing has to grow here: windows are for the number of samples only.
    let here = &Setup { ramp: Duration::from_millis(300), ..setup.clone() };
    let setup = &Setup {
        ramp: Duration::from_millis(300) + 3 * link.rtt(),
        runtime: Duration::from_secs(1) + 10 * link.rtt(),
        ..link.setup(setup, 1)
    };
    let engine = setup.engines.first().context("no engine to measure with")?;
    let target = Target::start(setup, engine, &memory_backend(setup), &[])?;
    let measured = setup.interleave(&[Subject::Ours, Subject::Bare, Subject::Loopback], |subject| {
        link.on_time(|| match subject {
            Subject::Ours => {
                program::load(setup, engine, &target.uri, &Load::new("randread", BS, 1), Some(&target), &[])
            }
            Subject::Bare => ping_pong(setup, Wait::Blocking, memory),
            Subject::Loopback => ping_pong(
                &Setup { runtime: setup.runtime, ..here.clone() },
                Wait::Pausing(link.rtt()),
                memory,
            ),
        })
    })?;
    let case = format!("{}, {}", link::rate(rate), link::round_trip(link.rtt()));
    let all = Samples::of(&measured[0], |m| m.latency);
    let [ours, bare] = [0, 1].map(|i| Samples::of(&measured[i], |m| m.latency - link.rtt().as_secs_f64()));
    let added = Samples(ours.0.iter().zip(&bare.0).map(|(ours, bare)| ours - bare).collect());
    let loopback = Samples::of(&measured[2], |m| m.latency);
    eprintln!("  {case}: {}, {}, {}", ours.show(MICRO, 0), bare.show(MICRO, 0), loopback.show(MICRO, 0));
    section.keep(&case, "longhaul", "seconds", &all);
    section.keep(&case, "bare, beyond the round trip", "seconds", &bare);
    section.keep(&case, "bare, over loopback after pauses", "seconds", &loopback);
    section.row(vec![
        case,
        all.show(1e-3, 3),
        ours.show(MICRO, 0),
        ours.at_most(CEILING).into(),
        bare.show(MICRO, 0),
        added.show(MICRO, 0),
        added.at_most(CEILING).into(),
        loopback.show(MICRO, 0),
    ]);
    Ok(())
}
