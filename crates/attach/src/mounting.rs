//! Mounting the file system on a device.
//!
//! Once mounted, only the file system holds the loop device, and only the loop device holds the
//! file: an unmount by any tool ends the attachment.

use crate::detach::hidden_path;
use crate::error::failed;
use crate::filesystem::FileSystemKind;
use crate::front_end::{FileOnLoop, FrontEnd};
use crate::fuse::{self, FuseFile, FuseOptions, unmount_served};
use crate::kernel::{KernelDevice, KernelDriver};
use crate::loopdev::{LoopDevice, Shared};
use crate::open::OpenDevice;
use crate::via::FrontEndError;
use longhaul_block::{DeviceInfo, IoResult};
use longhaul_device::{Error, ErrorKind, Result};
use std::cell::RefCell;
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file system about to be mounted.
pub struct Mounting<'a> {
    /// Flushes the device; fails if a write since the mount began was lost.
    pub durable: &'a dyn Fn() -> IoResult<()>,
    /// The devices, for messages.
    pub name: String,
    /// The device.
    pub info: &'a DeviceInfo,
    /// The kind of the file system.
    pub kind: FileSystemKind,
    /// The mount options; `mount` adds the one that skips the journal.
    pub options: RefCell<String>,
    /// Restores the scheduling of the loop device when dropped.
    pub shared: RefCell<Option<Shared>>,
    /// Where it is mounted.
    pub dir: &'a Path,
}

/// The front end below a mounted file system, and its block device.
pub type MountedFrontEnd = (Box<dyn FrontEnd>, PathBuf);

impl Mounting<'_> {
    /// Mounts a loop device on a FUSE file, which is hidden once the loop device has it open.
    ///
    /// # Errors
    /// The front end is not available, or the file system cannot be mounted or used.
    pub fn through_file(
        &self,
        opened: &OpenDevice,
        ended: impl FnOnce() + Send + 'static,
    ) -> std::result::Result<MountedFrontEnd, FrontEndError> {
        let hidden = hidden_path(self.dir);
        // A process killed during these steps leaves the hidden file.
        fuse::clear(&hidden, true)?;
        let fuse = FuseOptions { name: self.name.clone(), allow_other: false };
        let mut file = FuseFile::new(opened.requests.clone(), &hidden, &fuse, ended)?;
        let read_only = self.info.read_only;
        let open = OpenOptions::new().read(true).write(!read_only).open(file.path());
        let open = open.map_err(|e| failed(format!("{}: {e}", file.path().display())))?;
        let device = LoopDevice::new(open.as_fd(), Path::new(&self.name), self.info.block_size, read_only)?;
        drop(open);
        let shared = device.share();
        self.mount(device.path())?;
        *self.shared.borrow_mut() = shared;
        let path = device.path().to_owned();
        drop(device);
        // Only the loop device has the file open now.
        file.hide()?;
        Ok((Box::new(FileOnLoop { file, device: path.clone() }), path))
    }

    /// Mounts a block device of the kernel.
    ///
    /// # Errors
    /// As for [`Self::through_file`].
    pub fn through_kernel(
        &self,
        opened: &OpenDevice,
        driver: KernelDriver,
    ) -> std::result::Result<MountedFrontEnd, FrontEndError> {
        let device = KernelDevice::new(opened.requests.clone(), &hidden_path(self.dir), driver)?;
        let path = device.device().map(Path::to_owned).unwrap_or_default();
        self.mount(&path)?;
        Ok((Box::new(device), path))
    }

    /// Mounts `device`. A read-only device whose journal needs a replay cannot be mounted normally:
    /// it is mounted without the journal, with a warning.
    fn mount(&self, device: &Path) -> Result<()> {
        let plain = self.options.borrow().clone();
        let failed = match self.mount_with(device, &plain) {
            Err(failed) if self.info.read_only => failed,
            Err(failed) => return Err(self.with_cause(failed)),
            Ok(()) => return self.check(),
        };
        let without = format!("{plain},{}", no_replay_option(self.kind));
        // The error of the first attempt names the cause.
        self.mount_with(device, &without).map_err(|_| failed)?;
        tracing::warn!(
            "{}: its journal has changes that were not applied yet, and the device is read-only: it shows \
             the file system without them, which may be inconsistent; mount it once without --read-only \
             to apply them",
            self.dir.display()
        );
        *self.options.borrow_mut() = without;
        Ok(())
    }

    /// Adds the error of the device, if there is one, to that of a failed mount: the kernel reports
    /// only that its writes failed.
    fn with_cause(&self, failed: Error) -> Error {
        match (self.durable)() {
            Ok(()) => failed,
            Err(e) => Error::new(failed.kind(), format!("{failed}: {e}")),
        }
    }

    /// Checks a mount by making all its writes durable, and unmounts it if that fails. Journal
    /// replay writes are acknowledged by write-behind, so a mount can succeed although they are
    /// lost, and the kernel does not repeat them.
    fn check(&self) -> Result<()> {
        // `sync` in a child process: this process serves the device, and would deadlock if it
        // waited for the file system.
        let mut sync = Command::new("sync");
        let ran = sync.env("LC_ALL", "C").arg("-f").arg(self.dir).stdin(Stdio::null()).output();
        // An error of the device is the cause of any error of `sync`.
        let (kind, why) = match ((self.durable)(), ran) {
            (Err(e), _) => (Error::from(e.clone()).kind(), format!("its last writes are lost: {e}")),
            (Ok(()), Ok(ran)) if !ran.status.success() => {
                (ErrorKind::Failed, String::from_utf8_lossy(&ran.stderr).trim().to_owned())
            }
            (Ok(()), Err(e)) => {
                tracing::debug!("sync -f: {e}");
                return Ok(());
            }
            (Ok(()), Ok(_)) => return Ok(()),
        };
        let unmounted = unmount_served(self.dir, false).or_else(|_| unmount_served(self.dir, true));
        let left = unmounted.err().map(|e| format!(" (and cannot be unmounted: {e})")).unwrap_or_default();
        Err(Error::new(
            kind,
            format!(
                "{}: the {} file system of {} was mounted, and cannot be used: {why}. It is unmounted \
                 again{left}; mount it again once the device works: the journal is replayed then",
                self.dir.display(),
                self.kind,
                self.name
            ),
        ))
    }

    fn mount_with(&self, device: &Path, options: &str) -> Result<()> {
        let mut command = Command::new("mount");
        command.args(["-t", self.kind.name(), "-o", options]).arg(device).arg(self.dir);
        let ran = command.stdin(Stdio::null()).output();
        let ran = ran.map_err(|e| failed(format!("cannot run mount: {e}")))?;
        if ran.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&ran.stderr);
        Err(failed(why.trim()))
    }
}

/// The mount option that skips the replay of the journal.
pub fn no_replay_option(kind: FileSystemKind) -> &'static str {
    match kind {
        FileSystemKind::Xfs => "norecovery",
        FileSystemKind::Ext4 => "noload",
    }
}
