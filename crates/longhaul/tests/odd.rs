//! Copies from disks with bad sectors, and to file systems that refuse some names or take long to close a
//! file. The tests need FUSE.

mod common;

use common::{agent, longhaul, text};
use longhaul_lab::slowfs::{Slow, SlowFs};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Bytes of a file that is sent in blocks.
const LARGE: usize = 3 << 20;
/// Bytes of a file that is sent in a batch with others.
const SMALL: usize = 100 << 10;

/// A source and a destination, one of them behind a faulty file system.
struct Ends {
    // Unmounted before its parent directory is removed.
    mounted: SlowFs,
    dir: TempDir,
}

impl Ends {
    /// Creates both directories, with `odd` behind a file system with the faults `how`.
    fn new(odd: &str, how: Slow) -> Option<Ends> {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["source", "copy", "odd"] {
            fs::create_dir(dir.path().join(name)).expect("made");
        }
        match SlowFs::mount(&dir.path().join(odd), &dir.path().join("odd"), how) {
            Ok(mounted) => Some(Ends { mounted, dir }),
            Err(e) => {
                longhaul_skip::skip!("FUSE: {e}");
                None
            }
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, len: usize) {
        let content: Vec<u8> = name.bytes().cycle().take(len).collect();
        fs::write(self.at("source").join(name), content).expect("written");
    }
}

/// Runs a copy that fails in part, and returns the files that could not be copied.
fn troubles(from: &Path, to: &str) -> Vec<(String, String)> {
    let ran = longhaul(&["cp", "-r", "--json", &format!("{}/.", text(from)), to]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let said = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
    let mut all: Vec<(String, String)> = ran
        .events()
        .iter()
        .filter(|event| event["event"] == "trouble")
        .map(|event| (said(event, "path"), said(event, "message")))
        .collect();
    all.sort();
    all
}

/// Names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("read").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_disk_with_bad_places_loses_those_files_alone() {
    for bad_from in [SMALL as u64 / 2, LARGE as u64 / 2] {
        let how = Slow { bad_from: Some(bad_from), ..Slow::default() };
        let Some(ends) = Ends::new("source", how) else { return };
        let (_agent, uri) = agent(&ends.at("copy"), &[]);
        let far = format!("{uri}far");
        ends.write("large", LARGE);
        ends.write("small", SMALL);
        for n in 0..50 {
            ends.write(&format!("tiny{n}"), 1000);
        }
        let lost: &[&str] = if bad_from < SMALL as u64 { &["large", "small"] } else { &["large"] };
        fs::create_dir(ends.at("copy/far")).expect("made");
        fs::create_dir(ends.at("copy/near")).expect("made");
        for (to, dir) in [(text(&ends.at("copy/near")), "copy/near"), (&far, "copy/far")] {
            let said = troubles(&ends.at("odd"), to);
            let paths: Vec<&str> = said.iter().map(|(path, _)| path.as_str()).collect();
            assert_eq!(paths, lost, "{said:?}");
            assert!(said.iter().all(|(_, message)| message.contains("nput/output error")), "{said:?}");
            let mut all = names(&ends.at("source"));
            all.retain(|name| !lost.contains(&name.as_str()));
            // None of a file that is not whole, under whatever name.
            assert_eq!(names(&ends.at(dir)), all);
            for name in all {
                let [one, other] = ["source", dir].map(|at| fs::read(ends.at(at).join(&name)).expect("read"));
                assert!(one == other, "{name}");
            }
        }
    }
}

#[test]
fn names_that_are_one_at_the_destination_do_not_overwrite_each_other() {
    let Some(ends) = Ends::new("copy", Slow { folds: true, ..Slow::default() }) else { return };
    for name in ["README", "Readme", "other"] {
        ends.write(name, 5000);
    }
    for _ in 0..2 {
        let said = troubles(&ends.at("source"), text(&ends.at("odd")));
        let [(lost, message)] = &said[..] else { panic!("{said:?}") };
        assert!(message.contains("does not distinguish upper and lower case"), "{message}");
        let kept = if lost == "README" { "Readme" } else { "README" };
        let there = names(&ends.at("copy"));
        assert_eq!(there.len(), 2, "{there:?}");
        let copied = there.iter().find(|name| name.to_lowercase() == "readme").expect("one of the two");
        let [one, other] = [ends.at("source").join(kept), ends.at("copy").join(copied)]
            .map(|path| fs::read(path).expect("read"));
        assert!(one == other, "the content is that of the one that is not listed");
    }
}

#[test]
fn names_that_are_too_long_for_the_destination_are_listed() {
    let Some(ends) = Ends::new("copy", Slow { name_most: Some(100), ..Slow::default() }) else { return };
    let long = "n".repeat(101);
    for name in [&long, "short", "another"] {
        ends.write(name, 5000);
    }
    fs::create_dir(ends.at("source").join("d".repeat(101))).expect("made");
    fs::write(ends.at("source").join("d".repeat(101)).join("inside"), "1").expect("written");
    let said = troubles(&ends.at("source"), text(&ends.at("odd")));
    assert!(said.iter().any(|(path, message)| *path == long && message.contains("too long")), "{said:?}");
    assert!(said.iter().any(|(path, _)| path.ends_with("/inside")), "{said:?}");
    assert_eq!(names(&ends.at("copy")), ["another", "short"]);
}

/// On some file systems close waits until the content is written back (NFS, Lustre).
#[test]
fn files_that_take_long_to_close_are_closed_at_the_same_time() {
    for len in [SMALL, LARGE / 4] {
        let slow = Slow { close: Duration::from_millis(100), ..Slow::default() };
        let Some(ends) = Ends::new("copy", slow) else { return };
        for n in 0..24 {
            ends.write(&format!("file{n}"), len);
        }
        let from = format!("{}/.", text(&ends.at("source")));
        let ran = longhaul(&["cp", "-r", "--writers", "8", &from, text(&ends.at("odd"))]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ends.mounted.most_closing() > 1, "files of {len} bytes");
    }
}
