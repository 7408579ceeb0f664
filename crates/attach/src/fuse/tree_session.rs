//! Requests of the kernel as [`Call`]s to a file system.
//!
//! Invariants:
//! - the kernel's pages of a file that is opened are of the content that the file has then;
//! - the kernel knows an object as often as the file system has counted: of listed entries that the
//!   kernel does not get with their attributes, the lookup is forgotten;
//! - threads of FUSE do not wait for replies.

use super::tuning;
use longhaul_engine::Buf;
use longhaul_fs::{
    Attributes, Call, Caller, Changes, DirectoryEntry, Done, Errno, FileSystem, Handle, Locks, NAMES_VALID,
    Node, Reply, Stream, Time, TimeChange,
};
use longhaul_fuse::{
    Attr, Entry, Listing, NewTime, Notifier, Operation, Reply as Answer, Server, SetAttr, Statistics, abi,
};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Positions of a listing before its first entry: those of `.` and `..`.
const DOTS: u64 = 2;
const DOT_NAMES: [&[u8]; 2] = [b".", b".."];

/// What a session serves.
pub(super) struct Started {
    pub(super) files: Arc<dyn FileSystem>,
    /// What each user makes is its own.
    pub(super) has_users: bool,
}

pub(super) struct Tree {
    pub(super) files: Arc<dyn FileSystem>,
    has_users: bool,
    /// Its locks, if they hold between hosts.
    pub(super) locks: Option<Arc<dyn Locks>>,
    listings: Arc<Mutex<HashMap<u64, Read>>>,
    told: Arc<Told>,
    pub(super) stale: Sender<Stale>,
    next: AtomicU64,
}

/// Most objects for which the mount remembers what it told the kernel. The kernel may know more: the mount tells it
/// about those again.
const TOLD_MAX: usize = 1 << 17;

/// What the kernel was told of objects that it knows.
#[derive(Default)]
struct Told(Mutex<HashMap<u64, ToldOf>>);

/// What the kernel was told of one object.
#[derive(Clone, Copy)]
struct ToldOf {
    /// Until when the kernel believes it.
    until: Instant,
    /// It has no extended attributes: `ls -l` asks for those of each object, and the kernel does not keep the
    /// answer.
    is_plain: bool,
    size: u64,
    modified: Time,
}

impl Told {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, ToldOf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes attributes that are passed on to the kernel now.
    fn note(&self, attributes: &Attributes) {
        let &Attributes { node, is_plain, size, modified, .. } = attributes;
        let until = Instant::now() + NAMES_VALID;
        let mut all = self.lock();
        if all.len() >= TOLD_MAX && !all.contains_key(&node.0) {
            all.clear();
        }
        all.insert(node.0, ToldOf { until, is_plain, size, modified });
    }

    /// Whether the kernel believes other content of a file than there is.
    fn is_outdated(&self, now: &Attributes) -> bool {
        self.lock().get(&now.node.0).is_none_or(|told| (told.size, told.modified) != (now.size, now.modified))
    }

    fn forget(&self, node: u64) {
        self.lock().remove(&node);
    }

    fn is_plain(&self, node: u64) -> bool {
        self.lock().get(&node).is_some_and(|told| told.is_plain && Instant::now() < told.until)
    }
}

/// A file whose pages and attributes the kernel is to drop before a request for it is answered.
pub(super) struct Stale {
    pub(super) node: u64,
    pub(super) then: Box<dyn FnOnce() + Send>,
}

/// Tells the kernel what to drop, and answers. The kernel waits for reads of these pages meanwhile, which
/// other threads answer.
fn renew(notifier: &Notifier, files: &Receiver<Stale>) {
    for Stale { node, then } in files {
        // An object that the kernel has forgotten has nothing to drop.
        if let Err(e) = notifier.invalidate(node) {
            tracing::debug!("node {node}: {e}");
        }
        then();
    }
}

/// A listing that a program reads.
#[derive(Default)]
struct Read {
    /// Entries that the kernel has not got.
    entries: std::collections::VecDeque<DirectoryEntry>,
    /// Position behind the last entry that the kernel has got.
    given: u64,
    /// No entries follow.
    is_whole: bool,
}

/// Answers the kernel until the file system is unmounted, and calls `ended` then.
///
/// # Errors
/// The kernel's version of the protocol is not supported, or no thread can be started.
pub(super) fn start(
    started: Started,
    device: OwnedFd,
    ended: Box<dyn FnOnce() + Send>,
) -> io::Result<std::thread::JoinHandle<io::Result<()>>> {
    let Started { files, has_users } = started;
    let (stale, inbox) = channel();
    let locks = files.locks();
    // The kernel there removes set-user-ID bits and capabilities of what is written. Here it would ask for the
    // capabilities of the file at each write.
    let of_users = if has_users { 0 } else { abi::init::HANDLE_KILLPRIV_V2 };
    let of_locks = locks.as_ref().map_or(0, |_| abi::init::POSIX_LOCKS | abi::init::FLOCK_LOCKS);
    let (listings, told, next) = (Arc::default(), Arc::default(), AtomicU64::new(1));
    let tree = Tree { files, has_users, locks, listings, told, stale, next };
    let wishes = of_locks
        | abi::init::ASYNC_DIO
        | abi::init::DO_READDIRPLUS
        | abi::init::PARALLEL_DIROPS
        | abi::init::AUTO_INVAL_DATA
        | abi::init::CACHE_SYMLINKS
        | of_users;
    let session = longhaul_fuse::Session::new(device, Arc::new(tree), tuning::options(wishes))?;
    let notifier = session.notifier();
    // It ends with the session, which has the other end of the queue.
    std::thread::Builder::new().name("longhaul-renew".into()).spawn(move || renew(&notifier, &inbox))?;
    std::thread::Builder::new().name("longhaul-fuse".into()).spawn(move || {
        let result = session.run();
        ended();
        result
    })
}

/// The error of a reply that does not belong to its request.
pub(super) const UNEXPECTED: i32 = libc::EIO;

fn time_change(time: NewTime) -> TimeChange {
    match time {
        NewTime::Now => TimeChange::Now,
        NewTime::At(seconds, nanoseconds) => TimeChange::At(Time { seconds, nanoseconds }),
    }
}

fn attr(attributes: &Attributes) -> Attr {
    let &Attributes { accessed, modified, changed, .. } = attributes;
    Attr {
        ino: attributes.node.0,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: accessed.seconds.cast_unsigned(),
        mtime: modified.seconds.cast_unsigned(),
        ctime: changed.seconds.cast_unsigned(),
        atimensec: accessed.nanoseconds,
        mtimensec: modified.nanoseconds,
        ctimensec: changed.nanoseconds,
        mode: attributes.mode,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev as u32,
        blksize: attributes.block_size,
        flags: 0,
    }
}

fn entry(attributes: &Attributes) -> Entry {
    let &Attributes { node, generation, .. } = attributes;
    Entry { node: node.0, generation, valid: NAMES_VALID, attr: attr(attributes) }
}

impl Tree {
    /// Starts a call that may make something.
    fn start_for(&self, caller: Caller, call: Call, done: Done) {
        match self.has_users {
            true => self.files.start_for(caller, call, done),
            false => self.files.start(call, done),
        }
    }

    fn entry(&self, caller: Caller, call: Call, reply: Answer) {
        let told = Arc::clone(&self.told);
        self.start_for(
            caller,
            call,
            Box::new(move |result| match result {
                Ok(Reply::Entry(attributes)) => {
                    told.note(&attributes);
                    reply.entry(&entry(&attributes));
                }
                Ok(_) => reply.error(UNEXPECTED),
                Err(e) => reply.error(e.raw_os_error()),
            }),
        );
    }

    fn attr(&self, call: Call, reply: Answer) {
        let told = Arc::clone(&self.told);
        self.files.start(
            call,
            Box::new(move |result| match result {
                Ok(Reply::Attributes(attributes)) => {
                    told.note(&attributes);
                    reply.attr(NAMES_VALID, &attr(&attributes));
                }
                Ok(_) => reply.error(UNEXPECTED),
                Err(e) => reply.error(e.raw_os_error()),
            }),
        );
    }

    pub(super) fn done(&self, call: Call, reply: Answer) {
        self.files.start(
            call,
            Box::new(move |result| match result {
                Ok(_) => reply.ok(),
                Err(e) => reply.error(e.raw_os_error()),
            }),
        );
    }

    fn xattr(&self, call: Call, size: u32, reply: Answer) {
        self.files.start(
            call,
            Box::new(move |result| match result {
                Ok(Reply::Bytes(value)) if size == 0 => reply.size(value.len() as u32),
                Ok(Reply::Bytes(value)) if value.len() <= size as usize => reply.data(&value),
                Ok(Reply::Bytes(_)) => reply.error(libc::ERANGE),
                Ok(_) => reply.error(UNEXPECTED),
                Err(e) => reply.error(e.raw_os_error()),
            }),
        );
    }

    /// Calls `fill` with the entries behind position `after`, as soon as there are any or it is known that
    /// there are none. It returns how many it took.
    fn list(
        &self,
        node: Node,
        fh: u64,
        after: u64,
        fill: impl FnOnce(Result<&mut Read, Errno>) + Send + 'static,
    ) {
        let listings = Arc::clone(&self.listings);
        let mut all = listings.lock().unwrap_or_else(PoisonError::into_inner);
        let listing = all.entry(fh).or_default();
        if listing.given != after {
            // The program has gone elsewhere in the directory.
            forget(&*self.files, listing.entries.drain(..));
            *listing = Read { given: after, ..Read::default() };
        }
        if !listing.entries.is_empty() || listing.is_whole {
            return fill(Ok(listing));
        }
        drop(all);
        let (known, files) = (Arc::clone(&self.listings), Arc::clone(&self.files));
        let call = Call::ReadDirectory { node, stream: Stream(fh), after };
        self.files.start(
            call,
            Box::new(move |result| {
                let (entries, is_whole) = match result {
                    Ok(Reply::Listing(entries, is_whole)) => (entries, is_whole),
                    Ok(_) => return fill(Err(Errno::IO)),
                    Err(e) => return fill(Err(e)),
                };
                let mut all = known.lock().unwrap_or_else(PoisonError::into_inner);
                match all.get_mut(&fh).filter(|listing| listing.given == after && listing.entries.is_empty())
                {
                    Some(listing) => {
                        listing.entries.extend(entries);
                        listing.is_whole = is_whole;
                        fill(Ok(listing));
                    }
                    // Two threads of a program read it at the same time, or it is closed.
                    None => {
                        forget(&*files, entries);
                        fill(Err(Errno::AGAIN));
                    }
                }
            }),
        );
    }
}

/// Forgets the lookups of entries.
fn forget(files: &dyn FileSystem, entries: impl IntoIterator<Item = DirectoryEntry>) {
    for entry in entries {
        files.start(Call::Forget { node: entry.attributes.node, lookups: 1 }, Box::new(|_| {}));
    }
}

impl Tree {
    fn change(&self, node: Node, new: SetAttr, reply: Answer) {
        let changes = Changes {
            mode: new.mode,
            uid: new.uid,
            gid: new.gid,
            size: new.size,
            accessed: new.atime.map(time_change),
            modified: new.mtime.map(time_change),
        };
        self.attr(Call::Change { node, handle: new.handle.map(Handle), changes }, reply);
    }

    fn read_link(&self, node: Node, reply: Answer) {
        self.files.start(
            Call::ReadLink { node },
            Box::new(move |result| match result {
                Ok(Reply::Bytes(target)) => reply.data(&target),
                Ok(_) => reply.error(UNEXPECTED),
                Err(e) => reply.error(e.raw_os_error()),
            }),
        );
    }

    /// Through the page cache. What others have written and closed is read: if the file has changed since
    /// the kernel was told of it, its pages and attributes are dropped first.
    fn open(&self, node: Node, flags: u32, reply: Answer) {
        let (told, stale) = (Arc::clone(&self.told), self.stale.clone());
        self.files.start(
            Call::Open { node, flags },
            Box::new(move |result| match result {
                Ok(Reply::Opened(attributes, handle)) => {
                    if !told.is_outdated(&attributes) {
                        return reply.opened(handle.0, abi::open::KEEP_CACHE);
                    }
                    // The thread lives as long as the session.
                    let then = Box::new(move || reply.opened(handle.0, 0));
                    let _ = stale.send(Stale { node: node.0, then });
                }
                Ok(_) => reply.error(UNEXPECTED),
                Err(e) => reply.error(e.raw_os_error()),
            }),
        );
    }

    fn create(&self, caller: Caller, call: Call, reply: Answer) {
        let told = Arc::clone(&self.told);
        self.start_for(
            caller,
            call,
            Box::new(move |result| match result {
                Ok(Reply::Created(attributes, handle)) => {
                    told.note(&attributes);
                    reply.created(&entry(&attributes), handle.0, 0);
                }
                Ok(_) => reply.error(UNEXPECTED),
                Err(e) => reply.error(e.raw_os_error()),
            }),
        );
    }

    fn read(&self, handle: Handle, offset: u64, size: u32, reply: Answer) {
        self.files.start(
            Call::Read { handle, offset, len: size.min(tuning::REQUEST) },
            Box::new(move |result| match result {
                Ok(Reply::Data(data)) => reply.data(&data),
                Ok(_) => reply.error(UNEXPECTED),
                Err(e) => reply.error(e.raw_os_error()),
            }),
        );
    }

    fn write(&self, handle: Handle, offset: u64, data: &[u8], reply: Answer) {
        self.files.start(
            Call::Write { handle, offset, data: Buf::copy_of(data) },
            Box::new(move |result| match result {
                Ok(Reply::Written(written)) => reply.written(written),
                Ok(_) => reply.error(UNEXPECTED),
                Err(e) => reply.error(e.raw_os_error()),
            }),
        );
    }

    fn read_directory(&self, node: Node, stream: u64, offset: u64, size: u32, reply: Answer) {
        let mut into = Listing::new(size);
        for (at, name) in DOT_NAMES.iter().enumerate().skip(offset.min(DOTS) as usize) {
            into.add(node.0, at as u64 + 1, libc::S_IFDIR, name);
        }
        let files = Arc::clone(&self.files);
        self.list(node, stream, offset.saturating_sub(DOTS), move |listing| {
            let listing = match listing {
                Ok(listing) => listing,
                Err(e) => return reply.error(e.raw_os_error()),
            };
            let mut given = Vec::new();
            while let Some(entry) = listing.entries.front() {
                let Attributes { node, mode, .. } = entry.attributes;
                if !into.add(node.0, entry.position + DOTS, mode, &entry.name) {
                    break;
                }
                listing.given = entry.position;
                given.extend(listing.entries.pop_front());
            }
            reply.listing(&into);
            forget(&*files, given);
        });
    }

    fn read_directory_plus(&self, node: Node, stream: u64, offset: u64, size: u32, reply: Answer) {
        let mut into = Listing::new(size);
        // The kernel takes no attributes from these two.
        let attr = Attr { ino: node.0, mode: libc::S_IFDIR | 0o700, ..Attr::default() };
        let dot = Entry { node: node.0, generation: 0, valid: Duration::ZERO, attr };
        for (at, name) in DOT_NAMES.iter().enumerate().skip(offset.min(DOTS) as usize) {
            into.add_plus(&dot, at as u64 + 1, name);
        }
        let told = Arc::clone(&self.told);
        self.list(node, stream, offset.saturating_sub(DOTS), move |listing| {
            let listing = match listing {
                Ok(listing) => listing,
                Err(e) => return reply.error(e.raw_os_error()),
            };
            while let Some(found) = listing.entries.front() {
                if !into.add_plus(&entry(&found.attributes), found.position + DOTS, &found.name) {
                    break;
                }
                told.note(&found.attributes);
                listing.given = found.position;
                listing.entries.pop_front();
            }
            reply.listing(&into);
        });
    }

    fn close_directory(&self, stream: u64, reply: Answer) {
        let listing = self.listings.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream);
        forget(&*self.files, listing.into_iter().flat_map(|listing| listing.entries));
        self.files.start(Call::CloseDirectory { stream: Stream(stream) }, Box::new(|_| {}));
        reply.ok();
    }

    fn statistics(&self, reply: Answer) {
        self.files.start(
            Call::Statistics,
            Box::new(move |result| match result {
                Ok(Reply::Statistics(s)) => reply.statistics(&Statistics {
                    blocks: s.blocks,
                    free: s.free,
                    available: s.available,
                    files: s.files,
                    files_free: s.files_free,
                    block_size: s.block_size,
                    name_max: s.name_max,
                }),
                Ok(_) => reply.error(UNEXPECTED),
                Err(e) => reply.error(e.raw_os_error()),
            }),
        );
    }

    fn set_xattr(&self, node: Node, call: Call, reply: Answer) {
        let told = Arc::clone(&self.told);
        self.files.start(
            call,
            Box::new(move |result| {
                told.forget(node.0);
                match result {
                    Ok(_) => reply.ok(),
                    Err(e) => reply.error(e.raw_os_error()),
                }
            }),
        );
    }

    /// The kernel asks only for `SEEK_DATA` and `SEEK_HOLE`.
    fn seek(&self, handle: Handle, offset: u64, whence: u32, reply: Answer) {
        if i64::try_from(offset).is_err() {
            return reply.error(libc::ENXIO);
        }
        let hole = whence == libc::SEEK_HOLE.cast_unsigned();
        self.files.start(
            Call::Seek { handle, offset, hole },
            Box::new(move |result| match result {
                Ok(Reply::Offset(offset)) => reply.offset(offset),
                Ok(_) => reply.error(UNEXPECTED),
                Err(e) => reply.error(e.raw_os_error()),
            }),
        );
    }
}

impl Server for Tree {
    fn request(&self, request: longhaul_fuse::Request<'_>, reply: Answer) {
        let longhaul_fuse::Header { node, uid, gid, .. } = request.header;
        let (node, caller) = (Node(node), Caller { uid, gid });
        let own = <[u8]>::to_vec;
        match request.operation {
            Operation::Lookup { name } => {
                self.entry(caller, Call::Lookup { parent: node, name: own(name) }, reply)
            }
            Operation::GetAttr { handle } => {
                self.attr(Call::Attributes { node, handle: handle.map(Handle) }, reply);
            }
            Operation::SetAttr(new) => self.change(node, new, reply),
            Operation::ReadLink => self.read_link(node, reply),
            Operation::Symlink { name, target } => {
                self.entry(
                    caller,
                    Call::MakeSymlink { parent: node, name: own(name), target: own(target) },
                    reply,
                );
            }
            Operation::MakeNode { name, mode, rdev } => {
                let call = Call::MakeNode { parent: node, name: own(name), mode, rdev: rdev.into() };
                self.entry(caller, call, reply);
            }
            Operation::MakeDirectory { name, mode } => {
                self.entry(caller, Call::MakeDirectory { parent: node, name: own(name), mode }, reply);
            }
            Operation::Unlink { name } => {
                self.done(Call::Remove { parent: node, name: own(name), directory: false }, reply);
            }
            Operation::RemoveDirectory { name } => {
                self.done(Call::Remove { parent: node, name: own(name), directory: true }, reply);
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let (new_parent, new_name) = (Node(new_parent), own(new_name));
                self.done(Call::Rename { parent: node, name: own(name), new_parent, new_name, flags }, reply);
            }
            Operation::Link { node: of, name } => {
                self.entry(caller, Call::Link { node: Node(of), parent: node, name: own(name) }, reply);
            }
            Operation::Open { flags } => self.open(node, flags, reply),
            Operation::Create { name, mode, flags } => {
                self.create(caller, Call::Create { parent: node, name: own(name), mode, flags }, reply);
            }
            Operation::Read { handle, offset, size } => self.read(Handle(handle), offset, size, reply),
            Operation::Write { handle, offset, data, .. } => self.write(Handle(handle), offset, data, reply),
            Operation::Flush { handle, owner } => self.flush(node, Handle(handle), owner, reply),
            Operation::Release(release) => self.release(node, release, reply),
            Operation::Sync { handle, data_only } => {
                self.done(Call::Sync { handle: Handle(handle), data_only }, reply);
            }
            Operation::OpenDirectory => reply.opened(self.next.fetch_add(1, Relaxed), 0),
            Operation::ReadDirectory { handle, offset, size } => {
                self.read_directory(node, handle, offset, size, reply);
            }
            Operation::ReadDirectoryPlus { handle, offset, size } => {
                self.read_directory_plus(node, handle, offset, size, reply);
            }
            Operation::ReleaseDirectory { handle } => self.close_directory(handle, reply),
            Operation::SyncDirectory { .. } => self.done(Call::SyncDirectory { node }, reply),
            Operation::Statistics => self.statistics(reply),
            Operation::SetXattr { name, value, flags } => {
                self.set_xattr(
                    node,
                    Call::SetXattr { node, name: own(name), value: own(value), flags },
                    reply,
                );
            }
            Operation::GetXattr { name, .. } if self.files.refuses_xattr(name) => {
                reply.error(libc::EOPNOTSUPP);
            }
            Operation::GetXattr { .. } if self.told.is_plain(node.0) => reply.error(libc::ENODATA),
            Operation::GetXattr { name, size } => {
                self.xattr(Call::GetXattr { node, name: own(name) }, size, reply);
            }
            Operation::ListXattrs { size: 0 } if self.told.is_plain(node.0) => reply.size(0),
            Operation::ListXattrs { .. } if self.told.is_plain(node.0) => reply.data(&[]),
            Operation::ListXattrs { size } => self.xattr(Call::ListXattrs { node }, size, reply),
            Operation::RemoveXattr { name } => self.done(Call::RemoveXattr { node, name: own(name) }, reply),
            // Every process that the kernel lets through has the rights of the server's user: each call reports
            // by itself what is refused.
            Operation::Access { .. } => reply.ok(),
            Operation::Allocate { handle, offset, len, mode } => {
                self.done(Call::Allocate { handle: Handle(handle), offset, len, mode }, reply);
            }
            Operation::Seek { handle, offset, whence } => self.seek(Handle(handle), offset, whence, reply),
            Operation::GetLock(lock) => self.get_lock(node, lock, reply),
            Operation::SetLock { lock, waits } => self.set_lock(node, lock, waits, reply),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.told.forget(node);
        self.files.start(Call::Forget { node: Node(node), lookups }, Box::new(|_| {}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_of_many_objects_is_bounded() {
        let (told, most) = (Told::default(), TOLD_MAX as u64);
        let time = Time { seconds: 1, nanoseconds: 2 };
        let one = |node| Attributes {
            node: Node(node),
            generation: 0,
            size: node,
            blocks: 1,
            accessed: time,
            modified: time,
            changed: time,
            mode: 0o100_644,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            block_size: 4096,
            is_plain: true,
        };
        for node in 1..=2 * most {
            told.note(&one(node));
            assert!(!told.is_outdated(&one(node)));
        }
        assert!(told.lock().len() as u64 <= most);
        assert!(
            told.is_outdated(&one(1)),
            "the mount tells the kernel again about an object that it has forgotten"
        );
    }
}
