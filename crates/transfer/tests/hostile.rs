//! Hostile or faulty clients of an agent, and full disks.

mod common;

use common::peer::*;
use common::*;
use longhaul_engine::Buf;
use longhaul_transfer::wire::{
    Batch, Close, Content, CopyDirection, Digest, Entry, EntryKind, Frame, Hash, Hello, Options, Placement,
    RefusalKind, RelPath, Request, VERSION,
};
use longhaul_transfer::{Agent, Concurrency, CopyError, Key, Monitor, SessionError, Settings, Summary, copy};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A batch whose name is another one of the same length.
fn renamed(from: &str, to: &str) -> Frame {
    assert_eq!(from.len(), to.len());
    let mut body = small(from, b"evil").into_body().to_vec();
    let at = body.windows(from.len()).position(|w| w == from.as_bytes()).expect("the name");
    body[at..at + to.len()].copy_from_slice(to.as_bytes());
    Frame::Batch(Buf::copy_of(&body))
}

/// A directory with `root` in it, and nothing beside it but what a test puts there.
fn served() -> (tempfile::TempDir, Agent) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("root")).expect("made");
    let agent = agent(&dir.path().join("root"));
    (dir, agent)
}

fn only_root(dir: &Path) {
    let names: Vec<_> = fs::read_dir(dir).expect("read").map(|e| e.expect("entry").file_name()).collect();
    assert_eq!(names, ["root"]);
}

#[test]
fn names_that_lead_out_end_the_session() {
    let (dir, agent) = served();
    let outside = format!("/{}", "x".repeat(9));
    for (from, to) in
        [("aa/evil", "../evil"), ("a/bb/evil", "a/../evil"), ("0123456789", &outside), ("aa/b", "aa//")]
    {
        let mut peer = Peer::welcomed(&agent, "");
        peer.send(renamed(from, to));
        let (_, end) = peer.end();
        assert!(matches!(&end, Some(Frame::Refuse(r)) if r.kind == RefusalKind::Protocol), "{to}: {end:?}");
    }
    only_root(dir.path());
}

#[test]
fn a_destination_or_a_source_outside_the_root_is_refused() {
    let (dir, agent) = served();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("root/up")).expect("linked");
    std::os::unix::fs::symlink("/etc", dir.path().join("root/etc")).expect("linked");
    for path in ["../x", "a/../../x", "up/x", "etc/x"] {
        for direction in [CopyDirection::Push, CopyDirection::Pull] {
            let mut peer = Peer::connect(&agent);
            peer.send(hello(direction, path, VERSION));
            assert!(matches!(peer.hear(), Some(Frame::Refuse(_))), "{path} {direction:?}");
        }
    }
    // The root of file systems is that of the agent here.
    let mut peer = Peer::connect(&agent);
    peer.send(hello(CopyDirection::Pull, "/etc/hostname", VERSION));
    assert!(matches!(peer.hear(), Some(Frame::Refuse(_))));
    assert!(!dir.path().join("x").exists());
}

#[test]
fn links_on_the_way_are_not_followed() {
    let (dir, agent) = served();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).expect("made");
    std::os::unix::fs::symlink(&outside, dir.path().join("root/old")).expect("linked");
    let mut peer = Peer::welcomed(&agent, "");
    // A link that was there, and one that the peer makes itself.
    let target = outside.to_str().expect("UTF-8").as_bytes().into();
    let mut link = Batch::default();
    link.push(&entry("new", EntryKind::Symlink(target), 0), &Content::None, &[]);
    peer.send(Frame::Batch(link.into_body()));
    peer.send(Frame::Batch(small("old/evil", b"evil").into_body()));
    peer.send(Frame::Batch(small("new/evil", b"evil").into_body()));
    // The same with a large file, and with a hard link to a file outside of the root.
    fs::write(outside.join("secret"), "secret").expect("written");
    let mut large = Batch::default();
    large.push(&entry("old/large", EntryKind::File, 4), &Content::Blocks(1), &[]);
    peer.send(Frame::Batch(large.into_body()));
    let (file, data) = (1, Buf::copy_of(b"evil"));
    peer.send(Frame::Block { file, offset: 0, digest: Hash::Quick.of(&data), data });
    peer.send(Frame::Close(Close { file, blocks: 1, good: true }));
    let mut hard = Batch::default();
    let first = RelPath::new(b"old/secret").expect("a good name");
    hard.push(&entry("mine", EntryKind::HardLink(first), 0), &Content::None, &[]);
    peer.send(Frame::Batch(hard.into_body()));
    peer.send(Frame::End { whole: true });
    let (mut troubles, end) = peer.end();
    troubles.sort();
    // Which of the two comes first, the link or the file below it, is open.
    troubles.retain(|name| name != "new/evil" && name != "new");
    assert_eq!(troubles, ["mine"]);
    assert!(matches!(end, Some(Frame::Finished(_))), "{end:?}");
    // An existing file makes room for a directory, as it does for any source that has one.
    let old = dir.path().join("root/old");
    assert!(!old.is_symlink() && old.join("evil").exists() && old.join("large").exists());
    let names: Vec<_> =
        fs::read_dir(&outside).expect("read").map(|e| e.expect("entry").file_name()).collect();
    assert_eq!(names, ["secret"]);
    assert!(!dir.path().join("root/mine").exists());
}

#[test]
fn content_with_another_checksum_is_not_written() {
    let (dir, agent) = served();
    let mut peer = Peer::welcomed(&agent, "");
    let mut damaged = small("small", b"content").into_body().to_vec();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    peer.send(Frame::Batch(Buf::copy_of(&damaged)));
    let mut large = Batch::default();
    large.push(&entry("large", EntryKind::File, 7), &Content::Blocks(1), &[]);
    peer.send(Frame::Batch(large.into_body()));
    peer.send(Frame::Block { file: 1, offset: 0, digest: Digest::default(), data: Buf::copy_of(b"content") });
    peer.send(Frame::Close(Close { file: 1, blocks: 1, good: true }));
    peer.send(Frame::End { whole: true });
    let (mut troubles, end) = peer.end();
    troubles.sort();
    assert_eq!(troubles, ["large", "small"]);
    assert!(matches!(end, Some(Frame::Finished(counts)) if counts.failed == 2), "{end:?}");
    assert_eq!(fs::read_dir(dir.path().join("root")).expect("read").count(), 0);
}

#[test]
fn misaligned_blocks_are_refused_with_any_checksum() {
    let (dir, agent) = served();
    let strong = Options { hash: Hash::Strong, ..Options::default() };
    let request =
        Request { place: Placement::Into, key: 1, options: strong, recursive: true, ..Request::default() };
    let (oldest, newest, direction) = (VERSION, VERSION, CopyDirection::Push);
    let mut peer = Peer::connect(&agent);
    peer.send(Frame::Hello(Box::new(Hello {
        oldest,
        newest,
        session: [7; 16],
        streams: 1,
        direction,
        request,
    })));
    assert!(matches!(peer.hear(), Some(Frame::Welcome(_))));
    // Chaining values exist of whole blocks at their places alone.
    let blocks = [(1, 1000, 10), (2, 1 << 20, 2 << 20), (3, 1 << 20, 0)];
    for (file, offset, len) in blocks {
        let mut batch = Batch::default();
        let name = format!("f{file}");
        batch.push(&entry(&name, EntryKind::File, 8 << 20), &Content::Blocks(file), &[]);
        peer.send(Frame::Batch(batch.into_body()));
        let data = Buf::copy_of(&vec![1; len]);
        peer.send(Frame::Block { file, offset, digest: Digest::default(), data });
        peer.send(Frame::Close(Close { file, blocks: 1, good: true }));
    }
    peer.send(Frame::End { whole: true });
    let (mut troubles, end) = peer.end();
    troubles.sort();
    assert_eq!(troubles, ["f1", "f2", "f3"]);
    assert!(matches!(end, Some(Frame::Finished(_))), "{end:?}");
    only_root(dir.path());
}

#[test]
fn a_block_that_cannot_be_written_leaves_nothing_behind() {
    let (dir, agent) = served();
    let mut peer = Peer::welcomed(&agent, "");
    // No file can be as large.
    let announced = entry("large", EntryKind::File, i64::MAX as u64);
    large(&announced, 1, &noise(1, 1 << 20)).into_iter().for_each(|frame| peer.send(frame));
    peer.send(Frame::Batch(small("other", b"good").into_body()));
    peer.send(Frame::End { whole: true });
    let (troubles, end) = peer.end();
    assert_eq!(troubles, ["large"]);
    assert!(matches!(end, Some(Frame::Finished(_))), "{end:?}");
    let names: Vec<_> = fs::read_dir(dir.path().join("root"))
        .expect("read")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["other"], "neither an unfinished file nor a journal");
}

#[test]
fn other_versions_and_other_protocols_are_refused_with_a_reason() {
    let (_dir, agent) = served();
    let mut peer = Peer::connect(&agent);
    peer.send(hello(CopyDirection::Push, "", VERSION + 1));
    let answer = peer.hear();
    assert!(matches!(&answer, Some(Frame::Refuse(r)) if r.kind == RefusalKind::Version), "{answer:?}");
    let mut peer = Peer::connect(&agent);
    peer.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(matches!(peer.hear(), Some(Frame::Refuse(r)) if r.kind == RefusalKind::Protocol));
    // A name that this program uses itself.
    let mut peer = Peer::welcomed(&agent, "");
    peer.send(renamed("0123456789abc", ".longhaul-abc"));
    assert!(matches!(peer.end().1, Some(Frame::Refuse(_))));
}

#[test]
fn a_read_only_agent_refuses_to_receive() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("f"), "1").expect("written");
    let agent = agent_with(dir.path(), |config| config.read_only = true);
    let refused = run(&spec(local(&dir.path().join("f")), at(&agent, "g")));
    assert!(matches!(refused, Err(CopyError::Refused(r)) if r.kind == RefusalKind::NotAllowed));
    run(&spec(at(&agent, "f"), local(&dir.path().join("g")))).expect("read");
}

/// `linux/posix_acl_xattr.h`: a list that names one user more.
fn list_of_one_more() -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    let any = u32::MAX;
    for (tag, permissions, id) in
        [(1u16, 7u16, any), (2, 7, 12345), (4, 5, any), (0x10, 7, any), (0x20, 5, any)]
    {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn senders_set_owners_and_privileges_only_with_allow_owner() {
    let own = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    for allowed in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let agent = agent_with(dir.path(), |config| config.allow_owner = allowed);
        let probe = dir.path().join("probe");
        fs::write(&probe, "").expect("written");
        let lists = rustix::fs::setxattr(
            &probe,
            "system.posix_acl_access",
            &list_of_one_more(),
            rustix::fs::XattrFlags::empty(),
        );
        let options = Options { owner: true, xattrs: true, ..Options::default() };
        let request =
            Request { place: Placement::Into, key: 1, options, recursive: true, ..Request::default() };
        let (oldest, newest, session) = (VERSION, VERSION, [7; 16]);
        let mut peer = Peer::connect(&agent);
        let hello = Hello { oldest, newest, session, streams: 1, direction: CopyDirection::Push, request };
        peer.send(Frame::Hello(Box::new(hello)));
        assert!(matches!(peer.hear(), Some(Frame::Welcome(_))));
        // What even an agent that is not root could set: its own user, set-user-ID.
        let announced = |name: &str, kind: EntryKind, size: u64| {
            let list = ((*b"system.posix_acl_access").into(), list_of_one_more().into());
            let xattrs = if lists.is_ok() { vec![list] } else { Vec::new() };
            Entry { mode: 0o6775, uid: own, gid: group, xattrs, ..entry(name, kind, size) }
        };
        let mut batch = Batch::default();
        batch.push(&announced("directory", EntryKind::Directory, 0), &Content::None, &[]);
        let shell = announced("small", EntryKind::File, 4);
        let content = Content::Inline { len: 4, digest: Hash::Quick.of(b"evil") };
        batch.push(&shell, &content, b"evil");
        peer.send(Frame::Batch(batch.into_body()));
        large(&announced("large", EntryKind::File, 4), 1, b"evil")
            .into_iter()
            .for_each(|frame| peer.send(frame));
        peer.send(Frame::End { whole: true });
        let (troubles, end) = peer.end();
        assert!(matches!(end, Some(Frame::Finished(_))), "{end:?}");
        // One line for the whole copy, and of no object of its own.
        assert_eq!(troubles, if allowed { vec![] } else { vec![".".to_owned()] });
        for name in ["small", "large", "directory"] {
            let path = dir.path().join(name);
            let mode = fs::symlink_metadata(&path).expect("it is there").mode() & 0o7777;
            let list = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut [0; 256]).is_ok();
            // Without the list the group does not get what the list's mask allows.
            let bare = if lists.is_ok() { 0o705 } else { 0o775 };
            assert_eq!(mode, if allowed { 0o6775 } else { bare }, "{name}");
            assert_eq!(list, allowed && lists.is_ok(), "{name}");
        }
    }
}

#[test]
fn clients_without_the_key_get_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("f"), "1").expect("written");
    let key = Key::random().expect("a key");
    let keyed = agent_with(dir.path(), |config| config.key = Some(key.clone()));
    let open = agent(dir.path());
    let copy_with = |agent: &Agent, key: Option<&Key>| {
        let settings = Settings { key: key.cloned(), ..Settings::default() };
        let monitor = std::sync::Arc::new(Monitor::new());
        copy(&spec(at(agent, "f"), local(&dir.path().join("g"))), &settings, &monitor)
    };
    let refused = |result: Result<Summary, CopyError>| {
        assert!(
            matches!(&result, Err(CopyError::Refused(r)) if r.kind == RefusalKind::NotAllowed),
            "{result:?}"
        );
    };
    refused(copy_with(&keyed, None));
    refused(copy_with(&keyed, Some(&Key::random().expect("a key"))));
    refused(copy_with(&open, Some(&key)));
    // A peer that offers no key gets no further.
    let mut peer = Peer::connect(&keyed);
    peer.send(Frame::Join([1; 16]));
    assert!(matches!(peer.hear(), Some(Frame::Refuse(_))));
    assert!(!dir.path().join("g").exists());
    copy_with(&keyed, Some(&key)).expect("let in");
    assert_eq!(fs::read(dir.path().join("g")).expect("there"), b"1");
}

#[test]
fn an_encrypted_copy_sends_no_plain_text() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, root) = (dir.path().join("source"), dir.path().join("root"));
    fs::create_dir(&root).expect("made");
    make_tree(&source);
    fs::write(source.join("telltale-name"), b"telltale content".repeat(100)).expect("written");
    let key = Key::random().expect("a key");
    let agent = agent_with(&root, |config| config.key = Some(key.clone()));
    // A tap that keeps all bytes of both directions.
    let tap = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let (there, seen) = (agent.address(), std::sync::Arc::new(std::sync::Mutex::new(Vec::new())));
    let address = tap.local_addr().expect("an address");
    let keep = std::sync::Arc::clone(&seen);
    std::thread::spawn(move || {
        for near in tap.incoming().flatten() {
            let far = TcpStream::connect(there).expect("connected");
            for (mut from, mut to) in [(&near, &far), (&far, &near)]
                .map(|(a, b)| (a.try_clone(), b.try_clone()))
                .map(|(a, b)| (a.expect("cloned"), b.expect("cloned")))
            {
                let keep = std::sync::Arc::clone(&keep);
                std::thread::spawn(move || {
                    let mut buf = vec![0; 65536];
                    while let Ok(n @ 1..) = from.read(&mut buf) {
                        keep.lock().expect("lock").extend_from_slice(&buf[..n]);
                        if to.write_all(&buf[..n]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    let settings = Settings { key: Some(key), ..Settings::default() };
    let spec = spec(local(&source), endpoint(&format!("lh://{address}/copy")));
    copy(&spec, &settings, &std::sync::Arc::new(Monitor::new())).expect("copied");
    assert_same(&source, &root.join("copy"));
    let seen = seen.lock().expect("lock");
    assert!(seen.len() > 5_000_000, "the tap saw {} bytes", seen.len());
    assert!(!seen.windows(8).any(|w| w == b"telltale"));
}

#[test]
fn two_runs_of_the_same_copy_exclude_each_other() {
    let (_dir, agent) = served();
    let _first = Peer::welcomed(&agent, "");
    let mut second = Peer::connect(&agent);
    second.send(hello(CopyDirection::Push, "", VERSION));
    assert!(matches!(second.hear(), Some(Frame::Refuse(r)) if r.kind == RefusalKind::Busy));
}

#[test]
fn a_full_disk_ends_the_copy_with_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, root) = (dir.path().join("source"), dir.path().join("root"));
    fs::create_dir(&root).expect("made");
    fs::create_dir(&source).expect("made");
    for i in 0..8 {
        fs::write(source.join(format!("f{i}")), noise(i, 1 << 20)).expect("written");
    }
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=3m", "none"]).arg(&root).status();
    if !mounted.is_ok_and(|status| status.success()) {
        longhaul_skip::skip!("a small file system cannot be mounted");
        return;
    }
    let result = {
        let agent = agent(&root);
        run(&spec(local(&source), at(&agent, "copy")))
    };
    let unmounted = Command::new("umount").arg("-l").arg(&root).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    match result {
        Err(CopyError::Session(SessionError::Refused(r))) => assert_eq!(r.kind, RefusalKind::Storage),
        other => panic!("{other:?}"),
    }
}

#[test]
fn special_files_are_reported_and_the_rest_is_copied() {
    let (dir, agent) = served();
    let source = dir.path().join("source");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("f"), "1").expect("written");
    let made = Command::new("mkfifo").arg(source.join("pipe")).status();
    assert!(made.is_ok_and(|status| status.success()));
    let (result, troubles) = run_watched(&spec(local(&source), at(&agent, "copy")));
    assert_eq!(result.expect("done").counts.failed, 1);
    assert_eq!(troubles, [("source/pipe".to_owned(), "scan")]);
    assert_eq!(fs::read(dir.path().join("root/copy/f")).expect("there"), b"1");
}

#[test]
fn a_file_that_grows_while_it_is_read_does_not_appear_half() {
    let (dir, agent) = served();
    let path = dir.path().join("log");
    fs::write(&path, noise(1, 64 << 20)).expect("written");
    let writing = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let (going, log) = (std::sync::Arc::clone(&writing), path.clone());
    let writer = std::thread::spawn(move || {
        let mut file = fs::File::options().append(true).open(log).expect("open");
        while going.load(std::sync::atomic::Ordering::Relaxed) {
            file.write_all(b"more").expect("written");
            std::thread::yield_now();
        }
    });
    let (result, troubles) = run_watched(&spec(local(&path), at(&agent, "log")));
    writing.store(false, std::sync::atomic::Ordering::Relaxed);
    writer.join().expect("joined");
    assert_eq!(result.expect("done").counts.failed, 1);
    assert_eq!(troubles, [("log".to_owned(), "changed")]);
    assert_eq!(fs::read_dir(dir.path().join("root")).expect("read").count(), 0);
}

#[test]
fn memory_of_a_hello_is_bounded_by_its_frame() {
    let (dir, agent) = served();
    fs::create_dir(dir.path().join("root/a")).expect("made");
    // Every file below every source: more than any memory holds.
    let (sources, files) = (vec![b"a".to_vec(); 60_000], vec![b"f".to_vec(); 400_000]);
    let request = Request { sources, files, recursive: true, ..Request::default() };
    let (oldest, newest, direction) = (VERSION, VERSION, CopyDirection::Pull);
    let mut peer = Peer::connect(&agent);
    let (session, streams) = ([7; 16], 1);
    peer.send(Frame::Hello(Box::new(Hello { oldest, newest, session, streams, direction, request })));
    let answer = peer.hear();
    assert!(matches!(answer, Some(Frame::Welcome(_))), "{answer:?}");
    drop(peer);
    run(&spec(endpoint("zero:1"), at(&agent, "alive"))).expect("it still serves");
}

#[test]
fn clients_without_the_key_get_no_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let key = Key::random().expect("a key");
    let keyed = agent_with(dir.path(), |config| config.key = Some(key.clone()));
    let header = |kind: u8, body: u32| [&[kind, 0, 0, 0][..], &body.to_le_bytes()].concat();
    // Headers of a batch, an answer and a handshake whose bodies never arrive.
    for (agent, kind) in [(&keyed, 5), (&keyed, 7), (&keyed, 14), (&agent(dir.path()), 5)] {
        let mut peer = Peer::connect(agent);
        peer.raw(&header(kind, 2 << 20));
        let answer = peer.hear();
        assert!(matches!(&answer, Some(Frame::Refuse(r)) if r.kind == RefusalKind::Protocol), "{answer:?}");
    }
    // Without the key, a request is refused unread.
    let mut peer = Peer::connect(&keyed);
    peer.raw(&header(1, 1 << 20));
    peer.raw(&vec![0xFF; 1 << 20]);
    assert!(matches!(peer.hear(), Some(Frame::Refuse(r)) if r.kind == RefusalKind::NotAllowed));
}

#[test]
fn a_sender_that_reads_no_answers_is_not_read_from() {
    let (_dir, agent) = served();
    let mut peer = Peer::welcomed(&agent, "");
    peer.0.set_write_timeout(Some(Duration::from_secs(3))).expect("set");
    // None of these is what its checksum says. Their names come back.
    let long = format!("d{}", format!("/{}", "n".repeat(250)).repeat(16));
    let content = Content::Inline { len: 1, digest: Hash::Quick.of(b"other") };
    let mut batch = Batch::default();
    for _ in 0..250 {
        batch.push(&entry(&long, EntryKind::File, 1), &content, b"1");
    }
    let (head, body) = Frame::Batch(batch.into_body()).encode();
    let frame = [head, body.expect("a body").to_vec()].concat();
    let sent = (0..200).take_while(|_| peer.0.write_all(&frame).is_ok()).count();
    assert!(
        sent < 200,
        "the agent received {} MiB of requests that it could not answer",
        (sent * frame.len()) >> 20
    );
}

#[test]
fn a_silent_peer_keeps_neither_a_session_nor_a_lock() {
    let dir = tempfile::tempdir().expect("a directory");
    let agent = agent_with(dir.path(), |config| config.patience = Duration::from_millis(500));
    let mut silent = Peer::welcomed(&agent, "");
    let (_, end) = silent.end();
    assert!(matches!(&end, Some(Frame::Refuse(_))), "{end:?}");
    // The same copy: it would be refused while the other lasts.
    Peer::welcomed(&agent, "");
    // A peer that sends a valid request, and receives nothing.
    fs::write(dir.path().join("f"), "1").expect("written");
    let mut silent = Peer::connect(&agent);
    silent.send(hello(CopyDirection::Pull, "f", VERSION));
    while silent.hear().is_some() {}
}

#[test]
fn many_copies_in_a_row_are_all_served() {
    let dir = tempfile::tempdir().expect("a directory");
    let agent = agent(dir.path());
    let settings = Settings { streams: Concurrency::Fixed(16), ..Settings::default() };
    // 15 of the connections of each wait for the first: 3,000 in all.
    for i in 0..200 {
        let copied = copy(
            &spec(endpoint("zero:1"), at(&agent, "null:")),
            &settings,
            &std::sync::Arc::new(Monitor::new()),
        );
        assert!(copied.is_ok(), "copy {i}: {copied:?}");
    }
}

#[test]
fn a_device_or_a_pipe_is_never_replaced() {
    let (dir, agent) = served();
    let root = dir.path().join("root");
    fs::write(dir.path().join("f"), "1").expect("written");
    let made = Command::new("mkfifo").arg(root.join("pipe")).status();
    assert!(made.is_ok_and(|status| status.success()));
    std::os::unix::fs::symlink("pipe", root.join("link")).expect("linked");
    let from = || local(&dir.path().join("f"));
    for to in [local(&root.join("pipe")), at(&agent, "pipe"), local(&root.join("link")), at(&agent, "link")] {
        let result = run(&spec(from(), to));
        assert!(
            matches!(&result, Err(CopyError::Refused(r)) if r.kind == RefusalKind::NotAllowed),
            "{result:?}"
        );
    }
    let kind = |name: &str| fs::symlink_metadata(root.join(name)).expect("there").file_type();
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind("pipe")) && kind("link").is_symlink());
}

#[test]
fn a_directory_swapped_for_a_link_leads_nowhere_outside() {
    let (dir, agent) = served();
    let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("d/e")).expect("made");
    fs::create_dir(&outside).expect("made");
    for i in 0..300 {
        fs::write(source.join(format!("d/e/f{i}")), noise(i, 1000)).expect("written");
    }
    for i in 0..4 {
        fs::write(source.join(format!("d/large{i}")), noise(i, 3 << 20)).expect("written");
    }
    let swapping = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let swaps = {
        let (going, place, aside) = (swapping.clone(), root.join("source/d"), root.join("aside"));
        let outside = outside.clone();
        std::thread::spawn(move || {
            let mut swaps = 0;
            while going.load(std::sync::atomic::Ordering::Relaxed) {
                if fs::rename(&place, &aside).is_ok() {
                    let _ = std::os::unix::fs::symlink(&outside, &place);
                    std::thread::yield_now();
                    // The name may be a directory by now, which is removed as well.
                    let _ = fs::remove_file(&place);
                    let _ = fs::remove_dir_all(&place);
                    let _ = fs::rename(&aside, &place);
                    swaps += 1;
                }
            }
            swaps
        })
    };
    for _ in 0..10 {
        let (result, _) = run_watched(&spec(local(&source), at(&agent, "")));
        result.expect("files that could not be written are listed");
    }
    swapping.store(false, std::sync::atomic::Ordering::Relaxed);
    let swaps = swaps.join().expect("joined");
    assert!(swaps > 0);
    let escaped: Vec<_> = fs::read_dir(&outside).expect("read").collect();
    assert!(escaped.is_empty(), "{escaped:?} after {swaps} swaps");
}
