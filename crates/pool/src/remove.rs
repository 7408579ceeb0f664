//! Removing volumes: the name is free at once, and the namespaces follow, now or later.

use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::keys;
use crate::pool::{Pool, TRIES, each};
use crate::record::{Intent, IntentKind, TargetRecord, VolumeRecord, VolumeState, encode, encode_intent};
use crate::spaces::{SpaceError, shown};
use crate::time::wall_time;
use longhaul_catalog::{Expect, Txn};
use std::collections::BTreeSet;
use uuid::Uuid;

/// How far a removal has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// Nothing is left.
    Whole,
    /// The name is free; namespaces are left at targets that could not be reached, for these reasons.
    /// They are removed by a later recovery.
    Later(Vec<String>),
}

impl Removed {
    /// Adds another one.
    pub(crate) fn and(self, other: Removed) -> Removed {
        match (self, other) {
            (Removed::Whole, other) => other,
            (first, Removed::Whole) => first,
            (Removed::Later(mut all), Removed::Later(more)) => {
                all.extend(more);
                Removed::Later(all)
            }
        }
    }
}

impl Pool {
    /// Removes a volume and its data.
    ///
    /// # Errors
    /// No volume has that name, or it is still being made.
    pub fn remove_volume(&self, name: &str) -> Result<Removed> {
        for _ in 0..TRIES {
            let (mut volume, at) = self.find(name)?;
            self.check_ready(&volume)?;
            let ended = self.without_move(&mut volume, Txn::new())?;
            let claim = Claim::new(&self.host.catalog, self.host.ttl)?;
            let intent = Intent {
                uuid: self.host.spaces.new_uuid(),
                kind: IntentKind::Remove,
                volume,
                host: self.host.name.clone(),
                since: wall_time(),
                former: None,
            };
            let key = keys::volume(self.uuid(), name);
            let txn =
                self.with_intent(ended, &intent, &claim).expect(&key, Expect::Modified(at)).delete(&key);
            let txn = self.without_resize(intent.volume.uuid, txn)?;
            let txn = txn.delete(&keys::user(self.uuid(), intent.volume.uuid));
            if self.host.commit(&txn, || self.has(&intent))? {
                self.forget_array(&intent.volume);
                let removed = self.remove_members(&intent)?;
                claim.release();
                return Ok(removed);
            }
            claim.release();
        }
        Err(Error::Contended(self.record.name.clone()))
    }

    /// Removes all volumes of a job, which may have none: a second call does nothing.
    ///
    /// # Errors
    /// The catalog cannot be changed.
    pub fn release(&self, job: &str) -> Result<Removed> {
        self.remove_all(|volume| volume.job.as_deref() == Some(job))
    }

    /// Removes all volumes whose lifetime has ended at `now`, in seconds since 1970.
    ///
    /// # Errors
    /// The catalog cannot be changed.
    pub fn expire(&self, now: u64) -> Result<Removed> {
        self.remove_all(|volume| volume.expires.is_some_and(|expires| expires <= now))
    }

    fn remove_all(&self, is_meant: impl Fn(&VolumeRecord) -> bool) -> Result<Removed> {
        let mut removed = Removed::Whole;
        for volume in self.volumes()? {
            // One that is being made belongs to its owner, or to a recovery.
            if is_meant(&volume) && self.check_ready(&volume).is_ok() {
                match self.remove_volume(&volume.name) {
                    // Another host was first.
                    Err(Error::NotFound { .. }) => {}
                    result => removed = removed.and(result?),
                }
            }
        }
        Ok(removed)
    }

    /// Undoes an intent to make a volume that this host owns: it becomes one to remove it, and the name
    /// is free. Nothing is done, and `None` returned, if the volume is published, or another host has
    /// taken over the intent.
    pub(crate) fn undo(&self, intent: &Intent, claim: &Claim) -> Result<Option<Removed>> {
        let (key, owner) = self.keys(intent);
        let undone = Intent { kind: IntentKind::Remove, ..intent.clone() };
        let Some(at) = self.current(intent)? else { return Ok(None) };
        let txn = Txn::new().expect(&key, Expect::Modified(at)).put(&key, &encode_intent(&undone));
        let txn = txn.delete(&keys::volume(self.uuid(), &intent.volume.name));
        let txn = txn.put_leased(&owner, self.host.name.as_bytes(), claim.lease());
        match self.host.commit(&txn, || self.has(&undone))? {
            true => self.remove_members(&undone).map(Some),
            false => Ok(None),
        }
    }

    fn keys(&self, intent: &Intent) -> (Vec<u8>, Vec<u8>) {
        (keys::intent(self.uuid(), &intent.uuid.to_string()), keys::owner(self.uuid(), intent.uuid))
    }

    /// Removes the namespaces of a volume, and what is done from the records: those that its record
    /// names, or of a volume that was not published, those whose labels name it. Several hosts may do
    /// this at a time.
    pub(crate) fn remove_members(&self, intent: &Intent) -> Result<Removed> {
        let volume = &intent.volume;
        let targets = self.targets()?;
        let at: BTreeSet<&str> = volume.members.iter().map(|member| member.target.as_str()).collect();
        let at: Vec<&str> = at.into_iter().filter(|target| !target.is_empty()).collect();
        let removed = each(&at, |id| match targets.get(*id) {
            Some((target, _)) => {
                let gone = self.space(target).and_then(|_| self.remove_at(target, volume));
                gone.map_err(|e| format!("target {}: {e}", shown(&target.address)))
            }
            None => Err(format!("target {id} is not known any more")),
        });
        let gone: BTreeSet<&str> =
            at.iter().zip(&removed).filter(|(_, result)| result.is_ok()).map(|(id, _)| *id).collect();
        let reasons: Vec<String> = removed.iter().filter_map(|result| result.clone().err()).collect();
        let mut left = intent.clone();
        left.volume
            .members
            .retain(|member| !member.target.is_empty() && !gone.contains(member.target.as_str()));
        self.record_removal(intent, &left, |target| gone.contains(target))?;
        Ok(if reasons.is_empty() { Removed::Whole } else { Removed::Later(reasons) })
    }

    /// Removes the namespaces of a volume at one of its targets.
    fn remove_at(&self, target: &TargetRecord, volume: &VolumeRecord) -> std::result::Result<(), SpaceError> {
        let there = || volume.members.iter().filter(|member| member.target == target.id);
        // Of a published volume all are known, so that the others there need not be looked at.
        if volume.state == VolumeState::Creating || there().any(|member| member.namespace.is_none()) {
            return self.remove_of(&target.address, volume.uuid);
        }
        there()
            .filter_map(|member| member.namespace)
            .try_for_each(|namespace| self.host.spaces.remove(&target.address, namespace))
    }

    /// Removes the namespaces at one target whose labels name a volume.
    pub(crate) fn remove_of(&self, address: &str, volume: Uuid) -> std::result::Result<(), SpaceError> {
        for namespace in self.host.spaces.list(address)? {
            if let Some(Ok(label)) = &namespace.label
                && label.volume == volume
            {
                self.host.spaces.remove(address, namespace.id)?;
            }
        }
        Ok(())
    }

    /// Records that an intent has become `left`, or is done, and that the bytes at the targets that are
    /// `gone` are free.
    pub(crate) fn record_removal(
        &self,
        intent: &Intent,
        left: &Intent,
        gone: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let (key, owner) = self.keys(intent);
        for _ in 0..TRIES {
            // Another host may have recorded it, or a part of it.
            let Some(intent_at) = self.current(intent)? else { return Ok(()) };
            let (mut usage, at) = self.usage()?;
            usage.subtract(&intent.volume, &gone);
            let txn = Txn::new().expect(&key, Expect::Modified(intent_at));
            let txn = txn.expect(&keys::usage(self.uuid()), Expect::Modified(at)).delete(&owner);
            let txn = txn.put(&keys::usage(self.uuid()), &encode(&usage));
            let done = left.volume.members.is_empty();
            let txn = if done { txn.delete(&key) } else { txn.put(&key, &encode_intent(left)) };
            let is_made = || if done { Ok(self.host.catalog.get(&key)?.is_none()) } else { self.has(left) };
            if self.host.commit(&txn, is_made)? {
                return Ok(());
            }
        }
        Err(Error::Contended(self.record.name.clone()))
    }
}
