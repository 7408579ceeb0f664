//! Opening: sizes, locks, and the alignment for direct I/O.

use super::{FileDevice, FileInner, Syncs};
use crate::DeviceInfo;
use longhaul_engine::{BUF_MAX, LockedFile, fs};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

// Requests of linux/fs.h; the numbers are the same on every architecture that
// encodes `_IO` the common way.
const BLKSSZGET: libc::Ioctl = 0x1268;
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272u32 as libc::Ioctl;
pub(super) const BLKDISCARD: libc::Ioctl = 0x1277;

/// The alignment to use where the system does not report the requirements of direct I/O: enough for
/// any device with blocks of 512 or 4096 bytes.
const SAFE_ALIGN: usize = 4096;

/// How a file is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Create the file with this many bytes, or grow it to them.
    pub size: Option<u64>,
    /// Opens the file for reading only; every write fails.
    pub read_only: bool,
    /// Use the page cache even where direct I/O is possible.
    pub buffered: bool,
    /// Logical block size in bytes, or what suits the file.
    pub block_size: Option<u32>,
}

/// Why a back end was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such file and no size to create one with.
    #[error("{0} does not exist: give size= to create it")]
    NotFound(PathBuf),
    /// There is no such block device.
    #[error("{0} does not exist: give the path of a block device")]
    NoPath(PathBuf),
    /// There is no directory to create the file in.
    #[error("{0} cannot be created: its directory does not exist; make that first")]
    NoDirectory(PathBuf),
    /// The kind of file is another one.
    #[error("{path} is not {expected}")]
    Kind {
        /// Path of the file or device.
        path: PathBuf,
        /// The valid values, and what to use instead.
        expected: &'static str,
    },
    /// Another program has it locked or mounted.
    #[error(
        "{0} is in use by another program (served already, or mounted): stop that first, or add ro to both"
    )]
    InUse(PathBuf),
    /// It would have to be made shorter.
    #[error(
        "{path} has {size} bytes already and is not made shorter: leave size={asked} out, or remove the file"
    )]
    Shrink {
        /// Path of the file or device.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The size asked for in bytes.
        asked: u64,
    },
    /// Not a whole number of blocks, or none.
    #[error("{path}: {size} bytes are not a whole number of blocks of {block_size} bytes")]
    Size {
        /// Path of the file or device.
        path: PathBuf,
        /// The size in bytes.
        size: u64,
        /// The block size in bytes.
        block_size: u32,
    },
    /// A read-only file cannot be created or grown.
    #[error("{0}: ro and a larger size= do not go together")]
    GrowReadOnly(PathBuf),
    /// What the system says.
    #[error("{path}: cannot {what}: {source}")]
    System {
        /// Path of the file or device.
        path: PathBuf,
        /// The failed operation, as a verb with its object.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The device itself refused.
    #[error(transparent)]
    Device(#[from] crate::IoError),
}

/// What direct I/O asks for, in bytes.
#[derive(Clone, Copy)]
struct Align {
    memory: usize,
    offset: u32,
}

pub(super) fn open(path: &Path, options: &FileOptions, block: bool) -> Result<FileDevice, OpenError> {
    let system = |what, source| OpenError::System { path: path.into(), what, source };
    let file = LockedFile::from(open_plain(path, options, block)?);
    check_kind(path, &file, block)?;
    lock(path, &file, options.read_only)?;
    let size = grow(path, &file, options, block)?;
    let sector = if block { sector_size(&file).map_err(|e| system("read the block size", e))? } else { 512 };
    let block_size = choose_block(path, size, sector, options.block_size)?;
    let direct =
        if options.buffered { None } else { open_direct(path, &file, options.read_only, block_size) };
    let align = direct.as_ref().map(|(_, align)| *align);
    let io = match direct {
        Some((direct, _)) => direct,
        None => file.try_clone().map_err(|e| system("open it twice", e))?,
    };
    if align.is_none() && !options.buffered {
        tracing::warn!(path = %path.display(), "the file system has no direct I/O: the file is served through the page cache");
    }
    let usable = size / u64::from(block_size) * u64::from(block_size);
    if usable < size {
        tracing::warn!(path = %path.display(), "the last {} bytes are no whole block: not served", size - usable);
    }
    let info = DeviceInfo {
        name: path.display().to_string(),
        size: usable,
        block_size,
        max_io: BUF_MAX as u32,
        optimal_io: 0,
        read_only: options.read_only,
        volatile_cache: true,
        discard: !options.read_only && discards(&file, size, block),
        uuid: None,
    };
    let size = AtomicU64::new(usable);
    let memory_align = align.map_or(1, |align| align.memory);
    let io = fs::File::from(io);
    Ok(FileDevice {
        inner: Arc::new(FileInner {
            info,
            size,
            file,
            io,
            is_block: block,
            memory_align,
            syncs: Syncs::default(),
        }),
    })
}

fn open_plain(path: &Path, options: &FileOptions, block: bool) -> Result<File, OpenError> {
    let mut how = OpenOptions::new();
    how.read(true).write(!options.read_only);
    if options.size.is_some() && !options.read_only && !block {
        how.create(true);
    }
    if block && !options.read_only {
        // On a block device: refused while it is mounted.
        how.custom_flags(libc::O_EXCL);
    }
    how.open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound if block => OpenError::NoPath(path.into()),
        io::ErrorKind::NotFound if options.size.is_some() => OpenError::NoDirectory(path.into()),
        io::ErrorKind::NotFound => OpenError::NotFound(path.into()),
        io::ErrorKind::ResourceBusy => OpenError::InUse(path.into()),
        io::ErrorKind::IsADirectory => OpenError::Kind { path: path.into(), expected: kind_name(block) },
        _ => OpenError::System { path: path.into(), what: "open it", source },
    })
}

fn check_kind(path: &Path, file: &File, block: bool) -> Result<(), OpenError> {
    let what = "ask what it is";
    let kind =
        file.metadata().map_err(|source| OpenError::System { path: path.into(), what, source })?.file_type();
    let right = if block { kind.is_block_device() } else { kind.is_file() };
    if right { Ok(()) } else { Err(OpenError::Kind { path: path.into(), expected: kind_name(block) }) }
}

fn kind_name(block: bool) -> &'static str {
    if block {
        "a block device (for a regular file use file:PATH)"
    } else {
        "a regular file (for a block device use block:PATH)"
    }
}

fn lock(path: &Path, file: &File, shared: bool) -> Result<(), OpenError> {
    let result = if shared { file.try_lock_shared() } else { file.try_lock() };
    match result {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(path.into())),
        Err(TryLockError::Error(e)) => {
            // Some network file systems have no locks; the service is worth
            // more than the protection.
            tracing::warn!(path = %path.display(), "cannot be locked against other servers: {e}");
            Ok(())
        }
    }
}

/// Makes the file as long as asked for; its size then.
fn grow(path: &Path, file: &File, options: &FileOptions, block: bool) -> Result<u64, OpenError> {
    let system = |what, source| OpenError::System { path: path.into(), what, source };
    let size = size_of(file, block).map_err(|e| system("read its size", e))?;
    match options.size {
        Some(asked) if asked < size => Err(OpenError::Shrink { path: path.into(), size, asked }),
        Some(asked) if asked > size && options.read_only => Err(OpenError::GrowReadOnly(path.into())),
        Some(asked) if asked > size => {
            let block_size = options.block_size.unwrap_or(512);
            if !asked.is_multiple_of(u64::from(block_size)) {
                return Err(OpenError::Size { path: path.into(), size: asked, block_size });
            }
            file.set_len(asked).map_err(|e| system("make it as long as size= says", e))?;
            Ok(asked)
        }
        _ => Ok(size),
    }
}

/// The logical block size: the requested one, otherwise 4096 where it fits.
fn choose_block(path: &Path, size: u64, sector: u32, asked: Option<u32>) -> Result<u32, OpenError> {
    let natural = if size.is_multiple_of(4096) { 4096 } else { 512 };
    let block_size = asked.unwrap_or(if sector > 512 { sector } else { natural });
    if size < u64::from(block_size) || block_size < sector {
        return Err(OpenError::Size { path: path.into(), size, block_size: block_size.max(sector) });
    }
    Ok(block_size)
}

/// Opens `file` (which is at `path`, or was) a second time for direct I/O, if
/// it can be done in blocks of `block_size`.
fn open_direct(path: &Path, file: &File, read_only: bool, block_size: u32) -> Option<(File, Align)> {
    // By its descriptor: another file may have been put at the path since, and
    // that one is not locked here. Without /proc by the path, and then looked at.
    let itself = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let open = |path: &Path| {
        let mut how = OpenOptions::new();
        how.read(true).write(!read_only).custom_flags(libc::O_DIRECT).open(path).ok()
    };
    let direct = open(&itself).or_else(|| open(path))?;
    if !is_same(file, &direct) {
        tracing::warn!(path = %path.display(), "the file was replaced while it was opened: it is served through the page cache");
        return None;
    }
    let align =
        direct_align(&direct).unwrap_or(Some(Align { memory: SAFE_ALIGN, offset: SAFE_ALIGN as u32 }))?;
    let fits = align.offset <= block_size && align.memory <= longhaul_engine::BUF_ALIGN;
    fits.then_some((direct, Align { memory: align.memory.max(2), ..align }))
}

/// Whether two descriptors are of one file, or of one block device.
fn is_same(a: &File, b: &File) -> bool {
    let identity = |file: &File| {
        let meta = file.metadata().ok()?;
        Some(if meta.file_type().is_block_device() { (0, meta.rdev()) } else { (meta.dev(), meta.ino()) })
    };
    identity(a).is_some_and(|a| Some(a) == identity(b))
}

/// The alignment that `statx` reports for direct I/O: `None` if it reports none
/// (before Linux 6.1, or this file system), `Some(None)` if the file system has
/// no direct I/O.
fn direct_align(file: &File) -> Option<Option<Align>> {
    // SAFETY: plain numbers, for which zero is a valid value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let (fd, how) = (file.as_raw_fd(), libc::AT_EMPTY_PATH);
    // SAFETY: a C string, and a structure of the type that the call fills.
    let rc = unsafe { libc::statx(fd, c"".as_ptr(), how, libc::STATX_DIOALIGN, &mut stat) };
    if rc != 0 || stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    let (memory, offset) = (stat.stx_dio_mem_align as usize, stat.stx_dio_offset_align);
    Some((memory > 0 && offset > 0).then_some(Align { memory, offset }))
}

pub(crate) fn size_of(file: &File, block: bool) -> io::Result<u64> {
    if !block {
        return Ok(file.metadata()?.len());
    }
    let mut size = 0u64;
    // SAFETY: the request writes one 64-bit number.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &mut size) };
    if rc == 0 { Ok(size) } else { Err(io::Error::last_os_error()) }
}

fn sector_size(file: &File) -> io::Result<u32> {
    let mut size: libc::c_int = 0;
    // SAFETY: the request writes one C integer.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET, &mut size) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(size).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Whether holes can be punched: tried past the end, where nothing is lost.
fn discards(file: &File, size: u64, block: bool) -> bool {
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let Ok(end) = libc::off_t::try_from(size.next_multiple_of(4096)) else { return false };
    // SAFETY: plain system call on an open file.
    block || unsafe { libc::fallocate(file.as_raw_fd(), how, end, 4096) } == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_locked_file_is_the_one_that_is_written_to() {
        let dir = tempfile::tempdir().expect("directory");
        let (path, other) = (dir.path().join("disk"), dir.path().join("other"));
        for (path, byte) in [(&path, 1u8), (&other, 2)] {
            std::fs::write(path, vec![byte; 8192]).expect("written");
        }
        let file = File::options().read(true).write(true).open(&path).expect("opened");
        lock(&path, &file, false).expect("locked");
        if open_direct(&path, &file, false, 4096).is_none() {
            return longhaul_skip::skip!("needs a file system with direct I/O (TMPDIR)");
        }
        // Another one is put there between the lock and the second opening.
        std::fs::rename(&other, &path).expect("replaced");
        let (direct, _) = open_direct(&path, &file, false, 4096).expect("direct I/O as before");
        assert!(is_same(&file, &direct));
        assert!(!is_same(&file, &File::open(&path).expect("opened")));
        let (mut block, aligned) = (vec![0u8; 8192], |at: *const u8| at.align_offset(4096));
        let at = aligned(block.as_ptr());
        direct.read_exact_at(&mut block[at..at + 4096], 0).expect("read");
        assert!(block[at..at + 4096].iter().all(|byte| *byte == 1));
    }
}
