//! Sequential detector: finds operations that continue earlier ones.
//!
//! Invariants:
//! - at most `limit` sequences are followed: the one that has not been continued for
//!   longest makes way for a new one;
//! - a sequence begins with any operation, and its second operation begins exactly where
//!   the first one ended; from then on operations may be `disorder` bytes early or late;
//! - `skipped` is at most `disorder`: a sequence with larger gaps begins again;
//! - `nexts`, `touched` and `runs` have one entry for each sequence, at the same index.

use std::ops::Range;

/// The operations of one sequence.
struct Run {
    /// Their bytes, once there are two of them; 0 before.
    bytes: u64,
    /// Bytes before the end of the sequence that no operation covered.
    skipped: u64,
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
    /// Of each sequence, the next byte, the number of the operation that continued it last, and the
    /// rest: in separate vectors, since each operation is compared with all next bytes.
    nexts: Vec<u64>,
    touched: Vec<u64>,
    runs: Vec<Run>,
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
        let (nexts, touched, runs) = (Vec::new(), Vec::new(), Vec::new());
        SequentialDetector { nexts, touched, runs, limit, disorder, operations: 0 }
    }

    /// Records an operation; returns the sequence that it continues, or `None` if it may begin one.
    pub fn record(&mut self, bytes: &Range<u64>) -> Option<Continued> {
        self.operations += 1;
        let Some(at) = self.find(bytes) else {
            self.begin(bytes.end);
            return None;
        };
        let len = bytes.end - bytes.start;
        let (next, run) = (&mut self.nexts[at], &mut self.runs[at]);
        self.touched[at] = self.operations;
        let advanced = bytes.end.saturating_sub(*next);
        *next += advanced;
        run.skipped = (run.skipped + advanced).saturating_sub(len);
        if run.skipped > self.disorder {
            (run.bytes, run.skipped) = (0, 0);
            return None;
        }
        run.bytes = if run.bytes == 0 { 2 * len } else { run.bytes + len };
        Some(Continued { next: *next, bytes: run.bytes, skipped: run.skipped, advanced })
    }

    /// The sequence that an operation continues.
    fn find(&self, bytes: &Range<u64>) -> Option<usize> {
        let (start, disorder) = (bytes.start, self.disorder);
        if disorder == 0 {
            return self.nexts.iter().position(|&next| next == start);
        }
        let continues = |(&next, run): (&u64, &Run)| {
            // Bytes before the next one were skipped.
            let late = start < next && start + disorder > next && run.skipped >= bytes.end - start;
            let early = start > next && start < next + disorder;
            start == next || run.bytes > 0 && (late || early)
        };
        self.nexts.iter().zip(&self.runs).position(continues)
    }

    /// Begins a sequence with an operation that ended at `next`.
    fn begin(&mut self, next: u64) {
        if self.runs.len() == self.limit
            && let Some(oldest) = self.touched.iter().min()
            && let Some(at) = self.touched.iter().position(|touched| touched == oldest)
        {
            self.nexts.swap_remove(at);
            self.touched.swap_remove(at);
            self.runs.swap_remove(at);
        }
        self.nexts.push(next);
        self.touched.push(self.operations);
        self.runs.push(Run { bytes: 0, skipped: 0 });
    }

    /// The last operation covered the bytes up to `end`, and not up to where it was recorded.
    pub fn end_last(&mut self, end: u64) {
        if let Some(last) = self.touched.iter().position(|&touched| touched == self.operations) {
            self.nexts[last] = end;
        }
    }

    /// Number of sequences of at least two operations that were continued less than `recent`
    /// operations before the next one.
    pub fn active(&self, recent: u64) -> usize {
        let now = self.operations + 1;
        let is_active = |&(&touched, run): &(&u64, &Run)| run.bytes > 0 && now - touched < recent;
        self.touched.iter().zip(&self.runs).filter(is_active).count()
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
