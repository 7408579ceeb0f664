//! What redundancy costs sequential I/O: parity and double parity against a
//! stripe of as many data members, and reads without one member against reads
//! with all of them.

use super::super::{block_size, memory_backend};
use super::{MB, Star};
use crate::link;
use crate::program::{Load, Target};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::Result;
use longhaul_wan::Conditions;
use std::time::Duration;

const RATE: u64 = 200_000_000;
const ROUND_TRIPS: [Duration; 2] = [Duration::from_micros(150), Duration::from_millis(15)];
/// Whole stripes, and parts that have to be gathered.
const SIZES: [u64; 2] = [1 << 20, 128 << 10];

/// A load of parts of stripes begins with some that go through the journal, and
/// whole stripes end several at a time: what lasts is measured, for longer.
const SETTLE: Duration = Duration::from_millis(1200);
const WINDOW: Duration = Duration::from_secs(2);

/// Units of data in a stripe, of all arrays.
const DATA: usize = 4;
const SERVERS: usize = DATA + 2;

/// The least share of the stripe, and of reads with all members.
const FLOOR: f64 = 0.90;
const FLOOR_DEGRADED: f64 = 0.70;

/// An array of the comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Subject {
    layout: &'static str,
    /// Members beyond those of data.
    redundancy: usize,
    /// Without its first member.
    degraded: bool,
}

const STRIPE: Subject = Subject { layout: "stripe", redundancy: 0, degraded: false };
const SUBJECTS: [Subject; 5] = [
    STRIPE,
    Subject { layout: "parity", redundancy: 1, degraded: false },
    Subject { layout: "double-parity", redundancy: 2, degraded: false },
    Subject { layout: "parity", redundancy: 1, degraded: true },
    Subject { layout: "double-parity", redundancy: 2, degraded: true },
];

/// Arrays by subject.
struct Arrays {
    star: Star,
    names: Vec<String>,
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "redundancy",
        &["links", "load", "array", "Mb/s", "compared with", "ratio", "floor", "met"],
    );
    let setup = &Setup { runtime: WINDOW, ..setup.clone() };
    for &rate in setup.rates(&[RATE]) {
        for &rtt in setup.round_trips(&ROUND_TRIPS) {
            let place = format!("{}, {}", link::rate(rate), link::round_trip(rtt));
            let arrays = prepare(setup, Conditions::new(rtt, Some(rate)))?;
            for bs in SIZES {
                // Writes first, so that there is content to read.
                for (rw, subjects) in [("write", &SUBJECTS[..3]), ("read", &SUBJECTS)] {
                    measure(&arrays, &place, (rw, bs), subjects, &mut section)?;
                }
            }
            section.notes.extend(arrays.star.lateness(&place));
        }
    }
    section.notes.push(format!(
        "{DATA} units of 256 KiB of data in each stripe, each member behind a link of its own: stripe of {DATA}, \
         parity of {}, double-parity of {}. A stripe has 1 MiB, so that writes of 128 KiB have to be gathered. \
         Windows of {} s after 1.6 s and 30 round trips of load. Reads of a parity layout come from all its \
         members, and can be faster than the links of {DATA}",
        DATA + 1,
        DATA + 2,
        setup.runtime.as_secs_f64()
    ));
    section.notes.push(
        "One member gone: the target of the first member was killed, and the array assembled without it"
            .into(),
    );
    section.commands = super::commands(setup, RATE, ROUND_TRIPS[1], DATA + 1, "parity");
    let load = "longhaul bench array:scratch --rw write --bs 1MiB --runtime 1s --ramp 850ms";
    section.commands.push(super::client(&format!("{load} --congestion {}", setup.congestion)));
    Ok(section)
}

/// Makes all arrays, and takes the first member of some away.
fn prepare(setup: &Setup, conditions: Conditions) -> Result<Arrays> {
    let mut star = Star::start(setup, conditions, SERVERS, SUBJECTS.len())?;
    star.servers.iter_mut().for_each(|server| server.setup.ramp += SETTLE);
    let doomed =
        Target::start_many(star.setup(), &star.engine, &memory_backend(star.setup()), SUBJECTS.len(), &[])?;
    let create = |(number, subject): (usize, &Subject)| {
        let mut devices = star.uris(number);
        devices.truncate(DATA + subject.redundancy);
        if subject.degraded {
            devices[0] = &doomed.uris[number];
        }
        let name = star.create(&format!("bench{number}"), subject.layout, &devices, &[])?;
        if subject.degraded {
            star.rate(&name, &Load::tuned("write", SIZES[0]))?;
        }
        Ok(name)
    };
    let names = SUBJECTS.iter().enumerate().map(create).collect::<Result<_>>()?;
    doomed.kill()?;
    Ok(Arrays { star, names })
}

fn measure(
    arrays: &Arrays,
    place: &str,
    (rw, bs): (&'static str, u64),
    subjects: &[Subject],
    section: &mut Section,
) -> Result<()> {
    let Arrays { star, names } = arrays;
    let case = format!("{place}, {} {rw}", block_size(bs));
    let numbered: Vec<usize> = (0..subjects.len()).collect();
    let measured = star.setup().interleave_kept(&format!("redundancy: {case}"), &numbered, |&number| {
        let rate = star.rate_on_time(&names[number], &Load::tuned(rw, bs))?;
        eprintln!("  {case}, {}: {:.0} Mb/s", title(&subjects[number]), rate / MB);
        Ok(rate)
    })?;
    let samples: Vec<Samples> = measured.into_iter().map(Samples).collect();
    for (number, subject) in subjects.iter().enumerate() {
        let ours = &samples[number];
        section.keep(&case, &title(subject), "bytes/s", ours);
        let mut cells =
            vec![place.to_owned(), format!("{} {rw}", block_size(bs)), title(subject), ours.show(MB, 0)];
        // A degraded one is compared with itself, all others with the stripe.
        let healthy = Subject { degraded: false, ..*subject };
        let (with, floor) = if subject.degraded { (healthy, FLOOR_DEGRADED) } else { (STRIPE, FLOOR) };
        match subjects.iter().position(|other| *other == with) {
            Some(other) if other != number => {
                let ratio = ours.ratio(&samples[other]);
                let met = ratio.at_least(floor).into();
                cells.extend([title(&with), ratio.show_ratio(), format!("≥ {floor}"), met]);
            }
            _ => cells.extend(["–"; 4].map(String::from)),
        }
        section.row(cells);
    }
    Ok(())
}

fn title(subject: &Subject) -> String {
    let Subject { layout, redundancy, degraded } = subject;
    let gone = if *degraded { ", one member gone" } else { "" };
    match redundancy {
        0 => format!("{layout} of {DATA}"),
        _ => format!("{layout} {DATA}+{redundancy}{gone}"),
    }
}
