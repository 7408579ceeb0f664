//! What `bench` writes is what `report` reads: every name, with its meaning.

use longhaul_bench::host::Host;
use longhaul_bench::record::{
    Better, Cell, Code, Cpu, LeftOut, Pair, Place, Published, Question, Reason, Record, Run, SCHEMA,
    TcpSample, Validity,
};
use longhaul_bench::schema::{Output, Pairs};
use longhaul_report::{Document, read};
use std::path::Path;

fn written() -> Output {
    let reason = Reason { code: Code::TooShort, detail: "too short".into() };
    let void = Validity { valid: false, reasons: vec![reason.clone()] };
    let cell = Cell {
        name: "read bandwidth".into(),
        unit: "B/s".into(),
        better: Better::Lower,
        samples: vec![1.0, 2.5],
        left_out: vec![LeftOut { value: 9.0, reasons: vec![reason] }],
        validity: void.clone(),
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
    };
    let look = TcpSample {
        at_s: 1.5,
        stream: "1".into(),
        bytes: Some(7),
        rtt_us: 15.0,
        cwnd: 10,
        retransmissions: 3,
        ..TcpSample::default()
    };
    let cpu = Cpu { user_s: 1.0, system_s: 2.0, ..Cpu::default() };
    let of = "read bandwidth".into();
    let run =
        Run { of, seed: Some(7), started_ms: 1, seconds: 10.0, cpu, tcp: vec![look], validity: void.clone() };
    let record = Record {
        schema: SCHEMA,
        kind: "bench".into(),
        name: "a name".into(),
        program: "longhaul 0.1.0".into(),
        command: vec!["longhaul".into(), "bench".into()],
        seed: Some(7),
        conditions: Pairs(vec![("bs".into(), "4096".into())]),
        hosts: vec![Host {
            name: "dtn1".into(),
            kernel: "Linux 6.1".into(),
            processor: "Example".into(),
            processors: 2,
            virtual_machine: true,
            memory: 1 << 30,
            governor: Some("performance".into()),
            congestion: "bbr".into(),
            tcp_rmem: vec![1, 2, 3],
            tcp_wmem: vec![4, 5, 6],
            unread: vec!["x".into()],
            ..Host::default()
        }],
        runs: vec![run],
        shown_run: Some(0),
        cells: vec![cell],
        questions: vec![Question {
            title: "written, against read".into(),
            pairs: vec![Pair { label: "raw".into(), of: "w".into(), to: "r".into() }],
            found: "slower".into(),
            found_source: "a study, Fig. 3".into(),
        }],
        validity: void,
        // For scripts: a page goes by the validity.
        end: None,
    };
    Output { longhaul: Some(record), ..Output::default() }
}

#[test]
fn every_name_is_read() {
    let text = serde_json::to_string(&written()).expect("JSON");
    let found = Document::parse(Path::new("a.json"), text).expect("read").record;
    let reason = read::Reason { code: "too-short".into(), detail: "too short".into() };
    let void = read::Validity { valid: false, reasons: vec![reason.clone()] };
    let expected = read::Record {
        kind: "bench".into(),
        name: "a name".into(),
        program: "longhaul 0.1.0".into(),
        command: vec!["longhaul".into(), "bench".into()],
        seed: Some(7),
        conditions: [("bs".to_owned(), "4096".to_owned())].into(),
        hosts: vec![read::Host {
            name: "dtn1".into(),
            kernel: "Linux 6.1".into(),
            processor: "Example".into(),
            processors: 2,
            virtual_machine: true,
            memory: 1 << 30,
            governor: Some("performance".into()),
            congestion: "bbr".into(),
            tcp_rmem: vec![1, 2, 3],
            tcp_wmem: vec![4, 5, 6],
            unread: vec!["x".into()],
        }],
        runs: vec![read::Run {
            of: "read bandwidth".into(),
            seconds: 10.0,
            cpu: read::Cpu { user_s: 1.0, system_s: 2.0 },
            tcp: vec![read::TcpSample {
                at_s: 1.5,
                stream: "1".into(),
                bytes: Some(7),
                rtt_us: 15.0,
                cwnd: 10,
                retransmissions: 3,
            }],
            validity: void.clone(),
        }],
        cells: vec![read::Cell {
            name: "read bandwidth".into(),
            unit: "B/s".into(),
            better: read::Better::Lower,
            samples: vec![1.0, 2.5],
            left_out: vec![read::LeftOut { value: 9.0, reasons: vec![reason] }],
            validity: void.clone(),
            place: Some(read::Place {
                figure: "Figure".into(),
                series: "raw".into(),
                x: "10".into(),
                x_number: Some(10.0),
                x_label: "Files".into(),
            }),
            published: vec![read::Published { value: 3.0, source: "a study".into() }],
            found: "far slower".into(),
            found_source: "a study, Fig. 2".into(),
        }],
        questions: vec![read::Question {
            title: "written, against read".into(),
            pairs: vec![read::Pair { label: "raw".into(), of: "w".into(), to: "r".into() }],
            found: "slower".into(),
            found_source: "a study, Fig. 3".into(),
        }],
        validity: void,
    };
    assert_eq!(found, expected);
    assert_eq!(read::SCHEMA, u64::from(SCHEMA));
}

#[test]
fn fios_own_file_is_read() {
    let fio = include_str!("../../bench/tests/data/fio-3.33.json");
    let found = Document::parse(Path::new("fio.json"), fio.into()).expect("read").record;
    assert!(
        found.cells.iter().any(|cell| cell.name == "read bandwidth" && cell.samples[0] > 0.0),
        "{found:?}"
    );
    for (what, instead, code) in [
        ("\"error\" : 0", "\"error\" : 5", "failed"),
        ("\"runtime\" : 1001", "\"runtime\" : 999", "too-short"),
    ] {
        let void = fio.replace(what, instead);
        assert_ne!(void, fio);
        let found = Document::parse(Path::new("fio.json"), void).expect("read").record;
        let is_void = |cell: &read::Cell| cell.samples.is_empty() && cell.validity.reasons[0].code == code;
        assert!(!found.cells.is_empty() && found.cells.iter().all(is_void), "{code}: {found:?}");
    }
}
