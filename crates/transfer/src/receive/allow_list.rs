//! The allow-list: names that the receiver accepts in a copy that it requested.
//!
//! Invariants of an accepted name, whatever the sender sends:
//! - it begins with the last component of a source, unless a source has no name of its
//!   own (`DIR/.`, or the content of a directory);
//! - with a list of files it is one of them, below one, or a parent of one; for a
//!   synthetic source it is a name that the source generates;
//! - filters take it, and each of its parents below the source;
//! - without `-r` it is neither a directory nor in one.
//!
//! Without the list, a sender asked for `report.pdf` could also send a `.bashrc`.

use crate::send::synthetic::{self, Synthetic, SyntheticNames};
use crate::tree::filter::Filter;
use crate::tree::root::{last_name, means_contents};
use crate::wire::{Entry, EntryKind, Placement, RelPath, Request};
use std::collections::HashSet;

/// The names that one request covers.
#[derive(Debug)]
pub(crate) struct AllowList {
    /// Last components of the sources.
    named: HashSet<Vec<u8>>,
    /// A source has no name of its own, so names begin below it.
    contents: bool,
    synthetic: Vec<SyntheticNames>,
    listed: Option<ListedPaths>,
    recursive: bool,
    filter: Filter,
}

/// The listed files, as paths below each source.
#[derive(Debug)]
struct ListedPaths {
    files: HashSet<Vec<u8>>,
    /// Their parent directories.
    parents: HashSet<Vec<u8>>,
}

/// The lengths of a path's prefixes that end at a component, the path itself last.
fn ends(path: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
    slashes.chain(std::iter::once(path.len()))
}

impl AllowList {
    /// The list for a request, with the request's compiled filter.
    pub(crate) fn new(request: &Request, filter: Filter) -> AllowList {
        let mut list = AllowList {
            named: HashSet::new(),
            contents: false,
            synthetic: Vec::new(),
            listed: (!request.files.is_empty()).then(|| ListedPaths::new(&request.files)),
            recursive: request.recursive,
            filter,
        };
        for source in &request.sources {
            if synthetic::is_synthetic(source) {
                // A malformed specification allows no name.
                list.synthetic.extend(Synthetic::parse(source, usize::MAX).ok().map(SyntheticNames::new));
            } else if request.place == Placement::Contents || means_contents(source) {
                list.contents = true;
            } else {
                list.named.insert(last_name(source).to_vec());
            }
        }
        list
    }

    /// Whether an entry is allowed, including the target of a hard link.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        let is_directory = entry.kind == EntryKind::Directory;
        self.takes(&entry.path, is_directory)
            && match &entry.kind {
                EntryKind::HardLink(first) => self.takes(first, false),
                _ => true,
            }
    }

    fn takes(&self, path: &RelPath, is_directory: bool) -> bool {
        let (first, below) = path.split_first();
        let is_synthetic = || {
            self.synthetic.iter().any(|names| names.has(path)) && (is_directory || self.filter.takes(path))
        };
        (!first.is_empty()
            && self.named.contains(first)
            && self.below(path, first.len(), below, is_directory))
            || (self.contents && self.below(path, 0, path.as_bytes(), is_directory))
            || is_synthetic()
    }

    /// Whether `path`, which is `below` in a source, is allowed. The source's own name is
    /// the first `named` bytes of `path`.
    fn below(&self, path: &RelPath, named: usize, below: &[u8], is_directory: bool) -> bool {
        let whole = path.as_bytes();
        let one = |at: usize| at == whole.len() && !is_directory;
        let Some(listed) = &self.listed else {
            return (self.recursive || one(named)) && self.filtered(whole, named);
        };
        if is_directory && listed.parents.contains(below) {
            return true;
        }
        let skipped = whole.len() - below.len();
        ends(below)
            .filter(|end| listed.files.contains(&below[..*end]))
            .any(|end| (self.recursive || one(skipped + end)) && self.filtered(whole, skipped + end))
    }

    /// Whether filters take all prefixes of a path of `from` bytes or more.
    fn filtered(&self, path: &[u8], from: usize) -> bool {
        let takes = |end: usize| RelPath::new(&path[..end]).is_ok_and(|part| self.filter.takes(&part));
        self.filter.is_empty() || ends(path).filter(|end| *end >= from).all(takes)
    }
}

impl ListedPaths {
    fn new(files: &[Vec<u8>]) -> ListedPaths {
        let mut parents: HashSet<Vec<u8>> = HashSet::from([Vec::new()]);
        for file in files {
            parents.extend(ends(file).filter(|end| *end < file.len()).map(|end| file[..end].to_vec()));
        }
        ListedPaths { files: files.iter().cloned().collect(), parents }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::send::spec::SendSpec;
    use crate::tree::Tree;
    use crate::tree::root::Root;
    use crate::tree::scan::{FoundEntry, Scan, Visitor};
    use crate::tune::Concurrency;
    use crate::wire::Trouble;
    use std::fs;

    fn request(
        sources: &[&str],
        place: Placement,
        files: &[&str],
        filters: &[&str],
        recursive: bool,
    ) -> Request {
        let bytes = |all: &[&str]| all.iter().map(|one| one.as_bytes().to_vec()).collect();
        let filters = filters.iter().map(|rule| (*rule).to_owned()).collect();
        Request {
            sources: bytes(sources),
            place,
            files: bytes(files),
            filters,
            recursive,
            ..Request::default()
        }
    }

    fn allow_list(request: &Request) -> AllowList {
        AllowList::new(request, Filter::new(&request.filters).expect("good rules"))
    }

    fn entry(name: &str, kind: EntryKind) -> Entry {
        Entry::plain(name, kind, 0)
    }

    #[test]
    fn names_that_were_not_requested_are_rejected() {
        let takes = |request: &Request, names: &[&str], kind: EntryKind| {
            let list = allow_list(request);
            names.iter().map(|name| list.has(&entry(name, kind.clone()))).collect::<Vec<_>>()
        };
        let file = request(&["a/report.pdf"], Placement::Guess, &[], &[], false);
        let names = ["report.pdf", ".bashrc", "report.pdf/x", "a/report.pdf", "report.pdfx"];
        assert_eq!(takes(&file, &names, EntryKind::File), [true, false, false, false, false]);
        assert_eq!(takes(&file, &["", "report.pdf"], EntryKind::Directory), [false, false]);
        let tree = request(&["a//tree//"], Placement::Into, &[], &["-*.tmp", "-cache"], true);
        let names = ["tree", "tree/x", "x", "tree/x.tmp", "tree/cache/x", "tree/b/cache/c/x"];
        assert_eq!(takes(&tree, &names, EntryKind::File), [true, true, false, false, false, false]);
        assert_eq!(takes(&tree, &["", "tree", "tree/cache"], EntryKind::Directory), [false, true, false]);
        let first = |name: &str| EntryKind::HardLink(RelPath::new(name.as_bytes()).expect("a good name"));
        assert_eq!(takes(&tree, &["tree/x"], first(".ssh/id")), [false]);
        assert_eq!(takes(&tree, &["tree/x"], first("tree/y")), [true]);
        let listed = request(&["tree"], Placement::Into, &["a/b", "c"], &[], true);
        let names = ["tree/a/b", "tree/c", "tree/c/d", "tree/a/x", "tree/d", "a/b", "tree/a"];
        assert_eq!(takes(&listed, &names, EntryKind::File), [true, true, true, false, false, false, false]);
        assert_eq!(takes(&listed, &["tree", "tree/a", ""], EntryKind::Directory), [true, true, false]);
        let zeroes = request(&["zero:2x1k"], Placement::Into, &[], &[], false);
        let names = ["zero0000001", "zero0000002", "zero1", ".bashrc", "machine"];
        assert_eq!(takes(&zeroes, &names, EntryKind::File), [true, false, false, false, false]);
        let set = request(&["dataset:real,files=40"], Placement::Into, &[], &[], false);
        assert_eq!(takes(&set, &[".bashrc", "other/x"], EntryKind::File), [false, false]);
    }

    /// Collects scanned entries that the list rejects.
    struct Checked(AllowList, Vec<String>, usize);

    impl Visitor for Checked {
        fn found(&mut self, found: FoundEntry) -> bool {
            self.2 += 1;
            if !self.0.has(&found.entry) {
                self.1.push(found.entry.path.to_string());
            }
            true
        }

        fn trouble(&mut self, _: Trouble) {}
    }

    #[test]
    fn everything_that_a_correct_sender_sends_is_allowed() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("tree/a/b")).expect("made");
        for name in ["tree/a/b/x", "tree/a/y.tmp", "tree/z", "one"] {
            fs::write(dir.path().join(name), name).expect("written");
        }
        fs::hard_link(dir.path().join("tree/z"), dir.path().join("tree/a/z")).expect("linked");
        std::os::unix::fs::symlink("nowhere", dir.path().join("tree/link")).expect("linked");
        let root = Root::Beneath(Tree::open(dir.path()).expect("open"));
        let requests = [
            request(&["one"], Placement::Guess, &[], &[], false),
            request(&["tree", "one"], Placement::Into, &[], &[], true),
            request(&["/tree//", "./one"], Placement::Into, &[], &["-*.tmp"], true),
            request(&["tree/."], Placement::Into, &[], &[], true),
            request(&[""], Placement::Into, &[], &["-b"], true),
            request(&["tree/a/"], Placement::Contents, &[], &["+b", "-a/b/x"], true),
            request(&["tree"], Placement::Into, &["a/b", "z", "missing"], &[], true),
            request(&["tree"], Placement::Contents, &["a/b/x"], &["-a"], false),
            request(&["", "tree"], Placement::Contents, &["tree/z", "z", "a"], &["-z"], true),
            request(
                &["zero:3x1k", "machine:", "dataset:real,files=40"],
                Placement::Into,
                &[],
                &["-*7*"],
                false,
            ),
        ];
        for request in &requests {
            let spec =
                SendSpec::new(&root, request, Concurrency::Fixed(1)).expect("a request that can be sent");
            let mut checked = Checked(allow_list(request), Vec::new(), 0);
            let mut scan = Scan::new(&mut checked, &spec.filter, spec.recursive);
            assert!(spec.starts.iter().all(|start| scan.run(start)));
            assert_eq!(checked.1, Vec::<String>::new(), "{request:?}");
            assert!(checked.2 > 0, "{request:?}");
        }
    }
}
