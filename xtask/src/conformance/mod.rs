//! `docs/conformance.md`: what the target answers to each command, and which
//! clauses of the specifications are checked, each with the test that shows it.
//!
//! The answers are written by hand, in `xtask/conformance.txt`; that every code
//! the `wire` crate knows has a row, and that every test named there exists, is
//! checked. The clauses are collected from the `//=` comments of the code.

mod clauses;
mod codes;
mod table;

use crate::repo::Repo;
use anyhow::{Context, Result, bail};

const PAGE: &str = "docs/conformance.md";

const HEAD: &str = "\
<!-- Made by `cargo xtask conformance` from xtask/conformance.txt and the citations in the code. -->

# Conformance

Longhaul speaks NVMe Base 2.1, the NVM Command Set 1.1 and the NVMe/TCP
transport 1.1. This page lists the target's answer to each command, the clauses
of the specifications that the code checks, and the tests of both. A test is named
by its file and function, or by its name in `tests/kernel/run --list`, which tests
against a stock Linux kernel.

A refused command has no effect on others. Its status carries Do Not Retry unless
a retry can succeed. Codes without a row are refused as not supported.
";

/// Writes the page.
pub(crate) fn write(repo: &Repo) -> Result<()> {
    let path = repo.root.join(PAGE);
    std::fs::write(&path, page(repo)?).with_context(|| format!("cannot write {}", path.display()))
}

/// Fails if the page differs from the generated one.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let written = repo.file(PAGE).map_or("", |f| f.text.as_str());
    if written != page(repo)? {
        bail!("{PAGE} is out of date: run `cargo xtask conformance`");
    }
    println!("{PAGE} is current");
    Ok(())
}

fn page(repo: &Repo) -> Result<String> {
    let sections = table::read(repo)?;
    let findings = table::check(repo, &sections)?;
    if !findings.is_empty() {
        let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
        bail!("{}", all.join("\n"));
    }
    Ok(format!("{HEAD}\n{}\n{}", table::render(&sections), clauses::render(repo)))
}
