//! Which command identifiers are in use.
//!
//! Invariants: at most half of the cells are taken, so every probe ends; a
//! cell is reached from its home cell through taken cells only.

/// Identifiers in use and the slots of their commands: open addressing, since
/// identifiers may be any of 65,536 values while few are in use at a time.
#[derive(Debug)]
pub(super) struct CidMap {
    /// Identifier in the upper half, slot in the lower; or [`EMPTY`].
    cells: Box<[u32]>,
    shift: u32,
}

/// No command. A slot is never FFFFh.
const EMPTY: u32 = u32::MAX;

impl CidMap {
    /// Room for `commands` at a time.
    pub(super) fn new(commands: usize) -> CidMap {
        let len = (commands * 2).next_power_of_two().max(2);
        CidMap { cells: vec![EMPTY; len].into(), shift: 32 - len.ilog2() }
    }

    /// Spreads identifiers that differ in a few upper or lower bits.
    #[inline]
    fn home(&self, cid: u16) -> usize {
        (u32::from(cid).wrapping_mul(0x9E37_79B1) >> self.shift) as usize
    }

    #[inline]
    fn mask(&self) -> usize {
        self.cells.len() - 1
    }

    /// Notes `cid`, unless it is in use.
    #[inline]
    pub(super) fn insert(&mut self, cid: u16, slot: u16) -> bool {
        let mut at = self.home(cid);
        while self.cells[at] != EMPTY {
            if self.cells[at] >> 16 == u32::from(cid) {
                return false;
            }
            at = (at + 1) & self.mask();
        }
        self.cells[at] = u32::from(cid) << 16 | u32::from(slot);
        true
    }

    /// The slot of the command with this identifier.
    pub(super) fn get(&self, cid: u16) -> Option<u16> {
        let mut at = self.home(cid);
        while self.cells[at] != EMPTY {
            if self.cells[at] >> 16 == u32::from(cid) {
                return Some(self.cells[at] as u16);
            }
            at = (at + 1) & self.mask();
        }
        None
    }

    /// Makes `cid` free for another command.
    #[inline]
    pub(super) fn remove(&mut self, cid: u16) {
        let mut hole = self.home(cid);
        while self.cells[hole] != EMPTY && self.cells[hole] >> 16 != u32::from(cid) {
            hole = (hole + 1) & self.mask();
        }
        if self.cells[hole] == EMPTY {
            return;
        }
        // Closes the hole: moves up entries that could not be reached across it.
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask();
            if self.cells[at] == EMPTY {
                break;
            }
            let home = self.home((self.cells[at] >> 16) as u16);
            let from_home = at.wrapping_sub(home) & self.mask();
            let from_hole = at.wrapping_sub(hole) & self.mask();
            if from_home >= from_hole {
                self.cells[hole] = self.cells[at];
                hole = at;
            }
        }
        self.cells[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn agrees_with_a_hash_map(ops in prop::collection::vec((0u16..40, any::<bool>()), 0..400)) {
            let mut map = CidMap::new(40);
            let mut model = HashMap::new();
            for (i, (key, insert)) in ops.into_iter().enumerate() {
                // Spread as the Linux host does: a generation in the upper bits.
                let cid = key << 12 | key;
                if insert {
                    let new = !model.contains_key(&cid);
                    prop_assert_eq!(map.insert(cid, i as u16), new);
                    model.entry(cid).or_insert(i as u16);
                } else {
                    map.remove(cid);
                    model.remove(&cid);
                }
                for k in 0..40 {
                    let cid = k << 12 | k;
                    prop_assert_eq!(map.get(cid), model.get(&cid).copied());
                }
            }
        }
    }
}
