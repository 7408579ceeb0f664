//! Limits are set, usage is shown, and counted anew.

use crate::programs::refuse_earlier;
use crate::quota::{self, AllQuotas, Limits, Owner, Phase, QuotaRecord, QuotaState, Usage};
use crate::schema::{CountersRecord, InodeRecord, Keys, encode_snapshot_changes};
use crate::settings::FsSettings;
use crate::snapshots::{FsSnapshots, Snapshots};
use longhaul_catalog::{Catalog, Commit, Entry, Error as CatalogError, Expect, Revision, Txn};
use longhaul_device::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

/// How often a transaction is tried that other hosts get ahead of.
const TRIES: usize = 100;
/// Owners whose usage one transaction puts.
const OWNERS: usize = 40;
/// How long one that counts is waited for that has begun later.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(500);

/// Usage and limits of a user or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsQuota {
    /// The user, or the group.
    pub owner: Owner,
    /// What there is of it.
    pub used: Usage,
    /// What there may be of it.
    pub limits: Limits,
}

/// A change of limits: `None` leaves a limit as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitChange {
    /// Bytes of content.
    pub bytes: Option<Option<u64>>,
    /// Files, directories and other objects.
    pub files: Option<Option<u64>>,
}

impl LimitChange {
    fn of(self, limits: Limits) -> Limits {
        Limits { bytes: self.bytes.unwrap_or(limits.bytes), files: self.files.unwrap_or(limits.files) }
    }
}

/// How a step of a count has ended.
enum CountStep<T> {
    Done(T),
    /// Another host counts anew.
    Overtaken,
}

/// Quotas of a file system of the catalog, called `name`.
pub(crate) struct FsQuotas<'c> {
    pub(crate) catalog: &'c dyn Catalog,
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
}

fn of_catalog(e: CatalogError) -> Error {
    longhaul_pool::Error::from(e).into()
}

fn expected(found: Option<&Entry>) -> Expect {
    found.map_or(Expect::Absent, |entry| Expect::Modified(entry.modified))
}

impl FsQuotas<'_> {
    fn keys(&self) -> Keys {
        Keys::new(self.uuid)
    }

    fn damaged(&self) -> Error {
        let why = format!("records of quotas of {} cannot be read: run 'longhaul fs check'", self.name);
        Error::new(ErrorKind::Failed, why)
    }

    fn record(&self, entry: Option<&Entry>) -> Result<QuotaRecord> {
        QuotaRecord::of(entry.map(|entry| &entry.value[..])).ok_or_else(|| self.damaged())
    }

    fn state(&self, entry: Option<&Entry>) -> Result<QuotaState> {
        QuotaState::of(entry.map(|entry| &entry.value[..])).ok_or_else(|| self.damaged())
    }

    fn too_busy(&self) -> Error {
        let why = format!("{}: others changed it {TRIES} times: try again", self.name);
        Error::new(ErrorKind::Failed, why)
    }

    fn snapshots(&self) -> Result<Snapshots> {
        FsSnapshots { catalog: self.catalog, uuid: self.uuid, name: self.name.clone() }.read()
    }

    fn read(&self) -> Result<AllQuotas> {
        let found = AllQuotas::read(self.catalog, &self.keys());
        found.map_err(of_catalog)?.ok_or_else(|| self.damaged())
    }

    /// All users and groups that have a limit or something in the file system; none while usage is not counted.
    pub(crate) fn list(&self) -> Result<Vec<FsQuota>> {
        let all = self.read()?;
        if all.state.phase != Phase::On {
            return Ok(Vec::new());
        }
        let one = |(owner, used): (Owner, Usage)| {
            let limits = all.records.get(&owner).map_or_else(Limits::default, |record| record.limits);
            (!limits.are_none() || !used.is_zero()).then_some(FsQuota { owner, used, limits })
        };
        Ok(all.usage().into_iter().filter_map(one).collect())
    }

    /// Changes the limits of an owner; what it has then. With the first limit of all usage is counted.
    pub(crate) fn set(&self, owner: Owner, change: LimitChange) -> Result<FsQuota> {
        for _ in 0..TRIES {
            let (snapshots, all) = (self.snapshots()?, self.read()?);
            let record = all.records.get(&owner).copied().unwrap_or_default();
            let limits = change.of(record.limits);
            if snapshots.quotas != all.state {
                continue;
            }
            if all.state.phase != Phase::On {
                if limits.are_none() && record.limits.are_none() {
                    return Ok(FsQuota { owner, used: Usage::default(), limits });
                }
                self.count(Some((owner, change)))?;
                continue;
            }
            if limits != record.limits {
                let entry = self.catalog.get(&self.keys().quota(owner)).map_err(of_catalog)?;
                if !self.put_limits(&snapshots, &all, owner, entry.as_ref(), change)? {
                    continue;
                }
            }
            return self.shown(owner);
        }
        Err(self.too_busy())
    }

    fn shown(&self, owner: Owner) -> Result<FsQuota> {
        let all = self.read()?;
        let limits = all.records.get(&owner).map_or_else(Limits::default, |record| record.limits);
        Ok(FsQuota { owner, used: all.usage().get(&owner).copied().unwrap_or_default(), limits })
    }

    /// A transaction that changes the state of quotas or limits, of which all hosts are to hear.
    fn txn(&self, snapshots: &Snapshots) -> Txn {
        let key = self.keys().snapshot_changes();
        Txn::new().expect(&key, snapshots.seen).put(&key, &encode_snapshot_changes(snapshots.changes() + 1))
    }

    /// Puts limits while usage is counted; false if that has to be tried again.
    fn put_limits(
        &self,
        snapshots: &Snapshots,
        all: &AllQuotas,
        owner: Owner,
        entry: Option<&Entry>,
        change: LimitChange,
    ) -> Result<bool> {
        let (keys, generation) = (self.keys(), all.state.generation);
        let record = self.record(entry)?.of_generation(generation);
        let record = QuotaRecord { limits: change.of(record.limits), ..record };
        let key = keys.quota(owner);
        let mut txn = self.txn(snapshots).expect(&key, expected(entry)).put(&key, &record.encode());
        let others = all.records.iter().filter(|(other, _)| **other != owner);
        let is_last = record.limits.are_none() && others.map(|(_, other)| other.limits).all(Limits::are_none);
        if is_last {
            // Transactions need not note changes any more.
            let state = QuotaState { generation, phase: Phase::Off };
            txn = txn.put(&keys.quotas(), &state.encode());
        }
        // Whatever the answer is: it is looked at again.
        match self.catalog.commit(&txn) {
            Ok(Commit::Done(_)) => Ok(true),
            Ok(Commit::Conflict(_)) | Err(CatalogError::Unknown { .. }) => Ok(false),
            Err(e) => Err(of_catalog(e)),
        }
    }

    /// Counts usage anew, if it is counted at all; false if it is not.
    pub(crate) fn recount(&self) -> Result<bool> {
        if !self.read()?.state.counts() {
            return Ok(false);
        }
        self.count(None)?;
        Ok(true)
    }

    /// Counts usage, from a revision on that this sets; limits of an owner are changed then too.
    fn count(&self, limits: Option<(Owner, LimitChange)>) -> Result<()> {
        for _ in 0..TRIES {
            let (state, at) = self.begin_count(limits)?;
            match self.count_inodes(state, at)? {
                CountStep::Done(()) => return Ok(()),
                CountStep::Overtaken if self.is_counted()? => return Ok(()),
                // It has ended in between.
                CountStep::Overtaken => {}
            }
        }
        Err(self.too_busy())
    }

    /// Waits for another host that counts; false if that takes very long.
    fn is_counted(&self) -> Result<bool> {
        let (key, begun) = (self.keys().quotas(), longhaul_engine::now());
        while begun.elapsed() < PATIENCE {
            let found = self.catalog.range(&key, None).map_err(of_catalog)?;
            let state = found.entries.iter().find(|entry| entry.key == key);
            match self.state(state)?.phase {
                Phase::On => return Ok(true),
                Phase::Off => return Ok(false),
                Phase::Counting => {}
            }
            let mut watch = self.catalog.watch(&key, found.revision + 1).map_err(of_catalog)?;
            match watch.next(LOOK) {
                Ok(_) | Err(CatalogError::Compacted { .. }) => {}
                Err(e) => return Err(of_catalog(e)),
            }
        }
        Ok(false)
    }

    /// From the revision on that this returns, transactions note what they change.
    fn begin_count(&self, limits: Option<(Owner, LimitChange)>) -> Result<(QuotaState, Revision)> {
        let keys = self.keys();
        let mut own = None;
        for _ in 0..TRIES {
            let snapshots = self.snapshots()?;
            let mut fixed = vec![keys.counters(), keys.settings(), keys.quotas()];
            fixed.extend(limits.map(|(owner, _)| keys.quota(owner)));
            let found = self.catalog.get_all(&fixed).map_err(of_catalog)?;
            let entry = |key: &[u8]| found.iter().find(|entry| entry.key == key);
            let (Some(counters), Some(settings)) = (entry(&keys.counters()), entry(&keys.settings())) else {
                return Err(Error::new(ErrorKind::Failed, format!("{} has no metadata", self.name)));
            };
            let before = entry(&keys.quotas());
            let found_state = self.state(before)?;
            if let (Some(own), Some(before)) = (own, before)
                && found_state == own
            {
                // An earlier try whose answer was lost, or another one of that generation: the revision tells.
                return Ok((own, before.modified));
            }
            let state = QuotaState { generation: found_state.generation + 1, phase: Phase::Counting };
            let mut txn = self
                .txn(&snapshots)
                .expect(&keys.settings(), Expect::Modified(settings.modified))
                .expect(&keys.quotas(), expected(before))
                .put(&keys.quotas(), &state.encode());
            if let Some((owner, change)) = limits {
                let (key, entry) = (keys.quota(owner), entry(&keys.quota(owner)));
                let record = self.record(entry)?.of_generation(state.generation);
                let record = QuotaRecord { limits: change.of(record.limits), ..record };
                txn = txn.expect(&key, expected(entry)).put(&key, &record.encode());
            }
            let mut settings = FsSettings::decode(&self.name, &settings.value)?;
            if settings.format < FsSettings::FORMAT_QUOTAS {
                // A session that begins meanwhile changes the counters.
                refuse_earlier(self.catalog, self.uuid, &self.name, FsSettings::FORMAT_QUOTAS, "quotas")?;
                let mut count = CountersRecord::decode(&counters.value).ok_or_else(|| self.damaged())?;
                settings.format = FsSettings::FORMAT_QUOTAS;
                count.raise(CountersRecord::QUOTAS);
                txn = txn
                    .expect(&keys.counters(), Expect::Modified(counters.modified))
                    .put(&keys.counters(), &count.encode())
                    .put(&keys.settings(), &settings.encode());
            }
            match self.catalog.commit(&txn) {
                Ok(Commit::Done(at)) => return Ok((state, at)),
                Ok(Commit::Conflict(_)) => {}
                Err(CatalogError::Unknown { .. }) => own = Some(state),
                Err(e) => return Err(of_catalog(e)),
            }
        }
        Err(self.too_busy())
    }

    fn count_inodes(&self, state: QuotaState, at: Revision) -> Result<CountStep<()>> {
        let keys = self.keys();
        let inodes = match self.catalog.range(&keys.inodes(), Some(at)) {
            Ok(found) => found.entries,
            // Others changed so much meanwhile that it is not known any more: it begins anew.
            Err(CatalogError::Compacted { .. }) => return Ok(CountStep::Overtaken),
            Err(e) => return Err(of_catalog(e)),
        };
        let mut usage: BTreeMap<Owner, Usage> = BTreeMap::new();
        for entry in inodes {
            let record = InodeRecord::decode(&entry.value).ok_or_else(|| {
                let why = format!("inodes of {} cannot be read: run 'longhaul fs check'", self.name);
                Error::new(ErrorKind::Failed, why)
            })?;
            quota::count(&mut usage, &record);
        }
        let usage: Vec<(Owner, Usage)> = usage.into_iter().collect();
        for part in usage.chunks(OWNERS) {
            if let CountStep::Overtaken = self.put_counted(state, at, part)? {
                return Ok(CountStep::Overtaken);
            }
        }
        self.end_count(state, at)
    }

    /// Puts what was counted of some owners.
    fn put_counted(&self, state: QuotaState, at: Revision, part: &[(Owner, Usage)]) -> Result<CountStep<()>> {
        let keys = self.keys();
        let wanted: Vec<Vec<u8>> = part.iter().map(|(owner, _)| keys.quota(*owner)).collect();
        for _ in 0..TRIES {
            let found = self.catalog.get_all(&wanted).map_err(of_catalog)?;
            let mut txn = Txn::new().expect(&keys.quotas(), Expect::Modified(at));
            for (key, (_, usage)) in wanted.iter().zip(part) {
                let entry = found.iter().find(|entry| entry.key == *key);
                let record = self.record(entry)?.of_generation(state.generation);
                let record = QuotaRecord { counted: *usage, ..record };
                txn = txn.expect(key, expected(entry)).put(key, &record.encode());
            }
            match self.catalog.commit(&txn) {
                Ok(Commit::Done(_)) => return Ok(CountStep::Done(())),
                // What is put is what was found: it may be put twice.
                Ok(Commit::Conflict(_)) | Err(CatalogError::Unknown { .. }) => {}
                Err(e) => return Err(of_catalog(e)),
            }
            let now = self.catalog.get(&keys.quotas()).map_err(of_catalog)?;
            if now.is_none_or(|now| now.modified != at) {
                return Ok(CountStep::Overtaken);
            }
        }
        Err(self.too_busy())
    }

    fn end_count(&self, state: QuotaState, at: Revision) -> Result<CountStep<()>> {
        let (key, on) = (self.keys().quotas(), QuotaState { phase: Phase::On, ..state });
        for _ in 0..TRIES {
            let snapshots = self.snapshots()?;
            let txn = self.txn(&snapshots).expect(&key, Expect::Modified(at)).put(&key, &on.encode());
            match self.catalog.commit(&txn) {
                Ok(Commit::Done(_)) => return Ok(CountStep::Done(())),
                Ok(Commit::Conflict(_)) | Err(CatalogError::Unknown { .. }) => {}
                Err(e) => return Err(of_catalog(e)),
            }
            let now = self.catalog.get(&key).map_err(of_catalog)?;
            match now {
                Some(now) if now.modified == at => {}
                // An earlier try whose answer was lost.
                Some(now) if now.value == on.encode() => return Ok(CountStep::Done(())),
                _ => return Ok(CountStep::Overtaken),
            }
        }
        Err(self.too_busy())
    }
}
