//! The targets of a pool.

use crate::error::{Error, Result};
use crate::keys;
use crate::label::Label;
use crate::manager::Manager;
use crate::place::{NAMED, spread};
use crate::pool::{Pool, TRIES};
use crate::record::{Member, TargetRecord, VolumeRecord, decode, encode};
use crate::recover::Recovered;
use crate::shape::VolumeLayout;
use crate::spaces::{Namespace, Space, SpaceError, shown};
use crate::time::format_time;
use longhaul_catalog::{Expect, Revision, Txn};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

impl Pool {
    /// Asks a target whether it can be of this pool.
    pub(crate) fn examine(&self, address: &str, domain: &str) -> Result<TargetRecord> {
        let failed = |source| Error::Space { attempted: "look", address: address.to_owned(), source };
        let space = self.host.spaces.space(address).map_err(failed)?;
        let namespaces = self.host.spaces.list(address).map_err(failed)?;
        if let Some(other) = self.original(&space.id, &namespaces)? {
            return Err(copied(address, &other));
        }
        let labels: Vec<&Label> =
            namespaces.iter().filter_map(|namespace| namespace.label.as_ref()?.as_ref().ok()).collect();
        if let Some(label) = labels.iter().find(|label| label.pool != self.uuid()) {
            let of_pool = labels.iter().copied().filter(|other| other.pool == label.pool);
            let why = foreign(label, Manager::of_labels(of_pool));
            return Err(Error::Foreign { address: address.to_owned(), why });
        }
        if let Some(manager) = Manager::successor(labels.into_iter(), &self.record) {
            return Err(self.superseded(manager));
        }
        let (address, domain) = (address.to_owned(), domain.to_owned());
        Ok(TargetRecord { id: space.id, address, domain, capacity: space.capacity })
    }

    /// The address of another target, whose namespaces these are according to the records of volumes.
    fn original(&self, id: &str, namespaces: &[Namespace]) -> Result<Option<String>> {
        let here: BTreeSet<Uuid> = namespaces.iter().map(|namespace| namespace.id.uuid).collect();
        if here.is_empty() {
            return Ok(None);
        }
        let is_of_another = |member: &&Member| {
            member.target != id && member.namespace.is_some_and(|namespace| here.contains(&namespace.uuid))
        };
        let volumes = self.volumes()?;
        let found = volumes.iter().flat_map(VolumeRecord::all_members).find(is_of_another);
        let Some(found) = found else { return Ok(None) };
        let known = self.targets()?.remove(&found.target);
        Ok(Some(known.map_or_else(|| found.target.clone(), |(target, _)| target.address)))
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
            let (found, at) = self.find_target(target)?;
            if usage.targets.contains_key(&found.id) {
                let uses = |volume: &VolumeRecord| volume.members.iter().any(|m| m.target == found.id);
                let waits = !self.volumes()?.iter().any(uses);
                let waiting = self.intents()?.into_iter().map(|(intent, _)| intent.volume);
                let mut names: Vec<String> =
                    self.volumes()?.into_iter().chain(waiting).filter(uses).map(|v| v.name).collect();
                names.sort_unstable();
                names.dedup();
                let why = match waits {
                    true => format!(
                        "namespaces of {} there wait for their removal, and it cannot be reached: if it is gone for \
                         good, --force forgets them",
                        names.join(", ")
                    ),
                    false => format!("it has members of {}", names.join(", ")),
                };
                return Err(Error::InUse { what: format!("target {}", shown(&found.address)), why });
            }
            // No recovery looks there any more. A target that is gone is removed all the same.
            self.sweep(std::slice::from_ref(&found), &mut Recovered::default())?;
            let key = keys::target(self.uuid(), &found.id);
            let txn = Txn::new().expect(&keys::usage(self.uuid()), Expect::Modified(usage_at));
            let txn = txn.expect(&key, Expect::Modified(at)).delete(&key);
            if self.host.commit(&txn, || Ok(self.host.catalog.get(&key)?.is_none()))? {
                return Ok(found);
            }
        }
        Err(Error::Contended(self.record.name.clone()))
    }

    /// A target by its identity, its address, or the beginning of that: host and port where there is
    /// one space.
    pub(crate) fn find_target(&self, name: &str) -> Result<(TargetRecord, Revision)> {
        let is_it = |target: &TargetRecord| {
            let (address, short) = (target.address.as_str(), shown(&target.address));
            let machine = address.split('/').next().unwrap_or_default();
            [&target.id, address, &short, machine, machine.trim_end_matches(":4420")].contains(&name)
        };
        let all = self.targets()?;
        let mut found = all.values().filter(|(target, _)| is_it(target));
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one.clone()),
            (None, _) => Err(self.not_found("target", name)),
            (Some((one, _)), Some((other, _))) => {
                let (one, other) = (shown(&one.address), shown(&other.address));
                Err(Error::Ambiguous(format!("target {name} may be {one} or {other}: name one of them")))
            }
        }
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

    /// Bytes of the spaces of all targets, as of when they were added.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn capacity(&self) -> Result<u64> {
        Ok(self.targets()?.values().map(|(target, _)| target.capacity).sum())
    }

    /// How many members, without spares, a volume has unless the user says: by the failure domains, each of
    /// which has at most `per_domain` of them.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are too few domains for the layout; the catalog cannot be read.
    pub fn suited_width(&self, layout: VolumeLayout, spares: usize, per_domain: usize) -> Result<usize> {
        let targets = self.targets()?;
        let mut domains: BTreeMap<&str, usize> = BTreeMap::new();
        for (target, _) in targets.values() {
            *domains.entry(&target.domain).or_default() += 1;
        }
        let places: usize = domains.values().map(|targets| (*targets).min(per_domain)).sum();
        let least = layout.least_width() + spares;
        if least > places {
            let named = domains.iter().take(NAMED).map(|(name, targets)| format!("{name} ({targets})"));
            let named = named.collect::<Vec<_>>().join(", ");
            return Err(Error::Shape(format!(
                "layout {} needs {least} members or more, spares included, {}, and pool {} has targets in {} failure \
                 domains: {named}; add targets of other hosts, or add those of one host that do not fail together with \
                 'domain=', or allow more members in a domain ('--per-domain')",
                layout.redundancy(),
                spread(per_domain),
                self.record.name,
                domains.len(),
            )));
        }
        Ok(layout.suited_width(places - spares))
    }

    /// Addresses of the targets of a volume's members; empty for one that is not known.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn member_addresses(&self, volume: &VolumeRecord) -> Result<Vec<String>> {
        let targets = self.targets()?;
        let address = |id: &String| targets.get(id).map_or_else(String::new, |(t, _)| t.address.clone());
        Ok(volume.members.iter().map(|member| address(&member.target)).collect())
    }

    /// The space of a target, if it is still that one.
    pub(crate) fn space(&self, target: &TargetRecord) -> std::result::Result<Space, SpaceError> {
        let space = self.host.spaces.space(&target.address)?;
        if space.id != target.id {
            return Err(SpaceError::Failed(format!("it is {}, and not {}", space.id, target.id)));
        }
        Ok(space)
    }
}

/// Why a target with this label, of another pool, is not used: which pool, managed by whom and since when, and
/// what to do.
fn foreign(label: &Label, manager: Option<Manager>) -> String {
    let Label { pool_name, pool, name, made_by, made_at, .. } = label;
    let made = format!(
        "pool {pool_name} ({pool}) uses it: {made_by} made volume {name} there on {}",
        format_time(*made_at)
    );
    match manager {
        None => format!("{made}; use that pool, import it, or remove its volumes"),
        Some(Manager { released: Some(at), host, hostnqn, .. }) => {
            let at = format_time(at);
            format!(
                "{made}, and host {host} ({hostnqn}) exported that pool on {at}; import it ('longhaul pool import'), \
                 or remove its volumes then"
            )
        }
        Some(manager) => format!(
            "{made}, and {manager}; use that pool there, remove its volumes there, or export it there ('longhaul pool \
             export') and import it here"
        ),
    }
}

/// A target with namespaces that another one has, too.
pub(crate) fn copied(address: &str, other: &str) -> Error {
    let other = shown(other);
    let why = format!(
        "namespaces of it are those of target {other}, by their identity: its space is a copy of the one there, or that \
         one on another machine; of a copy, use one of the two; a space that has moved is found by 'longhaul pool \
         import' once the pool was exported"
    );
    Error::Foreign { address: address.to_owned(), why }
}

/// Two targets that cannot both be of a pool.
pub(crate) fn same(target: &TargetRecord, other: &TargetRecord) -> Error {
    identical(&target.address, &other.address, &other.id)
}

/// A target with the identity of another one.
pub(crate) fn identical(address: &str, other: &str, id: &str) -> Error {
    let why = format!(
        "it has the identity of target {} ({id}): it is the same one by another address, or a copy of its disk; or both \
         are of one user on one machine, where spaces need names of their own ('--space NAME=…')",
        shown(other)
    );
    Error::Foreign { address: address.to_owned(), why }
}
