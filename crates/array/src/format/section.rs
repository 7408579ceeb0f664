//! Sections of a member: an array that grows gets another one of checksums and data, behind what
//! the member has.
//!
//! Checksums come before the data that they are of, so that the first section has no room for those
//! of further rows. A later section has room for twice the array that it makes: the next rows are
//! added to it, until that is used up.
//!
//! Invariants:
//! - sections follow each other, and hold the rows in order: what is on a member stays where it is;
//! - a section has checksums of all of its rows;
//! - arrays without checksums have one section, whose data grows.

use crate::format::geometry::{BLOCK, BYTES_MAX, Geometry};
use crate::format::layout::LayoutError;
use std::ops::Range;

/// Sections that an array can have beside its first one. Each has room for the array to double.
pub(crate) const ADDED_MAX: usize = 8;

/// A section that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Added {
    /// Its first row.
    pub(crate) first: u64,
    /// Rows that its checksums have room for.
    pub(crate) room: u64,
}

/// The sections that were added to an array since its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    added: [Added; ADDED_MAX],
    count: u8,
}

impl Growth {
    /// An array that has one section.
    pub(crate) const NONE: Growth = Growth { added: [Added { first: 0, room: 0 }; ADDED_MAX], count: 0 };

    /// The sections that were added, in order.
    pub(crate) fn added(&self) -> &[Added] {
        &self.added[..usize::from(self.count)]
    }

    /// These sections; `None` if there are more than [`ADDED_MAX`].
    pub(crate) fn of(added: &[Added]) -> Option<Growth> {
        let mut growth = Growth { count: u8::try_from(added.len()).ok()?, ..Growth::NONE };
        growth.added.get_mut(..added.len())?.copy_from_slice(added);
        Some(growth)
    }
}

/// Where rows are on a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    /// Its rows.
    pub(crate) rows: Range<u64>,
    /// Offset of its checksums, in bytes.
    pub(crate) sums_at: u64,
    /// Bytes of its checksums, of which further rows may use some later.
    pub(crate) sums_len: u64,
    /// Offset of its data, in bytes.
    pub(crate) data_at: u64,
}

impl Geometry {
    fn section(&self, sums_at: u64, rows: Range<u64>, room: u64) -> Section {
        let sums_len = self.sums_len(room);
        Section { rows, sums_at, sums_len, data_at: (sums_at + sums_len).next_multiple_of(self.unit) }
    }

    /// The section that the array was created with.
    pub(crate) fn first_section(&self) -> Section {
        let rows = self.growth.added().first().map_or(self.rows, |added| added.first);
        self.section(self.sums_at(), 0..rows, rows)
    }

    /// The sections of each member, in order.
    pub(crate) fn sections(&self) -> impl Iterator<Item = Section> + use<> {
        let geometry = *self;
        let mut last = None;
        (0..=self.growth.added().len()).map(move |number| {
            let added = geometry.growth.added();
            let section = match (&last, number.checked_sub(1).map(|place| added[place])) {
                (Some(last), Some(Added { first, room })) => {
                    let end = added.get(number).map_or(geometry.rows, |next| next.first);
                    geometry.section(geometry.end_of(last), first..end, room)
                }
                _ => geometry.first_section(),
            };
            last = Some(section.clone());
            section
        })
    }

    /// The offset behind a section, in bytes.
    fn end_of(&self, section: &Section) -> u64 {
        section.data_at + (section.rows.end - section.rows.start) * self.unit
    }

    /// The section of a row.
    pub(crate) fn section_of(&self, row: u64) -> Section {
        if self.growth.added().first().is_none_or(|added| row < added.first) {
            return self.first_section();
        }
        let mut sections = self.sections();
        sections.find(|section| section.rows.contains(&row)).unwrap_or_else(|| self.first_section())
    }

    /// Whether the sections of a decoded geometry are those of an array that has grown, and no sum
    /// of offsets overflows.
    pub(crate) fn has_sane_growth(&self) -> bool {
        let added = self.growth.added();
        if added.is_empty() {
            return true;
        }
        let mut end = 0;
        let ordered = added.iter().all(|added| std::mem::replace(&mut end, added.first) < added.first);
        let holds = |number: usize, added: &Added| {
            let next = self.growth.added().get(number + 1).map_or(self.rows, |next| next.first);
            next.saturating_sub(added.first) <= added.room && added.room <= BYTES_MAX / self.unit / 64
        };
        self.has_sums()
            && ordered
            && end < self.rows
            && added.iter().enumerate().all(|(number, added)| holds(number, added))
    }

    /// The largest array that this one can become on members of `size` bytes: the same, if they are
    /// no larger than they were.
    ///
    /// # Errors
    /// The array has been extended as often as it can be, or its write-intent bitmap has no bits for
    /// more.
    pub fn grown(&self, size: u64) -> Result<Geometry, LayoutError> {
        let last = self.sections().last().unwrap_or_else(|| self.first_section());
        let room = self.growth.added().last().map_or(0, |added| added.first + added.room);
        let room = if self.has_sums() { room } else { u64::MAX };
        let fits = last.rows.start + size.saturating_sub(last.data_at) / self.unit;
        let (most, start) = (crate::io::intent::BITS_MAX * (self.region / self.unit), self.end());
        let mut grown = Geometry { rows: fits.min(room).max(self.rows), ..*self };
        // Another section, unless it would be too small to hold a row.
        if fits > room.max(self.rows) {
            let first = grown.rows;
            let at = start + (first - self.rows) * self.unit;
            let data = |rows: u64| {
                // Twice the array, so that the number of sections is the logarithm of what is added.
                let room = 2 * (first + rows) - first;
                ((at + self.sums_len(room)).next_multiple_of(self.unit) + rows * self.unit, room)
            };
            let mut rows = size.saturating_sub(at) / self.unit;
            while rows > 0 && data(rows).0 > size {
                let excess = data(rows).0 - size;
                rows -=
                    excess.div_ceil(self.unit + 2 * self.unit / BLOCK * super::geometry::SUM).clamp(1, rows);
            }
            if rows > 0 {
                let mut added = self.growth.added().to_vec();
                added.push(Added { first, room: data(rows).1 });
                let times = added.len() - 1;
                let fits = added.len() <= super::superblock::added_max(self.width);
                let growth = Growth::of(&added).filter(|_| fits);
                grown.growth = growth.ok_or(LayoutError::Extended { times })?;
                grown.rows = first + rows;
            }
        }
        if grown.rows > most {
            return Err(LayoutError::Marks { most: most * self.stripe(), size: self.size() });
        }
        Ok(grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::layout::Layout;
    use proptest::prelude::*;

    #[test]
    fn an_array_that_has_not_grown_is_where_it_was() {
        let geometry = Geometry::fit(Layout::Parity, 4, 65_536, 1 << 30).expect("fits");
        assert_eq!(geometry.sections().count(), 1);
        assert_eq!(geometry.grown(1 << 30), Ok(geometry));
        assert_eq!(geometry.grown(1 << 20), Ok(geometry), "members do not shrink");
    }

    #[test]
    fn an_array_without_checksums_keeps_its_section() {
        let geometry = Geometry::fit(Layout::Stripe, 4, 65_536, 1 << 30).expect("fits");
        let grown = geometry.grown(3 << 30).expect("grows");
        assert_eq!((grown.sections().count(), grown.data_at()), (1, geometry.data_at()));
        assert_eq!(grown.end(), 3 << 30);
    }

    #[test]
    fn growth_ends_where_the_bitmap_has_no_more_bits() {
        let geometry = Geometry::fit(Layout::Mirror, 2, 65_536, 1 << 34).expect("fits");
        geometry.grown(1 << 38).expect("sixteen times");
        let refused = geometry.grown(1 << 40).expect_err("sixty-four times").to_string();
        assert!(refused.contains("write-intent bitmap"), "{refused}");
    }

    proptest! {
        #[test]
        fn rows_stay_where_they_are_and_sections_never_overlap(
            layout in 0usize..5, width in 1usize..8, shift in 12u32..20, size in (40u64 << 20)..(1 << 36),
            steps in proptest::collection::vec(1.0f64..2.5, 1..8),
        ) {
            let layout = Layout::ALL[layout];
            let mut now = Geometry::fit(layout, width * 2 + 2, 1 << shift, size).expect("fits");
            let mut size = size;
            for step in steps {
                size = (size as f64 * step) as u64;
                let Ok(grown) = now.grown(size) else { break };
                prop_assert!(grown.is_sane() && grown.rows >= now.rows && grown.end() <= size);
                prop_assert!(size - grown.end() <= 4 * grown.unit + grown.rows * grown.unit / 200, "{grown:?}");
                for row in [0, now.rows / 2, now.rows - 1] {
                    prop_assert_eq!(grown.unit_at(row), now.unit_at(row));
                }
                let mut end = grown.sums_at();
                let mut rows = 0;
                for section in grown.sections() {
                    prop_assert!(section.sums_at >= end && section.rows.start == rows);
                    prop_assert!(section.sums_at.is_multiple_of(BLOCK));
                    prop_assert!(section.data_at >= section.sums_at + section.sums_len);
                    prop_assert!(section.sums_len >= grown.sums_len(section.rows.end - section.rows.start));
                    prop_assert!(section.data_at.is_multiple_of(grown.unit));
                    (rows, end) = (section.rows.end, grown.end_of(&section));
                }
                prop_assert_eq!((rows, end), (grown.rows, grown.end()));
                now = grown;
            }
        }
    }
}
