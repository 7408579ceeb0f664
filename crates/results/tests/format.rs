//! The format of results: documents are read back unchanged, and files of version 1 are read as
//! before.

use longhaul_results::host::Host;
use longhaul_results::record::{
    Better, Cell, Code, Cpu, End, LeftOut, Pair, Place, Published, Question, Reason, Record, Run, SCHEMA,
    TcpSample, Validity, save,
};
use longhaul_results::schema::{self, Advice, Direction, Job, Latency, Output, Pairs, Sync, Verify};
use longhaul_results::{Document, ReadError};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A result with every field of the format, none of them empty or 0. Every field is named here: one
/// that is added to the format has to be added, with a new golden file.
fn whole() -> Output {
    Output {
        version: "longhaul-0.1.0".into(),
        timestamp: 1_790_000_000,
        timestamp_ms: 1_790_000_000_123,
        time: "Mon Sep 21 13:33:20 2026".into(),
        global_options: pair("ioengine", "longhaul".into()),
        jobs: vec![job()],
        disk_util: vec![Value::from("sda")],
        paths: vec![schema::Path {
            device: "nvme+tcp://dtn1/data".into(),
            round_trip_us: 15_000.5,
            connections: 4,
            disconnects: 1,
            sentence: "15 ms, 4 connections".into(),
        }],
        longhaul: Some(record()),
    }
}

fn pair<T>(name: &str, value: T) -> Pairs<T> {
    Pairs(vec![(name.into(), value)])
}

fn latency(mean: f64) -> Latency {
    Latency { min: 1, max: 9, mean, stddev: 2.5, n: 3, percentile: pair("99.000000", 9) }
}

fn direction(first: u64) -> Direction {
    Direction {
        io_bytes: first << 10,
        io_kbytes: first,
        bw_bytes: first << 10,
        bw: first,
        iops: 0.25,
        runtime: 1001,
        total_ios: 4,
        short_ios: 1,
        drop_ios: 2,
        slat_ns: latency(3.5),
        clat_ns: latency(4.5),
        lat_ns: latency(5.5),
        bw_min: 1,
        bw_max: 2,
        bw_agg: 99.5,
        bw_mean: 1.5,
        bw_dev: 0.5,
        bw_samples: 2,
        iops_min: 3,
        iops_max: 5,
        iops_mean: 4.5,
        iops_stddev: 1.5,
        iops_samples: 2,
    }
}

fn job() -> Job {
    Job {
        jobname: "a job".into(),
        groupid: 1,
        error: 5,
        eta: 1,
        elapsed: 11,
        job_options: pair("bs", "4096".into()),
        read: direction(8),
        write: direction(16),
        trim: direction(32),
        sync: Sync { total_ios: 7, lat_ns: latency(6.5) },
        job_runtime: 1000,
        usr_cpu: 12.5,
        sys_cpu: 25.5,
        ctx: 17,
        majf: 1,
        minf: 2,
        iodepth_level: pair("1", 100.0),
        iodepth_submit: pair("4", 99.5),
        iodepth_complete: pair("8", 98.5),
        latency_ns: pair("2", 10.5),
        latency_us: pair("4", 20.5),
        latency_ms: pair(">=2000", 69.5),
        latency_depth: 32,
        latency_target: 1,
        latency_percentile: 100.0,
        latency_window: 1,
        verify: Some(Verify {
            checked_blocks: 9,
            faults: pair("wrong_address", 1),
            first: vec!["block 3 is block 4".into()],
        }),
        advice: Some(Advice {
            read: 1 << 20,
            write: 2 << 20,
            io_size: 65_536,
            read_ahead: 4 << 20,
            commands: 64,
        }),
    }
}

fn record() -> Record {
    let too_short = Reason { code: Code::TooShort, detail: "0.5 s are too short".into() };
    Record {
        schema: SCHEMA,
        kind: "study".into(),
        name: "a name".into(),
        program: "longhaul 0.1.0".into(),
        command: vec!["longhaul".into(), "study".into()],
        seed: Some(7),
        // Not in the order of their names: a record keeps the order.
        conditions: Pairs(vec![("rate".into(), "1 Gb/s".into()), ("bs".into(), "4096".into())]),
        hosts: vec![host()],
        runs: vec![Run {
            of: "read bandwidth".into(),
            seed: Some(8),
            started_ms: 1_790_000_000_000,
            seconds: 10.5,
            cpu: Cpu { user_s: 1.5, system_s: 2.5, others_s: Some(0.5), stolen_s: Some(0.25) },
            tcp: vec![sample()],
            validity: Validity { valid: false, reasons: vec![too_short.clone()] },
        }],
        shown_run: Some(1),
        cells: vec![Cell {
            name: "read bandwidth".into(),
            unit: "B/s".into(),
            better: Better::Lower,
            samples: vec![1.0, 2.5],
            left_out: vec![LeftOut { value: 9.0, reasons: vec![too_short] }],
            validity: every_reason(),
            place: Some(Place {
                figure: "Figure".into(),
                series: "raw".into(),
                x: "10".into(),
                x_number: Some(10.0),
                x_label: "Files".into(),
            }),
            published: vec![Published { value: 3.0, source: "a study".into() }],
            found: "far slower".into(),
            found_source: "a study, Fig. 2".into(),
        }],
        questions: vec![Question {
            title: "written, against read".into(),
            pairs: vec![Pair { label: "raw".into(), of: "w".into(), to: "r".into() }],
            found: "slower".into(),
            found_source: "a study, Fig. 3".into(),
            in_summary: false,
        }],
        validity: every_reason(),
        end: Some(End { exit: 5, message: "2 blocks had wrong content".into() }),
    }
}

fn every_reason() -> Validity {
    let codes = [
        Code::TooShort,
        Code::TooNoisy,
        Code::Retransmitting,
        Code::LateLink,
        Code::Failed,
        Code::Stopped,
        Code::ClockJumped,
        Code::Stolen,
        Code::NotAvailable,
        Code::Other,
    ];
    let reasons = codes.into_iter().map(|code| Reason { code, detail: format!("{code:?}") });
    Validity { valid: false, reasons: reasons.collect() }
}

fn host() -> Host {
    Host {
        name: "dtn1".into(),
        kernel: "Linux 6.1".into(),
        machine: "x86_64".into(),
        processor: "Example 9".into(),
        processors: 2,
        virtual_machine: true,
        memory: 1 << 30,
        governor: Some("performance".into()),
        load_average: 0.25,
        congestion: "bbr".into(),
        congestion_available: vec!["bbr".into(), "cubic".into()],
        qdisc: "fq".into(),
        tcp_rmem: vec![1, 2, 3],
        tcp_wmem: vec![4, 5, 6],
        rmem_max: 7,
        wmem_max: 8,
        mtu_probing: 1,
        huge_pages: "madvise".into(),
        unread: vec!["/proc/net/snmp: not there".into()],
    }
}

fn sample() -> TcpSample {
    TcpSample {
        at_s: 1.5,
        stream: "1".into(),
        bytes: Some(7),
        rtt_us: 15.5,
        min_rtt_us: Some(14.5),
        cwnd: 10,
        in_flight: 11,
        retransmissions: 3,
        delivery_rate: Some(12),
        not_sent: Some(13),
        send_window: Some(14),
        busy_us: Some(15),
        peer_window_limited_us: Some(16),
        send_buffer_limited_us: Some(17),
    }
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Names of the values that are empty, 0 or not there: a reader that passes them over is not noticed.
fn unset(path: &str, value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().flat_map(|(name, value)| unset(&format!("{path}/{name}"), value)).collect()
        }
        Value::Array(values) if !values.is_empty() => {
            values.iter().flat_map(|value| unset(path, value)).collect()
        }
        Value::Bool(_) => Vec::new(),
        Value::Number(number) if number.as_f64() != Some(0.0) => Vec::new(),
        Value::String(text) if !text.is_empty() => Vec::new(),
        _ => vec![path.into()],
    }
}

#[test]
fn what_is_written_is_read_back_whole() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("a.json");
    save(&path, &whole()).expect("written");
    let found = Document::load(&path).expect("a result");
    assert_eq!((&found.record, &found.time, &found.path), (&record(), &whole().time, &path));
    assert_eq!(serde_json::from_str::<Output>(&found.text).expect("the layout"), whole());
    let value = serde_json::to_value(whole()).expect("JSON");
    assert_eq!(unset("", &value), [""; 0]);
}

/// The golden file is of version 1, as it was first released. It is never rewritten: where this fails,
/// either the change breaks results that people have, or it needs another [`SCHEMA`].
#[test]
fn version_1_is_written_and_read_as_it_was() {
    let golden = data("v1.json");
    let found = Document::load(&golden).expect("a result");
    assert_eq!(found.record, record());
    assert_eq!(serde_json::from_str::<Output>(&found.text).expect("the layout"), whole());
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("v1.json");
    save(&path, &whole()).expect("written");
    let written = std::fs::read_to_string(path).expect("read");
    // Readers of the file may go by the order of names.
    assert!(written == found.text, "{written}");
}

/// A file with less than this version writes, and with more, is read.
#[test]
fn missing_fields_are_empty_and_unknown_ones_passed_over() {
    let text = r#"{"longhaul": {"schema": 1, "cells": [{"name": "x", "colour": 3,
        "validity": {"valid": false, "reasons": [{"detail": "because"}, {"code": "eclipse", "detail": "dark"}]}}]}}"#;
    let found = Document::parse(Path::new("a.json"), text.into()).expect("a result").record;
    let code = Code::Other;
    let reasons = ["because", "dark"].map(|detail| Reason { code, detail: detail.into() }).to_vec();
    let cell = Cell { name: "x".into(), validity: Validity { valid: false, reasons }, ..Cell::default() };
    assert_eq!(found, Record { schema: SCHEMA, cells: vec![cell], ..Record::default() });
}

#[test]
fn another_version_is_refused() {
    let later = serde_json::to_string(&whole()).expect("JSON").replace("\"schema\":1,", "\"schema\":2,");
    let refused = Document::parse(Path::new("a.json"), later);
    assert!(matches!(refused, Err(ReadError::Schema { ref found, .. }) if found == "2"), "{refused:?}");
}

#[test]
fn fios_own_file_is_read() {
    let fio = include_str!("data/fio-3.33.json");
    let found = Document::parse(Path::new("fio.json"), fio.into()).expect("read").record;
    assert!(
        found.cells.iter().any(|cell| cell.name == "read bandwidth" && cell.samples[0] > 0.0),
        "{found:?}"
    );
    for (what, instead, code) in [
        ("\"error\" : 0", "\"error\" : 5", Code::Failed),
        ("\"runtime\" : 1001", "\"runtime\" : 999", Code::TooShort),
    ] {
        let void = fio.replace(what, instead);
        assert_ne!(void, fio);
        let found = Document::parse(Path::new("fio.json"), void).expect("read").record;
        let is_void = |cell: &Cell| cell.samples.is_empty() && cell.validity.reasons[0].code == code;
        assert!(!found.cells.is_empty() && found.cells.iter().all(is_void), "{code:?}: {found:?}");
    }
}
