//! Sequential streams over emulated long links against iperf3 on the same link.

use super::super::memory_backend;
use super::{MB, RATES, ROUND_TRIPS, client, commands};
use crate::link::{self, Link};
use crate::program::{self, Load, Target};
use crate::reference::Iperf;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_wan::Conditions;
use std::time::Duration;

/// The least share of iperf3 that is good enough: of block I/O, and of the
/// file-like API.
const FLOOR: f64 = 0.95;
const FILE_FLOOR: f64 = 0.90;

/// Bytes of the device.
const FILE: u64 = 4 << 30;

/// Round trips more that writes through the file-like API are given before they
/// are measured: the initiator tries to hold less in flight some 45 round trips
/// after the start.
const FILE_RAMP: u32 = 40;

/// The round trip that a far path is compared at, and with.
const FAR: f64 = 100.0;
const NEAR: f64 = 0.15;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Subject {
    /// iperf3, one stream.
    Plain,
    /// `bench` with this block size, nothing else said.
    Block(u64),
    /// The file-like API in calls of 128 KiB.
    File,
}

const SUBJECTS: [Subject; 4] =
    [Subject::Plain, Subject::Block(1 << 20), Subject::Block(128 << 10), Subject::File];

/// The samples of one cell, by round.
struct Cell {
    rate: u64,
    rtt: f64,
    rw: &'static str,
    /// In the order of [`SUBJECTS`].
    samples: Vec<Samples>,
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "distance",
        &[
            "link",
            "load",
            "iperf3, Mb/s",
            "1 MiB, Mb/s",
            "of iperf3",
            "128 KiB, Mb/s",
            "of iperf3",
            "≥ 0.95",
            "file API, Mb/s",
            "of iperf3",
            "≥ 0.9",
        ],
    );
    // One file, long enough not to start over within a measurement.
    let setup = &Setup { size: setup.size.max(FILE), ..setup.clone() };
    let subjects = subjects(setup)?;
    let mut cells = Vec::new();
    let mut void = 0;
    for &rate in setup.rates(&RATES) {
        for rtt in setup.round_trips(&ROUND_TRIPS) {
            let link = Link::start(Conditions::new(*rtt, Some(rate)), None)?;
            measure(setup, &link, rate, &subjects, &mut cells)?;
            void += link.void();
        }
    }
    for cell in &cells {
        add_row(&mut section, cell);
    }
    notes(&mut section, setup, &cells, void);
    Ok(section)
}

/// iperf3, and what `--loads` names.
fn subjects(setup: &Setup) -> Result<Vec<Subject>> {
    let name = |subject: &Subject| match subject {
        Subject::Plain => "iperf3".to_owned(),
        Subject::Block(bs) => longhaul_block::units::format_size(*bs).replace(' ', ""),
        Subject::File => "file".to_owned(),
    };
    let unknown = setup.loads.iter().find(|load| !SUBJECTS.iter().skip(1).any(|s| name(s) == **load));
    ensure!(unknown.is_none(), "--loads {}: distance has 1MiB, 128KiB and file", setup.loads.join(","));
    let asked = |subject: &Subject| setup.loads.is_empty() || setup.loads.contains(&name(subject));
    Ok(SUBJECTS.into_iter().filter(|s| *s == Subject::Plain || asked(s)).collect())
}

fn measure(setup: &Setup, link: &Link, rate: u64, subjects: &[Subject], cells: &mut Vec<Cell>) -> Result<()> {
    let setup = &link.setup(setup, 1);
    let engine = setup.engines.first().context("no engine to measure with")?;
    let target = Target::start(setup, engine, &memory_backend(setup), &[])?;
    let iperf =
        Iperf::start(setup)?.context("iperf3 is the reference of this group, and is not installed")?;
    for rw in ["read", "write"] {
        let longer = if rw == "write" { FILE_RAMP * link.rtt() } else { Duration::ZERO };
        let patient = &Setup { ramp: setup.ramp + longer, ..setup.clone() };
        let case = format!("{}, {}, {rw}", link::rate(rate), link::round_trip(link.rtt()));
        let measured = setup.interleave_kept(&format!("distance: {case}"), subjects, |subject| {
            let measured = link.on_time(|| match *subject {
                Subject::Plain => iperf.run(setup, rw == "write", 128 << 10),
                Subject::Block(bs) => sequential(setup, engine, &target, rw, bs, &[]),
                Subject::File => sequential(patient, engine, &target, rw, 128 << 10, &["--ioengine", "sync"]),
            })?;
            eprintln!(
                "  {} {} {rw} {subject:?}: {:.0} Mb/s",
                link::rate(rate),
                link::round_trip(link.rtt()),
                measured / MB
            );
            Ok(measured)
        })?;
        let mut measured = subjects.iter().zip(measured).peekable();
        let mut samples = vec![Samples(Vec::new()); SUBJECTS.len()];
        for (place, subject) in samples.iter_mut().zip(SUBJECTS) {
            if let Some((_, values)) = measured.next_if(|(s, _)| **s == subject) {
                *place = Samples(values);
            }
        }
        cells.push(Cell { rate, rtt: link.rtt().as_secs_f64() * 1e3, rw, samples });
    }
    Ok(())
}

fn sequential(
    setup: &Setup,
    engine: &str,
    target: &Target,
    rw: &'static str,
    bs: u64,
    extra: &[&str],
) -> Result<f64> {
    Ok(program::load(setup, engine, &target.uri, &Load::tuned(rw, bs), Some(target), extra)?.rate)
}

fn add_row(section: &mut Section, cell: &Cell) {
    let link = format!("{}, {} ms", link::rate(cell.rate), cell.rtt);
    let case = format!("{link}, {}", cell.rw);
    for (subject, samples) in SUBJECTS.iter().zip(&cell.samples) {
        section.keep(&case, &format!("{subject:?}"), "bytes/s", samples);
    }
    let [plain, large, small, file] = &cell.samples[..] else { return };
    let ratios = [large, small, file].map(|ours| ours.ratio(plain));
    let met = ratios[..2].iter().filter(|r| !r.0.is_empty()).all(|r| r.median() >= FLOOR);
    let cell_of = |samples: &Samples, text: String| if samples.0.is_empty() { "–".into() } else { text };
    section.row(vec![
        link,
        cell.rw.into(),
        plain.show(MB, 0),
        cell_of(large, large.show(MB, 0)),
        cell_of(large, ratios[0].show_ratio()),
        cell_of(small, small.show(MB, 0)),
        cell_of(small, ratios[1].show_ratio()),
        if met { "yes" } else { "**no**" }.into(),
        cell_of(file, file.show(MB, 0)),
        cell_of(file, ratios[2].show_ratio()),
        cell_of(file, ratios[2].at_least(FILE_FLOOR).into()),
    ]);
}

fn notes(section: &mut Section, setup: &Setup, cells: &[Cell], void: u32) {
    for &rate in setup.rates(&RATES) {
        let at = |rtt: f64, rw: &str, subject: usize| {
            let cell = cells.iter().find(|c| c.rate == rate && c.rw == rw && (c.rtt - rtt).abs() < 1e-9)?;
            Some(&cell.samples[subject]).filter(|s| !s.0.is_empty()).map(Samples::median)
        };
        let mut shares = Vec::new();
        for (subject, name) in [(1, "1 MiB"), (2, "128 KiB"), (3, "file API")] {
            for rw in ["read", "write"] {
                if let (Some(far), Some(near)) = (at(FAR, rw, subject), at(NEAR, rw, subject)) {
                    shares.push(format!("{name} {rw} {:.2}", far / near));
                }
            }
        }
        if !shares.is_empty() {
            section.notes.push(format!(
                "{}: throughput at {FAR} ms over throughput at {NEAR} ms (floor 0.95): {}",
                link::rate(rate),
                shares.join(", ")
            ));
        }
    }
    section.notes.push(format!(
        "Rows: windows of 2 s and 10 round trips after 0.7 s and 30 round trips of load; a new process \
         and new connections each time; {void} measurements were made again because the emulator was late. Writes \
         through the file API have {FILE_RAMP} round trips of load more: they count when they are taken, and \
         until the initiator has let go of what it held in flight at first, fewer are taken than arrive"
    ));
    section.notes.push(
        "Nothing is set by hand: no depth, no size of anything. The file API is `--ioengine sync`: one caller, \
         128 KiB a call, the next call when the last has returned"
            .into(),
    );
    section.notes.push("iperf3: one stream, 128 KiB a call".into());
    let first = (setup.rates(&RATES).first(), setup.round_trips(&ROUND_TRIPS).first());
    let (Some(&rate), Some(&rtt)) = first else { return };
    section.commands = commands(setup, rate, rtt, "", "");
    let congestion = &setup.congestion;
    let window = format!("--runtime 2s --ramp 700ms --congestion {congestion}");
    section.commands.extend([
        client(&format!("longhaul bench URI --rw read --bs 1MiB {window}")),
        client(&format!("longhaul bench URI --rw read --bs 128KiB --ioengine sync {window}")),
        client(&format!(
            "iperf3 --client 10.77.1.2 --congestion {congestion} --length 128K --no-delay --reverse"
        )),
    ]);
}
