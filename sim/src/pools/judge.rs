//! What must hold of a pool, whatever its hosts went through.
//!
//! While they work: no namespace of a volume that the catalog has is removed, and none that its array has a
//! member on. At the end, once everything is whole again and one host has finished what the others left:
//!
//! - what is promised is what volumes have;
//! - every volume has all its namespaces, of its size and with its label, and one array on them, whose
//!   members have all writes that were acknowledged;
//! - a volume whose making was acknowledged is there, unless an operation began that may remove it;
//! - after the removal of all volumes nothing is left: no namespace, no record, no lease.

use super::arrays::SimArrays;
use super::site::{POOL, Site};
use longhaul_catalog::{Catalog, FileCatalog};
use longhaul_pool::{
    Host, Label, MoveRun, Namespace, NamespaceId, Pool, Removed, Space, SpaceError, Spaces, Status, Taken,
    Usage, VolumeRecord, VolumeState, in_sequence,
};
use std::sync::Arc;
use uuid::Uuid;

/// How often a recovery is tried.
const TRIES: usize = 5;

/// The targets, as a host without faults reaches them.
struct Direct(Arc<Site>);

impl Spaces for Direct {
    fn space(&self, address: &str) -> Result<Space, SpaceError> {
        Ok(self.0.lock().target(address)?.space())
    }

    fn list(&self, address: &str) -> Result<Vec<Namespace>, SpaceError> {
        Ok(self.0.lock().target(address)?.list())
    }

    fn make(&self, address: &str, size: u64, label: &Label) -> Result<NamespaceId, SpaceError> {
        self.0.lock().make(address, size, label)
    }

    fn remove(&self, address: &str, namespace: NamespaceId) -> Result<(), SpaceError> {
        self.0.remove(&mut self.0.lock(), address, namespace)
    }

    fn relabel(&self, address: &str, namespace: NamespaceId, label: &Label) -> Result<(), SpaceError> {
        self.0.lock().relabel(address, namespace, label)
    }

    fn format(&self, _: &VolumeRecord, _: &[(String, NamespaceId)]) -> Result<Uuid, SpaceError> {
        Err(SpaceError::Failed("the judge makes no arrays".to_owned()))
    }

    fn array_on(&self, address: &str, namespace: NamespaceId) -> Result<Option<Uuid>, SpaceError> {
        Ok(self.0.lock().namespace(address, namespace)?.array)
    }

    fn taken(
        &self,
        members: &[(String, NamespaceId)],
        place: &(String, NamespaceId),
    ) -> Result<Taken, SpaceError> {
        self.0.lock().taken(members, place)
    }

    fn new_uuid(&self) -> Uuid {
        self.0.lock().new_uuid()
    }
}

/// A host without faults.
pub(super) fn judge_of(site: &Arc<Site>) -> Host {
    let catalog: Arc<dyn Catalog> = Arc::<FileCatalog>::clone(&site.catalog);
    Host { catalog, spaces: Arc::new(Direct(Arc::clone(site))), name: "judge".to_owned(), ttl: site.plan.ttl }
}

/// The record of a volume, if it is published.
pub(super) fn published(site: &Arc<Site>, volume: Uuid) -> Option<VolumeRecord> {
    let volumes = Pool::open(&judge_of(site), POOL).and_then(|pool| pool.volumes()).unwrap_or_default();
    volumes.into_iter().find(|found| found.uuid == volume && found.state == VolumeState::Ready)
}

/// Makes everything whole, has one host finish what the others left, and judges.
pub(super) fn settle(site: &Arc<Site>) -> Result<(), String> {
    {
        let mut state = site.lock();
        state.targets.values_mut().for_each(|target| target.down = 0);
        // What is on its way arrives, in any order; its hosts are lost by then.
        while site.arrive(&mut state) {}
        state.hosts.iter_mut().for_each(|line| line.is_dead = true);
    }
    site.advance(site.plan.ttl * 2);
    let pool = Pool::open(&judge_of(site), POOL).map_err(|e| format!("the pool cannot be opened: {e}"))?;
    in_sequence(|| judge(site, &pool))
}

fn judge(site: &Arc<Site>, pool: &Pool) -> Result<(), String> {
    // A command may have been on its way when its target was taken out of the pool.
    for target in 0..site.plan.targets {
        pool.add_target(&format!("t{target}"), &format!("rack{target}")).map_err(|e| e.to_string())?;
    }
    let arrays = SimArrays { site: Arc::clone(site), host: None };
    let recover = || {
        // As the command does: moves that were left need their arrays.
        let mut run = MoveRun { arrays: &arrays, limit: None, show: &mut |_, _| {} };
        pool.resume_moves(&mut run).map_err(|e| format!("moves are not continued: {e}"))?;
        pool.recover().map_err(|e| format!("the pool is not recovered: {e}"))
    };
    let mut recovered = recover()?;
    for _ in 0..TRIES {
        if recovered.held == 0 && recovered.waiting.is_empty() {
            break;
        }
        recovered = recover()?;
    }
    if recovered.held > 0 || !recovered.waiting.is_empty() {
        return Err(format!("something is left to be recovered: {recovered:?}"));
    }
    if let Some(violation) = site.lock().violation.take() {
        return Err(violation);
    }
    let status = pool.status().map_err(|e| format!("the pool has no status: {e}"))?;
    check(site, &status)?;
    for volume in &status.volumes {
        match pool.remove_volume(&volume.name) {
            Ok(Removed::Whole) => {}
            other => return Err(format!("volume {} is not removed: {other:?}", volume.name)),
        }
    }
    check_empty(site, pool)
}

fn check(site: &Site, status: &Status) -> Result<(), String> {
    if let Some(intent) = status.intents.first() {
        return Err(format!("an intent is left: {intent:?}"));
    }
    let mut usage = Usage::default();
    let state = site.lock();
    for volume in &status.volumes {
        let fail = |what: &str| Err(format!("volume {} {what}", volume.name));
        if volume.state != VolumeState::Ready {
            return fail("is being made, and by no host");
        }
        for (index, member) in volume.members.iter().enumerate() {
            *usage.targets.entry(member.target.clone()).or_default() += volume.shape.member_size;
            if let Some(job) = &volume.job {
                *usage.jobs.entry(job.clone()).or_default() += volume.shape.member_size;
            }
            let target = state.targets.values().find(|target| target.id == member.target);
            let stored = target.zip(member.namespace).and_then(|(t, id)| t.namespaces.get(&id.uuid));
            let Some(stored) = stored else { return fail("lacks a namespace") };
            if (stored.label.volume, stored.label.index) != (volume.uuid, index) {
                return fail("has the namespace of another one");
            }
            let is_array = volume.shape.layout.has_array();
            if volume.moving.is_some() {
                return fail("has a member that moves");
            }
            if stored.array != volume.array || stored.array.is_some() != is_array {
                return fail("lacks its array");
            }
            if stored.size != volume.shape.member_size {
                return fail("has a namespace of another size");
            }
        }
    }
    for volume in status.volumes.iter().filter(|volume| volume.shape.layout.has_array()) {
        state.check_array(volume).map_err(|why| format!("volume {} {why}", volume.name))?;
    }
    if usage != status.usage {
        return Err(format!("{:?} is promised, and {usage:?} is used", status.usage));
    }
    let namespaces: usize = state.targets.values().map(|target| target.namespaces.len()).sum();
    let members: usize = status.volumes.iter().map(|volume| volume.members.len()).sum();
    if namespaces != members {
        return Err(format!("{namespaces} namespaces of volumes with {members} members"));
    }
    for (uuid, volume) in &state.acknowledged {
        if !volume.may_be_gone && !status.volumes.iter().any(|found| found.uuid == *uuid) {
            return Err(format!("volume {uuid} was made and is gone: {volume:?}"));
        }
    }
    Ok(())
}

fn check_empty(site: &Site, pool: &Pool) -> Result<(), String> {
    let namespaces: usize = site.lock().targets.values().map(|target| target.namespaces.len()).sum();
    if namespaces > 0 {
        return Err(format!("{namespaces} namespaces are left of no volume"));
    }
    let status = pool.status().map_err(|e| format!("the pool has no status: {e}"))?;
    if status.usage != Usage::default() {
        return Err(format!("{:?} is promised to no volume", status.usage));
    }
    let keys = site.catalog.range(b"", None).map_err(|e| e.to_string())?.entries;
    // Its own, its usage, and that of each target.
    if keys.len() != status.targets.len() + 2 {
        let keys: Vec<_> = keys.iter().map(|entry| String::from_utf8_lossy(&entry.key)).collect();
        return Err(format!("records are left: {keys:?}"));
    }
    site.advance(site.plan.ttl * 2);
    match site.catalog.leases() {
        Ok(0) => Ok(()),
        leases => Err(format!("leases are left: {leases:?}")),
    }
}
