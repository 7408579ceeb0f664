//! Locks against two processes of this host that write to one device.

use super::{open, runtime_file};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use longhaul_block::DeviceInfo;
use longhaul_engine::LockedFile;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

/// A lock on a device, against writes by other processes of this host.
#[derive(Debug)]
pub struct DeviceLock {
    _file: LockedFile,
}

impl DeviceLock {
    /// Locks the device that was opened as `name`, and the members of an array, for the attachment
    /// at `path`; read-only attachments share the locks. Memory has none: it is a new device at each
    /// open.
    ///
    /// # Errors
    /// The device is attached elsewhere ([`ErrorKind::Refused`]), or a lock cannot be created.
    pub fn take_all(device: &Device, read_only: bool, name: &str, path: &Path) -> Result<Vec<DeviceLock>> {
        let mut locks = Vec::new();
        let info = device.block().info();
        if let Some(identity) = identity(name, &info) {
            locks.push(DeviceLock::take(&identity, read_only || info.read_only, name, path)?);
        }
        let Device::Array(array) = device else { return Ok(locks) };
        for (member, info) in array.members() {
            // An array writes its superblocks even if it is attached read-only.
            if let Some(identity) = identity(member, info) {
                let name = format!("{member}, a member of {name},");
                locks.push(DeviceLock::take(&identity, info.read_only, &name, path)?);
            }
        }
        Ok(locks)
    }

    /// Locks the device with this identity, for the attachment at `path`; read-only attachments
    /// share the lock.
    ///
    /// # Errors
    /// The device is attached elsewhere ([`ErrorKind::Refused`]), or the lock cannot be created.
    fn take(identity: &str, read_only: bool, name: &str, path: &Path) -> Result<DeviceLock> {
        let mut file = open(&runtime_file("device", identity, "lock"))?;
        let locked = if read_only { file.try_lock_shared() } else { file.try_lock() };
        if locked.is_err() {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.is_empty() { "elsewhere" } else { holder.trim() };
            let only = if read_only { "to be written" } else { "already" };
            let why = format!(
                "{name} is attached {only}, at {holder}: detach it there, or attach it --read-only in both places"
            );
            return Err(Error::new(ErrorKind::Refused, why));
        }
        // For the message of a process that is refused; of several readers the last one is named.
        let _ = file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0)));
        let _ = writeln!(file, "{}", path.display());
        Ok(DeviceLock { _file: file })
    }
}

/// The identity of a device, the same for all its names; `None` for memory, which is a new device
/// at each open.
fn identity(name: &str, info: &DeviceInfo) -> Option<String> {
    if name.starts_with("mem:") || name.starts_with("null:") {
        return None;
    }
    if let Some(uuid) = info.uuid {
        return Some(uuid.to_string());
    }
    // The name that the device was opened by, without options: a path, or a URI.
    let path = std::fs::canonicalize(&info.name);
    Some(path.map_or_else(|_| info.name.clone(), |path| path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_block::BackendSpec;

    fn identity_of(name: &str, opened_as: &str) -> Option<String> {
        let device = BackendSpec::parse("mem:1MiB").expect("a name").open().expect("a device");
        identity(name, &DeviceInfo { name: opened_as.into(), uuid: None, ..device.info() })
    }

    #[test]
    fn a_device_is_the_same_however_it_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        for name in ["a,b", "a,c"] {
            std::fs::write(path(name), "").expect("written");
        }
        std::os::unix::fs::symlink(path("a,b"), path("link")).expect("made");
        let linked = identity_of("file:link,rate=1Gbit", &path("link"));
        assert_eq!(identity_of("a,,b", &path("a,b")), linked);
        assert_ne!(identity_of("a,,b", &path("a,b")), identity_of("a,,c", &path("a,c")));
        let uri = "nvme+tcp://10.0.0.1:4420/nqn.2026-11.io.longhaul:x?nsid=1";
        assert_eq!(identity_of("nvme+tcp://10.0.0.1/x", uri), identity_of(uri, uri));
        assert_eq!(identity_of("mem:1MiB", "mem:1MiB"), None);
    }
}
