//! Publications are cited from one list, with their place: the list itself, the page that shows it,
//! and documents that mention it.

use longhaul_lab::published::{all, page};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_statement_has_its_document_and_its_place() {
    let mut seen = HashSet::new();
    for statement in all() {
        let place = statement.at;
        let kinds = [
            "§",
            "Fig",
            "Table",
            "Conclusion",
            "Overview",
            "Background",
            "analysis",
            "insights",
            "transfers",
            "data set",
        ];
        assert!(
            kinds.iter().any(|kind| place.contains(kind)),
            "'{}' is cited from '{place}'",
            statement.what
        );
        assert!(!statement.what.trim().is_empty() && !statement.document.full.is_empty());
        // Statements joined in a result are separated at this.
        assert!(!statement.what.contains("; ") && !statement.source().contains("; "), "{statement:?}");
        assert!(
            statement.number.is_none_or(|(value, unit)| value.is_finite() && value > 0.0 && !unit.is_empty())
        );
        let of_series = statement.what.starts_with("from ");
        assert!(
            of_series || seen.insert((statement.what, statement.source())),
            "{statement:?} is there twice"
        );
    }
}

/// `LONGHAUL_WRITE_DOCS=1 cargo test -p longhaul-lab --test published` writes it.
#[test]
fn the_page_lists_the_same() {
    let path = repo().join("docs/published.md");
    if std::env::var_os("LONGHAUL_WRITE_DOCS").is_some() {
        std::fs::write(&path, page()).expect("written");
    }
    let there = std::fs::read_to_string(&path).expect("docs/published.md");
    assert!(there == page(), "docs/published.md is not the list: LONGHAUL_WRITE_DOCS=1 writes it");
}

/// Paragraphs and rows of tables of a document, without what `cargo xtask bench` wrote:
/// the benchmarks take that from the list.
fn paragraphs(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut results = false;
    for line in text.lines() {
        results = line.starts_with("<!-- results:") || (results && !line.starts_with("<!-- end of results:"));
        if results || line.starts_with("<!--") {
            continue;
        }
        if line.trim().is_empty() || line.starts_with("- ") {
            all.push(String::new());
        }
        if let Some(last) = all.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    all
}

/// Where the text before a table has the citation, its rows need none.
fn is_cited(paragraphs: &[String], at: usize) -> bool {
    let near = &paragraphs[at.saturating_sub(usize::from(paragraphs[at].trim_start().starts_with('|')))..=at];
    near.iter().any(|text| text.contains("published.md"))
}

#[test]
fn documents_cite_the_list_where_they_mention_what_was_published() {
    let mut files = vec![repo().join("README.md")];
    for directory in ["docs", "docs/performance"] {
        let entries = std::fs::read_dir(repo().join(directory)).expect("documents").flatten();
        let paths = entries.map(|entry| entry.path());
        files.extend(paths.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    let numbers =
        ["66.5 ms", "65.5 ms", "34.0 ms", "25.3 ms", "10.1 ms", "17.82 %", "56.7 Gb/s", "59,589", "19,260"];
    let mut cited = 0;
    for file in files.iter().filter(|file| !file.ends_with("published.md")) {
        let text = std::fs::read_to_string(file).expect("read");
        let paragraphs = paragraphs(&text);
        for (at, paragraph) in paragraphs.iter().enumerate() {
            let words =
                ["Published:", "published:", "ublished for", "was published had", "publications found"];
            let says = words.iter().any(|words| paragraph.contains(words));
            if says || numbers.iter().any(|number| paragraph.contains(number)) {
                assert!(is_cited(&paragraphs, at), "{} cites no place:\n{paragraph}", file.display());
                cited += 1;
            }
        }
    }
    assert!(cited >= 5, "only {cited} paragraphs mention a publication");
}

/// Numbers of publications that no other number is: in code they stand in the list.
#[test]
fn no_code_has_published_numbers_of_its_own() {
    let own = ["0.0665", "0.0655", "0.0340", "0.0253", "0.0101", "17.82", "9.27", "0.1782"];
    let mut waiting = ["crates", "benches", "xtask"].map(|dir| repo().join(dir)).to_vec();
    let mut read = 0;
    while let Some(dir) = waiting.pop() {
        for path in std::fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.path()) {
            let is_list = path.ends_with("published") || path.ends_with("published.rs");
            if path.is_dir() && !is_list && !path.ends_with("target") {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_list {
                let text = std::fs::read_to_string(&path).expect("read");
                read += 1;
                // Tests may state expected numbers.
                let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                if path.components().any(|part| part.as_os_str() == "tests") {
                    continue;
                }
                for number in own {
                    let found = code.match_indices(number).find(|(at, _)| {
                        let around = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit() || c == '.');
                        !around(code[..*at].chars().next_back())
                            && !around(code[at + number.len()..].chars().next())
                    });
                    let line = found
                        .map(|(at, _)| code[code[..at].rfind('\n').map_or(0, |n| n + 1)..].lines().next());
                    assert!(
                        line.flatten().is_none_or(|line| line.contains("T = 0.0665 N")),
                        "{} has {number} of its own: {line:?}",
                        path.display()
                    );
                }
            }
        }
    }
    assert!(read > 100);
}
