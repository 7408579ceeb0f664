//! Decides which members hold the acknowledged data of the last session.
//!
//! A superblock lists the members that are up to date, as far as its own member knows: another set
//! of members may have continued without it. The decision takes all superblocks and heartbeats that
//! can be read, the witness, and the record of this host into account.
//!
//! Invariants:
//! - an array starts without an operator only if no set of missing members could have continued
//!   without those that are present;
//! - a member whose superblock is older than one that it has confirmed was rolled back: none of its
//!   data is used;
//! - a superblock that this set does not descend from is overwritten only on an operator's command,
//!   unless its writing was cut short and no write was acknowledged under it.

use crate::assembly::assemble::Assembly;
use crate::assembly::candidate::Candidate;
use crate::error::ArrayError;
use crate::format::heartbeat::Heartbeat;
use crate::format::superblock::{Condition, Superblock};
use crate::options::Options;
use crate::session::memory::Known;
use std::collections::BTreeSet;
use std::time::Duration;
use uuid::Uuid;

/// Heartbeats by which a member may be behind the others after a crash: it has missed several, and
/// that it is offline was not published yet.
pub(crate) const BEHIND_BEATS: u32 = 10;
/// The same in member timeouts: an operation on a member that the array needs is waited for once
/// more after the others have returned.
const BEHIND_TIMEOUTS: u32 = 3;

/// Relation of a superblock to a set of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ancestry {
    /// The set descends from this superblock.
    Ancestor,
    /// The set does not descend from it, but no write was acknowledged under it: a member that it
    /// relies on has not confirmed it.
    Unused,
    /// Its session may have acknowledged writes that the set does not have.
    Diverged,
}

impl Superblock {
    /// Relation of `found` to the set of this superblock, of which `present` can be read.
    pub(crate) fn ancestry<'a>(
        &self,
        found: &Superblock,
        since: Option<u64>,
        present: impl IntoIterator<Item = &'a Superblock>,
    ) -> Ancestry {
        let era = found.history.last();
        match self.history.holds(self.generation, found.generation, era) {
            Some(true) => return Ancestry::Ancestor,
            // Older than the history reaches, or of a version without a history: compare by
            // generation.
            None if since.is_none_or(|since| found.generation < since) => return Ancestry::Ancestor,
            _ => {}
        }
        if era.is_none() {
            return Ancestry::Diverged;
        }
        // The member was up to date according to `found` and has confirmed all that `found` knows
        // of, but not `found` itself: the writing of `found` was cut short.
        let refutes = |other: &Superblock| {
            let entry = found.entries.iter().find(|entry| entry.uuid == other.member);
            let fork = other.history.fork(other.generation, &found.history, found.generation);
            other.member != found.member
                && fork < found.generation
                && entry.is_some_and(|entry| entry.condition == Condition::Active && entry.known <= fork)
        };
        if present.into_iter().any(refutes) { Ancestry::Unused } else { Ancestry::Diverged }
    }

    /// Generation, and seconds since it was written, for messages.
    pub(crate) fn age(&self) -> String {
        let now = longhaul_engine::wall_time().as_secs();
        match (self.written, now.checked_sub(self.written)) {
            (0, _) | (_, None) => format!("generation {}", self.generation),
            (_, Some(seconds)) => format!("generation {}, written {seconds} s ago", self.generation),
        }
    }
}

/// The newest superblock; of several with the same generation the one that most devices hold.
pub(crate) fn newest(candidates: &[Candidate]) -> Option<Superblock> {
    let found = || candidates.iter().filter_map(|candidate| candidate.superblock.as_ref());
    let same = |of: &Superblock| {
        let is_same = |other: &&Superblock| {
            other.generation == of.generation && other.history.last() == of.history.last()
        };
        found().filter(is_same).count()
    };
    // `max_by_key` takes the last of equal ones, hence `rev`.
    found().rev().max_by_key(|found| (found.generation, same(found))).cloned()
}

/// The newest generation that a heartbeat calls confirmed by all members then in use.
pub(crate) fn confirmed(candidates: &[Candidate], array: Uuid) -> u64 {
    let beats = candidates.iter().filter_map(|candidate| candidate.beat.as_ref());
    beats.filter(|beat| beat.array == array).map(|beat| beat.confirmed).max().unwrap_or(0)
}

/// The reason if the member has less than it has confirmed, so that none of its data can be used.
pub(crate) fn rolled_back(candidate: &Candidate, newest: &Superblock, confirmed: u64) -> Option<String> {
    let found = candidate.superblock.as_ref()?;
    let entry = newest.entries.iter().find(|entry| entry.uuid == found.member)?;
    let in_use = matches!(entry.condition, Condition::Active | Condition::Rebuilding { .. });
    let must = if in_use { entry.known.max(confirmed.min(newest.generation)) } else { entry.known };
    // A damaged copy may have held the next generation.
    let has = found.generation + u64::from(candidate.torn);
    (has < must).then(|| {
        format!(
            "its superblock has generation {}, and it has confirmed generation {must}: it was rolled back, and \
             is rebuilt",
            found.generation
        )
    })
}

impl Assembly {
    /// Whether a member is present and up to date according to the newest superblock.
    fn has(&self, index: usize) -> bool {
        self.members.contains_key(&index) && self.superblock.entries[index].condition == Condition::Active
    }

    /// Whether the up-to-date members suffice to start.
    pub(crate) fn is_enough(&self) -> bool {
        self.superblock.geometry.is_enough(|index| self.has(index))
    }

    /// Session time of the last session's newest heartbeat on this member; `None` if unknown.
    fn session_time(&self, candidate: &Candidate) -> Option<Duration> {
        let era = self.superblock.history.last()?;
        let beat = candidate.beat.as_ref()?;
        if beat.session == era.session {
            return Some(beat.elapsed);
        }
        // A session that took ownership, and wrote no superblock.
        if let Some((_, elapsed)) = beat.before.filter(|(session, _)| *session == era.session) {
            return Some(elapsed);
        }
        // An earlier session ended before the last one began; an unknown one crashed before its
        // first superblock.
        let is_earlier = self.superblock.history.eras().iter().any(|own| own.session == beat.session);
        is_earlier.then_some(Duration::ZERO)
    }

    /// The last session, if it was not stopped, and the session time of its newest heartbeat.
    pub(crate) fn ended(&self) -> Option<(Uuid, Duration)> {
        let era = self.superblock.history.last().filter(|_| !self.superblock.clean)?;
        let last = self.members.values().filter_map(|candidate| self.session_time(candidate)).max()?;
        Some((era.session, last))
    }

    /// After a crash, removes the members whose last heartbeat is much older than the others', if
    /// the others suffice: their superblock may have the same generation while their data is older.
    pub(crate) fn remove_late_members(&mut self, options: &Options) {
        let Some((_, last)) = self.ended() else { return };
        let limit = (options.heartbeat * BEHIND_BEATS).max(options.member_timeout * BEHIND_TIMEOUTS);
        let is_late =
            |candidate: &Candidate| self.session_time(candidate).is_some_and(|time| time + limit < last);
        let late: BTreeSet<usize> = self
            .members
            .iter()
            .filter(|(_, candidate)| is_late(candidate))
            .map(|(index, _)| *index)
            .collect();
        if late.is_empty() {
            return;
        }
        if !self.superblock.geometry.is_enough(|index| self.has(index) && !late.contains(&index)) {
            tracing::warn!(
                "array {}: the heartbeats of members {late:?} ended long before those of the others, but the \
                 array cannot start without them: they are used as current",
                self.superblock.name
            );
            return;
        }
        for index in late {
            if let Some(candidate) = self.members.remove(&index) {
                let why = "its heartbeat ended long before those of the others: it was rolled back, and is \
                           rebuilt";
                self.stale.push((index, candidate, Some(why.to_owned())));
            }
        }
    }

    /// The members that are missing.
    fn unseen(&self) -> BTreeSet<usize> {
        let seen = |index: &usize| {
            self.members.contains_key(index) || self.stale.iter().any(|(stale, ..)| stale == index)
        };
        (0..self.superblock.geometry.width).filter(|index| !seen(index)).collect()
    }

    /// The reason if a set of missing members may have continued without these.
    pub(crate) fn may_be_outdated(&self, known: Option<&Known>) -> Option<String> {
        let superblock = &self.superblock;
        if self.confirmed > superblock.generation {
            return Some(format!(
                "a heartbeat records generation {}, but the newest superblock that was found has generation {}",
                self.confirmed, superblock.generation
            ));
        }
        if let Some(known) = known
            && let Some(why) = known.is_newer_than(superblock)
        {
            return Some(why);
        }
        let unseen = self.unseen();
        let may_run = |index: usize| {
            unseen.contains(&index) && superblock.entries[index].condition == Condition::Active
        };
        // With a witness, an array continues without a member only after the witness has recorded
        // it.
        if self.witness.is_some() || !superblock.geometry.is_enough(may_run) {
            return None;
        }
        let numbers: Vec<String> = unseen.iter().map(ToString::to_string).collect();
        let witness = match superblock.witness {
            Some(_) => ", and the witness, which would show it, cannot be read either",
            None => "",
        };
        Some(format!(
            "members {} are not there, and were up to date when the others were last written (generation {}): \
             they may have continued without the others{witness}",
            numbers.join(", "),
            superblock.generation
        ))
    }

    /// Refuses to start with members that another set may have left behind, unless `degraded` is
    /// given.
    pub(crate) fn check_current(&self, degraded: bool, known: Option<&Known>) -> Result<(), ArrayError> {
        let Some(why) = self.may_be_outdated(known) else { return Ok(()) };
        let name = self.superblock.name.clone();
        if degraded {
            tracing::warn!("array {name} begins all the same, with --degraded: {why}");
            return Ok(());
        }
        Err(ArrayError::Outdated { name, why })
    }
}

/// Whether a member has lost a heartbeat that this session wrote to it.
pub(crate) fn has_lost_heartbeat(found: Option<&Heartbeat>, session: Uuid, counter: u64) -> bool {
    counter > 0 && found.is_some_and(|beat| beat.session != session || beat.counter < counter)
}
