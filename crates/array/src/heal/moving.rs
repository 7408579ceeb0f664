//! Moves of members to other devices, which lower no redundancy: the member stays in use on its device
//! while that is copied, and what is written meanwhile goes to both.
//!
//! Invariants:
//! - one device at a time replaces a member: the lock of its index in `replacing` is held;
//! - the new device has all of the member's content durably, and a superblock under a UUID of its own,
//!   before the first superblock says that it is the member; no write ends between its last copy
//!   and the superblocks of all members: after a crash the newest superblock has the one device
//!   or the other, and either is right;
//! - a device whose move has failed is not used again before its operations have ended.

use crate::assembly::candidate::Candidate;
use crate::assembly::create::{enlist, zero};
use crate::core::Core;
use crate::error::ArrayError;
use crate::event::Event;
use crate::format::geometry::{HEARTBEAT_AT, SUPER_AT};
use crate::format::superblock::{Condition, Superblock};
use crate::heal::upkeep::{TaskGuard, is_over};
use crate::io::window::ReadOrigin;
use crate::member::Member;
use crate::member::twin::{COPIED_FROM, MirrorTurn, Twin};
use crate::report::Progress;
use crate::session::clock::Stamp;
use futures_util::future::{Either, select};
use futures_util::{StreamExt, stream};
use longhaul_block::{Advice, BlockDevice, BlockIo, IoError};
use longhaul_engine::now;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Bytes that are copied at a time: little enough that a write to them waits for a moment only.
const PIECE: u64 = 256 << 10;
/// Pieces under way, at most.
const PIECES_MAX: u64 = 32;
/// Pieces of the first batch.
const PIECES_FIRST: u64 = 8;

/// The moves of an array.
#[derive(Default)]
pub(crate) struct Moves {
    /// Those that are under way, by the index of the member.
    under_way: RefCell<BTreeMap<usize, Rc<Move>>>,
    /// Names of devices whose move has failed, and what may still be written to them.
    left: RefCell<Vec<(String, Rc<Twin>)>>,
}

/// A move that is under way.
struct Move {
    device: String,
    is_cancelled: Cell<bool>,
    result: RefCell<Option<Result<(), ArrayError>>>,
    ended: Event,
}

impl Moves {
    /// Whether operations of an earlier move to this device have not ended.
    fn is_left(&self, device: &str) -> bool {
        let mut left = self.left.borrow_mut();
        left.retain(|(_, twin)| twin.under_way() > 0);
        left.iter().any(|(name, _)| name == device)
    }
}

impl Core {
    /// Moves a member to another device. A second call for the same member and device waits for the
    /// first one.
    pub(crate) async fn move_member(
        self: &Rc<Self>,
        index: usize,
        device: Arc<dyn BlockDevice>,
        force: bool,
        uuid: Uuid,
    ) -> Result<(), ArrayError> {
        self.check_index(index)?;
        let name = device.info().name;
        let running = self.moves.under_way.borrow().get(&index).cloned();
        if let Some(running) = running {
            if running.device != name {
                return Err(self.not_moved(index, &format!("it moves to {} already", running.device)));
            }
            running.ended.until(|| running.result.borrow().is_some()).await;
            return running.result.borrow().clone().unwrap_or(Ok(()));
        }
        let ended = Event::default();
        let this = Move { device: name, is_cancelled: Cell::new(false), result: RefCell::default(), ended };
        let this = Rc::new(this);
        self.moves.under_way.borrow_mut().insert(index, Rc::clone(&this));
        let result = self.move_to(index, device, force, uuid, &this).await;
        self.moves.under_way.borrow_mut().remove(&index);
        *this.result.borrow_mut() = Some(result.clone());
        this.ended.notify();
        result
    }

    /// Ends the moves to a device, and returns once none is under way. Whether it is a member then.
    pub(crate) async fn cancel_move(self: &Rc<Self>, device: &str) -> bool {
        let running: Vec<Rc<Move>> = self.moves.under_way.borrow().values().cloned().collect();
        for running in running.into_iter().filter(|running| running.device == device) {
            running.is_cancelled.set(true);
            self.upkeep.changed.notify();
            running.ended.until(|| running.result.borrow().is_some()).await;
        }
        self.members.iter().any(|member| member.name().as_deref() == Some(device))
    }

    fn not_moved(&self, index: usize, why: &str) -> ArrayError {
        ArrayError::Refused(format!("array {}: member {index} is not moved: {why}", self.name))
    }

    async fn move_to(
        self: &Rc<Self>,
        index: usize,
        device: Arc<dyn BlockDevice>,
        force: bool,
        uuid: Uuid,
        this: &Move,
    ) -> Result<(), ArrayError> {
        let _running = TaskGuard::new(self);
        if self.moves.is_left(&this.device) || self.joining.is_left(&this.device) {
            return Err(self.not_moved(index, "writes of an earlier move to that device have not ended"));
        }
        drop(self.admit_change()?);
        let (_, mut candidate) = self.examine_new_device(device, force, uuid).await?;
        let new = Rc::clone(&candidate.io);
        candidate.io = self.joining_io(&this.device, &new);
        let _alone = self.spares.replacing.exclusive(index as u64).await;
        let member = &self.members[index];
        if !member.is_active() {
            return Err(self.not_moved(index, &format!("it is {:?}: replace it instead", member.condition())));
        }
        self.reserve_given(uuid, &candidate, force).await?;
        let moved = self.copy_and_switch(member, &candidate, new, uuid, this).await;
        if moved.is_err() && member.uuid() != uuid {
            self.give_back(uuid, false);
        }
        self.upkeep.work.borrow_mut().rebuild = None;
        moved
    }

    async fn copy_and_switch(
        self: &Rc<Self>,
        member: &Member,
        candidate: &Candidate,
        new: Rc<dyn BlockIo>,
        uuid: Uuid,
        this: &Move,
    ) -> Result<(), ArrayError> {
        let failed = |source| ArrayError::Device { device: candidate.name(), source };
        // Of an earlier use. The heartbeat block is empty at no time: see `replace_member`.
        zero(&candidate.io, SUPER_AT[0], HEARTBEAT_AT).await.map_err(failed)?;
        self.write_first_heartbeat(&candidate.io).await.map_err(failed)?;
        let incarnation = member.incarnation();
        // The new device must not delay an operation until the member counts as unreachable.
        let limit = self.options.member_timeout / 2;
        let max_io = candidate.device.info().max_io;
        let Some(old) = member.io() else {
            return Err(self.not_moved(member.index, "it has no device"));
        };
        let twin = Twin::new(old, new, max_io, limit);
        member.use_io(twin.io());
        // Those that were begun before that are not written to both.
        member.until_completed().await;
        let moved = async {
            let mut copied = COPIED_FROM;
            loop {
                copied = self.copy_from(copied, member, incarnation, &twin, this).await?;
                if self.switch(copied, member, candidate, uuid, &twin, incarnation).await? {
                    return Ok(());
                }
            }
        };
        let moved: Result<(), ArrayError> = moved.await;
        if moved.is_err() && member.uuid() != uuid {
            twin.drop_new(IoError::Aborted);
            if member.incarnation() == incarnation {
                member.use_io(Rc::clone(twin.old()));
            }
            if twin.under_way() > 0 {
                self.moves.left.borrow_mut().push((this.device.clone(), twin));
            }
        }
        moved
    }

    /// Refuses to go on with a move whose member or device has failed, or that is not wanted any more.
    fn check_move(
        &self,
        member: &Member,
        incarnation: u64,
        twin: &Twin,
        this: Option<&Move>,
    ) -> Result<(), ArrayError> {
        self.check_running()?;
        if is_over(self) {
            return Err(self.not_moved(member.index, "the array stops"));
        }
        if this.is_some_and(|this| this.is_cancelled.get()) {
            return Err(self.not_moved(member.index, "the move was given up"));
        }
        if member.incarnation() != incarnation || !member.is_active() {
            let why = format!("it was lost meanwhile: {}", member.state.reason());
            return Err(self.not_moved(member.index, &why));
        }
        match twin.broken() {
            Some(e) => Err(self.not_moved(member.index, &format!("the new device has failed: {e}"))),
            None => Ok(()),
        }
    }

    /// Copies from offset `from` to the end, and returns that.
    async fn copy_from(
        self: &Rc<Self>,
        from: u64,
        member: &Member,
        incarnation: u64,
        twin: &Rc<Twin>,
        this: &Move,
    ) -> Result<u64, ArrayError> {
        let (began, end) = (now(), self.geometry().end());
        let (mut at, mut pace) = (from, self.pace(PIECE, PIECES_FIRST, false));
        while at < end {
            self.check_move(member, incarnation, twin, Some(this))?;
            let to = end.min(at + pace.begin(self.upkeep.rebuild_rate.get()) * PIECE);
            let pieces = (at..to).step_by(PIECE as usize).map(|at| (at, PIECE.min(to - at)));
            let copies =
                stream::iter(pieces).map(|(at, len)| self.copy_piece(at, len, member, incarnation, twin));
            let results: Vec<_> =
                copies.buffer_unordered(self.concurrent_pieces(member, twin)).collect().await;
            results.into_iter().collect::<Result<(), ArrayError>>()?;
            let progress =
                Progress { member: member.index, done: to - from, total: end - from, elapsed: now() - began };
            self.upkeep.work.borrow_mut().rebuild = Some(progress);
            pace.end(self, to - at, self.upkeep.rebuild_rate.get()).await;
            at = to;
        }
        Ok(end)
    }

    /// Pieces that are copied at a time: enough to fill the paths to both devices.
    fn concurrent_pieces(&self, member: &Member, twin: &Twin) -> usize {
        let read = member.advice().unwrap_or(Advice::LOCAL).read;
        let write = twin.new_io().advice().unwrap_or(Advice::LOCAL).write;
        (read.max(write) / PIECE + 2).min(PIECES_MAX) as usize
    }

    /// Takes the turn of a range, unless the member is lost before that comes: writes that the old device
    /// does not answer keep their turns.
    async fn turn(
        &self,
        range: Range<u64>,
        member: &Member,
        incarnation: u64,
        twin: &Twin,
    ) -> Result<MirrorTurn, ArrayError> {
        self.check_move(member, incarnation, twin, None)?;
        match select(pin!(twin.turn(range)), member.over()).await {
            Either::Left((turn, _)) => Ok(turn),
            Either::Right(_) => {
                self.check_move(member, incarnation, twin, None)?;
                Err(self.not_moved(member.index, "it was lost meanwhile"))
            }
        }
    }

    async fn copy_piece(
        self: &Rc<Self>,
        at: u64,
        len: u64,
        member: &Member,
        incarnation: u64,
        twin: &Rc<Twin>,
    ) -> Result<(), ArrayError> {
        let room = self.room(len, ReadOrigin::Background).await;
        let range = at..at + len;
        let mut turn = self.turn(range.clone(), member, incarnation, twin).await?;
        let mut read = member.read(at, len).await;
        if read.as_ref().is_err_and(|e| !e.is_unreachable()) {
            // What redundancy there is for these stripes is written in its place, to both devices.
            drop(turn);
            self.repair_stripes(range.clone()).await?;
            turn = self.turn(range, member, incarnation, twin).await?;
            read = member.read(at, len).await;
        }
        let _turn = turn;
        let bytes = read.map_err(|e| {
            let (end, e) = (at + len, IoError::from(e));
            let why = format!("bytes {at} to {end} of its device cannot be read, nor repaired: {e}");
            self.not_moved(member.index, &why)
        })?;
        drop(room);
        // A host that was suspended may have lost the array meanwhile.
        member.until_writable().await.map_err(|e| ArrayError::from(IoError::from(e)))?;
        let failed = |e| self.not_moved(member.index, &format!("the new device has failed: {e}"));
        twin.copy(at, bytes).await.map_err(failed)
    }

    /// Repairs the stripes that have a part in a range of the members.
    async fn repair_stripes(self: &Rc<Self>, range: Range<u64>) -> Result<(), ArrayError> {
        let geometry = self.geometry();
        if geometry.redundancy() == 0 {
            return Ok(());
        }
        for row in 0..geometry.rows {
            let unit = geometry.unit_at(row);
            if unit < range.end && range.start < unit + geometry.unit {
                self.scrub_row(row).await?;
            }
        }
        Ok(())
    }

    /// Makes the new device the member, if all of the array was `copied`; false if it has grown since, or
    /// the member is in doubt.
    async fn switch(
        self: &Rc<Self>,
        copied: u64,
        member: &Member,
        candidate: &Candidate,
        uuid: Uuid,
        twin: &Rc<Twin>,
        incarnation: u64,
    ) -> Result<bool, ArrayError> {
        let index = member.index;
        // What its device has lost is written again, to both.
        while member.is_in_doubt() && member.incarnation() == incarnation {
            self.verify(index).await?;
        }
        let alone = self.publication.exclusive().await;
        self.check_move(member, incarnation, twin, None)?;
        let end = self.geometry().end();
        if end != copied || member.is_in_doubt() {
            return Ok(false);
        }
        let (size, needs) = (candidate.device.info().size, end);
        if size < needs {
            return Err(ArrayError::TooSmall { device: candidate.name(), size, needs });
        }
        let held = self.turn(0..u64::MAX, member, incarnation, twin).await?;
        let new = Rc::clone(twin.new_io());
        twin.in_time(async move { new.flush().await })
            .await
            .map_err(|source| ArrayError::Device { device: candidate.name(), source })?;
        let failed = |source| ArrayError::Device { device: candidate.name(), source };
        let first = self.write_first_heartbeat(&candidate.io).await.map_err(failed)?;
        // Until the superblocks of the others list it, it belongs to no array.
        enlist(candidate, &Superblock { member: uuid, ..self.superblock() }).await?;
        self.check_move(member, incarnation, twin, None)?;
        let left = member.uuid();
        twin.switch();
        member.rehome(Arc::clone(&candidate.device), &candidate.io);
        member.reach.looked(Stamp::now());
        member.state.replace(uuid);
        member.confirmed.forget(first);
        member.counts.set(crate::MemberCounts::default());
        self.enter(index, Condition::Active, "");
        let published = self.publish_alone(&alone).await;
        drop(held);
        published?;
        self.give_back(left, false);
        tracing::info!("array {}: member {index} has moved to {}", self.name, candidate.name());
        Ok(true)
    }
}
