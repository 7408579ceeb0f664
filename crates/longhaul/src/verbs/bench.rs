//! `longhaul bench`.

mod compare;
pub(super) mod spread;

use crate::arguments::{InitiatorArgs, parse_bytes, parse_time};
use crate::complete;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, save, say};
use crate::screen::Line;
use crate::words::{joins, patterns};
use clap::ValueEnum;
use clap::builder::BoolishValueParser;
use longhaul_array::{Layout, Stripe, suited_unit};
use longhaul_block::units::{format_rate, format_size};
use longhaul_block::{BlockDevice, DeviceInfo};
use longhaul_device::Device;
use longhaul_lab::device_load::{self, DeviceLoad, RunProgress};
use longhaul_load::{BenchError, Job, JobResult, Live, OWN_THREADS_MAX, Phase, Results, Rw, Stop, Threads};
use longhaul_results::record::End;
use longhaul_results::schema::{self, Direction};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// I/O in flight this long after the end of the measurement is reported.
const OVERTIME: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A device is nvme+tcp://HOST/SUBNQN[?nsid=N], a path, or file:PATH, block:PATH,
mem:SIZE, null:SIZE. Writing destroys data on the device: one with a known
signature (a file system, a partition table, a volume, a member of an array) is
refused without --force. With --json, stdout has fio's JSON layout. At the end
of --runtime no new I/O is submitted, and I/O in flight is waited for: on a lost
connection for up to --ctrl-loss-timeout. Ctrl-C ends a load with exit code 3;
I/O that does not complete within 2 s (or before a second Ctrl-C) is given up,
with exit code 1.

Example:
  longhaul bench nvme+tcp://dtn1/scratch --rw randread --bs 4k --iodepth 32 \\
      --runtime 10s
  longhaul bench nvme+tcp://dtn1/a nvme+tcp://dtn2/a --layout stripe --bs 1m \\
      --runtime 10s
  longhaul bench nvme+tcp://dtn1/scratch --bs 1m --runtime 10s --runs 5 \\
      --output before.json
  longhaul bench --compare before.json after.json")]
pub(crate) struct BenchArgs {
    /// Devices; several are loaded at the same time
    #[arg(value_name = "DEVICE", required_unless_present = "compare", add = complete::device())]
    devices: Vec<String>,
    /// Compare two results instead of running a load: print the ratio of each value
    /// in the second to that in the first, with its confidence interval
    #[arg(long, value_names = ["A.json", "B.json"], num_args = 2, conflicts_with = "devices")]
    compare: Option<Vec<PathBuf>>,
    /// Number of runs; --compare needs several, for the spread between runs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,
    /// Write the result (as --json prints it) to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Join the devices before the load: stripe, which writes no superblock to them
    #[arg(long, value_name = "LAYOUT", value_parser = joins(), hide_possible_values = true)]
    layout: Option<Layout>,
    /// Bytes of a stripe on one device [default: suited to the devices, at least
    /// 256KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "layout")]
    stripe_unit: Option<u64>,
    /// read, write, randread, randwrite, rw, randrw, trim or randtrim
    #[arg(long, default_value = "read", value_parser = patterns(), hide_possible_values = true)]
    rw: Rw,
    /// Share of reads in a mixed load, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    rwmixread: u8,
    /// Size of one I/O
    #[arg(long, alias = "blocksize", value_name = "SIZE", default_value = "4k", value_parser = parse_bytes)]
    bs: u64,
    /// I/Os in flight of each job, or auto: as many as fill the path to the device
    /// [default: auto in sequential order, 1 in random order]
    #[arg(long, value_name = "N|auto", value_parser = parse_depth)]
    iodepth: Option<Depth>,
    /// async: iodepth I/Os at a time; sync: blocking calls through the file API,
    /// with read-ahead and write-behind
    #[arg(long, value_name = "KIND", value_enum, default_value = "async")]
    ioengine: IoEngine,
    /// Jobs for each device
    #[arg(long, value_name = "N", default_value_t = 1)]
    numjobs: u32,
    /// Threads that the jobs share, each with its own queues, limited by the queues
    /// that the target grants [default: one for each job; one for each CPU for more
    /// than 64 jobs in all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Where on the device the load begins
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_bytes)]
    offset: u64,
    /// Distance between the beginnings of successive jobs, so that each has its own
    /// region (0: all jobs share one)
    #[arg(long, alias = "offset_increment", value_name = "SIZE", default_value = "0", value_parser = parse_bytes)]
    offset_increment: u64,
    /// Size of the region of a job [default: the increment, or the device from the
    /// offset on]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: Option<u64>,
    /// How long to measure [default: one pass over the region]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    runtime: Option<Duration>,
    /// Repeat the region until --runtime is over [default: true]
    #[arg(long, alias = "time_based", requires = "runtime", value_name = "BOOL", num_args = 0..=1,
        require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    time_based: Option<bool>,
    /// How long to run before the measurement
    #[arg(long, aliases = ["ramp_time", "ramp-time"], value_name = "TIME", default_value = "0s",
        value_parser = parse_seconds)]
    ramp: Duration,
    /// Verify content: each block has its address, generation and checksum
    #[arg(long, value_name = "METHOD", value_parser = ["crc32c"])]
    verify: Option<String>,
    /// Seed of order, mix and content
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Flush after every N writes
    #[arg(long, value_name = "N", default_value_t = 0)]
    fdatasync: u32,
    /// Flush at the end
    #[arg(long, alias = "end_fsync", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = BoolishValueParser::new())]
    end_fsync: Option<bool>,
    /// Overwrite a device with a known signature, such as a file system
    #[arg(long)]
    force: bool,
    /// Report all jobs as one
    #[arg(long, alias = "group_reporting", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = BoolishValueParser::new())]
    group_reporting: Option<bool>,
    /// normal, or json: the same as --json
    #[arg(long, value_name = "FORMAT", value_enum)]
    output_format: Option<Format>,
    /// Name of the load in results
    #[arg(long, default_value = "longhaul")]
    name: String,
    #[command(flatten)]
    initiator: InitiatorArgs,
}

/// Values of `--ioengine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IoEngine {
    #[value(aliases = ["libaio", "io_uring"])]
    Async,
    #[value(alias = "psync")]
    Sync,
}

/// Values of `--output-format`, as in fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Normal,
    Json,
}

/// Values of `--iodepth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Fixed(u32),
    Auto,
}

fn parse_depth(text: &str) -> Result<Depth, String> {
    match text {
        "auto" => Ok(Depth::Auto),
        _ => text.parse().map(Depth::Fixed).map_err(|_| format!("'{text}' is neither a number nor auto")),
    }
}

/// Parses a time; a number without a unit is seconds, as in fio.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    if text.bytes().all(|b| b.is_ascii_digit()) { parse_time(&format!("{text}s")) } else { parse_time(text) }
}

impl BenchArgs {
    /// Whether fio's flag asks for a result in JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.output_format == Some(Format::Json)
    }

    /// The devices to load: those given, or their stripe with `--layout`.
    fn join(&self, devices: Vec<Arc<dyn BlockDevice>>) -> Result<Vec<Arc<dyn BlockDevice>>, Failure> {
        match self.layout {
            None => Ok(devices),
            Some(Layout::Stripe) => {
                let infos: Vec<DeviceInfo> = devices.iter().map(|device| device.info()).collect();
                let unit = self.stripe_unit.unwrap_or_else(|| suited_unit(&infos));
                Ok(vec![Arc::new(Stripe::new(devices, unit).map_err(Failure::usage)?)])
            }
            Some(layout) => Err(Failure::usage(format!(
                "--layout {layout} needs superblocks on the devices: use stripe, or longhaul array create"
            ))),
        }
    }

    fn job(&self) -> Job {
        // By default, sequential loads measure throughput, and random ones the latency of
        // single I/Os.
        let usual = if self.rw.is_random() { Depth::Fixed(1) } else { Depth::Auto };
        let (iodepth, iodepth_auto) = match self.iodepth.unwrap_or(usual) {
            Depth::Fixed(depth) => (depth, false),
            Depth::Auto => (1, true),
        };
        Job {
            name: self.name.clone(),
            rw: self.rw,
            rwmixread: self.rwmixread,
            bs: self.bs,
            iodepth,
            iodepth_auto,
            sync: self.ioengine == IoEngine::Sync,
            numjobs: self.numjobs,
            offset: self.offset,
            offset_increment: self.offset_increment,
            size: self.size,
            runtime: self.runtime,
            time_based: self.runtime.is_some() && self.time_based.unwrap_or(true),
            ramp: self.ramp,
            verify: self.verify.is_some(),
            seed: self.seed,
            fdatasync: self.fdatasync,
            end_fsync: self.end_fsync.unwrap_or(false),
        }
    }
}

impl From<BenchError> for Failure {
    fn from(e: BenchError) -> Failure {
        match e {
            BenchError::Option(_) => Failure::usage(e),
            BenchError::Open { ref source, .. } if source.is_out_of_reach() => {
                Failure::new(Exit::Unreachable, e)
            }
            e => Failure::failed(e),
        }
    }
}

pub(crate) fn run(args: BenchArgs, output: Output) -> Outcome {
    if let Some([a, b]) = args.compare.as_deref() {
        return compare::run(a, b, output);
    }
    super::diagnose::tell_unread_counters(output);
    let loaded = if args.layout.is_some() { 1 } else { args.devices.len() };
    let jobs = args.numjobs as usize * loaded;
    // Every thread opens every device that one of its jobs is on.
    let threads = match args.threads {
        Some(threads) => usize::from(threads).min(jobs),
        None if jobs <= OWN_THREADS_MAX => args.numjobs as usize,
        None => 1,
    };
    let queues = u16::try_from(threads).unwrap_or(u16::MAX);
    let named =
        args.devices.iter().map(|name| args.initiator.open(name, queues)).collect::<Result<Vec<_>, _>>()?;
    if args.rw.writes() && !args.force {
        let found = device_load::known_content(&args.devices, &named, args.initiator.engine.config())?;
        if let Some((name, content)) = found {
            let why = format!("{name} has {content} on it, which the load would destroy: --force does it");
            return Err(Failure::new(Exit::Refused, why));
        }
    }
    let devices = args.join(named.iter().map(Device::block).collect())?;
    let stop = Stop::new();
    stop_on_interrupt(&stop, output)?;
    let config = args.initiator.engine.config();
    let threads = match (device_load::granted(&named, threads), args.threads) {
        (Some((least, by)), _) => {
            output.note(format_args!(
                "longhaul: {by} grants {least} I/O queues, and each thread needs one: {jobs} jobs share \
                 {least} threads, not {threads}"
            ));
            Threads::Shared(config, least)
        }
        (None, Some(threads)) => Threads::Shared(config, threads.into()),
        (None, None) => Threads::Own(config),
    };
    let load =
        DeviceLoad { named: &named, devices: &devices, threads: &threads, job: &args.job(), runs: args.runs };
    let (runs, broken) = load.run(&stop, &mut |number| run_progress(&args, number))?;
    let broken = broken.map(Failure::from);
    let mut document = runs.document(args.group_reporting.unwrap_or(false));
    document.paths = device_load::paths(&named);
    if let Some(record) = &mut document.longhaul {
        record.conditions.0.extend(device_load::conditions(&named));
    }
    let interrupted = if stop.is_set() { Err(interrupted()) } else { Ok(()) };
    let judged = runs.results().try_for_each(judge).and(broken.map_or(Ok(()), Err)).and(interrupted);
    let judged = saved(&mut document, args.output.as_deref(), judged);
    if output.is_json() {
        let text = serde_json::to_string_pretty(&document).map_err(Failure::failed)?;
        output.document(&text);
    } else if let Some(results) = runs.shown().and_then(|at| runs.results().nth(at)) {
        print(results, output);
        print_paths(&named, args.layout.is_some(), results, output);
        spread::print(&document, output);
    }
    judged.map_err(|failure| Failure { in_result: output.is_json(), ..failure })
}

/// Shows the progress of a run.
fn run_progress(args: &BenchArgs, number: u16) -> RunProgress<'_> {
    let (line, mut warned) = (Line::new(), false);
    Box::new(move |now: &Live| {
        if overtime(args, now) >= OVERTIME && !std::mem::replace(&mut warned, true) {
            say(format_args!("longhaul: {}", waits(args)));
        }
        let run = if args.runs > 1 { format!("run {number}/{} ", args.runs) } else { String::new() };
        line.show(share(now), format!("{run}{}", live_line(now, args.rw)));
    })
}

/// Time since the end of the window while I/O is still in flight.
fn overtime(args: &BenchArgs, now: &Live) -> Duration {
    match args.runtime {
        Some(time) if now.phase == Phase::Drain => now.elapsed.saturating_sub(args.ramp + time),
        _ => Duration::ZERO,
    }
}

/// The message on I/O in flight after the end of the window.
fn waits(args: &BenchArgs) -> String {
    let limit = match args.initiator.ctrl_loss() {
        Some(limit) => format!("for up to {} s since it was lost", limit.as_secs()),
        None => "for ever".to_owned(),
    };
    format!(
        "the time is over, and I/O under way is waited for: {limit} if its connection is lost \
         (--ctrl-loss-timeout); Ctrl-C gives it up"
    )
}

/// The outcome of a load that was interrupted.
pub(super) fn interrupted() -> Failure {
    Failure::new(Exit::Partly, "interrupted: the result covers the measurements until then")
}

/// Records in the result how the run ended, and writes it to the `--output` file, if any. An
/// error of that file becomes the outcome, and is recorded as well.
pub(super) fn saved(document: &mut schema::Output, path: Option<&Path>, outcome: Outcome) -> Outcome {
    end(document, &outcome);
    let Some(path) = path else { return outcome };
    let outcome = save(path, document).and(outcome);
    end(document, &outcome);
    outcome
}

fn end(document: &mut schema::Output, outcome: &Outcome) {
    if let Some(record) = &mut document.longhaul {
        record.end = Some(match outcome {
            Ok(()) => End { exit: 0, message: String::new() },
            Err(failure) => End { exit: failure.exit as u8, message: failure.message.clone() },
        });
    }
}

pub(super) fn stop_on_interrupt(stop: &Stop, output: Output) -> Outcome {
    let mut signals =
        signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])
            .map_err(Failure::failed)?;
    let stop = stop.clone();
    std::thread::spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            stop.stop();
        }
        // The second signal ends the process at once.
        if signals.next().is_some() {
            output.abort(&Failure::failed("interrupted twice: I/O under way is given up"));
        }
    });
    Ok(())
}

fn live_line(now: &Live, rw: Rw) -> String {
    let phase = match now.phase {
        Phase::Ramp => "ramp",
        Phase::Run => "run",
        Phase::Drain => "drain",
        Phase::Verify => "verify",
    };
    let (read, write) = (&now.read, &now.write);
    let bytes = |rate: &longhaul_load::Rate| format!("{}/s", format_size(rate.bytes_per_second as u64));
    let one = |name: &str, rate: &longhaul_load::Rate| {
        let network = format_rate(rate.bytes_per_second * 8.0);
        format!("  {name} {} ({network}), {:.0} IOPS", bytes(rate), rate.iops)
    };
    let writes = if rw.trims() { "trim" } else { "write" };
    let rates = match (read.iops > 0.0, write.iops > 0.0) {
        (true, true) => {
            let iops = read.iops + write.iops;
            format!("  read {}, {writes} {}, {iops:.0} IOPS", bytes(read), bytes(write))
        }
        (true, false) => one("read", read),
        (false, true) => one(writes, write),
        (false, false) => String::new(),
    };
    let time = match now.remaining {
        Some(left) => format!("{:.0} s left", left.as_secs_f64()),
        None => format!("{:.0} s", now.elapsed.as_secs_f64()),
    };
    format!("{phase} {time}{rates}")
}

/// Progress as a share of the window, or of the bytes.
fn share(now: &Live) -> Option<f64> {
    let of = |done: f64, all: f64| (all > 0.0).then(|| done / all);
    match (now.remaining, now.total_bytes) {
        (Some(left), _) => {
            let elapsed = now.elapsed.as_secs_f64();
            of(elapsed, elapsed + left.as_secs_f64())
        }
        (None, Some(all)) => of(now.done_bytes as f64, all as f64),
        (None, None) => None,
    }
}

fn print(results: &Results, output: Output) {
    let all = results.to_fio(true);
    if let Some(job) = all.jobs.first() {
        line("read", &job.read, output);
        line("write", &job.write, output);
        line("trim", &job.trim, output);
    }
    if results.jobs.len() > 1 {
        let rates: Vec<f64> = results.jobs.iter().map(JobResult::rate).collect();
        let rate = |found: Option<f64>| format_size(found.unwrap_or(0.0) as u64);
        let (least, most) = (rates.iter().copied().reduce(f64::min), rates.iter().copied().reduce(f64::max));
        output.line(format_args!("jobs: {}, {}/s to {}/s each", rates.len(), rate(least), rate(most)));
    }
    let verify = results.verify();
    if results.job.verify {
        output.line(format_args!(
            "verify: {} blocks checked, {} faults",
            verify.checked_blocks,
            verify.faults()
        ));
    }
    if let Some(job) = all.jobs.first() {
        output.line(format_args!("cpu: {:.1} % user, {:.1} % system", job.usr_cpu, job.sys_cpu));
    }
}

/// The same as text.
fn print_paths(devices: &[Device], joined: bool, results: &Results, output: Output) {
    if !results.job.iodepth_auto {
        return;
    }
    let numjobs = results.job.numjobs as usize;
    for (number, device) in devices.iter().enumerate() {
        // Jobs are assigned to the devices in turn, or all to their stripe.
        let first = if joined { 0 } else { number * numjobs };
        let depth = results.jobs.iter().skip(first).take(numjobs).map(|job| job.depth).max();
        let depth = depth.filter(|_| !results.job.sync).map(|depth| format!("; iodepth up to {depth}"));
        let depth = depth.unwrap_or_default();
        let remotes = device.remotes();
        for remote in &remotes {
            let Some(report) = remote.path() else { continue };
            let which =
                if remotes.len() > 1 { format!(" {}", remote.controller().address) } else { String::new() };
            output.line(format_args!("path{which}: {}{depth}", report.sentence()));
        }
    }
}

fn line(name: &str, stats: &Direction, output: Output) {
    if stats.total_ios == 0 {
        return;
    }
    let rate = stats.bw_bytes as f64;
    let percentile = |p: &str| {
        let found = stats.clat_ns.percentile.0.iter().find(|(name, _)| name == p);
        found.map_or(0.0, |(_, ns)| *ns as f64)
    };
    output.line(format_args!(
        "{name}: {}/s ({}), {:.0} IOPS, {} I/Os, latency mean {} p50 {} p99 {} max {}",
        format_size(rate as u64),
        format_rate(rate * 8.0),
        stats.iops,
        stats.total_ios,
        micros(stats.clat_ns.mean),
        micros(percentile("50.000000")),
        micros(percentile("99.000000")),
        micros(stats.clat_ns.max as f64),
    ));
}

fn micros(ns: f64) -> String {
    if ns < 1e6 { format!("{:.1} µs", ns / 1e3) } else { format!("{:.2} ms", ns / 1e6) }
}

fn judge(results: &Results) -> Outcome {
    let verify = results.verify();
    for fault in &verify.first {
        say(format_args!("longhaul: {fault}"));
    }
    if verify.faults() > 0 {
        return Err(Failure::new(
            Exit::Mismatch,
            format_args!("{} blocks have wrong content", verify.faults()),
        ));
    }
    if let Some(e) = results.error() {
        return Err(e.clone().into());
    }
    Ok(())
}
