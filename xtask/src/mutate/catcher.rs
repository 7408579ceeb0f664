//! The catcher of a planted bug: one test, or seeds of the simulator.

use super::scratch::Scratch;
use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::process::Output;

/// Exit status of `timeout` when time was up, and when it had to kill.
const TIMED_OUT: [i32; 2] = [124, 137];

pub(crate) enum Catcher {
    /// A test of a package, by the binary that it is in; behind a plus sign, features that the package is built with.
    Test { package: String, binary: String, name: String },
    /// Arguments of the simulator.
    Seeds(String),
}

/// What became of a planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The test failed.
    Failed,
    /// The test waited for ever.
    Hung,
    /// The test passed.
    Survived,
}

impl Outcome {
    pub(crate) fn is_caught(self) -> bool {
        self != Outcome::Survived
    }
}

impl Catcher {
    /// `PACKAGE[+FEATURES] BINARY NAME` of a list.
    pub(crate) fn test(text: &str) -> Result<Catcher> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [package, binary, name] = words[..] else { bail!("a test is `PACKAGE BINARY NAME`: {text:?}") };
        let (package, binary, name) = (package.to_owned(), binary.to_owned(), name.to_owned());
        Ok(Catcher::Test { package, binary, name })
    }

    /// The binary that it needs: equal for catchers that share one.
    pub(crate) fn binary(&self) -> String {
        match self {
            Catcher::Test { package, binary, .. } => format!("{package} {binary}"),
            Catcher::Seeds(_) => "longhaul-sim seeds".to_owned(),
        }
    }

    /// Arguments of cargo that choose the binary.
    fn arguments(&self) -> Vec<String> {
        match self {
            Catcher::Test { package, binary, .. } => {
                let (package, features) = package.split_once('+').unwrap_or((package, ""));
                let mut arguments = vec!["--locked".to_owned(), format!("--package={package}")];
                if !features.is_empty() {
                    arguments.push(format!("--features={features}"));
                }
                match (binary.as_str(), binary.strip_prefix("bin:")) {
                    ("lib", _) => arguments.push("--lib".to_owned()),
                    (_, Some(name)) => arguments.push(format!("--bin={name}")),
                    (name, None) => arguments.push(format!("--test={name}")),
                }
                arguments
            }
            Catcher::Seeds(_) => vec!["--locked".to_owned(), "--package=longhaul-sim".to_owned()],
        }
    }

    /// Runs it on the copy as it is.
    pub(crate) fn run(&self, scratch: &Scratch) -> Result<Outcome> {
        let arguments = self.arguments();
        let (verb, mut build, last) = match self {
            Catcher::Test { name, .. } => ("test", vec!["test", "--no-run"], vec!["--exact", name]),
            Catcher::Seeds(seeds) => ("run", vec!["build"], seeds.split_whitespace().collect()),
        };
        build.extend(arguments.iter().map(String::as_str));
        let built = output(scratch.cargo(&build))?;
        ensure!(built.status.success(), "it does not compile:\n{}", String::from_utf8_lossy(&built.stderr));
        let mut all = vec![verb];
        all.extend(arguments.iter().map(String::as_str));
        all.push("--");
        all.extend(last);
        let ran = output(scratch.limited_cargo(&all))?;
        Ok(match ran.status.code() {
            Some(0) => Outcome::Survived,
            Some(code) if TIMED_OUT.contains(&code) => Outcome::Hung,
            _ => Outcome::Failed,
        })
    }
}

/// Those of the catchers of one binary that fail on the unchanged copy, each with its output.
pub(crate) fn failing(scratch: &Scratch, catchers: &[&Catcher]) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let mut names = Vec::new();
    for catcher in catchers {
        match catcher {
            Catcher::Test { name, .. } => names.push(name.as_str()),
            Catcher::Seeds(_) if catcher.run(scratch)? == Outcome::Survived => {}
            Catcher::Seeds(_) => wrong.push(catcher.to_string()),
        }
    }
    let (Some(first), false) = (catchers.first(), names.is_empty()) else { return Ok(wrong) };
    let arguments = first.arguments();
    let mut all = vec!["test"];
    all.extend(arguments.iter().map(String::as_str));
    all.extend(["--", "--exact"]);
    all.extend(&names);
    let ran = output(scratch.cargo(&all))?;
    let (said, told) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    names.sort_unstable();
    names.dedup();
    for name in names {
        if !passed(&said, name) {
            wrong.push(format!("{} {name}: {}", first.binary(), reason(&said, &told)));
        } else if told.contains(&format!("skip: {name}: ")) {
            wrong.push(format!("{} {name}: it skips on this machine", first.binary()));
        }
    }
    Ok(wrong)
}

/// Whether the harness says that a test passed; one that does not exist or is ignored did not.
fn passed(said: &str, name: &str) -> bool {
    said.lines().any(|line| {
        line.strip_prefix("test ").and_then(|line| line.strip_prefix(name)).is_some_and(|rest| {
            rest == " ... ok" || (rest.starts_with(" - should panic") && rest.ends_with(" ... ok"))
        })
    })
}

fn reason(said: &str, told: &str) -> String {
    let last = |text: &str| text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned);
    last(said).or_else(|| last(told)).unwrap_or_default()
}

fn output(mut command: std::process::Command) -> Result<Output> {
    command.output().with_context(|| format!("cannot run {command:?}"))
}

impl fmt::Display for Catcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Catcher::Test { package, binary, name } => write!(f, "{package} {binary} {name}"),
            Catcher::Seeds(arguments) => write!(f, "longhaul-sim {arguments}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_test_that_ran_and_passed_did() {
        let said = "running 4 tests\ntest a::b ... ok\ntest a::c ... FAILED\ntest d ... ignored, slow\ntest e - should panic ... ok\n";
        assert!(passed(said, "a::b") && passed(said, "e"));
        for other in ["a", "a::c", "d", "x", "b"] {
            assert!(!passed(said, other), "{other}");
        }
    }

    #[test]
    fn a_catcher_names_package_binary_and_test() {
        let catcher = Catcher::test("longhaul-array crash a::b").unwrap();
        assert_eq!(catcher.to_string(), "longhaul-array crash a::b");
        assert_eq!(catcher.arguments(), ["--locked", "--package=longhaul-array", "--test=crash"]);
        assert_eq!(Catcher::test("p bin:x t").unwrap().arguments()[2], "--bin=x");
        let catcher = Catcher::test("p+f,q/f x t").unwrap();
        assert_eq!(catcher.arguments(), ["--locked", "--package=p", "--features=f,q/f", "--test=x"]);
        assert!(Catcher::test("longhaul-array crash").is_err());
    }
}
