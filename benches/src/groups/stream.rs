//! Large sequential I/O on a device in memory against one plain TCP stream.

use super::{block_size, commands, memory_backend, subject, window};
use crate::program::{self, Load, Target};
use crate::reference::{Iperf, Memory, stream};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::Result;
use longhaul_block::units::format_size;

/// The least share of a plain stream that is good enough.
const FLOOR: f64 = 0.85;
const DEPTH: u32 = 32;
const SIZES: [u64; 2] = [128 << 10, 1 << 20];

/// Bytes per second of the unit in the table.
const GB: f64 = 1e9;

enum Subject {
    /// Longhaul, on the engine with this index in `Setup::engines`.
    Ours(usize),
    Plain,
    Iperf(Iperf),
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "stream",
        &["load", "Longhaul, GB/s", "plain TCP, GB/s", "of plain TCP", "≥ 0.85", "iperf3, GB/s", "of iperf3"],
    );
    let backend = memory_backend(setup);
    let mut targets = Vec::new();
    for engine in &setup.engines {
        let target = Target::start(setup, engine, &backend, &[])?;
        target.fill(setup, engine)?;
        targets.push(target);
    }
    let mut memory = Memory::new(setup.size)?;
    let mut subjects: Vec<Subject> = (0..targets.len()).map(Subject::Ours).collect();
    subjects.push(Subject::Plain);
    subjects.extend(Iperf::start(setup)?.map(Subject::Iperf));
    for bs in SIZES {
        for rw in ["read", "write"] {
            let load = Load::new(rw, bs, DEPTH);
            let write = rw == "write";
            let measured = setup.interleave(&subjects, |subject| match subject {
                Subject::Ours(n) => {
                    let (engine, target) = (&setup.engines[*n], &targets[*n]);
                    let ours = program::load(setup, engine, &target.uri, &load, Some(target), &[])?;
                    Ok(ours.rate)
                }
                Subject::Plain => stream(setup, write, bs, DEPTH, &mut memory),
                Subject::Iperf(iperf) => iperf.run(setup, write, bs),
            })?;
            let case = format!("{} {rw}, depth {DEPTH}", block_size(bs));
            add_rows(&mut section, setup, &case, measured.into_iter().map(Samples).collect());
        }
    }
    notes(&mut section, setup, subjects.last());
    Ok(section)
}

/// A row for each engine. `samples` are in the order of the subjects.
fn add_rows(section: &mut Section, setup: &Setup, case: &str, samples: Vec<Samples>) {
    let (ours, references) = samples.split_at(setup.engines.len());
    let plain = &references[0];
    let iperf = references.get(1);
    section.keep(case, "plain TCP", "bytes/s", plain);
    if let Some(iperf) = iperf {
        section.keep(case, "iperf3", "bytes/s", iperf);
    }
    for (engine, ours) in setup.engines.iter().zip(ours) {
        section.keep(case, &format!("longhaul {engine}"), "bytes/s", ours);
        let ratio = ours.ratio(plain);
        section.row(vec![
            format!("{case}{}", subject(setup, engine)),
            ours.show(GB, 2),
            plain.show(GB, 2),
            ratio.show_ratio(),
            ratio.at_least(FLOOR).into(),
            iperf.map_or_else(|| "–".into(), |i| i.show(GB, 2)),
            iperf.map_or_else(|| "–".into(), |i| ours.ratio(i).show_ratio()),
        ]);
    }
}

fn notes(section: &mut Section, setup: &Setup, last: Option<&Subject>) {
    section.notes.push(format!(
        "Plain TCP: one stream, {} of memory on the target's side gone through in order, {DEPTH} buffers on \
         the other side",
        format_size(setup.size)
    ));
    section.commands = commands(
        setup,
        &memory_backend(setup),
        "",
        &format!("--rw read --bs 128KiB --iodepth {DEPTH} {}", window(setup)),
    );
    match last {
        Some(Subject::Iperf(iperf)) => {
            section.notes.push(format!(
                "{}: sends one block again and again and receives to one buffer, so that its data stay in \
                 the processor's cache",
                iperf.version()
            ));
            section.commands.push(format!(
                "iperf3 --client HOST --congestion {} --length 128K --no-delay --reverse",
                setup.congestion
            ));
        }
        _ => section.notes.push("iperf3 is not installed".into()),
    }
}
