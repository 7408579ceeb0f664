//! A FUSE file system that passes a directory through with planted delays and faults: latency of
//! a remote metadata server, the throughput of a busy disk, unreadable sectors, case folding and
//! short names. Threads of this process serve it. Studies plant published per-file costs with
//! it, tests plant faults.

use longhaul_fuse::{
    Attr, Entry, Listing, MountOptions, MountedAs, NewTime, Operation, Reply, Request, Server, Session,
    SessionOptions, SetAttr, Statistics, abi,
};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Threads that serve requests: more than any copy has requests in flight.
const THREADS: usize = 72;
/// Bytes of one read or write.
const REQUEST: u32 = 1 << 20;
/// Requests that the kernel has under way without a thread that waits in each.
const BACKGROUND: u16 = 16;
/// Errors of an unreadable sector and of a name that is too long (errno(3)).
const EIO: i32 = 5;
const ENAMETOOLONG: i32 = 36;
/// An operation that is not there.
const ENOSYS: i32 = 38;
/// Kind of a directory in a mode (stat(2)).
const S_IFDIR: u32 = 0o40_000;
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
    session: Option<JoinHandle<io::Result<()>>>,
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
        let at = at.canonicalize()?;
        let how =
            MountOptions { name: "slowfs", read_only: false, allow_other: false, what: MountedAs::Directory };
        let device = longhaul_fuse::mount(&at, how).map_err(io::Error::other)?;
        // From here on it is unmounted when this is dropped.
        let mut mounted = SlowFs { session: None, at, closing };
        let options =
            SessionOptions { threads: THREADS, request: REQUEST, background: BACKGROUND, wishes: 0 };
        let session = Session::new(device, Arc::new(fs), options)?;
        let name = "longhaul-slowfs".to_owned();
        mounted.session = Some(std::thread::Builder::new().name(name).spawn(move || session.run())?);
        Ok(mounted)
    }

    /// The most files that were being closed at the same time.
    pub fn most_closing(&self) -> usize {
        self.closing.most.load(Relaxed)
    }
}

impl Drop for SlowFs {
    fn drop(&mut self) {
        if longhaul_fuse::unmount(&self.at, false).is_err() {
            // A program uses it, and the session ends with that.
            if let Err(e) = longhaul_fuse::unmount(&self.at, true) {
                eprintln!("{}: {e}", self.at.display());
            }
            return;
        }
        match self.session.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(e))) => eprintln!("{}: {e}", self.at.display()),
            Some(Err(_)) => eprintln!("{}: a thread has panicked", self.at.display()),
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
    fn path(&self, node: u64) -> io::Result<PathBuf> {
        let paths = self.paths.lock().expect("whole");
        paths.0.get(&node).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn below(&self, parent: u64, name: &[u8]) -> io::Result<PathBuf> {
        if self.slow.name_most.is_some_and(|most| name.len() > most) {
            return Err(io::Error::from_raw_os_error(ENAMETOOLONG));
        }
        let (directory, name) = (self.path(parent)?, OsStr::from_bytes(name));
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

    fn entry(&self, path: &Path) -> io::Result<Entry> {
        let metadata = fs::symlink_metadata(path)?;
        let root = self.paths.lock().expect("whole").0.get(&1).is_some_and(|root| root == path);
        let node = if root { abi::ROOT } else { self.number(path) };
        Ok(Entry { node, generation: 0, valid: NO_CACHING, attr: attributes(node, &metadata) })
    }

    fn keep(&self, file: File) -> u64 {
        let handle = self.next.fetch_add(1, Relaxed);
        self.files.lock().expect("whole").insert(handle, Arc::new(file));
        handle
    }

    fn file(&self, handle: u64) -> io::Result<Arc<File>> {
        let files = self.files.lock().expect("whole");
        files.get(&handle).cloned().ok_or_else(|| io::Error::from_raw_os_error(9))
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

fn attributes(number: u64, metadata: &Metadata) -> Attr {
    Attr {
        ino: number,
        size: metadata.size(),
        blocks: metadata.blocks(),
        mode: metadata.mode(),
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        blksize: 4096,
        ..Attr::as_of(metadata.mtime().cast_unsigned(), metadata.mtime_nsec() as u32)
    }
}

/// Replies with the value of `result` through `good`, or with its error.
fn answer<T>(reply: Reply, result: io::Result<T>, good: impl FnOnce(Reply, T)) {
    match result {
        Ok(value) => good(reply, value),
        Err(e) => reply.error(e.raw_os_error().unwrap_or(EIO)),
    }
}

impl PassThrough {
    fn change(&self, node: u64, new: SetAttr) -> io::Result<Entry> {
        let path = self.path(node)?;
        if let Some(mode) = new.mode {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777))?;
        }
        if let Some(size) = new.size {
            File::options().write(true).open(&path)?.set_len(size)?;
        }
        if let Some(time) = new.mtime {
            let time = match time {
                NewTime::At(seconds, nanoseconds) => {
                    let since = Duration::new(seconds.max(0).cast_unsigned(), nanoseconds);
                    SystemTime::UNIX_EPOCH + since
                }
                NewTime::Now => SystemTime::now(),
            };
            File::open(&path)?.set_modified(time)?;
        }
        self.entry(&path)
    }

    fn make_directory(&self, parent: u64, name: &[u8]) -> io::Result<Entry> {
        let path = self.below(parent, name)?;
        fs::create_dir(&path)?;
        self.entry(&path)
    }

    fn remove(&self, parent: u64, name: &[u8], directory: bool) -> io::Result<()> {
        let path = self.below(parent, name)?;
        self.forget(&path);
        if directory { fs::remove_dir(path) } else { fs::remove_file(path) }
    }

    fn rename(&self, parent: u64, name: &[u8], to: u64, new: &[u8]) -> io::Result<()> {
        let (from, to) = (self.below(parent, name)?, self.below(to, new)?);
        fs::rename(&from, &to)?;
        self.forget(&to);
        if let Some(number) = self.forget(&from) {
            let mut paths = self.paths.lock().expect("whole");
            paths.0.insert(number, to.clone());
            paths.1.insert(to, number);
        }
        Ok(())
    }

    fn open(&self, node: u64, flags: u32) -> io::Result<u64> {
        self.seek();
        let write = flags & 3 != 0;
        Ok(self.keep(File::options().read(true).write(write).open(self.path(node)?)?))
    }

    fn create(&self, parent: u64, name: &[u8], mode: u32) -> io::Result<(Entry, u64)> {
        pause(self.slow.create);
        let path = self.below(parent, name)?;
        let file = File::options().read(true).write(true).create_new(true).mode(mode & 0o7777).open(&path)?;
        Ok((self.entry(&path)?, self.keep(file)))
    }

    fn read(&self, handle: u64, offset: u64, size: u32) -> io::Result<Vec<u8>> {
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
    }

    fn write(&self, handle: u64, offset: u64, data: &[u8]) -> io::Result<u32> {
        self.file(handle)?.write_all_at(data, offset)?;
        pause(self.slow.settle);
        self.transfer(WRITE, self.slow.write, data.len());
        Ok(data.len() as u32)
    }

    /// The kernel waits for a flush in close(2), and does not wait for a release.
    fn flush(&self) {
        let now = 1 + self.closing.now.fetch_add(1, Relaxed);
        self.closing.most.fetch_max(now, Relaxed);
        pause(self.slow.close);
        self.closing.now.fetch_sub(1, Relaxed);
    }

    fn list(&self, node: u64, offset: u64, size: u32) -> io::Result<Listing> {
        let path = self.path(node)?;
        let mut all = vec![(node, S_IFDIR, OsString::from(".")), (abi::ROOT, S_IFDIR, "..".into())];
        let mut entries = fs::read_dir(&path)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            all.push((self.number(&entry.path()), entry.metadata()?.mode(), entry.file_name()));
        }
        let mut listing = Listing::new(size);
        for (at, (number, mode, name)) in all.into_iter().enumerate().skip(offset as usize) {
            if !listing.add(number, at as u64 + 1, mode, &name.into_vec()) {
                break;
            }
        }
        Ok(listing)
    }
}

impl Server for PassThrough {
    fn request(&self, request: Request<'_>, reply: Reply) {
        let node = request.header.node;
        let entry = |reply: Reply, entry: Entry| reply.entry(&entry);
        let attr = |reply: Reply, entry: Entry| reply.attr(NO_CACHING, &entry.attr);
        let ok = |reply: Reply, ()| reply.ok();
        match request.operation {
            Operation::Lookup { name } => {
                pause(self.slow.lookup);
                answer(reply, self.below(node, name).and_then(|path| self.entry(&path)), entry);
            }
            Operation::GetAttr { .. } => {
                answer(reply, self.path(node).and_then(|path| self.entry(&path)), attr);
            }
            Operation::SetAttr(new) => answer(reply, self.change(node, new), attr),
            Operation::MakeDirectory { name, .. } => answer(reply, self.make_directory(node, name), entry),
            Operation::Unlink { name } => answer(reply, self.remove(node, name, false), ok),
            Operation::RemoveDirectory { name } => answer(reply, self.remove(node, name, true), ok),
            Operation::Rename { name, new_parent, new_name, .. } => {
                answer(reply, self.rename(node, name, new_parent, new_name), ok);
            }
            Operation::Open { flags } => {
                answer(reply, self.open(node, flags), |reply, handle| reply.opened(handle, 0));
            }
            Operation::Create { name, mode, .. } => {
                answer(reply, self.create(node, name, mode), |reply, (entry, handle)| {
                    reply.created(&entry, handle, 0);
                });
            }
            Operation::Read { handle, offset, size } => {
                answer(reply, self.read(handle, offset, size), |reply, data| reply.data(&data));
            }
            Operation::Write { handle, offset, data, .. } => {
                answer(reply, self.write(handle, offset, data), Reply::written);
            }
            Operation::Flush { .. } => {
                self.flush();
                reply.ok();
            }
            Operation::Release(release) => {
                self.files.lock().expect("whole").remove(&release.handle);
                reply.ok();
            }
            Operation::Sync { .. } | Operation::SyncDirectory { .. } => reply.ok(),
            Operation::OpenDirectory => reply.opened(0, 0),
            Operation::ReleaseDirectory { .. } => reply.ok(),
            Operation::ReadDirectory { offset, size, .. } => {
                answer(reply, self.list(node, offset, size), |reply, listing| reply.listing(&listing));
            }
            Operation::Statistics => {
                // Larger than any data set.
                let many = 1 << 30;
                reply.statistics(&Statistics {
                    blocks: many,
                    free: many,
                    available: many,
                    files: many,
                    files_free: many,
                    block_size: 4096,
                    name_max: 255,
                });
            }
            _ => reply.error(ENOSYS),
        }
    }
}
