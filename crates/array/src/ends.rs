//! Where operations have ended, to know those that go on from there.

use std::cell::RefCell;
use std::collections::VecDeque;

/// Ends that are remembered: more than the sequential readers, or writers, that
/// an array commonly has.
const ENDS: usize = 64;

/// The last ends, in bytes of the array.
#[derive(Default)]
pub(crate) struct Ends(RefCell<VecDeque<u64>>);

impl Ends {
    /// Notes an operation; says whether it begins where another ended.
    pub(crate) fn goes_on(&self, offset: u64, len: u64) -> bool {
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
