//! What a machine can hold of the rules of the house.

mod commands;
mod layers;
mod links;
mod machine;
mod merges;
mod modules;
mod names;
mod unwraps;
mod words;

use crate::citation;
use crate::events;
use crate::repo::{Finding, Repo};
use anyhow::{Result, bail};

/// Lines in a Rust file above which its author is asked to think of a split.
const LONG_FILE: usize = 600;

/// Runs every check, prints the findings, and fails if any is not a warning.
pub(crate) fn run(repo: &Repo) -> Result<()> {
    for warning in long_files(repo) {
        println!("warning: {warning}");
    }
    let checks: [(&str, Vec<Finding>); 11] = [
        ("layers", layers::check(repo)?),
        ("unwraps", unwraps::check(repo)),
        ("citations", citation::all(repo).1),
        ("links", links::check(repo)),
        ("commands", commands::check(repo)?),
        ("machine", machine::check(repo)),
        ("merges", merges::check(repo)),
        ("modules", modules::check(repo)),
        ("names", names::check(repo)),
        ("words", words::check(repo)?),
        ("events", events::differences(repo)?),
    ];
    let mut found = 0;
    for (name, findings) in &checks {
        println!(
            "{name}: {}",
            if findings.is_empty() { "clean".to_owned() } else { format!("{} found", findings.len()) }
        );
        for finding in findings {
            println!("  {finding}");
        }
        found += findings.len();
    }
    if found > 0 {
        bail!("{found} to be changed");
    }
    Ok(())
}

fn long_files(repo: &Repo) -> Vec<Finding> {
    repo.with_extension("rs")
        .filter_map(|file| {
            let lines = file.lines().count();
            (lines > LONG_FILE)
                .then(|| Finding::at(file, 0, format!("{lines} lines; above {LONG_FILE}, look for a split")))
        })
        .collect()
}
