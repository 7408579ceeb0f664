//! XOR and P+Q against ISA-L.

use crate::reference::Isal;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_parity::Kernels;
use std::time::{Duration, Instant};

/// The least share of ISA-L's speed that is good enough.
const FLOOR: f64 = 1.0;
/// Data units and parity units of a stripe.
const DATA: usize = 8;
/// Bytes of a unit: in the second-level cache, and far beyond the last.
const UNITS: [(&str, usize); 2] = [("in cache, 16 KiB", 16 << 10), ("in memory, 8 MiB", 8 << 20)];
/// Where units start, as ISA-L asks and pages do.
const ALIGN: usize = 4096;
const GB: f64 = 1e9;

/// The kernel that is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    Xor,
    PQ,
}

enum Subject {
    Ours(Kernels),
    Isal,
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    // A thread of its own, since it is bound to the load's processor.
    std::thread::scope(|scope| scope.spawn(|| on_one_processor(setup)).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn on_one_processor(setup: &Setup) -> Result<Section> {
    setup.load.pin_thread()?;
    let mut section =
        Section::new("parity", &["case", "kernels", "longhaul, GB/s", "ISA-L, GB/s", "of ISA-L", "≥ 1"]);
    let isal = Isal::load()?;
    let mut subjects = vec![Subject::Isal];
    subjects.extend(Kernels::all().into_iter().rev().map(Subject::Ours));
    for (place, len) in UNITS {
        let mut memory = Memory::new(DATA + 2, len);
        for (task, name) in [(Task::Xor, "XOR, 8+1"), (Task::PQ, "P+Q, 8+2")] {
            let measured = setup.interleave(&subjects, |subject| {
                measure(setup, &mut memory, |units| match subject {
                    Subject::Ours(kernels) => ours(*kernels, task, units),
                    Subject::Isal => theirs(&isal, task, units),
                })
            })?;
            let case = format!("{name} units {place}");
            add_rows(&mut section, &case, &subjects, measured);
        }
    }
    section.notes.push(format!(
        "ISA-L: {}, as it picks for this processor. Units start at pages. Rates are of data: parity comes on top. \
         The floor is for what the library picks by itself, the first row of each case",
        isal.path()
    ));
    section.commands = vec![format!(
        "cargo xtask bench parity --runtime {}ms --ramp {}ms --rounds {}",
        setup.runtime.as_millis(),
        setup.ramp.as_millis(),
        setup.rounds
    )];
    Ok(section)
}

fn add_rows(section: &mut Section, case: &str, subjects: &[Subject], measured: Vec<Vec<f64>>) {
    let mut samples = measured.into_iter().map(Samples);
    let Some(isal) = samples.next() else { return };
    section.keep(case, "ISA-L", "bytes/s", &isal);
    for (subject, ours) in subjects[1..].iter().zip(samples) {
        let Subject::Ours(kernels) = subject else { continue };
        section.keep(case, kernels.name(), "bytes/s", &ours);
        let ratio = ours.ratio(&isal);
        let best = *kernels == Kernels::best();
        section.row(vec![
            case.to_owned(),
            kernels.name().to_owned(),
            ours.show(GB, 1),
            isal.show(GB, 1),
            ratio.show_ratio(),
            if best { ratio.at_least(FLOOR).into() } else { "–".into() },
        ]);
    }
}

/// Data bytes per second of `work` on `memory`.
fn measure(
    setup: &Setup,
    memory: &mut Memory,
    mut work: impl FnMut(&mut [&mut [u8]]) -> Result<()>,
) -> Result<f64> {
    let mut units = memory.units();
    let len = units[0].len();
    // Between two looks at the clock, a megabyte at least.
    let batch = (1usize << 20).div_ceil(len * DATA);
    let mut repeat = |window: Duration| -> Result<f64> {
        let (began, mut calls) = (Instant::now(), 0usize);
        loop {
            for _ in 0..batch {
                work(&mut units)?;
            }
            calls += batch;
            let elapsed = began.elapsed();
            if elapsed >= window {
                return Ok((calls * DATA * len) as f64 / elapsed.as_secs_f64());
            }
        }
    };
    repeat(setup.ramp)?;
    repeat(setup.runtime)
}

fn ours(kernels: Kernels, task: Task, units: &mut [&mut [u8]]) -> Result<()> {
    let (data, parity) = units.split_at_mut(DATA);
    let data: Vec<&[u8]> = data.iter().map(|unit| &**unit).collect();
    match (task, parity) {
        (Task::Xor, [p, ..]) => kernels.xor(p, &data),
        (Task::PQ, [p, q, ..]) => kernels.pq(&data, p, q),
        _ => anyhow::bail!("a stripe has two parity units"),
    }
    Ok(())
}

fn theirs(isal: &Isal, task: Task, units: &mut [&mut [u8]]) -> Result<()> {
    match task {
        Task::Xor => isal.xor(units.get_mut(..=DATA).context("a stripe has a parity unit")?),
        Task::PQ => isal.pq(units),
    }
}

/// Units with content, all at multiples of [`ALIGN`].
struct Memory {
    units: Vec<Vec<u8>>,
    len: usize,
}

impl Memory {
    fn new(count: usize, len: usize) -> Memory {
        let content = |unit: usize| (0..len + ALIGN).map(|at| (at * 7 + unit * 31) as u8).collect();
        Memory { units: (0..count).map(content).collect(), len }
    }

    fn units(&mut self) -> Vec<&mut [u8]> {
        let aligned = |unit: &'_ mut Vec<u8>| {
            let skip = unit.as_ptr().align_offset(ALIGN);
            skip..skip + self.len
        };
        self.units
            .iter_mut()
            .map(|unit| {
                let range = aligned(unit);
                &mut unit[range]
            })
            .collect()
    }
}
