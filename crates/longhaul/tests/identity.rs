//! The identity of an export belongs to its medium, and a medium that was swapped is refused.

mod common;

use common::{Target, command, finish, text};
use longhaul_block::Blocking;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

struct Testbed(TempDir);

impl Testbed {
    fn new() -> Testbed {
        Testbed(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn target(&self, state: &str, exports: &[&str]) -> Command {
        let mut args = vec!["target", "--listen", "127.0.0.1:0", "--discovery", "none", "--json"];
        args.extend(exports.iter().flat_map(|export| ["--export", export]));
        let mut command = command(&args);
        command.env("XDG_STATE_HOME", self.path(state)).current_dir(self.0.path());
        command
    }

    fn start(&self, exports: &[&str]) -> Target {
        Target::spawn(self.target("state", exports))
    }

    /// Serves one export, writes to it, ends the target, and returns UUID and NQN.
    fn serve(&self, export: &str) -> (String, String) {
        let target = self.start(&[export]);
        let device = longhaul_initiator::open(&target.uri(0)).expect("connected");
        let device = Blocking::open(device).expect("opened");
        device.write_at(&[7; 4096], 0).expect("written");
        device.flush().expect("durable");
        drop(device);
        let found = (of(&target, 0, "uuid"), of(&target, 0, "nqn"));
        target.stop();
        found
    }
}

fn of(target: &Target, export: usize, field: &str) -> String {
    target.ready["exports"][export][field].as_str().expect(field).to_owned()
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().expect("cp").success());
}

#[test]
fn the_identity_is_that_of_the_medium_and_not_made_of_the_exports_text() {
    let testbed = Testbed::new();
    let path = testbed.path("disk");
    let path = text(&path);
    let first = testbed.serve(&format!("x=file:{path},size=16MiB"));
    for text in [
        format!("file:{path}"),
        format!("file:{path},buffered"),
        "file:./disk".to_owned(),
        format!("file:{path},size=32MiB"),
        format!("file:{path},block=512"),
    ] {
        assert_eq!(testbed.serve(&format!("x={text}")), first, "{text}");
    }
    // Another export name is another subsystem on the same medium.
    let other = testbed.serve(&format!("y=file:{path}"));
    assert!(other.0 == first.0 && other.1 != first.1, "{other:?}");
}

#[test]
fn an_empty_or_missing_file_in_the_place_of_one_with_content_is_refused_without_create() {
    let testbed = Testbed::new();
    let (srv, away, path) = (testbed.path("srv"), testbed.path("away"), testbed.path("srv/disk"));
    fs::create_dir(&srv).expect("made");
    let export = format!("x=file:{},size=16MiB", text(&path));
    let (uuid, _) = testbed.serve(&export);

    // As when a file system is not mounted.
    fs::rename(&srv, &away).expect("moved");
    fs::create_dir(&srv).expect("made");
    let refused = |what: &str| {
        let ran = finish(testbed.target("state", &[&export]).spawn().expect("started"));
        assert_eq!(ran.code, Some(6), "{what}: {}", ran.stderr);
        for part in [uuid.as_str(), text(&path), "16 MiB", "ago", "create"] {
            assert!(ran.stderr.contains(part), "{what}: '{part}' is not in {}", ran.stderr);
        }
    };
    refused("missing");
    assert!(!path.exists(), "nothing was created");
    fs::File::create(&path).and_then(|file| file.set_len(16 << 20)).expect("made");
    refused("empty");
    fs::write(&path, vec![1; 16 << 20]).expect("written");
    refused("another disk");

    // With `create` it is served, as another disk.
    let (created, _) = testbed.serve(&format!("{export},create"));
    assert_ne!(created, uuid);
    assert_eq!(testbed.serve(&export).0, created);

    // The first medium is still known when it is back.
    fs::remove_dir_all(&srv).expect("removed");
    fs::rename(&away, &srv).expect("moved back");
    assert_eq!(testbed.serve(&export).0, uuid);
}

#[test]
fn a_restored_file_keeps_its_identity_where_it_is_given() {
    let testbed = Testbed::new();
    let (path, copied) = (testbed.path("disk"), testbed.path("copy"));
    let export = format!("x=file:{}", text(&path));
    let (uuid, _) = testbed.serve(&format!("{export},size=16MiB"));
    copy(&path, &copied);
    fs::rename(&copied, &path).expect("replaced");
    let ran = finish(testbed.target("state", &[&export]).spawn().expect("started"));
    assert_eq!(ran.code, Some(6), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("uuid={uuid}")), "{}", ran.stderr);
    assert_eq!(testbed.serve(&format!("{export},uuid={uuid}")).0, uuid);
    assert_eq!(testbed.serve(&export).0, uuid, "it was kept");
}

#[test]
fn a_file_that_was_never_written_to_may_be_made_anew() {
    let testbed = Testbed::new();
    let path = testbed.path("disk");
    let export = format!("x=file:{},size=16MiB", text(&path));
    testbed.start(&[&export]).stop();
    fs::remove_file(&path).expect("removed");
    testbed.start(&[&export]).stop();
    // After SIGKILL the target has not recorded a clean end.
    drop(testbed.start(&[&export]));
    fs::remove_file(&path).expect("removed");
    let ran = finish(testbed.target("state", &[&export]).spawn().expect("started"));
    assert_eq!(ran.code, Some(6), "{}", ran.stderr);
}

#[test]
fn different_media_never_have_one_identity() {
    let testbed = Testbed::new();
    for name in ["one", "two", "three"] {
        fs::create_dir(testbed.path(name)).expect("made");
    }
    let at = |state: &str, directory: &str| {
        let mut target = testbed.target(state, &["x=file:disk,size=16MiB"]);
        target.current_dir(testbed.path(directory));
        Target::spawn(target)
    };
    // Two state directories, and two directories of media with one state, with the same export.
    let (one, two, three) = (at("a", "one"), at("b", "two"), at("a", "three"));
    let uuids = [&one, &two, &three].map(|target| of(target, 0, "uuid"));
    assert!(uuids[0] != uuids[1] && uuids[0] != uuids[2] && uuids[1] != uuids[2], "{uuids:?}");
    assert_ne!(of(&one, 0, "nqn"), of(&two, 0, "nqn"));
    for target in [one, two, three] {
        target.stop();
    }

    // A copy with all its attributes, beside the original.
    copy(&testbed.path("one/disk"), &testbed.path("copy"));
    let target = testbed.start(&["x=file:one/disk", "y=file:copy"]);
    assert_eq!(of(&target, 0, "uuid"), uuids[0]);
    assert_ne!(of(&target, 1, "uuid"), uuids[0]);
    target.stop();

    // A UUID that was given twice is refused.
    let same = format!("uuid={}", uuids[0]);
    let exports = [format!("x=file:one/disk,{same}"), format!("y=mem:16MiB,{same}")];
    let ran = finish(testbed.target("state", &[&exports[0], &exports[1]]).spawn().expect("started"));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("x and y"), "{}", ran.stderr);
}
