//! `longhaul diagnose`: finds the bottleneck of a copy.
//!
//! It runs a ladder of copies, each with other stages left out: files to `null:` (read), a
//! synthetic source to `null:` over the path (network), a synthetic source to files (write),
//! and files to files (whole), each with few and with many files. Then it varies the
//! concurrency of the whole copy, and probes the slowest stage ([`probe`]).
//! [`longhaul_lab::model`] computes costs from the times, and [`longhaul_lab::cause`]
//! names the cause.

mod child;
mod hosts;
mod ladder;
mod probe;
mod tell;

use crate::arguments::parse_bytes;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, save};
use ladder::{CopyResult, CopySettings, Ladder, Rung};
use longhaul_lab::cause::{self, Change, Finding, GAIN_MIN, HostSeen, Remedy, Seen, Sweep, Tried};
use longhaul_lab::line;
use longhaul_lab::model::{Copy, Fit, Noise, Split, fit, split};
use longhaul_results::record::{Better, Cell, Place, ROUND_TRIPS_MIN, Record, Run, Validity};
use longhaul_results::schema;
use longhaul_results::stats::Interval;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Copies generated data, in SRC/longhaul-diagnose-PID and
DST/longhaul-diagnose-PID, and removes it at the end (on a remote destination,
an empty directory remains). SRC is a local directory; DST is a destination as
for cp. No other file is read, and no setting is changed: a remedy that changes
a machine is printed as a command.

Example:
  longhaul diagnose /data lh://dtn2:7400/incoming --try")]
pub(crate) struct DiagnoseArgs {
    /// Local directory to read from
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Directory to write to, local or remote
    #[arg(value_name = "DST")]
    destination: OsString,
    /// Bytes of each copy [default: 64 MiB, or more if that takes less than 2 s or 20 round
    /// trips]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    bytes: Option<u64>,
    /// Largest number of files in a copy
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    files: u32,
    /// Runs of each copy
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Threads that read, and threads that write, of the copy to diagnose
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = super::cp::threads())]
    threads: u16,
    /// Data connections of that copy
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: u16,
    /// Checksum of that copy
    #[arg(long, value_enum, default_value_t = super::cp::Checksum::Xxh3)]
    checksum: super::cp::Checksum,
    /// TCP congestion control of that copy, by the kernel's name [default: that of the machine]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Encrypt, with the key of the agent in FILE
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    far: super::cp::far::FarArgs,
    /// Apply the remedy if it is a setting of the copy, and measure its effect
    #[arg(long = "try")]
    try_it: bool,
    /// Write the result to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Initial size of a copy in bytes.
const BYTES: u64 = 64 << 20;
/// Shortest copy in seconds: setup and end dominate a shorter one.
const LONG: f64 = 2.0;
/// How often the size of copies is raised to reach that, and the largest factor each time.
const LARGER: (usize, f64) = (4, 32.0);
/// Fewest files of a copy: enough for every thread and connection.
const FEW: u32 = 8;
/// Numbers of threads and of connections in the sweep of concurrency.
const TRIED: [u16; 3] = [1, 4, 16];
/// Copies are compared by the best of this many runs, since other load on a machine only
/// adds time.
const BEST_OF: usize = 2;
/// Pairs of copies, without and with a remedy, that measure its effect.
const ROUNDS: usize = 3;

/// The write stage limits only if it takes this many times as long as the network stage:
/// with packet loss, runs differ by as much.
const BEHIND: f64 = 1.5;

/// Results of the ladder.
#[derive(Default)]
struct LadderResults {
    seen: Option<Seen>,
    fits: Vec<(Rung, Fit)>,
    split: Option<Split>,
    cells: Vec<Cell>,
    /// Times of the copies of each cell.
    runs: Vec<Run>,
    /// Parameters of the fits through them.
    fitted: Vec<Cell>,
    /// Failed probes, and remedies that did not help.
    notes: Vec<String>,
    /// Shortest round trip in seconds, and highest throughput in bits per second.
    path: (Option<f64>, f64),
}

/// Predicted and measured speed-up of a remedy, as factors.
struct RemedyTrial {
    predicted: Option<f64>,
    achieved: Option<f64>,
    /// Command to run, if the remedy is not a setting of the copy.
    command: Option<String>,
}

impl LadderResults {
    /// Returns the answer of a probe; `None`, with a note, if it failed; the error if the run was stopped.
    fn note<T>(
        &mut self,
        what: &str,
        asked: Result<T, Failure>,
        ladder: &Ladder,
    ) -> Result<Option<T>, Failure> {
        match asked {
            Ok(answer) => Ok(Some(answer)),
            Err(e) if ladder.stopped() => Err(e),
            Err(e) => {
                self.notes.push(format!("not measured: {what} ({})", e.message));
                Ok(None)
            }
        }
    }
}

pub(crate) fn run(args: &DiagnoseArgs, output: Output) -> Outcome {
    let stop = longhaul_load::Stop::new();
    super::bench::stop_on_interrupt(&stop, output)?;
    let mut ladder = Ladder::new(args, stop)?;
    tell_unread_counters(output);
    let mut results = LadderResults::default();
    let (findings, tried, failure) = match find(args, &mut ladder, &mut results, output) {
        Ok((findings, tried)) => (findings, tried, None),
        // Without a cell there is no result to write.
        Err(failure) if results.cells.is_empty() => return Err(failure),
        Err(failure) => (Vec::new(), None, Some(failure)),
    };
    let mut record = Record::new("diagnose", format!("copies to {}", args.destination.to_string_lossy()));
    record.cells.clone_from(&results.cells);
    record.conditions.0 = tell::conditions(&results, &findings, tried.as_ref());
    record.conditions.0.extend(failure.iter().map(|failure| ("ended early".into(), failure.message.clone())));
    record.judge();
    // Judged from the copies alone: a fitted cost per file near zero is all noise.
    let validity = record.validity.clone();
    record.cells.append(&mut results.fitted);
    record.runs = std::mem::take(&mut results.runs);
    record.judge();
    let document = schema::Output { longhaul: Some(record), ..schema::Output::now() };
    let saved = args.output.as_ref().map_or(Ok(()), |path| save(path, &document));
    tell::tell(&results, &findings, tried.as_ref(), &validity, output);
    saved?;
    let Some(failure) = failure else { return Ok(()) };
    let kept =
        args.output.as_ref().map(|path| format!("; the measurements until then are in {}", path.display()));
    Err(Failure::new(Exit::Partly, format!("{}{}", failure.message, kept.unwrap_or_default())))
}

/// Prints which counters of this machine cannot be read, if any: without them losses on the
/// path are not seen.
pub(super) fn tell_unread_counters(output: Output) {
    if let Some(why) = hosts::Segments::unread() {
        output.note(format_args!("longhaul: {why}: losses on the path will not be seen"));
    }
}

/// Measures and finds causes; with `--try`, also measures the speed-up of the remedy.
fn find(
    args: &DiagnoseArgs,
    ladder: &mut Ladder,
    results: &mut LadderResults,
    output: Output,
) -> Result<(Vec<Finding>, Option<RemedyTrial>), Failure> {
    let now = CopySettings {
        readers: args.threads,
        writers: args.threads,
        streams: args.streams,
        checksum: args.checksum.name(),
        congestion: args.congestion.clone(),
        rate: None,
    };
    let findings = if !ladder.is_local() && !ladder.full_packets_pass()? {
        vec![cause::black_hole()]
    } else {
        if args.bytes.is_none() {
            enlarge(ladder, &now, output)?;
        }
        climb(args, ladder, &now, results, output)?;
        confirmed(args, ladder, &now, results, output)?
    };
    let tried = match findings.first() {
        Some(first) if args.try_it => {
            let tried = attempt(args, ladder, first, &now, results.path);
            results.note("what the remedy brings", tried, ladder)?
        }
        _ => None,
    };
    Ok((findings, tried))
}

/// Enlarges the copies until they take long enough to be valid: a fast path carries the
/// initial size within milliseconds.
fn enlarge(ladder: &mut Ladder, now: &CopySettings, output: Output) -> Result<(), Failure> {
    let (times, most) = LARGER;
    for _ in 0..times {
        let took = ladder.copy(Rung::Whole, FEW, now)?;
        let Some(times) = too_short(took.seconds, took.round_trip) else { break };
        let Some(bytes) = ladder.enlarge(times.min(most)) else { break };
        output.note(format_args!("copies of {}", longhaul_block::units::format_size(bytes)));
    }
    Ok(())
}

/// The factor by which a copy of this duration is too small; `None` if it is large enough.
fn too_short(seconds: f64, round_trip: Option<f64>) -> Option<f64> {
    let least = LONG.max(round_trip.unwrap_or(0.0) * f64::from(ROUND_TRIPS_MIN));
    // 20 % more, since part of the time is setup.
    (seconds < least).then(|| 1.2 * least / seconds.max(1e-3))
}

/// Findings, ranked. If the remedy of the first is an option of the copy, it is measured: its
/// gain replaces the predicted one, and a remedy without gain is dropped.
fn confirmed(
    args: &DiagnoseArgs,
    ladder: &mut Ladder,
    now: &CopySettings,
    results: &mut LadderResults,
    output: Output,
) -> Result<Vec<Finding>, Failure> {
    let mut known: Vec<(Change, f64)> = Vec::new();
    loop {
        let Some(seen) = &mut results.seen else { return Ok(Vec::new()) };
        let mut findings = cause::diagnose(seen);
        for finding in &mut findings {
            let Remedy::Copy(change) = &finding.remedy else { continue };
            let known = known.iter().find(|(known, _)| known == change);
            finding.gain = known.map(|(_, gain)| *gain).or(finding.gain);
        }
        cause::rank(&mut findings);
        let change = match findings.first().map(|first| &first.remedy) {
            Some(Remedy::Copy(change)) if known.iter().all(|(known, _)| known != change) => change.clone(),
            _ => return Ok(findings),
        };
        let words = change.options().join(" ");
        output.note(format_args!("with {words}, and without"));
        match versus(args, ladder, now, &change) {
            Ok(gain) if gain >= GAIN_MIN => known.push((change, gain)),
            Err(e) if ladder.stopped() => return Err(e),
            failed => {
                seen.without(&change);
                let why = failed.map_or_else(|e| e.message, |gain| format!("{gain:.2} times as fast"));
                results.notes.push(format!("{words} did not help when it was tried again: {why}"));
            }
        }
    }
}

/// Speed-up of the copy by a change: the ratio of the medians of interleaved runs, so that
/// other load on the machine affects both.
fn versus(
    args: &DiagnoseArgs,
    ladder: &mut Ladder,
    now: &CopySettings,
    change: &Change,
) -> Result<f64, Failure> {
    let mut then = now.clone();
    match change {
        Change::Threads(n) => then = now.threads(small(*n)),
        Change::Readers(n) => then.readers = small(*n),
        Change::Writers(n) => then.writers = small(*n),
        Change::Streams(n) => then.streams = small(*n),
        Change::Congestion(name) => then.congestion = Some(name.clone()),
        Change::QuickChecksum => then.checksum = super::cp::Checksum::Xxh3.name(),
    }
    let [before, after] =
        in_turn(ROUNDS, &[now.clone(), then], |how| Ok(ladder.copy(Rung::Whole, args.files, how)?.seconds))?;
    Ok(median(before) / median(after))
}

/// Times of interleaved runs of each of `kinds`, so that a drift of the machine affects all.
fn in_turn<T, const N: usize>(
    rounds: usize,
    kinds: &[T; N],
    mut run: impl FnMut(&T) -> Result<f64, Failure>,
) -> Result<[Vec<f64>; N], Failure> {
    let mut times = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for (kind, times) in kinds.iter().zip(&mut times) {
            times.push(run(kind)?);
        }
    }
    Ok(times)
}

fn quickest(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

fn slowest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Numbers of files of the copies: fewest, most, and their geometric mean.
fn counts(args: &DiagnoseArgs) -> [u32; 3] {
    [FEW, (FEW * args.files).isqrt(), args.files]
}

/// Copies of one rung with one number of files.
struct CopyRuns {
    rung: Rung,
    files: u32,
    took: Vec<CopyResult>,
}

impl CopyRuns {
    /// The fastest copy: other load on a machine only adds time.
    fn best(&self) -> Option<&CopyResult> {
        self.took.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}

/// The fastest copy of a rung with a number of files.
fn best(all: &[CopyRuns], rung: Rung, files: u32) -> Option<&CopyResult> {
    all.iter().find(|runs| runs.rung == rung && runs.files == files)?.best()
}

fn climb(
    args: &DiagnoseArgs,
    ladder: &mut Ladder,
    now: &CopySettings,
    results: &mut LadderResults,
    output: Output,
) -> Outcome {
    let files = args.files;
    let mut all: Vec<CopyRuns> = Vec::new();
    for rung in Rung::FITTED {
        if rung == Rung::Network && ladder.is_local() {
            continue;
        }
        output.note(format_args!("{}", rung.says()));
        // Reading the counters of the agent's machine takes time: only the whole copy needs them.
        ladder.asks = rung == Rung::Whole;
        let mut copies = Vec::new();
        for files in counts(args) {
            let (at, mut took) = (results.cells.len(), Vec::new());
            for _ in 0..args.runs {
                let one = ladder.copy(rung, files, now)?;
                // Recorded at once, in case the next copy fails.
                if results.cells.len() == at {
                    results.cells.push(cell(rung, files));
                }
                results.cells[at].push(one.seconds, &one.run.validity);
                results.runs.push(Run { of: results.cells[at].name.clone(), ..one.run.clone() });
                took.push(one);
            }
            copies.extend(took.iter().map(|took| took.as_copy(files)));
            all.push(CopyRuns { rung, files, took });
        }
        results.fits.push((rung, fit(&copies, Noise::Proportional).map_err(Failure::failed)?));
        results.fitted.extend(fitted(rung, &all));
    }
    ladder.asks = false;
    output.note("more and fewer at the same time");
    let asked = threads(ladder, files, now);
    let (threads, alone) = results.note("other numbers of threads", asked, ladder)?.unwrap_or_default();
    let mut streams = Sweep::default();
    if !ladder.is_local() {
        let asked = sweep(args.streams, |streams| {
            Ok(ladder.copy(Rung::Whole, files, &CopySettings { streams, ..now.clone() })?.seconds)
        });
        streams = results.note("other numbers of connections", asked, ladder)?.unwrap_or_default();
    }
    let of = |rung: Rung| results.fits.iter().find(|(one, _)| *one == rung).map(|(_, fit)| *fit);
    let whole = of(Rung::Whole).ok_or_else(|| Failure::failed("nothing was copied"))?;
    let stages = [of(Rung::Read), of(Rung::Network), of(Rung::Write)];
    let t0 = |stage: Option<Fit>| stage.map_or(Interval { value: 0.0, low: 0.0, high: 0.0 }, |fit| fit.t0);
    // The write stage on another machine includes the network, whose cost is subtracted.
    let write = if ladder.is_local() { t0(stages[2]) } else { without(t0(stages[2]), t0(stages[1])) };
    results.split = Some(split(t0(stages[0]), t0(stages[1]), write, whole.t0));
    let network = best(&all, Rung::Network, counts(args)[0]);
    let round_trip = network.and_then(|took| took.round_trip);
    let bits = |took: &CopyResult| took.bytes as f64 * 8.0 / took.seconds;
    results.path = (round_trip, all.iter().filter_map(CopyRuns::best).map(bits).fold(0.0, f64::max));
    let bytes = ladder.bytes(files) as f64;
    let copy = best(&all, Rung::Whole, files);
    let hosts = copy.map_or([HostSeen::default(); 2], |took| took.hosts.map(|host| host.seen()));
    let mut seen = Seen {
        files: files.into(),
        bytes,
        whole,
        stages: [stages[0], stages[1], limiting(stages[2], stages[1], files.into(), bytes)],
        threads,
        alone,
        streams,
        checksum: None,
        encryption: None,
        congestion: None,
        sockets: network.map(|took| took.sockets),
        hosts,
        agent_writes: !ladder.is_local(),
    };
    output.note("what the slowest stage suggests");
    probe::ask(args, ladder, now, (network, copy), &mut seen, results)?;
    results.seen = Some(seen);
    Ok(())
}

/// The write stage, if it limits: on another machine it includes the network, and limits only
/// if it takes clearly longer than that alone.
fn limiting(write: Option<Fit>, network: Option<Fit>, files: f64, bytes: f64) -> Option<Fit> {
    let (write, Some(network)) = (write?, network) else { return write };
    (write.predict(files, bytes) > BEHIND * network.predict(files, bytes)).then_some(write)
}

/// The difference of two intervals, never below zero.
fn without(all: Interval, part: Interval) -> Interval {
    let less = |from: f64, taken: f64| (from - taken).max(0.0);
    Interval {
        value: less(all.value, part.value),
        low: less(all.low, part.high),
        high: less(all.high, part.low),
    }
}

/// Sweep of the number of threads. If another number is faster, also the times with that
/// number of readers only, and of writers only. The writers of an agent are not an option of
/// the copy.
fn threads(
    ladder: &mut Ladder,
    files: u32,
    now: &CopySettings,
) -> Result<(Sweep, [Option<f64>; 2]), Failure> {
    let local = ladder.is_local();
    let mut whole = |how: &CopySettings| Ok::<_, Failure>(ladder.copy(Rung::Whole, files, how)?.seconds);
    let reading = |readers| CopySettings { readers, ..now.clone() };
    let of = |threads| if local { now.threads(threads) } else { reading(threads) };
    let threads = sweep(now.readers, |threads| whole(&of(threads)))?;
    let Some((best, _)) = threads.gain() else { return Ok((threads, [None; 2])) };
    if !local {
        return Ok((threads, [Some(best.seconds), None]));
    }
    let n = small(best.value);
    let alone = [reading(n), CopySettings { writers: n, ..now.clone() }];
    let alone = in_turn(BEST_OF, &alone, whole)?;
    Ok((threads, alone.map(|times| Some(quickest(&times)))))
}

/// Interleaved runs with the current value and with those of [`TRIED`].
fn sweep(now: u16, mut run: impl FnMut(u16) -> Result<f64, Failure>) -> Result<Sweep, Failure> {
    let mut values = TRIED.to_vec();
    if !values.contains(&now) {
        values.push(now);
    }
    let mut times = vec![Vec::new(); values.len()];
    for _ in 0..BEST_OF {
        for (value, times) in values.iter().zip(&mut times) {
            times.push(run(*value)?);
        }
    }
    let tried = values.into_iter().zip(times).map(|(value, times)| Tried {
        value: value.into(),
        seconds: quickest(&times),
        slowest: slowest(&times),
    });
    Ok(Sweep { now: now.into(), tried: tried.collect() })
}

fn small(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

fn cell(rung: Rung, files: u32) -> Cell {
    let mut cell = Cell::new(format!("{}, {files} files", rung.name()), "s", Better::Lower);
    cell.place = Some(Place {
        figure: "The same bytes in more and more files".into(),
        series: rung.name().into(),
        x: files.to_string(),
        x_number: Some(files.into()),
        x_label: "Files".into(),
    });
    cell
}

/// Cells of the cost per file and of the rate: a fit through the copies of each round, so
/// that they have a spread.
fn fitted(rung: Rung, all: &[CopyRuns]) -> [Cell; 2] {
    let [mut t0, mut rate] = line::cells(rung.name());
    let all: Vec<&CopyRuns> = all.iter().filter(|runs| runs.rung == rung).collect();
    for round in 0..all.iter().map(|runs| runs.took.len()).min().unwrap_or(0) {
        let round = || all.iter().map(|runs| (runs.files, &runs.took[round]));
        let copies: Vec<Copy> = round().map(|(files, took)| took.as_copy(files)).collect();
        let Ok(line) = fit(&copies, Noise::Proportional) else { continue };
        let mut validity = Validity::default();
        for reason in round().flat_map(|(_, took)| &took.run.validity.reasons) {
            validity.mark(reason.code, reason.detail.clone());
        }
        t0.push(line.t0.value, &validity);
        rate.push(line.rate.value, &validity);
        if !line.rate.value.is_finite() {
            rate.validity = line::of_nothing();
        }
    }
    [t0, rate]
}

/// Measures the remedy if it is an option of the copy; otherwise returns the command to run.
fn attempt(
    args: &DiagnoseArgs,
    ladder: &mut Ladder,
    finding: &Finding,
    now: &CopySettings,
    path: (Option<f64>, f64),
) -> Result<RemedyTrial, Failure> {
    let (achieved, command) = match &finding.remedy {
        Remedy::Copy(change) => (Some(versus(args, ladder, now, change)?), None),
        Remedy::Tune(end) => (None, Some(format!("at the {end}: {}", tell::tune_command(path)))),
        Remedy::AgentWriters(writers) => {
            let agent = &args.destination.to_string_lossy();
            (None, Some(format!("the agent of {agent} is to be started with --writers {writers}")))
        }
        Remedy::People => (None, None),
    };
    Ok(RemedyTrial { predicted: finding.gain, achieved, command })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_in_all_kinds_alike() {
        // The times rise from run to run, for all kinds alike.
        let mut clock = 10.0;
        let mut run = |_: &&str| {
            clock += 1.0;
            Ok(clock)
        };
        let [a, b] = in_turn(3, &["a", "b"], &mut run).expect("no failure");
        assert_eq!((a.clone(), b.clone()), (vec![11.0, 13.0, 15.0], vec![12.0, 14.0, 16.0]));
        assert!((median(b) / median(a) - 1.0).abs() < 0.1);
        let swept = sweep(4, |_| run(&"")).expect("no failure");
        assert!(swept.gain().is_none(), "{swept:?}");
        // If the current value ran last, the drift would make the others look faster.
        let swept = sweep(32, |value| Ok(if value == 32 { 2.0 } else { 1.0 })).expect("no failure");
        assert_eq!(swept.gain().map(|(best, _)| best.value), Some(1));
    }

    #[test]
    fn short_copies_are_made_longer() {
        assert_eq!(too_short(2.5, None), None);
        assert_eq!(too_short(2.5, Some(0.1)), None);
        // 20 round trips of 300 ms.
        assert!(too_short(2.5, Some(0.3)).is_some_and(|times| (times - 2.88).abs() < 1e-9));
        assert!(too_short(0.05, None).is_some_and(|times| (times - 48.0).abs() < 1e-9));
    }
}
