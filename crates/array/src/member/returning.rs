//! Return of members that were offline: their devices answer again, or were opened again.
//!
//! Invariants:
//! - a member returns only when no operation from before it went offline is in its `in_flight`: it
//!   could write over the resync;
//! - a member that has continued without this set halts the array, and is not written;
//! - a member that was rolled back while it was offline keeps none of its rows.

use crate::assembly::current::{Ancestry, has_lost_heartbeat};
use crate::core::{Core, HaltReason};
use crate::error::ArrayError;
use crate::format::geometry::{BLOCK, HEARTBEAT_AT, SUPER_AT};
use crate::format::heartbeat::Heartbeat;
use crate::format::superblock::{Condition, Superblock, SuperblockCopies};
use crate::member::{Member, MemberResult};
use crate::without::Mechanism;
use longhaul_block::BlockDevice;
use longhaul_engine::BufMut;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

impl Core {
    /// Looks for offline members that answer again, and starts their resync.
    pub(crate) async fn resync_returned_members(self: &Rc<Self>) {
        for member in &self.members {
            // Operations begun before it went offline must end first: they could write over the resync.
            let offline = member.condition() == Condition::Offline;
            if !offline || member.device().is_none() || member.under_way() > 0 {
                continue;
            }
            let (a, b) =
                futures_util::join!(member.read(SUPER_AT[0], BLOCK), member.read(SUPER_AT[1], BLOCK));
            // An unreadable copy counts as torn.
            let SuperblockCopies { newest: found, slot, torn } = match (a, b) {
                (Err(_), Err(_)) => continue,
                (a, b) => {
                    let copy = |read: MemberResult<BufMut>| read.map(|buf| buf.to_vec()).unwrap_or_default();
                    SuperblockCopies::of([&copy(a), &copy(b)])
                }
            };
            member.confirmed.set_slot(slot);
            let ours = |found: &Superblock| found.array == self.array && found.member == member.uuid();
            let Some(found) = found.filter(ours) else {
                let why = "the device that returned is not this member";
                // A failure to publish halts the array and is logged there.
                let _ = self.publish_with(|| self.enter(member.index, Condition::Failed, why)).await;
                continue;
            };
            let rebuild = match self.ancestry(&found, Some(member.state.since())) {
                Ancestry::Ancestor => self.was_rolled_back(member, &found, torn).await,
                Ancestry::Unused => true,
                Ancestry::Diverged => return self.halt_for_newer(member, &found),
            };
            match self.take_ownership_of_member(member).await {
                Ok(true) => {}
                Ok(false) => {
                    member.state.explain("another host uses it");
                    continue;
                }
                Err(_) => continue,
            }
            self.sums.forget(member.index);
            // The resync covers everything that the member has not flushed, so earlier doubts are
            // settled.
            member.trust(member.doubts());
            member.clear_unreachable();
            let back = self.publish_with(|| {
                if member.condition() != Condition::Offline {
                    return;
                }
                if rebuild {
                    member.state.discard_rows();
                }
                self.enter(member.index, Condition::Rebuilding { done: 0, partial: true }, "it has returned");
                member.rows.begin_resync(self.intent.marked());
            });
            if back.await.is_ok() {
                let _ = self.intent.write_all(self).await;
            }
        }
    }

    /// Relation of a superblock to the members in use.
    pub(crate) fn ancestry(&self, found: &Superblock, since: Option<u64>) -> Ancestry {
        if self.lacks(Mechanism::Apart) {
            return Ancestry::Ancestor;
        }
        let own = self.superblock();
        let present = self.members.usable().map(|member| Superblock { member: member.uuid(), ..own.clone() });
        let present: Vec<Superblock> = present.collect();
        own.ancestry(found, since, &present)
    }

    /// Whether a returning member has less than it has confirmed: it was rolled back while it was
    /// offline.
    async fn was_rolled_back(&self, member: &Member, found: &Superblock, torn: bool) -> bool {
        let beat = match member.read(HEARTBEAT_AT, BLOCK).await {
            Ok(block) => Heartbeat::decode(&block),
            Err(_) => None,
        };
        let behind = found.generation + u64::from(torn) < member.confirmed.generation()
            || has_lost_heartbeat(beat.as_ref(), self.session.uuid, member.confirmed.beat());
        if behind {
            tracing::warn!(
                "array {}: member {} has returned with less than it had confirmed (generation {} of {}): it \
                 was rolled back, and is rebuilt",
                self.name,
                member.index,
                found.generation,
                member.confirmed.generation()
            );
        }
        behind
    }

    /// Halts the array, since a member has returned that has continued without this set.
    fn halt_for_newer(&self, member: &Member, found: &Superblock) {
        let name = member.name().unwrap_or_default();
        let own = self.superblock();
        let which = if found.generation > own.generation { "newer" } else { "of another history" };
        self.halt(HaltReason::Diverged, &format!(
            "member {} ({name}) is back and is {which}: its superblock ({}) is not one that this set ({}) \
             descends from, and may have acknowledged writes that this set lacks. Stop the array; then \
             assemble it either with that member, or, to discard what only that member has, without it",
            member.index,
            found.age(),
            own.age()
        ));
    }

    /// Whether a member is offline, and its device is missing or has given up, so that reads fail
    /// at once. A device that still reconnects has operations under way.
    async fn needs_device(self: &Rc<Self>, member: &Member) -> bool {
        let is_offline = || member.condition() == Condition::Offline;
        if !is_offline() || member.device().is_none() {
            return is_offline();
        }
        if member.under_way() > 0 {
            return false;
        }
        let read = member.read(SUPER_AT[0], BLOCK).await;
        read.is_err_and(|e| e.is_unreachable()) && member.under_way() == 0 && is_offline()
    }

    /// Members that return only if their device is opened again.
    pub(crate) async fn members_without_device(self: &Rc<Self>) -> Vec<Uuid> {
        let looks = self.members.iter().map(async |member| (member.uuid(), self.needs_device(member).await));
        let looks = futures_util::future::join_all(looks).await;
        looks.into_iter().filter(|(_, needs_device)| *needs_device).map(|(uuid, _)| uuid).collect()
    }

    /// Attaches a device that was unreachable at assembly, or has been given up since.
    pub(crate) async fn offer(self: &Rc<Self>, device: Arc<dyn BlockDevice>) -> Result<bool, ArrayError> {
        let candidate = self.examine_in_time(&device).await?;
        let name = candidate.name();
        let found = candidate.member()?;
        if found.array != self.array {
            return Err(ArrayError::Foreign { device: name, name: found.name.clone(), array: found.array });
        }
        if let Some(witness) = self.session.witness.as_ref().filter(|w| w.member.uuid() == found.member) {
            return self.offer_witness(witness, found, &candidate).await;
        }
        let (size, needs) = (device.info().size, self.geometry().end());
        if size < needs {
            return Err(ArrayError::TooSmall { device: name, size, needs });
        }
        if let Some(is_new) = self.spares.attach(found.member, &device) {
            return Ok(is_new);
        }
        let Some(member) = self.members.iter().find(|member| member.uuid() == found.member) else {
            return Err(ArrayError::NoMember(format!("{name} (it was replaced)")));
        };
        if !self.needs_device(member).await || member.uuid() != found.member {
            return Ok(false);
        }
        // `resync_returned_members` examines and resyncs it like any returning member.
        member.put(device, candidate.io);
        self.upkeep.changed.notify();
        Ok(true)
    }
}
