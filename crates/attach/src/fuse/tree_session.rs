//! Requests of the kernel as [`Call`]s to a file system.
//!
//! Invariants:
//! - the kernel's pages of a file that is opened are of the content that the file has then;
//! - the kernel knows an object as often as the file system has counted: of listed entries that the
//!   kernel does not get with their attributes, the lookup is forgotten;
//! - threads of FUSE do not wait for replies.

use super::tuning;
use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, TimeOrNow, WriteFlags,
};
use longhaul_engine::Buf;
use longhaul_fs::{
    Attributes, Call, Changes, DirectoryEntry, FileKind, FileSystem, Handle, NAMES_VALID, Node, Reply,
    Stream, Time, TimeChange,
};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Positions of a listing before its first entry: those of `.` and `..`.
const DOTS: u64 = 2;

/// What a session serves.
pub(super) struct Started {
    pub(super) files: Arc<dyn FileSystem>,
    pub(super) allow_other: bool,
}

struct Session {
    files: Arc<dyn FileSystem>,
    listings: Arc<Mutex<HashMap<u64, Listing>>>,
    told: Arc<Told>,
    reopened: Sender<Reopened>,
    next: AtomicU64,
}

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
        self.lock().insert(node.0, ToldOf { until, is_plain, size, modified });
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

/// A file that was opened, and whose pages and attributes the kernel is to drop first.
struct Reopened {
    node: u64,
    handle: FileHandle,
    reply: ReplyOpen,
}

/// Tells the kernel what to drop, and answers. The kernel waits for reads of these pages meanwhile, which
/// other threads answer.
fn reopen(notifier: &Notifier, files: &Receiver<Reopened>) {
    for Reopened { node, handle, reply } in files {
        // An object that the kernel has forgotten has nothing to drop.
        if let Err(e) = notifier.inval_inode(INodeNo(node), 0, 0) {
            tracing::debug!("node {node}: {e}");
        }
        reply.opened(handle, FopenFlags::empty());
    }
}

/// A listing that a program reads.
#[derive(Default)]
struct Listing {
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
    let Started { files, allow_other } = started;
    let (reopened, inbox) = channel();
    let session =
        Session { files, listings: Arc::default(), told: Arc::default(), reopened, next: AtomicU64::new(1) };
    let (acl, config) = tuning::session(allow_other);
    let session = fuser::Session::from_fd(session, device, acl, config)?;
    let notifier = session.notifier();
    // It ends with the session, which has the other end of the queue.
    std::thread::Builder::new().name("longhaul-reopen".into()).spawn(move || reopen(&notifier, &inbox))?;
    std::thread::Builder::new().name("longhaul-fuse".into()).spawn(move || {
        let result = session.run();
        ended();
        result
    })
}

fn errno(e: longhaul_fs::Errno) -> Errno {
    Errno::from_i32(e.raw_os_error())
}

/// The error of a reply that does not belong to its request.
fn unexpected() -> Errno {
    Errno::from_i32(libc::EIO)
}

fn system_time(time: Time) -> SystemTime {
    let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    match time.seconds {
        0.. => UNIX_EPOCH.checked_add(whole),
        _ => UNIX_EPOCH.checked_sub(whole),
    }
    .and_then(|at| at.checked_add(nanoseconds))
    .unwrap_or(UNIX_EPOCH)
}

fn time_change(time: TimeOrNow) -> TimeChange {
    let at = match time {
        TimeOrNow::Now => return TimeChange::Now,
        TimeOrNow::SpecificTime(at) => at,
    };
    TimeChange::At(match at.duration_since(UNIX_EPOCH) {
        Ok(since) => Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            let part = before.subsec_nanos();
            let whole = -(before.as_secs() as i64);
            match part {
                0 => Time { seconds: whole, nanoseconds: 0 },
                _ => Time { seconds: whole - 1, nanoseconds: 1_000_000_000 - part },
            }
        }
    })
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

fn file_attr(attributes: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(attributes.node.0),
        size: attributes.size,
        blocks: attributes.blocks,
        atime: system_time(attributes.accessed),
        mtime: system_time(attributes.modified),
        ctime: system_time(attributes.changed),
        crtime: UNIX_EPOCH,
        kind: file_type(attributes.kind()),
        perm: (attributes.mode & 0o7777) as u16,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev as u32,
        blksize: attributes.block_size,
        flags: 0,
    }
}

fn bytes(name: &OsStr) -> Vec<u8> {
    name.as_bytes().to_vec()
}

impl Session {
    fn entry(&self, call: Call, reply: ReplyEntry) {
        let told = Arc::clone(&self.told);
        self.files.start(
            call,
            Box::new(move |result| match result {
                Ok(Reply::Entry(attributes)) => {
                    told.note(&attributes);
                    reply.entry(&NAMES_VALID, &file_attr(&attributes), Generation(attributes.generation));
                }
                Ok(_) => reply.error(unexpected()),
                Err(e) => reply.error(errno(e)),
            }),
        );
    }

    fn attr(&self, call: Call, reply: ReplyAttr) {
        let told = Arc::clone(&self.told);
        self.files.start(
            call,
            Box::new(move |result| match result {
                Ok(Reply::Attributes(attributes)) => {
                    told.note(&attributes);
                    reply.attr(&NAMES_VALID, &file_attr(&attributes));
                }
                Ok(_) => reply.error(unexpected()),
                Err(e) => reply.error(errno(e)),
            }),
        );
    }

    fn done(&self, call: Call, reply: ReplyEmpty) {
        self.files.start(
            call,
            Box::new(move |result| match result {
                Ok(_) => reply.ok(),
                Err(e) => reply.error(errno(e)),
            }),
        );
    }

    fn xattr(&self, call: Call, size: u32, reply: ReplyXattr) {
        self.files.start(
            call,
            Box::new(move |result| match result {
                Ok(Reply::Bytes(value)) if size == 0 => reply.size(value.len() as u32),
                Ok(Reply::Bytes(value)) if value.len() <= size as usize => reply.data(&value),
                Ok(Reply::Bytes(_)) => reply.error(Errno::from_i32(libc::ERANGE)),
                Ok(_) => reply.error(unexpected()),
                Err(e) => reply.error(errno(e)),
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
        fill: impl FnOnce(Result<&mut Listing, Errno>) + Send + 'static,
    ) {
        let listings = Arc::clone(&self.listings);
        let mut all = listings.lock().unwrap_or_else(PoisonError::into_inner);
        let listing = all.entry(fh).or_default();
        if listing.given != after {
            // The program has gone elsewhere in the directory.
            forget(&*self.files, listing.entries.drain(..));
            *listing = Listing { given: after, ..Listing::default() };
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
                    Ok(_) => return fill(Err(unexpected())),
                    Err(e) => return fill(Err(errno(e))),
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
                        fill(Err(Errno::from_i32(libc::EAGAIN)));
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

impl Filesystem for Session {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let wishes = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            // The kernel there removes set-user-ID bits and capabilities of what is written. Here it would
            // ask for the capabilities of the file at each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_CACHE_SYMLINKS,
        ];
        tuning::negotiate(config, &wishes);
        Ok(())
    }

    fn lookup(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(Call::Lookup { parent: Node(parent.0), name: bytes(name) }, reply);
    }

    fn forget(&self, _: &fuser::Request, ino: INodeNo, lookups: u64) {
        self.told.forget(ino.0);
        self.files.start(Call::Forget { node: Node(ino.0), lookups }, Box::new(|_| {}));
    }

    fn getattr(&self, _: &fuser::Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        self.attr(Call::Attributes { node: Node(ino.0), handle: fh.map(|fh| Handle(fh.0)) }, reply);
    }

    fn setattr(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        fh: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            mode,
            uid,
            gid,
            size,
            accessed: atime.map(time_change),
            modified: mtime.map(time_change),
        };
        let handle = fh.map(|fh| Handle(fh.0));
        self.attr(Call::Change { node: Node(ino.0), handle, changes }, reply);
    }

    fn readlink(&self, _: &fuser::Request, ino: INodeNo, reply: ReplyData) {
        self.files.start(
            Call::ReadLink { node: Node(ino.0) },
            Box::new(move |result| match result {
                Ok(Reply::Bytes(target)) => reply.data(&target),
                Ok(_) => reply.error(unexpected()),
                Err(e) => reply.error(errno(e)),
            }),
        );
    }

    fn mknod(
        &self,
        _: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (parent, name) = (Node(parent.0), bytes(name));
        self.entry(Call::MakeNode { parent, name, mode, rdev: rdev.into() }, reply);
    }

    fn mkdir(
        &self,
        _: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.entry(Call::MakeDirectory { parent: Node(parent.0), name: bytes(name), mode }, reply);
    }

    fn unlink(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.done(Call::Remove { parent: Node(parent.0), name: bytes(name), directory: false }, reply);
    }

    fn rmdir(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.done(Call::Remove { parent: Node(parent.0), name: bytes(name), directory: true }, reply);
    }

    fn symlink(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes().to_vec();
        self.entry(Call::MakeSymlink { parent: Node(parent.0), name: bytes(name), target }, reply);
    }

    fn rename(
        &self,
        _: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let call = Call::Rename {
            parent: Node(parent.0),
            name: bytes(name),
            new_parent: Node(new_parent.0),
            new_name: bytes(new_name),
            flags: flags.bits(),
        };
        self.done(call, reply);
    }

    fn link(&self, _: &fuser::Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(Call::Link { node: Node(ino.0), parent: Node(parent.0), name: bytes(name) }, reply);
    }

    /// Through the page cache. What others have written and closed is read: if the file has changed since
    /// the kernel was told of it, its pages and attributes are dropped first.
    fn open(&self, _: &fuser::Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (told, reopened) = (Arc::clone(&self.told), self.reopened.clone());
        self.files.start(
            Call::Open { node: Node(ino.0), flags: flags.0 as u32 },
            Box::new(move |result| match result {
                Ok(Reply::Opened(attributes, handle)) => {
                    let handle = FileHandle(handle.0);
                    if !told.is_outdated(&attributes) {
                        return reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE);
                    }
                    // The thread lives as long as the session.
                    let _ = reopened.send(Reopened { node: ino.0, handle, reply });
                }
                Ok(_) => reply.error(unexpected()),
                Err(e) => reply.error(errno(e)),
            }),
        );
    }

    fn create(
        &self,
        _: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let call = Call::Create { parent: Node(parent.0), name: bytes(name), mode, flags: flags as u32 };
        let told = Arc::clone(&self.told);
        self.files.start(
            call,
            Box::new(move |result| match result {
                Ok(Reply::Created(attributes, handle)) => {
                    told.note(&attributes);
                    reply.created(
                        &NAMES_VALID,
                        &file_attr(&attributes),
                        Generation(attributes.generation),
                        FileHandle(handle.0),
                        FopenFlags::empty(),
                    );
                }
                Ok(_) => reply.error(unexpected()),
                Err(e) => reply.error(errno(e)),
            }),
        );
    }

    fn read(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.files.start(
            Call::Read { handle: Handle(fh.0), offset, len: size.min(tuning::REQUEST) },
            Box::new(move |result| match result {
                Ok(Reply::Data(data)) => reply.data(&data),
                Ok(_) => reply.error(unexpected()),
                Err(e) => reply.error(errno(e)),
            }),
        );
    }

    fn write(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.files.start(
            Call::Write { handle: Handle(fh.0), offset, data: Buf::copy_of(data) },
            Box::new(move |result| match result {
                Ok(Reply::Written(written)) => reply.written(written),
                Ok(_) => reply.error(unexpected()),
                Err(e) => reply.error(errno(e)),
            }),
        );
    }

    fn flush(&self, _: &fuser::Request, _: INodeNo, fh: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.done(Call::Flush { handle: Handle(fh.0) }, reply);
    }

    fn release(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.done(Call::Close { handle: Handle(fh.0) }, reply);
    }

    fn fsync(&self, _: &fuser::Request, _: INodeNo, fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.done(Call::Sync { handle: Handle(fh.0), data_only }, reply);
    }

    fn opendir(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.next.fetch_add(1, Relaxed)), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        for (at, name) in [".", ".."].iter().enumerate().skip(offset.min(DOTS) as usize) {
            let _ = reply.add(ino, at as u64 + 1, FileType::Directory, name);
        }
        let files = Arc::clone(&self.files);
        self.list(Node(ino.0), fh.0, offset.saturating_sub(DOTS), move |listing| {
            let listing = match listing {
                Ok(listing) => listing,
                Err(e) => return reply.error(e),
            };
            let mut given = Vec::new();
            while let Some(entry) = listing.entries.front() {
                let node = INodeNo(entry.attributes.node.0);
                let kind = file_type(entry.attributes.kind());
                if reply.add(node, entry.position + DOTS, kind, OsStr::from_bytes(&entry.name)) {
                    break;
                }
                listing.given = entry.position;
                given.extend(listing.entries.pop_front());
            }
            reply.ok();
            forget(&*files, given);
        });
    }

    fn readdirplus(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        // The kernel takes no attributes from these two.
        let dot = FileAttr { ino, kind: FileType::Directory, ..file_attr(&directory(ino)) };
        for (at, name) in [".", ".."].iter().enumerate().skip(offset.min(DOTS) as usize) {
            let _ = reply.add(ino, at as u64 + 1, name, &Duration::ZERO, &dot, Generation(0));
        }
        let told = Arc::clone(&self.told);
        self.list(Node(ino.0), fh.0, offset.saturating_sub(DOTS), move |listing| {
            let listing = match listing {
                Ok(listing) => listing,
                Err(e) => return reply.error(e),
            };
            while let Some(entry) = listing.entries.front() {
                let attributes = &entry.attributes;
                let full = reply.add(
                    INodeNo(attributes.node.0),
                    entry.position + DOTS,
                    OsStr::from_bytes(&entry.name),
                    &NAMES_VALID,
                    &file_attr(attributes),
                    Generation(attributes.generation),
                );
                if full {
                    break;
                }
                told.note(attributes);
                listing.given = entry.position;
                listing.entries.pop_front();
            }
            reply.ok();
        });
    }

    fn releasedir(&self, _: &fuser::Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        let listing = self.listings.lock().unwrap_or_else(PoisonError::into_inner).remove(&fh.0);
        forget(&*self.files, listing.into_iter().flat_map(|listing| listing.entries));
        self.files.start(Call::CloseDirectory { stream: Stream(fh.0) }, Box::new(|_| {}));
        reply.ok();
    }

    fn fsyncdir(&self, _: &fuser::Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.done(Call::SyncDirectory { node: Node(ino.0) }, reply);
    }

    fn statfs(&self, _: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        self.files.start(
            Call::Statistics,
            Box::new(move |result| match result {
                Ok(Reply::Statistics(s)) => reply.statfs(
                    s.blocks,
                    s.free,
                    s.available,
                    s.files,
                    s.files_free,
                    s.block_size,
                    s.name_max,
                    s.block_size,
                ),
                Ok(_) => reply.error(unexpected()),
                Err(e) => reply.error(errno(e)),
            }),
        );
    }

    fn setxattr(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (node, name, value) = (Node(ino.0), bytes(name), value.to_vec());
        let told = Arc::clone(&self.told);
        self.files.start(
            Call::SetXattr { node, name, value, flags: flags as u32 },
            Box::new(move |result| {
                told.forget(node.0);
                match result {
                    Ok(_) => reply.ok(),
                    Err(e) => reply.error(errno(e)),
                }
            }),
        );
    }

    fn getxattr(&self, _: &fuser::Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if self.told.is_plain(ino.0) {
            return reply.error(Errno::from_i32(libc::ENODATA));
        }
        self.xattr(Call::GetXattr { node: Node(ino.0), name: bytes(name) }, size, reply);
    }

    fn listxattr(&self, _: &fuser::Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        if self.told.is_plain(ino.0) {
            return if size == 0 { reply.size(0) } else { reply.data(&[]) };
        }
        self.xattr(Call::ListXattrs { node: Node(ino.0) }, size, reply);
    }

    fn removexattr(&self, _: &fuser::Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.done(Call::RemoveXattr { node: Node(ino.0), name: bytes(name) }, reply);
    }

    /// Every process that the kernel lets through has the rights of the server's user: each call reports
    /// by itself what is refused.
    fn access(&self, _: &fuser::Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.done(Call::Allocate { handle: Handle(fh.0), offset, len, mode: mode as u32 }, reply);
    }

    /// The kernel asks only for `SEEK_DATA` and `SEEK_HOLE`.
    fn lseek(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::from_i32(libc::ENXIO));
        };
        let hole = whence == libc::SEEK_HOLE;
        self.files.start(
            Call::Seek { handle: Handle(fh.0), offset, hole },
            Box::new(move |result| match result {
                Ok(Reply::Offset(offset)) => reply.offset(offset as i64),
                Ok(_) => reply.error(unexpected()),
                Err(e) => reply.error(errno(e)),
            }),
        );
    }
}

/// Attributes of a directory of which only the number is known.
fn directory(ino: INodeNo) -> Attributes {
    Attributes {
        node: Node(ino.0),
        generation: 0,
        size: 0,
        blocks: 0,
        accessed: Time::default(),
        modified: Time::default(),
        changed: Time::default(),
        mode: libc::S_IFDIR | 0o700,
        links: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        block_size: 4096,
        is_plain: false,
    }
}
