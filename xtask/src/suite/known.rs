//! What is known of test programs before they run, `xtask/tests.toml`: how long those take that take
//! long, which must run alone, and which are left to CI.
//!
//! ```toml
//! [[program]]
//! name = "PACKAGE/lib|bin:NAME|TEST-FILE"
//! seconds = 40                            # beside the others, on two processors
//! alone = "why it must run alone"         # only where it must
//! ci = "why CI runs it"                   # only where it takes long for what people change at a time
//! ```

use super::End;
use crate::repo::Repo;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::time::Duration;

const LIST: &str = "xtask/tests.toml";
/// What a program takes that is not listed.
const OTHERS: u32 = 1;
/// Programs that take less are not listed.
const LISTED: Duration = Duration::from_secs(5);
const HEAD: &str = "\
# What `cargo xtask test` knows of test programs; xtask/src/suite/known.rs says what the fields are.
# Written by `cargo xtask test --all --record`, but for `alone` and `ci`.

";

#[derive(Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Known {
    program: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    seconds: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    alone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ci: Option<String>,
}

impl Entry {
    fn new(name: &str, seconds: u32) -> Entry {
        Entry { name: name.to_owned(), seconds, alone: None, ci: None }
    }
}

impl Known {
    /// Reads the list.
    pub(crate) fn read(repo: &Repo) -> Result<Known> {
        let text = &repo.file(LIST).with_context(|| format!("there is no {LIST}"))?.text;
        Known::parse(text).with_context(|| format!("{LIST} is not understood"))
    }

    fn parse(text: &str) -> Result<Known> {
        let known: Known = toml::from_str(text)?;
        for (n, entry) in known.program.iter().enumerate() {
            let is_first = known.program[..n].iter().all(|before| before.name != entry.name);
            ensure!(is_first, "{} is listed twice", entry.name);
            ensure!(entry.alone.as_deref() != Some(""), "{}: `alone` is a reason", entry.name);
            ensure!(entry.ci.as_deref() != Some(""), "{}: `ci` is a reason", entry.name);
        }
        Ok(known)
    }

    /// All names of the list.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.program.iter().map(|entry| entry.name.as_str())
    }

    /// Whether a program must run alone.
    pub(crate) fn is_alone(&self, program: &str) -> bool {
        self.entry(program).is_some_and(|entry| entry.alone.is_some())
    }

    /// Whether a program is left to CI.
    pub(crate) fn is_for_ci(&self, program: &str) -> bool {
        self.entry(program).is_some_and(|entry| entry.ci.is_some())
    }

    /// Seconds that a program takes.
    pub(crate) fn seconds(&self, program: &str) -> u32 {
        self.entry(program).map_or(OTHERS, |entry| entry.seconds)
    }

    /// Writes the list anew with the times of a run, which may be one of some programs alone.
    ///
    /// # Errors
    ///
    /// If the list cannot be written.
    pub(crate) fn record(&self, repo: &Repo, ends: &[End]) -> Result<()> {
        let text = toml::to_string(&self.with(ends)).context("the list cannot be put into words")?;
        let path = repo.root.join(LIST);
        std::fs::write(&path, HEAD.to_owned() + &text)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// This list with the times of programs that ran, those that take longest first.
    fn with(&self, ends: &[End]) -> Known {
        let ran = |name: &str| ends.iter().any(|end| end.name == name);
        let mut program: Vec<_> = self.program.iter().filter(|entry| !ran(&entry.name)).cloned().collect();
        for end in ends {
            let seconds = end.took.as_secs_f64().round().max(1.0) as u32;
            match self.entry(&end.name) {
                Some(entry) if entry.alone.is_some() || entry.ci.is_some() => {
                    program.push(Entry { seconds, ..entry.clone() });
                }
                _ if end.took >= LISTED => program.push(Entry::new(&end.name, seconds)),
                _ => {}
            }
        }
        program.sort_by(|a, b| (Reverse(a.seconds), &a.name).cmp(&(Reverse(b.seconds), &b.name)));
        Known { program }
    }

    #[cfg(test)]
    pub(crate) fn of(seconds: &[(&str, u32)]) -> Known {
        Known { program: seconds.iter().map(|(name, seconds)| Entry::new(name, *seconds)).collect() }
    }

    fn entry(&self, program: &str) -> Option<&Entry> {
        self.program.iter().find(|entry| entry.name == program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_listed_is_short_and_runs_beside_others() {
        let text = "[[program]]\nname = \"a/rates\"\nseconds = 50\nalone = \"compares rates\"\n";
        let known = Known::parse(text).unwrap();
        assert_eq!((known.seconds("a/rates"), known.is_alone("a/rates")), (50, true));
        assert_eq!((known.seconds("a/other"), known.is_alone("a/other")), (OTHERS, false));
        assert!(!known.is_for_ci("a/rates") && !known.is_for_ci("a/other"));
    }

    #[test]
    fn a_list_that_contradicts_itself_is_refused() {
        let one = "[[program]]\nname = \"a\"\nseconds = 1\n";
        assert!(Known::parse(one).is_ok());
        assert!(Known::parse(&one.repeat(2)).is_err(), "twice");
        assert!(Known::parse(&format!("{one}alone = \"\"\n")).is_err(), "no reason");
        assert!(Known::parse(&format!("{one}ci = \"\"\n")).is_err(), "no reason");
        assert!(Known::parse(&format!("{one}slow = true\n")).is_err(), "unknown field");
    }

    #[test]
    fn times_of_a_run_replace_those_of_the_list() {
        let mut known = Known::of(&[("a/long", 9), ("a/fast", 8), ("b/other", 30), ("b/alone", 7)]);
        known.program[3].alone = Some("it compares rates".to_owned());
        known.program[0].ci = Some("it crashes at every step".to_owned());
        let end = |name: &str, millis| End {
            name: name.to_owned(),
            took: Duration::from_millis(millis),
            failure: None,
        };
        let ends = [
            end("a/long", 40_400),
            end("a/fast", 800),
            end("a/new", 5_600),
            end("a/x", 4_900),
            end("b/alone", 10),
        ];
        let new = known.with(&ends);
        let list: Vec<_> = new.program.iter().map(|entry| (entry.name.as_str(), entry.seconds)).collect();
        assert_eq!(list, [("a/long", 40), ("b/other", 30), ("a/new", 6), ("b/alone", 1)]);
        assert!(new.is_alone("b/alone") && new.is_for_ci("a/long"));
        assert_eq!(Known::parse(&toml::to_string(&new).unwrap()).unwrap(), new, "what is written is read");
    }

    #[test]
    fn the_list_of_this_repository_is_understood() {
        Known::read(&Repo::open().unwrap()).unwrap();
    }
}
