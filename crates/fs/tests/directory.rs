//! A directory behind the interface: what a client can do, and cannot.

use longhaul_engine::Buf;
use longhaul_fs::{
    Attributes, Call, Changes, Directory, Errno, FileKind, FileSystem, Handle, Node, Reply, Stream,
};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn directory(path: &Path, read_only: bool) -> Directory {
    let root = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("opened");
    Directory::new(root, read_only).expect("a directory")
}

fn lookup(files: &Directory, parent: Node, name: &str) -> Result<Attributes, Errno> {
    match files.wait(Call::Lookup { parent, name: name.into() })? {
        Reply::Entry(attributes) => Ok(attributes),
        other => panic!("{other:?}"),
    }
}

fn open(files: &Directory, node: Node, flags: OFlags) -> Result<Handle, Errno> {
    match files.wait(Call::Open { node, flags: flags.bits() })? {
        Reply::Opened(_, handle) => Ok(handle),
        other => panic!("{other:?}"),
    }
}

fn read(files: &Directory, handle: Handle) -> Vec<u8> {
    match files.wait(Call::Read { handle, offset: 0, len: 1 << 20 }) {
        Ok(Reply::Data(data)) => data.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn list(files: &Directory, node: Node) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), 0);
    loop {
        let call = Call::ReadDirectory { node, stream: Stream(node.0), after };
        let Ok(Reply::Listing(entries, is_last)) = files.wait(call) else { panic!("not listed") };
        after = entries.last().map_or(after, |entry| entry.position);
        names.extend(entries.into_iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()));
        if is_last {
            names.sort_unstable();
            return names;
        }
    }
}

#[test]
fn objects_are_made_renamed_and_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = directory(dir.path(), false);
    let root = Node::ROOT;
    let Ok(Reply::Entry(sub)) =
        files.wait(Call::MakeDirectory { parent: root, name: b"sub".to_vec(), mode: 0o750 })
    else {
        panic!("not made");
    };
    let flags = OFlags::RDWR.bits();
    let create = Call::Create { parent: sub.node, name: b"file".to_vec(), mode: 0o640, flags };
    let Ok(Reply::Created(file, handle)) = files.wait(create) else { panic!("not created") };
    let data = Buf::copy_of(b"content");
    assert!(matches!(files.wait(Call::Write { handle, offset: 3, data }), Ok(Reply::Written(7))));
    assert_eq!(fs::read(dir.path().join("sub/file")).expect("read"), b"\0\0\0content");
    // The node keeps its meaning when a directory above it gets another name.
    let rename = Call::Rename {
        parent: root,
        name: b"sub".to_vec(),
        new_parent: root,
        new_name: b"other".to_vec(),
        flags: 0,
    };
    assert!(files.wait(rename).is_ok());
    let changes = Changes { mode: Some(0o600), size: Some(4), ..Changes::default() };
    let changed = files.wait(Call::Change { node: file.node, handle: None, changes });
    let Ok(Reply::Attributes(changed)) = changed else { panic!("{changed:?}") };
    assert_eq!((changed.size, changed.mode, changed.kind()), (4, 0o100_600, FileKind::Regular));
    // A further name of the same object.
    let Ok(Reply::Entry(linked)) =
        files.wait(Call::Link { node: file.node, parent: root, name: b"hard".to_vec() })
    else {
        panic!("not linked");
    };
    assert_eq!((linked.node, linked.links), (file.node, 2));
    // It is found by the name that is left, and when none is, by its handle.
    assert!(files.wait(Call::Remove { parent: root, name: b"hard".to_vec(), directory: false }).is_ok());
    let older = files.wait(Call::Attributes { node: file.node, handle: None });
    assert!(
        matches!(older, Ok(Reply::Attributes(file)) if file.links == 1),
        "not found by its older name: {older:?}"
    );
    assert!(files.wait(Call::Remove { parent: sub.node, name: b"file".to_vec(), directory: false }).is_ok());
    assert_eq!(read(&files, handle), b"\0\0\0c");
    assert!(files.wait(Call::Attributes { node: file.node, handle: Some(handle) }).is_ok());
    assert_eq!(
        files.wait(Call::Attributes { node: file.node, handle: None }).expect_err("removed"),
        Errno::NOENT
    );
    assert!(files.wait(Call::Remove { parent: root, name: b"other".to_vec(), directory: true }).is_ok());
    assert_eq!(list(&files, root), Vec::<String>::new());
}

#[test]
fn no_path_leads_outside() {
    let base = tempfile::tempdir().expect("a directory");
    let (inside, outside) = (base.path().join("in"), base.path().join("out"));
    fs::create_dir_all(inside.join("dir")).expect("made");
    fs::create_dir(&outside).expect("made");
    fs::write(outside.join("secret"), b"secret").expect("written");
    fs::write(inside.join("dir/secret"), b"mine").expect("written");
    symlink(&outside, inside.join("link")).expect("linked");
    symlink(outside.join("secret"), inside.join("file")).expect("linked");
    let files = directory(&inside, false);
    for name in ["..", ".", "", "../out", "dir/secret", "a\0b"] {
        assert_eq!(lookup(&files, Node::ROOT, name).expect_err(name), Errno::INVAL);
    }
    // A link is an object of its own, and is followed by the client's kernel.
    let link = lookup(&files, Node::ROOT, "link").expect("found");
    assert_eq!(link.kind(), FileKind::Symlink);
    assert!(lookup(&files, link.node, "secret").is_err(), "a link was followed");
    let file = lookup(&files, Node::ROOT, "file").expect("found");
    assert!(open(&files, file.node, OFlags::RDONLY).is_err(), "a link was opened");
    let changes = Changes { mode: Some(0o777), ..Changes::default() };
    let _ = files.wait(Call::Change { node: file.node, handle: None, changes });
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
    assert_ne!(mode(&outside.join("secret")), 0o777, "a mode was changed through a link");
    // A directory that is known is replaced by a link to the outside.
    let dir = lookup(&files, Node::ROOT, "dir").expect("found");
    let secret = lookup(&files, dir.node, "secret").expect("found");
    fs::rename(inside.join("dir"), inside.join("was")).expect("renamed");
    symlink(&outside, inside.join("dir")).expect("linked");
    let stale = |result: Result<Reply, Errno>| assert_eq!(result.expect_err("outside"), Errno::STALE);
    stale(files.wait(Call::Lookup { parent: dir.node, name: b"secret".to_vec() }));
    stale(files.wait(Call::Open { node: secret.node, flags: 0 }));
    stale(files.wait(Call::ReadDirectory { node: dir.node, stream: Stream(1), after: 0 }));
    // And a file by another file.
    fs::write(inside.join("a"), b"first").expect("written");
    let a = lookup(&files, Node::ROOT, "a").expect("found");
    fs::write(inside.join("b"), b"second").expect("written");
    fs::rename(inside.join("b"), inside.join("a")).expect("renamed");
    stale(files.wait(Call::Open { node: a.node, flags: 0 }));
    let a = lookup(&files, Node::ROOT, "a").expect("found");
    assert_eq!(read(&files, open(&files, a.node, OFlags::RDONLY).expect("opened")), b"second");
}

#[test]
fn a_read_only_directory_is_not_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("file"), b"content").expect("written");
    let files = directory(dir.path(), true);
    let file = lookup(&files, Node::ROOT, "file").expect("found");
    let (parent, name) = (Node::ROOT, || b"new".to_vec());
    let changes = Changes { size: Some(0), ..Changes::default() };
    for call in [
        Call::Create { parent, name: name(), mode: 0o600, flags: 0 },
        Call::MakeDirectory { parent, name: name(), mode: 0o700 },
        Call::MakeNode { parent, name: name(), mode: 0o100_600, rdev: 0 },
        Call::MakeSymlink { parent, name: name(), target: name() },
        Call::Link { node: file.node, parent, name: name() },
        Call::Remove { parent, name: b"file".to_vec(), directory: false },
        Call::Rename { parent, name: b"file".to_vec(), new_parent: parent, new_name: name(), flags: 0 },
        Call::Change { node: file.node, handle: None, changes },
        Call::Open { node: file.node, flags: OFlags::RDWR.bits() },
        Call::Open { node: file.node, flags: OFlags::TRUNC.bits() },
        Call::SetXattr { node: file.node, name: b"user.a".to_vec(), value: name(), flags: 0 },
        Call::RemoveXattr { node: file.node, name: b"user.a".to_vec() },
    ] {
        let shown = format!("{call:?}");
        assert_eq!(files.wait(call).expect_err(&shown), Errno::ROFS);
    }
    let handle = open(&files, file.node, OFlags::RDONLY).expect("opened");
    assert_eq!(read(&files, handle), b"content");
    assert_eq!(list(&files, Node::ROOT), ["file"]);
}

#[test]
fn a_large_directory_is_listed_page_by_page_and_forgotten() {
    let dir = tempfile::tempdir().expect("a directory");
    let name = |number: u32| format!("{number:06}-{}", "x".repeat(200));
    for number in 0..5000 {
        fs::write(dir.path().join(name(number)), b"").expect("written");
    }
    let files = directory(dir.path(), true);
    let all: Vec<String> = (0..5000).map(name).collect();
    assert_eq!(list(&files, Node::ROOT), all);
    // Once more from the beginning, in the same stream.
    assert_eq!(list(&files, Node::ROOT), all);
    let before = files.known();
    assert_eq!(before, 5000);
    for entry in all.iter().map(|name| lookup(&files, Node::ROOT, name).expect("found")) {
        files.wait(Call::Forget { node: entry.node, lookups: 3 }).expect("forgotten");
    }
    assert_eq!(files.known(), 0, "forgotten nodes are kept");
}

#[test]
fn special_files_are_not_opened() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = directory(dir.path(), false);
    let fifo = Call::MakeNode { parent: Node::ROOT, name: b"fifo".to_vec(), mode: 0o010_600, rdev: 0 };
    let Ok(Reply::Entry(fifo)) = files.wait(fifo) else { panic!("not made") };
    assert_eq!(fifo.kind(), FileKind::Fifo);
    // It would wait for a writer.
    assert!(open(&files, fifo.node, OFlags::RDONLY).is_err());
}
