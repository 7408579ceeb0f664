//! What the receiving side asked for, and so what it takes.
//!
//! Invariants, whatever the sending side sends:
//! - a name begins with the last one of a source, or a source has none of its own
//!   (`DIR/.`, or a directory that another becomes);
//! - where files are listed, it is one of them, below one, or a directory on the
//!   way to one; what is made has the names that it is made under;
//! - filters take it, and everything between it and where the source begins;
//! - without `-r` it is no directory, and in none.
//!
//! Without this, who asks for `report.pdf` could be given a `.bashrc` as well.

use crate::filter::Filter;
use crate::made::{self, Made, Names};
use crate::place::{last_name, means_contents};
use crate::wire::{Entry, Kind, Place, RelPath, Request};
use std::collections::HashSet;

/// What one copy asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    /// What the names of sources begin with.
    named: HashSet<Vec<u8>>,
    /// A source has no name of its own.
    contents: bool,
    made: Vec<Names>,
    listed: Option<Listed>,
    recursive: bool,
    filter: Filter,
}

/// Paths below each source that alone were asked for.
#[derive(Debug)]
struct Listed {
    files: HashSet<Vec<u8>>,
    /// Directories on the way to them.
    ways: HashSet<Vec<u8>>,
}

/// The ends of a path's leading parts, itself last.
fn ends(path: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
    slashes.chain(std::iter::once(path.len()))
}

impl Asked {
    /// Of what a request names; `filter` is its own.
    pub(crate) fn new(request: &Request, filter: Filter) -> Asked {
        let mut asked = Asked {
            named: HashSet::new(),
            contents: false,
            made: Vec::new(),
            listed: (!request.files.is_empty()).then(|| Listed::new(&request.files)),
            recursive: request.recursive,
            filter,
        };
        for source in &request.sources {
            if made::makes(source) {
                // What makes no sense is not sent by anybody.
                asked.made.extend(Made::parse(source, usize::MAX).ok().map(Names::new));
            } else if request.place == Place::Contents || means_contents(source) {
                asked.contents = true;
            } else {
                asked.named.insert(last_name(source).to_vec());
            }
        }
        asked
    }

    /// Whether something was asked for.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        let is_directory = entry.kind == Kind::Directory;
        self.takes(&entry.path, is_directory)
            && match &entry.kind {
                Kind::HardLink(first) => self.takes(first, false),
                _ => true,
            }
    }

    fn takes(&self, path: &RelPath, is_directory: bool) -> bool {
        let (first, below) = path.split_first();
        let made =
            || self.made.iter().any(|names| names.has(path)) && (is_directory || self.filter.takes(path));
        (!first.is_empty()
            && self.named.contains(first)
            && self.below(path, first.len(), below, is_directory))
            || (self.contents && self.below(path, 0, path.as_bytes(), is_directory))
            || made()
    }

    /// Whether what is `below` a source was asked for; the source's own name are the
    /// first `named` bytes of `path`.
    fn below(&self, path: &RelPath, named: usize, below: &[u8], is_directory: bool) -> bool {
        let whole = path.as_bytes();
        let one = |at: usize| at == whole.len() && !is_directory;
        let Some(listed) = &self.listed else {
            return (self.recursive || one(named)) && self.filtered(whole, named);
        };
        if is_directory && listed.ways.contains(below) {
            return true;
        }
        let skipped = whole.len() - below.len();
        ends(below)
            .filter(|end| listed.files.contains(&below[..*end]))
            .any(|end| (self.recursive || one(skipped + end)) && self.filtered(whole, skipped + end))
    }

    /// Whether filters take all leading parts of a path from the one of `from` bytes
    /// on.
    fn filtered(&self, path: &[u8], from: usize) -> bool {
        let takes = |end: usize| RelPath::new(&path[..end]).is_ok_and(|part| self.filter.takes(&part));
        self.filter.is_empty() || ends(path).filter(|end| *end >= from).all(takes)
    }
}

impl Listed {
    fn new(files: &[Vec<u8>]) -> Listed {
        let mut ways: HashSet<Vec<u8>> = HashSet::from([Vec::new()]);
        for file in files {
            ways.extend(ends(file).filter(|end| *end < file.len()).map(|end| file[..end].to_vec()));
        }
        Listed { files: files.iter().cloned().collect(), ways }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::plan;
    use crate::place::Root;
    use crate::scan::{Found, Scan, Visitor};
    use crate::tree::Tree;
    use crate::tune::Concurrency;
    use crate::wire::Trouble;
    use std::fs;

    fn request(sources: &[&str], place: Place, files: &[&str], filters: &[&str], recursive: bool) -> Request {
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

    fn asked(request: &Request) -> Asked {
        Asked::new(request, Filter::new(&request.filters).expect("good rules"))
    }

    fn entry(name: &str, kind: Kind) -> Entry {
        Entry::plain(name, kind, 0)
    }

    #[test]
    fn what_was_not_asked_for_is_not_taken() {
        let takes = |request: &Request, names: &[&str], kind: Kind| {
            let asked = asked(request);
            names.iter().map(|name| asked.has(&entry(name, kind.clone()))).collect::<Vec<_>>()
        };
        let file = request(&["a/report.pdf"], Place::Guess, &[], &[], false);
        let names = ["report.pdf", ".bashrc", "report.pdf/x", "a/report.pdf", "report.pdfx"];
        assert_eq!(takes(&file, &names, Kind::File), [true, false, false, false, false]);
        assert_eq!(takes(&file, &["", "report.pdf"], Kind::Directory), [false, false]);
        let tree = request(&["a//tree//"], Place::Into, &[], &["-*.tmp", "-cache"], true);
        let names = ["tree", "tree/x", "x", "tree/x.tmp", "tree/cache/x", "tree/b/cache/c/x"];
        assert_eq!(takes(&tree, &names, Kind::File), [true, true, false, false, false, false]);
        assert_eq!(takes(&tree, &["", "tree", "tree/cache"], Kind::Directory), [false, true, false]);
        let first = |name: &str| Kind::HardLink(RelPath::new(name.as_bytes()).expect("a good name"));
        assert_eq!(takes(&tree, &["tree/x"], first(".ssh/id")), [false]);
        assert_eq!(takes(&tree, &["tree/x"], first("tree/y")), [true]);
        let listed = request(&["tree"], Place::Into, &["a/b", "c"], &[], true);
        let names = ["tree/a/b", "tree/c", "tree/c/d", "tree/a/x", "tree/d", "a/b", "tree/a"];
        assert_eq!(takes(&listed, &names, Kind::File), [true, true, true, false, false, false, false]);
        assert_eq!(takes(&listed, &["tree", "tree/a", ""], Kind::Directory), [true, true, false]);
        let zeroes = request(&["zero:2x1k"], Place::Into, &[], &[], false);
        let names = ["zero0000001", "zero0000002", "zero1", ".bashrc", "machine"];
        assert_eq!(takes(&zeroes, &names, Kind::File), [true, false, false, false, false]);
        let set = request(&["dataset:real,files=40"], Place::Into, &[], &[], false);
        assert_eq!(takes(&set, &[".bashrc", "other/x"], Kind::File), [false, false]);
    }

    /// Notes what is found and was not asked for.
    struct Checked(Asked, Vec<String>, usize);

    impl Visitor for Checked {
        fn found(&mut self, found: Found) -> bool {
            self.2 += 1;
            if !self.0.has(&found.entry) {
                self.1.push(found.entry.path.to_string());
            }
            true
        }

        fn trouble(&mut self, _: Trouble) {}
    }

    #[test]
    fn all_that_an_honest_side_sends_was_asked_for() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("tree/a/b")).expect("made");
        for name in ["tree/a/b/x", "tree/a/y.tmp", "tree/z", "one"] {
            fs::write(dir.path().join(name), name).expect("written");
        }
        fs::hard_link(dir.path().join("tree/z"), dir.path().join("tree/a/z")).expect("linked");
        std::os::unix::fs::symlink("nowhere", dir.path().join("tree/link")).expect("linked");
        let root = Root::Beneath(Tree::open(dir.path()).expect("open"));
        let requests = [
            request(&["one"], Place::Guess, &[], &[], false),
            request(&["tree", "one"], Place::Into, &[], &[], true),
            request(&["/tree//", "./one"], Place::Into, &[], &["-*.tmp"], true),
            request(&["tree/."], Place::Into, &[], &[], true),
            request(&[""], Place::Into, &[], &["-b"], true),
            request(&["tree/a/"], Place::Contents, &[], &["+b", "-a/b/x"], true),
            request(&["tree"], Place::Into, &["a/b", "z", "missing"], &[], true),
            request(&["tree"], Place::Contents, &["a/b/x"], &["-a"], false),
            request(&["", "tree"], Place::Contents, &["tree/z", "z", "a"], &["-z"], true),
            request(&["zero:3x1k", "machine:", "dataset:real,files=40"], Place::Into, &[], &["-*7*"], false),
        ];
        for request in &requests {
            let plan = plan(&root, request, Concurrency::Fixed(1)).expect("a plan");
            let mut checked = Checked(asked(request), Vec::new(), 0);
            let mut scan = Scan::new(&mut checked, &plan.filter, plan.recursive);
            assert!(plan.starts.iter().all(|start| scan.run(start)));
            assert_eq!(checked.1, Vec::<String>::new(), "{request:?}");
            assert!(checked.2 > 0, "{request:?}");
        }
    }
}
