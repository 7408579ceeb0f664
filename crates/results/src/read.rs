//! Reads results from files.
//!
//! The layout is that of [`record`](crate::record), or fio's own. A field that the file does not have
//! is empty, one that this program does not know is passed over, and another version of the layout is
//! refused.

use crate::record::{Better, Cell, Code, LeftOut, Reason, Record, SCHEMA, Validity};
use serde::Deserialize;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};

/// A larger file is not a result.
const SIZE_MAX: u64 = 1 << 30;

/// Why a file is no result. Every one names the file.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// It ends in the middle.
    #[error(
        "{path} is cut off in line {line}: the program that wrote it did not come to its end; measure again"
    )]
    CutOff {
        /// Path of the file.
        path: PathBuf,
        /// Its last line.
        line: usize,
    },
    /// It is something else.
    #[error("{path} is not JSON (line {line}, column {column}: {what})")]
    NotJson {
        /// Path of the file.
        path: PathBuf,
        /// Line of the error, from 1.
        line: usize,
        /// Where in it.
        column: usize,
        /// Why it is wrong.
        what: String,
    },
    /// It is JSON, of something else.
    #[error("{path} has no results: neither a \"longhaul\" part nor fio's \"jobs\"")]
    NotResults {
        /// Path of the file.
        path: PathBuf,
    },
    /// Names have another meaning there.
    #[error("{path} has results of schema {found}, and this program reads schema {SCHEMA}{}", written_by(.program))]
    Schema {
        /// Path of the file.
        path: PathBuf,
        /// Version that the file states.
        found: String,
        /// The program that has written it.
        program: String,
    },
    /// It names this schema, and does not conform to it.
    #[error("{path} is not as schema {SCHEMA} says: {what}")]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// How it does not conform.
        what: String,
    },
}

fn written_by(program: &str) -> String {
    match program {
        "" => ": measure again".into(),
        program => format!(": use {program}, which wrote it, or measure again"),
    }
}

/// A result that was read, of this program or of fio.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// Where it was read from.
    pub path: PathBuf,
    /// The record beyond fio's layout.
    pub record: Record,
    /// When it was written, in words; empty if it does not say.
    pub time: String,
    /// The file as it is.
    pub text: String,
}

/// The part of a file that is this program's own.
#[derive(Deserialize)]
struct Ours {
    longhaul: Record,
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

    /// Parses the text of a file.
    ///
    /// # Errors
    /// Those of [`load`](Self::load).
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
        if ours["schema"].as_u64() != Some(SCHEMA.into()) {
            let found = match &ours["schema"] {
                Value::Null => "none".into(),
                found => found.to_string(),
            };
            let program = ours["program"].as_str().unwrap_or_default().to_owned();
            return Err(ReadError::Schema { path, found, program });
        }
        // From the text again: a `Value` does not keep the order of names.
        match serde_json::from_str(&text) {
            Ok(Ours { longhaul: record }) => Ok(Document { path, record, time, text }),
            Err(e) => Err(ReadError::Malformed { path, what: e.to_string() }),
        }
    }

    /// Its name in tables and legends.
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
        reasons.push(Reason { code: Code::Failed, detail });
    }
    let longest = jobs.iter().filter_map(|job| job[way]["runtime"].as_f64()).reduce(f64::max);
    if let Some(ms) = longest.filter(|ms| *ms < 1000.0) {
        let detail = format!("fio moved data for {ms} ms, less than a second");
        reasons.push(Reason { code: Code::TooShort, detail });
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
