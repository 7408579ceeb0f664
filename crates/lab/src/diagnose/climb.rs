//! The rungs of the ladder, and what follows from their times.

use super::ladder::Ladder;
use super::rung::{CopyResult, CopySettings, Rung};
use super::turns::{BEST_OF, in_turn, quickest, small, sweep};
use super::{DiagnoseOptions, LadderResults, probe};
use crate::Error;
use crate::cause::{CopyMeasurements, HostSeen, Sweep};
use crate::line;
use crate::model::{Copy, Fit, Noise, fit, split};
use longhaul_results::record::{Better, Cell, Place, Run, Validity};
use longhaul_results::stats::Interval;

/// Fewest files of a copy: enough for every thread and connection.
pub(super) const FEW: u32 = 8;
/// The write stage limits only if it takes this many times as long as the network stage:
/// with packet loss, runs differ by as much.
const BEHIND: f64 = 1.5;

/// Numbers of files of the copies: fewest, most, and their geometric mean.
fn counts(options: &DiagnoseOptions) -> [u32; 3] {
    [FEW, (FEW * options.files).isqrt(), options.files]
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

/// Runs all rungs, other numbers of threads and connections, and the probes.
pub(super) fn climb(
    options: &DiagnoseOptions,
    ladder: &mut Ladder,
    now: &CopySettings,
    results: &mut LadderResults,
    note: &dyn Fn(&str),
) -> Result<(), Error> {
    let files = options.files;
    let mut all: Vec<CopyRuns> = Vec::new();
    for rung in Rung::FITTED {
        if rung == Rung::Network && ladder.is_local() {
            continue;
        }
        note(rung.says());
        // Reading the counters of the agent's machine takes time: only the whole copy needs them.
        ladder.asks = rung == Rung::Whole;
        let mut copies = Vec::new();
        for files in counts(options) {
            let (at, mut took) = (results.cells.len(), Vec::new());
            for _ in 0..options.runs {
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
        results.fits.push((rung, fit(&copies, Noise::Proportional).map_err(Error::failed)?));
        results.fitted.extend(fitted(rung, &all));
    }
    ladder.asks = false;
    note("more and fewer at the same time");
    let asked = threads(ladder, files, now);
    let (threads, alone) = results.note("other numbers of threads", asked, ladder)?.unwrap_or_default();
    let mut streams = Sweep::default();
    if !ladder.is_local() {
        let asked = sweep(now.streams, |streams| {
            Ok(ladder.copy(Rung::Whole, files, &CopySettings { streams, ..now.clone() })?.seconds)
        });
        streams = results.note("other numbers of connections", asked, ladder)?.unwrap_or_default();
    }
    let of = |rung: Rung| results.fits.iter().find(|(one, _)| *one == rung).map(|(_, fit)| *fit);
    let whole = of(Rung::Whole).ok_or_else(|| Error::failed("nothing was copied"))?;
    let stages = [of(Rung::Read), of(Rung::Network), of(Rung::Write)];
    let t0 = |stage: Option<Fit>| stage.map_or(Interval { value: 0.0, low: 0.0, high: 0.0 }, |fit| fit.t0);
    // The write stage on another machine includes the network, whose cost is subtracted.
    let write = if ladder.is_local() { t0(stages[2]) } else { without(t0(stages[2]), t0(stages[1])) };
    results.split = Some(split(t0(stages[0]), t0(stages[1]), write, whole.t0));
    let network = best(&all, Rung::Network, counts(options)[0]);
    let round_trip = network.and_then(|took| took.round_trip);
    let bits = |took: &CopyResult| took.bytes as f64 * 8.0 / took.seconds;
    results.path = (round_trip, all.iter().filter_map(CopyRuns::best).map(bits).fold(0.0, f64::max));
    let bytes = ladder.bytes(files) as f64;
    let copy = best(&all, Rung::Whole, files);
    let hosts = copy.map_or([HostSeen::default(); 2], |took| took.hosts.map(|host| host.seen()));
    let mut seen = CopyMeasurements {
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
    note("what the slowest stage suggests");
    probe::ask(options, ladder, now, (network, copy), &mut seen, results)?;
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
fn threads(ladder: &mut Ladder, files: u32, now: &CopySettings) -> Result<(Sweep, [Option<f64>; 2]), Error> {
    let local = ladder.is_local();
    let mut whole = |how: &CopySettings| Ok::<_, Error>(ladder.copy(Rung::Whole, files, how)?.seconds);
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
