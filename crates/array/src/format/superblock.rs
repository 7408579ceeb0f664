//! The superblock: the record of an array on each member.
//!
//! There are two copies, and each write replaces the one that is not the newest intact copy on that
//! member, so that one is always intact. The whole array is described on each member; `member`
//! selects the member's own entry.
//!
//! Invariants:
//! - the newest intact copy on a member is never overwritten: after an interrupted write the next
//!   one goes to the same slot, whatever its generation;
//! - a member that is `Active` in the newest superblock has all acknowledged data: before a write
//!   that a member has missed is acknowledged, the member is no longer `Active` in the superblocks
//!   of all members that have the write;
//! - a block with any invalid field is not a superblock.

use crate::format::bytes::{Reader, Writer, open, seal};
use crate::format::geometry::{BLOCK, Geometry};
use crate::format::history::{ERAS_MAX, Era, History};
use crate::format::layout::Layout;
use crate::format::section::{ADDED_MAX, Added, Growth};
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"LHARRAY\0";
/// Version of all on-disk formats of a member: the superblock of an array that has grown. It has the
/// sections that were added behind the history.
const VERSION: u32 = 4;
/// The version without sections, which is written for an array that has not grown, so that programs
/// that know no later one use it.
const VERSION_ONE_SECTION: u32 = 3;
/// The oldest version that can be read: it ends after the spares. The next superblock written has
/// the newest version.
const VERSION_OLDEST: u32 = 2;
/// Maximum number of spares.
pub const MAX_SPARES: usize = 16;
/// Maximum length of a name in bytes.
pub const MAX_NAME: usize = 64;
/// Upper limit of counters, far above what incrementing can reach.
pub(crate) const COUNT_MAX: u64 = 1 << 62;
/// The index field of a spare.
const SPARE: u16 = u16::MAX;

/// Condition of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// In use, with all data.
    Active,
    /// Offline: it misses what was written meanwhile, which the write-intent bitmap marks.
    Offline,
    /// Failed: none of its data is used.
    Failed,
    /// Under rebuild: it has the rows below `done`, and if `partial` (a resync) also those whose
    /// intent bits were clear when it returned, as far as it had been rebuilt before.
    Rebuilding {
        /// Number of rows, from the first one, that are rebuilt.
        done: u64,
        /// Resync: only the rows that the member has missed are written.
        partial: bool,
    },
}

/// Entry of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberEntry {
    pub(crate) uuid: Uuid,
    pub(crate) condition: Condition,
    /// Generation in which it entered its condition.
    pub(crate) since: u64,
    /// Rows that it has, for a member that went offline during a rebuild, or is in resync after
    /// that; `u64::MAX` for others.
    pub(crate) have: u64,
    /// The newest generation, before this one, whose superblock the member has confirmed; zero if
    /// unknown. A member that has less was rolled back.
    pub(crate) known: u64,
}

/// Why a superblock cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// It has another version.
    #[error("is of version {0}, and this program knows version {VERSION}")]
    Version(u32),
    /// Neither copy is intact.
    #[error("is damaged")]
    Damaged,
}

/// Content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) array: Uuid,
    pub(crate) name: String,
    pub(crate) geometry: Geometry,
    /// Number of superblocks written.
    pub(crate) generation: u64,
    /// Number of assemblies; journal records of other epochs are void.
    pub(crate) epoch: u64,
    /// The array was stopped, with nothing under way.
    pub(crate) clean: bool,
    /// The member that this copy is on.
    pub(crate) member: Uuid,
    pub(crate) entries: Vec<MemberEntry>,
    pub(crate) spares: Vec<Uuid>,
    /// The device that holds superblocks and no data, if the array has one.
    pub(crate) witness: Option<Uuid>,
    /// The sessions that have written superblocks.
    pub(crate) history: History,
    /// When it was written, for messages: seconds since 1970-01-01 by the wall clock of the host
    /// that wrote it; zero if unknown.
    pub(crate) written: u64,
}

/// Numbers of the conditions in an entry.
const ACTIVE: u16 = 1;
const OFFLINE: u16 = 2;
const FAILED: u16 = 3;
const REBUILDING: u16 = 4;

/// Code, flag and progress of a condition in an entry.
fn condition_code(condition: Condition) -> (u16, u16, u64) {
    match condition {
        Condition::Active => (ACTIVE, 0, 0),
        Condition::Offline => (OFFLINE, 0, 0),
        Condition::Failed => (FAILED, 0, 0),
        Condition::Rebuilding { done, partial } => (REBUILDING, u16::from(partial), done),
    }
}

fn condition(code: u16, flag: u16, done: u64) -> Option<Condition> {
    Some(match code {
        ACTIVE => Condition::Active,
        OFFLINE => Condition::Offline,
        FAILED => Condition::Failed,
        REBUILDING => Condition::Rebuilding { done, partial: flag != 0 },
        _ => return None,
    })
}

/// Bytes of a superblock before its entries, and behind them without spares and history; of an entry
/// with what is known of it; of a section that was added.
const FIXED: usize = 178 + 16 + 8 + 2;
const ENTRY: usize = 44 + 8;
const ADDED: usize = 16;

/// Sections that the superblock of an array of so many members has room for, with all spares and a
/// history of full length.
pub(crate) fn added_max(width: usize) -> usize {
    let used = FIXED + ENTRY * width + 16 * MAX_SPARES + 24 * ERAS_MAX + 2;
    ((BLOCK as usize).saturating_sub(used) / ADDED).min(ADDED_MAX)
}

/// Whether a name is valid for an array.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.chars().any(char::is_control)
}

impl Superblock {
    /// Index of the member; `None` for a spare.
    pub(crate) fn index(&self) -> Option<usize> {
        self.entries.iter().position(|entry| entry.uuid == self.member)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK as usize];
        let geometry = &self.geometry;
        let mut name = [0; MAX_NAME];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let index = self.index().map_or(SPARE, |index| index as u16);
        let added = geometry.growth.added();
        let version = if added.is_empty() { VERSION_ONE_SECTION } else { VERSION };
        let mut out = Writer::new(&mut block[4..]);
        out.bytes(MAGIC).u32(version).uuid(self.array).uuid(self.member).bytes(&name);
        out.u16(geometry.layout.code()).u16(geometry.width as u16).u16(index).u16(self.spares.len() as u16);
        out.u64(geometry.unit).u64(geometry.rows).u64(geometry.journal).u64(geometry.region);
        out.u64(geometry.data_at()).u64(self.generation).u64(self.epoch).u16(u16::from(self.clean));
        for entry in &self.entries {
            let (code, flag, done) = condition_code(entry.condition);
            out.uuid(entry.uuid).u16(code).u16(flag).u64(done).u64(entry.since).u64(entry.have);
        }
        for spare in &self.spares {
            out.uuid(*spare);
        }
        out.uuid(self.witness.unwrap_or(Uuid::nil())).u64(self.written);
        for entry in &self.entries {
            out.u64(entry.known);
        }
        let eras = self.history.eras();
        out.u16(eras.len() as u16);
        for era in eras {
            out.uuid(era.session).u64(era.from);
        }
        if version > VERSION_ONE_SECTION {
            out.u16(added.len() as u16);
            for Added { first, room } in added {
                out.u64(*first).u64(*room);
            }
        }
        seal(&mut block);
        block
    }

    /// Decodes a block; `None` if it is not a superblock of a supported version, or is damaged.
    pub(crate) fn decode(block: &[u8]) -> Option<Superblock> {
        let mut from = Reader::new(open(block)?);
        if from.bytes(MAGIC.len())? != MAGIC {
            return None;
        }
        let version = from.u32()?;
        if !(VERSION_OLDEST..=VERSION).contains(&version) {
            return None;
        }
        let (array, member) = (from.uuid()?, from.uuid()?);
        let name = from.bytes(MAX_NAME)?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(MAX_NAME);
        let name = String::from_utf8(name[..end].to_vec()).ok()?;
        let layout = Layout::of_code(from.u16()?)?;
        let (width, index, spares) = (usize::from(from.u16()?), from.u16()?, usize::from(from.u16()?));
        let (unit, rows, journal, region) = (from.u64()?, from.u64()?, from.u64()?, from.u64()?);
        let mut geometry = Geometry { layout, width, unit, rows, journal, region, growth: Growth::NONE };
        let data_at = from.u64()?;
        let (generation, epoch, clean) = (from.u64()?, from.u64()?, from.u16()? != 0);
        let counts = [generation, epoch].iter().all(|count| *count < COUNT_MAX);
        let sane = spares <= MAX_SPARES && counts && is_name(&name) && geometry.is_sane();
        if !sane {
            return None;
        }
        let mut entries = Vec::with_capacity(width);
        for _ in 0..width {
            let uuid = from.uuid()?;
            let condition = condition(from.u16()?, from.u16()?, from.u64()?)?;
            let (since, have) = (from.u64()?, from.u64()?);
            let is_past = matches!(condition, Condition::Rebuilding { done, .. } if done > rows);
            if is_past || since >= COUNT_MAX {
                return None;
            }
            entries.push(MemberEntry { uuid, condition, since, have, known: 0 });
        }
        let spares = (0..spares).map(|_| from.uuid()).collect::<Option<Vec<_>>>()?;
        let (mut witness, mut written, mut history) = (None, 0, History::default());
        if version > VERSION_OLDEST {
            witness = Some(from.uuid()?).filter(|uuid| !uuid.is_nil());
            written = from.u64()?;
            for entry in &mut entries {
                entry.known = from.u64()?;
            }
            let eras = usize::from(from.u16()?);
            if eras > ERAS_MAX || entries.iter().any(|entry| entry.known > generation) {
                return None;
            }
            let era = |_| Some(Era { session: from.uuid()?, from: from.u64()? });
            history = History::of((0..eras).map(era).collect::<Option<Vec<_>>>()?, generation)?;
        }
        if version > VERSION_ONE_SECTION {
            let count = usize::from(from.u16()?);
            if count > added_max(width) {
                return None;
            }
            let added = (0..count).map(|_| Some(Added { first: from.u64()?, room: from.u64()? }));
            geometry.growth = Growth::of(&added.collect::<Option<Vec<_>>>()?)?;
        }
        if !geometry.is_sane() || geometry.data_at() != data_at {
            return None;
        }
        let superblock = Superblock {
            array,
            name,
            geometry,
            generation,
            epoch,
            clean,
            member,
            entries,
            spares,
            witness,
            history,
            written,
        };
        let place = superblock.index().map_or(SPARE, |index| index as u16);
        (place == index).then_some(superblock)
    }

    /// Why a block with the magic number of a superblock cannot be decoded.
    pub(crate) fn unknown(block: &[u8]) -> Option<Unknown> {
        if Reader::new(block.get(4..)?).bytes(MAGIC.len())? != MAGIC || Superblock::decode(block).is_some() {
            return None;
        }
        let version = open(block).and_then(|whole| Reader::new(whole.get(MAGIC.len()..)?).u32());
        let other = version.filter(|version| !(VERSION_OLDEST..=VERSION).contains(version));
        Some(other.map_or(Unknown::Damaged, Unknown::Version))
    }
}

/// The two copies of a device's superblock.
pub(crate) struct SuperblockCopies {
    /// The newer intact copy.
    pub(crate) newest: Option<Superblock>,
    /// The slot of that copy.
    pub(crate) slot: usize,
    /// One of the copies is not intact.
    pub(crate) torn: bool,
}

impl SuperblockCopies {
    /// Decodes both; an unreadable one is passed as empty, and counts as torn.
    pub(crate) fn of(blocks: [&[u8]; 2]) -> SuperblockCopies {
        let [a, b] = blocks.map(Superblock::decode);
        let torn = a.is_none() || b.is_none();
        let generation = |copy: &Option<Superblock>| copy.as_ref().map(|copy| copy.generation);
        let slot = usize::from(generation(&b) >= generation(&a));
        SuperblockCopies { newest: if slot == 0 { a } else { b }, slot, torn }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn example(width: usize, spares: usize) -> Superblock {
        let geometry = Geometry::fit(Layout::Parity, width, 65_536, 1 << 30).expect("fits");
        let entry = |n| MemberEntry {
            uuid: Uuid::from_u128(n),
            condition: Condition::Active,
            since: 1,
            have: u64::MAX,
            known: 6,
        };
        let mut entries: Vec<MemberEntry> = (1..=width as u128).map(entry).collect();
        entries[1].condition = Condition::Rebuilding { done: 12_345, partial: true };
        Superblock {
            array: Uuid::from_u128(99),
            name: "scratch".into(),
            geometry,
            generation: 7,
            epoch: 3,
            clean: false,
            member: Uuid::from_u128(2),
            entries,
            spares: (1000..1000 + spares as u128).map(Uuid::from_u128).collect(),
            witness: Some(Uuid::from_u128(77)),
            history: History::of(vec![Era { session: Uuid::from_u128(5), from: 6 }], 7).expect("in order"),
            written: 1_700_000_000,
        }
    }

    #[test]
    fn the_largest_array_fits_a_block() {
        let era = |n: u64| Era { session: Uuid::from_u128(n.into()), from: n };
        let eras = (1..=ERAS_MAX as u64).map(era).collect();
        let largest = Superblock {
            name: "n".repeat(MAX_NAME),
            generation: 50,
            history: History::of(eras, 50).expect("in order"),
            ..example(64, MAX_SPARES)
        };
        assert_eq!(Superblock::decode(&largest.encode()), Some(largest));
        let spare = Superblock { member: Uuid::from_u128(1003), ..example(3, 4) };
        assert_eq!(spare.index(), None);
        assert_eq!(Superblock::decode(&spare.encode()), Some(spare));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let block = example(4, 1).encode();
        for bit in 0..512 * 8 {
            let mut bad = block.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Superblock::decode(&bad), None, "bit {bit}");
        }
        assert_eq!(Superblock::decode(&block[..2048]), None);
        assert_eq!(Superblock::decode(&[0; 4096]), None);
    }

    /// Evaluates everything that is derived from a decoded superblock.
    fn use_all_of(found: &Superblock) {
        let geometry = &found.geometry;
        assert!(geometry.data_units() > 0 && geometry.redundancy() < geometry.width);
        assert!(geometry.journal <= 64 << 20 && geometry.regions() <= crate::io::intent::BITS_MAX);
        assert!(geometry.end() > geometry.data_at() && geometry.size() >= geometry.rows * geometry.unit);
        for row in [0, geometry.rows / 2, geometry.rows - 1] {
            assert!(geometry.rows_of(geometry.region_of(row)).contains(&row));
            assert!(geometry.unit_at(row) + geometry.unit <= geometry.end());
            for member in 0..geometry.width {
                let role = geometry.role(row, member);
                assert!(geometry.homes(row, role).contains(&member));
            }
        }
        assert_eq!(geometry.locate(geometry.size() - 1).0, geometry.rows - 1);
        assert!(found.generation + 1 > found.generation && found.epoch + 1 > found.epoch);
        assert_eq!(Superblock::decode(&found.encode()).as_ref(), Some(found));
    }

    fn crafted(layout: Layout, width: usize, change: impl FnOnce(&mut Superblock)) -> Option<Superblock> {
        let mut block = example(width, 0);
        block.geometry = Geometry::fit(layout, width, 65_536, 1 << 30).expect("fits");
        change(&mut block);
        Superblock::decode(&block.encode())
    }

    #[test]
    fn superblocks_with_impossible_shapes_are_refused() {
        assert!(crafted(Layout::DoubleParity, 4, |_| {}).is_some());
        type Change = fn(&mut Superblock);
        let wrong: [(Layout, usize, Change); 12] = [
            (Layout::Parity, 2, |s| s.geometry.layout = Layout::DoubleParity),
            (Layout::Mirror, 3, |s| s.geometry.layout = Layout::StripeMirror),
            (Layout::Mirror, 2, |s| s.geometry.journal = 1 << 20),
            (Layout::Parity, 3, |s| s.geometry.journal = 0),
            (Layout::Parity, 3, |s| s.geometry.journal = 1 << 40),
            (Layout::Parity, 3, |s| s.geometry.journal += 512),
            (Layout::Parity, 3, |s| s.geometry.region = s.geometry.unit / 2),
            (Layout::Parity, 3, |s| (s.geometry.rows, s.geometry.region) = (1 << 40, 1 << 20)),
            (Layout::Parity, 3, |s| s.generation = u64::MAX),
            (Layout::Parity, 3, |s| s.epoch = u64::MAX),
            (Layout::Parity, 3, |s| s.entries[0].since = u64::MAX),
            (Layout::Parity, 3, |s| s.name = "a\u{1b}[2J".into()),
        ];
        for (number, (layout, width, change)) in wrong.into_iter().enumerate() {
            assert_eq!(crafted(layout, width, change), None, "case {number}");
        }
    }

    /// Offsets of the fields of shape and counters in a block.
    const FIELDS: std::ops::Range<usize> = 112..180;

    /// A block with this shape, and the data offset that follows from it, computed without
    /// overflow.
    fn shaped(width: usize, layout: usize, [unit, rows, journal, region]: [u64; 4]) -> Vec<u8> {
        let mut given = example(width, 0);
        given.entries[1].condition = Condition::Active;
        let mut block = given.encode();
        let (wide, per_sum) = (u128::from, u128::from(BLOCK / crate::format::geometry::SUM));
        let sums = if layout == 0 { 0 } else { wide(rows) * wide(unit) / per_sum };
        let sums_at = wide(crate::format::geometry::JOURNAL_AT) + wide(journal);
        let data_at = (sums_at + sums.next_multiple_of(wide(BLOCK))).next_multiple_of(wide(unit).max(1));
        block[112..114].copy_from_slice(&(layout as u16).to_le_bytes());
        for (n, field) in [unit, rows, journal, region, data_at as u64].into_iter().enumerate() {
            block[120 + 8 * n..128 + 8 * n].copy_from_slice(&field.to_le_bytes());
        }
        seal(&mut block);
        block
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// A block with a valid checksum may still hold any values.
        #[test]
        fn every_decoded_superblock_can_be_used(
            width in 2usize..65, spares in 0usize..5,
            changes in proptest::collection::vec((FIELDS, any::<u64>(), 0u32..64, 1usize..9), 0..4),
        ) {
            let mut block = example(width, spares).encode();
            for (at, value, shift, len) in changes {
                block[at..at + len].copy_from_slice(&(value >> shift).to_le_bytes()[..len]);
            }
            seal(&mut block);
            if let Some(found) = Superblock::decode(&block) {
                use_all_of(&found);
            }
            let _ = Superblock::unknown(&block);
        }

        #[test]
        fn every_decoded_shape_can_be_used(
            width in 2usize..9, layout in 0usize..5, unit in 11u32..24, rows: u64, small in 0u32..64,
            journal in prop_oneof![Just(0u64), (20u32..30).prop_map(|n| 1 << n), any::<u64>()],
            region in 0u32..64,
        ) {
            let block = shaped(width, layout, [1 << unit, rows >> small, journal, 1 << region]);
            if let Some(found) = Superblock::decode(&block) {
                use_all_of(&found);
            }
        }

        #[test]
        fn noise_is_no_superblock(mut block in proptest::collection::vec(any::<u8>(), 0..5000), sealed: bool) {
            if block.len() >= 12 {
                block[4..12].copy_from_slice(MAGIC);
                if sealed {
                    seal(&mut block);
                }
            }
            if let Some(found) = Superblock::decode(&block) {
                use_all_of(&found);
            }
            let _ = Superblock::unknown(&block);
        }
    }

    #[test]
    fn version_2_is_read_and_written_again_as_version_3() {
        let old = Superblock { witness: None, history: History::default(), written: 0, ..example(4, 1) };
        let mut block = old.encode();
        block[12] = 2;
        // Version 2 ends after the spares.
        let end = block.iter().rposition(|byte| *byte != 0).expect("fields") + 1;
        block[end - 4 * 8..].fill(0);
        seal(&mut block);
        let read = Superblock::decode(&block).expect("read");
        assert!(read.entries.iter().all(|entry| entry.known == 0) && read.history.last().is_none());
        assert_eq!((read.generation, &read.spares, &read.witness), (old.generation, &old.spares, &None));
        assert_eq!(read.encode()[12], 3);
    }

    /// Arrays that exist have these bytes: they change with the version alone.
    #[test]
    fn the_bytes_and_codes_of_version_3_never_change() {
        let block = example(4, 1).encode();
        assert_eq!(block[4..16], *b"LHARRAY\0\x03\0\0\0");
        assert_eq!(crc_fast::crc32_iscsi(&block), 2_115_050_757, "of all bytes");
        let layouts = [
            (0, Layout::Stripe),
            (1, Layout::Mirror),
            (2, Layout::StripeMirror),
            (3, Layout::Parity),
            (4, Layout::DoubleParity),
        ];
        for (code, layout) in layouts {
            assert_eq!((layout.code(), Layout::of_code(code)), (code, Some(layout)));
        }
        assert_eq!(Layout::of_code(5), None);
        let resync = Condition::Rebuilding { done: 7, partial: true };
        for (code, known) in
            [(1, Condition::Active), (2, Condition::Offline), (3, Condition::Failed), (4, resync)]
        {
            let (written, flag, done) = condition_code(known);
            assert_eq!((written, condition(code, flag, done)), (code, Some(known)));
        }
        assert_eq!([0, 5].map(|code| condition(code, 0, 0)), [None, None]);
    }

    #[test]
    fn a_superblock_of_another_version_or_a_damaged_one_is_not_blank() {
        let mut block = example(4, 1).encode();
        assert_eq!(Superblock::unknown(&block), None);
        block[300] ^= 1;
        assert_eq!(Superblock::unknown(&block), Some(Unknown::Damaged));
        block[300] ^= 1;
        block[12] = 5;
        assert_eq!(Superblock::unknown(&block), Some(Unknown::Damaged));
        seal(&mut block);
        assert_eq!(
            (Superblock::decode(&block), Superblock::unknown(&block)),
            (None, Some(Unknown::Version(5)))
        );
        for other in [&[0; 4096][..], &[0xA5; 4096], &block[..10], &[]] {
            assert_eq!(Superblock::unknown(other), None);
        }
    }

    #[test]
    fn a_torn_copy_leaves_the_other() {
        let (old, new) = (example(4, 0), Superblock { generation: 8, ..example(4, 0) });
        let (old_block, mut new_block) = (old.encode(), new.encode());
        let copies = SuperblockCopies::of([&new_block, &old_block]);
        assert_eq!((copies.newest, copies.slot, copies.torn), (Some(new), 0, false));
        new_block[100] ^= 0xFF;
        let copies = SuperblockCopies::of([&new_block, &old_block]);
        assert_eq!((copies.newest, copies.slot, copies.torn), (Some(old), 1, true));
        let none = SuperblockCopies::of([&new_block, &[]]);
        assert!(none.newest.is_none() && none.torn);
    }
}
