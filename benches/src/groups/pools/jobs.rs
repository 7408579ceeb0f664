//! Jobs: a volume for each of eight nodes is made, and given back.

use super::{RTT, Site, TARGETS, target_commands};
use crate::link;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::Result;

/// The longest that both may take for a job, in seconds.
const CEILING: f64 = 2.0;
const NODES: usize = 8;
const SIZE: &str = "256MiB";
const LAYOUTS: [&str; 2] = ["parity", "single"];

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let header = [
        "targets, round trip",
        "nodes",
        "layout",
        "pool allocate, s",
        "pool release, s",
        "a job, s",
        "≤ 2 s",
    ];
    let mut section = Section::new("jobs", &header);
    let site = Site::start(setup)?;
    site.run(&site.create())?;
    let nodes = format!("n[1-{NODES}]");
    let mut number = 0;
    let jobs = setup.interleave(&LAYOUTS, |&layout| {
        site.link.on_time(|| {
            number += 1;
            let job = number.to_string();
            let allocate = ["pool", "allocate", "bench", "--size", SIZE, "--layout", layout];
            let made = site.run(
                &[&allocate[..], &["--for-job", &job, "--lifetime", "1h", "--nodes", &nodes]].concat(),
            )?;
            let released = site.run(&["pool", "release", "--for-job", &job])?;
            Ok([made, released])
        })
    })?;
    for (layout, jobs) in LAYOUTS.iter().zip(&jobs) {
        let [made, released] = [0, 1].map(|index| Samples::of(jobs, |times| times[index]));
        let sum = Samples::of(jobs, |times| times.iter().sum());
        section.keep(&format!("a job of {NODES} nodes, {layout}"), "allocate and release", "s", &sum);
        section.row(vec![
            format!("{TARGETS}, {}", link::round_trip(RTT)),
            NODES.to_string(),
            (*layout).into(),
            made.show(1.0, 2),
            released.show(1.0, 2),
            sum.show(1.0, 2),
            sum.at_most(CEILING).into(),
        ]);
    }
    section.notes.push(format!(
        "A volume of {SIZE} for each node, of layout parity over {TARGETS} members, or of one namespace; times of whole \
         processes, with the catalog in a file. Measurements thrown away as the emulator was late: {}",
        site.link.void()
    ));
    section.commands = target_commands();
    section.commands.extend([
        format!("longhaul pool allocate bench --size {SIZE} --layout parity --for-job 1 --lifetime 1h --nodes '{nodes}'"),
        "longhaul pool release --for-job 1".to_owned(),
    ]);
    Ok(section)
}
