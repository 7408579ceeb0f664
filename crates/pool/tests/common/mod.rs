//! Targets in memory, and hosts that crash.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use longhaul_array::Layout;
use longhaul_catalog::{
    Catalog, Commit, Entry, Error as CatalogError, FileCatalog, FileOptions, LeaseId, ManualClock, Revision,
    Snapshot, Txn, Watch,
};
use longhaul_device::{Error as DeviceError, ErrorKind, Result as DeviceResult};
use longhaul_pool::testing::MemoryTarget;
use longhaul_pool::{ArrayChange, ArrayView, Arrays, MemberAt, MoveProgress, Role, RunArray, Taken};
use longhaul_pool::{
    Host, IntentKind, Label, Namespace, NamespaceId, Pool, Quota, SnapshotRequest, Space, SpaceError, Spaces,
    Usage, VolumeLayout, VolumeRecord, VolumeRequest, VolumeState,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use uuid::Uuid;

/// Time to live of the leases of hosts.
pub const TTL: Duration = Duration::from_secs(60);
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// An array in memory.
#[derive(Clone, Debug, Default)]
pub struct Array {
    /// The namespaces of its members, by their number.
    pub members: Vec<Uuid>,
    pub spares: Vec<Uuid>,
    /// Members that were replaced, so that their content is the one of the others.
    pub rebuilt: usize,
    pub moved: usize,
    /// A host that cannot be asked uses it.
    pub in_use: bool,
    /// Its writes are held.
    pub paused: bool,
    /// Pauses so far.
    pub pauses: u64,
}

/// A command that is under way.
enum Late {
    Make(String, u64, Label),
    Clone(String, NamespaceId, Label),
}

/// Targets in memory, by address.
#[derive(Default)]
pub struct Targets {
    pub all: Mutex<BTreeMap<String, MemoryTarget>>,
    pub arrays: Mutex<BTreeMap<Uuid, Array>>,
    /// Commands that arrive when their host is lost already.
    late: Mutex<Vec<Late>>,
    /// Targets that clone nothing.
    pub without_clones: Mutex<Vec<String>>,
    /// Times that a target had no room.
    pub full: Mutex<usize>,
}

impl Targets {
    /// Targets `t0`, `t1` and so on, each of `capacity` bytes.
    pub fn new(count: usize, capacity: u64) -> Arc<Targets> {
        let targets = Targets::default();
        for i in 0..count {
            targets.lock().insert(format!("t{i}"), MemoryTarget::new(format!("nqn.{i}"), capacity));
        }
        Arc::new(targets)
    }

    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<String, MemoryTarget>> {
        self.all.lock().expect("not poisoned")
    }

    pub fn set_down(&self, address: &str, is_down: bool) {
        self.lock().get_mut(address).expect("known").down = u64::from(is_down);
    }

    /// Number of all namespaces.
    pub fn count(&self) -> usize {
        self.lock().values().map(|target| target.namespaces.len()).sum()
    }

    /// The commands that were under way arrive.
    pub fn arrive(&self) -> usize {
        let late = std::mem::take(&mut *self.late.lock().expect("not poisoned"));
        let arrives = |late: &&Late| match late {
            Late::Make(address, size, label) => self.make(address, *size, label).is_ok(),
            Late::Clone(address, source, label) => self.clone_of(address, *source, label).is_ok(),
        };
        late.iter().filter(arrives).count()
    }

    fn with<T>(
        &self,
        address: &str,
        call: impl FnOnce(&mut MemoryTarget) -> Result<T, SpaceError>,
    ) -> Result<T, SpaceError> {
        call(MemoryTarget::at(&mut self.lock(), address)?)
    }
}

impl Spaces for Targets {
    fn space(&self, address: &str) -> Result<Space, SpaceError> {
        self.with(address, |target| Ok(target.space()))
    }

    fn list(&self, address: &str) -> Result<Vec<Namespace>, SpaceError> {
        self.with(address, |target| Ok(target.list()))
    }

    fn make(&self, address: &str, size: u64, label: &Label) -> Result<NamespaceId, SpaceError> {
        let made = self.with(address, |target| target.make(Uuid::new_v4(), size, label));
        if matches!(made, Err(SpaceError::Full(_))) {
            *self.full.lock().expect("not poisoned") += 1;
        }
        made
    }

    fn remove(&self, address: &str, namespace: NamespaceId) -> Result<(), SpaceError> {
        self.with(address, |target| {
            target.remove(namespace);
            Ok(())
        })
    }

    fn grow(&self, address: &str, namespace: NamespaceId, size: u64) -> Result<(), SpaceError> {
        self.with(address, |target| target.grow(namespace, size))
    }

    fn relabel(&self, address: &str, namespace: NamespaceId, label: &Label) -> Result<(), SpaceError> {
        self.with(address, |target| {
            target.namespace(namespace)?.label = label.clone();
            Ok(())
        })
    }

    fn format(&self, volume: &VolumeRecord, members: &[(String, NamespaceId)]) -> Result<Uuid, SpaceError> {
        let array = Uuid::new_v4();
        let uuids: Vec<Uuid> = members.iter().map(|(_, namespace)| namespace.uuid).collect();
        let (first, spares) = uuids.split_at(volume.shape.width);
        let made = Array { members: first.to_vec(), spares: spares.to_vec(), ..Array::default() };
        self.arrays.lock().expect("not poisoned").insert(array, made);
        for (address, namespace) in members {
            self.with(address, |target| {
                target.namespace(*namespace)?.array = Some(array);
                Ok(())
            })?;
        }
        Ok(array)
    }

    fn check_clones(&self, address: &str, namespace: NamespaceId) -> Result<(), SpaceError> {
        if self.without_clones.lock().expect("not poisoned").iter().any(|without| without == address) {
            return Err(SpaceError::Refused("its files share no blocks".to_owned()));
        }
        self.with(address, |target| target.namespace(namespace).map(drop))
    }

    fn clone_of(&self, address: &str, source: NamespaceId, label: &Label) -> Result<NamespaceId, SpaceError> {
        self.check_clones(address, source)?;
        self.with(address, |target| target.clone_of(Uuid::new_v4(), source, label))
    }

    fn adopt(
        &self,
        volume: &VolumeRecord,
        of: Uuid,
        members: &[(String, NamespaceId, Label)],
    ) -> Result<Uuid, SpaceError> {
        for (address, namespace, _) in members {
            let found = self.with(address, |target| Ok(target.namespace(*namespace)?.array))?;
            assert_eq!(found, Some(of), "a clone of a member of {}", volume.name);
        }
        let places: Vec<(String, NamespaceId)> =
            members.iter().map(|(address, namespace, _)| (address.clone(), *namespace)).collect();
        let array = self.format(volume, &places)?;
        for (address, namespace, label) in members {
            self.relabel(address, *namespace, label)?;
        }
        Ok(array)
    }

    fn array_on(&self, address: &str, namespace: NamespaceId) -> Result<Option<Uuid>, SpaceError> {
        self.with(address, |target| {
            Ok(target.namespaces.get(&namespace.uuid).and_then(|stored| stored.array))
        })
    }

    fn in_use(&self, members: &[(String, NamespaceId)]) -> Result<Option<String>, SpaceError> {
        let arrays = self.arrays.lock().expect("not poisoned");
        let mut used = arrays.values().filter(|array| array.in_use);
        let of_it = |array: &Array| members.iter().any(|(_, one)| array.members.contains(&one.uuid));
        Ok(used.any(of_it).then(|| "a session of a host writes to it".to_owned()))
    }

    fn evict(&self, members: &[(String, NamespaceId)]) -> Result<(), SpaceError> {
        let mut arrays = self.arrays.lock().expect("not poisoned");
        for array in arrays.values_mut() {
            array.in_use &= !members.iter().any(|(_, one)| array.members.contains(&one.uuid));
        }
        Ok(())
    }

    fn taken(
        &self,
        members: &[(String, NamespaceId)],
        place: &(String, NamespaceId),
    ) -> Result<Taken, SpaceError> {
        let arrays = self.arrays.lock().expect("not poisoned");
        let of_it = |array: &&Array| {
            members
                .iter()
                .any(|(_, one)| array.members.contains(&one.uuid) || array.spares.contains(&one.uuid))
        };
        let array = arrays.values().find(of_it).expect("an array");
        let has = array.members.contains(&place.1.uuid) || array.spares.contains(&place.1.uuid);
        Ok(match (array.in_use, has) {
            (true, _) => Taken::InUse,
            (false, true) => Taken::Yes,
            (false, false) => Taken::No,
        })
    }
}

/// What runs while an array changes.
pub type Meanwhile = Box<dyn Fn() + Send + Sync>;

/// The arrays of the targets in memory, as a host reaches them.
pub struct MemArrays {
    pub targets: Arc<Targets>,
    /// The host, if it may crash.
    pub doomed: Option<Arc<Doomed>>,
    /// Called before a member changes.
    pub before: Option<Meanwhile>,
    /// Every change fails, and this is called when it is given up.
    pub given_up: Option<Meanwhile>,
}

impl MemArrays {
    pub fn new(targets: &Arc<Targets>) -> MemArrays {
        MemArrays { targets: Arc::clone(targets), doomed: None, before: None, given_up: None }
    }

    fn call<T>(&self, call: impl FnOnce(&Targets) -> DeviceResult<T>) -> DeviceResult<T> {
        let Some(doomed) = &self.doomed else { return call(&self.targets) };
        let mut result = None;
        let done = doomed.space(|targets| {
            result = Some(call(targets));
            Ok(())
        });
        match (done, result) {
            (Ok(()), Some(result)) => result,
            _ => Err(DeviceError::new(ErrorKind::Failed, "the host has crashed")),
        }
    }
}

struct MemRun<'a> {
    arrays: &'a MemArrays,
    array: Uuid,
}

impl MemRun<'_> {
    fn change<T>(&self, change: impl FnOnce(&Targets, &mut Array) -> DeviceResult<T>) -> DeviceResult<T> {
        self.arrays.call(|targets| {
            let mut arrays = targets.arrays.lock().expect("not poisoned");
            change(targets, arrays.get_mut(&self.array).expect("there"))
        })
    }

    /// The new member is written: it has to be there, for a host.
    fn enlist(&self, targets: &Targets, place: &MemberAt) -> DeviceResult<()> {
        let written = targets.with(&place.0, |target| match target.namespaces.get_mut(&place.1.uuid) {
            Some(stored) if !stored.label.hosts.is_empty() => {
                stored.array = Some(self.array);
                Ok(())
            }
            _ => Err(SpaceError::Failed("no such namespace".to_owned())),
        });
        written.map_err(|e| DeviceError::new(ErrorKind::Failed, e))
    }
}

impl Arrays for MemArrays {
    fn open<'a>(&'a self, _pool: &Pool, volume: &VolumeRecord) -> DeviceResult<Box<dyn RunArray + 'a>> {
        let array = volume.array.expect("an array");
        self.call(|targets| match targets.arrays.lock().expect("not poisoned")[&array].in_use {
            true => Err(DeviceError::new(ErrorKind::Refused, "another host uses it")),
            false => Ok(()),
        })?;
        Ok(Box::new(MemRun { arrays: self, array }))
    }
}

impl RunArray for MemRun<'_> {
    fn look(&self, places: &[Option<MemberAt>]) -> DeviceResult<ArrayView> {
        self.change(|targets, array| {
            let is_there = |uuid: &Uuid| {
                let all = targets.lock();
                all.values().any(|target| target.down == 0 && target.namespaces.contains_key(uuid))
            };
            let role = |place: &Option<MemberAt>| {
                let Some(uuid) = place.as_ref().map(|(_, id)| id.uuid) else { return Role::None };
                match array.members.iter().position(|member| *member == uuid) {
                    Some(index) if is_there(&uuid) => Role::Active(index),
                    Some(index) => Role::Missing(index),
                    None if array.spares.contains(&uuid) && is_there(&uuid) => Role::Spare,
                    None => Role::None,
                }
            };
            let known = |uuid: &Uuid| places.iter().flatten().any(|(_, id)| id.uuid == *uuid);
            let missing =
                array.members.iter().enumerate().filter(|(_, uuid)| !is_there(uuid) && !known(uuid));
            Ok(ArrayView {
                roles: places.iter().map(role).collect(),
                missing: missing.map(|(index, _)| index).collect(),
            })
        })
    }

    fn limit(&self, _rate: Option<u64>) -> DeviceResult<()> {
        Ok(())
    }

    fn change(&self, change: &ArrayChange, show: &mut dyn FnMut(&MoveProgress)) -> DeviceResult<()> {
        if let Some(before) = &self.arrays.before {
            before();
        }
        show(&MoveProgress { done: 1, total: 2, rate: 1.0, left: None });
        if self.arrays.given_up.is_some() {
            return Err(DeviceError::new(ErrorKind::Failed, "the copy has failed"));
        }
        self.change(|targets, array| match change {
            ArrayChange::Move(index, place) => {
                self.enlist(targets, place)?;
                array.members[*index] = place.1.uuid;
                array.moved += 1;
                Ok(())
            }
            ArrayChange::Replace(index, place) => {
                self.enlist(targets, place)?;
                array.members[*index] = place.1.uuid;
                array.rebuilt += 1;
                Ok(())
            }
            ArrayChange::Rebuilt(_) => Ok(()),
            ArrayChange::AddSpare(place) => {
                self.enlist(targets, place)?;
                array.spares.push(place.1.uuid);
                Ok(())
            }
            ArrayChange::RemoveSpare(place) => {
                array.spares.retain(|spare| *spare != place.1.uuid);
                Ok(())
            }
        })
    }

    fn cancel(&self, place: &MemberAt) -> DeviceResult<bool> {
        let has_it = self.change(|_, array| {
            Ok(array.members.contains(&place.1.uuid) || array.spares.contains(&place.1.uuid))
        });
        if let Some(given_up) = &self.arrays.given_up {
            given_up();
        }
        has_it
    }

    fn pause(&self, _limit: Duration) -> DeviceResult<u64> {
        let pause = self.change(|_, array| {
            if array.paused {
                return Err(DeviceError::new(ErrorKind::Refused, "it is paused already"));
            }
            (array.paused, array.pauses) = (true, array.pauses + 1);
            Ok(array.pauses)
        })?;
        if let Some(before) = &self.arrays.before {
            before();
        }
        Ok(pause)
    }

    fn resume(&self, pause: u64) -> DeviceResult<bool> {
        self.change(|_, array| {
            let is_on = array.paused && array.pauses == pause;
            array.paused &= !is_on;
            Ok(is_on)
        })
    }

    fn end(self: Box<Self>) -> DeviceResult<()> {
        Ok(())
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
                        let late = Late::Make(address.to_owned(), size, label.clone());
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

    fn check_clones(&self, address: &str, namespace: NamespaceId) -> Result<(), SpaceError> {
        self.space(|targets| targets.check_clones(address, namespace))
    }

    fn clone_of(&self, address: &str, source: NamespaceId, label: &Label) -> Result<NamespaceId, SpaceError> {
        match self.fate() {
            Fate::Done => self.targets.clone_of(address, source, label),
            fate => {
                match fate {
                    Fate::AnswerLost | Fate::CrashAfter => {
                        drop(self.targets.clone_of(address, source, label))
                    }
                    Fate::CrashLate | Fate::Dead => {
                        let late = Late::Clone(address.to_owned(), source, label.clone());
                        self.targets.late.lock().expect("not poisoned").push(late);
                    }
                    _ => {}
                }
                Err(SpaceError::Unreachable("the answer is lost".to_owned()))
            }
        }
    }

    fn adopt(
        &self,
        volume: &VolumeRecord,
        of: Uuid,
        members: &[(String, NamespaceId, Label)],
    ) -> Result<Uuid, SpaceError> {
        self.space(|targets| targets.adopt(volume, of, members))
    }

    fn array_on(&self, address: &str, namespace: NamespaceId) -> Result<Option<Uuid>, SpaceError> {
        self.space(|targets| targets.array_on(address, namespace))
    }

    fn in_use(&self, members: &[(String, NamespaceId)]) -> Result<Option<String>, SpaceError> {
        self.space(|targets| targets.in_use(members))
    }

    fn evict(&self, members: &[(String, NamespaceId)]) -> Result<(), SpaceError> {
        self.space(|targets| targets.evict(members))
    }

    fn taken(
        &self,
        members: &[(String, NamespaceId)],
        place: &(String, NamespaceId),
    ) -> Result<Taken, SpaceError> {
        self.space(|targets| targets.taken(members, place))
    }
}

/// A catalog of a host, in which another host does something before one of the reads of this one.
pub struct Between {
    catalog: Arc<FileCatalog>,
    /// Reads before that one.
    left: AtomicI64,
    meanwhile: Meanwhile,
}

impl Between {
    pub fn new(catalog: &Arc<FileCatalog>, reads: i64, meanwhile: Meanwhile) -> Arc<Between> {
        Arc::new(Between { catalog: Arc::clone(catalog), left: AtomicI64::new(reads), meanwhile })
    }

    /// Whether it was done.
    pub fn is_done(&self) -> bool {
        self.left.load(Ordering::SeqCst) < 0
    }

    fn read(&self) -> &FileCatalog {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            (self.meanwhile)();
        }
        &self.catalog
    }
}

impl Catalog for Between {
    fn name(&self) -> String {
        self.catalog.name()
    }

    fn commit(&self, txn: &Txn) -> longhaul_catalog::Result<Commit> {
        self.catalog.commit(txn)
    }

    fn range(&self, prefix: &[u8], at: Option<Revision>) -> longhaul_catalog::Result<Snapshot> {
        self.read().range(prefix, at)
    }

    fn get(&self, key: &[u8]) -> longhaul_catalog::Result<Option<Entry>> {
        self.read().get(key)
    }

    fn watch(&self, prefix: &[u8], from: Revision) -> longhaul_catalog::Result<Box<dyn Watch>> {
        self.catalog.watch(prefix, from)
    }

    fn grant(&self, ttl: Duration) -> longhaul_catalog::Result<LeaseId> {
        self.catalog.grant(ttl)
    }

    fn keep(&self, lease: LeaseId) -> longhaul_catalog::Result<Duration> {
        self.catalog.keep(lease)
    }

    fn revoke(&self, lease: LeaseId) -> longhaul_catalog::Result<()> {
        self.catalog.revoke(lease)
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

    /// A host that finds a volume renamed before read number `reads` of its own.
    pub fn host_between(&self, reads: i64, name: &'static str, to: &'static str) -> (Host, Arc<Between>) {
        let other = self.host("renamer");
        let rename = move || {
            let renamed = Pool::open(&other, "p").and_then(|pool| pool.rename_volume(name, to));
            renamed.expect("renamed");
        };
        let between = Between::new(&self.catalog, reads, Box::new(rename));
        (Host { catalog: Arc::<Between>::clone(&between), ..self.host("slow") }, between)
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
        lifetime: None,
        thin: false,
    }
}

/// A snapshot `to` of `of`, for its hosts.
pub fn snapshot(of: &str, to: &str) -> SnapshotRequest {
    SnapshotRequest { of: of.to_owned(), name: to.to_owned(), hosts: None, lifetime: None }
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
            assert_eq!((&stored.label.snapshot_of, stored.label.copied), (&volume.snapshot_of, false));
            // The array has it, unless it is on its way to or from another place.
            if volume.moving.is_none()
                && let Some(array) = volume.array
            {
                let arrays = targets.arrays.lock().expect("not poisoned");
                let uuid = member.namespace.expect("made").uuid;
                assert!(arrays[&array].members.contains(&uuid) || arrays[&array].spares.contains(&uuid));
            }
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
