//! The program's own load against fio's on the same attached device.

use super::place::Place;
use super::{MB, RATE, Site, client, commands, repeat};
use crate::link;
use crate::program::{Load, load};
use crate::reference::fio;
use crate::report::Section;
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_lab::filesystems::{DeviceFormat, FAR, NEAR};
use std::time::Duration;

const ROUND_TRIPS: [Duration; 2] = [NEAR, FAR];
const DEPTH: u32 = 32;
/// How far the two may be apart.
const APART: f64 = 0.10;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section =
        Section::new("agree", &["link", "load", "fio, Mb/s", "bench, Mb/s", "of fio", "0.90 to 1.10"]);
    for &rtt in setup.round_trips(&ROUND_TRIPS) {
        let rig = std::cell::OnceCell::new();
        for rw in ["randread", "randwrite"] {
            for bs in [4 << 10, 64 << 10] {
                measure(setup, rtt, &Load::new(rw, bs, DEPTH), &rig, &mut section)?;
            }
        }
    }
    section.notes.push(format!(
        "A raw device of 2 GiB, attached as a file through FUSE; direct I/O, {DEPTH} under way, by fio with io_uring \
         and by `longhaul bench` on the same file, one after the other"
    ));
    section.commands = commands(setup, ROUND_TRIPS[1], "");
    section.commands.extend([
        client("longhaul attach nvme+tcp://10.77.1.2/bench --at /tmp/disk --via fuse"),
        "longhaul bench /tmp/disk --rw randread --bs 4k --iodepth 32 --runtime 1s --ramp 500ms".into(),
    ]);
    Ok(section)
}

fn measure(
    setup: &Setup,
    rtt: Duration,
    what: &Load,
    rig: &std::cell::OnceCell<(Place, Site)>,
    section: &mut Section,
) -> Result<()> {
    let link = format!("{}, {}", link::rate(RATE), link::round_trip(rtt));
    let words = format!("{}, {} KiB", what.rw, what.bs >> 10);
    let case = format!("agree: {link}, {words}");
    let begin = || {
        if rig.get().is_none() {
            let site = Site::start(setup, rtt, 1, &[])?;
            let place = Place::new(&site, "disk", DeviceFormat::Raw, &site.target.uris, &[])?;
            let _ = rig.set((place, site));
        }
        Ok(())
    };
    let found = repeat(setup, &case, &[false, true], begin, |&ours| {
        let (place, site) = rig.get().context("nothing was started")?;
        let file = place.path.to_str().context("a path that is no text")?;
        let (measured, _) = site.link.mostly_on_time(|| match ours {
            true => load(&site.setup, &site.engine, file, what, None, &[]),
            false => fio(&site.setup, &place.path, what),
        })?;
        Ok([measured.rate])
    })?;
    let [theirs, ours] = &found[..] else { return Ok(()) };
    let ratio = ours[0].ratio(&theirs[0]);
    section.keep(&case, "fio", "bytes/s", &theirs[0]);
    section.keep(&case, "bench", "bytes/s", &ours[0]);
    let agree = if (ratio.median() - 1.0).abs() <= APART { "yes" } else { "no" };
    section.row(vec![
        link,
        words,
        theirs[0].show(MB, 0),
        ours[0].show(MB, 0),
        ratio.show_ratio(),
        agree.into(),
    ]);
    Ok(())
}
