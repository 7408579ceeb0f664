//! Fails operations on purpose.

use super::{Around, Op, OpSet};
use crate::{IoError, IoFuture};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a failed operation ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Fails with [`IoError::Medium`].
    Medium,
    /// Fails with [`IoError::NoSpace`].
    NoSpace,
    /// Fails with [`IoError::Integrity`].
    Integrity,
    /// Fails with [`IoError::Unreachable`].
    Unreachable,
}

impl ErrorKind {
    /// All kinds, as option `kind=` names them.
    pub const ALL: [ErrorKind; 4] =
        [ErrorKind::Medium, ErrorKind::NoSpace, ErrorKind::Integrity, ErrorKind::Unreachable];

    /// Its name in a back-end specification.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Medium => "medium",
            ErrorKind::NoSpace => "nospace",
            ErrorKind::Integrity => "integrity",
            ErrorKind::Unreachable => "unreachable",
        }
    }

    fn error(self, op: Op) -> IoError {
        let what = || format!("injected on {} of {} bytes at {}", op.kind.name(), op.len, op.offset);
        match self {
            ErrorKind::Medium => IoError::Medium(what()),
            ErrorKind::NoSpace => IoError::NoSpace,
            ErrorKind::Integrity => IoError::Integrity(what()),
            ErrorKind::Unreachable => IoError::Unreachable(what()),
        }
    }
}

/// The filter: of the operations of `ops` that touch `range`, it fails a
/// share before they reach the device below. Which ones fail depends on the
/// seed and on how many came before, not on time.
#[derive(Debug)]
pub struct Errors {
    /// Operations that may fail.
    pub ops: OpSet,
    /// How many of them do, from 0 to 1.
    pub share: f64,
    /// Seed of the generator that selects the operations to fail.
    pub seed: u64,
    /// Only operations on these bytes (a flush touches none), or all.
    pub range: Option<Range<u64>>,
    /// The error that they return.
    pub kind: ErrorKind,
    seen: AtomicU64,
}

impl Errors {
    /// Fails `share` (0 to 1) of all operations with a medium error.
    pub fn new(share: f64, seed: u64) -> Errors {
        Errors { ops: OpSet::ALL, share, seed, range: None, kind: ErrorKind::Medium, seen: AtomicU64::new(0) }
    }

    fn fails(&self, op: Op) -> bool {
        let touches = |r: &Range<u64>| op.offset < r.end && r.start < op.offset.saturating_add(op.len);
        if !self.ops.has(op.kind) || !self.range.as_ref().is_none_or(touches) {
            return false;
        }
        let number = self.seen.fetch_add(1, Relaxed);
        // 53 bits are what a float between 0 and 1 holds.
        let draw = (mix(self.seed ^ mix(number)) >> 11) as f64 / (1u64 << 53) as f64;
        draw < self.share
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Around for Errors {
    fn around<T: Unpin + 'static>(
        self: &Arc<Self>,
        op: Op,
        start: impl FnOnce() -> IoFuture<T>,
    ) -> IoFuture<T> {
        if self.fails(op) { IoFuture::ready(Err(self.kind.error(op))) } else { start() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{Filtered, OpKind};
    use crate::testing::{done, open};
    use crate::{MemDevice, WriteFlags};
    use longhaul_engine::{Buf, BufMut};

    fn failures(filter: Errors, reads: usize) -> Vec<bool> {
        let device = Filtered::new(Arc::new(MemDevice::new(1 << 20, 512).expect("mapped")), filter);
        let io = open(&device);
        (0..reads).map(|_| done(io.read(4096, BufMut::zeroed(512))).is_err()).collect()
    }

    #[test]
    fn the_share_holds_and_the_seed_decides() {
        let count = |fails: &[bool]| fails.iter().filter(|f| **f).count();
        let a = failures(Errors::new(0.1, 1), 10_000);
        assert!((900..1100).contains(&count(&a)), "{}", count(&a));
        assert_eq!(a, failures(Errors::new(0.1, 1), 10_000));
        assert_ne!(a, failures(Errors::new(0.1, 2), 10_000));
        assert_eq!(count(&failures(Errors::new(0.0, 1), 1000)), 0);
        assert_eq!(count(&failures(Errors::new(1.0, 1), 1000)), 1000);
    }

    #[test]
    fn only_the_range_and_the_kinds_asked_for_fail() {
        let mut filter = Errors::new(1.0, 0);
        filter.ops = OpSet::NONE.with(OpKind::Write).with(OpKind::Flush);
        filter.range = Some(4096..8192);
        filter.kind = ErrorKind::NoSpace;
        let device = Filtered::new(Arc::new(MemDevice::new(1 << 20, 512).expect("mapped")), filter);
        let io = open(&device);
        let write = |at, len| done(io.write(at, Buf::copy_of(&vec![1; len]), WriteFlags::default()));
        assert_eq!(write(0, 4096), Ok(()));
        assert_eq!(write(0, 4608), Err(IoError::NoSpace));
        assert_eq!(write(7680, 512), Err(IoError::NoSpace));
        assert_eq!(write(8192, 512), Ok(()));
        assert!(done(io.read(4096, BufMut::zeroed(512))).is_ok());
        assert_eq!(done(io.flush()), Ok(()));
        // What failed did not reach the device.
        assert_eq!(done(io.read(7680, BufMut::zeroed(512))).expect("read")[..], [0; 512]);
        assert!(io.map_write(0, 512).is_none());
    }
}
