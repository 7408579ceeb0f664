//! Finds the bottleneck of a copy.
//!
//! It runs a ladder of copies, each with other stages left out: files to `null:` (read), a
//! synthetic source to `null:` over the path (network), a synthetic source to files (write),
//! and files to files (whole), each with few and with many files. Then it varies the
//! concurrency of the whole copy, and probes the slowest stage (`probe`). [`crate::model`]
//! computes costs from the times, and [`crate::cause`] names the cause.
//!
//! The copies are runs of the calling program, which is the `longhaul` program or takes its
//! arguments ([`crate::self_exec`]).

mod cached;
mod child;
mod climb;
mod hosts;
mod ladder;
mod probe;
mod record;
mod rung;
mod turns;

pub use hosts::unread_counters;
pub use rung::{CopySettings, Rung};

use crate::Error;
use crate::cause::{self, Change, CopyMeasurements, Finding, GAIN_MIN, Remedy};
use crate::model::{Fit, Split};
use climb::{FEW, climb};
use ladder::Ladder;
use longhaul_load::Stop;
use longhaul_results::record::{Cell, ROUND_TRIPS_MIN, Record, Run, Validity};
use std::ffi::OsString;
use std::path::PathBuf;
use turns::{in_turn, median, small};

/// What to diagnose, and how.
#[derive(Clone, Debug)]
pub struct DiagnoseOptions {
    /// Directory of this machine to read from. The generated data is in a new directory below it,
    /// which is removed at the end.
    pub source: PathBuf,
    /// Directory to write to, as `cp` takes it: a path, `HOST:PATH` or `lh://HOST:PORT/PATH`.
    pub destination: OsString,
    /// Bytes of each copy; `None`: 64 MiB, or more if that takes less than 2 s or 20 round trips.
    pub bytes: Option<u64>,
    /// Largest number of files in a copy, from 16.
    pub files: u32,
    /// Runs of each copy.
    pub runs: u16,
    /// The copy to diagnose.
    pub copy: CopySettings,
    /// File with the key of the agent.
    pub key_file: Option<PathBuf>,
    /// DiagnoseOptions of `cp` that say how ssh reaches the destination.
    pub far_options: Vec<OsString>,
    /// Measure the effect of the remedy, if it is a setting of the copy.
    pub try_remedy: bool,
}

/// Initial size of a copy in bytes.
const BYTES: u64 = 64 << 20;
/// Shortest copy in seconds: setup and end dominate a shorter one.
const LONG: f64 = 2.0;
/// How often the size of copies is raised to reach that, and the largest factor each time.
const LARGER: (usize, f64) = (4, 32.0);
/// Pairs of copies, without and with a remedy, that measure its effect.
const ROUNDS: usize = 3;
/// The checksum that costs least, by its name on the command line of `cp`.
const QUICK_CHECKSUM: &str = "xxh3";

/// Results of the ladder.
#[derive(Clone, Debug, Default)]
pub struct LadderResults {
    /// Counters of both machines during the copies.
    pub seen: Option<CopyMeasurements>,
    /// The costs of each copy.
    pub fits: Vec<(Rung, Fit)>,
    /// The stages of a file.
    pub split: Option<Split>,
    cells: Vec<Cell>,
    /// Times of the copies of each cell.
    runs: Vec<Run>,
    /// Parameters of the fits through them.
    fitted: Vec<Cell>,
    /// Failed probes, and remedies that did not help.
    pub notes: Vec<String>,
    /// Shortest round trip in seconds, and highest throughput in bits per second.
    path: (Option<f64>, f64),
}

/// Predicted and measured speed-up of a remedy, as factors.
#[derive(Clone, Debug)]
pub struct RemedyTrial {
    /// The expected one.
    pub predicted: Option<f64>,
    /// The measured one, if the remedy is a setting of the copy.
    pub achieved: Option<f64>,
    /// Command to run, if the remedy is not a setting of the copy.
    pub command: Option<String>,
}

impl LadderResults {
    /// Returns the answer of a probe; `None`, with a note, if it failed; the error if the run was stopped.
    fn note<T>(&mut self, what: &str, asked: Result<T, Error>, ladder: &Ladder) -> Result<Option<T>, Error> {
        match asked {
            Ok(answer) => Ok(Some(answer)),
            Err(e) if ladder.stopped() => Err(e),
            Err(e) => {
                self.notes.push(format!("not measured: {what} ({e})"));
                Ok(None)
            }
        }
    }
}

/// What was found.
#[derive(Debug)]
pub struct Diagnosis {
    /// Results of the ladder.
    pub ladder: LadderResults,
    /// Causes, the first one limits most.
    pub findings: Vec<Finding>,
    /// The effect of the first one's remedy, where it was asked for.
    pub tried: Option<RemedyTrial>,
    /// All measurements, to be written to a file.
    pub record: Record,
    /// Whether the copies count as numbers. It is that of the copies alone: a fitted cost of a file
    /// near zero is all noise.
    pub validity: Validity,
    /// Why it ended early. The measurements until then are there, and no findings.
    pub failure: Option<Error>,
}

/// Measures the copies and finds what limits them. `note` is called with what is measured next.
/// It takes from half a minute to several minutes, and writes up to three copies of the data at a
/// time to the destination.
///
/// # Errors
/// The source is not a directory, the destination is not a name of one, or the first copy failed or
/// was stopped. A later failure is in [`Diagnosis::failure`].
pub fn run(options: &DiagnoseOptions, stop: &Stop, note: &dyn Fn(&str)) -> Result<Diagnosis, Error> {
    let mut ladder = Ladder::new(options, stop.clone())?;
    let mut results = LadderResults::default();
    let (findings, tried, failure) = match find(options, &mut ladder, &mut results, note) {
        Ok((findings, tried)) => (findings, tried, None),
        // Without a cell there is no result.
        Err(failure) if results.cells.is_empty() => return Err(failure),
        Err(failure) => (Vec::new(), None, Some(failure)),
    };
    let mut record = Record::new("diagnose", format!("copies to {}", options.destination.to_string_lossy()));
    record.cells.clone_from(&results.cells);
    record.conditions.0 = record::conditions(&results, &findings, tried.as_ref());
    record.conditions.0.extend(failure.iter().map(|failure| ("ended early".into(), failure.to_string())));
    record.judge();
    let validity = record.validity.clone();
    record.cells.append(&mut results.fitted);
    record.runs = std::mem::take(&mut results.runs);
    record.judge();
    Ok(Diagnosis { ladder: results, findings, tried, record, validity, failure })
}

/// Measures and finds causes; on request also measures the speed-up of the remedy.
fn find(
    options: &DiagnoseOptions,
    ladder: &mut Ladder,
    results: &mut LadderResults,
    note: &dyn Fn(&str),
) -> Result<(Vec<Finding>, Option<RemedyTrial>), Error> {
    let now = &options.copy;
    let findings = if !ladder.is_local() && !ladder.full_packets_pass()? {
        vec![cause::black_hole()]
    } else {
        if options.bytes.is_none() {
            enlarge(ladder, now, note)?;
        }
        climb(options, ladder, now, results, note)?;
        confirmed(options, ladder, now, results, note)?
    };
    let tried = match findings.first() {
        Some(first) if options.try_remedy => {
            let tried = attempt(options, ladder, first, now, results.path);
            results.note("what the remedy brings", tried, ladder)?
        }
        _ => None,
    };
    Ok((findings, tried))
}

/// Enlarges the copies until they take long enough to be valid: a fast path carries the
/// initial size within milliseconds.
fn enlarge(ladder: &mut Ladder, now: &CopySettings, note: &dyn Fn(&str)) -> Result<(), Error> {
    let (times, most) = LARGER;
    for _ in 0..times {
        let took = ladder.copy(Rung::Whole, FEW, now)?;
        let Some(times) = too_short(took.seconds, took.round_trip) else { break };
        let Some(bytes) = ladder.enlarge(times.min(most)) else { break };
        note(&format!("copies of {}", longhaul_block::units::format_size(bytes)));
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
    options: &DiagnoseOptions,
    ladder: &mut Ladder,
    now: &CopySettings,
    results: &mut LadderResults,
    note: &dyn Fn(&str),
) -> Result<Vec<Finding>, Error> {
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
        note(&format!("with {words}, and without"));
        match versus(options, ladder, now, &change) {
            Ok(gain) if gain >= GAIN_MIN => known.push((change, gain)),
            Err(e) if ladder.stopped() => return Err(e),
            failed => {
                seen.without(&change);
                let why = failed.map_or_else(|e| e.to_string(), |gain| format!("{gain:.2} times as fast"));
                results.notes.push(format!("{words} did not help when it was tried again: {why}"));
            }
        }
    }
}

/// Speed-up of the copy by a change: the ratio of the medians of interleaved runs, so that
/// other load on the machine affects both.
fn versus(
    options: &DiagnoseOptions,
    ladder: &mut Ladder,
    now: &CopySettings,
    change: &Change,
) -> Result<f64, Error> {
    let mut then = now.clone();
    match change {
        Change::Threads(n) => then = now.threads(small(*n)),
        Change::Readers(n) => then.readers = small(*n),
        Change::Writers(n) => then.writers = small(*n),
        Change::Streams(n) => then.streams = small(*n),
        Change::Congestion(name) => then.congestion = Some(name.clone()),
        Change::QuickChecksum => then.checksum = QUICK_CHECKSUM,
    }
    let [before, after] = in_turn(ROUNDS, &[now.clone(), then], |how| {
        Ok(ladder.copy(Rung::Whole, options.files, how)?.seconds)
    })?;
    Ok(median(before) / median(after))
}

/// Measures the remedy if it is an option of the copy; otherwise returns the command to run.
fn attempt(
    options: &DiagnoseOptions,
    ladder: &mut Ladder,
    finding: &Finding,
    now: &CopySettings,
    path: (Option<f64>, f64),
) -> Result<RemedyTrial, Error> {
    let (achieved, command) = match &finding.remedy {
        Remedy::Copy(change) => (Some(versus(options, ladder, now, change)?), None),
        Remedy::Tune(end) => (None, Some(format!("at the {end}: {}", record::tune_command(path)))),
        Remedy::AgentWriters(writers) => {
            let agent = &options.destination.to_string_lossy();
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
    fn short_copies_are_made_longer() {
        assert_eq!(too_short(2.5, None), None);
        assert_eq!(too_short(2.5, Some(0.1)), None);
        // 20 round trips of 300 ms.
        assert!(too_short(2.5, Some(0.3)).is_some_and(|times| (times - 2.88).abs() < 1e-9));
        assert!(too_short(0.05, None).is_some_and(|times| (times - 48.0).abs() < 1e-9));
    }
}
