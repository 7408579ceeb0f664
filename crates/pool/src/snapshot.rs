//! Snapshots: a volume whose namespaces share the blocks of those of another one.
//!
//! | step | then the catalog has | a crash after it leaves |
//! |---|---|---|
//! | the targets are asked whether they clone | nothing | nothing |
//! | the intent is written | name, intent, owner, usage | records |
//! | the array pauses writes | the same | the same; the pause ends by itself |
//! | namespaces are cloned | the same | clones whose labels name the volume, for no host of it |
//! | the array goes on | the same | the same |
//! | the clones get superblocks of an array of their own, and their labels | the same | the same |
//! | the volume is published | the volume | nothing |
//!
//! The intent is the one of a volume that is being made, and what a crash leaves is undone as there. A
//! clone has the superblock of the array that it is from until it is adopted: no host but the one that
//! makes the snapshot sees it before.
//!
//! A snapshot is of one moment: all members are cloned while no write is under way, and one that was
//! acknowledged before is in it. That counts for what the volume has acknowledged: what a file system or a
//! cache above it holds back is as after a loss of power.

use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::keys;
use crate::label::Label;
use crate::moving::{ArrayChange, Arrays, MemberAt, Role, RunArray};
use crate::name::check_name;
use crate::pool::{Pool, TRIES, each};
use crate::record::{
    Intent, IntentKind, Member, SnapshotOf, TargetRecord, VolumeRecord, VolumeState, encode, encode_volume,
};
use crate::resize::failed;
use crate::shape::Shape;
use crate::spaces::NamespaceId;
use crate::time::{check_lifetime, end_of, wall_time};
use longhaul_catalog::{Expect, Revision, Txn};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Longest pause of writes. Clones take a few round trips, and longer where a file has many extents.
const PAUSE: Duration = Duration::from_secs(15);

/// How long a member is waited for that was missing and may be back, and how often it is looked for: an array
/// that was just opened takes it back within a second.
const RETURNS: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(200);

/// A snapshot to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// Name of the volume.
    pub of: String,
    /// Name of the snapshot.
    pub name: String,
    /// NQNs of the hosts that may use it; `None`: those of the volume.
    pub hosts: Option<Vec<String>>,
    /// The time after which it may be removed, from when it is made; `None`: when the volume may.
    pub lifetime: Option<Duration>,
}

/// A namespace that is cloned.
struct Source {
    namespace: NamespaceId,
    target: TargetRecord,
    at: Revision,
}

impl Source {
    fn place(&self) -> MemberAt {
        (self.target.address.clone(), self.namespace)
    }
}

impl Pool {
    fn no_snapshot(&self, volume: &VolumeRecord, why: impl std::fmt::Display) -> Error {
        Error::NoSnapshot { volume: format!("{}/{}", self.record.name, volume.name), why: why.to_string() }
    }

    /// Makes a volume with the content that another one has at one moment. It is thin, has no spares, and
    /// is promised its whole size; a job that the other one is for has it too. Returns it, and for how
    /// long writes to the other one were held.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`] for a volume that is being changed, lacks a member, or whose array is used by
    /// another host; [`Error::Space`] if a target does not clone namespaces, has no room, or fails;
    /// [`Error::Exists`], [`Error::Quota`]. Nothing is left then.
    pub fn snapshot_volume(
        &self,
        request: &SnapshotRequest,
        arrays: &dyn Arrays,
    ) -> Result<(VolumeRecord, Duration)> {
        check_name("volume", &request.name)?;
        check_lifetime(request.lifetime)?;
        let (volume, at) = self.find(&request.of)?;
        self.check_ready(&volume)?;
        if volume.shape.layout.is_files() {
            let why = "it is the data of a file system, whose hosts write to it each for itself: copy its files \
                       ('longhaul cp')";
            return Err(self.no_snapshot(&volume, why));
        }
        if volume.moving.is_some() || self.resize_of(volume.uuid)?.is_some() {
            let why = format!(
                "a member of it moves, or it is being resized: wait for that, or finish it with 'longhaul pool \
                 recover {}'",
                self.record.name
            );
            return Err(self.no_snapshot(&volume, why));
        }
        if self.look_up(&request.name)?.is_some() {
            return Err(Error::Exists { what: "volume", name: request.name.clone() });
        }
        let array = match volume.array {
            Some(_) => Some(arrays.open(self, &volume).map_err(|e| self.no_snapshot(&volume, e))?),
            None => None,
        };
        let made = self.snapshot_with(request, (&volume, at), array.as_deref());
        let ended = array.map_or(Ok(()), |array| array.end());
        let (intent, targets, claim, copied) = made?;
        let held = copied.as_ref().map(|(_, held)| *held).unwrap_or_default();
        let made = copied.and_then(|(clones, _)| {
            ended?;
            self.adopt(&intent, &volume, &targets, clones)
        });
        Ok((self.end_create(&intent, &targets, claim, made)?, held))
    }

    /// The steps for which the array runs: the clones, and for how long writes were held, or why they were
    /// not made.
    #[expect(clippy::type_complexity, reason = "the parts of one step")]
    fn snapshot_with(
        &self,
        request: &SnapshotRequest,
        (volume, at): (&VolumeRecord, Revision),
        array: Option<&(dyn RunArray + '_)>,
    ) -> Result<(Intent, BTreeMap<String, TargetRecord>, Claim, Result<(Vec<NamespaceId>, Duration)>)> {
        let sources = self.sources(volume, array)?;
        let tried = each(&sources, |source| {
            let tried = self.host.spaces.check_clones(&source.target.address, source.namespace);
            tried.map_err(|e| failed("clone a namespace", &source.target, e))
        });
        tried.into_iter().collect::<Result<Vec<()>>>()?;
        let claim = Claim::new(&self.host.catalog, self.host.ttl)?;
        let intent = match self.plan_snapshot(request, (volume, at), &sources, &claim) {
            Ok(intent) => intent,
            Err(e) => {
                claim.release();
                return Err(e);
            }
        };
        let targets =
            sources.iter().map(|source| (source.target.id.clone(), source.target.clone())).collect();
        let copied = match array {
            Some(array) => self.copy_paused(&intent, volume, &sources, array),
            None => self.copy(&intent, &sources).map(|clones| (clones, Duration::ZERO)),
        };
        Ok((intent, targets, claim, copied))
    }

    /// The namespaces to be cloned, in the order of the array's members.
    fn sources(&self, volume: &VolumeRecord, array: Option<&(dyn RunArray + '_)>) -> Result<Vec<Source>> {
        let places = self.member_places(volume)?;
        let order: Vec<usize> = match array {
            None => vec![0],
            Some(array) => {
                let roles = self.whole_roles(volume, array, &places)?;
                let member = |index: usize| {
                    let found = roles.iter().position(|role| *role == Role::Active(index));
                    found.ok_or_else(|| {
                        let name = format!("{}/{}", self.record.name, volume.name);
                        let why = format!(
                            "member {index} is missing: wait for it, or replace it with 'longhaul volume repair {name}'"
                        );
                        self.no_snapshot(volume, why)
                    })
                };
                (0..volume.shape.width).map(member).collect::<Result<_>>()?
            }
        };
        let targets = self.targets()?;
        let source = |index: usize| {
            let member = volume.members.get(index)?;
            let (target, at) = targets.get(&member.target)?.clone();
            Some(Source { namespace: member.namespace?, target, at })
        };
        let missing = || self.no_snapshot(volume, "a member is missing, or its target is not known any more");
        order.into_iter().map(|index| source(index).ok_or_else(missing)).collect()
    }

    /// The roles of the namespaces, once those that are back have caught up: without a host that uses the
    /// array they do so only now.
    fn whole_roles(
        &self,
        volume: &VolumeRecord,
        array: &(dyn RunArray + '_),
        places: &[Option<MemberAt>],
    ) -> Result<Vec<Role>> {
        let end = Instant::now() + RETURNS;
        loop {
            let roles = array.look(places)?.roles;
            let is_member = |index: &usize| *index < volume.shape.width;
            let rebuilding = roles.iter().find_map(|role| match role {
                Role::Rebuilding(index) => Some(*index).filter(is_member),
                _ => None,
            });
            if let Some(index) = rebuilding {
                let waited = array.change(&ArrayChange::Rebuilt(index), &mut |_| {});
                waited.map_err(|e| self.no_snapshot(volume, e))?;
                continue;
            }
            let is_missing =
                roles.iter().any(|role| matches!(role, Role::Missing(index) if is_member(index)));
            if !is_missing || Instant::now() > end {
                return Ok(roles);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Writes the intent, and promises what is needed.
    fn plan_snapshot(
        &self,
        request: &SnapshotRequest,
        (volume, at): (&VolumeRecord, Revision),
        sources: &[Source],
        claim: &Claim,
    ) -> Result<Intent> {
        let of = SnapshotOf { volume: volume.uuid, name: volume.name.clone() };
        let member = |source: &Source| Member { target: source.target.id.clone(), namespace: None };
        let snapshot = VolumeRecord {
            uuid: self.host.spaces.new_uuid(),
            name: request.name.clone(),
            renames: 0,
            shape: Shape { spares: 0, ..volume.shape },
            members: sources.iter().map(member).collect(),
            array: None,
            hosts: request.hosts.clone().unwrap_or_else(|| volume.hosts.clone()),
            job: volume.job.clone(),
            expires: request.lifetime.map_or(volume.expires, end_of),
            thin: true,
            made_by: self.host.name.clone(),
            made_at: wall_time(),
            state: VolumeState::Creating,
            moving: None,
            snapshot_of: Some(of),
        };
        let intent = Intent {
            uuid: self.host.spaces.new_uuid(),
            kind: IntentKind::Create,
            volume: snapshot,
            host: self.host.name.clone(),
            since: wall_time(),
            former: None,
        };
        let snapshot = &intent.volume;
        let (source_key, usage_key) = (keys::volume(self.uuid(), &volume.name), keys::usage(self.uuid()));
        let name = keys::volume(self.uuid(), &snapshot.name);
        for _ in 0..TRIES {
            let (mut usage, usage_at) = self.usage()?;
            self.check_quota(&usage, snapshot.job.as_deref(), snapshot.shape.bytes())?;
            let mut needs: BTreeMap<&str, (&TargetRecord, u64)> = BTreeMap::new();
            for Source { target, .. } in sources {
                needs.entry(&target.id).or_insert((target, 0)).1 += snapshot.shape.member_size;
            }
            let needs: Vec<(&TargetRecord, u64)> = needs.into_values().collect();
            let asked = each(&needs, |(target, needed)| {
                let asked = self.check_free(target, &usage.targets, *needed);
                asked.map_err(|source| failed("clone a namespace", target, source))
            });
            asked.into_iter().collect::<Result<Vec<()>>>()?;
            usage.add(snapshot);
            // The volume, its members and their targets are those that were asked.
            let txn = self.intent_txn(&intent, claim).expect(&source_key, Expect::Modified(at));
            let txn = txn.expect(&usage_key, Expect::Modified(usage_at)).put(&usage_key, &encode(&usage));
            let txn = txn.expect(&name, Expect::Absent).put(&name, &encode_volume(snapshot));
            let seen: BTreeMap<&str, Revision> =
                sources.iter().map(|source| (source.target.id.as_str(), source.at)).collect();
            let txn: Txn = seen
                .into_iter()
                .fold(txn, |txn, (id, at)| txn.expect(&keys::target(self.uuid(), id), Expect::Modified(at)));
            if self.host.commit(&txn, || self.has(&intent))? {
                return Ok(intent);
            }
            if self.look_up(&snapshot.name)?.is_some() {
                return Err(Error::Exists { what: "volume", name: snapshot.name.clone() });
            }
            if self.look_up(&volume.name)?.is_none_or(|(_, now)| now != at) {
                return Err(self.no_snapshot(volume, "it was changed meanwhile: try again"));
            }
        }
        Err(Error::Contended(self.record.name.clone()))
    }

    /// Clones the members of an array while it does not change.
    fn copy_paused(
        &self,
        intent: &Intent,
        volume: &VolumeRecord,
        sources: &[Source],
        array: &(dyn RunArray + '_),
    ) -> Result<(Vec<NamespaceId>, Duration)> {
        let began = Instant::now();
        let pause = array.pause(PAUSE).map_err(|e| self.no_snapshot(volume, e))?;
        // A member may have moved since it was looked at: what it left behind is out of date.
        let places: Vec<Option<MemberAt>> = sources.iter().map(|source| Some(source.place())).collect();
        let is_there = array
            .look(&places)
            .map(|view| view.roles.iter().enumerate().all(|(index, role)| *role == Role::Active(index)));
        let copied = match is_there {
            Ok(true) => self.copy(intent, sources),
            Ok(false) => Err(self.no_snapshot(volume, "a member of it was replaced meanwhile: try again")),
            Err(e) => Err(e.into()),
        };
        let (held, took) = (array.resume(pause), began.elapsed());
        let clones = copied?;
        match held? {
            true => Ok((clones, took)),
            false => Err(self.no_snapshot(
                volume,
                format!(
                    "its targets have not cloned it within {} s, and its writes went on",
                    PAUSE.as_secs()
                ),
            )),
        }
    }

    /// Clones the namespaces.
    fn copy(&self, intent: &Intent, sources: &[Source]) -> Result<Vec<NamespaceId>> {
        let volume = &intent.volume;
        let indexed: Vec<(usize, &Source)> = sources.iter().enumerate().collect();
        let made = each(&indexed, |(index, source)| {
            let label = Label::of(volume, &self.record, &source.target.domain, *index);
            let label = Label { copied: volume.shape.layout.has_array(), ..label };
            let made = self.host.spaces.clone_of(&source.target.address, source.namespace, &label);
            made.map_err(|e| failed("clone a namespace", &source.target, e))
        });
        made.into_iter().collect()
    }

    /// The steps after the clones are made.
    fn adopt(
        &self,
        intent: &Intent,
        of: &VolumeRecord,
        targets: &BTreeMap<String, TargetRecord>,
        clones: Vec<NamespaceId>,
    ) -> Result<VolumeRecord> {
        let mut volume = intent.volume.clone();
        for (member, clone) in volume.members.iter_mut().zip(clones) {
            member.namespace = Some(clone);
        }
        if let Some(array) = of.array {
            let places: Vec<(String, NamespaceId, Label)> = volume
                .members
                .iter()
                .enumerate()
                .filter_map(|(index, member)| {
                    let target = targets.get(&member.target)?;
                    let label = Label::of(&volume, &self.record, &target.domain, index);
                    Some((target.address.clone(), member.namespace?, label))
                })
                .collect();
            let addresses: Vec<String> =
                places.iter().map(|(address, ..)| crate::spaces::shown(address)).collect();
            let failed = |source| Error::Space {
                attempted: "make an array of clones",
                address: addresses.join(", "),
                source,
            };
            volume.array = Some(self.host.spaces.adopt(&volume, array, &places).map_err(failed)?);
        }
        volume.state = VolumeState::Ready;
        self.publish(intent, &volume)?;
        Ok(volume)
    }
}
