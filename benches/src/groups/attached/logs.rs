//! XFS log buffers of 32 KiB and of 256 KiB, near and far.

use super::place::{Place, sync};
use super::{MB, RATE, Site, client, commands, repeat};
use crate::link;
use crate::report::Section;
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_lab::filesystems::{BS, BYTES, DeviceFormat, FAR, NEAR, SMALL_LOG, WORKLOADS};
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

const ROUND_TRIPS: [Duration; 2] = [NEAR, FAR];
const BUFFERS: [&str; 2] = [SMALL_LOG, "logbsize=256k"];
/// Empty files that are made at once by so many threads: all of it is journal.
const MADE: usize = 4000;
const THREADS: usize = 8;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "logs",
        &[
            "link",
            "32 KiB: 1,000 files written, Mb/s",
            "256 KiB",
            "256 of 32 KiB",
            "32 KiB: files made and removed a second",
            "256 KiB",
            "256 of 32 KiB",
        ],
    );
    for &rtt in setup.round_trips(&ROUND_TRIPS) {
        measure(setup, rtt, &mut section)?;
    }
    section.notes.push(format!(
        "Workload D of the grid, and {MADE} empty files that {THREADS} threads make, and remove again, until all of \
         it is durable (`syncfs`): that is nothing but journal. `longhaul mount` takes 256 KiB by itself; a device \
         each, behind one link"
    ));
    section.commands = commands(setup, ROUND_TRIPS[1], "");
    section.commands.extend([
        client("longhaul mkfs --fs xfs nvme+tcp://10.77.1.2/bench"),
        client("longhaul mount nvme+tcp://10.77.1.2/bench /mnt -o logbsize=32k"),
    ]);
    Ok(section)
}

struct Rig {
    places: Vec<Place>,
    site: Site,
}

fn measure(setup: &Setup, rtt: Duration, section: &mut Section) -> Result<()> {
    let place = format!("{}, {}", link::rate(RATE), link::round_trip(rtt));
    let case = format!("logs: {place}");
    let rig = std::cell::OnceCell::new();
    let begin = || {
        let site = Site::start(setup, rtt, BUFFERS.len(), &[])?;
        let one = |(number, &option): (usize, &&str)| {
            let uri = &site.target.uris[number..=number];
            Place::new(&site, option, DeviceFormat::Xfs, uri, &["-o", option])
        };
        let places = BUFFERS.iter().enumerate().map(one).collect::<Result<_>>()?;
        let _ = rig.set(Rig { places, site });
        Ok(())
    };
    let load = WORKLOADS[3].load(BS, BYTES, true);
    let found = repeat(setup, &case, &[0, 1], begin, |&number: &usize| {
        let Rig { places, site } = rig.get().context("nothing was started")?;
        let place = &places[number];
        place.trim()?;
        let rate = site.seen(place, &load)?.rate;
        place.trim()?;
        Ok([rate, site.link.mostly_on_time(|| made(&place.path))?.0])
    })?;
    let [small, large] = &found[..] else { return Ok(()) };
    let mut cells = vec![place];
    for (number, (unit, name)) in [(MB, "bytes/s"), (1.0, "files/s")].into_iter().enumerate() {
        for (option, samples) in BUFFERS.iter().zip([small, large]) {
            section.keep(&case, option, name, &samples[number]);
            cells.push(samples[number].mean_and_spread(unit, 0));
        }
        cells.push(large[number].ratio(&small[number]).show_ratio());
    }
    section.row(cells);
    Ok(())
}

/// Files made and removed a second.
fn made(dir: &Path) -> Result<f64> {
    let began = Instant::now();
    let one = |thread: usize| -> Result<()> {
        let dir = dir.join(format!("made-{thread}"));
        fs::create_dir(&dir)?;
        let names = || (0..MADE / THREADS).map(|n| dir.join(n.to_string()));
        names().try_for_each(|name| File::create(name).map(drop))?;
        names().try_for_each(fs::remove_file)?;
        Ok(fs::remove_dir(&dir)?)
    };
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || one(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread that does not panic"))
    })?;
    sync(dir)?;
    Ok(MADE as f64 / began.elapsed().as_secs_f64())
}
