//! No merge was committed half done.

use crate::repo::{Finding, Repo};

/// Looks for what git leaves where two sides changed the same lines.
pub(crate) fn check(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &repo.files {
        for (number, line) in file.lines() {
            if is_marker(line) {
                findings.push(Finding::at(file, number, "two sides of a merge, and no decision".to_owned()));
            }
        }
    }
    findings
}

fn is_marker(line: &str) -> bool {
    ["<", "|", ">"].iter().any(|sign| line.starts_with(&format!("{} ", sign.repeat(7))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_stand_at_the_start_of_a_line() {
        let sides = "<".repeat(7);
        assert!(is_marker(&format!("{sides} HEAD")));
        assert!(!is_marker(&format!("  {sides} HEAD")) && !is_marker(&format!("{sides}<")));
        assert!(!is_marker("a table | of | words"));
    }
}
