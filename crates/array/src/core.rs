//! The state of a running array, and the conditions of its members.
//!
//! All of it lives on the array's engine thread: stripes, journal and caches need one order of
//! events, and a single thread gives it without locks; buffers change threads without a copy. Other
//! threads hand their operations over (see [`crate::device`]).
//!
//! Invariants:
//! - a member that has missed a write is published as not active, durably on all others, before the
//!   write is acknowledged;
//! - the loss of more members than the redundancy allows is never published: the array halts
//!   instead, and everything acknowledged stays where it is;
//! - superblocks are written one generation at a time.

use crate::format::geometry::{BLOCK, Geometry, Role, SUPER_AT};
use crate::format::superblock::{Condition, MemberEntry, Superblock};
use crate::io::intent::Intent;
use crate::io::journal::Journal;
use crate::io::locks::{MemoryBudget, RowLocks};
use crate::io::rows::StripeQueues;
use crate::io::sums::Sums;
use crate::member::{Member, MemberError, MemberResult};
use crate::options::Options;
use crate::without::Mechanism;
use futures_util::future::join_all;
use longhaul_block::{IoError, IoResult};
use longhaul_engine::Buf;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// A device that waits to replace a member.
#[derive(Clone)]
pub(crate) struct Spare {
    pub(crate) uuid: Uuid,
    /// `None` while unreachable: the device stays a spare.
    pub(crate) device: Option<std::sync::Arc<dyn longhaul_block::BlockDevice>>,
}

/// Counts since the array was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Full-stripe writes.
    pub full_writes: u64,
    /// Read-modify-writes, in parts of stripes.
    pub modify_writes: u64,
    /// Reconstruct-writes, in parts of stripes.
    pub reconstruct_writes: u64,
    /// Writes that needed the content of a missing unit, in parts of stripes.
    pub degraded_writes: u64,
    /// Reads that were reconstructed, in parts of stripes.
    pub reconstructed: u64,
    /// Hedged reads in which the reconstruction came first.
    pub hedges_won: u64,
}

pub(crate) struct Core {
    pub(crate) geometry: Geometry,
    pub(crate) array: Uuid,
    pub(crate) name: RefCell<String>,
    pub(crate) options: Options,
    pub(crate) members: Vec<Member>,
    pub(crate) spares: RefCell<Vec<Spare>>,
    pub(crate) generation: Cell<u64>,
    pub(crate) epoch: Cell<u64>,
    pub(crate) session: Uuid,
    pub(crate) clean: Cell<bool>,
    /// Why the array has halted, if so.
    pub(crate) halted: RefCell<Option<String>>,
    pub(crate) locks: Rc<RowLocks>,
    pub(crate) rows: StripeQueues,
    pub(crate) read_cache: crate::io::read_cache::ReadCache,
    pub(crate) sums: Sums,
    pub(crate) intent: Rc<Intent>,
    pub(crate) journal: Journal,
    pub(crate) budget: Rc<MemoryBudget>,
    pub(crate) window: Rc<crate::member::window::ReadWindow>,
    pub(crate) counts: Cell<Counts>,
    pub(crate) upkeep: crate::heal::upkeep::Upkeep,
    /// When the array last needed a member that was unreachable.
    pub(crate) missed: Cell<Option<Instant>>,
    /// Other sessions that have ended.
    pub(crate) ended: crate::session::fence::EndedSessions,
    /// User I/O begun so far.
    pub(crate) begun: Cell<u64>,
    pub(crate) verifying: Rc<RowLocks>,
    pub(crate) scrubbing: Rc<RowLocks>,
    pub(crate) admission: crate::io::admission::Admission,
    /// Exclusive per member index, while another device replaces it.
    pub(crate) placing: Rc<RowLocks>,
    publishing: Rc<RowLocks>,
    /// A member is lost, and the superblocks of the others do not record it yet.
    pub(crate) unpublished: Cell<bool>,
    /// The sessions that the superblocks descend from, this one last.
    pub(crate) history: RefCell<crate::format::history::History>,
    /// The newest generation that all members in use have confirmed.
    pub(crate) confirmed: Cell<u64>,
    /// When this session began.
    pub(crate) began: crate::session::clock::Stamp,
    /// Session time in the heartbeats, and its limit: no member in use may fall further behind than
    /// an up-to-date one may be.
    pub(crate) elapsed: Cell<Duration>,
    pub(crate) elapsed_limit: Cell<Duration>,
    /// The session before this one, if it was not stopped, and the session time of its last
    /// heartbeat.
    pub(crate) before: Cell<Option<(Uuid, std::time::Duration)>>,
    pub(crate) witness: Option<crate::session::witness::Witness>,
    pub(crate) memory: Option<std::sync::Arc<dyn crate::Memory>>,
    /// The last record that this host has stored.
    pub(crate) remembered: RefCell<Option<crate::Known>>,
}

impl Core {
    pub(crate) fn new(superblock: &Superblock, options: Options, session: Uuid) -> Core {
        let geometry = superblock.geometry;
        let member = |(index, entry): (usize, &MemberEntry)| {
            let member = Member::new(index, entry.uuid, entry.condition, entry.since, entry.have);
            member.known.set(entry.known);
            member
        };
        Core {
            geometry,
            array: superblock.array,
            name: RefCell::new(superblock.name.clone()),
            members: superblock.entries.iter().enumerate().map(member).collect(),
            spares: RefCell::default(),
            generation: Cell::new(superblock.generation),
            epoch: Cell::new(superblock.epoch),
            session,
            clean: Cell::new(false),
            halted: RefCell::default(),
            locks: Rc::default(),
            rows: StripeQueues::default(),
            read_cache: crate::io::read_cache::ReadCache::new(geometry.stripe()),
            sums: Sums::new(geometry, &options),
            intent: Rc::new(Intent::new(superblock.array, geometry.regions())),
            journal: Journal::new(superblock.array, geometry.journal),
            budget: Rc::new(MemoryBudget::new(options.memory)),
            window: Rc::default(),
            counts: Cell::default(),
            upkeep: crate::heal::upkeep::Upkeep::new(&options),
            missed: Cell::default(),
            ended: crate::session::fence::EndedSessions::default(),
            begun: Cell::new(0),
            verifying: Rc::default(),
            scrubbing: Rc::default(),
            admission: crate::io::admission::Admission::default(),
            placing: Rc::default(),
            publishing: Rc::default(),
            unpublished: Cell::default(),
            history: RefCell::new(superblock.history.clone()),
            confirmed: Cell::new(0),
            began: crate::session::clock::Stamp::now(),
            elapsed: Cell::default(),
            elapsed_limit: Cell::default(),
            before: Cell::default(),
            witness: None,
            memory: None,
            remembered: RefCell::default(),
            options,
        }
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Whether a member has current content for a row.
    pub(crate) fn holds(&self, member: usize, row: u64) -> bool {
        match self.members[member].condition.get() {
            Condition::Active => true,
            Condition::Offline | Condition::Failed => false,
            Condition::Rebuilding { done, partial } => {
                row < done
                    || self.upkeep.is_rebuilt(member, row)
                    || (partial
                        && row < self.members[member].have.get()
                        && !self.upkeep.missed(member, self.geometry.region_of(row)))
            }
        }
    }

    /// The members that hold a role of a row.
    pub(crate) fn holders(&self, row: u64, role: Role) -> impl Iterator<Item = usize> {
        self.geometry.homes(row, role).filter(move |member| self.holds(*member, row))
    }

    /// Whether all content of a row can be read or reconstructed.
    pub(crate) fn is_whole(&self, row: u64) -> bool {
        self.is_whole_without(row, &[])
    }

    /// The same, without these members.
    pub(crate) fn is_whole_without(&self, row: u64, without: &[usize]) -> bool {
        let has = |role| self.holders(row, role).any(|member| !without.contains(&member));
        let units = self.geometry.data_units();
        let missing = (0..units).filter(|i| !has(Role::Data(*i))).count();
        let parity = usize::from(has(Role::P)) + usize::from(has(Role::Q));
        missing <= parity
    }

    /// Whether every member holds a row.
    pub(crate) fn is_healthy(&self, row: u64) -> bool {
        (0..self.geometry.width).all(|member| self.holds(member, row))
    }

    /// Whether the array would lose data without these members.
    pub(crate) fn needs(&self, without: &[usize]) -> bool {
        let left = without.iter().filter_map(|index| self.members.get(*index));
        let left: Vec<&Member> = left.filter(|member| member.is_active()).collect();
        // Members that could start on their own must be assumed to do so, unless they know of all
        // remaining members that those are up to date.
        let begins = self.geometry.is_enough(|index| left.iter().any(|member| member.index == index));
        let is_told = |of: &Member| left.iter().all(|member| of.since.get() <= member.known.get());
        !self.geometry.is_enough(|index| {
            let member = &self.members[index];
            !without.contains(&index) && member.is_active() && (!begins || is_told(member))
        })
    }

    /// The members and the witness.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().chain(self.witness.iter().map(|witness| &witness.member))
    }

    /// Whether the array would halt without this member.
    pub(crate) fn cannot_lose(&self, index: usize) -> bool {
        self.members[index].is_active() && self.needs(&[index])
    }

    /// Why a member cannot be removed: see [`cannot_lose`](Self::cannot_lose).
    pub(crate) fn why_needed(&self, index: usize) -> String {
        let missing: Vec<String> =
            self.members.iter().filter(|m| !m.is_active()).map(|m| m.index.to_string()).collect();
        let why = match &missing[..] {
            [] => "nothing is redundant: copy the data to another array instead".to_owned(),
            _ => format!("others are missing ({}): reconnect or replace those first", missing.join(", ")),
        };
        format!("array {}: data would be lost without member {index}, and {why}", self.name.borrow())
    }

    /// Fails if the array has halted or stopped.
    pub(crate) fn check_running(&self) -> IoResult<()> {
        match &*self.halted.borrow() {
            None => Ok(()),
            Some(why) => Err(IoError::Offline(format!("array {}: {why}", self.name.borrow()))),
        }
    }

    /// How often members may have lost unflushed writes, in arrays without checksums, where a loss
    /// cannot be detected.
    pub(crate) fn forgotten(&self) -> u64 {
        if self.geometry.has_sums() { 0 } else { self.members.iter().map(Member::doubts).sum() }
    }

    /// Whether the heartbeat task has ended, so that no more checks take place.
    pub(crate) fn checks_ended(&self) -> bool {
        self.lacks(Mechanism::Fence) || (self.upkeep.stopping.get() && self.halted.borrow().is_none())
    }

    pub(crate) fn lost_too_many(&self) -> IoError {
        let lost: Vec<String> = self
            .members
            .iter()
            .filter(|member| !member.is_active())
            .map(|member| format!("member {} ({})", member.index, member.reason.borrow()))
            .collect();
        IoError::Offline(format!(
            "array {}: more is missing than its redundancy of {}: {}",
            self.name.borrow(),
            self.geometry.redundancy(),
            lost.join(", ")
        ))
    }

    /// Halts the array for good: acknowledged data stays where it is.
    pub(crate) fn halt(&self, why: &str) {
        if self.halted.borrow().is_none() {
            tracing::error!("array {}: {why}; it is read-only from now on", self.name.borrow());
        }
        self.end(why);
    }

    /// As [`halt`](Self::halt), without an error in the log: the end is intended.
    pub(crate) fn end(&self, why: &str) {
        self.halted.borrow_mut().get_or_insert_with(|| why.to_owned());
        self.journal.halt();
        self.wake_closing();
        self.upkeep.changed.notify();
        self.places().for_each(|member| member.reach.changed.notify());
    }

    /// Takes a member out of use after an error, as offline or failed. Returns once the other
    /// members have recorded it durably.
    pub(crate) async fn lose(&self, index: usize, error: &MemberError) -> IoResult<()> {
        let condition = if error.is_unreachable() { Condition::Offline } else { Condition::Failed };
        self.lose_if(index, condition, &error.error.to_string(), || self.members[index].is_own(error)).await
    }

    pub(crate) async fn lose_as(&self, index: usize, condition: Condition, reason: &str) -> IoResult<()> {
        self.lose_if(index, condition, reason, || true).await
    }

    /// Takes a member out of use if `still` holds once the publication lock is held.
    pub(crate) async fn lose_if(
        &self,
        index: usize,
        condition: Condition,
        reason: &str,
        still: impl FnOnce() -> bool,
    ) -> IoResult<()> {
        let _alone = self.publishing.exclusive(0).await;
        self.check_running()?;
        if !still() {
            return Ok(());
        }
        let member = &self.members[index];
        let condition = match (member.condition.get(), condition) {
            (Condition::Offline | Condition::Failed, _) => return Ok(()),
            (_, condition) => condition,
        };
        if member.is_active() && self.needs(&[index]) {
            let name = member.name().unwrap_or_default();
            *member.reason.borrow_mut() = reason.to_owned();
            // The member may return without what it had not flushed.
            member.doubt();
            self.halt(&format!(
                "member {index} ({name}) is lost as well, more than the redundancy: {reason}"
            ));
            return self.check_running();
        }
        tracing::warn!("array {}: member {index} is {condition:?}: {reason}", self.name.borrow());
        self.enter(index, condition, reason);
        if self.lacks(Mechanism::Publish) {
            self.unpublished.set(false);
            return self.check_running();
        }
        self.publish_alone().await
    }

    /// Changes a member's condition; the caller publishes it.
    pub(crate) fn enter(&self, index: usize, condition: Condition, reason: &str) {
        let member = &self.members[index];
        let started = !matches!(member.condition.get(), Condition::Rebuilding { .. });
        match (member.condition.get(), condition) {
            // The rebuild continues from here when the member returns.
            (Condition::Rebuilding { done, partial: false }, Condition::Offline) => member.have.set(done),
            (_, Condition::Active) => member.have.set(u64::MAX),
            _ => {}
        }
        member.condition.set(condition);
        member.since.set(self.generation.get() + 1);
        *member.reason.borrow_mut() = reason.to_owned();
        if started || !matches!(condition, Condition::Rebuilding { .. }) {
            self.upkeep.forget(index);
        }
        if matches!(condition, Condition::Offline | Condition::Failed) {
            member.reincarnate();
            self.unpublished.set(true);
        }
        self.upkeep.left(index, condition);
        self.upkeep.changed.notify();
    }

    /// Returns once the superblocks record all losses: writes that lost members have missed may be
    /// acknowledged then.
    ///
    /// # Errors
    /// The losses could not be recorded, and the array has halted.
    pub(crate) async fn losses_published(&self) -> IoResult<()> {
        if self.unpublished.get() {
            drop(self.publishing.shared(0).await);
            self.check_running()?;
        }
        Ok(())
    }

    /// Returns when no publication is under way.
    pub(crate) async fn published(&self) {
        drop(self.publishing.shared(0).await);
    }

    /// Writes the next generation to every member in use.
    pub(crate) async fn publish(&self) -> IoResult<()> {
        let _alone = self.publishing.exclusive(0).await;
        self.publish_alone().await
    }

    /// Applies a change and publishes it under one lock.
    pub(crate) async fn publish_with(&self, change: impl FnOnce()) -> IoResult<()> {
        let _alone = self.publishing.exclusive(0).await;
        self.check_running()?;
        change();
        self.publish_alone().await
    }

    async fn publish_alone(&self) -> IoResult<()> {
        loop {
            self.check_running()?;
            self.generation.set(self.generation.get() + 1);
            let superblock = self.superblock();
            self.update_witness(&superblock).await?;
            let usable = self.members.iter().filter(|member| member.is_usable());
            let results = join_all(usable.map(async |member| {
                let block = Superblock { member: member.uuid.get(), ..superblock.clone() };
                let buf = Buf::copy_of(&block.encode());
                if self.lacks(Mechanism::Slots) {
                    member.slot.set(1);
                }
                let incarnation = member.incarnation();
                let result = member.write_superblock(buf).await;
                if result.is_ok() && member.incarnation() == incarnation {
                    member.known.set(block.generation);
                }
                (member.index, result)
            }))
            .await;
            let failed = results.into_iter().filter_map(|(index, result)| Some((index, result.err()?)));
            let failed: Vec<(usize, MemberError)> =
                failed.filter(|(index, e)| self.members[*index].is_own(e)).collect();
            if failed.is_empty() {
                self.confirmed.set(self.generation.get());
                self.unpublished.set(false);
                self.remember(false).await;
                return self.check_running();
            }
            let lost: Vec<usize> = failed.iter().map(|(index, _)| *index).collect();
            if self.needs(&lost) {
                let (index, error) = &failed[0];
                self.halt(&format!("the superblock of member {index} cannot be written: {}", error.error));
                return self.check_running();
            }
            for (index, error) in failed {
                let condition = if error.is_unreachable() { Condition::Offline } else { Condition::Failed };
                self.enter(index, condition, &error.error.to_string());
            }
        }
    }

    /// Reads both copies of the superblock on the members in use, and rewrites damaged ones.
    /// Returns the number of damaged copies.
    pub(crate) async fn scrub_superblocks(&self) -> IoResult<u64> {
        let _alone = self.publishing.exclusive(0).await;
        let newest = self.generation.get();
        let mut damaged = 0;
        for member in self.members.iter().filter(|member| member.is_usable()) {
            let is_right = |block: &[u8], is_newest: bool| {
                Superblock::decode(block).is_some_and(|found| {
                    let ours = found.array == self.array && found.member == member.uuid.get();
                    ours && (found.generation == newest || !is_newest)
                })
            };
            let mut right = [true; 2];
            for (slot, at) in SUPER_AT.into_iter().enumerate() {
                right[slot] = match member.read(at, BLOCK).await {
                    Ok(block) => is_right(&block, member.slot.get() == slot),
                    // The operation that needs the member next marks it offline.
                    Err(e) if e.is_unreachable() => break,
                    Err(_) => false,
                };
            }
            damaged += right.iter().filter(|right| !**right).count() as u64;
            if !right[member.slot.get()] {
                // Rewrite the damaged slot first, so that the intact copy remains.
                member.slot.set(1 - member.slot.get());
            }
        }
        if damaged > 0 {
            // Once for each slot.
            self.publish_alone().await?;
            self.publish_alone().await?;
        }
        Ok(damaged)
    }

    /// The current superblock, with `member` left nil for the caller to set.
    pub(crate) fn superblock(&self) -> Superblock {
        let entry = |member: &Member| MemberEntry {
            uuid: member.uuid.get(),
            condition: member.condition.get(),
            since: member.since.get(),
            have: member.have.get(),
            known: member.known.get(),
        };
        Superblock {
            array: self.array,
            name: self.name.borrow().clone(),
            geometry: self.geometry,
            generation: self.generation.get(),
            epoch: self.epoch.get(),
            clean: self.clean.get(),
            member: Uuid::nil(),
            entries: self.members.iter().map(entry).collect(),
            spares: self.spares.borrow().iter().map(|spare| spare.uuid).collect(),
            witness: self.witness.as_ref().map(|witness| witness.member.uuid.get()),
            history: self.history.borrow().clone(),
            written: longhaul_engine::wall_time().as_secs(),
        }
    }

    /// Writes the same block durably to all members in use; members that fail are lost.
    pub(crate) async fn write_to_all(&self, offset: u64, bytes: &Buf) -> IoResult<()> {
        self.check_running()?;
        let usable = self.members.iter().filter(|member| member.is_usable());
        let results = join_all(
            usable.map(async |member| (member.index, member.write_durably(offset, bytes.clone()).await)),
        )
        .await;
        self.settle(results).await
    }

    /// Flushes all members in use; members that fail are lost. Writes that a member has lost before
    /// the flush are repaired first.
    pub(crate) async fn flush_members(self: &Rc<Self>) -> IoResult<()> {
        loop {
            self.check_running()?;
            let applied = self.journal.flush_begins();
            let usable = self.members.iter().filter(|member| member.is_usable());
            let results =
                join_all(usable.map(async |member| (member.index, self.flush_member(member).await))).await;
            self.settle(results).await?;
            let doubtful = self.members.iter().filter(|member| member.is_usable() && member.is_in_doubt());
            let doubtful: Vec<usize> = doubtful.map(|member| member.index).collect();
            if doubtful.is_empty() {
                self.journal.applied(&applied, true);
                return Ok(());
            }
            for member in doubtful {
                self.verify(member).await?;
            }
        }
    }

    /// Flushes a member. The flush counts only if the member is not in doubt afterwards.
    pub(crate) async fn flush_member(&self, member: &Member) -> MemberResult<()> {
        let stored = self.sums.flush_begins(member.index);
        member.flush().await?;
        if member.was_unreachable() {
            return Err(MemberError { error: member.offline_error(), incarnation: member.incarnation() });
        }
        if !member.is_in_doubt() {
            self.sums.flushed(member.index, &stored);
        }
        Ok(())
    }

    /// Takes members out of use whose part of an operation has failed.
    pub(crate) async fn settle(&self, results: Vec<(usize, MemberResult<()>)>) -> IoResult<()> {
        for (index, result) in results {
            if let Err(e) = result {
                self.lose(index, &e).await?;
            }
        }
        self.check_running()
    }

    /// Whether a member in use has a volatile write cache.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.members.iter().any(|member| member.is_usable() && member.has_volatile_cache())
    }

    /// Whether marks of the write-intent bitmap may be cleared: no member still needs them for its
    /// resync.
    pub(crate) fn may_forget_intents(&self) -> bool {
        let depends = |member: &Member| {
            matches!(member.condition.get(), Condition::Offline | Condition::Rebuilding { partial: true, .. })
        };
        self.halted.borrow().is_none() && !self.members.iter().any(depends)
    }
}
