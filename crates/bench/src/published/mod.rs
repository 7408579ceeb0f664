//! What was published of the experiments that are run again: every number and
//! every finding that code or documents of this project mention, with the
//! document and the section, figure or table that has it.
//!
//! Findings are paraphrased; numbers are in base units. What a publication does
//! not say (the ports of a client, the conditions of another load) is in no
//! statement. `tests/published.rs` checks that nothing is cited from elsewhere,
//! and that `docs/published.md` lists the same.

pub mod fabrics;
pub mod filesystems;
pub mod striping;
pub mod transfer;

use std::fmt::Write;

/// A publication.
#[derive(Debug, PartialEq, Eq)]
pub struct Document {
    /// As citations have it.
    pub short: &'static str,
    /// Authors, title, where and when.
    pub full: &'static str,
}

/// A number or a finding, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statement {
    /// What was found, or what the number is.
    pub what: &'static str,
    /// The number and its unit (`B/s`, `bit/s`, `s`, `s/file`, `files`, …); nothing
    /// for a finding in words.
    pub number: Option<(f64, &'static str)>,
    /// The publication.
    pub document: &'static Document,
    /// The section, figure or table in it.
    pub at: &'static str,
}

impl Statement {
    const fn number(
        document: &'static Document,
        at: &'static str,
        value: f64,
        unit: &'static str,
        what: &'static str,
    ) -> Statement {
        Statement { what, number: Some((value, unit)), document, at }
    }

    const fn words(document: &'static Document, at: &'static str, what: &'static str) -> Statement {
        Statement { what, number: None, document, at }
    }

    /// The number.
    ///
    /// # Panics
    /// The statement is in words: in a constant this fails the build.
    pub const fn value(&self) -> f64 {
        match self.number {
            Some((value, _)) => value,
            None => panic!("this statement has no number"),
        }
    }

    /// The document and the place in it: `Transfer study, Fig. 5`.
    pub fn source(&self) -> String {
        format!("{}, {}", self.document.short, self.at)
    }

    /// As a cell has it: the number times `factor`, and why it is not 1 (empty if
    /// it is).
    pub fn scaled(&self, factor: f64, why: &str) -> crate::record::Published {
        let why = if why.is_empty() { String::new() } else { format!("; {why}") };
        crate::record::Published { value: self.value() * factor, source: self.source() + &why }
    }
}

/// The publications, each with its statements.
pub const ALL: [(&Document, &[&[Statement]]); 5] = [
    (&striping::DOCUMENT, striping::ALL),
    (&filesystems::DOCUMENT, filesystems::ALL),
    (&fabrics::DOCUMENT, fabrics::ALL),
    (&transfer::DOCUMENT, transfer::ALL),
    (&transfer::PETASCALE, transfer::ALL_PETASCALE),
];

/// All statements.
pub fn all() -> impl Iterator<Item = &'static Statement> {
    ALL.iter().flat_map(|(_, groups)| groups.iter().copied().flatten())
}

/// The list as Markdown.
pub fn page() -> String {
    let mut text = String::from(
        "# Published statements\n\nWhat code, results and documents of Longhaul cite of other publications, each \
         with its place there. Findings are paraphrased. The list is that of `longhaul_bench::published`; a test \
         holds both alike.\n",
    );
    for (document, groups) in ALL {
        // A String takes everything.
        let _ = write!(
            text,
            "\n## {}\n\n{}\n\n| statement | value | place |\n|---|---|---|\n",
            document.short, document.full
        );
        for statement in groups.iter().copied().flatten() {
            let value = statement.number.map_or("–".into(), |(value, unit)| plain(value, unit));
            let _ = writeln!(text, "| {} | {value} | {} |", statement.what, statement.at);
        }
    }
    text
}

/// A number with the prefix that people read.
fn plain(value: f64, unit: &str) -> String {
    let (divisor, prefix) = match (unit, value) {
        ("B" | "B/s" | "bit/s", 1e12..) => (1e12, "T"),
        ("B" | "B/s" | "bit/s", 1e9..) => (1e9, "G"),
        ("B" | "B/s" | "bit/s", 1e6..) => (1e6, "M"),
        ("s" | "s/file", ..0.1) => (1e-3, "m"),
        _ => (1.0, ""),
    };
    format!("{} {prefix}{unit}", (value / divisor * 1e4).round() / 1e4)
}
