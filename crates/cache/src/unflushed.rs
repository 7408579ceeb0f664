//! Changes that a device has acknowledged and not made durable: kept by its user, and resent when
//! the device may have lost them.
//!
//! Invariants:
//! - of each byte only the latest change is kept: resent in any order, the changes restore the
//!   acknowledged content;
//! - memory is counted for as long as any part of it is kept.

use longhaul_block::ZeroFlags;
use longhaul_engine::Buf;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// What each change counts for at least, so that those without data are
/// bounded as well.
const LEAST: u64 = 4096;

/// The change of a range.
#[derive(Clone, Debug)]
pub enum Change {
    /// It was written: as many bytes as the range has.
    Data(Buf),
    /// It was made to read as zeroes.
    Zeroes(ZeroFlags),
    /// It is not needed any more.
    Discard,
}

/// A time in which an open device has lost no change that it had acknowledged, as far as its user knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// The device's generation.
    pub generation: u64,
    /// Number of flushes that have failed: each may have lost any change that the device had then.
    pub failed_flushes: u64,
}

/// Changes of one open device that were not flushed.
#[derive(Debug, Default)]
pub struct Unflushed {
    /// By their first byte; none overlaps another.
    changes: BTreeMap<u64, UnflushedChange>,
    next: u64,
    bytes: Rc<Cell<u64>>,
}

#[derive(Clone, Debug)]
struct UnflushedChange {
    end: u64,
    change: Change,
    number: u64,
    /// From before the change was sent.
    epoch: Epoch,
    _weight: Rc<Weight>,
}

#[derive(Debug)]
struct Weight {
    bytes: u64,
    all: Rc<Cell<u64>>,
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.bytes);
    }
}

impl UnflushedChange {
    /// The part of it, which begins at `at`, that is within `range`.
    fn part(&self, at: u64, range: &Range<u64>) -> (Range<u64>, Change) {
        let part = at.max(range.start)..self.end.min(range.end);
        let change = match &self.change {
            Change::Data(buf) => {
                Change::Data(buf.slice((part.start - at) as usize..(part.end - at) as usize))
            }
            other => other.clone(),
        };
        (part, change)
    }
}

impl Unflushed {
    /// A change has been acknowledged. `epoch` is that from before it was sent.
    pub fn note(&mut self, range: Range<u64>, change: Change, epoch: Epoch) {
        if range.is_empty() {
            return;
        }
        self.forget(&range);
        let bytes = match &change {
            Change::Data(buf) => (buf.len() as u64).max(LEAST),
            Change::Zeroes(_) | Change::Discard => LEAST,
        };
        self.bytes.set(self.bytes.get() + bytes);
        let weight = Rc::new(Weight { bytes, all: Rc::clone(&self.bytes) });
        let number = self.next;
        self.next += 1;
        self.changes
            .insert(range.start, UnflushedChange { end: range.end, change, number, epoch, _weight: weight });
    }

    /// Of this range nothing need be kept: something durable is there.
    pub fn forget(&mut self, range: &Range<u64>) {
        for at in self.within(range).collect::<Vec<_>>() {
            let Some(kept) = self.changes.remove(&at) else { continue };
            for left in [at..range.start, range.end..kept.end] {
                if left.start < left.end {
                    let (part, change) = kept.part(at, &left);
                    self.changes
                        .insert(part.start, UnflushedChange { end: part.end, change, ..kept.clone() });
                }
            }
        }
    }

    /// Where the changes begin that touch a range.
    fn within(&self, range: &Range<u64>) -> impl Iterator<Item = u64> {
        let (start, end) = (range.start, range.end.max(range.start));
        // Those behind the first one begin within the range.
        let first = self.changes.range(..start).next_back().filter(move |(_, kept)| kept.end > start);
        first.into_iter().chain(self.changes.range(start..end)).map(|(&at, _)| at)
    }

    /// Whether any of a range is kept.
    pub fn touches(&self, range: &Range<u64>) -> bool {
        !self.changes.is_empty() && self.within(range).next().is_some()
    }

    /// The changes of a range that were sent in another epoch of the device than this one, and so
    /// have to be resent: at most `most` bytes and `count` changes, but at least one.
    pub fn stale(
        &self,
        range: &Range<u64>,
        epoch: Epoch,
        most: u64,
        count: usize,
    ) -> Vec<(Range<u64>, Change)> {
        let mut bytes = 0;
        self.within(range)
            .filter_map(|at| self.changes.get(&at).map(|kept| (at, kept)))
            .filter(|(_, kept)| kept.epoch != epoch)
            .map(|(at, kept)| kept.part(at, range))
            .take_while(|(part, change)| {
                let first = bytes == 0;
                bytes += if matches!(change, Change::Data(_)) { part.end - part.start } else { LEAST };
                first || bytes <= most
            })
            .take(count)
            .collect()
    }

    /// Whether any of a range has to be resent.
    pub fn is_stale(&self, range: &Range<u64>, epoch: Epoch) -> bool {
        !self.stale(range, epoch, 0, 1).is_empty()
    }

    /// Copies kept changes into `content`, which begins at `offset`.
    pub fn overlay(&self, offset: u64, content: &mut [u8]) {
        let range = offset..offset + content.len() as u64;
        for at in self.within(&range) {
            let Some(kept) = self.changes.get(&at) else { continue };
            let (part, change) = kept.part(at, &range);
            let place = &mut content[(part.start - offset) as usize..(part.end - offset) as usize];
            match change {
                Change::Data(buf) => place.copy_from_slice(&buf),
                Change::Zeroes(_) => place.fill(0),
                Change::Discard => {}
            }
        }
    }

    /// All that was noted until now, for [`flushed`](Self::flushed).
    pub fn mark(&self) -> u64 {
        self.next
    }

    /// The changes that were noted before `mark` are durable, or reported as lost.
    pub fn flushed(&mut self, mark: u64) {
        self.changes.retain(|_, kept| kept.number >= mark);
    }

    /// Memory that is kept in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Range<u64> = 0..u64::MAX;

    fn epoch(generation: u64) -> Epoch {
        Epoch { generation, failed_flushes: 0 }
    }

    fn data(byte: u8, len: usize) -> Change {
        Change::Data(Buf::copy_of(&vec![byte; len]))
    }

    #[test]
    fn of_each_byte_the_latest_change_is_kept() {
        let mut model = vec![0u8; 64 << 10];
        let mut kept = Unflushed::default();
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = |n: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 11) % n
        };
        for round in 0..2000u32 {
            let (at, byte) = (random(120) * 512, (round % 255 + 1) as u8);
            let len = ((1 + random(8)) * 512).min(model.len() as u64 - at);
            let place = &mut model[at as usize..(at + len) as usize];
            if round % 5 == 0 {
                place.fill(0);
                kept.note(at..at + len, Change::Zeroes(ZeroFlags::default()), epoch(1));
            } else {
                place.fill(byte);
                kept.note(at..at + len, data(byte, len as usize), epoch(1));
            }
            let mut content = vec![0; model.len()];
            kept.overlay(0, &mut content);
            assert!(content == model, "round {round}");
            assert!(!kept.is_stale(&ALL, epoch(1)));
        }
        // The resent changes restore the content.
        let mut content = vec![0; model.len()];
        for (range, change) in kept.stale(&ALL, epoch(2), u64::MAX, usize::MAX) {
            if let Change::Data(buf) = change {
                content[range.start as usize..range.end as usize].copy_from_slice(&buf);
            }
        }
        assert!(content == model);
        kept.forget(&(0..model.len() as u64));
        assert_eq!(kept.bytes(), 0);
    }

    #[test]
    fn memory_counts_until_the_last_part_of_it_has_gone() {
        let mut kept = Unflushed::default();
        kept.note(0..1 << 20, data(1, 1 << 20), epoch(1));
        kept.forget(&(4096..(1 << 20) - 4096));
        assert_eq!(kept.bytes(), 1 << 20);
        assert!(kept.touches(&(0..1)) && !kept.touches(&(4096..8192)));
        kept.forget(&(0..4096));
        kept.forget(&(0..1 << 20));
        assert_eq!(kept.bytes(), 0);
        kept.note(0..1 << 30, Change::Discard, epoch(1));
        assert_eq!(kept.bytes(), LEAST);
    }

    #[test]
    fn what_was_flushed_is_gone_and_what_may_be_lost_is_sent_again() {
        let mut kept = Unflushed::default();
        kept.note(0..512, data(1, 512), epoch(1));
        let mark = kept.mark();
        kept.note(512..1024, data(2, 512), epoch(1));
        let failed = Epoch { failed_flushes: 1, ..epoch(1) };
        assert_eq!(kept.stale(&ALL, failed, u64::MAX, 9).len(), 2);
        kept.flushed(mark);
        assert!(!kept.is_stale(&ALL, epoch(1)));
        assert!(kept.is_stale(&(600..601), epoch(2)) && !kept.is_stale(&(0..512), epoch(2)));
    }
}
