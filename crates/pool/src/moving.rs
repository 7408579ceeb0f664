//! Moving a member of a volume to another target, while the volume is used.
//!
//! | step | then the catalog has | a crash after it leaves |
//! |---|---|---|
//! | the intent is written | intent, owner, usage; the volume with where its member moves to | records |
//! | a namespace is made | the same | a namespace whose label says that a member moves there |
//! | it is recorded | the volume and the intent with the namespace | the same |
//! | the array moves its member, or rebuilds it | the same | an array that has it in the one place or the other |
//! | the volume is published | the volume; an intent to remove the former namespace | that namespace |
//! | the former namespace is removed | the volume | nothing |
//!
//! From the first step on the record of the volume names both places, so that a host that opens it finds its
//! member in either. Which one it is, the array alone decides: a move that was left is published if the
//! array has its member at the new place, undone if it has not and no host uses the array, and waits
//! otherwise for a host that can ask the process that runs the array.

use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::keys;
use crate::label::Label;
use crate::pool::{Pool, TRIES};
use crate::record::{
    Intent, IntentKind, Member, Moving, TargetRecord, Usage, VolumeRecord, encode, encode_intent,
    encode_volume,
};
use crate::remove::Removed;
use crate::resize::failed;
use crate::shape::VolumeLayout;
use crate::spaces::{NamespaceId, Taken, shown};
use crate::time::wall_time;
use longhaul_catalog::{Expect, Revision, Txn};
use longhaul_device::Result as ArrayResult;
use std::time::Duration;
use uuid::Uuid;

/// A namespace: the address of its target, and which one it is there.
pub type MemberAt = (String, NamespaceId);

/// What a namespace is to the array of its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The member with this number, up to date.
    Active(usize),
    /// The member with this number, which is being rebuilt.
    Rebuilding(usize),
    /// The member with this number, which has failed or is out of reach.
    Missing(usize),
    /// A spare.
    Spare,
    /// None: it is not reached, or is not part of the array.
    None,
}

/// An array, as the process that runs it sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayView {
    /// The roles of the namespaces that were asked about.
    pub roles: Vec<Role>,
    /// Numbers of the members that are missing and on none of them.
    pub missing: Vec<usize>,
}

/// A change of an array. The namespace is the one that is to have the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArrayChange {
    /// A member that is up to date moves; it stays in use until it is there.
    Move(usize, MemberAt),
    /// A member that is missing is replaced, and rebuilt.
    Replace(usize, MemberAt),
    /// Waits until a member is rebuilt.
    Rebuilt(usize),
    /// A spare is added.
    AddSpare(MemberAt),
    /// A spare leaves.
    RemoveSpare(MemberAt),
}

/// How far the copy or the rebuild of a member has come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MoveProgress {
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Bytes per second so far.
    pub rate: f64,
    /// Time left, if it can be told.
    pub left: Option<Duration>,
}

/// Reaches the arrays of volumes, from the host that this is.
pub trait Arrays {
    /// The array of a volume: in the process of this host that runs it, or else it is run for this.
    ///
    /// # Errors
    /// Another host uses it, or too few of its members can be reached.
    fn open<'a>(&'a self, pool: &Pool, volume: &VolumeRecord) -> ArrayResult<Box<dyn RunArray + 'a>>;
}

/// An array that can be asked.
pub trait RunArray {
    /// What these namespaces are to it.
    ///
    /// # Errors
    /// The process that runs it has ended.
    fn look(&self, places: &[Option<MemberAt>]) -> ArrayResult<ArrayView>;

    /// Limits the bytes per second at which members are read for moves and rebuilds.
    ///
    /// # Errors
    /// As for [`Self::look`].
    fn limit(&self, rate: Option<u64>) -> ArrayResult<()>;

    /// Changes it, and calls `show` with the progress until that is done.
    ///
    /// # Errors
    /// Those of the array, or as for [`Self::look`].
    fn change(&self, change: &ArrayChange, show: &mut dyn FnMut(&MoveProgress)) -> ArrayResult<()>;

    /// Gives up a move to a namespace. Whether that is a member all the same.
    ///
    /// # Errors
    /// As for [`Self::look`].
    fn cancel(&self, place: &MemberAt) -> ArrayResult<bool>;

    /// Pauses writes, for `limit` at most: the number of the pause. The members have all writes that were
    /// acknowledged, and stay as they are.
    ///
    /// # Errors
    /// Those of the array, or as for [`Self::look`].
    fn pause(&self, limit: Duration) -> ArrayResult<u64>;

    /// Ends a pause; false if writes went on before.
    ///
    /// # Errors
    /// As for [`Self::look`].
    fn resume(&self, pause: u64) -> ArrayResult<bool>;

    /// Ends the use of it.
    ///
    /// # Errors
    /// It was run for this, and could not be stopped in order.
    fn end(self: Box<Self>) -> ArrayResult<()>;
}

/// How members are moved.
pub struct MoveRun<'a> {
    /// Reaches the arrays.
    pub arrays: &'a dyn Arrays,
    /// Most bytes per second read from each member.
    pub limit: Option<u64>,
    /// Told of progress.
    pub show: &'a mut dyn FnMut(&MoveStep, &MoveProgress),
}

/// A move of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveStep {
    /// Name of the volume.
    pub volume: String,
    /// Which of its members and spares.
    pub index: usize,
    /// Address of the target that it is at; `None` if that is not known.
    pub from: Option<String>,
    /// Address of the target that it moves to.
    pub to: String,
    /// Size of the member in bytes.
    pub bytes: u64,
}

/// A move that this host carries out.
struct Underway {
    intent: Intent,
    volume: VolumeRecord,
    moving: Moving,
    to: TargetRecord,
}

impl Underway {
    fn place(&self) -> Option<MemberAt> {
        Some((self.to.address.clone(), self.moving.to.namespace?))
    }
}

/// A move that has begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveBegun {
    /// Which of the volume's members and spares.
    pub index: usize,
    /// The namespace that it is on; `None` if that is not known.
    pub from: Option<String>,
    /// The namespace that it moves to; `None` until that was made.
    pub to: Option<String>,
    /// Address of the target that it moves to; `None` if that is not known any more.
    pub target: Option<String>,
    /// The host that began it.
    pub host: String,
    /// When, in seconds since 1970.
    pub since: u64,
    /// A host is at it. If not, a recovery of the pool continues or undoes it.
    pub under_way: bool,
}

impl Pool {
    /// The move of a member of a volume that has begun and not ended.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn moving(&self, volume: &VolumeRecord) -> Result<Option<MoveBegun>> {
        let Some(moving) = &volume.moving else { return Ok(None) };
        let is_it = |(intent, _): &(Intent, Revision)| {
            intent.kind == IntentKind::Move && intent.volume.uuid == volume.uuid
        };
        let intent = self.intents()?.into_iter().find(is_it).map(|(intent, _)| intent);
        let owner = match &intent {
            Some(intent) => self.host.catalog.get(&keys::owner(self.uuid(), intent.uuid))?,
            None => None,
        };
        let places = [volume.members.get(moving.index), Some(&moving.to)];
        let mut uris = self.uris_of(places.iter().map(|member| member.unwrap_or(&moving.to)))?.into_iter();
        let from = uris.next().flatten().filter(|_| places[0].is_some());
        let target = self.targets()?.remove(&moving.to.target).map(|(target, _)| shown(&target.address));
        let (host, since) = intent.map_or_else(|| (String::new(), 0), |intent| (intent.host, intent.since));
        let (index, to) = (moving.index, uris.next().flatten());
        Ok(Some(MoveBegun { index, from, to, target, host, since, under_way: owner.is_some() }))
    }

    fn not_moved(&self, volume: &VolumeRecord, why: impl std::fmt::Display) -> Error {
        Error::NotMoved { volume: format!("{}/{}", self.record.name, volume.name), why: why.to_string() }
    }

    /// Moves member or spare `index` of a volume to the target with identity `to`. One that is missing is
    /// rebuilt there from the others. What is left to do if the former target cannot be reached is in
    /// the result.
    ///
    /// # Errors
    /// [`Error::NotMoved`] for a volume of one namespace, one that is being changed, and one whose array
    /// is used by another host or cannot do it: the member is where it was, unless the error says
    /// otherwise. [`Error::Space`] if a target fails, or has less that is neither taken nor promised than the
    /// member needs.
    pub fn move_member(
        &self,
        name: &str,
        index: usize,
        to: &str,
        run: &mut MoveRun<'_>,
    ) -> Result<(VolumeRecord, Removed)> {
        let (volume, at) = self.find(name)?;
        self.check_movable(&volume, index)?;
        let (target, target_at) = match self.targets()?.remove(to) {
            Some(found) => found,
            None => return Err(self.not_found("target", to)),
        };
        let array = run.arrays.open(self, &volume)?;
        let claim = Claim::new(&self.host.catalog, self.host.ttl)?;
        let moved = self.begin_move(&volume, at, index, (&target, target_at), &claim).and_then(|intent| {
            let intent = intent.ok_or_else(|| Error::Contended(self.record.name.clone()))?;
            self.carry_move(intent, &*array, run)
        });
        // Whatever is left, its record says what to do, and not who has the lease.
        claim.release();
        let ended = array.end();
        self.settle_label(volume.uuid, index, to);
        let moved = moved?;
        ended?;
        Ok(moved)
    }

    /// Refuses what cannot be moved.
    pub(crate) fn check_movable(&self, volume: &VolumeRecord, index: usize) -> Result<()> {
        self.check_ready(volume)?;
        if volume.shape.layout == VolumeLayout::Single {
            let why = "it is one namespace without an array that could copy it: make another volume, copy it there \
                       ('longhaul cp', or a tool of its host), and remove this one";
            return Err(self.not_moved(volume, why));
        }
        if index >= volume.members.len() {
            return Err(self.not_moved(volume, format!("it has no member {index}")));
        }
        if let Some(moving) = &volume.moving {
            let why = format!(
                "its member {} moves already: wait for that, or run 'longhaul pool recover {}'",
                moving.index, self.record.name
            );
            return Err(self.not_moved(volume, why));
        }
        if let Some((resize, _)) = self.resize_of(volume.uuid)? {
            return Err(
                self.not_moved(volume, format!("{} has begun to resize it: finish that first", resize.host))
            );
        }
        Ok(())
    }

    /// Writes the intent, and promises what is needed. `None` if another host was ahead.
    fn begin_move(
        &self,
        volume: &VolumeRecord,
        at: Revision,
        index: usize,
        (to, to_at): (&TargetRecord, Revision),
        claim: &Claim,
    ) -> Result<Option<Intent>> {
        let member = Member { target: to.id.clone(), namespace: None };
        let place = VolumeRecord { members: vec![member.clone()], ..volume.clone() };
        let intent = Intent {
            uuid: self.host.spaces.new_uuid(),
            kind: IntentKind::Move,
            volume: place,
            host: self.host.name.clone(),
            since: wall_time(),
            former: None,
        };
        let moving = VolumeRecord { moving: Some(Moving { index, to: member }), ..volume.clone() };
        let (usage_key, key) = (keys::usage(self.uuid()), keys::volume(self.uuid(), &volume.name));
        for _ in 0..TRIES {
            let (mut usage, usage_at) = self.usage()?;
            // Others may have been promised what was free when the move was planned.
            let free = self.check_free(to, &usage.targets, volume.shape.member_size);
            free.map_err(|e| failed("make a namespace", to, e))?;
            usage.add(&intent.volume);
            let txn = self.intent_txn(&intent, claim).expect(&key, Expect::Modified(at));
            let txn = txn.expect(&keys::target(self.uuid(), &to.id), Expect::Modified(to_at));
            let txn = txn.expect(&usage_key, Expect::Modified(usage_at));
            let txn = txn.put(&key, &encode_volume(&moving)).put(&usage_key, &encode(&usage));
            if self.host.commit(&txn, || self.has(&intent))? {
                return Ok(Some(intent));
            }
            if self.look_up(&volume.name)?.is_none_or(|(_, now)| now != at) {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// What an intent to move is about; `None` if its volume is gone, or has no member that moves.
    fn underway(&self, intent: &Intent) -> Result<Option<Underway>> {
        let Some((volume, _)) = self.by_uuid(intent.volume.uuid)? else { return Ok(None) };
        let Some(moving) = volume.moving.clone() else { return Ok(None) };
        let Some((to, _)) = self.targets()?.remove(&moving.to.target) else { return Ok(None) };
        Ok(Some(Underway { intent: intent.clone(), volume, moving, to }))
    }

    fn overtaken(&self, volume: &VolumeRecord) -> Error {
        self.not_moved(volume, "another host has taken over, as this one did not keep its lease: try again")
    }

    /// The steps after the intent, which this host owns.
    fn carry_move(
        &self,
        intent: Intent,
        array: &dyn RunArray,
        run: &mut MoveRun<'_>,
    ) -> Result<(VolumeRecord, Removed)> {
        let Some(mut underway) = self.underway(&intent)? else {
            return Err(self.overtaken(&intent.volume));
        };
        if underway.moving.to.namespace.is_none() {
            match self.make_place(&underway) {
                Ok(made) => underway = made,
                Err(e) => {
                    self.undo_after(&underway, &e);
                    return Err(e);
                }
            }
        }
        let Some(place) = underway.place() else { return Err(self.overtaken(&underway.volume)) };
        if !self.has(&underway.intent)? {
            return Err(self.overtaken(&underway.volume));
        }
        match self.change_array(&underway, &place, array, run) {
            Ok(()) => self.publish_move(&underway.intent),
            Err(e) => match array.cancel(&place) {
                // A rebuild that has failed has begun at the new place all the same.
                Ok(true) => {
                    self.publish_move(&underway.intent)?;
                    Err(self.not_moved(
                        &underway.volume,
                        format!(
                            "member {} is at {}, and is not whole there: {e}",
                            underway.moving.index,
                            shown(&underway.to.address)
                        ),
                    ))
                }
                Ok(false) => {
                    self.undo_after(&underway, &e);
                    Err(e)
                }
                Err(gone) => {
                    tracing::debug!("volume {}: its array cannot be asked: {gone}", underway.volume.name);
                    Err(e)
                }
            },
        }
    }

    /// Undoes a move that has failed; what cannot be undone now is undone by a recovery.
    fn undo_after(&self, underway: &Underway, e: &Error) {
        match self.undo_move(&underway.intent) {
            Ok(_) => {}
            Err(undo) => {
                tracing::warn!(
                    "volume {}: the move is not undone yet: {undo}; it had failed: {e}",
                    underway.volume.name
                );
            }
        }
    }

    /// Makes the namespace that the member moves to, and records it.
    fn make_place(&self, underway: &Underway) -> Result<Underway> {
        let Underway { intent, volume, moving, to } = underway;
        let label = Label::of(volume, &self.record, &to.domain, moving.index);
        let label = Label { joining: true, ..label };
        let space = self.space(to).map_err(|e| failed("make a namespace", to, e))?;
        tracing::debug!("target {} has {} bytes free", to.address, space.free);
        let made = self.host.spaces.make(&to.address, volume.shape.member_size, &label);
        let made = made.map_err(|e| failed("make a namespace", to, e))?;
        let member = Member { namespace: Some(made), ..moving.to.clone() };
        let key = keys::intent(self.uuid(), &intent.uuid.to_string());
        for _ in 0..TRIES {
            let Some(at) = self.current(intent)? else { break };
            let Some((now, now_at)) = self.by_uuid(volume.uuid)? else { break };
            let recorded = Intent {
                volume: VolumeRecord { members: vec![member.clone()], ..intent.volume.clone() },
                ..intent.clone()
            };
            let moving = Moving { to: member.clone(), ..moving.clone() };
            let moves = VolumeRecord { moving: Some(moving.clone()), ..now.clone() };
            let name = keys::volume(self.uuid(), &now.name);
            let txn = Txn::new().expect(&key, Expect::Modified(at)).expect(&name, Expect::Modified(now_at));
            let txn = txn.put(&key, &encode_intent(&recorded)).put(&name, &encode_volume(&moves));
            if self.host.commit(&txn, || self.has(&recorded))? {
                // Its name and hosts may have changed since the label was made.
                if (&now.name, &now.hosts) != (&volume.name, &volume.hosts) {
                    let label = Label::of(&moves, &self.record, &to.domain, moving.index);
                    let label = Label { joining: true, ..label };
                    let written = self.host.spaces.relabel(&to.address, made, &label);
                    written.map_err(|e| failed("write a label", to, e))?;
                }
                return Ok(Underway { intent: recorded, volume: moves, moving, to: to.clone() });
            }
        }
        // No record names it.
        if let Err(e) = self.host.spaces.remove(&to.address, made) {
            tracing::warn!("a namespace at {} is left to a recovery: {e}", shown(&to.address));
        }
        Err(self.overtaken(volume))
    }

    /// The places of a volume's members, as far as they are known.
    pub(crate) fn member_places(&self, volume: &VolumeRecord) -> Result<Vec<Option<MemberAt>>> {
        let targets = self.targets()?;
        let place =
            |member: &Member| Some((targets.get(&member.target)?.0.address.clone(), member.namespace?));
        Ok(volume.all_members().map(place).collect())
    }

    /// Lets the array have the member at the new place.
    fn change_array(
        &self,
        underway: &Underway,
        place: &MemberAt,
        array: &dyn RunArray,
        run: &mut MoveRun<'_>,
    ) -> Result<()> {
        let Underway { volume, moving, to, .. } = underway;
        let mut places = self.member_places(&VolumeRecord { moving: None, ..volume.clone() })?;
        let from = places.get(moving.index).cloned().flatten();
        let step = MoveStep {
            volume: volume.name.clone(),
            index: moving.index,
            from: from.as_ref().map(|(address, _)| address.clone()),
            to: to.address.clone(),
            bytes: volume.shape.member_size,
        };
        places.push(Some(place.clone()));
        if run.limit.is_some() {
            array.limit(run.limit)?;
        }
        let show = &mut *run.show;
        let mut change = |change: ArrayChange| array.change(&change, &mut |progress| show(&step, progress));
        let changed = loop {
            let view = array.look(&places)?;
            let is_there = view.roles.last().copied().unwrap_or(Role::None);
            let was = view.roles.get(moving.index).copied().unwrap_or(Role::None);
            match is_there {
                Role::Active(_) => break Ok(()),
                Role::Rebuilding(index) => break change(ArrayChange::Rebuilt(index)),
                // It was lost again while it was rebuilt: it may return.
                Role::Missing(index) => break change(ArrayChange::Rebuilt(index)),
                Role::Spare => break Ok(()),
                Role::None => {}
            }
            match was {
                Role::Active(index) => match change(ArrayChange::Move(index, place.clone())) {
                    Ok(()) => break Ok(()),
                    // The member may have been lost meanwhile: then it is rebuilt.
                    Err(e) => match array.look(&places)?.roles.get(moving.index) {
                        Some(Role::Missing(_)) => {}
                        _ => break Err(e),
                    },
                },
                Role::Rebuilding(index) => {
                    if let Err(e) = change(ArrayChange::Rebuilt(index)) {
                        break Err(e);
                    }
                }
                Role::Missing(index) => break change(ArrayChange::Replace(index, place.clone())),
                // First, so that the array never has a spare that is gone.
                Role::Spare => {
                    let Some(from) = from.clone() else { break Ok(()) };
                    if let Err(e) = change(ArrayChange::RemoveSpare(from)) {
                        break Err(e);
                    }
                }
                Role::None => match lost_place(&view, moving.index) {
                    Some(index) => break change(ArrayChange::Replace(index, place.clone())),
                    None if view.missing.is_empty() => break change(ArrayChange::AddSpare(place.clone())),
                    None => {
                        let why = format!(
                            "members {:?} of its array are missing, and it is not known which one was at {}: open the \
                             volume where it was used last, and move it there",
                            view.missing,
                            step.from.as_deref().map_or_else(|| "the target that is gone".to_owned(), shown)
                        );
                        return Err(self.not_moved(volume, why));
                    }
                },
            }
        };
        if run.limit.is_some() {
            array.limit(None)?;
        }
        Ok(changed?)
    }

    /// The member is at the new place: the record says so, and the former namespace is removed.
    fn publish_move(&self, intent: &Intent) -> Result<(VolumeRecord, Removed)> {
        let key = keys::intent(self.uuid(), &intent.uuid.to_string());
        let owner = keys::owner(self.uuid(), intent.uuid);
        for _ in 0..TRIES {
            let Some(at) = self.current(intent)? else { return Err(self.overtaken(&intent.volume)) };
            let Some((volume, volume_at)) = self.by_uuid(intent.volume.uuid)? else {
                return Err(self.not_found("volume", &intent.volume.name));
            };
            let Some(Moving { index, to }) = volume.moving.clone() else {
                return Err(self.overtaken(&volume));
            };
            let mut published = VolumeRecord { moving: None, ..volume.clone() };
            let from = std::mem::replace(&mut published.members[index], to);
            let name = keys::volume(self.uuid(), &volume.name);
            let txn =
                Txn::new().expect(&key, Expect::Modified(at)).expect(&name, Expect::Modified(volume_at));
            let txn = txn.put(&name, &encode_volume(&published));
            let rest = Intent {
                kind: IntentKind::Remove,
                volume: VolumeRecord { members: vec![from.clone()], ..published.clone() },
                ..intent.clone()
            };
            let is_left = !from.target.is_empty() && from.namespace.is_some();
            let txn = match is_left {
                true => txn.put(&key, &encode_intent(&rest)),
                false => txn.delete(&key).delete(&owner),
            };
            let is_made = || match is_left {
                true => self.has(&rest),
                false => Ok(self.host.catalog.get(&key)?.is_none()),
            };
            if self.host.commit(&txn, is_made)? {
                let removed = if is_left { self.remove_members(&rest)? } else { Removed::Whole };
                return Ok((published, removed));
            }
        }
        Err(Error::Contended(self.record.name.clone()))
    }

    /// The label of a member that has moved to a target says so, and its hosts are those of the volume. This host
    /// may not be one of them, so it has ended its use of the array. If that fails, an import finds out.
    fn settle_label(&self, volume: Uuid, index: usize, to: &str) {
        let written = || {
            let Some((volume, _)) = self.by_uuid(volume)?.filter(|(volume, _)| volume.moving.is_none())
            else {
                return Ok(());
            };
            let member = volume.members.get(index).filter(|member| member.target == to);
            let namespace = member.and_then(|member| member.namespace);
            let (Some(namespace), Some((target, _))) = (namespace, self.targets()?.remove(to)) else {
                return Ok(());
            };
            let label = Label::of(&volume, &self.record, &target.domain, index);
            let written = self.host.spaces.relabel(&target.address, namespace, &label);
            written.map_err(|e| failed("write a label", &target, e))
        };
        if let Err(e) = written() {
            tracing::warn!("volume {volume}: the label of member {index} is old: {e}");
        }
    }

    /// The member stays where it was: the new namespace is removed, of which the array knows nothing.
    fn undo_move(&self, intent: &Intent) -> Result<Removed> {
        let key = keys::intent(self.uuid(), &intent.uuid.to_string());
        let owner = keys::owner(self.uuid(), intent.uuid);
        let is_recorded = intent.volume.members.iter().all(|member| member.namespace.is_some());
        if !is_recorded && let Err(why) = self.remove_joining(intent) {
            return Ok(Removed::Later(vec![why.to_string()]));
        }
        for _ in 0..TRIES {
            let Some(at) = self.current(intent)? else { return Ok(Removed::Whole) };
            let mut txn = Txn::new().expect(&key, Expect::Modified(at));
            if let Some((volume, volume_at)) = self.by_uuid(intent.volume.uuid)? {
                let name = keys::volume(self.uuid(), &volume.name);
                let stays = VolumeRecord { moving: None, ..volume };
                txn = txn.expect(&name, Expect::Modified(volume_at)).put(&name, &encode_volume(&stays));
            }
            let rest = Intent { kind: IntentKind::Remove, ..intent.clone() };
            if is_recorded {
                txn = txn.put(&key, &encode_intent(&rest));
            } else {
                let (mut usage, usage_at): (Usage, Revision) = self.usage()?;
                usage.subtract(&intent.volume, |_| true);
                let usage_key = keys::usage(self.uuid());
                txn = txn.expect(&usage_key, Expect::Modified(usage_at)).put(&usage_key, &encode(&usage));
                txn = txn.delete(&key).delete(&owner);
            }
            let is_made = || match is_recorded {
                true => self.has(&rest),
                false => Ok(self.host.catalog.get(&key)?.is_none()),
            };
            if self.host.commit(&txn, is_made)? {
                return if is_recorded { self.remove_members(&rest) } else { Ok(Removed::Whole) };
            }
        }
        Err(Error::Contended(self.record.name.clone()))
    }

    /// Removes what was made for a move and not recorded.
    fn remove_joining(&self, intent: &Intent) -> Result<()> {
        let targets = self.targets()?;
        // A member that has moved earlier may have such a label still.
        let volume = self.by_uuid(intent.volume.uuid)?.map(|(volume, _)| volume);
        let is_named = |namespace: NamespaceId| {
            let mut members = volume.iter().flat_map(VolumeRecord::all_members);
            members.any(|member| member.namespace.is_some_and(|named| named.uuid == namespace.uuid))
        };
        for member in &intent.volume.members {
            let Some((target, _)) = targets.get(&member.target) else { continue };
            let listed = self.space(target).and_then(|_| self.host.spaces.list(&target.address));
            for namespace in listed.map_err(|e| failed("look", target, e))? {
                let Some(Ok(label)) = namespace.label else { continue };
                if label.volume == intent.volume.uuid && label.joining && !is_named(namespace.id) {
                    let removed = self.host.spaces.remove(&target.address, namespace.id);
                    removed.map_err(|e| failed("remove a namespace", target, e))?;
                }
            }
        }
        Ok(())
    }

    /// Ends the move of a lost host, which this one owns by now, as far as that can be told without its
    /// array: see the module.
    pub(crate) fn finish_move(&self, intent: &Intent) -> Result<Removed> {
        let Some(underway) = self.underway(intent)? else { return self.undo_move(intent) };
        let Some(place) = underway.place() else { return self.undo_move(intent) };
        let places: Vec<MemberAt> = self.member_places(&underway.volume)?.into_iter().flatten().collect();
        let waits = |why: String| {
            let (pool, volume, index) = (&self.record.name, &underway.volume.name, underway.moving.index);
            Removed::Later(vec![format!("member {index} of volume {pool}/{volume} moves: {why}")])
        };
        if underway.volume.shape.layout.is_files() {
            let why = format!(
                "'longhaul volume repair {}/{}' continues that",
                self.record.name, underway.volume.name
            );
            return Ok(waits(why));
        }
        match self.host.spaces.taken(&places, &place) {
            Err(e) => return Ok(waits(e.to_string())),
            Ok(Taken::InUse) => {
                let why = format!(
                    "its array is in use, and is asked by 'longhaul pool recover {}' on that host",
                    self.record.name
                );
                return Ok(waits(why));
            }
            Ok(Taken::Yes) => return self.publish_left(intent, &underway),
            Ok(Taken::No) => {}
        }
        // A host that is slow must not let the array have it after all: no host reaches it from here on.
        let masked = VolumeRecord { hosts: Vec::new(), ..underway.volume.clone() };
        let domain = &underway.to.domain;
        let label = Label::of(&masked, &self.record, domain, underway.moving.index);
        let label = Label { joining: true, ..label };
        if let Err(e) = self.host.spaces.relabel(&place.0, place.1, &label) {
            return Ok(waits(e.to_string()));
        }
        match self.host.spaces.taken(&places, &place) {
            Ok(Taken::No) => self.undo_move(intent),
            Ok(Taken::Yes) => self.publish_left(intent, &underway),
            Ok(Taken::InUse) => {
                let label = Label { hosts: underway.volume.hosts.clone(), ..label };
                let given_back = self.host.spaces.relabel(&place.0, place.1, &label);
                Ok(waits(
                    given_back.err().map_or_else(|| "a host uses its array".to_owned(), |e| e.to_string()),
                ))
            }
            Err(e) => Ok(waits(e.to_string())),
        }
    }

    /// Publishes the move of a lost host.
    fn publish_left(&self, intent: &Intent, underway: &Underway) -> Result<Removed> {
        let (volume, removed) = self.publish_move(intent)?;
        self.settle_label(volume.uuid, underway.moving.index, &underway.moving.to.target);
        Ok(removed)
    }

    /// Continues the moves that lost hosts have left, with their arrays. What cannot be continued now is in
    /// the result.
    ///
    /// # Errors
    /// The catalog cannot be read or changed.
    pub fn resume_moves(&self, run: &mut MoveRun<'_>) -> Result<Vec<String>> {
        let mut waiting = Vec::new();
        for (intent, at) in self.intents()? {
            let owner = keys::owner(self.uuid(), intent.uuid);
            if intent.kind != IntentKind::Move || self.host.catalog.get(&owner)?.is_some() {
                continue;
            }
            let Some(underway) = self.underway(&intent)? else { continue };
            let array = match run.arrays.open(self, &underway.volume) {
                Ok(array) => array,
                Err(e) => {
                    waiting.push(format!("volume {}: {e}", underway.volume.name));
                    continue;
                }
            };
            let claim = Claim::new(&self.host.catalog, self.host.ttl)?;
            let moved = match self.own(&intent, at, &claim)? {
                Some(owned) => self.carry_move(owned, &*array, run),
                None => Err(self.overtaken(&underway.volume)),
            };
            claim.release();
            if let Err(e) = array.end() {
                waiting.push(format!("volume {}: {e}", underway.volume.name));
            }
            self.settle_label(underway.volume.uuid, underway.moving.index, &underway.moving.to.target);
            match moved {
                Ok((_, Removed::Whole)) => {}
                Ok((_, Removed::Later(why))) => waiting.extend(why),
                Err(e @ Error::Catalog(_)) => return Err(e),
                Err(e) => waiting.push(e.to_string()),
            }
        }
        Ok(waiting)
    }

    /// The changes that end what is done to a volume as it is removed, and where a member of it moves to:
    /// that is removed with the others.
    pub(crate) fn without_move(&self, volume: &mut VolumeRecord, txn: Txn) -> Result<Txn> {
        let Some(moving) = volume.moving.take() else { return Ok(txn) };
        volume.members.push(moving.to);
        let is_it = |(intent, _): &(Intent, Revision)| {
            intent.kind == IntentKind::Move && intent.volume.uuid == volume.uuid
        };
        Ok(match self.intents()?.into_iter().find(is_it) {
            Some((intent, at)) => {
                let key = keys::intent(self.uuid(), &intent.uuid.to_string());
                let owner = keys::owner(self.uuid(), intent.uuid);
                txn.expect(&key, Expect::Modified(at)).delete(&key).delete(&owner)
            }
            None => txn,
        })
    }
}

/// The number of the missing member that was on a namespace which the array does not reach: its own, unless
/// a spare has that place.
fn lost_place(view: &ArrayView, index: usize) -> Option<usize> {
    match &view.missing[..] {
        missing if missing.contains(&index) => Some(index),
        [only] => Some(*only),
        _ => None,
    }
}
