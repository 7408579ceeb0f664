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

use super::object::{Inode, NewMetadata, Status};
use crate::guard::lock;
use crate::parallel::Helpers;
use crate::wire::Time;
use longhaul_engine::{Buf, LockedFile};
use longhaul_fs::{
    Attributes, Call, Changes, DATA_MAX, FileKind, FileSystem, Handle, Node, Reply, Statistics, Stream,
    TimeChange,
};
use rustix::fs::{FallocateFlags, OFlags};
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
/// Room is short below this many free bytes, or a sixteenth of the file system: more than what a session
/// has written and not made durable.
const RESERVE: u64 = 256 << 20;
const RESERVED_SHARE: u64 = 16;
/// How long, and for how many bytes of new content, a number of free bytes is used.
const ROOM_AGE: Duration = Duration::from_secs(1);
const ROOM_BYTES: u64 = 64 << 20;
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

#[derive(Clone, Copy)]
struct Room {
    seen: Instant,
    free: u64,
    reserve: u64,
    /// Bytes that were written since.
    written: u64,
}

impl Room {
    fn of(found: Result<Reply, Errno>) -> Option<Room> {
        let Ok(Reply::Statistics(Statistics { block_size, blocks, available, .. })) = found else {
            return None;
        };
        let bytes = |blocks: u64| blocks.saturating_mul(block_size.into());
        let reserve = RESERVE.max(bytes(blocks) / RESERVED_SHARE);
        Some(Room { seen: Instant::now(), free: bytes(available), reserve, written: 0 })
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
        MountedDirectory { fs: self.clone(), node }
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

    fn wrote(&self, bytes: u64) {
        if let Some(room) = &mut *lock(&self.0.room) {
            room.written += bytes;
        }
        self.look_for_room();
    }

    /// Asks for the free bytes if they are not known, or soon will not be any more: they are known when a file ends.
    fn look_for_room(&self) {
        let known = *lock(&self.0.room);
        let is_good = |room: Room| room.seen.elapsed() < ROOM_AGE / 2 && room.written < ROOM_BYTES / 2;
        if known.is_some_and(is_good) || self.0.asks_for_room.swap(true, Relaxed) {
            return;
        }
        let mounted = Arc::downgrade(&self.0);
        let note = move |found| {
            let Some(mounted) = mounted.upgrade() else { return };
            if let Some(room) = Room::of(found) {
                *lock(&mounted.room) = Some(room);
            }
            mounted.asks_for_room.store(false, Relaxed);
        };
        self.0.files.start(Call::Statistics, Box::new(note));
    }

    /// Whether there may be no room for what is written behind.
    fn is_short(&self) -> bool {
        let known = *lock(&self.0.room);
        let is_new = |room: &Room| room.seen.elapsed() < ROOM_AGE && room.written < ROOM_BYTES;
        let room = match known.filter(is_new) {
            Some(room) => room,
            None => match Room::of(self.wait(Call::Statistics)) {
                Some(room) => {
                    *lock(&self.0.room) = Some(room);
                    room
                }
                // It is not known.
                None => return true,
            },
        };
        room.free.saturating_sub(room.written) < room.reserve
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

/// An object of a listing.
#[derive(Debug)]
pub(crate) struct ListedStatus {
    pub(crate) status: Status,
    /// The target of a symbolic link.
    pub(crate) target: Option<Vec<u8>>,
}

/// A directory.
#[derive(Clone, Debug)]
pub(crate) struct MountedDirectory {
    fs: MountedFs,
    node: Arc<MountedNode>,
}

impl MountedDirectory {
    pub(super) fn fs(&self) -> &MountedFs {
        &self.fs
    }

    fn number(&self) -> Node {
        self.node.node
    }

    pub(super) fn identity(&self) -> (u64, u64) {
        (self.fs.0.device, self.number().0)
    }

    /// Asks for a name.
    fn lookup(&self, name: &[u8]) -> Result<(Arc<MountedNode>, Attributes), Errno> {
        let key = (self.number(), name.to_vec());
        let made = match lock(&self.fs.0.absent) {
            absent if absent.holds(&key) => return Err(Errno::NOENT),
            absent => absent.made,
        };
        match self.fs.wait(Call::Lookup { parent: self.number(), name: name.to_vec() }) {
            Ok(Reply::Entry(attributes)) => Ok((self.fs.found(&attributes), attributes)),
            Ok(other) => unexpected(other),
            Err(e) => {
                if e == Errno::NOENT {
                    lock(&self.fs.0.absent).add(key, made);
                }
                Err(e)
            }
        }
    }

    pub(super) fn look(&self, name: &[u8]) -> Result<Status, Errno> {
        if name.is_empty() {
            return attributes_of(&self.fs, self.number(), None);
        }
        let found = self.lookup(name);
        if found.is_err() {
            self.fs.forget(self.number(), name);
        }
        let (node, attributes) = found?;
        let status = self.fs.status(&attributes);
        self.fs.remember(self.number(), name, (node, attributes));
        Ok(status)
    }

    pub(super) fn read_link(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let node = match self.fs.remembered(self.number(), name) {
            Some((node, _)) => node,
            None => self.lookup(name)?.0,
        };
        link_target(&self.fs, node.node)
    }

    pub(super) fn open_directory(&self, name: &[u8]) -> Result<MountedDirectory, Errno> {
        let (node, attributes) = match self.fs.remembered(self.number(), name) {
            Some(known) if is_directory(&known.1).is_ok() => known,
            _ => {
                let found = self.lookup(name)?;
                self.fs.remember(self.number(), name, found.clone());
                found
            }
        };
        is_directory(&attributes)?;
        Ok(MountedDirectory { fs: self.fs.clone(), node })
    }

    /// Makes a directory. Many threads want the same ones at the same time, which the file system would let
    /// in one after the other, at some round trips each: those that come later find what the first one made.
    pub(super) fn make_directory(&self, name: &[u8], mode: u32) -> Result<(), Errno> {
        let Some(_making) = self.fs.begin_to_make((self.number(), name.to_vec())) else {
            return Err(Errno::EXIST);
        };
        self.fs.may_be_present(self.number(), name);
        let call = Call::MakeDirectory { parent: self.number(), name: name.to_vec(), mode };
        match self.fs.wait(call)? {
            Reply::Entry(attributes) => {
                let found = (self.fs.found(&attributes), attributes);
                self.fs.remember(self.number(), name, found);
                Ok(())
            }
            other => unexpected(other),
        }
    }

    fn open(&self, node: Arc<MountedNode>, access: OFlags) -> Result<MountedFile, Errno> {
        match self.fs.wait(Call::Open { node: node.node, flags: access.bits() })? {
            Reply::Opened(attributes, handle) => {
                Ok(MountedFile { fs: self.fs.clone(), node, handle, opened: Box::new(attributes) })
            }
            other => unexpected(other),
        }
    }

    pub(super) fn open_file(&self, name: &[u8], access: OFlags) -> Result<MountedFile, Errno> {
        if let Some((node, attributes)) = self.fs.remembered(self.number(), name)
            && attributes.kind() == FileKind::Regular
        {
            match self.open(node, access) {
                // Another object has the name by now.
                Err(Errno::STALE | Errno::NOENT) => self.fs.forget(self.number(), name),
                opened => return opened,
            }
        }
        let (node, attributes) = self.lookup(name)?;
        match attributes.kind() {
            FileKind::Regular => self.open(node, access),
            FileKind::Symlink => Err(Errno::LOOP),
            FileKind::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::NXIO),
        }
    }

    pub(super) fn create_file(&self, name: &[u8], mode: u32) -> Result<MountedFile, Errno> {
        let flags = (OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).bits();
        self.fs.may_be_present(self.number(), name);
        let call = Call::Create { parent: self.number(), name: name.to_vec(), mode, flags };
        match self.fs.wait(call)? {
            Reply::Created(attributes, handle) => {
                self.touch();
                self.fs.look_for_room();
                let node = self.fs.found(&attributes);
                Ok(MountedFile { fs: self.fs.clone(), node, handle, opened: Box::new(attributes) })
            }
            other => unexpected(other),
        }
    }

    /// What is made here is made durable by [`MountedFs::sync`].
    fn touch(&self) {
        let mut touched = lock(&self.fs.0.touched);
        touched.entry(self.number()).or_insert_with(|| Arc::clone(&self.node));
    }

    pub(super) fn make_symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Errno> {
        let (name, target) = (name.to_vec(), target.to_vec());
        self.fs.may_be_present(self.number(), &name);
        let call = Call::MakeSymlink { parent: self.number(), name: name.clone(), target };
        match self.fs.wait(call)? {
            Reply::Entry(attributes) => {
                let found = (self.fs.found(&attributes), attributes);
                self.fs.remember(self.number(), &name, found);
                Ok(())
            }
            other => unexpected(other),
        }
    }

    pub(super) fn link(&self, from: &[u8], at: &MountedDirectory, to: &[u8]) -> Result<(), Errno> {
        let (node, _) = self.lookup(from)?;
        at.fs.may_be_present(at.number(), to);
        let call = Call::Link { node: node.node, parent: at.number(), name: to.to_vec() };
        match self.fs.wait(call)? {
            // The reply is a lookup of its own.
            Reply::Entry(attributes) => drop(self.fs.found(&attributes)),
            other => return unexpected(other),
        }
        at.fs.forget(at.number(), to);
        Ok(())
    }

    pub(super) fn rename(&self, from: &[u8], at: &MountedDirectory, to: &[u8]) -> Result<(), Errno> {
        let (name, new_name) = (from.to_vec(), to.to_vec());
        let (parent, new_parent) = (self.number(), at.number());
        at.fs.may_be_present(new_parent, to);
        let renamed = self.fs.wait(Call::Rename { parent, name, new_parent, new_name, flags: 0 });
        self.fs.forget(self.number(), from);
        at.fs.forget(at.number(), to);
        renamed.map(drop)
    }

    pub(super) fn remove(&self, name: &[u8], directory: bool) -> Result<(), Errno> {
        let removed =
            self.fs.wait(Call::Remove { parent: self.number(), name: name.to_vec(), directory }).map(drop);
        self.fs.forget(self.number(), name);
        removed
    }

    pub(super) fn set_named(&self, name: &[u8], new: NewMetadata) -> Result<(), Errno> {
        let (node, _) = match self.fs.remembered(self.number(), name) {
            Some(known) => known,
            None => self.lookup(name)?,
        };
        change(&self.fs, node.node, None, new)
    }

    /// Begins a listing.
    pub(super) fn list(&self) -> MountedListing {
        let stream = Stream(self.fs.0.streams.fetch_add(1, Relaxed));
        MountedListing { directory: self.clone(), stream, after: 0, ended: false }
    }
}

impl Inode for MountedDirectory {
    fn status(&self) -> io::Result<Status> {
        Ok(attributes_of(&self.fs, self.number(), None)?)
    }

    fn set(&self, new: NewMetadata) -> Result<(), Errno> {
        change(&self.fs, self.number(), None, new)
    }

    fn is_far(&self) -> bool {
        true
    }

    fn xattr_names(&self, names: &mut [u8]) -> Result<usize, Errno> {
        bytes_into(self.fs.wait(Call::ListXattrs { node: self.number() }), names)
    }

    fn xattr(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
        bytes_into(self.fs.wait(Call::GetXattr { node: self.number(), name: name.to_vec() }), value)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        set_xattr(&self.fs, self.number(), name, value)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        self.fs.wait(Call::RemoveXattr { node: self.number(), name: name.to_vec() }).map(drop)
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

/// A listing of a directory.
#[derive(Debug)]
pub(crate) struct MountedListing {
    directory: MountedDirectory,
    stream: Stream,
    after: u64,
    ended: bool,
}

impl MountedListing {
    /// Some more names with their objects; none at the end.
    pub(super) fn next(&mut self) -> Result<Vec<(Vec<u8>, ListedStatus)>, Errno> {
        let (fs, node) = (&self.directory.fs, self.directory.number());
        let mut entries = Vec::new();
        while entries.is_empty() && !self.ended {
            match fs.wait(Call::ReadDirectory { node, stream: self.stream, after: self.after })? {
                Reply::Listing(listed, is_last) => {
                    self.ended = is_last;
                    self.after = listed.last().map_or(self.after, |entry| entry.position);
                    entries = listed;
                }
                other => return unexpected(other),
            }
        }
        // Targets are asked for together.
        let entries = fs.helpers().map(entries, |entry| {
            let target = match entry.attributes.kind() {
                FileKind::Symlink => link_target(fs, entry.attributes.node).ok(),
                _ => None,
            };
            (entry, target)
        });
        let remembered = |(entry, target): (longhaul_fs::DirectoryEntry, Option<Vec<u8>>)| {
            let found = (fs.found(&entry.attributes), entry.attributes);
            let status = fs.status(&entry.attributes);
            fs.remember(node, &entry.name, found);
            (entry.name, ListedStatus { status, target })
        };
        Ok(entries.into_iter().map(remembered).collect())
    }
}

impl Drop for MountedListing {
    fn drop(&mut self) {
        self.directory.fs.0.files.start(Call::CloseDirectory { stream: self.stream }, Box::new(drop));
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct MountedFile {
    fs: MountedFs,
    node: Arc<MountedNode>,
    handle: Handle,
    /// What it was when it was opened.
    opened: Box<Attributes>,
}

impl MountedFile {
    pub(super) fn opened_status(&self) -> Status {
        self.fs.status(&self.opened)
    }

    pub(super) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let len = buf.len().min(DATA_MAX);
        match self.fs.wait(Call::Read { handle: self.handle, offset, len: len as u32 })? {
            Reply::Data(data) => {
                let data = &data[..data.len().min(len)];
                buf[..data.len()].copy_from_slice(data);
                Ok(data.len())
            }
            other => unexpected(other),
        }
    }

    pub(super) fn write_buffer_at(&self, data: &Buf, offset: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < data.len() {
            let part = data.slice(done..data.len().min(done + DATA_MAX));
            let call = Call::Write { handle: self.handle, offset: offset + done as u64, data: part };
            match self.fs.wait(call)? {
                Reply::Written(0) => return Err(Errno::IO),
                Reply::Written(bytes) => done += bytes as usize,
                other => return unexpected(other),
            }
        }
        self.fs.wrote(data.len() as u64);
        Ok(())
    }

    pub(super) fn set_len(&self, size: u64) -> Result<(), Errno> {
        let changes = Changes { size: Some(size), ..Changes::default() };
        self.fs.wait(Call::Change { node: self.node.node, handle: Some(self.handle), changes }).map(drop)
    }

    pub(super) fn sync(&self) -> Result<(), Errno> {
        self.fs.wait(Call::Sync { handle: self.handle, data_only: true }).map(drop)
    }

    /// See [`File::end`](super::object::File::end). Content that is written behind would clear set-user-ID and
    /// set-group-ID bits that are set before, as a write does.
    pub(super) fn end(&self, mode: u32) -> Result<(), Errno> {
        if mode & 0o6000 != 0 || self.fs.is_short() {
            return self.sync();
        }
        self.fs.wait(Call::Flush { handle: self.handle }).map(drop)
    }

    pub(super) fn allocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        let (handle, mode) = (self.handle, mode.bits());
        self.fs.wait(Call::Allocate { handle, offset, len, mode }).map(drop)
    }

    pub(super) fn next_data(&self, offset: u64) -> Result<u64, Errno> {
        match self.fs.wait(Call::Seek { handle: self.handle, offset, hole: false })? {
            Reply::Offset(data) => Ok(data),
            other => unexpected(other),
        }
    }
}

impl Inode for MountedFile {
    fn status(&self) -> io::Result<Status> {
        Ok(attributes_of(&self.fs, self.node.node, Some(self.handle))?)
    }

    fn set(&self, new: NewMetadata) -> Result<(), Errno> {
        change(&self.fs, self.node.node, Some(self.handle), new)
    }

    fn is_far(&self) -> bool {
        true
    }

    fn xattr_names(&self, names: &mut [u8]) -> Result<usize, Errno> {
        if self.opened.is_plain {
            return Ok(0);
        }
        bytes_into(self.fs.wait(Call::ListXattrs { node: self.node.node }), names)
    }

    fn xattr(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
        bytes_into(self.fs.wait(Call::GetXattr { node: self.node.node, name: name.to_vec() }), value)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        set_xattr(&self.fs, self.node.node, name, value)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        self.fs.wait(Call::RemoveXattr { node: self.node.node, name: name.to_vec() }).map(drop)
    }
}

impl Drop for MountedFile {
    fn drop(&mut self) {
        // An error of a write was reported by `end` or `sync`: without them the file is not complete.
        self.fs.0.files.start(Call::Close { handle: self.handle }, Box::new(drop));
    }
}
