//! Counts what passes.

use super::{Around, Op, OpKind};
use crate::IoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// The filter. Counters are shared by every thread that opened the device;
/// they only ever grow.
#[derive(Debug, Default)]
pub struct Stats {
    kinds: [Counters; OpKind::ALL.len()],
}

#[derive(Debug, Default)]
struct Counters {
    begun: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    lent: AtomicU64,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

/// Counts of one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Operations begun, failed ones and those under way among them.
    pub begun: u64,
    /// Operations that ended well.
    pub done: u64,
    /// Operations that ended in an error.
    pub failed: u64,
    /// Operations that the device's own memory was lent for: their end is not
    /// seen, so they count neither as done nor in the time.
    pub lent: u64,
    /// Bytes of operations done or lent for.
    pub bytes: u64,
    /// Time from begin to end of operations done, in nanoseconds.
    pub nanoseconds: u64,
}

/// Counts of all kinds of operation at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    kinds: [OpStats; OpKind::ALL.len()],
}

impl StatsSnapshot {
    /// Counts of `kind`.
    pub fn of(&self, kind: OpKind) -> OpStats {
        self.kinds[kind as usize]
    }
}

impl Stats {
    /// The counts now.
    pub fn snapshot(&self) -> StatsSnapshot {
        let read = |c: &Counters| OpStats {
            begun: c.begun.load(Relaxed),
            done: c.done.load(Relaxed),
            failed: c.failed.load(Relaxed),
            lent: c.lent.load(Relaxed),
            bytes: c.bytes.load(Relaxed),
            nanoseconds: c.nanoseconds.load(Relaxed),
        };
        StatsSnapshot { kinds: self.kinds.each_ref().map(read) }
    }

    fn ended(&self, op: Op, begin: Instant, ok: bool) {
        let counters = &self.kinds[op.kind as usize];
        if !ok {
            counters.failed.fetch_add(1, Relaxed);
            return;
        }
        counters.done.fetch_add(1, Relaxed);
        counters.bytes.fetch_add(op.len, Relaxed);
        let ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        counters.nanoseconds.fetch_add(ns, Relaxed);
    }
}

impl Around for Stats {
    fn around<T: Unpin + 'static>(
        self: &Arc<Self>,
        op: Op,
        start: impl FnOnce() -> IoFuture<T>,
    ) -> IoFuture<T> {
        self.kinds[op.kind as usize].begun.fetch_add(1, Relaxed);
        let begin = Instant::now();
        match start().try_ready() {
            Ok(result) => {
                self.ended(op, begin, result.is_ok());
                IoFuture::ready(result)
            }
            Err(under_way) => {
                let stats = Arc::clone(self);
                IoFuture::new(async move {
                    let result = under_way.await;
                    stats.ended(op, begin, result.is_ok());
                    result
                })
            }
        }
    }

    fn lends(&self, op: Op) -> bool {
        let counters = &self.kinds[op.kind as usize];
        counters.begun.fetch_add(1, Relaxed);
        counters.lent.fetch_add(1, Relaxed);
        counters.bytes.fetch_add(op.len, Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filtered;
    use crate::testing::{done, open};
    use crate::{MemDevice, WriteFlags};
    use longhaul_engine::{Buf, BufMut};

    #[test]
    fn each_kind_is_counted_apart() {
        let device = Filtered::new(Arc::new(MemDevice::new(8192, 512).expect("mapped")), Stats::default());
        let io = open(&device);
        for _ in 0..3 {
            done(io.write(0, Buf::copy_of(&[1; 1024]), WriteFlags::default())).expect("written");
        }
        done(io.read(0, BufMut::zeroed(512))).expect("read");
        done(io.read(8192, BufMut::zeroed(512))).map(drop).expect_err("past the end");
        io.map_read(0, 512).expect("lent");
        done(io.flush()).expect("flushed");
        let counts = device.filter().snapshot();
        let write = counts.of(OpKind::Write);
        assert_eq!((write.begun, write.done, write.failed, write.bytes), (3, 3, 0, 3072));
        assert!(write.nanoseconds > 0);
        let read = counts.of(OpKind::Read);
        assert_eq!((read.begun, read.done, read.failed, read.lent, read.bytes), (3, 1, 1, 1, 1024));
        assert_eq!(counts.of(OpKind::Flush).done, 1);
        assert_eq!(counts.of(OpKind::Discard), OpStats::default());
    }
}
