//! `cargo xtask test`: builds all tests once, and runs the test programs side by side, each as soon as it
//! is built.
//!
//! `cargo test` runs one program after the other, and most of them wait more than they compute: for
//! timeouts, emulated links and other processes. So the build, at a low priority, has what they leave of the
//! processors. Invariants:
//! - a program that compares times or rates runs alone ([`known`]), after the build;
//! - the output of a program is printed whole, behind the line that cargo prints before it, so that
//!   scripts which read the output of `cargo test` read this, too;
//! - every program runs, also after a failure or a time limit; the end names those that failed.

mod known;
mod program;

use crate::repo::Repo;
use anyhow::{Context, Result, bail, ensure};
use known::Known;
use program::Program;
use std::cmp::Reverse;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub(crate) const USAGE: &str = "\
usage: cargo xtask test [--package NAME...] [--except PACKAGE/PROGRAM...] [--jobs N]

  --package NAME...            the programs of these packages alone, without doc tests
  --except PACKAGE/PROGRAM...  without these programs, such as longhaul-array/crash
  --jobs N                     programs at a time, instead of three to six";

/// Programs at a time. Each runs four tests at a time (`.cargo/config.toml`), of which most wait: with two
/// programs on two processors a third of these was idle.
fn jobs_for(processors: usize) -> usize {
    (processors / 2 + 2).clamp(3, 6)
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

impl Options<'_> {
    fn choose(&self, program: &Program) -> bool {
        (self.packages.is_empty() || self.packages.contains(&program.package.as_str()))
            && !self.except.contains(&program.name.as_str())
    }
}

/// Runs the chore.
pub(crate) fn run(repo: &Repo, args: &[&str]) -> Result<()> {
    let options = options(args)?;
    let known = Known::read(repo)?;
    let jobs = options
        .jobs
        .unwrap_or_else(|| jobs_for(std::thread::available_parallelism().map_or(1, std::num::NonZero::get)));
    let began = Instant::now();
    let (mut built, mut chosen, mut alone) = (Vec::new(), 0, Vec::new());
    let mut failed = side_by_side(&known, jobs, |queue| {
        program::build(repo, |program| {
            built.push((program.package.clone(), program.name.clone()));
            if !options.choose(&program) {
                return;
            }
            chosen += 1;
            match known.is_alone(&program.name) {
                true => alone.push(program),
                false => queue.add(program),
            }
        })
    })?;
    failed.extend(side_by_side(&known, 1, |queue| {
        alone.into_iter().for_each(|program| queue.add(program));
        Ok(())
    })?);
    for name in options.except.iter().copied().chain(known.names()) {
        ensure!(built.iter().any(|(_, program)| program == name), "there is no test program {name}");
    }
    for name in &options.packages {
        ensure!(built.iter().any(|(package, _)| package == name), "no test program is of package {name}");
    }
    ensure!(
        failed.is_empty(),
        "{} of {chosen} test programs failed:\n    {}",
        failed.len(),
        failed.join("\n    ")
    );
    println!("\nall of {chosen} test programs passed, in {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Programs that wait for their turn.
struct Queue<'a> {
    known: &'a Known,
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    programs: Vec<Program>,
    /// No more will be added.
    is_complete: bool,
}

impl Queue<'_> {
    fn add(&self, program: Program) {
        lock(&self.state).programs.push(program);
        self.changed.notify_one();
    }

    fn complete(&self) {
        lock(&self.state).is_complete = true;
        self.changed.notify_all();
    }

    /// The longest of those that wait, so that none begins late that takes long; the first of equal ones.
    /// Waits for the next one to be built. `None` when all have begun.
    fn next(&self) -> Option<Program> {
        let mut state = lock(&self.state);
        loop {
            let seconds = |(n, program): &(usize, &Program)| (self.known.seconds(&program.name), Reverse(*n));
            if let Some((n, _)) = state.programs.iter().enumerate().max_by_key(seconds) {
                return Some(state.programs.remove(n));
            }
            if state.is_complete {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Runs the programs that `find` adds to a queue, `jobs` at a time, while it still adds; returns those that
/// failed, each as the command that repeats it and its exit status.
fn side_by_side(
    known: &Known,
    jobs: usize,
    find: impl FnOnce(&Queue<'_>) -> Result<()>,
) -> Result<Vec<String>> {
    let queue = Queue { known, state: Mutex::default(), changed: Condvar::new() };
    let failed = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        while let Some(program) = queue.next() {
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
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let found = find(&queue);
        if found.is_err() {
            // What is not built would be missing from the count.
            lock(&queue.state).programs.clear();
        }
        queue.complete();
        let ran = workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        found.and(ran)
    })?;
    Ok(failed.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

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
        let mut failed = side_by_side(&Known::default(), 2, |queue| {
            for (n, end) in ends.iter().enumerate() {
                queue.add(Program::shell(dir.path(), &format!("p{n}"), end));
            }
            Ok(())
        })
        .unwrap();
        failed.sort();
        assert_eq!(failed, ["`repeat p1`: exit status: 3", "`repeat p2`: exit status: 7"]);
        let output =
            Program::shell(dir.path(), "both", "echo one; echo two >&2; echo three").run().unwrap().output;
        assert_eq!(String::from_utf8(output).unwrap(), "one\ntwo\nthree\n", "both streams, in order");
    }

    /// The first waits for a file that is made only after it has been added.
    #[test]
    fn a_program_runs_while_others_are_built() {
        let dir = tempfile::tempdir().expect("directory");
        let made = std::process::Command::new("mkfifo").arg(dir.path().join("fifo")).status();
        assert!(made.expect("mkfifo").success());
        let failed = side_by_side(&Known::default(), 1, |queue| {
            queue.add(Program::shell(dir.path(), "first", "exec 3< fifo"));
            // Blocks until the first one runs.
            std::fs::File::options().write(true).open(dir.path().join("fifo"))?;
            queue.add(Program::shell(dir.path(), "second", "exit 1"));
            Ok(())
        });
        assert_eq!(failed.unwrap(), ["`repeat second`: exit status: 1"]);
    }

    #[test]
    fn a_build_that_fails_fails_the_chore() {
        let dir = tempfile::tempdir().expect("directory");
        let failed = side_by_side(&Known::default(), 1, |queue| {
            queue.add(Program::shell(dir.path(), "built", "true"));
            bail!("it does not compile")
        });
        assert_eq!(failed.unwrap_err().to_string(), "it does not compile");
    }

    #[test]
    fn the_longest_begins_first() {
        let known = Known::of(&[("a/middling", 5), ("b/long", 9)]);
        let queue = Queue { known: &known, state: Mutex::default(), changed: Condvar::new() };
        let all = ["a/short", "a/middling", "b/long", "b/short"];
        all.iter().for_each(|name| queue.add(Program::shell(Path::new("/"), name, "true")));
        queue.complete();
        let order: Vec<String> = std::iter::from_fn(|| queue.next()).map(|program| program.name).collect();
        assert_eq!(order, ["b/long", "a/middling", "a/short", "b/short"]);
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
        assert_eq!([1, 2, 4, 6, 64].map(jobs_for), [3, 3, 4, 5, 6]);
    }
}
