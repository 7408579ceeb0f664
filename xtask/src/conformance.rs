//! `docs/conformance.md`: what the target answers to each command; and `docs/clauses.md`: which
//! clauses of the specifications are checked. Both name the tests that show it.
//!
//! The answers are written by hand, in `xtask/conformance.txt`; that every code
//! the `wire` crate knows has a row, and that every test named there exists, is
//! checked. The clauses are collected from the `//=` comments of the code.

mod clauses;
mod codes;
mod table;

use crate::repo::Repo;
use anyhow::{Context, Result, bail};

/// The page of answers and that of clauses.
const ANSWERS: &str = "docs/conformance.md";
const CLAUSES: &str = "docs/clauses.md";

const ANSWERS_HEAD: &str = "\
<!-- Made by `cargo xtask conformance` from xtask/conformance.txt. -->

# Conformance

Longhaul speaks NVMe Base 2.1, the NVM Command Set 1.1 and the NVMe/TCP
transport 1.1. This page lists the target's answer to each command, and the tests
that show it; [clauses](clauses.md) lists the clauses of the specifications that
the code checks. A test is named by its file and function, or by its name in
`tests/kernel/run --list`, which tests against a stock Linux kernel.

A refused command has no effect on others. Its status carries Do Not Retry unless
a retry can succeed. Codes without a row are refused as not supported.
";

const CLAUSES_HEAD: &str = "\
<!-- Made by `cargo xtask conformance` from the citations in the code. -->

# Clauses

The clauses of NVMe Base, the NVM Command Set and the NVMe/TCP transport that the
code cites: what each requires, where it is checked, and the tests that name it.
What the target answers to each command is in [conformance](conformance.md).
";

/// Writes the pages.
pub(crate) fn write(repo: &Repo) -> Result<()> {
    for (path, text) in pages(repo)? {
        std::fs::write(repo.root.join(path), text).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

/// Fails if a page differs from the generated one.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    for (path, text) in pages(repo)? {
        if repo.file(path).map_or("", |f| f.text.as_str()) != text {
            bail!("{path} is out of date: run `cargo xtask conformance`");
        }
        println!("{path} is current");
    }
    Ok(())
}

fn pages(repo: &Repo) -> Result<[(&'static str, String); 2]> {
    let sections = table::read(repo)?;
    let findings = table::check(repo, &sections)?;
    if !findings.is_empty() {
        let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
        bail!("{}", all.join("\n"));
    }
    Ok([
        (ANSWERS, format!("{ANSWERS_HEAD}\n{}", table::render(&sections))),
        (CLAUSES, format!("{CLAUSES_HEAD}{}", clauses::render(repo))),
    ])
}
