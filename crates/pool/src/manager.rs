//! Which catalog manages a pool: it alone makes and removes what is at the targets.
//!
//! The record of a pool in its catalog has the [`Manager`], and so have the labels of its namespaces,
//! where other hosts find it. An import writes a new one to all labels, with a higher epoch, before it
//! writes anything to its catalog; an export marks it as released at each target.
//!
//! Invariants:
//! - of the managers on the labels of a pool the one with the highest epoch counts;
//! - a catalog manages a pool only as long as no label has another manager of its own epoch or a later one.
//!   Of several hosts that import a pool at the same time, each writes all labels and reads them again after
//!   that: the last one that finds all of them as its own has the pool, and no other;
//! - a manager is released if any label says so: nothing but its own export writes that;
//! - a label without a manager was written by an earlier program, or has no room for it: it says
//!   nothing.

use crate::error::{Error, Result};
use crate::keys;
use crate::label::Label;
use crate::pool::{Host, Pool, each};
use crate::record::{PoolRecord, VolumeRecord, VolumeState, decode, encode};
use crate::spaces::NamespaceId;
use crate::time::{format_time, wall_time};
use longhaul_catalog::{Expect, Txn};
use serde::{Deserialize, Serialize};
use std::fmt;
use uuid::Uuid;

/// Epoch of the catalog in which a pool was made.
pub(crate) const FIRST: u64 = 1;
/// Most bytes of a text of a manager: a label has room for little.
const TEXT_MAX: usize = 96;

/// A catalog that manages a pool, by the host that made or imported the pool in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manager {
    /// Identifies it: each creation and each import of a pool has another one.
    pub id: Uuid,
    /// Rises with each import.
    pub epoch: u64,
    /// What its kernel calls the host.
    pub host: String,
    /// Its host NQN.
    pub hostnqn: String,
    /// Name of the catalog, as that host has it.
    pub catalog: String,
    /// When the pool was made or imported there, in seconds since 1970 by its clock.
    pub since: u64,
    /// When the pool was exported there, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<u64>,
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Manager { host, hostnqn, catalog, since, .. } = self;
        let since = format_time(*since);
        write!(f, "host {host} ({hostnqn}) manages it in catalog {catalog}, since {since}")
    }
}

/// The beginning of a text, if it is too long.
fn bounded(text: &str) -> String {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl Manager {
    /// The catalog of this host, from now on.
    pub(crate) fn new(host: &Host, id: Uuid, epoch: u64) -> Manager {
        Manager {
            id,
            epoch,
            host: bounded(&host.name),
            hostnqn: bounded(&host.spaces.hostnqn()),
            catalog: bounded(&host.catalog.name()),
            since: wall_time(),
            released: None,
        }
    }

    /// Whether it is the catalog that this host uses, by its name: one that does not have the pool any
    /// more has lost it.
    pub(crate) fn is_of(&self, host: &Host) -> bool {
        let Manager { host: name, hostnqn, catalog, .. } = Manager::new(host, self.id, self.epoch);
        (&self.host, &self.hostnqn, &self.catalog) == (&name, &hostnqn, &catalog)
    }

    /// Whether the catalog with this record does not manage the pool any more, if a label has this manager.
    fn supersedes(&self, record: &PoolRecord) -> bool {
        // That of an earlier program, which a later one makes the first manager.
        let own = record.manager.as_ref().map_or((FIRST, record.uuid), |own| (own.epoch, own.id));
        self.epoch >= own.0 && self.id != own.1
    }

    /// Of labels of the pool with this record the manager that has taken it over from that catalog.
    pub(crate) fn successor<'a>(
        mut labels: impl Iterator<Item = &'a Label>,
        record: &PoolRecord,
    ) -> Option<Manager> {
        let manager = labels.find_map(|label| label.manager.as_ref().filter(|m| m.supersedes(record)))?;
        Some(manager.clone())
    }

    /// The manager of a pool by its labels, if they name one.
    pub(crate) fn of_labels<'a>(labels: impl Iterator<Item = &'a Label>) -> Option<Manager> {
        let mut newest: Option<Manager> = None;
        for manager in labels.filter_map(|label| label.manager.as_ref()) {
            match &mut newest {
                Some(newest) if newest.id == manager.id => {
                    newest.released = newest.released.or(manager.released);
                }
                Some(newest) if (newest.epoch, newest.id) > (manager.epoch, manager.id) => {}
                _ => newest = Some(manager.clone()),
            }
        }
        newest
    }
}

impl Pool {
    /// Records this catalog as the manager of a pool that was made by a program without such records. What
    /// is made from now on names it.
    ///
    /// # Errors
    /// The catalog cannot be changed.
    pub fn record_manager(&mut self) -> Result<()> {
        if self.record.manager.is_some() {
            return Ok(());
        }
        let key = keys::pool(&self.record.name);
        let Some(entry) = self.host.catalog.get(&key)? else {
            return Err(self.not_found("pool", &self.record.name));
        };
        let mut record: PoolRecord = decode("the record of a pool", &entry.value)?;
        if record.uuid == self.uuid() && record.manager.is_none() {
            record.manager = Some(Manager::new(&self.host, record.uuid, FIRST));
            let txn = Txn::new().expect(&key, Expect::Modified(entry.modified)).put(&key, &encode(&record));
            let is_made = || Ok(self.host.catalog.get(&key)?.is_some_and(|now| now.value == encode(&record)));
            if !self.host.commit(&txn, is_made)? {
                return Err(Error::Contended(self.record.name.clone()));
            }
        }
        self.record = record;
        Ok(())
    }

    /// The catalog that has taken the pool over from this one, by the labels of a volume.
    fn successor(&self, volume: &VolumeRecord) -> Result<Option<Manager>> {
        let places: Vec<(String, NamespaceId)> = self.member_places(volume)?.into_iter().flatten().collect();
        // A target that cannot be asked says nothing.
        let labels: Vec<Label> = each(&places, |(address, id)| self.host.spaces.label(address, *id))
            .into_iter()
            .filter_map(|label| label.ok()?)
            .filter(|label| label.pool == self.uuid())
            .collect();
        Ok(Manager::successor(labels.iter(), &self.record))
    }

    /// Refuses to go on with a volume if another catalog has taken the pool over, by the labels of its
    /// namespaces.
    ///
    /// # Errors
    /// [`Error::Superseded`], or the catalog cannot be read.
    pub fn check_managed_volume(&self, volume: &VolumeRecord) -> Result<()> {
        match self.successor(volume)? {
            None => Ok(()),
            Some(manager) => Err(self.superseded(manager)),
        }
    }

    /// The same, by the labels of one of its volumes.
    ///
    /// # Errors
    /// As for [`Self::check_managed_volume`].
    pub fn check_managed(&self) -> Result<()> {
        match self.superseded_by()? {
            None => Ok(()),
            Some(manager) => Err(self.superseded(manager)),
        }
    }

    /// The catalog that has taken the pool over from this one, by the labels of one of its volumes.
    pub(crate) fn superseded_by(&self) -> Result<Option<Manager>> {
        match self.some_volume()? {
            Some(volume) => self.successor(&volume),
            None => Ok(None),
        }
    }

    pub(crate) fn superseded(&self, manager: Manager) -> Error {
        Error::Superseded { pool: self.record.name.clone(), manager: Box::new(manager) }
    }

    /// A volume with namespaces, if the pool has one.
    fn some_volume(&self) -> Result<Option<VolumeRecord>> {
        const PAGE: usize = 16;
        let prefix = keys::volume(self.uuid(), "");
        let mut after = Vec::new();
        loop {
            let page = self.host.catalog.page(&prefix, &after, PAGE)?;
            for entry in &page {
                let volume: VolumeRecord = crate::record::decode_volume("a volume", &entry.value)?;
                let is_made = volume.members.iter().any(|member| member.namespace.is_some());
                if volume.state == VolumeState::Ready && is_made {
                    return Ok(Some(volume));
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after.clone_from(&last.key),
                _ => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(id: u128, epoch: u64) -> Manager {
        Manager {
            id: Uuid::from_u128(id),
            epoch,
            host: "dtn1".to_owned(),
            hostnqn: "nqn.2014-08.org.example:a".to_owned(),
            catalog: "/var/lib/longhaul/catalog".to_owned(),
            since: 1_764_110_400,
            released: None,
        }
    }

    #[test]
    fn the_last_import_manages_a_pool_and_an_export_releases_its_own() {
        let label = |manager: Option<Manager>| {
            let text = r#"{"format":1,"pool":"00000000-0000-0000-0000-000000000001","pool_name":"p","domain":"r1","volume":"00000000-0000-0000-0000-000000000002","name":"v","renames":0,"index":0,"shape":{"layout":"single","width":1,"spares":0,"unit":0,"size":5,"member_size":1048576},"hosts":[],"job":null,"expires":null,"thin":false,"made_by":"h","made_at":9}"#;
            Label { manager, ..Label::parse(text).expect("a label of a program without managers") }
        };
        let of = |managers: &[Option<Manager>]| {
            let labels: Vec<Label> = managers.iter().cloned().map(label).collect();
            Manager::of_labels(labels.iter())
        };
        let (old, new, other) = (manager(9, 1), manager(3, 2), manager(4, 2));
        let released = Manager { released: Some(7), ..new.clone() };
        assert_eq!(of(&[None]), None);
        assert_eq!(of(&[None, Some(old.clone()), Some(new.clone())]), Some(new.clone()));
        assert_eq!(of(&[Some(new.clone()), Some(old.clone())]), Some(new.clone()));
        for labels in [[&released, &new, &old], [&old, &new, &released], [&new, &released, &old]] {
            let labels = labels.map(|manager| Some(manager.clone()));
            assert_eq!(of(&labels), Some(released.clone()));
        }
        // That of an earlier manager does not release the present one.
        let late = Manager { released: Some(7), ..old.clone() };
        assert_eq!(of(&[Some(new.clone()), Some(late)]), Some(new.clone()));
        for labels in [[&new, &other], [&other, &new]] {
            assert_eq!(of(&labels.map(|manager| Some(manager.clone()))), Some(other.clone()));
        }
        let record = |manager: Option<&Manager>| PoolRecord {
            uuid: Uuid::from_u128(9),
            name: "p".to_owned(),
            quota: crate::record::Quota::default(),
            manager: manager.cloned(),
        };
        for (one, than, supersedes) in [
            (&new, Some(&old), true),
            (&old, Some(&new), false),
            (&new, Some(&new), false),
            (&other, Some(&new), true),
            (&new, Some(&other), true),
            // A pool without a record of it was made in that catalog.
            (&new, None, true),
            (&old, None, false),
        ] {
            assert_eq!(one.supersedes(&record(than)), supersedes, "{one:?} {than:?}");
        }
    }

    #[test]
    fn it_says_by_whom_and_since_when() {
        assert_eq!(
            manager(1, 1).to_string(),
            "host dtn1 (nqn.2014-08.org.example:a) manages it in catalog /var/lib/longhaul/catalog, since \
             2025-11-25 22:40 UTC"
        );
        assert_eq!(bounded(&"ä".repeat(TEXT_MAX)), "ä".repeat(TEXT_MAX / 2));
        assert_eq!(bounded("short"), "short");
    }
}
