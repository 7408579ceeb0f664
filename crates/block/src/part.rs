//! What is behind the beginning of a device, as a device.

use crate::{
    Advice, BlockDevice, BlockIo, DeviceInfo, IoError, IoFuture, IoResult, Open, Reservations, WriteFlags,
    ZeroFlags,
};
use longhaul_engine::{Buf, BufMut, Segment};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use uuid::Uuid;

/// A device without its first bytes, where something else is kept. Its reservations are those of the whole device.
pub struct PartDevice {
    whole: Arc<dyn BlockDevice>,
    /// Bytes that are left out.
    skipped: u64,
    uuid: Uuid,
}

impl PartDevice {
    /// `whole` without its first `skipped` bytes, which are whole blocks of it, as a device with this identity.
    ///
    /// # Errors
    /// It is not larger than that.
    pub fn new(whole: Arc<dyn BlockDevice>, skipped: u64, uuid: Uuid) -> IoResult<PartDevice> {
        whole.info().check(skipped, u64::from(whole.info().block_size))?;
        Ok(PartDevice { whole, skipped, uuid })
    }

    fn describe(&self, info: DeviceInfo) -> DeviceInfo {
        DeviceInfo { size: info.size.saturating_sub(self.skipped), uuid: Some(self.uuid), ..info }
    }
}

impl BlockDevice for PartDevice {
    fn info(&self) -> DeviceInfo {
        self.describe(self.whole.info())
    }

    fn granularity(&self) -> u32 {
        self.whole.granularity()
    }

    fn refresh(&self) -> IoResult<DeviceInfo> {
        Ok(self.describe(self.whole.refresh()?))
    }

    fn open(&self) -> Open<'_> {
        Box::pin(async move {
            let (whole, skipped) = (self.whole.open().await?, self.skipped);
            let io: Rc<dyn BlockIo> = Rc::new(PartIo { whole, skipped });
            Ok(io)
        })
    }
}

struct PartIo {
    whole: Rc<dyn BlockIo>,
    skipped: u64,
}

impl PartIo {
    /// Begins an operation at its place on the whole device.
    fn at<T>(&self, offset: u64, len: u64, begin: impl FnOnce(u64) -> IoFuture<T>) -> IoFuture<T> {
        match offset.checked_add(self.skipped) {
            Some(offset) => begin(offset),
            None => IoFuture::ready(Err(IoError::OutOfRange { offset, len, size: u64::MAX - self.skipped })),
        }
    }
}

impl BlockIo for PartIo {
    fn read(&self, offset: u64, dst: BufMut) -> IoFuture<BufMut> {
        self.at(offset, dst.len() as u64, |at| self.whole.read(at, dst))
    }

    fn write(&self, offset: u64, src: Buf, flags: WriteFlags) -> IoFuture<()> {
        self.at(offset, src.len() as u64, |at| self.whole.write(at, src, flags))
    }

    fn flush(&self) -> IoFuture<()> {
        self.whole.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.at(offset, len, |at| self.whole.discard(at, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.at(offset, len, |at| self.whole.write_zeroes(at, len, flags))
    }

    fn advice(&self) -> Option<Advice> {
        self.whole.advice()
    }

    fn generation(&self) -> u64 {
        self.whole.generation()
    }

    fn may_forget(&self) -> bool {
        self.whole.may_forget()
    }

    fn away_since(&self) -> Option<Instant> {
        self.whole.away_since()
    }

    fn reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.whole.reservations()
    }

    fn shared_reservations(&self) -> Option<Rc<dyn Reservations>> {
        self.whole.shared_reservations()
    }

    fn map_read(&self, offset: u64, len: usize) -> Option<Segment> {
        self.whole.map_read(offset.checked_add(self.skipped)?, len)
    }

    fn map_write(&self, offset: u64, len: usize) -> Option<Segment> {
        self.whole.map_write(offset.checked_add(self.skipped)?, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FaultDisk, done, open};

    const KIB: u64 = 1 << 10;

    #[test]
    fn every_operation_is_behind_what_is_skipped() {
        let disk = FaultDisk::new(64 * KIB);
        let whole = open(&disk);
        done(whole.write(0, Buf::copy_of(&[7; 64 << 10]), WriteFlags::default())).expect("written");
        let uuid = Uuid::from_u128(9);
        let part = PartDevice::new(Arc::new(disk.clone()), 16 * KIB, uuid).expect("a part");
        assert_eq!((part.info().size, part.info().uuid), (48 * KIB, Some(uuid)));
        let io = open(&part);
        done(io.write(0, Buf::copy_of(&[1; 4096]), WriteFlags::default())).expect("written");
        done(io.write_zeroes(4 * KIB, 4 * KIB, ZeroFlags::default())).expect("zeroed");
        assert_eq!(done(io.read(0, BufMut::zeroed(4096))).expect("read")[..], [1; 4096]);
        let mut expected = vec![7; 64 << 10];
        expected[16 << 10..20 << 10].fill(1);
        expected[20 << 10..24 << 10].fill(0);
        assert_eq!(disk.content(0..64 * KIB), expected);
        done(io.read(44 * KIB, BufMut::zeroed(4096))).expect("the last block");
        for past in [48 * KIB, u64::MAX - 511] {
            let error = done(io.read(past, BufMut::zeroed(512))).expect_err("past the end");
            assert!(matches!(error, IoError::OutOfRange { .. }), "{error}");
        }
        assert!(PartDevice::new(Arc::new(disk), 64 * KIB, uuid).is_err(), "nothing is left");
    }
}
