//! Copies of real trees: within the machine, to an agent and back.

mod common;

use common::*;
use longhaul_transfer::wire::{Compare, Durability, Hash, Options, Placement, RefusalKind};
use longhaul_transfer::{Concurrency, CopyError, CopySpec, Monitor, Settings, copy};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

#[test]
fn a_tree_is_the_same_after_a_copy_to_an_agent_and_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, root, back) = (dir.path().join("source"), dir.path().join("root"), dir.path().join("back"));
    fs::create_dir_all(&root).expect("made");
    make_tree(&source);
    let agent = agent(&root);
    let there = run(&spec(local(&source), at(&agent, ""))).expect("copied");
    assert_same(&source, &root.join("source"));
    assert_eq!((there.counts.failed, there.counts.files, there.resumed), (0, 209, false));
    run(&spec(at(&agent, "source"), local(&back))).expect("copied");
    assert_same(&source, &back);
    for copy in [&root.join("source"), &back] {
        let (zero, hard) =
            (fs::metadata(copy.join("zero")).expect("there"), fs::metadata(copy.join("a/hard")));
        assert_eq!(zero.ino(), hard.expect("there").ino(), "one file under two names");
        assert!(fs::metadata(copy.join("sparse")).expect("there").blocks() * 512 < 4 << 20, "still sparse");
    }
}

#[test]
fn a_tree_is_the_same_after_a_copy_within_the_machine() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("source");
    make_tree(&source);
    for (name, options) in [
        ("plain", Options::default()),
        (
            "careful",
            Options { hash: Hash::Strong, verify: true, durability: Durability::File, ..Options::default() },
        ),
    ] {
        let copy = dir.path().join(name);
        let mut spec = spec(local(&source), local(&copy));
        spec.options = options;
        run(&spec).expect("copied");
        assert_same(&source, &copy);
    }
}

#[test]
fn destinations_are_those_of_cp() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| local(&dir.path().join(name));
    let text = |name: &str| endpoint(&format!("{}/{name}", dir.path().display()));
    fs::create_dir_all(dir.path().join("d/sub")).expect("made");
    fs::create_dir(dir.path().join("into")).expect("made");
    fs::write(dir.path().join("d/sub/f"), "1").expect("written");
    fs::write(dir.path().join("one"), "2").expect("written");
    fs::write(dir.path().join("old"), "3").expect("written");
    let there = |name: &str| fs::read_to_string(dir.path().join(name)).expect(name);
    run(&spec(path("one"), path("two"))).expect("to another name");
    run(&spec(path("one"), path("old"))).expect("in place of a file");
    run(&spec(path("one"), path("into"))).expect("into a directory");
    run(&spec(path("d"), path("e"))).expect("a directory under another name");
    run(&spec(text("d/"), path("into"))).expect("a directory into one");
    run(&spec(text("d/."), path("g"))).expect("the contents of a directory");
    assert_eq!([there("two"), there("old"), there("into/one")], ["2", "2", "2"]);
    assert_eq!([there("e/sub/f"), there("into/d/sub/f"), there("g/sub/f")], ["1", "1", "1"]);
    let mut several = spec(path("one"), text("many/"));
    several.sources.push(path("d"));
    run(&several).expect("several");
    assert_eq!([there("many/one"), there("many/d/sub/f")], ["2", "1"]);
    let missing = run(&spec(path("nothing"), path("x")));
    assert!(matches!(missing, Err(CopyError::Refused(refusal)) if refusal.kind == RefusalKind::NoSuchPath));
    let nowhere = run(&spec(path("one"), path("no/such/x")));
    assert!(matches!(nowhere, Err(CopyError::Refused(refusal)) if refusal.kind == RefusalKind::NoSuchPath));
}

#[test]
fn sync_sends_changed_files_and_deletes_missing_ones() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, root) = (dir.path().join("source"), dir.path().join("root"));
    fs::create_dir_all(root.join("copy/gone/deep")).expect("made");
    fs::write(root.join("copy/gone/deep/f"), "x").expect("written");
    make_tree(&source);
    let agent = agent(&root);
    let level = |compare, delete| Options { compare, delete, ..Options::default() };
    let sync = |options| run(&sync(local(&source), at(&agent, "copy"), options)).expect("done").counts;
    assert_eq!(sync(level(Compare::Mtime, false)).same, 0);
    assert!(root.join("copy/gone/deep/f").exists());
    let dry = sync(Options { dry_run: true, ..level(Compare::Mtime, true) });
    assert_eq!((dry.files, dry.same, dry.deleted), (0, 209, 3));
    assert!(root.join("copy/gone/deep/f").exists());
    fs::write(source.join("fresh"), "1").expect("written");
    let dry = sync(Options { dry_run: true, ..level(Compare::Mtime, false) });
    assert_eq!((dry.wanted, dry.files, root.join("copy/fresh").exists()), (1, 0, false));
    fs::remove_file(source.join("fresh")).expect("removed");
    let again = sync(level(Compare::Mtime, true));
    assert_eq!((again.files, again.same, again.deleted), (0, 209, 3));
    assert_same(&source, &root.join("copy"));

    // The same size and time, other content: only a checksum differs.
    let victim = root.join("copy/a/f100");
    let time = fs::metadata(&victim).expect("there").modified().expect("a time");
    fs::write(&victim, noise(9999, 9700)).expect("written");
    fs::File::options().write(true).open(&victim).expect("open").set_modified(time).expect("set");
    assert_eq!(sync(level(Compare::Mtime, false)).files, 0);
    assert_eq!(sync(level(Compare::Checksum, false)).files, 1);
    assert_same(&source, &root.join("copy"));

    fs::write(root.join("copy/a/f100"), noise(9999, 9700)).expect("written");
    assert_eq!(sync(level(Compare::Exists, false)).files, 0);
    assert_eq!(sync(level(Compare::Size, false)).files, 0);
    assert_eq!(sync(level(Compare::Mtime, false)).files, 1);
    assert_same(&source, &root.join("copy"));
}

#[test]
fn a_missing_source_is_reported_and_prevents_deletion() {
    let dir = tempfile::tempdir().expect("a directory");
    let (root, copy) = (dir.path().join("root"), dir.path().join("copy"));
    for path in [root.join("a"), root.join("b"), copy.join("old")] {
        fs::create_dir_all(&path).expect("made");
        fs::write(path.join("f"), "1").expect("written");
    }
    let agent = agent(&root);
    for (from, to) in [
        (["a", "gone", "b"].map(|name| local(&root.join(name))), local(&copy)),
        (["a", "gone", "b"].map(|name| at(&agent, name)), local(&copy)),
    ] {
        let options = Options { delete: true, ..Options::default() };
        let into = CopySpec { sources: from.into(), place: Placement::Into, options, ..spec(to.clone(), to) };
        let (result, troubles) = run_watched(&into);
        assert_eq!(result.expect("done").counts.failed, 2);
        assert_eq!(
            troubles,
            [(".".into(), "delete"), ("gone".into(), "scan")],
            "it says that it removed nothing"
        );
        for name in ["a/f", "b/f", "old/f"] {
            assert!(copy.join(name).exists(), "{name}");
        }
        fs::remove_dir_all(copy.join("a")).expect("removed");
    }
    let none = CopySpec {
        sources: ["gone", "away"].map(|name| local(&root.join(name))).into(),
        place: Placement::Into,
        ..spec(local(&root), local(&copy))
    };
    assert!(run(&none).is_err_and(|e| e.to_string().contains("gone")));
}

#[test]
fn files_that_hide_their_size_are_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let untold = Path::new("/proc/self/status");
    if fs::metadata(untold).map_or(true, |meta| meta.len() > 0) || fs::read(untold).is_err() {
        longhaul_skip::skip!("this machine has no /proc with files of no size");
        return;
    }
    let (result, troubles) = run_watched(&spec(local(untold), local(&dir.path().join("copy"))));
    assert_eq!((result.expect("done").counts.failed, troubles.len()), (1, 1), "{troubles:?}");
    assert!(!dir.path().join("copy").exists(), "an empty file stands for it");
}

#[test]
fn an_object_of_another_kind_is_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    fs::create_dir_all(source.join("was-file")).expect("made");
    fs::create_dir_all(source.join("was-link")).expect("made");
    fs::write(source.join("was-file/f"), "1").expect("written");
    fs::write(source.join("was-link/f"), "1").expect("written");
    fs::write(source.join("was-empty"), "1").expect("written");
    fs::write(source.join("was-full"), "1").expect("written");
    fs::create_dir_all(copy.join("was-empty")).expect("made");
    fs::create_dir_all(copy.join("was-full")).expect("made");
    fs::create_dir_all(dir.path().join("elsewhere")).expect("made");
    fs::write(copy.join("was-full/f"), "x").expect("written");
    fs::write(copy.join("was-file"), "x").expect("written");
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), copy.join("was-link")).expect("linked");
    let options = Options { compare: Compare::Mtime, ..Options::default() };
    let (result, troubles) = run_watched(&sync(local(&source), local(&copy), options));
    // A directory with something in it is not removed for a file.
    assert_eq!(
        (result.expect("done").counts.failed, &troubles[..]),
        (1, &[("was-full".into(), "write")][..])
    );
    assert_eq!(fs::read(copy.join("was-file/f")).expect("there"), b"1");
    assert!(fs::symlink_metadata(copy.join("was-link")).expect("there").is_dir());
    assert_eq!(fs::read_dir(dir.path().join("elsewhere")).expect("there").count(), 0);
    assert_eq!(fs::read(copy.join("was-empty")).expect("there"), b"1");
}

#[test]
fn filters_leave_out_and_protect() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    fs::create_dir_all(source.join("cache")).expect("made");
    fs::create_dir_all(copy.join("cache")).expect("made");
    for name in ["a.dat", "a.tmp", "keep.tmp", "cache/x"] {
        fs::write(source.join(name), name).expect("written");
    }
    fs::write(copy.join("cache/mine"), "x").expect("written");
    fs::write(copy.join("old"), "x").expect("written");
    let options = Options { compare: Compare::Mtime, delete: true, ..Options::default() };
    let mut spec = sync(local(&source), local(&copy), options);
    spec.filters = ["+keep.tmp", "-*.tmp", "-cache"].map(String::from).to_vec();
    run(&spec).expect("done");
    let mut names: Vec<_> = look(&copy).into_keys().map(|p| p.display().to_string()).collect();
    names.sort();
    assert_eq!(names, ["", "a.dat", "cache", "cache/mine", "keep.tmp"]);
}

#[test]
fn extended_attributes_are_copied_with_the_option() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, root) = (dir.path().join("source"), dir.path().join("root"));
    fs::create_dir_all(&root).expect("made");
    fs::create_dir_all(&source).expect("made");
    for (name, size) in [("small", 10), ("large", 1 << 20)] {
        fs::write(source.join(name), noise(1, size)).expect("written");
        let set =
            rustix::fs::setxattr(source.join(name), "user.origin", b"here", rustix::fs::XattrFlags::empty());
        if set.is_err() {
            longhaul_skip::skip!("the file system has no extended attributes");
            return;
        }
    }
    let agent = agent(&root);
    for (target, xattrs) in [("without", false), ("with", true)] {
        let mut spec = spec(local(&source), at(&agent, target));
        spec.options.xattrs = xattrs;
        run(&spec).expect("copied");
        for name in ["small", "large"] {
            let mut value = [0; 16];
            let got = rustix::fs::getxattr(root.join(target).join(name), "user.origin", &mut value);
            assert_eq!(got.is_ok().then(|| &value[..4]), xattrs.then_some(&b"here"[..]), "{target}/{name}");
        }
    }
}

/// An access control list as Linux keeps it: version 2, and entries of tag,
/// permissions and identity (`linux/posix_acl_xattr.h`).
fn acl(mask: u16) -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let entries =
        [(0x01, 6, NO_ID), (0x02, 4, 1234), (0x04, 4, NO_ID), (0x10, mask, NO_ID), (0x20, 0, NO_ID)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(permissions));
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

#[test]
fn access_control_lists_are_carried() {
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    let dir = tempfile::tempdir().expect("a directory");
    let (source, root) = (dir.path().join("source"), dir.path().join("root"));
    fs::create_dir_all(&root).expect("made");
    fs::create_dir_all(source.join("shared")).expect("made");
    fs::write(source.join("shared/small"), "1").expect("written");
    fs::write(source.join("shared/large"), noise(1, 1 << 20)).expect("written");
    let lists =
        [("shared", DEFAULT, acl(6)), ("shared/small", ACCESS, acl(4)), ("shared/large", ACCESS, acl(6))];
    for (name, kind, list) in &lists {
        let set = rustix::fs::setxattr(source.join(name), *kind, list, rustix::fs::XattrFlags::empty());
        if let Err(e) = set {
            longhaul_skip::skip!("the file system has no access control lists: {e}");
            return;
        }
    }
    let agent = agent_with(&root, |config| config.allow_owner = true);
    let mut spec = spec(local(&source), at(&agent, "copy"));
    spec.options.xattrs = true;
    run(&spec).expect("copied");
    for (name, kind, list) in &lists {
        let mut value = [0; 256];
        let len = rustix::fs::getxattr(root.join("copy").join(name), *kind, &mut value).expect("a list");
        assert_eq!(value[..len], list[..], "{name}");
    }
    assert_same(&source, &root.join("copy"));
}

#[test]
fn a_tree_is_the_same_at_any_concurrency() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("source");
    make_tree(&source);
    let numbers = [Concurrency::Fixed(1), Concurrency::Fixed(7), Concurrency::Measured];
    for (i, number) in numbers.into_iter().enumerate() {
        let root = dir.path().join(i.to_string());
        fs::create_dir(&root).expect("made");
        let agent = agent_with(&root, |config| (config.readers, config.writers) = (number, number));
        // The first ones read nothing ahead.
        let read_ahead = (i == 0).then_some(0);
        let settings =
            Settings { streams: number, readers: number, writers: number, read_ahead, ..Settings::default() };
        let monitor = Arc::new(Monitor::new());
        copy(&spec(local(&source), at(&agent, "copy")), &settings, &monitor).expect("there");
        copy(&spec(at(&agent, "copy"), local(&root.join("back"))), &settings, &monitor).expect("back");
        assert_same(&source, &root.join("copy"));
        assert_same(&source, &root.join("back"));
        assert!(monitor.chosen().len() >= 3, "readers, streams and writers");
    }
}

#[test]
fn a_directory_with_more_names_than_a_batch_is_copied() {
    const NAMES: usize = 33_000;
    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    fs::create_dir(&source).expect("made");
    for i in 0..NAMES {
        fs::File::create(source.join(i.to_string())).expect("made");
    }
    let counts = run(&spec(local(&source), local(&copy))).expect("copied").counts;
    assert_eq!((counts.files, counts.failed), (NAMES as u64, 0));
    assert_eq!(fs::read_dir(&copy).expect("read").count(), NAMES);
}

#[test]
fn owners_and_set_uid_bits_are_copied_only_with_the_option() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, root) = (dir.path().join("source"), dir.path().join("root"));
    fs::create_dir_all(source.join("d")).expect("made");
    fs::create_dir(&root).expect("made");
    for (name, size) in [("small", 10), ("large", 1 << 20)] {
        fs::write(source.join(name), noise(1, size)).expect("written");
    }
    std::os::unix::fs::symlink("small", source.join("link")).expect("linked");
    let names = ["small", "large", "link", "d"];
    for name in names {
        if std::os::unix::fs::lchown(source.join(name), Some(1234), Some(2345)).is_err() {
            longhaul_skip::skip!("this user may not change owners of files");
            return;
        }
        if name != "link" {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o6755);
            fs::set_permissions(source.join(name), mode).expect("set");
        }
    }
    let agent = agent_with(&root, |config| config.allow_owner = true);
    for (target, owner) in [("without", false), ("with", true)] {
        let mut there = spec(local(&source), at(&agent, target));
        there.options.owner = owner;
        run(&there).expect("copied");
        let back = dir.path().join(target);
        let mut home = spec(at(&agent, target), local(&back));
        home.options.owner = owner;
        run(&home).expect("copied back");
        for (name, copy) in names.iter().flat_map(|name| [(name, root.join(target)), (name, back.clone())]) {
            let meta = fs::symlink_metadata(copy.join(name)).expect("there");
            let mode = if owner { 0o6755 } else { 0o755 };
            let user = (meta.uid(), meta.gid());
            assert!(!owner || user == (1234, 2345), "{name}: {user:?}");
            assert!(owner || user.0 == rustix::process::geteuid().as_raw(), "{name}: {user:?}");
            if *name != "link" {
                assert_eq!(meta.mode() & 0o7777, mode, "{target}/{name}");
            }
        }
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
}

fn set_time(path: &Path, secs: u64, nanos: u32) {
    let file = fs::File::options().write(true).open(path).expect("open");
    file.set_modified(UNIX_EPOCH + Duration::new(secs, nanos)).expect("set");
}

#[test]
fn sync_carries_metadata_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    fs::create_dir(&source).expect("made");
    for name in ["same", "mode", "time"] {
        fs::write(source.join(name), name).expect("written");
        set_time(&source.join(name), 1_000_000_001, 123_456_789);
    }
    std::os::unix::fs::symlink("mode", source.join("link")).expect("linked");
    fs::create_dir(source.join("directory")).expect("made");
    let options = |compare| Options { compare, ..Options::default() };
    let counts = |options| {
        let counts = run(&sync(local(&source), local(&copy), options)).expect("done").counts;
        (counts.files, counts.others, counts.same, counts.metadata)
    };
    assert_eq!(counts(options(Compare::Mtime)), (3, 2, 0, 0));
    assert_eq!(counts(options(Compare::Mtime)), (0, 0, 3, 0), "nothing is to be done");
    set_mode(&source.join("mode"), 0o600);
    set_mode(&source.join("directory"), 0o700);
    let mode = |name: &str| fs::metadata(copy.join(name)).expect("there").mode() & 0o7777;
    let dry = Options { dry_run: true, ..options(Compare::Mtime) };
    assert_eq!((counts(dry), mode("mode")), ((0, 1, 3, 1), 0o644), "a dry run reports the change");
    assert_eq!(counts(options(Compare::Exists)).3, 0, "a name is enough");
    assert_eq!((counts(options(Compare::Mtime)).3, mode("mode"), mode("directory")), (1, 0o600, 0o700));
    // Another time is another file, unless content is compared.
    set_time(&copy.join("time"), 5, 0);
    assert_eq!(counts(options(Compare::Size)), (0, 0, 3, 0), "it may be another file of that size");
    assert_eq!(counts(options(Compare::Checksum)), (0, 0, 3, 1));
    assert_same(&source, &copy);
    // This file system would have kept the parts of the second: it is another file.
    set_time(&copy.join("time"), 1_000_000_001, 0);
    assert_eq!(counts(options(Compare::Mtime)), (1, 0, 2, 0));
    let xattr = |path: &Path| rustix::fs::setxattr(path, "user.a", b"1", rustix::fs::XattrFlags::empty());
    if xattr(&source.join("mode")).and_then(|()| xattr(&copy.join("same"))).is_err() {
        longhaul_skip::skip_part!("the file system has no extended attributes");
        return;
    }
    assert_eq!(counts(options(Compare::Mtime)).3, 0, "no attributes were requested");
    assert_eq!(counts(Options { xattrs: true, ..options(Compare::Mtime) }).3, 2);
    let has = |name: &str| rustix::fs::getxattr(copy.join(name), "user.a", &mut [0; 8]).is_ok();
    assert_eq!((has("mode"), has("same")), (true, false), "one came, and one went");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(source.join("same"), Some(1234), Some(1234)).expect("given away");
        assert_eq!(counts(Options { owner: true, ..options(Compare::Mtime) }).3, 1);
        assert_eq!(fs::metadata(copy.join("same")).expect("there").uid(), 1234);
    }
}

#[test]
fn a_file_with_too_many_attributes_fails_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    fs::create_dir(&source).expect("made");
    for i in 0..50 {
        fs::write(source.join(format!("f{i}")), "1").expect("written");
    }
    fs::write(source.join("large"), noise(1, 1 << 20)).expect("written");
    for i in 0..70 {
        for name in ["f25", "large"] {
            let attribute = format!("user.{i}");
            let set =
                rustix::fs::setxattr(source.join(name), &*attribute, b"1", rustix::fs::XattrFlags::empty());
            if set.is_err() {
                longhaul_skip::skip!("the file system does not take that many attributes");
                return;
            }
        }
    }
    let mut spec = spec(local(&source), local(&copy));
    spec.options.xattrs = true;
    let (result, troubles) = run_watched(&spec);
    assert_eq!(result.expect("done").counts.files, 49);
    assert_eq!(troubles, [("source/f25".to_owned(), "read"), ("source/large".to_owned(), "read")]);
}

#[test]
fn a_name_in_two_sources_is_copied_once_and_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let copy = dir.path().join("copy");
    for (name, content) in [("a", "1"), ("b", "2")] {
        fs::create_dir(dir.path().join(name)).expect("made");
        fs::write(dir.path().join(name).join("both"), content).expect("written");
        fs::write(dir.path().join(name).join(content), content).expect("written");
    }
    let end = |text: &str| endpoint(&format!("{}/{text}", dir.path().display()));
    let mut merged = spec(end("a/."), local(&copy));
    merged.sources.push(end("b/."));
    let (result, troubles) = run_watched(&merged);
    assert_eq!((result.expect("done").counts.files, troubles), (3, vec![("both".to_owned(), "scan")]));
    assert_eq!(fs::read(copy.join("both")).expect("there"), b"1");
    // Listed twice it is the same.
    let mut listed = spec(end("a/."), local(&dir.path().join("listed")));
    listed.files = vec![b"both".to_vec(), b"both".to_vec()];
    assert_eq!(run_watched(&listed).0.expect("done").counts.files, 1);
}

#[test]
fn a_copy_from_an_unreachable_host_creates_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let to = endpoint(&format!("{}/new/", dir.path().display()));
    let result = run(&spec(endpoint("lh://127.0.0.1:1/x"), to));
    assert!(matches!(result, Err(CopyError::Unreachable { .. })), "{result:?}");
    assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 0);
    // Errors on this side are still found first.
    let nowhere = run(&spec(endpoint("lh://127.0.0.1:1/x"), local(&dir.path().join("no/such/place"))));
    assert!(matches!(nowhere, Err(CopyError::Refused(r)) if r.kind == RefusalKind::NoSuchPath));
}

#[test]
fn a_pull_reports_the_totals_of_the_scan() {
    let dir = tempfile::tempdir().expect("a directory");
    make_tree(&dir.path().join("source"));
    let (agent, monitor) = (agent(dir.path()), Arc::new(Monitor::new()));
    let options = Options { compare: Compare::Mtime, ..Options::default() };
    let pull = sync(at(&agent, "source"), local(&dir.path().join("copy")), options);
    for same in [0, 209] {
        copy(&pull, &Settings::default(), &monitor).expect("copied");
        let now = monitor.now();
        assert_eq!((now.scanned_files, now.scan_done, now.counts.same), (209, true, same));
        let sparse = 19 << 20;
        let known = now.counts.bytes + now.counts.skipped;
        assert!(now.scanned_bytes - known <= sparse, "{now:?}");
    }
}

#[test]
fn of_a_file_and_a_directory_of_one_name_the_first_is_copied() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    for name in ["a/dir", "a/sub", "b/file", "b/sub"] {
        fs::create_dir_all(path(name)).expect("made");
    }
    for name in ["a/file", "a/dir/of-a", "a/one", "b/file/lost", "b/dir", "b/sub/f", "b/one"] {
        fs::write(path(name), name).expect("written");
    }
    // A hard link to a refused file is not linked to the file that was copied instead.
    fs::hard_link(path("b/one"), path("b/other")).expect("linked");
    let end = |text: &str| endpoint(&format!("{}/{text}", dir.path().display()));
    let mut merged = spec(end("a/."), local(&path("copy")));
    merged.sources.push(end("b/."));
    let (result, mut troubles) = run_watched(&merged);
    troubles.sort();
    let refused = ["dir", "file", "one"].map(|name| (name.to_owned(), "scan"));
    assert_eq!((result.expect("done").counts.failed, &troubles[..]), (3, &refused[..]));
    let there = |name: &str| fs::read_to_string(path("copy").join(name)).expect(name);
    assert_eq!(
        ["file", "dir/of-a", "one", "sub/f", "other"].map(there),
        ["a/file", "a/dir/of-a", "a/one", "b/sub/f", "b/one"]
    );
}

#[test]
fn a_directory_is_not_copied_into_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    fs::create_dir_all(path("a/b")).expect("made");
    fs::write(path("a/f"), "1").expect("written");
    fs::write(path("a/b/g"), "2").expect("written");
    let end = |text: &str| endpoint(&format!("{}/{text}", dir.path().display()));
    // The existing object is copied beside itself.
    let (result, troubles) = run_watched(&spec(end("a"), end("a/b")));
    assert_eq!((result.expect("done").counts.files, troubles), (1, vec![("a/b".to_owned(), "scan")]));
    assert_eq!(fs::read(path("a/b/a/f")).expect("there"), b"1");
    assert!(!path("a/b/a/b").exists());
    // Under a new name within itself, and onto itself.
    for to in ["a/new", "a"] {
        let (result, troubles) = run_watched(&spec(end("a"), end(to)));
        assert_eq!((result.expect("done").counts.files, troubles.len()), (0, 1), "{to}");
    }
    assert!(!path("a/new").exists() && !path("a/a").exists());
}

#[test]
fn compare_exists_changes_no_existing_object() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    let link = std::os::unix::fs::symlink::<&str, std::path::PathBuf>;
    fs::create_dir_all(source.join("was-file")).expect("made");
    fs::write(source.join("was-file/f"), "new").expect("written");
    fs::write(source.join("first"), "new").expect("written");
    fs::hard_link(source.join("first"), source.join("second")).expect("linked");
    link("first", source.join("link")).expect("linked");
    fs::write(source.join("was-link"), "new").expect("written");
    fs::write(source.join("fresh"), "new").expect("written");
    fs::create_dir_all(&copy).expect("made");
    for name in ["was-file", "first", "second", "link"] {
        fs::write(copy.join(name), name).expect("written");
    }
    link("nowhere", copy.join("was-link")).expect("linked");
    let options = Options { compare: Compare::Exists, ..Options::default() };
    let (result, troubles) = run_watched(&sync(local(&source), local(&copy), options));
    assert_eq!(result.expect("done").counts.files, 1, "{troubles:?}");
    assert!(troubles.iter().all(|(path, _)| path.starts_with("was-file")) && !troubles.is_empty());
    for name in ["was-file", "first", "second", "link"] {
        assert_eq!(fs::read_to_string(copy.join(name)).expect("there"), name);
    }
    assert_eq!(fs::read_link(copy.join("was-link")).expect("a link"), Path::new("nowhere"));
    assert_eq!(fs::read(copy.join("fresh")).expect("there"), b"new");
}
