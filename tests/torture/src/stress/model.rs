//! The expected content of a tree of files, and the next operation on it.

use crate::random::Random;
use std::collections::BTreeMap;

/// Names in one tree, at most.
const NAMES_MAX: usize = 160;
/// Longest file, and most bytes of one change.
const FILE_MAX: u64 = 192 << 10;
const CHANGE_MAX: u64 = 48 << 10;
/// Longest extended attribute: some fit into an inode, and some do not.
const ATTRIBUTE_MAX: u64 = 600;

/// Something that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    /// A file by its number: several names may have the same.
    File(usize),
    Symlink(String),
}

/// A file, whatever its names.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) attribute: Option<Vec<u8>>,
}

/// A change of a tree; paths are relative to its root.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Directory(String),
    Create(String, Vec<u8>),
    Write(String, u64, Vec<u8>),
    Truncate(String, u64),
    Link(String, String),
    Symlink(String, String),
    Rename(String, String),
    Remove(String),
    RemoveDirectory(String),
    Attribute(String, Vec<u8>),
    Sync(String),
    /// Nothing changes, and this is what is there.
    Read(String, Vec<u8>),
}

/// A tree in memory.
#[derive(Clone, Debug)]
pub(super) struct Model {
    nodes: BTreeMap<String, Node>,
    files: Vec<Content>,
    random: Random,
    /// Names given so far.
    named: u64,
}

impl Model {
    pub(super) fn new(seed: u64) -> Model {
        Model { nodes: BTreeMap::new(), files: Vec::new(), random: Random::new(seed), named: 0 }
    }

    /// All paths, in order.
    pub(super) fn paths(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys()
    }

    pub(super) fn node(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    pub(super) fn file(&self, number: usize) -> &Content {
        &self.files[number]
    }

    /// The next change.
    pub(super) fn choose(&mut self) -> Change {
        let files = self.of(|node| matches!(node, Node::File(_)));
        let full = self.nodes.len() >= NAMES_MAX;
        let kind = self.random.within(0..=15);
        if files.is_empty() || !full && kind <= 2 {
            let len = self.random.within(0..=CHANGE_MAX) as usize;
            return Change::Create(self.new_path(), self.random.bytes(len));
        }
        let file = self.random.one(&files).clone();
        let size = self.bytes(&file).len() as u64;
        match kind {
            3 if !full => Change::Directory(self.new_path()),
            4 if !full => Change::Link(file, self.new_path()),
            5 if !full => Change::Symlink(file, self.new_path()),
            6 => self.rename(&files, file),
            7 => self.remove_directory().unwrap_or(Change::Remove(file)),
            8 => Change::Remove(file),
            9 => {
                let len = self.random.within(0..=ATTRIBUTE_MAX) as usize;
                Change::Attribute(file, self.random.bytes(len))
            }
            10 => Change::Truncate(file, self.random.within(0..=FILE_MAX)),
            11 => Change::Sync(file),
            12 => {
                let bytes = self.bytes(&file).to_vec();
                Change::Read(file, bytes)
            }
            _ if full && kind <= 5 => Change::Remove(file),
            _ => {
                let at = self.random.within(0..=(size + CHANGE_MAX / 2).min(FILE_MAX - CHANGE_MAX));
                let len = self.random.within(1..=CHANGE_MAX) as usize;
                Change::Write(file, at, self.random.bytes(len))
            }
        }
    }

    /// Onto a name that is free, or that another file has.
    fn rename(&mut self, files: &[String], file: String) -> Change {
        if self.random.within(0..=1) == 0 {
            let directories = self.of(|node| *node == Node::Directory);
            if !directories.is_empty() {
                let from = self.random.one(&directories).clone();
                let to = self.new_path();
                // A directory cannot go into itself.
                if !to.starts_with(&format!("{from}/")) {
                    return Change::Rename(from, to);
                }
            }
        }
        let other = self.random.one(files).clone();
        let to = if self.random.within(0..=1) == 0 { other } else { self.new_path() };
        // Onto another name of the same file nothing happens, by POSIX.
        if self.nodes.get(&file) == self.nodes.get(&to) {
            return Change::Sync(file);
        }
        Change::Rename(file, to)
    }

    fn remove_directory(&self) -> Option<Change> {
        let empty = |path: &&String| {
            let below = format!("{path}/");
            !self.nodes.range(below.clone()..).next().is_some_and(|(next, _)| next.starts_with(&below))
        };
        let directories = self.of(|node| *node == Node::Directory);
        directories.iter().find(empty).map(|path| Change::RemoveDirectory(path.clone()))
    }

    fn of(&self, wanted: impl Fn(&Node) -> bool) -> Vec<String> {
        self.nodes.iter().filter(|(_, node)| wanted(node)).map(|(path, _)| path.clone()).collect()
    }

    fn bytes(&self, path: &str) -> &[u8] {
        match self.nodes.get(path) {
            Some(Node::File(number)) => &self.files[*number].bytes,
            _ => &[],
        }
    }

    fn new_path(&mut self) -> String {
        let directories = self.of(|node| *node == Node::Directory);
        self.named += 1;
        let name = format!("n{}", self.named);
        match self.random.within(0..=2) {
            0 => name,
            _ if directories.is_empty() => name,
            _ => format!("{}/{name}", self.random.one(&directories)),
        }
    }

    /// The tree after a change.
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Directory(path) => drop(self.nodes.insert(path.clone(), Node::Directory)),
            Change::Create(path, bytes) => {
                self.files.push(Content { bytes: bytes.clone(), attribute: None });
                self.nodes.insert(path.clone(), Node::File(self.files.len() - 1));
            }
            Change::Write(path, offset, bytes) => self.with(path, |content| {
                let (begin, end) = (*offset as usize, *offset as usize + bytes.len());
                let size = content.bytes.len().max(end);
                content.bytes.resize(size, 0);
                content.bytes[begin..end].copy_from_slice(bytes);
            }),
            Change::Truncate(path, len) => self.with(path, |content| content.bytes.resize(*len as usize, 0)),
            Change::Attribute(path, value) => {
                self.with(path, |content| content.attribute = Some(value.clone()));
            }
            Change::Link(old, new) => {
                let node = self.nodes[old].clone();
                self.nodes.insert(new.clone(), node);
            }
            Change::Symlink(to, path) => {
                self.nodes.insert(path.clone(), Node::Symlink(to.clone()));
            }
            Change::Rename(old, new) => self.moved(old, new),
            Change::Remove(path) | Change::RemoveDirectory(path) => drop(self.nodes.remove(path)),
            Change::Sync(_) | Change::Read(..) => {}
        }
    }

    fn with(&mut self, path: &str, change: impl FnOnce(&mut Content)) {
        if let Some(Node::File(number)) = self.nodes.get(path) {
            change(&mut self.files[*number]);
        }
    }

    /// A name, and all below it, is another.
    fn moved(&mut self, old: &str, new: &str) {
        let below = format!("{old}/");
        let all = self.of(|_| true);
        for path in all.iter().filter(|path| *path == old || path.starts_with(&below)) {
            if let Some(node) = self.nodes.remove(path) {
                self.nodes.insert(format!("{new}{}", &path[old.len()..]), node);
            }
        }
    }
}
