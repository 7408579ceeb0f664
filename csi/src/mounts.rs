//! What is mounted on this node, as the kernel says, and changes of that.

use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Numbers of its device, `MAJOR:MINOR`.
    pub(crate) device: String,
    /// What of its file system is mounted.
    pub(crate) root: PathBuf,
    /// Where.
    pub(crate) at: PathBuf,
    /// It lets nothing be written.
    pub(crate) read_only: bool,
    /// Kind of its file system.
    pub(crate) fs: String,
    /// What the file system is on, such as a block device.
    pub(crate) source: PathBuf,
}

/// All mounts, the later ones of a directory last.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn all() -> Result<Vec<Mount>> {
    Ok(fs::read_to_string("/proc/self/mountinfo")?.lines().filter_map(parse).collect())
}

/// Source: proc_pid_mountinfo(5).
fn parse(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ').skip(2);
    let (device, root, at, options) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let read_only = options.split(',').any(|option| option == "ro");
    // Behind any number of optional fields.
    let mut fields = fields.skip_while(|field| *field != "-").skip(1);
    let (fs, source) = (fields.next()?.to_owned(), unescape(fields.next()?));
    Some(Mount { device: device.to_owned(), root: unescape(root), at: unescape(at), read_only, fs, source })
}

/// A path in which the kernel has written some bytes as `\ooo`.
fn unescape(text: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let octal =
            after.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// The mount that is seen at a path; `None` if the path is no mount point.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn at(path: &Path) -> Result<Option<Mount>> {
    Ok(all()?.into_iter().rfind(|mount| mount.at == path))
}

/// Makes a directory or a file appear at a path, which exists.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn bind(from: &Path, to: &Path) -> Result<()> {
    Ok(mount_bind(from, to)?)
}

/// Lets nothing be written through a mount that `bind` has made.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn make_read_only(at: &Path) -> Result<()> {
    Ok(mount_remount(at, MountFlags::BIND | MountFlags::RDONLY, "")?)
}

/// Unmounts all that is mounted at a path.
///
/// # Errors
/// It is in use.
pub(crate) fn unmount_all(path: &Path) -> Result<()> {
    while at(path)?.is_some() {
        unmount(path, UnmountFlags::NOFOLLOW)?;
    }
    Ok(())
}

/// Removes a mount point that is empty; `Ok` if there is none.
///
/// # Errors
/// It is not empty.
pub(crate) fn remove_point(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir(path),
        // A mount point of a block device is an empty file.
        Ok(meta) if meta.is_file() && meta.len() == 0 => fs::remove_file(path),
        Ok(_) => Err(Error::new(ErrorKind::DirectoryNotEmpty, "it is no empty directory and no empty file")),
        Err(e) => Err(e),
    };
    removed.or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })
}

/// Makes a file to mount a block device at, unless something is there.
///
/// # Errors
/// It cannot be made.
pub(crate) fn make_file(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    File::options().create(true).append(true).open(path).map(drop)
}

/// The number of a block device; `None` for anything else.
///
/// # Errors
/// It cannot be looked at.
pub(crate) fn block_device(path: &Path) -> Result<Option<u64>> {
    let meta = fs::metadata(path)?;
    Ok(meta.file_type().is_block_device().then(|| meta.rdev()))
}

/// Size in bytes of a block device, by its number.
///
/// # Errors
/// The kernel does not say.
pub(crate) fn device_size(number: u64) -> Result<u64> {
    /// What sysfs counts in, whatever the device's blocks are.
    const SECTOR: u64 = 512;
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let sectors = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size"))?;
    let sectors: u64 = sectors.trim().parse().map_err(|e| Error::new(ErrorKind::InvalidData, e))?;
    Ok(sectors * SECTOR)
}

/// Runs a program of the system, and returns what it prints.
///
/// # Errors
/// It cannot be run, or fails: with what it says.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String> {
    let done = Command::new(program).args(args).output();
    let done = done.map_err(|e| Error::new(e.kind(), format!("cannot run {program}: {e}")))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned());
    }
    Err(Error::other(format!(
        "{program} {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&done.stderr).trim()
    )))
}

/// The loop devices of a file.
///
/// # Errors
/// `losetup` fails.
pub(crate) fn loops_of(file: &Path) -> Result<Vec<PathBuf>> {
    let listed =
        run("losetup", &["--noheadings", "--output", "NAME", "--associated", &file.to_string_lossy()])?;
    Ok(listed.lines().map(|line| PathBuf::from(line.trim())).collect())
}

/// A loop device of a file: the one that it has, or a new one.
///
/// # Errors
/// `losetup` fails.
pub(crate) fn loop_of(file: &Path, read_only: bool) -> Result<PathBuf> {
    if let Some(found) = loops_of(file)?.into_iter().next() {
        return Ok(found);
    }
    let path = file.to_string_lossy();
    let mut args = vec!["--find", "--show", "--direct-io=on"];
    args.extend(read_only.then_some("--read-only"));
    args.push(&path);
    run("losetup", &args).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line =
            "36 35 98:0 /mnt1 /mnt\\0402\\134x rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let mount = parse(line).expect("a mount");
        let expected = Mount {
            device: "98:0".into(),
            root: "/mnt1".into(),
            at: "/mnt 2\\x".into(),
            read_only: false,
            fs: "ext3".into(),
            source: "/dev/root".into(),
        };
        assert_eq!(mount, expected);
        assert!(parse("36 35 98:0 / /a ro,nosuid - xfs /dev/loop0 rw").is_some_and(|mount| mount.read_only));
        assert_eq!(parse("36 35 98:0"), None);
        assert_eq!(unescape("a\\9"), PathBuf::from("a\\9"));
        assert!(at(Path::new("/proc")).expect("readable").is_some_and(|mount| mount.root == Path::new("/")));
        assert_eq!(at(Path::new("/proc/self")).expect("readable"), None);
    }

    #[test]
    fn only_empty_mount_points_are_removed() {
        let directory = std::env::temp_dir().join(format!("longhaul-csi-{}", std::process::id()));
        let file = directory.join("file");
        make_file(&file).expect("made");
        assert!(remove_point(&directory).is_err());
        fs::write(&file, "content").expect("written");
        make_file(&file).expect("it is there");
        assert!(remove_point(&file).is_err());
        fs::write(&file, "").expect("written");
        for _ in 0..2 {
            remove_point(&file).expect("removed");
            remove_point(&directory).expect("removed");
        }
    }
}
