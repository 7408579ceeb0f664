//! The manifest: a list of all files with their checksums, for `b3sum --check`.
//!
//! Invariants:
//! - a file is listed once it has its final name, or is up to date and was read;
//! - the manifest is renamed to its name after all other work, when it is complete.
//!
//! A line is the BLAKE3 checksum of the content in hexadecimal digits, two
//! spaces, and the name. Backslashes and newlines in a name are escaped, and a backslash
//! begins the line then. Names that are not UTF-8 are not listed, since `b3sum` does not
//! accept them.

use crate::guard::lock;
use crate::tree::{self, Cursor, Directory, File, Tree};
use crate::wire::{Digest, RelPath};
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write as _};
use std::sync::{Mutex, MutexGuard};

/// The most names that are reported as not listed.
const UNLISTED_MAX: usize = 1000;

/// A manifest that is being written.
#[derive(Debug)]
pub(crate) struct Manifest {
    /// Final path, below the destination.
    pub(crate) path: RelPath,
    temporary: Vec<u8>,
    state: Mutex<ManifestState>,
}

#[derive(Debug)]
struct ManifestState {
    file: BufWriter<Cursor<File>>,
    left_out: Vec<RelPath>,
}

impl Manifest {
    /// Begins the manifest `name` in `base`, or in the directory `within` that the copy
    /// creates there; `key` is that of the copy.
    ///
    /// # Errors
    /// The name is invalid, or the temporary file cannot be created.
    pub(crate) fn begin(base: &Tree, within: Option<&[u8]>, name: &[u8], key: u64) -> io::Result<Manifest> {
        let path = RelPath::new(name).map_err(io::Error::other)?;
        if path.is_root() || !path.split().0.is_empty() {
            return Err(io::Error::other(
                "the manifest is written to the destination directory: give a file name without a path",
            ));
        }
        let path = match within {
            Some(within) => {
                RelPath::new(within).and_then(|within| within.join(name)).map_err(io::Error::other)?
            }
            None => path,
        };
        let temporary = [crate::wire::RESERVED, format!("manifest-{key:016x}").as_bytes()].concat();
        let file = BufWriter::new(Cursor { file: tree::create(base.top(), &temporary, false)?.0, at: 0 });
        let state = Mutex::new(ManifestState { file, left_out: Vec::new() });
        Ok(Manifest { path, temporary, state })
    }

    fn lock(&self) -> MutexGuard<'_, ManifestState> {
        lock(&self.state)
    }

    /// Lists a file; names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub(crate) fn add(&self, path: &RelPath, digest: &Digest) -> io::Result<()> {
        let within = self.path.split().0.len();
        let name = &path.as_bytes()[(within + usize::from(within > 0)).min(path.as_bytes().len())..];
        match line(name, digest) {
            Some(line) => self.lock().file.write_all(line.as_bytes()),
            None => {
                let mut state = self.lock();
                if state.left_out.len() < UNLISTED_MAX {
                    state.left_out.push(path.clone());
                }
                Ok(())
            }
        }
    }

    /// Renames the manifest from its temporary name in `base` to its name in `directory`;
    /// returns the files that are not listed.
    pub(crate) fn finish(&self, base: &Directory, directory: &Directory) -> io::Result<Vec<RelPath>> {
        let mut state = self.lock();
        state.file.flush()?;
        state.file.get_ref().file.end(0)?;
        tree::rename_in(base, &self.temporary, directory, self.path.split().1)?;
        Ok(std::mem::take(&mut state.left_out))
    }

    /// Removes the temporary file.
    pub(crate) fn discard(&self, base: &Directory) {
        // Best effort: a leftover file has a reserved name and does no harm.
        let _ = tree::remove(base, &self.temporary);
    }
}

fn line(path: &[u8], digest: &Digest) -> Option<String> {
    let name = std::str::from_utf8(path).ok()?;
    let mut line = String::with_capacity(2 * digest.0.len() + name.len() + 4);
    if name.contains(['\\', '\n']) {
        line.push('\\');
    }
    for byte in digest.0 {
        // Writing to a string does not fail.
        let _ = write!(line, "{byte:02x}");
    }
    line.push_str("  ");
    for c in name.chars() {
        match c {
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            c => line.push(c),
        }
    }
    line.push('\n');
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_b3sum() {
        // The checksum of nothing, from the BLAKE3 paper's test vectors.
        let hex = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        let digest = crate::wire::Hash::Strong.of(&[]);
        assert_eq!(line(b"a b/c", &digest), Some(format!("{hex}  a b/c\n")));
        assert_eq!(line(b"x\\y\nz", &digest), Some(format!("\\{hex}  x\\\\y\\nz\n")));
        assert_eq!(line(b"\xff", &digest), None);
    }
}
