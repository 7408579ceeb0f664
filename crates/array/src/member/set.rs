//! The members of an array together: which of them hold a row, and which the array needs.
//!
//! Invariants:
//! - the member at position `i` of `members` has index `i`, and their number is `geometry.width`;
//! - `needed_at` is the last time at which the array needed a member that was unreachable, and
//!   never falls.

use crate::format::geometry::{Geometry, Role};
use crate::format::superblock::MemberEntry;
use crate::member::Member;
use longhaul_engine::now;
use std::cell::Cell;
use std::ops::Deref;
use std::time::{Duration, Instant};

/// The members by index; it dereferences to a slice of them.
pub(crate) struct MemberSet {
    geometry: Geometry,
    members: Vec<Member>,
    needed_at: Cell<Option<Instant>>,
}

impl Deref for MemberSet {
    type Target = [Member];

    fn deref(&self) -> &[Member] {
        &self.members
    }
}

impl<'a> IntoIterator for &'a MemberSet {
    type Item = &'a Member;
    type IntoIter = std::slice::Iter<'a, Member>;

    fn into_iter(self) -> std::slice::Iter<'a, Member> {
        self.members.iter()
    }
}

impl MemberSet {
    pub(crate) fn new(geometry: Geometry, entries: &[MemberEntry]) -> MemberSet {
        assert_eq!(entries.len(), geometry.width, "a superblock has one entry for each member");
        let members = entries.iter().enumerate().map(|(index, entry)| Member::new(index, entry)).collect();
        MemberSet { geometry, members, needed_at: Cell::default() }
    }

    /// The members that superblocks, bitmaps and the journal are written to.
    pub(crate) fn usable(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.is_usable())
    }

    /// The usable members that may have lost unflushed writes.
    pub(crate) fn doubtful(&self) -> impl Iterator<Item = &Member> {
        self.usable().filter(|member| member.is_in_doubt())
    }

    /// Whether all members are active.
    pub(crate) fn all_active(&self) -> bool {
        self.members.iter().all(Member::is_active)
    }

    /// Number of members that are not active.
    pub(crate) fn inactive(&self) -> usize {
        self.members.iter().filter(|member| !member.is_active()).count()
    }

    /// Whether a member has current content for a row.
    pub(crate) fn holds(&self, member: usize, row: u64) -> bool {
        self.members[member].holds(row, self.geometry.region_of(row))
    }

    /// The members that hold a role of a row.
    pub(crate) fn holders(&self, row: u64, role: Role) -> impl Iterator<Item = usize> {
        self.geometry.homes(row, role).filter(move |member| self.holds(*member, row))
    }

    /// Whether all content of a row can be read or reconstructed.
    pub(crate) fn is_whole(&self, row: u64) -> bool {
        self.is_whole_without(row, &[])
    }

    /// The same, without these members.
    pub(crate) fn is_whole_without(&self, row: u64, without: &[usize]) -> bool {
        let has = |role| self.holders(row, role).any(|member| !without.contains(&member));
        let units = self.geometry.data_units();
        let missing = (0..units).filter(|i| !has(Role::Data(*i))).count();
        let parity = usize::from(has(Role::P)) + usize::from(has(Role::Q));
        missing <= parity
    }

    /// Whether every member holds a row.
    pub(crate) fn is_healthy(&self, row: u64) -> bool {
        (0..self.geometry.width).all(|member| self.holds(member, row))
    }

    /// Whether the active members hold all data.
    pub(crate) fn is_enough(&self) -> bool {
        self.geometry.is_enough(|index| self.members[index].is_active())
    }

    /// Whether the array would lose data without these members.
    pub(crate) fn needs(&self, without: &[usize]) -> bool {
        let left = without.iter().filter_map(|index| self.members.get(*index));
        let left: Vec<&Member> = left.filter(|member| member.is_active()).collect();
        // Members that could start on their own must be assumed to do so, unless they have confirmed
        // superblocks in which all remaining members are up to date.
        let begins = self.geometry.is_enough(|index| left.iter().any(|member| member.index == index));
        let has_confirmed =
            |of: &Member| left.iter().all(|member| of.state.since() <= member.confirmed.generation());
        !self.geometry.is_enough(|index| {
            let member = &self.members[index];
            !without.contains(&index) && member.is_active() && (!begins || has_confirmed(member))
        })
    }

    /// Whether the array would halt without this member.
    pub(crate) fn cannot_lose(&self, index: usize) -> bool {
        self.members[index].is_active() && self.needs(&[index])
    }

    /// Members in use whose devices report a lost connection.
    pub(crate) fn disconnected(&self) -> Vec<usize> {
        self.usable().filter(|member| member.disconnected().is_some()).map(|member| member.index).collect()
    }

    /// Whether the array needs these unreachable members; if so, records the time.
    pub(crate) fn misses(&self, members: &[usize]) -> bool {
        let misses = !members.is_empty() && self.needs(members);
        if misses {
            self.needed_at.set(Some(now()));
        }
        misses
    }

    /// For how much of the last `time` the array could do without all unreachable members.
    pub(crate) fn spared(&self, time: Duration) -> Duration {
        self.needed_at.get().map_or(time, |needed| now().saturating_duration_since(needed).min(time))
    }

    /// Whether a member in use has a volatile write cache.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.usable().any(Member::has_volatile_cache)
    }
}
