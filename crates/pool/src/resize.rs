//! Making volumes larger while they are used.
//!
//! | step | then the catalog has | a crash after it leaves |
//! |---|---|---|
//! | the intent is written | intent, owner; the volume with its size and larger members; usage | records |
//! | namespaces grow | the same | some namespaces that are larger |
//! | labels have the new size | the same | labels of two sizes |
//! | the volume is published | the volume with its new size | nothing |
//!
//! A namespace does not become smaller again. So what a crash leaves is finished by
//! [`recover`](Pool::recover), and what fails for good is undone only where no namespace has grown. What
//! is promised is the larger size from the first step on.

use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::keys;
use crate::label::Label;
use crate::pool::{Pool, TRIES, each};
use crate::record::{
    Intent, IntentKind, TargetRecord, VolumeRecord, decode_volume, encode, encode_intent, encode_volume,
};
use crate::remove::Removed;
use crate::shape::Shape;
use crate::spaces::{NamespaceId, SpaceError};
use crate::time::wall_time;
use longhaul_block::units::format_size;
use longhaul_catalog::{Expect, Revision, Txn};
use std::collections::BTreeMap;
use uuid::Uuid;

/// A namespace of a volume: its index, number, and target.
type MemberPlace = (usize, NamespaceId, TargetRecord);

/// A resize that has begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resizing {
    /// Size that the volume is to have, in bytes.
    pub size: u64,
    /// The host that began it.
    pub host: String,
    /// When, in seconds since 1970.
    pub since: u64,
    /// A host is at it. If not, another resize of the volume or a recovery of the pool finishes it.
    pub under_way: bool,
}

impl Pool {
    /// The resize of a volume that has begun and not ended.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn resizing(&self, volume: &VolumeRecord) -> Result<Option<Resizing>> {
        let Some((intent, _)) = self.resize_of(volume.uuid)? else { return Ok(None) };
        let owner = self.host.catalog.get(&keys::owner(self.uuid(), intent.uuid))?;
        let (size, host, since) = (intent.volume.shape.size, intent.host, intent.since);
        Ok(Some(Resizing { size, host, since, under_way: owner.is_some() }))
    }

    /// Makes a volume `size` bytes large, at least: its namespaces grow at their targets. The array over
    /// them grows where it runs, or when it is opened next. One that has this size is left as it is.
    ///
    /// # Errors
    /// [`Error::NotResized`] for less than it has, or while members are missing;
    /// [`Error::Quota`]; [`Error::Space`] if a target has no room or fails. If some of its namespaces
    /// have grown by then, a later call with that size continues.
    pub fn resize_volume(&self, name: &str, size: u64) -> Result<VolumeRecord> {
        for _ in 0..TRIES {
            let (volume, at) = self.find(name)?;
            self.check_ready(&volume)?;
            let claim = Claim::new(&self.host.catalog, self.host.ttl)?;
            let done = self.resize_once(&volume, at, size, &claim);
            claim.release();
            // Otherwise another host was ahead, or a resize that was left is finished now.
            if let Some(resized) = done? {
                return Ok(resized);
            }
        }
        Err(Error::Contended(self.record.name.clone()))
    }

    fn resize_once(
        &self,
        volume: &VolumeRecord,
        at: Revision,
        size: u64,
        claim: &Claim,
    ) -> Result<Option<VolumeRecord>> {
        if let Some((left, left_at)) = self.resize_of(volume.uuid)? {
            let Some(owned) = self.own(&left, left_at, claim)? else {
                let why =
                    format!("{} has begun to resize it, and is doing so or was lost a moment ago", left.host);
                return Err(self.not_resized(volume, why));
            };
            self.carry_on(&owned)?;
            return Ok(None);
        }
        if size == volume.shape.size {
            return Ok(Some(volume.clone()));
        }
        let Some(intent) = self.plan_resize(volume, at, size, claim)? else { return Ok(None) };
        self.carry_on(&intent).map(Some)
    }

    fn not_resized(&self, volume: &VolumeRecord, why: String) -> Error {
        Error::NotResized { volume: format!("{}/{}", self.record.name, volume.name), why }
    }

    /// The resize of a volume that was begun.
    pub(crate) fn resize_of(&self, volume: Uuid) -> Result<Option<(Intent, Revision)>> {
        let is_it = |(intent, _): &(Intent, Revision)| {
            intent.kind == IntentKind::Resize && intent.volume.uuid == volume
        };
        Ok(self.intents()?.into_iter().find(is_it))
    }

    /// Makes this host the owner of an intent that has none; `None` if it has one. The intent is another one from
    /// here on, which is returned: a former owner that is only slow changes nothing any more.
    pub(crate) fn own(&self, intent: &Intent, at: Revision, claim: &Claim) -> Result<Option<Intent>> {
        let owner = keys::owner(self.uuid(), intent.uuid);
        let key = keys::intent(self.uuid(), &intent.uuid.to_string());
        let txn = Txn::new().expect(&key, Expect::Modified(at)).expect(&owner, Expect::Absent);
        // Later than before also where it was another process of this host, or the clock was set back.
        let since = wall_time().max(intent.since + 1);
        let owned = Intent { host: self.host.name.clone(), since, ..intent.clone() };
        let txn = txn.put(&key, &encode_intent(&owned));
        let txn = txn.put_leased(&owner, self.host.name.as_bytes(), claim.lease());
        let lease = Some(claim.lease());
        let is_made = || Ok(self.host.catalog.get(&owner)?.is_some_and(|entry| entry.lease == lease));
        Ok(self.host.commit(&txn, is_made)?.then_some(owned))
    }

    /// Writes the intent, and promises what is needed. `None` if another host was ahead.
    fn plan_resize(
        &self,
        volume: &VolumeRecord,
        at: Revision,
        size: u64,
        claim: &Claim,
    ) -> Result<Option<Intent>> {
        let shape = match volume.shape.grown(size) {
            Err(Error::Shape(why)) => return Err(self.not_resized(volume, why)),
            shape => shape?,
        };
        if volume.moving.is_some() {
            let why = "a member of it moves to another target: wait for that ('longhaul pool status')";
            return Err(self.not_resized(volume, why.to_owned()));
        }
        let places = self.places(volume)?;
        if places.len() < volume.members.len() {
            let why = "a member is missing, or its target is not known any more".to_owned();
            return Err(self.not_resized(volume, why));
        }
        let more = shape.member_size - volume.shape.member_size;
        let (mut usage, usage_at) = self.usage()?;
        let bytes = more * volume.members.len() as u64;
        self.check_quota(&usage, volume.job.as_deref(), bytes)?;
        self.check_room(&places, &usage.targets, more)?;
        usage.extend(volume, more);
        let intent = Intent {
            uuid: self.host.spaces.new_uuid(),
            kind: IntentKind::Resize,
            volume: VolumeRecord { shape, ..volume.clone() },
            host: self.host.name.clone(),
            since: wall_time(),
            former: Some(volume.shape.member_size),
        };
        // It has its size until all namespaces have theirs.
        let growing = Shape { size: volume.shape.size, ..shape };
        let growing = VolumeRecord { shape: growing, ..volume.clone() };
        let (key, usage_key) = (keys::volume(self.uuid(), &volume.name), keys::usage(self.uuid()));
        let txn = self.intent_txn(&intent, claim).expect(&key, Expect::Modified(at));
        let txn = txn.expect(&usage_key, Expect::Modified(usage_at));
        let txn = txn.put(&key, &encode_volume(&growing)).put(&usage_key, &encode(&usage));
        Ok(self.host.commit(&txn, || self.has(&intent))?.then_some(intent))
    }

    /// The namespaces of a volume whose targets are known.
    fn places(&self, volume: &VolumeRecord) -> Result<Vec<MemberPlace>> {
        let targets = self.targets()?;
        let place = |(index, member): (usize, &crate::record::Member)| {
            Some((index, member.namespace?, targets.get(&member.target)?.0.clone()))
        };
        Ok(volume.members.iter().enumerate().filter_map(place).collect())
    }

    /// Refuses if a target has not as much as the namespaces there need.
    fn check_room(&self, places: &[MemberPlace], promised: &BTreeMap<String, u64>, more: u64) -> Result<()> {
        let mut needs: BTreeMap<&str, (&TargetRecord, u64)> = BTreeMap::new();
        for (_, _, target) in places {
            needs.entry(&target.id).or_insert((target, 0)).1 += more;
        }
        let needs: Vec<(&TargetRecord, u64)> = needs.into_values().collect();
        let asked = each(&needs, |(target, needed)| self.check_free(target, promised, *needed));
        for ((target, _), asked) in needs.iter().zip(asked) {
            asked.map_err(|source| failed("grow a namespace", target, source))?;
        }
        Ok(())
    }

    /// Refuses if a target has not as many bytes that are neither taken nor promised.
    pub(crate) fn check_free(
        &self,
        target: &TargetRecord,
        promised: &BTreeMap<String, u64>,
        needed: u64,
    ) -> std::result::Result<(), SpaceError> {
        let space = self.space(target)?;
        let promised = promised.get(&target.id).copied().unwrap_or(0);
        let free = space.free.min(space.capacity.saturating_sub(promised));
        if free < needed {
            let (free, needed) = (format_size(free), format_size(needed));
            return Err(SpaceError::Full(format!("{needed} more are needed there, and {free} are free")));
        }
        Ok(())
    }

    /// The steps after the intent, which this host owns.
    fn carry_on(&self, intent: &Intent) -> Result<VolumeRecord> {
        let size = intent.volume.shape.member_size;
        let places = self.places(&intent.volume)?;
        let grown =
            each(&places, |(_, namespace, target)| self.host.spaces.grow(&target.address, *namespace, size));
        let errors: Vec<(&TargetRecord, SpaceError)> = places
            .iter()
            .zip(&grown)
            .filter_map(|((_, _, target), result)| Some((target, result.clone().err()?)))
            .collect();
        if let Some((target, source)) = errors.first() {
            let error = failed("grow a namespace", target, source.clone());
            let is_unchanged = |e: &SpaceError| matches!(e, SpaceError::Full(_) | SpaceError::Refused(_));
            let unchanged = errors.len() == places.len() && errors.iter().all(|(_, e)| is_unchanged(e));
            if unchanged {
                self.undo_resize(intent)?;
                return Err(error);
            }
            let (done, all) = (places.len() - errors.len(), places.len());
            let why = format!(
                "{error}. {done} of its {all} namespaces have grown, and do not shrink: make room there, and \
                 resize it to {} again",
                format_size(intent.volume.shape.size)
            );
            return Err(self.not_resized(&intent.volume, why));
        }
        let labelled = each(&places, |(index, namespace, target)| {
            // With the name and hosts that it has by now.
            let volume = self.by_uuid(intent.volume.uuid)?.map(|(volume, _)| volume);
            let Some(volume) = volume else { return Ok(()) };
            let volume = VolumeRecord { shape: intent.volume.shape, ..volume };
            let label = Label::of(&volume, &self.record, &target.domain, *index);
            let relabelled = self.host.spaces.relabel(&target.address, *namespace, &label);
            relabelled.map_err(|source| failed("write a label", target, source))
        });
        labelled.into_iter().collect::<Result<Vec<()>>>()?;
        self.end_resize(intent, intent.volume.shape, 0)?;
        match self.by_uuid(intent.volume.uuid)? {
            Some((volume, _)) => Ok(volume),
            None => Err(self.not_found("volume", &intent.volume.name)),
        }
    }

    /// Nothing has grown: the volume is as it was, and what was promised is free.
    fn undo_resize(&self, intent: &Intent) -> Result<()> {
        let Some(former) = intent.former else { return Ok(()) };
        let Some((volume, _)) = self.by_uuid(intent.volume.uuid)? else { return Ok(()) };
        let shape = Shape { member_size: former, ..volume.shape };
        self.end_resize(intent, shape, intent.volume.shape.member_size.saturating_sub(former))
    }

    /// The volume has this shape, `less` bytes of each member are free again, and the intent is done.
    fn end_resize(&self, intent: &Intent, shape: Shape, less: u64) -> Result<()> {
        let key = keys::intent(self.uuid(), &intent.uuid.to_string());
        let (owner, usage_key) = (keys::owner(self.uuid(), intent.uuid), keys::usage(self.uuid()));
        for _ in 0..TRIES {
            // Another host may have ended it.
            let Some(at) = self.current(intent)? else { return Ok(()) };
            let mut txn = Txn::new().expect(&key, Expect::Modified(at)).delete(&key).delete(&owner);
            // It may have been renamed meanwhile, or removed.
            if let Some((volume, volume_at)) = self.by_uuid(intent.volume.uuid)? {
                let name = keys::volume(self.uuid(), &volume.name);
                if less > 0 {
                    let (mut usage, usage_at) = self.usage()?;
                    usage.reduce(&volume, less);
                    txn = txn.expect(&usage_key, Expect::Modified(usage_at)).put(&usage_key, &encode(&usage));
                }
                let resized = VolumeRecord { shape, ..volume };
                txn = txn.expect(&name, Expect::Modified(volume_at)).put(&name, &encode_volume(&resized));
            }
            if self.host.commit(&txn, || Ok(self.host.catalog.get(&key)?.is_none()))? {
                return Ok(());
            }
        }
        Err(Error::Contended(self.record.name.clone()))
    }

    /// A volume, whatever its name is by now.
    pub(crate) fn by_uuid(&self, uuid: Uuid) -> Result<Option<(VolumeRecord, Revision)>> {
        // From one range: of two reads with a rename between them, the second one would find no volume of that name.
        for entry in self.host.catalog.range(&keys::volume(self.uuid(), ""), None)?.entries {
            let volume: VolumeRecord = decode_volume("the record of a volume", &entry.value)?;
            if volume.uuid == uuid {
                return Ok(Some((volume, entry.modified)));
            }
        }
        Ok(None)
    }

    /// Continues the resize of a lost host, which this one owns by now. What a target refuses waits.
    pub(crate) fn finish_resize(&self, intent: &Intent) -> Result<Removed> {
        match self.carry_on(intent) {
            Ok(_) | Err(Error::NotFound { .. }) => Ok(Removed::Whole),
            Err(e @ (Error::Space { .. } | Error::NotResized { .. })) => match self.has(intent)? {
                true => Ok(Removed::Later(vec![e.to_string()])),
                // It was undone.
                false => Ok(Removed::Whole),
            },
            Err(e) => Err(e),
        }
    }

    /// The changes that end a resize of a volume, as the volume is removed.
    pub(crate) fn without_resize(&self, volume: Uuid, txn: Txn) -> Result<Txn> {
        Ok(match self.resize_of(volume)? {
            Some((intent, at)) => {
                let key = keys::intent(self.uuid(), &intent.uuid.to_string());
                let owner = keys::owner(self.uuid(), intent.uuid);
                txn.expect(&key, Expect::Modified(at)).delete(&key).delete(&owner)
            }
            None => txn,
        })
    }
}

pub(crate) fn failed(attempted: &'static str, target: &TargetRecord, source: SpaceError) -> Error {
    Error::Space { attempted, address: target.address.clone(), source }
}
