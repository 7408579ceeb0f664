//! One result beside another.

use longhaul_results::Document;
use longhaul_results::record::{Better, Cell};
use longhaul_results::stats::{Interval, Summary, ratio};

/// What a comparison says of a number.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The second is better.
    Better,
    /// The second is worse.
    Worse,
    /// They may be the same: the interval holds 1.
    Same,
    /// Nothing can be said: too few runs for an interval.
    Unknown,
    /// A sample is zero or less, of which there is no ratio.
    NoRatio,
    /// One of them does not count, and why.
    Void(String),
}

/// A number in both.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Name of the number, the same in both results.
    pub name: String,
    /// Unit of the means.
    pub unit: String,
    /// Which way is better.
    pub better: Better,
    /// The number in the first result.
    pub a: Summary,
    /// The number in the second result.
    pub b: Summary,
    /// The second over the first.
    pub ratio: Option<f64>,
    /// The same with its ends, where there are runs enough.
    pub interval: Option<Interval>,
    /// Better, worse, the same, or unknown, by the interval of the ratio.
    pub verdict: Verdict,
}

/// The comparison of two results, number by number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// What both have.
    pub cells: Vec<Compared>,
    /// What only the first has.
    pub only_a: Vec<String>,
    /// What only the second has.
    pub only_b: Vec<String>,
    /// In what else they differ: load, kernel, congestion control, …
    pub differences: Vec<String>,
}

/// Compares cells of the same name and unit.
pub fn compare(a: &Document, b: &Document) -> Comparison {
    let (ours, theirs) = (&a.record.cells, &b.record.cells);
    let same = |x: &Cell, y: &Cell| x.name == y.name && x.unit == y.unit;
    let only = |these: &[Cell], those: &[Cell]| -> Vec<String> {
        these.iter().filter(|x| !those.iter().any(|y| same(x, y))).map(|x| x.name.clone()).collect()
    };
    let pairs = ours.iter().filter_map(|x| Some((x, theirs.iter().find(|y| same(x, y))?)));
    Comparison {
        cells: pairs.map(|(x, y)| compared(x, y)).collect(),
        only_a: only(ours, theirs),
        only_b: only(theirs, ours),
        differences: differences(a, b),
    }
}

fn compared(a: &Cell, b: &Cell) -> Compared {
    let void: Vec<String> = [("the first", a), ("the second", b)]
        .into_iter()
        .filter(|(_, cell)| !cell.validity.valid || cell.samples.is_empty())
        .map(|(which, cell)| match cell.validity.words() {
            words if words.is_empty() => format!("{which} has no run that counts"),
            words => format!("{which}: {words}"),
        })
        .collect();
    let found = ratio(&a.samples, &b.samples);
    let interval = found.and_then(Result::ok);
    let value = found.map(|found| found.map_or_else(|value| value, |interval| interval.value));
    let verdict = match interval {
        _ if !void.is_empty() => Verdict::Void(void.join("; ")),
        None if found.is_none() && a.samples == b.samples => Verdict::Same,
        None if found.is_none() => Verdict::NoRatio,
        None => Verdict::Unknown,
        Some(interval) if interval.contains(1.0) => Verdict::Same,
        Some(interval) if (interval.value > 1.0) == (a.better == Better::Higher) => Verdict::Better,
        Some(_) => Verdict::Worse,
    };
    Compared {
        name: a.name.clone(),
        unit: a.unit.clone(),
        better: a.better,
        a: Summary::of(&a.samples),
        b: Summary::of(&b.samples),
        ratio: value,
        interval,
        verdict,
    }
}

/// Differences of the conditions, as far as both documents state them.
fn differences(a: &Document, b: &Document) -> Vec<String> {
    let mut found = Vec::new();
    let mut look = |what: &str, a: &str, b: &str| {
        if a != b && !a.is_empty() && !b.is_empty() {
            found.push(format!("{what}: {a} and {b}"));
        }
    };
    look("program", &a.record.program, &b.record.program);
    for (name, value) in a.record.conditions.by_name() {
        if let Some(other) = b.record.conditions.get(name) {
            look(name, value, other);
        }
    }
    for (x, y) in a.record.hosts.iter().zip(&b.record.hosts) {
        look("host", &x.name, &y.name);
        look("kernel", &x.kernel, &y.kernel);
        look("processor", &x.processor, &y.processor);
        look("congestion control", &x.congestion, &y.congestion);
        look("TCP receive buffers", &list(&x.tcp_rmem), &list(&y.tcp_rmem));
        look("TCP send buffers", &list(&x.tcp_wmem), &list(&y.tcp_wmem));
    }
    found
}

fn list(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_results::host::Host;
    use longhaul_results::record::{Code, Reason, Record, Validity};

    fn document(cells: Vec<Cell>) -> Document {
        Document { record: Record { cells, ..Record::default() }, ..Document::default() }
    }

    fn cell(name: &str, better: Better, samples: &[f64]) -> Cell {
        Cell { name: name.into(), unit: "x".into(), better, samples: samples.to_vec(), ..Cell::default() }
    }

    fn verdict(better: Better, a: &[f64], b: &[f64]) -> Verdict {
        let [a, b] = [a, b].map(|samples| document(vec![cell("n", better, samples)]));
        compare(&a, &b).cells[0].verdict.clone()
    }

    #[test]
    fn of_nothing_there_is_no_ratio() {
        assert_eq!(verdict(Better::Lower, &[0.0, 0.0], &[0.0, 0.0]), Verdict::Same);
        assert_eq!(verdict(Better::Lower, &[0.0, 0.0, 0.0], &[1.0, 2.0, 1.0]), Verdict::NoRatio);
        assert_eq!(verdict(Better::Lower, &[1.0], &[2.0]), Verdict::Unknown);
    }

    #[test]
    fn faster_is_better_and_longer_is_worse() {
        let (slow, fast) = (&[100.0, 101.0, 99.0][..], &[150.0, 151.0, 149.0][..]);
        assert_eq!(verdict(Better::Higher, slow, fast), Verdict::Better);
        assert_eq!(verdict(Better::Lower, slow, fast), Verdict::Worse);
        assert_eq!(verdict(Better::Higher, slow, &[100.5, 99.5, 102.0]), Verdict::Same);
        assert_eq!(verdict(Better::Higher, slow, &[150.0]), Verdict::Unknown);
        assert!(matches!(verdict(Better::Higher, slow, &[]), Verdict::Void(_)));
    }

    #[test]
    fn the_ratio_is_of_the_second_to_the_first() {
        let a = document(vec![cell("n", Better::Higher, &[100.0, 100.0, 100.0])]);
        let b = document(vec![cell("n", Better::Higher, &[119.0, 120.0, 121.0])]);
        let found = &compare(&a, &b).cells[0];
        assert!((found.ratio.expect("a ratio") - 1.2).abs() < 0.001);
        let interval = found.interval.expect("three runs");
        assert!(interval.low < 1.2 && 1.2 < interval.high && interval.low > 1.1, "{interval:?}");
    }

    #[test]
    fn what_does_not_count_is_said() {
        let mut bad = cell("n", Better::Higher, &[1.0, 9.0]);
        let detail = "the 2 runs deviate by 80 %".to_owned();
        bad.validity = Validity { valid: false, reasons: vec![Reason { code: Code::TooNoisy, detail }] };
        let good = cell("n", Better::Higher, &[5.0, 5.0]);
        let found = compare(&document(vec![good]), &document(vec![bad])).cells[0].verdict.clone();
        assert_eq!(found, Verdict::Void("the second: the 2 runs deviate by 80 %".into()));
    }

    #[test]
    fn what_is_in_one_only_and_what_differs_is_listed() {
        let mut a = document(vec![cell("x", Better::Higher, &[1.0]), cell("y", Better::Higher, &[1.0])]);
        let mut b = document(vec![cell("y", Better::Higher, &[1.0]), cell("z", Better::Higher, &[1.0])]);
        a.record.conditions.0.push(("iodepth".into(), "1".into()));
        b.record.conditions.0.push(("iodepth".into(), "32".into()));
        let host = |congestion: &str| Host { congestion: congestion.into(), ..Host::default() };
        a.record.hosts.push(host("cubic"));
        b.record.hosts.push(host("bbr"));
        let found = compare(&a, &b);
        assert_eq!((found.only_a, found.only_b), (vec!["x".to_owned()], vec!["z".to_owned()]));
        assert_eq!(found.differences, ["iodepth: 1 and 32", "congestion control: cubic and bbr"]);
    }
}
