//! The arrays of volumes in memory, as hosts run them: on which namespaces their members are, and how many of
//! the array's writes each has.
//!
//! Invariants:
//! - one host runs an array at a time: what a host that has lost it asks for has no effect, as members refuse
//!   the writes of all hosts but one (`crates/array/tests/reservations.rs` shows that of arrays);
//! - an acknowledged write is on all members that were reached, and the others can be done without.

use super::site::{CallEnd, HostLine, Late, Site, SiteState};
use longhaul_device::{Error as DeviceError, ErrorKind, Result as DeviceResult};
use longhaul_pool::{
    ArrayChange, ArrayView, Arrays, MemberAt, MoveProgress, NamespaceId, Pool, Role, RunArray, SpaceError,
    Taken, VolumeRecord,
};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// An array.
#[derive(Clone, Debug, Default)]
pub(super) struct SimArray {
    redundancy: usize,
    /// The namespaces of its members, by their number, and of its spares.
    pub(super) members: Vec<Uuid>,
    pub(super) spares: Vec<Uuid>,
    /// The last write that was acknowledged.
    written: u64,
    /// Times that a host began or ended its use of it: requests of an earlier use have no effect.
    run: u64,
    /// The host that uses it, or did so when it crashed; the judge has none.
    user: Option<Option<usize>>,
}

impl SimArray {
    pub(super) fn new(redundancy: usize, width: usize, namespaces: &[Uuid]) -> SimArray {
        let (members, spares) = namespaces.split_at(width);
        SimArray { redundancy, members: members.to_vec(), spares: spares.to_vec(), ..SimArray::default() }
    }

    /// Whether so many members have all of its content that the others can be done without.
    fn is_enough(&self, current: usize) -> bool {
        current + self.redundancy >= self.members.len()
    }
}

fn failed(why: &str) -> DeviceError {
    DeviceError::new(ErrorKind::Failed, why)
}

impl SiteState {
    /// Whether a namespace is at a target that answers.
    fn is_reached(&self, namespace: Uuid) -> bool {
        self.targets.values().any(|target| target.down == 0 && target.namespaces.contains_key(&namespace))
    }

    /// Whether a namespace is there, and has all writes of an array.
    fn is_current(&self, array: &SimArray, namespace: Uuid) -> bool {
        let is_there = self.targets.values().any(|target| target.namespaces.contains_key(&namespace));
        is_there && self.content.get(&namespace).copied().unwrap_or(0) == array.written
    }

    /// Rebuilds the members that are reached, if so many are current. Of the others whether these are enough.
    fn rebuild(&mut self, array: &SimArray) -> bool {
        let reached: Vec<Uuid> =
            array.members.iter().copied().filter(|member| self.is_reached(*member)).collect();
        let current = reached.iter().filter(|member| self.is_current(array, **member)).count();
        if !array.is_enough(current) {
            return false;
        }
        for member in reached {
            self.content.insert(member, array.written);
        }
        true
    }

    /// What is wrong with the array of a volume once everything is whole.
    pub(super) fn check_array(&self, volume: &VolumeRecord) -> Result<(), String> {
        let Some(array) = volume.array.and_then(|array| self.arrays.get(&array)) else {
            return Err("has no array".to_owned());
        };
        let current = array.members.iter().filter(|member| self.is_current(array, **member)).count();
        if !array.is_enough(current) {
            return Err(format!("has lost writes that were acknowledged: {array:?}"));
        }
        let places =
            volume.members.iter().filter_map(|member| member.namespace).map(|namespace| namespace.uuid);
        let places: Vec<Uuid> = places.collect();
        let (members, spares) = places.split_at(array.members.len().min(places.len()));
        // A spare whose move has failed is missing until the volume is repaired. One that was gone before it
        // could leave the array stays in its list, where no device answers to it.
        let is_known = |spare: &Uuid| spares.contains(spare) || !self.is_reached(*spare);
        if members != array.members || !array.spares.iter().all(is_known) {
            return Err(format!("has other members than its array: {array:?}"));
        }
        Ok(())
    }

    /// The array of a volume has a member on this namespace.
    pub(super) fn is_member(&self, volume: &VolumeRecord, namespace: Uuid) -> bool {
        let array = volume.array.and_then(|array| self.arrays.get(&array));
        array.is_some_and(|array| array.members.contains(&namespace))
    }

    /// See [`Spaces::taken`](longhaul_pool::Spaces::taken).
    pub(super) fn taken(
        &self,
        members: &[(String, NamespaceId)],
        place: &(String, NamespaceId),
    ) -> Result<Taken, SpaceError> {
        let reached = members.iter().filter(|(_, id)| self.is_reached(id.uuid));
        let array = self.arrays.values().find(|array| {
            reached.clone().any(|(_, id)| array.members.contains(&id.uuid) || array.spares.contains(&id.uuid))
        });
        let Some(array) = array else {
            return Err(SpaceError::Unreachable("no member answers".to_owned()));
        };
        let has = array.members.contains(&place.1.uuid) || array.spares.contains(&place.1.uuid);
        Ok(match (array.user, has) {
            (Some(_), _) => Taken::InUse,
            (None, true) => Taken::Yes,
            (None, false) => Taken::No,
        })
    }

    /// Changes an array, if the use that asks for it has not ended.
    pub(super) fn change_array(&mut self, id: Uuid, run: u64, change: &ArrayChange) -> DeviceResult<()> {
        let Some(mut array) = self.arrays.get(&id).cloned().filter(|array| array.run == run) else {
            return Err(failed("another host has taken the array over"));
        };
        let is_whole = self.rebuild(&array);
        match change {
            ArrayChange::Move(index, place) => {
                let old = array.members[*index];
                if !self.is_reached(old) || !self.is_current(&array, old) {
                    return Err(failed("the member was lost meanwhile"));
                }
                self.enlist(id, place, array.written)?;
                array.members[*index] = place.1.uuid;
            }
            ArrayChange::Replace(index, place) => {
                let others = array.members.iter().enumerate().filter(|(other, _)| other != index);
                let current =
                    others.filter(|(_, uuid)| self.is_reached(**uuid) && self.is_current(&array, **uuid));
                if !array.is_enough(current.count()) {
                    return Err(failed("the array needs that member"));
                }
                self.enlist(id, place, array.written)?;
                array.members[*index] = place.1.uuid;
            }
            ArrayChange::Rebuilt(index) => {
                return match is_whole && self.is_current(&array, array.members[*index]) {
                    true => Ok(()),
                    false => Err(failed("the member stays offline")),
                };
            }
            ArrayChange::AddSpare(place) => {
                self.enlist(id, place, array.written)?;
                array.spares.push(place.1.uuid);
            }
            ArrayChange::RemoveSpare(place) => array.spares.retain(|spare| *spare != place.1.uuid),
        }
        self.arrays.insert(id, array);
        Ok(())
    }

    /// Writes a new member, which has to be there, and for a host.
    fn enlist(&mut self, array: Uuid, place: &MemberAt, written: u64) -> DeviceResult<()> {
        let target = self.target(&place.0).map_err(|e| DeviceError::new(ErrorKind::Failed, e))?;
        match target.namespaces.get_mut(&place.1.uuid) {
            Some(stored) if !stored.label.hosts.is_empty() => stored.array = Some(array),
            _ => return Err(failed("no such namespace")),
        }
        self.content.insert(place.1.uuid, written);
        Ok(())
    }
}

/// The arrays of volumes, as a host reaches them; without a host, as the judge does.
pub(super) struct SimArrays {
    pub(super) site: Arc<Site>,
    pub(super) host: Option<usize>,
}

impl SimArrays {
    /// A request of this host to its array. One whose answer is lost takes effect, or does so later.
    fn call<T>(
        &self,
        name: std::fmt::Arguments<'_>,
        call: impl FnOnce(&mut SiteState) -> DeviceResult<T>,
        late: Option<Late>,
    ) -> DeviceResult<T> {
        let Some(host) = self.host else { return call(&mut self.site.lock()) };
        let end = self.site.step(host, false, name);
        let mut state = self.site.lock();
        match end {
            CallEnd::Done => return call(&mut state),
            CallEnd::AnswerLost => drop(call(&mut state)),
            CallEnd::Late => state.late.extend(late),
            CallEnd::Unreachable | CallEnd::Dead => {}
        }
        Err(failed("no answer"))
    }

    fn begin(&self, volume: &VolumeRecord) -> DeviceResult<SimRun<'_>> {
        let Some(id) = volume.array else { return Err(failed("it has no array")) };
        let moving = volume.moving.iter().map(|moving| &moving.to);
        let known = volume.members.iter().chain(moving).filter_map(|member| Some(member.namespace?.uuid));
        let known: Vec<Uuid> = known.collect();
        let run = self.call(
            format_args!("open the array of {}", volume.name),
            |state| {
                let Some(array) = state.arrays.get(&id).cloned() else { return Err(failed("no such array")) };
                let lives = |line: &HostLine| !line.is_dead && !line.is_paused && line.no_targets == 0;
                if let Some(Some(user)) = array.user
                    && self.host != Some(user)
                    && lives(&state.hosts[user])
                {
                    return Err(DeviceError::new(ErrorKind::Refused, "another host uses it"));
                }
                let has = |uuid: &&Uuid| {
                    known.contains(uuid) && state.is_reached(**uuid) && state.is_current(&array, **uuid)
                };
                if !array.is_enough(array.members.iter().filter(has).count()) {
                    return Err(DeviceError::new(ErrorKind::Unreachable, "too few members"));
                }
                let array = state.arrays.entry(id).or_default();
                array.run += 1;
                array.user = Some(self.host);
                Ok(array.run)
            },
            None,
        )?;
        Ok(SimRun { arrays: self, id, run })
    }

    /// Uses a volume for some writes; how many were acknowledged.
    pub(super) fn write(&self, volume: &VolumeRecord, writes: u64) -> u64 {
        let Ok(run) = self.begin(volume) else { return 0 };
        let acknowledged = (0..writes).filter(|_| run.write().is_ok()).count() as u64;
        drop(Box::new(run).end());
        acknowledged
    }
}

impl Arrays for SimArrays {
    fn open<'a>(&'a self, _pool: &Pool, volume: &VolumeRecord) -> DeviceResult<Box<dyn RunArray + 'a>> {
        Ok(Box::new(self.begin(volume)?))
    }
}

/// The use of an array by a host.
struct SimRun<'a> {
    arrays: &'a SimArrays,
    id: Uuid,
    run: u64,
}

impl SimRun<'_> {
    fn call<T>(
        &self,
        name: std::fmt::Arguments<'_>,
        call: impl FnOnce(&mut SiteState, SimArray) -> DeviceResult<T>,
    ) -> DeviceResult<T> {
        let own = |state: &mut SiteState| match state.arrays.get(&self.id).cloned() {
            Some(array) if array.run == self.run => call(state, array),
            _ => Err(failed("another host has taken the array over")),
        };
        self.arrays.call(name, own, None)
    }

    fn write(&self) -> DeviceResult<()> {
        self.call(format_args!("write"), |state, array| {
            if !state.rebuild(&array) {
                return Err(failed("too few members"));
            }
            let written = array.written + 1;
            for member in
                array.members.iter().filter(|member| state.is_reached(**member)).copied().collect::<Vec<_>>()
            {
                state.content.insert(member, written);
            }
            state.arrays.entry(self.id).or_default().written = written;
            state.counts.writes += 1;
            Ok(())
        })
    }
}

impl RunArray for SimRun<'_> {
    fn look(&self, places: &[Option<MemberAt>]) -> DeviceResult<ArrayView> {
        self.call(format_args!("look at the array"), |state, array| {
            state.rebuild(&array);
            let is_active = |uuid: Uuid| state.is_reached(uuid) && state.is_current(&array, uuid);
            let role = |place: &Option<MemberAt>| {
                let Some(uuid) = place.as_ref().map(|(_, id)| id.uuid) else { return Role::None };
                match array.members.iter().position(|member| *member == uuid) {
                    Some(index) if is_active(uuid) => Role::Active(index),
                    Some(index) => Role::Missing(index),
                    None if array.spares.contains(&uuid) && state.is_reached(uuid) => Role::Spare,
                    None => Role::None,
                }
            };
            let is_known = |uuid: &Uuid| places.iter().flatten().any(|(_, id)| id.uuid == *uuid);
            let missing =
                array.members.iter().enumerate().filter(|(_, uuid)| !is_active(**uuid) && !is_known(uuid));
            let missing = missing.map(|(index, _)| index).collect();
            Ok(ArrayView { roles: places.iter().map(role).collect(), missing })
        })
    }

    fn limit(&self, _rate: Option<u64>) -> DeviceResult<()> {
        Ok(())
    }

    fn change(&self, change: &ArrayChange, _show: &mut dyn FnMut(&MoveProgress)) -> DeviceResult<()> {
        let late = Late::Change { array: self.id, run: self.run, change: change.clone() };
        let change_it = |state: &mut SiteState| {
            state.change_array(self.id, self.run, change)?;
            state.counts.moved += 1;
            Ok(())
        };
        self.arrays.call(format_args!("change the array: {change:?}"), change_it, Some(late))
    }

    fn cancel(&self, place: &MemberAt) -> DeviceResult<bool> {
        self.call(format_args!("give up a move"), |state, array| {
            // The process that runs it answers one request after the other.
            state.late.retain(|late| !matches!(late, Late::Change { array, .. } if *array == self.id));
            Ok(array.members.contains(&place.1.uuid) || array.spares.contains(&place.1.uuid))
        })
    }

    fn pause(&self, _limit: Duration) -> DeviceResult<u64> {
        Err(failed("no snapshots are made"))
    }

    fn resume(&self, _pause: u64) -> DeviceResult<bool> {
        Err(failed("no snapshots are made"))
    }

    fn end(self: Box<Self>) -> DeviceResult<()> {
        self.call(format_args!("end the use of the array"), |state, _| {
            let array = state.arrays.entry(self.id).or_default();
            array.run += 1;
            array.user = None;
            Ok(())
        })
    }
}
