//! A device that stores nothing, to measure everything else.
//!
//! Invariants: zeroes are read from an area that is mapped read-only, so that
//! nothing can spoil them; writes end in another area that is never read.

use crate::mem::{Mapping, memory_info};
use crate::{BlockDevice, BlockIo, DeviceInfo, IoFuture, IoResult, Open, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut, Segment};
use std::rc::Rc;
use std::sync::Arc;

/// Length in bytes of the zero area and of the scratch area, and so the
/// largest I/O: as large as the largest in-capsule write.
const AREA: usize = 4 << 20;

/// Reads are zeroes, writes vanish, and both are done at once.
pub struct NullDevice {
    info: DeviceInfo,
    zeroes: Arc<Mapping>,
    scratch: Arc<Mapping>,
}

impl NullDevice {
    /// A device that claims `size` bytes in blocks of `block_size`.
    ///
    /// # Errors
    /// [`IoError::Unaligned`](crate::IoError::Unaligned) if `size` is not a
    /// whole number of blocks, `Medium` if the system refuses the areas.
    pub fn new(size: u64, block_size: u32) -> IoResult<NullDevice> {
        let info = memory_info(format!("null:{size}"), size, block_size, AREA as u32)?;
        let (zeroes, scratch) = (Mapping::new(AREA, false)?, Mapping::new(AREA, true)?);
        Ok(NullDevice { info, zeroes: Arc::new(zeroes), scratch: Arc::new(scratch) })
    }
}

impl BlockDevice for NullDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn open(&self) -> Open<'_> {
        let io: Rc<dyn BlockIo> = Rc::new(NullIo {
            info: self.info.clone(),
            zeroes: Arc::clone(&self.zeroes),
            scratch: Arc::clone(&self.scratch),
        });
        Box::pin(std::future::ready(Ok(io)))
    }
}

struct NullIo {
    info: DeviceInfo,
    zeroes: Arc<Mapping>,
    scratch: Arc<Mapping>,
}

impl NullIo {
    fn lend(&self, area: &Arc<Mapping>, offset: u64, len: usize) -> Option<Segment> {
        self.info.check(offset, len as u64).ok()?;
        (len <= AREA).then(|| area.segment(0, len))
    }
}

impl BlockIo for NullIo {
    fn may_forget(&self) -> bool {
        // There is nothing to be lost.
        false
    }

    fn read(&self, offset: u64, mut dst: BufMut) -> IoFuture<BufMut> {
        IoFuture::ready(self.info.check(offset, dst.len() as u64).map(|()| {
            dst.fill(0);
            dst
        }))
    }

    fn write(&self, offset: u64, src: Buf, _flags: WriteFlags) -> IoFuture<()> {
        IoFuture::ready(self.info.check(offset, src.len() as u64))
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        IoFuture::ready(self.info.check(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        IoFuture::ready(self.info.check(offset, len))
    }

    fn map_read(&self, offset: u64, len: usize) -> Option<Segment> {
        self.lend(&self.zeroes, offset, len)
    }

    fn map_write(&self, offset: u64, len: usize) -> Option<Segment> {
        self.lend(&self.scratch, offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{done, open};

    #[test]
    fn writes_vanish_and_reads_are_zeroes() {
        let io = open(&NullDevice::new(1 << 40, 4096).expect("mapped"));
        done(io.write(1 << 39, Buf::copy_of(&[1; 4096]), WriteFlags::default())).expect("taken");
        let mut dst = BufMut::zeroed(4096);
        dst.fill(0xEE);
        assert_eq!(done(io.read(1 << 39, dst)).expect("read")[..], [0; 4096]);
        assert!(done(io.read(1 << 40, BufMut::zeroed(4096))).is_err());
    }

    #[test]
    fn lent_scratch_never_shows_in_reads() {
        let io = open(&NullDevice::new(1 << 30, 4096).expect("mapped"));
        let sink = io.map_write(4096, 4096).expect("lent");
        // SAFETY: 4096 writable bytes that no other thread touches.
        unsafe { std::ptr::write_bytes(sink.as_ptr(), 7, 4096) };
        let zeroes = io.map_read(4096, 4096).expect("lent");
        // SAFETY: 4096 readable bytes that never change.
        assert_eq!(unsafe { std::slice::from_raw_parts(zeroes.as_ptr(), 4096) }, [0; 4096]);
        assert!(io.map_read(0, AREA + 4096).is_none());
    }
}
