//! When a member may be written, and how long an operation on it may take.
//!
//! Invariants:
//! - a member is written only if the check in `seen`, which found no other session, began less than
//!   two heartbeats ago or after the write was submitted: a host that was suspended
//!   or cut off first checks that it still owns the array. The age is taken, immediately before the
//!   write is handed to the device, from a clock that runs while the machine is suspended;
//! - a member is given up only if the array can do without all members that are unreachable at that
//!   moment, or after `needed_timeout`: if all are unreachable, this host is the one cut off, and
//!   it waits as it would for a single device. An array that has halted waits no longer than
//!   `member_timeout`: it loses no member any more, and since its heartbeats have ended all members
//!   that are not being used count as silent.

use crate::core::{Core, HaltReason};
use crate::event::Event;
use crate::member::{Member, MemberError, MemberResult, is_unreachable};
use crate::session::clock::Stamp;
use crate::without::Mechanism;
use futures_util::future::{Either, select};
use longhaul_block::IoResult;
use longhaul_engine::{now, timeout};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

/// Heartbeats after which a check of a member's heartbeat expires: less than another host waits
/// before a takeover.
pub(crate) const FRESH_BEATS: u32 = 2;
/// Half heartbeats without an answer after which a member counts as unreachable: a check would have
/// been answered by then.
const SILENT_HALVES: u32 = 3;
/// Interval at which a waiting operation looks again whether the array needs its member.
const AGAIN: Duration = Duration::from_secs(1);

/// Reachability of a member, and the last check of its heartbeat.
#[derive(Default)]
pub(crate) struct Reach {
    /// The array that the member belongs to, while that runs.
    core: RefCell<Weak<Core>>,
    /// When the last check began that found no other session.
    seen: Cell<Option<Stamp>>,
    /// A write needs a check at once, not at the next heartbeat.
    pub(crate) wanted: Cell<bool>,
    /// The error of the last check, if it failed: the member is about to be lost.
    unseen: RefCell<Option<MemberError>>,
    /// Notified after a check, and when there will be no more.
    pub(crate) changed: Event,
    /// When the member last answered.
    answered: Cell<Option<Instant>>,
}

impl Reach {
    /// Sets the array that the member belongs to.
    pub(crate) fn belong(&self, core: &Rc<Core>) {
        *self.core.borrow_mut() = Rc::downgrade(core);
    }

    fn core(&self) -> Option<Rc<Core>> {
        self.core.borrow().upgrade()
    }

    /// Records a check that began at `since` and found no other session.
    pub(crate) fn looked(&self, since: Stamp) {
        if self.seen.get().is_none_or(|seen| since.is_after(&seen)) {
            self.seen.set(Some(since));
        }
        *self.unseen.borrow_mut() = None;
        self.changed.notify();
        if let Some(core) = self.core() {
            core.session.lease.changed.notify();
        }
    }

    /// Whether a check that found no other session began at `stamp` or later, and the machine was not
    /// suspended for longer than `most` since.
    pub(crate) fn was_seen_after(&self, stamp: &Stamp, most: Duration) -> bool {
        self.seen.get().is_some_and(|seen| seen.is_after(stamp) && seen.gap() <= most)
    }

    /// Records a failed check; writes that wait for it fail.
    pub(crate) fn failed(&self, error: &MemberError) {
        *self.unseen.borrow_mut() = Some(error.clone());
        self.changed.notify();
    }

    /// Records that an answer has come: success, or an error other than that of an unreachable member.
    pub(crate) fn note<T>(&self, result: IoResult<T>) -> IoResult<T> {
        if !result.as_ref().is_err_and(is_unreachable) {
            self.answered.set(Some(now()));
        }
        result
    }

    /// The device of `member` has refused an operation since another host has reserved it.
    pub(crate) fn refused(&self, member: &Member) {
        if let Some(core) = self.core() {
            core.note_conflict(member);
        }
    }

    /// Restarts the silence timer for a new device.
    pub(crate) fn renew(&self) {
        self.answered.set(Some(now()));
    }

    /// Whether a write submitted at `came` may be sent: the last check is recent, or began after
    /// `came`.
    fn may_write(&self, core: &Core, came: &Stamp) -> bool {
        let fresh = core.options.heartbeat * FRESH_BEATS;
        // A check that began after the write counts however long it took, unless the machine may
        // have been suspended since.
        let is_fresh = |at: Stamp| at.age() <= fresh || (at.is_after(came) && at.gap() <= fresh);
        core.checks_ended() || core.lacks(Mechanism::Gate) || self.seen.get().is_some_and(is_fresh)
    }

    /// Whether the machine may have been suspended since the last check for long enough for a
    /// takeover.
    fn stood_still(&self, core: &Core) -> bool {
        let fresh = core.options.heartbeat * FRESH_BEATS;
        self.seen.get().is_some_and(|seen| seen.gap() > fresh)
    }
}

impl Member {
    /// Returns once a check allows writes to this member.
    pub(crate) async fn until_writable(&self) -> MemberResult<()> {
        let (reach, came) = (&self.reach, Stamp::now());
        let Some(core) = reach.core() else { return Ok(()) };
        if core.halt_reason() == Some(HaltReason::TakenOver) {
            return Err(MemberError { error: self.offline_error(), incarnation: self.incarnation() });
        }
        if reach.may_write(&core, &came) {
            return Ok(());
        }
        if reach.stood_still(&core) {
            // Timers have not run either, so ask for a check at once.
            reach.wanted.set(true);
            core.upkeep.changed.notify();
        }
        let incarnation = self.incarnation();
        let failed = || reach.unseen.borrow().clone().filter(|error| self.is_own(error));
        let ends = || failed().is_some() || core.check_running().is_err();
        let look = pin!(reach.changed.until(|| reach.may_write(&core, &came) || ends()));
        let looked =
            matches!(select(pin!(self.with_timeout(look)), self.over()).await, Either::Left((Ok(()), _)));
        if looked && !ends() {
            return Ok(());
        }
        Err(failed().unwrap_or_else(|| MemberError { error: self.offline_error(), incarnation }))
    }

    /// Waits for an operation up to the member's timeout, or longer while the array runs and needs the
    /// member. On a timeout returns the time waited.
    pub(crate) async fn with_timeout<F: Future + Unpin>(
        &self,
        mut operation: F,
    ) -> Result<F::Output, Duration> {
        let began = now();
        let Some(core) = self.reach.core() else { return Ok(operation.await) };
        let (most, needed_most) = (core.options.member_timeout, core.options.needed_timeout);
        drop(core);
        // Looks as often from the beginning on: which members were unreachable together is not known
        // any more when the first of them answer again.
        let mut limit = most.min(AGAIN);
        loop {
            if let Ok(result) = timeout(limit, &mut operation).await {
                return Ok(result);
            }
            let time = now() - began;
            let spared = self.spared(time);
            let is_halted = self.reach.core().is_none_or(|core| core.is_halted());
            if spared >= most || time >= if is_halted { most } else { needed_most } {
                return Err(time);
            }
            limit = (most - spared).min(AGAIN);
        }
    }

    /// Whether the member is unreachable, by its device's word or by silence.
    pub(crate) fn is_silent(&self, core: &Core) -> bool {
        let limit = core.options.heartbeat * SILENT_HALVES / 2;
        let is_long = |at: Instant| now().saturating_duration_since(at) >= limit;
        self.disconnected().is_some()
            || (!core.checks_ended() && self.reach.answered.get().is_some_and(is_long))
    }

    /// For how much of the last `time` the array could do without this member and all others that
    /// were unreachable.
    fn spared(&self, time: Duration) -> Duration {
        let Some(core) = self.reach.core() else { return time };
        let without = [core.out_of_reach(), vec![self.index]].concat();
        core.members.misses(&without);
        core.members.spared(time)
    }
}
