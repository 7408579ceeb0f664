//! The clauses that the code cites, and the tests that cite them too.

use super::table::short;
use crate::citation::{self, Citation, DOCUMENTS};
use crate::repo::Repo;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What the code says of one clause.
#[derive(Default)]
struct Clause<'a> {
    checks: Vec<&'a Citation>,
    tests: Vec<&'a Citation>,
}

/// A section for each document: clause, requirements and where they are checked, tests.
pub(crate) fn render(repo: &Repo) -> String {
    let (citations, _) = citation::all(repo);
    of(&citations)
}

fn of(citations: &[Citation]) -> String {
    let mut out = String::new();
    for document in DOCUMENTS {
        let mut clauses: BTreeMap<(Vec<u32>, &str), Clause<'_>> = BTreeMap::new();
        for citation in citations.iter().filter(|c| c.document == document) {
            let clause = clauses.entry((order(&citation.clause), &citation.clause)).or_default();
            if citation.asks.is_some() { clause.checks.push(citation) } else { clause.tests.push(citation) }
        }
        if clauses.is_empty() {
            continue;
        }
        let (checks, shown) = counts(&clauses);
        let _ = write!(
            out,
            "\n## {document}\n\n{checks} clauses checked, {shown} of them with a test that names the clause.\n\n"
        );
        out.push_str("| clause | checked | in | shown by |\n|---|---|---|---|\n");
        for ((_, name), clause) in &clauses {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} |",
                escape(name),
                asks(clause),
                places(&clause.checks),
                places(&clause.tests)
            );
        }
    }
    out
}

/// Numbered clauses in the order of their numbers, before named ones.
fn order(clause: &str) -> Vec<u32> {
    match clause.strip_prefix('§') {
        Some(number) => number.split('.').filter_map(|part| part.parse().ok()).collect(),
        None => vec![u32::MAX],
    }
}

fn counts(clauses: &BTreeMap<(Vec<u32>, &str), Clause<'_>>) -> (usize, usize) {
    let checked = clauses.values().filter(|c| !c.checks.is_empty());
    (checked.clone().count(), checked.filter(|c| !c.tests.is_empty()).count())
}

fn asks(clause: &Clause<'_>) -> String {
    distinct(clause.checks.iter().filter_map(|c| c.asks.as_deref()).map(escape))
}

fn places(citations: &[&Citation]) -> String {
    distinct(citations.iter().map(|c| match &c.function {
        Some(function) => format!("`{function}` in {}", short(&c.path)),
        None => short(&c.path),
    }))
}

fn distinct(items: impl Iterator<Item = String>) -> String {
    let mut seen: Vec<String> = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen.join("<br>")
}

fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cited(clause: &str, asks: Option<&str>, function: &str) -> Citation {
        Citation {
            document: DOCUMENTS[0],
            clause: clause.to_owned(),
            asks: asks.map(str::to_owned),
            path: "crates/proto/src/a.rs".to_owned(),
            function: Some(function.to_owned()),
        }
    }

    #[test]
    fn checks_and_tests_meet_in_their_clause() {
        let text = of(&[
            cited("Abort command", Some("a < b"), "abort"),
            cited("§5.10", Some("x"), "ten"),
            cited("§5.9", Some("y"), "nine"),
            cited("Abort command", None, "is_aborted"),
        ]);
        assert!(text.contains("3 clauses checked, 1 of them"), "{text}");
        assert!(
            text.contains(
                "| Abort command | a &lt; b | `abort` in proto/a.rs | `is_aborted` in proto/a.rs |"
            )
        );
        assert!(text.find("§5.9") < text.find("§5.10") && text.find("§5.10") < text.find("Abort"));
    }
}
