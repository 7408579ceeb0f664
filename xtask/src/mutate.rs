//! `cargo xtask mutate`: plants known bugs, one at a time, and runs the test that has to fail.
//!
//! The list is `xtask/mutations.toml` (see [`list`]). Bugs are planted in a copy of the tree under
//! `target/mutate`, never in the checkout. Invariants:
//! - every text to be replaced stands exactly once in its file, or nothing is run: the list cannot rot;
//! - every test of the list passes without a mutation, or no mutation is run;
//! - a mutation that does not compile is an error, not a bug that was caught.

mod catcher;
mod list;
mod scratch;
mod table;

use crate::repo::Repo;
use anyhow::{Context, Result, bail, ensure};
use catcher::{Catcher, Outcome};
use list::Mutation;
use scratch::Scratch;
use std::collections::BTreeMap;
use std::time::Instant;

pub(crate) const USAGE: &str = "\
usage: cargo xtask mutate [--list] [--only NAME...] [--output FILE]

  --list          check the list, and print the mutations and the tests that catch them; plant none
  --only NAME...  run those mutations alone whose name contains one of these
  --output FILE   write the list as Markdown, as in docs/mutations.md, if no mutation goes unseen
                  (not with --only)";

/// What the command line asks for.
#[derive(Default)]
struct Options<'a> {
    list: bool,
    only: Vec<&'a str>,
    output: Option<&'a str>,
}

fn options<'a>(args: &[&'a str]) -> Result<Options<'a>> {
    let mut options = Options::default();
    let mut args = args.iter().copied().peekable();
    while let Some(arg) = args.next() {
        match arg {
            "--list" => options.list = true,
            "--output" => {
                options.output = Some(args.next().with_context(|| format!("--output FILE\n{USAGE}"))?)
            }
            "--only" => {
                while let Some(name) = args.next_if(|next| !next.starts_with("--")) {
                    options.only.push(name);
                }
                ensure!(!options.only.is_empty(), "--only takes names\n{USAGE}");
            }
            _ => bail!("'{arg}' is no option of mutate\n{USAGE}"),
        }
    }
    ensure!(options.only.is_empty() || options.output.is_none(), "--output takes the whole list\n{USAGE}");
    Ok(options)
}

/// One mutation that was run.
pub(crate) struct Run<'a> {
    mutation: &'a Mutation,
    outcome: Outcome,
    seconds: u64,
}

/// Runs the chore.
pub(crate) fn run(repo: &Repo, args: &[&str]) -> Result<()> {
    let options = options(args)?;
    let all = list::read(repo)?;
    let mut chosen: Vec<&Mutation> = all
        .iter()
        .filter(|m| options.only.is_empty() || options.only.iter().any(|name| m.name.contains(name)))
        .collect();
    ensure!(!chosen.is_empty(), "no mutation has a name that contains {}", options.only.join(" or "));
    let output = options.output.map(|path| repo.root.join(path));
    if options.list {
        print!("{}", table::listed(&chosen));
        return output.map_or(Ok(()), |path| write(&path, &chosen));
    }
    // Mutations that rebuild the same crates follow each other.
    chosen.sort_by(|a, b| (&a.catcher.binary(), &a.file).cmp(&(&b.catcher.binary(), &b.file)));
    let scratch = Scratch::make(repo)?;
    check_without(&scratch, &chosen)?;
    let (mut runs, mut wrong) = (Vec::new(), Vec::new());
    for mutation in chosen {
        let began = Instant::now();
        let outcome = match plant(&scratch, mutation) {
            Ok(outcome) => outcome,
            Err(e) => {
                println!("{:<44} cannot be planted: {e:#}", mutation.name);
                wrong.push(mutation.name.as_str());
                continue;
            }
        };
        let run = Run { mutation, outcome, seconds: began.elapsed().as_secs() };
        println!("{}", table::line(&run));
        runs.push(run);
    }
    conclude(&runs)?;
    ensure!(wrong.is_empty(), "these cannot be planted: {}", wrong.join(", "));
    let planted: Vec<&Mutation> = runs.iter().map(|run| run.mutation).collect();
    output.map_or(Ok(()), |path| write(&path, &planted))
}

fn write(path: &std::path::Path, mutations: &[&Mutation]) -> Result<()> {
    std::fs::write(path, table::page(mutations)).with_context(|| format!("cannot write {}", path.display()))
}

/// Every test that is to fail has to pass first.
fn check_without(scratch: &Scratch, mutations: &[&Mutation]) -> Result<()> {
    let mut binaries: BTreeMap<String, Vec<&Catcher>> = BTreeMap::new();
    for mutation in mutations {
        binaries.entry(mutation.catcher.binary()).or_default().push(&mutation.catcher);
    }
    let mut wrong = Vec::new();
    for (binary, catchers) in &binaries {
        println!("without a mutation: {binary}");
        wrong.extend(catcher::failing(scratch, catchers)?);
    }
    ensure!(wrong.is_empty(), "these do not pass without a mutation:\n  {}", wrong.join("\n  "));
    Ok(())
}

/// Plants one bug, runs its test, and takes the bug out again.
fn plant(scratch: &Scratch, mutation: &Mutation) -> Result<Outcome> {
    scratch.write(&mutation.file, &mutation.mutated)?;
    let outcome = mutation.catcher.run(scratch);
    scratch.write(&mutation.file, &mutation.original)?;
    outcome.with_context(|| mutation.name.clone())
}

/// Prints the results; an error if a bug was not caught.
fn conclude(runs: &[Run<'_>]) -> Result<()> {
    let missed: Vec<&str> =
        runs.iter().filter(|run| !run.outcome.is_caught()).map(|run| run.mutation.name.as_str()).collect();
    println!("{} of {} mutations caught", runs.len() - missed.len(), runs.len());
    ensure!(missed.is_empty(), "not caught: {}", missed.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_understood() {
        let read = options(&["--only", "a", "b", "--list"]).unwrap();
        assert_eq!((read.only, read.list), (vec!["a", "b"], true));
        assert_eq!(options(&["--output", "docs/x.md"]).unwrap().output, Some("docs/x.md"));
        for wrong in [&["--only"][..], &["--output"], &["x"], &["--only", "a", "--output", "x"]] {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }

    /// That the texts are still there is checked by the tests, so that a change that moves one sees it.
    #[test]
    fn every_mutation_of_the_list_can_be_planted_and_is_documented() {
        let repo = Repo::open().unwrap();
        let all = list::read(&repo).unwrap();
        assert!(all.len() >= 40, "{} mutations", all.len());
        let page = table::page(&all.iter().collect::<Vec<_>>());
        let written = &repo.file("docs/mutations.md").unwrap().text;
        assert!(page == *written, "cargo xtask mutate --list --output docs/mutations.md");
    }
}
