//! The state of a running array, in parts that have an owner each.
//!
//! All of it lives on the array's engine thread: stripes, journal and caches need one order of
//! events, and a single thread gives it without locks; buffers change threads without a copy. Other
//! threads hand their operations over (see [`crate::device`]).
//!
//! Invariants:
//! - once `halted` is set it stays, with its first reason, and nothing is written to a member any
//!   more: everything acknowledged stays where it is.

use crate::format::geometry::Geometry;
use crate::format::superblock::Superblock;
use crate::heal::moving::Moves;
use crate::heal::replace::Spares;
use crate::heal::upkeep::Upkeep;
use crate::io::IoState;
use crate::io::intent::Intent;
use crate::io::journal::Journal;
use crate::io::sums::Sums;
use crate::member::Member;
use crate::member::joining::Joining;
use crate::member::set::MemberSet;
use crate::options::Options;
use crate::session::Session;
use crate::session::publish::Publication;
use crate::without::Mechanism;
use longhaul_block::{IoError, IoResult};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uuid::Uuid;

/// Why an array does no I/O any more, as a class; the status says it in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaltReason {
    /// Another host has taken the array over: nothing of this session is written again.
    TakenOver,
    /// A member, or the witness, has recorded another history of the array.
    Diverged,
    /// More members are lost than the redundancy covers, or what must be recorded cannot be.
    Lost,
    /// It was stopped, or could not be started or stopped in order.
    Stopped,
}

pub(crate) struct Core {
    pub(crate) array: Uuid,
    pub(crate) name: String,
    /// Its shape: it changes when the array [grows](crate::heal::grow).
    geometry: Cell<Geometry>,
    /// Bytes of the array, for the handles that other threads have.
    pub(crate) size: Arc<AtomicU64>,
    pub(crate) options: Options,
    /// Why the array has halted, if so.
    halted: RefCell<Option<(HaltReason, String)>>,
    pub(crate) session: Session,
    pub(crate) publication: Publication,
    pub(crate) members: MemberSet,
    pub(crate) spares: Spares,
    pub(crate) moves: Moves,
    pub(crate) joining: Joining,
    pub(crate) io: IoState,
    pub(crate) sums: Sums,
    pub(crate) intent: Rc<Intent>,
    pub(crate) journal: Journal,
    pub(crate) upkeep: Upkeep,
}

impl Core {
    /// An array as its newest superblock describes it; `confirmed` is the newest generation that a
    /// heartbeat calls confirmed. No device is attached.
    pub(crate) fn new(superblock: &Superblock, options: Options, session: Session, confirmed: u64) -> Core {
        let geometry = superblock.geometry;
        Core {
            array: superblock.array,
            name: superblock.name.clone(),
            geometry: Cell::new(geometry),
            size: Arc::new(AtomicU64::new(geometry.size())),
            halted: RefCell::default(),
            publication: Publication::new(superblock, session.uuid, confirmed),
            session,
            members: MemberSet::new(geometry, &superblock.entries),
            spares: Spares::default(),
            moves: Moves::default(),
            joining: Joining::default(),
            io: IoState::new(&geometry, &options),
            sums: Sums::new(geometry, &options),
            intent: Rc::new(Intent::new(superblock.array, geometry.regions())),
            journal: Journal::new(superblock.array, geometry.journal),
            upkeep: Upkeep::new(&options),
            options,
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    /// From now on superblocks record this shape, and stripes are sought where it has them.
    pub(crate) fn set_geometry(&self, geometry: Geometry) {
        self.sums.grow(geometry);
        self.intent.grow(geometry.regions());
        self.geometry.set(geometry);
    }

    /// Users may read and write all of the array from now on.
    pub(crate) fn show_size(&self) {
        self.size.store(self.geometry().size(), Ordering::Release);
    }

    /// The members and the witness.
    pub(crate) fn members_and_witness(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().chain(self.session.witness.iter().map(|witness| &witness.member))
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.halted.borrow().is_some()
    }

    /// Why the array has halted, if so.
    pub(crate) fn why_halted(&self) -> Option<String> {
        self.halted.borrow().as_ref().map(|(_, why)| why.clone())
    }

    /// The class of that.
    pub(crate) fn halt_reason(&self) -> Option<HaltReason> {
        self.halted.borrow().as_ref().map(|(reason, _)| *reason)
    }

    /// Fails if the array has halted or stopped.
    pub(crate) fn check_running(&self) -> IoResult<()> {
        match &*self.halted.borrow() {
            None => Ok(()),
            Some((_, why)) => Err(IoError::Offline(format!("array {}: {why}", self.name))),
        }
    }

    /// How often members may have lost unflushed writes, in arrays without checksums, where a loss
    /// cannot be detected.
    pub(crate) fn undetected_losses(&self) -> u64 {
        if self.geometry().has_sums() { 0 } else { self.members.iter().map(Member::doubts).sum() }
    }

    /// Whether the heartbeat task has ended, so that no more checks take place.
    pub(crate) fn checks_ended(&self) -> bool {
        self.lacks(Mechanism::Fence) || (self.upkeep.stopping.get() && !self.is_halted())
    }

    /// Halts the array for good: acknowledged data stays where it is.
    pub(crate) fn halt(&self, reason: HaltReason, why: &str) {
        if !self.is_halted() {
            tracing::error!("array {}: {why}; it is read-only from now on", self.name);
        }
        self.end_as(reason, why);
    }

    /// As [`halt`](Self::halt), without an error in the log: the end is intended.
    pub(crate) fn end(&self, why: &str) {
        self.end_as(HaltReason::Stopped, why);
    }

    fn end_as(&self, reason: HaltReason, why: &str) {
        self.halted.borrow_mut().get_or_insert_with(|| (reason, why.to_owned()));
        if matches!(self.halt_reason(), Some(HaltReason::TakenOver | HaltReason::Stopped)) {
            self.session.lease.end();
        }
        self.session.lease.changed.notify();
        self.journal.wake();
        self.io.admission.wake();
        self.upkeep.changed.notify();
        self.members_and_witness().for_each(|member| member.reach.changed.notify());
    }
}
