//! Layout of an array, and of the regions on each of its members.
//!
//! A *stripe* is one row of units, a unit on each member. A member holds, in this order: superblock
//! copies, heartbeat, write-intent bitmap, journal, checksums, data. An array that has grown has
//! further [sections](crate::format::section) of checksums and data behind these. All offsets are
//! multiples of [`BLOCK`].
//!
//! Invariants:
//! - every member of an array has the same regions at the same offsets;
//! - each data unit has at least one home, and no member has two units of a stripe.

use crate::format::layout::{Layout, LayoutError, check_layout, check_shape};
use crate::format::section::{Growth, Section};
use std::ops::Range;

/// Bytes of the array's logical block, which one checksum covers: the smallest unit that file
/// systems use, and the largest block size of a member.
pub const BLOCK: u64 = 4096;

/// Offsets of the two superblock copies.
pub(crate) const SUPER_AT: [u64; 2] = [0, 64 << 10];
/// Offset of the heartbeat.
pub(crate) const HEARTBEAT_AT: u64 = 128 << 10;
/// Offset of the write-intent bitmap.
pub(crate) const INTENT_AT: u64 = 192 << 10;
/// Bytes of the write-intent bitmap.
pub(crate) const INTENT_LEN: u64 = 64 << 10;
/// Offset of the journal.
pub(crate) const JOURNAL_AT: u64 = INTENT_AT + INTENT_LEN;
/// Bytes of the smallest journal: some hundred small writes.
const JOURNAL_MIN: u64 = 1 << 20;
/// Bytes of the largest journal: all of it is read after a crash.
const JOURNAL_MAX: u64 = 64 << 20;
/// The journal takes this fraction of a member.
const JOURNAL_SHARE: u64 = 64;
/// Stripe units that a journal holds at least: parity of a full stripe, twice, must be only a part
/// of it.
const JOURNAL_UNITS: u64 = 8;
/// Minimum bytes of a member per intent bit.
const REGION_MIN: u64 = 1 << 20;
/// Target number of intent bits: fewer would make the resync after a crash longer, and more would
/// have to be set more often.
const REGIONS: u64 = 16 << 10;
const _: () = assert!(REGIONS <= crate::io::intent::BITS_MAX);
/// Bytes of all members together are fewer, so that sums of offsets cannot overflow.
pub(crate) const BYTES_MAX: u64 = 1 << 62;
/// Bytes of one checksum.
pub(crate) const SUM: u64 = 4;

/// What a member holds of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The data unit of this number.
    Data(usize),
    /// The XOR of the data.
    P,
    /// The weighted sum of the data over GF(2^8).
    Q,
}

/// The shape of an array. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Distribution of data and redundancy over the members.
    pub layout: Layout,
    /// Number of members, [`MIN_WIDTH`](crate::MIN_WIDTH) to [`MAX_WIDTH`](crate::MAX_WIDTH).
    pub width: usize,
    /// Stripe unit in bytes, a power of two.
    pub unit: u64,
    /// Number of stripes: units of each member.
    pub rows: u64,
    /// Bytes of the journal on each member; zero without parity.
    pub journal: u64,
    /// Bytes of each member that a bit of the write-intent bitmap stands for.
    pub region: u64,
    /// What was added to the array since its creation.
    pub growth: Growth,
}

impl Geometry {
    /// The largest array of this shape whose members have `size` bytes each.
    ///
    /// # Errors
    /// The shape is out of bounds, or the members are too small for it.
    pub fn fit(layout: Layout, width: usize, unit: u64, size: u64) -> Result<Geometry, LayoutError> {
        check_shape(width, unit)?;
        check_layout(layout, width)?;
        let journal = if matches!(layout, Layout::Parity | Layout::DoubleParity) {
            let share = (size / JOURNAL_SHARE).clamp(JOURNAL_MIN, JOURNAL_MAX);
            share.max(JOURNAL_UNITS * unit) / BLOCK * BLOCK
        } else {
            0
        };
        let mut geometry =
            Geometry { layout, width, unit, rows: 0, journal, region: 0, growth: Growth::NONE };
        // Checksums take a known fraction; the cost of rounding is found by iteration.
        let room = size.saturating_sub(JOURNAL_AT + journal);
        geometry.rows = room / unit;
        while geometry.rows > 0 && geometry.end() > size {
            let excess = geometry.end() - size;
            geometry.rows -= excess.div_ceil(unit + unit / BLOCK * SUM).clamp(1, geometry.rows);
        }
        if geometry.rows == 0 {
            return Err(LayoutError::TooSmall { size, least: Geometry { rows: 1, ..geometry }.end() });
        }
        let region = (geometry.rows * unit).div_ceil(REGIONS).next_power_of_two();
        geometry.region = region.max(REGION_MIN).max(unit);
        Ok(geometry)
    }

    /// Whether a decoded geometry is valid: any that [`fit`](Self::fit) returns is, and none is
    /// with which other functions would overflow.
    pub(crate) fn is_sane(&self) -> bool {
        let Geometry { layout, width, unit, rows, journal, region, growth: _ } = *self;
        if check_shape(width, unit).is_err() || check_layout(layout, width).is_err() {
            return false;
        }
        let bytes = rows.checked_mul(unit).and_then(|bytes| bytes.checked_mul(width as u64));
        let journals = if self.has_parity() {
            let least = JOURNAL_MIN.max(JOURNAL_UNITS * unit);
            least..=JOURNAL_MAX.max(least)
        } else {
            0..=0
        };
        bytes.is_some_and(|bytes| (1..BYTES_MAX).contains(&bytes))
            && journals.contains(&journal)
            && journal.is_multiple_of(BLOCK)
            && region.is_power_of_two()
            && (unit.max(REGION_MIN)..BYTES_MAX).contains(&region)
            && self.regions() <= crate::io::intent::BITS_MAX
            && self.has_sane_growth()
    }

    /// Whether the array can be read and written if exactly the members with `has` are up to date.
    pub(crate) fn is_enough(&self, has: impl Fn(usize) -> bool) -> bool {
        match self.layout {
            Layout::StripeMirror => (0..self.width).step_by(2).all(|first| has(first) || has(first + 1)),
            _ => (0..self.width).filter(|member| !has(*member)).count() <= self.redundancy(),
        }
    }

    /// Whether a stripe has this range, in whole blocks.
    pub(crate) fn has_range(&self, row: u64, role: Role, at: u64, len: u64) -> bool {
        let is_block = |n: u64| n.is_multiple_of(BLOCK);
        let is_within = at.checked_add(len).is_some_and(|end| end <= self.unit);
        let has_role = match role {
            Role::Data(i) => i < self.data_units(),
            Role::P => self.has_parity(),
            Role::Q => self.layout == Layout::DoubleParity,
        };
        row < self.rows && has_role && is_within && len > 0 && is_block(at) && is_block(len)
    }

    /// Data units of a stripe.
    pub fn data_units(&self) -> usize {
        match self.layout {
            Layout::Stripe => self.width,
            Layout::Mirror => 1,
            Layout::StripeMirror => self.width / 2,
            Layout::Parity => self.width - 1,
            Layout::DoubleParity => self.width - 2,
        }
    }

    /// Any members that may be lost at a time.
    pub fn redundancy(&self) -> usize {
        match self.layout {
            Layout::Stripe => 0,
            Layout::Mirror => self.width - 1,
            Layout::StripeMirror | Layout::Parity => 1,
            Layout::DoubleParity => 2,
        }
    }

    /// Whether stripes have parity (and so a journal).
    pub(crate) fn has_parity(&self) -> bool {
        matches!(self.layout, Layout::Parity | Layout::DoubleParity)
    }

    /// Whether blocks have checksums. Without redundancy nothing could be repaired, and integrity
    /// is left to the members.
    pub(crate) fn has_sums(&self) -> bool {
        self.layout != Layout::Stripe
    }

    /// Data bytes of a stripe.
    pub fn stripe(&self) -> u64 {
        self.data_units() as u64 * self.unit
    }

    /// Bytes of the array.
    pub fn size(&self) -> u64 {
        self.rows * self.stripe()
    }

    /// Offset of the checksums on a member.
    pub(crate) fn sums_at(&self) -> u64 {
        JOURNAL_AT + self.journal
    }

    /// Bytes of the checksums of so many rows on a member.
    pub(crate) fn sums_len(&self, rows: u64) -> u64 {
        if !self.has_sums() {
            return 0;
        }
        (rows * self.unit / BLOCK * SUM).next_multiple_of(BLOCK)
    }

    /// Offset of the first data on a member.
    pub(crate) fn data_at(&self) -> u64 {
        self.first_section().data_at
    }

    /// Bytes that an array of this shape needs of each member.
    pub fn end(&self) -> u64 {
        let last = self.section_of(self.rows.saturating_sub(1));
        last.data_at + (self.rows - last.rows.start) * self.unit
    }

    /// What `member` holds of stripe `row`. Parity rotates from the last member to the first, and
    /// data follows it (left-symmetric, as in md).
    pub(crate) fn role(&self, row: u64, member: usize) -> Role {
        let width = self.width;
        let p = width - 1 - (row % width as u64) as usize;
        let behind = (member + width - p) % width;
        match self.layout {
            Layout::Stripe => Role::Data(member),
            Layout::Mirror => Role::Data(0),
            Layout::StripeMirror => Role::Data(member / 2),
            Layout::Parity if behind == 0 => Role::P,
            Layout::Parity => Role::Data(behind - 1),
            Layout::DoubleParity if behind == 0 => Role::P,
            Layout::DoubleParity if behind == 1 => Role::Q,
            Layout::DoubleParity => Role::Data(behind - 2),
        }
    }

    /// The members that hold `role` of stripe `row`.
    pub(crate) fn homes(&self, row: u64, role: Role) -> Range<usize> {
        let width = self.width;
        let p = width - 1 - (row % width as u64) as usize;
        let one = |behind: usize| (p + behind) % width..(p + behind) % width + 1;
        match (self.layout, role) {
            (Layout::Stripe, Role::Data(i)) => i..i + 1,
            (Layout::Mirror, Role::Data(_)) => 0..width,
            (Layout::StripeMirror, Role::Data(i)) => 2 * i..2 * i + 2,
            (Layout::Parity, Role::Data(i)) => one(i + 1),
            (Layout::DoubleParity, Role::Data(i)) => one(i + 2),
            (Layout::Parity | Layout::DoubleParity, Role::P) => one(0),
            (Layout::DoubleParity, Role::Q) => one(1),
            (_, Role::P | Role::Q) => 0..0,
        }
    }

    /// Row, data unit, and offset within the unit of a byte of the array.
    pub(crate) fn locate(&self, offset: u64) -> (u64, usize, u64) {
        let within = offset % self.stripe();
        (offset / self.stripe(), (within / self.unit) as usize, within % self.unit)
    }

    /// Offset of a row's unit on its member.
    pub(crate) fn unit_at(&self, row: u64) -> u64 {
        let Section { rows, data_at, .. } = self.section_of(row);
        data_at + (row - rows.start) * self.unit
    }

    /// Number of intent bits.
    pub(crate) fn regions(&self) -> u64 {
        (self.rows * self.unit).div_ceil(self.region)
    }

    /// The intent bit of a row.
    pub(crate) fn region_of(&self, row: u64) -> u64 {
        row * self.unit / self.region
    }

    /// The rows of an intent bit.
    pub(crate) fn rows_of(&self, region: u64) -> Range<u64> {
        let rows = self.region / self.unit;
        region * rows..((region + 1) * rows).min(self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fit(layout: Layout, width: usize) -> Geometry {
        Geometry::fit(layout, width, 4096, 8 << 20).expect("fits")
    }

    #[test]
    fn parity_rotates_as_in_md() {
        // Five members, left-symmetric: the table in md(4)'s sources.
        let geometry = fit(Layout::Parity, 5);
        let row = |row| (0..5).map(|m| geometry.role(row, m)).collect::<Vec<_>>();
        use Role::{Data as D, P, Q};
        assert_eq!(row(0), [D(0), D(1), D(2), D(3), P]);
        assert_eq!(row(1), [D(1), D(2), D(3), P, D(0)]);
        assert_eq!(row(4), [P, D(0), D(1), D(2), D(3)]);
        let geometry = fit(Layout::DoubleParity, 5);
        assert_eq!((0..5).map(|m| geometry.role(0, m)).collect::<Vec<_>>(), [Q, D(0), D(1), D(2), P]);
        assert_eq!((0..5).map(|m| geometry.role(1, m)).collect::<Vec<_>>(), [D(0), D(1), D(2), P, Q]);
    }

    #[test]
    fn homes_and_roles_agree() {
        for (layout, width) in Layout::ALL.into_iter().flat_map(|l| [4, 6, 64].map(|w| (l, w))) {
            let geometry = fit(layout, width);
            for row in 0..130 {
                for member in 0..width {
                    let role = geometry.role(row, member);
                    assert!(geometry.homes(row, role).contains(&member), "{layout} {width} {row} {member}");
                }
                let homes = |role| geometry.homes(row, role).len();
                let data: usize = (0..geometry.data_units()).map(|i| homes(Role::Data(i))).sum();
                assert_eq!(data + homes(Role::P) + homes(Role::Q), width, "{layout} {width}");
            }
        }
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let refuse = |layout, width, size| {
            Geometry::fit(layout, width, 4096, size).map(drop).expect_err("refused").to_string()
        };
        assert!(refuse(Layout::DoubleParity, 2, 1 << 30).contains("double-parity"));
        assert!(refuse(Layout::StripeMirror, 3, 1 << 30).contains("even"));
        let small = refuse(Layout::Mirror, 2, 256 << 10);
        assert_eq!(small, "262144 bytes are too few for a member: it needs 270336 at least");
    }

    proptest! {
        #[test]
        fn regions_never_overlap_and_use_most_of_a_member(
            layout in 0usize..5, width in 2usize..33, shift in 12u32..23, size in (40u64 << 20)..(1 << 45),
        ) {
            let unit = 1 << shift;
            let layout = Layout::ALL[layout];
            let Ok(geometry) = Geometry::fit(layout, width * 2, unit, size) else {
                return Err(TestCaseError::fail("does not fit"));
            };
            prop_assert!(geometry.sums_at() >= JOURNAL_AT + geometry.journal);
            prop_assert!(geometry.data_at() >= geometry.sums_at() + geometry.sums_len(geometry.rows));
            prop_assert!(geometry.data_at().is_multiple_of(unit));
            prop_assert!(geometry.end() <= size);
            prop_assert!(geometry.is_sane());
            let more = Geometry { rows: geometry.rows + 2, ..geometry };
            prop_assert!(more.end() > size, "rows are left over");
            prop_assert!(geometry.regions() <= crate::io::intent::BITS_MAX);
            let last = geometry.rows - 1;
            prop_assert!(geometry.rows_of(geometry.region_of(last)).contains(&last));
        }
    }
}
