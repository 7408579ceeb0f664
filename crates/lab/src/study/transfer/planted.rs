//! Planted per-file costs: a FUSE layer makes open and close at the source take O_R together,
//! and close at the destination O_W. A sequential copy then has the published t0, which
//! Longhaul has to hide by concurrency.
//!
//! The publication does not say how the costs divide between open and close. Here O_R is
//! halved, and O_W is at close: Linux creates one file at a time in a directory, so that no
//! concurrency could hide a cost of create.

use super::plain::{self, CopySource};
use super::{AT_ONCE, Concurrency, Copy, CopyStages, Noise, TransferTestbed, bytes, fit, place};
use crate::line;
use crate::published::transfer as said;
use crate::slowfs::{Slow, SlowFs};
use crate::study::{PlanEntry, Results, Settings};
use crate::{Error, Outcome};
use longhaul_results::record::{Better, Cell, Code, Question, Validity};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Numbers of files of sequential copies. Their files are not much smaller than the
/// bandwidth-delay product, so that a round trip carries a full window.
const FEW: [u32; 4] = [4, 8, 16, 32];
const FEW_QUICK: [u32; 3] = [8, 16, 32];
/// Numbers of files of concurrent copies.
const MANY: [u32; 4] = [1, 100, 500, 1000];
const MANY_QUICK: [u32; 3] = [1, 256, 1000];
/// Numbers of files in the sweep of concurrency.
const SWEPT: [u32; 3] = [10, 100, 1000];
const SWEPT_QUICK: [u32; 2] = [16, 128];
/// Concurrency with `--quick`.
const ENDS: [u16; 2] = [1, 16];
const FIGURE: &str = "Published costs of files planted: the same bytes in more and more files";
const AT_ONCE_LABEL: &str = "Readers, connections, writers";

/// The program that copies, and its concurrency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum CopyMode {
    /// The sequential copy of [`plain`].
    OneByOne,
    /// Longhaul with one reader, connection and writer, without read-ahead.
    OneOfEach,
    /// Longhaul with enough readers and writers to hide all costs.
    Many,
    /// Longhaul with its defaults: the tuner chooses.
    AsHelps,
}

/// Readers and writers that hide 34 ms and 10.1 ms per file, down to well under a millisecond.
/// A few connections carry the data.
const ENOUGH: u16 = 64;
const ENOUGH_STREAMS: u16 = 4;

impl CopyMode {
    const ALL: [CopyMode; 4] = [CopyMode::OneByOne, CopyMode::OneOfEach, CopyMode::Many, CopyMode::AsHelps];

    fn name(self) -> &'static str {
        match self {
            CopyMode::OneByOne => "one after another",
            CopyMode::OneOfEach => "one of each, not read ahead",
            CopyMode::Many => "64 readers and writers",
            CopyMode::AsHelps => "as many as help",
        }
    }

    /// The stages that are measured. With the tuner only the whole copy is, since the tuner
    /// would choose differently for each stage alone.
    fn rungs(self) -> &'static [CopyStages] {
        if self == CopyMode::AsHelps { &RUNGS[3..] } else { &RUNGS }
    }

    fn tune(self) -> Concurrency {
        match self {
            CopyMode::OneByOne | CopyMode::OneOfEach => {
                Concurrency { at_once: Some(1), streams: None, ahead: false }
            }
            CopyMode::Many => {
                Concurrency { at_once: Some(ENOUGH), streams: Some(ENOUGH_STREAMS), ahead: true }
            }
            CopyMode::AsHelps => Concurrency::USUAL,
        }
    }

    fn files(self, quick: bool) -> &'static [u32] {
        match (self, quick) {
            (CopyMode::Many | CopyMode::AsHelps, true) => &MANY_QUICK,
            (CopyMode::Many | CopyMode::AsHelps, false) => &MANY,
            (_, true) => &FEW_QUICK,
            (_, false) => &FEW,
        }
    }
}

/// Stages of a planted copy.
const RUNGS: [CopyStages; 4] = [CopyStages::Read, CopyStages::Network, CopyStages::Write, CopyStages::Whole];

/// A measurement with planted costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Planted {
    /// A copy of some stages, with a number of files.
    Copy(CopyMode, CopyStages, u32),
    /// The fit through those copies.
    Line(CopyMode, CopyStages),
    /// The longest stage, and the sum of all.
    Bounds(CopyMode),
    /// Files, concurrency, and whether files are read ahead.
    Swept(u32, u16, bool),
    /// One stage at this concurrency.
    Stage(CopyStages, u16),
}

fn name_of(how: CopyMode, rung: CopyStages, files: u32) -> String {
    format!("planted costs, {}: {}, {files} files", how.name(), rung.name())
}

fn line_of(how: CopyMode, rung: CopyStages) -> String {
    format!("planted costs, {}: {}", how.name(), rung.name())
}

fn bound_of(how: CopyMode, which: &str) -> String {
    format!("planted costs, {}: {which}", how.name())
}

const LONGEST: &str = "longest stage";
const SUM: &str = "sum of the stages";

fn swept_name(files: u32, at_once: u16, ahead: bool) -> String {
    format!("planted costs, {files} files, {at_once} at once, {}", ahead_words(ahead))
}

fn ahead_words(ahead: bool) -> &'static str {
    if ahead { "read ahead" } else { "not read ahead" }
}

fn at_once(settings: &Settings) -> &'static [u16] {
    if settings.quick { &ENDS } else { &AT_ONCE }
}

fn swept(settings: &Settings) -> &'static [u32] {
    if settings.quick { &SWEPT_QUICK } else { &SWEPT }
}

/// Fails with the reason why costs cannot be planted.
fn missing(settings: &Settings) -> Result<(), String> {
    if !settings.targets.is_empty() {
        return Err("costs of files are planted at both ends of an emulated link only".into());
    }
    match Path::new("/dev/fuse").exists() {
        true => Ok(()),
        false => Err("the layer that plants costs of files takes FUSE (/dev/fuse)".into()),
    }
}

pub(super) fn plan<Measurement>(
    settings: &Settings,
    case: impl Fn(Planted) -> Measurement,
) -> Vec<PlanEntry<Measurement>> {
    let mut all = Vec::new();
    let mut push = |cells, planted| {
        all.push(PlanEntry { cells, how: missing(settings).map(|()| case(planted)) });
    };
    for how in CopyMode::ALL {
        for &rung in how.rungs() {
            for &files in how.files(settings.quick) {
                push(vec![of_copy(how, rung, files, settings)], Planted::Copy(how, rung, files));
            }
        }
        for &rung in how.rungs() {
            push(of_line(how, rung), Planted::Line(how, rung));
        }
        if how.rungs() == RUNGS {
            push(of_bounds(how), Planted::Bounds(how));
        }
    }
    for &files in swept(settings) {
        for &number in at_once(settings) {
            for ahead in [false, true] {
                push(of_swept(files, number, ahead), Planted::Swept(files, number, ahead));
            }
        }
    }
    for rung in [CopyStages::Read, CopyStages::Network, CopyStages::Write] {
        for &number in at_once(settings) {
            push(of_stage(rung, number, settings), Planted::Stage(rung, number));
        }
    }
    all
}

fn of_copy(how: CopyMode, rung: CopyStages, files: u32, settings: &Settings) -> Cell {
    let mut cell = Cell::new(name_of(how, rung, files), "s", Better::Lower);
    let series = format!("{}: {}", rung.name(), how.name());
    let figure =
        if rung == CopyStages::Whole { FIGURE.into() } else { format!("{FIGURE}, {} alone", rung.name()) };
    cell.place = Some(place(&figure, &series, &files.to_string(), Some(f64::from(files)), "Files"));
    if rung == CopyStages::Whole && how == CopyMode::OneByOne {
        let more = bytes(settings) / (said::BYTES.value() * settings.scale);
        let value = f64::from(files) * said::T0.value() + said::OF_BYTES.value() * more;
        let of = format!("the line T = 0.0665 N + 16.5 s at N = {files} and {more} times the bytes");
        cell.published.push(said::T0.scaled(value / said::T0.value(), &of));
    }
    cell
}

fn of_line(how: CopyMode, rung: CopyStages) -> Vec<Cell> {
    let [mut t0, rate] = line::cells(&line_of(how, rung));
    t0.published.extend(rung.published().map(|statement| statement.scaled(1.0, "")));
    vec![t0, rate]
}

fn of_bounds(how: CopyMode) -> Vec<Cell> {
    [(LONGEST, &said::LEAST), (SUM, &said::SUM)]
        .map(|(which, statement)| {
            let mut cell = Cell::new(bound_of(how, which), "s", Better::Lower);
            cell.place = Some(place("Between which a file of the whole is", which, how.name(), None, "Copy"));
            cell.published.push(statement.scaled(1.0, ""));
            cell
        })
        .to_vec()
}

fn of_swept(files: u32, at_once: u16, ahead: bool) -> Vec<Cell> {
    let (name, x) = (swept_name(files, at_once, ahead), at_once.to_string());
    let cell = |name: String, what: &str| {
        let mut cell = Cell::new(name, "s", Better::Lower);
        let figure = format!("{what} of {files} files with planted costs, the next read ahead or not");
        cell.place = Some(place(&figure, ahead_words(ahead), &x, Some(f64::from(at_once)), AT_ONCE_LABEL));
        cell
    };
    let processors = format!("{name}: processors");
    vec![cell(name, "Time"), cell(processors, "Processor time")]
}

fn of_stage(rung: CopyStages, at_once: u16, settings: &Settings) -> Vec<Cell> {
    let (name, x) = (format!("planted costs, {} alone, {at_once} at once", rung.name()), at_once.to_string());
    let files = stage_files(settings);
    let mut cell = Cell::new(name, "s", Better::Lower);
    let figure = format!("{files} files with planted costs, one stage alone");
    cell.place = Some(place(&figure, rung.name(), &x, Some(f64::from(at_once)), AT_ONCE_LABEL));
    cell.cite([&said::CONCURRENCY]);
    vec![cell]
}

fn stage_files(settings: &Settings) -> u32 {
    swept(settings).iter().copied().max().unwrap_or(1)
}

pub(super) fn questions(settings: &Settings) -> Vec<Question> {
    if missing(settings).is_err() {
        return Vec::new();
    }
    let file = |how, rung| format!("{}: a file", line_of(how, rung));
    let mut longest =
        Question::new("Planted costs: a file of the whole, against its longest stage", [&said::BOUNDS]);
    let mut sum =
        Question::new("Planted costs: a file of the whole, against the sum of the stages", [&said::BOUNDS]);
    for how in CopyMode::ALL.into_iter().filter(|how| how.rungs() == RUNGS) {
        longest = longest.pair(how.name(), file(how, CopyStages::Whole), bound_of(how, LONGEST));
        sum = sum.pair(how.name(), file(how, CopyStages::Whole), bound_of(how, SUM));
    }
    let mut hidden =
        Question::new("Planted costs: a file, against one after another", [&said::CONCURRENCY]).in_summary();
    for how in [CopyMode::OneOfEach, CopyMode::Many, CopyMode::AsHelps] {
        hidden = hidden.pair(
            how.name(),
            file(how, CopyStages::Whole),
            file(CopyMode::OneByOne, CopyStages::Whole),
        );
    }
    let mut ahead =
        Question::new("Planted costs: read ahead, against not", [&said::PREFETCH, &said::PREFETCH_LESS])
            .in_summary();
    let mut more =
        Question::new("Planted costs: more at once, against one", [&said::CONCURRENCY, &said::CPU]);
    for &files in swept(settings) {
        for &number in at_once(settings) {
            let name = |ahead| swept_name(files, number, ahead);
            ahead = ahead.pair(format!("{files} files, {number} at once"), name(true), name(false));
            if number > 1 {
                let one = swept_name(files, 1, true);
                more = more.pair(format!("time, {files} files, {number} at once"), name(true), one.clone());
                let (of, to) = (format!("{}: processors", name(true)), format!("{one}: processors"));
                more = more.pair(format!("processors, {files} files, {number} at once"), of, to);
            }
        }
    }
    vec![hidden, longest, sum, ahead, more]
}

/// The directories of both ends, mounted through the FUSE layer.
pub(super) struct SlowLayer {
    // Dropped, and so unmounted, before the directories are removed.
    _mounts: [SlowFs; 2],
    pub(super) source: PathBuf,
    pub(super) there: PathBuf,
}

impl SlowLayer {
    /// Mounts `source` and `there` with the published delays below `scratch`.
    pub(super) fn mount(scratch: &Path, source: &Path, there: &Path) -> Result<SlowLayer, Error> {
        let time = |seconds: f64| Duration::from_secs_f64(seconds);
        let half = time(said::O_R.value() / 2.0);
        let mount = |name: &str, directory: &Path, slow: Slow| {
            let at = scratch.join(name);
            std::fs::create_dir(&at).map_err(Error::failed)?;
            let mounted = SlowFs::mount(directory, &at, slow).map_err(|e| {
                let at = at.display();
                Error::failed(format!("cannot mount the layer that plants costs of files at {at}: {e}"))
            })?;
            Ok::<_, Error>((mounted, at))
        };
        let at_source = Slow { open: half, close: half, ..Slow::default() };
        let at_destination = Slow { close: time(said::O_W.value()), ..Slow::default() };
        let (one, source) = mount("slow-source", source, at_source)?;
        let (other, there) = mount("slow-there", there, at_destination)?;
        Ok(SlowLayer { _mounts: [one, other], source, there })
    }
}

pub(super) fn measure(
    planted: Planted,
    testbed: &mut Option<TransferTestbed>,
    settings: &Settings,
    known: &[Cell],
    found: &mut Results,
) -> Outcome {
    match planted {
        Planted::Line(how, rung) => return line_through(how, rung, settings, known, &mut found.cells),
        Planted::Bounds(how) => return bounds(how, known, &mut found.cells),
        _ => {}
    }
    if testbed.is_none() {
        *testbed = Some(TransferTestbed::start(settings)?);
    }
    let Some(testbed) = testbed else { return Err(Error::failed("there is nothing to copy to")) };
    // With `--quick`, the many points of the sweeps are measured once each.
    let is_swept = matches!(planted, Planted::Swept(..) | Planted::Stage(..));
    let runs = if settings.quick && is_swept { 1 } else { settings.runs };
    for _ in 0..runs {
        match planted {
            Planted::Copy(CopyMode::OneByOne, rung, files) => {
                let seconds = one_by_one(testbed, rung, files, settings)?;
                found.cells[0].push(seconds, &Validity::default());
            }
            Planted::Copy(how, rung, files) => {
                testbed.planted(rung, files, how.tune(), found)?;
            }
            Planted::Swept(files, number, ahead) => {
                let tune = Concurrency { at_once: Some(number), ahead, ..Concurrency::USUAL };
                testbed.planted(CopyStages::Whole, files, tune, found)?;
            }
            Planted::Stage(rung, number) => {
                let tune = Concurrency { at_once: Some(number), ..Concurrency::USUAL };
                testbed.planted(rung, stage_files(settings), tune, found)?;
            }
            Planted::Line(..) | Planted::Bounds(..) => {}
        }
    }
    Ok(())
}

/// Seconds of a sequential copy.
fn one_by_one(
    testbed: &mut TransferTestbed,
    rung: CopyStages,
    files: u32,
    settings: &Settings,
) -> Result<f64, Error> {
    let zeroes = CopySource::Zeroes { files, bytes: ((bytes(settings) / f64::from(files)) as u64).max(1) };
    let from = match rung {
        CopyStages::Read | CopyStages::Whole => {
            CopySource::tree(&testbed.slow_source(files)?).map_err(Error::failed)?
        }
        _ => zeroes,
    };
    let there = testbed.slow_there()?;
    let took = match rung {
        CopyStages::Read | CopyStages::Nothing => plain::read(&from).map_err(Error::failed)?,
        CopyStages::Write => plain::write(&from, &there).map_err(Error::failed)?,
        CopyStages::Network => plain::send(testbed.links()?, &from, None)?,
        CopyStages::Whole => plain::send(testbed.links()?, &from, Some(&there))?,
    };
    testbed.clear()?;
    Ok(took.as_secs_f64())
}

/// Fits a line to the copies of each round.
fn line_through(
    how: CopyMode,
    rung: CopyStages,
    settings: &Settings,
    known: &[Cell],
    cells: &mut [Cell],
) -> Outcome {
    let files = how.files(settings.quick);
    let samples = |files: &u32| {
        let name = name_of(how, rung, *files);
        known.iter().find(|cell| cell.name == name).map(|cell| cell.samples.as_slice()).unwrap_or_default()
    };
    let rounds = files.iter().map(|files| samples(files).len()).min().unwrap_or_default();
    if rounds == 0 {
        crate::study::void(cells, Code::NotAvailable, "a number of files has no copy that counts");
        return Ok(());
    }
    let [t0, rate] = cells else { return Err(Error::failed("a line is two numbers")) };
    let valid = Validity::default();
    for round in 0..rounds {
        let of = |files: &u32| {
            let count = f64::from(*files);
            Copy { files: count, bytes: bytes(settings), seconds: samples(files)[round] }
        };
        let copies: Vec<Copy> = files.iter().map(of).collect();
        let found = fit(&copies, Noise::Proportional).map_err(Error::failed)?;
        t0.push(found.t0.value, &valid);
        rate.push(found.rate.value, &valid);
    }
    if rate.samples.is_empty() {
        rate.validity = line::of_nothing();
    }
    Ok(())
}

/// The costs per file of each round: of the longest stage, and of all stages together.
fn bounds(how: CopyMode, known: &[Cell], cells: &mut [Cell]) -> Outcome {
    let of = |rung: CopyStages| {
        let name = format!("{}: a file", line_of(how, rung));
        known.iter().find(|cell| cell.name == name).map(|cell| cell.samples.as_slice()).unwrap_or_default()
    };
    let stages = [CopyStages::Read, CopyStages::Network, CopyStages::Write].map(of);
    let rounds = stages.iter().map(|samples| samples.len()).min().unwrap_or_default();
    if rounds == 0 {
        return Err(Error::failed("a stage has no line"));
    }
    let [longest, sum] = cells else { return Err(Error::failed("there are two bounds")) };
    for round in 0..rounds {
        let all = stages.map(|samples| samples[round]);
        longest.push(all.iter().copied().fold(0.0, f64::max), &Validity::default());
        sum.push(all.iter().sum(), &Validity::default());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::tests::settings;

    #[test]
    fn the_planted_costs_are_the_published_ones() {
        // A sequential copy: open at the source, a round trip, close at the destination.
        let rtt = said::RTT.value();
        let expected = said::O_R.value() / 2.0 + rtt + said::O_W.value();
        assert!((expected / said::T0.value() - 1.0).abs() < 0.2, "{expected}: the published t0 within 20 %");
        assert!(rtt <= expected && expected <= said::O_R.value() + said::O_W.value() + rtt);
    }

    #[test]
    fn the_line_and_the_bounds_are_those_of_the_copies() {
        let settings = settings(true, &[]);
        let mut known = Vec::new();
        let planted = [(CopyStages::Read, 0.034), (CopyStages::Network, 0.045), (CopyStages::Write, 0.01)];
        for (rung, t0) in planted {
            for &files in CopyMode::OneByOne.files(true) {
                let mut cell = of_copy(CopyMode::OneByOne, rung, files, &settings);
                cell.push(f64::from(files) * t0 + bytes(&settings) / 1e8, &Validity::default());
                known.push(cell);
            }
            let mut cells = of_line(CopyMode::OneByOne, rung);
            line_through(CopyMode::OneByOne, rung, &settings, &known, &mut cells).expect("a line");
            assert!((cells[0].samples[0] / t0 - 1.0).abs() < 1e-6, "{cells:?}");
            known.extend(cells);
        }
        let mut cells = of_bounds(CopyMode::OneByOne);
        bounds(CopyMode::OneByOne, &known, &mut cells).expect("bounds");
        assert!((cells[0].samples[0] - 0.045).abs() < 1e-9 && (cells[1].samples[0] - 0.089).abs() < 1e-9);
        assert!(bounds(CopyMode::AsHelps, &known, &mut cells).is_err(), "there is no such line");
    }

    #[test]
    fn on_named_hosts_nothing_is_planted() {
        let all = plan(&settings(true, &["lh://dtn1/x"]), |planted| planted);
        assert!(!all.is_empty() && all.iter().all(|one| one.how.is_err()));
        assert!(questions(&settings(true, &["lh://dtn1/x"])).is_empty());
    }
}
