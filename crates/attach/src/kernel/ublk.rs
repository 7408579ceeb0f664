//! The kernel's ublk driver: block devices whose requests a process takes from
//! an io_uring. Needs Linux 6.4, whose commands have the numbers used here.
//!
//! Invariants:
//! - a device that was added is deleted by [`Server::end`], or by the kernel's
//!   own watch over this process stopped at least;
//! - one thread takes all requests of the device, as the driver asks, and is
//!   there until the driver has given all of them back.

mod queue;
mod wire;

use super::{KernelSide, appears, open};
use crate::error::AttachError;
use crate::served::Requests;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use wire::{Control, DeviceInfo, Parameters, control};

const CONTROL: &str = "/dev/ublk-control";
const MODULE: &str = "ublk_drv";

/// A device of the driver, and the thread that takes its requests.
pub(super) struct Server {
    device: PathBuf,
    id: u32,
    ring: Ring,
    queue: Option<JoinHandle<io::Result<()>>>,
}

/// The driver's control file.
struct Ring {
    control: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Ring {
    fn new() -> Result<Ring, AttachError> {
        let control = open(Path::new(CONTROL), MODULE)?;
        let ring = IoUring::builder().build(4).map_err(AttachError::system("io_uring"))?;
        Ok(Ring { control, ring })
    }

    /// Executes one command, and waits for its completion. `buffer` is its data, in either
    /// direction.
    #[allow(unsafe_code)]
    fn command(&mut self, what: u32, device: u32, buffer: Option<&mut [u8]>, data: u64) -> io::Result<()> {
        let mut command = Control { device, data, ..Control::default() };
        if let Some(buffer) = buffer {
            command.len = u16::try_from(buffer.len()).map_err(io::Error::other)?;
            command.address = buffer.as_mut_ptr() as u64;
        }
        let fd = types::Fd(self.control.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, control(what)).cmd(command.bytes()).build();
        // SAFETY: the buffer outlives the command, which has ended when this
        // returns.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => drop(other?),
            }
            if let Some(done) = self.ring.completion().next() {
                let result = done.result();
                return if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) };
            }
        }
    }
}

impl Server {
    pub(super) fn start(requests: &Arc<dyn Requests>) -> Result<Server, AttachError> {
        let failed = |what: &'static str| move |e| AttachError::NoKernel(format!("ublk: {what}: {e}"));
        let mut ring = Ring::new()?;
        let mut info = DeviceInfo::wanted(std::process::id()).bytes();
        ring.command(wire::ADD, u32::MAX, Some(&mut info), 0).map_err(failed("adding a device"))?;
        let info = DeviceInfo::parse(&info);
        let device = PathBuf::from(format!("/dev/ublkb{}", info.id));
        // If a later step fails, dropping this removes the device.
        let mut server = Server { device, id: info.id, ring, queue: None };
        let mut parameters = Parameters::of(&requests.info()).bytes();
        server
            .ring
            .command(wire::SET_PARAMETERS, info.id, Some(&mut parameters), 0)
            .map_err(failed("its parameters"))?;
        let taker = PathBuf::from(format!("/dev/ublkc{}", info.id));
        let taker =
            appears("ublk's character device", || File::options().read(true).write(true).open(&taker).ok())?;
        let served = Arc::clone(requests);
        let queue = std::thread::Builder::new()
            .name("longhaul-ublk".into())
            .spawn(move || queue::serve(&taker, &served, info.depth, info.io_max));
        server.queue = Some(queue.map_err(AttachError::system("a thread"))?);
        // This completes when the thread has made as many fetch requests as the queue has tags.
        server
            .ring
            .command(wire::START, info.id, None, u64::from(std::process::id()))
            .map_err(failed("starting the device"))?;
        appears("ublk's block device", || server.device.exists().then_some(()))?;
        Ok(server)
    }
}

impl KernelSide for Server {
    fn device(&self) -> &Path {
        &self.device
    }

    fn resize(&mut self, size: u64) -> Result<(), AttachError> {
        self.ring.command(wire::UPDATE_SIZE, self.id, None, size >> wire::SECTOR_SHIFT).map_err(|e| {
            let why = format!(
                "keeps its former size: the driver does not change it ({e}), which it does since Linux 6.16; attach the \
                 device anew"
            );
            AttachError::path(&self.device, why)
        })
    }

    fn end(&mut self) -> Result<(), AttachError> {
        if self.id == u32::MAX {
            return Ok(());
        }
        let id = std::mem::replace(&mut self.id, u32::MAX);
        let stopped = self.ring.command(wire::STOP, id, None, 0);
        let result = match self.queue.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(e))) => Err(e),
            Some(Err(_)) => Err(io::Error::other("a thread panicked")),
        };
        let deleted = self.ring.command(wire::DELETE, id, None, 0);
        let what = format!("{}: ending it", self.device.display());
        stopped.and(result).and(deleted).map_err(AttachError::system(what))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("{e}");
        }
    }
}

/// Deletes the device `device` that a process that has ended left behind, if it was one of these;
/// the driver has stopped it.
pub(super) fn forget(device: &Path) -> Result<(), AttachError> {
    let name = device.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(id) = name.strip_prefix("ublkb").and_then(|id| id.parse().ok()) else { return Ok(()) };
    let mut ring = Ring::new()?;
    let mut info = DeviceInfo::wanted(0).bytes();
    // The number may belong to another device by now.
    let lives = |process: u32| Path::new("/proc").join(process.to_string()).exists();
    match ring.command(wire::GET_INFO, id, Some(&mut info), 0) {
        Ok(()) if !DeviceInfo::parse(&info).is_left(lives) => return Ok(()),
        // Other errors of this command recur when the device is deleted.
        _ => {}
    }
    match ring.command(wire::DELETE, id, None, 0) {
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        other => other.map_err(AttachError::system(format!("{}: ending it", device.display()))),
    }
}
