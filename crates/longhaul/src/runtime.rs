//! Where processes of one user find each other.

use crate::exit::Failure;
use crate::user::User;
use rustix::process::{geteuid, getuid};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Root's, which is the same whether `sudo` or a login made it root.
const ROOTS: &str = "/run/longhaul";
/// Where a login makes a directory for each user.
const LOGINS: &str = "/run/user";

/// The directory: the user's own.
pub(crate) fn directory() -> PathBuf {
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let is_root = getuid().is_root();
    match given {
        // `sudo` may leave that of the user that called it.
        Some(path) if !is_root || !path.starts_with(LOGINS) => path.join("longhaul"),
        _ if is_root => ROOTS.into(),
        _ => usual(getuid().as_raw()),
    }
}

/// The directory of another user, unless that user's processes have a variable that says
/// otherwise.
pub(crate) fn directory_of(user: &User) -> PathBuf {
    usual(user.uid())
}

/// That of a login also where the variable is not set, as in a job of cron: the processes
/// of one user find each other however they were started.
fn usual(uid: u32) -> PathBuf {
    let login = Path::new(LOGINS).join(uid.to_string());
    if std::fs::metadata(&login).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid) {
        return login.join("longhaul");
    }
    std::env::temp_dir().join(format!("longhaul-{uid}"))
}

/// Makes the user's own, so that no other user may look into it.
pub(crate) fn make() -> Result<(), Failure> {
    make_at(&directory())
}

/// Makes such a directory for the user with whose rights this thread runs.
pub(crate) fn make_at(path: &Path) -> Result<(), Failure> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    let checked = made.and_then(|()| std::fs::symlink_metadata(path)).and_then(|meta| {
        if !meta.is_dir() || meta.uid() != geteuid().as_raw() {
            return Err(std::io::Error::other("it is not a directory of yours"));
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
    });
    checked.map_err(|e| Failure::failed(format!("{}: {e}", path.display())))
}
