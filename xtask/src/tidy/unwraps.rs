//! Code that reads the network does not assume: no `unwrap`, no `expect`.
//!
//! Where a value cannot be missing for a reason that the types do not show, a
//! comment on the same line or right above says so: `// unwrap: the reason`.

use crate::repo::{File, Finding, Repo};
use crate::rust::{blank, test_lines};

/// Crates in which what a peer sent may be anywhere.
const GUARDED: [&str; 4] = ["wire", "proto", "target", "initiator"];

/// What ends the program when a peer surprises it.
const BANNED: [&str; 6] =
    [".unwrap()", ".expect(", ".unwrap_err()", ".expect_err(", "todo!(", "unimplemented!("];

/// The words of the comment that allows one.
const ALLOW: &str = "// unwrap: ";

/// Looks for the banned words in all but tests.
pub(crate) fn check(repo: &Repo) -> Vec<Finding> {
    let guarded =
        |file: &&File| GUARDED.iter().any(|name| file.path.starts_with(&format!("crates/{name}/src/")));
    let files: Vec<&File> = repo.with_extension("rs").filter(guarded).collect();
    let tests: Vec<String> = files.iter().flat_map(|f| test_modules(f)).collect();
    let is_test =
        |f: &File| tests.iter().any(|t| f.path == format!("{t}.rs") || f.path.starts_with(&format!("{t}/")));
    files.into_iter().filter(|f| !is_test(f)).flat_map(in_file).collect()
}

/// Modules in files of their own that `file` declares for tests, as paths
/// without `.rs`.
pub(super) fn test_modules(file: &File) -> Vec<String> {
    let (dir, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let home = match name {
        "lib.rs" | "main.rs" | "mod.rs" => dir.to_owned(),
        other => format!("{dir}/{}", other.trim_end_matches(".rs")),
    };
    let blanked = blank(&file.text);
    let in_test = test_lines(&blanked);
    let declared = |(i, line): (usize, &str)| {
        let name = line.trim().trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';')?;
        in_test[i].then(|| format!("{home}/{name}"))
    };
    blanked.lines().enumerate().filter_map(declared).collect()
}

fn in_file(file: &File) -> Vec<Finding> {
    let blanked = blank(&file.text);
    let in_test = test_lines(&blanked);
    let original: Vec<&str> = file.text.lines().collect();
    let mut findings = Vec::new();
    for (i, line) in blanked.lines().enumerate() {
        let Some(word) = BANNED.into_iter().find(|word| line.contains(word)) else { continue };
        let allowed = original[i].contains(ALLOW) || i > 0 && original[i - 1].contains(ALLOW);
        if !in_test[i] && !allowed {
            let message =
                format!("`{word}` where a peer's bytes may be; return an error, or say `{ALLOW}why`");
            findings.push(Finding::at(file, i + 1, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<usize> {
        let file = File { path: "crates/wire/src/x.rs".to_owned(), text: text.to_owned() };
        in_file(&file).iter().map(|f| f.line).collect()
    }

    #[test]
    fn only_code_outside_tests_counts() {
        assert_eq!(found("fn a() { b().unwrap() }\n"), [1]);
        assert_eq!(found("/// b().unwrap()\nfn a() { c(\".unwrap()\") }\n"), [] as [usize; 0]);
        assert_eq!(
            found("#[cfg(test)]\nmod tests {\n fn a() { b().unwrap() }\n}\nfn d() { e().expect(\"\") }\n"),
            [5]
        );
    }

    #[test]
    fn test_modules_have_files_of_their_own() {
        let modules = |path: &str| {
            let text =
                "mod a;\n#[cfg(test)]\nmod b;\n#[cfg(any(test, feature = \"x\"))]\npub mod c;\n".to_owned();
            test_modules(&File { path: path.to_owned(), text })
        };
        assert_eq!(modules("crates/x/src/lib.rs"), ["crates/x/src/b", "crates/x/src/c"]);
        assert_eq!(modules("crates/x/src/y.rs"), ["crates/x/src/y/b", "crates/x/src/y/c"]);
    }

    #[test]
    fn a_reason_allows_one() {
        assert_eq!(
            found("// unwrap: the length was checked above\nlet a = b.unwrap();\nlet c = d.unwrap();\n"),
            [3]
        );
        assert_eq!(found("let a = b.unwrap(); // unwrap: is a constant\n"), [] as [usize; 0]);
    }
}
