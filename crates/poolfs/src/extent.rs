//! Where the content of a file is.
//!
//! Invariants:
//! - the extents of a list are sorted and do not overlap;
//! - an extent is a part of the content of one stripe, and several extents may be parts of the same one;
//! - `skip + len` is within the stripe's data.

use crate::bytes::{Reader, Writer};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a block: places of units are counted in blocks, and lengths of units are multiples of it.
pub(crate) const BLOCK: u64 = 4096;

/// A unit of a stripe: on which member it is, where, and the checksum of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StripeUnit {
    /// Index of the member.
    pub(crate) member: u8,
    /// First block on it.
    pub(crate) block: u64,
    /// CRC-32C of its bytes.
    pub(crate) sum: u32,
}

/// Content that was written at once: data units in the order of the content, and their parity.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stripe {
    /// Bytes of each unit.
    pub(crate) unit: u32,
    /// Units with content; P and Q follow them.
    pub(crate) data: u8,
    /// All units.
    pub(crate) units: Vec<StripeUnit>,
}

impl Stripe {
    /// Bytes of content that it has room for.
    pub(crate) fn capacity(&self) -> u64 {
        u64::from(self.unit) * u64::from(self.data)
    }

    /// Number of units of parity.
    pub(crate) fn parity(&self) -> usize {
        self.units.len() - usize::from(self.data)
    }

    /// The segment of size `segment` that it is in.
    pub(crate) fn segment(&self, segment: u64) -> u32 {
        self.units.first().map_or(0, |unit| (unit.block * BLOCK / segment) as u32)
    }
}

/// A part of a file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First byte in the file.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// First byte in the content of the stripe.
    pub(crate) skip: u64,
    pub(crate) stripe: Arc<Stripe>,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Whether all of it is the same part of the same stripe in another one.
    pub(crate) fn is_part_of(&self, other: &Extent) -> bool {
        other.offset <= self.offset
            && self.end() <= other.end()
            && self.skip == other.skip + (self.offset - other.offset)
            && self.stripe == other.stripe
    }

    /// The part of it within `range`.
    fn within(&self, range: &Range<u64>) -> Option<Extent> {
        let (from, to) = (self.offset.max(range.start), self.end().min(range.end));
        (from < to).then(|| Extent {
            offset: from,
            len: to - from,
            skip: self.skip + (from - self.offset),
            stripe: Arc::clone(&self.stripe),
        })
    }
}

/// Extents of a file, or of a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtentList(Vec<Extent>);

impl ExtentList {
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Extent> {
        self.0.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where the last one ends; 0 without any.
    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(0, Extent::end)
    }

    /// The extents that touch `range`.
    fn touched(&self, range: &Range<u64>) -> Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        let first = self.0.partition_point(|extent| extent.end() <= range.start);
        let count = self.0[first..].partition_point(|extent| extent.offset < range.end);
        first..first + count
    }

    /// The parts within `range`.
    pub(crate) fn lookup(&self, range: Range<u64>) -> Vec<Extent> {
        self.0[self.touched(&range)].iter().filter_map(|extent| extent.within(&range)).collect()
    }

    /// Removes what is within `range`, and returns it.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> Vec<Extent> {
        let touched = self.touched(&range);
        let (mut kept, mut removed) = (Vec::new(), Vec::new());
        for extent in &self.0[touched.clone()] {
            removed.extend(extent.within(&range));
            kept.extend(extent.within(&(0..range.start)));
            kept.extend(extent.within(&(range.end..u64::MAX)));
        }
        self.0.splice(touched, kept);
        removed
    }

    /// Puts an extent in place of what was there, which is returned.
    pub(crate) fn overwrite(&mut self, extent: Extent) -> Vec<Extent> {
        let removed = self.remove(extent.offset..extent.end());
        let at = self.0.partition_point(|other| other.offset < extent.offset);
        self.0.insert(at, extent);
        removed
    }

    /// Removes those that `keep` refuses.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Extent) -> bool) {
        self.0.retain(keep);
    }

    /// Makes extents one that follow each other in their stripe too.
    pub(crate) fn join(&mut self) {
        self.0.dedup_by(|next, last| {
            let follows =
                last.end() == next.offset && last.skip + last.len == next.skip && last.stripe == next.stripe;
            if follows {
                last.len += next.len;
            }
            follows
        });
    }

    /// Moves all that begin at `from` or later by `shift` bytes.
    pub(crate) fn shift(&mut self, from: u64, shift: i64) {
        for extent in self.0.iter_mut().filter(|extent| extent.offset >= from) {
            extent.offset = extent.offset.wrapping_add_signed(shift);
        }
        self.0.sort_unstable_by_key(|extent| extent.offset);
    }

    pub(crate) fn write(&self, to: &mut Writer) {
        to.u32(self.0.len() as u32);
        let mut before: Option<&Arc<Stripe>> = None;
        for Extent { offset, len, skip, stripe } in &self.0 {
            to.u64(*offset).u64(*len).u64(*skip);
            // Parts of the same stripe mostly follow each other.
            if before == Some(stripe) {
                to.u8(0);
                continue;
            }
            to.u8(stripe.units.len() as u8).u8(stripe.data).u32(stripe.unit);
            for unit in &stripe.units {
                to.u8(unit.member).u64(unit.block).u32(unit.sum);
            }
            before = Some(stripe);
        }
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Option<ExtentList> {
        let count = from.u32()?;
        let mut list: Vec<Extent> = Vec::new();
        for _ in 0..count {
            let (offset, len, skip) = (from.u64()?, from.u64()?, from.u64()?);
            let stripe = match from.u8()? {
                0 => Arc::clone(&list.last()?.stripe),
                units => {
                    let (data, unit) = (from.u8()?, from.u32()?);
                    let units = (0..units).map(|_| {
                        Some(StripeUnit { member: from.u8()?, block: from.u64()?, sum: from.u32()? })
                    });
                    Arc::new(Stripe { unit, data, units: units.collect::<Option<Vec<_>>>()? })
                }
            };
            let is_whole = len > 0
                && offset.checked_add(len).is_some()
                && skip.checked_add(len).is_some_and(|end| end <= stripe.capacity())
                && usize::from(stripe.data) <= stripe.units.len()
                && list.last().is_none_or(|last| last.end() <= offset);
            if !is_whole {
                return None;
            }
            list.push(Extent { offset, len, skip, stripe });
        }
        Some(ExtentList(list))
    }
}

impl FromIterator<Extent> for ExtentList {
    /// Later ones take the place of earlier ones.
    fn from_iter<I: IntoIterator<Item = Extent>>(extents: I) -> ExtentList {
        let mut list = ExtentList::default();
        for extent in extents {
            list.overwrite(extent);
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripe(number: u64) -> Arc<Stripe> {
        let unit = |member| StripeUnit { member, block: number * 16, sum: number as u32 };
        Arc::new(Stripe { unit: 1 << 16, data: 2, units: (0..3).map(unit).collect() })
    }

    /// Content as a model: for each byte the stripe and the place in it.
    fn bytes(list: &ExtentList, len: u64) -> Vec<Option<(u64, u64)>> {
        let mut all = vec![None; len as usize];
        for extent in list.iter() {
            for at in 0..extent.len {
                let place = &mut all[(extent.offset + at) as usize];
                assert_eq!(*place, None, "extents overlap");
                *place = Some((extent.stripe.units[0].block, extent.skip + at));
            }
        }
        all
    }

    #[test]
    fn a_list_is_what_was_done_to_it() {
        const LEN: u64 = 400;
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut list, mut model) = (ExtentList::default(), vec![None; LEN as usize]);
        for number in 1..3000 {
            let offset = rng.u64(0..LEN);
            let len = rng.u64(1..=(LEN - offset).min(60));
            let range = offset as usize..(offset + len) as usize;
            let removed = if rng.u8(0..4) == 0 {
                let removed = list.remove(offset..offset + len);
                model[range.clone()].fill(None);
                removed
            } else {
                let (stripe, skip) = (stripe(number), rng.u64(0..100));
                let removed = list.overwrite(Extent { offset, len, skip, stripe: Arc::clone(&stripe) });
                for (at, byte) in model[range].iter_mut().enumerate() {
                    *byte = Some((stripe.units[0].block, skip + at as u64));
                }
                removed
            };
            assert!(removed.iter().all(|extent| offset <= extent.offset && extent.end() <= offset + len));
            assert_eq!(bytes(&list, LEN), model);
            let (from, to) = (rng.u64(0..LEN), rng.u64(0..LEN));
            let found: ExtentList = list.lookup(from..to).into_iter().collect();
            for (at, byte) in bytes(&found, LEN).into_iter().enumerate() {
                let is_in = (from..to).contains(&(at as u64));
                assert_eq!(byte, if is_in { model[at] } else { None });
            }
            let mut written = Writer::default();
            list.write(&mut written);
            let written = written.end();
            let mut reader = Reader(&written);
            assert_eq!(ExtentList::read(&mut reader), Some(list.clone()));
            assert!(reader.is_at_end());
        }
    }

    #[test]
    fn damaged_lists_are_refused() {
        let extent = |offset| Extent { offset, len: 10, skip: 0, stripe: stripe(offset) };
        let list: ExtentList = [extent(0), extent(20)].into_iter().collect();
        let mut written = Writer::default();
        list.write(&mut written);
        let written = written.end();
        for cut in 0..written.len() {
            assert_eq!(ExtentList::read(&mut Reader(&written[..cut])), None, "{cut}");
        }
        let mut other = written.clone();
        // The first extent is as long as if the second one were within it.
        other[4 + 15] = 200;
        assert_eq!(ExtentList::read(&mut Reader(&other)), None);
    }
}
