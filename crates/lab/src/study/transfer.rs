//! The study of data-transfer bottlenecks (CCGRID 2019; 100 Gb/s, 45 ms): the
//! same bytes in more and more files, and a line fitted to the times, T = N·t0 +
//! B/R, for the whole copy and for each stage alone; then higher concurrency, the
//! published per-file costs planted at both ends, and the data sets.
//!
//! A copy that a line is fitted to may be short, as copies of few files are: the
//! time of TCP's slow start is part of R in all of them. So R is valid only if the
//! shortest of its copies over a path was as long as a window has to be. All other
//! copies have to be that long themselves. Within this machine there is no slow
//! start.

mod plain;
mod planted;
mod sets;
mod testbed;

use super::{Defaults, Experiment, PlanEntry, Results, Settings, suited_scale};
use crate::line;
use crate::model::{Copy, Noise, fit};
use crate::published::transfer as said;
use crate::{Error, Outcome};
use longhaul_results::published::Statement;
use longhaul_results::record::{Better, Cell, Code, Place, Question, ROUND_TRIPS_MIN, Validity, WINDOW_MIN};
use sets::Sets;
use std::time::Duration;
use testbed::{MinLength, TransferTestbed};

const RATE: f64 = said::RATE.value();
const RTT: Duration = Duration::from_millis(45);
/// Bytes of a copy, as published: 0.4 s of that link, or nine round trips.
const BYTES: f64 = said::BYTES.value();
/// Files of a copy.
const FILES: [u32; 6] = [1, 10, 50, 100, 500, 1000];
const FILES_QUICK: [u32; 4] = [1, 64, 256, 1000];
/// The published line: seconds per file, and seconds of the bytes.
const T0: f64 = said::T0.value();
const OF_BYTES: f64 = said::OF_BYTES.value();
/// Numbers of readers, connections and writers.
const AT_ONCE: [u16; 6] = [1, 2, 4, 8, 16, 32];
const AT_ONCE_QUICK: [u16; 3] = [1, 4, 16];
/// Fewest points of a fit: two points have no residual.
const POINTS_MIN: usize = 3;
/// Safety margin of the time for which a copy keeps an emulated link busy.
const MARGIN: f64 = 1.25;
/// Bytes of a data set, and of a copy with `--quick`, over a path of unknown rate: at least a
/// second at 8 Gb/s.
const SET: u64 = 4 << 30;
const SET_QUICK: u64 = 1 << 30;
const SETS: [&str; 4] = ["real", "big", "l380", "small"];
/// Bytes of a file of the set `small`.
const BYTES_OF_SMALL: u64 = 4096;

/// A copy of some of the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyStages {
    /// Files to `null:` on this machine.
    Read,
    /// A synthetic source to `null:` over the path.
    Network,
    /// A synthetic source to files.
    Write,
    /// A synthetic source to `null:` on this machine.
    Nothing,
    /// Files to files over the path.
    Whole,
}

impl CopyStages {
    const ALL: [CopyStages; 5] =
        [CopyStages::Read, CopyStages::Network, CopyStages::Write, CopyStages::Nothing, CopyStages::Whole];

    fn name(self) -> &'static str {
        match self {
            CopyStages::Read => "read",
            CopyStages::Network => "network",
            CopyStages::Write => "write",
            CopyStages::Nothing => "no storage, no network",
            CopyStages::Whole => "whole",
        }
    }

    /// Whether the data crosses the path. With a `--target` (`named`), the write stage does, too.
    fn crosses(self, named: bool) -> bool {
        match self {
            CopyStages::Network | CopyStages::Whole => true,
            CopyStages::Write => named,
            CopyStages::Read | CopyStages::Nothing => false,
        }
    }

    /// Published seconds per file.
    fn published(self) -> Option<&'static Statement> {
        match self {
            CopyStages::Read => Some(&said::O_R),
            CopyStages::Network => Some(&said::O_N),
            CopyStages::Write => Some(&said::O_W),
            CopyStages::Nothing => None,
            CopyStages::Whole => Some(&said::T0),
        }
    }
}

/// Concurrency of a copy, and whether it reads ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Concurrency {
    /// Readers, connections and writers; `None` to let the tuner choose.
    at_once: Option<u16>,
    /// Connections, if not as many as readers.
    streams: Option<u16>,
    /// Whether files are read before the blocks read so far are sent.
    ahead: bool,
}

impl Concurrency {
    /// The defaults of `cp`.
    const USUAL: Concurrency = Concurrency { at_once: None, streams: None, ahead: true };
}

const ONE: Concurrency = Concurrency { at_once: Some(1), ..Concurrency::USUAL };

/// A measurement of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferMeasurement {
    /// Seconds of copies that a line is fitted to.
    Point(CopyStages, u32),
    /// Seconds of whole copies, and their processor seconds.
    Copy(u32, Concurrency),
    /// The fit through the copies of these stages.
    Line(CopyStages),
    /// Copies with planted per-file costs.
    Planted(planted::Planted),
    /// Copies of the data sets.
    Sets(sets::Sets),
}

/// Whether `uri` is that of an agent.
pub(super) fn is_agent(uri: &str) -> bool {
    uri.starts_with("lh://")
}

/// The experiment and its testbed.
#[derive(Default)]
pub(super) struct Transfer(Option<TransferTestbed>);

impl Experiment for Transfer {
    type Measurement = TransferMeasurement;

    fn usual(quick: bool) -> Defaults {
        let runs = if quick { 2 } else { 5 };
        let runtime = Duration::from_secs(if quick { 2 } else { 10 });
        Defaults { scale: suited_scale(RATE, quick), runs, runtime }
    }

    fn plan(settings: &Settings) -> Vec<PlanEntry<TransferMeasurement>> {
        let files = counts(settings);
        let most = files[files.len() - 1];
        let mut all = Vec::new();
        for rung in CopyStages::ALL {
            for &files in files {
                let case = TransferMeasurement::Point(rung, files);
                all.push(PlanEntry { cells: vec![of_copy(rung, files, settings)], how: Ok(case) });
            }
        }
        for rung in CopyStages::ALL {
            all.push(PlanEntry { cells: of_line(rung, settings), how: Ok(TransferMeasurement::Line(rung)) });
        }
        let at_once = if settings.quick { &AT_ONCE_QUICK[..] } else { &AT_ONCE };
        for at_once in at_once.iter().copied().map(Some).chain([None]) {
            let case = TransferMeasurement::Copy(most, Concurrency { at_once, ..Concurrency::USUAL });
            all.push(PlanEntry { cells: of_number(at_once, settings), how: Ok(case) });
        }
        all.extend(planted::plan(settings, TransferMeasurement::Planted));
        all.extend(sets::plan(settings, TransferMeasurement::Sets));
        all
    }

    fn questions(settings: &Settings) -> Vec<Question> {
        let mut whole = Question::new("1,000 files, against one", [&said::T0]).in_summary();
        let files = counts(settings);
        for rung in CopyStages::ALL {
            whole = whole.pair(rung.name(), name_of(rung, files[files.len() - 1]), name_of(rung, files[0]));
        }
        let mut all = vec![whole];
        all.extend(planted::questions(settings));
        all.extend(sets::questions(settings));
        all
    }

    fn measure(
        &mut self,
        case: &TransferMeasurement,
        settings: &Settings,
        known: &[Cell],
        found: &mut Results,
    ) -> Outcome {
        if let TransferMeasurement::Line(rung) = case {
            return line(*rung, settings, known, &mut found.cells);
        }
        if let TransferMeasurement::Planted(planted) = case {
            return planted::measure(*planted, &mut self.0, settings, known, found);
        }
        if let TransferMeasurement::Sets(Sets::Sizes(set, size)) = case {
            found.cells[0].push(sets::up_to(set, *size)?, &Validity::default());
            return Ok(());
        }
        if self.0.is_none() {
            self.0 = Some(TransferTestbed::start(settings)?);
        }
        let Some(testbed) = &mut self.0 else { return Err(Error::failed("there is nothing to copy to")) };
        let mut copies = |rung, files, how| {
            (0..settings.runs).try_for_each(|_| testbed.copy(rung, files, how, &mut *found))
        };
        match case {
            TransferMeasurement::Point(rung, files) => copies(*rung, *files, (ONE, MinLength::Any)),
            TransferMeasurement::Copy(files, tune) => {
                copies(CopyStages::Whole, *files, (*tune, MinLength::Enough))
            }
            TransferMeasurement::Sets(Sets::Whole(name)) => testbed.set(name, settings, found),
            TransferMeasurement::Sets(Sets::Stage(name, stage, tool)) => {
                testbed.stage((name, *stage, *tool), settings, found)
            }
            TransferMeasurement::Line(_) | TransferMeasurement::Planted(_) | TransferMeasurement::Sets(_) => {
                Ok(())
            }
        }
    }
}

fn counts(settings: &Settings) -> &'static [u32] {
    if settings.quick { &FILES_QUICK } else { &FILES }
}

/// Bytes of a copy: the published number times the scale, or more if a link would not be busy
/// for long enough.
fn bytes(settings: &Settings) -> f64 {
    let all = match (settings.targets.is_empty(), settings.quick) {
        (true, _) => BYTES.max(RATE / 8.0 * enough(settings).as_secs_f64() * MARGIN),
        (false, false) => BYTES,
        (false, true) => SET_QUICK as f64,
    };
    all * settings.scale
}

/// Shortest valid copy over the path. The round trip of a `--target` is known only once it is
/// measured.
fn enough(settings: &Settings) -> Duration {
    if settings.targets.is_empty() { WINDOW_MIN.max(RTT * ROUND_TRIPS_MIN) } else { WINDOW_MIN }
}

/// Bytes of one of `files` files.
fn size(files: u32, settings: &Settings) -> u64 {
    ((bytes(settings) / f64::from(files)) as u64).max(1)
}

fn name_of(rung: CopyStages, files: u32) -> String {
    format!("{}, {files} files", rung.name())
}

fn of_copy(rung: CopyStages, files: u32, settings: &Settings) -> Cell {
    let mut cell = Cell::new(name_of(rung, files), "s", Better::Lower);
    let number = Some(f64::from(files));
    let figure = "The same bytes in more and more files, one at a time";
    cell.place = Some(place(figure, rung.name(), &files.to_string(), number, "Files"));
    // On scaled links the bytes are scaled as well, and take as long. The cost of a file
    // depends on the path only.
    let alike = settings.targets.is_empty() || (!settings.quick && settings.scale == 1.0);
    if rung == CopyStages::Whole && alike {
        let more = bytes(settings) / (BYTES * settings.scale);
        let value = f64::from(files) * T0 + OF_BYTES * more;
        let more = if more == 1.0 { String::new() } else { format!(" and {more} times the bytes") };
        let of = format!("the line T = 0.0665 N + 16.5 s at N = {files}{more}");
        cell.published.push(said::T0.scaled(value / T0, &of));
    }
    cell
}

/// The cells of the cost per file and of the rate.
fn of_line(rung: CopyStages, settings: &Settings) -> Vec<Cell> {
    let [mut t0, mut rate] = line::cells(rung.name());
    t0.published.extend(rung.published().map(|statement| statement.scaled(1.0, "")));
    if rung == CopyStages::Whole {
        let (scale, scaled) = match settings.scale {
            scale if scale < 1.0 && settings.targets.is_empty() => {
                (scale, format!("times {scale}, as the links are"))
            }
            _ => (1.0, String::new()),
        };
        rate.published.push(said::R.scaled(scale, &scaled));
    }
    vec![t0, rate]
}

/// The cells of the time and of the processor time at this concurrency.
fn of_number(at_once: Option<u16>, settings: &Settings) -> Vec<Cell> {
    let x = at_once.map_or("as many as help".into(), |number| number.to_string());
    let mut time = Cell::new(format!("{x} at once: time"), "s", Better::Lower);
    time.place = Some(place("Files at the same time", "time", &x, None, "Readers, connections, writers"));
    let mut cpu = Cell::new(format!("{x} at once: processors"), "s", Better::Lower);
    let figure = match settings.targets.is_empty() {
        true => "Processor time of this machine: both ends, and the emulated link",
        false => "Processor time of this machine",
    };
    cpu.place = Some(place(figure, "processors", &x, None, "Readers, connections, writers"));
    cpu.cite([&said::CPU]);
    vec![time, cpu]
}

fn place(figure: &str, series: &str, x: &str, x_number: Option<f64>, x_label: &str) -> Place {
    Place { figure: figure.into(), series: series.into(), x: x.into(), x_number, x_label: x_label.into() }
}

/// Fits a line to each round of copies, so that t0 and R have a spread.
fn line(rung: CopyStages, settings: &Settings, known: &[Cell], cells: &mut [Cell]) -> Outcome {
    let times = |files: &u32| {
        let name = name_of(rung, *files);
        let cell = known.iter().find(|cell| cell.name == name);
        let samples = cell.map(|cell| cell.samples.as_slice()).unwrap_or_default();
        (*files, samples)
    };
    let mut copies: Vec<(u32, &[f64])> = counts(settings).iter().map(times).collect();
    // The cell of a number of files without a valid copy has the reason.
    copies.retain(|(_, samples)| !samples.is_empty());
    if copies.len() < POINTS_MIN {
        let why = format!("copies of {} numbers of files count, and a line takes {POINTS_MIN}", copies.len());
        super::void(cells, Code::NotAvailable, &why);
        return Ok(());
    }
    let rounds = copies.iter().map(|(_, samples)| samples.len()).min().unwrap_or_default();
    let (valid, mut of_bytes) = (Validity::default(), Validity::default());
    for round in 0..rounds {
        let of = |(files, samples): &(u32, &[f64])| {
            let bytes = (size(*files, settings) * u64::from(*files)) as f64;
            Copy { files: f64::from(*files), bytes, seconds: samples[round] }
        };
        let copies: Vec<Copy> = copies.iter().map(of).collect();
        let found = fit(&copies, Noise::Proportional).map_err(Error::failed)?;
        let [t0, rate] = cells else { return Err(Error::failed("a line is two numbers")) };
        t0.push(found.t0.value, &valid);
        rate.push(found.rate.value, &valid);
        if !found.rate.value.is_finite() {
            of_bytes = line::of_nothing();
        }
    }
    let shortest = copies.iter().flat_map(|(_, samples)| *samples).copied().fold(f64::INFINITY, f64::min);
    let enough = enough(settings).as_secs_f64();
    if rung.crosses(!settings.targets.is_empty()) && shortest < enough {
        let detail = format!(
            "the shortest of the copies took {shortest:.2} s, less than {enough} s: what it takes TCP to get \
             going is most of what the bytes cost"
        );
        of_bytes.mark(Code::TooShort, detail);
    }
    if let Some(rate) = cells.last_mut() {
        rate.validity = of_bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::tests::{assert_cited, settings};

    #[test]
    fn every_published_number_is_wanted_under_a_name_of_its_own() {
        for quick in [false, true] {
            let all = Transfer::plan(&settings(quick, &[]));
            assert_cited::<Transfer>(&settings(quick, &[]));
            let cells: Vec<&Cell> = all.iter().flat_map(|one| &one.cells).collect();
            let of = |name: &str| {
                let cell = cells.iter().find(|cell| cell.name == name).expect(name);
                cell.published.first().map(|published| published.value)
            };
            assert_eq!(of("read: a file"), Some(0.0340));
            assert_eq!(of("network: a file"), Some(0.0253));
            assert_eq!(of("write: a file"), Some(0.0101));
            assert_eq!(of("whole: a file"), Some(0.0665));
            let seconds = 66.5 + 16.5 * 3.125;
            assert!(of("whole, 1000 files").is_some_and(|found| (found - seconds).abs() < 1e-9));
            let mut names: Vec<&str> = cells.iter().map(|cell| cell.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), cells.len());
        }
    }

    #[test]
    fn the_line_goes_through_what_was_measured() {
        let settings = settings(true, &[]);
        let mut known = Vec::new();
        for files in FILES_QUICK {
            let mut cell = Cell::new(name_of(CopyStages::Whole, files), "s", Better::Lower);
            // The rounds have different costs per file.
            for t0 in [0.05, 0.06] {
                let bytes = (size(files, &settings) * u64::from(files)) as f64;
                cell.push(f64::from(files) * t0 + bytes / 1e8, &Validity::default());
            }
            known.push(cell);
        }
        let mut cells = of_line(CopyStages::Whole, &settings);
        line(CopyStages::Whole, &settings, &known, &mut cells).expect("a line");
        let is = |cell: &Cell, all: [f64; 2]| {
            cell.samples.iter().zip(all).all(|(found, planted)| (found / planted - 1.0).abs() < 1e-6)
        };
        assert!(is(&cells[0], [0.05, 0.06]) && is(&cells[1], [1e8, 1e8]), "{cells:?}");
        known.pop();
        let mut cells = of_line(CopyStages::Whole, &settings);
        line(CopyStages::Whole, &settings, &known, &mut cells).expect("one that does not count");
        assert!(is(&cells[0], [0.05, 0.06]), "{cells:?}");
        known.pop();
        let mut cells = of_line(CopyStages::Whole, &settings);
        line(CopyStages::Whole, &settings, &known, &mut cells).expect("none, for want of copies");
        let codes = cells.iter().flat_map(|cell| cell.validity.reasons.iter().map(|reason| reason.code));
        assert_eq!(codes.collect::<Vec<Code>>(), [Code::NotAvailable; 2]);
    }

    #[test]
    fn copies_keep_an_emulated_link_busy_for_long_enough() {
        for (quick, scale) in [(true, 0.005), (false, 0.02), (false, 1.0)] {
            let settings = Settings { scale, ..settings(quick, &[]) };
            for files in counts(&settings) {
                let bytes = size(*files, &settings) * u64::from(*files);
                let seconds = bytes as f64 * 8.0 / (RATE * scale);
                assert!(seconds > 1.2 && seconds >= 20.0 * RTT.as_secs_f64(), "{files}: {seconds} s");
            }
        }
        let named = settings(false, &["lh://dtn1/x"]);
        assert_eq!(bytes(&named), BYTES * 0.01, "as published");
    }

    #[test]
    fn a_rate_of_a_moment_does_not_count() {
        let settings = settings(true, &[]);
        let judged = |rung, seconds: f64| {
            let mut known = Vec::new();
            for (at, files) in FILES_QUICK.into_iter().enumerate() {
                let mut cell = Cell::new(name_of(rung, files), "s", Better::Lower);
                cell.push(seconds + 0.1 * at as f64, &Validity::default());
                known.push(cell);
            }
            let mut cells = of_line(rung, &settings);
            line(rung, &settings, &known, &mut cells).expect("a line");
            assert!(cells[0].validity.valid && cells[0].samples.len() == 1, "{cells:?}");
            cells.pop().expect("R").validity.reasons.first().map(|reason| reason.code)
        };
        assert_eq!(judged(CopyStages::Network, 0.5), Some(Code::TooShort));
        assert_eq!(judged(CopyStages::Network, 1.5), None);
        assert_eq!(judged(CopyStages::Read, 0.5), None, "within this machine nothing has to get going");
    }
}
