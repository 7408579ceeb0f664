//! When something may be written to a member, and how long it is waited for.
//!
//! Invariants:
//! - nothing is written to a member but after a look at its heartbeat that
//!   began less than two heartbeats ago (or after the write came), and has
//!   found nobody else: a host that was suspended, or cut off, looks first whether
//!   the array is still its own. That time is taken from clocks that go on while
//!   the machine is suspended, immediately before the write is handed to the
//!   device;
//! - a member is given up only if the array can do without all that are out of
//!   reach at that moment, or for good reason: where all are, it is this host
//!   that is cut off, and they are waited for as any device is.

use crate::clock::Stamp;
use crate::core::Core;
use crate::event::Event;
use crate::member::{Member, MemberError, MemberResult, is_absence};
use crate::without::Mechanism;
use futures_util::future::{Either, select};
use longhaul_block::IoResult;
use longhaul_engine::{now, timeout};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

/// Heartbeats after which a look at who uses a member does not count any more:
/// less than others wait for one until they take it over.
const FRESH_BEATS: u32 = 2;
/// Heartbeats, in halves, after which a member from which nothing has come is out
/// of reach: a look at one would have been answered meanwhile.
const SILENT_HALVES: u32 = 3;
/// How often it is looked whether a member that does not answer is needed.
const AGAIN: Duration = Duration::from_secs(1);

/// What is known of the way to a member.
#[derive(Default)]
pub(crate) struct Reach {
    /// The array that it is of, while that runs.
    core: RefCell<Weak<Core>>,
    /// When the last look at who uses it began that has found nobody else.
    seen: Cell<Option<Stamp>>,
    /// A write waits for a look that is not to wait for its turn.
    pub(crate) wanted: Cell<bool>,
    /// Why the last look has failed: the member is about to be lost.
    unseen: RefCell<Option<MemberError>>,
    /// There was a look, or there will be none.
    pub(crate) changed: Event,
    /// When it answered for the last time.
    answered: Cell<Option<Instant>>,
}

impl Reach {
    /// Says which array it is of.
    pub(crate) fn belong(&self, core: &Rc<Core>) {
        *self.core.borrow_mut() = Rc::downgrade(core);
    }

    fn core(&self) -> Option<Rc<Core>> {
        self.core.borrow().upgrade()
    }

    /// A look that began at that time has found that nobody else uses it.
    pub(crate) fn looked(&self, since: Stamp) {
        if self.seen.get().is_none_or(|seen| since.is_after(&seen)) {
            self.seen.set(Some(since));
        }
        *self.unseen.borrow_mut() = None;
        self.changed.notify();
    }

    /// A look has failed: who waits for one waits in vain.
    pub(crate) fn failed(&self, error: &MemberError) {
        *self.unseen.borrow_mut() = Some(error.clone());
        self.changed.notify();
    }

    /// An answer has come, or what stands for one.
    pub(crate) fn note<T>(&self, result: IoResult<T>) -> IoResult<T> {
        if !result.as_ref().is_err_and(is_absence) {
            self.answered.set(Some(now()));
        }
        result
    }

    /// It has another device, of which nothing is known yet.
    pub(crate) fn renew(&self) {
        self.answered.set(Some(now()));
    }

    /// Whether something may be written that came at that time: nobody else can
    /// have taken the member over since the last look, or there was one since.
    fn may_write(&self, core: &Core, came: &Stamp) -> bool {
        let fresh = core.options.heartbeat * FRESH_BEATS;
        // One that began later counts however long it took, but not if the machine
        // may have stood still since.
        let is_fresh = |at: Stamp| at.age() <= fresh || (at.is_after(came) && at.gap() <= fresh);
        core.looks_no_more() || core.lacks(Mechanism::Gate) || self.seen.get().is_some_and(is_fresh)
    }

    /// Whether the machine may have stood still since the last look for so long that
    /// another host may have taken the member over.
    fn stood_still(&self, core: &Core) -> bool {
        let fresh = core.options.heartbeat * FRESH_BEATS;
        self.seen.get().is_some_and(|seen| seen.gap() > fresh)
    }
}

impl Member {
    /// Returns when something may be written to it.
    pub(crate) async fn until_ours(&self) -> MemberResult<()> {
        let (reach, came) = (&self.reach, Stamp::now());
        let Some(core) = reach.core().filter(|core| !reach.may_write(core, &came)) else { return Ok(()) };
        if reach.stood_still(&core) {
            // Timers have stood still as well.
            reach.wanted.set(true);
            core.upkeep.changed.notify();
        }
        let incarnation = self.incarnation();
        let failed = || reach.unseen.borrow().clone().filter(|error| self.is_own(error));
        let ends = || failed().is_some() || core.check_running().is_err();
        let look = pin!(reach.changed.until(|| reach.may_write(&core, &came) || ends()));
        let looked =
            matches!(select(pin!(self.patiently(look)), self.over()).await, Either::Left((Ok(()), _)));
        if looked && !ends() {
            return Ok(());
        }
        Err(failed().unwrap_or_else(|| MemberError { error: self.gone(), incarnation }))
    }

    /// Waits for an operation, and longer if the array cannot do without it; or
    /// says how long that was.
    pub(crate) async fn patiently<F: Future + Unpin>(&self, mut operation: F) -> Result<F::Output, Duration> {
        let began = now();
        let Some(core) = self.reach.core() else { return Ok(operation.await) };
        let (most, needed_most) = (core.options.member_timeout, core.options.needed_timeout);
        drop(core);
        let mut limit = most;
        loop {
            if let Ok(result) = timeout(limit, &mut operation).await {
                return Ok(result);
            }
            let time = now() - began;
            let spared = self.spared(time);
            if spared >= most || time >= needed_most {
                return Err(time);
            }
            limit = (most - spared).min(AGAIN);
        }
    }

    /// Whether it is out of reach, as far as anybody knows.
    pub(crate) fn is_silent(&self, core: &Core) -> bool {
        let limit = core.options.heartbeat * SILENT_HALVES / 2;
        let is_long = |at: Instant| now().saturating_duration_since(at) >= limit;
        self.away().is_some() || (!core.looks_no_more() && self.reach.answered.get().is_some_and(is_long))
    }

    /// How much of the last time the array could do without it, and what else was
    /// out of reach.
    fn spared(&self, time: Duration) -> Duration {
        let Some(core) = self.reach.core() else { return time };
        let without = [core.out_of_reach(), vec![self.index]].concat();
        core.misses(&without);
        core.spared(time)
    }
}
