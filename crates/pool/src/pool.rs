//! A pool: its targets and volumes.

use crate::error::{Error, Result};
use crate::keys;
use crate::label::Label;
use crate::name::check_name;
use crate::record::{Intent, PoolRecord, Quota, TargetRecord, Usage, VolumeRecord, decode, encode};
use crate::spaces::{Space, SpaceError, Spaces};
use longhaul_catalog::{Catalog, Commit, Error as CatalogError, Expect, Revision, Txn};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
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

/// Runs `call` for each item on a thread of its own.
pub(crate) fn each<T: Sync, R: Send>(items: &[T], call: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if let [one] = items {
        return vec![call(one)];
    }
    std::thread::scope(|scope| {
        let call = &call;
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(move || call(item))).collect();
        // A panic of a call is one of the caller.
        threads.into_iter().map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    })
}

/// Seconds since 1970 by the wall clock.
pub(crate) fn wall_time() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A pool of a catalog.
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
        let record = PoolRecord { uuid: Uuid::new_v4(), name: name.to_owned(), quota };
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

    /// Asks a target whether it can be of this pool.
    fn examine(&self, address: &str, domain: &str) -> Result<TargetRecord> {
        let failed = |source| Error::Space { attempted: "look", address: address.to_owned(), source };
        let space = self.host.spaces.space(address).map_err(failed)?;
        for namespace in self.host.spaces.list(address).map_err(failed)? {
            if let Some(Ok(label)) = namespace.label
                && label.pool != self.uuid()
            {
                let Label { pool_name, pool, .. } = label;
                let why = format!(
                    "it has namespaces of pool {pool_name} ({pool}): import that pool, or remove them"
                );
                return Err(Error::Foreign { address: address.to_owned(), why });
            }
        }
        let (address, domain) = (address.to_owned(), domain.to_owned());
        Ok(TargetRecord { id: space.id, address, domain, capacity: space.capacity })
    }

    /// Adds the space at an address. One of this pool that is not found at its address any more
    /// gets this one.
    ///
    /// # Errors
    /// The target cannot be used, or another one of the pool has its identity.
    pub fn add_target(&self, address: &str, domain: &str) -> Result<TargetRecord> {
        let target = self.examine(address, domain)?;
        let key = keys::target(self.uuid(), &target.id);
        for _ in 0..TRIES {
            let known = self.targets()?.remove(&target.id);
            let expect = match &known {
                None => Expect::Absent,
                Some((known, _)) if *known == target => return Ok(target),
                Some((known, revision)) => {
                    let there = self.host.spaces.space(&known.address);
                    if known.address != address && there.is_ok_and(|space| space.id == target.id) {
                        return Err(same(&target, known));
                    }
                    Expect::Modified(*revision)
                }
            };
            let txn = Txn::new().expect(&keys::usage(self.uuid()), Expect::Present);
            let txn = txn.expect(&key, expect).put(&key, &encode(&target));
            let is_made = || Ok(self.targets()?.get(&target.id).is_some_and(|(known, _)| *known == target));
            if self.host.commit(&txn, is_made)? {
                return Ok(target);
            }
            // It conflicts also if the pool is gone.
            self.usage()?;
        }
        Err(Error::Contended(self.record.name.clone()))
    }

    /// Removes a target, by its address or identity.
    ///
    /// # Errors
    /// [`Error::InUse`] if volumes have members there.
    pub fn remove_target(&self, target: &str) -> Result<TargetRecord> {
        for _ in 0..TRIES {
            let (usage, usage_at) = self.usage()?;
            let is_it = |(found, _): &(TargetRecord, Revision)| found.address == target || found.id == target;
            let Some((found, at)) = self.targets()?.into_values().find(is_it) else {
                return Err(self.not_found("target", target));
            };
            if usage.targets.contains_key(&found.id) {
                let uses = |volume: &VolumeRecord| volume.members.iter().any(|m| m.target == found.id);
                let waiting = self.intents()?.into_iter().map(|(intent, _)| intent.volume);
                let mut names: Vec<String> =
                    self.volumes()?.into_iter().chain(waiting).filter(uses).map(|v| v.name).collect();
                names.sort_unstable();
                names.dedup();
                let why = format!("it has members of {}", names.join(", "));
                return Err(Error::InUse { what: format!("target {}", found.address), why });
            }
            let key = keys::target(self.uuid(), &found.id);
            let txn = Txn::new().expect(&keys::usage(self.uuid()), Expect::Modified(usage_at));
            let txn = txn.expect(&key, Expect::Modified(at)).delete(&key);
            if self.host.commit(&txn, || Ok(self.host.catalog.get(&key)?.is_none()))? {
                return Ok(found);
            }
        }
        Err(Error::Contended(self.record.name.clone()))
    }

    /// Targets by identity, with the revision of their record.
    pub(crate) fn targets(&self) -> Result<BTreeMap<String, (TargetRecord, Revision)>> {
        let found = self.host.catalog.range(&keys::target(self.uuid(), ""), None)?;
        let mut targets = BTreeMap::new();
        for entry in found.entries {
            let target: TargetRecord = decode("the record of a target", &entry.value)?;
            targets.insert(target.id.clone(), (target, entry.modified));
        }
        Ok(targets)
    }

    /// What is promised, and the revision of that record.
    pub(crate) fn usage(&self) -> Result<(Usage, Revision)> {
        let Some(entry) = self.host.catalog.get(&keys::usage(self.uuid()))? else {
            let place = format!("catalog {}", self.host.catalog.name());
            return Err(Error::NotFound { what: "pool", name: self.record.name.clone(), place });
        };
        Ok((decode("the usage of a pool", &entry.value)?, entry.modified))
    }

    pub(crate) fn intents(&self) -> Result<Vec<(Intent, Revision)>> {
        let found = self.host.catalog.range(&keys::intent(self.uuid(), ""), None)?.entries;
        found.iter().map(|entry| Ok((decode("an intent", &entry.value)?, entry.modified))).collect()
    }

    /// All volumes, by name.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn volumes(&self) -> Result<Vec<VolumeRecord>> {
        let found = self.host.catalog.range(&keys::volume(self.uuid(), ""), None)?.entries;
        found.iter().map(|entry| decode("the record of a volume", &entry.value)).collect()
    }

    /// One volume.
    ///
    /// # Errors
    /// The pool has no volume of that name.
    pub fn volume(&self, name: &str) -> Result<VolumeRecord> {
        Ok(self.find(name)?.0)
    }

    pub(crate) fn find(&self, name: &str) -> Result<(VolumeRecord, Revision)> {
        match self.host.catalog.get(&keys::volume(self.uuid(), name))? {
            Some(entry) => {
                Ok((decode(&format!("the record of volume {name}"), &entry.value)?, entry.modified))
            }
            None => Err(self.not_found("volume", name)),
        }
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

    /// The space of a target, if it is still that one.
    pub(crate) fn space(&self, target: &TargetRecord) -> std::result::Result<Space, SpaceError> {
        let space = self.host.spaces.space(&target.address)?;
        if space.id != target.id {
            return Err(SpaceError::Failed(format!("it is {}, and not {}", space.id, target.id)));
        }
        Ok(space)
    }

    /// Gives a volume another name.
    ///
    /// # Errors
    /// The name is taken.
    pub fn rename_volume(&self, name: &str, to: &str) -> Result<VolumeRecord> {
        check_name("volume", to)?;
        let (volume, at) = self.find(name)?;
        self.check_ready(&volume)?;
        let renamed = VolumeRecord { name: to.to_owned(), renames: volume.renames + 1, ..volume.clone() };
        let (old, new) = (keys::volume(self.uuid(), name), keys::volume(self.uuid(), to));
        let txn = Txn::new().expect(&new, Expect::Absent).expect(&old, Expect::Modified(at));
        let txn = txn.delete(&old).put(&new, &encode(&renamed));
        let is_made = || Ok(self.find(to).is_ok_and(|(found, _)| found.uuid == volume.uuid));
        if !self.host.commit(&txn, is_made)? {
            return match self.find(to) {
                Ok(_) => Err(Error::Exists { what: "volume", name: to.to_owned() }),
                Err(_) => Err(Error::Contended(self.record.name.clone())),
            };
        }
        self.relabel(&renamed)?;
        Ok(renamed)
    }

    /// Writes the labels of a volume's namespaces anew. At a target that cannot be reached the old
    /// one stays: of several, an import takes the newest.
    fn relabel(&self, volume: &VolumeRecord) -> Result<()> {
        let targets = self.targets()?;
        let members: Vec<(usize, Uuid, &TargetRecord)> = volume
            .members
            .iter()
            .enumerate()
            .filter_map(|(i, member)| Some((i, member.namespace?, &targets.get(&member.target)?.0)))
            .collect();
        let relabelled = each(&members, |(index, namespace, target)| {
            let label = Label::of(volume, (self.uuid(), &self.record.name), &target.domain, *index);
            self.host.spaces.relabel(&target.address, *namespace, &label)
        });
        for ((_, _, target), result) in members.iter().zip(relabelled) {
            if let Err(e) = result {
                tracing::warn!(
                    "target {} still has volume {} under its old name: {e}",
                    target.address,
                    volume.name
                );
            }
        }
        Ok(())
    }

    /// Refuses a volume that is being made.
    pub(crate) fn check_ready(&self, volume: &VolumeRecord) -> Result<()> {
        if volume.state == crate::record::VolumeState::Creating {
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
    /// catalog imports them.
    ///
    /// # Errors
    /// [`Error::InUse`] while volumes are being made or removed.
    pub fn export(self) -> Result<()> {
        let at = self.usage()?.1;
        let intents = self.intents()?;
        if !intents.is_empty() {
            let why = format!("{} volumes are being made or removed", intents.len());
            return Err(Error::InUse { what: format!("pool {}", self.record.name), why });
        }
        self.forget(at)
    }

    /// Deletes all records, if nothing was allocated since revision `at` of the usage. The first
    /// transaction takes the pool's name and usage, so that nothing is allocated from then on; a crash
    /// after it leaves records that no pool has.
    fn forget(self, at: Revision) -> Result<()> {
        let usage = keys::usage(self.uuid());
        let txn = Txn::new().expect(&usage, Expect::Modified(at));
        let txn = txn.delete(&usage).delete(&keys::pool(&self.record.name));
        if !self.host.commit(&txn, || Ok(self.host.catalog.get(&usage)?.is_none()))? {
            return Err(Error::Contended(self.record.name.clone()));
        }
        let rest = self.host.catalog.range(&keys::all(self.uuid()), None)?.entries;
        for chunk in rest.chunks(longhaul_catalog::MAX_OPERATIONS) {
            let txn = chunk.iter().fold(Txn::new(), |txn, entry| txn.delete(&entry.key));
            self.host.commit(&txn, || Ok(false))?;
        }
        Ok(())
    }
}

/// Two targets that cannot both be of a pool.
fn same(target: &TargetRecord, other: &TargetRecord) -> Error {
    let why = format!(
        "it has the identity of target {} ({}): it is the same one by another address, or a copy of its disk",
        other.address, other.id
    );
    Error::Foreign { address: target.address.clone(), why }
}
