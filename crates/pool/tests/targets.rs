//! Pools over real targets on loopback: namespaces made by NVMe's own commands, and arrays over them.

mod common;

use common::{MIB, TTL, empty, request};
use longhaul_array::Layout;
use longhaul_block::{BlockIo, IoError, WriteFlags};
use longhaul_catalog::{
    Catalog, Commit, Entry, Error as CatalogError, LeaseId, ManualClock, Revision, Snapshot, Txn, Watch,
};
use longhaul_device::{Device, ErrorKind, Opener};
use longhaul_engine::{Buf, BufMut, Engine};
use longhaul_initiator::Options;
use longhaul_pool::{
    Error, Host, Label, Missing, Namespace, NamespaceId, Pool, Quota, Removed, Space, SpaceError, Spaces,
    Targets, VolumeLayout, VolumeRecord, VolumeRequest, import, take_over,
};
use longhaul_target::{Config, DirSpace, ReservationRecord, ReservationStore, ReservationStores, Target};
use std::io;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use uuid::Uuid;

const BLOCK: usize = 4096;
const ADMIN: &str = "nqn.2014-08.org.example:admin";
const NODE: &str = "nqn.2014-08.org.example:node";
/// Set in a child process that has a state and a runtime directory of its own.
const CHILD: &str = "LONGHAUL_POOL_TEST_CHILD";

/// Runs a test of this file in a process with its own state directory.
fn isolated(name: &str, test: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return test();
    }
    let dir = directory();
    let ran = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .env("XDG_STATE_HOME", dir.path().join("state"))
        .env("XDG_RUNTIME_DIR", dir.path())
        .output()
        .expect("run");
    let output = String::from_utf8_lossy(&ran.stdout);
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && output.contains("1 passed"), "{output}{error}");
}

/// In memory where this machine has such a file system: these tests do not depend on a disk.
fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::tempdir_in(root).expect("a directory")
}

/// Persistent reservations are not tested here.
struct NoRecord;

impl ReservationStore for NoRecord {
    fn load(&self) -> io::Result<Option<ReservationRecord>> {
        Ok(None)
    }

    fn save(&self, _record: Option<&ReservationRecord>) -> io::Result<()> {
        Ok(())
    }
}

/// Targets of this process, each with a space in a directory of its own.
struct Site {
    directory: tempfile::TempDir,
    targets: Vec<Option<Target>>,
    ports: Vec<u16>,
    clock: Arc<ManualClock>,
}

impl Site {
    fn new(count: usize) -> Site {
        let clock = Arc::new(ManualClock::new());
        let mut site = Site { directory: directory(), targets: Vec::new(), ports: Vec::new(), clock };
        for number in 0..count {
            let target = site.serve(number, 0);
            site.ports.push(target.addresses()[0].port());
            site.targets.push(Some(target));
        }
        site
    }

    fn serve(&self, number: usize, port: u16) -> Target {
        let config = Config { listen: vec![([127, 0, 0, 2], port).into()], threads: 1, ..Config::default() };
        let target = Target::start(config).expect("a target");
        let path = self.directory.path().join(number.to_string());
        let space = DirSpace::open(&path, Some(1 << 30)).expect("a space");
        let stores: ReservationStores = Arc::new(|_| Arc::new(NoRecord));
        let nqn = format!("nqn.2026-11.io.longhaul:test{number}:fast");
        target.add_space(&nqn, "fast", Arc::new(space), [ADMIN.to_owned()].into(), stores).expect("served");
        target
    }

    fn address(&self, number: usize) -> String {
        format!("127.0.0.2:{}/nqn.2026-11.io.longhaul:test{number}:fast", self.ports[number])
    }

    fn host(&self, catalog: Arc<dyn Catalog>, spaces: Arc<dyn Spaces>) -> Host {
        Host { catalog, spaces, name: "admin-host".to_owned(), ttl: TTL }
    }

    fn targets(&self) -> Arc<Targets> {
        Arc::new(Targets::new(options(ADMIN)).expect("a thread"))
    }

    /// A pool of all targets, each in a failure domain of its own.
    fn pool(&self, host: &Host) -> Pool {
        let targets: Vec<_> =
            (0..self.targets.len()).map(|n| (self.address(n), format!("rack{n}"))).collect();
        Pool::create(host, "p", &targets, Quota::default()).expect("created")
    }

    fn files(&self) -> usize {
        let count = |n: usize| {
            std::fs::read_dir(self.directory.path().join(n.to_string())).expect("readable").count() - 1
        };
        (0..self.targets.len()).map(count).sum()
    }
}

fn options(hostnqn: &str) -> Options {
    Options {
        hostnqn: hostnqn.to_owned(),
        hostid: Uuid::new_v5(&Uuid::NAMESPACE_OID, hostnqn.as_bytes()),
        connect_timeout: Duration::from_secs(60),
        ..Options::default()
    }
}

fn for_hosts(name: &str, hosts: &[&str]) -> VolumeRequest {
    VolumeRequest { hosts: hosts.iter().map(|&host| host.to_owned()).collect(), ..request(name, 16 * MIB) }
}

fn write(device: &Device, byte: u8) {
    Engine::new(&longhaul_engine::Config::default()).expect("an engine").block_on(async {
        let io = device.block().open().await.expect("opened");
        io.write(0, Buf::copy_of(&[byte; BLOCK]), WriteFlags::default()).await.expect("written");
        io.flush().await.expect("flushed");
    });
}

fn read(device: &Device) -> u8 {
    Engine::new(&longhaul_engine::Config::default()).expect("an engine").block_on(async {
        let io = device.block().open().await.expect("opened");
        let block = io.read(0, BufMut::zeroed(BLOCK)).await.expect("read");
        assert!(block.iter().all(|byte| *byte == block[0]));
        block[0]
    })
}

/// An array is stopped when it is dropped.
fn close(device: Device) {
    drop(device);
}

#[test]
fn a_volume_is_made_used_and_removed_without_a_trace() {
    isolated("a_volume_is_made_used_and_removed_without_a_trace", || {
        let site = Site::new(4);
        let targets = site.targets();
        for number in 0..4 {
            let found = targets.find(&format!("127.0.0.2:{}", site.ports[number]));
            assert_eq!(found, Ok(site.address(number)));
        }
        let host = site.host(empty(&site.clock), Arc::<Targets>::clone(&targets));
        let pool = site.pool(&host);
        let made = VolumeRequest { spares: 1, job: Some("7".into()), ..for_hosts("v", &[ADMIN]) };
        let volume = pool.create_volume(&made).expect("created");
        let opener = Opener::new(options(ADMIN));
        let device = pool.open_volume("v", &opener).expect("opened");
        assert!(device.block().info().size >= 16 * MIB);
        write(&device, 7);
        let again = pool.open_volume("v", &opener).expect_err("it runs already");
        assert_eq!(again.kind(), ErrorKind::Refused, "{again}");
        assert!(pool.running_status(&volume).expect("asked").is_some());
        close(device);
        assert_eq!(pool.running_status(&volume), Ok(None));
        let device = pool.open_volume("v", &opener).expect("opened again");
        assert_eq!(read(&device), 7);
        close(device);

        // What the target keeps with a namespace.
        let listed = targets.list(&site.address(0)).expect("listed");
        let label = listed[0].label.clone().expect("a label").expect("readable");
        assert_eq!((label.name.as_str(), label.job.as_deref(), label.hosts), ("v", Some("7"), made.hosts));
        let foreign = Pool::create(&host, "q", &[(site.address(0), "r".into())], Quota::default());
        let error = foreign.map(|_| ()).expect_err("in use").to_string();
        assert!(error.contains("uses it: admin-host made volume v there on 20"), "{error}");
        assert!(error.contains(&format!("target 127.0.0.2:{}/fast is not used", site.ports[0])), "{error}");

        assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
        assert_eq!(site.files(), 0);
        let e = pool.open_volume("v", &opener).expect_err("removed");
        assert_eq!(e.to_string(), "there is no volume called v in pool p");
    });
}

#[test]
fn a_volume_grows_while_it_is_used_and_between_uses() {
    isolated("a_volume_grows_while_it_is_used_and_between_uses", || {
        let site = Site::new(3);
        let host = site.host(empty(&site.clock), site.targets());
        let pool = site.pool(&host);
        let single = VolumeRequest { layout: VolumeLayout::Single, width: 1, ..for_hosts("s", &[ADMIN]) };
        let opener = Opener::new(options(ADMIN));
        for made in [for_hosts("v", &[ADMIN]), single] {
            pool.create_volume(&made).expect("created");
            let device = pool.open_volume(&made.name, &opener).expect("opened");
            write(&device, 5);
            let resized = pool.resize_volume(&made.name, 40 * MIB).expect("resized");
            if let Some((before, after)) = pool.grow_running(&resized).expect("asked") {
                assert!(before < 40 * MIB && after >= 40 * MIB, "{before} to {after}");
            }
            // The namespace changed event of a single one comes by itself.
            let end = std::time::Instant::now() + Duration::from_secs(20);
            while device.block().info().size < 40 * MIB {
                assert!(
                    std::time::Instant::now() < end,
                    "{}: still {}",
                    made.name,
                    device.block().info().size
                );
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(read(&device), 5);
            close(device);
            // No host runs it: it grows when it is opened.
            let resized = pool.resize_volume(&made.name, 60 * MIB).expect("resized");
            assert_eq!(pool.grow_running(&resized).expect("asked"), None);
            let device = pool.open_volume(&made.name, &opener).expect("opened");
            assert!(device.block().info().size >= 60 * MIB);
            assert_eq!(read(&device), 5);
            close(device);
            let full = pool.resize_volume(&made.name, 8 << 30).expect_err("full").to_string();
            assert!(full.contains("are free"), "{full}");
        }
    });
}

#[test]
fn a_volume_is_for_the_hosts_that_it_names() {
    isolated("a_volume_is_for_the_hosts_that_it_names", || {
        let site = Site::new(3);
        let host = site.host(empty(&site.clock), site.targets());
        let pool = site.pool(&host);
        let single = VolumeRequest { layout: VolumeLayout::Single, width: 1, ..for_hosts("s", &[NODE]) };
        for made in [for_hosts("v", &[NODE]), single] {
            pool.create_volume(&made).expect("created");
            let (admin, node) = (Opener::new(options(ADMIN)), Opener::new(options(NODE)));
            let refused = pool.open_volume(&made.name, &admin).expect_err("not for it");
            assert_eq!(refused.kind(), ErrorKind::Refused);
            assert!(refused.to_string().contains("volume open p/"), "{refused}");
            let device = pool.open_volume(&made.name, &node).expect("opened");
            write(&device, 3);
            close(device);
            // The targets keep a host out that the records do not know.
            let uri = pool.member_uris(&pool.volume(&made.name).expect("there")).expect("named");
            let uri = uri[0].clone().expect("there");
            assert!(admin.connect(&uri).is_err(), "{uri} is masked");
            let (changed, waiting) =
                pool.set_hosts(&made.name, &[NODE.to_owned(), ADMIN.to_owned()]).expect("changed");
            assert_eq!((changed.hosts.len(), waiting), (2, vec![]));
            let device = pool.open_volume(&made.name, &admin).expect("opened");
            assert_eq!(read(&device), 3);
            close(device);
        }
    });
}

/// A volume without an array, whose host has reserved the namespace by itself: a pool that is taken over takes it from
/// that host.
#[test]
fn a_reserved_namespace_is_taken_from_its_host_with_the_pool() {
    isolated("a_reserved_namespace_is_taken_from_its_host_with_the_pool", || {
        let site = Site::new(1);
        let pool = site.pool(&site.host(empty(&site.clock), site.targets()));
        let single = VolumeRequest { layout: VolumeLayout::Single, width: 1, ..for_hosts("s", &[NODE]) };
        pool.create_volume(&single).expect("created");
        let device = pool.open_volume("s", &Opener::new(options(NODE))).expect("opened");
        let engine = Engine::new(&longhaul_engine::Config::default()).expect("an engine");
        let put =
            async |io: &Rc<dyn BlockIo>| io.write(0, Buf::copy_of(&[5; BLOCK]), WriteFlags::default()).await;
        let (io, reservations) = engine.block_on(async {
            let io = device.block().open().await.expect("opened");
            let reservations = io.reservations().expect("it has reservations");
            reservations.register(7).await.expect("registered");
            reservations.acquire(7).await.expect("reserved");
            put(&io).await.expect("the holder writes");
            (io, reservations)
        });
        pool.export().expect("exported");
        let other = Host { name: "other".to_owned(), ..site.host(empty(&site.clock), site.targets()) };
        let refused = import(&other, &[site.address(0)], None, None).map(|_| ()).expect_err("in use");
        assert!(refused.to_string().contains("a host has reserved its namespace (key 0x7)"), "{refused}");
        engine.block_on(async { put(&io).await.expect("it is the holder still") });
        let (taken, found) = take_over(&other, &[site.address(0)], None, None).expect("taken over");
        assert_eq!(found.whole, ["s"]);
        engine.block_on(async {
            assert_eq!(put(&io).await, Err(IoError::Reserved));
            drop((io, reservations));
        });
        drop(engine);
        close(device);
        assert_eq!(taken.remove_volume("s"), Ok(Removed::Whole));
        assert_eq!(site.files(), 0);
    });
}

/// A host that does no more than some calls.
struct Dying {
    catalog: Arc<dyn Catalog>,
    spaces: Arc<Targets>,
    left: AtomicI64,
}

impl Dying {
    fn lives(&self) -> bool {
        self.left.fetch_sub(1, Ordering::SeqCst) > 0
    }

    fn call<T>(&self, call: impl FnOnce(&Targets) -> Result<T, SpaceError>) -> Result<T, SpaceError> {
        match self.lives() {
            true => call(&self.spaces),
            false => Err(SpaceError::Unreachable("the host has crashed".to_owned())),
        }
    }

    fn ask<T>(
        &self,
        call: impl FnOnce(&dyn Catalog) -> longhaul_catalog::Result<T>,
    ) -> longhaul_catalog::Result<T> {
        match self.lives() {
            true => call(&*self.catalog),
            false => {
                Err(CatalogError::Unreachable { catalog: "x".into(), why: "the host has crashed".into() })
            }
        }
    }
}

impl Catalog for Dying {
    fn name(&self) -> String {
        self.catalog.name()
    }
    fn commit(&self, txn: &Txn) -> longhaul_catalog::Result<Commit> {
        self.ask(|catalog| catalog.commit(txn))
    }
    fn range(&self, prefix: &[u8], at: Option<Revision>) -> longhaul_catalog::Result<Snapshot> {
        self.ask(|catalog| catalog.range(prefix, at))
    }
    fn get(&self, key: &[u8]) -> longhaul_catalog::Result<Option<Entry>> {
        self.ask(|catalog| catalog.get(key))
    }
    fn watch(&self, prefix: &[u8], from: Revision) -> longhaul_catalog::Result<Box<dyn Watch>> {
        self.catalog.watch(prefix, from)
    }
    fn grant(&self, ttl: Duration) -> longhaul_catalog::Result<LeaseId> {
        self.ask(|catalog| catalog.grant(ttl))
    }
    fn keep(&self, lease: LeaseId) -> longhaul_catalog::Result<Duration> {
        self.catalog.keep(lease)
    }
    fn revoke(&self, lease: LeaseId) -> longhaul_catalog::Result<()> {
        self.ask(|catalog| catalog.revoke(lease))
    }
}

impl Spaces for Dying {
    fn space(&self, address: &str) -> Result<Space, SpaceError> {
        self.call(|targets| targets.space(address))
    }
    fn list(&self, address: &str) -> Result<Vec<Namespace>, SpaceError> {
        self.call(|targets| targets.list(address))
    }
    fn make(&self, address: &str, size: u64, label: &Label) -> Result<NamespaceId, SpaceError> {
        self.call(|targets| targets.make(address, size, label))
    }
    fn remove(&self, address: &str, namespace: NamespaceId) -> Result<(), SpaceError> {
        self.call(|targets| targets.remove(address, namespace))
    }
    fn grow(&self, address: &str, namespace: NamespaceId, size: u64) -> Result<(), SpaceError> {
        self.call(|targets| targets.grow(address, namespace, size))
    }
    fn relabel(&self, address: &str, namespace: NamespaceId, label: &Label) -> Result<(), SpaceError> {
        self.call(|targets| targets.relabel(address, namespace, label))
    }
    fn format(&self, volume: &VolumeRecord, members: &[(String, NamespaceId)]) -> Result<Uuid, SpaceError> {
        self.call(|targets| targets.format(volume, members))
    }
    fn array_on(&self, address: &str, namespace: NamespaceId) -> Result<Option<Uuid>, SpaceError> {
        self.call(|targets| targets.array_on(address, namespace))
    }
}

#[test]
fn a_host_that_is_lost_at_any_step_leaves_no_namespace() {
    let site = Site::new(3);
    let (catalog, targets) = (empty(&site.clock), site.targets());
    let pool = site.pool(
        &site.host(Arc::<longhaul_catalog::FileCatalog>::clone(&catalog), Arc::<Targets>::clone(&targets)),
    );
    let (mut made, mut undone) = (0, 0);
    for steps in 0.. {
        let dying = Arc::new(Dying {
            catalog: Arc::<longhaul_catalog::FileCatalog>::clone(&catalog),
            spaces: Arc::<Targets>::clone(&targets),
            left: AtomicI64::new(steps),
        });
        let host = site.host(Arc::<Dying>::clone(&dying), Arc::<Dying>::clone(&dying));
        let done = Pool::open(&host, "p").and_then(|pool| {
            pool.create_volume(&for_hosts("v", &[ADMIN]))?;
            pool.remove_volume("v")
        });
        if done.is_ok() && dying.left.load(Ordering::SeqCst) >= 0 {
            break;
        }
        site.clock.advance(TTL + Duration::from_secs(1));
        let recovered = pool.recover().expect("recovered");
        assert_eq!((recovered.held, recovered.waiting.len()), (0, 0), "{recovered:?}");
        undone += recovered.finished;
        if pool.volume("v").is_ok() {
            made += 1;
            assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
        }
        assert_eq!(site.files(), 0, "after {steps} steps");
        let status = pool.status().expect("status");
        assert_eq!((status.volumes.len(), status.intents.len(), status.usage.total()), (0, 0, 0));
    }
    assert!(made > 0 && undone > 0, "{made} made, {undone} undone");
    assert_eq!(catalog.leases(), Ok(0));
}

#[test]
fn a_lost_catalog_is_made_again_from_the_targets() {
    isolated("a_lost_catalog_is_made_again_from_the_targets", || {
        let mut site = Site::new(4);
        let opener = Opener::new(options(ADMIN));
        let before = {
            let pool = site.pool(&site.host(empty(&site.clock), site.targets()));
            pool.create_volume(&for_hosts("v", &[ADMIN])).expect("created");
            let mirror = VolumeRequest {
                layout: VolumeLayout::Array(Layout::Mirror),
                width: 2,
                ..for_hosts("first", &[NODE])
            };
            pool.create_volume(&mirror).expect("created");
            pool.rename_volume("first", "m").expect("renamed");
            let device = pool.open_volume("v", &opener).expect("opened");
            write(&device, 9);
            close(device);
            pool.volumes().expect("listed")
        };
        // Targets keep their namespaces over a restart, with their numbers and labels.
        let at = site.ports[1];
        site.targets[1].take().expect("a target").stop();
        let restarted = site.serve(1, at);
        site.targets[1] = Some(restarted);

        let addresses: Vec<String> = (0..4).map(|n| site.address(n)).collect();
        let host = site.host(empty(&site.clock), site.targets());
        let (pool, found) = import(&host, &addresses, None, None).expect("imported");
        assert_eq!((found.whole, found.missing), (vec!["m".to_owned(), "v".to_owned()], vec![]));
        assert_eq!(pool.volumes().expect("listed"), before);
        let device = pool.open_volume("v", &opener).expect("opened");
        assert_eq!(read(&device), 9);
        close(device);

        // Without one of its targets a volume serves, degraded.
        let v = pool.volume("v").expect("there");
        let lost = v.members.iter().position(|member| member.target.contains("test0")).unwrap_or(0);
        let gone: usize =
            (0..4).find(|n| v.members[lost].target.contains(&format!("test{n}"))).expect("known");
        let rest: Vec<String> = (0..4).filter(|n| *n != gone).map(|n| site.address(n)).collect();
        let host = site.host(empty(&site.clock), site.targets());
        let (pool, found) = import(&host, &rest, Some("p"), Some("again")).expect("imported");
        let missing = Missing { volume: "v".to_owned(), members: vec![lost], is_usable: true };
        assert!(found.missing.contains(&missing), "{found:?}");
        let device = pool.open_volume("v", &opener).expect("opened");
        assert_eq!(read(&device), 9);
        assert!(device.trouble().is_some_and(|why| why.starts_with("degraded")), "{:?}", device.trouble());
        close(device);
        assert_eq!(pool.remove_volume("v"), Ok(Removed::Whole));
    });
}

#[test]
fn a_space_is_found_by_its_target() {
    let site = Site::new(1);
    let target = site.targets[0].as_ref().expect("a target");
    let machine = format!("127.0.0.2:{}", site.ports[0]);
    let node = Targets::new(options(NODE)).expect("a thread");
    let error = node.find(&machine).expect_err("not permitted").to_string();
    assert!(error.contains(&format!("--admin {NODE}")), "{error}");
    assert!(matches!(node.space(&site.address(0)), Err(SpaceError::Refused(_))));
    let second = DirSpace::open(&site.directory.path().join("second"), None).expect("a space");
    let stores: ReservationStores = Arc::new(|_| Arc::new(NoRecord));
    let nqn = "nqn.2026-11.io.longhaul:test0:slow";
    target.add_space(nqn, "slow", Arc::new(second), [ADMIN.to_owned()].into(), stores).expect("served");
    let targets = site.targets();
    let error = targets.find(&machine).expect_err("two").to_string();
    assert!(error.contains("has the spaces fast, slow: name one"), "{error}");
    assert_eq!(targets.find(&format!("{machine}/fast")), Ok(site.address(0)));
    assert_eq!(targets.find(&format!("{machine}/{nqn}")), Ok(format!("{machine}/{nqn}")));
    let error = targets.find(&format!("{machine}/other")).expect_err("none").to_string();
    assert!(error.contains("it has no space other"), "{error}");
    let error = targets.find("127.0.0.1:1").expect_err("nothing there");
    assert!(matches!(error, Error::Space { source: SpaceError::Unreachable(_), .. }), "{error}");
    // A space that has no room says so.
    let host = site.host(empty(&site.clock), site.targets());
    let pool = site.pool(&host);
    let single =
        VolumeRequest { layout: VolumeLayout::Single, width: 1, size: 2 << 30, ..for_hosts("v", &[ADMIN]) };
    let error = pool.create_volume(&single).expect_err("full").to_string();
    assert!(error.contains("rack0 has 1 GiB on a target"), "{error}");
}
