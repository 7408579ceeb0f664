//! Targets in memory, and hosts that crash.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use longhaul_array::Layout;
use longhaul_catalog::{
    Catalog, Commit, Entry, Error as CatalogError, FileCatalog, FileOptions, LeaseId, ManualClock, Revision,
    Snapshot, Txn, Watch,
};
use longhaul_pool::{
    Host, IntentKind, Label, Namespace, NamespaceId, Pool, Quota, Space, SpaceError, Spaces, Usage,
    VolumeLayout, VolumeRecord, VolumeRequest, VolumeState,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use uuid::Uuid;

/// Time to live of the leases of hosts.
pub const TTL: Duration = Duration::from_secs(60);
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// A namespace in memory.
#[derive(Clone)]
pub struct Stored {
    pub size: u64,
    pub label: Label,
    pub array: Option<Uuid>,
}

/// A target in memory.
#[derive(Clone)]
pub struct Target {
    pub id: String,
    pub capacity: u64,
    pub is_down: bool,
    pub namespaces: BTreeMap<Uuid, Stored>,
}

/// Targets in memory, by address.
#[derive(Default)]
pub struct Targets {
    pub all: Mutex<BTreeMap<String, Target>>,
    /// Commands that arrive when their host is lost already.
    late: Mutex<Vec<(String, u64, Label)>>,
    /// Times that a target had no room.
    pub full: Mutex<usize>,
}

impl Targets {
    /// Targets `t0`, `t1` and so on, each of `capacity` bytes.
    pub fn new(count: usize, capacity: u64) -> Arc<Targets> {
        let targets = Targets::default();
        for i in 0..count {
            let (id, namespaces) = (format!("nqn.{i}"), BTreeMap::new());
            let target = Target { id, capacity, is_down: false, namespaces };
            targets.lock().insert(format!("t{i}"), target);
        }
        Arc::new(targets)
    }

    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Target>> {
        self.all.lock().expect("not poisoned")
    }

    pub fn set_down(&self, address: &str, is_down: bool) {
        self.lock().get_mut(address).expect("known").is_down = is_down;
    }

    /// Number of all namespaces.
    pub fn count(&self) -> usize {
        self.lock().values().map(|target| target.namespaces.len()).sum()
    }

    /// The commands that were under way arrive.
    pub fn arrive(&self) -> usize {
        let late = std::mem::take(&mut *self.late.lock().expect("not poisoned"));
        late.iter().filter(|(address, size, label)| self.make(address, *size, label).is_ok()).count()
    }

    fn with<T>(
        &self,
        address: &str,
        call: impl FnOnce(&mut Target) -> Result<T, SpaceError>,
    ) -> Result<T, SpaceError> {
        match self.lock().get_mut(address) {
            Some(target) if !target.is_down => call(target),
            _ => Err(SpaceError::Unreachable("nothing listens there".to_owned())),
        }
    }
}

/// Numbers mean nothing to these targets.
fn id(uuid: Uuid) -> NamespaceId {
    NamespaceId { nsid: 1, uuid }
}

impl Spaces for Targets {
    fn space(&self, address: &str) -> Result<Space, SpaceError> {
        self.with(address, |target| {
            let used: u64 = target.namespaces.values().map(|stored| stored.size).sum();
            let (id, capacity) = (target.id.clone(), target.capacity);
            Ok(Space { id, capacity, free: capacity - used })
        })
    }

    fn list(&self, address: &str) -> Result<Vec<Namespace>, SpaceError> {
        self.with(address, |target| {
            let namespace = |(uuid, stored): (&Uuid, &Stored)| {
                // As a target keeps it: as text.
                let label = Label::parse(&stored.label.to_text()).map_err(|e| e.to_string());
                Namespace { id: id(*uuid), size: stored.size, label: Some(label) }
            };
            Ok(target.namespaces.iter().map(namespace).collect())
        })
    }

    fn make(&self, address: &str, size: u64, label: &Label) -> Result<NamespaceId, SpaceError> {
        self.with(address, |target| {
            let used: u64 = target.namespaces.values().map(|stored| stored.size).sum();
            if used + size > target.capacity {
                *self.full.lock().expect("not poisoned") += 1;
                return Err(SpaceError::Full("no room".to_owned()));
            }
            let uuid = Uuid::new_v4();
            target.namespaces.insert(uuid, Stored { size, label: label.clone(), array: None });
            Ok(id(uuid))
        })
    }

    fn remove(&self, address: &str, namespace: NamespaceId) -> Result<(), SpaceError> {
        self.with(address, |target| {
            target.namespaces.remove(&namespace.uuid);
            Ok(())
        })
    }

    fn grow(&self, address: &str, namespace: NamespaceId, size: u64) -> Result<(), SpaceError> {
        self.with(address, |target| {
            let used: u64 = target.namespaces.values().map(|stored| stored.size).sum();
            let capacity = target.capacity;
            match target.namespaces.get_mut(&namespace.uuid) {
                Some(stored) if stored.size >= size => Ok(()),
                Some(stored) if used - stored.size + size > capacity => {
                    Err(SpaceError::Full("no room".to_owned()))
                }
                Some(stored) => {
                    stored.size = size;
                    Ok(())
                }
                None => Err(SpaceError::Failed("no such namespace".to_owned())),
            }
        })
    }

    fn relabel(&self, address: &str, namespace: NamespaceId, label: &Label) -> Result<(), SpaceError> {
        self.with(address, |target| match target.namespaces.get_mut(&namespace.uuid) {
            Some(stored) => {
                stored.label = label.clone();
                Ok(())
            }
            None => Err(SpaceError::Failed("no such namespace".to_owned())),
        })
    }

    fn format(&self, _volume: &VolumeRecord, members: &[(String, NamespaceId)]) -> Result<Uuid, SpaceError> {
        let array = Uuid::new_v4();
        for (address, namespace) in members {
            self.with(address, |target| match target.namespaces.get_mut(&namespace.uuid) {
                Some(stored) => {
                    stored.array = Some(array);
                    Ok(())
                }
                None => Err(SpaceError::Failed("no such namespace".to_owned())),
            })?;
        }
        Ok(array)
    }

    fn array_on(&self, address: &str, namespace: NamespaceId) -> Result<Option<Uuid>, SpaceError> {
        self.with(address, |target| {
            Ok(target.namespaces.get(&namespace.uuid).and_then(|stored| stored.array))
        })
    }
}

/// What happens at a call of a host.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Done,
    /// The answer is lost, and the host lives on.
    AnswerLost,
    /// The host crashes before the call, or after it.
    CrashBefore,
    CrashAfter,
    /// It arrives long after the crash.
    CrashLate,
    /// The host has crashed.
    Dead,
}

/// A host's view of catalog and targets, which ends in the midst of something.
pub struct Doomed {
    catalog: Arc<dyn Catalog>,
    targets: Arc<Targets>,
    /// Calls until the crash, and what is random.
    state: Mutex<(u64, fastrand::Rng)>,
    /// One answer of this many is lost.
    lossy: Option<u64>,
}

impl Doomed {
    /// A host that crashes at call `crash_at`.
    pub fn new(
        catalog: &Arc<FileCatalog>,
        targets: &Arc<Targets>,
        crash_at: u64,
        lossy: Option<u64>,
        seed: u64,
    ) -> Arc<Doomed> {
        let state = Mutex::new((crash_at, fastrand::Rng::with_seed(seed)));
        let (catalog, targets) = (Arc::<FileCatalog>::clone(catalog), Arc::clone(targets));
        Arc::new(Doomed { catalog, targets, state, lossy })
    }

    pub fn host(self: &Arc<Doomed>, name: &str) -> Host {
        let (catalog, spaces) = (Arc::<Doomed>::clone(self), Arc::<Doomed>::clone(self));
        Host { catalog, spaces, name: name.to_owned(), ttl: TTL }
    }

    pub fn is_dead(&self) -> bool {
        self.state.lock().expect("not poisoned").0 == 0
    }

    fn fate(&self) -> Fate {
        let (left, rng) = &mut *self.state.lock().expect("not poisoned");
        match *left {
            0 => return Fate::Dead,
            1 => {
                *left = 0;
                return *rng.choice(&[Fate::CrashBefore, Fate::CrashAfter, Fate::CrashLate]).expect("some");
            }
            _ => *left -= 1,
        }
        match self.lossy {
            Some(one_of) if rng.u64(0..one_of) == 0 => Fate::AnswerLost,
            _ => Fate::Done,
        }
    }

    /// A call of the catalog that only reads, or has no effect that matters if it is lost.
    fn read<T>(
        &self,
        call: impl FnOnce(&dyn Catalog) -> longhaul_catalog::Result<T>,
    ) -> longhaul_catalog::Result<T> {
        match self.fate() {
            Fate::Done | Fate::AnswerLost => call(&*self.catalog),
            _ => Err(dead()),
        }
    }

    fn space<T>(&self, call: impl FnOnce(&Targets) -> Result<T, SpaceError>) -> Result<T, SpaceError> {
        let lost = || Err(SpaceError::Unreachable("the answer is lost".to_owned()));
        match self.fate() {
            Fate::Done => call(&self.targets),
            Fate::AnswerLost | Fate::CrashAfter => {
                let _ = call(&self.targets);
                lost()
            }
            _ => lost(),
        }
    }
}

fn dead() -> CatalogError {
    CatalogError::Failed { catalog: "x".to_owned(), attempted: "use", why: "the host has crashed".to_owned() }
}

impl Catalog for Doomed {
    fn name(&self) -> String {
        self.catalog.name()
    }

    fn commit(&self, txn: &Txn) -> longhaul_catalog::Result<Commit> {
        match self.fate() {
            Fate::Done => self.catalog.commit(txn),
            Fate::AnswerLost => {
                self.catalog.commit(txn)?;
                Err(CatalogError::Unknown { catalog: "x".to_owned(), why: "the answer is lost".to_owned() })
            }
            Fate::CrashAfter => {
                self.catalog.commit(txn)?;
                Err(dead())
            }
            _ => Err(dead()),
        }
    }

    fn range(&self, prefix: &[u8], at: Option<Revision>) -> longhaul_catalog::Result<Snapshot> {
        self.read(|catalog| catalog.range(prefix, at))
    }

    fn get(&self, key: &[u8]) -> longhaul_catalog::Result<Option<Entry>> {
        self.read(|catalog| catalog.get(key))
    }

    fn watch(&self, prefix: &[u8], from: Revision) -> longhaul_catalog::Result<Box<dyn Watch>> {
        self.catalog.watch(prefix, from)
    }

    fn grant(&self, ttl: Duration) -> longhaul_catalog::Result<LeaseId> {
        self.read(|catalog| catalog.grant(ttl))
    }

    // By the keeper's thread: no step of its own.
    fn keep(&self, lease: LeaseId) -> longhaul_catalog::Result<Duration> {
        if self.is_dead() { Err(dead()) } else { self.catalog.keep(lease) }
    }

    fn revoke(&self, lease: LeaseId) -> longhaul_catalog::Result<()> {
        self.read(|catalog| catalog.revoke(lease))
    }
}

impl Spaces for Doomed {
    fn space(&self, address: &str) -> Result<Space, SpaceError> {
        self.space(|targets| targets.space(address))
    }

    fn list(&self, address: &str) -> Result<Vec<Namespace>, SpaceError> {
        self.space(|targets| targets.list(address))
    }

    fn make(&self, address: &str, size: u64, label: &Label) -> Result<NamespaceId, SpaceError> {
        match self.fate() {
            Fate::Done => self.targets.make(address, size, label),
            fate => {
                match fate {
                    Fate::AnswerLost | Fate::CrashAfter => drop(self.targets.make(address, size, label)),
                    // Members are made at the same time: of a host that is dead by now it is on its way.
                    Fate::CrashLate | Fate::Dead => {
                        let late = (address.to_owned(), size, label.clone());
                        self.targets.late.lock().expect("not poisoned").push(late);
                    }
                    _ => {}
                }
                Err(SpaceError::Unreachable("the answer is lost".to_owned()))
            }
        }
    }

    fn remove(&self, address: &str, namespace: NamespaceId) -> Result<(), SpaceError> {
        self.space(|targets| targets.remove(address, namespace))
    }

    fn grow(&self, address: &str, namespace: NamespaceId, size: u64) -> Result<(), SpaceError> {
        self.space(|targets| targets.grow(address, namespace, size))
    }

    fn relabel(&self, address: &str, namespace: NamespaceId, label: &Label) -> Result<(), SpaceError> {
        self.space(|targets| targets.relabel(address, namespace, label))
    }

    fn format(&self, volume: &VolumeRecord, members: &[(String, NamespaceId)]) -> Result<Uuid, SpaceError> {
        self.space(|targets| targets.format(volume, members))
    }

    fn array_on(&self, address: &str, namespace: NamespaceId) -> Result<Option<Uuid>, SpaceError> {
        self.space(|targets| targets.array_on(address, namespace))
    }
}

/// A pool with its catalog, clock and targets, all in memory.
pub struct Rig {
    pub clock: Arc<ManualClock>,
    pub catalog: Arc<FileCatalog>,
    pub targets: Arc<Targets>,
}

impl Rig {
    /// `count` targets of `capacity` bytes.
    pub fn new(count: usize, capacity: u64) -> Rig {
        let clock = Arc::new(ManualClock::new());
        let catalog = empty(&clock);
        Rig { clock, catalog, targets: Targets::new(count, capacity) }
    }

    /// A host without faults.
    pub fn host(&self, name: &str) -> Host {
        let (catalog, spaces) =
            (Arc::<FileCatalog>::clone(&self.catalog), Arc::<Targets>::clone(&self.targets));
        Host { catalog, spaces, name: name.to_owned(), ttl: TTL }
    }

    /// The pool `p` of all targets, each its own failure domain.
    pub fn pool(&self, quota: Quota) -> Pool {
        let addresses: Vec<String> = self.targets.lock().keys().cloned().collect();
        let targets: Vec<(String, String)> =
            addresses.into_iter().map(|a| (a.clone(), format!("rack-{a}"))).collect();
        Pool::create(&self.host("creator"), "p", &targets, quota).expect("created")
    }

    /// All leases that are not kept run out.
    pub fn lose_hosts(&self) {
        self.clock.advance(TTL + Duration::from_secs(1));
    }
}

/// An empty catalog in memory.
pub fn empty(clock: &Arc<ManualClock>) -> Arc<FileCatalog> {
    let options = FileOptions { clock: Arc::<ManualClock>::clone(clock), ..FileOptions::default() };
    Arc::new(FileCatalog::in_memory_with(options).expect("in memory"))
}

/// A parity volume of three members.
pub fn request(name: &str, size: u64) -> VolumeRequest {
    VolumeRequest {
        name: name.to_owned(),
        size,
        layout: VolumeLayout::Array(Layout::Parity),
        width: 3,
        spares: 0,
        unit: 256 << 10,
        per_domain: 1,
        hosts: Vec::new(),
        job: None,
        expires: None,
        thin: false,
    }
}

/// What is always true: usage is what volumes and intents have, and the namespaces of published
/// volumes are there, with their labels, an array on each.
pub fn check(pool: &Pool, targets: &Targets) {
    let status = pool.status().expect("status");
    let mut usage = Usage::default();
    // A volume that is being made has an intent with the same members.
    let volumes = status.volumes.iter().filter(|volume| volume.state == VolumeState::Ready);
    // One that is being resized has its larger members in its record.
    let intents = status.intents.iter().filter(|intent| intent.kind != IntentKind::Resize);
    for volume in volumes.clone().chain(intents.map(|intent| &intent.volume)) {
        for member in &volume.members {
            *usage.targets.entry(member.target.clone()).or_default() += volume.shape.member_size;
            if let Some(job) = &volume.job {
                *usage.jobs.entry(job.clone()).or_default() += volume.shape.member_size;
            }
        }
    }
    assert_eq!(status.usage, usage);
    let all = targets.lock();
    for volume in volumes {
        for (index, member) in volume.members.iter().enumerate() {
            let target = all.values().find(|target| target.id == member.target).expect("known");
            let stored = &target.namespaces[&member.namespace.expect("made").uuid];
            assert_eq!((stored.label.volume, stored.label.index), (volume.uuid, index));
            assert_eq!(stored.array, volume.array);
            let resized = status.intents.iter().any(|intent| intent.volume.uuid == volume.uuid);
            assert!(stored.size == volume.shape.member_size || resized);
        }
    }
}

/// Keys of a pool without volumes: its own, its usage, and a key of each target.
pub fn check_empty(pool: &Pool, rig: &Rig) {
    let targets = rig.targets.lock().len();
    assert_eq!(rig.targets.count(), 0, "namespaces");
    let keys: Vec<String> = rig
        .catalog
        .range(b"", None)
        .expect("read")
        .entries
        .into_iter()
        .map(|entry| String::from_utf8_lossy(&entry.key).into_owned())
        .collect();
    assert_eq!(keys.len(), targets + 2, "{keys:?}");
    assert_eq!(pool.status().expect("status").usage, Usage::default());
    rig.lose_hosts();
    assert_eq!(rig.catalog.leases(), Ok(0));
}
