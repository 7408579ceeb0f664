//! New content of a stripe, combined from writes.
//!
//! Invariants:
//! - pieces of a unit do not overlap, and no two adjoin;
//! - of writes that overlap the later one wins.

use crate::format::geometry::{Geometry, Role};
use crate::format::record::Piece;
use crate::io::plan::Segment;
use longhaul_engine::{Buf, BufMut};
use std::collections::BTreeMap;

pub(crate) struct Overlay {
    unit: u64,
    /// Content by data unit, and by offset in it.
    units: Vec<BTreeMap<u64, Vec<Buf>>>,
}

fn len(parts: &[Buf]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

/// The bytes of `parts` from `from` to `to`.
fn cut(parts: &[Buf], from: u64, to: u64) -> Vec<Buf> {
    let (mut at, mut out) = (0, Vec::new());
    for part in parts {
        let end = at + part.len() as u64;
        let (a, b) = (from.max(at), to.min(end));
        if a < b {
            out.push(part.slice((a - at) as usize..(b - at) as usize));
        }
        at = end;
    }
    out
}

fn join(parts: Vec<Buf>) -> Buf {
    if let [one] = &parts[..] {
        return one.clone();
    }
    let mut whole = BufMut::zeroed(len(&parts) as usize);
    let mut at = 0;
    for part in parts {
        whole[at..at + part.len()].copy_from_slice(&part);
        at += part.len();
    }
    whole.freeze()
}

impl Overlay {
    pub(crate) fn new(geometry: &Geometry) -> Overlay {
        Overlay { unit: geometry.unit, units: vec![BTreeMap::new(); geometry.data_units()] }
    }

    /// Lays a piece over the content so far.
    pub(crate) fn lay(&mut self, piece: &Piece) {
        let Role::Data(i) = piece.role else { return };
        let unit = &mut self.units[i];
        let (mut start, mut end) = (piece.at, piece.at + piece.bytes.len() as u64);
        let mut content = vec![piece.bytes.clone()];
        // Merge overlapping and adjoining pieces.
        while let Some((at, parts)) = unit.range(..=end).next_back().map(|(at, parts)| (*at, parts.clone())) {
            let until = at + len(&parts);
            if until < start {
                break;
            }
            unit.remove(&at);
            let mut whole = cut(&parts, 0, start.saturating_sub(at));
            whole.append(&mut content);
            if until > end {
                whole.extend(cut(&parts, end - at, until - at));
            }
            content = whole;
            (start, end) = (start.min(at), end.max(until));
        }
        unit.insert(start, content);
    }

    /// Whether the stripe is overwritten completely.
    pub(crate) fn covers_all(&self) -> bool {
        self.units
            .iter()
            .all(|unit| unit.first_key_value().is_some_and(|(at, parts)| *at == 0 && len(parts) == self.unit))
    }

    /// Splits the content into segments of at most `most` bytes a unit.
    pub(crate) fn segments(&self, most: u64) -> Vec<Segment> {
        let ends = |(at, parts): (&u64, &Vec<Buf>)| [*at, at + len(parts)];
        let mut cuts: Vec<u64> = self.units.iter().flat_map(|unit| unit.iter().flat_map(ends)).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut segments = Vec::new();
        for (from, to) in cuts.iter().zip(cuts.iter().skip(1)) {
            let mut at = *from;
            while at < *to {
                let end = (at + most).min(*to);
                let new: Vec<Option<Buf>> = self.units.iter().map(|unit| content(unit, at, end)).collect();
                if new.iter().any(Option::is_some) {
                    segments.push(Segment { at, len: end - at, new });
                }
                at = end;
            }
        }
        segments
    }
}

/// The bytes of a unit from `at` to `end`, if all of them are new.
fn content(unit: &BTreeMap<u64, Vec<Buf>>, at: u64, end: u64) -> Option<Buf> {
    let (start, parts) = unit.range(..=at).next_back()?;
    (start + len(parts) >= end).then(|| join(cut(parts, at - start, end - start)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use proptest::prelude::*;

    const BLOCK: u64 = 4096;

    fn geometry() -> Geometry {
        Geometry::fit(Layout::Parity, 4, 8 * BLOCK, 16 << 20).expect("fits")
    }

    fn piece(unit: usize, at: u64, blocks: u64, byte: u8) -> Piece {
        let bytes = Buf::copy_of(&vec![byte; (blocks * BLOCK) as usize]);
        Piece { role: Role::Data(unit), at: at * BLOCK, bytes }
    }

    #[test]
    fn small_writes_make_a_whole_stripe() {
        let mut overlay = Overlay::new(&geometry());
        for unit in 0..3 {
            for at in 0..8 {
                assert!(!overlay.covers_all());
                overlay.lay(&piece(unit, at, 1, 1));
            }
        }
        assert!(overlay.covers_all());
        let segments = overlay.segments(u64::MAX / 2);
        assert_eq!((segments.len(), segments[0].at, segments[0].len), (1, 0, 8 * BLOCK));
        assert_eq!(overlay.segments(2 * BLOCK).len(), 4);
    }

    proptest! {
        /// Compares with a plain model of the stripe.
        #[test]
        fn later_writes_win(writes in proptest::collection::vec((0usize..3, 0u64..8, 1u64..8, 1u8..), 1..12)) {
            let mut overlay = Overlay::new(&geometry());
            let mut picture = vec![[0u8; 8]; 3];
            for (unit, at, blocks, byte) in writes {
                let blocks = blocks.min(8 - at);
                overlay.lay(&piece(unit, at, blocks, byte));
                picture[unit][at as usize..(at + blocks) as usize].fill(byte);
            }
            let mut seen = vec![[0u8; 8]; 3];
            for segment in overlay.segments(u64::MAX / 2) {
                for (unit, new) in segment.new.iter().enumerate() {
                    let Some(new) = new else { continue };
                    prop_assert_eq!(new.len() as u64, segment.len);
                    for (i, block) in new.chunks(BLOCK as usize).enumerate() {
                        let slot = &mut seen[unit][(segment.at / BLOCK) as usize + i];
                        prop_assert_eq!(*slot, 0, "twice");
                        *slot = block[0];
                    }
                }
            }
            prop_assert_eq!(seen, picture);
        }
    }
}
