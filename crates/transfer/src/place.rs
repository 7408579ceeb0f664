//! Where trees come from and go to, on either side.

use crate::journal::Journal;
use crate::made::{self, Made};
use crate::scan::Start;
use crate::seal::fill_random;
use crate::tree::{self, Tree, say};
use crate::wire::{Entry, Kind, Options, Place, Refusal, RefusalKind, RelPath, Request, show};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// What paths are relative to.
#[derive(Clone, Debug)]
pub(crate) enum Root {
    /// This machine, as whoever runs the program sees it.
    Here,
    /// A directory that is not left.
    Beneath(Tree),
}

/// Where a copy goes.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) base: Tree,
    /// What the first component of names becomes.
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

/// A place that gets the name of what is copied.
fn named(base: Tree, name: &[u8]) -> Result<Destination, Refusal> {
    let path = RelPath::new(name).map_err(|e| Refusal::new(RefusalKind::NotAllowed, e))?;
    // A file would take the place of a device for everybody.
    if tree::is_special(base.fd(), name) {
        let message = format_args!("{path} is a device, a named pipe or a socket: nothing is copied to it");
        return Err(Refusal::new(RefusalKind::NotAllowed, message));
    }
    Ok(Destination { base, rename: Some(name.to_vec()) })
}

/// A path below a root, as a peer typed it: leading and trailing slashes and
/// `.` mean nothing there; `..` is refused.
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
        }
    }

    fn make(&self, path: &[u8]) -> io::Result<Tree> {
        match self {
            Root::Here => std::fs::create_dir_all(OsStr::from_bytes(path))?,
            Root::Beneath(tree) => drop(tree.make(path)?),
        }
        self.open(path)
    }

    /// The most files of a data set that are made for who asks.
    fn most_made(&self) -> usize {
        match self {
            Root::Here => usize::MAX,
            Root::Beneath(_) => made::FILES_OF_STRANGERS,
        }
    }

    /// The path as this root takes it: a peer's is checked.
    fn path(&self, path: &[u8]) -> Result<Vec<u8>, Refusal> {
        Ok(match self {
            Root::Here if path.is_empty() => b".".to_vec(),
            Root::Here => path.to_vec(),
            Root::Beneath(_) => beneath(path)?.as_bytes().to_vec(),
        })
    }

    /// Finds out where a copy goes, and makes that directory where it is wanted.
    /// A copy that was cut off (its journal is there) goes where it went: its
    /// directory exists by now, and is not one to go into.
    ///
    /// # Errors
    /// It does not exist, may not be reached, or is a file.
    pub(crate) fn destination(&self, request: &Request) -> Result<Destination, Refusal> {
        let (typed, place, dry_run) = (&*request.destination, request.place, request.options.dry_run);
        let path = self.path(typed)?;
        let path = path.strip_suffix(b"/").filter(|rest| !rest.is_empty()).unwrap_or(&path);
        let place = if place == Place::Guess && typed.ends_with(b"/") { Place::Into } else { place };
        if place == Place::Guess
            && let Ok(base) = self.open(split(path).0)
            && Journal::exists(&base, request.key)
        {
            return named(base, split(path).1);
        }
        let opened = match (self.open(path), place) {
            (Err(e), Place::Into | Place::Contents) if e.kind() == io::ErrorKind::NotFound => {
                if dry_run {
                    nothing()
                } else {
                    self.make(path)
                }
            }
            (opened, _) => opened,
        };
        match (opened, place) {
            (Ok(base), _) => Ok(Destination { base, rename: None }),
            (Err(e), Place::Guess)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                // It is a file, or does not exist: the source takes its place.
                let (parent, name) = split(path);
                let base = self.open(parent).map_err(|e| wrong(parent, &e))?;
                named(base, name)
            }
            (Err(e), _) => Err(wrong(path, &e)),
        }
    }

    /// If a run of this request was cut off here: whether that was before the machine
    /// was started anew. Makes nothing.
    ///
    /// # Errors
    /// As [`destination`](Self::destination).
    pub(crate) fn left(&self, request: &Request) -> Result<Option<bool>, Refusal> {
        if made::is_nowhere(&request.destination) {
            return Ok(None);
        }
        let options = Options { dry_run: true, ..request.options };
        // One that will be made has nothing.
        let made = request.place != Place::Guess || request.destination.ends_with(b"/");
        let opened = self.open(&self.path(&request.destination)?);
        if made && opened.is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let Destination { base, .. } = self.destination(&Request { options, ..request.clone() })?;
        Ok(Journal::left(&base, request.key))
    }

    /// Where a scan of `typed` begins. With `contents`, or where the path itself
    /// [means that](means_contents), the names are those below it, else they
    /// begin with its last component.
    ///
    /// # Errors
    /// It does not exist or may not be reached.
    pub(crate) fn start(&self, typed: &[u8], contents: bool) -> Result<Start, Refusal> {
        if made::makes(typed) {
            let made =
                Made::parse(typed, self.most_made()).map_err(|e| Refusal::new(RefusalKind::NoSuchPath, e))?;
            return Ok(Start::Made(Arc::new(made)));
        }
        let path = self.path(typed)?;
        let path = trimmed(&path);
        if contents || means_contents(typed) {
            let tree = self.open(path).map_err(|e| wrong(path, &e))?;
            return Ok(Start::Tree { tree, path: RelPath::root() });
        }
        let (parent, name) = split(path);
        let tree = self.open(parent).map_err(|e| wrong(path, &e))?;
        let name = RelPath::new(name).map_err(|e| Refusal::new(RefusalKind::NotAllowed, e))?;
        match tree.look(&name) {
            // As cp(1) does, and path_resolution(7) says of a slash at the end.
            Ok(Some(Entry { kind: Kind::Symlink(_), .. })) if typed.ends_with(b"/") => {
                let tree = self.open(path).map_err(|e| wrong(path, &e))?;
                Ok(Start::Tree { tree: tree.named(name.as_bytes()), path: name })
            }
            Ok(Some(_)) => Ok(Start::Tree { tree, path: name }),
            // What is not copied is listed by the scan, unless it is left out.
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(Start::Tree { tree, path: name }),
            Ok(None) => Err(wrong(path, &io::ErrorKind::NotFound.into())),
            Err(e) => Err(wrong(path, &e)),
        }
    }
}

/// Whether a source has no name of its own, so that what is in it is copied: a
/// root, `.`, `..`, or what ends in one of them, and data that is made.
pub(crate) fn means_contents(typed: &[u8]) -> bool {
    if made::makes(typed) {
        return true;
    }
    matches!(last_name(typed), b"" | b"." | b"..")
}

/// A path without the slashes at its end; a root keeps one.
pub(crate) fn trimmed(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/').map_or(path.len().min(1), |at| at + 1);
    &path[..end]
}

/// The last component of a path that was typed: what the names of a source begin
/// with.
pub(crate) fn last_name(typed: &[u8]) -> &[u8] {
    split(trimmed(typed)).1
}

/// A path's directory and its last component.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// A directory that has nothing in it and no name any more, in place of one that would
/// be made.
fn nothing() -> io::Result<Tree> {
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
    fn a_root_or_a_dot_means_what_is_in_it() {
        for path in ["", "/", ".", "..", "./", "a/.", "a/..", "a/./", "//"] {
            assert!(means_contents(path.as_bytes()), "{path}");
        }
        for path in ["a", "a/", "/a", "./a", "..a", "a.", ".a//"] {
            assert!(!means_contents(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn what_a_peer_types_stays_beneath() {
        assert_eq!(beneath(b"/a//b/./c/").expect("good").as_bytes(), b"a/b/c");
        assert_eq!(beneath(b"a/../../b").expect_err("up").kind, RefusalKind::NotAllowed);
    }
}
