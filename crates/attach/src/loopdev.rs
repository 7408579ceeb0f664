//! Loop devices: a file as a block device of the kernel. Needs root.
//!
//! The structures are the kernel's, of `linux/loop.h`.

#![allow(unsafe_code)]

use crate::error::AttachError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

const CONTROL: &str = "/dev/loop-control";
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4C07;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;

/// `prctl` option, from `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;

/// The scheduler that serves the oldest I/O first, and the number of I/Os that it queues.
const FAIR: &str = "mq-deadline";
const WAITING: &str = "1024";

/// Attempts to take a loop device: other programs take free ones at the same time.
const TRIES: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Info64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info64,
    reserved: [u64; 8],
}

const EMPTY: Info64 = Info64 {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// A loop device; the kernel releases it when it is neither open nor mounted any more.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Makes a block device of `file` with blocks of `block_size` bytes; `name` is shown to people.
    /// Its I/O bypasses the page cache of the file.
    ///
    /// # Errors
    /// No loop device is free or accessible.
    pub fn new(
        file: BorrowedFd<'_>,
        name: &Path,
        block_size: u32,
        read_only: bool,
    ) -> Result<LoopDevice, AttachError> {
        let none = |e: io::Error| {
            let hint = match e.kind() {
                io::ErrorKind::PermissionDenied => "; only root may use them",
                io::ErrorKind::NotFound => "; load the kernel module: modprobe loop",
                _ => "",
            };
            AttachError::NoLoop(format!("{e}{hint}"))
        };
        let control = OpenOptions::new().read(true).write(true).open(CONTROL).map_err(none)?;
        let config = config(file, name, block_size, read_only);
        for _ in 0..TRIES {
            // SAFETY: the call takes no memory.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(none(io::Error::last_os_error()));
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let open = OpenOptions::new().read(true).write(!read_only).open(&path).map_err(none)?;
            // SAFETY: the structure has the kernel's layout and outlives the
            // call; the descriptor in it is open.
            if unsafe { libc::ioctl(open.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
                return Ok(LoopDevice { path, _open: open });
            }
            let e = io::Error::last_os_error();
            if e.raw_os_error() != Some(libc::EBUSY) {
                return Err(AttachError::NoLoop(format!("{}: {e}", path.display())));
            }
        }
        Err(AttachError::NoLoop("others take each one that is free".into()))
    }

    /// Its path, such as `/dev/loop0`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Selects a fair scheduler. Without one, which is the kernel's default for loop devices, 128
    /// I/Os are under way, and a writer that has just been served takes the slot that it freed
    /// before the others wake up: some of a thousand writers wait for many seconds. `None` if the
    /// kernel has no other scheduler, or `/sys` is not writable.
    pub fn share(&self) -> Option<Shared> {
        let block = Path::new("/sys/block").join(self.path.file_name()?);
        let read = |name: &str| fs::read_to_string(block.join("queue").join(name)).ok();
        let schedulers = read("scheduler")?;
        let before = Shared { scheduler: active(&schedulers)?, waiting: read("nr_requests")?, block };
        before.set(FAIR, WAITING).ok()?;
        Some(before)
    }
}

/// Has the loop device at `path` take the size that its file has by now, which is to be `size` bytes but for
/// a part of a block.
///
/// # Errors
/// The loop device has another size: the kernel may have to ask for the attributes of the file first.
pub(crate) fn resize(path: &Path, size: u64) -> Result<(), AttachError> {
    let failed = |what: &'static str| move |e: io::Error| AttachError::path(path, format!("{what}: {e}"));
    let device = File::open(path).map_err(failed("cannot be opened to change its size"))?;
    let call = |what: libc::Ioctl, memory: *mut libc::c_void| {
        // SAFETY: the memory, if any, is of the size that the call writes, and outlives it.
        let result = unsafe { libc::ioctl(device.as_raw_fd(), what, memory) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // The kernel takes the size that it has in mind of the file. Of a file of FUSE that is the one of its last
    // question for the attributes, and this question makes it ask.
    let mut info = EMPTY;
    call(LOOP_GET_STATUS64, (&raw mut info).cast()).map_err(failed("cannot ask for its status"))?;
    call(LOOP_SET_CAPACITY, std::ptr::null_mut()).map_err(failed("cannot change its size"))?;
    let now = (&device).seek(SeekFrom::End(0)).map_err(failed("cannot ask for its size"))?;
    let sectors = |bytes: u64| bytes >> 9;
    if sectors(now) == sectors(size) {
        return Ok(());
    }
    Err(AttachError::path(path, format!("has {now} bytes, and is to have {size}")))
}

/// The scheduler of a loop device before [`LoopDevice::share`]: dropping this restores it, once the
/// loop device is free.
#[derive(Debug)]
pub struct Shared {
    block: PathBuf,
    scheduler: String,
    waiting: String,
}

impl Shared {
    fn set(&self, scheduler: &str, waiting: &str) -> io::Result<()> {
        let queue = self.block.join("queue");
        fs::write(queue.join("scheduler"), scheduler)?;
        fs::write(queue.join("nr_requests"), waiting)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.block.join("loop").exists() {
            // Best effort: the next user of the loop device sets its own.
            let _ = self.set(&self.scheduler, &self.waiting);
        }
    }
}

/// The scheduler in brackets.
fn active(schedulers: &str) -> Option<String> {
    let (_, rest) = schedulers.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// Keeps this thread, and those that it starts, from waiting in an allocation for a device that the
/// thread itself serves. Has no effect without `CAP_SYS_RESOURCE`.
pub fn keep_out_of_reclaim() {
    // SAFETY: the call takes no memory.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

fn config(file: BorrowedFd<'_>, name: &Path, block_size: u32, read_only: bool) -> Config {
    let mut file_name = [0; 64];
    let text = name.as_os_str().as_encoded_bytes();
    // The terminating zero byte.
    let len = text.len().min(file_name.len() - 1);
    file_name[..len].copy_from_slice(&text[..len]);
    let flags = AUTOCLEAR | DIRECT_IO | if read_only { READ_ONLY } else { 0 };
    let info = Info64 { flags, file_name, ..EMPTY };
    Config { fd: file.as_raw_fd() as u32, block_size, info, reserved: [0; 8] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_scheduler_is_the_one_in_brackets() {
        assert_eq!(active("none [mq-deadline] kyber bfq \n").as_deref(), Some("mq-deadline"));
        assert_eq!(active("none\n"), None);
    }

    #[test]
    fn the_structures_are_the_kernels() {
        assert_eq!(size_of::<Info64>(), 232);
        assert_eq!(size_of::<Config>(), 304);
        assert_eq!(std::mem::offset_of!(Info64, flags), 52);
        assert_eq!(std::mem::offset_of!(Info64, file_name), 56);
    }
}
