//! `longhaul study`: published experiments, run again.
//!
//! A study is a list of [`Wanted`] numbers, in the order in which they are
//! measured. Each one is written to the result as soon as it is there, so that
//! an interrupted study goes on where it was.
//!
//! Invariants:
//! - the result on the disk is whole at any moment, and holds numbers of one
//!   study with one set of conditions only;
//! - a number that this machine cannot have is in the result, with the reason.

mod rig;
mod striping;

use crate::exit::{Exit, Failure, Outcome};
use crate::names::parse_time;
use crate::output::{Output, save};
use longhaul_bench::Stop;
use longhaul_bench::record::{Cell, Code, Record, Validity};
use longhaul_bench::schema;
use longhaul_report::Document;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
  striping  reads striped over 1 to 4 servers behind a link each (Network Storage Manager): links of
            Fast and of Gigabit Ethernet, blocks of 1 MiB and of 64 KiB

Links are emulated on this machine (which takes root), at --scale of their rates, unless --target
names the devices. What was measured is written at once: the same command goes on after an interruption.

Examples:
  sudo longhaul study striping --quick --output striping.json
  longhaul study striping --target nvme+tcp://dtn1/a --target nvme+tcp://dtn2/a
  longhaul report striping.json")]
pub(crate) struct Args {
    /// Which one
    #[arg(value_name = "NAME")]
    study: Study,
    /// Minutes in place of hours: shorter windows, fewer runs, a smaller scale
    #[arg(long)]
    quick: bool,
    /// Measure on these devices in place of emulated links
    #[arg(long, value_name = "URI")]
    target: Vec<String>,
    /// Share of the published rates that emulated links have [default: 1, or 0.1 with --quick]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    scale: Option<f64>,
    /// Runs of each number [default: as published, or 3 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: Option<u16>,
    /// Length of a run [default: 10s, or 2s with --quick]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    runtime: Option<Duration>,
    /// The result [default: study-NAME.json]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Begin anew, whatever the result has
    #[arg(long)]
    fresh: bool,
}

/// The studies.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Study {
    Striping,
}

impl Study {
    fn name(self) -> &'static str {
        match self {
            Study::Striping => "striping",
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if number > 0.0 && number <= 1.0 { Ok(number) } else { Err("a scale is above 0 and at most 1".into()) }
}

/// How a study is run.
#[derive(Clone, Debug)]
struct Settings {
    targets: Vec<String>,
    scale: f64,
    runs: u16,
    runtime: Duration,
}

/// A number that a study wants.
struct Wanted {
    /// Its place and what was published; nothing measured yet.
    cell: Cell,
    /// What is to be done for it.
    work: Work,
}

enum Work {
    /// This machine has not what it takes.
    NotAvailable(String),
    /// Reads, striped.
    Stripe(striping::Case),
}

pub(crate) fn run(args: &Args, output: Output) -> Outcome {
    let settings = Settings {
        targets: args.target.clone(),
        scale: match args.scale {
            _ if !args.target.is_empty() => 1.0,
            Some(scale) => scale,
            None if args.quick => 0.1,
            None => 1.0,
        },
        runs: args.runs.unwrap_or(if args.quick { 3 } else { 10 }),
        runtime: args.runtime.unwrap_or(Duration::from_secs(if args.quick { 2 } else { 10 })),
    };
    if settings.targets.is_empty()
        && let Some(why) = longhaul_wan::unavailable()
    {
        return Err(Failure::failed(format!("no emulated links here: {why}; name devices with --target")));
    }
    let path = args.output.clone().unwrap_or_else(|| format!("study-{}.json", args.study.name()).into());
    let wanted = match args.study {
        Study::Striping => striping::plan(&settings),
    };
    let mut record = begin(args, &settings, &path)?;
    if settings.scale < 1.0 {
        output.note(format_args!("emulated links have {} of the published rates (--scale)", settings.scale));
    }
    let stop = Stop::new();
    super::bench::stop_on_interrupt(&stop)?;
    let mut rig = None;
    let mut pace = Pace::new(&wanted, &record);
    for one in &wanted {
        if record.cells.iter().any(|cell| cell.name == one.cell.name) {
            continue;
        }
        if stop.is_set() {
            break;
        }
        pace.tell(&one.cell.name, output);
        let mut cell = one.cell.clone();
        match &one.work {
            Work::NotAvailable(why) => cell.validity = Validity::not(Code::NotAvailable, why),
            Work::Stripe(case) => {
                let measured = striping::measure(case, &settings, &mut rig, &mut cell);
                if stop.is_set() {
                    // The load was told, too, and has measured half of it.
                    break;
                }
                if let Err(failure) = measured {
                    // One number less is no reason to lose the others.
                    output.note(format_args!("longhaul: {}: {}", cell.name, failure.message));
                    cell.validity = Validity::not(Code::Failed, failure.message);
                }
            }
        }
        cell.judge();
        record.cells.push(cell);
        store(&path, &mut record)?;
    }
    drop(rig);
    finish(&path, &record, wanted.len(), output)
}

/// The record to go on with, or a new one.
fn begin(args: &Args, settings: &Settings, path: &Path) -> Result<Record, Failure> {
    let mut record = Record::new("study", args.study.name());
    record.conditions.0 = vec![
        (
            "links".into(),
            if settings.targets.is_empty() { "emulated".into() } else { settings.targets.join(" ") },
        ),
        ("scale".into(), settings.scale.to_string()),
        ("runs".into(), settings.runs.to_string()),
        ("window".into(), format!("{} s", settings.runtime.as_secs_f64())),
    ];
    if args.fresh || !path.exists() {
        return Ok(record);
    }
    // It says what is wrong with a file better than a parser does.
    Document::load(path)?;
    let text = std::fs::read_to_string(path).map_err(Failure::failed)?;
    let before: schema::Output = serde_json::from_str(&text).map_err(Failure::usage)?;
    let before = before.longhaul.unwrap_or_default();
    // What has rewritten the file may have put its names in another order.
    let sorted = |record: &Record| {
        let mut conditions = record.conditions.0.clone();
        conditions.sort();
        conditions
    };
    if (&before.kind, &before.name) != (&record.kind, &record.name) || sorted(&before) != sorted(&record) {
        let path = path.display();
        return Err(Failure::usage(format!(
            "{path} has another study, or the same with other settings: choose another --output, or --fresh to begin anew"
        )));
    }
    // What failed is tried again.
    let failed = |cell: &Cell| cell.validity.reasons.iter().any(|reason| reason.code == Code::Failed);
    record.cells = before.cells.into_iter().filter(|cell| !failed(cell)).collect();
    record.hosts = before.hosts;
    Ok(record)
}

fn store(path: &Path, record: &mut Record) -> Outcome {
    // The cells are judged already, and only the whole is new.
    record.judge();
    let document = schema::Output {
        version: concat!("longhaul-", env!("CARGO_PKG_VERSION")).into(),
        longhaul: Some(record.clone()),
        ..schema::Output::default()
    };
    save(path, &document)
}

fn finish(path: &Path, record: &Record, wanted: usize, output: Output) -> Outcome {
    let done = record.cells.len();
    let void = record.cells.iter().filter(|cell| !cell.validity.valid).count();
    output
        .event("summary", json!({ "result": path, "numbers": done, "wanted": wanted, "do_not_count": void }));
    if !output.is_json() {
        output.line(format_args!("{}: {done} of {wanted} numbers, {void} do not count", path.display()));
    }
    if done < wanted {
        let message = "interrupted; the same command goes on where it was";
        return Err(Failure { in_result: true, ..Failure::new(Exit::Partly, message) });
    }
    Ok(())
}

/// How far it is, and how long it will take.
struct Pace {
    began: Instant,
    done: usize,
    left: usize,
    all: usize,
}

impl Pace {
    fn new(wanted: &[Wanted], record: &Record) -> Pace {
        let measured = |one: &&Wanted| matches!(one.work, Work::Stripe(_));
        let missing = |one: &&Wanted| !record.cells.iter().any(|cell| cell.name == one.cell.name);
        let all = wanted.iter().filter(measured).count();
        let left = wanted.iter().filter(measured).filter(missing).count();
        Pace { began: Instant::now(), done: 0, left, all }
    }

    /// Before a number is measured.
    fn tell(&mut self, name: &str, output: Output) {
        let at = self.all - self.left + self.done + 1;
        let each = self.began.elapsed().as_secs_f64() / self.done.max(1) as f64;
        let eta = (self.done > 0).then(|| each * (self.left.saturating_sub(self.done)) as f64);
        let words = eta.map_or(String::new(), |seconds| format!(", {seconds:.0} s left"));
        output.note(format_args!("[{at}/{}{words}] {name}", self.all));
        output.event("progress", json!({ "number": at, "of": self.all, "name": name, "seconds_left": eta }));
        self.done += 1;
    }
}
