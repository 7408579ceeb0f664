//! What every member says of its array.
//!
//! Two copies are written in turn, by generation, so that one is always
//! whole. The whole array is described on each member: its own part is the
//! entry `index` of the table.
//!
//! Invariants:
//! - a member that is `Active` in the newest superblock of its array has all
//!   acknowledged data: before a write that a member has missed is
//!   acknowledged, it is not `Active` any more in the superblocks of all
//!   members that have it;
//! - what does not check out in every field is not a superblock.

use crate::bytes::{Reader, Writer, open, seal};
use crate::geometry::{BLOCK, Geometry};
use crate::layout::Layout;
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"LHARRAY\0";
/// Version of everything that is stored on members.
const VERSION: u32 = 2;
/// Spares of an array at most.
pub const MAX_SPARES: usize = 16;
/// Longest name in bytes.
pub const MAX_NAME: usize = 64;
/// The index of a spare.
const SPARE: u16 = u16::MAX;

/// What a member is to its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Has everything.
    Active,
    /// Is out of reach, and misses what was written meanwhile, which the
    /// intent bitmap tells.
    Absent,
    /// Has failed: nothing on it counts.
    Failed,
    /// Is being filled: it has the stripes below `done`, and if `partial`
    /// also those whose intent bits were clear when it came back (as far as it
    /// had been filled before).
    Rebuilding {
        /// Stripes done.
        done: u64,
        /// Only what it missed is filled.
        partial: bool,
    },
}

/// A member's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) uuid: Uuid,
    pub(crate) condition: Condition,
    /// Generation in which the condition was entered.
    pub(crate) since: u64,
    /// Stripes that it has, of one that went away while it was filled, or
    /// catches up after that; `u64::MAX` of others.
    pub(crate) have: u64,
}

/// What is wrong with a superblock that is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// It is of another version.
    #[error("is of version {0}, and this program knows version {VERSION}")]
    Version(u32),
    /// It is whole in neither of its copies.
    #[error("is damaged")]
    Damaged,
}

/// The superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) array: Uuid,
    pub(crate) name: String,
    pub(crate) geometry: Geometry,
    /// Counts superblocks written.
    pub(crate) generation: u64,
    /// Counts journals: records of others are void.
    pub(crate) epoch: u64,
    /// The array was stopped, with nothing under way.
    pub(crate) clean: bool,
    /// The member that this copy is on.
    pub(crate) member: Uuid,
    pub(crate) entries: Vec<Entry>,
    pub(crate) spares: Vec<Uuid>,
}

fn condition_code(condition: Condition) -> (u16, u16, u64) {
    match condition {
        Condition::Active => (1, 0, 0),
        Condition::Absent => (2, 0, 0),
        Condition::Failed => (3, 0, 0),
        Condition::Rebuilding { done, partial } => (4, u16::from(partial), done),
    }
}

fn condition(code: u16, flag: u16, done: u64) -> Option<Condition> {
    Some(match code {
        1 => Condition::Active,
        2 => Condition::Absent,
        3 => Condition::Failed,
        4 => Condition::Rebuilding { done, partial: flag != 0 },
        _ => return None,
    })
}

impl Superblock {
    /// The place of its member, if that is no spare.
    pub(crate) fn index(&self) -> Option<usize> {
        self.entries.iter().position(|entry| entry.uuid == self.member)
    }

    /// Which of the two places this generation is written to.
    pub(crate) fn slot(&self) -> usize {
        (self.generation % 2) as usize
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK as usize];
        let geometry = &self.geometry;
        let layout = Layout::ALL.iter().position(|l| *l == geometry.layout).unwrap_or(0);
        let mut name = [0; MAX_NAME];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let index = self.index().map_or(SPARE, |index| index as u16);
        let mut out = Writer::new(&mut block[4..]);
        out.bytes(MAGIC).u32(VERSION).uuid(self.array).uuid(self.member).bytes(&name);
        out.u16(layout as u16).u16(geometry.width as u16).u16(index).u16(self.spares.len() as u16);
        out.u64(geometry.unit).u64(geometry.rows).u64(geometry.journal).u64(geometry.region);
        out.u64(geometry.data_at()).u64(self.generation).u64(self.epoch).u16(u16::from(self.clean));
        for entry in &self.entries {
            let (code, flag, done) = condition_code(entry.condition);
            out.uuid(entry.uuid).u16(code).u16(flag).u64(done).u64(entry.since).u64(entry.have);
        }
        for spare in &self.spares {
            out.uuid(*spare);
        }
        seal(&mut block);
        block
    }

    /// Understands a block; nothing if it is no superblock of this version,
    /// or is damaged.
    pub(crate) fn decode(block: &[u8]) -> Option<Superblock> {
        let mut from = Reader::new(open(block)?);
        if from.bytes(MAGIC.len())? != MAGIC || from.u32()? != VERSION {
            return None;
        }
        let (array, member) = (from.uuid()?, from.uuid()?);
        let name = from.bytes(MAX_NAME)?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(MAX_NAME);
        let name = String::from_utf8(name[..end].to_vec()).ok()?;
        let layout = *Layout::ALL.get(usize::from(from.u16()?))?;
        let (width, index, spares) = (usize::from(from.u16()?), from.u16()?, usize::from(from.u16()?));
        let (unit, rows, journal, region) = (from.u64()?, from.u64()?, from.u64()?, from.u64()?);
        let geometry = Geometry { layout, width, unit, rows, journal, region };
        let data_at = from.u64()?;
        let (generation, epoch, clean) = (from.u64()?, from.u64()?, from.u16()? != 0);
        let sane = crate::layout::check_shape(width, unit).is_ok()
            && spares <= MAX_SPARES
            && rows > 0
            && rows.checked_mul(unit).is_some_and(|len| len < 1 << 60)
            && region.is_power_of_two()
            && region >= unit;
        if !sane || geometry.data_at() != data_at {
            return None;
        }
        let mut entries = Vec::with_capacity(width);
        for _ in 0..width {
            let uuid = from.uuid()?;
            let condition = condition(from.u16()?, from.u16()?, from.u64()?)?;
            entries.push(Entry { uuid, condition, since: from.u64()?, have: from.u64()? });
        }
        let spares = (0..spares).map(|_| from.uuid()).collect::<Option<Vec<_>>>()?;
        let superblock =
            Superblock { array, name, geometry, generation, epoch, clean, member, entries, spares };
        let place = superblock.index().map_or(SPARE, |index| index as u16);
        (place == index).then_some(superblock)
    }

    /// What is wrong with a block that begins as a superblock does, and is none.
    pub(crate) fn unknown(block: &[u8]) -> Option<Unknown> {
        if Reader::new(block.get(4..)?).bytes(MAGIC.len())? != MAGIC || Superblock::decode(block).is_some() {
            return None;
        }
        let version = open(block).and_then(|whole| Reader::new(whole.get(MAGIC.len()..)?).u32());
        Some(version.filter(|version| *version != VERSION).map_or(Unknown::Damaged, Unknown::Version))
    }

    /// The newer of the copies that are whole.
    pub(crate) fn newest(copies: [&[u8]; 2]) -> Option<Superblock> {
        copies.into_iter().filter_map(Superblock::decode).max_by_key(|copy| copy.generation)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example(width: usize, spares: usize) -> Superblock {
        let geometry = Geometry::fit(Layout::Parity, width, 65_536, 1 << 30).expect("fits");
        let entry =
            |n| Entry { uuid: Uuid::from_u128(n), condition: Condition::Active, since: 1, have: u64::MAX };
        let mut entries: Vec<Entry> = (1..=width as u128).map(entry).collect();
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
        }
    }

    #[test]
    fn the_largest_array_fits_a_block() {
        let largest = Superblock { name: "n".repeat(MAX_NAME), ..example(64, MAX_SPARES) };
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

    #[test]
    fn what_is_not_understood_is_not_blank() {
        let mut block = example(4, 1).encode();
        assert_eq!(Superblock::unknown(&block), None);
        block[300] ^= 1;
        assert_eq!(Superblock::unknown(&block), Some(Unknown::Damaged));
        block[300] ^= 1;
        block[12] = 3;
        assert_eq!(Superblock::unknown(&block), Some(Unknown::Damaged));
        seal(&mut block);
        assert_eq!(
            (Superblock::decode(&block), Superblock::unknown(&block)),
            (None, Some(Unknown::Version(3)))
        );
        for other in [&[0; 4096][..], &[0xA5; 4096], &block[..10], &[]] {
            assert_eq!(Superblock::unknown(other), None);
        }
    }

    #[test]
    fn a_torn_copy_leaves_the_other() {
        let (old, new) = (example(4, 0), Superblock { generation: 8, ..example(4, 0) });
        let (old_block, mut new_block) = (old.encode(), new.encode());
        assert_ne!(old.slot(), new.slot());
        assert_eq!(Superblock::newest([&new_block, &old_block]), Some(new));
        new_block[100] ^= 0xFF;
        assert_eq!(Superblock::newest([&new_block, &old_block]), Some(old));
    }
}
