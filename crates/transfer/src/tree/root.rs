//! Resolution of source and destination paths, on either side.

use super::scan::ScanStart;
use super::{MountedFs, Tree, say};
use crate::copy::endpoint::MOUNTED;
use crate::link::noise::fill_random;
use crate::receive::journal::Journal;
use crate::receive::null_sink::is_null_sink;
use crate::send::synthetic::{self, Synthetic};
use crate::tree;
use crate::wire::{Entry, EntryKind, Options, Placement, Refusal, RefusalKind, RelPath, Request, show};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The directory that paths are resolved in.
#[derive(Clone, Debug)]
pub(crate) enum Root {
    /// Any path of this machine, for the local user.
    Here,
    /// Paths below this directory only, for clients of an agent.
    Beneath(Tree),
    /// Paths in a mounted file system, for the local user.
    Mounted(MountedFs),
}

/// The destination of a copy.
#[derive(Clone, Debug)]
pub(crate) struct DestinationRoot {
    pub(crate) base: Tree,
    /// Replaces the first component of paths.
    pub(crate) rename: Option<Vec<u8>>,
}

fn wrong(path: &[u8], e: &io::Error) -> Refusal {
    let kind = match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => RefusalKind::NoSuchPath,
        io::ErrorKind::PermissionDenied => RefusalKind::NotAllowed,
        _ => RefusalKind::Failed,
    };
    Refusal::new(kind, format_args!("{}: {}", if path.is_empty() { ".".into() } else { show(path) }, say(e)))
}

/// A destination that the source takes the name of.
fn named(base: Tree, name: &[u8]) -> Result<DestinationRoot, Refusal> {
    let path = RelPath::new(name).map_err(|e| Refusal::new(RefusalKind::NotAllowed, e))?;
    // Renaming a file to this name would replace the device for the whole system.
    if tree::is_special(base.top(), name) {
        let message = format_args!("{path} is a device, a named pipe or a socket: nothing is copied to it");
        return Err(Refusal::new(RefusalKind::NotAllowed, message));
    }
    Ok(DestinationRoot { base, rename: Some(name.to_vec()) })
}

/// A client's path below a root: leading and trailing slashes and `.` are ignored; `..`
/// is refused.
fn beneath(path: &[u8]) -> Result<RelPath, Refusal> {
    let parts: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    RelPath::new(&parts.join(&b"/"[..])).map_err(|e| Refusal::new(RefusalKind::NotAllowed, e))
}

impl Root {
    fn open(&self, path: &[u8]) -> io::Result<Tree> {
        match self {
            Root::Here if path.is_empty() => Tree::open(Path::new(".")),
            Root::Here => Tree::open(Path::new(OsStr::from_bytes(path))),
            Root::Beneath(tree) => tree.below(path),
            Root::Mounted(fs) => Tree::mounted(fs).below(path),
        }
    }

    /// Why a path cannot be used.
    fn wrong(&self, path: &[u8], e: &io::Error) -> Refusal {
        match self {
            Root::Here | Root::Beneath(_) => wrong(path, e),
            Root::Mounted(fs) => wrong(&[MOUNTED, fs.name().as_bytes(), b"/", path].concat(), e),
        }
    }

    /// Opens the directory at a client's path.
    ///
    /// # Errors
    /// It does not exist below the root, or is not a directory.
    pub(crate) fn directory(&self, typed: &[u8]) -> Result<Tree, Refusal> {
        let path = self.path(typed)?;
        self.open(trimmed(&path)).map_err(|e| self.wrong(trimmed(&path), &e))
    }

    fn make(&self, path: &[u8]) -> io::Result<Tree> {
        match self {
            Root::Here => std::fs::create_dir_all(OsStr::from_bytes(path))?,
            Root::Beneath(tree) => drop(tree.make(path)?),
            Root::Mounted(fs) => drop(Tree::mounted(fs).make(path)?),
        }
        self.open(path)
    }

    /// The most files of a data set that this client may request.
    fn dataset_files_max(&self) -> usize {
        match self {
            Root::Here | Root::Mounted(_) => usize::MAX,
            Root::Beneath(_) => synthetic::REMOTE_FILES_MAX,
        }
    }

    /// Normalizes a path, and checks it if it is a client's.
    fn path(&self, path: &[u8]) -> Result<Vec<u8>, Refusal> {
        Ok(match self {
            Root::Here if path.is_empty() => b".".to_vec(),
            Root::Here => path.to_vec(),
            Root::Beneath(_) | Root::Mounted(_) => beneath(path)?.as_bytes().to_vec(),
        })
    }

    /// Opens the destination of a copy, and creates the directory if the request says so.
    /// An interrupted copy (which has a journal there) keeps its destination: the directory
    /// that it created exists by now, and the source must not go into it.
    ///
    /// # Errors
    /// The destination does not exist, cannot be accessed, or is a file.
    pub(crate) fn destination(&self, request: &Request) -> Result<DestinationRoot, Refusal> {
        let (typed, place, dry_run) = (&*request.destination, request.place, request.options.dry_run);
        let path = self.path(typed)?;
        let path = path.strip_suffix(b"/").filter(|rest| !rest.is_empty()).unwrap_or(&path);
        let place = if place == Placement::Guess && typed.ends_with(b"/") { Placement::Into } else { place };
        if place == Placement::Guess
            && let Ok(base) = self.open(split(path).0)
            && Journal::exists(&base, request.key)
        {
            return named(base, split(path).1);
        }
        let opened = match (self.open(path), place) {
            (Err(e), Placement::Into | Placement::Contents) if e.kind() == io::ErrorKind::NotFound => {
                if dry_run {
                    empty_directory()
                } else {
                    self.make(path)
                }
            }
            (opened, _) => opened,
        };
        match (opened, place) {
            (Ok(base), _) => Ok(DestinationRoot { base, rename: None }),
            (Err(e), Placement::Guess)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                // A file, or nothing: the source takes the name.
                let (parent, name) = split(path);
                let base = self.open(parent).map_err(|e| self.wrong(parent, &e))?;
                named(base, name)
            }
            (Err(e), _) => Err(self.wrong(path, &e)),
        }
    }

    /// Looks for the journal of an interrupted run of this request; if there is one,
    /// returns whether the machine rebooted since. Creates nothing.
    ///
    /// # Errors
    /// As [`destination`](Self::destination).
    pub(crate) fn interrupted(&self, request: &Request) -> Result<Option<bool>, Refusal> {
        if is_null_sink(&request.destination) {
            return Ok(None);
        }
        let options = Options { dry_run: true, ..request.options };
        // A directory that does not exist yet has no journal.
        let creates = request.place != Placement::Guess || request.destination.ends_with(b"/");
        let opened = self.open(&self.path(&request.destination)?);
        if creates && opened.is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let DestinationRoot { base, .. } = self.destination(&Request { options, ..request.clone() })?;
        Ok(Journal::interrupted(&base, request.key))
    }

    /// Opens a source for the scan. With `contents`, or if the path itself
    /// [means its contents](means_contents), names begin below it, else with its last
    /// component.
    ///
    /// # Errors
    /// The source does not exist, or cannot be accessed.
    pub(crate) fn start(&self, typed: &[u8], contents: bool) -> Result<ScanStart, Refusal> {
        if synthetic::is_synthetic(typed) {
            let source = Synthetic::parse(typed, self.dataset_files_max())
                .map_err(|e| Refusal::new(RefusalKind::NoSuchPath, e))?;
            return Ok(ScanStart::Synthetic(Arc::new(source)));
        }
        let path = self.path(typed)?;
        let path = trimmed(&path);
        if contents || means_contents(typed) {
            let tree = self.open(path).map_err(|e| self.wrong(path, &e))?;
            return Ok(ScanStart::Tree { tree, path: RelPath::root() });
        }
        let (parent, name) = split(path);
        let tree = self.open(parent).map_err(|e| self.wrong(path, &e))?;
        let name = RelPath::new(name).map_err(|e| Refusal::new(RefusalKind::NotAllowed, e))?;
        match tree.look(&name) {
            // A trailing slash follows the link, as in cp(1) and path_resolution(7).
            Ok(Some(Entry { kind: EntryKind::Symlink(_), .. })) if typed.ends_with(b"/") => {
                let tree = self.open(path).map_err(|e| self.wrong(path, &e))?;
                Ok(ScanStart::Tree { tree: tree.named(name.as_bytes()), path: name })
            }
            Ok(Some(_)) => Ok(ScanStart::Tree { tree, path: name }),
            // The scan reports objects of other kinds, unless filters exclude them.
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(ScanStart::Tree { tree, path: name }),
            Ok(None) => Err(self.wrong(path, &io::ErrorKind::NotFound.into())),
            Err(e) => Err(self.wrong(path, &e)),
        }
    }
}

/// Whether a source has no name of its own, so that its contents are copied: `/`, `.`,
/// `..`, a path that ends in one of them, or a synthetic source.
pub(crate) fn means_contents(typed: &[u8]) -> bool {
    if synthetic::is_synthetic(typed) {
        return true;
    }
    matches!(last_name(typed), b"" | b"." | b"..")
}

/// A path without trailing slashes; `/` keeps one.
pub(crate) fn trimmed(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/').map_or(path.len().min(1), |at| at + 1);
    &path[..end]
}

/// The last component of a source path, which the names of its entries begin with.
pub(crate) fn last_name(typed: &[u8]) -> &[u8] {
    split(trimmed(typed)).1
}

/// A path's parent and its last component.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// An empty, unlinked directory, as the base of a dry run to a missing directory.
fn empty_directory() -> io::Result<Tree> {
    let mut name = [0; 8];
    fill_random(&mut name)?;
    let path = std::env::temp_dir().join(format!(".longhaul-{:016x}", u64::from_le_bytes(name)));
    std::fs::create_dir(&path)?;
    let tree = Tree::open(&path);
    std::fs::remove_dir(&path)?;
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_or_a_dot_means_its_contents() {
        for path in ["", "/", ".", "..", "./", "a/.", "a/..", "a/./", "//"] {
            assert!(means_contents(path.as_bytes()), "{path}");
        }
        for path in ["a", "a/", "/a", "./a", "..a", "a.", ".a//"] {
            assert!(!means_contents(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn paths_of_clients_stay_beneath_the_root() {
        assert_eq!(beneath(b"/a//b/./c/").expect("good").as_bytes(), b"a/b/c");
        assert_eq!(beneath(b"a/../../b").expect_err("up").kind, RefusalKind::NotAllowed);
    }
}
