//! Statements published about the experiments that are run again: every number and every finding
//! that code or documents of this project mention, with the document and the section, figure or
//! table that has it.
//!
//! Findings are paraphrased; numbers are in base units. Details that a publication does not give
//! (the ports of a client, the conditions of another load) are in no statement.
//! `tests/published.rs` checks that nothing is cited from elsewhere, and that `docs/published.md`
//! lists the same.

pub mod fabrics;
pub mod filesystems;
pub mod striping;
pub mod transfer;

use longhaul_results::published::{Publication, Statement};
use std::fmt::Write;

/// The publications, each with its statements.
pub const ALL: [(&Publication, &[&[Statement]]); 5] = [
    (&striping::DOCUMENT, striping::ALL),
    (&filesystems::DOCUMENT, filesystems::ALL),
    (&fabrics::DOCUMENT, fabrics::ALL),
    (&transfer::DOCUMENT, transfer::ALL),
    (&transfer::PETASCALE, transfer::ALL_PETASCALE),
];

/// All statements, in the order of docs/published.md.
pub fn all() -> impl Iterator<Item = &'static Statement> {
    ALL.iter().flat_map(|(_, groups)| groups.iter().copied().flatten())
}

/// The list as Markdown.
pub fn page() -> String {
    let mut text = String::from(
        "# Published statements\n\nWhat code, results and documents of Longhaul cite of other publications, each \
         with its place there. Findings are paraphrased. The list is that of `longhaul_lab::published`; a test \
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
