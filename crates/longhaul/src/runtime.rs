//! Where processes of one person find each other.

use crate::exit::Failure;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

/// The directory: the person's own.
pub(crate) fn directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(path) if path.is_absolute() => path.join("longhaul"),
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
