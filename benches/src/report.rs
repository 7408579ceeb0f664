//! Samples in, tables out.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The measurements of one number, by round.
#[derive(Clone, Debug)]
pub(crate) struct Samples(pub(crate) Vec<f64>);

impl Samples {
    /// One number of each of several measurements.
    pub(crate) fn of<T>(measured: &[T], number: impl Fn(&T) -> f64) -> Samples {
        Samples(measured.iter().map(number).collect())
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    pub(crate) fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }

    /// The samples over the reference's, round by round: a drift of the machine between rounds
    /// cancels out.
    pub(crate) fn ratio(&self, reference: &Samples) -> Samples {
        Samples(self.0.iter().zip(&reference.0).map(|(ours, theirs)| ours / theirs).collect())
    }

    /// The median, and the least and the most, each divided by `unit`.
    pub(crate) fn show(&self, unit: f64, digits: usize) -> String {
        let sorted = self.sorted();
        let [least, most] = [sorted.first(), sorted.last()].map(|v| v.copied().unwrap_or(f64::NAN) / unit);
        format!("{:.digits$} ({least:.digits$}–{most:.digits$})", self.median() / unit)
    }

    /// The same of a number without unit, with two digits.
    pub(crate) fn show_ratio(&self) -> String {
        self.show(1.0, 2)
    }

    /// The mean and the standard deviation (of a sample), each divided by
    /// `unit`.
    pub(crate) fn mean_and_spread(&self, unit: f64, digits: usize) -> String {
        let count = self.0.len() as f64;
        let mean = self.0.iter().sum::<f64>() / count;
        let squares = self.0.iter().map(|n| (n - mean).powi(2)).sum::<f64>();
        let spread = if self.0.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        format!("{:.digits$} ± {:.digits$}", mean / unit, spread / unit)
    }

    /// Whether the median meets a floor (or a ceiling), in words.
    pub(crate) fn at_least(&self, floor: f64) -> &'static str {
        met(self.median() >= floor)
    }

    pub(crate) fn at_most(&self, ceiling: f64) -> &'static str {
        met(self.median() <= ceiling)
    }
}

/// Whether something holds that was asked for, in the words of tables.
pub(crate) fn met(is_met: bool) -> &'static str {
    if is_met { "yes" } else { "**no**" }
}

/// The result of a group.
#[derive(Debug)]
pub(crate) struct Section {
    /// As the markers have it.
    pub(crate) name: &'static str,
    /// Where and how it was measured; a list.
    pub(crate) conditions: Vec<String>,
    /// What each number is, in place of the usual number of measurements.
    pub(crate) each: Option<String>,
    /// What this group was compared with, and what else to know.
    pub(crate) notes: Vec<String>,
    /// The commands of the measurement, for a shell.
    pub(crate) commands: Vec<String>,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    series: Vec<Value>,
}

impl Section {
    pub(crate) fn new(name: &'static str, header: &[&str]) -> Section {
        Section {
            name,
            conditions: Vec::new(),
            each: None,
            notes: Vec::new(),
            commands: Vec::new(),
            header: header.iter().map(|&h| h.to_owned()).collect(),
            rows: Vec::new(),
            series: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.header.len(), "a table is rectangular");
        self.rows.push(cells);
    }

    /// Keeps the samples of a number for `--json`, in the unit said.
    pub(crate) fn keep(&mut self, case: &str, subject: &str, unit: &str, samples: &Samples) {
        let entry = json!({ "case": case, "subject": subject, "unit": unit, "samples": samples.0 });
        self.series.push(entry);
    }

    /// The text between the markers.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        let mut line = |cells: &[String]| {
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        };
        line(&self.header);
        line(&self.header.iter().map(|_| "---".to_owned()).collect::<Vec<_>>());
        self.rows.iter().for_each(|row| line(row));
        text.push('\n');
        for item in self.conditions.iter().chain(&self.notes) {
            let _ = writeln!(text, "- {item}.");
        }
        let _ = write!(text, "\n```sh\n{}\n```\n", self.commands.join("\n"));
        text
    }

    fn json(&self) -> Value {
        let conditions: Vec<_> = self.conditions.iter().chain(&self.notes).collect();
        json!({
            "group": self.name, "conditions": conditions, "commands": self.commands, "series": self.series,
        })
    }
}

/// Writes all samples.
pub(crate) fn save(path: &Path, sections: &[Section]) -> Result<()> {
    let all: Vec<_> = sections.iter().map(Section::json).collect();
    let text = serde_json::to_string_pretty(&all)?;
    fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle_and_ratios_are_of_the_same_round() {
        let ours = Samples(vec![1.0, 9.0, 3.0]);
        assert_eq!(ours.show(1.0, 1), "3.0 (1.0–9.0)");
        assert_eq!(Samples(vec![2.0, 4.0, 6.0]).mean_and_spread(2.0, 1), "2.0 ± 1.0");
        assert_eq!(Samples(vec![3.0]).mean_and_spread(1.0, 0), "3 ± 0");
        assert_eq!(Samples(vec![4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        // The machine was nine times as fast in the second round.
        assert_eq!(ours.ratio(&Samples(vec![2.0, 18.0, 6.0])).show_ratio(), "0.50 (0.50–0.50)");
        assert_eq!((ours.at_least(3.0), ours.at_most(2.9)), ("yes", "**no**"));
    }
}
