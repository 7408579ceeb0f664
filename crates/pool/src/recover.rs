//! Finishing what lost hosts have begun.

use crate::claim::Claim;
use crate::error::Result;
use crate::keys;
use crate::label::Label;
use crate::manager::Manager;
use crate::pool::{Pool, each};
use crate::record::{Intent, IntentKind, TargetRecord, VolumeRecord, VolumeState, encode_intent};
use crate::remove::Removed;
use crate::spaces::shown;
use longhaul_catalog::{Expect, Revision, Txn};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// What a recovery has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Intents that are done with.
    pub finished: usize,
    /// Intents whose host still holds its lease: it works on them, or was lost a short time ago.
    pub held: usize,
    /// Namespaces removed that no record names.
    pub swept: usize,
    /// Why the rest waits for a later recovery.
    pub waiting: Vec<String>,
}

impl Pool {
    /// Finishes what lost hosts have begun: volumes that were not published are undone, removals and
    /// resizes are continued, moves end as their arrays say, and namespaces that no record names are removed. Any host may do this at any time.
    ///
    /// # Errors
    /// The catalog cannot be read or changed. A target that cannot be reached is no error.
    pub fn recover(&self) -> Result<Recovered> {
        let mut recovered = self.finish()?;
        self.sweep_all(&mut recovered)?;
        recovered.waiting.sort_unstable();
        recovered.waiting.dedup();
        Ok(recovered)
    }

    /// What every command does first: volumes whose lifetime has ended at `now`, in seconds since 1970,
    /// are removed, and intents of lost hosts are finished. Namespaces are listed only where a host was
    /// lost while it made a volume.
    ///
    /// # Errors
    /// As for [`Self::recover`].
    pub fn collect(&self, now: u64) -> Result<Recovered> {
        let lost = self.intents()?.iter().any(|(intent, _)| intent.kind == IntentKind::Create);
        let mut recovered = self.finish()?;
        if let Removed::Later(why) = self.expire(now)? {
            recovered.waiting.extend(why);
        }
        if lost && recovered.finished > 0 {
            self.sweep_all(&mut recovered)?;
        }
        recovered.waiting.sort_unstable();
        recovered.waiting.dedup();
        Ok(recovered)
    }

    /// Finishes the intents without an owner.
    fn finish(&self) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        for (intent, at) in self.intents()? {
            match self.take_over(&intent, at)? {
                None => recovered.held += 1,
                Some(Removed::Whole) => recovered.finished += 1,
                Some(Removed::Later(why)) => recovered.waiting.extend(why),
            }
        }
        Ok(recovered)
    }

    /// Carries on with an intent without an owner; `None` if it has one.
    fn take_over(&self, intent: &Intent, at: Revision) -> Result<Option<Removed>> {
        let owner = keys::owner(self.uuid(), intent.uuid);
        if self.host.catalog.get(&owner)?.is_some() {
            return Ok(None);
        }
        let claim = Claim::new(&self.host.catalog, self.host.ttl)?;
        if matches!(intent.kind, IntentKind::Resize | IntentKind::Move) {
            let done = match (self.own(intent, at, &claim)?, intent.kind) {
                (Some(owned), IntentKind::Move) => Some(self.finish_move(&owned)?),
                (Some(owned), _) => Some(self.finish_resize(&owned)?),
                (None, _) => None,
            };
            claim.release();
            return Ok(done);
        }
        let undone = Intent { kind: IntentKind::Remove, ..intent.clone() };
        let key = keys::intent(self.uuid(), &intent.uuid.to_string());
        let txn = Txn::new().expect(&key, Expect::Modified(at)).expect(&owner, Expect::Absent);
        let mut txn = txn.put_leased(&owner, self.host.name.as_bytes(), claim.lease());
        if intent.kind == IntentKind::Create {
            // From here on the lost host cannot publish it any more.
            txn = txn
                .put(&key, &encode_intent(&undone))
                .delete(&keys::volume(self.uuid(), &intent.volume.name));
        }
        let lease = Some(claim.lease());
        let is_made = || Ok(self.host.catalog.get(&owner)?.is_some_and(|entry| entry.lease == lease));
        let removed = match self.host.commit(&txn, is_made)? {
            true => Some(self.remove_members(&undone)?),
            false => None,
        };
        claim.release();
        Ok(removed)
    }

    fn sweep_all(&self, recovered: &mut Recovered) -> Result<()> {
        let targets: Vec<TargetRecord> = self.targets()?.into_values().map(|(target, _)| target).collect();
        self.sweep(&targets, recovered)
    }

    /// Removes namespaces of this pool at these targets that no record names: a host that was taken for
    /// lost, or a command that was under way, has made them late, or a target that was given up has come
    /// back.
    ///
    /// A record is written before the first namespace and deleted after the last one, and the
    /// namespaces are listed before the records are read: so one without a record is of a volume that
    /// is gone for good, and one that the record of its volume does not name is not needed.
    pub(crate) fn sweep(&self, targets: &[TargetRecord], recovered: &mut Recovered) -> Result<()> {
        let listed =
            each(targets, |target| self.space(target).and_then(|_| self.host.spaces.list(&target.address)));
        let (intents, volumes) = (self.intents()?, self.volumes()?);
        let of_intents = intents.iter().map(|(intent, _)| &intent.volume);
        let known: BTreeSet<Uuid> = of_intents.clone().chain(&volumes).map(|volume| volume.uuid).collect();
        let named: BTreeSet<Uuid> = of_intents
            .chain(&volumes)
            .flat_map(VolumeRecord::all_members)
            .filter_map(|member| Some(member.namespace?.uuid))
            .collect();
        let published: BTreeMap<Uuid, &VolumeRecord> = volumes
            .iter()
            .filter(|volume| volume.state == VolumeState::Ready)
            .map(|volume| (volume.uuid, volume))
            .collect();
        // The one that is being made for a member that moves is recorded after that.
        let may_be_recorded = |volume: &VolumeRecord| {
            volume.moving.as_ref().is_some_and(|moving| moving.to.namespace.is_none())
        };
        let is_left = |label: &Label, id: Uuid| match published.get(&label.volume) {
            Some(volume) => {
                let may_belong = named.contains(&id) || label.joining && may_be_recorded(volume);
                !may_belong
            }
            None => !known.contains(&label.volume),
        };
        for (target, listed) in targets.iter().zip(listed) {
            let (address, name) = (&target.address, shown(&target.address));
            let namespaces = match listed {
                Ok(namespaces) => namespaces,
                Err(e) => {
                    recovered.waiting.push(format!("target {name}: {e}"));
                    continue;
                }
            };
            // What that catalog makes is in its records, not in those of this one.
            let labels = namespaces.iter().filter_map(|namespace| namespace.label.as_ref()?.as_ref().ok());
            let labels = labels.filter(|label| label.pool == self.uuid());
            if let Some(manager) = Manager::successor(labels, &self.record) {
                recovered.waiting.push(format!("target {name}: {}", self.superseded(manager)));
                continue;
            }
            for namespace in namespaces {
                let Some(Ok(label)) = namespace.label else { continue };
                if label.pool == self.uuid() && is_left(&label, namespace.id.uuid) {
                    match self.host.spaces.remove(address, namespace.id) {
                        Ok(()) => recovered.swept += 1,
                        Err(e) => recovered.waiting.push(format!("target {name}: {e}")),
                    }
                }
            }
        }
        Ok(())
    }
}
