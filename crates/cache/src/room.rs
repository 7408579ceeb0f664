//! How much may be written behind, in memory that is bounded.
//!
//! Invariants:
//! - `bytes` and `count` are those of the changes that were let in and have not ended;
//! - changes that ask for room get it in the order in which they came;
//! - with room asked for, changes under way and kept ones together take at most `limit`
//!   bytes, and one change.

use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Waker;

/// Changes that are let in at a time: each one that comes has to be compared with all
/// that wait.
const COUNT_MAX: usize = 1024;

/// What else determines whether there is room.
pub(crate) struct Load {
    /// Bytes that the device advises to have under way.
    pub(crate) advised: u64,
    /// Bytes of unflushed changes that are kept.
    pub(crate) kept: u64,
    /// Whether kept changes are being resent.
    pub(crate) resending: bool,
}

/// Memory for changes.
pub(crate) struct Room {
    limit: u64,
    bytes: Cell<u64>,
    count: Cell<usize>,
    /// Changes that wait to be let in, in their order.
    waiting: RefCell<VecDeque<(u64, oneshot::Sender<()>)>>,
    /// Tasks that wait until no more than the bounds is under way.
    over: RefCell<Vec<Waker>>,
}

impl Room {
    /// Lets in what fits `limit` bytes.
    pub(crate) fn new(limit: u64) -> Room {
        Room {
            limit,
            bytes: Cell::new(0),
            count: Cell::new(0),
            waiting: RefCell::default(),
            over: RefCell::default(),
        }
    }

    /// Whether no change is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.count.get() == 0
    }

    fn has_room(&self, bytes: u64, load: &Load) -> bool {
        let kept = load.kept;
        if self.is_idle() {
            // A change larger than the limit is let in alone; and a resend with
            // a later turn waits for this one.
            return kept == 0 || load.resending || kept.saturating_add(bytes) <= self.limit;
        }
        let taken = self.bytes.get().saturating_add(bytes);
        self.count.get() < COUNT_MAX
            && taken <= load.advised.min(self.limit)
            && taken.saturating_add(kept) <= self.limit
    }

    /// Whether `kept` bytes have to be flushed before more can come.
    pub(crate) fn needs_flush(&self, kept: u64) -> bool {
        let full = |bytes: u64| kept > 0 && kept.saturating_add(bytes) > self.limit;
        kept > self.limit / 2
            || self.is_idle() && self.waiting.borrow().front().is_some_and(|(bytes, _)| full(*bytes))
    }

    /// Reserves memory for a change; if it does not fit, returns a receiver to wait on.
    pub(crate) fn admit(&self, bytes: u64, load: &Load) -> Option<oneshot::Receiver<()>> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() && self.has_room(bytes, load) {
            self.take(bytes);
            return None;
        }
        let (tell, told) = oneshot::channel();
        waiting.push_back((bytes, tell));
        Some(told)
    }

    /// Lets a change in at once, over the limit or not.
    pub(crate) fn take(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
        self.count.set(self.count.get() + 1);
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() - bytes);
        self.count.set(self.count.get() - 1);
    }

    /// A change has ended: another one may have its room.
    pub(crate) fn done(&self, bytes: u64, load: &Load) {
        self.give_back(bytes);
        self.let_in(load);
    }

    /// Lets in the changes for which there is room now.
    pub(crate) fn let_in(&self, load: &Load) {
        let mut waiting = self.waiting.borrow_mut();
        while waiting.front().is_some_and(|(bytes, _)| self.has_room(*bytes, load)) {
            let Some((bytes, tell)) = waiting.pop_front() else { break };
            self.take(bytes);
            if tell.send(()).is_err() {
                self.give_back(bytes);
            }
        }
        drop(waiting);
        if !self.over.borrow().is_empty() {
            self.over.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Whether more is under way than the device advises, or more is kept than the limit;
    /// if so, wakes `waker` when that may have changed.
    pub(crate) fn is_over(&self, load: &Load, waker: &Waker) -> bool {
        let over = self.bytes.get() > load.advised || load.kept > self.limit;
        if over {
            self.over.borrow_mut().push(waker.clone());
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(kept: u64, resending: bool) -> Load {
        Load { advised: 100, kept, resending }
    }

    fn is_in(admitted: &mut oneshot::Receiver<()>) -> bool {
        admitted.try_recv() == Ok(Some(()))
    }

    #[test]
    fn changes_are_let_in_in_their_order_as_far_as_the_device_advises() {
        let room = Room::new(1000);
        let load = load(0, false);
        assert!(room.admit(60, &load).is_none());
        let mut second = room.admit(60, &load).expect("more than the device advises");
        let mut third = room.admit(10, &load).expect("it came after the second one");
        assert!(!is_in(&mut second) && !is_in(&mut third));
        room.done(60, &load);
        assert!(is_in(&mut second) && is_in(&mut third));
        // One that is given up leaves its room to the next one.
        drop(room.admit(100, &load).expect("no room"));
        let mut last = room.admit(100, &load).expect("no room");
        room.done(60, &load);
        assert!(!is_in(&mut last));
        room.done(10, &load);
        assert!(is_in(&mut last));
        room.done(100, &load);
        assert!(room.is_idle());
    }

    #[test]
    fn kept_changes_are_flushed_when_others_need_their_room() {
        let room = Room::new(100);
        assert!(room.needs_flush(51) && !room.needs_flush(50));
        let mut large = room.admit(60, &load(50, false)).expect("no room beside the kept changes");
        assert!(room.needs_flush(50), "nothing else makes room for it");
        room.let_in(&load(50, false));
        assert!(!is_in(&mut large));
        // A resend waits for the changes before it, so they cannot wait for its end.
        room.let_in(&load(50, true));
        assert!(is_in(&mut large) && !room.needs_flush(50));
        // One that is larger than all of the room is let in alone.
        assert!(Room::new(100).admit(500, &load(0, false)).is_none());
    }

    #[test]
    fn a_change_that_was_not_admitted_is_over_the_bounds_until_it_ends() {
        let room = Room::new(50);
        let is_over = |kept| room.is_over(&load(kept, false), Waker::noop());
        room.take(150);
        assert!(is_over(0));
        room.done(150, &load(0, false));
        assert!(!is_over(50) && is_over(51));
    }
}
