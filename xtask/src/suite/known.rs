//! What is known of test programs before they run, `xtask/tests.toml`: how long those take that take
//! long, and which must run alone.
//!
//! ```toml
//! [[program]]
//! name = "PACKAGE/lib|bin:NAME|TEST-FILE"
//! seconds = 40                            # with nothing beside it, on two processors
//! alone = "why it must run alone"         # only where it must
//! ```

use crate::repo::Repo;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

const LIST: &str = "xtask/tests.toml";
/// What a program takes that is not listed.
const OTHERS: u32 = 1;

#[derive(Default, Deserialize)]
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

    /// Whether a program must run alone.
    pub(crate) fn is_alone(&self, program: &str) -> bool {
        self.entry(program).is_some_and(|entry| entry.alone.is_some())
    }

    /// Seconds that a program takes.
    pub(crate) fn seconds(&self, program: &str) -> u32 {
        self.entry(program).map_or(OTHERS, |entry| entry.seconds)
    }

    #[cfg(test)]
    pub(crate) fn of(seconds: &[(&str, u32)]) -> Known {
        let entry = |&(name, seconds): &(&str, u32)| Entry { name: name.to_owned(), seconds, alone: None };
        Known { program: seconds.iter().map(entry).collect() }
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
