//! File systems in memory, and a model of what is in them.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use longhaul_catalog::{Catalog, FileCatalog};
use longhaul_engine::Buf;
use longhaul_fs::{Attributes, Call, Changes, Errno, FileSystem, Handle, Node, Reply, Stream};
use longhaul_poolfs::testing::TestFs;
use longhaul_poolfs::{FsReport, PoolFs};
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub mod counting;
pub mod dying;
pub mod held;
pub mod model;

pub const ROOT: Node = Node::ROOT;
pub const WRITE: u32 = OFlags::RDWR.bits();
pub const APPEND: u32 = OFlags::RDWR.bits() | OFlags::APPEND.bits();
pub const TRUNCATE: u32 = OFlags::RDWR.bits() | OFlags::TRUNC.bits();
pub const EXCLUSIVE: u32 = OFlags::RDWR.bits() | OFlags::EXCL.bits();

pub type Result<T> = std::result::Result<T, Errno>;

/// A file system with parity on three disks, by which lost hosts are fenced.
pub fn parity() -> TestFs {
    TestFs::fenced(memory(), 3, (2, 1), 64).expect("made")
}

/// A number of the environment, for runs with more seeds than usual.
pub fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect(name))
}

/// A host, which takes leases on directories or does not.
pub fn mount(fs: &TestFs, leases: bool) -> PoolFs {
    let options = if leases { TestFs::leased() } else { TestFs::options() };
    fs.open_by(Arc::clone(&fs.catalog), &options).expect("mounted")
}

/// Tests of hosts that wait for the catalog, and of those that take leases on directories.
#[macro_export]
macro_rules! both {
    ($($name:ident)*) => {
        mod waiting {
            $(#[test]
            fn $name() {
                super::$name(false);
            })*
        }
        mod leased {
            $(#[test]
            fn $name() {
                super::$name(true);
            })*
        }
    };
}

pub fn memory() -> Arc<dyn Catalog> {
    Arc::new(FileCatalog::in_memory().expect("memory"))
}

/// Waits for something that another thread does; longer than that ever takes in a test that passes.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that tell places and seeds apart.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| rng.u8(1..)).take(len).collect()
}

/// Calls of a file system, with what their replies have.
pub trait Calls: FileSystem {
    fn lookup(&self, parent: Node, name: &[u8]) -> Result<Attributes> {
        entry(self.wait(Call::Lookup { parent, name: name.to_vec() })?)
    }

    fn create(&self, parent: Node, name: &[u8], flags: u32) -> Result<(Attributes, Handle)> {
        match self.wait(Call::Create { parent, name: name.to_vec(), mode: 0o644, flags })? {
            Reply::Created(attributes, handle) => Ok((attributes, handle)),
            other => panic!("{other:?}"),
        }
    }

    fn open(&self, node: Node, flags: u32) -> Result<(Attributes, Handle)> {
        match self.wait(Call::Open { node, flags })? {
            Reply::Opened(attributes, handle) => Ok((attributes, handle)),
            other => panic!("{other:?}"),
        }
    }

    fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<u32> {
        match self.wait(Call::Write { handle, offset, data: Buf::copy_of(data) })? {
            Reply::Written(len) => Ok(len),
            other => panic!("{other:?}"),
        }
    }

    fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Vec<u8>> {
        match self.wait(Call::Read { handle, offset, len })? {
            Reply::Data(data) => Ok(data.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    fn flush(&self, handle: Handle) -> Result<()> {
        self.wait(Call::Flush { handle }).map(drop)
    }

    fn sync(&self, handle: Handle) -> Result<()> {
        self.wait(Call::Sync { handle, data_only: false }).map(drop)
    }

    fn close(&self, handle: Handle) -> Result<()> {
        let flushed = self.flush(handle);
        self.wait(Call::Close { handle }).map(drop)?;
        flushed
    }

    fn attributes(&self, node: Node) -> Result<Attributes> {
        entry(self.wait(Call::Attributes { node, handle: None })?)
    }

    fn resize(&self, node: Node, size: u64) -> Result<Attributes> {
        let changes = Changes { size: Some(size), ..Changes::default() };
        entry(self.wait(Call::Change { node, handle: None, changes })?)
    }

    fn make_directory(&self, parent: Node, name: &[u8]) -> Result<Attributes> {
        entry(self.wait(Call::MakeDirectory { parent, name: name.to_vec(), mode: 0o755 })?)
    }

    fn symlink(&self, parent: Node, name: &[u8], target: &[u8]) -> Result<Attributes> {
        entry(self.wait(Call::MakeSymlink { parent, name: name.to_vec(), target: target.to_vec() })?)
    }

    fn link(&self, node: Node, parent: Node, name: &[u8]) -> Result<Attributes> {
        entry(self.wait(Call::Link { node, parent, name: name.to_vec() })?)
    }

    fn remove(&self, parent: Node, name: &[u8], directory: bool) -> Result<()> {
        self.wait(Call::Remove { parent, name: name.to_vec(), directory }).map(drop)
    }

    fn rename(&self, from: (Node, &[u8]), to: (Node, &[u8]), flags: u32) -> Result<()> {
        let (name, new_name) = (from.1.to_vec(), to.1.to_vec());
        self.wait(Call::Rename { parent: from.0, name, new_parent: to.0, new_name, flags }).map(drop)
    }

    fn punch(&self, handle: Handle, offset: u64, len: u64, mode: u32) -> Result<()> {
        self.wait(Call::Allocate { handle, offset, len, mode }).map(drop)
    }

    fn seek(&self, handle: Handle, offset: u64, hole: bool) -> Result<u64> {
        match self.wait(Call::Seek { handle, offset, hole })? {
            Reply::Offset(offset) => Ok(offset),
            other => panic!("{other:?}"),
        }
    }

    /// All names of a directory, with their attributes.
    fn list(&self, node: Node) -> Result<BTreeMap<Vec<u8>, Attributes>> {
        let (mut all, mut after) = (BTreeMap::new(), 0);
        loop {
            match self.wait(Call::ReadDirectory { node, stream: Stream(1), after })? {
                Reply::Listing(entries, is_last) => {
                    assert!(is_last || !entries.is_empty(), "an empty page");
                    for entry in entries {
                        after = entry.position;
                        assert!(all.insert(entry.name, entry.attributes).is_none(), "a name came twice");
                    }
                    if is_last {
                        return Ok(all);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// A whole file, by its name.
    fn content(&self, parent: Node, name: &[u8]) -> Result<Vec<u8>> {
        let (attributes, handle) = self.open(self.lookup(parent, name)?.node, 0)?;
        let mut all = Vec::new();
        loop {
            let part = self.read(handle, all.len() as u64, 1 << 20)?;
            if part.is_empty() {
                break;
            }
            all.extend(part);
        }
        assert_eq!(all.len() as u64, attributes.size);
        self.close(handle)?;
        Ok(all)
    }

    /// Makes a file with this content, in place of what it had.
    fn put(&self, parent: Node, name: &[u8], content: &[u8]) -> Result<Node> {
        let (attributes, handle) = match self.lookup(parent, name) {
            Ok(found) => self.open(found.node, TRUNCATE)?,
            Err(_) => self.create(parent, name, WRITE)?,
        };
        for (index, part) in content.chunks(1 << 20).enumerate() {
            self.write(handle, (index as u64) << 20, part)?;
        }
        self.close(handle)?;
        Ok(attributes.node)
    }
}

impl Calls for PoolFs {}

fn entry(reply: Reply) -> Result<Attributes> {
    match reply {
        Reply::Entry(attributes) | Reply::Attributes(attributes) => Ok(attributes),
        other => panic!("{other:?}"),
    }
}

/// The file system is right, and of no lost session.
pub fn assert_right(fs: &TestFs) -> FsReport {
    let report = fs.check().expect("checked");
    assert_eq!(report.problems, Vec::<String>::new(), "{report:?}");
    report
}
