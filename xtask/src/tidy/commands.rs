//! Commands that the documents show exist: verbs and flags are known to the
//! program's own help.

use crate::repo::{File, Finding, Repo};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Asks the program about every `longhaul VERB --flag …` in a fenced block.
pub(crate) fn check(repo: &Repo) -> Result<Vec<Finding>> {
    let mut shown = Vec::new();
    for file in repo.with_extension("md") {
        shown.extend(commands(file).into_iter().map(|(line, words)| (file, line, words)));
    }
    if shown.is_empty() {
        return Ok(Vec::new());
    }
    let mut help = Help { program: build(repo)?, known: BTreeMap::new() };
    let mut findings = Vec::new();
    for (file, line, words) in shown {
        if let Some(why) = wrong(&mut help, &words)? {
            findings.push(Finding::at(file, line, why));
        }
    }
    Ok(findings)
}

/// The arguments of `longhaul` in a file's fenced blocks, with continued lines joined.
fn commands(file: &File) -> Vec<(usize, Vec<String>)> {
    let (mut found, mut fenced, mut open) = (Vec::new(), false, None::<(usize, String)>);
    for (number, line) in file.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            (fenced, open) = (!fenced, None);
            continue;
        }
        let (start, text) = match open.take() {
            Some((start, before)) => (start, format!("{before} {line}")),
            None => (number, line.trim_start_matches("$ ").to_owned()),
        };
        match text.strip_suffix('\\') {
            Some(text) => open = Some((start, text.to_owned())),
            None if fenced => found.extend(after_program(&text).map(|words| (start, words))),
            None => {}
        }
    }
    found
}

/// The arguments of a command that runs the program, else nothing.
fn after_program(text: &str) -> Option<Vec<String>> {
    let words: Vec<&str> = text.split_whitespace().take_while(|w| !w.starts_with('#')).collect();
    let start = match words.as_slice() {
        ["sudo", "longhaul", ..] => 2,
        ["longhaul", ..] => 1,
        // Another program of the workspace has its own help.
        ["cargo", "run", ..] if words.windows(2).any(|w| w[0] == "-p" && w[1] != "longhaul") => return None,
        ["cargo", "run", ..] => words.iter().position(|w| *w == "--")? + 1,
        _ => return None,
    };
    // A pipe or a list of commands ends this one.
    let end = |w: &&&str| !matches!(**w, "|" | "&" | "&&" | ";" | ">" | "2>" | "--");
    Some(words[start..].iter().take_while(end).map(|w| (*w).to_owned()).collect())
}

struct Help {
    program: PathBuf,
    known: BTreeMap<String, String>,
}

impl Help {
    /// The help of a verb, or of `VERB SUBVERB…`; empty where there is no such verb.
    fn of(&mut self, verb: &str) -> Result<&str> {
        if !self.known.contains_key(verb) {
            let mut command = Command::new(&self.program);
            command.args(verb.split_whitespace()).arg("--help");
            let output = command.output().context("cannot run the program")?;
            let text = if output.status.success() {
                String::from_utf8_lossy(&output.stdout).into_owned()
            } else {
                String::new()
            };
            self.known.insert(verb.to_owned(), text);
        }
        Ok(&self.known[verb])
    }
}

fn wrong(help: &mut Help, words: &[String]) -> Result<Option<String>> {
    let mut behind = words.iter().skip_while(|w| w.starts_with('-'));
    let mut verb = behind.next().cloned().unwrap_or_default();
    // In a synopsis the verb is a placeholder.
    if verb.chars().all(|c| c.is_uppercase() || c == '…') && !verb.is_empty() {
        return Ok(None);
    }
    let mut text = help.of(&verb)?.to_owned();
    // A verb with verbs of its own, such as `dataset make`; one that has flags
    // as well, such as `wan --rtt 15ms`, may do without. These may have verbs too, as `fs quota` has.
    while !verb.is_empty()
        && text.contains("\nCommands:")
        && let Some(below) = behind.next().filter(|w| !w.starts_with('-'))
    {
        verb = format!("{verb} {below}");
        text = help.of(&verb)?.to_owned();
    }
    if text.is_empty() {
        return Ok(Some(format!("`longhaul {verb}` does not exist")));
    }
    for word in words.iter().filter(|w| w.starts_with("--")) {
        let flag = word.split('=').next().unwrap_or(word);
        if !mentions(&text, flag) {
            return Ok(Some(format!("`longhaul {verb}` has no `{flag}`")));
        }
    }
    Ok(None)
}

/// Whether a help text has exactly this flag.
fn mentions(text: &str, flag: &str) -> bool {
    let end = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '_');
    text.match_indices(flag).any(|(at, _)| end(text[at + flag.len()..].chars().next()))
}

/// The program that `LONGHAUL` names, or else one that is built now; returns its path.
fn build(repo: &Repo) -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("LONGHAUL") {
        return Ok(program.into());
    }
    let output = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package=longhaul", "--message-format=json"])
        .current_dir(&repo.root)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot run cargo build")?;
    ensure!(output.status.success(), "the program does not build");
    crate::repo::program(&output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<Vec<String>> {
        let file = File { path: "a.md".to_owned(), text: text.to_owned() };
        commands(&file).into_iter().map(|(_, words)| words).collect()
    }

    #[test]
    fn commands_stand_in_fenced_blocks() {
        let text = "longhaul no\n```sh\n$ longhaul bench URI --bs 4k \\\n    --json | jq .\ncargo run --release -- demo # x\ncargo run -p longhaul-sim -- --seeds 1\nls\n```\n";
        assert_eq!(found(text), [vec!["bench", "URI", "--bs", "4k", "--json"], vec!["demo"]]);
    }

    #[test]
    fn a_flag_is_a_whole_word() {
        assert!(
            mentions("  --in-capsule <SIZE>", "--in-capsule") && !mentions("  --in-capsule <SIZE>", "--in")
        );
    }
}
