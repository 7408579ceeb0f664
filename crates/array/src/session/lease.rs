//! How long this session may answer reads without asking the members again: a host that was overtaken
//! and has not noticed has old content in memory, and members without a reservation are read by any host.
//!
//! A takeover waits until heartbeats have stood still for [`TAKEOVER_BEATS`] half intervals. So for
//! [`FRESH_BEATS`] intervals after a heartbeat was begun that a member has confirmed, no host has taken the
//! array over with that member. A read is answered while no set of members that another host could start
//! with lacks such a heartbeat; in memory that is one [`Stamp`], which each read compares with the clock.
//! Once it has expired, a read waits for the next checks of the heartbeats, or the loss of the array.
//!
//! Invariants:
//! - a read is answered only if no other session had acknowledged anything when its content was
//!   complete;
//! - `valid` is no later than the last heartbeat of any member that a takeover cannot do without;
//! - once `ended` is set no read is answered any more.

use crate::core::{Core, HaltReason};
use crate::event::Event;
use crate::format::geometry::{BLOCK, HEARTBEAT_AT};
use crate::heal::upkeep::is_over;
use crate::member::Member;
use crate::member::reach::FRESH_BEATS;
use crate::session::clock::Stamp;
use crate::session::fence::{LOOK_PARTS, TAKEOVER_BEATS};
use crate::without::Mechanism;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use longhaul_block::{IoError, IoResult};
use longhaul_engine::timeout;
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::time::Duration;

/// See the module.
#[derive(Default)]
pub(crate) struct ReadLease {
    /// Reads are answered until this is [`FRESH_BEATS`] old.
    valid: Cell<Option<Stamp>>,
    ended: Cell<bool>,
    /// Notified after a check of a heartbeat, when `valid` may have changed, and after a halt.
    pub(crate) changed: Event,
}

impl ReadLease {
    fn is_valid(&self, time: Duration) -> bool {
        self.valid.get().is_some_and(|begun| begun.age() < time)
    }

    /// Another host may have the array from now on.
    pub(crate) fn end(&self) {
        self.ended.set(true);
        self.valid.set(None);
        self.changed.notify();
    }
}

/// The heartbeats of this session that a member has confirmed one after another.
///
/// A heartbeat that follows the last one after more than the time of a takeover proves nothing by
/// itself: the other host may have watched in between, and be about to write its own. Such a host
/// does that within an interval divided by [`LOOK_PARTS`], or waits until this lease has run out.
#[derive(Default)]
pub(crate) struct BeatChain {
    /// When the first one after the last gap was confirmed.
    since: Cell<Option<Stamp>>,
    /// When the last one was begun.
    last: Cell<Option<Stamp>>,
    /// When the last one was begun that no takeover can have preceded.
    proven: Cell<Option<Stamp>>,
}

impl BeatChain {
    /// The heartbeat that was begun at `looked`, with which the session took the member, was confirmed.
    pub(crate) fn begin(&self, looked: Stamp) {
        self.since.set(Some(looked));
        self.last.set(Some(looked));
        self.proven.set(Some(looked));
    }

    /// The member has joined or returned.
    pub(crate) fn restart(&self) {
        self.since.set(None);
        self.last.set(None);
        self.proven.set(None);
    }

    /// A heartbeat that was begun at `looked` is confirmed. `is_reserved`: the member refuses it once
    /// another host has reserved the member, and that host looks for one that came before.
    fn confirm(&self, looked: Stamp, interval: Duration, is_reserved: bool) {
        let takeover = interval * TAKEOVER_BEATS / 2;
        if self.last.get().is_none_or(|last| last.age() >= takeover) {
            self.since.set(Some(Stamp::now()));
        }
        self.last.set(Some(looked));
        let is_late = |since: Stamp| looked.since(&since) >= interval / LOOK_PARTS;
        if is_reserved || self.since.get().is_some_and(is_late) {
            self.proven.set(Some(looked));
        }
    }
}

impl Core {
    /// How long a confirmed heartbeat lasts: less than a takeover takes.
    pub(crate) fn lease_time(&self) -> Duration {
        self.options.heartbeat * FRESH_BEATS
    }

    /// A member, or the witness, has confirmed a heartbeat that was begun at `looked`.
    pub(crate) fn confirm_lease(&self, member: &Member, looked: Stamp) {
        member.beats.confirm(looked, self.options.heartbeat, self.session.held.has(member.uuid()));
        self.renew_lease();
    }

    /// Finds out until when reads may be answered: after a heartbeat, and after a change of members.
    pub(crate) fn renew_lease(&self) {
        let lease = &self.session.lease;
        if lease.ended.get() {
            return;
        }
        let proven = |member: &Member| member.beats.proven.get();
        let all: Vec<Stamp> = self.members_and_witness().filter_map(proven).collect();
        // The latest one with which those that are as late keep others from a takeover.
        let keeps = |begun: &&Stamp| {
            !self.is_open_to_others(|member| proven(member).is_some_and(|own| own.is_after(begun)))
        };
        let latest = all.iter().filter(keeps).reduce(|a, b| if a.is_after(b) { a } else { b });
        lease.valid.set(latest.copied());
        lease.changed.notify();
    }

    /// Whether another host could have taken the array over, if it cannot have done so with any of the
    /// members that are `kept`: the others suffice, and those do not, or there is a witness among the
    /// others that allows it (see [`crate::assembly::current`]).
    fn is_open_to_others(&self, kept: impl Fn(&Member) -> bool) -> bool {
        // Another host goes by what the other members record. Until all do, a member that was lost may be
        // one to start with, and a member that has returned is one that may be missing.
        let is_recorded = |member: &Member| member.state.since() <= self.publication.confirmed();
        let may_start = |index: usize| {
            let member = &self.members[index];
            !kept(member) && (member.is_active() || !is_recorded(member))
        };
        let must_be_there = |index: usize| {
            let member = &self.members[index];
            kept(member) && member.is_active() && is_recorded(member)
        };
        let geometry = self.geometry();
        let witness = self.session.witness.as_ref().is_some_and(|witness| !kept(&witness.member));
        geometry.is_enough(may_start) && (witness || !geometry.is_enough(must_be_there))
    }

    /// Returns once it is known that no other host had the array when this was called. Costs a look at
    /// the clock unless heartbeats are late.
    ///
    /// # Errors
    /// Another host has taken the array over, or may do so, since it was stopped or has halted.
    pub(crate) async fn until_owned(&self) -> IoResult<()> {
        if self.session.lease.is_valid(self.lease_time()) {
            return Ok(());
        }
        if self.lacks(Mechanism::Fence) || self.lacks(Mechanism::Lease) {
            return Ok(());
        }
        self.until_looked(Stamp::now()).await
    }

    /// The same, before this session claims a device that it does not use yet: a session that has lost the
    /// array, or has ended, must not take that device from the one that has it. The heartbeat on the device does not
    /// tell: a session that has reserved it, and runs without it for now, writes its heartbeats to the others.
    ///
    /// # Errors
    /// As of [`until_owned`](Self::until_owned); and the array has halted, or is being stopped.
    pub(crate) async fn until_owned_to_claim(&self) -> IoResult<()> {
        let (owned, over) = (pin!(self.until_owned()), self.upkeep.changed.until(|| is_over(self)));
        if let Either::Left((owned, _)) = select(owned, pin!(over)).await {
            owned?;
        }
        self.check_running()?;
        if self.upkeep.stopping.get() { Err(IoError::Aborted) } else { Ok(()) }
    }

    /// As [`until_owned`](Self::until_owned), for what was complete at `came`: a member that was found without
    /// another session after that had not been taken over by then, however long the check took.
    async fn until_looked(&self, came: Stamp) -> IoResult<()> {
        let time = self.lease_time();
        let is_kept = |member: &Member| {
            let proven = member.beats.proven.get().is_some_and(|begun| begun.age() < time);
            proven || member.reach.was_seen_after(&came, time)
        };
        if !self.upkeep.stopping.get() {
            for member in self.members_and_witness().filter(|member| !is_kept(member)) {
                member.reach.wanted.set(true);
            }
            self.upkeep.changed.notify();
        }
        let is_owned = || !self.session.lease.ended.get() && !self.is_open_to_others(is_kept);
        self.session.lease.changed.until(|| self.is_halted() || is_owned()).await;
        match self.halt_reason() {
            None => Ok(()),
            Some(HaltReason::TakenOver | HaltReason::Stopped) => self.check_running(),
            // No heartbeat is written any more, and what is left may be read.
            Some(HaltReason::Diverged | HaltReason::Lost) => self.look_for_others().await,
        }
    }

    /// Looks for another session on the members that can be read, until those suffice.
    async fn look_for_others(&self) -> IoResult<()> {
        let gone = |why: String| Err(IoError::Offline(format!("array {}: {why}", self.name)));
        let seen = RefCell::new(Vec::new());
        let was_seen = |member: &Member| seen.borrow().contains(&member.index);
        let looks = async {
            let usable = self.members_and_witness().filter(|member| member.is_usable());
            let reads = usable.map(async |member| (member.index, member.read(HEARTBEAT_AT, BLOCK).await));
            let mut reads: FuturesUnordered<_> = reads.collect();
            while let Some((index, read)) = reads.next().await {
                let is_read = read.is_ok();
                if let Some((_, other)) = self.running_sessions(&[(index, read)]).first() {
                    let session = other.session;
                    return gone(format!("session {session} has taken it over, according to member {index}"));
                }
                if is_read {
                    seen.borrow_mut().push(index);
                }
                if !self.is_open_to_others(was_seen) {
                    break;
                }
            }
            Ok(())
        };
        // Some of them may be lost, and not answer at all.
        timeout(self.options.heartbeat, looks).await.unwrap_or(Ok(()))?;
        if self.is_open_to_others(was_seen) {
            let why = self.why_halted().unwrap_or_default();
            return gone(format!("another host may have taken it over with the other members since: {why}"));
        }
        Ok(())
    }
}
