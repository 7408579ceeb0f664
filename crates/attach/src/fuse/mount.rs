//! Mounts one file: by the system call where permitted, otherwise through the helper that FUSE
//! installs for that.
//!
//! The protocol of the helper is that of libfuse: its environment names a socket, and it sends the
//! descriptor of `/dev/fuse` there.

use crate::error::AttachError;
use longhaul_engine::procfs::mounts;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The kernel's FUSE device.
const DEVICE: &str = "/dev/fuse";
/// The set-user-ID helper for users without the right to mount.
const HELPER: &str = "fusermount3";
/// Interval at which the mount table is read until a mount has disappeared.
const LOOK: Duration = Duration::from_millis(20);
/// Environment variable that names the socket to the helper.
const SOCKET: &str = "_FUSE_COMMFD";

/// A mounted file; it is unmounted when this is dropped, unless it is in use.
#[derive(Debug)]
pub(crate) struct Mounted {
    path: PathBuf,
    /// Cleared when it is unmounted, by this process or another one.
    there: bool,
}

/// What a mount appears as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountedAs {
    /// A regular file, over an empty one.
    File,
    /// A directory, whose server decides on access to what is in it.
    Directory,
}

/// How a file or directory is mounted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FuseMount<'a> {
    /// What `mount` and `/proc/mounts` show.
    pub(crate) name: &'a str,
    pub(crate) read_only: bool,
    /// Let other users access it.
    pub(crate) allow_other: bool,
    pub(crate) what: MountedAs,
}

impl MountedAs {
    /// Its mode, in octal digits, and further options.
    fn options(self) -> (&'static str, &'static str) {
        match self {
            MountedAs::File => ("100000", ",default_permissions"),
            MountedAs::Directory => ("40000", ""),
        }
    }
}

impl Mounted {
    /// Mounts over the file or directory at `path`, which must be there.
    ///
    /// # Errors
    /// There is no FUSE, or no right to it.
    pub(crate) fn new(path: &Path, plan: FuseMount<'_>) -> Result<(OwnedFd, Mounted), AttachError> {
        let path = path.canonicalize().map_err(|e| AttachError::path(path, e))?;
        let device = match directly(&path, plan) {
            // A user without the right to mount uses the helper; without `/dev/fuse` the helper
            // cannot work either.
            Err(Errno::PERM | Errno::ACCESS) => with_helper(&path, plan)?,
            Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
                let why = format!("there is no {DEVICE}; load the kernel module: modprobe fuse");
                return Err(AttachError::NoFuse(why));
            }
            Err(e) => return Err(AttachError::NoFuse(format!("mount: {}", io::Error::from(e)))),
            Ok(device) => device,
        };
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
    let flags = UnmountFlags::NOFOLLOW | if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM | Errno::ACCESS) => {
            let mut helper = Command::new(HELPER);
            helper.arg("-u").args(lazily.then_some("-z"));
            ask(helper, path)
        }
        Err(Errno::BUSY) => Err(busy(path)),
        Err(e) => Err(AttachError::path(path, format!("cannot be unmounted: {}", io::Error::from(e)))),
    }
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

fn directly(path: &Path, plan: FuseMount<'_>) -> Result<OwnedFd, Errno> {
    let device = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    let (mode, more) = plan.what.options();
    let mut options = format!(
        "fd={},rootmode={mode},user_id={},group_id={}{more}",
        device.as_raw_fd(),
        user.as_raw(),
        group.as_raw()
    );
    if plan.allow_other {
        options += ",allow_other";
    }
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    if plan.read_only {
        flags |= MountFlags::RDONLY;
    }
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(plan.name, path, "fuse.longhaul", flags, Some(options.as_c_str()))?;
    Ok(device)
}

fn with_helper(path: &Path, plan: FuseMount<'_>) -> Result<OwnedFd, AttachError> {
    let (ours, theirs) = UnixStream::pair().map_err(AttachError::system("a socket"))?;
    // A comma would end the name.
    let name = plan.name.replace(['\\', ','], "_");
    let (_, more) = plan.what.options();
    let mut options = format!("fsname={name},subtype=longhaul,nodev,nosuid,noatime{more}");
    for (wanted, option) in [(plan.read_only, ",ro"), (plan.allow_other, ",allow_other")] {
        options += if wanted { option } else { "" };
    }
    let mut helper = Command::new(HELPER);
    helper.arg("-o").arg(options).arg("--").arg(path);
    // Its standard input is the socket: a descriptor that it has anyway.
    helper.env(SOCKET, "0").stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    let started = helper.spawn();
    // The command holds the other end of the socket.
    drop(helper);
    let mut child = started.map_err(|e| {
        AttachError::NoFuse(format!("{HELPER}: {e}; install it (Debian: fuse3), or run this as root"))
    })?;
    let device = receive(&ours);
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        // The text matters only if the helper failed.
        let _ = stderr.read_to_string(&mut said);
    }
    let ended = child.wait().map_err(AttachError::system(HELPER))?;
    match device {
        Ok(Some(device)) if ended.success() => Ok(device),
        Err(e) if said.is_empty() => Err(AttachError::NoFuse(format!("{HELPER}: {e}"))),
        _ => Err(AttachError::NoFuse(said.trim().to_owned())),
    }
}

/// The descriptor that the helper sends; `None` if it ends without.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => break,
        }
    }
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(rights)
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
