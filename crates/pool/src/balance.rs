//! Which members move where: to empty a target, to even out the targets, and to replace what is lost.
//!
//! A member moves only to where a failure domain has as many members of its volume as the fullest one has
//! now, at most: the user's choice of members in one domain is not recorded, and is kept so.

use crate::error::{Error, Result};
use crate::moving::{Arrays, MoveStep, Role};
use crate::place::{Candidate, Need, Shortage, place_beside};
use crate::pool::Pool;
use crate::record::{IntentKind, TargetRecord, VolumeRecord, VolumeState};
use crate::shape::VolumeLayout;
use crate::spaces::shown;
use std::collections::BTreeMap;

/// Targets are even if their shares of promised bytes differ by less than this, or no move brings them
/// closer.
const EVEN: f64 = 0.01;

/// A move that was planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedMove {
    /// What moves, from where to where.
    pub step: MoveStep,
    /// Identity of the target that it moves to.
    pub to: String,
}

/// How targets are to be emptied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The targets.
    pub targets: Vec<TargetRecord>,
    /// The members that move.
    pub moves: Vec<PlannedMove>,
    /// Why others cannot.
    pub stuck: Vec<String>,
}

/// The targets and volumes of a pool as they are, or would be after some moves.
struct Outlook {
    targets: BTreeMap<String, TargetRecord>,
    candidates: Vec<Candidate>,
    unreachable: Vec<(String, String)>,
    /// Promised bytes by target.
    used: BTreeMap<String, u64>,
    volumes: Vec<VolumeRecord>,
}

impl Outlook {
    fn domain(&self, target: &str) -> String {
        self.targets.get(target).map_or_else(String::new, |target| target.domain.clone())
    }

    fn address(&self, target: &str) -> Option<String> {
        self.targets.get(target).map(|target| target.address.clone())
    }

    /// Bytes promised at a target, as a share of its capacity, with `more` there.
    fn share(&self, target: &str, more: i128) -> f64 {
        let used = i128::from(self.used.get(target).copied().unwrap_or(0)) + more;
        let capacity = self.targets.get(target).map_or(1, |target| target.capacity.max(1));
        used as f64 / capacity as f64
    }

    /// Where a member may move to, among the candidates that `may` allows.
    fn goal(
        &self,
        volume: &VolumeRecord,
        index: usize,
        may: impl Fn(&Candidate) -> bool,
    ) -> std::result::Result<String, Shortage> {
        let mut domains: BTreeMap<String, usize> = BTreeMap::new();
        for member in volume.members.iter().filter(|member| !member.target.is_empty()) {
            *domains.entry(self.domain(&member.target)).or_default() += 1;
        }
        let others = volume.members.iter().enumerate().filter(|(other, _)| *other != index);
        let others: Vec<(String, String)> =
            others.map(|(_, member)| (member.target.clone(), self.domain(&member.target))).collect();
        let per_domain = domains.into_values().max().unwrap_or(1);
        let need = Need { members: 1, size: volume.shape.member_size, per_domain };
        let suits = |one: &&Candidate| may(one) && (!one.is_whole || volume.shape.layout.is_files());
        let candidates: Vec<Candidate> = self.candidates.iter().filter(suits).cloned().collect();
        let placed = place_beside(&candidates, need, &others).map_err(|mut shortage| {
            shortage.unreachable.clone_from(&self.unreachable);
            shortage
        })?;
        placed.into_iter().next().ok_or(Shortage {
            need,
            possible: 0,
            domains: BTreeMap::new(),
            unreachable: self.unreachable.clone(),
        })
    }

    /// Plans the move of a member of the volume at `at`, and goes on as if it had been made.
    fn plan(&mut self, at: usize, index: usize, to: String) -> PlannedMove {
        let size = self.volumes[at].shape.member_size;
        let from = std::mem::replace(&mut self.volumes[at].members[index].target, to.clone());
        let step = MoveStep {
            volume: self.volumes[at].name.clone(),
            index,
            from: self.address(&from),
            to: self.address(&to).unwrap_or_default(),
            bytes: size,
        };
        for candidate in &mut self.candidates {
            if candidate.id == to {
                candidate.free = if candidate.is_whole { 0 } else { candidate.free.saturating_sub(size) };
            } else if candidate.id == from {
                candidate.free = candidate.free.saturating_add(size);
            }
        }
        *self.used.entry(to.clone()).or_default() += size;
        if let Some(used) = self.used.get_mut(&from) {
            *used = used.saturating_sub(size);
        }
        PlannedMove { step, to }
    }

    /// The next move that makes the targets more even, if there is one: from the target with the largest
    /// share that has a member which may leave.
    fn next_to_balance(&self) -> Option<(usize, usize, String)> {
        let mut from: Vec<&Candidate> = self.candidates.iter().collect();
        let share = |one: &Candidate| self.share(&one.id, 0);
        from.sort_by(|a, b| share(b).total_cmp(&share(a)).then_with(|| a.id.cmp(&b.id)));
        for full in &from {
            let before = share(full);
            for (at, volume) in self.volumes.iter().enumerate() {
                let size = i128::from(volume.shape.member_size);
                for (index, member) in volume.members.iter().enumerate() {
                    if member.target != full.id || member.namespace.is_none() || !is_movable(volume) {
                        continue;
                    }
                    // The larger share of the two targets falls.
                    let improves = |one: &Candidate| {
                        let after = self.share(&one.id, size).max(self.share(&full.id, -size));
                        one.id != full.id && after + EVEN < before
                    };
                    let emptiest = from.iter().rev().filter(|one| improves(one));
                    for one in emptiest {
                        if let Ok(to) = self.goal(volume, index, |other| other.id == one.id) {
                            return Some((at, index, to));
                        }
                    }
                }
            }
        }
        None
    }
}

fn is_movable(volume: &VolumeRecord) -> bool {
    let layout = volume.shape.layout;
    volume.state == VolumeState::Ready && (layout.has_array() || layout.is_files()) && volume.moving.is_none()
}

impl Pool {
    fn outlook(&self) -> Result<Outlook> {
        let asked = self.ask()?;
        let (usage, _) = self.usage()?;
        let (candidates, unreachable) = self.candidates(&asked, &usage);
        let targets = asked.into_iter().map(|(target, ..)| (target.id.clone(), target)).collect();
        Ok(Outlook { targets, candidates, unreachable, used: usage.targets, volumes: self.volumes()? })
    }

    /// How the members at some targets, named by address or identity, can move to others. Those of a target
    /// that is gone are rebuilt there.
    ///
    /// # Errors
    /// The pool has no such target, or the catalog cannot be read.
    pub fn plan_removal(&self, targets: &[String]) -> Result<Removal> {
        let targets = targets.iter().map(|target| Ok(self.find_target(target)?.0));
        let targets = targets.collect::<Result<Vec<TargetRecord>>>()?;
        let leaves = |id: &str| targets.iter().any(|target| target.id == id);
        let mut outlook = self.outlook()?;
        let (mut moves, mut stuck) = (Vec::new(), Vec::new());
        for at in 0..outlook.volumes.len() {
            for index in 0..outlook.volumes[at].members.len() {
                let volume = &outlook.volumes[at];
                if !leaves(&volume.members[index].target) {
                    continue;
                }
                let name = format!("{}/{}", self.record.name, volume.name);
                if !is_movable(volume) {
                    stuck.push(match (volume.state, volume.shape.layout) {
                        (VolumeState::Creating, _) => format!("volume {name} is being made: wait for that"),
                        (_, VolumeLayout::Single) => format!(
                            "volume {name} is one namespace there, without an array that could copy it: copy it to \
                             another volume, and remove it"
                        ),
                        _ => format!(
                            "a member of volume {name} moves already: wait for that, or run 'longhaul pool recover \
                             {}'",
                            self.record.name
                        ),
                    });
                    continue;
                }
                match outlook.goal(volume, index, |one| !leaves(&one.id)) {
                    Ok(to) => moves.push(outlook.plan(at, index, to)),
                    Err(shortage) => {
                        stuck.push(Error::NotMoved { volume: name, why: shortage.to_string() }.to_string());
                    }
                }
            }
        }
        Ok(Removal { targets, moves, stuck })
    }

    /// Moves that even out the shares of the targets that are promised, each the best one after the others.
    /// None if they are even.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn plan_balance(&self) -> Result<Vec<PlannedMove>> {
        let mut outlook = self.outlook()?;
        let members: usize = outlook.volumes.iter().map(|volume| volume.members.len()).sum();
        let mut moves = Vec::new();
        while moves.len() < members
            && let Some((at, index, to)) = outlook.next_to_balance()
        {
            moves.push(outlook.plan(at, index, to));
        }
        Ok(moves)
    }

    /// New places for the members of a volume that its array has lost, and for its spares that are used up.
    ///
    /// # Errors
    /// [`Error::NotMoved`] for a volume that cannot be repaired, [`Error::Shortage`] if there is no place;
    /// those of reaching its array.
    pub fn plan_repair(&self, name: &str, arrays: &dyn Arrays) -> Result<Vec<PlannedMove>> {
        let (volume, _) = self.find(name)?;
        self.check_movable(&volume, 0)?;
        let array = arrays.open(self, &volume)?;
        let looked = array.look(&self.member_places(&volume)?);
        array.end()?;
        let roles = looked?.roles;
        let mut outlook = self.outlook()?;
        let Some(at) = outlook.volumes.iter().position(|one| one.uuid == volume.uuid) else {
            return Err(self.not_found("volume", name));
        };
        let mut moves = Vec::new();
        for (index, role) in roles.into_iter().enumerate().take(volume.members.len()) {
            if matches!(role, Role::Missing(_) | Role::None) {
                let to = outlook.goal(&outlook.volumes[at], index, |_| true).map_err(Error::Shortage)?;
                moves.push(outlook.plan(at, index, to));
            }
        }
        Ok(moves)
    }

    /// Forgets the namespaces that wait for their removal at a target which is gone for good. If it comes
    /// back into the pool, a recovery removes them there.
    ///
    /// # Errors
    /// The pool has no such target, or the catalog cannot be changed.
    pub fn forget_namespaces(&self, target: &str) -> Result<usize> {
        let (target, _) = self.find_target(target)?;
        let mut forgotten = 0;
        for (intent, _) in self.intents()? {
            if intent.kind != IntentKind::Remove {
                continue;
            }
            let mut left = intent.clone();
            left.volume.members.retain(|member| member.target != target.id);
            let gone = intent.volume.members.len() - left.volume.members.len();
            if gone > 0 {
                self.record_removal(&intent, &left, |id| id == target.id)?;
                forgotten += gone;
                tracing::info!("target {}: {gone} namespaces are forgotten", shown(&target.address));
            }
        }
        Ok(forgotten)
    }
}
