//! Sequential detector: finds operations that continue earlier ones.
//!
//! Invariants:
//! - at most `limit` sequences are followed: the one that has not been continued for
//!   longest makes way for a new one;
//! - a sequence begins with any operation, and its second operation begins exactly where
//!   the first one ended; from then on operations may be `disorder` bytes early or late;
//! - `skipped` is at most `disorder`: a sequence with larger gaps begins again.

use std::ops::Range;

/// One sequence of operations.
struct Sequence {
    /// Where it goes on.
    next: u64,
    /// Bytes of its operations, once there are two of them; 0 before.
    bytes: u64,
    /// Bytes before `next` that no operation covered.
    skipped: u64,
    /// Number of the operation that continued it last.
    touched: u64,
}

/// What an operation continues.
#[derive(Clone, Copy, Debug)]
pub struct Continued {
    /// Where the next operation is expected.
    pub next: u64,
    /// Bytes of all operations of the sequence, this one included.
    pub bytes: u64,
    /// Bytes before `next` that no operation of the sequence covered.
    pub skipped: u64,
    /// Bytes by which this operation moved `next`; 0 for one that is late.
    pub advanced: u64,
}

/// Finds sequential operations among others.
pub struct SequentialDetector {
    sequences: Vec<Sequence>,
    limit: usize,
    disorder: u64,
    operations: u64,
}

impl Default for SequentialDetector {
    /// For operations in order, of more readers or writers than a device commonly has.
    fn default() -> SequentialDetector {
        SequentialDetector::new(64, 0)
    }
}

impl SequentialDetector {
    /// Follows at most `limit` sequences, whose operations may arrive out of order by
    /// `disorder` bytes.
    pub fn new(limit: usize, disorder: u64) -> SequentialDetector {
        SequentialDetector { sequences: Vec::with_capacity(limit), limit, disorder, operations: 0 }
    }

    /// Records an operation; returns what it continues, and nothing if it may begin a sequence.
    pub fn record(&mut self, bytes: &Range<u64>) -> Option<Continued> {
        self.operations += 1;
        let (len, disorder) = (bytes.end - bytes.start, self.disorder);
        let continues = |sequence: &Sequence| {
            if bytes.start == sequence.next {
                return true;
            }
            // Before the next byte there is only what was skipped.
            let late = bytes.start < sequence.next
                && bytes.start + disorder > sequence.next
                && sequence.skipped >= len;
            let early = bytes.start > sequence.next && bytes.start < sequence.next + disorder;
            sequence.bytes > 0 && (late || early)
        };
        let Some(sequence) = self.sequences.iter_mut().find(|sequence| continues(sequence)) else {
            self.begin(bytes.end);
            return None;
        };
        sequence.touched = self.operations;
        let advanced = bytes.end.saturating_sub(sequence.next);
        sequence.next += advanced;
        sequence.skipped = (sequence.skipped + advanced).saturating_sub(len);
        if sequence.skipped > disorder {
            (sequence.bytes, sequence.skipped) = (0, 0);
            return None;
        }
        sequence.bytes = if sequence.bytes == 0 { 2 * len } else { sequence.bytes + len };
        Some(Continued { next: sequence.next, bytes: sequence.bytes, skipped: sequence.skipped, advanced })
    }

    /// Begins a sequence with an operation that ended at `next`.
    fn begin(&mut self, next: u64) {
        if self.sequences.len() >= self.limit
            && let Some(oldest) = (0..self.sequences.len()).min_by_key(|&at| self.sequences[at].touched)
        {
            self.sequences.swap_remove(oldest);
        }
        self.sequences.push(Sequence { next, bytes: 0, skipped: 0, touched: self.operations });
    }

    /// The last operation covered the bytes up to `end`, and not up to where it was recorded.
    pub fn end_last(&mut self, end: u64) {
        if let Some(last) = self.sequences.iter_mut().max_by_key(|sequence| sequence.touched) {
            last.next = end;
        }
    }

    /// Number of sequences of at least two operations that were continued less than `recent`
    /// operations before the next one.
    pub fn active(&self, recent: u64) -> usize {
        let now = self.operations + 1;
        self.sequences.iter().filter(|s| s.bytes > 0 && now - s.touched < recent).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_continues_another_where_that_ended() {
        let mut detector = SequentialDetector::new(2, 0);
        assert!(detector.record(&(0..10)).is_none());
        assert!(detector.record(&(100..110)).is_none());
        let continued = detector.record(&(10..30)).expect("it begins where the first one ended");
        assert_eq!((continued.next, continued.advanced, continued.skipped), (30, 20, 0));
        assert!(detector.record(&(31..40)).is_none(), "a gap, without disorder");
        // That began a sequence, in place of the one that was continued least recently.
        assert!(detector.record(&(110..120)).is_none());
    }

    #[test]
    fn the_end_of_an_operation_can_be_corrected() {
        let mut detector = SequentialDetector::new(1, 0);
        detector.record(&(0..10));
        detector.end_last(64);
        assert!(detector.record(&(10..20)).is_none());
        detector.end_last(64);
        assert!(detector.record(&(64..70)).is_some());
    }

    #[test]
    fn active_sequences_are_those_continued_recently() {
        let mut detector = SequentialDetector::new(16, 0);
        for at in [0, 1, 500] {
            detector.record(&(at..at + 1));
        }
        assert_eq!(detector.active(8), 1, "one operation is no sequence");
        for at in [3000, 4000, 5000, 6000, 7000, 8000] {
            detector.record(&(at..at + 1));
        }
        assert_eq!((detector.active(9), detector.active(8)), (1, 0));
    }
}
