//! The part of this program's results beyond fio's layout: conditions, repetitions and validity of
//! a measurement.
//!
//! Every benchmark, transfer and study writes one document: fio's layout
//! ([`crate::schema::Output`]), with a [`Record`] under `"longhaul"`. Its [`Cell`]s are compared
//! and plotted.
//!
//! Invariants:
//! - an invalid value is never among the samples of a cell: it is kept beside them, with the
//!   reasons;
//! - a cell that is marked valid has a sample, and its samples agree;
//! - a field that a program writes keeps its meaning and unit within one version ([`SCHEMA`]); a
//!   reader takes a missing field for empty.

use crate::host::Host;
use crate::published::Statement;
use crate::schema::{Output, Pairs};
use crate::stats::Summary;
use longhaul_engine::state_file;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Version of the layout: another number means that the same name has another
/// meaning.
pub const SCHEMA: u32 = 1;

/// Share of the mean by which samples may deviate (one standard deviation).
/// Beyond it not even the mean of five runs is known to a fifth.
pub const NOISE_MAX: f64 = 0.15;

/// Unit of counts of rare events.
pub const EVENTS: &str = "events";

/// Share of segments sent twice above which TCP was held back by losses: an
/// iperf3 stream that fills a clean link stays a decade below.
pub const RETRANSMITTED_MAX: f64 = 0.001;

/// Windows shorter than this say more of the start than of the rest.
pub const WINDOW_MIN: Duration = Duration::from_secs(1);

/// And a window has so many round trips at least.
pub const ROUND_TRIPS_MIN: u32 = 20;

/// Share of a round trip by which an emulated link may be late (99 % of all
/// packets) before its results are not those of that link: long paths that are
/// real vary by as much. (`wan` warns of less.)
pub const LATE_MAX: f64 = 0.05;

/// The document's own part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Version of this format, [`SCHEMA`].
    pub schema: u32,
    /// The kind of measurement: `bench`, `netbench`, `transfer`, `diagnose` or `study`.
    pub kind: String,
    /// What people call it.
    pub name: String,
    /// The program and its version.
    pub program: String,
    /// The command line.
    pub command: Vec<String>,
    /// What decided order and content.
    pub seed: Option<u64>,
    /// What the numbers depend on, in words: the link, the scale, the load.
    pub conditions: Pairs<String>,
    /// The machines; the first one has written this.
    pub hosts: Vec<Host>,
    /// The runs, in order.
    pub runs: Vec<Run>,
    /// The run that fio's part of the document shows: the median one.
    pub shown_run: Option<usize>,
    /// The quantities measured.
    pub cells: Vec<Cell>,
    /// Comparisons of cells, with the published statements about them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<Question>,
    /// Whether the whole document counts.
    pub validity: Validity,
    /// How the program ended, where that is known when this is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
}

/// How the program ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    /// Its exit status.
    pub exit: u8,
    /// Its message; empty if all is done.
    pub message: String,
}

/// One run of a measurement, whether it counts or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// In a document of several measurements: the name of the first cell with the numbers of this
    /// run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub of: String,
    /// What decided order and content, in a document of several measurements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Milliseconds since 1970 at its start.
    pub started_ms: u64,
    /// Seconds that it took, by the clock that never jumps.
    pub seconds: f64,
    /// Processor time of the run: this process, all others, and a hypervisor.
    pub cpu: Cpu,
    /// Samples of the connections over time.
    pub tcp: Vec<TcpSample>,
    /// Whether it counts.
    pub validity: Validity,
}

/// Seconds of processor time in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Of this process, in the program.
    pub user_s: f64,
    /// Of this process, in the kernel.
    pub system_s: f64,
    /// Of everything else on the machine, where the kernel says.
    pub others_s: Option<f64>,
    /// That a hypervisor took away, where the kernel says.
    pub stolen_s: Option<f64>,
}

/// A connection, or several as one, at a moment: what `TCP_INFO` has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpSample {
    /// Seconds since the run began.
    pub at_s: f64,
    /// Which connection, or which device.
    pub stream: String,
    /// Bytes that arrived since the sample before, where that is known.
    pub bytes: Option<u64>,
    /// Smoothed round trip in microseconds.
    pub rtt_us: f64,
    /// The least one.
    pub min_rtt_us: Option<f64>,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Bytes sent and not acknowledged.
    pub in_flight: u64,
    /// Segments retransmitted since the connection began.
    pub retransmissions: u64,
    /// Bytes per second that were acknowledged of late.
    pub delivery_rate: Option<u64>,
    /// Bytes in the send buffer that were never sent.
    pub not_sent: Option<u64>,
    /// Bytes that the peer allows.
    pub send_window: Option<u64>,
    /// Microseconds with something to send, since the connection began.
    pub busy_us: Option<u64>,
    /// Of that, with the peer's window full.
    pub peer_window_limited_us: Option<u64>,
    /// Of that, with this end's send buffer full.
    pub send_buffer_limited_us: Option<u64>,
}

/// Whether a number counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Validity {
    /// The number counts.
    pub valid: bool,
    /// Why it does not; empty if it counts.
    pub reasons: Vec<Reason>,
}

impl Default for Validity {
    fn default() -> Validity {
        Validity { valid: true, reasons: Vec::new() }
    }
}

impl Validity {
    /// Not valid, for a reason.
    pub fn mark(&mut self, code: Code, detail: impl Into<String>) {
        self.valid = false;
        self.reasons.push(Reason { code, detail: detail.into() });
    }

    /// Not valid for one reason.
    pub fn not(code: Code, detail: impl Into<String>) -> Validity {
        let mut validity = Validity::default();
        validity.mark(code, detail);
        validity
    }

    /// The reasons as one text: the first of each code, and how many more there
    /// are, such as one of each run.
    pub fn words(&self) -> String {
        let mut kinds: Vec<(&Reason, usize)> = Vec::new();
        for reason in &self.reasons {
            // Codes that this version does not know may differ.
            let is_same = |first: &Reason| first.code == reason.code && first.code != Code::Other;
            match kinds.iter_mut().find(|(first, _)| is_same(first)) {
                Some((_, more)) => *more += 1,
                None => kinds.push((reason, 0)),
            }
        }
        let words = kinds.into_iter().map(|(first, more)| match more {
            0 => first.detail.clone(),
            more => format!("{} (and {more} more like it)", first.detail),
        });
        words.collect::<Vec<_>>().join("; ")
    }
}

/// Why a number does not count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reason {
    /// The kind of reason, for programs.
    pub code: Code,
    /// For people, in a sentence with the numbers.
    pub detail: String,
}

/// The kinds of reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The window was too short for the path or for itself.
    TooShort,
    /// The standard deviation of the samples is too large for their mean.
    TooNoisy,
    /// TCP retransmitted too many segments.
    Retransmitting,
    /// The emulated link delivered packets late, or dropped some itself.
    LateLink,
    /// I/O failed, or content was wrong.
    Failed,
    /// It was ended before its time.
    Stopped,
    /// The clock of the day was set meanwhile.
    ClockJumped,
    /// The hypervisor gave the processors to others.
    Stolen,
    /// It cannot be measured here.
    NotAvailable,
    /// A code of a later version of this program.
    #[default]
    #[serde(other)]
    Other,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// As a rate.
    #[default]
    Higher,
    /// As a time.
    Lower,
}

/// One number that was measured, several times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
    /// Its name, unique in the document: it is compared with the cell of the same name in another
    /// document.
    pub name: String,
    /// Unit of the samples: `B/s`, `IOPS`, `s`, `s/GiB`, …
    pub unit: String,
    /// Which way is better.
    pub better: Better,
    /// A value of each run that counts.
    pub samples: Vec<f64>,
    /// Values that do not count.
    pub left_out: Vec<LeftOut>,
    /// Whether the samples together count.
    pub validity: Validity,
    /// Its position in a figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// Published numbers for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
    /// Published statements about it in words, where there is no number.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub found: String,
    /// Where that stands: document, and section, figure or table.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub found_source: String,
}

/// A value that does not count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftOut {
    /// The value, in the unit of its cell.
    pub value: f64,
    /// Why it does not.
    pub reasons: Vec<Reason>,
}

/// A place in a figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// Heading of the figure.
    pub figure: String,
    /// Name of the series in the legend.
    pub series: String,
    /// Where along the axis: a name, or a number that [`Place::x_number`] has.
    pub x: String,
    /// The number, if the axis is one of numbers.
    pub x_number: Option<f64>,
    /// What the axis is.
    pub x_label: String,
}

/// A question that ratios between cells answer, such as whether writes are slower than
/// reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Question {
    /// The comparison: `1,000 files written, against 10`.
    pub title: String,
    /// The pairs of cells.
    pub pairs: Vec<Pair>,
    /// The published statements about it, in words.
    pub found: String,
    /// Where that stands.
    pub found_source: String,
    /// Whether its answer belongs to the summary of the study. A report has the others behind it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub in_summary: bool,
}

/// Two cells of one unit: the ratio is that of `of` to `to`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pair {
    /// Distinguishes this pair from the others: a device, a number of files.
    pub label: String,
    /// Name of the cell that is compared.
    pub of: String,
    /// Name of the cell that it is compared with.
    pub to: String,
}

impl Question {
    /// A question without pairs; `said` are the published statements about it.
    pub fn new<'a>(title: impl Into<String>, said: impl IntoIterator<Item = &'a Statement>) -> Question {
        let mut cell = Cell::default();
        cell.cite(said);
        let Cell { found, found_source, .. } = cell;
        Question { title: title.into(), found, found_source, ..Question::default() }
    }

    /// As one whose answer belongs to the summary.
    #[must_use]
    pub fn in_summary(mut self) -> Question {
        self.in_summary = true;
        self
    }

    /// With one pair more.
    #[must_use]
    pub fn pair(
        mut self,
        label: impl Into<String>,
        of: impl Into<String>,
        to: impl Into<String>,
    ) -> Question {
        self.pairs.push(Pair { label: label.into(), of: of.into(), to: to.into() });
        self
    }
}

/// A published number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Published {
    /// In the unit of the cell.
    pub value: f64,
    /// Publication, and section, figure or table in it.
    pub source: String,
}

impl Cell {
    /// Nothing measured yet.
    pub fn new(name: impl Into<String>, unit: impl Into<String>, better: Better) -> Cell {
        Cell { name: name.into(), unit: unit.into(), better, ..Cell::default() }
    }

    /// Sets the published statements about it; without any, leaves it unchanged.
    pub fn cite<'a>(&mut self, statements: impl IntoIterator<Item = &'a Statement>) {
        for statement in statements {
            let add = |to: &mut String, text: &str| {
                if !to.is_empty() {
                    to.push_str("; ");
                }
                to.push_str(text);
            };
            add(&mut self.found, statement.what);
            let source = statement.source();
            if !self.found_source.split("; ").any(|there| there == source) {
                add(&mut self.found_source, &source);
            }
        }
    }

    /// Adds what a run measured.
    pub fn push(&mut self, value: f64, run: &Validity) {
        if !value.is_finite() {
            // JSON has no such number, and nothing was measured.
            return;
        }
        if run.valid {
            self.samples.push(value);
        } else {
            self.left_out.push(LeftOut { value, reasons: run.reasons.clone() });
        }
    }

    /// Judges whether the samples agree, once all are there. A cell that is already marked invalid
    /// stays so.
    pub fn judge(&mut self) {
        if !self.validity.valid {
            return;
        }
        if self.samples.is_empty() {
            self.validity.valid = false;
            self.validity.reasons = self.left_out.iter().flat_map(|run| run.reasons.clone()).collect();
            self.validity.reasons.dedup();
            return;
        }
        let all = Summary::of(&self.samples);
        let noise = all.deviation / all.mean.abs();
        // Of rare events a few more or fewer are no noise of the measurement.
        if noise > NOISE_MAX && self.unit != EVENTS {
            let (percent, most, runs) = (noise * 100.0, NOISE_MAX * 100.0, all.n);
            self.validity.mark(
                Code::TooNoisy,
                format!("the {runs} runs deviate by {percent:.0} % of their mean, more than {most:.0} %"),
            );
        }
    }
}

/// The run that stands for all: the one in the middle, of those that count if any
/// does. Each is its rate, and whether it counts.
pub fn middle(runs: impl IntoIterator<Item = (f64, bool)>) -> Option<usize> {
    let runs: Vec<(f64, bool)> = runs.into_iter().collect();
    let any = runs.iter().any(|(_, counts)| *counts);
    let mut order: Vec<usize> = (0..runs.len()).filter(|at| runs[*at].1 || !any).collect();
    order.sort_by(|a, b| runs[*a].0.total_cmp(&runs[*b].0));
    order.get(order.len().saturating_sub(1) / 2).copied()
}

impl Record {
    /// One of this program, on this machine, with nothing measured yet.
    pub fn new(kind: &str, name: impl Into<String>) -> Record {
        Record {
            schema: SCHEMA,
            kind: kind.into(),
            name: name.into(),
            program: concat!("longhaul ", env!("CARGO_PKG_VERSION")).into(),
            command: std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect(),
            hosts: vec![Host::here()],
            ..Record::default()
        }
    }

    /// Judges the cells, and the whole by them: it is valid if something is.
    pub fn judge(&mut self) {
        self.cells.iter_mut().for_each(Cell::judge);
        let bad = self.cells.iter().filter(|cell| !cell.validity.valid);
        let reasons = bad.flat_map(|cell| cell.validity.reasons.clone());
        let reasons: Vec<Reason> = reasons.fold(Vec::new(), |mut all, reason| {
            if !all.contains(&reason) {
                all.push(reason);
            }
            all
        });
        let some = self.cells.iter().any(|cell| cell.validity.valid);
        self.validity = Validity { valid: some, reasons };
    }
}

/// Writes a document atomically, so that no reader sees half of one.
///
/// # Errors
/// Of the file system; a file that was there before is as it was.
pub fn save(path: &Path, document: &Output) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(document)?;
    text.push(b'\n');
    state_file::replace(path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(samples: &[f64]) -> Cell {
        let mut cell = Cell::new("x", "B/s", Better::Higher);
        samples.iter().for_each(|value| cell.push(*value, &Validity::default()));
        cell
    }

    #[test]
    fn samples_that_disagree_are_marked() {
        let mut good = cell(&[100.0, 104.0, 97.0]);
        good.judge();
        assert!(good.validity.valid && good.validity.reasons.is_empty());
        let mut bad = cell(&[100.0, 160.0, 60.0]);
        bad.judge();
        assert!(!bad.validity.valid && bad.validity.reasons[0].code == Code::TooNoisy);
        assert!(bad.validity.reasons[0].detail.contains("3 runs"), "{:?}", bad.validity);
    }

    #[test]
    fn rare_events_differ_from_run_to_run() {
        let mut losses = Cell::new("retransmissions", EVENTS, Better::Lower);
        [0.0, 7.0, 1.0].into_iter().for_each(|value| losses.push(value, &Validity::default()));
        losses.judge();
        assert!(losses.validity.valid, "{losses:?}");
    }

    #[test]
    fn bad_runs_are_never_averaged() {
        let mut one = cell(&[100.0]);
        one.push(7.0, &Validity::not(Code::Failed, "I/O failed"));
        one.push(f64::NAN, &Validity::default());
        one.judge();
        assert_eq!((one.samples.as_slice(), one.left_out[0].value), (&[100.0][..], 7.0));
        assert!(one.validity.valid);
        // With nothing else there is no number.
        let mut none = cell(&[]);
        none.push(7.0, &Validity::not(Code::Failed, "I/O failed"));
        none.judge();
        assert!(!none.validity.valid && none.validity.reasons[0].code == Code::Failed);
        let mut record = Record { cells: vec![one, none], ..Record::default() };
        record.judge();
        assert!(record.validity.valid && record.validity.reasons.len() == 1);
        record.cells.remove(0);
        record.judge();
        assert!(!record.validity.valid);
    }

    #[test]
    fn reasons_have_names_and_unknown_ones_are_read() {
        let text = serde_json::to_string(&Validity::not(Code::LateLink, "late")).expect("JSON");
        assert_eq!(text, r#"{"valid":false,"reasons":[{"code":"late-link","detail":"late"}]}"#);
        let read: Reason = serde_json::from_str(r#"{"code":"moonlight","detail":"x"}"#).expect("read");
        assert_eq!(read.code, Code::Other);
    }

    /// A reason that many runs share is listed once; codes that this version does not know each stand
    /// for themselves.
    #[test]
    fn reasons_of_a_kind_are_counted() {
        let reason = |code, detail: &str| Reason { code, detail: detail.into() };
        let late =
            [reason(Code::LateLink, "1 ms"), reason(Code::Failed, "I/O"), reason(Code::LateLink, "2 ms")];
        let later = [reason(Code::Other, "a new moon"), reason(Code::Other, "a full moon")];
        let validity = Validity { valid: false, reasons: [&late[..], &later].concat() };
        assert_eq!(validity.words(), "1 ms (and 1 more like it); I/O; a new moon; a full moon");
    }

    #[test]
    fn a_document_is_written_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("a.json");
        let mut record = Record::new("bench", "a");
        record.cells.push(cell(&[1.0, 2.0]));
        let document = Output { longhaul: Some(record), ..Output::default() };
        save(&path, &document).expect("written");
        let text = std::fs::read_to_string(&path).expect("read");
        assert_eq!(serde_json::from_str::<Output>(&text).expect("JSON"), document);
        assert!(save(&dir.path().join("no/such.json"), &document).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 1, "nothing is left beside");
    }
}
