//! Results, as they are in files.
//!
//! The layout is `longhaul_bench::record`'s, and fio's own. What a reader does
//! not find is empty, and what it does not know is passed over; another
//! version of the layout is refused.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The version of the layout that is read.
pub const SCHEMA: u64 = 1;

/// A larger file is not a result.
const SIZE_MAX: u64 = 1 << 30;

/// Why a file is no result. Every one names the file.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It ends in the middle.
    #[error(
        "{path} is cut off in line {line}: the program that wrote it did not come to its end; measure again"
    )]
    CutOff {
        /// The file.
        path: PathBuf,
        /// Its last line.
        line: usize,
    },
    /// It is something else.
    #[error("{path} is not JSON (line {line}, column {column}: {what})")]
    NotJson {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// Where in it.
        column: usize,
        /// What is wrong there.
        what: String,
    },
    /// It is JSON, of something else.
    #[error("{path} has no results: neither a \"longhaul\" part nor fio's \"jobs\"")]
    NotResults {
        /// The file.
        path: PathBuf,
    },
    /// Names have another meaning there.
    #[error("{path} has results of schema {found}, and this program reads schema {SCHEMA}{}", written_by(.program))]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: String,
        /// Who has written it.
        program: String,
    },
    /// It says that it is ours, and is not like it.
    #[error("{path} is not as schema {SCHEMA} says: {what}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

fn written_by(program: &str) -> String {
    match program {
        "" => ": measure again".into(),
        program => format!(": use {program}, which wrote it, or measure again"),
    }
}

/// A result.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// Where it was read from.
    pub path: PathBuf,
    /// What it says.
    pub record: Record,
    /// When it was written, in words; empty if it does not say.
    pub time: String,
    /// The file as it is.
    pub text: String,
}

/// What was measured, and where.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Record {
    /// What was done.
    pub kind: String,
    /// What people call it.
    pub name: String,
    /// The program and its version.
    pub program: String,
    /// The command line.
    pub command: Vec<String>,
    /// What decided order and content.
    pub seed: Option<u64>,
    /// What the numbers depend on.
    pub conditions: Conditions,
    /// The machines.
    pub hosts: Vec<Host>,
    /// The runs.
    pub runs: Vec<Run>,
    /// What was measured.
    pub cells: Vec<Cell>,
    /// Which of the cells a question compares.
    pub questions: Vec<Question>,
    /// Whether the whole is what it seems.
    pub validity: Validity,
}

/// Names and values, by name.
pub type Conditions = BTreeMap<String, String>;

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Kernel and version.
    pub kernel: String,
    /// Model of the processor.
    pub processor: String,
    /// Processors.
    pub processors: u32,
    /// It is a guest.
    pub virtual_machine: bool,
    /// Bytes of memory.
    pub memory: u64,
    /// How the clock rate is chosen.
    pub governor: Option<String>,
    /// Congestion control by default.
    pub congestion: String,
    /// Receive buffers of TCP.
    pub tcp_rmem: Vec<u64>,
    /// Send buffers.
    pub tcp_wmem: Vec<u64>,
    /// What could not be read.
    pub unread: Vec<String>,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Run {
    /// What it measured, in a document of several measurements.
    pub of: String,
    /// Seconds that it took.
    pub seconds: f64,
    /// Processor time.
    pub cpu: Cpu,
    /// Connections as time went on.
    pub tcp: Vec<TcpSample>,
    /// Whether it counts.
    pub validity: Validity,
}

/// Seconds of processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// In the program.
    pub user_s: f64,
    /// In the kernel.
    pub system_s: f64,
}

/// A connection at a moment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TcpSample {
    /// Seconds since the run began.
    pub at_s: f64,
    /// Which one.
    pub stream: String,
    /// Bytes that arrived since the sample before.
    pub bytes: Option<u64>,
    /// Smoothed round trip in microseconds.
    pub rtt_us: f64,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Segments sent again so far.
    pub retransmissions: u64,
}

/// Whether a number is what it seems.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct Validity {
    /// It is.
    pub valid: bool,
    /// Why not.
    pub reasons: Vec<Reason>,
}

impl Default for Validity {
    fn default() -> Validity {
        Validity { valid: true, reasons: Vec::new() }
    }
}

impl Validity {
    /// The reasons as one text: the first of each kind, and how many more there
    /// are, such as one of each run.
    pub fn words(&self) -> String {
        let mut kinds: Vec<(&Reason, usize)> = Vec::new();
        for reason in &self.reasons {
            match kinds.iter_mut().find(|(first, _)| first.code == reason.code) {
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
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Reason {
    /// For programs.
    pub code: String,
    /// For people.
    pub detail: String,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// As a rate.
    #[default]
    Higher,
    /// As a time.
    Lower,
}

/// One number, measured several times.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Cell {
    /// Its name, unique in the document.
    pub name: String,
    /// Unit.
    pub unit: String,
    /// Which way is better.
    pub better: Better,
    /// A value of each run that counts.
    pub samples: Vec<f64>,
    /// Values that do not.
    pub left_out: Vec<LeftOut>,
    /// Whether the samples are what they seem.
    pub validity: Validity,
    /// Its position in a figure.
    pub place: Option<Place>,
    /// What was published for it.
    pub published: Vec<Published>,
    /// What was published of it in words.
    pub found: String,
    /// Where that stands.
    pub found_source: String,
}

/// A value that does not count.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LeftOut {
    /// The value.
    pub value: f64,
    /// Why.
    pub reasons: Vec<Reason>,
}

/// A place in a figure.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Place {
    /// Which figure.
    pub figure: String,
    /// Which line, or colour of bars.
    pub series: String,
    /// Where along the axis.
    pub x: String,
    /// The same as a number.
    pub x_number: Option<f64>,
    /// What the axis is.
    pub x_label: String,
}

/// A question that ratios between cells answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Question {
    /// What is compared with what.
    pub title: String,
    /// The pairs of cells.
    pub pairs: Vec<Pair>,
    /// What was published of it.
    pub found: String,
    /// Where that stands.
    pub found_source: String,
}

/// Two cells of one unit: the ratio is that of `of` to `to`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pair {
    /// What tells this pair from the others.
    pub label: String,
    /// Name of the cell that is compared.
    pub of: String,
    /// Name of the cell that it is compared with.
    pub to: String,
}

/// A published number.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Published {
    /// In the unit of the cell.
    pub value: f64,
    /// Where.
    pub source: String,
}

impl Document {
    /// Reads a file.
    ///
    /// # Errors
    /// It is not there, or is no result: in words that say what to do.
    pub fn load(path: &Path) -> Result<Document, ReadError> {
        let io = |source| ReadError::Io { path: path.to_owned(), source };
        let size = std::fs::metadata(path).map_err(io)?.len();
        if size > SIZE_MAX {
            return Err(io(io::Error::other(format!("{size} bytes are no result"))));
        }
        Document::parse(path, decode(path, std::fs::read(path).map_err(io)?)?)
    }

    /// Reads what was in a file.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn parse(path: &Path, text: String) -> Result<Document, ReadError> {
        let path = path.to_owned();
        let value: Value = match serde_json::from_str(&text) {
            Ok(value) => value,
            Err(e) if e.is_eof() => return Err(ReadError::CutOff { path, line: e.line() }),
            Err(e) => {
                let (line, column) = (e.line(), e.column());
                let what = e.to_string();
                let what = what.split(" at line").next().unwrap_or_default().to_owned();
                return Err(ReadError::NotJson { path, line, column, what });
            }
        };
        let time = value["time"].as_str().unwrap_or_default().to_owned();
        let Some(ours) = value.get("longhaul") else {
            let Some(record) = from_fio(&value) else { return Err(ReadError::NotResults { path }) };
            return Ok(Document { path, record, time, text });
        };
        if ours["schema"].as_u64() != Some(SCHEMA) {
            let found = match &ours["schema"] {
                Value::Null => "none".into(),
                found => found.to_string(),
            };
            let program = ours["program"].as_str().unwrap_or_default().to_owned();
            return Err(ReadError::Schema { path, found, program });
        }
        match Record::deserialize(ours) {
            Ok(record) => Ok(Document { path, record, time, text }),
            Err(e) => Err(ReadError::Malformed { path, what: e.to_string() }),
        }
    }

    /// What it is called in tables and legends.
    pub fn label(&self) -> String {
        let stem = self.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        stem.unwrap_or_else(|| self.record.name.clone())
    }
}

/// The text of a file. One that ends within a character was cut off there.
fn decode(path: &Path, bytes: Vec<u8>) -> Result<String, ReadError> {
    let e = match String::from_utf8(bytes) {
        Ok(text) => return Ok(text),
        Err(e) => e,
    };
    let (path, before) = (path.to_owned(), &e.as_bytes()[..e.utf8_error().valid_up_to()]);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    if e.utf8_error().error_len().is_none() {
        return Err(ReadError::CutOff { path, line });
    }
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
    Err(ReadError::NotJson { path, line, column, what: "this is not UTF-8".into() })
}

/// Whether what fio's jobs moved one way counts.
fn of_fio(jobs: &[Value], way: &str) -> Validity {
    let mut reasons = Vec::new();
    if let Some(job) = jobs.iter().find(|job| job["error"].as_i64().is_some_and(|code| code != 0)) {
        let detail = format!("a job of fio ended with error {}: {}", job["error"], job["jobname"]);
        reasons.push(Reason { code: "failed".into(), detail });
    }
    let longest = jobs.iter().filter_map(|job| job[way]["runtime"].as_f64()).reduce(f64::max);
    if let Some(ms) = longest.filter(|ms| *ms < 1000.0) {
        let detail = format!("fio moved data for {ms} ms, less than a second");
        reasons.push(Reason { code: "too-short".into(), detail });
    }
    Validity { valid: reasons.is_empty(), reasons }
}

/// A result of fio itself: what its jobs did, together, in one run.
fn from_fio(value: &Value) -> Option<Record> {
    let jobs = value.get("jobs")?.as_array()?;
    let program = value.get("fio version")?.as_str()?.to_owned();
    let mut cells = Vec::new();
    for way in ["read", "write", "trim"] {
        let sum = |name: &str| jobs.iter().filter_map(|job| job[way][name].as_f64()).sum::<f64>();
        let ios = sum("total_ios");
        if ios == 0.0 {
            continue;
        }
        // Means of the jobs count by how many I/Os they are of.
        let mean = |field: &dyn Fn(&Value) -> Option<f64>| {
            let weighted =
                jobs.iter().filter_map(|job| Some(field(&job[way])? * job[way]["total_ios"].as_f64()?));
            weighted.sum::<f64>() / ios / 1e9
        };
        let validity = of_fio(jobs, way);
        let cell = |what: &str, unit: &str, better, value| {
            let (samples, left_out) = match validity.valid {
                true => (vec![value], Vec::new()),
                false => (Vec::new(), vec![LeftOut { value, reasons: validity.reasons.clone() }]),
            };
            let (name, unit, validity) = (format!("{way} {what}"), unit.into(), validity.clone());
            Cell { name, unit, better, samples, left_out, validity, ..Cell::default() }
        };
        cells.push(cell("bandwidth", "B/s", Better::Higher, sum("bw_bytes")));
        cells.push(cell("IOPS", "IOPS", Better::Higher, sum("iops")));
        let latency = mean(&|job| job["lat_ns"]["mean"].as_f64());
        cells.push(cell("latency mean", "s", Better::Lower, latency));
        if let [job] = &jobs[..]
            && let Some(p99) = job[way]["clat_ns"]["percentile"]["99.000000"].as_f64()
        {
            cells.push(cell("latency p99", "s", Better::Lower, p99 / 1e9));
        }
    }
    let name = jobs.first().and_then(|job| job["jobname"].as_str()).unwrap_or_default().to_owned();
    Some(Record { kind: "bench".into(), name, program, cells, ..Record::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Document, ReadError> {
        Document::parse(Path::new("a.json"), text.into())
    }

    fn words(text: &str) -> String {
        parse(text).expect_err("no result").to_string()
    }

    #[test]
    fn what_is_wrong_is_said_clearly() {
        let whole = r#"{"longhaul": {"schema": 1, "name": "x"}}"#;
        assert_eq!(parse(whole).expect("a result").record.name, "x");
        for cut in 1..whole.len() {
            let said = words(&whole[..cut]);
            assert!(said.starts_with("a.json is cut off in line 1"), "{cut}: {said}");
        }
        assert!(words("").contains("cut off"));
        assert!(words("hello").contains("a.json is not JSON (line 1, column 1"), "{}", words("hello"));
        assert!(words("[1, 2]").contains("has no results"));
        assert!(words(r#"{"jobs": 3}"#).contains("has no results"));
        let later = words(r#"{"longhaul": {"schema": 2, "program": "longhaul 9.1.0"}}"#);
        assert!(later.contains("schema 2, and this program reads schema 1: use longhaul 9.1.0"), "{later}");
        assert!(words(r#"{"longhaul": {}}"#).contains("schema none"));
        let wrong = words(r#"{"longhaul": {"schema": 1, "cells": 7}}"#);
        assert!(wrong.contains("not as schema 1 says"), "{wrong}");
        let missing = Document::load(Path::new("/nonexistent/a.json")).expect_err("not there").to_string();
        assert!(missing.starts_with("cannot read /nonexistent/a.json: "), "{missing}");
    }

    #[test]
    fn a_file_may_be_cut_within_a_character() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("a.json");
        let whole = "{\"longhaul\": {\"schema\": 1,\n\"name\": \"dé–🜁\"}}".as_bytes();
        for cut in 1..whole.len() {
            std::fs::write(&path, &whole[..cut]).expect("written");
            let said = Document::load(&path).expect_err("no result").to_string();
            let line = if cut > 26 { 2 } else { 1 };
            assert!(said.contains(&format!("is cut off in line {line}")), "{cut}: {said}");
        }
        std::fs::write(&path, b"{\n\"a\xff\": 1}").expect("written");
        let said = Document::load(&path).expect_err("no result").to_string();
        assert!(said.contains("is not JSON (line 2, column 3: this is not UTF-8)"), "{said}");
    }

    #[test]
    fn fios_own_results_are_results() {
        let text = r#"{"fio version": "fio-3.33", "jobs": [
            {"jobname": "a", "read": {"total_ios": 10, "bw_bytes": 100, "iops": 5.0, "lat_ns": {"mean": 2e6}}},
            {"jobname": "b", "read": {"total_ios": 30, "bw_bytes": 300, "iops": 15.0, "lat_ns": {"mean": 6e6}}}]}"#;
        let record = parse(text).expect("a result").record;
        let value = |name: &str| record.cells.iter().find(|cell| cell.name == name).expect(name).samples[0];
        assert_eq!((value("read bandwidth"), value("read IOPS")), (400.0, 20.0));
        assert!((value("read latency mean") - 0.005).abs() < 1e-12);
        assert_eq!((record.program.as_str(), record.cells.len()), ("fio-3.33", 3));
    }
}
