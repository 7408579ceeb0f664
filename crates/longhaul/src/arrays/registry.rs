//! Where arrays are recorded: for each user, and root's for the machine.
//!
//! Invariant: what root does in the registry of another user it does with that user's
//! rights, so all of it belongs to that user.

use crate::runtime;
use crate::state;
use crate::user::User;
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Where records are, below a state directory.
const BELOW: &str = "arrays";

/// The records of one user, and where the processes that run those arrays are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registry {
    directory: PathBuf,
    runtime: PathBuf,
    /// The user, where root uses the records of another one.
    user: Option<User>,
}

impl Registry {
    /// That of the user that runs this.
    pub(crate) fn own() -> Registry {
        Registry { directory: state::directory().join(BELOW), runtime: runtime::directory(), user: None }
    }

    /// Root's, as other users see it.
    pub(super) fn of_machine() -> Registry {
        Registry { directory: Path::new(state::SYSTEM).join(BELOW), ..Registry::own() }
    }

    /// All whose arrays can be named: one's own, and with `sudo` that of the user that called it.
    pub(super) fn all() -> Vec<Registry> {
        let of_caller = User::caller().and_then(|user| {
            let directory = state::directory_of(&user)?.join(BELOW);
            Some(Registry { directory, runtime: runtime::directory_of(&user), user: Some(user) })
        });
        let own = Registry::own();
        let of_caller = of_caller.filter(|of_caller| of_caller.directory != own.directory);
        std::iter::once(own).chain(of_caller).collect()
    }

    /// The directory of the records; it need not exist.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where the process that runs an array is asked.
    pub(super) fn socket(&self, array: Uuid) -> PathBuf {
        self.runtime.join(format!("array-{}.sock", array.simple()))
    }

    /// The directory of that socket, which may have to be made.
    pub(super) fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// The user, where root uses the records of another one.
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.name.as_str())
    }

    /// Does `work` with the rights of the user whose records these are.
    ///
    /// # Errors
    /// This process may not take them.
    pub(super) fn with_rights<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        match &self.user {
            None => Ok(work()),
            Some(user) => user.with_rights(work),
        }
    }
}
