//! Ends without files, lists of files, and manifests.

mod common;

use common::*;
use longhaul_transfer::dataset::{DatasetSpec, Scale, make};
use longhaul_transfer::wire::{Compare, Hash, Options, Placement, RefusalKind};
use longhaul_transfer::{Agent, CopyError, CopySpec, Key, Monitor, SessionError, Settings, copy};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

#[test]
fn synthetic_sources_and_the_null_destination_work_at_either_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let agent = agent(dir.path());
    let ends = [
        (endpoint("zero:3x2MiB"), endpoint("null:")),
        (endpoint("zero:3x2MiB"), at(&agent, "null:")),
        (at(&agent, "zero:3x2MiB"), endpoint("null:")),
    ];
    for (from, to) in ends {
        let counts = run(&spec(from, to)).expect("copied").counts;
        assert_eq!((counts.files, counts.bytes, counts.failed), (3, 6 << 20, 0));
    }
    assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 0, "nothing is written");
    let wrong = [("null:", "x"), ("zero:1", "zero:1"), ("zero:many", "null:"), ("dataset:none", "null:")];
    for (from, to) in wrong {
        let result = run(&spec(endpoint(from), endpoint(to)));
        assert!(matches!(result, Err(CopyError::Usage(_))), "{from} {to}");
    }
    let far = run(&spec(at(&agent, "dataset:none"), endpoint("null:")));
    assert!(matches!(far, Err(CopyError::Usage(_))), "found out before the agent is asked");
}

#[test]
fn a_synthetic_source_equals_the_written_data_set() {
    let dir = tempfile::tempdir().expect("a directory");
    let (written, copied) = (dir.path().join("written"), dir.path().join("copied"));
    let mut wanted = DatasetSpec::parse("real", Scale::files(40)).expect("known");
    wanted.seed = 7;
    make(&written, &wanted.plan(), &|_| {}).expect("made");
    let agent = agent(dir.path());
    let from = || endpoint("dataset:real,files=40,seed=7");
    run(&spec(from(), at(&agent, "copied"))).expect("copied");
    let ran = Command::new("diff").arg("-r").args([&written, &copied]).output().expect("diff");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    for compare in [Compare::Mtime, Compare::Checksum] {
        let again = sync(from(), at(&agent, "copied"), Options { compare, ..Options::default() });
        assert_eq!(run(&again).expect("compared").counts.same, 40);
    }
}

#[test]
fn only_listed_files_are_sent() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, root) = (dir.path().join("source"), dir.path().join("root"));
    fs::create_dir(&root).expect("made");
    make_tree(&source);
    let agent = agent(&root);
    let files = ["a/b/c/exact", "a/f7", "empty", "new\nline", "no/such"].map(|name| name.as_bytes().to_vec());
    let back = dir.path().join("back");
    let push = spec(local(&source), at(&agent, ""));
    let pull = CopySpec {
        place: longhaul_transfer::wire::Placement::Contents,
        ..spec(at(&agent, "source"), local(&back))
    };
    for (mut spec, to) in [(push, root.join("source")), (pull, back.clone())] {
        spec.files = files.to_vec();
        let (result, troubles) = run_watched(&spec);
        assert_eq!(result.expect("copied").counts.files, 3);
        assert_eq!(troubles.len(), 1, "{troubles:?}");
        let names: Vec<_> = look(&to).into_keys().map(|p| p.display().to_string()).collect();
        assert_eq!(names, ["", "a", "a/b", "a/b/c", "a/b/c/exact", "a/f7", "empty", "new\nline"]);
        let mode = fs::metadata(to.join("a/b")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o750, "directories on the way are what they were");
    }
    let mut out = spec(local(&source), at(&agent, "x"));
    out.files = vec![b"../secret".to_vec()];
    assert!(run(&out).is_err());
}

/// Name and checksum of each line.
fn manifest(path: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(path).expect("a manifest");
    let line = |line: &str| {
        let (escaped, line) = line.strip_prefix('\\').map_or((false, line), |line| (true, line));
        let (sum, name) = line.split_once("  ").expect("two spaces");
        let name = if escaped { name.replace("\\n", "\n").replace("\\\\", "\\") } else { name.into() };
        (name, sum.to_owned())
    };
    text.lines().map(line).collect()
}

#[test]
fn a_manifest_lists_every_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, root) = (dir.path().join("source"), dir.path().join("root"));
    fs::create_dir(&root).expect("made");
    make_tree(&source);
    let agent = agent(&root);
    let options = Options { compare: Compare::Mtime, hash: Hash::Strong, delete: true, ..Options::default() };
    let mut spec = sync(local(&source), at(&agent, "copy"), options);
    spec.manifest = b"SUMS".to_vec();
    // Of all files, whether they are sent or up to date.
    for same in [0, 209] {
        let (result, troubles) = run_watched(&spec);
        assert_eq!(result.expect("copied").counts.same, same);
        assert_eq!(troubles.len(), 1, "a name that is not UTF-8: {troubles:?}");
        let listed = manifest(&root.join("copy/SUMS"));
        assert_eq!(listed.len(), 209, "208 names in UTF-8, and one that is a link to a file");
        for (name, sum) in &listed {
            let content = fs::read(root.join("copy").join(name)).expect("listed, so there");
            assert_eq!(*sum, blake3::hash(&content).to_hex().as_str(), "{name}");
        }
        let Ok(ran) = Command::new("b3sum").args(["--check", "SUMS"]).current_dir(root.join("copy")).output()
        else {
            longhaul_skip::skip_part!("b3sum is not installed");
            continue;
        };
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    }
    spec.manifest = b"elsewhere/SUMS".to_vec();
    assert!(run(&spec).is_err());
}

#[test]
fn a_rate_limit_does_not_change_the_copy() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("source");
    make_tree(&source);
    let agent = agent(dir.path());
    let mut spec = spec(local(&source), at(&agent, "copy"));
    spec.rate = 50_000_000;
    run(&spec).expect("copied");
    assert_same(&source, &dir.path().join("copy"));
}

#[test]
fn third_party_copies_need_permission() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    fs::create_dir_all(&two).expect("made");
    make_tree(&one.join("tree"));
    let key = Key::random().expect("a key");
    let keyed = |root: &Path, onward| {
        let key = Some(key.clone());
        agent_with(root, |config| (config.key, config.onward) = (key, onward))
    };
    let (from, to) = (keyed(&one, true), keyed(&two, false));
    let spec = spec(at(&from, "tree"), at(&to, "copy"));
    let settings = Settings { key: Some(key.clone()), ..Settings::default() };
    let monitor = Arc::new(Monitor::new());
    let summary = copy(&spec, &settings, &monitor).expect("copied");
    assert_same(&one.join("tree"), &two.join("copy"));
    assert_eq!((summary.counts.files, monitor.now().counts.files), (209, 209));

    // A missing source, an agent that may not send onward, and an unreachable agent.
    let kind = |from: &Agent, path: &str, to: longhaul_transfer::Endpoint| {
        let spec = common::spec(at(from, path), to);
        match copy(&spec, &settings, &monitor) {
            Err(CopyError::Refused(refusal) | CopyError::Session(SessionError::Refused(refusal))) => {
                refusal.kind
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(kind(&from, "nothing", at(&to, "x")), RefusalKind::NoSuchPath);
    assert_eq!(kind(&to, "copy", at(&from, "x")), RefusalKind::NotAllowed);
    assert_eq!(kind(&from, "tree", endpoint("lh://127.0.0.1:1/x")), RefusalKind::Unreachable);
}

#[test]
fn third_party_data_bypasses_the_client() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    fs::create_dir_all(&two).expect("made");
    make_tree(&one.join("tree"));
    let (from, to) = (agent_with(&one, |config| config.onward = true), agent(&two));
    // All bytes of this side pass through this relay.
    let tap = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let (address, there) = (tap.local_addr().expect("bound"), from.address());
    let seen = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = Arc::clone(&seen);
    std::thread::spawn(move || {
        for near in tap.incoming().flatten() {
            let far = std::net::TcpStream::connect(there).expect("connected");
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (mut from, mut to) = (from.try_clone().expect("cloned"), to.try_clone().expect("cloned"));
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || {
                    let mut piece = vec![0; 65536];
                    while let Ok(len @ 1..) = std::io::Read::read(&mut from, &mut piece) {
                        counted.fetch_add(len as u64, std::sync::atomic::Ordering::Relaxed);
                        if std::io::Write::write_all(&mut to, &piece[..len]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    let spec = spec(endpoint(&format!("lh://{address}/tree")), at(&to, "copy"));
    let counts = run(&spec).expect("copied").counts;
    assert_same(&one.join("tree"), &two.join("copy"));
    let (moved, seen) = (counts.bytes, seen.load(std::sync::atomic::Ordering::Relaxed));
    assert!(seen > 0 && seen < moved / 100, "{seen} bytes came here of {moved}");
}

#[test]
fn a_manifest_is_in_the_copied_directory_and_lists_its_files_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("a")).expect("made");
    fs::write(path("a/f"), "1").expect("written");
    fs::write(path("SUMS"), "of another copy").expect("written");
    let listing = |from: &str, to: &str, place| {
        let options = Options { compare: Compare::Mtime, hash: Hash::Strong, ..Options::default() };
        let manifest = b"SUMS".to_vec();
        run_watched(&CopySpec { place, options, manifest, ..spec(local(&path(from)), local(&path(to))) })
    };
    let names = |sums: &str| manifest(&path(sums)).into_keys().collect::<Vec<_>>();
    // A directory that gets a name of its own has its list in it.
    let (result, troubles) = listing("a", "b", Placement::Guess);
    assert_eq!((result.expect("copied").counts.files, troubles), (1, Vec::new()));
    assert_eq!(names("b/SUMS"), ["f"]);
    // The list of the copy before is not taken for a file of this one.
    for _ in 0..2 {
        let (result, troubles) = listing("b", "c", Placement::Contents);
        assert_eq!((result.expect("copied").counts.failed, troubles), (1, vec![("SUMS".into(), "write")]));
        assert_eq!(names("c/SUMS"), ["f"]);
    }
    // Where there is no directory, there is no list.
    let (result, troubles) = listing("a/f", "g", Placement::Guess);
    assert_eq!(result.expect("copied").counts.files, 1);
    assert_eq!(troubles, [("g/SUMS".into(), "write")]);
    assert_eq!(fs::read_to_string(path("SUMS")).expect("there"), "of another copy");
    let left = fs::read_dir(dir.path()).expect("read").map(|e| e.expect("an entry").file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with(".longhaul-")));
}

#[test]
fn a_cancelled_copy_ends_and_leaves_the_agent_usable() {
    let dir = tempfile::tempdir().expect("a directory");
    let agent = agent(dir.path());
    for destination in [endpoint(&dir.path().join("here").to_string_lossy()), at(&agent, "there")] {
        // 8 kb/s: it would take days.
        let slow = CopySpec { rate: 1000, ..spec(endpoint("zero:100x4MiB"), destination.clone()) };
        let monitor = Arc::new(Monitor::new());
        std::thread::scope(|scope| {
            let copying = scope.spawn(|| copy(&slow, &Settings::default(), &monitor));
            while monitor.began().is_none() {
                std::thread::yield_now();
            }
            monitor.cancel();
            let result = copying.join().expect("joined");
            assert!(matches!(result, Err(CopyError::Cancelled)), "{result:?}");
        });
        // A copy that begins later is cancelled, too.
        let again = copy(&slow, &Settings::default(), &monitor);
        assert!(matches!(again, Err(CopyError::Cancelled)), "{again:?}");
    }
    run(&spec(endpoint("zero:3x2MiB"), at(&agent, "after"))).expect("copied");
}
