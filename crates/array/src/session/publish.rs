//! Publication: the superblocks of all members in use record each change of the array.
//!
//! Invariants:
//! - a member that has missed a write is published as not active, durably on all others, before the
//!   write is acknowledged: `has_loss` is set from the loss until then;
//! - the loss of more members than the redundancy allows is never published;
//! - superblocks are written one generation at a time, under `lock`: `generation` rises by one for
//!   each, and `confirmed` never exceeds it.

use crate::core::{Core, HaltReason};
use crate::format::geometry::{BLOCK, SUPER_AT};
use crate::format::history::{Era, History};
use crate::format::superblock::Superblock;
use crate::io::locks::{RowGuard, RowLocks};
use crate::member::MemberError;
use crate::without::Mechanism;
use futures_util::future::join_all;
use longhaul_block::IoResult;
use longhaul_engine::Buf;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use uuid::Uuid;

/// What the superblocks record of the array as a whole.
pub(crate) struct Publication {
    /// The generation that was written last.
    generation: Cell<u64>,
    /// The newest generation that all members in use have confirmed.
    confirmed: Cell<u64>,
    /// The number of this assembly.
    epoch: Cell<u64>,
    /// The array was stopped in order.
    clean: Cell<bool>,
    /// The sessions that the superblocks descend from, this one last.
    history: RefCell<History>,
    /// A member is lost, and the superblocks of the others do not record it yet.
    has_loss: Cell<bool>,
    lock: Rc<RowLocks>,
}

/// Holds the publication lock until it is dropped.
pub(crate) struct PublicationGuard(#[expect(dead_code, reason = "held, not used")] RowGuard);

impl Publication {
    /// The state that a superblock records; `confirmed` according to heartbeats.
    pub(crate) fn new(superblock: &Superblock, session: Uuid, confirmed: u64) -> Publication {
        let mut history = superblock.history.clone();
        history.begin(session, superblock.generation + 1);
        Publication {
            generation: Cell::new(superblock.generation),
            // The first heartbeats must not claim less than the ones that they replace.
            confirmed: Cell::new(confirmed.min(superblock.generation)),
            epoch: Cell::new(superblock.epoch),
            clean: Cell::new(false),
            history: RefCell::new(history),
            has_loss: Cell::new(false),
            lock: Rc::default(),
        }
    }

    /// Takes the lock under which members change their condition.
    pub(crate) async fn exclusive(&self) -> PublicationGuard {
        PublicationGuard(self.lock.exclusive(0).await)
    }

    /// The generation that was written last, or is being written.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// The newest generation that all members in use have confirmed.
    pub(crate) fn confirmed(&self) -> u64 {
        self.confirmed.get()
    }

    /// The number of this assembly; journal records of other epochs are void.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// Begins the epoch of this assembly; the caller publishes it.
    pub(crate) fn begin_epoch(&self) {
        self.epoch.set(self.epoch.get() + 1);
    }

    /// Marks the array as stopped in order; the caller publishes it.
    pub(crate) fn mark_clean(&self) {
        self.clean.set(true);
    }

    /// The session that writes the superblocks, and its first generation.
    pub(crate) fn last_era(&self) -> Option<Era> {
        self.history.borrow().last()
    }

    /// A member is lost, and the superblocks of the others do not record it yet.
    pub(crate) fn has_loss(&self) -> bool {
        self.has_loss.get()
    }

    pub(crate) fn note_loss(&self) {
        self.has_loss.set(true);
    }

    /// Counts losses as recorded that are not, if that mechanism is switched off.
    pub(crate) fn drop_losses(&self) {
        self.has_loss.set(false);
    }

    fn begin_generation(&self) {
        assert!(
            self.confirmed.get() <= self.generation.get(),
            "a generation is confirmed before it is written"
        );
        self.generation.set(self.generation.get() + 1);
    }

    /// All members in use have confirmed the last generation.
    fn confirm(&self) {
        self.confirmed.set(self.generation.get());
        self.has_loss.set(false);
    }
}

impl Core {
    /// Returns once the superblocks record all losses: writes that lost members have missed may be
    /// acknowledged then.
    ///
    /// # Errors
    /// The losses could not be recorded, and the array has halted.
    pub(crate) async fn losses_published(&self) -> IoResult<()> {
        if self.publication.has_loss() {
            self.published().await;
            self.check_running()?;
        }
        Ok(())
    }

    /// Returns when no publication is under way.
    pub(crate) async fn published(&self) {
        drop(self.publication.lock.shared(0).await);
    }

    /// Writes the next generation to every member in use.
    pub(crate) async fn publish(&self) -> IoResult<()> {
        let alone = self.publication.exclusive().await;
        self.publish_alone(&alone).await
    }

    /// Applies a change and publishes it under one lock.
    pub(crate) async fn publish_with(&self, change: impl FnOnce()) -> IoResult<()> {
        let alone = self.publication.exclusive().await;
        self.check_running()?;
        change();
        self.publish_alone(&alone).await
    }

    /// The same for a caller that holds the lock. Members that fail are lost, which takes another
    /// generation.
    pub(crate) async fn publish_alone(&self, _: &PublicationGuard) -> IoResult<()> {
        loop {
            self.check_running()?;
            assert!(self.members.is_enough(), "more members are lost than the redundancy covers");
            self.publication.begin_generation();
            let superblock = self.superblock();
            self.update_witness(&superblock).await?;
            let results = join_all(self.members.usable().map(async |member| {
                let block = Superblock { member: member.uuid(), ..superblock.clone() };
                let buf = Buf::copy_of(&block.encode());
                if self.lacks(Mechanism::Slots) {
                    member.confirmed.set_slot(1);
                }
                let incarnation = member.incarnation();
                let result = member.write_superblock(buf).await;
                if result.is_ok() && member.incarnation() == incarnation {
                    member.confirmed.confirm(block.generation);
                }
                (member.index, result)
            }))
            .await;
            let failed = results.into_iter().filter_map(|(index, result)| Some((index, result.err()?)));
            let failed: Vec<(usize, MemberError)> =
                failed.filter(|(index, e)| self.members[*index].is_own(e)).collect();
            if failed.is_empty() {
                self.publication.confirm();
                self.renew_lease();
                self.remember(false).await;
                return self.check_running();
            }
            let lost: Vec<usize> = failed.iter().map(|(index, _)| *index).collect();
            if self.members.needs(&lost) {
                let (index, error) = &failed[0];
                self.halt(
                    HaltReason::Lost,
                    &format!("the superblock of member {index} cannot be written: {}", error.error),
                );
                return self.check_running();
            }
            for (index, error) in failed {
                self.enter(index, error.condition(), &error.error.to_string());
            }
        }
    }

    /// Reads both copies of the superblock on the members in use, and rewrites damaged ones.
    /// Returns the number of damaged copies.
    pub(crate) async fn scrub_superblocks(&self) -> IoResult<u64> {
        let alone = self.publication.exclusive().await;
        let newest = self.publication.generation();
        let mut damaged = 0;
        for member in self.members.usable() {
            let is_right = |block: &[u8], is_newest: bool| {
                Superblock::decode(block).is_some_and(|found| {
                    let ours = found.array == self.array && found.member == member.uuid();
                    ours && (found.generation == newest || !is_newest)
                })
            };
            let mut right = [true; 2];
            for (slot, at) in SUPER_AT.into_iter().enumerate() {
                right[slot] = match member.read(at, BLOCK).await {
                    Ok(block) => is_right(&block, member.confirmed.slot() == slot),
                    // The operation that needs the member next marks it offline.
                    Err(e) if e.is_unreachable() => break,
                    Err(_) => false,
                };
            }
            damaged += right.iter().filter(|right| !**right).count() as u64;
            if !right[member.confirmed.slot()] {
                // Rewrite the damaged slot first, so that the intact copy remains.
                member.confirmed.set_slot(member.confirmed.free_slot());
            }
        }
        if damaged > 0 {
            // Once for each slot.
            self.publish_alone(&alone).await?;
            self.publish_alone(&alone).await?;
        }
        Ok(damaged)
    }

    /// The current superblock, with `member` left nil for the caller to set.
    pub(crate) fn superblock(&self) -> Superblock {
        let state = &self.publication;
        Superblock {
            array: self.array,
            name: self.name.clone(),
            geometry: self.geometry(),
            generation: state.generation.get(),
            epoch: state.epoch.get(),
            clean: state.clean.get(),
            member: Uuid::nil(),
            entries: self.members.iter().map(crate::member::Member::entry).collect(),
            spares: self.spares.uuids(),
            witness: self.session.witness.as_ref().map(|witness| witness.member.uuid()),
            history: state.history.borrow().clone(),
            written: longhaul_engine::wall_time().as_secs(),
        }
    }
}
