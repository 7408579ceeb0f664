//! Six remote devices, striped, against one of them.

use super::super::block_size;
use super::{MB, Star};
use crate::link;
use crate::program::{self, Load};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::Result;
use longhaul_wan::Conditions;
use std::time::Duration;

const SERVERS: usize = 6;
/// One that is loaded by itself, and one that is a member.
const EXPORTS: usize = 2;
const RATE: u64 = 300_000_000;
const RTT: Duration = Duration::from_millis(15);
const SIZES: [u64; 2] = [128 << 10, 1 << 20];

/// The least that six may be of one: where each has a link of its own, and
/// where all of them and the load share the same processors.
const FLOOR_LINKS: f64 = 0.95 * SERVERS as f64;
const FLOOR_LOCAL: f64 = 0.85;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "six",
        &["place", "load", "one device, Mb/s", "six, Mb/s", "six of one", "floor", "met"],
    );
    let local = Star::local(setup, SERVERS, EXPORTS)?;
    measure(&local, "loopback", FLOOR_LOCAL, &mut section)?;
    drop(local);
    for &rate in setup.rates(&[RATE]) {
        for &rtt in setup.round_trips(&[RTT]) {
            let star = Star::start(setup, Conditions::new(rtt, Some(rate)), SERVERS, EXPORTS)?;
            let place = format!("{} each, {}", link::rate(rate), link::round_trip(rtt));
            measure(&star, &place, FLOOR_LINKS, &mut section)?;
            section.notes.extend(star.lateness(&place));
        }
    }
    section.notes.push(format!(
        "Loopback: all is written once before; windows of {} s after {} s of load; six targets share one processor, the load has another, so \
         that six can be no faster than one, and the floor is about what striping costs. Links: windows of as \
         long after 0.4 s and 30 round trips",
        setup.runtime.as_secs_f64(),
        setup.ramp.as_secs_f64()
    ));
    section.commands = super::commands(setup, RATE, RTT, SERVERS, "stripe");
    section
        .commands
        .push(super::client("longhaul bench array:scratch --rw read --bs 1MiB --runtime 1s --ramp 850ms"));
    Ok(section)
}

fn measure(star: &Star, place: &str, floor: f64, section: &mut Section) -> Result<()> {
    let one = star.uris(0)[0];
    let six = star.create("six", "stripe", &star.uris(1), &[])?;
    if star.link.is_none() {
        // A device in memory that was never written costs a fault a page, and
        // six of them six times as many: over links that is hidden.
        for device in [one, &six] {
            program::fill(star.setup(), &star.engine, device)?;
        }
    }
    for bs in SIZES {
        for rw in ["write", "read"] {
            let case = format!("{place}, {} {rw}", block_size(bs));
            let measured = star.setup().interleave_kept(&format!("six: {case}"), &[one, &six], |device| {
                let rate = star.rate_on_time(device, &Load::tuned(rw, bs))?;
                eprintln!("  {case}, {device}: {:.0} Mb/s", rate / MB);
                Ok(rate)
            })?;
            let [alone, striped] = [0, 1].map(|i| Samples(measured[i].clone()));
            section.keep(&case, "one", "bytes/s", &alone);
            section.keep(&case, "six", "bytes/s", &striped);
            let ratio = striped.ratio(&alone);
            section.row(vec![
                place.to_owned(),
                format!("{} {rw}", block_size(bs)),
                alone.show(MB, 0),
                striped.show(MB, 0),
                ratio.show_ratio(),
                format!("≥ {floor:.2}"),
                ratio.at_least(floor).into(),
            ]);
        }
    }
    Ok(())
}
