//! Commands whose work is out of proportion to their 64 bytes: Write Zeroes,
//! Verify and Deallocate.
//!
//! Invariants:
//! - a few are under way at a time, and hosts take turns
//!   (`LONG_COMMANDS` in `memory.rs`);
//! - the work is done slice by slice, and between two slices the thread runs
//!   its other tasks;
//! - a device that does the work on the calling thread (one that lends its
//!   memory) does it on a thread for that, which steps back behind the threads
//!   of the engine;
//! - between two slices a connection that has ended ends the command.

use crate::connection::Connection;
use longhaul_block::{BlockDevice, BlockIo, IoError, ZeroFlags};
use longhaul_engine::yield_now;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes up to which zeroes are written at once: no more than a write brings
/// in a page or a few.
const AT_ONCE: u64 = 16 << 10;
/// Bytes that a device in memory zeroes at a time: some tens of microseconds.
const MEMORY_SLICE: u64 = 256 << 10;
/// Bytes that other devices zero at a time: enough that the request does not
/// count beside the work.
const DEVICE_SLICE: u64 = 4 << 20;
/// Bytes that a device in memory gives back at a time: thousands of pages.
const MEMORY_DISCARD: u64 = 16 << 20;
/// Bytes that other devices deallocate at a time.
const DEVICE_DISCARD: u64 = 1 << 30;
/// Bytes that Verify reads at a time.
const VERIFY_SLICE: u64 = 1 << 20;

/// A device, and the connection that has something long to do with it.
pub(crate) struct Long {
    pub(crate) connection: Rc<Connection>,
    pub(crate) device: Option<Arc<dyn BlockDevice>>,
    pub(crate) io: Rc<dyn BlockIo>,
    /// Logical block size in bytes.
    pub(crate) block_size: u32,
    /// In bytes, or 0.
    pub(crate) optimal_io: u32,
}

/// Cuts `len` bytes at `offset` where multiples of `unit` are.
fn slices(offset: u64, len: u64, unit: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let next = (at / unit + 1).saturating_mul(unit).min(end);
        let slice = (at < end).then_some((at, next - at));
        at = next;
        slice
    })
}

#[derive(Clone, Copy)]
enum LongWork {
    Zero(ZeroFlags),
    Discard,
}

impl LongWork {
    async fn slice(self, io: &dyn BlockIo, offset: u64, len: u64) -> Result<(), IoError> {
        match self {
            LongWork::Zero(flags) => io.write_zeroes(offset, len, flags).await,
            LongWork::Discard => match io.discard(offset, len).await {
                // Deallocation is a hint; a device that cannot do it keeps
                // the data.
                Err(IoError::Unsupported(_)) => Ok(()),
                result => result,
            },
        }
    }
}

impl Long {
    /// Whether the device does its work on the thread that asks for it.
    fn is_memory(&self) -> bool {
        self.io.map_read(0, self.block_size as usize).is_some()
    }

    /// The unit of a device that works in the background, in whole stripes.
    fn unit(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(u64::from(self.optimal_io).max(1))
    }

    pub(crate) async fn write_zeroes(self, offset: u64, len: u64, flags: ZeroFlags) -> Result<(), IoError> {
        if len <= AT_ONCE {
            return self.io.write_zeroes(offset, len, flags).await;
        }
        let _turn = Rc::clone(&self.connection.shares().long).take(1).await;
        self.work(LongWork::Zero(flags), vec![(offset, len)], MEMORY_SLICE, self.unit(DEVICE_SLICE)).await
    }

    pub(crate) async fn discard(self, ranges: Vec<(u64, u64)>) -> Result<(), IoError> {
        let _turn = Rc::clone(&self.connection.shares().long).take(1).await;
        self.work(LongWork::Discard, ranges, MEMORY_DISCARD, self.unit(DEVICE_DISCARD)).await
    }

    async fn work(
        &self,
        work: LongWork,
        ranges: Vec<(u64, u64)>,
        memory_unit: u64,
        unit: u64,
    ) -> Result<(), IoError> {
        if self.is_memory()
            && let Some(device) = self.device.clone()
        {
            return self.elsewhere(device, work, ranges, memory_unit).await;
        }
        for (offset, len) in ranges.into_iter().flat_map(|(offset, len)| slices(offset, len, unit)) {
            self.check()?;
            work.slice(&*self.io, offset, len).await?;
            yield_now().await;
        }
        Ok(())
    }

    /// Works on the thread for long work, a slice at a time.
    async fn elsewhere(
        &self,
        device: Arc<dyn BlockDevice>,
        work: LongWork,
        ranges: Vec<(u64, u64)>,
        unit: u64,
    ) -> Result<(), IoError> {
        for (offset, len) in ranges.into_iter().flat_map(|(offset, len)| slices(offset, len, unit)) {
            self.check()?;
            let device = Arc::clone(&device);
            let slice = self.connection.target.long.spawn(move || async move {
                let io = device.open().await?;
                work.slice(&*io, offset, len).await
            });
            slice.await.map_err(|_| IoError::Aborted)??;
        }
        Ok(())
    }

    /// Reads without sending anything.
    pub(crate) async fn verify(self, offset: u64, len: u64) -> Result<(), IoError> {
        if self.io.map_read(offset, len as usize).is_some() {
            // Memory has no medium that could fail.
            return Ok(());
        }
        let _turn = Rc::clone(&self.connection.shares().long).take(1).await;
        for (offset, len) in slices(offset, len, VERIFY_SLICE) {
            self.check()?;
            let (buf, _charge) = Rc::clone(&self.connection.shares().check).alloc(len as usize).await;
            self.io.read(offset, buf).await?;
            yield_now().await;
        }
        Ok(())
    }

    /// Ends what a connection has left behind.
    fn check(&self) -> Result<(), IoError> {
        if self.connection.shared.is_ending() { Err(IoError::Aborted) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_the_range_and_end_at_whole_units() {
        assert_eq!(slices(5, 3, 4).collect::<Vec<_>>(), [(5, 3)]);
        assert_eq!(slices(3, 10, 4).collect::<Vec<_>>(), [(3, 1), (4, 4), (8, 4), (12, 1)]);
        assert_eq!(slices(8, 8, 4).collect::<Vec<_>>(), [(8, 4), (12, 4)]);
        assert_eq!(slices(8, 0, 4).count(), 0);
    }
}
