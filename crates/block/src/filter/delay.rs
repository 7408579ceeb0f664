//! Makes a device slow.

use super::{Around, Op, OpSet};
use crate::IoFuture;
use std::sync::Arc;
use std::time::Duration;

/// The filter: delays the completion of operations.
///
/// An operation itself is executed below without delay, so that it ends even if its future is
/// dropped, as [`crate::IoFuture`] promises.
#[derive(Debug)]
pub struct Delay {
    /// How much later.
    pub time: Duration,
    /// Of which operations.
    pub ops: OpSet,
}

impl Delay {
    /// Delays every operation.
    pub fn new(time: Duration) -> Delay {
        Delay { time, ops: OpSet::ALL }
    }
}

impl Around for Delay {
    fn around<T: Unpin + 'static>(
        self: &Arc<Self>,
        op: Op,
        start: impl FnOnce() -> IoFuture<T>,
    ) -> IoFuture<T> {
        let under_way = start();
        if !self.ops.has(op.kind) || self.time.is_zero() {
            return under_way;
        }
        let time = self.time;
        IoFuture::new(async move {
            let result = under_way.await;
            longhaul_engine::sleep(time).await;
            result
        })
    }

    fn lends(&self, op: Op) -> bool {
        !self.ops.has(op.kind) || self.time.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{Filtered, OpKind};
    use crate::{BlockDevice, MemDevice, WriteFlags};
    use longhaul_engine::{Buf, BufMut, Config, Engine};
    use std::time::Instant;

    #[test]
    fn the_end_comes_later_and_the_effect_at_once() {
        const TIME: Duration = Duration::from_millis(20);
        let filter = Delay { time: TIME, ops: OpSet::NONE.with(OpKind::Write) };
        let device = Filtered::new(Arc::new(MemDevice::new(8192, 512).expect("mapped")), filter);
        Engine::new(&Config::default()).expect("engine").block_on(async {
            let io = device.open().await.expect("opened");
            let begin = Instant::now();
            let write = io.write(0, Buf::copy_of(&[3; 512]), WriteFlags::default());
            let read = io.read(0, BufMut::zeroed(512)).await.expect("read");
            assert_eq!(read[..], [3; 512], "the write is below already");
            write.await.expect("written");
            assert!(begin.elapsed() >= TIME);
            assert!(io.map_write(0, 512).is_none() && io.map_read(0, 512).is_some());
            drop(io.write(512, Buf::copy_of(&[4; 512]), WriteFlags::default()));
            assert_eq!(io.read(512, BufMut::zeroed(512)).await.expect("read")[..], [4; 512]);
        });
    }
}
