//! Nothing in the repository names the machine that it was written on.

use crate::repo::{Finding, Repo};
use std::path::{Path, PathBuf};

/// Directories that lead to a checkout or a home on any machine, and so say
/// nothing about this one.
const COMMON: [&str; 8] = ["/", "/home", "/root", "/src", "/opt", "/tmp", "/mnt", "/usr"];

/// Looks for the path of this checkout, of the directory that it lies in, and
/// of the home directory.
pub(crate) fn check(repo: &Repo) -> Vec<Finding> {
    let root = repo.root.canonicalize().unwrap_or_else(|_| repo.root.clone());
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let telling: Vec<String> = [Some(root.as_path()), root.parent(), home.as_deref()]
        .into_iter()
        .flatten()
        .filter(|p| !COMMON.iter().any(|c| Path::new(c) == *p))
        .map(|p| format!("{}/", p.display()))
        .collect();
    let mut findings = Vec::new();
    for file in &repo.files {
        for (number, line) in file.lines() {
            if let Some(path) = telling.iter().find(|p| names(line, p)) {
                findings.push(Finding::at(file, number, format!("`{path}` is a path of this machine")));
            }
        }
    }
    findings
}

/// Whether `line` has `path` as the beginning of an absolute path.
fn names(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '/' | '-' | '_' | '~' | '}' | '*'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_tell() {
        assert!(names("see /a/b/c", "/a/b/") && names("\"/a/b/\"", "/a/b/"));
        assert!(!names("x/a/b/c", "/a/b/") && !names("../a/b/c", "/a/b/") && !names("${T}/a/b/", "/a/b/"));
    }
}
