//! What identifies a medium in the registry of a machine.

use longhaul_engine::state_file;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// A block device's directory below `/sys`.
fn sysfs(device: u64) -> PathBuf {
    format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device)).into()
}

/// A regular file of a file system without extended attributes: nothing but its place, with the
/// inode and its time of birth, says that it is the same. `None` if its path cannot be resolved.
pub(super) fn of_file(path: &Path, inode: u64, born: u128) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    Some(format!("file {inode} {born} {}", path.display()))
}

/// The identity that a block device reports. A device without one counts as another one after the
/// next boot. `None` if the kernel cannot distinguish it from others even until then.
pub(super) fn of_block(device: u64) -> Option<String> {
    of_block_in(&sysfs(device))
}

/// What identifies an open file or block device, also after a boot and a move to another machine, and no
/// copy of it; `None` if nothing does.
pub(super) fn lasting(meta: &fs::Metadata) -> Option<String> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    if meta.file_type().is_block_device() {
        return of_block(meta.rdev()).filter(|key| !key.starts_with("boot "));
    }
    let born = meta.created().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    Some(format!("file {} {}", meta.ino(), born.map_or(0, |time| time.as_nanos())))
}

/// As [`of_block`], with the device's directory below `/sys`.
fn of_block_in(at: &Path) -> Option<String> {
    let read = |name: &str| {
        let text = fs::read_to_string(at.join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    if let (Some(_), Some(start)) = (read("partition"), read("start")) {
        // A partition is a part of its disk, from where it begins.
        let disk = of_block_in(&fs::canonicalize(at).ok()?.join(".."))?;
        return Some(format!("{disk} from {start}"));
    }
    // NVMe; SCSI and SATA; virtio; device mapper; md. What a driver makes up for want of an
    // identity (NVMe's from model and serial number) is as good.
    let names = ["wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "md/uuid"];
    if let Some(found) = names.into_iter().find_map(|name| Some(format!("{name} {}", read(name)?))) {
        return Some(format!("block {found}"));
    }
    let Some(backing) = read("loop/backing_file").map(PathBuf::from) else {
        // The kernel counts the disks of a boot, and starts again when another one is inserted.
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        return Some(format!("boot {} disk {}", boot.trim(), read("diskseq")?));
    };
    // A loop device is what lies behind it.
    let offset = read("loop/offset").unwrap_or_default();
    let meta = fs::metadata(&backing).ok()?;
    use std::os::unix::fs::MetadataExt;
    let born = meta.created().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let file = of_file(&backing, meta.ino(), born.map_or(0, |time| time.as_nanos()))?;
    Some(format!("loop {offset} {file}"))
}

/// The name of a registry's file for a key, which may have any characters and length.
pub(super) fn file_name(key: &str) -> String {
    format!("{}.uuid", Uuid::new_v5(&Uuid::NAMESPACE_OID, key.as_bytes()).simple())
}

/// The UUID in a registry's file, if there is one.
pub(super) fn read(entry: &Path) -> io::Result<Option<Uuid>> {
    match fs::read_to_string(entry) {
        Ok(text) => text.trim().parse().map(Some).map_err(|_| {
            io::Error::other(format!("{} is no UUID: remove the file, or repair it", entry.display()))
        }),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Keeps a UUID in a registry's file, durably and as a whole.
pub(super) fn write(entry: &Path, uuid: Uuid) -> io::Result<()> {
    fs::create_dir_all(entry.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    state_file::replace(entry, format!("{uuid}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_device_is_known_by_its_own_identity_and_a_partition_by_its_place() {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = dir.path().join("sda");
        let partition = disk.join("sda1");
        fs::create_dir_all(partition.join("x")).expect("made");
        assert_eq!(of_block_in(&disk), None, "nothing identifies it");
        fs::write(disk.join("diskseq"), "3\n").expect("written");
        let until_boot = of_block_in(&disk).expect("a key");
        assert!(until_boot.starts_with("boot ") && until_boot.ends_with(" disk 3"), "{until_boot}");
        fs::create_dir_all(disk.join("device")).expect("made");
        fs::write(disk.join("device/wwid"), "naa.5000c500a1b2c3d4\n").expect("written");
        assert_eq!(of_block_in(&disk).as_deref(), Some("block device/wwid naa.5000c500a1b2c3d4"));
        fs::write(partition.join("partition"), "1\n").expect("written");
        fs::write(partition.join("start"), "2048\n").expect("written");
        let expected = "block device/wwid naa.5000c500a1b2c3d4 from 2048";
        assert_eq!(of_block_in(&partition).as_deref(), Some(expected));
    }
}
