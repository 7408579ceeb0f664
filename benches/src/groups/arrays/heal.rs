//! A target that is killed under a verified write load, the spare that takes
//! its place, and reads meanwhile.

use super::{MB, Star};
use crate::link;
use crate::process::Guard;
use crate::program::{self, Load, Target};
use crate::report::{Samples, Section};
use crate::setup::Setup;
use anyhow::{Context, Result, bail, ensure};
use longhaul_results::schema::{Job, Output};
use longhaul_wan::Conditions;
use serde_json::Value;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

const RATE: u64 = 300_000_000;
const RTT: Duration = Duration::from_millis(15);

/// Members of the array, of which one is killed; the last server has the spare.
const MEMBERS: usize = 4;
const KILLED: usize = 1;
/// Bytes of each device: some seconds of the link.
const SIZE: u64 = 256 << 20;

/// When the target is killed: a load of all of the array is at its middle.
const KILL_AFTER: Duration = Duration::from_secs(3);
/// How long reads are watched, healthy and during the rebuild.
const READS: Duration = Duration::from_secs(3);
/// How often the array is asked how it is.
const TICK: Duration = Duration::from_millis(200);
/// A rebuild that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// The least rate of the rebuild, as a share of a plain stream to the spare.
const FLOOR: f64 = 0.80;

/// The numbers of one repetition, in this order.
const NUMBERS: [&str; 11] = [
    "I/O errors",
    "blocks verified",
    "blocks wrong",
    "longest write, s",
    "spare in after, s",
    "rebuild, bytes/s",
    "iperf3 to the spare, bytes/s",
    "4 KiB read before, s",
    "99 % before, s",
    "4 KiB read during the rebuild, s",
    "99 % during, s",
];

pub(crate) fn run(setup: &Setup) -> Result<Section> {
    let mut section = Section::new(
        "heal",
        &[
            "links",
            "I/O errors",
            "blocks verified, wrong",
            "longest write, s",
            "spare in after, s",
            "iperf3 to it, Mb/s",
            "rebuild, Mb/s",
            "of iperf3",
            "≥ 0.8",
            "4 KiB read before, ms",
            "99 %",
            "during the rebuild, ms",
            "99 %",
        ],
    );
    let setup = &Setup { size: SIZE, ..setup.clone() };
    for &rate in setup.rates(&[RATE]) {
        for &rtt in setup.round_trips(&[RTT]) {
            let place = format!("{}, {}", link::rate(rate), link::round_trip(rtt));
            let found = repeat(setup, &place, || Conditions::new(rtt, Some(rate)))?;
            add_row(&mut section, &place, &found);
        }
    }
    section.notes.push(format!(
        "parity of {MEMBERS} with 256 MiB each, in a target of its own on the client (`--export v=array:bench`), \
         loaded through it. All of it is written once in order; after {KILL_AFTER:?} the target of a member is \
         killed for good. When all has been written, and read back and compared, a spare is added. When it is \
         filled, all is read and compared once more. Each repetition has new links and devices"
    ));
    section.notes.push(
        "Longest write: what the load waited for when the member was lost; the array gives a member 10 s. Spare \
         in: from `array add-spare` until it is being filled. Reads: 4 KiB at random, one at a time, mean and \
         99th percentile, healthy before the load and while the spare is filled"
            .into(),
    );
    section.commands = super::commands(setup, RATE, RTT, MEMBERS, "parity --spare-grace 1s");
    section.commands.extend(
        [
            "longhaul target --export v=array:scratch &",
            "longhaul bench nvme+tcp://localhost/v --rw write --bs 1MiB --verify crc32c",
            "longhaul array add-spare scratch --device nvme+tcp://10.77.5.2/bench",
            "longhaul array status scratch",
        ]
        .map(super::client),
    );
    Ok(section)
}

/// All repetitions, by number.
fn repeat(setup: &Setup, place: &str, conditions: impl Fn() -> Conditions) -> Result<Vec<Samples>> {
    let case = format!("heal: {place}");
    let kept = setup.keep.as_ref().map(|keep| keep.get(&case, NUMBERS.len(), setup.rounds)).transpose()?;
    let numbers = match kept.flatten() {
        Some(kept) => kept,
        None => {
            let mut numbers = vec![Vec::new(); NUMBERS.len()];
            for round in 1..=setup.rounds {
                let found = once(setup, conditions()).with_context(|| format!("repetition {round}"))?;
                let words: Vec<String> =
                    NUMBERS.iter().zip(found).map(|(name, n)| format!("{name} {n:.4}")).collect();
                eprintln!("  {place}: {}", words.join("; "));
                numbers.iter_mut().zip(found).for_each(|(all, one)| all.push(one));
            }
            if let Some(keep) = &setup.keep {
                keep.put(&case, &numbers)?;
            }
            numbers
        }
    };
    Ok(numbers.into_iter().map(Samples).collect())
}

fn once(setup: &Setup, conditions: Conditions) -> Result<[f64; NUMBERS.len()]> {
    let mut star = Star::start(setup, conditions, MEMBERS + 1, 1)?;
    let iperf = star.iperf()?;
    let plain = iperf[MEMBERS].run(&star.servers[MEMBERS].setup, true, 128 << 10)?;
    let uris: Vec<String> = star.uris(0).into_iter().map(str::to_owned).collect();
    let members: Vec<&str> = uris[..MEMBERS].iter().map(String::as_str).collect();
    let array = star.create("bench", "parity", &members, &["--spare-grace", "1s"])?;
    let runner = Setup { target: star.setup().load.itself(), ..star.setup().clone() };
    let gateway = Target::start(&runner, &star.engine, &array, &[])?;
    let before = reads(&runner, &star.engine, &gateway)?;

    let writes =
        start(&runner, &star.engine, &gateway, &["--rw", "write", "--bs", "1MiB", "--verify", "crc32c"])?;
    sleep(KILL_AFTER);
    star.servers.remove(KILLED).target.kill()?;
    let written = result(writes)?;
    let longest = written.write.lat_ns.max as f64 / 1e9;

    let began = Instant::now();
    star.array(&["add-spare", "bench", "--device", &uris[MEMBERS]])?;
    let first = await_rebuild(&star)?;
    let spare_in = began.elapsed().as_secs_f64();
    let (during, rebuild) = std::thread::scope(|scope| -> Result<_> {
        let reads = scope.spawn(|| reads(&runner, &star.engine, &gateway));
        let rebuild = follow(&star, first)?;
        Ok((reads.join().expect("a thread that does not panic")?, rebuild))
    })?;

    let again =
        start(&runner, &star.engine, &gateway, &["--rw", "read", "--bs", "1MiB", "--verify", "crc32c"])?;
    let read = result(again)?;
    let (mut checked, mut wrong) = (0, 0);
    for verify in [&written, &read].into_iter().filter_map(|job| job.verify.as_ref()) {
        checked += verify.checked_blocks;
        wrong += verify.faults.0.iter().map(|(_, n)| n).sum::<u64>();
    }
    ensure!(checked > 0, "nothing was verified");
    Ok([
        f64::from(written.error + read.error),
        checked as f64,
        wrong as f64,
        longest,
        spare_in,
        rebuild,
        plain,
        before[0],
        before[1],
        during[0],
        during[1],
    ])
}

fn start(setup: &Setup, engine: &str, gateway: &Target, load: &[&str]) -> Result<Guard> {
    let mut command = program::bench(setup, engine, &gateway.uri);
    command.args(load).stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(Guard(setup.load.start(&mut command)?))
}

/// What a load found; an error of its I/O, or wrong content, is a finding.
fn result(mut load: Guard) -> Result<Job> {
    let stdout = load.0.stdout.take().context("no pipe")?;
    let text = std::io::read_to_string(stdout).context("a load's output")?;
    let output: Output = serde_json::from_str(&text).context("the load's result")?;
    output.jobs.into_iter().next().context("a result without jobs")
}

/// Seconds of a small read while nothing else is asked for: mean and 99th
/// percentile.
fn reads(setup: &Setup, engine: &str, gateway: &Target) -> Result<[f64; 2]> {
    let mut command = program::bench(setup, engine, &gateway.uri);
    for (name, value) in Load::new("randread", 4096, 1).options() {
        command.arg(format!("--{name}")).arg(value);
    }
    let time = format!("{}ms", READS.as_millis());
    command.args(["--runtime", &time]).stdin(Stdio::null()).stdout(Stdio::piped());
    let job = result(Guard(setup.load.start(&mut command)?))?;
    ensure!(job.error == 0 && job.read.total_ios > 0, "reads failed with error {}", job.error);
    let late = job.read.clat_ns.percentile.0.iter().find(|(name, _)| name == "99.000000");
    Ok([job.read.lat_ns.mean / 1e9, late.context("no percentile")?.1 as f64 / 1e9])
}

/// The array's status, healthy or not.
fn status(star: &Star) -> Result<Value> {
    let setup = star.setup();
    let mut command = setup.load.command(&setup.program);
    let output = command.args(["array", "status", "bench", "--json"]).output().context("array status")?;
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().context("no status")?).context("the array's status")
}

/// Bytes rebuilt so far, and the seconds that they took.
type Rebuilt = (f64, f64);

fn rebuild_progress(status: &Value) -> Option<Rebuilt> {
    let rebuild = &status["filling"];
    Some((rebuild["done_bytes"].as_f64()?, rebuild["elapsed_seconds"].as_f64()?))
}

/// Waits until a spare is being rebuilt.
fn await_rebuild(star: &Star) -> Result<Rebuilt> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Some(rebuilt) = rebuild_progress(&status(star)?) {
            return Ok(rebuilt);
        }
        sleep(TICK / 4);
    }
    bail!("no spare was taken within {PATIENCE:?}")
}

/// Waits until the array is whole; bytes per second of the rebuild.
fn follow(star: &Star, mut last: Rebuilt) -> Result<f64> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let status = status(star)?;
        if status["health"] == "healthy" {
            return Ok(last.0 / last.1);
        }
        last = rebuild_progress(&status).unwrap_or(last);
        sleep(TICK);
    }
    bail!("the array was not whole within {PATIENCE:?}")
}

fn add_row(section: &mut Section, place: &str, found: &[Samples]) {
    for (name, samples) in NUMBERS.iter().zip(found) {
        section.keep(place, name, "", samples);
    }
    let [errors, checked, wrong, longest, spare, rebuild, plain, before, before99, during, during99] = found
    else {
        return;
    };
    let ratio = rebuild.ratio(plain);
    section.row(vec![
        place.to_owned(),
        format!("{}", errors.0.iter().sum::<f64>()),
        format!("{}, {}", checked.0.iter().sum::<f64>(), wrong.0.iter().sum::<f64>()),
        longest.show(1.0, 1),
        spare.show(1.0, 1),
        plain.show(MB, 0),
        rebuild.show(MB, 0),
        ratio.show_ratio(),
        ratio.at_least(FLOOR).into(),
        before.show(1e-3, 1),
        before99.show(1e-3, 1),
        during.show(1e-3, 1),
        during99.show(1e-3, 1),
    ]);
}
