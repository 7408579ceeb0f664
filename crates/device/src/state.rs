//! State directories: what a user keeps between runs, such as the records of arrays.

use crate::user::User;
use std::path::PathBuf;

/// Directory of Longhaul, in a user's state directory.
const SUBDIRECTORY: &str = "longhaul";
/// State directory of a user, in the home directory (XDG Base Directory Specification).
const IN_HOME: &str = ".local/state";
/// State directory of the machine: of root, and of users without a home directory.
pub(crate) const SYSTEM: &str = "/var/lib/longhaul";

/// The state directory; it need not exist. Root uses that of the machine, so that a service
/// (without `HOME`), a login and `sudo` (possibly with the `HOME` of another user) share it.
pub fn directory() -> PathBuf {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let is_root = rustix::process::getuid().is_root();
    let home = || absolute("HOME").filter(|_| !is_root).map(|home| home.join(IN_HOME));
    let state = absolute("XDG_STATE_HOME").or_else(home);
    state.map_or_else(|| SYSTEM.into(), |state| state.join(SUBDIRECTORY))
}

/// The state directory of another user; `XDG_STATE_HOME` of that user's processes is not known.
/// `None` for a user without a home directory.
pub fn directory_of(user: &User) -> Option<PathBuf> {
    Some(user.home()?.join(IN_HOME).join(SUBDIRECTORY))
}
