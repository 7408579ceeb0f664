//! Ranges of the array whose content is lost.
//!
//! Invariants:
//! - `ranges` are disjoint and do not touch, and `bytes` is their sum: a byte counts once, however
//!   often it is found to be lost;
//! - a range that is readable again, or newly written, is removed;
//! - content that is merely unreachable is not lost: an offline member may return with it.

use crate::core::Core;
use crate::format::geometry::{BLOCK, Role};
use crate::format::superblock::Condition;
use crate::io::rows::QueuedWrite;
use crate::io::units::StripeUnits;
use crate::report::Extent;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Maximum number of recorded ranges. Further losses are only counted, until the next scrub finds
/// them again.
const RANGES_MAX: usize = 100_000;
/// Maximum number of ranges in a status.
const LISTED_MAX: usize = 10_000;

/// Disjoint ranges of the array, in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostRanges {
    /// Start and end of each range; none touches the next.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
    /// Bytes lost beyond `RANGES_MAX`.
    beyond: u64,
}

impl LostRanges {
    /// Records a range; returns how many of its bytes were not recorded before.
    pub(crate) fn add(&mut self, offset: u64, len: u64) -> u64 {
        assert!(len > 0, "an empty range is recorded as lost");
        let before = self.bytes;
        let (mut from, mut to) = (offset, offset + len);
        // Merge the ranges that it touches, from the last one that begins before its end.
        while let Some((start, end)) = self.ranges.range(..=to).next_back().map(|(a, b)| (*a, *b)) {
            if end < from {
                break;
            }
            self.ranges.remove(&start);
            self.bytes -= end - start;
            (from, to) = (from.min(start), to.max(end));
        }
        if self.ranges.len() >= RANGES_MAX {
            self.beyond += to - from;
            return to - from;
        }
        self.ranges.insert(from, to);
        self.bytes += to - from;
        self.bytes - before
    }

    /// Removes a range that is readable or was written.
    pub(crate) fn remove(&mut self, offset: u64, len: u64) {
        let (from, to) = (offset, offset + len);
        while let Some((start, end)) = self.ranges.range(..to).next_back().map(|(a, b)| (*a, *b)) {
            if end <= from {
                break;
            }
            self.ranges.remove(&start);
            self.bytes -= end - start;
            for (start, end) in [(start, from), (to, end)] {
                if start < end {
                    self.ranges.insert(start, end);
                    self.bytes += end - start;
                }
            }
        }
    }

    /// Resets the count of unrecorded losses; a scrub finds them again.
    pub(crate) fn look_again(&mut self) {
        self.beyond = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes that are lost.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes + self.beyond
    }

    /// The first ranges, in order, up to `LISTED_MAX`.
    pub(crate) fn listed(&self) -> Vec<Extent> {
        let extent = |(from, to): (&u64, &u64)| Extent { offset: *from, len: to - from };
        self.ranges.iter().take(LISTED_MAX).map(extent).collect()
    }
}

/// Why a block of a stripe cannot be reconstructed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// These data units are lost.
    Lost(Vec<usize>),
    /// Offline members may hold enough of it.
    Offline,
}

impl Core {
    /// The blocks of a range that cannot be completed from `units`, for which all `wanted` roles
    /// were read.
    pub(crate) fn unavailable(
        &self,
        row: u64,
        units: &StripeUnits,
        wanted: impl Fn(Role) -> bool,
    ) -> Unavailable {
        let may_be_back = |role: Role| {
            let mut homes = self.geometry().homes(row, role);
            homes.any(|home| self.members[home].condition() == Condition::Offline)
        };
        let missing = (0..units.data.len()).filter(|i| wanted(Role::Data(*i)) && units.data[*i].is_none());
        let lost: Vec<usize> = missing.filter(|i| !may_be_back(Role::Data(*i))).collect();
        let parity = usize::from(units.p.is_some() || may_be_back(Role::P))
            + usize::from(units.q.is_some() || may_be_back(Role::Q));
        if lost.len() <= parity { Unavailable::Offline } else { Unavailable::Lost(lost) }
    }

    /// Offset in the array of a range of a data unit.
    fn offset_of(&self, row: u64, unit: usize, at: u64) -> u64 {
        row * self.geometry().stripe() + unit as u64 * self.geometry().unit + at
    }

    /// Records a lost block of a data unit.
    pub(crate) fn lose_block(&self, row: u64, unit: usize, at: u64) {
        let offset = self.offset_of(row, unit, at);
        if self.upkeep.work.borrow_mut().lost.add(offset, BLOCK) > 0 {
            tracing::error!("array {}: {BLOCK} bytes at {offset} are lost", self.name);
        }
    }

    /// Removes the record of a range that is readable or was written.
    pub(crate) fn regain(&self, row: u64, role: Role, at: u64, len: u64) {
        let mut tasks = self.upkeep.work.borrow_mut();
        if let Role::Data(unit) = role
            && !tasks.lost.is_empty()
        {
            tasks.lost.remove(self.offset_of(row, unit, at), len);
        }
    }

    /// The same for the writes of a batch.
    pub(crate) fn regain_written(&self, row: u64, batch: &[Rc<QueuedWrite>]) {
        for piece in batch.iter().flat_map(|write| &write.pieces) {
            self.regain(row, piece.role, piece.at, piece.bytes.len() as u64);
        }
    }

    /// The same for a whole stripe.
    pub(crate) fn regain_row(&self, row: u64) {
        for unit in 0..self.geometry().data_units() {
            self.regain(row, Role::Data(unit), 0, self.geometry().unit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(lost: &LostRanges) -> Vec<(u64, u64)> {
        lost.listed().iter().map(|extent| (extent.offset, extent.len)).collect()
    }

    #[test]
    fn ranges_are_recorded_once_merged_and_removed() {
        let mut lost = LostRanges::default();
        assert_eq!(lost.add(100, 10), 10);
        assert_eq!(lost.add(120, 10), 10);
        assert_eq!((lost.add(100, 10), lost.add(104, 2)), (0, 0));
        assert_eq!(lost.add(110, 10), 10);
        assert_eq!(listed(&lost), [(100, 30)]);
        assert_eq!(lost.add(90, 100), 70);
        assert_eq!((listed(&lost), lost.bytes()), (vec![(90, 100)], 100));
        lost.remove(100, 10);
        lost.remove(0, 91);
        lost.remove(185, 100);
        lost.remove(300, 5);
        assert_eq!((listed(&lost), lost.bytes()), (vec![(91, 9), (110, 75)], 84));
        lost.remove(0, 1000);
        assert!(lost.is_empty() && lost.bytes() == 0);
    }

    #[test]
    fn recorded_ranges_are_bounded() {
        let mut lost = LostRanges::default();
        for n in 0..RANGES_MAX as u64 + 5 {
            lost.add(n * 10, 4);
        }
        assert_eq!((lost.ranges.len(), lost.listed().len()), (RANGES_MAX, LISTED_MAX));
        assert_eq!(lost.bytes(), (RANGES_MAX as u64 + 5) * 4);
        lost.look_again();
        assert_eq!(lost.bytes(), RANGES_MAX as u64 * 4);
    }
}
