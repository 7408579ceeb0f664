//! What an idle target costs.

use crate::process;
use crate::program::Target;
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result};
use longhaul_block::Blocking;
use longhaul_initiator::{Options, RemoteDevice};
use std::thread;
use std::time::{Duration, Instant};

/// The most that an idle target may use of one processor.
const CEILING: f64 = 0.01;
/// Controllers that are connected, each with an admin and an I/O queue.
const CONTROLLERS: usize = 8;
/// Connections that this makes.
const CONNECTIONS: usize = 2 * CONTROLLERS;
/// How long idleness is looked at, longer than the time between keep-alives.
const LOOK: Duration = Duration::from_secs(10);
/// From the last I/O to the first look.
const SETTLE: Duration = Duration::from_millis(500);
/// Of the table.
const PERCENT: f64 = 0.01;

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "idle",
        &["engine", "target, % of a processor", "≤ 1 %", "initiators, % of a processor"],
    );
    for engine in &setup.engines {
        let target = Target::start(setup, engine, "mem:64MiB", &[])?;
        // In a thread of its own, whose processor its child processes inherit.
        let used = thread::scope(|scope| {
            scope.spawn(|| watch(setup, engine, &target)).join().expect("a thread that does not panic")
        })?;
        let [ours, initiators] = [0, 1].map(|n| Samples(used.iter().map(|u| u[n]).collect()));
        section.keep("idle", &format!("longhaul target {engine}"), "share of a processor", &ours);
        section.keep("idle", &format!("initiators {engine}"), "share of a processor", &initiators);
        section.row(vec![
            engine.clone(),
            ours.show(PERCENT, 3),
            ours.at_most(CEILING).into(),
            initiators.show(PERCENT, 3),
        ]);
    }
    section.notes.push(format!(
        "{CONNECTIONS} connections ({CONTROLLERS} controllers with an admin and an I/O queue each) that were \
         used once and then left alone, watched for {} s a round; keep-alives go on. The initiators are the \
         library in one process",
        LOOK.as_secs()
    ));
    section.commands = vec![format!(
        "{}longhaul target --export bench=mem:64MiB --threads 1 --congestion {}",
        setup.target.prefix(),
        setup.congestion
    )];
    Ok(section)
}

/// Connects, and looks at the target's and our own use of processors.
fn watch(setup: &Setup, engine: &str, target: &Target) -> Result<Vec<[f64; 2]>> {
    setup.load.pin_thread()?;
    let kind = engine.parse().map_err(anyhow::Error::msg)?;
    let mut options = Options { congestion: Some(setup.congestion.clone()), ..Options::default() };
    options.engine.kind = kind;
    let mut disks = Vec::new();
    for _ in 0..CONTROLLERS {
        let remote = RemoteDevice::connect_blocking(&target.uri.parse()?, options.clone())?;
        let disk = Blocking::open(remote).context("an I/O queue")?;
        disk.read_at(&mut [0; 4096], 0)?;
        disks.push(disk);
    }
    thread::sleep(SETTLE);
    let now = || anyhow::Ok([process::cpu_time(target.pid())?, process::cpu_time(std::process::id())?]);
    let mut used = Vec::new();
    for _ in 0..setup.rounds {
        let (began, before) = (Instant::now(), now()?);
        thread::sleep(LOOK);
        let (after, time) = (now()?, began.elapsed());
        used.push([0, 1].map(|n| (after[n] - before[n]).as_secs_f64() / time.as_secs_f64()));
    }
    Ok(used)
}
