//! The target's disk, with planted bugs.

use super::Planted;
use crate::disk::Disk;
use longhaul_block::{BlockDevice, BlockIo, DeviceInfo, IoFuture, Open, WriteFlags, ZeroFlags};
use longhaul_engine::{Buf, BufMut};
use std::rc::Rc;

/// The disk as the target has it.
pub(super) struct Wrong {
    pub(super) below: Disk,
    pub(super) planted: Planted,
}

impl BlockDevice for Wrong {
    fn info(&self) -> DeviceInfo {
        self.below.info()
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let below = self.below.open().await?;
            Ok(match self.planted {
                Planted::EarlyAcknowledgement | Planted::NoFlush => {
                    Rc::new(WrongIo { below, planted: self.planted }) as Rc<dyn BlockIo>
                }
                _ => below,
            })
        })
    }
}

struct WrongIo {
    below: Rc<dyn BlockIo>,
    planted: Planted,
}

impl BlockIo for WrongIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.below.read(offset, dst)
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        let write = self.below.write(offset, src, flags);
        if self.planted == Planted::EarlyAcknowledgement { IoFuture::ready(Ok(())) } else { write }
    }

    fn flush(&self) -> IoFuture<()> {
        if self.planted == Planted::NoFlush { IoFuture::ready(Ok(())) } else { self.below.flush() }
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.below.write_zeroes(offset, len, flags)
    }
}
