//! The repository as its checks see it: the files that are, or would be, in it.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One file of text, by its path from the root.
pub(crate) struct File {
    /// With `/` between the parts.
    pub(crate) path: String,
    /// All of it.
    pub(crate) text: String,
}

impl File {
    /// Its lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }
}

/// The checkout that this program was built from.
pub(crate) struct Repo {
    /// Where it lies.
    pub(crate) root: PathBuf,
    /// Every file of text that git tracks or would add, in order of path.
    pub(crate) files: Vec<File>,
}

impl Repo {
    /// Reads the checkout.
    pub(crate) fn open() -> Result<Repo> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has no parent")?.to_owned();
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&root)
            .output()
            .context("cannot run git")?;
        ensure!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
        let names = String::from_utf8(listed.stdout).context("a path that is not UTF-8")?;
        let mut files = Vec::new();
        for path in names.split('\0').filter(|p| !p.is_empty()) {
            // Binary files, and files that are deleted but still in the index, are not checked.
            if let Ok(text) = std::fs::read_to_string(root.join(path)) {
                files.push(File { path: path.to_owned(), text });
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Repo { root, files })
    }

    /// Files whose name ends in `.{extension}`.
    pub(crate) fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |f| Path::new(&f.path).extension().is_some_and(|e| e == extension))
    }

    /// The file at `path`.
    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|f| f.path == path)
    }
}

/// The path of the program that cargo built, of its messages in JSON.
pub(crate) fn program(messages: &[u8]) -> Result<PathBuf> {
    for line in String::from_utf8_lossy(messages).lines() {
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        if let (Some("longhaul"), Some(path)) =
            (message["target"]["name"].as_str(), message["executable"].as_str())
        {
            return Ok(PathBuf::from(path));
        }
    }
    bail!("cargo built no program named longhaul")
}

/// Something that a check found.
pub(crate) struct Finding {
    /// Path from the root.
    pub(crate) path: String,
    /// Line, or 0 for the file as a whole.
    pub(crate) line: usize,
    /// The finding, and the remedy.
    pub(crate) message: String,
}

impl Finding {
    /// A finding at a line of a file.
    pub(crate) fn at(file: &File, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: file.path.clone(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}
