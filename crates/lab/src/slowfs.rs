//! A FUSE file system that passes a directory through with planted delays and faults: latency of
//! a remote metadata server, the throughput of a busy disk, unreadable sectors, case folding and
//! short names. Threads of this process serve it. Studies plant published per-file costs with
//! it, tests plant faults.

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// Threads that serve requests: more than any copy has requests in flight.
const THREADS: usize = 72;
/// Errors of an unreadable sector and of a name that is too long (errno(3)).
const EIO: i32 = 5;
const ENAMETOOLONG: i32 = 36;
/// Time for which the kernel caches names and attributes: none, so that every lookup is delayed.
const NO_CACHING: Duration = Duration::ZERO;

/// The planted delays and faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slow {
    /// Delay of looking up a name.
    pub lookup: Duration,
    /// Delay of opening a file.
    pub open: Duration,
    /// Delay of creating a file.
    pub create: Duration,
    /// Delay of closing a file.
    pub close: Duration,
    /// Delay of each write call; concurrent calls wait in parallel.
    pub settle: Duration,
    /// Read throughput of all files together, in bytes a second.
    pub read: Option<u64>,
    /// Write throughput of all files together, in bytes a second.
    pub write: Option<u64>,
    /// Delay of an open for each open in progress, one after the other: a disk that seeks between
    /// the files.
    pub crowd: Duration,
    /// Offset in every file from which reads fail with `EIO`.
    pub bad_from: Option<u64>,
    /// Case folding: names that differ in case only are the same.
    pub folds: bool,
    /// Longest file name, in bytes.
    pub name_most: Option<usize>,
}

/// A mounted file system; unmounted on drop.
pub struct SlowFs {
    session: Option<fuser::BackgroundSession>,
    at: PathBuf,
    closing: Arc<Closing>,
}

/// Files that are being closed.
#[derive(Debug, Default)]
struct Closing {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl SlowFs {
    /// Mounts `directory` with the delays and faults of `slow` at `at`, an empty directory.
    pub fn mount(directory: &Path, at: &Path, slow: Slow) -> io::Result<SlowFs> {
        let closing = Arc::<Closing>::default();
        let fs = PassThrough {
            slow,
            closing: Arc::clone(&closing),
            paths: Mutex::new((HashMap::from([(1, directory.to_owned())]), HashMap::new())),
            files: Mutex::default(),
            next: AtomicU64::new(2),
            busy_until: [Mutex::new(Instant::now()), Mutex::new(Instant::now())],
            disk_head: Mutex::default(),
            opening: AtomicUsize::new(0),
        };
        let mut config = fuser::Config::default();
        config.n_threads = Some(THREADS);
        let session = Some(fuser::spawn_mount(fs, at, &config)?);
        Ok(SlowFs { session, at: at.to_owned(), closing })
    }

    /// The most files that were being closed at the same time.
    pub fn most_closing(&self) -> usize {
        self.closing.most.load(Relaxed)
    }
}

impl Drop for SlowFs {
    fn drop(&mut self) {
        if let Some(session) = self.session.take()
            && let Err(e) = session.umount_and_join()
        {
            eprintln!("{}: {e}", self.at.display());
        }
    }
}

type Paths = (HashMap<u64, PathBuf>, HashMap<PathBuf, u64>);

/// Requests are passed to a directory, after the planted delays.
struct PassThrough {
    slow: Slow,
    closing: Arc<Closing>,
    /// Paths by inode number, and inode numbers by path.
    paths: Mutex<Paths>,
    /// Open files by handle.
    files: Mutex<HashMap<u64, Arc<File>>>,
    /// The next inode number or file handle.
    next: AtomicU64,
    /// When the emulated disk has completed all reads ([`READ`]) and writes ([`WRITE`]) so far.
    busy_until: [Mutex<Instant>; 2],
    /// Held while the emulated disk seeks.
    disk_head: Mutex<()>,
    /// Opens in progress.
    opening: AtomicUsize,
}

/// Indices of [`PassThrough::busy_until`].
const READ: usize = 0;
const WRITE: usize = 1;

fn pause(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

impl PassThrough {
    fn path(&self, ino: INodeNo) -> io::Result<PathBuf> {
        let paths = self.paths.lock().expect("whole");
        paths.0.get(&u64::from(ino)).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn below(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        if self.slow.name_most.is_some_and(|most| name.len() > most) {
            return Err(io::Error::from_raw_os_error(ENAMETOOLONG));
        }
        let directory = self.path(parent)?;
        let folded = |name: &OsStr| name.to_string_lossy().to_lowercase();
        let same = |entry: &fs::DirEntry| folded(&entry.file_name()) == folded(name);
        let existing = match self.slow.folds {
            true => fs::read_dir(&directory)?.flatten().find(same),
            false => None,
        };
        Ok(existing.map_or_else(|| directory.join(name), |entry| entry.path()))
    }

    /// The inode number of a path.
    fn number(&self, path: &Path) -> u64 {
        let mut paths = self.paths.lock().expect("whole");
        if let Some(number) = paths.1.get(path) {
            return *number;
        }
        let number = self.next.fetch_add(1, Relaxed);
        paths.0.insert(number, path.to_owned());
        paths.1.insert(path.to_owned(), number);
        number
    }

    /// Removes a path that does not exist any more or now names another file; returns its number.
    fn forget(&self, path: &Path) -> Option<u64> {
        self.paths.lock().expect("whole").1.remove(path)
    }

    fn attributes(&self, path: &Path) -> io::Result<FileAttr> {
        let metadata = fs::symlink_metadata(path)?;
        let root = self.paths.lock().expect("whole").0.get(&1).is_some_and(|root| root == path);
        Ok(attributes(if root { 1 } else { self.number(path) }, &metadata))
    }

    fn keep(&self, file: File) -> FileHandle {
        let handle = self.next.fetch_add(1, Relaxed);
        self.files.lock().expect("whole").insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        let files = self.files.lock().expect("whole");
        files.get(&handle.0).cloned().ok_or_else(|| io::Error::from_raw_os_error(9))
    }

    /// Waits until the emulated disk has transferred `bytes`, after all earlier transfers in this
    /// direction ([`READ`] or [`WRITE`]).
    fn transfer(&self, direction: usize, rate: Option<u64>, bytes: usize) {
        let Some(rate) = rate else { return };
        let until = {
            let mut busy = self.busy_until[direction].lock().expect("whole");
            *busy = (*busy).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / rate as f64);
            *busy
        };
        pause(until.saturating_duration_since(Instant::now()));
    }

    /// Waits for the delay of an open.
    fn seek(&self) {
        pause(self.slow.open);
        if self.slow.crowd.is_zero() {
            return;
        }
        let others = self.opening.fetch_add(1, Relaxed);
        let head = self.disk_head.lock().expect("whole");
        pause(self.slow.crowd * u32::try_from(others + 1).unwrap_or(u32::MAX));
        drop(head);
        self.opening.fetch_sub(1, Relaxed);
    }
}

fn attributes(number: u64, metadata: &Metadata) -> FileAttr {
    let mtime = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    FileAttr {
        ino: INodeNo(number),
        size: metadata.size(),
        blocks: metadata.blocks(),
        atime: mtime,
        mtime,
        ctime: mtime,
        crtime: mtime,
        kind: FileType::from_std(metadata.file_type()).unwrap_or(FileType::RegularFile),
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// Replies with the value of `$result` through `$good`, or with its error.
macro_rules! answer {
    ($reply:ident, $result:expr, $good:expr) => {
        match $result {
            Ok(value) => $good($reply, value),
            Err(e) => $reply.error(Errno::from(e)),
        }
    };
}

impl Filesystem for PassThrough {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        pause(self.slow.lookup);
        answer!(
            reply,
            self.below(parent, name).and_then(|path| self.attributes(&path)),
            |reply: ReplyEntry, attr| {
                reply.entry(&NO_CACHING, &attr, Generation(0));
            }
        );
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, self.path(ino).and_then(|path| self.attributes(&path)), |reply: ReplyAttr, attr| {
            reply.attr(&NO_CACHING, &attr)
        });
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = || -> io::Result<_> {
            let path = self.path(ino)?;
            if let Some(mode) = mode {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777))?;
            }
            if let Some(size) = size {
                File::options().write(true).open(&path)?.set_len(size)?;
            }
            if let Some(time) = mtime {
                let time = match time {
                    TimeOrNow::SpecificTime(time) => time,
                    TimeOrNow::Now => SystemTime::now(),
                };
                File::open(&path)?.set_modified(time)?;
            }
            self.attributes(&path)
        };
        answer!(reply, set(), |reply: ReplyAttr, attr| reply.attr(&NO_CACHING, &attr));
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let make = || -> io::Result<_> {
            let path = self.below(parent, name)?;
            fs::create_dir(&path)?;
            self.attributes(&path)
        };
        answer!(reply, make(), |reply: ReplyEntry, attr| reply.entry(&NO_CACHING, &attr, Generation(0)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || -> io::Result<_> {
            let path = self.below(parent, name)?;
            self.forget(&path);
            fs::remove_file(path)
        };
        answer!(reply, remove(), |reply: ReplyEmpty, ()| reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || -> io::Result<_> {
            let path = self.below(parent, name)?;
            self.forget(&path);
            fs::remove_dir(path)
        };
        answer!(reply, remove(), |reply: ReplyEmpty, ()| reply.ok());
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || -> io::Result<_> {
            let (from, to) = (self.below(parent, name)?, self.below(to, new)?);
            fs::rename(&from, &to)?;
            self.forget(&to);
            if let Some(number) = self.forget(&from) {
                let mut paths = self.paths.lock().expect("whole");
                paths.0.insert(number, to.clone());
                paths.1.insert(to, number);
            }
            Ok(())
        };
        answer!(reply, rename(), |reply: ReplyEmpty, ()| reply.ok());
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.seek();
        let open = || -> io::Result<_> {
            let write = flags.0 & 3 != 0;
            Ok(self.keep(File::options().read(true).write(write).open(self.path(ino)?)?))
        };
        answer!(reply, open(), |reply: ReplyOpen, handle| reply.opened(handle, FopenFlags::empty()));
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        pause(self.slow.create);
        let create = || -> io::Result<_> {
            let path = self.below(parent, name)?;
            let file =
                File::options().read(true).write(true).create_new(true).mode(mode & 0o7777).open(&path)?;
            Ok((self.attributes(&path)?, self.keep(file)))
        };
        answer!(reply, create(), |reply: ReplyCreate, (attr, handle)| {
            reply.created(&NO_CACHING, &attr, Generation(0), handle, FopenFlags::empty());
        });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = || -> io::Result<_> {
            let (file, mut data) = (self.file(handle)?, vec![0; size as usize]);
            if self.slow.bad_from.is_some_and(|bad| offset + u64::from(size) > bad) {
                return Err(io::Error::from_raw_os_error(EIO));
            }
            let mut done = 0;
            while done < data.len() {
                match file.read_at(&mut data[done..], offset + done as u64)? {
                    0 => break,
                    read => done += read,
                }
            }
            data.truncate(done);
            self.transfer(READ, self.slow.read, done);
            Ok(data)
        };
        answer!(reply, read(), |reply: ReplyData, data: Vec<u8>| reply.data(&data));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let write = || -> io::Result<_> {
            self.file(handle)?.write_all_at(data, offset)?;
            pause(self.slow.settle);
            self.transfer(WRITE, self.slow.write, data.len());
            Ok(data.len() as u32)
        };
        answer!(reply, write(), |reply: ReplyWrite, written| reply.written(written));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // The kernel waits for `flush` in close(2), and does not wait for `release`.
        let now = 1 + self.closing.now.fetch_add(1, Relaxed);
        self.closing.most.fetch_max(now, Relaxed);
        pause(self.slow.close);
        self.closing.now.fetch_sub(1, Relaxed);
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.files.lock().expect("whole").remove(&handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        // Larger than any data set.
        let many = 1 << 30;
        reply.statfs(many, many, many, many, many, 4096, 255, 4096);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let list = || {
            let path = self.path(ino)?;
            let mut all = vec![(u64::from(ino), FileType::Directory, ".".into())];
            all.push((1, FileType::Directory, "..".into()));
            let mut entries = fs::read_dir(&path)?.collect::<io::Result<Vec<_>>>()?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let kind = FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile);
                all.push((self.number(&entry.path()), kind, entry.file_name()));
            }
            Ok::<_, io::Error>(all)
        };
        match list() {
            Ok(all) => {
                for (at, (number, kind, name)) in all.into_iter().enumerate().skip(offset as usize) {
                    if reply.add(INodeNo(number), at as u64 + 1, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(e) => reply.error(Errno::from(e)),
        }
    }
}
