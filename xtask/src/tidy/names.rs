//! Names of types say what they are, and each is there once in a crate.
//!
//! Types of tests do not count, nor do associated types.

use super::unwraps::test_modules;
use crate::repo::{File, Finding, Repo};
use crate::rust::{blank, test_lines};
use std::collections::BTreeMap;

/// Names that any type could have.
const VAGUE: [&str; 17] = [
    "Fate", "Held", "Inner", "Kept", "Kind", "Part", "Place", "Plan", "Record", "Seen", "Side", "State",
    "Step", "Stuff", "Thing", "Tried", "Way",
];

/// Crates, and names of those above that are their subject: a figure's place, and a result's record.
const ALLOWED: [(&str, &str); 2] = [("results", "Place"), ("results", "Record")];

/// Words before the name of a type.
const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Looks for names that say nothing, and for those that two types of a crate have.
pub(crate) fn check(repo: &Repo) -> Vec<Finding> {
    let sources: Vec<&File> = repo.with_extension("rs").filter(|file| crate_of(file).is_some()).collect();
    let tests: Vec<String> = sources.iter().flat_map(|file| test_modules(file)).collect();
    let is_test = |f: &File| {
        tests.iter().any(|test| f.path == format!("{test}.rs") || f.path.starts_with(&format!("{test}/")))
    };
    let mut first: BTreeMap<(&str, String), (&File, usize)> = BTreeMap::new();
    let mut findings = Vec::new();
    for file in sources.into_iter().filter(|file| !is_test(file)) {
        for (line, name) in types(&file.text) {
            let Some(of) = crate_of(file) else { continue };
            if VAGUE.contains(&name.as_str()) && !ALLOWED.contains(&(of, name.as_str())) {
                let message = format!("`{name}` could be any type: say what it is, such as `Journal{name}`");
                findings.push(Finding::at(file, line, message));
            }
            match first.get(&(of, name.clone())) {
                Some((other, at)) => {
                    let message = format!("the crate has another type `{name}`, in {}:{at}", other.path);
                    findings.push(Finding::at(file, line, message));
                }
                None => drop(first.insert((of, name), (file, line))),
            }
        }
    }
    findings
}

/// The crate that a source file belongs to.
fn crate_of(file: &File) -> Option<&str> {
    let (name, rest) = file.path.strip_prefix("crates/")?.split_once('/')?;
    rest.starts_with("src/").then_some(name)
}

/// The types that a source text defines outside of tests, each with its line.
fn types(text: &str) -> Vec<(usize, String)> {
    let blanked = blank(text);
    let in_test = test_lines(&blanked);
    let lines = blanked.lines().enumerate().filter(|(i, _)| !in_test[*i]);
    lines.filter_map(|(i, line)| Some((i + 1, type_of(line)?))).collect()
}

/// The name of the type that a line defines. An indented `type` is that of a trait.
fn type_of(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().peekable();
    if words.peek().is_some_and(|word| *word == "pub" || word.starts_with("pub(")) {
        words.next();
        // `pub(in path)` has a space.
        if line.trim_start().starts_with("pub(in ") {
            words.next();
        }
    }
    if words.peek() == Some(&"unsafe") {
        words.next();
    }
    let keyword = words.next()?;
    let is_associated = keyword == "type" && line.starts_with(' ');
    if !KEYWORDS.contains(&keyword) || is_associated {
        return None;
    }
    let name: String = words.next()?.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    name.starts_with(|c: char| c.is_uppercase()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn types_are_found_in_code_alone() {
        let text = "pub(crate) struct A<'a> {\n    b: B,\n}\n// struct C;\nimpl X for A {\n    type D = u8;\n}\n\
            pub type E = u8;\npub(in crate::x) enum F {}\n    struct G;\nlet s = \"struct H\";\n\
            #[cfg(test)]\nmod tests {\n    struct I;\n}\npub unsafe trait J {}\n";
        let names: Vec<String> = types(text).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["A", "E", "F", "G", "J"]);
    }

    #[test]
    fn a_name_is_there_once_in_a_crate() {
        let files = vec![
            file("crates/a/src/lib.rs", "struct Reader;\n#[cfg(test)]\nmod tests;\n"),
            file("crates/a/src/tests.rs", "struct Reader;\n"),
            file("crates/a/src/x.rs", "enum Writer {}\nstruct Reader;\n"),
            file("crates/b/src/lib.rs", "struct Reader;\nenum Way {}\n"),
        ];
        let found = check(&Repo { root: "/".into(), files });
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let twice = "crates/a/src/x.rs:2: the crate has another type `Reader`, in crates/a/src/lib.rs:1";
        let vague = "crates/b/src/lib.rs:2: `Way` could be any type: say what it is, such as `JournalWay`";
        assert_eq!(found, [twice, vague]);
    }
}
