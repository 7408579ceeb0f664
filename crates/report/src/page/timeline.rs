//! Connections over time: throughput and round trip of each run.

use super::gather::Gathered;
use crate::figure::{Figure, Point, Series};
use longhaul_results::Document;
use longhaul_results::record::Run;
use std::collections::BTreeMap;

/// Runs that are shown: more lines than this cannot be distinguished.
const RUNS: usize = 5;
/// Looks at the connections that make a line.
const LOOKS: usize = 3;
const X_LABEL: &str = "Seconds since the run began";

/// A figure of throughput and one of the round trip for each result whose runs
/// looked at their connections. Runs of a study are of many things: they stand with the
/// figures of those ([`of_figure`]).
pub fn timelines(documents: &[Document]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let is_one = |document: &&Document| document.record.runs.iter().all(|run| run.of.is_empty());
    for document in documents.iter().filter(is_one) {
        let label = document.label();
        figures.extend(figure(document, &format!("Throughput of {label}"), "bit/s", throughput));
        figures.extend(figure(document, &format!("Round trip of {label}"), "s", round_trip));
    }
    figures
}

/// Throughput of a run of each series of a figure: the first that counts, of the last
/// number of the series whose runs looked at their connections.
pub fn of_figure(one: &Gathered, documents: &[Document]) -> Option<Figure> {
    let mut series = Vec::new();
    for known in &one.figure.series {
        let entries = one.entries.iter().rev().filter(|entry| entry.series == known.name);
        let found = entries.flat_map(|entry| {
            let runs = documents.get(entry.document).map(|document| document.record.runs.as_slice());
            let is_mine = |run: &&Run| run.of == entry.name && !run.of.is_empty() && run.validity.valid;
            let run = runs.unwrap_or_default().iter().find(is_mine);
            run.map(|run| (throughput(run), &entry.x)).filter(|(values, _)| values.len() >= LOOKS)
        });
        if let Some((values, x)) = { found }.next() {
            let of = if x.is_empty() { String::new() } else { format!(", {x}") };
            series.push(Series { name: format!("{}{of}", known.name), points: points(values) });
        }
    }
    series.truncate(RUNS);
    (!series.is_empty()).then(|| Figure {
        title: format!("{}: over time", one.figure.title),
        x_label: X_LABEL.into(),
        unit: "bit/s".into(),
        series,
    })
}

fn points(values: Vec<(f64, f64)>) -> Vec<Point> {
    let point = |(at, value): (f64, f64)| Point {
        x: format!("{at}"),
        x_number: Some(at),
        value: Some(value),
        ..Point::default()
    };
    values.into_iter().map(point).collect()
}

fn figure(
    document: &Document,
    title: &str,
    unit: &str,
    values: impl Fn(&Run) -> Vec<(f64, f64)>,
) -> Option<Figure> {
    let mut series = Vec::new();
    for (number, run) in (1..).zip(&document.record.runs).take(RUNS) {
        let found = values(run);
        if found.len() < LOOKS {
            continue;
        }
        series.push(Series { name: format!("run {number}"), points: points(found) });
    }
    (!series.is_empty()).then(|| Figure {
        title: title.into(),
        x_label: X_LABEL.into(),
        unit: unit.into(),
        series,
    })
}

/// What arrived on all connections together, between two looks.
fn throughput(run: &Run) -> Vec<(f64, f64)> {
    let mut bytes: BTreeMap<u64, u64> = BTreeMap::new();
    for sample in &run.tcp {
        if let Some(n) = sample.bytes {
            *bytes.entry(millis(sample.at_s)).or_default() += n;
        }
    }
    let mut before = 0;
    let mut found = Vec::new();
    for (at, bytes) in bytes {
        let seconds = at.saturating_sub(before) as f64 / 1e3;
        before = at;
        if seconds > 0.0 {
            found.push((at as f64 / 1e3, bytes as f64 * 8.0 / seconds));
        }
    }
    found
}

/// The mean of the connections.
fn round_trip(run: &Run) -> Vec<(f64, f64)> {
    let mut sums: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for sample in run.tcp.iter().filter(|sample| sample.rtt_us > 0.0) {
        let (sum, count) = sums.entry(millis(sample.at_s)).or_default();
        *sum += sample.rtt_us / 1e6;
        *count += 1.0;
    }
    sums.into_iter().map(|(at, (sum, count))| (at as f64 / 1e3, sum / count)).collect()
}

/// Looks at several connections happen in the same hundredth of a second.
fn millis(seconds: f64) -> u64 {
    (seconds * 100.0).round().max(0.0) as u64 * 10
}
