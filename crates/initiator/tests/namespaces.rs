//! Namespaces that hosts make at a target.

mod common;

use common::{connect, disk, in_time, pattern, read, target, until};
use futures_util::StreamExt;
use longhaul_initiator::namespaces::{
    Administrator, Capacity, ManagementError, NamespaceLabel, NewNamespace,
};
use longhaul_initiator::{ControllerEvent, Error, Options, PersistChange, RemoteDevice};
use longhaul_target::{DirSpace, ReservationRecord, ReservationStore, ReservationStores, Target};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use uuid::Uuid;

const NQN: &str = "nqn.2026-11.io.longhaul:test:space";
const ADMIN: u128 = 1;
const A: u128 = 2;
const B: u128 = 3;

/// Records of reservations, by namespace.
#[derive(Clone, Default)]
struct Records(Arc<Mutex<BTreeMap<Uuid, ReservationRecord>>>);

struct RecordOf(Records, Uuid);

impl ReservationStore for RecordOf {
    fn load(&self) -> io::Result<Option<ReservationRecord>> {
        Ok(self.0.0.lock().expect("no panic").get(&self.1).cloned())
    }

    fn save(&self, record: Option<&ReservationRecord>) -> io::Result<()> {
        let mut records = self.0.0.lock().expect("no panic");
        match record {
            Some(record) => records.insert(self.1, record.clone()),
            None => records.remove(&self.1),
        };
        Ok(())
    }
}

fn hostnqn(host: u128) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{}", Uuid::from_u128(host))
}

fn options(host: u128) -> Options {
    Options { hostid: Uuid::from_u128(host), hostnqn: hostnqn(host), ..Options::default() }
}

/// In memory where this machine has such a file system: these tests do not depend on a disk.
fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::tempdir_in(root).expect("a directory")
}

/// A target with a space in `directory`, and its URI.
fn serve(directory: &Path, quota: Option<u64>, records: &Records) -> (Target, String) {
    let target = target(|_| {});
    // A target that was dropped lets go of its own when its threads end.
    let opened = std::cell::OnceCell::new();
    until("the space to be free", || {
        DirSpace::open(directory, quota).is_ok_and(|space| opened.set(space).is_ok())
    });
    let space = Arc::new(opened.into_inner().expect("opened"));
    let records = records.clone();
    let stores: ReservationStores = Arc::new(move |uuid| Arc::new(RecordOf(records.clone(), uuid)));
    target.add_space(NQN, "space", space, [hostnqn(ADMIN)].into(), stores).expect("served");
    let uri = format!("nvme+tcp://{}/{NQN}", target.addresses()[0]);
    (target, uri)
}

fn administrator(uri: &str) -> Administrator {
    Administrator::connect_blocking(&uri.parse().expect("a URI"), options(ADMIN)).expect("permitted")
}

/// Waits for the end of a future that needs no engine.
fn wait<T>(future: impl Future<Output = T>) -> T {
    longhaul_engine::Engine::new(&longhaul_engine::Config::default()).expect("engine").block_on(future)
}

fn new(size: u64, hosts: &[u128], thin: bool) -> NewNamespace {
    let hosts = hosts.iter().map(|host| hostnqn(*host)).collect();
    NewNamespace { size, block_size: 4096, label: NamespaceLabel { hosts, thin, ..Default::default() } }
}

fn device(uri: &str, host: u128, nsid: u32) -> longhaul_initiator::Result<Arc<RemoteDevice>> {
    connect(&format!("{uri}?nsid={nsid}"), options(host))
}

/// Paths below `directory` that this process has open.
fn open_below(directory: &Path) -> Vec<PathBuf> {
    let fds = std::fs::read_dir("/proc/self/fd").expect("readable");
    let paths = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    paths.filter(|path| path.starts_with(directory)).collect()
}

#[test]
fn a_namespace_is_seen_by_the_hosts_that_it_is_attached_to_and_by_no_other() {
    let directory = directory();
    let (_target, uri) = serve(directory.path(), None, &Records::default());
    let admin = administrator(&uri);
    let nsid = wait(admin.create_namespace(&new(1 << 20, &[A], false))).expect("made");
    let first = disk(&format!("{uri}?nsid={nsid}"), options(A));
    assert_eq!((first.info().size, first.info().block_size), (1 << 20, 4096));
    assert_eq!(read(&first, 0, 1 << 20), Ok(vec![0; 1 << 20]), "it reads as zeroes");
    first.write_at(&pattern(8192, 1), 4096).expect("written");
    for stranger in [B, ADMIN] {
        let refused = device(&uri, stranger, nsid).expect_err("not attached");
        assert!(matches!(refused, Error::NotFound(_)), "{refused}");
    }

    let listed = wait(admin.namespace(nsid)).expect("listed");
    assert_eq!((listed.size, Some(listed.uuid), listed.shared), (1 << 20, first.info().uuid, true));
    assert_eq!(listed.label.hosts, [hostnqn(A)]);
    let both = NamespaceLabel {
        hosts: vec![hostnqn(A), hostnqn(B)],
        pool: "scratch".into(),
        job: "4711".into(),
        expiry: Some(7),
        ..NamespaceLabel::default()
    };
    wait(admin.set_label(nsid, &both)).expect("changed");
    assert_eq!(wait(admin.list()).expect("listed")[0].label, both);
    let second = disk(&format!("{uri}?nsid={nsid}"), options(B));
    assert_eq!(read(&second, 4096, 8192), Ok(pattern(8192, 1)));

    let only_b = NamespaceLabel { hosts: vec![hostnqn(B)], ..both };
    wait(admin.set_label(nsid, &only_b)).expect("changed");
    read(&first, 0, 4096).expect_err("it is not attached any more");
    first.write_at(&[0; 4096], 4096).expect_err("nor written to");
    assert_eq!(read(&second, 4096, 8192), Ok(pattern(8192, 1)));
}

#[test]
fn hosts_that_are_no_administrators_manage_nothing() {
    let directory = directory();
    let (target, uri) = serve(directory.path(), None, &Records::default());
    let refused = Administrator::connect_blocking(&uri.parse().expect("a URI"), options(B));
    let refused = refused.expect_err("not permitted");
    assert!(matches!(refused, ManagementError::NotPermitted { .. }), "{refused}");
    let admin = administrator(&uri);
    assert_eq!(wait(admin.list()), Ok(Vec::new()));
    // An export has nothing to manage, whichever host asks.
    let export = common::export(&target, "mem:1MiB");
    let refused = Administrator::connect_blocking(&export.parse().expect("a URI"), options(ADMIN));
    assert!(matches!(refused, Err(ManagementError::NotPermitted { .. })));
}

#[test]
fn namespaces_and_their_labels_outlive_the_target() {
    let directory = directory();
    let records = Records::default();
    let (target, uri) = serve(directory.path(), None, &records);
    let admin = administrator(&uri);
    let gone = wait(admin.create_namespace(&new(4096, &[], true))).expect("made");
    let nsid = wait(admin.create_namespace(&new(64 << 10, &[A], true))).expect("made");
    wait(admin.delete_namespace(gone)).expect("removed");
    let before = wait(admin.list()).expect("listed");
    let content = disk(&format!("{uri}?nsid={nsid}"), options(A));
    content.write_at(&pattern(4096, 3), 0).expect("written");
    content.flush().expect("flushed");
    drop(content);
    wait(admin.close());
    assert!(target.stop(), "everything is durable");

    let (_target, uri) = serve(directory.path(), None, &records);
    let admin = administrator(&uri);
    assert_eq!(wait(admin.list()).expect("listed"), before);
    let content = disk(&format!("{uri}?nsid={nsid}"), options(A));
    assert_eq!(read(&content, 0, 4096), Ok(pattern(4096, 3)));
    let next = wait(admin.create_namespace(&new(4096, &[], true))).expect("made");
    assert!(next > nsid, "identifiers are not given out again at once");
}

#[test]
fn a_space_that_is_full_refuses_and_serves_on() {
    let directory = directory();
    let quota = 1 << 20;
    let (_target, uri) = serve(directory.path(), Some(quota), &Records::default());
    let admin = administrator(&uri);
    let capacity = |unallocated| Capacity { total: quota.into(), unallocated };
    assert_eq!(wait(admin.capacity()), Ok(capacity(1 << 20)));
    let nsid = wait(admin.create_namespace(&new(768 << 10, &[A], false))).expect("made");
    assert_eq!(wait(admin.capacity()), Ok(capacity(256 << 10)));
    let full = wait(admin.create_namespace(&new(512 << 10, &[A], false))).expect_err("full");
    assert!(matches!(full, ManagementError::Full { .. }), "{full}");
    let full = wait(admin.grow_namespace(nsid, 2 << 20)).expect_err("full");
    assert!(matches!(full, ManagementError::Full { .. }), "{full}");
    let content = disk(&format!("{uri}?nsid={nsid}"), options(A));
    content.write_at(&pattern(768 << 10, 5), 0).expect("all of it is reserved");
    assert_eq!(read(&content, 0, 768 << 10), Ok(pattern(768 << 10, 5)));
    assert_eq!(wait(admin.list()).expect("listed").len(), 1);
    for (size, block_size) in [(0, 4096), (4097, 4096), (8192, 1024), (8192, 0)] {
        let wrong = NewNamespace { size, block_size, label: NamespaceLabel::default() };
        let refused = wait(admin.create_namespace(&wrong)).expect_err("no such size");
        assert_eq!(refused, ManagementError::Size { size, block_size });
    }
}

#[test]
fn what_is_removed_while_it_is_used_fails_and_is_closed() {
    let directory = directory();
    let records = Records::default();
    let (_target, uri) = serve(directory.path(), None, &records);
    let admin = administrator(&uri);
    let nsid = wait(admin.create_namespace(&new(1 << 20, &[A, B], true))).expect("made");
    let other = wait(admin.create_namespace(&new(1 << 20, &[A], true))).expect("made");
    let used = device(&uri, A, nsid).expect("attached");
    let mut events = used.events();
    let used = longhaul_block::Blocking::open(used).expect("opened");
    used.write_at(&pattern(4096, 1), 0).expect("written");
    let kept = disk(&format!("{uri}?nsid={other}"), options(A));
    kept.write_at(&pattern(4096, 2), 0).expect("written");
    let registrant = device(&uri, B, nsid).expect("attached");
    in_time("a registration", move || {
        let config = longhaul_engine::Config::default();
        longhaul_engine::Engine::new(&config).expect("engine").block_on(async {
            let io = registrant.open_io().await.expect("opened");
            let reservation = io.reservation().expect("offered");
            reservation.register(7, PersistChange::Set).await.expect("registered");
        });
    });
    assert_eq!(records.0.lock().expect("no panic").len(), 1);

    wait(admin.delete_namespace(nsid)).expect("removed");
    let failed = read(&used, 0, 4096).expect_err("removed");
    assert!(matches!(failed, longhaul_block::IoError::Refused(_)), "{failed:?}");
    used.write_at(&[0; 4096], 0).expect_err("removed");
    in_time("the event", move || {
        wait(async { while events.next().await != Some(ControllerEvent::NamespaceChanged(nsid)) {} });
    });
    assert_eq!(read(&kept, 0, 4096), Ok(pattern(4096, 2)), "the other one is served");
    assert!(records.0.lock().expect("no panic").is_empty(), "its reservations are forgotten");
    let missing = wait(admin.delete_namespace(nsid)).expect_err("removed");
    assert!(matches!(missing, ManagementError::NotFound { .. }), "{missing}");
    // Of the other one its two descriptors, and the mark of the space.
    until("what was removed to be closed", || {
        let open = open_below(directory.path());
        open.iter().all(|path| !path.to_string_lossy().ends_with("(deleted)")) && open.len() <= 3
    });
}

#[test]
fn controllers_are_attached_and_detached() {
    let directory = directory();
    let (_target, uri) = serve(directory.path(), None, &Records::default());
    let admin = administrator(&uri);
    let seen = wait(admin.create_namespace(&new(4096, &[B], true))).expect("made");
    let nsid = wait(admin.create_namespace(&new(4096, &[], true))).expect("made");
    let host = device(&uri, B, seen).expect("attached");
    let cntlid = host.controller().cntlid;
    let own = wait(admin.cntlid()).expect("connected");
    let every = wait(admin.controllers(None)).expect("listed");
    assert!(every.contains(&cntlid) && every.contains(&own), "{every:?}");
    assert_eq!(wait(admin.controllers(Some(nsid))), Ok(Vec::new()));

    wait(admin.attach(nsid, &[cntlid])).expect("attached");
    assert_eq!(wait(admin.controllers(Some(nsid))), Ok(vec![cntlid]));
    drop(device(&uri, B, nsid).expect("it is there"));
    let again = wait(admin.attach(nsid, &[cntlid])).expect_err("attached already");
    assert!(matches!(again, ManagementError::AlreadyAttached { .. }), "{again}");
    wait(admin.detach(nsid, &[cntlid])).expect("detached");
    device(&uri, B, nsid).expect_err("it is gone");
    let again = wait(admin.detach(nsid, &[cntlid])).expect_err("detached already");
    assert!(matches!(again, ManagementError::NotAttached { .. }), "{again}");
    let unknown = wait(admin.attach(nsid, &[0xFFE0])).expect_err("no such controller");
    assert!(matches!(unknown, ManagementError::Refused { .. }), "{unknown}");
    drop(host);
}

#[test]
fn a_namespace_grows_while_it_is_used() {
    let directory = directory();
    let (_target, uri) = serve(directory.path(), None, &Records::default());
    let admin = administrator(&uri);
    let nsid = wait(admin.create_namespace(&new(1 << 20, &[A], false))).expect("made");
    let used = device(&uri, A, nsid).expect("attached");
    let content = longhaul_block::Blocking::open(Arc::<RemoteDevice>::clone(&used)).expect("opened");
    content.write_at(&pattern(4096, 1), 0).expect("written");
    wait(admin.grow_namespace(nsid, 3 << 20)).expect("grown");
    until("the host to see it", || used.namespace().size == 3 << 20);
    content.write_at(&pattern(4096, 2), (3 << 20) - 4096).expect("written at the new end");
    assert_eq!(read(&content, 0, 4096), Ok(pattern(4096, 1)));
    let smaller = wait(admin.grow_namespace(nsid, 1 << 20)).expect_err("smaller");
    assert!(matches!(smaller, ManagementError::Refused { .. }), "{smaller}");
}

#[test]
fn a_thousand_namespaces_leave_neither_files_nor_descriptors() {
    let directory = directory();
    let (_target, uri) = serve(directory.path(), None, &Records::default());
    let admin = administrator(&uri);
    let label = |n: u32| NamespaceLabel { volume: n.to_string(), ..NamespaceLabel::default() };
    wait(async {
        for n in 0..1000 {
            let label = NamespaceLabel { thin: true, ..label(n) };
            let new = NewNamespace { size: 4096, block_size: 512, label };
            admin.create_namespace(&new).await.expect("made");
        }
        let all = admin.list().await.expect("listed");
        let volumes: Vec<u32> = all.iter().map(|one| one.label.volume.parse().expect("a number")).collect();
        assert_eq!(volumes, (0..1000).collect::<Vec<_>>());
        for one in &all {
            admin.delete_namespace(one.nsid).await.expect("removed");
        }
        assert_eq!(admin.list().await, Ok(Vec::new()));
    });
    let left = std::fs::read_dir(directory.path()).expect("readable");
    let left: Vec<_> = left.map(|entry| entry.expect("readable").file_name()).collect();
    assert_eq!(left, ["longhaul-space"]);
    assert_eq!(open_below(directory.path()), [directory.path().join("longhaul-space")]);
}

/// A target that was restarted is connected to by the next command.
#[test]
fn an_administrator_connects_again() {
    let directory = directory();
    let records = Records::default();
    let (target, uri) = serve(directory.path(), None, &records);
    let admin = administrator(&uri);
    wait(admin.create_namespace(&new(4096, &[], true))).expect("made");
    let address = target.addresses()[0];
    assert!(target.stop());
    let lost = wait(admin.list()).expect_err("there is no target");
    assert!(matches!(lost, ManagementError::Connection(_)), "{lost}");
    let target = common::target(|config| config.listen = vec![address]);
    let opened = std::cell::OnceCell::new();
    until("the space to be free", || {
        DirSpace::open(directory.path(), None).is_ok_and(|space| opened.set(space).is_ok())
    });
    let stores: ReservationStores = Arc::new(move |uuid| Arc::new(RecordOf(records.clone(), uuid)));
    let space = Arc::new(opened.into_inner().expect("opened"));
    target.add_space(NQN, "space", space, [hostnqn(ADMIN)].into(), stores).expect("served");
    assert_eq!(wait(admin.list()).expect("connected again").len(), 1);
}
