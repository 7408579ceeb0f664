//! Content in memory, by its place in a file.
//!
//! Invariant: runs do not overlap, and none is empty.

use std::collections::BTreeMap;
use std::ops::Range;

/// Most bytes that a run grows to, so that little is copied.
const RUN_MAX: usize = 8 << 20;

/// Runs of bytes, by offset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    all: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Runs {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Bytes of all runs.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where the last one ends; 0 without any.
    pub(crate) fn end(&self) -> u64 {
        self.all.last_key_value().map_or(0, |(offset, bytes)| offset + bytes.len() as u64)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.all.iter().map(|(offset, bytes)| (*offset, &bytes[..]))
    }

    /// Parts of runs within `range`, with their offsets.
    pub(crate) fn within(&self, range: Range<u64>) -> Vec<(u64, &[u8])> {
        let first = self.all.range(..=range.start).next_back().map_or(range.start, |(offset, _)| *offset);
        let part = |(offset, bytes): (&u64, &'_ Vec<u8>)| {
            let (from, to) = ((*offset).max(range.start), (offset + bytes.len() as u64).min(range.end));
            (from < to).then_some((from, (from - offset) as usize..(to - offset) as usize))
        };
        self.all
            .range(first..range.end.max(first))
            .filter_map(|run| part(run).map(|(from, bytes)| (from, &run.1[bytes])))
            .collect()
    }

    /// Removes what is within `range`.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.all.range(..=range.start).next_back().map_or(range.start, |(offset, _)| *offset);
        let touched: Vec<u64> = self
            .all
            .range(first..range.end)
            .filter(|(offset, bytes)| *offset + bytes.len() as u64 > range.start)
            .map(|(offset, _)| *offset)
            .collect();
        for offset in touched {
            let Some(mut bytes) = self.all.remove(&offset) else { continue };
            self.bytes -= bytes.len();
            let end = offset + bytes.len() as u64;
            if end > range.end {
                let tail = bytes.split_off((range.end - offset) as usize);
                self.bytes += tail.len();
                self.all.insert(range.end, tail);
            }
            if offset < range.start {
                bytes.truncate((range.start - offset) as usize);
                self.bytes += bytes.len();
                self.all.insert(offset, bytes);
            }
        }
    }

    /// Puts bytes in place of what was there.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        if let Some((start, run)) = self.all.range_mut(..=offset).next_back() {
            let (at, run_end) = ((offset - start) as usize, start + run.len() as u64);
            if end <= run_end {
                return run[at..at + data.len()].copy_from_slice(data);
            }
            let is_free = |next: Option<u64>| next.is_none_or(|next| next >= end);
            if offset == run_end && run.len() + data.len() <= RUN_MAX {
                let start = *start;
                if is_free(self.all.range(offset..).next().map(|(next, _)| *next)) {
                    self.bytes += data.len();
                    // unwrap: it was found above.
                    self.all.entry(start).or_default().extend_from_slice(data);
                    return;
                }
            }
        }
        self.remove(offset..end);
        self.bytes += data.len();
        self.all.insert(offset, data.to_vec());
    }

    /// Moves all at `from` or later by `shift` bytes.
    pub(crate) fn shift(&mut self, from: u64, shift: i64) {
        let moved = self.all.split_off(&from);
        self.all.extend(moved.into_iter().map(|(offset, bytes)| (offset.wrapping_add_signed(shift), bytes)));
    }

    /// Takes all of it.
    pub(crate) fn take(&mut self) -> Runs {
        std::mem::take(self)
    }

    /// Takes what fills whole ranges of `len` bytes, from multiples of `len` in the file, until it is about `most`
    /// bytes. So all of a file that is written once is taken in whole ranges, in whatever order it is written.
    pub(crate) fn take_aligned(&mut self, len: usize, most: usize) -> Runs {
        let whole = len as u64;
        let mut all = std::mem::take(&mut self.all).into_iter().peekable();
        let mut taken = Runs::default();
        while taken.bytes < most
            && let Some((offset, mut bytes)) = all.next()
        {
            while bytes.len() < most
                && let Some((_, next)) = all.next_if(|(next, _)| *next == offset + bytes.len() as u64)
            {
                bytes.extend_from_slice(&next);
            }
            let end = offset + bytes.len() as u64;
            let (first, last) = (offset.next_multiple_of(whole), end / whole * whole);
            if first >= last {
                self.all.insert(offset, bytes);
                continue;
            }
            if last < end {
                self.all.insert(last, bytes.split_off((last - offset) as usize));
            }
            if offset < first {
                let head = bytes.drain(..(first - offset) as usize).collect();
                self.all.insert(offset, head);
            }
            self.bytes -= bytes.len();
            taken.bytes += bytes.len();
            taken.all.insert(first, bytes);
        }
        self.all.extend(all);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_was_done_to_them() {
        const LEN: u64 = 300;
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut runs, mut model) = (Runs::default(), vec![None; LEN as usize]);
        let mut taken_all = 0;
        for step in 0..5000 {
            let offset = rng.u64(0..LEN);
            let len = rng.u64(1..=(LEN - offset).min(50));
            let range = offset as usize..(offset + len) as usize;
            let byte = step as u8;
            match rng.u8(0..10) {
                0..5 => {
                    runs.write(offset, &vec![byte; len as usize]);
                    model[range].fill(Some(byte));
                }
                5..9 => {
                    runs.remove(offset..offset + len);
                    model[range].fill(None);
                }
                _ => {
                    let most = if rng.bool() { 32 } else { usize::MAX };
                    let taken = runs.take_aligned(16, most);
                    taken_all += taken.bytes();
                    assert!(most == 32 || runs.clone().take_aligned(16, most).is_empty());
                    for (offset, bytes) in taken.iter() {
                        assert_eq!((offset % 16, bytes.len() % 16), (0, 0));
                        for (at, byte) in bytes.iter().enumerate() {
                            assert_eq!(model[offset as usize + at].take(), Some(*byte));
                        }
                    }
                }
            }
            let mut found = vec![None; LEN as usize];
            for (offset, bytes) in runs.iter() {
                for (at, byte) in bytes.iter().enumerate() {
                    assert_eq!(found[offset as usize + at].replace(*byte), None, "runs overlap");
                }
            }
            assert_eq!(found, model);
            assert_eq!(runs.bytes(), model.iter().flatten().count());
            let end = model.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            assert_eq!(runs.end(), end as u64);
            let (from, to) = (rng.u64(0..LEN), rng.u64(0..LEN));
            let mut found = vec![None; LEN as usize];
            for (offset, bytes) in runs.within(from..to) {
                for (at, byte) in bytes.iter().enumerate() {
                    found[offset as usize + at] = Some(*byte);
                }
            }
            for (at, byte) in found.into_iter().enumerate() {
                assert_eq!(byte, if (from..to).contains(&(at as u64)) { model[at] } else { None });
            }
        }
        assert!(taken_all > 0);
    }

    #[test]
    fn what_is_written_once_is_taken_whole_in_any_order() {
        const BLOCKS: u64 = 60;
        let mut rng = fastrand::Rng::with_seed(4);
        let mut order: Vec<u64> = (0..BLOCKS).collect();
        rng.shuffle(&mut order);
        let (mut runs, mut taken) = (Runs::default(), 0);
        for block in order {
            runs.write(block * 4, &[block as u8; 4]);
            taken += runs.take_aligned(3, usize::MAX).bytes();
        }
        assert_eq!((taken as u64, runs.bytes()), (BLOCKS * 4, 0));
    }
}
