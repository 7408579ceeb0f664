//! Detaching, and removing what a killed process has left.

use crate::error::failed;
use crate::{fuse, kernel, users};
use longhaul_device::attached::{Attachment, request_detach};
use longhaul_device::{Error, ErrorKind, Result, runtime};
use std::path::{Path, PathBuf};
use std::time::Duration;
use uuid::Uuid;

/// Whether a record with this `via` is of a mounted file system.
fn is_mount(via: &str) -> bool {
    via.contains('+')
}

/// Path of the file or link of the device below the mount at `dir`, in the runtime directory.
pub(crate) fn hidden_path(dir: &Path) -> PathBuf {
    let id = Uuid::new_v5(&Uuid::NAMESPACE_URL, dir.as_os_str().as_encoded_bytes());
    runtime::directory().join(format!("mount-{}", id.simple()))
}

/// Timeout for the reply of a process whose device was unreachable when it last wrote its record.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether requests under way and unflushed writes wait for the device to be reachable again.
pub(crate) fn is_waited_for(trouble: &str) -> bool {
    trouble.starts_with("unreachable")
}

/// The error of a detach while I/O waits for an unreachable device.
pub(crate) fn unreachable_device(path: &Path, trouble: &str) -> Error {
    let path = path.display();
    let message = format!(
        "cannot take {path} away now: its device is {trouble}. Try again when it is back, or add --lazy: then \
         it goes out of sight at once, and what was written and is not on the device is lost if that does \
         not come back"
    );
    Error::new(ErrorKind::Unreachable, message)
}

/// Detaches the device that is attached at `path`, an absolute path, or unmounts its file system.
/// The process that serves it does so; what a killed one has left is removed. With `lazily` the path
/// goes at once, even if it is in use or the device does not respond.
///
/// # Errors
/// [`ErrorKind::Refused`] while it is in use, [`ErrorKind::Unreachable`] while unflushed writes wait
/// for its device, or nothing is attached there.
pub fn detach(path: &Path, lazily: bool) -> Result<()> {
    // A process that waits for its device does not reply. Its record may be out of date, so the
    // request is sent all the same, with a timeout.
    let trouble = Attachment::find(path).and_then(|(record, _)| record.trouble);
    let unreachable = trouble.filter(|why| !lazily && is_waited_for(why));
    match request_detach(path, lazily, unreachable.as_ref().map(|_| REPLY_TIMEOUT)) {
        Some(Err(e)) if e.kind() == ErrorKind::TimedOut => {
            Err(unreachable.map_or(e, |why| unreachable_device(path, &why)))
        }
        Some(result) => result,
        None => clear(path, lazily),
    }
}

/// Removes the mount, device, files and record that a killed process left.
fn clear(path: &Path, lazily: bool) -> Result<()> {
    let known = Attachment::find(path);
    if let Some((record, true)) = &known {
        let why = format!("process {} serves it and does not listen; end it with SIGTERM", record.pid);
        return Err(failed(format!("{}: {why}", path.display())));
    }
    // The type of attachment is taken from the record: if its device has failed, even a `stat` of a
    // file system's root fails.
    let via = known.as_ref().map_or("", |(record, _)| record.via.as_str());
    let is_mount = is_mount(via);
    if is_mount && users::is_mounted(path) {
        // Dirty pages of the file system are lost; its journal keeps it consistent.
        fuse::unmount(path, lazily)?;
    }
    let was_there = match via.split('+').next() {
        Some("nvme" | "nbd" | "ublk") if is_mount => kernel::clear(&hidden_path(path))?,
        Some("nvme" | "nbd" | "ublk") => kernel::clear(path)?,
        // A process killed between attaching and mounting leaves the hidden file.
        _ if is_mount => {
            let hidden = hidden_path(path);
            let was_there = fuse::clear(&hidden, true)?;
            let _ = std::fs::remove_file(hidden);
            was_there
        }
        _ => fuse::clear(path, known.is_some())?,
    };
    if known.is_none() && !was_there {
        return Err(failed(format!(
            "{}: nothing is attached there; longhaul attach --list shows all attachments",
            path.display()
        )));
    }
    if known.is_some() && !is_mount && users::is_mounted(path) {
        let why = "still mounted, by another process; umount it first";
        return Err(failed(format!("{}: {why}", path.display())));
    }
    if known.is_some() {
        // `attach` created the empty file that the mount had covered.
        if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == 0) {
            let _ = std::fs::remove_file(path);
        }
        Attachment::forget(path);
    }
    Ok(())
}
