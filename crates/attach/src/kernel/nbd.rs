//! The kernel's NBD client on a connection that never leaves this process.
//!
//! The controls are the kernel's, of `linux/nbd.h`.

#![allow(unsafe_code)]

use super::{KernelSide, appears, open};
use crate::error::AttachError;
use crate::nbd::{flags_of, serve_connected};
use crate::served::Requests;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

const SET_SOCK: libc::Ioctl = 0xab00;
const SET_BLOCK_SIZE: libc::Ioctl = 0xab01;
const DO_IT: libc::Ioctl = 0xab03;
const CLEAR_SOCK: libc::Ioctl = 0xab04;
const SET_SIZE_BLOCKS: libc::Ioctl = 0xab07;
const DISCONNECT: libc::Ioctl = 0xab08;
const SET_FLAGS: libc::Ioctl = 0xab0a;

const MODULE: &str = "nbd";
/// Devices that are looked through for a free one.
const DEVICES: u32 = 4096;

/// One of the kernel's NBD devices, and its server.
pub(super) struct Client {
    device: PathBuf,
    control: File,
    block_size: u32,
    /// Waits in the kernel for the end of the device.
    waits: Option<JoinHandle<io::Result<()>>>,
}

/// Parameters that the kernel needs of the device.
#[derive(Clone, Copy, Debug)]
struct NbdGeometry {
    block_size: u32,
    blocks: u64,
    flags: u16,
}

impl Client {
    pub(super) fn start(requests: &Arc<dyn Requests>) -> Result<Client, AttachError> {
        let info = requests.info();
        let blocks = info.size / u64::from(info.block_size);
        let shape = NbdGeometry { block_size: info.block_size, blocks, flags: flags_of(&info) };
        // Opened first, so that the error on a machine without NBD says so.
        open(Path::new("/dev/nbd0"), MODULE)?;
        for number in 0..DEVICES {
            let device = PathBuf::from(format!("/dev/nbd{number}"));
            let sys = PathBuf::from(format!("/sys/block/nbd{number}/pid"));
            if !device.exists() {
                break;
            }
            if sys.exists() {
                continue;
            }
            let control = open(&device, MODULE)?;
            let (ours, theirs) = UnixStream::pair().map_err(AttachError::system("a pair of sockets"))?;
            let (tell, told) = channel();
            let own = control.try_clone().map_err(AttachError::system("a descriptor"))?;
            let waits = std::thread::Builder::new()
                .name("longhaul-nbd-dev".into())
                .spawn(move || wait(&own, theirs, shape, &tell))
                .map_err(AttachError::system("a thread"))?;
            // Dropped without a disconnect if the device could not be had.
            if told.recv().is_err() {
                match waits.join() {
                    Ok(Err(e)) if e.raw_os_error() == Some(libc::EBUSY) => continue,
                    Ok(Err(e)) => return Err(AttachError::NoKernel(format!("{}: {e}", device.display()))),
                    _ => continue,
                }
            }
            // If a later step fails, dropping this removes the kernel's device too.
            let client = Client { device, control, block_size: shape.block_size, waits: Some(waits) };
            serve_connected(File::from(OwnedFd::from(ours)), Arc::clone(requests))
                .map_err(AttachError::system("a thread"))?;
            let size = PathBuf::from(format!("/sys/block/nbd{number}/size"));
            let has_size = || fs::read_to_string(&size).is_ok_and(|sectors| sectors.trim() != "0");
            let begun = || client.has_ended() || sys.exists() && has_size();
            appears("the NBD device", || begun().then_some(()))?;
            if !client.has_ended() {
                return Ok(client);
            }
        }
        Err(AttachError::NoKernel(
            "all NBD devices are in use: load the module with more (nbds_max=64)".into(),
        ))
    }

    fn has_ended(&self) -> bool {
        self.waits.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

fn call(device: &File, what: libc::Ioctl, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: these calls take a number, and no memory of this process.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), what, value) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives the kernel its side of the connection, and waits in the kernel until the device ends. One
/// thread does both, as the kernel requires.
fn wait(device: &File, socket: UnixStream, shape: NbdGeometry, tell: &Sender<()>) -> io::Result<()> {
    let number = libc::c_ulong::try_from(socket.as_raw_fd()).map_err(io::Error::other)?;
    call(device, SET_SOCK, number)?;
    let begin = || {
        call(device, SET_BLOCK_SIZE, shape.block_size.into())?;
        call(device, SET_SIZE_BLOCKS, shape.blocks)?;
        call(device, SET_FLAGS, shape.flags.into())
    };
    let result = begin().and_then(|()| {
        // The device is set up: the thread that waits for it may continue.
        let _ = tell.send(());
        call(device, DO_IT, 0)
    });
    let _ = call(device, CLEAR_SOCK, 0);
    result
}

impl KernelSide for Client {
    fn device(&self) -> &Path {
        &self.device
    }

    fn resize(&mut self, size: u64) -> Result<(), AttachError> {
        let changed = libc::c_ulong::try_from(size / u64::from(self.block_size))
            .map_err(io::Error::other)
            .and_then(|blocks| call(&self.control, SET_SIZE_BLOCKS, blocks));
        changed.map_err(AttachError::system(format!("{}: changing its size", self.device.display())))
    }

    fn end(&mut self) -> Result<(), AttachError> {
        let Some(waits) = self.waits.take() else { return Ok(()) };
        let what = || format!("{}: disconnecting", self.device.display());
        call(&self.control, DISCONNECT, 0).map_err(AttachError::system(what()))?;
        match waits.join() {
            Ok(Ok(())) => Ok(()),
            // The connection was ended on purpose.
            Ok(Err(e))
                if matches!(e.raw_os_error(), Some(libc::EPIPE | libc::ESHUTDOWN | libc::ECONNRESET)) =>
            {
                Ok(())
            }
            Ok(Err(e)) => Err(AttachError::system(what())(e)),
            Err(_) => Err(AttachError::system(what())(io::Error::other("a thread panicked"))),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("{e}");
        }
    }
}
