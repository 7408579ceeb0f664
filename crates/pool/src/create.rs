//! Making a volume.
//!
//! | step | then the catalog has | a crash after it leaves |
//! |---|---|---|
//! | the intent is written | name, intent, owner, usage | records |
//! | namespaces are made | the same | namespaces whose labels name the volume |
//! | the array is made | the same | the same |
//! | the volume is published | the volume | nothing |
//!
//! What a crash leaves is undone by [`recover`](Pool::recover).

use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::keys;
use crate::label::Label;
use crate::name::check_name;
use crate::place::{Candidate, Need, place};
use crate::pool::{Pool, TRIES, each};
use crate::record::{
    Intent, IntentKind, Member, TargetRecord, Usage, VolumeRecord, VolumeState, decode_intent, encode,
    encode_intent, encode_volume,
};
use crate::remove::Removed;
use crate::shape::{Shape, VolumeLayout};
use crate::spaces::{Space, SpaceError, shown};
use crate::time::{check_lifetime, end_of, wall_time};
use crate::whole::only_files;
use longhaul_catalog::{Expect, Revision, Txn};
use std::collections::BTreeMap;
use std::time::Duration;

/// A volume to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRequest {
    /// Its name.
    pub name: String,
    /// Its size in bytes, at least.
    pub size: u64,
    /// Distribution over the members.
    pub layout: VolumeLayout,
    /// Members, without spares.
    pub width: usize,
    /// Members that wait to replace one.
    pub spares: usize,
    /// Stripe unit in bytes; not looked at for a single namespace.
    pub unit: u64,
    /// Most members in one failure domain; one, unless the user allows more.
    pub per_domain: usize,
    /// NQNs of the hosts that may use it.
    pub hosts: Vec<String>,
    /// The job that it is for.
    pub job: Option<String>,
    /// The time after which it may be removed, from when it is made; `None`: never.
    pub lifetime: Option<Duration>,
    /// Its namespaces take capacity as they are written to; it is promised to them all the same.
    pub thin: bool,
}

/// A target as it is known, with its revision, and its space or why it cannot be used.
pub(crate) type Asked = (TargetRecord, Revision, std::result::Result<Space, SpaceError>);

impl Pool {
    /// Makes a volume: namespaces on targets in different failure domains, and an array over them.
    /// Whatever ends it, it is there wholly or is undone.
    ///
    /// # Errors
    /// [`Error::Shortage`], [`Error::Quota`], [`Error::Exists`]; [`Error::Space`] if a target fails.
    pub fn create_volume(&self, request: &VolumeRequest) -> Result<VolumeRecord> {
        check_name("volume", &request.name)?;
        if let Some(job) = &request.job {
            check_name("job", job)?;
        }
        check_lifetime(request.lifetime)?;
        let VolumeRequest { layout, width, spares, unit, size, .. } = *request;
        let shape = Shape::fit(layout, width, spares, unit, size)?;
        let claim = Claim::new(&self.host.catalog, self.host.ttl)?;
        let planned = self.plan(request, shape, &claim);
        let (intent, targets) = match planned {
            Ok(planned) => planned,
            Err(e) => {
                claim.release();
                return Err(e);
            }
        };
        let made = self.carry_out(&intent, &targets);
        self.end_create(&intent, &targets, claim, made)
    }

    /// Ends an intent to make a volume: what was not made is undone.
    pub(crate) fn end_create(
        &self,
        intent: &Intent,
        targets: &BTreeMap<String, TargetRecord>,
        claim: Claim,
        made: Result<VolumeRecord>,
    ) -> Result<VolumeRecord> {
        if made.is_ok() {
            claim.release();
            return made;
        }
        // What cannot be undone now is undone by a recovery.
        let undone = match self.undo(intent, &claim) {
            Ok(None) => self.remove_late(intent, targets),
            Ok(Some(removed)) => Ok(removed),
            Err(e) => Err(e),
        };
        match undone {
            Ok(_) => claim.release(),
            Err(undo) => tracing::warn!("volume {} is not undone yet: {undo}", intent.volume.name),
        }
        made
    }

    /// Removes the namespaces that this host has made after another one had undone the intent. Of a
    /// volume that was published after all nothing is removed.
    fn remove_late(&self, intent: &Intent, targets: &BTreeMap<String, TargetRecord>) -> Result<Removed> {
        if self.is_published(intent.volume.uuid)? {
            return Ok(Removed::Whole);
        }
        let targets: Vec<&TargetRecord> = targets.values().collect();
        let removed = each(&targets, |target| self.remove_of(&target.address, intent.volume.uuid));
        let reasons: Vec<String> = removed.into_iter().filter_map(|r| Some(r.err()?.to_string())).collect();
        Ok(if reasons.is_empty() { Removed::Whole } else { Removed::Later(reasons) })
    }

    /// Asks all targets of the pool for their space.
    pub(crate) fn ask(&self) -> Result<Vec<Asked>> {
        let known: Vec<(TargetRecord, Revision)> = self.targets()?.into_values().collect();
        Ok(each(&known, |(target, at)| (target.clone(), *at, self.space(target))))
    }

    /// Chooses the targets and writes the intent.
    fn plan(
        &self,
        request: &VolumeRequest,
        shape: Shape,
        claim: &Claim,
    ) -> Result<(Intent, BTreeMap<String, TargetRecord>)> {
        let mut asked = self.ask()?;
        let mut intent = Intent {
            uuid: self.host.spaces.new_uuid(),
            kind: IntentKind::Create,
            volume: VolumeRecord {
                uuid: self.host.spaces.new_uuid(),
                name: request.name.clone(),
                renames: 0,
                shape,
                members: Vec::new(),
                array: None,
                hosts: request.hosts.clone(),
                job: request.job.clone(),
                expires: request.lifetime.and_then(end_of),
                thin: request.thin,
                made_by: self.host.name.clone(),
                made_at: wall_time(),
                state: VolumeState::Creating,
                moving: None,
                snapshot_of: None,
            },
            host: self.host.name.clone(),
            since: wall_time(),
            former: None,
        };
        for _ in 0..TRIES {
            if self.look_up(&request.name)?.is_some() {
                return Err(Error::Exists { what: "volume", name: request.name.clone() });
            }
            let (mut usage, usage_at) = self.usage()?;
            self.check_quota(&usage, request.job.as_deref(), shape.bytes())?;
            let placed = self.place(&asked, &usage, request, shape)?;
            let member = |target: &String| Member { target: target.clone(), namespace: None };
            intent.volume.members = placed.iter().map(member).collect();
            usage.add(&intent.volume);
            let txn =
                self.intent_txn(&intent, claim).expect(&keys::usage(self.uuid()), Expect::Modified(usage_at));
            let txn = txn.put(&keys::usage(self.uuid()), &encode(&usage));
            let name = keys::volume(self.uuid(), &request.name);
            let txn = txn.expect(&name, Expect::Absent).put(&name, &encode_volume(&intent.volume));
            // The targets are those that were asked.
            let chosen = asked.iter().filter(|(target, ..)| placed.contains(&target.id));
            let txn = chosen.clone().fold(txn, |txn, (target, at, _)| {
                txn.expect(&keys::target(self.uuid(), &target.id), Expect::Modified(*at))
            });
            if self.host.commit(&txn, || self.has(&intent))? {
                let targets = chosen.map(|(target, ..)| (target.id.clone(), target.clone())).collect();
                return Ok((intent, targets));
            }
            let now = self.targets()?;
            if asked.iter().any(|(target, at, _)| now.get(&target.id).is_none_or(|(_, now)| now != at)) {
                asked = self.ask()?;
            }
        }
        Err(Error::Contended(self.record.name.clone()))
    }

    /// A transaction that puts a new intent and its owner.
    pub(crate) fn intent_txn(&self, intent: &Intent, claim: &Claim) -> Txn {
        self.with_intent(Txn::new(), intent, claim)
    }

    /// A transaction that does so too.
    pub(crate) fn with_intent(&self, txn: Txn, intent: &Intent, claim: &Claim) -> Txn {
        let key = keys::intent(self.uuid(), &intent.uuid.to_string());
        let owner = keys::owner(self.uuid(), intent.uuid);
        txn.expect(&key, Expect::Absent).put(&key, &encode_intent(intent)).put_leased(
            &owner,
            self.host.name.as_bytes(),
            claim.lease(),
        )
    }

    /// The revision of this intent, if it is in the catalog as it is here: no other host has changed
    /// it.
    pub(crate) fn current(&self, intent: &Intent) -> Result<Option<Revision>> {
        let key = keys::intent(self.uuid(), &intent.uuid.to_string());
        let Some(entry) = self.host.catalog.get(&key)? else { return Ok(None) };
        Ok((decode_intent(&entry.value)? == *intent).then_some(entry.modified))
    }

    /// Whether this intent is in the catalog as it is here.
    pub(crate) fn has(&self, intent: &Intent) -> Result<bool> {
        Ok(self.current(intent)?.is_some())
    }

    /// Refuses `asked` more bytes for a job, or no job, beyond the quota.
    pub(crate) fn check_quota(&self, usage: &Usage, job: Option<&str>, asked: u64) -> Result<()> {
        let check = |owner: String, limit: Option<u64>, taken: u64| match limit {
            Some(limit) if taken.saturating_add(asked) > limit => {
                Err(Error::Quota { owner, asked, limit, taken })
            }
            _ => Ok(()),
        };
        check(format!("pool {}", self.record.name), self.record.quota.pool, usage.total())?;
        match job {
            None => Ok(()),
            Some(job) => {
                let taken = usage.jobs.get(job).copied().unwrap_or(0);
                check(format!("job {job}"), self.record.quota.job, taken)
            }
        }
    }

    /// Chooses targets. Free is what a target says, less what is promised and not made yet: never
    /// more than its capacity less what is promised.
    fn place(
        &self,
        asked: &[Asked],
        usage: &Usage,
        request: &VolumeRequest,
        shape: Shape,
    ) -> Result<Vec<String>> {
        let (mut candidates, mut unreachable) = self.candidates(asked, usage);
        if !shape.layout.is_files() {
            let is_other =
                |target: &&Asked| candidates.iter().any(|one| one.is_whole && one.id == target.0.id);
            let others: Vec<&Asked> = asked.iter().filter(is_other).collect();
            let why = only_files().to_string();
            unreachable.extend(others.iter().map(|(target, ..)| (shown(&target.address), why.clone())));
            candidates.retain(|one| !one.is_whole);
        }
        let need =
            Need { members: shape.members(), size: shape.member_size, per_domain: request.per_domain.max(1) };
        place(&candidates, need).map_err(|mut shortage| {
            shortage.unreachable = unreachable;
            Error::Shortage(shortage)
        })
    }

    /// The targets that can have members, and those that could not be asked, with the reasons.
    pub(crate) fn candidates(
        &self,
        asked: &[Asked],
        usage: &Usage,
    ) -> (Vec<Candidate>, Vec<(String, String)>) {
        let mut unreachable = Vec::new();
        let mut candidates = Vec::new();
        for (target, _, space) in asked {
            match space {
                Ok(space) => {
                    let promised = usage.targets.get(&target.id).copied().unwrap_or(0);
                    let free = match space.is_whole {
                        true if promised > 0 || space.free < space.capacity => 0,
                        _ => space.free.min(space.capacity.saturating_sub(promised)),
                    };
                    let (id, domain) = (target.id.clone(), target.domain.clone());
                    let round_trip = self.host.spaces.round_trip(&target.address);
                    let is_whole = space.is_whole;
                    candidates.push(Candidate { id, domain, free, round_trip, is_whole });
                }
                Err(e) => unreachable.push((shown(&target.address), e.to_string())),
            }
        }
        (candidates, unreachable)
    }

    /// The steps after the intent.
    fn carry_out(&self, intent: &Intent, targets: &BTreeMap<String, TargetRecord>) -> Result<VolumeRecord> {
        let mut volume = intent.volume.clone();
        let spaces = &self.host.spaces;
        let places: Vec<(usize, &TargetRecord)> = volume
            .members
            .iter()
            .enumerate()
            .filter_map(|(index, member)| Some((index, targets.get(&member.target)?)))
            .collect();
        let made = each(&places, |(index, target)| {
            let label = Label::of(&volume, &self.record, &target.domain, *index);
            let made = spaces.make(&target.address, volume.shape.member_size, &label);
            let failed = |source| Error::Space {
                attempted: "make a namespace",
                address: target.address.clone(),
                source,
            };
            made.map(|id| (target.address.clone(), id)).map_err(failed)
        });
        let made = made.into_iter().collect::<Result<Vec<_>>>()?;
        for (member, (_, id)) in volume.members.iter_mut().zip(&made) {
            member.namespace = Some(*id);
        }
        if volume.shape.layout.has_array() {
            let addresses: Vec<String> = made.iter().map(|(address, _)| shown(address)).collect();
            let failed =
                |source| Error::Space { attempted: "make an array", address: addresses.join(", "), source };
            volume.array = Some(spaces.format(&volume, &made).map_err(failed)?);
        }
        volume.state = VolumeState::Ready;
        self.publish(intent, &volume)?;
        Ok(volume)
    }

    /// The intent becomes the volume, unless another host has changed it: that one undoes it.
    pub(crate) fn publish(&self, intent: &Intent, volume: &VolumeRecord) -> Result<()> {
        let key = keys::intent(self.uuid(), &intent.uuid.to_string());
        let owner = keys::owner(self.uuid(), intent.uuid);
        let name = keys::volume(self.uuid(), &volume.name);
        let Some(at) = self.current(intent)? else { return Err(Error::Overtaken(volume.name.clone())) };
        let txn = Txn::new().expect(&key, Expect::Modified(at));
        let txn = txn.put(&name, &encode_volume(volume)).delete(&key).delete(&owner);
        // Another host may have changed it since, even its name.
        let is_made = || self.is_published(volume.uuid);
        if self.host.commit(&txn, is_made)? { Ok(()) } else { Err(Error::Overtaken(volume.name.clone())) }
    }
}
