//! What programs expect of a file system of Linux beyond reading, writing and names.

use crate::Shared;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, SeekFrom, fallocate, renameat_with, seek, statvfs};
use rustix::io::Errno;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

/// A file system, and where it is mounted; `None`, with the reason on standard error, where FUSE is missing.
fn mounted() -> Option<(Shared, PathBuf)> {
    let shared = Shared::with_fuse(4, &["--size", "64MiB", "--layout", "parity"])?;
    shared.mount("here");
    let here = shared.at("here");
    Some((shared, here))
}

#[test]
fn holes_are_made_found_and_take_no_room() {
    let Some((shared, here)) = mounted() else { return };
    let file = File::options().read(true).write(true).create_new(true).open(here.join("sparse"));
    let file = file.expect("made");
    file.write_all_at(&[1; MIB as usize], 0).expect("written");
    file.write_all_at(&[2; MIB as usize], 4 * MIB).expect("written");
    file.sync_all().expect("synced");
    let next = |from| [SeekFrom::Hole(from), SeekFrom::Data(from)].map(|to| seek(&file, to));
    assert_eq!(next(0), [Ok(MIB), Ok(0)]);
    assert_eq!(next(MIB), [Ok(MIB), Ok(4 * MIB)]);
    assert_eq!(next(4 * MIB), [Ok(5 * MIB), Ok(4 * MIB)]);
    assert_eq!(next(5 * MIB), [Err(Errno::NXIO), Err(Errno::NXIO)]);
    let room = || file.metadata().expect("there").blocks() * 512;
    assert_eq!(room(), 2 * MIB);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 4 * MIB, MIB / 2).expect("punched");
    file.sync_all().expect("synced");
    assert_eq!((room(), next(MIB)[1]), (2 * MIB - MIB / 2, Ok(4 * MIB + MIB / 2)));
    let mut found = vec![9; MIB as usize];
    file.read_exact_at(&mut found, 4 * MIB).expect("read");
    assert!(
        found[..MIB as usize / 2].iter().all(|byte| *byte == 0)
            && found[MIB as usize / 2..] == [2; MIB as usize / 2]
    );
    drop(file);
    shared.umount("here");
    shared.check();
}

#[test]
fn names_are_exchanged_and_not_replaced() {
    let Some((shared, here)) = mounted() else { return };
    let (one, two) = (here.join("one"), here.join("two"));
    fs::write(&one, "1").expect("written");
    fs::write(&two, "2").expect("written");
    assert_eq!(renameat_with(CWD, &one, CWD, &two, RenameFlags::NOREPLACE), Err(Errno::EXIST));
    renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).expect("exchanged");
    assert_eq!([&one, &two].map(|path| fs::read_to_string(path).expect("read")), ["2", "1"]);
    let capacity = statvfs(&here).expect("asked");
    assert!(capacity.f_blocks * capacity.f_frsize >= 64 * MIB && capacity.f_bavail > 0);
    assert_eq!(capacity.f_namemax, 255);
    shared.umount("here");
    shared.check();
}

/// Of changes through this mount; what other hosts change is seen when it is looked at.
#[test]
fn a_watch_hears_of_own_changes() {
    let Some((shared, here)) = mounted() else { return };
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).expect("a watch");
    let events = WatchFlags::CREATE | WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
    inotify::add_watch(&watch, &here, events).expect("watched");
    fs::write(here.join("new"), "1").expect("written");
    fs::rename(here.join("new"), here.join("renamed")).expect("renamed");
    fs::remove_file(here.join("renamed")).expect("removed");
    let mut space = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&watch, &mut space);
    let mut heard = Vec::new();
    while heard.len() < 4 {
        let event = reader.next().expect("an event");
        let name = event.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        heard.push((event.events(), name));
    }
    let named = |flags, name: &str| (flags, name.to_owned());
    assert_eq!(
        heard,
        [
            named(ReadFlags::CREATE, "new"),
            named(ReadFlags::CLOSE_WRITE, "new"),
            named(ReadFlags::MOVED_TO, "renamed"),
            named(ReadFlags::DELETE, "renamed"),
        ]
    );
    drop(watch);
    shared.umount("here");
}
