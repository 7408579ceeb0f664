//! A file system as a directory, served by FUSE.

use super::mount::Mounted;
use super::tree_session::{self, Started};
use crate::error::AttachError;
use longhaul_fs::FileSystem;
use longhaul_fuse::{MountOptions, MountedAs};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// How a file system is mounted.
#[derive(Clone, Debug, Default)]
pub struct TreeOptions {
    /// The source shown in the mount table.
    pub name: String,
    /// Let other users access it; unless root mounts it, this needs `user_allow_other` in `/etc/fuse.conf`.
    pub others: Others,
    /// Refuse changes.
    pub read_only: bool,
}

/// What other users may do than the one that mounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Others {
    /// Nothing.
    #[default]
    Refused,
    /// All that the one that mounts may do, in its name.
    InItsName,
    /// What owners and modes of the files let each of them; what they make is theirs.
    ByThemselves,
}

/// A file system that is mounted; dropping it unmounts it.
pub struct FuseTree {
    mounted: Mounted,
    session: Option<JoinHandle<io::Result<()>>>,
}

impl FuseTree {
    /// Mounts `files` at the directory `path`. When the kernel has released it, by an unmount of any
    /// program, `ended` is called on another thread.
    ///
    /// # Errors
    /// Something is mounted there already; there is no FUSE, or no right to it.
    pub fn new(
        files: Arc<dyn FileSystem>,
        path: &Path,
        options: &TreeOptions,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<FuseTree, AttachError> {
        super::check(path)?;
        let plan = MountOptions {
            name: &options.name,
            read_only: options.read_only,
            allow_other: options.others != Others::Refused,
            what: match options.others {
                Others::ByThemselves => MountedAs::SharedDirectory,
                Others::Refused | Others::InItsName => MountedAs::Directory,
            },
        };
        let has_users = options.others == Others::ByThemselves;
        let (device, mounted) = Mounted::new(path, plan)?;
        let session = tree_session::start(Started { files, has_users }, device, Box::new(ended));
        let session = session.map_err(|e| AttachError::NoFuse(e.to_string()))?;
        Ok(FuseTree { mounted, session: Some(session) })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// Unmounts it. The kernel has closed all files then: what was written is with the server.
    ///
    /// # Errors
    /// A program uses it; it stays mounted.
    pub fn unmount(&mut self) -> Result<(), AttachError> {
        self.mounted.unmount()?;
        self.finish()
    }

    /// Unmounts it lazily; open files stay usable until they are closed.
    ///
    /// # Errors
    /// It cannot be unmounted.
    pub fn hide(&mut self) -> Result<(), AttachError> {
        self.mounted.hide()
    }

    /// Whether the kernel has released it.
    pub fn has_ended(&self) -> bool {
        self.session.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end of the session, after an unmount.
    ///
    /// # Errors
    /// The session failed.
    pub fn finish(&mut self) -> Result<(), AttachError> {
        self.mounted.forget();
        match self.session.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(e))) => Err(AttachError::system("FUSE")(e)),
            Some(Err(_)) => Err(AttachError::system("FUSE")(io::Error::other("a thread panicked"))),
        }
    }
}

impl std::fmt::Debug for FuseTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FuseTree({})", self.path().display())
    }
}
