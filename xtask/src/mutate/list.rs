//! The list of bugs to plant, `xtask/mutations.toml`:
//!
//! ```toml
//! [[mutation]]
//! name = "what-it-is-called"
//! file = "crates/array/src/write.rs"
//! old = '''a text that stands in the file exactly once'''
//! new = '''what replaces it'''
//! breaks = "what is wrong then"
//! test = "PACKAGE[+FEATURES] lib|bin:NAME|TEST-FILE NAME-OF-THE-TEST"   # or: seeds = "ARGUMENTS of longhaul-sim"
//! ```

use super::catcher::Catcher;
use crate::repo::Repo;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;

const LIST: &str = "xtask/mutations.toml";

#[derive(Deserialize)]
struct Listed {
    mutation: Vec<Entry>,
}

/// An entry as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    file: String,
    old: String,
    new: String,
    breaks: String,
    test: Option<String>,
    seeds: Option<String>,
}

/// A bug that can be planted.
pub(crate) struct Mutation {
    pub(crate) name: String,
    /// The file that it is planted in, from the root.
    pub(crate) file: String,
    /// The promise that is broken.
    pub(crate) breaks: String,
    /// The test that must fail.
    pub(crate) catcher: Catcher,
    /// The file without it, and with it.
    pub(crate) original: String,
    pub(crate) mutated: String,
}

/// Reads the list; an error names every entry that cannot be planted.
pub(crate) fn read(repo: &Repo) -> Result<Vec<Mutation>> {
    let text = &repo.file(LIST).with_context(|| format!("there is no {LIST}"))?.text;
    let listed: Listed = toml::from_str(text).with_context(|| format!("{LIST} is not understood"))?;
    let (mut mutations, mut wrong, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for entry in listed.mutation {
        let name = entry.name.clone();
        if !names.insert(name.clone()) {
            wrong.push(format!("{name}: stands there twice"));
        }
        match entry.read(repo) {
            Ok(mutation) => mutations.push(mutation),
            Err(e) => wrong.push(format!("{name}: {e:#}")),
        }
    }
    ensure!(wrong.is_empty(), "{LIST} does not fit the code:\n  {}", wrong.join("\n  "));
    Ok(mutations)
}

impl Entry {
    fn read(self, repo: &Repo) -> Result<Mutation> {
        let original =
            repo.file(&self.file).with_context(|| format!("there is no {}", self.file))?.text.clone();
        let mutated = replaced(&original, &self.old, &self.new).with_context(|| self.file.clone())?;
        let catcher = match (self.test, self.seeds) {
            (Some(test), None) => Catcher::test(&test)?,
            (None, Some(seeds)) => Catcher::Seeds(seeds),
            _ => bail!("it has one of `test` and `seeds`"),
        };
        Ok(Mutation { name: self.name, file: self.file, breaks: self.breaks, catcher, original, mutated })
    }
}

/// `text` with `old` replaced, which has to be in it exactly once.
fn replaced(text: &str, old: &str, new: &str) -> Result<String> {
    ensure!(!old.is_empty() && old != new, "it replaces nothing");
    match text.matches(old).count() {
        1 => Ok(text.replacen(old, new, 1)),
        times => bail!("the text to replace stands in it {times} times, not once: {old:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_replaced_that_stands_there_once() {
        assert_eq!(replaced("a + b", "+", "-").unwrap(), "a - b");
        for (text, old, new) in [("a", "b", "c"), ("a a", "a", "b"), ("a", "", "b"), ("a", "a", "a")] {
            assert!(replaced(text, old, new).is_err(), "{text} {old} {new}");
        }
    }
}
