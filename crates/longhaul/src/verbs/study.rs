//! `longhaul study`: published experiments, reproduced.
//!
//! A study is a list of [`PlanEntry`] values in the order of their measurement. Each run is
//! written to the result as soon as it ends, so that an interrupted study can be resumed.
//!
//! Invariants:
//! - the result on disk is complete JSON at any moment, and has values of one study under one
//!   set of conditions only;
//! - a value that cannot be measured on this machine is in the result, with the reason.

mod device;
mod fabrics;
mod links;
mod result;
mod striping;
mod transfer;
mod wan_filesystems;

use crate::arguments::parse_time;
use crate::events::{StudyNumbers, StudySummary};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use longhaul_bench::Stop;
use longhaul_results::record::{Cell, Code, Question, Run, Validity};
use result::{StudyProgress, StudyResult};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
  striping         reads striped over 1 to 4 servers behind a link each
                   (Network Storage Manager): links of Fast and of Gigabit
                   Ethernet, blocks of 1 MiB and of 64 KiB
  wan-filesystems  1, 10, 100 and 1,000 files at once on a raw device, ext4,
                   XFS, and XFS over six striped devices, 0.15 and 15 ms away
                   (NVMe/TCP with journaling file systems); data in the
                   capsule; log buffers
  fabrics          1 to 6 drives, local and remote, block device and ext4,
                   random and sequential (NVMe-oF over fabrics), after a
                   measurement of the network
  transfer         the cost of a file in a copy (data-transfer bottlenecks): the
                   same bytes in more and more files, from storage, over the
                   path and to storage alone; more concurrency; with and
                   without read-ahead; data sets
  all              one after another, with a result each

Links are emulated on this machine (which takes root), at --scale of their
rates, unless --target names devices (for transfer, a directory of an agent:
lh://HOST/DIR). For fabrics, devices of this machine are possible, too.
wan-filesystems and fabrics write to the devices, and create file systems on
them, which takes --overwrite. Each run is saved when it ends: after an
interruption, the same command resumes the study.

Examples:
  sudo longhaul study --quick --report report.html
  sudo longhaul study striping --quick --output striping.json
  longhaul study striping --target nvme+tcp://dtn1/a --target nvme+tcp://dtn2/a
  sudo longhaul study wan-filesystems --target nvme+tcp://dtn1/scratch \\
      --overwrite
  longhaul study transfer --target lh://dtn1:7400/incoming
  longhaul report study-striping.json")]
pub(crate) struct StudyArgs {
    /// Study to run
    #[arg(value_name = "NAME", default_value = "all")]
    study: StudyName,
    /// Minutes instead of hours: shorter runs, fewer of them, a smaller scale
    #[arg(long)]
    quick: bool,
    /// Measure on these devices (or this agent) instead of emulated links
    #[arg(long, value_name = "URI")]
    target: Vec<String>,
    /// Overwrite the devices of --target
    #[arg(long)]
    overwrite: bool,
    /// Share of the published rates on emulated links, and of the bytes that transfer copies
    /// [default: suited to the study and this machine]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    scale: Option<f64>,
    /// Runs of each value [default: as published, or 2 or 3 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: Option<u16>,
    /// Duration of a run [default: 10s or 20s, or 1s or 2s with --quick]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    runtime: Option<Duration>,
    /// Result file, or with `all` a directory for the results [default: study-NAME.json, or the
    /// current directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Create a page with figures of the results at the end
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Start over, and replace an existing result
    #[arg(long)]
    fresh: bool,
}

/// Values of `NAME`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum StudyName {
    Striping,
    WanFilesystems,
    Fabrics,
    Transfer,
    All,
}

/// The studies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Study {
    Striping,
    WanFilesystems,
    Fabrics,
    Transfer,
}

impl Study {
    fn name(self) -> &'static str {
        match self {
            Study::Striping => "striping",
            Study::WanFilesystems => "wan-filesystems",
            Study::Fabrics => "fabrics",
            Study::Transfer => "transfer",
        }
    }

    /// Whether the study copies files instead of loading devices.
    fn copies(self) -> bool {
        self == Study::Transfer
    }

    /// Whether the study writes to devices.
    fn overwrites(self) -> bool {
        matches!(self, Study::WanFilesystems | Study::Fabrics)
    }
}

impl StudyName {
    fn studies(self) -> &'static [Study] {
        match self {
            StudyName::Striping => &[Study::Striping],
            StudyName::WanFilesystems => &[Study::WanFilesystems],
            StudyName::Fabrics => &[Study::Fabrics],
            StudyName::Transfer => &[Study::Transfer],
            StudyName::All => &[Study::Striping, Study::WanFilesystems, Study::Fabrics, Study::Transfer],
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
    quick: bool,
    targets: Vec<String>,
    scale: f64,
    runs: u16,
    runtime: Duration,
}

/// Default settings of a study.
#[derive(Clone, Copy, Debug)]
struct Defaults {
    scale: f64,
    runs: u16,
    runtime: Duration,
}

/// Rates of emulated links in bits per second, where the published rate exceeds what a
/// machine can emulate: for each processor (also with `--quick`), and the upper bound. At
/// higher rates the emulator itself limits.
const LINK_EACH: f64 = 500e6;
const LINK_EACH_QUICK: f64 = 250e6;
const LINK_MOST: f64 = 2e9;

/// The share of `published` bits per second that this machine emulates well.
fn suited_scale(published: f64, quick: bool) -> f64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let each = if quick { LINK_EACH_QUICK } else { LINK_EACH };
    ((each * processors).min(LINK_MOST) / published).min(1.0)
}

/// A published experiment and the testbed that it runs on.
trait Experiment: Default {
    /// Parameters of one measurement.
    type Measurement;

    fn usual(quick: bool) -> Defaults;

    /// All measurements, in their order.
    fn plan(settings: &Settings) -> Vec<PlanEntry<Self::Measurement>>;

    /// Comparisons between the values.
    fn questions(_: &Settings) -> Vec<Question> {
        Vec::new()
    }

    /// Runs the measurement `case`, and adds its samples and runs to `found`. `known` are the
    /// cells measured so far.
    fn measure(
        &mut self,
        case: &Self::Measurement,
        settings: &Settings,
        known: &[Cell],
        found: &mut Results,
    ) -> Outcome;
}

/// Results of one measurement.
#[derive(Debug, Default)]
struct Results {
    /// Its cells, with their samples.
    cells: Vec<Cell>,
    /// Processor time, sockets and validity of each run.
    runs: Vec<Run>,
}

/// Cells that one measurement fills.
struct PlanEntry<Measurement> {
    /// The cells with their figure and published values, without samples.
    cells: Vec<Cell>,
    /// The measurement, or the reason why this machine cannot run it.
    how: Result<Measurement, String>,
}

pub(crate) fn run(args: &StudyArgs, output: Output) -> Outcome {
    if args.target.is_empty()
        && let Some(why) = longhaul_wan::unavailable()
    {
        return Err(Failure::failed(format!("no emulated links here: {why}; name devices with --target")));
    }
    let studies = args.study.studies();
    if !args.target.is_empty() && !args.overwrite && studies.iter().any(|study| study.overwrites()) {
        return Err(Failure::usage(
            "this study writes to the devices, and makes file systems on them: if what they have may be \
             destroyed, say --overwrite",
        ));
    }
    super::diagnose::tell_unread_counters(output);
    let stop = Stop::new();
    super::bench::stop_on_interrupt(&stop, output)?;
    let (mut results, mut summaries, mut outcome) = (Vec::new(), Vec::new(), Ok(()));
    for study in studies {
        let Some(targets) = targets(*study, &args.target, studies.len() > 1)? else {
            output.note(format_args!("{}: no --target is for it: left out", study.name()));
            continue;
        };
        let path = path(args, *study)?;
        let done = match study {
            Study::Striping => run_study::<striping::Striping>(*study, args, targets, &path, &stop, output),
            Study::WanFilesystems => {
                run_study::<wan_filesystems::WanFilesystems>(*study, args, targets, &path, &stop, output)
            }
            Study::Fabrics => run_study::<fabrics::Fabrics>(*study, args, targets, &path, &stop, output),
            Study::Transfer => run_study::<transfer::Transfer>(*study, args, targets, &path, &stop, output),
        };
        match done {
            Ok(done) => {
                summaries.push(done.tell(&path, output));
                results.push(path);
                outcome = outcome.and(done.outcome());
            }
            Err(failure) if studies.len() == 1 => return Err(failure),
            // The other studies run all the same.
            Err(failure) => {
                output.note(format_args!("longhaul: {}: {}", study.name(), failure.message));
                outcome = outcome.and(Err(failure));
            }
        }
        if stop.is_set() {
            break;
        }
    }
    if let Some(page) = args.report.as_deref().filter(|_| !results.is_empty()) {
        super::report::page(page, &results, "Published experiments, run again")?;
        output.note(format_args!("{}", page.display()));
    }
    let (one, results) = if studies.len() == 1 { (summaries.pop(), None) } else { (None, Some(summaries)) };
    let page = args.report.as_ref().map(|page| page.display().to_string());
    output.event(&StudySummary { one, results, page });
    outcome
}

/// The `--target`s that suit a study; `None` if there are targets, and none suits it.
fn targets(study: Study, all: &[String], several: bool) -> Result<Option<Vec<String>>, Failure> {
    let fits = |uri: &&String| transfer::is_agent(uri) == study.copies();
    let mine: Vec<String> = all.iter().filter(fits).cloned().collect();
    if !several && mine.len() < all.len() {
        let wants = if study.copies() { "a directory of an agent: lh://HOST/DIR" } else { "devices" };
        return Err(Failure::usage(format!("--target of {} takes {wants}", study.name())));
    }
    if study.copies() && mine.len() > 1 {
        return Err(Failure::usage(format!("{} takes one --target", study.name())));
    }
    Ok((all.is_empty() || !mine.is_empty()).then_some(mine))
}

/// The path of the result file of a study.
fn path(args: &StudyArgs, study: Study) -> Result<PathBuf, Failure> {
    let name = format!("study-{}.json", study.name());
    match (&args.output, args.study) {
        (Some(dir), StudyName::All) => {
            let wrong = |e| Failure::failed(format!("cannot make {}: {e}", dir.display()));
            std::fs::create_dir_all(dir).map_err(wrong)?;
            Ok(dir.join(name))
        }
        (Some(path), _) => Ok(path.clone()),
        (None, _) => Ok(name.into()),
    }
}

/// Runs the measurements of a study that its result lacks.
fn run_study<E: Experiment>(
    study: Study,
    args: &StudyArgs,
    targets: Vec<String>,
    path: &Path,
    stop: &Stop,
    output: Output,
) -> Result<StudyTotals, Failure> {
    let usual = E::usual(args.quick);
    let settings = Settings {
        quick: args.quick,
        scale: args.scale.unwrap_or(if targets.is_empty() { usual.scale } else { 1.0 }),
        targets,
        runs: args.runs.unwrap_or(usual.runs),
        runtime: args.runtime.unwrap_or(usual.runtime),
    };
    let wanted = E::plan(&settings);
    let order = wanted.iter().flat_map(|one| &one.cells).map(|cell| cell.name.clone()).collect();
    let mut result =
        StudyResult::begin(study.name(), path, (order, E::questions(&settings)), &settings, args.fresh)?;
    if settings.scale < 1.0 && settings.targets.is_empty() {
        output.note(format_args!(
            "{}: emulated links have {} of the published rates (--scale)",
            study.name(),
            settings.scale
        ));
    }
    let is_missing = |one: &&PlanEntry<E::Measurement>| !one.cells.iter().all(|cell| result.has(&cell.name));
    let missing: Vec<&PlanEntry<E::Measurement>> = wanted.iter().filter(is_missing).collect();
    let measured =
        |all: &mut dyn Iterator<Item = &PlanEntry<E::Measurement>>| all.filter(|one| one.how.is_ok()).count();
    let all = measured(&mut wanted.iter());
    let mut pace = StudyProgress::new(all, measured(&mut missing.iter().copied()));
    let mut experiment = E::default();
    for one in missing {
        if stop.is_set() {
            break;
        }
        let mut found = Results { cells: one.cells.clone(), runs: Vec::new() };
        match &one.how {
            Err(why) => void(&mut found.cells, Code::NotAvailable, why),
            Ok(case) => {
                pace.tell(study.name(), &found.cells, output);
                let measured = experiment.measure(case, &settings, result.cells(), &mut found);
                if stop.is_set() {
                    // Ctrl-C stopped the load as well: its samples are incomplete.
                    break;
                }
                if let Err(failure) = measured {
                    // A failure makes only its own cells void. The next measurement
                    // starts with a new testbed.
                    experiment = E::default();
                    let name = found.cells.first().map_or("", |cell| &cell.name);
                    output.note(format_args!("longhaul: {name}: {}", failure.message));
                    void(&mut found.cells, Code::Failed, &failure.message);
                }
            }
        }
        result.add(found)?;
    }
    drop(experiment);
    let numbers = result.cells().len();
    let void = result.cells().iter().filter(|cell| !cell.validity.valid).count();
    let failed = result.cells().iter().filter(|cell| is_void_for(cell, Code::Failed)).count();
    Ok(StudyTotals { numbers, void, failed, wanted: wanted.iter().map(|one| one.cells.len()).sum() })
}

fn void(cells: &mut [Cell], code: Code, why: &str) {
    cells.iter_mut().for_each(|cell| cell.validity = Validity::not(code, why));
}

/// Whether `code` is among the reasons why the cell is not valid.
fn is_void_for(cell: &Cell, code: Code) -> bool {
    cell.validity.reasons.iter().any(|reason| reason.code == code)
}

/// Numbers of cells: measured, planned, not valid, and failed.
struct StudyTotals {
    numbers: usize,
    wanted: usize,
    void: usize,
    failed: usize,
}

impl StudyTotals {
    /// Prints the numbers, and returns them for the summary event.
    fn tell(&self, path: &Path, output: Output) -> StudyNumbers {
        let StudyTotals { numbers, wanted, void, failed } = *self;
        if !output.is_json() {
            output
                .line(format_args!("{}: {numbers} of {wanted} numbers, {void} do not count", path.display()));
        }
        if failed > 0 {
            output.note(format_args!("{failed} could not be measured; the same command tries them again"));
        }
        StudyNumbers { result: path.display().to_string(), numbers, wanted, do_not_count: void, failed }
    }

    fn outcome(&self) -> Outcome {
        if self.numbers < self.wanted {
            let message = "interrupted; the same command resumes the study";
            return Err(Failure { in_result: true, ..Failure::new(Exit::Partly, message) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_lab::published;

    /// Asserts that every published value and statement in the plan is in the list of
    /// published statements, with its source.
    pub(super) fn assert_cited<E: Experiment>(settings: &Settings) {
        let (wanted, questions) = (E::plan(settings), E::questions(settings));
        let names: Vec<&str> =
            wanted.iter().flat_map(|one| &one.cells).map(|cell| cell.name.as_str()).collect();
        assert!(!questions.is_empty(), "nothing is asked");
        for question in &questions {
            assert!(!question.pairs.is_empty(), "{}", question.title);
            for name in question.pairs.iter().flat_map(|pair| [&pair.of, &pair.to]) {
                assert!(names.contains(&name.as_str()), "{}: no number is called {name}", question.title);
            }
            if !question.found.is_empty() {
                assert!(
                    published::all().any(|one| question.found_source.contains(&one.source())),
                    "{question:?}"
                );
            }
        }
        let sources: Vec<String> =
            published::all().map(longhaul_results::published::Statement::source).collect();
        let mut said = 0;
        for cell in wanted.iter().flat_map(|one| &one.cells) {
            for one in &cell.published {
                let (source, _) = one.source.split_once("; ").unwrap_or((&one.source, ""));
                assert!(sources.iter().any(|known| known == source), "{}: {source}", cell.name);
                said += 1;
            }
            let found = cell.found.split("; ").filter(|words| !words.is_empty());
            for words in found {
                let statement = published::all().find(|statement| statement.what == words);
                let source = statement.unwrap_or_else(|| panic!("{}: {words}", cell.name)).source();
                assert!(cell.found_source.split("; ").any(|one| one == source), "{}: {source}", cell.name);
                said += 1;
            }
        }
        assert!(said > 0, "nothing was published of these numbers");
    }
}
