//! Data in the capsule: none, 8 KiB, 16 KiB, 1 MiB, under file systems.

use super::load::{self, NUMBERS};
use super::place::Place;
use super::{MB, RATE, Site, client, commands, repeat};
use crate::link;
use crate::report::Section;
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_lab::filesystems::{BYTES, DeviceFormat, FAR, Load, NEAR, On, WORKLOADS, in_capsule};
use longhaul_lab::published::filesystems as said;
use std::time::Duration;

const ROUND_TRIPS: [Duration; 2] = [NEAR, FAR];
const IN_CAPSULE: [&str; 4] = ["0", "8KiB", "16KiB", "1MiB"];
/// Calls that fit in some of them, and that fit only in the last.
const SIZES: [u64; 2] = [8 << 10, 64 << 10];

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut header = vec!["link", "files at once", "calls"];
    let titles: Vec<[String; 2]> =
        IN_CAPSULE.iter().map(|size| [format!("{size}, Mb/s"), "completion, ms".into()]).collect();
    header.extend(titles.iter().flatten().map(String::as_str));
    header.push("published");
    let mut section = Section::new("inline", &header);
    for &rtt in setup.round_trips(&ROUND_TRIPS) {
        let rigs = std::cell::OnceCell::new();
        for workload in [WORKLOADS[0], WORKLOADS[2]] {
            for bs in SIZES {
                let load = workload.load(bs, BYTES, true);
                measure(setup, rtt, &load, &rigs, &mut section)?;
            }
        }
    }
    section.notes.push(
        "XFS on one device, written by fio as in the grid; a target each, told `--in-capsule`. `longhaul mount` \
         gathers small calls that follow each other only where the file system does"
            .into(),
    );
    section.notes.push(format!(
        "Published: {}, §4.2, Figs. 4 and 5: 16 KiB against 8 KiB, with the kernel's initiator and target",
        said::DOCUMENT.short
    ));
    section.commands = commands(setup, ROUND_TRIPS[1], " --in-capsule 8KiB");
    section.commands.extend([
        client("longhaul mkfs --fs xfs nvme+tcp://10.77.1.2/bench"),
        client("longhaul mount nvme+tcp://10.77.1.2/bench /mnt"),
        load::words(&WORKLOADS[2].load(SIZES[0], BYTES, true), setup),
    ]);
    Ok(section)
}

/// A site for each size in the capsule.
fn start(setup: &Setup, rtt: Duration) -> Result<Vec<(Place, Site)>> {
    let one = |size: &&str| {
        let site = Site::start(setup, rtt, 1, &["--in-capsule", size])?;
        Ok((Place::new(&site, "xfs", DeviceFormat::Xfs, &site.target.uris, &[])?, site))
    };
    IN_CAPSULE.iter().map(one).collect()
}

fn measure(
    setup: &Setup,
    rtt: Duration,
    load: &Load,
    rigs: &std::cell::OnceCell<Vec<(Place, Site)>>,
    section: &mut Section,
) -> Result<()> {
    let place = format!("{}, {}", link::rate(RATE), link::round_trip(rtt));
    let calls = super::super::block_size(load.bs);
    let case = format!("inline: {place}, {}, {calls}", load.name);
    let begin = || {
        if rigs.get().is_none() {
            let _ = rigs.set(start(setup, rtt)?);
        }
        Ok(())
    };
    let numbered: Vec<usize> = (0..IN_CAPSULE.len()).collect();
    let found = repeat(setup, &case, &numbered, begin, |&number| -> Result<[f64; NUMBERS]> {
        let (place, site) = &rigs.get().context("nothing was started")?[number];
        place.trim()?;
        Ok(site.seen(place, load)?.numbers())
    })?;
    let mut cells = vec![place, load.files.to_string(), calls];
    for (size, seen) in IN_CAPSULE.iter().zip(&found) {
        section.keep(&case, size, "bytes/s", &seen[0]);
        cells.extend([seen[0].mean_and_spread(MB, 0), seen[2].mean_and_spread(1e-3, 2)]);
    }
    let found = in_capsule(rtt, load, On::Xfs);
    cells.push(found.map_or("–", |statement| statement.what).into());
    section.row(cells);
    Ok(())
}
