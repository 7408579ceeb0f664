//! The users of a file: loop devices, mounts and processes.

use longhaul_engine::procfs::mounts;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Number of users that are listed at most.
const NAMED: usize = 8;

/// Loop devices on the file at `path`, file systems on it, and processes that have it, or a file
/// below it, open: as far as the caller's rights allow.
pub fn of(path: &Path) -> Vec<String> {
    // A device of the kernel appears as a link.
    let path = &std::fs::read_link(path).unwrap_or_else(|_| path.to_owned());
    let mut users = loops_on(path);
    if std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device()) {
        users.extend(mounted_at(path).iter().map(|at| format!("a file system at {at}")));
    }
    let mine = std::process::id();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if pid != mine && has_open(&entry.path(), path) {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            users.push(format!("{} (process {pid})", name.trim()));
        }
        if users.len() >= NAMED {
            break;
        }
    }
    users
}

fn has_open(process: &Path, path: &Path) -> bool {
    let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|file| file.path());
    let all = files.chain([process.join("cwd"), process.join("root")]);
    all.filter_map(|file| std::fs::read_link(file).ok()).any(|target| target.starts_with(path))
}

/// Loop devices on the file at `path`, and their mount points.
fn loops_on(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let Ok(backing) = std::fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        if Path::new(backing.trim_end_matches('\n')) != path {
            continue;
        }
        let name = format!("/dev/{}", entry.file_name().to_string_lossy());
        let at = mounted_at(Path::new(&name));
        found.push(if at.is_empty() { name } else { format!("{name}, mounted at {}", at.join(", ")) });
    }
    found
}

/// Whether something is mounted at `path`.
pub fn is_mounted(path: &Path) -> bool {
    mounts().iter().any(|mount| mount.at == path)
}

/// Mount points of a block device.
pub fn mounted_at(device: &Path) -> Vec<String> {
    let Ok(meta) = std::fs::metadata(device) else { return Vec::new() };
    let id = meta.rdev();
    let device = (rustix::fs::major(id), rustix::fs::minor(id));
    let mounts = mounts().into_iter().filter(|mount| mount.device == device);
    mounts.map(|mount| mount.at.display().to_string()).collect()
}
