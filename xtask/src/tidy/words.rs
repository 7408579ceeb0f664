//! Words that the glossary has replaced stay out of code and documents.

use crate::repo::{Finding, Repo};
use anyhow::{Context, Result};

/// Lines of `word: what to say instead`.
const LIST: &str = "xtask/retired-words.txt";

/// Kinds of files that are read; changelogs keep the words of their time.
const EXTENSIONS: [&str; 3] = ["rs", "md", "sh"];
const NOT_READ: [&str; 1] = ["CHANGELOG.md"];

/// Looks for retired words.
pub(crate) fn check(repo: &Repo) -> Result<Vec<Finding>> {
    let list = repo.file(LIST).context(LIST)?;
    let words: Vec<(&str, &str)> = retired(&list.text);
    let mut findings = Vec::new();
    for file in EXTENSIONS.iter().flat_map(|extension| repo.with_extension(extension)) {
        if NOT_READ.contains(&file.path.as_str()) {
            continue;
        }
        for (number, line) in file.lines() {
            let lower = line.to_lowercase();
            for (word, instead) in words.iter().filter(|(word, _)| has_word(&lower, word)) {
                findings.push(Finding::at(file, number, format!("'{word}' is retired: {instead}")));
            }
        }
    }
    Ok(findings)
}

fn retired(list: &str) -> Vec<(&str, &str)> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(": ")).collect()
}

/// Whether a line in small letters has a word that is not a part of a name, nor one in quotes.
fn has_word(line: &str, word: &str) -> bool {
    let ends =
        |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '_' | '`' | '"' | '\''));
    line.match_indices(word)
        .any(|(at, _)| ends(line[..at].chars().next_back()) && ends(line[at + word.len()..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_whole_and_outside_of_names() {
        assert_eq!(retired("# a: b\nhark: listen\n\n"), [("hark", "listen")]);
        for line in ["hark", "// they hark it", "(hark)", "x hark, y"] {
            assert!(has_word(line, "hark"), "{line}");
        }
        for line in ["harked", "bhark", "hark_row", "row_hark", "`hark`", "\"hark\"", "shark"] {
            assert!(!has_word(line, "hark"), "{line}");
        }
    }
}
