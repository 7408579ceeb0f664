//! Mounts by the system call where that is permitted, otherwise through the helper that FUSE installs for it.
//!
//! The protocol of the helper is that of libfuse: its environment names a socket, and it sends the
//! descriptor of `/dev/fuse` there.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// The kernel's FUSE device.
const DEVICE: &str = "/dev/fuse";
/// The set-user-ID helper for users without the right to mount.
pub const HELPER: &str = "fusermount3";
/// Environment variable that names the socket to the helper.
const SOCKET: &str = "_FUSE_COMMFD";

/// Why something cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no FUSE, or no right to it.
    #[error("{0}")]
    NoFuse(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// Why something cannot be unmounted.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// A program uses it.
    #[error("it is in use")]
    Busy,
    /// Another reason.
    #[error("{0}")]
    Refused(String),
}

/// What a mount appears as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountedAs {
    /// A regular file, over an empty one.
    File,
    /// A directory, whose server decides on access to what is in it.
    Directory,
    /// A directory of many users: the kernel decides on access by owners and modes.
    SharedDirectory,
}

/// How a file or directory is mounted.
#[derive(Clone, Copy, Debug)]
pub struct MountOptions<'a> {
    /// What `mount` and `/proc/mounts` show.
    pub name: &'a str,
    /// Refuse changes.
    pub read_only: bool,
    /// Let other users access it.
    pub allow_other: bool,
    /// What it appears as.
    pub what: MountedAs,
}

impl MountedAs {
    /// Its mode, in octal digits, and further options.
    fn options(self) -> (&'static str, &'static str) {
        match self {
            MountedAs::File => ("100000", ",default_permissions"),
            MountedAs::Directory => ("40000", ""),
            MountedAs::SharedDirectory => ("40000", ",default_permissions"),
        }
    }
}

/// Mounts over the file or directory at `path`, which must be there and absolute; returns the device of the
/// mount.
///
/// # Errors
/// There is no FUSE, or no right to it.
pub fn mount(path: &Path, options: MountOptions<'_>) -> Result<OwnedFd, MountError> {
    match directly(path, options) {
        // A user without the right to mount uses the helper; without `/dev/fuse` the helper
        // cannot work either.
        Err(Errno::PERM | Errno::ACCESS) => with_helper(path, options),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
            let why = format!("there is no {DEVICE}; load the kernel module: modprobe fuse");
            Err(MountError::NoFuse(why))
        }
        Err(e) => Err(MountError::NoFuse(format!("mount: {}", io::Error::from(e)))),
        Ok(device) => Ok(device),
    }
}

/// Unmounts the file system at `path`; `lazily`, it disappears at once and ends with its last user.
///
/// # Errors
/// It is in use; nothing is mounted there.
pub fn unmount(path: &Path, lazily: bool) -> Result<(), UnmountError> {
    let flags = UnmountFlags::NOFOLLOW | if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM | Errno::ACCESS) => {
            let mut helper = Command::new(HELPER);
            helper.arg("-u").args(lazily.then_some("-z")).arg("--").arg(path);
            let said = helper.stdin(Stdio::null()).output();
            let said = said.map_err(|e| UnmountError::Refused(format!("cannot run {HELPER}: {e}")))?;
            let why = String::from_utf8_lossy(&said.stderr);
            match said.status.success() {
                true => Ok(()),
                false if why.contains("busy") => Err(UnmountError::Busy),
                false => Err(UnmountError::Refused(why.trim().to_owned())),
            }
        }
        Err(Errno::BUSY) => Err(UnmountError::Busy),
        Err(e) => Err(UnmountError::Refused(format!("cannot be unmounted: {}", io::Error::from(e)))),
    }
}

fn directly(path: &Path, how: MountOptions<'_>) -> Result<OwnedFd, Errno> {
    let device = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    let (mode, more) = how.what.options();
    let mut options = format!(
        "fd={},rootmode={mode},user_id={},group_id={}{more}",
        device.as_raw_fd(),
        user.as_raw(),
        group.as_raw()
    );
    if how.allow_other {
        options += ",allow_other";
    }
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    if how.read_only {
        flags |= MountFlags::RDONLY;
    }
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(how.name, path, "fuse.longhaul", flags, Some(options.as_c_str()))?;
    Ok(device)
}

fn with_helper(path: &Path, how: MountOptions<'_>) -> Result<OwnedFd, MountError> {
    let system = |what| move |source| MountError::System { what, source };
    let (ours, theirs) = UnixStream::pair().map_err(system("a socket"))?;
    // A comma would end the name.
    let name = how.name.replace(['\\', ','], "_");
    let (_, more) = how.what.options();
    let mut options = format!("fsname={name},subtype=longhaul,nodev,nosuid,noatime{more}");
    for (wanted, option) in [(how.read_only, ",ro"), (how.allow_other, ",allow_other")] {
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
        MountError::NoFuse(format!("{HELPER}: {e}; install it (Debian: fuse3), or run this as root"))
    })?;
    let device = receive(&ours);
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        // The text matters only if the helper failed.
        let _ = stderr.read_to_string(&mut said);
    }
    let ended = child.wait().map_err(system(HELPER))?;
    match device {
        Ok(Some(device)) if ended.success() => Ok(device),
        Err(e) if said.is_empty() => Err(MountError::NoFuse(format!("{HELPER}: {e}"))),
        _ => Err(MountError::NoFuse(said.trim().to_owned())),
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
