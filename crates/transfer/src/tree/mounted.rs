//! A file system that is reached by calls (`longhaul_fs::FileSystem`), such as one in a pool, as a tree.
//!
//! Each call may take round trips. So what a listing has told of names is remembered, all metadata of an
//! object is set by one call, and steps for many objects are made by several threads at a time (`parallel`).
//!
//! Invariants:
//! - a [`MountedNode`] is one lookup of its object, which the file system forgets with it;
//! - what is remembered of a name is dropped when the name is changed here, and at most [`NAMES`] are; that there is
//!   no such name is remembered for [`ABSENT_AGE`];
//! - the content of each file is with the file system before the file gets its final name; while room is
//!   short, it is durable by then, since only then the file system has said that it has room.

mod directory;
mod file;
mod room;

pub(crate) use directory::{ListedStatus, MountedDirectory, MountedListing};
pub(crate) use file::MountedFile;

use super::object::{NewMetadata, Status};
use crate::guard::lock;
use crate::parallel::Helpers;
use crate::wire::Time;
use longhaul_engine::LockedFile;
use longhaul_fs::{Attributes, Call, Changes, FileKind, FileSystem, Handle, Node, Reply, TimeChange};
use room::Room;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Names that are remembered: some hundred bytes each.
const NAMES: usize = 64 << 10;
/// Names that are remembered as absent, and for how long: a copy asks several times for its journal and its destination
/// before it begins.
const ABSENT: usize = 1024;
const ABSENT_AGE: Duration = Duration::from_secs(1);
/// Threads that help with steps for many objects.
const HELPERS: usize = 48;
/// Device numbers that the kernel does not give: its numbers have 32 bits.
const DEVICES: u64 = 1 << 48;

/// A file system whose files are sources and destinations of copies.
#[derive(Clone)]
pub struct MountedFs(Arc<Mounted>);

/// Objects by directory and name.
type KnownNames = HashMap<(Node, Vec<u8>), (Arc<MountedNode>, Attributes)>;

/// Names that were not there.
#[derive(Default)]
struct AbsentNames {
    since: HashMap<(Node, Vec<u8>), Instant>,
    /// How often something was made: what was asked before may be outdated.
    made: u64,
}

impl AbsentNames {
    fn holds(&self, key: &(Node, Vec<u8>)) -> bool {
        self.since.get(key).is_some_and(|since| since.elapsed() < ABSENT_AGE)
    }

    /// There was nothing of this name when this many things were made.
    fn add(&mut self, key: (Node, Vec<u8>), made: u64) {
        if self.since.len() >= ABSENT {
            self.since.clear();
        }
        if self.made == made {
            self.since.insert(key, Instant::now());
        }
    }

    fn made(&mut self, key: &(Node, Vec<u8>)) {
        self.made += 1;
        self.since.remove(key);
    }
}

struct Mounted {
    name: String,
    files: Arc<dyn FileSystem>,
    locks: PathBuf,
    failed: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// Its device number in [`Status`].
    device: u64,
    streams: AtomicU64,
    names: Mutex<KnownNames>,
    absent: Mutex<AbsentNames>,
    /// Directories in which files were made.
    touched: Mutex<BTreeMap<Node, Arc<MountedNode>>>,
    room: Mutex<Option<Room>>,
    /// The question is on its way.
    asks_for_room: AtomicBool,
    helpers: Helpers,
    /// Names of directories that are being made.
    making: Mutex<HashSet<(Node, Vec<u8>)>>,
    made: Condvar,
}

/// A name of a directory that this thread makes.
struct Making<'m>(&'m Mounted, (Node, Vec<u8>));

impl Drop for Making<'_> {
    fn drop(&mut self) {
        lock(&self.0.making).remove(&self.1);
        self.0.made.notify_all();
    }
}

/// An object that was looked up.
pub(crate) struct MountedNode {
    files: Arc<dyn FileSystem>,
    node: Node,
}

impl Drop for MountedNode {
    fn drop(&mut self) {
        if self.node != Node::ROOT {
            self.files.start(Call::Forget { node: self.node, lookups: 1 }, Box::new(drop));
        }
    }
}

impl fmt::Debug for MountedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.fmt(f)
    }
}

impl fmt::Debug for MountedFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MountedFs").field(&self.0.name).finish()
    }
}

impl MountedFs {
    /// The file system `files`, which endpoints name `name`. Files in the directory `locks` of this machine
    /// keep two runs of the same copy apart. `failed` says why it cannot be used any more, once that is so: a
    /// copy to it ends then.
    pub fn new(
        name: &str,
        files: Arc<dyn FileSystem>,
        locks: PathBuf,
        failed: Box<dyn Fn() -> Option<String> + Send + Sync>,
    ) -> MountedFs {
        static DEVICE: AtomicU64 = AtomicU64::new(DEVICES);
        MountedFs(Arc::new(Mounted {
            name: name.to_owned(),
            files,
            locks,
            failed,
            device: DEVICE.fetch_add(1, Relaxed),
            streams: AtomicU64::new(1),
            names: Mutex::default(),
            absent: Mutex::default(),
            touched: Mutex::default(),
            room: Mutex::default(),
            asks_for_room: AtomicBool::new(false),
            helpers: Helpers::new(HELPERS),
            making: Mutex::default(),
            made: Condvar::new(),
        }))
    }

    /// As endpoints name it: `POOL/NAME`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Threads for steps of many objects.
    pub(super) fn helpers(&self) -> &Helpers {
        &self.0.helpers
    }

    /// Why it cannot be used any more.
    pub(super) fn failure(&self) -> Option<String> {
        (self.0.failed)().map(|why| format!("fs:{}: {why}", self.0.name))
    }

    pub(super) fn root(&self) -> MountedDirectory {
        let node = Arc::new(MountedNode { files: Arc::clone(&self.0.files), node: Node::ROOT });
        MountedDirectory::of(self.clone(), node)
    }

    /// Locks `name` on this machine, while the file lives.
    ///
    /// # Errors
    /// The file of the lock cannot be made.
    pub(super) fn lock_file(&self, name: &str) -> io::Result<LockedFile> {
        std::fs::create_dir_all(&self.0.locks)?;
        let path = self.0.locks.join(name);
        let options = std::fs::File::options().create(true).truncate(false).write(true).open(path)?;
        Ok(LockedFile::from(options))
    }

    /// All that was made is durable.
    ///
    /// # Errors
    /// Those of content that was written behind.
    pub(super) fn sync(&self) -> io::Result<()> {
        let touched = std::mem::take(&mut *lock(&self.0.touched));
        let mut first = Ok(());
        for node in touched.keys().copied().chain([Node::ROOT]) {
            match self.wait(Call::SyncDirectory { node }) {
                // It was removed since.
                Ok(_) | Err(Errno::STALE | Errno::NOENT) => {}
                Err(e) => first = first.and(Err(e)),
            }
        }
        Ok(first?)
    }

    /// Waits while another thread makes a directory of this name; `None` if it has done so.
    fn begin_to_make(&self, key: (Node, Vec<u8>)) -> Option<Making<'_>> {
        let mut making = lock(&self.0.making);
        while making.contains(&key) {
            making = self.0.made.wait(making).unwrap_or_else(PoisonError::into_inner);
        }
        if self.remembered(key.0, &key.1).is_some_and(|(_, found)| is_directory(&found).is_ok()) {
            return None;
        }
        making.insert(key.clone());
        Some(Making(&self.0, key))
    }

    fn wait(&self, call: Call) -> Result<Reply, Errno> {
        self.0.files.wait(call)
    }

    /// What a reply says of an object, which counts as one lookup.
    fn found(&self, attributes: &Attributes) -> Arc<MountedNode> {
        Arc::new(MountedNode { files: Arc::clone(&self.0.files), node: attributes.node })
    }

    fn remember(&self, parent: Node, name: &[u8], found: (Arc<MountedNode>, Attributes)) {
        let mut names = lock(&self.0.names);
        // The lookups that are dropped are forgotten after the lock.
        let old = if names.len() >= NAMES { std::mem::take(&mut *names) } else { HashMap::new() };
        let before = names.insert((parent, name.to_vec()), found);
        assert!(names.len() <= NAMES, "{} names are remembered", names.len());
        drop(names);
        drop((old, before));
    }

    fn forget(&self, parent: Node, name: &[u8]) {
        let gone = lock(&self.0.names).remove(&(parent, name.to_vec()));
        drop(gone);
    }

    /// Something gets this name, or has got it.
    fn may_be_present(&self, parent: Node, name: &[u8]) {
        lock(&self.0.absent).made(&(parent, name.to_vec()));
    }

    fn remembered(&self, parent: Node, name: &[u8]) -> Option<(Arc<MountedNode>, Attributes)> {
        lock(&self.0.names).get(&(parent, name.to_vec())).cloned()
    }

    fn status(&self, attributes: &Attributes) -> Status {
        let time = |time: longhaul_fs::Time| Time { secs: time.seconds, nanos: time.nanoseconds };
        Status {
            device: self.0.device,
            inode: attributes.node.0,
            mode: attributes.mode,
            links: attributes.links.into(),
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            blocks: attributes.blocks,
            modified: time(attributes.modified),
            changed: time(attributes.changed),
        }
    }
}

/// The reply is not one to this call: never from a file system that keeps to the interface.
fn unexpected<T>(_: Reply) -> Result<T, Errno> {
    Err(Errno::IO)
}

fn changes(new: NewMetadata) -> Changes {
    let time = |time: Time| longhaul_fs::Time { seconds: time.secs, nanoseconds: time.nanos };
    Changes {
        mode: new.mode,
        uid: new.owner.map(|(uid, _)| uid),
        gid: new.owner.map(|(_, gid)| gid),
        modified: new.modified.map(|modified| TimeChange::At(time(modified))),
        ..Changes::default()
    }
}

/// The answer to [`Call::GetXattr`] or [`Call::ListXattrs`], as the kernel gives it.
fn bytes_into(reply: Result<Reply, Errno>, buf: &mut [u8]) -> Result<usize, Errno> {
    match reply? {
        Reply::Bytes(bytes) => {
            buf.get_mut(..bytes.len()).ok_or(Errno::RANGE)?.copy_from_slice(&bytes);
            Ok(bytes.len())
        }
        other => unexpected(other),
    }
}

/// Why something that is not a directory is none.
fn is_directory(attributes: &Attributes) -> Result<(), Errno> {
    match attributes.kind() {
        FileKind::Directory => Ok(()),
        FileKind::Symlink => Err(Errno::LOOP),
        _ => Err(Errno::NOTDIR),
    }
}

fn attributes_of(fs: &MountedFs, node: Node, handle: Option<Handle>) -> Result<Status, Errno> {
    match fs.wait(Call::Attributes { node, handle })? {
        Reply::Attributes(attributes) => Ok(fs.status(&attributes)),
        other => unexpected(other),
    }
}

fn change(fs: &MountedFs, node: Node, handle: Option<Handle>, new: NewMetadata) -> Result<(), Errno> {
    fs.wait(Call::Change { node, handle, changes: changes(new) }).map(drop)
}

fn set_xattr(fs: &MountedFs, node: Node, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    fs.wait(Call::SetXattr { node, name: name.to_vec(), value: value.to_vec(), flags: 0 }).map(drop)
}

fn link_target(fs: &MountedFs, node: Node) -> Result<Vec<u8>, Errno> {
    match fs.wait(Call::ReadLink { node })? {
        Reply::Bytes(target) => Ok(target),
        other => unexpected(other),
    }
}
