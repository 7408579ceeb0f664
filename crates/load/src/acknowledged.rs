//! Writes that a device has acknowledged, and whether it still has them after a crash or a takeover.
//!
//! Invariants:
//! - a block has one write under way at a time, and its writes are numbered from 1;
//! - a block is right if each of its sectors has the last write that was acknowledged, or one that was begun after it;
//!   before a write of it was acknowledged, zeroes or one that was begun;
//! - a block whose last write has failed is written again when it is checked: if that write takes effect after all, it
//!   is an older one from then on, and the next check finds it.

use crate::verify::{ExpectedContent, Fault, SECTOR, check, stamp};
use longhaul_block::{Blocking, IoResult};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The writes of one block.
#[derive(Clone, Copy, Debug, Default)]
struct Writes {
    /// The last one that was acknowledged.
    acknowledged: u32,
    /// The last one that was begun.
    begun: u32,
}

/// See the module. Blocks lie one after another from the beginning of the device, and read as zeroes before they are
/// written; any thread may write and check them.
#[derive(Debug)]
pub struct AcknowledgedWrites {
    run: u64,
    /// Bytes of a block.
    len: usize,
    blocks: Vec<Mutex<Writes>>,
    count: AtomicU64,
}

impl AcknowledgedWrites {
    /// `blocks` blocks of `len` bytes, a multiple of 512. `run` is a random number, which is in all that is written.
    ///
    /// # Panics
    /// `len` is not such a number.
    pub fn new(run: u64, blocks: usize, len: usize) -> AcknowledgedWrites {
        assert!(len > 0 && len.is_multiple_of(SECTOR), "blocks of {len} bytes");
        let blocks = (0..blocks).map(|_| Mutex::default()).collect();
        AcknowledgedWrites { run, len, blocks, count: AtomicU64::new(0) }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Writes that were acknowledged so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Writes a block.
    ///
    /// # Errors
    /// Those of the device: the write may have taken effect, or may still.
    ///
    /// # Panics
    /// There is no such block.
    pub fn write(&self, device: &Blocking, block: usize) -> IoResult<()> {
        self.write_locked(device, block, &mut self.lock(block))
    }

    /// Reads a block, and compares it with what it has to have. One that is wrong, or whose last write was not
    /// acknowledged, is written again.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Panics
    /// There is no such block.
    pub fn check(&self, device: &Blocking, block: usize) -> IoResult<Result<(), Fault>> {
        let mut writes = self.lock(block);
        let Writes { acknowledged: oldest, begun: newest } = *writes;
        let address = self.address(block);
        let mut read = vec![0; self.len];
        device.read_at(&mut read, address)?;
        let found = check(&read, address, ExpectedContent::Run { run: self.run, oldest, newest });
        if found.is_err() || oldest < newest {
            self.write_locked(device, block, &mut writes)?;
        }
        Ok(found)
    }

    fn write_locked(&self, device: &Blocking, block: usize, writes: &mut Writes) -> IoResult<()> {
        let address = self.address(block);
        writes.begun += 1;
        let mut content = vec![0; self.len];
        stamp(&mut content, address, self.run, writes.begun);
        device.write_at(&content, address)?;
        writes.acknowledged = writes.begun;
        self.count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn address(&self, block: usize) -> u64 {
        (block * self.len) as u64
    }

    fn lock(&self, block: usize) -> MutexGuard<'_, Writes> {
        self.blocks[block].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::FaultKind;
    use longhaul_block::MemDevice;
    use std::sync::Arc;

    const LEN: usize = 4096;

    fn device() -> Blocking {
        Blocking::open(Arc::new(MemDevice::new(1 << 20, 512).expect("mapped"))).expect("opened")
    }

    fn kind(writes: &AcknowledgedWrites, device: &Blocking, block: usize) -> Option<FaultKind> {
        writes.check(device, block).expect("read").err().map(|fault| fault.kind)
    }

    #[test]
    fn a_write_that_is_lost_is_found_once() {
        let (device, writes) = (device(), AcknowledgedWrites::new(7, 2, LEN));
        assert_eq!(kind(&writes, &device, 0), None, "it was never written");
        writes.write(&device, 0).expect("written");
        let mut first = vec![0; LEN];
        device.read_at(&mut first, 0).expect("read");
        writes.write(&device, 0).expect("written");
        writes.write(&device, 1).expect("written");
        assert_eq!((kind(&writes, &device, 0), writes.count()), (None, 3));
        device.write_at(&first, 0).expect("put back");
        assert_eq!(kind(&writes, &device, 0), Some(FaultKind::Stale));
        assert_eq!(kind(&writes, &device, 0), None, "it was written again");
        device.write_at(&first, LEN as u64).expect("misplaced");
        assert_eq!(kind(&writes, &device, 1), Some(FaultKind::Misplaced));
        device.write_at(&[0; 512], 512).expect("a sector is lost");
        assert_eq!(kind(&writes, &device, 0), Some(FaultKind::Torn));
    }

    #[test]
    fn a_write_that_has_failed_may_have_taken_effect_and_may_not_do_so_later() {
        let (device, writes) = (device(), AcknowledgedWrites::new(7, 1, LEN));
        writes.write(&device, 0).expect("written");
        // The second write fails, and is still on its way.
        writes.lock(0).begun = 2;
        let mut late = vec![0; LEN];
        stamp(&mut late, 0, 7, 2);
        assert_eq!(kind(&writes, &device, 0), None, "it has not taken effect");
        device.write_at(&late, 0).expect("written late");
        assert_eq!(kind(&writes, &device, 0), Some(FaultKind::Stale));
        // One that takes effect at once, in part.
        writes.lock(0).begun += 1;
        let begun = writes.lock(0).begun;
        stamp(&mut late, 0, 7, begun);
        device.write_at(&late[..512], 0).expect("written");
        assert_eq!(kind(&writes, &device, 0), None);
        assert_eq!(writes.lock(0).acknowledged, begun + 1, "it is in doubt no longer");
    }

    /// Nothing was acknowledged, so the block may be as it was before; it may have nothing else all the same.
    #[test]
    fn a_block_whose_first_write_has_failed_has_that_write_or_what_it_had_before() {
        let (device, writes) = (device(), AcknowledgedWrites::new(7, 3, LEN));
        let begin = |block: usize, content: &[u8]| {
            writes.lock(block).begun += 1;
            device.write_at(content, (block * LEN) as u64).expect("written");
        };
        let mut first = vec![0; LEN];
        stamp(&mut first, 0, 7, 1);
        writes.lock(0).begun += 1;
        assert_eq!(kind(&writes, &device, 0), None, "it has not taken effect");
        device.write_at(&first, 0).expect("written late");
        assert_eq!(kind(&writes, &device, 0), Some(FaultKind::Stale));
        // In part, and as what was never written to it.
        stamp(&mut first, LEN as u64, 7, 1);
        begin(1, &first[..512]);
        assert_eq!(kind(&writes, &device, 1), None);
        begin(2, &first);
        assert_eq!(kind(&writes, &device, 2), Some(FaultKind::Misplaced));
        assert_eq!(kind(&writes, &device, 2), None, "it was written again");
        // A block that was not written, and has something.
        let writes = AcknowledgedWrites::new(8, 3, LEN);
        assert_eq!(kind(&writes, &device, 0), Some(FaultKind::Stale), "content of another run");
        device.write_at(&[7; LEN], LEN as u64).expect("written");
        assert_eq!(kind(&writes, &device, 1), Some(FaultKind::Corrupted));
        assert_eq!(kind(&writes, &device, 1), None, "it was written");
    }
}
