//! 4 KiB random reads on one queue against a bare request and response.

use super::{commands, memory_backend, subject, window};
use crate::program::{self, Load, Measured, Target};
use crate::reference::{Memory, Wait, ping_pong};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::Result;

const BS: u64 = 4096;
const DEPTHS: [u32; 4] = [1, 4, 32, 128];
/// A queue one longer than the deepest load: an entry stays empty.
const QUEUE_SIZE: &str = "129";

/// The longest that a read at depth 1 may take, in bare round trips.
const LATENCY_CEILING: f64 = 1.5;
/// The least I/Os per second at `FLOOR_DEPTH`.
const IOPS_FLOOR: f64 = 300_000.0;
const FLOOR_DEPTH: u32 = 32;

/// Seconds of the unit in the table.
const MICRO: f64 = 1e-6;
const KILO: f64 = 1e3;

enum Subject {
    /// Longhaul, on the engine with this index in `Setup::engines`.
    Ours(usize),
    Bare(Wait),
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "random",
        &["load", "1000 IOPS", "latency, µs", "of blocking", "of polling", "CPU per I/O, µs", "floor", "met"],
    );
    let backend = memory_backend(setup);
    let memory = Memory::new(setup.size)?;
    let mut targets = Vec::new();
    for engine in &setup.engines {
        let target = Target::start(setup, engine, &backend, &[])?;
        target.fill(setup, engine)?;
        targets.push(target);
    }
    for depth in DEPTHS {
        let mut subjects: Vec<Subject> = (0..targets.len()).map(Subject::Ours).collect();
        if depth == 1 {
            subjects.extend([Wait::Blocking, Wait::Polling].map(Subject::Bare));
        }
        let load = Load::new("randread", BS, depth);
        let measured = setup.interleave(&subjects, |subject| match subject {
            Subject::Ours(n) => {
                let (engine, target) = (&setup.engines[*n], &targets[*n]);
                let extra = ["--queue-size", QUEUE_SIZE];
                program::load(setup, engine, &target.uri, &load, Some(target), &extra)
            }
            Subject::Bare(wait) => ping_pong(setup, *wait, &memory),
        })?;
        add_rows(&mut section, setup, depth, &measured);
    }
    section.notes.push(
        "Bare request and response: 72 bytes there and 24 + 4096 bytes back on a TCP socket, one at a time, \
         the 4096 from a random place of as much memory as the device has, \
         each side asleep until bytes come (blocking), or asking for them without rest (polling)"
            .into(),
    );
    section.notes.push("CPU per I/O: user and kernel time of both sides while the load runs".into());
    section.commands = commands(
        setup,
        &backend,
        "",
        &format!(
            "--rw randread --bs 4KiB --iodepth {FLOOR_DEPTH} --queue-size {QUEUE_SIZE} {}",
            window(setup)
        ),
    );
    Ok(section)
}

/// The rows of a depth: the references first, then a row for each engine.
fn add_rows(section: &mut Section, setup: &Setup, depth: u32, measured: &[Vec<Measured>]) {
    let (ours, bare) = measured.split_at(setup.engines.len());
    let latency = |m: &Vec<Measured>| Samples::of(m, |m| m.latency);
    let bare_latency: Vec<Samples> = bare.iter().map(latency).collect();
    for (name, measured) in ["blocking", "polling"].iter().zip(bare) {
        let case = format!("bare request and response, {name}");
        let cells = numbers(section, &case, "reference", measured);
        section.row(row(case, cells, ["–".into(), "–".into()], None));
    }
    for (engine, measured) in setup.engines.iter().zip(ours) {
        let case = format!("depth {depth}{}", subject(setup, engine));
        let cells = numbers(section, &case, &format!("longhaul {engine}"), measured);
        let ratios: Vec<Samples> = bare_latency.iter().map(|bare| latency(measured).ratio(bare)).collect();
        let shown = [0, 1].map(|n| ratios.get(n).map_or_else(|| "–".into(), Samples::show_ratio));
        let floor = match depth {
            // The faster of the two references is the harder one.
            1 => ratios
                .iter()
                .max_by(|a, b| a.median().total_cmp(&b.median()))
                .map(|r| (format!("≤ {LATENCY_CEILING} of both"), r.at_most(LATENCY_CEILING))),
            FLOOR_DEPTH => {
                let iops = Samples::of(measured, |m| m.iops);
                Some((format!("{} kIOPS", IOPS_FLOOR / KILO), iops.at_least(IOPS_FLOOR)))
            }
            _ => None,
        };
        section.row(row(case, cells, shown, floor));
    }
}

/// IOPS, latency and processor time for the table; keeps their samples.
fn numbers(section: &mut Section, case: &str, subject: &str, measured: &[Measured]) -> [String; 3] {
    let iops = Samples::of(measured, |m| m.iops);
    let latency = Samples::of(measured, |m| m.latency);
    let cpu = Samples::of(measured, |m| m.cpu);
    section.keep(case, subject, "IOPS", &iops);
    section.keep(case, subject, "seconds of latency", &latency);
    section.keep(case, subject, "processor seconds per I/O", &cpu);
    [iops.show(KILO, 0), latency.show(MICRO, 1), cpu.show(MICRO, 2)]
}

fn row(
    case: String,
    [iops, latency, cpu]: [String; 3],
    [blocking, polling]: [String; 2],
    floor: Option<(String, &str)>,
) -> Vec<String> {
    let (floor, met) = floor.unwrap_or_else(|| ("–".into(), "–"));
    vec![case, iops, latency, blocking, polling, cpu, floor, met.into()]
}
