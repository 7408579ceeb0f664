//! The witness: a small device that holds superblocks and a heartbeat, but no data.
//!
//! Of two halves of an array that could each continue without the other, only the one with the
//! witness does. Superblocks and heartbeat have the same offsets as on a member and take
//! [`WITNESS_SIZE`] bytes.
//!
//! Invariants:
//! - if the members that are left behind could continue on their own, a write that they miss is
//!   acknowledged only after the witness has durably recorded that they are left behind; an array
//!   that cannot reach its witness then halts;
//! - a host that finds the session of another one on the witness halts;
//! - the witness is written before the members: a host that must write to it, and cannot, changes
//!   nothing on them.

use crate::assembly::candidate::Candidate;
use crate::assembly::current::Ancestry;
use crate::core::{Core, HaltReason};
use crate::error::ArrayError;
use crate::format::geometry::HEARTBEAT_AT;
use crate::format::superblock::{Condition, MemberEntry, Superblock};
use crate::member::{Member, MemberError, MemberResult};
use crate::session::fence;
use longhaul_block::{IoError, IoResult};
use longhaul_engine::Buf;
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Bytes of a witness: two superblocks and a heartbeat, at the same offsets as on a member.
pub const WITNESS_SIZE: u64 = HEARTBEAT_AT + crate::format::geometry::BLOCK;

/// The witness of a running array.
pub(crate) struct Witness {
    /// Its device; the index follows those of the members.
    pub(crate) member: Member,
    /// The members that are up to date according to the witness, or according to superblocks that
    /// may have reached other members.
    recorded_active: RefCell<Vec<Uuid>>,
    /// Whether it answered the last operation.
    reachable: Cell<bool>,
    /// The last write of a superblock has timed out, and may still land.
    timed_out: Cell<bool>,
}

impl Witness {
    pub(crate) fn new(uuid: Uuid, superblock: &Superblock) -> Witness {
        let since = superblock.generation;
        let entry = MemberEntry { uuid, condition: Condition::Active, since, have: 0, known: 0 };
        let member = Member::new(superblock.geometry.width, &entry);
        // If the witness had to record a change, it did so before the members.
        Witness {
            member,
            recorded_active: RefCell::new(active(superblock)),
            reachable: Cell::new(false),
            timed_out: Cell::new(false),
        }
    }

    /// Records whether it answered.
    pub(crate) fn set_reachable(&self, reachable: bool) {
        self.reachable.set(reachable);
    }

    /// Adds the active members of a superblock that the witness may hold, or that another host may
    /// present.
    pub(crate) fn may_have(&self, table: &Superblock) {
        let mut recorded_active = self.recorded_active.borrow_mut();
        let more: Vec<Uuid> =
            active(table).into_iter().filter(|uuid| !recorded_active.contains(uuid)).collect();
        recorded_active.extend(more);
    }

    /// Attaches a device, unless there is one; returns whether it did.
    fn put(&self, candidate: &Candidate) -> bool {
        let is_new = self.member.device().is_none();
        if is_new {
            self.member.put(Arc::clone(&candidate.device), Rc::clone(&candidate.io));
            self.member.confirmed.set_slot(candidate.slot);
        }
        is_new
    }

    /// Returns when a write that has timed out has ended: the next one goes to the same slot, and
    /// an earlier one must not land after it.
    async fn until_settled(&self) -> MemberResult<()> {
        if !self.timed_out.get() {
            return Ok(());
        }
        let incarnation = self.member.incarnation();
        let answered = self.member.with_timeout(pin!(self.member.until_completed())).await;
        answered.map_err(|time| {
            let why = format!("its last write is not answered after another {:.0} s", time.as_secs_f64());
            MemberError { error: IoError::Unreachable(why), incarnation }
        })
    }

    async fn write(&self, superblock: &Superblock) -> MemberResult<()> {
        let block = Superblock { member: self.member.uuid(), ..superblock.clone() };
        let result = match self.until_settled().await {
            Ok(()) => self.member.write_superblock(Buf::copy_of(&block.encode())).await,
            Err(e) => Err(e),
        };
        self.timed_out.set(result.as_ref().is_err_and(MemberError::is_unreachable));
        self.reachable.set(result.is_ok());
        if result.is_ok() {
            *self.recorded_active.borrow_mut() = active(superblock);
        }
        result
    }
}

fn active(table: &Superblock) -> Vec<Uuid> {
    let active = table.entries.iter().filter(|entry| entry.condition == Condition::Active);
    active.map(|entry| entry.uuid).collect()
}

impl Core {
    /// Attaches a witness that was unreachable at assembly.
    ///
    /// # Errors
    /// It holds a superblock that this set does not descend from, and the array has halted; or it
    /// cannot be read.
    pub(crate) async fn offer_witness(
        &self,
        witness: &Witness,
        found: &Superblock,
        candidate: &Candidate,
    ) -> Result<bool, ArrayError> {
        let (device, own, ours) = (candidate.name(), found.age(), self.superblock().age());
        if self.ancestry(found, None) == Ancestry::Diverged {
            self.halt(HaltReason::Diverged, &format!(
                "the witness {device} has returned, and has recorded another set of members since ({own}; this \
                 set: {ours})"
            ));
            return Err(ArrayError::Newer { device, own, ours });
        }
        if !witness.put(candidate) {
            return Ok(false);
        }
        if !self.take_ownership_of_member(&witness.member).await? {
            let _ = witness.member.take();
            return Ok(false);
        }
        witness.may_have(found);
        witness.set_reachable(true);
        self.publish().await?;
        Ok(true)
    }

    /// Writes to the witness what the members are about to record.
    ///
    /// # Errors
    /// The witness must record it, and cannot be written: the array has halted.
    pub(crate) async fn update_witness(&self, table: &Superblock) -> IoResult<()> {
        let Some(witness) = &self.session.witness else { return Ok(()) };
        let now = active(table);
        let has = |index: usize| now.contains(&table.entries[index].uuid);
        let is_news = witness.recorded_active.borrow().iter().any(|uuid| !now.contains(uuid));
        let must = is_news && table.geometry.is_enough(|index| !has(index));
        // Also if the write is skipped or fails: the members will have it.
        witness.may_have(table);
        if !must && !witness.reachable.get() {
            return Ok(());
        }
        match witness.write(table).await {
            Ok(()) => Ok(()),
            Err(e) if must => {
                let left: Vec<String> = (0..table.entries.len())
                    .filter(|index| !has(*index))
                    .map(|index| index.to_string())
                    .collect();
                self.halt(HaltReason::Lost, &format!(
                    "members {} are out of reach, and the witness cannot record that ({}): they may continue on \
                     another host, so this one stops",
                    left.join(", "),
                    e.error
                ));
                self.check_running()
            }
            Err(e) => {
                tracing::warn!("array {}: the witness cannot be written: {}", self.name, e.error);
                Ok(())
            }
        }
    }
}

/// Writes and checks the heartbeat on the witness.
pub(crate) async fn run_heartbeat(core: &Rc<Core>, counter: &Cell<u64>) {
    let Some(witness) = &core.session.witness else { return };
    fence::heartbeat_on(core, &witness.member, counter, async |result| {
        witness.reachable.set(result.is_ok());
        true
    })
    .await;
}
