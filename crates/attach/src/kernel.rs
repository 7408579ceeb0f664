//! Block devices of the kernel whose I/O this process does. They need root.
//!
//! Invariants:
//! - the device appears as a symbolic link to the kernel's device; the link is removed first;
//! - the kernel's device is removed only when it is not in use, or with this process.

mod nbd;
mod nvme;
mod ublk;

use crate::error::AttachError;
use crate::fuse::{kind, place};
use crate::served::{Request, Requests};
use crate::users;
use longhaul_cache::ErrorCursor;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time that the kernel may take to make a device appear: it first scans the device for
/// partitions, over the path.
const APPEARS: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
/// The time for which a program may open a device that was just closed, as udev does to probe it,
/// without counting as its user.
const GLANCE: Duration = Duration::from_secs(1);
/// The same for udev, whose successive reads take a round trip each.
const UDEV: Duration = Duration::from_secs(10);

/// How the kernel reaches this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelDriver {
    /// Its NVMe/TCP host, over loopback.
    Nvme,
    /// Its NBD client, over a pair of sockets.
    Nbd,
    /// Its ublk driver, over an io_uring.
    Ublk,
}

/// A device of the kernel, as long as it exists.
trait KernelSide: Send {
    /// Such as `/dev/nvme0n1`.
    fn device(&self) -> &Path;

    /// Has it take a new size, in bytes.
    fn resize(&mut self, size: u64) -> Result<(), AttachError>;

    /// Removes it from the kernel.
    fn end(&mut self) -> Result<(), AttachError>;
}

/// A device of the kernel; dropping it removes it, even if it is in use.
pub struct KernelDevice {
    path: PathBuf,
    linked: bool,
    /// `None` once it has ended.
    served: Option<Box<dyn KernelSide>>,
    requests: Arc<dyn Requests>,
    /// Gets the error of every loss since the beginning.
    cursor: Arc<ErrorCursor>,
}

impl KernelDevice {
    /// Makes a block device of the kernel, and a link to it at `path`, which must be free.
    ///
    /// # Errors
    /// The path is taken; the kernel does not support this way, or not for this user.
    pub fn new(
        requests: Arc<dyn Requests>,
        path: &Path,
        way: KernelDriver,
    ) -> Result<KernelDevice, AttachError> {
        let path = place(path)?;
        check(&path)?;
        let cursor = requests.handle();
        let served: Box<dyn KernelSide> = match way {
            KernelDriver::Nvme => Box::new(nvme::Host::start(&requests)?),
            KernelDriver::Nbd => Box::new(nbd::Client::start(&requests)?),
            KernelDriver::Ublk => Box::new(ublk::Server::start(&requests)?),
        };
        let device = served.device().to_owned();
        let mut made = KernelDevice { path, linked: false, served: Some(served), requests, cursor };
        symlink(device, &made.path).map_err(|e| AttachError::path(&made.path, e))?;
        made.linked = true;
        Ok(made)
    }

    /// The path of the link.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kernel's device, such as `/dev/nbd0`.
    pub fn device(&self) -> Option<&Path> {
        self.served.as_ref().map(|served| served.device())
    }

    /// Detaches it, with all writes durable.
    ///
    /// # Errors
    /// The device is in use, and stays attached; or a write could not be made durable, and the
    /// device was detached.
    pub fn detach(&mut self) -> Result<(), AttachError> {
        let written = match &self.served {
            Some(served) => self.released(served.device())?,
            None => Ok(()),
        };
        self.hide();
        self.end()?;
        written.map_err(AttachError::system(format!("{}: flushing the last writes", self.path.display())))?;
        self.flush()
    }

    /// Makes the kernel's completed writes durable.
    ///
    /// # Errors
    /// A write could not be made durable, or was lost earlier and no flush has reported it.
    pub fn flush(&self) -> Result<(), AttachError> {
        self.requests.wait(Request::Flush(Arc::clone(&self.cursor)))?;
        Ok(())
    }

    /// Has the kernel take the new size of the device, in bytes.
    ///
    /// # Errors
    /// It does not; the former size stays.
    pub fn resize(&mut self, size: u64) -> Result<(), AttachError> {
        self.served.as_mut().map_or(Ok(()), |served| served.resize(size))
    }

    /// Whether the kernel has removed it.
    pub fn has_ended(&self) -> bool {
        self.served.is_none()
    }

    /// Removes the link; programs that have the device open keep it.
    pub fn hide(&mut self) {
        if std::mem::take(&mut self.linked) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Waits a short time for the device to be unused.
    fn released(&self, device: &Path) -> Result<io::Result<()>, AttachError> {
        let begun = Instant::now();
        let patience = |by: &[String]| {
            let is_udev = !by.is_empty() && by.iter().all(|who| who.contains("udev"));
            if is_udev { UDEV } else { GLANCE }
        };
        loop {
            match self.release(device) {
                Err(AttachError::Busy { by, .. }) if begun.elapsed() < patience(&by) => {
                    std::thread::sleep(LOOK);
                }
                other => return other,
            }
        }
    }

    /// Makes sure that the device is not in use, and returns the result of
    /// writing back its page cache.
    fn release(&self, device: &Path) -> Result<io::Result<()>, AttachError> {
        let by = users::of(device);
        let busy = || AttachError::Busy { path: self.path.clone(), by: by.clone() };
        if !by.is_empty() {
            return Err(busy());
        }
        // Exclusively, as a file system or another driver opens it.
        let alone = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device);
        match alone {
            Ok(alone) => Ok(alone.sync_all()),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Err(busy()),
            Err(e) => Ok(Err(e)),
        }
    }

    fn end(&mut self) -> Result<(), AttachError> {
        self.served.take().map_or(Ok(()), |mut served| served.end())
    }
}

impl std::fmt::Debug for KernelDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KernelDevice({})", self.path.display())
    }
}

impl Drop for KernelDevice {
    fn drop(&mut self) {
        self.hide();
        if let Err(e) = self.end() {
            tracing::warn!("{}: {e}", self.path.display());
        }
    }
}

/// Whether `path` is free.
fn check(path: &Path) -> Result<(), AttachError> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(AttachError::path(path, e)),
        Ok(meta) => Err(AttachError::path(path, format!("it is {}: name a path that is free", kind(&meta)))),
    }
}

/// Removes the rest of a device at `path` whose process has ended. Returns whether anything was
/// removed.
///
/// # Errors
/// The kernel does not remove it.
pub fn clear(path: &Path) -> Result<bool, AttachError> {
    let Ok(device) = std::fs::read_link(path) else { return Ok(false) };
    // An NBD device ends with the process that served it.
    nvme::forget(&device)?;
    ublk::forget(&device)?;
    std::fs::remove_file(path).map_err(|e| AttachError::path(path, e))?;
    Ok(true)
}

/// Opens a control file of the kernel, which the kernel module `module` provides.
fn open(path: &Path, module: &str) -> Result<File, AttachError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|e| {
        let hint = match e.kind() {
            io::ErrorKind::PermissionDenied => "; only root may use it".to_owned(),
            _ => format!("; load the kernel module: modprobe {module}, if this kernel has it"),
        };
        AttachError::NoKernel(format!("{}: {e}{hint}", path.display()))
    })
}

/// Waits until the kernel has the object that `look` looks for.
fn appears<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T, AttachError> {
    let limit = Instant::now() + APPEARS;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() > limit {
            let seconds = APPEARS.as_secs();
            return Err(AttachError::NoKernel(format!("{what} did not appear within {seconds} s")));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_path_where_nothing_is_is_free() {
        let dir = tempfile::tempdir().expect("directory");
        let [free, file, link] = ["free", "file", "link"].map(|name| dir.path().join(name));
        std::fs::write(&file, "").expect("written");
        symlink(&free, &link).expect("made");
        check(&free).expect("free");
        for taken in [&file, &link] {
            assert!(matches!(check(taken), Err(AttachError::Path { .. })), "{}", taken.display());
        }
    }

    #[test]
    fn what_a_killed_process_left_is_its_link() {
        let dir = tempfile::tempdir().expect("directory");
        let link = dir.path().join("disk");
        assert!(!clear(&link).expect("nothing"));
        symlink("/dev/nbd-none", &link).expect("made");
        assert!(clear(&link).expect("cleared"));
        assert!(std::fs::symlink_metadata(&link).is_err());
    }

    #[test]
    fn what_the_kernel_lacks_is_named_with_what_to_do() {
        let said =
            open(Path::new("/nonexistent/control"), "some-module").expect_err("nothing there").to_string();
        assert!(said.contains("modprobe some-module"), "{said}");
    }
}
