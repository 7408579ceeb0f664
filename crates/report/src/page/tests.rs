use super::*;
use longhaul_results::record::{
    Cell, Code, LeftOut, Place, Published, Question, Reason, Record, Run, TcpSample, Validity,
};
use std::path::PathBuf;

fn cell(series: &str, x: &str, samples: &[f64]) -> Cell {
    let place = Place {
        figure: "Reading".into(),
        series: series.into(),
        x: x.into(),
        x_number: x.parse().ok(),
        x_label: "Files".into(),
    };
    Cell {
        name: format!("{series} {x}"),
        unit: "B/s".into(),
        samples: samples.to_vec(),
        place: Some(place),
        ..Cell::default()
    }
}

fn document(name: &str, cells: Vec<Cell>) -> Document {
    let host = Host {
        name: "dtn1".into(),
        kernel: "Linux 6.1".into(),
        memory: 1 << 34,
        processors: 2,
        ..Host::default()
    };
    let record = Record { name: name.into(), cells, hosts: vec![host], ..Record::default() };
    Document {
        path: PathBuf::from(format!("/somewhere/{name}.json")),
        record,
        text: "{\"a\": 1}".into(),
        time: "Mon Nov 23 07:00:00 2026".into(),
    }
}

fn sample() -> Document {
    let mut void = cell("XFS", "1000", &[]);
    void.left_out.push(LeftOut { value: 5e6, reasons: Vec::new() });
    let detail = "1.20 % of <segments> were retransmitted".to_owned();
    void.validity = Validity { valid: false, reasons: vec![Reason { code: Code::Retransmitting, detail }] };
    let mut beside = cell("raw", "1000", &[2e8, 2.1e8]);
    beside.published.push(Published { value: 1e8, source: "A study, 2021".into() });
    let mut missing = cell("RoCE", "1", &[]);
    missing.found = "abnormally <slow>".into();
    missing.validity = Validity::not(Code::NotAvailable, "no RoCE here");
    document(
        "wan",
        vec![cell("raw", "1", &[1e8, 1.1e8, 0.9e8]), cell("raw", "10", &[1.5e8]), beside, void, missing],
    )
}

#[test]
fn a_page_has_everything_and_needs_nothing() {
    let made = report("A <study>", &[sample()], Path::new("report.html"));
    let html = &made.html;
    for needle in [
        "<h1>A &lt;study&gt;</h1>",
        "<b>1 of 4 numbers do not count</b>",
        "Not measured, as this machine cannot: 1 numbers.",
        "Measured: wan Mon Nov 23 07:00:00 2026 on dtn1: Linux 6.1",
        "<h2>What was found</h2>",
        "<li><b>Reading, raw</b>: 2.05 (1.41–2.69) of what was published. <span class=\"small\">Published: A study, 2021.",
        "<a href=\"#figure-1\">Figure 1</a>",
        "1.20 % of &lt;segments&gt; were retransmitted",
        "not measured",
        "Published: A study, 2021.",
        ">2.05 (1.41–2.69)<",
        ">abnormally &lt;slow&gt;<",
        "class=\"dash",
        "95 % confidence",
        "does not count",
        "16 GiB of memory",
        "prefers-color-scheme: dark",
        "@media print",
    ] {
        assert!(html.contains(needle), "no {needle}");
    }
    // The namespace of SVG is a name, not an address that a browser loads.
    let order =
        ["What was found", "<figure>", "<table>", "Conditions of"].map(|what| html.find(what).expect(what));
    assert!(order.is_sorted(), "finding, figure, table, conditions: {order:?}");
    let html = html.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for outside in ["http:", "https:", "<script", "<link", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert_eq!(html.matches("<svg").count(), 2, "wide and narrow");
}

/// Numbers that only others have are written in a unit that fits them.
#[test]
fn what_was_published_alone_has_a_fitting_unit() {
    let mut missing = cell("InfiniBand", "1", &[]);
    missing.published.push(Published { value: 2.2e6, source: "A study, 2004".into() });
    let html = report("A study", &[document("striping", vec![missing])], Path::new("report.html")).html;
    assert!(
        html.contains("<td data-name=\"published\">2.10</td>") && html.contains("<th class=\"n\">MiB/s</th>"),
        "{html}"
    );
}

#[test]
fn what_does_not_count_is_in_the_table_of_all_numbers() {
    let table = csv(&[sample()]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 6);
    assert!(lines[1].starts_with("wan,raw 1,Reading,raw,1,Files,B/s,3,100000000,"), "{}", lines[1]);
    assert!(lines[3].contains("100000000,\"A study, 2021\",,true,"), "{}", lines[3]);
    assert!(lines[4].contains(",0,,,,,,5000000,,,,false,1.20 %"), "{}", lines[4]);
    assert!(lines[5].ends_with(",abnormally <slow>,false,no RoCE here"), "{}", lines[5]);
    let fields = lines[0].split(',').count();
    assert_eq!(lines[1].split(',').count(), fields);
}

#[test]
fn results_stand_beside_each_other() {
    let mut other = sample();
    other.path = PathBuf::from("after.json");
    let found = gather(&[sample(), other]);
    assert_eq!(found.len(), 1);
    let names: Vec<&str> = found[0].figure.series.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["raw · wan", "XFS · wan", "RoCE · wan", "raw · after", "XFS · after", "RoCE · after"]);
    // What only one of them has a figure of needs no name.
    let mut apart = sample();
    for place in apart.record.cells.iter_mut().filter_map(|cell| cell.place.as_mut()) {
        place.figure = "Another one".into();
    }
    let found = gather(&[sample(), apart]);
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|one| one.figure.series[0].name == "raw"), "{found:?}");
    // Without a place of their own, cells are put together by unit.
    let plain = |name: &str, unit: &str| Cell {
        name: name.into(),
        unit: unit.into(),
        samples: vec![1.0],
        ..Cell::default()
    };
    let found = gather(&[document(
        "a",
        vec![
            plain("read bandwidth", "B/s"),
            plain("read latency mean", "s"),
            plain("write bandwidth", "B/s"),
        ],
    )]);
    let titles: Vec<&str> = found.iter().map(|one| one.figure.title.as_str()).collect();
    assert_eq!(titles, ["Throughput", "Latency"]);
    assert_eq!(found[0].entries.len(), 2);
}

#[test]
fn time_goes_on_in_a_figure() {
    let look = |at_s: f64, stream: &str, bytes| TcpSample {
        at_s,
        stream: stream.into(),
        bytes: Some(bytes),
        rtt_us: 15_000.0,
        ..TcpSample::default()
    };
    let mut tcp = Vec::new();
    for second in 1..=4 {
        // Two connections, looked at a moment apart.
        tcp.push(look(f64::from(second), "1", 1_000_000));
        tcp.push(look(f64::from(second) + 0.001, "2", 500_000));
    }
    let mut one = document("net", Vec::new());
    one.record.runs.push(Run { tcp, ..Run::default() });
    let found = timelines(&[one]);
    assert_eq!(found.len(), 2);
    let values: Vec<f64> = found[0].series[0].points.iter().filter_map(|point| point.value).collect();
    assert_eq!(values, [12e6; 4]);
    assert_eq!(found[1].series[0].points[0].value, Some(0.015));
}

#[test]
fn files_have_the_figures_and_the_numbers() {
    let made = report("x", &[sample()], Path::new("report.html"));
    let names: Vec<&str> = made.files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["figure-1.svg", "results.csv"]);
    assert!(made.html.contains("download=\"wan.json\" href=\"data:application/json,%7B%22a%22%3A%201%7D\""));
}

#[test]
fn results_that_are_too_large_are_linked() {
    let mut large = sample();
    large.path = PathBuf::from("results/of today.json");
    large.text = "x".repeat(RAW_MAX + 1);
    let link = |page: &str| {
        let html = report("x", &[large.clone()], Path::new(page)).html;
        let (_, rest) = html.split_once("</a></li><li><a href=\"").expect("a link");
        rest.split_once("</a>").expect("its end").0.to_owned()
    };
    assert_eq!(link("report.html"), "results/of%20today.json\">of today.json");
    assert_eq!(link("results/report.html"), "of%20today.json\">of today.json");
    assert_eq!(link("pages/../pages/a/report.html"), "../../results/of%20today.json\">of today.json");
}

/// Runs of a study are shown with the figures of their measurements.
#[test]
fn time_goes_on_in_a_study() {
    let look = |second: u32| TcpSample {
        at_s: f64::from(second),
        stream: "1".into(),
        bytes: Some(1_000_000),
        ..TcpSample::default()
    };
    let run = |of: &str, valid| Run {
        of: of.into(),
        tcp: (1..=4).map(look).collect(),
        validity: Validity { valid, reasons: Vec::new() },
        ..Run::default()
    };
    let mut study = sample();
    study.record.runs = vec![run("raw 10", false), run("raw 1", true), run("raw 1", true)];
    let gathered = gather(std::slice::from_ref(&study));
    let figure = of_figure(&gathered[0], &[study.clone()]).expect("a figure");
    assert_eq!(figure.series.len(), 1, "one line for a series");
    assert_eq!(figure.series[0].name, "raw, 1", "that of a run that counts");
    assert!(timelines(&[study.clone()]).is_empty(), "they are of several numbers");
    assert!(report("x", &[study], Path::new("r.html")).html.contains("Reading: over time"));
}

#[test]
fn the_summary_stands_first_and_the_other_comparisons_behind_it() {
    let mut study = sample();
    let question = |title: &str| Question::new(title, None).pair("files", "raw 10", "raw 1");
    study.record.questions = vec![question("A side question"), question("The question").in_summary()];
    let html = report("A study", &[study.clone()], Path::new("report.html")).html;
    let at = |needle: &str| html.find(needle).unwrap_or_else(|| panic!("no '{needle}'"));
    assert!(at("What was found") < at("The question") && at("The question") < at("<details>"));
    assert!(at("<details>") < at("A side question"), "opened by the reader");
    study.record.questions[1].in_summary = false;
    let html = report("A study", &[study], Path::new("report.html")).html;
    assert!(!html.contains("<details>"), "without a summary all comparisons are shown");
}
