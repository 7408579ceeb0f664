//! `longhaul diagnose`: what keeps a copy from being faster.
//!
//! It climbs a ladder of copies, each with another stage left out: files to
//! nothing (read), nothing to nothing over the path (network), nothing to files
//! (write), and files to files (the whole), each with few and with many files.
//! Then the whole with more and with fewer at the same time, and what the slowest
//! stage gives reason to ask ([`probe`]). [`longhaul_report::model`] makes costs of
//! them, and [`longhaul_report::cause`] names the cause.

mod hosts;
mod ladder;
mod probe;
mod tell;

use crate::exit::{Failure, Outcome};
use crate::names::parse_bytes;
use crate::output::{Output, save};
use ladder::{How, Ladder, Rung, Took};
use longhaul_bench::record::{Better, Cell, Place, Record, Validity};
use longhaul_bench::schema;
use longhaul_report::cause::{self, Change, Finding, HostSeen, Remedy, Seen, Sweep, Tried};
use longhaul_report::model::{Copy, Fit, Noise, Split, fit, split};
use longhaul_report::stats::Interval;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Copies data that it makes, in SRC/longhaul-diagnose-PID and DST/longhaul-diagnose-PID, and removes it at
the end (at a destination on another machine, an empty directory is left). SRC is a directory of this
machine; DST is as cp has it. Nothing else is read, changed or set: what is to be changed of a machine
is printed as a command.

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
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    files: u32,
    /// Copies of each kind
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Threads that read and that write, in the copy that is asked about
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = super::cp::threads())]
    threads: u16,
    /// Its connections
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: u16,
    /// Its checksum
    #[arg(long, value_enum, default_value_t = super::cp::Checksum::Xxh3)]
    checksum: super::cp::Checksum,
    /// Its congestion control, by the kernel's name [default: as the machine has it]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
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
/// Runs of which the best counts, where one is compared with another: what else a
/// machine does only ever costs.
const BEST_OF: usize = 2;

/// How much longer than the network alone writing behind it has to take before it
/// is the writing that limits: where packets are lost, runs differ by as much.
const BEHIND: f64 = 1.5;

/// What the ladder brought.
#[derive(Default)]
struct Climbed {
    seen: Option<Seen>,
    fits: Vec<(Rung, Fit)>,
    split: Option<Split>,
    cells: Vec<Cell>,
    /// Least round trip in seconds, and the most bits a second that got through.
    path: (Option<f64>, f64),
}

/// What the remedy was to bring and what it brought, as factors.
struct Attempt {
    predicted: Option<f64>,
    achieved: Option<f64>,
    /// What to enter where, if it is not the copy's to do.
    command: Option<String>,
}

pub(crate) fn run(args: &Args, output: Output) -> Outcome {
    let stop = longhaul_bench::Stop::new();
    super::bench::stop_on_interrupt(&stop)?;
    let mut ladder = Ladder::new(args, stop)?;
    if let Some(why) = hosts::Segments::unread() {
        output.note(format_args!("longhaul: {why}: losses on the path will not be seen"));
    }
    let now = How {
        readers: args.threads,
        writers: args.threads,
        streams: args.streams,
        checksum: args.checksum.name(),
        congestion: args.congestion.clone(),
        rate: None,
    };
    let mut climbed = Climbed::default();
    let findings = if !ladder.is_local() && !ladder.full_packets_pass()? {
        vec![cause::black_hole()]
    } else {
        cause::diagnose(&climb(args, &mut ladder, &now, &mut climbed, output)?)
    };
    let tried = match findings.first() {
        Some(first) if args.try_it => Some(attempt(args, &mut ladder, first, &now, &climbed)?),
        _ => None,
    };
    if let Some(path) = &args.output {
        let mut record = Record::new("diagnose", format!("copies to {}", args.destination.to_string_lossy()));
        record.cells.clone_from(&climbed.cells);
        record.conditions.0 = tell::conditions(&findings, tried.as_ref());
        record.judge();
        save(path, &schema::Output { longhaul: Some(record), ..schema::Output::now() })?;
    }
    tell::tell(&climbed, &findings, tried.as_ref(), output);
    Ok(())
}

/// Few files, some, and many: as far apart from each other.
fn counts(args: &Args) -> [u32; 3] {
    [FEW, (FEW * args.files).isqrt(), args.files]
}

/// Copies of one kind and number of files.
struct Runs {
    rung: Rung,
    files: u32,
    took: Vec<Took>,
}

impl Runs {
    /// The best one: what else a machine does only ever costs.
    fn best(&self) -> Option<&Took> {
        self.took.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}

/// The best of the copies of a kind.
fn best(all: &[Runs], rung: Rung, files: u32) -> Option<&Took> {
    all.iter().find(|runs| runs.rung == rung && runs.files == files)?.best()
}

fn climb(
    args: &Args,
    ladder: &mut Ladder,
    now: &How,
    climbed: &mut Climbed,
    output: Output,
) -> Result<Seen, Failure> {
    let files = args.files;
    let mut all: Vec<Runs> = Vec::new();
    for rung in Rung::FITTED {
        if rung == Rung::Network && ladder.is_local() {
            continue;
        }
        output.note(format_args!("{}", rung.says()));
        // Of the copy that is asked about, and not of the others, which it would slow down.
        ladder.asks = rung == Rung::Whole;
        let mut copies = Vec::new();
        for files in counts(args) {
            let took =
                (0..args.runs).map(|_| ladder.copy(rung, files, now)).collect::<Result<Vec<_>, _>>()?;
            let mut cell = cell(rung, files);
            took.iter().for_each(|took| cell.push(took.seconds, &Validity::default()));
            climbed.cells.push(cell);
            copies.extend(took.iter().map(|took| Copy {
                files: files.into(),
                bytes: took.bytes as f64,
                seconds: took.seconds,
            }));
            all.push(Runs { rung, files, took });
        }
        climbed.fits.push((rung, fit(&copies, Noise::Proportional).map_err(Failure::failed)?));
    }
    ladder.asks = false;
    output.note("more and fewer at the same time");
    let (threads, alone) = threads(ladder, files, now)?;
    let streams = match ladder.is_local() {
        true => Sweep::default(),
        false => sweep(args.streams, |streams| {
            Ok(ladder.copy(Rung::Whole, files, &How { streams, ..now.clone() })?.seconds)
        })?,
    };
    let of = |rung: Rung| climbed.fits.iter().find(|(one, _)| *one == rung).map(|(_, fit)| *fit);
    let whole = of(Rung::Whole).ok_or_else(|| Failure::failed("nothing was copied"))?;
    let stages = [of(Rung::Read), of(Rung::Network), of(Rung::Write)];
    let t0 = |stage: Option<Fit>| stage.map_or(Interval { value: 0.0, low: 0.0, high: 0.0 }, |fit| fit.t0);
    climbed.split = Some(split(t0(stages[0]), t0(stages[1]), t0(stages[2]), whole.t0));
    let network = best(&all, Rung::Network, counts(args)[0]);
    let round_trip = network.and_then(|took| took.round_trip);
    let bits = |took: &Took| took.bytes as f64 * 8.0 / took.seconds;
    climbed.path = (round_trip, all.iter().filter_map(Runs::best).map(bits).fold(0.0, f64::max));
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
    };
    output.note("what the slowest stage gives reason to ask");
    probe::ask(args, ladder, now, (network, copy), &mut seen, &mut climbed.cells)?;
    climbed.seen = Some(seen.clone());
    Ok(seen)
}

/// Writing at another machine is seen through the network. What it takes no
/// longer than that, it does not limit.
fn limiting(write: Option<Fit>, network: Option<Fit>, files: f64, bytes: f64) -> Option<Fit> {
    let (write, Some(network)) = (write?, network) else { return write };
    (write.predict(files, bytes) > BEHIND * network.predict(files, bytes)).then_some(write)
}

/// Other numbers of threads; where they help, the best of those that read and of
/// those that write without the other.
fn threads(ladder: &mut Ladder, files: u32, now: &How) -> Result<(Sweep, [Option<f64>; 2]), Failure> {
    let mut whole = |how: &How| Ok::<_, Failure>(ladder.copy(Rung::Whole, files, how)?.seconds);
    let threads = sweep(now.readers, |threads| whole(&now.threads(threads)))?;
    let Some((best, _)) = threads.gain() else { return Ok((threads, [None; 2])) };
    let n = small(best.value);
    let mut alone = |how: How| Ok::<_, Failure>(whole(&how)?.min(whole(&how)?));
    let readers = alone(How { readers: n, ..now.clone() })?;
    let writers = alone(How { writers: n, ..now.clone() })?;
    Ok((threads, [Some(readers), Some(writers)]))
}

/// Runs with what it is now, and with others.
fn sweep(now: u16, mut run: impl FnMut(u16) -> Result<f64, Failure>) -> Result<Sweep, Failure> {
    let mut values = TRIED.to_vec();
    if !values.contains(&now) {
        values.push(now);
    }
    let mut tried = Vec::new();
    for value in values {
        let mut seconds = f64::INFINITY;
        for _ in 0..BEST_OF {
            seconds = seconds.min(run(value)?);
        }
        tried.push(Tried { value: value.into(), seconds });
    }
    Ok(Sweep { now: now.into(), tried })
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

/// Copies as before, and again as the remedy says; or says what to enter.
fn attempt(
    args: &Args,
    ladder: &mut Ladder,
    finding: &Finding,
    now: &How,
    climbed: &Climbed,
) -> Result<Attempt, Failure> {
    let predicted = finding.gain;
    let change = match &finding.remedy {
        Remedy::Copy(change) => change,
        Remedy::Tune(end) => {
            let command = Some(format!("at the {end}: {}", tell::tune_command(climbed.path)));
            return Ok(Attempt { predicted, achieved: None, command });
        }
        Remedy::People => return Ok(Attempt { predicted, achieved: None, command: None }),
    };
    let mut then = now.clone();
    match change {
        Change::Threads(n) => then = now.threads(small(*n)),
        Change::Readers(n) => then.readers = small(*n),
        Change::Writers(n) => then.writers = small(*n),
        Change::Streams(n) => then.streams = small(*n),
        Change::Congestion(name) => then.congestion = Some(name.clone()),
        Change::QuickChecksum => then.checksum = super::cp::Checksum::Xxh3.name(),
    }
    // One beside the other, so that both see the same machine.
    let (mut before, mut after) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..BEST_OF {
        before = before.min(ladder.copy(Rung::Whole, args.files, now)?.seconds);
        after = after.min(ladder.copy(Rung::Whole, args.files, &then)?.seconds);
    }
    Ok(Attempt { predicted, achieved: Some(before / after), command: None })
}
