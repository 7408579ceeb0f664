//! `longhaul study`: published experiments, reproduced.

use crate::arguments::parse_time;
use crate::events::{StudyMeasurement, StudyNumbers, StudySummary};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use longhaul_lab::study::{self, Begin, Observer, Study, StudyOptions, Totals};
use longhaul_load::Stop;
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
        let options = StudyOptions {
            quick: args.quick,
            targets,
            scale: args.scale,
            runs: args.runs,
            runtime: args.runtime,
            fresh: args.fresh,
        };
        match study::run(*study, &options, &path, &stop, &output).map_err(Failure::from) {
            Ok(totals) => {
                summaries.push(print_totals(&totals, &path, output));
                results.push(path);
                outcome = outcome.and(outcome_of(&totals));
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
    let fits = |uri: &&String| study::is_agent(uri) == study.copies();
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

impl Observer for Output {
    fn begins(&self, measurement: &Begin<'_>) {
        let Begin { study, number, of, name, seconds_left } = *measurement;
        let words = seconds_left.map_or(String::new(), |seconds| format!(", {seconds:.0} s left"));
        Output::note(*self, format_args!("[{study} {number}/{of}{words}] {name}"));
        self.event(&StudyMeasurement { study, number, of, name, seconds_left });
    }

    fn note(&self, text: &str) {
        Output::note(*self, text);
    }
}

/// Prints the numbers, and returns them for the summary event.
fn print_totals(totals: &Totals, path: &Path, output: Output) -> StudyNumbers {
    let Totals { numbers, wanted, void, failed, unavailable } = *totals;
    if !output.is_json() {
        let here = match unavailable {
            0 => String::new(),
            count => format!(", {count} cannot be measured here"),
        };
        let path = path.display();
        output.line(format_args!("{path}: {numbers} of {wanted} numbers, {void} do not count{here}"));
    }
    StudyNumbers {
        result: path.display().to_string(),
        numbers,
        wanted,
        do_not_count: void,
        failed,
        unavailable,
    }
}

fn outcome_of(totals: &Totals) -> Outcome {
    if totals.numbers < totals.wanted {
        let message = "interrupted; the same command resumes the study";
        return Err(Failure { in_result: true, ..Failure::new(Exit::Partly, message) });
    }
    if totals.failed > 0 {
        let message = format!(
            "{} numbers could not be measured, for the reasons above; the same command tries them again",
            totals.failed
        );
        return Err(Failure { in_result: true, ..Failure::new(Exit::Partly, message) });
    }
    Ok(())
}
