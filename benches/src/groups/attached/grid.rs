//! The study of NVMe/TCP with journaling file systems over metropolitan and
//! wide areas (2021): 1, 10, 100 and 1,000 files at once, on a raw device, on
//! ext4, on XFS and on XFS over six striped devices, near and far.

use super::load::{self, NUMBERS, Seen};
use super::place::Place;
use super::{MB, RATE, Site, client, commands, repeat};
use crate::link;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_lab::filesystems::{
    BS, BYTES, DEVICES, DeviceFormat, FAR, Load, NEAR, On, STRIPED, WORKLOADS, throughput,
};
use longhaul_lab::published::filesystems as said;
use std::time::Duration;

/// The study's distances; 45 and 100 ms come with `--round-trips`.
const ROUND_TRIPS: [Duration; 2] = [NEAR, FAR];

/// The object of a load: a device, or the plain stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Plain,
    Device(usize),
}

/// Name of a device in the table.
fn name_of((on, name, _): (On, &'static str, DeviceFormat)) -> &'static str {
    if on == On::Striped { "XFS on 6 striped" } else { name }
}

/// Exports that a device takes.
fn exports_of((on, ..): (On, &str, DeviceFormat)) -> usize {
    if on == On::Striped { STRIPED } else { 1 }
}

/// A site with all devices on it.
struct Rig {
    // Taken away before the target is.
    places: Vec<Place>,
    site: Site,
}

impl Rig {
    fn start(setup: &Setup, rtt: Duration) -> Result<Rig> {
        let exports = DEVICES.into_iter().map(exports_of).sum();
        let site = Site::start(setup, rtt, exports, &[])?;
        let mut places = Vec::new();
        let mut uris = &site.target.uris[..];
        for (number, device) in DEVICES.into_iter().enumerate() {
            let (mine, rest) = uris.split_at(exports_of(device));
            uris = rest;
            let place = Place::new(&site, &format!("device-{number}"), device.2, mine, &[]);
            places.push(place.with_context(|| name_of(device).to_owned())?);
        }
        Ok(Rig { places, site })
    }
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "grid",
        &[
            "link",
            "files at once",
            "load",
            "device",
            "Mb/s, mean ± σ",
            "of iperf3",
            "submission, µs",
            "completion, ms",
            "cells with I/O errors",
            "disconnects",
            "published",
        ],
    );
    for &rtt in setup.round_trips(&ROUND_TRIPS) {
        let mut rig = None;
        for write in [true, false] {
            for workload in WORKLOADS {
                let load = workload.load(BS, BYTES, write);
                measure(setup, rtt, &load, &mut rig, &mut section)?;
            }
        }
    }
    notes(&mut section, setup);
    Ok(section)
}

fn measure(
    setup: &Setup,
    rtt: Duration,
    load: &Load,
    rig: &mut Option<Rig>,
    section: &mut Section,
) -> Result<()> {
    let mut subjects = vec![Subject::Plain];
    subjects.extend((0..DEVICES.len()).map(Subject::Device));
    let place = format!("{}, {}", link::rate(RATE), link::round_trip(rtt));
    let rw = load.rw();
    let case = format!("grid: {place}, {} {rw}", load.name);
    // Everything is started by the first case that was not kept.
    let rig = std::cell::RefCell::new(rig);
    let begin = || {
        let mut rig = rig.borrow_mut();
        if rig.is_none() {
            **rig = Some(Rig::start(setup, rtt)?);
        }
        let Some(Rig { places, site }) = &**rig else { return Ok(()) };
        for place in places.iter().filter(|_| !load.write) {
            place.trim()?;
            load::lay_out(load, &site.setup, place)?;
        }
        Ok(())
    };
    let found = repeat(setup, &case, &subjects, begin, |subject| {
        let rig = rig.borrow();
        let Rig { places, site } = rig.as_ref().context("nothing was started")?;
        match *subject {
            Subject::Plain => Ok(Seen { rate: site.plain(load.write)?, ..Seen::default() }.numbers()),
            Subject::Device(number) => {
                let place = &places[number];
                if load.write {
                    place.trim()?;
                }
                Ok(site.seen(place, load)?.numbers())
            }
        }
    })?;
    let (plain, devices) = found.split_first().context("no reference")?;
    section.keep(&case, "iperf3", "bytes/s", &plain[0]);
    let plain_row = [place.clone(), files(load), rw.into(), "iperf3".into(), plain[0].mean_and_spread(MB, 0)];
    section.row(plain_row.into_iter().chain(["–"; 6].map(String::from)).collect());
    for (device, seen) in DEVICES.into_iter().zip(devices) {
        add_row(section, (&case, &place, rtt), load, device, seen, &plain[0]);
    }
    Ok(())
}

fn files(load: &Load) -> String {
    format!("{} ({})", load.files, load.name)
}

fn add_row(
    section: &mut Section,
    (case, place, rtt): (&str, &str, Duration),
    load: &Load,
    device: (On, &'static str, DeviceFormat),
    seen: &[Samples],
    plain: &Samples,
) {
    let units: [&str; NUMBERS] = ["bytes/s", "s submission", "s completion", "errors", "disconnects"];
    for (unit, samples) in units.iter().zip(seen) {
        section.keep(case, name_of(device), unit, samples);
    }
    let [rate, submission, completion, errors, disconnects] = seen else { return };
    section.row(vec![
        place.to_owned(),
        files(load),
        load.rw().into(),
        name_of(device).to_owned(),
        rate.mean_and_spread(MB, 0),
        rate.ratio(plain).show_ratio(),
        submission.mean_and_spread(1e-6, 1),
        completion.mean_and_spread(1e-3, 2),
        format!("{}", errors.0.iter().sum::<f64>()),
        format!("{}", disconnects.0.iter().sum::<f64>()),
        published(rtt, load, device.0),
    ]);
}

/// What the study says of a cell; its numbers are figures, of another link.
fn published(rtt: Duration, load: &Load, on: On) -> String {
    let found = throughput(rtt, load, on);
    match found[..] {
        [] => "–".into(),
        _ => found.iter().map(|statement| statement.what).collect::<Vec<_>>().join("; "),
    }
}

fn notes(section: &mut Section, setup: &Setup) {
    section.notes.push(format!(
        "fio with direct I/O, libaio, calls of 64 KiB; 256 MiB in files of one size; calls under way for each file: \
         32, 8, 2, 1. Windows of {} s, 10 round trips, 2 ms for each file and three times what calls under way take \
         the link, after 0.5 s and 30 round trips of load. What counts is what was completed while nine of ten \
         files were loaded: fio, which starts a thousand jobs in one or two seconds, divides what they did in all their times \
         by one of these. Mean and standard deviation of the rounds; iperf3, and each device, once a round",
        setup.runtime.as_secs_f64()
    ));
    section.notes.push(
        "Devices of 2 GiB in the target's memory, all behind one link: one attached as a file, three mounted by \
         `longhaul mount` (FUSE and a loop device) as `longhaul mkfs` made them. Before each writing all files are \
         removed and the device is trimmed; what is read was written in full"
            .into(),
    );
    section.notes.push(
        "Submission: until a call is taken; completion: from then until it is done. With more under way than the \
         path holds, both grow with what waits: 1,000 calls of 64 KiB take this link 0.5 s"
            .into(),
    );
    section.notes.push(format!(
        "Published: {}, {}: NVMe/TCP with the kernel's initiator and target, 100 Gb/s, six drives of 25.6 Gb/s, \
         at 0.15 and 15 ms, with CUBIC; what was found of a cell in words",
        said::NEAR_ALIKE.source(),
        said::FAR_ONE.at
    ));
    section.commands = commands(setup, ROUND_TRIPS[1], "");
    section.commands.extend([
        client("longhaul mkfs --fs xfs nvme+tcp://10.77.1.2/bench"),
        client("longhaul mount nvme+tcp://10.77.1.2/bench /mnt"),
    ]);
    section.commands.push(load::words(&WORKLOADS[3].load(BS, BYTES, false), setup));
}
