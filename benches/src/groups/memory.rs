//! What a target keeps in memory when far more is asked than it has.

use super::{DiskFile, commands, window};
use crate::process;
use crate::program::{self, Load, Target};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::Result;
use std::time::Duration;

const BS: u64 = 128 << 10;
const DEPTH: u32 = 128;
const JOBS: u32 = 128;
/// A queue one longer than the load's depth: an entry stays empty.
const QUEUE_SIZE: &str = "129";
/// What the target may use, for the command line and in bytes.
const MEMORY: (&str, u64) = ("256MiB", 256 << 20);
/// The shortest window: with 2 GiB under way a single I/O takes seconds.
const RUNTIME: Duration = Duration::from_secs(3);
/// The shortest load before it: all buffers are touched for the first time.
const RAMP: Duration = Duration::from_secs(3);
const MIB: f64 = (1 << 20) as f64;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section =
        Section::new("memory", &["load", "peak resident set, MiB", "of --memory", "≤ 1", "Longhaul, GB/s"]);
    let (runtime, ramp) = (setup.runtime.max(RUNTIME), setup.ramp.max(RAMP));
    let setup = &Setup { runtime, ramp, ..setup.clone() };
    // On disk: the memory of a device in memory would be counted, too.
    let file = DiskFile::lay_out(setup)?;
    for engine in &setup.engines {
        let mut measured = [Vec::new(), Vec::new()];
        for _ in 0..setup.rounds {
            let target = Target::start(setup, engine, &file.backend(), &["--memory", MEMORY.0])?;
            for (rw, measured) in ["read", "write"].into_iter().zip(&mut measured) {
                let load = Load { numjobs: JOBS, ..Load::new(rw, BS, DEPTH) };
                // Each job a connection of its own.
                let threads = JOBS.to_string();
                let extra = ["--queue-size", QUEUE_SIZE, "--threads", &threads];
                let rate = program::load(setup, engine, &target.uri, &load, Some(&target), &extra)?.rate;
                measured.push((process::peak_memory(target.pid())? as f64, rate));
            }
        }
        for (rw, measured) in ["reads", "then writes"].iter().zip(&measured) {
            let (peak, rate) = (Samples::of(measured, |m| m.0), Samples::of(measured, |m| m.1));
            let case = format!("128 KiB {rw}, {JOBS} connections × depth {DEPTH} ({engine})");
            section.keep(&case, "longhaul target", "bytes", &peak);
            section.keep(&case, "longhaul bench", "bytes/s", &rate);
            let share = Samples::of(measured, |m| m.0 / MEMORY.1 as f64);
            let met = share.at_most(1.0).into();
            section.row(vec![case, peak.show(MIB, 0), share.show_ratio(), met, rate.show(1e9, 2)]);
        }
    }
    section.notes.push(format!(
        "Windows of {} s after {} s of load: {} of I/O are under way, and the target has --memory {}. Peak resident set: VmHWM of the process, \
         code and stacks included. The device is a file on disk, whose cache is not in the process",
        setup.runtime.as_secs_f64(),
        setup.ramp.as_secs_f64(),
        longhaul_block::units::format_size(BS * u64::from(DEPTH * JOBS)),
        MEMORY.0
    ));
    let load = format!(
        "--rw read --bs 128KiB --iodepth {DEPTH} --numjobs {JOBS} --threads {JOBS} --queue-size {QUEUE_SIZE} {}",
        window(setup)
    );
    section.commands = commands(setup, "file:FILE", &format!(" --memory {}", MEMORY.0), &load);
    Ok(section)
}
