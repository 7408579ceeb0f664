//! A device as one file, or a file system as a directory, served by FUSE.

mod mount;
mod session;
mod tree;
mod tree_locks;
mod tree_session;
mod tuning;

pub use mount::{unmount, unmount_served};
pub use tree::{FuseTree, Others, TreeOptions};

use crate::error::AttachError;
use crate::served::{Request, Requests};
use longhaul_cache::ErrorCursor;
use longhaul_fuse::{MountOptions, MountedAs};
use mount::{Mounted, PathState};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The time that the kernel may take to release a file that is no longer reachable, on a busy
/// machine. A file that takes longer is taken to be still reachable.
const GIVEN_UP: Duration = Duration::from_secs(5);

/// How a device appears as a file.
#[derive(Clone, Debug, Default)]
pub struct FuseOptions {
    /// The source shown in the mount table.
    pub name: String,
    /// Let other users access it; unless root attaches it, this needs `user_allow_other` in
    /// `/etc/fuse.conf`.
    pub allow_other: bool,
}

/// A device that appears as a file; dropping it unmounts the file.
pub struct FuseFile {
    mounted: Mounted,
    /// Whether this process made the empty file below, and removes it.
    made: bool,
    requests: Arc<dyn Requests>,
    /// Gets the error of every loss since the beginning, also of those that
    /// other handles have seen.
    cursor: Arc<ErrorCursor>,
    session: Option<JoinHandle<io::Result<()>>>,
    /// The other end is dropped when the kernel has released the file.
    reached: Receiver<()>,
}

impl FuseFile {
    /// Makes the device appear at `path`: nothing or an empty file may be
    /// there. When the kernel has released it (no mount of it and no open file
    /// is left), `ended` is called on another thread.
    ///
    /// # Errors
    /// The path is taken; there is no FUSE.
    pub fn new(
        requests: Arc<dyn Requests>,
        path: &Path,
        options: &FuseOptions,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<FuseFile, AttachError> {
        let path = place(path)?;
        let made = make(&path)?;
        let cursor = requests.handle();
        let plan = MountOptions {
            name: &options.name,
            read_only: requests.info().read_only,
            allow_other: options.allow_other,
            what: MountedAs::File,
        };
        let (reach, reached) = channel();
        let ended = move || {
            drop(reach);
            ended();
        };
        let started = Mounted::new(&path, plan).and_then(|(device, mounted)| {
            let session = session::start(Arc::clone(&requests), device, options.allow_other, Box::new(ended));
            Ok((mounted, session.map_err(|e| AttachError::NoFuse(e.to_string()))?))
        });
        match started {
            Ok((mounted, session)) => {
                Ok(FuseFile { mounted, made, requests, cursor, session: Some(session), reached })
            }
            Err(e) => {
                if made {
                    let _ = std::fs::remove_file(&path);
                }
                Err(e)
            }
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// Detaches it, with all writes durable.
    ///
    /// # Errors
    /// The file is in use, and stays attached; or it is unmounted here and still reachable another
    /// way: then `ended` is called when that ends, too. Or a write could not be made durable, and
    /// the file was detached.
    pub fn detach(&mut self) -> Result<(), AttachError> {
        self.mounted.unmount()?;
        // In other mount namespaces the mount ends with the file below it.
        self.remove();
        if !self.has_ended() && self.reached.recv_timeout(GIVEN_UP) == Err(RecvTimeoutError::Timeout) {
            let by = "a program that reaches it elsewhere: a file that was open when it was unmounted, a bind \
                mount, or another mount namespace; it ends with its last user";
            return Err(AttachError::Busy { path: self.path().to_owned(), by: vec![by.into()] });
        }
        self.finish()
    }

    /// Unmounts it lazily; open files of it stay usable until they are closed.
    ///
    /// # Errors
    /// It cannot be unmounted.
    pub fn hide(&mut self) -> Result<(), AttachError> {
        self.mounted.hide()?;
        self.remove();
        Ok(())
    }

    /// Removes the empty file below, if this process made it.
    fn remove(&mut self) {
        if std::mem::take(&mut self.made) {
            let _ = std::fs::remove_file(self.path());
        }
    }

    /// After `ended` was called: makes completed writes durable.
    ///
    /// # Errors
    /// A write could not be made durable.
    pub fn finish(&mut self) -> Result<(), AttachError> {
        self.end();
        self.flush()
    }

    /// Makes completed writes durable.
    ///
    /// # Errors
    /// A write could not be made durable, or was lost earlier and no flush has reported it.
    pub fn flush(&self) -> Result<(), AttachError> {
        self.requests.wait(Request::Flush(Arc::clone(&self.cursor)))?;
        Ok(())
    }

    /// Whether the kernel has released the file.
    pub fn has_ended(&self) -> bool {
        self.session.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn end(&mut self) {
        if let Some(session) = self.session.take() {
            match session.join() {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::warn!("{}: FUSE: {e}", self.path().display()),
                Err(_) => tracing::error!("{}: a thread of FUSE panicked", self.path().display()),
            }
        }
        self.mounted.forget();
        self.remove();
    }
}

impl std::fmt::Debug for FuseFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FuseFile({})", self.path().display())
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        if self.has_ended() {
            self.end();
        } else if self.mounted.hide().is_ok() {
            self.remove();
        }
    }
}

/// The absolute form of a path, whether it exists or not.
pub(crate) fn place(path: &Path) -> Result<PathBuf, AttachError> {
    let name = path.file_name().ok_or_else(|| AttachError::path(path, "not the name of a file"))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = parent.canonicalize().map_err(|e| AttachError::path(parent, e))?;
    Ok(parent.join(name))
}

/// Checks that nothing is mounted at `path`, neither a live nor a dead FUSE file system.
///
/// # Errors
/// What is mounted there, and how to remove it.
pub fn check(path: &Path) -> Result<(), AttachError> {
    match mount::state(path) {
        PathState::Nothing => {}
        PathState::Fuse | PathState::Other => {
            return Err(AttachError::path(path, "something is mounted there already"));
        }
        PathState::Dead => {
            let why =
                "the process of the device attached there has ended; detach it first: longhaul detach PATH";
            return Err(AttachError::path(path, why));
        }
    }
    Ok(())
}

/// Makes an empty file, unless one exists.
fn make(path: &Path) -> Result<bool, AttachError> {
    check(path)?;
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_file() && meta.len() == 0 => Ok(false),
        Ok(meta) => Err(AttachError::path(path, format!("it is {}: name a path that is free", kind(&meta)))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            made.map(|_| true).map_err(|e| AttachError::path(path, e))
        }
        Err(e) => Err(AttachError::path(path, e)),
    }
}

pub(crate) fn kind(meta: &std::fs::Metadata) -> &'static str {
    let kind = meta.file_type();
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_file() => "a file that is not empty",
        () if kind.is_block_device() => "a block device",
        () => "something else",
    }
}

/// Removes the rest of an attachment at `path` whose process has ended. The caller knows that of an
/// `orphan`; of others it is asked of the kernel. Returns whether anything was removed.
///
/// # Errors
/// It cannot be unmounted.
pub fn clear(path: &Path, orphan: bool) -> Result<bool, AttachError> {
    let path = place(path)?;
    match mount::state(&path) {
        PathState::Dead => {}
        PathState::Fuse if orphan => {}
        PathState::Fuse | PathState::Nothing | PathState::Other => return Ok(false),
    }
    mount::unmount(&path, true)?;
    Ok(true)
}
