//! What results say, in words: the first thing on a page.
//!
//! A finding is a sentence and, where it compares, the ratios behind it with their
//! intervals. Ratios are of what counts only. Nothing is said to differ where the
//! intervals do not show it.

use super::gather::{Entry, Gathered};
use crate::compare::{Verdict, compare};
use crate::figure::Scale;
use longhaul_results::Document;
use longhaul_results::record::{Better, Cell, Question};
use longhaul_results::stats::{Interval, ratio};

/// Numbers that are listed one by one where nothing is compared.
const PLAIN_MOST: usize = 8;
/// A ratio within this of 1 is no difference worth a word, however narrow its interval.
const ALIKE: f64 = 0.05;

/// A comparison, with its verdict in words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding {
    /// The quantity that is compared.
    pub title: String,
    /// The finding as a sentence.
    pub words: String,
    /// Published statements about it, with their source; empty without any.
    pub published: String,
    /// Ratios behind it.
    pub ratios: Vec<Ratio>,
    /// The figure that shows it, from 0.
    pub figure: Option<usize>,
    /// Whether it belongs to the summary.
    pub in_summary: bool,
}

/// A ratio between two results.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratio {
    /// What the ratio is of: a name of a cell, or a place on the axis.
    pub label: String,
    /// The ratio, and between which it is; without an interval its ends are `None`.
    pub value: Result<Interval, f64>,
}

impl Ratio {
    /// The ratio with its interval, as in `0.98 (0.95–1.01)`.
    pub fn words(&self) -> String {
        match self.value {
            Ok(Interval { value, low, high }) => format!("{} ({}–{})", times(value), times(low), times(high)),
            Err(value) => times(value),
        }
    }

    fn value(&self) -> f64 {
        self.value.map_or_else(|value| value, |interval| interval.value)
    }

    /// Whether the ratio is so near to 1 that a difference would not be worth a word.
    fn is_alike(&self) -> bool {
        (self.value() - 1.0).abs() <= ALIKE
    }

    /// Whether the interval shows a difference that is worth a word.
    fn differs(&self) -> bool {
        !self.is_alike() && self.value.is_ok_and(|interval| !interval.contains(1.0))
    }
}

/// A ratio with as many digits as it has.
fn times(ratio: f64) -> String {
    match ratio.abs() {
        v if v >= 99.5 => format!("{ratio:.0}"),
        v if v >= 9.95 => format!("{ratio:.1}"),
        v if v < 0.1 && v > 0.0 => format!("{ratio:.3}"),
        _ => format!("{ratio:.2}"),
    }
}

/// All findings, in the order of the figures that show them; comparisons of measurements come
/// before comparisons with published numbers.
pub fn findings(documents: &[Document], gathered: &[Gathered]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        let several = documents.iter().filter(|other| !other.record.questions.is_empty()).count() > 1;
        for question in &document.record.questions {
            let mut finding = answer(question, document);
            finding.figure = figure_of(question, index, gathered);
            if several && same_question(documents, question) {
                finding.title = format!("{} ({})", finding.title, document.label());
            }
            found.push(finding);
        }
    }
    for (at, one) in gathered.iter().enumerate() {
        found
            .extend(beside_published(one).into_iter().map(|finding| Finding { figure: Some(at), ..finding }));
    }
    found.extend(between(documents));
    if found.is_empty() {
        found.extend(plain(gathered));
    }
    found
}

fn same_question(documents: &[Document], question: &Question) -> bool {
    let has =
        |document: &&Document| document.record.questions.iter().any(|other| other.title == question.title);
    documents.iter().filter(has).count() > 1
}

/// The figure that has the first of the numbers that are compared.
fn figure_of(question: &Question, document: usize, gathered: &[Gathered]) -> Option<usize> {
    let name = &question.pairs.first()?.of;
    let is = |entry: &Entry| entry.document == document && entry.name == *name;
    gathered.iter().position(|one| one.entries.iter().any(is))
}

/// The cell of this name, if it counts.
fn counted<'a>(document: &'a Document, name: &str) -> Option<&'a Cell> {
    let cell = document.record.cells.iter().find(|cell| cell.name == name)?;
    (cell.validity.valid && !cell.samples.is_empty()).then_some(cell)
}

fn answer(question: &Question, document: &Document) -> Finding {
    let mut ratios = Vec::new();
    let mut better = Better::Higher;
    for pair in &question.pairs {
        let (Some(of), Some(to)) = (counted(document, &pair.of), counted(document, &pair.to)) else {
            continue;
        };
        better = of.better;
        ratios
            .extend(ratio(&to.samples, &of.samples).map(|value| Ratio { label: pair.label.clone(), value }));
    }
    let missing = question.pairs.len() - ratios.len();
    let mut words = range(&ratios, better);
    if missing > 0 {
        let all = question.pairs.len();
        words = match ratios.is_empty() {
            true => format!("none of the {all} comparisons counts"),
            false => format!("{words} ({missing} of {all} comparisons do not count)"),
        };
    }
    Finding {
        title: question.title.clone(),
        words,
        published: cited(&question.found, &question.found_source),
        ratios,
        figure: None,
        in_summary: question.in_summary,
    }
}

fn cited(found: &str, source: &str) -> String {
    match (found, source) {
        ("", _) => String::new(),
        (found, "") => found.to_owned(),
        (found, source) => format!("{found} ({source})"),
    }
}

/// Several ratios as words.
fn range(ratios: &[Ratio], better: Better) -> String {
    let of = match better {
        Better::Higher => "times as much",
        Better::Lower => "times as long",
    };
    let values = || ratios.iter().map(Ratio::value);
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let span = match ratios {
        [] => return "nothing to compare".into(),
        [one] => one.words(),
        _ => format!("{} to {}", times(least), times(most)),
    };
    // Two runs have so wide an interval that even a tenth of the time may be chance.
    match ratios {
        _ if ratios.iter().any(Ratio::differs) => format!("{span} {of}"),
        _ if ratios.iter().all(Ratio::is_alike) => format!("no difference shown: {span}"),
        _ => format!("{span} {of}, of too few runs to be certain"),
    }
}

/// Comparisons of one figure with published numbers: a finding for each series.
fn beside_published(one: &Gathered) -> Vec<Finding> {
    let mut found = Vec::new();
    for series in &one.figure.series {
        let entries = one.entries.iter().filter(|entry| entry.series == series.name);
        let known: Vec<(&Entry, Interval)> =
            entries.filter_map(|entry| Some((entry, entry.ratio()?))).collect();
        let Some(better) = known.first().map(|(entry, _)| entry.better) else { continue };
        let ratios: Vec<Ratio> = known
            .iter()
            .map(|(entry, value)| Ratio {
                label: format!("{} {}", one.figure.x_label, entry.x).trim().to_owned(),
                value: if value.low < value.high { Ok(*value) } else { Err(value.value) },
            })
            .collect();
        let values = || ratios.iter().map(Ratio::value);
        let (least, most) =
            (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        let what = if better == Better::Higher { "of what was published" } else { "of the published time" };
        // The sign of a time that cannot be distinguished from 0 means nothing.
        let words = match ratios.len() {
            _ if most <= 0.0 => format!("too little to be measured, {what}"),
            1 => format!("{} {what}", ratios[0].words()),
            _ => format!("{} to {} {what}", times(least.max(0.0)), times(most)),
        };
        let mut sources: Vec<&str> = known
            .iter()
            .flat_map(|(entry, _)| &entry.published)
            .map(|published| published.source.split("; ").next().unwrap_or_default())
            .collect();
        sources.dedup();
        let title = format!("{}, {}", one.figure.title, series.name);
        let published = sources.join("; ");
        found.push(Finding { title, words, published, ratios, ..Finding::default() });
    }
    found
}

/// What two results or more have in common: each against the first.
fn between(documents: &[Document]) -> Vec<Finding> {
    let [first, others @ ..] = documents else { return Vec::new() };
    let mut found = Vec::new();
    for other in others {
        let compared = compare(first, other);
        let counts = |verdict: &Verdict| !matches!(verdict, Verdict::Void(_) | Verdict::NoRatio);
        let ratios: Vec<(Ratio, &Verdict)> = compared
            .cells
            .iter()
            .filter(|cell| counts(&cell.verdict))
            .filter_map(|cell| {
                let value =
                    cell.interval.map_or_else(|| cell.ratio.map(Err), |interval| Some(Ok(interval)))?;
                Some((Ratio { label: cell.name.clone(), value }, &cell.verdict))
            })
            .collect();
        if ratios.is_empty() {
            continue;
        }
        let count = |verdict: &Verdict| ratios.iter().filter(|(_, found)| *found == verdict).count();
        let parts = [
            (count(&Verdict::Better), "better"),
            (count(&Verdict::Worse), "worse"),
            (count(&Verdict::Same), "not shown to differ"),
            (count(&Verdict::Unknown), "of too few runs to tell"),
        ];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        let words = parts.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ");
        found.push(Finding {
            title: format!("{} against {}", other.label(), first.label()),
            words: format!("of {} numbers, {words}", ratios.len()),
            ratios: ratios.into_iter().map(|(ratio, _)| ratio).collect(),
            ..Finding::default()
        });
    }
    found
}

/// The numbers themselves, where there is nothing to compare.
fn plain(gathered: &[Gathered]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, one) in gathered.iter().enumerate() {
        for entry in one.entries.iter().filter(|entry| entry.words.is_empty()) {
            let Some(mean) = entry.mean() else { continue };
            let scale = Scale::of(&one.figure.unit, mean);
            let ends = entry.summary.interval();
            let ends = ends.map(|i| format!(" ({}–{})", scale.number(i.low.max(0.0)), scale.number(i.high)));
            found.push(Finding {
                title: entry.name.clone(),
                words: format!("{}{}", scale.with_unit(mean), ends.unwrap_or_default()),
                figure: Some(at),
                ..Finding::default()
            });
        }
    }
    found.truncate(PLAIN_MOST);
    found
}

#[cfg(test)]
mod tests {
    use super::super::gather::gather;
    use super::*;
    use longhaul_results::record::{Pair, Place, Published, Record, Validity};

    fn cell(name: &str, samples: &[f64]) -> Cell {
        let place = Place { figure: "F".into(), series: "s".into(), x: name.into(), ..Place::default() };
        Cell {
            name: name.into(),
            unit: "B/s".into(),
            samples: samples.to_vec(),
            place: Some(place),
            ..Cell::default()
        }
    }

    fn document(name: &str, cells: Vec<Cell>, questions: Vec<Question>) -> Document {
        let record = Record { name: name.into(), cells, questions, ..Record::default() };
        Document { path: format!("{name}.json").into(), record, ..Document::default() }
    }

    fn found(documents: &[Document]) -> Vec<Finding> {
        findings(documents, &gather(documents))
    }

    fn question(pairs: &[(&str, &str)]) -> Question {
        let pair = |(of, to): &(&str, &str)| Pair { label: (*of).into(), of: (*of).into(), to: (*to).into() };
        Question {
            title: "Written, against read".into(),
            pairs: pairs.iter().map(pair).collect(),
            found: "slower".into(),
            found_source: "a study, Fig. 2".into(),
            in_summary: false,
        }
    }

    #[test]
    fn a_question_is_answered_by_ratios_of_what_counts() {
        let mut void = cell("v", &[1.0, 1.0, 1.0]);
        void.validity = Validity { valid: false, reasons: Vec::new() };
        let cells = vec![cell("r", &[100.0, 101.0, 99.0]), cell("w", &[50.0, 50.5, 49.5]), void];
        let of =
            |pairs: &[(&str, &str)]| found(&[document("a", cells.clone(), vec![question(pairs)])]).remove(0);
        let half = of(&[("w", "r")]);
        assert_eq!(half.words, "0.50 (0.49–0.51) times as much");
        assert_eq!((half.published.as_str(), half.figure), ("slower (a study, Fig. 2)", Some(0)));
        assert!(of(&[("r", "r")]).words.starts_with("no difference shown"), "{:?}", of(&[("r", "r")]));
        let some = of(&[("w", "r"), ("v", "r"), ("no such", "r")]);
        assert_eq!(some.words, "0.50 (0.49–0.51) times as much (2 of 3 comparisons do not count)");
        assert_eq!(of(&[("v", "r")]).words, "none of the 1 comparisons counts");
    }

    #[test]
    fn what_two_runs_cannot_show_is_called_uncertain() {
        let cells =
            vec![cell("one", &[100.0, 101.0]), cell("ahead", &[40.0, 25.0]), cell("same", &[99.0, 101.0])];
        let of =
            |pairs: &[(&str, &str)]| found(&[document("a", cells.clone(), vec![question(pairs)])]).remove(0);
        let words = of(&[("ahead", "one")]).words;
        assert!(
            words.starts_with("0.3") && words.ends_with("times as much, of too few runs to be certain"),
            "{words}"
        );
        assert!(of(&[("same", "one")]).words.starts_with("no difference shown: "));
        assert!(of(&[("same", "one"), ("ahead", "one")]).words.ends_with("certain"));
    }

    #[test]
    fn published_numbers_are_what_ours_are_measured_by() {
        let mut one = cell("1", &[200.0, 202.0, 198.0]);
        one.published.push(Published { value: 100.0, source: "A study, Fig. 3; times 0.5".into() });
        let mut other = cell("2", &[300.0, 303.0, 297.0]);
        other.published = one.published.clone();
        let all = found(&[document("a", vec![one.clone(), other], Vec::new())]);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].words, "2.00 to 3.00 of what was published");
        assert_eq!(all[0].published, "A study, Fig. 3");
        one.better = Better::Lower;
        one.samples = vec![-0.1, 0.0, 0.05];
        let all = found(&[document("a", vec![one], Vec::new())]);
        assert_eq!(all[0].words, "too little to be measured, of the published time");
    }

    #[test]
    fn two_results_are_compared() {
        let of = |name: &str, value: f64| {
            document(
                name,
                vec![cell("x", &[value, value * 1.01, value * 0.99]), cell("y", &[5.0, 5.1, 4.9])],
                Vec::new(),
            )
        };
        let all = found(&[of("before", 100.0), of("after", 150.0)]);
        assert_eq!(all[0].title, "after against before");
        assert_eq!(all[0].words, "of 2 numbers, 1 better, 1 not shown to differ");
        assert!(all[0].ratios[0].words().starts_with("1.50 ("), "{:?}", all[0].ratios);
    }

    #[test]
    fn numbers_stand_for_themselves_where_nothing_is_compared() {
        let all =
            found(&[document("a", vec![cell("read bandwidth", &[1_048_576.0, 1_048_576.0])], Vec::new())]);
        assert_eq!(all[0].title, "read bandwidth");
        assert_eq!(all[0].words, "1 MiB/s (1–1)");
    }
}
