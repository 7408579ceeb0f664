//! Sequential detector: finds operations that begin where another one ended.

use std::cell::RefCell;
use std::collections::VecDeque;

/// Ends that are kept: more than an array commonly has sequential readers or writers.
const ENDS: usize = 64;

/// The last ends, as byte offsets in the array.
#[derive(Default)]
pub(crate) struct SequentialDetector(RefCell<VecDeque<u64>>);

impl SequentialDetector {
    /// Records an operation; returns whether it begins where another one ended.
    pub(crate) fn is_sequential(&self, offset: u64, len: u64) -> bool {
        let mut ends = self.0.borrow_mut();
        let known = ends.iter().position(|end| *end == offset);
        if let Some(at) = known {
            ends.remove(at);
        }
        ends.push_back(offset + len);
        if ends.len() > ENDS {
            ends.pop_front();
        }
        known.is_some()
    }
}
