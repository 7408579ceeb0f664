//! The condition of a member, as the superblocks record it.
//!
//! Invariants:
//! - `have` is `u64::MAX` in a member that has become active, and the rows that a rebuild had
//!   completed in one that went offline during it; [`MemberState::enter`] alone sets both;
//! - the `done` of a rebuild never falls while the member stays under rebuild;
//! - `missing_since` is set as long as the member is offline or failed.

use crate::format::superblock::{Condition, MemberEntry};
use longhaul_engine::now;
use std::cell::{Cell, RefCell};
use std::time::Instant;
use uuid::Uuid;

/// Entry of a member in the superblock, and why the member is in its condition.
pub(crate) struct MemberState {
    uuid: Cell<Uuid>,
    condition: Cell<Condition>,
    /// Generation in which it entered its condition.
    since: Cell<u64>,
    /// Rows that a rebuild had completed when the member went offline; `u64::MAX` if it was not
    /// under rebuild.
    have: Cell<u64>,
    /// Why it is not active, for messages.
    reason: RefCell<String>,
    missing_since: Cell<Option<Instant>>,
}

impl MemberState {
    /// The state that a superblock records.
    pub(crate) fn new(entry: &MemberEntry) -> MemberState {
        MemberState {
            uuid: Cell::new(entry.uuid),
            condition: Cell::new(entry.condition),
            since: Cell::new(entry.since),
            have: Cell::new(entry.have),
            reason: RefCell::default(),
            missing_since: Cell::default(),
        }
    }

    pub(crate) fn uuid(&self) -> Uuid {
        self.uuid.get()
    }

    pub(crate) fn condition(&self) -> Condition {
        self.condition.get()
    }

    /// Generation in which it entered its condition.
    pub(crate) fn since(&self) -> u64 {
        self.since.get()
    }

    /// Rows that it has from a rebuild that was interrupted; `u64::MAX` for all.
    pub(crate) fn have(&self) -> u64 {
        self.have.get()
    }

    /// Why it is not active, for messages; empty if it is.
    pub(crate) fn reason(&self) -> String {
        self.reason.borrow().clone()
    }

    /// Since when it is offline or failed, in this session.
    pub(crate) fn missing_since(&self) -> Option<Instant> {
        self.missing_since.get()
    }

    /// Enters a condition in a generation, which the caller publishes.
    pub(crate) fn enter(&self, condition: Condition, generation: u64, reason: &str) {
        match (self.condition(), condition) {
            // The rebuild continues from here when the member returns.
            (Condition::Rebuilding { done, partial: false }, Condition::Offline) => self.have.set(done),
            (_, Condition::Active) => self.have.set(u64::MAX),
            _ => {}
        }
        self.condition.set(condition);
        self.since.set(generation);
        self.explain(reason);
        self.note_missing();
    }

    /// Starts the time that the member is missing if it is, and ends it otherwise.
    pub(crate) fn note_missing(&self) {
        let since = match self.condition() {
            Condition::Active | Condition::Rebuilding { .. } => None,
            Condition::Offline | Condition::Failed => self.missing_since.get().or_else(|| Some(now())),
        };
        self.missing_since.set(since);
    }

    /// Advances the progress of a rebuild to `rows`; without effect if the member is not under
    /// rebuild any more.
    pub(crate) fn advance(&self, rows: u64) {
        if let Condition::Rebuilding { done, partial } = self.condition() {
            assert!(done <= rows, "the progress of a rebuild falls from {done} to {rows} rows");
            self.condition.set(Condition::Rebuilding { done: rows, partial });
        }
    }

    /// Records that it has no row from before: its next rebuild begins at the first one.
    pub(crate) fn discard_rows(&self) {
        self.have.set(0);
    }

    /// Changes the reason alone.
    pub(crate) fn explain(&self, reason: &str) {
        reason.clone_into(&mut self.reason.borrow_mut());
    }

    /// Another device, with this UUID, is the member from now on.
    pub(crate) fn replace(&self, uuid: Uuid) {
        self.uuid.set(uuid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rebuilding(done: u64) -> MemberState {
        let condition = Condition::Rebuilding { done, partial: false };
        MemberState::new(&MemberEntry { uuid: Uuid::nil(), condition, since: 1, have: 0, known: 0 })
    }

    #[test]
    fn an_interrupted_rebuild_keeps_its_rows_until_the_member_is_active() {
        let state = rebuilding(5);
        state.advance(9);
        state.enter(Condition::Offline, 2, "unplugged");
        assert_eq!((state.have(), state.since(), state.reason()), (9, 2, "unplugged".to_owned()));
        let missing = state.missing_since().expect("it is offline");
        state.enter(Condition::Failed, 3, "removed");
        assert_eq!(state.missing_since(), Some(missing), "it was missing before");
        state.enter(Condition::Active, 4, "");
        assert_eq!((state.have(), state.missing_since()), (u64::MAX, None));
        state.advance(3);
        assert_eq!(state.condition(), Condition::Active);
    }

    #[test]
    #[should_panic(expected = "falls from 5 to 4 rows")]
    fn the_progress_of_a_rebuild_does_not_fall() {
        rebuilding(5).advance(4);
    }
}
