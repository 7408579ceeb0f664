//! Namespaces that change, refuse or fail, and limits.

mod common;

use common::{NQN, backend, connect, disk, export, in_time, pattern, read, serve, target, until};
use futures_util::StreamExt;
use longhaul_block::{BlockDevice, Blocking, IoError, WriteFlags};
use longhaul_engine::{Buf, BufMut, Config as EngineConfig, Engine};
use longhaul_initiator::{ControllerEvent, Error, Options};
use longhaul_target::{HostAccess, HostRights};
use std::sync::Arc;
use uuid::Uuid;

#[test]
fn a_namespace_that_grows_is_seen() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk");
    let (target, uri) = serve(&format!("file:{},size=8MiB,block=512", path.display()));
    let device = connect(&uri, Options::default()).expect("connected");
    let mut events = device.events();
    let disk = Blocking::open(device.clone()).expect("opened");
    disk.write_at(&pattern(4096, 1), 8 << 20).expect_err("past the end");
    assert!(target.refresh().is_empty(), "nothing has changed yet");

    std::fs::OpenOptions::new().write(true).open(&path).expect("opened").set_len(16 << 20).expect("grown");
    let changes = target.refresh();
    assert_eq!((changes.len(), changes[0].1, changes[0].2.size), (1, 1, 16 << 20));
    let event = in_time("the event", move || {
        Engine::new(&EngineConfig::default()).expect("engine").block_on(events.next())
    });
    assert_eq!(event, Some(ControllerEvent::NamespaceChanged(1)));
    until("the new size", || device.info().size == 16 << 20);
    disk.write_at(&pattern(4096, 1), (16 << 20) - 4096).expect("written");
    assert!(read(&disk, (16 << 20) - 4096, 4096).expect("read") == pattern(4096, 1));

    // The event is armed again.
    std::fs::OpenOptions::new().write(true).open(&path).expect("opened").set_len(24 << 20).expect("grown");
    target.refresh();
    until("the third size", || device.info().size == 24 << 20);
}

/// As an array does: it does not tell the target.
#[test]
fn a_device_that_grows_by_itself_is_announced() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk");
    let target = target(|_| {});
    let grows = backend(&format!("file:{},size=8MiB", path.display()));
    let nsid = target.export(NQN, "disk", grows.clone(), Uuid::new_v4()).expect("exported");
    let uri = format!("nvme+tcp://{}/{NQN}?nsid={nsid}", target.addresses()[0]);
    let device = connect(&uri, Options::default()).expect("connected");
    std::fs::OpenOptions::new().write(true).open(&path).expect("opened").set_len(16 << 20).expect("grown");
    assert_eq!(grows.refresh().expect("looked").size, 16 << 20);
    until("the new size", || device.info().size == 16 << 20);
    let disk = Blocking::open(device).expect("opened");
    disk.write_at(&pattern(4096, 1), (16 << 20) - 4096).expect("written");
}

#[test]
fn a_namespace_that_is_removed_refuses_and_others_go_on() {
    let target = target(|_| {});
    let (one, two) = (export(&target, "mem:8MiB"), export(&target, "mem:8MiB"));
    let device = connect(&one, Options::default()).expect("connected");
    let mut events = device.events();
    let (first, second) = (Blocking::open(device.clone()).expect("opened"), disk(&two, Options::default()));
    first.write_at(&pattern(4096, 1), 0).expect("written");
    assert!(target.remove_namespace(NQN, 1));
    assert!(!target.remove_namespace(NQN, 1), "it was removed before");
    let event = in_time("the event", move || {
        Engine::new(&EngineConfig::default()).expect("engine").block_on(events.next())
    });
    assert_eq!(event, Some(ControllerEvent::NamespaceChanged(1)));
    let e = read(&first, 0, 4096).expect_err("it was removed");
    assert!(matches!(e, IoError::Refused(_)), "{e}");
    second.write_at(&pattern(4096, 2), 0).expect("written");
    assert!(read(&second, 0, 4096).expect("read") == pattern(4096, 2));
    // Another device under the same number is another namespace.
    assert_eq!(target.export(NQN, "disk", backend("mem:4MiB"), Uuid::new_v4()).expect("exported"), 1);
    assert_eq!(read(&disk(&one, Options::default()), 0, 4096).expect("read"), [0; 4096]);
}

#[test]
fn a_controller_has_so_many_queues_and_no_more() {
    let target = target(|config| config.max_queues = 2);
    let uri = export(&target, "mem:8MiB");
    let device = connect(&uri, Options::default()).expect("connected");
    assert_eq!(device.controller().queues, 2);
    let shared: Arc<dyn BlockDevice> = device.clone();
    let one = Blocking::open(shared.clone()).expect("opened");
    let two = Blocking::open(shared.clone()).expect("opened");
    let e = Blocking::open(shared.clone()).map(drop).expect_err("there are two");
    assert!(e.to_string().contains("it grants 2 in all"), "{e}");
    one.write_at(&pattern(4096, 1), 0).expect("written");
    assert!(read(&two, 0, 4096).expect("read") == pattern(4096, 1));
    drop(one);
    // A queue that was given back is had again, once the target has noticed.
    until("another queue", || Blocking::open(shared.clone()).is_ok());
    assert!(read(&two, 0, 4096).expect("read") == pattern(4096, 1));
}

#[test]
fn queues_are_no_longer_than_the_controller_has_them() {
    let target = target(|config| config.max_queue_size = 16);
    let uri = export(&target, "mem:8MiB");
    let device = connect(&uri, Options { queue_size: 1024, ..Options::default() }).expect("connected");
    assert_eq!(device.controller().queue_entries, 16);
    Engine::new(&EngineConfig::default()).expect("engine").block_on(async {
        let io = device.open().await.expect("opened");
        let reads: Vec<_> = (0..64).map(|i| io.read(i * 4096, BufMut::zeroed(4096))).collect();
        for read in reads {
            read.await.expect("read");
        }
    });
}

#[test]
fn only_hosts_that_are_allowed_come_in() {
    let friend = "nqn.2026-11.io.longhaul:test:friend";
    let target = target(|config| config.hosts.all = HostAccess::Only([friend.to_owned()].into()).into());
    let uri = export(&target, "mem:8MiB");
    let e = connect(&uri, Options::default()).expect_err("a stranger");
    assert!(matches!(e, Error::Refused { .. }), "{e}");
    assert!(e.to_string().contains("not allowed"), "{e}");
    let options = Options { hostnqn: friend.into(), ..Options::default() };
    let disk = disk(&uri, options);
    disk.write_at(&pattern(4096, 1), 0).expect("written");
}

#[test]
fn a_subsystem_may_have_hosts_of_its_own() {
    let [friend, other] = ["friend", "other"].map(|name| format!("nqn.2026-11.io.longhaul:test:{name}"));
    let target = target(|config| {
        config.hosts.all = HostAccess::Only([friend.clone()].into()).into();
        config.hosts.of.insert(NQN.into(), HostAccess::Only([other.clone()].into()).into());
    });
    let uri = export(&target, "mem:8MiB");
    let of = |name: &str| Options { hostnqn: name.to_owned(), ..Options::default() };
    let e = connect(&uri, of(&friend)).expect_err("a host of the other subsystems");
    assert!(matches!(e, Error::Refused { .. }), "{e}");
    disk(&uri, of(&other)).write_at(&pattern(4096, 1), 0).expect("written");
}

/// One host publishes, and others read.
#[test]
fn a_host_that_may_only_read_changes_nothing() {
    let [writer, reader, stranger] =
        ["writer", "reader", "stranger"].map(|name| format!("nqn.2026-11.io.longhaul:test:{name}"));
    let only = |names: &[&String]| HostAccess::Only(names.iter().map(|name| (*name).clone()).collect());
    let target = target(|config| {
        let rights = HostRights { read: only(&[&writer, &reader]), write: only(&[&writer]) };
        config.hosts.of.insert(NQN.into(), rights);
    });
    let uri = export(&target, "mem:8MiB");
    let of = |name: &str| Options { hostnqn: name.to_owned(), ..Options::default() };
    connect(&uri, of(&stranger)).map(drop).expect_err("it is on no list");
    let (writes, reads) = (disk(&uri, of(&writer)), disk(&uri, of(&reader)));
    assert_eq!((writes.info().read_only, reads.info().read_only), (false, true));
    writes.write_at(&pattern(65_536, 1), 0).expect("written");
    assert_eq!(reads.write_at(&[1; 4096], 0), Err(IoError::ReadOnly));
    assert_eq!(reads.write_zeroes(0, 4096), Err(IoError::ReadOnly));
    assert_eq!(reads.discard(0, 4096), Err(IoError::ReadOnly));
    reads.flush().expect("nothing to flush");
    assert!(read(&reads, 0, 65_536).expect("it may read") == pattern(65_536, 1));
    writes.write_at(&pattern(4096, 2), 0).expect("it goes on");
    assert!(read(&reads, 0, 4096).expect("read") == pattern(4096, 2));
}

#[test]
fn a_read_only_export_refuses_writes() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk");
    std::fs::write(&path, pattern(1 << 20, 1)).expect("made");
    for spec in [format!("file:{},ro", path.display()), "mem:1MiB,ro".into()] {
        let (_target, uri) = serve(&spec);
        let disk = disk(&uri, Options::default());
        assert!(disk.info().read_only, "{spec}");
        assert_eq!(disk.write_at(&[1; 4096], 0), Err(IoError::ReadOnly), "{spec}");
        assert_eq!(disk.write_zeroes(0, 4096), Err(IoError::ReadOnly), "{spec}");
        assert_eq!(disk.discard(0, 4096), Err(IoError::ReadOnly), "{spec}");
        read(&disk, 0, 65_536).expect("reads pass");
        disk.flush().expect("nothing to flush");
    }
    assert!(std::fs::read(&path).expect("read") == pattern(1 << 20, 1));
}

#[test]
fn errors_of_the_medium_come_through_and_the_connection_lives() {
    let (target, uri) =
        serve("mem:8MiB,error=1:range=1MiB-2MiB:ops=read,error=1:range=2MiB-3MiB:ops=write+zero");
    let disk = disk(&uri, Options::default());
    let connections = target.connections();
    for _ in 0..10 {
        let e = read(&disk, 1 << 20, 4096).expect_err("injected");
        assert!(matches!(e, IoError::Medium(_)), "{e}");
        let e = disk.write_at(&[1; 4096], 2 << 20).expect_err("injected");
        assert!(matches!(e, IoError::Medium(_)), "{e}");
        let e = disk.write_zeroes(2 << 20, 4096).expect_err("injected");
        assert!(matches!(e, IoError::Medium(_)), "{e}");
        disk.write_at(&pattern(1 << 20, 1), 0).expect("written");
        assert!(read(&disk, 0, 1 << 20).expect("read") == pattern(1 << 20, 1));
    }
    assert_eq!(target.connections(), connections, "the connections were kept");
}

/// A part of a large transfer fails: the whole fails, and the queue lives.
#[test]
fn a_part_that_fails_fails_the_whole() {
    let (_target, uri) = serve("mem:16MiB,error=1:range=5MiB-6MiB,delay=1ms");
    let device = connect(&uri, Options::default()).expect("connected");
    in_time("the transfers", move || {
        Engine::new(&EngineConfig::default()).expect("engine").block_on(async {
            let io = device.open().await.expect("opened");
            for _ in 0..5 {
                let e = io.read(0, BufMut::zeroed(8 << 20)).await.expect_err("injected");
                assert!(matches!(e, IoError::Medium(_)), "{e}");
                let bytes = Buf::copy_of(&pattern(8 << 20, 2));
                io.write(0, bytes, WriteFlags::default()).await.expect_err("injected");
                io.read(8 << 20, BufMut::zeroed(4 << 20)).await.expect("read");
            }
        });
    });
}

#[test]
fn a_full_medium_is_told_as_such() {
    let (_target, uri) = serve("mem:8MiB,error=1:ops=write:kind=nospace:range=4MiB-8MiB");
    let disk = disk(&uri, Options::default());
    assert_eq!(disk.write_at(&[1; 4096], 4 << 20), Err(IoError::NoSpace));
    disk.write_at(&[1; 4096], 0).expect("there is room");
    assert_eq!(read(&disk, 0, 4096).expect("read"), [1; 4096]);
}

#[test]
fn the_controller_can_be_closed_and_says_so() {
    let (target, uri) = serve("mem:8MiB");
    let device = connect(&uri, Options::default()).expect("connected");
    let disk = Blocking::open(device.clone()).expect("opened");
    disk.write_at(&[1; 4096], 0).expect("written");
    let closing = device.clone();
    in_time("closing", move || {
        Engine::new(&EngineConfig::default()).expect("engine").block_on(closing.close());
    });
    let e = read(&disk, 0, 4096).expect_err("closed");
    assert!(matches!(e, IoError::Unreachable(_)), "{e}");
    let e = Blocking::open(device).map(drop).expect_err("closed");
    assert!(e.to_string().contains("closed"), "{e}");
    until("the connections to end", || target.connections() == 0);
}
