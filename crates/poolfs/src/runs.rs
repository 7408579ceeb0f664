//! Content in memory, by its place in a file.
//!
//! Large writes are kept as they came, so that they are not copied again on their way to the members; small ones
//! are joined.
//!
//! Invariant: runs do not overlap, and none is empty.

use longhaul_engine::Buf;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, Range};

/// Most bytes that a run of small writes grows to, so that little is copied.
const RUN_MAX: usize = 8 << 20;
/// What is left of a buffer that is kept is copied below this part of the buffer, whose memory would stay.
const LEFT_PART: usize = 4;

/// Successive bytes in memory.
#[derive(Clone, Debug)]
enum RunBytes {
    /// Small writes, joined.
    Grown(Vec<u8>),
    /// One write, or a part of it; the bytes of the whole one.
    Kept(Buf, usize),
}

impl Deref for RunBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            RunBytes::Grown(bytes) => bytes,
            RunBytes::Kept(bytes, _) => bytes,
        }
    }
}

impl RunBytes {
    /// Cuts off what is at `at` or later; `at` is within the run.
    fn split_off(&mut self, at: usize) -> RunBytes {
        match self {
            RunBytes::Grown(bytes) => RunBytes::Grown(bytes.split_off(at)),
            RunBytes::Kept(bytes, whole) => {
                let (head, tail) = (bytes.slice(0..at), bytes.slice(at..bytes.len()));
                let (whole, part) =
                    (*whole, |bytes: Buf, whole: usize| match bytes.len() < whole / LEFT_PART {
                        true => RunBytes::Grown(bytes.to_vec()),
                        false => RunBytes::Kept(bytes, whole),
                    });
                *self = part(head, whole);
                part(tail, whole)
            }
        }
    }
}

/// Successive content of a file, in parts.
#[derive(Clone)]
pub(crate) struct Span<'r> {
    pub(crate) offset: u64,
    parts: VecDeque<SpanPart<'r>>,
    len: usize,
}

#[derive(Clone)]
enum SpanPart<'r> {
    Bytes(&'r [u8]),
    Kept(Buf),
}

impl SpanPart<'_> {
    fn slice(&self, range: Range<usize>) -> Self {
        match self {
            SpanPart::Bytes(bytes) => SpanPart::Bytes(&bytes[range]),
            SpanPart::Kept(bytes) => SpanPart::Kept(bytes.slice(range)),
        }
    }
}

impl Deref for SpanPart<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            SpanPart::Bytes(bytes) => bytes,
            SpanPart::Kept(bytes) => bytes,
        }
    }
}

impl<'r> Span<'r> {
    fn new(offset: u64) -> Span<'r> {
        Span { offset, parts: VecDeque::new(), len: 0 }
    }

    /// Content that begins at `offset` of a file.
    #[cfg(test)]
    pub(crate) fn of(offset: u64, bytes: &'r [u8]) -> Span<'r> {
        Span { offset, parts: [SpanPart::Bytes(bytes)].into(), len: bytes.len() }
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where it ends in the file.
    fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    fn push(&mut self, part: SpanPart<'r>) {
        self.len += part.len();
        self.parts.push_back(part);
    }

    /// Takes the first `most` bytes, or all.
    pub(crate) fn take(&mut self, most: usize) -> Span<'r> {
        let mut taken = Span::new(self.offset);
        while taken.len < most
            && let Some(part) = self.parts.pop_front()
        {
            let now = part.len().min(most - taken.len);
            if now < part.len() {
                self.parts.push_front(part.slice(now..part.len()));
            }
            taken.push(part.slice(0..now));
        }
        self.offset += taken.len as u64;
        self.len -= taken.len;
        taken
    }

    /// The bytes, if they are one buffer.
    pub(crate) fn kept(&self) -> Option<Buf> {
        match self.parts.front() {
            Some(SpanPart::Kept(bytes)) if self.parts.len() == 1 => Some(bytes.clone()),
            _ => None,
        }
    }

    /// Copies all of it to the beginning of `to`.
    pub(crate) fn copy_to(&self, mut to: &mut [u8]) {
        for part in &self.parts {
            let (here, rest) = to.split_at_mut(part.len());
            here.copy_from_slice(part);
            to = rest;
        }
    }
}

/// Runs of bytes, by offset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    all: BTreeMap<u64, RunBytes>,
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

    /// All of it; runs that follow each other are one span.
    pub(crate) fn spans(&self) -> Vec<Span<'_>> {
        let mut spans: Vec<Span<'_>> = Vec::new();
        for (offset, run) in &self.all {
            let part = match run {
                RunBytes::Grown(bytes) => SpanPart::Bytes(bytes),
                RunBytes::Kept(bytes, _) => SpanPart::Kept(bytes.clone()),
            };
            match spans.last_mut().filter(|last| last.end() == *offset) {
                Some(last) => last.push(part),
                None => {
                    let mut span = Span::new(*offset);
                    span.push(part);
                    spans.push(span);
                }
            }
        }
        spans
    }

    /// Parts of runs within `range`, with their offsets.
    pub(crate) fn within(&self, range: Range<u64>) -> Vec<(u64, &[u8])> {
        let part = |(offset, bytes): (&u64, &RunBytes)| {
            let (from, to) = ((*offset).max(range.start), (offset + bytes.len() as u64).min(range.end));
            (from < to).then_some((from, (from - offset) as usize..(to - offset) as usize))
        };
        let first = self.first(&range);
        self.all
            .range(first..range.end.max(first))
            .filter_map(|run| part(run).map(|(from, bytes)| (from, &run.1[bytes])))
            .collect()
    }

    /// Where the first run begins that may reach into `range`; at most its beginning.
    fn first(&self, range: &Range<u64>) -> u64 {
        self.all.range(..=range.start).next_back().map_or(range.start, |(offset, _)| *offset)
    }

    fn insert(&mut self, offset: u64, run: RunBytes) {
        self.bytes += run.len();
        self.all.insert(offset, run);
    }

    /// Takes what is within `range`.
    fn cut_out(&mut self, range: Range<u64>) -> Runs {
        let mut taken = Runs::default();
        if range.is_empty() {
            return taken;
        }
        let touched: Vec<u64> = self
            .all
            .range(self.first(&range)..range.end)
            .filter(|(offset, bytes)| *offset + bytes.len() as u64 > range.start)
            .map(|(offset, _)| *offset)
            .collect();
        for offset in touched {
            let Some(mut run) = self.all.remove(&offset) else { continue };
            self.bytes -= run.len();
            if offset + run.len() as u64 > range.end {
                let tail = run.split_off((range.end - offset) as usize);
                self.insert(range.end, tail);
            }
            if offset < range.start {
                taken.insert(range.start, run.split_off((range.start - offset) as usize));
                self.insert(offset, run);
            } else {
                taken.insert(offset, run);
            }
        }
        taken
    }

    /// Removes what is within `range`.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        drop(self.cut_out(range));
    }

    /// Puts bytes in place of what was there.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        if let Some((start, RunBytes::Grown(run))) = self.all.range_mut(..=offset).next_back() {
            let (at, run_end) = ((offset - start) as usize, start + run.len() as u64);
            if end <= run_end {
                return run[at..at + data.len()].copy_from_slice(data);
            }
            if offset == run_end && run.len() + data.len() <= RUN_MAX {
                let start = *start;
                let is_free = |next: Option<u64>| next.is_none_or(|next| next >= end);
                if is_free(self.all.range(offset..).next().map(|(next, _)| *next))
                    && let Some(RunBytes::Grown(run)) = self.all.get_mut(&start)
                {
                    self.bytes += data.len();
                    return run.extend_from_slice(data);
                }
            }
        }
        self.remove(offset..end);
        self.insert(offset, RunBytes::Grown(data.to_vec()));
    }

    /// Puts a buffer, which is kept, in place of what was there.
    pub(crate) fn keep(&mut self, offset: u64, data: Buf) {
        if data.is_empty() {
            return;
        }
        let len = data.len();
        self.remove(offset..offset + len as u64);
        self.insert(offset, RunBytes::Kept(data, len));
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
        let (mut taken, mut from) = (Runs::default(), 0);
        while taken.bytes < most {
            let mut runs = self.all.range(from..).map(|(offset, run)| (*offset, offset + run.len() as u64));
            let Some((start, mut end)) = runs.next() else { break };
            for (next, next_end) in runs {
                if next != end || end - start >= most as u64 {
                    break;
                }
                end = next_end;
            }
            from = end;
            let mut aligned = self.cut_out(start.next_multiple_of(whole)..end / whole * whole);
            taken.bytes += aligned.bytes;
            taken.all.append(&mut aligned.all);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 300;

    /// What the spans are, taken in pieces.
    fn in_spans(runs: &Runs, rng: &mut fastrand::Rng) -> Vec<Option<u8>> {
        let (mut found, mut last) = (vec![None; LEN as usize], None);
        for mut span in runs.spans() {
            assert_ne!(last, Some(span.offset), "spans touch");
            last = Some(span.end());
            while span.len() > 0 {
                let piece = span.take(rng.usize(1..30));
                let mut bytes = vec![0; piece.len()];
                piece.copy_to(&mut bytes);
                assert!(piece.kept().is_none_or(|kept| *kept == *bytes));
                for (at, byte) in bytes.into_iter().enumerate() {
                    assert_eq!(found[piece.offset as usize + at].replace(byte), None);
                }
            }
        }
        found
    }

    #[test]
    fn little_of_a_large_buffer_does_not_keep_it() {
        let mut runs = Runs::default();
        runs.keep(0, Buf::copy_of(&[1; 4000]));
        runs.remove(1500..4000);
        assert!(matches!(runs.all[&0], RunBytes::Kept(_, 4000)));
        runs.remove(500..4000);
        assert!(matches!(runs.all[&0], RunBytes::Grown(_)));
        assert_eq!(runs.bytes(), 500);
    }

    #[test]
    fn runs_are_what_was_done_to_them() {
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
                    let data = vec![byte; len as usize];
                    match rng.bool() {
                        true => runs.write(offset, &data),
                        false => runs.keep(offset, Buf::copy_of(&data)),
                    }
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
                    for span in taken.spans() {
                        assert_eq!((span.offset % 16, span.len() % 16), (0, 0));
                    }
                    for (offset, bytes) in taken.iter() {
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
            assert_eq!(in_spans(&runs, &mut rng), model);
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
