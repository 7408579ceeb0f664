//! A module with modules below it is `name.rs` beside the directory `name`.

use crate::repo::{Finding, Repo};

/// Looks for `mod.rs` in sources. Modules that integration tests share are directories: a file there would
/// be a test program.
pub(crate) fn check(repo: &Repo) -> Vec<Finding> {
    let findings = repo.with_extension("rs").filter_map(|file| {
        let other = beside(&file.path)?;
        Some(Finding::at(file, 0, format!("modules have names here: {other}")))
    });
    findings.collect()
}

/// What a source file `mod.rs` is called here.
fn beside(path: &str) -> Option<String> {
    let directory = path.strip_suffix("/mod.rs")?;
    path.contains("/src/").then(|| format!("{directory}.rs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_sources_stand_beside_their_directory() {
        assert_eq!(beside("crates/a/src/b/mod.rs").as_deref(), Some("crates/a/src/b.rs"));
        for path in ["crates/a/tests/common/mod.rs", "crates/a/src/b.rs", "crates/a/src/my_mod.rs"] {
            assert_eq!(beside(path), None, "{path}");
        }
    }
}
