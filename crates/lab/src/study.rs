//! Published experiments, reproduced: on emulated links of this machine, or on named devices.
//!
//! A study is a list of measurements in their order. Each run is
//! written to the result as soon as it ends, so that an interrupted study can be resumed. Loads and
//! servers are processes of the calling program ([`crate::self_exec`]).
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

use crate::{Error, Outcome};
use longhaul_load::Stop;
use longhaul_results::record::{Cell, Code, Question, Run, Validity};
use result::{Progress, StudyResult};
use std::path::Path;
use std::time::Duration;

/// The studies that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Study {
    /// Reads striped over servers (Network Storage Manager).
    Striping,
    /// Files on remote devices and file systems at a distance (NVMe/TCP with journaling file
    /// systems).
    WanFilesystems,
    /// Drives of this machine against remote ones (NVMe-oF over fabrics).
    Fabrics,
    /// The cost of a file in a copy (data-transfer bottlenecks).
    Transfer,
}

impl Study {
    /// Its name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Study::Striping => "striping",
            Study::WanFilesystems => "wan-filesystems",
            Study::Fabrics => "fabrics",
            Study::Transfer => "transfer",
        }
    }

    /// Whether the study copies files instead of loading devices.
    pub fn copies(self) -> bool {
        self == Study::Transfer
    }

    /// Whether the study writes to devices.
    pub fn overwrites(self) -> bool {
        matches!(self, Study::WanFilesystems | Study::Fabrics)
    }
}

/// Whether a target is an agent's directory (`lh://HOST/DIR`) and not a device.
pub fn is_agent(uri: &str) -> bool {
    transfer::is_agent(uri)
}

/// What a study is asked for; see `longhaul study --help`.
#[derive(Clone, Debug, Default)]
pub struct StudyOptions {
    /// Minutes instead of hours: shorter runs, fewer of them, a smaller scale.
    pub quick: bool,
    /// URIs of devices, or of one agent's directory; if empty, emulated links are used.
    pub targets: Vec<String>,
    /// Share of the published rates on emulated links, above 0 and at most 1; the study's and the
    /// machine's default if `None`.
    pub scale: Option<f64>,
    /// Runs of each value; the study's default if `None`.
    pub runs: Option<u16>,
    /// Duration of a run; the study's default if `None`.
    pub runtime: Option<Duration>,
    /// Replace an existing result instead of resuming it.
    pub fresh: bool,
}

/// A measurement that begins.
#[derive(Clone, Copy, Debug)]
pub struct Begin<'a> {
    /// The study's name.
    pub study: &'a str,
    /// Number of the measurement, from 1.
    pub number: usize,
    /// Number of measurements in all.
    pub of: usize,
    /// Name of its first value.
    pub name: &'a str,
    /// Estimated time left, in seconds; `None` before the first measurement has ended.
    pub seconds_left: Option<f64>,
}

/// What a running study reports.
pub trait Observer {
    /// A measurement begins.
    fn begins(&self, measurement: &Begin<'_>);
    /// A remark for the operator.
    fn note(&self, text: &str);
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

/// Runs a study: the measurements that the result at `path` lacks. It ends early, with a result that
/// can be resumed, when `stop` is set.
///
/// # Errors
/// The result cannot be written, or cannot be resumed with these options. A measurement that fails
/// makes only its own values void.
pub fn run(
    study: Study,
    options: &StudyOptions,
    path: &Path,
    stop: &Stop,
    observer: &dyn Observer,
) -> Result<Totals, Error> {
    match study {
        Study::Striping => run_study::<striping::Striping>(study, options, path, stop, observer),
        Study::WanFilesystems => {
            run_study::<wan_filesystems::WanFilesystems>(study, options, path, stop, observer)
        }
        Study::Fabrics => run_study::<fabrics::Fabrics>(study, options, path, stop, observer),
        Study::Transfer => run_study::<transfer::Transfer>(study, options, path, stop, observer),
    }
}

/// Runs the measurements of a study that its result lacks.
fn run_study<E: Experiment>(
    study: Study,
    options: &StudyOptions,
    path: &Path,
    stop: &Stop,
    observer: &dyn Observer,
) -> Result<Totals, Error> {
    let usual = E::usual(options.quick);
    let settings = Settings {
        quick: options.quick,
        scale: options.scale.unwrap_or(if options.targets.is_empty() { usual.scale } else { 1.0 }),
        targets: options.targets.clone(),
        runs: options.runs.unwrap_or(usual.runs),
        runtime: options.runtime.unwrap_or(usual.runtime),
    };
    let wanted = E::plan(&settings);
    let order = wanted.iter().flat_map(|one| &one.cells).map(|cell| cell.name.clone()).collect();
    let mut result =
        StudyResult::begin(study.name(), path, (order, E::questions(&settings)), &settings, options.fresh)?;
    if settings.scale < 1.0 && settings.targets.is_empty() {
        observer.note(&format!(
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
    let mut progress = Progress::new(all, measured(&mut missing.iter().copied()));
    let mut experiment = E::default();
    for one in missing {
        if stop.is_set() {
            break;
        }
        let mut found = Results { cells: one.cells.clone(), runs: Vec::new() };
        match &one.how {
            Err(why) => void(&mut found.cells, Code::NotAvailable, why),
            Ok(case) => {
                progress.begin(study.name(), &found.cells, observer);
                let measured = experiment.measure(case, &settings, result.cells(), &mut found);
                if stop.is_set() {
                    // Ctrl-C stopped the load as well: its samples are incomplete.
                    break;
                }
                if let Err(error) = measured {
                    // A failure makes only its own cells void. The next measurement
                    // starts with a new testbed.
                    experiment = E::default();
                    let name = found.cells.first().map_or("", |cell| &cell.name);
                    observer.note(&format!("longhaul: {name}: {error}"));
                    void(&mut found.cells, Code::Failed, &error.to_string());
                }
            }
        }
        result.add(found)?;
    }
    drop(experiment);
    let numbers = result.cells().len();
    let unavailable = result.cells().iter().filter(|cell| is_void_for(cell, Code::NotAvailable)).count();
    let void = result.cells().iter().filter(|cell| !cell.validity.valid).count() - unavailable;
    let failed = result.cells().iter().filter(|cell| is_void_for(cell, Code::Failed)).count();
    Ok(Totals { numbers, void, failed, unavailable, wanted: wanted.iter().map(|one| one.cells.len()).sum() })
}

fn void(cells: &mut [Cell], code: Code, why: &str) {
    cells.iter_mut().for_each(|cell| cell.validity = Validity::not(code, why));
}

/// Whether `code` is among the reasons why the cell is not valid.
fn is_void_for(cell: &Cell, code: Code) -> bool {
    cell.validity.reasons.iter().any(|reason| reason.code == code)
}

/// Numbers of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// In the result.
    pub numbers: usize,
    /// In the plan.
    pub wanted: usize,
    /// In the result, measured, and not valid.
    pub void: usize,
    /// In the result without a value, as this machine cannot measure them.
    pub unavailable: usize,
    /// Of these, those whose measurement failed.
    pub failed: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published;

    /// Settings of a study with the shortest runs.
    pub(super) fn settings(quick: bool, targets: &[&str]) -> Settings {
        let targets = targets.iter().map(|uri| (*uri).to_owned()).collect();
        Settings { quick, targets, scale: 0.01, runs: 1, runtime: Duration::from_secs(1) }
    }

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
