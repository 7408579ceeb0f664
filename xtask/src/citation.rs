//! Citations of the specifications in comments: the clauses that are checked, and the tests that
//! show it.
//!
//! A check carries `//= DOCUMENT §SECTION: requirement`, a test carries `//= test: DOCUMENT
//! §SECTION`; where the section's number is not known for certain, `DOCUMENT, Name of the section
//! or figure` stands for `DOCUMENT §SECTION`.

use crate::repo::{File, Finding, Repo};

/// The documents that may be cited.
pub(crate) const DOCUMENTS: [&str; 5] =
    ["NVMe Base 2.1", "NVMe Base 2.3", "NVMe-TCP 1.1", "NVM Command Set 1.1", "NVMe Boot 1.1"];

/// One citation of a specification, in a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Citation {
    /// One of [`DOCUMENTS`].
    pub(crate) document: &'static str,
    /// `§3.6.2.1`, or a name.
    pub(crate) clause: String,
    /// What the clause asks, for a check; nothing for a test.
    pub(crate) asks: Option<String>,
    /// Path of the file.
    pub(crate) path: String,
    /// The function that carries it.
    pub(crate) function: Option<String>,
}

/// All citations of the repository, and findings about those that are not well-formed.
pub(crate) fn all(repo: &Repo) -> (Vec<Citation>, Vec<Finding>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for file in repo.with_extension("rs").filter(|f| f.path != "xtask/src/citation.rs") {
        for (number, line) in file.lines() {
            let Some(text) = line.trim_start().strip_prefix("//=") else { continue };
            match parse(text) {
                Ok((document, clause, asks)) => {
                    let function = if asks.is_some() {
                        enclosing_function(file, number)
                    } else {
                        next_function(file, number)
                    };
                    good.push(Citation { document, clause, asks, path: file.path.clone(), function });
                }
                Err(why) => bad.push(Finding::at(file, number, why)),
            }
        }
    }
    (good, bad)
}

fn parse(text: &str) -> Result<(&'static str, String, Option<String>), String> {
    let text = text.strip_prefix(' ').ok_or("a citation starts with `//= ` and a space")?;
    let (rest, is_test) = match text.strip_prefix("test: ") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let document = DOCUMENTS
        .into_iter()
        .find(|d| rest.starts_with(d))
        .ok_or_else(|| format!("cites none of: {}", DOCUMENTS.join(", ")))?;
    let rest = &rest[document.len()..];
    let (clause, asks) = match rest.split_once(": ") {
        Some((clause, asks)) => (clause, Some(asks.trim())),
        None => (rest, None),
    };
    let clause = match (clause.strip_prefix(" §"), clause.strip_prefix(", ")) {
        (Some(number), _) if is_section(number) => format!("§{number}"),
        (_, Some(name)) if !name.trim().is_empty() => name.trim().to_owned(),
        _ => return Err("after the document comes ` §1.2.3` or `, Name of the section`".to_owned()),
    };
    match (is_test, asks) {
        (true, None) => Ok((document, clause, None)),
        // A test may add words; it shows the whole clause.
        (true, Some(_)) => Ok((document, clause, None)),
        (false, Some(asks)) if !asks.is_empty() => Ok((document, clause, Some(asks.to_owned()))),
        (false, _) => Err("after the clause write `: ` and the requirement, in words of your own".to_owned()),
    }
}

fn is_section(number: &str) -> bool {
    number.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

/// The name in `fn NAME`, where `line` declares one.
pub(crate) fn declared_function(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    loop {
        let (word, after) = rest.split_once(' ')?;
        match word {
            "fn" | "def" => {
                let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
                return Some(&after[..end]);
            }
            "pub" | "const" | "async" | "unsafe" | "pub(crate)" | "pub(super)" => rest = after,
            _ => return None,
        }
    }
}

fn enclosing_function(file: &File, number: usize) -> Option<String> {
    let lines: Vec<&str> = file.text.lines().take(number).collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mine = indent(lines.last()?);
    let above = lines.iter().rev().find(|l| declared_function(l).is_some() && indent(l) < mine);
    above.and_then(|l| declared_function(l)).map(str::to_owned).or_else(|| next_function(file, number))
}

fn next_function(file: &File, number: usize) -> Option<String> {
    file.text.lines().skip(number).find_map(declared_function).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_understood() {
        let (document, clause, asks) = parse(" NVMe-TCP 1.1 §3.6.2.1: HLEN is fixed").unwrap();
        assert_eq!((document, clause.as_str()), ("NVMe-TCP 1.1", "§3.6.2.1"));
        assert_eq!(asks.as_deref(), Some("HLEN is fixed"));
        let (_, clause, asks) = parse(" test: NVMe Base 2.1, Abort command").unwrap();
        assert_eq!((clause.as_str(), asks), ("Abort command", None));
    }

    #[test]
    fn what_cannot_be_listed_is_refused() {
        for bad in [
            "NVMe-TCP 1.1 §3: x",
            " NVMe-TCP 1.1 §3",
            " TCP §3: x",
            " NVMe Base 2.1 §: x",
            " NVMe Base 2.1 3: x",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn functions_are_found_behind_their_qualifiers() {
        assert_eq!(declared_function("    pub(crate) const fn plen(&self) -> u32 {"), Some("plen"));
        assert_eq!(declared_function("pub fn get<T: Copy>(x: T) {"), Some("get"));
        assert_eq!(declared_function("def identify(bench):"), Some("identify"));
        assert_eq!(declared_function("    // fn in a comment"), None);
    }
}
