//! Relative links in Markdown lead somewhere.

use crate::repo::{File, Finding, Repo};
use std::path::{Component, Path, PathBuf};

/// Follows every relative link, and its `#anchor` where it leads to Markdown.
pub(crate) fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in repo.with_extension("md") {
        for (number, line) in prose(file) {
            for link in links(line) {
                if let Some(why) = broken(repo, file, link) {
                    findings.push(Finding::at(file, number, format!("link `{link}`: {why}")));
                }
            }
        }
    }
    findings
}

/// Lines outside fenced blocks.
fn prose(file: &File) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let outside = |(_, line): &(usize, &str)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    };
    file.lines().filter(outside).collect()
}

/// The `B`s of `[A](B)` in a line, without titles.
fn links(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find("](") {
        rest = &rest[at + 2..];
        let Some(end) = rest.find(')') else { break };
        found.push(rest[..end].split_whitespace().next().unwrap_or(""));
        rest = &rest[end..];
    }
    found
}

fn broken(repo: &Repo, file: &File, link: &str) -> Option<&'static str> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let to = if path.is_empty() {
        PathBuf::from(&file.path)
    } else {
        resolve(Path::new(&file.path).parent().unwrap_or(Path::new("")), path)
    };
    if !repo.root.join(&to).exists() {
        return Some("there is no such file");
    }
    let target = repo.file(&to.to_string_lossy())?;
    let leads = anchor.is_empty() || !target.path.ends_with(".md") || headings(target).any(|h| h == anchor);
    (!leads).then_some("the file has no such heading")
}

fn resolve(from: &Path, link: &str) -> PathBuf {
    let mut to = PathBuf::new();
    for part in from.join(link).components() {
        match part {
            Component::ParentDir => {
                to.pop();
            }
            Component::CurDir => {}
            part => to.push(part),
        }
    }
    to
}

/// Anchors of a file's headings, as forges make them.
fn headings(file: &File) -> impl Iterator<Item = String> {
    prose(file).into_iter().filter(|(_, line)| line.starts_with('#')).map(|(_, line)| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        text.chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .collect::<String>()
            .replace(' ', "-")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo(files: &[(&str, &str)]) -> Repo {
        let files =
            files.iter().map(|(p, t)| File { path: (*p).to_owned(), text: (*t).to_owned() }).collect();
        Repo { root: Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), files }
    }

    #[test]
    fn links_are_followed() {
        let r = repo(&[(
            "docs/a.md",
            "[x](../xtask/Cargo.toml) [y](nowhere.md)\n```\n[z](no.md)\n```\n[w](https://e.org)",
        )]);
        let found: Vec<String> = check(&r).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["docs/a.md:1: link `nowhere.md`: there is no such file"]);
    }

    #[test]
    fn anchors_are_headings() {
        let r =
            repo(&[("CONTRIBUTING.md", "# One: two\n[a](#one-two) [b](#three)\n[c](CONTRIBUTING.md#one)")]);
        let found: Vec<String> = check(&r).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "CONTRIBUTING.md:2: link `#three`: the file has no such heading",
                "CONTRIBUTING.md:3: link `CONTRIBUTING.md#one`: the file has no such heading"
            ]
        );
    }
}
