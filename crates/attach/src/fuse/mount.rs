//! What is mounted here, until it is unmounted by this process or another one.

use crate::error::AttachError;
use longhaul_engine::procfs::mounts;
use longhaul_fuse::{MountError, MountOptions, UnmountError};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Interval at which the mount table is read until a mount has disappeared.
const LOOK: Duration = Duration::from_millis(20);

/// A mounted file; it is unmounted when this is dropped, unless it is in use.
#[derive(Debug)]
pub(crate) struct Mounted {
    path: PathBuf,
    /// Cleared when it is unmounted, by this process or another one.
    there: bool,
}

impl Mounted {
    /// Mounts over the file or directory at `path`, which must be there.
    ///
    /// # Errors
    /// There is no FUSE, or no right to it.
    pub(crate) fn new(path: &Path, plan: MountOptions<'_>) -> Result<(OwnedFd, Mounted), AttachError> {
        let path = path.canonicalize().map_err(|e| AttachError::path(path, e))?;
        let device = longhaul_fuse::mount(&path, plan).map_err(|e| match e {
            MountError::NoFuse(why) => AttachError::NoFuse(why),
            MountError::System { what, source } => AttachError::system(what)(source),
        })?;
        Ok((device, Mounted { path, there: true }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts it, unless it is unmounted already.
    ///
    /// # Errors
    /// It is in use.
    pub(crate) fn unmount(&mut self) -> Result<(), AttachError> {
        self.take_away(false)
    }

    /// Unmounts it lazily (`MNT_DETACH`): open files of it stay usable.
    pub(crate) fn hide(&mut self) -> Result<(), AttachError> {
        self.take_away(true)
    }

    fn take_away(&mut self, lazily: bool) -> Result<(), AttachError> {
        if self.there {
            gone_or(&self.path, unmount(&self.path, lazily))?;
            self.there = false;
        }
        Ok(())
    }

    /// Notes that another program has unmounted it.
    pub(crate) fn forget(&mut self) {
        self.there = false;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(e) = self.hide() {
            tracing::warn!("{}: {e}", self.path.display());
        }
    }
}

/// Unmounts the file system at `path`; `lazily`, it disappears at once and ends with its last user.
///
/// # Errors
/// It is in use; nothing is mounted there.
pub fn unmount(path: &Path, lazily: bool) -> Result<(), AttachError> {
    longhaul_fuse::unmount(path, lazily).map_err(|e| match e {
        UnmountError::Busy => busy(path),
        UnmountError::Refused(why) => AttachError::path(path, why),
    })
}

/// Unmounts the file system at `path`, whose device this process serves, unless
/// it is unmounted already: by `umount`. The system call may wait for the device;
/// if this process made it, SIGKILL could not end the process before the device
/// answers, and no other thread would be left to answer.
///
/// # Errors
/// It is in use.
pub fn unmount_served(path: &Path, lazily: bool) -> Result<(), AttachError> {
    let mut program = Command::new("umount");
    program.args(lazily.then_some("-l")).env("LC_ALL", "C");
    if !lazily {
        return gone_or(path, ask(program, path));
    }
    // The mount disappears at once; but if nothing else uses it, `umount` itself waits for the
    // writes to a device that may not answer.
    let (done, ended) = channel();
    let asked = path.to_owned();
    std::thread::Builder::new()
        .name("longhaul-umount".into())
        .spawn(move || drop(done.send(ask(program, &asked))))
        .map_err(AttachError::system("cannot start a thread"))?;
    loop {
        match ended.recv_timeout(LOOK) {
            Ok(unmounted) => return gone_or(path, unmounted),
            Err(_) if !crate::users::is_mounted(path) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return gone_or(path, Err(busy(path))),
        }
    }
}

/// If another program has unmounted it first, that is no error.
fn gone_or(path: &Path, unmounted: Result<(), AttachError>) -> Result<(), AttachError> {
    unmounted.or_else(|e| if crate::users::is_mounted(path) { Err(e) } else { Ok(()) })
}

/// Has a program unmount `path`.
fn ask(mut program: Command, path: &Path) -> Result<(), AttachError> {
    let name = program.get_program().to_string_lossy().into_owned();
    let said = program.arg("--").arg(path).stdin(Stdio::null()).output();
    let said = said.map_err(AttachError::system(format!("cannot run {name}")))?;
    let why = String::from_utf8_lossy(&said.stderr);
    match said.status.success() {
        true => Ok(()),
        false if why.contains("busy") => Err(busy(path)),
        false => Err(AttachError::path(path, why.trim())),
    }
}

fn busy(path: &Path) -> AttachError {
    AttachError::Busy { path: path.to_owned(), by: crate::users::of(path) }
}

/// Whether something is mounted at `path`, and whether it answers.
pub(crate) fn state(path: &Path) -> PathState {
    let mounted = mounts().into_iter().rfind(|mount| mount.at == path);
    match mounted.map(|mount| mount.kind.starts_with("fuse")) {
        None => PathState::Nothing,
        Some(false) => PathState::Other,
        // `stat` may be answered from the kernel's cache; this always reaches the server.
        Some(true) => match rustix::fs::statfs(path) {
            // The second one is reported to the caller that waited for the end.
            Err(Errno::NOTCONN | Errno::CONNABORTED) => PathState::Dead,
            _ => PathState::Fuse,
        },
    }
}

/// A file system that is mounted at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathState {
    Nothing,
    /// FUSE, and a process serves it.
    Fuse,
    /// FUSE, and the process that served it has ended.
    Dead,
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_is_seen() {
        assert_eq!(state(Path::new("/proc")), PathState::Other);
        assert_eq!(state(Path::new("/nonexistent")), PathState::Nothing);
    }
}
