//! Chores of the workspace: `cargo xtask CHORE`.

#![forbid(unsafe_code)]

mod citation;
mod conformance;
mod dist;
mod events;
mod mutate;
mod package;
mod repo;
mod rust;
mod sbom;
mod suite;
mod tidy;

use anyhow::{Context, Result, bail};
use repo::Repo;
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask CHORE

chores:
  test [--package NAME...] [--except PACKAGE/PROGRAM...] [--jobs N]
                          build all tests, and run the test programs side by side
  tidy                    hold what a machine can hold: layers, unwraps, citations, links, commands
  conformance [--check]   write docs/conformance.md and docs/clauses.md, or fail if they are out of date
  events [--check]        write docs/events.md and docs/events/, or fail if they would differ
  mutate [--list] [--only NAME...] [--output FILE]
                          plant known bugs in a copy of the tree, and see that a test catches each
  fuzz                    replay the fuzzing corpus, then fuzz each target for a short while
  dist [TARGET]           build a static program with musl, target/dist/longhaul-TARGET, and run it
  package [TARGET] [--revision N]
                          the same, and a .deb and an .rpm of it beside it
  sbom [TARGET]           write the packages that the program is made of, target/dist/longhaul-TARGET.cdx.json
  bench GROUP... [--OPTION...]
                          measure against references, for docs/performance.md; --help says more
  kernel [PATTERN...]     run the tests against a stock Linux kernel under QEMU
  powercut [N [SEED]]     take the guest's power away under load, 20 times or as often as said
  faults [NAME...]        make copies slow on purpose, and see whether diagnose says why
  ci                      run all that CI runs";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    let repo = Repo::open()?;
    match (args.first().map(String::as_str), rest.as_slice()) {
        (Some("test"), rest) => suite::run(&repo, rest),
        (Some("tidy"), []) => tidy::run(&repo),
        (Some("conformance"), []) => conformance::write(&repo),
        (Some("conformance"), ["--check"]) => conformance::check(&repo),
        (Some("events"), []) => events::write(&repo),
        (Some("events"), ["--check"]) => events::check(&repo),
        (Some("mutate"), rest) => mutate::run(&repo, rest),
        (Some("dist"), []) => dist::run(&repo, &dist::own()).map(drop),
        (Some("dist"), [target]) => dist::run(&repo, target).map(drop),
        (Some("package"), rest) => package(&repo, rest),
        (Some("sbom"), []) => sbom::run(&repo, &dist::own()).map(drop),
        (Some("sbom"), [target]) => sbom::run(&repo, target).map(drop),
        (Some("bench"), rest) => bench(&repo, rest),
        (Some("kernel"), rest) => script(&repo, "tests/kernel/run", rest),
        (Some("powercut"), rest) => powercut(&repo, rest),
        (Some("faults"), rest) => faults(&repo, rest),
        (Some("fuzz"), []) => script(&repo, "fuzz/smoke", &[]),
        (Some("ci"), []) => script(&repo, ".ci/run", &[]),
        (Some("help" | "-h" | "--help"), _) => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("not a chore\n{USAGE}"),
    }
}

/// Runs the benchmarks, built in release.
fn bench(repo: &Repo, args: &[&str]) -> Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--release", "--package=longhaul-benches", "--"]).args(args);
    finish(command.current_dir(&repo.root), "the benchmarks")
}

/// Builds the program, and packages of it.
fn package(repo: &Repo, args: &[&str]) -> Result<()> {
    let own = dist::own();
    let (target, revision) = match *args {
        [] => (own.as_str(), 1),
        [target] => (target, 1),
        ["--revision", n] => (own.as_str(), n.parse()?),
        [target, "--revision", n] => (target, n.parse()?),
        _ => bail!("package takes a target and a revision\n{USAGE}"),
    };
    let program = dist::run(repo, target)?;
    let native = if target == own { program.clone() } else { dist::run(repo, &own)? };
    package::run(repo, target, &program, &native, revision)
}

/// Kinds of power cuts in `tests/kernel`: each file system, on the kernel's
/// own host and through `longhaul mount`.
const POWER_CHECKS: u32 = 4;

/// Takes the power of the tests' guest away under load, so often at least.
fn powercut(repo: &Repo, args: &[&str]) -> Result<()> {
    let (cuts, seed) = match *args {
        [] => (20, None),
        [cuts] => (cuts.parse()?, None),
        [cuts, seed] => (cuts.parse()?, Some(seed)),
        _ => bail!("powercut takes how often, and a seed\n{USAGE}"),
    };
    let mut command = Command::new(repo.root.join("tests/kernel/run"));
    command.arg("power:").env("LONGHAUL_KERNEL_CUTS", cuts.max(1u32).div_ceil(POWER_CHECKS).to_string());
    command.envs(seed.map(|seed| ("LONGHAUL_KERNEL_SEED", seed)));
    finish(command.current_dir(&repo.root), "tests/kernel/run")
}

/// Runs the tests of `longhaul diagnose` that take long: all, or those that have one
/// of these in their name.
fn faults(repo: &Repo, names: &[&str]) -> Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--quiet", "--release", "--package=longhaul", "--test=faults", "--"]);
    command.args(["--ignored", "--nocapture"]).env("LONGHAUL_FAULTS", names.join(","));
    finish(command.current_dir(&repo.root), "the faults")
}

/// Runs one of the repository's scripts, with this program's standard output and error.
fn script(repo: &Repo, path: &str, args: &[&str]) -> Result<()> {
    finish(Command::new(repo.root.join(path)).args(args).current_dir(&repo.root), path)
}

fn finish(command: &mut Command, what: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {what}"))?;
    if !status.success() {
        bail!("{what} ended with {status}");
    }
    Ok(())
}
