//! Exports that a running target gets and loses, as hosts see it.

mod common;

use common::{NQN, backend, connect, disk, export, hold_disk, in_time, pattern, read, target, until};
use longhaul_block::filter::OpKind;
use longhaul_block::{BackendSpec, BlockDevice, Blocking, IoError};
use longhaul_initiator::{ControllerEvent, Error, Options};
use longhaul_target::{
    ChangeError, HostAccess, HostLists, HostRates, HostRights, InUse, Target, TargetChanges,
};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

const OTHER: &str = "nqn.2026-11.io.longhaul:test:other";

fn changes() -> TargetChanges {
    TargetChanges::default()
}

fn removed(nqn: &str, nsid: u32) -> TargetChanges {
    TargetChanges { removed: vec![(nqn.to_owned(), nsid)], ..changes() }
}

/// A device as another subsystem with one namespace; how to reach it.
fn add(target: &Target, device: Arc<dyn BlockDevice>) -> String {
    let prepared = target.prepare(OTHER, "other", device, Uuid::new_v4(), None).expect("prepared");
    let applied = target.change(TargetChanges { added: vec![prepared], ..changes() }).expect("added");
    assert_eq!((applied.nsids, applied.lost.len()), (vec![1], 0));
    format!("nvme+tcp://{}/{OTHER}", target.addresses()[0])
}

/// A host that takes no lost connection up again.
fn impatient() -> Options {
    Options { ctrl_loss: Some(Duration::ZERO), ..Options::default() }
}

#[test]
fn what_a_host_uses_is_removed_by_force_alone() {
    let target = target(|_| {});
    let stays = disk(&export(&target, "mem:8MiB"), impatient());
    let uri = add(&target, backend("mem:8MiB"));
    let host = Options::default().hostnqn;
    let device = connect(&uri, impatient()).expect("connected");
    let used = Blocking::open(device).expect("opened");
    used.write_at(&pattern(4096, 1), 0).expect("written");
    let Err(ChangeError::InUse(in_use)) = target.change(removed(OTHER, 1)) else { panic!("it is in use") };
    assert_eq!(in_use, [InUse { nqn: OTHER.into(), nsids: vec![1], hosts: vec![host.clone()] }]);
    assert!(read(&used, 0, 4096).expect("nothing has changed") == pattern(4096, 1));
    drop(disk(&uri, impatient()));
    let applied = target.change(TargetChanges { force: true, ..removed(OTHER, 1) }).expect("forced");
    assert_eq!(applied.lost, [(OTHER.to_owned(), [host].into())].into());
    assert!(applied.faults.is_empty(), "{:?}", applied.faults);
    read(&used, 0, 4096).expect_err("it was removed");
    let e = connect(&uri, impatient()).map(drop).expect_err("the subsystem was removed");
    assert!(!matches!(e, Error::Unreachable { .. }), "{e}");
    stays.write_at(&pattern(4096, 2), 0).expect("the others go on");
    assert!(read(&stays, 0, 4096).expect("read") == pattern(4096, 2));
    // It comes back as another disk.
    let uri = add(&target, backend("mem:8MiB"));
    assert_eq!(read(&disk(&uri, impatient()), 0, 4096).expect("read"), [0; 4096]);
}

#[test]
fn commands_under_way_end_before_a_namespace_is_given_back() {
    // With another namespace in the subsystem, its controllers stay.
    for (kind, stay) in
        [OpKind::Write, OpKind::Read].into_iter().flat_map(|kind| [(kind, false), (kind, true)])
    {
        let target = Arc::new(target(|_| {}));
        let gate = hold_disk(8 << 20);
        let uri = add(&target, Arc::new(gate.clone())) + "?nsid=1";
        if stay {
            target.export(OTHER, "other", backend("mem:1MiB"), Uuid::new_v4()).expect("exported");
        }
        let used = disk(&uri, impatient());
        used.write_at(&pattern(4096, 1), 0).expect("written");
        gate.hold(kind, 1);
        let command = std::thread::spawn(move || match kind {
            OpKind::Write => used.write_at(&pattern(4096, 2), 4096),
            _ => read(&used, 0, 4096).map(|found| assert!(found == pattern(4096, 1))),
        });
        until("a command at the device", || gate.held() == 1);
        let changing = Arc::clone(&target);
        let change = std::thread::spawn(move || {
            changing.change(TargetChanges { force: true, ..removed(OTHER, 1) }).expect("changed")
        });
        until("its removal", || !target.nsids(OTHER).contains(&1));
        // It would be over by now.
        let other = disk(&export(&target, "mem:1MiB"), impatient());
        (0..16).for_each(|_| drop(read(&other, 0, 4096).expect("read")));
        assert!(!change.is_finished(), "the device is given back while it is busy");
        gate.release();
        let ended = in_time("the command", move || command.join().expect("no panic"));
        ended.expect("the command completes");
        let applied = in_time("the change", move || change.join().expect("no panic"));
        assert!(applied.faults.is_empty(), "{:?}", applied.faults);
        if kind == OpKind::Write {
            assert_eq!(gate.content(4096..8192), pattern(4096, 2));
        }
    }
}

#[test]
fn a_host_that_is_not_allowed_any_more_is_ended_by_force_alone() {
    let target = target(|_| {});
    let uri = export(&target, "mem:8MiB");
    let as_host = |name: &str| Options { hostnqn: format!("nqn.2014-08.org.example:{name}"), ..impatient() };
    let (one, two) = (disk(&uri, as_host("one")), disk(&uri, as_host("two")));
    let only = |names: &[&str]| {
        let hosts = names.iter().map(|name| as_host(name).hostnqn).collect();
        Some(HostLists {
            of: [(NQN.to_owned(), HostAccess::Only(hosts).into())].into(),
            ..HostLists::default()
        })
    };
    target.change(TargetChanges { hosts: only(&["one", "two"]), ..changes() }).expect("both are allowed");
    connect(&uri, as_host("three")).map(drop).expect_err("a host that is not on the list");
    let Err(ChangeError::InUse(in_use)) = target.change(TargetChanges { hosts: only(&["two"]), ..changes() })
    else {
        panic!("the first host is connected");
    };
    assert_eq!(in_use, [InUse { nqn: NQN.into(), nsids: vec![], hosts: vec![as_host("one").hostnqn] }]);
    one.write_at(&pattern(4096, 1), 0).expect("nothing has changed");
    connect(&uri, as_host("one")).expect("it may connect as before");
    let forced = TargetChanges { hosts: only(&["two"]), force: true, ..changes() };
    target.change(forced).expect("forced");
    read(&one, 0, 4096).expect_err("its controller has ended");
    connect(&uri, as_host("one")).map(drop).expect_err("it is not allowed");
    assert!(read(&two, 0, 4096).expect("the other one goes on") == pattern(4096, 1));
    target.change(TargetChanges { hosts: only(&["two", "three"]), ..changes() }).expect("a host more");
    connect(&uri, as_host("three")).expect("it may connect now");
}

/// Every host may read; these may write.
fn writers(names: &[&str]) -> Option<HostLists> {
    let write = HostAccess::Only(names.iter().map(|name| host(name).hostnqn).collect());
    let rights = HostRights { read: HostAccess::Any, write };
    Some(HostLists { of: [(NQN.to_owned(), rights)].into(), ..HostLists::default() })
}

/// A host of this name, which takes no lost connection up again.
fn host(name: &str) -> Options {
    Options { hostnqn: format!("nqn.2014-08.org.example:{name}"), ..impatient() }
}

#[test]
fn the_right_to_write_is_given_at_once_and_taken_by_force_alone() {
    let target = target(|_| {});
    let uri = export(&target, "mem:8MiB");
    target.change(TargetChanges { hosts: writers(&["one"]), ..changes() }).expect("no host is connected");
    let (one, two) = (disk(&uri, host("one")), disk(&uri, host("two")));
    one.write_at(&pattern(4096, 1), 0).expect("it may write");
    assert_eq!(two.write_at(&pattern(4096, 2), 0), Err(IoError::ReadOnly));
    target.change(TargetChanges { hosts: writers(&["one", "two"]), ..changes() }).expect("a writer more");
    two.write_at(&pattern(4096, 2), 4096).expect("on the same connection");
    let Err(ChangeError::InUse(in_use)) =
        target.change(TargetChanges { hosts: writers(&["one"]), ..changes() })
    else {
        panic!("the second host could not write any more");
    };
    assert_eq!(in_use, [InUse { nqn: NQN.into(), nsids: vec![], hosts: vec![host("two").hostnqn] }]);
    two.write_at(&pattern(4096, 3), 8192).expect("nothing has changed");
    target.change(TargetChanges { hosts: writers(&["one"]), force: true, ..changes() }).expect("forced");
    two.write_at(&pattern(4096, 4), 0).expect_err("its controller has ended");
    let two = disk(&uri, host("two"));
    assert_eq!(two.write_at(&pattern(4096, 4), 0), Err(IoError::ReadOnly));
    let expected = [pattern(4096, 1), pattern(4096, 2), pattern(4096, 3)].concat();
    assert!(read(&two, 0, 12_288).expect("it may read") == expected);
    one.write_at(&pattern(4096, 5), 0).expect("the other one goes on");
}

/// The time that a host takes to read 1 MiB.
fn time_to_read(disk: &Blocking) -> Duration {
    let begin = Instant::now();
    (0..16).for_each(|n| _ = read(disk, n * 65_536, 65_536).expect("read"));
    begin.elapsed()
}

#[test]
fn a_host_is_as_fast_as_it_may_be_on_all_its_connections() {
    // 1 MiB takes a second.
    let slow = HostRates { of: [(host("one").hostnqn, 8 << 20)].into(), ..HostRates::default() };
    let target = target(|config| config.host_rates = slow.clone());
    let uri = export(&target, "mem:8MiB");
    let (one, same, other) = (disk(&uri, host("one")), disk(&uri, host("one")), disk(&uri, host("two")));
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| time_to_read(&same));
        (time_to_read(&one), second.join().expect("no panic"))
    });
    assert!(first.max(second) >= Duration::from_millis(1990), "{first:?} {second:?}");
    until("a host without a limit", || time_to_read(&other) < Duration::from_millis(500));
    let rates = |host_rates: HostRates| TargetChanges { host_rates: Some(host_rates), ..changes() };
    target.change(rates(HostRates::default())).expect("without limits");
    until("another rate on the same connection", || time_to_read(&one) < Duration::from_millis(500));
    target.change(rates(HostRates { all: Some(8 << 20), ..HostRates::default() })).expect("for all hosts");
    assert!(time_to_read(&other) >= Duration::from_millis(990));
    assert!(time_to_read(&one) >= Duration::from_millis(990));
    target.change(rates(HostRates { all: Some(8 << 30), ..HostRates::default() })).expect("faster");
    until("another rate on the same connection", || time_to_read(&one) < Duration::from_millis(500));
}

/// Hosts that may only read hear of changes as others do.
#[test]
fn a_host_that_may_only_read_sees_what_is_added() {
    let target = target(|_| {});
    target.change(TargetChanges { hosts: writers(&[]), ..changes() }).expect("no host is connected");
    let first = disk(&export(&target, "mem:8MiB"), host("one"));
    read(&first, 0, 4096).expect("read");
    let second = disk(&export(&target, "mem:4MiB"), host("one"));
    assert!(second.info().read_only && second.info().size == 4 << 20);
    assert_eq!(second.write_at(&[1; 4096], 0), Err(IoError::ReadOnly));
    read(&first, 0, 4096).expect("its view was made anew");
}

#[test]
fn a_namespace_has_another_device_between_two_commands() {
    let target = target(|_| {});
    let slow = backend("mem:8MiB");
    let nsid = target.export(NQN, "disk", slow.clone(), Uuid::new_v4()).expect("exported");
    let uri = format!("nvme+tcp://{}/{NQN}?nsid={nsid}", target.addresses()[0]);
    let device = connect(&uri, impatient()).expect("connected");
    let used = Blocking::open(device).expect("opened");
    used.write_at(&pattern(4096, 1), 0).expect("written");
    let fails = BackendSpec::parse("mem:1MiB,error=100%").expect("understood").filters;
    let by = |device: Arc<dyn BlockDevice>| TargetChanges {
        replaced: vec![(NQN.to_owned(), nsid, device)],
        ..changes()
    };
    target.change(by(fails[0].wrap(slow.clone()))).expect("replaced");
    let e = read(&used, 0, 4096).expect_err("the filter fails");
    assert!(matches!(e, IoError::Medium(_)), "{e}");
    target.change(by(slow)).expect("replaced");
    assert!(read(&used, 0, 4096).expect("on the same connection") == pattern(4096, 1));
}

#[test]
fn a_host_is_told_of_the_namespaces_of_its_subsystem() {
    let target = target(|_| {});
    let uri = add(&target, backend("mem:8MiB"));
    let device = connect(&uri, impatient()).expect("connected");
    let events = RefCell::new(device.events());
    let added = Cell::new(0);
    // One that comes before the host has asked for notices is not told of.
    until("the notice", || {
        if added.get() < 500 {
            let one = target.prepare(OTHER, "other", backend("null:1MiB"), Uuid::new_v4(), None);
            let one = vec![one.expect("prepared")];
            let applied = target.change(TargetChanges { added: one, ..changes() }).expect("added");
            added.set(applied.nsids[0]);
        }
        let event = events.borrow_mut().try_recv().ok();
        assert!(matches!(event, None | Some(ControllerEvent::NamespaceChanged(2..))), "{event:?}");
        event.is_some()
    });
    // A host uses a subsystem as a whole: it is not lost a part of it silently.
    assert!(matches!(target.change(removed(OTHER, 2)), Err(ChangeError::InUse(_))));
}

/// The end of an admin queue ends the I/O queues: it waits for theirs.
#[test]
fn a_target_that_stops_completes_what_a_device_is_busy_with() {
    let target = target(|_| {});
    let gate = hold_disk(8 << 20);
    let uri = add(&target, Arc::new(gate.clone()));
    let used = disk(&uri, impatient());
    used.write_at(&pattern(4096, 1), 0).expect("written");
    gate.hold(OpKind::Write, 1);
    let command = std::thread::spawn(move || used.write_at(&pattern(4096, 2), 4096));
    until("a command at the device", || gate.held() == 1);
    let stop = std::thread::spawn(move || target.stop());
    until("a target that takes no host", || connect(&uri, impatient()).is_err());
    gate.release();
    in_time("the command", move || command.join().expect("no panic")).expect("it completes");
    assert!(in_time("the stop", move || stop.join().expect("no panic")));
    assert_eq!(gate.content(4096..8192), pattern(4096, 2));
}
