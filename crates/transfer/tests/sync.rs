//! Repeated copies: changed files are sent, and unchanged ones are kept.

mod common;

use common::*;
use longhaul_transfer::wire::{Compare, Counts, Options};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Sets the time of change of a file, in seconds since 1970 and nanoseconds.
fn set_time(path: &Path, secs: i64, nanos: u32) {
    let whole = Duration::from_secs(secs.unsigned_abs());
    let second = match secs < 0 {
        true => SystemTime::UNIX_EPOCH - whole,
        false => SystemTime::UNIX_EPOCH + whole,
    };
    let file = fs::File::open(path).expect("opened");
    file.set_modified(second + Duration::from_nanos(nanos.into())).expect("set");
}

fn time(path: &Path) -> (i64, i64) {
    let meta = fs::symlink_metadata(path).expect("there");
    (meta.mtime(), meta.mtime_nsec())
}

/// Synchronizes one directory with another; returns counts and failures.
fn sync_here(from: &Path, to: &Path, dry_run: bool) -> (Counts, Vec<(String, &'static str)>) {
    let options = Options { compare: Compare::Mtime, dry_run, ..Options::default() };
    let (result, troubles) = run_watched(&sync(local(from), local(to), options));
    (result.expect("synchronised").counts, troubles)
}

/// Two empty directories, source and destination, and what removes them.
fn ends() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    fs::create_dir(&source).expect("made");
    fs::create_dir(&copy).expect("made");
    (dir, source, copy)
}

/// A small file system with 128-byte inodes, which keep whole seconds from 1901 to 2038.
struct WholeSeconds(PathBuf);

impl WholeSeconds {
    fn mount(dir: &Path) -> Option<WholeSeconds> {
        let (image, at) = (dir.join("image"), dir.join("mounted"));
        fs::create_dir(&at).expect("made");
        fs::File::create(&image).and_then(|file| file.set_len(8 << 20)).expect("sized");
        let ran = |program: &str, args: &[&str], more: &[&Path]| {
            let ran = Command::new(program).args(args).args(more).output();
            ran.is_ok_and(|ran| ran.status.success())
        };
        let made = ran("mkfs.ext4", &["-q", "-I", "128"], &[&image]);
        if !made || !ran("mount", &["-o", "loop"], &[&image, &at]) {
            longhaul_skip::skip!("no file system that keeps whole seconds can be made and mounted");
            return None;
        }
        Some(WholeSeconds(at))
    }
}

impl Drop for WholeSeconds {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn times_are_compared_at_the_granularity_of_the_destination() {
    const EVEN: i64 = 1_000_000_000;
    // What a destination of whole seconds, of FAT, of exFAT and of NTFS would have.
    let (_dir, source, copy) = ends();
    let times = [(EVEN + 1, 0), (EVEN, 500_000_000), (EVEN + 1, 999_999_999), (EVEN, 123_456_789)];
    for (i, (secs, nanos)) in times.into_iter().enumerate() {
        for (cut, (cut_secs, cut_nanos)) in
            [(EVEN, 0), (secs, 0), (secs, nanos - nanos % 10_000_000), (secs, nanos - nanos % 100)]
                .into_iter()
                .enumerate()
        {
            let name = format!("f{i}-{cut}");
            fs::write(source.join(&name), "new").expect("written");
            fs::write(copy.join(&name), "old").expect("written");
            set_time(&source.join(&name), secs, nanos);
            set_time(&copy.join(&name), cut_secs, cut_nanos);
        }
    }
    if time(&source.join("f3-0")) != (EVEN, 123_456_789) {
        longhaul_skip::skip!("the file system does not keep nanoseconds");
        return;
    }
    let differ = fs::read_dir(&source)
        .expect("read")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| time(&source.join(name)) != time(&copy.join(name)))
        .count() as u64;
    assert!(differ >= 10, "{differ}");
    assert_eq!(sync_here(&source, &copy, true).0.wanted, differ, "with --dry-run");
    assert_eq!(sync_here(&source, &copy, false).0.files, differ);
    for name in fs::read_dir(&source).expect("read").map(|entry| entry.expect("an entry").file_name()) {
        assert_eq!(time(&copy.join(&name)), time(&source.join(&name)), "{name:?}");
    }
    assert_eq!(sync_here(&source, &copy, false).0.files, 0);
}

#[test]
fn times_that_the_destination_cannot_keep_are_reported_and_sent_once() {
    let (dir, source, _) = ends();
    let Some(mounted) = WholeSeconds::mount(dir.path()) else { return };
    let copy = mounted.0.join("copy");
    for name in ["d", "far"] {
        fs::create_dir(source.join(name)).expect("made");
    }
    for name in ["odd", "far/f", "late"] {
        fs::write(source.join(name), name).expect("written");
    }
    set_time(&source.join("odd"), 1_000_000_001, 987_654_321);
    set_time(&source.join("far/f"), 1 << 32, 5);
    set_time(&source.join("late"), 1 << 33, 0);
    set_time(&source.join("d"), 1_000_000_003, 1);
    set_time(&source.join("far"), 1 << 32, 0);
    if time(&source.join("late")).0 != 1 << 33 {
        longhaul_skip::skip!("this file system does not keep such times either");
        return;
    }
    let (counts, troubles) = sync_here(&source, &copy, false);
    assert_eq!(counts.files, 3);
    let names: Vec<_> = troubles.iter().map(|(name, op)| (name.as_str(), *op)).collect();
    assert_eq!(names, [("far", "metadata"), ("far/f", "metadata"), ("late", "metadata")]);
    assert_eq!(time(&copy.join("odd")), (1_000_000_001, 0));
    assert_eq!(time(&copy.join("late")).0, (1 << 31) - 1);
    // They are as they can be.
    for dry_run in [true, false] {
        let (counts, troubles) = sync_here(&source, &copy, dry_run);
        let done = (counts.files, counts.others, counts.metadata, counts.wanted, counts.same);
        assert_eq!((done, troubles), ((0, 0, 0, 0, 3), vec![]), "--dry-run: {dry_run}");
    }
    // A difference above the granularity of the file system is found.
    fs::write(source.join("odd"), "ODD").expect("written");
    set_time(&source.join("odd"), 1_000_000_002, 0);
    assert_eq!(sync_here(&source, &copy, false).0.files, 1);
    assert_eq!(fs::read(copy.join("odd")).expect("read"), b"ODD");
}

#[test]
fn hard_links_that_the_source_separated_are_separated() {
    let (_dir, source, copy) = ends();
    for name in ["a", "e"] {
        fs::write(source.join(name), "1").expect("written");
    }
    for (of, name) in [("a", "b"), ("a", "c"), ("a", "d"), ("e", "f")] {
        fs::hard_link(source.join(of), source.join(name)).expect("linked");
    }
    let inode = |dir: &Path, name: &str| fs::metadata(dir.join(name)).expect("there").ino();
    // Which names are one file, each by the first of them.
    let groups = |dir: &Path| {
        let names = ["a", "b", "c", "d", "e", "f"];
        names.map(|name| *names.iter().find(|it| inode(dir, it) == inode(dir, name)).expect("itself"))
    };
    sync_here(&source, &copy, false);
    assert_eq!(groups(&copy), ["a", "a", "a", "a", "e", "e"]);
    // The same content and time, but files of their own: c and d, and b alone.
    let separate = |name: &str| {
        let (path, new) = (source.join(name), source.join("new"));
        let at = fs::metadata(&path).and_then(|meta| meta.modified()).expect("there");
        fs::copy(&path, &new).expect("copied");
        fs::File::open(&new).and_then(|file| file.set_modified(at)).expect("set");
        fs::rename(&new, &path).expect("renamed");
    };
    separate("b");
    separate("c");
    fs::remove_file(source.join("d")).expect("removed");
    fs::hard_link(source.join("c"), source.join("d")).expect("linked");
    assert_eq!(groups(&source), ["a", "b", "c", "c", "e", "e"]);
    sync_here(&source, &copy, false);
    assert_eq!(groups(&copy), groups(&source));
    let (counts, _) = sync_here(&source, &copy, false);
    assert_eq!((counts.files, counts.others, counts.wanted), (0, 0, 0), "nothing is left to do");
    // What changes now changes one of them.
    fs::write(source.join("b"), "2").expect("written");
    sync_here(&source, &copy, false);
    assert_eq!(
        (fs::read(copy.join("a")).expect("read"), fs::read(copy.join("b")).expect("read")),
        (b"1".into(), b"2".into())
    );
}

/// A file of so many bytes with every other piece of so many bytes in it.
fn pieces(path: &Path, len: u64, piece: usize) {
    let file = fs::File::create(path).expect("made");
    file.set_len(len).expect("sized");
    for at in (0..len).step_by(2 * piece) {
        file.write_all_at(&noise(at, piece), at).expect("written");
    }
    file.sync_all().expect("synchronised");
}

#[test]
fn holes_are_kept_down_to_a_block_of_the_file_system() {
    let (dir, source, copy) = ends();
    pieces(&source.join("large"), 6 << 20, 64 << 10);
    pieces(&source.join("fine"), 3 << 20, 4096);
    pieces(&source.join("small"), 200 << 10, 20 << 10);
    fs::File::create(source.join("empty")).and_then(|file| file.set_len(100 << 10)).expect("sized");
    // Zeroes that take space are no holes.
    fs::write(source.join("zeroes"), vec![0; 2 << 20]).expect("written");
    fs::write(source.join("few"), vec![0; 64 << 10]).expect("written");
    let space = |path: &Path| {
        fs::File::open(path).and_then(|file| file.sync_all()).expect("synchronised");
        512 * fs::metadata(path).expect("there").blocks()
    };
    if space(&source.join("fine")) > 2 << 20 {
        longhaul_skip::skip!("the file system has no holes of 4 KiB");
        return;
    }
    let agent = agent(dir.path());
    let ways = [(local(&source), local(&copy.join("here"))), (local(&source), at(&agent, "copy/there"))];
    for (from, to) in ways {
        run(&spec(from, to)).expect("copied");
    }
    for to in ["here", "there"] {
        assert_same(&source, &copy.join(to));
        for name in ["large", "fine", "small", "empty", "zeroes", "few"] {
            let (ours, there) = (space(&source.join(name)), space(&copy.join(to).join(name)));
            // What the file system needs to know where they are differs a little.
            let about = ours.abs_diff(there) <= 32 << 10;
            assert!(about, "{name}: {ours} bytes on the disk at the source, {there} {to}");
        }
    }
}

#[test]
fn a_slash_behind_a_link_means_what_it_leads_to() {
    let (dir, source, copy) = ends();
    fs::create_dir(source.join("real")).expect("made");
    fs::create_dir(source.join("real/d")).expect("made");
    fs::write(source.join("real/f"), "1").expect("written");
    fs::write(source.join("real/d/g"), noise(1, 300 << 10)).expect("written");
    symlink("real", source.join("link")).expect("linked");
    symlink("real/f", source.join("file")).expect("linked");
    let agent = agent(dir.path());
    let slash = |dir: &Path, name: &str| endpoint(&format!("{}/{name}/", dir.display()));
    for (to, from) in [("here", slash(&source, "link")), ("there", at(&agent, "source/link/"))] {
        let counts = run(&spec(from.clone(), local(&copy.join(to)))).expect("copied").counts;
        assert_eq!(counts.files, 2);
        assert_same(&source.join("real"), &copy.join(to));
        // Into an existing directory, under its own name.
        run(&spec(from, local(&copy.join(to)))).expect("copied");
        assert!(!copy.join(to).join("link").is_symlink());
        assert_same(&source.join("real"), &copy.join(to).join("link"));
    }
    // Without the slash it is the link.
    run(&spec(local(&source.join("link")), local(&copy.join("itself")))).expect("copied");
    assert!(copy.join("itself").is_symlink());
    assert!(run(&spec(slash(&source, "file"), local(&copy.join("none")))).is_err(), "it leads to a file");
    // And not out of what an agent serves.
    symlink("/etc", source.join("out")).expect("linked");
    assert!(run(&spec(at(&agent, "source/out/"), local(&copy.join("none")))).is_err());
}
