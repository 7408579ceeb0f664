//! A pool: what is recorded of it.

use crate::error::{Error, Result};
use crate::keys;
use crate::label::Label;
use crate::manager::{FIRST, Manager};
use crate::name::check_name;
use crate::record::{
    Intent, PoolRecord, Quota, TargetRecord, Usage, VolumeBrief, VolumeRecord, VolumeState, decode,
    decode_intent, decode_volume, encode,
};
use crate::spaces::{NamespaceId, Space, SpaceError, Spaces, shown};
use crate::targets::same;
use crate::time::wall_time;
use longhaul_catalog::{Catalog, Commit, Error as CatalogError, Expect, Revision, Txn};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Most targets of a pool: its creation is one transaction.
const MAX_TARGETS: usize = 100;
/// How often a transaction is tried that other hosts get ahead of, or whose answer is lost.
pub(crate) const TRIES: usize = 100;

/// The host that works on pools, and what it does that with.
#[derive(Clone)]
pub struct Host {
    /// Names and coordinates.
    pub catalog: Arc<dyn Catalog>,
    /// Makes namespaces.
    pub spaces: Arc<dyn Spaces>,
    /// What other hosts can read about this one.
    pub name: String,
    /// How long after the last sign of this host others take over what it was doing.
    pub ttl: Duration,
}

impl Host {
    /// Makes a transaction of which it can be found out whether it was made. Its expectations must
    /// fail once it was made. False if others were ahead of it.
    pub(crate) fn commit(&self, txn: &Txn, is_made: impl Fn() -> Result<bool>) -> Result<bool> {
        for _ in 0..TRIES {
            match self.catalog.commit(txn) {
                Ok(Commit::Done(_)) => return Ok(true),
                // It may be an earlier try of this transaction that was ahead.
                Ok(Commit::Conflict(_)) => return is_made(),
                // If it is not there it may still come, or not: then this one conflicts, or is made.
                Err(CatalogError::Unknown { .. }) if is_made()? => return Ok(true),
                Err(CatalogError::Unknown { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Contended(self.catalog.name()))
    }

    /// Names of all pools of the catalog.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn pools(&self) -> Result<Vec<String>> {
        let found = self.catalog.range(keys::POOLS, None)?.entries;
        found
            .iter()
            .map(|entry| Ok(decode::<PoolRecord>("the record of a pool", &entry.value)?.name))
            .collect()
    }
}

thread_local! {
    static IN_SEQUENCE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, in which calls to several targets are made one after another and in the same order each
/// time, instead of side by side: for simulations.
pub fn in_sequence<T>(f: impl FnOnce() -> T) -> T {
    let before = IN_SEQUENCE.replace(true);
    let result = f();
    IN_SEQUENCE.set(before);
    result
}

/// Runs `call` for each item on a thread of its own.
pub(crate) fn each<T: Sync, R: Send>(items: &[T], call: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if items.len() == 1 || IN_SEQUENCE.get() {
        return items.iter().map(call).collect();
    }
    std::thread::scope(|scope| {
        let call = &call;
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(move || call(item))).collect();
        // A panic of a call is one of the caller.
        threads.into_iter().map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    })
}

/// A pool of a catalog.
#[derive(Clone)]
pub struct Pool {
    pub(crate) host: Host,
    pub(crate) record: PoolRecord,
}

/// A target, as it is now.
#[derive(Clone, Debug)]
pub struct TargetStatus {
    /// Its record.
    pub record: TargetRecord,
    /// Bytes that the pool has promised there.
    pub used: u64,
    /// Its space, or why it cannot be asked.
    pub space: std::result::Result<Space, SpaceError>,
}

/// A pool, as it is now.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its record.
    pub record: PoolRecord,
    /// Its targets, by identity.
    pub targets: Vec<TargetStatus>,
    /// Its volumes, by name.
    pub volumes: Vec<VolumeRecord>,
    /// What is being made or removed, or waits for that.
    pub intents: Vec<Intent>,
    /// Bytes that are promised.
    pub usage: Usage,
}

impl Pool {
    /// Makes a pool of the spaces at these addresses, each with its failure domain.
    ///
    /// # Errors
    /// The name is taken, or a target cannot be used.
    pub fn create(host: &Host, name: &str, targets: &[(String, String)], quota: Quota) -> Result<Pool> {
        check_name("pool", name)?;
        let uuid = host.spaces.new_uuid();
        let manager = Some(Manager::new(host, uuid, FIRST));
        let record = PoolRecord { uuid, name: name.to_owned(), quota, manager };
        let pool = Pool { host: host.clone(), record };
        if targets.len() > MAX_TARGETS {
            let (count, what) = (targets.len(), format!("{name} with {MAX_TARGETS} targets at first"));
            return Err(Error::Shape(format!("{count} targets are too many at once: create pool {what}")));
        }
        let mut found: BTreeMap<String, TargetRecord> = BTreeMap::new();
        for target in each(targets, |(address, domain)| pool.examine(address, domain)) {
            let target = target?;
            if let Some(other) = found.get(&target.id) {
                return Err(same(&target, other));
            }
            found.insert(target.id.clone(), target);
        }
        let (uuid, key) = (pool.record.uuid, keys::pool(name));
        let txn = Txn::new().expect(&key, Expect::Absent).put(&key, &encode(&pool.record));
        let txn = txn.put(&keys::usage(uuid), &encode(&Usage::default()));
        let put = |txn: Txn, target: &TargetRecord| txn.put(&keys::target(uuid, &target.id), &encode(target));
        let is_made = || Ok(host.catalog.get(&keys::usage(uuid))?.is_some());
        if !host.commit(&found.values().fold(txn, put), is_made)? {
            return Err(Error::Exists { what: "pool", name: name.to_owned() });
        }
        Ok(pool)
    }

    /// The pool of that name.
    ///
    /// # Errors
    /// The catalog has no such pool.
    pub fn open(host: &Host, name: &str) -> Result<Pool> {
        let Some(entry) = host.catalog.get(&keys::pool(name))? else {
            let place = format!("catalog {}", host.catalog.name());
            return Err(Error::NotFound { what: "pool", name: name.to_owned(), place });
        };
        let record = decode(&format!("the record of pool {name}"), &entry.value)?;
        Ok(Pool { host: host.clone(), record })
    }

    /// The host that works on it.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Its record.
    pub fn record(&self) -> &PoolRecord {
        &self.record
    }

    pub(crate) fn uuid(&self) -> Uuid {
        self.record.uuid
    }

    pub(crate) fn not_found(&self, what: &'static str, name: &str) -> Error {
        let place = format!("pool {}", self.record.name);
        Error::NotFound { what, name: name.to_owned(), place }
    }

    /// What is promised, and the revision of that record.
    pub(crate) fn usage(&self) -> Result<(Usage, Revision)> {
        let Some(entry) = self.host.catalog.get(&keys::usage(self.uuid()))? else {
            let place = format!("catalog {}", self.host.catalog.name());
            return Err(Error::NotFound { what: "pool", name: self.record.name.clone(), place });
        };
        Ok((decode("the usage of a pool", &entry.value)?, entry.modified))
    }

    /// Volumes that are being made, removed or changed, each with its revision.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn intents(&self) -> Result<Vec<(Intent, Revision)>> {
        let found = self.host.catalog.range(&keys::intent(self.uuid(), ""), None)?.entries;
        found.iter().map(|entry| Ok((decode_intent(&entry.value)?, entry.modified))).collect()
    }

    /// Calls `show` with what a list shows of each volume, in the order of their names. What one is a
    /// snapshot of has the name that it has now, if it is still there.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn list_volumes(&self, mut show: impl FnMut(VolumeBrief<'_>)) -> Result<()> {
        let mut names: Option<BTreeMap<Uuid, String>> = None;
        let mut see = |value: &[u8]| -> Result<()> {
            let mut brief: VolumeBrief<'_> = decode_volume("the record of a volume", value)?;
            if let Some(of) = &mut brief.snapshot_of {
                let names = match &mut names {
                    Some(names) => names,
                    None => names.insert(self.volume_names()?),
                };
                if let Some(name) = names.get(&of.volume) {
                    of.name.clone_from(name);
                }
            }
            show(brief);
            Ok(())
        };
        self.visit_volumes(&mut see)
    }

    /// Calls `see` with the record of each volume, in the order of their names, until it fails.
    fn visit_volumes(&self, see: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut seen = Ok(());
        self.host.catalog.visit(&keys::volume(self.uuid(), ""), &mut |_, value| {
            if seen.is_ok() {
                seen = see(value);
            }
        })?;
        seen
    }

    /// The names of all volumes, as they are now.
    fn volume_names(&self) -> Result<BTreeMap<Uuid, String>> {
        #[derive(serde::Deserialize)]
        struct Named {
            uuid: Uuid,
            name: String,
        }
        let mut names = BTreeMap::new();
        self.visit_volumes(&mut |value| {
            let Named { uuid, name } = decode_volume("the record of a volume", value)?;
            names.insert(uuid, name);
            Ok(())
        })?;
        Ok(names)
    }

    /// All volumes, by name.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn volumes(&self) -> Result<Vec<VolumeRecord>> {
        let found = self.host.catalog.range(&keys::volume(self.uuid(), ""), None)?.entries;
        found.iter().map(|entry| decode_volume("the record of a volume", &entry.value)).collect()
    }

    /// One volume.
    ///
    /// # Errors
    /// The pool has no volume of that name.
    pub fn volume(&self, name: &str) -> Result<VolumeRecord> {
        Ok(self.find(name)?.0)
    }

    /// The volume with this UUID, under whatever name; `None` if the pool has no such volume.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn volume_of(&self, uuid: Uuid) -> Result<Option<VolumeRecord>> {
        Ok(self.volumes()?.into_iter().find(|volume| volume.uuid == uuid))
    }

    pub(crate) fn find(&self, name: &str) -> Result<(VolumeRecord, Revision)> {
        self.look_up(name)?.ok_or_else(|| self.not_found("volume", name))
    }

    /// The volume of that name, and the revision of its record; `None` if there is none.
    pub(crate) fn look_up(&self, name: &str) -> Result<Option<(VolumeRecord, Revision)>> {
        let Some(entry) = self.host.catalog.get(&keys::volume(self.uuid(), name))? else { return Ok(None) };
        Ok(Some((decode_volume(&format!("the record of volume {name}"), &entry.value)?, entry.modified)))
    }

    /// Whether this volume was published and is there, by whatever name.
    pub(crate) fn is_published(&self, volume: Uuid) -> Result<bool> {
        let is_it = |found: &VolumeRecord| found.uuid == volume && found.state == VolumeState::Ready;
        Ok(self.volumes()?.iter().any(is_it))
    }

    /// The pool as it is now: all targets are asked.
    ///
    /// # Errors
    /// The catalog cannot be read. A target that cannot be asked is no error.
    pub fn status(&self) -> Result<Status> {
        let (usage, _) = self.usage()?;
        let records: Vec<TargetRecord> = self.targets()?.into_values().map(|(target, _)| target).collect();
        let targets = each(&records, |record| TargetStatus {
            record: record.clone(),
            used: usage.targets.get(&record.id).copied().unwrap_or(0),
            space: self.space(record),
        });
        let intents = self.intents()?.into_iter().map(|(intent, _)| intent).collect();
        Ok(Status { record: self.record.clone(), targets, volumes: self.volumes()?, intents, usage })
    }

    /// Refuses a volume that is being made.
    pub(crate) fn check_ready(&self, volume: &VolumeRecord) -> Result<()> {
        if volume.state == VolumeState::Creating {
            let what = format!("volume {}", volume.name);
            return Err(Error::InUse { what, why: "it is being made".to_owned() });
        }
        Ok(())
    }

    /// Removes the pool, which must have no volumes; its targets are free then.
    ///
    /// # Errors
    /// [`Error::InUse`] if there are volumes, or namespaces that wait for their removal.
    pub fn destroy(self) -> Result<()> {
        // Before the look at the volumes: what is made after that is noticed.
        let at = self.usage()?.1;
        let (volumes, intents) = (self.volumes()?, self.intents()?);
        if !volumes.is_empty() || !intents.is_empty() {
            let why = match volumes.len() {
                0 => format!("{} volumes are being made or removed", intents.len()),
                count => format!("it has {count} volumes: remove them first"),
            };
            return Err(Error::InUse { what: format!("pool {}", self.record.name), why });
        }
        self.forget(at)
    }

    /// Takes the pool out of this catalog and leaves its volumes at the targets, from which another
    /// catalog imports them. Returns why targets do not know of it: an import by their labels alone takes
    /// the pool for one that is in use. Of a pool that another catalog has taken over only the records here
    /// are removed.
    ///
    /// # Errors
    /// [`Error::InUse`] while volumes are being made or removed.
    pub fn export(self) -> Result<Vec<String>> {
        let at = self.usage()?.1;
        let is_managed = self.superseded_by()?.is_none();
        let intents = self.intents()?;
        if is_managed && !intents.is_empty() {
            let why = format!("{} volumes are being made or removed", intents.len());
            return Err(Error::InUse { what: format!("pool {}", self.record.name), why });
        }
        let released = if is_managed { self.released_labels()? } else { Vec::new() };
        self.give_up(at)?;
        // From here on this catalog does nothing with the pool.
        let written = each(&released, |(address, namespace, label)| {
            self.host.spaces.relabel(address, *namespace, label)
        });
        let unaware = released.iter().zip(written).filter_map(|((address, ..), written)| {
            Some(format!("target {}: {}", shown(address), written.err()?))
        });
        let unaware = unaware.collect();
        self.delete_rest()?;
        Ok(unaware)
    }

    /// For each target a namespace there with the label that says that this catalog does not manage the pool
    /// any more.
    fn released_labels(&self) -> Result<Vec<(String, NamespaceId, Label)>> {
        let Some(manager) = &self.record.manager else { return Ok(Vec::new()) };
        let manager = Some(Manager { released: Some(wall_time()), ..manager.clone() });
        let record = PoolRecord { manager, ..self.record.clone() };
        let targets = self.targets()?;
        let mut labels: BTreeMap<String, (String, NamespaceId, Label)> = BTreeMap::new();
        for volume in self.volumes()? {
            for (index, member) in volume.members.iter().enumerate() {
                let (Some((target, _)), Some(namespace)) = (targets.get(&member.target), member.namespace)
                else {
                    continue;
                };
                labels.entry(target.id.clone()).or_insert_with(|| {
                    let label = Label::of(&volume, &record, &target.domain, index);
                    (target.address.clone(), namespace, label)
                });
            }
        }
        Ok(labels.into_values().collect())
    }

    /// Deletes all records, if nothing was allocated since revision `at` of the usage. The first
    /// transaction takes the pool's name and usage, so that nothing is allocated from then on; a crash
    /// after it leaves records that no pool has.
    fn forget(self, at: Revision) -> Result<()> {
        self.give_up(at)?;
        self.delete_rest()
    }

    /// The first transaction of that.
    fn give_up(&self, at: Revision) -> Result<()> {
        let usage = keys::usage(self.uuid());
        let txn = Txn::new().expect(&usage, Expect::Modified(at));
        let txn = txn.delete(&usage).delete(&keys::pool(&self.record.name));
        if !self.host.commit(&txn, || Ok(self.host.catalog.get(&usage)?.is_none()))? {
            return Err(Error::Contended(self.record.name.clone()));
        }
        Ok(())
    }

    fn delete_rest(&self) -> Result<()> {
        let rest = self.host.catalog.range(&keys::all(self.uuid()), None)?.entries;
        for chunk in rest.chunks(longhaul_catalog::MAX_OPERATIONS) {
            let txn = chunk.iter().fold(Txn::new(), |txn, entry| txn.delete(&entry.key));
            self.host.commit(&txn, || Ok(false))?;
        }
        Ok(())
    }
}
