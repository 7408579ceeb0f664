//! Links that are cut for a while under load, again and again.

use super::super::memory_backend;
use super::{MB, client, commands};
use crate::link::{self, Link};
use crate::process::Guard;
use crate::program::{self, Load, Target};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, ensure};
use longhaul_results::schema::Output;
use longhaul_wan::{Change, Conditions};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

const RATE: u64 = 1_000_000_000;
const ROUND_TRIPS: [Duration; 2] = [Duration::from_millis(15), Duration::from_millis(100)];

const CUTS: usize = 10;
const CUT: Duration = Duration::from_secs(20);
/// Load between two cuts.
const BETWEEN: Duration = Duration::from_secs(8);
/// The part of it in which the full rate is taken, right before a cut.
const BEFORE: Duration = Duration::from_secs(2);

/// The rate has recovered when it is this share of the earlier one, for a while.
const BACK: f64 = 0.95;
const WHILE: Duration = Duration::from_millis(500);
/// How often the link is looked at.
const TICK: Duration = Duration::from_millis(10);

/// The longest that coming back may take.
fn ceiling(rtt: Duration) -> Duration {
    5 * rtt + Duration::from_secs(1)
}

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "cut",
        &[
            "link",
            "load",
            "cuts of 20 s",
            "I/O errors",
            "content verified",
            "rate before, Mb/s",
            "back at full rate after, s",
            "≤ 5 RTT + 1 s",
        ],
    );
    for rtt in ROUND_TRIPS {
        for found in both(setup, rtt)? {
            add_row(&mut section, rtt, &found);
        }
    }
    section.notes.push(format!(
        "{}; what is measured is each of a row's {CUTS} cuts; the load goes on for {BETWEEN:?} between two cuts. \
         Back: from the moment when the link carries again until the bytes that it delivers within {WHILE:?} are \
         95 % of what they were in the {BEFORE:?} before the cut. Counted by the emulator, not by the program. \
         The verified load writes blocks with address, generation and checksum, and reads all of them in the end",
        link::rate(RATE)
    ));
    section.commands = commands(setup, RATE, ROUND_TRIPS[0], "", "");
    let length = length().as_secs();
    section.commands.extend([
        client(&format!(
            "longhaul bench URI --rw write --bs 1MiB --verify crc32c --runtime {length}s --congestion {} &",
            setup.congestion
        )),
        "longhaul wan set link --cut && sleep 20".into(),
        "longhaul wan set link --restore".into(),
    ]);
    Ok(section)
}

/// How long the load runs.
fn length() -> Duration {
    (BETWEEN + CUT) * CUTS as u32 + 2 * BETWEEN
}

/// What the cuts of one load showed.
struct Found {
    rw: &'static str,
    errors: i32,
    verified: String,
    /// Bytes per second before each cut.
    full: Samples,
    /// Seconds after each cut.
    back: Samples,
}

/// Writes over one link and reads over another, so that one carries its load
/// while the other one is cut.
fn both(setup: &Setup, rtt: Duration) -> Result<Vec<Found>> {
    let one = |rw, begin| {
        let link = Link::start(Conditions::new(rtt, Some(RATE)), None)?;
        sleep(begin);
        measure(setup, &link, rw)
    };
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| one("write", Duration::ZERO));
        let reads = scope.spawn(|| one("read", (BETWEEN + CUT) / 2));
        [writes, reads]
            .into_iter()
            .map(|thread| thread.join().expect("a thread that does not panic"))
            .collect()
    })
}

fn measure(setup: &Setup, link: &Link, rw: &'static str) -> Result<Found> {
    let setup = &link.setup(setup, 1);
    let engine = setup.engines.first().context("no engine to measure with")?;
    let target = Target::start(setup, engine, &memory_backend(setup), &[])?;
    let mut command = program::bench(setup, engine, &target.uri);
    for (name, value) in Load::tuned(rw, 1 << 20).options() {
        command.arg(format!("--{name}")).arg(value);
    }
    command.args(["--runtime", &format!("{}s", length().as_secs())]);
    command.args((rw == "write").then_some(["--verify", "crc32c"]).iter().flatten());
    let child = Guard(setup.load.start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?);
    let delivered = || -> Result<u64> {
        let link = link.statistics()?.links[0];
        Ok(if rw == "write" { link.there.bytes_out } else { link.back.bytes_out })
    };
    let (mut full, mut back) = (Vec::new(), Vec::new());
    let start = Instant::now();
    for n in 1..=CUTS {
        // By the clock: however long it takes to come back, the load outlasts
        // the last cut.
        let next = (BETWEEN + CUT) * (n as u32 - 1) + BETWEEN - BEFORE;
        sleep(next.saturating_sub(start.elapsed()));
        let (began, before) = (Instant::now(), delivered()?);
        sleep(BEFORE);
        let rate = (delivered()? - before) as f64 / began.elapsed().as_secs_f64();
        link.set(&Change::cut())?;
        sleep(CUT);
        link.set(&Change::restore())?;
        let time = comes_back(rate, delivered)?;
        eprintln!(
            "  {} {rw}: cut {n}: back after {time:.2} s at {:.0} Mb/s",
            link::round_trip(link.rtt()),
            rate / MB
        );
        full.push(rate);
        back.push(time);
    }
    let output: Output = serde_json::from_str(&program::output(child)?).context("the load's result")?;
    let job = output.jobs.first().context("a result without jobs")?;
    let verified = match &job.verify {
        Some(verify) => {
            let wrong: u64 = verify.faults.0.iter().map(|(_, n)| n).sum();
            format!("{} blocks, {wrong} wrong", verify.checked_blocks)
        }
        None => "–".into(),
    };
    Ok(Found { rw, errors: job.error, verified, full: Samples(full), back: Samples(back) })
}

fn add_row(section: &mut Section, rtt: Duration, found: &Found) {
    let name = link::round_trip(rtt);
    section.keep(&format!("{name}, {}", found.rw), "back at full rate", "seconds", &found.back);
    let worst = Samples(vec![found.back.most()]);
    section.row(vec![
        name,
        found.rw.into(),
        CUTS.to_string(),
        found.errors.to_string(),
        found.verified.clone(),
        found.full.show(MB, 0),
        found.back.show(1.0, 2),
        worst.at_most(ceiling(rtt).as_secs_f64()).into(),
    ]);
}

/// Seconds until `delivered` grows at its full rate again.
fn comes_back(rate: f64, delivered: impl Fn() -> Result<u64>) -> Result<f64> {
    let began = Instant::now();
    let mut seen: Vec<(Duration, u64)> = vec![(Duration::ZERO, delivered()?)];
    let mut from = 0;
    loop {
        sleep(TICK);
        let now = (began.elapsed(), delivered()?);
        seen.push(now);
        while now.0 - seen[from].0 >= WHILE {
            let (time, bytes) = seen[from];
            if (now.1 - bytes) as f64 >= BACK * rate * (now.0 - time).as_secs_f64() {
                return Ok(time.as_secs_f64());
            }
            from += 1;
        }
        ensure!(now.0 < BETWEEN - BEFORE, "the rate did not come back within {:?}", BETWEEN - BEFORE);
    }
}
