//! `cargo xtask test`: builds all tests once, and runs the test programs side by side.
//!
//! `cargo test` runs one program after the other, and most of them wait more than they compute: for
//! timeouts, emulated links and other processes. Invariants:
//! - a program that compares times or rates runs alone ([`known`]);
//! - the output of a program is printed whole, behind the line that cargo prints before it, so that
//!   scripts which read the output of `cargo test` read this, too;
//! - every program runs, also after a failure or a time limit; the end names those that failed.

mod known;
mod program;

use crate::repo::Repo;
use anyhow::{Context, Result, bail, ensure};
use known::Known;
use program::Program;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub(crate) const USAGE: &str = "\
usage: cargo xtask test [--package NAME...] [--except PACKAGE/PROGRAM...] [--jobs N]

  --package NAME...            the programs of these packages alone, without doc tests
  --except PACKAGE/PROGRAM...  without these programs, such as longhaul-array/crash
  --jobs N                     programs at a time, instead of two to four";

/// Programs at a time. Each runs four tests at a time (`.cargo/config.toml`), of which most wait.
fn jobs_for(processors: usize) -> usize {
    (processors / 2).clamp(2, 4)
}

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options<'a> {
    packages: Vec<&'a str>,
    except: Vec<&'a str>,
    jobs: Option<usize>,
}

fn options<'a>(args: &[&'a str]) -> Result<Options<'a>> {
    let mut options = Options::default();
    let mut args = args.iter().copied().peekable();
    while let Some(arg) = args.next() {
        match arg {
            "--package" | "--except" => {
                let names = if arg == "--package" { &mut options.packages } else { &mut options.except };
                while let Some(name) = args.next_if(|next| !next.starts_with("--")) {
                    names.push(name);
                }
                ensure!(!names.is_empty(), "{arg} takes names\n{USAGE}");
            }
            "--jobs" => {
                let jobs = args.next().and_then(|jobs| jobs.parse().ok()).filter(|&jobs| jobs > 0);
                options.jobs = Some(jobs.with_context(|| format!("--jobs takes a number from 1\n{USAGE}"))?);
            }
            _ => bail!("'{arg}' is no option of test\n{USAGE}"),
        }
    }
    Ok(options)
}

/// Runs the chore.
pub(crate) fn run(repo: &Repo, args: &[&str]) -> Result<()> {
    let options = options(args)?;
    let known = Known::read(repo)?;
    let programs = program::build(repo)?;
    let is_there = |name: &str| programs.iter().any(|program| program.name == name);
    for name in options.except.iter().copied().chain(known.names()) {
        ensure!(is_there(name), "there is no test program {name}");
    }
    for name in &options.packages {
        ensure!(
            programs.iter().any(|program| program.package == *name),
            "no test program is of package {name}"
        );
    }
    let chosen: Vec<Program> = programs
        .into_iter()
        .filter(|program| options.packages.is_empty() || options.packages.contains(&program.package.as_str()))
        .filter(|program| !options.except.contains(&program.name.as_str()))
        .collect();
    let jobs = options
        .jobs
        .unwrap_or_else(|| jobs_for(std::thread::available_parallelism().map_or(1, std::num::NonZero::get)));
    let (count, began) = (chosen.len(), Instant::now());
    let (beside, alone) = known.order(chosen);
    let mut failed = side_by_side(beside, jobs)?;
    failed.extend(side_by_side(alone, 1)?);
    ensure!(
        failed.is_empty(),
        "{} of {count} test programs failed:\n    {}",
        failed.len(),
        failed.join("\n    ")
    );
    println!("\nall of {count} test programs passed, in {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Runs programs in this order, `jobs` at a time; returns those that failed, each as the command that
/// repeats it and its exit status.
fn side_by_side(programs: Vec<Program>, jobs: usize) -> Result<Vec<String>> {
    let waiting = Mutex::new(VecDeque::from(programs));
    let failed = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        loop {
            // A statement of its own: the guard must not live while the program runs.
            let next = lock(&waiting).pop_front();
            let Some(program) = next else { return Ok(()) };
            let ran = program.run()?;
            // One write under the lock, so that outputs do not mix.
            let mut text = program
                .heading
                .as_ref()
                .map(|heading| format!("{heading}\n").into_bytes())
                .unwrap_or_default();
            text.extend(ran.output);
            std::io::stdout().lock().write_all(&text).context("cannot write to standard output")?;
            if !ran.status.is_some_and(|status| status.success()) {
                let end = ran.status.map_or("ended after its time limit".to_owned(), |end| end.to_string());
                lock(&failed).push(format!("`{}`: {end}", program.repeat));
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(failed.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let read = options(&["--package", "a", "b", "--jobs", "3", "--except", "a/x"]).unwrap();
        assert_eq!(read, Options { packages: vec!["a", "b"], except: vec!["a/x"], jobs: Some(3) });
        assert_eq!(options(&[]).unwrap(), Options::default());
        for wrong in
            [&["--jobs", "0"][..], &["--jobs"], &["--package"], &["--package", "--jobs", "2"], &["a"]]
        {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }

    /// Each end of a pipe blocks until the other one is opened.
    #[test]
    fn two_programs_run_at_a_time_and_a_failure_stops_no_other() {
        let dir = tempfile::tempdir().expect("directory");
        let ends = ["exec 3> fifo && echo on; echo there >&2", "exec 3< fifo; exit 3", "exit 7", "true"];
        let made =
            std::process::Command::new("mkfifo").arg(dir.path().join("fifo")).status().expect("mkfifo");
        assert!(made.success());
        let programs = ends
            .iter()
            .enumerate()
            .map(|(n, end)| Program::shell(dir.path(), &format!("p{n}"), end))
            .collect();
        let mut failed = side_by_side(programs, 2).unwrap();
        failed.sort();
        assert_eq!(failed, ["`repeat p1`: exit status: 3", "`repeat p2`: exit status: 7"]);
        let output =
            Program::shell(dir.path(), "both", "echo one; echo two >&2; echo three").run().unwrap().output;
        assert_eq!(String::from_utf8(output).unwrap(), "one\ntwo\nthree\n", "both streams, in order");
    }

    #[test]
    fn what_a_test_leaves_running_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("directory");
        let ran = Program::shell(dir.path(), "parent", "sleep 600 & echo $!").run().unwrap();
        let child = String::from_utf8(ran.output).unwrap();
        assert!(std::process::Command::new("kill").arg(child.trim()).status().expect("kill").success());
    }

    #[test]
    fn small_machines_run_two_at_a_time() {
        assert_eq!([1, 2, 4, 6, 64].map(jobs_for), [2, 2, 2, 3, 4]);
    }
}
