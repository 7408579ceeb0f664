//! The table of answers, `xtask/conformance.txt`.
//!
//! ```text
//! == TITLE [= MODULE]      a section; MODULE of the wire crate names its codes
//! CODE[,CODE…] | NAME | ANSWER | TEST[; TEST…]
//! ```
//!
//! A TEST is `PATH::FUNCTION`, or `kernel: NAME`; a line `@ DIRECTORY/` says where
//! files without a directory are. Lines that begin with `#` are comments.

use super::codes;
use crate::citation::declared_function;
use crate::repo::{File, Finding, Repo};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;

const TABLE: &str = "xtask/conformance.txt";

/// Rows under one heading.
pub(crate) struct Section {
    title: String,
    /// The module of the `wire` crate whose constants must all be there.
    module: Option<String>,
    rows: Vec<Row>,
}

struct Row {
    line: usize,
    codes: Vec<u8>,
    name: String,
    answer: String,
    tests: Vec<String>,
}

/// Reads the table.
pub(crate) fn read(repo: &Repo) -> Result<Vec<Section>> {
    parse(repo.file(TABLE).with_context(|| format!("there is no {TABLE}"))?)
}

fn parse(file: &File) -> Result<Vec<Section>> {
    let mut sections: Vec<Section> = Vec::new();
    let mut directory = "";
    for (line, text) in file.lines() {
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        if let Some(path) = text.strip_prefix("@ ") {
            directory = path.trim();
        } else if let Some(title) = text.strip_prefix("== ") {
            let (title, module) = title.split_once(" = ").map_or((title, None), |(t, m)| (t, Some(m)));
            let module = module.map(str::to_owned);
            sections.push(Section { title: title.to_owned(), module, rows: Vec::new() });
        } else {
            let row = row(line, text, directory).with_context(|| format!("{}:{line}", file.path))?;
            sections
                .last_mut()
                .with_context(|| format!("{}:{line}: no section above", file.path))?
                .rows
                .push(row);
        }
    }
    Ok(sections)
}

fn row(line: usize, text: &str, directory: &str) -> Result<Row> {
    let cells: Vec<&str> = text.split('|').map(str::trim).collect();
    let [codes, name, answer, tests] = cells[..] else { bail!("a row has four cells") };
    let code = |c: &str| u8::from_str_radix(c.trim(), 16).with_context(|| format!("`{c}` is not a code"));
    let codes = if codes == "-" { Vec::new() } else { codes.split(',').map(code).collect::<Result<_>>()? };
    let supported = answer.starts_with("supported");
    ensure!(supported || answer.starts_with("refused: "), "an answer is `supported…` or `refused: STATUS`");
    let place = |test: &str| match test.split_once("::") {
        Some((file, _)) if !file.contains('/') => format!("{directory}{test}"),
        _ => test.to_owned(),
    };
    let tests: Vec<String> = tests.split(';').map(str::trim).filter(|t| !t.is_empty()).map(place).collect();
    ensure!(!tests.is_empty(), "no test shows it");
    Ok(Row { line, codes, name: name.to_owned(), answer: answer.to_owned(), tests })
}

/// Codes without a row, and tests that do not exist.
pub(crate) fn check(repo: &Repo, sections: &[Section]) -> Result<Vec<Finding>> {
    let kernel = kernel_checks(repo)?;
    let mut findings = Vec::new();
    let mut find = |line, message| findings.push(Finding { path: TABLE.to_owned(), line, message });
    for section in sections {
        for row in &section.rows {
            for test in row.tests.iter().filter(|t| !exists(repo, &kernel, t)) {
                find(row.line, format!("there is no test `{test}`"));
            }
        }
        let Some(module) = &section.module else { continue };
        let have: BTreeSet<u8> = section.rows.iter().flat_map(|r| &r.codes).copied().collect();
        let known = codes::of_module(repo, module);
        ensure!(!known.is_empty(), "the wire crate has no codes in `pub mod {module}`");
        for code in known.iter().filter(|c| !have.contains(&c.value)) {
            find(0, format!("{}: no row for {:02X}h, {module}::{}", section.title, code.value, code.name));
        }
    }
    Ok(findings)
}

fn exists(repo: &Repo, kernel: &BTreeSet<String>, test: &str) -> bool {
    if let Some(name) = test.strip_prefix("kernel: ") {
        return kernel.contains(name);
    }
    let Some((path, function)) = test.split_once("::") else { return false };
    repo.file(path).is_some_and(|file| is_test(file, function))
}

/// Whether `file` has a function of this name right under `#[test]`.
fn is_test(file: &File, function: &str) -> bool {
    let mut marked = false;
    for (_, line) in file.lines() {
        match declared_function(line) {
            Some(name) if marked && name == function => return true,
            Some(_) => marked = false,
            None => marked |= line.trim_start().starts_with("#[test]"),
        }
    }
    false
}

fn kernel_checks(repo: &Repo) -> Result<BTreeSet<String>> {
    let output = Command::new(repo.root.join("tests/kernel/run"))
        .arg("--list")
        .output()
        .context("tests/kernel/run needs python3")?;
    ensure!(output.status.success(), "tests/kernel/run --list: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// The tables as Markdown.
pub(crate) fn render(sections: &[Section]) -> String {
    let mut out = String::new();
    for section in sections {
        if !out.is_empty() {
            out.push('\n');
        }
        let _ =
            write!(out, "## {}\n\n| code | what | answer | shown by |\n|---|---|---|---|\n", section.title);
        for row in &section.rows {
            let codes: Vec<String> = row.codes.iter().map(|c| format!("{c:02X}h")).collect();
            let tests: Vec<String> = row.tests.iter().map(|t| reference(t)).collect();
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} |",
                codes.join(", "),
                row.name,
                row.answer,
                tests.join("<br>")
            );
        }
    }
    out
}

/// A test as the page shows it.
pub(crate) fn reference(test: &str) -> String {
    match (test.strip_prefix("kernel: "), test.split_once("::")) {
        (Some(name), _) => format!("kernel: {name}"),
        (None, Some((path, function))) => format!("`{function}` in [{}](../{path})", short(path)),
        (None, None) => test.to_owned(),
    }
}

/// `crates/proto/src/controller/io.rs` as `proto/controller/io.rs`.
pub(crate) fn short(path: &str) -> String {
    path.trim_start_matches("crates/").replacen("/src/", "/", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> File {
        File { path: "t".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn rows_are_read_and_rendered() {
        let sections =
            parse(&file("# c\n== I/O = io\n02,0C | Read | supported | a/src/b.rs::c; kernel: d\n")).unwrap();
        assert_eq!(sections[0].module.as_deref(), Some("io"));
        let text = render(&sections);
        assert!(
            text.contains("| 02h, 0Ch | Read | supported | `c` in [a/b.rs](../a/src/b.rs)<br>kernel: d |"),
            "{text}"
        );
    }

    #[test]
    fn a_row_says_what_and_shows_it() {
        for bad in [
            "02 | Read | supported |",
            "02 | Read | maybe | a::b",
            "xy | Read | supported | a::b",
            "02 | Read",
        ] {
            assert!(parse(&file(&format!("== A\n{bad}\n"))).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_helper_is_not_a_test() {
        let f = file("#[test]\nfn a() {}\nfn b() {}\n#[test]\n#[should_panic]\nfn c() {}\n");
        assert!(is_test(&f, "a") && !is_test(&f, "b") && is_test(&f, "c"));
    }
}
