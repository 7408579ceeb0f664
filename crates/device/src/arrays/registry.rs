//! Registries of arrays: one for each user; root's is the machine's.
//!
//! Invariant: root accesses the registry of another user with that user's rights, so that all
//! files in it belong to that user.

use crate::user::User;
use crate::{runtime, state};
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Directory of the records, in the state directory.
const SUBDIRECTORY: &str = "arrays";
/// Directory of the records of arrays that are volumes of pools.
const VOLUMES: &str = "volumes";

/// The records of one user's arrays, and the control sockets of the processes that run them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    directory: PathBuf,
    runtime: PathBuf,
    /// The owner, where root uses the registry of another user.
    user: Option<User>,
}

impl Registry {
    /// The registry of the user of this process.
    pub fn own() -> Registry {
        Registry {
            directory: state::directory().join(SUBDIRECTORY),
            runtime: runtime::directory(),
            user: None,
        }
    }

    /// The registry of arrays that are volumes of pools: they are found by their pool, and are not
    /// listed as arrays.
    pub fn of_volumes() -> Registry {
        Registry { directory: state::directory().join(VOLUMES), ..Registry::own() }
    }

    /// The registry of root, for lookups by other users.
    pub(super) fn of_machine() -> Registry {
        Registry { directory: Path::new(state::SYSTEM).join(SUBDIRECTORY), ..Registry::own() }
    }

    /// The visible registries: the user's own, and with `sudo` that of the calling user.
    pub(super) fn all() -> Vec<Registry> {
        let of_caller = User::caller().and_then(|user| {
            let directory = state::directory_of(&user)?.join(SUBDIRECTORY);
            Some(Registry { directory, runtime: runtime::directory_of(&user), user: Some(user) })
        });
        let own = Registry::own();
        let of_caller = of_caller.filter(|of_caller| of_caller.directory != own.directory);
        std::iter::once(own).chain(of_caller).collect()
    }

    /// Arrays whose control sockets are there: those that run, and any that a killed process left.
    pub(crate) fn sockets(&self) -> Vec<Uuid> {
        let read = self.with_rights(|| std::fs::read_dir(&self.runtime));
        let entries = read.and_then(|entries| entries).into_iter().flatten().flatten();
        let uuid = |name: &str| name.strip_prefix("array-")?.strip_suffix(".sock")?.parse().ok();
        entries.filter_map(|entry| uuid(entry.file_name().to_str()?)).collect()
    }

    /// The directory of the records; it need not exist.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Path of the control socket of an array.
    pub(crate) fn socket(&self, array: Uuid) -> PathBuf {
        self.runtime.join(format!("array-{}.sock", array.simple()))
    }

    /// The directory of the control sockets; it need not exist.
    pub(super) fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// The name of the owner, where root uses the registry of another user.
    pub fn user(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.name.as_str())
    }

    /// Runs `work` with the rights of the registry's owner.
    ///
    /// # Errors
    /// This process may not take these rights.
    pub(super) fn with_rights<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        match &self.user {
            None => Ok(work()),
            Some(user) => user.with_rights(work),
        }
    }
}
