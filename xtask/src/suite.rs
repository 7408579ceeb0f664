//! `cargo xtask test`: builds all tests once, and runs the test programs side by side, each as soon as it
//! is built.
//!
//! `cargo test` runs one program after the other, and most of them wait more than they compute: for
//! timeouts, emulated links and other processes. So the build, at a low priority, has what they leave of the
//! processors. Invariants:
//! - a program that compares times or rates runs alone ([`known`]), after the build;
//! - programs that are left to CI run if they, or their packages, are asked for;
//! - the output of a program is printed whole, behind the line that cargo prints before it, so that
//!   scripts which read the output of `cargo test` read this, too;
//! - every program runs, also after a failure or a time limit; the end names those that failed.

mod known;
mod processors;
mod program;

use crate::repo::Repo;
use anyhow::{Context, Result, bail, ensure};
use known::Known;
use processors::Idleness;
use program::Program;
use std::cmp::Reverse;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) const USAGE: &str = "\
usage: cargo xtask test [--all | --ci] [--package NAME...] [--except PACKAGE/PROGRAM...]
                        [--jobs N] [--record]

  --all                        also what is left to CI: programs that xtask/tests.toml
                               gives a reason for
  --ci                         those programs alone
  --package NAME...            the programs of these packages alone, without doc tests
  --except PACKAGE/PROGRAM...  without these programs, such as longhaul-array/crash
  --jobs N                     programs at a time, instead of as many as keep
                               the processors busy
  --record                     write into xtask/tests.toml how long each took: for
                               a quiet machine with two processors

LONGHAUL_FEATURES=longhaul/tls in the environment builds them with TLS, as CI does";

/// How many programs run at a time.
///
/// Each runs four tests at a time (`.cargo/config.toml`), of which most wait: with three programs on two
/// processors these were idle for most of the first minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Jobs {
    /// Always.
    least: usize,
    /// While processors are idle.
    most: usize,
}

impl Jobs {
    fn exactly(jobs: usize) -> Jobs {
        Jobs { least: jobs, most: jobs }
    }

    fn on(processors: usize) -> Jobs {
        let least = (processors / 2 + 2).clamp(3, 6);
        Jobs { least, most: least + 2 }
    }
}

/// The share of the processors that has to be idle for one more program.
const IDLE: f64 = 0.35;
/// How often a waiting program looks at the processors.
const LOOK: Duration = Duration::from_secs(1);

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options<'a> {
    which: Which,
    packages: Vec<&'a str>,
    except: Vec<&'a str>,
    jobs: Option<usize>,
    record: bool,
}

/// Which programs run, of those that are left to CI and of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Which {
    #[default]
    Others,
    All,
    Ci,
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
            "--all" => options.which = Which::All,
            "--ci" => options.which = Which::Ci,
            "--record" => options.record = true,
            _ => bail!("'{arg}' is no option of test\n{USAGE}"),
        }
    }
    Ok(options)
}

impl Options<'_> {
    /// Whether a program is asked for, were it not left to CI.
    fn wants(&self, program: &Program) -> bool {
        (self.packages.is_empty() || self.packages.contains(&program.package.as_str()))
            && !self.except.contains(&program.name.as_str())
    }

    /// Whether a program runs that is left to CI, or not.
    fn takes(&self, for_ci: bool) -> bool {
        match self.which {
            Which::Others => !for_ci || !self.packages.is_empty(),
            Which::All => true,
            Which::Ci => for_ci,
        }
    }
}

/// Runs the chore.
pub(crate) fn run(repo: &Repo, args: &[&str]) -> Result<()> {
    let options = options(args)?;
    let known = Known::read(repo)?;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = options.jobs.map_or_else(|| Jobs::on(processors), Jobs::exactly);
    let began = Instant::now();
    let (mut built, mut chosen, mut left, mut alone) = (Vec::new(), 0, 0, Vec::new());
    let mut ends = side_by_side(&known, jobs, |queue| {
        program::build(repo, |program| {
            built.push((program.package.clone(), program.name.clone()));
            if !options.wants(&program) {
                return;
            }
            if !options.takes(known.is_for_ci(&program.name)) {
                left += 1;
                return;
            }
            chosen += 1;
            match known.is_alone(&program.name) {
                true => alone.push(program),
                false => queue.add(program),
            }
        })
    })?;
    ends.extend(side_by_side(&known, Jobs::exactly(1), |queue| {
        alone.into_iter().for_each(|program| queue.add(program));
        Ok(())
    })?);
    slowest(&mut ends);
    let failed: Vec<&str> = ends.iter().filter_map(|end| end.failure.as_deref()).collect();
    if options.record {
        ensure!(failed.is_empty(), "programs that fail are not recorded: {}", failed.join(", "));
        known.record(repo, &ends)?;
    }
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
    let seconds = began.elapsed().as_secs_f64();
    let spent = processors::spent().map(|time| format!(" ({:.0} s of the processors)", time.as_secs_f64()));
    println!("\nall of {chosen} test programs passed, in {seconds:.0} s{}", spent.unwrap_or_default());
    if options.which == Which::Others && left > 0 {
        println!("{left} that take long were left to CI: `cargo xtask test --ci` runs them");
    }
    Ok(())
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct End {
    /// [`Program::name`].
    pub(crate) name: String,
    pub(crate) took: Duration,
    /// The command that repeats it, and how it ended, unless it passed.
    failure: Option<String>,
}

/// Sorts by time, and prints those that took longest.
fn slowest(ends: &mut [End]) {
    ends.sort_by_key(|end| Reverse(end.took));
    println!("\nslowest:");
    for end in ends.iter().take(10) {
        println!("{:>6.1} s  {}", end.took.as_secs_f64(), end.name);
    }
}

/// Programs that wait for their turn.
struct Queue<'a> {
    known: &'a Known,
    jobs: Jobs,
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    programs: Vec<Program>,
    running: usize,
    idleness: Idleness,
    /// No more will be added.
    is_complete: bool,
}

impl<'a> Queue<'a> {
    fn new(known: &'a Known, jobs: Jobs) -> Queue<'a> {
        Queue { known, jobs, state: Mutex::default(), changed: Condvar::new() }
    }

    fn add(&self, program: Program) {
        lock(&self.state).programs.push(program);
        self.changed.notify_one();
    }

    fn complete(&self) {
        lock(&self.state).is_complete = true;
        self.changed.notify_all();
    }

    /// The longest of those that wait, so that none begins late that takes long; the first of equal ones.
    /// Waits until one is built, and may run. `None` when all have begun.
    fn next(&self) -> Option<Program> {
        let mut state = lock(&self.state);
        loop {
            let seconds = |(n, program): &(usize, &Program)| (self.known.seconds(&program.name), Reverse(*n));
            let longest = state.programs.iter().enumerate().max_by_key(seconds).map(|(n, _)| n);
            match longest {
                Some(n) if state.may_begin(self.jobs) => {
                    state.running += 1;
                    return Some(state.programs.remove(n));
                }
                None if state.is_complete => return None,
                _ => {}
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A program has ended.
    fn ended(&self) {
        lock(&self.state).running -= 1;
        self.changed.notify_one();
    }
}

impl Waiting {
    fn may_begin(&mut self, jobs: Jobs) -> bool {
        self.running < jobs.least
            || (self.running < jobs.most && self.idleness.over(LOOK).is_some_and(|share| share >= IDLE))
    }
}

/// Runs the programs that `find` adds to a queue, `jobs` at a time, while it still adds; returns how they
/// ended.
fn side_by_side(known: &Known, jobs: Jobs, find: impl FnOnce(&Queue<'_>) -> Result<()>) -> Result<Vec<End>> {
    let queue = Queue::new(known, jobs);
    let ends = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        while let Some(program) = queue.next() {
            let ran = program.run();
            queue.ended();
            let ran = ran?;
            // One write under the lock, so that outputs do not mix.
            let mut text = program
                .heading
                .as_ref()
                .map(|heading| format!("{heading}\n").into_bytes())
                .unwrap_or_default();
            text.extend(ran.output);
            std::io::stdout().lock().write_all(&text).context("cannot write to standard output")?;
            let failure = (!ran.status.is_some_and(|status| status.success())).then(|| {
                let end = ran.status.map_or("ended after its time limit".to_owned(), |end| end.to_string());
                format!("`{}`: {end}", program.repeat)
            });
            lock(&ends).push(End { name: program.name, took: ran.took, failure });
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.most).map(|_| scope.spawn(work)).collect();
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
    Ok(ends.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn failures(ends: &[End]) -> Vec<&str> {
        ends.iter().filter_map(|end| end.failure.as_deref()).collect()
    }

    #[test]
    fn options_are_read() {
        let read = options(&["--package", "a", "b", "--jobs", "3", "--except", "a/x"]).unwrap();
        let packages = vec!["a", "b"];
        assert_eq!(read, Options { packages, except: vec!["a/x"], jobs: Some(3), ..Options::default() });
        assert!(options(&["--record"]).unwrap().record);
        assert_eq!(options(&[]).unwrap(), Options::default());
        for wrong in
            [&["--jobs", "0"][..], &["--jobs"], &["--package"], &["--package", "--jobs", "2"], &["a"]]
        {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_left_to_ci_runs_when_it_is_asked_for() {
        let takes = |args: &[&str]| [false, true].map(|for_ci| options(args).unwrap().takes(for_ci));
        assert_eq!(takes(&[]), [true, false]);
        assert_eq!(takes(&["--all"]), [true, true]);
        assert_eq!(takes(&["--ci"]), [false, true]);
        assert_eq!(takes(&["--package", "a"]), [true, true]);
    }

    /// Each end of a pipe blocks until the other one is opened.
    #[test]
    fn two_programs_run_at_a_time_and_a_failure_stops_no_other() {
        let dir = tempfile::tempdir().expect("directory");
        let ends = ["exec 3> fifo && echo on; echo there >&2", "exec 3< fifo; exit 3", "exit 7", "true"];
        let made =
            std::process::Command::new("mkfifo").arg(dir.path().join("fifo")).status().expect("mkfifo");
        assert!(made.success());
        let ran = side_by_side(&Known::default(), Jobs::exactly(2), |queue| {
            for (n, end) in ends.iter().enumerate() {
                queue.add(Program::shell(dir.path(), &format!("p{n}"), end));
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(ran.len(), ends.len());
        let mut failed = failures(&ran);
        failed.sort_unstable();
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
        let ran = side_by_side(&Known::default(), Jobs::exactly(1), |queue| {
            queue.add(Program::shell(dir.path(), "first", "exec 3< fifo"));
            // Blocks until the first one runs.
            std::fs::File::options().write(true).open(dir.path().join("fifo"))?;
            queue.add(Program::shell(dir.path(), "second", "exit 1"));
            Ok(())
        });
        assert_eq!(failures(&ran.unwrap()), ["`repeat second`: exit status: 1"]);
    }

    #[test]
    fn a_build_that_fails_fails_the_chore() {
        let dir = tempfile::tempdir().expect("directory");
        let failed = side_by_side(&Known::default(), Jobs::exactly(1), |queue| {
            queue.add(Program::shell(dir.path(), "built", "true"));
            bail!("it does not compile")
        });
        assert_eq!(failed.unwrap_err().to_string(), "it does not compile");
    }

    #[test]
    fn the_longest_begins_first() {
        let known = Known::of(&[("a/middling", 5), ("b/long", 9)]);
        let queue = Queue::new(&known, Jobs::exactly(4));
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
    fn at_least_three_run_at_a_time_and_few_more_than_processors() {
        let jobs = [1, 2, 4, 6, 64].map(|processors| Jobs::on(processors).least);
        assert_eq!(jobs, [3, 3, 4, 5, 6]);
    }

    #[test]
    fn more_programs_begin_on_idle_processors_only() {
        let jobs = Jobs { least: 1, most: 3 };
        let idle = |share| Waiting { running: 1, idleness: Idleness::always(share), ..Waiting::default() };
        assert!(idle(IDLE).may_begin(jobs));
        assert!(!idle(IDLE / 2.0).may_begin(jobs));
        assert!(Waiting { running: 0, ..idle(0.0) }.may_begin(jobs), "the least in any case");
        assert!(!Waiting { running: 3, ..idle(1.0) }.may_begin(jobs), "the most are running");
    }
}
