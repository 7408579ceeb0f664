//! Connections as time went on: throughput and round trip of each run.

use crate::figure::{Figure, Point, Series};
use crate::read::{Document, Run};
use std::collections::BTreeMap;

/// Runs that are shown: more lines than this cannot be told apart.
const RUNS: usize = 5;

/// A figure of throughput and one of the round trip for each result whose runs
/// looked at their connections. Runs of a study are of many things, of which its
/// figures say more.
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

fn figure(
    document: &Document,
    title: &str,
    unit: &str,
    values: impl Fn(&Run) -> Vec<(f64, f64)>,
) -> Option<Figure> {
    let mut series = Vec::new();
    for (number, run) in (1..).zip(&document.record.runs).take(RUNS) {
        let found = values(run);
        if found.len() < 3 {
            continue;
        }
        let point = |(at, value): (f64, f64)| Point {
            x: format!("{at}"),
            x_number: Some(at),
            value: Some(value),
            ..Point::default()
        };
        let points = found.into_iter().map(point).collect();
        series.push(Series { name: format!("run {number}"), points });
    }
    (!series.is_empty()).then(|| Figure {
        title: title.into(),
        x_label: "Seconds since the run began".into(),
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
