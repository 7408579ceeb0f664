//! The sessions that have written the superblocks of an array, in order.
//!
//! A generation is a number, and two sets of members that were used apart from each other both
//! increment it. The history distinguishes them: each superblock lists the sessions that it
//! descends from.
//!
//! Invariants:
//! - sessions are in the order in which they began, each with the first generation that it wrote;
//! - the last one has written the superblock that the history is in;
//! - at most [`ERAS_MAX`] are kept: the oldest is dropped first.

use uuid::Uuid;

/// Sessions that a superblock has space for.
pub(crate) const ERAS_MAX: usize = 12;

/// The superblocks of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Era {
    /// UUID of the session.
    pub(crate) session: Uuid,
    /// The first generation that it wrote.
    pub(crate) from: u64,
}

/// The sessions that a superblock descends from. Empty on a member that was never used, or whose
/// superblock has a version without a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History(Vec<Era>);

impl History {
    /// A history read with a superblock of this generation; `None` if it is not in order.
    pub(crate) fn of(eras: Vec<Era>, generation: u64) -> Option<History> {
        let ordered = eras.windows(2).all(|pair| pair[0].from < pair[1].from);
        let past = eras.last().is_none_or(|era| era.from <= generation);
        (ordered && past).then_some(History(eras))
    }

    pub(crate) fn eras(&self) -> &[Era] {
        &self.0
    }

    /// The session that is writing.
    pub(crate) fn last(&self) -> Option<Era> {
        self.0.last().copied()
    }

    /// Adds a session whose first generation is `from`.
    pub(crate) fn begin(&mut self, session: Uuid, from: u64) {
        assert!(self.0.last().is_none_or(|last| last.from < from), "sessions begin in order");
        if self.0.len() >= ERAS_MAX {
            self.0.remove(0);
        }
        self.0.push(Era { session, from });
    }

    /// Whether a superblock of this history, which has reached `newest`, descends from the one with
    /// generation `generation` that `era` wrote; `None` if unknown.
    pub(crate) fn holds(&self, newest: u64, generation: u64, era: Option<Era>) -> Option<bool> {
        let era = era?;
        match self.0.iter().position(|own| *own == era) {
            Some(at) => Some(generation < self.0.get(at + 1).map_or(newest + 1, |next| next.from)),
            None => self.knows(era).then_some(false),
        }
    }

    /// Whether the history reaches back to the start of that session.
    fn knows(&self, era: Era) -> bool {
        self.0.len() < ERAS_MAX || self.0.first().is_some_and(|first| first.from <= era.from)
    }

    /// The newest generation that a superblock of this history, which has reached `newest`, shares
    /// with another; zero if unknown.
    pub(crate) fn fork(&self, newest: u64, other: &History, other_newest: u64) -> u64 {
        let next = |history: &History, at: usize, newest: u64| {
            history.0.get(at).map_or(newest + 1, |next| next.from)
        };
        let common = other.0.iter().enumerate().rev().find_map(|(theirs, era)| {
            self.0.iter().position(|own| own == era).map(|ours| (ours + 1, theirs + 1))
        });
        let whole = self.0.len() < ERAS_MAX && other.0.len() < ERAS_MAX;
        match common.or(whole.then_some((0, 0))) {
            Some((ours, theirs)) => next(self, ours, newest).min(next(other, theirs, other_newest)) - 1,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn era(n: u64) -> Era {
        Era { session: Uuid::from_u128(n.into()), from: n }
    }

    #[test]
    fn a_superblock_descends_from_the_generations_of_its_sessions() {
        let mut ours = History::default();
        for from in [2, 5, 9] {
            ours.begin(era(from).session, from);
        }
        let holds = |generation, era| ours.holds(12, generation, era);
        assert_eq!(holds(4, Some(era(2))), Some(true));
        assert_eq!(holds(12, Some(era(9))), Some(true));
        // The same session continued beside the next one, or beyond this superblock.
        assert_eq!(holds(5, Some(era(2))), Some(false));
        assert_eq!(holds(13, Some(era(9))), Some(false));
        assert_eq!(holds(6, Some(era(6))), Some(false));
        assert_eq!(holds(1, None), None);
        let other = |eras: &[u64]| History(eras.iter().map(|n| era(*n)).collect());
        // Both continued from generation 6 of session 5; one session wrote on; only the creation of
        // the array is common.
        assert_eq!(ours.fork(12, &other(&[2, 5, 7]), 40), 6);
        assert_eq!(ours.fork(12, &other(&[2, 5]), 40), 8);
        assert_eq!(ours.fork(12, &other(&[3]), 40), 1);
    }

    #[test]
    fn sessions_that_have_left_the_history_are_unknown() {
        let mut ours = History::default();
        (1..=ERAS_MAX as u64 + 3).for_each(|n| ours.begin(era(n * 10).session, n * 10));
        assert_eq!(ours.eras().len(), ERAS_MAX);
        assert_eq!(ours.holds(200, 12, Some(era(10))), None);
        assert_eq!(ours.holds(200, 55, Some(era(55))), Some(false));
    }

    #[test]
    fn a_history_out_of_order_is_refused() {
        assert!(History::of(vec![era(5), era(5)], 9).is_none());
        assert!(History::of(vec![era(5), era(10)], 9).is_none());
        assert!(History::of(vec![era(5), era(9)], 9).is_some());
    }
}
