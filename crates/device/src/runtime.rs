//! The runtime directory: sockets, locks and records by which processes of one user find each other.

use crate::error::{Error, Result};
use crate::user::User;
use rustix::process::{geteuid, getuid};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The runtime directory of root, the same under `sudo` as after a login.
const OF_ROOT: &str = "/run/longhaul";
/// Parent of the directories that a login creates for each user.
const LOGINS: &str = "/run/user";

/// The runtime directory of this process's user; it need not exist.
pub fn directory() -> PathBuf {
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let is_root = getuid().is_root();
    match given {
        // Under `sudo` the variable may be that of the calling user.
        Some(path) if !is_root || !path.starts_with(LOGINS) => path.join("longhaul"),
        _ if is_root => OF_ROOT.into(),
        _ => default_directory(getuid().as_raw()),
    }
}

/// The runtime directory of another user; `XDG_RUNTIME_DIR` of that user's processes is not known.
pub(crate) fn directory_of(user: &User) -> PathBuf {
    default_directory(user.uid())
}

/// The directory of a user without `XDG_RUNTIME_DIR`. A cron job has no such variable, so the
/// directory that a login creates is used where it exists.
fn default_directory(uid: u32) -> PathBuf {
    let login = Path::new(LOGINS).join(uid.to_string());
    if std::fs::metadata(&login).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid) {
        return login.join("longhaul");
    }
    std::env::temp_dir().join(format!("longhaul-{uid}"))
}

/// Creates the runtime directory, accessible to its user only.
///
/// # Errors
/// It cannot be created, or another user owns it.
pub fn make() -> Result<()> {
    make_at(&directory())
}

/// Creates a runtime directory for the user whose rights this thread has.
///
/// # Errors
/// It cannot be created, or another user owns it.
pub(crate) fn make_at(path: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    let checked = made.and_then(|()| std::fs::symlink_metadata(path)).and_then(|meta| {
        if !meta.is_dir() || meta.uid() != geteuid().as_raw() {
            return Err(std::io::Error::other("it is not a directory of yours"));
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
    });
    checked.map_err(|e| Error::failed(format!("{}: {e}", path.display())))
}
