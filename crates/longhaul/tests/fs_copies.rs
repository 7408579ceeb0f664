//! Copies to, from and between file systems in pools, on disks in memory: all metadata, interruptions, full file
//! systems, lost disks and catalogs, and other hosts at the same time.

#[path = "../../poolfs/tests/common/dying.rs"]
#[allow(dead_code, unreachable_pub, reason = "a part of it is used")]
mod dying;

#[path = "../../poolfs/tests/common/counting.rs"]
#[allow(dead_code, unreachable_pub, reason = "a part of it is used")]
mod counting;

mod common;

use common::site::{ADMIN, Site};
use common::{finish, signal, text};
use counting::Counting;
use dying::{Dying, End};
use longhaul_catalog::{Catalog, FileCatalog};
use longhaul_poolfs::testing::TestFs;
use longhaul_poolfs::{Client, FsOptions, PoolFs};
use longhaul_transfer::wire::{Compare, Durability, Options, Placement};
use longhaul_transfer::{CopyError, CopySpec, Endpoint, Monitor, MountedFs, Settings, Summary, copy};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A file system with parity on three disks, and places of this machine.
struct Bed {
    dir: tempfile::TempDir,
    fs: TestFs,
}

fn memory() -> Arc<dyn Catalog> {
    Arc::new(FileCatalog::in_memory().expect("memory"))
}

impl Bed {
    fn new(segments: u32) -> Bed {
        let dir = tempfile::tempdir().expect("a directory");
        Bed { dir, fs: TestFs::new(memory(), 3, (2, 1), segments).expect("made") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn open(&self, options: &FsOptions) -> Arc<PoolFs> {
        Arc::new(self.fs.open_by(Arc::clone(&self.fs.catalog), options).expect("opened"))
    }

    /// A host that takes leases, as `longhaul cp` does.
    fn leased(&self) -> Arc<PoolFs> {
        self.open(&TestFs::leased())
    }

    fn mounted(&self, name: &str, files: &Arc<PoolFs>) -> MountedFs {
        let failed = Arc::downgrade(files);
        let failed = move || failed.upgrade()?.trouble().filter(|why| why.starts_with("failed: "));
        MountedFs::new(name, Arc::clone(files) as _, self.path("locks"), Box::new(failed))
    }
}

fn end(text: &str) -> Endpoint {
    Endpoint::parse(OsStr::new(text)).expect("an endpoint")
}

fn at(path: &Path) -> Endpoint {
    Endpoint::Local(path.as_os_str().as_bytes().to_vec())
}

fn spec(from: Endpoint, to: Endpoint) -> CopySpec {
    CopySpec {
        sources: vec![from],
        destination: to,
        place: Placement::Contents,
        recursive: true,
        filters: Vec::new(),
        files: Vec::new(),
        rate: 0,
        manifest: Vec::new(),
        options: Options { xattrs: true, owner: rustix::process::geteuid().is_root(), ..Options::default() },
    }
}

fn run(spec: &CopySpec, file_systems: Vec<MountedFs>) -> (Result<Summary, CopyError>, Vec<String>) {
    let monitor = Arc::new(Monitor::new());
    run_watched(spec, file_systems, &monitor)
}

fn run_watched(
    spec: &CopySpec,
    file_systems: Vec<MountedFs>,
    monitor: &Arc<Monitor>,
) -> (Result<Summary, CopyError>, Vec<String>) {
    let result = copy(spec, &Settings { file_systems, ..Settings::default() }, monitor);
    let troubles = monitor.take_troubles().into_iter();
    (result, troubles.map(|it| format!("{} {}: {}", it.path, it.op.name(), it.message)).collect())
}

fn done(spec: &CopySpec, file_systems: Vec<MountedFs>) -> Summary {
    let (result, troubles) = run(spec, file_systems);
    assert_eq!(troubles, Vec::<String>::new());
    result.expect("copied")
}

/// What is compared of an object.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    /// Content or target, and the first name of a file with several.
    content: Vec<u8>,
    first: Option<PathBuf>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    let names = names[..len].split(|b| *b == 0).filter(|name| name.starts_with(b"user."));
    let value = |name: &[u8]| {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value).expect("a value");
        value[..len].to_vec()
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

/// All of a tree.
fn look(dir: &Path) -> BTreeMap<PathBuf, Seen> {
    let (mut seen, mut open, mut inodes) = (BTreeMap::new(), vec![dir.to_owned()], HashMap::new());
    while let Some(path) = open.pop() {
        let meta = fs::symlink_metadata(&path).expect("there");
        let name = path.strip_prefix(dir).expect("below").to_owned();
        let content = if meta.is_symlink() {
            fs::read_link(&path).expect("a target").as_os_str().as_bytes().to_vec()
        } else if meta.is_dir() {
            open.extend(fs::read_dir(&path).expect("read").map(|entry| entry.expect("an entry").path()));
            Vec::new()
        } else {
            fs::read(&path).expect("read")
        };
        if meta.is_file() && meta.nlink() > 1 {
            inodes.entry(meta.ino()).or_insert_with(Vec::new).push(name.clone());
        }
        let (mode, owner) = (if meta.is_symlink() { 0 } else { meta.mode() }, (meta.uid(), meta.gid()));
        let modified = (meta.mtime(), meta.mtime_nsec());
        let xattrs = xattrs(&path);
        seen.insert(name, Seen { mode, owner, modified, content, first: None, xattrs });
    }
    for names in inodes.values_mut() {
        names.sort();
        for name in names.iter() {
            seen.get_mut(name).expect("seen").first = Some(names[0].clone());
        }
    }
    seen
}

fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (look(one), look(other));
    let differs: Vec<_> = one
        .keys()
        .chain(other.keys())
        .filter(|name| one.get(*name) != other.get(*name))
        .map(|name| (name, one.get(name).map(shown), other.get(name).map(shown)))
        .collect();
    assert!(differs.is_empty(), "{differs:#?} differ");
}

fn shown(seen: &Seen) -> String {
    let Seen { mode, owner, modified, content, first, xattrs } = seen;
    format!("{mode:o} {owner:?} {modified:?} {} bytes {first:?} {xattrs:?}", content.len())
}

fn noise(rng: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

fn set_time(path: &Path, secs: i64, nanos: i64) {
    let time = Timespec { tv_sec: secs, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("set");
}

/// A tree of everything that is copied, different for each seed.
fn random_tree(dir: &Path, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let is_root = rustix::process::geteuid().is_root();
    fs::create_dir_all(dir).expect("made");
    let (mut directories, mut files) = (vec![dir.to_owned()], Vec::new());
    let name = |rng: &mut fastrand::Rng, number: usize| match rng.u8(0..8) {
        0 => [&b"\xff\xfe new\nline "[..], number.to_string().as_bytes()].concat(),
        1 => [number.to_string().as_bytes(), &[b'n'; 240]].concat(),
        _ => format!("object {number}").into_bytes(),
    };
    for number in 0..60 {
        let parent = directories[rng.usize(0..directories.len())].clone();
        let path = parent.join(OsStr::from_bytes(&name(&mut rng, number)));
        match rng.u8(0..12) {
            0 | 1 => {
                fs::create_dir(&path).expect("made");
                directories.push(path);
                continue;
            }
            2 => {
                let target =
                    noise(&mut rng, 20).iter().map(|b| b | 1).filter(|b| *b != b'/').collect::<Vec<u8>>();
                symlink(OsStr::from_bytes(&target), &path).expect("linked");
                if is_root {
                    rustix::fs::chownat(
                        CWD,
                        &path,
                        rustix::fs::Uid::from_raw(rng.u32(0..9)).into(),
                        None,
                        AtFlags::SYMLINK_NOFOLLOW,
                    )
                    .expect("set");
                }
                set_time(&path, rng.i64(0..1 << 31), rng.i64(0..1_000_000_000));
                continue;
            }
            3 if !files.is_empty() => {
                let first: &PathBuf = &files[rng.usize(0..files.len())];
                fs::hard_link(first, &path).expect("linked");
                continue;
            }
            4 => {
                let file = File::create(&path).expect("made");
                file.set_len(rng.u64(1..6 << 20)).expect("sized");
                for _ in 0..rng.u8(0..3) {
                    let (len, offset) = (rng.usize(1..20_000), rng.u64(0..5 << 20));
                    file.write_all_at(&noise(&mut rng, len), offset).expect("written");
                }
            }
            5 => {
                let len = rng.usize(1 << 20..3 << 20);
                fs::write(&path, noise(&mut rng, len)).expect("written");
            }
            _ => {
                let most = 1 << rng.u8(1..19);
                let len = rng.usize(0..most);
                fs::write(&path, noise(&mut rng, len)).expect("written");
            }
        }
        files.push(path);
    }
    for path in files.iter().chain(&directories) {
        if is_root {
            std::os::unix::fs::chown(path, Some(rng.u32(0..9)), Some(rng.u32(0..9))).expect("set");
        }
        for number in 0..rng.u8(0..3) {
            // Where this file system has such attributes.
            let len = rng.usize(0..500);
            let name = format!("user.attribute{number}");
            let _ = rustix::fs::setxattr(path, &*name, &noise(&mut rng, len), XattrFlags::empty());
        }
        let bits = if is_root { rng.u32(0..0o10) << 9 } else { 0 };
        let mode = bits | 0o400 | rng.u32(0..0o400) | if path.is_dir() { 0o700 } else { 0 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    }
    for path in files.iter().chain(directories.iter().rev()) {
        set_time(path, rng.i64(0..1 << 31), rng.i64(0..1_000_000_000));
    }
}

/// The number of bytes that a tree's files occupy.
fn occupied(dir: &Path) -> u64 {
    let sum = |names: fs::ReadDir| names.map(|entry| occupied(&entry.expect("an entry").path())).sum::<u64>();
    match fs::symlink_metadata(dir).expect("there") {
        meta if meta.is_dir() => sum(fs::read_dir(dir).expect("read")),
        meta => 512 * meta.blocks(),
    }
}

#[test]
fn random_trees_come_back_through_two_file_systems_as_they_were() {
    let (one, other) = (Bed::new(512), Bed::new(512));
    for seed in 0..6 {
        let (from, back) = (one.path(&format!("from{seed}")), one.path(&format!("back{seed}")));
        random_tree(&from, seed);
        let (files, others) = (one.leased(), other.leased());
        let both = || vec![one.mounted("p/one", &files), other.mounted("p/other", &others)];
        let (first, second) = (format!("fs:p/one/a/t{seed}"), format!("fs:p/other/t{seed}"));
        done(&spec(at(&from), end(&first)), both());
        done(&spec(end(&first), end(&second)), both());
        done(&spec(end(&second), at(&back)), both());
        assert_same(&from, &back);
        let (kept, had) = (occupied(&back), occupied(&from));
        assert!(
            kept <= had + (1 << 20),
            "seed {seed}: {kept} bytes of files with holes, and {had} at the source"
        );
        // Nothing differs by any measure, so nothing is sent, changed or removed.
        for compare in [Compare::Mtime, Compare::Checksum] {
            for (from, to) in
                [(at(&from), end(&first)), (end(&first), end(&second)), (end(&second), at(&from))]
            {
                let options = Options { compare, delete: true, ..spec(from.clone(), to.clone()).options };
                let counts = done(&CopySpec { options, ..spec(from, to) }, both()).counts;
                let changes = counts.files + counts.others + counts.wanted + counts.deleted + counts.metadata;
                assert_eq!(changes, 0, "seed {seed}, {compare:?}: {counts:?}");
            }
        }
    }
    for bed in [one, other] {
        assert_eq!(bed.fs.check().expect("checked").problems, Vec::<String>::new());
    }
}

#[test]
fn what_differs_is_sent_and_what_is_gone_is_removed() {
    let bed = Bed::new(256);
    let (from, back) = (bed.path("from"), bed.path("back"));
    random_tree(&from, 77);
    let files = bed.leased();
    let mounted = || vec![bed.mounted("p/f", &files)];
    let to = || end("fs:p/f/t");
    done(&spec(at(&from), to()), mounted());
    // Content, a time, a mode, names that go and come, a directory in the place of a file.
    let mut names: Vec<PathBuf> =
        fs::read_dir(&from).expect("read").map(|it| it.expect("an entry").path()).collect();
    names.sort();
    let plain: Vec<&PathBuf> = names.iter().filter(|it| it.is_file() && !it.is_symlink()).collect();
    fs::write(plain[0], b"other content").expect("written");
    set_time(plain[1], 5, 6);
    fs::set_permissions(plain[2], fs::Permissions::from_mode(0o604)).expect("set");
    fs::remove_file(plain[3]).expect("removed");
    fs::remove_file(plain[4]).expect("removed");
    fs::create_dir(plain[4]).expect("made");
    fs::write(plain[4].join("below"), b"below").expect("written");
    fs::write(from.join("new"), b"new").expect("written");
    let options =
        |dry_run| Options { compare: Compare::Mtime, delete: true, dry_run, ..spec(to(), to()).options };
    let dry = done(&CopySpec { options: options(true), ..spec(at(&from), to()) }, mounted());
    assert!(dry.counts.wanted > 0 && dry.counts.deleted > 0 && dry.counts.files == 0, "{dry:?}");
    let synced = done(&CopySpec { options: options(false), ..spec(at(&from), to()) }, mounted());
    assert_eq!((synced.counts.wanted, synced.counts.deleted), (dry.counts.wanted, dry.counts.deleted));
    done(&spec(to(), at(&back)), mounted());
    assert_same(&from, &back);
    // What was verified, and each file for itself.
    let options = Options { durability: Durability::File, verify: true, ..options(false) };
    done(&CopySpec { options, ..spec(at(&from), end("fs:p/f/verified")) }, mounted());
    done(&spec(end("fs:p/f/verified"), at(&bed.path("verified"))), mounted());
    assert_same(&from, &bed.path("verified"));
}

#[test]
fn names_are_placed_as_by_cp_and_refused_as_by_cp() {
    let bed = Bed::new(64);
    let files = bed.leased();
    let mounted = || vec![bed.mounted("p/f", &files)];
    fs::write(bed.path("a"), b"content").expect("written");
    let cp = |from: Endpoint, to: &str| CopySpec { place: Placement::Guess, ..spec(from, end(to)) };
    let client = Client::new(Arc::clone(&files) as _);
    for (to, at) in [
        ("fs:p/f", "a"),
        ("fs:p/f/b", "b"),
        ("fs:p/f/d/", "d/a"),
        ("fs:p/f/d", "d/a"),
        ("fs:p/f/d/zero:1k", "d/zero:1k"),
    ] {
        done(&cp(self::at(&bed.path("a")), to), mounted());
        assert_eq!(client.read(at.as_bytes()).expect(to), b"content");
    }
    let refused = |spec: &CopySpec| run(spec, mounted()).0.expect_err("refused").to_string();
    let nothing = cp(end("fs:p/f/nothing/here"), "fs:p/f/x");
    assert_eq!(refused(&nothing), "fs:p/f/nothing/here: No such file or directory");
    assert_eq!(
        refused(&cp(self::at(&bed.path("a")), "fs:p/f/missing/x")),
        "fs:p/f/missing: No such file or directory"
    );
    assert!(refused(&cp(self::at(&bed.path("a")), "fs:p/f/d/../x")).contains(".."), "no way up");
    assert!(refused(&cp(self::at(&bed.path("a")), "fs:p/other/x")).contains("fs:p/other is not open"));
    // A symbolic link on the way is not followed.
    symlink("d", bed.path("link")).expect("linked");
    done(&cp(self::at(&bed.path("link")), "fs:p/f/link"), mounted());
    assert!(
        refused(&cp(self::at(&bed.path("a")), "fs:p/f/link/x")).contains("a symbolic link is in the way")
    );
    // A tree is not copied into itself.
    let (result, troubles) = run(&cp(end("fs:p/f/d"), "fs:p/f/d/into"), mounted());
    assert!(troubles.iter().any(|it| it.contains("not copied into itself")), "{result:?} {troubles:?}");
}

/// Waits until an arc has one owner, which threads of an ended copy give up.
fn alone(mut files: Arc<PoolFs>) -> PoolFs {
    let began = std::time::Instant::now();
    loop {
        match Arc::try_unwrap(files) {
            Ok(files) => return files,
            Err(shared) => files = shared,
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the threads of the copy end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Cancels a copy once it has written so many bytes, or after a while.
fn cancel_at(monitor: &Arc<Monitor>, bytes: u64) -> std::thread::JoinHandle<()> {
    let monitor = Arc::clone(monitor);
    std::thread::spawn(move || {
        let began = std::time::Instant::now();
        while monitor.now().counts.bytes < bytes && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        monitor.cancel();
    })
}

fn large_and_small(dir: &Path, large: usize) -> u64 {
    let mut rng = fastrand::Rng::with_seed(5);
    fs::create_dir_all(dir.join("small")).expect("made");
    let mut total = 0;
    for number in 0..300 {
        let len = rng.usize(0..9000);
        fs::write(dir.join(format!("small/f{number}")), noise(&mut rng, len)).expect("written");
        total += len as u64;
    }
    for number in 0..large {
        fs::write(dir.join(format!("large{number}")), noise(&mut rng, 12 << 20)).expect("written");
        total += 12 << 20;
    }
    total
}

#[test]
fn a_host_that_is_lost_in_the_middle_resumes() {
    let bed = Bed::new(2048);
    let from = bed.path("from");
    let total = large_and_small(&from, 6);
    // Others need not wait for longer than that for what the lost host had. A shorter lease may run out by itself: the
    // catalog is on a disk, which may take a second for a flush.
    let options = FsOptions { ttl: Duration::from_secs(3), ..TestFs::leased() };
    let copied = CopySpec { rate: 20 << 20, ..spec(at(&from), end("fs:p/f/t")) };
    for bytes in [30 << 20, 12 << 20] {
        let files = bed.open(&options);
        let monitor = Arc::new(Monitor::new());
        let cancels = cancel_at(&monitor, bytes);
        let (result, _) = run_watched(&copied, vec![bed.mounted("p/f", &files)], &monitor);
        cancels.join().expect("ended");
        assert!(matches!(result, Err(CopyError::Cancelled)), "{result:?}");
        // Nothing that it has in memory is committed.
        alone(files).lose();
        // What has its final name is whole.
        let seen = bed.open(&options);
        let client = Client::new(Arc::clone(&seen) as _);
        for name in client.read_dir(b"t").unwrap_or_default() {
            if name.name.starts_with(b"large") {
                let text = OsStr::from_bytes(&name.name);
                let path = [b"t/", &name.name[..]].concat();
                assert!(client.read(&path).expect("read") == fs::read(from.join(text)).expect("read"));
            }
        }
    }
    let files = bed.leased();
    let summary = done(&CopySpec { rate: 0, ..copied }, vec![bed.mounted("p/f", &files)]);
    assert!(summary.resumed, "{summary:?}");
    assert!(
        summary.counts.bytes < total * 3 / 4,
        "{} of {total} bytes were sent again",
        summary.counts.bytes
    );
    done(&spec(end("fs:p/f/t"), at(&bed.path("back"))), vec![bed.mounted("p/f", &files)]);
    assert_same(&from, &bed.path("back"));
    let client = Client::new(Arc::clone(&files) as _);
    for directory in [&b""[..], b"t", b"t/small"] {
        let names = client.read_dir(directory).expect("listed");
        assert!(!names.iter().any(|it| it.name.starts_with(b".longhaul-")), "nothing is left: {names:?}");
    }
}

#[test]
fn a_file_system_that_becomes_full_has_whole_files_only() {
    // 24 segments of 512 KiB of data.
    let bed = Bed::new(24);
    let from = bed.path("from");
    let mut rng = fastrand::Rng::with_seed(8);
    fs::create_dir(&from).expect("made");
    for number in 0..400 {
        fs::write(from.join(format!("f{number}")), noise(&mut rng, 60_000)).expect("written");
    }
    fs::write(from.join("large"), noise(&mut rng, 6 << 20)).expect("written");
    let files = bed.leased();
    let (result, _) = run(&spec(at(&from), end("fs:p/f/t")), vec![bed.mounted("p/f", &files)]);
    let e = result.expect_err("it is full");
    assert!(e.to_string().contains("its file system is full"), "{e}");
    assert_eq!(e.kind_number(), 1);
    drop(alone(files));
    let files = bed.leased();
    let client = Client::new(Arc::clone(&files) as _);
    let (mut whole, names) = (0, client.read_dir(b"t").expect("listed"));
    for entry in names.iter().filter(|entry| !entry.name.starts_with(b".longhaul-")) {
        let read = client.read(&[b"t/", &entry.name[..]].concat()).expect("read");
        let source = fs::read(from.join(OsStr::from_bytes(&entry.name))).expect("read");
        assert!(read == source, "{:?} has {} bytes", String::from_utf8_lossy(&entry.name), read.len());
        whole += 1;
    }
    assert!(whole > 50, "{whole} files are there");
    assert_eq!(bed.fs.check().expect("checked").problems, Vec::<String>::new());
}

#[test]
fn a_copy_goes_on_without_a_disk() {
    let bed = Bed::new(1024);
    let from = bed.path("from");
    large_and_small(&from, 4);
    let files = bed.leased();
    let monitor = Arc::new(Monitor::new());
    let (disk, watched) = (bed.fs.disks[1].clone(), Arc::clone(&monitor));
    let lost = std::thread::spawn(move || {
        let began = std::time::Instant::now();
        while watched.now().counts.bytes < 10 << 20 && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        disk.set_gone(true);
    });
    let limited = CopySpec { rate: 20 << 20, ..spec(at(&from), end("fs:p/f/t")) };
    let (result, troubles) = run_watched(&limited, vec![bed.mounted("p/f", &files)], &monitor);
    lost.join().expect("ended");
    assert_eq!((result.expect("copied").counts.failed, troubles), (0, Vec::new()));
    done(&spec(end("fs:p/f/t"), at(&bed.path("back"))), vec![bed.mounted("p/f", &files)]);
    assert_same(&from, &bed.path("back"));
}

#[test]
fn without_the_catalog_a_copy_ends_and_is_resumed_with_it() {
    let bed = Bed::new(2048);
    let from = bed.path("from");
    large_and_small(&from, 5);
    let away = Dying::new(&bed.fs.catalog, u64::MAX, End::AnswerLost);
    let short = Duration::from_secs(1);
    let options = FsOptions { ttl: short, patience: short, ..TestFs::leased() };
    let files = Arc::new(bed.fs.open_by(Arc::clone(&away) as _, &options).expect("opened"));
    let monitor = Arc::new(Monitor::new());
    let (watched, cut) = (Arc::clone(&monitor), Arc::clone(&away));
    let lost = std::thread::spawn(move || {
        let began = std::time::Instant::now();
        while watched.now().counts.bytes < 20 << 20 && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        cut.set_away(true);
    });
    let limited = CopySpec { rate: 16 << 20, ..spec(at(&from), end("fs:p/f/t")) };
    let (result, troubles) = run_watched(&limited, vec![bed.mounted("p/f", &files)], &monitor);
    lost.join().expect("ended");
    let is_told = result.is_err() || result.as_ref().is_ok_and(|it| it.counts.failed > 0);
    assert!(is_told && !troubles.is_empty(), "{result:?} {troubles:?}");
    alone(files).lose();
    let files = bed.leased();
    done(&CopySpec { rate: 0, ..limited }, vec![bed.mounted("p/f", &files)]);
    done(&spec(end("fs:p/f/t"), at(&bed.path("back"))), vec![bed.mounted("p/f", &files)]);
    assert_same(&from, &bed.path("back"));
}

#[test]
fn hosts_that_use_the_directory_meanwhile_and_the_copy_lose_nothing() {
    for leases in [false, true] {
        let bed = Bed::new(1024);
        let from = bed.path("from");
        large_and_small(&from, 1);
        let other = bed.open(&FsOptions { leases, ..TestFs::options() });
        let client = Client::new(Arc::clone(&other) as _);
        client.create_dir_all(b"t/small").expect("made");
        let (ends, written) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(0)));
        let (over, count) = (Arc::clone(&ends), Arc::clone(&written));
        let writes = std::thread::spawn(move || {
            while !over.load(Relaxed) {
                let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
                let path = format!("t/small/other{count}");
                client.write(path.as_bytes(), path.as_bytes()).expect("written");
                client.read_dir(b"t/small").expect("listed");
                *count += 1;
            }
        });
        let files = bed.leased();
        let cp = CopySpec { rate: 8 << 20, ..spec(at(&from), end("fs:p/f/t")) };
        done(&cp, vec![bed.mounted("p/f", &files)]);
        ends.store(true, Relaxed);
        writes.join().expect("ended");
        let count = *written.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(count > 0, "they overlapped");
        let client = Client::new(Arc::clone(&files) as _);
        for number in 0..count {
            let path = format!("t/small/other{number}");
            assert_eq!(client.read(path.as_bytes()).expect("read"), path.as_bytes());
        }
        // And the other host sees the copy.
        done(&spec(end("fs:p/f/t"), at(&bed.path("back"))), vec![bed.mounted("p/f", &other)]);
        for number in 0..count {
            fs::remove_file(bed.path(&format!("back/small/other{number}"))).expect("copied too");
        }
        set_time(
            &bed.path("back/small"),
            fs::metadata(from.join("small")).expect("there").mtime(),
            fs::metadata(from.join("small")).expect("there").mtime_nsec(),
        );
        let (one, two) = (look(&from), look(&bed.path("back")));
        for (name, seen) in one.iter().filter(|(name, _)| *name != Path::new("small")) {
            assert!(two.get(name) == Some(seen), "{name:?}, leases {leases}");
        }
        assert_eq!(bed.fs.check().expect("checked").problems, Vec::<String>::new());
    }
}

/// The catalog is a round trip away. A larger file costs three more for each segment that it fills.
#[test]
fn a_copy_of_one_file_costs_few_round_trips() {
    let bed = Bed::new(16);
    for (name, len) in [("small", 100), ("large", 300_000)] {
        fs::write(bed.path(name), noise(&mut fastrand::Rng::with_seed(1), len)).expect("written");
        let catalog = Counting::new(&bed.fs.catalog);
        let below: Arc<dyn Catalog> = Arc::clone(&catalog) as _;
        let files = Arc::new(bed.fs.open_by(below, &TestFs::leased()).expect("opened"));
        let opened = catalog.take();
        let one =
            CopySpec { place: Placement::Guess, ..spec(at(&bed.path(name)), end(&format!("fs:p/f/{name}"))) };
        let mounted = bed.mounted("p/f", &files);
        done(&one, vec![mounted]);
        let copied = catalog.take();
        drop(files);
        let ended = catalog.take();
        assert!(opened <= 4 && copied <= 20 && ended <= 5, "{name}: {opened}, {copied}, {ended} round trips");
    }
}

#[test]
fn two_runs_of_one_copy_exclude_each_other() {
    let bed = Bed::new(1024);
    let from = bed.path("from");
    large_and_small(&from, 2);
    let files = bed.leased();
    let limited = CopySpec { rate: 4 << 20, ..spec(at(&from), end("fs:p/f/t")) };
    let monitor = Arc::new(Monitor::new());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run_watched(&limited, vec![bed.mounted("p/f", &files)], &monitor).0);
        let began = std::time::Instant::now();
        while monitor.now().counts.bytes < 1 << 20 && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let refused = run(&limited, vec![bed.mounted("p/f", &files)]).0.expect_err("refused");
        assert!(refused.to_string().contains("the same copy is already running"), "{refused}");
        assert_eq!(refused.kind_number(), 6);
        monitor.cancel();
        first.join().expect("ended").expect_err("cancelled");
    });
}

/// The program, over targets that run as programs.
mod program {
    use super::*;
    use serde_json::json;
    use std::process::Command;

    fn site() -> Site {
        let site = Site::new(4);
        site.create();
        site.last(&["fs", "create", "p/f", "--size", "96MiB", "--layout", "parity"]);
        site
    }

    fn command(site: &Site, args: &[&str]) -> Command {
        let mut command = common::command(&[args, &["--json", "--hostnqn", ADMIN]].concat());
        command.env("XDG_STATE_HOME", site.path("host")).env("XDG_RUNTIME_DIR", site.path("host"));
        command
    }

    #[test]
    fn trees_go_there_and_back_and_through_agents() {
        let site = site();
        let (from, back) = (site.path("from"), site.path("back"));
        random_tree(&from, 3);
        let from_dot = format!("{}/.", text(&from));
        let owner = rustix::process::geteuid().is_root();
        let kept: &[&str] = if owner { &["-X", "--owner"] } else { &["-X"] };
        let cp = |from: &str, to: &str| site.last(&[&["cp", "-r", from, to], kept].concat());
        let done = cp(&from_dot, "fs:p/f/tree");
        assert_eq!((&done["event"], &done["failed"]), (&json!("summary"), &json!(0)));
        // To an agent and from one.
        let root = site.path("root");
        fs::create_dir(&root).expect("made");
        let (_agent, uri) = common::agent(&root, &[]);
        let plain = |from: &str, to: &str| site.last(&["cp", "-r", from, to]);
        plain("fs:p/f/tree/.", &format!("{uri}pushed"));
        plain(&format!("{uri}pushed/."), "fs:p/f/pulled");
        cp("fs:p/f/tree/.", text(&back));
        assert_same(&from, &back);
        let bare = site.path("bare");
        plain("fs:p/f/pulled/.", text(&bare));
        let content = |dir: &Path| -> BTreeMap<PathBuf, (Vec<u8>, (i64, i64))> {
            look(dir).into_iter().map(|(name, seen)| (name, (seen.content, seen.modified))).collect()
        };
        assert!(content(&from) == content(&bare), "what agents carry");
        let same = site.run(&[&["sync", text(&from), "fs:p/f/tree", "--exit-code"], kept].concat());
        assert_eq!(same.code, Some(8), "{same:?}");
        assert_eq!(site.last(&["fs", "check", "p/f"])["problems"], 0);
        assert_eq!(site.last(&["fs", "status", "p/f"])["mounts"], json!([]), "the sessions have ended");
    }

    #[test]
    fn what_cannot_be_copied_says_why() {
        let site = site();
        fs::write(site.path("file"), b"content").expect("written");
        let file = site.path("file");
        let missing = site.refused(1, &["cp", "fs:p/f/missing", text(&site.path("x"))]);
        assert!(missing.contains("fs:p/f/missing: No such file or directory"), "{missing}");
        assert!(!site.path("x").exists());
        assert!(site.refused(2, &["cp", text(&file), "fs:p"]).contains("fs:POOL/NAME/PATH"));
        site.refused(1, &["cp", text(&file), "fs:p/other/x"]);
        // A host that the file system is not for.
        let stranger = "nqn.2014-08.org.example:stranger";
        let ran = site.run_as("host", &["--json", "cp", text(&file), "fs:p/f/x", "--hostnqn", stranger]);
        assert!(ran.code.is_some_and(|code| code != 0) && !ran.stderr.is_empty(), "{ran:?}");
        let seen = site.last(&["cp", text(&file), "fs:p/f/x"]);
        assert_eq!(seen["files"], 1);
    }

    #[test]
    fn a_killed_copy_is_resumed_and_a_signalled_one_leaves_at_once() {
        let site = site();
        let from = site.path("from");
        let total = large_and_small(&from, 3);
        let args = ["cp", "-r", text(&from), "fs:p/f/t", "--bwlimit", "30Mbit"];
        let begin = || {
            let free = || site.last(&["fs", "status", "p/f"])["free"].as_u64().expect("bytes");
            let before = free();
            let child = command(&site, &args).spawn().expect("started");
            // A part of the content, and what the next run needs to know of it, is there.
            common::until("content is written", || free() + (1 << 20) < before);
            child
        };
        let interrupted = begin();
        signal(&interrupted, "INT");
        let ran = finish(interrupted);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert!(ran.stderr.contains("resumes"), "{ran:?}");
        assert_eq!(site.last(&["fs", "status", "p/f"])["mounts"], json!([]), "its session has ended");
        let killed = begin();
        signal(&killed, "KILL");
        finish(killed);
        let ran = finish(command(&site, &args[..4]).spawn().expect("started"));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let summary = ran.events().pop().expect("a summary");
        // The command has the same source and destination; the journal does not depend on the rate.
        assert_eq!(summary["resumed"], true, "{summary}");
        assert!(summary["bytes"].as_u64().expect("bytes") < total, "{summary}");
        site.last(&["cp", "-r", "fs:p/f/t", text(&site.path("back"))]);
        assert_same(&from, &site.path("back"));
    }
}
