//! `longhaul diagnose`: what keeps a copy from being faster.
//!
//! It climbs a ladder of copies, each with another stage left out: files to
//! nothing (read), nothing to nothing over the path (network), nothing to files
//! (write), and files to files (the whole), each with few and with many files.
//! [`longhaul_report::model`] makes costs of them, and [`longhaul_report::cause`]
//! names the cause.

mod ladder;

use crate::exit::{Failure, Outcome};
use crate::names::parse_bytes;
use crate::output::{Output, save};
use ladder::{Ladder, Rung, Tune};
use longhaul_bench::record::{Better, Cell, Place, Record, Validity};
use longhaul_bench::schema;
use longhaul_report::cause::{Cause, Finding, HostSeen, Seen, Sockets, Sweep, Tried, diagnose};
use longhaul_report::figure::Scale;
use longhaul_report::model::{Copy, Fit, Noise, Split, Stage, fit, split};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Copies data that it makes, in SRC/longhaul-diagnose-PID and DST/longhaul-diagnose-PID, and removes it at
the end (at a destination on another machine, an empty directory is left). SRC is a directory of this
machine; DST is as cp has it. Nothing else is read, changed or set.

Example:
  longhaul diagnose /data lh://dtn2:7400/incoming --try")]
pub(crate) struct Args {
    /// Where files are to be read
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Where they are to be written
    #[arg(value_name = "DST")]
    destination: OsString,
    /// Bytes of each copy
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_bytes)]
    bytes: u64,
    /// Most files of a copy
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    files: u32,
    /// Copies of each kind
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Threads that read and that write, in the copy that is asked about
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Its connections
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: u16,
    /// Encrypt, with the key of the agent
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Apply the remedy, if it is one of the copy's own, and say what it brought
    #[arg(long = "try")]
    try_it: bool,
    /// Write the result to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The fewest files of a copy: enough for every thread and connection.
const FEW: u32 = 8;
/// Numbers of threads and of connections that are tried.
const TRIED: [u16; 3] = [1, 4, 16];

/// What the ladder brought.
struct Climbed {
    seen: Seen,
    fits: Vec<(Rung, Fit)>,
    split: Option<Split>,
    cells: Vec<Cell>,
}

pub(crate) fn run(args: &Args, output: Output) -> Outcome {
    let stop = longhaul_bench::Stop::new();
    super::bench::stop_on_interrupt(&stop)?;
    let mut ladder = Ladder::new(args, stop)?;
    let climbed = climb(args, &mut ladder, output)?;
    let findings = diagnose(&climbed.seen);
    let tried = match (args.try_it, findings.first()) {
        (true, Some(first)) => Some(attempt(args, &mut ladder, first, &climbed.seen)?),
        _ => None,
    };
    if let Some(path) = &args.output {
        let mut record = Record::new("diagnose", format!("copies to {}", args.destination.to_string_lossy()));
        record.cells.clone_from(&climbed.cells);
        record.judge();
        let document = schema::Output { longhaul: Some(record), ..schema::Output::default() };
        save(path, &document)?;
    }
    tell(&climbed, &findings, tried.as_ref(), output);
    Ok(())
}

/// Few files, some, and many: as far apart from each other.
fn counts(args: &Args) -> [u32; 3] {
    [FEW, (FEW * args.files).isqrt(), args.files]
}

fn climb(args: &Args, ladder: &mut Ladder, output: Output) -> Result<Climbed, Failure> {
    let now = Tune { threads: args.threads, streams: args.streams };
    let (mut fits, mut cells, mut retransmitted, mut others) = (Vec::new(), Vec::new(), 0.0_f64, 0.0_f64);
    for rung in Rung::ALL {
        if rung == Rung::Network && ladder.is_local() {
            continue;
        }
        output.note(format_args!("{}", rung.says()));
        let mut copies = Vec::new();
        for files in counts(args) {
            let mut cell = cell(rung, files);
            for _ in 0..args.runs {
                let took = ladder.copy(rung, files, now)?;
                cell.push(took.seconds, &Validity::default());
                copies.push(Copy {
                    files: files.into(),
                    bytes: ladder.bytes(files) as f64,
                    seconds: took.seconds,
                });
                if rung == Rung::Network {
                    retransmitted = retransmitted.max(took.retransmitted);
                }
                others = others.max(took.others);
            }
            cells.push(cell);
        }
        fits.push((rung, fit(&copies, Noise::Proportional).map_err(Failure::failed)?));
    }
    output.note("more and fewer at the same time");
    let files = args.files;
    let threads = sweep(args.threads, |threads| {
        ladder.copy(Rung::Whole, files, Tune { threads, ..now }).map(|took| took.seconds)
    })?;
    let streams = match ladder.is_local() {
        true => Sweep::default(),
        false => sweep(args.streams, |streams| {
            ladder.copy(Rung::Network, counts(args)[0], Tune { streams, ..now }).map(|took| took.seconds)
        })?,
    };
    let of = |rung: Rung| fits.iter().find(|(one, _)| *one == rung).map(|(_, fit)| *fit);
    let whole = of(Rung::Whole).ok_or_else(|| Failure::failed("nothing was copied"))?;
    let stages = [of(Rung::Read), of(Rung::Network), of(Rung::Write)];
    let split = match stages {
        [Some(read), Some(network), Some(write)] => Some(split(read.t0, network.t0, write.t0, whole.t0)),
        _ => None,
    };
    let bytes = ladder.bytes(files) as f64;
    let seen = Seen {
        files: files.into(),
        bytes,
        whole,
        stages: [stages[0], stages[1], alone(stages[2], stages[1], files.into(), bytes)],
        files_at_once: threads,
        streams,
        checksum: None,
        encryption: None,
        sockets: stages[1].map(|_| Sockets { retransmitted, ..Sockets::default() }),
        hosts: [
            HostSeen { others, saves_power: ladder::saves_power(), ..HostSeen::default() },
            HostSeen::default(),
        ],
    };
    Ok(Climbed { seen, fits, split, cells })
}

/// Writing at another machine is seen through the network. What it takes no
/// longer than that, it does not limit.
fn alone(write: Option<Fit>, network: Option<Fit>, files: f64, bytes: f64) -> Option<Fit> {
    let (write, Some(network)) = (write?, network) else { return write };
    (write.predict(files, bytes) > 1.1 * network.predict(files, bytes)).then_some(write)
}

/// Runs with what it is now, and with others.
fn sweep(now: u16, mut run: impl FnMut(u16) -> Result<f64, Failure>) -> Result<Sweep, Failure> {
    let mut values = TRIED.to_vec();
    if !values.contains(&now) {
        values.push(now);
    }
    let mut tried = Vec::new();
    for value in values {
        // The better one of two: what else the machine does only ever costs.
        let seconds = run(value)?.min(run(value)?);
        tried.push(Tried { value: value.into(), seconds });
    }
    Ok(Sweep { now: now.into(), tried })
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

/// What the remedy was to bring and what it brought, as factors.
struct Attempt {
    predicted: Option<f64>,
    achieved: Option<f64>,
}

/// Copies again as the remedy says, and as before.
fn attempt(args: &Args, ladder: &mut Ladder, finding: &Finding, seen: &Seen) -> Result<Attempt, Failure> {
    let now = Tune { threads: args.threads, streams: args.streams };
    let small = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    let (rung, files, then) = match finding.cause {
        Cause::TooFewFiles(n) | Cause::TooManyFiles(n) => {
            (Rung::Whole, args.files, Tune { threads: small(n), ..now })
        }
        Cause::TooFewStreams(n) | Cause::TooManyStreams(n) => {
            (Rung::Network, counts(args)[0], Tune { streams: small(n), ..now })
        }
        // What is slow for each file is hidden by many of them.
        Cause::SlowOpen | Cause::SlowCreate => {
            match seen.files_at_once.tried.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds)) {
                Some(best) => (Rung::Whole, args.files, Tune { threads: small(best.value), ..now }),
                None => return Ok(Attempt { predicted: finding.gain, achieved: None }),
            }
        }
        _ => return Ok(Attempt { predicted: finding.gain, achieved: None }),
    };
    let before = ladder.copy(rung, files, now)?.seconds;
    let after = ladder.copy(rung, files, then)?.seconds;
    Ok(Attempt { predicted: finding.gain, achieved: Some(before / after) })
}

fn tell(climbed: &Climbed, findings: &[Finding], tried: Option<&Attempt>, output: Output) {
    let fit = |(rung, fit): &(Rung, Fit)| {
        json!({
            "copy": rung.name(), "seconds_per_file": fit.t0.value, "low": fit.t0.low, "high": fit.t0.high,
            "bytes_per_second": fit.rate.value, "rate_low": fit.rate.low, "rate_high": fit.rate.high,
        })
    };
    let finding = |f: &Finding| json!({ "cause": f.cause.to_string(), "remedy": f.cause.remedy(), "gain": f.gain, "evidence": f.evidence });
    let shares = climbed.split.map(|split| {
        let stages: serde_json::Map<String, Value> =
            Stage::ALL.iter().zip(split.shares).map(|(s, share)| (s.name().into(), share.into())).collect();
        json!({ "shares": stages, "overlap": split.overlap, "bounds": format!("{:?}", split.bounds) })
    });
    output.event(
        "summary",
        json!({
            "fits": climbed.fits.iter().map(fit).collect::<Vec<_>>(), "split": shares,
            "findings": findings.iter().map(finding).collect::<Vec<_>>(),
            "tried": tried.map(|t| json!({ "predicted": t.predicted, "achieved": t.achieved })),
        }),
    );
    if output.is_json() {
        return;
    }
    for (rung, fit) in &climbed.fits {
        let each = Scale::of("s", fit.t0.value.abs());
        let rate = if fit.rate.value.is_finite() {
            Scale::of("B/s", fit.rate.value).with_unit(fit.rate.value)
        } else {
            "no bound".into()
        };
        output.line(format_args!(
            "{:<8} {} a file (95 % between {} and {}), {rate}",
            rung.name(),
            each.with_unit(fit.t0.value),
            each.number(fit.t0.low),
            each.number(fit.t0.high),
        ));
    }
    if let Some(first) = findings.first() {
        output.line(first);
    }
    if let Some(Attempt { predicted, achieved }) = tried {
        let times =
            |gain: &Option<f64>| gain.map_or("not known".into(), |gain| format!("{gain:.2} times as fast"));
        match achieved {
            Some(_) => output.line(format_args!(
                "tried: expected {}, achieved {}",
                times(predicted),
                times(achieved)
            )),
            None => output.line("not tried: that remedy is not one of the copy's own settings"),
        }
    }
}
