//! What is known of test programs before they run, `xtask/tests.toml`: how long those take that take
//! long, and which must run alone.
//!
//! ```toml
//! [[program]]
//! name = "PACKAGE/lib|bin:NAME|TEST-FILE"
//! seconds = 40                            # with nothing beside it, on two processors
//! alone = "why it must run alone"         # only where it must
//! ```

use super::program::Program;
use crate::repo::Repo;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

const LIST: &str = "xtask/tests.toml";
/// What a program takes that is not listed.
const OTHERS: u32 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Known {
    program: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    seconds: u32,
    alone: Option<String>,
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
        }
        Ok(known)
    }

    /// All names of the list.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.program.iter().map(|entry| entry.name.as_str())
    }

    /// Programs that may run beside others, and those that run alone; the longest first, so that none
    /// begins late that takes long.
    pub(crate) fn order(&self, mut programs: Vec<Program>) -> (Vec<Program>, Vec<Program>) {
        let entry = |program: &Program| self.program.iter().find(|entry| entry.name == program.name);
        let seconds = |program: &Program| entry(program).map_or(OTHERS, |entry| entry.seconds);
        programs.sort_by_key(|program| std::cmp::Reverse(seconds(program)));
        programs.into_iter().partition(|program| entry(program).is_none_or(|entry| entry.alone.is_none()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_longest_begins_first_and_what_measures_runs_alone() {
        let known = Known::parse(
            r#"
            [[program]]
            name = "a/middling"
            seconds = 5
            [[program]]
            name = "a/rates"
            seconds = 50
            alone = "compares rates"
            [[program]]
            name = "b/long"
            seconds = 9
            "#,
        )
        .unwrap();
        let made = |name: &&str| Program::shell(Path::new("/"), name, "true");
        let all = ["a/short", "a/middling", "a/rates", "b/long", "b/short"];
        let (beside, alone) = known.order(all.iter().map(made).collect());
        let names = |programs: Vec<Program>| programs.into_iter().map(|p| p.name).collect::<Vec<_>>();
        assert_eq!(names(beside), ["b/long", "a/middling", "a/short", "b/short"]);
        assert_eq!(names(alone), ["a/rates"]);
    }

    #[test]
    fn a_list_that_contradicts_itself_is_refused() {
        let one = "[[program]]\nname = \"a\"\nseconds = 1\n";
        assert!(Known::parse(one).is_ok());
        assert!(Known::parse(&one.repeat(2)).is_err(), "twice");
        assert!(Known::parse(&format!("{one}alone = \"\"\n")).is_err(), "no reason");
        assert!(Known::parse(&format!("{one}slow = true\n")).is_err(), "unknown field");
    }

    #[test]
    fn the_list_of_this_repository_is_understood() {
        Known::read(&Repo::open().unwrap()).unwrap();
    }
}
