//! Two loads on one link: two of longhaul, one of longhaul beside a plain stream, and two plain
//! streams.

use super::super::memory_backend;
use super::{MB, client, commands};
use crate::link::{self, Link};
use crate::program::{self, Load, Target};
use crate::reference::Iperf;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_wan::Conditions;
use std::time::Duration;

const RATE: u64 = 1_000_000_000;
const ROUND_TRIPS: [Duration; 2] = [Duration::from_millis(15), Duration::from_millis(100)];

/// Connections that start to share a link need some hundred round trips to
/// converge.
const MEETING: Duration = Duration::from_secs(5);
const WINDOW: Duration = Duration::from_secs(6);

#[derive(Clone, Copy, PartialEq)]
enum Other {
    Ours,
    Plain,
    /// Beside a plain stream another one, which begins later by as much as our connections take.
    Twice,
}

/// Round trips until a device is open and the first I/O is on its way; iperf3 needs two.
const LATER: u32 = 4;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section =
        Section::new("share", &["link", "load", "one", "Mb/s", "the other", "Mb/s", "share of the first"]);
    for rtt in ROUND_TRIPS {
        let link = Link::start(Conditions::new(rtt, Some(RATE)), None)?;
        measure(setup, &link, &mut section)?;
    }
    section.notes.push(format!(
        "{}; both begin at the same time, and are measured for {WINDOW:?} after {MEETING:?} and 30 round trips. \
         An even share is 0.5. CUBIC needs tens of seconds at 100 ms until a stream that began later has its \
         half: the third pair is two iperf3, one of which begins {LATER} round trips later, as the first I/O of a \
         device does",
        link::rate(RATE)
    ));
    section.commands = commands(setup, RATE, ROUND_TRIPS[0], "", "");
    let load = "longhaul bench URI --rw read --bs 1MiB --runtime 6s --ramp 6150ms";
    section.commands.push(client(&format!("{load} --congestion {} &", setup.congestion)));
    section.commands.push(client(&format!("{load} --congestion {}", setup.congestion)));
    Ok(section)
}

fn measure(setup: &Setup, link: &Link, section: &mut Section) -> Result<()> {
    let setup = link.setup(setup, 1);
    let setup = &Setup { ramp: setup.ramp + MEETING, runtime: setup.runtime.max(WINDOW), ..setup };
    let engine = setup.engines.first().context("no engine to measure with")?;
    let targets = [0, 1].map(|_| Target::start(setup, engine, &memory_backend(setup), &[]));
    let [one, two] = targets;
    let (one, two) = (one?, two?);
    let missing = "iperf3 is the reference of this group, and is not installed";
    let iperf = Iperf::start(setup)?.context(missing)?;
    let second = Iperf::start(setup)?.context(missing)?;
    for rw in ["read", "write"] {
        let load = Load::tuned(rw, 1 << 20);
        let ours = |target: &Target| Ok(program::load(setup, engine, &target.uri, &load, None, &[])?.rate);
        let measured = setup.interleave(&[Other::Ours, Other::Plain, Other::Twice], |other| {
            link.on_time(|| {
                std::thread::scope(|scope| {
                    let beside = scope.spawn(|| match other {
                        Other::Ours => ours(&two),
                        Other::Plain | Other::Twice => iperf.run(setup, rw == "write", 128 << 10),
                    });
                    let rate = match other {
                        Other::Twice => {
                            std::thread::sleep(LATER * link.rtt());
                            second.run(setup, rw == "write", 128 << 10)?
                        }
                        _ => ours(&one)?,
                    };
                    let beside: Result<f64> = beside.join().expect("a thread that does not panic");
                    Ok((rate, beside?))
                })
            })
        })?;
        let pairs =
            [("Longhaul", "another Longhaul"), ("Longhaul", "iperf3"), ("iperf3, begun later", "iperf3")];
        for ((one, other), measured) in pairs.into_iter().zip(measured) {
            let name = format!("{}, {}", link::rate(RATE), link::round_trip(link.rtt()));
            let [ours, theirs] = [Samples::of(&measured, |m| m.0), Samples::of(&measured, |m| m.1)];
            let share = Samples::of(&measured, |m| m.0 / (m.0 + m.1));
            eprintln!("  {name}, {rw}, {one} beside {other}: {}", share.show_ratio());
            section.keep(&format!("{name}, {rw}, beside {other}"), one, "share", &share);
            section.row(vec![
                name,
                rw.into(),
                one.into(),
                ours.show(MB, 0),
                other.into(),
                theirs.show(MB, 0),
                share.show_ratio(),
            ]);
        }
    }
    Ok(())
}
