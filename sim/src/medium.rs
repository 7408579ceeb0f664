//! The content of a disk: its medium, and a cache that is lost with its power.
//!
//! Invariants:
//! - a read returns a block's newest version; the medium has the version below all that are cached;
//! - nothing here takes time or waits.

use crate::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What a block is to become, with the number of the version.
type Version = (u64, Box<[u8]>);

/// The content of a disk. Blocks are the disk's logical blocks.
#[derive(Clone, Debug)]
pub(crate) struct Medium {
    block: usize,
    bytes: Vec<u8>,
    /// Versions that are not on the medium, oldest first.
    cache: BTreeMap<u64, Vec<Version>>,
    /// Blocks that cannot be read until they are written.
    unreadable: BTreeSet<u64>,
    /// Blocks that have ever been written: where faults can do harm.
    written: BTreeSet<u64>,
    /// Blocks that a fault has left with other content than they should have, until
    /// a later version is on the medium, with the newest version at that time.
    marred: BTreeMap<u64, u64>,
    versions: u64,
    volatile: bool,
}

/// The part of operations under way, or of the cache, that outlives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Nothing,
    Everything,
    /// Of each block something.
    Any,
    /// The first ones, in order.
    Prefix,
    /// Of each write under way its first block; of the cache a random part.
    Head,
}

impl Fate {
    pub(crate) fn random(random: &mut Random) -> Fate {
        random.pick(&[Fate::Nothing, Fate::Everything, Fate::Any, Fate::Any, Fate::Prefix])
    }
}

impl Medium {
    pub(crate) fn new(size: u64, block: u32, volatile: bool) -> Medium {
        Medium {
            block: block as usize,
            bytes: vec![0; size as usize],
            cache: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            written: BTreeSet::new(),
            marred: BTreeMap::new(),
            versions: 0,
            volatile,
        }
    }

    /// The blocks of a range of bytes.
    fn blocks(&self, offset: u64, len: usize) -> Range<u64> {
        let block = self.block as u64;
        offset / block..(offset + len as u64) / block
    }

    fn on_medium(&mut self, number: u64) -> &mut [u8] {
        let start = number as usize * self.block;
        &mut self.bytes[start..start + self.block]
    }

    /// Reads whole blocks; the first that is unreadable, else.
    pub(crate) fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), u64> {
        for (number, dst) in self.blocks(offset, dst.len()).zip(dst.chunks_exact_mut(self.block)) {
            match self.cache.get(&number).and_then(|versions| versions.last()) {
                Some((_, newest)) => dst.copy_from_slice(newest),
                None if self.unreadable.contains(&number) => return Err(number),
                None => {
                    let start = number as usize * self.block;
                    dst.copy_from_slice(&self.bytes[start..start + self.block]);
                }
            }
        }
        Ok(())
    }

    /// Writes the blocks for which `lands` says so (it gets their place in the
    /// range); `through` to the medium.
    pub(crate) fn write(&mut self, offset: u64, src: &[u8], through: bool, lands: impl Fn(usize) -> bool) {
        let all = self.blocks(offset, src.len()).zip(src.chunks_exact(self.block));
        for (place, (number, src)) in all.enumerate() {
            if !lands(place) {
                continue;
            }
            self.written.insert(number);
            if through || !self.volatile {
                self.marred.remove(&number);
                self.cache.remove(&number);
                self.unreadable.remove(&number);
                self.on_medium(number).copy_from_slice(src);
            } else {
                self.versions += 1;
                self.cache.entry(number).or_default().push((self.versions, src.into()));
            }
        }
    }

    /// The number of the newest version: what a flush that begins now covers.
    pub(crate) fn version(&self) -> u64 {
        self.versions
    }

    /// Moves cached versions up to `version` to the medium.
    pub(crate) fn flush(&mut self, version: u64) {
        let numbers: Vec<u64> = self.cache.keys().copied().collect();
        for number in numbers {
            let Some(versions) = self.cache.remove(&number) else { continue };
            let (covered, later): (Vec<_>, Vec<_>) = versions.into_iter().partition(|(v, _)| *v <= version);
            if let Some(newest) = covered.last() {
                self.settle(number, newest);
            }
            if !later.is_empty() {
                self.cache.insert(number, later);
            }
        }
    }

    /// A version of a block comes to the medium.
    fn settle(&mut self, number: u64, (version, bytes): &Version) {
        self.unreadable.remove(&number);
        if self.marred.get(&number).is_some_and(|marred| version > marred) {
            self.marred.remove(&number);
        }
        self.on_medium(number).copy_from_slice(bytes);
    }

    /// The power fails: of each cached block some version stays.
    pub(crate) fn lose_power(&mut self, fate: Fate, random: &mut Random) {
        let cut = random.below(self.versions + 1);
        for (number, versions) in std::mem::take(&mut self.cache) {
            let kept = match fate {
                Fate::Nothing => 0,
                Fate::Everything => versions.len(),
                Fate::Any | Fate::Head => random.below(versions.len() as u64 + 1) as usize,
                Fate::Prefix => versions.iter().take_while(|(v, _)| *v <= cut).count(),
            };
            if let Some(survivor) = versions[..kept].last() {
                self.settle(number, survivor);
            }
        }
    }

    /// A block of these bytes that has been written, if any.
    fn any_written(&self, within: &Range<u64>, random: &mut Random) -> Option<u64> {
        let block = self.block as u64;
        let written = || self.written.range(within.start.div_ceil(block)..within.end / block);
        let count = written().count() as u64;
        (count > 0).then(|| written().nth(random.below(count) as usize).copied()).flatten()
    }

    /// Flips a bit on the medium within these bytes; says in which block.
    pub(crate) fn flip(&mut self, within: &Range<u64>, random: &mut Random) -> Option<u64> {
        let number = self.any_written(within, random)?;
        let bit = random.below(self.block as u64 * 8) as usize;
        self.on_medium(number)[bit / 8] ^= 1 << (bit % 8);
        self.marred.insert(number, self.versions);
        Some(number)
    }

    /// Makes a block of these bytes unreadable; says which.
    pub(crate) fn spoil(&mut self, within: &Range<u64>, random: &mut Random) -> Option<u64> {
        let number = self.any_written(within, random)?;
        self.unreadable.insert(number);
        self.marred.insert(number, self.versions);
        Some(number)
    }

    /// Damages the content of a range.
    pub(crate) fn mar(&mut self, offset: u64, len: usize) {
        let blocks = self.blocks(offset, len).map(|number| (number, self.versions));
        self.marred.extend(blocks);
    }

    /// Whether a read anywhere would return content that a fault has left.
    pub(crate) fn is_marred(&self) -> bool {
        let is_read = |(number, marred): (&u64, &u64)| {
            let newest = self.cache.get(number).and_then(|versions| versions.last());
            newest.is_none_or(|(version, _)| version <= marred)
        };
        self.marred.iter().any(is_read)
    }

    /// Some place for `len` bytes that were meant for another.
    pub(crate) fn elsewhere(&self, offset: u64, len: usize, random: &mut Random) -> u64 {
        let places = (self.bytes.len() - len) / self.block + 1;
        let mut place = random.below(places as u64) * self.block as u64;
        if place == offset {
            place = if offset == 0 && places > 1 { self.block as u64 } else { 0 };
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn medium() -> Medium {
        Medium::new(8192, 512, true)
    }

    fn first(medium: &Medium) -> u8 {
        let mut block = [0; 512];
        medium.read(0, &mut block).expect("readable");
        block[0]
    }

    #[test]
    fn a_flush_covers_what_was_before_it() {
        let mut medium = medium();
        medium.write(0, &[1; 1024], false, |_| true);
        let version = medium.version();
        medium.write(0, &[2; 512], false, |_| true);
        medium.flush(version);
        assert_eq!(first(&medium), 2);
        medium.lose_power(Fate::Nothing, &mut Random::new(1));
        assert_eq!(first(&medium), 1);
    }

    #[test]
    fn what_goes_through_the_cache_stays() {
        let mut medium = medium();
        medium.write(0, &[1; 512], true, |_| true);
        medium.write(0, &[2; 512], false, |_| true);
        medium.write(0, &[3; 512], true, |_| true);
        medium.lose_power(Fate::Nothing, &mut Random::new(1));
        assert_eq!(first(&medium), 3);
    }

    #[test]
    fn a_power_loss_takes_any_version_of_a_block() {
        let mut seen = BTreeSet::new();
        for seed in 0..50 {
            let mut medium = medium();
            for value in 1..4 {
                medium.write(0, &[value; 512], false, |_| true);
            }
            medium.lose_power(Fate::Any, &mut Random::new(seed));
            seen.insert(first(&medium));
        }
        assert_eq!(seen, BTreeSet::from([0, 1, 2, 3]));
    }

    #[test]
    fn a_wrong_block_stays_wrong_until_a_later_version_is_on_the_medium() {
        let mut medium = medium();
        medium.write(0, &[1; 512], false, |_| true);
        medium.mar(0, 512);
        let version = medium.version();
        medium.write(0, &[2; 512], false, |_| true);
        assert!(!medium.is_marred(), "a read returns a later version");
        medium.flush(version);
        let mut cut = medium.clone();
        cut.lose_power(Fate::Nothing, &mut Random::new(1));
        assert!(cut.is_marred(), "the version written over it was lost");
        medium.lose_power(Fate::Everything, &mut Random::new(1));
        assert!(!medium.is_marred());
    }

    #[test]
    fn an_unreadable_block_is_read_again_once_it_is_written() {
        let mut medium = medium();
        medium.write(512, &[1; 512], true, |_| true);
        assert_eq!(medium.spoil(&(0..8192), &mut Random::new(1)), Some(1));
        assert_eq!(medium.read(0, &mut [0; 1024]), Err(1));
        assert_eq!(first(&medium), 0);
        medium.write(512, &[2; 512], true, |_| true);
        assert_eq!(medium.read(0, &mut [0; 1024]), Ok(()));
    }
}
