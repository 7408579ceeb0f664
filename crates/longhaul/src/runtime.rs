//! Where processes of one person find each other.

use crate::exit::Failure;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Root's, which is the same whether `sudo` or a login made it root.
const ROOTS: &str = "/run/longhaul";
/// What a login of root sets.
const LOGIN_OF_ROOT: &str = "/run/user/0";

/// The directory: the person's own.
pub(crate) fn directory() -> PathBuf {
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let is_root = rustix::process::getuid().is_root();
    match given {
        Some(path) if !is_root || path != Path::new(LOGIN_OF_ROOT) => path.join("longhaul"),
        _ if is_root => ROOTS.into(),
        _ => std::env::temp_dir().join(format!("longhaul-{}", rustix::process::getuid().as_raw())),
    }
}

/// Makes it, so that nobody else may look into it.
pub(crate) fn make() -> Result<(), Failure> {
    let path = directory();
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
    let checked = made.and_then(|()| std::fs::symlink_metadata(&path)).and_then(|meta| {
        if !meta.is_dir() || meta.uid() != rustix::process::getuid().as_raw() {
            return Err(std::io::Error::other("it is not a directory of yours"));
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700))
    });
    checked.map_err(|e| Failure::failed(format!("{}: {e}", path.display())))
}
